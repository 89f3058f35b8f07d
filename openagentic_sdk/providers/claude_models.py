"""The features of each family of Claude models, as data: thinking, sampling, forced tools, effort, schemas.

Facts of November 2026 from Anthropic's migration guides. They age, so a model that is not in the table is treated like the
newest. A setting that a model refuses is omitted with a notice, because the same settings serve many models.
"""

from __future__ import annotations

from ..ground.frozen import frozen
from .bound_reasoning import claude_version


@frozen(kw_only=True)
class ClaudeFamily:
    """The features of one family.

    `adaptive_thinking`: `thinking` may be `{"type": "adaptive"}`. `budget_thinking`: it may be
    `{"type": "enabled", "budget_tokens": n}`. `always_thinks`: thinking cannot be turned off. `sampling`: temperature and
    top_p are accepted, `one_sampling_field`: only one of the two. `forced_tool`: a tool may be required (never in a request
    that turns thinking on). `efforts`: the values of `output_config.effort`. `schemas`: `output_config.format` is
    supported. `loads_tools`: a definition may be placed where a search found it. Whether thinking is bound to what preceded
    it is not a feature here: the module `bound_reasoning` decides it.
    """

    budget_thinking: bool = False
    adaptive_thinking: bool = True
    always_thinks: bool = False
    sampling: bool = False
    one_sampling_field: bool = False
    forced_tool: bool = True
    efforts: tuple[str, ...] = ("low", "medium", "high", "xhigh", "max")
    schemas: bool = True
    loads_tools: bool = True


_FIRST = ClaudeFamily(adaptive_thinking=False, sampling=True, efforts=(), schemas=False, loads_tools=False)
_3_7 = ClaudeFamily(
    budget_thinking=True, adaptive_thinking=False, sampling=True, efforts=(), schemas=False, loads_tools=False
)
_OPUS_4_5 = ClaudeFamily(
    budget_thinking=True,
    adaptive_thinking=False,
    sampling=True,
    one_sampling_field=True,
    efforts=("low", "medium", "high"),
)
_4_5 = ClaudeFamily(budget_thinking=True, adaptive_thinking=False, sampling=True, one_sampling_field=True, efforts=())
_4_6 = ClaudeFamily(
    budget_thinking=True, sampling=True, one_sampling_field=True, efforts=("low", "medium", "high", "max")
)
_4_7 = ClaudeFamily()
_ALWAYS = ClaudeFamily(always_thinks=True)
_NEWEST = ClaudeFamily(always_thinks=True, forced_tool=False)

# The name (empty for any), the first version, and the features; the last matching row counts.
_TABLE: tuple[tuple[str, tuple[int, int], ClaudeFamily], ...] = (
    ("", (0, 0), _FIRST),
    ("", (3, 7), _3_7),
    ("", (4, 5), _4_5),
    ("opus", (4, 5), _OPUS_4_5),
    ("", (4, 6), _4_6),
    ("", (4, 7), _4_7),
    ("fable", (5, 0), _ALWAYS),
    ("mythos", (5, 0), _ALWAYS),
    ("", (5, 1), _NEWEST),
)


def claude_family(model: str) -> ClaudeFamily:
    """The features of a model, by its name.

    A name that contains no family (of a deployment, or of another vendor's model on the same protocol) has every feature.
    """
    name_and_version = claude_version(model)
    if name_and_version is None:
        return ClaudeFamily(budget_thinking=True, sampling=True)
    name, version = name_and_version
    return [family for only, since, family in _TABLE if only in ("", name) and since <= version][-1]
