"""A session's own spending, each model call and subagent once, and its total usage."""

from __future__ import annotations

from collections.abc import Iterable

from ....events import Event, ModelResponse, SessionForked, SubagentFinished
from ....sessions.folds.usage import Usage, add_usage


def usage(events: Iterable[Event]) -> Usage | None:
    """A session's total usage, including its subagents; None if no endpoint reported any."""
    total: Usage | None = None
    for event in own_spending(events):
        total = add_usage(total, event.usage)
    return total


def own_spending(events: Iterable[Event]) -> list[ModelResponse | SubagentFinished]:
    """The events that record this session's own spending, each once.

    Events copied by a fork were paid for by its parent. A caller's list of events also contains those of subagents, whose
    sum is in `subagent.finished`; their `parent_tool_use_id` differs from that of the session's own events.
    """
    spending: list[ModelResponse | SubagentFinished] = []
    seqs: set[int] = set()
    own_parent: list[str | None] = []
    for event in events:
        own_parent = own_parent or [event.parent_tool_use_id]
        if event.parent_tool_use_id != own_parent[0] or event.seq in seqs:
            continue
        if isinstance(event, SessionForked):
            spending.clear()
        elif isinstance(event, ModelResponse | SubagentFinished):
            spending.append(event)
            if event.seq is not None:
                seqs.add(event.seq)
    return spending
