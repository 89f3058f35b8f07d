"""What Glob does: the files of a tree whose names match a pattern."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from ...errors import ToolError
from ...globs import static_folder
from ...text import plural
from ..base import ToolContext
from ..files.workspace import ResolvedPath, check_folder, shown_path
from .pattern import GlobPattern, expand_braces, type_suffixes
from .tree import WalkOptions, walk


def find_files(
    root: ResolvedPath,
    input: Mapping[str, Any],
    ctx: ToolContext,
    permits: Callable[[str], bool] | None,
    max_matches: int,
) -> dict[str, Any]:
    """What Glob answers. Raises `ToolError`."""
    check_folder(root, ctx)
    limit = min(int(input.get("limit") or max_matches), max_matches)
    needs_all = permits is not None or input.get("sort") == "modified"
    matches, total = _matches(root, input, ctx, keep=None if needs_all else limit)
    if permits is not None:
        matches = [path for path in matches if permits(os.path.join(root.lexical, path))]
        total = len(matches)
    if input.get("sort") == "modified":
        matches.sort(key=lambda path: -_modified_ns(os.path.join(root.real, path)))
    shown = shown_path(root.lexical, ctx.cwd)
    prefix = "" if shown == "." else shown.rstrip("/") + "/"
    return {
        "root": shown,
        "matches": [prefix + path for path in matches[:limit]],
        "total": total,
        "truncated": total > limit,
        "note": _note(total, limit, input),
    }


def _matches(
    root: ResolvedPath, input: Mapping[str, Any], ctx: ToolContext, *, keep: int | None
) -> tuple[list[str], int]:
    """The first matches, at least `keep` of them if there are so many (None: all), and how many there are in all."""
    pattern = _relative_pattern(input["pattern"], root)
    glob = GlobPattern(pattern)
    suffixes = type_suffixes(input["type"]) if input.get("type") else None
    options = WalkOptions(
        bool(input.get("include_ignored")), input.get("include_hidden", True), _worth_entering(pattern)
    )
    found: list[str] = []
    total = 0
    for folder in walk(root, options, ctx):
        pick = glob.in_folder(folder.prefix)
        if pick is None:
            continue
        names = pick(folder.names)
        if suffixes is not None:
            names = [name for name in names if name.endswith(suffixes)]
        total += len(names)
        if keep is None or len(found) < keep:
            found += [folder.prefix + name for name in sorted(names)]
    return found, total


def _relative_pattern(pattern: str, root: ResolvedPath) -> str:
    """The pattern as seen from the root; one that leads out of it is refused, as the gate has only permitted the root."""
    for base in (root.lexical, root.real):
        if pattern.startswith(base.rstrip("/") + "/"):
            pattern = pattern[len(base.rstrip("/")) + 1 :]
    if pattern.startswith(("/", "~")) or ".." in pattern.split("/"):
        raise ToolError(f"the pattern {pattern!r} leads out of {root.lexical}: set root to the folder to look in")
    pattern = pattern.removeprefix("./")
    return pattern + "**" if pattern.endswith("/") else pattern


def _worth_entering(pattern: str) -> Callable[[str], bool] | None:
    """Whether a folder can hold a match, judged by the folders that the pattern names and by how deep it goes."""
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
        return 0  # gone since it was listed


def _note(total: int, limit: int, input: Mapping[str, Any]) -> str:
    if total > limit:
        return f"{limit:,} of {plural(total, 'file')} shown: use a narrower pattern or root"
    if total == 0 and not input.get("include_ignored"):
        return "no file matches; files that .gitignore leaves out were not looked at (include_ignored)"
    return plural(total, "file")
