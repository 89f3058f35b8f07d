"""Every setting is sent in the protocol's own form or refused before the call, and everything in an answer is kept."""

from __future__ import annotations

import json
import tempfile
import unittest
import warnings
from typing import Any

from openagentic_sdk import run
from openagentic_sdk.errors import OptionsError, ProviderHTTPError
from openagentic_sdk.events import AssistantMessage, ModelResponse
from openagentic_sdk.options import OpenAgenticOptions
from openagentic_sdk.providers.anthropic import AnthropicProvider
from openagentic_sdk.providers.chat_request import RequestSettings
from openagentic_sdk.providers.claude_models import claude_family
from openagentic_sdk.providers.openai import OpenAIProvider
from openagentic_sdk.providers.openai_compatible import OpenAICompatibleProvider
from openagentic_sdk.providers.openai_responses import OpenAIResponsesProvider
from openagentic_sdk.providers.wire.http import HttpTransport
from openagentic_sdk.sessions.memory import MemorySessionStore

from .server import Connection, Request, Server, sse

TOOL = {"type": "function", "function": {"name": "Read", "parameters": {}}}
TEXT = {"type": "text", "text": "What is this?"}
IMAGE = {"type": "image", "media_type": "image/png", "name": "a.png", "data": "AAAA"}
IMAGE_URL = {"type": "image", "url": "https://h/a.png"}
PDF = {"type": "file", "media_type": "application/pdf", "name": "a.pdf", "data": "JVBE"}
NOTES = {"type": "file", "media_type": "text/plain", "name": "a.txt", "data": "aGk="}
SOUND = {"type": "audio", "media_type": "audio/wav", "name": "a.wav", "data": "UklG"}


def providers(settings: RequestSettings | None = None) -> dict[str, Any]:
    return {
        "chat": OpenAIProvider(api_key="k", settings=settings),
        "messages": AnthropicProvider(api_key="k", settings=settings, cache_ttl=None),
        "responses": OpenAIResponsesProvider(api_key="k", settings=settings),
    }


def payload_of(provider: Any, *messages: Any, tools: Any = (), model: str = "m") -> Any:
    return provider.prepare(model, list(messages), tools, stream=True)[0]


def sent_content(name: str, *parts: Any) -> Any:
    payload = payload_of(providers()[name], {"role": "user", "content": [TEXT, *parts]})
    return (payload.get("messages") or payload.get("input"))[0]["content"][1:]


class PartsInEachForm(unittest.TestCase):
    def test_each_protocol_has_its_own_form(self) -> None:
        data_url, pdf_url = "data:image/png;base64,AAAA", "data:application/pdf;base64,JVBE"
        base64 = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
        pdf = {"type": "base64", "media_type": "application/pdf", "data": "JVBE"}
        notes = {"type": "text", "media_type": "text/plain", "data": "hi"}
        table: list[tuple[str, Any, Any]] = [
            ("chat", IMAGE, {"type": "image_url", "image_url": {"url": data_url}}),
            ("chat", IMAGE_URL, {"type": "image_url", "image_url": {"url": "https://h/a.png"}}),
            ("chat", PDF, {"type": "file", "file": {"filename": "a.pdf", "file_data": pdf_url}}),
            ("chat", SOUND, {"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}}),
            ("messages", IMAGE, {"type": "image", "source": base64}),
            ("messages", IMAGE_URL, {"type": "image", "source": {"type": "url", "url": "https://h/a.png"}}),
            ("messages", PDF, {"type": "document", "source": pdf, "title": "a.pdf"}),
            ("messages", NOTES, {"type": "document", "source": notes, "title": "a.txt"}),
            ("responses", IMAGE, {"type": "input_image", "image_url": data_url, "detail": "auto"}),
            ("responses", PDF, {"type": "input_file", "filename": "a.pdf", "file_data": pdf_url}),
        ]
        for name, part, form in table:
            with self.subTest(name, part=part["type"]):
                self.assertEqual(sent_content(name, part), [form])
        detailed = {"type": "image_url", "image_url": {"url": data_url, "detail": "high"}}
        self.assertEqual(sent_content("chat", detailed), [detailed])
        self.assertEqual(sent_content("messages", detailed), [{"type": "image", "source": base64}])

    def test_a_part_that_cannot_be_carried_is_named_before_the_call(self) -> None:
        table: list[tuple[str, Any, str]] = [
            ("messages", SOUND, "audio part 'a.wav'"),
            ("responses", SOUND, "audio part 'a.wav'"),
            ("messages", {**IMAGE, "media_type": "image/tiff"}, "a.png.*JPEG"),
            ("messages", {**PDF, "media_type": "application/zip", "name": "a.zip"}, "a.zip"),
            ("chat", {"type": "audio", "media_type": "audio/ogg", "data": "AAAA"}, "WAV or MP3"),
            ("chat", {"type": "file", "url": "https://h/a.pdf"}, "data instead of a URL"),
            ("chat", {"type": "video", "data": "AAAA"}, "not 'video'"),
            ("responses", {"type": "image", "data": "no base64!"}, "base64"),
            ("messages", {"type": "image", "url": "file:///etc/passwd"}, "http"),
            ("chat", 5, "int"),
        ]
        for name, part, told in table:
            with self.subTest(name, part=part), self.assertRaisesRegex(OptionsError, told):
                sent_content(name, part)
        deepseek = OpenAICompatibleProvider(base_url="https://api.deepseek.com")
        with self.assertRaisesRegex(OptionsError, "api.deepseek.com"):
            payload_of(deepseek, {"role": "user", "content": [IMAGE]})
        with self.assertRaisesRegex(OptionsError, "narrator"):
            payload_of(deepseek, {"role": "narrator", "content": "x"})

    def test_pictures_in_results_are_sent_where_the_protocol_allows_them(self) -> None:
        call = {"id": "a", "type": "function", "function": {"name": "Read", "arguments": "{}"}}
        conversation = [
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "Here:"}, IMAGE]},
        ]
        chat = payload_of(providers()["chat"], *conversation)["messages"]
        self.assertEqual(chat[2]["content"], "Here:\n\n[a.png: in the next message]")
        self.assertEqual([part["type"] for part in chat[3]["content"]], ["text", "image_url"])
        block = payload_of(providers()["messages"], *conversation)["messages"][2]["content"][0]
        self.assertEqual([part["type"] for part in block["content"]], ["text", "image"])
        item = payload_of(providers()["responses"], *conversation)["input"][2]
        self.assertEqual([part["type"] for part in item["output"]], ["input_text", "input_image"])


class SettingsInEachForm(unittest.TestCase):
    def test_settings_without_a_field_in_the_protocol_are_refused(self) -> None:
        user = {"role": "user", "content": "x"}
        for name, setting in (
            ("messages", {"seed": 1}),
            ("responses", {"seed": 1}),
            ("responses", {"stop": ["x"]}),
            ("messages", {"response_format": {"type": "json_object"}}),
        ):
            with self.subTest(name, setting=setting), self.assertRaises(OptionsError):
                payload_of(providers(RequestSettings(**setting))[name], user)  # type: ignore[arg-type]
        mistral = OpenAICompatibleProvider(base_url="https://api.mistral.ai/v1", settings=RequestSettings(seed=1))
        self.assertEqual(payload_of(mistral, user)["random_seed"], 1)
        self.assertEqual(payload_of(providers()["responses"], {"role": "user", "content": ""}, user)["input"][1:], [])

    def test_effort_and_schemas_are_written_as_claude_wants_them(self) -> None:
        schema = {"type": "object", "properties": {}}
        wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
        settings = RequestSettings(reasoning_effort="high", response_format=wanted)
        payload = payload_of(providers(settings)["messages"], {"role": "user", "content": "x"}, model="claude-opus-4-8")
        self.assertEqual(payload["thinking"], {"type": "adaptive"})
        self.assertEqual(payload["output_config"]["effort"], "high")
        self.assertEqual(payload["output_config"]["format"], {"type": "json_schema", "schema": schema})
        old = payload_of(
            providers(RequestSettings(reasoning_effort="high"))["messages"],
            {"role": "user", "content": "x"},
            model="claude-3-7-sonnet-20250219",
        )
        self.assertEqual(old["thinking"], {"type": "enabled", "budget_tokens": 8192})
        self.assertNotIn("output_config", old)

    def test_settings_that_a_family_of_models_rejects_are_omitted_with_a_notice(self) -> None:
        user = {"role": "user", "content": "x"}
        thinking, smallest = ({"type": "enabled", "budget_tokens": most_tokens} for most_tokens in (2000, 1024))
        table: list[tuple[str, Any, dict[str, Any], str, Any]] = [
            ("claude-opus-4-7", None, {"temperature": 0.2}, "temperature", None),
            ("claude-sonnet-5", None, {"top_p": 0.2}, "top_p", None),
            ("claude-opus-5", thinking, {}, "thinking", {"type": "adaptive"}),
            ("claude-opus-5-5", None, {"tool_choice": "required"}, "tool_choice", {"type": "auto"}),
            ("claude-fable-5-1", {"type": "disabled"}, {}, "thinking", None),
            ("claude-sonnet-4-5", thinking, {"temperature": 0.2}, "temperature", None),
            ("claude-opus-4-5", None, {"temperature": 0.2, "top_p": 0.3}, "top_p", None),
            ("claude-sonnet-4-5", {"type": "enabled", "budget_tokens": 9}, {}, "thinking", smallest),
            ("claude-sonnet-4-5", {**smallest, "display": "omitted"}, {}, "thinking", smallest),
        ]
        for model, thinks, settings, field, value in table:
            with self.subTest(model, settings=settings):
                provider = AnthropicProvider(api_key="k", thinking=thinks, settings=RequestSettings(**settings))
                payload, reading, _ = provider.prepare(model, [user], [TOOL], stream=True)
                self.assertEqual(payload.get(field), value)
                self.assertTrue(reading.notices)
        kept = AnthropicProvider(api_key="k", thinking=thinking, settings=RequestSettings(tool_choice="auto"))
        payload, reading, _ = kept.prepare("claude-sonnet-4-5", [user], [TOOL], stream=True)
        self.assertEqual((payload["thinking"], reading.notices), (thinking, []))

    def test_names_of_models_are_read_in_every_form(self) -> None:
        for name, adaptive in (
            ("claude-opus-4-7", True),
            ("us.anthropic.claude-opus-4-6-v1:0", True),
            ("claude-sonnet-4-5@20250929", False),
            ("claude-3-5-haiku-latest", False),
            ("anthropic/claude-3.7-sonnet", False),
            ("claude-opus-latest", True),
        ):
            self.assertEqual(claude_family(name).adaptive_thinking, adaptive, name)
        self.assertTrue(claude_family("some-deployment").sampling)

    def test_tools_of_the_vendor_pass_through_and_no_tool_is_renamed(self) -> None:
        search = {"type": "web_search_20250305", "name": "web_search"}
        for name, provider in providers(RequestSettings(extra_tools=[search])).items():
            with self.subTest(name):
                tools = payload_of(provider, {"role": "user", "content": "x"}, tools=[TOOL])["tools"]
                self.assertEqual(tools[1], search)
                self.assertEqual(payload_of(provider, {"role": "user", "content": "x"})["tools"], [search])
                with self.assertRaisesRegex(OptionsError, "function with a name"):
                    payload_of(provider, {"role": "user", "content": "x"}, tools=[{"type": "function", "function": {}}])


class ReasoningOfResponses(unittest.IsolatedAsyncioTestCase):
    def test_it_is_asked_for_under_every_name_but_those_of_models_without_it(self) -> None:
        provider = providers()["responses"]
        table = {"o3": 1, "openai/gpt-5": 1, "ft:o4-mini:acme": 1, "my-deployment": 1, "gpt-4o": 0, "openai/gpt-4.1": 0}
        for model, wanted in table.items():
            asked = payload_of(provider, {"role": "user", "content": "x"}, model=model).get("include")
            self.assertEqual(bool(asked), bool(wanted), model)

    async def test_an_endpoint_that_refuses_it_is_asked_without_it_from_then_on(self) -> None:
        def script(connection: Connection, request: Request) -> None:
            if "include" in request.json:
                connection.reply(b'{"error": {"message": "Encrypted content is not supported"}}', "400 No")
            else:
                output = [{"type": "message", "content": [{"type": "output_text", "text": "Hi"}]}]
                connection.reply(json.dumps({"id": "r", "status": "completed", "output": output}).encode())

        http = HttpTransport(proxies={})
        self.addCleanup(http.close)
        with Server(script) as server:
            provider = OpenAIResponsesProvider(base_url=server.url, http=http)
            for _ in range(2):
                output = await provider.complete(model="deployed-4o", messages=[{"role": "user", "content": "x"}])
                self.assertEqual(output.assistant_text, "Hi")
            with self.assertRaises(ProviderHTTPError):
                await provider.fetch(server.url, {"include": 1})
        self.assertEqual(len(server.requests), 4)

    def test_reasoning_and_the_vendors_calls_go_back_as_pairs_or_not_at_all(self) -> None:
        reasoning = {"type": "reasoning", "id": "rs_1", "encrypted_content": "e", "summary": []}
        search = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
        shell, ran = (
            {"type": "shell_call", "call_id": "s1"},
            ["reasoning", "shell_call", "shell_call_output", "message"],
        )
        said = {"role": "assistant", "content": "Found.", "origin": "api.openai.com"}
        user = {"role": "user", "content": "x"}
        for kept, kinds in (
            ([reasoning, search, {"type": "message"}], ["reasoning", "web_search_call", "message"]),
            ([reasoning, {**reasoning, "id": "tco_1"}, {"type": "message"}], ["reasoning", "reasoning", "message"]),
            ([reasoning, shell, {**shell, "type": "shell_call_output"}, {"type": "message"}], ran),
            ([{"type": "message"}, reasoning, shell], ["message"]),
            ([reasoning, {**shell, "type": "local_shell_call"}, {"type": "message"}], ["reasoning", "message"]),
            ([{"type": "message"}, reasoning], ["message"]),
            ([{"type": "message"}, reasoning, reasoning], ["message"]),
            ([{**reasoning, "encrypted_content": None}, {"type": "message"}], ["message"]),
            ([reasoning, {"type": "function_call", "call_id": "gone"}, {"type": "message"}], ["message"]),
        ):
            sent = payload_of(providers()["responses"], user, {**said, "responses_items": kept}, user)["input"][1:-1]
            self.assertEqual([item["type"] for item in sent], kinds)

    def test_a_stored_response_is_named_and_not_sent_again(self) -> None:
        user = {"role": "user", "content": "x"}
        said = {"role": "assistant", "content": "Hi", "responses_id": "resp_2", "origin": "api.openai.com"}
        provider = OpenAIResponsesProvider(api_key="k", store=True, previous_response_id="resp_1")
        first, second = payload_of(provider, user), payload_of(provider, user, said, user)
        self.assertEqual((first["previous_response_id"], len(first["input"])), ("resp_1", 1))
        self.assertEqual((second["previous_response_id"], len(second["input"])), ("resp_2", 1))
        self.assertIs(second["store"], True)


class PartsOfAnswers(unittest.IsolatedAsyncioTestCase):
    async def test_a_call_of_a_tool_with_a_grammar_is_received_and_returned_as_its_text(self) -> None:
        def delta(**call: Any) -> dict[str, Any]:
            return {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, **call}]}}]}

        pieces = [
            delta(id="call_1", type="custom", custom={"name": "math", "input": '{"4 '}),
            delta(custom={"input": "+ 4"}),
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
        ]
        provider = OpenAICompatibleProvider(base_url="https://h/v1", stream_transport=lambda *asked: sse(*pieces))
        events = [event async for event in provider.stream(model="m", messages=[{"role": "user", "content": "4?"}])]
        (call,) = events[-1].output.tool_calls
        self.assertEqual((call.name, call.arguments, call.raw_arguments), ("math", {"input": '{"4 + 4'}, None))
        function = {"name": call.name, "arguments": json.dumps(call.arguments)}
        asked = {**call.extras, "id": "call_1", "type": "function", "function": function}
        messages = [
            {"role": "assistant", "content": None, "tool_calls": [asked]},
            {"role": "tool", "tool_call_id": "call_1", "content": "8"},
        ]
        sent = payload_of(provider, *messages)["messages"]
        custom = {"name": "math", "input": '{"4 + 4'}
        self.assertEqual(sent[0]["tool_calls"], [{"id": "call_1", "type": "custom", "custom": custom}])
        self.assertEqual(sent[1]["tool_call_id"], "call_1")
        empty = {"custom": {"name": "", "input": ""}, "function": {"name": "", "arguments": ""}}
        both = [
            delta(**{**empty, "id": "c", "function": {"name": "look", "arguments": '{"at"'}}),
            delta(**{**empty, "function": {"name": "", "arguments": ": 1}"}}),
            delta(**empty),
            pieces[-1],
        ]
        snowflake = OpenAICompatibleProvider(base_url="https://h/v1", stream_transport=lambda *asked: sse(*both))
        events = [event async for event in snowflake.stream(model="m", messages=[{"role": "user", "content": "4?"}])]
        (call,) = events[-1].output.tool_calls
        self.assertEqual((call.name, call.arguments, call.extras), ("look", {"at": 1}, None))
        elsewhere = OpenAICompatibleProvider(base_url="https://other/v1")
        self.assertEqual(payload_of(elsewhere, *messages)["messages"][0]["tool_calls"][0]["function"], function)

    async def test_it_is_kept_in_the_log(self) -> None:
        facts = {"id": "chatcmpl-1", "model": "served", "service_tier": "flex", "system_fingerprint": "fp"}
        note = {"type": "url_citation", "url_citation": {"url": "https://h"}}
        said = {"delta": {"content": "Hi", "annotations": [note]}, "logprobs": {"content": [{"token": "Hi"}]}}
        last = {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 1, "cost": 0.25}}
        stream = sse({**facts, "choices": [said]}, {**facts, **last})
        headers = {"x_ratelimit_remaining_tokens": "99"}
        http = HttpTransport(proxies={})
        self.addCleanup(http.close)
        with Server(lambda c, r: c.stream(stream, **headers)) as server, tempfile.TemporaryDirectory() as cwd:
            settings = RequestSettings(keep_raw=True)
            provider = OpenAICompatibleProvider(base_url=server.url, http=http, settings=settings)
            options = OpenAgenticOptions(
                provider=provider, model="asked", cwd=cwd, project_dir=cwd, session_store=MemorySessionStore()
            )
            result = await run(prompt="x", options=options)
        response = next(event for event in result.events if isinstance(event, ModelResponse))
        self.assertEqual((response.response_id, response.model, response.cost_usd), ("chatcmpl-1", "served", 0.25))
        self.assertEqual((response.service_tier, response.system_fingerprint), ("flex", "fp"))
        self.assertEqual(response.rate_limits, {"x-ratelimit-remaining-tokens": "99"})
        self.assertEqual((response.logprobs, len(response.raw)), ([{"token": "Hi"}], 2))
        message = next(event for event in result.events if isinstance(event, AssistantMessage))
        self.assertEqual(list(message.citations or ()), [note])

    async def test_numbers_that_no_log_can_hold_are_left_out(self) -> None:
        body = (
            b'data: {"choices": [{"delta": {"content": "Hi"}, "logprobs": {"content": [{"logprob": -Infinity}]}}]}\n\n'
        )
        last = b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": {"cost": 1e999}}\n\n'
        http = HttpTransport(proxies={})
        self.addCleanup(http.close)
        with Server(lambda c, r: c.stream([body, last])) as server, tempfile.TemporaryDirectory() as cwd:
            provider = OpenAICompatibleProvider(base_url=server.url, http=http)
            options = OpenAgenticOptions(
                provider=provider, model="m", cwd=cwd, project_dir=cwd, session_store=MemorySessionStore()
            )
            result = await run(prompt="x", options=options)
        self.assertEqual((result.final_text, result.cost_usd), ("Hi", None))

    async def test_a_notice_is_a_warning_and_an_event_in_the_log(self) -> None:
        chunks = [
            {"type": "message_start", "message": {"id": "m", "content": []}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Hi"}},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
            {"type": "message_stop"},
        ]
        http = HttpTransport(proxies={})
        self.addCleanup(http.close)
        with (
            Server(lambda c, r: c.stream(sse(*chunks, done=False))) as server,
            warnings.catch_warnings(record=True) as w,
        ):
            warnings.simplefilter("always")
            settings = RequestSettings(temperature=0.5)
            provider = AnthropicProvider(base_url=server.url, api_key="k", settings=settings, http=http)
            output = await provider.complete(model="claude-opus-5", messages=[{"role": "user", "content": "x"}])
        self.assertIn("temperature", output.notices[0])
        self.assertTrue(any("temperature" in str(warning.message) for warning in w))


if __name__ == "__main__":
    unittest.main()
