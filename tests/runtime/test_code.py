"""Code that calls tools: what reaches the log and the model, what the code can access, and how it ends."""

import asyncio
import itertools
import os
import shutil
import tempfile
import unittest
from pathlib import Path

from openagentic_sdk.api import run
from openagentic_sdk.errors import OptionsError, ToolError
from openagentic_sdk.hooks.engine import HookEngine
from openagentic_sdk.hooks.models import HookDecision, HookMatcher
from openagentic_sdk.parts.record.lifecycle import fork_session
from openagentic_sdk.parts.record.undo import plan_restore
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.runs.agent_replay import replay_agent
from openagentic_sdk.runs.background import submit
from openagentic_sdk.runs.replay import replay_events
from openagentic_sdk.runs.whatif import what_if
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.sessions.rebuild import rebuild_messages
from openagentic_sdk.sessions.store import FileSessionStore
from openagentic_sdk.tools.base import Tool
from openagentic_sdk.tools.bash import BashTool
from openagentic_sdk.tools.code import CodeLimits, CodeTool
from openagentic_sdk.tools.code.program import _read_call
from openagentic_sdk.tools.function import tool
from openagentic_sdk.tools.session.task import TaskTool
from openagentic_sdk.tools.shell import sandbox_plan
from openagentic_sdk.tools.shell.sandbox_plan import SandboxReport, probe_sandbox
from openagentic_sdk.tools.write import WriteTool
from tests.size import IN_MEMORY, LARGE, drawn, full_size

from .support import assert_closed, echo, fail, options_for


def code_turn(code, **more):
    return {"tool_calls": [{"name": "Code", "arguments": {"code": code}, **more}]}


def calls_of(events):
    """The inner calls of a run: (name, input, outcome, output or error message)."""
    results = {event.tool_use_id: event for event in events if event.type == "tool.result"}
    uses = [event for event in events if event.type == "tool.use" and event.parent_tool_use_id]
    ended = [(use, results[use.tool_use_id]) for use in uses]
    return [(use.name, dict(use.input), end.outcome, end.error_message or end.output) for use, end in ended]


def code_result(events):
    """The result of the last call of Code, as the model sees it."""
    uses = {event.tool_use_id for event in events if event.type == "tool.use" and event.name == "Code"}
    return [event for event in events if event.type == "tool.result" and event.tool_use_id in uses][-1]


class CodeTestCase(unittest.IsolatedAsyncioTestCase):
    def setUp(self):
        if probe_sandbox().level == "none":
            self.skipTest("code runs only in a sandbox, which this machine lacks")

    async def play(self, code, *, limits=None, tools=(), **changes):
        """Run an agent whose model submits this code and then ends; return the events and the store.

        The log is checked to be complete.
        """
        options = options_for([code_turn(code), "Done."], tools=[CodeTool(limits), echo, fail, *tools], **changes)
        result = await run(prompt="go", options=options)
        self.assertEqual(result.stop_reason, "end", result.events[-1])
        return assert_closed(self, options.session_store, result.session_id)


class CodeTest(CodeTestCase):
    async def test_each_call_is_one_of_its_own_in_the_log_and_the_model_sees_only_what_is_printed(self):
        events = await self.play(
            "import asyncio\n"
            "texts = await asyncio.gather(*[echo(text=f'text {n}') for n in range(3)])\n"
            "print(len(texts), texts[-1].upper(), await echo('by place'))\n"
            "try:\n    await fail(text='it is broken')\n"
            "except ToolError as error:\n    print(error.error_type, error)\n"
            "try:\n    await tools['echo'](wrong=1)\n"
            "except ToolError as error:\n    print(error.error_type)\n"
        )
        self.assertEqual(
            code_result(events).output,
            "3 TEXT 2 by place\nRuntimeError it is broken\nToolInputError",
            code_result(events),
        )
        outer = next(event for event in events if event.type == "tool.use")
        found = [(name, outcome) for name, _, outcome, _ in calls_of(events)]
        self.assertEqual(found[3:], [("echo", "ok"), ("fail", "error"), ("echo", "error")])
        inner = [e for e in events if e.parent_tool_use_id == outer.tool_use_id]
        self.assertEqual({e.caller["tool_use_id"] for e in inner if e.type == "tool.use"}, {outer.tool_use_id})
        for use in (e for e in inner if e.type == "tool.use" and e.input.get("wrong") is None):
            steps = [e.type for e in inner if getattr(e, "tool_use_id", None) == use.tool_use_id]
            self.assertEqual(steps, ["tool.use", "permission.decision", "tool.started", "tool.result"])
        roles = [message["role"] for message in rebuild_messages(events)]
        self.assertEqual(roles, ["user", "assistant", "tool", "assistant"])

    async def test_rules_hooks_and_masks_hold_for_what_code_calls(self):
        def change(payload):
            if payload["tool_input"].get("text") == "change":
                return HookDecision(override_tool_input={"text": "changed"})
            return HookDecision(block=payload["tool_input"].get("text") == "block", block_reason="not this")

        def see(payload):
            return HookDecision(override_tool_output="seen") if payload["tool_output"] == "hide" else None

        code = (
            "for text in ('change', 'block', 'hide', 'a secret'):\n"
            "    try:\n        print(await echo(text))\n"
            "    except ToolError as error:\n        print(error.error_type, error)\n"
            "try:\n    await fail('x')\nexcept (ToolError, NameError) as error:\n    print(error)\n"
        )
        events = await self.play(
            code,
            permission_gate=PermissionGate(permission_mode="bypass", deny=["fail"]),
            hooks=HookEngine(
                pre_tool_use=[HookMatcher("change", "echo", change)], post_tool_use=[HookMatcher("see", "echo", see)]
            ),
            redact=lambda text: text.replace("secret", "***"),
        )
        self.assertEqual(
            code_result(events).output, "changed\nHookBlocked not this\nseen\na ***\nname 'fail' is not defined"
        )
        self.assertTrue(all(event.parent_tool_use_id for event in events if event.type == "hook.event"))

    async def test_tools_that_change_the_conversation_or_run_code_cannot_be_called(self):
        code = (
            "import gc\n"
            "host = next(o for o in gc.get_objects() if type(o).__name__ == 'Host')\n"
            "for name in ('Code', 'Task', 'nothing', '', 'x' * 200):\n"
            "    try:\n        await host.call(name, {'code': '1', 'agent': 'a', 'prompt': 'p'})\n"
            "    except ToolError as error:\n        print(error.error_type)\n"
        )
        events = await self.play(code, tools=[TaskTool({"a": "helps"})])
        self.assertEqual(code_result(events).output.split(), ["ToolNotFoundError"] * 5)
        self.assertEqual([outcome for _, _, outcome, _ in calls_of(events)], ["error"] * 5)

    async def test_names_and_arguments_that_are_not_python_identifiers_are_mangled(self):
        @tool(name="2nd-list/print", effect="read")
        async def odd(items: int, size: int = 3) -> dict[str, int]:
            """Return the input."""
            return {"items": items, "size": size}

        @tool(name="print", effect="read")
        async def shadow() -> str:
            """Have the name of a built-in function."""
            return "ours"

        code = "print(await _2nd_list_print(1), await tools['2nd-list/print'](2, size=4), await print_())\nhelp(echo)"
        events = await self.play(code, tools=[odd, shadow])
        called = "{'items': 1, 'size': 3} {'items': 2, 'size': 4} ours"
        helped = "echo(text)\nGive the text back.\n\nArguments:\ntext: string"
        self.assertEqual(code_result(events).output, f"{called}\n{helped}")

    @full_size
    async def test_a_failure_in_the_code_is_an_error_with_its_line(self):
        loops = "import asyncio\nasync def main(): print(await echo('own loop'))\n" + 2 * "asyncio.run(main())\n"
        cases = (
            ("print(1)\nx = (", "SyntaxError"),
            ("print('before')\n1 / 0", 'before\nTraceback (most recent call last):\n  File "code", line 2'),
            ("import sys; sys.exit(3)", "[exit code 3]"),
            ("raise SystemExit('no')", "no"),
            (loops, "own loop\nown loop"),
        )
        for code, expected in drawn(cases, 2):
            with self.subTest(code=code):
                self.assertIn(expected, code_result(await self.play(code)).output)

    async def test_it_is_off_unless_asked_for_and_one_option_turns_it_on(self):
        with self.assertRaises(OptionsError):
            CodeTool(CodeLimits(max_calls=0))
        for on in (False, True):
            options = options_for(
                [code_turn("print(sorted(tools))"), "Done."], tools=None, code=on, permission_gate=PermissionGate()
            )
            ended = code_result((await run(prompt="go", options=options)).events)
            self.assertEqual(ended.outcome, "ok" if on else "error", ended)
            if on:
                self.assertIn("'Read'", ended.output)
                self.assertNotIn("'AskUserQuestion'", ended.output)


WALLS = """
import ctypes, os, socket, threading
def tried(what, work):
    try:
        got = work()
    except (OSError, RuntimeError) as error:
        print(what, "refused")
    else:
        print(what, "GOT", repr(got)[:200])
def child():
    pid = os.fork()
    if not pid:
        os._exit(0)
    return pid
libc = ctypes.CDLL(None, use_errno=True)
def call(*args):
    if libc.syscall(*args) < 0:
        raise OSError(ctypes.get_errno(), "refused")
host = int(SECRET_PID)
tried("project", lambda: open(PROJECT + "/secret").read())
tried("folder", lambda: os.listdir(PROJECT))
tried("passwd", lambda: open("/etc/passwd").read())
tried("environment of the host", lambda: open(f"/proc/{host}/environ", "rb").read())
tried("own memory", lambda: open("/proc/self/mem", "rb").read(1))
tried("of init", lambda: open("/proc/1/environ", "rb").read())
tried("write outside", lambda: open(PROJECT + "/written", "w"))
tried("write library", lambda: open(os.__file__, "a"))
tried("internet socket", lambda: socket.socket())
tried("datagram socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
tried("local socket", lambda: socket.socket(socket.AF_UNIX))
tried("fork", child)
tried("kill", lambda: os.kill(host, 9))
tried("kill all", lambda: os.kill(-1, 9))
tried("raw fork", lambda: call(57))
tried("ptrace", lambda: call(101, 16, host, 0, 0))
tried("unshare", lambda: call(272, 0x10000000))
tried("other limits", lambda: call(302, host, 7, 0, 0))
os.symlink(PROJECT, "link")
tried("link", lambda: os.listdir("link"))
tried("link's file", lambda: open("link/secret").read())
tried("great file", lambda: open("great", "wb").write(b"x" * (200 << 20)))
for name in os.environ:
    if "SECRET" in name:
        print("environment GOT", name)
thread = threading.Thread(target=print, args=("a thread runs",))
thread.start(); thread.join()
os.remove("great")
with open("own", "w") as file:
    file.write("own folder")
print(open("own").read(), await echo("and a call"))
"""


class SandboxTest(CodeTestCase):
    rungs = drawn(("namespaces", "bwrap", "landlock"), 2)

    @full_size
    async def test_code_sees_nothing_of_this_machine_on_any_rung(self):
        works = {name: works for name, works, _ in probe_sandbox().rungs()}
        os.environ["CODE_TEST_SECRET"] = "secret"
        self.addCleanup(os.environ.pop, "CODE_TEST_SECRET")
        self.addCleanup(sandbox_plan._probed.clear)
        with tempfile.TemporaryDirectory() as project:
            Path(project, "secret").write_text("secret")
            code = f"SECRET_PID, PROJECT = {os.getpid()}, {project!r}\n{WALLS}"
            for rung in self.rungs:
                if not works[rung]:
                    continue
                alone = {name: name == rung for name in ("namespaces", "bwrap", "landlock")}
                sandbox_plan._probed[os.geteuid()] = SandboxReport(overlay=False, reasons={}, **alone)
                with self.subTest(rung=rung):
                    text = code_result(await self.play(code, cwd=project, project_dir=project)).output
                    self.assertNotIn("GOT", text)
                    self.assertEqual(text.count("refused"), 21, text)
                    self.assertTrue(text.endswith("a thread runs\nown folder and a call"), text)
                    self.assertEqual(os.listdir(project), ["secret"])

    async def test_where_there_is_no_sandbox_code_is_refused_and_the_other_tools_continue(self):
        reasons = dict.fromkeys(("namespaces", "overlay", "landlock", "bwrap"), "for this test")
        sandbox_plan._probed[os.geteuid()] = SandboxReport(False, False, False, reasons)
        self.addCleanup(sandbox_plan._probed.clear)
        options = options_for(
            [code_turn("print(1)"), {"tool_calls": [{"name": "echo", "arguments": {"text": "x"}}]}, "Done."],
            tools=[CodeTool(), echo],
        )
        result = await run(prompt="go", options=options)
        ends = [event for event in result.events if event.type == "tool.result"]
        self.assertRegex(ends[0].error_message, "only in a sandbox.*for this test.*one by one")
        self.assertEqual(ends[1].output, "x")


class LimitsTest(CodeTestCase):
    @full_size
    async def test_time_calls_output_and_memory_are_limited_each_with_its_own_error(self):
        brief, few = CodeLimits(seconds=0.3), CodeLimits(max_calls=2, memory_bytes=256 << 20, output_bytes=100_000)
        swallowing = "import asyncio\nwhile True:\n    try: await asyncio.sleep(99)\n    except BaseException: pass"
        calling = "for n in range(4):\n    try: print(await echo(str(n)))\n    except ToolError as error: print(error)"
        cases = (
            (brief, "while True: pass", "ended after 0.3 s"),
            (brief, swallowing, "ended after 0.3 s"),
            (few, "while True: print('x' * 1000)", "printed more than 100000 bytes"),
            (few, "x = 'x' * (1 << 30)", "MemoryError"),
            (few, calling, "0\n1\nthis code has made its 2 calls"),
            (
                few,
                "import threading, time\nthreading.Thread(target=time.sleep, args=(99,)).start()\nprint('left')",
                "left",
            ),
            (few, "import atexit, time\natexit.register(time.sleep, 99)\nprint('left')", "left"),
            (few, "import os\nos._exit(7)", "[exit code 7]"),
            (few, "import os\nos.close(0)\nos.close(3)\nprint('on')", "on"),
        )
        for limits, code, expected in drawn(cases, 2):
            with self.subTest(code=code):
                self.assertIn(expected, code_result(await self.play(code, limits=limits)).output)

    @full_size
    async def test_output_beyond_ten_thousand_tokens_is_stored_in_a_blob(self):
        with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
            store = FileSessionStore(folder, durability="flush")
            events = await self.play("for n in range(20_000): print('line', n)", session_store=store)
            text, meta = code_result(events).output, code_result(events).meta
            self.assertLess(len(text), 37_000)
            self.assertTrue(text.startswith("line 0\n") and text.endswith("line 19999"))
            self.assertIn(meta["blob"], text)
            whole = store.read_blob(next(e for e in events if e.type == "system.init").session_id, meta["blob"])
            self.assertEqual(whole.decode().splitlines()[12_345], "line 12345")

    @full_size
    async def test_whatever_is_written_to_the_channel_ends_only_the_code(self):
        frames = (
            b"no json",
            b"[" * 100_000,
            b"{}",
            b'{"id": 1, "tool": "echo", "input": []}',
            b'{"id": true, "tool": "echo", "input": {}}',
            b'{"id": NaN, "tool": "echo", "input": {}}',
            b'{"id": 1, "tool": "' + b"x" * 300 + b'", "input": {}}',
        )
        for frame in frames:
            with self.subTest(frame=frame[:60]), self.assertRaises(ToolError):
                _read_call(frame, set())
        begin = "def frame(data): os.write(3, len(data).to_bytes(4, 'big') + data)\n"
        for code in (
            "os.write(3, b'\\xff' * 100)",
            *(f"frame({frame!r})" for frame in (frames if LARGE else frames[3:4])),
            'frame(b\'{"id": 1, "tool": "echo", "input": {"text": "a"}}\')\n'
            'frame(b\'{"id": 1, "tool": "echo", "input": {"text": "b"}}\')',
        ):
            with self.subTest(code=code[:80]):
                events = await self.play(f"import os, time\n{begin}{code}\ntime.sleep(30)")
                self.assertIn("wrote to the channel", code_result(events).output)
                self.assertTrue(all(outcome in ("ok", "cancelled") for _, _, outcome, _ in calls_of(events)))

    @full_size
    async def test_code_that_never_reads_its_answers_holds_nothing_up(self):
        code = (
            "import json, os, time\n"
            "for n in range(20):\n"
            "    data = json.dumps({'id': n, 'tool': 'echo', 'input': {'text': 'x' * 300_000}}).encode()\n"
            "    frame = len(data).to_bytes(4, 'big') + data\n"
            "    while frame:\n"
            "        try: frame = frame[os.write(3, frame):]\n"
            "        except BlockingIOError: time.sleep(0.001)\n"
            "time.sleep(99)"
        )
        events = await self.play(code, limits=CodeLimits(seconds=1))
        self.assertIn("ended after 1 s", code_result(events).output)


class EndingsTest(CodeTestCase):
    def acting_tool(self, trace, hold=None):
        @tool
        async def act(number: int) -> str:
            """Take effect."""
            trace.append(number)
            if hold is not None and number == 2:
                hold.set()
                await asyncio.Event().wait()
            return f"acted {number}"

        return act

    async def test_a_run_that_is_interrupted_while_code_waits_for_a_call_leaves_a_closed_log(self):
        trace, reached = [], asyncio.Event()
        code = (
            "import asyncio\n"
            "try:\n    await asyncio.gather(*[act(n) for n in (1, 2, 3)])\n"
            "except BaseException:\n    await asyncio.sleep(600)\n"
        )
        options = options_for([code_turn(code)], tools=[CodeTool(), self.acting_tool(trace, reached)])
        playing = asyncio.create_task(run(prompt="go", options=options))
        await asyncio.wait_for(reached.wait(), 120)
        playing.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await playing
        [summary] = options.session_store.list_session_summaries()
        events = assert_closed(self, options.session_store, summary.id)
        ended = [outcome for _, _, outcome, _ in calls_of(events)]  # the third call may not have been made yet
        self.assertEqual(ended, ["ok", "cancelled", "cancelled"][: len(ended)])
        self.assertEqual(code_result(events).outcome, "cancelled")
        self.assertEqual(trace, [1, 2])

    @full_size
    async def test_from_any_prefix_of_the_log_no_call_of_the_code_runs_twice(self):
        trace = []
        code = "import asyncio\nprint(await asyncio.gather(act(1), act(2)), await echo('x'))"
        with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
            store = FileSessionStore(Path(folder, "whole"), durability="flush")
            tools = [CodeTool(), self.acting_tool(trace), echo]
            await run(
                prompt="go",
                options=options_for([code_turn(code), "Done."], tools=tools, session_store=store, session_id="s"),
            )
            lines = Path(folder, "whole/sessions/s/events.jsonl").read_bytes().splitlines(keepends=True)
            events = store.read_events("s")
            started = next(n for n, e in enumerate(events, 1) if e.type == "tool.started" and e.name == "Code")
            ended = next(n for n, e in enumerate(events, 1) if e.type == "tool.result" and not e.parent_tool_use_id)
            # The calls end in the same way if the tool no longer exists when the session resumes.
            for length, there in drawn(itertools.product(range(started, ended), (tools, [CodeTool(), echo])), 3):
                trace.clear()
                root = Path(folder, f"{length} {len(there)}")
                shutil.copytree(Path(folder, "whole"), root)
                (root / "sessions/s/events.jsonl").write_bytes(b"".join(lines[:length]))
                cut = FileSessionStore(root, durability="flush")
                options = options_for(["Understood."], tools=there, session_store=cut, resume="s")
                result = await run(prompt="go on", options=options)
                with self.subTest(length=length, last=events[length - 1].type, tools=len(there)):
                    self.assertEqual((result.stop_reason, trace), ("end", []))
                    resumed = assert_closed(self, cut, "s")
                    self.assertEqual(code_result(resumed).outcome, "unknown")
                    begun = {e.tool_use_id for e in events[:length] if e.type == "tool.started"}
                    had = {e.tool_use_id for e in events[:length] if e.type == "tool.result"}
                    for end in resumed[length:]:
                        if end.type == "tool.result":
                            self.assertEqual(end.outcome, "unknown" if end.tool_use_id in begun - had else "cancelled")
                forked = fork_session(cut, "s", at_seq=length)
                assert_answered(self, cut.read_events(forked))

    @full_size
    async def test_a_question_that_nobody_answers_at_once_refuses_the_call_and_one_that_somebody_does_is_asked(self):
        asked = []
        code = "try:\n    print(await act(1))\nexcept ToolError as error:\n    print(error.error_type, error)"

        async def answer(question):
            asked.append(question)
            return "yes"

        for gate, parks, expected in (
            (PermissionGate(permission_mode="default", allow=["Code"]), True, "PermissionDenied"),
            (PermissionGate(permission_mode="default", allow=["Code"]), False, "PermissionDenied"),
            (PermissionGate(permission_mode="default", allow=["Code"], user_answerer=answer), False, "acted 1"),
        ):
            trace = []
            options = options_for(
                [code_turn(code), "Done."], tools=[CodeTool(), self.acting_tool(trace)], permission_gate=gate
            )
            if parks:
                background = submit(prompt="go", options=options)
                ended = await background.wait()
                self.assertEqual(ended.stop_reason, "end")
                session_id = background.session_id
            else:
                session_id = (await run(prompt="go", options=options)).session_id
            events = assert_closed(self, options.session_store, session_id)
            self.assertTrue(code_result(events).output.startswith(expected), code_result(events))
            self.assertEqual(trace, [1] if expected == "acted 1" else [])
        self.assertEqual(len(asked), 1)

    async def test_a_hook_that_ends_the_run_ends_the_calls_of_the_code(self):
        stop = HookMatcher("stop", "echo", lambda payload: HookDecision(stops=True, block_reason="enough"))
        options = options_for(
            [code_turn("for n in range(3):\n    print(await echo(str(n)))"), "Done."],
            tools=[CodeTool(), echo],
            hooks=HookEngine(post_tool_use=[stop]),
        )
        result = await run(prompt="go", options=options)
        self.assertEqual(result.stop_reason, "blocked:post_tool_use")
        self.assertEqual(len(calls_of(assert_closed(self, options.session_store, result.session_id))), 1)

    @full_size
    async def test_replay_what_if_and_fork_work_without_running_anything(self):
        trace = []
        store = MemorySessionStore()
        tools = [CodeTool(), self.acting_tool(trace), echo]
        options = options_for([code_turn("print(await act(1))"), "Done."], tools=tools, session_store=store)
        result = await run(prompt="go", options=options)
        events = store.read_events(result.session_id)
        self.assertEqual((await replay_events(events)).differences, ())
        report = await replay_agent(events, options)
        self.assertTrue(report.ok, report.text)
        others = options_for([code_turn("print(await act(1))"), "Other."], tools=tools, session_store=store)
        prompt = next(event.seq for event in events if event.type == "user.message")
        tried = [e async for e in what_if(source_id=result.session_id, at_seq=prompt, options=others)]
        self.assertEqual((tried[-1].stop_reason, tried[-1].final_text), ("end", "Other."))
        forked = fork_session(store, result.session_id)
        assert_answered(self, store.read_events(forked))
        self.assertEqual(trace, [1])

    @full_size
    async def test_a_command_that_code_starts_is_a_command_as_any_other(self):
        with tempfile.TemporaryDirectory() as folder:
            code = (
                "for name in ('a', 'b'):\n    await Bash(command=f'echo {name} >> made')\n"
                "print((await Bash('cat made'))['stdout'])"
            )
            events = await self.play(code, tools=[BashTool()], cwd=folder, project_dir=folder)
            self.assertEqual(code_result(events).output, "a\nb")

    async def test_changes_that_code_makes_by_tools_can_be_undone(self):
        with tempfile.TemporaryDirectory() as folder:
            store = FileSessionStore(Path(folder, "store"), durability="flush")
            project = Path(folder, "project")
            project.mkdir()
            changes = {"cwd": project, "project_dir": project, "session_store": store}
            events = await self.play("await Write(file_path='made', content='x')", tools=[WriteTool()], **changes)
            session_id, prompt = events[0].session_id, next(e.seq for e in events if e.type == "user.message")
            plan = plan_restore(store, session_id, to_seq=prompt, roots=[str(project)])
            self.assertEqual([(file.action, os.path.basename(file.path)) for file in plan.files], [("delete", "made")])
            self.assertEqual(list(plan.uncovered), [])

    @full_size
    async def test_definitions_of_any_form_make_functions_and_deep_values_end_only_the_code(self):
        class Odd(Tool):
            effect = "read"
            description = "Be odd."

            def __init__(self, name, schema):
                self.name, self.input_schema = name, schema

            async def run(self, input, ctx):
                return sorted(input)

        odd = [
            Odd("one", {"type": "object", "properties": []}),
            Odd("two", {"type": "object", "properties": {"class": {}, "a b": True, "x": {}}, "required": ["x", "x"]}),
            Odd("three", {}),
        ]
        events = await self.play("print(await one(), await two(1, **{'class': 2}), await three(z=1))", tools=odd)
        self.assertEqual(code_result(events).output, "[] ['class', 'x'] ['z']", code_result(events))
        deep = "value = 1\nfor n in range(300): value = [value]\nprint(await echo(text=value))"
        self.assertTrue(code_result(await self.play(deep)).is_error)


def assert_answered(test, events):
    """Check that each call has exactly one result."""
    asked = sorted(event.tool_use_id for event in events if event.type == "tool.use")
    test.assertEqual(asked, sorted(event.tool_use_id for event in events if event.type == "tool.result"))


if __name__ == "__main__":
    unittest.main()
