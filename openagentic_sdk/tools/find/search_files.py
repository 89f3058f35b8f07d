"""Search many files for one query: in this process while that is safe, otherwise in a worker that can be killed.

Python's `re` backtracks and cannot be interrupted, so a pattern with repetitions, alternatives or groups never runs in this
process. Other patterns may be compared in full at every place of a file, and do not run here on a large one. Starting the
worker takes some 20 ms; over many files it is as fast as a search here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ...errors import ToolError
from ...ground.clock import Clock
from ...ground.files import open_file
from ...ground.patterns import regex
from ...kernel.tool import ToolContext
from ..files.workspace import check_cancelled
from .search import Query, SearchAnswer, open_listed, search_file
from .worker import MAX_BATCH_BYTES, GrepWorker, OutOfTime, batch_bytes

# Escapes except back references, sets (which may start with a `]`), and literal characters.
_LINEAR = regex(r"(?:\\[^1-9]|\[\^?(?:\]|\\.|[^\]\\])(?:\\.|[^\]\\])*\]|[^\\\[(){}*+?|])*", re.DOTALL)
_MAX_COMPARISONS = 2_000_000  # of a pattern's character with a file's byte, for each file in this process
_UNREADABLE: SearchAnswer = ("unreadable", 0, [])


class ListedFile(NamedTuple):
    """A file to search: its path relative to the root, its location, and its inode number as listed by the walk."""

    path: str
    real: str
    inode: int


class SearchStopped(Exception):
    """Raised when the time is up; the message states how far the search got."""


class FileSearch:
    """A search of many files for one query. Its creator must close it."""

    def __init__(self, query: dict[str, Any], timeout_s: float, ctx: ToolContext, clock: Clock) -> None:
        """Prepare a search; `query` holds the arguments of `search.Query`. Raises `re.error` for an invalid pattern."""
        self._query = Query(**query)
        self._timeout_s = timeout_s
        self._clock = clock
        self._deadline = clock.monotonic() + timeout_s
        self._worker = GrepWorker(query, self._deadline, clock)
        # For single files: the first worker answers in order, so it would first answer the batches already sent.
        self._second_worker = GrepWorker(query, self._deadline, clock)
        self._ctx = ctx

    def answers(self, files: Iterable[ListedFile]) -> Iterator[tuple[ListedFile, SearchAnswer]]:
        """Yield the files with their answers, in order. Raises `SearchStopped` if the time is up."""
        if is_linear(self._query.pattern):
            return ((file, self._search_here(file)) for file in files)
        return self._search_apart(iter(files))

    def _search_here(self, file: ListedFile) -> SearchAnswer:
        check_cancelled(self._ctx)
        if self._clock.monotonic() > self._deadline:
            raise SearchStopped(f"stopped after {self._timeout_s:g} s at {file.path}")
        try:
            fd = open_listed(file.real, file.inode)
            if fd < 0:
                with open_file(file.real) as stream:
                    answer = self._search_small(stream)
            else:
                try:
                    answer = self._search_small(fd)
                finally:
                    os.close(fd)
        except (OSError, ToolError):
            return _UNREADABLE
        return self._search_alone(file) if answer is None else answer

    def _search_small(self, fd: int) -> SearchAnswer | None:
        """Search a file if it is small enough for this pattern, else return None."""
        characters = 1 if self._query.is_literal else len(self._query.pattern)
        is_small = os.fstat(fd).st_size * characters <= _MAX_COMPARISONS
        return search_file(fd, self._query) if is_small else None

    def _search_apart(self, files: Iterator[ListedFile]) -> Iterator[tuple[ListedFile, SearchAnswer]]:
        """Yield answers from the worker: one batch is always under way while the previous one's answers are read."""
        pending: list[ListedFile] = []
        for batch in _batches(files):
            self._worker.send([(file.real, file.inode) for file in batch])
            yield from self._receive(pending)
            pending = batch
        yield from self._receive(pending)

    def _receive(self, files: list[ListedFile]) -> Iterator[tuple[ListedFile, SearchAnswer]]:
        for file in files:
            try:
                answer = self._worker.receive(self._ctx)
                answer = self._search_alone(file) if answer[0] == "moved" else answer
            except OutOfTime:
                raise self._stopped(file) from None
            yield file, answer

    def _search_alone(self, file: ListedFile) -> SearchAnswer:
        """Search one file in the second worker, without following links.

        The file's inode may differ from the listed one, as on layered file systems.
        """
        try:
            with open_file(file.real) as fd:
                inode = os.fstat(fd).st_ino
        except (OSError, ToolError):
            return _UNREADABLE
        self._second_worker.send([(file.real, inode)])
        try:
            return self._second_worker.receive(self._ctx)
        except OutOfTime:
            raise self._stopped(file) from None

    def _stopped(self, file: ListedFile) -> SearchStopped:
        return SearchStopped(f"stopped after {self._timeout_s:g} s near {file.path}")

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


def is_linear(pattern: str) -> bool:
    """Whether a pattern can match in only one way at each position: characters, sets, escapes and anchors, nothing else."""
    return _LINEAR.fullmatch(pattern) is not None
