"""ToolSearch: find tools whose definitions would be too expensive to send with every request.

Ranking is BM25 (Robertson and Zaragoza, "The Probabilistic Relevance Framework", 2009, section 3) over the words of a
tool's name, description and parameters; those of the name weigh most. Pure Python: a thousand tools are ranked in
milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import log
from typing import Any

from ...events import ToolsLoaded
from ...ground.loose import as_mapping, as_text
from ...ground.patterns import regex
from ...ground.words import shortened
from ...kernel.tool import BareTool, SessionLog, ToolContext
from ..base import Tool
from ..labels import OWN_SESSION
from ..schema import integer, object_schema, string

TOOL_SEARCH = "ToolSearch"
MAX_FOUND = 20
_USUAL_FOUND = 5
_MAX_DESCRIPTION = 300
# The weight of a word, by its position.
_NAME, _DESCRIPTION, _PARAMETER = 4.0, 1.0, 1.0
_K1, _B = 1.2, 0.75
_MAX_WORDS = 400
_WORD = regex(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W\d_a-zA-Z]+")


class ToolSearchTool(Tool):
    """A tool that finds tools: `{"query", "limit"?}` returns `{"tools": [{"name", "description"}]}`, best first.

    The tools found can be called from then on, and are in the log as `tools.loaded`. `catalog` returns those that can be
    found.
    """

    name = TOOL_SEARCH
    labels = OWN_SESSION
    description = (
        "Find more tools. Only some of your tools are listed; the others are found here by what they do, by their exact "
        "names, or by the server that they belong to. A tool that was found is yours to call from your next step on. Search "
        "before you say that something cannot be done."
    )
    input_schema = object_schema(
        {
            "query": string("What the tool should do, or exact names.", maxLength=1000),
            "limit": integer("At most so many, usually 5.", minimum=1, maximum=MAX_FOUND),
        },
        required=["query"],
        additionalProperties=False,
    )
    effect = "read"
    allowed_callers = ("direct",)

    def __init__(self, catalog: Callable[[], Sequence[BareTool]]) -> None:
        self._catalog = catalog

    async def run(self, input: Mapping[str, Any], ctx: ToolContext) -> dict[str, Any]:
        matches = rank_tools(str(input["query"]), self._catalog(), int(input.get("limit") or _USUAL_FOUND))
        if matches:
            names = [tool.name for tool in matches]
            loaded = ToolsLoaded(names, query=str(input["query"]), tool_use_id=ctx.tool_use_id)
            await ctx.services.get(SessionLog).record(loaded)
        if not matches:
            return {"tools": [], "note": "no tool matches: describe what it should do in other words"}
        return {
            "tools": [{"name": t.name, "description": shortened(t.description, _MAX_DESCRIPTION, "…")} for t in matches]
        }


def rank_tools(query: str, tools: Sequence[BareTool], limit: int = _USUAL_FOUND) -> list[BareTool]:
    """Return up to `limit` tools that match a query, best first; those named exactly in it come before all others."""
    words = set(re.split(r"[\s,;\"'`()]+", query))
    exact = [tool for tool in tools if tool.name in words]
    terms = set(_words(query))
    counts = [_weights(tool) for tool in tools]
    lengths = [sum(count.values()) for count in counts]
    usual = sum(lengths) / len(lengths) if lengths else 1.0
    scores = [0.0] * len(tools)
    for term in terms:
        holders = [index for index, count in enumerate(counts) if term in count]
        weight = log(1 + (len(tools) - len(holders) + 0.5) / (len(holders) + 0.5))
        for index in holders:
            count = counts[index][term]
            scores[index] += weight * count * (_K1 + 1) / (count + _K1 * (1 - _B + _B * lengths[index] / usual))
    best = sorted(range(len(tools)), key=lambda index: (-scores[index], tools[index].name))
    ranked = [tools[index] for index in best if scores[index] > 0 and tools[index] not in exact]
    return [*exact, *ranked][:limit]


def _weights(tool: BareTool) -> Mapping[str, float]:
    """The frequency of each word in a tool's definition, weighted by location."""
    weights: dict[str, float] = {}
    texts = [(_NAME, tool.name), (_DESCRIPTION, tool.description)]
    for name, schema in as_mapping(tool.input_schema.get("properties")).items():
        texts.append((_PARAMETER, f"{name} {as_text(as_mapping(schema).get('description'))}"))
    for weight, text in texts:
        for word in _words(text):
            weights[word] = weights.get(word, 0.0) + weight
    return weights


def _words(text: str) -> list[str]:
    """The words of a text or name (`createIssue`, `list_pull_requests`), lower-case and without plural endings."""
    words = [word.lower() for word in _WORD.findall(text[: 20 * _MAX_WORDS])[:_MAX_WORDS]]
    return [word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word for word in words]
