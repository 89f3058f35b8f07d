"""The three protocols against a foreign server (aimock, from npm)."""

from __future__ import annotations

import threading
import unittest
from pathlib import Path
from typing import Any, ClassVar

from openagentic_sdk.errors import IncompleteResponseError, ProviderConnectionError, ProviderError, ProviderHTTPError
from openagentic_sdk.providers.anthropic import AnthropicProvider
from openagentic_sdk.providers.base import Done, ModelOutput, ReasoningPiece, Retrying, TextDelta
from openagentic_sdk.providers.openai_compatible import OpenAICompatibleProvider
from openagentic_sdk.providers.openai_responses import OpenAIResponsesProvider
from openagentic_sdk.providers.wrappers.retry import RetryingProvider
from openagentic_sdk.sessions.folds.usage import normalize_usage
from openagentic_sdk.testing.clock import FakeClock

from ..size import full_size
from . import peers

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "wire" / "aimock.json"
PLAIN = "Plain text, with an é and a 漢字 and a \u2028 in it."
TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "description": "x", "parameters": {"type": "object", "properties": {}}},
    }
    for name in ("Read", "Glob")
]


def ask(text: str) -> list[dict[str, Any]]:
    return [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]


@full_size
@unittest.skipUnless(peers.AIMOCK.exists(), "aimock is not installed: python3 -m tests.servers.peers aimock")
class AimockCase(unittest.IsolatedAsyncioTestCase):
    flags: ClassVar[tuple[str, ...]] = ("-c", "7")
    peer: ClassVar[peers.Peer]

    @classmethod
    def setUpClass(cls) -> None:
        cls.peer = peers.aimock(FIXTURES, *cls.flags)
        cls.enterClassContext(cls.peer)

    def setUp(self) -> None:
        self.before = set(threading.enumerate())  # leftovers of another test are not ours

    def tearDown(self) -> None:
        left = set(threading.enumerate()) - self.before
        self.assertEqual([thread.name for thread in left if "openagentic" in thread.name], [])


class Protocols:
    """Tests that every protocol passes."""

    def provider(self) -> Any:
        raise NotImplementedError

    async def both(self: Any, text: str, tools: Any = ()) -> tuple[ModelOutput, list[Any]]:
        """The streamed answer, after checking that the unstreamed one is the same."""
        provider = self.provider()
        whole = await provider.complete(model="gpt-4o", messages=ask(text), tools=tools)
        events = [event async for event in provider.stream(model="gpt-4o", messages=ask(text), tools=tools)]
        provider.http.close()
        assert isinstance(events[-1], Done) and events[-1].output is not None
        output = events[-1].output
        for name in ("assistant_text", "reasoning", "finish_reason", "refusal"):
            self.assertEqual(getattr(output, name), getattr(whole, name), name)
        self.assertEqual(
            [(call.name, call.arguments) for call in output.tool_calls],
            [(call.name, call.arguments) for call in whole.tool_calls],
        )
        return output, events

    async def test_text_comes_in_pieces_that_add_up(self: Any) -> None:
        output, events = await self.both("plain")
        pieces = [event.delta for event in events if isinstance(event, TextDelta)]
        self.assertGreater(len(pieces), 3)
        self.assertEqual("".join(pieces), PLAIN)
        self.assertEqual(output.assistant_text, PLAIN)
        self.assertGreater((normalize_usage(output.usage) or {})["output_tokens"], 0)

    async def test_reasoning_is_never_text(self: Any) -> None:
        output, events = await self.both("think")
        self.assertEqual(output.assistant_text, "The answer is 4.")
        self.assertEqual(output.reasoning, "Two and two are four.")
        shown = "".join(event.delta for event in events if isinstance(event, ReasoningPiece))
        self.assertEqual(shown, "Two and two are four.")

    async def test_parallel_calls_keep_their_order_and_arguments(self: Any) -> None:
        output, _ = await self.both("three calls", TOOLS)
        self.assertEqual(output.assistant_text, "Looking.")
        expected = [
            ("Read", {"file_path": "a.txt"}),
            ("Read", {"file_path": "b.txt"}),
            ("Glob", {"pattern": "**/*.py"}),
        ]
        self.assertEqual([(call.name, call.arguments) for call in output.tool_calls], expected)
        self.assertEqual(len({call.tool_use_id for call in output.tool_calls}), 3)

    async def test_a_result_goes_back_and_the_conversation_continues(self: Any) -> None:
        output, _ = await self.both("one call", TOOLS)
        (call,) = output.tool_calls
        asked = {"id": call.tool_use_id, "type": "function", "function": {"name": call.name, "arguments": "{}"}}
        messages = [
            *ask("one call"),
            {"role": "assistant", "content": None, "tool_calls": [asked], **(output.extras or {})},
            {"role": "tool", "tool_call_id": call.tool_use_id, "content": "hello"},
        ]
        provider = self.provider()
        answer = await provider.complete(model="gpt-4o", messages=messages, tools=TOOLS)
        self.assertEqual(answer.assistant_text, "The file says hello.")

    async def test_errors_carry_their_status_and_what_may_be_done(self: Any) -> None:
        for text, status, retryable in (("limited", 429, True), ("broken", 503, True), ("refused", 401, False)):
            for provider in (self.provider(),):
                with self.assertRaises(ProviderHTTPError) as raised:
                    await provider.complete(model="gpt-4o", messages=ask(text))
                self.assertEqual((raised.exception.status, raised.exception.retryable), (status, retryable))

    async def test_the_delay_that_the_server_requests_is_observed(self: Any) -> None:
        clock = FakeClock()
        with self.assertRaises(ProviderHTTPError):
            async for event in RetryingProvider(self.provider(), clock=clock).stream(
                model="gpt-4o", messages=ask("limited")
            ):
                self.assertIsInstance(event, Retrying)
        self.assertEqual(clock.slept, [7.0] * 4)

    async def test_a_stream_that_is_cut_is_not_an_answer(self: Any) -> None:
        with self.assertRaises((IncompleteResponseError, ProviderConnectionError)):
            async for _ in self.provider().stream(model="gpt-4o", messages=ask("cut")):
                pass


class ChatCompletions(Protocols, AimockCase):
    def provider(self) -> Any:
        return OpenAICompatibleProvider(base_url=self.peer.url + "/v1")


class Responses(Protocols, AimockCase):
    def provider(self) -> Any:
        return OpenAIResponsesProvider(base_url=self.peer.url + "/v1")


class Messages(Protocols, AimockCase):
    def provider(self) -> Any:
        return AnthropicProvider(base_url=self.peer.url, api_key="sk-test")

    async def test_a_signature_is_kept_to_go_back(self) -> None:
        output, _ = await self.both("signed")
        blocks = (output.extras or {})["anthropic_content"]
        self.assertEqual([block["type"] for block in blocks], ["thinking", "text"])
        self.assertTrue(blocks[0]["signature"])


class Disconnects(AimockCase):
    flags = ("--chaos-disconnect", "1")

    async def test_a_connection_that_is_destroyed_is_a_connection_error(self) -> None:
        provider = OpenAICompatibleProvider(base_url=self.peer.url + "/v1")
        with self.assertRaises(ProviderConnectionError):
            await provider.complete(model="gpt-4o", messages=ask("plain"))


class Malformed(AimockCase):
    flags = ("--chaos-malformed", "1")

    async def test_invalid_json_is_an_error_of_the_provider(self) -> None:
        provider = OpenAICompatibleProvider(base_url=self.peer.url + "/v1")
        for call in (provider.complete(model="m", messages=ask("plain")), self._streamed(provider)):
            with self.assertRaises(ProviderError):
                await call

    async def _streamed(self, provider: Any) -> None:
        async for _ in provider.stream(model="m", messages=ask("plain")):
            pass


if __name__ == "__main__":
    unittest.main()
