"""The TodoWrite tool: the model's to-do list, replaced as a whole by each call and stored as an event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...events import TodoUpdated
from ...kernel.tool import SessionLog, ToolContext
from ..base import Tool
from ..labels import OWN_SESSION
from ..schema import array, object_schema, string

MAX_ITEMS, MAX_ITEM_CHARS = 200, 2_000
STATUSES = ("pending", "in_progress", "completed")


class TodoWriteTool(Tool):
    """A tool that replaces the to-do list and returns `{"todos": [...], "counts": {status: n}}`. Records `todo.updated`."""

    name = "TodoWrite"
    labels = OWN_SESSION
    description = (
        "Keep a to-do list for work of several steps. Each call replaces the whole list. Keep one item in_progress while "
        "you work on it and mark it completed as soon as it is done. An empty list clears it."
    )
    input_schema = object_schema(
        {
            "todos": array(
                "The whole current list",
                items=object_schema(
                    {
                        "content": string("What is to be done", minLength=1, maxLength=MAX_ITEM_CHARS),
                        "status": string("How far it is", enum=list(STATUSES)),
                        "activeForm": string(
                            "The same as something being done ('Running the tests')", maxLength=MAX_ITEM_CHARS
                        ),
                    },
                    required=["content", "status"],
                ),
                maxItems=MAX_ITEMS,
            )
        },
        required=["todos"],
    )
    effect = "idempotent"

    async def run(self, input: Mapping[str, Any], ctx: ToolContext) -> dict[str, Any]:
        keys = ("content", "status", "activeForm")
        todos = [{key: entry[key] for key in keys if entry.get(key)} for entry in input["todos"]]
        await ctx.services.get(SessionLog).record(TodoUpdated(todos=todos))
        statuses = [todo["status"] for todo in todos]
        return {"todos": todos, "counts": {status: statuses.count(status) for status in STATUSES}}
