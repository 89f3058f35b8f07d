"""Policies and verdicts, and the verdict of a policy on access to one path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Literal

from ..events import Mode
from ..ground.frozen import frozen
from ..ground.patterns import regex
from .paths import compile_pattern, is_inside, is_protected, matches
from .rules import EDIT_TOOLS, READ_TOOLS, Rule, RuleBook
from .subject import Access, Subject

# Accepted names of modes, including Claude Code's name for "bypass".
PermissionMode = Literal[Mode, "bypassPermissions"]
MODES: tuple[Mode, ...] = ("default", "acceptEdits", "plan", "dontAsk", "bypass", "prompt", "callback", "deny")

STRICTEST_FIRST: tuple[Mode, ...] = (
    "deny",
    "plan",
    "dontAsk",
    "prompt",
    "callback",
    "default",
    "acceptEdits",
    "bypass",
)

# For each mode, the modes that are never more permissive for the same call. `plan`, `dontAsk`, `prompt` and `callback`
# are not comparable with each other: for example, `plan` refuses an edit that `prompt` asks about, and allows reading
# that `prompt` asks about.
STRICTER: Mapping[Mode, tuple[Mode, ...]] = {
    "deny": (),
    "plan": ("deny",),
    "dontAsk": ("deny",),
    "prompt": ("deny",),
    "callback": ("deny",),
    "default": ("deny", "plan", "dontAsk", "prompt", "callback"),
    "acceptEdits": ("deny", "plan", "dontAsk", "prompt", "callback", "default"),
    "bypass": ("deny", "plan", "dontAsk", "prompt", "callback", "default", "acceptEdits"),
}

# The modes that allow more than reading without a rule.
LOOSE_MODES = frozenset({"acceptEdits", "bypass"})
# The modes that allow reading in the workspace, and work on the session itself, without a rule.
READING_MODES = frozenset({"default", "acceptEdits", "plan", "dontAsk"})


@frozen
class Policy:
    """One layer of authority. `only`, if set, is everything that may be used at all (the tools of a subagent or skill).

    `only_itself` means that `only` applies to one subagent and is not inherited by the subagents that it starts.
    """

    mode: Mode
    allow: RuleBook
    ask: RuleBook
    deny: RuleBook
    only: RuleBook | None = None
    only_itself: bool = False

    @cached_property
    def text(self) -> str:
        """The mode and the rules, one per line, for the digest of the policy."""
        books = {"allow": self.allow, "ask": self.ask, "deny": self.deny, "only": self.only}
        lines = [f"mode {self.mode}"]
        for effect, book in books.items():
            lines += [f"{effect} {rule.text} {rule.root or ''}" for rule in book.rules] if book is not None else []
        return "\n".join(lines)

    def plus(self, *, allow: Sequence[Rule] = (), ask: Sequence[Rule] = (), deny: Sequence[Rule] = ()) -> Policy:
        """Return the policy with more rules."""
        if not (allow or ask or deny):
            return self
        return replace(self, allow=self.allow.plus(allow), ask=self.ask.plus(ask), deny=self.deny.plus(deny))


@frozen
class Verdict:
    """The outcome for a call, and its reason as a sentence. `category` names the deciding step: `deny_rule`, `ask_rule`,
    `mode`, `edits` (the mode, by the words of a command), `allow_rule`, `path`, `tools`, `hook`, `objection` (of a part),
    `input` (not JSON), `trial` or `unsettled`. `firm` marks an `ask` that no hook or rule may answer, only a person or
    callback.
    """

    outcome: Literal["allow", "ask", "deny"]
    reason: str
    category: str
    rule: Rule | None = None
    firm: bool = False


# Files with the same content for everybody: system, processor, memory.
_DESCRIBES_MACHINE = regex(
    r"/(?:usr/lib|etc)/os-release|/etc/(?:lsb-release|debian_version|timezone)|/proc/(?:cpuinfo|meminfo|version|loadavg|uptime)"
)


def permits_access(policy: Policy, access: Access, subject: Subject) -> Verdict:
    """The verdict of mode and allow rules on reading or writing this path."""
    places, workspace = access.places, subject.workspace
    if places.problem:
        return Verdict("ask", places.problem, "path")
    if access.write and is_protected(places, workspace.protected):
        return Verdict("ask", f"{places.written} is protected: it can change what runs later", "path")
    if not access.write and policy.mode in READING_MODES and _DESCRIBES_MACHINE.fullmatch(places.real):
        return Verdict("allow", f"{places.real} describes the machine", "mode")
    names = (places.real, *places.others)
    inside = not places.is_of_process and all(is_inside(name, workspace.roots) for name in names)
    verb = "edits" if access.write else "reading"
    if inside and (policy.mode == "acceptEdits" or (not access.write and policy.mode in READING_MODES)):
        return Verdict("allow", f"mode {policy.mode} allows {verb} inside the workspace", "mode")
    rule = allow_path_rule(policy.allow, access, subject, inside=inside)
    if rule is not None:
        return Verdict(
            "allow", f"the allow rule {rule.text} ({rule.source}) covers {places.written}", "allow_rule", rule
        )
    if not inside:
        way = f"{places.written} leads to {places.real}, which" if places.others else places.real
        return Verdict("ask", f"{way} is outside the workspace", "path")
    return Verdict("ask", f"mode {policy.mode} requires approval for {verb}", "unsettled")


def allow_path_rule(book: RuleBook, access: Access, subject: Subject, *, inside: bool) -> Rule | None:
    """An allow rule that permits a path; None unless every name of the path, its own and those added by links, matches one.

    A rule without a pattern matches every path, but for the file tools only if the path is `inside` the workspace.
    """
    tool = subject.tool if subject.tool != "Bash" else ("Edit" if access.write else "Read")
    whole = book.for_tool(tool) if inside or (tool not in READ_TOOLS and tool not in EDIT_TOOLS) else None
    if whole is not None or not book.paths:
        return whole
    base = subject.workspace.base
    rules = [rule for rule in book.paths if rule.covers(tool) or (not access.write and rule.tool in EDIT_TOOLS)]
    rule: Rule | None = None
    for name in access.places.all:
        fitting = (r for r in rules if matches(compile_pattern(r.pattern, base, r.root or base, wide=False), name))
        rule = next(fitting, None)
        if rule is None:
            return None
    return rule


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict of several layers together: one that denies, otherwise one that asks (of these, a firm one if there is
    one), otherwise one that allows (preferably one with a rule). Pass at least one.
    """
    for outcome in ("deny", "ask"):
        same_outcome = [verdict for verdict in verdicts if verdict.outcome == outcome]
        if same_outcome:
            return next((verdict for verdict in same_outcome if verdict.firm), same_outcome[0])
    return next((verdict for verdict in verdicts if verdict.rule), verdicts[0])
