"""The commands that the texts of skills and commands ran, each with its end."""

from __future__ import annotations

from collections.abc import Iterable

from ....events import TextCommandFinished, TextCommandStarted
from ..view import Cut, Fold, SessionView


class TextCommandsFold(Fold):
    """`ends` maps the id of each command to its end, None while it has none."""

    name = "text_commands"
    reads = (TextCommandStarted, TextCommandFinished)

    def __init__(self) -> None:
        self.ends: dict[str, TextCommandFinished | None] = {}

    def apply(self, event: TextCommandStarted | TextCommandFinished, view: SessionView) -> None:
        self.ends[event.command_id] = event if isinstance(event, TextCommandFinished) else None

    def in_force(self, view: SessionView, cut: Cut) -> Iterable[int]:
        """Those of the present turn: what ran for it before a crash is not run again."""
        mine = (event.seq or 0 for event in view.events if isinstance(event, self.reads))
        return [seq for seq in mine if seq > cut.prompt_seq]
