"""Inner calls: how the code of one tool uses the other tools of its run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..events import ToolResult
from ..kernel.tool import BareTool, ToolContext


class CallsInside(Protocol):
    """An object that makes calls inside one call; they pass the gate, the hooks and the log like any other."""

    def tools(self) -> Sequence[BareTool]:
        """The tools that may be called."""

    async def make(self, name: str, input: Mapping[str, Any], labels: Mapping[str, Any] | None = None, /) -> ToolResult:
        """Make a call and wait for its result, which is in the log by then, even if the wait is cancelled. `labels` are
        those of the call's arguments, from code that tracks them.

        Raises the error that ends the run, if one occurs.
        """


class InnerCalls:
    """A service that lets a tool call other tools."""

    def inside(self, ctx: ToolContext) -> CallsInside:
        """Return an object that makes calls inside this call."""
        raise NotImplementedError
