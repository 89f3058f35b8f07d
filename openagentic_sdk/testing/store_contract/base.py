"""The base of all contract tests: a store in a private place, and helpers."""

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
    """The base of all contract tests.

    A subclass defines `make_store`, and declares in attributes what its backend cannot do: `keeps_on_close` is false if the
    data does not outlive the store object, `can_take_over` if a session cannot be taken from a living holder.

    `place` is a private folder of the test. `make_store` is called again within a test to access the same sessions through
    a second store object; `process_source` is Python source that binds `store` to a third one in another process.
    `many_events`, a multiple of 500, is the length of the log in the test of long logs.
    """

    place: Path
    keeps_on_close = True
    can_take_over = True
    many_events = 10_000

    def make_store(self) -> SessionStore:
        """Create a store in this test's own, empty place; later calls within the test access the same sessions."""
        raise unittest.SkipTest("StoreContract is abstract: subclass it and define make_store")

    def process_source(self) -> str | None:
        """Python source that binds `store` in a new process; None if the backend cannot be shared by processes."""
        return None

    def lose_event(self, session_id: str, seq: int) -> bool:
        """Remove an event from the backend's data, bypassing the store; return False if a test cannot do that."""
        return False

    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory(prefix="store-contract-")
        self.addCleanup(place.cleanup)
        self.place = Path(place.name)
        self.store = self.open_store()

    def open_store(self) -> SessionStore:
        """Open one more store object on the same place, closed at the end of the test."""
        store = self.make_store()
        self.addCleanup(store.close)
        return store

    def assert_refused(self, store: SessionStore, session_id: str) -> None:
        """Assert that only the holder can change the session, and everybody can read it."""
        with self.assertRaises(SessionLockedError):
            store.open_writer(session_id)
        with self.assertRaises(SessionLockedError):
            store.append_event(session_id, UserMessage("lost"))
        with self.assertRaises(SessionLockedError):
            store.delete_session(session_id)
        self.assertEqual(len(store.read_events(session_id)), 1)

    def filled(self, count: int, metadata: dict[str, Any] | None = None) -> str:
        """Create a session with `count` prompts; return its id."""
        session_id = self.store.create_session(metadata=metadata)
        self.store.append_events(session_id, [UserMessage(f"prompt {number}") for number in range(1, count + 1)])
        return session_id

    def folded(self, session_id: str) -> Any:
        """The session's summary, folded from its events."""
        meta = self.store.read_metadata(session_id)
        start = start_summary(session_id, meta["created_at"], meta["metadata"])
        return as_shown(self.store, fold_session_summary(start, self.store.read_events(session_id)))

    def row(self, session_id: str) -> Any:
        """Return the session's summary from the list; assert that a look-up by id returns the same."""
        rows = [row for row in self.store.list_session_summaries(include_children=True) if row.id == session_id]
        self.assertEqual(rows, [self.store.read_summary(session_id)])
        return rows[0]

    def without_times(self, events: Sequence[Event]) -> Sequence[Event]:
        """The events in the form in which they are compared: the derived import assigns new times to copies."""
        if self.keeps_imported_times():
            return events
        return [UnknownEvent({"type": event.type, "seq": event.seq}) for event in events]

    def keeps_imported_times(self) -> bool:
        """Whether the store implements the import itself instead of inheriting it."""
        kind, names = type(self.store), ("import_session", "_import_events")
        return any(getattr(kind, name) is not getattr(SessionStore, name) for name in names)

    def open_or_same(self) -> SessionStore:
        """Open a second store object if the backend allows one, else return the same one."""
        return self.open_store() if self.keeps_on_close else self.store

    def append_patiently(self, session_id: str, events: Sequence[Event]) -> None:
        """Append the events, and retry while anybody else holds the session."""
        while True:
            try:
                self.store.append_events(session_id, events)
                return
            except SessionLockedError:
                pass

    def assert_batches_whole(self, session_id: str, names: list[str], count: int) -> None:
        """Assert that each writer's batches are stored once, complete and in order."""
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
        """Start the work in threads at the same moment; return their exceptions."""
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
        """Start a process that runs `script` with the store, until the end of the test."""
        process = self.python(self.needs_processes() + script, *arguments)
        self.addCleanup(process.__exit__, None, None, None)
        self.addCleanup(process.kill)
        return process

    def tell(self, process: subprocess.Popen[str], line: str = "") -> str:
        """Send a line to the process; return its answer."""
        return self.tell_all([process], line)[0]

    def tell_all(self, processes: Sequence[subprocess.Popen[str]], line: str) -> list[str]:
        """Send a line to all processes at the same time; return their answers."""
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
        """Return the source that opens the store in another process; skip the test if the backend has none."""
        source = self.process_source()
        if source is None:
            self.skipTest("this store cannot be shared by processes")
        return source

    def python(self, script: str, *arguments: str) -> subprocess.Popen[str]:
        """Start a Python process that runs `script`."""
        command = [sys.executable, "-c", script, *arguments]
        root = str(Path(__file__).parents[3])
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=root)

    def kill_while_writing(self, source: str, session_id: str, acknowledgements: int) -> int:
        """Kill a writing process after this many acknowledged appends; return the last `seq` that it reported as stored."""
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
        """Do nothing between two writes; override this to wait, for a backend that orders sessions by a coarse clock."""

    def _ts(self, session_id: str) -> float | None:
        return self.store.read_events(session_id)[0].ts
