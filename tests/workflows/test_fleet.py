"""Workflows as runs of a fleet: a waiting one occupies no worker, and its time or event brings it back."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
import unittest
from typing import Any

from openagentic_sdk import Flow, OpenAgenticOptions, open_store, workflow
from openagentic_sdk.agents import Agents
from openagentic_sdk.fleet import Fleet, FleetRun, Worker, execute_run
from openagentic_sdk.fleet.children import RUN_OF_STEP
from openagentic_sdk.parts.record.lifecycle import rewind_session
from openagentic_sdk.parts.record.verify_log import WITHOUT_CALL
from openagentic_sdk.parts.workflows import inbox
from openagentic_sdk.testing import FakeClock
from tests.size import IN_MEMORY, full_size

EFFECTS: list[str] = []


def pack(name: str) -> str:
    EFFECTS.append(name)
    return name


@workflow
async def order(flow: Flow, name: str) -> list[Any]:
    packed = await flow.step(pack, name, effect="unsafe")
    await flow.sleep(3600)
    return [packed, await flow.wait_for("paid")]


@workflow
async def two_orders(flow: Flow) -> list[list[Any]]:
    return await flow.map(lambda name: flow.child(order, name), ["a", "b"])


@workflow
async def paid(flow: Flow) -> int:
    return await flow.wait_for("paid", int)


class FleetCase(unittest.TestCase):
    """A store that a fleet can use."""

    def setUp(self) -> None:
        folder = tempfile.mkdtemp(dir=IN_MEMORY)
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        self.store = open_store(f"sqlite:{folder}/fleet.db")
        self.addCleanup(self.store.close)
        self.clock = FakeClock()
        EFFECTS.clear()

    def text(self, session: str) -> str:
        """The final text of a session's last run."""
        return next(e.final_text for e in reversed(self.store.read_events(session)) if e.type == "result")


class FleetWorkflow(FleetCase):
    def fleet(self, made: Any) -> Fleet:
        options = OpenAgenticOptions(session_store=self.store, clock=self.clock)
        fleet = Fleet(self.store, Agents({made.name: made.to_options(options)}))
        self.addCleanup(fleet.close)
        return fleet

    def work(self, fleet: Fleet, run_id: int, passes_s: float = 0.0) -> FleetRun:
        """Work until nothing is due, advancing the clock by so much at each claim."""

        def report(run: FleetRun, what: str) -> None:
            if what == "running":
                self.clock.advance(passes_s)

        async def work() -> FleetRun:
            await Worker(fleet, report=report).work(until_idle=True)
            return await fleet.status(run_id)

        return asyncio.run(work())

    def test_a_second_prompt_fails_and_the_workflow_still_gets_its_event(self) -> None:
        fleet = self.fleet(paid)
        first = asyncio.run(fleet.enqueue("paid", paid.prompt(), session="s"))
        self.work(fleet, first)
        second = self.work(fleet, asyncio.run(fleet.enqueue("paid", "Hello?", session="s")))
        self.assertEqual((second.state, "accepts no second prompt" in (second.error or "")), ("failed", True))
        inbox.deliver(self.store, "s", "paid", 7)
        fleet.queue.wake_answered(lambda session, seq: True)
        self.assertEqual((self.work(fleet, first).stop_reason, self.text("s")), ("end", "7"))

    def test_a_run_whose_session_is_rewound_to_after_its_prompt_continues(self) -> None:
        fleet = self.fleet(paid)
        run_id = asyncio.run(fleet.enqueue("paid", paid.prompt(), session="s"))
        seq = self.work(fleet, run_id).parked_seq
        rewind_session(self.store, "s", to_seq=seq - 1)
        inbox.deliver(self.store, "s", "paid", 7)
        fleet.queue.wake_answered(lambda session, seq: True)
        self.assertEqual((self.work(fleet, run_id).stop_reason, self.text("s")), ("end", "7"))

    def test_a_workflow_that_sleeps_is_queued_for_its_time_and_continues_then(self) -> None:
        fleet = self.fleet(order)
        run_id = asyncio.run(fleet.enqueue("order", order.prompt("tea"), request_id="k"))
        self.clock.set_now(time.time())
        run = self.work(fleet, run_id)
        self.assertEqual((run.state, run.stop_reason, run.is_parked), ("queued", "waiting", True))
        self.assertGreater(run.run_at, time.time() + 1800)
        self.assertEqual(asyncio.run(execute_run(fleet, run_id)).state, "queued")
        self.assertEqual(EFFECTS, ["tea"])

    def test_a_workflow_whose_time_has_come_continues_and_then_waits_for_its_event(self) -> None:
        fleet = self.fleet(order)
        run_id = asyncio.run(fleet.enqueue("order", order.prompt("tea"), request_id="k"))
        run = self.work(fleet, run_id, passes_s=1800)
        self.assertEqual((run.state, run.stop_reason), ("waiting", "waiting"))
        options = OpenAgenticOptions(session_store=self.store)
        asyncio.run(order.deliver(run.session, "paid", 7, options=options))
        run = self.work(fleet, run_id)
        self.assertEqual((run.state, run.error, EFFECTS), ("ended", None, ["tea"]))
        self.assertEqual(order.read_output(self.text(run.session)), ["tea", 7])

    def test_the_children_that_begin_at_no_call_are_those_that_verify_expects(self) -> None:
        self.assertEqual({inbox._INBOX_CALL, RUN_OF_STEP}, set(WITHOUT_CALL))

    @full_size
    def test_children_that_sleep_wake_their_parent(self) -> None:
        fleet = self.fleet(two_orders)
        run_id = asyncio.run(fleet.enqueue("two_orders", two_orders.prompt(), request_id="k"))
        run = self.work(fleet, run_id, passes_s=1800)
        self.assertEqual((run.state, run.error), ("waiting", None))
        children = [each for each in self.store.list_children(run.session) if not each.endswith(".inbox")]
        self.assertEqual(len(children), 2)
        options = OpenAgenticOptions(session_store=self.store)
        for number, child in enumerate(sorted(children)):
            asyncio.run(order.deliver(child, "paid", number, options=options))
        run = self.work(fleet, run_id)
        self.assertEqual((run.state, run.error), ("ended", None))
        self.assertEqual(sorted(EFFECTS), ["a", "b"])


if __name__ == "__main__":
    unittest.main()
