"""One prompt of the command line: its events are shown as they arrive, including those that close a stopped run."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from ...api import run_result
from ...events import Event, ModelRetry, Result
from ...ground.frozen import values_of
from ...ground.schemas.typed import to_json
from ...ground.signals import STOP_SIGNALS, end_at_next, handled_signals
from ...ground.text import printable
from ...kernel.task import RunTask
from ...parts.masking import shown
from ...prompts import Prompt
from ...runs.turns import Turns
from ...serialization import dumps_event
from ..exits import FAILED, INTERRUPTED, OK
from .terminal import Screen

TICK_S = 0.25
# A session that opens within this time is not worth a message.
READING_S = 2.0


class Printer(Protocol):
    """A destination for the events of a run."""

    def show(self, event: Event) -> None: ...


class JsonPrinter:
    """A printer of every event as one line of JSON, as in the log, with secrets masked."""

    def learn(self, event: Event) -> None:
        """Do nothing: lines of JSON are independent."""

    def show(self, event: Event) -> None:
        print(dumps_event(shown(event)), flush=True)


class ResultPrinter:
    """A printer that prints once, at the end of the run: the final answer, or the error.

    With `others`, a printer to which every event is passed on, it prints the whole result as a JSON object instead.
    """

    def __init__(self, others: Printer | None) -> None:
        self._others, self._events = others, list[Any]()

    def show(self, event: Event) -> None:
        self._events += () if event.seq is None else (event,)
        if self._others is not None:
            self._others.show(event)
        if not isinstance(event, Result) or event.parent_tool_use_id is not None:
            return
        result = run_result(self._events, event)
        if self._others is not None:
            fields = {name: value for name, value in values_of(result).items() if name != "events"}
            print(json.dumps(to_json(fields)), flush=True)
        elif event.stop_reason == "end":
            is_text = result.structured_output is None
            text = result.final_text if is_text else json.dumps(result.structured_output)
            print(printable(text) if sys.stdout.isatty() else text, flush=True)
        else:
            again = f"; continue with --resume {event.session_id}"
            why = event.error_message or f"the run ended with the stop reason {event.stop_reason}{again}"
            print(f"openagentic-sdk: {printable(why)}", file=sys.stderr, flush=True)


class Stopped(SystemExit):
    """An exception that ends a chat after SIGTERM or SIGHUP, the signal `number`."""

    # A `SystemExit`: from a callback, an event loop passes on only that and `KeyboardInterrupt`.
    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


@contextlib.contextmanager
def on_stop_signals(act: Callable[[int], None]) -> Iterator[None]:
    """Call `act` with the number of SIGTERM or SIGHUP during the block; a second one ends the process at once.

    A signal that the process ignores, such as SIGHUP under nohup, stays ignored.
    """

    def once(number: int, frame: object) -> None:
        end_at_next(number)
        act(number)

    with handled_signals(STOP_SIGNALS, once):
        yield


class Turn:
    """One turn of a session. `stopped_by` is the signal that ended it. With `suspends`, Ctrl-C acts like SIGTERM."""

    def __init__(
        self,
        turns: Turns,
        printer: Printer,
        countdown: Countdown | None = None,
        tick: Callable[[], None] | None = None,
        suspends: bool = False,
    ) -> None:
        self._turns = turns
        self._suspends = suspends
        self._printer = printer
        self._countdown = countdown
        self._tick = tick
        self._last_seq = 0
        self._result: Result | None = None  # set once it was shown, with advice on how to continue
        self.stopped_by: int | None = None

    def play(self, runner: asyncio.Runner, prompt: Prompt) -> int:
        """Run the prompt to its end; return the exit code. None continues where the session stopped.

        Ctrl-C ends the run and its open question for good; SIGTERM and SIGHUP end it so that it can be resumed.
        """
        try:
            return runner.run(self.show_events(prompt))
        except (KeyboardInterrupt, asyncio.CancelledError):
            # `CancelledError` if Ctrl-C interrupts a wait that was already cancelled.
            self.show_ending()
            return INTERRUPTED

    @property
    def running(self) -> RunTask | None:
        """The run, as long as it has no result."""
        return self._turns.running if self._turns.result is None else None

    def steer(self, text: str) -> bool:
        """Send a message to the running turn; the model reads it before its next step. Returns False if none is running."""
        if self.running is not None:
            self._turns.say(text)
        return self.running is not None

    def park(self) -> bool:
        """End the run so that its question stays open. Returns False if none is running."""
        if self.running is not None:
            self.running.suspend()
        return self.running is not None

    async def show_events(self, prompt: Prompt) -> int:
        """Like `play`, in a running event loop. The first Ctrl-C ends the run in an orderly way, the next one raises."""
        turns = self._turns
        reading = asyncio.get_running_loop().call_later(READING_S, self._note_reading)
        try:
            task = await turns.begin(prompt)
        finally:
            reading.cancel()
        ticking = asyncio.create_task(self._tick_on())
        loop = asyncio.get_running_loop()

        def interrupt(number: int, frame: object) -> None:
            """End the run in an orderly way at the first Ctrl-C; the next one does not wait for that."""
            # A handler runs between any two instructions of the main thread, so the task is only reached through its
            # loop, which this also wakes.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            loop.call_soon_threadsafe(task.suspend if self._suspends else task.interrupt)

        def suspend(number: int) -> None:
            self.stopped_by = number
            loop.call_soon_threadsafe(task.suspend)

        try:
            with handled_signals([signal.SIGINT], interrupt), on_stop_signals(suspend):
                while (event := await turns.next_event(task)) is not None:
                    self._show(event)
        except asyncio.CancelledError:
            # A signal during the recording of the result cancels the run, not this task; the run then does not show the
            # result.
            self.show_ending()
            if self._result is None or asyncio.current_task().cancelling():  # type: ignore[union-attr]
                raise
        finally:
            ticking.cancel()
            if self._countdown is not None:
                self._countdown.stop()
            await turns.end(task)
        return 128 + self.stopped_by if self.stopped_by is not None and self._is_unfinished else exit_code(self._result)

    def _note_reading(self) -> None:
        """Explain on stderr why nothing happens yet, unless the screen shows a line that the person is typing."""
        if sys.stderr.isatty() and not getattr(self._printer, "footer", None):
            with contextlib.suppress(OSError):
                text = "reading the session: its log is long or its store is slow (Ctrl-C to stop)"
                print(text, file=sys.stderr, flush=True)

    @property
    def _is_unfinished(self) -> bool:
        """Whether the turn can be continued, and was not over when a signal came."""
        return self._result is None or self._result.stop_reason in ("interrupted", "suspended")

    async def _tick_on(self) -> None:
        while self._tick is not None:
            await asyncio.sleep(TICK_S)
            self._tick()

    def say_how_to_go_on(self, store_flag: str = "") -> None:
        """If a signal stopped the turn, or it has no result, print the command that resumes the session to stderr."""
        was_stopped = self.stopped_by is not None and self._is_unfinished
        if self._turns.session_id is not None and (was_stopped or self._result is None):
            stopped = f"Stopped by {signal.Signals(self.stopped_by).name}. " if self.stopped_by is not None else ""
            command = f"openagentic-sdk chat --resume {printable(self._turns.session_id)}{store_flag}"
            with contextlib.suppress(OSError):  # the terminal may be what went away
                print(f"{stopped}Continue with: {command}", file=sys.stderr, flush=True)

    def _show(self, event: Event) -> None:
        if self._countdown is not None:
            self._countdown.stop()
        if event.parent_tool_use_id is None:
            self._last_seq = event.seq or self._last_seq
            self._result = event if isinstance(event, Result) else self._result
        # After SIGHUP the terminal may be gone; the run is still closed in an orderly way.
        with contextlib.suppress(OSError) if self.stopped_by is not None else contextlib.nullcontext():
            self._printer.show(event)
        if self._countdown is not None and isinstance(event, ModelRetry):
            self._countdown.start(event.delay_s)

    def show_ending(self) -> None:
        """Show the events that the run logged after the last one shown, while it was being stopped."""
        store, session_id = self._turns.store, self._turns.session_id
        if self._last_seq and store is not None and session_id is not None:
            for event in store.iter_events(session_id, after_seq=self._last_seq):
                self._show(event)


def exit_code(result: Result | None) -> int:
    """The exit code: 0 for a run that ended with a complete answer, 130 for an interrupted or suspended one, else 1."""
    if result is None:
        return FAILED
    if result.cut_by is not None:
        return FAILED
    return {"end": OK, "interrupted": INTERRUPTED, "suspended": INTERRUPTED}.get(result.stop_reason, FAILED)


class Countdown:
    """One line that counts down seconds and is removed at the end. Silent if the screen cannot rewrite its last line."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._task: asyncio.Task[None] | None = None

    def start(self, delay_s: float) -> None:
        """Count down from `delay_s` to 0, or until `stop`; a delay below 1 s is not shown."""
        if self._screen.can_rewrite and delay_s >= 1:
            self._task = asyncio.create_task(self._tick(delay_s))

    def stop(self) -> None:
        """Stop counting, and remove the line."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
            self._screen.rewrite("")

    async def _tick(self, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + delay_s
        while (left_s := ends_at - loop.time()) > 0:
            self._screen.rewrite(self._screen.styled(f"  in {math.ceil(left_s)} s", "yellow"))
            await asyncio.sleep(min(1.0, left_s))
