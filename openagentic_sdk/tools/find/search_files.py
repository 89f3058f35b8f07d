"""Search many files for one query: here while that is safe, else in a worker process that can be killed.

The law of the file: a pattern that can explode never runs in this process, where nothing could interrupt it. One that can
take the square of a line's length runs here on small files with short lines only, until one is slow all the same.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, NamedTuple

from ...errors import ToolError
from ..base import ToolContext
from ..files.workspace import check_cancelled, open_file
from .pattern_cost import Cost, pattern_cost
from .rg import find_rg, paths_with_matches, rg_pattern
from .search import Answer, Query, open_listed, search_file
from .worker import MAX_BATCH_BYTES, GrepWorker, OutOfTime, batch_bytes

SMALL_FILE_BYTES = 64 << 10
MAX_LONG_FILES = 8
SLOW_FILE_S = 0.1

# From so many files on, starting rg costs less than it saves. A literal is found faster than rg can be started.
RG_FILES = 1_000

NOTHING: Answer = ("ok", 0, [])
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

    def __init__(self, query: dict[str, Any], timeout_s: float, ctx: ToolContext, *, use_rg: bool) -> None:
        """`query` holds the arguments of `search.Query`. Raises `re.error` for a pattern that is none."""
        cost = pattern_cost(query["pattern"])
        if cost is Cost.LINE and query["multiline"]:
            cost = Cost.EXPLODES  # then a line is no bound
        limits = {"block_bytes": SMALL_FILE_BYTES, "short_lines": True}
        self._query = Query(**{**query, **(limits if cost is Cost.LINE else {})})
        # What matches nothing at all matches in nearly every file, and rg has ideas of its own about where.
        is_worth_it = use_rg and not self._query.is_literal and not self._query.text_pattern.search("")
        self._rg = find_rg(ctx) if is_worth_it else None
        self._rg_pattern = rg_pattern(query["pattern"], ignore_case=query["ignore_case"]) if self._rg else None
        self._is_safe_here = cost is not Cost.EXPLODES
        self._long_files = 0
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._worker = GrepWorker(query, self._deadline)
        self._second_worker = GrepWorker(query, self._deadline)
        self._ctx = ctx

    def answers(self, files: Iterable[ListedFile]) -> Iterator[tuple[ListedFile, Answer]]:
        """Each file with its answer, in their order. Raises `SearchStopped`."""
        waiting = iter(files)
        if self._rg and self._rg_pattern:
            first = list(islice(waiting, RG_FILES))
            waiting = chain(first, waiting)
            if len(first) == RG_FILES:
                yield from self._answers_after_rg(list(waiting))
                return
        yield from self._search_all(waiting)

    def _answers_after_rg(self, files: list[ListedFile]) -> Iterator[tuple[ListedFile, Answer]]:
        assert self._rg and self._rg_pattern
        kept = paths_with_matches(
            self._rg,
            self._rg_pattern,
            [file.real for file in files],
            ignore_case=self._query.ignore_case,
            multiline=self._query.multiline,
            deadline=self._deadline,
            ctx=self._ctx,
        )
        if kept is None:
            yield from self._search_all(iter(files))
            return
        found = self._search_all(file for file in files if file.real in kept)
        for file in files:
            yield next(found) if file.real in kept else (file, NOTHING)

    def _search_all(self, waiting: Iterator[ListedFile]) -> Iterator[tuple[ListedFile, Answer]]:
        if self._is_safe_here:
            for file in waiting:
                yield file, self._search_here(file)
                if not self._is_safe_here:
                    break
        yield from self._search_apart(waiting)

    def _search_here(self, file: ListedFile) -> Answer:
        check_cancelled(self._ctx)
        if time.monotonic() > self._deadline:
            raise SearchStopped(f"stopped after {self._timeout_s:g} s at {file.path}")
        began_s = time.thread_time()  # not wall time: a busy machine makes no pattern slow
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
            self._long_files += 1
            self._is_safe_here = self._long_files < MAX_LONG_FILES
            return next(self._search_apart(iter([file])))[1]
        self._is_safe_here = time.thread_time() - began_s < SLOW_FILE_S
        return answer

    def _search_apart(self, files: Iterator[ListedFile]) -> Iterator[tuple[ListedFile, Answer]]:
        """One batch is always under way while the answers to the one before are taken."""
        asked: list[ListedFile] = []
        for batch in _batches(files):
            self._worker.send([(file.real, file.inode) for file in batch])
            yield from self._receive(asked)
            asked = batch
        yield from self._receive(asked)

    def _receive(self, files: list[ListedFile]) -> Iterator[tuple[ListedFile, Answer]]:
        for file in files:
            try:
                answer = self._worker.receive(self._ctx)
                answer = self._search_moved(file) if answer[0] == "moved" else answer
            except OutOfTime:
                raise SearchStopped(f"stopped after {self._timeout_s:g} s near {file.path}") from None
            yield file, answer

    def _search_moved(self, file: ListedFile) -> Answer:
        """Another inode than listed, as on layered file systems: found without following links, and asked for again."""
        try:
            with open_file(file.real) as fd:
                inode = os.fstat(fd).st_ino
        except (OSError, ToolError):
            return _UNREADABLE
        self._second_worker.send([(file.real, inode)])
        return self._second_worker.receive(self._ctx)

    def close(self) -> None:
        self._worker.close()
        self._second_worker.close()


def _batches(files: Iterator[ListedFile]) -> Iterator[list[ListedFile]]:
    batch: list[ListedFile] = []
    size = 0
    for file in files:
        size += batch_bytes(file.real)
        if size > MAX_BATCH_BYTES:
            yield batch
            batch, size = [], batch_bytes(file.real)
        batch.append(file)
    if batch:
        yield batch
