"""Run by a Python that has `mcp` and `fastmcp`: talk to the server that a command starts, and print the answers as JSON.

mcp_peer_client.py auto|legacy|fastmcp COMMAND ARG ...
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

PROGRESS: list[str] = []
ASKED: list[str] = []


async def progress(done: float, total: float | None, message: str | None) -> None:
    PROGRESS.append(message or "")


async def with_mcp(mode: str, command: str, arguments: list[str]) -> dict[str, Any]:
    import mcp_types as types
    from mcp.client.client import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    async def person(context: Any, params: Any) -> Any:
        ASKED.append(params.message)
        choices = params.requested_schema["properties"]["answer"]["enum"]
        return types.ElicitResult(action="accept", content={"answer": "no" if "no" in choices else choices[0]})

    server = stdio_client(StdioServerParameters(command=command, args=arguments, env=dict(os.environ)))
    async with Client(server, mode=mode, elicitation_callback=person) as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        said = {}
        for agent in ("hello", "asks", "writes"):
            asked = {"prompt": "Go.", "agent": agent}
            said[agent] = (await client.call_tool("run_agent", asked, progress_callback=progress)).structured_content
        return {"version": client.protocol_version, "tools": tools, "said": said}


async def with_fastmcp(command: str, arguments: list[str]) -> dict[str, Any]:
    from fastmcp import Client
    from fastmcp.client.transports import StdioTransport

    async with Client(StdioTransport(command, arguments, env=dict(os.environ))) as client:
        tools = [tool.name for tool in await client.list_tools()]
        found = await client.call_tool("run_agent", {"prompt": "Go.", "agent": "hello"}, progress_handler=progress)
        return {"tools": tools, "said": {"hello": found.structured_content}}


def main() -> None:
    mode, command, *arguments = sys.argv[1:]
    talk = with_fastmcp(command, arguments) if mode == "fastmcp" else with_mcp(mode, command, arguments)
    print(json.dumps({**asyncio.run(talk), "progress": PROGRESS, "asked": ASKED}))


if __name__ == "__main__":
    main()
