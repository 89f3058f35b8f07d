"""Serve an editor over this process's stdin and stdout."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ...ground.stdio import Output, end_on_signals, read_lines
from ...sessions.base import SessionStore
from .agent import EditorAgent, MakeOptions

# A prompt may contain images and documents as base64.
MAX_LINE_BYTES = 64 << 20
# An editor that has closed its end kills the process after a second or two.
_LEAVE_S = 1.5


async def serve(
    make_options: MakeOptions, store: SessionStore, *, stdin: int, stdout: int, models: Sequence[str] = ()
) -> None:
    """Serve the editor at these descriptors until it closes its end, or until SIGTERM, SIGHUP or Ctrl-C.

    At the end, running turns are suspended so that they can be resumed, and an open question stays open.
    """
    output = Output(stdout)

    async def send(line: bytes) -> None:
        await output.send(line)
        if output.is_closed:  # the editor has stopped reading, so it will not answer either
            reading.cancel()

    agent = EditorAgent(make_options, store, send, models=models)
    reading = asyncio.create_task(read_lines(stdin, agent.peer.receive, MAX_LINE_BYTES))
    end_on_signals(reading)
    await asyncio.wait({reading})
    leaving = asyncio.create_task(agent.leave())
    await asyncio.wait({leaving}, timeout=_LEAVE_S)
    await output.close()  # releases sends that are blocked because the editor has stopped reading
    await leaving
    if not reading.cancelled():
        reading.result()
