"""Run a user's own code at fixed points of a run, in order, and say in the log what it did.

The laws: hooks of one point run one after the other, each sees what the one before it left; a block ends the row; a hook
gets copies, so only what it returns has an effect; a hook that fails or is too slow is logged, and closes or opens the way
as it declares.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from ..clock import Clock, SystemClock
from ..events import HookEvent
from ..threads import in_daemon_thread
from .models import HookDecision, HookMatcher

Hooks = Sequence[HookMatcher]
Outcome = tuple[Any, list[HookEvent], HookDecision | None]
PointOutcome = tuple[list[HookEvent], HookDecision | None]

# Where a hook that says nothing about it stops the run when it fails: the points that stand before an effect. `stop` and
# `pre_compact` can block too, but a broken hook there would keep a run from ever ending or shrinking.
CLOSED_POINTS = frozenset({"user_prompt_submit", "pre_tool_use", "before_model_call", "subagent_start"})

# The one thing that a hook of a point may replace, as the field of its decision and the key of its payload.
_REPLACES = {
    "user_prompt_submit": ("override_prompt", "prompt"),
    "pre_tool_use": ("override_tool_input", "tool_input"),
    "post_tool_use": ("override_tool_output", "tool_output"),
    "before_model_call": ("override_messages", "messages"),
    "permission_request": ("override_tool_input", "tool_input"),
}
_WORDS = {
    "override_prompt": "rewrite_prompt",
    "override_tool_input": "rewrite_input",
    "override_tool_output": "rewrite_output",
    "override_messages": "rewrite_messages",
}
_STRICTNESS = {None: 0, "allow": 1, "ask": 2, "deny": 3}


def _match_name(pattern: str, name: str) -> bool:
    """Whether a tool's name fits one of the `|`-separated fnmatch patterns."""
    return any(fnmatchcase(name, part.strip()) for part in pattern.split("|"))


@functools.lru_cache(maxsize=256)
def _compiled(regex: str) -> re.Pattern[str]:
    return re.compile(regex)


def _concerns(matcher: HookMatcher, tool_name: str | None) -> bool:
    if tool_name is None:
        return True
    if matcher.tool_name_regex is not None:
        return _compiled(matcher.tool_name_regex).search(tool_name) is not None
    return _match_name(matcher.tool_name_pattern, tool_name)


@dataclass(frozen=True, kw_only=True)
class HookEngine:
    """All hooks of a run. `default_timeout_s` bounds a run of a hook that names no `timeout_s` of its own.

    The methods that concern a value return `(value, events, decision)`, the others `(events, decision)`; the events are
    for the log, one for each hook that ran, and the decision is what the hooks want together: the first block, the
    strictest permission, all added context. It is None when no hook wanted anything.
    """

    pre_tool_use: Hooks = ()
    post_tool_use: Hooks = ()
    user_prompt_submit: Hooks = ()
    before_model_call: Hooks = ()
    after_model_call: Hooks = ()
    session_start: Hooks = ()
    session_end: Hooks = ()
    stop: Hooks = ()
    permission_request: Hooks = ()
    subagent_start: Hooks = ()
    subagent_stop: Hooks = ()
    pre_compact: Hooks = ()
    post_compact: Hooks = ()
    notification: Hooks = ()
    enable_message_rewrite_hooks: bool = False
    default_timeout_s: float = 60.0
    clock: Clock = field(default_factory=SystemClock)

    async def run_user_prompt_submit(self, *, prompt: str, context: Mapping[str, Any] | None = None) -> Outcome:
        """Before a prompt is accepted. The value is the prompt."""
        return await self._run("user_prompt_submit", self.user_prompt_submit, {"prompt": prompt}, context)

    async def run_pre_tool_use(
        self, *, tool_name: str, tool_input: Mapping[str, Any], context: Mapping[str, Any] | None = None
    ) -> Outcome:
        """Before the permission gate is asked. The value is the call's input."""
        payload = {"tool_name": tool_name, "tool_input": tool_input}
        return await self._run("pre_tool_use", self.pre_tool_use, payload, context)

    async def run_post_tool_use(
        self,
        *,
        tool_name: str,
        tool_output: Any,
        context: Mapping[str, Any] | None = None,
        tool_input: Mapping[str, Any] | None = None,
    ) -> Outcome:
        """After a tool ran. The value is its output; a block keeps the output from the model."""
        payload = {"tool_name": tool_name, "tool_input": tool_input or {}, "tool_output": tool_output}
        return await self._run("post_tool_use", self.post_tool_use, payload, context)

    async def run_before_model_call(
        self, *, messages: Sequence[Mapping[str, Any]], context: Mapping[str, Any] | None = None
    ) -> Outcome:
        """Before the model is asked. The value is the messages, which change only with `enable_message_rewrite_hooks`."""
        return await self._run("before_model_call", self.before_model_call, {"messages": messages}, context)

    async def run_after_model_call(self, *, output: Any, context: Mapping[str, Any] | None = None) -> Outcome:
        """After the model answered. The value is the output, which no hook replaces."""
        return await self._run("after_model_call", self.after_model_call, {"output": output}, context)

    async def run_session_start(self, *, context: Mapping[str, Any] | None = None) -> PointOutcome:
        """When a run starts."""
        return await self._pass("session_start", self.session_start, {}, context)

    async def run_session_end(self, *, context: Mapping[str, Any] | None = None) -> PointOutcome:
        """When a run has ended."""
        return await self._pass("session_end", self.session_end, {}, context)

    async def run_stop(self, *, context: Mapping[str, Any] | None = None) -> PointOutcome:
        """When the model wants to stop. A block sends it back to work with the reason."""
        return await self._pass("stop", self.stop, {}, context)

    async def run_permission_request(
        self, *, tool_name: str, tool_input: Mapping[str, Any], context: Mapping[str, Any] | None = None
    ) -> PointOutcome:
        """Before a person is asked whether a call may run. The decision's `permission` can answer in their place."""
        payload = {"tool_name": tool_name, "tool_input": tool_input}
        return await self._pass("permission_request", self.permission_request, payload, context)

    async def run_subagent_start(
        self, *, agent_name: str = "", prompt: str = "", context: Mapping[str, Any] | None = None
    ) -> PointOutcome:
        """Before a subagent starts. A block keeps it from starting."""
        payload = {"agent_name": agent_name, "prompt": prompt}
        return await self._pass("subagent_start", self.subagent_start, payload, context)

    async def run_subagent_stop(
        self, *, agent_name: str = "", final_text: str = "", context: Mapping[str, Any] | None = None
    ) -> PointOutcome:
        """When a subagent has ended."""
        payload = {"agent_name": agent_name, "final_text": final_text}
        return await self._pass("subagent_stop", self.subagent_stop, payload, context)

    async def run_pre_compact(self, *, trigger: str = "auto", context: Mapping[str, Any] | None = None) -> PointOutcome:
        """Before the conversation is summarised. A block keeps it as it is."""
        return await self._pass("pre_compact", self.pre_compact, {"trigger": trigger}, context)

    async def run_post_compact(
        self, *, trigger: str = "auto", summary: str = "", context: Mapping[str, Any] | None = None
    ) -> PointOutcome:
        """After the conversation was summarised."""
        payload = {"trigger": trigger, "summary": summary}
        return await self._pass("post_compact", self.post_compact, payload, context)

    async def run_notification(
        self, *, message: str = "", kind: str = "", context: Mapping[str, Any] | None = None
    ) -> PointOutcome:
        """When a person should look: a question waits, or a run is idle."""
        return await self._pass("notification", self.notification, {"message": message, "kind": kind}, context)

    async def _pass(
        self, point: str, hooks: Hooks, payload: dict[str, Any], context: Mapping[str, Any] | None
    ) -> PointOutcome:
        _, events, decision = await self._run(point, hooks, payload, context)
        return events, decision

    async def _run(
        self, point: str, hooks: Hooks, payload: dict[str, Any], context: Mapping[str, Any] | None
    ) -> Outcome:
        replaces, key = _REPLACES.get(point, ("", _value_key(payload)))
        payload = dict(payload)
        events: list[HookEvent] = []
        wish: HookDecision | None = None
        for matcher in hooks:
            if matcher.hook is None or not _concerns(matcher, payload.get("tool_name")):
                continue
            event, decision = await self._run_one(point, matcher, payload, context or {})
            events.append(event)
            if decision is None:
                continue
            if replaces and _value(decision, replaces) is not None:
                payload[key] = _value(decision, replaces)
            wish = _together(wish, decision)
            if wish.block:
                break
        return payload.get(key), events, wish

    async def _run_one(
        self, point: str, matcher: HookMatcher, payload: Mapping[str, Any], context: Mapping[str, Any]
    ) -> tuple[HookEvent, HookDecision | None]:
        started = self.clock.monotonic()
        given = {"hook_point": point, **copy.deepcopy(dict(payload)), "context": dict(context)}
        error: Exception | None = None
        try:
            decision, action, details = self._judge(point, await self._call(matcher, given))
        except Exception as caught:  # noqa: BLE001 - a hook is anybody's code; what it raises is logged, never lost
            error, decision = caught, _closed(point, matcher, caught)
            action = "timeout" if isinstance(caught, TimeoutError) else "error"
            details = {"fails": "open" if decision is None else "closed"}
        event = HookEvent(
            hook_point=point,
            name=matcher.name,
            action=action,
            duration_s=self.clock.monotonic() - started,
            tool_use_id=context.get("tool_use_id"),
            details=details,
            error_type=type(error).__name__ if error else None,
            error_message=(str(error) or type(error).__name__) if error else None,
        )
        return event, decision

    async def _call(self, matcher: HookMatcher, payload: dict[str, Any]) -> HookDecision | None:
        """Run the hook: plain code in a thread of its own, since only then can a slow one be left behind."""
        assert matcher.hook is not None
        timeout_s = self.default_timeout_s if matcher.timeout_s is None else matcher.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                decision = await in_daemon_thread(functools.partial(matcher.hook, payload), "openagentic-hook")
                if inspect.isawaitable(decision):
                    decision = await decision
        except TimeoutError:
            raise TimeoutError(f"hook {matcher.name!r} did not answer within {timeout_s:g} s") from None
        if decision is not None and not isinstance(decision, HookDecision):
            raise TypeError(f"hook {matcher.name!r} returned {type(decision).__name__}, not a HookDecision or None")
        return decision

    def _judge(self, point: str, decision: HookDecision | None) -> tuple[HookDecision | None, str, dict[str, Any]]:
        """What of a decision counts at this point, the word for the log, and what was changed or ignored."""
        if decision is None:
            return None, "none", {}
        counted, ignored = self._without_foreign_fields(point, decision)
        details = _details(point, counted)
        if ignored:
            details["ignored"] = ignored
            action = "ignored_" + ignored[0]
            counted = replace(counted, action=None)
        else:
            action = counted.action or _action(point, counted)
        return (None if counted == HookDecision() else counted), action, details

    def _without_foreign_fields(self, point: str, decision: HookDecision) -> tuple[HookDecision, list[str]]:
        own = _REPLACES.get(point, ("", ""))[0]
        if own == "override_messages" and not self.enable_message_rewrite_hooks:
            own = ""
        foreign = [name for name in _WORDS if name != own and _value(decision, name) is not None]
        counted = _with(decision, dict.fromkeys(foreign)) if foreign else decision
        if counted.permission not in _STRICTNESS:
            foreign.append("permission")
            counted = replace(counted, permission=None)
        return counted, foreign


def _value(decision: HookDecision, name: str) -> Any:
    return decision.__dict__[name]


def _with(decision: HookDecision, fields: Mapping[str, Any]) -> HookDecision:
    return HookDecision(**{**decision.__dict__, **fields})


def _value_key(payload: Mapping[str, Any]) -> str:
    return "output" if "output" in payload else ""


def _action(point: str, decision: HookDecision) -> str:
    if decision.block:
        return "block"
    own = _REPLACES.get(point, ("", ""))[0]
    if own and _value(decision, own) is not None:
        return _WORDS[own]
    if decision.permission is not None:
        return f"permission_{decision.permission}"
    return "add_context" if decision.additional_context else "none"


def _details(point: str, decision: HookDecision) -> dict[str, Any]:
    """What a hook changed, small enough for the log: the new input or prompt itself, only the fact for what is big."""
    details: dict[str, Any] = {}
    if decision.block:
        details["block_reason"] = decision.block_reason
    if decision.override_tool_input is not None:
        details["tool_input"] = copy.deepcopy(dict(decision.override_tool_input))
    if decision.override_prompt is not None:
        details["prompt"] = decision.override_prompt
    if decision.override_tool_output is not None:
        details["replaced"] = "tool_output"
    if decision.override_messages is not None:
        details["replaced"] = "messages"
    if decision.permission is not None:
        details["permission"] = decision.permission
    if decision.additional_context is not None:
        details["additional_context"] = decision.additional_context
    return details


def _together(first: HookDecision | None, second: HookDecision) -> HookDecision:
    """Two decisions as one: the later replacement, the stricter permission, both contexts."""
    if first is None:
        return second
    contexts = [text for text in (first.additional_context, second.additional_context) if text]
    stricter = second if _STRICTNESS[second.permission] >= _STRICTNESS[first.permission] else first
    kept = {name: _value(first, name) for name in _WORDS if _value(second, name) is None}
    return replace(
        _with(second, kept),
        permission=stricter.permission,
        block_reason=second.block_reason or stricter.block_reason,
        additional_context="\n".join(contexts) or None,
        action=second.action or first.action,
    )


def _closed(point: str, matcher: HookMatcher, error: Exception) -> HookDecision | None:
    closed = matcher.fail_closed if matcher.fail_closed is not None else point in CLOSED_POINTS
    if not closed:
        return None
    what = str(error) if isinstance(error, TimeoutError) else f"hook {matcher.name!r} failed: {error!r}"
    return HookDecision(block=True, block_reason=f"{what}; it stops what it cannot judge", action="error")
