"""Hand events from a run to its caller, one at a time.

The run waits until the caller asks for the next event. So a slow caller slows the run down, a caller that stops at an event
stops the run at exactly that point, and no sender runs ahead.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class EventChannel(Generic[T]):
    """A channel with many senders (a run and its subagents) and one receiver."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[T, asyncio.Future[None] | None]] = deque()
        self._arrival: asyncio.Future[None] | None = None
        self._in_hand: asyncio.Future[None] | None = None
        self.is_closed = False

    async def send(self, *events: T) -> None:
        """Show events one by one, and return once the receiver has finished with the last.

        They stay together and in order; cancelling the sender does not retract them. Nothing happens once the channel is
        closed.
        """
        if self.is_closed or not events:
            return
        handled = asyncio.get_running_loop().create_future()
        *first, last = events
        for event in first:
            self._waiting.append((event, None))
        # One future for the batch: the receiver takes events in order, so once it has finished with the last one, it has
        # finished with all of them.
        self._waiting.append((last, handled))
        _release(self._arrival)
        await handled

    async def receive(self) -> T | None:
        """Wait for the next event and return it; None once the channel is closed and empty."""
        # By asking for the next event, the receiver shows that it has finished with the last one.
        _release(self._in_hand)
        while not self._waiting:
            if self.is_closed:
                return None
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        event, self._in_hand = self._waiting.popleft()
        return event

    def close(self) -> None:
        """Stop accepting events: senders no longer wait, and the receiver drains the rest."""
        self.is_closed = True
        _release(self._arrival)
        _release(self._in_hand)
        for _, handled in self._waiting:
            _release(handled)


def _release(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
