"""What people do with stored sessions from a list: page through them, name them, put them away, delete them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from ..errors import RequestRefusedError
from ..kernel.recorder import off_loop
from ..parts.record.lifecycle import delete_session, rename_session, tag_session
from ..sessions.base import SessionPage, SessionStore
from ..sessions.folds.search import SearchHit
from ..sessions.folds.summary import SessionSummary
from .guard import Principal

T = TypeVar("T")

# The tag of sessions that lists leave out.
ARCHIVED = "archived"


class Shelf(ABC):
    """The sessions of a store, each of which only its tenant sees."""

    store: SessionStore

    @abstractmethod
    def _seen(self, row: SessionSummary) -> SessionSummary:
        """The row as clients see it."""

    @abstractmethod
    async def row(self, who: Principal, session_id: str) -> SessionSummary:
        """The row of a session; its `events` is the `seq` of the log's last one. Raises `SessionNotFoundError`."""

    @abstractmethod
    async def _when_free(self, session_id: str, work: Callable[[], Awaitable[T]]) -> T:
        """The result of the work, once no run holds the session. Raises `SessionLockedError` when one goes on."""

    async def page(
        self, who: Principal, keep: Callable[[SessionSummary], bool], *, limit: int, after: str | None = None
    ) -> SessionPage:
        """Rows of the tenant's sessions that `keep` accepts, behind a cursor, see `SessionStore.page_sessions`."""
        seen = self._seen
        read = partial(self.store.page_sessions, tenant=who.tenant, limit=limit, after=after)
        page: SessionPage = await off_loop(True, partial(read, keep=lambda row: keep(seen(row))))
        return replace(page, rows=[seen(row) for row in page.rows])

    async def rows(
        self, who: Principal, *, query: str | None = None, limit: int = 50, offset: int = 0
    ) -> list[SessionSummary]:
        """A page of the tenant's sessions, the one last written to first."""
        list_rows = partial(self.store.list_session_summaries, tenant=who.tenant)
        found: list[SessionSummary] = await off_loop(True, partial(list_rows, query=query, limit=limit, offset=offset))
        return [self._seen(row) for row in found]

    async def search(self, who: Principal, query: str, *, limit: int = 50) -> list[SearchHit]:
        """Events of the tenant's sessions that hold every word."""
        find = partial(self.store.search, query, limit=limit, tenant=who.tenant)
        hits: list[SearchHit] = await off_loop(True, find)
        return hits

    async def rename(self, who: Principal, session_id: str, title: str) -> SessionSummary:
        """Give the session a title that people see."""
        return await self._change(who, session_id, partial(rename_session, self.store, session_id, title))

    async def archive(self, who: Principal, session_id: str, *, archived: bool) -> SessionSummary:
        """Leave the session out of lists, or show it there again: a tag."""
        add, remove = ((ARCHIVED,), ()) if archived else ((), (ARCHIVED,))
        return await self._change(who, session_id, partial(tag_session, self.store, session_id, add=add, remove=remove))

    async def delete(self, who: Principal, session_id: str, *, confirmed: str) -> list[str]:
        """Delete the session and those of its subagents, `confirmed` by its id; returns their ids.

        Raises `RequestRefusedError` 403 for somebody who may not answer, and `SessionHeldError` for one that is to be kept.
        """
        await self.row(who, session_id)
        if confirmed != session_id:
            raise RequestRefusedError(400, f"to delete the session, confirm with its id: {session_id!r:.220}")
        if not who.may_answer:
            raise RequestRefusedError(403, "you may not delete sessions")
        delete = partial(delete_session, self.store, session_id)
        deleted: list[str] = await self._when_free(session_id, partial(off_loop, True, delete))
        return deleted

    async def _change(self, who: Principal, session_id: str, change: Callable[[], Any]) -> SessionSummary:
        await self.row(who, session_id)
        await self._when_free(session_id, partial(off_loop, True, change))
        return await self.row(who, session_id)
