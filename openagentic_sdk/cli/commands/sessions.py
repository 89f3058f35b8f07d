"""`openagentic-sdk sessions ...`: list, show and search stored sessions; the other actions are in `cli/stored`."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from functools import partial
from pathlib import Path

from ...errors import InvalidEventError, SessionError
from ...ground.text import on_one_line
from ...sessions.base import MOST_SCANNED, SessionStore
from ...sessions.folds.summary import SessionSummary, summary_matches, summary_to_dict
from ..actions import ActionList, run_over_store
from ..exits import FAILED, OK
from ..flags import positive
from ..output.render import EventPrinter
from ..output.terminal import Screen
from ..output.turn import JsonPrinter
from ..stored import bisect, change, check, compare, files, keeping, record
from ..stored.stores import NEWEST, Progress, add_id, add_store_flag, find_session


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("sessions", description="List, read, check, change and repair sessions.")
    actions = ActionList(parser, add_store_flag)
    listing = actions.add("list", _list, "list the sessions, most recently written first")
    listing.add_argument(
        "query", nargs="*", metavar="WORD", help="only those with these words in title, prompt, tag or id"
    )
    listing.add_argument("--cwd", metavar="DIR", help="only those of this folder")
    listing.add_argument(
        "--limit", type=positive, default=20, metavar="N", help="at most N rows (default: %(default)s)"
    )
    listing.add_argument("--children", action="store_true", help="include those of subagents")
    listing.add_argument("--evals", action="store_true", help="include those created by evals")
    listing.add_argument("--json", action="store_true", help="print one JSON object per session")
    show = actions.add("show", _show, "print one session as a transcript")
    add_id(show, default=NEWEST)
    show.add_argument("--json", action="store_true", help="print the events as JSON lines")
    search = actions.add("search", _search, "search all sessions for words")
    search.add_argument("words", nargs="+", metavar="WORD", help="words that an event must contain, all of them")
    search.add_argument("--limit", type=positive, default=20, metavar="N", help="at most N hits (default: %(default)s)")
    compare.add_actions(actions)
    check.add_actions(actions)
    bisect.add_actions(actions)
    change.add_actions(actions)
    files.add_actions(actions)
    record.add_actions(actions)
    keeping.add_actions(actions)


def run(args: argparse.Namespace) -> int:
    return run_over_store(args)


def _list(store: SessionStore, args: argparse.Namespace) -> int:
    cwd = str(Path(args.cwd).expanduser().absolute()) if args.cwd else None
    matches = partial(summary_matches, cwd=cwd, include_children=args.children)

    def keep(row: SessionSummary) -> bool:
        return matches(row) and (args.evals or not _is_of_eval(store, row.id))

    query, scanned = " ".join(args.query), 0
    progress = Progress("looking through the sessions: {done:,} done")
    page = store.page_sessions(limit=args.limit, include_children=args.children, keep=keep, query=query)
    rows = list(page.rows)
    while page.next is not None and len(rows) < args.limit:
        scanned += MOST_SCANNED
        progress(scanned)
        room = args.limit - len(rows)
        page = store.page_sessions(limit=room, after=page.next, include_children=args.children, keep=keep, query=query)
        rows += page.rows
    screen = Screen(sys.stdout)
    if args.json:
        for row in rows:
            screen.line(json.dumps({name: value for name, value in summary_to_dict(row).items() if name != "spent"}))
        return OK
    if rows and screen.is_terminal:
        screen.line(screen.styled(_COLUMNS.format("session", "age", "steps", "cost", "state") + "title", "dim"))
    for row in sorted(rows, key=lambda row: row.state != "waiting"):
        screen.line(_row(row, screen))
    if not rows:
        screen.line("no sessions")
    return OK


def _is_of_eval(store: SessionStore, session_id: str) -> bool:
    try:
        return "eval" in store.read_metadata(session_id)["metadata"]
    except (SessionError, InvalidEventError):
        return False  # its row in the list describes the problem


_COLUMNS = "{:<9} {:>7} {:>5} {:>9} {:<8} "
_STATES = {"waiting": "yellow", "failed": "red", "suspended": "yellow", "stopped": "red", "running": "green"}


def _row(row: SessionSummary, screen: Screen) -> str:
    """One row that fits the terminal; without a terminal it begins with the full id, for other programs."""
    session_id = on_one_line(row.id)
    shown_id = session_id[:8] if screen.is_terminal and len(session_id) == 32 else session_id
    cost = "" if row.cost_usd is None else f"${row.cost_usd:.4f}"
    state = "" if row.state == "idle" else row.state
    cells = _COLUMNS.format(shown_id, age(row.updated), row.steps, cost, state)
    room = max(screen.width - len(cells) - 1, 20) if screen.is_terminal else 80
    cells = cells.replace(f" {state}", f" {screen.styled(state, _STATES.get(state, ''))}") if state else cells
    if row.error is not None:
        return cells + screen.styled(on_one_line(row.error, room), "red")
    return cells + on_one_line(row.label, room)


def age(updated: float) -> str:
    """The time since `updated`, in the largest fitting unit; empty for an unknown or future time."""
    passed = time.time() - updated
    if not updated or not math.isfinite(passed) or passed < -60:
        return ""
    for seconds_, unit in ((86_400 * 365, "y"), (86_400, "d"), (3_600, "h"), (60, "min")):
        if passed >= seconds_:
            return f"{int(passed // seconds_)} {unit}"
    return "now"


def _show(store: SessionStore, args: argparse.Namespace) -> int:
    printer = JsonPrinter() if args.json else EventPrinter(Screen(sys.stdout), transcript=True)
    for event in store.iter_events(find_session(store, args.id)):
        printer.show(event)
    return OK


def _search(store: SessionStore, args: argparse.Namespace) -> int:
    hits = store.search(" ".join(args.words), limit=args.limit)
    screen = Screen(sys.stdout)
    for hit in hits:
        screen.line(f"{on_one_line(hit.session_id)} {hit.seq:>5}  {hit.type:<17}  {on_one_line(hit.context)}")
    if not hits:
        screen.line("nothing found")
    return OK if hits else FAILED
