"""Lines from a stdin that is not a terminal, read without blocking the event loop or signals.

A line of a pipe may take an hour to arrive. Python's own reader would block in the system call until then, and block the
event loop with it; here the pipe is read only if it has data.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections.abc import Awaitable, Callable
from functools import cache

_MOST_AT_ONCE = 65_536
# The longest delay of a signal.
_SIGNAL_S = 0.5


class PipedLines:
    """The lines of an open pipe or regular file."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._buffer = b""
        self._ended = False

    async def next_line(self, wait: Callable[[int], Awaitable[None]]) -> str | None:
        """Return the next line without its newline, None at end of file; `wait` returns when the descriptor can be read.

        If the call is cancelled, an incomplete line is kept for the next one.
        """
        while not self._has_line():
            await wait(self._descriptor)
            self._read()
        return self._take()

    def next_line_now(self) -> str | None:
        """Like `next_line`, but blocking, for synchronous code."""
        while not self._has_line():
            with contextlib.suppress(OSError):  # Windows waits for sockets only; there the read itself waits
                # A signal just before the call does not interrupt it: Python runs its handler when the call returns.
                if not select.select([self._descriptor], [], [], _SIGNAL_S)[0]:
                    continue
            self._read()
        return self._take()

    def _has_line(self) -> bool:
        return self._ended or b"\n" in self._buffer

    def _read(self) -> None:
        data = os.read(self._descriptor, _MOST_AT_ONCE)
        self._ended = not data
        self._buffer += data

    def _take(self) -> str | None:
        line, end, rest = self._buffer.partition(b"\n")
        if not end and not line:
            return None
        self._buffer = rest
        return line.removesuffix(b"\r").decode(sys.stdin.encoding or "utf-8", "replace")


def piped_stdin() -> PipedLines | None:
    """The lines of stdin; None if it is a terminal, or a Python stream without a file descriptor.

    Each call returns the same object, which holds what was read ahead.
    """
    try:
        return None if sys.stdin.isatty() else _lines_of(sys.stdin.fileno())
    except (AttributeError, OSError, ValueError):
        return None


@cache
def _lines_of(descriptor: int) -> PipedLines:
    return PipedLines(descriptor)
