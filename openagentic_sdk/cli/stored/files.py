"""`sessions rewind` and `sessions diff --files`: undo turns with their file changes, and show these."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict

from ...errors import SessionError, ToolError
from ...events import FilesRestored
from ...ground.files import digest_file, read_snapshot
from ...ground.text import on_one_line
from ...ground.words import plural
from ...parts.masking import environment_redactor, mask_value
from ...parts.record.lifecycle import rewind_point, rewind_session
from ...parts.record.undo import ChangedFile, RestorePlan, file_changes, plan_restore, restore_files
from ...sessions.base import SessionStore
from ..actions import ActionList, add_list_flag
from ..exits import FAILED, OK
from ..output.diffs import shown_diff
from ..output.questions import is_agreed
from ..output.terminal import Screen
from .stores import add_id, find_session

MAX_SHOWN_BYTES = 1 << 20


def add_actions(actions: ActionList) -> None:
    """Add `rewind` to the command line."""
    rewind = actions.add("rewind", _rewind, "undo the newest turns, and with --files also their changes to files")
    rewind.epilog = (
        "Changes by Write and Edit can be undone, and changes by Bash under --bash-effects commit; other calls that may "
        "have changed files are listed."
    )
    add_id(rewind)
    place = rewind.add_mutually_exclusive_group()
    place.add_argument("--turns", type=int, metavar="N", help="the number of prompts to undo (default: 1)")
    place.add_argument("--to-seq", type=int, metavar="N", help="go back to event N instead")
    rewind.add_argument("--files", action="store_true", help="also restore files to their state at that point")
    rewind.add_argument("--only-files", action="store_true", help="restore files and keep the conversation")
    rewind.add_argument(
        "--conflicts",
        choices=("refuse", "skip", "overwrite"),
        default="refuse",
        help="what to do with files that something else has changed since (default: %(default)s, which restores nothing)",
    )
    rewind.add_argument("--dry-run", action="store_true", help="show what would be done to files, and change nothing")
    add_list_flag(rewind, "--add-dir", metavar="DIR", help="another folder that belonged to the workspace")
    rewind.add_argument("--yes", action="store_true", help="restore files without asking")
    rewind.add_argument("--json", action="store_true", help="print one JSON object")


def _rewind(store: SessionStore, args: argparse.Namespace) -> int:
    session_id = find_session(store, args.id)
    turns = 1 if args.turns is None and args.to_seq is None else args.turns
    to_seq = rewind_point(store, session_id, to_seq=args.to_seq, turns=turns)
    screen = Screen(sys.stdout)
    if not (args.files or args.only_files or args.dry_run):
        event = rewind_session(store, session_id, to_seq=to_seq)
        data = {"session_id": session_id, "to_seq": to_seq, "seq": event.seq}
        screen.tell(args.json, data, [f"event {event.seq} undoes everything after event {to_seq}"])
        return OK
    roots = [os.path.abspath(os.path.expanduser(folder)) for folder in args.add_dir]
    plan = plan_restore(store, session_id, to_seq=to_seq, conflicts=args.conflicts, roots=roots)
    refused = [file for file in plan.files if file.action == "refuse"]
    is_stopped = bool(refused) and args.conflicts == "refuse"
    if args.json:
        done = not (args.dry_run or is_stopped)
        if done:
            _do(store, session_id, args, to_seq, roots)
        screen.line(json.dumps({"session_id": session_id, "done": done, **asdict(plan)}))
        return FAILED if is_stopped else OK
    screen.lines(plan_lines(plan))
    if args.dry_run:
        return FAILED if is_stopped else OK
    if is_stopped:
        screen.line(
            "nothing was changed: --conflicts skip leaves those files unchanged, --conflicts overwrite replaces them"
        )
        return FAILED
    is_change = any(file.action in ("write", "delete") for file in plan.files)
    if is_change and not is_agreed("restore these files?", args):
        screen.line("nothing was changed")
        return FAILED
    screen.lines(_do(store, session_id, args, to_seq, roots))
    return OK


def _do(store: SessionStore, session_id: str, args: argparse.Namespace, to_seq: int, roots: Sequence[str]) -> list[str]:
    if args.only_files:
        restored = restore_files(store, session_id, to_seq=to_seq, conflicts=args.conflicts, roots=roots)
        return restored_lines(restored)
    event = rewind_session(store, session_id, to_seq=to_seq, files=True, conflicts=args.conflicts, roots=roots)
    restored = newest_restore(store, session_id, to_seq)
    return [f"event {event.seq} undoes everything after event {to_seq}", *restored_lines(restored)]


def newest_restore(store: SessionStore, session_id: str, to_seq: int) -> FilesRestored:
    """The outcome of the newest restore, to the state at event `to_seq`. Raises `SessionError` if none exists."""
    events = store.iter_events(session_id, after_seq=to_seq)
    restores = [event for event in events if isinstance(event, FilesRestored) and event.to_seq == to_seq]
    if not restores:
        raise SessionError(
            f"session {session_id!r} does not record that files were restored to event {to_seq}: look at its events"
        )
    return restores[-1]


def restored_lines(restored: FilesRestored) -> list[str]:
    """The outcome of a restore, for people: the number of restored files, and each file that was not restored."""
    failures = [f"NOT put back: {on_one_line(path)} ({on_one_line(str(why))})" for path, why in restored.failed.items()]
    files = f"{plural(len(restored.paths), 'file')} {'was' if len(restored.paths) == 1 else 'were'} restored"
    return [f"{files} to the state at event {restored.to_seq}", *failures]


def plan_lines(plan: RestorePlan) -> list[str]:
    """The plan of a restore, for people: a line for each file, and the calls whose effects are unknown."""
    verbs = {
        "write": "put back",
        "delete": "remove",
        "keep": "leave: already in that state",
        "refuse": "CANNOT put back",
    }
    lines = [
        f"{verbs[file.action]}: {on_one_line(file.path)}" + (f" ({on_one_line(file.reason)})" if file.reason else "")
        for file in plan.files
    ]
    if plan.uncovered:
        calls = "; ".join(on_one_line(f"{use.name} {json.dumps(use.input)}", 80) for use in plan.uncovered[:10])
        more = f" and {len(plan.uncovered) - 10} more" if len(plan.uncovered) > 10 else ""
        lines.append(f"not covered, the changes by these calls remain: {calls}{more}")
    return lines or ["no file was changed since then"]


def show_file_changes(store: SessionStore, session_id: str, *, as_json: bool, screen: Screen) -> int:
    """Print the session's file changes as diffs; exit code 1 if there are any."""
    changes = file_changes(store, session_id)
    files = [file for _, file in sorted(changes.files.items()) if file.before != file.after]
    rows = [{"path": file.path, "before": file.before, "after": file.after} for file in files]
    calls = [{"seq": use.seq, "tool_use_id": use.tool_use_id, "name": use.name} for use in changes.uncovered]
    lines = [] if as_json else [line for file in files for line in _file_diff(store, file, screen)]
    if changes.uncovered or not files:
        lines += plan_lines(RestorePlan((), changes.uncovered))
    screen.tell(as_json, {"session_id": session_id, "files": rows, "uncovered": calls}, lines)
    return FAILED if files else OK


def _file_diff(store: SessionStore, file: ChangedFile, screen: Screen) -> list[str]:
    what = "created" if file.before is None else "deleted" if file.after is None else "changed"
    title = f"{what}: {on_one_line(file.path)}"
    before, after = (_text(store, file, digest) for digest in (file.before, file.after))
    if before is None or after is None:
        return [f"{title} (its text cannot be shown: it was not kept, is too big, or has changed since the session)"]
    mask = environment_redactor()
    return [title, *shown_diff(mask_value(before, mask), mask_value(after, mask), screen)]


def _text(store: SessionStore, file: ChangedFile, digest: str | None) -> str | None:
    """The text of the file in a state: from the disk if unchanged, otherwise from the kept copy, otherwise None."""
    if digest is None:
        return ""
    try:
        if digest_file(file.path) == digest:
            snapshot = read_snapshot(file.path, MAX_SHOWN_BYTES)
            return None if snapshot is None else snapshot.data.decode("utf-8", "replace")
    except (ToolError, OSError):
        pass  # the file can no longer be read, but its kept text may be
    try:
        data = store.read_blob(file.session_id, digest)
    except SessionError:
        return None
    return data.decode("utf-8", "replace") if len(data) <= MAX_SHOWN_BYTES else None
