"""The start of a run, its deadline, and the signals that end it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any, Literal

from ..errors import ScriptMismatchError
from ..events import StopReason
from ..ground.clock import Clock
from ..ground.frozen import frozen, mutable
from ..ground.threads import GUEST_MOMENT_S, Guest

# How long, in seconds, a store may still take to answer when the run is over or is being stopped.
STORE_MOMENT_S = 3.0


class RunStopped(Exception):
    """An orderly end of the run: `reason` is its `stop_reason`, `message` the explanation."""

    def __init__(self, reason: StopReason, message: str = "") -> None:
        super().__init__(message or reason)
        self.reason: StopReason = reason
        self.message = message


@frozen
class Deadline:
    """The moment, on the clock's monotonic scale, by which a run and its subagents must end; None for never."""

    clock: Clock
    at: float | None = None

    @classmethod
    def after(cls, clock: Clock, timeout_s: float | None) -> Deadline:
        """Return a deadline `timeout_s` seconds from now."""
        return cls(clock, None if timeout_s is None else clock.monotonic() + timeout_s)

    def patience(self) -> float | None:
        """Seconds to wait for a store's answer: the time left plus `STORE_MOMENT_S`; None without a deadline."""
        remaining_s = self.remaining_s()
        return None if remaining_s is None else remaining_s + STORE_MOMENT_S

    def remaining_s(self) -> float | None:
        """Seconds left, at least 0; None without a deadline."""
        return None if self.at is None else max(0.0, self.at - self.clock.monotonic())


@mutable
class Stopping:
    """A request that a run and its subagents end, if there has been one.

    An `interrupt` comes from a person and closes their open question; a `suspend` leaves it open, as do a cancellation and
    the caller's `close`. `soon` suspends the run before its next step. `mismatch` is an expectation of a test's scripted
    model that was not met. `guard` is that of the `RunRequest`.
    """

    asked: Literal["interrupt", "suspend", "close"] | None = None
    soon: bool = False
    mismatch: ScriptMismatchError | None = None
    guard: Callable[[], None] | None = None


@mutable
class Lifetime:
    """The time limits of one run. `left` names everything that did not end when asked to.

    `is_ending` is true once the run was cancelled, timed out, had its calls cut short or was asked to end soon: it then
    waits only briefly for the tasks that end it. `waited_for` is the task that it is waiting for.
    """

    began_at: float
    deadline: Deadline
    stopping: Stopping
    left: list[str] = field(default_factory=list)
    is_ending: bool = False
    waited_for: Guest[Any] | None = None

    def hurry(self) -> None:
        """Shorten the remaining waits to a moment: the run was asked to end although it is ending already."""
        self.is_ending = True
        if self.waited_for is not None:
            self.waited_for.hurry()

    async def wait_for(
        self, guest: Guest[Any], moment_s: float | None = None, busy: Callable[[], bool] | None = None
    ) -> None:
        """Wait for a final task within `moment_s` and the time left, only briefly if `is_ending`, longer while `busy`."""
        left_s = 0.0 if self.is_ending else self.deadline.remaining_s()
        # A moment longer than the time left, so that closing is tried even after the deadline.
        limits = [moment_s, None if left_s is None else left_s + GUEST_MOMENT_S]
        self.waited_for = guest
        await guest.wait_a_moment(min((limit for limit in limits if limit is not None), default=None), busy)

    def patience(self) -> float | None:
        """Seconds to wait for the store's answer; None for no limit."""
        return STORE_MOMENT_S if self.is_ending else self.deadline.patience()
