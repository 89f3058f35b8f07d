"""Run blocking store calls from coroutines in threads, under asyncio and trio, in the order of the calls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

from ...errors import EventLoopError
from ...ground.threads import run_in_thread

T = TypeVar("T")
_THREAD = "openagentic-store"


class InTurn:
    """A queue of blocking calls for each key, run one after the other in the order in which they were made.

    Calls with different keys overlap. A call whose waiter is cancelled still runs. Under an event loop other than asyncio's,
    threads come from anyio; `EventLoopError` is raised if anyio is not installed.
    """

    def __init__(self) -> None:
        self._last: dict[str, threading.Event] = {}

    async def call(self, key: str, work: Callable[[], T]) -> T:
        """Run the work in its turn; return its result or raise its exception."""
        before, done = self._last.get(key), threading.Event()
        self._last[key] = done
        has_begun = False

        def in_turn(happens: bool = True) -> T | None:
            nonlocal has_begun
            has_begun = True
            try:
                if before is not None:
                    before.wait()
                return work() if happens else None
            finally:
                done.set()
                if self._last.get(key) is done:
                    self._last.pop(key, None)

        try:
            answer: Any = await self._in_thread(in_turn)
            return answer  # type: ignore[no-any-return]
        finally:
            if not has_begun:
                # Cancelled before a thread was available: the next call waits for the one before this.
                threading.Thread(target=in_turn, args=(False,), daemon=True).start()

    def wait(self) -> None:
        """Block until all calls made so far have ended."""
        for done in list(self._last.values()):
            done.wait()

    @staticmethod
    async def _in_thread(work: Callable[[], T]) -> T:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            try:
                anyio = import_module("anyio.to_thread")
            except ModuleNotFoundError:
                raise EventLoopError(
                    "under an event loop other than asyncio's, a store needs anyio, which is not installed: pip install "
                    "anyio"
                ) from None
            answer: T = await anyio.run_sync(work)
            return answer
        return await run_in_thread(work, name=_THREAD, moment_s=0)
