"""Handle signals for the length of a block, and leave those alone that the process ignores."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

# Sent by service managers (SIGTERM) and by terminals that close (SIGHUP, which Windows lacks).
STOP_SIGNALS = [number for name, number in signal.Signals.__members__.items() if name in ("SIGTERM", "SIGHUP")]


def end_signals() -> list[int]:
    """The signals that end a service in order: SIGTERM, SIGINT and SIGHUP, unless ignored, as SIGHUP is under nohup."""
    return [int(number) for number in (*STOP_SIGNALS, signal.SIGINT) if signal.getsignal(number) is not signal.SIG_IGN]


@contextmanager
def handled_signals(
    numbers: Iterable[int], handle: Callable[[int, FrameType | None], None]
) -> Iterator[dict[int, Any]]:
    """Call `handle` for these signals during the block; yields the handlers that it replaces, by number.

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
