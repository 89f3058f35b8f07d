"""The lease that lets this process continue a run, and the thread that renews it.

A lease decides which worker should try. It is counted from just before it is requested, on a clock that also runs while
the process is stopped, and while this machine sleeps if the database is on another (`Tables.lease_now`). Once the lease has
expired, this process has lost the run permanently, whatever the database returns later: nothing more is started or written.
If two processes both believe that they own a run, the session's epoch decides which may write.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from ..errors import RunLostError, SessionError, StorageError
from ..ground.backoff import Backoff
from ..ground.system import start_daemon
from .queue import Queue
from .record import FleetRun

# Heartbeats per lease; after a failed one, the next comes sooner.
BEATS, BEATS_AFTER_FAILURE = 3, 10
# The fraction of a lease that is reserved for stopping the run.
MARGIN = 0.1


class Lease:
    """This process's right to continue one run. `changed` is set when the lease is lost or the run is to be cancelled.

    `asked_at` is the time, on the clock `now`, just before the lease was requested.
    """

    def __init__(self, run: FleetRun, lease_s: float, asked_at: float, now: Callable[[], float]) -> None:
        self.run = run
        self.is_cancelled = run.is_cancelled
        self.changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._now = now
        self._is_lost = False
        self._until = asked_at + lease_s * (1 - MARGIN)

    @property
    def left_s(self) -> float:
        """The seconds for which this process may continue the run; 0 once the lease is lost."""
        left_s = self._until - self._now()
        self._is_lost = self._is_lost or left_s <= 0
        return 0.0 if self._is_lost else left_s

    @property
    def is_lost(self) -> bool:
        """Whether this process may no longer continue the run."""
        return self.left_s <= 0

    def check(self) -> None:
        """Raise `RunLostError` if this process may no longer continue the run."""
        if self.is_lost:
            raise RunLostError(self.run.id)

    def renew(self, lease_s: float, asked_at: float) -> None:
        """Extend the lease until shortly before `lease_s` seconds after `asked_at`, unless it was lost meanwhile."""
        if not self.is_lost:
            self._until = asked_at + lease_s * (1 - MARGIN)

    def lose(self) -> None:
        """Mark the lease as lost, because it has expired or another worker owns the run."""
        self._is_lost = True
        self._tell()

    def cancel(self) -> None:
        """Request the cancellation of the run in this process."""
        if not self.is_cancelled:
            self.is_cancelled = True
            self._tell()

    def _tell(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self.changed.set)
        except RuntimeError:
            return  # the event loop has ended, and the run with it


class Heart:
    """The renewal of a process's leases, in a thread, so that neither a busy event loop nor a long tool delays it."""

    def __init__(self, queue: Queue, lease_s: float) -> None:
        self.lease_s = lease_s
        self._queue = queue
        self._changed = threading.Condition()
        self._leases: dict[int, Lease] = {}
        self._running = False

    def hold(self, lease: Lease) -> None:
        """Start renewing this lease. Raises `StorageError` if the thread for it cannot be started."""
        with self._changed:
            self._leases[lease.run.id] = lease
            if not self._running:
                try:
                    start_daemon(self._run, "openagentic-fleet-lease")
                except StorageError:
                    del self._leases[lease.run.id]
                    raise
                self._running = True

    def drop(self, lease: Lease) -> None:
        """Stop renewing this lease."""
        with self._changed:
            if self._leases.get(lease.run.id) is lease:
                del self._leases[lease.run.id]
            self._changed.notify_all()

    def leases(self) -> list[Lease]:
        """The leases that are being renewed."""
        with self._changed:
            return list(self._leases.values())

    def _run(self) -> None:
        wait_s = self.lease_s / BEATS
        while True:
            with self._changed:
                self._changed.wait_for(lambda: not self._leases, wait_s)
                if not self._leases:
                    self._running = False
                    return
                leases = list(self._leases.values())
            has_beaten = self._beat(leases)
            soon_s = self.lease_s / BEATS_AFTER_FAILURE
            wait_s = self.lease_s / BEATS if has_beaten else Backoff(soon_s, soon_s, jitter=0.5).wait_s(1)

    def _beat(self, leases: list[Lease]) -> bool:
        for lost_lease in [lease for lease in leases if lease.is_lost]:
            self.drop(lost_lease)
            lost_lease.lose()
        mine = {lease.run.id: lease for lease in leases if not lease.is_lost}
        if not mine:
            return True
        # No longer than the shortest lease: once it has expired, its run must stop, whatever the database answers.
        patience_s = min(self.lease_s / BEATS, *(max(0.05, lease.left_s) for lease in mine.values()))
        asked_at = self._queue.tables.lease_now()
        try:
            flags = self._queue.beat(
                {run_id: lease.run.fence for run_id, lease in mine.items()}, self.lease_s, patience_s
            )
        except SessionError:
            return False  # the database is unreachable: the leases expire unless it returns in time
        except Exception:  # noqa: BLE001 - if this thread ended silently, every run would be executed twice
            return False
        for run_id, lease in mine.items():
            if run_id not in flags:
                self.drop(lease)
                lease.lose()
                continue
            lease.renew(self.lease_s, asked_at)
            if flags[run_id]:
                lease.cancel()
        return True
