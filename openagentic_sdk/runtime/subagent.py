"""Run a subagent: a session of its own, linked both ways, of which the parent sees the last text only."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import ToolError
from ..events import Event, StopReason, SubagentFinished, SubagentStarted
from ..tools.base import SubagentResult
from .agent import Run, RunRequest, within_allowlists
from .loop import end_unbegun, run_session
from .opening import open_run
from .prompt import Said
from .recorder import settled


async def run_subagent(
    run: Run, tool_use_id: str, name: str, prompt: str, events: Sequence[Event] = ()
) -> SubagentResult:
    """Run a subagent to its end. Its events reach the caller as they happen, marked with the call and its name.

    `events` are recorded behind its prompt (a skill that is active there). Raises `ToolError` for a name that is not known
    or when a hook blocks. Budget, deadline, hooks and permissions are the parent's.
    """
    agent = run.agent.child(name)
    # What the parent's active skills take away is taken from its subagents too.
    policy = run.skill_policy()
    gate = within_allowlists(agent.gate, policy)
    if policy.disallowed_tools:
        gate = gate.narrowed(deny=policy.disallowed_tools, source="skill of the parent")
    agent = replace(agent, gate=gate)
    await _run_hooks(run, "subagent_start", {"agent_name": name, "prompt": prompt})
    links = {"parent_session_id": run.session_id, "parent_tool_use_id": tool_use_id}
    request = RunRequest(metadata=links, brings=events)
    child = await open_run(
        agent, request, run.recorder.channel, run_subagent, parent=run, parent_tool_use_id=tool_use_id
    )

    def finished(stop_reason: StopReason) -> Event:
        return SubagentFinished(tool_use_id, name, child.session_id, stop_reason, child.view.usage, child.view.cost_usd)

    async def end_interrupted() -> None:
        if not child.view.events:
            await end_unbegun(child)
        await run.record(finished("interrupted"))

    try:
        await run.record(SubagentStarted(tool_use_id, name, child.session_id, prompt))
        result = await run_session(child, Said(prompt))
    except asyncio.CancelledError:
        ended, _ = await settled(end_interrupted())
        ended.exception()
        raise
    finally:
        await child.recorder.close()
    await run.record(finished(result.stop_reason))
    await _run_hooks(run, "subagent_stop", {"agent_name": name, "final_text": result.final_text})
    return SubagentResult(result.final_text, child.session_id, result.stop_reason, result.error_message)


async def _run_hooks(run: Run, point: str, payload: Mapping[str, Any]) -> None:
    _, events, decision = await run.agent.hooks.run(point, payload, run.hook_context())
    await run.record(*events)
    if decision is not None and decision.block:
        raise ToolError(decision.block_reason or "a hook blocked this subagent")
