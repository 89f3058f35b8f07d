"""The hooks at the beginning and at the end of a session, which may be several runs long."""

from __future__ import annotations

from ..events import Event, UserMessage
from .agent import Agent, Run, RunStopped


async def run_session_start_hooks(run: Run, source: str) -> None:
    """Run them; what they add stands before the next prompt. Raises `RunStopped` when one wants no run at all."""
    events, decision = await run.agent.hooks.run_session_start(source=source, context=run.hook_context())
    await run.record(*events)
    if decision is None:
        return
    if decision.block or decision.stops:
        raise RunStopped("blocked:session_start", decision.block_reason or "")
    if decision.additional_context:
        run.notes.append(UserMessage(decision.additional_context, origin="hook"))


async def end_session(agent: Agent, session_id: str, reason: str) -> list[Event]:
    """Run the session_end hooks of a conversation whose last run has ended; gives what was stored."""
    context = {"session_id": session_id, "cwd": agent.cwd, "project_dir": agent.project_dir, "model": agent.model}
    events, _ = await agent.hooks.run_session_end(reason=reason, context=context)
    return [agent.store.append_event(session_id, event) for event in events]
