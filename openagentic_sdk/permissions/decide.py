"""The permission decision: a policy and a call in, a verdict out, and nothing else touched.

The order is the law: deny rules, ask rules, mode, allow rules; what none of them settles is asked. A mode that forbids
stands above an ask rule, a mode that permits below it.
"""

from __future__ import annotations

from dataclasses import replace

from .command_allow import permits_command
from .command_deny import could_be_anything, first_forbidding_path, forbidding_command_rule
from .facts import Facts
from .offers import advice
from .paths import TOO_MANY_PATHS
from .policy import READING_MODES, Policy, Verdict, allow_path_rule, permits_access, together
from .rules import EDIT_TOOLS, READ_TOOLS, Rule, RuleBook
from .subject import NETWORK_TOOLS, SESSION_TOOLS, Subject


def judge(facts: Facts) -> Verdict:
    """The verdict of all layers together, with what a hook wished for the call."""
    wish = facts.context.hook_permission
    if wish == "deny":
        return Verdict("deny", facts.context.hook_reason or "a hook denied this call", "hook")
    verdict = judge_rules(facts)
    if wish == "ask" and verdict.outcome == "allow":
        verdict = replace(verdict, outcome="ask", reason="a hook wants this call asked")
    if verdict.outcome != "ask":
        return verdict
    if wish == "allow" and not verdict.firm:
        return replace(verdict, outcome="allow", reason="a hook allowed this call", category="hook")
    if any(layer.mode == "dontAsk" for layer in facts.layers):
        reason = f"mode dontAsk asks nobody, and {verdict.reason}. {advice(facts.subject)}"
        return replace(verdict, outcome="deny", reason=reason)
    return verdict


def judge_rules(facts: Facts) -> Verdict:
    """The verdict of all layers together: what any denies is denied, what any asks is asked."""
    return together([decide(layer, facts.subject) for layer in facts.layers])


def judge_by_rule(facts: Facts) -> Verdict:
    """Like `judge_rules`, for a call that only an allow rule may let run: the verdict of the first layer that has one."""
    verdict = judge_rules(facts)
    if verdict.outcome != "allow":
        return verdict
    verdicts = [decide(replace(layer, mode="prompt"), facts.subject) for layer in facts.layers]
    return next((one for one in verdicts if one.outcome == "allow" and one.rule), verdicts[0])


def decide(policy: Policy, subject: Subject) -> Verdict:
    """Whether the call may run under this policy."""
    denied = _denied(policy, subject)
    if denied is not None:
        return denied
    asked = forbidding_rule(policy.ask, subject)
    if asked is not None:
        return Verdict("ask", f"the ask rule {asked.text} ({asked.source}) covers it", "ask_rule", asked, firm=True)
    doubt = _doubt(policy, subject) if subject.command is not None else None
    if doubt is not None:
        return Verdict("ask", doubt, "ask_rule", firm=True)
    if policy.mode == "bypass":
        return Verdict("allow", "mode bypass allows what no rule denies", "mode")
    if subject.problem is not None:
        return Verdict("ask", subject.problem, "path")
    return _permitted(policy, subject)


def _doubt(policy: Policy, subject: Subject) -> str | None:
    """Why it cannot be excluded that a rule which forbids covers this command."""
    if (policy.deny.commands or policy.ask.commands) and could_be_anything(subject):
        return "only the shell can say which command this runs, and rules forbid some"
    if (policy.deny.paths or policy.ask.paths) and any(
        access.places.problem == TOO_MANY_PATHS for access in subject.possible_accesses
    ):
        return f"{TOO_MANY_PATHS}, and rules forbid some"
    return None


def _denied(policy: Policy, subject: Subject) -> Verdict | None:
    rule = forbidding_rule(policy.deny, subject)
    if rule is not None:
        return Verdict("deny", f"the deny rule {rule.text} ({rule.source}) forbids it", "deny_rule", rule)
    if policy.only is not None and _allow_rule(policy.only, policy, subject) is None:
        names = ", ".join(rule.text for rule in policy.only.rules) or "none"
        return Verdict("deny", f"{subject.tool} is not among what may be used here ({names})", "tools")
    if policy.mode == "deny":
        return Verdict("deny", "mode deny allows no call", "mode")
    if policy.mode == "plan" and not _is_harmless(policy, subject):
        return Verdict("deny", "mode plan only reads: describe the change instead of making it", "mode")
    return None


def _is_harmless(policy: Policy, subject: Subject) -> bool:
    """Whether the call changes nothing outside of the session, wherever it reads."""
    if subject.tool == "Bash":
        return permits_command(policy, subject, reads_only=True).allowed
    if subject.tool in SESSION_TOOLS or subject.tool in NETWORK_TOOLS or subject.tool in READ_TOOLS:
        return True
    return subject.effect == "read" and not subject.tool.startswith("mcp__") and subject.tool not in EDIT_TOOLS


# --- rules that forbid ---------------------------------------------------------------------------------------------------


def forbidding_rule(book: RuleBook, subject: Subject) -> Rule | None:
    """The first deny or ask rule that covers the call in any of its parts."""
    if not book:
        return None
    rule = book.for_tool(subject.tool)
    if rule is None and book.names and subject.name is not None:
        rule = book.for_name(subject.tool, (subject.name, *subject.other_names))
    if rule is None and book.domains and subject.tool == "WebFetch":
        rule = _forbidding_host_rule(book, subject)
    if rule is None and book.paths:
        rule = first_forbidding_path(book, subject, subject.accesses)
    if rule is None and subject.command is not None:
        rule = forbidding_command_rule(book, subject)
    return rule


def _forbidding_host_rule(book: RuleBook, subject: Subject) -> Rule | None:
    # A host that cannot be read from the address could be any: the first rule speaks for all of them.
    return book.domains[0] if subject.host is None else book.for_host(subject.host)


# --- modes and rules that permit ------------------------------------------------------------------------------------------


def _permitted(policy: Policy, subject: Subject) -> Verdict:
    if subject.command is not None:
        judged = permits_command(policy, subject)
        if judged.allowed:
            category = "allow_rule" if judged.rule else "mode"
            return Verdict("allow", judged.reason, category, judged.rule)
        return Verdict("ask", judged.reason, "unsettled")
    if subject.accesses:
        return _permitted_paths(policy, subject)
    by_mode = _mode_reason(policy, subject)
    if by_mode is not None:
        return Verdict("allow", by_mode, "mode")
    rule = _allow_rule(policy.allow, policy, subject)
    if rule is not None:
        return Verdict("allow", f"the allow rule {rule.text} ({rule.source}) covers it", "allow_rule", rule)
    return Verdict("ask", f"mode {policy.mode} does not allow {subject.tool} by itself", "unsettled")


def _mode_reason(policy: Policy, subject: Subject) -> str | None:
    if subject.tool == "AskUserQuestion" and policy.mode != "dontAsk":
        return "a question to the person is its own permission"
    if policy.mode not in READING_MODES or subject.tool == "AskUserQuestion":
        return None
    if subject.tool in SESSION_TOOLS:
        return f"mode {policy.mode} allows {subject.tool}, which acts on the session only"
    if subject.effect == "read" and subject.tool not in NETWORK_TOOLS and not subject.tool.startswith("mcp__"):
        return f"mode {policy.mode} allows {subject.tool}, which only reads"
    return None


def _permitted_paths(policy: Policy, subject: Subject) -> Verdict:
    verdict = Verdict("allow", "", "mode")
    for access in subject.accesses:
        one = permits_access(policy, access, subject)
        if one.outcome != "allow":
            return one
        verdict = one if one.rule or not verdict.reason else verdict
    return verdict


def _allow_rule(book: RuleBook, policy: Policy, subject: Subject) -> Rule | None:
    """The rule of a list that names this call, for calls of any kind."""
    rule = book.for_tool(subject.tool)
    if rule is None and subject.command is not None:
        return permits_command(Policy("prompt", book, policy.ask, policy.deny), subject).rule
    if rule is None and subject.accesses:
        hits = [allow_path_rule(book, access, subject, inside=False) for access in subject.accesses]
        return hits[0] if all(hits) else None
    if rule is None and subject.name is not None:
        rule = book.for_name(subject.tool, (subject.name, *subject.other_names))
    if rule is None and subject.host is not None and subject.tool == "WebFetch":
        rule = book.for_host(subject.host)
    return rule
