"""Conversations of other programs are imported as sessions without loss of text."""

from __future__ import annotations

import json
import shutil
import tempfile
import unittest
from pathlib import Path

from openagentic_sdk.errors import InvalidEventError, SessionExistsError, StorageError
from openagentic_sdk.events import ToolUse
from openagentic_sdk.parts.record import importers
from openagentic_sdk.sessions.folds.summary import fold_session_summary
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.sessions.rebuild import rebuild_messages
from tests.size import full_size

FIXTURES = Path(__file__).parents[2] / "fixtures" / "stores" / "claude"


def call(call_id: str, arguments: str = "{}") -> dict[str, object]:
    return {"id": call_id, "type": "function", "function": {"name": "Read", "arguments": arguments}}


class TranscriptTest(unittest.TestCase):
    def test_each_transcript_is_read_as_in_the_file_beside_it(self) -> None:
        for path in sorted(FIXTURES.glob("*.jsonl")):
            expected = json.loads(path.with_suffix(".json").read_text())
            session = importers.read_claude_transcript(path)
            summary = fold_session_summary(None, session.events)
            found = {
                "messages": rebuild_messages(session.events),
                "types": [event.type for event in session.events],
                "title": summary.title,
                "turns": summary.turns,
                "tokens": summary.tokens,
                "metadata": dict(session.metadata),
                "created_at": session.created_at,
                "unreadable": session.unreadable,
                "left_out": session.left_out,
            }
            with self.subTest(path.stem):
                self.assertEqual(found, expected)

    def test_a_transcript_and_its_subagents_become_a_session_and_its_children(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            main = Path(shutil.copy(FIXTURES / "simple.jsonl", Path(place) / "abc.jsonl"))
            agents = Path(place) / "abc" / "subagents" / "workflows" / "w"
            agents.mkdir(parents=True)
            shutil.copy(FIXTURES / "parallel.jsonl", agents / "agent-7.jsonl")
            (agents / "agent-8.jsonl").write_bytes(b"\x00\x00\n")
            store = MemorySessionStore()
            self.assertEqual(importers.import_claude_transcript(store, main), ["abc", "abc.agent-7"])
            self.assertEqual(store.list_children("abc"), ["abc.agent-7"])
            (row,) = store.list_session_summaries(cwd="/work")
            self.assertEqual((row.id, row.title, row.model, row.created), ("abc", "Files", "claude-x", 1767323045.0))
            with self.assertRaises(SessionExistsError):
                importers.import_claude_transcript(store, main)
            self.assertEqual(importers.import_claude_transcript(store, main, session_id="other")[0], "other")

    def test_subagents_are_beside_the_conversation_and_may_share_names(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            main = Path(shutil.copy(FIXTURES / "simple.jsonl", Path(place) / "abc.jsonl"))
            for folder in ("", "workflows/w1", "workflows/w2"):
                agents = Path(place) / "abc" / "subagents" / folder
                agents.mkdir(parents=True, exist_ok=True)
                line = {"type": "user", "uuid": "u", "isSidechain": True, "message": {"content": f"in {folder}"}}
                (agents / "agent-1.jsonl").write_text(json.dumps(line))
            store = MemorySessionStore()
            children = ["abc.agent-1", "abc.workflows.w1.agent-1", "abc.workflows.w2.agent-1"]
            self.assertEqual(importers.import_claude_transcript(store, main), ["abc", *children])
            self.assertEqual([store.read_summary(name).first_prompt for name in children][1], "in workflows/w1")
            self.assertEqual(sorted(store.list_children("abc")), children)
            store.delete_session("abc")
            with self.assertRaises(SessionExistsError):
                importers.import_claude_transcript(store, main)
            self.assertFalse(store.session_exists("abc"))

    def test_fields_of_a_wrong_kind_are_read_without_failing(self) -> None:
        for wrong in ([], {}, 5, None, [1]):
            blocks = [
                {"type": "tool_use", "id": wrong, "name": wrong, "input": wrong},
                {"type": "tool_result", "tool_use_id": wrong, "content": wrong},
                {"type": wrong, "text": wrong},
            ]
            for line in (
                {"type": "user", "uuid": wrong, "message": {"content": blocks}},
                {"type": "assistant", "uuid": "u", "message": {"id": wrong, "content": blocks, "usage": wrong}},
                {"type": wrong, "uuid": "u", "message": wrong, "timestamp": wrong},
            ):
                with self.subTest(line):
                    rebuild_messages(importers.parse_claude_transcript(json.dumps(line).encode()).events)

    def test_a_file_without_a_conversation_is_refused(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            path = Path(place) / "x.jsonl"
            for data in (b"", b"\n\n", b"{}\n", b"\x00" * 100, b'{"type":"user"', b"[]\nnull\n1\n", b"\xff\xfe\n"):
                path.write_bytes(data)
                with self.assertRaises(StorageError):
                    importers.read_claude_transcript(path)
            with self.assertRaises(StorageError):
                importers.read_claude_transcript(Path(place) / "missing.jsonl")

    def test_any_bytes_are_read_without_failing(self) -> None:
        whole = (FIXTURES / "hostile.jsonl").read_bytes()
        for size in range(0, len(whole), 37):
            session = importers.parse_claude_transcript(whole[:size])
            rebuild_messages(session.events)
            importers.parse_claude_transcript(whole[size:])

    @full_size
    def test_pointers_that_lead_nowhere_or_in_circles_cost_no_history_and_no_time(self) -> None:
        lines = [
            {"type": "user", "uuid": f"u{number}", "parentUuid": f"gone{number}", "message": {"content": f"p{number}"}}
            for number in range(5_000)
        ]
        data = b"\n".join(json.dumps(line).encode() for line in lines)
        self.assertEqual(len(rebuild_messages(importers.parse_claude_transcript(data).events)), 5_000)


class MessagesTest(unittest.TestCase):
    def test_messages_are_returned_unchanged(self) -> None:
        messages = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "one"},
            {"role": "assistant", "content": None, "tool_calls": [call("a"), call("b", '{"x": 1}')]},
            {"role": "tool", "tool_call_id": "a", "content": "A"},
            {"role": "tool", "tool_call_id": "b", "content": "B"},
            {"role": "assistant", "content": "text too", "tool_calls": [call("a")]},
            {"role": "tool", "tool_call_id": "a", "content": "again"},
            {"role": "user", "content": "two"},
            {"role": "user", "content": "prompts"},
            {"role": "assistant", "content": "done"},
        ]
        self.assertEqual(rebuild_messages(importers.events_from_messages(messages)), messages)

    def test_results_that_name_no_call_answer_the_calls_in_their_order(self) -> None:
        messages = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "tool_calls": [{"function": {"name": name, "arguments": "{}"}} for name in "fg"]},
            {"role": "tool", "content": "F"},
            {"role": "tool", "tool_call_id": None, "content": "G"},
        ]
        rebuilt = rebuild_messages(importers.events_from_messages(messages))
        self.assertEqual([message["content"] for message in rebuilt], ["hi", None, "F", "G"])

    def test_messages_that_no_model_accepts_are_repaired_or_reported(self) -> None:
        messages = [
            {"role": "system", "content": "be good"},
            {"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {}}]},
            {"role": "assistant", "tool_calls": [call("a", "{broken"), call("", "[]"), {"id": "c"}, "no call"]},
            {"role": "tool", "tool_call_id": "nobody's", "content": "orphan"},
        ]
        events = importers.events_from_messages(messages)
        uses = [event for event in events if isinstance(event, ToolUse)]
        self.assertEqual([use.raw_arguments for use in uses], ["{broken", "[]"])
        rebuilt = rebuild_messages(events)
        self.assertEqual(rebuilt[0], {"role": "user", "content": "see\n[image_url]"})
        self.assertEqual([message["role"] for message in rebuilt], ["user", "assistant", "tool", "tool"])
        for wrong in ({"role": "narrator"}, {"role": []}, {}, "text", None):
            with self.assertRaises(InvalidEventError):
                importers.events_from_messages([wrong])  # type: ignore[list-item]
