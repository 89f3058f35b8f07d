"""Hand events from a run to its caller, one at a time.

The run waits until the caller comes back for the next event. So a caller that thinks slows the run down, a caller that
stops at an event stops the run right there, and nothing is buffered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

from ..threads import next_turn

T = TypeVar("T")


class EventChannel(Generic[T]):
    """Many senders (a run and its subagents), one receiver."""

    def __init__(self) -> None:
        self._waiting: deque[T] = deque()
        self._arrival: asyncio.Future[None] | None = None
        # How many events were sent, were taken, and were taken and done with: the receiver came back from them.
        self._sent = self._taken = self._handled = 0
        self._senders: deque[tuple[int, asyncio.Future[None]]] = deque()  # who waits until so many are done with
        self.is_closed = False

    async def send(self, *events: T) -> None:
        """Show events, one after the other, and wait until the receiver comes back from the last of them.

        They stay together and in order, and a sender that is cancelled does not take them back. Returns at once when
        nobody listens any more.
        """
        if self.is_closed or not events:
            return
        self._waiting.extend(events)
        self._sent = last = self._sent + len(events)
        _release(self._arrival)
        await next_turn()  # a receiver that was waiting goes first, and is mostly back by then
        if self._handled < last and not self.is_closed:
            handled = asyncio.get_running_loop().create_future()
            self._senders.append((last, handled))
            await handled

    async def receive(self) -> T | None:
        """The next event, or None after `close` when none is left."""
        self._handled = self._taken
        while self._senders and self._senders[0][0] <= self._handled:
            _release(self._senders.popleft()[1])
        while not self._waiting:
            if self.is_closed:
                return None
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        self._taken += 1
        return self._waiting.popleft()

    def close(self) -> None:
        """No more events: senders go on, the receiver gets what is left."""
        self.is_closed = True
        _release(self._arrival)
        for _, handled in self._senders:
            _release(handled)


def _release(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
