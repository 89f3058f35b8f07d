"""`mcp login` and `mcp logout`: log in to a server, and delete the login."""

from __future__ import annotations

import argparse
import sys
import webbrowser
from dataclasses import replace

from ...errors import OptionsError
from ...ground.text import visible
from ...parts.mcp.oauth.browser import LoopbackBrowser
from ...parts.mcp.server_config import McpServer
from ..exits import FAILED, OK
from ..loop import run_async
from ..output.questions import somebody_is_there
from ..output.terminal import Screen, read_line
from .here import Here


def login(args: argparse.Namespace, here: Here) -> int:
    """Log in to a server through the person's browser, and store its tokens."""
    name, server = _service(args.name, here)
    port = {"callbackPort": args.port} if args.port is not None else {}
    screen = Screen(sys.stderr if args.json else sys.stdout)
    paste = (lambda: read_line("", screen)) if somebody_is_there() else None
    browser = LoopbackBrowser(screen.line, open_url=None if args.no_browser else webbrowser.open, paste=paste)
    oauth = here.home.oauth(name, replace(server, oauth={**(server.oauth or {}), **port}), browser)
    if oauth is None:
        raise OptionsError(f"{name!r} has its token in its entry, so no login is needed")
    assert server.url is not None, "a service has an address"
    tokens = run_async(oauth.log_in(args.scope))
    old_login = here.home.logins(server.url).current()
    issuer = old_login.issuer if old_login is not None else ""
    data = {"name": name, "url": server.url, "issuer": issuer, "scope": tokens.scope, "expires_at": tokens.expires_at}
    granted = f", granted: {visible(tokens.scope)}" if tokens.scope else ""
    here.screen.tell(args.json, data, [f"logged in to {visible(name)} through {visible(issuer)}{granted}"])
    return OK


def logout(args: argparse.Namespace, here: Here) -> int:
    """Delete a login; exit code 1 if there was none."""
    name, server = _service(args.name, here)
    assert server.url is not None, "a service has an address"
    was_there = here.home.logins(server.url).forget()
    message = f"the login for {visible(name)} is deleted" if was_there else f"there was no login for {visible(name)}"
    here.screen.tell(args.json, {"name": name, "url": server.url, "forgotten": was_there}, [message])
    return OK if was_there else FAILED


def _service(name: str, here: Here) -> tuple[str, McpServer]:
    """Find the server with this name or address; a server given by its address need not be configured.

    Raises `OptionsError` for a server that has no address, or that may not start.
    """
    if name.startswith(("http://", "https://")):
        entry = next(
            (one for one in here.configured().found if one.server is not None and one.server.url == name), None
        )
        return (name, McpServer(url=name)) if entry is None else (entry.entry.name, entry.server or McpServer(url=name))
    one = here.find(name)
    if one.server is None:
        raise OptionsError(f"{name!r} is not started: {one.reason}")
    if one.server.url is None:
        raise OptionsError(f"{name!r} is a program on this machine, so no login is needed")
    return name, one.server
