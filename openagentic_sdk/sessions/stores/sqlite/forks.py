"""Keep a process from doing what SQLite forbids: fork during an operation, and close its own handle of an open database.

SQLite tracks a process's locks in memory, and a child inherits a copy of that memory, but not the locks. A new connection
to the same file would rely on locks that only the parent holds, and when the parent ends, others consider the file unused
and delete the log to which the child writes. So a fork waits until no connection is in an operation, and the child closes
its copies, which resets the tracked locks; nothing is pending then that closing could undo.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from ....errors import StorageError
from ....ground.system import BINARY

if TYPE_CHECKING:
    import sqlite3

# How long a fork waits for one statement or transaction; an import may take longer.
FORK_PATIENCE_S = 5.0


class Driver(Protocol):
    """The part of the module `sqlite3` that is used here."""

    Connection: type[sqlite3.Connection]
    Error: type[sqlite3.Error]
    DatabaseError: type[sqlite3.DatabaseError]
    IntegrityError: type[sqlite3.IntegrityError]
    OperationalError: type[sqlite3.OperationalError]
    connect: Callable[..., sqlite3.Connection]


def driver() -> Driver:
    """The module `sqlite3`, imported only when a file is opened."""
    import sqlite3

    return cast(Driver, sqlite3)


class Guarded:
    """A connection to the file at `path`, used only while holding `lock`. Created inside `connecting()`."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self.connection = connection
        self.lock = threading.RLock()
        _OPEN.add(self)

    def close(self) -> None:
        """Close the connection."""
        with self.lock:
            _OPEN.discard(self)
            self.connection.close()


_OPEN: set[Guarded] = set()
_WAITED_FOR: list[Guarded] = []
_UNUSABLE: set[Path] = set()
_forking = threading.Lock()


def check_usable(path: Path) -> None:
    """Raise `StorageError` for a database file that another thread was using when this process was forked."""
    if path in _UNUSABLE:
        raise StorageError(
            f"{path} cannot be used in this process, which was forked while another thread was writing to it: fork when "
            "nothing is being written, or start a new process"
        )


@contextmanager
def connecting() -> Iterator[None]:
    """Delay forks during the block, which creates a connection and guards it."""
    _watch_forks()
    with _forking:
        yield


def make_private(path: Path) -> None:
    """Create the file with access for its owner alone; SQLite gives the files beside it the same permissions.

    An existing file is not touched: closing any handle of a file releases all locks of this process on it.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | BINARY, 0o600))


@cache
def _watch_forks() -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_in_child)


def _before_fork() -> None:
    _forking.acquire()
    _WAITED_FOR.extend(each for each in list(_OPEN) if each.lock.acquire(timeout=FORK_PATIENCE_S))


def _after_fork() -> None:
    for each in _WAITED_FOR:
        each.lock.release()
    _WAITED_FOR.clear()
    _forking.release()


def _after_in_child() -> None:
    global _forking
    _forking = threading.Lock()
    for each in _OPEN:
        # A lock that is free here was free at the fork, even if the fork did not wait for it.
        if (each in _WAITED_FOR or each.lock.acquire(blocking=False)) and not each.connection.in_transaction:
            each.connection.close()
        else:
            _UNUSABLE.add(each.path)
    _WAITED_FOR.clear()
    _OPEN.clear()
