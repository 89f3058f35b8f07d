"""Explain why a text was not found in a file: the differences, and the nearest match.

Only for error messages; nothing is ever changed based on similarity.
"""

from __future__ import annotations

import re

from ...ground.patterns import regex

MAX_LINES = 20_000
MAX_CANDIDATES = 200
MAX_SHOWN_LINES = 12
MIN_RATIO = 0.5

_NUMBERED = regex(r"\s*\d+(\t|→)")
_SPACES = regex(r"\s+")


def explain_missing(text: str, old: str) -> str:
    """Explain in one sentence why `old` is not in the text: a known reason, otherwise the nearest match and its line, if any
    is near.
    """
    old_lines = old.splitlines()
    if all(_NUMBERED.match(line) for line in old_lines):
        return "Its lines begin with line numbers: leave out the numbers and tabs that Read shows before each line"
    lines = text.split("\n", MAX_LINES)[:MAX_LINES]
    start = _same_but_spaces(lines, old_lines)
    if start is not None:
        return (
            f"Only white space differs from lines {start + 1}-{start + len(old_lines)}, which are "
            f"(spaces, tabs and ends made visible): {_visible(lines[start : start + len(old_lines)])}"
        )
    if old.casefold() in text.casefold():
        return "It occurs with different upper and lower case: copy it exactly"
    from difflib import SequenceMatcher

    best, ratio = 0, 0.0
    target = "\n".join(old_lines)[:4_000]
    matcher = SequenceMatcher(autojunk=False)
    matcher.set_seq2(target)
    for start in _candidates(lines, old_lines):
        matcher.set_seq1("\n".join(lines[start : start + len(old_lines)])[:4_000])
        if matcher.quick_ratio() > ratio and (new_ratio := matcher.ratio()) > ratio:
            best, ratio = start, new_ratio
    if ratio < MIN_RATIO:
        return "Nothing in it is similar: Read the file again"
    end = best + min(len(old_lines), MAX_SHOWN_LINES)
    return f"The nearest text is at line {best + 1} ({ratio:.0%} similar): {_visible(lines[best:end])}"


def _same_but_spaces(lines: list[str], old_lines: list[str]) -> int | None:
    """The index of the first line where the same lines occur, ignoring white space; a single line may be part of one."""
    target = [_squeeze(line) for line in old_lines]
    if not any(target):
        return None
    squeezed = [_squeeze(line) for line in lines]
    for start in range(len(squeezed) - len(target) + 1):
        if len(target) == 1:
            if target[0] in squeezed[start]:
                return start
        elif squeezed[start : start + len(target)] == target:
            return start
    return None


def _squeeze(line: str) -> str:
    return _SPACES.sub("", line)


def _candidates(lines: list[str], old_lines: list[str]) -> list[int]:
    """The indices of the first lines of the windows, at most `MAX_CANDIDATES`, that share most words with `old_lines`."""
    words = set(re.findall(r"\w+", "\n".join(old_lines)))
    shared = [len(words.intersection(re.findall(r"\w+", line[:500]))) for line in lines]
    size = len(old_lines)
    total = sum(shared[:size])
    scores = [(total, 0)]
    for start in range(1, max(1, len(lines) - size + 1)):
        total += shared[start + size - 1] - shared[start - 1]
        scores.append((total, -start))
    return [-start for score, start in sorted(scores, reverse=True)[:MAX_CANDIDATES] if score]


def _visible(lines: list[str]) -> str:
    excerpt = [line[:300] for line in lines[:MAX_SHOWN_LINES]]
    return repr("\n".join(excerpt))
