"""When a run has had enough: time, tokens and money."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..clock import Clock
from ..frozen import frozen, mutable

# How long a store may still take to answer when the run is over or was told to end.
STORE_MOMENT_S = 3.0


@mutable
class Room:
    """What is left of a limit that other sessions share; None for a number is no limit. `reason` says why nothing is."""

    name: str
    tokens_left: int | None = None
    usd_left: float | None = None
    reason: str | None = None


@mutable
class Budget:
    """What a session and all of its subagents may spend together; None is no limit.

    `cost_usd` becomes None for good when a call had no known price. `rooms` are what limits of the day leave.
    `is_estimated` says that some of `tokens` were not counted by the endpoint, `coming_bytes` is what the answers that are
    on their way weigh so far.
    """

    max_tokens: int | None = None
    max_cost_usd: float | None = None
    tokens: int = 0
    cost_usd: float | None = 0.0
    rooms: tuple[Room, ...] = ()
    is_estimated: bool = False
    coming_bytes: int = 0

    def charge(self, usage: Mapping[str, Any] | None, cost_usd: float | None, estimated_tokens: int = 0) -> None:
        """Take one call's usage into account; the estimate counts when the endpoint says nothing."""
        usage = usage or {}
        tokens = int(usage.get("input_tokens") or 0) + int(usage.get("output_tokens") or 0)
        if not tokens and estimated_tokens:
            tokens, self.is_estimated = estimated_tokens, True
        self.tokens += tokens
        for room in self.rooms:
            room.tokens_left = None if room.tokens_left is None else room.tokens_left - tokens
            room.usd_left = None if room.usd_left is None else room.usd_left - (cost_usd or 0.0)
        self.cost_usd = None if cost_usd is None or self.cost_usd is None else self.cost_usd + cost_usd

    def complaint(self) -> str | None:
        """Why no further call may be made, or None."""
        full = next((room.reason for room in self.rooms if room.reason is not None), None)
        if full is not None:
            return full
        if self.max_tokens is not None and self.tokens >= self.max_tokens:
            about = "about " if self.is_estimated else ""
            return f"{about}{self.tokens} tokens are spent, max_tokens is {self.max_tokens}"
        if self.max_cost_usd is None:
            return None
        if self.cost_usd is None:
            return f"max_cost_usd is {self.max_cost_usd} and a call had no known price: add its model to `prices`"
        if self.cost_usd >= self.max_cost_usd:
            return f"{self.cost_usd:.4f} USD are spent, max_cost_usd is {self.max_cost_usd}"
        return None


@frozen
class Deadline:
    """The moment, on the clock's monotonic scale, when a run and its subagents must end; None is never."""

    clock: Clock
    at: float | None = None

    @classmethod
    def after(cls, clock: Clock, timeout_s: float | None) -> Deadline:
        """A deadline `timeout_s` seconds from now."""
        return cls(clock, None if timeout_s is None else clock.monotonic() + timeout_s)

    def patience(self) -> float | None:
        """Seconds that a store's answer is waited for: what is left, and a moment."""
        remaining_s = self.remaining_s()
        return None if remaining_s is None else remaining_s + STORE_MOMENT_S

    def remaining_s(self) -> float | None:
        """Seconds left, never below 0; None without a deadline."""
        return None if self.at is None else max(0.0, self.at - self.clock.monotonic())
