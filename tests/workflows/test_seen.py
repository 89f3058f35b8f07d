"""Workflows as seen by clients and browsers: steps over AG-UI, and the script of the graph on the page."""

from __future__ import annotations

import unittest

from openagentic_sdk import Flow, MemorySessionStore, OpenAgenticOptions, workflow
from openagentic_sdk.server.agui import RunEvents
from openagentic_sdk.viewer.page import build_page


def length(text: str) -> int:
    return len(text)


@workflow
async def measure(flow: Flow, text: str) -> int:
    flow.now()
    found = await flow.step(length, text)
    await flow.ask("Is that long?")
    return found


class Seen(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        store = MemorySessionStore()
        await measure.run("four", options=OpenAgenticOptions(session_store=store), session="s")
        self.events = store.read_events("s")

    async def test_each_step_begins_and_ends_over_ag_ui_and_a_run_ends_with_none_at_work(self) -> None:
        projection = RunEvents("s", "r")
        updates = [each for event in self.events for each in projection.take(event)]
        steps = [(each["type"], each["stepName"]) for each in updates if each["type"].startswith("STEP_")]
        names = ["2 length", "3 ask"]
        self.assertEqual(steps, [(kind, name) for name in names for kind in ("STEP_STARTED", "STEP_FINISHED")])
        self.assertEqual(updates[-1]["type"], "RUN_FINISHED")

    async def test_the_page_of_a_session_contains_the_script_that_draws_its_steps(self) -> None:
        page = build_page(self.events, title="measure")
        self.assertIn('<section id="flow" aria-label="Steps of the workflow" hidden></section>', page)
        self.assertIn("function drawSteps()", page)


if __name__ == "__main__":
    unittest.main()
