"""What endpoints really send, a fixture per deviation: fed whole, byte by byte, cut in two everywhere, and broken off."""

from __future__ import annotations

import json
import unittest
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from openagentic_sdk.errors import IncompleteResponseError, ProviderError, ProviderHTTPError
from openagentic_sdk.providers.anthropic import MessageReading
from openagentic_sdk.providers.base import ModelOutput, ReasoningPiece, StreamEvent, TextDelta
from openagentic_sdk.providers.openai import ChatReading
from openagentic_sdk.providers.openai_responses import ResponseReading
from openagentic_sdk.providers.openai_stream_assembler import ChatAssembler
from openagentic_sdk.providers.wire.exchange import BodyReader
from openagentic_sdk.providers.wire.reading import Reading
from tests.size import full_size, sized

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "wire"
ORIGIN = "host"


def reading_for(protocol: str, used_ids: Iterable[str] = ()) -> Reading:
    if protocol == "responses":
        return ResponseReading(set(used_ids), ORIGIN)
    if protocol == "messages":
        return MessageReading(set(used_ids), ORIGIN)
    return ChatReading(ChatAssembler(used_ids=set(used_ids), think_tags=True, origin=ORIGIN))


def read(reading: Reading, chunks: Iterable[bytes]) -> tuple[list[StreamEvent], ModelOutput]:
    """A provider's reading of a body, without the sockets."""
    body, shown = BodyReader(), []
    for chunk in chunks:
        shown += reading.take(body.feed(chunk))
    shown += reading.take(body.close())
    reading.check_answered()
    rest, output = reading.finish()
    return shown + rest, output


def fixtures() -> Iterator[tuple[str, str, dict[str, Any], bytes]]:
    for path in sorted(FIXTURES.glob("*/*.json")):
        row = json.loads(path.read_text(encoding="utf-8"))
        yield path.parent.name, path.stem, row, "".join(row["body"]).encode()


def as_one_body(output: ModelOutput) -> dict[str, Any]:
    """The answer as the endpoint would have sent it to a request without a stream."""
    calls = [
        {
            **{key: value for key, value in (call.extras or {}).items() if key != "origin"},
            "id": call.tool_use_id,
            "type": "function",
            "function": {
                "name": call.name,
                "arguments": json.dumps(call.arguments) if call.raw_arguments is None else call.raw_arguments,
            },
        }
        for call in output.tool_calls
    ]
    said = {"refusal": output.assistant_text} if output.refusal else {"content": output.assistant_text}
    message = {"role": "assistant", **said, "reasoning_content": output.reasoning, "tool_calls": calls}
    choice = {"index": 0, "message": message, "finish_reason": output.finish_reason}
    return {"model": output.model, "choices": [choice], "usage": output.usage}


class Deviations(unittest.TestCase):
    def test_usage_beside_other_values_is_found(self) -> None:
        for given in (True, "none", [1], {}, None):
            assembler = ChatAssembler(used_ids=set(), think_tags=False, origin=ORIGIN)
            assembler.apply({"id": "a", "choices": [], "usage": given, "x_groq": {"usage": {"prompt_tokens": 3}}})
            assembler.end_marker()
            self.assertEqual(assembler.finish()[1].usage, {"prompt_tokens": 3}, given)

    def test_there_is_a_fixture_for_every_deviation(self) -> None:
        rows = list(fixtures())
        self.assertGreater(len([name for protocol, name, _, _ in rows if protocol == "chat"]), 100)
        self.assertTrue(all(row["about"].endswith(".") for _, _, row, _ in rows))

    def test_fed_whole(self) -> None:
        for protocol, name, row, body in fixtures():
            with self.subTest(f"{protocol}/{name}"):
                self.check(protocol, row, [body])

    @full_size
    def test_fed_byte_by_byte(self) -> None:
        for protocol, name, row, body in fixtures():
            with self.subTest(f"{protocol}/{name}"):
                self.check(protocol, row, [body[i : i + 1] for i in range(len(body))])

    def test_cut_in_two_at_every_place(self) -> None:
        for protocol, name, row, body in fixtures():
            with self.subTest(f"{protocol}/{name}"):
                for place in range(0, len(body), sized(31, 13, 1) if len(body) < 300 else sized(127, 61, 1)):
                    self.check(protocol, row, [body[:place], body[place:]])

    def test_broken_off_anywhere_it_is_the_whole_answer_or_none(self) -> None:
        for protocol, name, row, body in fixtures():
            with self.subTest(f"{protocol}/{name}"):
                for place in range(0, len(body), sized(47, 19, 1)):
                    self.check_broken_off(protocol, row, body[:place])

    def test_the_same_answer_in_one_piece_reads_the_same(self) -> None:
        for protocol, name, row, body in fixtures():
            if protocol != "chat" or "error" in row["expected"]:
                continue
            with self.subTest(name):
                _, streamed = read(reading_for("chat", row.get("used_ids", ())), [body])
                _, whole = read(reading_for("chat"), [json.dumps(as_one_body(streamed)).encode()])
                for field in (
                    "assistant_text",
                    "tool_calls",
                    "finish_reason",
                    "refusal",
                    "usage",
                    "model",
                    "reasoning",
                ):
                    self.assertEqual(getattr(whole, field), getattr(streamed, field), field)

    def check(self, protocol: str, row: dict[str, Any], chunks: list[bytes]) -> None:
        expected = row["expected"]
        reading = reading_for(protocol, row.get("used_ids", ()))
        if "error" in expected:
            with self.assertRaises(ProviderError) as raised:
                read(reading, chunks)
            self.check_error(raised.exception, expected)
            return
        events, output = read(reading, chunks)
        self.check_output(output, expected)
        text = "".join(event.delta for event in events if isinstance(event, TextDelta))
        reasoning = "".join(event.delta for event in events if isinstance(event, ReasoningPiece))
        self.assertEqual(text, output.assistant_text or "", "the pieces add up to the text")
        self.assertEqual(reasoning, output.reasoning or "", "the pieces add up to the reasoning")

    def check_output(self, output: ModelOutput, expected: dict[str, Any]) -> None:
        self.assertEqual(output.assistant_text, expected.get("text"))
        self.assertEqual(output.finish_reason, expected["finish_reason"])
        self.assertEqual(output.refusal, expected.get("refusal", False))
        for field in ("usage", "reasoning", "model"):
            if field in expected:
                self.assertEqual(getattr(output, field), expected[field], field)
        if "extras" in expected:
            self.assertEqual(output.extras, {**expected["extras"], "origin": ORIGIN})
        calls, wanted = list(output.tool_calls), expected.get("calls", [])
        self.assertEqual(len(calls), len(wanted))
        self.assertEqual(len({call.tool_use_id for call in calls}), len(calls))
        for call, want in zip(calls, wanted, strict=True):
            extras = {**want["extras"], "origin": ORIGIN} if "extras" in want else None
            found = (call.name, call.arguments, call.raw_arguments, call.extras)
            self.assertEqual(found, (want["name"], want["arguments"], want.get("raw_arguments"), extras))
            self.assertTrue(call.tool_use_id == want["id"] if want["id"] else call.tool_use_id.startswith("call_"))

    def check_error(self, error: ProviderError, expected: dict[str, Any]) -> None:
        self.assertEqual(type(error).__name__, expected["error"])
        self.assertIn(expected.get("message", ""), str(error))
        if isinstance(error, IncompleteResponseError):
            self.assertEqual(error.partial_text, expected["partial_text"])
        if isinstance(error, ProviderHTTPError):
            self.assertEqual(error.code, expected.get("code", error.code))
        self.assertEqual(error.retryable, expected.get("retryable", error.retryable))

    def check_broken_off(self, protocol: str, row: dict[str, Any], body: bytes) -> None:
        try:
            _, output = read(reading_for(protocol, row.get("used_ids", ())), [body])
        except ProviderError:
            return
        expected = row["expected"]
        self.assertNotIn("error", expected)
        self.assertEqual(output.assistant_text, expected.get("text"))
        self.assertEqual(len(output.tool_calls), len(expected.get("calls", [])))


if __name__ == "__main__":
    unittest.main()
