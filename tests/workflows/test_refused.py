"""An invalid request of a body is refused in a sentence with the value; the value of a step may be anything."""

from __future__ import annotations

import asyncio
import sys
import unittest
from collections.abc import Awaitable, Callable
from typing import Any

from openagentic_sdk import Flow, Retries, RunFailedError, StepFailedError, workflow

from .test_flow import FlowCase


def one() -> int:
    return 1


REFUSED: list[tuple[Callable[[Flow], Awaitable[Any]], str]] = [
    (lambda flow: flow.sleep(float("nan")), "flow.sleep: seconds must be a number"),
    (lambda flow: flow.sleep(float("inf")), "flow.sleep: seconds must be a number"),
    (lambda flow: flow.sleep("soon"), "flow.sleep: seconds must be a number.*'soon'"),  # type: ignore[arg-type]
    (lambda flow: flow.until(1e300), "flow.until: time must be a number"),
    (lambda flow: flow.wait_for(""), "flow.wait_for: event must be a string of 1 to 200"),
    (lambda flow: flow.wait_for("x" * 201), "flow.wait_for: event must be"),
    (lambda flow: flow.wait_for("x", timeout_s=float("nan")), "flow.wait_for: timeout_s must be"),
    (lambda flow: flow.first(), "flow.first.. waits for .* at least one step"),
    (lambda flow: flow.ask(""), "flow.ask: question must be a string"),
    (
        lambda flow: flow.gather([flow.step(one)], limit=0),
        "flow.gather: limit must be .* at least 1, or None, not 0",
    ),
    (lambda flow: flow.gather([flow.step(one)], limit=-1), "flow.gather: limit must be .* not -1"),
    (lambda flow: flow.map(lambda n: flow.step(one), [1], limit=True), "flow.gather: limit must be .* not True"),
    (lambda flow: flow.step(one, name="a\nb"), "a step's name must be"),
    (lambda flow: flow.step(one, name="Bash(*)"), "a step's name must be .*and commas, which rules use"),
    (lambda flow: flow.step(one, name="Bash"), "a step's name must be a name that no built-in tool has"),
    (lambda flow: flow.step(one, name="x" * 201), "a step's name must be"),
    (lambda flow: flow.step(one, effect="often"), "a step's effect must be .* not 'often'"),  # type: ignore[call-overload]
    (lambda flow: flow.step(one, retry=0), "retry: attempts must be a whole number of at least 1, not 0"),
    (lambda flow: flow.step(one, retry=True), "retry: attempts must be"),
    (lambda flow: flow.step(one, retry=Retries(delay_s=-1)), "retry: delay_s must be"),
]


class Odd(BaseException):
    """Neither an error nor a signal."""


def too_long() -> int:
    return 10**5000


RAISED: list[BaseException] = [SystemExit(3), Odd("odd"), GeneratorExit(), StopIteration(1), asyncio.CancelledError()]


class Refused(FlowCase):
    async def test_an_invalid_request_of_a_body_ends_the_run_with_a_sentence(self) -> None:
        for number, (ask, words) in enumerate(REFUSED):

            @workflow
            async def work(flow: Flow) -> None:
                await ask(flow)  # noqa: B023 - called before the next iteration

            with self.subTest(words), self.assertRaisesRegex(RunFailedError, words):
                await work.run(options=self.options(), session=f"s{number}")

    async def test_whatever_a_step_raises_or_returns_is_its_failure_alone(self) -> None:
        @workflow
        async def work(flow: Flow, number: int) -> str:
            def fail() -> None:
                raise RAISED[number]

            try:
                await flow.step(fail if number < len(RAISED) else too_long)
            except StepFailedError as error:
                return error.error_type or ""
            return "no error"

        for number in range(len(RAISED) + 1):
            with self.subTest(number):
                result = await work.run(number, options=self.options())
                self.assertEqual(result.stop_reason, "end")
                self.assertNotEqual(result.output, "no error")

    async def test_a_body_that_ends_the_process_ends_its_run_only(self) -> None:
        @workflow
        async def leave(flow: Flow) -> None:
            await flow.step(one)
            sys.exit(3)

        with self.assertRaisesRegex(RunFailedError, "the body of the workflow raised SystemExit: 3"):
            await leave.run(options=self.options(), session="s")
        self.assertEqual(self.types("s")[-1], "result")

    async def test_a_step_that_is_never_awaited_is_warned_of(self) -> None:
        @workflow
        async def forgetful(flow: Flow) -> str:
            flow.step(one, name="forgotten")
            return await flow.step(str, 1)

        with self.assertWarnsRegex(RuntimeWarning, r"step 1 \(forgotten\) at test_refused.py:\d+ was never awaited"):
            self.assertEqual((await forgetful.run(options=self.options())).output, "1")

    async def test_names_of_tools_and_servers_are_names_of_steps(self) -> None:
        names = ["<lambda>", "mcp__x__y", "é ü", "Task", "a.b:c", "-x", "$HOME", "{}", "~"]

        @workflow
        async def work(flow: Flow) -> list[int]:
            return [await flow.step(one, name=name) for name in names]

        self.assertEqual((await work.run(options=self.options())).output, [1] * len(names))


if __name__ == "__main__":
    unittest.main()
