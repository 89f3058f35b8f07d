"""Sessions of other tools whose values are nested deeper than our logs may be can be salvaged, copied and restored."""

from __future__ import annotations

import json
import tempfile
import unittest
from pathlib import Path

from openagentic_sdk.events import ToolUse, UnknownEvent, UserMessage
from openagentic_sdk.parts.record.archive import archive_session, restore_session
from openagentic_sdk.parts.record.depth import deep_json, flattened
from openagentic_sdk.parts.record.lifecycle import export_session
from openagentic_sdk.parts.record.verify_log import salvage, verify_session
from openagentic_sdk.serialization import dumps_json
from openagentic_sdk.sessions.base import SessionStore
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.sessions.store import FileSessionStore


def nested(depth: int) -> str:
    return "[" * depth + "1" + "]" * depth


class DeepLogs(unittest.TestCase):
    def setUp(self) -> None:
        self.place = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.store = FileSessionStore(self.place, durability="flush")

    def written_by_another_tool(self, depth: int) -> str:
        name = self.store.create_session(session_id=f"deep-{depth}")
        lines = (
            '{"type":"user.message","text":"hello"}',
            f'{{"type":"tool.use","tool_use_id":"c","name":"Any","input":{{"flat":"kept","deep":{nested(depth)}}}}}',
            f'{{"type":"of.another.tool","deep":{nested(depth)}}}',
            '{"type":"tool.result","tool_use_id":"c","output":"done"}',
        )
        (self.store.session_dir(name) / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))
        return name

    def assert_copied(self, store: SessionStore, name: str, depth: int) -> None:
        events = store.read_events(name)
        (use,) = [event for event in events if isinstance(event, ToolUse)]
        (unknown,) = [event for event in events if isinstance(event, UnknownEvent)]
        if depth < 198:
            self.assertEqual((dumps_json(use.input["deep"]), dumps_json(unknown.data["deep"])), (nested(depth),) * 2)
        else:
            self.assertEqual(use.input, {"flat": "kept", "deep": nested(depth)})
        self.assertIn(unknown.data["deep"], (nested(depth), json.loads(nested(depth))))
        self.assertIn("hello", [event.text for event in events if isinstance(event, UserMessage)])

    def test_each_way_of_copying_keeps_such_values_as_their_json(self) -> None:
        for depth in (190, 196, 197, 198, 199, 200, 205, 400):
            with self.subTest(depth):
                name = self.written_by_another_tool(depth)
                salvaged = salvage(self.store, name)
                self.assertEqual(salvaged.events, 4)
                self.assert_copied(self.store, salvaged.session_id, depth)
                self.assertEqual(verify_session(self.store, salvaged.session_id).problems, ())
                target = MemorySessionStore()
                export_session(self.store, target, name)
                self.assert_copied(target, name, depth)
                archive_session(self.store, name, self.place / f"{depth}.zip")
                restored = MemorySessionStore()
                restore_session(restored, self.place / f"{depth}.zip")
                self.assertEqual(restored.read_events(name), target.read_events(name))

    def test_values_of_any_depth_have_a_json(self) -> None:
        value: object = "a"
        for _ in range(5_000):
            value = [value]
        self.assertEqual(deep_json(value), "[" * 5_000 + '"a"' + "]" * 5_000)
        for plain in ({}, [], {"a": [1, {"b": None}, '\ud800"'], "c": {}}, [[], {}], "x", 1.5, True):
            self.assertEqual(deep_json(plain), dumps_json(plain))

    def test_other_events_stay_unchanged(self) -> None:
        events = [
            UserMessage("a", seq=1),
            ToolUse("c", "Any", {"a": [[1]]}, seq=2),
            UnknownEvent({"type": "x", "seq": 3}),
        ]
        for before, after in zip(events, flattened(events), strict=True):
            self.assertIs(before, after)


if __name__ == "__main__":
    unittest.main()
