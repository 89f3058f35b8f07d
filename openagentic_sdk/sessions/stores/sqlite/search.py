"""A full text index over the events of an SQLite store, in a file beside it, updated by searches.

Appends never wait for it: it has a file, a lock and connections of its own, and only reads the store. It contains no texts,
only the events of each word, and can be deleted at any time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....errors import InvalidEventError, LogCorruptError, SessionError
from ....serialization import dumps_json
from ...base import loads_stored
from ...folds.search import Progress, SearchHit, event_text, search_words
from ...folds.summary import SessionSummary, summary_text
from ..database import search_hits
from ..families import Cells, FamilyFold, IndexFamilies, Mark, sum_families
from ..per_process import PerProcess
from .clock import uptime_s
from .forks import Guarded, connecting, driver, make_private
from .schema import LAST_SEQ, place_of

if TYPE_CHECKING:
    import sqlite3

# The most events, and about the most characters of their JSON, that one transaction indexes, and the most sessions.
STEP_EVENTS = 64
STEP_BYTES = 1024 * 1024
STEP_SESSIONS = 256
BUSY_S = 30.0
DELETED_EVERY_S = 60
# The texts from the summaries of sessions in which lists search for words.
CREATE_TOLD_TABLE = "CREATE VIRTUAL TABLE IF NOT EXISTS told USING fts5 (text, tokenize = 'trigram case_sensitive 1')"
# A trigram index cannot find shorter words.
LEAST_LETTERS = 3
# The words are stored as the scan splits them: SQLite's Unicode tables have another version than Python's.
_TABLES = (
    "CREATE VIRTUAL TABLE IF NOT EXISTS found USING fts5 (words, content = '', detail = 'none', tokenize = 'ascii')",
    "CREATE TABLE IF NOT EXISTS upto (session INTEGER PRIMARY KEY, id TEXT NOT NULL, seq INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS looked (what TEXT PRIMARY KEY, key INTEGER, touched INTEGER)",
    "CREATE TABLE IF NOT EXISTS listed (session INTEGER PRIMARY KEY, seq INTEGER NOT NULL)",
)
_BEHIND = (
    "SELECT key, sessions.id FROM sessions LEFT JOIN upto ON session = key "
    f"WHERE touched >= ? AND coalesce(seq, 0) < {LAST_SEQ}"
)
# The newest session when all had been indexed: sessions written to since then were touched at the same time or later.
_LOOKED = (
    "SELECT looked.touched FROM looked JOIN sessions USING (key) WHERE what = ? AND sessions.touched >= looked.touched"
)
_UNLISTED = (
    f"SELECT key, id, {LAST_SEQ} FROM sessions LEFT JOIN listed ON session = key "
    f"WHERE touched >= ? AND coalesce(seq, -1) < coalesce({LAST_SEQ}, 0)"
)
_LISTED = (
    "SELECT key, touched FROM told JOIN sessions ON key = told.rowid WHERE told MATCH ? AND touched < ? "
    "ORDER BY touched DESC LIMIT ?"
)
# Statements that mark what has changed since `IndexFamilies` counted it.
_MARKING = (
    "DROP TRIGGER IF EXISTS listed_again",
    "DROP TRIGGER IF EXISTS listed_no_more",
    "CREATE TRIGGER listed_again AFTER INSERT ON listed BEGIN INSERT OR IGNORE INTO uncounted VALUES (new.session); END",
    "CREATE TRIGGER listed_no_more AFTER DELETE ON listed BEGIN INSERT OR IGNORE INTO uncounted VALUES (old.session); END",
    "INSERT INTO uncounted SELECT session FROM listed",
)
_NEWEST = "SELECT key, touched FROM sessions ORDER BY touched DESC LIMIT 1"
_ORPHANS = "SELECT 1 FROM upto LEFT JOIN sessions ON key = session AND sessions.id = upto.id WHERE key IS NULL LIMIT 1"
_NEXT = "SELECT place & 4294967295, data FROM events WHERE place > ? AND place <= ? ORDER BY place LIMIT ?"
_FIND = (
    "SELECT sessions.id, place & 4294967295, data FROM found JOIN events ON place = found.rowid "
    "JOIN sessions ON key = found.rowid >> 32 WHERE found MATCH ? AND tenant = coalesce(?, tenant) "
    "ORDER BY touched DESC, found.rowid LIMIT ?"
)


class SearchFile:
    """The index of the store at `path`."""

    def __init__(self, path: Path) -> None:
        self._store_path = path
        self._path = path.with_name(path.name + "-search")
        self._lock = PerProcess(threading.RLock)

    def update(self, progress: Progress | None = None) -> None:
        """Update the index, if one can be used."""
        with suppress(driver().DatabaseError, OSError), self._opened() as index:
            self._catch_up(index, progress)

    def search(
        self, words: Sequence[str], limit: int, tenant: str | None = None, progress: Progress | None = None
    ) -> list[SearchHit] | None:
        """At most `limit` events that contain every word, newest session first; None if no index can be used.

        `tenant` is the JSON of one tenant or of null; if it is `None`, all sessions are searched.
        """
        for _ in range(2):
            try:
                with self._opened() as index:
                    self._catch_up(index, progress)
                    match_query = " ".join(f'"{word}"*' for word in words)
                    with index.lock:
                        rows = index.connection.execute(_FIND, (match_query, tenant, max(0, limit))).fetchall()
            except (driver().OperationalError, OSError):
                # SQLite without full text search, or the store's folder is not writable.
                return None
            except driver().DatabaseError:
                # Recreate a damaged cache.
                self.remove()
                continue
            return search_hits(rows, words)
        return None

    def forget(self, session_id: str) -> None:
        """Remove from the index a session that is about to be deleted; if that is not possible, delete the index."""
        if not os.path.lexists(self._path):
            return
        try:
            with self._opened() as index, index.lock:
                db = index.connection
                db.execute("BEGIN IMMEDIATE")
                with db:
                    _families(db, SessionSummary).forget(session_id)
                    for (key,) in db.execute("SELECT key FROM sessions WHERE id = ?", (session_id,)).fetchall():
                        db.execute("DELETE FROM listed WHERE session = ?", (key,))
                        with suppress(driver().OperationalError):
                            db.execute("DELETE FROM told WHERE rowid = ?", (key,))
                    db.execute("DELETE FROM looked")  # the deletion may still be refused
                    row = db.execute("SELECT session, seq FROM upto WHERE id = ?", (session_id,)).fetchone()
                    if row is None:
                        return
                    places = (place_of(row[0], 0), place_of(row[0], row[1]), -1)
                    for seq, data in db.execute(_NEXT, places).fetchall():
                        words = _words(session_id, seq, data)
                        # A contentless FTS5 table forgets a row only if it is given the words that were inserted
                        # (sqlite.org/fts5.html, "The 'delete' Command").
                        command = "INSERT INTO found (found, rowid, words) VALUES ('delete', ?, ?)"
                        db.execute(command, (place_of(row[0], seq), words))
                    db.execute("DELETE FROM upto WHERE session = ?", (row[0],))
        except (driver().DatabaseError, OSError, LogCorruptError, InvalidEventError):
            self.remove()

    def remove(self) -> None:
        """Delete the index."""
        for suffix in ("", "-wal", "-shm"):
            with suppress(OSError):
                os.unlink(f"{self._path}{suffix}")

    @contextmanager
    def _opened(self) -> Iterator[Guarded]:
        with self._lock.get():
            with connecting():
                make_private(self._path)
                connect = partial(driver().connect, timeout=BUSY_S, isolation_level=None, uri=True)
                index = Guarded(self._store_path, connect(self._path, check_same_thread=False))
            try:
                with index.lock:
                    index.connection.execute("PRAGMA journal_mode = WAL")
                    # A power cut may damage the index, which is then recreated from the store.
                    index.connection.execute("PRAGMA synchronous = OFF")
                    store = f"{self._store_path.absolute().as_uri()}?mode=ro"
                    index.connection.execute("ATTACH ? AS store", (store,))
                    for command in _TABLES:
                        index.connection.execute(command)
                yield index
            finally:
                index.close()

    def _catch_up(self, index: Guarded, progress: Progress | None = None) -> None:
        with index.lock:
            db = index.connection
            row = db.execute(_LOOKED, ("words",)).fetchone()
            if row is None and db.execute(_ORPHANS).fetchone():
                # A deleted session is still in the index: without its events, nobody can tell which words to remove.
                db.execute("DROP TABLE found")
                db.execute("DELETE FROM upto")
                db.execute(_TABLES[0])
            newest = db.execute(_NEWEST).fetchone()
            pending = db.execute(_BEHIND, row or (0,)).fetchall()
        for done, (key, session_id) in enumerate(pending, 1):
            while self._step(index, key, session_id):
                pass
            if progress is not None:
                progress(done, len(pending))
        if newest and pending:
            with index.lock:
                index.connection.execute("INSERT OR REPLACE INTO looked VALUES ('words', ?, ?)", newest)

    def listed(
        self,
        query: str,
        before: float,
        limit: int,
        describe: Callable[[str], SessionSummary],
        progress: Progress | None = None,
    ) -> list[tuple[int, int]] | None:
        """`key` and `touched` of at most `limit` sessions whose summaries may contain the words of `query`, newest first.

        All were touched before `before`. None if no word is long enough, or no index can be used.
        """
        trigrams = trigram_query(query)
        return (
            self._of_rows(lambda db: db.execute(_LISTED, (trigrams, before, limit)).fetchall(), describe, progress)
            if trigrams
            else None
        )

    def sums(
        self,
        fold: FamilyFold,
        kinds: Sequence[str],
        describe: Callable[[str], SessionSummary],
        progress: Progress | None = None,
    ) -> Cells | None:
        """The sums of the cells of these kinds; None if no index can be used, or other versions prevent that."""

        def work(db: sqlite3.Connection) -> Cells | None:
            with _change(db):
                _drop_deleted(db)
            return sum_families(_families(db, describe), fold, kinds, progress)

        cells: Cells | None = self._of_rows(work, describe, progress)
        return cells

    def _of_rows(
        self,
        work: Callable[[sqlite3.Connection], Any],
        describe: Callable[[str], SessionSummary],
        progress: Progress | None,
    ) -> Any:
        """Return the result of `work` on an index that contains all summaries; None if no such index can be used."""
        try:
            with self._opened() as index, index.lock:
                db = index.connection
                db.execute(CREATE_TOLD_TABLE)
                pending = _unlisted(db)
                # Short transactions, which keep what was done before an interruption.
                for first in range(0, len(pending) - STEP_SESSIONS, STEP_SESSIONS):
                    with _change(db):
                        _list_sessions(db, pending[first : first + STEP_SESSIONS], describe)
                    if progress is not None:
                        progress(first + STEP_SESSIONS, len(pending))
                if pending:
                    with _change(db):  # the rest, and what other processes have changed by now
                        newest = db.execute(_NEWEST).fetchone()
                        _list_sessions(db, _unlisted(db), describe)
                        db.execute("INSERT OR REPLACE INTO looked VALUES ('rows', ?, ?)", newest)
                    if progress is not None:
                        progress(len(pending), len(pending))
                return work(db)
        except (driver().OperationalError, OSError):
            return None
        except driver().DatabaseError:
            self.remove()
            return None

    def unlist(self, key: int) -> None:
        """Remove a session's list entry because its metadata is changing, or delete the index if that fails."""
        if not os.path.lexists(self._path):
            return
        try:
            with self._opened() as index, index.lock:
                index.connection.execute("DELETE FROM listed WHERE session = ?", (key,))
                index.connection.execute("DELETE FROM looked WHERE what = 'rows'")
        except (driver().DatabaseError, OSError):
            self.remove()

    def _step(self, index: Guarded, key: int, session_id: str) -> bool:
        """Index the next events of a session; return whether there may be more."""
        with index.lock, index.connection as db:
            db.execute("BEGIN IMMEDIATE")
            row = db.execute("SELECT seq FROM upto WHERE session = ?", (key,)).fetchone()
            began = done = row[0] if row else 0
            size = 0
            cursor: Any = db.execute(_NEXT, (place_of(key, began), place_of(key + 1, 0) - 1, STEP_EVENTS))
            # A damaged log hides only its own events; another command checks logs.
            with suppress(LogCorruptError):
                for seq, data in cursor:
                    words = _words(session_id, seq, data)
                    db.execute("INSERT INTO found (rowid, words) VALUES (?, ?)", (place_of(key, seq), words))
                    done, size = seq, size + len(data)
                    if size > STEP_BYTES:
                        break
            db.execute("INSERT OR REPLACE INTO upto (session, id, seq) VALUES (?, ?, ?)", (key, session_id, done))
        return bool(done > began)


@contextmanager
def _change(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    with db:
        yield


def _unlisted(db: sqlite3.Connection) -> list[tuple[int, str, int | None]]:
    """The key, id and last `seq` (None without events) of each session that has changed since it was listed."""
    row = db.execute(_LOOKED, ("rows",)).fetchone()
    return db.execute(_UNLISTED, row or (0,)).fetchall()


def _list_sessions(
    db: sqlite3.Connection, sessions: Sequence[tuple[int, str, int | None]], describe: Callable[[str], SessionSummary]
) -> None:
    for key, session_id, seq in sessions:
        with suppress(SessionError, InvalidEventError):
            tell_of(db, key, describe(session_id))
        db.execute("INSERT OR REPLACE INTO listed VALUES (?, ?)", (key, seq or 0))


def _drop_deleted(db: sqlite3.Connection) -> None:
    """Drop sessions deleted by versions that left them in the index; once a minute, because counting reads every key."""
    now, row = int(uptime_s()), db.execute("SELECT touched FROM looked WHERE what = 'deleted'").fetchone()
    if row is not None and 0 <= now - row[0] < DELETED_EVERY_S:
        return
    if db.execute("SELECT (SELECT count(*) FROM listed) > (SELECT count(*) FROM sessions)").fetchone()[0]:
        db.execute("DELETE FROM listed WHERE session NOT IN (SELECT key FROM sessions)")
    db.execute("INSERT OR REPLACE INTO looked VALUES ('deleted', 0, ?)", (now,))


def _families(db: sqlite3.Connection, describe: Callable[[str], SessionSummary]) -> IndexFamilies:
    def first(command: str, value: Mark) -> Any:
        row = db.execute(command, (value,)).fetchone()
        return None if row is None else row[0]

    children = "SELECT id FROM sessions WHERE parent = ? AND parent != 'null' AND is_child"
    return IndexFamilies(
        db,
        marking=_MARKING,
        mark_of=partial(first, "SELECT key FROM sessions WHERE id = ?"),
        id_of=partial(first, "SELECT id FROM sessions WHERE key = ?"),
        children_of=lambda name: [row[0] for row in db.execute(children, (dumps_json(name),))],
        describe=describe,
    )


def tell_of(db: Any, key: int, row: SessionSummary) -> None:
    """Store the texts of a session that lists search for words."""
    db.execute("DELETE FROM told WHERE rowid = ?", (key,))
    text = summary_text(row).encode("utf-8", "replace").decode()
    db.execute("INSERT INTO told (rowid, text) VALUES (?, ?)", (key, text))


def trigram_query(query: str) -> str:
    """The FTS query for the sessions with all words of a list's query that are long enough; empty without any."""
    words = [word for word in query.casefold().split() if len(word) >= LEAST_LETTERS and word.isprintable()]
    return " AND ".join('"{}"'.format(word.replace('"', '""')) for word in words)


def _words(session_id: str, seq: int, data: str) -> str:
    return " ".join(search_words(event_text(loads_stored(session_id, seq, data))))
