"""Retention of sessions: legal holds, retention until a date, and purging of old sessions.

A purge leaves a tombstone for each session in the session `tombstones`: what it contained, its times, and its signed head.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

from ...errors import OptionsError, SessionError, SessionExistsError, SessionLockedError, SessionNotFoundError
from ...events import RecordErased, RecordKept, RecordPurged, RecordSigned, SessionMeta
from ...ground.frozen import frozen
from ...sessions.base import SessionStore
from ...sessions.folds.search import Progress
from ...sessions.folds.summary import SessionSummary
from .lifecycle import TOMBSTONES, descendants, kept_with, reachable
from .sign import statement_of
from .verify import receipt_of

# A key in that session's metadata: whether sessions were deleted whose remains the store may still have.
_UNSCRUBBED = "unscrubbed"


def hold_session(
    store: SessionStore, session_id: str, *, release: bool = False, reason: str = "", by: str = ""
) -> None:
    """Hold the session and those of its subagents, even later ones, so that nothing deletes, purges or erases their data.

    `release` ends the hold.
    """
    for name in (session_id, *descendants(store, session_id)):
        store.append_event(name, RecordKept(held=not release, reason=reason, by=by))


def retain_session(store: SessionStore, session_id: str, until: float, *, reason: str = "", by: str = "") -> None:
    """Retain the session and those of its subagents until a time (epoch seconds; 0 ends the retention).

    Fields can still be erased in the meantime. Raises `OptionsError` for any other number.
    """
    # 1e11 s is in the year 5138: a greater number is a time in milliseconds.
    if not 0 <= until < 1e11:
        raise OptionsError(f"{until!r} is not a valid retention time: give epoch seconds, or 0 to end it")
    for name in (session_id, *descendants(store, session_id)):
        store.append_event(name, RecordKept(until=float(until), reason=reason, by=by))


@frozen
class Purged:
    """The result of a purge, or a dry run, for one old session. `why` is the reason to keep it, empty if it is purged."""

    session_id: str
    events: int
    why: str = ""


def purge_sessions(
    store: SessionStore,
    older_than_s: float,
    *,
    reason: str = "",
    by: str = "",
    dry_run: bool = False,
    progress: Progress | None = None,
) -> list[Purged]:
    """Delete the sessions that have had no new events for this long, and those of their subagents; leave tombstones.

    Sessions that are held, retained or in use are kept, as are their ancestors and all tombstones. A child is deleted with
    its parent, or on its own if the parent is missing. `progress` receives the number of sessions done and the total. A
    purge that was stopped can be repeated.
    """
    before = time.time() - older_than_s
    work = _Purge(store, reason, by)
    old_rows = [
        row
        for row in work.rows.values()
        if row.updated < before and row.id != TOMBSTONES and not (row.is_child and row.parent in work.rows)
    ]
    done: list[Purged] = []
    for row in old_rows:
        why = ""
        try:
            doomed = work.checked(row.id)
            if not dry_run:
                work.delete(doomed)
        except SessionError as error:
            why = str(error)
        done.append(Purged(row.id, row.events, why))
        if progress is not None:
            progress(len(done), len(old_rows))
    if not dry_run:
        work.scrub()
    return done


def purge_session(store: SessionStore, session_id: str, *, reason: str = "", by: str = "") -> list[str]:
    """Delete a session and those of its subagents, and leave tombstones; return the ids, children first.

    The tombstones are stored before anything is deleted, so that a killed purge can be repeated. Forks that no run holds
    record the purge. Raises `SessionHeldError`, `SessionLockedError`, and `OptionsError` for the tombstones themselves; in
    each case nothing is deleted.
    """
    work = _Purge(store, reason, by)
    doomed = work.checked(session_id)
    work.delete(doomed)
    work.scrub()
    return doomed


class _Purge:
    """A purge of one or more sessions, which reads the summaries of all sessions once."""

    def __init__(self, store: SessionStore, reason: str, by: str) -> None:
        self._store = store
        self._reason = reason
        self._by = by
        self.rows = {row.id: row for row in store.list_session_summaries(include_children=True)}
        self._named: dict[str, list[SessionSummary]] = {}
        for row in self.rows.values():
            if row.parent is not None:
                self._named.setdefault(row.parent, []).append(row)
        self._purged: set[tuple[str, float]] | None = None
        self._deleted_ids: list[str] = []

    def checked(self, session_id: str) -> list[str]:
        """Return the session's id after those of its subagents if all may be deleted.

        Raises `SessionHeldError`, `SessionLockedError`, and `OptionsError` for the tombstones.
        """
        doomed = [*reversed(reachable(session_id, self._children)), session_id]
        for name in kept_with(self._store, session_id):
            self._store.refuse_kept(name, "purged")
        for name in doomed:
            if name == TOMBSTONES:
                raise OptionsError("the tombstones record what was purged and cannot be purged themselves")
            self._store.refuse_kept(name, "purged")
            if self._store.is_held(name):
                raise SessionLockedError(name, "a run")
        return doomed

    def delete(self, doomed: Sequence[str]) -> None:
        """Record tombstones of these sessions, delete them, and record the purge in their forks."""
        store, purged = self._store, self._begin()
        # Not again for those that an earlier, killed purge recorded without deleting them.
        stones = [_tombstone(store, name, self._reason, self._by) for name in doomed]
        stones = [stone for stone in stones if _purged(stone) not in purged]
        store.append_events(TOMBSTONES, stones)
        purged.update(map(_purged, stones))
        for name in doomed:
            store.delete_session(name)
            self._deleted_ids.append(name)
        for name in doomed:
            for fork in self._named.get(name, ()):
                if fork.id not in doomed:
                    with suppress(SessionLockedError, SessionNotFoundError):  # the tombstone covers one that is in use
                        store.append_event(fork.id, RecordErased("purge", doomed[-1], reason=self._reason, by=self._by))

    def scrub(self) -> None:
        """Remove the remains of deleted sessions from the store, including those of a purge that was stopped before this."""
        if self._deleted_ids or self._is_unscrubbed():
            self._store.scrub(*self._deleted_ids)
            self._store.update_metadata(TOMBSTONES, {_UNSCRUBBED: False})

    def _children(self, session_id: str) -> list[str]:
        return [row.id for row in self._named.get(session_id, ()) if row.is_child]

    def _begin(self) -> set[tuple[str, float]]:
        """Create the session of tombstones if it is missing, and record that sessions will be deleted.

        Return which sessions have a tombstone.
        """
        if self._purged is None:
            store = self._store
            with suppress(SessionExistsError):
                store.create_session(session_id=TOMBSTONES)
                store.append_event(TOMBSTONES, SessionMeta(title="What was purged"))
            events = store.iter_events(TOMBSTONES)
            self._purged = {_purged(event) for event in events if isinstance(event, RecordPurged)}
            store.update_metadata(TOMBSTONES, {_UNSCRUBBED: True})
        return self._purged

    def _is_unscrubbed(self) -> bool:
        has_stones = TOMBSTONES in self.rows
        return has_stones and bool(self._store.read_metadata(TOMBSTONES)["metadata"].get(_UNSCRUBBED))


def _purged(stone: RecordPurged) -> tuple[str, float]:
    """The session that a tombstone is about, by id and creation time: another session may get the same id."""
    return stone.purged_session_id, stone.created


def _tombstone(store: SessionStore, session_id: str, reason: str, by: str) -> RecordPurged:
    summary = store.read_summary(session_id)
    newest: RecordSigned | None = None
    with suppress(SessionError):  # unreadable parts of a damaged log are left out of the tombstone
        for event in store.iter_events(session_id):
            newest = event if isinstance(event, RecordSigned) and event.signatures else newest
    signed = {} if newest is None else {**receipt_of(newest), "statement": statement_of(newest).decode("ascii")}
    head = None if newest is None else newest.head
    return RecordPurged(session_id, summary.events, summary.created, summary.updated, head, signed, reason, by)
