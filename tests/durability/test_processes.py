"""Two or eight processes on one session, and many threads on one writer: one writes, the others are refused at once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
import unittest
from collections.abc import Callable
from pathlib import Path

from openagentic_sdk.errors import ConcurrencyError, SessionError, SessionLockedError
from openagentic_sdk.events import UserMessage
from openagentic_sdk.ground.backoff import Backoff
from openagentic_sdk.parts.record.verify_log import verify_session
from openagentic_sdk.parts.workflows import inbox
from openagentic_sdk.sessions.log import lock
from openagentic_sdk.sessions.log.file import LogWriter
from openagentic_sdk.sessions.sqlite import SqliteSessionStore
from openagentic_sdk.sessions.store import FileSessionStore
from openagentic_sdk.sessions.stores.sqlite import file
from openagentic_sdk.testing.faults import FaultyOS
from tests.pythons import Python, run_python
from tests.size import LARGE, sized
from tests.waiting import pause, until

from .scenes import InstantDisk, SceneTest, without_stamps

ROOT = Path(__file__).parent.parent.parent
APPENDS = 200 if LARGE else 25
_APPENDER = """
import sys
from openagentic_sdk.errors import SessionLockedError
from openagentic_sdk.events import UserMessage
from openagentic_sdk.sessions.log.file import LogWriter
from openagentic_sdk.sessions.store import FileSessionStore
root, name, appends = sys.argv[1], sys.argv[2], int(sys.argv[3])
store = FileSessionStore(root, "flush")
sys.stdin.readline()
done = refused = 0
while done < appends:
    try:
        store.append_events("s", [UserMessage(f"{name} {done} a"), UserMessage(f"{name} {done} b")])
        done += 1
    except SessionLockedError:
        refused += 1
print(refused)
"""
_HOLDER = """
import sys
from openagentic_sdk.sessions.log.file import LogWriter
from openagentic_sdk.sessions.store import FileSessionStore
with FileSessionStore(sys.argv[1]).open_writer("s"):
    print("held", flush=True)
    sys.stdin.readline()
"""
_HOLDER_OF_ALL = """
import contextlib, sqlite3, sys
from pathlib import Path
from openagentic_sdk.sessions.log.folder import folder_lock
from openagentic_sdk.sessions.store import FileSessionStore
root = Path(sys.argv[1])
folders = [root, *(root / name for name in ("sessions", "sessions/s", "requests", "inbox"))]
with contextlib.ExitStack() as held:
    for folder in folders:
        held.enter_context(folder_lock(folder))
    held.enter_context(FileSessionStore(root).open_writer("s.inbox"))
    database = held.enter_context(contextlib.closing(sqlite3.connect(root / "runs.db", isolation_level=None)))
    database.execute("BEGIN IMMEDIATE")
    print("held", flush=True)
    sys.stdin.readline()
"""
_INTERRUPTED = """
import signal, sys, threading
from openagentic_sdk.events import UserMessage
from openagentic_sdk.sessions.store import FileSessionStore
from tests.durability.test_processes import SlowDisk
from tests.waiting import until
root, rounds = sys.argv[1], int(sys.argv[2])
signal.signal(signal.SIGALRM, signal.default_int_handler)

def append_some(writer, index):
    for number in range(rounds):
        writer.append([UserMessage(f"{index} {number}")])

def is_interrupted(writer, number):
    # Whether the interrupt came during the append; it always comes.
    is_appended = False
    try:
        # The clock of the kernel, as a thread that is started could itself be interrupted halfway.
        signal.setitimer(signal.ITIMER_REAL, 0.00001 + 0.0005 * (number % 7))
        writer.append([UserMessage(f"main {number}")])
        is_appended = True
        # In short naps: the signal may have come to another thread, which wakes nobody here.
        until(lambda: False, "the interrupt comes", 60)
    except KeyboardInterrupt:
        pass
    return not is_appended

with FileSessionStore(root, "fsync", disk=SlowDisk()).open_writer("s") as writer:
    threads = [threading.Thread(target=append_some, args=(writer, index)) for index in range(3)]
    for thread in threads:
        thread.start()
    interrupted = sum(is_interrupted(writer, number) for number in range(rounds))
    for thread in threads:
        thread.join()
    writer.append([UserMessage("still good")])
print(interrupted)
"""


def python(source: str, *arguments: str) -> subprocess.Popen[str]:
    return Python("-c", source, *arguments, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


class ProcessesTest(SceneTest):
    durability = "flush"

    def test_two_and_eight_processes_lose_double_and_mix_nothing(self) -> None:
        for count in (2, 8):
            with self.subTest(processes=count):
                self.store.delete_session("s")
                self.store.create_session(session_id="s")
                self.run_appenders([f"p{index}" for index in range(count)])

    def run_appenders(self, names: list[str]) -> None:
        processes = [python(_APPENDER, str(self.place), name, str(APPENDS)) for name in names]
        for process in processes:
            assert process.stdin
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in processes:
            process.communicate(timeout=300)
            self.assertEqual(process.returncode, 0)
        texts = [event.text for event in self.store.iter_events("s") if isinstance(event, UserMessage)]
        self.assertEqual([text[:-1] + "b" for text in texts[::2]], texts[1::2])
        for name in names:
            own = [text for text in texts if text.startswith(name + " ")]
            self.assertEqual(own, [f"{name} {number} {part}" for number in range(APPENDS) for part in "ab"])
        self.assertEqual(verify_session(self.store, "s").problems, ())

    def test_a_second_process_is_refused_at_once_until_the_first_ends_or_dies(self) -> None:
        for kill in (False, True):
            holder = python(_HOLDER, str(self.place))
            assert holder.stdin and holder.stdout
            self.addCleanup(holder.stdin.close)
            self.addCleanup(holder.stdout.close)
            holder.stdout.readline()
            began = time.monotonic()
            for refused in (self.store.open_writer, self.store.delete_session):
                with self.assertRaises(SessionLockedError) as caught:
                    refused("s")
                self.assertIn("wait until it ends, open it read-only, or fork it", str(caught.exception))
            with self.assertRaises(SessionLockedError):
                self.store.append_event("s", UserMessage("no"))
            self.assertEqual(self.store.read_events("s"), [])
            self.assertLess(time.monotonic() - began, 30)
            if kill:
                holder.send_signal(signal.SIGKILL)
            else:
                holder.stdin.write("\n")
                holder.stdin.flush()
            holder.wait(timeout=300)
            self.store.open_writer("s").close()

    def test_a_stopped_holder_keeps_the_lock_and_continues(self) -> None:
        holder = python(_HOLDER, str(self.place))
        assert holder.stdin and holder.stdout
        self.addCleanup(holder.stdout.close)
        holder.stdout.readline()
        holder.send_signal(signal.SIGSTOP)
        with self.assertRaises(SessionLockedError):
            self.store.open_writer("s")
        holder.send_signal(signal.SIGCONT)
        holder.communicate("\n", timeout=300)
        self.assertEqual(holder.returncode, 0)

    @unittest.skipUnless(sys.platform == "linux", "the kernel's list of locks is read from /proc")
    def test_waiting_for_a_stopped_process_names_it_and_how_to_end_it(self) -> None:
        for module, name, short in ((lock, "_PATIENCE_S", 0.0), (file, "BUSY_S", 0.0)):
            self.addCleanup(setattr, module, name, getattr(module, name))
            setattr(module, name, short)
        self.store.put_message("s", {"kind": "cancel"})
        self.store.claim_request("s", "first")
        database = SqliteSessionStore(self.place / "runs.db")
        self.addCleanup(database.close)
        database.create_session(session_id="s")
        inbox.deliver(self.store, "s", "begun")
        holder = python(_HOLDER_OF_ALL, str(self.place))
        assert holder.stdin and holder.stdout
        self.addCleanup(holder.communicate)
        self.addCleanup(holder.kill)
        holder.stdout.readline()
        holder.send_signal(signal.SIGSTOP)
        state = Path("/proc", str(holder.pid), "stat")
        until(lambda: state.read_text().rpartition(")")[2].split()[0] == "T", "it is stopped")
        sentence = f"process {holder.pid}, which is stopped .`kill -CONT {holder.pid}` continues it"
        self.addCleanup(setattr, inbox, "_BUSY", inbox._BUSY)
        inbox._BUSY = Backoff(1e-6, 1e-6)
        refused: tuple[Callable[[], object], ...] = (
            lambda: self.store.create_session(session_id="t"),
            lambda: self.store.update_metadata("s", {"n": 1}),
            lambda: self.store.delete_session("s"),
            lambda: self.store.claim_request("s", "second"),
            lambda: self.store.put_message("s", {"kind": "cancel"}),
            lambda: inbox.deliver(self.store, "s", "paid"),
            lambda: database.create_session(session_id="t"),
            lambda: database.open_writer("s"),
        )
        for work in refused:
            with self.assertRaisesRegex(SessionError, sentence):
                work()

    @unittest.skipUnless(sys.platform == "linux", "the kernel's list of locks is read from /proc")
    def test_the_refusal_names_the_process_that_holds_the_session(self) -> None:
        with self.store.open_writer("s"), self.assertRaises(SessionLockedError) as caught:
            self.make_store().open_writer("s")
        self.assertEqual(caught.exception.holder, f"process {os.getpid()}")

    def test_an_append_that_expects_another_position_writes_nothing(self) -> None:
        self.store.append_event("s", UserMessage("one"))
        with self.assertRaises(ConcurrencyError):
            self.store.append_events("s", [UserMessage("late")], expected_seq=0)
        self.assertEqual(without_stamps(self.store.read_events("s")), [UserMessage("one")])

    def test_a_reader_beside_a_writer_always_sees_a_prefix(self) -> None:
        rng = random.Random(3)
        stop = threading.Event()
        failures: list[BaseException] = []

        def read() -> None:
            try:
                while not stop.is_set():
                    texts = [event.text for event in self.store.iter_events("s") if isinstance(event, UserMessage)]
                    assert texts == [f"{n}".ljust(len(text), "x") for n, text in enumerate(texts)]
            except BaseException as error:  # noqa: BLE001 - an error of a thread must reach the test
                failures.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        with self.store.open_writer("s") as writer:
            for number in range(150):
                writer.append([UserMessage(f"{number}".ljust(rng.choice((10, 3000, 60_000)), "x"))])
        stop.set()
        thread.join()
        self.assertEqual(failures, [])


class ThreadsTest(SceneTest):
    def test_threads_that_share_a_writer_append_one_after_the_other(self) -> None:
        disk = SlowDisk()
        store = FileSessionStore(self.place, "fsync", disk=disk)
        with store.open_writer("s") as writer:
            threads = [threading.Thread(target=self.append_ten, args=(writer, index)) for index in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        texts = [event.text for event in store.iter_events("s") if isinstance(event, UserMessage)]
        for index in range(8):
            self.assertEqual([t for t in texts if t.startswith(f"{index} ")], [f"{index} {n}" for n in range(10)])
        self.assertEqual(disk.operations.count("fdatasync"), 80)
        self.assertEqual(verify_session(store, "s").problems, ())

    def append_ten(self, writer: LogWriter, index: int) -> None:
        for number in range(10):
            writer.append([UserMessage(f"{index} {number}")])

    def test_a_failed_sync_fails_every_thread_that_comes_after_it(self) -> None:
        disk = SlowDisk(fail=True)
        failed: list[Exception] = []

        def append(writer: LogWriter) -> None:
            try:
                writer.append([UserMessage("in doubt")])
            except Exception as error:  # noqa: BLE001 - an error of a thread must reach the test
                failed.append(error)

        with FileSessionStore(self.place, "fsync", disk=disk).open_writer("s") as writer:
            threads = [threading.Thread(target=append, args=(writer,)) for _ in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual([type(error).__name__ for error in failed], ["StorageError"] * 6)
        self.assertEqual(disk.operations.count("fdatasync"), 1)


class SlowDisk(FaultyOS):
    """A disk with slow syncs, like real ones, that may also fail."""

    def __init__(self, fail: bool = False) -> None:
        super().__init__(disk=InstantDisk())
        self._fails = fail

    def fdatasync(self, fd: int) -> None:
        super().fdatasync(fd)
        pause(0.002, "a sync on a real disk takes time")
        if self._fails:
            raise OSError(5, "injected EIO")


class ClockTest(SceneTest):
    def test_order_and_numbers_do_not_depend_on_the_clock(self) -> None:
        texts = []
        for number, now in enumerate((1e9, 1e9, 2e9, 1e9 - 3600, 0.0, -5.0, 1e9, 4e10)):
            self.clock.set_now(now)
            with self.store.open_writer("s") as writer:
                for part in "ab":
                    (stored,) = writer.append([UserMessage(f"{number} {part}")])
                    self.assertEqual(stored.ts, now)
                    texts.append(f"{number} {part}")
        events = self.store.read_events("s")
        self.assertEqual([event.text for event in events], texts)
        self.assertEqual([event.seq for event in events], list(range(1, len(texts) + 1)))
        self.assertEqual(verify_session(self.store, "s").problems, ())

    def test_a_lock_does_not_run_out_however_far_the_clock_jumps(self) -> None:
        with self.store.open_writer("s") as writer:
            self.clock.set_now(5e9)
            with self.assertRaises(SessionLockedError):
                self.store.open_writer("s")
            writer.append([UserMessage("still mine")])


class InterruptTest(SceneTest):
    @unittest.skipIf(sys.platform == "win32", "signals between threads work differently on this system")
    def test_ctrl_c_at_any_moment_leaves_a_writer_that_others_can_use(self) -> None:
        """Interrupt the main thread repeatedly while other threads append through the same writer.

        Runs in a separate process: an interrupt could hit a coverage tool while it holds a lock, and leave it locked.
        """
        rounds = sized(15, 40, 400)
        ended = run_python("-c", _INTERRUPTED, str(self.place), str(rounds), cwd=ROOT, text=True)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertGreater(int(ended.stdout), 0)
        texts = [event.text for event in self.store.iter_events("s") if isinstance(event, UserMessage)]
        for index in range(3):
            self.assertEqual([t for t in texts if t.startswith(f"{index} ")], [f"{index} {n}" for n in range(rounds)])
        self.assertEqual(texts[-1], "still good")
        self.assertEqual(verify_session(self.store, "s").problems, ())
