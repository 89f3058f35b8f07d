"""Let a timeout expire at once: advance the clock of the running event loop instead of waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class _MovedClock:
    """A loop's clock, advanced by `skipped_s`; code that kept a reference to it sees later skips too."""

    def __init__(self, before: Callable[[], float]) -> None:
        self._before = before
        self.skipped_s = 0.0

    def __call__(self) -> float:
        return self._before() + self.skipped_s


def skip_time(seconds: float) -> None:
    """Advance the running loop's clock by `seconds`: every timer due within that time fires at once."""
    loop = asyncio.get_running_loop()
    clock = loop.time if isinstance(loop.time, _MovedClock) else _MovedClock(loop.time)
    clock.skipped_s += seconds
    loop.slow_callback_duration = float("inf")  # debug mode would log the skipped time as a slow callback
    loop.time = clock  # type: ignore[method-assign]
