"""Our client against servers that others wrote, and under the official conformance suite. What is not named is skipped."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any

from openagentic_sdk import McpServer
from openagentic_sdk.events import McpServerChanged, ToolProgress
from tests.mcp.test_features import calls, events_of, options_for, results
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
NODE, MODULES = os.environ.get("OPENAGENTIC_TEST_NODE"), os.environ.get("OPENAGENTIC_TEST_NODE_MODULES")
PYTHON = os.environ.get("OPENAGENTIC_TEST_MCP_PYTHON")
PEERS = Path(MODULES or "/none") / "@modelcontextprotocol"
EVERYTHING = PEERS / "server-everything" / "dist" / "index.js"
SUITE = PEERS / "conformance"

_MCP = """
import sys
from mcp.server import MCPServer
server = MCPServer("peer")
@server.tool()
def add(a: int, b: int) -> int: return a + b
server.run("streamable-http", port=int(sys.argv[1])) if len(sys.argv) > 1 else server.run("stdio")
"""
_FASTMCP = """
import sys
from fastmcp import FastMCP
server = FastMCP("peer")
@server.tool
def add(a: int, b: int) -> int: return a + b
server.run(transport="http", port=int(sys.argv[1])) if len(sys.argv) > 1 else server.run()
"""


class Peers(unittest.IsolatedAsyncioTestCase):
    def listening(self, *command: str, **environment: str) -> int:
        """The port at which a server that gets it as its last word, or as PORT, takes connections."""
        port = free_port()
        words = [word.replace("PORT", str(port)) for word in command]
        environment = {**os.environ, "PORT": str(port), **environment}
        server = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        give_up_at = time.monotonic() + 60
        while time.monotonic() < give_up_at and server.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return port
            except OSError:
                time.sleep(0.05)
        raise AssertionError(f"{command[:2]} does not listen")

    async def use(self, server: McpServer, version: str, *names: str, **arguments: Any) -> list[Any]:
        events = await events_of("go", options_for([calls(*names, **arguments), "Done."], server))
        came = next(event for event in events if isinstance(event, McpServerChanged))
        self.assertEqual((came.state, came.protocol_version), ("started", version), came)
        self.assertEqual(events[-1].stop_reason, "end")
        return events

    @unittest.skipUnless(
        NODE and EVERYTHING.exists(), "OPENAGENTIC_TEST_NODE and ..._NODE_MODULES name no server-everything"
    )
    async def test_server_everything_over_every_transport(self) -> None:
        assert NODE is not None
        http = self.listening(NODE, str(EVERYTHING), "streamableHttp")
        sse = self.listening(NODE, str(EVERYTHING), "sse")
        servers = {
            "stdio": McpServer(command=NODE, args=[str(EVERYTHING), "stdio"]),
            "http": McpServer(url=f"http://127.0.0.1:{http}/mcp"),
            "sse, found out": McpServer(url=f"http://127.0.0.1:{sse}/sse"),
            "sse": McpServer(url=f"http://127.0.0.1:{sse}/sse", is_sse=True),
        }
        names = ("get-sum", "get-tiny-image", "trigger-long-running-operation", "get-resource-links")
        for name, server in servers.items():
            with self.subTest(name):
                events = await self.use(server, "2025-11-25", *names, a=2, b=3, duration=0.2, steps=2, count=2)
                total, picture, slow, links = results(events)
                self.assertIn("is 5", total.output)
                self.assertEqual([part["media_type"] for part in picture.attachments], ["image/png"])
                self.assertIn("completed", slow.output)
                self.assertTrue(any(isinstance(event, ToolProgress) for event in events))
                self.assertIn("[resource ", links.output)

    @unittest.skipUnless(PYTHON, "OPENAGENTIC_TEST_MCP_PYTHON names no Python with mcp and fastmcp")
    async def test_servers_of_mcp_and_fastmcp_over_both_transports(self) -> None:
        assert PYTHON is not None
        for name, code in (("mcp", _MCP), ("fastmcp", _FASTMCP)):
            port = self.listening(PYTHON, "-c", code, "PORT")
            for server in (McpServer(command=PYTHON, args=["-c", code]), McpServer(url=f"http://127.0.0.1:{port}/mcp")):
                with self.subTest((name, server.kind)):
                    events = await self.use(server, "2026-07-28", "add", a=2, b=3)
                    self.assertEqual(results(events)[0].output, "5")


def required(version: str) -> list[str]:
    """The client scenarios that a revision requires, as the suite's own file lists them."""
    text = (SUITE / "requirements" / f"{version}.yaml").read_text()
    listed = re.search(r"^client:\n((?:  .*\n|\n)*)", text, re.MULTILINE)
    return re.findall(r"^  - (\S+)", listed[1], re.MULTILINE) if listed else []


@unittest.skipUnless(NODE and SUITE.exists(), "OPENAGENTIC_TEST_NODE and ..._NODE_MODULES name no conformance suite")
class Conformance(unittest.IsolatedAsyncioTestCase):
    async def test_every_client_scenario_that_a_revision_requires_passes(self) -> None:
        at_once, folder = asyncio.Semaphore(2), self.enterContext(tempfile.TemporaryDirectory())
        wanted = [(version, scenario) for version in ("2025-11-25", "2026-07-28") for scenario in required(version)]
        self.assertEqual(len(wanted), 50)

        async def run(version: str, scenario: str) -> str:
            """What the suite says of a scenario that did not pass; some steps of it wait for seconds of the wall clock."""
            command = [str(NODE), str(SUITE / "dist" / "index.js"), "client", "--spec-version", version]
            command += ["--command", f"{sys.executable} {ROOT / 'tests' / 'mcp' / 'conformance_client.py'}"]
            command += ["--scenario", scenario, "-o", folder]
            async with at_once:
                # The suite's server loses what it asks before the client's stream is open, and on a busy machine a scenario
                # meets one of its time limits: failures alone run again.
                for _ in range(6):
                    process = await asyncio.create_subprocess_exec(
                        *command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
                    )
                    said, _ = await process.communicate()
                    if process.returncode == 0:
                        return ""
            return said.decode("utf-8", "replace")[-2000:]

        for (version, scenario), said in zip(wanted, await asyncio.gather(*(run(*one) for one in wanted)), strict=True):
            with self.subTest(version=version, scenario=scenario):
                self.assertEqual(said, "")


if __name__ == "__main__":
    unittest.main()
