"""What a hook is: a name, a pattern of tool names, a callable, and what it may decide."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

from ..events import HookEvent
from ..ground.frozen import frozen

Permission = Literal["allow", "deny", "ask"]


@frozen
class HookDecision:
    """What a hook wants. Fields that do not belong to its point are ignored and logged.

    `block` stops what was about to happen, for `block_reason`. The `override_*` fields replace a call's input, a result's
    output, the messages of a request, or the prompt. `action` is a word for the log. `additional_context` is text that the
    model gets beside the prompt or the result. `permission` is `allow`, `deny` or `ask`; an allow never outranks a deny or
    ask rule. `stops` ends the whole run, whatever the point; `system_message` is for the person, not for the model.
    `log_as` makes the event in place of `HookEvent`, of the same arguments: a partial of a subclass with fields of its own.
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


@frozen
class HookMatcher:
    """A hook and when it runs.

    `tool_name_pattern` is one or more fnmatch patterns joined by `|`, for the tool's name at points that concern a tool;
    at the others for what `POINTS` names, if anything: how a session began, which subagent.
    `tool_name_regex`, when set, counts instead of it: a regular expression that is found anywhere in the name.
    `timeout_s` bounds one run, None means the engine's default. `fail_closed` says what a hook that fails or is too slow
    means: True stops what was about to happen, False goes on as if it had said nothing, None is closed at the points that
    stand before an effect. `when`, if set, is asked with the payload whether the hook runs at all.
    """

    name: str
    tool_name_pattern: str = "*"
    hook: HookCallable | None = None
    timeout_s: float | None = None
    fail_closed: bool | None = None
    tool_name_regex: str | None = None
    when: Callable[[Mapping[str, Any]], bool] | None = None
