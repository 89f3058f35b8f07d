"""Sessions in a Postgres database, shared by many hosts. Needs psycopg 3: the extra `postgres`.

An append is one statement: it moves the session's row only for the epoch of its writer and the `seq` that it expects, and
inserts the events only if it did. A writer holds an advisory lock on a connection of its own, so the server knows when it
died. When the connection breaks, nobody knows whether the last statement took effect: the writer connects again and compares
what stands in the log with what it sent. Events are kept as ASCII text, so U+0000 and lone surrogates survive.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from ..clock import Clock, SystemClock
from ..errors import (
    ConcurrencyError,
    LeaseLostError,
    OptionsError,
    SessionExistsError,
    SessionLockedError,
    SessionNotFoundError,
    StorageError,
)
from ..events import Event
from ..frozen import frozen
from ..serialization import dumps_json
from .base import (
    SessionWriter,
    check_sequence,
    check_session_id,
    dumps_stored,
    stamp_events,
)
from .folds.summary import SessionSummary, start_summary
from .stores.database import DatabaseStore, Position, changed_metadata
from .stores.log_state import Head, copied_head, read_head
from .stores.postgres_schema import LOCK_SPACE, migrate

if TYPE_CHECKING:
    from psycopg import Connection

    Database = Connection[tuple[Any, ...]]

T = TypeVar("T")
PAGE_EVENTS = 500
RETRY_S = 0.1
GRACE_S = 0.2
CHANNEL = "openagentic_events"
_ROW = "SELECT key, epoch, id, created_at, metadata, summary, last_seq, updated FROM openagentic_sessions"
_APPEND = f"""
    WITH moved AS (
        UPDATE openagentic_sessions
        SET last_seq = %(last_seq)s, updated = %(updated)s, touched = nextval('openagentic_touches'),
            summary = %(summary)s, cwd = %(cwd)s, parent = %(parent)s, is_child = %(is_child)s
        WHERE key = %(key)s AND epoch = %(epoch)s AND last_seq = %(expected_seq)s
        RETURNING key
    ), added AS (
        INSERT INTO openagentic_events (session, seq, updated, data)
        SELECT moved.key, row.seq, row.updated, row.data
        FROM moved, unnest(%(seqs)s::bigint[], %(times)s::float8[], %(lines)s::text[]) AS row (seq, updated, data)
    )
    SELECT key, pg_notify('{CHANNEL}', key::text) FROM moved
"""
_HOLDERS = f"""
    SELECT pid FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 2 AND granted AND objid = %s
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND classid::bigint = {LOCK_SPACE}::bigint & 4294967295
"""


def _driver() -> ModuleType:
    try:
        import psycopg
    except ImportError:
        raise OptionsError(
            "sessions in Postgres need the driver psycopg: pip install 'openagentic-sdk[postgres]'"
        ) from None
    return psycopg


class PostgresSessionStore(DatabaseStore):
    """Sessions in the database that `url` names (`postgresql://user@host/database`), in tables named `openagentic_*`.

    The tables are made when the store is first used. Each append is on the server's disk before it returns, unless the
    server is set up otherwise. While the server restarts, calls wait for it up to `patience_s` seconds. Needs a direct
    connection, or a pooler that leaves sessions alone: a lock belongs to a connection.
    """

    is_remote = True
    durability = "fsync"

    def __init__(self, url: str, *, patience_s: float = 30.0, clock: Clock | None = None) -> None:
        _driver()
        self._url = url
        self._patience_s = patience_s
        self._clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._link = _Link(self._connect_and_migrate, patience_s)

    # --- the core ----------------------------------------------------------------------------------------------------

    def open_writer(self, session_id: str) -> SessionWriter:
        def acquire(db: Database, key: int) -> None:
            if not _soon(lambda: _try_lock(db, key)):
                raise SessionLockedError(session_id, "a run on another connection")

        return self._new_writer(session_id, acquire)

    def take_over(self, session_id: str) -> SessionWriter:
        return self._new_writer(session_id, lambda db, key: self._end_holders(db, session_id, key))

    def append_events(
        self, session_id: str, events: Sequence[Event], *, expected_seq: int | None = None
    ) -> list[Event]:
        while True:
            at = self._position(session_id)
            if not self._is_free(session_id, at.key):
                raise SessionLockedError(session_id, "a run on another connection")
            if expected_seq is not None and at.head.last_seq != expected_seq:
                raise ConcurrencyError(session_id, expected_seq, at.head.last_seq)
            try:
                with self._lock:
                    return self._append(self._link, session_id, at, events)[0]
            except ConcurrencyError:
                # Somebody was faster. Without an expectation the next place is as good; with one, the check above refuses.
                continue

    def update_metadata(self, session_id: str, changes: Mapping[str, Any]) -> None:
        with self._transaction(session_id) as db:
            command = "SELECT metadata FROM openagentic_sessions WHERE id = %s FOR UPDATE"
            row = db.execute(command, (session_id,)).fetchone()
            if row is None:
                raise SessionNotFoundError(session_id, self._where)
            kept = changed_metadata(row[0], changes)
            db.execute("UPDATE openagentic_sessions SET metadata = %s WHERE id = %s", (kept, session_id))

    def list_sessions(self) -> list[str]:
        command = "SELECT id FROM openagentic_sessions ORDER BY touched DESC"
        return self._read(None, lambda db: [row[0] for row in db.execute(command)])

    def delete_session(self, session_id: str) -> None:
        with self._transaction(session_id) as db:
            key = self._position_in(db, session_id).key
            if not _try_lock(db, key, "xact_"):
                raise SessionLockedError(session_id, "a run on another connection")
            db.execute("DELETE FROM openagentic_sessions WHERE key = %s", (key,))

    def put_blob(self, session_id: str, data: bytes) -> str:
        with self._transaction(session_id) as db:
            return _insert_blob(db, self._position_in(db, session_id).key, data)

    def read_blob(self, session_id: str, sha256: str) -> bytes:
        key = self._position(session_id).key
        command = "SELECT data FROM openagentic_blobs WHERE session = %s AND sha256 = %s"
        row = self._read(session_id, lambda db: db.execute(command, (key, sha256)).fetchone())
        if row is None or hashlib.sha256(row[0]).hexdigest() != sha256:
            raise StorageError(f"session {session_id!r} has no intact blob {sha256}", session_id=session_id)
        return bytes(row[0])

    def close(self) -> None:
        with self._lock:
            self._link.drop()

    # --- what a database does better ---------------------------------------------------------------------------------

    def list_blobs(self, session_id: str) -> list[str]:
        key = self._position(session_id).key
        command = 'SELECT sha256 FROM openagentic_blobs WHERE session = %s ORDER BY sha256 COLLATE "C"'
        return self._read(session_id, lambda db: [row[0] for row in db.execute(command, (key,))])

    def list_children(self, session_id: str) -> list[str]:
        command = "SELECT id FROM openagentic_sessions WHERE parent = %s AND is_child ORDER BY key"
        return self._read(session_id, lambda db: [row[0] for row in db.execute(command, (_text_key(session_id),))])

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
        with self._transaction(session_id) as db:
            at = self._add(db, session_id, created_at, dict(metadata or {}))
            remaining = check_sequence(events)
            while batch := list(islice(remaining, PAGE_EVENTS)):
                at = _send(db, session_id, at, _Batch.of(at.head, batch))
            for data in blobs:
                _insert_blob(db, at.key, data)
        return session_id

    def copy_session(
        self, source_id: str, target_id: str, *, at_seq: int, tail: Sequence[Event], metadata: Mapping[str, Any]
    ) -> str:
        with self._transaction(target_id) as db:
            source = self._position_in(db, source_id)
            target = self._add(db, target_id, self._clock.now(), dict(metadata))
            db.execute(
                "INSERT INTO openagentic_events (session, seq, updated, data) "
                "SELECT %s, seq, updated, data FROM openagentic_events WHERE session = %s AND seq <= %s",
                (target.key, source.key, at_seq),
            )
            db.execute(
                "INSERT INTO openagentic_blobs (session, sha256, data) "
                "SELECT %s, sha256, data FROM openagentic_blobs WHERE session = %s",
                (target.key, source.key),
            )
            command = "SELECT updated FROM openagentic_events WHERE session = %s AND seq = %s"
            updated = db.execute(command, (target.key, at_seq)).fetchone()
            head = copied_head(source.head, target.head.summary, at_seq, updated[0] if updated else None)
            _keep_head(db, target.key, head)
            stamped = stamp_events(tail, first_seq=at_seq + 1, now=self._clock.now())
            _send(db, target_id, replace(target, head=head), _Batch.of(head, stamped))
        return target_id

    def wait_for_events(self, session_id: str, *, after_seq: int, timeout_s: float) -> bool:
        self._position(session_id)
        deadline = time.monotonic() + timeout_s
        with _translated(session_id, self._where), _connected(self._url) as db:
            db.execute(f"LISTEN {CHANNEL}")
            while self.last_seq(session_id) <= after_seq:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return False
                # News of another session only makes us look once too often.
                for _ in db.notifies(timeout=left_s, stop_after=1):
                    pass
        return True

    # --- inside a transaction ----------------------------------------------------------------------------------------

    def _add(self, db: Database, session_id: str, created_at: float, metadata: dict[str, Any]) -> Position:
        start = start_summary(check_session_id(session_id), created_at, metadata)
        head = Head(start)
        row = db.execute(
            "INSERT INTO openagentic_sessions (id, created_at, metadata, updated, cwd, parent, is_child, summary) "
            "VALUES (%s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT (id) DO NOTHING RETURNING key",
            (session_id, created_at, dumps_json(metadata), start.updated, *_columns(head).values()),
        ).fetchone()
        if row is None:
            raise SessionExistsError(session_id)
        return Position(row[0], 0, created_at, dumps_json(metadata), head)

    def _position(self, session_id: str) -> Position:
        return self._read(session_id, lambda db: self._position_in(db, session_id))

    def _position_in(self, db: Database, session_id: str) -> Position:
        row = db.execute(f"{_ROW} WHERE id = %s", (session_id,)).fetchone()
        if row is None:
            raise SessionNotFoundError(session_id, self._where)
        return Position(row[0], row[1], row[3], row[4], read_head(*row[2:]))

    def _heads(self, *, cwd: str | None, include_children: bool, limit: int | None, offset: int) -> Iterator[Head]:
        conditions = [] if include_children else ["NOT is_child"]
        conditions += [] if cwd is None else ["cwd = %(cwd)s"]
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        values = {"cwd": _text_key(cwd), "limit": limit, "offset": offset}
        command = f"{_ROW}{where} ORDER BY touched DESC LIMIT %(limit)s OFFSET %(offset)s"
        return (read_head(*row[2:]) for row in self._read(None, lambda db: db.execute(command, values).fetchall()))

    def _is_free(self, session_id: str, key: int) -> bool:
        return _soon(lambda: self._read(session_id, lambda db: db.execute(_HOLDERS, (key,)).fetchone() is None))

    def _event_rows(self, at: Position, after_seq: int, size: int) -> Sequence[tuple[int, str]]:
        return self._read(at.head.summary.id, lambda db: _event_rows(db, at.key, after_seq, size))

    def _keep_folded(self, session_id: str, folded: SessionSummary) -> None:
        with self._transaction(session_id) as db:
            at = self._position_in(db, session_id)
            if at.head.last_seq == folded.events:
                _keep_head(db, at.key, Head(folded), expected_seq=folded.events)

    # --- appending ---------------------------------------------------------------------------------------------------

    def _append(
        self,
        link: _Link,
        session_id: str,
        at: Position,
        events: Sequence[Event],
        attach: Callable[[Database], None] = lambda db: None,
    ) -> tuple[list[Event], Position]:
        """Send the events behind `at`; `attach` makes a new connection a writer's again after the old one broke."""
        stamped = stamp_events(events, first_seq=at.head.last_seq + 1, now=self._clock.now())
        batch = _Batch.of(at.head, stamped)
        attempts = 0

        def send(db: Database) -> Position:
            nonlocal attempts
            attempts += 1
            if attempts > 1:
                return self._send_again(db, session_id, at, batch, attach)
            return _send(db, session_id, at, batch)

        with _translated(session_id, self._where):
            return stamped, link.call(send)

    def _send_again(
        self, db: Database, session_id: str, at: Position, batch: _Batch, attach: Callable[[Database], None]
    ) -> Position:
        """Send a batch whose answer was lost. Whatever became of the session since, what is stored is stored."""
        after = replace(at, head=batch.head)
        if _is_stored(db, at.key, batch):
            with suppress(LeaseLostError):
                attach(db)
            return after
        attach(db)
        try:
            return _send(db, session_id, at, batch)
        except ConcurrencyError:
            # The earlier attempt may have got through only now.
            if _is_stored(db, at.key, batch):
                return after
            raise

    def _new_writer(self, session_id: str, acquire: Callable[[Database, int], None]) -> SessionWriter:
        key = self._position(session_id).key
        link = _Link(lambda: _connected(self._url), self._patience_s, was_connected=True)

        def begin(db: Database) -> Position:
            acquire(db, key)
            db.execute("UPDATE openagentic_sessions SET epoch = epoch + 1 WHERE key = %s", (key,))
            return self._position_in(db, session_id)

        try:
            with _translated(session_id, self._where):
                return _PostgresWriter(self, session_id, link.call(begin), link)
        except BaseException:
            link.drop()
            raise

    def _end_holders(self, db: Database, session_id: str, key: int) -> None:
        deadline = time.monotonic() + self._patience_s
        while not _try_lock(db, key):
            for (pid,) in db.execute(_HOLDERS, (key,)).fetchall():
                db.execute("SELECT pg_terminate_backend(%s)", (pid,))
            if time.monotonic() > deadline:
                raise SessionLockedError(session_id, "a connection that the server does not end")
            time.sleep(RETRY_S / 10)

    # --- connections -------------------------------------------------------------------------------------------------

    @property
    def _where(self) -> str:
        parts = urlsplit(self._url)
        return f"{parts.hostname or 'the local server'}{parts.path}"

    def _connect_and_migrate(self) -> Database:
        db = _connected(self._url)
        try:
            migrate(db)
        except BaseException:
            db.close()
            raise
        return db

    def _read(self, session_id: str | None, work: Callable[[Database], T]) -> T:
        with self._lock, _translated(session_id, self._where):
            return self._link.call(work)

    @contextmanager
    def _transaction(self, session_id: str) -> Iterator[Database]:
        with self._lock, _translated(session_id, self._where):
            # A connection that broke while nobody used it is replaced first: nothing was sent yet.
            self._link.call(lambda db: db.execute("SELECT 1"))
            db = self._link.database()
            with db.transaction():
                yield db


class _Link:
    """A connection that is made when it is needed, and made anew while the server restarts."""

    def __init__(self, connect: Callable[[], Database], patience_s: float, *, was_connected: bool = False) -> None:
        self._connect = connect
        self._patience_s = patience_s
        self._database: Database | None = None
        self._was_connected = was_connected

    @property
    def is_connected(self) -> bool:
        return self._database is not None and not self._database.closed

    def database(self) -> Database:
        if self._database is None or self._database.closed:
            self._database = self._connect()
            self._was_connected = True
        return self._database

    def call(self, work: Callable[[Database], T]) -> T:
        """Do the work, again from its start when the connection breaks. A first connection that fails is not tried again."""
        psycopg = _driver()
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                return work(self.database())
            except (psycopg.OperationalError, psycopg.InterfaceError):
                if not self._was_connected or self.is_connected or time.monotonic() > deadline:
                    raise
            self.drop()
            time.sleep(RETRY_S)

    def drop(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None


@frozen
class _Batch:
    """Events as they are sent, and the head behind them."""

    expected_seq: int
    seqs: list[int]
    times: list[float]
    lines: list[str]
    head: Head

    @classmethod
    def of(cls, head: Head, stamped: Sequence[Event]) -> _Batch:
        expected_seq, times = head.last_seq, []
        lines = [dumps_stored(event) for event in stamped]
        for event in stamped:
            head = head.after((event,))
            times.append(head.summary.updated)
        seqs = list(range(expected_seq + 1, expected_seq + 1 + len(lines)))
        return cls(expected_seq, seqs, times, lines, head)


class _PostgresWriter(SessionWriter):
    def __init__(self, store: PostgresSessionStore, session_id: str, at: Position, link: _Link) -> None:
        self.session_id = session_id
        self.epoch = at.epoch
        self._store = store
        self._at = at
        self._link = link
        self._open = True

    @property
    def last_seq(self) -> int:
        return self._at.head.last_seq

    def append(self, events: Sequence[Event]) -> list[Event]:
        if not self._open:
            raise StorageError("this writer is closed: open the session again", session_id=self.session_id)
        stored, self._at = self._store._append(self._link, self.session_id, self._at, events, self._attach)
        return stored

    def close(self) -> None:
        self._open = False
        # The server may notice a closed connection late; one that broke has lost its lock already.
        with suppress(_driver().Error):
            if self._link.is_connected:
                self._link.database().execute("SELECT pg_advisory_unlock_all()")
        self._link.drop()

    def _attach(self, db: Database) -> None:
        """Hold the lock on a new connection too; the right to write is kept only if nobody took the session over."""
        row = db.execute(_EPOCH, (self._at.key,)).fetchone()
        if row is None or row[0] != self.epoch:
            raise LeaseLostError(self.session_id, self.last_seq, row[1] if row else 0)
        if not _soon(lambda: _try_lock(db, self._at.key)):
            # The server has not noticed yet that the old connection broke: begin again on another one.
            db.close()
            raise _driver().OperationalError("the server still holds the lock for a connection that broke")


_EPOCH = "SELECT epoch, last_seq FROM openagentic_sessions WHERE key = %s"


def _connected(url: str) -> Database:
    db: Database = _driver().connect(url, autocommit=True)
    return db


def _soon(check: Callable[[], bool]) -> bool:
    """Whether it becomes true within the moment that a server needs to notice that a process died."""
    deadline = time.monotonic() + GRACE_S
    while not check():
        if time.monotonic() > deadline:
            return False
        time.sleep(GRACE_S / 20)
    return True


def _try_lock(db: Database, key: int, kind: str = "") -> bool:
    row = db.execute(f"SELECT pg_try_advisory_{kind}lock({LOCK_SPACE}, %s)", (key,)).fetchone()
    return bool(row and row[0])


def _text_key(text: str | None) -> str:
    return hashlib.sha256(dumps_json(text).encode("ascii")).hexdigest()


def _columns(head: Head) -> dict[str, Any]:
    """What of a head stands in columns of its own, besides the counters."""
    summary = head.summary
    return {
        "cwd": _text_key(summary.cwd),
        "parent": _text_key(summary.parent),
        "is_child": summary.is_child,
        "summary": head.to_json(),
    }


def _keep_head(db: Database, key: int, head: Head, *, expected_seq: int = 0) -> None:
    db.execute(
        "UPDATE openagentic_sessions SET last_seq = %(last_seq)s, updated = %(updated)s, cwd = %(cwd)s, "
        "parent = %(parent)s, is_child = %(is_child)s, summary = %(summary)s "
        "WHERE key = %(key)s AND last_seq = %(expected_seq)s",
        {
            "key": key,
            "last_seq": head.last_seq,
            "updated": head.summary.updated,
            "expected_seq": expected_seq,
            **_columns(head),
        },
    )


def _send(db: Database, session_id: str, at: Position, batch: _Batch) -> Position:
    """Append the batch behind `at`, or raise why that cannot be."""
    values = {
        "key": at.key,
        "epoch": at.epoch,
        "expected_seq": batch.expected_seq,
        "last_seq": batch.head.last_seq,
        "updated": batch.head.summary.updated,
        "seqs": batch.seqs,
        "times": batch.times,
        "lines": batch.lines,
        **_columns(batch.head),
    }
    if db.execute(_APPEND, values).fetchone() is not None:
        return replace(at, head=batch.head)
    epoch, last_seq = db.execute(_EPOCH, (at.key,)).fetchone() or (0, 0)
    if epoch != at.epoch:
        raise LeaseLostError(session_id, batch.expected_seq, last_seq)
    raise ConcurrencyError(session_id, batch.expected_seq, last_seq)


def _is_stored(db: Database, key: int, batch: _Batch) -> bool:
    """Whether a batch whose answer was lost took effect: the log holds it, word for word, at its place."""
    rows = _event_rows(db, key, batch.expected_seq, len(batch.lines))
    return rows == list(zip(batch.seqs, batch.lines, strict=True))


def _event_rows(db: Database, key: int, after_seq: int, size: int) -> list[tuple[int, str]]:
    command = "SELECT seq, data FROM openagentic_events WHERE session = %s AND seq > %s ORDER BY seq LIMIT %s"
    return [(row[0], row[1]) for row in db.execute(command, (key, after_seq, size)).fetchall()]


def _insert_blob(db: Database, key: int, data: bytes) -> str:
    digest = hashlib.sha256(data).hexdigest()
    command = "INSERT INTO openagentic_blobs (session, sha256, data) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
    db.execute(command, (key, digest, data))
    return digest


@contextmanager
def _translated(session_id: str | None, where: str = "Postgres") -> Iterator[None]:
    """The driver's errors as ours."""
    psycopg = _driver()
    try:
        yield
    except UnicodeEncodeError as error:
        # Everything but ids is sent as ASCII, and no session has an id with a lone surrogate.
        raise SessionNotFoundError(str(session_id), where) from error
    except psycopg.Error as error:
        if "\0" in (session_id or ""):
            raise SessionNotFoundError(str(session_id), where) from error
        raise StorageError(f"Postgres refused ({where}): {error}", session_id=session_id) from error
