"""Free space when the conversation approaches the model's limit: clear old outputs or summarize the older part.

Only the view changes, not the log. `sessions.folds` decides what may be removed, where to cut and what a summary must
contain; this module asks the model for the summary, runs the hooks and records the event. If the model fails, a
fallback summary is built without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from ..errors import BudgetError, ContextLengthError, ProviderError, StorageError
from ..events import ContextCleared, Event, ModelRequest, ModelResponse, ModelRetry, PartState, SystemNotice
from ..ground.threads import call_guest, error_words, run_in_thread
from ..kernel.agent import AgentRuntime, Run, RunRequest
from ..kernel.channel import EventChannel
from ..kernel.lifetime import RunStopped
from ..kernel.model_step import AnswerRoom, outgoing
from ..kernel.opening import close_run, open_run, session_state
from ..kernel.part import Part
from ..kernel.tool_output import put_blob
from ..providers.base import ModelOutput, Provider, Retrying, StreamEvent, for_session
from ..providers.wrappers.answer import ask, fold
from ..sessions.folds.clearing import ClearingPlan, plan_clearing
from ..sessions.folds.compaction import (
    BYTES_PER_TOKEN,
    INSTRUCTION_BEHIND,
    WINDOW_STATE,
    CompactionPlan,
    ContextLimits,
    compacted_event,
    corrected_bytes_per_token,
    estimate_tokens,
    finish_summary,
    is_near_limit,
    is_over_limit,
    plan_compaction,
    size_of,
    summary_request,
)
from ..sessions.folds.features.all import PartStatesFold
from ..sessions.folds.usage import normalize_usage
from ..sessions.rebuild import system_messages
from ..sessions.request import canonical_json, request_sha256
from .budgets import Budgets
from .tool_search import DeferredTools

# The maximum size of a request for a summary if no limit is known.
_SUMMARY_REQUEST_BYTES = 200_000


class Compaction(Part):
    """A part that keeps a session's requests below `limits`. `provider` writes the summaries; None uses the agent's own."""

    def __init__(self, run: Run, limits: ContextLimits, provider: Provider | None = None) -> None:
        super().__init__(run)
        self._limits = limits
        self._provider = provider and for_session(provider, session_state(run.session_id, self.run.view))
        self._asked_bytes: int | None = None

    def services(self) -> Mapping[type, object]:
        return {Compaction: self}

    def opening_events(self) -> Sequence[Event]:
        """Return an event with the limits of this run if they differ from the previous run's, for readers of the log."""
        limits = {"max_tokens": self._limits.max_tokens, "max_bytes": self._limits.max_bytes}
        noted = self.run.view.fold(PartStatesFold).newest(WINDOW_STATE)
        before = dict.fromkeys(limits) if noted is None else noted.data
        return () if before == limits else (PartState(WINDOW_STATE, 1, limits),)

    async def make_room(self) -> bool:
        return await self.compact("overflow")

    async def before_step(self) -> None:
        """Compact if the next request would approach a limit."""
        limits = self._limits
        if limits.max_tokens is None and limits.max_bytes is None:
            return
        size = self.run.view.conversation.size_bytes() + self._overhead_bytes()
        if is_near_limit(size, limits, self._bytes_per_token()) and await self.compact("auto"):
            size = self.run.view.conversation.size_bytes() + self._overhead_bytes()
        self._asked_bytes = size

    async def compact(self, trigger: str) -> bool:
        """Replace the older part of the conversation with a summary, or with `trigger` "auto", only clear old outputs if
        that suffices.

        Returns False if nothing could be removed or a hook blocked it. Raises `RunStopped` if a hook stopped the run, or if
        the budget or the time runs out.
        """
        if trigger != "manual":
            await self.run.context.update()
        weight, overhead = self._bytes_per_token(), self._overhead_bytes()
        view, limits = self.run.view, self._limits
        clearing = partial(plan_clearing, view.conversation, limits, bytes_per_token=weight, overhead_bytes=overhead)
        planning = partial(
            plan_compaction,
            view.events,
            limits,
            conversation=view.conversation,
            bytes_per_token=weight,
            overhead_bytes=overhead,
        )
        # In a thread, like everything here that reads the whole conversation, which may fill the model's context window.
        old = await run_in_thread(clearing) if trigger == "auto" else None
        plan = await run_in_thread(planning) if old is None else None
        if plan is None and old is None:
            return False
        _, decision = await self.run.hooks.run("pre_compact", {"trigger": trigger})
        self._raise_if_stopped(trigger)
        if decision is not None and (decision.block or decision.stops):
            return False
        if old is not None:
            await self._clear(old, weight)
            return True
        assert plan is not None, "a plan to clear or to summarize exists"
        text = await self._ask_for_summary(plan, trigger)
        summary = await run_in_thread(lambda: finish_summary(plan, text or ""))
        method = "fallback" if text is None else "model"
        await self.run.record(compacted_event(plan, summary, trigger=trigger, method=method, bytes_per_token=weight))
        await self.run.hooks.run("post_compact", {"trigger": trigger, "summary": summary})
        self._raise_if_stopped(trigger)
        await self.run.hooks.run_session_start("compact")
        if trigger != "manual":
            deferred = self.run.parts.services.find(DeferredTools)
            if deferred is not None:
                deferred.update()  # tools found in messages that were removed are now announced with the others
        return True

    def _raise_if_stopped(self, trigger: str) -> None:
        """Raise `RunStopped` if a hook stopped the run; never for manual compaction, which happens outside a run."""
        if self.run.hooks.stopped_by is not None and trigger != "manual":
            raise self.run.hooks.stopped_by

    async def _clear(self, plan: ClearingPlan, bytes_per_token: float) -> None:
        """Store old outputs as blobs, and replace them with notes in the model's view of the conversation."""
        results: dict[str, Any] = {}
        for output in plan.outputs:
            data = output.text.encode("utf-8", "surrogatepass")
            sha256 = output.blob or await put_blob(self.run, data)
            results[output.tool_use_id] = {"sha256": sha256, "bytes": len(data)}
        before, after = (estimate_tokens(size, bytes_per_token) for size in (plan.bytes_before, plan.bytes_after))
        await self.run.record(ContextCleared(results, "auto", before, after))

    def _overhead_bytes(self) -> int:
        """The size of the system prompt and the tool definitions, which every request contains; 0 before the first one."""
        context = self.run.view.context
        return 0 if context is None else len(context.system_prompt) + len(canonical_json(list(context.tools)))

    def _bytes_per_token(self) -> float:
        """The bytes per token, corrected by the size and the reported tokens of the last request if both are known."""
        tokens = self.run.view.last_request_tokens
        if tokens is None or self._asked_bytes is None:
            return BYTES_PER_TOKEN
        return corrected_bytes_per_token(self._asked_bytes, tokens)

    async def _ask_for_summary(self, plan: CompactionPlan, trigger: str) -> str | None:
        """Ask the model for a summary; return None if it gives none, and after a failed request, which also records a
        notice.

        The request is first appended to the conversation itself, which the vendor has cached. If that is not possible (after
        an overflow, with another model, or if it would be too long), or the answer is not a text alone, a request with a
        transcript of the part that will be removed follows.
        """
        try:
            text = None if trigger == "overflow" else await self._ask_behind()
            if text:
                return text
            # A margin, because the bytes of a token are only an average, and the summary itself needs space in the same
            # window.
            room = self._limits.budget_bytes(0.7, BYTES_PER_TOKEN) or _SUMMARY_REQUEST_BYTES
            messages = await run_in_thread(partial(summary_request, plan, room))
            digest = request_sha256(self.run.model, messages, ())
            request = ModelRequest(
                self.run.view.steps, 1, digest, len(messages), messages, "compaction", self.run.model
            )
            return await self._ask(request, messages, ())
        except ProviderError as error:
            text = f"the model returned no summary, so one was created without the model: {error}"
            await self.run.record(SystemNotice("compaction.fallback", text))
            return None

    async def _ask_behind(self) -> str | None:
        """Ask for the summary at the end of the conversation.

        Return None if another model was in use, if the request is too long, or if the answer contains a call or no text.
        """
        context, conversation = self.run.view.context, self.run.view.conversation
        if context is None or (context.model, context.provider) != (self.run.model, self.run.agent.provider.name):
            return None
        appended = [{"role": "user", "content": INSTRUCTION_BEHIND}]
        size = conversation.size_bytes() + size_of(appended) + self._overhead_bytes()
        if is_over_limit(size, self._limits, self._bytes_per_token()):
            return None
        messages = [*system_messages(context.system_prompt), *conversation.messages(), *appended]
        digest = conversation.request_sha256(appended)
        request = ModelRequest(
            self.run.view.steps, 1, digest, len(messages), purpose="compaction", model=self.run.model, appended=appended
        )
        try:
            return await self._ask(request, await outgoing(self.run, messages), context.tools)
        except ContextLengthError:
            return None

    async def _ask(
        self, request: ModelRequest, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> str | None:
        """Return the text that answers a request for a summary; None if the answer contains calls."""
        output = await ask_beside(self.run, self._provider, request, messages, tools)
        return None if output.tool_calls else output.assistant_text


async def ask_beside(
    run: Run,
    provider: Provider | None,
    request: ModelRequest,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] = (),
) -> ModelOutput:
    """Ask a model a question outside the conversation; the request and the answer are recorded in the log.

    If `provider` is None, the run's own is asked. Raises `RunStopped` if the budget or the time runs out. Also raises the
    errors of the provider.
    """
    await run.record(request)
    began = run.agent.clock.monotonic()
    provider = provider or run.agent.provider
    answer = ask(provider, model=run.model, messages=messages, tools=tools, api_key=run.agent.api_key)
    room = AnswerRoom(run)
    try:
        output = await call_guest(lambda: fold(_recorded(run, answer, room)), f"provider {provider.name}")
        _, stopped = room.take_output(output)
        if stopped is not None:
            raise RunStopped("budget", stopped)
    # The log itself failed: nothing more can be recorded in it.
    except StorageError:
        raise
    except Exception as error:  # any failure: a recorded request needs its recorded response
        await run.record(_response(run, None, began, error))
        raise
    await run.record(_response(run, output.usage, began))
    return output


async def compact_closed_session(agent: AgentRuntime, request: RunRequest) -> bool:
    """Compact a session that no run uses; return whether anything was removed.

    Raises `BudgetError` if the budget or the time runs out. Also raises the errors of `open_run`.
    """
    silent = EventChannel[Event]()
    silent.close()
    run = await open_run(agent, request, silent)
    try:
        budgets = run.parts.services.find(Budgets)
        complaint = None if budgets is None else await budgets.complaint()
        if complaint is not None:
            raise BudgetError(complaint)
        return await run.parts.services.get(Compaction).compact("manual")
    except RunStopped as stopped:
        raise BudgetError(stopped.message) from stopped
    finally:
        await close_run(run)


async def _recorded(
    run: Run, events: AsyncGenerator[StreamEvent, None], room: AnswerRoom
) -> AsyncGenerator[StreamEvent, None]:
    """Yield the events, and record retries that change how later requests are written.

    Raises `RunStopped` when the time or the budget runs out.
    """
    async with aclosing(events):
        async for event in events:
            await asyncio.sleep(0)  # an endless stream must not block the event loop
            stopped = room.take_event(event)
            if stopped is not None:
                raise RunStopped("budget", stopped)
            if run.lifetime.deadline.remaining_s() == 0:
                raise RunStopped("timeout", "the time limit timeout_s has passed: raise it, or resume the session")
            if isinstance(event, Retrying) and event.control is not None:
                retry = ModelRetry(run.view.steps, event.attempt, event.reason, event.delay_s, control=event.control)
                await run.record(retry)
            yield event


def _response(run: Run, usage: Mapping[str, Any] | None, began: float, error: Exception | None = None) -> ModelResponse:
    normal = normalize_usage(usage)
    cost = run.agent.cost(normal, run.model)
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
