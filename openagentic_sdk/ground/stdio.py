"""Lines over this process's stdin and stdout, which nothing else in the process may use at the same time."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from .jsonrpc import Lines
from .signals import end_signals
from .threads import run_in_thread

_READ_BYTES = 1 << 16
# With more unwritten bytes than this, senders wait.
_MAX_WAITING_BYTES = 1 << 20
_FLUSH_S = 0.5


class Output:
    """A queue of lines for a descriptor, written in order and off the event loop."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lines: list[bytes] = []
        self._size = 0
        self._writing: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self.is_closed = False

    async def send(self, line: bytes) -> None:
        """Queue a line; wait while the queue is full. Do nothing once the output is closed or its reader has gone."""
        if self.is_closed:
            return
        self._lines.append(line)
        self._size += len(line)
        if self._writing is None or self._writing.done():
            # One writer at a time: two threads could mix the pieces of two lines.
            self._writing = asyncio.create_task(self._write())
        while self._size > _MAX_WAITING_BYTES and not self.is_closed:
            self._room.clear()
            await self._room.wait()

    async def close(self) -> None:
        """Close the output, after waiting up to `_FLUSH_S` for the queue to be written; waiting senders return."""
        if self._writing is not None:
            await asyncio.wait({self._writing}, timeout=_FLUSH_S)
        self._end()

    def _end(self) -> None:
        self.is_closed = True
        self._lines.clear()
        self._room.set()

    async def _write(self) -> None:
        try:
            while self._lines:
                data = b"".join(self._lines)
                self._lines.clear()
                await run_in_thread(partial(_write_all, self._fd, data), name="openagentic-stdout", moment_s=0)
                # Only now, because what is being written is still in memory, and the other side may have stopped
                # reading.
                self._size -= len(data)
                self._room.set()
        except OSError:  # the peer is gone, which the reader notices, too
            self._end()


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


async def read_lines(fd: int, receive: Callable[[bytes | None], None], max_bytes: int) -> None:
    """Call `receive` with each line, as returned by `Lines.feed`, until the other side closes its end."""
    lines = Lines(max_bytes)
    # In a thread: stdin may be a regular file, which event loops refuse to watch (epoll_ctl(2), EPERM).
    while data := await run_in_thread(partial(os.read, fd, _READ_BYTES), name="openagentic-stdin", moment_s=0):
        for line in lines.feed(data):
            receive(line)


def end_on_signals(reading: asyncio.Task[None]) -> None:
    """Cancel this task on SIGTERM, SIGHUP or SIGINT, except ignored ones, if the event loop supports signal handlers."""
    loop = asyncio.get_running_loop()
    for number in end_signals():
        with suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, reading.cancel)


def take_stdio() -> tuple[int, int]:
    """Return this process's stdin and stdout as new descriptors.

    From then on prints go to stderr and reads find end of file, even in child processes and C libraries: one stray line
    would break the connection.
    """
    sys.stdout.flush()
    stdin, stdout = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    sys.stdout = sys.stderr
    return stdin, stdout
