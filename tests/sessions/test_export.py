"""Exports of sessions in formats of other programs."""

import io
import json
import unittest

from openagentic_sdk.api import run
from openagentic_sdk.cli.commands.export import build_mask
from openagentic_sdk.cli.commands.workflow import step_line
from openagentic_sdk.cli.output.terminal import Screen
from openagentic_sdk.errors import OptionsError
from openagentic_sdk.events import UserMessage
from openagentic_sdk.ground.frozen import changed
from openagentic_sdk.parts.record.folds.export import to_json, to_markdown, to_messages, to_otlp
from openagentic_sdk.parts.record.folds.transcript import transcript_entries
from openagentic_sdk.parts.workflows.progress import StepProgress
from openagentic_sdk.testing.validity import find_fault
from tests.runtime.support import options_for

SECRET = "sk-proj-" + "a1B2" * 12


def spans_of(trace):
    return trace["resourceSpans"][0]["scopeSpans"][0]["spans"]


def attribute(span, name):
    return next((entry["value"] for entry in span["attributes"] if entry["key"] == name), None)


class ExportTest(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        turns = [
            {
                "text": "Look:\n```\n# not a heading\n```",
                "tool_calls": [{"name": "echo", "arguments": {"text": SECRET}}, {"name": "fail"}],
                "usage": {"input_tokens": 9, "output_tokens": 4},
            },
            "Mail me at ann@example.org.",
        ]
        options = options_for(turns)
        result = await run(prompt="# hi", options=options)
        self.session_id = result.session_id
        self.events = options.session_store.read_events(result.session_id)

    def test_times_that_no_calendar_shows_are_written_as_the_nearest_one(self):
        last = "9999-12-31T23:59:59.000Z"
        for ts, expected in ((1.8e12, last), (1e20, last), (-1e20, "1970-01-01T00:00:00.000Z")):
            event = changed(UserMessage("hi", ts=ts), seq=1)
            self.assertEqual([entry["timestamp"] for entry in transcript_entries([event], "s", "/")], [expected])
            step = StepProgress("1", "sleep", due=ts)
            self.assertRegex(
                step_line(step, Screen(io.StringIO())), r"sleep until (1970-01-01|1969-12-31|9999-12-31|10000)"
            )

    def test_spans_form_one_tree_with_the_names_of_the_conventions(self):
        spans = spans_of(to_otlp(self.events))
        self.assertEqual(
            [span["name"] for span in spans],
            ["invoke_agent agent", "chat scripted-1", "execute_tool echo", "execute_tool fail", "chat scripted-1"],
        )
        self.assertEqual({span["parentSpanId"] for span in spans[1:]}, {spans[0]["spanId"]})
        self.assertEqual(len({span["traceId"] for span in spans}), 1)
        for span in spans:
            self.assertRegex(span["traceId"], r"^[0-9a-f]{32}$")
            self.assertRegex(span["spanId"], r"^[0-9a-f]{16}$")
            self.assertGreaterEqual(int(span["endTimeUnixNano"]), int(span["startTimeUnixNano"]))
            self.assertEqual(attribute(span, "gen_ai.conversation.id"), {"stringValue": self.session_id})
        self.assertEqual(attribute(spans[1], "gen_ai.usage.input_tokens"), {"intValue": "9"})
        self.assertEqual(attribute(spans[2], "gen_ai.operation.name"), {"stringValue": "execute_tool"})
        self.assertEqual(spans[3]["status"]["code"], 2)

    async def test_spans_are_children_of_the_callers_span(self):
        place = f"00-{'a1' * 16}-{'b2' * 8}-01"
        options = options_for(["hello"], traceparent=place)
        result = await run(prompt="hi", options=options)
        first, *others = spans_of(to_otlp(options.session_store.read_events(result.session_id)))
        self.assertEqual((first["traceId"], first["parentSpanId"]), ("a1" * 16, "b2" * 8))
        self.assertEqual({span["traceId"] for span in others}, {"a1" * 16})
        self.assertEqual({span["parentSpanId"] for span in others}, {first["spanId"]})
        for wrong in (f"00-{'0' * 32}-{'b2' * 8}-01", f"ff-{'a1' * 16}-{'b2' * 8}-01", f"{place}\n", "x", ""):
            with self.subTest(wrong), self.assertRaisesRegex(OptionsError, "traceparent"):
                await run(prompt="hi", options=options_for(["hello"], traceparent=wrong))

    def test_spans_contain_the_content_of_messages_only_on_request(self):
        self.assertNotIn(SECRET, json.dumps(to_otlp(self.events)))
        self.assertIn(SECRET, json.dumps(to_otlp(self.events, with_content=True)))

    def test_a_log_that_just_ends_gives_spans_that_end(self):
        for cut in range(1, len(self.events)):
            for span in spans_of(to_otlp(self.events[:cut])):
                self.assertIn("endTimeUnixNano", span)

    def test_the_same_session_gives_the_same_spans(self):
        self.assertEqual(to_otlp(self.events), to_otlp(self.events))

    def test_messages_are_those_that_a_provider_accepts(self):
        messages = to_messages(self.events)
        self.assertIsNone(find_fault(messages))
        self.assertEqual(messages[0], {"role": "user", "content": "# hi"})

    def test_text_cannot_become_structure_of_the_markdown(self):
        text = to_markdown(self.events)
        self.assertIn("> # hi", text)
        self.assertIn("> # not a heading", text)
        self.assertEqual(
            [line for line in text.splitlines() if line.startswith("# ")], [f"# Session `{self.session_id}`"]
        )

    def test_json_holds_every_event(self):
        self.assertEqual([event["seq"] for event in to_json(self.events)], [event.seq for event in self.events])

    def test_masks_reach_every_form(self):
        mask = build_mask(True, ["Look"], secrets=True)
        forms = (
            json.dumps(to_json(self.events, mask)),
            json.dumps(to_messages(self.events, mask)),
            to_markdown(self.events, mask),
            json.dumps(to_otlp(self.events, mask=mask, with_content=True)),
        )
        for form in forms:
            for secret in (SECRET, "ann@example.org", "Look"):
                self.assertNotIn(secret, form)

    def test_an_invalid_pattern_is_refused(self):
        with self.assertRaisesRegex(OptionsError, "not a regular expression"):
            build_mask(False, ["("], secrets=False)
        self.assertIsNone(build_mask(False, [], secrets=False))


if __name__ == "__main__":
    unittest.main()
