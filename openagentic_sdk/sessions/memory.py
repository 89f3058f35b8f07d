"""Sessions in memory, for tests and for runs that nobody needs to keep.

Events go through JSON like everywhere else, so what cannot be stored fails here too, and a caller who changes what it
passed or got changes nothing in the store.
"""

from __future__ import annotations

import hashlib
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..clock import Clock, SystemClock
from ..errors import SessionExistsError, SessionLockedError, SessionNotFoundError, StorageError
from ..events import Event
from ..serialization import dumps_event, dumps_json, loads_event, loads_json
from .base import SessionStore, SessionWriter


@dataclass
class _Session:
    created_at: float
    metadata: str
    updated: int
    lines: list[str] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


class MemorySessionStore(SessionStore):
    """Sessions that end with the process."""

    durability = "memory"

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._sessions: dict[str, _Session] = {}
        self._guard = threading.Lock()
        self._writes = 0

    def create_session(self, *, metadata: Mapping[str, Any] | None = None, session_id: str | None = None) -> str:
        session_id = session_id or uuid.uuid4().hex
        with self._guard:
            if session_id in self._sessions:
                raise SessionExistsError(session_id)
            self._sessions[session_id] = _Session(self._clock.now(), dumps_json(dict(metadata or {})), self._tick())
        return session_id

    def open_writer(self, session_id: str) -> SessionWriter:
        session = self._session(session_id)
        if not session.lock.acquire(blocking=False):
            raise SessionLockedError(session_id, "another run in this process")
        return _MemoryWriter(self, session_id, session)

    def iter_events(self, session_id: str, *, after_seq: int = 0, limit: int | None = None) -> Iterator[Event]:
        lines = self._session(session_id).lines[after_seq:]
        for line in lines if limit is None else lines[:limit]:
            yield loads_event(line, strict=False)

    def read_metadata(self, session_id: str) -> dict[str, Any]:
        session = self._session(session_id)
        return {"session_id": session_id, "created_at": session.created_at, "metadata": loads_json(session.metadata)}

    def update_metadata(self, session_id: str, changes: Mapping[str, Any]) -> None:
        session = self._session(session_id)
        with self._guard:
            merged = {**loads_json(session.metadata), **changes}
            session.metadata = dumps_json({key: value for key, value in merged.items() if value is not None})

    def list_sessions(self) -> list[str]:
        with self._guard:
            return sorted(self._sessions, key=lambda name: self._sessions[name].updated, reverse=True)

    def session_exists(self, session_id: str) -> bool:
        return session_id in self._sessions

    def delete_session(self, session_id: str) -> None:
        with self.open_writer(session_id), self._guard:
            del self._sessions[session_id]

    def put_blob(self, session_id: str, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        self._session(session_id).blobs[digest] = bytes(data)
        return digest

    def read_blob(self, session_id: str, sha256: str) -> bytes:
        try:
            return self._session(session_id).blobs[sha256]
        except KeyError:
            raise StorageError(f"session {session_id!r} has no blob {sha256}", session_id=session_id) from None

    def _append(self, session: _Session, events: Sequence[Event]) -> list[Event]:
        now, first = self._clock.now(), len(session.lines) + 1
        stamped = [replace(event, seq=first + i, ts=now) for i, event in enumerate(events)]
        session.lines.extend([dumps_event(event) for event in stamped])
        session.updated = self._tick()
        return stamped

    def _session(self, session_id: str) -> _Session:
        try:
            return self._sessions[session_id]
        except KeyError:
            raise SessionNotFoundError(session_id, "memory") from None

    def _tick(self) -> int:
        self._writes += 1
        return self._writes


class _MemoryWriter(SessionWriter):
    def __init__(self, store: MemorySessionStore, session_id: str, session: _Session) -> None:
        self.session_id = session_id
        self._store = store
        self._session = session
        self._open = True

    @property
    def last_seq(self) -> int:
        return len(self._session.lines)

    def append(self, events: Sequence[Event]) -> list[Event]:
        if not self._open:
            raise StorageError("this writer is closed: open the session again", session_id=self.session_id)
        return self._store._append(self._session, events)

    def close(self) -> None:
        if self._open:
            self._open = False
            self._session.lock.release()
