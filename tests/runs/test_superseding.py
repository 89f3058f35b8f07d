"""A prompt to a session that waits for a person is stored together with the end of everything that waited, or refused."""

import asyncio
import tempfile
import unittest

from openagentic_sdk import (
    AgentClient,
    AgentDefinition,
    FileSessionStore,
    MemorySessionStore,
    PermissionGate,
    answer_question,
    fork_session,
    run,
    submit,
    tool,
)
from openagentic_sdk.errors import OptionsError, QuestionOpenError
from openagentic_sdk.events import Result, SystemInit, UserAnswer, UserMessage, UserQuestion
from openagentic_sdk.ground.frozen import changed
from openagentic_sdk.hooks.engine import HookEngine
from openagentic_sdk.hooks.models import HookDecision, HookMatcher
from openagentic_sdk.kernel.prompt import Said
from openagentic_sdk.parts.record.lifecycle import rewind_session
from openagentic_sdk.runs.agent_replay import replay_agent
from openagentic_sdk.runs.background import open_questions
from openagentic_sdk.runs.replay import replay_events
from openagentic_sdk.sessions.authority import Authority
from openagentic_sdk.sessions.rebuild import rebuild_messages
from openagentic_sdk.sessions.seal import Seal
from openagentic_sdk.testing.validity import find_fault
from openagentic_sdk.tools.session.ask_user_question import AskUserQuestionTool
from openagentic_sdk.tools.session.background_tasks import TaskOutputTool
from openagentic_sdk.tools.session.task import TaskTool
from tests.runtime.support import assert_closed, echo, options_for
from tests.size import drawn, full_size

paid = []


@tool
def pay(amount: int) -> str:
    """Pay."""
    paid.append(amount)
    return f"paid {amount}"


PAY = {"tool_calls": [{"name": "pay", "arguments": {"amount": 5}}]}
ASK = {"name": "AskUserQuestion", "arguments": {"question": "Which one?", "choices": ["one", "two"]}}
HELP = {"tool_calls": [{"name": "Task", "arguments": {"agent": "helper", "prompt": "work"}}]}


async def prompts(*texts):
    for text in texts:
        yield text


class SupersedingTest(unittest.IsolatedAsyncioTestCase):
    def setUp(self):
        paid.clear()
        self.store = MemorySessionStore()

    def settings(self, turns, **changes):
        given = {"tools": [pay, echo, AskUserQuestionTool()], "permission_gate": PermissionGate(allow=["Task"])}
        return options_for(turns, **{"session_store": self.store, **given, **changes})

    def family(self, turns, **changes):
        helper = AgentDefinition("helps", "You help", tools=("pay",))
        lead = AgentDefinition("leads", "You lead", tools=("Task",))
        tools = [pay, echo, TaskTool({"helper": "helps", "lead": "leads"}, background=True), TaskOutputTool()]
        return self.settings(turns, agents={"helper": helper, "lead": lead}, tools=tools, **changes)

    async def parked(self, turns=(PAY,), make=None, **changes):
        result = await submit("pay", (make or self.settings)(list(turns), **changes)).wait()
        self.assertEqual(result.state, "waiting", result.error)
        return result.session_id

    async def assert_superseded(self, session_id, said="never mind", store=None):
        """Assert that everything waiting has ended with the expected outcome, and no later answer makes a call run."""
        store = store or self.store
        events = assert_closed(self, store, session_id)
        message = next(event for event in events if isinstance(event, UserMessage) and event.text == said)
        asked = [event.question_id for event in events if isinstance(event, UserQuestion) and event.seq < message.seq]
        ends = {event.question_id: event for event in events if isinstance(event, UserAnswer)}
        self.assertTrue(asked)
        for question_id in asked:
            self.assertEqual((ends[question_id].answered_by, ends[question_id].answer), ("superseded", ""))
        # One batch: no other event is between the ends and the prompt.
        first = min(ends[question_id].seq for question_id in asked)
        kinds = {event.type for event in events[first - 1 : message.seq - 1]}
        self.assertLessEqual(kinds, {"user.answer", "tool.result", "subagent.finished", "user.message"})
        for name in store.list_sessions():
            assert_closed(self, store, name)
            for question_id in asked:
                with self.assertRaisesRegex(OptionsError, question_id):
                    await answer_question(store, name, question_id, "yes")
        self.assertEqual(paid, [])
        self.assertEqual(store.read_summary(session_id).open_questions, ())

    async def test_a_prompt_of_a_source_whose_sender_may_not_answer_leaves_the_question_open(self):
        session_id = await self.parked()

        async def stranger():
            yield Said("never mind", may_answer=False)

        refused = await run(prompt=stranger(), options=self.settings(["Fine."], resume=session_id))
        self.assertEqual((refused.stop_reason, refused.error_type), ("error", "QuestionOpenError"))
        (question_id,) = self.store.read_summary(session_id).open_questions
        await answer_question(self.store, session_id, question_id, "yes")
        await run(prompt=None, options=self.settings(["Paid."], resume=session_id))
        self.assertEqual(paid, [5])

    async def test_no_answer_is_taken_for_a_call_that_a_fork_ended_or_a_rewind_took_back(self):
        session_id = await self.parked()
        (question_id,) = self.store.read_summary(session_id).open_questions
        fork_id = fork_session(self.store, session_id)
        rewind_session(self.store, session_id, turns=1)
        for name in (fork_id, session_id):
            before = self.store.last_seq(name)
            with self.assertRaisesRegex(OptionsError, question_id):
                await answer_question(self.store, name, question_id, "yes")
            self.assertEqual(self.store.last_seq(name), before)

    async def test_a_rewind_ends_the_questions_that_it_undoes_those_of_subagents_too_and_the_run(self):
        cases = {
            "own": (self.settings, [PAY]),
            "several": (self.settings, [{"tool_calls": [*PAY["tool_calls"], ASK]}]),
            "subagent": (self.family, [HELP, PAY]),
        }
        for name, (make, turns) in cases.items():
            for files in (False, True):
                with self.subTest(name, files=files):
                    self.store = MemorySessionStore()
                    session_id = await self.parked(turns, make)
                    before = self.store.last_seq(session_id)
                    asked_ids = self.store.read_summary(session_id).open_questions
                    self.assertTrue(asked_ids)
                    done = rewind_session(self.store, session_id, turns=1, files=files)
                    self.assertEqual((done.type, done.seq), ("session.rewound", self.store.last_seq(session_id)))
                    row = self.store.read_summary(session_id)
                    self.assertEqual((row.state, row.open_questions, row.subagents), ("idle", (), ()))
                    self.assertEqual(open_questions(self.store, session_id, Seal()), [])
                    events = self.store.read_events(session_id)
                    self.assertEqual((events[-2].type, events[-2].stop_reason), ("result", "interrupted"))
                    ends = [event for event in events if isinstance(event, UserAnswer)]
                    self.assertEqual(
                        {(end.question_id, end.answered_by) for end in ends}, {(i, "rewound") for i in asked_ids}
                    )
                    self.assertTrue(all(end.seq > before for end in ends))
                    for child in self.store.list_children(session_id):
                        assert_closed(self, self.store, child)
                        self.assertEqual(self.store.read_summary(child).open_questions, ())
                    result = await run(prompt="anew", options=make(["Fine."], resume=session_id))
                    self.assertEqual((result.final_text, paid), ("Fine.", []))
                    assert_closed(self, self.store, session_id)

    async def test_a_rewind_to_after_a_question_leaves_it_open(self):
        session_id = await self.parked()
        (question_id,) = self.store.read_summary(session_id).open_questions
        rewind_session(self.store, session_id, to_seq=self.store.last_seq(session_id))
        row = self.store.read_summary(session_id)
        self.assertEqual((row.state, row.open_questions), ("waiting", (question_id,)))
        await answer_question(self.store, session_id, question_id, "yes")
        await run(prompt=None, options=self.settings(["Paid."], resume=session_id))
        self.assertEqual(paid, [5])

    async def test_a_prompt_ends_the_question_that_waits_and_the_model_reads_both(self):
        answer = {"text": "As you wish.", "expect": {"contains": "said something else"}}
        for prompt in ("never mind", prompts("never mind")):
            self.store = MemorySessionStore()
            session_id = await self.parked()
            result = await run(prompt=prompt, options=self.settings([answer], resume=session_id))
            self.assertEqual((result.stop_reason, result.final_text), ("end", "As you wish."))
            await self.assert_superseded(session_id)

    async def test_a_prompt_supersedes_open_questions_however_it_is_sent(self):
        async def say_with_submit(options):
            await submit("never mind", options).wait()

        async def say_with_client(options):
            async with AgentClient(options) as client:
                await client.send("never mind")
                async for _ in client.receive():
                    pass

        async def say_at_a_terminal(options):
            gate = PermissionGate(interactive=True, user_answerer=self.fail)
            await run(prompt="never mind", options=changed(options, permission_gate=gate))

        async def say_where_all_is_allowed(options):
            gate = PermissionGate(permission_mode="bypass")
            await run(prompt="never mind", options=changed(options, permission_gate=gate))

        for say in (say_with_submit, say_with_client, say_at_a_terminal, say_where_all_is_allowed):
            with self.subTest(say.__name__):
                self.store = MemorySessionStore()
                session_id = await self.parked()
                await say(self.settings(["Good."], resume=session_id))
                await self.assert_superseded(session_id)

    async def test_several_calls_and_what_had_not_begun_beside_them_end_together(self):
        calls = [ASK, PAY["tool_calls"][0], {"name": "echo", "arguments": {"text": "x"}}, PAY["tool_calls"][0]]
        session_id = await self.parked([{"tool_calls": calls}])
        await run(prompt="never mind", options=self.settings(["Good."], resume=session_id))
        await self.assert_superseded(session_id)
        ends = [event.outcome for event in self.store.read_events(session_id) if event.type == "tool.result"]
        self.assertEqual(ends, ["cancelled"] * 4)

    async def test_a_given_answer_is_kept_and_only_open_questions_end(self):
        session_id = await self.parked([{"tool_calls": [PAY["tool_calls"][0], ASK]}])
        (question_id,) = self.store.read_summary(session_id).open_questions
        await answer_question(self.store, session_id, question_id, "yes")
        await submit("and now this", self.settings(["Good."], resume=session_id)).wait()
        self.assertEqual(paid, [5])
        events = assert_closed(self, self.store, session_id)
        self.assertEqual([e.answered_by for e in events if isinstance(e, UserAnswer)], ["user", "superseded"])
        self.assertIn("and now this", [event.text for event in events if isinstance(event, UserMessage)])

    async def test_an_answer_that_is_stored_counts_where_nobody_can_be_asked(self):
        session_id = await self.parked([{"tool_calls": [PAY["tool_calls"][0], ASK]}])
        for answer in ("yes", "two"):
            (question_id,) = self.store.read_summary(session_id).open_questions
            await answer_question(self.store, session_id, question_id, answer)
            if answer == "yes":
                await submit(None, self.settings([], resume=session_id)).wait()
        await run(prompt="and now this", options=self.settings(["Good."], resume=session_id))
        self.assertEqual(paid, [5])
        results = [event for event in assert_closed(self, self.store, session_id) if event.type == "tool.result"]
        self.assertEqual(results[1].output["answer"], "two")
        session_id = await self.parked()
        (question_id,) = self.store.read_summary(session_id).open_questions
        await answer_question(self.store, session_id, question_id, "yes")
        await run(prompt="and now this", options=self.settings(["Good."], resume=session_id))
        self.assertEqual(paid, [5, 5])

    async def test_a_prompt_whose_file_needs_an_approval_is_refused_and_does_not_wait_without_its_words(self):
        with tempfile.NamedTemporaryFile(suffix=".txt") as file:
            parts = [{"type": "text", "text": "read this"}, {"type": "file", "path": file.name}]
            result = await submit(parts, self.settings(["never"])).wait()
        self.assertEqual((result.state, result.stop_reason), ("failed", "error"))
        self.assertIn("is not sent", result.error)
        self.assertEqual(self.store.read_summary(result.session_id).open_questions, ())

    async def test_a_replay_plays_the_prompt_and_the_ends_again(self):
        for turns, make in (
            ([PAY], self.settings),
            ([{"tool_calls": [ASK, PAY["tool_calls"][0]]}], self.settings),
            ([HELP, {"agent": "You help", **PAY}], self.family),
        ):
            self.store = MemorySessionStore()
            session_id = await self.parked(turns, make)
            await run(prompt="never mind", options=make(["Good."], resume=session_id))
            log = self.store.read_events(session_id)
            report = await replay_events(log)
            self.assertEqual((report.steps, list(report.differences), report.error), (2, [], None))
            played = await replay_agent(log, make([]))
            self.assertEqual(played.differences, [])

    @full_size
    async def test_questions_of_subagents_end_in_every_log(self):
        help_me = {"agent": "You help", **PAY}
        lead = {"tool_calls": [{"name": "Task", "arguments": {"agent": "lead", "prompt": "lead"}}]}
        two = {"tool_calls": [*HELP["tool_calls"], *HELP["tool_calls"]]}
        for turns in ([HELP, help_me], [lead, {"agent": "You lead", **HELP}, help_me], [two, help_me, help_me]):
            for killed in (False, True):
                with self.subTest(turns=turns, killed=killed):
                    self.store = MemorySessionStore()
                    session_id = await self.parked(turns, self.family)
                    if killed:
                        self.store = self.as_killed(session_id)
                    said = await run(prompt="never mind", options=self.family(["Good."], resume=session_id))
                    self.assertEqual(said.final_text, "Good.")
                    await self.assert_superseded(session_id)

    def as_killed(self, session_id):
        """Leave the logs as SIGKILL would: no parent has recorded the question, and no log has an end.

        They are signed as they would have been written, because a log that lacks events in the middle would count as
        foreign.
        """
        killed = MemorySessionStore()
        for name in self.store.list_sessions():
            events = [event for event in self.store.read_events(name) if not isinstance(event, Result)]
            asks = (e for e in events if isinstance(e, UserQuestion) and "child_session_id" in e.details)
            hidden = {event.seq for event in asks}
            events = [event for event in events if event.seq not in hidden]
            known = self.store.read_metadata(name)["metadata"]
            signed = Authority(name, Seal()).sign([changed(e, seq=n) for n, e in enumerate(events, 1)], 0)
            killed.import_session(name, signed, metadata=known)
        return killed

    async def test_a_waiting_background_subagent_ends_and_the_model_is_informed(self):
        start = {"agent": "helper", "prompt": "work", "background": True}
        first = {"tool_calls": [{"name": "Task", "arguments": start}]}
        wait = {"tool_calls": [{"name": "TaskOutput", "arguments": {"task_id": "task_1", "wait_s": 60}}]}
        session_id = await self.parked([first, {"agent": "You help", **PAY}, wait], self.family)
        answer = {"text": "Good.", "expect": {"contains": "in the background has ended"}}
        await run(prompt="never mind", options=self.family([answer], resume=session_id))
        await self.assert_superseded(session_id)

    async def test_a_prompt_that_a_hook_refuses_leaves_the_question_open(self):
        hook = HookMatcher("no", hook=lambda payload: HookDecision(block=True, block_reason="not today"))
        for family in (False, True):
            for killed in (False, True):
                paid.clear()
                self.store = MemorySessionStore()
                make = self.family if family else self.settings
                turns = [HELP, {"agent": "You help", **PAY}] if family else [PAY]
                session_id = await self.parked(turns, make)
                if killed:
                    self.store = self.as_killed(session_id)
                with self.subTest(family=family, killed=killed):
                    refusing = make([], resume=session_id, hooks=HookEngine(user_prompt_submit=[hook]))
                    result = await run(prompt="never mind", options=refusing)
                    self.assertEqual(result.stop_reason, "blocked:user_prompt_submit")
                    row = self.store.read_summary(session_id)
                    self.assertEqual((row.state, len(row.open_questions)), ("waiting", 1))
                    self.assertNotIn("never mind", str(self.store.read_events(session_id)))
                    await answer_question(self.store, session_id, row.open_questions[0], "yes")
                    rest = [*([{"agent": "You help", "text": "Helped."}] if family else []), "Paid."]
                    done = await submit(None, make(rest, resume=session_id)).wait()
                    self.assertEqual((done.data, paid), ("Paid.", [5]))

    async def test_a_source_without_prompts_ends_nothing(self):
        session_id = await self.parked()
        await run(prompt=prompts(), options=self.settings([], resume=session_id))
        self.assertEqual(len(self.store.read_summary(session_id).open_questions), 1)

    async def test_a_request_that_is_sent_again_supersedes_nothing(self):
        session_id = await self.parked(request_id="r1")
        again = await submit("pay", self.settings([], resume=session_id, request_id="r1")).wait()
        self.assertEqual(again.state, "waiting")
        row = self.store.read_summary(session_id)
        self.assertEqual((row.state, len(row.open_questions)), ("waiting", 1))
        questions = [event for event in self.store.read_events(session_id) if isinstance(event, UserQuestion)]
        self.assertEqual(len(questions), 1)

    async def test_a_principal_who_may_not_answer_is_refused_and_the_log_is_unchanged(self):
        for turns, make in (([PAY], self.settings), ([HELP, {"agent": "You help", **PAY}], self.family)):
            self.store = MemorySessionStore()
            session_id = await self.parked(turns, make)
            before = self.store.read_events(session_id)
            with self.assertRaisesRegex(QuestionOpenError, "awaits an answer"):
                await submit(Said("never mind", may_answer=False), make([], resume=session_id)).wait()
            self.assertEqual(self.store.read_events(session_id), before)
            await run(prompt="never mind", options=make(["Good."], resume=session_id))
            await self.assert_superseded(session_id)

    async def test_a_call_that_a_crash_left_unasked_cannot_swallow_the_prompt(self):
        session_id = await self.parked()
        events = self.store.read_events(session_id)
        cut = next(event.seq for event in events if event.type == "tool.use")
        self.store = MemorySessionStore()
        self.store.import_session(session_id, events[:cut])
        result = await submit("never mind", self.settings(["Good."], resume=session_id)).wait()
        self.assertEqual(result.data, "Good.")
        await self.assert_superseded(session_id)

    async def test_a_message_sent_while_the_run_parked_is_the_next_prompt(self):
        reached, release = asyncio.Event(), asyncio.Event()

        async def hold(payload):
            reached.set()
            await release.wait()

        hooks = HookEngine(notification=[HookMatcher("bell", hook=hold)])
        task = submit("pay", self.settings([PAY, "Good."], hooks=hooks))
        await reached.wait()
        task.send("never mind")
        release.set()
        result = await task.wait()
        self.assertEqual((result.state, result.data), ("ended", "Good."))
        await self.assert_superseded(task.session_id)

    async def test_a_power_cut_at_any_event_leaves_the_prompt_with_the_ends_or_a_session_that_continues(self):
        for turns, make in (([PAY], self.settings), ([HELP, {"agent": "You help", **PAY}], self.family)):
            with tempfile.TemporaryDirectory() as folder:
                self.store = FileSessionStore(folder)
                session_id = await self.parked(turns, make)
                began = self.store.read_summary(session_id).events
                await run(prompt="never mind", options=make(["Good."], resume=session_id))
                logs = {name: self.store.read_events(name) for name in self.store.list_sessions()}
                metadata = {name: self.store.read_metadata(name)["metadata"] for name in logs}
            for cut in drawn(range(began, len(logs[session_id])), 2):
                paid.clear()
                self.store = MemorySessionStore()
                for name, events in logs.items():
                    kept = events[:cut] if name == session_id else events
                    self.store.import_session(name, kept, metadata=metadata[name])
                kept = self.store.read_events(session_id)
                with self.subTest(cut=cut, type=kept[-1].type):
                    self.assertIsNone(find_fault(rebuild_messages(kept)))
                    if any(isinstance(event, UserMessage) and event.text == "never mind" for event in kept):
                        self.assertEqual(self.store.read_summary(session_id).open_questions, ())
                    elif make is self.family:
                        # The subagents' logs end before the batch: none of their calls can still run.
                        for question_id in self.store.read_summary(session_id).open_questions:
                            await answer_question(self.store, session_id, question_id, "yes")
                    gate = PermissionGate(permission_mode="bypass" if make is self.family else "default")
                    again = make(["Well.", "Well."], resume=session_id, permission_gate=gate)
                    await submit(None if make is self.family else "never mind", again).wait()
                    self.assertEqual(paid, [])
                    self.assertEqual(self.store.read_events(session_id)[-1].stop_reason, "end")


class FirstEventsTest(unittest.IsolatedAsyncioTestCase):
    async def test_a_refused_prompt_begins_no_run(self):
        paid.clear()
        store = MemorySessionStore()
        options = options_for([PAY], tools=[pay], permission_gate=PermissionGate(), session_store=store)
        parked = await submit("pay", options).wait()
        with self.assertRaises(QuestionOpenError) as caught:
            refused = changed(options, resume=parked.session_id)
            await submit(Said("no", may_answer=False), refused).wait()
        self.assertEqual(caught.exception.session_id, parked.session_id)
        self.assertEqual(caught.exception.question_ids, (parked.question.question_id,))
        inits = [event for event in store.read_events(parked.session_id) if isinstance(event, SystemInit)]
        self.assertEqual(len(inits), 1)


if __name__ == "__main__":
    unittest.main()
