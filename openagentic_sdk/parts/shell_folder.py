"""Track the folder in which a run's commands start: each starts, and is judged, where the previous one's `cd` led."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..kernel.agent import Run
from ..kernel.gate import CallContext
from ..kernel.part import Part
from ..tools.shell.background import CommandFolder

_SHELL = "Bash"


class ShellFolder(Part):
    """A part that keeps the start folder of a run's commands. Without it, each starts in the session's folder."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._folder = CommandFolder()

    def services(self) -> Mapping[type, object]:
        return {CommandFolder: self._folder}

    def tell_gate(self, context: CallContext, tool: str | None) -> CallContext:
        folder = self._folder.kept() if tool == _SHELL else None
        return context if folder is None else replace(context, cwd=folder, told={**context.told, "cwd": folder})
