"""Show the model, once per run, the notes that agents keep for later sessions."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..errors import StorageError
from ..events import SystemNotice
from ..ground.threads import run_in_thread
from ..kernel.agent import Run
from ..kernel.context import Once
from ..kernel.part import Part


class Memories(Part):
    """A part that shows the model an overview of the notes from earlier sessions.

    `read` returns the overview, "" if there are no notes; it blocks, and may raise `StorageError`.
    """

    def __init__(self, run: Run, read: Callable[[], str]) -> None:
        super().__init__(run)
        self._read = read
        self._is_read = False
        self._facts: Mapping[str, str] = {}

    async def before_step(self) -> None:
        if self._is_read:
            return
        self._is_read = True
        try:
            text = await run_in_thread(self._read)
        except StorageError as error:
            await self.run.record(SystemNotice("memory", str(error)))
            return
        if text:
            self._facts = {"memories:": Once(text)}  # once, because the model itself makes any later change

    def facts(self) -> Mapping[str, str]:
        return self._facts
