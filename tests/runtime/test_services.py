"""The context of a tool call: few fields, and services looked up by type."""

import asyncio
import tempfile
import unittest
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from typing import assert_type

from openagentic_sdk.api import run
from openagentic_sdk.assemble import build_agent
from openagentic_sdk.errors import MissingServiceError, ToolError
from openagentic_sdk.events import SystemNotice, ToolProgress, UserQuestion
from openagentic_sdk.ground.threads import next_turn
from openagentic_sdk.kernel.agent import RunRequest
from openagentic_sdk.kernel.part import without_parts
from openagentic_sdk.kernel.prompt import Said
from openagentic_sdk.kernel.task import RunTask, run_events
from openagentic_sdk.options import AgentDefinition
from openagentic_sdk.parts.code import CodeCalls
from openagentic_sdk.parts.undo import KeptFiles
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.sessions.folds.features.untrusted import UntrustedFold
from openagentic_sdk.tools.base import (
    Blobs,
    PathRules,
    Questions,
    RunResources,
    Secrets,
    Services,
    SessionLog,
    ToolContext,
)
from openagentic_sdk.tools.function import tool
from openagentic_sdk.tools.inner_calls import InnerCalls
from openagentic_sdk.tools.session.task import Subagents
from openagentic_sdk.tools.write import WriteTool
from tests.looptime import skip_time

from .support import echo, events_of, options_for, result_of


class Counter:
    """State shared by the calls of one run."""

    def __init__(self) -> None:
        self.count = 0
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


class ContextTest(unittest.TestCase):
    def test_a_context_has_few_fields_and_none_that_could_hold_anything(self) -> None:
        named = {field.name: str(field.type) for field in fields(ToolContext)}
        self.assertLessEqual(len(named), 12, named)
        self.assertEqual([name for name, kind in named.items() if "Any" in kind or "ict" in kind], [])

    def test_a_service_is_found_by_its_type_and_a_missing_one_is_named(self) -> None:
        services = Services({Subagents: Subagents()})
        assert_type(services.get(Subagents), Subagents)
        assert_type(services.find(Counter), Counter | None)
        self.assertIsInstance(services.get(Subagents), Subagents)
        self.assertIsNone(services.find(Counter))
        with self.assertRaisesRegex(MissingServiceError, "no part of this run offers Counter"):
            services.get(Counter)

    def test_a_context_of_its_own_has_all_that_every_tool_may_count_on(self) -> None:
        services = ToolContext().services
        for kind in (SessionLog, Questions, PathRules, Blobs, Secrets, RunResources):
            self.assertIs(services.get(kind), services.get(kind))
        self.assertIsNot(services.get(SessionLog), ToolContext().services.get(SessionLog))


class RunServicesTest(unittest.IsolatedAsyncioTestCase):
    async def test_a_tool_records_shows_shares_and_stores_by_services(self) -> None:
        counters = []

        @tool
        async def use(ctx: ToolContext) -> str:
            """Use the services of a run."""
            log, counter = ctx.services.get(SessionLog), ctx.services.get(RunResources).get(Counter)
            counter.count += 1
            counters.append(counter)
            await log.record(SystemNotice("mine", f"call {counter.count}"))
            await log.show(ToolProgress(ctx.tool_use_id or "", 1.0))
            kept = ctx.services.get(Blobs).read(await ctx.services.get(Blobs).keep(b"bytes"))
            self.assertIn(SystemNotice, map(type, log.events()))
            self.assertEqual(ctx.services.get(UntrustedFold).sources, {})
            self.assertTrue(await ctx.services.get(PathRules).permits(ctx, ctx.cwd))
            redact = ctx.services.get(Secrets).redact
            return f"{kept!r} {redact('hush') if redact else ''}"

        calls = {"tool_calls": [{"name": "use"}, {"name": "use"}]}
        options = options_for([calls, "ok"], tools=[use], redact=lambda text: text.replace("hush", "***"))
        events = await events_of("go", options)
        self.assertEqual(result_of(events).stop_reason, "end", result_of(events).error_message)
        notices = [event.message for event in events if isinstance(event, SystemNotice) and event.code == "mine"]
        self.assertEqual(notices, ["call 1", "call 2"])
        self.assertEqual(sum(isinstance(event, ToolProgress) for event in events), 2)
        self.assertEqual([event.output for event in events if event.type == "tool.result"], ["b'bytes' ***"] * 2)
        self.assertIs(counters[0], counters[1])
        self.assertTrue(counters[0].is_closed)

    async def test_a_call_that_does_not_end_gets_a_moment_only_once_its_own_calls_and_subagents_have_ended(
        self,
    ) -> None:
        async def call_echo(ctx: ToolContext) -> object:
            return await ctx.services.get(InnerCalls).inside(ctx).make("echo", {"text": "x"})

        async def start_subagent(ctx: ToolContext) -> object:
            return await ctx.services.get(Subagents).spawn(ctx.tool_use_id or "", "one", "help")

        for work in (call_echo, start_subagent):

            @tool
            async def stay(ctx: ToolContext, work=work) -> str:
                """Do the work, then outlast both the run's time limit and the grace period of a cancelled call."""
                await work(ctx)
                skip_time(60)
                with suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
                skip_time(60)
                for _ in range(1000):
                    await next_turn()
                return "stayed"

            agents = {"one": AgentDefinition("helps", "You help.")}
            turns = [{"tool_calls": [{"name": "stay"}]}, *(["Helped."] if work is start_subagent else [])]
            events = await events_of("go", options_for(turns, tools=[stay, echo], agents=agents, timeout_s=60))
            with self.subTest(work.__name__):
                ended = [event for event in events if event.type == "tool.result" and event.parent_tool_use_id is None]
                self.assertEqual((result_of(events).stop_reason, ended[-1].outcome), ("timeout", "unknown"), ended)

    async def test_a_tool_asks_a_person_and_gets_an_error_if_nobody_can_be_asked(self) -> None:
        answers = []

        @tool
        async def decide(ctx: ToolContext) -> str:
            """Ask a person."""
            questions = ctx.services.get(Questions)
            answers.append(questions.reach_anybody(ctx))
            return await questions.ask(ctx, "Which?", ("red", "blue"), {"why": "paint"})

        async def answer(question: UserQuestion) -> str:
            self.assertEqual((question.choices, question.details), (("red", "blue"), {"why": "paint"}))
            return "blue"

        turns = [{"tool_calls": [{"name": "decide"}]}, "ok"]
        for gate, outcome in (
            (PermissionGate(permission_mode="bypass", user_answerer=answer), "blue"),
            (PermissionGate(permission_mode="bypass"), ToolError.__name__),
        ):
            result = await run(prompt="go", options=options_for(turns, tools=[decide], permission_gate=gate))
            [ended] = [event for event in result.events if event.type == "tool.result"]
            self.assertEqual(ended.error_type or ended.output, outcome)
        self.assertEqual(answers, [True, False])
        self.assertIn("nobody can be asked 'Which?'", ended.error_message)


@tool
async def twice(ctx: ToolContext) -> str:
    """Call another tool, twice."""
    inside = ctx.services.get(InnerCalls).inside(ctx)
    return " ".join([(await inside.make("echo", {"text": text})).output for text in ("one", "two")])


class PartsOfServicesTest(unittest.IsolatedAsyncioTestCase):
    async def play(self, turns, *left_out, tools):
        """Run an agent without these parts, and return the events."""
        with tempfile.TemporaryDirectory() as cwd:
            agent = build_agent(options_for(turns, tools=tools, cwd=cwd))
            agent = replace(agent, parts=without_parts(agent.parts, *left_out))
            return [event async for event in run_events(partial(RunTask.start, agent, RunRequest(), Said("go")))]

    async def test_a_tool_calls_others_inside_of_its_call_and_only_that_goes_with_the_part(self) -> None:
        turns = [{"tool_calls": [{"name": "twice"}]}, "ok"]
        events = await self.play(turns, tools=[twice, echo])
        results = [event for event in events if event.type == "tool.result"]
        self.assertEqual([event.output for event in results], ["one", "two", "one two"])
        inner = [event for event in events if event.parent_tool_use_id == results[-1].tool_use_id]
        self.assertEqual([event.type for event in inner].count("tool.use"), 2)
        self.assertEqual({event.tool_use_id for event in results[:2]}, {getattr(e, "tool_use_id", None) for e in inner})
        events = await self.play(turns, CodeCalls, tools=[twice, echo])
        [refused] = [event for event in events if event.type == "tool.result"]
        self.assertEqual(refused.error_type, "MissingServiceError")
        self.assertEqual(result_of(events).stop_reason, "end")

    async def test_a_file_is_kept_before_it_changes_and_only_that_goes_with_the_part(self) -> None:
        turns = [{"tool_calls": [{"name": "Write", "arguments": {"file_path": "f", "content": "x"}}]}, "ok"]
        for left_out, kept in (((), 1), ((KeptFiles,), 0)):
            events = await self.play(turns, *left_out, tools=[WriteTool()])
            self.assertEqual([event.type for event in events].count("file.kept"), kept)
            self.assertEqual([event.outcome for event in events if event.type == "tool.result"], ["ok"])
