"""The client for the official conformance suite: ours, controlled by the scenario's name.

The suite starts a command, to which it appends the URL of its server, and passes the scenario in MCP_CONFORMANCE_SCENARIO
and MCP_CONFORMANCE_CONTEXT. The command is a few lines of shell that forward these to the test's process.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlsplit

from openagentic_sdk.errors import ToolError
from openagentic_sdk.parts.mcp.oauth.login import OAuth
from openagentic_sdk.parts.mcp.server_config import McpServer
from openagentic_sdk.parts.mcp.servers import Servers
from openagentic_sdk.parts.mcp.tools import RemoteTool
from openagentic_sdk.tools.base import Questions, Services, ToolContext

# PORT is where the test listens; the first line of its answer is the exit code.
COMMAND = """
exec 3<>"/dev/tcp/127.0.0.1/$1" || exit 9
printf '%s\\n' "$2" "$MCP_CONFORMANCE_SCENARIO" "$MCP_CONFORMANCE_CONTEXT" >&3
read -r code <&3
cat <&3 >&2
exit "${code:-9}"
"""
# The input of a tool if the scenario does not define one.
ARGUMENTS: Mapping[str, Mapping[str, Any]] = {"add_numbers": {"a": 5, "b": 3}}
DOCUMENT = "https://conformance-test.local/client-metadata.json"
FOCAL = "json_schema_2020_12_tool"


class Agreeing(Questions):
    """A person who accepts what a form proposes, and agrees to everything else."""

    def reach_anybody(self, ctx: ToolContext) -> bool:
        return True

    async def ask(self, ctx: ToolContext, prompt: str, choices: Sequence[str] = (), details: Any = None) -> str:
        return "accept" if "accept" in choices else ""


async def call(tool: RemoteTool, arguments: Mapping[str, Any]) -> None:
    """Call a tool as a run would; a refusal is a result like any other."""
    with contextlib.suppress(ToolError):
        await tool.run(arguments, ToolContext(services=Services({Questions: Agreeing()})))


async def use(servers: Servers, context: Mapping[str, Any]) -> None:
    """Connect, list the tools, and call those of the scenario, or all of them."""
    await servers.ready()
    tools = {tool.definition.name: tool for tool in servers.tools() if isinstance(tool, RemoteTool)}
    if "toolCalls" in context:
        for wanted in context["toolCalls"]:
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
    """A browser whose owner agrees at once: requests the authorization page and reads its redirect."""

    redirect_uri = "http://127.0.0.1:3000/callback"

    @contextlib.asynccontextmanager
    async def __call__(self, port: int | None, wish: int | None) -> AsyncIterator[Person]:
        yield self

    async def go(self, url: str, state: str) -> Mapping[str, list[str]]:
        return parse_qs(urlsplit(await asyncio.to_thread(self._visit, url)).query)

    def _visit(self, url: str) -> str:
        parts = urlsplit(url)
        with contextlib.closing(http.client.HTTPConnection(parts.netloc, timeout=300)) as page:
            page.request("GET", f"{parts.path}?{parts.query}")
            return str(page.getresponse().headers["Location"])


def _issuer_of(url: str) -> str:
    parts = urlsplit(url)
    with contextlib.closing(http.client.HTTPConnection(parts.netloc, timeout=300)) as page:
        page.request("GET", f"/.well-known/oauth-protected-resource{parts.path}")
        return str(json.loads(page.getresponse().read())["authorization_servers"][0])


def log_in(context: Mapping[str, Any], name: str, server: McpServer) -> OAuth | None:
    """Log in at the suite's server, as the client that the scenario expects."""
    known = {"clientId": context.get("client_id"), "clientSecret": context.get("client_secret")}
    assert server.url is not None
    if known["clientSecret"]:
        known["issuer"] = _issuer_of(server.url)  # the secret comes from the person who runs the suite
    return OAuth(name, server.url, {**known, "clientMetadataUrl": DOCUMENT}, browser=Person())


async def converse(url: str, scenario: str, context: Mapping[str, Any]) -> None:
    """Everything that the suite asks of a client in a scenario."""
    auth_for = partial(log_in, context) if scenario.startswith("auth/") else lambda *_: None
    servers = Servers({"suite": McpServer(url=url, call_timeout_s=120)}, cwd=os.getcwd(), auth_for=auth_for)
    servers.hold()
    try:
        await use(servers, context)
    finally:
        await servers.release()
