"""An event loop whose clock a schedule advances, and threads that do their work in place when started."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar

from openagentic_sdk.ground import threads

T = TypeVar("T")


class FilelessLoop(asyncio.BaseEventLoop):
    """An event loop without files and threads."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = SimpleNamespace(select=self.wait)

    def wait(self, timeout_s: float | None) -> list[object]:
        """Wait for nothing but time."""
        return []

    def _process_events(self, events: Sequence[object]) -> None:
        """Do nothing: there are no files."""

    def _write_to_self(self) -> None:
        """Do nothing: there are no threads."""


class SlowLoop(FilelessLoop):
    """An event loop whose clock is ahead by the time that slow operations, and waits, would have taken."""

    late_s = 0.0

    def time(self) -> float:
        return super().time() + self.late_s

    def wait(self, timeout_s: float | None) -> list[object]:
        assert timeout_s is not None, "the loop waits for nothing"
        self.late_s += timeout_s
        return []


def run_in_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a new loop, which does not report the tasks of a killed life."""
    with asyncio.Runner(loop_factory=SlowLoop) as runner:
        runner.get_loop().set_exception_handler(lambda loop, context: None)
        return runner.run(work)


class ThreadInPlace:
    """A thread that does its work when started: this is faster, and keeps the order of the seed."""

    name = ""

    def __init__(self, target: Callable[[], object], do: Callable[[Any], object], **how: object) -> None:
        self.start = partial(do, target)

    def join(self) -> None:
        """Do nothing: it has already ended."""


class KeptInPlace:
    """A stand-in for a thread that does one piece of work after another."""

    def __init__(self, do: Callable[[Any], object]) -> None:
        self.due = SimpleNamespace(put=do)
        self.thread = SimpleNamespace(name="")

    def end(self) -> None:
        """Do nothing: it has already ended."""


@contextmanager
def without_threads(do: Callable[[Any], object] = lambda work: work()) -> Iterator[None]:
    """Run calls of stores, and all other work that would leave the event loop, in the loop, by `do`: at once, or later."""
    real = threads.threading, threads._KeptThread
    vars(threads).update(
        threading=SimpleNamespace(**{**vars(threading), "Thread": partial(ThreadInPlace, do=do)}),
        _KeptThread=partial(KeptInPlace, do),
    )
    try:
        yield
    finally:
        vars(threads).update(threading=real[0], _KeptThread=real[1])
