"""A session's usage: tokens in one normal form, whatever the endpoint calls them, and sums of them.

The normal form is `{"input_tokens", "cached_input_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens"}`.
`input_tokens` is the whole prompt, `cached_input_tokens` and `cache_write_tokens` are the parts of it that were read from
and written to the vendor's cache; `output_tokens` is the whole answer and `reasoning_tokens` a part of it. So a request's
size is input plus output. Unknown usage is `None`; in known usage, unknown parts are 0. `cache_write_1h_tokens`, present
only if it is not 0, is the part of `cache_write_tokens` that stays in the cache for an hour and costs more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Usage = dict[str, int]

HOUR = "cache_write_1h_tokens"
FIELDS = ("input_tokens", "cached_input_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens")
_NORMAL_FORMS = (FIELDS, (*FIELDS, HOUR))


# The paths of each number, first match wins: chat completions, Responses, Messages, and those of DeepSeek, Moonshot and
# the Hugging Face router. A dot descends one level.
_INPUT = ("input_tokens", "prompt_tokens")
_OUTPUT = ("output_tokens", "completion_tokens")
_CACHED = (
    "cached_input_tokens",
    "cache_read_input_tokens",
    "prompt_tokens_details.cached_tokens",
    "input_tokens_details.cached_tokens",
    "prompt_cache_hit_tokens",
    "cached_tokens",
)
_WRITTEN = (
    "cache_write_tokens",
    "cache_creation_input_tokens",
    "prompt_tokens_details.cache_write_tokens",
    "input_tokens_details.cache_write_tokens",
)
_WRITTEN_1H = (HOUR, "cache_creation.ephemeral_1h_input_tokens")
_REASONING = (
    "reasoning_tokens",
    "completion_tokens_details.reasoning_tokens",
    "output_tokens_details.reasoning_tokens",
)
_OBJECTS = frozenset(path.partition(".")[0] for path in (*_CACHED, *_WRITTEN, *_WRITTEN_1H, *_REASONING) if "." in path)


def normalize_usage(raw: Mapping[str, Any] | None) -> Usage | None:
    """The normal form of an endpoint's usage, or None if it reports neither input nor output.

    The Messages API does not include cached tokens in `input_tokens`; all others include them, even LiteLLM, which uses the
    Messages API's names for them. xAI and Gemini exclude reasoning from `completion_tokens` but include it in
    `total_tokens`; the excess of the total over its parts was output.
    """
    if raw.__class__ is not dict and not isinstance(raw, Mapping):
        return None
    if tuple(raw) in _NORMAL_FORMS and all(type(number) is int and 0 <= number < 1e99 for number in raw.values()):
        return dict(raw)  # it is already in the normal form, of one answer or of a sum
    numbers = _numbers(raw)
    prompt, answer = _first(numbers, _INPUT), _first(numbers, _OUTPUT)
    if prompt is None and answer is None:
        return None
    prompt, answer = prompt or 0, answer or 0
    cached, cache_writes = _first(numbers, _CACHED) or 0, _first(numbers, _WRITTEN) or 0
    beside = "cache_read_input_tokens" in raw or "cache_creation_input_tokens" in raw
    if beside and "prompt_tokens" not in raw:
        prompt += cached + cache_writes
    answer = max(answer, numbers.get("total_tokens", 0) - prompt)
    # Endpoints also report parts that exceed the whole, and prices must not become negative.
    cached = min(cached, prompt)
    cache_writes = min(cache_writes, prompt - cached)
    normal = {
        "input_tokens": prompt,
        "cached_input_tokens": cached,
        "cache_write_tokens": cache_writes,
        "output_tokens": answer,
        "reasoning_tokens": min(_first(numbers, _REASONING) or 0, answer),
    }
    if for_an_hour := min(_first(numbers, _WRITTEN_1H) or 0, cache_writes):
        normal[HOUR] = for_an_hour
    return normal


def add_usage(a: Mapping[str, Any] | None, b: Mapping[str, Any] | None) -> Usage | None:
    """The sum in the normal form; None only if neither is known."""
    one, other = normalize_usage(a), normalize_usage(b)
    if one is None or other is None:
        return one or other
    names = (*FIELDS, HOUR) if HOUR in one or HOUR in other else FIELDS
    return {name: one.get(name, 0) + other.get(name, 0) for name in names}


def add_cost(a: float | None, b: float | None) -> float | None:
    """The sum; None if either is unknown."""
    return None if a is None or b is None else a + b


def cached_share(usage: Mapping[str, Any] | None) -> float | None:
    """The fraction of the prompt tokens that were in the vendor's cache, 0 to 1; None if no prompt's size is known."""
    tokens = normalize_usage(usage)
    if tokens is None or not tokens["input_tokens"]:
        return None
    return round(tokens["cached_input_tokens"] / tokens["input_tokens"], 4)


def _numbers(raw: Mapping[str, Any]) -> dict[str, int]:
    """An endpoint's counts by path; a dot in a path descends one level."""
    numbers: dict[str, int] = {}
    for name, value in raw.items():
        if value.__class__ is dict or isinstance(value, Mapping):
            inner = {f"{name}.{key}": _count(number) for key, number in value.items()} if name in _OBJECTS else {}
            numbers.update({path: number for path, number in inner.items() if number is not None})
        elif (number := _count(value)) is not None:
            numbers[name] = number
    return numbers


def _first(numbers: Mapping[str, int], names: Iterable[str]) -> int | None:
    for name in names:
        if name in numbers:
            return numbers[name]
    return None


def _count(value: Any) -> int | None:
    """A number of tokens, or None for an invalid value."""
    # Excludes NaN, infinity and numbers that lose precision as a float.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
        return None
    return int(value)
