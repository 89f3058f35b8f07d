"""A run in the form that scorers use: a pure fold over the events of its session."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..events import (
    AssistantMessage,
    Event,
    ModelRequest,
    ModelResponse,
    Outcome,
    Result,
    SessionForked,
    StopReason,
    SystemInit,
    ToolResult,
    ToolUse,
    UserMessage,
)
from ..ground.frozen import frozen
from ..kernel.loop import MAX_TEXT_TWICE
from ..parts.record.folds.prices import session_cost
from ..parts.record.folds.spending import usage


@frozen
class MadeCall:
    """A call that the model made, and its outcome as in `tool.result`; None if it has no result."""

    tool: str
    input: Mapping[str, Any]
    outcome: Outcome | None = None


@frozen(kw_only=True)
class Played:
    """A run. `events` are the session's, `own` those of the run itself: after the fork of a what-if, otherwise all.

    `difference` describes how a replay differs from the recording, None if it is equal or nothing was replayed. `cost_usd`
    is the cost of the run; for a replay, the cost of the recording.
    """

    session_id: str | None
    events: Sequence[Event]
    own: Sequence[Event]
    prompt: str
    final_text: str
    structured_output: Any
    stop_reason: StopReason | None
    error: str
    calls: Sequence[MadeCall]
    steps: int
    usage: Mapping[str, Any] | None
    cost_usd: float | None
    run_seq: int | None
    step_seq: int | None = None
    response_id: str | None = None
    difference: str | None = None

    def text_as_json(self) -> Any:
        """The JSON value of the final text, plain or in one ```json block. Raises `ValueError`, `RecursionError`."""
        text = self.final_text.strip()
        if text.startswith("```") and text.endswith("```") and "\n" in text:
            text = text[:-3].partition("\n")[2]
        return json.loads(text)


def played(
    session_id: str | None,
    events: Sequence[Event],
    *,
    spent: Sequence[Event] | None = None,
    is_fork: bool = False,
    difference: str | None = None,
) -> Played:
    """Fold these events into a run; the run's costs are those of the events in `spent`, if given.

    With `is_fork`, the run itself begins after the events copied from another session. `difference` is as in `Played`.
    """
    forks = [index for index, event in enumerate(events) if is_fork and isinstance(event, SessionForked)]
    own = list(events[forks[-1] + 1 :] if forks else events)
    paid = events if spent is None else spent
    results = [event for event in own if isinstance(event, Result)]
    result = results[-1] if results else None
    final = result.final_text if result is not None else ""
    answer = next(
        (event for event in reversed(own) if isinstance(event, AssistantMessage | ModelRequest | ToolUse)), None
    )
    # The log has the untruncated text; and if a process died after the answer, its resumed run had no text of its own.
    if isinstance(answer, AssistantMessage) and len(final) in (0, MAX_TEXT_TWICE):
        final = answer.text
    outcomes = {event.tool_use_id: event.outcome for event in own if isinstance(event, ToolResult)}
    prompts = [event.text for event in events if isinstance(event, UserMessage) and event.origin == "user"]
    located_events = own if spent is None else paid  # positions refer to the session that is named
    runs = [event.seq for event in located_events if isinstance(event, SystemInit)]
    return Played(
        session_id=session_id,
        events=events,
        own=own,
        prompt="\n\n".join(prompts),
        final_text=final,
        structured_output=None if result is None else result.structured_output,
        stop_reason=None if result is None else result.stop_reason,
        error="" if result is None else (result.error_message or ""),
        calls=[
            MadeCall(event.name, event.input, outcomes.get(event.tool_use_id))
            for event in own
            if isinstance(event, ToolUse)
        ],
        steps=sum(map(_asks, own)),
        usage=usage(paid),
        cost_usd=session_cost(paid),
        run_seq=runs[-1] if runs else None,
        step_seq=next((e.seq - 1 for e in reversed(located_events) if e.seq and _asks(e)), None),
        response_id=next((e.response_id for e in reversed(own) if isinstance(e, ModelResponse)), None),
        difference=difference,
    )


def _asks(event: Event) -> bool:
    return isinstance(event, ModelRequest) and event.purpose == "turn" and event.attempt == 1
