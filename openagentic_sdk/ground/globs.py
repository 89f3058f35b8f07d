"""Glob patterns over paths, compiled to regular expressions without catastrophic backtracking.

`*` and `?` stay within a name, `**` is any number of folders, `[a-z]` and `[!a-z]` are sets, a backslash escapes the next
character, and `expand_braces` expands `{a,b}`. Hidden names are not special. Every star of a name but the last becomes an
atomic group that stops at the first place where its text fits: a later place is never better, so nothing is tried twice.
A set with an empty range, such as `[z-a]`, raises `ValueError`.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import pairwise

MAX_ALTERNATIVES = 256
MAX_CHARS = 4096

# The special characters of a pattern without braces.
SPECIAL = frozenset("*?[\\")


def fits_name(pattern: str, name: str) -> bool:
    """Whether a name, for example of a tool, matches one of the `|`-separated fnmatch patterns."""
    return any(fnmatchcase(name, part.strip()) for part in pattern.split("|"))


@lru_cache(maxsize=1024)
def compile_glob(pattern: str) -> re.Pattern[str] | None:
    """Compile a pattern, including braces, for whole relative paths; without a `/` it matches a name in any folder.

    None for a pattern that cannot be used: it is empty or too long, has an empty range, or has too many alternatives.
    """
    alternatives = expand_braces(pattern, MAX_ALTERNATIVES) if 0 < len(pattern) <= MAX_CHARS else None
    if alternatives is None or sum(map(len, alternatives)) > 16 * MAX_CHARS:
        return None
    anchored = [one.removeprefix("./") if "/" in one else f"**/{one}" for one in alternatives]
    try:
        return re.compile("|".join(map(path_regex, anchored)), re.DOTALL)
    except ValueError:
        return None


def path_regex(pattern: str) -> str:
    """The source of a regular expression for a whole relative path. A final `**` matches any file below."""
    folder, name = split_path(pattern)
    return folder_regex(folder) + name_regex(name)


def split_path(pattern: str) -> tuple[str, str]:
    """The pattern of the folders (empty for the root alone) and of the file's name. A final `**` matches any file below."""
    folder, _, name = pattern.strip("/").rpartition("/")
    if name != "**":
        return folder, name or "*"
    return f"{folder}/**" if folder else "**", "*"


def folder_regex(pattern: str) -> str:
    """The source of a regular expression for a folder's path, with a slash after each name."""
    chunks = [""]
    names = [name for name in pattern.split("/") if name]
    for before, name in zip(["", *names], names, strict=False):
        if name != "**":
            chunks[-1] += name_regex(name) + "/"
        elif before != "**":  # several in a row equal one
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
    """The regular expression of the element at position `at`, and the position after it."""
    character = pattern[at]
    if character == "?":
        return "[^/]", at + 1
    if character == "\\" and at + 1 < len(pattern):
        return re.escape(pattern[at + 1]), at + 2
    if character == "[":
        # A `]` at the start is a member of the set.
        start = at + 2 if pattern[at + 1 : at + 2] in ("!", "^") else at + 1
        end = pattern.find("]", start + 1)
        if end > 0:
            return _character_set(pattern[start:end], negated=start == at + 2), end + 1
    return re.escape(character), at + 1


def _character_set(members: str, *, negated: bool) -> str:
    text, at = "", 0
    while at < len(members):
        low, high = members[at], members[at]
        if members[at + 1 : at + 2] == "-" and at + 2 < len(members):
            high = members[at + 2]
            at += 2
        if low > high:
            raise ValueError(f"the range {low}-{high} in the brackets of a pattern contains no character")
        text += re.escape(low) if low == high else f"{re.escape(low)}-{re.escape(high)}"
        at += 1
    return f"[^/{text}]" if negated else f"[{text}]"


def static_folder(pattern: str) -> str:
    """The leading folders of a pattern, before the first with a wildcard: where a walk may start."""
    names = pattern.split("/")[:-1]
    count = next((i for i, name in enumerate(names) if SPECIAL.intersection(name)), len(names))
    return "/".join(names[:count])


def expand_braces(pattern: str, most: int) -> list[str] | None:
    """Expand the braces of a pattern; None if there would be more than `most` results.

    A group without a comma is literal. Nested groups multiply, so the limit is checked along the way.
    """
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
        if len(done) + len(waiting) > most:
            return None
    return done


def _first_group(pattern: str) -> tuple[int, int, list[str]] | None:
    """Start, end and choices of the first closed `{a,b}` with a comma; None without one."""
    marks: list[int] = []  # the start of the group, its commas, and its end
    groups: list[list[int]] = []  # the start of each open group, and its commas
    at = 0
    while at < len(pattern) and (groups or not marks):
        character = pattern[at]
        if character == "\\":
            at += 1
        elif character == "{":
            groups.append([at])
        elif character == "," and groups:
            groups[-1].append(at)
        elif character == "}" and groups:
            group = groups.pop()
            if len(group) > 1 and (not marks or group[0] < marks[0]):
                marks = [*group, at]
        at += 1
    if not marks:
        return None
    return marks[0], marks[-1] + 1, [pattern[begin + 1 : end] for begin, end in pairwise(marks)]
