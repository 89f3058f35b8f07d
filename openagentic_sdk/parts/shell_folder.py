"""The folder in which the commands of a run start: each follows the `cd` of the one before it, and is judged there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..kernel.agent import Run
from ..kernel.gate import CallContext
from ..kernel.part import Part
from ..tools.shell.background import CommandFolder

_SHELL = "Bash"


class ShellFolder(Part):
    """Where the commands of one run start. Without this part, each starts in the session's folder."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._folder = CommandFolder()

    def services(self) -> Mapping[type, object]:
        return {CommandFolder: self._folder}

    def tell_gate(self, context: CallContext, tool: str | None) -> CallContext:
        kept = self._folder.kept() if tool == _SHELL else None
        return context if kept is None else replace(context, cwd=kept, told={**context.told, "cwd": kept})
