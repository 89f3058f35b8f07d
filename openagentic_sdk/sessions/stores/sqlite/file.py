"""One SQLite file and this process's connection to it, which its threads use one after the other."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ....errors import SessionNotFoundError, StorageError
from ....ground.system import BINARY, os_reason
from ...log.lock import byte_holder, is_locked, try_lock, unlock
from ..per_process import PerProcess
from ..refusals import with_advice
from .clock import SteadyClock, offer_clock
from .forks import Guarded, check_usable, connecting, driver, make_private
from .schema import migrate

if TYPE_CHECKING:
    import sqlite3

BUSY_S = 30.0
# How long a write tries before it joins the queue, where later writes wait for it.
TRY_S = 0.01
# How long a write waits for its turn, and how long its process then skips the queue: the first process in it may be stopped
# or frozen.
TURN_S, WITHOUT_TURNS_S = 10.0, 60.0
MEMORY = ":memory:"
# SQLite appends suffixes to the path, so it refuses one near the system's limit, without naming the reason.
_LONG_PATH = 500
SQLITE_BUSY = 5
# Locked in the file `-shm` by whoever writes (sqlite.org/walformat.html, 2.3.1).
_WRITE_LOCK_BYTE = 120
# With SQLITE_LOCKED, and SQLITE_PROTOCOL: a race for the lock of the write-ahead log (sqlite.org/rescode.html).
_IN_USE = (SQLITE_BUSY, 6, 15)
# Checkpoint the write-ahead log, which waits for the disk twice, every 16 MB instead of every 4.
CHECKPOINT_PAGES = 4000


class SqliteFile:
    """The database at `path`, created with its folder on first use.

    The path `:memory:` is a database private to this object, which ends with `close`. With `always_syncs`, every transaction
    is on disk before it ends, otherwise only those that request it.
    """

    def __init__(self, path: Path, *, always_syncs: bool, clock: SteadyClock) -> None:
        self.path = path
        self.clock = clock
        self.is_memory = str(path) == MEMORY
        self._always_syncs = always_syncs
        self._queue = None if self.is_memory else path.with_name(f"{path.name}-leases") / "queue"
        self._opened = PerProcess(self._open)

    @contextmanager
    def reading(self, session_id: str | None = None) -> Iterator[sqlite3.Connection]:
        """Reserve the connection for this thread during the block, and convert SQLite's errors to this package's."""
        with translated(session_id, self.path):
            opened = self._opened.get()
            with opened.lock:
                opened.wait_at_most(BUSY_S)
                yield opened.connection

    @contextmanager
    def transaction(self, session_id: str | None = None, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        """Run the block in a transaction, which takes effect completely if the block succeeds, and not at all otherwise.

        With `durable`, it is on disk before the block is left.
        """
        with translated(session_id, self.path):
            opened = self._opened.get()
            with opened.lock:
                db = opened.connection
                self._set_synchronous(opened, durable)
                opened.begin()
                try:
                    yield db
                    db.execute("COMMIT")
                except BaseException:  # also on Ctrl-C
                    # After some errors, SQLite has already ended the transaction.
                    if db.in_transaction:
                        db.execute("ROLLBACK")
                    raise

    def changes_one(self, command: str, values: tuple[object, ...], *, durable: bool) -> bool:
        """Run one statement, unless others are waiting to write; return whether it changed exactly one row.

        False also if SQLite refused it: the caller repeats it in a transaction, which waits and reports the reason.
        """
        opened = self._opened.get()
        with opened.lock:
            try:
                if opened.somebody_waits():
                    return False
                opened.wait_at_most(TRY_S)
                self._set_synchronous(opened, durable)
                return opened.connection.execute(command, values).rowcount == 1
            except opened.connection.Error:
                return False

    def written(self) -> tuple[int, int]:
        """A pair of numbers that changes with every write: the first by others, the second on this connection."""
        with self.reading() as db:
            (by_others,) = db.execute("PRAGMA data_version").fetchone()
            return by_others, db.total_changes

    def close(self) -> None:
        """Close this process's connection; the next use opens another."""
        if opened := self._opened.take():
            opened.close()

    def _set_synchronous(self, opened: _Connection, durable: bool) -> None:
        level = "FULL" if (durable or self._always_syncs) and not self.is_memory else "NORMAL"
        if level != opened.synchronous:
            opened.connection.execute(f"PRAGMA synchronous = {level}")
            opened.synchronous = level

    def _open(self) -> _Connection:
        with connecting():
            return _Connection(self.path, self._connect(), self._queue)

    def _connect(self) -> sqlite3.Connection:
        if self.is_memory:
            db = driver().connect(":memory:", isolation_level=None, check_same_thread=False)
            self._prepare(db)
            return db
        check_usable(self.path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        make_private(self.path)
        db = driver().connect(self.path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            _use_wal(db)
            db.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
            self._prepare(db)
        except BaseException:  # also on Ctrl-C: close the connection
            db.close()
            raise
        return db

    def _prepare(self, db: sqlite3.Connection) -> None:
        db.execute("PRAGMA foreign_keys = ON")
        migrate(db)
        offer_clock(db, self.clock)


class _Connection(Guarded):
    """A connection, and its place in the queue of writers.

    SQLite grants a write to the connection that asks at the right moment, and one that writes constantly leaves the others
    no such moment. So a connection that could not write soon locks the file `queue`, which all check before they write.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, queue: Path | None) -> None:
        super().__init__(path, connection)
        self.synchronous = ""
        self._waits_s = BUSY_S
        self._skips_queue_until = 0.0
        self._queue = -1
        if queue is not None:
            queue.parent.mkdir(exist_ok=True)
            self._queue = os.open(queue, os.O_RDWR | os.O_CREAT | BINARY, 0o600)

    def begin(self) -> None:
        """Begin a write transaction. Raises SQLite's error if others write for too long."""
        if self._queue >= 0 and not self.somebody_waits():
            try:
                self.wait_at_most(TRY_S)
                self.connection.execute("BEGIN IMMEDIATE")
                return
            except self.connection.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != SQLITE_BUSY:
                    raise
        has_turn = self._take_turn()
        try:
            self.wait_at_most(BUSY_S)
            self.connection.execute("BEGIN IMMEDIATE")
        finally:
            if has_turn:
                self._leave_queue()

    def _take_turn(self) -> bool:
        """Wait to be first in the queue; return False if it has not moved for too long, now or shortly before."""
        deadline = time.monotonic() + TURN_S
        while self._queue >= 0 and time.monotonic() >= self._skips_queue_until:
            # Without a pause of our own: before it gives up, `try_lock` waits some milliseconds (POSIX).
            if try_lock(self._queue):
                return True
            if time.monotonic() > deadline:
                self._skips_queue_until = time.monotonic() + WITHOUT_TURNS_S
        return False

    def _leave_queue(self) -> None:
        try:
            unlock(self._queue)
        except OSError:  # a lock server without free locks: closing the handle also releases the lock
            os.close(self._queue)
            self._queue = -1

    def somebody_waits(self) -> bool:
        """Whether another connection, which could not write soon, is waiting for its turn."""
        takes_turns = self._queue >= 0 and time.monotonic() >= self._skips_queue_until
        return takes_turns and is_locked(self._queue)

    def wait_at_most(self, seconds: float) -> None:
        """Set how long the next statements wait for others to finish."""
        if seconds != self._waits_s:
            self.connection.execute(f"PRAGMA busy_timeout = {int(seconds * 1000)}")
            self._waits_s = seconds

    def close(self) -> None:
        super().close()
        if self._queue >= 0:
            os.close(self._queue)


def _use_wal(db: sqlite3.Connection) -> None:
    """Switch to the write-ahead log, with retries: SQLite does not wait for others here, whatever its timeout."""
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except driver().OperationalError as error:
            # A full or failing disk would fail again.
            if error.sqlite_errorcode & 0xFF not in _IN_USE or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


@contextmanager
def translated(session_id: str | None, path: Path) -> Iterator[None]:
    """Convert errors of SQLite, and of the files beside the database, to this package's during the block."""
    try:
        yield
    except UnicodeEncodeError:
        # Only an id reaches SQLite unescaped, and none with a lone surrogate was ever created.
        raise SessionNotFoundError(str(session_id), str(path)) from None
    except driver().Error as error:
        hint = ""
        if "unable to open" in str(error) and len(os.fsencode(path)) > _LONG_PATH:
            hint = "; choose a shorter path"
        elif getattr(error, "sqlite_errorcode", 0) & 0xFF == SQLITE_BUSY:
            writer = byte_holder(path.with_name(f"{path.name}-shm"), _WRITE_LOCK_BYTE)
            hint = f" by {writer}" if writer else ""
        reason = with_advice(f"{error}{hint}")
        raise StorageError(f"SQLite failed ({path}): {reason}", session_id=session_id) from error
    except OSError as error:
        raise StorageError(f"{path} cannot be used: {os_reason(error)}", session_id=session_id) from error
