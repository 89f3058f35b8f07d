"""What the official conformance suite starts as "the client": our client, told by a scenario's name what to do.

    node .../conformance/dist/index.js client --command "python3 tests/mcp/conformance_client.py" --scenario tools_call \
        --spec-version 2026-07-28 -o /tmp/out

The suite appends the URL of its server, and says in MCP_CONFORMANCE_SCENARIO and MCP_CONFORMANCE_CONTEXT what it wants.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

sys.path.insert(0, str(Path(__file__).parents[2]))

from openagentic_sdk.errors import ToolError
from openagentic_sdk.mcp.oauth.login import OAuth
from openagentic_sdk.mcp.server_config import McpServer
from openagentic_sdk.mcp.servers import Servers
from openagentic_sdk.mcp.tools import RemoteTool
from openagentic_sdk.tools.base import ToolContext

SCENARIO = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
CONTEXT: Mapping[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
# What a tool is called with when the scenario does not say.
ARGUMENTS: Mapping[str, Mapping[str, Any]] = {"add_numbers": {"a": 5, "b": 3}}
DOCUMENT = "https://conformance-test.local/client-metadata.json"
FOCAL = "json_schema_2020_12_tool"


async def person(text: str, choices: tuple[str, ...], details: Mapping[str, Any] | None = None) -> str:
    """Takes what the form proposes, and agrees to the rest."""
    return "accept" if "accept" in choices else ""


async def call(tool: RemoteTool, arguments: Mapping[str, Any]) -> None:
    """Call a tool as a run would; a refusal is a result like any other."""
    try:
        said = str(await tool.run(arguments, ToolContext(ask_user=person)))
    except ToolError as error:
        said = f"error: {error}"
    print(tool.definition.name, said[:200], file=sys.stderr)


async def use(servers: Servers) -> None:
    """Connect, list the tools, and call those that the scenario is about, or all of them."""
    await servers.ready()
    tools = {tool.definition.name: tool for tool in servers.tools() if isinstance(tool, RemoteTool)}
    print(servers.states(), sorted(tools), file=sys.stderr)
    if "toolCalls" in CONTEXT:
        for wanted in CONTEXT["toolCalls"]:
            if wanted["name"] in tools:
                await call(tools[wanted["name"]], wanted["arguments"])
        return
    if FOCAL in tools:
        echo = next(tool for name, tool in tools.items() if name != FOCAL)
        await call(echo, {"schema": tools[FOCAL].definition.raw["inputSchema"]})
        return
    for name, tool in tools.items():
        await call(tool, ARGUMENTS.get(name, {}))


class Person:
    """A browser whose owner agrees at once: it asks for the authorize page, and reads where that leads."""

    redirect_uri = "http://127.0.0.1:3000/callback"

    @contextlib.asynccontextmanager
    async def __call__(self, port: int | None, wish: int | None) -> AsyncIterator[Person]:
        yield self

    async def go(self, url: str, state: str) -> Mapping[str, list[str]]:
        parts = urlsplit(url)
        page = http.client.HTTPConnection(parts.netloc, timeout=120)
        page.request("GET", f"{parts.path}?{parts.query}")
        location = page.getresponse().headers["Location"]
        page.close()
        return parse_qs(urlsplit(location).query)


def log_in(name: str, server: McpServer) -> OAuth | None:
    """Who logs in at the suite's server, as the scenario knows us."""
    known = {"clientId": CONTEXT.get("client_id"), "clientSecret": CONTEXT.get("client_secret")}
    assert server.url is not None
    return OAuth(name, server.url, {**known, "clientMetadataUrl": DOCUMENT}, browser=Person())


async def main() -> None:
    suite = {"suite": McpServer(url=sys.argv[-1])}
    servers = Servers(suite, cwd=os.getcwd(), auth_for=log_in if SCENARIO.startswith("auth/") else lambda *_: None)
    servers.hold()
    try:
        await use(servers)
    finally:
        await servers.release()


if __name__ == "__main__":
    asyncio.run(main())
