"""Gemini's calls in pieces: each value is put in its place, and an incomplete call never runs."""

from __future__ import annotations

import unittest
from typing import Any

from openagentic_sdk.providers.base import ToolCall
from openagentic_sdk.providers.clouds.gemini import GeminiProvider
from openagentic_sdk.providers.clouds.pieces import CallInPieces


def put_together(*pieces: tuple[str, Any]) -> dict[str, Any]:
    """The call assembled from values at these places, and its end."""
    call = CallInPieces()
    call.take({"name": "f", "willContinue": True})
    kinds = {str: "stringValue", int: "numberValue", float: "numberValue", bool: "boolValue", type(None): "nullValue"}
    for path, value in pieces:
        goes_on = isinstance(value, str) and value.endswith("~")
        held = value.removesuffix("~") if isinstance(value, str) else value
        piece = {"jsonPath": path, kinds[type(value)]: held, **({"willContinue": True} if goes_on else {})}
        call.take({"partialArgs": [piece], "willContinue": True})
    call.take({})
    return call.call


def calls_of(*parts: dict[str, Any]) -> list[ToolCall]:
    reading = GeminiProvider(base_url="https://h").prepare("m", [{"role": "user", "content": "x"}], (), stream=True)[1]
    chunks: list[dict[str, Any]] = [{"candidates": [{"content": {"parts": [part]}}]} for part in parts]
    for chunk in [*chunks, {"candidates": [{"finishReason": "STOP"}]}]:
        reading.take_chunk(chunk)
    return list(reading.finish()[1].tool_calls)


class Pieces(unittest.TestCase):
    def test_values_come_to_their_places(self) -> None:
        for pieces, wanted in (
            ([("$.a", "x~"), ("$.a", "y~"), ("$.a", "")], {"a": "xy"}),
            ([("$.a", "x"), ("$.a", "y")], {"a": "y"}),
            ([("$.a[0].b", "x"), ("$.a[0].c", 2), ("$.a[1].b", True)], {"a": [{"b": "x", "c": 2}, {"b": True}]}),
            ([("$.a[0][0]", 1.5), ("$['b c'].d", None), ('$["e"]', "f")], {"a": [[1.5]], "b c": {"d": None}, "e": "f"}),
            ([("$.a", "x~"), ("$.b", "y"), ("$.a", "z")], {"a": "z", "b": "y"}),
        ):
            with self.subTest(pieces):
                self.assertEqual(put_together(*pieces), {"name": "f", "args": wanted})

    def test_values_that_fit_nowhere_are_marked(self) -> None:
        for pieces in (
            [("$.a[5]", 1)],
            [("$.a", 1), ("$.a.b", 1)],
            [("$.a[0]", 1), ("$.a.b", 1)],
            [("", 1)],
            [("$", 1)],
            [("$..a", 1)],
            [("$.a[99999999999]", 1)],
            [("$.a[-1]", 1)],
            [("$" + ".a" * 101, 1)],
        ):
            with self.subTest(pieces):
                self.assertTrue(put_together(*pieces)["partialArgs"])

    def test_a_call_runs_when_its_end_came_and_all_fitted(self) -> None:
        begin = {"functionCall": {"name": "f", "willContinue": True}, "thoughtSignature": "s"}
        value = {"functionCall": {"partialArgs": [{"jsonPath": "$.a", "stringValue": "x"}], "willContinue": True}}
        stray = {"functionCall": {"partialArgs": [{"jsonPath": "$.a[7]", "stringValue": "x"}], "willContinue": True}}
        end: dict[str, Any] = {"functionCall": {}}
        whole = {"functionCall": {"name": "g", "args": {"b": 1}}}
        for parts, running in (
            ([begin, value, end], [("f", {"a": "x"})]),
            ([begin, end, whole], [("f", {}), ("g", {"b": 1})]),
            ([begin, value, end, begin, value, end], [("f", {"a": "x"}), ("f", {"a": "x"})]),
            ([begin, value, whole], [("g", {"b": 1})]),
            ([begin, value], []),
            ([begin, stray, end], []),
            ([value, end], []),
        ):
            with self.subTest(parts):
                found = [(call.name, call.arguments) for call in calls_of(*parts) if call.raw_arguments is None]
                self.assertEqual(found, running)


if __name__ == "__main__":
    unittest.main()
