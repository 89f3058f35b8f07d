"""Contract tests: events are appended and read back."""

from __future__ import annotations

import threading
from typing import Any

from ...errors import ConcurrencyError, InvalidEventError, LogCorruptError, SessionLockedError
from ...events import Event, ToolResult, UnknownEvent, UserMessage
from .base import StoreTest
from .hostile import HOSTILE_TEXTS, HOSTILE_VALUES
from .processes import RACING_WRITER


class Appending(StoreTest):
    """Contract tests: events are appended and read back."""

    def test_events_come_back_in_order_numbered_from_one_without_a_hole(self) -> None:
        session_id = self.store.create_session()
        with self.store.open_writer(session_id) as writer:
            self.assertEqual(writer.last_seq, 0)
            stored_events = (
                writer.append([UserMessage("m")])
                + writer.append([])
                + writer.append([UserMessage("z"), UserMessage("a")])
            )
            self.assertEqual(writer.last_seq, 3)
            # Acknowledged events are visible to everybody, not only after the writer is closed.
            self.assertEqual(self.open_or_same().read_events(session_id), stored_events)
        stored_events.append(self.store.append_event(session_id, UserMessage("d")))
        self.assertEqual([event.seq for event in stored_events], [1, 2, 3, 4])
        self.assertTrue(all(event.ts for event in stored_events))
        self.assertEqual(
            [event.text for event in stored_events if isinstance(event, UserMessage)], ["m", "z", "a", "d"]
        )
        self.assertEqual(self.store.read_events(session_id), stored_events)
        self.assertEqual(self.store.last_seq(session_id), 4)

    def test_whose_events_they_are_survives(self) -> None:
        session_id = self.store.create_session()
        events: list[Event] = [
            ToolResult("c", output=1, parent_tool_use_id="call", agent_name="helper"),
            UnknownEvent({"type": "x.y", "parent_tool_use_id": "call", "agent_name": "helper", "z": {"deep": [1]}}),
        ]
        stored_events = self.store.append_events(session_id, events)
        events_read = self.store.read_events(session_id)
        self.assertEqual(events_read, stored_events)
        self.assertEqual(
            [(event.parent_tool_use_id, event.agent_name) for event in events_read[:1]], [("call", "helper")]
        )
        assert isinstance(events_read[1], UnknownEvent)
        self.assertEqual((events_read[1].data["z"], events_read[1].data["agent_name"]), ({"deep": [1]}, "helper"))

    def test_of_many_that_expect_the_same_place_one_is_stored(self) -> None:
        session_id = self.store.create_session()
        stores = [self.open_or_same() for _ in range(4)]
        for seq in range(10):

            def append(number: int, seq: int = seq) -> None:
                stores[number].append_events(session_id, [UserMessage(f"{seq} {number}")], expected_seq=seq)

            failures = self.at_once(4, append)
            # A store that locks a session for each append may also report that another writer holds the lock.
            kinds = {type(error) for error in failures}
            self.assertLessEqual(kinds, {ConcurrencyError, SessionLockedError})
            self.assertEqual((len(failures), self.store.last_seq(session_id)), (3, seq + 1))

    def test_of_two_processes_that_expect_the_same_place_one_is_stored(self) -> None:
        self.needs_processes()
        session_id = self.store.create_session()
        writers = [self.started(RACING_WRITER, session_id) for _ in range(2)]
        for _ in range(10):
            seq = self.store.last_seq(session_id)
            # If a session is locked for each append, both may find it locked.
            self.assertIn(self.tell_all(writers, str(seq)).count("won"), (0, 1))
        self.assertEqual(len(self.store.read_events(session_id)), self.store.last_seq(session_id))
        self.assertGreater(self.store.last_seq(session_id), 0)

    def test_a_batch_is_seen_whole_or_not_at_all(self) -> None:
        session_id = self.store.create_session()
        other, done = self.open_or_same(), threading.Event()
        seen: list[int] = []

        def work(number: int) -> None:
            if number == 0:
                try:
                    for _ in range(20):
                        self.append_patiently(session_id, [UserMessage("x" * 50)] * 50)
                finally:
                    done.set()
            while number == 1:
                is_last = done.is_set()
                seen.append(len(other.read_events(session_id)))
                if is_last:
                    return

        self.assertEqual(self.at_once(2, work), [])
        self.assertEqual({count % 50 for count in seen}, {0})
        self.assertEqual(len(self.store.read_events(session_id)), 1000)

    def test_a_read_that_goes_on_while_others_append_gives_each_event_once(self) -> None:
        session_id = self.filled(700)
        other = self.open_or_same()
        seqs: list[int | None] = []
        for event in self.store.iter_events(session_id):
            seqs.append(event.seq)
            if len(seqs) in (1, 300, 650):
                other.append_events(session_id, [UserMessage("more")] * 10)
        self.assertGreaterEqual(len(seqs), 700)
        self.assertEqual(seqs, list(range(1, len(seqs) + 1)))
        self.assertEqual(len(self.store.read_events(session_id)), 730)

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
            with self.assertRaises(ConcurrencyError):
                self.store.append_events(session_id, [], expected_seq=expected_seq)
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
        stored_event = self.store.append_event(session_id, ToolResult("c", output=output))
        output["list"].append(2)
        metadata["list"].append(2)
        first = self.store.read_events(session_id)[0]
        assert isinstance(first, ToolResult) and isinstance(stored_event, ToolResult)
        first.output["list"].append(3)
        stored_event.output["list"].append(3)
        self.store.read_metadata(session_id)["metadata"]["list"].append(3)
        self.store.update_metadata(session_id, changes := {"later": [1]})
        changes["later"].append(2)
        self.assertEqual(self.store.read_metadata(session_id)["metadata"].pop("later"), [1])
        self.store.update_metadata(session_id, {"later": None})
        data: Any = bytearray(b"blob")
        digest = self.store.put_blob(session_id, data)
        data[0] = 0
        self.assertEqual(self.store.read_blob(session_id, digest), b"blob")
        again = self.store.read_events(session_id)[0]
        assert isinstance(again, ToolResult)
        self.assertEqual(again.output, {"list": [1]})
        self.assertEqual(self.store.read_metadata(session_id)["metadata"], {"list": [1]})

    def test_every_text_and_value_of_json_survives(self) -> None:
        """Hint for a store: use `stamp_events` and `dumps_stored` in `append`, and `loads_stored` in `iter_events`."""
        session_id = self.store.create_session()
        events: list[Event] = [UserMessage(text) for text in HOSTILE_TEXTS]
        events += [ToolResult("c", output=value) for value in HOSTILE_VALUES]
        events += [UnknownEvent({"type": "from.the.future", "deep": {"\x00": [None, 2**70]}, "agent_name": "x"})]
        events += [UserMessage("x" * 3_000_000)]
        stored_events = self.store.append_events(session_id, events)
        events_read = (
            self.open_store().read_events(session_id) if self.keeps_on_close else self.store.read_events(session_id)
        )
        self.assertEqual(events_read, stored_events)
        for got, original in zip(events_read, events, strict=True):
            if isinstance(got, ToolResult) and isinstance(original, ToolResult):
                self.assertEqual(repr(got.output), repr(original.output))

    def test_nobody_reads_past_an_event_that_is_gone(self) -> None:
        session_id = self.filled(6)
        if not self.lose_event(session_id, 4):
            self.skipTest(
                "the contract of this store does not define how its backend loses an event: define lose_event"
            )
        without_first = self.filled(3)
        self.lose_event(without_first, 1)
        for name, after_seq in ((without_first, 0), *((session_id, after_seq) for after_seq in range(4))):
            with self.subTest(after_seq=after_seq):
                seen: list[int | None] = []
                with self.assertRaises(LogCorruptError):
                    seen.extend(event.seq for event in self.store.iter_events(name, after_seq=after_seq))
                self.assertEqual(seen, list(range(after_seq + 1, 4 if name == session_id else 1)))
        with self.assertRaises(LogCorruptError):
            self.store.read_events(session_id, limit=5)
        self.assertEqual([event.seq for event in self.store.read_events(session_id, limit=3)], [1, 2, 3])

    def test_ten_thousand_events_are_complete_and_in_order(self) -> None:
        session_id, count = self.store.create_session(), self.many_events
        with self.store.open_writer(session_id) as writer:
            for start in range(0, count, 500):
                writer.append([UserMessage(str(number)) for number in range(start, start + 500)])
        at_once = self.store.create_session()
        self.store.append_events(at_once, [UserMessage(str(number)) for number in range(1500)])
        for limit in (1200, 1500, 2000):
            self.assertEqual(len(self.store.read_events(at_once, limit=limit)), min(limit, 1500))
        texts = [event.text for event in self.store.iter_events(session_id) if isinstance(event, UserMessage)]
        self.assertEqual(texts, [str(number) for number in range(count)])
        last = self.store.read_events(session_id, after_seq=count - 2)
        self.assertEqual([event.seq for event in last], [count - 1, count])
        self.assertEqual(self.store.read_summary(session_id).turns, count)
