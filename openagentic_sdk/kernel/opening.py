"""Open a session for a run: create or load it, lock it, fold its log.

Only a new session and the claim of a request id are written here, so a refusal changes no log.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from hashlib import sha256
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary, finalize, ref

from ..errors import (
    OptionsError,
    RequestConflictError,
    SessionError,
    SessionExistsError,
    SessionLockedError,
    StorageError,
    StorageTimeoutError,
)
from ..events import Event
from ..ground.frozen import changed, frozen
from ..ground.garbage import when_collected
from ..providers.base import ProviderSession, for_session
from ..sessions.authority import Authority
from ..sessions.core import SessionWriter, StoreCore, session_of_request
from ..sessions.folds.view import SessionView
from ..sessions.resume import load_view
from ..sessions.seal import Seal
from .agent import AgentRuntime, Run, RunRequest
from .channel import EventChannel
from .foreign import watch_foreign
from .lifetime import STORE_MOMENT_S, Deadline, Lifetime, Stopping
from .part import Part, Parts, kind_of
from .recorder import Recorder, ask_store, may_block
from .tool import RunResources
from .tool_context import run_services


async def open_run(
    agent: AgentRuntime,
    request: RunRequest,
    channel: EventChannel[Event],
    *,
    parent: Run | None = None,
    parent_tool_use_id: str | None = None,
) -> Run:
    """Lock and load a session; return its run, which `close_run` must release.

    Nothing has changed after `OptionsError`, `SessionNotFoundError`, `SessionExistsError`, `SessionLockedError`,
    `RequestConflictError` or `LogCorruptError`. A subagent shares its parent's deadline.
    """
    # Before a session exists: a refusal must leave nothing behind.
    _check_limits(agent, request)
    if agent.seal is None:
        agent = changed(agent, seal=Seal())
    deadline = parent.lifetime.deadline if parent else Deadline.after(agent.clock, request.timeout_s)
    session_id, writer, view = await _take_session(agent, request, deadline)
    stopping = parent.lifetime.stopping if parent else Stopping(guard=request.guard)
    recorder = Recorder(
        writer,
        view,
        channel,
        may_block=may_block(agent.store),
        on_storage_error=agent.on_storage_error,
        parent_tool_use_id=parent_tool_use_id,
        agent_name=agent.name,
        guard=stopping.guard,
    )
    # Before the parts open, because some of them call a model through it.
    agent = changed(agent, provider=for_session(agent.provider, session_state(session_id, view)))
    run = Run(
        agent=agent,
        session_id=session_id,
        recorder=recorder,
        view=view,
        request=request,
        parent=parent,
        lifetime=Lifetime(agent.clock.monotonic(), deadline, stopping),
    )
    recorder.patience = run.lifetime.patience
    _OpenRun.note(recorder, writer, _place_of(agent.store))
    parts = [open_part(run) for open_part in agent.parts]
    # Before `Parts`, which requests their services at once.
    watch_foreign(parts)
    run.parts = recorder.parts = Parts(parts, {RunResources: RunResources(), **run_services(run)})
    return run


async def close_run(run: Run) -> None:
    """Release the session of a run that has ended, or never began."""
    await run.recorder.close()
    _OpenRun.forget(run.recorder)


@frozen
class _OpenRun:
    """A run whose session is not released yet: its writer, the finalizer that closes the writer once the run is collected,
    its event loop, and the place of its store.

    If an event loop is closed while a run's generator is unfinished (`asyncio.run` would end the generator first), the run
    never ends, and its process would hold the session to its end.
    """

    writer: SessionWriter
    release: finalize[..., Any]
    loop: ref[asyncio.AbstractEventLoop]
    place: object

    @classmethod
    def note(cls, recorder: Recorder, writer: SessionWriter, place: object) -> None:
        release = when_collected(recorder, writer.close)
        release.atexit = False  # at exit the system releases it, and a store that hangs would delay the exit
        with _GUARD:
            _OPEN_RUNS[recorder] = cls(writer, release, ref(asyncio.get_running_loop()), place)

    @staticmethod
    def forget(recorder: Recorder) -> None:
        with _GUARD:
            open_run = _OPEN_RUNS.pop(recorder, None)
        if open_run is not None:
            open_run.release.detach()


_OPEN_RUNS: WeakKeyDictionary[Recorder, _OpenRun] = WeakKeyDictionary()
_GUARD = Lock()


def _open_writer(store: StoreCore, session_id: str) -> SessionWriter:
    """Open the session's writer; take the session over from a run of this process whose event loop is closed."""
    try:
        return store.open_writer(session_id)
    except SessionLockedError as error:
        here = session_id, _place_of(store)
        with _GUARD:
            mine = [each for each in _OPEN_RUNS.values() if (each.writer.session_id, each.place) == here]
        loops = [(each, each.loop()) for each in mine]
        left = [each for each, loop in loops if loop is None or loop.is_closed()]
        for each in left:
            each.writer.close()
        if left:
            return store.open_writer(session_id)
        if any(loop is not None and not loop.is_running() for _, loop in loops):
            holder = "a run of this process whose event loop is not running (close its iterator there, with `aclose()`)"
            raise SessionLockedError(session_id, holder) from error
        raise


def _place_of(store: StoreCore) -> object:
    """The place where a store keeps its sessions; a store that has no `place` is treated as separate from all others."""
    return getattr(store, "place", None) or store


def session_state(session_id: str, view: SessionView) -> ProviderSession:
    """The state that the providers of one session share: the cache key and the adaptations (`controls`) of its requests."""
    return ProviderSession(f"openagentic-{sha256(session_id.encode()).hexdigest()[:32]}", view.controls)


def _check_limits(agent: AgentRuntime, request: RunRequest) -> None:
    """Raise `OptionsError` for a limit that no part of the agent enforces."""
    for name, limit in (("max_tokens", request.max_tokens), ("max_cost_usd", request.max_cost_usd)):
        if limit is None:
            continue
        kinds = map(kind_of, agent.parts)  # a plain function as opener may create any part
        if all(isinstance(k, type) and issubclass(k, Part) and name not in k.limits for k in kinds):
            raise OptionsError(f"{name}={limit} needs a part that enforces it, such as `Budgets`")


async def _take_session(
    agent: AgentRuntime, request: RunRequest, deadline: Deadline
) -> tuple[str, SessionWriter, SessionView]:
    """Open the session off the event loop; if the caller is cancelled meanwhile, release it, or delete it if it is new."""
    came: list[SessionWriter] = []

    def close_late() -> None:
        for late in came:
            late.close()

    # In a thread even for a local disk, because creating a session waits for several syncs.
    opening = partial(_open_session, agent, request, came)
    try:
        opened, cancelled = await ask_store(opening, deadline.patience, too_late=close_late)
    except StorageTimeoutError:
        # Reading a long log takes longer than a cancellation waits, and nothing of this run is stored yet.
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise asyncio.CancelledError from None
        raise
    session: tuple[str, SessionWriter, SessionView] = opened
    if cancelled is None:
        return session
    session_id, writer, _ = session

    def take_back() -> None:
        """Release a session in which no run begins; delete it if it was created for this run."""
        writer.close()
        if request.resume is None:
            agent.store.delete_session(session_id, expected_seq=0)  # somebody else may have taken it over

    with suppress(StorageError, SessionError):  # an empty session is harmless; the caller needs the cancellation
        await ask_store(take_back, lambda: STORE_MOMENT_S)
    raise cancelled


def _open_session(
    agent: AgentRuntime, request: RunRequest, came: list[SessionWriter]
) -> tuple[str, SessionWriter, SessionView]:
    store, session_id, is_new = agent.store, request.resume, False
    if session_id is None:
        metadata = {
            "cwd": agent.cwd,
            "provider_name": agent.provider.name,
            "model": agent.model,
            **({"agent_name": agent.name} if agent.name else {}),
            **request.metadata,
        }
        try:
            session_id = store.create_session(metadata=metadata, session_id=request.session or request.session_id)
            is_new = True
        except SessionExistsError:
            if request.session is None:
                raise
            # It exists already, or another process was faster: this run continues it.
            session_id = request.session
    if request.request_id is not None:
        # Of processes that start the same request at once, all but one find the session of the first.
        owner = store.claim_request(session_id, request.request_id)
        if owner != session_id:
            if is_new:
                store.delete_session(session_id, expected_seq=0)
            if request.session != session_of_request(request.request_id):
                raise RequestConflictError(request.request_id, owner, "in another session")
            session_id, is_new = owner, False
    writer = _open_writer(store, session_id)
    # At once: if the caller has given up meanwhile, `close_late` finds it here.
    came.append(writer)
    if is_new and not writer.last_seq:  # no other process was faster
        view = SessionView(
            agent.folds, provider=agent.provider.name, authority=Authority(session_id, agent.seal or Seal())
        )
        return session_id, writer, view
    try:
        view, kept_view = load_view(store, session_id, agent.folds, provider=agent.provider.name, seal=agent.seal)
        if kept_view is not None:
            writer.keep_view(kept_view)
        # An approval in a log from elsewhere must not count here.
        agent.gate.restore(session_id, filter(view.is_ours, view.events))
    except BaseException:  # after any error, release the session
        writer.close()
        raise
    return session_id, writer, view
