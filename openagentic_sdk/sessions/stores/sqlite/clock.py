"""The clocks of a fleet in an SQLite file: seconds since 1970 that advance steadily, even if the wall clock is changed.

All users of the file are on one machine, and count from its start. The wall-clock time of that start is in the file,
written by its first user: later changes of the wall clock affect no lease, limit or turn. On a machine that does not reveal
when it was started, only the wall clock is used.

A delay also passes while the machine sleeps, so the file's time includes sleep. A lease must not: it ends because a worker
that could renew it did not, and no worker can while the machine sleeps. So the first transaction after a sleep extends all
leases by its length, and workers count theirs (`Tables.lease_now`) without it. An older version that claims before that
transaction may take over a living run; its epoch refuses the old worker's appends.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ....ground.clock import elapsed_s

if TYPE_CHECKING:
    import sqlite3

# Added without a schema version: versions without the table ignore it, and versions before the second row ignore that.
_MAKE = "CREATE TABLE IF NOT EXISTS openagentic_clock (boot text PRIMARY KEY, ahead_s double precision NOT NULL)"
_NOTE = "INSERT OR REPLACE INTO openagentic_clock (boot, ahead_s) VALUES (?, ?)"
_LATEST = """
    SELECT max(at) FROM (
        SELECT max(max(created_at), max(coalesce(started_at, 0)), max(coalesce(ended_at, 0))) AS at FROM openagentic_runs
        UNION ALL SELECT max(at) FROM openagentic_rates
    )
"""
_EXTEND = "UPDATE openagentic_runs SET lease_until = lease_until + ? WHERE state = 'running'"
# The workers of an earlier boot are gone. Some containers have boot identifiers of their own, so workers may be alive under
# another one: they have time for a few heartbeats.
_CAP = "UPDATE openagentic_runs SET lease_until = ? WHERE state = 'running' AND lease_until > ?"
MOST_AFTER_BOOT_S = 15.0
# Two readings of the sleep that differ by less are the same.
SAME_S = 0.1


@cache
def boot() -> str:
    """An identifier of this boot of the machine; empty if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


@cache
def _shifts_s() -> dict[str, float]:
    """By how much this process's time namespace shifts each of the machine's clocks (time_namespaces(7))."""
    try:
        lines = Path("/proc/self/timens_offsets").read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    return {name: int(seconds) + int(nanos) / 1e9 for name, seconds, nanos in map(str.split, lines)}


def uptime_s() -> float:
    """Seconds since this machine was started, including time asleep; the same in every container."""
    return elapsed_s() - _shifts_s().get("boottime", 0.0)


def asleep_s() -> float:
    """How long this machine has slept since it was started; 0 where the system does not count it."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return 0.0
    while True:
        before = time.clock_gettime(time.CLOCK_MONOTONIC)
        with_sleep = uptime_s()
        after = time.clock_gettime(time.CLOCK_MONOTONIC)
        if after - before < SAME_S / 10:  # else the process was stopped between the readings
            return with_sleep - before + _shifts_s().get("monotonic", 0.0)


class SteadyClock:
    """The clock of a file: the machine's uptime plus an offset, which is recorded in the file with the first write."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._ahead_s = 0.0
        self._is_noted = False
        self._asleep_s: float | None = None

    def now(self) -> float:
        """Seconds since 1970, on the clock shared by all users of the file."""
        return uptime_s() + self._ahead_s if boot() else self._wall()

    def wall(self) -> float:
        """The time of the wall clock."""
        return self._wall()

    def find(self, db: sqlite3.Connection) -> None:
        """Read the offset recorded since the machine was started; without one, determine it."""
        if self._is_noted:
            return
        if (ahead_s := _noted(db, boot())) is not None:
            self._ahead_s, self._is_noted = ahead_s, True
            return
        # The file's time never goes back: otherwise due runs and all limits would have to wait until it catches up.
        (latest,) = db.execute(_LATEST).fetchone()
        self._ahead_s = max(self._wall(), latest or 0.0) - uptime_s()

    def start(self, db: sqlite3.Connection) -> None:
        """In a write transaction, record the offset if nobody has, and extend the leases if the machine has slept."""
        self.find(db)
        if not self._is_noted:
            db.execute(_MAKE)
            most = self.now() + MOST_AFTER_BOOT_S
            if db.execute("SELECT 1 FROM openagentic_clock").fetchone():
                db.execute(_CAP, (most, most))
            db.execute(_NOTE, (boot(), self._ahead_s))
        if boot():
            self._see_sleep(db)

    def _see_sleep(self, db: sqlite3.Connection) -> None:
        asleep, row = asleep_s(), f"{boot()} asleep"
        if self._asleep_s is not None and asleep - self._asleep_s < SAME_S:
            return
        noted = _noted(db, row)
        if noted is None or asleep - noted >= SAME_S:
            db.execute(_NOTE, (row, asleep))
            if noted is not None:
                db.execute(_EXTEND, (asleep - noted,))
        # Also right if the transaction fails: the next one of any process reads the row again.
        self._asleep_s = noted


def _noted(db: sqlite3.Connection, row: str) -> float | None:
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'openagentic_clock'").fetchone():
        return None
    offset_row = db.execute("SELECT ahead_s FROM openagentic_clock WHERE boot = ?", (row,)).fetchone()
    return float(offset_row[0]) if offset_row else None


def offer_clock(db: sqlite3.Connection, clock: SteadyClock) -> None:
    """Make the clock available to statements on this connection."""
    # To SQLite, "deterministic" means the same result within one statement (sqlite.org/c3ref/create_function.html). So it
    # reads the clock once for a statement, and not for each row.
    db.create_function("openagentic_now", 0, clock.now, deterministic=True)
    db.create_function("openagentic_wall", 0, clock.wall, deterministic=True)
