"""Carry items from blocking code in a thread to one consumer on an event loop, many at a time.

One wake-up of the loop delivers all waiting items, which makes a thread per stream cheap. The thread waits if the consumer
is slow, ends if the consumer stops, and is joined: no thread outlives its stream, unless a DNS lookup blocks it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any

from ...ground.threads import running_loop

# Far more than one read returns, far less than 64 slow streams may use together.
MAX_WAITING_BYTES = 64 * 1024
# A DNS lookup in a thread cannot be interrupted; after this many seconds it is left to end by itself. All other threads
# end within milliseconds.
JOIN_TIMEOUT_S = 0.5


class FeedStopped(Exception):
    """Raised in the feed's thread, and only there, if the consumer is gone and the thread must end."""


class ThreadFeed:
    """A feed of items from `work(feed)`, which runs in its own thread, in a copy of this context.

    `take` returns the items that the work puts, and raises the error with which the work ended. `interrupt` is called to
    wake the thread from a blocking call; it runs on the loop and must not block.
    """

    def __init__(self, work: Callable[[ThreadFeed], None], *, interrupt: Callable[[], None] | None = None) -> None:
        self._interrupt = interrupt
        self._loop = running_loop("a request to a model")
        # `append` and `popleft` of a deque are atomic, so that the two sides need no lock.
        self._items: deque[Any] = deque()
        self._wake_event = asyncio.Event()
        self._is_notified = False
        self._bytes_put = 0  # written by the thread only
        self._bytes_taken = 0  # written by the loop only
        self._room = threading.Event()
        self._stopped = False
        self._error: BaseException | None = None
        self._is_done = False
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._work = work
        # daemon: a thread that is stuck in a DNS lookup must not keep the interpreter from exiting.
        self._thread = threading.Thread(
            target=partial(copy_context().run, self._run), name="openagentic-stream", daemon=True
        )
        self._thread.start()

    # --- in the thread -----------------------------------------------------------------------------------------------

    def put(self, item: Any, size: int = 1) -> None:
        """Hand over an item of `size` bytes, then wait while more than `MAX_WAITING_BYTES` are not yet taken.

        Raises `FeedStopped` if the consumer is gone.
        """
        self._items.append(item)
        self._bytes_put += size
        # One wake-up for all items until the loop has looked: `call_soon_threadsafe` writes to a socket each time.
        if not self._is_notified:
            self._is_notified = True
            self.call_on_loop(self._wake_event.set)
        while self._bytes_put - self._bytes_taken > MAX_WAITING_BYTES and not self._stopped:
            # Check again after clear(): mark_taken() may have set the event just before, and would not do so again.
            self._room.clear()
            if self._bytes_put - self._bytes_taken > MAX_WAITING_BYTES and not self._stopped:
                self._room.wait()
        if self._stopped:
            raise FeedStopped

    def call_on_loop(self, callback: Callable[[], None]) -> None:
        """Schedule a callback on the consumer's loop. Raises `FeedStopped` if the loop is closed."""
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError as error:
            raise FeedStopped from error

    def _run(self) -> None:
        try:
            self._work(self)
        except FeedStopped:
            pass
        except BaseException as error:  # noqa: BLE001 - carried to the consumer, whatever its type
            # An error that the watch set is the cause; what the interrupted thread raises afterwards is a consequence.
            self._error = self._error or error
        with suppress(FeedStopped):  # the loop is closed: there is no consumer to notify
            self.call_on_loop(self._end)

    # --- on the loop -------------------------------------------------------------------------------------------------

    async def take(self) -> list[Any]:
        """Wait for items and return all of them; an empty list at the end. Raises the work's error after its items."""
        if self._items:
            await asyncio.sleep(0)  # or a thread that is always faster would keep the loop from doing anything else
        while True:
            # Reset before the queue is emptied: an item that is put afterwards then wakes the loop again.
            self._is_notified = False
            items = []
            while self._items:
                items.append(self._items.popleft())
            if items:
                return items
            if self._error is not None and (self._is_done or self._stopped):
                raise self._error
            if self._is_done or self._stopped:
                return []
            await self._wake_event.wait()
            self._wake_event.clear()

    @property
    def has_waiting_items(self) -> bool:
        """Whether items are waiting because the consumer is slower than the thread."""
        return bool(self._items)

    def mark_taken(self, size: int) -> None:
        """Count `size` bytes of the items as consumed, so that the thread may put more."""
        self._bytes_taken += size
        if not self._room.is_set():
            self._room.set()

    def fail(self, error: BaseException) -> None:
        """End the feed with this error, whatever the thread is doing; no effect if the work has ended."""
        if not self._is_done:
            self._error = error
            self._stop()

    async def aclose(self) -> None:
        """Stop the thread and wait for its end, at most `JOIN_TIMEOUT_S`; a cancellation is raised only after that."""
        self._stop()
        deadline = self._loop.time() + JOIN_TIMEOUT_S
        cancelled = False
        while not self._ended.done() and self._loop.time() < deadline:
            try:
                await asyncio.wait({self._ended}, timeout=deadline - self._loop.time())
            except asyncio.CancelledError:
                cancelled = True
        if self._ended.done():
            self._thread.join()  # the thread reported its end as its last step: microseconds
        if cancelled:
            raise asyncio.CancelledError

    def _stop(self) -> None:
        if self._is_done or self._stopped:
            return
        # Before the thread is woken: it must find out why.
        self._stopped = True
        self._room.set()
        self._wake_event.set()
        if self._interrupt is not None:
            self._interrupt()

    def _end(self) -> None:
        self._is_done = True
        self._wake_event.set()
        if not self._ended.done():
            self._ended.set_result(None)
