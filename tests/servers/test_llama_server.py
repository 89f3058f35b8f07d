"""Real agents on llama.cpp's server with a tiny random model that calls tools by itself."""

from __future__ import annotations

import json
import tempfile
import unittest
from pathlib import Path
from typing import Any, ClassVar

from openagentic_sdk import run
from openagentic_sdk.errors import ContextLengthError
from openagentic_sdk.events import Result, ToolUse
from openagentic_sdk.options import OpenAgenticOptions
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.providers.anthropic import AnthropicProvider
from openagentic_sdk.providers.base import Done, ModelOutput, TextDelta
from openagentic_sdk.providers.chat_request import RequestSettings
from openagentic_sdk.providers.openai_compatible import OpenAICompatibleProvider
from openagentic_sdk.providers.openai_responses import OpenAIResponsesProvider
from openagentic_sdk.sessions.folds.usage import normalize_usage
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.tools.glob import GlobTool
from openagentic_sdk.tools.read import ReadTool
from tests.size import LARGE

from . import peers

NEEDED = (*peers.LLAMA_MODELS.values(), peers.LLAMA_TEMPLATE)
INSTALLED = (peers.LLAMA_SERVER.exists() or peers.SMOLLM_PYTHON.exists()) and all(path.exists() for path in NEEDED)
MISSING = "there is no llama-server: python3 -m tests.servers.peers llama-server (or smollm, and tiny-models)"
SEEDS = range(8)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "Read",
            "description": "Read a file.",
            "parameters": {
                "type": "object",
                "properties": {
                    "file_path": {"type": "string"},
                    "limit": {"type": "integer", "minimum": 1, "maximum": 9},
                },
                "required": ["file_path", "limit"],
            },
        },
    }
]
HELLO = [{"role": "user", "content": "hi"}]


@unittest.skipUnless(LARGE, "a model takes minutes: set OPENAGENTIC_TEST_LARGE=1")
@unittest.skipUnless(INSTALLED, MISSING)
class LlamaCase(unittest.IsolatedAsyncioTestCase):
    model: ClassVar[str] = "mix"
    peer: ClassVar[peers.Peer]

    @classmethod
    def setUpClass(cls) -> None:
        cls.peer = cls.enterClassContext(peers.llama_server(cls.model))

    def chat(self, **settings: Any) -> OpenAICompatibleProvider:
        provider = OpenAICompatibleProvider(base_url=self.peer.url + "/v1", settings=RequestSettings(**settings))
        self.addCleanup(provider.http.close)
        return provider

    async def both(self, provider: Any, tools: Any = ()) -> tuple[ModelOutput, list[Any]]:
        """The streamed answer, after checking that the same seed gives the same answer unstreamed."""
        whole = await provider.complete(model="tiny", messages=HELLO, tools=tools)
        events = [event async for event in provider.stream(model="tiny", messages=HELLO, tools=tools)]
        assert isinstance(events[-1], Done) and events[-1].output is not None
        output = events[-1].output
        self.assertEqual(output.assistant_text, whole.assistant_text)
        found = [(call.name, call.arguments, call.raw_arguments) for call in output.tool_calls]
        self.assertEqual(found, [(call.name, call.arguments, call.raw_arguments) for call in whole.tool_calls])
        return output, events


class Text(LlamaCase):
    model = "text"

    async def test_text_and_usage(self) -> None:
        for seed in SEEDS:
            output, events = await self.both(self.chat(seed=seed, max_tokens=60))
            self.assertEqual("".join(e.delta for e in events if isinstance(e, TextDelta)), output.assistant_text or "")
            self.assertGreater((normalize_usage(output.usage) or {})["input_tokens"], 0)

    async def test_the_other_two_protocols(self) -> None:
        responses = OpenAIResponsesProvider(base_url=self.peer.url + "/v1", settings=RequestSettings(max_tokens=40))
        messages = AnthropicProvider(base_url=self.peer.url, api_key="k", settings=RequestSettings(max_tokens=40))
        for provider in (responses, messages):
            self.addCleanup(provider.http.close)
            events = [event async for event in provider.stream(model="tiny", messages=HELLO)]
            assert isinstance(events[-1], Done) and events[-1].output is not None
            self.assertEqual(
                "".join(e.delta for e in events if isinstance(e, TextDelta)), events[-1].output.assistant_text or ""
            )

    async def test_a_prompt_that_is_too_long_is_recognized(self) -> None:
        long = [{"role": "user", "content": "x " * 20_000}]
        with self.assertRaises(ContextLengthError):
            await self.chat().complete(model="tiny", messages=long)


class Calls(LlamaCase):
    model = "call"

    async def test_parallel_calls_come_whole_or_are_marked_as_cut(self) -> None:
        for seed in SEEDS:
            output, _ = await self.both(self.chat(seed=seed, max_tokens=300), TOOLS)
            self.assertTrue(output.tool_calls)
            self.assertEqual(len({call.tool_use_id for call in output.tool_calls}), len(output.tool_calls))
            for call in output.tool_calls[:-1]:
                self.assertIsNone(call.raw_arguments)
                self.assertEqual(set(call.arguments), {"file_path", "limit"})
            if output.finish_reason != "length":
                self.assertIsNone(output.tool_calls[-1].raw_arguments)


class Agents(LlamaCase):
    async def test_agent_runs_end_with_a_log_that_holds_together(self) -> None:
        for seed in SEEDS:
            store = MemorySessionStore()
            with tempfile.TemporaryDirectory() as cwd:
                Path(cwd, "a.txt").write_text("hello")
                options = OpenAgenticOptions(
                    provider=self.chat(seed=seed, max_tokens=120, temperature=1.0),
                    model="tiny",
                    cwd=cwd,
                    project_dir=cwd,
                    setting_sources=(),
                    system_prompt="You are a test.",
                    session_store=store,
                    permission_gate=PermissionGate(permission_mode="bypass"),
                    tools=(ReadTool(), GlobTool()),
                    max_steps=4,
                )
                result = await run(prompt=f"Go {seed}.", options=options)
            self.assertIn(result.stop_reason, ("end", "max_steps"), result.error_message)
            events = store.read_events(result.session_id)
            self.assertIsInstance(events[-1], Result)
            uses = [event for event in events if isinstance(event, ToolUse)]
            json.dumps([dict(event.input) for event in uses])


if __name__ == "__main__":
    unittest.main()
