"""Time limits of requests, enforced by a single timer, since most requests end long before it fires.

A request is abandoned if the server is silent for too long, or if the answer takes too long in total. The time that a
person takes to answer the server's question counts towards neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import copy_context
from itertools import count
from typing import Any, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class PendingRequest(Generic[T]):
    """A pending request and the task that waits for it. `about` is arbitrary data, `token` a unique number.

    `helpers` are tasks that ask a person on its behalf.
    """

    def __init__(
        self, token: int, task: asyncio.Task[object], about: T, idle_s: float, ends_at: float, now: float
    ) -> None:
        self.token = token
        self.about = about
        self.is_late = False
        self.failure: BaseException | None = None
        self.helpers: set[asyncio.Task[object]] = set()
        self.ends_at = ends_at
        self._task = task
        self._context = copy_context()
        # Others may already have cancelled the task: only a count above this one is ours to withdraw.
        self._before = task.cancelling()
        self._idle_s = idle_s
        self._heard_at = now
        self._asked_at: float | None = None
        self._asking = 0

    @property
    def due(self) -> float | None:
        """The time at which the request is abandoned, `ends_at` or earlier if the server stays silent; None while a person
        is asked.
        """
        return None if self._asked_at is not None else min(self._heard_at + self._idle_s, self.ends_at)

    async def inside(self, work: Coroutine[Any, Any, R]) -> R:
        """Run the coroutine with the context variables of the request, instead of those of the connection."""
        return await asyncio.get_running_loop().create_task(work, context=self._context.copy())

    def hear(self, now: float) -> None:
        """Note a sign of life from the server."""
        self._heard_at = now

    def pause(self, now: float) -> None:
        """Suspend the time limits while a person is asked."""
        self._asking += 1
        # Several questions may be open at once: the pause begins with the first and ends with the last.
        self._asked_at = self._asked_at or now

    def go_on(self, now: float) -> None:
        """Resume the time limits after the person has answered."""
        self._asking -= 1
        if self._asking == 0 and self._asked_at is not None:
            self.ends_at += now - self._asked_at
            self._asked_at, self._heard_at = None, now

    def give_up(self, failure: BaseException | None = None) -> None:
        """Wake the waiting task so that it raises `failure`, or a timeout without `failure`."""
        if not self.is_late:
            self.is_late, self.failure = True, failure
            self._task.cancel()

    async def end_helpers(self) -> None:
        """Cancel the questions to a person on behalf of this request, and wait for them to end."""
        for helper in self.helpers:
            helper.cancel()
        if self.helpers:
            # A copy: a helper removes itself from the set when it ends.
            await asyncio.wait(set(self.helpers))

    def was_given_up(self) -> bool:
        """Withdraw the cancellation by `give_up`; return whether there was one and nobody else cancelled the task."""
        return self.is_late and self._task.uncancel() <= self._before


class Patience(Generic[T]):
    """The pending requests of one connection, and the timer that ends those that take too long."""

    def __init__(self) -> None:
        self.open: dict[int, PendingRequest[T]] = {}
        self._tokens = count(1)
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, about: T, idle_s: float, total_s: float) -> PendingRequest[T]:
        """Start the time limits of a request that is sent now. Must be followed by `end`."""
        loop = asyncio.get_running_loop()
        task, now = asyncio.current_task(loop), loop.time()
        assert task is not None, "a request is made by a task"
        waiting = PendingRequest(next(self._tokens), task, about, idle_s, now + total_s, now)
        self.open[waiting.token] = waiting
        if self._timer is None:
            self._timer = loop.call_at(now + min(idle_s, total_s), self._look)
        return waiting

    def end(self, waiting: PendingRequest[T]) -> None:
        """Remove a finished request."""
        del self.open[waiting.token]

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for waiting in list(self.open.values()):
            if waiting.due is not None and waiting.due <= now and not waiting.is_late:
                waiting.give_up()
        # A request that waits for a person is checked again after a second.
        dues = [waiting.due or now + 1.0 for waiting in self.open.values() if not waiting.is_late]
        self._timer = loop.call_at(min(dues), self._look) if dues else None
