"""What a session store is: a small core that a backend implements, and everything else derived from it once.

All calls are plain and blocking. A store that talks to a network sets `is_remote`, and the runtime calls it off the event
loop. Every read gives an exact prefix of what was appended, in the order of `seq`, or raises: records are never skipped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, ClassVar

from ..errors import ConcurrencyError
from ..events import Event


class SessionWriter(ABC):
    """The exclusive right to append to one session, from `open_writer` until `close` or the death of the process."""

    session_id: str

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

    @abstractmethod
    def close(self) -> None:
        """Give the right back. Closing twice is allowed."""

    def __enter__(self) -> SessionWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SessionStore(ABC):
    """Where sessions live. The abstract methods are the whole contract; a backend may override the others to be faster."""

    is_remote: ClassVar[bool] = False
    durability: str = "memory"

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
    def delete_session(self, session_id: str) -> None:
        """Remove the session and its blobs. Raises `SessionNotFoundError`, or `SessionLockedError` while a run uses it."""

    @abstractmethod
    def put_blob(self, session_id: str, data: bytes) -> str:
        """Store a big value beside the log, durable before this returns; returns its sha256."""

    @abstractmethod
    def read_blob(self, session_id: str, sha256: str) -> bytes:
        """The bytes of a blob. Raises `SessionNotFoundError`, or `StorageError` when there is no such blob."""

    def read_events(self, session_id: str, *, after_seq: int = 0, limit: int | None = None) -> list[Event]:
        """Like `iter_events`, as a list."""
        return list(self.iter_events(session_id, after_seq=after_seq, limit=limit))

    def append_events(
        self, session_id: str, events: Sequence[Event], *, expected_seq: int | None = None
    ) -> list[Event]:
        """Append outside of a run, under the session's lock; returns the stored events.

        With `expected_seq`, raises `ConcurrencyError` and writes nothing unless the log's last event has that `seq`.
        """
        with self.open_writer(session_id) as writer:
            if expected_seq is not None and writer.last_seq != expected_seq:
                raise ConcurrencyError(session_id, expected_seq, writer.last_seq)
            return writer.append(events)

    def append_event(self, session_id: str, event: Event) -> Event:
        """Append one event outside of a run; returns it as it was stored."""
        return self.append_events(session_id, [event])[0]

    def session_exists(self, session_id: str) -> bool:
        """Whether there is such a session."""
        return session_id in self.list_sessions()

    def close(self) -> None:
        """Let go of connections and handles; the store can be opened again."""
