"""One model call: build the request from the log, receive the answer, record both."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from typing import Any

from ..errors import IncompleteResponseError
from ..events import (
    CODE_CALLER,
    AssistantDelta,
    AssistantMessage,
    AssistantReasoning,
    Event,
    ModelRequest,
    ModelResponse,
    ModelRetry,
    ReasoningDelta,
    ToolUse,
)
from ..ground.frozen import frozen
from ..ground.threads import Guest, call_guest, error_words, run_in_thread, settled
from ..providers import base as wire
from ..providers.wrappers.answer import Pieces, ask, complete, streams
from ..serialization import dumps_json
from ..sessions.folds.usage import normalize_usage
from ..sessions.rebuild import MANY_BLOCKS, fit_rewritten, system_messages
from ..sessions.request import request_sha256
from .agent import Run
from .channel import EventChannel
from .lifetime import RunStopped
from .part import Part
from .tool_output import plain_value


@frozen
class Reply:
    """An answer of the model: its text, its calls as recorded, and the provider's output (empty if read from the log)."""

    text: str
    calls: tuple[ToolUse, ...] = ()
    output: wire.ModelOutput = field(default_factory=lambda: wire.ModelOutput(None))


async def ask_model(run: Run) -> Reply:
    """Send the conversation, show the answer as it arrives, and record it.

    Re-raises the provider's error after recording what had arrived; raises `RunStopped` if a hook blocks or at a limit.
    """
    request = await _record_request(run)
    answer = _IncomingAnswer(run, request)
    try:
        output = await answer.receive()
    except BaseException as error:  # also on cancellation: the text so far is recorded
        await answer.record_failure(error)
        raise
    # Before the hooks judge it: it has been paid for, and a resume must not pay again.
    calls = await answer.record(output)
    if run.agent.hooks.are_any:
        _, events, decision = await run.agent.hooks.run_after_model_call(output=output, context=run.hooks.context())
        await run.record(*events)
        if decision is not None and (decision.block or decision.stops):
            # A refused answer is not the run's final text.
            run.view.last_text = ""
            raise RunStopped("blocked:after_model_call", decision.block_reason or "")
    return Reply(output.assistant_text or "", calls, output)


# Bounds, because callers and ids, which may hold a signature, are sent again with every later request, and each call adds
# several events to the log.
_MAX_CALLER_BYTES, _MAX_ID_CHARS, MAX_CALLS = 2_000, 16_384, 2_000


@frozen
class _StepRequest:
    step: int
    model: str
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    has_parts: bool


async def _record_request(run: Run) -> _StepRequest:
    agent, conversation = run.agent, run.view.conversation
    context = await run.context.update()
    # In a thread, because rendering a long conversation would block the event loop for too long. The conversation caches
    # the rendered messages, so the next line only copies a list.
    if conversation.unsettled > MANY_BLOCKS:
        await run_in_thread(conversation.messages)
    messages: Sequence[Mapping[str, Any]] = conversation.messages(system_messages(context.system_prompt))
    sent = messages
    if agent.hooks.are_any:
        sent, events, decision = await agent.hooks.run_before_model_call(messages=messages, context=run.hooks.context())
        await run.record(*events)
        if decision is not None and (decision.block or decision.stops):
            raise RunStopped("blocked:before_model_call", decision.block_reason or "")
    is_own = sent is messages
    if not is_own:
        # A hook may have put back what was masked; the log holds what is sent, so neither may have it.
        sent = [{**message, "content": run.parts.masked(message.get("content"))} for message in sent]
        sent = fit_rewritten(sent, messages, context.model)
    request = ModelRequest(
        run.view.steps + 1,
        1,
        conversation.request_sha256() if is_own else request_sha256(context.model, sent, context.tools),
        len(sent),
        messages=None if is_own else sent,
        model=context.model,
    )
    await run.record(request)
    # Messages from a hook are not searched for references to blobs: assume that they contain some.
    return _StepRequest(request.step, context.model, sent, context.tools, not is_own or conversation.has_parts)


class AnswerRoom:
    """The room left for an answer before `max_answer_bytes` or a part's limit cuts it off."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._size_bytes = self._call_count = 0

    def take(self, piece: str) -> tuple[str, str | None]:
        """Count a piece; return as much of it as fits, and why the answer ends here, or None if it may continue."""
        size = len(piece) if piece.isascii() else len(piece.encode("utf-8", "surrogatepass"))
        before, self._size_bytes = self._size_bytes, self._size_bytes + size
        room, stopped = self._run.agent.max_answer_bytes, None
        if self._size_bytes > room:
            stopped = f"the model's answer is longer than max_answer_bytes, {room} bytes"
        for part in self._run.parts.at(Part.receive):
            most, why = part.receive(self._size_bytes)
            if why is not None and most < room:
                room, stopped = most, why
        if stopped is None:
            return piece, None
        # The limit is in bytes and may fall inside a character, whose first part `ignore` drops.
        return piece.encode("utf-8", "surrogatepass")[: max(0, room - before)].decode("utf-8", "ignore"), stopped

    def take_event(self, event: wire.StreamEvent) -> str | None:
        """Count an event; return the reason why the answer ends with it, or None if it fits."""
        if not isinstance(event, wire.ToolCallReady):
            return self.take(event.delta)[1] if isinstance(event, wire.TextDelta | wire.ReasoningPiece) else None
        call, self._call_count = event.tool_call, self._call_count + 1
        stopped = f"the model's answer has more than {MAX_CALLS:,} calls" if self._call_count > MAX_CALLS else None
        return stopped or self.take(f"{call.name}{call.raw_arguments or call.arguments}")[1]

    def take_output(self, output: wire.ModelOutput) -> tuple[str, str | None]:
        """Return as much of a complete answer's text as fits, and the reason why the answer is too long, or None.

        The complete answer replaces the pieces that came before.
        """
        self._size_bytes = self._call_count = 0
        text, stopped = self.take(output.assistant_text or "")
        stopped = self.take(output.reasoning or "")[1] or stopped
        for call in output.tool_calls:
            stopped = self.take_event(wire.ToolCallReady(call)) or stopped
        return text, stopped


def _vendor_caller(call: wire.ToolCall) -> Mapping[str, Any] | None:
    """The `caller` that the endpoint reports: the code that made this call. None if it is invalid, too long, or ours."""
    caller = plain_value(call.caller)
    # With our own type, an endpoint could make calls that the model never sees.
    if not isinstance(caller, dict) or caller.get("type") == CODE_CALLER or len(dumps_json(caller)) > _MAX_CALLER_BYTES:
        return None
    return caller


async def outgoing(run: Run, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the messages of a request as they are sent: parts insert what the log only references."""
    for part in run.parts.at(Part.send):
        messages = await part.send(messages)
    return messages


class _IncomingAnswer:
    """An answer in transit: what has arrived so far, and when."""

    def __init__(self, run: Run, request: _StepRequest) -> None:
        self._run = run
        self._request = request
        self._clock = run.agent.clock
        self._asked_at = self._clock.monotonic()
        self._first_at: float | None = None
        self._attempt = 1
        self._model = request.model
        self._name = f"provider {run.agent.provider.name}"
        self._came = Pieces()
        self._cut_usage: Mapping[str, Any] | None = None
        self._room = AnswerRoom(run)

    async def receive(self) -> wire.ModelOutput:
        """Return the answer; show its pieces as they arrive. Raises `IncompleteResponseError`; at a limit, `RunStopped`."""
        if not streams(self._run.agent.provider):
            return self._complete(self._fitting(await call_guest(self._ask_whole, self._name)))
        pieces = EventChannel[wire.StreamEvent]()
        done: list[wire.Done] = []
        # A guest, because a provider's stream may suppress its cancellation.
        reading = Guest(lambda: self._read_all(pieces, done), self._name)
        try:
            while (event := await pieces.receive()) is not None:
                # The deadline uses the run's clock, which a test may replace, but `asyncio.timeout` the event loop's.
                if self._run.lifetime.deadline.remaining_s() == 0:
                    raise RunStopped("timeout", "the time limit timeout_s has passed: raise it, or resume the session")
                await self._take(event)
            await reading.ended()
        except BaseException:  # also on cancellation: end the stream before the run continues
            pieces.close()
            ending, _ = await settled(reading.end())
            ending.exception()
            raise
        reading.value()
        if done:
            output = self._came.take(done[0])
            assert output is not None, "Done ends an answer"
            # The size of an answer that arrives whole was not counted in pieces: check it now.
            return self._complete(output if done[0].output is None else self._fitting(output))
        raise IncompleteResponseError(
            "the model's answer stopped before it was complete: send the prompt again",
            partial_text="".join(self._came.text),
        )

    async def _read_all(self, pieces: EventChannel[wire.StreamEvent], done: list[wire.Done]) -> None:
        """Read the provider's stream up to its `Done`, as fast as the caller consumes the pieces."""
        agent, request = self._run.agent, self._request
        messages = await self._messages()
        answer = ask(agent.provider, model=self._model, messages=messages, tools=request.tools, api_key=agent.api_key)
        # The provider may need them only until they are sent, and pictures make them large; this frame lives as
        # long as the answer.
        del messages
        try:
            async for event in answer:
                if isinstance(event, wire.Done):
                    done.append(event)
                    return
                await pieces.send(event)
                if pieces.is_closed:  # the run is over, and a stream without an end would hold the event loop
                    return
        finally:
            pieces.close()
            with suppress(RuntimeError):  # an abandoned generator that is still running cannot be closed
                await answer.aclose()

    async def _ask_whole(self) -> wire.ModelOutput:
        agent, request = self._run.agent, self._request
        messages = await self._messages()
        return await complete(
            agent.provider, model=self._model, messages=messages, tools=request.tools, api_key=agent.api_key
        )

    async def _messages(self) -> Sequence[Mapping[str, Any]]:
        return await outgoing(self._run, self._request.messages) if self._request.has_parts else self._request.messages

    async def _take(self, event: wire.StreamEvent) -> None:
        """Show and keep as much of a piece as fits. Raises `RunStopped` when the limit is reached."""
        if isinstance(event, wire.Retrying):
            await self._retry(event)
            return
        piece, stopped = "", None
        if isinstance(event, wire.ToolCallReady):
            self._came.calls.append(event.tool_call)
            stopped = self._room.take_event(event)
        elif isinstance(event, wire.TextDelta | wire.ReasoningPiece) and event.delta:
            piece, stopped = self._room.take(event.delta)
        else:
            return
        if self._first_at is None:
            self._first_at = self._clock.monotonic()
        if isinstance(event, wire.TextDelta):
            self._came.text.append(piece)
            await self._run.recorder.show(AssistantDelta(piece, self._attempt))
        elif isinstance(event, wire.ReasoningPiece):
            self._came.reasoning.append(piece)
            await self._run.recorder.show(ReasoningDelta(piece, self._attempt))
        if stopped is not None:
            raise RunStopped("budget", stopped)

    def _fitting(self, output: wire.ModelOutput) -> wire.ModelOutput:
        """Return the complete answer if it is within the limits; else keep the text that fits and raise `RunStopped`."""
        text, stopped = self._room.take_output(output)
        if stopped is not None:
            self._came.text = [text]
            self._cut_usage = output.usage
            raise RunStopped("budget", stopped)
        return output

    async def _retry(self, event: wire.Retrying) -> None:
        """Record that an attempt failed, and the part of its answer that had arrived."""
        text = "".join(self._came.text)
        self._came.take(event)
        partial = [AssistantMessage(text, incomplete=True, provider=self._run.agent.provider.name)] if text else []
        self._attempt += 1
        self._model = event.model or self._model
        retry = ModelRetry(
            self._request.step, event.attempt, event.reason, event.delay_s, event.model, event.mid_answer, event.control
        )
        await self._run.record(*partial, retry)

    def _complete(self, output: wire.ModelOutput) -> wire.ModelOutput:
        if not output.complete:
            self._came.text = [output.assistant_text or ""]
            self._cut_usage = output.usage
            raise IncompleteResponseError(
                f"the model's answer was cut off (finish reason {output.finish_reason!r}): send the prompt again",
                partial_text=output.assistant_text or "",
            )
        return wire.without_unfinished_calls(output)

    async def record(self, output: wire.ModelOutput) -> tuple[ToolUse, ...]:
        """Record the complete answer as one batch; return its calls."""
        run, provider = self._run, self._run.agent.provider.name
        used = run.view.calls, run.view.used_ids, (new_ids := set[str]())
        calls = []
        number = 0  # only grows, so that the search for free ids is linear whatever ids the model uses
        for index, call in enumerate(map(wire.read_tool_call, output.tool_calls)):
            call_id, number = call.tool_use_id, max(number, index)
            # Results are matched by id, and some endpoints send no ids, or the same ones in each answer.
            while not 0 < len(call_id) <= _MAX_ID_CHARS or any(call_id in ids for ids in used):
                call_id, number = f"call_{self._request.step}_{number}", number + 1
            new_ids.add(call_id)
            caller = _vendor_caller(call)
            calls.append(ToolUse(call_id, call.name, call.arguments, call.raw_arguments, provider, call.extras, caller))
        events: list[Event] = [self._response(output)]
        if output.reasoning:
            events.append(AssistantReasoning(output.reasoning))
        # An answer without text or calls is also recorded: the turn has ended with it.
        if output.assistant_text or output.extras or not calls:
            message = AssistantMessage(
                output.assistant_text or "",
                refusal=output.refusal,
                provider=provider,
                extras=output.extras,
                citations=output.citations or None,
            )
            events.append(message)
        # One batch, so that no crash leaves an answer with only some of its calls.
        batch = await run.record(*events, *calls)
        return tuple(event for event in batch if isinstance(event, ToolUse))

    def _response(self, output: wire.ModelOutput) -> ModelResponse:
        run, now, model = self._run, self._clock.monotonic(), output.model or self._model
        normal, cost = normalize_usage(output.usage), output.cost_usd
        if not (isinstance(cost, int | float) and 0 <= cost < 1e18):  # None, or not a possible price
            cost = run.agent.cost(normal, model, output.service_tier)
        if cost is None and model != self._model:  # a gateway may report a model other than the requested one
            cost = run.agent.cost(normal, self._model, output.service_tier)
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
        """Record an answer that failed or was cancelled, with its text unless the run is suspended and will ask again."""
        text = "".join(self._came.text) or (error.partial_text if isinstance(error, IncompleteResponseError) else "")
        kind, message = error_words(error)
        if isinstance(error, asyncio.CancelledError):
            kind, message = "Cancelled", ""
        elif isinstance(error, RunStopped):
            kind = error.reason
        usage = normalize_usage(self._cut_usage)
        cost = self._run.agent.cost(usage, self._model)
        response = ModelResponse(
            step=self._request.step,
            attempt=self._attempt,
            complete=False,
            usage=usage,
            cost_usd=cost,
            total_s=round(self._clock.monotonic() - self._asked_at, 6),
            model=self._model,
            provider=self._run.agent.provider.name,
            error_type=kind,
            error_message=message or None,
        )
        keeps = bool(text) and self._run.lifetime.stopping.asked != "suspend"
        partial = [AssistantMessage(text, incomplete=True, provider=self._run.agent.provider.name)] if keeps else []
        # Even if it is cancelled again: the cost of what arrived is known only here.
        recording, _ = await settled(self._run.record(response, *partial))
        recording.result()
