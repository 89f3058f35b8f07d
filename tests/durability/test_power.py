"""Power cuts: unsynced pages are lost or arrive in any order, but no event on disk is lost or reported as damaged."""

from __future__ import annotations

import random
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from openagentic_sdk.errors import StorageError
from openagentic_sdk.events import AssistantMessage, Event, UserMessage
from openagentic_sdk.parts.record.verify_log import verify_session
from openagentic_sdk.sessions.log.line import is_barrier
from openagentic_sdk.sessions.log.unsynced import DISTRUSTED, MARK
from openagentic_sdk.sessions.store import LOG_NAME, FileSessionStore
from tests.size import LARGE, full_size

from .scenes import SceneTest, without_stamps
from .tape import Tape, TapeStep, after_power_cut

# These two seeds detect each breakage in `sabotages` that names this test.
SEEDS = range(300) if LARGE else (4, 37)
CUTS_PER_RUN = 60 if LARGE else 40
SIZES = (10, 200, 1500, 5000, 20_000)


@dataclass(frozen=True)
class Append:
    """A batch that was appended between two steps of a tape: whether the log shows it, and whether it must survive."""

    batch: list[Event]
    begin: int
    end: int
    shown: bool
    durable: bool


@dataclass(frozen=True)
class Recording:
    """The steps on the file, and the appends made meanwhile."""

    steps: list[TapeStep]
    appends: list[Append]


class FullDiskTape(Tape):
    """A recording disk that occasionally has room for only half a line."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(LOG_NAME)
        self._rng = rng

    def write(self, fd: int, data: bytes | memoryview) -> int:
        if fd in self._recorded and self._rng.random() < 0.05:
            return super().write(fd, data[: self._rng.randrange(len(data))])
        return super().write(fd, data)


class LyingTape(FullDiskTape):
    """A full-disk tape that also loses data in some syncs and reports success the next time."""

    def is_failing(self) -> bool:
        return self._rng.random() < 0.15


class PowerCutTest(SceneTest):
    disk: type[FullDiskTape] = FullDiskTape
    seeds = SEEDS

    @full_size
    def test_any_power_cut_leaves_a_session_with_all_that_was_durable(self) -> None:
        for seed in self.seeds:
            with self.subTest(seed=seed):
                self.cut_one_run(random.Random(seed))

    def cut_one_run(self, rng: random.Random) -> None:
        """Record a run, then cut the power at random steps of it, sometimes twice in a row."""
        durability = rng.choice(("flush", "barrier", "barrier", "fsync"))
        self.restore(b"")
        tape = self.record(rng, durability)
        for _ in range(CUTS_PER_RUN):
            before = self.cut(rng, tape, b"", [])
            if rng.random() < 0.2:
                base = self.path.read_bytes()
                self.cut(rng, self.record(rng, durability), base, before)

    def cut(self, rng: random.Random, tape: Recording, base: bytes, before: list[Event]) -> list[Event]:
        """Cut the power at a random step of a recording that started from a log with `before` safely on disk."""
        cut = rng.randrange(len(tape.steps) + 1)
        written, safe, taken_back = [*before], len(before), list[Event]()
        for append in tape.appends:
            if append.begin > cut:
                break
            if append.shown or cut < append.end:
                written += append.batch
                safe = len(written) if append.durable and append.end <= cut else safe
            # A withdrawn batch may reappear until the log is opened again, unless its withdrawal is on disk.
            taken_back = [] if append.shown else append.batch
        self.restore(after_power_cut(base, tape.steps[:cut], rng))
        DISTRUSTED.clear()
        if rng.random() < 0.3:
            # This marker may or may not have reached the disk.
            self.path.with_name(f"{LOG_NAME}{MARK}{rng.randrange(50_000)}").touch()
        return self.assert_recovers(written + taken_back, safe)

    def record(self, rng: random.Random, durability: str) -> Recording:
        disk = self.disk(rng)
        store = FileSessionStore(self.place, durability, clock=self.clock, disk=disk)
        appends: list[Append] = []
        with ExitStack() as opened:
            writer = None
            for number in range(rng.randrange(2, 14)):
                kind = UserMessage if rng.random() < 0.4 else AssistantMessage
                text = f"{number} {rng.randbytes(rng.choice(SIZES) // 2).hex()}"
                batch: list[Event] = [kind(f"{text} {part}") for part in range(rng.choice((1, 1, 3)))]
                while writer is None:
                    with suppress(StorageError):
                        writer = opened.enter_context(store.open_writer("s"))
                begin = len(disk.steps)
                try:
                    writer.append(batch)
                    acknowledged = True
                except StorageError as error:
                    acknowledged = False
                    if not error.retryable:
                        opened.close()
                        writer = None
                        if rng.random() < 0.5:
                            DISTRUSTED.clear()  # simulate a new process, which has no memory of failed syncs
                durable = durability == "fsync" or (durability == "barrier" and any(map(is_barrier, batch)))
                shown = acknowledged or f'"{text} 0"'.encode() in self.path.read_bytes()
                appends.append(Append(batch, begin, len(disk.steps), shown, acknowledged and durable))
        return Recording(disk.steps, appends)

    def assert_recovers(self, written: list[Event], safe: int) -> list[Event]:
        with self.store.open_writer("s") as writer:
            writer.append([UserMessage("and on")])
        self.assertEqual(self.store.read_summary("s"), self.store.fold_summary("s"))
        stored = without_stamps(self.store.read_events("s"))
        whole = stored[:-1]
        self.assertEqual(whole, written[: len(whole)])
        self.assertGreaterEqual(len(whole), safe)
        self.assertEqual(verify_session(self.store, "s").problems, ())
        return stored


class FailedSyncTest(PowerCutTest):
    """Power cuts on a disk where a failed sync drops pages, reads still return them, and the next sync succeeds."""

    disk = LyingTape
    seeds = range(150) if LARGE else (0, 9)
