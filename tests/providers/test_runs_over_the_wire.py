"""Whole runs over real sockets: tools are called, failures end the run with a log that can be resumed."""

from __future__ import annotations

import asyncio
import tempfile
import unittest
from dataclasses import replace
from pathlib import Path
from typing import Any

from openagentic_sdk import query, run
from openagentic_sdk.events import AssistantDelta, AssistantMessage, ModelRetry, Result, ToolResult
from openagentic_sdk.options import OpenAgenticOptions
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.providers.openai_compatible import OpenAICompatibleProvider
from openagentic_sdk.providers.quirks import LOCAL
from openagentic_sdk.providers.wire.http import HttpTransport
from openagentic_sdk.providers.wire.timeouts import Timeouts
from openagentic_sdk.providers.wrappers.breaker import BreakingProvider, CircuitBreaker
from openagentic_sdk.providers.wrappers.fallback import Fallback, FallbackProvider
from openagentic_sdk.providers.wrappers.retry import RetryingProvider, RetryPolicy
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.testing.clock import FakeClock

from .server import Connection, Request, Server, delta, sse

USAGE = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}}
GOOD = sse(delta("Hel"), delta("lo"), delta(finish="stop"), USAGE)


class RunsOverTheWire(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        self.store = MemorySessionStore()
        self.cwd = self.enterContext(tempfile.TemporaryDirectory())

    def provider(self, server: Server, **timeouts: float) -> OpenAICompatibleProvider:
        http = HttpTransport(proxies={}, timeouts=Timeouts(**timeouts))
        self.addCleanup(http.close)
        return OpenAICompatibleProvider(base_url=server.url + "/v1", http=http)

    def options(self, provider: Any, **more: Any) -> OpenAgenticOptions:
        return OpenAgenticOptions(
            provider=provider,
            model="m",
            cwd=self.cwd,
            project_dir=self.cwd,
            setting_sources=(),
            session_store=self.store,
            permission_gate=PermissionGate(permission_mode="bypass"),
            **more,
        )

    def check_log(self, session_id: str) -> list[Any]:
        events = self.store.read_events(session_id)
        self.assertIsInstance(events[-1], Result)
        return events

    async def test_a_tool_is_called_and_its_result_goes_back(self) -> None:
        Path(self.cwd, "a.txt").write_text("hello from a file")

        def script(connection: Connection, request: Request) -> None:
            if request.json["messages"][-1]["role"] == "tool":
                connection.stream(GOOD)
            else:
                function = {"name": "Read", "arguments": '{"file_path": "a.txt"}'}
                calls = [{"index": 0, "id": "call_1", "type": "function", "function": function}]
                connection.stream(sse(delta(tool_calls=calls), delta(finish="tool_calls")))

        with Server(script) as server:
            result = await run(prompt="read it", options=self.options(self.provider(server)))
        self.assertEqual((result.final_text, result.stop_reason), ("Hello", "end"))
        self.assertIn("hello from a file", server.requests[1].json["messages"][-1]["content"])
        self.assertTrue(any(isinstance(event, ToolResult) and not event.is_error for event in result.events))

    async def test_silence_ends_the_run_and_another_endpoint_continues_with_it(self) -> None:
        with Server(lambda c, r: c.wait_for_client_to_go() and None) as server:
            result = await run(
                prompt="hi", options=self.options(self.provider(server, first_byte_s=0.1), clock=FakeClock())
            )
        self.assertEqual(result.stop_reason, "error")
        self.check_log(result.session_id)
        with Server(lambda c, r: c.stream(GOOD)) as server:
            again = await run(prompt="again", options=self.options(self.provider(server), resume=result.session_id))
        self.assertEqual(again.final_text, "Hello")
        self.assertEqual([m["role"] for m in server.requests[0].json["messages"]][-2:], ["user", "user"])

    async def test_pieces_received_before_a_cut_are_kept_as_incomplete(self) -> None:
        def script(connection: Connection, request: Request) -> None:
            connection.head(Content_Type="text/event-stream", Transfer_Encoding="chunked")
            connection.chunk(GOOD[0])
            connection.reset()

        with Server(script) as server:
            result = await run(prompt="hi", options=self.options(RetryingProvider(self.provider(server))))
        self.assertEqual((result.stop_reason, len(server.requests)), ("error", 1))
        messages = [event for event in self.check_log(result.session_id) if isinstance(event, AssistantMessage)]
        self.assertEqual([(message.text, message.incomplete) for message in messages], [("Hel", True)])

    async def test_attempts_are_in_the_log_and_the_answer_of_the_last_one_counts(self) -> None:
        def script(connection: Connection, request: Request) -> None:
            if len(server.requests) < 3:
                connection.reply(b'{"error": {"message": "busy"}}', "503 Busy", Retry_After="1")
            else:
                connection.stream(GOOD)

        with Server(script) as server:
            provider = RetryingProvider(self.provider(server), clock=FakeClock())
            result = await run(prompt="hi", options=self.options(provider))
        self.assertEqual(result.final_text, "Hello")
        retries = [event for event in self.check_log(result.session_id) if isinstance(event, ModelRetry)]
        self.assertEqual([(event.attempt, event.delay_s) for event in retries], [(1, 1.0), (2, 1.0)])
        self.assertIn("busy", retries[0].reason)

    async def test_an_open_breaker_ends_the_run_with_a_sentence_and_a_fallback_answers_in_its_place(self) -> None:
        breaker = CircuitBreaker("the endpoint", limit=1)
        with Server(lambda c, r: c.reply(b"{}", "500 No")) as broken, Server(lambda c, r: c.stream(GOOD)) as good:
            first = RetryingProvider(self.provider(broken), policy=RetryPolicy(max_retries=0))
            breaking = BreakingProvider(first, breaker)
            for _ in range(2):
                result = await run(prompt="hi", options=self.options(breaking))
                self.assertEqual(result.stop_reason, "error")
            final = self.check_log(result.session_id)[-1]
            self.assertEqual(final.error_type, "CircuitOpenError")
            self.assertIn("fallback", final.error_message)
            self.assertEqual(len(broken.requests), 1)
            falling = FallbackProvider(breaking, [Fallback("other", self.provider(good))])
            result = await run(prompt="hi", options=self.options(falling))
        self.assertEqual(result.final_text, "Hello")
        self.assertEqual(good.requests[0].json["model"], "other")

    async def test_a_schema_goes_out_in_the_form_that_the_endpoint_has_and_the_value_comes_back(self) -> None:
        def script(connection: Connection, request: Request) -> None:
            if "response_format" in request.json:
                connection.stream(sse(delta('{"name": "Ulm", "people": null}'), delta(finish="stop")))
            else:
                function = {"name": "final_answer", "arguments": '{"name": "Ulm"}'}
                calls = [{"index": 0, "id": "call_1", "type": "function", "function": function}]
                connection.stream(sse(delta(tool_calls=calls), delta(finish="tool_calls")))

        schema = {
            "type": "object",
            "properties": {"name": {"type": "string"}, "people": {"type": "integer"}},
            "required": ["name"],
        }
        with Server(script) as server:
            plain = self.provider(server)
            http = HttpTransport(proxies={})
            self.addCleanup(http.close)
            knowing = OpenAICompatibleProvider(
                base_url=server.url, http=http, quirks=replace(LOCAL, response_format=True)
            )
            for provider in (plain, knowing):
                result = await run(prompt="a city", options=self.options(provider, output_schema=schema))
                self.assertEqual((result.stop_reason, result.structured_output), ("end", {"name": "Ulm"}))
        by_tool, by_format = server.requests
        self.assertIn("final_answer", [tool["function"]["name"] for tool in by_tool.json["tools"]])
        sent = by_format.json["response_format"]["json_schema"]
        self.assertEqual((sent["strict"], sent["schema"]["required"]), (True, ["name", "people"]))

    async def test_walking_away_in_mid_answer_frees_the_connection_and_leaves_a_closed_log(self) -> None:
        def script(connection: Connection, request: Request) -> None:
            connection.head(Content_Type="text/event-stream")
            connection.send(GOOD[0])
            connection.wait_for_client_to_go()

        with Server(script) as server:
            events = query(prompt="hi", options=self.options(self.provider(server)))
            async for event in events:
                if isinstance(event, AssistantDelta):
                    break
            await asyncio.wait_for(events.aclose(), 120)
        (session_id,) = self.store.list_sessions()
        self.assertEqual(self.check_log(session_id)[-1].stop_reason, "interrupted")


if __name__ == "__main__":
    unittest.main()
