"""Compare two sessions step by step: answers, tool calls, stop reasons and costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import field
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any

from ....events import AssistantMessage, Event, ModelRequest, ModelResponse, ModelRetry, Result, ToolResult, ToolUse
from ....ground.frozen import frozen
from ....sessions.folds.view import SessionView
from ....sessions.request import json_sha256


@frozen
class ComparedStep:
    """One model call, its answer and the results of its tool calls.

    `calls` are pairs of a tool's name and the digest of its arguments. The outcome of a call without a result is "none".
    """

    number: int
    text: str
    calls: tuple[tuple[str, str], ...] = ()
    inputs: tuple[Any, ...] = ()
    outcomes: tuple[str, ...] = ()

    @property
    def tools(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.calls)


@frozen
class Difference:
    """One difference between two sessions. `a` and `b` are the values on the two sides.

    `kind` is `tool_added`, `tool_missing`, `tools_reordered`, `arguments`, `outcome`, `text`, `step_added`, `step_missing`,
    `stop_reason`, `tokens`, `cost` or `time`.
    """

    kind: str
    step: int | None
    a: Any
    b: Any

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "step": self.step, "a": self.a, "b": self.b}


@frozen
class Thresholds:
    """Tolerances for numeric differences, as fractions of A's value; None tolerates any difference.

    `ignore_text` tolerates different answers.
    """

    tokens: float | None = None
    cost: float | None = None
    time: float | None = None
    ignore_text: bool = False


@frozen
class SessionDiff:
    """The differences between two sessions: those of steps, in order, then those of the ends; none if they are equal."""

    differences: Sequence[Difference] = field(default_factory=tuple)

    @property
    def same(self) -> bool:
        return not self.differences

    def to_dict(self) -> dict[str, Any]:
        return {"same": self.same, "differences": [difference.to_dict() for difference in self.differences]}


def compare_sessions(a: Iterable[Event], b: Iterable[Event], thresholds: Thresholds | None = None) -> SessionDiff:
    """Compare two logs. Steps are aligned by their tool calls, so an additional step does not shift the others."""
    thresholds = thresholds or Thresholds()
    left, right = list(a), list(b)
    steps_a, steps_b = steps_of(left), steps_of(right)
    differences: list[Difference] = []
    # Without `autojunk`, which ignores elements that are frequent in 200 or more: most steps call the same few tools.
    matcher = SequenceMatcher(None, [step.tools for step in steps_a], [step.tools for step in steps_b], autojunk=False)
    for _, a1, a2, b1, b2 in matcher.get_opcodes():
        for one, other in zip_longest(steps_a[a1:a2], steps_b[b1:b2]):
            if one is None or other is None:
                present: ComparedStep = one or other
                content = {"tools": list(present.tools), "text": present.text}
                kind = "step_missing" if other is None else "step_added"
                differences.append(
                    Difference(kind, present.number, content if one else None, content if other else None)
                )
                continue
            differences += _compare_calls(one, other)
            if one.text != other.text and not thresholds.ignore_text:
                differences.append(Difference("text", one.number, one.text, other.text))
    return SessionDiff(tuple(differences + _compare_ends(left, right, thresholds)))


def steps_of(events: Iterable[Event]) -> list[ComparedStep]:
    """The steps of a log, answered or not. Requests for another purpose, such as summaries, are not steps."""
    steps: list[ComparedStep] = []
    open_step: dict[str, Any] | None = None
    results: dict[str, str] = {}
    for event in events:
        if isinstance(event, ModelRequest) and event.purpose == "turn":
            _close(steps, open_step, results)
            open_step = {"number": event.step, "text": "", "uses": []}
        elif isinstance(event, ModelRequest):
            _close(steps, open_step, results)
            open_step = None
        elif isinstance(event, AssistantMessage) and open_step is not None:
            open_step["text"] = event.text
        elif isinstance(event, ModelRetry) and event.mid_answer and open_step is not None:
            # The attempt was repeated: the model's text begins again.
            open_step["text"] = ""
        elif isinstance(event, ToolUse) and open_step is not None and not event.is_inside:
            open_step["uses"].append(event)
        elif isinstance(event, ToolResult):
            results[event.tool_use_id] = event.outcome
    _close(steps, open_step, results)
    return steps


def _close(steps: list[ComparedStep], step: dict[str, Any] | None, results: dict[str, str]) -> None:
    if step is None:
        return
    uses: list[ToolUse] = step["uses"]
    steps.append(
        ComparedStep(
            step["number"],
            step["text"],
            tuple((use.name, json_sha256(dict(use.input))) for use in uses),
            tuple(dict(use.input) for use in uses),
            tuple(results.get(use.tool_use_id, "none") for use in uses),
        )
    )


def _compare_calls(a: ComparedStep, b: ComparedStep) -> list[Difference]:
    if a.tools != b.tools:
        if sorted(a.tools) == sorted(b.tools):
            return [Difference("tools_reordered", a.number, list(a.tools), list(b.tools))]
        missing, added = _minus(a.tools, b.tools), _minus(b.tools, a.tools)
        return [Difference("tool_missing", a.number, name, None) for name in missing] + [
            Difference("tool_added", a.number, None, name) for name in added
        ]
    differences = []
    for index, name in enumerate(a.tools):
        if a.calls[index] != b.calls[index]:
            sides = ({"tool": name, "input": step.inputs[index]} for step in (a, b))
            differences.append(Difference("arguments", a.number, *sides))
        if a.outcomes[index] != b.outcomes[index]:
            differences.append(Difference("outcome", a.number, a.outcomes[index], b.outcomes[index]))
    return differences


def _minus(a: Sequence[str], b: Sequence[str]) -> list[str]:
    """The multiset difference of `a` and `b`."""
    return list((Counter(a) - Counter(b)).elements())


def _compare_ends(a: Sequence[Event], b: Sequence[Event], thresholds: Thresholds) -> list[Difference]:
    differences = []
    stops = [next((e.stop_reason for e in reversed(side) if isinstance(e, Result)), None) for side in (a, b)]
    if stops[0] != stops[1]:
        differences.append(Difference("stop_reason", None, *stops))
    views = [SessionView().extend(side) for side in (a, b)]
    for kind, limit, values in (
        ("tokens", thresholds.tokens, [view.tokens for view in views]),
        ("cost", thresholds.cost, [view.cost_usd for view in views]),
        (
            "time",
            thresholds.time,
            [sum(e.total_s or 0.0 for e in side if isinstance(e, ModelResponse)) for side in (a, b)],
        ),
    ):
        one, other = values
        if one is None or other is None:
            differs = one is not other
        else:
            differs = limit is not None and abs(other - one) > limit * abs(one)
        if limit is not None and differs:
            differences.append(Difference(kind, None, *values))
    return differences
