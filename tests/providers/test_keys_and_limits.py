"""Keys are sent only to their vendors and are renewed, time limits are exact, one bad address or model costs little."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import tempfile
import threading
import time
import unittest
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from openagentic_sdk import run
from openagentic_sdk.errors import (
    CircuitOpenError,
    OptionsError,
    ProviderConnectionError,
    ProviderHTTPError,
    ProviderTimeoutError,
)
from openagentic_sdk.options import OpenAgenticOptions
from openagentic_sdk.providers.anthropic import AnthropicProvider
from openagentic_sdk.providers.chat_request import RequestSettings
from openagentic_sdk.providers.keys import Token
from openagentic_sdk.providers.openai import OpenAIProvider
from openagentic_sdk.providers.openai_compatible import AzureOpenAIProvider, OpenAICompatibleProvider
from openagentic_sdk.providers.openai_responses import OpenAIResponsesProvider
from openagentic_sdk.providers.wire.connect import Line, connect_one, find_proxy, in_turn
from openagentic_sdk.providers.wire.http import HttpTransport
from openagentic_sdk.providers.wire.timeouts import Timeouts
from openagentic_sdk.providers.wrappers.breaker import BreakingProvider, CircuitBreaker, shared_breaker
from openagentic_sdk.providers.wrappers.guarded import guarded
from openagentic_sdk.providers.wrappers.retry import RetryPolicy
from openagentic_sdk.sessions.memory import MemorySessionStore
from tests.waiting import until_async

from .server import Connection, Request, Server, delta, sse

GOOD = sse(delta("Good"), delta(finish="stop"))
HELLO = [{"role": "user", "content": "hi"}]


class WithEnvironment(unittest.IsolatedAsyncioTestCase):
    def environment(self, **values: str) -> None:
        os.environ.update(values)

    def setUp(self) -> None:
        before = dict(os.environ)

        def restore() -> None:
            os.environ.clear()
            os.environ.update(before)

        self.addCleanup(restore)
        for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"):
            os.environ.pop(name, None)
        self.http = HttpTransport(proxies={})
        self.addCleanup(self.http.close)


class WhereKeysGo(WithEnvironment):
    async def test_a_key_of_the_environment_goes_to_its_vendor_only(self) -> None:
        self.environment(OPENAI_API_KEY="sk-env", ANTHROPIC_API_KEY="sk-ant")
        own = await OpenAIResponsesProvider().request_headers()
        self.assertEqual(own["Authorization"], "Bearer sk-env")
        regional = await OpenAIProvider(base_url="https://eu.api.openai.com/v1").request_headers()
        self.assertEqual(regional["Authorization"], "Bearer sk-env")
        for url in ("http://10.0.0.9", "http://api.openai.com/v1", "https://api.openai.com.evil.example/v1"):
            headers = await OpenAIResponsesProvider(base_url=url).request_headers()
            self.assertNotIn("sk-env", json.dumps(headers), url)
            with self.assertRaisesRegex(OptionsError, "OPENAI_API_KEY is sent to api.openai.com only"):
                await OpenAIProvider(base_url=url).request_headers()
        with self.assertRaisesRegex(OptionsError, "ANTHROPIC_API_KEY is sent to api.anthropic.com only"):
            await AnthropicProvider(base_url="http://10.0.0.9").request_headers()

    def test_an_address_that_is_not_a_string_is_refused_by_every_class(self) -> None:
        for make in (OpenAICompatibleProvider, OpenAIProvider, AnthropicProvider):
            for value in (5, b"http://x", ["http://x"]):
                with self.subTest(make=make, value=value), self.assertRaisesRegex(OptionsError, "must be a string"):
                    make(base_url=value)  # type: ignore[arg-type]

    async def test_a_key_goes_where_the_caller_names_it(self) -> None:
        headers = await OpenAIProvider(base_url="http://10.0.0.9/v1", api_key="sk-own").request_headers()
        self.assertEqual(headers["Authorization"], "Bearer sk-own")

    async def test_an_address_of_the_environment_gets_the_key_of_the_environment(self) -> None:
        self.environment(OPENAI_API_KEY="sk-env", OPENAI_BASE_URL="http://10.0.0.9/v1?tenant=a")
        provider = OpenAIProvider()
        self.assertEqual((await provider.request_headers())["Authorization"], "Bearer sk-env")
        self.assertEqual(provider.url("m"), "http://10.0.0.9/v1/chat/completions?tenant=a")
        self.environment(ANTHROPIC_API_KEY="sk-ant", ANTHROPIC_BASE_URL="http://10.0.0.8/v1")
        self.assertEqual(AnthropicProvider().url("m"), "http://10.0.0.8/v1/messages")

    async def test_a_callable_is_asked_again_once_when_its_key_is_refused(self) -> None:
        given: list[str] = []

        async def renewed() -> str:
            given.append(f"k{len(given) + 1}")
            return given[-1]

        def script(connection: Connection, request: Request) -> None:
            if request.headers["authorization"] == "Bearer k2":
                connection.stream(GOOD)
            else:
                connection.reply(b'{"error": {"message": "expired"}}', "401 No")

        with Server(script) as server:
            provider = OpenAICompatibleProvider(base_url=server.url, api_key=renewed, http=self.http)
            self.assertEqual((await provider.complete(model="m", messages=HELLO)).assistant_text, "Good")
            with self.assertRaises(ProviderHTTPError):
                await provider.complete(model="m", messages=HELLO)
        self.assertEqual((given, len(server.requests)), (["k1", "k2", "k3", "k4"], 4))

    async def test_a_token_is_kept_until_shortly_before_it_ends(self) -> None:
        tokens = [Token("a", time.time() + 3600), Token("b", time.time() + 10), Token("c")]
        provider = OpenAICompatibleProvider(base_url="http://h", api_key=lambda: tokens.pop(0))
        keys = [(await provider.request_headers())["Authorization"] for _ in range(2)]
        self.assertEqual((keys, len(tokens)), (["Bearer a"] * 2, 2))
        keys = [(await provider.request_headers(fresh=fresh))["Authorization"] for fresh in (True, False)]
        self.assertEqual(keys, ["Bearer b", "Bearer c"])
        self.assertNotIn("secret", repr(Token("secret")))

    async def test_headers_may_be_a_callable_and_azure_takes_tokens_of_entra(self) -> None:
        provider = OpenAICompatibleProvider(base_url="http://h", headers=lambda: {"X-Tenant": "a"})
        self.assertEqual((await provider.request_headers())["X-Tenant"], "a")
        azure = AzureOpenAIProvider(endpoint="https://n.openai.azure.com", api_version="v", entra_token=lambda: "jwt")
        self.assertEqual((await azure.request_headers())["Authorization"], "Bearer jwt")
        keyed = AzureOpenAIProvider(endpoint="https://n.openai.azure.com", api_version="v", api_key="k")
        self.assertEqual((await keyed.request_headers())["api-key"], "k")

    async def test_a_callable_that_fails_or_gives_nothing_is_a_typed_error(self) -> None:
        def fails() -> str:
            raise RuntimeError("vault says secret")

        with self.assertRaisesRegex(ProviderConnectionError, "api_key failed with RuntimeError") as raised:
            await OpenAICompatibleProvider(base_url="http://h", api_key=fails).request_headers()
        self.assertNotIn("secret", str(raised.exception))
        with self.assertRaises(OptionsError):
            await OpenAICompatibleProvider(base_url="http://h", api_key=lambda: "").request_headers()

    async def test_a_run_may_be_given_a_callable_too(self) -> None:
        http = HttpTransport(proxies={})
        self.addCleanup(http.close)
        with Server(lambda c, r: c.stream(GOOD)) as server, tempfile.TemporaryDirectory() as cwd:
            provider = OpenAICompatibleProvider(base_url=server.url, http=http)
            options = OpenAgenticOptions(
                provider=provider,
                model="m",
                cwd=cwd,
                project_dir=cwd,
                session_store=MemorySessionStore(),
                api_key=lambda: "from-vault",
                stream=False,
            )
            self.assertEqual((await run(prompt="x", options=options)).final_text, "Good")
        self.assertEqual(server.requests[0].headers["authorization"], "Bearer from-vault")
        self.assertNotIn("stream", server.requests[0].json)


class TimeLimits(WithEnvironment):
    def provider(self, server: Server, **settings: Any) -> OpenAICompatibleProvider:
        return OpenAICompatibleProvider(base_url=server.url, http=self.http, settings=RequestSettings(**settings))

    async def test_the_whole_time_runs_on_through_redirects(self) -> None:
        def script(connection: Connection, request: Request) -> None:
            if connection.wait_for_client_to_go(0.4):
                return
            connection.head("307 There", Location=request.path + "x", Content_Length="0")
            connection.keep = True

        with Server(script) as server, self.assertRaises(ProviderTimeoutError) as raised:
            provider = self.provider(server, timeouts=Timeouts(total_s=0.6))
            await provider.complete(model="m", messages=HELLO)
        self.assertEqual(raised.exception.phase, "total")

    async def test_no_time_is_left_to_ask_again_when_all_of_it_is_used_up(self) -> None:
        with Server(lambda c, r: c.wait_for_client_to_go()) as server:
            provider = guarded(self.provider(server, timeouts=Timeouts(total_s=0.2)), retry=RetryPolicy(base_s=0.01))
            with self.assertRaises(ProviderTimeoutError):
                await provider.complete(model="m", messages=HELLO)
            await until_async(lambda: server.requests, "the server has read what was sent")
        self.assertEqual(len(server.requests), 1)

    async def test_a_json_body_that_began_at_once_is_not_late(self) -> None:
        body = json.dumps({"choices": [{"message": {"content": "Good"}, "finish_reason": "stop"}]}).encode()

        def script(connection: Connection, request: Request) -> None:
            connection.head(Content_Type="application/json", Content_Length=str(len(body)))
            connection.send(body[:5])
            self.assertFalse(connection.wait_for_client_to_go(2 * limit_s))
            connection.send(body[5:])

        answers = []
        for limit_s in (0.2, 1.0, 5.0, 30.0):  # a busy machine needs longer for the first byte
            with Server(script) as server, suppress(ProviderTimeoutError):
                provider = self.provider(server, timeouts=Timeouts(first_byte_s=limit_s))
                answers.append((await provider.complete(model="m", messages=HELLO)).assistant_text)
                break
        self.assertEqual(answers, ["Good"])

    async def test_an_injected_callable_has_the_same_limits(self) -> None:
        ended = threading.Event()
        provider = OpenAICompatibleProvider(
            base_url="http://h",
            stream_transport=lambda url, headers, payload: iter(lambda: ended.wait(3), None),  # type: ignore[arg-type]
            settings=RequestSettings(timeouts=Timeouts(total_s=0.2)),
        )
        with self.assertRaises(ProviderTimeoutError):
            [event async for event in provider.stream(model="m", messages=HELLO)]
        ended.set()

    async def test_an_endpoint_that_cannot_stream_is_asked_for_whole_answers_and_freed_on_cancel(self) -> None:
        gone, asked = threading.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def script(connection: Connection, request: Request) -> None:
            self.assertNotIn("stream", request.json)
            loop.call_soon_threadsafe(asked.set)
            if connection.wait_for_client_to_go():
                gone.set()

        with Server(script) as server:
            stream = self.provider(server, stream=False).stream(model="m", messages=HELLO)
            task = asyncio.ensure_future(anext(stream))
            await asked.wait()
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            self.assertTrue(gone.wait(120))

    async def test_early_hints_before_the_answer_are_skipped(self) -> None:
        def script(connection: Connection, request: Request) -> None:
            connection.head("103 Early Hints", Link="</a.css>; rel=preload")
            connection.head("102 Processing")
            connection.stream(GOOD)

        with Server(script) as server:
            for _ in range(2):
                output = await self.provider(server).complete(model="m", messages=HELLO)
                self.assertEqual(output.assistant_text, "Good")
        self.assertEqual(server.connections, 1)


class AddressesAndModels(WithEnvironment):
    def test_a_dead_address_costs_little(self) -> None:
        listener = self.enterContext(socket.create_server(("127.0.0.1", 0)))
        port = listener.getsockname()[1]
        full = self.enterContext(socket.socket())
        full.bind(("127.0.0.1", 0))  # bound and not listening on this address's other port: refused at once
        known = socket.getaddrinfo("127.0.0.1", port, type=socket.SOCK_STREAM)
        dead = [(*known[0][:4], ("203.0.113.1", port)), (*known[0][:4], ("127.0.0.1", full.getsockname()[1]))]
        began = time.monotonic()
        line = Line()
        self.assertEqual(connect_one([*dead, *known], "name", 60, line).getpeername()[1], port)
        line.close()
        self.assertLess(time.monotonic() - began, 30)  # half of what the dead address alone may take

    def test_families_take_turns(self) -> None:
        four, six = socket.AF_INET, socket.AF_INET6
        rows: list[Any] = [(family, 1, 6, "", (str(n), 1)) for n, family in enumerate((six, six, six, four, four))]
        self.assertEqual([row[0] for row in in_turn(rows)], [six, four, six, four, six])

    def test_no_proxy_names_networks(self) -> None:
        self.environment(
            HTTP_PROXY="http://p:1", http_proxy="http://p:1", NO_PROXY="", no_proxy="10.0.0.0/8, fd00::/8,h"
        )
        table = {"10.1.2.3": None, "11.1.2.3": "http://p:1", "[fd00::1]": None, "h": None, "other": "http://p:1"}
        for host, proxy in table.items():
            self.assertEqual(find_proxy(urlsplit(f"http://{host}/x"), None), proxy, host)

    async def test_an_overloaded_model_leaves_the_others_at_its_endpoint_alone(self) -> None:
        def script(connection: Connection, request: Request) -> None:
            if request.json["model"] == "B":
                connection.stream(GOOD)
            else:
                connection.reply(b'{"error": {"message": "overloaded"}}', "529 Overloaded")

        with Server(script) as server:
            endpoint = OpenAICompatibleProvider(base_url=server.url, http=self.http)
            provider = guarded(endpoint, retry=RetryPolicy(max_retries=0), fallback=["B"])
            for _ in range(2):  # the second time, A is no longer asked
                asked = [provider.complete(model="A", messages=HELLO) for _ in range(8)]
                self.assertEqual({output.assistant_text for output in await asyncio.gather(*asked)}, {"Good"})
            with self.assertRaises(CircuitOpenError):
                shared_breaker(endpoint.endpoint, "A").admit(time.monotonic())
            shared_breaker(endpoint.endpoint, "B").admit(time.monotonic())

    async def test_a_breaker_may_be_one_for_all_models(self) -> None:
        breaker = CircuitBreaker("x", limit=1)
        breaker.fail(time.monotonic())
        provider = BreakingProvider(OpenAICompatibleProvider(base_url="http://h"), breaker)
        with self.assertRaises(CircuitOpenError):
            await provider.complete(model="m", messages=HELLO)

    def test_a_server_that_asks_for_no_delay_gets_our_own(self) -> None:
        for value in ("0", "0.0", " 0"):
            error = ProviderHTTPError("x", status=429, headers={"retry-after": value}, retryable=True)
            delay = RetryPolicy().delay_s(error, attempt=2, elapsed_s=0, now=0, jitter=lambda: 1.0)
            self.assertEqual(delay, 1.0)

    async def test_models_are_listed_and_tokens_counted_or_estimated(self) -> None:
        def script(connection: Connection, request: Request) -> None:
            if request.path.startswith("/old/"):
                connection.reply(b"not here", "404 No")
            elif request.path.endswith("/count_tokens"):
                self.assertNotIn("max_tokens", request.json)
                connection.reply(b'{"input_tokens": 42}')
            else:
                connection.reply(b'{"data": [{"id": "m1"}, {"id": "m2"}]}')

        with Server(script) as server:
            chat = OpenAICompatibleProvider(base_url=server.url + "/v1", http=self.http)
            self.assertEqual(await chat.models(), ["m1", "m2"])
            claude = AnthropicProvider(base_url=server.url, api_key="k", http=self.http)
            counted = await claude.count_tokens(model="m", messages=HELLO)
            self.assertEqual((counted.tokens, counted.is_exact), (42, True))
            self.assertEqual(await claude.models(), ["m1", "m2"])
            gateway = AnthropicProvider(base_url=server.url + "/old", api_key="k", http=self.http)
            self.assertFalse((await gateway.count_tokens(model="m", messages=HELLO)).is_exact)
            estimated = await chat.count_tokens(model="m", messages=[{"role": "user", "content": "word " * 1000}])
        self.assertFalse(estimated.is_exact)
        self.assertLess(abs(estimated.tokens - 1000), 1000 * 0.6)
        self.assertIn("about", str(estimated))


if __name__ == "__main__":
    unittest.main()
