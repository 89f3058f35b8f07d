"""An event loop whose clock a schedule puts forward, and threads whose work is done where they are started."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, TypeVar

from openagentic_sdk.ground import threads

T = TypeVar("T")


class SlowLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock is ahead by the time that slow things would have taken."""

    late_s = 0.0

    def time(self) -> float:
        return super().time() + self.late_s


def run_in_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run it in a loop of its own, which reports nothing about the tasks of a life that was killed."""
    with asyncio.Runner(loop_factory=SlowLoop) as runner:
        runner.get_loop().set_exception_handler(lambda loop, context: None)
        return runner.run(work)


class ThreadInPlace:
    """A thread whose work is done when it starts: it costs less, and its order is that of the seed."""

    name = ""

    def __init__(self, target: Callable[[], object], **how: object) -> None:
        self.start = target

    def join(self) -> None:
        """It has ended."""


class KeptInPlace:
    """In place of a thread that does one piece of work after the other."""

    def __init__(self) -> None:
        self.due = SimpleNamespace(put=lambda work: work())
        self.thread = ThreadInPlace(lambda: None)

    def end(self) -> None:
        """It has ended."""


@contextmanager
def without_threads() -> Iterator[None]:
    """Let calls of stores, and whatever else leaves an event loop, be done in it."""
    real = threads.threading, threads._KeptThread
    vars(threads).update(
        threading=SimpleNamespace(**{**vars(threading), "Thread": ThreadInPlace}), _KeptThread=KeptInPlace
    )
    try:
        yield
    finally:
        vars(threads).update(threading=real[0], _KeptThread=real[1])
