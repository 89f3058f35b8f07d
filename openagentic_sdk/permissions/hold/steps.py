"""Count the work of one decision, so that no call can hold the event loop.

Every pass over a line is linear in its length, or counts its steps here; a call whose decision needs more than `MAX_STEPS`
is asked about. Steps are counted, not timed: the same call gets the same verdict on every machine and in every replay.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# About a microsecond each. Everyday lines need a few hundred.
MAX_STEPS = 60_000
# Files found by walks of folders; a single walk has a limit of its own, in `reach`.
MAX_WALKED = 100_000


class TooManySteps(Exception):
    """The decision needs more work than one decision may take."""


class _Counter:
    def __init__(self) -> None:
        self.steps, self.walked = MAX_STEPS, MAX_WALKED


# Ambient, because most of what is counted is below functions of words alone.
_COUNTER: ContextVar[_Counter | None] = ContextVar("steps of a decision", default=None)


@contextmanager
def counted_steps() -> Iterator[None]:
    """Limit the steps of one decision; within another, the limit of that one continues to apply."""
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

    Never called in a function with a cache, whose steps would depend on earlier decisions.
    """
    counter = _COUNTER.get()
    if counter is not None:
        counter.steps -= steps
        if counter.steps < 0:
            raise TooManySteps


def count_walked() -> None:
    """Add a file that a walk has found. Raises `TooManySteps` beyond the limit of the decision."""
    counter = _COUNTER.get()
    if counter is not None:
        counter.walked -= 1
        if counter.walked < 0:
            raise TooManySteps
