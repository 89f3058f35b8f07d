"""A process is stopped or killed while its run waits for a person: the question survives, and its call runs once."""

import asyncio
import itertools
import os
import signal
import subprocess
import tempfile
import textwrap
import unittest
from pathlib import Path

from openagentic_sdk.events import Result, ToolResult
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.runs.background import answer_question, submit
from openagentic_sdk.sessions.rebuild import rebuild_messages
from openagentic_sdk.sessions.store import FileSessionStore
from openagentic_sdk.testing.validity import find_fault
from tests.pythons import Python
from tests.size import LARGE, full_size

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60

# The process under test; the scripted turn is selected by name.
SERVICE = """
import asyncio, signal, sys
from openagentic_sdk import *
from openagentic_sdk.testing import ScriptedProvider
from openagentic_sdk.tools.session.ask_user_question import AskUserQuestionTool

WRITE = {"tool_calls": [{"name": "write", "arguments": {}}]}
TURNS = {
    "permission": [WRITE],
    "question": [{"tool_calls": [{"name": "AskUserQuestion", "arguments": {"question": "Which?", "choices": ["yes"]}}]}],
    "subagent": [
        {"tool_calls": [{"name": "Task", "arguments": {"agent": "helper", "prompt": "x"}}]},
        {"agent": "You help", **WRITE},
    ],
}
HERE = {"agents": {"helper": AgentDefinition("helps", "You help")}}


def options(store, turns, path, **more):
    @tool
    def write() -> str:
        "Leave a trace."
        with open(path, "a") as file:
            file.write("x")
        return "written"

    return OpenAgenticOptions(provider=ScriptedProvider(turns), model="m", tools=[write, AskUserQuestionTool()],
        allowed_tools=["Task", "AskUserQuestion"], session_store=store, **HERE, **more)


async def serve(root, path, kind):
    async def person(question):
        print("asked", flush=True)
        await asyncio.Event().wait()

    gate = PermissionGate(user_answerer=person)
    run = submit("go", options(FileSessionStore(root), TURNS[kind], path, permission_gate=gate))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, lambda: asyncio.ensure_future(run.suspend(grace_s=0.1)))
    print((await run.wait()).stop_reason)


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
"""


class StopTest(unittest.TestCase):
    @full_size
    def test_a_question_outlives_every_way_to_stop_its_process(self):
        cases = [(signal.SIGTERM, "subagent"), (signal.SIGKILL, "subagent"), (signal.SIGINT, "permission")]
        if LARGE:
            numbers, kinds = (signal.SIGTERM, signal.SIGKILL, signal.SIGINT), ("permission", "question", "subagent")
            cases = list(itertools.product(numbers, kinds))
        for number, kind in cases:
            with self.subTest(signal=number.name, asks=kind), tempfile.TemporaryDirectory() as folder:
                self.stop_and_go_on(Path(folder), number, kind)

    def stop_and_go_on(self, folder, number, kind):
        script, trace = folder / "service.py", folder / "trace"
        script.write_text(textwrap.dedent(SERVICE))
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "OPENAGENTIC_SDK_KEY": str(folder / "key")}
        argv = ["-c", script.read_text(), str(folder / "store"), str(trace), kind]
        pipe = subprocess.PIPE
        with Python(*argv, stdout=pipe, stderr=pipe, text=True, env=environ) as process:
            self.assertEqual(process.stdout.readline(), "asked\n")
            process.send_signal(number)
            out, err = process.communicate(timeout=SECONDS)
        if number == signal.SIGTERM:
            self.assertEqual((out, err, process.returncode), ("waiting\n", "", 0))
        store = FileSessionStore(folder / "store")
        (top,) = store.list_session_summaries()
        if number == signal.SIGKILL and kind == "subagent":
            # The child had asked, but the parent was killed before recording it: the question is in the child's log.
            top = next(row for row in store.list_session_summaries(include_children=True) if row.open_questions)
        self.assertEqual((top.state, len(top.open_questions)), ("waiting", 1))
        key_file = str(folder / "key")
        asyncio.run(answer_question(store, top.id, top.open_questions[0], "yes", key_file=key_file))
        (top,) = store.list_session_summaries()
        space = {"__name__": "service"}
        exec(compile(script.read_text(), str(script), "exec"), space)
        turns = [{"agent": "You help", "text": "Helped."}, "Done."]
        options = space["options"](
            store, turns, trace, resume=top.id, key_file=key_file, permission_gate=PermissionGate()
        )
        result = asyncio.run(self.ended(options))
        self.assertEqual((result.state, result.data), ("ended", "Done."))
        if kind != "question":
            self.assertEqual(trace.read_text(), "x")
        for name in store.list_sessions():
            events = store.read_events(name)
            self.assertIsInstance(events[-1], Result)
            self.assertIsNone(find_fault(rebuild_messages(events)))
            self.assertEqual([e.outcome for e in events if isinstance(e, ToolResult)], ["ok"])
            self.assertEqual(store.read_summary(name).open_questions, ())

    async def ended(self, options):
        return await submit(None, options).wait()


if __name__ == "__main__":
    unittest.main()
