"""Failures are visible: tracebacks in the log, and exceptions for callers that ask for them."""

import contextlib
import io
import os
import tempfile
import unittest

from openagentic_sdk.api import RunResult, run
from openagentic_sdk.cli.main import main
from openagentic_sdk.errors import RunFailedError
from openagentic_sdk.events import ToolResult
from openagentic_sdk.hooks.engine import HookEngine
from openagentic_sdk.hooks.models import HookDecision, HookMatcher
from openagentic_sdk.sessions.store import FileSessionStore
from openagentic_sdk.tools.base import Tool, ToolOutput
from openagentic_sdk.tools.function import tool
from openagentic_sdk.tools.read import ReadTool
from tests.pythons import run_python
from tests.size import full_size, sized

from .support import events_of, options_for

SECRET = "correct-horse-battery-staple"


class FirstBuiltIn(Tool):
    """An object whose own code fails when a library calls it."""

    name, description, input_schema = "first", "Fail.", {"type": "object", "properties": {}}

    async def run(self, input, ctx):
        return max([{}], key=lambda row: row["price"])


@tool
def brew(kind: str) -> str:
    """Look up a price."""
    prices = {"coffee": 2}
    return str(prices[kind])


@tool
async def leak(text: str) -> str:
    """Fail with a text that must not be shown."""
    raise ValueError(text)


def scripted(name, **arguments):
    return [{"tool_calls": [{"name": name, "arguments": arguments}]}, "Done."]


class Tracebacks(unittest.IsolatedAsyncioTestCase):
    async def result(self, name, tools, arguments=None, **changes):
        self.options = options_for(scripted(name, **(arguments or {})), tools=tools, **changes)
        events = await events_of("hi", self.options)
        return next(event for event in events if isinstance(event, ToolResult))

    async def test_an_exception_of_a_tool_keeps_its_traceback_in_the_log_and_the_model_reads_its_kind_and_key(self):
        result = await self.result("brew", [brew], {"kind": "tea"})
        trace = result.meta["traceback"]
        self.assertEqual(trace.splitlines()[0], "Traceback (most recent call last):")
        self.assertIn("return str(prices[kind])", trace)
        self.assertEqual(trace.splitlines()[-1], "KeyError: 'tea'")
        self.assertNotIn("tool_step", trace, "frames of the runtime")
        content = self.options.provider.requests[-1]["messages"][-1]["content"]
        self.assertIn("KeyError: 'tea'", content)
        self.assertNotIn("Traceback", content)

    async def test_a_tool_may_give_its_failure_as_its_output(self):
        class Weigh(Tool):
            name, description, input_schema = "weigh", "Weigh it.", {"type": "object"}

            async def run(self, input, ctx):
                return ToolOutput("the scale is empty", is_error=True)

        result = await self.result("weigh", [Weigh()])
        self.assertEqual((result.is_error, result.outcome, result.output), (True, "error", "the scale is empty"))

    async def test_a_tool_that_is_a_class_keeps_its_traceback_too(self):
        result = await self.result("first", [FirstBuiltIn()])
        self.assertIn('key=lambda row: row["price"]', result.meta["traceback"])

    async def test_an_error_that_a_tool_of_the_package_raises_on_purpose_has_no_traceback(self):
        result = await self.result("Read", [ReadTool()], {"file_path": "/nowhere/at/all"})
        self.assertTrue(result.is_error)
        self.assertNotIn("traceback", result.meta or {})

    @full_size
    async def test_secrets_in_a_traceback_are_masked_wherever_it_is_cut(self):
        os.environ["SHOP_API_KEY"] = SECRET
        self.addCleanup(os.environ.pop, "SHOP_API_KEY")
        for before in (0, 1_990, 2_010, 100_000):
            with self.subTest(before):
                text = "x" * before + SECRET + "y" * 100_000 + SECRET
                result = await self.result("leak", [leak], {"text": text})
                self.assertLess(len(result.meta["traceback"]), 9_000)
                self.assertNotIn(SECRET[:12], result.meta["traceback"])
                self.assertNotIn(SECRET[-12:], result.meta["traceback"])
                self.assertEqual(result.meta["traceback"].count("Traceback"), 1)

    async def test_an_exception_that_cannot_be_formatted_is_still_a_result(self):
        class Hostile(Exception):
            @property
            def __notes__(self):
                raise SystemExit(3)

        @tool
        def worst() -> str:
            """Raise an exception that cannot be formatted."""
            raise Hostile("!")

        result = await self.result("worst", [worst])
        self.assertEqual((result.error_type, result.error_message, result.meta), ("Hostile", "!", None))

    async def test_a_long_error_message_keeps_its_beginning_and_its_end(self):
        result = await self.result(
            "leak", [leak], {"text": "It began " + "x" * sized(400_000, 2_000_000, 2_000_000) + " and ended"}
        )
        self.assertLess(len(result.error_message), 9_000)
        self.assertTrue(result.error_message.startswith("It began"))
        self.assertTrue(result.error_message.endswith("and ended"))

    async def test_a_traceback_stays_when_a_hook_looks_at_the_result(self):
        hooks = HookEngine(post_tool_use=[HookMatcher("look", hook=lambda p: HookDecision(action="seen"))])
        result = await self.result("brew", [brew], {"kind": "tea"}, hooks=hooks)
        self.assertIn("KeyError: 'tea'", result.meta["traceback"])

    async def test_sessions_show_prints_the_traceback_below_the_call(self):
        with tempfile.TemporaryDirectory() as folder:
            result = await self.result("brew", [brew], {"kind": "tea"}, session_store=FileSessionStore(root_dir=folder))
            self.assertTrue(result.is_error)
            with contextlib.redirect_stdout(io.StringIO()) as out:
                self.assertEqual(main(["sessions", "show", "--store", folder]), 0)
        rows = out.getvalue().splitlines()
        call = next(number for number, row in enumerate(rows) if "[brew]" in row)
        self.assertRegex(rows[call], r"error, .*: KeyError: 'tea'")
        self.assertEqual(rows[call + 1].strip(), "Traceback (most recent call last):")
        self.assertIn("    KeyError: 'tea'", rows)


class RaiseOnError(unittest.IsolatedAsyncioTestCase):
    async def test_a_run_that_did_not_finish_raises_with_its_result(self):
        with self.assertRaises(RunFailedError) as caught:
            await run(prompt="hi", options=options_for(scripted("brew", kind="x"), max_steps=1), raise_on_error=True)
        self.assertIsInstance(caught.exception.result, RunResult)
        self.assertEqual(caught.exception.result.stop_reason, "max_steps")
        self.assertIn("max_steps", str(caught.exception))
        self.assertIn(caught.exception.result.session_id, str(caught.exception))

    async def test_a_failed_provider_is_reported_with_its_reason(self):
        options = options_for([{"error": {"status": 401, "message": "no such key"}}])
        with self.assertRaisesRegex(RunFailedError, "no such key"):
            await run(prompt="hi", options=options, raise_on_error=True)
        self.assertFalse((await run(prompt="hi", options=options_for([]))).ok, "without it, the result has the error")

    async def test_a_run_that_ends_raises_nothing(self):
        result = await run(prompt="hi", options=options_for(["Done."]), raise_on_error=True)
        self.assertEqual(result.final_text, "Done.")

    def test_a_script_without_a_key_ends_with_an_error_and_not_with_an_empty_text(self):
        script = (
            "from openagentic_sdk import MemorySessionStore, OpenAgenticOptions, OpenAIProvider, run_sync\n"
            "options = OpenAgenticOptions(provider=OpenAIProvider(), model='m', session_store=MemorySessionStore())\n"
            "print(run_sync(prompt='hi', options=options, raise_on_error=True).final_text)\n"
        )
        with tempfile.TemporaryDirectory() as home:
            known = {name: value for name, value in os.environ.items() if "KEY" not in name and "OPENAI" not in name}
            environment = {**known, "HOME": home, "PYTHONPATH": os.getcwd()}
            done = run_python("-c", script, text=True, cwd=home, env=environment)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("RunFailedError", done.stderr)


if __name__ == "__main__":
    unittest.main()
