"""Chat completions through the LiteLLM proxy, which rewrites every chunk, in front of aimock."""

from __future__ import annotations

import tempfile
import threading
import unittest
from pathlib import Path
from typing import Any, ClassVar

from openagentic_sdk.errors import ProviderHTTPError
from openagentic_sdk.providers.base import Done, ModelOutput, TextDelta
from openagentic_sdk.providers.openai_compatible import OpenAICompatibleProvider
from tests.size import LARGE

from . import peers
from .test_aimock import FIXTURES, PLAIN, TOOLS, ask

MISSING = "the LiteLLM proxy and aimock are not both installed: python3 -m tests.servers.peers litellm (and aimock)"
# The proxy takes half a minute to start.


@unittest.skipUnless(peers.LITELLM.exists() and peers.AIMOCK.exists(), MISSING)
@unittest.skipUnless(LARGE, "the LiteLLM proxy is slow to start: set OPENAGENTIC_TEST_LARGE=1")
class LiteLLMInFrontOfAimock(unittest.IsolatedAsyncioTestCase):
    proxy: ClassVar[peers.Peer]

    @classmethod
    def setUpClass(cls) -> None:
        upstream = cls.enterClassContext(peers.aimock(FIXTURES, "-c", "7"))
        folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.proxy = cls.enterClassContext(peers.litellm(upstream.url, folder))

    def provider(self) -> OpenAICompatibleProvider:
        return OpenAICompatibleProvider(base_url=self.proxy.url + "/v1", api_key="sk-test")

    async def both(self, text: str, tools: Any = ()) -> tuple[ModelOutput, list[Any]]:
        provider = self.provider()
        whole = await provider.complete(model="relay", messages=ask(text), tools=tools)
        events = [event async for event in provider.stream(model="relay", messages=ask(text), tools=tools)]
        provider.http.close()
        assert isinstance(events[-1], Done) and events[-1].output is not None
        output = events[-1].output
        self.assertEqual(output.assistant_text or "", whole.assistant_text or "")
        self.assertEqual([call.arguments for call in output.tool_calls], [call.arguments for call in whole.tool_calls])
        return output, events

    async def test_text_comes_in_pieces_and_usage_with_it(self) -> None:
        output, events = await self.both("plain")
        self.assertEqual("".join(event.delta for event in events if isinstance(event, TextDelta)), PLAIN)
        self.assertIsNotNone(output.usage)

    async def test_parallel_calls_survive_the_rewriting(self) -> None:
        output, _ = await self.both("three calls", TOOLS)
        expected = [
            ("Read", {"file_path": "a.txt"}),
            ("Read", {"file_path": "b.txt"}),
            ("Glob", {"pattern": "**/*.py"}),
        ]
        self.assertEqual([(call.name, call.arguments) for call in output.tool_calls], expected)

    async def test_reasoning_is_never_text(self) -> None:
        output, _ = await self.both("think")
        self.assertEqual((output.assistant_text, output.reasoning), ("The answer is 4.", "Two and two are four."))

    async def test_errors_keep_their_status(self) -> None:
        for text, status in (("limited", 429), ("refused", 401)):
            with self.assertRaises(ProviderHTTPError) as raised:
                await self.provider().complete(model="relay", messages=ask(text))
            self.assertEqual(raised.exception.status, status)
        self.assertEqual([thread for thread in threading.enumerate() if "openagentic" in thread.name], [])


if __name__ == "__main__":
    unittest.main()
