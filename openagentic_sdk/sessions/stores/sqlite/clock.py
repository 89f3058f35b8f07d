"""The clock of a fleet in an SQLite file: seconds since 1970 that advance steadily, even if the wall clock is changed.

All users of the file are on one machine, and count from its start. The wall-clock time of that start is in the file,
written by whoever came first after it: later changes of the wall clock move no lease, no limit and no turn. On a machine
that does not reveal when it was started, only the wall clock is used.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ....ground.clock import elapsed_s

if TYPE_CHECKING:
    import sqlite3

# Added without a schema version: versions without the table ignore it.
_MAKE = "CREATE TABLE IF NOT EXISTS openagentic_clock (boot text PRIMARY KEY, ahead_s double precision NOT NULL)"
# No lease lasts this long: the clock was ahead before the machine restarted, and the time continues from there.
_LONGEST_LEASE_S = 86_400.0
_LATEST = "SELECT max(lease_until) FROM openagentic_runs WHERE state = 'running'"


@cache
def boot() -> str:
    """An identifier of this boot of the machine; empty if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


class SteadyClock:
    """The offset between the file's time and the machine's counter, as recorded or as it would be."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._ahead_s = 0.0
        self._is_noted = False

    def now(self) -> float:
        """Seconds since 1970, on the clock shared by all users of the file."""
        return elapsed_s() + self._ahead_s if boot() else self._wall()

    def wall(self) -> float:
        """The time of the wall clock."""
        return self._wall()

    def find(self, db: sqlite3.Connection) -> None:
        """Read what was recorded since the machine was started."""
        if self._is_noted:
            return
        has_table = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'openagentic_clock'").fetchone()
        row = has_table and db.execute("SELECT ahead_s FROM openagentic_clock WHERE boot = ?", (boot(),)).fetchone()
        if row:
            self._ahead_s, self._is_noted = float(row[0]), True
            return
        now, (latest,) = self._wall(), db.execute(_LATEST).fetchone()
        if latest is not None and latest > now + _LONGEST_LEASE_S:
            now = latest
        self._ahead_s = now - elapsed_s()

    def start(self, db: sqlite3.Connection) -> None:
        """In a write transaction, read the recorded offset, or record it."""
        self.find(db)
        if not self._is_noted:
            db.execute(_MAKE)
            db.execute("INSERT INTO openagentic_clock (boot, ahead_s) VALUES (?, ?)", (boot(), self._ahead_s))


def offer_clock(db: sqlite3.Connection, clock: SteadyClock) -> None:
    """Make the clock available to statements on this connection."""
    db.create_function("openagentic_now", 0, clock.now, deterministic=True)
    db.create_function("openagentic_wall", 0, clock.wall, deterministic=True)
