"""List and search session files: with an index if there are many of them, otherwise by reading each."""

from __future__ import annotations

import contextlib
import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

from ...errors import SessionError, StorageError
from ...ground.system import os_reason
from ..arguments import check_text
from ..base import Place, as_it_is
from ..folds.search import SearchHit, scan_events
from ..log.folder import LOG_NAME, UNFINISHED, is_session_id, sweep_unfinished
from ..log.inbox_file import MessageFiles
from .families import Cells, FamilyFold, SumsFamilies
from .file_index import LEAST_SESSIONS, FileIndex, list_logs

# The number of log times that a list first requests from the index, and then per query.
FIRST_TIMES = 40
MORE_TIMES = 500


class ListedFiles(SumsFamilies, MessageFiles):
    """The listing and searching methods of `FileSessionStore`."""

    index_from: ClassVar[int] = LEAST_SESSIONS
    """The number of sessions at which an index is first created."""
    read_only: bool
    _index: FileIndex

    @abstractmethod
    def _last_ts(self, session_id: str) -> float:
        """The time of the log's last event, 0.0 if it cannot be read."""

    def list_sessions(self) -> list[str]:
        return [name for _, name in self._ids_behind(None, asks_index=False)]

    def _ids_behind(
        self, after: Place | None, *, query: str = "", cwd: str | None = None, asks_index: bool = True
    ) -> Iterator[tuple[Callable[[], Place], str]]:
        """Yield ids by the time of the last write, latest first, lazily; from an index, only those that may match.

        File times have a resolution of milliseconds: among equal ones, the time of the last event decides.
        """
        most = None if after is None else int(after[0])
        for tick, ids in self._by_time(most, query, cwd, asks_index=asks_index and not self.read_only):
            names = [name for name in ids if is_session_id(name)]
            # No other log has this time: its place in the order is certain without opening it.
            if len(names) == 1 and (after is None or tick < after[0]):
                yield partial(lambda tick, name: (tick, self._last_ts(name), name), tick, names[0]), names[0]
                continue
            for place in sorted(((tick, self._last_ts(name), name) for name in names), reverse=True):
                if after is None or place < after:
                    yield partial(as_it_is, place), place[2]

    def _by_time(
        self, most: int | None, query: str, cwd: str | None, *, asks_index: bool
    ) -> Iterator[tuple[int, list[str]]]:
        """Yield the times of last writes (in nanoseconds), none after `most`, latest first, each with its sessions.

        From an index, only those that may match; some of these may be missing or changed by now.
        """
        count = FIRST_TIMES
        while asks_index and self._index.exists:
            # Read the newest first: a common word occurs there, which costs less than finding every session with it.
            index_query = query if count == MORE_TIMES else ""
            pages = self._index.newest(
                most, count, cwd=cwd, query=index_query, describe=self.kept_summary, progress=self.index_progress
            )
            if pages is None:
                break
            yield from pages
            if len(pages) < count:
                return
            most, count = pages[-1][0] - 1, MORE_TIMES
        sessions = self.root_dir / "sessions"
        with contextlib.suppress(OSError):  # a list leaves them to the next process
            if not self.read_only and sessions.is_dir() and any(map(_is_unfinished, os.listdir(sessions))):
                sweep_unfinished(sessions)
        names_by_tick: dict[int, list[str]] = {}
        with listing_errors(sessions):
            looks = list_logs(sessions, LOG_NAME)
        if len(looks) >= self.index_from and asks_index:
            self._index.begin()
        for name, look in looks.items():
            if most is None or look[0] <= most:
                names_by_tick.setdefault(look[0], []).append(name)
        for tick in sorted(names_by_tick, reverse=True):
            yield tick, names_by_tick[tick]

    def ids_beginning(self, start: str) -> list[str]:
        check_text("start", start)
        ids = self._index.beginning(start) if is_session_id(start) and self._has_index() else None
        return super().ids_beginning(start) if ids is None else [name for name in ids if self.session_exists(name)]

    def list_children(self, session_id: str) -> list[str]:
        if not self._has_index():
            return super().list_children(session_id)
        children = self._index.children(session_id, self.kept_summary, self.index_progress)
        return super().list_children(session_id) if children is None else children

    def family_sums(self, fold: FamilyFold, kinds: Sequence[str]) -> Cells | None:
        progress = self.index_progress
        return self._index.sums(fold, kinds, self.kept_summary, progress) if self._has_index() else None

    def _find_words(self, words: Sequence[str], limit: int, tenant: str | None) -> list[SearchHit]:
        """Implement `search`.

        For many sessions, a full text index is updated first and then queried: the first search reads every log.
        """
        if self._has_index():
            self.update_search()
            matches = self._index.search(words, limit, tenant)
            if matches is not None:
                return [hit for session_id, seq in matches for hit in self._hits(session_id, seq, words)]
        return super()._find_words(words, limit, tenant)

    def _hits(self, session_id: str, seq: int, words: Sequence[str]) -> list[SearchHit]:
        """The event as one hit; no hit if it no longer contains the words or cannot be read."""
        with contextlib.suppress(SessionError):
            return scan_events(session_id, self.iter_events(session_id, after_seq=seq - 1, limit=1), words, 1)
        return []

    def update_search(self, progress: Callable[[int, int], None] | None = None) -> None:
        if self._has_index():
            self._index.read_all(self.kept_summary, self.iter_events, progress or self.index_progress)

    def _has_index(self) -> bool:
        """Whether an index can be used; the first query on a folder of many sessions creates it."""
        if self.read_only or self._index.exists:
            return not self.read_only
        with contextlib.suppress(OSError):
            if len(os.listdir(self.root_dir / "sessions")) >= self.index_from:
                self._index.begin()
        return self._index.exists

    def scrub(self, *session_ids: str) -> Sequence[str]:
        # The index contains words of the events that were erased.
        self._index.remove()
        return super().scrub(*session_ids)


@contextlib.contextmanager
def listing_errors(folder: Path) -> Iterator[None]:
    """Convert an `OSError` in the block to a `StorageError` about a list of sessions."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"the sessions in {folder} cannot be listed: {os_reason(error)}") from error


def _is_unfinished(name: str) -> bool:
    return name.startswith(UNFINISHED)
