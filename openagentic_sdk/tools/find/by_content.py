"""The implementation of Grep: the lines of a tree's files that match a regular expression.

Matches are always found by `search.py`, whether a pattern runs here or in a worker process that can be killed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

from ...errors import ToolError, ToolInputError
from ...ground.clock import Clock
from ...ground.files import open_file
from ...ground.frozen import mutable
from ...ground.words import plural, shortened
from ..files.workspace import ResolvedPath, Search, missing_file, shown_path
from .pattern import GlobPattern
from .search import Hit
from .search_files import FileSearch, ListedFile, SearchStopped
from .tree import matching_files

MAX_CONTEXT_LINES = 50
MAX_LINE_CHARS = 500
MODES = {"content": "content", "files": "files", "files_with_matches": "files", "count": "count"}


@mutable
class _Findings:
    """The results of a search so far. `counts` maps each file to its number of matching lines, in the order of the walk."""

    matches: list[dict[str, Any]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    passed_over: dict[str, int] = field(default_factory=dict)
    searched: int = 0
    chars: int = 0
    is_full: bool = False
    stopped: str = ""

    def take(self, path: str, count: int, hits: list[Hit], mode: str, limit: int, max_output_chars: int) -> None:
        self.counts[path] = count
        if mode != "content":
            self.is_full = len(self.counts) > limit
            return
        for match in _matches(path, hits):
            if self.chars > max_output_chars:
                break
            self.matches.append(match)
            self.chars += len(json.dumps(match))
        self.is_full = len(self.matches) > limit or self.chars > max_output_chars


def search_contents(
    search: Search,
    *,
    max_matches: int,
    max_output_chars: int,
    timeout_s: float,
    clock: Clock,
) -> dict[str, Any]:
    """Run Grep and return its result; files that may not be shown are skipped. Raises `ToolError`, and `OSError` if the root
    cannot be read.
    """
    root, input, ctx, permits = search.root, search.input, search.ctx, search.permits
    limit = int(input.get("head_limit") or max_matches)
    around = int(input.get("-C") or 0)
    query = {
        "pattern": input["query"],
        "ignore_case": input.get("case_sensitive") is False,
        "multiline": bool(input.get("multiline")),
        "mode": MODES[input.get("mode") or "content"],
        "before": min(int(input.get("-B") or around), MAX_CONTEXT_LINES),
        "after": min(int(input.get("-A") or around), MAX_CONTEXT_LINES),
        # One more than is shown, to find out whether there are more.
        "max_hits": limit + 1,
        "max_line_chars": MAX_LINE_CHARS,
    }
    findings = _Findings()
    try:
        reading = FileSearch(query, timeout_s, ctx, clock)
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        shown_pattern = shortened(repr(query["pattern"]), 200)
        raise ToolInputError(
            f"{shown_pattern} cannot be used as a regular expression: {error}; put a backslash before characters that are "
            "meant literally",
            path="query",
        ) from None
    try:
        for file, (status, count, hits) in reading.answers(_files(search)):
            findings.searched += 1
            if status != "ok":
                findings.passed_over[status] = findings.passed_over.get(status, 0) + 1
            # Permission is checked only for files with a match: nothing would be shown of the others.
            elif count and (permits is None or permits(_lexical(root, file))):
                path = shown_path(_lexical(root, file), ctx.cwd)
                findings.take(path, count, hits, query["mode"], limit, max_output_chars)
                if findings.is_full:
                    break
    except SearchStopped as stopped:
        findings.stopped = str(stopped)
    finally:
        reading.close()
    return _output(findings, input, search.shown_root, query["mode"], limit)


def _lexical(root: ResolvedPath, file: ListedFile) -> str:
    return os.path.join(root.lexical, file.path) if file.path else root.lexical


def _files(search: Search) -> Iterator[ListedFile]:
    """Yield the files to search; if the root is a file, only the root."""
    root = search.root
    if not os.path.isdir(root.real):
        try:
            with open_file(root.real) as fd:
                yield ListedFile("", root.real, os.fstat(fd).st_ino)
        except FileNotFoundError:
            raise missing_file(root, search.ctx.cwd, "file or folder") from None
        return
    file_glob = search.input.get("file_glob")
    glob = GlobPattern(
        "**" if file_glob is None else file_glob.removeprefix("./") if "/" in file_glob else f"**/{file_glob}"
    )
    for folder, names in matching_files(search, glob):
        base = folder.path if folder.path.endswith("/") else folder.path + "/"
        inodes = {entry.name: entry.inode() for entry in folder.entries if not entry.is_symlink()}
        for name in sorted(names):
            if name in inodes:
                yield ListedFile(folder.prefix + name, base + name, inodes[name])


def _matches(path: str, hits: list[Hit]) -> Iterator[dict[str, Any]]:
    """Yield the hits of one file in the model's format; context lines are shown once, with the first hit they belong to."""
    shown_up_to = 0
    for number, (line, text, before, after) in enumerate(hits):
        match: dict[str, Any] = {"file_path": path, "line": line, "text": text}
        following = hits[number + 1][0] if number + 1 < len(hits) else None
        before = before[max(0, len(before) - (line - 1 - shown_up_to)) :] if shown_up_to else before
        after = after[: following - line - 1] if following else after
        shown_up_to = line + len(after)
        if before:
            match["before"] = before
        if after:
            match["after"] = after
        yield match


def _output(findings: _Findings, input: Mapping[str, Any], root: str, mode: str, limit: int) -> dict[str, Any]:
    output: dict[str, Any] = {"root": root, "query": input["query"], "mode": mode}
    if findings.stopped and not findings.counts:
        raise ToolError(
            f"{findings.stopped}, and nothing has been found so far: use a simpler pattern or a narrower root"
        )
    if mode == "content":
        output["matches"] = findings.matches[:limit]
        output["total"] = len(output["matches"])
    elif mode == "files":
        output["files"] = list(findings.counts)[:limit]
        output["total"] = len(output["files"])
    else:
        output["counts"] = dict(list(findings.counts.items())[:limit])
        output["total"] = sum(output["counts"].values())
    output["truncated"] = findings.is_full or bool(findings.stopped)
    notes = [f"{plural(findings.searched, 'file')} searched"]
    if findings.is_full:
        notes = ["there is more: use a narrower query, root or file_glob, or a higher head_limit"]
    if findings.stopped:
        notes.append(f"{findings.stopped}: the rest was not searched; use a simpler pattern or a narrower root")
    passed = [
        f"{count:,} {_REASONS.get(kind, kind)}"
        for kind, count in findings.passed_over.items()
        # In a tree, binary files are not mentioned.
        if kind != "binary" or findings.searched == 1
    ]
    if passed:
        notes.append(f"passed over: {', '.join(passed)}")
    if not output["total"] and not input.get("include_ignored"):
        notes.append("files that .gitignore excludes were not searched (include_ignored)")
    output["note"] = "; ".join(notes)
    return output


_REASONS = {"binary": "binary", "large": "too large", "unreadable": "could not be read"}
