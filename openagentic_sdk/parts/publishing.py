"""Pass a run's events, stored or only shown, on to followers in this process and to trace collectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..events import Event
from ..kernel.agent import Run
from ..kernel.part import Part


class Publishing(Part):
    """A part that passes on a run's events, with its session id, as soon as they are stored or shown."""

    def __init__(self, run: Run, tell: Callable[[str, Sequence[Event]], None]) -> None:
        super().__init__(run)
        self._tell = tell

    def stored(self, events: Sequence[Event]) -> None:
        self._tell(self.run.session_id, events)
