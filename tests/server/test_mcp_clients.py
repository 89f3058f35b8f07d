"""Foreign clients against the agent as an MCP server: `mcp` in both eras, `fastmcp`, and the inspector."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PYTHON = os.environ.get("OPENAGENTIC_TEST_MCP_PYTHON")
NODE, MODULES = os.environ.get("OPENAGENTIC_TEST_NODE"), os.environ.get("OPENAGENTIC_TEST_NODE_MODULES")
INSPECTOR = Path(MODULES or "/", ".bin", "mcp-inspector")
SERVER = [sys.executable, "-m", "openagentic_sdk", "mcp", "serve", "--agents", "tests.server.mcp_peer_registry:agents"]
TOOLS = ["run_agent", "list_sessions", "show_session", "cancel_run", "answer_question"]


class ClientCase(unittest.TestCase):
    def run_client(self, *command: str, after: tuple[str, ...] = ()) -> Any:
        """The JSON printed by the client, with a separate home folder; `after` is appended to the server's command."""
        with tempfile.TemporaryDirectory() as home:
            environ = {**os.environ, "PYTHONPATH": str(ROOT), "OPENAGENTIC_SDK_HOME": home, "HOME": home}
            if NODE:
                environ["PATH"] = f"{Path(NODE).parent}{os.pathsep}{environ['PATH']}"
            whole = [*command, *SERVER, *after]
            done = subprocess.run(
                whole, capture_output=True, text=True, timeout=300, env=environ, cwd=ROOT, check=False
            )
        self.assertEqual(done.returncode, 0, (done.stdout + done.stderr)[-3000:])
        return json.loads(done.stdout[done.stdout.index("{") :])


@unittest.skipUnless(PYTHON, "OPENAGENTIC_TEST_MCP_PYTHON names no Python with mcp and fastmcp")
class PythonTest(ClientCase):
    def test_the_official_client_in_both_eras(self) -> None:
        for mode, version in (("auto", "2026-07-28"), ("legacy", "2025-11-25")):
            with self.subTest(mode):
                found = self.run_client(str(PYTHON), "tests/server/mcp_peer_client.py", mode)
                self.assertEqual((found["version"], found["tools"]), (version, TOOLS))
                statuses = {agent: said["status"] for agent, said in found["said"].items()}
                self.assertEqual(statuses, {"hello": "done", "asks": "done", "writes": "done"})
                self.assertEqual(found["said"]["asks"]["text"], "Fine.")
                self.assertEqual(len(found["asked"]), 2)
                self.assertIn("touch never-without-a-yes", found["asked"][1])
                self.assertIn("says: Hello.", found["progress"])
                self.assertFalse(Path(tempfile.gettempdir(), "never-without-a-yes").exists())

    def test_fastmcp(self) -> None:
        found = self.run_client(str(PYTHON), "tests/server/mcp_peer_client.py", "fastmcp")
        self.assertEqual((found["tools"], found["said"]["hello"]["text"]), (TOOLS, "Hello."))


@unittest.skipUnless(
    NODE and INSPECTOR.exists(), "OPENAGENTIC_TEST_NODE and OPENAGENTIC_TEST_NODE_MODULES name no inspector"
)
class InspectorTest(ClientCase):
    def test_the_inspector_lists_and_calls(self) -> None:
        inspector = (str(NODE), str(INSPECTOR), "--cli")
        found = self.run_client(*inspector, after=("--method", "tools/list"))
        self.assertEqual([tool["name"] for tool in found["tools"]], TOOLS)
        call = ("--method", "tools/call", "--tool-name", "run_agent", "--tool-arg", "prompt=Go.", "agent=hello")
        self.assertEqual(self.run_client(*inspector, after=call)["structuredContent"]["status"], "done")


if __name__ == "__main__":
    unittest.main()
