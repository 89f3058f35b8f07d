"""Notify the trace exporter of a run's stored events, and the user of a collector that rejects them."""

from __future__ import annotations

from collections.abc import Sequence

from ....events import Event, SystemNotice
from ....kernel.agent import Run
from ....kernel.lifetime import RunStopped
from ....kernel.part import Part
from .exporter import Exporter


class Traces(Part):
    """A part that passes stored events to an exporter.

    A collector's rejection becomes one notice, in whichever run is active then.
    """

    def __init__(self, run: Run, exporter: Exporter) -> None:
        super().__init__(run)
        self._exporter = exporter

    def stored(self, events: Sequence[Event]) -> None:
        self._exporter.notify(self.run.session_id, events)

    async def before_step(self) -> None:
        if (complaint := self._exporter.health.take_complaint()) is not None:
            await self.run.record(SystemNotice("telemetry.refused", complaint))

    async def end(self, ending: RunStopped) -> RunStopped:
        await self.before_step()
        return ending
