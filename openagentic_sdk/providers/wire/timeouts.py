"""Time limits for an endpoint, phase by phase, and the watch that enforces them."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

from ...errors import ProviderTimeoutError
from ...ground.checks import above_0
from ...ground.frozen import frozen, mutable
from ...ground.settings import check_fields
from .thread_feed import ThreadFeed

_PhaseLimit = Annotated[float, above_0] | None


@frozen(kw_only=True)
class Timeouts:
    """Time limits, in seconds; None means no limit.

    `connect_s` covers name resolution, TCP, proxy and TLS (5 s in the SDKs of OpenAI and Anthropic; 10 s here, for slow
    name resolution). `first_byte_s` lasts until the first event of the answer; comments that keep the connection open do
    not count (600 s: the read timeout of both SDKs, and the longest that DeepSeek queues a request). `idle_s` is the
    longest silence after that (300 s: Mistral's read timeout; a model that is thinking may send nothing for minutes).
    `total_s` limits the whole answer (an hour; the SDKs have no such limit, and a server that sends an occasional byte
    blocks them forever).
    """

    connect_s: _PhaseLimit = 10.0
    first_byte_s: _PhaseLimit = 600.0
    idle_s: _PhaseLimit = 300.0
    total_s: _PhaseLimit = 3600.0

    def __post_init__(self) -> None:
        check_fields(self, "Timeouts.")


@mutable
class ExchangeProgress:
    """The current phase of an exchange and its start (`time.monotonic`); written by its thread, read by its watch."""

    phase: str = "connect"
    since: float = 0.0


_WAITED_FOR = {
    "connect": "accept a connection",
    "first_byte": "send the first byte of an answer",
    "idle": "send the next piece of the answer",
    "total": "send the end of the answer",
}


class FeedWatch:
    """A watch that ends a feed with an error if a phase or the whole exchange takes too long.

    The watch checks the clock when a timer fires, not at every chunk, and does not blame an endpoint for silence while the
    feed's consumer is the slower one. `began` is the start of the total time; it defaults to now.
    """

    def __init__(self, name: str, timeouts: Timeouts, progress: ExchangeProgress, began: float | None = None) -> None:
        self._name = name
        self._timeouts = timeouts
        self._progress = progress
        progress.since = time.monotonic()
        self._began = progress.since if began is None else began
        self._feed: ThreadFeed | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self, feed: ThreadFeed) -> None:
        """Start watching this feed."""
        self._feed = feed
        self.arm()

    def arm(self) -> None:
        """Set the timer for the earliest deadline; call this again whenever the phase changes."""
        self._disarm()
        deadline = min((deadline for _, deadline, _ in self._deadlines()), default=None)
        if deadline is not None and self._feed is not None:
            # A deadline in the past must not become a timer that fires in the same turn of the loop again and again.
            delay = max(deadline - time.monotonic(), 0.001)
            self._timer = asyncio.get_running_loop().call_later(delay, self._look)

    def stop(self) -> None:
        """Stop watching."""
        self._feed = None
        self._disarm()

    def _deadlines(self) -> list[tuple[str, float, float]]:
        phase = self._progress.phase
        limits = {
            "connect": self._timeouts.connect_s,
            "first_byte": self._timeouts.first_byte_s,
            "idle": self._timeouts.idle_s,
        }
        deadlines = []
        if (limit := limits.get(phase)) is not None:
            deadlines.append((phase, self._progress.since + limit, limit))
        if self._timeouts.total_s is not None:
            deadlines.append(("total", self._began + self._timeouts.total_s, self._timeouts.total_s))
        return deadlines

    def _look(self) -> None:
        feed, now = self._feed, time.monotonic()
        assert feed is not None, "a stopped watch has no timer"
        # The thread is blocked in `put`: it is not the endpoint that is silent.
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
    """The error for a phase that exceeded its limit."""
    return ProviderTimeoutError(f"{name} did not {_WAITED_FOR[phase]} within {limit_s:g} s ({phase}_s)", phase=phase)
