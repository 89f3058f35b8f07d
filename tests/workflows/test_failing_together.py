"""If one of several parallel steps fails, the others end with their questions and sessions, in every run alike."""

from __future__ import annotations

import asyncio
import datetime
import tempfile
import unittest
from collections.abc import Awaitable, Callable
from typing import Any

from openagentic_sdk import (
    Agent,
    FileSessionStore,
    Flow,
    MemorySessionStore,
    OpenAgenticOptions,
    RunFailedError,
    StepFailedError,
    workflow,
)
from openagentic_sdk.testing import FakeClock, ScriptedProvider
from tests.size import drawn, full_size
from tests.waiting import until_async


def pay(amount: int) -> str:
    raise AssertionError("nobody approved it")


def spender() -> Agent[Any, Any]:
    calls = [{"name": "pay", "arguments": {"amount": 5}}]
    model = ScriptedProvider([{"tool_calls": calls}, "done"], resumable=True)
    return Agent(model, name="spender", tools=[pay], needs_approval=["pay"])


def give(value: Any) -> Any:
    return value


async def give_late(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


def fail() -> None:
    raise ValueError("no")


@workflow
async def asking(flow: Flow) -> str:
    return await flow.ask("inside?")


async def branch(flow: Flow) -> Any:
    try:
        return await flow.gather([flow.step(give_late, 1), flow.ask("later?")])
    finally:
        await flow.step(give, "clean")


MEMBERS: dict[str, Callable[[Flow], list[Awaitable[Any]]]] = {
    "first": lambda flow: [flow.step(fail), flow.step(give, 1), flow.step(give, 2)],
    "middle": lambda flow: [flow.step(give, 1), flow.step(fail), flow.step(give_late, 2)],
    "unsafe": lambda flow: [
        flow.step(give_late, 1, effect="unsafe"),
        flow.step(fail),
        flow.step(give, 2, effect="unsafe"),
    ],
    "time": lambda flow: [flow.sleep(50), flow.step(fail)],
    "event": lambda flow: [flow.wait_for("never"), flow.step(fail)],
    "question": lambda flow: [flow.ask("a?"), flow.step(fail), flow.ask("b?")],
    "branch": lambda flow: [branch(flow), flow.step(fail)],
    "nested": lambda flow: [flow.gather([flow.step(give_late, 1), flow.ask("c?")]), flow.step(fail)],
    "child": lambda flow: [flow.child(asking), flow.step(fail)],
    "agent": lambda flow: [flow.agent(spender(), "Buy."), flow.step(fail)],
    "many": lambda flow: [flow.step(give if n % 2 else give_late, n) if n != 7 else flow.step(fail) for n in range(20)],
}


class FailingTogether(unittest.IsolatedAsyncioTestCase):
    @full_size
    async def test_the_rest_of_a_gather_ends_with_the_step_that_failed_in_every_store(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for store in (MemorySessionStore(), FileSessionStore(folder)):
                for name, members in drawn(MEMBERS.items(), 2):
                    with self.subTest(name, store=type(store).__name__):
                        await self.check(store, name, members)

    async def check(self, store: Any, name: str, members: Callable[[Flow], list[Awaitable[Any]]]) -> None:
        @workflow
        async def together(flow: Flow) -> str:
            try:
                return str(await flow.gather(members(flow)))
            except StepFailedError as error:
                return f"{type(error).__name__}: {error}"

        options = OpenAgenticOptions(session_store=store, clock=FakeClock())
        for _ in range(2):
            result = await together.run(options=options, session=name)
            self.assertEqual(result.stop_reason, "end")
            self.assertRegex(result.output, r"StepFailedError: step \S+ \(fail\) failed: no")
            self.assertEqual(result.questions, ())
        events = store.read_events(name)
        asked = {event.question_id for event in events if event.type == "user.question"}
        self.assertEqual({event.question_id for event in events if event.type == "user.answer"}, asked)
        ended = [event.tool_use_id for event in events if event.type == "tool.result"]
        self.assertEqual(sorted(ended), sorted(event.tool_use_id for event in events if event.type == "tool.use"))
        for child in store.list_children(name):
            self.assertEqual(store.read_summary(child).state, "idle")

    async def test_a_member_that_already_waits_for_a_person_ends_with_its_session(self) -> None:
        await self.check_waiting(lambda flow: flow.agent(spender(), "Buy."))
        await self.check_waiting(lambda flow: flow.child(asking))

    async def check_waiting(self, member: Callable[[Flow], Awaitable[Any]]) -> None:
        store, asked = MemorySessionStore(), asyncio.Event()

        async def fail_late() -> None:
            await asked.wait()
            raise ValueError("no")

        @workflow
        async def together(flow: Flow) -> str:
            try:
                return str(await flow.gather([member(flow), flow.step(fail_late)]))
            except StepFailedError as error:
                return str(error)

        def is_asked() -> bool:
            return any(store.read_summary(child).state == "waiting" for child in store.list_children("w"))

        run = asyncio.create_task(together.run(options=OpenAgenticOptions(session_store=store), session="w"))
        await until_async(is_asked, "the member waits for a person")
        asked.set()
        result = await run
        self.assertEqual((result.stop_reason, result.output), ("end", "step 2 (fail_late) failed: no"))
        (child,) = store.list_children("w")
        self.assertEqual((store.read_summary(child).state, store.read_summary(child).open_questions), ("idle", ()))


class ResultsOfWorkflows(unittest.IsolatedAsyncioTestCase):
    async def test_the_run_that_ends_a_workflow_returns_what_later_ones_read(self) -> None:
        when = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)

        @workflow
        async def untyped(flow: Flow):  # type: ignore[no-untyped-def]
            return (when, {"b"}, await flow.step(give, 1))

        @workflow
        async def typed(flow: Flow) -> tuple[datetime.datetime, set[str]]:
            return when, {"b"}

        options = OpenAgenticOptions(session_store=MemorySessionStore())
        for name, work, value in (
            ("untyped", untyped, ["2026-01-02T00:00:00+00:00", ["b"], 1]),
            ("typed", typed, (when, {"b"})),
        ):
            outputs = [(await work.run(options=options, session=name)).output for _ in range(2)]
            self.assertEqual(outputs, [value, value])

    async def test_a_value_that_the_annotation_does_not_allow_fails_the_run_and_is_not_stored(self) -> None:
        values: list[Any] = ["x"]

        @workflow
        async def number(flow: Flow) -> int:
            return values[0]  # type: ignore[no-any-return]

        options = OpenAgenticOptions(session_store=MemorySessionStore())
        with self.assertRaisesRegex(
            RunFailedError, "number returned a value that does not fit its annotation: .*not 'x'"
        ):
            await number.run(options=options, session="n")
        values[0] = 5
        self.assertEqual((await number.run(options=options, session="n")).output, 5)

    async def test_asyncio_in_a_body_ends_the_run_and_not_its_caller(self) -> None:
        async def limited(flow: Flow) -> Any:
            async with asyncio.timeout(0.01):
                return await flow.step(give_late, 1)

        async def grouped(flow: Flow) -> Any:
            async with asyncio.TaskGroup():
                return await flow.step(give_late, 1)

        async def gathered(flow: Flow) -> Any:
            return await asyncio.gather(flow.step(give_late, 1), flow.step(give_late, 2))

        async def slept(flow: Flow) -> Any:
            await asyncio.sleep(0)

        for body, words in (
            (limited, "limit a time with flow.first"),
            (grouped, "several at once with flow.gather"),
            (gathered, "which is not recorded in the log"),
            (slept, "which is not recorded in the log"),
        ):
            with self.subTest(body.__name__), self.assertRaisesRegex(RunFailedError, words):
                await workflow(body).run(options=OpenAgenticOptions(session_store=MemorySessionStore()))


if __name__ == "__main__":
    unittest.main()
