"""A hook: a name, a pattern of tool names, a callable, and the decision that it returns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

from ..events import HookEvent
from ..ground.frozen import frozen

Permission = Literal["allow", "deny", "ask"]


@frozen
class HookDecision:
    """The decision of a hook. Fields that do not apply to its point are ignored and logged.

    `block` stops the pending action, for `block_reason`. The `override_*` fields replace a call's input, a result's output,
    the messages of a request, or the prompt. `action` is a word for the log. `additional_context` is text that the model
    receives with the prompt or the result. `permission` is `allow`, `deny` or `ask`; an allow never overrides a deny or ask
    rule. `stops` ends the whole run at any point; `system_message` is for the person, not for the model. `log_as` creates
    the event instead of `HookEvent`, from the same arguments: a partial of a subclass with additional fields.
    """

    block: bool = False
    block_reason: str | None = None
    override_tool_input: Mapping[str, Any] | None = None
    override_tool_output: Any = None
    override_messages: Sequence[Mapping[str, Any]] | None = None
    override_prompt: str | None = None
    action: str | None = None
    additional_context: str | None = None
    permission: Permission | None = None
    stops: bool = False
    system_message: str | None = None
    log_as: Callable[..., HookEvent] = HookEvent


HookCallable = Callable[[dict[str, Any]], Awaitable[HookDecision | None] | HookDecision | None]
# The value of the point after the hooks, an event for each hook that ran, and their combined decision.
HookRun = tuple[Any, list[HookEvent], HookDecision | None]
PointOutcome = tuple[list[HookEvent], HookDecision | None]


@frozen
class HookMatcher:
    """A hook, and the condition under which it runs.

    `tool_name_pattern` is one or more fnmatch patterns joined by `|`, matched against the tool's name at points that
    concern a tool, and at other points against the key named in `POINTS`, if any: how a session began, which subagent.
    `tool_name_regex`, if set, replaces it: a regular expression searched for in the name. `timeout_s` limits one run, None
    means the engine's default. `fail_closed` determines the effect of a failure or timeout: True blocks the pending action,
    False ignores the hook, None blocks at the points before an effect. `when`, if set, receives the payload and decides
    whether the hook runs at all.
    """

    name: str
    tool_name_pattern: str = "*"
    hook: HookCallable | None = None
    timeout_s: float | None = None
    fail_closed: bool | None = None
    tool_name_regex: str | None = None
    when: Callable[[Mapping[str, Any]], bool] | None = None
