"""An event loop in its own thread, which runs coroutines for synchronous code in any number of threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncGenerator, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from ...errors import EventLoopError

T = TypeVar("T")


class LoopThread:
    """An event loop in its own thread, from its first coroutine until `close`.

    Closing cancels what is still running and closes the generators that were started in the loop.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ended = asyncio.Event()
        self._is_closed = False
        self._closing: set[asyncio.Task[None]] = set()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine in the loop and return its result.

        An exception in the waiting thread, such as Ctrl-C, cancels the coroutine. Raises the coroutine's errors, and
        `EventLoopError` if the loop is closed before the coroutine has finished.
        """
        with self._lock:
            if self._is_closed:
                work.close()
                raise EventLoopError(f"{self._name} was closed: create a new one")
            done = asyncio.run_coroutine_threadsafe(work, self._loop or self._start())
        try:
            return done.result()
        except concurrent.futures.CancelledError:
            raise EventLoopError(f"{self._name} was closed while a thread waited for an answer") from None
        finally:
            done.cancel()

    def close_soon(self, items: AsyncGenerator[Any, None]) -> None:
        """Close a generator that was started in this loop, without waiting.

        May be called from any thread, since garbage collection may be the caller.
        """
        if (loop := self._loop) is not None:
            with suppress(RuntimeError):  # the loop has ended, and has closed the generator
                loop.call_soon_threadsafe(self._close_items, loop, items)

    def close(self) -> None:
        """End the loop and its thread. Idempotent."""
        with self._lock:
            self._is_closed = True
            thread, self._thread, loop, self._loop = self._thread, None, self._loop, None
        if thread is not None and loop is not None:
            loop.call_soon_threadsafe(self._ended.set)
            if thread is not threading.current_thread():
                thread.join()

    def _start(self) -> asyncio.AbstractEventLoop:
        self._loop = loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_serve, args=(loop, self._ended), name=self._name, daemon=True)
        self._thread.start()
        return loop

    def _close_items(self, loop: asyncio.AbstractEventLoop, items: AsyncGenerator[Any, None]) -> None:
        if not self._is_closed:  # the end of the loop closes all generators
            task = loop.create_task(_close(items))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


def _serve(loop: asyncio.AbstractEventLoop, ended: asyncio.Event) -> None:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(ended.wait())


async def _close(items: AsyncGenerator[Any, None]) -> None:
    with suppress(RuntimeError):  # a generator that is still computing its next item was cancelled and ends by itself
        await items.aclose()
