"""The controls of a session at one endpoint: changes to its requests that became necessary when one was refused."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..errors import ProviderHTTPError
from ..ground.patterns import regex
from .base import ToolSpec
from .chat_request import function_of
from .definitions.refusals import CUT_DESCRIPTIONS, HOLD_TOOL

# The controls for a session's requests after one was refused, see `base.ProviderSession`.
DROP_BLOCK, NO_REASONING, UNSIGNED = "drop_block", "no_reasoning", "unsigned"

_PREFIX_REFUSED = regex(r"bound to a different conversation|prefix_mismatch_behavior", re.I)
# Anthropic; OpenAI and its copies; Gemini, also as worded by gateways in front of them.
_REFUSED = regex(
    r"invalid [`'\"]?signature|(thinking|reasoning)[^.]{0,80}cannot be modified|invalid_encrypted_content"
    r"|encrypted[ _]content[^.]{0,120}(could not|cannot) be|thought.?signature[^.]{0,60}(is )?(not valid|invalid|corrupt)",
    re.I,
)


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


def is_prefix_refused(error: ProviderHTTPError) -> bool:
    """Whether an endpoint reports that reasoning is bound to a different conversation."""
    return error.status in (400, 422) and _PREFIX_REFUSED.search(f"{error} {error.body}") is not None


def is_reasoning_refused(error: ProviderHTTPError) -> bool:
    """Whether an endpoint refuses a request because of the reasoning in it."""
    words = f"{error} {error.code} {error.body}"
    return is_prefix_refused(error) or (error.status in (400, 422) and _REFUSED.search(words) is not None)
