"""The permission decision: the verdict of a policy on a call. Deciding asks nobody and changes nothing.

The order: deny rules, ask rules, mode, allow rules; a call that none of them decides is asked about. A mode that forbids
precedes the ask rules, a mode that permits follows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..errors import PermissionRuleError
from ..tools.shell.protected import Protected
from .command_allow import permits_command
from .command_deny import could_be_anything, first_forbidding_path, forbidding_command_rule
from .facts import Facts
from .guess import MAX_COMPARED_CHARS
from .hold.files import closed_files
from .hold.git import prints_tracked_content, runs_settings
from .hold.programs import BUILT_IN, enforced_by_words, unheld_rules
from .hold.reach import MAX_ENTRIES, Met, first_met, reach_of
from .hold.steps import TooManySteps, counted_steps
from .hold.words import opaque_command
from .offers import advice
from .paths import TOO_MANY_PATHS, LinkFollower
from .policy import LOOSE_MODES, READING_MODES, Policy, Verdict, allow_path_rule, permits_access, together
from .rules import EDIT_TOOLS, READ_TOOLS, Rule, RuleBook, parse_rule
from .shell import CommandLine
from .subject import NETWORK_TOOLS, SESSION_TOOLS, Subject, Workspace, describe


def judge(facts: Facts) -> Verdict:
    """The combined verdict of all layers, of a hook's request and of mode `dontAsk`, which denies instead of asking."""
    wish = facts.context.hook_permission
    if wish == "deny":
        return Verdict("deny", facts.context.hook_reason or "a hook denied this call", "hook")
    verdict = judge_rules(facts)
    if wish == "ask" and verdict.outcome == "allow":
        verdict = replace(verdict, outcome="ask", reason="a hook requires this call to be approved")
    if verdict.outcome != "ask":
        return verdict
    # After the rules: a hook's `allow` must not answer a deny or ask rule, as it did in Claude Code before 2.1.77.
    if wish == "allow" and not verdict.firm:
        return replace(verdict, outcome="allow", reason="a hook allowed this call", category="hook")
    # After the hook's `allow`, which answers the question instead of a person.
    if any(layer.mode == "dontAsk" for layer in facts.layers):
        reason = f"mode dontAsk asks nobody, and {verdict.reason}. {advice(facts.subject)}"
        return replace(verdict, outcome="deny", reason=reason)
    return verdict


def judge_rules(facts: Facts) -> Verdict:
    """The combined verdict of all layers and of a part's objection: deny if any of them denies, else ask if any asks."""
    with counted_steps():
        verdicts = [decide(layer, facts.subject) for layer in facts.layers]
    if (objection := facts.objection) is not None and objection.outcome != "watch":
        verdicts.append(Verdict(objection.outcome, objection.reason, "objection", firm=True))
    return together(verdicts)


def judge_by_rule(facts: Facts) -> Verdict:
    """Like `judge_rules`, for a call that nobody asked for: a mode looser than `default` counts as `default`, so that only
    allow rules permit more than reading.
    """
    strict = [replace(layer, mode="default") if layer.mode in LOOSE_MODES else layer for layer in facts.layers]
    verdict = judge_rules(replace(facts, layers=tuple(strict)))
    if verdict.outcome != "allow":
        return verdict
    # Report the rule, even if the mode would also allow the call.
    verdicts = [decide(replace(layer, mode="prompt"), facts.subject) for layer in strict]
    return next((one for one in verdicts if one.outcome == "allow" and one.rule), verdict)


# The modes in which a command that no rule decides is tried on a copy.
_TRYING_MODES: frozenset[str] = frozenset({"default", "acceptEdits", "plan"})


def is_left_open(facts: Facts) -> bool:
    """Whether only the lack of a rule keeps a call from running: no rule, hook or protected path requires a question.

    In mode `plan`, the verdicts of `default` count, and a call that they allow is open, too.
    """
    if facts.mode not in _TRYING_MODES or facts.context.hook_permission is not None:
        return False
    layers = [replace(layer, mode="default") if layer.mode == "plan" else layer for layer in facts.layers]
    if any(layer.mode not in _TRYING_MODES and layer.mode != "bypass" for layer in layers):
        return False
    verdicts = [decide(layer, facts.subject) for layer in layers]
    # Edits that the mode allows by the command's words alone are also tried, if possible.
    waits = [verdict for verdict in verdicts if verdict.outcome != "allow" or verdict.category == "edits"]
    is_open = all(
        each.category == "edits" or (each.outcome == "ask" and each.category == "unsettled" and not each.firm)
        for each in waits
    )
    return is_open and (bool(waits) or facts.mode == "plan")


def decide(policy: Policy, subject: Subject) -> Verdict:
    """The verdict of one policy on a call, by the first step that reaches one."""
    if subject.command is None:
        return _forbidden(policy, subject) or _ask_rule_verdict(policy, subject) or _permitted(policy, subject)
    if len(subject.command) > MAX_COMPARED_CHARS and (policy.deny or policy.ask):
        reason = (
            f"the command has {len(subject.command)} characters, more than the {MAX_COMPARED_CHARS} that are compared with "
            "deny and ask rules: write long text with Write"
        )
        return _unread(policy, subject, reason)
    try:
        with counted_steps():
            return _decide_command(policy, subject)
    except TooManySteps:
        return _unread(policy, subject, "evaluating the command takes too many steps: split it into shorter commands")


def _unread(policy: Policy, subject: Subject, reason: str) -> Verdict:
    """The verdict on a command whose words are not compared with rules: a question with this reason, unless a rule about
    every use of the tool, or the mode, forbids the command.
    """
    return _forbidden(policy, replace(subject, command=None, line=None)) or Verdict(
        "ask", reason, "ask_rule", firm=True
    )


def _decide_command(policy: Policy, subject: Subject) -> Verdict:
    # Everything that denies comes first: an ask that came before would let a person approve what a rule forbids.
    return (
        _forbidden(policy, subject)
        or _deny_verdict_on_reach(policy, subject)
        or _ask_rule_verdict(policy, subject)
        or _doubted(policy, subject)
        or _ask_verdict_on_reach(policy, subject)
        or _permitted_plainly(policy, subject)
    )


def _forbidden(policy: Policy, subject: Subject) -> Verdict | None:
    """The denial of a call by a deny rule, by a list of everything that may be used, or by a mode; None if none applies."""
    rule = forbidding_rule(policy.deny, subject)
    if rule is not None:
        return Verdict("deny", f"the deny rule {rule.text} ({rule.source}) forbids it", "deny_rule", rule)
    # A list of everything that may be used forbids the rest: it is checked with the deny rules, not with the allow rules.
    if policy.only is not None and _allow_rule(policy.only, policy, subject) is None:
        names = ", ".join(rule.text for rule in policy.only.rules) or "none"
        return Verdict("deny", f"{subject.tool} is not among the allowed tools ({names})", "tools")
    if policy.mode == "deny":
        return Verdict("deny", "mode deny allows no call", "mode")
    if policy.mode == "plan" and not _changes_nothing(policy, subject):
        return Verdict("deny", "mode plan only reads: describe the change instead of making it", "mode")
    return None


def _deny_verdict_on_reach(policy: Policy, subject: Subject) -> Verdict | None:
    """The verdict on a command that may reach a denied file although no word names it, and no mount hides it."""
    # In a sandbox, mounts hide the denied files.
    if not policy.deny.paths or subject.workspace.confined:
        return None
    hit = first_met(policy.deny, subject, reach_of(subject))
    return None if hit is None else _verdict_of(hit, "deny")


def _ask_rule_verdict(policy: Policy, subject: Subject) -> Verdict | None:
    rule = forbidding_rule(policy.ask, subject)
    if rule is None:
        return None
    return Verdict("ask", f"the ask rule {rule.text} ({rule.source}) covers it", "ask_rule", rule, firm=True)


def _ask_verdict_on_reach(policy: Policy, subject: Subject) -> Verdict | None:
    """The verdict on a command that may reach a file of an ask rule although no word names it."""
    hit = first_met(policy.ask, subject, reach_of(subject)) if policy.ask.paths else None
    return None if hit is None else _verdict_of(hit, "ask")


def _permitted_plainly(policy: Policy, subject: Subject) -> Verdict:
    """The verdict of mode and allow rules on a command; a question if its words could hide something that is forbidden."""
    if policy.mode == "bypass":
        verdict, named = _BYPASSED, frozenset[int]()
    else:
        judged = permits_command(policy, subject)
        if not judged.allowed:
            return Verdict("ask", judged.reason, "unsettled")
        category = "edits" if judged.is_edit else "allow_rule" if judged.rule else "mode"
        verdict, named = Verdict("allow", judged.reason, category, judged.rule), judged.named
    opaque = opaque_command(policy, subject, named)
    return verdict if opaque is None else Verdict("ask", opaque, "ask_rule", firm=True)


_BYPASSED = Verdict("allow", "mode bypass allows what no rule denies", "mode")


def _verdict_of(hit: Met, effect: str) -> Verdict:
    """The verdict on a forbidden path that a command may reach: that of the rule if a word may name the path, a question if
    the path is in a folder that the command processes, or if the search was cut off.
    """
    if hit.rule is None:
        reason = f"more than {MAX_ENTRIES} files would have to be searched, and rules forbid some: name the files"
        return Verdict("ask", reason, "ask_rule", firm=True)
    about = f"the {effect} rule {hit.rule.text} ({hit.rule.source})"
    if hit.is_tree:
        reason = f"the command processes a folder with all its contents, and {about} covers {hit.path}"
        return Verdict("ask", reason, "ask_rule", hit.rule, firm=True)
    reason = f"a word that only the shell can expand could be {hit.path}, which {about} covers: write it out"
    if effect == "deny":
        return Verdict("deny", reason, "deny_rule", hit.rule)
    return Verdict("ask", reason, "ask_rule", hit.rule, firm=True)


def _doubted(policy: Policy, subject: Subject) -> Verdict | None:
    """The question about a command for which neither mounts nor its words can enforce the deny and ask rules."""
    doubt = _doubt(policy, subject)
    return None if doubt is None else Verdict("ask", doubt, "ask_rule", firm=True)


def _doubt(policy: Policy, subject: Subject) -> str | None:
    line, confined = subject.line, subject.workspace.confined
    paths = (*policy.deny.paths, *policy.ask.paths)
    people = [rule for rule in paths if rule.source != BUILT_IN and rule.tool not in EDIT_TOOLS]
    if people and prints_tracked_content(subject, people):
        return "git could print stored content of files that rules forbid: name files that are not forbidden, or use --stat"
    if not confined and policy.mode != "bypass" and (reason := runs_settings(subject)) is not None:
        return reason
    problem = closed_files(people, subject.workspace.bases).problem if confined and people else None
    if problem is not None:
        return problem
    if not isinstance(line, CommandLine):
        rule = next(unheld_rules((*policy.deny.rules, *policy.ask.rules), confined=confined), None)
        if rule is not None:
            return f"what the command does cannot be determined from its text, and {enforced_by_words(rule, confined)}"
    if (policy.deny.about_commands or policy.ask.about_commands) and could_be_anything(subject):
        return "only the shell can determine the name of a command that it runs, and rules forbid some commands"
    if paths and any(access.places.problem == TOO_MANY_PATHS for access in subject.possible_accesses):
        return f"{TOO_MANY_PATHS}, and rules forbid some"
    return None


def _changes_nothing(policy: Policy, subject: Subject) -> bool:
    """Whether the call changes nothing outside the session, wherever it reads."""
    if subject.tool == "Bash":
        return permits_command(policy, subject, reads_only=True).allowed
    if subject.tool in SESSION_TOOLS or subject.tool in NETWORK_TOOLS or subject.tool in READ_TOOLS:
        return True
    return subject.effect == "read" and not subject.tool.startswith("mcp__") and subject.tool not in EDIT_TOOLS


def forbidding_rule(book: RuleBook, subject: Subject) -> Rule | None:
    """A deny or ask rule of the book that covers, or could cover, any part of the call; None if no rule does."""
    if not book:
        return None
    rule = _tool_rule(book, subject)
    if rule is None and book.parameters:
        rule = book.for_parameter((subject.tool, *subject.rule_names), subject.input)
    if rule is None and book.names and subject.name is not None:
        rule = book.for_name(subject.tool, (subject.name, *subject.other_names))
    if rule is None and book.domains and subject.tool == "WebFetch":
        # If the address does not reveal its host, it could be any: the first rule represents all of them.
        rule = book.domains[0] if subject.host is None else book.for_host(subject.host)
    if rule is None and book.paths:
        rule = first_forbidding_path(book, subject, subject.accesses)
    if rule is None and subject.command is not None:
        rule = forbidding_command_rule(book, subject)
    return rule


def _tool_rule(book: RuleBook, subject: Subject) -> Rule | None:
    """The first rule about every use of the tool, under any of its names."""
    for name in (subject.tool, *subject.rule_names):
        rule = book.for_tool(name)
        if rule is not None:
            return rule
    return None


def _permitted(policy: Policy, subject: Subject) -> Verdict:
    """The verdict of mode and allow rules on a call that is not a command."""
    if policy.mode == "bypass":
        return _BYPASSED
    if subject.problem is not None:
        return Verdict("ask", subject.problem, "path")
    tool = subject.tool
    if subject.accesses:
        verdicts = [permits_access(policy, access, subject) for access in subject.accesses]
        refused = next((verdict for verdict in verdicts if verdict.outcome != "allow"), None)
        return refused or next((verdict for verdict in reversed(verdicts) if verdict.rule), verdicts[0])
    reads = policy.mode in READING_MODES
    # Asking whether the model may ask would put two questions to the person.
    if tool == "AskUserQuestion":
        if policy.mode != "dontAsk":
            return Verdict("allow", "a question to the person is its own permission", "mode")
    elif reads and tool in SESSION_TOOLS:
        return Verdict("allow", f"mode {policy.mode} allows {tool}, which acts on the session only", "mode")
    elif reads and subject.effect == "read" and tool not in NETWORK_TOOLS and not tool.startswith("mcp__"):
        return Verdict("allow", f"mode {policy.mode} allows {tool}, which only reads", "mode")
    rule = _allow_rule(policy.allow, policy, subject)
    if rule is not None:
        return Verdict("allow", f"the allow rule {rule.text} ({rule.source}) covers it", "allow_rule", rule)
    return Verdict("ask", f"mode {policy.mode} requires approval for {tool}", "unsettled")


def _allow_rule(book: RuleBook, policy: Policy, subject: Subject) -> Rule | None:
    """A rule of the list that covers this call, of whatever kind; None if no rule does."""
    rule = _tool_rule(book, subject)
    if rule is None and subject.command is not None:
        # In mode `prompt`, which permits nothing by itself: only a rule of the list can be the answer.
        return permits_command(Policy("prompt", book, policy.ask, policy.deny), subject).rule
    if rule is None and subject.accesses:
        hits = [allow_path_rule(book, access, subject, inside=False) for access in subject.accesses]
        return hits[0] if all(hits) else None
    if rule is None and subject.name is not None:
        rule = book.for_name(subject.tool, (subject.name, *subject.other_names))
    if rule is None and subject.host is not None and subject.tool == "WebFetch":
        rule = book.for_host(subject.host)
    return rule


def fits_rule(text: str, tool: str, input: Mapping[str, Any], cwd: str) -> bool:
    """Whether a call matches, or could match, the rule in the `if` of a hook. An invalid rule matches every call, and a
    command that is too long or too complex to compare matches every rule: nothing may bypass a hook that inspects calls.
    """
    try:
        rule = parse_rule(text, "ask", "hook")
    except PermissionRuleError:
        return True
    follower = LinkFollower()
    says_more = rule.kind == "wildcard" or len(rule.words) > 1
    command = str(input.get("command"))
    if tool == "Bash" and (len(command) > MAX_COMPARED_CHARS or (says_more and not {"$", "`"}.isdisjoint(command))):
        return True  # only the shell can determine what such a command does
    workspace = Workspace(cwd, cwd, (cwd,), Protected, follower.follow, lambda pattern, folder: (), follower.kind)
    try:
        with counted_steps():
            return forbidding_rule(RuleBook((rule,)), describe(tool, input, None, workspace)) is not None
    except TooManySteps:
        return True
