"""SIGKILL at random moments: no acknowledged event is lost or duplicated, and every session opens again.

The normal run kills 11 writers, the large size (OPENAGENTIC_TEST_LARGE=1) 10,000.
"""

from __future__ import annotations

import os
import random
import select
import signal
import unittest
from collections.abc import Sequence
from dataclasses import dataclass

from openagentic_sdk.events import Event, UserMessage
from openagentic_sdk.parts.record.verify_log import verify_session
from openagentic_sdk.sessions.store import LOG_NAME
from openagentic_sdk.testing.faults import KILLS as KILL_FAULTS
from openagentic_sdk.testing.faults import FaultyOS
from tests.size import LARGE, full_size, sized
from tests.waiting import pause

from .scenes import CountingDisk, InstantDisk, SceneTest, three_turns, without_stamps

KILLS = 10_000 if LARGE else 11
# Most kills hit small events; a few hit the large ones, which take longest to write.
PAYLOAD_BYTES = (*(200,) * 10, *(1500,) * 16, *(20_000,) * 8, *(200_000,) * 4, 2_000_000)
MAX_RUN_BYTES = 1 << 20
MAX_LOG_BYTES = 400_000


def payload(number: int, size: int) -> str:
    """A text determined by its number alone, in every process."""
    return f"{number} {size} ".ljust(size, chr(97 + number % 26))


@dataclass
class Writer:
    """A child process that appends events and acknowledges them over a pipe."""

    session_id: str
    pid: int
    pipe: int
    first: int
    size: int
    acknowledged: int = 0

    def read_acknowledgements(self) -> None:
        while chunk := os.read(self.pipe, 65536):
            self.acknowledged += len(chunk)


@unittest.skipUnless(hasattr(os, "fork"), "this system has no fork")
class KillTest(SceneTest):
    durability = "flush"
    medium = None

    def setUp(self) -> None:
        super().setUp()
        self.rng = random.Random(20_260)
        self.logs = 0
        self.counts: dict[str, int] = {}

    @full_size
    def test_killed_writers_lose_double_and_brick_nothing(self) -> None:
        """One to eight writers at a time, each repeatedly killed on a session of its own."""
        killed = 0
        sessions: list[str] = []
        while killed < KILLS:
            count = min(self.rng.choice((1, 1, 2, 8)), KILLS - killed)
            sessions = [self.usable_session(s) for s in sessions] + [
                self.new_session() for _ in range(count - len(sessions))
            ]
            writers = [self.start_writer(session_id) for session_id in sessions[:count]]
            self.kill_in_the_middle(writers)
            for writer in writers:
                self.check(writer)
            killed += count

    def new_session(self) -> str:
        self.logs += 1
        return self.store.create_session(session_id=f"log-{self.logs}")

    def usable_session(self, session_id: str) -> str:
        """The session, or a new one if its log has grown large: each check reads all of it."""
        if (self.store.session_dir(session_id) / LOG_NAME).stat().st_size < MAX_LOG_BYTES:
            return session_id
        self.store.delete_session(session_id)
        return self.new_session()

    def start_writer(self, session_id: str) -> Writer:
        size = self.rng.choice(PAYLOAD_BYTES)
        first = self.counts.get(session_id, 0)
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            self.append_until_killed(session_id, first, size, writing)
        os.close(writing)
        return Writer(session_id, pid, reading, first, size)

    def append_until_killed(self, session_id: str, first: int, size: int, pipe: int) -> None:
        try:
            with self.store.open_writer(session_id) as writer:
                for number in range(first, first + 2 + MAX_RUN_BYTES // size):
                    writer.append([UserMessage(payload(number, size))])
                    os.write(pipe, b".")
            signal.pause()
        finally:
            os._exit(1)

    def kill_in_the_middle(self, writers: Sequence[Writer]) -> None:
        for writer in writers:
            if self.rng.random() < 0.9:
                select.select([writer.pipe], [], [], 10)
        pause(self.rng.random() * 0.004, "the subject is a random moment in real time")
        for writer in writers:
            os.kill(writer.pid, signal.SIGKILL)
        for writer in writers:
            os.waitpid(writer.pid, 0)
            writer.read_acknowledgements()
            os.close(writer.pipe)

    def check(self, writer: Writer) -> None:
        events = self.store.read_events(writer.session_id)
        self.assert_numbered(events)
        self.assert_summary(writer)
        whole = without_stamps(events)
        self.assertGreaterEqual(len(whole), writer.first + writer.acknowledged)
        self.assertLessEqual(len(whole), writer.first + writer.acknowledged + 1)
        for number in range(writer.first, len(whole)):
            self.assertEqual(whole[number], UserMessage(payload(number, writer.size)))
        with self.store.open_writer(writer.session_id) as again:
            again.append([UserMessage(payload(len(whole), 20))])
        self.counts[writer.session_id] = len(whole) + 1
        report = verify_session(self.store, writer.session_id)
        self.assertEqual((report.problems, report.events), ((), again.last_seq))

    def assert_summary(self, writer: Writer) -> None:
        """Check that the summary is correct, and behind the log by at most the append during which the writer died."""
        disk = CountingDisk()
        row = self.make_store(disk=disk, read_only=True).read_summary(writer.session_id)
        self.assertEqual(row, self.store.fold_summary(writer.session_id))
        self.assertLess(disk.read_bytes, writer.size + 1000)

    def assert_numbered(self, events: Sequence[Event]) -> None:
        self.assertEqual([event.seq for event in events], list(range(1, len(events) + 1)))


@unittest.skipUnless(hasattr(os, "fork"), "this system has no fork")
class KillAtEveryOperationTest(SceneTest):
    """A three-turn tool session that is created, run and killed, once for each of its disk operations."""

    def test_a_kill_at_any_operation_loses_doubles_and_bricks_nothing(self) -> None:
        for fault in KILL_FAULTS if LARGE else ("kill middle",):
            at, status, step = 0, -1, sized(9, 5, 1)
            while status != 0:
                at += step
                self.store.delete_session("s")
                acknowledged, status = self.run_and_die(at, fault)
                with self.subTest(fault=fault, at=at):
                    self.check(acknowledged)
            self.assertGreater(at, 60)

    def run_and_die(self, at: int, fault: str) -> tuple[int, int]:
        """Return how many batches were acknowledged, and the wait status: 0 if the session finished."""
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            self.run_session(FaultyOS(at=at, fault=fault, disk=InstantDisk()), writing)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            acknowledged = len(pipe.read())
        return acknowledged, os.waitpid(pid, 0)[1]

    def run_session(self, disk: FaultyOS, pipe: int) -> None:
        try:
            store = self.make_store(disk=disk)
            store.create_session(session_id="s")
            with store.open_writer("s") as writer:
                for batch in three_turns():
                    writer.append(batch)
                    os.write(pipe, b".")
            os._exit(0)
        finally:
            os._exit(1)

    def check(self, acknowledged: int) -> None:
        if not self.store.session_exists("s"):
            self.assertEqual(acknowledged, 0)
            self.store.create_session(session_id="s")
        expected = [event for batch in three_turns() for event in batch]
        safe = sum(len(batch) for batch in three_turns()[:acknowledged])
        whole = without_stamps(self.store.read_events("s"))
        self.assertEqual(self.store.read_summary("s"), self.store.fold_summary("s"))
        self.assertGreaterEqual(len(whole), safe)
        self.assertEqual(whole, expected[: len(whole)])
        self.assert_goes_on(whole)
