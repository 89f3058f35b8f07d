"""`sessions erase`, `hold`, `retain` and `purge`: erase and retain data, while the record proves the rest."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime

from ...errors import (
    ConcurrencyError,
    LogCorruptError,
    OpenAgentSdkError,
    OptionsError,
    SessionError,
    SessionLockedError,
    StorageError,
)
from ...ground.disk import read_named
from ...ground.system import reason_of, user_name
from ...ground.text import on_one_line
from ...ground.words import plural
from ...parts.record.erase import Erasure, erase, finish_each, has_unfinished_erasure, unfinished_erasures
from ...parts.record.keep import hold_session, purge_sessions, retain_session
from ...parts.record.lifecycle import TOMBSTONES
from ...sessions.base import SessionStore
from ..actions import ActionList, add_list_flag, add_yes_flag
from ..exits import FAILED, INTERRUPTED, OK
from ..output.questions import is_agreed
from ..output.terminal import Screen
from .stores import ID_HELP, Progress, add_id, find_session, span_s, store_flag

_MAX_TEXT_BYTES = 16 << 20
_SPAN_HELP = "for instance 12h, 90d, 6m, 10y"


def add_actions(actions: ActionList) -> None:
    """Add `erase`, `hold`, `retain` and `purge` to the command line."""
    erasing = actions.add(
        "erase", _erase, "erase fields from a session and its related sessions, and keep the proof of the rest"
    )
    erasing.epilog = "Text is read from a file, so that it does not appear in a shell's history."
    erasing.add_argument("id", nargs="?", metavar="ID", help=f"{ID_HELP}; with --finish, all sessions without it")
    add_list_flag(erasing, "--field", metavar="SEQ:/PATH", help="a field of an event, as a JSON pointer")
    add_list_flag(
        erasing, "--text-file", metavar="FILE", help="every field that contains this text (-: standard input)"
    )
    erasing.add_argument(
        "--only", action="store_true", help="do not search for the contents of the fields anywhere else"
    )
    erasing.add_argument("--everywhere", action="store_true", help="search every session of the store")
    add_list_flag(erasing, "--archive", metavar="FILE", help="rewrite this archive without the erased values")
    erasing.add_argument("--finish", action="store_true", help="complete erasures that were stopped")
    _add_common(erasing)
    add_yes_flag(erasing)
    holding = actions.add("hold", _hold, "place a hold on a session: nothing can be deleted, purged or erased")
    add_id(holding)
    holding.add_argument("--release", action="store_true", help="end the hold")
    _add_common(holding, dry_run=False)
    retain = actions.add("retain", _retain, "retain a session for at least a given time")
    add_id(retain)
    until = retain.add_mutually_exclusive_group(required=True)
    until.add_argument("--for", dest="span", metavar="TIME", help=f"from now on: {_SPAN_HELP}")
    until.add_argument("--until", metavar="DATE", help="as YYYY-MM-DD")
    until.add_argument("--release", action="store_true", help="end the retention time")
    _add_common(retain, dry_run=False)
    purging = actions.add("purge", _purge, "delete old sessions, leaving tombstones")
    purging.add_argument("--older-than", metavar="TIME", required=True, help=f"since the last event: {_SPAN_HELP}")
    _add_common(purging)
    add_yes_flag(purging)


def _add_common(parser: argparse.ArgumentParser, *, dry_run: bool = True) -> None:
    parser.add_argument("--reason", default="", metavar="TEXT", help="the reason, for the log")
    if dry_run:
        parser.add_argument("--dry-run", action="store_true", help="show what would be done, and change nothing")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _erase(store: SessionStore, args: argparse.Namespace) -> int:
    if args.finish:
        return _finish(store, args)
    if args.id is None:
        raise OptionsError("name the session to erase from; only --finish works without one")
    session_id = find_session(store, args.id)
    screen = Screen(sys.stdout)
    if not args.dry_run and not is_agreed(f"erase from session {on_one_line(session_id)} permanently?", args):
        return FAILED
    places, texts = [_field(text) for text in args.field], [_text(path) for path in args.text_file]
    try:
        done = erase(
            store,
            session_id,
            places,
            texts=texts,
            spread=not args.only,
            everywhere=args.everywhere,
            archives=args.archive,
            reason=args.reason,
            by=user_name(),
            dry_run=args.dry_run,
        )
    except KeyboardInterrupt:
        if not args.dry_run:
            print(f"stopped: {_remaining(store, session_id)}", file=sys.stderr)
        return INTERRUPTED
    except LogCorruptError as error:
        name = on_one_line(str(error.session_id))
        text = (
            f"{error}; nothing can be erased from a damaged log, so once it has been salvaged, delete it with "
            f"`openagentic-sdk sessions delete {name}{store_flag(args)}`, and repeat the command for the new session"
        )
        raise SessionError(text, session_id=error.session_id) from error
    except (StorageError, SessionLockedError, ConcurrencyError) as error:
        if args.dry_run:
            raise
        raise SessionError(f"{error}; {_remaining(store, session_id)}", session_id=session_id) from error
    screen.tell(args.json, asdict(done), _erasure_lines(done, is_dry_run=args.dry_run))
    return OK


def _erasure_lines(done: Erasure, *, is_dry_run: bool) -> list[str]:
    """What was erased, or in a dry run would be, for people."""
    verb, was = ("would erase", "would be") if is_dry_run else ("erased", "was")
    lines = []
    for each in done.sessions:
        name = on_one_line(each.session_id)
        lines.append(f"{name}: {verb} {plural(len(each.places), 'field')} and {plural(each.blobs, 'blob')}")
        lines += [f"  event {seq}: {on_one_line(pointer)}" for seq, pointer in each.places]
        lines += [
            f"  event {seq}: NOT erased from {where}, which is needed to read the session" for seq, where in each.left
        ]
    lines += [f"{on_one_line(name)}: {was} notified" for name in done.told]
    lines += [f"{on_one_line(path)}: {was} rewritten" for path in done.archives]
    return [*lines, *(f"note: {on_one_line(notice, 300)}" for notice in done.notices)]


def _remaining(store: SessionStore, session_id: str) -> str:
    """Describe how far a stopped erasure got, and how to complete it."""
    with suppress(OpenAgentSdkError):
        if not has_unfinished_erasure(store.iter_events(session_id)):  # no log is rewritten before this one records it
            return "no event is erased yet: the same command begins again"
    return "the erasure is incomplete: the same command completes it"


def _finish(store: SessionStore, args: argparse.Namespace) -> int:
    session_id = None if args.id is None else find_session(store, args.id)
    finished = finish_each(store, unfinished_erasures(store, session_id))
    lines = [f"finished erasure {each.erasure_id} in {plural(len(each.sessions), 'session')}" for each in finished]
    partial = [each for each in finished if not each.is_recorded and store.session_exists(each.source_session_id)]
    for each in partial:
        source = on_one_line(each.source_session_id)
        command = f"openagentic-sdk sessions erase {source}{store_flag(args)}"
        lines.append(
            f"erasure {each.erasure_id} was stopped before session {source} recorded it: for the rest, repeat the request "
            f"(`{command}` with the same fields and texts)"
        )
    data = {"session_id": session_id, "finished": [each.erasure_id for each in finished]}
    Screen(sys.stdout).tell(
        args.json, {**data, "to_repeat": [each.source_session_id for each in partial]}, lines or ["nothing to finish"]
    )
    return FAILED if partial else OK


def _field(text: str) -> tuple[int, str]:
    seq, _, pointer = text.partition(":")
    if not seq.isdecimal() or not pointer.startswith("/"):
        raise OptionsError(
            f"{text!r} is not a field: give the event's number and a JSON pointer, as in 12:/output/stdout"
        )
    return int(seq), pointer


def _text(path: str) -> str:
    try:
        data = sys.stdin.buffer.read(_MAX_TEXT_BYTES + 1) if path == "-" else read_named(path, _MAX_TEXT_BYTES)
        if len(data) > _MAX_TEXT_BYTES:
            raise ValueError(f"it is larger than {_MAX_TEXT_BYTES} bytes")
    except (OSError, ValueError) as error:
        raise OptionsError(f"the text in {path} cannot be read: {reason_of(error)}") from None
    text = data.decode("utf-8", "surrogateescape").strip()
    if not text:
        raise OptionsError(f"{path} contains no text to erase")
    return text


def _hold(store: SessionStore, args: argparse.Namespace) -> int:
    session_id = find_session(store, args.id)
    hold_session(store, session_id, release=args.release, reason=args.reason, by=user_name())
    message = "is released" if args.release else "is held: nothing deletes, purges or erases from it"
    data = {"session_id": session_id, "held": not args.release}
    Screen(sys.stdout).tell(args.json, data, [f"{on_one_line(session_id)} {message}"])
    return OK


def _retain(store: SessionStore, args: argparse.Namespace) -> int:
    session_id, until = find_session(store, args.id), 0.0
    if args.span:
        until = time.time() + _span_s(args.span)
    elif args.until:
        try:
            until = datetime.strptime(args.until, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()
        except ValueError:
            raise OptionsError(f"{args.until!r} is not a date: give it as YYYY-MM-DD") from None
    retain_session(store, session_id, until, reason=args.reason, by=user_name())
    message = f"is kept until {datetime.fromtimestamp(until, UTC):%Y-%m-%d}" if until else "is no longer retained"
    data = {"session_id": session_id, "until": until}
    Screen(sys.stdout).tell(args.json, data, [f"{on_one_line(session_id)} {message}"])
    return OK


def _span_s(text: str) -> float:
    span = span_s(text)
    if span is None:
        raise OptionsError(f"{text!r} is not a time: give a number and a unit, {_SPAN_HELP}")
    return span


def _purge(store: SessionStore, args: argparse.Namespace) -> int:
    older_than_s = _span_s(args.older_than)
    if not args.dry_run and not is_agreed(f"delete every session older than {args.older_than} permanently?", args):
        return FAILED
    try:
        rows = purge_sessions(
            store,
            older_than_s,
            reason=args.reason,
            by=user_name(),
            dry_run=args.dry_run,
            progress=Progress("purging {whole:,} sessions: {done:,} done"),
        )
    except KeyboardInterrupt:
        if not args.dry_run:
            shown = f"openagentic-sdk sessions show {TOMBSTONES}{store_flag(args)}"
            print(f"stopped: `{shown}` lists what was purged; the same command purges the rest", file=sys.stderr)
        return INTERRUPTED
    verb = "would purge" if args.dry_run else "purged"
    lines = []
    for row in rows:
        became = f"stays, {on_one_line(row.why, 300)}" if row.why else f"{verb} {row.events} events"
        lines.append(f"{on_one_line(row.session_id)}: {became}")
    data = {"purged": [asdict(row) for row in rows], "dry_run": args.dry_run}
    Screen(sys.stdout).tell(args.json, data, lines or ["no sessions are that old"])
    return FAILED if any(row.why for row in rows) else OK
