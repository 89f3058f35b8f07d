"""Let a time limit run out when a test says so: the running event loop's own clock is moved on, nobody waits."""

from __future__ import annotations

import asyncio


def skip_time(seconds: float) -> None:
    """Whatever the running loop would do within the next `seconds` is due at once."""
    loop = asyncio.get_running_loop()
    before = loop.time
    loop.slow_callback_duration = float("inf")  # debug mode would tell of the time that was skipped
    loop.time = lambda: before() + seconds  # type: ignore[method-assign]
