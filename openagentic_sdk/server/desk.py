"""The operations on agents and sessions, for any protocol: start, answer, steer, cancel, fork, rewind and read.

A run belongs to the desk, not to the request that started it: it continues if its client disconnects, and its events are
followed in the store. A session belongs to a tenant; for other tenants it does not exist.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from ..agents import AGENT_KEY, Agents
from ..assemble import build_agent
from ..errors import (
    AnswerRefusedError,
    OptionsError,
    RequestRefusedError,
    SessionExistsError,
    SessionLockedError,
    SessionNotFoundError,
)
from ..events import Event, Result, UserAnswer, UserQuestion
from ..ground.frozen import frozen
from ..ground.patterns import regex
from ..ground.words import plural
from ..kernel.prompt import Said, prompt_sha256
from ..kernel.recorder import off_loop
from ..options import OpenAgenticOptions
from ..parts.record.lifecycle import fork_session, rewind_session
from ..parts.workflows.inbox import INBOX_ENDING
from ..prompts import OnePrompt
from ..runs.abandoned import WISHES_KEY, AbandonedRequest, find_abandoned, first_writer_at
from ..runs.background import (
    BackgroundResult,
    BackgroundRun,
    answer_questions,
    cancel_session,
    open_questions,
    submit,
)
from ..serialization import dumps_json
from ..sessions.base import SessionStore
from ..sessions.core import TENANT_KEY, new_session_id
from ..sessions.folds.standing import LEFT_STATES, Request, find_request
from ..sessions.folds.summary import SessionSummary
from ..sessions.follow import Follower, is_held, watch_of
from ..sessions.resume import load_view
from ..sessions.seal import Seal
from .abandoned import AbandonedRequests
from .guard import Principal
from .messages import Messages, name_of, read_message
from .operations.journal import TRACEPARENT
from .shelf import Shelf

T = TypeVar("T")

# How long a run may lock its session after its last event.
CLOSING_S = 5.0
MAX_RUNS = 32
GRACE_S = 10.0
# Visible ASCII except `~`, which separates a key from the digest of its request.
_KEY = regex(r"[!-}]{1,200}")
# Valid as a session id in every store and as a segment of every path.
_PLAIN_ID = regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@frozen
class Started:
    """An accepted request, whose events follow event `after_seq`.

    `request_id` identifies it and, if it has a prompt, the prompt's `user.message`. `is_new` is False if the same request
    was accepted before; then nothing was started.
    """

    session_id: str
    request_id: str
    after_seq: int
    is_new: bool = True


class Desk(Shelf):
    """The runs of one process in one store. `max_runs` limits simultaneous runs; parked ones do not count.

    `problem` states why there are no agents, for clients that request one. `followers` are the open subscriptions to
    sessions, `left` finds and resumes abandoned requests, `messages` delivers messages to runs.

    Operations on a session raise `SessionNotFoundError` if the principal's tenant has no such session; `start`,
    `answer_all`, `steer`, `fork` and `rewind` also raise `RequestRefusedError` 503 if this process is ending.
    """

    def __init__(
        self, agents: Agents | None, store: SessionStore, *, max_runs: int = MAX_RUNS, problem: str = ""
    ) -> None:
        self.store = store
        self.problem = problem
        self.takes_prompts = agents is not None
        # Called when a run stops, with the session, the stop reason, and the error if any.
        self.on_stop: Callable[[str, str, str | None], None] = lambda *stopped: None
        self.is_draining = False
        self.is_queue = False  # whether other processes execute the runs
        self._agents = agents
        self._max_runs = max_runs
        self._runs: dict[str, BackgroundRun] = {}
        self._tending: set[asyncio.Task[None]] = set()
        self.followers: set[Follower] = set()
        self._answered: list[str] = []  # sessions with an answer whose run has not started yet
        self.left = AbandonedRequests(self)
        self.messages = Messages(self, self._runs)

    @property
    def agents(self) -> Agents:
        """The agents that may be started. Raises `RequestRefusedError` 403 if there are none."""
        if self._agents is None:
            raise RequestRefusedError(
                403, self.problem or "this server only shows sessions: to start runs, serve agents"
            )
        return self._agents

    # --- start and resume ----------------------------------------------------------------------------------------------

    async def start(
        self,
        who: Principal,
        agent: str | None,
        prompt: OnePrompt | None,
        *,
        session_id: str | None = None,
        name: str | None = None,
        key: str | None = None,
        request_id: str | None = None,
        wishes: Mapping[str, Any] | None = None,
        notes: Mapping[str, Any] | None = None,
    ) -> Started:
        """Start a run with this prompt; return once the prompt is stored and all open questions are closed.

        The run is in the session `session_id`; if that is `None`, in the session that the client calls `name`, which is
        created if missing; without either, in a new one. With `prompt` None, the session continues from its log. `agent`
        defaults to the session's last agent, then to the default agent. `key` makes a repeated request harmless, even after
        a crash: it is accepted once. `request_id` identifies the prompt; one is generated if it is `None`. `wishes` are as
        in `Agents.options` and apply until the run is over, even if it is parked. `notes` are stored in the session's
        metadata under `note_key(request_id)`.

        Raises `RequestRefusedError` (400 for an invalid key, 403 without agents, 409 if the run was cancelled before the
        prompt was stored, 422 if the key was used for something else or a hook refused the prompt, 429 for too many runs,
        503 if this process is ending, the project folder is missing, or the run failed before the prompt was stored),
        `QuestionOpenError` if the principal may not answer the open questions, `SessionNotFoundError`,
        `SessionLockedError`, `AgentNotFoundError` and `OptionsError`.
        """
        self._check_open()
        may_be_known = key is not None or request_id is not None
        request_id = request_id or request_id_of(key, agent, prompt, wishes) or os.urandom(16).hex()
        message = None
        if prompt is not None:
            message = replace(read_message(prompt), request_id=request_id, may_answer=who.may_answer)
        target, is_there = (session_id, True) if session_id is not None else await self.place(who, name, key)
        metadata = await self._metadata(who, target) if is_there else {}
        earlier = await self._earlier(target, request_id, key, message, is_there=is_there) if may_be_known else None
        if earlier is not None and not earlier.is_new:
            return earlier
        if prompt is None and not wishes:
            wishes = metadata.get(WISHES_KEY)  # those of the run that this one continues
        agent = agent or metadata.get(AGENT_KEY) or self.agents.default
        facts: dict[str, Any] = {AGENT_KEY: agent, WISHES_KEY: dict(wishes or {}) or None}
        if notes:
            facts[note_key(request_id)] = dict(notes)
        # A prompt contains its own id, which is unique in its session.
        own_id = request_id if message is None else None
        options = self._run_options(who, facts, own_id, **{"resume" if is_there else "session_id": target})
        after_seq = (await self.row(who, target)).events if is_there else 0
        begin = partial(self.begin_run, target, message, options, is_stored=earlier is not None)
        try:
            await self._when_free(target, begin)
        except SessionLockedError:
            if earlier is None:
                raise
            return replace(earlier, is_new=False)  # another process has resumed it
        # Only now: the metadata of a run that is still in progress must not change.
        if is_there and {name: metadata.get(name) for name in facts} != facts:
            await off_loop(True, self.store.update_metadata, target, facts)
        return earlier or Started(target, request_id, after_seq)

    def _run_options(
        self, who: Principal, facts: Mapping[str, Any], request_id: str | None, **session: str
    ) -> OpenAgenticOptions:
        """The options of a run. `session` contains its session's id, as `resume`, or as `session_id` for a new session."""
        agent, wishes, trace = facts[AGENT_KEY], facts[WISHES_KEY], TRACEPARENT.get()
        if not who.may_answer:
            # A principal that may not answer a question must not be able to avoid it with looser settings either.
            self.agents.check_no_looser(agent, wishes)
        return self.agents.options(
            agent,
            wishes,
            session_store=self.store,
            request_id=request_id,
            session_metadata={name: value for name, value in {**facts, TENANT_KEY: who.tenant}.items() if value},
            **session,
            **({} if trace is None else {"traceparent": trace}),
        )

    async def answer_all(
        self, who: Principal, session_id: str, answers: Mapping[str, str], *, key: str | None = None
    ) -> None:
        """Answer questions (by their ids) on which the session is parked, as `who`, and resume the run in this process.

        If the same answers are sent again with their key, they are not stored again, and the run is resumed unless it has
        been. All answers are stored or none.

        Raises `RequestRefusedError` 403 if the principal may not answer, and 409 if one of the questions is not open (for
        instance because it was answered before), and `AnswerRefusedError` for an invalid answer. Also raises the errors of
        `start` if the run cannot be resumed.
        """
        self._check_open()
        metadata = await self._metadata(who, session_id)
        if not who.may_answer:
            raise RequestRefusedError(403, "you may not answer questions")
        agent = metadata.get(AGENT_KEY) or self.agents.default
        options = self.agents.options(agent, metadata.get(WISHES_KEY), session_store=self.store, resume=session_id)
        store_answers = partial(
            answer_questions,
            self.store,
            session_id,
            answers,
            answered_by=who.name,
            key_file=options.key_file,
            approver={"name": who.name, "how": "server token", "tenant": who.tenant},
            request_id=request_id_of(key, "answers", sorted(answers.items())),
            tools=build_agent(options).tools,
        )
        parked = self._runs.get(session_id)
        if parked is None or parked.is_over:
            self._check_room()  # before anything is stored: otherwise no run could continue
        # Until the run has begun: nobody else may resume the session as an abandoned one meanwhile.
        self._answered.append(session_id)
        try:
            try:
                is_new = await self._when_free(session_id, store_answers)
            except AnswerRefusedError:
                raise
            except OptionsError as error:
                raise RequestRefusedError(409, str(error), "question_not_open") from None
            if is_new and parked is not None:
                await parked.over()  # it has released the session; otherwise nothing could have been stored
            row = await off_loop(True, self.store.read_summary, session_id)
            newest = await off_loop(True, partial(self.store.read_events, session_id, after_seq=row.events - 1))
            # The last condition is for a process that died between storing the answers and starting the run.
            if is_new or row.state == "stopped" or isinstance(newest[-1], UserAnswer):
                await self._go_on(session_id, options)
        finally:
            self._answered.remove(session_id)

    async def _go_on(self, session_id: str, options: OpenAgenticOptions) -> None:
        """Start the run that continues after answers just stored, unless another process has already started it.

        A locked session does not prove that it has: a process that only checks for open questions also locks it briefly.
        """
        answer_seq = (await off_loop(True, self.store.read_summary, session_id)).events
        until = asyncio.get_running_loop().time() + CLOSING_S
        while True:
            try:
                return await self.begin_run(session_id, None, options)
            except SessionLockedError:
                run = self._runs.get(session_id)
                goes_on = run is not None and not run.is_over
                if goes_on or (await off_loop(True, self.store.read_summary, session_id)).events > answer_seq:
                    return
                if asyncio.get_running_loop().time() > until:
                    raise
            await asyncio.sleep(0.02)

    async def steer(self, who: Principal, session_id: str, prompt: OnePrompt, *, key: str | None = None) -> None:
        """Send a message to a run in this or another process; the model receives it at the next step.

        It stays in the store until it is in the log, even if this process dies. If the run has just ended or parks, the
        message is the next prompt; from a principal who may not answer, it waits until the questions are answered. With a
        `key`, a repeated message is accepted once. Raises `RequestRefusedError` 409 if no run is in progress or the store
        has no inbox.
        """
        self._check_open()
        await self._metadata(who, session_id)
        request_id = request_id_of(key, "messages", session_id, prompt)
        read_message(prompt)
        if await is_request_known(self.store, session_id, request_id, key):
            return
        await self._check_reachable(session_id)
        sender = {"by": who.name, "may_answer": who.may_answer, "request_id": request_id}
        await self.messages.put(session_id, {"do": "steer", "prompt": prompt, **sender})

    async def cancel(self, who: Principal, session_id: str, *, request_id: str | None = None) -> bool:
        """End the run of a session permanently, wherever it is running or parked; return False if the session has no run.

        Where several runs may be queued, `request_id` selects the one to end. A run in another process gets a message.
        Raises `RequestRefusedError` 409 if the store has no inbox for it.
        """
        metadata = await self._metadata(who, session_id)
        run = self._runs.get(session_id)
        if run is not None and not run.is_over:
            await run.cancel()
            return True
        try:
            key_file = self._key_file(metadata)
            return await cancel_session(self.store, session_id, cancelled_by=who.name, key_file=key_file)
        except SessionLockedError:
            await self._check_reachable(session_id)
            # A run that begins after this event is not the one to cancel.
            seq = (await off_loop(True, self.store.read_summary, session_id)).events
            await off_loop(True, self.store.put_message, session_id, {"do": "cancel", "by": who.name, "seq": seq})
            return True

    async def fork(self, who: Principal, session_id: str, *, at_seq: int | None = None, key: str | None = None) -> str:
        """Copy a session up to event `at_seq`, or whole if None; return the copy's id.

        Repeated with its key, the call returns the same id.
        """
        self._check_open()
        await self._metadata(who, session_id)
        fork_id = _hashed(who.tenant, "fork", session_id, _checked_key(key)) if key is not None else new_session_id()
        fork = partial(fork_session, self.store, session_id, at_seq=at_seq, session_id=fork_id)
        try:
            return str(await off_loop(True, fork))
        except SessionExistsError:
            metadata = await self._metadata(who, fork_id)
            # The id follows from the key, so the existing fork was made by an earlier request with this key, which may have
            # named another event.
            if at_seq not in (None, metadata.get("parent_seq")):
                raise other_body(key) from None
            return fork_id

    async def rewind(
        self,
        who: Principal,
        session_id: str,
        *,
        to_seq: int | None = None,
        turns: int | None = None,
        key: str | None = None,
    ) -> Event:
        """Remove the events after `to_seq`, or the newest `turns` prompts and what followed them, from the model's view;
        return the recorded event.

        Repeated with its key, the call returns the same event.
        """
        self._check_open()
        seal = Seal(self._key_file(await self._metadata(who, session_id)))
        request_id = request_id_of(key, "rewind", to_seq, turns)
        await is_request_known(self.store, session_id, request_id, key)
        rewind = partial(rewind_session, self.store, session_id, to_seq=to_seq, turns=turns)
        rewind = partial(rewind, request_id=request_id, seal=seal)
        event: Event = await self._when_free(session_id, partial(off_loop, True, rewind))
        return event

    # --- read ----------------------------------------------------------------------------------------------------------

    async def agent_of(self, who: Principal, session_id: str) -> str:
        """The last agent of a session, or the default one."""
        return (await self._metadata(who, session_id)).get(AGENT_KEY) or self.agents.default

    async def row(self, who: Principal, session_id: str) -> SessionSummary:
        """The summary of a session; its `events` is the `seq` of the log's last event. Raises `SessionNotFoundError`."""
        try:
            row: SessionSummary = await off_loop(True, self.store.read_summary, session_id)
        except OptionsError:
            raise SessionNotFoundError(session_id) from None
        _check_tenant(who, session_id, {TENANT_KEY: row.tenant or ""})
        shown_row = self._shown_row(row)
        if shown_row.state in LEFT_STATES:  # clients that poll wait no longer than followers
            self.left.schedule(session_id)
        return shown_row

    async def questions(self, who: Principal, session_id: str) -> list[UserQuestion]:
        """The session's open questions, whose ids `answer_all` accepts."""
        seal = Seal(self._key_file(await self._metadata(who, session_id)))
        questions: list[UserQuestion] = await off_loop(True, open_questions, self.store, session_id, seal)
        return questions

    def _key_file(self, metadata: Mapping[str, Any]) -> str | None:
        """The key file of the session's last agent, if this server has that agent."""
        agent = str(metadata.get(AGENT_KEY))
        return self._agents.options(agent).key_file if self._agents is not None and agent in self._agents else None

    def _shown_row(self, row: SessionSummary) -> SessionSummary:
        """The summary as clients see it: a run of this process that has not locked its session yet counts as running."""
        return replace(row, state="running") if row.state == "stopped" and self.goes_on(row.id) else row

    async def events(
        self, who: Principal, session_id: str, *, after_seq: int = 0, limit: int = 500
    ) -> tuple[list[Event], int]:
        """Read up to `limit` stored events after a cursor; return them, and the `seq` of the log's last event.

        Raises `RequestRefusedError` 409 if the cursor exceeds the log.
        """
        last_seq = (await self.row(who, session_id)).events
        _check_cursor(after_seq, last_seq)
        read_page = partial(self.store.read_events, session_id, after_seq=after_seq, limit=limit)
        page: list[Event] = await off_loop(True, read_page)
        return page, max(last_seq, page[-1].seq or 0 if page else 0)

    @asynccontextmanager
    async def follow(
        self, who: Principal, session_id: str, *, after_seq: int = 0, deltas: bool = True
    ) -> AsyncGenerator[Follower, None]:
        """Follow a session during the block, with deltas unless `deltas` is false; the follower is woken when this process
        ends.

        Raises `RequestRefusedError` 409 if the cursor exceeds the log.
        """
        _check_cursor(after_seq, (await self.row(who, session_id)).events)
        async with self.follow_known(session_id, after_seq=after_seq, deltas=deltas) as follower:
            yield follower

    @asynccontextmanager
    async def follow_known(
        self, session_id: str, *, after_seq: int, deltas: bool = True
    ) -> AsyncGenerator[Follower, None]:
        """Follow a session during the block, without the checks of `follow`, for callers that have just read its summary."""
        follower = Follower(self.store, session_id, after_seq=after_seq, deltas=deltas)
        self.followers.add(follower)
        self.left.look()
        try:
            yield follower
        finally:
            self.followers.discard(follower)
            await follower.close()

    # --- lifecycle of the process --------------------------------------------------------------------------------------

    def open(self) -> None:
        """Start keeping the deltas of runs for later followers, and resuming abandoned requests."""
        watch_of(self.store)
        self.left.look_on()

    def stop_taking(self) -> None:
        """Accept no more runs, resume no more abandoned requests, and wake all followers."""
        self.is_draining = True
        self.left.end()
        for follower in self.followers:
            follower.wake()

    async def drain(self, grace_s: float) -> None:
        """Accept no more runs, and suspend those in progress, which have `grace_s` seconds to finish their step."""
        self.stop_taking()
        await asyncio.gather(*(run.suspend(grace_s) for run in self._runs.values()), return_exceptions=True)
        if self._tending:
            await asyncio.wait(self._tending)

    # --- helpers -------------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self.is_draining:
            raise RequestRefusedError(
                503, "this server is shutting down: send the request again", "draining", retry_after_s=1
            )

    def _check_room(self) -> None:
        if count_runs(self) >= self._max_runs:
            raise RequestRefusedError(
                429,
                f"the limit of {plural(self._max_runs, 'run')} in progress is reached: send the request again later",
                retry_after_s=2,
            )

    async def _metadata(self, who: Principal, session_id: str) -> dict[str, Any]:
        """The metadata of a session of this tenant; another tenant's session is reported as not found."""
        try:
            metadata: dict[str, Any] = (await off_loop(True, self.store.read_metadata, session_id))["metadata"]
        except OptionsError:
            raise SessionNotFoundError(session_id) from None
        _check_tenant(who, session_id, metadata)
        return metadata

    async def place(self, who: Principal, name: str | None, key: str | None = None) -> tuple[str, bool]:
        """Find the session that a client's name or key denotes; return its id, new if both are None, and whether it exists.

        Raises `SessionNotFoundError` if the id is in use by another tenant.
        """
        if name is None and key is None:
            return new_session_id(), False
        # Without a tenant, a name is itself the id if that is free; with one it is hashed, so tenants never share an id.
        ids = [_hashed(who.tenant, *(("key", _checked_key(key)) if name is None else ("name", name)))]
        # The ids of the inboxes of workflows are not for clients, whose prompts would be in the way of events.
        if name is not None and not who.tenant and _PLAIN_ID.fullmatch(name) and not name.endswith(INBOX_ENDING):
            ids.insert(0, name)
        for session_id in ids:
            # A session with the plain name may belong to a tenant: then the hashed one is tried, and nothing is
            # revealed.
            if not await off_loop(True, self.store.session_exists, session_id):
                return session_id, False
            with suppress(SessionNotFoundError):
                await self._metadata(who, session_id)
                return session_id, True
        raise SessionNotFoundError(ids[-1])

    async def _earlier(
        self, session_id: str, request_id: str, key: str | None, message: Said | None, *, is_there: bool
    ) -> Started | None:
        """Find the run of a request accepted before (`is_new` if it must be resumed now); return None for a new request.

        Raises `RequestConflictError`, or `RequestRefusedError` 422, if the id or key was used for something else.
        """
        run = self._runs.get(session_id)
        if run is not None and run.request_id == request_id and (seq := await run.wait_stored()):
            return Started(session_id, request_id, seq - 1, is_new=False)
        if not is_there:
            return None
        view, _ = await off_loop(True, load_view, self.store, session_id)
        if request_id in view.requests:
            if message is not None:
                view.requests.check(request_id, prompt_sha256(message), session_id)
            after_seq = view.requests[request_id].seq - 1
            events = partial(self.store.iter_events, session_id, after_seq=after_seq)
            stands = await off_loop(True, lambda: find_request(events(), request_id.__eq__))
            is_parked = stands is not None and (stands.state == "parked" or _was_superseded(stands))
            if is_parked or view.requests.answer_to(request_id) is not None:
                return Started(session_id, request_id, after_seq, is_new=False)
            failed = next((event.seq or 0 for event in reversed(view.events) if isinstance(event, Result)), 0)
            return Started(session_id, request_id, max(after_seq, failed))
        if key is not None and any(other.startswith(f"{key}~") for other in view.requests):
            raise other_body(key)
        return None

    async def _when_free(self, session_id: str, work: Callable[[], Awaitable[T]]) -> T:
        """Do the work and return its result; retry it while a run that has just ended or parked still locks the session.

        A run's last event is visible slightly before its lock is released. Also raises the errors of `work`; a
        `SessionLockedError` only if a run is in progress, or after `CLOSING_S` seconds.
        """
        until = asyncio.get_running_loop().time() + CLOSING_S
        while True:
            try:
                return await work()
            except SessionLockedError:
                row = await off_loop(True, self.store.read_summary, session_id)
                if row.state == "running" or asyncio.get_running_loop().time() > until:
                    raise
            await asyncio.sleep(0.02)

    async def begin_run(
        self,
        session_id: str,
        prompt: Said | None,
        options: OpenAgenticOptions,
        *,
        is_stored: bool = False,
        guard: Callable[[], None] | None = None,
    ) -> None:
        """Start a run and wait until its prompt is stored or, without a prompt, until it has begun. Raises the errors of
        `start`.
        """
        agent = options.session_metadata[AGENT_KEY]
        if prompt is not None:
            prompt = replace(prompt, names_files=self.agents[agent].client_files)
        # No `await` from here to `submit`: a repeated request could arrive meanwhile. The error omits the path, which
        # clients need not learn.
        if not options.working_dir().is_dir():
            raise RequestRefusedError(503, f"the project folder of agent {agent} is missing on this server")
        earlier_run = self._runs.get(session_id)
        if earlier_run is not None and not earlier_run.is_over:
            raise SessionLockedError(session_id, "a run of this server")
        self._check_room()
        run = self._runs[session_id] = submit(prompt, options, guard=guard)
        self.keep(self._tend(session_id, run))
        self.messages.look()
        # A prompt that was stored before a crash is not stored again.
        if prompt is None or is_stored:
            await run.wait_begun()
            is_there = run.has_begun
        else:
            is_there = await run.wait_stored() > 0
        if not is_there:
            self._check_open()  # the run was ended before its prompt was stored: nothing was accepted
            raise await _prompt_not_stored(run)

    def goes_on(self, session_id: str) -> bool:
        """Whether this process runs the session, or is about to."""
        run = self._runs.get(session_id)
        return session_id in self._answered or (run is not None and not run.is_over)

    def find_left(self, session_id: str) -> AbandonedRequest | None:
        """The session's abandoned request; None if it has none, or if this process runs the session or is about to."""
        return None if self.goes_on(session_id) else find_abandoned(self.store, session_id, self._agents)

    async def go_on_with(self, request: AbandonedRequest) -> None:
        """Start the run that resumes an abandoned request, unless it was cancelled or this process is ending.

        Raises the errors of `begin_run`.
        """
        assert request.options is not None, "only a request with options can be resumed"
        if await self.messages.cancel_left(request.session_id, request.said_seq, request.options.key_file):
            return  # its process died before it received the cancel
        if self.is_draining:
            return  # a run that began now would not be suspended with the others
        await self.begin_run(request.session_id, None, request.options, guard=first_writer_at(self.store, request))

    def keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the coroutine as a background task for which `drain` waits."""
        task = asyncio.create_task(work)
        self._tending.add(task)
        task.add_done_callback(self._tending.discard)

    async def _tend(self, session_id: str, run: BackgroundRun) -> None:
        """Wait for the end of a run, report it, and deliver the messages that it has not received."""
        stop_reason, error = "error", None
        try:
            result = await run.wait()
            stop_reason = result.stop_reason
            error = None if result.state in ("ended", "waiting") else result.error
        except asyncio.CancelledError:
            stop_reason = "cancelled"
        except Exception as failure:  # noqa: BLE001 - raised by `begin_run` if before the start; later errors are reported here
            error = str(failure)
            if run.has_begun:
                context = {"message": f"a run of session {session_id} failed", "exception": failure}
                asyncio.get_running_loop().call_exception_handler(context)
        finally:
            # The session's next run may already have replaced this one.
            if self._runs.get(session_id) is run:
                del self._runs[session_id]
        self.on_stop(session_id, "interrupted" if stop_reason == "cancelled" else stop_reason, error)
        await self.messages.after(session_id, run, stop_reason)

    async def _check_reachable(self, session_id: str) -> None:
        """Raise `RequestRefusedError` 409 if no run is in progress or the store has no inbox."""
        run = self._runs.get(session_id)
        if (run is None or run.is_over) and not await off_loop(True, is_held, self.store, session_id):
            raise RequestRefusedError(409, "no run is in progress in this session: send a prompt", "no_run")
        if not self.store.has_inbox:
            text = "this store cannot deliver messages to a running session: wait until the run has ended"
            raise RequestRefusedError(409, text, "no_run")


def count_runs(desk: Desk) -> int:
    """The number of runs in progress in this process; parked ones do not count."""
    return sum(not run.is_over for run in desk._runs.values())


def rate_headers(desk: Desk) -> dict[str, str]:
    """Headers with the limit of simultaneous runs and the number still free (draft-ietf-httpapi-ratelimit-headers-10).

    Empty if this process runs nothing: it only shows sessions, or queues the runs for a fleet.
    """
    if not desk.takes_prompts or desk.is_queue:
        return {}
    free = max(0, desk._max_runs - count_runs(desk))
    return {
        "RateLimit-Policy": f'"runs";q={desk._max_runs};qu="concurrent-requests"',
        "RateLimit": f'"runs";r={free}',
    }


async def _prompt_not_stored(run: BackgroundRun) -> RequestRefusedError:
    """Wait for the end of a run whose prompt is not in the log; return the error for the client."""
    await run.over()
    [result] = await asyncio.gather(run.wait(), return_exceptions=True)
    if not isinstance(result, BackgroundResult):
        return RequestRefusedError(409, "the run was cancelled before its prompt was stored: send the prompt again")
    message = f"the prompt was not stored ({result.stop_reason}): {result.error}"
    if result.stop_reason.startswith("blocked:"):
        return RequestRefusedError(422, message, "prompt_refused")
    return RequestRefusedError(503, message)


async def is_request_known(store: SessionStore, session_id: str, request_id: str | None, key: str | None) -> bool:
    """Whether a request with this key is stored or queued; False without a key.

    Raises `RequestRefusedError` 422 if the key was used with a different body.
    """
    if key is None:
        return False
    # In this order, because a message leaves the inbox once it is in the log.
    waiting = await off_loop(True, store.read_messages, [session_id]) if store.has_inbox else ()
    view, _ = await off_loop(True, load_view, store, session_id)
    request_ids = {*map(name_of, waiting), *view.requests}
    if request_id not in request_ids and any(other.startswith(f"{key}~") for other in request_ids):
        raise other_body(key)
    return request_id in request_ids


def _was_superseded(request: Request) -> bool:
    """Whether another prompt superseded a request that waited for an answer."""
    return not request.is_newest and request.result is not None and request.result.stop_reason == "waiting"


def note_key(request_id: str) -> str:
    """The metadata key under which notes about a request are stored."""
    return f"request {hashlib.sha256(request_id.encode()).hexdigest()[:12]}"


def request_id_of(key: str | None, *parts: Any) -> str | None:
    """The request id: the key and a digest of `parts`; None without a key. Raises `RequestRefusedError` 400 for an invalid
    key.
    """
    if key is None:
        return None
    return f"{_checked_key(key)}~{hashlib.sha256(dumps_json(parts).encode()).hexdigest()[:16]}"


def _checked_key(key: str | None) -> str:
    if key is None or not _KEY.fullmatch(key):
        raise RequestRefusedError(
            400, "an Idempotency-Key must consist of 1 to 200 visible ASCII characters other than ~"
        )
    return key


def _hashed(*parts: str) -> str:
    return hashlib.sha256(dumps_json(parts).encode()).hexdigest()[:32]


def other_body(key: str | None) -> RequestRefusedError:
    """The refusal of a key that was used for a request with another body."""
    message = f"the Idempotency-Key {key} was used for a different request before: use a new one"
    return RequestRefusedError(422, message, "key_reused")


def _check_tenant(who: Principal, session_id: str, metadata: Mapping[str, Any]) -> None:
    if metadata.get(TENANT_KEY, "") != who.tenant:
        raise SessionNotFoundError(session_id)


def _check_cursor(after_seq: int, last_seq: int) -> None:
    if after_seq > last_seq:
        text = f"the log ends at event {last_seq}, before the cursor {after_seq}: read it again from the start"
        raise RequestRefusedError(409, text, "cursor_beyond_log")
