"""The Grep tool: find the lines of a tree's files that match a regular expression."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from ..ground.clock import Clock, SystemClock
from ..ground.threads import run_in_thread
from ..kernel.tool import ToolContext
from .base import Tool
from .files.workspace import permitted_search, plain_path_errors
from .labels import LOCAL_FILES
from .schema import boolean, integer, object_schema, string


class GrepTool(Tool):
    """A tool that searches file contents with a regular expression.

    `mode` "content" returns `{"matches": [{"file_path", "line", "text", "before"?, "after"?}]}`, "files" returns
    `{"files"}`, "count" returns `{"counts": {path: matching lines}}`; each with `root`, `query`, `mode`, `total` (matches,
    files or matching lines in this answer), `truncated` and `note`. Paths are relative to the working directory.

    `timeout_s` limits a whole search, on `clock`; `max_matches` and `max_output_chars` (as JSON) limit what is shown.
    """

    name = "Grep"
    labels = LOCAL_FILES
    description = (
        "Search file contents with a regular expression (Python's syntax). Looks at every text file below root, hidden ones "
        "included; what .gitignore leaves out is not searched unless include_ignored is set. mode 'files' lists the files "
        "that match, 'count' counts matching lines."
    )
    input_schema = object_schema(
        {
            "query": string("A regular expression", minLength=1, maxLength=10_000),
            "root": string("The folder or file to search (default: the working directory)"),
            "file_glob": string(
                "Only files that match: *.py is compared with names, src/**/*.py with paths below root", minLength=1
            ),
            "type": string("Only files of this type: py, js, ts, md, json, go, rust ..."),
            "case_sensitive": boolean("Whether upper and lower case differ (default true)"),
            "mode": string("What to show (default content)", enum=["content", "files", "files_with_matches", "count"]),
            "-A": integer("Lines to show after each match", minimum=0),
            "-B": integer("Lines to show before each match", minimum=0),
            "-C": integer("Lines to show before and after each match", minimum=0),
            "multiline": boolean("Matches may span lines, and . is any character (default false)"),
            "head_limit": integer("How many matches or files to show", minimum=1),
            "include_ignored": boolean("Also what .gitignore leaves out (default false)"),
            "include_hidden": boolean("Also names that begin with a dot (default true)"),
        },
        required=["query"],
    )
    effect = "read"

    def __init__(
        self,
        *,
        max_matches: int = 250,
        max_output_chars: int = 150_000,
        timeout_s: float = 20.0,
        clock: Clock | None = None,
    ) -> None:
        self._max_matches = max_matches
        self._max_output_chars = max_output_chars
        self._timeout_s = timeout_s
        self._clock = clock or SystemClock()

    async def run(self, input: Mapping[str, Any], ctx: ToolContext) -> dict[str, Any]:
        from .find.by_content import search_contents  # only runs that search need it

        permitted = await permitted_search(input, ctx)
        search = functools.partial(
            search_contents,
            permitted,
            max_matches=self._max_matches,
            max_output_chars=self._max_output_chars,
            timeout_s=self._timeout_s,
            clock=self._clock,
        )
        with plain_path_errors(permitted.root, ctx.cwd):
            return await run_in_thread(search, ctx.cancelled)
