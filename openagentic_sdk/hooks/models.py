"""A hook: a name, a pattern of tool names, and a callable that returns a decision."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from ..ground.frozen import frozen
from ..ground.settings import WithAdvice
from ..kernel.hooks import HookDecision, HookRun, Permission, PointOutcome

__all__ = ["HookCallable", "HookDecision", "HookMatcher", "HookRun", "Permission", "PointOutcome"]

HookCallable = Callable[[dict[str, Any]], Awaitable[HookDecision | None] | HookDecision | None]


@frozen
class HookMatcher(WithAdvice):
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
    when: Callable[[dict[str, Any]], bool] | None = None
