"""Sessions in memory, for tests and for runs whose log is not needed later.

Events are converted to JSON as everywhere else, so values that cannot be stored fail here, too, and changing an argument or
a result does not change the store.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from ..errors import (
    ConcurrencyError,
    LeaseLostError,
    SessionExistsError,
    SessionLockedError,
    SessionNotFoundError,
    StorageError,
)
from ..events import Event
from ..ground.clock import Clock
from ..ground.frozen import mutable
from ..serialization import dumps_json, loads_json
from .arguments import check_digest, check_text, cut_limit, cut_number, cut_numbers, find_possible, is_possible_id
from .base import (
    Metadata,
    SessionStore,
    When,
    check_session_id,
    dumps_all_stored,
    loads_stored,
    merged_metadata,
    read_clock,
    stamp_events,
)
from .core import SessionWriter, check_expected_seq, new_session_id
from .folds.summary import SessionSummary, fold_session_summary, start_summary
from .folds.view import KeptView
from .inbox import MAX_WAITING, InboxMessage, dumps_message, full_inbox, loads_message
from .rewriting import Rewrite
from .stores.per_process import check_open


@mutable
class _MemorySession:
    created_at: float
    metadata: str
    summary: SessionSummary
    updated: int
    lines: list[str] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)
    outputs: dict[str, bytes] = field(default_factory=dict)
    checkpoint: bytes | None = None
    epoch: int = 0
    is_held: bool = False


class MemorySessionStore(SessionStore):
    """A store of sessions in memory, which are lost with the store object."""

    durability = "memory"
    has_inbox = True

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = read_clock(clock)
        self._sessions: dict[str, _MemorySession] = {}
        # Reentrant: deleting and rewriting open a writer while they hold it.
        self._guard = threading.RLock()
        self._writes = 0
        self._messages: list[tuple[int, _MemorySession, str, str]] = []
        self._claims: dict[str, tuple[str, _MemorySession]] = {}

    def create_session(self, *, metadata: Mapping[str, Any] | None = None, session_id: str | None = None) -> str:
        return self.import_session(session_id or new_session_id(), (), metadata=metadata)

    def open_writer(self, session_id: str) -> SessionWriter:
        with self._guard:
            if self._session(session_id).is_held:
                raise SessionLockedError(session_id, "another run in this process")
            return self.take_over(session_id)

    def take_over(self, session_id: str) -> SessionWriter:
        with self._guard:
            session = self._session(session_id)
            session.is_held = True
            # As in stores on disk: a writer that was replaced finds another epoch, and its appends are refused.
            session.epoch += 1
            return _MemoryWriter(self, session_id, session)

    def iter_events(self, session_id: str, *, after_seq: int = 0, limit: int | None = None) -> Iterator[Event]:
        after_seq, limit = cut_number("after_seq", after_seq), cut_limit(limit)
        lines = self._session(session_id).lines[after_seq:]  # a copy, which appends during the iteration do not change
        for seq, line in enumerate(lines[:limit], start=after_seq + 1):
            yield loads_stored(session_id, seq, line)

    def read_metadata(self, session_id: str) -> dict[str, Any]:
        session = self._session(session_id)
        return {"session_id": session_id, "created_at": session.created_at, "metadata": loads_json(session.metadata)}

    def update_metadata(self, session_id: str, changes: Mapping[str, Any]) -> None:
        with self._guard:
            session = self._session(session_id)
            session.metadata = dumps_json(merged_metadata(loads_json(session.metadata), changes))
            session.summary = self.fold_summary(session_id)

    def list_sessions(self) -> list[str]:
        with self._guard:
            return sorted(self._sessions, key=lambda name: (self._sessions[name].updated, name), reverse=True)

    def kept_summary(self, session_id: str) -> SessionSummary:
        return self._session(session_id).summary

    def is_held(self, session_id: str) -> bool:
        return self._session(session_id).is_held

    def session_exists(self, session_id: str) -> bool:
        return is_possible_id(session_id) and session_id in self._sessions

    def claim_request(self, session_id: str, request_id: str) -> str:
        check_text("request_id", request_id)
        with self._guard:
            name, session = self._claims.get(request_id, (session_id, None))
            # Compared by identity: a session that was deleted and created again does not inherit the claim.
            if session is None or self._sessions.get(name) is not session:
                self._claims[request_id] = name, _ = session_id, self._session(session_id)
            return name

    def delete_session(self, session_id: str, *, expected_seq: int | None = None) -> None:
        self.refuse_kept(session_id)
        with self._guard, self.open_writer(session_id) as writer:
            check_expected_seq(session_id, expected_seq, writer.last_seq)
            session = self._sessions.pop(session_id)
            self._messages = [entry for entry in self._messages if entry[1] is not session]
            self._claims = {name: claim for name, claim in self._claims.items() if claim[1] is not session}

    def rewrite_events(self, session_id: str, change: Rewrite) -> None:
        with self._guard, self.open_writer(session_id):
            session = self._session(session_id)
            events = list(self.iter_events(session_id))
            changed = change(events)
            rewritten = [changed.get(event.seq or 0, event) for event in events]
            session.lines, session.checkpoint = dumps_all_stored(rewritten), None
            session.summary = self.fold_summary(session_id)

    def delete_blobs(self, session_id: str, digests: Collection[str]) -> None:
        for digest in digests:
            self._session(session_id).blobs.pop(digest, None)

    def list_outputs(self, session_id: str) -> list[str]:
        return sorted(self._session(session_id).outputs)

    def read_output(self, session_id: str, name: str) -> bytes:
        outputs = self._session(session_id).outputs
        return outputs[name] if name in outputs else super().read_output(session_id, name)

    def add_output(self, session_id: str, name: str, data: bytes) -> None:
        self._session(session_id).outputs[name] = data

    def delete_outputs(self, session_id: str, names: Collection[str]) -> None:
        for name in names:
            self._session(session_id).outputs.pop(name, None)

    def put_blob(self, session_id: str, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        self._session(session_id).blobs[digest] = bytes(data)
        return digest

    def read_blob(self, session_id: str, sha256: str) -> bytes:
        check_digest(session_id, sha256)
        try:
            return self._session(session_id).blobs[sha256]
        except KeyError:
            raise StorageError(f"session {session_id!r} has no blob {sha256}", session_id=session_id) from None

    def list_blobs(self, session_id: str) -> list[str]:
        return sorted(self._session(session_id).blobs)

    def put_message(self, session_id: str, message: Mapping[str, Any]) -> int:
        text = dumps_message(message)
        with self._guard:
            session = self._session(session_id)
            if sum(entry[1] is session for entry in self._messages) >= MAX_WAITING:
                raise full_inbox(session_id)
            self._messages.append((self._tick(), session, session_id, text))
            return self._messages[-1][0]

    def read_messages(self, session_ids: Collection[str], *, after: int = 0) -> list[InboxMessage]:
        after = cut_number("after", after)
        with self._guard:
            # By identity again: messages to a deleted session do not reach a new one with its id.
            mine = {name: self._sessions.get(name) for name in session_ids}
            entries = [entry for entry in self._messages if entry[0] > after and mine.get(entry[2]) is entry[1]]
        return [loads_message(number, name, text) for number, _, name, text in entries]

    def remove_messages(self, numbers: Collection[int]) -> None:
        numbers = cut_numbers(numbers)
        with self._guard:
            self._messages = [entry for entry in self._messages if entry[0] not in set(numbers)]

    def keep_checkpoint(self, session_id: str, data: bytes) -> None:
        self._session(session_id).checkpoint = data

    def read_checkpoint(self, session_id: str) -> bytes | None:
        return self._session(session_id).checkpoint

    def _import_events(
        self, session_id: str, created_at: When, metadata: Metadata, events: Iterator[Event], blobs: Iterator[bytes]
    ) -> None:
        created_at = self._clock.now() if created_at is None else created_at
        # Encoded before the lock is taken: an iterator of the caller's may read this very store.
        event_list, metadata_json = list(events), dumps_json(dict(metadata))
        blobs_by_digest = {hashlib.sha256(data).hexdigest(): bytes(data) for data in blobs}
        lines = dumps_all_stored(event_list)
        start = start_summary(check_session_id(session_id), created_at, loads_json(metadata_json))
        summary = fold_session_summary(start, event_list)
        with self._guard:
            if session_id in self._sessions:
                raise SessionExistsError(session_id)
            self._sessions[session_id] = _MemorySession(
                created_at, metadata_json, summary, self._tick(), lines, blobs_by_digest
            )

    def _session(self, session_id: str) -> _MemorySession:
        try:
            return self._sessions[find_possible(session_id, "memory")]
        except KeyError:
            raise SessionNotFoundError(
                session_id, "memory", "store.list_session_summaries() lists the sessions"
            ) from None

    def _tick(self) -> int:
        self._writes += 1
        return self._writes


class _MemoryWriter(SessionWriter):
    last_seq = 0

    def __init__(self, store: MemorySessionStore, session_id: str, session: _MemorySession) -> None:
        self.session_id = session_id
        self.epoch = session.epoch
        self._store = store
        self._session = session
        self.last_seq = len(session.lines)
        self._open = True

    def append(self, events: Sequence[Event]) -> list[Event]:
        check_open(self.session_id, self._open)
        store, session = self._store, self._session
        with store._guard:
            last_seq = len(session.lines)
            if session.epoch != self.epoch:
                raise LeaseLostError(self.session_id, self.last_seq, last_seq)
            if store._sessions.get(self.session_id) is not session:
                raise ConcurrencyError(self.session_id, self.last_seq, 0)
            stamped = stamp_events(events, first_seq=last_seq + 1, now=store._clock.now())
            session.lines.extend(dumps_all_stored(stamped))
            session.summary = fold_session_summary(session.summary, stamped)
            session.updated = store._tick()
            self.last_seq = len(session.lines)
            return stamped

    def keep_view(self, view: KeptView) -> None:
        self._store.keep_view(self.session_id, view)

    def close(self) -> None:
        if self._open:
            self._open = False
            with self._store._guard:
                if self._session.epoch == self.epoch:
                    self._session.is_held = False
