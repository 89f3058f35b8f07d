"""List the sessions of a Redis store, most recently written first, and find them with the index of words."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

from ....errors import StorageError
from ....ground.frozen import changed
from ...arguments import check_text
from ...base import SOME_IDS, Place
from ...folds.search import Progress, SearchHit
from ...folds.summary import SessionSummary, page_of, summary_matches
from ..database import SessionRow, text_key
from ..families import Cells, FamilyFold
from .families import RedisFamilies
from .link import driver
from .rewriting import RewritingRedis
from .search import RedisIndex

PAGE_ROWS = 100
# A list reads LISTED_UNASKED rows before it uses the index, and then brings at most LISTED_UPDATES rows up to date.
LISTED_UNASKED = 100
LISTED_UPDATES = 500


class ListedRedis(RewritingRedis):
    """The listing and searching methods of `RedisSessionStore`."""

    @abstractmethod
    def _adopt_all(self, db: Any) -> None:
        """Migrate the sessions of an older format."""

    @abstractmethod
    def _positions_of(self, ids: Sequence[str]) -> Iterator[SessionRow]:
        """The rows of these sessions, with `key` None for one that does not exist."""

    @property
    def _words(self) -> RedisIndex | None:
        """The index of words; None on a server that may evict any key."""
        self._call(None, self._adopt_all)
        return None if self._server.evicts else RedisIndex(self, self._call, self._key, self._positions_of)

    def ids_beginning(self, start: str) -> list[str]:
        check_text("start", start)
        index = self._words if start else None
        if index is None:
            return super().ids_beginning(start)
        ids = _unless_refused(lambda: index.ids_beginning(start, SOME_IDS))
        return super().ids_beginning(start) if ids is None else ids

    def _find_words(self, words: Sequence[str], limit: int, tenant: str | None) -> list[SearchHit]:
        """Implement `search`.

        It updates and queries an index of words on the server: the first search reads every log, and appends do no extra
        work. If the server may evict any key, accepts no writes or has no memory left, each search reads every log.
        """
        index = self._words

        def ask() -> list[SearchHit] | None:
            if index is None:
                return None
            index.update_words(self.index_progress)
            return index.search(words, limit, tenant)

        hits = _unless_refused(ask)
        return super()._find_words(words, limit, tenant) if hits is None else hits

    def update_search(self, progress: Progress | None = None) -> None:
        index = self._words
        if index is not None:
            _unless_refused(lambda: index.update_words(progress or self.index_progress))

    def family_sums(self, fold: FamilyFold, kinds: Sequence[str]) -> Cells | None:
        sums: Cells | None = _unless_refused(lambda: super(ListedRedis, self).family_sums(fold, kinds))
        return sums

    def _families(self) -> RedisFamilies | None:
        self._call(None, self._adopt_all)
        return (
            None if self._server.evicts else RedisFamilies(self._call, self._key, self._positions_of, self._summary_in)
        )

    def _rows_behind(
        self,
        after: Place | None,
        *,
        tenant: str | None,
        include_children: bool,
        query: str = "",
        cwd: str | None = None,
    ) -> Iterator[tuple[Callable[[], Place], SessionSummary]]:
        matches = partial(summary_matches, cwd=cwd, include_children=include_children, tenant=tenant)
        if (index := self._words) is None:
            rows = super()._rows_behind(after, tenant=tenant, include_children=include_children, query=query, cwd=cwd)
        else:
            key = "all" if include_children else "top"
            page = partial(self._page_behind, self._key("by", key if cwd is None else f"{key}:{text_key(cwd)}"))
            rows = self._indexed_behind(after, page, index, query, tenant)
        return ((place, row) for place, row in rows if matches(row))

    def _indexed_behind(
        self,
        after: Place | None,
        page: Callable[..., Iterator[SessionRow]],
        index: RedisIndex,
        query: str,
        tenant: str | None,
    ) -> Iterator[tuple[Callable[[], Place], SessionSummary]]:
        """Yield rows like `_shown_behind`: first the newest, which usually contain common words, without the index.

        With a query or a tenant, only rows that the index selects follow, unless it cannot be used.
        """
        rows, before = self._shown_behind(after, page), float("inf") if after is None else after[0]
        if not query and tenant is None:
            yield from rows
            return
        for place, row in islice(rows, LISTED_UNASKED):
            before = place()[0]
            yield place, row

        def ask() -> list[tuple[float, str]] | None:
            return (
                None if index.update_rows(LISTED_UPDATES, self.index_progress) else index.listed(query, tenant, before)
            )

        chosen = _unless_refused(ask)
        yield from rows if chosen is None else self._shown_behind(None, partial(self._page_of, iter(chosen)))

    def _page_behind(self, key: str, *, before: float | None, limit: int) -> Iterator[SessionRow]:
        # A parenthesis excludes the bound itself (Redis commands, ZRANGEBYSCORE).
        below = "+inf" if before is None else f"({before:.0f}"
        scored = self._call(None, lambda client: client.zrevrangebyscore(key, below, "-inf", 0, limit, withscores=True))
        return self._touched_rows([(score, name.decode()) for name, score in scored])

    def _page_of(
        self, chosen: Iterator[tuple[float, str]], *, before: float | None, limit: int
    ) -> Iterator[SessionRow]:
        return self._touched_rows(list(islice(chosen, limit)))

    def _touched_rows(self, scored: Sequence[tuple[float, str]]) -> Iterator[SessionRow]:
        rows = self._positions_of([name for _, name in scored])
        # The score decides the place in the list; the row may have been written again since.
        return (changed(at, touched=score) for at, (score, _) in zip(rows, scored, strict=True))

    def _list_page(
        self, *, cwd: str | None, tenant: str | None, include_children: bool, limit: int | None, offset: int
    ) -> Iterator[SessionSummary]:
        if tenant is None:
            return super()._list_page(
                cwd=cwd, tenant=tenant, include_children=include_children, limit=limit, offset=offset
            )
        rows = self._rows_behind(None, tenant=tenant, include_children=include_children, cwd=cwd)
        return page_of((row for _, row in rows), limit=limit, offset=offset)


def _unless_refused(ask: Callable[[], Any]) -> Any:
    """Return the answer of the index; None if the server accepts no writes, or has no memory left for them."""
    try:
        return ask()
    except StorageError as error:
        kinds = driver().exceptions
        refusals = kinds.ReadOnlyError, kinds.OutOfMemoryError, kinds.NoPermissionError
        if not isinstance(error.__cause__, refusals):
            raise
        return None
