"""Make room when the conversation comes near the model's limit: clear old outputs or summarise the older part, in the view
only.

What may go, where to cut and what a summary must carry is decided in `sessions.folds`; here the model is asked for the
summary, hooks are heard, and the event is recorded. A model that fails is no dead end: the fallback summary needs none.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from ..errors import BudgetError, ContextLengthError, ProviderError, StorageError, ToolError
from ..events import ContextCleared, Event, ModelRequest, ModelResponse, ModelRetry, SystemNotice
from ..providers.base import Retrying, StreamEvent
from ..providers.wrap import ask, fold
from ..sessions.folds.clearing import ClearingPlan, plan_clearing
from ..sessions.folds.compaction import (
    BYTES_PER_TOKEN,
    INSTRUCTION_BEHIND,
    CompactionPlan,
    compacted_event,
    corrected_bytes_per_token,
    estimate_tokens,
    finish_summary,
    is_near_limit,
    is_over_limit,
    plan_compaction,
    summary_request,
)
from ..sessions.folds.usage import normalize_usage
from ..sessions.rebuild import size_of, system_messages
from ..sessions.request import canonical_json, request_sha256
from ..threads import call_guest, error_words, run_in_thread
from ..tools.base import SubagentResult
from .agent import Agent, Run, RunRequest, RunStopped
from .channel import EventChannel
from .context import update_context
from .model_step import AnswerRoom
from .opening import open_run
from .prompt import with_data
from .session_hooks import run_session_start_hooks
from .tool_output import put_blob
from .toolset import update_tools

# What a request for a summary may weigh when no limit is known.
_SUMMARY_REQUEST_BYTES = 200_000


async def compact_when_full(run: Run) -> None:
    """Compact when the next request would come near a limit."""
    limits = run.agent.context_limits
    if limits.max_tokens is None and limits.max_bytes is None:
        return
    size = run.view.conversation.size_bytes() + _overhead_bytes(run)
    if is_near_limit(size, limits, _bytes_per_token(run)) and await compact(run, "auto"):
        size = run.view.conversation.size_bytes() + _overhead_bytes(run)
    run.asked_bytes = size


async def compact(run: Run, trigger: str) -> bool:
    """Clear old outputs, or when that is not enough replace the older part of the conversation by a summary.

    False when nothing could go or a hook blocked it.
    """
    if trigger != "manual":
        await update_context(run)
    weight, overhead = _bytes_per_token(run), _overhead_bytes(run)
    view, limits = run.view, run.agent.context_limits
    clearing = partial(plan_clearing, view.conversation, limits, bytes_per_token=weight, overhead_bytes=overhead)
    planning = partial(
        plan_compaction,
        view.events,
        limits,
        conversation=view.conversation,
        bytes_per_token=weight,
        overhead_bytes=overhead,
    )
    # In a thread, as all that reads the whole conversation here: it may be as large as the model's memory.
    old = await run_in_thread(clearing) if trigger == "auto" else None
    plan = await run_in_thread(planning) if old is None else None
    if plan is None and old is None:
        return False
    _, decision = await run.run_hooks("pre_compact", {"trigger": trigger})
    _raise_if_stopped(run, trigger)
    if decision is not None and (decision.block or decision.stops):
        return False
    if old is not None:
        await _clear(run, old, weight)
        return True
    assert plan is not None, "without either there was nothing to do"
    text = await _ask_for_summary(run, plan, trigger)
    summary = await run_in_thread(lambda: finish_summary(plan, text or ""))
    method = "fallback" if text is None else "model"
    await run.record(compacted_event(plan, summary, trigger=trigger, method=method, bytes_per_token=weight))
    await run.run_hooks("post_compact", {"trigger": trigger, "summary": summary})
    _raise_if_stopped(run, trigger)
    await run_session_start_hooks(run, "compact")
    if trigger != "manual":
        await update_tools(run)  # what was found in messages that are gone is told with the others now
    return True


def _raise_if_stopped(run: Run, trigger: str) -> None:
    """End a run whose hooks stop it here: the model is about to be asked. What a person asked for is no run."""
    if run.stopped_by_hook is not None and trigger != "manual":
        raise run.stopped_by_hook


async def _clear(run: Run, plan: ClearingPlan, bytes_per_token: float) -> None:
    """Put old outputs beside the log, and a note in their place before the model."""
    results: dict[str, Any] = {}
    for output in plan.outputs:
        data = output.text.encode("utf-8", "surrogatepass")
        sha256 = output.blob or await put_blob(run, data)
        results[output.tool_use_id] = {"sha256": sha256, "bytes": len(data)}
    before, after = (estimate_tokens(size, bytes_per_token) for size in (plan.bytes_before, plan.bytes_after))
    await run.record(ContextCleared(results, "auto", before, after))


async def compact_closed_session(agent: Agent, request: RunRequest) -> bool:
    """Compact a session that no run uses. Raises what `open_run` raises, and `BudgetError` when a limit leaves nothing."""
    silent = EventChannel[Event]()
    silent.close()
    run = await open_run(agent, request, silent, _no_subagents)
    try:
        complaint = await run.budget_complaint()
        if complaint is not None:
            raise BudgetError(complaint)
        return await compact(run, "manual")
    except RunStopped as stopped:
        raise BudgetError(stopped.message) from stopped
    finally:
        await run.recorder.close()


async def _no_subagents(
    run: Run, tool_use_id: str, name: str, prompt: str, events: Sequence[Event] = ()
) -> SubagentResult:
    raise ToolError("a session that is being summarised starts no subagents")


def _overhead_bytes(run: Run) -> int:
    """What each request carries besides messages."""
    context = run.view.context
    return 0 if context is None else len(context.system_prompt) + len(canonical_json(list(context.tools)))


def _bytes_per_token(run: Run) -> float:
    """What a token weighed in the last request, whose size was measured when it was sent."""
    known = run.view.last_request_tokens
    if known is None or run.asked_bytes is None:
        return BYTES_PER_TOKEN
    return corrected_bytes_per_token(run.asked_bytes, known)


async def _ask_for_summary(run: Run, plan: CompactionPlan, trigger: str) -> str | None:
    """The model's summary, or None when it cannot be had.

    It is asked for behind the conversation itself, which the vendor has in its cache; about a transcript of what goes when
    that would be too long, or when the model answers with a call.
    """
    try:
        text = None if trigger == "overflow" else await _ask_behind(run)
        if text:
            return text
        room = run.agent.context_limits.budget_bytes(0.7, BYTES_PER_TOKEN) or _SUMMARY_REQUEST_BYTES
        messages = await run_in_thread(partial(summary_request, plan, room))
        digest = request_sha256(run.model, messages, ())
        request = ModelRequest(run.view.steps, 1, digest, len(messages), messages, "compaction", run.model)
        return await _ask(run, request, messages, ())
    except ProviderError as error:
        text = f"the model gave no summary, so one was made without it: {error}"
        await run.record(SystemNotice("compaction.fallback", text))
        return None


async def _ask_behind(run: Run) -> str | None:
    """The summary asked for behind the conversation; None when there is no room for that, or no answer to it."""
    context, conversation = run.view.context, run.view.conversation
    if context is None or (context.model, context.provider) != (run.model, run.agent.provider.name):
        return None
    appended = [{"role": "user", "content": INSTRUCTION_BEHIND}]
    size = conversation.size_bytes() + size_of(appended) + _overhead_bytes(run)
    if is_over_limit(size, run.agent.context_limits, _bytes_per_token(run)):
        return None
    messages = [*system_messages(context.system_prompt), *conversation.messages(), *appended]
    digest = conversation.request_sha256(appended)
    request = ModelRequest(
        run.view.steps, 1, digest, len(messages), purpose="compaction", model=run.model, appended=appended
    )
    try:
        return await _ask(run, request, await with_data(run, messages), context.tools)
    except ContextLengthError:
        return None


async def _ask(
    run: Run, request: ModelRequest, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> str | None:
    """The text that a request for a summary is answered with; None when it is answered with a call."""
    agent = run.agent
    await run.record(request)
    began = agent.clock.monotonic()
    provider = agent.summary_provider or agent.provider
    answer = ask(provider, model=run.model, messages=messages, tools=tools, api_key=agent.api_key)
    room = AnswerRoom(run, run.model)
    try:
        output = await call_guest(lambda: fold(_recorded(run, answer, room)), f"provider {provider.name}")
        room.let_go()
        _, stopped = room.take_output(output)
        if stopped is not None:
            raise RunStopped("budget", stopped)
    except StorageError:
        raise
    except Exception as error:
        await run.record(_response(run, None, began, room, error))
        raise
    await run.record(_response(run, output.usage, began, room))
    return None if output.tool_calls else output.assistant_text


async def _recorded(
    run: Run, events: AsyncGenerator[StreamEvent, None], room: AnswerRoom
) -> AsyncGenerator[StreamEvent, None]:
    """The events, as long as there is time and room; how requests have to be written from now on is in the log by then."""
    async with aclosing(events):
        async for event in events:
            await asyncio.sleep(0)  # a stream without an end must not hold the event loop
            stopped = room.take_event(event)
            if stopped is not None:
                raise RunStopped("budget", stopped)
            if run.deadline.remaining_s() == 0:
                raise RunStopped("timeout", "timeout_s is over")
            if isinstance(event, Retrying) and event.control is not None:
                retry = ModelRetry(run.view.steps, event.attempt, event.reason, event.delay_s, control=event.control)
                await run.record(retry)
            yield event


def _response(
    run: Run, usage: Mapping[str, Any] | None, began: float, room: AnswerRoom, error: Exception | None = None
) -> ModelResponse:
    normal = normalize_usage(usage)
    cost = run.agent.cost(normal, run.model)
    if error is None or room.size_bytes:
        room.charge(normal, cost if error is None else 0.0)
    return ModelResponse(
        run.view.steps,
        1,
        complete=error is None,
        usage=normal,
        cost_usd=cost,
        total_s=round(run.agent.clock.monotonic() - began, 6),
        model=run.model,
        provider=run.agent.provider.name,
        error_type=None if error is None else error_words(error)[0],
        error_message=None if error is None else error_words(error)[1],
    )
