"""A long history is not read again: finished steps are kept beside the log and replace their events."""

from __future__ import annotations

import unittest

from openagentic_sdk import Flow, workflow
from openagentic_sdk.parts.workflows import part
from openagentic_sdk.runs.background import answer_questions

from .test_flow import FlowCase


class History(FlowCase):
    def setUp(self) -> None:
        super().setUp()
        before, part.CUT_STEPS = part.CUT_STEPS, 20
        self.addCleanup(setattr, part, "CUT_STEPS", before)

    async def add(self, number: int) -> int:
        self.effect(str(number))
        return number + 1

    async def test_a_resume_reads_the_end_of_the_log_and_runs_no_finished_step(self) -> None:
        @workflow
        async def count(flow: Flow) -> list[int]:
            one_by_one = 0
            for _ in range(50):
                one_by_one = await flow.step(self.add, one_by_one)
            found = await flow.map(lambda number: flow.step(self.add, number), range(50), limit=7)
            if await flow.ask("Go on?") == "yes":
                found.append(await flow.step(self.add, one_by_one))
            return [one_by_one, *found]

        await count.run(options=self.options(), session="s")
        kept, rest = self.store.read_kept_view("s")
        assert kept is not None
        self.assertGreaterEqual(len(kept.folds["workflow_steps"][1]["steps"]), 80)
        self.assertLess(len(kept.events) + len(list(rest)), len(self.store.read_events("s")) // 3)
        await count.resume("s", options=self.options())
        self.assertEqual(len(self.effects), 100)
        await answer_questions(self.store, "s", {self.questions("s")["Go on?"]: "yes"})
        done = await count.resume("s", options=self.options())
        self.assertEqual(done.output, [50, *range(1, 51), 51])
        self.assertEqual(len(self.effects), 101)
        self.assertEqual((await count.run(options=self.options(), session="s")).output, done.output)


if __name__ == "__main__":
    unittest.main()
