"""The Glob tool: find the files of a tree whose names match a pattern."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..ground.threads import run_in_thread
from ..kernel.tool import ToolContext
from .base import Tool
from .files.workspace import permitted_search, plain_path_errors
from .labels import LOCAL_FILES
from .schema import boolean, integer, object_schema, string


class GlobTool(Tool):
    """A tool that finds files by name: it returns `{"root", "matches", "total", "truncated", "note"}`.

    `matches` are paths relative to the working directory (absolute outside it), a folder's files before its subfolders,
    each sorted by name; with `sort` "modified" the most recently changed files come first. Links to files are listed, links
    to folders are not followed, `.git` is never entered.
    """

    name = "Glob"
    labels = LOCAL_FILES
    description = (
        "Find files by name. `*` stays within a name, `**` is any number of folders (`src/**/*.py`), `{a,b}` are "
        "alternatives. Hidden files are included; what .gitignore leaves out is not, unless include_ignored is set."
    )
    input_schema = object_schema(
        {
            "pattern": string("A glob pattern, relative to root", minLength=1),
            "root": string("The folder to look in (default: the working directory)"),
            "type": string("Only files of this type: py, js, ts, md, json, go, rust ..."),
            "include_ignored": boolean("Also what .gitignore leaves out (default false)"),
            "include_hidden": boolean("Also names that begin with a dot (default true)"),
            "sort": string("The order (default path)", enum=["path", "modified"]),
            "limit": integer("How many paths to show", minimum=1),
        },
        required=["pattern"],
    )
    effect = "read"

    def __init__(self, *, max_matches: int = 1_000) -> None:
        self._max_matches = max_matches

    async def run(self, input: Mapping[str, Any], ctx: ToolContext) -> dict[str, Any]:
        from .find.by_name import find_files  # only runs that search for files need it

        search = await permitted_search(input, ctx)
        with plain_path_errors(search.root, ctx.cwd):
            return await run_in_thread(lambda: find_files(search, self._max_matches), ctx.cancelled)
