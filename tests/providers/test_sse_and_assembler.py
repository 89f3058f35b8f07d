"""Bytes to events and fragments to calls, as tables."""

from __future__ import annotations

import random
import unittest
from dataclasses import fields
from types import SimpleNamespace
from typing import Any, get_args

from openagentic_sdk.errors import ProviderResponseError
from openagentic_sdk.providers.base import Done, ModelOutput, StreamEvent, ToolCall, read_stream_event
from openagentic_sdk.providers.openai_stream_assembler import ToolCallAssembler, read_arguments
from openagentic_sdk.providers.sse import SSEDecoder, SSEEvent, parse_sse_events
from openagentic_sdk.providers.think_tags import ThinkTagSplitter

TABLE: list[tuple[bytes, list[SSEEvent]]] = [
    (b"data: a\n\n", [SSEEvent("a")]),
    (b"data:a\n\n", [SSEEvent("a")]),
    (b"data:  a\n\n", [SSEEvent(" a")]),
    (b"data: a\ndata: b\n\n", [SSEEvent("a\nb")]),
    (b"data\n\n", [SSEEvent("")]),
    (b"data\ndata\n\n", [SSEEvent("\n")]),
    (b"data: a\r\n\r\ndata: b\r\rdata: c\n\n", [SSEEvent("a"), SSEEvent("b"), SSEEvent("c")]),
    (b"\xef\xbb\xbfdata: a\n\n", [SSEEvent("a")]),
    (b"\xef\xbb\xbf\n\ndata: \xef\xbb\xbfa\n\n", [SSEEvent("\ufeffa")]),
    (b": comment\n\n:\n\ndata: a\n\n", [SSEEvent("a")]),
    (b"event: x\nid: 1\ndata: a\n\ndata: b\n\n", [SSEEvent("a", "x", "1"), SSEEvent("b", "", "1")]),
    (b"id: 1\0\ndata: a\n\n", [SSEEvent("a")]),
    (b"event: x\n\ndata: a\n\n", [SSEEvent("a")]),
    (b"retry: 10\nunknown: y\nnocolon\ndata: a\n\n", [SSEEvent("a")]),
    (b"datax: a\n data: a\n\n", []),
    (b"data: a", [SSEEvent("a")]),
    (b"data: a\r", [SSEEvent("a")]),
    (b"data: a\n\n\n\n", [SSEEvent("a")]),
    ("data: a\u2028b\u0085c\n\n".encode(), [SSEEvent("a\u2028b\u0085c")]),
    (b"data: \xff\n\n", [SSEEvent("\ufffd")]),
    ("data: 漢字😀\n\n".encode(), [SSEEvent("漢字😀")]),
    (b"", []),
]


def decode(*chunks: bytes) -> list[SSEEvent]:
    decoder = SSEDecoder()
    events = [event for chunk in chunks for event in decoder.feed(chunk)]
    return events + decoder.close()


class Events(unittest.TestCase):
    def test_the_table_whole_byte_by_byte_and_cut_everywhere(self) -> None:
        for data, expected in TABLE:
            with self.subTest(data):
                self.assertEqual(decode(data), expected)
                self.assertEqual(decode(*[data[i : i + 1] for i in range(len(data))]), expected)
                for place in range(len(data)):
                    self.assertEqual(decode(data[:place], b"", data[place:]), expected)

    def test_an_event_is_given_as_soon_as_its_blank_line_is_there(self) -> None:
        self.assertEqual(SSEDecoder().feed(b"data: a\n\n"), [SSEEvent("a")])

    def test_random_cuts_of_random_streams_make_no_difference(self) -> None:
        chance = random.Random(4)
        pieces = [b"data", b":", b" ", b"\n", b"\r", b"\r\n", b"x", "é".encode(), b"event: e", b"\xef\xbb\xbf", b"id:1"]
        for _ in range(500):
            data = b"".join(chance.choices(pieces, k=30))
            cuts = sorted(chance.choices(range(len(data)), k=5))
            chunks = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
            self.assertEqual(decode(*chunks), decode(data), data)

    def test_a_line_of_megabytes_in_small_pieces_is_one_event(self) -> None:
        (event,) = decode(b"data: ", *[b"x" * 1000] * 3000, b"\n\n")
        self.assertEqual(len(event.data), 3_000_000)

    def test_an_event_above_the_limit_is_refused_in_one_line_and_in_many(self) -> None:
        for data in (b"data: " + b"x" * 2000, b"data: xxxxxxxxxx\n" * 200):
            with self.assertRaises(ProviderResponseError):
                SSEDecoder(max_event_bytes=1000).feed(data)

    def test_lines_come_with_or_without_their_ends(self) -> None:
        with_ends = [b'data: {"x":1}\n', b"\n", b"data: [DONE]\n", b"\n"]
        self.assertEqual(list(parse_sse_events(with_ends)), ['{"x":1}', "[DONE]"])
        self.assertEqual(list(parse_sse_events([line.rstrip(b"\n") for line in with_ends])), ['{"x":1}', "[DONE]"])
        self.assertEqual(list(parse_sse_events([b": hi", b"data: a\r\n", b"data: b\r\n", b"\r\n"])), ["a\nb"])


class Assembler(unittest.TestCase):
    def test_fragments_become_calls(self) -> None:
        assembler = ToolCallAssembler()
        assembler.apply_delta({"index": 0, "id": "a", "function": {"name": "Read", "arguments": '{"file'}})
        assembler.apply_delta({"tool_calls": [{"index": 0, "function": {"arguments": '_path": "x"}'}}]})
        self.assertEqual(assembler.finalize(), [ToolCall("a", "Read", {"file_path": "x"})])

    def test_nothing_gives_nothing(self) -> None:
        assembler = ToolCallAssembler()
        assembler.apply_delta({"tool_calls": None})
        assembler.apply_delta({"tool_calls": [None, "x", 3]})
        self.assertEqual(assembler.finalize(), [])

    def test_hostile_fragments_are_never_an_exception(self) -> None:
        chance = random.Random(5)
        values = [None, "", "a", 0, 1, -1, True, [], {}, {"name": "x"}, {"arguments": 5}, {"name": 3, "arguments": [1]}]
        for _ in range(2000):
            assembler = ToolCallAssembler()
            for _ in range(5):
                keys = chance.sample(["index", "id", "type", "function", "extra"], 3)
                assembler.apply_delta({key: chance.choice(values) for key in keys})
            calls = assembler.finalize()
            self.assertEqual(len({call.tool_use_id for call in calls}), len(calls))

    def test_arguments_are_an_object_or_kept_raw(self) -> None:
        table = [
            ("", {}, None),
            ("  ", {}, None),
            ("{}", {}, None),
            ('{"a":1}', {"a": 1}, None),
            ("null", {}, None),
            ('"{\\"a\\":1}"', {"a": 1}, None),
            ('""', {}, None),
            ('"x"', {}, '"x"'),
            ("1", {}, "1"),
            ('{"a":', {}, '{"a":'),
            ('{"a":Infinity}', {}, '{"a":Infinity}'),
            ('{"a":1e999}', {}, '{"a":1e999}'),
            ('{"a":1.5e3}', {"a": 1500.0}, None),
            ("[" * 100_000, {}, "[" * 100_000),
            ("1" * 5000, {}, "1" * 5000),
        ]
        for text, arguments, raw in table:
            self.assertEqual(read_arguments(text), (arguments, raw), text[:40])


class ThinkTags(unittest.TestCase):
    def test_tags_are_found_however_they_are_cut(self) -> None:
        table = [
            ("<think>a</think>b", "a", "b"),
            ("\n<think>\na</think>\n\nb", "a", "b"),
            ("<think></think>b", "", "b"),
            ("a<think>b</think>", "", "a<think>b</think>"),
            ("<think>a", "a", ""),
            ("<think>a</thi", "a</thi", ""),
            ("<thi", "", "<thi"),
            ("", "", ""),
            ("<think>a</think>", "a", ""),
            ("<think>a</think>b</think>c", "a", "b</think>c"),
        ]
        for text, reasoning, said in table:
            for place in range(len(text) + 1):
                splitter = ThinkTagSplitter()
                pieces = splitter.feed(text[:place]) + splitter.feed(text[place:]) + splitter.close()
                found = ("".join(p for is_r, p in pieces if is_r), "".join(p for is_r, p in pieces if not is_r))
                self.assertEqual(found, (reasoning, said), (text, place))


class StreamEventsOfOtherProviders(unittest.TestCase):
    def test_a_dict_and_an_object_of_any_class_are_read_like_an_event(self) -> None:
        call = ToolCall("c1", "Read", {"a": 1}, "{", {"e": 1}, {"type": "program"})
        values: dict[str, Any] = {"tool_call": call, "delay_s": 2.5, "attempt": 3, "mid_answer": True, "refusal": True}
        values |= {"complete": False, "record_raw": True, "tool_calls": [call], "cost_usd": 0.5}
        output = ModelOutput(**{known.name: values.get(known.name, [known.name]) for known in fields(ModelOutput)})
        values["output"] = output
        for cls in get_args(StreamEvent):
            event = cls(**{known.name: values.get(known.name, known.name) for known in fields(cls)})
            said = {"type": cls.type} | {known.name: getattr(event, known.name) for known in fields(cls)}
            for form in (dict, lambda **parts: SimpleNamespace(**parts)):
                said |= {
                    "tool_call": form(**vars(call)),
                    "output": form(**vars(output) | {"tool_calls": [form(**vars(call))]}),
                }
                with self.subTest(cls.type):
                    read = read_stream_event(form(**said))
                    self.assertEqual(read, event)
                    self.assertEqual(cls is Done and vars(read.output), cls is Done and vars(output))

    def test_an_invalid_answer_is_refused(self) -> None:
        with self.assertRaisesRegex(ProviderResponseError, "assistant_text"):
            read_stream_event({"type": "done", "output": "a text"})

    def test_an_unknown_type_is_nothing(self) -> None:
        self.assertIsNone(read_stream_event({"type": "weather"}))


if __name__ == "__main__":
    unittest.main()
