"""No truncation of a stream runs a call that the whole stream would not run with the same arguments.

Every recorded stream and a set of hostile ones are cut after and inside every event, for every protocol: in the readers,
for which a cut is simply the end of the bytes, and in runs over sockets that close there.
"""

from __future__ import annotations

import json
import tempfile
import unittest
from collections.abc import Iterator, Mapping
from typing import Any

from openagentic_sdk import query
from openagentic_sdk.errors import IncompleteResponseError, ProviderError
from openagentic_sdk.events import Result
from openagentic_sdk.options import OpenAgenticOptions
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.providers.anthropic import AnthropicProvider
from openagentic_sdk.providers.base import Done, ModelOutput, Provider, without_unfinished_calls
from openagentic_sdk.providers.clouds.aws import AwsCredentials
from openagentic_sdk.providers.clouds.bedrock import BedrockProvider
from openagentic_sdk.providers.clouds.event_stream import EventStreamReader
from openagentic_sdk.providers.clouds.gemini import GeminiProvider, GeminiReading
from openagentic_sdk.providers.openai_compatible import OpenAICompatibleProvider
from openagentic_sdk.providers.openai_responses import OpenAIResponsesProvider
from openagentic_sdk.providers.wire.exchange import BodyReader
from openagentic_sdk.providers.wire.http import HttpTransport
from openagentic_sdk.providers.wire.reading import Reading
from openagentic_sdk.providers.wrappers.retry import RetryPolicy
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.tools.base import Tool, ToolContext
from tests.size import LARGE, full_size, sized

from .server import Connection, Request, Server, sse
from .test_clouds import chunk_message
from .test_deviations import fixtures, reading_for

Ran = list[tuple[str, Mapping[str, Any]]]
Stream = tuple[str, str, list[bytes]]  # protocol, name, events


def piece(index: int, name: str | None = None, arguments: str | None = "", finish: str | None = None) -> dict[str, Any]:
    """A chunk of a chat completion with one piece of a call."""
    named = {} if name is None else {"id": f"id_{index}", "type": "function"}
    function = {"name": name, "arguments": arguments} if name else {"arguments": arguments}
    return chunk(finish, tool_calls=[{"index": index, **named, "function": function}])


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"id": "c1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


USAGE = {"id": "c1", "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
OTHER = {"id": "c1", "choices": [{"index": 1, "delta": {}, "finish_reason": "stop"}]}
PATH = '{"path": "/tmp/x"}'
# Streams of chat completions that end with `[DONE]`, by the habit that they have.
HABITS: dict[str, list[dict[str, Any]]] = {
    "finish reason with the first call": [piece(0, "look", PATH, "tool_calls"), piece(1, "wipe"), piece(1, None, PATH)],
    "finish reason with a call's first piece": [piece(0, "wipe", "", "tool_calls"), piece(0, None, PATH)],
    "finish reason in front of all": [chunk("tool_calls"), piece(0, "wipe"), piece(0, None, PATH)],
    "finish reason between name and arguments": [
        chunk(role="assistant"),
        piece(0, "look", PATH, "tool_calls"),
        piece(1, "wipe", None),
        piece(1, None, PATH),
        chunk("tool_calls"),
    ],
    "finish reason in each chunk": [
        piece(0, "wipe", "", "stop"),
        piece(0, None, PATH[:7], "stop"),
        piece(0, None, PATH[7:], "stop"),
    ],
    "arguments that begin with {}": [piece(0, "wipe", "{}", "tool_calls"), piece(0, None, PATH)],
    "null before arguments": [piece(0, "wipe", "null", "tool_calls"), piece(0, None, PATH)],
    "a number that grows": [piece(0, "wipe", '{"n": 1'), piece(0, None, "2}"), chunk("tool_calls")],
    "a bare number that grows": [piece(0, "wipe", "1", "tool_calls"), piece(0, None, "2")],
    "usage behind the finish reason": [piece(0, "wipe", "", "stop"), USAGE, piece(0, None, PATH), USAGE],
    "two choices": [piece(0, "wipe"), OTHER, piece(0, None, PATH), chunk("stop")],
    "no arguments": [piece(0, "wipe"), chunk("tool_calls"), USAGE],
    "a call behind the end of another": [piece(0, "look", PATH), chunk("stop"), piece(1, "wipe"), piece(1, None, PATH)],
    "the old form": [
        chunk("function_call", function_call={"name": "wipe", "arguments": ""}),
        chunk(function_call={"arguments": PATH}),
    ],
    "a limit that is said last": [piece(0, "wipe", "{", "length"), piece(0, None, PATH[1:], "stop"), chunk("stop")],
}


def events_of(*chunks: Mapping[str, Any]) -> list[bytes]:
    return [f"event: {one.get('type', 'x')}\ndata: {json.dumps(one)}\n\n".encode() for one in chunks]


def block(index: int, name: str, *arguments: str) -> list[dict[str, Any]]:
    """The events of a call of the Messages API."""
    start = {"type": "tool_use", "id": f"t{index}", "name": name, "input": {}}
    pieces = [{"type": "input_json_delta", "partial_json": text} for text in arguments]
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in pieces),
        {"type": "content_block_stop", "index": index},
    ]


def start(reason: str | None) -> dict[str, Any]:
    return {"type": "message_start", "message": {"id": "m", "content": [], "stop_reason": reason}}


def stop(reason: str) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": reason}}


STOP = {"type": "message_stop"}
MESSAGES: dict[str, list[dict[str, Any]]] = {
    "stop reason with the start": [
        start("tool_use"),
        *block(0, "wipe"),
        *block(1, "look", PATH),
        stop("refusal"),
        STOP,
    ],
    "a call behind the stop reason": [start(None), *block(0, "look", PATH), stop("tool_use"), *block(1, "wipe"), STOP],
    "a message behind the end": [start(None), *block(0, "look", PATH), stop("tool_use"), STOP, start(None)],
    "arguments behind the end of a call": [
        start("tool_use"),
        *block(0, "wipe"),
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": PATH}},
        STOP,
    ],
}


def candidate(reason: str | None, **call: Any) -> dict[str, Any]:
    parts = [{"functionCall": call}] if call else []
    return {"candidates": [{"content": {"parts": parts}, **({"finishReason": reason} if reason else {})}]}


GEMINI: dict[str, list[dict[str, Any]]] = {
    "two calls": [
        candidate(None, name="look", args={"a": 1}),
        candidate(None, name="wipe", args={}),
        candidate("STOP"),
    ],
    "calls behind the finish reason": [
        candidate("STOP", name="look", args={}),
        candidate(None, name="wipe", args={"path": "/"}),
        candidate("STOP"),
    ],
    "arguments in pieces": [
        candidate(None, name="wipe", willContinue=True),
        candidate(
            None, partialArgs=[{"jsonPath": "$.path", "stringValue": "/", "willContinue": True}], willContinue=True
        ),
        candidate("STOP", willContinue=False, name="", partialArgs=[{"jsonPath": "$.path", "stringValue": "/x"}]),
    ],
    **{
        reason: [candidate(None, name="wipe", args={}), candidate(reason)]
        for reason in (
            "OTHER",
            "LANGUAGE",
            "MALFORMED_RESPONSE",
            "IMAGE_OTHER",
            "NEW_REASON",
            "FINISH_REASON_UNSPECIFIED",
        )
    },
}
CALL = {"type": "function_call", "id": "fc", "call_id": "a", "name": "wipe"}


def response(*items: Mapping[str, Any], kind: str = "completed", **more: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", "response": {"id": "r", "output": list(items), **more}}


def item(state: str, status: str | None, arguments: str) -> dict[str, Any]:
    body = {**CALL, "arguments": arguments, **({"status": status} if status else {})}
    return {"type": f"response.output_item.{state}", "output_index": 0, "item": body}


def arguments(state: str, text: str) -> dict[str, Any]:
    return {"type": f"response.function_call_arguments.{state}", "output_index": 0, "delta": text, "arguments": text}


WHOLE = {**CALL, "arguments": PATH}
HALF = {**WHOLE, "status": "incomplete"}
# The calls that each runs: `wipe` with these arguments, or none.
RESPONSES: dict[str, tuple[list[dict[str, Any]], str | None]] = {
    "incomplete in its event": ([item("done", "incomplete", PATH), response(WHOLE)], None),
    "incomplete in the response": ([item("done", None, PATH), response(HALF)], None),
    "incomplete in both": ([item("done", "incomplete", PATH), response(HALF)], None),
    "incomplete in its event, no output": (
        [arguments("delta", PATH), item("done", "incomplete", PATH), response()],
        None,
    ),
    "incomplete behind its arguments": ([arguments("done", PATH), item("done", "incomplete", ""), response()], None),
    "incomplete by the event's name": ([item("done", None, PATH), response(WHOLE, kind="incomplete")], None),
    "the end alone": ([response(HALF)], None),
    "no arguments in pieces": ([item("added", "in_progress", ""), response(WHOLE)], PATH),
    "in progress, then whole": ([item("added", "in_progress", ""), arguments("delta", PATH), response(WHOLE)], PATH),
    "something behind the end": ([item("done", "completed", PATH), response(WHOLE), response(id="other")], PATH),
}


def streams() -> Iterator[Stream]:
    for protocol, name, row, _ in fixtures():
        yield protocol, name, [text.encode() for text in row["body"]]
        if protocol == "messages":
            lines = [line for text in row["body"] for line in text.split("\n") if line.startswith("data: ")]
            yield "bedrock", name, [chunk_message(json.loads(line[6:])) for line in lines]
    for name, chunks in HABITS.items():
        yield "chat", name, sse(*chunks)
    for name, chunks in MESSAGES.items():
        yield "messages", name, events_of(*chunks)
        yield "bedrock", name, [chunk_message(one) for one in chunks]
    for name, chunks in GEMINI.items():
        yield "gemini", name, events_of(*chunks)
    for name, (chunks, _) in RESPONSES.items():
        yield "responses", name, events_of(*chunks)


def reading_of(protocol: str) -> Reading:
    return GeminiReading(set(), "h") if protocol == "gemini" else reading_for(protocol.replace("bedrock", "messages"))


def read(protocol: str, body: bytes) -> ModelOutput | None:
    """The answer in a body that ends here; None if there is none."""
    reading, reader = reading_of(protocol), EventStreamReader() if protocol == "bedrock" else BodyReader()
    try:
        reading.take(reader.feed(body))
        reading.take(reader.close())
        reading.check_answered()
        return reading.finish()[1]
    except ProviderError:
        return None


def calls_run_by(output: ModelOutput | None) -> Ran:
    calls = without_unfinished_calls(output).tool_calls if output is not None else ()
    return [(call.name, call.arguments) for call in calls if call.raw_arguments is None]


def is_part(some: Ran, whole: Ran) -> bool:
    """Whether `some` are calls of `whole`, in their order."""
    left = iter(whole)
    return all(call in left for call in some)


class TruncatedStreams(unittest.TestCase):
    def test_no_cut_at_any_event_or_byte_runs_a_call_that_the_whole_stream_would_not_run(self) -> None:
        seen = 0
        for protocol, name, events in streams():
            body = b"".join(events)
            whole = calls_run_by(read(protocol, body))
            at_events = [sum(map(len, events[:count])) for count in range(len(events))]
            for place in sorted({*at_events, *range(0, len(body), sized(167, 29, 1))}):
                cut = calls_run_by(read(protocol, body[:place]))
                seen += bool(cut)
                self.assertTrue(is_part(cut, whole), f"{protocol}/{name} cut at {place}: {cut} of {whole}")
        self.assertGreater(seen, 50, "cuts after the end of a call that runs")

    def test_calls_of_complete_streams_run(self) -> None:
        path = json.loads(PATH)
        look, wipe = ("look", path), ("wipe", path)
        others: dict[str, Ran] = {
            "finish reason with the first call": [look, wipe],
            "finish reason between name and arguments": [look, wipe],
            "a call behind the end of another": [look, wipe],
            "no arguments": [("wipe", {})],
            "a number that grows": [("wipe", {"n": 12})],
            "null before arguments": [],
            "a bare number that grows": [],
            "a limit that is said last": [],
        }
        for name, chunks in HABITS.items():
            self.assertEqual(calls_run_by(read("chat", b"".join(sse(*chunks)))), others.get(name, [wipe]), name)
        for name, (chunks, text) in RESPONSES.items():
            with self.subTest(name):
                ran = calls_run_by(read("responses", b"".join(events_of(*chunks))))
                self.assertEqual(ran, [wipe] if text else [])

    def test_calls_after_a_finish_reason_need_an_end_marker_or_another_reason(self) -> None:
        begun = [piece(0, "look", PATH, "tool_calls"), piece(1, "wipe", PATH)]
        for chunks, done, count in ((begun, False, 0), (begun, True, 2), ([*begun, chunk("stop")], False, 2)):
            ran = calls_run_by(read("chat", b"".join(sse(*chunks, done=done))))
            self.assertEqual(len(ran), count, (chunks, done))

    def test_a_server_without_an_end_marker_is_heard(self) -> None:
        for name, chunks in {
            "whole in one chunk": [piece(0, "wipe", PATH, "tool_calls")],
            "finish reason by itself": [piece(0, "wipe"), piece(0, None, PATH), chunk("tool_calls")],
            "no arguments": [piece(0, "wipe"), chunk("tool_calls")],
            "usage behind it": [piece(0, "wipe", PATH), chunk("stop"), USAGE],
            "finish reason in each chunk": HABITS["finish reason in each chunk"],
        }.items():
            with self.subTest(name):
                self.assertEqual(len(calls_run_by(read("chat", b"".join(sse(*chunks, done=False))))), 1)

    def test_a_call_whose_name_did_not_arrive_is_held(self) -> None:
        nameless = {"functionCall": {"args": {}}}
        for protocol, events in (
            ("chat", sse(piece(0, None, PATH), chunk("tool_calls"))),
            ("messages", events_of(start(None), *block(0, "", PATH), stop("tool_use"), STOP)),
            ("responses", events_of(response({**WHOLE, "name": None}))),
            ("gemini", events_of({"candidates": [{"content": {"parts": [nameless]}, "finishReason": "STOP"}]})),
        ):
            with self.subTest(protocol):
                output = read(protocol, b"".join(events))
                self.assertEqual((len(output.tool_calls) if output else 0, calls_run_by(output)), (1, []))

    def test_only_stop_ends_a_whole_answer_of_gemini(self) -> None:
        for reason, ran in (("STOP", 1), ("OTHER", 0), ("LANGUAGE", 0), ("MALFORMED_RESPONSE", 0), ("NEW_REASON", 0)):
            for call in ({"args": {}}, {"args": {}, "willContinue": False}):
                output = read("gemini", b"".join(events_of(candidate(reason, name="wipe", **call))))
                self.assertEqual(len(calls_run_by(output)), ran, reason)
        whole = read("gemini", b"".join(events_of(*GEMINI["arguments in pieces"])))
        self.assertEqual(calls_run_by(whole), [("wipe", {"path": "//x"})])

    def test_data_after_the_end_marker_is_not_read(self) -> None:
        whole = b"".join(sse(piece(0, "wipe", PATH), chunk("tool_calls")))
        other = {"id": "c2", "choices": [{"delta": {"content": "x"}}]}
        for behind in (*sse(piece(1, "wipe", PATH), other), b"data: {", b"data: {\n\n"):
            self.assertEqual(calls_run_by(read("chat", whole + behind)), [("wipe", json.loads(PATH))])


class Anything(Tool):
    """A tool of any name that records its inputs."""

    description = "Any."

    def __init__(self, name: str, ran: Ran) -> None:
        self.name = name
        self.input_schema = {"type": "object"}
        self._ran = ran

    async def run(self, input: Mapping[str, Any], ctx: ToolContext) -> Any:
        self._ran.append((self.name, dict(input)))
        return "done"


ANSWERS = {
    "chat": sse(chunk(content="Good"), chunk("stop")),
    "messages": events_of(start(None), stop("end_turn"), STOP),
    "responses": events_of(response()),
    "gemini": events_of(candidate("STOP")),
    "bedrock": [chunk_message(one) for one in (start(None), stop("end_turn"), STOP)],
}


ENDS = ("broken", "with the connection", "by its framing")


class TruncatedStreamsInRuns(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        self.cwd = self.enterContext(tempfile.TemporaryDirectory())
        self.http = HttpTransport(proxies={})
        self.addCleanup(self.http.close)
        self.asked = 0

    def provider(self, protocol: str, url: str) -> Provider:
        if protocol == "chat":
            return OpenAICompatibleProvider(base_url=url, http=self.http)
        if protocol == "responses":
            return OpenAIResponsesProvider(base_url=url, http=self.http)
        if protocol == "gemini":
            return GeminiProvider(base_url=url, api_key="k", http=self.http)
        if protocol == "bedrock":
            keys = AwsCredentials("AKIDEXAMPLE", "secret")
            return BedrockProvider(region="eu-west-1", credentials=keys, base_url=url, http=self.http)
        return AnthropicProvider(base_url=url, api_key="k", http=self.http)

    async def run_over(self, server: Server, protocol: str, events: list[bytes], how: str, names: set[str]) -> Ran:
        """The calls made by a run whose endpoint's first answer is these events and then a closed connection."""
        answers = [events]

        def script(connection: Connection, request: Request) -> None:
            first = answers.pop() if answers else None
            if how == "by its framing" or first is None:
                connection.stream(ANSWERS[protocol] if first is None else first)
            elif how == "broken":
                connection.head(Content_Type="text/event-stream", Transfer_Encoding="chunked")
                for event in first:
                    connection.chunk(event)
                connection.keep = False
            else:
                connection.head(Content_Type="text/event-stream", Connection="close")
                connection.send(b"".join(first))
                connection.keep = False

        ran: Ran = []
        server.script = script
        self.asked += 1
        options = OpenAgenticOptions(
            # A separate path, because breakers count failures by endpoint.
            provider=self.provider(protocol, f"{server.url}/{self.asked}"),
            model="m",
            cwd=self.cwd,
            project_dir=self.cwd,
            setting_sources=(),
            session_store=MemorySessionStore(),
            tools=[Anything(name, ran) for name in sorted(names)],
            retry=RetryPolicy(max_retries=1, base_s=0.001, cap_s=0.001),
            permission_gate=PermissionGate(permission_mode="bypass"),
        )
        async for event in query(prompt="Clean up.", options=options):
            self.stopped = event.stop_reason if isinstance(event, Result) else None
        return ran

    @full_size
    async def test_no_run_over_a_connection_that_closes_at_an_event_calls_what_the_whole_answer_would_not(self) -> None:
        with Server(lambda c, r: None) as server:
            for protocol, name, events in streams():
                output = read(protocol, b"".join(events))
                names = {call.name for call in output.tool_calls if call.name} if output else {"wipe"}
                if not names or not (LARGE or name in CHOSEN):
                    continue
                whole = await self.run_over(server, protocol, events, "by its framing", names)
                for count in range(1, len(events)):
                    for how in ENDS if LARGE else [ENDS[count % 2]]:
                        ran = await self.run_over(server, protocol, events[:count], how, names)
                        with self.subTest(f"{protocol}/{name} {how} behind {count}"):
                            self.assertTrue(is_part(ran, whole), f"{ran} of {whole}")

    async def test_a_call_in_front_of_a_broken_connection_is_asked_for_again(self) -> None:
        cut = sse(piece(0, "wipe"), chunk("tool_calls"), done=False)
        with Server(lambda c, r: None) as server:
            self.assertEqual(await self.run_over(server, "chat", cut, "broken", {"wipe"}), [])
            self.assertEqual((len(server.requests), self.stopped), (2, "end"))
            for how in ("by its framing", "with the connection"):
                self.assertEqual(await self.run_over(server, "chat", cut, how, {"wipe"}), [("wipe", {})])

    async def test_a_truncated_stream_is_reported(self) -> None:
        cut = sse(piece(0, "look", PATH, "tool_calls"), piece(1, "wipe"), done=False)
        provider = OpenAICompatibleProvider(base_url="http://h", stream_transport=lambda url, headers, payload: cut)
        with self.assertRaisesRegex(IncompleteResponseError, r"end marker"):
            async for event in provider.stream(model="m", messages=[{"role": "user", "content": "x"}]):
                self.assertNotIsInstance(event, Done)


CHOSEN = {
    *HABITS,
    *MESSAGES,
    *RESPONSES,
    "call",
    "calls_interleaved",
    "call_arguments_empty",
    "call_with_finish_reason",
}


if __name__ == "__main__":
    unittest.main()
