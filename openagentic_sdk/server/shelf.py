"""Operations on stored sessions from a list: page, search, rename, archive and delete."""

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
from ..sessions.folds.standing import Request
from ..sessions.folds.summary import SessionSummary
from .guard import Principal

T = TypeVar("T")

# The tag of archived sessions, which lists leave out.
ARCHIVED = "archived"


class Shelf(ABC):
    """The sessions of a store, each visible only to its tenant."""

    store: SessionStore

    @abstractmethod
    def _shown_row(self, row: SessionSummary) -> SessionSummary:
        """The summary as clients see it."""

    @abstractmethod
    async def row(self, who: Principal, session_id: str) -> SessionSummary:
        """The summary of a session; its `events` is the `seq` of the log's last event. Raises `SessionNotFoundError`."""

    @abstractmethod
    async def _when_free(self, session_id: str, work: Callable[[], Awaitable[T]]) -> T:
        """Do the work once no run locks the session; return its result. Raises `SessionLockedError` during a run."""

    async def has_queued(self, session_id: str) -> bool:
        """Whether an accepted run of the session is about to begin without anything in the log."""
        return False

    async def find_queued(self, session_id: str, is_wanted: Callable[[str], bool]) -> Request | None:
        """An accepted request that is not in the log; None here, because a prompt is accepted by storing it."""
        return None

    async def page(
        self, who: Principal, keep: Callable[[SessionSummary], bool], *, limit: int, after: str | None = None
    ) -> SessionPage:
        """Read a page of the tenant's sessions that `keep` accepts, after a cursor; see `SessionStore.page_sessions`."""
        seen = self._shown_row
        read_page = partial(self.store.page_sessions, tenant=who.tenant, limit=limit, after=after)
        page: SessionPage = await off_loop(True, partial(read_page, keep=lambda row: keep(seen(row))))
        return replace(page, rows=[seen(row) for row in page.rows])

    async def rows(
        self, who: Principal, *, query: str | None = None, limit: int = 50, offset: int = 0
    ) -> list[SessionSummary]:
        """Read up to `limit` of the tenant's sessions that match `query`, most recently updated first, from `offset` on."""
        list_rows = partial(self.store.list_session_summaries, tenant=who.tenant)
        rows: list[SessionSummary] = await off_loop(True, partial(list_rows, query=query, limit=limit, offset=offset))
        return [self._shown_row(row) for row in rows]

    async def search(self, who: Principal, query: str, *, limit: int = 50) -> list[SearchHit]:
        """Find up to `limit` events of the tenant's sessions that contain all words of `query`."""
        find = partial(self.store.search, query, limit=limit, tenant=who.tenant)
        hits: list[SearchHit] = await off_loop(True, find)
        return hits

    async def rename(self, who: Principal, session_id: str, title: str) -> SessionSummary:
        """Set the session's title, which is shown to people; return its new summary."""
        return await self._change(who, session_id, partial(rename_session, self.store, session_id, title))

    async def archive(self, who: Principal, session_id: str, *, archived: bool) -> SessionSummary:
        """Hide the session from lists by adding a tag, or restore it by removing the tag; return its new summary."""
        add, remove = ((ARCHIVED,), ()) if archived else ((), (ARCHIVED,))
        return await self._change(who, session_id, partial(tag_session, self.store, session_id, add=add, remove=remove))

    async def delete(self, who: Principal, session_id: str, *, confirmed: str) -> list[str]:
        """Delete the session and its subagents' sessions; return their ids.

        Raises `RequestRefusedError` (400 unless `confirmed` is the session's id, 403 if the principal may not answer),
        `SessionLockedError` during a run, and `SessionHeldError` if the session must be kept.
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
