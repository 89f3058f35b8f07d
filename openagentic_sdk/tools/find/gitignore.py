"""Ignore rules in `.gitignore` files, as git defines them (gitignore(5)).

Pure: the text of a file goes in, verdicts on names come out. In one file the last matching pattern decides; of several
files the one nearest to the path. The caller walks top-down and does not enter ignored folders, so nothing below them can
be re-included.
"""

from __future__ import annotations

import re

from ...ground.frozen import frozen
from ...ground.globs import SPECIAL, folder_regex, name_regex, split_path
from .pattern import Fits

MAX_RULES = 10_000


@frozen
class _IgnoreRule:
    """One pattern: its verdict on names in folders that `in_folder` accepts (None: in every folder)."""

    name: str
    fits: Fits
    ignores: bool
    folders_only: bool
    in_folder: Fits | None


class NameRules:
    """The rules that apply to the files, or to the folders, in one folder."""

    def __init__(self, rules: list[_IgnoreRule]) -> None:
        names = {rule.name for rule in rules}
        self._literals = {name for name in names if not SPECIAL.intersection(name)}
        endings = {name for name in names if name[0] == "*" and not SPECIAL.intersection(name[1:])}
        self._endings = tuple(name[1:] for name in endings)
        others = [name_regex(name) for name in names - self._literals - endings]
        self._others = re.compile("|".join(others), re.DOTALL).fullmatch if others else None
        # Without a negated rule, any match ignores a name, and the order is irrelevant.
        self._in_order = rules[::-1] if not all(rule.ignores for rule in rules) else None

    def verdicts(self, names: list[str]) -> dict[str, bool]:
        """True for ignored names, False for re-included ones; names without a matching rule are missing."""
        endings, others = self._endings, self._others
        concerned = [name for name in names if name.endswith(endings)] if endings else []
        if not self._literals.isdisjoint(names):
            concerned += self._literals.intersection(names)
        if others:
            concerned += [name for name in names if others(name)]
        if self._in_order is None:
            return dict.fromkeys(concerned, True)
        return {name: next(rule.ignores for rule in self._in_order if rule.fits(name)) for name in concerned}


class IgnoreFile:
    """The patterns in the first `MAX_RULES` lines of an ignore file; false in a condition if there are none."""

    def __init__(self, text: str) -> None:
        lines = text.splitlines()[:MAX_RULES]
        self._rules = [rule for pattern in map(_clean, lines) if pattern.strip("!/") and (rule := _rule(pattern))]
        self._cached_rules: dict[tuple[bool, tuple[int, ...]], NameRules] = {}
        self._bound = [(number, rule.in_folder) for number, rule in enumerate(self._rules) if rule.in_folder]

    def rules_in(self, prefix: str, *, folders: bool) -> NameRules:
        """The rules for the files, or the folders, in a folder.

        `prefix` is the folder's path relative to the file of patterns, with a trailing slash, or empty.
        """
        here = tuple(number for number, in_folder in self._bound if in_folder(prefix))
        rules = self._cached_rules.get((folders, here))
        if rules is None:
            counting = [rule for number, rule in enumerate(self._rules) if rule.in_folder is None or number in here]
            rules = NameRules([rule for rule in counting if folders or not rule.folders_only])
            self._cached_rules[folders, here] = rules
        return rules

    def __bool__(self) -> bool:
        return bool(self._rules)


def _clean(line: str) -> str:
    """The pattern in a line: without comments, and without trailing spaces unless escaped."""
    if line.startswith("#"):
        return ""
    stripped = line.rstrip(" \t\r")
    return stripped + " " if stripped.endswith("\\") and len(line) > len(stripped) else stripped


def _rule(pattern: str) -> _IgnoreRule | None:
    """The rule of a pattern; None for one that matches nothing, such as a set with an empty range."""
    body = pattern.removeprefix("!")
    bound = "/" in body.removesuffix("/")  # a slash that is not at the end anchors a pattern to the file's folder
    folder, name = split_path(body)
    try:
        in_folder = re.compile(folder_regex(folder), re.DOTALL).fullmatch if bound and folder != "**" else None
        fits = re.compile(name_regex(name), re.DOTALL).fullmatch
    except ValueError:
        return None
    return _IgnoreRule(name, fits, not pattern.startswith("!"), body.endswith("/"), in_folder)
