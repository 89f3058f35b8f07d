"""The contract of model providers, as test cases: subclass `ProviderContract` and define how to create a provider.

    class MyProviderTest(provider_contract.ProviderContract):
        def make_provider(self, turns):
            return MyProvider(base_url=self.start_server_that_plays(turns))

`turns` are the endpoint's answers, one per request, in the format of `testing.scripted`: `text`, `reasoning`, `tool_calls`,
`usage`, `error` (`type`, `status`, `message`, `after` this many characters) and `delay_s` before the answer. A provider
that reads bytes defines `make_garbled_provider`, too: its endpoint's answers are corrupted in transit. Import the module,
not the class, or unittest runs the abstract class, too.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import random
import threading
import time
import unittest
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from ..errors import ProviderError
from ..providers.base import (
    CompletingProvider,
    Done,
    ModelOutput,
    Provider,
    StreamEvent,
    StreamingProvider,
    TextDelta,
    ToolCallReady,
    read_stream_event,
)
from ..providers.wrappers.answer import Pieces
from ..sessions.folds.usage import normalize_usage

ProviderTurn = Mapping[str, Any]

LARGE = os.environ.get("OPENAGENTIC_TEST_LARGE") == "1"

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
    """The contract of a provider: subclass it and define `make_provider`.

    `shows_reasoning = False` skips the cases about reasoning.
    """

    shows_reasoning = True

    def make_provider(self, turns: Sequence[ProviderTurn]) -> Provider:
        """Create a provider whose endpoint plays these turns."""
        raise NotImplementedError

    def make_garbled_provider(self, turns: Sequence[ProviderTurn], spoil: Callable[[bytes], bytes]) -> Provider | None:
        """Like `make_provider`, with `spoil` applied to the body of each answer; None for a provider that reads no bytes."""
        return None

    async def asyncSetUp(self) -> None:
        if type(self).make_provider is ProviderContract.make_provider:
            self.skipTest("the contract itself: subclass it")

    async def events(self, provider: Provider, messages: Any = PROMPT, tools: Any = TOOLS) -> list[StreamEvent]:
        """Collect all events of the provider's stream; skip the test if the provider does not stream."""
        if not isinstance(provider, StreamingProvider):
            self.skipTest("the provider does not stream")
        stream = provider.stream(model="m", messages=messages, tools=tools)
        events = [read_stream_event(item) async for item in stream]
        return [event for event in events if event is not None]

    async def answer(self, turn: ProviderTurn) -> ModelOutput:
        """Return the answer to a turn; if the provider has `stream` and `complete`, check that both return the same text,
        reasoning and refusal.
        """
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
        calls = [(call.name, dict(call.arguments), call.raw_arguments) for call in output.tool_calls]
        self.assertEqual(calls, [(call["name"], call["arguments"], None) for call in CALLS])

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

    async def test_whatever_an_endpoint_sends_it_is_an_answer_or_a_provider_error(self) -> None:
        turn = {"text": TEXT, "reasoning": "Hm.", "tool_calls": CALLS, "usage": {"input_tokens": 1, "output_tokens": 2}}
        for seed in range(1_000 if LARGE else 25):
            spoil = Spoiled(seed)
            provider = self.make_garbled_provider([turn], spoil)
            if provider is None:
                self.skipTest("the provider reads no bytes")
            seen: list[Any] = []
            with self.subTest(seed=seed):
                try:
                    await asyncio.wait_for(self._collect(provider, seen), 60)
                except ProviderError:
                    self.assertEqual([event for event in seen if isinstance(event, ToolCallReady)], [])
                else:
                    calls = folded(seen).tool_calls
                    self.assertTrue(all(isinstance(call.arguments, Mapping) for call in calls))
                    self.assertEqual(len({call.tool_use_id for call in calls}), len(calls))

    async def test_errors_say_whether_asking_again_can_help(self) -> None:
        for status, retryable in ((400, False), (401, False), (404, False), (429, True), (500, True), (503, True)):
            turn = {"error": {"type": "http", "status": status, "message": "no"}}
            with self.assertRaises(ProviderError) as raised:
                await self._collect(self.make_provider([turn]), [])
            self.assertEqual(raised.exception.retryable, retryable, status)

    async def test_cancelling_ends_at_once_and_leaves_no_thread(self) -> None:
        before = set(threading.enumerate())
        provider = self.make_provider([{"text": "late", "delay_s": 600}])
        task = asyncio.create_task(self._collect(provider, []))
        await asyncio.sleep(0.1)  # usually it is waiting for the answer by then
        task.cancel()
        await asyncio.wait({task}, timeout=60)  # long before the answer is due
        self.assertTrue(task.cancelled())
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
        deadline = time.monotonic() + 60
        while threads := [t for t in threading.enumerate() if t not in before and t.name.startswith("openagentic")]:
            self.assertLess(time.monotonic(), deadline, f"threads are left: {threads}")
            await asyncio.sleep(0.01)


class Spoiled:
    """A callable that corrupts the body of an answer: the seed determines which JSON values, lines or bytes."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def __call__(self, body: bytes) -> bytes:
        chance = self._chance
        lines = body.split(b"\n")
        place = chance.randrange(len(lines))
        how = chance.choice(("value", "value", "value", "value", "drop", "repeat", "swap", "cut", "byte"))
        if how == "value":
            json_lines = [n for n, line in enumerate(lines) if line.lstrip(b"data: ").startswith((b"{", b"["))]
            place = chance.choice(json_lines) if json_lines else place
            lines[place] = self._with_another_value(lines[place])
        elif how == "drop":
            del lines[place : place + chance.choice((1, 3))]
        elif how == "repeat":
            lines[place:place] = lines[max(0, place - 3) : place + 1]
        elif how == "swap":
            other = chance.randrange(len(lines))
            lines[place], lines[other] = lines[other], lines[place]
        whole = b"\n".join(lines)
        if how == "cut":
            return whole[: chance.randrange(len(whole) + 1)]
        if how == "byte" and whole:
            at = chance.randrange(len(whole))
            return whole[:at] + bytes([chance.randrange(256)]) + whole[at + 1 :]
        return whole

    def _with_another_value(self, line: bytes) -> bytes:
        head, _, text = line.partition(b" ") if line.startswith(b"data: ") else (b"", b"", line)
        try:
            data = json.loads(text)
        except ValueError:
            return line
        places = list(_places(data))
        if not places:
            return line
        holder, key = self._chance.choice(places)
        holder[key] = self._chance.choice(_VALUES)
        return (head + b" " if head else b"") + json.dumps(data).encode()


_VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1e300,
    10**40,
    "",
    "x",
    "\ud800",
    [],
    {},
    [None],
    [[]],
    [{}],
    {"type": 3},
    {"x": None},
)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every position in a JSON value where another value can be put."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(inner):
        yield value, key
        yield from _places(item)


def folded(events: Sequence[StreamEvent]) -> ModelOutput:
    """The complete answer from a stream's events."""
    pieces = Pieces()
    return next(output for event in events if (output := pieces.take(event)) is not None)
