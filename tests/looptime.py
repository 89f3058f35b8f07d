"""Let a time limit run out when a test says so: the running event loop's own clock is moved on, nobody waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class _MovedClock:
    """A loop's clock, moved on; whoever keeps it sees the time that is skipped later, too."""

    def __init__(self, before: Callable[[], float]) -> None:
        self._before = before
        self.skipped_s = 0.0

    def __call__(self) -> float:
        return self._before() + self.skipped_s


def skip_time(seconds: float) -> None:
    """Whatever the running loop would do within the next `seconds` is due at once."""
    loop = asyncio.get_running_loop()
    clock = loop.time if isinstance(loop.time, _MovedClock) else _MovedClock(loop.time)
    clock.skipped_s += seconds
    loop.slow_callback_duration = float("inf")  # debug mode would tell of the time that was skipped
    loop.time = clock  # type: ignore[method-assign]
