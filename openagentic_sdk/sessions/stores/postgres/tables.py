"""A Postgres server for the rows of other packages, such as the fleet."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ....errors import OptionsError, StorageError
from ..tables import Execute, Rows, Statement, Statements, Tables
from .link import PostgresListener, PostgresNews, PostgresServer, driver
from .schema import LOCK_SPACE

T = TypeVar("T")
# Identifies the database of a connection.
_WHERE = "SELECT current_database(), current_schema()"
# The longest delay before `wait` notices `close`.
_LOOK_S = 0.1


class PostgresTables(Tables):
    """The database of a Postgres store; `server` returns this process's server.

    `first_s` limits the wait for a server that was never reached.
    """

    now = wall = "extract(epoch FROM clock_timestamp())::float8"
    # A server has one clock, so nothing has to be converted.
    at_wall = "%s"
    skip_locked = "FOR UPDATE SKIP LOCKED"
    sessions = "openagentic_sessions"
    last_seq = "last_seq"

    def __init__(self, server: Callable[[], PostgresServer], first_s: float) -> None:
        self._find, self._first_s = server, first_s
        self.conflict = driver().psycopg.errors.UniqueViolation
        self._listeners: dict[str, PostgresListener | None] = {}
        self._guard = threading.Lock()
        self._closing = threading.Event()
        self._leads_to: Rows = []

    def read(self, command: str, values: Sequence[Any] = (), *, patience_s: float = 30.0) -> Rows:
        return self._find().call(
            None, lambda db: db.execute(command, values).fetchall(), patience_s, first_s=self._first_s
        )

    def change(
        self, work: Callable[[Execute], T], *, steps: int = 1, durable: bool = False, patience_s: float = 30.0
    ) -> T:
        def attempt(db: Any) -> T:
            if steps == 1:
                return work(_execute_on(db))
            with db.transaction():
                return work(_execute_on(db))

        return self._find().call(None, attempt, patience_s, first_s=self._first_s)

    async def change_on(self, connection: Any, steps: Statements[T]) -> T:
        psycopg = driver().psycopg
        if not isinstance(connection, psycopg.Connection | psycopg.AsyncConnection):
            raise OptionsError(f"connection must be a psycopg connection, not {type(connection).__name__}")
        with self._find().translated():
            try:
                leads_to = await _rows_of(connection, _WHERE, ())
                self._leads_to = self._leads_to or self.read(_WHERE)
                if leads_to != self._leads_to:
                    raise OptionsError(f"connection is to database and schema {leads_to[0]}, not to those of the store")
                statement = next(steps)
                while True:
                    statement = steps.send(await _rows_of(connection, *statement))
            except StopIteration as end:
                result: T = end.value
                return result

    @property
    def is_usable(self) -> str:
        return f"(SELECT version FROM openagentic_schema) <= {self._find().usable_version}"

    def require_usable(self) -> None:
        server = self._find()
        server.call(None, server.accepts_newer, 30.0)

    def take_turn(self, execute: Execute) -> None:
        execute(f"SELECT pg_advisory_xact_lock({LOCK_SPACE}, 2)")

    def telling(self, channel: str) -> Statement | None:
        return "SELECT pg_notify(%s, '-')", (channel,)

    def wait(self, channel: str, timeout_s: float) -> bool:
        """Like `Tables.wait`, for one thread at a time. If the server cannot notify, the full time passes."""
        with self._guard:
            deadline = time.monotonic() + timeout_s
            while not self._closing.is_set() and (left_s := deadline - time.monotonic()) > 0:
                try:
                    if channel not in self._listeners:
                        self._listeners[channel] = PostgresNews(self._find()).listen(channel)
                    listener = self._listeners[channel]
                    if listener is not None:
                        if listener.hear(min(_LOOK_S, left_s)):
                            return True
                        continue
                except StorageError:
                    if (broken := self._listeners.pop(channel, None)) is not None:
                        broken.close()
                self._closing.wait(deadline - time.monotonic())
            return False

    def close(self) -> None:
        self._closing.set()
        with self._guard:
            for listener in filter(None, self._listeners.values()):
                listener.close()
            self._listeners.clear()
            self._closing.clear()


def _execute_on(db: Any) -> Execute:
    def execute(command: str, values: Sequence[Any] = ()) -> Rows:
        cursor = db.execute(command, values)
        return cursor.fetchall() if cursor.description is not None else []

    return execute


async def _rows_of(connection: Any, command: str, values: Sequence[Any]) -> Rows:
    """The rows of a statement on the caller's connection, async or not, whose rows may have another shape."""
    psycopg = driver().psycopg
    cursor = connection.cursor(row_factory=psycopg.rows.tuple_row)
    if isinstance(connection, psycopg.AsyncConnection):
        await cursor.execute(command, values)
        return list(await cursor.fetchall()) if cursor.description is not None else []
    cursor.execute(command, values)
    return list(cursor.fetchall()) if cursor.description is not None else []
