"""What every part of the contract stands on: a store on a place of its own, and what is asked of it again and again."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import unittest
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...errors import SessionLockedError
from ...events import Event, UnknownEvent, UserMessage
from ...sessions.base import SessionStore, as_shown
from ...sessions.folds.summary import fold_session_summary, start_summary
from .processes import CRASHING_WRITER


class StoreTest(unittest.TestCase):
    """The contract. A subclass gives `make_store`, and says in the attributes what its backend cannot do.

    `place` is a folder of the test's own. `make_store` is called again within a test to look at the same sessions from a
    second store object; `process_source` is Python source that binds `store` to a third one in another process.
    `many_events`, a multiple of 500, is how long the log of the test of long logs is.
    """

    place: Path
    keeps_on_close = True
    can_take_over = True
    many_events = 10_000

    def make_store(self) -> SessionStore:
        """A store on this test's own, empty place; later calls within the test see the same sessions."""
        raise unittest.SkipTest("StoreContract is abstract: subclass it and give make_store")

    def process_source(self) -> str | None:
        """Python source that binds `store` in a fresh process; None when the backend is not shared with processes."""
        return None

    def lose_event(self, session_id: str, seq: int) -> bool:
        """Take an event out of what the backend keeps, behind the store's back; False when a test cannot do that to it."""
        return False

    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory(prefix="store-contract-")
        self.addCleanup(place.cleanup)
        self.place = Path(place.name)
        self.store = self.open_store()

    def open_store(self) -> SessionStore:
        """One more store object on the same place, closed at the end of the test."""
        store = self.make_store()
        self.addCleanup(store.close)
        return store

    def assert_refused(self, store: SessionStore, session_id: str) -> None:
        """Nobody but the holder can change the session, and everybody can read it."""
        with self.assertRaises(SessionLockedError):
            store.open_writer(session_id)
        with self.assertRaises(SessionLockedError):
            store.append_event(session_id, UserMessage("lost"))
        with self.assertRaises(SessionLockedError):
            store.delete_session(session_id)
        self.assertEqual(len(store.read_events(session_id)), 1)

    def filled(self, count: int, metadata: dict[str, Any] | None = None) -> str:
        """A session with `count` prompts."""
        session_id = self.store.create_session(metadata=metadata)
        self.store.append_events(session_id, [UserMessage(f"prompt {number}") for number in range(1, count + 1)])
        return session_id

    def folded(self, session_id: str) -> Any:
        """The session's row as a fold over its events gives it."""
        known = self.store.read_metadata(session_id)
        start = start_summary(session_id, known["created_at"], known["metadata"])
        return as_shown(self.store, fold_session_summary(start, self.store.read_events(session_id)))

    def row(self, session_id: str) -> Any:
        """The session's row in the list, which a single look-up must agree with."""
        rows = [row for row in self.store.list_session_summaries(include_children=True) if row.id == session_id]
        self.assertEqual(rows, [self.store.read_summary(session_id)])
        return rows[0]

    def without_times(self, events: Sequence[Event]) -> Sequence[Event]:
        """The events as they are compared: a store with the derived import gives new times to what it copies."""
        if self.keeps_imported_times():
            return events
        return [UnknownEvent({"type": event.type, "seq": event.seq}) for event in events]

    def keeps_imported_times(self) -> bool:
        """Whether the store imports by itself instead of by the derived way."""
        made, names = type(self.store), ("import_session", "_import_events")
        return any(getattr(made, name) is not getattr(SessionStore, name) for name in names)

    def open_or_same(self) -> SessionStore:
        """A second store object where the backend allows one."""
        return self.open_store() if self.keeps_on_close else self.store

    def append_patiently(self, session_id: str, events: Sequence[Event]) -> None:
        """Append as soon as nobody else holds the session."""
        while True:
            try:
                self.store.append_events(session_id, events)
                return
            except SessionLockedError:
                pass

    def assert_batches_whole(self, session_id: str, names: list[str], count: int) -> None:
        """Each writer's batches are there once, whole and in its order."""
        events = self.store.read_events(session_id)
        self.assertEqual([event.seq for event in events], list(range(1, 2 * count * len(names) + 1)))
        texts = [event.text for event in events if isinstance(event, UserMessage)]
        for first, second in zip(texts[::2], texts[1::2], strict=True):
            self.assertEqual(first[:-1], second[:-1])
        for name in names:
            own = [text for text in texts if text.startswith(f"{name} ")]
            self.assertEqual(own, [f"{name} {number} {part}" for number in range(count) for part in "ab"])
        self.assertEqual(self.store.read_summary(session_id), self.folded(session_id))

    def at_once(self, count: int, work: Callable[[int], object]) -> list[BaseException]:
        """Let threads begin the work at the same moment; returns what they raised."""
        failures: list[BaseException] = []
        barrier = threading.Barrier(count)

        def begin(number: int) -> None:
            barrier.wait()
            try:
                work(number)
            except BaseException as error:  # noqa: BLE001 - an error of a thread must reach the test
                failures.append(error)

        threads = [threading.Thread(target=begin, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return failures

    def started(self, script: str, *arguments: str) -> subprocess.Popen[str]:
        """A process that runs `script` with the store, until the end of the test."""
        process = self.python(self.needs_processes() + script, *arguments)
        self.addCleanup(process.__exit__, None, None, None)
        self.addCleanup(process.kill)
        return process

    def tell(self, process: subprocess.Popen[str], line: str = "") -> str:
        """What the process says when it is told a line."""
        return self.tell_all([process], line)[0]

    def tell_all(self, processes: Sequence[subprocess.Popen[str]], line: str) -> list[str]:
        """What each of the processes says when all are told a line at the same time."""
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(line + "\n")
            process.stdin.flush()
        answers = []
        for process in processes:
            assert process.stdout is not None and process.stderr is not None
            answer = process.stdout.readline()
            self.assertTrue(answer, "" if answer else process.stderr.read())
            answers.append(answer.strip())
        return answers

    def needs_processes(self) -> str:
        """The source that opens the store elsewhere; skips the test when there is none."""
        source = self.process_source()
        if source is None:
            self.skipTest("this store lives in one process")
        return source

    def python(self, script: str, *arguments: str) -> subprocess.Popen[str]:
        """A Python process that runs `script`."""
        command = [sys.executable, "-c", script, *arguments]
        root = str(Path(__file__).parents[3])
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=root)

    def kill_while_writing(self, source: str, session_id: str, acknowledgements: int) -> int:
        """Kill a writing process after so many acknowledged appends; the last `seq` that it was told is stored."""
        with self.python(source + CRASHING_WRITER, session_id) as process:
            assert process.stdout is not None and process.stderr is not None
            acknowledged = 0
            try:
                line = process.stdout.readline()
                self.assertEqual(line, "open\n", line or process.stderr.read())
                for _ in range(acknowledgements):
                    acknowledged = int(process.stdout.readline())
            finally:
                process.kill()
            return acknowledged

    def distinct_time(self) -> None:
        """A backend that orders by a clock may need a moment between two writes; others need none."""

    def _ts(self, session_id: str) -> float | None:
        return self.store.read_events(session_id)[0].ts
