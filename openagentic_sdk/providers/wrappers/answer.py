"""Call any kind of provider as a stream, and combine the pieces of its answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import field
from typing import cast

from ...errors import ProviderResponseError
from ...ground.frozen import mutable
from ..base import (
    CompletingProvider,
    Done,
    Message,
    ModelOutput,
    Provider,
    ReasoningPiece,
    Retrying,
    StreamEvent,
    StreamingProvider,
    TextDelta,
    ToolCall,
    ToolCallReady,
    ToolSpec,
    fits,
    read_output,
    read_stream_event,
)


def streams(provider: Provider) -> bool:
    """Whether the provider streams its answers."""
    return fits(provider, StreamingProvider)


async def complete(
    provider: Provider, *, model: str, messages: Sequence[Message], tools: Sequence[ToolSpec], api_key: str | None
) -> ModelOutput:
    """Return the answer of a provider that does not stream. Raises `ProviderResponseError` if it is not an answer."""
    completing = cast(CompletingProvider, provider)
    reply = completing.complete(model=model, messages=messages, tools=tools, api_key=api_key)
    if not isinstance(reply, Awaitable):
        raise ProviderResponseError(f"complete() of provider {provider.name!r} must be declared with async def")
    return read_output(await reply)


async def ask(
    provider: Provider, *, model: str, messages: Sequence[Message], tools: Sequence[ToolSpec], api_key: str | None
) -> AsyncGenerator[StreamEvent, None]:
    """Yield the answer's events; if the provider does not stream, `Done` alone."""
    if not streams(provider):
        output = await complete(provider, model=model, messages=messages, tools=tools, api_key=api_key)
        yield Done(output, output.usage, output.finish_reason, output.extras, output.refusal)
        return
    stream = cast(StreamingProvider, provider).stream(model=model, messages=messages, tools=tools, api_key=api_key)
    if not isinstance(stream, AsyncIterable):
        if isinstance(stream, Coroutine):
            stream.close()  # it was never started
        raise ProviderResponseError(
            f"stream() of provider {provider.name!r} must be an async generator (async def with yield), but it returned a "
            f"{type(stream).__name__}"
        )
    try:
        async for item in stream:
            event = read_stream_event(item)
            if event is not None:
                yield event
            else:
                await asyncio.sleep(0)  # a stream of only unknown events must not block the event loop
    finally:
        # Closed here and now: left to the garbage collector, its connection would stay open until some later turn of
        # the loop.
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()


@mutable
class Pieces:
    """An answer as received so far, piece by piece."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)

    def take(self, event: StreamEvent) -> ModelOutput | None:
        """Add an event; return the whole answer if the event ends it, else None."""
        if isinstance(event, TextDelta):
            self.text.append(event.delta)
        elif isinstance(event, ReasoningPiece):
            self.reasoning.append(event.delta)
        elif isinstance(event, ToolCallReady):
            self.calls.append(event.tool_call)
        elif isinstance(event, Retrying):
            self.text, self.reasoning, self.calls = [], [], []
        if not isinstance(event, Done):
            return None
        return event.output or ModelOutput(
            "".join(self.text) or None,
            self.calls,
            usage=event.usage,
            finish_reason=event.finish_reason,
            reasoning="".join(self.reasoning) or None,
            extras=event.extras,
            refusal=event.refusal,
        )


async def fold(events: AsyncGenerator[StreamEvent, None]) -> ModelOutput:
    """Return the whole answer of a stream. Raises `ProviderResponseError` if the stream ends without `Done`."""
    pieces = Pieces()
    async with aclosing(events):
        async for event in events:
            if (output := pieces.take(event)) is not None:
                return output
    raise ProviderResponseError("the provider's stream ended without a `Done` event: yield one last")
