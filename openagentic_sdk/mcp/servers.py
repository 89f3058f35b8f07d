"""The MCP servers of a run: started side by side, watched, asked again when their tools change, closed with the last user.

No server ends a run. One that is slow delays the first request by at most its connect timeout and may come later; one
that fails is an event; one that dies is started again when it is next needed. What the run sees changes only when it asks,
between two of its steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..events import McpServerChanged
from ..frozen import frozen
from ..threads import error_words
from ..tools.base import Tool, ToolContext
from .definitions import LeftOut, ToolDefinition, shown_name
from .server_config import McpServer


@frozen
class Vetted:
    """What a look at a server's definitions left: those that may be offered, and those that may not, with the reason."""

    kept: Sequence[ToolDefinition]
    left_out: Sequence[LeftOut] = ()


# Looks at the tools that a server offers before anybody else does: (name, settings, definitions).
Vet = Callable[[str, McpServer, Sequence[ToolDefinition]], Vetted]


class Servers:
    """All servers of one agent and its subagents, for one event loop.

    `vet` may keep tools back (pins). Whoever uses the servers holds them; the last `release` closes them.
    """

    def __init__(self, servers: Mapping[str, McpServer], *, cwd: str, vet: Vet | None = None) -> None:
        self._seats = {name: Seat(name, settings, cwd, vet) for name, settings in sorted(servers.items())}
        self._holders = 0

    def hold(self) -> None:
        """Start the servers that are not started, in the background. To be given back with `release`."""
        self._holders += 1
        for seat in self._seats.values():
            seat.start()

    async def release(self) -> None:
        """Give a hold back; the last one closes all servers and waits until nothing of them is left."""
        self._holders -= 1
        if self._holders == 0:
            await asyncio.gather(*(seat.close() for seat in self._seats.values()))

    async def ready(self) -> None:
        """Wait until each server has come, failed, or had its connect timeout; and ask those again whose tools changed."""
        await asyncio.gather(*(seat.ready() for seat in self._seats.values()))

    def tools(self) -> list[Tool]:
        """What the servers offer now, sorted by name."""
        return sorted((tool for seat in self._seats.values() for tool in seat.tools), key=lambda tool: tool.name)

    def instructions(self) -> list[tuple[str, str]]:
        """What servers that are there say of themselves: (name, text), cleaned and cut."""
        return [(seat.name, seat.instructions) for seat in self._seats.values() if seat.instructions]

    def changes(self, seen: dict[str, int]) -> list[McpServerChanged]:
        """What has become of the servers since `seen`, which is brought up to date: one event for each that changed."""
        news = [seat.event for seat in self._seats.values() if seat.event and seat.changes != seen.get(seat.name)]
        seen.update({seat.name: seat.changes for seat in self._seats.values()})
        return news


class Seat:
    """One server's place: it may be empty, taken, or taken anew."""

    def __init__(self, name: str, settings: McpServer, cwd: str, vet: Vet | None) -> None:
        self.name = name
        self.settings = settings
        self.tools: Sequence[Tool] = ()
        self.instructions = ""
        self.event: McpServerChanged | None = None
        self.changes = 0
        self._cwd = cwd
        self._vet = vet
        self._opening: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to connect, unless it has begun."""
        if self._opening is None:
            self._opening = asyncio.create_task(self._open(), name=f"mcp {self.name}")

    async def ready(self) -> None:
        if self._opening is not None and not self._opening.done():
            await asyncio.wait({self._opening}, timeout=self.settings.connect_timeout_s)

    async def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait({self._opening})

    async def _open(self) -> None:
        self.tools = [OwnTool(self.name, tool, self.settings) for tool in self.settings.tools]
        self._say("started")

    def _say(self, state: str, error: BaseException | None = None) -> None:
        tools = [{"name": tool.name, "tool": tool.name} for tool in self.tools]
        message = None if error is None else error_words(error)[1]
        self.event = McpServerChanged(self.name, state, self.settings.kind, tools=tools, error_message=message)
        self.changes += 1


class OwnTool(Tool):
    """A tool of this process under a server's name."""

    def __init__(self, server: str, inner: Tool, settings: McpServer) -> None:
        self.name = shown_name(server, inner.name)
        self.description, self.input_schema = inner.description, inner.input_schema
        self.effect = settings.effects.get(inner.name, inner.effect)
        self._inner = inner

    @property
    def parallel(self) -> bool:
        return self._inner.parallel

    async def run(self, input: Mapping[str, Any], ctx: ToolContext) -> Any:
        return await self._inner.run(input, ctx)

    async def reconcile(self, call: Any, ctx: ToolContext) -> Any | None:
        return await self._inner.reconcile(call, ctx)
