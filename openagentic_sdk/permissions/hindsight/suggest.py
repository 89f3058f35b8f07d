"""Find the allow rules that would have avoided most of the questions that people always answered with yes.

A rule is suggested only if it is evidently safe: the exact words of a command, or their beginning for programs that only
read or check their arguments; one file, or a folder inside the project; a host, a name, a tool. None is suggested for a
program that runs others, code or its arguments, for files outside the project, or for a call that a person refused. Each
rule is judged over all recorded calls, to show what else it would have permitted. No allow rule can avoid a question about a
call that deny or ask rules cover or that touches protected paths, so such calls lead to no suggestion.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from os.path import commonpath, dirname

from ...errors import OptionsError, PermissionRuleError
from ...ground.frozen import frozen
from ...ground.loose import as_list
from ...ground.patterns import regex
from ..offers import literal_pattern, offered_rules
from ..paths import anchor_of, is_inside, is_protected
from ..program_tables import (
    CHECKERS,
    FETCHERS,
    INTERACTIVE,
    INTERPRETERS,
    LAUNCHERS,
    NEVER_SUGGESTED,
    OPTIONS,
    OPTIONS_READ,
    READERS,
    SHELLS,
    STATE_BUILTINS,
    WRAPPERS,
)
from ..programs import hazard, program_of
from ..rules import EDIT_TOOLS, READ_TOOLS, SKILL_TOOLS, TASK_TOOLS
from ..shell import CommandLine, SimpleCommand, base_name, shell_word
from ..subject import Subject
from .calls import PolicyJudge, RecordedCall, RulesFor, call_context

MAX_SUGGESTIONS = 20
_MAX_CANDIDATES = 200
_MIN_FILES = 3
# Even verbatim, these run a script that the project's own file defines, as make does.
_SCRIPT_RUNNERS, _SCRIPTS = frozenset({"npm", "yarn", "pnpm"}), frozenset({"run"})
_RUNNERS = WRAPPERS | FETCHERS | STATE_BUILTINS | INTERACTIVE | SHELLS
_PLAIN_HOST = regex(r"(?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.)+[a-z]{2,}")
_LOCAL_HOSTS = (".local", ".internal", ".localhost", ".lan", ".home", ".corp", ".localdomain")


@frozen
class Suggestion:
    """An allow rule for the project `project_dir`. `saved` are approved calls that it would have permitted without a
    question; `also_runs` are the other recorded calls that it would have permitted.
    """

    rule: str
    project_dir: str
    saved: tuple[RecordedCall, ...]
    also_runs: tuple[RecordedCall, ...]


def suggest(calls: Iterable[RecordedCall], rules_for: RulesFor | None = None) -> list[Suggestion]:
    """Find the rules that avoid the most questions, at most `MAX_SUGGESTIONS`, best first; within a project, each counts
    only questions that no rule before it avoids. `rules_for` maps a project to its current rules; None uses those of each
    call's log. Pass only calls of this installation: other logs may come from anybody.
    """
    projects: dict[str, list[RecordedCall]] = {}
    for call in calls:
        projects.setdefault(str(call.policy.get("project_dir") or "/"), []).append(call)
    suggestions = [each for project_dir, own in projects.items() for each in _of_project(project_dir, own, rules_for)]
    return sorted(suggestions, key=lambda each: -len(each.saved))[:MAX_SUGGESTIONS]


def _of_project(project_dir: str, calls: Sequence[RecordedCall], rules_for: RulesFor | None) -> list[Suggestion]:
    judge = PolicyJudge(rules_for)
    open_ones = [call for call in calls if not call.is_settled and not call.by_rule and _outcome(judge, call) == "ask"]
    approved = [call for call in open_ones if _verdict(call) == "yes"]
    refused = [call for call in open_ones if _verdict(call) == "no"]
    candidates = _candidates(judge, approved, project_dir)
    suggestions: list[Suggestion] = []
    chosen_rules: list[str] = []
    remaining = {id(call): call for call in approved}
    saves: dict[str, list[RecordedCall]] = {}
    for rule in candidates:
        try:
            with_rule = PolicyJudge(rules_for, (rule,))
            if any(_outcome(with_rule, call) == "allow" for call in refused):
                continue
            saves[rule] = [call for call in approved if _outcome(with_rule, call) == "allow"]
        except PermissionRuleError:
            continue
    while len(suggestions) < MAX_SUGGESTIONS:
        gains = {
            rule: [call for call in saved if id(call) in remaining]
            for rule, saved in saves.items()
            if rule not in chosen_rules
        }
        # If two avoid the same number of questions, prefer the narrower: the rule without a wildcard, then the longer text.
        best = max(gains, key=lambda rule: (len(gains[rule]), "*" not in rule, len(rule)), default=None)
        if best is None or not gains[best]:
            return suggestions
        with_rule = PolicyJudge(rules_for, (best,))
        approved_ids = {id(call) for call in approved}
        others = [call for call in open_ones if id(call) not in approved_ids and _outcome(with_rule, call) == "allow"]
        suggestions.append(Suggestion(best, project_dir, tuple(gains[best]), tuple(others)))
        chosen_rules.append(best)
        for call in gains[best]:
            del remaining[id(call)]
    return suggestions


def _outcome(judge: PolicyJudge, call: RecordedCall) -> str:
    """The gate's verdict on a call, `firm` for a firm question; empty if it cannot judge the call, or no rule decides it."""
    try:
        verdict = judge.verdict(call)
    except OptionsError:
        return ""
    if verdict is None:
        return ""
    return "firm" if verdict.outcome == "ask" and verdict.firm else verdict.outcome


def _verdict(call: RecordedCall) -> str:
    """A person's answer, `yes` or `no`; empty if no person was asked. Approval of an edited input counts as `no`."""
    decision = call.decision
    if decision is None or decision.answered_by in (None, "hook", "callback"):
        return ""
    is_same = "asked_about_sha256" not in decision.details  # an edited input is not the one that was asked about
    return "yes" if decision.allowed and is_same else "no"


# --- candidates ----------------------------------------------------------------------------------------------------------


def _candidates(judge: PolicyJudge, approved: Sequence[RecordedCall], project_dir: str) -> list[str]:
    """The possible suggestions for these calls, most useful first, at most `_MAX_CANDIDATES`."""
    counts: Counter[str] = Counter()
    prefixes: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    folders: dict[tuple[str, str], set[str]] = {}
    for call in approved:
        subject = judge.gate(call.policy).subject(call.tool, call.input or {}, call_context(call))
        for rule in _exact_rules(subject, project_dir):
            counts[rule] += 1
        for command in subject.line.commands if isinstance(subject.line, CommandLine) else ():
            for prefix in _prefixes(command):
                prefixes.setdefault(prefix, set()).add(command.argv)
        for tool, path in _files(subject, project_dir):
            folders.setdefault((tool, dirname(path)), set()).add(path)
    for prefix, variants in prefixes.items():
        if len(variants) > 1:
            counts[f"Bash({' '.join(map(shell_word, prefix))}:*)"] += len(variants)
    for tool in ("Edit", "Read"):
        paths = [path for (kind, _), files in folders.items() if kind == tool for path in files]
        places = {folder: files for (kind, folder), files in folders.items() if kind == tool}
        if len(paths) >= _MIN_FILES and (together := commonpath(paths)) not in places:
            places[together] = set(paths)
        for folder, files in places.items():
            # Never the project itself: a folder rule is only useful for a folder below it.
            is_below = folder != project_dir and is_inside(folder, [project_dir])
            if len(files) >= _MIN_FILES and is_below and not _is_guarded(judge, approved, folder, project_dir):
                counts[f"{tool}({_in_project(folder, project_dir)}/**)"] += len(files)
    return [rule for rule, _ in counts.most_common(_MAX_CANDIDATES)]


def _is_guarded(judge: PolicyJudge, calls: Sequence[RecordedCall], folder: str, project_dir: str) -> bool:
    """Whether a protected path, or a deny or ask rule other than one for names at any depth, concerns a folder or something
    in it.
    """
    for gate, policy in {id(call.policy): (judge.gate(call.policy), call.policy) for call in calls}.values():
        anchors = [anchor_of(rule.pattern, project_dir, rule.root or project_dir) for rule in gate.forbidding_paths]
        guarded_paths = [*anchors, *as_list(policy.get("protected"))]
        if any(
            path is not None and (is_inside(str(path), [folder]) or is_inside(folder, [str(path)]))
            for path in guarded_paths
        ):
            return True
    return False


def _exact_rules(subject: Subject, project_dir: str) -> Iterable[str]:
    """Yield the safe rules that cover exactly this call: its commands word for word, its files, its host, name or tool."""
    tool = subject.tool
    if subject.problem is not None:
        return
    if subject.command is not None:
        for command in subject.line.commands if isinstance(subject.line, CommandLine) else ():
            if _may_be_named(command, subject, project_dir):
                yield f"Bash({' '.join(map(shell_word, command.argv))})"
    elif subject.accesses:
        for kind, path in _files(subject, project_dir):
            yield f"{kind}({_in_project(path, project_dir)})"
    elif tool == "WebFetch":
        host = subject.host or ""
        if _PLAIN_HOST.fullmatch(host) and not host.endswith(_LOCAL_HOSTS):
            yield f"WebFetch(domain:{host})"
    elif subject.name is not None:
        yield from offered_rules(subject)
    elif tool not in {"Bash", *READ_TOOLS, *EDIT_TOOLS, *SKILL_TOOLS, *TASK_TOOLS} and re.fullmatch(
        r"[A-Za-z]\w*", tool
    ):
        yield tool


def _is_runner(command: SimpleCommand) -> bool:
    """Whether a command runs another one, code, or something that its words do not show."""
    return base_name(command.argv[0]) in _RUNNERS or program_of(command.argv[0]) in WRAPPERS | SHELLS


def _may_be_named(command: SimpleCommand, subject: Subject, project_dir: str) -> bool:
    """Whether a rule that names this command word for word may be suggested."""
    argv = command.argv
    is_known = base_name(argv[0]) not in NEVER_SUGGESTED and not _is_runner(command)
    is_plain = not command.globs and not command.assignments and not command.open_assignments
    launching = LAUNCHERS.get(program_of(argv[0]), frozenset()) - (
        _SCRIPTS if argv[0] in _SCRIPT_RUNNERS else frozenset()
    )
    has_launcher = not launching.isdisjoint(argv[1:])
    if not is_known or not is_plain or has_launcher or argv[0] == "cd" or hazard(argv, len(argv)) is not None:
        return False
    if any("\n" in word or len(word) > 200 for word in argv):
        return False
    places = [access.places for access in subject.possible_accesses]
    return all(is_inside(name, [project_dir]) for each in places for name in (each.real, *each.others)) and not any(
        is_protected(each, subject.workspace.protected) for each in places
    )


def _prefixes(command: SimpleCommand) -> Iterable[tuple[str, ...]]:
    """Yield the prefixes of a command, in words, that a rule may allow with any words after them."""
    argv = command.argv
    if command.assignments or command.open_assignments or command.globs or "/" in argv[0]:
        return
    runs = _is_runner(command) or program_of(argv[0]) in INTERPRETERS
    # For a program with options that run or write something, suggest its exact arguments, never its name alone.
    is_plain = argv[0] in CHECKERS or (argv[0] in READERS and (argv[0] not in OPTIONS or argv[0] in OPTIONS_READ))
    if is_plain and not runs and argv[0] not in NEVER_SUGGESTED:
        yield argv[:1]
        if len(argv) > 2 and re.fullmatch(r"[a-z][a-z-]*", argv[1]):
            yield argv[:2]


def _files(subject: Subject, project_dir: str) -> Iterable[tuple[str, str]]:
    """Yield the files of a file tool's call that are inside the project under every name and not protected, each with the
    tool for its rule.
    """
    tool = "Edit" if subject.tool in EDIT_TOOLS else "Read"
    if subject.command is not None or (tool == "Read" and subject.tool not in READ_TOOLS):
        return
    for access in subject.accesses:
        places = access.places
        is_ours = all(is_inside(name, [project_dir]) and name != project_dir for name in places.all)
        if is_ours and not is_protected(places, subject.workspace.protected):
            yield tool, places.real


def _in_project(path: str, project_dir: str) -> str:
    """A path in the notation of the project's settings rules."""
    return literal_pattern(path.removeprefix(project_dir.rstrip("/")))
