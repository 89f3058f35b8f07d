"""The smallest store that meets the contract: the core methods, without overrides of derived ones."""

from __future__ import annotations

import hashlib
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from openagentic_sdk.errors import SessionExistsError, SessionLockedError, SessionNotFoundError, StorageError
from openagentic_sdk.events import Event
from openagentic_sdk.serialization import dumps_json, loads_json
from openagentic_sdk.sessions.arguments import check_digest, cut_limit, cut_number
from openagentic_sdk.sessions.base import SessionStore, check_session_id, loads_stored, stamp_events
from openagentic_sdk.sessions.core import SessionWriter, check_expected_seq
from openagentic_sdk.sessions.log.line import dumps_stored


class MinimalStore(SessionStore):
    def __init__(self) -> None:
        self.sessions: dict[str, dict[str, Any]] = {}
        self.touched: dict[str, int] = {}
        self.changing = threading.Lock()

    def create_session(self, *, metadata: Mapping[str, Any] | None = None, session_id: str | None = None) -> str:
        session_id = check_session_id(session_id or uuid.uuid4().hex)
        if session_id in self.sessions:
            raise SessionExistsError(session_id)
        self.sessions[session_id] = {
            "created_at": time.time(),
            "metadata": dumps_json(dict(metadata or {})),
            "lines": [],
            "blobs": {},
            "lock": threading.Lock(),
        }
        self.touch(session_id)
        return session_id

    def open_writer(self, session_id: str) -> SessionWriter:
        if not self.session(session_id)["lock"].acquire(blocking=False):
            raise SessionLockedError(session_id)
        return MinimalWriter(self, session_id)

    def iter_events(self, session_id: str, *, after_seq: int = 0, limit: int | None = None) -> Iterator[Event]:
        after_seq, limit = cut_number("after_seq", after_seq), cut_limit(limit)
        lines = self.session(session_id)["lines"][after_seq:][:limit]
        return (loads_stored(session_id, seq, line) for seq, line in enumerate(lines, start=after_seq + 1))

    def read_metadata(self, session_id: str) -> dict[str, Any]:
        session = self.session(session_id)
        known = loads_json(session["metadata"])
        return {"session_id": session_id, "created_at": session["created_at"], "metadata": known}

    def update_metadata(self, session_id: str, changes: Mapping[str, Any]) -> None:
        with self.changing:
            merged = {**self.read_metadata(session_id)["metadata"], **changes}
            kept = {key: value for key, value in merged.items() if value is not None}
            self.sessions[session_id]["metadata"] = dumps_json(kept)

    def list_sessions(self) -> list[str]:
        return sorted(self.sessions, key=self.touched.__getitem__, reverse=True)

    def delete_session(self, session_id: str, *, expected_seq: int | None = None) -> None:
        self.refuse_kept(session_id)
        with self.open_writer(session_id) as writer:
            check_expected_seq(session_id, expected_seq, writer.last_seq)
            del self.sessions[session_id]

    def put_blob(self, session_id: str, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        self.session(session_id)["blobs"][digest] = bytes(data)
        return digest

    def read_blob(self, session_id: str, sha256: str) -> bytes:
        check_digest(session_id, sha256)
        blobs: dict[str, bytes] = self.session(session_id)["blobs"]
        if sha256 not in blobs:
            raise StorageError(f"no blob {sha256}", session_id=session_id)
        return blobs[sha256]

    def session(self, session_id: str) -> dict[str, Any]:
        if session_id not in self.sessions:
            raise SessionNotFoundError(session_id)
        return self.sessions[session_id]

    def touch(self, session_id: str) -> None:
        self.touched[session_id] = 1 + max(self.touched.values(), default=0)


class MinimalWriter(SessionWriter):
    def __init__(self, store: MinimalStore, session_id: str) -> None:
        self.session_id = session_id
        self.store = store
        self.session: dict[str, Any] | None = store.session(session_id)

    @property
    def last_seq(self) -> int:
        return len(self.session["lines"]) if self.session else 0

    def append(self, events: Sequence[Event]) -> list[Event]:
        if self.session is None:
            raise StorageError("closed", session_id=self.session_id)
        with self.store.changing:
            stamped = stamp_events(events, first_seq=self.last_seq + 1, now=time.time())
            self.session["lines"].extend([dumps_stored(event) for event in stamped])
            self.store.touch(self.session_id)
        return stamped

    def close(self) -> None:
        if self.session is not None:
            self.session["lock"].release()
            self.session = None
