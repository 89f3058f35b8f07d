"""Ask another model when the first one cannot answer: models in order, each at its own provider, every change an event."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from ..errors import ContextLengthError, ProviderError, ProviderHTTPError
from .base import Message, ModelOutput, Provider, Retrying, StreamEvent, ToolSpec
from .wrap import ask, fold, formatted, is_shown

# The request itself is at fault: another model would refuse it too, and should not be paid for finding out.
_REQUEST_FAULTS = frozenset({400, 413, 422})


@dataclass(frozen=True)
class Fallback:
    """A model to ask instead. `provider` and `api_key` None are those of the first one."""

    model: str
    provider: Provider | None = None
    api_key: str | None = None


class FallbackProvider:
    """A provider that goes on to the next model of a list when one fails before anything of its answer was shown.

    A failure that lies in the request goes to the caller at once. What the last one raises is raised.
    """

    def __init__(self, provider: Provider, fallbacks: Sequence[Fallback | str]) -> None:
        self.name = provider.name
        self.provider = provider
        self.fallbacks = tuple(Fallback(item) if isinstance(item, str) else item for item in fallbacks)

    def with_response_format(self, response_format: Mapping[str, Any]) -> FallbackProvider | None:
        """The same with every provider asking for this format, or None when one of them cannot."""
        inner = formatted(self.provider, response_format)
        others = [_formatted(fallback, response_format) for fallback in self.fallbacks]
        known = [fallback for fallback in others if fallback is not None]
        return FallbackProvider(inner, known) if inner is not None and len(known) == len(others) else None

    async def complete(
        self, *, model: str, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), api_key: str | None = None
    ) -> ModelOutput:
        """The whole answer of the first model that gives one."""
        return await fold(self.stream(model=model, messages=messages, tools=tools, api_key=api_key))

    async def stream(
        self, *, model: str, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), api_key: str | None = None
    ) -> AsyncGenerator[StreamEvent, None]:
        """The answer, with a `Retrying` that names the model before each fallback."""
        attempts = [Fallback(model, self.provider, api_key), *self.fallbacks]
        for position, one in enumerate(attempts, start=1):
            shown = False
            provider = one.provider or self.provider
            key = one.api_key or (api_key if provider is self.provider else None)
            try:
                events = ask(provider, model=one.model, messages=messages, tools=tools, api_key=key)
                async with aclosing(events):
                    async for event in events:
                        shown = shown or is_shown(event)
                        yield event
                return
            except (ProviderError, ConnectionError, TimeoutError) as error:
                if shown or position == len(attempts) or not _may_help(error):
                    raise
                reason = str(error) or type(error).__name__
            yield Retrying(reason, 0.0, position, attempts[position].model)


def _formatted(fallback: Fallback, response_format: Mapping[str, Any]) -> Fallback | None:
    if fallback.provider is None:
        return fallback
    provider = formatted(fallback.provider, response_format)
    return None if provider is None else replace(fallback, provider=provider)


def _may_help(error: Exception) -> bool:
    if isinstance(error, ContextLengthError):
        return False
    return not (isinstance(error, ProviderHTTPError) and error.status in _REQUEST_FAULTS)
