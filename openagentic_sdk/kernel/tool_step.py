"""Run the calls of one answer: prepare, start, execute, finish.

A call is recorded as started, on disk, before it takes effect. A call gets at most one result; one without any gets it when
the session continues, or stays open for a person or a part. Results are recorded in the order of the model's requests.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from ..errors import StorageError, ToolError, UnknownOutcomeError
from ..events import HookEvent, ToolResult, ToolUse, UserMessage
from ..ground.frozen import changed
from ..ground.threads import Guest, collect_left, run_in_thread, settled
from ..sessions.closing import INTERRUPTED, cancelled_result, unknown_result
from .agent import Run
from .lifetime import RunStopped
from .part import Part
from .tool import REPEATABLE, ToolOutput
from .tool_call import Permitted, error_result, prepare
from .tool_context import tool_context
from .tool_output import has_more_text, plain_output, plain_value, shrink_output, store_result

# The most calls to run at once. Most of them use a thread, and an answer may have thousands of calls.
MAX_AT_ONCE = 64
UNCHECKED = "This call ran; the run was interrupted before the hooks had seen its result, so it is not shown."
STILL_RUNNING = (
    "The run was interrupted while this call was running, and the call did not end when it was told to: it may go on, "
    "and it may or may not take effect. Check before repeating."
)


class Job:
    """A running call. `result` returns its outcome once it has ended or been abandoned."""

    def __init__(self, run: Run, call: Permitted) -> None:
        self.call = call
        self._run = run
        self._seconds: float | None = None
        self._left: list[str] = []
        # A tool that suppresses its cancellation must not keep the run from ending.
        self.guest: Guest[ToolOutput] = Guest(self._work, f"call {call.use.tool_use_id} of tool {call.use.name}")

    async def _work(self) -> ToolOutput:
        # In the task of the guest: only its own context, and the threads that copy it, add names to this list.
        self._left = collect_left()
        clock = self._run.agent.clock
        began = clock.monotonic()
        try:
            # A copy, because a tool must not change what is in the log and what is sent back to the model.
            input, tool = _own_copy(self.call.input), self.call.tool
            return plain_output(await tool.run(input, tool_context(self._run, self.call.use)), tool)
        finally:
            self._seconds = round(clock.monotonic() - began, 6)

    async def end(self) -> None:
        """Cancel the call and wait a moment for its end, or as long as subagents of the run are active."""
        await self.guest.end(lambda: self._run.children > 0)
        self._run.lifetime.left.extend(self._left)

    def result(self, *, cut: bool = False) -> ToolResult:
        """Return the result for the model, or raise an error that ends the run. `cut` is true if the run ended the call."""
        use_id, error = self.call.use.tool_use_id, self.guest.error
        # These end the run: a store that fails, or a question whose answer comes later.
        if isinstance(error, StorageError | RunStopped):
            raise error
        # A thread that is still running may change something, although the coroutine that waited for it has ended.
        if self.guest.is_left or (self._left and isinstance(error, asyncio.CancelledError)):
            return unknown_result(use_id, STILL_RUNNING)
        if isinstance(error, UnknownOutcomeError):
            return unknown_result(use_id, str(error))
        if isinstance(error, asyncio.CancelledError):
            if cut:
                return cancelled_result(use_id, INTERRUPTED.cut_short)
            # Nobody cancelled the call: the tool cancelled itself, or a task in which it waited. Raised further, it
            # would end the run.
            error = ToolError(f"{self.call.use.name} was cancelled from inside")
        result = error_result(use_id, error) if error is not None else result_of(use_id, self.guest.value())
        return changed(result, duration_s=self._seconds)


def result_of(tool_use_id: str, output: ToolOutput) -> ToolResult:
    """A tool's output as the result of its call."""
    return ToolResult(
        tool_use_id,
        output.output,
        is_error=output.is_error,
        outcome="error" if output.is_error else "ok",
        meta=output.meta,
        attachments=output.attachments,
    )


def _own_copy(value: Any) -> Any:
    if value.__class__ is dict:
        return {key: _own_copy(item) for key, item in value.items()}
    if value.__class__ is list:
        return [_own_copy(item) for item in value]
    return value if value.__class__ in (str, int, float, bool) or value is None else copy.deepcopy(value)


async def run_calls(run: Run, calls: Sequence[ToolUse]) -> list[ToolResult]:
    """Run the calls in order; adjacent ones that may run in parallel run at the same time, at most `MAX_AT_ONCE` of them.

    Returns their results as they were before long values moved to blobs. Raises `RunStopped` if a call waits for a person.
    """
    results = []
    for group in _groups(run, calls):
        # One after the other: each may ask a person, whose answer may decide the next ones, too.
        ready = [await prepare(run, use) for use in group]
        permitted = [item for item in ready if isinstance(item, Permitted)]
        # The decision and the start of each call are one batch, so one write to the disk.
        await run.record(*(event for call in permitted for event in call.opening_events(run)))
        work = [Job(run, item) if isinstance(item, Permitted) else item for item in ready]
        parked: RunStopped | None = None
        try:
            # In the model's order although they run at the same time: the log must not depend on which ends first.
            for item in work:
                try:
                    results.append(await _finish(run, item))
                except RunStopped as stopped:  # it waits for a person; let concurrent calls finish
                    parked = parked or stopped
        except BaseException:  # also on cancellation: record the end of every call
            await _cut_short(run, work)
            raise
        if parked is not None:
            raise parked
    return results


def _groups(run: Run, calls: Sequence[ToolUse]) -> Iterable[list[ToolUse]]:
    # Only adjacent calls: a call that reads after a write must see what was written.
    group: list[ToolUse] = []
    for use in calls:
        parallel = use.name in run.agent.tools and run.agent.tools.get(use.name).parallel
        if group and (not parallel or len(group) == MAX_AT_ONCE):
            yield group
            group = []
        if parallel:
            group.append(use)
        else:
            yield [use]
    if group:
        yield group


async def _finish(run: Run, item: Job | ToolResult) -> ToolResult:
    if isinstance(item, ToolResult):
        await run.record(item)
        return await masked(run, item)
    await item.guest.ended()
    events: Sequence[HookEvent] = ()
    raw_result = item.result()
    result = await store_result(run, raw_result)
    if run.agent.hooks.are_any:
        events, result = await after_hooks(run, item.call, result)
    for part in run.parts.at(Part.after_call):
        result = await part.after_call(item.call, result)
    if result.output is not raw_result.output:  # a hook may have returned any object
        result = changed(result, output=plain_value(result.output))
    result = await masked(run, result)
    await run.record(*events, await shrink_output(run, result))
    return result


async def _cut_short(run: Run, work: Sequence[Job | ToolResult]) -> None:
    """End the calls that are still running, and record the outcome of each call, except those that stay open."""

    async def end_all() -> None:
        jobs = [item for item in work if isinstance(item, Job)]
        await asyncio.gather(*(job.end() for job in jobs if not job.guest.is_done))
        results = [_cut_result(run, item) for item in work]
        results = [result and await store_result(run, result) for result in results]
        # `_finish` has recorded some of them if the cancellation came later.
        missing = [result for result in results if result and run.view.calls[result.tool_use_id].result is None]
        await run.record(*[await shrink_output(run, await masked(run, result)) for result in missing])

    # From now on, a store that hangs delays the end only briefly, see `Lifetime.patience`.
    run.lifetime.is_ending = True
    ending, _ = await settled(end_all())
    ending.exception()  # a store's refusal has already stopped the run; the first error carries the reason


def _cut_result(run: Run, item: Job | ToolResult) -> ToolResult | None:
    """The outcome of a call whose run was cut short; None if the call stays open and continues with the run."""
    if isinstance(item, ToolResult):
        return item
    call = item.call
    if call.use.tool_use_id in run.questions.parked or isinstance(item.guest.error, StorageError | RunStopped):
        return None
    result = item.result(cut=True)
    # A call that may be repeated stays open and runs again when the session continues; a result would tell the model to give
    # up.
    goes_on = run.questions.parked or run.lifetime.stopping.asked == "suspend"
    if result.outcome == "cancelled" and goes_on and call.tool.effect in REPEATABLE:
        return None
    # A hook might have withheld or masked it, and none runs while the run is cut short.
    if result.outcome not in ("cancelled", "unknown") and run.agent.hooks.post_tool_use:
        return cancelled_result(call.use.tool_use_id, UNCHECKED)
    return result


async def execute(run: Run, call: Permitted) -> ToolResult:
    """Run one call by itself; return its unrecorded result. The tool's exception becomes a result unless it ends the run."""
    job = Job(run, call)
    try:
        await job.guest.ended()
    except asyncio.CancelledError:
        await settled(job.end())
        raise
    return job.result()


async def masked(run: Run, result: ToolResult) -> ToolResult:
    """Return the result with its secrets masked; call this before any of it is moved to a blob.

    A megabyte takes a third of a second: a result that will be a blob is masked in a thread.
    """
    if has_more_text(result.output, run.agent.blob_bytes):
        return await run_in_thread(partial(run.recorder.masked, result), name="openagentic-masking")
    return run.recorder.masked(result)


async def after_hooks(run: Run, call: Permitted, result: ToolResult) -> tuple[Sequence[HookEvent], ToolResult]:
    """Run the post-tool hooks; return their events, and the result as they left it."""
    output, hook_events, decision = await run.agent.hooks.run_post_tool_use(
        tool_name=call.use.name,
        tool_input=call.input,
        tool_output=result.output,
        context=run.hooks.context(tool_use_id=call.use.tool_use_id, error_message=result.error_message),
    )
    if decision is not None and decision.block:
        text = decision.block_reason or "a hook withheld this result"
        result = ToolResult(
            result.tool_use_id, is_error=True, error_type="HookBlocked", error_message=text, outcome="error"
        )
    elif output is not result.output:
        result = changed(result, output=output, meta={**(result.meta or {}), "rewritten": "hook"})
    decisions = [decision]
    if result.is_error and run.agent.hooks.post_tool_use_failure:
        error = result.error_message or str(result.output or "")
        failure = {
            "tool_name": call.use.name,
            "tool_input": call.input,
            "error": error,
            "is_interrupt": result.outcome == "cancelled",
        }
        context = run.hooks.context(tool_use_id=call.use.tool_use_id)
        _, events, decision = await run.agent.hooks.run("post_tool_use_failure", failure, context)
        hook_events = [*hook_events, *events]
        decisions.append(decision)
    for decision in decisions:
        if decision is not None and decision.additional_context:
            # Recorded before the next step: endpoints reject a message between the results of one answer's calls.
            run.notes.append(UserMessage(decision.additional_context, origin="hook"))
        if decision is not None and decision.stops:
            run.hooks.stopped_by = RunStopped("blocked:post_tool_use", decision.block_reason or "")
    return hook_events, result
