"""Detect that an endpoint refuses a request because of its reasoning, and name the controls for further requests."""

from __future__ import annotations

import re

from ..errors import ProviderHTTPError
from ..ground.patterns import regex

# The controls for a session's requests after one was refused, see `base.ProviderSession`.
DROP_BLOCK, NO_REASONING, UNSIGNED = "drop_block", "no_reasoning", "unsigned"

_PREFIX_REFUSED = regex(r"bound to a different conversation|prefix_mismatch_behavior", re.I)
# Anthropic; OpenAI and its copies; Gemini, also as worded by gateways in front of them.
_REFUSED = regex(
    r"invalid [`'\"]?signature|(thinking|reasoning)[^.]{0,80}cannot be modified|invalid_encrypted_content"
    r"|encrypted[ _]content[^.]{0,120}(could not|cannot) be|thought.?signature[^.]{0,60}(is )?(not valid|invalid|corrupt)",
    re.I,
)


def is_prefix_refused(error: ProviderHTTPError) -> bool:
    """Whether an endpoint reports that reasoning is bound to a different conversation."""
    return error.status in (400, 422) and _PREFIX_REFUSED.search(f"{error} {error.body}") is not None


def is_reasoning_refused(error: ProviderHTTPError) -> bool:
    """Whether an endpoint refuses a request because of the reasoning in it, for whatever reason."""
    words = f"{error} {error.code} {error.body}"
    return is_prefix_refused(error) or (error.status in (400, 422) and _REFUSED.search(words) is not None)
