"""The model's list of what is to be done: its newest state outlives compactions."""

from __future__ import annotations

from collections.abc import Iterable

from ....events import TodoUpdated
from ..view import Cut, Fold, SessionView


class TodosFold(Fold):
    """It has no state: who shows the list, or carries it over a compaction, reads the newest event."""

    name = "todos"

    def in_force(self, view: SessionView, cut: Cut) -> Iterable[int]:
        return [event.seq or 0 for event in cut.standing if isinstance(event, TodoUpdated)][-1:]
