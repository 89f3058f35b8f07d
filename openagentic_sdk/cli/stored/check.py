"""`sessions verify` and `sessions salvage`: find problems in a session, and save its intact part."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ...errors import OpenAgentSdkError
from ...ground.text import on_one_line
from ...ground.words import plural
from ...parts.record.erase import has_unfinished_erasure
from ...parts.record.folds.audit import find_mismatches
from ...parts.record.verify_log import salvage, subagent_sessions, verify_session
from ...sessions.base import SessionStore
from ...sessions.store import FileSessionStore
from ..actions import ActionList
from ..exits import FAILED, OK
from ..output.terminal import Screen
from .record import add_trust_flags, verify_signed
from .stores import NEWEST, add_id, find_session, store_flag

SubagentMetadata = Mapping[str, Mapping[str, Mapping[str, Any]]] | None


def add_actions(actions: ActionList) -> None:
    """Add `verify` and `salvage` to the command line."""
    verify = actions.add(
        "verify", verify_sessions, "check a session's log, blobs and requests; exit code 1 if something is wrong"
    )
    add_verify_flags(verify)
    saving = actions.add("salvage", _salvage, "create a new session from the intact part of a damaged one")
    add_id(saving)
    saving.add_argument(
        "--keep-behind",
        action="store_true",
        help="also keep intact events after the damage, as records outside the conversation",
    )


def add_verify_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `verify`."""
    add_id(parser, default=NEWEST)
    parser.add_argument("--all", action="store_true", help="check every session of the store")
    add_trust_flags(parser)


def verify_sessions(store: SessionStore, args: argparse.Namespace) -> int:
    """Check the sessions in the arguments, and print the findings; exit code 1 unless all are intact."""
    if args.signed:
        return verify_signed(store, args)
    screen = Screen(sys.stdout)
    lost_ids = store.list_lost() if isinstance(store, FileSessionStore) and (args.all or args.id != NEWEST) else []
    one = [] if args.all else [args.id if args.id in lost_ids else find_session(store, args.id)]
    names = one or [*store.list_sessions(), *lost_ids]
    subagents = subagent_sessions(store) if args.all and isinstance(store, FileSessionStore) else None
    finish = f"`openagentic-sdk sessions erase --finish{store_flag(args)}` completes it"
    verdicts = [_verdict(store, name, screen, subagents, finish, as_json=args.json) for name in names]
    if args.all and not args.json:
        unfinished = verdicts.count(_UNFINISHED)
        more = f", {unfinished} partly erased" if unfinished else ""
        screen.line(f"{plural(len(names), 'session')}, {verdicts.count(_DAMAGED)} damaged{more}")
    return OK if all(verdict == _INTACT for verdict in verdicts) else FAILED


_INTACT, _DAMAGED, _UNFINISHED = "intact", "damaged", "partly erased"


def _verdict(
    store: SessionStore,
    session_id: str,
    screen: Screen,
    subagents: SubagentMetadata,
    finish: str,
    *,
    as_json: bool,
) -> str:
    """Check one session, print the findings, and return the verdict; `finish` explains how to complete an erasure."""
    try:
        good, findings = _check(store, session_id, subagents)
    except OpenAgentSdkError as error:
        good, findings = False, [str(error)]
    verdict = _INTACT if good else _DAMAGED
    with suppress(OpenAgentSdkError):  # a damaged log may not be readable up to there
        if has_unfinished_erasure(store.iter_events(session_id)):
            verdict = _UNFINISHED if good else _DAMAGED
            findings = [*findings, f"an erasure was begun and not finished: {finish}"]
    shown = screen.styled(verdict, "green" if verdict == _INTACT else "red")
    lines = [f"{on_one_line(session_id)}: {shown}", *(f"  {on_one_line(finding)}" for finding in findings)]
    screen.tell(as_json, {"session_id": session_id, "ok": verdict == _INTACT, "findings": findings}, lines)
    return verdict


def _check(store: SessionStore, session_id: str, subagents: SubagentMetadata) -> tuple[bool, list[str]]:
    report = verify_session(store, session_id, subagents=subagents)
    findings = [*map(str, report.problems), *report.notes]
    if not report.ok:
        return False, findings
    good, more = _check_requests(store, session_id)
    return good, [*findings, *more, *_say_foreign(report.foreign)]


def _say_foreign(seqs: Sequence[int]) -> list[str]:
    if not seqs:
        return []
    numbers = ", ".join(map(str, seqs[:20])) + (" ..." if len(seqs) > 20 else "")
    them = "it" if len(seqs) == 1 else "them"
    return [
        f"{plural(len(seqs), 'event')} would allow something, and this installation did not write {them} or the log was "
        f"changed: {numbers}; each is treated as history only, and what it allowed is asked about again"
    ]


def _check_requests(store: SessionStore, session_id: str) -> tuple[bool, list[str]]:
    """Check the request digests in the log against the rebuilt requests; return whether all match, and the mismatches."""
    wrong = [
        f"event {request.seq}: the request of step {request.step} is not the one rebuilt from the log before it "
        f"(recorded {request.recorded_sha256[:12]}, rebuilt {request.rebuilt_sha256[:12]})"
        for request in find_mismatches(store.iter_events(session_id))
    ]
    return not wrong, wrong


def _salvage(store: SessionStore, args: argparse.Namespace) -> int:
    session_id = find_session(store, args.id)
    saved = salvage(store, session_id, keep_behind=args.keep_behind)
    screen = Screen(sys.stdout)
    screen.line(f"saved {plural(saved.events, 'event')} in the new session {saved.session_id}")
    if isinstance(store, FileSessionStore):
        screen.line(
            f"  not part of its conversation: {plural(saved.dropped_bytes, 'byte')} of the old log, which is unchanged"
        )
    if saved.report.behind:
        advice = f"{saved.kept_behind} of them are kept as records" if args.keep_behind else "--keep-behind keeps them"
        screen.line(f"  {plural(saved.report.behind, 'intact event')} after the damage: {advice}")
    screen.lines(f"  {on_one_line(str(problem))}" for problem in saved.report.problems)
    return OK
