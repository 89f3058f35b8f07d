"""The files about servers: the user's own servers, agreements, pinned tools, and logins.

All are below `mcp` in this library's home, with mode 0600, and none are in a project. Without a home nothing is stored.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from ...project.private_json import KeptFile
from ...project.project import OpenedProject
from ..oauth.login import Browser, OAuth
from ..oauth.logins import Logins
from ..server_config import McpServer
from .consent import Consents
from .pins import Pins
from .read import ServerEntries, read_entries
from .resolve import ConfiguredServers, resolve

OWN_FILE = "servers.json"


class McpHome:
    """The user's files about servers, below `folder`; None means that the user has no home, so nothing is stored."""

    def __init__(self, folder: str | os.PathLike[str] | None) -> None:
        self._folder = None if folder is None else os.fspath(folder)
        self.own = None if folder is None else KeptFile(os.path.join(folder, OWN_FILE), "servers")
        self.consents = None if folder is None else Consents(os.path.join(folder, "consent.json"))

    def entries(self, project: OpenedProject) -> ServerEntries:
        """The entries in the files of a project, its user and its plugins."""
        return read_entries(project, self.own)

    def configured(self, project: OpenedProject, environ: Mapping[str, str] = os.environ) -> ConfiguredServers:
        """The entries with their states, and with the servers of those that are ready."""
        return resolve(self.entries(project), project, self.consents, environ)

    def pins(self, root: str, name: str) -> Pins:
        """The pinned tools of a server of the project at `root`, of the user ("" as `root`), or in code ("code")."""
        return Pins(self._below("tools"), root, name)

    def logins(self, url: str) -> Logins:
        """The stored logins for a server."""
        return Logins(self._below("logins"), url)

    def oauth(self, name: str, server: McpServer, browser: Browser | None = None) -> OAuth | None:
        """The login for a server; None if it has no URL, or if its entry contains a token or an Authorization header."""
        has_token = server.token is not None or any(header.lower() == "authorization" for header in server.headers)
        if server.url is None or has_token:
            return None
        # `mcp login` identifies a server that is only given in code by its address.
        known_as = server.url if server.source == McpServer.source else name
        return OAuth(known_as, server.url, server.oauth, logins=self.logins(server.url), browser=browser)

    def _below(self, name: str) -> str | None:
        return None if self._folder is None else os.path.join(self._folder, name)
