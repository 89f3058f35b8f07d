"""The public names of `openagentic_sdk`: exactly these, importable from the top level, and typed."""

import asyncio
import importlib
import importlib.util
import inspect
import typing
import unittest
import warnings
from dataclasses import dataclass, fields, replace

import openagentic_sdk
from openagentic_sdk import (
    AgentDefinition,
    EventLoopError,
    HookDecision,
    HookEngine,
    HookMatcher,
    OpenAgenticOptions,
    OpenAICompatibleProvider,
    PermissionGate,
    RunMetrics,
    RunResult,
    StopReason,
    ToolContext,
    answer_question,
    compact_session,
    default_tools,
    dumps_event,
    events,
    follow,
    query,
    run,
    run_sync,
    submit,
    tool,
)
from openagentic_sdk.evals.run import run_suite
from openagentic_sdk.evals.suite import Case, Suite
from openagentic_sdk.events import SystemInit
from openagentic_sdk.sessions.memory import MemorySessionStore

from .support import echo, options_for

NAMES = [
    "Agent",
    "AgentClient",
    "AgentDefinition",
    "AgentResult",
    "AnthropicProvider",
    "AnyEvent",
    "ApprovalResult",
    "BackgroundRun",
    "Event",
    "Fallback",
    "FileSessionStore",
    "Flow",
    "HookDecision",
    "HookEngine",
    "HookMatcher",
    "McpServer",
    "MemorySessionStore",
    "OpenAICompatibleProvider",
    "OpenAIProvider",
    "OpenAIResponsesProvider",
    "OpenAgentSdkError",
    "OpenAgenticOptions",
    "OptionsError",
    "PermissionGate",
    "Result",
    "Retries",
    "RetryPolicy",
    "RunFailedError",
    "RunResult",
    "SessionStore",
    "StepFailedError",
    "StepUnknownError",
    "Tool",
    "ToolContext",
    "ToolError",
    "ToolOutput",
    "UserQuestion",
    "Workflow",
    "WorkflowChangedError",
    "WorkflowError",
    "WorkflowReplay",
    "WorkflowResult",
    "__version__",
    "answer_question",
    "answer_questions",
    "errors",
    "events",
    "follow",
    "open_store",
    "query",
    "run",
    "run_sync",
    "submit",
    "tool",
    "workflow",
]


class PublicNamesTest(unittest.TestCase):
    def test_the_public_names_are_exactly_these(self):
        self.assertEqual(openagentic_sdk.__all__, NAMES)

    def test_names_that_have_left_the_list_are_still_imported_without_a_word(self):
        left = {"CodeTool", "ModelOutput", "StopReason", "default_tools", "fork_session", "replay_events"}
        self.assertEqual(left & {*openagentic_sdk.__all__}, set())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for name in left:
                self.assertIsNotNone(getattr(openagentic_sdk, name))

    def test_every_name_is_what_its_home_holds(self):
        for name, home in (openagentic_sdk._HOMES | openagentic_sdk._UNLISTED).items():
            with self.subTest(name):
                module = importlib.import_module(f"openagentic_sdk.{home or name}")
                self.assertIs(getattr(openagentic_sdk, name), getattr(module, name) if home else module)

    def test_star_import_gives_all_of_them(self):
        space = {}
        exec("from openagentic_sdk import *", space)
        self.assertEqual(set(NAMES) - set(space), set())

    def test_the_closed_words_are_typed(self):
        self.assertIn("waiting", typing.get_args(StopReason))
        self.assertIn("blocked:before_model_call", typing.get_args(StopReason))


class FrontDoorTest(unittest.TestCase):
    def test_run_sync_runs_a_prompt_from_plain_code(self):
        self.assertEqual(run_sync(prompt="hi", options=options_for(["hello"])).final_text, "hello")

    def test_run_sync_in_a_coroutine_is_an_error_that_suggests_to_await_run(self):
        async def inside():
            run_sync(prompt="hi", options=options_for([]))

        with self.assertRaisesRegex(EventLoopError, "await run"):
            asyncio.run(inside())

    def test_without_asyncio_every_entry_point_is_an_error_before_anything_has_happened(self):
        store = MemorySessionStore()
        options = options_for(["hello"], session_store=store)
        for start in (
            lambda: anext(query(prompt="hi", options=options)),
            lambda: run(prompt="hi", options=options),
            lambda: submit("hi", options),
            lambda: anext(follow(store, "any")),
            lambda: answer_question(store, "any", "q1", "yes"),
            lambda: compact_session(options=replace(options, resume="any")),
            lambda: default_tools().get("Glob").run({"pattern": "*"}, ToolContext()),
            lambda: default_tools().get("Read").run({"file_path": "x"}, ToolContext()),
            lambda: HookEngine(stop=[HookMatcher("own", hook=print)]).run_stop(),
            lambda: PermissionGate(permission_mode="prompt", approver=print).approve("Bash", {"command": "rm x"}),
            lambda: OpenAICompatibleProvider(base_url="http://127.0.0.1:9").complete(model="m", messages=[]),
            lambda: run_suite(Suite(name="s", agent=options, cases=[Case(prompt="hi")]), store=store),
        ):
            with self.subTest(inspect.getsource(start)), self.assertRaisesRegex(EventLoopError, "asyncio"):
                start().send(None)  # trio's loop steps a coroutine in this way
        self.assertEqual(store.list_sessions(), [])

    def test_the_repr_of_a_result_fits_on_a_screen(self):
        turns = [{"tool_calls": [{"name": "echo", "arguments": {"text": "x" * 20_000}}]}, "word " * 2_000]
        result = run_sync(prompt="hi", options=options_for(turns))
        self.assertIsInstance(result, RunResult)
        self.assertLess(len(repr(result)), 24 * 80)
        self.assertIn(f"events=<{len(result.events)} events>", repr(result))
        much = {str(number): ["y" * 1000] * 9 for number in range(9)}
        texts = dict.fromkeys(("final_text", "error_message", "session_id"), "x" * 5000)
        result = replace(result, **texts, usage=much, structured_output=much, metrics=RunMetrics(usage=much))
        self.assertLess(len(repr(result)), 24 * 80)

    def test_the_figures_of_a_run_are_in_its_result(self):
        turns = [{"tool_calls": [{"name": "fail"}, {"name": "echo", "arguments": {"text": "x"}}]}, "done"]
        metrics = run_sync(prompt="hi", options=options_for(turns)).metrics
        figures = (metrics.steps, metrics.messages, metrics.tool_calls, metrics.tool_errors, metrics.failed_runs)
        self.assertEqual(figures, (2, 3, 2, 1, 0))

    def test_own_tools_and_subagents_together_offer_the_task_tool(self):
        helper = {"helper": AgentDefinition("helps", "You help")}
        turns = [
            {"tool_calls": [{"name": "Task", "arguments": {"agent": "helper", "prompt": "help"}}]},
            {"agent": "You help", "text": "Helped."},
            "Done.",
        ]
        result = run_sync(prompt="hi", options=options_for(turns, tools=[echo], agents=helper))
        offered = next(event.tools for event in result.events if isinstance(event, SystemInit))
        self.assertEqual((offered, result.final_text), (["echo", "Task"], "Done."))

    def test_values_whose_class_was_extended_with_slots_are_taken_as_any_other(self):
        def extended(cls, kw_only=False):
            return dataclass(frozen=True, slots=True, kw_only=kw_only)(type("Own", (cls,), {"__annotations__": {}}))

        decision = extended(HookDecision)(block=True, block_reason="not this")
        hook = extended(HookMatcher)("own", "*", lambda payload: decision)
        options = options_for(
            [{"tool_calls": [{"name": "echo", "arguments": {"text": "x"}}]}, "Done."],
            hooks=extended(HookEngine, True)(pre_tool_use=[hook]),
            agents={"own": extended(AgentDefinition)("helps", "You help")},
        )
        settings = {known.name: getattr(options, known.name) for known in fields(options)}
        result = run_sync(prompt="hi", options=extended(OpenAgenticOptions, True)(**settings))
        denied = [event.error_message for event in result.events if isinstance(event, events.ToolResult)]
        self.assertEqual((denied, result.stop_reason), (["not this"], "end"))
        event = extended(events.UserMessage)("hi", seq=1)
        self.assertEqual(dumps_event(event), dumps_event(events.UserMessage("hi", seq=1)))
        options.session_store.append_event(result.session_id, extended(events.SystemNotice)("own", "text"))
        self.assertEqual(options.session_store.read_events(result.session_id)[-1].message, "text")

    def test_a_tool_made_of_a_function_is_still_that_function(self):
        @tool
        def add(a: int, b: int = 1) -> int:
            """Add."""
            return a + b

        self.assertEqual(add(1, b=4), 5)


if __name__ == "__main__":
    unittest.main()
