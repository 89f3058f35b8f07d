"""Clocks, which are passed as arguments, so that tests need not wait.

`SystemClock` is the default everywhere; tests pass their own clock (`openagentic_sdk.testing.FakeClock`).
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol, runtime_checkable


def elapsed_s() -> float:
    """Return the seconds since this machine was started, including time asleep if the system provides that."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


@runtime_checkable
class Clock(Protocol):
    """The interface of a clock. `now` may jump, so use it only for timestamps; measure and wait with the other methods."""

    def now(self) -> float:
        """Return the seconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Return the seconds since an arbitrary moment; never decreases."""
        ...

    async def sleep(self, delay_s: float) -> None:
        """Wait for `delay_s` seconds."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
