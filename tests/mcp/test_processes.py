"""Servers as processes: none outlives its host, late ones join, dead ones are restarted a limited number of times.

A run without servers loads no module of their room.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from openagentic_sdk import HookEngine, HookMatcher, McpServer
from openagentic_sdk.errors import McpError, UnknownOutcomeError
from openagentic_sdk.parts.mcp.definitions import ToolDefinition
from openagentic_sdk.parts.mcp.seat import MAX_QUICK_DEATHS, Seat
from openagentic_sdk.parts.mcp.session import RequestHooks
from openagentic_sdk.parts.mcp.stdio import server_environment
from tests.mcp.test_hostile_servers import bad_server, mark, outcome_of, processes
from tests.pythons import Process
from tests.size import full_size
from tests.waiting import until, until_async

ROOT = Path(__file__).parents[2]
BREW = ToolDefinition("brew", "mcp__x__brew", "", {}, "", {})
# A host that starts a server with grandchildren, reports it, and waits.
_HOST = """
import asyncio, sys
from openagentic_sdk.parts.mcp.server_config import McpServer
from openagentic_sdk.parts.mcp.servers import Servers
async def main():
    settings = McpServer(command=sys.executable, args=["-I", "-S", sys.argv[1], "grandchildren", sys.argv[2]])
    servers = Servers({"a": settings, "b": settings}, cwd="/")
    servers.hold()
    await servers.ready()
    print([event.state for event in servers.states().values()], flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


@unittest.skipUnless(sys.platform == "linux", "supervision of servers is tested where there is /proc")
class Processes(unittest.IsolatedAsyncioTestCase):
    @full_size
    def test_nothing_of_a_server_outlives_a_host_that_was_killed(self) -> None:
        script = str(Path(__file__).with_name("bad_server.py"))
        command = [sys.executable, "-c", _HOST, script, mark()]
        with Process(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as host:
            assert host.stdout is not None
            self.assertEqual(host.stdout.readline(), "['started', 'started']\n")
            # The host itself, two servers, and two grandchildren of each.
            self.assertEqual(len(processes()), 7)
            host.send_signal(signal.SIGKILL)
        until(lambda: not processes(), lambda: f"all have ended, {processes()} too")

    async def test_a_late_server_joins_at_the_next_step_with_its_instructions(self) -> None:
        folder = self.enterContext(tempfile.TemporaryDirectory())
        go, listed = Path(folder, "go"), Path(folder, "listed")
        waiting = f"while [ ! -e {go} ]; do sleep 0.02; done; exec {sys.executable} -I -S "
        script = str(Path(__file__).with_name("bad_server.py"))
        command = f"{waiting} {script} tells_when_listed {mark()} {listed}"
        late = McpServer(command="sh", args=["-c", command], connect_timeout_s=0.3)

        async def let_it_come(payload: dict[str, object]) -> None:
            go.touch()
            await until_async(listed.exists, "the tools were listed")
            for _ in range(100):  # its answer is in the pipe, and the event loop only has to read it
                await asyncio.sleep(0)

        hooks = HookEngine(after_model_call=[HookMatcher("the gate", hook=let_it_come, timeout_s=60)])
        calls = [[("mcp__quick__echo", {})], [("mcp__late__echo", {"text": "here"})]]
        outcome = await outcome_of({"quick": bad_server("good"), "late": late}, *calls, hooks=hooks)
        self.assertEqual([event.state for event in outcome.states["late"]], ["failed", "started"])
        self.assertIn("may still become available", outcome.states["late"][0].error_message or "")
        self.assertEqual(outcome.results["late"][0].output, "echo here")
        first = [spec["function"]["name"] for spec in outcome.requests[0]["tools"]]
        last = [spec["function"]["name"] for spec in outcome.requests[-1]["tools"]]
        self.assertEqual(last[: len(first)], first)
        self.assertIn("mcp__late__echo", last)

    @full_size
    async def test_a_server_that_keeps_dying_is_left_alone_longer_each_time_and_given_up_in_the_end(self) -> None:
        seat = Seat("x", bad_server("dies_at_call"), "/", ["/"], None, None)
        seat.start()
        await seat.ready()
        loop = asyncio.get_running_loop()
        pauses = []
        try:
            for _ in range(MAX_QUICK_DEATHS):
                with self.assertRaises(UnknownOutcomeError):
                    await seat.call_tool(BREW, {}, RequestHooks(), "unsafe")
                loop.time = lambda: seat._died_at  # type: ignore[method-assign]
                pauses.append(seat._pause_s())
                del loop.time
                seat._died_at = loop.time() - 60  # as if that time had elapsed
            with self.assertRaisesRegex(McpError, "ended 5 times shortly after starting and is not restarted"):
                await seat.call_tool(BREW, {}, RequestHooks(), "unsafe")
        finally:
            await seat.close()
        self.assertEqual(pauses, [1, 2, 4, 8, 16])


class Environment(unittest.TestCase):
    def test_a_server_gets_what_starts_programs_and_its_own_and_no_secret_of_the_host(self) -> None:
        host = {"PATH": "/bin", "HOME": "/root", "API_KEY": "secret", "SHELL": "() { :; }", "PYTHONPATH": "/x"}
        given = server_environment(McpServer(command="x", env={"A": "b"}), "/project", host)
        self.assertEqual(given, {"PATH": "/bin", "HOME": "/root", "CLAUDE_PROJECT_DIR": "/project", "A": "b"})
        whole = server_environment(McpServer(command="x", inherit_env=True), "/project", host)
        self.assertEqual(whole["API_KEY"], "secret")
        self.assertNotIn("SHELL", whole)

    @full_size
    def test_a_run_without_servers_loads_nothing_of_them(self) -> None:
        script = str(ROOT / "fixtures" / "scripts" / "first_run.json")
        command = [sys.executable, "-X", "importtime", "-m", "openagentic_sdk", "run", "--script", script, "hello"]
        environment = {**os.environ, "OPENAGENTIC_SDK_HOME": self.enterContext(tempfile.TemporaryDirectory())}
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, check=False)
        loaded = [
            line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")
        ]
        self.assertIn("openagentic_sdk.kernel.loop", loaded, done.stderr[-2000:])
        self.assertEqual([name for name in loaded if name.startswith("openagentic_sdk.parts.mcp")], [])


if __name__ == "__main__":
    unittest.main()
