"""Call another model if the first one cannot answer: models in order, each at its own provider, every change an event."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Self

from ...errors import ContextLengthError, ProviderError, ProviderHTTPError
from ...ground.frozen import frozen
from ..base import Done, Message, Provider, ProviderSession, Retrying, StreamEvent, ToolSpec, for_session
from .answer import ask
from .wrap import AroundProvider, formatted, is_shown

# The request itself is at fault: another model would refuse it too, at a cost.
_REQUEST_FAULTS = frozenset({400, 413, 422})


@frozen
class Fallback:
    """A model to call instead. `provider` defaults to the first model's; `api_key` to the call's key at that provider."""

    model: str
    provider: Provider | None = None
    api_key: str | None = None


class FallbackProvider(AroundProvider):
    """A provider that moves on to the next model of a list if one fails.

    It moves on only before any part of the answer was shown, or with `mid_answer` until the answer is complete. An error
    caused by the request is raised at once, as is the error of the last model.
    """

    def __init__(self, provider: Provider, fallbacks: Sequence[Fallback | str], *, mid_answer: bool = False) -> None:
        super().__init__(provider)
        self.mid_answer = mid_answer
        self.fallbacks = tuple(Fallback(item) if isinstance(item, str) else item for item in fallbacks)

    def with_response_format(self, response_format: Mapping[str, Any]) -> FallbackProvider | None:
        """Return a copy in which every provider requests this format, or None if one of them cannot."""
        inner = formatted(self.provider, response_format)
        fallbacks = []
        for one in self.fallbacks:
            provider = one.provider and formatted(one.provider, response_format)
            if one.provider is not None and provider is None:
                return None
            fallbacks.append(replace(one, provider=provider))
        return None if inner is None else FallbackProvider(inner, fallbacks, mid_answer=self.mid_answer)

    def for_session(self, state: ProviderSession) -> Self:
        """Return a copy whose providers are all adapted to this session."""
        other = super().for_session(state)
        other.fallbacks = tuple(
            one if one.provider is None else replace(one, provider=for_session(one.provider, state))
            for one in self.fallbacks
        )
        return other

    async def stream(
        self, *, model: str, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), api_key: str | None = None
    ) -> AsyncGenerator[StreamEvent, None]:
        """Yield the answer's events; before each fallback, a `Retrying` names its model."""
        attempts = [Fallback(model, self.provider, api_key), *self.fallbacks]
        for position, one in enumerate(attempts, start=1):
            has_shown = done = False
            provider = one.provider or self.provider
            # The call's key belongs to the first provider, and must not be sent to another vendor.
            key = one.api_key or (api_key if provider is self.provider else None)
            try:
                events = ask(provider, model=one.model, messages=messages, tools=tools, api_key=key)
                async with aclosing(events):
                    async for event in events:
                        # A `Retrying` voids what its attempt has shown.
                        has_shown = is_shown(event) or (has_shown and not isinstance(event, Retrying))
                        done = done or isinstance(event, Done)
                        yield event
                return
            except (ProviderError, ConnectionError, TimeoutError) as error:
                at_fault = isinstance(error, ContextLengthError) or (
                    isinstance(error, ProviderHTTPError) and error.status in _REQUEST_FAULTS
                )
                if done or at_fault or position == len(attempts) or (has_shown and not self.mid_answer):
                    raise
                reason = str(error) or type(error).__name__
            yield Retrying(reason, 0.0, position, attempts[position].model, mid_answer=has_shown)
