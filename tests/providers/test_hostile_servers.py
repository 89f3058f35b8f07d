"""A server that does everything wrong: each call ends as documented and leaves no thread and no socket behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import json
import os
import select
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import tracemalloc
import unittest
import zlib
from pathlib import Path
from typing import Any

from openagentic_sdk.errors import (
    IncompleteResponseError,
    OptionsError,
    ProviderConnectionError,
    ProviderError,
    ProviderHTTPError,
    ProviderResponseError,
    ProviderTimeoutError,
)
from openagentic_sdk.providers.anthropic import AnthropicProvider
from openagentic_sdk.providers.base import Done, ModelOutput, Retrying, TextDelta
from openagentic_sdk.providers.openai_compatible import OpenAICompatibleProvider
from openagentic_sdk.providers.openai_responses import OpenAIResponsesProvider
from openagentic_sdk.providers.wire.http import HttpTransport, shown_url
from openagentic_sdk.providers.wire.timeouts import Timeouts
from openagentic_sdk.providers.wrappers.retry import RetryingProvider, RetryPolicy
from openagentic_sdk.testing.clock import FakeClock
from tests.size import LARGE, full_size
from tests.waiting import pause, until_async

from .server import Connection, Request, Script, Server, delta, sse

HELLO = [{"role": "user", "content": "hi"}]
KEY = "sk-very-secret-key-123"
THREE_MEGABYTES = [*sse(delta("x" * 1000), done=False) * 3000, *sse(delta(finish="stop"))]
GOOD = sse(delta("Hello"), delta(finish="stop"))


def provider_for(server: Server, **options: Any) -> OpenAICompatibleProvider:
    timeouts = options.pop("timeouts", Timeouts(connect_s=60, first_byte_s=60, idle_s=60, total_s=120))
    return OpenAICompatibleProvider(
        base_url=server.url + "/v1", api_key=KEY, http=HttpTransport(timeouts=timeouts, proxies={}, **options)
    )


async def ask(provider: Any) -> ModelOutput:
    async for event in provider.stream(model="m", messages=HELLO):
        if isinstance(event, Done) and event.output is not None:
            return event.output
    raise AssertionError("no Done")


def open_sockets() -> int:
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
        except OSError:
            continue
    return count


def relay(source: socket.socket, goal: socket.socket) -> None:
    """Forward bytes until their source ends."""
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            goal.sendall(data)
        goal.shutdown(socket.SHUT_WR)


class HostileCase(unittest.IsolatedAsyncioTestCase):
    """After each test, checks that no thread and, where the system can report them, no socket of ours is left."""

    def run(self, result: Any = None) -> Any:
        # Around everything, including the loop: its own sockets are closed by then.
        before = open_sockets() if os.path.isdir("/proc/self/fd") else 0
        running = set(threading.enumerate())  # leftovers of another test are not ours
        outcome = super().run(result)
        gc.collect()
        threads = [
            thread.name for thread in set(threading.enumerate()) - running if thread.name.startswith("openagentic")
        ]
        after = open_sockets() if os.path.isdir("/proc/self/fd") else 0
        if (threads or after > before) and result is not None:
            result.addFailure(
                self, (AssertionError, AssertionError(f"left behind: {threads}, {after - before} sockets"), None)
            )
        return outcome

    async def ends_with(self, script: Script, kind: type[Exception], text: str = "", **options: Any) -> Any:
        """The error raised by a request to a server with this script; it never contains the key."""
        with Server(script) as server:
            with self.assertRaises(kind) as raised:
                await ask(provider_for(server, **options))
            self.assertNotIn(KEY, str(raised.exception))
            self.assertRegex(str(raised.exception), text or ".")
        return raised.exception


class Silence(HostileCase):
    async def test_accepting_and_saying_nothing_ends_at_the_first_byte_timeout(self) -> None:
        error = await self.ends_with(
            lambda c, r: c.wait_for_client_to_go() and None, ProviderTimeoutError, timeouts=Timeouts(first_byte_s=0.1)
        )
        self.assertEqual(error.phase, "first_byte")

    async def test_stopping_in_mid_stream_ends_at_the_idle_timeout(self) -> None:
        def script(connection: Connection, request: Request) -> None:
            connection.head(Content_Type="text/event-stream", Transfer_Encoding="chunked")
            connection.chunk(GOOD[0])
            connection.wait_for_client_to_go()

        error = await self.ends_with(script, ProviderTimeoutError, timeouts=Timeouts(idle_s=0.1))
        self.assertEqual(error.phase, "idle")

    async def test_a_byte_now_and_then_ends_at_the_total_timeout(self) -> None:
        def script(connection: Connection, request: Request) -> None:
            connection.head(Content_Type="text/event-stream")
            while not connection.closing.wait(0.02):
                connection.send(b" ")

        error = await self.ends_with(script, ProviderTimeoutError, timeouts=Timeouts(total_s=0.3))
        self.assertEqual(error.phase, "total")

    async def test_a_head_that_never_ends_does_not_outlast_the_first_byte_timeout(self) -> None:
        def script(connection: Connection, request: Request) -> None:
            connection.send(b"HTTP/1.1 200 OK\r\nX-")
            while not connection.closing.wait(0.02):
                connection.send(b"a")

        error = await self.ends_with(script, ProviderTimeoutError, timeouts=Timeouts(first_byte_s=0.2))
        self.assertEqual(error.phase, "first_byte")

    async def test_comments_keep_a_stream_alive_but_are_not_a_first_event(self) -> None:
        def script(connection: Connection, request: Request) -> None:
            connection.head(Content_Type="text/event-stream")
            while not connection.closing.wait(0.02):
                connection.send(b": keep-alive\n\n")

        error = await self.ends_with(script, ProviderTimeoutError, timeouts=Timeouts(first_byte_s=0.3, idle_s=3))
        self.assertEqual(error.phase, "first_byte")

    async def test_after_the_end_marker_nobody_waits_for_the_server_to_close(self) -> None:
        def script(connection: Connection, request: Request) -> None:
            connection.head(Content_Type="text/event-stream")
            connection.send(b"".join(GOOD))
            connection.wait_for_client_to_go()

        with Server(script) as server:
            began = time.monotonic()
            output = await ask(provider_for(server))
        self.assertEqual(output.assistant_text, "Hello")
        self.assertLess(time.monotonic() - began, 30)

    async def test_comments_after_the_end_prolong_nothing(self) -> None:
        def script(connection: Connection, request: Request) -> None:
            connection.head(Content_Type="text/event-stream")
            connection.send(b"".join(GOOD))
            while not connection.closing.wait(0.02):
                connection.send(b": keep-alive\n\n")

        with Server(script) as server:
            began = time.monotonic()
            self.assertEqual((await ask(provider_for(server))).assistant_text, "Hello")
        self.assertLess(time.monotonic() - began, 30)


class CutsAndResets(HostileCase):
    async def test_a_reset_in_mid_stream(self) -> None:
        def script(connection: Connection, request: Request) -> None:
            connection.head(Content_Type="text/event-stream", Transfer_Encoding="chunked")
            connection.chunk(GOOD[0])
            connection.reset()

        await self.ends_with(script, ProviderConnectionError)

    async def test_a_connection_closed_without_an_answer(self) -> None:
        def script(connection: Connection, request: Request) -> None:
            connection.keep = False

        await self.ends_with(script, ProviderConnectionError, "without an answer")

    async def test_a_body_shorter_than_its_content_length(self) -> None:
        def script(connection: Connection, request: Request) -> None:
            connection.head(Content_Type="text/event-stream", Content_Length="5000")
            connection.send(GOOD[0])
            connection.keep = False

        await self.ends_with(script, ProviderConnectionError, "bytes before the end")

    async def test_a_chunked_body_cut_between_chunks(self) -> None:
        def script(connection: Connection, request: Request) -> None:
            connection.head(Content_Type="text/event-stream", Transfer_Encoding="chunked")
            connection.chunk(GOOD[0])
            connection.keep = False

        await self.ends_with(script, ProviderConnectionError, "middle of its answer")

    async def test_a_body_that_ends_with_the_connection_and_has_no_end(self) -> None:
        def script(connection: Connection, request: Request) -> None:
            connection.head(Content_Type="text/event-stream")
            connection.send(GOOD[0])
            connection.keep = False

        error = await self.ends_with(script, IncompleteResponseError)
        self.assertEqual(error.partial_text, "Hello")

    async def test_a_cut_after_the_finish_reason_is_a_whole_answer(self) -> None:
        def script(connection: Connection, request: Request) -> None:
            connection.head(Content_Type="text/event-stream", Transfer_Encoding="chunked")
            connection.chunk(b"".join(GOOD[:2]))
            connection.reset()

        with Server(script) as server:
            self.assertEqual((await ask(provider_for(server))).assistant_text, "Hello")

    async def test_answers_that_are_not_http_are_errors(self) -> None:
        def script(connection: Connection, request: Request) -> None:
            connection.send(b"SSH-2.0-OpenSSH_9.6\r\n")
            connection.keep = False

        error = await self.ends_with(script, ProviderResponseError, "does not respond with HTTP")
        self.assertNotIn("\n", str(error))

    async def test_a_chunk_size_that_is_not_a_number(self) -> None:
        def script(connection: Connection, request: Request) -> None:
            connection.head(Content_Type="text/event-stream", Transfer_Encoding="chunked")
            connection.send(b"zz\r\nhello\r\n")
            connection.keep = False

        await self.ends_with(script, ProviderError)

    async def test_an_answer_whose_length_is_ambiguous_is_discarded(self) -> None:
        for lengths in ((b"5", b"6"), (b"-5",), (b"5, 6",), (b"5, 5",), (b"0x5",)):

            def script(connection: Connection, request: Request, lengths: tuple[bytes, ...] = lengths) -> None:
                fields = b"".join(b"Content-Length: " + length + b"\r\n" for length in lengths)
                connection.send(b"HTTP/1.1 200 OK\r\n" + fields + b"\r\nhello")
                connection.keep = False

            with self.subTest(lengths):
                await self.ends_with(script, ProviderResponseError, "does not show where it ends")

    async def test_a_connection_whose_answer_has_two_framings_is_not_used_again(self) -> None:
        def script(connection: Connection, request: Request) -> None:
            connection.stream(GOOD, Content_Length="3")

        with Server(script) as server:
            provider = provider_for(server)
            for _ in range(2):
                self.assertEqual((await ask(provider)).assistant_text, "Hello")
            self.assertEqual(server.connections, 2)


class Bodies(HostileCase):
    async def test_http_1_0_and_bodies_that_end_with_the_connection(self) -> None:
        def script(connection: Connection, request: Request) -> None:
            connection.send(b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + b"".join(GOOD))
            connection.keep = False

        with Server(script) as server:
            provider = provider_for(server)
            for _ in range(2):
                self.assertEqual((await ask(provider)).assistant_text, "Hello")
        self.assertEqual(server.connections, 2)

    async def test_packed_bodies_are_unpacked_as_they_come(self) -> None:
        body = b"".join(GOOD)
        halves = gzip.compress(body[:20]) + gzip.compress(body[20:])
        for name, packed in (("gzip", gzip.compress(body)), ("gzip", halves), ("deflate", zlib.compress(body))):

            def script(connection: Connection, request: Request, name: str = name, packed: bytes = packed) -> None:
                pieces = [packed[i : i + 5] for i in range(0, len(packed), 5)]
                connection.stream(pieces, Content_Encoding=name)

            with Server(script) as server:
                self.assertEqual((await ask(provider_for(server))).assistant_text, "Hello")
                self.assertEqual(server.requests[0].headers["accept-encoding"], "identity")

    async def test_a_small_packed_body_that_unpacks_to_much_is_stopped(self) -> None:
        bomb = gzip.compress(b" " * 3_000_000)

        def script(connection: Connection, request: Request) -> None:
            connection.reply(bomb, Content_Encoding="gzip")

        await self.ends_with(script, ProviderResponseError, "more than 1000000 bytes", max_body_bytes=1_000_000)

    async def test_a_packing_that_nobody_asked_for(self) -> None:
        await self.ends_with(
            lambda c, r: c.reply(b"xxxx", Content_Encoding="br"), ProviderResponseError, "compresses its answers"
        )

    async def test_an_endless_stream_is_stopped_at_the_limit(self) -> None:
        def script(connection: Connection, request: Request) -> None:
            connection.head(Content_Type="text/event-stream")
            piece = b": keep-alive\n\n" * 1000
            while not connection.closing.is_set():
                connection.send(piece)

        limit = 3_000_000 if LARGE else 500_000
        await self.ends_with(script, ProviderResponseError, f"more than {limit} bytes", max_body_bytes=limit)

    async def test_a_line_of_fifty_megabytes_is_stopped_without_eating_the_memory(self) -> None:
        def script(connection: Connection, request: Request) -> None:
            connection.head(Content_Type="text/event-stream")
            connection.send(b"data: ")
            for _ in range(50):
                connection.send(b"x" * 1_000_000)

        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        await self.ends_with(script, ProviderResponseError, "event of more than")
        self.assertLess(tracemalloc.get_traced_memory()[1], 60_000_000)

    async def test_a_line_of_two_megabytes_is_an_answer(self) -> None:
        text = "x" * 2_000_000

        def script(connection: Connection, request: Request) -> None:
            connection.stream(sse(delta(text), delta(finish="stop")))

        with Server(script) as server:
            self.assertEqual(len((await ask(provider_for(server))).assistant_text or ""), 2_000_000)

    async def test_early_hints_and_odd_header_lines_do_no_harm(self) -> None:
        def script(connection: Connection, request: Request) -> None:
            connection.send(b"HTTP/1.1 100 Continue\r\n\r\n")
            connection.stream(GOOD, X_Twice="a")

        with Server(script) as server:
            self.assertEqual((await ask(provider_for(server))).assistant_text, "Hello")

    async def test_interim_answers_without_end_are_not_waited_for(self) -> None:
        def script(connection: Connection, request: Request) -> None:
            connection.send(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 101)
            connection.stream(GOOD)

        await self.ends_with(script, ProviderResponseError, "more than 100 interim answers")


class ErrorsInPlaceOfAnswers(HostileCase):
    async def test_every_shape_of_error_body_gives_its_message(self) -> None:
        bodies: list[tuple[bytes, str]] = [
            (b'{"error": {"message": "m1", "code": "c"}}', "m1"),
            (b'{"error": "m2"}', "m2"),
            (b'{"object": "error", "message": "m3"}', "m3"),
            (b'{"detail": "m4"}', "m4"),
            (b'[{"error": {"code": 400, "message": "m5"}}]', "m5"),
            (b'{"type": "error", "error": {"type": "invalid", "message": "m6"}, "request_id": "r"}', "m6"),
            (b"m7", "m7"),
            (b"<html><head><style>x{}</style></head><body><h1>m8</h1></body></html>", "m8"),
            (b"", "HTTP status 400"),
            (b"\xff\xfe", "400"),
            (b"[" * 100_000, "400"),
        ]
        for body, message in bodies:
            error = await self.ends_with(
                lambda c, r, body=body: c.reply(body, "400 Bad Request"), ProviderHTTPError, message
            )
            self.assertEqual((error.status, error.retryable), (400, False))
            self.assertLess(len(str(error)), 1500)

    async def test_a_key_that_the_server_repeats_is_hidden(self) -> None:
        body = json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}"}}).encode()
        error = await self.ends_with(lambda c, r: c.reply(body, "401 Unauthorized"), ProviderHTTPError, "hidden")
        self.assertNotIn(KEY, error.body)
        self.assertNotIn(KEY, repr(vars(error)))

    async def test_a_key_that_is_repeated_inside_an_accepted_answer_is_hidden_too(self) -> None:
        body = json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}"}}).encode()
        for script in (
            lambda c, r: c.reply(body),
            lambda c, r: c.stream([b"data: " + body + b"\n\n"]),
            lambda c, r: c.reply(b'{"you sent": "' + KEY.encode() + b'"}'),
        ):
            await self.ends_with(script, ProviderError, "hidden")

    async def test_every_form_of_retry_after_is_waited_for(self) -> None:
        forms = [
            ({"Retry_After": "3"}, 3.0),
            ({"Retry_After": "0.5"}, 0.5),
            ({"Retry_After_Ms": "250"}, 0.25),
            ({"Retry_After": "Tue, 14 Nov 2023 22:13:29 GMT"}, 9.0),
            ({"X_RateLimit_Remaining_Requests": "0", "X_RateLimit_Reset_Requests": "2s"}, 2.0),
        ]
        for headers, seconds in forms:
            answers = [True, False]

            def script(
                connection: Connection, request: Request, headers: Any = headers, answers: Any = answers
            ) -> None:
                if answers.pop(0):
                    connection.reply(b'{"error": {"message": "slow down"}}', "429 Too Many Requests", **headers)
                else:
                    connection.stream(GOOD)

            with Server(script) as server:
                clock = FakeClock()
                retrying = RetryingProvider(provider_for(server), clock=clock)
                events = [event async for event in retrying.stream(model="m", messages=HELLO)]
            self.assertIsInstance(events[0], Retrying)
            self.assertEqual([round(s, 3) for s in clock.slept], [seconds], headers)
            keys = {request.headers["idempotency-key"] for request in server.requests}
            self.assertEqual((len(keys), len(server.requests)), (1, 2))

    async def test_money_that_is_gone_is_not_asked_for_again(self) -> None:
        body = b'{"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}'
        script: Script = lambda c, r: c.reply(body, "429 Too Many Requests")  # noqa: E731
        with Server(script) as server, self.assertRaises(ProviderHTTPError):
            await ask(RetryingProvider(provider_for(server), clock=FakeClock()))
        self.assertEqual(len(server.requests), 1)

    async def test_silence_is_retried_and_then_raised(self) -> None:
        with Server(lambda c, r: c.wait_for_client_to_go() and None) as server:
            provider = provider_for(server, timeouts=Timeouts(first_byte_s=0.2))
            policy = RetryPolicy(max_retries=2)
            with self.assertRaises(ProviderTimeoutError):
                await ask(RetryingProvider(provider, policy=policy, clock=FakeClock()))
            await until_async(lambda: len(server.requests) == 3, "the server has read all that was sent")


class SentencesOfErrors(HostileCase):
    async def test_an_invalid_answer_is_an_error_with_its_beginning(self) -> None:
        for body, told in (
            (b"upstream is asleep", "it sent 'upstream is asleep'"),
            (b"null", "it sent 'null'"),
            (b"", "without sending an answer:"),
        ):
            with self.subTest(body):
                await self.ends_with(lambda c, r, body=body: c.reply(body), ProviderResponseError, told)
        await self.ends_with(
            lambda c, r: c.reply(f"not {KEY}".encode()), ProviderResponseError, "it sent 'not .hidden.'"
        )

    async def test_a_response_head_that_is_too_large_is_reported_as_such(self) -> None:
        many = b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: y\r\n" % n for n in range(1000)) + b"\r\n"
        await self.ends_with(
            lambda c, r: c.send(many), ProviderResponseError, "HTTPException: got more than 100 headers"
        )
        long = b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000 + b"\r\n\r\n"
        await self.ends_with(lambda c, r: c.send(long), ProviderResponseError, "LineTooLong: got more than 65536 bytes")

    async def test_an_answer_that_is_too_long_names_a_remedy(self) -> None:
        too_long = b'{"error": {"message": "maximum context length is 8192", "code": "context_length_exceeded"}}'
        for status, body, told in (
            ("400 Bad Request", too_long, "use a model with a larger one, or start a new session"),
            ("413 Payload Too Large", b"<html>413 nginx</html>", "does not accept a request of this size: attach less"),
        ):
            await self.ends_with(lambda c, r, s=status, b=body: c.reply(b, s), ProviderHTTPError, told)


class Redirects(HostileCase):
    async def test_a_redirect_to_elsewhere_never_carries_the_key(self) -> None:
        with Server(lambda c, r: c.stream(GOOD)) as other:
            for status in ("301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"):
                await self.ends_with(
                    lambda c, r, status=status: c.reply(b"", status, Location=other.url + "/v1?token=x"),
                    ProviderResponseError,
                    "redirects to http://127.0.0.1:[0-9]+/v1 ",
                )
        self.assertEqual(other.requests, [])

    async def test_a_redirect_on_the_same_origin_is_followed_when_it_stays_a_post(self) -> None:
        def script(connection: Connection, request: Request) -> None:
            if request.path == "/v2/chat":
                connection.stream(GOOD)
            else:
                connection.reply(b"", "307 Temporary Redirect", Location="/v2/chat")

        with Server(script) as server:
            self.assertEqual((await ask(provider_for(server))).assistant_text, "Hello")
        self.assertEqual([request.method for request in server.requests], ["POST", "POST"])
        self.assertEqual(server.requests[0].body, server.requests[1].body)

    @full_size
    async def test_an_address_that_is_none_is_named_in_one_short_sentence(self) -> None:
        for location in ("/a\tb", "http://user@127.0.0.1/", "http://[::1/", "//", "/" + "a" * 20_000):
            with self.subTest(location[:20]):
                error = await self.ends_with(
                    lambda c, r, to=location: c.reply(b"", "308 Permanent", Location=to),
                    ProviderResponseError,
                    "redirects (to|too often)",
                )
                self.assertRegex(str(error), r"\A[^\n]{1,500}\Z")

    async def test_a_circle_ends(self) -> None:
        await self.ends_with(
            lambda c, r: c.reply(b"", "308 Permanent", Location=r.path), ProviderResponseError, "redirects too often"
        )


class Connections(HostileCase):
    async def test_a_connection_is_used_again_and_one_that_died_meanwhile_is_replaced(self) -> None:
        def script(connection: Connection, request: Request) -> None:
            connection.stream(GOOD)
            connection.keep = len(server.requests) != 2

        with Server(script) as server:
            provider = provider_for(server)
            for _ in range(4):
                self.assertEqual((await ask(provider)).assistant_text, "Hello")
        self.assertEqual((len(server.requests), server.connections), (4, 2))

    async def test_a_connection_that_breaks_before_a_byte_of_an_answer_is_replaced_once(self) -> None:
        def script(connection: Connection, request: Request) -> None:
            number = len(server.requests)
            if number in resets:
                connection.reset()
            elif number in closes:
                connection.keep = False
            else:
                connection.stream(GOOD)

        resets, closes = {2, 4}, set[int]()  # the kept connection, and then a fresh one
        with Server(script) as server:
            provider = provider_for(server)
            for _ in range(2):
                self.assertEqual((await ask(provider)).assistant_text, "Hello")
            provider.http.close()
            self.assertEqual((await ask(provider)).assistant_text, "Hello")
            self.assertEqual(len(server.requests), 5)
            closes = {6}
            self.assertEqual((await ask(provider)).assistant_text, "Hello")
            provider.http.close()
            # A new connection that a server closes in an orderly way has been answered, with nothing.
            for numbers in ((8, 9), (10,)):
                resets, closes = (set(numbers), set()) if len(numbers) == 2 else (set(), set(numbers))
                with self.assertRaises(ProviderConnectionError) as raised:
                    await ask(provider)
                self.assertTrue(raised.exception.retryable)
            self.assertEqual(len(server.requests), 10)

    async def test_a_request_that_may_change_something_is_not_sent_again(self) -> None:
        with Server(lambda connection, request: connection.reset()) as server:
            http = HttpTransport(proxies={})
            with self.assertRaises(ProviderConnectionError):
                await http.request(server.url, {}, b"{}")
        self.assertEqual(len(server.requests), 1)

    async def test_cancelling_frees_the_connection_at_once(self) -> None:
        gone = threading.Event()

        def script(connection: Connection, request: Request) -> None:
            connection.head(Content_Type="text/event-stream")
            connection.send(GOOD[0])
            if connection.wait_for_client_to_go():
                gone.set()

        with Server(script) as server:
            stream = provider_for(server).stream(model="m", messages=HELLO)
            self.assertEqual(await anext(stream), TextDelta("Hello"))
            waiting = asyncio.create_task(anext(stream))
            for _ in range(20):
                await asyncio.sleep(0)
            began = time.monotonic()
            waiting.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await waiting
            self.assertLess(time.monotonic() - began, 30)
            self.assertTrue(await asyncio.to_thread(gone.wait, 30))

    async def test_a_consumer_that_walks_away_frees_the_connection(self) -> None:
        with Server(
            lambda c, r: (c.head(Content_Type="text/event-stream"), c.send(GOOD[0]), c.wait_for_client_to_go())
        ) as server:
            async for _ in (stream := provider_for(server).stream(model="m", messages=HELLO)):
                break
            await stream.aclose()

    async def test_cancelling_before_an_answer_began(self) -> None:
        asked = threading.Event()
        with Server(lambda c, r: (asked.set(), c.wait_for_client_to_go())) as server:
            task = asyncio.create_task(ask(provider_for(server)))
            self.assertTrue(await asyncio.to_thread(asked.wait, 60))
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task

    async def test_a_consumer_that_is_slow_slows_the_server_down_and_loses_nothing(self) -> None:
        held_up = threading.Event()

        def script(connection: Connection, request: Request) -> None:
            connection.head(Content_Type="text/event-stream", Transfer_Encoding="chunked")
            for piece in THREE_MEGABYTES:
                if not select.select((), (connection.sock,), (), 0)[1]:
                    held_up.set()
                connection.chunk(piece)
            connection.send(b"0\r\n\r\n")

        timeouts = Timeouts(idle_s=3 if LARGE else 60)
        with Server(script) as server:
            length = 0
            async for event in provider_for(server, timeouts=timeouts).stream(model="m", messages=HELLO):
                if isinstance(event, TextDelta):
                    if length == 0:
                        self.assertTrue(await asyncio.to_thread(held_up.wait, 60))
                        if LARGE:
                            await asyncio.to_thread(
                                pause, 3.1, "longer than the idle timeout, which is about the server"
                            )
                    length += len(event.delta)
        self.assertEqual(length, 3_000_000)

    async def test_the_loop_continues_while_streams_run(self) -> None:
        def script(connection: Connection, request: Request) -> None:
            connection.head(Content_Type="text/event-stream", Transfer_Encoding="chunked")
            connection.chunk(GOOD[0])
            self.assertTrue(goes_on.wait(60))
            connection.chunk(b"".join(GOOD[1:]))
            connection.send(b"0\r\n\r\n")

        goes_on = threading.Event()
        with Server(script) as server:
            provider = provider_for(server)
            tasks = [asyncio.create_task(ask(provider)) for _ in range(16)]
            turns, waiting = 0, set(tasks)
            while waiting:
                _, waiting = await asyncio.wait(waiting, timeout=0.001)
                turns += 1
                if turns == 20:
                    goes_on.set()
            self.assertEqual({task.result().assistant_text for task in tasks}, {"Hello"})


@unittest.skipUnless(
    os.path.isdir("/proc/self/fd"), "only Linux is known to leave connections to a full backlog waiting"
)
class UnacceptedConnections(HostileCase):
    """A listener whose backlog is full: connecting neither succeeds nor fails."""

    def setUp(self) -> None:
        listener = self.enterContext(socket.create_server(("127.0.0.1", 0), backlog=0))
        self.address = listener.getsockname()
        for _ in range(3):
            waiting = self.enterContext(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(self.address)

    def provider(self, connect_s: float) -> OpenAICompatibleProvider:
        http = HttpTransport(timeouts=Timeouts(connect_s=connect_s), proxies={})
        return OpenAICompatibleProvider(base_url=f"http://127.0.0.1:{self.address[1]}/v1", http=http)

    async def test_connecting_ends_at_its_timeout(self) -> None:
        with self.assertRaises(ProviderTimeoutError) as raised:
            await ask(self.provider(0.3))
        self.assertEqual(raised.exception.phase, "connect")

    async def test_cancelling_while_connecting_ends_at_once(self) -> None:
        before = set(threading.enumerate())
        task = asyncio.create_task(ask(self.provider(30)))
        await until_async(lambda: set(threading.enumerate()) - before, "a thread connects")
        began = time.monotonic()
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task
        self.assertLess(time.monotonic() - began, 30)


class Addresses(HostileCase):
    async def test_an_invalid_request_is_refused_before_anything_is_sent(self) -> None:
        for base_url in ("ftp://x/v1", "x/v1", "http://", "http://a b/v1", "http://u:p@x/v1", "http://x:99999/v1"):
            provider = OpenAICompatibleProvider(base_url=base_url, http=HttpTransport(proxies={}))
            with self.assertRaises(OptionsError) as raised:
                await ask(provider)
            self.assertNotIn("u:p", str(raised.exception))

    async def test_a_mistyped_address_is_an_error_of_the_options(self) -> None:
        wrong = (
            *(
                "htp://x/v1",
                "localhost:8080",
                "http:x",
                "http:/x/v1",
                "http//x",
                " http://x",
                "http://x/v1 ",
                "http://x\\y",
            ),
            *(
                "http://[::1/v1",
                "http://::1:80/v1",
                "http://x:0/v1",
                "http://x:-1",
                "http://x:y",
                "http://a..b",
                "http://.x",
            ),
            *(f"http://{'a' * 64}/v1", "http://x/v1#here", "http://x/v1?a=b#here", "https://", " "),
        )
        for base_url in wrong:
            with self.subTest(base_url), self.assertRaises(OptionsError):
                await ask(OpenAICompatibleProvider(base_url=base_url, http=HttpTransport(proxies={})))

    async def test_the_address_of_a_request_is_as_good_as_the_base_url(self) -> None:
        with Server(lambda c, r: c.stream(GOOD)) as server:
            for path in ("/v1", "/v1/", "/v1/chat/completions", "/v1/chat/completions/", "/v1/chat/completions?a=b"):
                base_url = f"http://127.0.0.1:{server.port}{path}"
                answer = await ask(OpenAICompatibleProvider(base_url=base_url, http=HttpTransport(proxies={})))
                self.assertEqual(answer.assistant_text, "Hello")
        paths = ["/v1/chat/completions"] * 4 + ["/v1/chat/completions?a=b"]
        self.assertEqual([request.path for request in server.requests], paths)
        for provider, path in (
            (AnthropicProvider(base_url="https://x/v1/messages"), "/v1/messages"),
            (AnthropicProvider(base_url="https://x/v1"), "/v1/messages"),
            (OpenAIResponsesProvider(base_url="https://x/v1/responses"), "/v1/responses"),
        ):
            self.assertEqual(provider.url("model"), f"https://x{path}")

    async def test_a_key_with_a_line_end_in_it_is_refused_without_being_shown(self) -> None:
        for key in ("sk-secret\r\nX-Evil: 1", "sk-secrét"):
            provider = OpenAICompatibleProvider(base_url="http://127.0.0.1:1", api_key=key)
            with self.assertRaises(OptionsError) as raised:
                await ask(provider)
            self.assertNotIn("secr", str(raised.exception))

    async def test_shown_urls_have_no_secrets(self) -> None:
        self.assertEqual(shown_url("https://me:pw@h/v1?key=k#f"), "https://h/v1")


class Proxies(HostileCase):
    async def test_plain_requests_go_through_the_proxy_with_its_own_credentials(self) -> None:
        with Server(lambda c, r: c.stream(GOOD)) as proxy:
            http = HttpTransport(proxies={"http": f"http://me:pw@127.0.0.1:{proxy.port}"})
            provider = OpenAICompatibleProvider(base_url="http://model.invalid/v1", api_key=KEY, http=http)
            self.assertEqual((await ask(provider)).assistant_text, "Hello")
        request = proxy.requests[0]
        self.assertEqual(request.path, "http://model.invalid/v1/chat/completions")
        self.assertEqual(request.headers["host"], "model.invalid")
        self.assertEqual(request.headers["proxy-authorization"], "Basic bWU6cHc=")

    async def test_https_asks_the_proxy_for_a_tunnel_and_never_shows_it_the_key(self) -> None:
        with Server(lambda c, r: c.reply(b"no", "403 Forbidden")) as proxy:
            http = HttpTransport(proxies={"https": f"http://127.0.0.1:{proxy.port}"})
            provider = OpenAICompatibleProvider(base_url="https://model.invalid/v1", api_key=KEY, http=http)
            with self.assertRaisesRegex(ProviderConnectionError, "proxy 127.0.0.1:.* answered 403"):
                await ask(provider)
        self.assertEqual((proxy.requests[0].method, proxy.requests[0].path), ("CONNECT", "model.invalid:443"))
        self.assertNotIn("authorization", proxy.requests[0].headers)

    async def test_a_proxy_that_cannot_be_used_is_named_with_what_to_do(self) -> None:
        closed = socket.create_server(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        closed.close()
        for scheme in ("http", "https"):
            http = HttpTransport(proxies={scheme: f"http://127.0.0.1:{port}"})
            with self.assertRaisesRegex(
                ProviderConnectionError, f"the proxy .*{port} cannot be .*{scheme.upper()}_PROXY"
            ):
                await ask(OpenAICompatibleProvider(base_url=f"{scheme}://model.invalid/v1", api_key=KEY, http=http))
        with Server(lambda c, r: c.reply(b"no", "407 Proxy Authentication Required")) as proxy:
            for scheme, kind in (("http", ProviderHTTPError), ("https", ProviderConnectionError)):
                http = HttpTransport(proxies={scheme: proxy.url})
                with self.assertRaisesRegex(kind, "requires a user and a password") as raised:
                    await ask(OpenAICompatibleProvider(base_url=f"{scheme}://model.invalid/v1", api_key=KEY, http=http))
                self.assertFalse(raised.exception.retryable)

    async def test_a_web_page_and_a_missing_version_in_the_path_are_reported(self) -> None:
        def script(connection: Connection, request: Request) -> None:
            if request.path.startswith("/page"):
                connection.reply(b"<!doctype html><title>Welcome to nginx</title>", Content_Type="text/html")
            else:
                connection.reply(b"{}", "404 Not Found")

        with Server(script) as server:
            for path, advice in (
                ("", "probably ends in /v1"),
                ("/v1", "the model's name"),
                ("/page", "'Welcome to nginx'.*/v1"),
            ):
                with self.assertRaisesRegex(ProviderError, advice):
                    await ask(OpenAICompatibleProvider(base_url=server.url + path, http=HttpTransport(proxies={})))

    async def test_the_environment_names_proxies_and_exceptions(self) -> None:
        names = ("http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY")
        for name in names:
            value = os.environ.pop(name, None)
            if value is not None:
                self.addCleanup(os.environ.__setitem__, name, value)
        self.addCleanup(lambda: [os.environ.pop(name, None) for name in ("http_proxy", "no_proxy")])
        with Server(lambda c, r: c.stream(GOOD)) as proxy, Server(lambda c, r: c.stream(GOOD)) as direct:
            os.environ["http_proxy"] = proxy.url
            os.environ["no_proxy"] = "127.0.0.1"
            for base_url in ("http://model.invalid/v1", direct.url):
                await ask(OpenAICompatibleProvider(base_url=base_url))
        self.assertEqual((len(proxy.requests), len(direct.requests)), (1, 1))


class Certificates(HostileCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
        files = ["-keyout", str(cls.folder / "key.pem"), "-out", str(cls.folder / "cert.pem")]
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, *files]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            raise unittest.SkipTest("the openssl command is needed to make a certificate") from None
        cls.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        cls.context.load_cert_chain(cls.folder / "cert.pem", cls.folder / "key.pem")

    async def test_a_certificate_that_nobody_vouches_for_is_refused(self) -> None:
        refused = self.assertRaisesRegex(ProviderConnectionError, "certificate.*SSL_CERT_FILE")
        with Server(lambda c, r: c.stream(GOOD), tls=self.context) as server, refused as raised:
            await ask(provider_for(server))
        self.assertEqual(server.requests, [])
        self.assertFalse(raised.exception.retryable, "it stays unchanged")

    async def test_ssl_cert_file_names_a_certificate_to_trust_and_the_connection_is_used_again(self) -> None:
        before = os.environ.get("SSL_CERT_FILE")
        os.environ["SSL_CERT_FILE"] = str(self.folder / "cert.pem")
        self.addCleanup(
            lambda: os.environ.pop("SSL_CERT_FILE") if before is None else os.environ.update(SSL_CERT_FILE=before)
        )
        with Server(lambda c, r: c.stream(GOOD), tls=self.context) as server:
            provider = provider_for(server)
            for _ in range(3):
                self.assertEqual((await ask(provider)).assistant_text, "Hello")
            provider.http.close()
        self.assertEqual(server.connections, 1)

    async def test_a_tunnel_through_a_proxy_carries_tls_from_end_to_end(self) -> None:
        def tunnel(connection: Connection, request: Request) -> None:
            connection.head("200 Connection established")
            with socket.create_connection(("127.0.0.1", server.port)) as goal:
                back = threading.Thread(target=relay, args=(goal, connection.sock), name="test-relay")
                back.start()
                relay(connection.sock, goal)
                back.join()
            connection.keep = False

        context = ssl.create_default_context(cafile=str(self.folder / "cert.pem"))
        with Server(lambda c, r: c.stream(GOOD), tls=self.context) as server, Server(tunnel) as proxy:
            http = HttpTransport(proxies={"https": f"127.0.0.1:{proxy.port}"}, ssl_context=context)
            provider = OpenAICompatibleProvider(base_url=server.url + "/v1", api_key=KEY, http=http)
            for _ in range(2):
                self.assertEqual((await ask(provider)).assistant_text, "Hello")
            http.close()
        self.assertEqual((server.connections, len(server.requests), len(proxy.requests)), (1, 2, 1))
        self.assertEqual(server.requests[0].headers["authorization"], f"Bearer {KEY}")
        self.assertNotIn(KEY, str(proxy.requests))

    async def test_cancelling_works_under_tls(self) -> None:
        def script(connection: Connection, request: Request) -> None:
            connection.head(Content_Type="text/event-stream")
            connection.send(GOOD[0])
            connection.wait_for_client_to_go()

        with Server(script, tls=self.context) as server:
            context = ssl.create_default_context(cafile=str(self.folder / "cert.pem"))
            stream = provider_for(server, ssl_context=context).stream(model="m", messages=HELLO)
            await anext(stream)
            began = time.monotonic()
            await stream.aclose()
            self.assertLess(time.monotonic() - began, 30)


if __name__ == "__main__":
    unittest.main()
