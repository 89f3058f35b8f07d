"""`mcp list` and `mcp get`: what files say of servers, without starting one."""

from __future__ import annotations

import argparse

from ...text import on_one_line, visible
from ..exits import FAILED, OK
from .here import STYLES, Here, differences, row, shown_definition


def list_servers(args: argparse.Namespace, here: Here) -> int:
    """Exit code 1 when an entry or a file cannot be used."""
    configured = here.configured()
    notes = [{"message": note.message, "path": note.path, "is_error": note.is_error} for note in configured.diagnostics]
    lines = []
    for one in configured.found:
        state = here.screen.styled(f"{one.state:8}", STYLES[one.state])
        what = next(iter(shown_definition(one)[1]), "")
        lines.append(f"{state} {visible(one.entry.name)} [{one.entry.scope}]  {on_one_line(what, 120)}")
        if one.reason:
            lines.append(f"         {on_one_line(one.reason, 300)}")
    named = {one.reason for one in configured.found if one.reason}
    for note in configured.diagnostics:
        if not any(reason in note.message for reason in named):
            lines.append(here.screen.styled(on_one_line(note.located, 300), "red" if note.is_error else "yellow"))
    if not configured.found and not lines:
        lines.append("no servers here: `openagentic-sdk mcp add --help` shows how to add one")
    here.tell(args.json, {"servers": [row(one) for one in configured.found], "notes": notes}, *lines)
    return FAILED if any(note.is_error for note in configured.diagnostics) else OK


def get_server(args: argparse.Namespace, here: Here) -> int:
    """Exit code 0 when it may start."""
    one = here.find(args.name)
    digest, definition = shown_definition(one)
    lines = [
        f"{visible(one.entry.name)} [{one.entry.scope}], {here.screen.styled(one.state, STYLES[one.state])}",
        *(f"  {line}" for line in definition),
        *([f"  {on_one_line(one.reason)}"] if one.reason else []),
        *([f"  it hides servers of this name in: {', '.join(one.entry.hides)}"] if one.entry.hides else []),
        *([f"  changed since it was agreed to: {line}" for line in differences(one)]),
        f"  stands in {on_one_line(one.entry.source)}",
        f"  digest {digest}",
    ]
    here.tell(args.json, row(one), *lines)
    return OK if one.state == "ready" else FAILED
