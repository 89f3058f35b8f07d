"""An answer costs time and memory in proportion to its length, however many pieces and parts it has."""

from __future__ import annotations

import asyncio
import unittest
from typing import Any

from openagentic_sdk.errors import ProviderResponseError
from openagentic_sdk.ground.loose import MAX_JSON_VALUES, read_json
from openagentic_sdk.providers.anthropic import MessageReading
from openagentic_sdk.providers.clouds.converse import ConverseReading
from openagentic_sdk.providers.clouds.gemini import GeminiReading
from openagentic_sdk.providers.openai_responses import ResponseReading
from openagentic_sdk.providers.openai_stream_assembler import ChatAssembler, ToolCallAssembler
from openagentic_sdk.providers.sse import SSEDecoder
from openagentic_sdk.providers.wire.exchange import BodyReader
from openagentic_sdk.providers.wire.growing import MAX_ANSWER_PARTS
from openagentic_sdk.providers.wire.reading import Reading
from openagentic_sdk.providers.wire.thread_feed import FeedStopped, ThreadFeed
from tests.size import full_size

PIECES = 300
TEXT = "abcd" * PIECES


class Piece(str):
    """A piece of text that counts what is copied when it is appended to a string."""

    copied = 0

    def __radd__(self, other: str) -> str:
        Piece.copied += len(other)
        return other + str(self)


def message(kind: str, delta: dict[str, Any]) -> list[dict[str, Any]]:
    block = {"type": kind, "id": "c", "name": "T"}
    return [
        {"type": "message_start", "message": {"id": "m"}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        *[{"type": "content_block_delta", "index": 0, "delta": delta}] * PIECES,
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
        {"type": "message_stop"},
    ]


PIECE = Piece("abcd")
CALL = {"type": "function_call", "id": "c", "call_id": "c", "name": "T", "arguments": TEXT, "status": "completed"}
CASES: list[tuple[type[Reading], list[dict[str, Any]], str]] = [
    (MessageReading, message("text", {"type": "text_delta", "text": PIECE}), TEXT),
    (MessageReading, message("thinking", {"type": "thinking_delta", "thinking": PIECE}), TEXT),
    (MessageReading, message("thinking", {"type": "signature_delta", "signature": PIECE}), TEXT),
    (MessageReading, message("text", {"type": "citations_delta", "citation": {"url": "abcd"}}), "abcd"),
    (
        ResponseReading,
        [
            {"type": "response.output_item.added", "output_index": 0, "item": {**CALL, "arguments": ""}},
            *[{"type": "response.function_call_arguments.delta", "output_index": 0, "delta": PIECE}] * PIECES,
            {"type": "response.completed", "response": {"id": "r", "status": "completed", "output": [CALL]}},
        ],
        TEXT,
    ),
    (
        GeminiReading,
        [
            *[{"candidates": [{"content": {"parts": [{"text": PIECE}]}}]}] * PIECES,
            {"candidates": [{"finishReason": "STOP"}]},
        ],
        TEXT,
    ),
    *[
        (
            ConverseReading,
            [
                {"type": "messageStart"},
                *[{"type": "contentBlockDelta", "contentBlockIndex": 0, "delta": delta}] * PIECES,
                {"type": "contentBlockStop", "contentBlockIndex": 0},
                {"type": "messageStop", "stopReason": "end_turn"},
            ],
            TEXT,
        )
        for delta in ({"text": PIECE}, {"reasoningContent": {"text": PIECE}})
    ],
]  # fmt: skip


class Growing(unittest.TestCase):
    def test_no_piece_copies_what_came_before_it(self) -> None:
        for number, (reading, chunks, text) in enumerate(CASES):
            Piece.copied = 0
            answer = reading(set(), "here")  # type: ignore[arg-type]
            for chunk in chunks:
                answer.take_chunk(chunk)
            _, output = answer.finish()
            with self.subTest(number):
                self.assertIn(text, str(output))
                self.assertLess(Piece.copied, 2 * len(TEXT))

    def test_a_chat_completion_joins_its_details_at_the_end(self) -> None:
        Piece.copied = 0
        answer = ChatAssembler()
        for _ in range(PIECES):
            detail = {"type": "reasoning.text", "index": 0, "text": PIECE}
            answer.apply({"choices": [{"index": 0, "delta": {"reasoning_details": [detail]}}]})
        answer.end_marker()
        _, output = answer.finish()
        assert output.extras is not None
        self.assertEqual([detail["text"] for detail in output.extras["reasoning_details"]], [TEXT])
        self.assertLess(Piece.copied, 2 * len(TEXT))

    @full_size
    def test_an_answer_with_too_many_parts_is_refused(self) -> None:
        calls = [{"index": number} for number in range(MAX_ANSWER_PARTS + 1)]
        assembler = ToolCallAssembler()
        assembler.apply_delta({"tool_calls": calls[:-1]})
        with self.assertRaisesRegex(ProviderResponseError, "more than 50,000 calls or blocks in one answer"):
            assembler.apply_delta({"tool_calls": calls[-1:]})

    def test_lines_of_data_without_text_count_for_the_limit_of_an_event(self) -> None:
        decoder = SSEDecoder(max_event_bytes=5_000)
        decoder.feed(b"data:\n" * 90)
        with self.assertRaises(ProviderResponseError):
            decoder.feed(b"data:\n" * 90)

    def test_json_of_too_many_small_values_is_not_parsed(self) -> None:
        with self.assertRaisesRegex(ValueError, "more than 3,000,000 values"):
            read_json("[" + "1," * MAX_JSON_VALUES + "1]")
        self.assertEqual(len(read_json('"' + "x" * 4_000_000 + '"')), 4_000_000)

    def test_a_body_of_json_has_a_limit_before_it_is_parsed(self) -> None:
        body = BodyReader()
        body.feed(b"{")
        with self.assertRaisesRegex(ProviderResponseError, "a JSON body of more than 33554432 bytes"):
            for _ in range(40):
                body.feed(bytes(1 << 20))

    def test_comments_before_an_answer_are_skipped_however_many(self) -> None:
        body = BodyReader()
        self.assertEqual(body.feed(b"\n: ping\r\n" * 5_000 + b": pi"), [])
        self.assertFalse(body.has_begun)
        self.assertEqual([event.data for event in body.feed(b"ng\n\ndata: x\n\n")], ["x"])


class Feeds(unittest.IsolatedAsyncioTestCase):
    async def test_a_feed_that_always_has_items_lets_the_loop_run(self) -> None:
        has_put = asyncio.Event()

        def work(feed: ThreadFeed) -> None:
            feed.put(1)
            feed.call_on_loop(has_put.set)
            while True:
                feed.put(1)

        feed = ThreadFeed(work)
        try:
            await has_put.wait()
            ran: list[int] = []
            asyncio.get_running_loop().call_soon(ran.append, 1)
            self.assertTrue(await feed.take())
            self.assertEqual(ran, [1])
        finally:
            await feed.aclose()
        with self.assertRaises(FeedStopped):
            feed.put(1)
