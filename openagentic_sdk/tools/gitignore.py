"""What `.gitignore` files leave out, as git defines it (gitignore(5)).

Pure: the text of a file goes in, verdicts on paths come out. In one file the last pattern that matches decides; of several
files the one nearest to the path. The caller walks from the top down and does not enter folders that are left out, so
nothing below them can be taken back in.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from .glob_pattern import name_regex, path_regex

MAX_RULES = 10_000
MAX_CACHED_NAMES = 50_000

_WILD = frozenset("*?[\\")


@dataclass(frozen=True)
class _Rule:
    """One pattern. `anchored` ones match the path from the file's folder on, the others the name alone."""

    matches: Callable[[str], object]
    ignores: bool
    folders_only: bool
    anchored: bool


class IgnoreFile:
    """The patterns of one file. Asking costs a set look-up for names that no pattern speaks of."""

    def __init__(self, text: str) -> None:
        patterns = [line for line in map(_clean, text.splitlines()[:MAX_RULES]) if line]
        self._rules = [_rule(pattern) for pattern in patterns]
        self._anchored = any(rule.anchored for rule in self._rules)
        names = [name for name in map(_bare_name, patterns) if name]
        self._literals = {name for name in names if not _WILD.intersection(name)}
        suffixes = [name[1:] for name in names if name[0] == "*" and not _WILD.intersection(name[1:])]
        self._suffixes = tuple(suffixes)
        others = [name_regex(name) for name in names if _WILD.intersection(name) and name[1:] not in suffixes]
        self._others = re.compile("|".join(others) or "(?!)", re.DOTALL)

    def verdict(self, path: str, name: str, is_folder: bool) -> bool | None:
        """True: left out, False: taken back in, None: nothing is said. `path` is relative to the file's folder."""
        if not (self._anchored or self._speaks_of(name)):
            return None
        for rule in reversed(self._rules):
            if (is_folder or not rule.folders_only) and rule.matches(path if rule.anchored else name):
                return rule.ignores
        return None

    def _speaks_of(self, name: str) -> bool:
        return name in self._literals or name.endswith(self._suffixes) or self._others.fullmatch(name) is not None

    def __bool__(self) -> bool:
        return bool(self._rules)


def _clean(line: str) -> str:
    """The pattern in a line: no comment, no trailing spaces unless a backslash keeps them."""
    if line.startswith("#"):
        return ""
    stripped = line.rstrip(" \t\r")
    return stripped + " " if stripped.endswith("\\") and len(line) > len(stripped) else stripped


def _bare_name(pattern: str) -> str:
    """The part of a pattern that names are compared with; empty for an anchored one."""
    body = pattern.removeprefix("!").removesuffix("/").removeprefix("**/")
    return "" if "/" in body else body


def _rule(pattern: str) -> _Rule:
    ignores, folders_only = not pattern.startswith("!"), pattern.endswith("/")
    name = _bare_name(pattern)
    source = name_regex(name) if name else path_regex(pattern.removeprefix("!"))
    return _Rule(re.compile(source or "(?!)", re.DOTALL).fullmatch, ignores, folders_only, not name)
