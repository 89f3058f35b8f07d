"""One SQLite file and this process's connection to it, which its threads use one after the other."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ...disk import BINARY
from ...errors import SessionNotFoundError, StorageError
from .per_process import PerProcess
from .sqlite_schema import migrate

if TYPE_CHECKING:
    import sqlite3

BUSY_S = 30.0
MEMORY = ":memory:"
# The write-ahead log goes into the database, which waits for the disk twice, every 16 MB instead of every 4.
CHECKPOINT_PAGES = 4000


class SqliteFile:
    """The database at `path`, made with its folder when it is first used.

    The path `:memory:` is a database of this object's own, which ends with `close`. `always_syncs` puts every transaction on
    disk before it ends, otherwise only those that ask for it.
    """

    def __init__(self, path: Path, *, always_syncs: bool) -> None:
        self.path = path
        self.is_memory = str(path) == MEMORY
        self._always_syncs = always_syncs
        self._opened = PerProcess(lambda: _Opened(self._connect()))

    @contextmanager
    def reading(self, session_id: str | None = None) -> Iterator[sqlite3.Connection]:
        """The connection, for this thread alone. What SQLite refuses becomes an error of ours."""
        with _translated(session_id, self.path):
            opened = self._opened.get()
            with opened.lock:
                yield opened.connection

    @contextmanager
    def transaction(self, session_id: str | None = None, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        """A transaction that takes effect whole when the block ends well, and not at all otherwise."""
        with self.reading(session_id) as db:
            self._set_synchronous(durable)
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                # SQLite has ended the transaction by itself after some errors.
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise

    def changes_one(self, command: str, values: tuple[object, ...], *, durable: bool) -> bool:
        """Whether this one statement changed a row; False also when SQLite refused it."""
        opened = self._opened.get()
        with opened.lock:
            try:
                self._set_synchronous(durable)
                return opened.connection.execute(command, values).rowcount == 1
            except opened.connection.Error:
                return False

    def written(self) -> tuple[int, int]:
        """Two numbers that change with whatever is written, by others and on this connection."""
        with self.reading() as db:
            (by_others,) = db.execute("PRAGMA data_version").fetchone()
            return by_others, db.total_changes

    def close(self) -> None:
        """Close this process's connection; the next use opens another."""
        if opened := self._opened.take():
            with opened.lock:
                opened.connection.close()

    def _set_synchronous(self, durable: bool) -> None:
        opened = self._opened.get()
        level = "FULL" if durable or self._always_syncs else "NORMAL"
        if level != opened.synchronous:
            opened.connection.execute(f"PRAGMA synchronous = {level}")
            opened.synchronous = level

    def _connect(self) -> sqlite3.Connection:
        import sqlite3

        if self.is_memory:
            db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            db.execute("PRAGMA foreign_keys = ON")
            migrate(db)
            return db
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


class _Opened:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.lock = threading.RLock()
        self.synchronous = ""


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
