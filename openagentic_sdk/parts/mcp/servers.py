"""The MCP servers of a run: started concurrently, monitored, queried again after changes, closed after their last user.

A server never ends a run. A slow one delays the first request by at most its connect timeout and may connect later; the
failure of one is an event; one that dies is restarted when it is next needed. The run sees changes only when it asks,
between two of its steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from ...events import McpServerChanged
from ...kernel.tool import BareTool
from .http import HttpAuth
from .resources import ListResourcesTool, PromptExpansion, ReadResourceTool, expand_prompt
from .seat import PinsFor, Seat
from .server_config import McpServer
from .tools import RemoteTool

AuthFor = Callable[[str, McpServer], "HttpAuth | None"]


class Servers:
    """All servers of one agent and its subagents, for one event loop.

    `roots` are the folders that servers may be told about (default: `cwd`). `auth_for` returns the login for a server,
    `pins_for` the tools that were agreed to. `pending` maps servers that are not started, such as those that wait for
    consent, to the reason. Each user calls `hold`; the last `release` closes the servers.
    """

    def __init__(
        self,
        servers: Mapping[str, McpServer],
        *,
        cwd: str,
        roots: Sequence[str] = (),
        auth_for: AuthFor = lambda name, settings: None,
        pins_for: PinsFor = lambda name, settings: None,
        pending: Mapping[str, str] | None = None,
    ) -> None:
        self._seats = {
            name: Seat(name, settings, cwd, roots or (cwd,), auth_for(name, settings), pins_for(name, settings))
            for name, settings in sorted(servers.items())
        }
        self._pending = [
            McpServerChanged(name, "pending", "", error_message=why) for name, why in sorted((pending or {}).items())
        ]
        self._readers: dict[tuple[str, ...], tuple[BareTool, BareTool]] = {}
        self._holders = 0

    def hold(self) -> None:
        """Start the servers that are not running, in the background. Must be followed by `release`."""
        self._holders += 1
        for seat in self._seats.values():
            seat.start()

    async def release(self) -> None:
        """Release one hold; the last release closes all servers and waits until they have ended."""
        self._holders -= 1
        if self._holders == 0:
            await asyncio.gather(*(seat.close() for seat in self._seats.values()))

    async def ready(self) -> None:
        """Wait until each server has connected, failed or timed out; read changed tool lists again."""
        await asyncio.gather(*(seat.ready() for seat in self._seats.values()))

    def waiting(self) -> dict[str, str]:
        """The servers that have neither connected nor failed, each with what it is waiting for."""
        return {name: words for name, seat in self._seats.items() if (words := seat.waiting_words())}

    def tools(self, may_use: Callable[[str], bool] = lambda server: True) -> list[BareTool]:
        """The tools that the servers offer now, sorted by name. `may_use` decides whose resources may be read."""
        tools = [tool for seat in self._seats.values() for tool in seat.tools]
        readable = {name: seat for name, seat in self._seats.items() if seat.has("resources") and may_use(name)}
        names = tuple(readable)
        # Reused for the same servers, so that an unchanged list compares as equal.
        if names and names not in self._readers:
            self._readers[names] = (ListResourcesTool(readable), ReadResourceTool(readable))
        return sorted((*tools, *self._readers.get(names, ())), key=lambda tool: tool.name)

    def instructions(self) -> list[tuple[str, str]]:
        """The instructions of the connected servers: (name, text), cleaned and cut."""
        return [(seat.name, seat.instructions) for seat in self._seats.values() if seat.instructions]

    def changes(self, seen: dict[str, int]) -> list[McpServerChanged]:
        """The latest event of each server that changed since `seen`, which is updated.

        If `seen` is empty, also the events of pending servers.
        """
        news = [] if seen else list(self._pending)
        news += [seat.event for seat in self._seats.values() if seat.event and seat.changes != seen.get(seat.name)]
        seen.update({seat.name: seat.changes for seat in self._seats.values()})
        return news

    def held_definition(self, tool: str) -> tuple[str, str] | None:
        """The server of a tool and the digest of its definition; None if no server whose `pin` is None offers this tool."""
        for seat in self._seats.values():
            for each in seat.tools:
                if each.name == tool and isinstance(each, RemoteTool) and seat.settings.pin is None:
                    return seat.name, each.definition.sha256
        return None

    def states(self) -> dict[str, McpServerChanged | None]:
        """The current state of each server; None while it has neither connected nor failed."""
        return {name: seat.event for name, seat in self._seats.items()}

    async def expand_prompt(self, text: str, permits: Callable[[str, str], Awaitable[bool]]) -> PromptExpansion | None:
        """Expand a prompt that a person typed; see `resources.expand_prompt`. Raises `McpError`."""
        return await expand_prompt(text, self._seats, permits)
