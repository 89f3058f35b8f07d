"""Bedrock's Converse API: the contract of providers, requests that AWS's own model accepts, frames cut anywhere."""

from __future__ import annotations

import importlib.util
import json
import os
import unittest
from typing import Any
from unittest import skipUnless

from openagentic_sdk.errors import GarbledResponseError, OptionsError, ProviderError
from openagentic_sdk.providers.base import ModelOutput, Provider
from openagentic_sdk.providers.chat_request import RequestSettings
from openagentic_sdk.providers.clouds.converse import BedrockConverseProvider
from openagentic_sdk.providers.clouds.event_stream import EventStreamReader
from openagentic_sdk.providers.named import find_provider
from openagentic_sdk.providers.wire.http import HttpTransport
from openagentic_sdk.providers.wire.reading import Reading
from openagentic_sdk.testing import provider_contract

from .server import Connection, Request
from .test_clouds import KEYS, message, refuse
from .test_contract import Played, Turn, arguments_of

HAS_BOTOCORE = importlib.util.find_spec("botocore") is not None
TOOL = {"type": "function", "function": {"name": "Read", "description": "Reads.", "parameters": {"type": "object"}}}
PICTURE = {"type": "image", "media_type": "image/png", "data": "AAAA"}
PDF = {"type": "file", "media_type": "application/pdf", "name": "a.pdf", "data": "JVBE"}


def frame(kind: str, **payload: Any) -> bytes:
    return message(json.dumps(payload).encode(), message_type="event", event_type=kind, content_type="application/json")


def block(place: int, delta: dict[str, Any], start: dict[str, Any] | None = None) -> list[bytes]:
    """One block in pieces: text in two halves, anything else whole."""
    deltas = [delta]
    if "text" in delta:
        half = len(delta["text"]) // 2
        deltas = [{"text": delta["text"][:half]}, {"text": delta["text"][half:]}]
    return [
        *([frame("contentBlockStart", contentBlockIndex=place, start=start)] if start else []),
        *(frame("contentBlockDelta", contentBlockIndex=place, delta=one) for one in deltas),
        frame("contentBlockStop", contentBlockIndex=place),
    ]


def provider(**settings: Any) -> BedrockConverseProvider:
    return BedrockConverseProvider(region="eu-west-1", credentials=KEYS, settings=RequestSettings(**settings))


def read(data: list[bytes]) -> ModelOutput:
    reader, reading = EventStreamReader(is_plain=True), new_reading()
    for chunk in data:
        reading.take(reader.feed(chunk))
    reading.take(reader.close())
    return reading.finish()[1]


def new_reading() -> Reading:
    return provider().prepare("m", [], (), stream=True)[1]


class Converse(Played, provider_contract.ProviderContract):
    def provider(self, url: str, http: HttpTransport) -> Provider:
        return BedrockConverseProvider(region="eu-west-1", credentials=KEYS, base_url=url, http=http)

    def _play(self, connection: Connection, request: Request, turn: Turn) -> None:
        if refuse(connection, turn):
            return
        if request.path.endswith("/converse"):
            connection.reply(json.dumps(self.body(turn)).encode())
            return
        after = (turn.get("error") or {}).get("after")
        frames = self.frames(turn if after is None else {**turn, "text": turn["text"][:after]})
        connection.head(Content_Type="application/vnd.amazon.eventstream", Transfer_Encoding="chunked")
        if self.spoil is not None:
            frames = [self.spoil(b"".join(frames))]
        for piece in frames if after is None else frames[: len(frames) // 2]:
            for half in (piece[:11], piece[11:]):
                if half:
                    connection.chunk(half)
        connection.send(b"0\r\n\r\n")

    def frames(self, turn: Turn) -> list[bytes]:
        frames, place = [frame("messageStart", role="assistant")], 0
        if turn.get("reasoning"):
            frames += block(place, {"reasoningContent": {"text": turn["reasoning"]}})
            place += 1
        if turn.get("text"):
            frames += block(place, {"text": turn["text"]})
            place += 1
        for call in turn.get("tool_calls") or ():
            start = {"toolUse": {"toolUseId": call["id"], "name": call["name"]}}
            frames += block(place, {"toolUse": {"input": arguments_of(call)}}, start)
            place += 1
        reason = "tool_use" if turn.get("tool_calls") else "end_turn"
        return [*frames, frame("messageStop", stopReason=reason), frame("metadata", usage=self.usage(turn))]

    def body(self, turn: Turn) -> dict[str, Any]:
        content: list[dict[str, Any]] = []
        if turn.get("reasoning"):
            content.append({"reasoningContent": {"reasoningText": {"text": turn["reasoning"]}}})
        if turn.get("text"):
            content.append({"text": turn["text"]})
        for call in turn.get("tool_calls") or ():
            raw = call.get("raw_arguments")
            given = raw if raw is not None else json.loads(arguments_of(call))
            content.append({"toolUse": {"toolUseId": call["id"], "name": call["name"], "input": given}})
        reason = "tool_use" if turn.get("tool_calls") else "end_turn"
        return {
            "output": {"message": {"role": "assistant", "content": content}},
            "stopReason": reason,
            "usage": self.usage(turn),
        }

    def usage(self, turn: Turn) -> dict[str, int]:
        usage = turn.get("usage") or {}
        counts = {"inputTokens": usage.get("input_tokens"), "outputTokens": usage.get("output_tokens")}
        return {key: value for key, value in counts.items() if value is not None}


class Requests(unittest.TestCase):
    def conversation(self, **extras: Any) -> list[dict[str, Any]]:
        calls = [
            {"id": name, "type": "function", "function": {"name": "Read", "arguments": '{"p": 1}'}} for name in "ab"
        ]
        return [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "?"}, PICTURE, PDF]},
            {"role": "assistant", "content": "Reading.", "tool_calls": calls, **extras},
            {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "one"}, PICTURE]},
            {"role": "tool", "tool_call_id": "b", "content": "Error (ToolError): gone"},
            {"role": "user", "content": "Go on."},
        ]

    def test_a_conversation_is_written_as_the_api_has_it(self) -> None:
        request = provider(max_tokens=5, temperature=0.5, stop=["x"], tool_choice="Read").prepare(
            "amazon.nova-pro-v1:0", self.conversation(), (TOOL,), stream=True
        )[0]
        self.assertEqual([turn["role"] for turn in request["messages"]], ["user", "assistant", "user"])
        results = [part["toolResult"] for part in request["messages"][2]["content"][:2]]
        self.assertEqual([result.get("status") for result in results], [None, "error"])
        self.assertEqual(request["messages"][2]["content"][2], {"text": "Go on."})
        self.assertEqual(request["toolConfig"]["toolChoice"], {"tool": {"name": "Read"}})
        self.assertEqual(request["inferenceConfig"], {"maxTokens": 5, "temperature": 0.5, "stopSequences": ["x"]})

    def test_settings_without_a_field_in_the_api_are_refused(self) -> None:
        for settings in ({"seed": 1}, {"reasoning_effort": "low"}, {"response_format": {"type": "json_object"}}):
            with self.assertRaisesRegex(OptionsError, "additionalModelRequestFields"):
                provider(**settings).prepare("m", [{"role": "user", "content": "x"}], (), stream=True)
        sound = {"type": "audio", "media_type": "audio/wav", "data": "UklG"}
        with self.assertRaisesRegex(OptionsError, "cannot be sent to Bedrock's Converse API"):
            provider().prepare("m", [{"role": "user", "content": [sound]}], (), stream=True)

    @skipUnless(HAS_BOTOCORE, "botocore is not installed")
    def test_botocores_model_of_the_api_accepts_the_requests(self) -> None:
        from botocore.session import Session
        from botocore.validate import validate_parameters

        shape = Session().get_service_model("bedrock-runtime").operation_model("ConverseStream").input_shape
        thought = {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "c2ln"}}}
        kept = [thought, {"text": "Reading."}, {"toolUse": {"toolUseId": "a"}}, {"toolUse": {"toolUseId": "b"}}]
        here = {"converse_content": kept, "origin": provider().origin}
        for extras in ({}, here):
            for choice in (None, "auto", "required", "Read", "none"):
                request = provider(max_tokens=5, tool_choice=choice).prepare(
                    "m", self.conversation(**extras), (TOOL,), stream=True
                )[0]
                validate_parameters({"modelId": "m", **request}, shape)
                self.assertEqual(thought in request["messages"][1]["content"], bool(extras))

    def test_it_has_a_name_of_its_own(self) -> None:
        before = os.environ.get("AWS_REGION")
        os.environ["AWS_REGION"] = "eu-west-1"
        try:
            self.assertIsInstance(find_provider("bedrock-converse"), BedrockConverseProvider)
        finally:
            os.environ.pop("AWS_REGION")
            if before is not None:
                os.environ["AWS_REGION"] = before


class Answers(unittest.TestCase):
    frames = (
        frame("messageStart", role="assistant"),
        *block(0, {"reasoningContent": {"text": "Hm."}}),
        frame("contentBlockDelta", contentBlockIndex=0, delta={"reasoningContent": {"signature": "c2ln"}}),
        *block(1, {"text": "Reading."}),
        *block(2, {"toolUse": {"input": '{"p": 1}'}}, {"toolUse": {"toolUseId": "a", "name": "Read"}}),
        frame("messageStop", stopReason="tool_use"),
        frame("metadata", usage={"inputTokens": 5, "outputTokens": 2, "cacheReadInputTokens": 1}),
    )

    def test_a_stream_is_the_same_wherever_it_is_cut_and_none_when_it_breaks_off(self) -> None:
        data = b"".join(self.frames)
        whole = read([data])
        [call] = whole.tool_calls
        self.assertEqual((call.name, call.arguments, whole.reasoning), ("Read", {"p": 1}, "Hm."))
        assert whole.extras is not None and whole.usage is not None
        self.assertEqual(whole.extras["converse_content"][0]["reasoningContent"]["reasoningText"]["signature"], "c2ln")
        self.assertEqual((whole.usage["input_tokens"], whole.usage["cache_read_input_tokens"]), (5, 1))
        for place in range(0, len(data), 7):
            self.assertEqual(read([data[:place], data[place:]]), whole)
        end = data.index(frame("messageStop", stopReason="tool_use"))
        for place in range(0, end, 13):
            with self.assertRaises(ProviderError):
                read([data[:place]])

    def test_uses_of_the_vendors_own_tools_are_not_calls_and_are_returned_unchanged(self) -> None:
        use = {"toolUseId": "s", "name": "nova_code_interpreter", "type": "server_tool_use"}
        result = {"toolUseId": "s", "status": "success", "type": "nova_code_interpreter_result"}
        held = [{"json": {"stdOut": "4"}}]
        streamed = [
            frame("messageStart", role="assistant"),
            *block(0, {"toolUse": {"input": '{"snippet": "2+2"}'}}, {"toolUse": use}),
            *block(1, {"toolResult": held}, {"toolResult": result}),
            *block(2, {"toolUse": {"input": "{}"}}, {"toolUse": {"toolUseId": "c", "name": "Read"}}),
            frame("messageStop", stopReason="tool_use"),
            frame("metadata", usage={}),
        ]
        said = [
            {"toolUse": {**use, "input": {"snippet": "2+2"}}},
            {"toolResult": {**result, "content": held}},
            {"toolUse": {"toolUseId": "c", "name": "Read", "input": {}}},
        ]
        whole = json.dumps({"output": {"message": {"content": said}}, "stopReason": "tool_use"}).encode()
        for data in (streamed, [whole]):
            output = read(data)
            self.assertEqual([call.tool_use_id for call in output.tool_calls], ["c"])
            call = {"id": "c", "type": "function", "function": {"name": "Read", "arguments": "{}"}}
            asked = {"role": "assistant", "content": None, "tool_calls": [call], **(output.extras or {})}
            sent = [{"role": "user", "content": "?"}, asked, {"role": "tool", "tool_call_id": "c", "content": "x"}]
            written = provider().prepare("m", sent, [TOOL], stream=True)[0]["messages"]
            self.assertEqual(written[1]["content"], said)
            self.assertEqual([one["toolResult"]["toolUseId"] for one in written[2]["content"]], ["c"])

    def test_an_answer_that_a_limit_or_filter_ended_runs_nothing(self) -> None:
        for reason in ("max_tokens", "guardrail_intervened", "content_filtered", "model_context_window_exceeded"):
            output = read([*self.frames[:-2], frame("messageStop", stopReason=reason)])
            self.assertIsNotNone(output.tool_calls[0].raw_arguments)
            self.assertEqual(output.refusal, reason in ("guardrail_intervened", "content_filtered"))

    def test_errors_in_the_stream_are_errors(self) -> None:
        for name, retryable in (("modelStreamErrorException", True), ("validationException", False)):
            error = message(b'{"message": "no"}', message_type="exception", exception_type=name)
            with self.assertRaises(ProviderError) as raised:
                read([*self.frames[:3], error])
            self.assertEqual(raised.exception.retryable, retryable)
        with self.assertRaisesRegex(GarbledResponseError, "two answers"):
            read([*self.frames[:3], *self.frames])

    def test_whatever_comes_only_provider_errors_come_out(self) -> None:
        odd: list[Any] = [
            None,
            0,
            "",
            "x",
            [],
            {},
            [None],
            {"toolUse": 5},
            {"text": 5},
            {"reasoningContent": [1]},
            True,
        ]
        for value in odd:
            for kind in ("messageStart", "contentBlockStart", "contentBlockDelta", "messageStop", "metadata", "other"):
                for key in ("start", "delta", "contentBlockIndex", "stopReason", "usage"):
                    try:
                        read([frame(kind, **{key: value}), *self.frames])
                    except ProviderError:
                        continue
        for value in odd:
            body = {"output": {"message": {"content": [value]}}, "stopReason": "end_turn", "usage": value}
            for whole in (body, {"output": value}, {**body, "stopReason": value}):
                try:
                    reading = new_reading()
                    reading.take_whole(whole)
                    reading.finish()
                except ProviderError:
                    continue


if __name__ == "__main__":
    unittest.main()
