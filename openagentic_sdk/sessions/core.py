"""The core of a session store: what a run needs from it, and what each backend implements.

Everything else that a store offers is derived from it, see `sessions.base`.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, ClassVar, cast

from ..errors import ConcurrencyError
from ..events import AnyEvent, Event
from .folds.view import KeptView
from .request import json_sha256

# The metadata key for the session's owner.
TENANT_KEY = "tenant"


class SessionWriter(ABC):
    """The exclusive right to append to one session, from `open_writer` until `close` or the death of the process.

    `epoch` increases with every writer of a session. A store whose lock can be lost (a server restarted, somebody took the
    session over) checks it in each append, so that a writer that continues after hanging cannot write.
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
        """Keep the view after a compaction for the next resume: a cache, which a store need not support."""

    def waits_for_disk(self, events: Sequence[Event]) -> bool:
        """Whether `append` of these events would block, so that an event loop must call it in a thread."""
        return False

    @abstractmethod
    def close(self) -> None:
        """Release the right to write. Closing twice is allowed."""

    def __enter__(self) -> SessionWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class StoreCore(ABC):
    """The core of a session store: the methods that each backend implements, and others that a run needs."""

    is_remote: ClassVar[bool] = False
    durability: str = "memory"

    @abstractmethod
    def create_session(self, *, metadata: Mapping[str, Any] | None = None, session_id: str | None = None) -> str:
        """Create an empty session; return its id. Raises `SessionExistsError`, and `OptionsError` for an invalid id."""

    @abstractmethod
    def open_writer(self, session_id: str) -> SessionWriter:
        """Become the session's only writer. Raises `SessionNotFoundError`, or `SessionLockedError` immediately."""

    @abstractmethod
    def iter_events(self, session_id: str, *, after_seq: int = 0, limit: int | None = None) -> Iterator[Event]:
        """Yield stored events with `seq > after_seq`, at most `limit`. Raises `SessionNotFoundError`, `LogCorruptError`."""

    @abstractmethod
    def read_run_state(self, session_id: str) -> str:
        """Return the `SessionSummary.state` of the newest run according to the log. Raises `SessionNotFoundError`."""

    @abstractmethod
    def open_question_ids(self, session_id: str) -> tuple[str, ...]:
        """Return the ids of the open questions of the session and its subagents. Raises `SessionNotFoundError`."""

    @abstractmethod
    def read_metadata(self, session_id: str) -> dict[str, Any]:
        """Return `{"session_id", "created_at", "metadata": {...}}`. Raises `SessionNotFoundError`."""

    @abstractmethod
    def update_metadata(self, session_id: str, changes: Mapping[str, Any]) -> None:
        """Set keys of the session's `metadata`; a value of None removes the key. Raises `SessionNotFoundError`."""

    @abstractmethod
    def list_sessions(self) -> list[str]:
        """Return the ids of all sessions, most recently written first."""

    @abstractmethod
    def delete_session(self, session_id: str, *, expected_seq: int | None = None) -> None:
        """Remove the session and its blobs. Raises `SessionNotFoundError`, or `SessionLockedError` while a run uses it.

        With `expected_seq`, raises `ConcurrencyError` and removes nothing unless the log's last event has that `seq`. A
        session that is on hold or retained is not removed (`SessionHeldError`).
        """

    @abstractmethod
    def put_blob(self, session_id: str, data: bytes) -> str:
        """Store a large value durably beside the log; return its SHA-256. Raises `SessionNotFoundError`."""

    @abstractmethod
    def read_blob(self, session_id: str, sha256: str) -> bytes:
        """Return the bytes of a blob. Raises `SessionNotFoundError`, or `StorageError` for a missing or damaged blob."""

    @abstractmethod
    def claim_request(self, session_id: str, request_id: str) -> str:
        """Bind a request id to this session, unless another session has it; return the session that has it now.

        Deleting a session releases its request ids. Raises `SessionNotFoundError`.
        """

    # --- derived -----------------------------------------------------------------------------------------------------

    def read_events(self, session_id: str, *, after_seq: int = 0, limit: int | None = None) -> list[AnyEvent]:
        """Like `iter_events`, as a list."""
        return cast("list[AnyEvent]", [*self.iter_events(session_id, after_seq=after_seq, limit=limit)])

    def append_events(
        self, session_id: str, events: Sequence[Event], *, expected_seq: int | None = None
    ) -> list[Event]:
        """Append outside a run, under the session's lock; return the stored events.

        With `expected_seq`, raises `ConcurrencyError` and writes nothing unless the log's last event has that `seq`.
        """
        with self.open_writer(session_id) as writer:
            # Under the lock, so that nobody can append between the check and the write.
            check_expected_seq(session_id, expected_seq, writer.last_seq)
            return writer.append(events)

    def append_event(self, session_id: str, event: Event) -> Event:
        """Append one event outside a run; return it as stored."""
        return self.append_events(session_id, [event])[0]

    def read_kept_view(self, session_id: str) -> tuple[KeptView | None, Iterator[Event]]:
        """Return the stored view after the last compaction, and the events after it; None and all events, unless this
        installation stored a view of this log. The view is a cache, which a store need not support.
        """
        return None, self.iter_events(session_id)


def new_session_id() -> str:
    """A new random session id: 32 hexadecimal digits."""
    return os.urandom(16).hex()


def session_of_request(request_id: str) -> str:
    """The session id for a request whose caller names no session, derived from the request id: the same in every process."""
    return f"request-{json_sha256(request_id)[:32]}"


def check_expected_seq(session_id: str, expected_seq: int | None, last_seq: int) -> None:
    """Raise `ConcurrencyError` if the last event is not the expected one; None skips the check."""
    if expected_seq is not None and (last_seq != expected_seq or type(expected_seq) is not int):
        raise ConcurrencyError(session_id, expected_seq, last_seq)
