"""Causes in a run as a whole: loops, answers that are sent back, and limits, with what used them up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from ...events import (
    HookEvent,
    ModelRequest,
    ModelResponse,
    Result,
    SubagentFinished,
    SubagentStarted,
    SystemInit,
    ToolResult,
    ToolUse,
)
from ...ground.frozen import changed
from ...ground.words import plural
from ...sessions.folds.summary import total_tokens
from ...sessions.request import json_sha256
from .calls import blocked_by, explained, trouble
from .cause import CauseInRun
from .run import JudgedRun, as_text, blocks, has_failed, short

# The longest loop in calls, the fewest repetitions that count, and the fewest if the model itself ended the loop.
_MAX_PERIOD, _MIN_REPEATS, _MIN_REPEATS_OF_A_GIVEN_UP_LOOP = 8, 3, 5
_ENDS: Mapping[str, str] = {
    "end": "it gave up",
    "max_steps": "max_steps ended the run",
    "timeout": "timeout_s had passed",
    "budget": "the budget was spent",
    "interrupted": "somebody interrupted the run",
}


def loop(run: JudgedRun, result: Result, least: int = _MIN_REPEATS, *, with_results: bool = False) -> CauseInRun | None:
    """The same calls repeated at least `least` times up to the end of the run; None if there is no such loop.

    With `with_results`, their results must be the same, too.
    """
    uses = [event for event in run.events if isinstance(event, ToolUse) and not event.is_inside]
    ends = {e.tool_use_id: e for e in run.events if isinstance(e, ToolResult)}
    keys: list[tuple[str, ...]] = [(use.name, json_sha256(dict(use.input))) for use in uses]
    if with_results:
        outputs = ((ends[use.tool_use_id].output if use.tool_use_id in ends else None) for use in uses)
        keys = [(*key, as_text(output)) for key, output in zip(keys, outputs, strict=True)]
    for period in range(1, _MAX_PERIOD + 1):
        size = period
        while size < len(keys) and keys[-size - 1] == keys[-size - 1 + period]:
            size += 1
        times = size // period
        if times >= least:
            break
    else:
        return None
    names = ", ".join(dict.fromkeys(run.call(use.tool_use_id) for use in uses[-period:]))
    why = f"a loop of period {period}: the model made {plural(period, 'call')} {times} times in a row, "
    why += f"until {_ENDS.get(result.stop_reason, result.stop_reason)}"
    last = next((ends[use.tool_use_id] for use in reversed(uses[-period:]) if use.tool_use_id in ends), None)
    prompt = f"You made the same {plural(period, 'call')} {times} times. Do something else."
    cause = CauseInRun("loop", uses[-size], why, (names,), raised(result), prompt)
    if last is None or not has_failed(last):
        gave = () if last is None else (f"the last of them gave {short(as_text(last.output), 160)}",)
        return changed(cause, more=(names, *gave))
    error = explained(run, last, 1)
    settings, prompt = (*error.settings, *cause.settings), error.prompt if error.settings else prompt
    return changed(cause, more=(names, error.why, *error.more), settings=settings, prompt=prompt)


def given_up(run: JudgedRun, result: Result) -> CauseInRun | None:
    """A loop, over several requests, that the model ended with an answer instead of a new attempt, or None."""
    repeated = loop(run, result, _MIN_REPEATS_OF_A_GIVEN_UP_LOOP, with_results=True)
    if repeated is None:
        return None
    requests = sum(isinstance(e, ModelRequest) and (e.seq or 0) > (repeated.event.seq or 0) for e in run.events)
    # One answer with many calls is not a loop.
    return repeated if requests >= _MIN_REPEATS_OF_A_GIVEN_UP_LOOP else None


def steady_errors(run: JudgedRun, result: Result) -> CauseInRun | None:
    """The tool whose failures are the run's last three results, cancelled calls aside; None for any other results."""
    ends = [e for e in run.events if isinstance(e, ToolResult) and e.outcome != "cancelled"][-_MIN_REPEATS:]
    is_steady = len(ends) == _MIN_REPEATS and all(map(has_failed, ends)) and len({*map(run.name_of, ends)}) == 1
    cause = trouble(run, result) if is_steady else None
    return None if cause is None else changed(cause, settings=(*cause.settings, *raised(result)))


def refused_answers(run: JudgedRun, result: Result) -> CauseInRun | None:
    """The stop hook that sent answers back, if they were sent back at least twice; None otherwise."""
    refusals = [e for e in run.events if isinstance(e, HookEvent) and e.hook_point == "stop" and blocks(e)]
    if len(refusals) < 2:
        return None
    cause = blocked_by(run, refusals[0])
    why = f"{cause.why}; it sent the answer back {len(refusals)} times"
    return changed(cause, why=why, settings=raised(result))


def limit(run: JudgedRun, result: Result) -> CauseInRun:
    """The limit that ended the run and its largest consumers, also inside the subagent that consumed most."""
    is_in_dollars = result.stop_reason == "budget" and "max_cost_usd" in (result.error_message or "")
    unit = {"max_steps": "calls", "timeout": "s"}.get(result.stop_reason, "USD" if is_in_dollars else "tokens")
    spender, child = spent(run, unit)
    at_end = f" when {run.doing}" if unit == "s" else ""
    why = f"{result.error_message or result.stop_reason}{at_end}{f'; most went to {spender}' if spender else ''}"
    more: tuple[str, ...] = ()
    if child is not None and run.read is not None and unit != "calls":
        events = run.read(run.session_id, child.child_session_id)
        start = next((at for at, event in enumerate(events) if isinstance(event, SystemInit)), None)
        if start is not None:
            uses = {e.tool_use_id: e for e in events if isinstance(e, ToolUse)}
            inside = JudgedRun(child.child_session_id, events, (start, len(events)), uses)
            more = (f"in the subagent, session {child.child_session_id}: {spent(inside, unit)[0]}",)
    return CauseInRun(result.stop_reason, result, why, more, settings=raised(result))


def spent(run: JudgedRun, unit: str) -> tuple[str, SubagentStarted | None]:
    """The three largest consumers of `unit`, as text, and the start of the subagent that consumed most of all.

    `unit` is "calls", "s", "tokens" or "USD". The second value is None if the largest consumer is not a subagent.
    """
    weights: dict[str, float] = defaultdict(float)
    cost = 0.0
    children = {e.tool_use_id: e for e in run.events if isinstance(e, SubagentStarted)}
    names = {f"the subagent {e.name!r}": e for e in children.values()}
    for event in run.events:
        if unit == "calls":
            if isinstance(event, ToolUse):
                weights[event.name] += 1
        elif isinstance(event, ModelResponse):
            weights["the model"] += _weight(event, unit)
            cost = 0.0 if unit == "s" else _weight(event, unit)
        elif isinstance(event, SubagentFinished) and unit != "s":
            weights[f"the subagent {event.name!r}"] += _weight(event, unit)
        elif isinstance(event, ToolUse) and cost:  # the cost of an answer is attributed to the first of its calls
            weights[event.name] += cost
            weights["the model"] -= cost
            cost = 0.0
        elif isinstance(event, ToolResult) and unit == "s":
            child = children.get(event.tool_use_id)
            weights[f"the subagent {child.name!r}" if child else run.name_of(event)] += round(event.duration_s or 0)
    top = [
        (name, weight)
        for name, weight in sorted(weights.items(), key=lambda each: -each[1])[:3]
        if weight >= (0.00005 if unit == "USD" else 1)
    ]
    form = "{} {:.4f} {}" if unit == "USD" else "{} {:,.0f} {}"
    return ", ".join(form.format(*each, unit) for each in top), names.get(top[0][0]) if top else None


def raised(result: Result) -> tuple[tuple[str, Any], ...]:
    """The setting that raises the limit that ended the run to at least twice the amount used.

    Empty if no limit ended the run, or the amount is unknown.
    """
    if result.stop_reason == "max_steps":
        return (("max_steps", max(2 * result.steps, 50)),)
    if result.stop_reason == "timeout":
        return (("timeout_s", max(2 * int(result.duration_s or 0), 600)),)
    if result.stop_reason != "budget":
        return ()
    if "max_tokens" in (result.error_message or ""):
        return (("max_tokens", 2 * total_tokens(result.usage)),)
    cost_usd = result.cost_usd if "max_cost_usd" in (result.error_message or "") else None
    return (("max_cost_usd", round(2 * cost_usd, 4)),) if cost_usd else ()


def _weight(event: ModelResponse | SubagentFinished, unit: str) -> float:
    """The seconds, dollars or tokens (`unit`) that an answer or a subagent used; 0 for a subagent's seconds."""
    if unit == "s":
        return round(event.total_s or 0) if isinstance(event, ModelResponse) else 0
    return event.cost_usd or 0.0 if unit == "USD" else total_tokens(event.usage)
