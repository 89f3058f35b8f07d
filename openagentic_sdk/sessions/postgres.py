"""Sessions in a Postgres database, shared by many hosts. Needs psycopg 3: the extra `postgres`.

An append is one statement: it updates the session's row only for its writer's epoch and the expected `seq`, and inserts the
events only if it did. No connection is held between two statements. Events are stored as ASCII text, so U+0000 and lone
surrogates survive.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice, repeat
from typing import Any
from uuid import uuid4

from ..errors import (
    InvalidEventError,
    LeaseLostError,
    LogCorruptError,
    SessionExistsError,
    SessionNotFoundError,
    StorageError,
)
from ..events import Event
from ..ground.checks import TEXT, check_settings
from ..ground.clock import Clock
from ..serialization import dumps_json
from .arguments import check_digest, check_text, cut_number, cut_numbers, is_possible_id
from .base import SOME_IDS, Metadata, Place, When, check_copied_part, check_session_id, read_clock, stamp_events
from .folds.search import SearchHit
from .folds.summary import SessionSummary, start_summary, summary_text
from .inbox import MAX_WAITING, InboxMessage, dumps_message, full_inbox, loads_message
from .stores.database import SessionRow, intact_blob, text_key
from .stores.log_state import LogHead, copied_head, read_head
from .stores.postgres.families import PostgresFamilies, has_sums
from .stores.postgres.link import SERVERS, PostgresServer, check_url, driver
from .stores.postgres.schema import LOCK_SPACE
from .stores.postgres.search import by_index, has_index, keys_with_words, search_index, update_index
from .stores.postgres.tables import PostgresTables
from .stores.remote import Batch, RemoteStore
from .stores.tables import Tables, TableStore

PAGE_EVENTS = 500
# The most sessions that a list with a query adds to the index, or reads without it.
_LIST_UPDATES = 500
# `clock_timestamp()` and not `now()`, which is the time at which a transaction began.
_ROW = """
    SELECT key, epoch, revision, holder, CASE WHEN holder = '' THEN 0 ELSE coalesce(
               (SELECT extract(epoch FROM until - clock_timestamp()) FROM openagentic_holders WHERE name = holder), 0
           ) END::float8,
           touched, id, created_at, metadata, summary, last_seq, updated
"""
_ROW_OF = f"{_ROW} FROM openagentic_sessions WHERE id = %s"
_COLUMNS = ("last_seq", "updated", "cwd", "parent", "tenant", "is_child", "summary")
_SET_COLUMNS = ", ".join(f"{name} = %s" for name in _COLUMNS)
# A batch is sent as two texts: drivers create arrays slowly, and JSON in ASCII contains no newlines.
_PACKED = "unnest(string_to_array(%s, ' ')::float8[], string_to_array(%s, E'\\n')) WITH ORDINALITY"
# One statement, and so one round trip and one transaction: the events are selected from `moved`, which has no row if the
# session is not as its writer left it. The caller notifies followers, if there are any.
_APPEND = """
    WITH moved AS (
        UPDATE openagentic_sessions
        SET epoch = %s, holder = %s, touched = nextval('openagentic_touches'), {columns}
        WHERE key = %s AND epoch = %s AND holder = %s AND revision = %s AND last_seq = %s
        RETURNING key, followed
    ), added AS (
        INSERT INTO openagentic_events (session, seq, updated, data) {events}
    )
    SELECT followed > now() FROM moved
"""
_SET_COUNTERS = "last_seq = %s, updated = %s"
_ONE_EVENT = "SELECT key, 1 + %s, %s, %s FROM moved"
_EVENTS = f"SELECT key, %s + number, added.updated, data FROM moved, {_PACKED} AS added (updated, data, number)"
# Keyed by whether a batch changes more of a session's row than its counters, and whether it has several events.
_APPENDS = {
    (moves, is_many): _APPEND.format(
        columns=_SET_COLUMNS if moves else _SET_COUNTERS, events=_EVENTS if is_many else _ONE_EVENT
    )
    for moves in (False, True)
    for is_many in (False, True)
}
_CHANGE = (
    f"UPDATE openagentic_sessions SET metadata = %s, revision = revision + 1, {_SET_COLUMNS} "
    "WHERE key = %s AND revision = %s AND last_seq = %s"
)
_COPY_EVENTS = (
    "INSERT INTO openagentic_events (session, seq, updated, data) "
    "SELECT %s, seq, updated, data FROM openagentic_events WHERE session = %s AND seq <= %s"
)
_COPY_BLOBS = (
    "INSERT INTO openagentic_blobs (session, sha256, data) "
    "SELECT %s, sha256, data FROM openagentic_blobs WHERE session = %s"
)
_RELEASE = (
    "UPDATE openagentic_sessions SET epoch = epoch + 1, holder = %s WHERE key = %s AND epoch = %s AND holder = %s"
)
# A newer version may have migrated the tables since this process connected.
_CLAIM = f"{_RELEASE} AND (SELECT version FROM openagentic_schema) <= %s"
_ADD = (
    f"INSERT INTO openagentic_sessions (id, created_at, metadata, {', '.join(_COLUMNS)}) "
    "VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT (id) DO NOTHING RETURNING key"
)
_DELETE = "DELETE FROM openagentic_sessions WHERE key = %s AND epoch = %s AND holder = %s AND last_seq = %s"

# Serialized over the whole schema, so that a number is assigned only after all lower ones are visible. The lock of the row,
# KEY SHARE as for a foreign key, keeps the session from being deleted meanwhile, and lets its writer append.
_PUT = f"""
    WITH gate AS MATERIALIZED (SELECT pg_advisory_xact_lock({LOCK_SPACE}, 1)), target AS (
        SELECT key, followed FROM openagentic_sessions, gate WHERE id = %s FOR KEY SHARE OF openagentic_sessions
    ), added AS (
        INSERT INTO openagentic_messages (session, token, data)
        SELECT key, %s, %s FROM target
        WHERE {MAX_WAITING} > (SELECT count(*) FROM openagentic_messages WHERE session = key AND removed IS NULL)
        ON CONFLICT (token) DO NOTHING RETURNING number
    )
    SELECT (SELECT number FROM added), followed > now() FROM target
"""
_READ_MESSAGES = """
    SELECT number, id, data FROM openagentic_messages JOIN openagentic_sessions ON key = session
    WHERE id = ANY(%s) AND number > %s AND removed IS NULL ORDER BY number
"""
# A removed message is remembered for a while, so that a sender whose answer was lost does not put it again.
_REMOVE_MESSAGES = """
    WITH forgotten AS (DELETE FROM openagentic_messages WHERE removed < now() - interval '10 minutes')
    UPDATE openagentic_messages SET removed = now(), data = '' WHERE number = ANY(%s::bigint[]) AND removed IS NULL
"""


class PostgresSessionStore(TableStore, RemoteStore[PostgresServer]):
    """A store of sessions in the database at `url` (`postgresql://user@host/database`), in tables named `openagentic_*`.

    The tables are created on first use; if this role may not create them, run `openagentic-sdk store migrate` with one that
    may. Each append is on the server's disk before it returns, unless the server is configured otherwise. `patience_s`
    (None: 30) limits every wait for the server, during its restart or when it hangs; if given, it also limits the wait for a
    server that was never reached, otherwise a first connection that fails raises immediately. Poolers in session or
    transaction mode are supported, and a standby can be read.
    """

    durability = "fsync"
    page_events = PAGE_EVENTS
    _servers = SERVERS
    has_inbox = True

    def __init__(self, url: str, *, patience_s: float | None = None, clock: Clock | None = None) -> None:
        check_settings({"url": url}, {"url": TEXT})
        driver()
        self._wait_for_server(patience_s)
        self._clock = read_clock(clock)
        self._join(check_url(url))

    # --- steps of the server -----------------------------------------------------------------------------------------

    def _position_on(self, db: Any, session_id: str) -> SessionRow:
        row = db.execute(_ROW_OF, (session_id,)).fetchone()
        if row is None:
            raise SessionNotFoundError(session_id, self._server.where)
        return _position(*row)

    def _event_rows_on(self, db: Any, at: SessionRow, after_seq: int, size: int) -> list[tuple[int, str]]:
        command = "SELECT seq, data FROM openagentic_events WHERE session = %s AND seq > %s ORDER BY seq LIMIT %s"
        return [(seq, data) for seq, data in db.execute(command, (at.key, after_seq, size)).fetchall()]

    def _send(self, db: Any, at: SessionRow, batch: Batch, epoch: int, holder: str) -> bool:
        summary, is_many = batch.head.summary, len(batch.lines) != 1
        columns = _columns(batch.head) if batch.moves else (summary.events, summary.updated)
        fence = (at.key, at.epoch, at.holder, at.revision, batch.expected_seq)
        events = _packed(batch) if is_many else (batch.times[0], batch.lines[0])
        values = (epoch, holder, *columns, *fence, batch.expected_seq, *events)
        row = db.execute(_APPENDS[batch.moves, is_many], values).fetchone()
        # `followed > now()`: somebody waits for events of this session.
        if row and row[0]:
            self._server.notifier.tell(at.id)
        return row is not None

    def _claim(self, db: Any, at: SessionRow, holder: str) -> bool:
        values, server = (holder, at.key, at.epoch, at.holder), self._server
        if not holder:
            return bool(db.execute(_RELEASE, values).rowcount)
        while not (is_claimed := bool(db.execute(_CLAIM, (*values, server.usable_version)).rowcount)):
            if not server.accepts_newer(db):
                break
        return is_claimed

    def _delete(self, db: Any, at: SessionRow) -> bool:
        return bool(db.execute(_DELETE, (at.key, at.epoch, at.holder, at.head.last_seq)).rowcount)

    def _change_metadata(self, db: Any, at: SessionRow, metadata: str, head: LogHead) -> bool:
        values = (metadata, *_columns(head), at.key, at.revision, head.last_seq)
        return bool(db.execute(_CHANGE, values).rowcount)

    # --- the core ----------------------------------------------------------------------------------------------------

    def list_sessions(self) -> list[str]:
        command = "SELECT id FROM openagentic_sessions ORDER BY touched DESC"
        return self._call(None, lambda db: [row[0] for row in db.execute(command)])

    def put_blob(self, session_id: str, data: bytes) -> str:
        return self._call(session_id, lambda db: _insert_blob(db, self._position_on(db, session_id).key, data))

    def read_blob(self, session_id: str, sha256: str) -> bytes:
        check_digest(session_id, sha256)
        command = "SELECT data FROM openagentic_blobs WHERE session = %s AND sha256 = %s"
        key = self._position(session_id).key
        row = self._call(session_id, lambda db: db.execute(command, (key, sha256)).fetchone())
        return intact_blob(session_id, sha256, row and row[0])

    def delete_blobs(self, session_id: str, digests: Collection[str]) -> None:
        command = "DELETE FROM openagentic_blobs WHERE session = %s AND sha256 = ANY(%s)"
        names = list(digests)
        self._call(session_id, lambda db: db.execute(command, (self._position_on(db, session_id).key, names)))

    def scrub(self, *session_ids: str) -> Sequence[str]:
        """Make the server reclaim replaced rows, as far as this role may; return a sentence on where their bytes remain."""
        tables = [f"openagentic_{name}" for name in ("events", "blobs", "sessions", "checkpoints", "messages")]
        tables += ["openagentic_words"] if self._call(None, has_index) else []
        tables += ["openagentic_families", "openagentic_sums"] if self._call(None, has_sums) else []
        with suppress(StorageError):
            self._call(None, lambda db: db.execute(f"VACUUM {', '.join(tables)}"))
        return (
            f"{self._server.where} keeps the bytes of replaced rows in its write-ahead log, its backups and the free "
            "space of its files until the server reuses it: VACUUM FULL and the expiry of the backups remove them",
        )

    def keep_checkpoint(self, session_id: str, data: bytes) -> None:
        command = (
            "INSERT INTO openagentic_checkpoints (session, data) VALUES (%s, %s) "
            "ON CONFLICT (session) DO UPDATE SET data = EXCLUDED.data"
        )
        self._call(session_id, lambda db: db.execute(command, (self._position_on(db, session_id).key, data)))

    def read_checkpoint(self, session_id: str) -> bytes | None:
        command = "SELECT data FROM openagentic_checkpoints JOIN openagentic_sessions ON session = key WHERE id = %s"
        row = self._call(session_id, lambda db: db.execute(command, (session_id,)).fetchone())
        return bytes(row[0]) if row else None

    # --- faster in a database ----------------------------------------------------------------------------------------

    def list_blobs(self, session_id: str) -> list[str]:
        key = self._position(session_id).key
        # By bytes, as in all stores: the database's own order depends on its language.
        command = 'SELECT sha256 FROM openagentic_blobs WHERE session = %s ORDER BY sha256 COLLATE "C"'
        return self._call(session_id, lambda db: [row[0] for row in db.execute(command, (key,))])

    def list_children(self, session_id: str) -> list[str]:
        command = "SELECT id FROM openagentic_sessions WHERE parent = %s AND is_child ORDER BY key"
        # Not an error about this session: a log from elsewhere may name any parent.
        return self._call(None, lambda db: [row[0] for row in db.execute(command, (text_key(session_id),))])

    def ids_beginning(self, start: str) -> list[str]:
        check_text("start", start)
        if not start or not start.isascii():
            return super().ids_beginning(start)
        command = "SELECT id FROM openagentic_sessions WHERE id >= %s AND id < %s ORDER BY id LIMIT %s"
        # A range rather than LIKE: the index of ids has the collation "C", and a prefix may contain % and _.
        values = (start, start[:-1] + chr(ord(start[-1]) + 1), SOME_IDS)
        return (
            self._call(None, lambda db: [row[0] for row in db.execute(command, values)])
            if is_possible_id(start)
            else []
        )

    def _find_words(self, words: Sequence[str], limit: int, tenant: str | None) -> list[SearchHit]:
        """Implement `search`.

        Searches update a trigram index in small steps and then use it, so that appends need not update it. Without the
        extension pg_trgm, and on a standby, every log is read.
        """
        if update_index(self._call, self._row_texts, self.index_progress) is None:
            return super()._find_words(words, limit, tenant)
        return search_index(self._call, words, limit, tenant and text_key(tenant))

    def update_search(self, progress: Callable[[int, int], None] | None = None) -> None:
        update_index(self._call, self._row_texts, progress or self.index_progress)

    def _families(self) -> PostgresFamilies | None:
        return PostgresFamilies(self._call, self._page, self._summary_in) if self._call(None, has_sums) else None

    def _row_texts(self, keys: Sequence[int]) -> dict[int, str]:
        """The texts that lists search for words, by the keys of the sessions; damaged sessions are omitted."""
        texts: dict[int, str] = {}
        key_query = ("SELECT unnest(%s::integer[])", [list(keys)])
        for at in self._page(cwd=None, tenant=None, include_children=True, limit=None, keys=key_query):
            with suppress(LogCorruptError, InvalidEventError, SessionNotFoundError):
                row = at.head.summary if at.head.is_kept else self.kept_summary(at.id)
                # Postgres stores neither lone surrogates nor U+0000 in a text.
                texts[at.key] = summary_text(row).encode("utf-8", "replace").decode().replace("\0", " ")
        return texts

    def put_message(self, session_id: str, message: Mapping[str, Any]) -> int:
        # The token stays the same for each attempt, so a message whose answer was lost is stored once.
        values = (session_id, uuid4(), dumps_message(message))

        def attempt(db: Any) -> int:
            row = db.execute(_PUT, values).fetchone()
            if row is None:
                raise SessionNotFoundError(session_id, self._server.where)
            number, is_followed = row
            if number is None:
                # It already exists if the answer to an earlier attempt was lost.
                row = db.execute("SELECT number FROM openagentic_messages WHERE token = %s", values[1:2]).fetchone()
                if row is None:
                    raise full_inbox(session_id)
                (number,) = row
            if is_followed:
                self._server.notifier.tell(session_id)
            return int(number)

        return self._call(session_id, attempt)

    def read_messages(self, session_ids: Collection[str], *, after: int = 0) -> list[InboxMessage]:
        after = cut_number("after", after)
        names = list(filter(is_possible_id, session_ids))
        rows = self._call(None, lambda db: db.execute(_READ_MESSAGES, (names, after)).fetchall())
        return [loads_message(*row) for row in rows]

    def remove_messages(self, numbers: Collection[int]) -> None:
        numbers = cut_numbers(numbers)
        self._call(None, lambda db: db.execute(_REMOVE_MESSAGES, (list(numbers),)))

    def migrate(self) -> None:
        self._server.migrate()

    def tables(self) -> Tables:
        return PostgresTables(lambda: self._server, self._first_s)

    def search_notice(self) -> str | None:
        if self._call(None, has_index):
            return None
        return (
            "search reads every log: the Postgres extension pg_trgm is missing, or this role may not write the index; "
            "create it by running `openagentic-sdk store migrate URL` with a role that may create extensions"
        )

    def _import_events(
        self, session_id: str, created_at: When, metadata: Metadata, events: Iterator[Event], blobs: Iterator[bytes]
    ) -> None:
        created_at = self._clock.now() if created_at is None else created_at
        has_begun = False

        def fill(db: Any, at: SessionRow) -> None:
            nonlocal has_begun
            # The events come from an iterator, which cannot be started again for a second attempt.
            if has_begun:
                raise StorageError(
                    f"the connection to {self._server.where} broke: nothing was imported, so start the import again",
                    session_id=session_id,
                )
            head = at.head
            while batch := list(islice(events, PAGE_EVENTS)):
                has_begun = True
                head = self._add_events(db, at, head, batch)
            for data in blobs:
                has_begun = True
                self._give_time(db)
                _insert_blob(db, at.key, data)

        self._make_once(session_id, created_at, metadata, fill)

    def copy_session(
        self, source_id: str, target_id: str, *, at_seq: int, tail: Sequence[Event], metadata: Mapping[str, Any]
    ) -> str:
        def fill(db: Any, target: SessionRow) -> None:
            # The source cannot be deleted before the copy is complete; appends continue in the meantime.
            db.execute("SELECT 1 FROM openagentic_sessions WHERE id = %s FOR KEY SHARE", (source_id,))
            source = self._position_on(db, source_id)
            check_copied_part(source_id, at_seq, source.head.last_seq)
            for command, values in (
                (_COPY_EVENTS, (target.key, source.key, at_seq)),
                (_COPY_BLOBS, (target.key, source.key)),
            ):
                self._give_time(db)
                db.execute(command, values)
            command = "SELECT updated FROM openagentic_events WHERE session = %s AND seq = %s"
            updated = db.execute(command, (target.key, at_seq)).fetchone()
            head = copied_head(source.head, source.start, target.head.summary, at_seq, updated[0] if updated else None)
            self._add_events(db, target, head, stamp_events(tail, first_seq=at_seq + 1, now=self._clock.now()))

        return self._make_once(target_id, self._clock.now(), metadata, fill)

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

        def pages() -> Iterator[Callable[..., Iterator[SessionRow]]]:
            """Yield the function that reads each page. The first page, which often suffices, is read without the index."""
            yield page
            chosen, keys = page, keys_with_words(query)
            if keys is not None:
                stale_count = update_index(self._call, self._row_texts, self.index_progress, at_most=_LIST_UPDATES)
                if stale_count is not None and stale_count < _LIST_UPDATES:
                    chosen = partial(page, keys=keys)
            yield from repeat(chosen)

        ways = pages()
        return self._shown_behind(after, lambda **where: next(ways)(**where))

    def _page(
        self,
        *,
        cwd: str | None,
        tenant: str | None,
        include_children: bool,
        limit: int | None,
        offset: int = 0,
        before: float | None = None,
        keys: tuple[str, list[Any]] | None = None,
    ) -> Iterator[SessionRow]:
        conditions = [] if include_children else ["NOT is_child"]
        conditions += [] if cwd is None else ["cwd = %s"]
        values: list[Any] = [] if cwd is None else [text_key(cwd)]
        if tenant is not None:
            # The index is partial: the query must contain its condition.
            conditions.append("tenant = %s AND tenant <> ''" if tenant else "tenant = %s")
            values.append(text_key(tenant) if tenant else "")
        if before is not None:
            conditions.append("touched < %s")
            values.append(before)
        if keys is not None:
            conditions.append(f"key = ANY(ARRAY({keys[0]}))")
            values += keys[1]
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        rest = f"FROM openagentic_sessions{where} ORDER BY touched DESC"
        if offset:
            # Only the keys of the rows before a page are read and sorted.
            page = f"SELECT key {rest} LIMIT %s OFFSET %s"
            command = f"{_ROW} FROM ({page}) AS page JOIN openagentic_sessions USING (key) ORDER BY touched DESC"
            values += [limit, offset]
        else:
            # The number is in the statement's text, so that the server plans the first page only once.
            command = f"{_ROW} {rest} LIMIT {'ALL' if limit is None else int(limit)}"
        if keys is not None:
            return (_position(*row) for row in self._call(None, lambda db: by_index(db, command, values)))
        return (_position(*row) for row in self._call(None, lambda db: db.execute(command, values).fetchall()))

    def _put_in_place(self, at: SessionRow, rows: Sequence[tuple[int, str]], head: LogHead) -> None:
        def replace_all(db: Any) -> None:
            with db.transaction():
                # Until the end of the transaction nobody appends to the session, claims, follows or indexes it.
                mine = "SELECT 1 FROM openagentic_sessions WHERE key = %s AND epoch = %s FOR UPDATE"
                if db.execute(mine, (at.key, at.epoch)).fetchone() is None:
                    raise LeaseLostError(at.id, at.head.last_seq, at.head.last_seq)
                for seq, text in rows:
                    self._give_time(db)
                    command = "UPDATE openagentic_events SET data = %s WHERE session = %s AND seq = %s"
                    db.execute(command, (text, at.key, seq))
                # A process that read the old words no longer adds them to the index.
                columns = f"revision = revision + 1, {_SET_COLUMNS}"
                db.execute(f"UPDATE openagentic_sessions SET {columns} WHERE key = %s", (*_columns(head), at.key))
                db.execute("DELETE FROM openagentic_checkpoints WHERE session = %s", (at.key,))
                if has_index(db):
                    for table in ("openagentic_words", "openagentic_words_upto"):
                        db.execute(f"DELETE FROM {table} WHERE session = %s", (at.key,))

        self._call(at.id, replace_all)

    def _make_once(
        self, session_id: str, created_at: float, metadata: Mapping[str, Any], fill: Callable[[Any, SessionRow], None]
    ) -> str:
        """Create a session in one transaction, exactly once even if the commit's answer is lost; return its id."""
        start = LogHead(start_summary(check_session_id(session_id), created_at, metadata))
        metadata_json, new_keys = dumps_json(dict(metadata)), set()

        def attempt(db: Any) -> None:
            with db.transaction():
                # Waits for a transaction that creates the same session, including one of ours without an answer.
                values = (session_id, created_at, metadata_json, *_columns(start))
                if row := db.execute(_ADD, values).fetchone():
                    new_keys.add(row[0])
                    fill(db, SessionRow(row[0], 0, created_at, metadata_json, start))
                    self._give_time(db)
                    return
                row = db.execute("SELECT key FROM openagentic_sessions WHERE id = %s", (session_id,)).fetchone()
            if row is None or row[0] not in new_keys:
                raise SessionExistsError(session_id)

        self._call(session_id, attempt)
        return session_id

    def _give_time(self, db: Any) -> None:
        """Restart the time limit: each step of a long operation gets that of a single call."""
        db.deadline = time.monotonic() + self._patience_s

    def _add_events(self, db: Any, at: SessionRow, head: LogHead, stamped: Sequence[Event]) -> LogHead:
        """Append numbered events after `head` to a session that is not visible yet; return the new head."""
        batch = Batch.of(head, stamped)
        self._give_time(db)
        db.execute(
            "INSERT INTO openagentic_events (session, seq, updated, data) SELECT %s, %s + number, updated, data FROM "
            f"{_PACKED} AS row (updated, data, number)",
            (at.key, batch.expected_seq, *_packed(batch)),
        )
        command = f"UPDATE openagentic_sessions SET {_SET_COLUMNS} WHERE key = %s"
        db.execute(command, (*_columns(batch.head), at.key))
        return batch.head


def _position(
    key: int, epoch: int, revision: int, holder: str, lease_left_s: float, touched: int, *head: Any
) -> SessionRow:
    _, created_at, metadata, *_ = head
    return SessionRow(key, epoch, created_at, metadata, read_head(*head), revision, holder, lease_left_s, touched)


def _columns(head: LogHead) -> tuple[Any, ...]:
    """The values of `_COLUMNS` for a head."""
    summary = head.summary
    tenant = text_key(summary.tenant) if summary.tenant else ""
    parts = (text_key(summary.cwd), text_key(summary.parent), tenant, summary.is_child, head.to_json())
    return (head.last_seq, summary.updated, *parts)


def _packed(batch: Batch) -> tuple[str, str]:
    return " ".join(map(repr, batch.times)), "\n".join(batch.lines)


def _insert_blob(db: Any, key: int, data: bytes) -> str:
    digest = hashlib.sha256(data).hexdigest()
    command = "INSERT INTO openagentic_blobs (session, sha256, data) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
    db.execute(command, (key, digest, data))
    return digest
