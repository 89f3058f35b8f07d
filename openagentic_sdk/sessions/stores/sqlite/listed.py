"""Find sessions in an SQLite store by words and by the prefix of an id, with the index in the file beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice

from ....serialization import dumps_json
from ...arguments import check_text
from ...base import SOME_IDS, Place, as_it_is
from ...folds.search import Progress, SearchHit
from ...folds.summary import SessionSummary
from ..database import SessionRow
from ..families import Cells, FamilyFold, SumsFamilies
from .rewriting import RewritingSqlite

# The number of rows that a list reads before it queries the index for others with its words, and of keys per query.
LISTED_UNASKED = 100
LISTED_AT_ONCE = 256


class ListedSqlite(SumsFamilies, RewritingSqlite):
    """The search methods of `SqliteSessionStore`."""

    def ids_beginning(self, start: str) -> list[str]:
        check_text("start", start)
        if not start or not start.isascii():
            return super().ids_beginning(start)
        with self._file.reading() as db:
            command = "SELECT id FROM sessions WHERE id >= ? AND id < ? LIMIT ?"
            return [row[0] for row in db.execute(command, (start, start[:-1] + chr(ord(start[-1]) + 1), SOME_IDS))]

    def update_search(self, progress: Progress | None = None) -> None:
        if not self._file.is_memory:
            with self._file.reading():
                pass  # create the database before it is searched
            self._index.update(progress or self.index_progress)

    def family_sums(self, fold: FamilyFold, kinds: Sequence[str]) -> Cells | None:
        if self._file.is_memory:
            return None
        with self._file.reading():
            pass  # create the database before it is read
        return self._index.sums(fold, kinds, self.kept_summary, self.index_progress)

    def _find_words(self, words: Sequence[str], limit: int, tenant: str | None) -> list[SearchHit]:
        """Implement `search`.

        It updates and queries a full text index in a file beside the database: the first search reads every log, and
        appends do no extra work and never wait for it. If SQLite lacks FTS5, each search reads every log.
        """
        if self._file.is_memory:
            return super()._find_words(words, limit, tenant)
        with self._file.reading():
            pass  # create the database before it is searched
        hits = self._index.search(
            words, limit, None if tenant is None else dumps_json(tenant or None), self.index_progress
        )
        return super()._find_words(words, limit, tenant) if hits is None else hits

    def _indexed_behind(
        self, after: Place | None, page: Callable[..., Iterator[SessionRow]], query: str
    ) -> Iterator[tuple[Callable[[], Place], SessionSummary]]:
        """Yield rows like `_shown_behind`: first the newest, which usually contain common words, without an index.

        After them, only rows that the index selects, or all if it cannot be used.
        """
        before = float("inf") if after is None else after[0]
        for place, row in islice(self._shown_behind(after, page), LISTED_UNASKED):
            before = place()[0]
            yield place, row
        while candidates := self._index.listed(query, before, LISTED_AT_ONCE, self.kept_summary, self.index_progress):
            before = candidates[-1][1]
            for at in page(limit=None, keys=[key for key, _ in candidates]):
                if (summary := self._shown(at)) is not None:
                    yield partial(as_it_is, (at.touched, 0.0, at.id)), summary
        if candidates is None:
            yield from self._shown_behind((before, 0.0, ""), page)
