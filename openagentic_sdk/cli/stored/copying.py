"""`sessions copy`: bring sessions from any store to any other."""

from __future__ import annotations

import argparse
import sys

from ...errors import OptionsError
from ...sessions.base import SessionStore
from ...sessions.lifecycle import copy_missing
from ...text import on_one_line
from ..exits import OK
from ..screen.terminal import Screen
from .stores import ID_HELP, ActionList, find_session, open_session_store


def add_actions(actions: ActionList) -> None:
    """Add it to the tree of the command line."""
    copy = actions.add("copy", _copy, "copy sessions, with their subagents' and blobs, to another store")
    copy.add_argument("ids", nargs="*", metavar="ID", help=ID_HELP)
    copy.add_argument("--all", action="store_true", help="every session of the store")
    copy.add_argument("--to", required=True, metavar="STORE", help="where they go: a folder, or an address")


def _copy(store: SessionStore, args: argparse.Namespace) -> int:
    if bool(args.ids) == args.all:
        raise OptionsError("name the sessions to copy, or give --all")
    # The oldest first, so that the lists of both stores have one order.
    names = store.list_sessions()[::-1] if args.all else [find_session(store, text) for text in args.ids]
    target = open_session_store(args.to)
    screen, copied, seen = Screen(sys.stdout), 0, set()
    try:
        for place, root in enumerate(names, start=1):
            for name, is_new in copy_missing(store, target, root):
                if name in seen:
                    continue
                seen.add(name)
                copied += is_new
                state = f"{target.last_seq(name)} events" if is_new else "is there already"
                screen.line(f"{place}/{len(names)}  {on_one_line(name)}  {state}")
    finally:
        target.close()
    screen.line(f"{copied} sessions were copied")
    return OK
