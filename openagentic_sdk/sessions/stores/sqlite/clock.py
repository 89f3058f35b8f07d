"""The clock of a fleet in an SQLite file: seconds since 1970 that go on at their pace, whatever is done to the wall clock.

All who share the file are on one machine, and count from the moment at which it was started. What the wall clock showed
then stands in the file, noted by whoever came first since: it moves no lease, no limit and no turn afterwards. A machine
that does not say since when it runs has its wall clock only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ....ground.clock import elapsed_s

if TYPE_CHECKING:
    import sqlite3

# Added without a version of its own: versions that do not know the table pass it by.
_MAKE = "CREATE TABLE IF NOT EXISTS openagentic_clock (boot text PRIMARY KEY, ahead_s double precision NOT NULL)"
# No lease ends so much later: before the machine was started anew its clock was ahead, and the time goes on from there.
_LONGEST_LEASE_S = 86_400.0
_LATEST = "SELECT max(lease_until) FROM openagentic_runs WHERE state = 'running'"


@cache
def boot() -> str:
    """What this run of the machine is called; empty where that is not known."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


class SteadyClock:
    """How far the time of the file is ahead of what the machine counts, as it was noted or would be."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._ahead_s = 0.0
        self._is_noted = False

    def now(self) -> float:
        """Seconds since 1970, as those who share the file count them."""
        return elapsed_s() + self._ahead_s if boot() else self._wall()

    def wall(self) -> float:
        """What the wall clock shows."""
        return self._wall()

    def find(self, db: sqlite3.Connection) -> None:
        """Learn what was noted since the machine was started."""
        if self._is_noted:
            return
        made = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'openagentic_clock'").fetchone()
        row = made and db.execute("SELECT ahead_s FROM openagentic_clock WHERE boot = ?", (boot(),)).fetchone()
        if row:
            self._ahead_s, self._is_noted = float(row[0]), True
            return
        now, (latest,) = self._wall(), db.execute(_LATEST).fetchone()
        if latest is not None and latest > now + _LONGEST_LEASE_S:
            now = latest
        self._ahead_s = now - elapsed_s()

    def start(self, db: sqlite3.Connection) -> None:
        """Learn, in a transaction that writes, what was noted, or note it."""
        self.find(db)
        if not self._is_noted:
            db.execute(_MAKE)
            db.execute("INSERT INTO openagentic_clock (boot, ahead_s) VALUES (?, ?)", (boot(), self._ahead_s))


def offer_clock(db: sqlite3.Connection, clock: SteadyClock) -> None:
    """Let statements on this connection ask the clock."""
    db.create_function("openagentic_now", 0, clock.now, deterministic=True)
    db.create_function("openagentic_wall", 0, clock.wall, deterministic=True)
