"""The criteria that a suite can apply to a run: one frozen class per kind of scorer, with the same fields as in TOML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..events import Outcome
from ..ground.frozen import frozen

MAX_WORDS_CHARS = 2_000


@frozen
class Score:
    """A scorer's result for a run: whether it passed, a value from 0 to 1, and the reason.

    `error_type` is set if the scorer itself failed, and then the run does not pass. `session_id` and `cost_usd` are those of
    a judge.
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
    """A check that the final text equals `text`, ignoring white space at both ends."""

    type = "exact"
    text: str
    ignore_case: bool = False
    name: str = ""


@frozen(kw_only=True)
class Regex:
    """A check that the final text contains a match of a Python `re` pattern or, with `absent`, none.

    `timeout_s` limits the search.
    """

    type = "regex"
    pattern: str
    absent: bool = False
    timeout_s: float = 5.0
    name: str = ""


@frozen(kw_only=True)
class JsonSchema:
    """A check that the final answer is JSON, plain or in a ```json block, that is valid under the schema."""

    type = "json_schema"
    schema: Mapping[str, Any]
    timeout_s: float = 5.0
    name: str = ""


@frozen(kw_only=True)
class Call:
    """An expected call: the name of its tool matches `tool` (`Edit|Write`, `mcp__db__*`); its arguments contain `input`.

    Each pattern in `matches` must be found in the argument of that name. `outcome` is as in `tool.result`; None accepts any.
    """

    tool: str
    input: Mapping[str, Any] | None = None
    matches: Mapping[str, str] | None = None
    outcome: Outcome | None = None


def as_call(entry: Call | str | Mapping[str, Any]) -> Call:
    """Convert an entry to a `Call`; a bare name is a call of that tool."""
    if isinstance(entry, Call):
        return entry
    return Call(tool=entry) if isinstance(entry, str) else Call(**entry)


@frozen(kw_only=True)
class Calls:
    """A check of the calls that the model made. A call counts once it is requested, even if it did not run.

    Each call of `must` was made, and none of `must_not`. Those of `order` were made in this order, possibly with others
    between them; those of `exactly` (unless it is None) in this order and without others. A bare name is a `Call`. `at_most`
    limits the number of calls.
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
    """Limits on the cost of a run in US dollars and on its tokens, both including subagents.

    An unknown cost or number of tokens fails its limit.
    """

    type = "cost"
    max_usd: float | None = None
    max_tokens: int | None = None
    name: str = ""


@frozen(kw_only=True)
class Steps:
    """Limits on the number of model calls."""

    type = "steps"
    at_most: int | None = None
    at_least: int = 0
    name: str = ""


@frozen(kw_only=True)
class Function:
    """A Python function that scores a run by its events.

    It returns True or False, a number from 0 to 1, or one of these with a message. A number passes if it is at least
    `pass_from`. In TOML it is given as `module:name` or `file.py:name`.
    """

    type = "function"
    check: Any
    pass_from: float = 0.5
    timeout_s: float = 30.0
    name: str = ""


@frozen(kw_only=True)
class Judge:
    """A model that judges whether the answer satisfies the rubric, in a session of its own.

    `model` and the settings up to `script` are as in a variant and default to the agent's. With `with_calls`, the judge also
    reads the calls. The score passes if the verdict is `pass` and the value is at least `pass_from`.
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
