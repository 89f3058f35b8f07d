"""What a workflow can wait for, and outside changes to it: events, times, cancellation, versions, a new history."""

from __future__ import annotations

import asyncio
import unittest
from dataclasses import dataclass
from typing import Any

from openagentic_sdk import Flow, RunFailedError, StepFailedError, StepUnknownError, workflow
from openagentic_sdk.errors import OptionsError, RequestConflictError, WorkflowError
from openagentic_sdk.events import SessionMeta, ToolResult, ToolStarted, ToolUse
from openagentic_sdk.runs.background import answer_questions

from .test_flow import FlowCase


@dataclass
class Payment:
    amount: int


class Events(FlowCase):
    async def test_an_event_that_was_delivered_before_the_workflow_began_is_not_lost(self) -> None:
        @workflow
        async def order(flow: Flow) -> int:
            return (await flow.wait_for("paid", Payment)).amount

        self.assertTrue(await order.deliver("s", "paid", Payment(7), event_id="e1", options=self.options()))
        self.assertFalse(await order.deliver("s", "paid", Payment(7), event_id="e1", options=self.options()))
        self.assertEqual((await order.run(options=self.options(), session="s")).output, 7)

    async def test_a_workflow_that_has_ended_refuses_an_event_and_accepts_a_repeated_one(self) -> None:
        @workflow
        async def order(flow: Flow) -> int:
            return int(await flow.wait_for("paid"))

        options = self.options()
        self.assertTrue(await order.deliver("s", "paid", 7, event_id="e1", options=options))
        self.assertEqual((await order.run(options=options, session="s")).output, 7)
        self.store.append_event("s", SessionMeta(title="Paid"))
        before = list(self.store.read_events("s.inbox"))
        for event_id in (None, "e2"):
            with self.assertRaisesRegex(WorkflowError, "'s' has ended .* 'paid' was not stored"):
                await order.deliver("s", "paid", 8, event_id=event_id, options=options)
        self.assertFalse(await order.deliver("s", "paid", 7, event_id="e1", options=options))
        await order.cancel("s", options=options)
        self.assertEqual(self.store.read_events("s.inbox"), before)
        self.assertEqual((await order.resume("s", options=options)).output, 7)

    async def test_the_session_of_another_workflow_is_refused_even_after_its_end(self) -> None:
        @workflow
        async def four(flow: Flow) -> int:
            return 4

        @workflow
        async def five(flow: Flow) -> str:
            return "5"

        options = self.options()
        self.assertEqual((await four.run(options=options, session="s")).output, 4)
        before = self.store.read_events("s")
        with self.assertRaisesRegex(OptionsError, "belongs to the workflow 'four', not 'five'"):
            await five.resume("s", options=options)
        self.assertEqual(self.store.read_events("s"), before)
        with self.assertRaises(RequestConflictError):
            await five.run(options=options, session="s")
        self.assertEqual((await four.resume("s", options=options)).output, 4)

    async def test_each_event_is_given_once_and_in_the_order_of_their_coming(self) -> None:
        @workflow
        async def order(flow: Flow) -> list[int]:
            return [await flow.wait_for("paid"), await flow.wait_for("paid")]

        first = await order.run(options=self.options(), session="s")
        self.assertEqual((first.stop_reason, first.wake_at), ("waiting", None))
        await order.deliver("s", "paid", 1, options=self.options())
        await order.deliver("s", "other", 5, options=self.options())
        self.assertEqual((await order.resume("s", options=self.options())).stop_reason, "waiting")
        await order.deliver("s", "paid", 2, options=self.options())
        self.assertEqual((await order.resume("s", options=self.options())).output, [1, 2])

    async def test_an_event_that_does_not_come_in_time_fails_the_step(self) -> None:
        @workflow
        async def order(flow: Flow) -> str:
            try:
                return str(await flow.wait_for("paid", timeout_s=60))
            except StepFailedError as error:
                return f"{error.error_type}"

        first = await order.run(options=self.options(), session="s")
        self.assertEqual((first.stop_reason, first.wake_at), ("waiting", self.clock.now() + 60))
        self.clock.advance(60)
        self.assertEqual((await order.resume("s", options=self.options())).output, "TimeoutError")

    async def test_one_answer_of_many_lets_its_branch_continue_while_the_others_wait(self) -> None:
        async def check(flow: Flow, name: str) -> str:
            answer = await flow.ask(f"Ship {name}?")
            await flow.step(self.effect, name, name=f"ship_{name}")
            return answer

        @workflow
        async def ship(flow: Flow) -> list[str]:
            return await flow.map(lambda name: check(flow, name), ["a", "b", "c"])

        await ship.run(options=self.options(), session="s")
        questions = self.questions("s")
        await answer_questions(self.store, "s", {questions["Ship b?"]: "yes"})
        waiting = await ship.resume("s", options=self.options())
        self.assertEqual(self.effects, ["b"])
        self.assertEqual([question.prompt for question in waiting.questions], ["Ship a?", "Ship c?"])
        await answer_questions(self.store, "s", {questions["Ship a?"]: "no", questions["Ship c?"]: "later"})
        self.assertEqual((await ship.resume("s", options=self.options())).output, ["no", "yes", "later"])
        self.assertEqual(sorted(self.effects), ["a", "b", "c"])


class Changes(FlowCase):
    async def test_a_cancelled_workflow_cleans_up_with_steps_of_its_own(self) -> None:
        @workflow
        async def rent(flow: Flow) -> None:
            await flow.step(self.effect, "rent", name="rent")
            try:
                await flow.wait_for("returned")
            except asyncio.CancelledError:
                await flow.step(self.effect, "give back", name="give_back")
                raise

        await rent.run(options=self.options(), session="s")
        await rent.cancel("s", "no need", options=self.options())
        for _ in range(2):
            with self.assertRaises(RunFailedError) as caught:
                await rent.resume("s", options=self.options())
            result: Any = caught.exception.result
            self.assertEqual(result.stop_reason, "interrupted")
        self.assertEqual(self.effects, ["rent", "give back"])

    async def test_a_version_takes_new_code_where_a_history_gets_to_it_and_old_code_where_it_was_past_it(self) -> None:
        @workflow(name="ship")
        async def old(flow: Flow) -> str:
            await flow.step(self.effect, "pack", name="pack")
            await flow.ask("Go on?")
            return "old"

        @workflow(name="ship")
        async def new(flow: Flow) -> str:
            if flow.version("weigh"):
                await flow.step(self.effect, "weigh", name="weigh")
            await flow.step(self.effect, "pack", name="pack")
            await flow.ask("Go on?")
            return "new" if flow.version("weigh") else "old"

        await old.run(options=self.options(), session="then")
        await new.run(options=self.options(), session="now")
        self.assertEqual(self.effects, ["pack", "weigh", "pack"])
        for session, output in (("then", "old"), ("now", "new")):
            await answer_questions(self.store, session, {self.questions(session)["Go on?"]: "yes"})
            self.assertEqual((await new.resume(session, options=self.options())).output, output)
        self.assertEqual(self.effects, ["pack", "weigh", "pack"])

    async def test_a_workflow_that_starts_again_leaves_its_history_behind(self) -> None:
        @workflow
        async def count(flow: Flow, total: int = 0) -> int:
            for _ in range(3):
                total += await flow.step(self.effect, "add", 1, name="add")
            if total < 9:
                flow.restart(total)
            await flow.wait_for("end")
            return total

        await count.run(options=self.options(), session="s")
        self.assertEqual(len(self.effects), 9)
        kept, _ = self.store.read_kept_view("s")
        assert kept is not None
        _, steps = kept.folds["workflow_steps"]
        self.assertLess(len(kept.events) + len(steps["steps"]), 12)
        await count.deliver("s", "end", options=self.options())
        self.assertEqual((await count.run(options=self.options(), session="s")).output, 9)
        self.assertEqual(len(self.effects), 9)

    async def test_values_published_by_a_workflow_are_read_without_running_it(self) -> None:
        @workflow
        async def work(flow: Flow) -> None:
            for done in (1, 2):
                flow.publish("progress", {"done": done})
                await flow.step(self.effect, "work", name="work")
            await flow.wait_for("end")

        await work.run(options=self.options(), session="s")
        self.assertEqual(await work.query("s", "progress", options=self.options()), {"done": 2})
        self.assertIsNone(await work.query("s", "other", options=self.options()))

    async def test_a_child_runs_in_a_session_of_its_own_and_parks_with_its_parent(self) -> None:
        @workflow
        async def inner(flow: Flow, name: str) -> list[str]:
            return [await flow.ask(f"Take {name}?"), name]

        @workflow
        async def outer(flow: Flow) -> list[list[str]]:
            return await flow.map(lambda name: flow.child(inner, name), ["a", "b"])

        await outer.run(options=self.options(), session="s")
        questions = self.questions("s")
        await answer_questions(self.store, "s", {questions[f"Take {name}?"]: f"yes {name}" for name in "ab"})
        done = await outer.resume("s", options=self.options())
        self.assertEqual(done.output, [["yes a", "a"], ["yes b", "b"]])
        self.assertEqual(len(self.store.list_children("s")), 2)


class UncertainSteps(FlowCase):
    async def test_an_unsafe_step_that_was_started_raises_what_the_body_may_catch(self) -> None:
        @workflow
        async def pay(flow: Flow) -> str:
            try:
                await flow.step(self.effect, "pay", name="pay", effect="unsafe")
            except StepUnknownError as error:
                return f"step {error.step}: {await flow.ask('Was it paid?')}"
            return "paid"

        await pay.run(options=self.options(), session="s")
        events = self.store.read_events("s")
        cut = next(i for i, event in enumerate(events) if isinstance(event, ToolStarted))
        self.store = type(self.store)()
        self.store.create_session(session_id="s")
        self.store.append_events("s", events[: cut + 1])
        await pay.resume("s", options=self.options())
        await answer_questions(self.store, "s", {self.questions("s")["Was it paid?"]: "yes"})
        self.assertEqual((await pay.resume("s", options=self.options())).output, "step 1: yes")
        self.assertEqual(self.effects, ["pay"])
        self.assertTrue(any(isinstance(e, ToolResult) and e.outcome == "unknown" for e in self.store.iter_events("s")))
        self.assertEqual(len([e for e in self.store.iter_events("s") if isinstance(e, ToolUse)]), 2)


if __name__ == "__main__":
    unittest.main()
