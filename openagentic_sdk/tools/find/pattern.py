"""Glob patterns over relative paths, compiled to regular expressions that cannot explode.

`*` and `?` stay within a name, `**` is any number of folders, `[a-z]` and `[!a-z]` are sets, `{a,b}` are alternatives, a
backslash takes the next character as it is. Hidden names are names like others. Every star but the last of a name becomes
an atomic group that takes the first place where its text fits: the first is never worse than a later one, so nothing is
tried twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ...errors import ToolInputError

MAX_ALTERNATIVES = 256
MAX_PATTERN_CHARS = 4_096

# What has a meaning in a pattern without braces.
SPECIAL = frozenset("*?[\\")


Fits = Callable[[str], object]
Names = list[str]


class GlobPattern:
    """A compiled pattern. What it says of folders is asked once for each folder, what it says of names for each file."""

    def __init__(self, pattern: str) -> None:
        """Raises `ToolInputError` for a pattern that is empty, too long, or stands for too many alternatives."""
        names_by_folder: dict[str, list[str]] = {}
        for alternative in expand_braces(pattern):
            folder, name = split_path(alternative)
            names_by_folder.setdefault(folder, []).append(name)
        self._parts = [(_folder_test(folder), name_filter(names)) for folder, names in names_by_folder.items()]

    def in_folder(self, prefix: str) -> Callable[[Names], Names] | None:
        """A function that picks the matching ones of the names of files in a folder; None when there can be none.

        `prefix` is the folder's path with a slash at its end, or empty.
        """
        pick = [pick for fits, pick in self._parts if fits is None or fits(prefix)]
        if len(pick) < 2:
            return pick[0] if pick else None
        return lambda names: list(dict.fromkeys(name for one in pick for name in one(names)))


def _folder_test(folder: str) -> Fits | None:
    return None if folder == "**" else re.compile(folder_regex(folder), re.DOTALL).fullmatch


def name_filter(patterns: list[str]) -> Callable[[Names], Names]:
    """A function that picks the names that match any of several patterns, quickly for the frequent kinds of patterns."""
    if "*" in patterns:
        return lambda names: names
    suffixes = tuple(pattern[1:] for pattern in patterns if pattern[0] == "*" and not SPECIAL.intersection(pattern[1:]))
    if len(suffixes) == len(patterns):
        return lambda names: [name for name in names if name.endswith(suffixes)]
    fits = re.compile("|".join(map(name_regex, patterns)), re.DOTALL).fullmatch
    return lambda names: [name for name in names if fits(name)]


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


def split_path(pattern: str) -> tuple[str, str]:
    """The pattern of the folders (empty for the root alone) and of the file's name. `**` at the end is any file below."""
    folder, _, name = pattern.strip("/").rpartition("/")
    if name != "**":
        return folder, name or "*"
    return f"{folder}/**" if folder else "**", "*"


def folder_regex(pattern: str) -> str:
    """The source of a regular expression for a folder's path, which has a slash after each name."""
    chunks = [""]
    names = [name for name in pattern.split("/") if name]
    for before, name in zip(["", *names], names, strict=False):
        if name != "**":
            chunks[-1] += name_regex(name) + "/"
        elif before != "**":  # several in a row are one
            chunks.append("")
    if len(chunks) == 1:
        return chunks[0]
    first, *middle, last = chunks
    return first + "".join(f"(?>(?:[^/]+/)*?{chunk})" for chunk in middle) + f"(?:[^/]+/)*{last}"


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
    count = next((i for i, name in enumerate(names) if SPECIAL.intersection(name)), len(names))
    return "/".join(names[:count])
