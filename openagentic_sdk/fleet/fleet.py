"""The client's view of a fleet: enqueue a run, query its state, answer, cancel and follow it."""

from __future__ import annotations

import math
import os
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from ..agents import Agents, NamedAgent
from ..errors import AnswerRefusedError, FleetError, OptionsError, SessionLockedError, SessionNotFoundError
from ..events import Event, UserQuestion
from ..ground.checks import Check, check_settings, number, or_none
from ..ground.text import on_one_line
from ..kernel.recorder import off_loop
from ..options import OpenAgenticOptions
from ..prompts import read_prompt
from ..runs.background import answer_questions, cancel_session, open_questions
from ..serialization import dumps_json, loads_json
from ..sessions.base import SessionStore, check_session_id
from ..sessions.core import TENANT_KEY, new_session_id
from ..sessions.folds.trace import read_traceparent
from ..sessions.follow import Follower
from ..sessions.seal import Seal, sdk_home
from ..sessions.stores.locate import open_store
from ..sessions.stores.tables import tables_of
from .children import tell_end
from .limits import Rates
from .queue import NewRun, Queue
from .record import MAX_ATTEMPTS, FleetRun, FleetState, RunOutcome
from .schedules import Schedule, Schedules
from .standing import Standing, begins_again, look
from .stats import FleetStats, fleet_stats
from .workspace import read_wish

MAX_NAME_CHARS = 256
MAX_BODY_BYTES = 8 * 1024 * 1024
MAX_PRIORITY = 1_000_000
# The longest delay before a follower notices that a run is over if its log does not show it.
LOOK_S = 1.0


class Fleet:
    """The runs of named agents in one store: in Postgres for many hosts, or in SQLite for one host.

    `store` may be an address, as for `open_store`. `workspace_dir` is where this host keeps repositories and their checkouts
    (default: `fleet` in $OPENAGENTIC_SDK_HOME or ~/.openagentic-sdk). Without `agents`, runs can be inspected, answered and
    cancelled, but not started. Raises `FleetStoreError` if the store is not a database.
    """

    def __init__(
        self,
        store: SessionStore | str,
        agents: Agents | Mapping[str, NamedAgent | OpenAgenticOptions] | None = None,
        *,
        workspace_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        self.store = open_store(store) if isinstance(store, str) else store
        self.queue = Queue(tables_of(self.store))
        self.rates = Rates(self.queue.tables)
        self.schedules = Schedules(self.queue)
        self._workspace_dir = workspace_dir
        self._agents = agents if agents is None or isinstance(agents, Agents) else Agents(agents)

    @property
    def agents(self) -> Agents:
        """The agents that may be started. Raises `OptionsError` if the fleet was created without agents."""
        if self._agents is None:
            raise OptionsError("this fleet has no agents: give the registry, Fleet(store, agents=...)")
        return self._agents

    @property
    def workspace_dir(self) -> Path:
        """The folder of this host's repositories and their checkouts. Raises `OptionsError` without a home folder."""
        return Path(self._workspace_dir or sdk_home() / "fleet").expanduser().absolute()

    async def enqueue(
        self,
        agent: str,
        prompt: Any,
        *,
        session: str | None = None,
        request_id: str | None = None,
        queue: str = "default",
        priority: int = 0,
        tenant: str = "",
        run_at: datetime | float | None = None,
        max_attempts: int = MAX_ATTEMPTS,
        wishes: Mapping[str, Any] | None = None,
        workspace: str | None = None,
        traceparent: str | None = None,
        connection: Any = None,
        told: tuple[str, str] | None = None,
        must_exist: bool = False,
    ) -> int:
        """Enqueue a run of this agent, durably; return its number.

        `prompt` is a string or a list of parts; None continues what is in the log. `session` names the session, which is
        created if it does not exist; None creates a new one. Calls of one tenant with the same `request_id` enqueue one run,
        and all return its number. Each level of `priority` counts as much as a minute of waiting; no run starts before its
        `run_at` (a datetime with a time zone, or seconds since 1970). A run whose workers died or hung `max_attempts` times
        fails. `wishes` are as in `Agents.options`; `workspace` is as in `read_wish`. If `connection` is given (the caller's
        own psycopg or sqlite3 connection to the store's database, or an async one of psycopg), the run is part of the
        caller's transaction and does not exist without its commit. `told` is the session of a workflow, and the event to
        deliver to it when the run is over. With `must_exist`, the run fails if its session does not exist when it begins,
        because it was deleted in the meantime.

        Raises `AgentNotFoundError`, `OptionsError`, `SessionNotFoundError` for a session of another tenant, `FleetError`
        for a request id that was already used for a different run or session, and `StorageError`.
        """
        run = self._checked_run(
            agent, prompt, wishes, tenant, queue, priority, max_attempts, workspace, told, must_exist
        )
        if traceparent is not None and read_traceparent(traceparent) is None:
            raise OptionsError(f"traceparent {traceparent!r:.100} is invalid: give 00-TRACE-SPAN-FLAGS in hex")
        check_settings({"request_id": request_id}, {"request_id": or_none(_name)})
        new = replace(
            run,
            session=new_session_id() if session is None else check_session_id(session),
            names_session=session is not None,
            request_id=f"fleet-{os.urandom(12).hex()}" if request_id is None else request_id,
            run_at=_seconds(run_at),
            traceparent=traceparent,
        )
        if session is None and prompt is None:
            raise OptionsError("the prompt is missing: only an existing session can continue without one")
        if session is not None:
            await off_loop(True, _check_tenant, self.store, session, tenant)
        if connection is None:
            return int(await off_loop(True, self.queue.add, new))
        # Create the tables now, outside of the caller's transaction.
        await off_loop(True, partial(self.queue.rows, limit=0))
        return await self.queue.tables.change_on(connection, self.queue.adding(new))

    async def schedule(
        self,
        name: str,
        cron: str,
        agent: str,
        prompt: Any,
        *,
        zone: str = "UTC",
        queue: str = "default",
        priority: int = 0,
        tenant: str = "",
        max_attempts: int = MAX_ATTEMPTS,
        wishes: Mapping[str, Any] | None = None,
        workspace: str | None = None,
    ) -> Schedule:
        """Create a schedule that enqueues a run in a new session whenever the cron line fires in `zone` (see `fleet.cron`).

        Any worker of the fleet fires it. Times missed while no worker was running are made up for by one run. `schedules`
        lists, pauses and removes schedules. The other arguments are as in `enqueue`. Raises `AgentNotFoundError`,
        `StorageError`, and `OptionsError` for an invalid argument or a different schedule's name.
        """
        run = self._checked_run(agent, prompt, wishes, tenant, queue, priority, max_attempts, workspace)
        if prompt is None:
            raise OptionsError("the prompt is missing: each run of a schedule begins a session")
        check_settings({"name": name}, {"name": _name})
        schedule: Schedule = await off_loop(True, self.schedules.add, name, cron, zone, run)
        return schedule

    def _checked_run(
        self,
        agent: str,
        prompt: Any,
        wishes: Mapping[str, Any] | None,
        tenant: str,
        queue: str,
        priority: int,
        max_attempts: int,
        workspace: str | None,
        reply_to: tuple[str, str] | None = None,
        must_exist: bool = False,
    ) -> NewRun:
        """A run that lacks only a session and a request id. Raises `AgentNotFoundError`, and `OptionsError`."""
        named_agent = self.agents[agent]
        if wishes:
            self.agents.options(agent, wishes)
        check_settings({"told": reply_to}, {"told": or_none(_told)})
        read_wish(named_agent, workspace)
        new = NewRun(
            agent=agent,
            body=_body(prompt, wishes, reply_to, must_exist=must_exist),
            tenant=tenant,
            queue=queue,
            priority=priority,
            max_attempts=max_attempts,
            workspace=workspace,
        )
        check_settings(new, _CHECKS)
        return new

    async def stats(self, *, tenant: str | None = None) -> FleetStats:
        """Return figures about the fleet's runs, their usage and the tenants' budgets, for all tenants or for one."""
        stats: FleetStats = await off_loop(True, fleet_stats, self.queue.tables, tenant)
        return stats

    async def status(self, run_id: int) -> FleetRun:
        """Return a run as it is now. Raises `RunNotFoundError`."""
        run: FleetRun = await off_loop(True, self.queue.find, run_id)
        return run

    async def runs(
        self,
        *,
        states: Collection[FleetState] = (),
        tenant: str | None = None,
        session: str | None = None,
        limit: int | None = 50,
    ) -> list[FleetRun]:
        """Return the newest `limit` (None: all) runs in these states, of this tenant and session (default: any)."""
        find = partial(self.queue.rows, states=states, tenant=tenant, session=session, limit=limit)
        rows: list[FleetRun] = await off_loop(True, find)
        return rows

    async def cancel(self, run_id: int, *, cancelled_by: str = "user") -> bool:
        """Cancel a run permanently, through its owner if it is running; return False if it is already over.

        Raises `RunNotFoundError`.
        """
        run = await self.status(run_id)
        is_open = bool(await off_loop(True, self.queue.cancel, run_id, cancelled_by))
        # Not running: nobody else will notify the workflow, or close what the run left open.
        if is_open and (await self.status(run_id)).state == "cancelled":
            await tell_end(self, run, RunOutcome("cancelled", "interrupted"))
            standing: Standing = await off_loop(True, look, self.store, run)
            if standing.is_said and (standing.outcome is None or standing.outcome.state == "waiting"):
                # Close what a park or a hand-over left open in the log.
                with suppress(SessionNotFoundError, SessionLockedError):
                    key_file = self.key_file(run)
                    await cancel_session(self.store, run.session, cancelled_by=cancelled_by, key_file=key_file)
        return is_open

    async def answer(self, run_id: int, question_id: str | None, answer: str, *, answered_by: str = "user") -> None:
        """Answer a question that a run is parked on, and queue the run again; `question_id` None means its only question.

        Raises `RunNotFoundError`, `AnswerRefusedError` if the text is not a valid answer, and `FleetError` if the run is
        not waiting for it.
        """
        run = await self.status(run_id)
        open_ids: tuple[str, ...] = ()
        if not run.is_over:
            with suppress(SessionNotFoundError):  # no worker has begun the run
                open_ids = (await off_loop(True, self.store.read_summary, run.session)).open_questions
        if not open_ids:
            raise FleetError(f"run {run_id} is {run.state} and does not wait for an answer", run_id=run_id)
        if question_id is None and len(open_ids) > 1:
            names = on_one_line(", ".join(open_ids), 500)
            raise FleetError(
                f"run {run_id} waits for {len(open_ids)} answers: name the question ({names})", run_id=run_id
            )
        answers = {open_ids[0] if question_id is None else question_id: answer}
        try:
            await answer_questions(
                self.store, run.session, answers, answered_by=answered_by, key_file=self.key_file(run)
            )
        except AnswerRefusedError:
            raise
        except (OptionsError, SessionLockedError) as error:
            raise FleetError(f"run {run_id} is {run.state}: {error}", run_id=run_id) from error
        # With the `seq` at which it was parked: a run that has continued since must not be queued a second time.
        await off_loop(True, self.queue.wake, run_id, run.parked_seq)

    async def retry(self, run_id: int) -> int:
        """Enqueue again a run that failed, or that a limit or hook stopped; return the number of the new run.

        The new run continues the session's log: a call that had started is treated as after a crash, and no answer in the
        log is paid for again. It begins with the prompt if the log does not contain it. It keeps the agent, session, tenant,
        queue, priority, workspace and wishes. A second retry of the same run returns the number of the first one's.

        Raises `RunNotFoundError`, and `FleetError` for a run that is not over, ended by itself, was cancelled or is a step
        of a workflow, or whose session has continued since.
        """
        run = await self.status(run_id)
        if reason := _unretryable(run):
            raise FleetError(f"run {run_id} {reason}", run_id=run_id)
        request_id = f"retry:{run_id}"
        earlier: FleetRun | None = await off_loop(True, self.queue.find_by_request, run.tenant, request_id)
        if earlier is not None:
            return earlier.id
        starts_over = await off_loop(True, begins_again, self.store, run)
        new = NewRun(
            agent=run.agent,
            body=_body_again(run) if starts_over else _written_body(None, run.wishes, run.listener),
            tenant=run.tenant,
            queue=run.queue,
            priority=run.priority,
            max_attempts=run.max_attempts,
            workspace=run.workspace,
            session=run.session,
            request_id=request_id,
            traceparent=run.traceparent,
        )
        return int(await off_loop(True, self.queue.add, new))

    async def questions(self, run_id: int) -> list[UserQuestion]:
        """Return the open questions of a parked run, whose ids `answer` accepts. Raises `RunNotFoundError`."""
        run = await self.status(run_id)
        seal = Seal(self.key_file(run))
        questions: list[UserQuestion] = await off_loop(True, open_questions, self.store, run.session, seal)
        return questions

    async def events(self, run_id: int, *, after_seq: int = 0) -> AsyncGenerator[Event, None]:
        """Yield the events of the run's session after `after_seq`, then new ones until the run is over or waits.

        Raises `RunNotFoundError`.
        """
        run = await self.status(run_id)
        follower: Follower | None = None
        try:
            while True:
                run = await self.status(run_id)
                if follower is None and await off_loop(True, self.store.session_exists, run.session):
                    follower = Follower(self.store, run.session, after_seq=after_seq)
                # The state was read before the events, so those stored until then are still delivered.
                stops = run.is_over or run.state == "waiting"
                if follower is None:
                    if stops:
                        return
                    await off_loop(True, self.queue.tables.wait, "openagentic_runs", LOOK_S)
                    continue
                while batch := await follower.batch(0.0 if stops else LOOK_S):
                    for event in batch:
                        yield event
                if stops:
                    return
        finally:
            if follower is not None:
                await follower.close()

    def key_file(self, run: FleetRun) -> str | None:
        """The key file of a run's agent; None if the agent has none or this fleet does not have the agent."""
        return (
            self._agents.options(run.agent).key_file if self._agents is not None and run.agent in self._agents else None
        )

    def close(self) -> None:
        """Stop listening for notifications; the store stays open, because it belongs to the caller."""
        self.queue.tables.close()


def _body(prompt: Any, wishes: Mapping[str, Any] | None, reply_to: tuple[str, str] | None, *, must_exist: bool) -> str:
    if prompt is not None:
        message = read_prompt(prompt, paths=False)
        if not message.text.strip() and not message.parts:
            raise OptionsError("the prompt is empty: describe the task")
    text = _written_body(prompt, wishes, reply_to, must_exist=must_exist)
    if len(text) > MAX_BODY_BYTES:
        raise OptionsError(
            f"the prompt and its settings have {len(text)} bytes as JSON, and a fleet accepts at most {MAX_BODY_BYTES}: put "
            "long text into a file"
        )
    return text


def _written_body(
    prompt: Any, wishes: Mapping[str, Any] | None, reply_to: tuple[str, str] | None, *, must_exist: bool = False
) -> str:
    body = {"prompt": prompt, "wishes": dict(wishes or {}) or None}
    told = {} if reply_to is None else {"told": list(reply_to)}
    return dumps_json({**body, **told, **({"must_exist": True} if must_exist else {})})


def _body_again(run: FleetRun) -> str:
    """The body of a run that begins with the same prompt, under the id that the first attempt would have given it."""
    return dumps_json({**loads_json(run.body), "request_id": run.prompt_id})


def _unretryable(run: FleetRun) -> str | None:
    """The reason why a run cannot be retried, as the predicate of a sentence about the run; None if it can be."""
    if not run.is_over:
        return f"is {run.state}: only a run that is over can be retried"
    if run.is_step and run.listener is not None:
        return f"is a step of a workflow: retry that with `openagentic-sdk workflow retry {run.listener[0]}`"
    if run.state == "cancelled":
        return f"was cancelled permanently: `fleet enqueue {run.agent} --session {run.session}` continues its session"
    if run.state == "ended" and run.stop_reason == "end":
        return f"ended by itself: `fleet enqueue {run.agent} PROMPT --session {run.session}` continues its session"
    return None


def _told(value: Any) -> str | None:
    is_pair = isinstance(value, tuple) and len(value) == 2 and all(isinstance(each, str) for each in value)
    return None if is_pair else "a pair of strings, the session of a workflow and the name of an event"


def _name(value: Any) -> str | None:
    fits = isinstance(value, str) and 0 < len(value) <= MAX_NAME_CHARS and on_one_line(value) == value
    return None if fits else f"a string of 1 to {MAX_NAME_CHARS} visible characters"


_CHECKS: Mapping[str, Check] = {
    "tenant": lambda value: None if value == "" else _name(value),
    "queue": _name,
    "priority": number(-MAX_PRIORITY, whole=True, most=MAX_PRIORITY),
    "max_attempts": number(1, whole=True, most=1000),
    "workspace": or_none(_name),
}


def _seconds(run_at: datetime | float | None) -> float | None:
    if isinstance(run_at, datetime):
        if run_at.tzinfo is None:
            raise OptionsError(f"run_at {run_at.isoformat()} has no time zone: give one, for instance datetime.UTC")
        return run_at.timestamp()
    if run_at is None:
        return None
    if isinstance(run_at, bool) or not isinstance(run_at, int | float) or not math.isfinite(run_at):
        raise OptionsError(f"run_at must be a datetime with a time zone, or seconds since 1970, not {run_at!r:.100}")
    return float(run_at)


def _check_tenant(store: SessionStore, session: str, tenant: str) -> None:
    try:
        metadata = store.read_metadata(session)["metadata"]
    except SessionNotFoundError:
        return
    # The same error as for a missing session: a tenant does not learn which ids others use.
    if (metadata.get(TENANT_KEY) or "") != tenant:
        raise SessionNotFoundError(session)
