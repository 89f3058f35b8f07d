"""Wrap a provider with what an unattended run needs, in the right order: retries, then the breaker, then fallbacks.

A call that failed, however often it was retried, is one failure of the endpoint, and another model is called only once the
first one's endpoint has failed or its breaker is open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...errors import OptionsError
from ...ground.clock import Clock
from ..base import CompletingProvider, Provider
from .abilities import HostedProvider
from .breaker import BreakingProvider, shared_breaker
from .fallback import Fallback, FallbackProvider
from .retry import RetryingProvider, RetryPolicy


def guarded(
    provider: Provider,
    *,
    retry: RetryPolicy | None = None,
    fallback: Sequence[Fallback | str] = (),
    clock: Clock | None = None,
) -> Provider:
    """Wrap the provider with retries, the breakers that this process shares for the provider's models, and fallback models.

    `retry` defaults to a policy that also retries in the middle of an answer. A fallback that names a provider gets retries
    and breakers too. Providers without an endpoint have no breaker. Raises `OptionsError` for a fallback whose provider
    cannot be used, for example without a key.
    """
    first = _watched(provider, retry, clock)
    if not fallback:
        return first
    placed = [_placed(Fallback(one) if isinstance(one, str) else one, provider) for one in fallback]
    ready = [
        one if one.provider is None else replace(one, provider=_watched(one.provider, retry, clock)) for one in placed
    ]
    return FallbackProvider(first, ready, mid_answer=(retry or RetryPolicy()).mid_answer)


def _placed(fallback: Fallback, first: Provider) -> Fallback:
    """The fallback with the provider that its model names (`anthropic:claude-x`). Raises `OptionsError`."""
    if fallback.provider is not None or ":" not in fallback.model:
        return fallback
    from ..named import find_model  # imported late: few fallbacks name a provider

    provider, model = find_model(fallback.model, first, fallback.api_key)
    return replace(fallback, provider=None if provider is first else provider, model=model)


def unstreamed(provider: Provider) -> Provider:
    """Return the provider in a form that requests only complete answers. Raises `OptionsError` if it can only stream."""
    if isinstance(provider, HostedProvider):
        return provider.with_settings(stream=False)
    if not isinstance(provider, CompletingProvider):
        raise OptionsError(f"stream=False needs a provider with complete(), and {provider.name!r} has only stream()")
    return _WholeAnswers(provider)


class _WholeAnswers:
    def __init__(self, provider: CompletingProvider) -> None:
        self.name = provider.name
        self.complete = provider.complete


def _watched(provider: Provider, retry: RetryPolicy | None, clock: Clock | None) -> Provider:
    retrying = RetryingProvider(provider, policy=retry or RetryPolicy(), clock=clock)
    if not isinstance(provider, HostedProvider):
        return retrying
    endpoint = provider.endpoint
    return BreakingProvider(retrying, lambda model: shared_breaker(endpoint, model), clock=clock)
