"""Handle signals during a block, except those that the process ignores."""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

# Sent by service managers (SIGTERM) and by terminals that close (SIGHUP, which Windows lacks).
STOP_SIGNALS = [number for name, number in signal.Signals.__members__.items() if name in ("SIGTERM", "SIGHUP")]
# Sent by a key (Ctrl-\\), a limit (ulimit -t), a timer or another program: these end a process that does not handle them.
_DEADLY = ("SIGQUIT", "SIGXCPU", "SIGALRM", "SIGUSR1", "SIGUSR2")
_DEADLY_SIGNALS = [number for name, number in signal.Signals.__members__.items() if name in _DEADLY]
_restores: list[Callable[[], None]] = []


def end_signals() -> list[int]:
    """The signals that end a service in an orderly way: SIGTERM, SIGHUP and SIGINT, except those that are ignored."""
    return [int(number) for number in (*STOP_SIGNALS, signal.SIGINT) if signal.getsignal(number) is not signal.SIG_IGN]


@contextmanager
def handled_signals(
    numbers: Iterable[int], handle: Callable[[int, FrameType | None], None]
) -> Iterator[dict[int, Any]]:
    """Call `handle` for these signals during the block; yield the handlers that it replaces, by number.

    A signal that the process ignores stays ignored: SIGHUP under nohup, SIGINT in the background of a shell script. One that
    C code handles keeps that handler, which Python could not restore. Outside the main thread, Python sets no handlers.
    """
    before = dict[int, Any]()
    try:
        if threading.current_thread() is threading.main_thread():
            for number in numbers:
                if (handler := signal.getsignal(number)) not in (signal.SIG_IGN, None):
                    before[number] = handler
                    signal.signal(number, handle)
        yield before
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def restored_at_death(restore: Callable[[], None]) -> Iterator[None]:
    """Call `restore` before a signal ends the process during the block: a terminal keeps its mode when its program dies.

    The process still ends by that signal. SIGKILL leaves no time for anything.
    """

    def end(number: int, frame: FrameType | None) -> None:
        restore()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    deadly = [number for number in _DEADLY_SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    with handled_signals(deadly, end):
        _restores.append(restore)
        try:
            yield
        finally:
            _restores.remove(restore)


def send_to_main_thread(number: int) -> None:
    """Send this process a signal that also wakes its main thread from a wait, where the system can."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, number)
    else:
        _thread.interrupt_main(signal.Signals(number))


def end_at_next(number: int) -> None:
    """Let the next signal of this number end the process at once, even if no Python code runs in it any more."""
    signal.signal(number, signal.SIG_DFL)
    for restore in _restores:  # now, since nothing can be called then
        restore()
