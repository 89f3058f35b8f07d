"""The Responses facade: requests, the stream of a run, and its numbers."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import unittest
from typing import Any

from openagentic_sdk.errors import OptionsError
from openagentic_sdk.events import Event
from openagentic_sdk.runs.background import answer_question
from openagentic_sdk.serialization import dumps_json
from openagentic_sdk.server.responses import ResponseEvents, after, error, read_request, response_id, session_of

from .recorded import RUNS, begin, fixture_logs, live_events, record, stored

Json = dict[str, Any]


def fold(events: list[Event]) -> tuple[list[Json], Json]:
    response = ResponseEvents("resp_s_000000000000", model="tea")
    told = [each for event in events for each in response.take(event)]
    dumps_json(told)
    return told, response.response()


def assembled(told: list[Json]) -> list[tuple[Any, ...]]:
    """The stream without the boundaries of its deltas: each event, and the text between them joined."""
    steps: list[tuple[Any, ...]] = []
    for event in told:
        if event["type"] != "response.output_text.delta":
            steps.append((event["type"], event["sequence_number"], json.dumps({**event, "sequence_number": 0})))
        elif steps and steps[-1][0] == "delta":
            steps[-1] = ("delta", event["sequence_number"], steps[-1][2] + event["delta"])
        else:
            steps.append(("delta", event["sequence_number"], event["delta"]))
    return steps


class Streams(unittest.TestCase):
    def test_live_and_replayed_streams_have_the_same_events_and_numbers(self) -> None:
        for name in RUNS:
            with self.subTest(name):
                live, log = record(name)
                told, response = fold(live)
                replayed, again = fold(log)
                self.assertEqual(assembled(replayed), assembled(told))
                self.assertEqual(again, response)
                numbers = [event["sequence_number"] for event in told]
                self.assertEqual(numbers, sorted(set(numbers)), "numbers increase")
                self.assertLess(numbers[-1], 1 << 53)

    def test_a_stream_cut_after_any_event_continues_where_it_was(self) -> None:
        for name in RUNS:
            live, log = record(name)
            told, whole = fold(live)[0], fold(log)[0]
            for source in (told, whole):
                for cut in range(len(told) + 1):
                    had = told[:cut]
                    last = had[-1]["sequence_number"] if had else 0
                    with self.subTest(name, cut=cut):
                        self.assertEqual(assembled([*had, *after(source, last)]), assembled(told))

    def test_every_beginning_of_every_fixture_log_is_projected_in_order(self) -> None:
        for name, events in fixture_logs().items():
            for start in range(len(events)):
                numbers = [event["sequence_number"] for event in fold(events[start:])[0]]
                with self.subTest(name, start=start):
                    self.assertEqual(numbers, sorted(set(numbers)))

    def test_how_a_run_ended_is_the_status(self) -> None:
        expected = {
            "text": ("completed", "response.completed"),
            "failed": ("failed", "response.failed"),
            "limited": ("incomplete", "response.incomplete"),
            "parked": ("incomplete", "response.incomplete"),
        }
        for name, (status, last) in expected.items():
            with self.subTest(name):
                told, response = fold(record(name)[1])
                self.assertEqual((response["status"], told[-1]["type"]), (status, last))
                self.assertEqual(told[-1]["response"], response)
        limited = fold(record("limited")[1])[1]
        self.assertEqual(limited["incomplete_details"], {"reason": "max_messages"})
        self.assertEqual(limited["metadata"], {"stop_reason": "max_steps"})
        self.assertIn("broke", fold(record("failed")[1])[1]["error"]["message"])
        self.assertIn("question_id", fold(record("parked")[1])[1]["metadata"])

    def test_void_pieces_are_in_no_response(self) -> None:
        told, response = fold(record("retried")[0])
        texts = [part["text"] for item in response["output"] for part in item["content"]]
        self.assertEqual(texts, ["second try"])
        self.assertEqual("".join(e.get("delta", "") for e in told), "firstsecond try")

    def test_a_run_that_cannot_be_followed_ends_once(self) -> None:
        response = ResponseEvents("resp_s_000000000000")
        log = record("tools")[1]
        told = [each for event in log[:5] for each in response.take(event)] + response.fail("the store is gone")
        self.assertEqual(told[-1]["type"], "response.failed")
        numbers = [event["sequence_number"] for event in told]
        self.assertEqual(numbers, sorted(set(numbers)))
        self.assertEqual((response.fail("again"), response.take(log[-1])), ([], []))


class Requests(unittest.TestCase):
    def test_a_users_message_becomes_parts(self) -> None:
        image = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
        request = read_request(
            {
                "model": "tea",
                "input": [{"role": "user", "content": [{"type": "input_text", "text": "Look"}, image]}],
                "stream": True,
                "temperature": 0.5,
                "tools": [],
                "text": {"format": {"type": "text"}},
                "metadata": {"a": "b"},
            }
        )
        parts = [{"type": "text", "text": "Look"}, {"type": "image", "data": "AAAA", "media_type": "image/png"}]
        self.assertEqual((request.model, list(request.prompt), request.stream), ("tea", parts, True))
        self.assertEqual(read_request({"input": "hi"}).prompt, [{"type": "text", "text": "hi"}])
        with_url = {"type": "input_image", "image_url": "https://x/y.png"}
        asked = read_request({"input": [{"type": "message", "role": "user", "content": [with_url]}]})
        self.assertEqual(asked.prompt, [{"type": "image", "url": "https://x/y.png"}])

    def test_unsupported_input_is_refused_with_its_reason(self) -> None:
        cases: list[Any] = [
            None,
            [],
            {},
            {"input": ""},
            {"input": []},
            {"input": 5},
            {"input": ["x"]},
            {"input": [{"role": "assistant", "content": "hi"}, {"role": "user", "content": "x"}]},
            {"input": [{"type": "function_call_output", "call_id": "1", "output": "x"}]},
            {"input": [{"role": "user", "content": []}]},
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png,x"}]}]},
            {"input": "x", "instructions": "obey me"},
            {"input": "x", "tools": [{"type": "function", "name": "x"}]},
            {"input": "x", "conversation": "c"},
            {"input": "x", "text": {"format": {"type": "json_schema"}}},
            {"input": "x", "model": 5},
            {"input": "x", "stream": "yes"},
            {"input": "x", "previous_response_id": "resp_other"},
            {"input": "x", "metadata": {"a": 1}},
            {"input": "x", "metadata": {str(n): "" for n in range(17)}},
        ]
        for case in cases:
            with self.subTest(str(case)[:60]), self.assertRaises(OptionsError):
                read_request(case)

    def test_an_id_names_its_session(self) -> None:
        for session in ("abc", "a_b", "resp_x_000000000000", "ü"):
            self.assertEqual(session_of(response_id(session, "a request")), session)
        for text in ("", "resp_", "resp_a", "resp_a_123", "x" * 500, "resp__000000000000"):
            self.assertIsNone(session_of(text))

    def test_errors_have_the_shape_of_the_vendors(self) -> None:
        for status, kind in ((400, "invalid_request_error"), (404, "not_found_error"), (503, "server_error")):
            self.assertEqual(error(status, "no")["error"], {"message": "no", "type": kind, "param": None, "code": None})


@unittest.skipUnless(importlib.util.find_spec("openai"), "the openai package is not installed")
class OfficialClient(unittest.TestCase):
    def test_the_official_types_take_every_event(self) -> None:
        from openai._models import construct_type
        from openai.types.responses import Response, ResponseStreamEvent

        for name in RUNS:
            told, response = fold(record(name)[0])
            for event in told:
                with self.subTest(name, type=event["type"]):
                    read: Any = construct_type(type_=ResponseStreamEvent, value=event)
                    self.assertEqual(read.type, event["type"])
                    type(read).model_validate(event)
            Response.model_validate(response)


class Parked(unittest.TestCase):
    def test_a_run_that_went_on_after_an_answer_is_a_response_of_its_own(self) -> None:
        options = begin("parked")
        asyncio.run(live_events(options))
        asked = next(event for event in stored(options) if event.type == "user.question")
        assert options.resume is not None

        async def go_on() -> list[Event]:
            store: Any = options.session_store
            await answer_question(store, str(options.resume), vars(asked)["question_id"], "yes")
            return await live_events(options, None)

        live = asyncio.run(go_on())
        _, response = fold(live)
        self.assertEqual(response["status"], "completed")
        self.assertEqual([i["content"][0]["text"] for i in response["output"]], ["Thanks."])


if __name__ == "__main__":
    unittest.main()
