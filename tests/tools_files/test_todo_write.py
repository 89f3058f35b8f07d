from __future__ import annotations

import unittest
from typing import Any

from openagentic_sdk.errors import ToolInputError
from openagentic_sdk.events import TodoUpdated
from openagentic_sdk.tools.base import SessionLog, ToolContext
from openagentic_sdk.tools.session.todo_write import TodoWriteTool


class TodoWrite(unittest.TestCase):
    def test_the_whole_list_is_recorded_and_returned(self) -> None:
        todos = [
            {"content": "read", "status": "completed", "extra": 1},
            {"content": "write", "status": "in_progress", "activeForm": "writing"},
        ]
        kept = [{"content": "read", "status": "completed"}, todos[1]]
        output = TodoWriteTool().run_sync({"todos": todos}, ctx := ToolContext())
        self.assertEqual(output, {"todos": kept, "counts": {"pending": 0, "in_progress": 1, "completed": 1}})
        self.assertEqual(ctx.services.get(SessionLog).events(), [TodoUpdated(todos=kept)])
        self.assertEqual(TodoWriteTool().run_sync({"todos": []}, ToolContext())["todos"], [])

    def test_items_that_do_not_fit_are_refused_with_their_place(self) -> None:
        wrong: list[tuple[Any, str]] = [
            ({"content": "x"}, "todos[0]"),
            ({"content": "x", "status": "done"}, "todos[0].status"),
            ({"content": "", "status": "pending"}, "todos[0].content"),
            ({"content": "x" * 2_001, "status": "pending"}, "todos[0].content"),
            ("x", "todos[0]"),
        ]
        for item, path in wrong:
            with self.subTest(item=str(item)[:40]), self.assertRaises(ToolInputError) as caught:
                TodoWriteTool().run_sync({"todos": [item]}, ToolContext())
            self.assertTrue(caught.exception.path.startswith(path), caught.exception.path)

    def test_a_list_or_text_that_is_too_long_is_refused_in_a_whole_sentence(self) -> None:
        item = {"content": "x", "status": "pending"}
        wrong = {
            "the arguments: todos must be at most 200 items, not 201": [item] * 201,
            "the arguments: todos[0].content must be at least 1 character, not 0": [{**item, "content": ""}],
        }
        for said, todos in wrong.items():
            with self.assertRaises(ToolInputError) as caught:
                TodoWriteTool().run_sync({"todos": todos}, ToolContext())
            self.assertEqual(str(caught.exception), said)
