"""The rows of a fleet's runs: each transition of a run is one statement that uses the database's clock.

No transition reads first and writes later, and no transaction is open while a run is running. If a connection is lost with
the answer, the statement is sent again and recognizes its own earlier effect by `claim`, `fence` or `request_id`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

from ..errors import FleetError, RunNotFoundError
from ..ground.frozen import changed, frozen
from ..serialization import loads_json
from ..sessions.stores.tables import Execute, Rows, Statements, Tables, drive
from .limits import BUSY, FAIR, IS_FULL, FleetLimits
from .record import FORMAT, FleetRun, FleetState, RunOutcome

CHANNEL = "openagentic_runs"
# How long a worker waits for an unreachable database before it retries.
PATIENCE_S = 5.0
# A run that has waited this much longer precedes a run whose priority is higher by one.
RANK_S = 60.0

_COLUMNS = (
    "id, session, tenant, queue, agent, priority, state, request_id, attempts, max_attempts, steals, owner, created_at, "
    "run_at, started_at, ended_at, CASE WHEN state = 'running' THEN lease_until - {now} END, "
    "cancel_requested_at IS NOT NULL, cancelled_by, stop_reason, error, workspace, traceparent, format, fence, parked_seq, "
    "lost_owner, body, unknown"
)
# SQLite would read `ON CONFLICT` after a table as the condition of a join: hence `WHERE true` (sqlite.org/lang_upsert.html,
# "Parsing Ambiguity").
_ADD = """
    INSERT INTO openagentic_runs (format, session, tenant, queue, agent, priority, state, run_at, rank, request_id, body,
        workspace, traceparent, max_attempts, created_at)
    SELECT %s, %s, %s, %s, %s, %s, 'queued', due, %s * {rank_s} - due, %s, %s, %s, %s, %s, {now}
    FROM (SELECT coalesce({at_wall}, {now}) AS due) AS times WHERE true
    ON CONFLICT (tenant, request_id) DO NOTHING RETURNING id
"""
# Within a session, only the first unfinished run may run; runs that are not due yet do not count. A parked run blocks runs
# that were queued before it parked; a prompt that was queued later ends the question.
_IS_FIRST = """
    NOT EXISTS (
        SELECT 1 FROM openagentic_runs AS other
        WHERE other.session = run.session AND other.id <> run.id AND other.state IN ('queued', 'running', 'waiting')
            AND CASE other.state
                WHEN 'queued' THEN other.id < run.id AND other.run_at <= {now}
                WHEN 'waiting' THEN NOT EXISTS (
                    SELECT 1 FROM openagentic_runs AS late
                    WHERE late.session = run.session AND late.state = 'queued' AND late.created_at >= other.run_at
                        AND late.run_at <= {now}
                )
                ELSE true
            END
    )
"""
# Where several workers can write at the same time, `skip_locked` gives each of them a different run.
_LOST = """
    SELECT id FROM openagentic_runs AS run
    WHERE state = 'running' AND lease_until < {now} AND {mine} ORDER BY lease_until LIMIT 1 {skip_locked}
"""
_QUEUED = """
    SELECT id FROM openagentic_runs AS run
    WHERE state = 'queued' AND run_at <= {now} AND {mine} AND {is_first} ORDER BY rank DESC, id LIMIT 1 {skip_locked}
"""
# Start at the head that was found: runs claimed just now precede it in the index and need not be scanned again.
_OF_GROUP = (
    "run.tenant = groups.tenant AND run.queue = groups.queue AND run.agent = groups.agent AND run.rank <= groups.rank "
    "AND run.format <= %s"
)
# `is_usable` is a condition of the claim itself, because a newer version may migrate the tables at any time.
_CLAIM = """
    UPDATE openagentic_runs SET
        state = 'running', fence = fence + 1, attempts = attempts + 1, claim = %s,
        lost_owner = CASE WHEN state = 'running' THEN owner ELSE '' END,
        steals = steals + CASE WHEN state = 'running' THEN 1 ELSE 0 END,
        owner = %s, lease_until = {now} + %s, started_at = coalesce(started_at, {now})
    WHERE id = {candidate} AND {is_usable} RETURNING {columns}
"""
_BEAT = """
    UPDATE openagentic_runs SET lease_until = {now} + %s WHERE state = 'running' AND ({pairs})
    RETURNING id, cancel_requested_at IS NOT NULL
"""
# A park or a hand-over is not a crash and does not count as an attempt, and neither does the claim beyond `max_attempts`,
# which only declares the run failed. A run that parks although its cancellation was requested is queued, so that a worker
# ends it. NULL as a usage keeps the stored one: the owner does not know it.
_LEAVE = """
    UPDATE openagentic_runs SET
        state = CASE WHEN cancel_requested_at IS NOT NULL AND %s = 'waiting' THEN 'queued' ELSE %s END,
        attempts = CASE WHEN %s IN ('waiting', 'queued') THEN attempts - 1
            WHEN attempts > max_attempts THEN max_attempts ELSE attempts END,
        owner = CASE WHEN %s IN ('waiting', 'queued') THEN '' ELSE owner END,
        run_at = CASE WHEN %s IN ('waiting', 'queued') THEN {now} + %s ELSE run_at END,
        ended_at = CASE WHEN %s IN ('waiting', 'queued') THEN NULL ELSE {now} END,
        parked_seq = CASE WHEN %s > 0 THEN %s ELSE parked_seq END,
        input_tokens = coalesce(%s, input_tokens), output_tokens = coalesce(%s, output_tokens),
        cost_usd = coalesce(%s, cost_usd), unknown = coalesce(%s, unknown),
        first_event_at = coalesce(first_event_at, {now} - %s),
        stop_reason = %s, error = %s, lease_until = NULL
    WHERE id = %s AND fence = %s AND state = 'running' RETURNING id
"""
_CANCEL = """
    UPDATE openagentic_runs SET
        cancel_requested_at = coalesce(cancel_requested_at, {now}), cancelled_by = coalesce(cancelled_by, %s),
        ended_at = CASE WHEN state = 'running' THEN NULL ELSE {now} END,
        state = CASE WHEN state = 'running' THEN state ELSE 'cancelled' END
    WHERE id = %s AND state IN ('queued', 'running', 'waiting') RETURNING id
"""
# A run that waits for a time is queued for it; an event may wake it earlier.
_IS_PARKED = "(state = 'waiting' OR (state = 'queued' AND stop_reason = 'waiting' AND run_at > {now}))"
_WAKE = """
    UPDATE openagentic_runs SET state = 'queued', run_at = {now}, parked_seq = %s
    WHERE id = %s AND {is_parked} AND parked_seq = %s RETURNING id
"""
# Parked runs whose log has grown since. A session that was deleted counts as well: the next worker reports it.
_MOVED = """
    SELECT openagentic_runs.id, session, parked_seq, {last_seq}
    FROM openagentic_runs LEFT JOIN {sessions} ON {sessions}.id = session
    WHERE {is_parked} AND ({sessions}.id IS NULL OR {last_seq} > parked_seq)
    ORDER BY openagentic_runs.id LIMIT 200
"""


@frozen
class NewRun:
    """A run to be enqueued. `run_at` None means now; `names_session` means that its caller chose the session."""

    agent: str
    body: str
    tenant: str
    queue: str
    priority: int
    max_attempts: int
    workspace: str | None = None
    session: str = ""
    names_session: bool = False
    request_id: str = ""
    run_at: float | None = None
    traceparent: str | None = None


@frozen
class Claimer:
    """A worker that claims runs: its name, the length of its lease, its agents, and its queues (all queues if empty)."""

    owner: str
    lease_s: float
    agents: Sequence[str]
    queues: Sequence[str] = ()


class Queue:
    """The runs in one database. Every call blocks, and raises `StorageError` if the database is unreachable for too long."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.limits = FleetLimits(tables)
        self._columns = _COLUMNS.format(now=tables.now)
        # Whether the last claim found a run: then the next one probably will, and does not look before it blocks writers.
        # The first claim of a process always blocks: after a restart of the machine, its transaction shortens the leases of
        # the workers that are gone (`SteadyClock.start`).
        self._has_found_run = True

    # --- enqueuing -----------------------------------------------------------------------------------------------------

    def add(self, new: NewRun) -> int:
        """Enqueue a run, unless the tenant already has one with its request id; return the run's number.

        Raises `FleetError` if that one is for another agent or has another body.
        """
        return self.tables.change(lambda execute: drive(self.adding(new), execute), durable=True)

    def adding(self, new: NewRun) -> Statements[int]:
        """Yield the statements of `add`, for the caller's connection; return the run's number. Raises `FleetError`."""
        first = (FORMAT, new.session, new.tenant, new.queue, new.agent, new.priority, new.priority, new.request_id)
        values = (*first, new.body, new.workspace, new.traceparent, new.max_attempts, new.run_at)
        rows = yield _ADD.format(now=self.tables.now, at_wall=self.tables.at_wall, rank_s=RANK_S), values
        if not rows:
            command = "SELECT id, agent, body, session FROM openagentic_runs WHERE tenant = %s AND request_id = %s"
            [(run_id, agent, body, session)] = yield command, (new.tenant, new.request_id)
            if (agent, _request_in(body)) != (new.agent, _request_in(new.body)) or (
                new.names_session and session != new.session
            ):
                text = (
                    f"request id {new.request_id!r} was already used by a different request, run {run_id}: use a new id"
                )
                raise FleetError(text, run_id=run_id)
            return int(run_id)
        if tells := self.tables.telling(CHANNEL):
            yield tells
        return int(rows[0][0])

    # --- for the owner -------------------------------------------------------------------------------------------------

    def claim(self, who: Claimer, *, run_id: int | None = None) -> FleetRun | None:
        """Claim the next run that is due or lost, or the run `run_id`; return it, or None."""
        one, takes_turns = run_id is not None, self.limits.are_any
        usable = self.tables.is_usable
        look, take = _claiming(
            type(self.tables), len(who.agents), len(who.queues), one=one, limited=takes_turns, is_usable=usable
        )
        mine = (FORMAT, *who.agents, *who.queues, *((run_id,) if one else ()))
        values = (*mine, *mine, *(() if one else (FORMAT,)))
        # Where a writer blocks others, look before taking the lock.
        looks = not self.tables.skip_locked and not self._has_found_run
        if looks and self.tables.read(look, values) == [(None,)]:
            return None
        name, attempts = os.urandom(8).hex(), 0

        def attempt(execute: Execute) -> Rows:
            nonlocal attempts
            attempts += 1
            # Only a repeated attempt can find its own claim: the connection may have been lost with the answer.
            if attempts > 1 and (rows := self._select(execute, "claim = %s AND state = 'running'", (name,))):
                return rows
            if takes_turns:
                self.tables.take_turn(execute)
            try:
                return execute(take, (name, who.owner, who.lease_s, *values))
            except self.tables.conflict:
                return []  # another run of the same session was claimed first

        rows = self.tables.change(attempt, steps=2 if takes_turns else 1, patience_s=PATIENCE_S)
        self._has_found_run = bool(rows)
        if not rows:
            self.tables.require_usable()
            return None
        return _read(rows[0])

    def beat(self, fences: Mapping[int, int], lease_s: float, patience_s: float) -> dict[int, bool]:
        """Extend the leases of these runs (their fences by number) to `lease_s` seconds from now.

        Return the numbers of the runs that the caller still owns, each with whether the run is to be cancelled.
        """
        pairs = " OR ".join(["(id = %s AND fence = %s)"] * len(fences))
        command = _BEAT.format(now=self.tables.now, pairs=pairs)
        values = (lease_s, *(number for pair in fences.items() for number in pair))
        return dict(self.tables.change(lambda execute: execute(command, values), patience_s=patience_s))

    def leave(self, run: FleetRun, outcome: RunOutcome, *, patience_s: float = 30.0) -> bool:
        """Move the run from `running` to its next state; return False if it has another owner by now."""
        state, attempts = outcome.state, 0
        values = (
            *(state, state, state, state, state, outcome.delay_s, state, outcome.parked_seq, outcome.parked_seq),
            *((None,) * 5 if outcome.used is None else vars(outcome.used).values()),
            *(outcome.stop_reason, outcome.error, run.id, run.fence),
        )

        def attempt(execute: Execute) -> bool:
            nonlocal attempts
            attempts += 1
            if execute(_LEAVE.format(now=self.tables.now), values):
                if state == "queued":
                    self._tell(execute)
                return True
            # Only the owner can end it at this fence: an earlier attempt of ours did, and its answer was lost.
            command = "SELECT 1 FROM openagentic_runs WHERE id = %s AND fence = %s AND state <> 'running'"
            return attempts > 1 and bool(execute(command, (run.id, run.fence)))

        return self.tables.change(attempt, durable=True, patience_s=patience_s)

    # --- for everyone else ---------------------------------------------------------------------------------------------

    def cancel(self, run_id: int, cancelled_by: str) -> bool:
        """End a run that has no owner, otherwise ask its owner to end it; return False if it is already over."""

        def attempt(execute: Execute) -> bool:
            is_open = bool(execute(_CANCEL.format(now=self.tables.now), (cancelled_by, run_id)))
            self._tell(execute)
            return is_open

        return self.tables.change(attempt, durable=True)

    def wake_answered(self, is_answered: Callable[[str, int], bool]) -> list[int]:
        """Queue again the parked runs that got an answer or an event from any process; return their numbers, at most 200.

        `is_answered(session, seq)` returns whether the session's log contains one after event `seq`.
        """
        tables = self.tables
        is_parked = _IS_PARKED.format(now=tables.now)
        command = _MOVED.format(last_seq=tables.last_seq, sessions=tables.sessions, is_parked=is_parked)
        woken_ids: list[int] = []
        for run_id, session, parked_seq, last_seq in tables.read(command, patience_s=PATIENCE_S):
            if is_answered(session, parked_seq):
                self.wake(run_id, parked_seq)
                woken_ids.append(run_id)
            else:
                # Something else was appended: next time, look only at the events after it.
                values = (last_seq, run_id, parked_seq)
                self._change(
                    f"UPDATE openagentic_runs SET parked_seq = %s WHERE id = %s AND {is_parked} AND parked_seq = %s "
                    "RETURNING id",
                    values,
                )
        return woken_ids

    def wake(self, run_id: int, parked_seq: int) -> None:
        """Queue a parked run again, unless it has moved on since it parked at event `parked_seq`."""

        def attempt(execute: Execute) -> None:
            now = self.tables.now
            command = _WAKE.format(now=now, is_parked=_IS_PARKED.format(now=now))
            if execute(command, (parked_seq, run_id, parked_seq)):
                self._tell(execute)

        self.tables.change(attempt, durable=True)

    def _change(self, command: str, values: Sequence[Any]) -> Rows:
        return self.tables.change(lambda execute: execute(command, values))

    def now(self) -> float:
        """The time of the clock that `run_at` and the other times of runs refer to."""
        return float(self.tables.read(f"SELECT {self.tables.now}")[0][0])

    # --- queries -------------------------------------------------------------------------------------------------------

    def find(self, run_id: int) -> FleetRun:
        """The run with this number. Raises `RunNotFoundError`."""
        rows = self._select(self.tables.read, "id = %s", (run_id,))
        if not rows:
            raise RunNotFoundError(run_id)
        return _read(rows[0])

    def find_by_request(self, tenant: str, request_id: str) -> FleetRun | None:
        """The tenant's run with this request id; None without one."""
        rows = self._select(self.tables.read, "tenant = %s AND request_id = %s", (tenant, request_id))
        return _read(rows[0]) if rows else None

    def rows(
        self,
        *,
        states: Collection[FleetState] = (),
        tenant: str | None = None,
        session: str | None = None,
        limit: int | None = 50,
    ) -> list[FleetRun]:
        """The newest runs in these states, of this tenant and session (default: any), at most `limit` (None: all)."""
        conditions = [f"state IN ({_marks(states)})"] if states else []
        values: list[Any] = list(states)
        for column, value in (("tenant", tenant), ("session", session)):
            if value is not None:
                conditions.append(f"{column} = %s")
                values.append(value)
        where = " AND ".join(conditions) or "id > 0"
        most = ("", ()) if limit is None else (" LIMIT %s", (limit,))
        rows = self._select(self.tables.read, f"{where} ORDER BY id DESC{most[0]}", (*values, *most[1]))
        return list(map(_read, rows))

    def cancelled(self, owner: str) -> list[int]:
        """The numbers of this owner's runs that are to be cancelled."""
        command = (
            "SELECT id FROM openagentic_runs WHERE state = 'running' AND owner = %s AND cancel_requested_at IS NOT NULL"
        )
        return [run_id for (run_id,) in self.tables.read(command, (owner,), patience_s=PATIENCE_S)]

    def _tell(self, execute: Execute) -> None:
        if tells := self.tables.telling(CHANNEL):
            execute(*tells)

    def _select(self, execute: Execute, where: str, values: Sequence[Any]) -> Rows:
        return execute(f"SELECT {self._columns} FROM openagentic_runs WHERE {where}", values)


@lru_cache(maxsize=64)
def _claiming(
    tables: type[Tables], agents: int, queues: int, *, one: bool, limited: bool, is_usable: str
) -> tuple[str, str]:
    """The statement that finds the next run to claim, or with `one` a given run, and the statement that claims it.

    With `limited`, runs that a limit prevents from starting are left out. The parameters of both statements end with the
    format, the agents, the queues and, with `one`, the run's number, all of these twice; without `one`, the format follows
    once more.
    """
    mine = f"run.format <= %s AND run.agent IN ({_marks(range(agents))})"
    if queues:
        mine = f"{mine} AND run.queue IN ({_marks(range(queues))})"
    if one:
        mine = f"{mine} AND run.id = %s"
    now, skip_locked = tables.now, tables.skip_locked
    lost_run = _LOST.format(now=now, mine=mine, skip_locked=skip_locked)
    is_first = _IS_FIRST.format(now=now)
    allowed = f"{mine} AND NOT ({IS_FULL})" if limited else mine
    if one:
        queued = f"WITH {BUSY} {_QUEUED.format(now=now, mine=allowed, is_first=is_first, skip_locked=skip_locked)}"
    else:
        first = _QUEUED.format(now=now, mine=_OF_GROUP, is_first=is_first, skip_locked=skip_locked)
        queued = FAIR.format(mine=allowed, first=first)
    # The second query runs only if the first finds nothing: lost runs have begun, and precede all that wait.
    candidate = f"coalesce(({lost_run}), ({queued}))"
    columns = _COLUMNS.format(now=now)
    return f"SELECT {candidate}", _CLAIM.format(now=now, candidate=candidate, is_usable=is_usable, columns=columns)


def _read(row: tuple[Any, ...]) -> FleetRun:
    run = FleetRun(*row)
    # SQLite has no booleans: it returns 0 or 1.
    return changed(run, is_cancelled=bool(run.is_cancelled))


def _marks(values: Collection[Any]) -> str:
    return ", ".join(["%s"] * len(values))


def _request_in(body: str) -> Any:
    """The request in a body, without `must_exist`, which the rows of earlier versions lack."""
    return {key: value for key, value in loads_json(body).items() if key != "must_exist"}
