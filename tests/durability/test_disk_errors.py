"""If the disk refuses an operation, acknowledged events stay, and nothing is ever written after a partial line."""

from __future__ import annotations

import os
import signal
import sys
import unittest
from collections.abc import Sequence
from itertools import cycle, product

from openagentic_sdk.errors import ConcurrencyError, SessionError, SessionLockedError, StorageError
from openagentic_sdk.events import AssistantMessage, Event, UserMessage
from openagentic_sdk.parts.record.verify_log import verify_session
from openagentic_sdk.sessions.log.file import LogWriter
from openagentic_sdk.sessions.store import FileSessionStore
from openagentic_sdk.testing.faults import ERRORS, WRITE_FAULTS, FaultyOS
from tests.size import LARGE, full_size, sized

from .scenes import CountingDisk, InstantDisk, SceneTest, small_batches, three_turns, without_stamps


class FaultAtEveryOperationTest(SceneTest):
    """A three-turn tool session, once for each of its disk operations and each kind of fault."""

    def run_session(self, disk: FaultyOS) -> tuple[list[Event], list[Event]]:
        """Return the acknowledged events, and the events of the batch that failed, if any."""
        store = FileSessionStore(self.place, "barrier", clock=self.clock, disk=disk)
        acknowledged: list[Event] = []
        batch: list[Event] = []
        try:
            store.create_session(session_id="s")
            with store.open_writer("s") as writer:
                for batch in three_turns():
                    acknowledged += writer.append(batch)
                batch = []
            store.read_events("s")
        except StorageError:
            pass
        return acknowledged, batch

    def check(self, faults: Sequence[str], sticky: bool) -> None:
        plain = FaultyOS(disk=InstantDisk())
        self.store.delete_session("s")
        self.run_session(plain)
        # In the small size each operation gets one fault, in rotation.
        points = range(1, len(plain.operations) + 1, sized(3, 2, 1) if sticky else sized(2, 1, 1))
        for at, fault in product(points, faults) if LARGE else zip(points, cycle(faults), strict=False):
            with self.subTest(fault=fault, at=at, operation=plain.operations[at - 1], sticky=sticky):
                self.store.delete_session("s")
                acknowledged, failed = self.run_session(FaultyOS(at=at, fault=fault, sticky=sticky, disk=InstantDisk()))
                self.assert_kept(acknowledged, failed)

    def assert_kept(self, acknowledged: list[Event], failed: list[Event]) -> None:
        self.assertEqual([name for name in os.listdir(self.path.parent.parent) if name not in ("s", ".keep")], [])
        if not self.store.session_exists("s"):
            self.assertEqual(acknowledged, [])
            self.store.create_session(session_id="s")
        stored = self.store.read_events("s")
        self.assertEqual(stored[: len(acknowledged)], acknowledged)
        unacknowledged = without_stamps(stored[len(acknowledged) :])
        self.assertEqual(unacknowledged, failed[: len(unacknowledged)])
        self.assert_goes_on(stored)

    def setUp(self) -> None:
        super().setUp()
        self.path = self.store.session_dir("s") / "events.jsonl"

    def test_each_error_once(self) -> None:
        self.check([*ERRORS, *WRITE_FAULTS], sticky=False)

    @full_size
    def test_each_error_for_good(self) -> None:
        self.check([*ERRORS, *WRITE_FAULTS] if LARGE else ["EIO", "torn ENOSPC"], sticky=True)


class DiskErrorTest(SceneTest):
    def open_with_fault(
        self, at: str, fault: str, count: int = 1, sticky: bool = False
    ) -> tuple[LogWriter, CountingFault]:
        """A writer whose `count`-th operation of kind `at`, counted from now, fails."""
        disk = CountingFault(at, fault, count, sticky)
        writer = self.make_store(disk=disk).open_writer("s")
        self.addCleanup(writer.close)
        disk.armed = True
        return writer, disk

    def test_a_full_disk_rolls_the_batch_back_and_writing_continues_when_there_is_room(self) -> None:
        for fault in ("ENOSPC", "EDQUOT", "EFBIG", "EINTR", "short", "torn ENOSPC"):
            with self.subTest(fault):
                before = self.path.read_bytes()
                writer, disk = self.open_with_fault("write", fault, sticky=True)
                for _ in range(3):
                    with self.assertRaises(StorageError) as caught:
                        writer.append([UserMessage("lost"), UserMessage("lost too")])
                    self.assertTrue(caught.exception.retryable)
                    self.assertRegex(str(caught.exception), "; free some space and try again$")
                    self.assertEqual(self.path.read_bytes(), before)
                disk.armed = False
                (kept,) = writer.append([UserMessage("kept")])
                writer.close()
                self.assertEqual(self.store.read_events("s")[-1], kept)
        self.assertEqual(verify_session(self.store, "s").problems, ())

    def test_after_an_unknown_error_or_a_failed_sync_the_handle_is_not_written_to_again(self) -> None:
        for at, fault in (("write", "EIO"), ("write", "torn EIO"), ("fdatasync", "EIO"), ("fdatasync", "ENOSPC")):
            with self.subTest(at=at, fault=fault):
                writer, disk = self.open_with_fault(at, fault)
                with self.assertRaises(StorageError) as caught:
                    writer.append([UserMessage("in doubt")])
                self.assertFalse(caught.exception.retryable)
                self.assertRegex(str(caught.exception), "; open the session again$")
                asked = len(disk.operations)
                with self.assertRaises(StorageError):
                    writer.append([UserMessage("never")])
                with self.assertRaises(StorageError):
                    writer.sync()
                self.assertEqual(disk.operations[asked:], [])
                writer.close()
                self.assertNotIn("never", self.path.read_text())
                self.store.open_writer("s").close()
        self.assertEqual(verify_session(self.store, "s").problems, ())

    def test_a_write_that_cannot_be_undone_gives_the_handle_up(self) -> None:
        writer, disk = self.open_with_fault("write", "torn ENOSPC")
        disk.also = "ftruncate"
        with self.assertRaises(StorageError) as caught:
            writer.append([UserMessage("torn")])
        self.assertFalse(caught.exception.retryable)
        writer.close()
        self.assert_goes_on([])

    def test_an_interrupted_append_is_undone(self) -> None:
        writer, _ = self.open_with_fault("write", "Ctrl-C")
        with self.assertRaises(KeyboardInterrupt):
            writer.append([UserMessage("interrupted")])
        self.assertEqual(self.path.read_bytes(), b"")
        writer.append([UserMessage("kept")])
        self.assertEqual(without_stamps(self.store.read_events("s")), [UserMessage("kept")])

    def test_a_failed_open_gives_the_lock_back(self) -> None:
        self.path.write_bytes(b"torn")
        for at in range(1, 12):
            with self.assertRaises(StorageError):
                self.make_store(disk=FaultyOS(at=at, sticky=True)).open_writer("s")
        self.assert_goes_on([])

    def test_a_writer_that_ignores_the_lock_is_noticed_before_the_next_append(self) -> None:
        with self.store.open_writer("s") as writer:
            writer.append([UserMessage("one")])
            with self.path.open("ab") as other:
                other.write(b'{"type":"user.message","text":"by another tool"}\n')
            with self.assertRaises(ConcurrencyError) as caught:
                writer.append([UserMessage("two")])
            self.assertEqual((caught.exception.expected_seq, caught.exception.actual_seq), (1, 2))
            with self.assertRaises(StorageError):
                writer.append([UserMessage("three")])
        self.assert_goes_on(self.store.read_events("s"))

    def test_a_log_that_was_deleted_or_cut_under_its_writer_takes_no_more_events(self) -> None:
        with self.store.open_writer("s") as writer:
            writer.append([UserMessage("one"), UserMessage("two")])
            self.path.write_bytes(self.path.read_bytes()[:-20])
            with self.assertRaises(ConcurrencyError):
                writer.append([UserMessage("three")])
            with self.assertRaisesRegex(StorageError, "another program wrote to it") as caught:
                writer.append([UserMessage("three")])
            self.assertEqual(caught.exception.session_id, "s")
        with self.store.open_writer("s") as writer:
            self.path.unlink()
            with self.assertRaises(StorageError):
                writer.append([UserMessage("three")])

    @unittest.skipUnless(hasattr(os, "fork"), "this system has no fork")
    def test_a_handle_inherited_over_fork_is_refused_and_the_parents_stays_good(self) -> None:
        with self.store.open_writer("s") as writer:
            writer.append([UserMessage("one")])
            child = os.fork()
            if child == 0:
                os._exit(self.use_inherited(writer))
            _, status = os.waitpid(child, 0)
            self.assertEqual(os.waitstatus_to_exitcode(status), 42)
            with self.assertRaises(SessionLockedError):
                self.store.open_writer("s")
            writer.append([UserMessage("two")])
        self.assert_goes_on(self.store.read_events("s"))

    def use_inherited(self, writer: LogWriter) -> int:
        try:
            writer.append([UserMessage("from the child")])
        except SessionLockedError:
            writer.close()
            return 42
        except SessionError:
            return 1
        return 0

    @unittest.skipUnless(sys.platform == "linux", "needs a limit on file sizes that cuts a write short")
    def test_a_real_limit_on_the_file_size_is_a_full_disk(self) -> None:
        import resource

        old = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        self.addCleanup(signal.signal, signal.SIGXFSZ, handler)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_FSIZE, old)
        stored = self.write(small_batches(5))
        with self.store.open_writer("s") as writer:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.path.stat().st_size + 50, old[1]))
            for _ in range(2):
                with self.assertRaises(StorageError) as caught:
                    writer.append([UserMessage("too much")])
                self.assertTrue(caught.exception.retryable)
                self.assertIn("; raise the file size limit (ulimit -f) and try again", str(caught.exception))
            resource.setrlimit(resource.RLIMIT_FSIZE, old)
            stored += writer.append([UserMessage("room again")])
        self.assert_goes_on(stored)

    def test_one_append_is_one_write(self) -> None:
        disk = FaultyOS(disk=InstantDisk())
        with self.make_store(disk=disk).open_writer("s") as writer:
            for batch in three_turns():
                writer.append(batch)
        self.assertEqual(disk.operations.count("write"), len(three_turns()))

    def test_barriers_are_synced_and_other_events_are_not(self) -> None:
        counts = {}
        for durability in ("flush", "barrier", "fsync"):
            disk = FaultyOS(disk=InstantDisk())
            self.store.create_session(session_id=durability)
            with self.make_store(durability=durability, disk=disk).open_writer(durability) as writer:
                for batch in three_turns():
                    writer.append(batch)
            counts[durability] = disk.operations.count("fdatasync")
        # Of the nine batches of a turn, two are no barriers: the calls, and the start of the read-only call.
        self.assertEqual(counts, {"flush": 0, "barrier": 3 * 7, "fsync": 3 * 9})

    def test_a_flushed_log_is_synced_now_and_then_so_that_opening_stays_cheap(self) -> None:
        disk = FaultyOS(disk=InstantDisk())
        with self.make_store(durability="flush", disk=disk).open_writer("s") as writer:
            for _ in range(50):
                writer.append([UserMessage("x" * 10_000)])
        self.assertEqual(disk.operations.count("fdatasync"), 1)

    def test_a_writer_that_opens_a_log_records_its_events_as_on_disk(self) -> None:
        """This keeps logs that are opened for each append from being read from their start every time."""
        for durability in ("barrier", "fsync"):
            store = self.make_store(durability=durability)
            for number in range(20):
                with store.open_writer("s") as writer:
                    before = writer.last_seq
                    writer.append([AssistantMessage(f"{number}")])
                last = self.path.read_bytes().splitlines()[-1]
                self.assertIn(b',"dur":%d,' % before, last)
        self.assert_goes_on(self.store.read_events("s"))

    @full_size
    def test_an_append_to_a_long_log_reads_the_same_few_bytes_whoever_wrote_it(self) -> None:
        many = [AssistantMessage("x" * 400) for _ in range(1_800)]
        written = self.store.create_session(session_id="written")
        for store_level in ("flush", "barrier"):
            with self.make_store(durability=store_level).open_writer(written) as writer:
                for event in many:
                    writer.append([event])
        stored = self.store.read_events(written)
        self.store.import_session("imported", stored)
        copied = self.store.copy_session(written, "copied", at_seq=1_799, tail=many[:2], metadata={})
        single = self.store.create_session(session_id="single")
        for event in many:
            self.store.append_event(single, event)
        for name in (written, "imported", copied, single):
            disk = CountingDisk()
            self.make_store(disk=disk).append_event(name, UserMessage("first"))
            self.assertLess(disk.read_bytes, 600_000, name)
            disk.read_bytes = 0
            self.make_store(disk=disk).append_event(name, UserMessage("second"))
            self.assertLess(disk.read_bytes, 40_000, name)


class CountingFault(FaultyOS):
    """A fault at the n-th operation of one kind after it is armed; operations of kind `also` fail too."""

    def __init__(self, kind: str, fault: str, count: int, sticky: bool) -> None:
        super().__init__(fault=fault, sticky=sticky, disk=InstantDisk())
        self.armed = False
        self.also = ""
        self._kind = kind
        self._left = count

    def write(self, fd: int, data: bytes | memoryview) -> int:
        if self.fault == "Ctrl-C" and self.armed:
            self.armed = False
            super().write(fd, data)
            raise KeyboardInterrupt
        return super().write(fd, data)

    def _is_due(self, name: str) -> bool:
        self.operations.append(name)
        if not self.armed:
            return False
        if name == self.also:
            self.fault = "EIO"
            return True
        if name != self._kind:
            return False
        self._left -= 1
        return self._left == 0 or (self.sticky and self._left < 0)
