"""The kernel with only a provider, a tool and a file store: no parts, no gate, no hooks."""

import asyncio
import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from openagentic_sdk.errors import MissingServiceError
from openagentic_sdk.kernel.agent import AgentRuntime, RunRequest
from openagentic_sdk.kernel.gate import CallContext, ReadOnlyGate
from openagentic_sdk.kernel.prompt import Said
from openagentic_sdk.kernel.registry import ToolRegistry
from openagentic_sdk.kernel.task import RunTask
from openagentic_sdk.parts.record.lifecycle import fork_session
from openagentic_sdk.parts.record.verify_log import verify_session
from openagentic_sdk.sessions.store import FileSessionStore
from openagentic_sdk.testing.scripted import ScriptedProvider
from openagentic_sdk.tools.base import ToolContext
from tests.size import full_size

from .support import assert_closed, echo, fail, types_of

ROOT = Path(__file__).resolve().parents[2]
CALLS = [{"name": name, "arguments": {"text": "hello"}} for name in ("echo", "fail")]


def agent_on(store, turns, tools=(echo, fail), **more):
    return AgentRuntime(
        provider=ScriptedProvider(turns), model="m", tools=ToolRegistry(tools), store=store, cwd=os.getcwd(), **more
    )


async def play(agent, prompt="go", **request):
    events = []
    submission = None if prompt is None else Said(prompt)
    async with await RunTask.start(agent, RunRequest(**request), submission) as task:
        while (event := await task.next_event()) is not None:
            events.append(event)
    return events


class KernelAloneTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        self.store = FileSessionStore(self.folder)

    def test_the_example_of_the_page_has_about_25_lines_and_runs(self):
        page = (ROOT / "docs" / "kernel.md").read_text(encoding="utf-8").partition("## The kernel alone")[2]
        source, printed = re.findall(r"^```(?:python|text)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[:2]
        self.assertLessEqual(len([line for line in source.splitlines() if line]), 25)
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(source, "kernel.md", "exec"), {"__name__": "page"})
        self.assertEqual(out.getvalue(), printed)

    def test_a_run_without_any_part_is_a_whole_session_that_can_be_resumed_and_forked(self):
        events = asyncio.run(play(agent_on(self.store, [{"tool_calls": CALLS[:1]}, "done"])))
        session_id = events[0].session_id
        assert_closed(self, self.store, session_id)
        self.assertEqual((events[-1].stop_reason, events[-1].final_text), ("end", "done"))
        again = asyncio.run(play(agent_on(self.store, ["again"]), "more", resume=session_id))
        self.assertEqual(types_of(again), ["system.init", "user.message", "assistant.message", "result"])
        fork = fork_session(self.store, session_id)
        self.assertEqual(asyncio.run(play(agent_on(self.store, ["forked"]), resume=fork))[-1].final_text, "forked")
        self.assertTrue(verify_session(self.store, session_id).ok)

    @full_size
    def test_a_call_that_a_crash_left_open_is_settled(self):
        events = asyncio.run(play(agent_on(self.store, [{"tool_calls": CALLS}, "done"], gate=AllowsAll())))
        source = self.store.read_events(events[0].session_id)
        for seq in range(2, len(source)):
            torn = self.store.create_session()
            self.store.append_events(torn, [event for event in source if event.seq <= seq])
            turns = [{"tool_calls": CALLS}, "done"]
            self.assertEqual(asyncio.run(play(agent_on(self.store, turns), resume=torn))[-1].stop_reason, "end", seq)
            assert_closed(self, self.store, torn)

    def test_without_a_gate_only_what_reads_may_run(self):
        events = asyncio.run(play(agent_on(self.store, [{"tool_calls": CALLS}, "done"])))
        decided = {event.name: event for event in events if event.type == "permission.decision"}
        self.assertEqual({name: event.allowed for name, event in decided.items()}, {"echo": True, "fail": False})
        self.assertIn("set AgentRuntime.gate", decided["fail"].reason)
        self.assertEqual(len([event for event in events if event.type == "tool.started"]), 1)

    def test_a_narrowed_gate_is_stricter_and_never_looser(self):
        gate = ReadOnlyGate().narrowed(tools=["echo", "Bash(ls:*)"], deny=["Read(/etc/*)", "mcp__*"], source="test")
        self.assertEqual(gate.offered_tools(["echo", "Bash", "Read", "mcp__a__b", "Glob"]), ("echo",))
        for name, effect, allowed in (("echo", "read", True), ("echo", "unsafe", False), ("Read", "read", False)):
            answer = asyncio.run(gate.approve(name, {}, CallContext(effect=effect)))
            self.assertEqual(bool(answer), allowed, (name, effect))
        self.assertNotEqual(gate.policy_sha256, ReadOnlyGate().policy_sha256)
        self.assertEqual(gate.moved(ReadOnlyGate(), gate).offered_tools(["Glob", "echo"]), ("echo",))

    def test_a_service_that_no_part_offers_is_a_clear_error(self):
        with self.assertRaisesRegex(
            MissingServiceError, "no part of this run offers AgentRuntime: add a part that does"
        ):
            ToolContext(cwd=".").services.get(AgentRuntime)

    @full_size
    def test_running_it_imports_no_feature(self):
        script = f"""
            import sys; sys.path.insert(0, {str(ROOT)!r})
            from pathlib import Path
            page = Path({str(ROOT / "docs" / "kernel.md")!r}).read_text("utf-8")
            exec(page.split("```python\\n")[1].split("```")[0])
            rooms = {{name.split(".")[1] for name in sys.modules if name.startswith("openagentic_sdk.")}}
            features = {{"parts", "permissions", "project", "skills", "mcp", "assemble", "options"}}
            print(sorted(rooms & features), file=sys.stderr)
        """
        script = "\n".join(line.strip() for line in script.splitlines())
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=self.folder, capture_output=True, text=True, timeout=300
        )
        self.assertEqual((done.returncode, done.stderr), (0, "[]\n"))


class AllowsAll(ReadOnlyGate):
    """A gate that allows every call."""

    async def approve(self, tool_name, tool_input, context):
        return await super().approve(tool_name, tool_input, CallContext(effect="read"))


if __name__ == "__main__":
    unittest.main()
