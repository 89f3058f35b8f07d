"""The facts of a call, determined once when it enters the gate, and passed to everything that decides or asks about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cached_property
from typing import Any

from ..events import Mode
from ..ground.frozen import frozen
from ..kernel.gate import ApprovalResult, CallContext, Objection
from ..sessions.request import json_sha256
from .policy import Policy, Verdict
from .shell import PARSER_VERSION, CommandLine
from .subject import Subject, describe

# The most commands of an understood line that the log records.
_MOST_LOGGED_COMMANDS = 50


_KEYS = frozenset(member.name for member in fields(CallContext)) - {"told"}


def read_context(context: CallContext | Mapping[str, Any] | None) -> CallContext:
    """Build a call's context from what `PermissionGate.approve` receives; unknown keys of a mapping only reach callbacks."""
    if isinstance(context, CallContext):
        return context
    context = context or {}
    values = {key: context[key] for key in _KEYS.intersection(context) if context[key] is not None}
    return CallContext(**values, told=context)


@frozen
class Facts:
    """A call with everything that its judgement depends on. `layers` are the gate's, with the rules of this session and turn
    added; `notes` list the invalid ones among these rules, for the log.
    """

    subject: Subject
    context: CallContext
    mode: Mode
    layers: tuple[Policy, ...]
    policy_sha256: str
    input_sha256: str
    notes: Mapping[str, Any]

    @cached_property
    def objection(self) -> Objection | None:
        """A part's objection to the call; None if no part objects."""
        object_to = self.context.objection
        return object_to(self.subject.tool, self.subject.input) if object_to is not None else None

    def with_input(self, changed: Mapping[str, Any]) -> Facts:
        """Return the facts of the same call with other arguments."""
        old = self.subject
        subject = describe(old.tool, changed, old.effect, old.workspace, self.context.names_of, self.context.rule_names)
        return replace(self, subject=subject, input_sha256=json_sha256(dict(changed)))

    def details(self) -> dict[str, Any]:
        """The details of the call for the log: its paths, its commands or why they are unknown, its objection."""
        details: dict[str, Any] = {}
        subject = self.subject
        if subject.accesses:
            details["paths"] = [access.places.real for access in subject.accesses]
        if isinstance(subject.line, CommandLine):
            commands = [
                [*command.assignments, *command.argv] for command in subject.line.commands[:_MOST_LOGGED_COMMANDS]
            ]
            details["commands"], details["parser_version"] = commands, PARSER_VERSION
        elif subject.line is not None:
            details["not_understood"], details["parser_version"] = subject.line.reason, PARSER_VERSION
        return {**details, **self.notes, **(self.objection.details if self.objection is not None else {})}

    def record(self) -> dict[str, Any]:
        """The inputs of a judgement other than policy and arguments, for judging the call again; defaults are omitted.
        `call_context` in `hindsight.calls` reads it.
        """
        context, subject = self.context, self.subject
        record: dict[str, Any] = {
            "effect": subject.effect,
            "cwd": context.cwd if context.session_cwd not in (None, context.cwd) else None,
            "names": list(subject.other_names),
            "rule_names": list(subject.rule_names),
            "grants": list(context.grants),
            "disallowed": list(context.disallowed_tools),
            "confined": context.confined,
        }
        return {name: value for name, value in record.items() if value}

    def result(self, verdict: Verdict) -> ApprovalResult:
        """Return a verdict as a decision of the gate, with the facts for the log."""
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
            facts=self.record(),
        )
