"""When an endpoint is asked again, when it is left alone, and who is asked instead; without real delays."""

from __future__ import annotations

import asyncio
import json
import unittest
from collections.abc import AsyncGenerator
from typing import Any

from openagentic_sdk.errors import (
    CircuitOpenError,
    ContextLengthError,
    IncompleteResponseError,
    OptionsError,
    ProviderConnectionError,
    ProviderError,
    ProviderHTTPError,
    ProviderTimeoutError,
)
from openagentic_sdk.providers.base import Done, ModelOutput, Retrying, StreamEvent, TextDelta
from openagentic_sdk.providers.failures import http_error
from openagentic_sdk.providers.openai_compatible import OpenAICompatibleProvider
from openagentic_sdk.providers.wrappers.breaker import BreakingProvider, CircuitBreaker, State, shared_breaker
from openagentic_sdk.providers.wrappers.fallback import Fallback, FallbackProvider
from openagentic_sdk.providers.wrappers.guarded import guarded
from openagentic_sdk.providers.wrappers.retry import RetryingProvider, RetryPolicy, retry_after_s
from openagentic_sdk.testing.clock import FakeClock

NOW = 1_700_000_000.0


class Answers:
    """A provider whose calls play a list: exceptions are raised, text is streamed, a pair does both."""

    name = "answers"

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, str | None]] = []
        self.keys: list[str] = []

    def with_idempotency_key(self, key: str) -> Answers:
        self.keys.append(key)
        return self

    async def stream(self, *, model: str, api_key: str | None = None, **_: Any) -> AsyncGenerator[StreamEvent, None]:
        self.asked.append((model, api_key))
        answer = self.answers.pop(0)
        for part in answer if isinstance(answer, tuple) else (answer,):
            if isinstance(part, Exception):
                raise part
            yield TextDelta(part)
        yield Done(ModelOutput("".join(answer)))


async def collect(provider: Any, **more: Any) -> list[StreamEvent]:
    return [event async for event in provider.stream(model="m", messages=[], **more)]


def status(code: int, headers: dict[str, str] | None = None, body: str = "{}") -> ProviderHTTPError:
    return http_error(code, headers or {}, body)


class RetryTable(unittest.TestCase):
    def test_only_temporary_failures_are_retried(self) -> None:
        money = '{"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}'
        too_long = '{"error": {"message": "maximum context length is 8192", "code": "context_length_exceeded"}}'
        table: list[tuple[Exception, bool]] = [
            *((status(code), True) for code in (408, 409, 429, 500, 502, 503, 504, 529)),
            *((status(code), False) for code in (400, 401, 402, 403, 404, 413, 422)),
            (status(429, body=money), False),
            (status(400, body=too_long), False),
            (status(500, body=too_long), False),
            (status(400, {"x-should-retry": "true"}), True),
            (status(503, {"x-should-retry": "false"}), False),
            (ProviderConnectionError("refused"), True),
            (ProviderTimeoutError("slow", phase="idle"), True),
            (IncompleteResponseError("cut"), True),
            (ConnectionResetError(), True),
            (ProviderError("odd"), False),
            (OptionsError("wrong"), False),
            (CircuitOpenError("e", 3.0), False),
        ]
        for error, retried in table:
            delay = RetryPolicy().delay_s(error, attempt=1, elapsed_s=0, now=NOW, jitter=lambda: 0.5)
            self.assertEqual(delay is not None, retried, repr(error))

    def test_a_prompt_that_is_too_long_is_an_error_of_its_own(self) -> None:
        for message in (
            "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
            "prompt is too long: 210000 tokens > 200000 maximum",
            "the request exceeds the available context size, try increasing it",
            "The input token count (1048577) exceeds the maximum number of tokens allowed",
            "Please reduce the length of the messages or completion.",
            "Input Tokens Exceeded: Number of input tokens exceeds maximum length. Please update the input to try again.",
            "The total number of tokens in your request exceeds the limit",
            "Conversation is too long for this model",
        ):
            self.assertIsInstance(status(400, body=f'{{"error": {{"message": "{message}"}}}}'), ContextLengthError)
        for message in (
            "max_tokens too large",
            "the image is too large",
            "messages[3].tool_calls[0].id: string too long",
        ):
            error = status(400, body=json.dumps({"error": {"message": message}}))
            self.assertNotIsInstance(error, ContextLengthError)

    def test_backoff_doubles_up_to_its_cap_and_is_jittered_over_its_full_width(self) -> None:
        policy = RetryPolicy(max_retries=10, base_s=0.5, cap_s=8)
        error = ProviderConnectionError("x")
        whole = [policy.delay_s(error, attempt=n, elapsed_s=0, now=NOW, jitter=lambda: 1.0) for n in range(1, 8)]
        self.assertEqual(whole, [0.5, 1, 2, 4, 8, 8, 8])
        self.assertEqual(policy.delay_s(error, attempt=3, elapsed_s=0, now=NOW, jitter=lambda: 0.0), 0)
        self.assertIsNone(policy.delay_s(error, attempt=11, elapsed_s=0, now=NOW, jitter=lambda: 1.0))
        self.assertIsNone(policy.delay_s(error, attempt=1, elapsed_s=600, now=NOW, jitter=lambda: 1.0))

    def test_every_form_of_waiting_is_understood(self) -> None:
        table: list[tuple[dict[str, str], float | None]] = [
            ({}, None),
            ({"retry-after": "3"}, 3.0),
            ({"retry-after": "1.5"}, 1.5),
            ({"retry-after": "0"}, 0.0),
            ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
            ({"retry-after": "Tue, 14 Nov 2023 22:13:30 GMT"}, 10.0),
            ({"retry-after": "Tue, 14 Nov 2023 22:13:10 GMT"}, 0.0),
            ({"retry-after": "1700000010"}, 10.0),
            ({"retry-after": "Mon, 99999999999999999999 Jan 2020 00:00:00 GMT"}, None),
            ({"retry-after": "Mon, 01 Jan 2020 00:00:00 +99999999999999999999"}, None),
            ({"retry-after": "soon"}, None),
            ({"retry-after": "-5"}, None),
            ({"retry-after": "1e999"}, None),
            ({"retry-after": "nan"}, None),
            ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "12ms"}, 0.012),
            ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "1m52.5s"}, 112.5),
            ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "11.354s"}, 11.354),
            ({"x-ratelimit-remaining-tokens": "7", "x-ratelimit-reset-tokens": "11s"}, None),
            ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1700000004000"}, 4.0),
            (
                {
                    "anthropic-ratelimit-requests-remaining": "0",
                    "anthropic-ratelimit-requests-reset": "2023-11-14T22:13:25Z",
                },
                5.0,
            ),
        ]
        for headers, seconds in table:
            found = retry_after_s(headers, NOW)
            if seconds is None:
                self.assertIsNone(found, headers)
            else:
                self.assertAlmostEqual(found or 0.0, seconds, msg=str(headers))

    def test_googles_limit_by_the_minute_is_waited_for_and_one_by_the_day_is_not(self) -> None:
        def limited(quota: str, more: str = "") -> ProviderHTTPError:
            details = [{"violations": [{"quotaId": quota}]}, {"@type": "google.rpc.RetryInfo", "retryDelay": "48s"}]
            message = f"You exceeded your current quota, please check your plan and billing details.{more}"
            return status(429, body=json.dumps({"error": {"code": 429, "message": message, "details": details}}))

        minute = limited("GenerateRequestsPerMinutePerProjectPerModel-FreeTier")
        self.assertEqual(RetryPolicy().delay_s(minute, attempt=1, elapsed_s=0, now=NOW, jitter=lambda: 0.5), 48.0)
        self.assertNotIn("add credit", str(minute))
        for used_up in (
            limited("GenerateRequestsPerDayPerProjectPerModel-FreeTier"),
            limited("x", " Limit: x, limit: 0"),
        ):
            self.assertFalse(used_up.retryable)
        relayed = status(429, body='{"error": {"message": "You exceeded your current quota. Please retry in 7.5s."}}')
        self.assertEqual(RetryPolicy().delay_s(relayed, attempt=1, elapsed_s=0, now=NOW, jitter=lambda: 0.5), 7.5)

    async def _told(self, error: Exception) -> str:
        try:
            await collect(RetryingProvider(Answers(error), clock=FakeClock()))
        except ProviderHTTPError as raised:
            return str(raised)
        return ""

    def test_a_delay_longer_than_the_policy_allows_is_reported(self) -> None:
        text = asyncio.run(self._told(status(429, {"retry-after": "3600"})))
        self.assertIn("a delay of 3600 s, longer than max_retry_after_s (120 s)", text)

    def test_an_endpoint_that_wants_minutes_is_not_asked_again(self) -> None:
        error = status(429, {"retry-after": "121"})
        self.assertIsNone(RetryPolicy().delay_s(error, attempt=1, elapsed_s=0, now=NOW, jitter=lambda: 0.5))


class Retries(unittest.IsolatedAsyncioTestCase):
    async def test_each_attempt_is_an_event_and_all_carry_one_key(self) -> None:
        provider, clock = Answers(status(503), status(429, {"retry-after": "7"}), "hello"), FakeClock()
        events = await collect(RetryingProvider(provider, clock=clock, jitter=lambda: 1.0))
        self.assertEqual([(e.delay_s, e.attempt) for e in events if isinstance(e, Retrying)], [(0.5, 1), (7.0, 2)])
        self.assertEqual(events[2], TextDelta("hello"))
        self.assertEqual(len(provider.keys), 1)
        self.assertEqual(len(provider.asked), 3)

    async def test_nothing_is_asked_again_once_a_piece_was_shown(self) -> None:
        provider = Answers(("hel", IncompleteResponseError("cut")), "again")
        seen: list[StreamEvent] = []
        with self.assertRaises(IncompleteResponseError):
            async for event in RetryingProvider(provider, clock=FakeClock()).stream(model="m", messages=[]):
                seen.append(event)
        self.assertEqual(seen, [TextDelta("hel")])
        self.assertEqual(len(provider.asked), 1)

    async def test_complete_waits_too_and_returns_the_answer(self) -> None:
        provider = Answers(ProviderConnectionError("refused"), "hello")
        output = await RetryingProvider(provider, clock=FakeClock()).complete(model="m", messages=[])
        self.assertEqual(output.assistant_text, "hello")


class BreakerTable(unittest.TestCase):
    def test_it_opens_at_the_limit_lets_one_try_after_the_cooldown_and_closes_on_success(self) -> None:
        breaker = CircuitBreaker("e", limit=3, cooldown_s=30)
        for _ in range(3):
            breaker.admit(0)
            breaker.fail(0)
        self.assertIs(breaker.state, State.OPEN)
        with self.assertRaises(CircuitOpenError) as refused:
            breaker.admit(10)
        self.assertEqual(refused.exception.retry_after_s, 20)
        breaker.admit(30)
        with self.assertRaises(CircuitOpenError):
            breaker.admit(30)
        breaker.succeed()
        self.assertIs(breaker.state, State.CLOSED)
        breaker.admit(30)

    def test_a_failed_try_opens_it_again_and_an_abandoned_one_makes_room(self) -> None:
        breaker = CircuitBreaker("e", limit=1, cooldown_s=30)
        breaker.admit(0)
        breaker.fail(0)
        breaker.admit(30)
        breaker.abandon()
        breaker.admit(31)
        breaker.fail(31)
        self.assertIs(breaker.state, State.OPEN)
        with self.assertRaises(CircuitOpenError):
            breaker.admit(60)
        breaker.admit(61)

    def test_only_failures_in_a_row_count(self) -> None:
        breaker = CircuitBreaker("e", limit=2)
        for _ in range(5):
            breaker.fail(0)
            breaker.succeed()
        self.assertIs(breaker.state, State.CLOSED)

    def test_an_endpoint_that_asked_for_longer_is_left_alone_for_longer(self) -> None:
        breaker = CircuitBreaker("e", limit=1, cooldown_s=30)
        breaker.fail(0, retry_after_s=100)
        with self.assertRaises(CircuitOpenError):
            breaker.admit(99)
        breaker.admit(100)

    def test_no_endpoint_is_left_alone_for_longer_than_an_hour_or_because_of_what_it_asked_before_it_answered(
        self,
    ) -> None:
        breaker = CircuitBreaker("e", limit=2, cooldown_s=30)
        breaker.fail(0, retry_after_s=1e9)
        breaker.fail(1)
        with self.assertRaises(CircuitOpenError) as caught:
            breaker.admit(2)
        self.assertEqual(caught.exception.retry_after_s, 3598)
        breaker.admit(3600)
        breaker.succeed()
        breaker.fail(3601, retry_after_s=3000)
        breaker.succeed()
        breaker.fail(3602)
        breaker.fail(3602)
        breaker.admit(3632)

    def test_one_endpoint_has_one_breaker_in_the_process(self) -> None:
        self.assertIs(shared_breaker("test://one"), shared_breaker("test://one"))
        self.assertIsNot(shared_breaker("test://one"), shared_breaker("test://two"))


class Breaking(unittest.IsolatedAsyncioTestCase):
    async def test_refusals_of_a_request_leave_it_closed_and_failures_of_the_endpoint_open_it(self) -> None:
        breaker, clock = CircuitBreaker("e", limit=2), FakeClock()
        provider = Answers(status(400), status(429), status(401), status(400), status(503), status(503))
        breaking = BreakingProvider(provider, breaker, clock=clock)
        for _ in range(6):
            with self.assertRaises(ProviderHTTPError):
                await collect(breaking)
        with self.assertRaises(CircuitOpenError):
            await collect(breaking)
        self.assertEqual(len(provider.asked), 6)

    async def test_a_caller_who_stops_does_not_count_as_a_failure_of_the_endpoint(self) -> None:
        breaker = CircuitBreaker("e", limit=1)
        stream = BreakingProvider(Answers("hello"), breaker).stream(model="m", messages=[])
        await anext(stream)
        await stream.aclose()
        self.assertIs(breaker.state, State.CLOSED)


class Guarded(unittest.IsolatedAsyncioTestCase):
    async def test_retries_come_first_then_the_shared_breaker_then_the_next_model(self) -> None:
        chunk = b'data: {"choices": [{"delta": {"content": "hello"}, "finish_reason": "stop"}]}\n\n'
        asked: list[str] = []

        def transport(url: str, headers: dict[str, str], payload: dict[str, Any]) -> list[bytes]:
            asked.append(payload["model"])
            if payload["model"] == "big":
                raise ProviderConnectionError("refused")
            return [chunk]

        broken = OpenAICompatibleProvider(base_url="http://broken.invalid/v1", stream_transport=transport)
        other = OpenAICompatibleProvider(base_url="http://other.invalid/v1", stream_transport=transport)
        policy, clock = RetryPolicy(max_retries=1), FakeClock()
        provider = guarded(broken, retry=policy, fallback=[Fallback("small", other)], clock=clock)
        for _ in range(6):
            output = await provider.complete(model="big", messages=[{"role": "user", "content": "hi"}])
            self.assertEqual(output.assistant_text, "hello")
        self.assertIs(shared_breaker(broken.endpoint, "big").state, State.OPEN)
        self.assertEqual((asked.count("big"), asked.count("small")), (10, 6))

    async def test_a_provider_without_an_endpoint_has_no_breaker(self) -> None:
        self.assertIsInstance(guarded(Answers("hello")), RetryingProvider)


class Fallbacks(unittest.IsolatedAsyncioTestCase):
    async def test_the_next_model_answers_and_the_change_is_an_event(self) -> None:
        first, second = Answers(status(503)), Answers("hello")
        provider = FallbackProvider(first, [Fallback("big", second, "key2")])
        events = await collect(provider, api_key="key1")
        assert isinstance(events[0], Retrying)
        self.assertEqual((events[0].model, events[0].attempt, events[0].delay_s), ("big", 1, 0.0))
        self.assertEqual(events[1], TextDelta("hello"))
        self.assertEqual((first.asked, second.asked), ([("m", "key1")], [("big", "key2")]))

    async def test_a_key_is_never_given_to_another_provider(self) -> None:
        first, second = Answers(status(503)), Answers("hello")
        await collect(FallbackProvider(first, [Fallback("big", second)]), api_key="key1")
        self.assertEqual(second.asked, [("big", None)])

    async def test_a_fault_of_the_request_goes_to_the_caller(self) -> None:
        provider = Answers(status(400), "hello")
        with self.assertRaises(ProviderHTTPError):
            await collect(FallbackProvider(provider, ["other"]))

    async def test_when_all_fail_the_last_error_is_raised(self) -> None:
        provider = Answers(status(503), CircuitOpenError("e", 1), status(502))
        with self.assertRaises(ProviderHTTPError) as raised:
            await collect(FallbackProvider(provider, ["two", "three"]))
        self.assertEqual(raised.exception.status, 502)

    async def test_cancelling_while_waiting_ends_at_once(self) -> None:
        waiting = asyncio.Event()

        class StandingClock(FakeClock):
            async def sleep(self, delay_s: float) -> None:
                waiting.set()
                await asyncio.Event().wait()

        provider = RetryingProvider(Answers(status(503, {"retry-after": "60"})), clock=StandingClock())
        task = asyncio.create_task(collect(provider))
        await waiting.wait()
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task


if __name__ == "__main__":
    unittest.main()
