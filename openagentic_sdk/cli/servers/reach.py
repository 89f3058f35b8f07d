"""`mcp test`: start servers briefly and show what they offer; a project's only after consent."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...errors import StorageError
from ...events import McpServerChanged
from ...ground.frozen import frozen
from ...ground.text import on_one_line, visible
from ...parts.mcp.configured.home import McpHome
from ...parts.mcp.configured.open import open_servers
from ...parts.mcp.configured.pins import Pins, ToolChange
from ...parts.mcp.configured.resolve import Configured
from ...parts.mcp.servers import Servers
from ..exits import FAILED, OK
from ..loop import run_async
from ..output.terminal import Screen
from .here import Here

WORKING = ("started", "restarted", "changed")
_MAX_SHOWN = 50
_MAX_WHY_CHARS = 1000
# How often the reason for a wait is shown.
_TELL_EVERY_S = 5.0


@frozen
class ServerTrial:
    """The result of starting a server: its state, None if it did not answer in time, its tools as sent, and the `changes` to
    them since they were approved.
    """

    name: str
    event: McpServerChanged | None
    tools: Sequence[Mapping[str, Any]] = ()
    changes: Sequence[ToolChange] = ()

    @property
    def works(self) -> bool:
        """Whether the server started and answered."""
        return self.event is not None and self.event.state in WORKING

    def row(self) -> dict[str, Any]:
        """The result as JSON."""
        event = self.event
        changes = [{"tool": c.name, "is_new": c.is_new, "lines": list(c.lines)} for c in self.changes]
        fields = {} if event is None else {key: value for key, value in vars(event).items() if key in _ANSWER_FIELDS}
        return {"name": self.name, "works": self.works, **fields, "changes": changes}

    def lines(self, screen: Screen) -> list[str]:
        """The result as lines for people."""
        event = self.event
        if event is None or not self.works:
            why = (event.error_message if event is not None else None) or "no answer in time"
            if len(why) > _MAX_WHY_CHARS:  # the end, a program's last output, explains the most
                why = f"{why[:200]} ... {why[200 - _MAX_WHY_CHARS :]}"
            why = on_one_line(why)
            return [f"{screen.styled('no ', 'red')} {visible(self.name)}: {why}"]
        tool_names = {tool.get("tool") for tool in event.tools}
        descriptions = [
            (str(tool.get("name")), str(tool.get("description") or ""))
            for tool in self.tools
            if tool.get("name") in tool_names
        ]
        version = event.protocol_version or "in this process"
        head = f"{visible(self.name)}: {event.transport}, {version}, {len(event.tools)} tools"
        lines = [f"{screen.styled('yes', 'green')} {head}"]
        lines += [f"    {on_one_line(name, 100)}: {on_one_line(text, 200)}" for name, text in descriptions[:_MAX_SHOWN]]
        lines += [f"    and {len(descriptions) - _MAX_SHOWN} more"] if len(descriptions) > _MAX_SHOWN else []
        for omission in event.left_out:
            lines.append(
                f"    left out: {visible(str(omission.get('tool')))[:100]}: {on_one_line(str(omission.get('reason')), 300)}"
            )
        for change in self.changes:
            lines += [f"      {visible(change.name)[:100]} {line}" for line in change.lines[:200]]
        return lines


_ANSWER_FIELDS = ("state", "transport", "protocol_version", "server", "tools", "left_out", "error_message")


class _NotingPins:
    """Pins that judge like `pins`, and keep the tools that were passed to them last."""

    def __init__(self, pins: Pins) -> None:
        self.pins = pins
        self.tools: list[Mapping[str, Any]] = []

    def judge(
        self, server: str, tools: Sequence[Mapping[str, Any]]
    ) -> tuple[Sequence[Mapping[str, Any]], Sequence[tuple[str, str]]]:
        self.tools = [tool for tool in tools if isinstance(tool, Mapping)]
        return self.pins.judge(server, tools)


async def try_servers(
    home: McpHome, configured_servers: Sequence[Configured], cwd: str, tell: Callable[[str], object] = lambda line: None
) -> list[ServerTrial]:
    """Start these servers in parallel, query them, and end them. Errors are reported, not raised; `tell` receives reports
    about slow servers.
    """
    noting = {one.entry.name: _NotingPins(home.pins(one.entry.root, one.entry.name)) for one in configured_servers}
    ready = {one.entry.name: one.server for one in configured_servers if one.server is not None}
    servers = open_servers(ready, None, home, cwd=cwd, pins_for=lambda name, server: noting[name])
    servers.hold()
    try:
        telling = asyncio.create_task(_tell_waiting(servers, tell))
        try:
            await servers.ready()
        finally:
            telling.cancel()
            await asyncio.wait({telling})
        events = {event.name: event for event in servers.changes({})}
    finally:
        await servers.release()
    tried = []
    for name, noted in noting.items():
        try:
            changes = noted.pins.changes(noted.tools)
        except StorageError:  # the server's event already reports it for every tool
            changes = []
        tried.append(ServerTrial(name, events.get(name), noted.tools, changes))
    return tried


async def _tell_waiting(servers: Servers, tell: Callable[[str], object]) -> None:
    for count in itertools.count(1):
        await asyncio.sleep(_TELL_EVERY_S)
        for name, words in servers.waiting().items():
            tell(f"{visible(name)}: {on_one_line(words, 300)} ({count * _TELL_EVERY_S:g} s)")


def look_at(here: Here, servers: Sequence[Configured]) -> tuple[list[str], list[dict[str, Any]]]:
    """Briefly start the servers that may start; return the report on all of them, in lines and as JSON."""
    able = [one for one in servers if one.server is not None]
    tried = run_async(try_servers(here.home, able, here.project.cwd, _on_stderr)) if able else []
    lines, rows = [line for one in tried for line in one.lines(here.screen)], [one.row() for one in tried]
    for one in servers:
        if one.server is None:
            lines.append(
                f"{here.screen.styled('-  ', 'yellow')} {visible(one.entry.name)}: {on_one_line(one.reason, 600)}"
            )
            rows.append({"name": one.entry.name, "works": None, "state": one.state, "error_message": one.reason})
    return lines, rows


def _on_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def test(args: argparse.Namespace, here: Here) -> int:
    """Test servers; return 1 if a named one or one that may start does not answer, or if an entry is unusable."""
    servers = [here.find(name) for name in args.names] or [
        one for one in here.configured().found if one.state != "disabled"
    ]
    if (limit_s := args.connect_timeout) is not None:
        servers = [
            one if one.server is None else replace(one, server=replace(one.server, connect_timeout_s=limit_s))
            for one in servers
        ]
    lines, rows = look_at(here, servers)
    here.screen.tell(args.json, {"servers": rows}, lines or ["no servers here"])
    is_missing = any(row["works"] is None and (args.names or row["state"] == "unusable") for row in rows)
    return FAILED if is_missing or any(row["works"] is False for row in rows) else OK
