"""Sessions in one SQLite file: thousands of them, shared by threads and processes of one machine.

An append is one transaction whose insert only succeeds for the epoch that its writer was given and at the `seq` that it
expects; a writer that hung while another took its session over changes nothing. Whether a holder lives is asked of the
kernel: it locks a file beside the database, and the lock dies with it.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..clock import Clock, SystemClock
from ..errors import (
    ConcurrencyError,
    LeaseLostError,
    LogCorruptError,
    OptionsError,
    SessionExistsError,
    SessionLockedError,
    SessionNotFoundError,
    StorageError,
)
from ..events import Event
from ..serialization import dumps_json, loads_json
from .base import (
    SessionStore,
    SessionWriter,
    check_sequence,
    check_session_id,
    dumps_stored,
    iter_pages,
    loads_stored,
    stamp_events,
)
from .folds.search import SearchHit, context_of, event_text, search_words
from .folds.summary import (
    SessionSummary,
    moves_summary,
    start_summary,
    summary_matches,
    time_after,
)
from .log.disk import BINARY
from .log.line import is_barrier, stamp_event
from .log.lock import try_lock
from .stores.log_state import Head, copied_head, read_head

if TYPE_CHECKING:
    import sqlite3

BUSY_S = 30.0
PAGE_EVENTS = 256
# The write-ahead log goes into the database, which waits for the disk twice, every 16 MB instead of every 4.
CHECKPOINT_PAGES = 4000
DURABILITIES = ("flush", "barrier", "fsync")
# One entry per version of the schema: what turns a database of the version before into this one. What may hold any text
# (`cwd`, `parent`) is kept as JSON, in ASCII.
MIGRATIONS: Sequence[Sequence[str]] = (
    (
        """CREATE TABLE sessions (
            key INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            created_at REAL NOT NULL,
            metadata TEXT NOT NULL,
            epoch INTEGER NOT NULL DEFAULT 0,
            held INTEGER NOT NULL DEFAULT 0,
            touched INTEGER NOT NULL,
            cwd TEXT NOT NULL DEFAULT 'null',
            parent TEXT NOT NULL DEFAULT 'null',
            is_child INTEGER NOT NULL DEFAULT 0,
            summary TEXT
        )""",
        "CREATE INDEX sessions_touched ON sessions (is_child, touched)",
        "CREATE INDEX sessions_cwd ON sessions (cwd, is_child, touched)",
        "CREATE INDEX sessions_parent ON sessions (parent) WHERE parent != 'null'",
        "CREATE INDEX sessions_newest ON sessions (touched)",
        """CREATE TABLE events (
            session INTEGER NOT NULL REFERENCES sessions (key) ON DELETE CASCADE,
            seq INTEGER NOT NULL,
            updated REAL NOT NULL,
            data TEXT NOT NULL,
            PRIMARY KEY (session, seq)
        )""",
        """CREATE TABLE blobs (
            session INTEGER NOT NULL REFERENCES sessions (key) ON DELETE CASCADE,
            sha256 TEXT NOT NULL,
            data BLOB NOT NULL,
            PRIMARY KEY (session, sha256)
        )""",
    ),
    # One number instead of (session, seq): an append writes one page where a key of two columns makes it two.
    (
        "CREATE TABLE placed_events (place INTEGER PRIMARY KEY, updated REAL NOT NULL, data TEXT NOT NULL)",
        "INSERT INTO placed_events SELECT (session << 32) + seq, updated, data FROM events",
        "DROP TABLE events",
        "ALTER TABLE placed_events RENAME TO events",
        """CREATE TRIGGER sessions_events AFTER DELETE ON sessions BEGIN
            DELETE FROM events WHERE place > old.key << 32 AND place < (old.key + 1) << 32;
        END""",
    ),
)
# The place of an event in its table and in the full text index: session's key and seq in one number.
SEQ_BITS = 32

_LAST_EVENT = (
    "(SELECT {column} FROM events WHERE place > key << 32 AND place < (key + 1) << 32 ORDER BY place DESC LIMIT 1)"
)
_LAST_SEQ = _LAST_EVENT.format(column="place & 4294967295")
_ROW = f"SELECT id, created_at, metadata, summary, {_LAST_SEQ}, {_LAST_EVENT.format(column='updated')} FROM sessions"
_POSITION = f"SELECT epoch, coalesce({_LAST_SEQ}, 0), metadata FROM sessions WHERE key = ?"
_INSERT = "INSERT INTO events (place, updated, data) VALUES (?, ?, ?)"
# Only for the writer of this epoch, and only while its session is the newest: then nothing of its row has to change.
_INSERT_ONE = (
    "INSERT INTO events (place, updated, data) SELECT ?, ?, ? WHERE EXISTS (SELECT 1 FROM sessions "
    "WHERE key = ? AND epoch = ? AND touched = (SELECT max(touched) FROM sessions))"
)
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
    f"WHERE coalesce(seq, 0) < {_LAST_SEQ}"
)
_FIND = (
    "SELECT sessions.id, events.place & 4294967295, events.data FROM found_words "
    "JOIN sessions ON sessions.key = found_words.rowid >> 32 "
    "JOIN events ON events.place = found_words.rowid "
    "WHERE found_words MATCH ? ORDER BY sessions.touched DESC, found_words.rowid LIMIT ?"
)
_TOUCH = (
    "UPDATE sessions SET touched = 1 + (SELECT max(touched) FROM sessions) "
    "WHERE key = ? AND touched < (SELECT max(touched) FROM sessions)"
)


class SqliteSessionStore(SessionStore):
    """Sessions in the SQLite file at `path`, which is made with its folder when the store is first used.

    `durability` is `flush` (survives the process), `barrier` (also on disk at each prompt, decision, effect and result) or
    `fsync` (every append).
    """

    def __init__(
        self, path: str | os.PathLike[str], *, durability: str = "barrier", clock: Clock | None = None
    ) -> None:
        if durability not in DURABILITIES:
            raise OptionsError(f"durability {durability!r} is unknown: choose one of {', '.join(DURABILITIES)}")
        self.path = Path(path).expanduser()
        self.durability = durability
        self._clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._connected: sqlite3.Connection | None = None
        self._pid = 0
        self._synchronous = ""

    # --- the core ----------------------------------------------------------------------------------------------------

    def create_session(self, *, metadata: Mapping[str, Any] | None = None, session_id: str | None = None) -> str:
        return self.import_session(session_id or uuid.uuid4().hex, (), metadata=metadata)

    def open_writer(self, session_id: str) -> SessionWriter:
        with self._transaction(session_id) as db:
            key = self._key(db, session_id)
            self._refuse_if_held(db, session_id, key)
            return self._new_writer(db, session_id, key)

    def take_over(self, session_id: str) -> SessionWriter:
        with self._transaction(session_id) as db:
            return self._new_writer(db, session_id, self._key(db, session_id))

    def append_events(
        self, session_id: str, events: Sequence[Event], *, expected_seq: int | None = None
    ) -> list[Event]:
        with self._transaction(session_id, durable=self._is_durable(events)) as db:
            key = self._key(db, session_id)
            self._refuse_if_held(db, session_id, key)
            head = self._head(db, session_id)
            if expected_seq is not None and head.last_seq != expected_seq:
                raise ConcurrencyError(session_id, expected_seq, head.last_seq)
            return self._insert(db, key, head, events)[0]

    def iter_events(self, session_id: str, *, after_seq: int = 0, limit: int | None = None) -> Iterator[Event]:
        with self._reading(session_id) as db:
            key = self._key(db, session_id)
        page = partial(self._page, session_id, key)
        yield from iter_pages(session_id, page, after_seq=max(0, after_seq), limit=limit, page_events=PAGE_EVENTS)

    def read_metadata(self, session_id: str) -> dict[str, Any]:
        with self._reading(session_id) as db:
            row = db.execute("SELECT created_at, metadata FROM sessions WHERE id = ?", (session_id,)).fetchone()
        if row is None:
            raise SessionNotFoundError(session_id, str(self.path))
        return {"session_id": session_id, "created_at": row[0], "metadata": loads_json(row[1])}

    def update_metadata(self, session_id: str, changes: Mapping[str, Any]) -> None:
        with self._transaction(session_id) as db:
            merged = {**self.read_metadata(session_id)["metadata"], **changes}
            kept = dumps_json({key: value for key, value in merged.items() if value is not None})
            begins = self._start(db, session_id)
            db.execute("UPDATE sessions SET metadata = ? WHERE id = ?", (kept, session_id))
            if self._start(db, session_id) != begins:
                self._keep_summary(db, self._key(db, session_id), Head(self.fold_summary(session_id)))

    def list_sessions(self) -> list[str]:
        with self._reading(None) as db:
            return [row[0] for row in db.execute("SELECT id FROM sessions ORDER BY touched DESC")]

    def session_exists(self, session_id: str) -> bool:
        try:
            with self._reading(session_id) as db:
                return db.execute("SELECT 1 FROM sessions WHERE id = ?", (session_id,)).fetchone() is not None
        except SessionNotFoundError:
            return False

    def delete_session(self, session_id: str) -> None:
        with self._transaction(session_id) as db:
            key = self._key(db, session_id)
            self._refuse_if_held(db, session_id, key)
            if _has_index(db) and _make_index(db):
                db.execute(
                    "DELETE FROM found_words WHERE rowid BETWEEN ? AND ?", (_place(key, 0), _place(key + 1, 0) - 1)
                )
            db.execute("DELETE FROM sessions WHERE key = ?", (key,))

    def put_blob(self, session_id: str, data: bytes) -> str:
        with self._transaction(session_id, durable=self.durability != "flush") as db:
            return _insert_blob(db, self._key(db, session_id), data)

    def read_blob(self, session_id: str, sha256: str) -> bytes:
        with self._reading(session_id) as db:
            key = self._key(db, session_id)
            row = db.execute("SELECT data FROM blobs WHERE session = ? AND sha256 = ?", (key, sha256)).fetchone()
        if row is None or hashlib.sha256(row[0]).hexdigest() != sha256:
            raise StorageError(f"session {session_id!r} has no intact blob {sha256}", session_id=session_id)
        return bytes(row[0])

    def close(self) -> None:
        with self._lock:
            if self._connected is not None and self._pid == os.getpid():
                self._connected.close()
            self._connected = None

    def __del__(self) -> None:
        # A run that was given the store's name has nobody else who would close it.
        if self.__dict__.get("_connected"):
            self.close()

    # --- what a database does better ---------------------------------------------------------------------------------

    def list_blobs(self, session_id: str) -> list[str]:
        with self._reading(session_id) as db:
            rows = db.execute("SELECT sha256 FROM blobs WHERE session = ? ORDER BY 1", (self._key(db, session_id),))
            return [row[0] for row in rows]

    def list_children(self, session_id: str) -> list[str]:
        with self._reading(session_id) as db:
            rows = db.execute(
                "SELECT id FROM sessions WHERE parent = ? AND parent != 'null' AND is_child ORDER BY key",
                (dumps_json(session_id),),
            )
            return [row[0] for row in rows]

    def read_summary(self, session_id: str) -> SessionSummary:
        with self._reading(session_id) as db:
            head = self._head(db, session_id)
        return head.summary if head.is_kept else self._refold(session_id)

    def list_session_summaries(
        self,
        *,
        cwd: str | None = None,
        limit: int | None = None,
        offset: int = 0,
        query: str | None = None,
        include_children: bool = False,
    ) -> list[SessionSummary]:
        where = "" if include_children else " WHERE is_child = 0"
        values: list[Any] = []
        if cwd is not None:
            where += (" AND" if where else " WHERE") + " cwd = ?"
            values.append(dumps_json(cwd))
        command = f"{_ROW}{where} ORDER BY touched DESC"
        with self._reading(None) as db:
            if not query:
                rows = db.execute(f"{command} LIMIT ? OFFSET ?", (*values, -1 if limit is None else limit, offset))
                return [self._shown(read_head(*row)) for row in rows.fetchall()]
            found = (self._shown(read_head(*row)) for row in db.execute(command, values).fetchall())
            matching = [row for row in found if summary_matches(row, query=query, include_children=True)]
        return matching[offset:] if limit is None else matching[offset : offset + limit]

    def search(self, query: str, *, limit: int = 50) -> list[SearchHit]:
        """Events that hold every word of `query`, newest session first.

        Asks a full text index that is brought up to date first, so the first search reads every log and appends cost
        nothing; an SQLite without FTS5 reads every log each time.
        """
        words = search_words(query)
        with self._transaction(None) as db:
            has_index = _make_index(db)
        if not words or not has_index:
            return super().search(query, limit=limit)
        self._index_new_events()
        wanted = " ".join(f'"{word}"*' for word in words)
        with self._reading(None) as db:
            rows = db.execute(_FIND, (wanted, max(0, limit))).fetchall()
        hits: list[SearchHit] = []
        for session_id, seq, data in rows:
            # What was damaged since it was indexed hides nothing but itself.
            with suppress(LogCorruptError):
                event = loads_stored(session_id, seq, data)
                hits.append(SearchHit(session_id, seq, event.type, context_of(event_text(event), words)))
        return hits

    def import_session(
        self,
        session_id: str,
        events: Iterable[Event],
        *,
        metadata: Mapping[str, Any] | None = None,
        created_at: float | None = None,
        blobs: Iterable[bytes] = (),
    ) -> str:
        created_at = self._clock.now() if created_at is None else created_at
        with self._transaction(session_id, durable=self.durability != "flush") as db:
            key = self._add(db, session_id, created_at, dict(metadata or {}))
            head = self._head(db, session_id)
            for batch in _batches(check_sequence(events), PAGE_EVENTS):
                head = self._write(db, key, head, batch)
            for data in blobs:
                _insert_blob(db, key, data)
        return session_id

    def copy_session(
        self, source_id: str, target_id: str, *, at_seq: int, tail: Sequence[Event], metadata: Mapping[str, Any]
    ) -> str:
        with self._transaction(target_id, durable=self.durability != "flush") as db:
            source, known = self._key(db, source_id), self._head(db, source_id)
            key = self._add(db, target_id, self._clock.now(), dict(metadata))
            _copy_rows(db, source, key, at_seq)
            start = self._head(db, target_id).summary
            updated = db.execute("SELECT updated FROM events WHERE place = ?", (_place(key, at_seq),)).fetchone()
            head = copied_head(known, start, at_seq, updated[0] if updated else None)
            self._keep_summary(db, key, head)
            self._insert(db, key, head, tail)
        return target_id

    # --- inside a transaction ----------------------------------------------------------------------------------------

    def _add(self, db: sqlite3.Connection, session_id: str, created_at: float, metadata: dict[str, Any]) -> int:
        start = start_summary(check_session_id(session_id), created_at, metadata)
        if db.execute("SELECT 1 FROM sessions WHERE id = ?", (session_id,)).fetchone():
            raise SessionExistsError(session_id)
        newest = "(SELECT coalesce(max(touched), 0) + 1 FROM sessions)"
        cursor = db.execute(
            f"INSERT INTO sessions (id, created_at, metadata, touched) VALUES (?, ?, ?, {newest})",
            (session_id, created_at, dumps_json(metadata)),
        )
        key = int(cursor.lastrowid or 0)
        self._keep_summary(db, key, Head(start))
        return key

    def _insert(
        self, db: sqlite3.Connection, key: int, head: Head, events: Sequence[Event]
    ) -> tuple[list[Event], Head]:
        stamped = stamp_events(events, first_seq=head.last_seq + 1, now=self._clock.now())
        return stamped, self._write(db, key, head, stamped)

    def _write(self, db: sqlite3.Connection, key: int, head: Head, events: Sequence[Event]) -> Head:
        """Insert numbered events behind `head`, and keep the summary where they change more than its counters."""
        rows, updated = [], head.updated
        for seq, event in enumerate(events, start=head.last_seq + 1):
            updated = time_after(updated, event.ts)
            rows.append((_place(key, seq), updated, dumps_stored(event)))
        db.executemany(_INSERT, rows)
        db.execute(_TOUCH, (key,))
        head = head.after(events)
        if any(moves_summary(event) for event in events):
            self._keep_summary(db, key, head)
        return head

    def _keep_summary(self, db: sqlite3.Connection, key: int, head: Head) -> None:
        summary = head.summary
        db.execute(
            "UPDATE sessions SET summary = ?, cwd = ?, parent = ?, is_child = ? WHERE key = ?",
            (head.to_json(), dumps_json(summary.cwd), dumps_json(summary.parent), summary.is_child, key),
        )

    def _key(self, db: sqlite3.Connection, session_id: str) -> int:
        row = db.execute("SELECT key FROM sessions WHERE id = ?", (session_id,)).fetchone()
        if row is None:
            raise SessionNotFoundError(session_id, str(self.path))
        return int(row[0])

    def _head(self, db: sqlite3.Connection, session_id: str) -> Head:
        row = db.execute(f"{_ROW} WHERE id = ?", (session_id,)).fetchone()
        if row is None:
            raise SessionNotFoundError(session_id, str(self.path))
        return read_head(*row)

    def _start(self, db: sqlite3.Connection, session_id: str) -> SessionSummary:
        """What the session's summary begins with."""
        command = "SELECT created_at, metadata FROM sessions WHERE key = ?"
        created_at, metadata = db.execute(command, (self._key(db, session_id),)).fetchone()
        return start_summary(session_id, created_at, loads_json(metadata))

    def _refold(self, session_id: str) -> SessionSummary:
        """Fold a stale row anew, and keep it if nobody wrote meanwhile."""
        folded = self.fold_summary(session_id)
        with self._transaction(session_id) as db:
            if self._head(db, session_id).last_seq == folded.events:
                self._keep_summary(db, self._key(db, session_id), Head(folded))
        return folded

    def _shown(self, head: Head) -> SessionSummary:
        return head.summary if head.is_kept else self._row(head.summary.id)

    def _index_new_events(self) -> None:
        with self._reading(None) as db:
            behind = db.execute(_BEHIND).fetchall()
        for key, session_id, indexed_seq in behind:
            # A damaged log hides what it holds, not what others hold; checking it is another command.
            with suppress(LogCorruptError):
                self._index_session(key, session_id, indexed_seq)

    def _index_session(self, key: int, session_id: str, indexed_seq: int) -> None:
        events = self.iter_events(session_id, after_seq=indexed_seq)
        # One transaction per page: nobody who writes meanwhile waits long.
        while batch := list(islice(events, PAGE_EVENTS)):
            with self._transaction(session_id) as db:
                _index_events(db, key, batch)

    # --- the writer of a run -----------------------------------------------------------------------------------------

    def _refuse_if_held(self, db: sqlite3.Connection, session_id: str, key: int) -> None:
        epoch, held = db.execute("SELECT epoch, held FROM sessions WHERE key = ?", (key,)).fetchone()
        if held and (holder := _living_holder(self._lease_path(key, epoch))):
            raise SessionLockedError(session_id, holder)

    def _new_writer(self, db: sqlite3.Connection, session_id: str, key: int) -> SessionWriter:
        epoch, metadata = db.execute("SELECT epoch, metadata FROM sessions WHERE key = ?", (key,)).fetchone()
        with suppress(OSError):
            # What a dead holder left; a living one keeps its lock on the open file all the same.
            self._lease_path(key, epoch).unlink()
        lease = _Lease(self._lease_path(key, epoch + 1))
        try:
            db.execute("UPDATE sessions SET epoch = ?, held = 1 WHERE key = ?", (epoch + 1, key))
            return _SqliteWriter(self, session_id, key, epoch + 1, self._head(db, session_id), metadata, lease)
        except BaseException:
            lease.release()
            raise

    def _lease_path(self, key: int, epoch: int) -> Path:
        return self.path.with_name(f"{self.path.name}-leases") / f"{key}-{epoch}"

    def _append(self, writer: _SqliteWriter, events: Sequence[Event]) -> tuple[list[Event], Head]:
        with self._transaction(writer.session_id, durable=self._is_durable(events)) as db:
            epoch, last_seq, metadata = db.execute(_POSITION, (writer.key,)).fetchone() or (0, 0, "")
            if epoch != writer.epoch:
                raise LeaseLostError(writer.session_id, writer.last_seq, last_seq)
            if last_seq != writer.last_seq:
                raise ConcurrencyError(writer.session_id, writer.last_seq, last_seq)
            head = writer.head
            if metadata != writer.metadata:
                # Somebody changed what the summary begins with, and kept another one.
                head, writer.metadata = self._head(db, writer.session_id), metadata
            return self._insert(db, writer.key, head, events)

    def _append_one(self, writer: _SqliteWriter, event: Event, updated: float) -> bool:
        """Append a stamped event that changes nothing of the session's row, in one statement; False: nothing is stored.

        Most events of a run are like this: its row is the newest already, and only a counter of its summary moves.
        """
        values = (_place(writer.key, event.seq or 0), updated, dumps_stored(event), writer.key, writer.epoch)
        durable = self._is_durable((event,))
        with self._lock:
            # The writer has made sure that this is no child of the process that connected.
            db = self._connected or self._connection()
            try:
                self._set_synchronous(db, durable)
                return db.execute(_INSERT_ONE, values).rowcount == 1
            except db.Error:
                # The long way meets the same trouble again and says what it is.
                return False

    def _release(self, writer: _SqliteWriter) -> None:
        # A database that fails now still knows from the lease file that nobody holds the session.
        with suppress(StorageError), self._transaction(writer.session_id) as db:
            db.execute("UPDATE sessions SET held = 0 WHERE key = ? AND epoch = ?", (writer.key, writer.epoch))
            writer.lease.release()
        writer.lease.release()

    # --- the connection ----------------------------------------------------------------------------------------------

    def _is_durable(self, events: Sequence[Event]) -> bool:
        return self.durability == "barrier" and any(is_barrier(event) for event in events)

    def _page(self, session_id: str, key: int, after_seq: int, size: int) -> list[tuple[int, str]]:
        command = "SELECT place & 4294967295, data FROM events WHERE place > ? AND place < ? ORDER BY place LIMIT ?"
        with self._reading(session_id) as db:
            return db.execute(command, (_place(key, after_seq), _place(key + 1, 0), size)).fetchall()

    @contextmanager
    def _reading(self, session_id: str | None) -> Iterator[sqlite3.Connection]:
        with self._lock, _translated(session_id, self.path):
            yield self._connection()

    @contextmanager
    def _transaction(self, session_id: str | None, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        with self._reading(session_id) as db:
            self._set_synchronous(db, durable)
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                # SQLite has ended the transaction by itself after some errors.
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise

    def _set_synchronous(self, db: sqlite3.Connection, durable: bool) -> None:
        level = "FULL" if durable or self.durability == "fsync" else "NORMAL"
        if level != self._synchronous:
            db.execute(f"PRAGMA synchronous = {level}")
            self._synchronous = level

    def _connection(self) -> sqlite3.Connection:
        # A connection must not cross a fork: the child opens its own and leaves its parent's alone.
        if self._connected is None or self._pid != os.getpid():
            self._connected, self._pid, self._synchronous = self._connect(), os.getpid(), ""
        return self._connected

    def _connect(self) -> sqlite3.Connection:
        import sqlite3

        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Sessions are nobody else's business; SQLite gives the files beside it the same permissions.
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | BINARY, 0o600))
        db = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            _use_wal(db)
            db.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
            db.execute("PRAGMA foreign_keys = ON")
            migrate(db)
        except BaseException:
            db.close()
            raise
        return db


class _SqliteWriter(SessionWriter):
    """Knows where its log stands, which the fence in each append proves to be right."""

    def __init__(
        self,
        store: SqliteSessionStore,
        session_id: str,
        key: int,
        epoch: int,
        head: Head,
        metadata: str,
        lease: _Lease,
    ) -> None:
        self.session_id = session_id
        self.epoch = epoch
        self.key = key
        self.metadata = metadata
        self.lease = lease
        self._store = store
        self._pid = os.getpid()
        self._head = head
        self._last_seq, self._updated = head.last_seq, head.updated

    @property
    def last_seq(self) -> int:
        return self._last_seq

    @property
    def head(self) -> Head:
        """Where the log stands. Most events only count, so the counters go ahead of the rest of it."""
        if self._head.last_seq != self._last_seq:
            self._head = self._head.counted(self._last_seq, self._updated)
        return self._head

    def waits_for_disk(self, events: Sequence[Event]) -> bool:
        # All sessions of the file share one connection: an append waits for whatever the one before it waits for.
        return self._store.durability != "flush"

    def append(self, events: Sequence[Event]) -> list[Event]:
        if not self.lease.is_held or self._pid != os.getpid():
            raise StorageError("this writer is closed: open the session again", session_id=self.session_id)
        if len(events) == 1 and self._last_seq and not moves_summary(events[0]):
            now = self._store._clock.now()
            event = stamp_event(events[0], self._last_seq + 1, now)
            updated = time_after(self._updated, now)
            if self._store._append_one(self, event, updated):
                self._last_seq, self._updated = self._last_seq + 1, updated
                return [event]
        stored, self._head = self._store._append(self, events)
        self._last_seq, self._updated = self._head.last_seq, self._head.updated
        return stored

    def close(self) -> None:
        if self.lease.is_held and self._pid == os.getpid():
            self._store._release(self)


class _Lease:
    """A locked file that says who writes a session; the kernel unlocks it when the process dies."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | BINARY, 0o600)
        self.is_held = try_lock(self._fd)
        os.write(self._fd, f"process {os.getpid()}".encode())

    def release(self) -> None:
        """Unlock and remove the file. Releasing twice is allowed."""
        if self.is_held:
            self.is_held = False
            with suppress(OSError):
                self._path.unlink()
            os.close(self._fd)


def _living_holder(path: Path) -> str | None:
    """Who holds a lease, None when nobody living does."""
    try:
        fd = os.open(path, os.O_RDWR | BINARY)
    except FileNotFoundError:
        return None
    try:
        return None if try_lock(fd) else os.read(fd, 100).decode("ascii", "replace")
    finally:
        os.close(fd)


def migrate(db: sqlite3.Connection) -> None:
    """Bring the database to the newest schema. Raises `StorageError` for one that a newer version of this package wrote."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version == len(MIGRATIONS):
        return
    db.execute("BEGIN IMMEDIATE")
    with db:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version > len(MIGRATIONS):
            raise StorageError(
                f"the database has schema version {version}, this package knows up to {len(MIGRATIONS)}: "
                "upgrade openagentic-sdk, or choose another file"
            )
        for step in MIGRATIONS[version:]:
            for command in step:
                db.execute(command)
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


def _use_wal(db: sqlite3.Connection) -> None:
    """Switch to the write-ahead log. SQLite does not wait for others here, whatever its time limit says."""
    import sqlite3

    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _has_index(db: sqlite3.Connection) -> bool:
    return db.execute("SELECT 1 FROM sqlite_master WHERE name IN ('found_text', 'found_words')").fetchone() is not None


def _make_index(db: sqlite3.Connection) -> bool:
    """Make the tables of the full text index, a cache that may be dropped. False when SQLite was built without it."""
    if not db.execute("SELECT 1 FROM pragma_module_list WHERE name = 'fts5'").fetchone():
        return False
    for command in _INDEX:
        db.execute(command)
    return True


def _index_events(db: sqlite3.Connection, key: int, events: Sequence[Event]) -> None:
    texts = [(_place(key, event.seq or 0), " ".join(search_words(event_text(event)))) for event in events]
    # Somebody else may have indexed the same page just now.
    db.executemany("INSERT OR REPLACE INTO found_words (rowid, text) VALUES (?, ?)", [row for row in texts if row[1]])
    db.execute("INSERT OR REPLACE INTO words_upto (session, seq) VALUES (?, ?)", (key, events[-1].seq))


def _copy_rows(db: sqlite3.Connection, source: int, target: int, at_seq: int) -> None:
    db.execute(
        "INSERT INTO events (place, updated, data) "
        "SELECT place + ?, updated, data FROM events WHERE place > ? AND place <= ?",
        (_place(target - source, 0), _place(source, 0), min(_place(source, at_seq), _place(source + 1, 0) - 1)),
    )
    db.execute(
        "INSERT INTO blobs (session, sha256, data) SELECT ?, sha256, data FROM blobs WHERE session = ?",
        (target, source),
    )


def _place(key: int, seq: int) -> int:
    """Where an event of a session stands. No log has as many events as would reach into the next session's place."""
    return (key << SEQ_BITS) + seq


def _insert_blob(db: sqlite3.Connection, key: int, data: bytes) -> str:
    digest = hashlib.sha256(data).hexdigest()
    db.execute("INSERT OR IGNORE INTO blobs (session, sha256, data) VALUES (?, ?, ?)", (key, digest, data))
    return digest


def _batches(events: Iterable[Event], size: int) -> Iterator[list[Event]]:
    remaining = iter(events)
    while batch := list(islice(remaining, size)):
        yield batch


@contextmanager
def _translated(session_id: str | None, path: Path) -> Iterator[None]:
    """SQLite's errors, and those of the files beside it, as ours."""
    import sqlite3

    try:
        yield
    except UnicodeEncodeError:
        # Only an id reaches SQLite as it came, and none that holds a lone surrogate was ever created.
        raise SessionNotFoundError(str(session_id), str(path)) from None
    except sqlite3.Error as error:
        raise StorageError(f"SQLite refused ({path}): {error}", session_id=session_id) from error
    except OSError as error:
        raise StorageError(f"{path} cannot be used: {error}", session_id=session_id) from error
