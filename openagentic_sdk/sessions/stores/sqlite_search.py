"""A full text index over the events of an SQLite store, brought up to date when somebody searches."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from ...errors import LogCorruptError
from ...events import Event
from ..base import SessionStore, loads_stored
from ..folds.search import SearchHit, context_of, event_text, search_words
from .sqlite_file import SqliteFile
from .sqlite_schema import LAST_SEQ, place_of

if TYPE_CHECKING:
    import sqlite3

PAGE_EVENTS = 256
# The words go in as the scan finds them: SQLite's own idea of letters is of another age than Python's. The tables of before
# held whole texts.
_INDEX = (
    "DROP TABLE IF EXISTS found_text",
    "DROP TABLE IF EXISTS found_upto",
    "CREATE VIRTUAL TABLE IF NOT EXISTS found_words USING fts5 (text, tokenize = 'ascii')",
    "CREATE TABLE IF NOT EXISTS words_upto "
    "(session INTEGER PRIMARY KEY REFERENCES sessions (key) ON DELETE CASCADE, seq INTEGER NOT NULL)",
)
_BEHIND = (
    "SELECT key, id, coalesce(seq, 0) FROM sessions LEFT JOIN words_upto ON session = key "
    f"WHERE coalesce(seq, 0) < {LAST_SEQ}"
)
_FIND = (
    "SELECT sessions.id, events.place & 4294967295, events.data FROM found_words "
    "JOIN sessions ON sessions.key = found_words.rowid >> 32 "
    "JOIN events ON events.place = found_words.rowid "
    "WHERE found_words MATCH ? ORDER BY sessions.touched DESC, found_words.rowid LIMIT ?"
)


def search_index(store: SessionStore, file: SqliteFile, words: Sequence[str], limit: int) -> list[SearchHit] | None:
    """The events that hold every one of the words, newest session first; None when this SQLite has no full text search.

    The index is brought up to date first, so the first search reads every log and appends cost nothing.
    """
    with file.transaction() as db:
        if not _make_index(db):
            return None
    with file.reading() as db:
        behind = db.execute(_BEHIND).fetchall()
    for key, session_id, indexed_seq in behind:
        # A damaged log hides what it holds, not what others hold; checking it is another command.
        with suppress(LogCorruptError):
            events = store.iter_events(session_id, after_seq=indexed_seq)
            # One transaction per page: nobody who writes meanwhile waits long.
            while batch := list(islice(events, PAGE_EVENTS)):
                with file.transaction(session_id) as db:
                    _index_events(db, key, batch)
    with file.reading() as db:
        rows = db.execute(_FIND, (" ".join(f'"{word}"*' for word in words), max(0, limit))).fetchall()
    hits: list[SearchHit] = []
    for session_id, seq, data in rows:
        # What was damaged since it was indexed hides nothing but itself.
        with suppress(LogCorruptError):
            event = loads_stored(session_id, seq, data)
            hits.append(SearchHit(session_id, seq, event.type, context_of(event_text(event), words)))
    return hits


def forget_session(db: sqlite3.Connection, key: int) -> None:
    """Take a session that is being deleted out of the index."""
    names = "name IN ('found_text', 'found_words')"
    if db.execute(f"SELECT 1 FROM sqlite_master WHERE {names}").fetchone() and _make_index(db):
        places = (place_of(key, 0), place_of(key + 1, 0) - 1)
        db.execute("DELETE FROM found_words WHERE rowid BETWEEN ? AND ?", places)


def _make_index(db: sqlite3.Connection) -> bool:
    """Make the tables of the full text index, a cache that may be dropped. False when SQLite was built without it."""
    if not db.execute("SELECT 1 FROM pragma_module_list WHERE name = 'fts5'").fetchone():
        return False
    for command in _INDEX:
        db.execute(command)
    return True


def _index_events(db: sqlite3.Connection, key: int, events: Sequence[Event]) -> None:
    texts = [(place_of(key, event.seq or 0), " ".join(search_words(event_text(event)))) for event in events]
    # Somebody else may have indexed the same page just now.
    db.executemany("INSERT OR REPLACE INTO found_words (rowid, text) VALUES (?, ?)", [row for row in texts if row[1]])
    db.execute("INSERT OR REPLACE INTO words_upto (session, seq) VALUES (?, ?)", (key, events[-1].seq))
