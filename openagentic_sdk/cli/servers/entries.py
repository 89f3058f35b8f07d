"""`mcp list`, `get`, `add`, `add-json` and `remove`: show and change servers in files. No server is started."""

from __future__ import annotations

import argparse
import re
from typing import Any

from ...errors import OptionsError
from ...ground.text import on_one_line, visible
from ...parts.mcp.configured.expand import variables_in
from ...parts.mcp.configured.write import SCOPES, add_entry, read_entry, remove_entry
from ..actions import add_list_flag
from ..exits import FAILED, OK
from .here import STYLES, Here, differences, row, shown_definition


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `mcp add`."""
    parser.add_argument("words", nargs="*", metavar="COMMAND|URL", help="the command with its arguments, or the URL")
    parser.add_argument(
        "-t",
        "--transport",
        choices=("stdio", "http", "sse"),
        help="the transport (default: http for a URL, otherwise stdio)",
    )
    add_list_flag(parser, "-e", "--env", metavar="NAME=VALUE", help="an environment variable for the command")
    add_list_flag(parser, "-H", "--header", metavar="'NAME: VALUE'", help="a header for requests to the URL")
    parser.add_argument(
        "--connect-timeout",
        metavar="SECONDS",
        type=float,
        help="the time limit for connecting (default: 30, or 300 for npx and the like)",
    )
    parser.add_argument("--era", choices=("modern", "legacy"), help="the protocol version to use (default: negotiated)")
    parser.add_argument("--client-id", metavar="ID", help="the client id, for servers that require a registered one")
    parser.add_argument(
        "--client-secret-env", metavar="NAME", help="the environment variable with the secret of that client id"
    )
    parser.add_argument("--issuer", metavar="URL", help="the issuer of that secret, the only one to which it is sent")
    parser.add_argument(
        "--callback-port", metavar="N", type=int, help="the port for the browser's redirect after a login"
    )


def add(args: argparse.Namespace, here: Here) -> int:
    """Add an entry built from flags."""
    return _added(args, here, _entry_of(args))


def add_json(args: argparse.Namespace, here: Here) -> int:
    """Add an entry given as JSON, unchanged."""
    return _added(args, here, read_entry(args.entry))


def remove(args: argparse.Namespace, here: Here) -> int:
    """Remove an entry; exit code 1 if there is no such server.

    Raises `OptionsError` if several scopes have it and `--scope` names none of them.
    """
    if args.scope is None:
        entry = here.home.entries(here.project).find(args.name)
        scopes = (entry.scope, *entry.hides) if entry is not None else ()
        if len(scopes) > 1:
            raise OptionsError(f"{args.name!r} is in {' and '.join(scopes)}: choose one with --scope")
    tried = [args.scope] if args.scope else [scope for scope in SCOPES if scope in scopes]
    removed = [scope for scope in tried if remove_entry(here.home, here.project, scope, args.name)]
    message = f"{visible(args.name)} is removed from {removed[0]}" if removed else f"{visible(args.name)} did not exist"
    if not removed and args.scope is None and entry is not None:
        message = (
            f"{visible(args.name)} is in {on_one_line(entry.source)}: change it with the program that owns that file"
        )
    here.screen.tell(args.json, {"name": args.name, "removed": removed}, [message])
    return OK if removed else FAILED


def _added(args: argparse.Namespace, here: Here, entry: dict[str, Any]) -> int:
    path = add_entry(here.home, here.project, args.scope, args.name, entry)
    lines = [f"added {visible(args.name)} to {on_one_line(path)}", f"try it: openagentic-sdk mcp test {args.name}"]
    plain = [
        name
        for key in ("env", "headers")
        for name, value in (entry.get(key) or {}).items()
        if args.scope == "project" and not variables_in(value)
    ]
    if plain:
        message = f"{visible(', '.join(plain))} is in a file that others read: write a secret as ${{NAME}} instead"
        lines.append(here.screen.styled(message, "yellow"))
    here.screen.tell(args.json, {"name": args.name, "scope": args.scope, "path": path}, lines)
    return OK


def _entry_of(args: argparse.Namespace) -> dict[str, Any]:
    """Build the entry that the flags describe. Raises `OptionsError` with the flag to change."""
    if not args.words:
        raise OptionsError("give a command after --, or a URL: openagentic-sdk mcp add --help shows examples")
    is_url = args.words[0].startswith(("http://", "https://"))
    if not is_url and re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", args.words[0]):
        raise OptionsError(
            f"{args.words[0]!r:.200} is not the address of a server: give one that begins with https:// or http://"
        )
    common = {"connectTimeout": args.connect_timeout, "era": args.era}
    options = {key: value for key, value in common.items() if value is not None}
    kind = args.transport or ("http" if is_url else "stdio")
    if kind == "stdio":
        wrong = args.header or args.client_id or args.client_secret_env or args.issuer or args.callback_port
        if wrong:
            raise OptionsError("headers and logins are for a URL: for a command use -e NAME=VALUE")
        env = dict(_pair(text, "=", "-e NAME=VALUE") for text in args.env)
        return {
            "type": "stdio", "command": args.words[0], "args": args.words[1:], **({"env": env} if env else {}), **options
        }  # fmt: skip
    if not is_url or len(args.words) > 1 or args.env:
        raise OptionsError(f"--transport {kind} accepts one URL and no -e: {' '.join(args.words)!r:.200}")
    headers = dict(_pair(text, ":", "-H 'Name: value'") for text in args.header)
    secret = f"${{{args.client_secret_env}}}" if args.client_secret_env else None
    if secret and not args.issuer:
        raise OptionsError("a secret is sent only to its issuer: name the issuer with --issuer URL")
    login = {
        "issuer": args.issuer,
        "clientId": args.client_id,
        "clientSecret": secret,
        "callbackPort": args.callback_port,
    }
    oauth = {key: value for key, value in login.items() if value is not None}
    more = {"headers": headers, "oauth": oauth}
    return {"type": kind, "url": args.words[0], **options, **{key: value for key, value in more.items() if value}}


def _pair(text: str, joint: str, form: str) -> tuple[str, str]:
    name, separator, value = text.partition(joint)
    if not separator or not name.strip():
        raise OptionsError(f"{text.partition(joint)[0]!r:.100} is not of the form {form}")
    return name.strip(), value.strip() if joint == ":" else value


def list_servers(args: argparse.Namespace, here: Here) -> int:
    """List the servers; exit code 1 if an entry or a file is invalid."""
    configured = here.configured()
    lines = []
    for one in configured.found:
        state = here.screen.styled(f"{one.state:8}", STYLES[one.state])
        what = next(iter(shown_definition(one, is_listed=True)[1]), "")
        lines.append(f"{state} {visible(one.entry.name)} [{one.entry.scope}]  {on_one_line(what, 120)}")
        if one.reason:
            lines.append(f"         {on_one_line(one.reason, 300)}")
    reasons = {one.reason for one in configured.found if one.reason}
    for note in configured.diagnostics:
        if not any(reason in note.message for reason in reasons):
            lines.append(here.screen.styled(on_one_line(note.located, 300), "red" if note.is_error else "yellow"))
    if not configured.found and not lines:
        lines.append("no servers here: `openagentic-sdk mcp add --help` shows how to add one")
    data = {"servers": [row(one) for one in configured.found], "notes": [vars(note) for note in configured.diagnostics]}
    here.screen.tell(args.json, data, lines)
    return FAILED if any(note.is_error for note in configured.diagnostics) else OK


def get_server(args: argparse.Namespace, here: Here) -> int:
    """Show a server; exit code 0 if it may start."""
    one = here.find(args.name)
    digest, definition = shown_definition(one)
    lines = [
        f"{visible(one.entry.name)} [{one.entry.scope}], {here.screen.styled(one.state, STYLES[one.state])}",
        *(f"  {line}" for line in definition),
        *([f"  {on_one_line(one.reason)}"] if one.reason else []),
        *([f"  it hides servers of this name in: {', '.join(one.entry.hides)}"] if one.entry.hides else []),
        *([f"  changed since it was approved: {line}" for line in differences(one)]),
        f"  defined in {on_one_line(one.entry.source)}",
        f"  digest {digest}",
    ]
    here.screen.tell(args.json, row(one), lines)
    return OK if one.state == "ready" else FAILED
