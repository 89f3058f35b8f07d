"""A request id identifies a prompt within a store: a repeated request continues or returns its own answer, never another."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import tempfile
import unittest
from dataclasses import replace
from functools import partial
from pathlib import Path

from openagentic_sdk import AgentClient, run, submit
from openagentic_sdk.errors import OpenAgentSdkError, OptionsError, RequestConflictError
from openagentic_sdk.events import Result, SessionCompacted, UserMessage
from openagentic_sdk.ground.frozen import changed
from openagentic_sdk.hooks.engine import HookEngine
from openagentic_sdk.hooks.models import HookDecision, HookMatcher
from openagentic_sdk.kernel.prompt import Said
from openagentic_sdk.parts.record.lifecycle import rewind_session
from openagentic_sdk.runs.replay import replay_events
from openagentic_sdk.serialization import dumps_event, loads_event
from openagentic_sdk.sessions.folds.view import SessionView
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.sessions.resume import load_view
from openagentic_sdk.sessions.sqlite import SqliteSessionStore
from openagentic_sdk.sessions.store import FileSessionStore
from openagentic_sdk.testing.scripted import ScriptedProvider
from tests.guards.source import ROOT
from tests.pythons import Python
from tests.size import full_size, sized
from tests.stores.minimal import MinimalStore
from tests.waiting import until

from .support import events_of, options_for, result_of

GONE = {"error": {"message": "gone"}}
GETTING_OR_MAKING = """
import sys
from openagentic_sdk import FileSessionStore, OpenAgenticOptions, run_sync
from openagentic_sdk.errors import SessionLockedError
from openagentic_sdk.testing import ScriptedProvider

store = FileSessionStore(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
while True:
    model = ScriptedProvider(["x"])
    try:
        options = OpenAgenticOptions(provider=model, model="m", session_store=store, session="mine")
        print(run_sync(prompt="Hi.", options=options).session_id)
        break
    except SessionLockedError:
        pass
"""


def stores(folder):
    yield MemorySessionStore()
    yield FileSessionStore(f"{folder}/files")
    yield SqliteSessionStore(f"{folder}/sessions.db")
    yield MinimalStore()


class AnswerTest(unittest.IsolatedAsyncioTestCase):
    """Requests within one session: which answer belongs to which request."""

    def setUp(self):
        self.store = MemorySessionStore()

    async def ask(self, request_id, prompt, *turns, **more):
        provider = ScriptedProvider(list(turns))
        options = options_for(provider, request_id=request_id, session="s", session_store=self.store, **more)
        result = await run(prompt=prompt, options=options)
        return result.final_text, result.stop_reason, len(provider.requests)

    def prompts(self, name="s"):
        return [event.text for event in self.store.read_events(name) if isinstance(event, UserMessage)]

    async def test_a_request_that_failed_is_run_again_and_never_gets_the_answer_to_a_later_one(self):
        self.assertEqual((await self.ask("r1", "Capital of Italy?", GONE))[1], "error")
        self.assertEqual(await self.ask("r2", "Capital of France?", "Paris."), ("Paris.", "end", 1))
        self.assertEqual(await self.ask("r1", "Capital of Italy?", "Rome."), ("Rome.", "end", 1))
        self.assertEqual(self.prompts(), ["Capital of Italy?", "Capital of France?", "Capital of Italy?"])
        for _ in range(2):
            self.assertEqual(await self.ask("r1", "Capital of Italy?"), ("Rome.", "end", 0))
            self.assertEqual(await self.ask("r2", "Capital of France?"), ("Paris.", "end", 0))

    async def test_a_request_that_was_cut_off_after_its_answer_ends_with_that_answer(self):
        await self.ask("r1", "Capital of Italy?", "Rome.")
        whole = self.store
        for prompt in ("Capital of Italy?", None):
            with self.subTest(prompt=prompt):
                self.store = MemorySessionStore()
                events = [changed(event, seq=None) for event in whole.read_events("s") if not isinstance(event, Result)]
                self.store.create_session(session_id="s")
                self.store.append_events("s", events)
                payloads = []
                hooks = HookEngine(stop=[HookMatcher("ear", hook=payloads.append)])
                options = options_for([], session="s", session_store=self.store, hooks=hooks)
                options = replace(options, request_id=None if prompt is None else "r1")
                self.assertEqual((await run(prompt=prompt, options=options)).final_text, "Rome.")
                self.assertEqual([payload["last_assistant_message"] for payload in payloads], ["Rome."])
                self.assertEqual(await self.ask("r1", "Capital of Italy?"), ("Rome.", "end", 0))

    async def test_a_request_whose_answer_a_hook_refused_is_sent_again(self):
        refuse = HookMatcher("editor", hook=lambda _: HookDecision(stops=True, block_reason="Too short."))
        for hooks in (HookEngine(stop=[refuse]), HookEngine(after_model_call=[refuse])):
            self.store = MemorySessionStore()
            refused = await self.ask("r1", "Capital of Italy?", "R.", hooks=hooks)
            self.assertEqual(refused[0], "")
            self.assertTrue(refused[1].startswith("blocked:"), refused)
            goes_on = await run(prompt=None, options=options_for([], resume="s", session_store=self.store))
            self.assertEqual(goes_on.final_text, "")
            self.assertEqual(await self.ask("r1", "Capital of Italy?", "Rome."), ("Rome.", "end", 1))
            self.assertEqual(self.prompts(), ["Capital of Italy?", "Capital of Italy?"])

    async def test_an_answered_request_that_is_asked_again_changes_nothing_and_swallows_no_pending_one(self):
        await self.ask("r1", "Capital of Italy?", "Rome.")
        await self.ask("r2", "Capital of France?", GONE)
        before, row = self.store.read_events("s"), self.store.read_summary("s")
        self.assertEqual(await self.ask("r1", "Capital of Italy?"), ("Rome.", "end", 0))
        self.assertEqual((self.store.read_events("s"), self.store.read_summary("s")), (before, row))
        self.assertEqual(await self.ask("r2", "Capital of France?", "Paris."), ("Paris.", "end", 1))
        self.assertEqual(
            self.prompts(), ["Capital of Italy?", "Capital of France?"], "a pending request was added twice"
        )

    async def test_an_answered_request_leaves_a_question_of_a_later_one_open(self):
        from openagentic_sdk.permissions.gate import PermissionGate
        from openagentic_sdk.tools.function import tool

        @tool
        def pay(to: str) -> str:
            """Pay."""
            return f"paid {to}"

        options = options_for(["Hello."], session_store=self.store, tools=[pay], permission_gate=PermissionGate())
        await submit("Hi.", replace(options, session="s", request_id="r1")).wait()
        call = {"tool_calls": [{"name": "pay", "arguments": {"to": "Ada"}}]}
        parks = replace(options, provider=ScriptedProvider([call, "Done."]), resume="s", request_id="r2")
        parked = await submit("Pay Ada.", parks).wait()
        self.assertEqual(parked.state, "waiting")
        again = replace(options, provider=ScriptedProvider([]), resume="s", request_id="r1")
        self.assertEqual((await submit("Hi.", again).wait()).data, "Hello.")
        self.assertEqual(self.store.read_summary("s").state, "waiting")
        self.assertEqual(self.store.read_summary("s").open_questions, (parked.question.question_id,))

    async def test_a_result_names_its_request_through_json_and_a_run_that_continues_keeps_the_name(self):
        await self.ask("r1", "Capital of Italy?", GONE)
        options = options_for(["Rome."], resume="s", session_store=self.store)
        await run(prompt=None, options=options)
        results = [event for event in self.store.read_events("s") if isinstance(event, Result)]
        self.assertEqual([loads_event(dumps_event(event)).request_id for event in results], ["r1", "r1"])
        self.assertEqual(await self.ask("r1", "Capital of Italy?"), ("Rome.", "end", 0))

    async def test_the_same_id_with_another_prompt_is_refused_and_changes_nothing(self):
        await self.ask("r1", [{"type": "text", "text": "Pay."}], "Paid.")
        before = self.store.read_events("s")
        for prompt in ("Pay twice.", [{"type": "text", "text": "Pay."}, {"type": "image", "url": "http://x/y.png"}]):
            with self.assertRaisesRegex(RequestConflictError, "r1.*another prompt") as caught:
                await self.ask("r1", prompt, "Paid twice.")
            self.assertIsInstance(caught.exception, OpenAgentSdkError)
            self.assertEqual((caught.exception.request_id, caught.exception.session_id), ("r1", "s"))
        self.assertEqual(self.store.read_events("s"), before)
        self.assertEqual(
            (await self.ask("r1", "Pay."))[0], "Paid.", "the same content in another form is the same prompt"
        )

    async def test_the_request_id_names_the_first_of_several_prompts(self):
        async def prompts():
            yield "One?"
            yield "Two?"

        options = options_for(["1", "2"], request_id="r1", session="s", session_store=self.store)
        result = result_of(await events_of(prompts(), options))
        self.assertEqual((result.final_text, result.request_id), ("2", None))
        async with AgentClient(
            options_for(["3", "4"], request_id="r2", session="s", session_store=self.store)
        ) as client:
            for text in ("Three?", "Four?"):
                await client.send(text)
                self.assertEqual(
                    result_of([event async for event in client.receive()]).final_text, {"T": "3"}.get(text[0], "4")
                )

    async def test_the_prompts_of_a_repeated_source_are_answered_once_each(self):
        async def prompts(*names):
            for name in names:
                yield Said(f"{name}?", request_id=name)

        for compacts in (False, True):
            self.store = MemorySessionStore()
            options = options_for(["1", GONE], session="s", session_store=self.store)
            self.assertEqual((await run(prompt=prompts("One", "Two"), options=options)).stop_reason, "error")
            if compacts:
                self.store.append_event("s", SessionCompacted(self.store.last_seq("s"), "They talked."))
            again = replace(options, provider=ScriptedProvider(["2"]))
            self.assertEqual((await run(prompt=prompts("One", "Two"), options=again)).final_text, "2")
            self.assertEqual(self.prompts(), ["One?", "Two?"])
            for name, answer in (("One", "1"), ("Two", "2")):
                self.assertEqual(await self.ask(name, f"{name}?"), (answer, "end", 0))

    async def test_a_request_that_was_rewound_before_its_answer_is_sent_again(self):
        await self.ask("r1", "Capital of Italy?", GONE)
        rewind_session(self.store, "s", turns=1)
        self.assertEqual((await self.ask("r1", "Capital of Italy?", "Rome."))[0], "Rome.")

    async def test_an_answer_that_was_cut_off_is_asked_for_again(self):
        """Not every endpoint accepts a conversation that ends with an answer; a retry within the run voids it instead."""
        cut = {"text": "Rome, which", "error": {"message": "gone", "after": 5}}
        for prompt, request_id in (("Capital of Italy?", "r1"), (None, None)):
            self.store = MemorySessionStore()
            self.assertEqual((await self.ask("r1", "Capital of Italy?", cut))[1], "error")
            provider = ScriptedProvider(["Rome."])
            options = options_for(provider, session="s", session_store=self.store, request_id=request_id)
            result = await run(prompt=prompt, options=options)
            with self.subTest(prompt=prompt):
                self.assertEqual((result.final_text, result.stop_reason), ("Rome.", "end"))
                sent = [(message["role"], message["content"]) for message in provider.requests[0]["messages"]]
                self.assertEqual(sent[1:-1], [("user", "Capital of Italy?"), ("assistant", "Rome,")])
                self.assertEqual((sent[-1][0], "was cut off" in sent[-1][1]), ("user", True))
                self.assertTrue((await replay_events(self.store.read_events("s"))).ok)

    async def test_an_answer_that_was_rewound_is_asked_for_again_although_no_run_ended_with_it(self):
        await self.ask("r1", "Capital of Italy?", "Milan.")
        events = [changed(event, seq=None) for event in self.store.read_events("s") if not isinstance(event, Result)]
        self.store = MemorySessionStore()
        self.store.create_session(session_id="s")
        self.store.append_events("s", events)
        rewind_session(self.store, "s", to_seq=2)
        options = options_for(["Rome."], session="s", session_store=self.store)
        self.assertEqual((await run(prompt=None, options=options)).final_text, "Rome.")

    async def test_answers_are_found_after_a_compaction_too(self):
        await self.ask("r1", "Capital of Italy?", "Rome.")
        await self.ask("r2", "Capital of France?", GONE)
        self.store.append_event("s", SessionCompacted(self.store.last_seq("s"), "Capitals."))
        self.assertEqual((await self.ask("r1", "Capital of Italy?"))[0], "Rome.")
        with self.assertRaises(RequestConflictError):
            await self.ask("r1", "Capital of Spain?")
        self.assertEqual(load_view(self.store, "s")[0].requests.asked, ("r2",))

    def test_in_an_older_log_an_answer_is_never_that_of_a_later_prompt(self):
        old = [
            UserMessage("Capital of Italy?", request_id="r1", seq=1),
            Result("", "s", "error", seq=2),
            UserMessage("Capital of France?", request_id="r2", seq=3),
            Result("Paris.", "s", "end", seq=4),
        ]
        view = SessionView().extend(old)
        self.assertEqual((view.requests.answer_to("r1"), view.requests.answer_to("r2")), (None, old[3]))


class StoreTest(unittest.IsolatedAsyncioTestCase):
    """Requests across sessions, stores and processes."""

    @full_size
    async def test_an_id_is_unique_in_every_store_whatever_session_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            for store in stores(folder):
                with self.subTest(type(store).__name__):
                    self.addCleanup(store.close)

                    async def ask(request_id, turns, store=store, **where):
                        options = options_for(turns, request_id=request_id, session_store=store, **where)
                        return await run(prompt="Summarise.", options=options)

                    first = await ask("r1", ["Once."])
                    self.assertEqual((await ask("r1", [])).session_id, first.session_id)
                    named = await ask("r2", ["Named."], session="mine")
                    self.assertEqual(named.session_id, "mine")
                    self.assertEqual(
                        ((await ask("r2", [])).final_text, (await ask("r2", [])).session_id), ("Named.", "mine")
                    )
                    store.create_session(session_id="other")
                    for where in (
                        {"session": "new"},
                        {"session": "other"},
                        {"resume": "other"},
                        {"session_id": "fresh"},
                    ):
                        with self.assertRaisesRegex(RequestConflictError, "another session"):
                            await ask("r2", [], **where)
                    self.assertEqual(sorted(store.list_sessions()), sorted([first.session_id, "mine", "other"]))
                    with self.assertRaises(RequestConflictError):
                        options = options_for([], request_id="r1", session_store=store)
                        await submit("Something else.", options).wait()

    async def test_a_session_is_gotten_or_made_by_its_name(self):
        with tempfile.TemporaryDirectory() as folder:
            for store in stores(folder):
                self.addCleanup(store.close)
                for count in (1, 2):
                    result = await run(prompt="Hi.", options=options_for(["Hi."], session="mine", session_store=store))
                    self.assertEqual((result.session_id, store.list_sessions()), ("mine", ["mine"]))
                    self.assertEqual(store.read_summary("mine").turns, count)

    async def test_hostile_names_and_two_places_at_once_are_refused(self):
        for name in ("../up", "a/b", "", ".", "a\0b", "NUL", "a b", "y" * 129, "\ud800"):
            with self.subTest(name), self.assertRaises(OptionsError):
                await run(prompt="Hi.", options=options_for([], session=name))
        for other in ({"resume": "x"}, {"session_id": "x"}, {"continue_last": True}):
            with self.assertRaisesRegex(OptionsError, "session"):
                await run(prompt="Hi.", options=options_for([], session="mine", **other))


class ProcessesTest(unittest.TestCase):
    @full_size
    def test_two_processes_that_get_or_make_a_session_end_in_one(self):
        for _ in range(3):
            with tempfile.TemporaryDirectory() as folder:
                pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
                both = [Python("-c", GETTING_OR_MAKING, folder, **pipes) for _ in range(2)]
                self.assertEqual([each.stdout.readline() for each in both], ["ready\n"] * 2)
                for each in both:
                    each.stdin.write("\n")
                    each.stdin.flush()
                self.assertEqual([each.communicate()[0] for each in both], ["mine\n"] * 2)
                store = FileSessionStore(folder)
                self.assertEqual((store.list_sessions(), store.read_summary("mine").turns), (["mine"], 2))


class ExampleTest(unittest.TestCase):
    """The example in docs/embedding.md, verbatim."""

    @full_size
    def test_however_often_it_is_killed_each_document_has_one_session_and_one_answer(self):
        page = (ROOT / "docs" / "embedding.md").read_text("utf-8")
        [code] = [block.split("```")[0] for block in page.split("```python\n") if "DOCUMENTS = " in block]
        count = sized(24, 40, 500)
        code = code.replace("range(3)", f"range({count})")
        for _ in range(20):  # the example may finish before this process sees the session and kills it
            with tempfile.TemporaryDirectory() as folder:
                if self.kill_often(folder, code, count) > 2:
                    return
        self.fail("the example was never killed three times")

    def kill_often(self, folder, code, count):
        """Kill and restart the example until it finishes, check its sessions, and return the number of kills."""
        random_s = random.Random(29)
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        kills, seen = 0, 0
        while True:
            process = Python("-c", code, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
            # Kill it after a random number of new sessions, until the planned number of kills is reached.
            wanted = None if kills >= sized(4, 8, 60) else seen + random_s.randrange(1, 1 + max(2, count // 8))
            sessions = Path(folder, "runs", "sessions")
            if wanted is not None:
                until(partial(has_come_so_far, process, sessions, wanted), "there is another session")
            if wanted is not None and process.poll() is None:
                process.send_signal(signal.SIGKILL)
                kills += 1
            out, _ = process.communicate()
            seen = len(list_sessions(sessions))
            if process.returncode == 0:
                break
        self.assertEqual(len(json.loads(out.splitlines()[-1])), count)
        store = FileSessionStore(Path(folder, "runs"))
        self.assertEqual(len(store.list_sessions()), count)
        for name in store.list_sessions():
            events = store.read_events(name)
            prompts = [event for event in events if isinstance(event, UserMessage) and event.origin == "user"]
            answers = [event for event in events if isinstance(event, Result) and event.stop_reason == "end"]
            self.assertEqual((len(prompts), len(answers)), (1, 1))
            self.assertEqual(answers[0].request_id, prompts[0].request_id)
        return kills


def has_come_so_far(process, sessions, wanted):
    return process.poll() is not None or len(list_sessions(sessions)) >= wanted


def list_sessions(folder):
    return [name for name in os.listdir(folder) if not name.startswith(".")] if folder.is_dir() else []


if __name__ == "__main__":
    unittest.main()
