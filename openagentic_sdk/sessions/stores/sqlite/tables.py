"""An SQLite file for the rows of other packages, such as the fleet."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from ....errors import OptionsError
from ..tables import Execute, Rows, Statement, Statements, Tables, drive
from .clock import offer_clock
from .file import SqliteFile, translated
from .forks import driver
from .schema import LAST_SEQ, is_usable

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")
# How often to check for changes by other processes.
LOOK_S = 0.02
# The running runs by the end of their lease, so that a claim finds a lost one without looking at each. Added without a
# schema version: older versions ignore it.
_BY_LEASE = (
    "CREATE INDEX IF NOT EXISTS openagentic_runs_lease ON openagentic_runs (lease_until) WHERE state = 'running'"
)


class SqliteTables(Tables):
    """The database of an SQLite store. Its clock is `SteadyClock`."""

    now, wall = "openagentic_now()", "openagentic_wall()"
    at_wall = f"(%s - {wall} + {now})"
    skip_locked = ""
    sessions = "sessions"
    last_seq = f"coalesce({LAST_SEQ}, 0)"

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self.conflict = driver().IntegrityError
        self._seen = (-1, -1)
        self._has_index = False

    def read(self, command: str, values: Sequence[Any] = (), *, patience_s: float = 30.0) -> Rows:
        with self._file.reading() as db:
            self._file.clock.find(db)
            return _execute_on(db)(command, values)

    def change(
        self, work: Callable[[Execute], T], *, steps: int = 1, durable: bool = False, patience_s: float = 30.0
    ) -> T:
        with self._file.transaction(durable=durable) as db:
            is_usable(db)  # a newer version may have migrated the tables since this process opened them
            self._file.clock.start(db)
            if not self._has_index:
                db.execute(_BY_LEASE)
                self._has_index = True
            return work(_execute_on(db))

    async def change_on(self, connection: Any, steps: Statements[T]) -> T:
        if not isinstance(connection, driver().Connection):
            raise OptionsError(f"connection must be a sqlite3.Connection, not {type(connection).__name__}")
        with self._file.reading() as db:
            self._file.clock.find(db)
        with translated(None, self._file.path):
            # In this thread, because a connection must stay in the thread that created it.
            return drive(steps, self._execute_on_same_file(connection))

    def _execute_on_same_file(self, connection: sqlite3.Connection) -> Execute:
        execute = _execute_on(connection)
        [(_, _, path)] = [row for row in execute("PRAGMA database_list") if row[1] == "main"]
        if not path or not os.path.samefile(path, self._file.path):
            raise OptionsError(f"connection is to {path or 'memory'!r}, not to the store's {self._file.path}")
        offer_clock(connection, self._file.clock)
        return execute

    def lease_now(self) -> float:
        return time.monotonic()

    def take_turn(self, execute: Execute) -> None:
        """Do nothing: changes of a file are serialized anyway."""

    def telling(self, channel: str) -> Statement | None:
        return None

    def wait(self, channel: str, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while (version := self._file.written()) == self._seen:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            time.sleep(min(LOOK_S, left_s))
        self._seen = version
        return True

    def close(self) -> None:
        """Do nothing: the file belongs to the store."""


def _execute_on(db: sqlite3.Connection) -> Execute:
    def execute(command: str, values: Sequence[Any] = ()) -> Rows:
        cursor = db.cursor()
        # The caller's connection may return its rows in another shape.
        cursor.row_factory = None
        return cursor.execute(_in_sqlite(command), tuple(values)).fetchall()

    return execute


@lru_cache(maxsize=256)
def _in_sqlite(command: str) -> str:
    return command.replace("%s", "?")
