"""Processes killed in the middle of a tool call, and how the resumed session handles the call."""

import asyncio
import os
import signal
import tempfile
import unittest
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path

from openagentic_sdk.api import run
from openagentic_sdk.options import AgentDefinition
from openagentic_sdk.parts.record.folds.audit import find_mismatches
from openagentic_sdk.sessions.rebuild import rebuild_messages
from openagentic_sdk.sessions.store import FileSessionStore
from openagentic_sdk.testing.crash import Killed, Life, Moment, World, crash_everywhere
from openagentic_sdk.testing.scripted import ScriptedProvider
from openagentic_sdk.testing.validity import find_fault
from openagentic_sdk.tools.function import tool
from openagentic_sdk.tools.session.task import TaskTool
from tests.size import IN_MEMORY, LARGE, full_size

from .support import options_for


def acting_agent(life, effect, calls):
    """An agent whose only answer contains calls that each append a line to a file."""

    @tool(name="act", effect=effect)
    async def act(number: int) -> str:
        """Take effect."""

        def leave_trace():
            with open(life.folder / "trace", "a", encoding="utf-8") as file:
                file.write(f"{number}\n")

        life.do(f"act {number}", leave_trace)
        return f"acted {number}"

    turns = [{"tool_calls": [{"name": "act", "arguments": {"number": n}} for n in range(calls)]}, "Done."]
    place = {"session_store": life.store, "session": "s", "request_id": "s"}
    return run(prompt="go", options=options_for(ScriptedProvider(turns, resumable=True), tools=[act], **place))


class CrashMatrixTest(unittest.TestCase):
    def judge(self, outcome, effect):
        events = outcome.events["s"]
        self.assertEqual([event.seq for event in events], list(range(1, len(events) + 1)))
        self.assertEqual(find_mismatches(events), [])
        file = outcome.folder and outcome.folder / "trace"
        trace = file.read_text().split() if file and file.exists() else []
        for use in [event for event in events if event.type == "tool.use"]:
            number = str(use.input["number"])
            starts = [e for e in events if e.type == "tool.started" and e.tool_use_id == use.tool_use_id]
            results = [e for e in events if e.type == "tool.result" and e.tool_use_id == use.tool_use_id]
            self.assertEqual(len(results), 1, "each call needs exactly one result")
            if effect == "unsafe":
                self.assertLessEqual(trace.count(number), 1, "an unsafe tool ran more than once")
                self.assertLessEqual(len(starts), 1)
            elif results[0].outcome != "unknown":
                self.assertGreaterEqual(trace.count(number), 1, "a repeatable tool did not run")
            if results[0].outcome == "unknown":
                text = next(m for m in rebuild_messages(events) if m.get("tool_call_id") == use.tool_use_id)["content"]
                self.assertIn("may or may not have run", text)
            else:
                self.assertEqual(results[0].output, f"acted {number}")

    def check(self, effect, calls, **how):
        build, judge = partial(acting_agent, effect=effect, calls=calls), partial(self.judge, effect=effect)
        with self.subTest(effect=effect, calls=calls):
            crash_everywhere(build, judge, real=LARGE, **how)

    @full_size
    def test_a_tool_call_killed_at_every_point_and_resumed(self):
        for effect, calls in product(("read", "idempotent", "unsafe"), (1, 2, 3, 4) if LARGE else (2,)):
            self.check(effect, calls)

    @full_size
    def test_the_resumed_process_is_killed_too_once_and_twice(self):
        for effect, deaths in product(("read", "idempotent", "unsafe"), (2, 3)):
            self.check(effect, 2, deaths=deaths, points=None if LARGE else 6)


class RequestIdTest(unittest.IsolatedAsyncioTestCase):
    async def test_a_prompt_sent_again_after_its_end_runs_nothing_and_gives_the_same_answer(self):
        options = options_for(["Paid."], request_id="pay-1")
        first = await run(prompt="pay", options=options)
        provider = ScriptedProvider([])
        again = options_for(provider, request_id="pay-1", resume=first.session_id, session_store=options.session_store)
        second = await run(prompt="pay", options=again)
        self.assertEqual((second.final_text, second.stop_reason, provider.requests), ("Paid.", "end", []))

    async def test_a_prompt_sent_again_after_a_crash_is_not_added_twice(self):
        options = options_for([{"error": {"message": "gone"}}], request_id="pay-1")
        first = await run(prompt="pay", options=options)
        again = options_for(["Paid."], request_id="pay-1", resume=first.session_id, session_store=options.session_store)
        second = await run(prompt="pay", options=again)
        self.assertEqual(second.final_text, "Paid.")
        events = options.session_store.read_events(first.session_id)
        self.assertEqual([e.text for e in events if e.type == "user.message"], ["pay"])


class ReconcileTest(unittest.TestCase):
    def test_a_tool_that_can_find_the_outcome_of_a_call_is_asked_instead_of_the_model(self):
        from openagentic_sdk.tools.base import Tool

        class Payment(Tool):
            name, description, input_schema = "act", "Pay.", {"type": "object"}

            async def run(self, input, ctx):
                raise AssertionError("the call ran again")

            async def reconcile(self, call, ctx):
                return f"paid under {ctx.idempotency_key.split(':')[1]}"

        world = World(real=False)
        self.addCleanup(world.close)
        seen = Life(World(real=False))
        asyncio.run(acting_agent(seen, "unsafe", 1))
        first = Life(world, 1, Moment(seen.seen.index("act 0") + 1, True, "act 0"))
        with suppress(Killed):
            asyncio.run(acting_agent(first, "unsafe", 1))
        self.assertEqual(first.seen[-1], "act 0")
        store = Life(world, 2).store
        asyncio.run(
            run(prompt="go on", options=options_for(["ok"], tools=[Payment()], session_store=store, resume="s"))
        )
        result = next(event for event in store.read_events("s") if event.type == "tool.result")
        self.assertEqual((result.outcome, result.output), ("ok", "paid under call_1_1"))


class KilledSubagentTest(unittest.TestCase):
    def live(self, root, turns, **session):
        child = os.fork()
        if child == 0:
            try:

                @tool(name="die", effect="unsafe")
                async def die() -> str:
                    """Kill the process."""
                    os.kill(os.getpid(), signal.SIGKILL)
                    return ""

                agents = {
                    "one": AgentDefinition("does one", "You are one.", tools=("Task", "die")),
                    "two": AgentDefinition("does two", "You are two.", tools=("die",)),
                }
                tools = [die, TaskTool({"one": "", "two": ""})]
                store = FileSessionStore(root)
                options = options_for(turns, tools=tools, agents=agents, session_store=store, **session)
                asyncio.run(run(prompt="go", options=options))
            finally:
                os._exit(0)
        return os.waitpid(child, 0)[1]

    @full_size
    def test_a_killed_subagent_and_its_own_continue_with_the_parent_and_what_was_running_is_in_doubt(self):
        def task(name):
            return {"tool_calls": [{"name": "Task", "arguments": {"agent": name, "prompt": "go"}}]}

        die = {"agent": "You are two.", "tool_calls": [{"name": "die", "arguments": {}}]}
        with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
            root = Path(folder)
            killed = self.live(root, [task("one"), {"agent": "You are one.", **task("two")}, die], session_id="s")
            self.assertTrue(os.WIFSIGNALED(killed))
            store = FileSessionStore(root)
            rows = store.list_session_summaries(include_children=True)
            self.assertEqual([row.state for row in rows], ["stopped"] * 3)
            rest = [{"agent": "You are two.", "text": "It died."}, {"agent": "You are one.", "text": "Two died."}]
            self.live(root, [*rest, "Understood."], resume="s")
            rows = store.list_session_summaries(include_children=True)
            self.assertEqual([row.state for row in rows], ["idle"] * 3)
            for row in rows:
                events = store.read_events(row.id)
                self.assertEqual(events[-1].type, "result")
                self.assertIsNone(find_fault(rebuild_messages(events)))
                uses = [event.tool_use_id for event in events if event.type == "tool.use"]
                self.assertEqual([e.tool_use_id for e in events if e.type == "tool.result"], uses)
                self.assertEqual(events[-1].stop_reason, "end")
                if row.is_child:
                    self.assertEqual(len({event.parent_tool_use_id for event in events}), 1)


if __name__ == "__main__":
    unittest.main()
