"""`sessions context`: how full the model's window is, with what, and what a compaction would drop."""

from __future__ import annotations

import argparse
import sys

from ...errors import OptionsError
from ...runs.window import session_window
from ...sessions.base import SessionStore
from ..actions import ActionList
from ..exits import OK
from ..output.terminal import Screen
from .stores import NEWEST, add_id, find_session


def add_actions(actions: ActionList) -> None:
    """Add `context` to the command line."""
    context = actions.add(
        "context", _context, "show how full the context window is, with what, and what a compaction would drop"
    )
    add_id(context, default=NEWEST)
    context.add_argument(
        "--window", type=int, metavar="TOKENS", help="the size of the window (default: max_context_tokens of the run)"
    )
    context.add_argument("--json", action="store_true", help="print one JSON object")


def _context(store: SessionStore, args: argparse.Namespace) -> int:
    if args.window is not None and args.window < 1:
        raise OptionsError(f"--window {args.window} is not a number of tokens: give the model's window, such as 200000")
    contents = session_window(store, find_session(store, args.id), args.window)
    Screen(sys.stdout).tell(args.json, vars(contents), contents.lines())
    return OK
