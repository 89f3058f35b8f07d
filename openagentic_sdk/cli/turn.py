"""One prompt of the command line: its events are shown as they come, and after Ctrl-C those that closed the run."""

from __future__ import annotations

import asyncio
from typing import Protocol

from ..api import query
from ..events import Event, ModelRetry, Result, SystemInit
from ..options import OpenAgenticOptions
from ..runtime.masking import shown
from ..runtime.prompt import OnePrompt
from ..serialization import dumps_event
from ..sessions.base import SessionStore
from .countdown import Countdown
from .exits import FAILED, INTERRUPTED, OK


class Printer(Protocol):
    """Where events go."""

    def show(self, event: Event) -> None: ...


class JsonPrinter:
    """Prints every event as one line of JSON, in the form of the log."""

    def learn(self, event: Event) -> None:
        """Nothing: lines of JSON stand alone."""

    def show(self, event: Event) -> None:
        print(dumps_event(shown(event)), flush=True)


class Turn:
    """One prompt on one session. `session_id` is None until the run has begun."""

    def __init__(self, options: OpenAgenticOptions, printer: Printer, countdown: Countdown | None = None) -> None:
        self._options = options
        self._printer = printer
        self._countdown = countdown
        self._last_seq = 0
        self._result: Result | None = None
        self.session_id: str | None = None

    def play(self, runner: asyncio.Runner, prompt: OnePrompt) -> int:
        """Run the prompt to its end; returns the exit code. Ctrl-C ends the run cleanly and keeps the session."""
        try:
            runner.run(self._show_events(prompt))
        except KeyboardInterrupt:
            self._show_ending()
            return INTERRUPTED
        return exit_code(self._result)

    async def _show_events(self, prompt: OnePrompt) -> None:
        try:
            async for event in query(prompt=prompt, options=self._options):
                self._show(event)
        finally:
            if self._countdown is not None:
                self._countdown.stop()

    def _show(self, event: Event) -> None:
        if self._countdown is not None:
            self._countdown.stop()
        if event.parent_tool_use_id is None:
            self._remember(event)
        self._printer.show(event)
        if self._countdown is not None and isinstance(event, ModelRetry):
            self._countdown.start(event.delay_s)

    def _remember(self, event: Event) -> None:
        self._last_seq = event.seq or self._last_seq
        if isinstance(event, SystemInit):
            self.session_id = event.session_id
        elif isinstance(event, Result):
            self._result = event

    def _show_ending(self) -> None:
        """A run that is cut off closes its log without anybody listening: show what it wrote."""
        store = self._options.session_store
        if self.session_id is not None and isinstance(store, SessionStore):
            for event in store.iter_events(self.session_id, after_seq=self._last_seq):
                self._printer.show(event)


def exit_code(result: Result | None) -> int:
    """0 for a run that reached its end, 130 for an interrupted one, 1 for any other."""
    if result is None:
        return FAILED
    return {"end": OK, "interrupted": INTERRUPTED}.get(result.stop_reason, FAILED)
