"""Tell followers in this process, and collectors of traces, what a run stores or shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..events import Event
from ..kernel.agent import Run
from ..kernel.part import Part


class Publishing(Part):
    """Passes on the events of a run, with its session's id, as soon as they are stored."""

    def __init__(self, run: Run, tell: Callable[[str, Sequence[Event]], None]) -> None:
        super().__init__(run)
        self._tell = tell

    def stored(self, events: Sequence[Event]) -> None:
        self._tell(self.run.session_id, events)
