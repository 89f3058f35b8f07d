"""Recognize the opaque vendor fields that are a model's reasoning, and those bound to the conversation before them.

Pure functions of messages and of a message's opaque fields (`ModelOutput.extras`). A model is never sent another model's
reasoning. Some reasoning is also bound: Claude models with preserved thinking accept a thinking block only after exactly
the tools, system prompt and messages that preceded it when it was created, and refuse blocks after an omitted one
(platform.claude.com, "Preserved thinking"). OpenAI's encrypted reasoning and Gemini's thought signatures do not depend on
what precedes them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..ground.loose import as_mappings

# The first version of Claude that preserves thinking.
PRESERVES_SINCE = (5, 1)

_TEXTS = ("reasoning", "reasoning_content", "reasoning_text", "reasoning_details", "extra_content")
_THINKING = ("thinking", "redacted_thinking")
_FAMILIES = "haiku|sonnet|opus|fable|mythos"


def without_reasoning(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields without any reasoning: text, calls and the blocks of the vendor's own tools are unchanged."""
    rest = {key: value for key, value in fields.items() if key not in _TEXTS}
    for key, is_reasoning in (("anthropic_content", _THINKING), ("responses_items", ("reasoning",))):
        if isinstance(rest.get(key), list):
            rest[key] = [item for item in as_mappings(rest[key]) if item.get("type") not in is_reasoning]
    if isinstance(rest.get("gemini_parts"), list):
        parts = [part for part in as_mappings(rest["gemini_parts"]) if not part.get("thought")]
        rest["gemini_parts"] = [{k: v for k, v in part.items() if k != "thoughtSignature"} for part in parts]
    if isinstance(rest.get("tool_calls"), list):
        rest["tool_calls"] = [without_reasoning(call) for call in as_mappings(rest["tool_calls"])]
    return rest


def is_bound(fields: Mapping[str, Any], model: str) -> bool:
    """Whether any of a message's fields is valid only after exactly the request that the message answered."""
    blocks, details = as_mappings(fields.get("anthropic_content")), as_mappings(fields.get("reasoning_details"))
    signed = any(block.get("type") in _THINKING for block in blocks) or any(one.get("signature") for one in details)
    return signed and preserves_thinking(model)


def preserves_thinking(model: str) -> bool:
    """Whether a model's thinking blocks are bound to what preceded them; true for a Claude model of unknown version."""
    version = claude_version(model)
    return "claude" in model if version is None else version[1] >= PRESERVES_SINCE


def claude_version(model: str) -> tuple[str, tuple[int, int]] | None:
    """The family and version in a model's name; None if it names no family. A missing version counts as (9, 0), the newest.

    Examples: `claude-opus-4-7`, `claude-3-7-sonnet-20250219`, `us.anthropic.claude-...-v1:0`.
    """
    match = re.search(rf"claude-(?:(\d)(?:[-.](\d)(?!\d))?-)?({_FAMILIES})(?:-(\d)(?!\d)(?:[-.](\d)(?!\d))?)?", model)
    return None if match is None else (match[3], (int(match[1] or match[4] or 9), int(match[2] or match[5] or 0)))
