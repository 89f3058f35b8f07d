"""`mcp add`, `mcp add-json` and `mcp remove`: change the entries of a scope."""

from __future__ import annotations

import argparse
from typing import Any

from ...errors import OptionsError
from ...mcp.configured.expand import variables_in
from ...mcp.configured.write import SCOPES, add_entry, read_entry, remove_entry
from ...text import on_one_line, visible
from ..exits import FAILED, OK
from .here import Here


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `mcp add`."""
    parser.add_argument(
        "words", nargs="*", metavar="COMMAND|URL", help="what to start with its arguments, or where it is"
    )
    parser.add_argument(
        "-t", "--transport", choices=("stdio", "http", "sse"), help="default: http for a URL, else stdio"
    )
    parser.add_argument("-e", "--env", metavar="NAME=VALUE", action="append", default=[], help="for the command")
    parser.add_argument("-H", "--header", metavar="'NAME: VALUE'", action="append", default=[], help="for the URL")
    parser.add_argument("--client-id", metavar="ID", help="for servers that know us only by an id that they gave")
    parser.add_argument("--client-secret-env", metavar="NAME", help="the variable that holds the secret of that id")
    parser.add_argument("--callback-port", metavar="N", type=int, help="where the browser comes back to after a login")


def add(args: argparse.Namespace, here: Here) -> int:
    """Put an entry together from flags."""
    return _added(args, here, _entry_of(args))


def add_json(args: argparse.Namespace, here: Here) -> int:
    """Take an entry as it is."""
    return _added(args, here, read_entry(args.entry))


def remove(args: argparse.Namespace, here: Here) -> int:
    """Exit code 1 when there is no such server."""
    if args.scope is None:
        entry = here.home.entries(here.project).find(args.name)
        scopes = (entry.scope, *entry.hides) if entry is not None else ()
        if len(scopes) > 1:
            raise OptionsError(f"{args.name!r} stands in {' and '.join(scopes)}: say which with --scope")
    tried = [args.scope] if args.scope else [scope for scope in SCOPES if scope in scopes]
    removed = [scope for scope in tried if remove_entry(here.home, here.project, scope, args.name)]
    said = f"{visible(args.name)} is removed from {removed[0]}" if removed else f"{visible(args.name)} was not there"
    if not removed and args.scope is None and entry is not None:
        said = (
            f"{visible(args.name)} stands in {on_one_line(entry.source)}, which is changed by the program that owns it"
        )
    here.tell(args.json, {"name": args.name, "removed": removed}, said)
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
        said = f"{visible(', '.join(plain))} stands in a file that others read: write a secret as ${{NAME}} instead"
        lines.append(here.screen.styled(said, "yellow"))
    here.tell(args.json, {"name": args.name, "scope": args.scope, "path": path}, *lines)
    return OK


def _entry_of(args: argparse.Namespace) -> dict[str, Any]:
    """Raises `OptionsError` with the flag to change."""
    if not args.words:
        raise OptionsError("name what to start, behind --, or a URL: openagentic-sdk mcp add --help shows examples")
    is_url = args.words[0].startswith(("http://", "https://"))
    kind = args.transport or ("http" if is_url else "stdio")
    if kind == "stdio":
        wrong = args.header or args.client_id or args.client_secret_env or args.callback_port
        if wrong:
            raise OptionsError("headers and logins are for a URL: for a command use -e NAME=VALUE")
        env = dict(_pair(text, "=", "-e NAME=VALUE") for text in args.env)
        return {"type": "stdio", "command": args.words[0], "args": args.words[1:], **({"env": env} if env else {})}
    if not is_url or len(args.words) > 1 or args.env:
        raise OptionsError(f"--transport {kind} takes one URL and no -e: {' '.join(args.words)!r:.200}")
    headers = dict(_pair(text, ":", "-H 'Name: value'") for text in args.header)
    secret = f"${{{args.client_secret_env}}}" if args.client_secret_env else None
    login = {"clientId": args.client_id, "clientSecret": secret, "callbackPort": args.callback_port}
    oauth = {key: value for key, value in login.items() if value is not None}
    more = {"headers": headers, "oauth": oauth}
    return {"type": kind, "url": args.words[0], **{key: value for key, value in more.items() if value}}


def _pair(text: str, joint: str, form: str) -> tuple[str, str]:
    name, found, value = text.partition(joint)
    if not found or not name.strip():
        raise OptionsError(f"{text.partition(joint)[0]!r:.100} is not of the form {form}")
    return name.strip(), value.strip() if joint == ":" else value
