"""The core of a session store: what each backend implements, and everything else is derived from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from ..events import Event
from .folds.view import KeptView


class SessionWriter(ABC):
    """The exclusive right to append to one session, from `open_writer` until `close` or the death of the process.

    `epoch` rises with every writer of a session. A store whose lock can be lost (a server restarted, somebody took the
    session over) checks it in each append, so that a writer that hung and wakes up cannot write.
    """

    session_id: str
    epoch: int = 0

    @property
    @abstractmethod
    def last_seq(self) -> int:
        """The `seq` of the log's last event, 0 for an empty log."""

    @abstractmethod
    def append(self, events: Sequence[Event]) -> list[Event]:
        """Store the events as one batch, all or none, and return them with `seq` and `ts` set.

        Raises `InvalidEventError` when one of them cannot be written as JSON, `StorageError` when the store refuses, and
        `ConcurrencyError` when somebody else wrote in spite of the lock; in each case nothing of the batch is visible.
        """

    def keep_view(self, kept: KeptView) -> None:
        """Keep what a view must hold behind a compaction for the next resume: a cache. A store need not keep any."""

    def waits_for_disk(self, events: Sequence[Event]) -> bool:
        """Whether `append` of these would keep its caller waiting, so that an event loop calls it in a thread."""
        return False

    @abstractmethod
    def close(self) -> None:
        """Give the right back. Closing twice is allowed."""

    def __enter__(self) -> SessionWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class StoreCore(ABC):
    """The calls that a backend must have: the whole contract."""

    @abstractmethod
    def create_session(self, *, metadata: Mapping[str, Any] | None = None, session_id: str | None = None) -> str:
        """A new, empty session; returns its id. Raises `SessionExistsError`, and `OptionsError` for an unusable id."""

    @abstractmethod
    def open_writer(self, session_id: str) -> SessionWriter:
        """Become the session's one writer. Raises `SessionNotFoundError`, or `SessionLockedError` at once."""

    @abstractmethod
    def iter_events(self, session_id: str, *, after_seq: int = 0, limit: int | None = None) -> Iterator[Event]:
        """The stored events with `seq > after_seq`, at most `limit`. Raises `SessionNotFoundError`, `LogCorruptError`."""

    @abstractmethod
    def read_metadata(self, session_id: str) -> dict[str, Any]:
        """`{"session_id", "created_at", "metadata": {...}}`. Raises `SessionNotFoundError`."""

    @abstractmethod
    def update_metadata(self, session_id: str, changes: Mapping[str, Any]) -> None:
        """Set keys of the session's `metadata`; a value of None removes the key."""

    @abstractmethod
    def list_sessions(self) -> list[str]:
        """The ids of all sessions, the one last written to first."""

    @abstractmethod
    def delete_session(self, session_id: str, *, expected_seq: int | None = None) -> None:
        """Remove the session and its blobs. Raises `SessionNotFoundError`, or `SessionLockedError` while a run uses it.

        With `expected_seq`, raises `ConcurrencyError` and removes nothing unless the log's last event has that `seq`. A
        session that is held or to be kept (`refuse_kept`) is not removed.
        """

    @abstractmethod
    def put_blob(self, session_id: str, data: bytes) -> str:
        """Store a big value beside the log, durable before this returns; returns its sha256."""

    @abstractmethod
    def read_blob(self, session_id: str, sha256: str) -> bytes:
        """The bytes of a blob. Raises `SessionNotFoundError`, or `StorageError` when there is no such blob."""
