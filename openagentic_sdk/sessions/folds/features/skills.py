"""The events that determine which skills are active and what the current turn is granted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ....events import (
    CommandExpanded,
    Event,
    SessionForked,
    SessionRewound,
    SkillActivated,
    SkillDeactivated,
    SkillDrifted,
    UserMessage,
)
from ..view import Cut, Fold, SessionView


class SkillsFold(Fold):
    """The events that determine which skills are active and what is granted; `changes` increases
    whenever `events` changes.
    """

    name = "skills"
    reads = (
        UserMessage,
        SessionForked,
        CommandExpanded,
        SkillActivated,
        SkillDeactivated,
        SkillDrifted,
        SessionRewound,
    )

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.changes = 0

    def apply(self, event: Event, view: SessionView) -> None:
        if isinstance(event, UserMessage):
            # Of consecutive prompts only two count: later ones end nothing further.
            before = self.events[-2:]
            if event.origin != "user" or (len(before) == 2 and all(isinstance(e, UserMessage) for e in before)):
                return
        if isinstance(event, SessionForked):
            # Events signed in the parent count as signed here from now on.
            stored_by_seq = {earlier.seq: earlier for earlier in view.events}
            self.events = [_as_allowed(stored_by_seq.get(earlier.seq, earlier), view) for earlier in self.events]
        else:
            self.events.append(_as_allowed(event, view))
        self.changes += 1

    def in_force(self, view: SessionView, cut: Cut) -> Iterable[int]:
        return [event.seq or 0 for event in self.events]

    def kept(self) -> Mapping[str, Any]:
        return {"changes": self.changes + 1}

    def restore(self, kept: Mapping[str, Any]) -> None:
        self.changes = kept["changes"]


def history(view: SessionView) -> list[Event]:
    """The view's events, with skills and commands that this installation did not record stripped of grants and model."""
    return [_as_allowed(event, view) for event in view.events]


def _as_allowed(event: Event, view: SessionView) -> Event:
    """The event; a skill or command that this installation did not record loses its grants and model."""
    if isinstance(event, SkillActivated | CommandExpanded) and not view.is_ours(event):
        return replace(event, grants=(), model=None)
    return event
