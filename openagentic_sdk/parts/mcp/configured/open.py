"""Open the servers of a run: those given in code, and those from files that a person agreed to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ....errors import StorageError
from ..seat import PinsFor
from ..server_config import McpServer, read_servers, secrets_in
from ..servers import Servers
from .home import McpHome
from .pins import Pins
from .resolve import ConfiguredServers


def secrets_of_servers(
    own_servers: Mapping[str, Any], configured: ConfiguredServers | None, home: McpHome
) -> dict[str, str]:
    """Collect the secrets that the servers of a run receive, with a name for each, to mask them; see `secrets_in`.

    The tokens of stored logins are included, if they can be read. Raises `OptionsError` for an unusable server in code.
    """
    servers = {**(configured.ready() if configured is not None else {}), **read_servers(own_servers)}
    secrets = {
        f"{each}, {name}": value for name, server in servers.items() for each, value in secrets_in(server).items()
    }
    for name, server in servers.items():
        with suppress(StorageError):
            login = home.logins(server.url).current() if server.url is not None else None
            if login is not None and login.tokens is not None:
                tokens = {"token": login.tokens.access, "refresh token": login.tokens.refresh or ""}
                secrets |= {f"{each}, {name}": value for each, value in tokens.items()}
    return secrets


def open_servers(
    own_servers: Mapping[str, Any],
    configured: ConfiguredServers | None,
    home: McpHome,
    *,
    cwd: str,
    roots: Sequence[str] = (),
    pins_for: PinsFor | None = None,
) -> Servers:
    """Create the servers of a run without starting them: those in code, and those with other names in files that may start.

    Raises `OptionsError` for an unusable server in code.
    """
    mine, configured_servers = read_servers(own_servers), () if configured is None else configured.found
    projects = {one.entry.name: one.entry.root for one in configured_servers}

    def pins(name: str, server: McpServer) -> Pins | None:
        """The pinned tools of a server, None without `pin`; those of a server in code are shared by all projects."""
        return home.pins("code" if name in mine else projects.get(name, ""), name) if server.pin else None

    return Servers(
        {**(configured.ready() if configured is not None else {}), **mine},
        cwd=cwd,
        roots=roots,
        auth_for=home.oauth,
        pins_for=pins_for or pins,
        pending={name: why for name, why in configured.waiting().items() if name not in mine} if configured else {},
    )
