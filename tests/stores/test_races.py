"""All operations on whole sessions, run concurrently on the same few sessions, leave them intact."""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
import unittest
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from openagentic_sdk.errors import OptionsError, SessionError
from openagentic_sdk.events import Event, ToolResult, UserMessage
from openagentic_sdk.parts.record import archive, lifecycle
from openagentic_sdk.sessions.base import SessionStore
from openagentic_sdk.sessions.folds.summary import fold_session_summary, start_summary
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.sessions.stores.locate import open_store

from ..size import LARGE, full_size
from .test_sharing import shared_urls

NAMES = ("a", "b", "c")
SECONDS = 8.0 if LARGE else 0.4
# Errors that a race may raise for the caller; anything else is a defect.
TOLD = (SessionError, OptionsError, FileExistsError)


class Racing:
    """A participant that performs random operations on sessions through its own store object."""

    def __init__(self, url: str, seed: int, place: Path) -> None:
        self.store, self.chance, self.place, self.seed = open_store(url), random.Random(seed), place, seed
        self.elsewhere = MemorySessionStore()
        self.count = 0
        self.archives: list[Path] = []

    def run(self, end: float) -> None:
        works: list[Callable[[str], object]] = [
            self.create,
            self.write,
            self.write,
            self.append,
            self.delete,
            self.fork,
        ]
        works += [self.archive, self.archive_and_remove, self.export, self.tag, self.change, self.rewind, self.read]
        while time.monotonic() < end:
            self.count += 1
            with suppress(*TOLD):
                self.chance.choice(works)(self.chance.choice(NAMES))

    @property
    def fresh(self) -> str:
        return f"new-{self.seed}-{self.count}"

    def batch(self) -> list[Event]:
        return [UserMessage(f"{self.fresh} {number}") for number in range(1, self.chance.randrange(2, 5))]

    def create(self, name: str) -> None:
        self.store.create_session(session_id=name, metadata={"cwd": "/w"})

    def write(self, name: str) -> None:
        with self.store.open_writer(name) as writer:
            for _ in range(3):
                writer.append(self.batch())
                writer.append([ToolResult("c")])

    def append(self, name: str) -> None:
        self.store.append_events(name, self.batch())

    def delete(self, name: str) -> None:
        self.store.delete_session(name)

    def fork(self, name: str) -> None:
        self.store.put_blob(name, b"blob")
        lifecycle.fork_session(self.store, name, session_id=self.fresh)
        assert self.store.list_blobs(self.fresh) in (
            [],
            ["fa2c8cc4f28176bbeed4b736df569a34c79cd3723e9ec42f9674b4d46ac6b8b8"],
        )

    def archive(self, name: str) -> None:
        path = self.place / f"{self.fresh}.zip"
        archive.archive_session(self.store, name, path)
        self.archives.append(path)

    def archive_and_remove(self, name: str) -> None:
        path = self.place / f"{self.fresh}.zip"
        try:
            archive.archive_session(self.store, name, path, remove=True)
        finally:
            if path.exists():
                self.archives.append(path)

    def export(self, name: str) -> None:
        for known in lifecycle.export_session(self.store, self.elsewhere, name):
            check(self.elsewhere, known)
            self.elsewhere.delete_session(known)

    def tag(self, name: str) -> None:
        lifecycle.tag_session(self.store, name, add=[str(self.count % 5)])

    def change(self, name: str) -> None:
        self.store.update_metadata(name, {"cwd": f"/w{self.count % 3}"})

    def rewind(self, name: str) -> None:
        lifecycle.rewind_session(self.store, name, turns=1)

    def read(self, name: str) -> None:
        seqs = [event.seq for event in self.store.read_events(name)]
        assert seqs == list(range(1, len(seqs) + 1)), seqs


def check(store: SessionStore, name: str) -> None:
    """Check that the log has no gap and that the row matches it."""
    events, known = store.read_events(name), store.read_metadata(name)
    assert [event.seq for event in events] == list(range(1, len(events) + 1)), name
    start = start_summary(name, known["created_at"], known["metadata"])
    folded, row = fold_session_summary(start, events), store.read_summary(name)
    assert row == folded, (row, folded)


class RaceTest(unittest.TestCase):
    @full_size
    def test_whatever_is_done_to_sessions_at_once_leaves_them_whole_or_absent(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        urls = [*shared_urls(self), f"file:{place.name}/files?durability=flush"]
        for url in urls:
            with self.subTest(url.partition(":")[0]):
                self.race(url, Path(place.name))

    def race(self, url: str, place: Path) -> None:
        racing = [Racing(url, seed, place) for seed in range(4)]
        failures: list[BaseException] = []
        end = time.monotonic() + SECONDS

        def run(one: Racing) -> None:
            try:
                one.run(end)
            except BaseException as error:  # noqa: BLE001 - an error of a thread must reach the test
                failures.append(error)

        threads = [threading.Thread(target=run, args=(one,)) for one in racing]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        store = racing[0].store
        names = store.list_sessions()
        for name in names:
            check(store, name)
        self.assertEqual(sorted(row.id for row in store.list_session_summaries(include_children=True)), sorted(names))
        for path in [path for one in racing for path in one.archives]:
            archive.check_archive(path)
            path.unlink()
        for one in racing:
            one.store.close()
        if LARGE:
            done = sum(one.count for one in racing)
            print(f"\n{url.partition(':')[0]}: {done} calls, {len(names)} sessions are left", file=sys.stderr)
