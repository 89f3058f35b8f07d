"""Retry if that can help: exponential back-off with jitter around any provider.

No retry begins after the policy's total time, and the endpoint's own delay takes precedence over the computed one. Each
retry is an event, so it is in the log and on the screen. A retry in the middle of an answer is marked as such: the part
already shown is void, and the answer is shown again from its start.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing

from ...errors import GarbledResponseError, ProviderError, ProviderHTTPError
from ...ground.backoff import Backoff
from ...ground.clock import Clock, SystemClock
from ...ground.frozen import frozen
from ...ground.settings import Seconds, check_fields
from ..base import Done, Message, ModelOutput, Provider, Retrying, StreamEvent, ToolSpec
from .answer import ask, fold
from .wrap import AroundProvider, KeyedProvider, is_shown

_DURATION = r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:([\d.]+)s)?(?:([\d.]+)ms)?"
_RESETS = (
    ("x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
    ("x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
    ("anthropic-ratelimit-requests-remaining", "anthropic-ratelimit-requests-reset"),
    ("anthropic-ratelimit-tokens-remaining", "anthropic-ratelimit-tokens-reset"),
    ("anthropic-ratelimit-input-tokens-remaining", "anthropic-ratelimit-input-tokens-reset"),
    ("anthropic-ratelimit-output-tokens-remaining", "anthropic-ratelimit-output-tokens-reset"),
    ("x-ratelimit-remaining", "x-ratelimit-reset"),
)

_JITTERED = Backoff(1.0, 1.0, jitter=0.25)


@frozen(kw_only=True)
class RetryPolicy:
    """The number of retries and their delays.

    `max_retries` 0 never retries (the SDKs of OpenAI and Anthropic default to 2; agents run unattended, so 4 here). The
    delays are `base_s` seconds, then twice as long each time, at most `cap_s`, each shortened at random by up to a quarter.
    If an endpoint asks for more than `max_retry_after_s` seconds, there is no retry (120 s, as in the SDKs); if it asks for
    0, the computed delay applies. No retry begins more than `total_s` seconds after the call did. `mid_answer` also retries
    after part of the answer was shown. Raises `OptionsError` for an invalid field.
    """

    max_retries: int = 4
    base_s: Seconds = 0.5
    cap_s: Seconds = 16.0
    max_retry_after_s: Seconds = 120.0
    total_s: Seconds = 600.0
    mid_answer: bool = True

    def __post_init__(self) -> None:
        check_fields(self, "RetryPolicy.")

    def delay_s(
        self, error: Exception, *, attempt: int, elapsed_s: float, now: float, jitter: Callable[[], float]
    ) -> float | None:
        """The delay after `attempt` (1, 2 ...) failed with `error`; None means no retry.

        `now` is in seconds since the epoch, for answers that name a date; `jitter` returns a factor from 0.0 to 1.0.
        """
        if attempt > self.max_retries or not is_transient(error):
            return None
        headers = error.headers if isinstance(error, ProviderHTTPError) else {}
        wait_s = retry_after_s(headers, now)
        if wait_s is not None and wait_s > self.max_retry_after_s:
            return None
        delay = wait_s or jitter() * Backoff(self.base_s, self.cap_s).wait_s(attempt)
        return delay if elapsed_s + delay <= self.total_s else None


class RetryingProvider(AroundProvider):
    """A provider that retries calls to another one if that can help.

    `policy` defaults to one without `mid_answer`, for callers that show a stream as it arrives.
    """

    def __init__(
        self,
        provider: Provider,
        *,
        policy: RetryPolicy | None = None,
        clock: Clock | None = None,
        jitter: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(provider)
        self.policy = policy or RetryPolicy(mid_answer=False)
        self._clock = clock or SystemClock()
        # From 0.75 to 1.0, so that delays are random and still grow: the formula of OpenAI's and Anthropic's SDKs.
        self._jitter = jitter or (lambda: _JITTERED.wait_s(1))

    async def complete(
        self, *, model: str, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), api_key: str | None = None
    ) -> ModelOutput:
        """Return the whole answer of the first attempt that succeeds. As nothing is shown, `mid_answer` has no effect."""
        return await fold(self._attempts(model, messages, tools, api_key, mid_answer=True))

    async def stream(
        self, *, model: str, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), api_key: str | None = None
    ) -> AsyncGenerator[StreamEvent, None]:
        """Yield the answer's events, with a `Retrying` before each further attempt."""
        attempts = self._attempts(model, messages, tools, api_key, mid_answer=self.policy.mid_answer)
        async with aclosing(attempts):
            async for event in attempts:
                yield event

    async def _attempts(
        self,
        model: str,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        api_key: str | None,
        *,
        mid_answer: bool,
    ) -> AsyncGenerator[StreamEvent, None]:
        provider = self.provider
        # One key for all attempts: an endpoint that finished the first one, and whose answer was lost, need not bill it
        # again.
        if isinstance(provider, KeyedProvider):
            provider = provider.with_idempotency_key(os.urandom(16).hex())
        began = self._clock.monotonic()
        attempt, garbled = 1, 0
        while True:
            has_shown = done = False
            try:
                events = ask(provider, model=model, messages=messages, tools=tools, api_key=api_key)
                async with aclosing(events):
                    async for event in events:
                        has_shown, done = has_shown or is_shown(event), done or isinstance(event, Done)
                        yield event
                return
            except (ProviderError, ConnectionError, TimeoutError) as error:
                garbled += isinstance(error, GarbledResponseError)
                # A proxy or worker that fails now and then garbles one answer; after a second one, retries do not help.
                may_repeat = garbled < 2 and not done and (mid_answer or not has_shown)
                delay = self._delay_s(error, attempt, began) if may_repeat else None
                if delay is None:
                    self._explain_wait(error)
                    raise
                reason = str(error) or type(error).__name__
            yield Retrying(reason, delay, attempt, mid_answer=has_shown)
            await self._clock.sleep(delay)
            attempt += 1

    def _explain_wait(self, error: Exception) -> None:
        """Add to the error that the endpoint asks for a longer wait than the policy allows."""
        wait_s = retry_after_s(error.headers, self._clock.now()) if isinstance(error, ProviderHTTPError) else None
        if wait_s is not None and is_transient(error) and wait_s > self.policy.max_retry_after_s:
            most = self.policy.max_retry_after_s
            note = f"it asks for a delay of {wait_s:.0f} s, longer than max_retry_after_s ({most:.0f} s)"
            error.args = (f"{error} ({note}: retry later, or allow more in RetryPolicy)",)

    def _delay_s(self, error: Exception, attempt: int, began: float) -> float | None:
        elapsed = self._clock.monotonic() - began
        return self.policy.delay_s(
            error, attempt=attempt, elapsed_s=elapsed, now=self._clock.now(), jitter=self._jitter
        )


def is_transient(error: Exception) -> bool:
    """Whether the same request may succeed later."""
    if isinstance(error, ProviderError):
        return error.retryable
    return isinstance(error, ConnectionError | TimeoutError)


def retry_after_s(headers: Mapping[str, str], now: float) -> float | None:
    """The wait in seconds that the endpoint requests, or None. Header names are lower-case, `now` is epoch seconds.

    `retry-after-ms`, then `retry-after` in seconds or as a date (RFC 9110, section 10.2.3), then the reset of an exhausted
    rate limit.
    """
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    header = headers.get("retry-after", "").strip()
    if header:
        return _reset_s(header, now)  # some endpoints send epoch seconds here, too
    waits = [
        _reset_s(headers[reset], now)
        for remaining, reset in _RESETS
        if reset in headers and _number(headers.get(remaining, "")) == 0
    ]
    return max((wait for wait in waits if wait is not None), default=None)


def _reset_s(text: str, now: float) -> float | None:
    """The seconds until a limit is reset; None for a text in another form.

    `text` is a duration (`11.35s`, `20m52.666s`, `12ms`), seconds, epoch seconds or milliseconds, or a date.
    """
    text = text.strip()
    number = _number(text)
    if number is not None:
        if number > 1e11:
            number /= 1000
        # Vendors use the same header for a duration and for a time: 1e8 seconds are three years, and epoch seconds
        # passed that in 1973.
        return max(0.0, number - now) if number > 1e8 else number
    match = re.fullmatch(_DURATION, text)
    if match and any(match.groups()):
        parts = [_number(part or "0") or 0.0 for part in match.groups()]
        return sum(part * unit for part, unit in zip(parts, (86400, 3600, 60, 1, 0.001), strict=True))
    return _until_date(text, now)


def _until_date(text: str, now: float) -> float | None:
    from datetime import UTC, datetime
    from email.utils import parsedate_to_datetime

    try:
        date = parsedate_to_datetime(text)
    except (TypeError, ValueError, OverflowError):
        try:
            date = datetime.fromisoformat(text)
        except ValueError:
            return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, date.timestamp() - now)


def _number(text: str) -> float | None:
    text = text.strip()
    # Not `float` alone, which also accepts `nan`, `inf` and underscores.
    return float(text) if re.fullmatch(r"\d{1,18}(\.\d{1,18})?|\.\d{1,18}", text) else None
