"""The subagents that started and have not ended."""

from __future__ import annotations

from collections.abc import Iterable

from ....events import SubagentFinished, SubagentStarted
from ..view import Cut, Fold, SessionView


class SubagentsFold(Fold):
    """`open` maps the session of each such subagent to the event that started it."""

    name = "subagents"
    reads = (SubagentStarted, SubagentFinished)

    def __init__(self) -> None:
        self.open: dict[str, SubagentStarted] = {}

    def apply(self, event: SubagentStarted | SubagentFinished, view: SessionView) -> None:
        if isinstance(event, SubagentStarted):
            self.open[event.child_session_id] = event
        else:
            self.open.pop(event.child_session_id, None)

    def in_force(self, view: SessionView, cut: Cut) -> Iterable[int]:
        """Those of open subagents, and those of calls that the model still waits for."""
        return [
            event.seq or 0
            for event in view.events
            if (isinstance(event, self.reads) and event.tool_use_id in cut.open_call_ids)
            or (isinstance(event, SubagentStarted) and event.child_session_id in self.open)
        ]
