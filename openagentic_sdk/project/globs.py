"""Match paths against the globs of rule files: `**`, `*`, `?`, `[a-z]` and `{a,b}`.

A pattern that expands into more than `MAX_PATTERNS` matches nothing: braces in braces grow faster than any machine.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from itertools import pairwise

MAX_PATTERNS = 1000
MAX_PATTERN_CHARS = 4096


def matches_glob(path: str, pattern: str) -> bool:
    """Whether a path with `/` between its parts fits; a pattern without `/` fits the name in any folder."""
    if len(pattern) > MAX_PATTERN_CHARS:
        return False
    parts = path.split("/")
    return any(_fits(parts, one) for one in expand_braces(pattern) or ())


def _fits(parts: list[str], pattern: str) -> bool:
    """Part by part, keeping every place that the pattern can have reached: no pattern takes more than one pass."""
    wanted = pattern.removeprefix("./").removeprefix("/").split("/")
    if len(wanted) == 1:
        wanted.insert(0, "**")
    reached = {0}
    for part in wanted:
        if part == "**" and reached:
            reached = set(range(min(reached), len(parts) + 1))
        else:
            reached = {at + 1 for at in reached if at < len(parts) and fnmatchcase(parts[at], part)}
    return len(parts) in reached


def expand_braces(pattern: str) -> list[str] | None:
    """`{a,b}/*.py` as its two patterns; None when there would be more than `MAX_PATTERNS`."""
    done: list[str] = []
    waiting = [pattern]
    while waiting:
        if len(waiting) + len(done) > MAX_PATTERNS:
            return None
        current = waiting.pop()
        group = _first_group(current)
        if group is None:
            done.append(current)
        else:
            start, end, choices = group
            waiting.extend(current[:start] + choice + current[end:] for choice in reversed(choices))
    return done


def _first_group(pattern: str) -> tuple[int, int, list[str]] | None:
    """The first `{...}` with a comma in it: where it starts and ends, and what stands between its commas."""
    start = pattern.find("{")
    while start >= 0:
        depth, commas, end = 0, [start], -1
        for i in range(start, len(pattern)):
            if pattern[i] == "{":
                depth += 1
            elif pattern[i] == "}":
                depth -= 1
                if depth == 0:
                    end = i
                    break
            elif pattern[i] == "," and depth == 1:
                commas.append(i)
        if end < 0:
            return None
        if len(commas) > 1:
            cuts = [*commas, end]
            return start, end + 1, [pattern[a + 1 : b] for a, b in pairwise(cuts)]
        start = pattern.find("{", start + 1)
    return None
