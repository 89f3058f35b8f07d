"""The log format: one ASCII line per event, a verifiable envelope, and text that survives a round trip."""

from __future__ import annotations

import json
from pathlib import Path
from zlib import crc32

from openagentic_sdk.errors import InvalidEventError, LogCorruptError, StorageError
from openagentic_sdk.events import (
    AssistantMessage,
    Event,
    PermissionDecision,
    Result,
    ToolResult,
    ToolStarted,
    UnknownEvent,
    UserAnswer,
    UserMessage,
)
from openagentic_sdk.parts.record.verify_log import verify_session
from openagentic_sdk.serialization import MAX_DEPTH, dumps_event
from openagentic_sdk.sessions.log.line import check_block, is_barrier, seal_line

from .scenes import SceneTest, three_turns, without_stamps

FIXTURES = Path(__file__).parent.parent.parent / "fixtures" / "durability"

HOSTILE_TEXTS = (
    *(
        "",
        "\x00",
        "a\nb\r\nc",
        "\u2028\u2029\x85",
        "\ud800",
        "\udfff\ud800",
        "\N{PILE OF POO}",
        "\ufeff",
        "\x7f\x80\xff",
    ),
    *(
        '"',
        "\\",
        "\\u0000",
        '","dur":9,"crc":"00000000"}',
        '{"v":1,"seq":1,',
        '\n{"v":1,"seq":2,"ts":0,',
        "x" * 2_000_000,
    ),
)


class EnvelopeTest(SceneTest):
    def test_each_appended_event_is_one_ascii_line_with_its_envelope(self) -> None:
        self.write([[UserMessage("ü")], [AssistantMessage("b"), AssistantMessage("c")]])
        lines = self.path.read_bytes().split(b"\n")
        self.assertEqual(lines.pop(), b"")
        self.assertEqual(len(lines), 3)
        for number, line in enumerate(lines, start=1):
            self.assertTrue(line.isascii())
            data = json.loads(line)
            self.assertEqual(list(data)[:4], ["v", "seq", "ts", "type"])
            self.assertEqual(list(data)[-2:], ["dur", "crc"])
            self.assertEqual((data["v"], data["seq"], data["ts"]), (1, number, self.clock.now()))

    def test_the_checksum_covers_every_byte_before_it(self) -> None:
        self.write(three_turns())
        content = self.path.read_bytes()
        end = 0
        for line in content.splitlines(keepends=True):
            sealed = end + line.index(b',"crc":"')
            self.assertEqual(json.loads(line)["crc"], f"{crc32(content[:sealed]):08x}")
            end += len(line)

    def test_the_seal_of_the_last_line_proves_all_lines_before_it(self) -> None:
        self.write(three_turns())
        content = self.path.read_bytes()
        count = content.count(b"\n")
        self.assertEqual(check_block(content, 1, 0), (count, crc32(content)))
        self.assertIsNone(check_block(content.replace(b"one", b"eno"), 1, 0))
        self.assertIsNone(check_block(content, 2, 0), "its lines have different numbers")

    def test_a_line_records_what_was_on_disk_when_it_was_written(self) -> None:
        self.write([[AssistantMessage("a")], [UserMessage("b")], [AssistantMessage("c")], [AssistantMessage("d")]])
        self.assertEqual([json.loads(line)["dur"] for line in self.path.read_bytes().splitlines()], [0, 0, 2, 2])

    def test_opening_and_closing_leave_no_mark(self) -> None:
        for _ in range(3):
            self.store.open_writer("s").close()
        self.assertEqual(self.path.read_bytes(), b"")

    def test_two_logs_of_the_same_events_and_times_are_the_same_bytes(self) -> None:
        self.write(three_turns())
        self.store.create_session(session_id="t")
        with self.store.open_writer("t") as writer:
            for batch in three_turns():
                writer.append(batch)
        self.assertEqual(self.path.read_bytes(), (self.store.session_dir("t") / "events.jsonl").read_bytes())

    def test_hostile_text_is_returned_unchanged(self) -> None:
        events: list[Event] = [UserMessage(text) for text in HOSTILE_TEXTS]
        events += [ToolResult("c", {text: [text, {"crc": text}]}) for text in HOSTILE_TEXTS[:-1]]
        stored = self.write([[event] for event in events])
        self.assertEqual(self.store.read_events("s"), stored)
        self.assert_goes_on(events)

    def test_a_value_without_a_json_form_keeps_its_whole_batch_out_of_the_log(self) -> None:
        for bad in (float("nan"), float("inf"), b"bytes", object(), {1, 2}):
            with self.assertRaises(InvalidEventError):
                self.write([[UserMessage("good"), ToolResult("c", bad)]])
        self.assertEqual(self.path.read_bytes(), b"")

    def test_a_value_nested_too_deeply_to_be_read_again_is_refused(self) -> None:
        def nested(depth: int) -> list[object]:
            value: list[object] = []
            for _ in range(depth - 1):
                value = [value]
            return value

        self.write([[ToolResult("c", nested(MAX_DEPTH - 1))], [ToolResult("c", [[]] * 5000)]])
        with self.assertRaises(InvalidEventError):
            self.write([[ToolResult("c", nested(MAX_DEPTH))]])
        self.assertEqual(len(self.store.read_events("s")), 2)

    def test_the_barriers_are_what_matters_afterwards(self) -> None:
        barriers = [
            UserMessage("a"),
            ToolStarted("c", "Bash", "unsafe", "", ""),
            ToolStarted("c", "Bash", "idempotent", "", ""),
            ToolResult("c"),
            PermissionDecision("c", "Bash", False, "deny", ""),
            Result("", "s", "end"),
        ]
        others = [AssistantMessage("a"), ToolStarted("c", "Read", "read", "", ""), UserAnswer("q", "a")]
        self.assertTrue(all(map(is_barrier, barriers)))
        self.assertFalse(any(map(is_barrier, others)))


class OtherWritersTest(SceneTest):
    """Logs written by another version or another tool."""

    def test_an_unknown_event_survives_reading_appending_and_copying(self) -> None:
        future = UnknownEvent({"type": "from.the.future", "deep": {"\x00": [None, 2**70]}, "v": 9, "crc": "x"})
        (stored,) = self.write([[future]])
        (read,) = self.store.read_events("s")
        self.assertEqual(
            read.data, {"type": "from.the.future", "deep": {"\x00": [None, 2**70]}, "seq": 1, "ts": stored.ts}
        )
        self.store.copy_session("s", "t", at_seq=1, tail=[read], metadata={})
        self.assertEqual([event.type for event in self.store.read_events("t")], ["from.the.future"] * 2)
        self.assertEqual(verify_session(self.store, "t").problems, ())

    def test_unknown_fields_are_passed_over(self) -> None:
        line, _ = seal_line('"type":"user.message","text":"a","mood":["good"]', seq=1, ts="1", dur=0, crc=0)
        self.path.write_bytes(line)
        self.assertEqual(self.store.read_events("s"), [UserMessage("a", seq=1, ts=1)])

    def test_logs_of_older_tools_load_and_are_gone_on_with(self) -> None:
        for path in sorted(FIXTURES.glob("older_*.jsonl")):
            with self.subTest(path.name):
                content = path.read_bytes()
                self.restore(content)
                events = self.store.read_events("s")
                self.assertEqual([event.seq for event in events], list(range(1, len(events) + 1)))
                self.assertEqual(len(events), 3)
                self.assert_goes_on(events)
                self.assertTrue(self.path.read_bytes().startswith(content))
                self.assert_goes_on(self.store.read_events("s"))

    def test_damage_in_an_older_part_is_found_once_a_sealed_line_follows(self) -> None:
        self.restore((FIXTURES / "older_plain.jsonl").read_bytes())
        self.store.append_event("s", UserMessage("sealed"))
        self.path.write_bytes(self.path.read_bytes().replace(b"hello", b"hallo", 1))
        with self.assertRaises(LogCorruptError):
            self.store.read_events("s")

    def test_a_log_of_a_newer_format_can_be_read_and_not_be_written(self) -> None:
        body = b'{"v":2,"seq":2,"ts":1.0,"type":"user.message","text":"new","dur":0'
        first, crc = seal_line('"type":"user.message","text":"old"', seq=1, ts="1.0", dur=0, crc=0)
        content = first + body + b',"crc":"%08x"}\n' % crc32(body, crc)
        self.path.write_bytes(content)
        self.assertEqual([event.text for event in self.store.read_events("s")], ["old", "new"])
        with self.assertRaises(StorageError) as caught:
            self.store.open_writer("s")
        self.assertIn("format 2", str(caught.exception))
        self.assertEqual(self.path.read_bytes(), content)

    def test_one_event_of_each_kind_can_be_read_and_stored(self) -> None:
        self.path.write_bytes((FIXTURES / "one_of_each.jsonl").read_bytes())
        events = self.store.read_events("s")
        self.assertEqual([event.type for event in events if isinstance(event, UnknownEvent)], [])
        self.store.create_session(session_id="t")
        stored = self.store.append_events("t", events)
        self.assertEqual(without_stamps(stored), without_stamps(events))
        self.assertEqual([*map(dumps_event, self.store.read_events("t"))], [*map(dumps_event, stored)])
