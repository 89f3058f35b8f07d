"""The only place where tests wait for real time to pass, and only if there is no event to wait for.

A test waits for events of its own process (`asyncio.Event`, a condition, a fake clock). Changes in another process, a
server or the file system send no event: `until` and `until_async` poll for them, and fail at their limit. `pause` is for
tests whose subject is time itself.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Callable
from typing import NoReturn, TypeVar

Found = TypeVar("Found")

# Longer than any wait takes, however busy the machine.
LIMIT_S = 300.0
# The polling interval: at first, its growth per second of waiting, and its maximum. Many a poll starts a program.
LOOK_S, LOOK_GROWS, LOOK_MOST_S = 0.005, 0.1, 0.05


def until(holds: Callable[[], Found], what: str | Callable[[], str], limit_s: float = LIMIT_S) -> Found:
    """Poll `holds` until it returns a true value, and return that. Raise `AssertionError` with `what` at the limit."""
    began = time.monotonic()
    while not (found := holds()):
        time.sleep(_until_next_look_s(began, limit_s, what))
    return found


async def until_async(
    holds: Callable[[], Found | Awaitable[Found]], what: str | Callable[[], str], limit_s: float = LIMIT_S
) -> Found:
    """Like `until`, without blocking the event loop; `holds` may be async."""
    began = time.monotonic()
    while True:
        answer = holds()
        found: Found = await answer if inspect.isawaitable(answer) else answer
        if found:
            return found
        await asyncio.sleep(_until_next_look_s(began, limit_s, what))


def _until_next_look_s(began: float, limit_s: float, what: str | Callable[[], str]) -> float:
    waited_s = time.monotonic() - began
    if waited_s > limit_s:
        raise AssertionError(f"timed out waiting until {what if isinstance(what, str) else what()}")
    return min(LOOK_MOST_S, LOOK_S + LOOK_GROWS * waited_s)


def pause(seconds: float, reason: str) -> None:
    """Sleep for real time. `reason` documents why, and must not be empty."""
    assert reason
    time.sleep(seconds)


def hang() -> NoReturn:
    """Block for ever, like code that hangs."""
    while True:
        threading.Event().wait(LIMIT_S)
