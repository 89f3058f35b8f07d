"""A recorded session as a model and tools that replay it: no network, nothing executed.

`Recording` parses a log into runs and steps. `ReplayProvider` answers each request with its recorded answer, and compares
the request's digest with the recorded one; `RecordedTool` returns the recorded result of each call. `runs.replay` drives
the real loop with them.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from ..errors import IncompleteResponseError, ReplayMismatchError, ToolError
from ..events import (
    AssistantMessage,
    AssistantReasoning,
    Effect,
    Event,
    ModelContext,
    ModelRequest,
    ModelResponse,
    ModelRetry,
    SystemInit,
    ToolResult,
    ToolUse,
    UserMessage,
)
from ..ground.frozen import frozen, mutable
from ..ground.loose import as_mapping, tool_name
from ..kernel.tool import ToolContext, ToolOutput
from ..parts.record.commit import ERASED
from ..parts.record.folds.audit import RequestDigest, rebuild_requests
from ..providers.base import Done, Message, ModelOutput, TextDelta, ToolCall, ToolSpec
from ..tools.base import Tool

# Events that change the requests, besides answers and results of calls; and the state that parts keep in the log.
_BETWEEN_STEPS = ("user.message", "session.compacted", "session.rewound", "context.cleared", "part.state")
# Before a session's first request, these come from the message history that it began with.
_ANSWERS = (AssistantMessage, ToolUse, ToolResult)


@mutable
class RecordedStep:
    """One recorded request of a turn, its context, the events before it that affect it, and its answer."""

    request: ModelRequest
    context: ModelContext
    before: tuple[Event, ...] = ()
    response: ModelResponse | None = None
    text: str = ""
    reasoning: str | None = None
    message: AssistantMessage | None = None
    calls: list[ToolUse] = field(default_factory=list)


@mutable
class RecordedRun:
    """One run of the session, from its `system.init` to the next one.

    `history` is the message history that a caller began the session with; `trailing` are those events after the run's last
    request that would affect another one.
    """

    init: SystemInit
    history: tuple[Event, ...] = ()
    steps: list[RecordedStep] = field(default_factory=list)
    trailing: tuple[Event, ...] = ()


class Recording:
    """A session's log as runs, steps and results. A log without `model.request` events cannot be replayed."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.events = list(events)
        self.results = {e.tool_use_id: e for e in reversed(self.events) if isinstance(e, ToolResult)}
        self.runs = list(_runs(self.events))

    def step_count(self) -> int:
        """The number of recorded requests of turns, in all runs."""
        return sum(len(run.steps) for run in self.runs)


def _runs(events: Sequence[Event]) -> Iterable[RecordedRun]:
    run: RecordedRun | None = None
    context: ModelContext | None = None
    step: RecordedStep | None = None
    between: list[Event] = []
    is_new = True
    for event in events:
        if isinstance(event, SystemInit):
            if run is not None:
                yield _ended(run, between)
            run, step, between = RecordedRun(event), None, []
        elif isinstance(event, ModelContext):
            context = event
        elif isinstance(event, ModelRequest) and event.purpose == "turn" and context is not None and run is not None:
            if is_new:
                is_new, at = False, _end_of_history(between)
                run.history, between = tuple(between[:at]), between[at:]
            step = RecordedStep(event, context, tuple(between))
            run.steps.append(step)
            between = []
        elif event.type in _BETWEEN_STEPS or (context is None and isinstance(event, _ANSWERS)):
            between.append(event)
        elif step is not None:
            if isinstance(event, ModelResponse) and step.response is None:
                step.response = event
            elif isinstance(event, ModelRetry) and event.mid_answer:
                step.text, step.message = "", None
            elif isinstance(event, AssistantReasoning):
                step.reasoning = event.text
            elif isinstance(event, AssistantMessage):
                step.text, step.message = event.text, event
            elif isinstance(event, ToolUse) and not event.is_inside:
                step.calls.append(event)
    if run is not None:
        yield _ended(run, between)


def _end_of_history(before: Sequence[Event]) -> int:
    """How many of the events before a session's first request belong to a message history, and not to its first prompt."""
    answers = [place for place, event in enumerate(before) if isinstance(event, _ANSWERS)]
    prompts = [place for place, event in enumerate(before) if isinstance(event, UserMessage) and event.origin == "user"]
    if not answers and len(prompts) < 2:
        return 0
    end = answers[-1] + 1 if answers else 0
    return max(end, prompts[-1]) if prompts else end


def _ended(run: RecordedRun, trailing: Iterable[Event]) -> RecordedRun:
    run.trailing = tuple(trailing)
    last = run.steps[-1] if run.steps else None
    if last and last.response and last.response.complete and last.message is None and not last.calls:
        # A fork cut the log between the end of an answer and its message: none of the answer is in the copy.
        last.response = None
    return run


@frozen
class RequestDifference:
    """A request that differs from the recorded one; `diff` shows both as JSON lines, recorded first."""

    step: int
    seq: int
    diff: str


class ReplayProvider:
    """A provider that answers requests with the recorded answers.

    With `strict`, a request whose digest differs from the recorded one raises `ReplayMismatchError` with the difference;
    otherwise the difference is added to `differences` and the request is answered anyway. `compared` counts the requests.
    Before a run, its caller sets `name` to that of the recorded provider.
    """

    def __init__(self, recording: Recording, *, strict: bool = True) -> None:
        self.name = "replay"
        self.differences: list[RequestDifference] = []
        self.compared = 0
        self._recording = recording
        self._strict = strict
        self._digest = RequestDigest()
        self._step: RecordedStep | None = None
        self._differing_requests: dict[int, tuple[str, Sequence[Message], Sequence[ToolSpec]]] = {}

    def expect(self, step: RecordedStep) -> None:
        """Set the recorded step whose answer the next request receives."""
        self._step = step

    async def stream(
        self, *, model: str, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), api_key: str | None = None
    ) -> AsyncIterator[Any]:
        """Stream the answer of the expected step; one that was cut off is cut off again.

        Raises `ReplayMismatchError` if no step is expected or, if strict, the request differs.
        """
        step = self._step
        if step is None:
            raise ReplayMismatchError("the loop made one more request than the recorded session did")
        self._step = None
        self._compare(step, model, messages, tools)
        if step.text:
            yield TextDelta(step.text)
        if step.response is None or not step.response.complete:
            # With the recorded name: how a prompt is continued depends on the error of its request.
            name = (step.response.error_type if step.response else None) or IncompleteResponseError.__name__
            recorded = type(name, (IncompleteResponseError,), {})
            raise recorded("this answer was cut off when it was recorded", partial_text=step.text)
        message, response = step.message, step.response
        assert response is not None
        yield Done(
            output=ModelOutput(
                assistant_text=step.text,
                tool_calls=[
                    ToolCall(use.tool_use_id, use.name, use.input, use.raw_arguments, use.extras, use.caller)
                    for use in step.calls
                ],
                usage=response.usage,
                finish_reason=response.finish_reason,
                reasoning=step.reasoning,
                extras=message.extras if message is not None else None,
                refusal=message.refusal if message is not None else False,
                model=response.model,
            )
        )

    def _compare(self, step: RecordedStep, model: str, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> None:
        self.compared += 1
        seq, recorded = step.request.seq or 0, step.request.request_sha256
        if recorded == ERASED:
            rebuilt = (r.rebuilt_sha256 for r in rebuild_requests(self._recording.events) if r.seq == seq)
            recorded = next(rebuilt, recorded)
        if self._digest.of(model, messages, tools) == recorded:
            return
        self._differing_requests[seq] = model, messages, tools
        difference = RequestDifference(step.request.step, seq, self.diff(seq))
        self.differences.append(difference)
        if self._strict:
            raise ReplayMismatchError(
                f"step {difference.step} (seq {seq}) sends a request that differs from the recorded one:\n{difference.diff}"
            )

    def diff(self, seq: int, places: Mapping[str, str] | None = None) -> str:
        """The difference, as a unified diff, between the recorded request at event `seq` and the one sent instead.

        `places` maps recorded names of folders to current ones; the diff is empty if the requests differ only in these.
        """
        recorded = next((r for r in rebuild_requests(self._recording.events) if r.seq == seq), None)
        if recorded is None:
            return "(the recorded request cannot be rebuilt from the log)"
        if not recorded.matches:
            return "(the log itself no longer rebuilds the request: it was changed after it was recorded)"
        before = _lines(recorded.model, recorded.messages, recorded.tools)
        for recorded_place, now in (places or {}).items():
            before = [line.replace(recorded_place, now) for line in before]
        request = _lines(*self._differing_requests[seq])
        return "\n".join(difflib.unified_diff(before, request, "recorded", "now", lineterm="", n=1))


def _lines(model: str, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[str]:
    whole = {"model": model, "messages": list(messages), "tools": list(tools)}
    return json.dumps(whole, indent=1, sort_keys=True, ensure_ascii=False).splitlines()


class RecordedTool(Tool):
    """A tool as the model saw it, which returns a call's recorded result. Raises `ReplayMismatchError` without one."""

    def __init__(self, spec: Mapping[str, Any], results: Mapping[str, ToolResult], effect: Effect = "unsafe") -> None:
        function = as_mapping(spec.get("function"))
        self.name = tool_name(spec)
        self.description = str(function.get("description", ""))
        self.input_schema = function.get("parameters", {})
        self.effect = effect
        self.allowed_callers = spec.get("allowed_callers")
        self._results = results

    async def run(self, input: Mapping[str, Any], ctx: ToolContext) -> Any:
        result = self._results.get(ctx.tool_use_id or "")
        if result is None:
            raise ReplayMismatchError(f"call {ctx.tool_use_id} of {self.name} has no recorded result")
        return recorded_outcome(result)


def recorded_outcome(result: ToolResult) -> ToolOutput:
    """Return the recorded output, or raise the recorded error, so that the model reads exactly what was recorded."""
    if result.is_error and result.error_message is not None:
        raise type(result.error_type or "ToolError", (ToolError,), {})(result.error_message)
    return ToolOutput(result.output, is_error=result.is_error, attachments=result.attachments)
