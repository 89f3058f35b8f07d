"""The Grep tool: which lines of the files of a tree match a regular expression.

The answer is always found by `find/search.py`, whether a pattern runs here or in a worker process that can be killed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Any

from ..clock import Clock, SystemClock
from ..errors import ToolError, ToolInputError
from ..files import open_file
from ..frozen import mutable
from ..threads import run_in_thread, running_loop
from .base import Tool, ToolContext
from .files.readable import permitted_path, read_filter
from .files.window import plural
from .files.workspace import ResolvedPath, missing_file, shown_path
from .find.pattern import GlobPattern, type_suffixes
from .find.search import Hit
from .find.search_files import FileSearch, ListedFile, SearchStopped
from .find.tree import WalkOptions, walk

MAX_CONTEXT_LINES = 50

_MODES = {"content": "content", "files": "files", "files_with_matches": "files", "count": "count"}


@mutable
class _Findings:
    """What a search has found so far. `counts` holds the matching lines of each file, in the order of the walk."""

    matches: list[dict[str, Any]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    passed_over: dict[str, int] = field(default_factory=dict)
    searched: int = 0
    chars: int = 0
    is_full: bool = False
    stopped: str = ""


class GrepTool(Tool):
    """Search file contents.

    `mode` "content" gives `{"matches": [{"file_path", "line", "text", "before"?, "after"?}]}`, "files" gives `{"files"}`,
    "count" gives `{"counts": {path: matching lines}}`; each with `root`, `query`, `mode`, `total` (matches, files or
    matching lines in this answer), `truncated` and `note`. Paths are relative to the working directory.

    `timeout_s` bounds a whole search, on `clock`; `max_matches` and `max_output_chars` (as JSON) what is shown.
    """

    name = "Grep"
    description = (
        "Search file contents with a regular expression (Python's syntax). Looks at every text file below root, hidden ones "
        "included; what .gitignore leaves out is not searched unless include_ignored is set. mode 'files' lists the files "
        "that match, 'count' counts matching lines."
    )
    input_schema: Mapping[str, Any] = {
        "type": "object",
        "properties": {
            "query": {"type": "string", "minLength": 1, "maxLength": 10_000, "description": "A regular expression"},
            "root": {"type": "string", "description": "The folder or file to search (default: the working directory)"},
            "file_glob": {
                "type": "string",
                "minLength": 1,
                "description": "Only files that match: *.py is compared with names, src/**/*.py with paths below root",
            },
            "type": {"type": "string", "description": "Only files of this type: py, js, ts, md, json, go, rust ..."},
            "case_sensitive": {"type": "boolean", "description": "Whether upper and lower case differ (default true)"},
            "mode": {"type": "string", "enum": list(_MODES), "description": "What to show (default content)"},
            "-A": {"type": "integer", "minimum": 0, "description": "Lines to show after each match"},
            "-B": {"type": "integer", "minimum": 0, "description": "Lines to show before each match"},
            "-C": {"type": "integer", "minimum": 0, "description": "Lines to show before and after each match"},
            "multiline": {
                "type": "boolean",
                "description": "Matches may span lines, and . is any character (default false)",
            },
            "head_limit": {"type": "integer", "minimum": 1, "description": "How many matches or files to show"},
            "include_ignored": {"type": "boolean", "description": "Also what .gitignore leaves out (default false)"},
            "include_hidden": {"type": "boolean", "description": "Also names that begin with a dot (default true)"},
        },
        "required": ["query"],
    }
    effect = "read"

    def __init__(
        self,
        *,
        max_matches: int = 250,
        max_line_chars: int = 500,
        max_output_chars: int = 150_000,
        timeout_s: float = 20.0,
        clock: Clock | None = None,
    ) -> None:
        self._max_matches = max_matches
        self._max_line_chars = max_line_chars
        self._max_output_chars = max_output_chars
        self._timeout_s = timeout_s
        self._clock = clock or SystemClock()

    async def run(self, input: Mapping[str, Any], ctx: ToolContext) -> dict[str, Any]:
        root = await permitted_path(input.get("root") or ".", ctx, write=False)
        permits = read_filter(ctx, running_loop(self.name))
        found: dict[str, Any] = await run_in_thread(lambda: self._search(root, input, ctx, permits), ctx.cancelled)
        return found

    def _search(
        self, root: ResolvedPath, input: Mapping[str, Any], ctx: ToolContext, permits: Callable[[str], bool] | None
    ) -> dict[str, Any]:
        shown_root = shown_path(root.lexical, ctx.cwd)
        limit = int(input.get("head_limit") or self._max_matches)
        around = int(input.get("-C") or 0)
        query = {
            "pattern": input["query"],
            "ignore_case": input.get("case_sensitive") is False,
            "multiline": bool(input.get("multiline")),
            "mode": _MODES[input.get("mode") or "content"],
            "before": min(int(input.get("-B") or around), MAX_CONTEXT_LINES),
            "after": min(int(input.get("-A") or around), MAX_CONTEXT_LINES),
            "max_hits": limit + 1,
            "max_line_chars": self._max_line_chars,
        }
        findings = _Findings()
        search = self._open_search(query, ctx)
        try:
            for file, (status, count, hits) in search.answers(_files(root, input, ctx)):
                findings.searched += 1
                if status != "ok":
                    findings.passed_over[status] = findings.passed_over.get(status, 0) + 1
                elif count and (permits is None or permits(_lexical(root, file))):
                    self._take(findings, shown_path(_lexical(root, file), ctx.cwd), count, hits, query["mode"], limit)
                    if findings.is_full:
                        break
        except SearchStopped as stopped:
            findings.stopped = str(stopped)
        finally:
            search.close()
        return _output(findings, input, shown_root, query["mode"], limit)

    def _open_search(self, query: dict[str, Any], ctx: ToolContext) -> FileSearch:
        try:
            return FileSearch(query, self._timeout_s, ctx, self._clock)
        except (re.error, ValueError, OverflowError, RecursionError) as error:
            raise ToolInputError(
                f"{query['pattern']!r} is no regular expression: {error}; put a backslash before characters that are meant "
                "as they are",
                path="query",
            ) from None

    def _take(self, findings: _Findings, path: str, count: int, hits: list[Hit], mode: str, limit: int) -> None:
        findings.counts[path] = count
        if mode != "content":
            findings.is_full = len(findings.counts) > limit
            return
        for match in _matches(path, hits):
            if findings.chars > self._max_output_chars:
                break
            findings.matches.append(match)
            findings.chars += len(json.dumps(match))
        findings.is_full = len(findings.matches) > limit or findings.chars > self._max_output_chars


def _lexical(root: ResolvedPath, file: ListedFile) -> str:
    return os.path.join(root.lexical, file.path) if file.path else root.lexical


def _files(root: ResolvedPath, input: Mapping[str, Any], ctx: ToolContext) -> Iterator[ListedFile]:
    """The files to search: the root itself when it is one."""
    if not os.path.isdir(root.real):
        try:
            with open_file(root.real) as fd:
                yield ListedFile("", root.real, os.fstat(fd).st_ino)
        except FileNotFoundError:
            raise missing_file(root, ctx.cwd, "file or folder") from None
        return
    glob = _file_pattern(input.get("file_glob"))
    suffixes = type_suffixes(input["type"]) if input.get("type") else ("",)
    options = WalkOptions(bool(input.get("include_ignored")), input.get("include_hidden", True))
    for folder in walk(root, options, ctx):
        pick = glob.in_folder(folder.prefix)
        if pick is None:
            continue
        base = folder.path if folder.path.endswith("/") else folder.path + "/"
        inodes = {entry.name: entry.inode() for entry in folder.entries if not entry.is_symlink()}
        for name in sorted(pick(folder.names)):
            if name in inodes and name.endswith(suffixes):
                yield ListedFile(folder.prefix + name, base + name, inodes[name])


def _file_pattern(glob: str | None) -> GlobPattern:
    if glob is None:
        return GlobPattern("**")
    return GlobPattern(glob.removeprefix("./") if "/" in glob else f"**/{glob}")


def _matches(path: str, hits: list[Hit]) -> Iterator[dict[str, Any]]:
    """The hits of one file as the model reads them; lines around them are shown once, with the first hit they belong to."""
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
        raise ToolError(f"{findings.stopped} and nothing was found so far: use a simpler pattern or a narrower root")
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
    output["note"] = _note(findings, input, output["total"])
    return output


_REASONS = {"binary": "binary", "large": "too large", "unreadable": "could not be read"}


def _note(findings: _Findings, input: Mapping[str, Any], total: int) -> str:
    notes = [f"{plural(findings.searched, 'file')} searched"]
    if findings.is_full:
        notes = ["there is more: use a narrower query, root or file_glob, or a higher head_limit"]
    if findings.stopped:
        notes.append(f"{findings.stopped}: what follows was not searched; use a simpler pattern or a narrower root")
    passed = [
        f"{count:,} {_REASONS.get(kind, kind)}"
        for kind, count in findings.passed_over.items()
        # In a tree binary files go without saying.
        if kind != "binary" or findings.searched == 1
    ]
    if passed:
        notes.append(f"passed over: {', '.join(passed)}")
    if not total and not input.get("include_ignored"):
        notes.append("files that .gitignore leaves out were not searched (include_ignored)")
    return "; ".join(notes)
