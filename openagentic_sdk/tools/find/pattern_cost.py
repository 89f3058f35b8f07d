"""How badly a regular expression can behave, judged by its text alone and on the side of caution.

Python's `re` backtracks and cannot be interrupted. What is `SAFE` takes time in proportion to the text; `LINE` at most the
square of a line's length; everything else may take for ever and is only run where it can be killed.
"""

from __future__ import annotations

import re
from enum import Enum

MAX_WAYS = 64


class Cost(Enum):
    SAFE = "safe"
    LINE = "line"
    EXPLODES = "explodes"


# One step through a pattern: what refers back, escapes, sets (a `]` at their start belongs to them), groups, repetitions.
TOKENS = re.compile(
    r"(?P<back>\\[1-9]|\(\?P=|\(\?\()|(?P<escape>\\.)|(?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])|(?P<flags>\(\?[a-zA-Z]+\))"
    r"|(?P<open>\((?:\?(?:P<\w+>|<?[=!]|[a-zA-Z-]*[:>]))?)|(?P<close>\))"
    r"|(?P<repeat>[*+?]|\{\d*,?\d*\})[?+]?|(?P<or>\|)|(?P<other>.)",
    re.DOTALL,
)
# What may match a line's end: sets that say what they do not hold, escapes but for a few, control characters, `(?s)`.
_CROSSES_LINES = re.compile(r"\[\^|\\[^wdSbB\W]|[\x00-\x1f]|\(\?[a-zA-Z]*s")
_COUNTS = re.compile(r"\{(\d*)(,?)(\d*)\}")


class _Group:
    """An open group: how many alternatives it has so far, and whether anything in it can match in more than one way."""

    def __init__(self) -> None:
        self.alternatives = 1
        self.is_busy = False


def pattern_cost(pattern: str) -> Cost:
    """The worst that a valid pattern can do."""
    unbounded, ways = 0, 1
    groups = [_Group()]
    closed, previous = _Group(), ""
    for token in TOKENS.finditer(pattern):
        kind = token.lastgroup or ""
        if kind == "back":
            return Cost.EXPLODES
        if kind == "open":
            groups.append(_Group())
        elif kind == "close" and len(groups) > 1:
            closed = groups.pop()
            ways *= closed.alternatives
            groups[-1].is_busy |= closed.is_busy
        elif kind == "or":
            groups[-1].alternatives += 1
            groups[-1].is_busy = True
        elif kind == "repeat":
            times = _most_times(token["repeat"])
            if previous == "close" and closed.is_busy and token["repeat"] != "?":
                return Cost.EXPLODES
            groups[-1].is_busy = True
            unbounded += times is None
            ways *= times or 1
        previous = kind
    if unbounded > 1 or ways > MAX_WAYS:
        return Cost.EXPLODES
    if unbounded:
        return Cost.EXPLODES if _CROSSES_LINES.search(pattern) else Cost.LINE
    return Cost.SAFE


def _most_times(repeat: str) -> int | None:
    """How many ways a repetition has to match at most; None when there is no bound worth the name."""
    if repeat in "*+":
        return None
    if repeat == "?":
        return 2
    counts = _COUNTS.fullmatch(repeat)
    low, comma, high = counts.groups() if counts else ("", ",", "")
    if comma and not high:
        return None
    most = int(high or low or 0)
    return most - int(low or 0) + 1 if most <= MAX_WAYS else None
