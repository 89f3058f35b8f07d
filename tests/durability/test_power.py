"""The power is cut: unsynced pages are lost or arrive in any order, and no event that was on disk is missed or doubted."""

from __future__ import annotations

import random
from dataclasses import dataclass

from openagentic_sdk.errors import StorageError
from openagentic_sdk.events import AssistantMessage, Event, UserMessage
from openagentic_sdk.sessions.log.file import LogWriter
from openagentic_sdk.sessions.log.line import is_barrier
from openagentic_sdk.sessions.log.verify import verify_session
from openagentic_sdk.sessions.store import LOG_NAME, FileSessionStore
from openagentic_sdk.testing.faults import Step, Tape, after_power_cut
from tests.size import LARGE

from .scenes import SceneTest, bare

# These two find each breakage of `sabotages` that is named for this test.
SEEDS = range(300) if LARGE else (4, 10)
CUTS_PER_RUN = 60 if LARGE else 40
SIZES = (10, 200, 1500, 5000, 20_000)


@dataclass(frozen=True)
class Append:
    """A batch that was appended between two steps of a tape."""

    batch: list[Event]
    begin: int
    end: int
    acknowledged: bool
    durable: bool


@dataclass(frozen=True)
class Recording:
    """What happened to the file, and what was appended meanwhile."""

    steps: list[Step]
    appends: list[Append]


class FullDiskTape(Tape):
    """A recording disk on which now and then half a line is all that fits."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(LOG_NAME)
        self._rng = rng

    def write(self, fd: int, data: bytes | memoryview) -> int:
        if fd in self._recorded and self._rng.random() < 0.05:
            return super().write(fd, data[: self._rng.randrange(len(data))])
        return super().write(fd, data)


class PowerCutTest(SceneTest):
    def test_any_power_cut_leaves_a_session_with_all_that_was_durable(self) -> None:
        for seed in SEEDS:
            with self.subTest(seed=seed):
                self.cut_one_run(random.Random(seed))

    def cut_one_run(self, rng: random.Random) -> None:
        """Record a run, then cut the power at random places of it, sometimes twice in a row."""
        durability = rng.choice(("flush", "barrier", "barrier", "fsync"))
        self.restore(b"")
        tape = self.record(rng, durability)
        for _ in range(CUTS_PER_RUN):
            before = self.cut(rng, tape, b"", [])
            if rng.random() < 0.2:
                base = self.path.read_bytes()
                self.cut(rng, self.record(rng, durability), base, before)

    def cut(self, rng: random.Random, tape: Recording, base: bytes, before: list[Event]) -> list[Event]:
        """Cut the power somewhere in what was recorded on top of a log that safely held `before`."""
        cut = rng.randrange(len(tape.steps) + 1)
        written, safe = [*before], len(before)
        for append in tape.appends:
            if append.begin <= cut and (append.acknowledged or cut < append.end):
                written += append.batch
                safe = len(written) if append.durable and append.end <= cut else safe
        self.restore(after_power_cut(base, tape.steps[:cut], rng))
        return self.assert_recovers(written, safe)

    def record(self, rng: random.Random, durability: str) -> Recording:
        disk = FullDiskTape(rng)
        store = FileSessionStore(self.place, durability, clock=self.clock, disk=disk)
        appends: list[Append] = []
        with store.open_writer("s") as writer:
            for number in range(rng.randrange(2, 14)):
                kind = UserMessage if rng.random() < 0.4 else AssistantMessage
                text = f"{number} {rng.randbytes(rng.choice(SIZES) // 2).hex()}"
                batch: list[Event] = [kind(f"{text} {part}") for part in range(rng.choice((1, 1, 3)))]
                begin = len(disk.steps)
                acknowledged = self.is_taken(writer, batch)
                durable = durability == "fsync" or (durability == "barrier" and any(map(is_barrier, batch)))
                appends.append(Append(batch, begin, len(disk.steps), acknowledged, acknowledged and durable))
        return Recording(disk.steps, appends)

    def is_taken(self, writer: LogWriter, batch: list[Event]) -> bool:
        try:
            writer.append(batch)
        except StorageError:
            return False
        return True

    def assert_recovers(self, written: list[Event], safe: int) -> list[Event]:
        with self.store.open_writer("s") as writer:
            writer.append([UserMessage("and on")])
        self.assertEqual(self.store.read_summary("s"), self.store.fold_summary("s"))
        stored = bare(self.store.read_events("s"))
        whole = stored[:-1]
        self.assertEqual(whole, written[: len(whole)])
        self.assertGreaterEqual(len(whole), safe)
        self.assertEqual(verify_session(self.store, "s").problems, ())
        return stored
