"""What providers around other providers share: asking any kind of provider as a stream, and answering whole."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from copy import copy
from dataclasses import field
from typing import Any, Protocol, Self, cast, runtime_checkable

from ...errors import ProviderResponseError
from ...ground.frozen import mutable
from ..base import (
    MEDIA_KINDS,
    CompletingProvider,
    Done,
    FormattingProvider,
    Message,
    ModelOutput,
    Provider,
    ProviderSession,
    ReasoningPiece,
    Retrying,
    StreamEvent,
    StreamingProvider,
    TextDelta,
    ToolCall,
    ToolCallReady,
    ToolSpec,
    can_load_tools,
    for_session,
    read_output,
    read_stream_event,
    takes,
)


@runtime_checkable
class KeyedProvider(Protocol):
    """A provider that can mark all attempts at one call with the same idempotency key."""

    def with_idempotency_key(self, key: str) -> Self: ...


class StreamedProvider(ABC):
    """A provider whose whole answer is what its stream adds up to."""

    name: str

    @abstractmethod
    def stream(
        self, *, model: str, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), api_key: str | None = None
    ) -> AsyncGenerator[StreamEvent, None]:
        """The answer piece by piece."""

    async def complete(
        self, *, model: str, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), api_key: str | None = None
    ) -> ModelOutput:
        """The whole answer."""
        return await fold(self.stream(model=model, messages=messages, tools=tools, api_key=api_key))


class AroundProvider(StreamedProvider):
    """A provider around another one, whose name it bears."""

    def __init__(self, provider: Provider) -> None:
        self.name = provider.name
        self.provider = provider

    def for_session(self, state: ProviderSession) -> Self:
        """The same around the provider for this session."""
        other = copy(self)
        other.provider = for_session(self.provider, state)
        return other

    @property
    def inputs(self) -> tuple[str, ...]:
        """The kinds of parts that the other one takes."""
        return tuple(kind for kind in MEDIA_KINDS if takes(self.provider, kind))

    def loads_tools(self, model: str) -> bool:
        """Whether this model takes definitions of tools where they were found."""
        return can_load_tools(self.provider, model)

    def with_response_format(self, response_format: Mapping[str, Any]) -> Self | None:
        """The same around a provider that asks for this format, or None when the other one cannot."""
        inner = formatted(self.provider, response_format)
        if inner is None:
            return None
        other = copy(self)
        other.provider = inner
        return other


def formatted(provider: Provider, response_format: Mapping[str, Any]) -> Provider | None:
    """The provider asking for answers of this format, or None when it cannot."""
    return provider.with_response_format(response_format) if isinstance(provider, FormattingProvider) else None


def streams(provider: Provider) -> bool:
    """Whether the provider gives its answers piece by piece."""
    # `isinstance` with a protocol would take a tenth of a millisecond at each step.
    return getattr(provider, "stream", None) is not None


def whole(provider: Provider) -> CompletingProvider:
    """The same provider, of which `streams` is not true."""
    return cast(CompletingProvider, provider)


async def ask(
    provider: Provider, *, model: str, messages: Sequence[Message], tools: Sequence[ToolSpec], api_key: str | None
) -> AsyncGenerator[StreamEvent, None]:
    """The answer as a stream; a provider that only answers whole gives `Done` alone."""
    if not streams(provider):
        said = await whole(provider).complete(model=model, messages=messages, tools=tools, api_key=api_key)
        output = read_output(said)
        yield Done(output, output.usage, output.finish_reason, output.extras, output.refusal)
        return
    stream = cast(StreamingProvider, provider).stream(model=model, messages=messages, tools=tools, api_key=api_key)
    try:
        async for item in stream:
            event = read_stream_event(item)
            if event is not None:
                yield event
            else:
                await asyncio.sleep(0)  # a stream of nothing but unknown events must not hold the event loop
    finally:
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()


@mutable
class Pieces:
    """An answer as far as it has come, piece by piece."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)

    def take(self, event: StreamEvent) -> ModelOutput | None:
        """Add what an event brings; the whole answer with the event that ends it, None before."""
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
    """The whole answer of a stream. Raises `ProviderResponseError` when it has no end."""
    pieces = Pieces()
    async with aclosing(events):
        async for event in events:
            if (output := pieces.take(event)) is not None:
                return output
    raise ProviderResponseError("the provider's stream ended without saying that it was done")


def is_shown(event: StreamEvent) -> bool:
    """Whether the caller has seen part of an answer, so that it cannot be asked for again behind its back."""
    return isinstance(event, TextDelta | ReasoningPiece | ToolCallReady | Done)
