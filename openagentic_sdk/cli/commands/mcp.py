"""`openagentic-sdk mcp ...`: the MCP servers of this folder and user, and named agents as a server."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

from ...assemble import mcp_home, open_project
from ...ground.rooms import is_installed, require_room
from ...options import SETTING_SOURCES, OpenAgenticOptions
from ..actions import ActionList
from ..output.terminal import Screen
from ..servers import agree, entries, login, reach
from ..servers.here import Here

_ADD_EXAMPLES = """examples:
  openagentic-sdk mcp add files -- npx -y @modelcontextprotocol/server-filesystem .
  openagentic-sdk mcp add -s user -e API_KEY='${API_KEY}' weather -- uvx weather-server --units metric
  openagentic-sdk mcp add -t http -s project docs https://mcp.example.com/mcp
  openagentic-sdk mcp add -t http -H 'Authorization: Bearer ${DOCS_TOKEN}' docs https://mcp.example.com/mcp

scopes: local applies to you in this project, user to you in every project (both in this library's home), project is
.mcp.json, shared by everybody who works on the project. ${NAME} and ${NAME:-default} are expanded when it starts."""
_JSON_EXAMPLES = """example:
  openagentic-sdk mcp add-json weather '{"command": "uvx", "args": ["weather-server"], "env": {"API_KEY": "${API_KEY}"}}'"""
_TRUST_EXAMPLES = """A project's server starts only after somebody has approved exactly this command line,
environment and address; its tools are pinned when it is first used. This command approves both in their current state and
prints what is new.

examples:
  openagentic-sdk mcp get files               look first: what it would run, and what changed since it was approved
  openagentic-sdk mcp trust files
  openagentic-sdk mcp trust files --digest 3f1c...    only if it is still as shown by `get`
  openagentic-sdk mcp trust files --revoke    withdraw the approval"""
_LOGIN_EXAMPLES = """examples:
  openagentic-sdk mcp login docs
  openagentic-sdk mcp login docs --scope 'read write'
  openagentic-sdk mcp login https://mcp.example.com/mcp       a server that is configured only in code"""

_SERVE_EXAMPLES = """example:
  claude mcp add house -- openagentic-sdk mcp serve --agents agents.toml"""

ServerAction = Callable[[argparse.Namespace, Here], int]
_ACTIONS: dict[str, tuple[ServerAction, str, str]] = {
    "add": (entries.add, "add a server: a command after --, or a URL", _ADD_EXAMPLES),
    "add-json": (entries.add_json, "add a server from an entry of .mcp.json", _JSON_EXAMPLES),
    "list": (entries.list_servers, "list the servers that apply in this folder, and the status of each", ""),
    "get": (entries.get_server, "show everything about one server, without starting it", ""),
    "remove": (entries.remove, "remove a server from its scope", ""),
    "test": (reach.test, "start servers that may start, and list what they offer (default: all of them)", ""),
    "trust": (agree.trust, "approve a server and its tools in their current state", _TRUST_EXAMPLES),
    "login": (login.login, "log in to a server with the browser", _LOGIN_EXAMPLES),
    "logout": (login.logout, "delete the login for a server", ""),
}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "mcp", description="Use the tools of other programs: add, inspect, approve and test servers."
    )
    actions = ActionList(parser, _leave_lines, parser_class=_Parser)
    serve_summary = "offer named agents as the tools of an MCP server, to the program that starts this command"
    serving = actions.add("serve", _serve, serve_summary, epilog=_SERVE_EXAMPLES)
    if is_installed("server"):
        from ..servers.serve import add_flags

        add_flags(serving)
    else:
        serving.set_defaults(needs="server")
    commands = {}
    for name, (act, summary, examples) in _ACTIONS.items():
        commands[name] = action = actions.add(name, act, summary, epilog=examples)
        action.add_argument("--json", action="store_true", help="print one JSON object")
        if name == "test":
            action.add_argument("names", nargs="*", metavar="NAME", help="the servers (default: all that may start)")
            limit = "the time limit for each (default: its connectTimeout, else 30, or 300 for npx and the like)"
            action.add_argument("--connect-timeout", metavar="SECONDS", type=float, help=limit)
        elif name != "list":
            action.add_argument(
                "name",
                metavar="NAME",
                help="the server's name, or its URL" if name in ("login", "logout") else "the server's name",
            )
    for name in ("add", "add-json", "remove"):
        scope = "local" if name != "remove" else None
        help_text = (
            "the scope, which determines the file (default: %(default)s)"
            if scope
            else "the scope, which determines the file (default: the only one)"
        )
        commands[name].add_argument(
            "-s", "--scope", choices=("local", "user", "project"), default=scope, help=help_text
        )
    commands["add-json"].add_argument("entry", metavar="JSON", help="the entry, as a JSON object")
    entries.add_flags(commands["add"])
    commands["trust"].add_argument("--digest", metavar="HEX", help="approve only the definition with this digest")
    commands["trust"].add_argument("--revoke", action="store_true", help="withdraw the approval, and forget the tools")
    commands["login"].add_argument(
        "--scope", metavar="TEXT", help="the scopes to request (default: those that the server names)"
    )
    commands["login"].add_argument(
        "--port", metavar="N", type=int, help="the port for the browser's redirect (default: any port)"
    )
    commands["login"].add_argument("--no-browser", action="store_true", help="only print the address")


def _serve(args: argparse.Namespace) -> int:
    from ..servers.serve import serve

    return serve(args)


def _leave_lines(action: argparse.ArgumentParser) -> None:
    """Keep the line breaks of the examples in an action's help."""
    action.formatter_class = argparse.RawDescriptionHelpFormatter


class _Parser(argparse.ArgumentParser):
    """A parser that keeps the words after `--` unchanged, and also accepts flags after the first words."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if needed := self.get_default("needs"):
            require_room(needed)
        words = list(sys.argv[1:] if args is None else args)
        cut = words.index("--") if "--" in words else len(words)
        head, tail = words[:cut], words[cut + 1 :]
        flags: list[str] = []
        plain: list[str] = []
        while head:
            word = head.pop(0)
            is_flag = len(word) > 1 and word.startswith("-")
            (flags if is_flag else plain).append(word)
            action = self._option_string_actions.get(word) if is_flag else None
            if action is not None and action.nargs is None and head:
                flags.append(head.pop(0))
        result, extras = super().parse_known_args([*flags, *plain], namespace)
        if tail and not hasattr(result, "words"):
            self.error(f"nothing may follow --: {' '.join(tail)}")
        if tail:
            result.words = [*result.words, *tail]
        return result, extras


def run(args: argparse.Namespace) -> int:
    if args.action == "serve":
        return _serve(args)
    project = open_project(OpenAgenticOptions(setting_sources=SETTING_SOURCES))
    code: int = args.run_action(args, Here(Screen(sys.stdout), project, mcp_home()))
    return code
