"""What the gate answers about a call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from ..events import Mode, UserQuestion
from ..frozen import frozen


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
