"""Compare two sessions step by step."""

import unittest

from openagentic_sdk.events import (
    AssistantMessage,
    ModelRequest,
    ModelResponse,
    Result,
    ToolResult,
    ToolUse,
    UserMessage,
)
from openagentic_sdk.parts.record.folds.compare import Thresholds, compare_sessions


def session(*steps, stop="end", tokens=10):
    events = [UserMessage("go")]
    for number, (text, calls) in enumerate(steps, 1):
        events.append(ModelRequest(number, 1, "0" * 64, 0))
        events.append(ModelResponse(number, 1, usage={"input_tokens": tokens, "output_tokens": 0}, total_s=1.0))
        events.append(AssistantMessage(text))
        for index, (name, value) in enumerate(calls):
            events += [ToolUse(f"c{number}_{index}", name, {"v": value}), ToolResult(f"c{number}_{index}", "ok")]
    return [*events, Result("", "s", stop)]


class CompareTest(unittest.TestCase):
    def kinds(self, a, b, **thresholds):
        return [(d.kind, d.step) for d in compare_sessions(a, b, Thresholds(**thresholds)).differences]

    def test_a_session_is_the_same_as_itself(self):
        one = session(("x", [("Read", 1)]), ("done", []))
        self.assertTrue(compare_sessions(one, one).same)

    def test_each_kind_of_difference_is_found_at_its_step(self):
        base = session(("x", [("Read", 1), ("Grep", 2)]), ("done", []))
        cases = [
            (session(("x", [("Read", 1)]), ("done", [])), [("tool_missing", 1)]),
            (session(("x", [("Read", 1), ("Grep", 2), ("Bash", 3)]), ("done", [])), [("tool_added", 1)]),
            (session(("x", [("Grep", 2), ("Read", 1)]), ("done", [])), [("tools_reordered", 1)]),
            (session(("x", [("Read", 9), ("Grep", 2)]), ("done", [])), [("arguments", 1)]),
            (session(("x", [("Read", 1), ("Grep", 2)]), ("other", [])), [("text", 2)]),
            (session(("x", [("Read", 1), ("Grep", 2)]), ("done", []), stop="error"), [("stop_reason", None)]),
            (session(("x", [("Read", 1), ("Grep", 2)])), [("step_missing", 2)]),
        ]
        for other, expected in cases:
            with self.subTest(expected=expected):
                self.assertEqual(self.kinds(base, other), expected)

    def test_one_more_step_shifts_nothing(self):
        base = session(("x", [("Read", 1)]), ("done", []))
        longer = session(("x", [("Read", 1)]), ("y", [("Bash", 2)]), ("done", []))
        self.assertEqual(self.kinds(base, longer), [("step_added", 2)])

    def test_numbers_count_only_beyond_their_threshold(self):
        base, other = session(("x", []), tokens=100), session(("x", []), tokens=115)
        self.assertEqual(self.kinds(base, other), [])
        self.assertEqual(self.kinds(base, other, tokens=0.2), [])
        self.assertEqual(self.kinds(base, other, tokens=0.1), [("tokens", None)])

    def test_text_can_be_left_out(self):
        self.assertEqual(self.kinds(session(("x", [])), session(("y", [])), ignore_text=True), [])


if __name__ == "__main__":
    unittest.main()
