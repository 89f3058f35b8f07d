"""The progress of a workflow: a fold over its log, shown by its command, its page and its clients."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any, Literal

from ...errors import InvalidEventError, WorkflowError
from ...events import (
    Event,
    PartState,
    Result,
    SubagentFinished,
    SubagentStarted,
    SystemInit,
    ToolResult,
    ToolStarted,
    ToolUse,
    UserAnswer,
    UserMessage,
    UserQuestion,
)
from ...ground.frozen import mutable, values_of
from ...ground.text import existing
from ...serialization import loads_json
from ...sessions.base import SessionStore
from ..record.lifecycle import append_signed
from .elsewhere import LOOK_S
from .fold import END_OF_STEP, is_final

StepState = Literal["waiting", "running", "done", "failed", "denied", "cancelled", "unknown"]
_OUTCOMES: Mapping[str, StepState] = {"ok": "done", "error": "failed", "denied": "denied", "unknown": "unknown"}
_AGAIN = ("failed", "denied", "cancelled", "unknown")


@mutable
class StepProgress:
    """One step: its number (`3`, or `3-2-1` for the first step of the second branch of a `gather`), and its state.

    `attempt` counts from 1. `level` is 1 for steps that waited for no other, else one more than the highest level of the
    steps that had ended when it was created: steps of one level ran concurrently. `began` and `ended` are epoch seconds,
    `due` is the time that the step waits for, if any. `call_id` is the call of the current attempt, `seq` its event.
    """

    number: str
    name: str
    state: StepState = "waiting"
    attempt: int = 1
    level: int = 1
    at: str = ""
    began: float | None = None
    ended: float | None = None
    due: float | None = None
    message: str = ""
    child_session_id: str | None = None
    cost_usd: float | None = None
    call_id: str = ""
    seq: int = 0


@mutable
class WorkflowProgress:
    """A workflow's progress. `state` is `running`, `waiting`, `ended`, `failed`, or the stop reason of the last run.

    `questions` are the open ones. Costs are in US dollars, times in epoch seconds.
    """

    name: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    state: str = ""
    message: str = ""
    output: Any = None
    wake_at: float | None = None
    began: float | None = None
    updated: float = 0.0
    cost_usd: float | None = None
    steps: dict[str, StepProgress] = field(default_factory=dict)
    questions: dict[str, UserQuestion] = field(default_factory=dict)
    _level: int = 0
    _calls: dict[str, StepProgress] = field(default_factory=dict)
    # The steps that were enqueued as runs of a fleet, and the calls that wait for the end of such a step's run.
    _enqueued: set[str] = field(default_factory=set)
    _waits: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, events: Iterable[Event]) -> WorkflowProgress:
        """The progress after these events of one session."""
        progress = cls()
        for event in events:
            progress.apply(event)
        return progress

    @property
    def is_workflow(self) -> bool:
        """Whether the session is a workflow, as far as its events show."""
        return bool(self.name)

    @property
    def is_over(self) -> bool:
        """Whether the workflow has ended for good: with a value, or cancelled and cleaned up."""
        return self.state == "ended" or is_final(self.state, self.message)

    def apply(self, event: Event) -> None:
        """Apply the next event; those of subagents are ignored."""
        if event.parent_tool_use_id is not None:
            return
        self.updated = event.ts or self.updated
        match event:
            case SystemInit():
                self.state, self.message, self.wake_at = "running", "", None
                self.began = self.began or event.ts
            case UserMessage() if not self.name:
                self._read_prompt(event.text)
            case ToolUse() if self.name:
                self._make(event)
            case ToolStarted() if step := self._calls.get(event.tool_use_id):
                step.state, step.began = "running", step.began or event.ts
            case SubagentStarted() if step := self._calls.get(event.tool_use_id):
                step.child_session_id = event.child_session_id
            case SubagentFinished() if step := self._calls.get(event.tool_use_id):
                if event.cost_usd is not None:
                    step.cost_usd = (step.cost_usd or 0.0) + event.cost_usd
                    self.cost_usd = (self.cost_usd or 0.0) + event.cost_usd
            case ToolResult() if step := self._calls.get(event.tool_use_id):
                self._end(step, event)
            case UserQuestion():
                self.questions[event.question_id] = event
                if event.tool_use_id in self._calls:
                    self._calls[event.tool_use_id].state = "waiting"
            case UserAnswer():
                self.questions.pop(event.question_id, None)
            case PartState(part="workflow") if isinstance(event.data, Mapping):
                wake_at = event.data.get("wake_at")
                self.wake_at = wake_at if isinstance(wake_at, int | float) else None
            case Result():
                self.state = {"end": "ended", "error": "failed"}.get(event.stop_reason, event.stop_reason)
                self.message = event.error_message or ""
                self.output = event.structured_output if event.structured_output is not None else event.final_text

    def _read_prompt(self, text: str) -> None:
        try:
            prompt = loads_json(text)
        except InvalidEventError:
            return
        if (
            isinstance(prompt, dict)
            and isinstance(prompt.get("workflow"), str)
            and isinstance(prompt.get("arguments"), dict)
        ):
            self.name, self.arguments = prompt["workflow"], prompt["arguments"]

    def _make(self, use: ToolUse) -> None:
        number, _, attempt = use.tool_use_id.partition("_")
        extras = use.extras or {}
        due = extras.get("due")
        earlier = self.steps.get(number)
        step = earlier or StepProgress(number, use.name, level=self._level + 1, at=str(extras.get("at", "")))
        step.attempt = int(attempt) if attempt.isdecimal() else 1
        step.state, step.began, step.ended, step.message = "waiting", None, None, ""
        step.due = due if isinstance(due, int | float) else None
        step.call_id, step.seq = use.tool_use_id, use.seq or 0
        self.steps[number] = self._calls[use.tool_use_id] = step
        event = str(use.input.get("event", ""))
        if use.name == "wait_for" and event.startswith(END_OF_STEP):
            self._waits[use.tool_use_id] = event.removeprefix(END_OF_STEP)

    def _end(self, step: StepProgress, result: ToolResult) -> None:
        if step.began is None and result.outcome == "ok":  # a recorded value such as flow.now(), not work
            self.steps.pop(step.number, None)
            return
        step.state = _OUTCOMES.get(result.outcome, "cancelled")
        step.ended, step.due = result.ts, None
        step.message = result.error_message or ""
        self._level = max(self._level, step.level)
        self.questions = {key: each for key, each in self.questions.items() if each.tool_use_id != result.tool_use_id}
        output = result.output if isinstance(result.output, Mapping) else {}
        if isinstance(output.get("run"), int):
            self._enqueued.add(step.number)
        enqueued = self._waits.get(result.tool_use_id, "")
        if enqueued in self._enqueued and isinstance(end := output.get("end"), Mapping):
            self._end_run(self.steps[enqueued], end)

    def _end_run(self, step: StepProgress, end: Mapping[str, Any]) -> None:
        """Show the end of a step's run as that of the step, which itself only enqueued the run."""
        reason = end.get("stop_reason")
        if reason != "end":
            step.state = "cancelled" if reason == "interrupted" else "failed"
            step.message = f"its run ended with the stop reason {reason!r}" + (
                f": {end['error']}" if end.get("error") else ""
            )

    def was_enqueued(self, number: str) -> bool:
        """Whether the step was a run of a fleet."""
        return number in self._enqueued

    def wait_of(self, step: StepProgress) -> StepProgress | None:
        """The step that received the end of this step's run; None if it ran in place, or its run has not ended."""
        waits = [self._calls[call_id] for call_id, number in self._waits.items() if number == step.number]
        last = max(waits, key=lambda wait: wait.seq, default=None)
        return None if last is None or last.ended is None else last

    def counts(self) -> dict[str, int]:
        """The number of steps in each state that occurs."""
        counts: dict[str, int] = {}
        for step in self.steps.values():
            counts[step.state] = counts.get(step.state, 0) + 1
        return counts

    def left_s(self, planned: int, now: float) -> float | None:
        """The seconds that running steps and `planned` more need at the pace so far; None if none are left or done."""
        done = [step for step in self.steps.values() if step.state == "done" and step.began and step.ended]
        open_ = sum(step.state == "running" for step in self.steps.values()) + planned
        if not done or not open_:
            return None
        first = min(step.began or now for step in done)
        return max(0.0, (now - first) / len(done) * open_)

    def to_dict(self) -> dict[str, Any]:
        """The progress as JSON values."""
        questions = [
            {
                "question_id": each.question_id,
                "prompt": each.prompt,
                "choices": list(each.choices),
                "step": each.tool_use_id,
            }
            for each in self.questions.values()
        ]
        plain = {key: value for key, value in values_of(self).items() if key[0] != "_"}
        steps = [values_of(step) for step in self.steps.values()]
        return {**plain, "counts": self.counts(), "steps": steps, "questions": questions}


def retry_step(store: SessionStore, session_id: str, number: str) -> str:
    """Let the next run repeat a step that failed, was denied, was cancelled or may not have run; return the new call's id.

    If the step was a run of a fleet, another run is enqueued, and the workflow waits for its end. The caller decides whether
    the step may be repeated: its effect is not checked. Raises `WorkflowError` for a step that does not exist or needs no
    retry, and `SessionLockedError` during a run.
    """
    uses: list[ToolUse] = []

    def again() -> list[Event]:
        uses.clear()
        progress = WorkflowProgress.of(events := list(store.iter_events(session_id)))
        step = progress.steps.get(number)
        if step is None:
            numbers = [each.number for each in progress.steps.values() if each.state in _AGAIN]
            raise WorkflowError(
                f"the workflow has no step {number!r:.100}: {existing('steps', numbers, 'that can be retried')}"
            )
        if step.state not in _AGAIN:
            raise WorkflowError(
                f"step {number} ({step.name}) is {step.state}: only a step that has not succeeded can be retried"
            )
        for each, due in ((step, None), (progress.wait_of(step), time.time() + LOOK_S)):
            if each is not None:
                use = next(
                    event for event in events if isinstance(event, ToolUse) and event.tool_use_id == each.call_id
                )
                extras = {key: value for key, value in (use.extras or {}).items() if key != "due"}
                extras |= {} if due is None else {"due": due}
                uses.append(ToolUse(f"{each.number}_{each.attempt + 1}", use.name, use.input, extras=extras))
        return [*uses]

    append_signed(store, session_id, again)
    return uses[0].tool_use_id
