"""A Postgres server as other rooms use it for rows of their own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ...errors import OptionsError, StorageError
from .postgres_link import PostgresListener, PostgresNews, PostgresServer, driver, translated
from .tables import Execute, Rows, Tables

T = TypeVar("T")


class PostgresTables(Tables):
    """The database of a Postgres store; `server` gives this process's server."""

    now = "extract(epoch FROM clock_timestamp())::float8"
    skip_locked = "FOR UPDATE SKIP LOCKED"
    sessions = "openagentic_sessions"
    last_seq = "last_seq"

    def __init__(self, server: Callable[[], PostgresServer]) -> None:
        self._find = server
        self.conflict = driver().psycopg.errors.UniqueViolation
        self._listeners: dict[str, PostgresListener | None] = {}
        self._guard = threading.Lock()

    def read(self, command: str, values: Sequence[Any] = (), *, patience_s: float = 30.0) -> Rows:
        return self._find().call(None, lambda db: db.execute(command, values).fetchall(), patience_s)

    def change(
        self, work: Callable[[Execute], T], *, steps: int = 1, durable: bool = False, patience_s: float = 30.0
    ) -> T:
        def attempt(db: Any) -> T:
            if steps == 1:
                return work(_execute_on(db))
            with db.transaction():
                return work(_execute_on(db))

        return self._find().call(None, attempt, patience_s)

    def on(self, connection: Any) -> Execute:
        if not isinstance(connection, driver().psycopg.Connection):
            raise OptionsError(f"connection must be a psycopg.Connection, not {type(connection).__name__}")
        execute = _execute_on(connection)

        def translating(command: str, values: Sequence[Any] = ()) -> Rows:
            with translated(None, self._find().where):
                return execute(command, values)

        return translating

    def tell(self, execute: Execute, channel: str) -> None:
        execute("SELECT pg_notify(%s, '-')", (channel,))

    def wait(self, channel: str, timeout_s: float) -> bool:
        """One thread at a time waits. Where the server cannot notify, the time simply passes."""
        with self._guard:
            began = time.monotonic()
            try:
                if channel not in self._listeners:
                    self._listeners[channel] = PostgresNews(self._find()).listen(channel)
                listener = self._listeners[channel]
                if listener is not None:
                    return bool(listener.hear(timeout_s))
            except StorageError:
                if (broken := self._listeners.pop(channel, None)) is not None:
                    broken.close()
            time.sleep(max(0.0, timeout_s - (time.monotonic() - began)))
            return False

    def close(self) -> None:
        with self._guard:
            for listener in filter(None, self._listeners.values()):
                listener.close()
            self._listeners.clear()


def _execute_on(db: Any) -> Execute:
    def execute(command: str, values: Sequence[Any] = ()) -> Rows:
        # The caller's connection may give its rows in another shape.
        with db.cursor(row_factory=driver().psycopg.rows.tuple_row) as cursor:
            cursor.execute(command, values)
            return cursor.fetchall() if cursor.description is not None else []

    return execute
