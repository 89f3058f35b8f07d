"""The facts of a call, read once at the gate's door and carried to whoever decides or is asked, and the gate's answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field, fields, replace
from typing import Any

from ..events import Mode, UserQuestion
from ..frozen import frozen
from ..sessions.request import json_sha256
from .policy import Policy, Verdict
from .shell import PARSER_VERSION, CommandLine
from .subject import NamesOf, Subject, describe

# What the log keeps of a command that was understood.
_MOST_LOGGED_COMMANDS = 50


@frozen
class ApprovalResult:
    """Whether a call may run, and why; true when it may.

    `category` is what decided: `input`, `hook`, `deny_rule`, `ask_rule`, `mode`, `allow_rule`, `path`, `tools`, `callback`,
    `answer`, `nobody`. `input_sha256` is the digest of the arguments that were judged; `updated_input` is set when a
    person or callback put others in their place, which were judged too. `details` is for the log, `question` what a person
    was asked. `facts` are those of the call that no other event of the log tells, see `Facts.told`.
    """

    allowed: bool
    reason: str = ""
    mode: Mode = "default"
    category: str = ""
    rule: str | None = None
    source: str | None = None
    hook: str | None = None
    answered_by: str | None = None
    waited_s: float | None = None
    input_sha256: str = ""
    updated_input: Mapping[str, Any] | None = None
    policy_sha256: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    question: UserQuestion | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self.allowed


@frozen
class CallContext:
    """What a caller tells the gate about a call beside its tool and input; all of it may be missing.

    `session_cwd` is where the first command of the session ran, when this one runs elsewhere. `grants` and
    `disallowed_tools` are rules for this turn. `hook_permission` is what a hook wished (`allow`, `deny` or `ask`), with
    its name in `hook`. `names_of` gives all names of the skill that the input of a skill tool names, `rule_names` what
    rules may call the tool of this input besides its name. A question goes out through `ask` when it is given.
    `permission_request`, an async function of name and input, is asked before people: an `ApprovalResult` answers in a
    person's place (with `allowed`, `reason`, `hook`, `updated_input`), None does not. `told` is what a callback is told.
    """

    cwd: str | None = None
    session_cwd: str | None = None
    project_dir: str | None = None
    workspace_roots: Sequence[str] = ()
    protected_paths: Sequence[str] = ()
    session_id: str = ""
    tool_use_id: str | None = None
    effect: str | None = None
    grants: Sequence[str] = ()
    disallowed_tools: Sequence[str] = ()
    hook_permission: str | None = None
    hook: str | None = None
    hook_reason: str | None = None
    names_of: NamesOf | None = None
    rule_names: NamesOf | None = None
    trusted: bool | None = None
    ask: Callable[[UserQuestion], Awaitable[Any]] | None = None
    permission_request: Callable[[str, Mapping[str, Any]], Awaitable[ApprovalResult | None]] | None = None
    told: Mapping[str, Any] = field(default_factory=dict)


_KEYS = frozenset(known.name for known in fields(CallContext)) - {"told"}


def read_context(given: CallContext | Mapping[str, Any] | None) -> CallContext:
    """The context of a call from the mapping that `PermissionGate.approve` takes; keys that the gate does not know are
    only told to callbacks."""
    if isinstance(given, CallContext):
        return given
    given = given or {}
    known = {key: given[key] for key in _KEYS.intersection(given) if given[key] is not None}
    return CallContext(**known, told=given)


@frozen
class Facts:
    """A call with all that its judgement depends on. `layers` are the gate's with what holds for this session and turn,
    `notes` what of that could not be understood, for the log."""

    subject: Subject
    context: CallContext
    mode: Mode
    layers: tuple[Policy, ...]
    policy_sha256: str
    input_sha256: str
    notes: Mapping[str, Any]

    def with_input(self, changed: Mapping[str, Any]) -> Facts:
        """The same call with other arguments."""
        old = self.subject
        subject = describe(old.tool, changed, old.effect, old.workspace, self.context.names_of, self.context.rule_names)
        return replace(self, subject=subject, input_sha256=json_sha256(dict(changed)))

    def details(self) -> dict[str, Any]:
        """What the log keeps of how the call was understood."""
        found: dict[str, Any] = {}
        subject = self.subject
        if subject.accesses:
            found["paths"] = [access.places.real for access in subject.accesses]
        if isinstance(subject.line, CommandLine):
            commands = [
                [*command.assignments, *command.argv] for command in subject.line.commands[:_MOST_LOGGED_COMMANDS]
            ]
            found["commands"], found["parser_version"] = commands, PARSER_VERSION
        elif subject.line is not None:
            found["not_understood"], found["parser_version"] = subject.line.reason, PARSER_VERSION
        return {**found, **self.notes}

    def told(self) -> dict[str, Any]:
        """What the judgement depended on besides policy and input, for whoever judges the call again; what is usual is
        left out. `call_context` in `hindsight.calls` reads it."""
        context, subject = self.context, self.subject
        found: dict[str, Any] = {
            "effect": subject.effect,
            "cwd": context.cwd if context.session_cwd not in (None, context.cwd) else None,
            "names": list(subject.other_names),
            "rule_names": list(subject.rule_names),
            "grants": list(context.grants),
            "disallowed": list(context.disallowed_tools),
        }
        return {name: value for name, value in found.items() if value}

    def result(self, verdict: Verdict) -> ApprovalResult:
        """A verdict as the gate's answer."""
        rule = verdict.rule
        is_denied = verdict.outcome == "deny" and verdict.category != "hook"
        return ApprovalResult(
            verdict.outcome == "allow",
            f"{self.subject.tool} is denied: {verdict.reason}" if is_denied else verdict.reason,
            self.mode,
            verdict.category,
            rule.text if rule else None,
            rule.source if rule else None,
            self.context.hook,
            input_sha256=self.input_sha256,
            policy_sha256=self.policy_sha256,
            details=self.details(),
            facts=self.told(),
        )
