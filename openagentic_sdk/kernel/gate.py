"""The permission gate as the kernel uses it: the question about a call, and the decision.

The code that assembles an agent supplies the gate, `permissions.gate.PermissionGate` or a custom one; `ReadOnlyGate` is the
default.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import field
from fnmatch import fnmatchcase
from typing import Any, Literal, Protocol, Self

from ..events import Event, Mode, UserAnswer, UserQuestion
from ..ground.frozen import frozen
from ..sessions.request import json_sha256

# Returns the names that rules may use for a call, from its input.
NamesOf = Callable[[Mapping[str, Any]], Sequence[str]]


@frozen
class ApprovalResult:
    """The decision on whether a call may run, and why; truthy if it may.

    `category` names what decided: `input`, `hook`, `deny_rule`, `ask_rule`, `mode`, `edits`, `allow_rule`, `path`, `tools`,
    `objection`, `trial`, `unsettled`, `callback`, `answer`, `nobody`; `answered_by` answered after `waited_s` seconds.
    `input_sha256` is the digest of the judged arguments; `updated_input` is set if these were replaced, and was judged too.
    `details` are for the log, `question` is the one put to a person, `facts` are properties that no other event records.
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
    """A part's objection to a call, beyond the gate's rules. `outcome` is `ask`, `deny`, or `watch`, which only logs.

    `details` go to the log, and to the person who is asked, under the same names.
    """

    outcome: Literal["ask", "deny", "watch"]
    reason: str
    rule: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


@frozen
class CallContext:
    """The circumstances of a call that the gate considers besides the tool and its input; every field is optional.

    `session_cwd` is the folder where the session began, if this call runs elsewhere. `grants` and `disallowed_tools` are
    rules for this turn. `hook_permission` is a hook's request (`allow`, `deny` or `ask`), `hook` its name. `names_of`
    returns every name of the skill in a skill tool's input, `rule_names` the further names by which rules may refer to this
    call. A question goes through `ask` if it is given. `confined` is the confinement that encloses this call's command with
    its own mounts, or None. `permission_request`, an async function of name and input, runs before a person is asked: an
    `ApprovalResult` (with `allowed`, `reason`, `hook`, `updated_input`) answers in the person's place, None defers to them.
    `objection`, a function of name and input, returns a part's objection to the call. `told` is passed on to callbacks.
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
    """A part's restriction of calls: `tools`, if given, lists the only tools that may be used, `deny` those that may not;
    `source` names the reason.
    """

    tools: Sequence[str] | None = None
    deny: Sequence[str] = ()
    source: str = "part"


class Gate(Protocol):
    """A gate that decides whether calls may run, and can ask a person. One narrowed from another is never looser."""

    @property
    def mode(self) -> Mode:
        """The permission mode in effect."""

    @property
    def can_ask(self) -> bool:
        """Whether somebody can answer questions."""

    @property
    def policy_sha256(self) -> str:
        """The digest of the gate's modes and rules."""

    def record(self) -> dict[str, Any]:
        """Return the policy as a new JSON object. No call may change `protected` paths; `roots` is the default workspace."""

    async def answer(self, question: UserQuestion) -> str | UserAnswer:
        """Return the answer to a question; empty if nobody can be asked."""

    async def approve(self, tool_name: str, tool_input: Mapping[str, Any], context: CallContext) -> ApprovalResult:
        """Decide whether this call may run with exactly this input."""

    async def permits_path(self, path: str, write: bool, context: CallContext) -> bool:
        """Decide, without asking anybody, whether a running call may also read this path or, if `write`, change it."""

    def read_filter(self, cwd: str, roots: Sequence[str]) -> Callable[[str], bool] | None:
        """Return a fast filter for paths that tools search, or None if every path may be read."""

    def offered_tools(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the tools to show to a model: all but those denied for every input."""

    def restore(self, session_id: str, events: Iterable[Event]) -> None:
        """Restore the approvals recorded in the log of a resumed session."""

    def narrowed(self, *, tools: Iterable[str] | None, deny: Iterable[str], source: str) -> Self:
        """Return a gate that allows nothing beyond what this one allows; see `Narrowing`."""

    def moved(self, old: Self, new: Self) -> Self:
        """Return this gate, which was narrowed from `old`, as if it had been narrowed from `new`."""


def narrowed_by(gate: Gate, narrowings: Iterable[Narrowing]) -> Gate:
    """Return the gate restricted by all the narrowings."""
    for each in narrowings:
        gate = gate.narrowed(tools=each.tools, deny=each.deny, source=each.source)
    return gate


@frozen
class ReadOnlyGate(Gate):
    """The default gate: it allows tools whose effect is `read`, and asks nobody.

    It does not inspect inputs, so a tool that reads files may read any file.
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
        reason = f"{tool_name} only reads" if is_left else f"a part withholds {tool_name}"
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
        # The narrowings of `old` are among this gate's own and stay: more of them can only forbid more.
        return type(self)((*new.narrowings, *self.narrowings))


def _leaves(narrowing: Narrowing, name: str) -> bool:
    """Whether a restriction leaves this tool as a whole; a rule about some of its inputs removes it."""
    # No input is judged here, so a rule that denies some inputs denies the whole tool, and one that allows some allows none.
    denied = [part.partition("(")[0] for rule in narrowing.deny for part in rule.split("|")]
    if any(fnmatchcase(name, part) for part in denied):
        return False
    return narrowing.tools is None or any(fnmatchcase(name, rule) for rule in narrowing.tools)
