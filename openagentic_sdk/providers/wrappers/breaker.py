"""Stop calling an endpoint that keeps failing, and try it again later.

The whole machine is the table below; everything else is bookkeeping. Time is passed as an argument, so tests never sleep.
Only the endpoint's own failures count: no connection, no answer in time, 5xx, a truncated stream. A refused request (4xx)
or a rate limit shows that it is available, and counts as a success; a caller that stopped shows nothing.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from enum import Enum

from ...errors import (
    CircuitOpenError,
    GarbledResponseError,
    IncompleteResponseError,
    ProviderConnectionError,
    ProviderError,
    ProviderHTTPError,
    ProviderTimeoutError,
)
from ...ground.checks import SECONDS, check_settings, number
from ...ground.clock import Clock, SystemClock
from ..base import Message, Provider, StreamEvent, ToolSpec
from .answer import ask
from .retry import retry_after_s
from .wrap import AroundProvider


class State(Enum):
    """The state of a breaker, which admits all calls, none, or a single trial."""

    CLOSED = "closed"
    OPEN = "open"
    TRIAL = "half-open"


NEXT = {
    (State.CLOSED, "limit reached"): State.OPEN,
    (State.OPEN, "cooled down"): State.TRIAL,
    (State.TRIAL, "success"): State.CLOSED,
    (State.TRIAL, "failure"): State.OPEN,
}


# Only time closes a breaker, which all runs of the process share, and an endpoint or a clock may be years off. One call an
# hour is not a burden.
_MAX_ASKED_S = 3600.0


class CircuitBreaker:
    """A circuit breaker for one endpoint, driven by the outcomes that its callers report. Thread-safe.

    `limit` failures in a row open it (5, the default of most libraries) for `cooldown_s` seconds, or longer, up to an
    hour, if the endpoint asks for more. `now` is a monotonic time in seconds. Raises `OptionsError` for an invalid limit or
    time.
    """

    def __init__(self, endpoint: str, *, limit: int = 5, cooldown_s: float = 30.0) -> None:
        checks = {"limit": number(1, whole=True), "cooldown_s": SECONDS}
        check_settings({"limit": limit, "cooldown_s": cooldown_s}, checks, "CircuitBreaker.")
        self.endpoint = endpoint
        self.limit = limit
        self.cooldown_s = cooldown_s
        self.state = State.CLOSED
        self._lock = threading.Lock()
        self._failures = 0
        self._open_until = 0.0
        self._is_trying = False

    def admit(self, now: float) -> None:
        """Admit a call, or raise `CircuitOpenError`. An admitted call must end with `succeed`, `fail` or `abandon`."""
        with self._lock:
            if self.state is State.OPEN and now >= self._open_until:
                self._move("cooled down")
            if self.state is State.OPEN or (self.state is State.TRIAL and self._is_trying):
                raise CircuitOpenError(self.endpoint, max(self._open_until - now, 0.0))
            self._is_trying = self.state is State.TRIAL

    def succeed(self) -> None:
        """Record that the endpoint answered."""
        with self._lock:
            self._failures, self._open_until = 0, 0.0
            self._move("success")

    def fail(self, now: float, *, retry_after_s: float | None = None) -> None:
        """Record that the endpoint failed; `retry_after_s` is the wait in seconds that it requested."""
        with self._lock:
            self._failures += 1
            asked_s = min(retry_after_s or 0.0, _MAX_ASKED_S)
            self._open_until = max(self._open_until, now + max(self.cooldown_s, asked_s))
            self._move("failure")
            if self._failures >= self.limit:
                self._move("limit reached")

    def abandon(self) -> None:
        """Record that the caller stopped before the outcome was known."""
        with self._lock:
            self._is_trying = False

    def _move(self, what: str) -> None:
        self._is_trying = False
        self.state = NEXT.get((self.state, what), self.state)


class BreakingProvider(AroundProvider):
    """A provider that calls another one only if its breaker admits it. Put it around retries: one call, one failure.

    `breaker` may be a function from a model's name to its breaker: one model of an endpoint can be overloaded while the
    others work.
    """

    def __init__(
        self,
        provider: Provider,
        breaker: CircuitBreaker | Callable[[str], CircuitBreaker],
        *,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(provider)
        self._breaker_of = (lambda model: breaker) if isinstance(breaker, CircuitBreaker) else breaker
        self._clock = clock or SystemClock()

    async def stream(
        self, *, model: str, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), api_key: str | None = None
    ) -> AsyncGenerator[StreamEvent, None]:
        """Yield the answer's events. Raises `CircuitOpenError` without a request while the breaker is open or its trial call
        is in progress.
        """
        breaker = self._breaker_of(model)
        breaker.admit(self._clock.monotonic())
        events = ask(self.provider, model=model, messages=messages, tools=tools, api_key=api_key)
        try:
            async with aclosing(events):
                async for event in events:
                    yield event
        except Exception as error:  # any error ends the admitted call, and is raised again
            if is_endpoint_failure(error):
                headers = error.headers if isinstance(error, ProviderHTTPError) else {}
                wait_s = retry_after_s(headers, self._clock.now())
                breaker.fail(self._clock.monotonic(), retry_after_s=wait_s)
            elif isinstance(error, ProviderError):
                breaker.succeed()  # it refused this request, so it is available
            else:
                breaker.abandon()
            raise
        except BaseException:  # cancelled, or closed by the caller
            breaker.abandon()
            raise
        breaker.succeed()


def is_endpoint_failure(error: Exception) -> bool:
    """Whether the endpoint, not the request, is the cause of an error."""
    if isinstance(error, ProviderHTTPError):
        # 200: an error inside an accepted response, which has no status of its own
        return error.status >= 500 or (error.status == 200 and error.retryable)
    broken = ProviderConnectionError | ProviderTimeoutError | IncompleteResponseError | GarbledResponseError
    return isinstance(error, broken | ConnectionError | TimeoutError)


_SHARED: dict[tuple[str, str], CircuitBreaker] = {}
_SHARED_GUARD = threading.Lock()


def shared_breaker(endpoint: str, model: str = "") -> CircuitBreaker:
    """The breaker that this process shares for a model at an endpoint."""
    with _SHARED_GUARD:
        if (endpoint, model) not in _SHARED:
            name = f"{model} at {endpoint}" if model else endpoint
            _SHARED[endpoint, model] = CircuitBreaker(name)
        return _SHARED[endpoint, model]
