"""A workflow with every kind of step, killed at any point, resumes to the same value, and no effect happens twice."""

from __future__ import annotations

import unittest
from typing import Any

from openagentic_sdk import (
    Agent,
    Flow,
    OpenAgenticOptions,
    PermissionGate,
    Retries,
    StepFailedError,
    StepUnknownError,
    ToolContext,
    WorkflowResult,
    tool,
    workflow,
)
from openagentic_sdk.events import ModelResponse, SubagentStarted, ToolResult
from openagentic_sdk.testing import FakeClock, ScriptedProvider
from openagentic_sdk.testing.crash import CrashOutcome, Life, crash_everywhere
from tests.size import LARGE, full_size


async def every_kind_of_step(life: Life) -> WorkflowResult[list[Any]]:
    def once(name: str, ctx: ToolContext) -> str:
        """Take effect once for each idempotency key, as a careful service does."""
        life.do(f"once {name}", lambda: life.things.setdefault(ctx.idempotency_key, name))
        return name

    def pay(amount: int) -> int:
        life.effect(f"paid {amount}")
        return amount

    def flaky(number: int) -> int:
        raise ConnectionError(f"down {number}")

    @tool(effect="unsafe")
    def book(table: int) -> str:
        """Book a table."""
        life.effect(f"table {table}")
        return "booked"

    turns = [{"tool_calls": [{"name": "book", "arguments": {"table": 4}}]}, "Booked."]
    waiter = Agent(ScriptedProvider(turns, resumable=True), tools=[book], name="waiter")
    reader = Agent(ScriptedProvider(["Read."], resumable=True), name="reader")

    async def branch(flow: Flow, item: int) -> list[Any]:
        first = await flow.step(once, f"first {item}")
        second = await flow.agent(reader, f"Read {item}.")
        return [first, second, flow.random() < 2]

    @workflow(name="inner")
    async def inner(flow: Flow, name: str) -> str:
        await flow.step(once, f"inner {name}")
        await flow.sleep(1)
        return name

    @workflow(name="everything")
    async def everything(flow: Flow) -> list[Any]:
        found: list[Any] = [await flow.step(once, "one"), flow.version("v2")]
        flow.publish("progress", 1)
        found += await flow.map(lambda item: branch(flow, item), [1, 2], limit=2)
        found.append(await flow.agent(waiter, "A table, please."))
        try:
            found.append(await flow.step(flaky, 1, retry=Retries(attempts=2, delay_s=0.5)))
        except StepFailedError as error:
            found.append(str(error))
        try:
            found.append(await flow.step(pay, 3, effect="unsafe"))
        except StepUnknownError:
            found.append(await flow.ask("Was 3 paid?", ("yes", "no")))
        found.append(await flow.ask("Ship it?", ("yes", "no")))
        found.append(await flow.wait_for("paid"))
        found.append(await flow.child(inner, "child"))
        return found

    gate = PermissionGate(user_answerer=lambda question: "yes")
    options = OpenAgenticOptions(session_store=life.store, permission_gate=gate, clock=FakeClock())
    await everything.deliver("s", "paid", 7, event_id="e", options=options)
    return await everything.run(options=options, session="s")


def check(outcome: CrashOutcome[WorkflowResult[list[Any]]]) -> None:
    case = unittest.TestCase()
    result = outcome.result.output
    plain = ["one", True, ["first 1", "Read.", True], ["first 2", "Read.", True], "Booked."]
    case.assertEqual(result[:5], plain)
    case.assertEqual(result[5], "step 5 (flaky) failed: down 1")
    case.assertIn(result[6], (3, "yes"))
    case.assertEqual(result[7:], ["yes", 7, "child"])
    case.assertEqual(sorted(outcome.things.values()), ["first 1", "first 2", "inner child", "one"])
    # Each subagent was started once, and no stored answer was requested again.
    events = [event for session in outcome.events.values() for event in session]
    case.assertEqual(len([event for event in events if isinstance(event, SubagentStarted)]), 4)
    case.assertEqual(len([event for event in events if isinstance(event, ModelResponse) and event.complete]), 4)
    results = [event.tool_use_id for event in outcome.events["s"] if isinstance(event, ToolResult)]
    case.assertEqual(len(results), len(set(results)))


class Matrix(unittest.TestCase):
    @full_size
    def test_wherever_it_is_killed_a_workflow_continues_to_the_same_value(self) -> None:
        crash_everywhere(every_kind_of_step, check, points=None if LARGE else 20)


class Reconciled(unittest.TestCase):
    @full_size
    def test_an_unsafe_step_is_settled_by_what_its_reconcile_finds_wherever_the_process_died(self) -> None:
        def build(life: Life) -> Any:
            def pay(amount: int) -> str:
                return str(life.do(f"pay {amount}", lambda: life.things.setdefault("receipt", f"receipt {amount}")))

            def find(amount: int) -> str | None:
                found = life.things.get("receipt")
                return None if found is None else str(found)

            @workflow(name="paid")
            async def paid(flow: Flow) -> str:
                try:
                    return await flow.step(pay, 7, effect="unsafe", reconcile=find)
                except StepUnknownError:
                    return "not paid"

            return paid.run(options=OpenAgenticOptions(session_store=life.store), session="s")

        seen: set[str] = set()

        def check(outcome: CrashOutcome[WorkflowResult[str]]) -> None:
            paid = "receipt" in outcome.things
            self.assertEqual(outcome.result.output, "receipt 7" if paid else "not paid")
            seen.add(outcome.result.output)

        crash_everywhere(build, check)
        self.assertEqual(seen, {"receipt 7", "not paid"})


if __name__ == "__main__":
    unittest.main()
