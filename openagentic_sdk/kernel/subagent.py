"""Run a subagent: a session of its own, linked both ways, of which the parent sees the last text only."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import ToolError
from ..events import Event, StopReason, SubagentFinished, SubagentStarted, UserAnswer, UserMessage
from ..sessions.core import TENANT_KEY
from ..sessions.folds.features.untrusted import UntrustedFold
from ..threads import settled
from ..tools.base import SubagentResult
from .agent import Run, RunRequest, RunStopped, within_allowlists
from .loop import end_unbegun, run_session
from .opening import open_run
from .prompt import Said
from .settle import copied_question


async def run_subagent(
    run: Run, tool_use_id: str, name: str, prompt: str, events: Sequence[Event] = ()
) -> SubagentResult:
    """Run a subagent to its end. Its events reach the caller as they happen, marked with the call and its name.

    `events` are recorded behind its prompt (a skill that is active there). Raises `ToolError` for a name that is not known
    or when a hook blocks. Budget, deadline, hooks and permissions are the parent's. A subagent that waits for a person
    makes its parent wait too: it goes on, in the same session, when the call runs again.
    """
    run.children += 1
    try:
        return await _run_child(run, tool_use_id, name, prompt, events)
    finally:
        run.children -= 1


async def _run_child(run: Run, tool_use_id: str, name: str, prompt: str, events: Sequence[Event]) -> SubagentResult:
    agent = run.agent.child(name, run.agent)
    # What the parent's active skills take away is taken from its subagents too.
    policy = run.skill_policy()
    gate = within_allowlists(agent.gate, policy)
    if policy.disallowed_tools:
        gate = gate.narrowed(deny=policy.disallowed_tools, source="skill of the parent")
    agent = replace(agent, gate=gate)
    resume = run.parked_children.pop(tool_use_id, None)
    added = None
    if resume is None:
        added = await _run_hooks(run, "subagent_start", {"agent_name": name, "prompt": prompt})
    links = {"parent_session_id": run.session_id, "parent_tool_use_id": tool_use_id}
    if tenant := run.request.metadata.get(TENANT_KEY):
        links[TENANT_KEY] = tenant
    parks, untrusted, trace = run.request.parks, tuple(run.view.fold(UntrustedFold).sources), run.request.traceparent
    request = RunRequest(
        resume=resume, metadata=links, brings=events, parks=parks, untrusted=untrusted, traceparent=trace
    )
    child = await open_run(
        agent, request, run.recorder.channel, run_subagent, parent=run, parent_tool_use_id=tool_use_id
    )
    run.helpers.append(child)
    child.notes += [UserMessage(added, origin="hook")] if added else []

    def finished(stop_reason: StopReason) -> Event:
        view = child.view
        untrusted = list(view.fold(UntrustedFold).sources)
        return SubagentFinished(tool_use_id, name, child.session_id, stop_reason, view.usage, view.cost_usd, untrusted)

    async def end_cancelled() -> None:
        if not child.view.events:
            await end_unbegun(child)
        if child.parked:
            await _park(run, child, tool_use_id)
        else:
            await run.record(finished("interrupted"))

    try:
        if resume is None:
            await run.record(SubagentStarted(tool_use_id, name, child.session_id, prompt))
        else:
            run.budget.charge(child.view.usage, child.view.cost_usd)
        result = await run_session(child, Said(prompt) if resume is None else None)
    except asyncio.CancelledError:
        ended, _ = await settled(end_cancelled())
        ended.exception()
        raise
    finally:
        run.helpers = [helper for helper in run.helpers if helper is not child]
        await child.recorder.close()
    if result.stop_reason == "waiting":
        await _park(run, child, tool_use_id)
        raise RunStopped("waiting", result.error_message or "a subagent waits for an answer")
    for question in run.view.open_questions():
        if question.tool_use_id == tool_use_id:
            said = child.view.answers.get(question.question_id) or UserAnswer(question.question_id, "")
            await run.record(UserAnswer(question.question_id, said.answer, said.answered_by, said.approver))
    await run.record(finished(result.stop_reason))
    await _run_hooks(run, "subagent_stop", {"agent_name": name, "final_text": result.final_text})
    return SubagentResult(result.final_text, child.session_id, result.stop_reason, result.error_message)


async def _park(run: Run, child: Run, tool_use_id: str) -> None:
    """Put the question that a subagent waits for into its parent's log too, where the person who answers finds it."""
    known = {question.question_id for question in run.view.open_questions()}
    for question in child.parked.values():
        copied = copied_question(question, tool_use_id, child.session_id)
        run.park(copied)
        if question.question_id not in known and question.question_id not in child.view.answers:
            await run.record(copied)


async def _run_hooks(run: Run, point: str, payload: Mapping[str, Any]) -> str | None:
    """What the hooks want the subagent to know. Raises `ToolError` when one blocks it."""
    _, decision = await run.run_hooks(point, payload)
    if decision is not None and (decision.block or (decision.stops and point == "subagent_start")):
        raise ToolError(decision.block_reason or "a hook blocked this subagent")
    return decision.additional_context if decision is not None else None
