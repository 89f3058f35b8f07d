"""Retention of sessions: legal holds, retention until a date, and purging of old sessions.

A purge leaves a tombstone for each session in the session `tombstones`: what it contained, its times, and its signed head.
"""

from __future__ import annotations

import time
from contextlib import suppress

from ...errors import OptionsError, SessionError, SessionExistsError, SessionLockedError
from ...events import RecordErased, RecordKept, RecordPurged, RecordSigned, SessionMeta
from ...ground.frozen import frozen
from ...sessions.base import SessionStore
from .lifecycle import descendants
from .sign import statement_of
from .verify import receipt_of

TOMBSTONES = "tombstones"


def hold_session(
    store: SessionStore, session_id: str, *, release: bool = False, reason: str = "", by: str = ""
) -> None:
    """Hold the session and those of its subagents: nothing deletes, purges or erases data in them until release."""
    for name in (session_id, *descendants(store, session_id)):
        store.append_event(name, RecordKept(held=not release, reason=reason, by=by))


def retain_session(store: SessionStore, session_id: str, until: float, *, reason: str = "", by: str = "") -> None:
    """Retain the session and those of its subagents until a time (epoch seconds; 0 ends the retention).

    Fields can still be erased in the meantime.
    """
    # 1e11 s is in the year 5138: a greater number is a time in milliseconds.
    if not 0 <= until < 1e11:
        raise OptionsError(f"{until!r} is not a valid retention time: give epoch seconds, or 0 to end it")
    for name in (session_id, *descendants(store, session_id)):
        store.append_event(name, RecordKept(until=float(until), reason=reason, by=by))


@frozen
class Purged:
    """The result of a purge for one old session: `why` is the reason it was kept, empty if it was purged."""

    session_id: str
    events: int
    why: str = ""


def purge_sessions(
    store: SessionStore, older_than_s: float, *, reason: str = "", by: str = "", dry_run: bool = False
) -> list[Purged]:
    """Delete every session, with those of its subagents, that has had no new events for this long; each leaves a tombstone.

    Sessions that are held, retained or in use are kept, as are their ancestors and all tombstones. A child is deleted with
    its parent, or on its own if the parent is missing.
    """
    before = time.time() - older_than_s
    done: list[Purged] = []
    rows = list(store.list_session_summaries(include_children=True))
    known_ids = {row.id for row in rows}
    for row in rows:
        if row.updated >= before or row.id == TOMBSTONES or (row.is_child and row.parent in known_ids):
            continue
        why = ""
        try:
            if not dry_run:
                purge_session(store, row.id, reason=reason, by=by)
            else:
                for name in (row.id, *descendants(store, row.id)):
                    store.refuse_kept(name, "purged")
        except SessionError as error:
            why = str(error)
        done.append(Purged(row.id, row.events, why))
    return done


def purge_session(store: SessionStore, session_id: str, *, reason: str = "", by: str = "") -> list[str]:
    """Delete a session and those of its subagents, and leave tombstones; return the ids, children first.

    The tombstone is on disk before anything is deleted, so that a killed purge can be repeated. Forks that no run holds
    record the purge. Raises `SessionHeldError` or `SessionLockedError`, in which case nothing is deleted.
    """
    doomed = [*reversed(descendants(store, session_id)), session_id]
    for name in doomed:
        if name == TOMBSTONES:
            raise OptionsError("the tombstones record what was purged and cannot be purged themselves")
        store.refuse_kept(name, "purged")
        if store.is_held(name):
            raise SessionLockedError(name, "a run")
    with suppress(SessionExistsError):
        store.create_session(session_id=TOMBSTONES)
        store.append_event(TOMBSTONES, SessionMeta(title="What was purged"))
    purged_ids = {event.purged_session_id for event in store.iter_events(TOMBSTONES) if isinstance(event, RecordPurged)}
    # Not again for those that an earlier, killed purge recorded without deleting them.
    store.append_events(TOMBSTONES, [_tombstone(store, name, reason, by) for name in doomed if name not in purged_ids])
    rows = store.list_session_summaries(include_children=True)
    forks = [row.id for row in rows if row.parent in doomed and row.id not in doomed]
    for name in doomed:
        store.delete_session(name)
    for name in forks:
        with suppress(SessionLockedError):  # a fork with an active writer is covered by the tombstone
            store.append_event(name, RecordErased("purge", session_id, reason=reason, by=by))
    for name in doomed:
        store.scrub(name)
    return doomed


def _tombstone(store: SessionStore, session_id: str, reason: str, by: str) -> RecordPurged:
    summary = store.read_summary(session_id)
    newest: RecordSigned | None = None
    with suppress(SessionError):  # unreadable parts of a damaged log are left out of the tombstone
        for event in store.iter_events(session_id):
            newest = event if isinstance(event, RecordSigned) and event.signatures else newest
    signed = {} if newest is None else {**receipt_of(newest), "statement": statement_of(newest).decode("ascii")}
    head = None if newest is None else newest.head
    return RecordPurged(session_id, summary.events, summary.created, summary.updated, head, signed, reason, by)
