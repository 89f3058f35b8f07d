"""AG-UI: inputs, the events of a run, and how the official client reads them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import unittest
from pathlib import Path
from typing import Any

from openagentic_sdk.errors import OptionsError
from openagentic_sdk.events import Event
from openagentic_sdk.runs.background import answer_question
from openagentic_sdk.serialization import dumps_json
from openagentic_sdk.server.agui import RunEvents, catch_up, conversation, read_run_input, refusal

from .recorded import RUNS, begin, fixture_logs, live_events, record

Json = dict[str, Any]
NODE = os.environ.get("OPENAGENTIC_TEST_NODE")


def fold(events: list[Event], **known: Any) -> list[Json]:
    run = RunEvents("thread", "run", **known)
    told = [each for event in events for each in run.take(event)]
    dumps_json(told)
    assert run.is_done == any(event.type == "result" for event in events)
    return told


def assembled(told: list[Json]) -> list[Any]:
    """The final state of a client: each message with its whole text, calls, results, and the order of everything else."""
    texts: dict[str, str] = {}
    steps = []
    for event in told:
        if event["type"].endswith("_CONTENT"):
            texts[event["messageId"]] = texts.get(event["messageId"], "") + event["delta"]
        elif not event["type"].endswith(("MESSAGE_END", "REASONING_END", "MESSAGE_START", "REASONING_START")):
            steps.append(json.dumps(event))
    return [texts, steps]


def assert_in_order(test: unittest.TestCase, told: list[Json]) -> None:
    """Check the protocol's rules on the order of events (a run's frame, and what is open)."""
    kinds = [event["type"] for event in told]
    test.assertEqual(kinds[0], "RUN_STARTED")
    test.assertEqual([kind for kind in kinds if kind in ("RUN_FINISHED", "RUN_ERROR")], kinds[-1:])
    is_open: set[tuple[str, str]] = set()
    for event in told:
        base, _, what = event["type"].rpartition("_")
        wire_id = event.get("messageId") or event.get("toolCallId") or event.get("subagentRunId")
        if base in ("TEXT_MESSAGE", "REASONING", "REASONING_MESSAGE", "TOOL_CALL", "SUBAGENT"):
            if what in ("START", "STARTED"):
                test.assertNotIn((base, wire_id), is_open)
                is_open.add((base, str(wire_id)))
            elif what != "RESULT":
                test.assertIn((base, wire_id), is_open)
                is_open -= {(base, str(wire_id))} if what in ("END", "FINISHED", "ERROR") else set()
        test.assertNotIn(None, event.values())
    test.assertEqual(is_open, set())


class Events(unittest.TestCase):
    def test_live_and_replayed_events_agree_and_are_in_order(self) -> None:
        for name in RUNS:
            with self.subTest(name):
                live, log = record(name)
                told, replayed = fold(live), fold(log)
                assert_in_order(self, told)
                assert_in_order(self, replayed)
                self.assertEqual(assembled(replayed), assembled(told))

    def test_a_run_that_is_cut_after_any_event_ends_in_order(self) -> None:
        for name in RUNS:
            live, _ = record(name)
            for cut in range(len(live)):
                run = RunEvents("thread", "run")
                told = [each for event in live[:cut] for each in run.take(event)]
                with self.subTest(name, cut=cut):
                    assert_in_order(self, told + run.fail("the store is gone", "store"))
                    self.assertEqual((run.fail("again"), run.take(live[-1])), ([], []))

    def test_every_fixture_log_is_projected_in_order_from_any_event_on(self) -> None:
        for name, events in fixture_logs().items():
            conversation(events)
            for start in range(len(events)):
                run = RunEvents("thread", "run")
                told = [each for event in events[start:] for each in run.take(event)]
                with self.subTest(name, start=start):
                    assert_in_order(self, told + run.fail("it stops here"))

    def test_how_a_run_ended(self) -> None:
        expected = {"text": "success", "parked": "interrupt", "failed": "ProviderError", "limited": "max_steps"}
        for name, outcome in expected.items():
            last = fold(record(name)[1])[-1]
            with self.subTest(name):
                found = last["outcome"]["type"] if last["type"] == "RUN_FINISHED" else last["code"]
                self.assertIn(found, (outcome, "IncompleteResponseError"))

    def test_a_parked_run_is_an_interrupt_and_its_answer_continues_with_results_only(self) -> None:
        options = begin("parked")
        told = fold(asyncio.run(live_events(options)))
        (interrupt,) = told[-1]["outcome"]["interrupts"]
        self.assertEqual((interrupt["reason"], interrupt["toolCallId"]), ("input_required", "call_1_1"))
        data = {
            "threadId": "thread",
            "runId": "next",
            "messages": [],
            "resume": [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"answer": "yes"}}],
        }
        run = read_run_input(data)
        self.assertIsNone(refusal(run, [interrupt["id"]]))

        async def go_on() -> list[Event]:
            store: Any = options.session_store
            await answer_question(store, str(options.resume), interrupt["id"], run.answers[interrupt["id"]])
            return await live_events(options, None)

        told = fold(asyncio.run(go_on()))
        assert_in_order(self, told)
        kinds = [event["type"] for event in told]
        self.assertNotIn("TOOL_CALL_START", kinds)
        self.assertEqual(kinds.count("TOOL_CALL_RESULT"), 2)

    def test_ignored_fields_of_a_client_are_reported_once_at_the_start(self) -> None:
        told = fold(record("text")[1], left_out=["tools"], snapshot=[{"id": "user.1", "role": "user", "content": "x"}])
        self.assertEqual([event["type"] for event in told[:3]], ["RUN_STARTED", "MESSAGES_SNAPSHOT", "CUSTOM"])
        assert_in_order(self, told)

    def test_a_dangling_thought_is_closed(self) -> None:
        live, _ = record("text")
        thought = next(i for i, event in enumerate(live) if event.type == "reasoning.delta")
        run = RunEvents("thread", "run")
        told = [each for event in [*live[: thought + 1], live[-1]] for each in run.take(event)]
        assert_in_order(self, told)


BASE: Json = {"threadId": "t", "runId": "r", "messages": [{"id": "1", "role": "user", "content": "hi"}]}


class Inputs(unittest.TestCase):
    def test_only_a_new_message_of_the_user_is_a_prompt(self) -> None:
        run = read_run_input(BASE)
        self.assertEqual((run.thread_id, run.run_id, run.prompt), ("t", "r", [{"type": "text", "text": "hi"}]))
        answer = {"id": "message.3", "role": "assistant", "content": "hello"}
        old = read_run_input({**BASE, "messages": [*BASE["messages"], answer], "state": {"a": 1}})
        self.assertEqual((old.prompt, old.known_ids, old.left_out), (None, ["message.3"], ["state"]))
        self.assertIn("asks for nothing", refusal(old, []) or "")
        image = {"type": "image", "source": {"type": "data", "value": "AAAA", "mimeType": "image/png"}}
        document = {"type": "document", "source": {"type": "url", "value": "https://x/y.pdf"}}
        content = [{"type": "text", "text": "Look"}, image, document]
        run = read_run_input({**BASE, "messages": [{"role": "user", "content": content}]})
        self.assertEqual([part["type"] for part in run.prompt or ()], ["text", "image", "file"])

    def test_unsupported_input_is_refused_with_its_reason(self) -> None:
        file = {"type": "image", "source": {"type": "file", "value": "file_1"}}
        cases: list[Any] = [
            None,
            [],
            {},
            {**BASE, "threadId": ""},
            {**BASE, "threadId": "x" * 500},
            {**BASE, "runId": 5},
            {**BASE, "messages": None},
            {**BASE, "messages": ["x"]},
            {**BASE, "messages": [{"role": "user"}]},
            {**BASE, "messages": [{"role": "user", "content": []}]},
            {**BASE, "messages": [{"role": "user", "content": [file]}]},
            {**BASE, "messages": [{"role": "user", "content": [{"type": "video", "source": {}}]}]},
            {**BASE, "resume": "x"},
            {**BASE, "resume": [{"status": "resolved", "payload": "yes"}]},
            {**BASE, "resume": [{"interruptId": "q", "status": "resolved"}]},
            {**BASE, "resume": [{"interruptId": "q", "status": "resolved", "payload": {"a": 1}}]},
        ]
        for case in cases:
            with self.subTest(str(case)[:60]), self.assertRaises(OptionsError):
                read_run_input(case)

    def test_what_an_answer_may_look_like(self) -> None:
        for payload, answer in (
            ("yes", "yes"),
            ({"answer": "Milk."}, "Milk."),
            (True, "yes"),
            ({"approved": False}, "no"),
        ):
            run = read_run_input({**BASE, "resume": [{"interruptId": "q", "status": "resolved", "payload": payload}]})
            self.assertEqual(run.answers, {"q": answer})
        run = read_run_input({**BASE, "resume": [{"interruptId": "q", "status": "cancelled", "payload": "yes"}]})
        self.assertTrue(run.answers["q"].startswith("no"))

    def test_a_waiting_thread_takes_nothing_but_all_of_its_answers(self) -> None:
        run = read_run_input({**BASE, "resume": [{"interruptId": "a", "status": "resolved", "payload": "yes"}]})
        self.assertIsNone(refusal(run, ["a"]))
        self.assertIsNone(refusal(run, [], answered={"a"}), "a repeated answer changes nothing")
        self.assertIn("'a'", refusal(run, []) or "")
        self.assertIn("b", refusal(run, ["a", "b"]) or "")
        self.assertIn("a", refusal(read_run_input(BASE), ["a"]) or "")

    def test_a_client_that_is_behind_is_notified_and_one_of_another_thread_is_refused(self) -> None:
        log = record("tools")[1]
        messages = conversation(log)
        ids = [message["id"] for message in messages if message["role"] == "assistant"]

        def asking(*known: str) -> Any:
            had = [{"id": wire_id, "role": "assistant", "content": "x"} for wire_id in known]
            return read_run_input({**BASE, "messages": [*had, *BASE["messages"]]})

        self.assertIsNone(catch_up(asking(*ids), log, len(log)))
        self.assertEqual(catch_up(asking(ids[0]), log, len(log)), [*messages, BASE["messages"][0]])
        self.assertEqual(catch_up(asking(), log, len(log)), [*messages, BASE["messages"][0]])
        self.assertIsNone(catch_up(asking(), [], 0))
        with self.assertRaises(OptionsError):
            catch_up(asking(*ids, "from-elsewhere"), log, len(log))
        request = next(event.seq for event in log if event.type == "model.request")
        catch_up(asking(f"message.{request}"), log[:4], 4)  # the process died in the middle of that answer


@unittest.skipUnless(
    NODE, "no Node with @ag-ui/client: OPENAGENTIC_TEST_NODE and OPENAGENTIC_TEST_NODE_MODULES name them"
)
class OfficialClient(unittest.TestCase):
    def _play(self, threads: list[Json]) -> list[Json]:
        script = Path(__file__).with_name("agui_client.mjs")
        done = subprocess.run(
            [str(NODE), os.fspath(script)], input=json.dumps(threads), capture_output=True, text=True, timeout=300
        )
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])
        return list(json.loads(done.stdout))

    def test_it_takes_every_run_and_has_the_conversation_of_the_log_then(self) -> None:
        threads, wanted = [], []
        for name in RUNS:
            live, log = record(name)
            for events in (live, log):
                told = [{**event, "runId": "r"} if "runId" in event else event for event in fold(events)]
                threads.append({"threadId": "thread", "messages": [], "runs": [{"runId": "r", "events": told}]})
                wanted.append((name, [m for m in conversation(log) if m["role"] != "user"], told[-1]))
        for result, (name, messages, last) in zip(self._play(threads), wanted, strict=True):
            with self.subTest(name):
                if last["type"] == "RUN_FINISHED":
                    self.assertEqual(result["errors"], [])
                had = {message["id"]: message for message in result["messages"]}
                for message in messages:
                    self.assertEqual(_plain(had[message["id"]]), _plain(message))

    def test_a_snapshot_and_the_run_after_it_add_up_to_the_conversation(self) -> None:
        log = record("tools")[1]
        snapshot = [*conversation(log), {"id": "mine", "role": "user", "content": "Go on."}]
        told = fold(record("text")[0], snapshot=snapshot)
        (result,) = self._play([{"threadId": "thread", "messages": [], "runs": [{"runId": "run", "events": told}]}])
        self.assertEqual(result["errors"], [])
        self.assertEqual([m["id"] for m in result["messages"]][: len(snapshot)], [m["id"] for m in snapshot])


def _plain(message: Json) -> Json:
    return {key: value for key, value in message.items() if key not in ("metadata",) and value != ""}


if __name__ == "__main__":
    unittest.main()
