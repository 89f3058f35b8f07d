"""Data whose sync failed once is never trusted again, in this process or another; other files are unaffected."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from openagentic_sdk.errors import SessionExistsError, SessionLockedError, SessionNotFoundError, StorageError
from openagentic_sdk.events import Event, LogRecovered, UserMessage
from openagentic_sdk.parts.record.verify_log import verify_session
from openagentic_sdk.sessions.log.unsynced import DISTRUSTED, MARK
from openagentic_sdk.sessions.store import FileSessionStore
from openagentic_sdk.testing.faults import FaultyOS
from tests.pythons import run_python
from tests.size import full_size

from .scenes import InstantDisk, SceneTest, without_stamps

DRILL = """
import errno, sys
from openagentic_sdk.ground.disk import SystemDisk
from openagentic_sdk.errors import StorageError
from openagentic_sdk.events import UserMessage
from openagentic_sdk.sessions.store import FileSessionStore

class Disk(SystemDisk):
    def fdatasync(self, fd):
        raise OSError(errno.EIO, "refused")

writer = FileSessionStore(sys.argv[1], "flush", disk=Disk()).open_writer("s")
writer._durability = "barrier"
try:
    writer.append([UserMessage("in doubt")])
except StorageError:
    print("refused")
"""


class FickleDisk(InstantDisk):
    """A disk that refuses chosen operations in a chosen kind of file or folder, for as long as it is set to."""

    def __init__(self) -> None:
        self.refused: tuple[str, ...] = ()

    def fdatasync(self, fd: int) -> None:  # type: ignore[override]
        self._ask("fdatasync")

    def fsync_folder(self, path: str) -> None:  # type: ignore[override]
        self._ask("fsync_folder")

    def open(self, path: str, flags: int, mode: int = 0o666) -> int:  # type: ignore[override]
        if flags & os.O_CREAT:
            self._ask("create")
        return os.open(path, flags, mode)

    def rename(self, src: str, dst: str) -> None:  # type: ignore[override]
        self._ask("rename")
        os.rename(src, dst)

    @contextmanager
    def refusing(self, *names: str) -> Iterator[None]:
        self.refused = names
        try:
            yield
        finally:
            self.refused = ()

    def _ask(self, name: str) -> None:
        if name in self.refused:
            raise OSError(errno.EIO, f"refused {name}")


class UnsyncedTest(SceneTest):
    def setUp(self) -> None:
        super().setUp()
        self.disk = FickleDisk()
        self.fickle = self.make_store(disk=self.disk)

    def marks(self) -> list[str]:
        return [name for name in os.listdir(self.path.parent) if MARK in name]

    def inode(self) -> int:
        return self.path.stat().st_ino

    def refuse_a_sync(self, *more: str) -> None:
        """Append an event whose sync fails, and close the log."""
        with (
            self.fickle.open_writer("s") as writer,
            self.disk.refusing("fdatasync", *more),
            self.assertRaises(StorageError),
        ):
            writer.append([UserMessage("in doubt")])

    def assert_renewed(self, store: FileSessionStore, before: int, expected: list[Event]) -> None:
        with store.open_writer("s") as writer:
            self.assertNotEqual(self.inode(), before)
            with self.assertRaises(SessionLockedError):
                self.store.open_writer("s")
            writer.append([UserMessage("kept")])
        self.assertEqual(self.marks(), [])
        self.assertEqual(without_stamps(self.store.read_events("s")), [*expected, UserMessage("kept")])
        self.assertEqual(verify_session(self.store, "s").problems, ())
        after = self.inode()
        self.store.open_writer("s").close()
        self.assertEqual(self.inode(), after)

    def test_the_same_process_puts_the_log_into_a_new_file_even_if_no_mark_could_be_stored(self) -> None:
        self.refuse_a_sync("create", "rename")
        self.assertEqual(self.marks(), [])
        self.assert_renewed(self.store, self.inode(), [UserMessage("in doubt")])

    def test_another_process_puts_the_log_into_a_new_file_before_it_trusts_a_sync(self) -> None:
        drill = run_python("-c", DRILL, str(self.place), text=True, timeout=300)
        self.assertEqual(drill.stdout, "refused\n", drill.stderr)
        self.assertEqual(len(self.marks()), 1)
        self.assert_renewed(self.store, self.inode(), [UserMessage("in doubt")])

    def test_a_cache_becomes_the_mark_when_no_file_can_be_made(self) -> None:
        self.refuse_a_sync("create")
        self.assertEqual(len(self.marks()), 1)
        DISTRUSTED.clear()
        self.assert_renewed(self.store, self.inode(), [UserMessage("in doubt")])

    def test_nothing_is_acknowledged_until_the_new_file_is_on_disk(self) -> None:
        self.refuse_a_sync()
        for refused in ("fdatasync", "fsync_folder", "create"):
            with self.subTest(refused), self.disk.refusing(refused), self.assertRaises(StorageError):
                self.fickle.open_writer("s")
            self.assertEqual(len(self.marks()), 1)
        self.assert_renewed(self.fickle, self.inode(), [UserMessage("in doubt")])

    def test_a_repair_that_cannot_be_synced_is_not_trusted_either(self) -> None:
        with self.path.open("ab") as log:
            log.write(b'{"v":1,"seq":1,"ty')
        for at in range(1, 40):
            disk = FaultyOS(at=at, disk=InstantDisk())
            with suppress(StorageError):
                self.make_store(disk=disk).open_writer("s").close()
            if "fdatasync" in disk.operations[at - 1 : at] and disk.operations[:at].count("fdatasync") > 1:
                break
        self.assertEqual(len(self.marks()), 1)
        self.assert_renewed(self.store, self.inode(), [])

    @full_size
    def test_a_copy_that_is_killed_at_any_step_is_finished_by_the_next(self) -> None:
        self.refuse_a_sync()
        plain, content = FaultyOS(disk=InstantDisk()), self.path.read_bytes()
        (mark,) = self.marks()
        self.make_store(disk=plain).open_writer("s").close()
        for at in range(1, len(plain.operations) + 1):
            with self.subTest(at=at, operation=plain.operations[at - 1]):
                self.restore(content)
                self.path.with_name(mark).touch()
                child = os.fork()
                if child == 0:
                    self.make_store(disk=FaultyOS(at=at, fault="kill before", disk=InstantDisk())).open_writer("s")
                    os._exit(0)
                os.waitpid(child, 0)
                self.assert_goes_on([UserMessage("in doubt")])
                self.assertEqual(self.marks(), [])
                self.assertEqual([name for name in os.listdir(self.path.parent) if name.startswith(".")], [])

    def test_events_that_the_disk_lost_of_an_unsynced_log_are_reported(self) -> None:
        with self.fickle.open_writer("s") as writer:
            writer.append([UserMessage("safe")])
        safe = self.path.read_bytes()
        self.refuse_a_sync()
        size = len(self.path.read_bytes())
        (mark,) = self.marks()
        self.restore(safe)
        self.path.with_name(mark).touch()
        kinds = [problem.kind for problem in verify_session(self.store, "s").problems]
        self.assertEqual(kinds, ["unsynced", "witness"])  # the summary witnesses the lost event too
        self.store.open_writer("s").close()
        self.store.open_writer("s").close()
        _safe, report = self.store.read_events("s")
        assert isinstance(report, LogRecovered)
        self.assertEqual((report.bytes, report.offset, report.moved_to), (size - len(safe), len(safe), None))

    def test_verify_and_readers_change_nothing_and_verify_names_the_place(self) -> None:
        self.refuse_a_sync()
        before, (mark,) = self.inode(), self.marks()
        report = verify_session(self.make_store(read_only=True), "s")
        self.assertEqual([(problem.kind, problem.seq) for problem in report.problems], [("unsynced", 1)])
        self.assertTrue(report.ok)
        self.assertEqual(len(self.store.read_events("s")), 1)
        self.assertEqual((self.inode(), self.marks()), (before, [mark]))

    def test_a_fork_is_synced_independently_of_its_source(self) -> None:
        self.refuse_a_sync()
        with self.disk.refusing("fdatasync"), self.assertRaises(StorageError):
            self.fickle.copy_session("s", "fork", at_seq=1, tail=[], metadata={})
        self.assertFalse(self.store.session_exists("fork"))
        self.fickle.copy_session("s", "fork", at_seq=1, tail=[], metadata={})
        self.assertEqual(without_stamps(self.store.read_events("fork")), [UserMessage("in doubt")])

    def test_scrubbing_leaves_the_mark(self) -> None:
        self.refuse_a_sync()
        self.store.scrub("s")
        self.assertEqual(len(self.marks()), 1)

    def test_a_session_whose_name_could_not_be_synced_is_created_again(self) -> None:
        with self.disk.refusing("fsync_folder"), self.assertRaises(StorageError):
            self.fickle.create_session(session_id="new")
        self.assertFalse(self.store.session_exists("new"))
        deep = FileSessionStore(self.place / "deep" / "er", disk=self.disk)
        with self.disk.refusing("fsync_folder"), self.assertRaises(StorageError):
            deep.create_session(session_id="new")
        self.assertFalse((self.place / "deep").exists())
        self.fickle.create_session(session_id="new")
        with self.assertRaises(SessionExistsError):
            self.fickle.create_session(session_id="new")

    def test_a_deletion_that_could_not_be_synced_is_repeated(self) -> None:
        with self.disk.refusing("fsync_folder"), self.assertRaises(StorageError):
            self.fickle.delete_session("s")
        self.fickle.delete_session("s")
        with self.assertRaises(SessionNotFoundError):
            self.store.read_events("s")

    def test_a_blob_that_could_not_be_synced_is_written_again(self) -> None:
        for refused in ("fdatasync", "fsync_folder"):
            with self.disk.refusing(refused), self.assertRaises(StorageError):
                self.fickle.put_blob("s", b"data")
            counted = FaultyOS(disk=InstantDisk())
            self.make_store(disk=counted).put_blob("s", b"data")
            self.assertEqual(counted.operations[-5:], ["open", "write", "fdatasync", "replace", "fsync_folder"])
