"""The implementation of Glob: the files of a tree whose names match a pattern."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from ...errors import ToolError
from ...ground.globs import static_folder
from ...ground.words import plural
from ..files.workspace import ResolvedPath, Search, check_folder
from .pattern import GlobPattern, expand_braces
from .tree import matching_files


def find_files(search: Search, max_matches: int) -> dict[str, Any]:
    """Run Glob and return its result. Raises `ToolError`, and `OSError` if the root is not a folder or cannot be listed."""
    root, input, permits = search.root, search.input, search.permits
    check_folder(root, search.ctx)
    limit = min(int(input.get("limit") or max_matches), max_matches)
    needs_all = permits is not None or input.get("sort") == "modified"
    matches, total = _matches(search, keep=None if needs_all else limit)
    if permits is not None:
        matches = [path for path in matches if permits(os.path.join(root.lexical, path))]
        total = len(matches)
    if input.get("sort") == "modified":
        matches.sort(key=lambda path: -_modified_ns(os.path.join(root.real, path)))
    prefix = "" if search.shown_root == "." else search.shown_root.rstrip("/") + "/"
    return {
        "root": search.shown_root,
        "matches": [prefix + path for path in matches[:limit]],
        "total": total,
        "truncated": total > limit,
        "note": _note(total, limit, input),
    }


def _matches(search: Search, *, keep: int | None) -> tuple[list[str], int]:
    """The first matches, at least `keep` if there are as many, or all if it is None; and the total number of matches."""
    pattern = _relative_pattern(search.input["pattern"], search.root)
    matches: list[str] = []
    total = 0
    for folder, names in matching_files(search, GlobPattern(pattern), _worth_entering(pattern)):
        total += len(names)
        if keep is None or len(matches) < keep:
            matches += [folder.prefix + name for name in sorted(names)]
    return matches, total


def _relative_pattern(pattern: str, root: ResolvedPath) -> str:
    """The pattern relative to the root; one that leads out of it is refused, since the gate permitted only the root."""
    for base in (root.lexical, root.real):
        if pattern.startswith(base.rstrip("/") + "/"):
            pattern = pattern[len(base.rstrip("/")) + 1 :]
    if pattern.startswith(("/", "~")) or ".." in pattern.split("/"):
        raise ToolError(f"the pattern {pattern!r} leads outside {root.lexical}: set root to the folder to search in")
    pattern = pattern.removeprefix("./")
    return pattern + "**" if pattern.endswith("/") else pattern


def _worth_entering(pattern: str) -> Callable[[str], bool] | None:
    """Return a predicate: whether a folder can contain a match, by the pattern's folders and depth; None if any can."""
    alternatives = expand_braces(pattern)
    starts = [static_folder(one) for one in alternatives]
    depths = [None if "**" in one.split("/") else one.count("/") for one in alternatives]
    if "" in starts and None in depths:
        return None

    def enters(path: str) -> bool:
        depth = path.count("/") + 1
        return any(
            (limit is None or depth <= limit)
            and (f"{path}/".startswith(f"{start}/") or start.startswith(f"{path}/") or not start)
            for start, limit in zip(starts, depths, strict=True)
        )

    return enters


def _modified_ns(path: str) -> int:
    try:
        return os.lstat(path).st_mtime_ns
    except OSError:
        return 0  # deleted since it was listed


def _note(total: int, limit: int, input: Mapping[str, Any]) -> str:
    if total > limit:
        return f"{limit:,} of {plural(total, 'file')} shown: use a narrower pattern or root"
    if total == 0 and not input.get("include_ignored"):
        return "no file matches; files that .gitignore excludes were not examined (include_ignored)"
    return plural(total, "file")
