"""How long to wait for an endpoint, phase by phase, and the watch that ends what takes longer."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

from ...errors import ProviderTimeoutError
from ...ground.checks import above_0
from ...ground.frozen import frozen, mutable
from ...ground.settings import check_fields
from .thread_feed import ThreadFeed

_Limit = Annotated[float, above_0] | None


@frozen(kw_only=True)
class Timeouts:
    """How long to wait, in seconds; None is without limit.

    `connect_s` covers name, TCP, proxy and TLS (5 s in the SDKs of OpenAI and Anthropic; 10 s here, for names that resolve
    slowly). `first_byte_s` runs until the first event of the answer, comments that keep the line open do not count (600 s:
    the read timeout of both SDKs, and the longest that DeepSeek queues a request). `idle_s` is the longest silence after
    that (300 s: Mistral's read timeout; models that think send nothing for minutes). `total_s` bounds the whole answer
    (an hour; the SDKs have no such bound, and a server that sends a byte now and then holds them for ever).
    """

    connect_s: _Limit = 10.0
    first_byte_s: _Limit = 600.0
    idle_s: _Limit = 300.0
    total_s: _Limit = 3600.0

    def __post_init__(self) -> None:
        check_fields(self, "Timeouts.")


@mutable
class Progress:
    """What an exchange waits for since when (`time.monotonic`); written by its thread, read by its watch."""

    phase: str = "connect"
    since: float = 0.0


_WAITED_FOR = {
    "connect": "the connection",
    "first_byte": "the first byte of an answer",
    "idle": "the next piece of the answer",
    "total": "the end of the answer",
}


class FeedWatch:
    """Ends a feed with an error when a phase or the whole takes too long.

    It looks at the clock when a timer fires, not at every chunk, and blames no endpoint for a silence while the feed's
    consumer is the slow one. `began` is when the time for the whole started to run; None is now.
    """

    def __init__(self, name: str, timeouts: Timeouts, progress: Progress, began: float | None = None) -> None:
        self._name = name
        self._timeouts = timeouts
        self._progress = progress
        progress.since = time.monotonic()
        self._began = progress.since if began is None else began
        self._feed: ThreadFeed | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self, feed: ThreadFeed) -> None:
        """Watch this feed from now on."""
        self._feed = feed
        self.arm()

    def arm(self) -> None:
        """Set the timer for whatever ends first; called again whenever the phase changes."""
        self._disarm()
        deadline = min((deadline for _, deadline, _ in self._deadlines()), default=None)
        if deadline is not None and self._feed is not None:
            delay = max(deadline - time.monotonic(), 0.001)
            self._timer = asyncio.get_running_loop().call_later(delay, self._look)

    def stop(self) -> None:
        """Watch no longer."""
        self._feed = None
        self._disarm()

    def _deadlines(self) -> list[tuple[str, float, float]]:
        phase = self._progress.phase
        limits = {
            "connect": self._timeouts.connect_s,
            "first_byte": self._timeouts.first_byte_s,
            "idle": self._timeouts.idle_s,
        }
        found = []
        if (limit := limits.get(phase)) is not None:
            found.append((phase, self._progress.since + limit, limit))
        if self._timeouts.total_s is not None:
            found.append(("total", self._began + self._timeouts.total_s, self._timeouts.total_s))
        return found

    def _look(self) -> None:
        feed, now = self._feed, time.monotonic()
        assert feed is not None, "a watch that was stopped has no timer"
        if feed.has_waiting_items and self._progress.phase == "idle":
            self._progress.since = now
        for phase, deadline, limit in self._deadlines():
            if now >= deadline:
                self.stop()
                feed.fail(timeout_error(self._name, phase, limit))
                return
        self.arm()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def timeout_error(name: str, phase: str, limit_s: float) -> ProviderTimeoutError:
    """The error for a phase that took longer than its limit."""
    return ProviderTimeoutError(
        f"{name} kept us waiting for {_WAITED_FOR[phase]} longer than {limit_s:g} s ({phase}_s)", phase=phase
    )
