"""One model call: the request as the log tells it, the answer as it comes, both in the log."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import field
from typing import Any

from ..errors import IncompleteResponseError
from ..events import (
    AssistantDelta,
    AssistantMessage,
    AssistantReasoning,
    Event,
    ModelContext,
    ModelRequest,
    ModelResponse,
    ModelRetry,
    ReasoningDelta,
    ToolUse,
)
from ..frozen import frozen
from ..providers import base as wire
from ..providers.wrap import ask
from ..sessions.folds.usage import normalize_usage
from .agent import Run, RunStopped
from .masking import mask_event, mask_messages
from .prompt import with_data
from .recorder import settled


@frozen
class Reply:
    """What came of a model call: its text, and the calls as they stand in the log."""

    text: str
    calls: tuple[ToolUse, ...] = ()
    output: wire.ModelOutput = field(default_factory=lambda: wire.ModelOutput(None))


async def ask_model(run: Run) -> Reply:
    """Send the conversation, show the answer as it comes, and record it.

    Raises what the provider raised, after recording what had come; `RunStopped` when a hook blocks.
    """
    request = await _record_request(run)
    answer = _Answer(run, request)
    try:
        output = await answer.receive()
    except BaseException as error:
        await answer.record_failure(error)
        raise
    calls = await answer.record(output)
    _, events, decision = await run.agent.hooks.run_after_model_call(output=output, context=run.hook_context())
    await run.record(*events)
    if decision is not None and decision.block:
        raise RunStopped("blocked:after_model_call", decision.block_reason or "")
    return Reply(output.assistant_text or "", calls, output)


@frozen
class _Request:
    step: int
    model: str
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]


async def _record_request(run: Run) -> _Request:
    agent = run.agent
    prompt = agent.guidance.system_prompt(run.view.skill_events)
    context = ModelContext(
        run.model, agent.provider.name, prompt.text, agent.tools.specs(), [vars(part) for part in prompt.parts]
    )
    if agent.redact is not None:  # what is sent is what is stored
        context = mask_event(context, agent.redact)
    known, asked = run.view.context, (context.model, context.provider, context.system_prompt, list(context.tools))
    if known is None or (known.model, known.provider, known.system_prompt, list(known.tools)) != asked:
        await run.record(context)
    system = run.system_message(context.system_prompt)
    messages: Sequence[Mapping[str, Any]] = [*system, *run.view.conversation.messages()]
    sent, events, decision = await agent.hooks.run_before_model_call(messages=messages, context=run.hook_context())
    await run.record(*events)
    if decision is not None and decision.block:
        raise RunStopped("blocked:before_model_call", decision.block_reason or "")
    if sent is not messages and agent.redact is not None:
        sent = mask_messages(sent, agent.redact)
    step = run.view.steps + 1
    await run.record(
        ModelRequest(
            step=step,
            attempt=1,
            request_sha256=run.digest.of(context.model, sent, context.tools),
            message_count=len(sent),
            messages=None if sent is messages else sent,
        )
    )
    return _Request(step, context.model, sent, context.tools)


class _Answer:
    """An answer on its way: what has come so far, and when."""

    def __init__(self, run: Run, request: _Request) -> None:
        self._run = run
        self._request = request
        self._clock = run.agent.clock
        self._asked_at = self._clock.monotonic()
        self._first_at: float | None = None
        self._attempt = 1
        self._model = request.model
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[wire.ToolCall] = []
        self._cut_usage: Mapping[str, Any] | None = None

    async def receive(self) -> wire.ModelOutput:
        """The whole answer; its pieces are shown as they come. Raises `IncompleteResponseError` for one that was cut."""
        agent, request = self._run.agent, self._request
        messages = await with_data(self._run, request.messages)
        answer = ask(agent.provider, model=self._model, messages=messages, tools=request.tools, api_key=agent.api_key)
        del messages
        async with aclosing(answer):
            async for event in answer:
                if isinstance(event, wire.Done):
                    return self._complete(event.output or self._output(event))
                await self._take(event)
        raise IncompleteResponseError(
            "the model's answer stopped before it was complete: send the prompt again", partial_text="".join(self._text)
        )

    async def _take(self, event: wire.StreamEvent) -> None:
        if isinstance(event, wire.TextDelta) and event.delta:
            self._piece(self._text, event.delta)
            await self._run.recorder.show(AssistantDelta(event.delta, self._attempt))
        elif isinstance(event, wire.ReasoningDelta) and event.delta:
            self._piece(self._reasoning, event.delta)
            await self._run.recorder.show(ReasoningDelta(event.delta, self._attempt))
        elif isinstance(event, wire.ToolCallReady):
            self._first_at = self._first_at or self._clock.monotonic()
            self._calls.append(event.tool_call)
        elif isinstance(event, wire.Retrying):
            await self._retry(event)

    def _piece(self, pieces: list[str], piece: str) -> None:
        if self._first_at is None:
            self._first_at = self._clock.monotonic()
        pieces.append(piece)

    async def _retry(self, event: wire.Retrying) -> None:
        """Record that an attempt is void, and what of its answer had come."""
        text = "".join(self._text)
        self._text, self._reasoning, self._calls = [], [], []
        provider = self._run.agent.provider.name
        partial = [AssistantMessage(text, incomplete=True, provider=provider)] if text else []
        self._attempt += 1
        self._model = event.model or self._model
        retry = ModelRetry(
            self._request.step, event.attempt, event.reason, event.delay_s, event.model, event.mid_answer
        )
        await self._run.record(*partial, retry)

    def _output(self, done: wire.Done) -> wire.ModelOutput:
        return wire.ModelOutput(
            assistant_text="".join(self._text),
            tool_calls=tuple(self._calls),
            usage=done.usage,
            finish_reason=done.finish_reason,
            reasoning="".join(self._reasoning) or None,
            extras=done.extras,
            refusal=done.refusal,
        )

    def _complete(self, output: wire.ModelOutput) -> wire.ModelOutput:
        if not output.complete:
            self._text = [output.assistant_text or ""]
            self._cut_usage = output.usage
            raise IncompleteResponseError(
                f"the model's answer was cut (finish reason {output.finish_reason!r}): send the prompt again",
                partial_text=output.assistant_text or "",
            )
        return output

    async def record(self, output: wire.ModelOutput) -> tuple[ToolUse, ...]:
        """The complete answer as one batch; returns its calls."""
        run, provider = self._run, self._run.agent.provider.name
        calls = self._tool_uses(output, provider)
        events: list[Event] = [self._response(output)]
        if output.reasoning:
            events.append(AssistantReasoning(output.reasoning))
        if output.assistant_text or output.extras or not calls:
            message = AssistantMessage(
                output.assistant_text or "",
                refusal=output.refusal,
                provider=provider,
                extras=output.extras,
                citations=output.citations or None,
            )
            events.append(message)
        stored = await run.record(*events, *calls)
        return tuple(event for event in stored if isinstance(event, ToolUse))

    def _tool_uses(self, output: wire.ModelOutput, provider: str) -> list[ToolUse]:
        earlier, taken = self._run.view.calls, set[str]()
        uses = []
        for index, call in enumerate(map(wire.read_tool_call, output.tool_calls)):
            call_id = call.tool_use_id
            if not call_id or call_id in earlier or call_id in taken:
                call_id = f"call_{self._request.step}_{index}"
            taken.add(call_id)
            uses.append(ToolUse(call_id, call.name, call.arguments, call.raw_arguments, provider, call.extras))
        return uses

    def _response(self, output: wire.ModelOutput) -> ModelResponse:
        run, now, model = self._run, self._clock.monotonic(), output.model or self._model
        normal, cost = normalize_usage(output.usage), output.cost_usd
        if cost is None:
            cost = run.agent.cost(normal, model)
        if cost is None:  # a gateway may answer under another name than it was asked under
            cost = run.agent.cost(normal, self._model)
        run.budget.charge(normal, cost)
        return ModelResponse(
            step=self._request.step,
            attempt=self._attempt,
            finish_reason=output.finish_reason,
            usage=normal,
            cost_usd=cost,
            first_token_s=None if self._first_at is None else round(self._first_at - self._asked_at, 6),
            total_s=round(now - self._asked_at, 6),
            model=model,
            provider=run.agent.provider.name,
            response_id=output.response_id,
            service_tier=output.service_tier,
            system_fingerprint=output.system_fingerprint,
            rate_limits=output.rate_limits,
            logprobs=output.logprobs,
            notices=output.notices or None,
            raw=output.raw if output.record_raw else None,
        )

    async def record_failure(self, error: BaseException) -> None:
        """What had come before the answer failed or the run was cancelled: kept as an incomplete message."""
        text = "".join(self._text) or (error.partial_text if isinstance(error, IncompleteResponseError) else "")
        cancelled = isinstance(error, asyncio.CancelledError)
        spent = normalize_usage(self._cut_usage)
        cost = self._run.agent.cost(spent, self._model)
        if spent is not None:
            self._run.budget.charge(spent, cost)
        response = ModelResponse(
            step=self._request.step,
            attempt=self._attempt,
            complete=False,
            usage=spent,
            cost_usd=cost,
            total_s=round(self._clock.monotonic() - self._asked_at, 6),
            model=self._model,
            provider=self._run.agent.provider.name,
            error_type="Cancelled" if cancelled else type(error).__name__,
            error_message=None if cancelled else str(error),
        )
        partial = [AssistantMessage(text, incomplete=True, provider=self._run.agent.provider.name)] if text else []
        recording, _ = await settled(self._run.record(response, *partial))
        recording.result()
