"""Run a user's own code at fixed points of a run, in order, and log its effects.

The hooks of one point run one after the other, and each sees the changes of the previous one; a block ends the sequence. A
hook receives copies, so only its return value affects the run. A hook that fails or times out is logged, and blocks the
action or lets it pass as declared.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from ..errors import InvalidEventError
from ..events import HookEvent
from ..ground.clock import Clock, SystemClock
from ..ground.frozen import frozen
from ..ground.globs import fits_name
from ..ground.settings import WithAdvice
from ..ground.threads import ask_callable, call_guest, error_words, running_loop
from ..serialization import dumps_field
from .models import HookDecision, HookMatcher, HookRun, PointOutcome

Matchers = Sequence[HookMatcher]


@frozen
class Point:
    """A place in a run where hooks run.

    `value` is the payload key whose value `HookEngine.run` returns, `replaced_by` the field of a decision that may replace
    it, `word` the log's term for such a replacement. If a point `closes`, a hook that fails blocks the action unless it
    declares otherwise. A hook's pattern is matched against the payload key `matched`.
    """

    value: str = ""
    replaced_by: str = ""
    word: str = ""
    closes: bool = False
    matched: str = "tool_name"


# The points before an effect fail closed. `stop` and `pre_compact` can also block, but a broken hook there would keep a
# run from ever ending or shrinking.
POINTS = {
    "session_start": Point(matched="source"),
    "user_prompt_submit": Point("prompt", "override_prompt", "rewrite_prompt", closes=True),
    "before_model_call": Point("messages", "override_messages", "rewrite_messages", closes=True),
    "after_model_call": Point("output"),
    "pre_tool_use": Point("tool_input", "override_tool_input", "rewrite_input", closes=True),
    "permission_request": Point("tool_input", "override_tool_input", "rewrite_input"),
    "notification": Point(matched="kind"),
    "post_tool_use": Point("tool_output", "override_tool_output", "rewrite_output"),
    "post_tool_use_failure": Point(),
    "subagent_start": Point(closes=True, matched="agent_name"),
    "subagent_stop": Point(matched="agent_name"),
    "pre_compact": Point(matched="trigger"),
    "post_compact": Point(matched="trigger"),
    "stop": Point(),
    "session_end": Point(matched="reason"),
}
_REPLACEMENTS = tuple(dict.fromkeys(point.replaced_by for point in POINTS.values() if point.replaced_by))
_TEXTS = ("block_reason", "override_prompt", "action", "additional_context", "system_message")
# The outcome of a hook whose `when` returned false.
_NOT_NOW = HookDecision(action="not now")
_STRICTNESS = {None: 0, "allow": 1, "ask": 2, "deny": 3}


# The keys in the input of built-in tools that name a file or folder.
PATH_KEYS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("Read", "Write", "Edit", "MultiEdit", "NotebookEdit"), ("file_path", "notebook_path")),
    **dict.fromkeys(("Glob", "Grep"), ("root", "path")),
}

_match_name = fits_name  # the name by which programs import it

_compiled = functools.lru_cache(maxsize=256)(re.compile)


@frozen(kw_only=True)
class HookEngine(WithAdvice):
    """The hooks of an agent. `default_timeout_s` limits a hook that declares no `timeout_s`.

    `run` returns the value of the point (see `POINTS`), an event for each hook that ran, and the hooks' combined decision:
    the first block, the strictest permission, all added context; None if no hook decided anything. The points and their
    payloads:

    session_start       `source`: a session begins (`startup`), continues in another process (`resume`) or with a summary of
                        the conversation (`compact`)
    user_prompt_submit  `prompt`: before a prompt is accepted
    before_model_call   `messages`: before the model is asked; they change only with `enable_message_rewrite_hooks`
    after_model_call    `output`: the model's answer, which no hook can replace
    pre_tool_use        `tool_name`, `tool_input`: before the permission gate is asked; `context["paths"]` holds the resolved
                        paths of a file tool's input
    permission_request  `tool_name`, `tool_input`: before a person is asked whether a call may run; the decision's
                        `permission` can answer in their place
    notification        `message`, `kind`: a question waits for a person
    post_tool_use       `tool_name`, `tool_input`, `tool_output`: after a tool ran; a block keeps the output from the model
    post_tool_use_failure  `tool_name`, `tool_input`, `error`, `is_interrupt`: after a tool failed, after post_tool_use
    subagent_start      `agent_name`, `prompt`: a block prevents its start
    subagent_stop       `agent_name`, `final_text`
    pre_compact         `trigger`: before the conversation is summarized; a block prevents that
    post_compact        `trigger`, `summary`
    stop                `stop_hook_active`, `last_assistant_message`: the model wants to stop; a block sends it back to work
                        with the reason, and `stop_hook_active` is true after such a block
    session_end         `reason`: a session ends
    """

    pre_tool_use: Matchers = ()
    post_tool_use: Matchers = ()
    post_tool_use_failure: Matchers = ()
    user_prompt_submit: Matchers = ()
    before_model_call: Matchers = ()
    after_model_call: Matchers = ()
    session_start: Matchers = ()
    session_end: Matchers = ()
    stop: Matchers = ()
    permission_request: Matchers = ()
    subagent_start: Matchers = ()
    subagent_stop: Matchers = ()
    pre_compact: Matchers = ()
    post_compact: Matchers = ()
    notification: Matchers = ()
    enable_message_rewrite_hooks: bool = False
    default_timeout_s: float = 60.0
    clock: Clock = field(default_factory=SystemClock)

    @functools.cached_property
    def are_any(self) -> bool:
        """Whether any point has a hook; an engine of the caller's own class is assumed to have some."""
        return type(self) is not HookEngine or any(map(functools.partial(getattr, self), POINTS))

    async def run(self, point: str, payload: Mapping[str, Any], context: Mapping[str, Any] | None = None) -> HookRun:
        """Run the hooks of a point one after the other, until one blocks or stops; the class describes what is returned.

        Raises `EventLoopError` outside asyncio, if the point has hooks.
        """
        row = POINTS[point]
        if not getattr(self, point):
            return payload.get(row.value), [], None
        running_loop("a hook")
        current = dict(payload)
        events: list[HookEvent] = []
        wish: HookDecision | None = None
        for matcher in getattr(self, point):
            if matcher.hook is None or not _concerns(matcher, current.get(row.matched)):
                continue
            event, decision = await self._run_one(point, matcher, current, context or {})
            if event is not None:
                events.append(event)
            if decision is None:
                continue
            replacement = getattr(decision, row.replaced_by) if row.replaced_by else None
            if replacement is not None:
                current[row.value] = replacement
            wish = decision if wish is None else _together(wish, decision)
            if wish.block or wish.stops:
                break
        return current.get(row.value), events, wish

    async def run_user_prompt_submit(self, *, prompt: str, context: Mapping[str, Any] | None = None) -> HookRun:
        """Call `run` for `user_prompt_submit`. The following methods do the same for their points; methods of points
        without a value return none.
        """
        return await self.run("user_prompt_submit", {"prompt": prompt}, context)

    async def run_pre_tool_use(
        self, *, tool_name: str, tool_input: Mapping[str, Any], context: Mapping[str, Any] | None = None
    ) -> HookRun:
        return await self.run("pre_tool_use", {"tool_name": tool_name, "tool_input": tool_input}, context)

    async def run_post_tool_use(
        self,
        *,
        tool_name: str,
        tool_output: Any,
        context: Mapping[str, Any] | None = None,
        tool_input: Mapping[str, Any] | None = None,
    ) -> HookRun:
        payload = {"tool_name": tool_name, "tool_input": tool_input or {}, "tool_output": tool_output}
        return await self.run("post_tool_use", payload, context)

    async def run_before_model_call(
        self, *, messages: Sequence[Mapping[str, Any]], context: Mapping[str, Any] | None = None
    ) -> HookRun:
        return await self.run("before_model_call", {"messages": messages}, context)

    async def run_after_model_call(self, *, output: Any, context: Mapping[str, Any] | None = None) -> HookRun:
        return await self.run("after_model_call", {"output": output}, context)

    async def run_session_start(
        self, *, source: str = "startup", context: Mapping[str, Any] | None = None
    ) -> PointOutcome:
        return (await self.run("session_start", {"source": source}, context))[1:]

    async def run_session_end(self, *, reason: str = "other", context: Mapping[str, Any] | None = None) -> PointOutcome:
        return (await self.run("session_end", {"reason": reason}, context))[1:]

    async def run_stop(
        self,
        *,
        stop_hook_active: bool = False,
        last_assistant_message: str = "",
        context: Mapping[str, Any] | None = None,
    ) -> PointOutcome:
        payload = {"stop_hook_active": stop_hook_active, "last_assistant_message": last_assistant_message}
        return (await self.run("stop", payload, context))[1:]

    async def _run_one(
        self, point: str, matcher: HookMatcher, payload: Mapping[str, Any], context: Mapping[str, Any]
    ) -> tuple[HookEvent | None, HookDecision | None]:
        """Run one hook; return its event and decision, or None for both if it chooses not to run."""
        started = self.clock.monotonic()
        paths = _resolved_paths(payload, context)
        hook_context = {**context, "paths": paths} if paths else dict(context)
        # A copy: a hook that changes its payload must not change what is logged, sent or run.
        hook_input = {"hook_point": point, **copy.deepcopy(dict(payload)), "context": hook_context}
        error: Exception | None = None
        decision: HookDecision | None
        try:
            answer = await self._call(matcher, hook_input)
            if answer is _NOT_NOW:
                return None, None
            decision, action, details = self._judge(point, answer)
        except Exception as caught:  # noqa: BLE001 - a hook is anybody's code; what it raises is logged, never lost
            error, decision, action = caught, None, "timeout" if isinstance(caught, TimeoutError) else "error"
            closes = POINTS[point].closes if matcher.fail_closed is None else matcher.fail_closed
            details = {"fails": "closed" if closes else "open"}
            if closes:
                message = ": ".join(error_words(caught))
                what = str(caught) if action == "timeout" else f"hook {matcher.name!r} failed: {message}"
                decision = HookDecision(True, f"{what}; it blocks what it cannot evaluate", action="error")
        event = (HookEvent if decision is None else decision.log_as)(
            hook_point=point,
            name=matcher.name,
            action=action,
            duration_s=self.clock.monotonic() - started,
            tool_use_id=context.get("tool_use_id"),
            details=details,
            error_type=error_words(error)[0] if error else None,
            error_message=error_words(error)[1] if error else None,
        )
        return event, decision

    async def _call(self, matcher: HookMatcher, payload: dict[str, Any]) -> HookDecision | None:
        """Run the hook; plain code runs in its own thread, because only then can a slow one be abandoned."""
        timeout_s = self.default_timeout_s if matcher.timeout_s is None else matcher.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                decision = await call_guest(functools.partial(_answer, matcher, payload), f"hook {matcher.name!r}")
        except TimeoutError:
            raise TimeoutError(f"hook {matcher.name!r} did not answer within {timeout_s:g} s") from None
        if decision is not None and not isinstance(decision, HookDecision):
            raise TypeError(f"hook {matcher.name!r} returned {type(decision).__name__}, not a HookDecision or None")
        if decision is not None:
            _check_types(matcher.name, decision)
        return decision

    def _judge(self, point: str, decision: HookDecision | None) -> tuple[HookDecision | None, str, dict[str, Any]]:
        """Return the decision without the fields that are invalid at this point (None if nothing is left), its `action` for
        the log, and the details of what it changed and what was ignored.
        """
        if decision is None:
            return None, "none", {}
        own = POINTS[point].replaced_by
        if own == "override_messages" and not self.enable_message_rewrite_hooks:
            own = ""
        ignored = [name for name in _REPLACEMENTS if name != own and getattr(decision, name) is not None]
        nothing: dict[str, Any] = dict.fromkeys(ignored)
        counted = replace(decision, **nothing) if ignored else decision
        if counted.permission not in _STRICTNESS:
            ignored.append("permission")
            counted = replace(counted, permission=None)
        details = _details(counted)
        if ignored:
            details["ignored"], action = ignored, f"ignored_{ignored[0]}"
            counted = replace(counted, action=None)
        elif counted.action:
            action = counted.action
        elif counted.block:
            action = "block"
        elif own and getattr(counted, own) is not None:
            action = POINTS[point].word
        elif counted.permission is not None:
            action = f"permission_{counted.permission}"
        else:
            action = "add_context" if counted.additional_context else "none"
        return (None if counted == HookDecision() else counted), action, details


def _resolved_paths(payload: Mapping[str, Any], context: Mapping[str, Any]) -> dict[str, str]:
    """The resolved paths in a file tool's call, by the keys of its input; empty for any other payload."""
    keys, input = PATH_KEYS.get(str(payload.get("tool_name")), ()), payload.get("tool_input")
    texts = {key: input.get(key) for key in keys} if isinstance(input, Mapping) else {}
    paths = {key: absolute_path(text, context.get("cwd")) for key, text in texts.items() if isinstance(text, str)}
    return {key: os.path.realpath(path) for key, path in paths.items() if path is not None}


def absolute_path(text: str, cwd: Any) -> str | None:
    """Return a path of a tool's input as an absolute one without `~`, `.` and `..`; None for a value that is not a path.

    After a symbolic link, `..` means the parent of the link's target, as in the operating system's kernel.
    """
    if not text or "\0" in text or text.startswith("blob:"):
        return None
    text = os.path.expanduser(text) if text == "~" or text.startswith("~/") else text
    whole = os.path.join(cwd if isinstance(cwd, str) else os.curdir, text)
    # `abspath` removes `..` by its letters alone; if a link comes before it, only the real path is right.
    plain, real = os.path.abspath(whole), os.path.realpath(whole)
    return plain if os.path.realpath(plain) == real else real


async def _answer(matcher: HookMatcher, payload: dict[str, Any]) -> HookDecision | None:
    def call() -> Any:
        assert matcher.hook is not None
        return matcher.hook(payload) if matcher.when is None or matcher.when(payload) else _NOT_NOW

    decision: HookDecision | None = await ask_callable(call, f"openagentic-hook {matcher.name}")
    return decision


def _concerns(matcher: HookMatcher, name: Any) -> bool:
    if not isinstance(name, str):
        return True  # the point has nothing that a pattern could match
    if matcher.tool_name_regex is not None:
        return _compiled(matcher.tool_name_regex).search(name) is not None
    return fits_name(matcher.tool_name_pattern, name)


def _details(decision: HookDecision) -> dict[str, Any]:
    """The changes made by a hook, for the log: a new input or prompt in full, messages and tool outputs only by name."""
    changed = decision.override_tool_input
    big = {"messages": decision.override_messages, "tool_output": decision.override_tool_output}
    changes = {
        "tool_input": None if changed is None else copy.deepcopy(dict(changed)),
        "prompt": decision.override_prompt,
        "replaced": next((name for name, value in big.items() if value is not None), None),
        "permission": decision.permission,
        "additional_context": decision.additional_context,
        "stops": (decision.block_reason or True) if decision.stops else None,
        "system_message": decision.system_message,
    }
    blocked: dict[str, Any] = {"block_reason": decision.block_reason} if decision.block else {}
    return blocked | {name: value for name, value in changes.items() if value is not None}


def _together(first: HookDecision, second: HookDecision) -> HookDecision:
    """Combine two decisions: the later replacements, the stricter permission, both contexts and both messages."""
    contexts = [text for text in (first.additional_context, second.additional_context) if text]
    # If both are equally strict, the later one: its reason refers to the current input.
    stricter = second if _STRICTNESS[second.permission] >= _STRICTNESS[first.permission] else first
    replacements = {name: getattr(first, name) for name in _REPLACEMENTS if getattr(second, name) is None}
    return replace(
        second,
        **replacements,
        permission=stricter.permission,
        block_reason=second.block_reason or stricter.block_reason,
        additional_context="\n".join(contexts) or None,
        action=second.action or first.action,
        stops=first.stops or second.stops,
        system_message="\n".join(filter(None, (first.system_message, second.system_message))) or None,
    )


def _check_types(name: str, decision: HookDecision) -> None:
    """Raise `TypeError` if a text, the input or the messages of a decision have the wrong type, or the input is not JSON."""
    expected_types = {**dict.fromkeys(_TEXTS, (str, "a string")), "override_tool_input": (Mapping, "a mapping")}
    for name_of_field, (kind, noun) in expected_types.items():
        value = getattr(decision, name_of_field)
        if value is not None and not isinstance(value, kind):
            raise TypeError(
                f"hook {name!r} returned {type(value).__name__} as {name_of_field}: it must be {noun} or None"
            )
    if decision.override_tool_input is not None:
        try:  # as in the log: otherwise recording an input that it cannot contain would end the run
            dumps_field({"tool_input": dict(decision.override_tool_input)})
        except InvalidEventError as error:
            raise TypeError(
                f"hook {name!r} returned an override_tool_input that is not a JSON object: {error}"
            ) from None
    messages = decision.override_messages
    if messages is not None and not (
        isinstance(messages, Sequence) and all(isinstance(message, Mapping) for message in messages)
    ):
        raise TypeError(f"hook {name!r} returned override_messages that are not a list of mappings")
