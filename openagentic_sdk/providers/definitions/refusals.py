"""Read each vendor's refusals: which tool definition was refused, and the maximum length of a description."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...errors import ContextLengthError, ProviderHTTPError
from ...ground.loose import as_list, as_mapping, as_text
from ...ground.patterns import regex
from ...ground.words import shortened

# The control that leaves a tool out of a session's requests (`base.ProviderSession`).
HOLD_TOOL = "hold_tool"

# The control that cuts the tool descriptions in a session's requests; the limit follows it.
CUT_DESCRIPTIONS = "cut_descriptions"

# "Invalid 'tools[3].function.description': string too long. Expected a string with maximum length 1024" (Azure, and OpenAI
# until 2025), "tools.3.function.description: String should have at most 1024 characters" (servers built with pydantic).
_TOO_LONG = regex(r"\bdescription\b.{0,120}?\b(?:maximum length|max_length|at most)\D{0,12}(\d{2,6})\b", re.I | re.S)

# `tools[3].function.parameters` (OpenAI, Groq, DeepSeek), `tools.3.custom.input_schema` (Anthropic),
# `tools[0].function_declarations[3].parameters` (Gemini), `#/toolConfig/tools/3/toolSpec` and `toolConfig.tools.4.member`,
# which counts from 1 (Bedrock), `["body", "tools", 3, "function"]` (Mistral and vLLM, in JSON or as Python writes it).
_PLACE = regex(
    r"\btools['\"]?(?:\[|\.|/|,\s*)\[?0?\]?\W{0,3}function_?declarations\W{1,3}(\d{1,5})"
    r"|\btools(?:['\"]\s*,\s*|\[|\.|/)(\d{1,5})(\.member\b)?",
    re.I,
)


def refused_tool(error: ProviderHTTPError, payload: Mapping[str, Any]) -> str | None:
    """The name, as sent, of the tool whose definition an endpoint refuses; None if it names none of the request's tools."""
    if error.status not in (400, 422) or isinstance(error, ContextLengthError):
        return None
    names = _sent_names(payload)
    text = f"{error}\n{error.body}"
    place = _PLACE.search(text)
    if place is not None:
        at = int(place[1] or place[2]) - (place[3] is not None)
        return names[at] if 0 <= at < len(names) else None
    # A name in quotation marks, or after the word for it (Groq, xAI, Vertex); of several, the first counts.
    hits = [
        (match.start(), -len(name), name)
        for name in names
        if name and (match := re.search(rf"(?:[`'\"]|\b(?:tool|function)\s+){re.escape(name)}(?![A-Za-z0-9_-])", text))
    ]
    return min(hits)[2] if hits else None


def description_limit(error: ProviderHTTPError) -> int | None:
    """The limit, in characters, that an endpoint named when it refused a longer tool description; else None."""
    words = f"{error}\n{error.body}"
    if error.status not in (400, 422) or not _PLACE.search(words) or (match := _TOO_LONG.search(words)) is None:
        return None
    return int(match[1])


def cut_descriptions(payload: Mapping[str, Any], max_chars: int) -> None:
    """Cut the tool descriptions of a request to `max_chars`, in place."""
    for entry in _sent_entries(payload):
        if isinstance(entry, dict) and isinstance(text := entry.get("description"), str):
            entry["description"] = shortened(text, max_chars)


def _sent_names(payload: Mapping[str, Any]) -> list[str]:
    """The names of a request's tools, in order; "" for each of the vendor's own tools."""
    return [as_text(entry.get("name")) for entry in _sent_entries(payload)]


def _sent_entries(payload: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The definitions of a request's tools, in order, whatever the protocol; a vendor's own tool as it was sent."""
    tools = payload.get("tools") or as_mapping(payload.get("toolConfig")).get("tools")
    entries: list[Mapping[str, Any]] = []
    for tool in map(as_mapping, as_list(tools)):
        declared = as_list(tool.get("functionDeclarations"))
        entries += map(as_mapping, declared) if declared else [tool]
    return [as_mapping(entry.get("function")) or as_mapping(entry.get("toolSpec")) or entry for entry in entries]
