"""If a part fails at a seam or returns an unusable value, the error names the part and the seam."""

from __future__ import annotations

import inspect
import unittest
from functools import partial
from typing import Any

from openagentic_sdk.errors import OptionsError, PartError
from openagentic_sdk.kernel.agent import AgentRuntime, RunRequest
from openagentic_sdk.kernel.lifetime import RunStopped
from openagentic_sdk.kernel.part import Part
from openagentic_sdk.kernel.prompt import Said
from openagentic_sdk.kernel.registry import ToolRegistry
from openagentic_sdk.kernel.task import RunTask
from openagentic_sdk.parts.budgets import Budgets
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.testing.scripted import ScriptedProvider
from openagentic_sdk.tools.function import tool

TURNS: list[Any] = [{"tool_calls": [{"name": "look", "arguments": {}}]}, "Done."]
# Seams that every run calls on each part; those in the second list must return a value.
IN_EVERY_RUN = [
    "opening_events",
    "begin",
    "settle",
    "expand_prompt",
    "fill_prompt",
    "before_step",
    "system_prompt",
    "facts",
]
IN_EVERY_RUN += ["model", "narrow", "tell_gate", "permit", "receive", "read_call", "after_answer", "store_result"]
IN_EVERY_RUN += ["after_call", "may_end", "complete_result"]
WITH_A_VALUE = [
    "opening_events",
    "facts",
    "narrow",
    "tell_gate",
    "permit",
    "receive",
    "mask",
    "read_call",
    "store_result",
]
WITH_A_VALUE += ["after_call", "may_end", "complete_result"]


@tool(effect="read")
def look() -> str:
    """Look."""
    return "tea"


async def ask(*parts: Any, request: RunRequest | None = None) -> Any:
    store = MemorySessionStore()
    provider = ScriptedProvider(TURNS)
    agent = AgentRuntime(provider=provider, model="m", tools=ToolRegistry([look]), store=store, cwd=".", parts=parts)
    async with await RunTask.start(agent, request or RunRequest(), Said("go")) as run:
        while await run.next_event() is not None:
            pass
        return await run.result()


def broken(seam: str, does: Any) -> type[Part]:
    async def later(self: Part, *arguments: Any) -> Any:
        return does()

    def now(self: Part, *arguments: Any) -> Any:
        return does()

    return type("Broken", (Part,), {seam: later if inspect.iscoroutinefunction(getattr(Part, seam)) else now})


def fail() -> None:
    raise ValueError("boom")


def stop() -> None:
    raise RunStopped("budget", "enough")


async def outcome(part: type[Part]) -> str:
    try:
        return str((await ask(part)).error_message)
    except PartError as error:
        return str(error)


class PartSeamsTest(unittest.IsolatedAsyncioTestCase):
    async def test_an_exception_in_a_seam_names_the_class_and_the_seam(self) -> None:
        for seam in IN_EVERY_RUN:
            with self.subTest(seam):
                self.assertIn(f"part 'Broken' failed in {seam} (ValueError: boom", await outcome(broken(seam, fail)))

    async def test_none_where_a_value_is_due_names_the_class_and_the_seam(self) -> None:
        for seam in WITH_A_VALUE:
            with self.subTest(seam):
                self.assertIn(
                    f"part 'Broken' failed in {seam} (TypeError: it", await outcome(broken(seam, lambda: None))
                )

    async def test_a_part_that_stops_the_run_is_not_a_failure(self) -> None:
        result = await ask(broken("before_step", stop))
        self.assertEqual((result.stop_reason, result.error_message), ("budget", "enough"))

    async def test_a_limit_that_no_part_would_hold_a_run_to_is_refused(self) -> None:
        for request in (RunRequest(max_tokens=1), RunRequest(max_cost_usd=1.0)):
            with self.assertRaisesRegex(OptionsError, "max_.*needs a part"):
                await ask(request=request)
        self.assertEqual((await ask(partial(Budgets), request=RunRequest(max_tokens=10_000))).stop_reason, "end")


if __name__ == "__main__":
    unittest.main()
