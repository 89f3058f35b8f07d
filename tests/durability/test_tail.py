"""The torn tail that a crash leaves is found, moved aside and reported, and never costs a complete event."""

from __future__ import annotations

import os
from bisect import bisect_right
from itertools import accumulate

from openagentic_sdk.errors import LogCorruptError
from openagentic_sdk.events import LogRecovered, UserMessage
from openagentic_sdk.ground.disk import SystemDisk
from openagentic_sdk.parts.record.verify_log import verify_session
from openagentic_sdk.sessions.log.folder import SUMMARY_NAME
from openagentic_sdk.sessions.log.scan import LogReader
from openagentic_sdk.sessions.store import FileSessionStore
from tests.size import LARGE, sized

from .scenes import SceneTest, small_batches, tool_turn

PADDINGS = (1, 511, 4096)


class CountingDisk(SystemDisk):
    bytes_read = 0

    def read(self, fd: int, n: int) -> bytes:
        data = super().read(fd, n)
        self.bytes_read += len(data)
        return data


class TailTest(SceneTest):
    def setUp(self) -> None:
        super().setUp()
        batches = [batch for turn in range(5) for batch in tool_turn(turn, size=2)] if LARGE else small_batches(50)
        self.events = self.write(batches)[:50]
        self.lines = self.path.read_bytes().splitlines(keepends=True)[:50]
        self.content = b"".join(self.lines)
        self.ends = list(accumulate(map(len, self.lines)))
        self.restore(self.content)
        (self.path.parent / SUMMARY_NAME).unlink(missing_ok=True)  # in the large size it counts 60 events

    def complete_before(self, cut: int) -> int:
        """The number of complete events in the first `cut` bytes; the last newline may be missing."""
        return bisect_right(self.ends, cut + 1)

    def cuts(self) -> list[int]:
        """Every offset of the log; in the small size some, and those around each line end."""
        places = range(len(self.content) + 1)
        if LARGE:
            return list(places)
        return sorted({*places[:: sized(51, 17, 1)], *self.ends, *(end - 1 for end in self.ends)})

    def test_a_log_cut_at_any_byte_holds_the_exact_prefix_and_continues(self) -> None:
        for cut in self.cuts():
            self.check(self.content[:cut], self.complete_before(cut))

    def test_zeros_after_any_byte_cost_nothing_but_the_unfinished_line(self) -> None:
        for cut in self.cuts():
            padding = PADDINGS[cut % len(PADDINGS)]
            self.check(self.content[:cut] + bytes(padding), self.complete_before(cut))

    def check(self, content: bytes, whole: int) -> None:
        """Read, repair, append and read again; compare lines as bytes, and decode them occasionally."""
        self.restore(content)
        self.assertEqual(self.good_lines(), [line[:-1] for line in self.lines[:whole]], len(content))
        with self.store.open_writer("s") as writer:
            writer.append([UserMessage("and on")])
        lines = self.path.read_bytes().splitlines(keepends=True)
        self.assertEqual(lines[:whole], self.lines[:whole])
        self.assertEqual(len(self.good_lines()), len(lines))
        if LARGE or len(content) % 53 == 0:
            self.restore(content)
            self.assertEqual(self.store.read_events("s"), self.events[:whole])
            self.assert_goes_on(self.events[:whole])

    def good_lines(self) -> list[bytes]:
        with self.path.open("rb") as file:
            return list(LogReader(SystemDisk(), file.fileno(), "s"))

    def test_a_torn_tail_is_moved_aside_and_reported_once(self) -> None:
        self.restore(self.content + b'{"v":1,"seq":51,"ts":17')
        for _ in range(3):
            self.store.open_writer("s").close()
        added = self.store.read_events("s", after_seq=50)
        (event,) = added
        assert isinstance(event, LogRecovered) and event.moved_to
        self.assertEqual((event.seq, event.bytes, event.offset), (51, 23, len(self.content)))
        self.assertEqual((self.path.parent / event.moved_to).read_bytes(), b'{"v":1,"seq":51,"ts":17')

    def test_a_page_of_a_long_log_is_the_one_that_a_whole_read_shows_and_reads_little(self) -> None:
        with self.store.open_writer("s") as writer:
            for turn in range(60):
                writer.append([UserMessage("x" * (40_000 if turn % 7 else 90)), UserMessage(str(turn))])
        whole, disk = self.store.read_events("s"), CountingDisk()
        store = FileSessionStore(self.place, disk=disk)
        for seq in range(0, len(whole), 3):
            disk.bytes_read = 0
            self.assertEqual(store.read_events("s", after_seq=seq, limit=3), whole[seq : seq + 3])
            self.assertLess(disk.bytes_read, 800_000)
        damaged = bytearray(self.path.read_bytes())
        at = damaged.index(b'{"v":1,"seq":80,')
        damaged[at + 60] ^= 1
        self.path.write_bytes(bytes(damaged))
        with self.assertRaises(LogCorruptError):
            store.read_events("s", after_seq=70, limit=20)

    def test_tails_torn_at_the_same_place_are_all_kept(self) -> None:
        for tail in (b'{"v":1,"a', b'{"v":1,"b', b'{"v":1,"a'):
            self.path.write_bytes(self.content + tail)
            self.store.open_writer("s").close()
        kept = sorted(path.read_bytes() for path in self.path.parent.glob("events.jsonl.torn-*"))
        self.assertEqual(kept, [b'{"v":1,"a', b'{"v":1,"b'])

    def test_only_a_missing_newline_costs_nothing_and_is_not_reported(self) -> None:
        self.restore(self.content[:-1])
        self.assertEqual(self.store.read_events("s"), self.events)
        self.store.open_writer("s").close()
        self.assertEqual(self.path.read_bytes(), self.content)

    def test_an_empty_file_is_an_empty_session(self) -> None:
        self.restore(b"")
        self.assert_goes_on([])

    def test_a_file_of_zeros_is_an_empty_session(self) -> None:
        self.restore(bytes(10_000))
        self.assert_goes_on([])

    def test_zeros_in_place_of_the_last_line_are_not_counted_in_the_row_beside_the_log(self) -> None:
        self.assertEqual(self.store.read_summary("s").events, 50)
        row = (self.path.parent / SUMMARY_NAME).read_bytes()
        self.restore(b"".join(self.lines[:-1]) + bytes(len(self.lines[-1])))
        for store in (self.store, self.make_store()):
            self.assertEqual(store.read_summary("s").events, 49)
        self.assertEqual((self.path.parent / SUMMARY_NAME).read_bytes(), row)  # evidence of what the log lost

    def test_reading_a_torn_log_changes_nothing(self) -> None:
        self.restore(self.content[:-5])
        before = sorted((path.name, path.stat().st_size) for path in self.path.parent.iterdir())
        for store in (self.store, self.make_store(read_only=True)):
            self.assertEqual(store.read_events("s"), self.events[:-1])
            self.assertEqual(store.last_seq("s"), 49)
            report = verify_session(store, "s")
            self.assertEqual([problem.kind for problem in report.problems], ["torn-tail"])
            self.assertTrue(report.ok)
        self.assertEqual(before, sorted((path.name, path.stat().st_size) for path in self.path.parent.iterdir()))

    def test_a_repair_that_is_killed_at_any_step_is_finished_by_the_next(self) -> None:
        for at in range(1, 40, sized(5, 2, 1)):
            self.restore(self.content + b'{"v":1,"torn')
            child = os.fork()
            if child == 0:
                self.die_in_repair(at)
            _, status = os.waitpid(child, 0)
            events = self.assert_goes_on(self.events)
            moved = [event.moved_to for event in events if isinstance(event, LogRecovered) and event.bytes == 12]
            self.assertEqual(len(moved), 1, f"killed at operation {at}")
            if status == 0:
                return
        self.fail("the repair never came to its end")

    def die_in_repair(self, at: int) -> None:
        from openagentic_sdk.testing.faults import FaultyOS

        try:
            disk = FaultyOS(at=at, fault="kill middle")
            self.make_store(disk=disk).open_writer("s").close()
        finally:
            os._exit(0)

    def test_the_first_event_after_a_torn_tail_is_not_glued_to_it(self) -> None:
        self.restore(self.content + self.content[:30])
        stored = self.store.append_event("s", UserMessage("first"))
        self.assertEqual(stored.seq, 52)
        self.assertEqual(self.store.read_events("s")[-1], stored)
