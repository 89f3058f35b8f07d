"""What a suite can ask of a run: one frozen class per kind of scorer, which is also what TOML may say, field by field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..events import Outcome
from ..ground.frozen import frozen

MAX_WORDS_CHARS = 2_000


@frozen
class Score:
    """What a scorer says of a run: whether it passed, a value from 0 to 1, and why in words.

    `error_type` is set when it could not score: that is a failure too. `session_id` and `cost_usd` are those of a judge.
    """

    name: str
    type: str
    passed: bool
    value: float
    words: str = ""
    error_type: str | None = None
    session_id: str | None = None
    cost_usd: float | None = None


@frozen(kw_only=True)
class Exact:
    """The final text is this text. Blanks at both ends do not count."""

    type = "exact"
    text: str
    ignore_case: bool = False
    name: str = ""


@frozen(kw_only=True)
class Regex:
    """The final text holds a match of a pattern of Python's `re`; with `absent`, none. It has `timeout_s` to be found."""

    type = "regex"
    pattern: str
    absent: bool = False
    timeout_s: float = 5.0
    name: str = ""


@frozen(kw_only=True)
class JsonSchema:
    """The final answer is JSON, alone or in a ```json block, that fits the schema."""

    type = "json_schema"
    schema: Mapping[str, Any]
    timeout_s: float = 5.0
    name: str = ""


@frozen(kw_only=True)
class Call:
    """Calls of tools whose name fits (`Edit|Write`, `mcp__db__*`), whose arguments hold all of `input`, and in which the
    patterns of `matches` are found, each in the argument of its name. `outcome` is one of `tool.result`.
    """

    tool: str
    input: Mapping[str, Any] | None = None
    matches: Mapping[str, str] | None = None
    outcome: Outcome | None = None


def as_call(entry: Call | str | Mapping[str, Any]) -> Call:
    """A call that is wanted; a name alone stands for one."""
    if isinstance(entry, Call):
        return entry
    return Call(tool=entry) if isinstance(entry, str) else Call(**entry)


@frozen(kw_only=True)
class Calls:
    """Which tools the model called; a name alone stands for a `Call`. A call counts when it was asked for, run or not.

    Each of `must` was called, none of `must_not`, those of `order` in this order (others between them), and with `exactly`
    these in this order and no others. `at_most` bounds how many calls there are.
    """

    type = "calls"
    must: Sequence[str | Call] = ()
    must_not: Sequence[str | Call] = ()
    order: Sequence[str | Call] = ()
    exactly: Sequence[str | Call] | None = None
    at_most: int | None = None
    timeout_s: float = 5.0
    name: str = ""


CALL_LISTS = ("must", "must_not", "order", "exactly")


@frozen(kw_only=True)
class Cost:
    """The run cost at most so many dollars, and took at most so many tokens, subagents included. An unknown cost fails."""

    type = "cost"
    max_usd: float | None = None
    max_tokens: int | None = None
    name: str = ""


@frozen(kw_only=True)
class Steps:
    """How often the model was asked."""

    type = "steps"
    at_most: int | None = None
    at_least: int = 0
    name: str = ""


@frozen(kw_only=True)
class Function:
    """A function of Python over the run's events: it gives True or False, a number from 0 to 1, or one of them and words.

    In TOML it is named `module:name` or `file.py:name`. A number passes from `pass_from` on.
    """

    type = "function"
    check: Any
    pass_from: float = 0.5
    timeout_s: float = 30.0
    name: str = ""


@frozen(kw_only=True)
class Judge:
    """A model says whether the answer fits the rubric. Its verdict is a session of its own, which `view` shows.

    `model` and the settings behind it are those of a variant, and the agent's own when left out. `with_calls` shows it the
    calls too. It passes from `pass_from` on, when the verdict is `pass`.
    """

    type = "judge"
    rubric: str
    model: str | None = None
    provider: str | None = None
    base_url: str | None = None
    api_key_env: str | None = None
    script: str | None = None
    with_calls: bool = False
    pass_from: float = 0.5
    max_cost_usd: float | None = None
    timeout_s: float = 120.0
    name: str = ""


Scorer = Exact | Regex | JsonSchema | Calls | Cost | Steps | Function | Judge
SCORERS: Mapping[str, type[Scorer]] = {
    kind.type: kind for kind in (Exact, Regex, JsonSchema, Calls, Cost, Steps, Function, Judge)
}
