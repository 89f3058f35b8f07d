"""`openagentic-sdk replay ID`: replay a session from its log without a network, comparing every request."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ...events import Event
from ...ground.text import printable
from ...runs.replay import replay_events
from ...testing.emit import emit_test
from ...tools.defaults import default_tools
from ..actions import add_list_flag
from ..exits import FAILED, OK
from ..loop import run_async
from ..output.terminal import Screen
from ..stored.stores import NEWEST, add_id, add_store_flag, find_session, open_session_store


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("replay", description="Replay a session from its log; exit code 1 if it differs.")
    add_id(parser, default=NEWEST)
    parser.add_argument("--tolerant", action="store_true", help="continue after a request that differs, and show all")
    parser.add_argument("--live-tools", action="store_true", help="actually run the tools that only read")
    emit = parser.add_argument_group("a test from the session")
    emit.add_argument("--emit-test", metavar="FILE", help="write FILE.py, a unittest that replays it with your agent")
    emit.add_argument("--agent", metavar="MODULE:NAME", help="your Agent or options, or a function that returns them")
    emit.add_argument("--app-dir", metavar="DIR", help="the folder of MODULE (default: the session's folder)")
    add_list_flag(emit, "--live", metavar="TOOL", help="actually run this tool in the test")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_store_flag(parser)


def run(args: argparse.Namespace) -> int:
    store = open_session_store(args.store)
    session_id = find_session(store, args.id)
    events = store.read_events(session_id)
    if args.emit_test:
        return _emit(events, session_id, args)
    live = default_tools() if args.live_tools else ()
    report = run_async(replay_events(events, strict=not args.tolerant, live_tools=live))
    screen, lines = Screen(sys.stdout), []
    for each in report.differences:
        lines += [f"step {each.step}, event {each.seq}: the request is not the recorded one", printable(each.diff)]
    if report.error is not None:
        lines.append(screen.styled(printable(report.error), "red"))
    verdict = "the same" if report.ok else "NOT the same"
    lines.append(f"{report.compared} of {report.steps} requests were repeated: {verdict}")
    differences = [{"step": each.step, "seq": each.seq, "diff": each.diff} for each in report.differences]
    figures = {"ok": report.ok, "steps": report.steps, "compared": report.compared}
    screen.tell(args.json, {**figures, "differences": differences, "error": report.error}, lines)
    return OK if report.ok else FAILED


def _emit(events: Sequence[Event], session_id: str, args: argparse.Namespace) -> int:
    """Write the test and run it once, to report immediately if it already fails."""
    test, log = emit_test(
        events, args.emit_test, session_id=session_id, agent=args.agent, app_dir=args.app_dir, live_tools=args.live
    )
    screen = Screen(sys.stdout)
    screen.line(f"wrote {test} and {log}; to run it: python3 -m unittest {test}")
    # The test finds the package that runs here.
    here = str(Path(__file__).resolve().parents[3])
    done = subprocess.run(
        [sys.executable, str(test)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        screen.line(printable(done.stderr))
        why = "it already fails: the agent has changed, or the test cannot set it up"
        screen.line(screen.styled(f"{why}; --agent and --app-dir name your agent and its folder", "red"))
    return OK if done.returncode == 0 else FAILED
