"""`openagentic-sdk memory ...`: the agents' notes for later sessions, their origin, and how to delete them."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from ...assemble import open_memory
from ...errors import OpenAgentSdkError, OptionsError, ToolError
from ...events import Event, ToolUse, UserMessage
from ...ground.text import on_one_line, printable
from ...options import OpenAgenticOptions
from ...parts.masking import environment_redactor, mask_value
from ...sessions.base import SessionStore
from ...sessions.core import TENANT_KEY
from ...sessions.folds.summary import calendar_time
from ...tools.memory.store import ROOT, TRUST, Entry, MemoryFolder, Write, checked_text, split_path
from ..actions import ActionList
from ..exits import FAILED, OK
from ..output.terminal import Screen
from ..stored.stores import add_store_flag, open_session_store
from .sessions import age

_MAX_PROMPT_CHARS = 200


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "memory", description="List, explain, check and delete the notes that agents keep for later sessions."
    )
    actions = ActionList(parser, _add_common)
    actions.add("list", _list, "list the notes of this project and of the user, and which session wrote each")
    why = actions.add("why", _why, "show a note, the calls that wrote it, and their prompts and sources")
    why.add_argument("path", metavar="PATH", help=f"a note: {ROOT}/project/..., {ROOT}/user/...")
    forget = actions.add("forget", _forget, "delete notes (logs of sessions keep their content)")
    forget.add_argument("path", metavar="PATH", nargs="+", help="a note, or a folder with its contents")
    check = actions.add(
        "check", _check, "check the notes against the sessions that wrote them; exit code 1 if one does not match"
    )
    check.add_argument("path", metavar="PATH", nargs="?", help="only this note (default: all)")
    check.add_argument(
        "--trust",
        action="store_true",
        help="confirm that you have read this note: every session may see it from now on",
    )


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cwd", metavar="DIR", help="the project that this folder belongs to (default: this one)")
    parser.add_argument("--json", action="store_true", help="print one JSON object per note")
    parser.add_argument("--tenant", metavar="NAME", default="", help="the notes of this tenant of a server")
    add_store_flag(parser)


def run(args: argparse.Namespace) -> int:
    try:
        code: int = args.run_action(args, Screen(sys.stdout))
        return code
    except ToolError as error:  # an invalid path, in the words that models get
        raise OptionsError(str(error)) from error


def _folders(args: argparse.Namespace) -> dict[str, MemoryFolder]:
    return open_memory(OpenAgenticOptions(cwd=args.cwd, session_metadata={TENANT_KEY: args.tenant})).memory.folders


def _entries(args: argparse.Namespace, path: str | None = None) -> list[Entry]:
    """All notes, or those at and below a path. Raises `OptionsError` for a path without notes."""
    entries = [entry for folder in _folders(args).values() for entry in folder.entries().values()]
    if path is None:
        return entries
    place = "/".join(part for part in (ROOT, *split_path(path)) if part)
    matches = [entry for entry in entries if entry.path == place or entry.path.startswith(f"{place}/")]
    if not matches:
        raise OptionsError(f"the note {place} does not exist: `openagentic-sdk memory list` lists the notes")
    return matches


def _list(args: argparse.Namespace, screen: Screen) -> int:
    entries = _entries(args)
    for entry in entries:
        last = entry.writes[-1] if entry.writes else None
        wrote = f"{_by(last)}, {age(last.at)}" if last is not None else "its writer is unknown"
        mark = screen.styled(f"  not shown unasked: {entry.doubt}", "yellow") if entry.doubt else ""
        screen.tell(args.json, _as_json(entry), [f"{entry.path}  {entry.size:,} bytes  {wrote}{mark}"])
    if not entries and not args.json:
        screen.line("no notes")
    return OK


def _by(write: Write) -> str:
    if write.command == TRUST:
        return "confirmed by a person"
    return f"{on_one_line(write.command)} by session {on_one_line(write.session_id)}, event {write.seq}"


def _as_json(entry: Entry) -> dict[str, Any]:
    fields = {
        "path": entry.path,
        "bytes": entry.size,
        "sources": [*entry.sources],
        "doubt": entry.doubt,
        "writes": [{**vars(write), "sources": [*write.sources]} for write in entry.writes],
        "text": entry.text,
    }
    masked: dict[str, Any] = mask_value(fields, environment_redactor())
    return masked


def _why(args: argparse.Namespace, screen: Screen) -> int:
    with closing(open_session_store(args.store)) as store:
        for entry in _entries(args, args.path):
            doubt = f"not shown to sessions unasked: {entry.doubt}"
            lines = [f"{entry.path}: {doubt if entry.doubt else 'shown to every session that keeps notes'}"]
            for write in entry.writes:
                lines.append(
                    f"  {time.strftime('%Y-%m-%d %H:%M', time.localtime(calendar_time(write.at)))} {_by(write)}"
                )
                prompts = [
                    e.text
                    for e in _events(store, write)
                    if isinstance(e, UserMessage) and e.origin == "user" and (e.seq or 0) < write.seq
                ]
                if prompts:
                    lines.append(f"    asked: {on_one_line(prompts[-1], _MAX_PROMPT_CHARS)}")
                lines += [f"    had read {source}" for source in write.sources]
            lines += [f"  | {line}" for line in mask_value(printable(entry.text), environment_redactor()).split("\n")]
            screen.tell(args.json, _as_json(entry), lines)
    return OK


def _events(store: SessionStore, write: Write) -> Sequence[Event]:
    """The events of the session that wrote a note; empty if the session no longer exists or is damaged."""
    try:
        return store.read_events(write.session_id) if store.session_exists(write.session_id) else ()
    except OpenAgentSdkError:
        return ()  # damaged: `sessions verify` describes the damage


def _forget(args: argparse.Namespace, screen: Screen) -> int:
    folders = _folders(args)
    for path in args.path:
        removed_entries = _entries(args, path)
        scope, name = split_path(path)
        for folder in folders.values() if not scope else (folders[scope],):
            with folder.changing() as entries:
                for other in [*entries]:
                    if not name or other == name or other.startswith(f"{name}/"):
                        del entries[other]
        for entry in removed_entries:
            screen.tell(args.json, _as_json(entry), [f"forgot {entry.path}"])
    return OK


def _check(args: argparse.Namespace, screen: Screen) -> int:
    if args.trust:
        scope, name = split_path(args.path or ROOT)
        if not name:
            raise OptionsError("--trust confirms one note that you have read: name its path")
        folder = _folders(args)[scope]
        with folder.changing() as entries:
            if name not in entries:
                raise OptionsError(
                    f"the note {args.path} does not exist: `openagentic-sdk memory list` lists the notes"
                )
            text = checked_text(folder.entry(name, entries[name]).text)
            folder.put(entries, name, text, Write(TRUST, "", 0, round(time.time(), 3)))
        screen.line(f"{ROOT}/{scope}/{name} is shown to every session that keeps notes from now on")
        return OK
    wrong = 0
    with closing(open_session_store(args.store)) as store:
        for entry in _entries(args, args.path):
            faults, notes = _faults(store, entry)
            wrong += bool(faults)
            verdict = screen.styled("wrong", "red") if faults else screen.styled("fits", "green")
            lines = [f"{entry.path}: {verdict}", *(f"  {finding}" for finding in (*faults, *notes))]
            screen.tell(args.json, {**_as_json(entry), "faults": faults, "notes": notes}, lines)
    return FAILED if wrong else OK


def _faults(store: SessionStore, entry: Entry) -> tuple[list[str], list[str]]:
    """The problems of a note, and other facts that a person should know."""
    faults: list[str] = [] if entry.is_ours else [entry.doubt]
    notes = [f"not shown unasked: {entry.doubt}"] if entry.is_ours and entry.doubt else []
    try:
        checked_text(entry.text)
    except ToolError as error:
        faults.append(str(error))
    for write in entry.writes:
        if write.command == TRUST:
            continue
        events = _events(store, write)
        call = next((event for event in events if event.seq == write.seq), None)
        if not events:
            notes.append(f"session {on_one_line(write.session_id)} is not in this store, so its prompt is unknown")
        elif not isinstance(call, ToolUse) or call.name != "memory" or call.input.get("command") != write.command:
            faults.append(f"event {write.seq} of session {on_one_line(write.session_id)} is not a call that wrote it")
    return faults, notes
