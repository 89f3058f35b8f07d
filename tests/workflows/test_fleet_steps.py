"""Agents and workflows inside a workflow as runs of the fleet: separate rows, queues and hosts, and one answer each."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openagentic_sdk import Agent, Flow, OpenAgenticOptions, StepFailedError, WorkflowError, workflow
from openagentic_sdk.agents import Agents
from openagentic_sdk.events import UserMessage
from openagentic_sdk.fleet import Fleet, FleetRun, Worker
from openagentic_sdk.parts.record.lifecycle import delete_session
from openagentic_sdk.parts.workflows.progress import WorkflowProgress, retry_step
from openagentic_sdk.testing import ScriptedProvider
from tests.size import full_size

from .test_fleet import EFFECTS, FleetCase, pack

reader = Agent(ScriptedProvider(["read here"]), name="reader")


@workflow
async def parcel(flow: Flow, name: str) -> dict[str, str]:
    return {"packed": await flow.step(pack, name, effect="unsafe")}


@workflow
async def batch(flow: Flow, names: list[str]) -> list[Any]:
    notes = await flow.map(lambda name: flow.agent(reader, f"Read {name}.", queue="models", priority=5), names, limit=2)
    packed = await flow.gather(flow.child(parcel, name, queue="parcels") for name in names)
    return [notes, packed]


@workflow
async def patient(flow: Flow) -> str:
    try:
        return await flow.agent(reader, "Read it.", queue="models")
    except StepFailedError as error:
        return f"failed: {error.error_type}"


class FleetSteps(FleetCase):
    def fleet_of(self, provider: ScriptedProvider) -> Fleet:
        options = OpenAgenticOptions(session_store=self.store)
        made = {each.name: each.to_options(options) for each in (parcel, batch, patient)}
        agents = Agents({**made, "reader": OpenAgenticOptions(provider=provider, model="scripted")})
        fleet = Fleet(self.store, agents)
        self.addCleanup(fleet.close)
        return fleet

    def finish(self, fleet: Fleet, run_id: int, queues: Sequence[str] = ()) -> FleetRun:
        """Let workers with one slot each work until the run is over."""

        def report(run: FleetRun, what: str) -> None:
            if run.id == run_id and what.startswith(("ended", "failed", "cancelled")):
                for worker in team:
                    worker.drain()

        team: list[Worker] = []

        async def finish() -> FleetRun:
            team.extend(Worker(fleet, slots=1, queues=queues, report=report) for _ in range(2))
            await asyncio.gather(*(worker.work() for worker in team))
            return await fleet.status(run_id)

        return asyncio.run(finish())

    @full_size
    def test_each_is_a_run_of_its_own_in_its_queue_and_its_answer_reaches_the_workflow_once(self) -> None:
        fleet = self.fleet_of(ScriptedProvider(["one", "one"], resumable=True))
        run_id = asyncio.run(fleet.enqueue("batch", batch.prompt(["a", "b"]), tenant="acme", request_id="k"))
        run = self.finish(fleet, run_id)
        self.assertEqual((run.state, run.error), ("ended", None))
        self.assertEqual(
            batch.read_output(self.text(run.session)), [["one", "one"], [{"packed": "a"}, {"packed": "b"}]]
        )
        rows = asyncio.run(fleet.runs())
        self.assertEqual(
            sorted((row.agent, row.queue, row.priority, row.tenant, row.state) for row in rows),
            [
                ("batch", "default", 0, "acme", "ended"),
                *[("parcel", "parcels", 0, "acme", "ended")] * 2,
                *[("reader", "models", 5, "acme", "ended")] * 2,
            ],
        )
        self.assertEqual(sorted(EFFECTS), ["a", "b"])
        sessions = {row.session for row in rows}
        self.assertLessEqual(sessions - {run.session}, set(self.store.list_children(run.session)))
        delete_session(self.store, run.session)
        self.assertEqual(self.store.list_sessions(), [])

    def test_the_same_code_runs_in_place_where_there_is_no_fleet(self) -> None:
        self.assertEqual(
            asyncio.run(patient.run(options=OpenAgenticOptions(session_store=self.store))).output, "read here"
        )

    def test_a_run_that_fails_is_a_step_that_failed(self) -> None:
        fleet = self.fleet_of(ScriptedProvider([]))
        run = self.finish(fleet, asyncio.run(fleet.enqueue("patient", patient.prompt(), request_id="k")))
        self.assertEqual(self.text(run.session), "failed: error")

    def test_a_prompt_from_what_the_workflow_has_read_is_untrusted_and_is_neither_a_command_nor_a_file(self) -> None:
        @workflow
        async def relay(flow: Flow) -> list[str]:
            first = await flow.agent(reader, "Greet me.", queue="models")
            return [first, await flow.agent(reader, await flow.wait_for("mail"), queue="models")]

        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        command = folder / ".claude/commands/greet.md"
        command.parent.mkdir(parents=True)
        command.write_text("Greet $ARGUMENTS.")
        provider = ScriptedProvider(["one", "two"], resumable=True)
        for labels in ("off", "guard"):
            with self.subTest(labels=labels):
                options = OpenAgenticOptions(session_store=self.store)
                steps = OpenAgenticOptions(
                    provider=provider, model="scripted", cwd=folder, labels=labels, setting_sources=["project"]
                )
                fleet = Fleet(self.store, Agents({"relay": relay.to_options(options), "reader": steps}))
                self.addCleanup(fleet.close)
                run_id = asyncio.run(fleet.enqueue("relay", relay.prompt(), request_id=f"k{labels}"))
                session = asyncio.run(fleet.status(run_id)).session
                asyncio.run(relay.deliver(session, "mail", "/greet them @.claude/commands/greet.md", options=options))
                self.finish(fleet, run_id)
                steps_of = [row for row in asyncio.run(fleet.runs()) if row.listener and row.listener[0] == session]
                rows = sorted(steps_of, key=lambda row: row.id)
                prompts = [
                    next(event for event in self.store.read_events(row.session) if isinstance(event, UserMessage))
                    for row in rows
                ]
                self.assertEqual(
                    [(each.text, list(each.untrusted)) for each in prompts],
                    [
                        ("Greet me.", []),
                        ("/greet them @.claude/commands/greet.md", [f"run {rows[0].id}", "event mail"]),
                    ],
                )

    @full_size
    def test_a_failed_step_that_is_retried_is_another_run_and_each_failure_can_be_retried(self) -> None:
        fleet = self.fleet_of(ScriptedProvider([]))
        session = asyncio.run(
            fleet.status(asyncio.run(fleet.enqueue("patient", patient.prompt(), request_id="k")))
        ).session
        self.finish(fleet, 1)
        for attempt, turns in ((2, []), (3, ["late"])):
            step, wait = WorkflowProgress.of(self.store.read_events(session)).steps.values()
            self.assertEqual((step.number, step.state, wait.state), ("1", "failed", "done"))
            self.assertIn("its run ended with the stop reason 'error': script has 0 turns", step.message)
            self.assertEqual(retry_step(self.store, session, "1"), f"1_{attempt}")
            fleet = self.fleet_of(ScriptedProvider(turns))
            run = self.finish(fleet, asyncio.run(fleet.enqueue("patient", None, session=session)))
            self.assertEqual((run.state, run.error), ("ended", None))
            rows = [row for row in asyncio.run(fleet.runs()) if row.agent == "reader"]
            self.assertEqual((len(rows), len({row.session for row in rows})), (attempt, attempt))
        self.assertEqual(self.text(session), "late")
        with self.assertRaisesRegex(WorkflowError, "only a step that has not succeeded"):
            retry_step(self.store, session, "1")

    def test_a_run_that_is_cancelled_is_a_step_that_failed(self) -> None:
        fleet, run_id = self.parked()
        (row,) = [row for row in asyncio.run(fleet.runs()) if row.agent == "reader"]
        asyncio.run(fleet.cancel(row.id))
        self.assertEqual(self.text(self.finish(fleet, run_id).session), "failed: interrupted")

    def test_a_workflow_that_is_cancelled_takes_its_runs_along(self) -> None:
        fleet, run_id = self.parked()
        asyncio.run(fleet.cancel(run_id))
        self.assertEqual([row.state for row in asyncio.run(fleet.runs())], ["cancelled", "cancelled"])

    def test_a_terminated_workflow_ends_its_runs_and_cleans_up(self) -> None:
        fleet, run_id = self.parked()
        options = OpenAgenticOptions(session_store=self.store)
        asyncio.run(patient.cancel(asyncio.run(fleet.status(run_id)).session, options=options))
        run = self.finish(fleet, run_id, ["default"])
        self.assertEqual((run.state, run.stop_reason), ("cancelled", "interrupted"))
        self.assertEqual({row.state for row in asyncio.run(fleet.runs()) if row.agent == "reader"}, {"cancelled"})

    def test_a_run_whose_workflow_was_deleted_asks_no_model_and_leaves_nothing(self) -> None:
        fleet, run_id = self.parked()
        delete_session(self.store, asyncio.run(fleet.status(run_id)).session)
        asyncio.run(Worker(fleet).work(until_idle=True))
        self.assertEqual({row.agent: row.state for row in asyncio.run(fleet.runs())}["reader"], "cancelled")
        self.assertEqual(self.store.list_sessions(), [])

    def test_the_end_of_any_run_can_be_sent_to_a_workflow_that_has_not_begun(self) -> None:
        fleet = self.fleet_of(ScriptedProvider(["read"]))
        asyncio.run(fleet.enqueue("reader", "Read it.", request_id="r", told=("later", "read")))
        asyncio.run(Worker(fleet).work(until_idle=True))

        @workflow
        async def later(flow: Flow) -> Any:
            return await flow.wait_for("read")

        options = OpenAgenticOptions(session_store=self.store)
        output = asyncio.run(later.run(options=options, session="later")).output
        self.assertEqual(output, {"stop_reason": "end", "error": None})

    def parked(self) -> tuple[Fleet, int]:
        """A workflow that waits for a run that no worker takes."""
        fleet = self.fleet_of(ScriptedProvider(["late"]))
        run_id = asyncio.run(fleet.enqueue("patient", patient.prompt(), request_id="k"))
        asyncio.run(Worker(fleet, queues=["default"]).work(until_idle=True))
        self.assertTrue(asyncio.run(fleet.status(run_id)).is_parked)
        return fleet, run_id
