"""The common part of providers that wrap others: their name, abilities and complete answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from copy import copy
from typing import Any, Protocol, Self, runtime_checkable

from ..base import (
    Done,
    Message,
    ModelOutput,
    Provider,
    ProviderSession,
    ReasoningPiece,
    StreamEvent,
    TextDelta,
    ToolCallReady,
    ToolSpec,
    for_session,
)
from .abilities import MEDIA_KINDS, FormattingProvider, can_load_tools, takes
from .answer import fold


@runtime_checkable
class KeyedProvider(Protocol):
    """A provider that can mark all attempts at one call with the same idempotency key."""

    def with_idempotency_key(self, key: str) -> Self: ...


class StreamedProvider(ABC):
    """A provider whose complete answer is the sum of its stream."""

    name: str

    @abstractmethod
    def stream(
        self, *, model: str, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), api_key: str | None = None
    ) -> AsyncGenerator[StreamEvent, None]:
        """Yield the answer's events as they arrive."""

    async def complete(
        self, *, model: str, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), api_key: str | None = None
    ) -> ModelOutput:
        """Return the whole answer."""
        return await fold(self.stream(model=model, messages=messages, tools=tools, api_key=api_key))


class AroundProvider(StreamedProvider):
    """A provider that wraps another one and has its name."""

    def __init__(self, provider: Provider) -> None:
        self.name = provider.name
        self.provider = provider

    def for_session(self, state: ProviderSession) -> Self:
        """Return a copy of this wrapper, adapted to this session."""
        other = copy(self)
        other.provider = for_session(self.provider, state)
        return other

    @property
    def inputs(self) -> tuple[str, ...]:
        """The kinds of parts besides text that the wrapped provider accepts."""
        return tuple(kind for kind in MEDIA_KINDS if takes(self.provider, kind))

    def loads_tools(self, model: str) -> bool:
        """Whether this model accepts tool definitions where they were found."""
        return can_load_tools(self.provider, model)

    def with_response_format(self, response_format: Mapping[str, Any]) -> Self | None:
        """Return a copy of this wrapper that requests this format, or None if the wrapped provider cannot."""
        inner = formatted(self.provider, response_format)
        if inner is None:
            return None
        other = copy(self)
        other.provider = inner
        return other


def formatted(provider: Provider, response_format: Mapping[str, Any]) -> Provider | None:
    """Return a copy of the provider that requests this format, or None if it cannot."""
    return provider.with_response_format(response_format) if isinstance(provider, FormattingProvider) else None


def is_shown(event: StreamEvent) -> bool:
    """Whether this event shows the caller part of an answer, which then cannot be requested again unnoticed."""
    return isinstance(event, TextDelta | ReasoningPiece | ToolCallReady | Done)
