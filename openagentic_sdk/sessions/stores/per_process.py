"""Values that a forked process must not share with its parent: connections, locks, threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from ...errors import StorageError


class Shared(Protocol):
    """A resource that several stores of a process share."""

    users: int

    def close(self) -> None:
        """Close the resource, after its last user has left."""


T = TypeVar("T")
S = TypeVar("S", bound=Shared)


class PerProcess(Generic[T]):
    """A value that each process creates on first use.

    A value inherited through `os.fork()` is kept and never touched: closing it would terminate a connection that the parent
    still uses.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._values: dict[int, T] = {}
        self._guards: dict[int, threading.Lock] = {}

    def get(self) -> T:
        """Return this process's value, created on first use."""
        pid = os.getpid()
        if pid not in self._values:
            # The parent's lock may be held by a thread that does not exist in the child.
            with self._guards.setdefault(pid, threading.Lock()):
                if pid not in self._values:
                    self._values[pid] = self._make()
        return self._values[pid]

    def take(self) -> T | None:
        """Remove and return this process's value, to close it; the next `get` creates another. None without one."""
        return self._values.pop(os.getpid(), None)


class SharedByName(Generic[S]):
    """The resources that a process's stores share, one per name, created for the first user and closed after the last."""

    def __init__(self, make: Callable[..., S]) -> None:
        self._make = make
        self._shared_values: PerProcess[dict[tuple[Any, ...], S]] = PerProcess(dict)
        self._guard: PerProcess[threading.Lock] = PerProcess(threading.Lock)

    def join(self, *name: Any) -> S:
        """Return the resource of that name, for one more store."""
        with self._guard.get():
            shared = self._shared_values.get().get(name) or self._make(*name)
            self._shared_values.get()[name] = shared
            shared.users += 1
            return shared

    def leave(self, shared: S) -> None:
        """Record that a store that used the resource has been closed; after the last one, close the resource."""
        with self._guard.get():
            shared.users -= 1
            if shared.users > 0:
                return
            by_key = self._shared_values.get()
            for name in [name for name, each in by_key.items() if each is shared]:
                del by_key[name]
        shared.close()


def check_own(session_id: str, pid: int) -> None:
    """Raise `StorageError` for an append with a writer of another process."""
    if pid != os.getpid():
        raise StorageError(
            f"this writer was opened in process {pid}, before os.fork(): only that process may append with it; open the "
            "session here after that process has closed it",
            session_id=session_id,
        )


def check_open(session_id: str, is_open: bool) -> None:
    """Raise `StorageError` for an append with a closed writer."""
    if not is_open:
        raise StorageError("this writer is closed: open the session again", session_id=session_id)
