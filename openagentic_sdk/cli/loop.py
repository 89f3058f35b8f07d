"""A command's event loop: created only if its file descriptors can be opened; Ctrl-C does not interrupt its shutdown."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from ..ground.signals import handled_signals

_Answer = TypeVar("_Answer")
# A loop has a selector and a pair of sockets, and needs one more file descriptor to do anything.
_PIPES = 2


def run_async(coroutine: Coroutine[Any, Any, _Answer]) -> _Answer:
    """Run a coroutine to its end in a new event loop, as `asyncio.run` does. Raises `OSError` if none can be created."""
    try:
        with event_loop() as runner:
            return runner.run(coroutine)
    finally:
        coroutine.close()  # if it never began, Python would warn about it


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report an error that nobody awaits, except the `KeyboardInterrupt` of a second Ctrl-C, which also ended the loop."""
    if not isinstance(context.get("exception"), KeyboardInterrupt | SystemExit):
        loop.default_exception_handler(context)


@contextmanager
def event_loop() -> Iterator[asyncio.Runner]:
    """Provide a runner for the block, and close it afterwards.

    A Ctrl-C during the closing takes effect when the runner is closed, a second one immediately.
    """
    opened = list[int]()
    try:
        for _ in range(_PIPES):  # asyncio prints a traceback if its own attempt fails halfway
            opened += os.pipe()
    finally:
        for descriptor in opened:
            os.close(descriptor)
    runner = asyncio.Runner()
    try:
        runner.get_loop().set_exception_handler(_report)
        yield runner
    finally:
        interrupted = False

        def note(number: int, frame: FrameType | None) -> None:
            nonlocal interrupted
            signal.signal(number, signal.SIG_DFL)
            interrupted = True

        with handled_signals([signal.SIGINT], note):
            runner.close()
        if interrupted:
            raise KeyboardInterrupt
