"""The deferred tools whose definitions the model has since it found them."""

from __future__ import annotations

from collections.abc import Iterable

from ....events import ToolsLoaded
from ..view import Cut, Fold, SessionView


class LoadedToolsFold(Fold):
    """`names` are those tools, in the order in which they were found."""

    name = "loaded_tools"
    reads = (ToolsLoaded,)

    def __init__(self) -> None:
        self.names: dict[str, None] = {}

    def apply(self, event: ToolsLoaded, view: SessionView) -> None:
        self.names.update(dict.fromkeys(event.names))

    def in_force(self, view: SessionView, cut: Cut) -> Iterable[int]:
        return [event.seq or 0 for event in view.events if isinstance(event, ToolsLoaded)]
