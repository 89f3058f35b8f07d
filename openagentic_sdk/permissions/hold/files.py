"""Expand deny and ask rules about files and programs to the existing paths that a command's sandbox closes.

Patterns are expanded by walking the disk just before the command starts; an incomplete walk is reported.
"""

from __future__ import annotations

import os
import re
import stat
import unicodedata
from collections.abc import Callable, Sequence
from functools import partial

from ...ground.frozen import frozen
from ...tools.shell.settings_found import linked_files, other_names
from ..paths import anchored, as_utf8, compile_pattern, matches_any
from ..rules import EDIT_TOOLS, Rule, RuleBook
from ..shell import IS_GLOB
from .programs import program_files

MAX_ENTRIES = 200_000


@frozen
class ClosedFiles:
    """The paths closed by rules: `hidden` ones cannot be read, `readonly` ones cannot be changed. `forbids` maps a path to
    the reason why it may not be written, or None.

    `problem` is set if there was more to search than the limit.
    """

    hidden: tuple[str, ...]
    readonly: tuple[str, ...]
    forbids: Callable[[str], str | None]
    problem: str | None = None


def closed_files(rules: Sequence[Rule], bases: Sequence[str]) -> ClosedFiles:
    """The paths that a sandbox must close for these deny and ask rules, including the files of programs that they forbid;
    `bases` are the folders for relative patterns.
    """
    paths = [rule for rule in rules if rule.kind == "path"]
    reads = [rule for rule in paths if rule.tool not in EDIT_TOOLS]
    edits = [rule for rule in paths if rule.tool in EDIT_TOOLS]
    (hidden, whole), (readonly, edits_complete) = _expanded(reads, bases), _expanded(edits, bases)
    problem = None
    if not (whole and edits_complete):
        problem = f"more than {MAX_ENTRIES} files would have to be searched, and rules forbid some: name the files"
    programs = [path for rule in rules for path in program_files(rule) or ()]
    return ClosedFiles(
        tuple(dict.fromkeys((*hidden, *other_names(hidden, bases), *programs))),
        tuple(dict.fromkeys((*readonly, *other_names(readonly, bases)))),
        partial(_forbidding, paths, tuple(bases)),
        problem,
    )


def rule_by_content(book: RuleBook, bases: Sequence[str], path: str, *, write: bool) -> Rule | None:
    """The first rule that forbids reading or, with `write`, writing the file at a path under another of its names (hard
    links).
    """
    try:
        status = os.lstat(path)
    except (OSError, ValueError):  # there is no file
        return None
    if status.st_nlink < 2 or not stat.S_ISREG(status.st_mode):
        return None
    inode = (status.st_dev, status.st_ino)
    return next(
        (rule for rule in book.paths_about(write) if inode in linked_files(_expanded([rule], bases)[0], bases)), None
    )


def _forbidding(rules: Sequence[Rule], bases: tuple[str, ...], path: str) -> str | None:
    rule = RuleBook(rules).forbidding_path((path,), bases, write=True) if rules else None
    return None if rule is None else f"the rule {rule.text} ({rule.source}) covers it"


def _expanded(rules: Sequence[Rule], bases: Sequence[str]) -> tuple[list[str], bool]:
    """The existing paths that the rules match, and the targets of links among them; whether the search was complete."""
    paths: dict[str, None] = {}
    tops: dict[str, list[re.Pattern[str]]] = {}
    for rule in rules:
        for base in bases:
            anchor, rest, deep = anchored(rule.pattern, base, rule.root or base, wide=True)
            names = [name for name in rest.split("/") if name]
            # `folder/**` closes the folder itself: what is in it cannot be reached in any other way.
            while names[-1:] == ["**"]:
                names.pop()
            fixed = next((at for at, name in enumerate(names) if IS_GLOB.search(name)), len(names))
            if deep or fixed < len(names):
                pattern = compile_pattern(rule.pattern, base, rule.root or base, wide=True)
                for top in _spelled(anchor, [] if deep else names[:fixed]):
                    tops.setdefault(top, []).append(pattern)
            else:
                paths.update(dict.fromkeys(_spelled(anchor, names)))
    budget = MAX_ENTRIES
    for top, patterns in tops.items():
        matching, budget = _matching(top, patterns, budget)
        paths.update(dict.fromkeys(matching))
        if budget < 0:
            break
    # Close the target of a link: a link's own name cannot be a mount point.
    return list(dict.fromkeys(os.path.realpath(path) for path in paths)), budget >= 0


def _spelled(folder: str, names: Sequence[str]) -> list[str]:
    """The existing paths that these components, one per level, match below a folder, ignoring case."""
    paths = [folder] if os.path.lexists(folder) else []
    for name in names:
        folded_name = _folded(re.sub(r"\\(.)", r"\1", name))
        paths = [f"{place.rstrip('/')}/{one}" for place in paths for one in _entries_named(place, folded_name)]
    return paths


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _entries_named(folder: str, folded_name: str) -> list[str]:
    """The names in a folder that equal this one when case-folded."""
    try:
        names = os.listdir(folder)
    except OSError:  # not a folder, or one that neither we nor the command may list
        return []
    # Fold all names at once: no name contains a slash, and no character combines with it.
    text = "/".join(names)
    readings = [_folded(one).split("/") for one in dict.fromkeys((text, as_utf8(text)))]
    return [name for name, *forms in zip(names, *readings, strict=False) if folded_name in forms]


def _matching(top: str, patterns: Sequence[re.Pattern[str]], budget: int) -> tuple[list[str], int]:
    """The outermost paths below `top` that match a pattern, and the remaining search budget, negative if it ran out."""
    # One pattern for all rules, since each entry of a large tree is compared.
    together = re.compile("|".join(f"(?:{one.pattern})" for one in patterns), re.DOTALL | re.IGNORECASE)
    matches: list[str] = []
    stack = [top]
    while stack and budget >= 0:
        folder = stack.pop()
        try:
            entries = list(os.scandir(folder))
        except OSError:
            continue
        budget -= len(entries)
        for entry in entries:
            if matches_any(together, (entry.path,)):
                matches.append(entry.path)
            elif entry.is_dir(follow_symlinks=False):
                stack.append(entry.path)
    return matches, budget
