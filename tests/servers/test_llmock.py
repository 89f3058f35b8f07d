"""Every fault that LLMock offers, in each protocol, and its verdict on how this client handled it."""

from __future__ import annotations

import json
import unittest
import urllib.request
from collections.abc import Callable
from typing import Any, ClassVar

from openagentic_sdk.errors import ContextLengthError, ProviderError
from openagentic_sdk.providers.anthropic import AnthropicProvider
from openagentic_sdk.providers.base import ModelOutput, Provider
from openagentic_sdk.providers.clouds.gemini import GeminiProvider
from openagentic_sdk.providers.openai_compatible import OpenAICompatibleProvider
from openagentic_sdk.providers.openai_responses import OpenAIResponsesProvider
from openagentic_sdk.providers.wire.http import HttpTransport
from openagentic_sdk.providers.wire.timeouts import Timeouts
from openagentic_sdk.providers.wrappers.answer import ask, fold
from openagentic_sdk.providers.wrappers.guarded import guarded
from openagentic_sdk.providers.wrappers.retry import RetryPolicy
from tests.size import full_size
from tests.waiting import until

from . import peers

MISSING = "LLMock is not installed: python3 -m tests.servers.peers llmock"
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
OVERFLOW = {"type": "fail", "status": 400, "code": "context_length_exceeded", "message": "maximum context length"}
FAULTS: dict[str, list[dict[str, Any]]] = {
    "two refusals": [{"type": "fail", "status": 429, "retry_after": 0.2, "times": 2}],
    "no delay asked": [{"type": "fail", "status": 429, "retry_after": 0, "times": 2}],
    "overloaded": [{"type": "fail", "status": 503, "retry_after": 0.2, "times": 2}],
    "disconnect": [{"type": "stream_fault", "kind": "disconnect", "after_chunks": 2}],
    "truncate": [{"type": "stream_fault", "kind": "truncate", "after_chunks": 2}],
    "stall": [{"type": "stream_fault", "kind": "stall", "after_chunks": 2, "stall_seconds": 60}],
    "slow": [{"type": "slow_first_token", "seconds": 0.3}],
}
MALFORMED = {"type": "stream_fault", "kind": "malformed", "after_chunks": 2}


@full_size
@unittest.skipUnless(peers.LLMOCK.exists(), MISSING)
class FaultsOfLLMock(unittest.IsolatedAsyncioTestCase):
    peer: ClassVar[peers.Peer]

    @classmethod
    def setUpClass(cls) -> None:
        cls.peer = cls.enterClassContext(peers.llmock())

    def setUp(self) -> None:
        self.tell("reset", {})

    def providers(self, idle_s: float = 60) -> dict[str, Callable[[], Any]]:
        url, http = self.peer.url, HttpTransport(proxies={}, timeouts=Timeouts(idle_s=idle_s))
        self.addCleanup(http.close)
        return {
            "chat": lambda: OpenAICompatibleProvider(base_url=f"{url}/v1", api_key="k", http=http),
            "responses": lambda: OpenAIResponsesProvider(base_url=f"{url}/v1", api_key="k", http=http),
            "gemini": lambda: GeminiProvider(base_url=f"{url}/gemini", api_key="k", http=http),
            "messages": lambda: AnthropicProvider(base_url=f"{url}/anthropic", api_key="k", http=http),
        }

    async def answer(self, provider: Provider, prompt: str, tools: Any = ()) -> ModelOutput:
        careful = guarded(provider, retry=RetryPolicy(base_s=0.08))
        messages = [{"role": "user", "content": prompt}]
        return await fold(ask(careful, model="gpt-4o", messages=messages, tools=tools, api_key=None))

    async def test_the_verdict_on_every_fault_in_every_protocol_has_no_findings(self) -> None:
        patient = self.providers()
        for name, behaviors in FAULTS.items():
            for protocol, make in (self.providers(idle_s=1.0) if name == "stall" else patient).items():
                with self.subTest(protocol, fault=name):
                    self.tell("scenario", {"behaviors": behaviors})
                    output = await self.answer(make(), f"{protocol} {name}: say something.")
                    self.assertTrue(output.assistant_text)
        verdict = self.get("verdict")
        self.assertEqual(verdict["findings"], [])
        self.assertEqual(verdict["calls"], len(FAULTS) * len(patient))

    async def test_a_chunk_that_cannot_be_read_ends_the_answer_and_it_is_asked_for_again(self) -> None:
        # Not left to the verdict, which counts an answer as accepted if all of it was sent before we disconnected.
        for protocol, make in self.providers().items():
            with self.subTest(protocol):
                whole = await self.answer(make(), f"{protocol}: say something.")
                self.tell("scenario", {"behaviors": [MALFORMED]})
                before = self.get("verdict")["attempts"]
                output = await self.answer(make(), f"{protocol}: say something.")
                self.assertEqual(output.assistant_text, whole.assistant_text)
                until(lambda before=before: self.get("verdict")["attempts"] >= before + 2, "the second try counts")
                self.assertEqual(self.get("verdict")["attempts"], before + 2)

    async def test_a_prompt_that_is_too_long_is_not_sent_again(self) -> None:
        for protocol, make in self.providers().items():
            with self.subTest(protocol):
                self.tell("scenario", {"behaviors": [OVERFLOW]})
                with self.assertRaises(ContextLengthError):
                    await self.answer(make(), f"{protocol}: too long")
        self.assertEqual(self.get("verdict")["findings"], [])

    async def test_calls_come_whole_and_broken_ones_do_not_run(self) -> None:
        for protocol, make in self.providers().items():
            with self.subTest(protocol):
                output = await self.answer(make(), f"{protocol}: What's the weather in Paris?", [TOOL])
                (call,) = output.tool_calls
                self.assertEqual((call.name, call.raw_arguments, "city" in call.arguments), ("get_weather", None, True))
                self.tell("scenario", {"behaviors": [{"type": "tool_fault", "kind": "malformed_arguments"}]})
                try:
                    output = await self.answer(make(), f"{protocol}: and in Rome?", [TOOL])
                except ProviderError:
                    continue
                if protocol != "gemini":  # whose arguments are an object and not a string
                    self.assertTrue(all(call.raw_arguments is not None for call in output.tool_calls))

    def tell(self, what: str, body: Any) -> Any:
        return self._ask(what, json.dumps(body).encode())

    def get(self, what: str) -> Any:
        return self._ask(what, None)

    def _ask(self, what: str, body: bytes | None) -> Any:
        request = urllib.request.Request(f"{self.peer.url}/_llmock/{what}", body, {"Content-Type": "application/json"})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=300) as answer:
            return json.loads(answer.read() or b"null")


if __name__ == "__main__":
    unittest.main()
