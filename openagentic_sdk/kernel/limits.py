"""The time that a run may take, and how long its store may take to answer."""

from __future__ import annotations

from ..clock import Clock
from ..frozen import frozen

# How long a store may still take to answer when the run is over or was told to end.
STORE_MOMENT_S = 3.0


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
