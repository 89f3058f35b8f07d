"""The permission gate as the kernel uses it: what a gate is asked about a call, and what it answers.

Whoever assembles an agent brings the gate, `permissions.gate.PermissionGate` or one of their own; `ReadOnlyGate` stands in
where nobody has.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import field
from fnmatch import fnmatchcase
from typing import Any, Literal, Protocol, Self

from ..events import Event, Mode, UserAnswer, UserQuestion
from ..ground.frozen import frozen
from ..sessions.request import json_sha256

# Gives names that rules may use for a call, from its input.
NamesOf = Callable[[Mapping[str, Any]], Sequence[str]]


@frozen
class ApprovalResult:
    """Whether a call may run, and why; true when it may.

    `category` is what decided: `input`, `hook`, `deny_rule`, `ask_rule`, `mode`, `allow_rule`, `path`, `tools`, `callback`,
    `answer`, `nobody`. `input_sha256` is the digest of the arguments that were judged; `updated_input` is set when a
    person or callback put others in their place, which were judged too. `details` is for the log, `question` what a person
    was asked. `facts` are those of the call that no other event of the log tells.
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
class Objection:
    """What a part has against a call beside the gate's rules. `outcome` is `ask`, `deny`, or `watch`, which is only logged.

    `details` are for the log and for whoever is asked, under the names that they have there.
    """

    outcome: Literal["ask", "deny", "watch"]
    reason: str
    rule: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


@frozen
class CallContext:
    """What a caller tells the gate about a call beside its tool and input; all of it may be missing.

    `session_cwd` is where the first command of the session ran, when this one runs elsewhere. `grants` and
    `disallowed_tools` are rules for this turn. `hook_permission` is what a hook wished (`allow`, `deny` or `ask`), with
    its name in `hook`. `names_of` gives all names of the skill that the input of a skill tool names, `rule_names` what
    rules may call the tool of this input besides its name. A question goes out through `ask` when it is given.
    `confined` is what encloses the command of this call with mounts of its own; None where nothing does.
    `permission_request`, an async function of name and input, is asked before people: an `ApprovalResult` answers in a
    person's place (with `allowed`, `reason`, `hook`, `updated_input`), None does not. `objection`, a function of name and
    input, is what a part has against the call. `told` is what a callback is told.
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
    confined: str | None = None
    ask: Callable[[UserQuestion], Awaitable[Any]] | None = None
    permission_request: Callable[[str, Mapping[str, Any]], Awaitable[ApprovalResult | None]] | None = None
    objection: Callable[[str, Mapping[str, Any]], Objection | None] | None = None
    told: Mapping[str, Any] = field(default_factory=dict)


@frozen
class Narrowing:
    """Authority that a part takes away from calls: `tools`, when given, are names and rules of all that may be used, `deny`
    are rules of what may not. `source` is the reason that a denied call gives.
    """

    tools: Sequence[str] | None = None
    deny: Sequence[str] = ()
    source: str = "part"


class Gate(Protocol):
    """Decides whether calls may run, and reaches the person who is asked. A gate narrowed from another is never looser."""

    @property
    def mode(self) -> Mode:
        """The mode in which it decides."""

    @property
    def can_ask(self) -> bool:
        """Whether somebody answers questions."""

    @property
    def policy_sha256(self) -> str:
        """The digest of its modes and rules."""

    def record(self) -> dict[str, Any]:
        """Its policy as a new JSON object; `protected` are paths that no call may change, `roots` the workspace where the
        session has none of its own."""

    async def answer(self, question: UserQuestion) -> str | UserAnswer:
        """The answer to a question; empty when there is nobody to ask."""

    async def approve(self, tool_name: str, tool_input: Mapping[str, Any], context: CallContext) -> ApprovalResult:
        """Whether this call may run with exactly this input."""

    async def permits_path(self, path: str, write: bool, context: CallContext) -> bool:
        """Whether a running call may touch one more path, without a question."""

    def read_filter(self, cwd: str, roots: Sequence[str]) -> Callable[[str], bool] | None:
        """A quick test of paths that tools search, None when every path may be read."""

    def offered_tools(self, names: Iterable[str]) -> tuple[str, ...]:
        """The tools worth showing to a model: all that are not forbidden whatever their input."""

    def restore(self, session_id: str, events: Iterable[Event]) -> None:
        """Remember again what the log of a resumed session holds."""

    def narrowed(self, *, tools: Iterable[str] | None, deny: Iterable[str], source: str) -> Self:
        """A gate that allows nothing that this one does not allow, see `Narrowing`."""

    def moved(self, old: Self, new: Self) -> Self:
        """This gate, which was narrowed from `old`, as if that had been `new`."""


def narrowed_by(gate: Gate, narrowings: Iterable[Narrowing]) -> Gate:
    """The gate without the authority that is taken away."""
    for each in narrowings:
        gate = gate.narrowed(tools=each.tools, deny=each.deny, source=each.source)
    return gate


@frozen
class ReadOnlyGate(Gate):
    """The gate of an agent that was given none: it allows the calls of tools whose effect is `read`, and asks nobody.

    It looks at no input, so a tool that reads files may read any.
    """

    narrowings: tuple[Narrowing, ...] = ()
    mode = "dontAsk"
    can_ask = False

    @property
    def policy_sha256(self) -> str:
        return json_sha256(self.record())

    def record(self) -> dict[str, Any]:
        layers = [{"tools": each.tools and [*each.tools], "deny": [*each.deny]} for each in self.narrowings]
        return {"gate": "read only", "layers": layers, "protected": [], "roots": []}

    async def answer(self, question: UserQuestion) -> str | UserAnswer:
        return ""

    async def approve(self, tool_name: str, tool_input: Mapping[str, Any], context: CallContext) -> ApprovalResult:
        is_left = bool(self.offered_tools([tool_name]))
        reason = f"{tool_name} only reads" if is_left else f"a part takes {tool_name} away"
        if context.effect != "read":
            is_left, reason = (
                False,
                f"{tool_name} may change something, and this agent has no gate for that: set AgentRuntime.gate",
            )
        return ApprovalResult(is_left, reason, self.mode, "mode", input_sha256=json_sha256(dict(tool_input)))

    async def permits_path(self, path: str, write: bool, context: CallContext) -> bool:
        return not write

    def offered_tools(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(name for name in names if all(_leaves(each, name) for each in self.narrowings))

    def narrowed(self, *, tools: Iterable[str] | None, deny: Iterable[str], source: str) -> Self:
        added = Narrowing(None if tools is None else tuple(tools), tuple(deny))
        return type(self)((*self.narrowings, added))

    def moved(self, old: Self, new: Self) -> Self:
        return type(self)((*new.narrowings, *self.narrowings))


def _leaves(narrowing: Narrowing, name: str) -> bool:
    """Whether all calls of this tool may still run: a rule about some inputs takes the tool away."""
    denied = [part.partition("(")[0] for rule in narrowing.deny for part in rule.split("|")]
    if any(fnmatchcase(name, part) for part in denied):
        return False
    return narrowing.tools is None or any(fnmatchcase(name, rule) for rule in narrowing.tools)
