"""Subagents: sessions of their own, within the permissions and budget of their parent."""

import asyncio
import unittest

from openagentic_sdk.api import run
from openagentic_sdk.ground.threads import GUEST_MOMENT_S
from openagentic_sdk.hooks.engine import HookEngine
from openagentic_sdk.hooks.models import HookDecision, HookMatcher
from openagentic_sdk.options import AgentDefinition
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.testing.scripted import ScriptedProvider
from openagentic_sdk.tools.function import tool
from openagentic_sdk.tools.session.task import TaskTool
from tests.looptime import skip_time

from .support import assert_closed, echo, events_of, fail, options_for, result_of

SPENT = {"input_tokens": 30, "output_tokens": 20}


def delegate(*agents):
    return {"tool_calls": [{"name": "Task", "arguments": {"agent": name, "prompt": f"do {name}"}} for name in agents]}


def options_with(turns, agents=("one", "two"), **changes):
    if not isinstance(agents, dict):
        agents = {name: AgentDefinition(f"does {name}", f"You are {name}.") for name in agents}
    tools = [echo, fail, TaskTool(dict.fromkeys(agents, ""))]
    return options_for(turns, **{"agents": agents, "tools": tools, **changes})


class SubagentTest(unittest.IsolatedAsyncioTestCase):
    async def test_its_session_is_linked_both_ways_and_its_events_are_marked(self):
        turns = [delegate("one"), {"agent": "You are one.", "text": "the answer"}, "Thanks."]
        options = options_with(turns)
        events = await events_of("go", options)
        store, parent = options.session_store, result_of(events).session_id
        result = next(e for e in events if e.type == "tool.result" and e.parent_tool_use_id is None)
        child = result.output["child_session_id"]
        metadata = store.read_metadata(child)["metadata"]
        self.assertEqual(metadata["parent_session_id"], parent)
        self.assertEqual((metadata["parent_tool_use_id"], metadata["agent_name"]), (result.tool_use_id, "one"))
        marked = [event for event in events if event.agent_name == "one"]
        self.assertEqual({event.parent_tool_use_id for event in marked}, {result.tool_use_id})
        self.assertEqual(store.read_events(child), [event for event in marked if event.seq is not None])
        for session_id in (parent, child):
            assert_closed(self, store, session_id)

    async def test_only_its_last_text_enters_the_parents_conversation(self):
        turns = [
            delegate("one"),
            {
                "agent": "You are one.",
                "text": "inner thought",
                "tool_calls": [{"name": "echo", "arguments": {"text": "hid"}}],
            },
            {"agent": "You are one.", "text": "the answer", "expect": {"lacks": "go", "contains": "do one"}},
            {"text": "Thanks.", "expect": {"last": "the answer", "lacks": ["inner thought", "hid"]}},
        ]
        result = await run(prompt="go", options=options_with(turns))
        self.assertTrue(result.ok, result.error_message)

    async def test_several_work_at_the_same_time(self):
        together = asyncio.Barrier(2)

        @tool(effect="read")
        async def meet() -> str:
            """Wait for the other one."""
            await together.wait()
            return "met"

        call = {"tool_calls": [{"name": "meet"}]}
        turns = [
            delegate("one", "two"),
            {"agent": "You are one.", **call}, {"agent": "You are two.", **call},
            {"agent": "You are one.", "text": "1"}, {"agent": "You are two.", "text": "2"},
            "Both done.",
        ]  # fmt: skip
        options = options_with(turns, tools=[meet, TaskTool({"one": "", "two": ""})])
        events = await asyncio.wait_for(events_of("go", options), 120)
        results = [e for e in events if e.type == "tool.result" and e.parent_tool_use_id is None]
        self.assertEqual([result.output["final_text"] for result in results], ["1", "2"])

    async def test_the_budget_is_shared(self):
        turns = [
            {**delegate("one"), "usage": SPENT},
            {"agent": "You are one.", "tool_calls": [{"name": "echo", "arguments": {"text": "x"}}], "usage": SPENT},
            {"agent": "You are one.", "text": "never asked"},
        ]
        events = await events_of("go", options_with(turns, max_tokens=100))
        stops = [event.stop_reason for event in events if event.type == "result"]
        self.assertEqual(stops, ["budget", "budget"])
        self.assertEqual(result_of(events).usage["input_tokens"], 60, "what the subagent spent is counted once")

    async def test_the_deadline_is_shared(self):
        class Slow(ScriptedProvider):
            async def stream(self, *, model, messages, tools=(), api_key=None):
                if "You are one." in str(messages[0]):
                    skip_time(60)
                    await asyncio.Event().wait()
                async for event in super().stream(model=model, messages=messages, tools=tools, api_key=api_key):
                    yield event

        options = options_with(Slow([delegate("one")]), timeout_s=60)
        events = await events_of("go", options)
        self.assertEqual(result_of(events).stop_reason, "timeout")
        for session_id in options.session_store.list_sessions():
            assert_closed(self, options.session_store, session_id)

    async def test_a_subagent_that_closes_its_log_slowly_is_waited_for_when_its_parent_is_cancelled(self):
        asked, closing, goes_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

        class Hanging(ScriptedProvider):
            async def stream(self, *, model, messages, tools=(), api_key=None):
                if "You are one." in str(messages[0]):
                    asked.set()
                    await asyncio.Event().wait()
                async for event in super().stream(model=model, messages=messages, tools=tools, api_key=api_key):
                    yield event

        async def end(payload):
            closing.set()
            await goes_on.wait()

        hooks = HookEngine(session_end=[HookMatcher("slow", hook=end)])
        options = options_with(Hanging([delegate("one")]), hooks=hooks)
        skip_time(0)  # install the adjustable clock before the run keeps a reference to it
        running = asyncio.create_task(run(prompt="go", options=options))
        await asyncio.wait_for(asked.wait(), 120)
        running.cancel()
        await asyncio.wait_for(closing.wait(), 120)
        skip_time(GUEST_MOMENT_S + 1)
        for _ in range(20):
            await asyncio.sleep(0)
        goes_on.set()
        with self.assertRaises(asyncio.CancelledError):
            await running
        store = options.session_store
        events = [event for name in store.list_sessions() for event in assert_closed(self, store, name)]
        self.assertEqual([event.outcome for event in events if event.type == "tool.result"], ["cancelled"])

    async def test_hooks_and_the_gate_hold_inside_too(self):
        seen = []

        def watch(payload):
            seen.append((payload["context"]["agent_name"], payload["tool_name"]))
            return HookDecision(block=payload["tool_name"] == "fail", block_reason="never")

        turns = [
            delegate("one"),
            {"agent": "You are one.", "tool_calls": [{"name": "fail"}, {"name": "echo", "arguments": {"text": "x"}}]},
            {"agent": "You are one.", "text": "I may not."},
            "Thanks.",
        ]
        gate = PermissionGate(permission_mode="bypass", deny=["echo"])
        hooks = HookEngine(pre_tool_use=[HookMatcher("watch", hook=watch)])
        events = await events_of("go", options_with(turns, permission_gate=gate, hooks=hooks))
        inside = [event for event in events if event.type == "tool.result" and event.agent_name == "one"]
        self.assertEqual([result.error_type for result in inside], ["HookBlocked", "ToolNotFoundError"])
        self.assertEqual(seen, [(None, "Task"), ("one", "fail")])

    async def test_its_definition_narrows_its_tools_and_mode_and_never_widens_them(self):
        @tool
        def act() -> str:
            """Take effect."""
            return "acted"

        definition = AgentDefinition("", "You are one.", tools=("act",), permission_mode="bypass")
        call = {"agent": "You are one.", "tool_calls": [{"name": "act"}, {"name": "echo", "arguments": {"text": "x"}}]}
        turns = [delegate("one"), call, {"agent": "You are one.", "text": "done"}, "Thanks."]
        options = options_with(
            turns,
            agents={"one": definition},
            tools=[act, echo, TaskTool({"one": ""})],
            permission_gate=PermissionGate(permission_mode="dontAsk", allow=["Task"]),
        )
        inside = [e for e in await events_of("go", options) if e.type == "tool.result" and e.agent_name == "one"]
        self.assertEqual([result.error_type for result in inside], ["PermissionDenied", "ToolNotFoundError"])

    async def test_a_nested_subagent_has_its_own_tools_under_the_mode_and_denials_of_its_parent(self):
        for of_one, of_two, reason in (
            ({"tools": ("Task",)}, {"tools": ("fail",)}, "RuntimeError"),
            ({"tools": ("Task",)}, {"tools": ("echo",)}, "ToolNotFoundError"),
            ({"tools": ("Task", "fail"), "permission_mode": "plan"}, {"permission_mode": "bypass"}, "PermissionDenied"),
            ({"disallowed_tools": ("fail",), "tools": ("*",)}, {"tools": ("fail",)}, "ToolNotFoundError"),
        ):
            agents = {
                "one": AgentDefinition("", "You are one.", **of_one),
                "two": AgentDefinition("", "You are two.", **of_two),
            }
            turns = [
                delegate("one"),
                {"agent": "You are one.", **delegate("two")},
                {"agent": "You are two.", "tool_calls": [{"name": "fail", "arguments": {}}]},
                {"agent": "You are two.", "text": "done"},
                {"agent": "You are one.", "text": "done"},
                "ok",
            ]
            gate = PermissionGate(permission_mode="bypass", allow=["Task"])
            events = await events_of("go", options_with(turns, agents=agents, permission_gate=gate))
            inner = next(e for e in events if e.type == "tool.result" and e.agent_name == "two")
            with self.subTest(of_one):
                self.assertEqual(inner.error_type, reason)

    async def test_an_unknown_name_and_too_deep_a_nesting_are_results_for_the_model(self):
        events = await events_of("go", options_with([delegate("three"), "I see."]))
        self.assertIn("not 'three'", next(e for e in events if e.type == "tool.result").error_message)
        nested = {"one": AgentDefinition("", "You are one.", tools=("Task",))}
        turns = [
            delegate("one"),
            {"agent": "You are one.", **delegate("one")},
            {"agent": "You are one.", "text": "alone"},
            "ok",
        ]
        events = await events_of(
            "go", options_with(turns, agents=nested, max_subagent_depth=1, tools=[TaskTool({"one": ""})])
        )
        inner = next(e for e in events if e.type == "tool.result" and e.agent_name == "one")
        self.assertIn("deep", inner.error_message)

    async def test_spending_of_an_interrupted_subagent_is_counted_on_resume(self):
        turns = [delegate("one"), {"agent": "You are one.", "text": "half", "usage": SPENT}]
        options = options_with(turns)
        events = await events_of("go", options)
        store, parent = options.session_store, result_of(events).session_id
        whole = store.read_events(parent)
        died_at = next(e.seq for e in whole if e.type == "subagent.finished") - 1
        crashed = type(store)()
        crashed.create_session(session_id=parent)
        crashed.append_events(parent, whole[:died_at])
        for child in store.list_sessions():
            if child != parent:
                crashed.import_session(child, store.read_events(child))
        result = await run(prompt="go on", options=options_with(["ok"], session_store=crashed, resume=parent))
        before = next(e for e in whole if e.type == "model.response").usage["input_tokens"]
        after = result.events[-2 if result.events[-2].type == "model.response" else -3].usage["input_tokens"]
        self.assertEqual(result.usage["input_tokens"], before + SPENT["input_tokens"] + after)


if __name__ == "__main__":
    unittest.main()
