"""Chat completions over real sockets: the request, the result, and that nothing is left behind."""

from __future__ import annotations

import json
import os
import unittest

from openagentic_sdk.errors import OptionsError, ProviderConnectionError
from openagentic_sdk.providers.base import Done, TextDelta, ToolCall, ToolCallReady
from openagentic_sdk.providers.openai import OpenAIProvider
from openagentic_sdk.providers.openai_compatible import AzureOpenAIProvider, OpenAICompatibleProvider

from .server import Connection, Request, Server, delta, sse

USAGE = {"prompt_tokens": 3, "completion_tokens": 2}
HELLO = [{"role": "user", "content": "hi"}]
CALL = {"id": "a", "type": "function", "function": {"name": "Read", "arguments": '{"x": 1}'}}


def answer(connection: Connection, request: Request) -> None:
    """Send text and a call, in pieces or whole as requested."""
    if request.json.get("stream"):
        pieces = [
            delta("Hel", role="assistant"),
            delta("lo"),
            delta(tool_calls=[{**CALL, "index": 0, "function": {"name": "Read", "arguments": '{"x"'}}]),
            delta(tool_calls=[{"index": 0, "function": {"arguments": ": 1}"}}]),
            delta(finish="tool_calls"),
            {"choices": [], "usage": USAGE},
        ]
        connection.stream(sse(*pieces))
    else:
        message = {"role": "assistant", "content": "Hello", "tool_calls": [CALL]}
        body = {"model": "m", "choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": USAGE}
        connection.reply(json.dumps(body).encode())


class ChatEndToEnd(unittest.IsolatedAsyncioTestCase):
    async def test_text_comes_as_it_arrives_then_the_call_then_the_whole_answer(self) -> None:
        with Server(answer) as server:
            provider = OpenAICompatibleProvider(base_url=server.url + "/v1")
            events = [event async for event in provider.stream(model="m", messages=HELLO)]
        self.assertEqual(events[:2], [TextDelta("Hel"), TextDelta("lo")])
        self.assertEqual(events[2], ToolCallReady(ToolCall("a", "Read", {"x": 1})))
        assert isinstance(events[3], Done) and events[3].output is not None
        self.assertEqual(events[3].output.assistant_text, "Hello")
        self.assertEqual(events[3].output.usage, USAGE)

    async def test_complete_gives_the_same_answer_as_stream_over_the_same_connection(self) -> None:
        with Server(answer) as server:
            provider = OpenAICompatibleProvider(base_url=server.url + "/v1/")
            whole = await provider.complete(model="m", messages=HELLO)
            events = [event async for event in provider.stream(model="m", messages=HELLO)]
            provider.http.close()
        assert isinstance(events[-1], Done)
        self.assertEqual(events[-1].output, whole)
        self.assertEqual(server.connections, 1)
        self.assertEqual({request.path for request in server.requests}, {"/v1/chat/completions"})

    async def test_a_local_server_is_asked_without_a_key(self) -> None:
        with Server(answer) as server:
            await OpenAICompatibleProvider(base_url=server.url).complete(model="m", messages=HELLO)
        self.assertNotIn("authorization", server.requests[0].headers)

    async def test_the_key_goes_as_bearer_or_bare_in_the_header_that_was_named(self) -> None:
        with Server(answer) as server:
            await OpenAICompatibleProvider(base_url=server.url).complete(model="m", messages=HELLO, api_key="sk-1\n")
            bare = OpenAICompatibleProvider(base_url=server.url, api_key="sk-2", api_key_header="api-key")
            await bare.complete(model="m", messages=HELLO)
        self.assertEqual(server.requests[0].headers["authorization"], "Bearer sk-1")
        self.assertEqual(server.requests[1].headers["api-key"], "sk-2")
        self.assertNotIn("authorization", server.requests[1].headers)

    async def test_azure_is_asked_at_its_deployment(self) -> None:
        with Server(answer) as server:
            azure = AzureOpenAIProvider(endpoint=server.url, api_version="2024-10-21", api_key="k")
            await azure.complete(model="my deployment", messages=HELLO)
        self.assertEqual(
            server.requests[0].path, "/openai/deployments/my%20deployment/chat/completions?api-version=2024-10-21"
        )
        self.assertEqual(server.requests[0].headers["api-key"], "k")

    async def test_without_a_key_openai_names_the_variable_to_set(self) -> None:
        key = os.environ.pop("OPENAI_API_KEY", None)
        if key is not None:
            self.addCleanup(os.environ.__setitem__, "OPENAI_API_KEY", key)
        with self.assertRaisesRegex(OptionsError, "OPENAI_API_KEY"):
            await OpenAIProvider().complete(model="m", messages=HELLO)

    async def test_an_endpoint_that_is_not_there_is_one_sentence(self) -> None:
        with Server(answer) as server:
            url = server.url
        with self.assertRaisesRegex(ProviderConnectionError, "cannot be reached.*base_url"):
            await OpenAICompatibleProvider(base_url=url).complete(model="m", messages=HELLO)


class InjectedTransports(unittest.IsolatedAsyncioTestCase):
    async def test_plain_callables_take_the_place_of_the_sockets(self) -> None:
        asked: list[tuple[str, dict[str, str], dict[str, object]]] = []

        def transport(url: str, headers: dict[str, str], payload: dict[str, object]) -> dict[str, object]:
            asked.append((url, headers, payload))
            return {"choices": [{"message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}]}

        def stream_transport(url: str, headers: dict[str, str], payload: dict[str, object]) -> list[bytes]:
            asked.append((url, headers, payload))
            return sse(delta("Hel"), delta("lo"), delta(finish="stop"))

        provider = OpenAIProvider(transport=transport, stream_transport=stream_transport)
        whole = await provider.complete(model="m", messages=HELLO, api_key="sk-1")
        events = [event async for event in provider.stream(model="m", messages=HELLO, api_key="sk-1")]
        self.assertEqual(whole.assistant_text, "Hello")
        self.assertEqual([event.delta for event in events if isinstance(event, TextDelta)], ["Hel", "lo"])
        self.assertEqual(asked[0][0], "https://api.openai.com/v1/chat/completions")
        self.assertEqual(asked[0][1]["Authorization"], "Bearer sk-1")
        self.assertNotIn("stream", asked[0][2])
        self.assertIs(asked[1][2]["stream"], True)


if __name__ == "__main__":
    unittest.main()
