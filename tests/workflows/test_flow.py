"""A workflow resumes where it stopped: a step in the log is not executed again."""

from __future__ import annotations

import asyncio
import unittest
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from openagentic_sdk import (
    Agent,
    Flow,
    MemorySessionStore,
    OpenAgenticOptions,
    PermissionGate,
    Retries,
    RunFailedError,
    StepFailedError,
    WorkflowChangedError,
    workflow,
)
from openagentic_sdk.runs.background import answer_questions
from openagentic_sdk.testing import FakeClock, ScriptedProvider


@dataclass
class Report:
    notes: list[str]
    answer: str


class FlowCase(unittest.IsolatedAsyncioTestCase):
    """`effects` lists the effects of a test's steps in order."""

    def setUp(self) -> None:
        self.store = MemorySessionStore()
        self.clock = FakeClock()
        self.effects: list[str] = []

    def options(self, **more: Any) -> OpenAgenticOptions:
        return OpenAgenticOptions(session_store=self.store, clock=self.clock, **more)

    def effect(self, name: str, value: Any = None) -> Any:
        self.effects.append(name)
        return value

    def types(self, session: str) -> list[str]:
        return [event.type for event in self.store.iter_events(session)]

    def questions(self, session: str) -> dict[str, str]:
        events = self.store.read_events(session)
        return {event.prompt: event.question_id for event in events if event.type == "user.question"}


class Steps(FlowCase):
    async def test_a_workflow_runs_its_steps_once_and_gives_its_typed_value(self) -> None:
        def list_files(repository: str) -> list[str]:
            return self.effect("list", [f"{repository}/a", f"{repository}/b"])

        async def publish(notes: list[str]) -> int:
            return self.effect("publish", len(notes))

        model = ScriptedProvider(["note 1", "note 2"])
        reviewer = Agent(model, name="reviewer")

        @workflow
        async def review(flow: Flow, repository: str) -> Report:
            files = await flow.step(list_files, repository)
            notes = await flow.gather((flow.agent(reviewer, file) for file in files), limit=1)
            await flow.sleep(3600)
            answer = await flow.ask("Publish?", choices=("yes", "no"))
            if answer == "yes":
                await flow.step(publish, notes, effect="unsafe")
            return Report(notes, answer)

        first = await review.run("/srv", options=self.options(), session="r")
        self.assertEqual((first.stop_reason, self.effects, len(model.requests)), ("waiting", ["list"], 2))
        self.clock.advance(3600)
        asking = await review.resume("r", options=self.options())
        self.assertEqual(asking.stop_reason, "waiting")
        await answer_questions(self.store, "r", {self.questions("r")["Publish?"]: "yes"})
        last = await review.run("/srv", options=self.options(), session="r")
        self.assertEqual(last.output, Report(["note 1", "note 2"], "yes"))
        self.assertEqual((self.effects, len(model.requests)), (["list", "publish"], 2))
        again = await review.run("/srv", options=self.options(), session="r")
        self.assertEqual(again.output, last.output)
        self.assertEqual(self.effects, ["list", "publish"])

    async def test_time_and_chance_are_the_same_in_every_run_of_a_body(self) -> None:
        seen: list[Any] = []

        @workflow
        async def look(flow: Flow) -> None:
            seen.append((flow.now(), flow.random(), flow.uuid()))
            await flow.ask("Go on?")

        await look.run(options=self.options(), session="s")
        self.clock.advance(60)
        await look.resume("s", options=self.options())
        self.assertEqual(len(seen), 2)
        self.assertEqual(seen[0], seen[1])

    async def test_a_changed_order_of_steps_is_an_error_that_shows_both_places_and_the_remedy(self) -> None:
        def one() -> int:
            return 1

        def two() -> int:
            return 2

        def named(steps: list[Callable[[], int]]) -> Any:
            @workflow
            async def count(flow: Flow) -> int:
                for step in steps:
                    await flow.step(step)
                await flow.ask("Go on?")
                return 0

            return count

        await named([one, two]).run(options=self.options(), session="s")
        with self.assertRaises(RunFailedError) as caught:
            await named([two, one]).resume("s", options=self.options())
        result: Any = caught.exception.result
        self.assertEqual(result.error_type, WorkflowChangedError.__name__)
        self.assertRegex(
            result.error_message, r"step 1 was one\(\) at test_flow.py:\d+ and is now two\(\) at test_flow.py:\d+"
        )
        self.assertIn("flow.version(", result.error_message)

    async def test_a_failed_step_is_retried_by_its_policy_and_then_raises(self) -> None:
        def fetch() -> str:
            self.effect("fetch")
            raise ConnectionError(f"down {len(self.effects)}")

        @workflow
        async def load(flow: Flow) -> str:
            try:
                return await flow.step(fetch, retry=Retries(attempts=3, delay_s=1.0))
            except StepFailedError as error:
                return f"{error.error_type}: {error}"

        done = await load.run(options=self.options(), session="s")
        self.assertEqual(done.output, "ConnectionError: step 1 (fetch) failed: down 3")
        self.assertEqual((len(self.effects), self.clock.slept), (3, [1.0, 2.0]))

    async def test_a_deny_rule_holds_for_a_step_and_no_mode_asks_about_one(self) -> None:
        def publish() -> None:
            self.effect("publish")

        @workflow
        async def ship(flow: Flow) -> None:
            await flow.step(publish, effect="unsafe")

        with self.assertRaises(RunFailedError) as caught:
            await ship.run(options=self.options(permission_gate=PermissionGate(deny=["publish"])), session="denied")
        self.assertIn("denied", str(caught.exception))
        self.assertEqual(self.effects, [])
        await ship.run(options=self.options(), session="allowed")
        self.assertEqual(self.effects, ["publish"])

    async def test_the_body_may_await_nothing_but_the_flow(self) -> None:
        @workflow
        async def nap(flow: Flow) -> None:
            await asyncio.sleep(0)

        with self.assertRaises(RunFailedError) as caught:
            await nap.run(options=self.options(), session="s")
        self.assertIn("await only flow.step(), flow.sleep() and the like", str(caught.exception))


if __name__ == "__main__":
    unittest.main()
