"""Glob patterns over relative paths, compiled to regular expressions that cannot explode.

`*` and `?` stay within a name, `**` is any number of folders, `[a-z]` and `[!a-z]` are sets, `{a,b}` are alternatives, a
backslash takes the next character as it is. Hidden names are names like others. Every star but the last of a name becomes
an atomic group that takes the first place where its text fits: the first is never worse than a later one, so nothing is
tried twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ..errors import ToolInputError

MAX_ALTERNATIVES = 256
MAX_PATTERN_CHARS = 4_096

_SPECIAL = frozenset("*?[\\{")


def compile_glob(pattern: str) -> Callable[[str], object]:
    """A function that says whether a path relative to the root, with `/` between names, matches.

    Raises `ToolInputError` for a pattern that is empty, too long, or stands for too many alternatives.
    """
    alternatives = expand_braces(pattern)
    simple = [_simple_suffix(alternative) for alternative in alternatives]
    suffixes = tuple(suffix for suffix in simple if suffix is not None)
    if len(suffixes) == len(simple):
        return lambda path: path.endswith(suffixes)
    return re.compile("|".join(f"(?:{path_regex(one)})" for one in alternatives), re.DOTALL).fullmatch


def expand_braces(pattern: str) -> list[str]:
    """The patterns without braces that a pattern with braces stands for. A group without a comma is taken as it is."""
    if not pattern or len(pattern) > MAX_PATTERN_CHARS:
        raise ToolInputError(
            f"a glob pattern has 1 to {MAX_PATTERN_CHARS} characters, not {len(pattern)}", path="pattern"
        )
    done: list[str] = []
    waiting = [pattern]
    while waiting:
        one = waiting.pop()
        group = _first_group(one)
        if group is None:
            done.append(one)
        else:
            start, end, choices = group
            waiting += [one[:start] + choice + one[end:] for choice in reversed(choices)]
        if len(done) + len(waiting) > MAX_ALTERNATIVES:
            raise ToolInputError(f"{pattern!r} stands for more than {MAX_ALTERNATIVES} patterns: use fewer braces")
    return done


def _first_group(pattern: str) -> tuple[int, int, list[str]] | None:
    """Start, end and choices of the first `{a,b}` that is closed and holds a comma."""
    start = -1
    while (start := _find_open(pattern, start + 1)) >= 0:
        depth, cut, choices, at = 0, start + 1, [], start
        while at < len(pattern):
            character = pattern[at]
            if character == "\\":
                at += 1
            elif character == "{":
                depth += 1
            elif character == "}":
                depth -= 1
                if depth == 0:
                    break
            elif character == "," and depth == 1:
                choices.append(pattern[cut:at])
                cut = at + 1
            at += 1
        if depth == 0 and choices:
            return start, at + 1, [*choices, pattern[cut:at]]
    return None


def _find_open(pattern: str, start: int) -> int:
    while start < len(pattern):
        if pattern[start] == "{":
            return start
        start += 2 if pattern[start] == "\\" else 1
    return -1


def _simple_suffix(pattern: str) -> str | None:
    """What a path must end with, for the frequent patterns that ask for nothing else; None for others."""
    if pattern in ("**", "**/*"):
        return ""
    rest = pattern.removeprefix("**/*")
    return rest if rest != pattern and not _SPECIAL.intersection(rest) and "/" not in rest else None


def path_regex(pattern: str) -> str:
    """The source of a regular expression for a whole path. The pattern has no braces."""
    chunks: list[list[str]] = [[]]
    for name in pattern.strip("/").split("/"):
        if name != "**":
            chunks[-1].append(name_regex(name))
        elif chunks[-1] or len(chunks) == 1:  # several in a row are one
            chunks.append([])
    texts = ["/".join(chunk) for chunk in chunks]
    if len(texts) == 1:
        return texts[0]
    first, *middle, last = texts
    parts = [first + "/" if first else ""]
    parts += [f"(?>(?:[^/]+/)*?{chunk}/)" for chunk in middle]
    parts.append(f"(?:[^/]+/)*{last}" if last else ".+")
    return "".join(parts)


def name_regex(pattern: str) -> str:
    """The source of a regular expression for one name."""
    pieces: list[str] = [""]
    at = 0
    while at < len(pattern):
        character = pattern[at]
        if character == "*":
            pieces.append("")
            at += 1
            continue
        text, at = _one_character(pattern, at)
        pieces[-1] += text
    first, *rest = pieces
    if not rest:
        return first
    middle = "".join(f"(?>[^/]*?{piece})" for piece in rest[:-1] if piece)
    return f"{first}{middle}[^/]*{rest[-1]}"


def _one_character(pattern: str, at: int) -> tuple[str, int]:
    """The regular expression of what stands at `at`, and where it ends."""
    character = pattern[at]
    if character == "?":
        return "[^/]", at + 1
    if character == "\\" and at + 1 < len(pattern):
        return re.escape(pattern[at + 1]), at + 2
    if character == "[":
        # A `]` right at the start belongs to the set.
        start = at + 2 if pattern[at + 1 : at + 2] in ("!", "^") else at + 1
        end = pattern.find("]", start + 1)
        if end > 0:
            return _character_set(pattern[start:end], negated=start == at + 2), end + 1
    return re.escape(character), at + 1


def _character_set(members: str, *, negated: bool) -> str:
    text, at = "", 0
    while at < len(members):
        if members[at + 1 : at + 2] == "-" and at + 2 < len(members):
            low, high = members[at], members[at + 2]
            text += f"{re.escape(low)}-{re.escape(high)}" if low <= high else ""
            at += 3
        else:
            text += re.escape(members[at])
            at += 1
    if negated:
        return f"[^/{text}]"
    return f"[{text}]" if text else "(?!)"


def static_folder(pattern: str) -> str:
    """The folders at the start of a pattern that hold no wildcard: where a walk may begin."""
    names = pattern.split("/")[:-1]
    count = next((i for i, name in enumerate(names) if _SPECIAL.intersection(name)), len(names))
    return "/".join(names[:count])
