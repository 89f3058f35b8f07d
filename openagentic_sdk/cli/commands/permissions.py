"""`openagentic-sdk permissions ...`: the effect of other rules on recorded calls, and suggested rules."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from ...errors import InvalidEventError, OptionsError, SessionError
from ...events import PermissionDecision, SessionForked
from ...ground.text import on_one_line, printable
from ...ground.words import plural
from ...kernel.gate import Objection
from ...parts.labels.rules import LabelRule, read_label_rules
from ...parts.labels.settings_rules import label_rules_of_settings
from ...parts.masking import environment_redactor, mask_value
from ...parts.project.settings import Settings, read_settings_file
from ...permissions.hindsight.calls import Backtest, ChangedVerdict, RecordedCall, backtest, recorded_calls
from ...permissions.hindsight.suggest import suggest
from ...permissions.layers import SettingsRules, rules_of_settings
from ...sessions.authority import Authority
from ...sessions.base import SessionStore
from ...sessions.folds.view import SessionView
from ...sessions.seal import KEY_FILE_NAME, Seal
from ..actions import ActionList, run_over_store
from ..exits import FAILED, OK
from ..keep_rule import keep_in_project
from ..output.questions import agrees
from ..output.terminal import Screen
from ..stored.stores import ID_HELP, add_store_flag, find_session, moment

_MAX_SHOWN_CHARS = 120
# The inputs that identify the subject of a call; the first of them that a call has is shown.
_TELLING = ("command", "file_path", "url", "agent", "name")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "permissions", description="Evaluate recorded calls under other rules, and suggest useful rules."
    )
    actions = ActionList(parser, add_store_flag)
    test = actions.add(
        "backtest",
        _backtest,
        "evaluate every recorded call again under other rules; exit code 1 if a decision would differ",
    )
    test.add_argument("--settings", metavar="FILE", help="the settings.json with the rules to try")
    test.add_argument(
        "--labels",
        metavar="RULES",
        help="the label rules to try: a preset such as guard, or several presets and rules separated by commas",
    )
    add_range(test)
    test.add_argument("--json", action="store_true", help="print one JSON object")
    advice = actions.add(
        "suggest",
        _suggest,
        "suggest allow rules for questions that people always answered with yes, and show what else each would allow",
    )
    add_range(advice)
    advice.add_argument(
        "--settings", metavar="FILE", help="the current rules (default: those of each session's own log)"
    )
    advice.add_argument(
        "--add", action="store_true", help="ask for each rule whether to add it to the project's settings"
    )
    advice.add_argument("--json", action="store_true", help="print one JSON object")


def add_range(parser: argparse.ArgumentParser) -> None:
    """Add the arguments `[SESSION...] [--since WHEN]`."""
    parser.add_argument(
        "sessions", nargs="*", metavar="SESSION", help=f"{ID_HELP} (default: all, those of subagents too)"
    )
    parser.add_argument(
        "--since", metavar="WHEN", type=moment, help="only later events: 2026-11-01, 2026-11-01T12:00, 36h, 7d"
    )


def run(args: argparse.Namespace) -> int:
    return run_over_store(args)


def stored_calls(
    store: SessionStore,
    sessions: Sequence[str],
    since: float | None,
    unreadable: list[str],
    foreign: list[str] | None = None,
    label_rules: Sequence[LabelRule] | None = None,
) -> Iterator[RecordedCall]:
    """Yield the recorded calls of these sessions, or of all sessions if none is named, from the epoch time `since` on.

    Sessions that cannot be read are added to `unreadable`, with the error.

    With a list `foreign`, exclude calls whose decision this installation did not sign, and add their sessions to it.
    `label_rules`, if given, replace the label rules that were in force.
    """
    ids = {find_session(store, text) for text in sessions}
    for row in store.list_session_summaries(include_children=True):
        if (ids and row.id not in ids) or (since is not None and row.error is None and row.updated < since):
            continue
        try:
            after = 0
            if row.parent is not None and not row.is_child:  # a fork begins with what its parent did
                forks = (event for event in store.iter_events(row.id) if isinstance(event, SessionForked))
                after = max((event.seq or 0 for event in forks), default=0)
            ours = None if foreign is None else _signed_here(store, row.id)
            objections = None if label_rules is None else _objections(store, row.id, label_rules)
            for call in recorded_calls(row.id, store.iter_events(row.id), after_seq=after):
                if objections is not None:
                    call = replace(call, objection=objections.get(call.tool_use_id))
                if ours is not None and call.seq not in ours and call.decision is not None:
                    if foreign is not None and row.id not in foreign[-1:]:
                        foreign.append(row.id)
                    continue
                if since is None or (call.ts is not None and call.ts >= since):
                    yield call
        except (SessionError, InvalidEventError) as error:
            unreadable.append(f"{row.id}: {error}")


def _objections(store: SessionStore, session_id: str, rules: Sequence[LabelRule]) -> Mapping[str, Objection | None]:
    """The objection of label rules to each call of a session, by call id; None for a call without one."""
    # Late: it imports the folds and tools of a run, which only label rules need.
    from ...parts.labels.hindsight import RecordedSession

    def session(session_id: str, starters: Sequence[SessionView]) -> RecordedSession:
        return RecordedSession(store.iter_events(session_id), Authority(session_id, Seal()), starters)

    views: list[SessionView] = []
    links = [session_id]
    while (parent := _starter_of(store, links[-1])) is not None and parent not in links:
        links.append(parent)
    for started, starter in pairwise(links):
        views.append(session(starter, ()).read_until(started))
    return session(session_id, views).objections(rules)


def _starter_of(store: SessionStore, session_id: str) -> str | None:
    """The session that started this subagent session; None for any other session, and if the store has no such session."""
    metadata = store.read_metadata(session_id)["metadata"]
    parent = metadata.get("parent_session_id") if metadata.get("parent_tool_use_id") else None
    return parent if isinstance(parent, str) and store.session_exists(parent) else None


def _signed_here(store: SessionStore, session_id: str) -> set[int]:
    """The `seq` of each permission decision in a log that this installation wrote; others do not count as answers."""
    authority, decisions = Authority(session_id, Seal()), []
    for event in store.iter_events(session_id):
        authority.apply(event)
        if isinstance(event, PermissionDecision):
            decisions.append(event)
    return {event.seq or 0 for event in decisions if authority.is_ours(event)}


def _suggest(store: SessionStore, args: argparse.Namespace) -> int:
    rules = None
    if args.settings is not None:
        rules, _ = settings_rules(read_settings_file(str(Path(args.settings).expanduser().absolute())))
    unreadable: list[str] = []
    foreign: list[str] = []
    results = suggest(stored_calls(store, args.sessions, args.since, unreadable, foreign), rules)
    notes = [f"session {line}" for line in unreadable]
    if foreign:
        notes.append(
            f"answers in {plural(len(foreign), 'session')} were not recorded by this installation and are ignored: if a "
            f"program of yours with another key recorded them, set ${KEY_FILE_NAME} to its key file (key_file)"
        )
    screen = Screen(sys.stdout)
    if args.json:
        suggestions = [
            {
                "rule": each.rule,
                "project_dir": each.project_dir,
                "saves": len(each.saved),
                "saved": [call_json(call) for call in each.saved],
                "also_runs": [call_json(call) for call in each.also_runs],
            }
            for each in results
        ]
        screen.line(json.dumps({"suggestions": suggestions, "notes": notes}))
        return OK
    for each in results:
        saved, where = plural(len(each.saved), "question"), on_one_line(each.project_dir)
        screen.line(f"{on_one_line(each.rule)}: saves {saved} in {where}")
        for call in each.also_runs:
            event = f"{on_one_line(call.session_id)} event {call.seq}"
            screen.line(f"  would also have allowed: {call_text(call)} ({event})")
        if args.add and agrees(f"keep {printable(each.rule)} in {printable(each.project_dir)}?"):
            screen.line(keep_in_project(each.project_dir, each.rule))
    if not results:
        screen.line("no rule would have avoided a question that people always answered with yes")
    for note in notes:
        print(f"note: {printable(note)}", file=sys.stderr)
    return OK


def _backtest(store: SessionStore, args: argparse.Namespace) -> int:
    if args.settings is None and args.labels is None:
        raise OptionsError("permissions backtest tries other rules: name them with --settings, --labels or both")
    rules, notes = None, list[str]()
    labels = (
        None if args.labels is None else read_label_rules([text.strip() for text in args.labels.split(",")], "--labels")
    )
    if args.settings is not None:
        settings = read_settings_file(str(Path(args.settings).expanduser().absolute()))
        rules, notes = settings_rules(settings)
        if settings.default_mode is not None:
            notes.append("the file's defaultMode is ignored: each call is evaluated in the mode of its run")
        more, about_labels = label_rules_of_settings(settings, is_trusted=True)
        notes += [note.located for note in about_labels]
        labels = (*(labels or ()), *more) if more else labels
    unreadable: list[str] = []
    calls = stored_calls(store, args.sessions, args.since, unreadable, label_rules=labels)
    result = backtest(calls, rules)
    notes += [f"session {line}" for line in unreadable]
    changes = {
        key: [
            {
                **call_json(each.call),
                "now": each.now,
                "reason": environment_redactor()(each.reason),
                "rule": each.rule,
                "source": each.source,
            }
            for each in group
        ]
        for key, _, group in _groups(result)
    }
    data = {"judged": result.judged, **changes, "not_judged": dict(result.left_out), "notes": notes}
    Screen(sys.stdout).tell(args.json, data, backtest_lines(result))
    for note in () if args.json else notes:
        print(f"note: {printable(note)}", file=sys.stderr)
    return OK if result.is_same and not unreadable else FAILED


def settings_rules(settings: Settings) -> tuple[Any, list[str]]:
    """Create a function that returns the rules of these settings for a project's folder; also return notes on invalid
    rules.
    """

    @cache
    def rules_for(project_dir: str) -> SettingsRules:
        return rules_of_settings(settings, project_dir)

    diagnostics = (*settings.diagnostics, *rules_for("/").diagnostics)
    return rules_for, [note.located for note in diagnostics]


def backtest_lines(result: Backtest) -> list[str]:
    """A backtest in sentences: what would newly run, newly need a question, or newly be refused."""
    lines = []
    for _, title, changes in _groups(result):
        if changes:
            lines.append(f"{title}: {len(changes)}")
        for change in changes:
            call, why = change.call, on_one_line(environment_redactor()(change.reason), 200)
            where = f"{on_one_line(call.session_id)} event {call.seq}"
            lines.append(f"  {where}, {call_text(call)} ({call.was} before): {why}")
    same = result.judged - sum(len(changes) for _, _, changes in _groups(result))
    lines.append(f"{result.judged} calls evaluated again, {same} unchanged")
    lines += [f"{count} not judged: {on_one_line(reason)}" for reason, count in result.left_out.items()]
    return lines


def _groups(result: Backtest) -> Iterable[tuple[str, str, Sequence[ChangedVerdict]]]:
    """The calls with a different verdict, grouped, each group with its name in JSON and in a sentence."""
    return (
        ("newly_run", "would newly run", result.newly_run),
        ("newly_asked", "would newly be asked", result.newly_asked),
        ("newly_refused", "would newly be refused", result.newly_refused),
    )


def call_text(call: RecordedCall) -> str:
    """A call as one line, with the secrets of this environment masked."""
    input = mask_value(call.input or {}, environment_redactor())
    about = next((input[key] for key in _TELLING if isinstance(input.get(key), str)), None)
    return on_one_line(f"{call.tool}: {json.dumps(input) if about is None else about}", _MAX_SHOWN_CHARS)


def call_json(call: RecordedCall) -> dict[str, Any]:
    """A call as JSON, with the secrets of this environment masked."""
    return {
        "session_id": call.session_id,
        "seq": call.seq,
        "ts": call.ts,
        "tool_use_id": call.tool_use_id,
        "tool": call.tool,
        "input": mask_value(call.input, environment_redactor()),
        "was": call.was,
    }
