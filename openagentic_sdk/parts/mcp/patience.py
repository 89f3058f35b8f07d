"""How long requests may take, watched by one timer for all of them, since most are over long before it rings.

A request is given up when the server was silent for too long, or when it takes too long at all. The time in which a person
answers the server's question counts for neither.
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
    """A request on its way, and the task that waits for it; `about` is whatever belongs to it, `token` its number.

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
        self._before = task.cancelling()
        self._idle_s = idle_s
        self._heard_at = now
        self._asked_at: float | None = None
        self._asking = 0

    @property
    def due(self) -> float | None:
        """When it is given up, unless the server says something; None while a person is asked."""
        return None if self._asked_at is not None else min(self._heard_at + self._idle_s, self.ends_at)

    async def inside(self, work: Coroutine[Any, Any, R]) -> R:
        """Do what the server's message asks for in the context of the request, not in that of the connection."""
        return await asyncio.get_running_loop().create_task(work, context=self._context.copy())

    def hear(self, now: float) -> None:
        """The server gave a sign of life."""
        self._heard_at = now

    def pause(self, now: float) -> None:
        """A person is asked."""
        self._asking += 1
        self._asked_at = self._asked_at or now

    def go_on(self, now: float) -> None:
        """The person has answered."""
        self._asking -= 1
        if self._asking == 0 and self._asked_at is not None:
            self.ends_at += now - self._asked_at
            self._asked_at, self._heard_at = None, now

    def give_up(self, failure: BaseException | None = None) -> None:
        """Wake the task that waits; `failure` is what it is to raise, None when it took too long."""
        if not self.is_late:
            self.is_late, self.failure = True, failure
            self._task.cancel()

    async def end_helpers(self) -> None:
        """End what was asked of a person on behalf of this request, and wait for that."""
        for helper in self.helpers:
            helper.cancel()
        if self.helpers:
            await asyncio.wait(set(self.helpers))

    def was_given_up(self) -> bool:
        """Whether the task was cancelled by `give_up` alone; then the cancellation is taken back."""
        return self.is_late and self._task.uncancel() <= self._before


class Patience(Generic[T]):
    """The requests of one connection."""

    def __init__(self) -> None:
        self.open: dict[int, PendingRequest[T]] = {}
        self._tokens = count(1)
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, about: T, idle_s: float, total_s: float) -> PendingRequest[T]:
        """A request goes out now; `end` it."""
        loop = asyncio.get_running_loop()
        task, now = asyncio.current_task(loop), loop.time()
        assert task is not None, "a request is made by a task"
        waiting = PendingRequest(next(self._tokens), task, about, idle_s, now + total_s, now)
        self.open[waiting.token] = waiting
        if self._timer is None:
            self._timer = loop.call_at(now + min(idle_s, total_s), self._look)
        return waiting

    def end(self, waiting: PendingRequest[T]) -> None:
        """The request is over."""
        del self.open[waiting.token]

    def close(self) -> None:
        """Watch no longer."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for waiting in list(self.open.values()):
            if waiting.due is not None and waiting.due <= now and not waiting.is_late:
                waiting.give_up()
        # A request that waits for a person is looked at again in a second.
        dues = [waiting.due or now + 1.0 for waiting in self.open.values() if not waiting.is_late]
        self._timer = loop.call_at(min(dues), self._look) if dues else None
