"""When a run began, when it must end, and how it is told to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any, Literal

from ..errors import ScriptMismatchError
from ..events import StopReason
from ..ground.clock import Clock
from ..ground.frozen import frozen, mutable
from ..ground.threads import GUEST_MOMENT_S, Guest

# How long a store may still take to answer when the run is over or was told to end.
STORE_MOMENT_S = 3.0


class RunStopped(Exception):
    """The run ends here, in order: `reason` is its `stop_reason`, the text says why."""

    def __init__(self, reason: StopReason, message: str = "") -> None:
        super().__init__(message or reason)
        self.reason: StopReason = reason
        self.message = message


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


@mutable
class Stopping:
    """How a run and its subagents were told to end, if they were.

    An `interrupt` is a person's, and closes the question that they are asked; a `suspend` leaves it open, as a
    cancellation and a `close` of the caller's do. `soon` suspends the run before its next step. `mismatch` is what a
    test's scripted model did not expect. `guard` is that of the request.
    """

    asked: Literal["interrupt", "suspend", "close"] | None = None
    soon: bool = False
    mismatch: ScriptMismatchError | None = None
    guard: Callable[[], None] | None = None


@mutable
class Lifetime:
    """The time of one run. `left` names what did not end when it was told to.

    `is_ending` is true once the run was told to end while its last events are recorded; `waited_for` is what it waits for
    then.
    """

    began_at: float
    deadline: Deadline
    stopping: Stopping
    left: list[str] = field(default_factory=list)
    is_ending: bool = False
    waited_for: Guest[Any] | None = None

    def hurry(self) -> None:
        """The run is told to end while it is ending: what it still waits for gets a moment only."""
        self.is_ending = True
        if self.waited_for is not None:
            self.waited_for.hurry()

    async def wait_for(
        self, guest: Guest[Any], moment_s: float | None = None, busy: Callable[[], bool] | None = None
    ) -> None:
        """Wait for one of the last things that a run does: for a moment at most, for what is left of its time, and for the
        shortest moment when the run was told to end.
        """
        left_s = 0.0 if self.is_ending else self.deadline.remaining_s()
        limits = [moment_s, None if left_s is None else left_s + GUEST_MOMENT_S]
        self.waited_for = guest
        await guest.wait_a_moment(min((limit for limit in limits if limit is not None), default=None), busy)

    def patience(self) -> float | None:
        """Seconds that the store's answer is waited for; None is without a limit."""
        return STORE_MOMENT_S if self.is_ending else self.deadline.patience()
