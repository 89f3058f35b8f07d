"""A server shared by the stores of one process: its connections, its lease as a holder of sessions, its followers."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

from ...errors import SessionNotFoundError, StorageError
from ...ground.backoff import Backoff
from .holders import Holder
from .news import News, NewsSource
from .refusals import with_advice

T = TypeVar("T")
RETRIES = Backoff(0.005, 0.1)


class StoreServer(ABC):
    """A server as used by one process; subclasses connect with a driver.

    `where` names it for people. `refusal` is the base class of the driver's errors, `broken` are those of a connection that
    was lost or not established.
    """

    kind: ClassVar[str]

    def __init__(
        self, where: str, refusal: type[Exception], broken: tuple[type[Exception], ...], source: NewsSource
    ) -> None:
        self.users = 0
        self.where = where
        self.holder = Holder(self._renew)
        self.news = News(source)
        self._refusal = refusal
        self._broken = broken
        self._pid = os.getpid()
        self._guard = threading.Lock()

    @abstractmethod
    def call(self, session_id: str | None, work: Callable[[Any], T], patience_s: float, *, first_s: float = 0.0) -> T:
        """Do the work on a connection; restart the work while the server is unreachable, for at most `patience_s` seconds.

        A server that this process has never reached is tried for `first_s` seconds. Raises `StorageError`.
        """

    @abstractmethod
    def _renew(self, name: str) -> None:
        """Extend the lease of the holder of that name to `LEASE_S` from now."""

    @abstractmethod
    def _disconnect(self) -> None:
        """End all connections."""

    def _reason_of(self, error: Exception) -> str:
        """The reason for a refusal on one line, and what to do about it."""
        return with_advice(str(error))

    def close(self) -> None:
        """End all connections of this process."""
        if self._pid == os.getpid():
            self.news.close()
            self.holder.close()
            self._disconnect()

    def is_unreachable(self, error: Exception) -> bool:
        """Whether the error means that the server cannot be reached, not that something is wrong with a session."""
        return isinstance(error, StorageError) and isinstance(error.__cause__, self._broken)

    @contextmanager
    def translated(self, session_id: str | None = None) -> Iterator[None]:
        """Convert the driver's errors in the block to this package's."""
        try:
            yield
        except UnicodeEncodeError as error:
            # Everything except ids is sent as ASCII, and no session has an id with a lone surrogate.
            raise SessionNotFoundError(str(session_id), self.where) from error
        except self._refusal as error:
            if "\0" in (session_id or ""):
                raise SessionNotFoundError(str(session_id), self.where) from error
            text = f"{self.kind} failed ({self.where}): {self._reason_of(error)}"
            raise StorageError(text, session_id=session_id) from error
