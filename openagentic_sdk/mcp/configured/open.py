"""The servers of a run: those that code gives, and those that files name and a person agreed to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..seat import PinsFor
from ..server_config import McpServer, read_servers
from ..servers import Servers
from .home import McpHome
from .pins import Pins
from .resolve import ConfiguredServers


def open_servers(
    given: Mapping[str, Any],
    configured: ConfiguredServers | None,
    home: McpHome,
    *,
    cwd: str,
    roots: Sequence[str] = (),
    pins_for: PinsFor | None = None,
) -> Servers:
    """The servers of a run, not started yet: those that code gives, and of others' names those that files may start.

    Raises `OptionsError` for a server in code that cannot be used.
    """
    mine, found = read_servers(given), () if configured is None else configured.found
    projects = {one.entry.name: one.entry.root for one in found}

    def pins(name: str, server: McpServer) -> Pins | None:
        """Of a server in code the tools are held to what they were if it says so, whichever project it is used in."""
        return home.pins("code" if name in mine else projects.get(name, ""), name) if server.pin else None

    return Servers(
        {**(configured.ready() if configured is not None else {}), **mine},
        cwd=cwd,
        roots=roots,
        auth_for=home.oauth,
        pins_for=pins_for or pins,
        pending={name: why for name, why in configured.waiting().items() if name not in mine} if configured else {},
    )
