"""The tools of one agent, by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..errors import OptionsError, ToolNotFoundError
from ..events import CODE_CALLER
from ..serialization import written
from .tool import BareTool


class ToolRegistry:
    """The tools of an agent by name, in the order of registration.

    `specs`, if given, replaces the definitions that a model receives for these tools, in the same order.
    """

    def __init__(self, tools: Iterable[BareTool] = (), specs: list[dict[str, Any]] | None = None) -> None:
        self._tools: dict[str, BareTool] = {}
        for tool in tools:  # like `register`, but without a method call for each tool of each run
            if tool.name in self._tools:
                raise _duplicate(tool)
            self._tools[tool.name] = tool
        self._specs = None if specs is None else written(specs)

    def register(self, tool: BareTool) -> None:
        """Add a tool. Raises `OptionsError` if its name is in use."""
        if tool.name in self._tools:
            raise _duplicate(tool)
        self._tools[tool.name] = tool
        self._specs = None

    def get(self, name: str) -> BareTool:
        """Return the tool with this name. Raises `ToolNotFoundError`."""
        try:
            return self._tools[name]
        except KeyError:
            raise ToolNotFoundError(name, self.names()) from None

    def names(self) -> list[str]:
        return list(self._tools)

    def only(self, names: Iterable[str]) -> ToolRegistry:
        """Return a registry of the named tools, in this one's order; unknown names are ignored."""
        name_set = set(names)
        return ToolRegistry([tool for name, tool in self._tools.items() if name in name_set])

    def specs(self) -> list[dict[str, Any]]:
        """Return the definitions that a model receives, as chat-completions entries; the same list until a tool is added."""
        if self._specs is None:
            self._specs = written([tool_spec(tool) for tool in self._tools.values()])
        return self._specs

    def __iter__(self) -> Iterator[BareTool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def __contains__(self, name: object) -> bool:
        return name in self._tools


def _duplicate(tool: BareTool) -> OptionsError:
    return OptionsError(f"two tools are named {tool.name!r}: rename one of them")


def tool_spec(tool: BareTool) -> dict[str, Any]:
    """The definition of a tool that a model receives, as a chat-completions entry."""
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.input_schema)}
    spec = {"type": "function", "function": function}
    if tool.allowed_callers is not None:
        # Calls by the Code tool are made in this process, so endpoints do not need this caller.
        callers = [caller for caller in tool.allowed_callers if caller != CODE_CALLER]
        if set(callers) - {"direct"}:
            spec["allowed_callers"] = callers
    return spec
