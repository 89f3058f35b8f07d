"""What every model provider must do, as test cases: subclass `ProviderContract` and say how to make a provider.

    class MyProviderTest(provider_contract.ProviderContract):
        def make_provider(self, turns):
            return MyProvider(base_url=self.start_server_that_plays(turns))

`turns` are what the endpoint is to answer, one per request, in the words of `testing.scripted`: `text`, `reasoning`,
`tool_calls`, `usage`, `error` (`type`, `status`, `message`, `after` so many characters) and `delay_s` before the answer.
Import the module, not the class, or unittest runs the abstract class too.
"""

from __future__ import annotations

import asyncio
import copy
import threading
import time
import unittest
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any

from ..errors import ProviderError
from ..providers.base import (
    CompletingProvider,
    Done,
    ModelOutput,
    Provider,
    ReasoningDelta,
    StreamEvent,
    StreamingProvider,
    TextDelta,
    ToolCallReady,
    read_stream_event,
)
from ..sessions.folds.usage import normalize_usage

Turn = Mapping[str, Any]

TEXT = "Grüße, 漢字 and 😀: a text of some length, so that it comes in pieces."
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Does {name}.",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        },
    }
    for name in ("Read", "Glob")
]
PROMPT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Go."}]
CALLS = (
    {"name": "Read", "arguments": {"path": "a.txt"}, "id": "call_a"},
    {"name": "Read", "arguments": {"path": 'ü " \\ \n.txt', "deep": {"list": [1, None, True]}}, "id": "call_b"},
    {"name": "Glob", "arguments": {}, "id": "call_c"},
)


class ProviderContract(unittest.IsolatedAsyncioTestCase):
    """Subclass it and define `make_provider`. `shows_reasoning` False leaves the reasoning out."""

    shows_reasoning = True

    def make_provider(self, turns: Sequence[Turn]) -> Provider:
        """A new provider whose endpoint plays these turns."""
        raise NotImplementedError

    async def asyncSetUp(self) -> None:
        if type(self).make_provider is ProviderContract.make_provider:
            self.skipTest("the contract itself: subclass it")

    async def events(self, provider: Provider, messages: Any = PROMPT, tools: Any = TOOLS) -> list[StreamEvent]:
        """Everything that a stream gives."""
        if not isinstance(provider, StreamingProvider):
            self.skipTest("the provider does not stream")
        stream = provider.stream(model="m", messages=messages, tools=tools)
        events = [read_stream_event(item) async for item in stream]
        return [event for event in events if event is not None]

    async def answer(self, turn: Turn) -> ModelOutput:
        """The whole answer to a turn, by whatever the provider has, checked to be the same by both when it has both."""
        outputs = []
        if isinstance(provider := self.make_provider([turn]), StreamingProvider):
            outputs.append(folded(await self.events(provider)))
        if isinstance(provider := self.make_provider([turn]), CompletingProvider):
            outputs.append(await provider.complete(model="m", messages=PROMPT, tools=TOOLS))
        self.assertTrue(outputs, "a provider has complete, stream, or both")
        for field in ("assistant_text", "reasoning", "refusal"):
            self.assertEqual(
                len({getattr(output, field) for output in outputs}), 1, f"{field} by stream and by complete"
            )
        return outputs[0]

    async def test_it_has_a_name(self) -> None:
        name = self.make_provider([]).name
        self.assertIsInstance(name, str)
        self.assertTrue(name)

    async def test_text_arrives_as_it_was_said(self) -> None:
        self.assertEqual((await self.answer({"text": TEXT})).assistant_text, TEXT)

    async def test_the_pieces_add_up_and_done_comes_last_and_once(self) -> None:
        events = await self.events(self.make_provider([{"text": TEXT}]))
        self.assertEqual("".join(event.delta for event in events if isinstance(event, TextDelta)), TEXT)
        self.assertEqual([type(event) for event in events].count(Done), 1)
        self.assertIsInstance(events[-1], Done)

    async def test_reasoning_is_never_text(self) -> None:
        output = await self.answer({"text": "Four.", "reasoning": "Two and two."})
        self.assertEqual(output.assistant_text, "Four.")
        if self.shows_reasoning:
            self.assertEqual(output.reasoning, "Two and two.")

    async def test_calls_keep_their_order_names_and_arguments(self) -> None:
        output = await self.answer({"text": "Looking.", "tool_calls": CALLS})
        self.assertEqual(output.assistant_text, "Looking.")
        found = [(call.name, dict(call.arguments), call.raw_arguments) for call in output.tool_calls]
        self.assertEqual(found, [(call["name"], call["arguments"], None) for call in CALLS])

    async def test_each_call_has_an_id_of_its_own(self) -> None:
        output = await self.answer({"tool_calls": CALLS})
        ids = [call.tool_use_id for call in output.tool_calls]
        self.assertTrue(all(ids))
        self.assertEqual(len(set(ids)), len(CALLS))

    async def test_calls_alone_are_no_text(self) -> None:
        self.assertFalse((await self.answer({"tool_calls": CALLS[:1]})).assistant_text)

    async def test_arguments_that_are_no_json_object_are_kept_raw_and_marked(self) -> None:
        turn = {"tool_calls": [{"name": "Read", "raw_arguments": '{"path": "a', "id": "call_a"}]}
        (call,) = (await self.answer(turn)).tool_calls
        self.assertEqual(call.raw_arguments, '{"path": "a')
        self.assertEqual(dict(call.arguments), {})

    async def test_usage_is_in_a_form_that_can_be_counted_or_unknown(self) -> None:
        output = await self.answer({"text": "Hi.", "usage": {"input_tokens": 11, "output_tokens": 7}})
        usage = normalize_usage(output.usage)
        if output.usage is not None:
            assert usage is not None
            self.assertEqual((usage["input_tokens"], usage["output_tokens"]), (11, 7))

    async def test_a_conversation_with_calls_and_results_is_accepted_and_left_as_it_was(self) -> None:
        call = {"id": "call_a", "type": "function", "function": {"name": "Read", "arguments": '{"path": "a"}'}}
        messages: list[dict[str, Any]] = [
            *PROMPT,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_a", "content": "hello"},
        ]
        before = copy.deepcopy(messages)
        provider = self.make_provider([{"text": "It says hello."}])
        if isinstance(provider, StreamingProvider):
            output = folded(await self.events(provider, messages))
        else:
            output = await provider.complete(model="m", messages=messages, tools=TOOLS)
        self.assertEqual(output.assistant_text, "It says hello.")
        self.assertEqual(messages, before)

    async def test_an_answer_that_is_cut_is_an_error_and_not_an_answer(self) -> None:
        provider = self.make_provider([{"text": TEXT, "error": {"type": "incomplete", "after": 20}}])
        seen: list[Any] = []
        with self.assertRaises(ProviderError):
            await self._collect(provider, seen)
        self.assertEqual([event for event in seen if isinstance(event, Done | ToolCallReady)], [])

    async def test_errors_say_whether_asking_again_can_help(self) -> None:
        for status, retryable in ((400, False), (401, False), (404, False), (429, True), (500, True), (503, True)):
            turn = {"error": {"type": "http", "status": status, "message": "no"}}
            with self.assertRaises(ProviderError) as raised:
                await self._collect(self.make_provider([turn]), [])
            self.assertEqual(raised.exception.retryable, retryable, status)

    async def test_cancelling_ends_at_once_and_leaves_no_thread(self) -> None:
        before = set(threading.enumerate())
        provider = self.make_provider([{"text": "late", "delay_s": 30}])
        task = asyncio.create_task(self._collect(provider, []))
        await asyncio.sleep(0.1)
        began = time.monotonic()
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task
        self.assertLess(time.monotonic() - began, 3)
        await self._no_new_threads(before)

    async def test_a_consumer_that_walks_away_leaves_nothing_running(self) -> None:
        provider = self.make_provider([{"text": TEXT}])
        if not isinstance(provider, StreamingProvider):
            self.skipTest("the provider does not stream")
        tasks = asyncio.all_tasks()
        stream: Any = provider.stream(model="m", messages=PROMPT, tools=TOOLS)
        async with aclosing(stream):
            await anext(stream)
        self.assertEqual(asyncio.all_tasks() - tasks, set())

    async def test_two_answers_at_the_same_time_do_not_mix(self) -> None:
        texts = [f"{n} " * 50 for n in range(4)]
        providers = [self.make_provider([{"text": text}]) for text in texts]
        seen: list[list[Any]] = [[] for _ in texts]
        await asyncio.gather(*map(self._collect, providers, seen))
        self.assertEqual([folded(events).assistant_text for events in seen], texts)

    async def _collect(self, provider: Provider, seen: list[Any]) -> None:
        if not isinstance(provider, StreamingProvider):
            seen.append(Done(await provider.complete(model="m", messages=PROMPT, tools=TOOLS)))
            return
        stream: Any = provider.stream(model="m", messages=PROMPT, tools=TOOLS)
        async with aclosing(stream):
            async for item in stream:
                seen.append(read_stream_event(item))

    async def _no_new_threads(self, before: set[threading.Thread]) -> None:
        deadline = time.monotonic() + 3
        while left := [t for t in threading.enumerate() if t not in before and t.name.startswith("openagentic")]:
            self.assertLess(time.monotonic(), deadline, f"threads are left: {left}")
            await asyncio.sleep(0.01)


def folded(events: Sequence[StreamEvent]) -> ModelOutput:
    """The whole answer of a stream's events."""
    done = next(event for event in events if isinstance(event, Done))
    if done.output is not None:
        return done.output
    return ModelOutput(
        "".join(event.delta for event in events if isinstance(event, TextDelta)) or None,
        [event.tool_call for event in events if isinstance(event, ToolCallReady)],
        usage=done.usage,
        finish_reason=done.finish_reason,
        reasoning="".join(event.delta for event in events if isinstance(event, ReasoningDelta)) or None,
        refusal=done.refusal,
    )
