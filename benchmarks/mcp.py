"""The cost of a call of an MCP server's tool compared with a bare pipe and `json`, and the time until many servers are
ready.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from openagentic_sdk.parts.mcp.seat import Seat
from openagentic_sdk.parts.mcp.server_config import McpServer
from openagentic_sdk.parts.mcp.servers import Servers
from openagentic_sdk.tools.base import ToolContext

from . import Row

BATCHES, CALLS = 60, 100
SERVERS, SLEEP_S = 20, 1
TEXT = "tea " * 512

# The cheapest possible server: it answers in the order of the requests.
_SERVER = """
import json, sys, time
time.sleep(float(sys.argv[1]))
RESULTS = {
    "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}},
    "tools/list": {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]},
}
for line in sys.stdin.buffer:
    message = json.loads(line)
    method, asked = message["method"], message.get("id")
    if method == "tools/call":
        answer = {"result": {"content": [{"type": "text", "text": message["params"]["arguments"]["text"]}]}}
    elif method in RESULTS:
        answer = {"result": RESULTS[method]}
    else:
        answer = {"error": {"code": -32601, "message": method}}
    if asked is not None:
        sys.stdout.buffer.write(json.dumps({"jsonrpc": "2.0", "id": asked, **answer}).encode() + b"\\n")
        sys.stdout.buffer.flush()
"""
ARGUMENTS = ["-I", "-S", "-c", _SERVER]


def rows() -> list[Row]:
    return [*asyncio.run(_call_rows()), asyncio.run(_start_row())]


async def _call_rows() -> list[Row]:
    """Compare a call here with the bare one and with asyncio's, in turns, by the cheapest batch of each: a busy moment
    affects all.

    The bare call blocks its thread. Of our 75 us it takes 33, mostly the two pipes and the JSON of 2 kB; 20 more are what
    asyncio takes for any answer: two rounds of its loop, a future and its callback. The last 22 are ours: time limits and
    cancellation of each request, hooks for progress and questions (1.5), checks of the answer and its search for hidden
    characters (2.5), and four coroutines between the tool and the connection. To meet the first bar, they would have to
    take 13.
    """
    seat = Seat("bench", McpServer(command=sys.executable, args=[*ARGUMENTS, "0"]), str(Path.cwd()), [], None, None)
    seat.start()
    await seat.ready()
    [tool] = seat.tools
    context = ToolContext()
    servers = [_bare_server(), _bare_server()]
    [(sending, receiving), (waking, answering)] = [_pipes(each) for each in servers]
    answers, loop = os.fdopen(os.dup(receiving), "rb"), asyncio.get_running_loop()
    asked: asyncio.Future[None] = loop.create_future()

    def request() -> bytes:
        message = {"name": "echo", "arguments": {"text": TEXT}}
        return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": message}).encode() + b"\n"

    async def call_bare() -> None:
        os.write(sending, request())
        json.loads(answers.readline())

    def take_answer() -> None:
        json.loads(os.read(answering, 65536))
        asked.set_result(None)

    async def call_asyncio() -> None:
        nonlocal asked
        asked = loop.create_future()
        os.write(waking, request())
        await asked

    async def call_ours() -> None:
        await tool.run({"text": TEXT}, context)

    loop.add_reader(answering, take_answer)
    calls = (call_bare, call_asyncio, call_ours)
    try:
        spent = [[await _cpu_s(call) for call in calls] for _ in range(BATCHES)]
    finally:
        loop.remove_reader(answering)
        answers.close()
        for each in servers:
            each.communicate()
        await seat.close()
    floor, least, ours = (min(column) * 1e6 / CALLS for column in zip(*spent, strict=True))
    name = "a call over stdio, CPU of this process"
    return [
        Row(name, ours, "us", ours / floor, "a pipe and json", "ratio <= 2"),
        Row(name, ours, "us", ours / least, "asyncio, a pipe and json", "ratio <= 1.6"),
    ]


def _pipes(server: subprocess.Popen[bytes]) -> tuple[int, int]:
    assert server.stdin is not None and server.stdout is not None
    return server.stdin.fileno(), server.stdout.fileno()


def _bare_server() -> subprocess.Popen[bytes]:
    command = [sys.executable, *ARGUMENTS, "0"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)


async def _cpu_s(call: Callable[[], Awaitable[None]]) -> float:
    began = time.process_time()
    for _ in range(CALLS):
        await call()
    return time.process_time() - began


async def _start_row() -> Row:
    one, many = await _ready_s(1), await _ready_s(SERVERS)
    return Row(
        f"{SERVERS} servers that sleep {SLEEP_S} s are ready", many, "s", many / one, "one of them", "ratio <= 2"
    )


async def _ready_s(count: int) -> float:
    settings = McpServer(command=sys.executable, args=[*ARGUMENTS, str(SLEEP_S)])
    servers = Servers({f"s{number}": settings for number in range(count)}, cwd=str(Path.cwd()))
    began = time.perf_counter()
    servers.hold()
    await servers.ready()
    spent = time.perf_counter() - began
    came = sum(event is not None and event.state == "started" for event in servers.states().values())
    await servers.release()
    if came != count:
        raise RuntimeError(f"{came} of {count} servers came")
    return spent
