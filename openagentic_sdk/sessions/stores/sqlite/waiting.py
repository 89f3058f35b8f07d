"""Notification between the users of an SQLite file: its sessions are queried whenever something was written to it."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from ...arguments import cut_number, cut_numbers, cut_wait, is_possible_id
from ...inbox import MAX_WAITING, InboxMessage, dumps_message, full_inbox, loads_message
from ..database import DatabaseStore, SessionRow
from .file import SqliteFile
from .schema import LAST_SEQ

if TYPE_CHECKING:
    import sqlite3

PAGE_IDS = 500


class SqliteWaiting(DatabaseStore):
    """The waiting and inbox methods of `SqliteSessionStore`."""

    has_inbox = True
    _file: SqliteFile

    @abstractmethod
    def _position_in(self, db: sqlite3.Connection, session_id: str) -> SessionRow:
        """The session's row. Raises `SessionNotFoundError`."""

    def wait_for_events(self, session_id: str, *, after_seq: int, timeout_s: float) -> bool:
        after_seq, timeout_s = cut_number("after_seq", after_seq), cut_wait(timeout_s)
        has_news = bool(self.wait_for_news({session_id: after_seq}, timeout_s=timeout_s))
        return has_news and self.last_seq(session_id) > after_seq

    def _news_finder(self, given_seqs: Mapping[str, int], messages_after: int | None) -> Callable[[float], set[str]]:
        """Like `PollingStore._news_finder`; the sessions are queried only if something was written to the file."""
        last_version = (-1, -1)
        command = f"SELECT id, coalesce({LAST_SEQ}, 0) FROM sessions WHERE id IN ({{}})"

        def look(timeout_s: float) -> set[str]:
            nonlocal last_version
            # First, so that changes during the query cause another query.
            if (version := self._file.written()) == last_version:
                return set()
            last_version = version
            last_seqs = dict(self._rows_of(given_seqs, command, ()))  # missing sessions are omitted
            news = {name for name, seq in given_seqs.items() if last_seqs.get(name, sys.maxsize) > seq}
            if messages_after is not None:
                news.update(each.session_id for each in self.read_messages(given_seqs, after=messages_after))
            return news

        return look

    def _rows_of(self, session_ids: Collection[str], command: str, values: tuple[Any, ...]) -> list[Any]:
        """The rows of a query, with as many ids at a time as every SQLite accepts."""
        names = [name for name in session_ids if is_possible_id(name)]
        rows: list[Any] = []
        with self._file.reading() as db:
            for start in range(0, len(names), PAGE_IDS):
                some = names[start : start + PAGE_IDS]
                rows += db.execute(command.format(", ".join("?" * len(some))), (*values, *some)).fetchall()
        return rows

    def put_message(self, session_id: str, message: Mapping[str, Any]) -> int:
        text = dumps_message(message)
        with self._file.transaction(session_id, durable=self.durability != "flush") as db:
            key = self._position_in(db, session_id).key
            (waiting,) = db.execute("SELECT count(*) FROM messages WHERE session = ?", (key,)).fetchone()
            if waiting >= MAX_WAITING:
                raise full_inbox(session_id)
            return int(db.execute("INSERT INTO messages (session, data) VALUES (?, ?)", (key, text)).lastrowid or 0)

    def read_messages(self, session_ids: Collection[str], *, after: int = 0) -> list[InboxMessage]:
        after = cut_number("after", after)
        command = "SELECT number, id, data FROM messages JOIN sessions ON key = session WHERE number > ? AND id IN ({})"
        return [loads_message(*row) for row in sorted(self._rows_of(session_ids, command, (after,)))]

    def remove_messages(self, numbers: Collection[int]) -> None:
        numbers = cut_numbers(numbers)
        with self._file.transaction() as db:
            db.executemany("DELETE FROM messages WHERE number = ?", [(number,) for number in numbers])
