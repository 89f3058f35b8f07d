"""Interactions of two parts of the runtime: regression tests for the findings of a review."""

import asyncio
import sqlite3
import threading
import unittest

from openagentic_sdk.api import query, run
from openagentic_sdk.client import AgentClient
from openagentic_sdk.hooks.engine import HookEngine
from openagentic_sdk.hooks.models import HookDecision, HookMatcher
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.runs.background import submit
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.sessions.request import json_sha256
from openagentic_sdk.tools.base import Questions, RunResources, Tool
from openagentic_sdk.tools.function import tool
from tests.looptime import skip_time

from .support import assert_closed, events_of, options_for, result_of

SECRET = "hush-hush-value"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def tool_named(tool_name, **attributes):
    """A tool built from its parts."""
    return type(
        "Made", (Tool,), {"name": tool_name, "description": "x", "input_schema": {"type": "object"}, **attributes}
    )()


class SeamTest(unittest.IsolatedAsyncioTestCase):
    async def test_a_tool_that_swallows_its_cancellation_does_not_keep_the_run_going(self):
        wiped, started = [], asyncio.Event()

        @tool(effect="read")
        async def slow() -> str:
            """Answer a cancellation with a partial result."""
            try:
                started.set()
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return "stopped"

        @tool
        def wipe() -> str:
            """Record an effect."""
            wiped.append(1)
            return "wiped"

        store = MemorySessionStore()
        turns = [{"tool_calls": [{"name": "slow"}]}, {"tool_calls": [{"name": "wipe"}]}, "done"]

        async def consume():
            async for _ in query(prompt="hi", options=options_for(turns, tools=[slow, wipe], session_store=store)):
                pass

        consumer = asyncio.create_task(consume())
        await started.wait()
        consumer.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await consumer
        self.assertEqual(wiped, [])
        events = assert_closed(self, store, store.list_sessions()[0])
        self.assertEqual(events[-1].stop_reason, "interrupted")

    async def test_a_tool_that_is_cancelled_from_inside_is_an_error_for_the_model(self):
        @tool(effect="read")
        async def own() -> str:
            """Await something that is cancelled."""
            never = asyncio.get_running_loop().create_future()
            never.cancel()
            await never

        result = await run(prompt="hi", options=options_for([{"tool_calls": [{"name": "own"}]}, "ok"], tools=[own]))
        self.assertEqual(result.final_text, "ok")

    async def test_a_big_output_is_masked_before_any_of_it_is_stored(self):
        @tool(effect="read")
        def big() -> str:
            """Return a large output."""
            return "x" * 200_000 + SECRET + "y" * 200_000

        options = options_for(
            [{"tool_calls": [{"name": "big"}]}, "ok"], tools=[big], redact=lambda text: text.replace(SECRET, "[masked]")
        )
        events = await events_of("hi", options)
        output = next(event for event in events if event.type == "tool.result").output
        stored = options.session_store.read_blob(result_of(events).session_id, output["blob"])
        self.assertNotIn(SECRET.encode(), stored)

    async def test_a_big_output_is_masked_beside_the_event_loop_and_a_small_one_in_it(self):
        threads = {}

        def redact(text: str) -> str:
            if text.startswith("output"):
                threads.setdefault(text[:10], threading.current_thread())
            return text

        @tool(effect="read")
        def texts(size: int) -> list:
            """Return a block of text of some size."""
            return [{"type": "text", "text": f"output {size:03d}" + "x" * size * 1000}]

        calls = [{"name": "texts", "arguments": {"size": size}} for size in (1, 300)]
        await run(prompt="hi", options=options_for([{"tool_calls": calls}, "ok"], tools=[texts], redact=redact))
        self.assertIs(threads["output 001"], threading.main_thread())
        self.assertIsNot(threads["output 300"], threading.main_thread())

    async def test_a_result_that_no_hook_has_seen_is_not_shown_when_the_run_is_cut(self):
        async def withhold(payload):
            skip_time(60)
            await asyncio.Event().wait()
            return HookDecision(block=True)

        @tool(effect="read")
        async def tell() -> str:
            """Return a secret."""
            return SECRET

        hooks = HookEngine(post_tool_use=[HookMatcher("withhold", hook=withhold)])
        options = options_for([{"tool_calls": [{"name": "tell"}]}, "never"], tools=[tell], hooks=hooks, timeout_s=60)
        result = await run(prompt="hi", options=options)
        events = assert_closed(self, options.session_store, result.session_id)
        self.assertFalse(any(SECRET in str(event) for event in events))

    async def test_a_resource_that_cannot_be_closed_is_a_notice_and_the_run_ends_as_it_should(self):
        async def keep(self, input, ctx):
            resources = ctx.services.get(RunResources)
            self.db = resources.get(sqlite3.Connection, lambda: sqlite3.connect(":memory:"))
            return "open"

        keeper = tool_named("keep", run=keep)
        options = options_for([{"tool_calls": [{"name": "keep"}]}, "ok"], tools=[keeper])
        events = await events_of("hi", options)
        keeper.db.close()
        self.assertIn("resource.close", [e.code for e in events if e.type == "system.notice"])
        self.assertEqual(result_of(events).stop_reason, "end")
        assert_closed(self, options.session_store, result_of(events).session_id)

    async def test_an_accepted_answer_does_not_count_for_a_continued_run(self):
        decisions = iter([HookDecision(block=True, block_reason="run the tests first"), None])
        hooks = HookEngine(stop=[HookMatcher("tests", hook=lambda payload: next(decisions))])
        echo_call = {"tool_calls": [{"name": "echo", "arguments": {"text": "x"}}]}
        options = options_for(
            ['{"a": 1}', echo_call, '{"a": 2}'], hooks=hooks, output_schema=SCHEMA, output_form="text"
        )
        self.assertEqual((await run(prompt="hi", options=options)).structured_output, {"a": 2})

    async def test_the_final_answer_needs_no_permission(self):
        call = {"tool_calls": [{"name": "final_answer", "arguments": {"a": 1}}]}
        for mode in ("deny", "prompt", "dontAsk"):
            gate = PermissionGate(permission_mode=mode)
            result = await run(prompt="hi", options=options_for([call], output_schema=SCHEMA, permission_gate=gate))
            self.assertEqual(result.structured_output, {"a": 1}, mode)

    async def test_a_tool_that_asks_again_gets_another_answer(self):
        asked = []

        async def answer(question):
            asked.append(question.prompt)
            return f"answer {len(asked)}"

        async def ask(self, input, ctx):
            return [await ctx.services.get(Questions).ask(ctx, "Which?") for _ in range(3)]

        gate = PermissionGate(permission_mode="bypass", user_answerer=answer)
        options = options_for(
            [{"tool_calls": [{"name": "ask"}]}, "ok"], tools=[tool_named("ask", run=ask)], permission_gate=gate
        )
        events = await events_of("hi", options)
        result = next(event for event in events if event.type == "tool.result")
        self.assertEqual(result.output, ["answer 1", "answer 2", "answer 3"])

    async def test_an_answer_in_the_log_is_given_to_one_of_two_questions_that_are_alike(self):
        async def ask(self, input, ctx):
            return [await ctx.services.get(Questions).ask(ctx, "Which?") for _ in range(2)]

        turns = [{"tool_calls": [{"name": "ask"}]}, "ok"]
        options = options_for(turns, tools=[tool_named("ask", run=ask, effect="read")])
        asking = submit("hi", options)
        for text in ("first", "second"):
            question = (await asking.wait()).question
            await asking.answer(question.question_id, text)
        await asking.wait()
        events = assert_closed(self, options.session_store, asking.session_id)
        self.assertEqual(next(e.output for e in events if e.type == "tool.result"), ["first", "second"])

    async def test_notification_hooks_run_before_a_question_is_answered(self):
        was_notified, notices = asyncio.Event(), []

        async def answer(question):
            await was_notified.wait()  # set by the hook; hangs if the hook is not called first
            return "no"

        async def notice(payload):
            notices.append((payload["message"], payload["kind"], payload["context"]["session_id"]))
            was_notified.set()

        options = options_for(
            [{"tool_calls": [{"name": "echo", "arguments": {"text": "x"}}]}, "ok"],
            permission_gate=PermissionGate(permission_mode="prompt", user_answerer=answer),
            hooks=HookEngine(notification=[HookMatcher("bell", hook=notice)]),
        )
        events = await events_of("hi", options)
        self.assertEqual(notices, [("Allow echo?", "permission", events[0].session_id)])
        kinds = [e.type for e in events if e.type in ("user.question", "hook.event", "user.answer")]
        self.assertEqual(kinds, ["user.question", "hook.event", "user.answer"])

    async def test_an_interrupt_hides_no_stored_event_from_its_reader(self):
        options = options_for([{"text": "Look.", "tool_calls": [{"name": "echo", "arguments": {"text": "x"}}]}, "ok"])
        async with AgentClient(options) as client:
            await client.send("hi")
            seen = []
            async for event in client.receive():
                seen.append(event)
                if event.type == "model.response":
                    await client.interrupt()
        stored = options.session_store.read_events(client.session_id)
        self.assertEqual([event.seq for event in seen if event.seq], [event.seq for event in stored])

    async def test_a_tool_that_changes_its_input_does_not_change_the_log(self):
        async def spoil(self, input, ctx):
            input.clear()
            return "spoiled"

        call = {"tool_calls": [{"name": "spoil", "arguments": {"a": [1]}}]}
        options = options_for([call, "ok"], tools=[tool_named("spoil", run=spoil)])
        result = await run(prompt="hi", options=options)
        events = assert_closed(self, options.session_store, result.session_id)
        self.assertEqual(next(event for event in events if event.type == "tool.use").input, {"a": [1]})

    async def test_the_decision_and_the_start_carry_the_digest_of_the_input_that_runs(self):
        change = HookDecision(override_tool_input={"text": "as a hook left it"})
        hooks = HookEngine(pre_tool_use=[HookMatcher("change", hook=lambda payload: change)])
        call = {"tool_calls": [{"name": "echo", "arguments": {"text": "as it was asked"}}]}
        events = await events_of("hi", options_for([call, "ok"], hooks=hooks))
        decision, started = (
            next(e for e in events if e.type == kind) for kind in ("permission.decision", "tool.started")
        )
        self.assertEqual(decision.input_sha256, json_sha256({"text": "as a hook left it"}))
        self.assertEqual(started.input_sha256, decision.input_sha256)

    async def test_a_hook_after_a_call_receives_the_input_that_ran(self):
        seen = []
        hooks = HookEngine(post_tool_use=[HookMatcher("look", hook=lambda payload: seen.append(payload["tool_input"]))])
        call = {"tool_calls": [{"name": "echo", "arguments": {"text": "x"}}]}
        await events_of("hi", options_for([call, "ok"], hooks=hooks))
        self.assertEqual(seen, [{"text": "x"}])


if __name__ == "__main__":
    unittest.main()
