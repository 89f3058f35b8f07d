"""Which of a vendor's opaque fields are a model's reasoning, and which of that is bound to the conversation before it.

Pure, over messages and over the opaque fields of one (`ModelOutput.extras`). No model is sent another model's reasoning.
What is bound besides: the Claude models with preserved thinking use a thinking block only behind the very tools, system
prompt and messages that it was made behind, and none of those that follow a block which was left out (platform.claude.com,
"Preserved thinking"). OpenAI's encrypted reasoning and Gemini's thought signatures know nothing of what stands before them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..errors import ProviderHTTPError
from ..patterns import regex
from .claude_models import claude_family
from .loose import as_mappings

# How the requests of a session are written after one was refused, see `base.SessionState`.
DROP_BLOCK, NO_REASONING, UNSIGNED = "drop_block", "no_reasoning", "unsigned"

_TEXTS = ("reasoning", "reasoning_content", "reasoning_text", "reasoning_details", "extra_content")
_THINKING = ("thinking", "redacted_thinking")
_PREFIX_REFUSED = regex(r"bound to a different conversation|prefix_mismatch_behavior", re.I)
# Anthropic; OpenAI and what copies it; Gemini, also in the words of gateways before them.
_REFUSED = regex(
    r"invalid [`'\"]?signature|(thinking|reasoning)[^.]{0,80}cannot be modified|invalid_encrypted_content"
    r"|encrypted[ _]content[^.]{0,120}(could not|cannot) be|thought.?signature[^.]{0,60}(is )?(not valid|invalid|corrupt)",
    re.I,
)


def is_prefix_refused(error: ProviderHTTPError) -> bool:
    """Whether an endpoint says that reasoning is bound to another conversation than the one that it stands in."""
    return error.status in (400, 422) and _PREFIX_REFUSED.search(f"{error} {error.body}") is not None


def is_reasoning_refused(error: ProviderHTTPError) -> bool:
    """Whether an endpoint refuses a request for the reasoning in it, whatever it has against it."""
    words = f"{error} {error.code} {error.body}"
    return is_prefix_refused(error) or (error.status in (400, 422) and _REFUSED.search(words) is not None)


def without_reasoning(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields without any reasoning: text, calls and what the vendor's own tools did stay as they came."""
    kept = {key: value for key, value in fields.items() if key not in _TEXTS}
    for key, is_reasoning in (("anthropic_content", _THINKING), ("responses_items", ("reasoning",))):
        if isinstance(kept.get(key), list):
            kept[key] = [item for item in kept[key] if item.get("type") not in is_reasoning]
    if isinstance(kept.get("gemini_parts"), list):
        parts = [part for part in kept["gemini_parts"] if not part.get("thought")]
        kept["gemini_parts"] = [{k: v for k, v in part.items() if k != "thoughtSignature"} for part in parts]
    if isinstance(kept.get("tool_calls"), list):
        kept["tool_calls"] = [without_reasoning(call) for call in kept["tool_calls"]]
    return kept


def is_bound(fields: Mapping[str, Any], model: str) -> bool:
    """Whether some of the fields fit only behind the very request that they answered."""
    blocks, details = as_mappings(fields.get("anthropic_content")), as_mappings(fields.get("reasoning_details"))
    signed = any(block.get("type") in _THINKING for block in blocks) or any(one.get("signature") for one in details)
    return signed and claude_family(model).preserves_thinking
