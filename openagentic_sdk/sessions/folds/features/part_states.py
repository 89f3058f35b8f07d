"""What the parts of the caller's own keep in the log."""

from __future__ import annotations

from collections.abc import Iterable

from ....events import PartState, SessionRewound
from ..view import Cut, Fold, SessionView


class PartStatesFold(Fold):
    """The states that no rewind took back, oldest first."""

    name = "part_states"
    reads = (PartState, SessionRewound)

    def __init__(self) -> None:
        self.events: list[PartState] = []

    def apply(self, event: PartState | SessionRewound, view: SessionView) -> None:
        if isinstance(event, SessionRewound):
            self.events = [earlier for earlier in self.events if (earlier.seq or 0) <= event.to_seq]
        else:
            self.events.append(event)

    def newest(self, part: str) -> PartState | None:
        """The state that holds for the part of this name."""
        return next((event for event in reversed(self.events) if event.part == part), None)

    def in_force(self, view: SessionView, cut: Cut) -> Iterable[int]:
        return {event.part: event.seq or 0 for event in self.events}.values()
