"""`openagentic-sdk import ...`: import conversations of other programs into a store."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from pathlib import Path

from ...errors import OpenAgentSdkError, OptionsError, SessionExistsError
from ...ground.text import on_one_line
from ...ground.words import plural
from ...parts.record.importers import import_claude_transcript
from ..actions import ActionList
from ..exits import FAILED, OK
from ..output.terminal import Screen
from ..stored.stores import Progress, add_store_flag, open_session_store


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("import", description="Import conversations of other programs into a store.")
    about = "import transcripts of Claude Code and of their subagents into a store, with their ids"
    claude = ActionList(parser, add_store_flag).add("claude", run, about)
    claude.epilog = "Existing sessions are left unchanged, so an interrupted command can be repeated."
    claude.add_argument("path", metavar="PATH", help="a transcript (.jsonl), or a folder for all transcripts below it")


def run(args: argparse.Namespace) -> int:
    path = Path(args.path).expanduser()
    if not path.exists():
        raise OptionsError(f"{path} does not exist: name a transcript or a folder of them, such as ~/.claude/projects")
    # Transcripts in a folder `subagents` are imported with the session that they belong to.
    files = (
        [path] if path.is_file() else [file for file in sorted(path.rglob("*.jsonl")) if "subagents" not in file.parts]
    )
    screen, failed, count = Screen(sys.stdout), 0, 0
    with closing(open_session_store(args.store)) as store:
        for file in files:
            try:
                done = import_claude_transcript(store, file)
            except SessionExistsError:
                screen.line(f"{on_one_line(file.stem)}  exists already")
                continue
            except OpenAgentSdkError as error:
                failed += 1
                screen.line(f"{on_one_line(str(file))}: {on_one_line(str(error), 500)}")
                continue
            count += len(done)
            unreadable = (
                f", {done.unreadable} of its lines {'is' if done.unreadable == 1 else 'are'} damaged"
                if done.unreadable
                else ""
            )
            subagents = f", {len(done) - 1} of subagents" if len(done) > 1 else ""
            screen.line(f"{on_one_line(done[0])}  {store.last_seq(done[0])} events{subagents}{unreadable}")
        store.update_search(Progress())
    imported = f"{plural(count, 'session')} {'was' if count == 1 else 'were'} imported"
    screen.line(imported + (f", {plural(failed, 'transcript')} could not be" if failed else ""))
    return FAILED if failed else OK
