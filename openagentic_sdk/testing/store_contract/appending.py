"""Events are appended and read back."""

from __future__ import annotations

from typing import Any

from ...errors import (
    ConcurrencyError,
    InvalidEventError,
)
from ...events import (
    Event,
    ToolResult,
    UnknownEvent,
    UserMessage,
)
from .base import StoreTest
from .hostile import HOSTILE_TEXTS, HOSTILE_VALUES


class Appending(StoreTest):
    """Events are appended and read back."""

    def test_events_come_back_in_order_numbered_from_one_without_a_hole(self) -> None:
        session_id = self.store.create_session()
        with self.store.open_writer(session_id) as writer:
            self.assertEqual(writer.last_seq, 0)
            stored = (
                writer.append([UserMessage("a")])
                + writer.append([])
                + writer.append([UserMessage("b"), UserMessage("c")])
            )
            self.assertEqual(writer.last_seq, 3)
        stored.append(self.store.append_event(session_id, UserMessage("d")))
        self.assertEqual([event.seq for event in stored], [1, 2, 3, 4])
        self.assertTrue(all(event.ts for event in stored))
        self.assertEqual(self.store.read_events(session_id), stored)
        self.assertEqual(self.store.last_seq(session_id), 4)

    def test_a_part_of_a_log_can_be_read(self) -> None:
        session_id = self.filled(10)
        for after_seq in (0, 1, 5, 9, 10, 11):
            for limit in (None, 0, 1, 3, 100):
                seqs = [event.seq for event in self.store.read_events(session_id, after_seq=after_seq, limit=limit)]
                self.assertEqual(seqs, list(range(after_seq + 1, 11))[:limit], (after_seq, limit))

    def test_an_append_that_expects_another_position_changes_nothing(self) -> None:
        session_id = self.filled(2)
        for expected_seq in (0, 1, 3):
            with self.assertRaises(ConcurrencyError) as caught:
                self.store.append_events(session_id, [UserMessage("lost")], expected_seq=expected_seq)
            self.assertEqual((caught.exception.expected_seq, caught.exception.actual_seq), (expected_seq, 2))
        self.store.append_events(session_id, [UserMessage("kept")], expected_seq=2)
        self.assertEqual([event.seq for event in self.store.read_events(session_id)], [1, 2, 3])

    def test_one_bad_event_keeps_the_whole_batch_out(self) -> None:
        session_id = self.filled(1)
        deep: list[Any] = []
        for _ in range(100_000):
            deep = [deep]
        unwritable = (float("nan"), float("inf"), object(), {1: "x", "1": b"y"}, deep)
        unreadable: Any = (5, None, ["a"])
        for bad in (*(ToolResult("c", output=value) for value in unwritable), *map(UserMessage, unreadable)):
            batch = [UserMessage("good"), bad, UserMessage("good")]
            with self.assertRaises(InvalidEventError):
                self.store.append_events(session_id, batch)
            with self.store.open_writer(session_id) as writer:
                with self.assertRaises(InvalidEventError):
                    writer.append(batch)
                self.assertEqual(writer.last_seq, 1)
        self.assertEqual(len(self.store.read_events(session_id)), 1)
        self.assertEqual(self.store.read_summary(session_id).turns, 1)
        self.assertEqual(self.store.append_event(session_id, UserMessage("next")).seq, 2)

    def test_changing_what_was_passed_or_returned_changes_nothing_stored(self) -> None:
        session_id = self.store.create_session(metadata=(metadata := {"list": [1]}))
        output: dict[str, Any] = {"list": [1]}
        stored = self.store.append_event(session_id, ToolResult("c", output=output))
        output["list"].append(2)
        metadata["list"].append(2)
        first = self.store.read_events(session_id)[0]
        assert isinstance(first, ToolResult) and isinstance(stored, ToolResult)
        first.output["list"].append(3)
        self.store.read_metadata(session_id)["metadata"]["list"].append(3)
        again = self.store.read_events(session_id)[0]
        assert isinstance(again, ToolResult)
        self.assertEqual(again.output, {"list": [1]})
        self.assertEqual(self.store.read_metadata(session_id)["metadata"], {"list": [1]})

    def test_every_text_and_value_of_json_survives(self) -> None:
        session_id = self.store.create_session()
        events: list[Event] = [UserMessage(text) for text in HOSTILE_TEXTS]
        events += [ToolResult("c", output=value) for value in HOSTILE_VALUES]
        events += [UnknownEvent({"type": "from.the.future", "deep": {"\x00": [None, 2**70]}, "agent_name": "x"})]
        stored = self.store.append_events(session_id, events)
        read = self.open_store().read_events(session_id) if self.keeps_on_close else self.store.read_events(session_id)
        self.assertEqual(read, stored)
        for got, sent in zip(read, events, strict=True):
            if isinstance(got, ToolResult) and isinstance(sent, ToolResult):
                self.assertEqual(repr(got.output), repr(sent.output))

    def test_ten_thousand_events_are_complete_and_in_order(self) -> None:
        session_id = self.store.create_session()
        with self.store.open_writer(session_id) as writer:
            for start in range(0, 10_000, 500):
                writer.append([UserMessage(str(number)) for number in range(start, start + 500)])
        texts = [event.text for event in self.store.iter_events(session_id) if isinstance(event, UserMessage)]
        self.assertEqual(texts, [str(number) for number in range(10_000)])
        self.assertEqual([event.seq for event in self.store.read_events(session_id, after_seq=9_998)], [9_999, 10_000])
        self.assertEqual(self.store.read_summary(session_id).turns, 10_000)
