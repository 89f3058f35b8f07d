"""The TodoWrite tool: the model's to-do list, replaced whole by each call and kept as an event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..events import TodoUpdated
from .base import Tool, ToolContext
from .schema import array, object_schema, string

STATUSES = ("pending", "in_progress", "completed")


class TodoWriteTool(Tool):
    """Replace the to-do list: `{"todos": [...], "counts": {status: n}}`. Records a `todo.updated` event."""

    name = "TodoWrite"
    description = (
        "Keep a to-do list for work of several steps. Each call replaces the whole list. Keep one item in_progress while "
        "you work on it and mark it completed as soon as it is done. An empty list clears it."
    )
    effect = "idempotent"

    def __init__(self, *, max_items: int = 200, max_item_chars: int = 2_000) -> None:
        item = object_schema(
            {
                "content": string("What is to be done", minLength=1, maxLength=max_item_chars),
                "status": string("How far it is", enum=list(STATUSES)),
                "activeForm": string(
                    "The same as something being done ('Running the tests')", maxLength=max_item_chars
                ),
            },
            required=["content", "status"],
        )
        todos = array("The whole list as it now stands", items=item, maxItems=max_items)
        self.input_schema = object_schema({"todos": todos}, required=["todos"])

    async def run(self, input: Mapping[str, Any], ctx: ToolContext) -> dict[str, Any]:
        known = ("content", "status", "activeForm")
        todos = [{key: entry[key] for key in known if entry.get(key)} for entry in input["todos"]]
        if ctx.record is not None:
            await ctx.record(TodoUpdated(todos=todos))
        statuses = [todo["status"] for todo in todos]
        return {"todos": todos, "counts": {status: statuses.count(status) for status in STATUSES}}
