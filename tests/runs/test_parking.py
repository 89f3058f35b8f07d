"""Stopping a run loses no question: it stays open, appears in lists, and can be answered from anywhere."""

import asyncio
import unittest

from openagentic_sdk import (
    AgentClient,
    AgentDefinition,
    MemorySessionStore,
    PermissionGate,
    answer_question,
    answer_questions,
    query,
    run,
    submit,
    tool,
)
from openagentic_sdk.errors import OptionsError
from openagentic_sdk.events import Result, UserQuestion
from openagentic_sdk.ground.frozen import changed
from openagentic_sdk.hooks.engine import HookEngine
from openagentic_sdk.hooks.models import HookMatcher
from openagentic_sdk.sessions.rebuild import rebuild_messages
from openagentic_sdk.testing.validity import find_fault
from openagentic_sdk.tools.session.ask_user_question import AskUserQuestionTool
from openagentic_sdk.tools.session.background_tasks import TaskOutputTool
from openagentic_sdk.tools.session.task import TaskTool
from tests.runtime.support import assert_closed, options_for
from tests.size import LARGE, full_size

done_things = []


@tool
def change(what: str) -> str:
    """Change something."""
    done_things.append(what)
    return "changed"


def looking():
    """A tool that ends soon after a question was asked, and the hooks that signal this to it."""
    asked = asyncio.Event()

    async def hear(payload):
        asked.set()

    @tool(effect="read")
    async def slow() -> str:
        """Look until a person is asked, and a few turns of the event loop longer."""
        await asked.wait()
        for _ in range(50):
            await asyncio.sleep(0)
        return "looked"

    return slow, HookEngine(notification=[HookMatcher("bell", hook=hear)])


CHANGE = {"tool_calls": [{"name": "change", "arguments": {"what": "a"}}]}
ASK = {"name": "AskUserQuestion", "arguments": {"question": "Which one?", "choices": ["one", "two"]}}


def asking():
    """A gate whose person never answers, and an event that is set when they are asked."""
    asked = asyncio.Event()

    async def person(question):
        asked.set()
        await asyncio.Event().wait()

    return PermissionGate(permission_mode="prompt", user_answerer=person), asked


def summary_of(store):
    return next(row for row in store.list_session_summaries())


class ParkingTest(unittest.IsolatedAsyncioTestCase):
    def setUp(self):
        done_things.clear()

    def settings(self, turns, **changes):
        return options_for(turns, **{"tools": [change, AskUserQuestionTool()], **changes})

    def assert_parked(self, store, session_id):
        events = store.read_events(session_id)
        self.assertEqual((events[-1].type, events[-1].stop_reason), ("result", "waiting"))
        self.assertIsNone(find_fault(rebuild_messages(events)))
        question = next(event for event in events if event.type == "user.question")
        self.assertEqual(summary_of(store).open_questions, (question.question_id,))
        self.assertEqual(summary_of(store).state, "waiting")
        self.assertNotIn("tool.result", [event.type for event in events])
        return question

    async def assert_goes_on(self, store, session_id, question, answer="yes"):
        await answer_question(store, session_id, question.question_id, answer)
        self.assertEqual(summary_of(store).open_questions, ())
        options = self.settings(["Done."], session_store=store, resume=session_id, permission_gate=PermissionGate())
        result = await submit(None, options).wait()
        self.assertEqual((result.state, result.data), ("ended", "Done."))
        events = assert_closed(self, store, session_id)
        self.assertEqual(sum(event.type == "user.question" for event in events), 1)

    async def test_cancelling_a_run_leaves_the_question_open(self):
        for turns in ([CHANGE], [{"tool_calls": [ASK]}]):
            store, (gate, asked) = MemorySessionStore(), asking()
            options = self.settings(turns, session_store=store, permission_gate=gate)
            task = asyncio.create_task(run(prompt="go", options=options))
            await asked.wait()
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            session_id = store.list_sessions()[0]
            question = self.assert_parked(store, session_id)
            await self.assert_goes_on(store, session_id, question, "yes" if turns == [CHANGE] else "one")
        self.assertEqual(done_things, ["a"])

    async def test_a_process_without_the_tool_leaves_question_answer_and_call_to_one_that_has_it(self):
        store, (gate, asked) = MemorySessionStore(), asking()
        task = asyncio.create_task(
            run(prompt="go", options=self.settings([CHANGE], session_store=store, permission_gate=gate))
        )
        await asked.wait()
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task
        session_id = store.list_sessions()[0]
        question = self.assert_parked(store, session_id)
        foreign = self.settings([], session_store=store, resume=session_id, tools=[], permission_gate=PermissionGate())
        with self.assertRaisesRegex(OptionsError, f"the tool 'change', .* session '{session_id}': .*serve --agents"):
            await answer_questions(store, session_id, {question.question_id: "yes"}, tools=[])
        for answered in (False, True):
            if answered:
                await answer_question(store, session_id, question.question_id, "yes")
            result = await submit(None, foreign).wait()
            self.assertEqual((result.stop_reason, "'change'" in result.error), ("waiting", True))
            self.assertNotIn("tool.result", [event.type for event in store.read_events(session_id)])
        here = self.settings(["Done."], session_store=store, resume=session_id, permission_gate=PermissionGate())
        self.assertEqual((await submit(None, here).wait()).data, "Done.")
        self.assertEqual(done_things, ["a"])
        assert_closed(self, store, session_id)

    async def test_a_prompt_ends_a_call_whose_tool_is_missing_whether_or_not_it_was_answered(self):
        for answer in (None, "yes"):
            store = MemorySessionStore()
            options = self.settings([CHANGE], session_store=store, permission_gate=PermissionGate())
            parked = await submit("go", options).wait()
            if answer is not None:
                await answer_question(store, parked.session_id, parked.question.question_id, answer)
            foreign = self.settings(["Done."], session_store=store, resume=parked.session_id, tools=[])
            self.assertEqual((await submit("Never mind.", foreign).wait()).data, "Done.")
            assert_closed(self, store, parked.session_id)
        self.assertEqual(done_things, [])

    async def test_a_started_call_that_asks_stays_open_where_its_tool_is_missing(self):
        store = MemorySessionStore()
        options = self.settings([{"tool_calls": [ASK]}], session_store=store, permission_gate=PermissionGate())
        parked = await submit("go", options).wait()
        foreign = self.settings([], session_store=store, resume=parked.session_id, tools=[])
        self.assertEqual((await submit(None, foreign).wait()).stop_reason, "waiting")
        question = self.assert_parked(store, parked.session_id)
        await self.assert_goes_on(store, parked.session_id, question, "one")

    async def test_closing_the_generator_at_the_question_leaves_it_open(self):
        store, (gate, _) = MemorySessionStore(), asking()
        events = query(prompt="go", options=self.settings([CHANGE], session_store=store, permission_gate=gate))
        async for event in events:
            if event.type == "user.question":
                break
        await events.aclose()
        session_id = store.list_sessions()[0]
        await self.assert_goes_on(store, session_id, self.assert_parked(store, session_id))

    async def test_stopping_at_any_moment_after_the_question_loses_neither_it_nor_its_answer(self):
        for turns in range(12):
            done_things.clear()
            store, asked = MemorySessionStore(), asyncio.Event()

            async def person(question, asked=asked):
                asked.set()
                return "yes"

            gate = PermissionGate(permission_mode="prompt", user_answerer=person)
            options = self.settings([CHANGE, "Done."], session_store=store, permission_gate=gate)
            task = asyncio.create_task(run(prompt="go", options=options))
            await asked.wait()
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task})
            session_id = store.list_sessions()[0]
            waiting = summary_of(store).open_questions
            if waiting:
                await answer_question(store, session_id, waiting[0], "yes")
            with self.subTest(turns=turns):
                results = [e for e in store.read_events(session_id) if e.type == "result"]
                if results[-1].stop_reason == "waiting":
                    again = self.settings(["Done."], session_store=store, resume=session_id, permission_gate=gate)
                    await run(prompt=None, options=again)
                    self.assertEqual(done_things, ["a"])
                assert_closed(self, store, session_id)

    async def test_an_interrupt_of_the_person_closes_the_question(self):
        store, (gate, asked) = MemorySessionStore(), asking()
        async with AgentClient(self.settings([CHANGE], session_store=store, permission_gate=gate)) as client:
            await client.send("go")
            events = []
            async for event in client.receive():
                events.append(event)
                if event.type == "user.question":
                    asyncio.get_running_loop().create_task(self.when(asked, client.interrupt))
        self.assertEqual(events[-1].stop_reason, "interrupted")
        self.assertEqual(summary_of(store).open_questions, ())
        assert_closed(self, store, client.session_id)

    async def when(self, asked, act):
        await asked.wait()
        await act()

    async def test_a_client_that_suspends_leaves_the_question_open(self):
        store, (gate, asked) = MemorySessionStore(), asking()
        async with AgentClient(self.settings([CHANGE], session_store=store, permission_gate=gate)) as client:
            await client.send("go")
            events = []
            async for event in client.receive():
                events.append(event)
                if event.type == "user.question":
                    asyncio.get_running_loop().create_task(self.when(asked, client.suspend))
        self.assertEqual(events[-1].stop_reason, "waiting")
        await self.assert_goes_on(store, client.session_id, self.assert_parked(store, client.session_id))

    async def test_a_background_run_suspends_and_cancels(self):
        for act, state in (("suspend", "waiting"), ("cancel", "cancelled")):
            store, (gate, asked) = MemorySessionStore(), asking()
            background = submit("go", self.settings([CHANGE], session_store=store, permission_gate=gate))
            await asked.wait()
            await getattr(background, act)()
            self.assertEqual(background.state, state)
            if act == "suspend":
                self.assertEqual((await background.wait()).question.kind, "permission")
                self.assert_parked(store, background.session_id)
            else:
                self.assertEqual(summary_of(store).open_questions, ())

    @full_size
    async def test_a_run_that_is_cancelled_at_any_moment_while_it_parks_leaves_no_question_open(self):
        found, turns = set(), 0
        while turns < 60 or (
            "waiting" not in found and turns < 100_000
        ):  # other threads may need longer on a busy machine
            store = MemorySessionStore()
            gate = PermissionGate(permission_mode="prompt")
            background = submit("go", self.settings([CHANGE], session_store=store, permission_gate=gate))
            while not any(row.state == "waiting" for row in store.list_session_summaries()):  # noqa: ASYNC110 - every turn
                await asyncio.sleep(0)
            for _ in range(turns):
                await asyncio.sleep(0)
            await background.cancel()
            found.add(background.state)
            if background.state == "cancelled":
                self.assertEqual((summary_of(store).state, summary_of(store).open_questions), ("idle", ()), turns)
                assert_closed(self, store, background.session_id)
            turns += max(1 if LARGE else 3, turns // 20)
        self.assertEqual(found, {"cancelled", "waiting"})

    async def test_a_suspended_run_without_a_question_finishes_its_step_and_continues_later(self):
        store, started, release = MemorySessionStore(), asyncio.Event(), asyncio.Event()

        @tool(effect="read")
        async def hold() -> str:
            """Wait until the test lets go."""
            started.set()
            await release.wait()
            return "held"

        options = options_for(
            [{"tool_calls": [{"name": "hold"}]}, "never asked for"], tools=[hold], session_store=store
        )
        background = submit("go", options)
        await started.wait()
        suspending = asyncio.create_task(background.suspend(grace_s=30))
        await asyncio.sleep(0)
        release.set()
        await suspending
        self.assertEqual((await background.wait()).stop_reason, "suspended")
        outcome = [event.outcome for event in store.read_events(background.session_id) if event.type == "tool.result"]
        self.assertEqual(outcome, ["ok"])
        again = self.settings(["Done."], session_store=store, resume=background.session_id)
        self.assertEqual((await submit(None, again).wait()).data, "Done.")

    async def test_going_on_with_an_ended_session_asks_and_pays_nothing(self):
        store = MemorySessionStore()
        first = await run(prompt="go", options=self.settings(["Done."], session_store=store))
        again = self.settings([], session_store=store, resume=first.session_id)
        result = await submit(None, again).wait()
        self.assertEqual((result.state, result.metrics.steps), ("ended", 0))

    async def test_a_call_beside_a_parking_one_ends(self):
        store = MemorySessionStore()
        turns = [{"tool_calls": [{"name": "slow"}, {"name": "Task", "arguments": {"agent": "helper", "prompt": "x"}}]}]
        turns += [{"agent": "You help", **CHANGE}]
        helper = {"helper": AgentDefinition("helps", "You help")}
        gate = PermissionGate(allow=["slow", "Task"])
        slow, hooks = looking()
        tools = [change, slow]
        options = self.settings(
            turns, session_store=store, agents=helper, permission_gate=gate, tools=tools, hooks=hooks
        )
        result = await submit("go", options).wait()
        self.assertEqual(result.state, "waiting")
        events = store.read_events(result.session_id)
        self.assertEqual([event.outcome for event in events if event.type == "tool.result"], ["ok"])


class TreeTest(unittest.IsolatedAsyncioTestCase):
    """A subagent asks, and its whole tree waits."""

    def setUp(self):
        done_things.clear()
        self.store = MemorySessionStore()

    def settings(self, turns, **changes):
        agents = {
            "boss": AgentDefinition("leads", "You lead", tools=("Task", "change")),
            "helper": AgentDefinition("helps", "You help"),
        }
        gate = PermissionGate(allow=["Task"])
        return options_for(
            turns,
            **{"tools": [change], "agents": agents, "session_store": self.store, "permission_gate": gate, **changes},
        )

    def task(self, agent):
        return {"tool_calls": [{"name": "Task", "arguments": {"agent": agent, "prompt": "work"}}]}

    async def test_the_question_of_a_subagent_parks_the_tree_and_is_answered_by_its_id(self):
        for depth, before in enumerate(([], [{"agent": "You lead", **self.task("helper")}])):
            done_things.clear()
            first = self.task("boss" if before else "helper")
            turns = [first, *before, {"agent": "You help", **CHANGE}]
            parked = await submit("go", self.settings(turns)).wait()
            with self.subTest(depth=depth):
                self.assertEqual((parked.state, parked.stop_reason), ("waiting", "waiting"))
                row = self.store.read_summary(parked.session_id)
                self.assertEqual(row.open_questions, (parked.question.question_id,))
                with self.assertRaises(OptionsError):
                    await answer_question(self.store, parked.session_id, "another", "yes")
                await answer_question(self.store, parked.session_id, parked.question.question_id, "yes")
                rest = [{"agent": "You help", "text": "Helped."}, {"agent": "You lead", "text": "Led."}]
                again = self.settings([*rest, "Done."], resume=parked.session_id)
                result = await submit(None, again).wait()
                self.assertEqual((result.state, result.data, done_things), ("ended", "Done.", ["a"]))
                for name in self.store.list_sessions():
                    assert_closed(self, self.store, name)

    async def test_a_subagent_in_the_background_that_asks_parks_the_run_at_its_end_and_continues_with_the_answer(self):
        start = {"agent": "helper", "prompt": "work", "background": True}
        first = [{"tool_calls": [{"name": "Task", "arguments": start}]}, {"agent": "You help", **CHANGE}, "Meanwhile."]
        for fetches in (False, True):
            done_things.clear()
            slow, hooks = looking()
            tools = [change, TaskTool({"helper": "helps"}, background=True), TaskOutputTool(), slow]
            wait = {"tool_calls": [{"name": "TaskOutput", "arguments": {"task_id": "task_1", "wait_s": 60}}]}
            look = {"tool_calls": [{"name": "slow", "arguments": {}}]}
            turns = [*first[:2], wait if fetches else look, *([] if fetches else first[2:])]
            parked = await submit("go", self.settings(turns, tools=tools, hooks=hooks)).wait()
            with self.subTest(fetches=fetches):
                self.assertEqual((parked.state, parked.stop_reason), ("waiting", "waiting"))
                row = self.store.read_summary(parked.session_id)
                self.assertEqual((row.state, len(row.open_questions)), ("waiting", 1))
                still = await submit(None, self.settings([], tools=tools, resume=row.id)).wait()
                self.assertEqual((still.state, still.metrics.steps), ("waiting", 0))
                await answer_question(self.store, row.id, row.open_questions[0], "yes")
                rest = [
                    {"agent": "You help", "text": "Helped."},
                    {"text": "So it is.", "expect": {"contains": "Helped."}},
                ]
                result = await submit(None, self.settings(rest, tools=tools, resume=row.id)).wait()
                self.assertEqual((result.state, result.data, done_things), ("ended", "So it is.", ["a"]))
                for name in self.store.list_sessions():
                    assert_closed(self, self.store, name)
                self.assertEqual(self.store.read_summary(row.id).open_questions, ())

    async def test_a_question_that_only_the_log_of_a_killed_subagent_holds_is_answered_through_its_parent(self):
        turns = [self.task("helper"), {"agent": "You help", **CHANGE}]
        parked = await submit("go", self.settings(turns)).wait()
        (question_id,) = self.store.read_summary(parked.session_id).open_questions
        killed = MemorySessionStore()
        for name in self.store.list_sessions():
            # The state after SIGKILL: the parent has not recorded the question, and neither log has an end.
            events = [event for event in self.store.read_events(name) if not isinstance(event, Result)]
            if name == parked.session_id:
                events = [event for event in events if not isinstance(event, UserQuestion)]
            known = self.store.read_metadata(name)["metadata"]
            killed.import_session(name, [changed(e, seq=n) for n, e in enumerate(events, 1)], metadata=known)
        self.store = killed
        row = killed.read_summary(parked.session_id)
        self.assertEqual((row.state, row.open_questions), ("waiting", (question_id,)))
        with self.assertRaisesRegex(OptionsError, question_id):
            await answer_question(killed, row.id, "another", "yes")
        await answer_question(killed, row.id, question_id, "yes")
        self.assertEqual(
            (killed.read_summary(row.id).state, killed.read_summary(row.id).open_questions), ("stopped", ())
        )
        again = self.settings([{"agent": "You help", "text": "Helped."}, "Done."], resume=row.id)
        self.assertEqual((await submit(None, again).wait()).data, "Done.")
        self.assertEqual(done_things, ["a"])

    async def test_cancelling_while_a_subagent_asks_parks_the_tree_too(self):
        gate, asked = asking()
        turns = [self.task("helper"), {"agent": "You help", **CHANGE}]
        gate = gate.with_rules(allow=["Task"]).with_mode("default")
        task = asyncio.create_task(run(prompt="go", options=self.settings(turns, permission_gate=gate)))
        await asked.wait()
        task.cancel()
        await asyncio.wait({task})
        top = summary_of(self.store)
        self.assertEqual((top.state, len(top.open_questions)), ("waiting", 1))
        await answer_question(self.store, top.id, top.open_questions[0], "yes")
        again = self.settings([{"agent": "You help", "text": "Helped."}, "Done."], resume=top.id)
        self.assertEqual((await submit(None, again).wait()).data, "Done.")
        self.assertEqual(done_things, ["a"])

    async def test_an_unanswered_tree_parks_again_with_the_same_question(self):
        turns = [self.task("helper"), {"agent": "You help", **CHANGE}]
        parked = await submit("go", self.settings(turns)).wait()
        again = await submit(None, self.settings([], resume=parked.session_id)).wait()
        self.assertEqual((again.state, again.metrics.steps), ("waiting", 0))
        self.assertEqual(self.store.read_summary(parked.session_id).open_questions, (parked.question.question_id,))


if __name__ == "__main__":
    unittest.main()
