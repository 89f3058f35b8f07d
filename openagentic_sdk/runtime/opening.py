"""Open a session for a run: a new one or an old one, locked, its log folded.

Nothing is written here but a new session's metadata, so a refusal changes nothing.
"""

from __future__ import annotations

from functools import partial

from ..sessions.authority import Authority
from ..sessions.base import SessionWriter
from ..sessions.folds.view import SessionView
from ..sessions.resume import load_view
from .agent import Agent, Run, RunRequest, Spawn
from .channel import EventChannel
from .limits import Budget, Deadline
from .masking import mask_event, mask_value
from .recorder import Recorder, off_loop, settled
from .skill_apart import run_skill_apart
from .text_commands import fill_draft


async def open_run(
    agent: Agent,
    request: RunRequest,
    channel: EventChannel,
    spawn: Spawn,
    *,
    parent: Run | None = None,
    parent_tool_use_id: str | None = None,
) -> Run:
    """Become the one run of a session.

    Raises `SessionNotFoundError`, `SessionLockedError` or `LogCorruptError`, and then nothing was changed. A subagent
    shares its parent's budget and deadline.
    """
    # In a thread even on a disk of our own: making a session waits for several syncs.
    opening, cancelled = await settled(off_loop(True, _open_session, agent, request))
    session_id, writer, view = opening.result()
    if cancelled is not None:

        def take_back() -> None:
            """Let go of a session that no run begins in; one that was made for this run is taken away again."""
            writer.close()
            if request.resume is None:
                agent.store.delete_session(session_id)

        undone, _ = await settled(off_loop(True, take_back))
        undone.exception()  # what could not be removed is an empty session; the cancellation is what the caller must see
        raise cancelled
    recorder = Recorder(
        writer,
        view,
        channel,
        is_remote=agent.store.is_remote,
        on_storage_error=agent.on_storage_error,
        parent_tool_use_id=parent_tool_use_id,
        agent_name=agent.name,
        mask=None if agent.redact is None else partial(mask_event, redact=agent.redact),
    )
    deadline = parent.deadline if parent else Deadline.after(agent.clock, request.timeout_s)
    budget = Budget(request.max_tokens, request.max_cost_usd, view.tokens, view.cost_usd)
    agent.gate.restore(session_id, filter(view.is_ours, view.events))
    return Run(
        agent=agent,
        session_id=session_id,
        recorder=recorder,
        view=view,
        budget=parent.budget if parent else budget,
        deadline=deadline,
        spawn=spawn,
        fill_text=fill_draft,
        run_skill=run_skill_apart,
        request=request,
        depth=parent.depth + 1 if parent else 0,
        began_at=agent.clock.monotonic(),
        session_dir=agent.session_dir(session_id),
    )


def _open_session(agent: Agent, request: RunRequest) -> tuple[str, SessionWriter, SessionView]:
    store = agent.store
    if request.resume is None:
        metadata = {
            "cwd": agent.cwd,
            "provider_name": agent.provider.name,
            "model": agent.model,
            **({"agent_name": agent.name} if agent.name else {}),
            **(request.metadata if agent.redact is None else mask_value(request.metadata, agent.redact)),
        }
        session_id = store.create_session(metadata=metadata, session_id=request.session_id)
        view = SessionView(provider=agent.provider.name, authority=Authority(session_id, agent.seal))
        return session_id, store.open_writer(session_id), view
    writer = store.open_writer(request.resume)
    try:
        view, kept = load_view(store, request.resume, provider=agent.provider.name, seal=agent.seal)
        if kept is not None:
            writer.keep_view(kept)
    except BaseException:
        writer.close()
        raise
    return request.resume, writer, view
