"""Databases for fleet tests, and workers in separate processes."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import unittest
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from openagentic_sdk.events import Result, ToolResult, ToolStarted
from openagentic_sdk.fleet import Fleet, FleetRun
from openagentic_sdk.sessions.stores.locate import open_store
from tests.pythons import ROOT, Python
from tests.size import IN_MEMORY
from tests.stores.servers import own_postgres_schema
from tests.waiting import until

from .payments import FOLDER, OVER, agents

T = TypeVar("T")
# Upper limits, reached only on failure.
LIMIT_S = 120.0


def postgres_url() -> str:
    return os.environ.get("OPENAGENTIC_TEST_POSTGRES_URL", "")


class FleetTest(unittest.TestCase):
    """A fleet with its own database: SQLite, or the Postgres server that a subclass names."""

    lease_s = 2.0  # for tests that wait until one expires
    long_lease_s = 60.0  # for tests in which none may expire, however busy the machine

    def setUp(self) -> None:
        self.folder = tempfile.mkdtemp(dir=IN_MEMORY)
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        before = os.environ.get(FOLDER)
        os.environ[FOLDER] = self.folder
        self.addCleanup(lambda: os.environ.pop(FOLDER) if before is None else os.environ.update({FOLDER: before}))
        self.url = self.make_url()
        self.store = open_store(self.url)
        self.addCleanup(self.store.close)
        self.fleet = Fleet(self.store, agents())
        self.addCleanup(self.fleet.close)
        OVER.clear()
        self.addCleanup(OVER.set)

    def make_url(self) -> str:
        return f"sqlite:{self.folder}/fleet.db"

    def run_async(self, work: Awaitable[T]) -> T:
        async def awaited() -> T:
            return await work

        return asyncio.run(awaited())

    # --- workers -------------------------------------------------------------------------------------------------------

    @contextmanager
    def worker(self, *flags: str, url: str | None = None) -> Iterator[Python]:
        """`openagentic-sdk fleet work` in a separate process, which is killed at the end."""
        command = ["fleet", "work", "--agents", "tests.fleet.payments:agents", "--store", url or self.url]
        arguments = ("-m", "openagentic_sdk", *command, "--lease", str(self.lease_s), *flags)
        with Python(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as worker:
            try:
                yield worker
            finally:
                worker.kill()

    def status(self, run_id: int) -> FleetRun:
        return self.fleet.queue.find(run_id)

    def pay(self, key: str, seconds: float = 0.0, *, agent: str = "payer", max_attempts: int = 50) -> int:
        work = self.fleet.enqueue(agent, f"pay {key} {seconds}", request_id=key, max_attempts=max_attempts)
        return self.run_async(work)

    def until(self, holds: Callable[[], object], what: str = "") -> None:
        until(holds, what, LIMIT_S)

    def until_over(self, *run_ids: int) -> None:
        self.until(lambda: all(self.status(run_id).is_over for run_id in run_ids), "all runs are over")

    def stop_at(self, point: str, key: str) -> None:
        Path(self.folder, f"{point} {key}").touch()

    def until_stopped(self, worker: Python) -> None:
        stat = Path(f"/proc/{worker.pid}/stat")
        self.until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "the worker stopped itself")

    def stop_at_will(self, worker: Python) -> None:
        """Stop a worker at any point outside SQLite transactions: inside one it would block all other workers. It may be
        the first in the queue of writers, which the others skip after a while.
        """
        with contextlib.ExitStack() as stack:
            if self.url.startswith("sqlite:"):
                db = sqlite3.connect(self.url.removeprefix("sqlite:"), timeout=LIMIT_S, isolation_level=None)
                stack.enter_context(contextlib.closing(db)).execute("BEGIN IMMEDIATE")
            worker.send_signal(signal.SIGSTOP)
            self.until_stopped(worker)

    def expire(self, run_id: int) -> None:
        """Let the lease of a dead worker expire now. Unlike a short lease, this cannot affect a worker that is only slow."""
        self._set_time(run_id, "lease_until", "running")

    def expire_all_of(self, worker: Python) -> None:
        """Let all leases of a worker expire now that is dead or stopped."""
        tables = self.fleet.queue.tables
        where = "state = 'running' AND owner LIKE %s"
        command = f"UPDATE openagentic_runs SET lease_until = {tables.now} - 1 WHERE {where} RETURNING id"
        tables.change(lambda execute: execute(command, (f"%:{worker.pid}:%",)))

    def make_due(self, run_id: int) -> None:
        """End the delay of a queued run now."""
        self._set_time(run_id, "run_at", "queued")

    def _set_time(self, run_id: int, column: str, state: str) -> None:
        tables = self.fleet.queue.tables
        command = f"UPDATE openagentic_runs SET {column} = {tables.now} - 1 WHERE id = %s AND state = %s RETURNING id"
        self.assertTrue(tables.change(lambda execute: execute(command, (run_id, state))), self.status(run_id))

    # --- invariants ----------------------------------------------------------------------------------------------------

    def payments(self) -> collections.Counter[str]:
        try:
            return collections.Counter(line.split()[0] for line in Path(self.folder, "paid").read_text().splitlines())
        except FileNotFoundError:
            return collections.Counter()

    def check_ended(self, run_id: int, key: str) -> str:
        """Check that the run has at most one start, one result of its call, and one end; return the outcome of its call."""
        run = self.status(run_id)
        self.assertEqual((run.state, run.stop_reason), ("ended", "end"), run)
        events = self.store.read_events(run.session)
        self.assertEqual([event.seq for event in events], list(range(1, len(events) + 1)))
        starts = [event for event in events if isinstance(event, ToolStarted)]
        results = [event for event in events if isinstance(event, ToolResult)]
        self.assertEqual((len(starts), len(results)), (1, 1), run)
        last = events[-1]
        assert isinstance(last, Result)
        self.assertEqual(last.stop_reason, "end")
        paid, outcome = self.payments()[key], results[0].outcome
        # A worker that is asked to end, as Celery asks its children, cancels the call that it cuts off.
        cut_off = [(word, times) for word in ("unknown", "cancelled") for times in (0, 1)]
        self.assertIn((outcome, paid), [("ok", 1), *cut_off], run)
        return str(outcome)


class PostgresFleetTest(FleetTest):
    """The same on the Postgres server that OPENAGENTIC_TEST_POSTGRES_URL names."""

    def make_url(self) -> str:
        return own_postgres_schema(self, postgres_url())


def end(worker: Python, number: int = signal.SIGTERM) -> int:
    """Send a signal, wait for the process to exit, and return its exit code."""
    worker.send_signal(number)
    return worker.wait()
