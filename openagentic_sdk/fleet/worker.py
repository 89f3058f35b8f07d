"""A worker: claims runs that are due, continues them until they are over or parked, and hands them back when it stops."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any

from ..errors import FleetError, StorageError
from ..ground.backoff import Backoff
from ..ground.checks import TEXTS, Check, above_0, check_settings, is_a, number
from ..ground.system import require_threads
from ..ground.threads import KeptThreads, running_loop, settled
from ..kernel.recorder import off_loop
from .execute import carry_out
from .fleet import Fleet
from .lease import Heart, Lease
from .queue import CHANNEL, PATIENCE_S, Claimer, Queue
from .record import FORMAT, FleetRun, RunOutcome
from .standing import is_answered

LEASE_S = 15.0
# Less than the 30 s after which Kubernetes kills a terminating pod by default (`terminationGracePeriodSeconds`).
GRACE_S = 25.0
SLOTS = 4
# How often a worker with a free slot polls for due and lost runs if it gets no notification.
POLL_S = 0.6
_POLLS, _CLAIMS = Backoff(POLL_S, POLL_S, jitter=0.3), Backoff(POLL_S / 2, POLL_S / 2, jitter=0.6)
_AFTER_FAILURES = Backoff(0.2, 5.0, jitter=0.5)
# How often a worker checks for answered runs and for runs to cancel; more often after a notification.
TICK_S, TOLD_TICK_S = 1.0, 0.2

# Called with each run when it starts and ends here: (the run, its state in words).
Report = Callable[[FleetRun, str], None]


_SETTINGS: Mapping[str, Check] = {
    "fleet": is_a(Fleet, "a Fleet(...)"),
    "slots": number(1, whole=True),
    "queues": TEXTS,
    "lease_s": above_0,
    "grace_s": number(0, most=inf),
}


class Worker:
    """A worker that executes runs of a fleet in this process, up to `slots` at once, from `queues` (all queues if empty).

    `lease_s` is how long a run is left alone after its worker stops responding: more than the longest pause of a process
    and of the database. `grace_s` is how long a drain lets steps finish. `complain` is called with the reason when the
    database becomes unusable; the worker keeps trying.
    """

    def __init__(
        self,
        fleet: Fleet,
        *,
        slots: int = SLOTS,
        queues: Sequence[str] = (),
        lease_s: float = LEASE_S,
        grace_s: float = GRACE_S,
        report: Report = lambda run, what: None,
        complain: Callable[[str], None] = lambda problem: None,
    ) -> None:
        settings = {"fleet": fleet, "slots": slots, "queues": queues, "lease_s": lease_s, "grace_s": grace_s}
        check_settings(settings, _SETTINGS)
        self.name = _worker_name()
        self._fleet = fleet
        self._slots = slots
        self._grace_s = grace_s
        self._report = report
        self._complain = complain
        self._who = Claimer(self.name, lease_s, tuple(fleet.agents), tuple(queues))
        self._heart = Heart(fleet.queue, lease_s)
        self._draining = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()
        self._ticked = float("-inf")
        self._was_told = False
        self._failure: BaseException | None = None

    @property
    def is_draining(self) -> bool:
        """Whether the worker has stopped claiming runs."""
        return self._draining.is_set()

    def drain(self) -> None:
        """Stop claiming runs, and hand back those that do not end within `grace_s`; then `work` returns."""
        self._draining.set()

    async def work(self, *, until_idle: bool = False) -> None:
        """Execute runs until `drain`, or with `until_idle` until no run is due. On cancellation, hand back runs first."""
        running_loop("a worker")
        require_threads("a worker")
        threads = KeptThreads()  # for the queue's many short calls
        threads.use()
        news: asyncio.Future[bool] | None = None
        drains = asyncio.ensure_future(self._draining.wait())
        failures = 0
        try:
            # Workers that start together must not all query the database together.
            await self._pause(random.uniform(0.0, 0.02))
            while not self._draining.is_set():
                try:
                    await self._tick()
                    was_idle = not self._running
                    claimed = await self._claim() if len(self._running) < self._slots else None
                    failures = 0
                except StorageError as error:
                    failures += 1
                    if failures == 1:
                        self._complain(str(error))
                    await self._pause(_AFTER_FAILURES.wait_s(failures))
                    continue
                if claimed is not None:
                    continue
                if until_idle and not self._running:
                    if was_idle:
                        return
                    continue  # a run ended during the claim, so one that had to wait for it may be due now
                if news is None or news.done():
                    news = asyncio.ensure_future(self._wait_for_news(_POLLS.wait_s(1)))
                wakers: set[asyncio.Future[Any]] = {news, drains, *self._running}
                await asyncio.wait(wakers, return_when=asyncio.FIRST_COMPLETED)
                self._was_told = self._was_told or (news.done() and news.result())
        finally:
            self._draining.set()
            drains.cancel()
            # The runs see that the worker drains, and hand themselves back; `wait` does not cancel them.
            if self._running:
                await asyncio.wait(self._running)
            if news is not None:
                news.cancel()
            threads.close()
        if self._failure is not None:
            raise self._failure

    async def _wait_for_news(self, poll_s: float) -> bool:
        try:
            return bool(await off_loop(True, self._fleet.queue.tables.wait, CHANNEL, poll_s))
        except StorageError:  # the next claim reports it
            await self._pause(poll_s)
            return False

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._draining.wait()
        except TimeoutError:
            return

    async def _claim(self) -> FleetRun | None:
        now = self._fleet.queue.tables.lease_now
        # Before the claim, so that this process never considers its lease valid for longer than the database does.
        asked_at = now()
        run = await _claim(self._fleet.queue, self._who)
        if run is not None:
            task = asyncio.create_task(self._carry_out(Lease(run, self._who.lease_s, asked_at, now)))
            self._running.add(task)
            task.add_done_callback(self._see_end)
        return run

    def _see_end(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._failure = task.exception()
            self.drain()

    async def _carry_out(self, lease: Lease) -> None:
        self._report(lease.run, "taken over" if lease.run.lost_owner else "running")
        self._heart.hold(lease)
        try:
            outcome = await carry_out(self._fleet, lease, self._draining, self._grace_s)
        finally:
            self._heart.drop(lease)
        self._report(lease.run, _words(outcome))

    async def _tick(self) -> None:
        """Do the periodic work if it is due: fire schedules, wake answered runs, cancel this worker's runs on request."""
        if time.monotonic() - self._ticked < (TOLD_TICK_S if self._was_told else TICK_S):
            return
        self._ticked, self._was_told = time.monotonic(), False
        queue = self._fleet.queue
        await off_loop(True, self._fleet.schedules.fire_due)
        await off_loop(True, queue.wake_answered, partial(is_answered, self._fleet.store))
        if leases := {lease.run.id: lease for lease in self._heart.leases()}:
            for run_id in await off_loop(True, queue.cancelled, self.name):
                if run_id in leases:
                    leases[run_id].cancel()


async def _claim(queue: Queue, who: Claimer, run_id: int | None = None) -> FleetRun | None:
    """Claim a run; return it, or None. On cancellation, first hand back a run that the database has granted meanwhile."""
    claiming: asyncio.Future[FleetRun | None]
    claiming, cancelled = await settled(off_loop(True, partial(queue.claim, who, run_id=run_id)))
    if cancelled is None:
        return claiming.result()
    if claiming.exception() is None and (run := claiming.result()) is not None:
        leave = partial(queue.leave, run, RunOutcome("queued"), patience_s=PATIENCE_S)
        with suppress(StorageError):  # its lease expires
            (await settled(off_loop(True, leave)))[0].result()
    raise cancelled


def _words(outcome: RunOutcome | None) -> str:
    if outcome is None:
        return "lost"
    state = "handed back" if outcome.state == "queued" else outcome.state
    return f"{state}: {outcome.error}" if outcome.error else state


def _worker_name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}:{os.urandom(4).hex()}"


async def execute_run(fleet: Fleet, run_id: int, *, lease_s: float = LEASE_S, grace_s: float = 0.0) -> FleetRun:
    """Continue one run until it is over or parked, here or in another process; return it as it is then.

    For other schedulers, which may call this repeatedly and concurrently: the run is executed once. `lease_s` and `grace_s`
    are as in `Worker`. On cancellation, the run is handed back first. Raises `RunNotFoundError`, `AgentNotFoundError` and
    `FleetError`, and `StorageError` if the database stays unreachable: then call it again.
    """
    who = Claimer(_worker_name(), lease_s, tuple(fleet.agents))
    heart = Heart(fleet.queue, lease_s)
    threads = KeptThreads()  # as in `Worker.work`
    threads.use()
    try:
        while True:
            run = await fleet.status(run_id)
            if run.format > FORMAT:
                raise FleetError(
                    f"run {run_id} has format {run.format}, and this version reads up to {FORMAT}: upgrade openagentic-sdk",
                    run_id=run_id,
                )
            # Without this check, which raises, the loop would not end: no claim returns a run of an agent unknown here.
            fleet.agents[run.agent]
            if run.is_parked:
                await off_loop(True, fleet.queue.wake_answered, partial(is_answered, fleet.store))
                run = await fleet.status(run_id)
            if (
                run.is_over
                or run.state == "waiting"
                or (run.is_parked and run.run_at > await off_loop(True, fleet.queue.now))
            ):
                return run
            asked_at = fleet.queue.tables.lease_now()
            claimed = await _claim(fleet.queue, who, run_id)
            if claimed is None:
                await asyncio.sleep(_CLAIMS.wait_s(1))
                continue
            lease = Lease(claimed, lease_s, asked_at, fleet.queue.tables.lease_now)
            heart.hold(lease)
            try:
                await carry_out(fleet, lease, asyncio.Event(), grace_s)
            finally:
                heart.drop(lease)
    finally:
        threads.close()
