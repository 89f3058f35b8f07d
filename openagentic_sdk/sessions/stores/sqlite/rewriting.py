"""Erase from an SQLite store: replace events in one transaction, and leave no page of the file that still contains them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ....errors import LeaseLostError, StorageError
from ..database import SessionRow
from ..log_state import LogHead
from .schema import place_of
from .search import SearchFile
from .waiting import SqliteWaiting

if TYPE_CHECKING:
    import sqlite3


class RewritingSqlite(SqliteWaiting):
    """The erasing methods of `SqliteSessionStore`."""

    path: Path
    _index: SearchFile

    @abstractmethod
    def _keep_summary(self, db: sqlite3.Connection, key: int, head: LogHead) -> None:
        """Store the end of the log in the session's row."""

    def delete_blobs(self, session_id: str, digests: Collection[str]) -> None:
        with self._file.transaction(session_id, durable=True) as db:
            key = self._position_in(db, session_id).key
            db.executemany("DELETE FROM blobs WHERE session = ? AND sha256 = ?", [(key, digest) for digest in digests])

    def scrub(self, *session_ids: str) -> Sequence[str]:
        """Rewrite the database without its free pages, empty its write-ahead log, and delete the index of words.

        Waits until no other process reads. Raises `StorageError` if that takes too long.
        """
        if self._file.is_memory:
            return ()  # there are no files
        self._index.remove()
        with self._file.reading() as db:
            db.execute("VACUUM")
            busy = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        if busy:
            raise StorageError(
                f"{self.path}-wal still contains the erased data, since others are reading the database: finish the "
                "erasure when they are done",
                retryable=True,
            )
        return ()

    def _put_in_place(self, at: SessionRow, rows: Sequence[tuple[int, str]], head: LogHead) -> None:
        with self._file.transaction(at.id, durable=True) as db:
            now = self._position_in(db, at.id)
            if (now.key, now.epoch) != (at.key, at.epoch):
                raise LeaseLostError(at.id, at.head.last_seq, now.head.last_seq)
            db.executemany(
                "UPDATE events SET data = ? WHERE place = ?", [(text, place_of(at.key, seq)) for seq, text in rows]
            )
            db.execute("DELETE FROM checkpoints WHERE session = ?", (at.key,))
            self._keep_summary(db, at.key, head)
        self._index.remove()
