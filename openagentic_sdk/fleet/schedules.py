"""Schedules of runs: rows in the fleet's database; any worker fires those that are due, each once.

A schedule's next time is in its row, by the database's clock. Firing is one transaction: it enqueues a run with a request
id made of the schedule's name and that time, and advances the row from that time to the first one after now. So a second
worker does nothing, and times missed while no worker was running are made up for by one run.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from ..errors import FleetError, OptionsError
from ..ground.checks import BOOL, check_settings
from ..ground.frozen import frozen
from ..ground.text import on_one_line
from ..sessions.core import new_session_id
from ..sessions.stores.tables import Execute, drive
from .cron import next_fire, parse_cron, read_zone
from .queue import NewRun, Queue

# The delay before any worker retries a schedule that this host cannot parse.
BROKEN_S = 600.0
MAX_FIRED = 100
# How often a worker checks the next times of schedules against its clock, which may have been set back.
CHECK_S = 60.0
_COLUMNS = (
    "name, cron, zone, agent, body, tenant, queue, priority, workspace, max_attempts, is_paused, next_at, fired_at, fired, "
    "error"
)
_ADD = f"""
    INSERT INTO openagentic_schedules ({_COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, 0, %s, NULL, 0, NULL)
    ON CONFLICT (name) DO NOTHING RETURNING name
"""
_DUE = """
    SELECT {columns} FROM openagentic_schedules WHERE is_paused = 0 AND next_at <= {wall} ORDER BY next_at, name LIMIT %s
"""
# Only from the time that the caller read: if several workers find the schedule due, one of them advances it.
_MOVE = """
    UPDATE openagentic_schedules SET next_at = %s, fired_at = %s, fired = fired + 1, error = %s
    WHERE name = %s AND next_at = %s AND is_paused = 0 RETURNING name
"""
_BREAK = (
    "UPDATE openagentic_schedules SET next_at = {wall} + %s, error = %s WHERE name = %s AND next_at = %s RETURNING name"
)
_SET_BACK = "UPDATE openagentic_schedules SET next_at = %s WHERE name = %s AND next_at = %s RETURNING name"
_PAUSE = "UPDATE openagentic_schedules SET is_paused = %s, next_at = %s WHERE name = %s RETURNING name"


@frozen
class Schedule:
    """A schedule, as stored in its row. Times are seconds since 1970; `error` is the reason why its last firing failed."""

    name: str
    cron: str
    zone: str
    agent: str
    body: str
    tenant: str
    queue: str
    priority: int
    workspace: str | None
    max_attempts: int
    is_paused: bool
    next_at: float
    fired_at: float | None = None
    fired: int = 0
    error: str | None = None


class Schedules:
    """The schedules of one fleet. Every call blocks, and raises `StorageError`."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._tables = queue.tables
        self._checks_at = 0.0

    def add(self, name: str, cron: str, zone: str, run: NewRun) -> Schedule:
        """Create a schedule that enqueues runs like this one from now on; return it.

        Raises `OptionsError`, including for a name that a different schedule has.
        """
        next_at = next_fire(parse_cron(cron), self._now(), read_zone(zone))
        rest = (run.agent, run.body, run.tenant, run.queue, run.priority, run.workspace, run.max_attempts)
        values = (name, cron, zone, *rest, next_at)
        if not self._tables.change(lambda execute: execute(_ADD, values), durable=True):
            row = self._tables.read(f"SELECT {_COLUMNS} FROM openagentic_schedules WHERE name = %s", (name,))
            # Unless an earlier attempt of ours, whose answer was lost, inserted the row with these values.
            if not row or (*row[0][:10], row[0][11]) != values:
                raise OptionsError(f"schedule {name!r} already exists: remove it first, or choose another name")
        return self.find(name)

    def rows(self) -> list[Schedule]:
        """All schedules, by name."""
        return [
            _schedule(row) for row in self._tables.read(f"SELECT {_COLUMNS} FROM openagentic_schedules ORDER BY name")
        ]

    def find(self, name: str) -> Schedule:
        """The schedule with this name. Raises `OptionsError` if it does not exist."""
        rows = self._tables.read(f"SELECT {_COLUMNS} FROM openagentic_schedules WHERE name = %s", (name,))
        if not rows:
            raise OptionsError(
                f"schedule {name!r:.100} does not exist: `openagentic-sdk fleet schedule list` lists the schedules"
            )
        return _schedule(rows[0])

    def remove(self, name: str) -> None:
        """Delete the schedule; the runs that it enqueued stay. Raises `OptionsError` if it does not exist."""
        self.find(name)
        command = "DELETE FROM openagentic_schedules WHERE name = %s RETURNING name"
        self._tables.change(lambda execute: execute(command, (name,)), durable=True)

    def pause(self, name: str, *, paused: bool = True) -> Schedule:
        """Pause a schedule, or resume it with `paused=False`; return it. Times during the pause are skipped.

        Raises `OptionsError` if it does not exist.
        """
        check_settings({"paused": paused}, {"paused": BOOL})
        schedule = self.find(name)
        next_at = schedule.next_at
        if schedule.is_paused and not paused:
            next_at = next_fire(parse_cron(schedule.cron), self._now(), read_zone(schedule.zone))
        self._tables.change(lambda execute: execute(_PAUSE, (int(paused), next_at, name)), durable=True)
        return self.find(name)

    def fire_due(self) -> int:
        """Enqueue a run for each due schedule, up to `MAX_FIRED`; return how many. Every worker calls this continually."""
        if time.monotonic() >= self._checks_at:
            self._checks_at = time.monotonic() + CHECK_S
            self._bring_back()
        due = _DUE.format(columns=_COLUMNS, wall=self._tables.wall)
        return sum(self._fire(_schedule(row)) for row in self._tables.read(due, (MAX_FIRED,)))

    def _bring_back(self) -> None:
        """Correct the next times that were computed while the clock was ahead: it has been set back since."""
        now = self._now()
        for schedule in self.rows():
            if schedule.is_paused or schedule.next_at <= now:
                continue
            with suppress(OptionsError):  # unreadable on this host
                next_at = next_fire(parse_cron(schedule.cron), now, read_zone(schedule.zone))
                if next_at < schedule.next_at:
                    values = (next_at, schedule.name, schedule.next_at)
                    self._tables.change(lambda execute, values=values: execute(_SET_BACK, values))  # type: ignore[misc]

    def _fire(self, schedule: Schedule) -> bool:
        at = schedule.next_at
        try:
            next_at = next_fire(parse_cron(schedule.cron), self._now(), read_zone(schedule.zone))
        except OptionsError as error:
            command = _BREAK.format(wall=self._tables.wall)
            values = (BROKEN_S, on_one_line(str(error), 500), schedule.name, at)
            self._tables.change(lambda execute: execute(command, values))
            return False
        run = NewRun(
            session=new_session_id(),
            agent=schedule.agent,
            body=schedule.body,
            request_id=request_id_of(schedule.name, at),
            tenant=schedule.tenant,
            queue=schedule.queue,
            priority=schedule.priority,
            max_attempts=schedule.max_attempts,
            workspace=schedule.workspace,
        )

        def attempt(execute: Execute) -> bool:
            # The worker that advances the row fires: the others wait for its transaction and find the row advanced.
            if not execute(_MOVE, (next_at, at, None, schedule.name, at)):
                return False
            drive(self._queue.adding(run), execute)
            return True

        try:
            return self._tables.change(attempt, steps=3, durable=True)
        except FleetError as error:
            # A different run has this request id. The row is advanced without it, or every tick would fail here.
            moved = (next_at, schedule.fired_at, on_one_line(str(error), 500), schedule.name, at)
            self._tables.change(lambda execute: execute(_MOVE, moved))
            return False

    def _now(self) -> float:
        [(now,)] = self._tables.read(f"SELECT {self._tables.wall}")
        return float(now)


def request_id_of(name: str, at: float) -> str:
    """The request id of a schedule's run, the same for every worker that enqueues it."""
    return f"{name}@{datetime.fromtimestamp(at, UTC).isoformat().replace('+00:00', 'Z')}"


def _schedule(row: Sequence[Any]) -> Schedule:
    schedule = Schedule(*row)
    return replace(schedule, is_paused=bool(schedule.is_paused))
