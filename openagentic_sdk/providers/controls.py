"""The controls of a session at one endpoint: what its requests change or omit because the endpoint refused it."""

from __future__ import annotations

from collections.abc import Sequence

from .base import ToolSpec
from .chat_request import function_of
from .definitions.refusals import CUT_DESCRIPTIONS, HOLD_TOOL


class SessionControls:
    """The part of `ProviderSession.controls` that applies to the endpoint at `origin`."""

    def __init__(self, controls: set[str], origin: str) -> None:
        self._controls = controls
        self._origin = origin

    def has(self, control: str) -> bool:
        """Whether this control applies to the session's requests."""
        return f"{control} {self._origin}" in self._controls

    def add(self, control: str) -> str:
        """Apply a control from the next request on; return it with its host, as it is logged."""
        control = f"{control} {self._origin}"
        self._controls.add(control)
        return control

    def offered(self, tools: Sequence[ToolSpec]) -> Sequence[ToolSpec]:
        """The tools without those whose definitions the endpoint has refused."""
        if not any(control.startswith(HOLD_TOOL) for control in self._controls):
            return tools
        return [tool for tool in tools if not self.has(f"{HOLD_TOOL} {function_of(tool).get('name')}")]

    def description_chars(self) -> int | None:
        """The maximum length of a tool description, if the endpoint has named one; None if it has not."""
        words = [control.split() for control in self._controls if control.startswith(CUT_DESCRIPTIONS)]
        return min((int(word[1]) for word in words if word[2:] == [self._origin]), default=None)
