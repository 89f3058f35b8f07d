"""Requests: each setting under the endpoint's name for it, and conversations repaired so that the endpoint accepts them."""

from __future__ import annotations

import base64
import json
import tracemalloc
import unittest
from dataclasses import replace
from typing import Any

from openagentic_sdk.errors import OptionsError
from openagentic_sdk.providers.anthropic import AnthropicProvider
from openagentic_sdk.providers.base import ProviderSession
from openagentic_sdk.providers.chat_request import (
    BETWEEN,
    NO_RESULT,
    RequestSettings,
    build_chat_request,
    encode_request,
    repair_messages,
)
from openagentic_sdk.providers.clouds.gemini import GeminiProvider
from openagentic_sdk.providers.openai import OpenAIProvider
from openagentic_sdk.providers.openai_compatible import OpenAICompatibleProvider
from openagentic_sdk.providers.openai_responses import OpenAIResponsesProvider
from openagentic_sdk.providers.quirks import AZURE, GEMINI, LOCAL, MISTRAL, OPENAI, STANDARD, quirks_for

Message = dict[str, Any]


def user(text: str = "hi") -> Message:
    return {"role": "user", "content": text}


def tool(name: str, **function: Any) -> Message:
    return {"type": "function", "function": {"name": name, "description": "d", **function}}


def call(call_id: str, name: str = "Read", arguments: Any = '{"x": 1}', **extras: Any) -> Message:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}, **extras}


def assistant(*calls: Message, content: Any = None, **extras: Any) -> Message:
    return {"role": "assistant", "content": content, "tool_calls": list(calls), **extras}


def result(call_id: str, content: str = "ok") -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def build(
    messages: list[Message] | None = None,
    tools: list[Message] | None = None,
    *,
    quirks: Any = STANDARD,
    stream: bool = False,
    **settings: Any,
) -> dict[str, Any]:
    payload, _ = build_chat_request(
        model="m",
        messages=messages or [user()],
        tools=tools or [],
        settings=RequestSettings(**settings),
        quirks=quirks,
        origin="host",
        stream=stream,
    )
    return payload


class Settings(unittest.TestCase):
    def test_only_what_was_set_is_sent(self) -> None:
        self.assertEqual(build(), {"model": "m", "messages": [user()]})

    def test_every_setting_has_its_field(self) -> None:
        payload = build(
            tools=[tool("Read")],
            stream=True,
            max_tokens=5,
            temperature=0.0,
            top_p=0.5,
            seed=0,
            stop=["END"],
            tool_choice="required",
            parallel_tool_calls=False,
            response_format={"type": "json_object"},
            reasoning_effort="low",
            extra_body={"user": "u", "top_p": None},
        )
        del payload["messages"], payload["tools"]
        expected = {
            "model": "m",
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": 5,
            "temperature": 0.0,
            "seed": 0,
            "stop": ["END"],
            "tool_choice": "required",
            "parallel_tool_calls": False,
            "response_format": {"type": "json_object"},
            "reasoning_effort": "low",
            "user": "u",
        }
        self.assertEqual(payload, expected)

    def test_the_output_limit_has_the_name_that_the_endpoint_expects(self) -> None:
        self.assertEqual(build(quirks=OPENAI, max_tokens=5)["max_completion_tokens"], 5)
        self.assertEqual(build(quirks=LOCAL, max_tokens=5)["max_tokens"], 5)

    def test_usage_is_not_asked_for_where_that_is_refused(self) -> None:
        self.assertNotIn("stream_options", build(quirks=MISTRAL, stream=True))

    def test_one_tool_can_be_forced_where_the_object_form_is_not_known(self) -> None:
        tools = [tool("Read"), tool("Glob")]
        forced = build(tools=tools, quirks=STANDARD, tool_choice="Glob")
        self.assertEqual(forced["tool_choice"], {"type": "function", "function": {"name": "Glob"}})
        local = build(tools=tools, quirks=LOCAL, tool_choice="Glob")
        self.assertEqual(local["tool_choice"], "required")
        self.assertEqual([entry["function"]["name"] for entry in local["tools"]], ["Glob"])
        with self.assertRaisesRegex(OptionsError, "Grep"):
            build(tools=tools, tool_choice="Grep")

    def test_parameters_are_always_the_schema_of_an_object(self) -> None:
        (entry,) = build(tools=[tool("Read", parameters={"$schema": "x"}, strict=True)])["tools"]
        self.assertEqual(entry["function"]["parameters"], {"type": "object", "properties": {}})
        self.assertNotIn("strict", entry["function"])
        self.assertIs(build(tools=[tool("Read", strict=True)], quirks=OPENAI)["tools"][0]["function"]["strict"], True)

    def test_profiles_are_found_by_the_host(self) -> None:
        table = {
            "https://api.openai.com/v1": OPENAI,
            "https://x.openai.azure.com/openai/v1": AZURE,
            "http://localhost:11434/v1": LOCAL,
            "http://[::1]:8080/v1": LOCAL,
            "https://api.mistral.ai/v1": MISTRAL,
            "https://generativelanguage.googleapis.com/v1beta/openai": GEMINI,
            "https://api.openai.com.evil.example/v1": STANDARD,
            "https://openrouter.ai/api/v1": STANDARD,
            "http://[": STANDARD,
        }
        for url, quirks in table.items():
            self.assertIs(quirks_for(url), quirks, url)

    def test_with_settings_changes_a_copy_that_shares_the_connections(self) -> None:
        provider = OpenAICompatibleProvider(base_url="http://h/v1")
        other = provider.with_settings(temperature=0.5)
        self.assertEqual((provider.settings.temperature, other.settings.temperature), (None, 0.5))
        self.assertIs(provider.http, other.http)


class Names(unittest.TestCase):
    def test_names_that_endpoints_refuse_are_sent_differently_and_read_back(self) -> None:
        long, dotted = "a" * 80, "server.tool/ä"
        payload, names = build_chat_request(
            model="m",
            messages=[user(), assistant(call("a", dotted)), result("a")],
            tools=[tool(long), tool(dotted), tool("Read")],
            settings=RequestSettings(tool_choice=dotted),
            quirks=STANDARD,
            origin="h",
            stream=False,
        )
        sent = [entry["function"]["name"] for entry in payload["tools"]]
        for name in sent:
            self.assertRegex(name, r"^[a-zA-Z0-9_-]{1,64}$")
        self.assertEqual([names.real(name) for name in sent], [long, dotted, "Read"])
        self.assertEqual(payload["messages"][1]["tool_calls"][0]["function"]["name"], sent[1])
        self.assertEqual(payload["tool_choice"]["function"]["name"], sent[1])
        self.assertEqual(names.real("unheard_of"), "unheard_of")


class Repairs(unittest.TestCase):
    def repaired(self, *messages: Message, quirks: Any = STANDARD) -> list[Message]:
        return repair_messages(messages, quirks=quirks, origin="host")

    def test_a_conversation_that_is_right_stays_unchanged(self) -> None:
        messages = [
            {"role": "system", "content": "s"},
            user(),
            assistant(call("a"), call("b")),
            result("a"),
            result("b"),
        ]
        self.assertEqual(self.repaired(*messages, user("go on")), [*messages, user("go on")])

    def test_a_call_without_a_result_gets_one_that_states_it_is_missing(self) -> None:
        repaired = self.repaired(user(), assistant(call("a"), call("b")), result("b"), user("and?"))
        self.assertEqual(repaired[2:], [result("a", NO_RESULT), result("b"), user("and?")])

    def test_results_are_put_right_after_their_calls_in_their_order(self) -> None:
        repaired = self.repaired(assistant(call("a"), call("b")), user("wait"), result("b", "B"), result("a", "A"))
        self.assertEqual(repaired[1:], [result("a", "A"), result("b", "B"), user("wait")])

    def test_results_without_a_call_and_second_results_are_left_out(self) -> None:
        repaired = self.repaired(result("x"), user(), assistant(call("a")), result("a", "1"), result("a", "2"))
        self.assertEqual(repaired[2:], [result("a", "1")])

    def test_duplicate_ids_are_made_unique(self) -> None:
        turn = [assistant(call("0")), result("0", "first"), assistant(call("0")), result("0", "second")]
        repaired = self.repaired(*turn)
        first, second = repaired[0]["tool_calls"][0]["id"], repaired[2]["tool_calls"][0]["id"]
        self.assertEqual((first, repaired[1]["tool_call_id"], repaired[1]["content"]), ("0", "0", "first"))
        self.assertNotEqual(second, "0")
        self.assertEqual((repaired[3]["tool_call_id"], repaired[3]["content"]), (second, "second"))
        self.assertEqual(repaired, self.repaired(*turn), "the same request is written identically each time")

    def test_two_calls_of_one_answer_with_the_same_id_get_a_result_each(self) -> None:
        repaired = self.repaired(assistant(call("a"), call("a", "Glob")), result("a"))
        self.assertEqual(len({entry["id"] for entry in repaired[0]["tool_calls"]}), 2)
        self.assertEqual([message["role"] for message in repaired[1:]], ["tool", "tool"])

    def test_ids_that_look_like_those_that_are_made_end_no_request(self) -> None:
        for taken in (("a_2", "a", "a"), ("", "call_1", "call_2", "", ""), ("a_3", "a_4", "a", "a", "a")):
            for quirks in (STANDARD, MISTRAL, OPENAI):
                entries = self.repaired(assistant(*map(call, taken)), quirks=quirks)[0]["tool_calls"]
                self.assertEqual(len({entry["id"] for entry in entries}), len(taken))

    def test_ids_are_as_long_as_the_endpoint_takes_them_and_stay_apart(self) -> None:
        long = ["chatcmpl-tool-" + "0" * 32, "chatcmpl-tool-" + "0" * 31 + "1", "functions.Bash:0", "functions.Bash.0"]
        said = [user(), assistant(*map(call, long)), *map(result, long)]
        chat = self.repaired(*said, quirks=OPENAI)
        ids = [entry["id"] for entry in chat[1]["tool_calls"]]
        self.assertEqual((len(set(ids)), max(map(len, ids))), (4, 40))
        self.assertEqual([message["tool_call_id"] for message in chat[2:]], ids)
        self.assertEqual([entry["id"] for entry in self.repaired(*said)[1]["tool_calls"]], long)
        payload = AnthropicProvider(api_key="k").prepare("claude-opus-4-7", said, (), stream=False)[0]
        sent, results = payload["messages"][1]["content"], payload["messages"][2]["content"]
        self.assertEqual(len({block["id"] for block in sent}), 4)
        for use, answer in zip(sent, results, strict=True):
            self.assertRegex(use["id"], "^[a-zA-Z0-9_-]{1,64}$")
            self.assertEqual(answer["tool_use_id"], use["id"])

    def test_arguments_are_always_the_json_of_an_object(self) -> None:
        for arguments, sent in (
            ({"x": 1}, {"x": 1}),
            ("{cut", {}),
            ("", {}),
            (None, {}),
            ("[1]", {}),
            ('{"y":2}', {"y": 2}),
        ):
            (entry,) = self.repaired(assistant(call("a", arguments=arguments)))[0]["tool_calls"]
            self.assertEqual(json.loads(entry["function"]["arguments"]), sent)

    def test_empty_content_beside_calls_is_what_the_endpoint_takes(self) -> None:
        for content in (None, ""):
            self.assertIsNone(self.repaired(assistant(call("a"), content=content))[0]["content"])
            self.assertEqual(self.repaired(assistant(call("a"), content=content), quirks=LOCAL)[0]["content"], "")
        self.assertEqual(self.repaired(assistant(call("a"), content="text"), quirks=LOCAL)[0]["content"], "text")

    def test_an_assistant_message_with_nothing_in_it_is_left_out(self) -> None:
        self.assertEqual(self.repaired(user(), {"role": "assistant", "content": ""}), [user()])

    def test_opaque_fields_go_back_to_where_they_came_from_and_to_nobody_else(self) -> None:
        extras = {"reasoning_content": "Hm.", "reasoning_details": [{"x": 1}], "unknown": 1}
        signature = {"extra_content": {"google": {"thought_signature": "s"}}}
        here = self.repaired(assistant(call("a", **signature), origin="host", **extras))[0]
        self.assertEqual((here["reasoning_content"], here["reasoning_details"]), ("Hm.", [{"x": 1}]))
        self.assertEqual(here["tool_calls"][0]["extra_content"], signature["extra_content"])
        self.assertNotIn("unknown", here)
        elsewhere = self.repaired(assistant(call("a"), origin="other.example", **extras))[0]
        self.assertEqual(set(elsewhere), {"role", "content", "tool_calls"})
        self.assertNotIn("reasoning_content", self.repaired(assistant(call("a"), **extras), quirks=OPENAI)[0])

    def test_opaque_blocks_that_nobody_can_read_are_left_out_and_no_session_ends_over_them(self) -> None:
        for provider, field, block in (
            (AnthropicProvider, "anthropic_content", {"type": "thinking", "id": "b"}),
            (OpenAIResponsesProvider, "responses_items", {"type": "web_search_call", "id": "b", "call_id": None}),
            (OpenAIResponsesProvider, "responses_items", {"type": "web_search_call_output", "call_id": "b"}),
            (GeminiProvider, "gemini_parts", {"functionCall": {"id": "b"}}),
        ):
            for key in (*block, None):
                for wrong in ([], {}, 1, ["x"], {"a": []}):
                    bad = wrong if key is None else {**block, key: wrong}
                    message = {"role": "assistant", "content": "said", "tool_calls": [call("b")], field: [bad]}
                    with self.subTest(field=field, block=bad):
                        endpoint = provider(base_url="http://host")
                        payload, _, _ = endpoint.prepare("m", [user(), message, result("b")], [], stream=True)
                        self.assertIn("said", json.dumps(payload))

    def test_mistral_gets_short_ids_names_in_results_and_an_assistant_between_result_and_user(self) -> None:
        repaired = self.repaired(assistant(call("call_abc")), result("call_abc"), user("more"), quirks=MISTRAL)
        short = repaired[0]["tool_calls"][0]["id"]
        self.assertRegex(short, r"^[a-zA-Z0-9]{9}$")
        self.assertEqual((repaired[1]["tool_call_id"], repaired[1]["name"]), (short, "Read"))
        self.assertEqual(repaired[2:], [{"role": "assistant", "content": BETWEEN}, user("more")])

    def test_system_messages_are_joined_or_renamed_where_that_is_wanted(self) -> None:
        system = [{"role": "system", "content": "a"}, {"role": "system", "content": "b"}]
        self.assertEqual(self.repaired(*system, quirks=LOCAL), [{"role": "system", "content": "a\n\nb"}])
        developer = self.repaired(*system, quirks=replace(STANDARD, system_role="developer"))
        self.assertEqual([message["role"] for message in developer], ["developer", "developer"])

    def test_text_that_utf_8_cannot_carry_is_made_so(self) -> None:
        payload = build([user("a\ud800b \ud83d\ude00"), assistant(call("a", arguments={"k\udfff": "\udc00"}))])
        encoded = encode_request(payload)
        self.assertEqual(json.loads(encoded)["messages"][0]["content"], "a\ufffdb 😀")

    def test_a_value_without_a_json_form_is_refused(self) -> None:
        for value in (float("nan"), object(), b"x"):
            with self.assertRaisesRegex(OptionsError, "JSON"):
                encode_request({"x": value})


def prepared(provider: Any, messages: list[Message], tools: Any = ()) -> dict[str, Any]:
    payload, _, _ = provider.prepare("m", messages, tools, stream=True)
    encode_request(payload)
    return dict(payload)


CONVERSATION = [
    {"role": "system", "content": "s"},
    user("look"),
    assistant(call("a"), call("b", "Glob", "{}"), content="Looking."),
    result("a", "A"),
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]},
    result("b", "B"),
    user("and?"),
]


class MessagesRequests(unittest.TestCase):
    def provider(self, **options: Any) -> AnthropicProvider:
        return AnthropicProvider(base_url="https://h", api_key="k", **options)

    def test_results_come_first_in_the_user_turn_after_their_calls(self) -> None:
        payload = prepared(self.provider(cache_ttl=None), CONVERSATION, [tool("Read"), tool("Glob")])
        self.assertEqual(payload["system"], [{"type": "text", "text": "s"}])
        self.assertEqual([turn["role"] for turn in payload["messages"]], ["user", "assistant", "user"])
        kinds = [[block["type"] for block in turn["content"]] for turn in payload["messages"]]
        self.assertEqual(kinds[1], ["text", "tool_use", "tool_use"])
        self.assertEqual(kinds[2], ["tool_result", "tool_result", "image", "text"])
        self.assertEqual(payload["messages"][1]["content"][1]["input"], {"x": 1})
        source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
        self.assertEqual(payload["messages"][2]["content"][2]["source"], source)
        self.assertEqual(payload["tools"][0]["input_schema"], {"type": "object", "properties": {}})
        self.assertGreater(payload["max_tokens"], 0)

    def test_cache_marks_are_at_the_ends_and_at_most_four(self) -> None:
        payload = prepared(self.provider(), CONVERSATION * 3, [tool("Read"), tool("Glob")])
        self.assertEqual(json.dumps(payload).count("cache_control"), 4)
        self.assertIn("cache_control", payload["messages"][-1]["content"][-1])
        self.assertIn("cache_control", payload["tools"][-1])
        hour = prepared(self.provider(cache_ttl="1h"), [user()])
        self.assertEqual(hour["messages"][0]["content"][0]["cache_control"], {"type": "ephemeral", "ttl": "1h"})

    def test_thinking_goes_back_as_it_came_with_its_own_calls_only(self) -> None:
        blocks = [
            {"type": "thinking", "thinking": "Hm.", "signature": "s"},
            {"type": "tool_use", "id": "a", "name": "Read", "input": {"x": 1}},
        ]
        message = assistant(call("a"), anthropic_content=blocks, origin="h")
        sent = prepared(self.provider(cache_ttl=None), [user(), message, result("a")])["messages"][1]["content"]
        self.assertEqual(sent, blocks)
        for changed in (
            assistant(call("other"), anthropic_content=blocks, origin="h"),
            assistant(call("a"), anthropic_content=blocks, origin="elsewhere"),
        ):
            sent = prepared(self.provider(), [user(), changed])["messages"][1]["content"]
            self.assertEqual([block["type"] for block in sent], ["tool_use"])

    def test_choices_and_limits_have_their_own_names(self) -> None:
        settings = RequestSettings(tool_choice="Read", parallel_tool_calls=False, max_tokens=7, stop=["x"])
        payload = prepared(self.provider(settings=settings), [user()], [tool("Read")])
        choice = {"type": "tool", "name": "Read", "disable_parallel_tool_use": True}
        self.assertEqual((payload["tool_choice"], payload["max_tokens"], payload["stop_sequences"]), (choice, 7, ["x"]))


class ResponsesRequests(unittest.TestCase):
    def provider(self, **options: Any) -> OpenAIResponsesProvider:
        return OpenAIResponsesProvider(base_url="https://h/v1", api_key="k", **options)

    def test_messages_become_items(self) -> None:
        payload = prepared(self.provider(), CONVERSATION, [tool("Read"), tool("Glob")])
        kinds = [item.get("type", item.get("role")) for item in payload["input"]]
        outputs = ["function_call_output"] * 2
        self.assertEqual(
            kinds, ["system", "user", "message", "function_call", "function_call", *outputs, "user", "user"]
        )
        self.assertEqual(payload["input"][3]["call_id"], payload["input"][5]["call_id"])
        self.assertIs(payload["store"], False)
        self.assertEqual(payload["tools"][0]["name"], "Read")
        self.assertEqual(payload["include"], ["reasoning.encrypted_content"])

    def test_reasoning_models_are_asked_for_reasoning_that_can_be_sent_back(self) -> None:
        provider = self.provider(reasoning_summary="auto", settings=RequestSettings(reasoning_effort="low"))
        payload, _, _ = provider.prepare("gpt-5-mini", [user()], [], stream=False)
        self.assertEqual(payload["include"], ["reasoning.encrypted_content"])
        self.assertEqual(payload["reasoning"], {"effort": "low", "summary": "auto"})

    def test_an_answer_of_text_alone_goes_back_as_a_message(self) -> None:
        said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        payload = OpenAIResponsesProvider(api_key="k").prepare("gpt-4o", said, (), stream=False)[0]
        self.assertEqual([item["role"] for item in payload["input"]], ["user", "assistant"])

    def test_the_key_of_a_sessions_cache_goes_only_to_the_vendor_that_supports_it(self) -> None:
        state = ProviderSession("alike")
        for provider, known in (
            (OpenAIResponsesProvider(api_key="k"), True),
            (OpenAIProvider(api_key="k"), True),
            (OpenAIResponsesProvider(api_key="k", base_url="http://127.0.0.1:1"), False),
            (OpenAICompatibleProvider(base_url="http://127.0.0.1:1"), False),
        ):
            payload = provider.for_session(state).prepare("m", [{"role": "user", "content": "a"}], (), stream=False)[0]
            self.assertEqual(payload.get("prompt_cache_key"), "alike" if known else None, provider.base_url)
            self.assertNotIn("prompt_cache_key", provider.prepare("m", [], (), stream=False)[0])

    def test_reasoning_goes_back_in_its_place(self) -> None:
        reasoning = {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "e"}
        items = [reasoning, {"type": "function_call", "call_id": "a"}, {"type": "message"}]
        message = assistant(call("a"), content="Hi.", responses_items=items, origin="h")
        sent = prepared(self.provider(), [user(), message, result("a")])["input"][1:]
        self.assertEqual([item["type"] for item in sent[:3]], ["reasoning", "function_call", "message"])
        moved = assistant(call("a"), content="Hi.", responses_items=items, origin="elsewhere")
        sent = prepared(self.provider(), [user(), moved, result("a")])["input"][1:]
        self.assertEqual([item["type"] for item in sent[:2]], ["message", "function_call"])

    def test_a_response_format_has_its_own_place(self) -> None:
        response_format = {"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "strict": True}}
        formatted = self.provider().with_response_format(response_format)
        assert formatted is not None
        self.assertEqual(prepared(formatted, [user()])["text"]["format"]["name"], "n")
        self.assertIsNone(AnthropicProvider(api_key="k").with_response_format(response_format))


class BigBodies(unittest.TestCase):
    def test_a_body_with_pictures_is_the_one_that_json_would_write(self) -> None:
        picture = "A" * 200_000
        for text in ("short", "ü" * 90_000, 'with "quotes" ' * 9_000, "\ud800" * 90_000, picture, picture + "\n"):
            content = [{"type": "text", "text": text}, {"type": "x", "data": picture}, {"data": "B" * 70_000}]
            body = {"model": "m", "messages": [{"role": "user", "content": content}]}
            expected = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
            self.assertEqual(
                encode_request(body).decode(), expected.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            )

    def test_a_picture_costs_at_most_four_times_its_size(self) -> None:
        size = 2_000_000
        data = base64.b64encode(bytes(size)).decode()
        part = {"type": "image", "media_type": "image/png", "data": data}
        for provider in (
            OpenAICompatibleProvider(base_url="http://h"),
            AnthropicProvider(api_key="k"),
            OpenAIResponsesProvider(api_key="k"),
        ):
            tracemalloc.start()
            self.addCleanup(tracemalloc.stop)
            payload, _, _ = provider.prepare("m", [{"role": "user", "content": [part]}], (), stream=True)
            encode_request(payload)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            self.assertLess(peak + len(data), 4.3 * size, provider.name)


class Constructors(unittest.TestCase):
    def test_an_argument_that_nobody_takes_is_named(self) -> None:
        with self.assertRaisesRegex(TypeError, "AnthropicProvider takes no argument apikey"):
            AnthropicProvider(apikey="k")


if __name__ == "__main__":
    unittest.main()
