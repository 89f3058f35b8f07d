"""The steps of a workflow in its log, including those that a checkpoint contains in place of their events."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

from ...events import (
    Event,
    RecordErasing,
    Result,
    SessionForked,
    SessionRewound,
    ToolResult,
    ToolStarted,
    ToolUse,
    UserMessage,
)
from ...ground.frozen import changed
from ...kernel.tool import REPEATABLE
from ...sessions.folds.view import CallRecord, Cut, Fold, SessionView

# Marks the message with the arguments of a workflow that ended its history and restarted.
RESTARTED = "workflow"
# The call that records the cancellation of a workflow.
CANCELLED = "cancelled"
# The message of the end of a workflow that was cancelled and has cleaned up.
WAS_CANCELLED = "the workflow was cancelled"
# The event that announces the end of a run to the workflow that enqueued it as this step.
END_OF_STEP = "end of step "


def is_final(stop_reason: str, message: str | None) -> bool:
    """Whether a run with this end is a workflow's last: its body returned a value, or let its cancellation through."""
    return stop_reason == "end" or (stop_reason == "interrupted" and message == WAS_CANCELLED)


class StepsFold(Fold):
    """A fold of a workflow's steps.

    `calls` are the records of the current history's calls, by id. `prompt` is the text that contains the arguments, and
    `prompt_seq` its event. `taken` are the numbers in the inbox of the external events that the workflow received,
    `published` its published values by name, and `ended` its end. `erased` are the numbers of events that have lost values
    to an erasure. `finished` counts the steps that have ended since the last cut.
    """

    name = "workflow_steps"
    version = 3
    reads = (ToolUse, ToolResult, UserMessage, SessionRewound, SessionForked, RecordErasing, Result)

    def __init__(self) -> None:
        self.calls: dict[str, CallRecord] = {}
        self.prompt: str | None = None
        self.prompt_seq = 0
        self.ended: Result | None = None
        self.taken: set[int] = set()
        self.published: dict[str, Any] = {}
        self.erased: set[int] = set()
        self.finished = 0
        self._kept: dict[str, list[Any]] = {}

    def find(self, call_id: str) -> CallRecord | None:
        """The record of a call in the current history; None if the call was never made."""
        record = self.calls.get(call_id)
        if record is None and (row := self._kept.get(call_id)) is not None:
            record = self.calls[call_id] = _record(call_id, row)
        return record

    def is_open(self, number: str) -> bool:
        """Whether the newest attempt of a step has not ended."""
        newest, attempt = self.find(number), 2
        while (later := self.find(f"{number}_{attempt}")) is not None:
            newest, attempt = later, attempt + 1
        return newest is not None and newest.result is None

    def is_erased(self, record: CallRecord) -> bool:
        """Whether the input or the result of a call has lost values to an erasure."""
        return any(event is not None and event.seq in self.erased for event in (record.use, record.result))

    def wanted_events(self) -> set[str]:
        """The names of the events that steps wait for."""
        waiting = (record.use for record in self.calls.values() if record.result is None)
        return {str(use.input.get("event")) for use in waiting if use.name == "wait_for"}

    def ids(self) -> list[str]:
        """The ids of all calls in the current history."""
        return list({**self._kept, **self.calls})

    def apply(self, event: Event, view: SessionView) -> None:
        match event:
            case ToolUse() if not event.is_inside:
                self.calls[event.tool_use_id] = view.calls[event.tool_use_id]
                self.ended = None
            case ToolResult() if (record := self.calls.get(event.tool_use_id)) is not None:
                # The first result counts: the body has already received it.
                record.result = record.result or event
                self.finished += 1
                if record.use.name == "publish" and record.started is None:
                    self.published[str(record.use.input.get("name"))] = event.output
                if (event_seq := (event.meta or {}).get("event_seq")) is not None:
                    self.taken.add(event_seq)
            case UserMessage() if event.origin == "user" or event.about == RESTARTED:
                if event.about == RESTARTED:
                    self.calls, self._kept = {}, {}
                self.prompt, self.prompt_seq, self.ended = event.text, event.seq or 0, None
            case Result() if event.stop_reason == "end":
                self.ended = event
            case SessionForked():
                self.taken = set()  # those were events of the source: a fork has an inbox of its own
            case RecordErasing():
                self.erased.update(place["seq"] for place in event.fields if isinstance(place.get("seq"), int))
            case SessionRewound():
                self._rewind(event.to_seq, {record.use.tool_use_id for record in view.open_calls()})

    def _rewind(self, to_seq: int, open_ids: Container[str]) -> None:
        """Forget what was undone; a call that started up to event `to_seq` and ended after it has no result again.

        Calls without a result are made again unless they are still open (`open_ids`), because nobody could answer a question
        of theirs. An unsafe one that was started is never made again.
        """
        # The steps from a checkpoint are expanded to records, because the rewind may remove some of them.
        self.calls = {call_id: call for call_id in self.ids() if (call := self.find(call_id)) is not None}
        self._kept = {}
        if self.ended is not None and (self.ended.seq or 0) > to_seq:
            self.ended = None
        if self.prompt_seq > to_seq:
            self.prompt, self.calls = None, {}
        for call_id, record in list(self.calls.items()):
            event_seq = 0 if record.result is None else (record.result.meta or {}).get("event_seq", 0)
            if (record.use.seq or 0) > to_seq:
                del self.calls[call_id]
                self.taken.discard(event_seq)
            elif record.result is not None and (record.result.seq or 0) > to_seq:
                self.taken.discard(event_seq)
                record = self.calls[call_id] = CallRecord(
                    record.use, record.decision, record.started, None, record.attempts
                )
            is_unsafe = record.started is not None and record.started.effect not in REPEATABLE
            if record.result is None and not is_unsafe and call_id not in open_ids:
                self.calls.pop(call_id, None)

    def in_force(self, view: SessionView, cut: Cut) -> Iterable[int]:
        """Yield the `seq` of the events of calls that have not ended, whose results may still arrive, and of the end."""
        if self.ended is not None:
            yield self.ended.seq or 0
        for record in self.calls.values():
            if record.result is None:
                parts = record.use, record.decision, record.started
                yield from (part.seq or 0 for part in parts if part is not None)

    def kept(self) -> Mapping[str, Any]:
        rows = {call_id: _row(record) for call_id, record in self.calls.items() if record.result is not None}
        return {
            "steps": {**self._kept, **rows},
            "prompt": self.prompt,
            "prompt_seq": self.prompt_seq,
            "taken": sorted(self.taken),
            "published": self.published,
            "erased": sorted(self.erased),
        }

    def restore(self, kept: Mapping[str, Any]) -> None:
        self._kept, self.prompt, self.taken = dict(kept["steps"]), kept["prompt"], set(kept["taken"])
        self.published, self.prompt_seq, self.erased = dict(kept["published"]), kept["prompt_seq"], set(kept["erased"])
        self.calls = {call_id: record for call_id, record in self.calls.items() if call_id not in self._kept}
        self.finished = 0


def _row(record: CallRecord) -> list[Any]:
    use, result, started = record.use, record.result, record.started
    assert result is not None
    error = [result.error_type, result.error_message] if result.is_error else None
    effect = None if started is None else started.effect
    meta = {name: value for name, value in (result.meta or {}).items() if name in ("is_text", "event_seq")}
    return [use.seq, use.name, use.input, use.extras, result.seq, result.outcome, result.output, error, effect, meta]


def _record(call_id: str, row: list[Any]) -> CallRecord:
    use_seq, name, input, extras, seq, outcome, output, error, effect, meta = row
    error_type, error_message = error or (None, None)
    use = changed(ToolUse(call_id, name, input, extras=extras), seq=use_seq)
    result = ToolResult(call_id, output, error is not None, error_type, error_message, outcome, meta=meta or None)
    started = None if effect is None else ToolStarted(call_id, name, effect, "", "")
    return CallRecord(use, started=started, result=changed(result, seq=seq))
