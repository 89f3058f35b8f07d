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

from ..ground.loose import as_mappings

# The first version of Claude's models that preserves thinking.
PRESERVES_SINCE = (5, 1)

_TEXTS = ("reasoning", "reasoning_content", "reasoning_text", "reasoning_details", "extra_content")
_THINKING = ("thinking", "redacted_thinking")
_FAMILIES = "haiku|sonnet|opus|fable|mythos"


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
    return signed and preserves_thinking(model)


def preserves_thinking(model: str) -> bool:
    """Whether a thinking block of this model is bound to what stood before it; a Claude of unknown version's is."""
    known = claude_version(model)
    return "claude" in model if known is None else known[1] >= PRESERVES_SINCE


def claude_version(model: str) -> tuple[str, tuple[int, int]] | None:
    """The family and the version in a model's name: `claude-opus-4-7`, `claude-3-7-sonnet-20250219`,
    `us.anthropic.claude-...-v1:0`; None for a name that does not tell them.
    """
    found = re.search(rf"claude-(?:(\d)(?:[-.](\d)(?!\d))?-)?({_FAMILIES})(?:-(\d)(?!\d)(?:[-.](\d)(?!\d))?)?", model)
    return None if found is None else (found[3], (int(found[1] or found[4] or 9), int(found[2] or found[5] or 0)))
