"""A clock that moves only under the control of a test."""

from __future__ import annotations

import asyncio


class FakeClock:
    """A clock controlled by a test. Sleeping advances it at once, so nothing waits; `slept` records each sleep's seconds."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self._now = now
        self._monotonic = 0.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    async def sleep(self, delay_s: float) -> None:
        self.slept.append(delay_s)
        self.advance(delay_s)
        await asyncio.sleep(0)

    def advance(self, seconds: float) -> None:
        """Advance the wall clock and the monotonic time."""
        self._now += seconds
        self._monotonic += seconds

    def set_now(self, now: float) -> None:
        """Set the wall clock, as a person or a time server may; monotonic time does not change."""
        self._now = now
