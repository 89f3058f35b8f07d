"""The MCP server over this process's stdin and stdout, for a client that starts it and closes its stdin to end it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ..errors import RpcError
from ..ground.jsonrpc import INVALID_PARAMS, Peer
from ..ground.loose import as_mapping
from ..ground.stdio import Output, end_on_signals, read_lines
from .desk import Desk
from .guard import Principal
from .mcp import Face, McpCaller, is_modern
from .mcp_tools import WAIT_S

MAX_LINE_BYTES = 4 * 1024 * 1024
# The official clients wait 2 s after closing stdin before they terminate a server, and 2 s more before they kill it.
GRACE_S = 1.5


class StdioConnection:
    """The connection to one client. Capabilities that a legacy client announces apply until its next `initialize`."""

    def __init__(self, face: Face, output: Output) -> None:
        self.peer = Peer(output.send, self._answer, self._hear, cancel_method="notifications/cancelled")
        self._face = face
        self._capabilities: Mapping[str, Any] | None = None

    async def _answer(self, method: str, params: Mapping[str, Any]) -> Any:
        if not is_modern(params):
            if method == "initialize":
                self._capabilities = as_mapping(params.get("capabilities"))
            elif self._capabilities is None and method != "ping":
                raise RpcError(
                    INVALID_PARAMS, "identify the client in _meta with every request, or send initialize first"
                )
        client = McpCaller(Principal(), self.peer.notify, self.peer.request, self._capabilities)
        return await self._face.answer(method, params, client)

    async def _hear(self, method: str, params: Mapping[str, Any]) -> None:
        """Ignore a notification: the peer handles the only relevant one, a cancellation."""


async def serve(desk: Desk, *, stdin: int, stdout: int, wait_s: float = WAIT_S, grace_s: float = GRACE_S) -> None:
    """Serve the client at these descriptors until it closes its end, or until SIGTERM, SIGHUP or SIGINT.

    Then suspend the runs, which have `grace_s` seconds to finish their step.
    """
    desk.open()
    output = Output(stdout)
    connection = StdioConnection(Face(desk, wait_s=wait_s), output)
    reading = asyncio.create_task(read_lines(stdin, connection.peer.receive, MAX_LINE_BYTES))
    end_on_signals(reading)
    await asyncio.wait({reading})
    await desk.drain(grace_s)
    await connection.peer.close()
    await output.close()
    if not reading.cancelled():
        reading.result()
