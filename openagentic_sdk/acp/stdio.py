"""The connection over this process's stdin and stdout, which nobody else may touch while it lasts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial

from ..jsonrpc import Lines
from ..sessions.base import SessionStore
from ..threads import in_daemon_thread
from .agent import EditorAgent, MakeOptions

# A prompt may hold pictures and documents, as base64.
MAX_LINE_BYTES = 64 << 20
_READ_BYTES = 1 << 16
# Whoever tells an editor more than it takes waits above this.
_MAX_WAITING_BYTES = 1 << 20
# An editor that has closed its end kills what stays longer than a second or two.
_LEAVE_S, _FLUSH_S = 1.5, 0.5


class Output:
    """Lines on their way to a descriptor, in the order in which they came; written beside the event loop."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lines: list[bytes] = []
        self._size = 0
        self._writing: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self.is_closed = False

    async def send(self, line: bytes) -> None:
        """Put a line behind the others; waits while too much waits. Nothing happens when nobody reads any more."""
        if self.is_closed:
            return
        self._lines.append(line)
        self._size += len(line)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())
        while self._size > _MAX_WAITING_BYTES and not self.is_closed:
            self._room.clear()
            await self._room.wait()

    async def close(self) -> None:
        """Write what waits, if it is taken within a moment; nobody waits for room any longer."""
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
                await in_daemon_thread(partial(_write_all, self._fd, data), "openagentic-acp-stdout")
                self._size -= len(data)
                self._room.set()
        except OSError:  # the editor is gone, which the reader hears too
            self._end()


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


async def serve(
    make_options: MakeOptions, store: SessionStore, *, stdin: int, stdout: int, models: Sequence[str] = ()
) -> None:
    """Speak with the editor at these descriptors until it closes its end, or SIGTERM or SIGHUP comes.

    Then what runs is ended so that it can go on, and an open question stays open.
    """
    output = Output(stdout)
    agent = EditorAgent(make_options, store, output.send, models=models)
    reading = asyncio.create_task(_read(stdin, agent))
    loop = asyncio.get_running_loop()
    for name in ("SIGTERM", "SIGHUP"):
        with contextlib.suppress(NotImplementedError, AttributeError, RuntimeError, ValueError):
            loop.add_signal_handler(getattr(signal, name), reading.cancel)
    await asyncio.wait({reading})
    leaving = asyncio.create_task(agent.leave())
    await asyncio.wait({leaving}, timeout=_LEAVE_S)
    await output.close()  # whoever waits for an editor that takes nothing any more goes on
    await leaving
    if not reading.cancelled():
        reading.result()


async def _read(stdin: int, agent: EditorAgent) -> None:
    lines = Lines(MAX_LINE_BYTES)
    while data := await in_daemon_thread(partial(os.read, stdin, _READ_BYTES), "openagentic-acp-stdin"):
        for line in lines.feed(data):
            agent.peer.receive(line)


def take_stdio() -> tuple[int, int]:
    """This process's stdin and stdout as descriptors of their own.

    From then on what anybody prints goes to stderr and whoever reads gets nothing, children and C libraries included: one
    stray line would end the connection.
    """
    sys.stdout.flush()
    stdin, stdout = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    sys.stdout = sys.stderr
    return stdin, stdout
