"""The one place where tests wait for real time to go by, and only where nothing could tell them more.

A test waits for an event of its own process (`asyncio.Event`, a condition, a fake clock). What happens in another process,
in a server or in the file system tells nobody here: `until` and `until_async` look again and again, and fail at their limit.
`pause` is for tests whose subject is time itself.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Callable
from typing import NoReturn, TypeVar

Found = TypeVar("Found")

# No test gets as far as this, however busy the machine.
LIMIT_S = 300.0
# Seconds between two looks: at first, how much longer for each second of waiting, and at most. Many a look starts a program.
LOOK_S, LOOK_GROWS, LOOK_MOST_S = 0.005, 0.1, 0.05


def until(holds: Callable[[], Found], what: str | Callable[[], str], limit_s: float = LIMIT_S) -> Found:
    """What `holds` gives as soon as that is true. AssertionError if `what` has not come about by the limit."""
    began = time.monotonic()
    while not (found := holds()):
        time.sleep(_until_next_look_s(began, limit_s, what))
    return found


async def until_async(
    holds: Callable[[], Found | Awaitable[Found]], what: str | Callable[[], str], limit_s: float = LIMIT_S
) -> Found:
    """As `until`; the event loop goes on meanwhile, and `holds` may be asked with await."""
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
        raise AssertionError(f"it never came to this: {what if isinstance(what, str) else what()}")
    return min(LOOK_MOST_S, LOOK_S + LOOK_GROWS * waited_s)


def pause(seconds: float, reason: str) -> None:
    """Let real time go by, for the reason that is given."""
    assert reason
    time.sleep(seconds)


def hang() -> NoReturn:
    """Never come back, as code does that hangs."""
    while True:
        threading.Event().wait(LIMIT_S)
