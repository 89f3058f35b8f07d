"""Count the work of one decision, so that no call can block the event loop.

Every pass over a line is linear in its length, or counts its steps here; a call whose decision needs more than `MAX_STEPS`
is asked about. Steps are counted, not timed: the same call gets the same verdict on every machine and in every replay.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# About a microsecond each. Everyday lines need a few hundred.
MAX_STEPS = 60_000
# The most files found by all walks of folders; a single walk also has its own limit, in `reach`.
MAX_WALKED = 100_000


class TooManySteps(Exception):
    """The decision needs more work than one decision may take."""


class _Counter:
    """The remaining budget of one decision."""

    def __init__(self) -> None:
        self.steps, self.walked = MAX_STEPS, MAX_WALKED


# Ambient, because most steps are counted in functions that receive nothing but words.
_COUNTER: ContextVar[_Counter | None] = ContextVar("steps of a decision", default=None)


@contextmanager
def counted_steps() -> Iterator[None]:
    """Limit the steps of one decision during the block; inside another such block, the limit of the outer block applies."""
    if _COUNTER.get() is not None:
        yield
        return
    token = _COUNTER.set(_Counter())
    try:
        yield
    finally:
        _COUNTER.reset(token)


def count_steps(steps: int = 1) -> None:
    """Add steps to those of the decision, if one is under way. Raises `TooManySteps` beyond its limit.

    Do not call it in a cached function: the count would depend on earlier decisions.
    """
    counter = _COUNTER.get()
    if counter is not None:
        counter.steps -= steps
        if counter.steps < 0:
            raise TooManySteps


def count_walked() -> None:
    """Count one file found by a walk. Raises `TooManySteps` beyond the limit of the decision."""
    counter = _COUNTER.get()
    if counter is not None:
        counter.walked -= 1
        if counter.walked < 0:
            raise TooManySteps
