"""The common base of stores in databases: a session is a row with the end of its log, and events read in pages."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

from ...errors import (
    InvalidEventError,
    LogCorruptError,
    SessionError,
    SessionLockedError,
    SessionNotFoundError,
    StorageError,
)
from ...events import Event
from ...ground.clock import Clock
from ...ground.frozen import frozen
from ...serialization import dumps_json, loads_json
from ..arguments import cut_limit, cut_number
from ..base import Place, SessionStore, as_it_is, as_shown, iter_pages, loads_stored, merged_metadata
from ..core import new_session_id
from ..folds.search import SearchHit, scan_events
from ..folds.summary import SessionSummary, failed_summary, fold_session_summary, start_summary
from ..log.line import dumps_stored
from ..rewriting import Rewrite
from .log_state import LogHead

_PAGE_ROWS = 100


@frozen
class SessionRow:
    """A session's row: `key` is its database key, `metadata` is JSON, `head` is the end of its log.

    `revision` increases with each change of the metadata, `epoch` with each writer; `holder` names the process that holds
    the session, whose lease has `lease_left_s` seconds left. Lists are in the order of `touched`, to which each write
    assigns the highest value.
    """

    key: Any
    epoch: int
    created_at: float
    metadata: str
    head: LogHead
    revision: int = 0
    holder: str = ""
    lease_left_s: float = 0.0
    touched: float = 0

    @property
    def id(self) -> str:
        return self.head.id

    @property
    def start(self) -> SessionSummary:
        """The summary before the first event."""
        return start_summary(self.id, self.created_at, loads_json(self.metadata))


class DatabaseStore(SessionStore):
    """A store in a database that has a row for each session. Subclasses implement the queries."""

    page_events: ClassVar[int] = 500
    _clock: Clock

    @abstractmethod
    def _position(self, session_id: str) -> SessionRow:
        """The session's row. Raises `SessionNotFoundError`."""

    @abstractmethod
    def _lock_of(self, at: SessionRow) -> SessionLockedError | None:
        """The error that refuses other writers of this session; None if no live process holds it."""

    @abstractmethod
    def _event_rows(self, at: SessionRow, after_seq: int, size: int) -> Sequence[tuple[int, str]]:
        """The `seq` and the JSON of each of the next events of this session."""

    @abstractmethod
    def _put_in_place(self, at: SessionRow, rows: Sequence[tuple[int, str]], head: LogHead) -> None:
        """Replace these events' texts and the head, and delete the checkpoint, in one step.

        Raises `LeaseLostError` if the session has another writer by now, or was replaced by another session.
        """

    @abstractmethod
    def _keep_folded(self, at: SessionRow, folded: SessionSummary) -> None:
        """Store the summary of this session, unless the session has been written to or changed since `at` was read."""

    @abstractmethod
    def _page(
        self, *, cwd: str | None, tenant: str | None, include_children: bool, limit: int | None, offset: int
    ) -> Iterator[SessionRow]:
        """The rows of the sessions with this folder and tenant (None: any), the most recently touched first."""

    def create_session(self, *, metadata: Mapping[str, Any] | None = None, session_id: str | None = None) -> str:
        return self.import_session(session_id or new_session_id(), (), metadata=metadata)

    def iter_events(self, session_id: str, *, after_seq: int = 0, limit: int | None = None) -> Iterator[Event]:
        after_seq, limit = cut_number("after_seq", after_seq), cut_limit(limit)
        at, count = self._position(session_id), 0
        page = partial(self._event_rows, at)
        if after_seq > at.head.last_seq:
            return
        for event in iter_pages(session_id, page, after_seq=after_seq, limit=limit, page_events=self.page_events):
            yield event
            count += 1
        expected = at.head.last_seq - after_seq
        if count < (expected if limit is None else min(limit, expected)):
            # Fewer events than at the beginning: the session was deleted in the meantime, or it is damaged.
            if self._position(session_id).key != at.key:
                raise SessionNotFoundError(session_id)
            raise LogCorruptError(session_id, after_seq + count + 1, 0, "missing")

    def rewrite_events(self, session_id: str, change: Rewrite) -> None:
        with self.open_writer(session_id):
            at = self._position(session_id)
            events = list(self.iter_events(session_id))
            changed = change(events)
            rewritten = [changed.get(event.seq or 0, event) for event in events]
            head = LogHead(at.start).after(rewritten)
            rows = [(seq, dumps_stored(event)) for seq, event in changed.items()]
            self._put_in_place(at, rows, head)

    def read_metadata(self, session_id: str) -> dict[str, Any]:
        at = self._position(session_id)
        return {"session_id": session_id, "created_at": at.created_at, "metadata": loads_json(at.metadata)}

    def session_exists(self, session_id: str) -> bool:
        try:
            self._position(session_id)
        except SessionNotFoundError:
            return False
        # Damaged, so it exists: only `SessionNotFoundError` means that it does not.
        except LogCorruptError:
            return True
        return True

    def is_held(self, session_id: str) -> bool:
        return self._lock_of(self._position(session_id)) is not None

    def _refuse_if_held(self, at: SessionRow) -> None:
        locked = self._lock_of(at)
        if locked is not None:
            raise locked

    def last_seq(self, session_id: str) -> int:
        return self._position(session_id).head.last_seq

    def kept_summary(self, session_id: str) -> SessionSummary:
        at = self._position(session_id)
        if at.head.is_kept:
            return at.head.summary
        folded = fold_session_summary(at.start, self.iter_events(session_id))
        self._keep_folded(at, folded)
        return folded

    def _list_page(
        self, *, cwd: str | None, tenant: str | None, include_children: bool, limit: int | None, offset: int
    ) -> Iterator[SessionSummary]:
        page = self._page(cwd=cwd, tenant=tenant, include_children=include_children, limit=limit, offset=offset)
        return (row for row in map(self._shown, page) if row is not None)

    def _shown_behind(
        self, after: Place | None, page: Callable[..., Iterator[SessionRow]]
    ) -> Iterator[tuple[Callable[[], Place], SessionSummary]]:
        """Implement `_rows_behind` with the rows returned by `page(before=, limit=)`."""
        before = None if after is None else after[0]
        while rows := list(page(before=before, limit=_PAGE_ROWS)):
            for at in rows:
                row, before = self._shown(at), at.touched
                if row is not None:
                    yield partial(as_it_is, (at.touched, 0.0, at.id)), row

    def _shown(self, at: SessionRow) -> SessionSummary | None:
        """The session's summary for a list, with the error if it cannot be read; None if it was just deleted."""
        try:
            if at.head.is_kept:
                return as_shown(self, at.head.summary, lambda: self._lock_of(at) is not None)
            return self.read_summary(at.id)
        except SessionNotFoundError:
            return None
        # A damaged session must not hide the others in the list.
        except (SessionError, InvalidEventError) as error:
            return self._failed_row(at.id, error)

    def _failed_row(self, session_id: str, error: Exception) -> SessionSummary:
        """The summary that a list shows for an unreadable session. Raises the error if it affects other sessions, too."""
        return failed_summary(session_id, error)


def intact_blob(session_id: str, sha256: str, data: bytes | None) -> bytes:
    """Return the blob if it has that digest. Raises `StorageError` if it is missing or different."""
    if data is None or hashlib.sha256(data).hexdigest() != sha256:
        raise StorageError(f"session {session_id!r} has no intact blob {sha256}", session_id=session_id)
    return bytes(data)


def search_hits(rows: Iterable[tuple[str, int, str]], words: Sequence[str]) -> list[SearchHit]:
    """The hits of a word index, given as the session's id, `seq` and JSON.

    Damaged events are skipped, and so are those that no longer contain the words, since these were erased.
    """
    hits: list[SearchHit] = []
    for session_id, seq, text in rows:
        with suppress(LogCorruptError):  # an event damaged since it was indexed hides only itself
            hits += scan_events(session_id, [loads_stored(session_id, seq, text)], words, 1)
    return hits


def text_key(text: str | None) -> str:
    """An ASCII key of 64 characters, usable on any server, for None or a string of any length and characters."""
    return hashlib.sha256(dumps_json(text).encode("ascii")).hexdigest()


def changed_metadata(metadata: str, changes: Mapping[str, Any]) -> str:
    """The metadata's JSON after these changes; a value of None removes the key."""
    return dumps_json(merged_metadata(loads_json(metadata), changes))
