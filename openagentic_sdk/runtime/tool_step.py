"""Run the calls of one answer: find, validate, hook, permit, start, execute, finish.

The law of this file: a call is in the log as started, and on disk, before it takes effect; every call gets exactly one
result, whatever happens; results stand in the order in which the model asked.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..errors import StorageError, ToolError, ToolInputError
from ..events import Event, HookEvent, PermissionDecision, ToolResult, ToolStarted, ToolUse, UserMessage
from ..hooks.models import HookDecision
from ..permissions.gate import ApprovalResult
from ..sessions.request import json_sha256
from ..tools.base import Tool, ToolOutput
from ..tools.schema import validate
from .agent import Run, RunStopped
from .file_rules import note_rules
from .final_answer import FinalAnswerTool
from .masking import mask_event
from .recorder import settled
from .tool_context import tool_context
from .tool_output import shrink_output

UNCHECKED = "This call ran; the run was interrupted before the hooks had seen its result, so it is not shown."
NOT_STARTED = "The run was interrupted before this call started: it did not run."
CUT_SHORT = (
    "The run was interrupted while this call was running: it may have taken effect in part. Check before repeating."
)


async def run_calls(run: Run, calls: Sequence[ToolUse]) -> None:
    """Answer all the calls: neighbours that may run in parallel together, the others one after the other."""
    for group in _groups(run, calls):
        await _run_group(run, group)


def _groups(run: Run, calls: Sequence[ToolUse]) -> Iterable[list[ToolUse]]:
    group: list[ToolUse] = []
    for use in calls:
        parallel = use.name in run.agent.tools and run.agent.tools.get(use.name).parallel
        if group and not parallel:
            yield group
            group = []
        group.append(use)
        if not parallel:
            yield group
            group = []
    if group:
        yield group


@dataclass(frozen=True)
class Permitted:
    """A call that may run: its tool, the input as hooks and people left it, and the decision, not yet in the log."""

    use: ToolUse
    tool: Tool
    input: Mapping[str, Any]
    decision: PermissionDecision | None = None


async def _run_group(run: Run, group: Sequence[ToolUse]) -> None:
    ready = [await prepare(run, use) for use in group]
    await run.record(*(event for item in ready if isinstance(item, Permitted) for event in _start_events(run, item)))
    work = {
        item.use.tool_use_id: asyncio.create_task(execute(run, item)) for item in ready if isinstance(item, Permitted)
    }
    try:
        for item in ready:
            await _finish(run, item, work)
    except BaseException:
        await _cut_short(run, ready, work)
        raise


def _start_events(run: Run, call: Permitted) -> tuple[Event, ...]:
    """The decision and the start of a call: one batch, so one write to the disk."""
    assert call.decision is not None
    return call.decision, _started(run, call)


async def _finish(run: Run, item: Permitted | ToolResult, work: Mapping[str, asyncio.Task[ToolResult]]) -> None:
    if isinstance(item, ToolResult):
        await run.record(item)
        return
    task = work[item.use.tool_use_id]
    # Not `await task`: a cancellation of the run must not reach the tool this way, where it could be swallowed.
    await asyncio.wait({task})
    if task.cancelled():
        result = error_result(item.use.tool_use_id, ToolError(f"{item.use.name} was cancelled from inside"))
    else:
        result = task.result()
    await record_result(run, item, result)


async def _cut_short(
    run: Run, ready: Sequence[Permitted | ToolResult], work: Mapping[str, asyncio.Task[ToolResult]]
) -> None:
    """End what is still running, wait for it, and record what came of each call."""
    for task in work.values():
        task.cancel()
    if work:
        _, _ = await settled(_wait_for(work.values()))
    results = [outcome for item in ready if (outcome := _outcome_of(run, item, work)) is not None]
    missing = [result for result in results if run.view.calls[result.tool_use_id].result is None]
    recording, _ = await settled(_record_in_order(run, missing))
    recording.exception()  # a store that refuses has already stopped the run, and the reason travels with the first error


async def _record_in_order(run: Run, results: Sequence[ToolResult]) -> None:
    await run.record(*[await shrink_output(run, masked(run, result)) for result in results])


async def _wait_for(tasks: Iterable[asyncio.Task[ToolResult]]) -> None:
    await asyncio.wait(tasks)


def _outcome_of(
    run: Run, item: Permitted | ToolResult, work: Mapping[str, asyncio.Task[ToolResult]]
) -> ToolResult | None:
    if isinstance(item, ToolResult):
        return item
    task = work[item.use.tool_use_id]
    if not task.cancelled() and isinstance(task.exception(), RunStopped):
        return None  # it waits for a person, and stays open
    if task.cancelled() or task.exception() is not None:
        return cancelled_result(item.use.tool_use_id, CUT_SHORT)
    if run.agent.hooks.post_tool_use:
        return cancelled_result(item.use.tool_use_id, UNCHECKED)
    return task.result()


def cancelled_result(tool_use_id: str, text: str) -> ToolResult:
    """The result of a call that a cancellation ended."""
    return ToolResult(tool_use_id, is_error=True, error_type="Cancelled", error_message=text, outcome="cancelled")


# --- before the call runs --------------------------------------------------------------------------------------------


async def prepare(run: Run, use: ToolUse) -> Permitted | ToolResult:
    """Everything up to `tool.started`. Gives the result at once for a call that does not run."""
    try:
        call, hook_events, decision = await before_hooks(run, use)
    except ToolError as error:
        return error_result(use.tool_use_id, error)
    if decision is not None and decision.block:
        return await _blocked(run, use, hook_events, decision.block_reason)
    return await _permit(run, call, _wish_of(decision, hook_events))


async def before_hooks(run: Run, use: ToolUse) -> tuple[Permitted, Sequence[HookEvent], HookDecision | None]:
    """The call as the hooks before it left it, what they did (in the log by now), and what they decided.

    Raises `ToolError` for a tool that is not there and for input that does not fit it.
    """
    tool = run.agent.tools.get(use.name)
    input = _arguments(use, tool)
    hooked, hook_events, decision = await run.agent.hooks.run_pre_tool_use(
        tool_name=use.name, tool_input=input, context=run.hook_context(tool_use_id=use.tool_use_id)
    )
    await run.record(*hook_events)
    if decision is not None and decision.block:
        return Permitted(use, tool, input), hook_events, decision
    if hooked is not input:
        validate(hooked, tool.input_schema, f"{use.name}, as a hook changed it")
    if decision is not None and decision.additional_context:
        run.notes.append(UserMessage(decision.additional_context, origin="hook"))
    return Permitted(use, tool, hooked), hook_events, decision


def _arguments(use: ToolUse, tool: Tool) -> Mapping[str, Any]:
    if use.raw_arguments is not None:
        quoted = use.raw_arguments if len(use.raw_arguments) <= 500 else use.raw_arguments[:500] + "..."
        raise ToolInputError(
            f"{use.name}: the arguments are no JSON object, so it did not run; what came is {quoted!r}"
        )
    validate(use.input, tool.input_schema, use.name)
    return use.input


async def _blocked(run: Run, use: ToolUse, events: Sequence[HookEvent], reason: str | None) -> ToolResult:
    text = reason or "a hook blocked this call"
    blocked = ApprovalResult(False, text, run.agent.gate.mode, hook=blocking_hook(events))
    await run.record(decision_event(use, use.input, blocked))
    return ToolResult(use.tool_use_id, is_error=True, error_type="HookBlocked", error_message=text, outcome="denied")


def blocking_hook(events: Sequence[HookEvent]) -> str | None:
    """The name of the hook that blocked."""
    return next((event.name for event in events if event.action == "block"), None)


def decision_event(use: ToolUse, input: Mapping[str, Any], approval: ApprovalResult) -> PermissionDecision:
    """What the gate or a hook said about a call with this input, for the log."""
    return PermissionDecision(
        use.tool_use_id,
        use.name,
        approval.allowed,
        approval.mode,
        json_sha256(dict(input)),
        approval.reason,
        rule=approval.rule,
        source=approval.source,
        hook=approval.hook,
        answered_by=approval.answered_by,
        waited_s=approval.waited_s,
        policy_sha256=approval.policy_sha256,
        details=approval.details,
    )


def _wish_of(decision: HookDecision | None, events: Sequence[HookEvent]) -> dict[str, Any]:
    """What a hook wished of the gate, and which hook that was."""
    if decision is None or decision.permission is None:
        return {}
    name = next((event.name for event in events if event.details.get("permission") == decision.permission), None)
    return {"hook_permission": decision.permission, "hook": name, "hook_reason": decision.block_reason}


async def _permit(run: Run, call: Permitted, hook_wish: Mapping[str, Any]) -> Permitted | ToolResult:
    use = call.use
    if isinstance(call.tool, FinalAnswerTool):
        return replace(call, decision=_final_answer_decision(run, call))
    context = run.gate_context(
        use.tool_use_id,
        call.tool.effect,
        is_command=use.name == "Bash",
        permission_request=partial(_ask_hooks, run, use),
        **hook_wish,
    )
    approval = await run.gate.approve(use.name, call.input, context)
    if approval.updated_input is not None:
        call = Permitted(use, call.tool, approval.updated_input)
        try:
            validate(call.input, call.tool.input_schema, f"{use.name}, as it was edited")
        except ToolError as error:
            return error_result(use.tool_use_id, error)
    decision = decision_event(use, call.input, approval)
    if not approval.allowed:
        await run.record(decision)
        return ToolResult(
            use.tool_use_id,
            is_error=True,
            error_type="PermissionDenied",
            error_message=approval.reason,
            outcome="denied",
        )
    return replace(call, decision=decision)


def _final_answer_decision(run: Run, call: Permitted) -> PermissionDecision:
    """The call that is the answer touches nothing and asks nobody, whatever the mode."""
    return PermissionDecision(
        call.use.tool_use_id,
        call.use.name,
        True,
        run.agent.gate.mode,
        json_sha256(dict(call.input)),
        "it is the answer that the caller asked for",
    )


async def _ask_hooks(run: Run, use: ToolUse, name: str, input: Mapping[str, Any]) -> ApprovalResult | None:
    """What hooks say in the place of the person who would be asked; None when they leave it to the person."""
    events, decision = await run.agent.hooks.run_permission_request(
        tool_name=name, tool_input=input, context=run.hook_context(tool_use_id=use.tool_use_id)
    )
    await run.record(*events)
    if decision is None or (decision.permission not in ("allow", "deny") and not decision.block):
        return None
    allowed = decision.permission == "allow" and not decision.block
    hook = next((event.name for event in events if event.action not in (None, "none")), None)
    reason = decision.block_reason or f"a hook {'allowed' if allowed else 'denied'} this call"
    return ApprovalResult(allowed, reason, hook=hook, updated_input=decision.override_tool_input)


def _started(run: Run, call: Permitted) -> ToolStarted:
    use = call.use
    return ToolStarted(
        use.tool_use_id,
        use.name,
        call.tool.effect,
        json_sha256(dict(call.input)),
        idempotency_key=f"{run.session_id}:{use.tool_use_id}",
        attempt=run.view.calls[use.tool_use_id].attempts + 1,
        input=None if call.input is use.input else call.input,
    )


# --- the call itself, and after it -----------------------------------------------------------------------------------


async def execute(run: Run, call: Permitted) -> ToolResult:
    """Run the tool; whatever it raises is a result for the model."""
    clock = run.agent.clock
    began = clock.monotonic()
    use_id = call.use.tool_use_id
    try:
        # A copy: what is in the log and goes back to the model is not the tool's to change.
        output = await call.tool.run(copy.deepcopy(call.input), tool_context(run, call.use))
    except (StorageError, RunStopped):
        raise
    except Exception as error:  # noqa: BLE001 - a tool may raise anything; the loop must survive it
        result = error_result(use_id, error)
    else:
        result = _answered(use_id, output)
    return _with_duration(result, clock.monotonic() - began)


def _answered(use_id: str, output: Any) -> ToolResult:
    if not isinstance(output, ToolOutput):
        return ToolResult(use_id, output)
    outcome = "error" if output.is_error else "ok"
    return ToolResult(use_id, output.output, is_error=output.is_error, outcome=outcome, meta=output.meta)


def masked(run: Run, result: ToolResult) -> ToolResult:
    """The result without secrets, before any of it goes to a blob."""
    event = result if run.agent.redact is None else mask_event(result, run.agent.redact)
    assert isinstance(event, ToolResult)
    return event


def error_result(use_id: str, error: Exception) -> ToolResult:
    """An exception as the model reads it."""
    text = str(error) or type(error).__name__
    return ToolResult(use_id, is_error=True, error_type=type(error).__name__, error_message=text, outcome="error")


def _with_duration(result: ToolResult, seconds: float) -> ToolResult:
    return replace(result, duration_s=round(seconds, 6))


async def record_result(run: Run, call: Permitted, result: ToolResult) -> None:
    """Let hooks see the result, make it fit, and record it."""
    events, result = await after_hooks(run, call, result)
    note_rules(run, call.input, result)
    await run.record(*events, await shrink_output(run, masked(run, result)))


async def after_hooks(run: Run, call: Permitted, result: ToolResult) -> tuple[Sequence[HookEvent], ToolResult]:
    """The result as the hooks after the call left it, and what they did."""
    output, hook_events, decision = await run.agent.hooks.run_post_tool_use(
        tool_name=call.use.name,
        tool_output=result.output,
        context=run.hook_context(
            tool_use_id=call.use.tool_use_id, tool_input=call.input, error_message=result.error_message
        ),
    )
    if decision is not None and decision.block:
        text = decision.block_reason or "a hook withheld this result"
        result = ToolResult(
            result.tool_use_id, is_error=True, error_type="HookBlocked", error_message=text, outcome="error"
        )
    elif output is not result.output:
        result = replace(result, output=output)
    if decision is not None and decision.additional_context:
        run.notes.append(UserMessage(decision.additional_context, origin="hook"))
    return hook_events, result
