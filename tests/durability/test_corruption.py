"""Damage that no crash explains is never taken for an event, never repaired in silence, and always located."""

from __future__ import annotations

import random
from itertools import accumulate

from openagentic_sdk.errors import LogCorruptError, SessionExistsError
from openagentic_sdk.events import Event, SessionForked, UserMessage
from openagentic_sdk.sessions.log.verify import salvage, verify_session
from openagentic_sdk.sessions.store import LOG_NAME
from tests.size import LARGE

from .scenes import SceneTest, bare, small_batches, three_turns


class BitFlipTest(SceneTest):
    def test_no_flipped_bit_is_taken_for_what_was_written(self) -> None:
        """Every read gives the exact prefix, and either says where the log is damaged or ends before the flip."""
        events = self.write(three_turns() if LARGE else small_batches(8))
        content = self.path.read_bytes()
        for bit in range(len(content) * 8):
            flipped = bytearray(content)
            flipped[bit // 8] ^= 1 << bit % 8
            self.path.write_bytes(flipped)
            read, error = self.read_until_damage()
            self.assertEqual(read, events[: len(read)], bit)
            self.assertLess(len(read), len(events), bit)
            if error is None:
                self.assert_only_the_end_is_lost(read, events, bit)
            else:
                self.assertLessEqual(error.offset, bit // 8, bit)

    def assert_only_the_end_is_lost(self, read: list[Event], events: list[Event], bit: int) -> None:
        self.assertEqual(read, events[:-1], bit)
        self.assertEqual([problem.kind for problem in verify_session(self.store, "s").problems], ["torn-tail"], bit)

    def read_until_damage(self) -> tuple[list[Event], LogCorruptError | None]:
        read: list[Event] = []
        try:
            for event in self.store.iter_events("s"):
                read.append(event)
        except LogCorruptError as error:
            return read, error
        return read, None


class CorruptionTest(SceneTest):
    def setUp(self) -> None:
        super().setUp()
        self.events = self.write(three_turns())
        self.lines = self.path.read_bytes().splitlines(keepends=True)
        self.starts = [0, *accumulate(map(len, self.lines))]

    def assert_damaged(self, lines: list[bytes], seq: int, kinds: tuple[str, ...]) -> None:
        self.path.write_bytes(b"".join(lines))
        with self.assertRaises(LogCorruptError) as caught:
            self.store.read_events("s")
        error = caught.exception
        self.assertEqual((error.seq, error.offset), (seq, self.starts[seq - 1]))
        self.assertIn(error.kind, kinds)
        (problem,) = verify_session(self.store, "s").problems
        self.assertEqual((problem.seq, problem.offset, problem.kind), (error.seq, error.offset, error.kind))
        self.assertIn("salvage", str(problem))
        self.assertFalse(verify_session(self.store, "s", decode=False).ok)

    def test_an_edited_event_is_found(self) -> None:
        for index in (0, 5, len(self.lines) - 1):
            edited = self.lines[index].replace(b'"type":"', b'"type":"x', 1)
            self.assert_damaged(
                [*self.lines[:index], edited, *self.lines[index + 1 :]], index + 1, ("checksum", "durable-loss")
            )

    def test_a_dropped_doubled_or_moved_event_is_found(self) -> None:
        lines = self.lines
        kinds = ("sequence", "checksum", "durable-loss")
        self.assert_damaged([*lines[:4], *lines[5:]], 5, kinds)
        self.assert_damaged(lines[1:], 1, kinds)
        self.assert_damaged([*lines[:5], lines[4], *lines[5:]], 6, kinds)
        self.assert_damaged([*lines[:4], lines[5], lines[4], *lines[6:]], 5, kinds)

    def test_a_line_of_another_session_is_found(self) -> None:
        self.store.create_session(session_id="other")
        self.store.append_events("other", [UserMessage(str(n)) for n in range(10)])
        foreign = (self.store.session_dir("other") / LOG_NAME).read_bytes().splitlines(keepends=True)
        self.assert_damaged([*self.lines[:4], foreign[4], *self.lines[5:]], 5, ("checksum", "durable-loss"))

    def test_two_glued_lines_are_found(self) -> None:
        glued = self.lines[4][: len(self.lines[4]) // 2] + self.lines[5]
        self.assert_damaged(
            [*self.lines[:4], glued, *self.lines[6:]], 5, ("json", "checksum", "sequence", "durable-loss")
        )

    def test_a_hole_in_what_was_on_disk_is_a_loss_and_no_torn_tail(self) -> None:
        content = bytearray(b"".join(self.lines) * 1)
        start = self.starts[3] + 10
        end = -(-start // 512) * 512
        content[start:end] = bytes(end - start)
        self.assert_damaged([bytes(content)], 4, ("durable-loss",))

    def test_zeros_that_no_lost_sector_explains_are_damage(self) -> None:
        store = self.make_store(durability="flush")
        store.create_session(session_id="t")
        store.append_events("t", [UserMessage(f"some words {n}") for n in range(9)])
        path = store.session_dir("t") / LOG_NAME
        path.write_bytes(path.read_bytes().replace(b"words 4", b"words\x004"))
        with self.assertRaises(LogCorruptError) as caught:
            store.read_events("t")
        self.assertEqual((caught.exception.seq, caught.exception.kind), (5, "hole"))

    def test_a_foreign_line_behind_the_end_is_read_when_an_older_tool_wrote_it_and_refused_otherwise(self) -> None:
        content = b"".join(self.lines)
        self.path.write_bytes(content + b'{"type": "user.message", "text": "by hand"}\n')
        events = self.store.read_events("s")
        self.assertEqual(bare(events[-1:]), [UserMessage("by hand")])
        self.assert_goes_on(events)
        self.path.write_bytes(content + b"and a note\n")
        with self.assertRaises(LogCorruptError) as caught:
            self.store.open_writer("s")
        self.assertEqual((caught.exception.seq, caught.exception.kind), (len(self.lines) + 1, "json"))

    def test_a_damaged_end_keeps_writers_out_and_the_file_as_it_is(self) -> None:
        content = b"".join(self.lines).replace(b"done 3", b"gone 3")
        self.path.write_bytes(content)
        with self.assertRaises(LogCorruptError):
            self.store.open_writer("s")
        self.assertEqual(self.path.read_bytes(), content)
        self.assertEqual(
            sorted(path.name for path in self.path.parent.iterdir()), ["events.jsonl", "meta.json", "summary.json"]
        )

    def test_salvage_makes_a_new_session_of_what_is_intact(self) -> None:
        good, bad = self.store.put_blob("s", b"good"), self.store.put_blob("s", b"bad")
        (self.path.parent / "blobs" / bad).write_bytes(b"rot")
        rng = random.Random(7)
        for index in (0, 1, 9, len(self.lines) - 1):
            damaged = bytearray(b"".join(self.lines))
            damaged[self.starts[index] + rng.randrange(len(self.lines[index]) - 1)] ^= 1
            self.path.write_bytes(damaged)
            saved = salvage(self.store, "s")
            self.assertEqual(saved.events, index)
            self.assertEqual(saved.dropped_bytes, len(damaged) - self.starts[index])
            self.assertEqual(self.path.read_bytes(), damaged)
            events = self.store.read_events(saved.session_id)
            self.assertEqual(events[:-1], self.events[:index])
            self.assertEqual(bare(events[-1:]), [SessionForked("s", index)])
            self.assertEqual(self.store.list_blobs(saved.session_id), [good])
            self.store.append_event(saved.session_id, UserMessage("and on"))
            self.assertEqual(verify_session(self.store, saved.session_id).problems, ())

    def test_salvage_into_a_taken_id_changes_nothing(self) -> None:
        self.store.create_session(session_id="taken")
        with self.assertRaises(SessionExistsError):
            salvage(self.store, "s", target_id="taken")
        self.assertEqual(self.store.read_events("taken"), [])

    def test_a_damaged_blob_is_named(self) -> None:
        digest = self.store.put_blob("s", b"data")
        (self.path.parent / "blobs" / digest).write_bytes(b"rot!")
        (problem,) = verify_session(self.store, "s").problems
        self.assertEqual((problem.kind, problem.blob), ("blob", digest))
