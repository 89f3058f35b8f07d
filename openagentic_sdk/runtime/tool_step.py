"""Run the calls of one answer: prepare, start, execute, finish.

A call is in the log as started, and on disk, before it takes effect; every call gets exactly one result, whatever happens;
results stand in the order in which the model asked.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import StorageError, ToolError
from ..events import HookEvent, Outcome, ToolResult, ToolUse, UserMessage
from ..tools.base import ToolOutput
from .agent import Run, RunStopped
from .file_rules import note_rules
from .masking import mask_event
from .recorder import settled
from .tool_call import Permitted, error_result, prepare
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
        ready = [await prepare(run, use) for use in group]
        permitted = [item for item in ready if isinstance(item, Permitted)]
        # The decision and the start of each call are one batch, so one write to the disk.
        await run.record(*(event for call in permitted for event in (call.decision, call.start(run))))
        work = {call.use.tool_use_id: asyncio.create_task(execute(run, call)) for call in permitted}
        try:
            for item in ready:
                await _finish(run, item, work)
        except BaseException:
            await _cut_short(run, ready, work)
            raise


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
    events, result = await after_hooks(run, item, result)
    note_rules(run, item.input, result)
    await run.record(*events, await shrink_output(run, masked(run, result)))


async def _cut_short(
    run: Run, ready: Sequence[Permitted | ToolResult], work: Mapping[str, asyncio.Task[ToolResult]]
) -> None:
    """End what is still running, wait for it, and record what came of each call."""

    async def record_in_order() -> None:
        if work:
            await asyncio.wait(work.values())
        results = [outcome for item in ready if (outcome := _outcome_of(run, item, work)) is not None]
        missing = [result for result in results if run.view.calls[result.tool_use_id].result is None]
        await run.record(*[await shrink_output(run, masked(run, result)) for result in missing])

    for task in work.values():
        task.cancel()
    recording, _ = await settled(record_in_order())
    recording.exception()  # a store that refuses has already stopped the run, and the reason travels with the first error


def _outcome_of(
    run: Run, item: Permitted | ToolResult, work: Mapping[str, asyncio.Task[ToolResult]]
) -> ToolResult | None:
    """What came of a call of a run that was cut short; None when it waits for a person and stays open."""
    if isinstance(item, ToolResult):
        return item
    task = work[item.use.tool_use_id]
    if not task.cancelled() and isinstance(task.exception(), RunStopped):
        return None
    if task.cancelled() or task.exception() is not None:
        return cancelled_result(item.use.tool_use_id, CUT_SHORT)
    if run.agent.hooks.post_tool_use:
        return cancelled_result(item.use.tool_use_id, UNCHECKED)
    return task.result()


def cancelled_result(tool_use_id: str, text: str) -> ToolResult:
    """The result of a call that a cancellation ended."""
    return ToolResult(tool_use_id, is_error=True, error_type="Cancelled", error_message=text, outcome="cancelled")


async def execute(run: Run, call: Permitted) -> ToolResult:
    """Run the tool; whatever it raises is a result for the model."""
    clock = run.agent.clock
    began = clock.monotonic()
    use_id = call.use.tool_use_id
    try:
        # A copy: what is in the log and goes back to the model is not the tool's to change.
        output: Any = await call.tool.run(copy.deepcopy(call.input), tool_context(run, call.use))
    except (StorageError, RunStopped):
        raise
    except Exception as error:  # noqa: BLE001 - a tool may raise anything; the loop must survive it
        result = error_result(use_id, error)
    else:
        if isinstance(output, ToolOutput):
            outcome: Outcome = "error" if output.is_error else "ok"
            result = ToolResult(use_id, output.output, is_error=output.is_error, outcome=outcome, meta=output.meta)
        else:
            result = ToolResult(use_id, output)
    return replace(result, duration_s=round(clock.monotonic() - began, 6))


def masked(run: Run, result: ToolResult) -> ToolResult:
    """The result without secrets, before any of it goes to a blob."""
    return result if run.agent.redact is None else mask_event(result, run.agent.redact)


async def after_hooks(run: Run, call: Permitted, result: ToolResult) -> tuple[Sequence[HookEvent], ToolResult]:
    """The result as the hooks after the call left it, and what they did."""
    output, hook_events, decision = await run.agent.hooks.run_post_tool_use(
        tool_name=call.use.name,
        tool_input=call.input,
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
    decisions = [decision]
    if result.is_error and run.agent.hooks.post_tool_use_failure:
        error = result.error_message or "\n".join(str(part) for part in (result.output,) if part)
        failure = {
            "tool_name": call.use.name,
            "tool_input": call.input,
            "error": error,
            "is_interrupt": result.outcome == "cancelled",
        }
        context = run.hook_context(tool_use_id=call.use.tool_use_id)
        _, events, decision = await run.agent.hooks.run("post_tool_use_failure", failure, context)
        hook_events = [*hook_events, *events]
        decisions.append(decision)
    for decision in decisions:
        if decision is not None and decision.additional_context:
            run.notes.append(UserMessage(decision.additional_context, origin="hook"))
        if decision is not None and decision.stops:
            run.stopped_by_hook = RunStopped("blocked:post_tool_use", decision.block_reason or "")
    return hook_events, result
