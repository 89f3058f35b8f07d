"""Search many files for one query: here while that is safe, else in a worker process that can be killed.

The law of the file: a pattern that can explode never runs in this process, where nothing could interrupt it. One that can
take the square of a block's size runs here on small blocks until a file is slow.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from ..errors import ToolError
from .base import ToolContext
from .grep_worker import GrepWorker, OutOfTime
from .pattern_cost import Cost, pattern_cost
from .search import Answer, Query, open_listed, search_file
from .workspace import check_cancelled, open_file

SQUARE_BLOCK_BYTES = 64 << 10
SLOW_FILE_S = 0.1
BATCH_FILES = 32

_UNREADABLE: Answer = ("unreadable", 0, [])


class ListedFile(NamedTuple):
    """A file to search: its path relative to the root, where it is, and its inode number as the walk saw it."""

    path: str
    real: str
    inode: int


class SearchStopped(Exception):
    """The time is up; the text says where the search was."""


class FileSearch:
    """One search. Close it at its end."""

    def __init__(self, query: dict[str, Any], timeout_s: float, ctx: ToolContext) -> None:
        """`query` holds the arguments of `search.Query`. Raises `re.error` for a pattern that is none."""
        cost = pattern_cost(query["pattern"])
        if cost is Cost.SQUARE and query["multiline"]:
            cost = Cost.EXPLODES  # its block is the whole file
        sizes = {"block_bytes": SQUARE_BLOCK_BYTES, "max_line_bytes": SQUARE_BLOCK_BYTES}
        self._query = Query(**{**query, **(sizes if cost is Cost.SQUARE else {})})
        self._is_safe_here = cost is not Cost.EXPLODES
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._worker = GrepWorker(query, self._deadline)
        self._ctx = ctx

    def answers(self, files: Iterable[ListedFile]) -> Iterator[tuple[ListedFile, Answer]]:
        """Each file with its answer, in their order. Raises `SearchStopped`."""
        waiting = iter(files)
        while batch := list(islice(waiting, BATCH_FILES)):
            check_cancelled(self._ctx)
            done = 0
            while self._is_safe_here and done < len(batch):
                yield batch[done], self._search_here(batch[done])
                done += 1
            if done < len(batch):
                yield from self._search_apart(batch[done:])

    def _search_here(self, file: ListedFile) -> Answer:
        began = time.monotonic()
        if began > self._deadline:
            raise SearchStopped(f"stopped after {self._timeout_s:g} s at {file.path}")
        try:
            fd = open_listed(file.real, file.inode)
            if fd < 0:
                with open_file(file.real) as found:
                    answer = search_file(found, self._query)
            else:
                try:
                    answer = search_file(fd, self._query)
                finally:
                    os.close(fd)
        except (OSError, ToolError):
            return _UNREADABLE
        if answer[0] == "long":
            return next(self._search_apart([file]))[1]
        self._is_safe_here = time.monotonic() - began < SLOW_FILE_S
        return answer

    def _search_apart(self, files: list[ListedFile]) -> Iterator[tuple[ListedFile, Answer]]:
        try:
            answers = self._worker.search([(file.real, file.inode) for file in files], self._ctx)
        except OutOfTime as late:
            yield from zip(files, late.answers, strict=False)
            where = files[len(late.answers)].path
            raise SearchStopped(f"stopped after {self._timeout_s:g} s at {where}") from None
        for file, answer in zip(files, answers, strict=True):
            yield file, self._search_moved(file) if answer[0] == "moved" else answer

    def _search_moved(self, file: ListedFile) -> Answer:
        """Another inode than listed, as on some layered file systems: find out which one it is without following links."""
        try:
            with open_file(file.real) as fd:
                inode = os.fstat(fd).st_ino
        except (OSError, ToolError):
            return _UNREADABLE
        return self._worker.search([(file.real, inode)], self._ctx)[0]

    def close(self) -> None:
        self._worker.close()
