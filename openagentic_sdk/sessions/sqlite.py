"""Sessions in one SQLite file: thousands of them, shared by threads and processes of one machine.

An append is one transaction whose insert only succeeds for its writer's epoch and the expected `seq`; a writer that hung
while another took over its session changes nothing. A lock on a file beside the database shows whether a holder is alive:
the operating system releases it with the process.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import (
    ConcurrencyError,
    LeaseLostError,
    SessionExistsError,
    SessionLockedError,
    SessionNotFoundError,
    StorageError,
)
from ..events import Event
from ..ground.checks import check_settings
from ..ground.checks import file as file_check
from ..ground.clock import Clock
from ..ground.disk import remove_tree
from ..ground.garbage import when_collected
from ..serialization import dumps_json, encode_events, loads_json
from .arguments import check_digest, find_possible
from .base import (
    Metadata,
    Place,
    When,
    check_copied_part,
    check_session_id,
    dumps_all_stored,
    read_clock,
    stamp_events,
)
from .core import SessionWriter, check_expected_seq
from .folds.summary import SessionSummary, moves_summary, start_summary, time_after
from .folds.view import KeptView
from .log.line import Durability, check_durability, dumps_stored, is_barrier, stamp_event
from .log.lock import LeaseFile, living_holder
from .stores.database import SessionRow, changed_metadata, intact_blob
from .stores.log_state import LogHead, copied_head, read_head
from .stores.per_process import check_open, check_own
from .stores.sqlite.clock import SteadyClock
from .stores.sqlite.file import MEMORY, SqliteFile
from .stores.sqlite.listed import ListedSqlite
from .stores.sqlite.schema import LAST_EVENT, LAST_SEQ, is_usable, place_of
from .stores.sqlite.search import SearchFile
from .stores.sqlite.tables import SqliteTables
from .stores.tables import Tables, TableStore

if TYPE_CHECKING:
    import sqlite3

PAGE_EVENTS = 256
_UPDATED = LAST_EVENT.format(column="updated")
_ROW = f"SELECT key, epoch, held, touched, id, created_at, metadata, summary, {LAST_SEQ}, {_UPDATED} FROM sessions"
_POSITION = f"SELECT epoch, coalesce({LAST_SEQ}, 0), metadata FROM sessions WHERE key = ?"
_INSERT = "INSERT INTO events (place, updated, data) VALUES (?, ?, ?)"
# Only for the writer of this epoch, and only while its session is the newest: then its row need not change. Otherwise
# `updated` is null, which the table refuses. With INSERT ... SELECT, SQLite would copy the row to a temporary table first.
_INSERT_ONE = (
    "INSERT OR IGNORE INTO events (place, updated, data) VALUES (?, CASE (SELECT epoch FROM sessions "
    "WHERE key = ? AND touched = (SELECT max(touched) FROM sessions)) WHEN ? THEN ? END, ?)"
)
_TOUCH = (
    "UPDATE sessions SET touched = 1 + (SELECT max(touched) FROM sessions) "
    "WHERE key = ? AND touched < (SELECT max(touched) FROM sessions)"
)


class SqliteSessionStore(TableStore, ListedSqlite):
    """A store of sessions in the SQLite file at `path`, which is created with its folder on first use.

    The path `:memory:` is a database that ends with the store.

    `durability` is `flush` (survives the process), `barrier` (also on disk at each prompt, decision, effect and result) or
    `fsync` (every append).
    """

    page_events = PAGE_EVENTS

    def __init__(
        self, path: str | os.PathLike[str], *, durability: Durability = "barrier", clock: Clock | None = None
    ) -> None:
        check_settings({"path": path}, {"path": _database})
        self.path = Path(path).expanduser()
        self.durability: str = check_durability(durability)
        self._clock = read_clock(clock)
        self._beside: list[str] = []  # the temporary folder of the leases, for a database in memory
        if str(path) == MEMORY:
            self.path, self.durability = Path(MEMORY), "memory"
        else:
            self.place = "sqlite", os.path.realpath(self.path)
        self._index = SearchFile(self.path)
        self._file = SqliteFile(self.path, always_syncs=durability == "fsync", clock=SteadyClock(self._clock.now))
        # Callers do not close a store that was created from its name.
        when_collected(self, _close, self._file, self._beside)

    # --- the core ----------------------------------------------------------------------------------------------------

    def open_writer(self, session_id: str) -> SessionWriter:
        return self._become_writer(session_id, self._refuse_if_held)

    def take_over(self, session_id: str) -> SessionWriter:
        return self._become_writer(session_id, lambda at: None)

    def _become_writer(self, session_id: str, check: Callable[[SessionRow], None]) -> SessionWriter:
        writer = None
        try:
            with self._file.transaction(session_id) as db:
                at = self._position_in(db, session_id)
                check(at)
                writer = self._new_writer(db, at)
            with suppress(OSError):
                # The file of a dead or replaced holder. Delete it only now, because others recognize the holder by it.
                self._lease_path(at.key, at.epoch).unlink()
            return writer
        except BaseException:
            # Also on Ctrl-C after the transaction, or nobody would release the lock of a writer that was not returned.
            if writer is not None:
                writer.lease.release()
            raise

    def append_events(
        self, session_id: str, events: Sequence[Event], *, expected_seq: int | None = None
    ) -> list[Event]:
        with self._file.transaction(session_id, durable=self._is_durable(events)) as db:
            at = self._position_in(db, session_id)
            self._refuse_if_held(at)
            check_expected_seq(session_id, expected_seq, at.head.last_seq)
            return self._insert(db, at.key, at.head, events)[0]

    def update_metadata(self, session_id: str, changes: Mapping[str, Any]) -> None:
        changed = 0
        with self._file.transaction(session_id) as db:
            at = self._position_in(db, session_id)
            metadata = changed_metadata(at.metadata, changes)
            db.execute("UPDATE sessions SET metadata = ? WHERE key = ?", (metadata, at.key))
            old, new = (
                start_summary(session_id, at.created_at, loads_json(metadata_json))
                for metadata_json in (at.metadata, metadata)
            )
            # Only some metadata is in the summary (cwd, parent, tenant); other changes leave the row of lists as it is.
            if new != old:
                self._keep_summary(db, at.key, LogHead(self.fold_summary(session_id)))
                changed = at.key
        # After the transaction: the index has a lock of its own, and must never be waited for while the store is
        # locked.
        if changed and not self._file.is_memory:
            self._index.unlist(changed)

    def list_sessions(self) -> list[str]:
        with self._file.reading() as db:
            return [row[0] for row in db.execute("SELECT id FROM sessions ORDER BY touched DESC")]

    def delete_session(self, session_id: str, *, expected_seq: int | None = None) -> None:
        self.refuse_kept(session_id)
        with self._file.transaction(session_id) as db:
            at = self._position_in(db, session_id)
            self._refuse_if_held(at)
            check_expected_seq(session_id, expected_seq, at.head.last_seq)
        if not self._file.is_memory:
            # Before the session is deleted, because the index needs its texts to forget them.
            self._index.forget(session_id)
        with self._file.transaction(session_id, durable=self.durability != "flush") as db:
            at = self._position_in(db, session_id)
            self._refuse_if_held(at)
            check_expected_seq(session_id, expected_seq, at.head.last_seq)
            db.execute("DELETE FROM sessions WHERE key = ?", (at.key,))

    def put_blob(self, session_id: str, data: bytes) -> str:
        with self._file.transaction(session_id, durable=self.durability != "flush") as db:
            return _insert_blob(db, self._position_in(db, session_id).key, data)

    def read_blob(self, session_id: str, sha256: str) -> bytes:
        check_digest(session_id, sha256)
        with self._file.reading(session_id) as db:
            key = self._position_in(db, session_id).key
            row = db.execute("SELECT data FROM blobs WHERE session = ? AND sha256 = ?", (key, sha256)).fetchone()
        return intact_blob(session_id, sha256, row and row[0])

    def keep_checkpoint(self, session_id: str, data: bytes) -> None:
        with self._file.transaction(session_id) as db:
            key = self._position_in(db, session_id).key
            db.execute("INSERT OR REPLACE INTO checkpoints (session, data) VALUES (?, ?)", (key, data))

    def read_checkpoint(self, session_id: str) -> bytes | None:
        with self._file.reading(session_id) as db:
            key = self._position_in(db, session_id).key
            row = db.execute("SELECT data FROM checkpoints WHERE session = ?", (key,)).fetchone()
        return bytes(row[0]) if row else None

    def tables(self) -> Tables:
        return SqliteTables(self._file)

    def close(self) -> None:
        _close(self._file, self._beside)

    # --- faster in a database ----------------------------------------------------------------------------------------

    def list_blobs(self, session_id: str) -> list[str]:
        with self._file.reading(session_id) as db:
            key = self._position_in(db, session_id).key
            return [row[0] for row in db.execute("SELECT sha256 FROM blobs WHERE session = ? ORDER BY 1", (key,))]

    def list_children(self, session_id: str) -> list[str]:
        with self._file.reading(session_id) as db:
            rows = db.execute(
                # The index of children is partial, and SQLite uses it only for a query that repeats its condition.
                "SELECT id FROM sessions WHERE parent = ? AND parent != 'null' AND is_child ORDER BY key",
                (dumps_json(session_id),),
            )
            return [row[0] for row in rows]

    def _import_events(
        self, session_id: str, created_at: When, metadata: Metadata, events: Iterator[Event], blobs: Iterator[bytes]
    ) -> None:
        created_at = self._clock.now() if created_at is None else created_at
        with self._file.transaction(session_id, durable=self.durability != "flush") as db:
            key, head = self._add(db, session_id, created_at, dict(metadata))
            while batch := list(islice(events, PAGE_EVENTS)):
                head = self._write(db, key, head, batch)
            for data in blobs:
                _insert_blob(db, key, data)

    def copy_session(
        self, source_id: str, target_id: str, *, at_seq: int, tail: Sequence[Event], metadata: Mapping[str, Any]
    ) -> str:
        with self._file.transaction(target_id, durable=self.durability != "flush") as db:
            source = self._position_in(db, source_id)
            check_copied_part(source_id, at_seq, source.head.last_seq)
            key, head = self._add(db, target_id, self._clock.now(), dict(metadata))
            db.execute(
                "INSERT INTO events (place, updated, data) "
                # A place is a session's key and a `seq` in one number, so adding a constant moves the events to another
                # session.
                "SELECT place + ?, updated, data FROM events WHERE place > ? AND place <= ?",
                (place_of(key - source.key, 0), place_of(source.key, 0), place_of(source.key, at_seq)),
            )
            db.execute(
                "INSERT INTO blobs (session, sha256, data) SELECT ?, sha256, data FROM blobs WHERE session = ?",
                (key, source.key),
            )
            updated = db.execute("SELECT updated FROM events WHERE place = ?", (place_of(key, at_seq),)).fetchone()
            head = copied_head(source.head, source.start, head.summary, at_seq, updated[0] if updated else None)
            self._keep_summary(db, key, head)
            self._insert(db, key, head, tail)
        return target_id

    # --- inside a transaction ----------------------------------------------------------------------------------------

    def _add(
        self, db: sqlite3.Connection, session_id: str, created_at: float, metadata: dict[str, Any]
    ) -> tuple[int, LogHead]:
        start = start_summary(check_session_id(session_id), created_at, metadata)
        if db.execute("SELECT 1 FROM sessions WHERE id = ?", (session_id,)).fetchone():
            raise SessionExistsError(session_id)
        # A counter instead of a time: clocks may stop or go back, and lists must keep their order.
        newest = "(SELECT coalesce(max(touched), 0) + 1 FROM sessions)"
        cursor = db.execute(
            f"INSERT INTO sessions (id, created_at, metadata, touched) VALUES (?, ?, ?, {newest})",
            (session_id, created_at, dumps_json(metadata)),
        )
        key, head = int(cursor.lastrowid or 0), LogHead(start)
        self._keep_summary(db, key, head)
        return key, head

    def _insert(
        self, db: sqlite3.Connection, key: int, head: LogHead, events: Sequence[Event]
    ) -> tuple[list[Event], LogHead]:
        stamped = stamp_events(events, first_seq=head.last_seq + 1, now=self._clock.now())
        return stamped, self._write(db, key, head, stamped)

    def _write(self, db: sqlite3.Connection, key: int, head: LogHead, events: Sequence[Event]) -> LogHead:
        """Insert numbered events after `head`; store the summary if more than its counters changes. Return the new head."""
        rows, updated = [], head.updated
        lines = dumps_all_stored(events)
        for seq, (event, line) in enumerate(zip(events, lines, strict=True), start=head.last_seq + 1):
            updated = time_after(updated, event.ts)
            rows.append((place_of(key, seq), updated, line))
        db.executemany(_INSERT, rows)
        db.execute(_TOUCH, (key,))
        head = head.after(events)
        if any(moves_summary(event) for event in events):
            self._keep_summary(db, key, head)
        return head

    def _keep_summary(self, db: sqlite3.Connection, key: int, head: LogHead) -> None:
        summary = head.summary
        db.execute(
            "UPDATE sessions SET summary = ?, cwd = ?, parent = ?, tenant = ?, is_child = ? WHERE key = ?",
            (head.to_json(), *map(dumps_json, (summary.cwd, summary.parent, summary.tenant)), summary.is_child, key),
        )

    def _position(self, session_id: str) -> SessionRow:
        with self._file.reading(session_id) as db:
            return self._position_in(db, session_id)

    def _position_in(self, db: sqlite3.Connection, session_id: str) -> SessionRow:
        name = find_possible(session_id, str(self.path))
        row = db.execute(f"{_ROW} WHERE id = ?", (name,)).fetchone()
        if row is None:
            raise SessionNotFoundError(session_id, str(self.path))
        return _position(*row)

    def _event_rows(self, at: SessionRow, after_seq: int, size: int) -> Sequence[tuple[int, str]]:
        # The lower 32 bits of a place are the `seq`, the upper ones the session's key (`place_of`).
        command = "SELECT place & 4294967295, data FROM events WHERE place > ? AND place < ? ORDER BY place LIMIT ?"
        with self._file.reading(at.id) as db:
            return db.execute(command, (place_of(at.key, after_seq), place_of(at.key + 1, 0), size)).fetchall()

    def _keep_folded(self, at: SessionRow, folded: SessionSummary) -> None:
        with self._file.transaction(at.id) as db:
            now = self._position_in(db, at.id)
            # Somebody may have written while the log was folded: then the result is out of date.
            if (now.key, now.metadata, now.head.last_seq) == (at.key, at.metadata, folded.events):
                self._keep_summary(db, at.key, LogHead(folded))

    def _rows_behind(
        self,
        after: Place | None,
        *,
        tenant: str | None,
        include_children: bool,
        query: str = "",
        cwd: str | None = None,
    ) -> Iterator[tuple[Callable[[], Place], SessionSummary]]:
        page = partial(self._page, cwd=cwd, tenant=tenant, include_children=include_children)
        if not query or self._file.is_memory:
            return self._shown_behind(after, page)
        return self._indexed_behind(after, page, query)

    def _page(
        self,
        *,
        cwd: str | None,
        tenant: str | None,
        include_children: bool,
        limit: int | None,
        offset: int = 0,
        before: float | None = None,
        keys: Sequence[int] = (),
    ) -> Iterator[SessionRow]:
        conditions = [] if include_children else ["is_child = 0"]
        conditions += [] if cwd is None else ["cwd = ?"]
        values: list[Any] = [] if cwd is None else [dumps_json(cwd)]
        if tenant is not None:
            # The index is partial: the query must contain its condition.
            conditions.append("tenant = ? AND tenant != 'null'" if tenant else "tenant = ?")
            values.append(dumps_json(tenant or None))
        if before is not None:
            conditions.append("touched < ?")
            values.append(before)
        if keys:
            conditions.append(f"key IN ({', '.join('?' * len(keys))})")
            values += keys
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        # Keys are few: without this, the planner prefers the index by children, and reads every session through it.
        hint = " NOT INDEXED" if keys else ""
        command = f"{_ROW}{hint}{where} ORDER BY touched DESC LIMIT ? OFFSET ?"
        with self._file.reading() as db:
            rows = db.execute(command, (*values, -1 if limit is None else limit, offset)).fetchall()
        return (_position(*row) for row in rows)

    # --- the writer of a run -----------------------------------------------------------------------------------------

    def _lock_of(self, at: SessionRow) -> SessionLockedError | None:
        holder = living_holder(self._lease_path(at.key, at.epoch)) if at.holder else None
        return SessionLockedError(at.id, holder) if holder else None

    def _new_writer(self, db: sqlite3.Connection, at: SessionRow) -> _SqliteWriter:
        is_usable(db)  # a newer version may have migrated the tables since this process opened them
        epoch = at.epoch + 1
        lease = LeaseFile(self._lease_path(at.key, epoch))
        try:
            db.execute("UPDATE sessions SET epoch = ?, held = 1 WHERE key = ?", (epoch, at.key))
            return _SqliteWriter(self, at, epoch, lease)
        except BaseException:  # also on Ctrl-C: release the lock
            lease.release()
            raise

    def _lease_path(self, key: int, epoch: int) -> Path:
        if self._file.is_memory and not self._beside:
            self._beside.append(tempfile.mkdtemp(prefix="openagentic-sdk-"))
        beside = Path(self._beside[0]) if self._beside else self.path.with_name(f"{self.path.name}-leases")
        return beside / f"{key}-{epoch}"

    def _append(self, writer: _SqliteWriter, events: Sequence[Event]) -> tuple[list[Event], LogHead]:
        with self._file.transaction(writer.session_id, durable=self._is_durable(events)) as db:
            epoch, last_seq, metadata = db.execute(_POSITION, (writer.key,)).fetchone() or (0, 0, "")
            if epoch != writer.epoch:
                raise LeaseLostError(writer.session_id, writer.last_seq, last_seq)
            if last_seq != writer.last_seq:
                raise ConcurrencyError(writer.session_id, writer.last_seq, last_seq)
            head = writer.head
            if metadata != writer.metadata:
                # Another process changed the metadata that the summary starts from, and stored a new summary.
                head, writer.metadata = self._position_in(db, writer.session_id).head, metadata
            return self._insert(db, writer.key, head, events)

    def _append_one(self, writer: _SqliteWriter, event: Event, line: str, updated: float) -> bool:
        """Append a stamped event that does not change the session's row, in one statement; False if nothing was stored.

        Most events of a run are of this kind: the row is already the newest, and only the counters of its summary change.
        """
        values = (place_of(writer.key, event.seq or 0), writer.key, writer.epoch, updated, line)
        # An error here occurs again in the general method, which reports it.
        return self._file.changes_one(_INSERT_ONE, values, durable=self._is_durable((event,)))

    def _is_durable(self, events: Sequence[Event]) -> bool:
        return self.durability == "barrier" and any(is_barrier(event) for event in events)


class _SqliteWriter(SessionWriter):
    """A writer that tracks the end of its log, which each append verifies."""

    def __init__(self, store: SqliteSessionStore, at: SessionRow, epoch: int, lease: LeaseFile) -> None:
        self.session_id, self.key, self.epoch, self.lease = at.id, at.key, epoch, lease
        self._store = store
        self._pid = os.getpid()
        self._lock = threading.RLock()
        # Set during an append: after Ctrl-C, the log shows whether it took effect.
        self._in_doubt = False
        self._read_end(at)

    def _read_end(self, at: SessionRow) -> None:
        self._head, self.metadata = at.head, at.metadata
        self._last_seq, self._updated = at.head.last_seq, at.head.updated

    @property
    def last_seq(self) -> int:
        return self._last_seq

    @property
    def head(self) -> LogHead:
        """The end of the log, completed here with the counters of appends that changed nothing else."""
        if self._head.last_seq != self._last_seq:
            self._head = self._head.counted(self._last_seq, self._updated)
        return self._head

    def waits_for_disk(self, events: Sequence[Event]) -> bool:
        # All sessions of the file share one connection, so an append waits for the previous one.
        return self._store.durability != "flush"

    def append(self, events: Sequence[Event]) -> list[Event]:
        check_own(self.session_id, self._pid)
        with self._lock:
            check_open(self.session_id, self.lease.is_held)
            if self._in_doubt:
                # After an interrupted append, read the end of the log. Only this writer changes it in its epoch.
                at = self._store._position(self.session_id)
                if at.epoch == self.epoch:
                    self._read_end(at)
            self._in_doubt = True
            stored_events = self._append(events)
            self._in_doubt = False
            return stored_events

    def _append(self, events: Sequence[Event]) -> list[Event]:
        if len(events) == 1 and self._last_seq and not moves_summary(events[0]):
            now, [body] = self._store._clock.now(), encode_events(events)
            event = stamp_event(events[0], self._last_seq + 1, now)
            updated = time_after(self._updated, now)
            if self._store._append_one(self, event, dumps_stored(event, body), updated):
                self._last_seq, self._updated = self._last_seq + 1, updated
                return [event]
        stored_events, self._head = self._store._append(self, events)
        self._last_seq, self._updated = self._head.last_seq, self._head.updated
        return stored_events

    def keep_view(self, view: KeptView) -> None:
        self._store.keep_view(self.session_id, view)

    def close(self) -> None:
        # A forked child inherits the writer: closing it there must not end the parent's claim.
        if not self.lease.is_held or self._pid != os.getpid():
            return
        # If this fails, the lease file still shows that the session is free.
        with suppress(StorageError), self._store._file.transaction(self.session_id) as db:
            db.execute("UPDATE sessions SET held = 0 WHERE key = ? AND epoch = ?", (self.key, self.epoch))
            self.lease.release()
        self.lease.release()


def _close(file: SqliteFile, beside: list[str]) -> None:
    file.close()
    while beside:
        remove_tree(beside.pop())


def _position(key: int, epoch: int, is_held: int, touched: int, *head: Any) -> SessionRow:
    _, created_at, metadata, *_ = head
    holder = "held" if is_held else ""
    return SessionRow(key, epoch, created_at, metadata, read_head(*head), holder=holder, touched=touched)


def _insert_blob(db: sqlite3.Connection, key: int, data: bytes) -> str:
    digest = hashlib.sha256(data).hexdigest()
    db.execute("INSERT OR IGNORE INTO blobs (session, sha256, data) VALUES (?, ?, ?)", (key, digest, data))
    return digest


def _database(value: Any) -> str | None:
    return file_check(value) or (None if Path(value).name else "the path of a file")
