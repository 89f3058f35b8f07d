"""Nothing incomplete is acted upon: runs against endpoints that break off, contradict themselves or start again."""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
import threading
import unittest
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from openagentic_sdk import query, tool
from openagentic_sdk.errors import GarbledResponseError
from openagentic_sdk.events import (
    AssistantDelta,
    AssistantMessage,
    Event,
    ModelResponse,
    ModelRetry,
    Result,
    ToolResult,
)
from openagentic_sdk.options import OpenAgenticOptions
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.providers.anthropic import AnthropicProvider
from openagentic_sdk.providers.base import Provider, Retrying, TextDelta, is_unfinished
from openagentic_sdk.providers.openai_compatible import OpenAICompatibleProvider
from openagentic_sdk.providers.openai_responses import OpenAIResponsesProvider
from openagentic_sdk.providers.wire.http import HttpTransport
from openagentic_sdk.providers.wrappers.retry import RetryingProvider, RetryPolicy
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.sessions.rebuild import rebuild_messages
from openagentic_sdk.testing.clock import FakeClock
from tests.size import LARGE, full_size

from .server import Connection, Request, Server, delta, sse

GOOD = sse(delta("Good"), delta(finish="stop"))
NO_WAIT = RetryPolicy(base_s=0.001, cap_s=0.001)


def events_of(*chunks: Mapping[str, Any]) -> list[bytes]:
    return [f"event: {chunk['type']}\ndata: {json.dumps(chunk)}\n\n".encode() for chunk in chunks]


def message(
    message_id: str, reason: str | None, *blocks: Mapping[str, Any], stops: bool = True
) -> list[dict[str, Any]]:
    chunks: list[dict[str, Any]] = [{"type": "message_start", "message": {"id": message_id, "content": []}}]
    for index, block in enumerate(blocks):
        chunks.append({"type": "content_block_start", "index": index, "content_block": block})
        if stops:
            chunks.append({"type": "content_block_stop", "index": index})
    if reason is not None:
        chunks += [{"type": "message_delta", "delta": {"stop_reason": reason}}, {"type": "message_stop"}]
    return chunks


WIPE = {"type": "tool_use", "id": "toolu_1", "name": "wipe", "input": {"path": "/"}}
SORRY = {"type": "text", "text": "I will not do that."}


class RunsWithTruncatedStreams(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        self.store = MemorySessionStore()
        self.cwd = self.enterContext(tempfile.TemporaryDirectory())
        self.http = HttpTransport(proxies={})
        self.addCleanup(self.http.close)
        self.wiped: list[str] = []

    async def run_with(self, provider: Provider, retry: RetryPolicy = NO_WAIT) -> list[Event]:
        @tool
        def wipe(path: str = "everything") -> str:
            """Delete a folder."""
            self.wiped.append(path)
            return "gone"

        options = OpenAgenticOptions(
            provider=provider,
            model="m",
            cwd=self.cwd,
            project_dir=self.cwd,
            setting_sources=(),
            session_store=self.store,
            tools=[wipe],
            retry=retry,
            permission_gate=PermissionGate(permission_mode="bypass"),
        )
        return [event async for event in query(prompt="Clean up.", options=options)]

    async def test_two_messages_in_one_stream_are_asked_for_again_and_no_call_of_them_runs(self) -> None:
        both = [*message("m1", None, WIPE), *message("m2", "end_turn", SORRY)]
        answers = [events_of(*both), events_of(*message("m3", "end_turn", SORRY))]
        with Server(lambda c, r: c.stream(answers.pop(0))) as server:
            events = await self.run_with(AnthropicProvider(base_url=server.url, api_key="k", http=self.http))
        self.assertEqual(self.wiped, [])
        self.assertEqual(result_of(events).final_text, SORRY["text"])
        self.assertIn("two messages", of(events, ModelRetry)[0].reason)

    async def test_an_answer_that_stays_garbled_is_asked_for_twice_and_no_more(self) -> None:
        both = events_of(*message("m1", None, WIPE), *message("m2", "end_turn", SORRY))
        with Server(lambda c, r: c.stream(both)) as server:
            events = await self.run_with(AnthropicProvider(base_url=server.url, api_key="k", http=self.http))
        self.assertEqual(len(server.requests), 2)
        self.assertEqual((self.wiped, result_of(events).error_type), ([], "GarbledResponseError"))

    async def test_a_call_of_an_answer_that_was_cut_goes_back_to_the_model_as_an_error(self) -> None:
        cases: list[tuple[str, Callable[[str], Provider], list[bytes], list[bytes]]] = []
        for reason in ("max_tokens", "pause_turn", "refusal", "model_context_window_exceeded"):
            said = events_of(*message("m1", reason, WIPE))
            cases.append((reason, self.messages, said, events_of(*message("m2", "end_turn", SORRY))))
        unstopped = events_of(*message("m1", "tool_use", WIPE, stops=False))
        cases.append(("no stop", self.messages, unstopped, events_of(*message("m2", "end_turn", SORRY))))
        function = {"name": "wipe", "arguments": '{"path": "/"}'}
        calls = [{"index": 0, "id": "a", "type": "function", "function": function}]
        for reason in ("length", "content_filter"):
            cases.append((reason, self.chat, sse(delta(tool_calls=calls), delta(finish=reason)), GOOD))
        item = {"type": "function_call", "id": "f", "call_id": "a", **function}
        cut = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "output": [item]}
        whole = {"status": "completed", "output": [{"type": "message", "content": [{"text": "Good"}]}]}
        cut_events = events_of({"type": "response.incomplete", "response": cut})
        whole_events = events_of({"type": "response.completed", "response": whole})
        cases.append(("incomplete", self.responses, cut_events, whole_events))
        for name, provider_at, first, second in cases:
            with self.subTest(name), Server(lambda c, r, a=[first, second]: c.stream(a.pop(0))) as server:
                events = await self.run_with(provider_at(server.url))
                self.assertEqual(self.wiped, [])
                for result in of(events, ToolResult):
                    self.assertIn("did not arrive whole", result.error_message or "")
                if name not in ("refusal",):
                    self.assertEqual(len(of(events, ToolResult)), 1)

    async def test_a_provider_written_elsewhere_is_held_to_the_same_rule(self) -> None:
        class Elsewhere:
            name = "elsewhere"

            def __init__(self) -> None:
                self.asked = 0

            async def stream(self, **request: Any) -> Any:
                self.asked += 1
                if self.asked == 1:
                    call = {"tool_use_id": "a", "name": "wipe", "arguments": {"path": "/"}}
                    yield {"type": "tool_call", "tool_call": call}
                    yield {"type": "done", "finish_reason": "length"}
                else:
                    yield {"type": "text_delta", "delta": "Fine."}
                    yield {"type": "done"}

        events = await self.run_with(Elsewhere())
        self.assertEqual(self.wiped, [])
        self.assertIn('{"path": "/"}', of(events, ToolResult)[0].error_message)

    async def test_a_break_in_the_middle_is_recorded_as_incomplete_and_the_answer_begins_again(self) -> None:
        answers = [sse(delta("Half an ans"), done=False), sse(delta("Half an answer."), delta(finish="stop"))]
        with Server(lambda c, r: c.stream(answers.pop(0))) as server:
            events = await self.run_with(self.chat(server.url))
        pieces = [(event.attempt, event.text_delta) for event in of(events, AssistantDelta)]
        self.assertEqual(pieces, [(1, "Half an ans"), (2, "Half an answer.")])
        said = [(event.text, event.incomplete) for event in of(events, AssistantMessage)]
        self.assertEqual(said, [("Half an ans", True), ("Half an answer.", False)])
        (retry,) = of(events, ModelRetry)
        self.assertTrue(retry.mid_answer)
        self.assertEqual(of(events, ModelResponse)[0].attempt, 2)
        self.assertEqual(result_of(events).final_text, "Half an answer.")
        rebuilt = rebuild_messages(self.store.read_events(result_of(events).session_id))
        self.assertEqual([m["content"] for m in rebuilt if m["role"] == "assistant"], ["Half an answer."])

    async def test_the_policy_can_keep_a_broken_answer_from_being_asked_for_again(self) -> None:
        with Server(lambda c, r: c.stream(sse(delta("Half"), done=False))) as server:
            events = await self.run_with(self.chat(server.url), RetryPolicy(mid_answer=False))
        self.assertEqual((len(server.requests), result_of(events).stop_reason), (1, "error"))
        self.assertEqual([event.text for event in of(events, AssistantMessage)], ["Half"])

    async def test_a_turn_that_a_tool_of_the_vendor_paused_continues(self) -> None:
        search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}
        answers = [events_of(*message("m1", "pause_turn", search)), events_of(*message("m2", "end_turn", SORRY))]
        with Server(lambda c, r: c.stream(answers.pop(0))) as server:
            events = await self.run_with(self.messages(server.url))
        self.assertEqual(result_of(events).final_text, SORRY["text"])
        sent = server.requests[1].json["messages"]
        self.assertEqual([(m["role"], m["content"][0]["type"]) for m in sent[-1:]], [("assistant", "server_tool_use")])

    def chat(self, url: str) -> Provider:
        return OpenAICompatibleProvider(base_url=url + "/v1", http=self.http)

    def messages(self, url: str) -> Provider:
        return AnthropicProvider(base_url=url, api_key="k", http=self.http)

    def responses(self, url: str) -> Provider:
        return OpenAIResponsesProvider(base_url=url + "/v1", http=self.http)


class RetriesInTheMiddle(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        self.http = HttpTransport(proxies={})
        self.addCleanup(self.http.close)

    def provider(self, server: Server, policy: RetryPolicy | None = None) -> RetryingProvider:
        endpoint = OpenAICompatibleProvider(base_url=server.url + "/v1", http=self.http)
        return RetryingProvider(endpoint, policy=policy, clock=FakeClock())

    async def test_complete_asks_again_because_nothing_was_shown(self) -> None:
        answers = [sse(delta("Half"), done=False), GOOD]
        with Server(lambda c, r: c.stream(answers.pop(0))) as server:
            output = await self.provider(server).complete(model="m", messages=[{"role": "user", "content": "x"}])
        self.assertEqual(output.assistant_text, "Good")

    async def test_a_stream_reports_that_its_earlier_pieces_are_void(self) -> None:
        answers = [sse(delta("Half"), done=False), GOOD]
        with Server(lambda c, r: c.stream(answers.pop(0))) as server:
            stream = self.provider(server, RetryPolicy()).stream(model="m", messages=[{"role": "user", "content": "x"}])
            events = [event async for event in stream]
        self.assertEqual(events[0], TextDelta("Half"))
        assert isinstance(events[1], Retrying)
        self.assertTrue(events[1].mid_answer)
        self.assertEqual(events[2], TextDelta("Good"))

    async def test_a_second_answer_after_the_end_of_the_first_is_refused(self) -> None:
        other = {"id": "c2", "choices": [{"delta": {"content": "Another"}}]}
        with Server(lambda c, r: c.stream(sse(delta("One"), delta(finish="stop"), other))) as server:
            provider = OpenAICompatibleProvider(base_url=server.url + "/v1", http=self.http)
            with self.assertRaises(GarbledResponseError):
                await provider.complete(model="m", messages=[{"role": "user", "content": "x"}])


class ManyCancels(unittest.IsolatedAsyncioTestCase):
    @full_size
    async def test_runs_that_are_cancelled_at_any_moment_leave_no_thread_and_no_connection(self) -> None:
        chance, hold = random.Random(15), threading.Event()
        self.addCleanup(hold.set)

        def script(connection: Connection, request: Request) -> None:
            connection.head(Content_Type="text/event-stream", Transfer_Encoding="chunked")
            for piece in sse(*[delta("x") for _ in range(20)], delta(finish="stop")):
                connection.chunk(piece)
                if chance.random() < 0.1:
                    hold.wait(0.01)
            connection.send(b"0\r\n\r\n")

        before = set(threading.enumerate())
        http = HttpTransport(proxies={})
        with Server(script) as server:
            before |= set(threading.enumerate())
            provider = OpenAICompatibleProvider(base_url=server.url, http=http)

            async def ask() -> None:
                async for _ in provider.stream(model="m", messages=[{"role": "user", "content": "x"}]):
                    pass

            for _ in range(600 // 30 if LARGE else 3):
                tasks = [asyncio.create_task(ask()) for _ in range(30)]
                for task in tasks:
                    for _ in range(chance.choice((1, 1, 20, 100))):
                        await asyncio.sleep(0)
                    task.cancel()
                ended = await asyncio.gather(*tasks, return_exceptions=True)
                self.assertEqual([e for e in ended if e and not isinstance(e, asyncio.CancelledError)], [])
            left = [thread for thread in threading.enumerate() if thread.name.startswith("openagentic")]
            self.assertEqual([thread for thread in left if thread not in before], [])
            http.close()


class FinishReasons(unittest.TestCase):
    def test_words_of_a_whole_answer_and_of_a_part_of_one(self) -> None:
        whole = (None, "", "stop", "tool_calls", "function_call", "end_turn", "tool_use", "eos", "STOP", "new_word")
        part = ("length", "max_tokens", "MAX_TOKENS", "content_filter", "refusal", "pause_turn", "SAFETY", "error")
        self.assertEqual([word for word in whole if is_unfinished(word)], [])
        self.assertEqual([word for word in part if not is_unfinished(word)], [])


def of(events: Sequence[Event], kind: type[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def result_of(events: Sequence[Event]) -> Result:
    assert isinstance(events[-1], Result)
    return events[-1]
