"""Processes that are killed in the middle of a tool call, for real, and what a resumed session makes of it."""

import asyncio
import itertools
import os
import signal
import tempfile
import unittest
from dataclasses import replace
from pathlib import Path

from openagentic_sdk.api import run
from openagentic_sdk.options import AgentDefinition
from openagentic_sdk.parts.record.folds.audit import find_mismatches
from openagentic_sdk.sessions.core import SessionWriter
from openagentic_sdk.sessions.rebuild import rebuild_messages
from openagentic_sdk.sessions.store import FileSessionStore
from openagentic_sdk.testing.scripted import ScriptedProvider
from openagentic_sdk.testing.validity import find_fault
from openagentic_sdk.tools.function import tool
from openagentic_sdk.tools.session.task import TaskTool
from tests.size import IN_MEMORY, LARGE

from .support import options_for


class _KillingWriter(SessionWriter):
    """A session writer that kills its process before or after its n-th batch."""

    def __init__(self, inner, plan):
        self.inner, self.plan = inner, plan
        self.session_id = inner.session_id

    @property
    def last_seq(self):
        return self.inner.last_seq

    def waits_for_disk(self, events):
        return self.inner.waits_for_disk(events)

    def append(self, events):
        self.plan["batch"] += 1
        if self.plan["kill"] == ("before", self.plan["batch"]):
            os.kill(os.getpid(), signal.SIGKILL)
        stored = self.inner.append(events)
        if self.plan["kill"] == ("after", self.plan["batch"]):
            os.kill(os.getpid(), signal.SIGKILL)
        return stored

    def close(self):
        self.inner.close()


class _KillingStore(FileSessionStore):
    def __init__(self, root, kill):
        super().__init__(root, durability="flush")
        self.plan = {"batch": 0, "kill": kill}

    def open_writer(self, session_id):
        return _KillingWriter(super().open_writer(session_id), self.plan)


def effect_tool(effect, trace, kill):
    """A tool that leaves a line in a file for each time it takes effect, and may kill its process around that."""

    @tool(name="act", effect=effect)
    async def act(number: int) -> str:
        """Take effect."""
        if kill == ("inside", number):
            os.kill(os.getpid(), signal.SIGKILL)
        with open(trace, "a") as file:
            file.write(f"{number}\n")
        if kill == ("inside after", number):
            os.kill(os.getpid(), signal.SIGKILL)
        return f"acted {number}"

    return act


def live(root, effect, calls, kill, session_id, resume):
    """One life of the process, in a fork: it plays the whole session, or goes on with it, unless it is killed."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            turns = (
                ["Understood."]
                if resume
                else [
                    {"tool_calls": [{"name": "act", "arguments": {"number": n}} for n in range(calls)]},
                    "Done.",
                ]
            )
            options = options_for(
                turns,
                tools=[effect_tool(effect, root / "trace", kill)],
                session_store=_KillingStore(root, kill),
                **({"resume": session_id} if resume else {"session_id": session_id}),
            )
            result = asyncio.run(run(prompt="go" if not resume else "go on", options=options))
            status = 0 if result.stop_reason == "end" else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or status == 0, f"a life ends by itself or is killed, not with {status}"
    return status


class CrashMatrixTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        """Have done once what each life, a fork of this process, would else do first: it takes as long as the life."""
        options = options_for([{"tool_calls": [{"name": "echo", "arguments": {"text": "x"}}]}, "Done."])
        with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
            asyncio.run(run(prompt="go", options=replace(options, session_store=FileSessionStore(folder))))

    def check(self, effect, calls, kills):
        with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
            root = Path(folder)
            killed = os.WIFSIGNALED(live(root, effect, calls, kills[0], "s", False))
            if kills[0][0].startswith("inside"):
                self.assertTrue(killed, "the tool was reached")
            for kill in kills[1:]:
                if not killed or not (root / "sessions" / "s").exists():
                    break
                killed = os.WIFSIGNALED(live(root, effect, calls, kill, "s", True))
            store = FileSessionStore(root)
            if killed and store.session_exists("s"):
                self.assertEqual(live(root, effect, calls, None, "s", True), 0, "a resumed session ends by itself")
            if store.session_exists("s"):
                self.judge(store, root, effect, calls)

    def judge(self, store, root, effect, calls):
        events = store.read_events("s")
        self.assertEqual([event.seq for event in events], list(range(1, len(events) + 1)))
        self.assertIsNone(find_fault(rebuild_messages(events)))
        self.assertEqual(find_mismatches(events), [])
        trace = (root / "trace").read_text().split() if (root / "trace").exists() else []
        asked = [event for event in events if event.type == "tool.use"]
        for use in asked:
            number = str(use.input["number"])
            starts = [e for e in events if e.type == "tool.started" and e.tool_use_id == use.tool_use_id]
            results = [e for e in events if e.type == "tool.result" and e.tool_use_id == use.tool_use_id]
            self.assertEqual(len(results), 1, "each call has exactly one result")
            if effect == "unsafe":
                self.assertLessEqual(trace.count(number), 1, "an unsafe tool runs at most once")
                self.assertLessEqual(len(starts), 1)
            elif results[0].outcome != "unknown":
                self.assertGreaterEqual(trace.count(number), 1, "a repeatable tool ran")
            if results[0].outcome == "unknown":
                text = next(m for m in rebuild_messages(events) if m.get("tool_call_id") == use.tool_use_id)["content"]
                self.assertIn("may or may not have run", text)
            else:
                self.assertEqual(results[0].output, f"acted {number}")

    def test_a_tool_call_killed_at_every_point_and_resumed(self):
        points = [(when, n) for n in range(1, 12) for when in (("before", "after") if LARGE else ("after",))]
        points += [(when, n) for n in range(4) for when in ("inside", "inside after")]
        sizes = (1, 2, 3, 4) if LARGE else (2,)
        for (row, effect), calls in itertools.product(enumerate(("read", "idempotent", "unsafe")), sizes):
            for number, point in enumerate(points):
                # In the small size the three share the points, but what must not be repeated meets each one inside it.
                inside = effect == "unsafe" and point[0] != "after"
                if not (LARGE or inside or number % 3 == row):
                    continue
                if point[0].startswith("inside") and point[1] >= calls:
                    continue
                with self.subTest(effect=effect, calls=calls, point=point):
                    self.check(effect, calls, [point])

    def test_the_resumed_process_is_killed_too_once_and_twice(self):
        first = [("after", 6), ("inside", 0), ("inside after", 0)]
        later = [
            ("before", 2),
            ("after", 2),
            ("before", 3),
            ("after", 3),
            ("inside", 0),
            ("inside after", 0),
            ("after", 5),
        ]
        pairs = list(itertools.product(first, later, later if LARGE else later[:1]))
        effects = ("read", "idempotent", "unsafe")
        for index, effect in enumerate(effects):
            for kills in pairs if LARGE else pairs[index :: 3 * len(effects)]:
                with self.subTest(effect=effect, kills=kills):
                    self.check(effect, 2, list(kills))


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
    def test_a_tool_that_knows_what_came_of_a_call_is_asked_instead_of_the_model(self):
        from openagentic_sdk.tools.base import Tool

        class Payment(Tool):
            name, description, input_schema = "act", "Pay.", {"type": "object"}

            async def run(self, input, ctx):
                raise AssertionError("it must not run again")

            async def reconcile(self, call, ctx):
                return f"paid under {ctx.idempotency_key.split(':')[1]}"

        with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
            root = Path(folder)
            live(root, "unsafe", 1, ("inside after", 0), "s", False)
            store = FileSessionStore(root)
            options = options_for(["ok"], tools=[Payment()], session_store=store, resume="s")
            asyncio.run(run(prompt="go on", options=options))
            result = next(event for event in store.read_events("s") if event.type == "tool.result")
            self.assertEqual((result.outcome, result.output), ("ok", "paid under call_1_1"))


if __name__ == "__main__":
    unittest.main()


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

    def test_a_killed_subagent_and_its_own_go_on_with_the_parent_and_what_was_running_is_in_doubt(self):
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
