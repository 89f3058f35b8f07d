"""Claude and Gemini in the clouds that serve them: signatures, framing and forms, compared with the vendors' packages."""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import json
import struct
import tempfile
import unittest
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import skipUnless
from zlib import crc32

from openagentic_sdk.errors import (
    GarbledResponseError,
    IncompleteResponseError,
    OptionsError,
    ProviderError,
    ProviderHTTPError,
    ProviderResponseError,
)
from openagentic_sdk.providers.base import Provider
from openagentic_sdk.providers.chat_request import RequestSettings
from openagentic_sdk.providers.clouds.aws import AwsCredentials, read_credentials, read_region, sign
from openagentic_sdk.providers.clouds.bedrock import BedrockProvider
from openagentic_sdk.providers.clouds.event_stream import EventStreamDecoder
from openagentic_sdk.providers.clouds.gemini import GeminiProvider
from openagentic_sdk.providers.clouds.vertex import VertexClaudeProvider, VertexGeminiProvider
from openagentic_sdk.providers.wire.exchange import Whole
from openagentic_sdk.providers.wire.http import HttpTransport
from openagentic_sdk.testing import provider_contract

from .server import Connection, Request, Server
from .test_contract import Messages, Played, Turn, arguments_of

HAS_BOTOCORE = importlib.util.find_spec("botocore") is not None
HAS_GENAI = importlib.util.find_spec("google") is not None and importlib.util.find_spec("google.genai") is not None
KEYS = AwsCredentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "a session's token")
TOOL = {"type": "function", "function": {"name": "Read", "description": "Reads.", "parameters": {"type": "object"}}}


def message(payload: bytes, **headers: str) -> bytes:
    """One message of AWS's framing, all of whose headers are text."""
    written = b"".join(
        bytes((len(name) + 1,)) + b":" + name.encode() + b"\7" + struct.pack(">H", len(value)) + value.encode()
        for name, value in ((name.replace("_", "-"), value) for name, value in headers.items())
    )
    prelude = struct.pack(">II", 16 + len(written) + len(payload), len(written))
    data = prelude + struct.pack(">I", crc32(prelude)) + written + payload
    return data + struct.pack(">I", crc32(data))


def chunk_message(event: Mapping[str, Any]) -> bytes:
    payload = json.dumps({"bytes": base64.b64encode(json.dumps(event).encode()).decode()}).encode()
    return message(payload, message_type="event", event_type="chunk", content_type="application/json")


def refuse(connection: Connection, turn: Turn) -> bool:
    """Play the turns that are not answers; return whether this was one."""
    error = turn.get("error") or {}
    if error.get("type") == "http":
        body = json.dumps({"error": {"message": error["message"]}}).encode()
        connection.reply(body, f"{error['status']} No")
        return True
    if turn.get("delay_s"):
        connection.wait_for_client_to_go(turn["delay_s"])
        return True
    return False


class Bedrock(Messages):
    def provider(self, url: str, http: HttpTransport) -> Provider:
        return BedrockProvider(region="eu-west-1", credentials=KEYS, base_url=url, http=http)

    def _play(self, connection: Connection, request: Request, turn: Turn) -> None:
        if refuse(connection, turn):
            return
        if request.path.endswith("/invoke"):
            connection.reply(json.dumps(self.body(turn)).encode())
            return
        after = (turn.get("error") or {}).get("after")
        said = turn if after is None else {**turn, "text": turn["text"][:after]}
        messages = [chunk_message(chunk) for chunk in self.chunks(said)]
        connection.head(Content_Type="application/vnd.amazon.eventstream", Transfer_Encoding="chunked")
        if self.spoil is not None:
            messages = [self.spoil(b"".join(messages))]
        for piece in messages if after is None else messages[: len(messages) // 2]:
            for half in (piece[:11], piece[11:]):
                if half:
                    connection.chunk(half)
        connection.send(b"0\r\n\r\n")


class VertexClaude(Messages):
    def provider(self, url: str, http: HttpTransport) -> Provider:
        return VertexClaudeProvider(project="p-1", region="europe-west1", api_key="ya29", base_url=url, http=http)


class Gemini(Played, provider_contract.ProviderContract):
    def provider(self, url: str, http: HttpTransport) -> Provider:
        return GeminiProvider(base_url=url, api_key="k", http=http)

    def _play(self, connection: Connection, request: Request, turn: Turn) -> None:
        if refuse(connection, turn):
            return
        if ":streamGenerateContent?alt=sse" in request.path:
            self._stream(connection, turn, (turn.get("error") or {}).get("after"))
        else:
            connection.reply(json.dumps(self.body(turn)).encode())

    def parts(self, turn: Turn) -> list[dict[str, Any]]:
        parts: list[dict[str, Any]] = []
        for text, mark in ((turn.get("reasoning"), {"thought": True}), (turn.get("text"), {})):
            parts += [{"text": text[n : n + 7], **mark} for n in range(0, len(text or ""), 7)]
        for call in turn.get("tool_calls") or ():
            raw = call.get("raw_arguments")
            args = raw if raw is not None else json.loads(arguments_of(call))
            parts.append({"functionCall": {"id": call["id"], "name": call["name"], "args": args}})
        return parts

    def chunks(self, turn: Turn) -> list[dict[str, Any]]:
        chunks = [{"candidates": [{"content": {"role": "model", "parts": [part]}}]} for part in self.parts(turn)]
        return [*chunks, {"candidates": [{"finishReason": "STOP"}], **self.usage(turn)}]

    def body(self, turn: Turn) -> dict[str, Any]:
        candidate = {"content": {"role": "model", "parts": self.parts(turn)}, "finishReason": "STOP"}
        return {"candidates": [candidate], **self.usage(turn)}

    def usage(self, turn: Turn) -> dict[str, Any]:
        usage = turn.get("usage")
        if not usage:
            return {}
        counts = {"promptTokenCount": usage["input_tokens"], "candidatesTokenCount": usage["output_tokens"]}
        return {"usageMetadata": counts}


class Signing(unittest.TestCase):
    def test_a_signature_is_the_published_one(self) -> None:
        # The example of AWS's documentation ("Create a signed AWS API request", the request to IAM).
        keys = AwsCredentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
        headers = sign(
            "GET",
            "https://iam.amazonaws.com/?Action=ListUsers&Version=2010-05-08",
            {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"},
            b"",
            credentials=keys,
            region="us-east-1",
            service="iam",
            now=datetime(2015, 8, 30, 12, 36, tzinfo=UTC),
        )
        signature = "5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7"
        self.assertEqual(headers["Authorization"].rpartition("=")[2], signature)

    @skipUnless(HAS_BOTOCORE, "botocore is not installed")
    def test_signatures_equal_botocores(self) -> None:
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.credentials import Credentials

        for path in (
            "/model/a.b-v1%3A0/invoke",
            "/model/arn%3Aaws%3Abedrock%3A%3Ax%2Fy/invoke-with-response-stream",
            "/~a b",
        ):
            for port in ("", ":8443", ":443"):
                for token in (None, "a token"):
                    with self.subTest(path=path, port=port, token=token):
                        url = f"https://bedrock-runtime.us-east-1.amazonaws.com{port}{path}"
                        sent = {"Content-Type": "application/json"}
                        request = AWSRequest("POST", url, headers=dict(sent), data=b'{"a": 1}')
                        SigV4Auth(Credentials("A", "s", token), "bedrock", "us-east-1").add_auth(request)
                        stamp = datetime.strptime(request.context["timestamp"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
                        ours = sign(
                            "POST", url, sent, b'{"a": 1}', credentials=AwsCredentials("A", "s", token),
                            region="us-east-1", service="bedrock", now=stamp,
                        )  # fmt: skip
                        self.assertEqual(ours["Authorization"], request.headers["Authorization"])

    def test_keys_come_from_the_environment_then_from_a_profile(self) -> None:
        with tempfile.TemporaryDirectory() as home:
            Path(home, ".aws").mkdir()
            Path(home, ".aws/credentials").write_text("[default]\naws_access_key_id=D\naws_secret_access_key=%d\n[w]\n")
            Path(home, ".aws/config").write_text(
                "[default]\nregion=eu-west-3\n[profile w]\nsso_session=s\n[profile r]\n"
            )
            env = {"HOME": home}
            keys = {"AWS_ACCESS_KEY_ID": "E", "AWS_SECRET_ACCESS_KEY": "e", "AWS_SESSION_TOKEN": "t"}
            self.assertEqual(read_credentials(environ={**env, **keys}), AwsCredentials("E", "e", "t"))
            self.assertEqual(read_credentials(environ=env), AwsCredentials("D", "%d"))
            self.assertEqual(read_credentials("default", {**env, **keys}), AwsCredentials("D", "%d"))
            self.assertEqual(read_region(environ=env), "eu-west-3")
            self.assertEqual(read_region(environ={**env, "AWS_REGION": "us-west-2"}), "us-west-2")
            for profile, words in (("w", "sso_session"), ("r", "has no keys"), ("gone", "has no keys")):
                with self.subTest(profile), self.assertRaisesRegex(OptionsError, words):
                    read_credentials(environ={**env, "AWS_PROFILE": profile})
            Path(home, ".aws/credentials").write_text("no section\n")
            with self.assertRaisesRegex(OptionsError, "cannot be read as AWS profiles"):
                read_credentials(environ=env)

    def test_a_secret_key_is_never_shown(self) -> None:
        self.assertNotIn(KEYS.secret_key, f"{KEYS!r} {KEYS}")
        self.assertNotIn("session's", repr(KEYS))


class Framing(unittest.TestCase):
    EVENTS = ({"type": "ping"}, {"type": "x", "text": "ü\u2028" * 50}, {"type": "message_stop"})

    def test_a_stream_is_the_same_wherever_it_is_cut(self) -> None:
        stream = b"".join(map(chunk_message, self.EVENTS))
        for size in (1, 2, 3, 11, 64, len(stream)):
            decoder = EventStreamDecoder()
            found = [event for at in range(0, len(stream), size) for event in decoder.feed(stream[at : at + size])]
            self.assertEqual([json.loads(event.data) for event in found], list(self.EVENTS))
            self.assertEqual(decoder.close(), [])

    def test_a_byte_that_changed_is_an_error_or_a_wait_and_never_another_event(self) -> None:
        stream = b"".join(map(chunk_message, self.EVENTS))
        for at in range(len(stream)):
            damaged = stream[:at] + bytes((stream[at] ^ 0x41,)) + stream[at + 1 :]
            decoder = EventStreamDecoder()
            try:
                found = [json.loads(event.data) for event in decoder.feed(damaged)]
            except ProviderResponseError:
                continue
            self.assertEqual(found, list(self.EVENTS[: len(found)]))
            self.assertLess(len(found), len(self.EVENTS))

    def test_messages_that_are_not_chunks_are_passed_over_and_odd_ones_refused(self) -> None:
        feed = EventStreamDecoder().feed
        self.assertEqual(feed(message(b"{}", message_type="event", event_type="initial-response")), [])
        for payload in (b"[1]", b"{}", b'{"bytes": 5}', b'{"bytes": "?"}', b"{", b'{"bytes": "/w=="}'):
            with self.subTest(payload=payload), contextlib.suppress(ProviderResponseError):
                odd = message(payload, message_type="event", event_type="chunk")
                self.assertEqual(EventStreamDecoder().feed(odd), [])

    @skipUnless(HAS_BOTOCORE, "botocore is not installed")
    def test_botocore_reads_the_same_from_the_same_bytes(self) -> None:
        from botocore.eventstream import EventStreamBuffer

        buffer = EventStreamBuffer()
        buffer.add_data(b"".join(map(chunk_message, self.EVENTS)))
        theirs = [json.loads(base64.b64decode(json.loads(one.payload)["bytes"])) for one in buffer]
        self.assertEqual(theirs, list(self.EVENTS))


class AtTheClouds(unittest.IsolatedAsyncioTestCase):
    def play(self, *answers: bytes, status: str = "200 OK") -> tuple[Server, HttpTransport]:
        left = list(answers)
        server = self.enterContext(Server(lambda c, r: c.reply(left.pop(0), status)))
        http = HttpTransport(proxies={})
        self.addCleanup(http.close)
        return server, http

    async def test_bedrock_is_asked_at_its_address_with_a_signature_over_the_very_body(self) -> None:
        answer = json.dumps(
            {"type": "message", "content": [{"type": "text", "text": "Yes."}], "stop_reason": "end_turn"}
        )
        server, http = self.play(answer.encode(), answer.encode())
        provider = BedrockProvider(region="eu-west-1", credentials=lambda: KEYS, base_url=server.url, http=http)
        messages = [{"role": "user", "content": "Ü?"}]
        done = await provider.complete(model="eu.anthropic.claude-v1:0", messages=messages)
        self.assertEqual(done.assistant_text, "Yes.")
        [request] = server.requests
        self.assertEqual(request.path, "/model/eu.anthropic.claude-v1%3A0/invoke")
        self.assertEqual(request.json["anthropic_version"], "bedrock-2023-05-31")
        self.assertNotIn("model", request.json)
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.assertNotIn("anthropic-version", headers)
        stamp = datetime.strptime(headers["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        again = sign(
            "POST", server.url + request.path, {"Content-Type": "application/json"}, request.body, credentials=KEYS,
            region="eu-west-1", service="bedrock", now=stamp,
        )  # fmt: skip
        self.assertEqual(headers["authorization"], again["Authorization"])
        self.assertEqual(headers["x-amz-security-token"], KEYS.session_token)
        keyed = BedrockProvider(region="eu-west-1", api_key="bedrock-key", base_url=server.url, http=http)
        await keyed.complete(model="m", messages=messages)
        headers = {name.lower(): value for name, value in server.requests[1].headers.items()}
        self.assertEqual(headers["authorization"], "Bearer bedrock-key")
        self.assertNotIn("x-amz-date", headers)

    async def test_an_exception_inside_a_stream_is_an_error_that_may_pass_or_not(self) -> None:
        for name, retryable in (("throttlingException", True), ("validationException", False)):
            exception = message(b'{"message": "No."}', message_type="exception", exception_type=name)
            server, http = self.play(chunk_message({"type": "message_start", "message": {"id": "a"}}) + exception)
            provider = BedrockProvider(region="eu-west-1", credentials=KEYS, base_url=server.url, http=http)
            with self.subTest(name), self.assertRaisesRegex(ProviderHTTPError, "No[.]") as raised:
                async for _ in provider.stream(model="m", messages=[{"role": "user", "content": "?"}]):
                    pass
            self.assertEqual(raised.exception.retryable, retryable)

    def test_an_invalid_region_or_project_is_refused_before_anything_is_sent(self) -> None:
        for make, words in (
            (lambda: BedrockProvider(region="../x"), "is not an AWS region"),
            (lambda: VertexClaudeProvider(project="a/b", region="global"), "is not a Google Cloud project"),
            (lambda: VertexGeminiProvider(project="ab", region="evil.example/"), "is not a Google Cloud region"),
        ):
            with self.assertRaisesRegex(OptionsError, words):
                make()
        place = VertexGeminiProvider(project="ab", region="global", api_key="t")
        expected = "https://aiplatform.googleapis.com/v1/projects/ab/locations/global/publishers/google/models/gemini-3"
        self.assertEqual(place.url("gemini-3"), expected + ":generateContent")

    async def test_vertex_gets_claudes_request_with_the_model_in_the_address(self) -> None:
        answer = {"type": "message", "content": [{"type": "text", "text": "Yes."}], "stop_reason": "end_turn"}
        server, http = self.play(json.dumps(answer).encode())
        provider = VertexClaudeProvider(
            project="p-1", region="us-east5", api_key="ya29.x", base_url=server.url, http=http
        )
        await provider.complete(model="claude-sonnet-4-5@20250929", messages=[{"role": "user", "content": "?"}])
        [request] = server.requests
        place = "/v1/projects/p-1/locations/us-east5/publishers/anthropic/models/claude-sonnet-4-5@20250929"
        self.assertEqual(request.path, place + ":rawPredict")
        self.assertEqual((request.json["anthropic_version"], request.json.get("model")), ("vertex-2023-10-16", None))
        self.assertIn("Bearer ya29.x", request.headers.values())


class GeminiForms(unittest.TestCase):
    def prepare(self, messages: list[dict[str, Any]], tools: Any = (TOOL,), **settings: Any) -> dict[str, Any]:
        provider = GeminiProvider(api_key="k", settings=RequestSettings(**settings))
        return provider.prepare("gemini-3-pro", messages, tools, stream=True)[0]

    def read(self, *chunks: dict[str, Any]) -> Any:
        _, reading, _ = GeminiProvider(api_key="k").prepare("m", [], (), stream=True)
        for chunk in chunks:
            reading.take_chunk(chunk)
        return reading.finish()[1]

    def test_parts_go_back_as_they_came_with_their_signatures(self) -> None:
        said = [
            {"text": "Let me see.", "thought": True},
            {"text": "Reading."},
            {"functionCall": {"name": "Read", "args": {"p": 1}}, "thoughtSignature": "c2ln"},
        ]
        done = self.read(
            *({"candidates": [{"content": {"parts": [part]}}]} for part in said),
            {"candidates": [{"finishReason": "STOP"}]},
        )
        [call] = done.tool_calls
        self.assertEqual((done.reasoning, done.assistant_text, call.arguments), ("Let me see.", "Reading.", {"p": 1}))
        function = {"name": "Read", "arguments": json.dumps(call.arguments)}
        assistant = {"role": "assistant", "content": "Reading.", **done.extras}
        assistant["tool_calls"] = [{"id": call.tool_use_id, "type": "function", "function": function}]
        result = {"role": "tool", "tool_call_id": call.tool_use_id, "content": "text"}
        contents = self.prepare([{"role": "user", "content": "?"}, assistant, result])["contents"]
        said[2]["functionCall"]["id"] = call.tool_use_id
        self.assertEqual(contents[1], {"role": "model", "parts": said})
        answered = {"id": call.tool_use_id, "name": "Read", "response": {"output": "text"}}
        self.assertEqual(contents[2], {"role": "user", "parts": [{"functionResponse": answered}]})
        assistant["origin"] = "elsewhere.example"
        contents = self.prepare([{"role": "user", "content": "?"}, assistant, result])["contents"]
        self.assertNotIn("thoughtSignature", json.dumps(contents))

    def test_results_are_in_a_turn_of_their_own(self) -> None:
        calls = [
            {"id": name, "type": "function", "function": {"name": "Read", "arguments": "{}"}} for name in ("a", "b")
        ]
        picture = {"type": "image", "media_type": "image/png", "data": "AAAA"}
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "one"}, picture]},
            {"role": "tool", "tool_call_id": "b", "content": "Error (ToolError): no such file"},
            {"role": "user", "content": "Go on."},
        ]
        new = self.prepare(messages)["contents"]
        old = GeminiProvider(api_key="k").prepare("gemini-2.5-pro", messages, (TOOL,), stream=True)[0]["contents"]
        for contents in (new, old):
            self.assertEqual([turn["role"] for turn in contents], ["user", "model", "user", "user"])
            answers = [part["functionResponse"]["response"] for part in contents[2]["parts"]]
            self.assertEqual(answers, [{"output": "one"}, {"error": "Error (ToolError): no such file"}])
        inline = {"inlineData": {"mimeType": "image/png", "data": "AAAA"}}
        self.assertEqual(new[2]["parts"][0]["functionResponse"]["parts"], [inline])
        self.assertEqual(new[3]["parts"], [{"text": "Go on."}])
        self.assertNotIn("parts", old[2]["parts"][0]["functionResponse"])
        self.assertEqual(old[3]["parts"], [{"text": "From the result of Read:"}, inline, {"text": "Go on."}])
        self.assertEqual(self.prepare(messages[:-1])["contents"], new[:-1])

    def test_no_part_without_content_goes_back(self) -> None:
        signed = {"text": "", "thoughtSignature": "c2ln"}
        parts: list[dict[str, Any]] = [{"text": ""}, {"text": "", "thought": True}, {"text": "Hi"}, signed]
        done = self.read(
            *({"candidates": [{"content": {"parts": [part]}}]} for part in parts),
            {"candidates": [{"content": {"parts": [{"text": ""}]}, "finishReason": "STOP"}]},
        )
        for kept in (done.extras, {**done.extras, "gemini_parts": parts}):
            assistant = {"role": "assistant", "content": done.assistant_text, **kept}
            contents = self.prepare([{"role": "user", "content": "?"}, assistant])["contents"]
            self.assertEqual(contents[1]["parts"], [{"text": "Hi"}, signed])

    def test_a_stream_that_comes_as_an_array_is_read(self) -> None:
        chunks = [
            {"responseId": "r", "candidates": [{"content": {"parts": [{"text": "He"}]}}]},
            {"responseId": "r", "candidates": [{"content": {"parts": [{"text": "llo"}]}, "finishReason": "STOP"}]},
        ]
        for rows, text in ((chunks, "Hello"), (chunks[:1], None), ([{"error": {"code": 500, "message": "x"}}], None)):
            _, reading, _ = GeminiProvider(api_key="k").prepare("m", [], (), stream=True)
            if text is None:
                with self.assertRaises(ProviderError):
                    reading.take(Whole(rows))
                    reading.finish()
            else:
                reading.take(Whole(rows))
                self.assertEqual(reading.finish()[1].assistant_text, text)

    def test_extra_body_goes_into_the_objects_that_are_there(self) -> None:
        request = self.prepare(
            [{"role": "user", "content": "?"}],
            max_tokens=5,
            temperature=0.5,
            extra_body={"generationConfig": {"topK": 3, "temperature": None}},
        )
        self.assertEqual(request["generationConfig"], {"maxOutputTokens": 5, "topK": 3})

    def test_citations_of_an_answer_are_kept(self) -> None:
        web = {"web": {"uri": "https://h", "title": "H"}}
        said = {"content": {"parts": [{"text": "Hi"}]}, "groundingMetadata": {"groundingChunks": [web, web]}}
        done = self.read({"responseId": "r1", "candidates": [said]}, {"candidates": [{"finishReason": "STOP"}]})
        self.assertEqual((list(done.citations), done.response_id), ([web], "r1"))

    def test_an_answer_that_a_limit_or_filter_ended_runs_nothing(self) -> None:
        part = {"functionCall": {"name": "wipe", "args": {"path": "/"}}}
        for reason in ("MAX_TOKENS", "SAFETY", "MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "PROHIBITED_CONTENT"):
            with self.subTest(reason):
                done = self.read({"candidates": [{"content": {"parts": [part]}, "finishReason": reason}]})
                self.assertIsNotNone(done.tool_calls[0].raw_arguments)
        blocked = self.read({"promptFeedback": {"blockReason": "SAFETY"}})
        self.assertTrue(blocked.refusal)
        self.assertIn("SAFETY", blocked.assistant_text)

    def test_two_answers_in_one_stream_and_one_without_an_end_are_errors(self) -> None:
        one = {"responseId": "a", "candidates": [{"content": {"parts": [{"text": "x"}]}}]}
        with self.assertRaisesRegex(GarbledResponseError, "mixed two answers"):
            self.read(one, {**one, "responseId": "b"})
        with self.assertRaises(IncompleteResponseError):
            self.read(one)

    def test_whatever_a_server_sends_only_provider_errors_come_out(self) -> None:
        odd: list[Any] = [None, 0, "", "x", [], {}, [None], {"parts": 5}, {"parts": [5, None, {"text": 5}]}, True]
        for value in odd:
            for key in ("candidates", "usageMetadata", "promptFeedback", "modelVersion", "responseId"):
                for chunk in ({key: value}, {"candidates": [{"content": value, "finishReason": value, "index": 0}]}):
                    with self.subTest(chunk=chunk), contextlib.suppress(ProviderError):
                        self.read(chunk, {"candidates": [{"finishReason": "STOP"}]})

    def test_settings_are_translated_or_refused(self) -> None:
        schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
        request = self.prepare(
            [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "?"}],
            max_tokens=5, temperature=0.5, top_p=0.9, seed=7, stop=["x"], response_format=schema,
            reasoning_effort="low", tool_choice="Read",
        )  # fmt: skip
        self.assertEqual(
            request["generationConfig"],
            {
                "maxOutputTokens": 5, "temperature": 0.5, "topP": 0.9, "seed": 7, "stopSequences": ["x"],
                "responseMimeType": "application/json", "responseJsonSchema": {"type": "object"},
                "thinkingConfig": {"thinkingLevel": "LOW"},
            },
        )  # fmt: skip
        self.assertEqual(request["systemInstruction"], {"parts": [{"text": "Be brief."}]})
        only = {"mode": "ANY", "allowedFunctionNames": ["Read"]}
        self.assertEqual(request["toolConfig"], {"functionCallingConfig": only})
        for settings in (
            {"parallel_tool_calls": False},
            {"reasoning_effort": "most"},
            {"response_format": {"type": "x"}},
        ):
            with self.subTest(settings=settings), self.assertRaises(OptionsError):
                self.prepare([{"role": "user", "content": "?"}], **settings)
        with self.assertRaisesRegex(OptionsError, "must be text, image, file or audio"):
            self.prepare([{"role": "user", "content": [{"type": "video_url"}]}])

    @skipUnless(HAS_GENAI, "google-genai is not installed")
    def test_googles_own_types_accept_the_request_and_make_the_answer(self) -> None:
        from google.genai import types

        picture = {"type": "image", "media_type": "image/png", "data": base64.b64encode(b"png").decode()}
        call = {"id": "c1", "type": "function", "function": {"name": "Read", "arguments": '{"p": 1}'}}
        request = self.prepare(
            [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "?"}, picture]},
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "t"}, picture]},
            ],
            max_tokens=5,
            reasoning_effort="high",
        )
        contents = [types.Content.model_validate(one) for one in request["contents"]]
        self.assertEqual(contents[0].parts[1].inline_data.data, b"png")
        self.assertEqual(contents[2].parts[0].function_response.parts[0].inline_data.mime_type, "image/png")
        types.Tool.model_validate(request["tools"][0])
        types.GenerationConfig.model_validate(request["generationConfig"])
        answer = types.GenerateContentResponse(
            candidates=[
                types.Candidate(
                    content=types.Content(
                        role="model",
                        parts=[
                            types.Part(text="Hm.", thought=True),
                            types.Part(
                                function_call=types.FunctionCall(name="Read", args={"p": 1}), thought_signature=b"s"
                            ),
                        ],
                    ),
                    finish_reason=types.FinishReason.STOP,
                )
            ],
            usage_metadata=types.GenerateContentResponseUsageMetadata(
                prompt_token_count=10, candidates_token_count=3, thoughts_token_count=4, cached_content_token_count=6
            ),
            model_version="gemini-3-pro",
        )
        done = self.read(json.loads(answer.model_dump_json(by_alias=True, exclude_none=True)))
        self.assertEqual((done.reasoning, done.tool_calls[0].arguments, done.model), ("Hm.", {"p": 1}, "gemini-3-pro"))
        self.assertEqual((done.usage["input_tokens"], done.usage["output_tokens"]), (10, 7))


del Messages, Played  # so that they do not run here again
