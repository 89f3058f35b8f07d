"""The power is cut: unsynced pages are lost or arrive in any order, and no event that was on disk is missed or doubted."""

from __future__ import annotations

import random

from openagentic_sdk.errors import StorageError
from openagentic_sdk.events import AssistantMessage, Event, UserMessage
from openagentic_sdk.sessions.line import is_barrier
from openagentic_sdk.sessions.store import LOG_NAME, FileSessionStore
from openagentic_sdk.sessions.verify import verify_session
from openagentic_sdk.testing.faults import Step, Tape, after_power_cut

from .scenes import LARGE, SceneTest, bare

RUNS = 300 if LARGE else 12
CUTS_PER_RUN = 60
SIZES = (10, 200, 1500, 5000, 20_000)


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
        for seed in range(RUNS):
            with self.subTest(seed=seed):
                self.cut_one_run(random.Random(seed))

    def cut_one_run(self, rng: random.Random) -> None:
        """Record a run, then cut the power at random places of it, twice in a row."""
        durability = rng.choice(("flush", "barrier", "barrier", "fsync"))
        self.path.write_bytes(b"")
        steps, durable, events = self.record(rng, durability)
        for _ in range(CUTS_PER_RUN):
            cut = rng.randrange(len(steps) + 1)
            safe = max((seq for at, seq in durable if at <= cut), default=0)
            left = after_power_cut(b"", steps[:cut], rng)
            recovered = self.assert_recovers(left, events, safe)
            if rng.random() < 0.2:
                self.cut_again(rng, durability, recovered)

    def cut_again(self, rng: random.Random, durability: str, before: list[Event]) -> None:
        base = self.path.read_bytes()
        steps, durable, events = self.record(rng, durability)
        cut = rng.randrange(len(steps) + 1)
        safe = max((seq for at, seq in durable if at <= cut), default=len(before))
        self.assert_recovers(after_power_cut(base, steps[:cut], rng), [*before, *events], safe)

    def record(self, rng: random.Random, durability: str) -> tuple[list[Step], list[tuple[int, int]], list[Event]]:
        """Write some events; also returns at how many steps which `seq` was acknowledged as durable."""
        disk = FullDiskTape(rng)
        store = FileSessionStore(self.place, durability, clock=self.clock, disk=disk)
        durable: list[tuple[int, int]] = []
        events: list[Event] = []
        with store.open_writer("s") as writer:
            for number in range(rng.randrange(2, 14)):
                kind = UserMessage if rng.random() < 0.4 else AssistantMessage
                batch = [
                    kind(f"{number} {rng.randbytes(rng.choice(SIZES) // 2).hex()}")
                    for _ in range(rng.choice((1, 1, 3)))
                ]
                try:
                    stored = writer.append(batch)
                except StorageError:
                    continue
                events += stored
                if durability == "fsync" or (durability == "barrier" and any(map(is_barrier, batch))):
                    durable.append((len(disk.steps), writer.last_seq))
        return disk.steps, durable, events

    def assert_recovers(self, left: bytes, events: list[Event], safe: int) -> list[Event]:
        self.restore(left)
        with self.store.open_writer("s") as writer:
            writer.append([UserMessage("and on")])
        stored = self.store.read_events("s")
        whole = bare(stored)[:-1]
        self.assertEqual(whole, bare(events)[: len(whole)])
        self.assertGreaterEqual(len(whole), len(bare(event for event in events if event.seq <= safe)))
        self.assertEqual(verify_session(self.store, "s", decode=False).problems, ())
        return stored
