"""Time as an argument: the one place that asks the machine what time it is.

`SystemClock` is the default everywhere; tests pass a clock of their own (`openagentic_sdk.testing.FakeClock`).
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol, runtime_checkable


def elapsed_s() -> float:
    """Seconds since this machine was started, where it counts those, also those in which it slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


@runtime_checkable
class Clock(Protocol):
    """Three questions about time. `now` may jump and is only ever information; waiting and measuring use the others."""

    def now(self) -> float:
        """Seconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back."""
        ...

    async def sleep(self, delay_s: float) -> None:
        """Come back after `delay_s` seconds."""
        ...


class SystemClock:
    """The machine's own time."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
