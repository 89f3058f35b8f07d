"""Erase data that must not be retained, wherever a store has it, and preserve the proof of everything else.

    find     locate it: in the session, its forks, subagents and parents, in blobs, metadata and waiting messages
    begin    append `record.erasing` to each affected log, the session's own last: the places to erase, not their values
    erase    rewrite each log atomically with marks instead of values and without their salts, the session's own last, and
             the forks made of them meanwhile; then delete unreferenced blobs, caches, crash leftovers and free pages
    end      append `record.erased` to each affected log and to every fork and child, so that their readers learn of it

`finish_erasures` continues an erasure that was killed: every step is idempotent. Until the session's own log
records an erasure, not all of its places are known: what the other logs record can be finished, and the rest must be
requested again.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from ...errors import ConcurrencyError, InvalidEventError, OptionsError, SessionError, SessionLockedError
from ...events import Event, RecordErased, RecordErasing, SessionForked, ToolResult, ToolUse
from ...ground.disk import SystemDisk, whole_file
from ...ground.frozen import changed, frozen
from ...serialization import dumps_event, dumps_json
from ...sessions.base import DIGEST_WITHIN, SessionStore
from ...sessions.folds.search import Progress
from ...sessions.memory import MemorySessionStore
from ...sessions.seal import Seal
from .abandoned import end_session
from .archive import archive_session, restore_session
from .commit import ERASED, is_at_or_below
from .lifecycle import kept_with, reachable
from .places import (
    FieldPlace,
    Needles,
    erase_places,
    find_places,
    is_marked,
    leaf_place,
    needles_of,
    places_of,
    value_at,
)

# How often a log that grew while it was read is read again.
ROUNDS = 3
# The states of a run that a later process continues.
_RESUMABLE = ("running", "waiting", "suspended")


@frozen
class ErasedIn:
    """The part of an erasure in one session: the places as (`seq`, JSON pointer) and the number of blobs.

    `left` contains places that hold the value but cannot be erased because they hold the session together.
    """

    session_id: str
    places: tuple[FieldPlace, ...] = ()
    blobs: int = 0
    left: tuple[FieldPlace, ...] = ()


@frozen
class Erasure:
    """The result of an erasure or of a dry run.

    `told` are forks and children without any of the values, whose logs only record the erasure. `archives` are the archive
    files to rewrite. `notices` are sentences about copies that this program cannot reach, about earlier erasures that it
    finished, and about runs that it ended because one of their open calls has lost a part of its input.
    """

    erasure_id: str
    sessions: tuple[ErasedIn, ...]
    told: tuple[str, ...] = ()
    archives: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()


@frozen
class UnfinishedErasure:
    """An erasure that was begun and not finished: the session that it was requested for, and all sessions that record it."""

    erasure_id: str
    source_session_id: str
    sessions: tuple[str, ...]
    reason: str = ""
    by: str = ""

    @property
    def is_recorded(self) -> bool:
        """Whether all its places are recorded. Otherwise, finishing it erases only a part of what was requested."""
        return self.source_session_id in self.sessions


def erase(
    store: SessionStore,
    session_id: str,
    fields: Iterable[FieldPlace] = (),
    *,
    texts: Collection[str] = (),
    spread: bool = True,
    everywhere: bool = False,
    archives: Iterable[str | os.PathLike[str]] = (),
    reason: str = "",
    by: str = "",
    seal: Seal | None = None,
    dry_run: bool = False,
) -> Erasure:
    """Erase fields, each given as (`seq`, JSON pointer), and every field that contains one of `texts`.

    With `spread`, the erased values are also searched for, whole and in every usual form, in all sessions of the same
    family, or with `everywhere` in all sessions; without it, the given fields are erased only there. `texts` are searched
    for in these sessions in either case. `archives` are files of `archive_session`, which are rewritten without the values.
    With `dry_run` nothing is changed. If an earlier erasure of this session was killed, it is finished first, so that
    repeating a request is enough.

    Raises `OptionsError` for places that are unknown, empty or needed to read the session, without anything to erase, and
    for an unusable key; `SessionHeldError` for a session on legal hold; `SessionLockedError` while a run writes to one of
    the sessions, and `LogCorruptError` for a damaged log. If one of the last two is raised only during the search, some
    logs already record the erasure: request it again.
    """
    seal = seal or store.seal
    _require_usable(seal)
    events = store.read_events(session_id)
    asked_places = _checked_places(session_id, events, fields)
    needles = _needles(events, asked_places if spread else (), texts)
    if not asked_places and not needles.texts:
        raise OptionsError("give a field of an event, or a string of 4 or more characters to erase")

    def others_now() -> list[str]:
        names = store.list_sessions() if everywhere else _family(store, session_id)
        return [name for name in names if name != session_id] if needles.texts else []

    others = others_now()
    _refuse_unerasable(store, [*others, session_id])
    first_notices: list[str] = []
    if not dry_run:
        if any(each.source_session_id == session_id for each in _unfinished(store, [*others, session_id])):
            finished = finish_erasures(store, session_id, seal=seal)
            first_notices += [f"erasure {name}, which had been stopped, was finished first" for name in finished]
        first_notices += _end_runs(store, [*others, session_id], session_id, asked_places, needles, seal)
    work = _ErasureWork(store, os.urandom(8).hex(), session_id, seal, reason, by)
    done_archives = [str(path) for path in archives]
    if not dry_run:
        # First: afterwards the values to look for there are no longer available.
        for path in done_archives:
            _erase_archive(Path(path), needles, reason=reason, by=by, seal=seal)
        _forget_beside(store, [*others, session_id], needles)
    sessions = [work.begin(name, (), needles, dry_run=dry_run) for name in others]
    # Last: once the source's log has its marker, every other affected log has one, and `finish_erasures` finds them all.
    mine = work.begin(session_id, asked_places, needles, dry_run=dry_run)
    if not dry_run:  # also in forks made during the search
        fresh = [name for name in others_now() if name not in others]
        _forget_beside(store, fresh, needles)
        sessions += [work.begin(name, (), needles, dry_run=False) for name in fresh]
    sessions = [each for each in sessions if each.places or each.left or each.blobs]
    touched = [*(each.session_id for each in sessions if each.places or each.blobs), session_id]
    notices = () if dry_run else work.finish(touched)
    relatives = tuple(name for name in _forks_and_children(store, session_id) if name not in touched)
    all_notices = (*first_notices, *notices)
    return Erasure(work.erasure_id, (mine, *sessions), relatives, tuple(done_archives), all_notices)


def unfinished_erasures(store: SessionStore, session_id: str | None = None) -> list[UnfinishedErasure]:
    """The erasures that were begun and not finished: those that this session requested or is part of, or all of them.

    Reads every log of the store.
    """
    erasures = _unfinished(store, sorted(store.list_sessions()), store.index_progress)
    return [each for each in erasures if session_id is None or session_id in (each.source_session_id, *each.sessions)]


def _unfinished(
    store: SessionStore, names: Sequence[str], progress: Progress | None = None
) -> Iterable[UnfinishedErasure]:
    """The unfinished erasures that the logs of these sessions record."""
    found: dict[str, UnfinishedErasure] = {}
    for count, name in enumerate(names, 1):
        # A damaged log must be salvaged first; its own erasures remain begun. Another log may be deleted meanwhile.
        with suppress(SessionError, InvalidEventError):
            for event in _unfinished_in(store.iter_events(name)):
                new = UnfinishedErasure(event.erasure_id, event.source_session_id, (), event.reason, event.by)
                each = found.get(event.erasure_id, new)
                found[event.erasure_id] = changed(each, sessions=(*each.sessions, name))
        if progress is not None:
            progress(count, len(names))
    return found.values()


def has_unfinished_erasure(events: Iterable[Event]) -> bool:
    """Whether a log records an erasure as begun and not as ended."""
    return bool(_unfinished_in(events))


def finish_erasures(store: SessionStore, session_id: str | None = None, *, seal: Seal | None = None) -> list[str]:
    """Finish erasures that were killed, those that this session requested or is part of, or all; return their ids.

    Raises `SessionNotFoundError`, and `OptionsError` for an unusable key.
    """
    if session_id is not None:
        store.read_metadata(session_id)
    return [each.erasure_id for each in finish_each(store, unfinished_erasures(store, session_id), seal=seal)]


def finish_each(
    store: SessionStore, erasures: Sequence[UnfinishedErasure], *, seal: Seal | None = None
) -> Sequence[UnfinishedErasure]:
    """Finish these erasures; return them. Raises `OptionsError` for an unusable key."""
    _require_usable(seal or store.seal)
    for each in erasures:
        source = each.source_session_id
        ordered = [*(name for name in each.sessions if name != source), *([source] if each.is_recorded else [])]
        _ErasureWork(store, each.erasure_id, source, seal or store.seal, each.reason, each.by).finish(ordered)
    return erasures


def _require_usable(seal: Seal) -> None:
    """Raise `OptionsError` for an unusable key: with it, rewriting a log would remove what this installation signed."""
    seal.matches("")


def _unfinished_in(events: Iterable[Event]) -> list[RecordErasing]:
    """The erasures that a log records as begun, and not as ended."""
    begun: dict[str, RecordErasing] = {}
    ended: set[str] = set()
    for event in events:
        if isinstance(event, RecordErasing):
            begun.setdefault(event.erasure_id, event)
        elif isinstance(event, RecordErased):
            ended.add(event.erasure_id)
    return [event for event in begun.values() if event.erasure_id not in ended]


# --- find ------------------------------------------------------------------------------------------------------------


def _checked_places(session_id: str, events: Sequence[Event], fields: Iterable[FieldPlace]) -> list[FieldPlace]:
    places = []
    for seq, pointer in fields:
        if not 1 <= seq <= len(events):
            raise OptionsError(f"session {session_id!r} has events 1 to {len(events)}, and no event {seq}")
        places.append((seq, leaf_place(events[seq - 1], pointer)))
    return places


def _needles(events: Sequence[Event], places: Iterable[FieldPlace], texts: Collection[str]) -> Needles:
    """The texts to search for: those of the values at these places, and those of `texts` that are not blank."""
    values = [value_at(events[seq - 1], pointer) for seq, pointer in places]
    return Needles([text for value in values for text in needles_of(value).texts] + [t for t in texts if t.strip()])


def _refuse_unerasable(store: SessionStore, names: Iterable[str]) -> None:
    """Raise `SessionHeldError` for a session that must be kept, `SessionLockedError` for one that a run is writing."""
    for name in names:
        for keeper in kept_with(store, name):
            store.refuse_kept(keeper, "erased from", may_shorten=True)
        if store.is_held(name):
            raise SessionLockedError(name, "a run")


def _end_runs(
    store: SessionStore,
    names: Iterable[str],
    source: str,
    asked_places: Sequence[FieldPlace],
    needles: Needles,
    seal: Seal,
) -> list[str]:
    """End each parked or lost run with an open call that would lose a part of its input; return sentences about them.

    Resumed, it would execute the call with marks in place of the erased values.
    """
    ended: dict[str, None] = {}
    for name in names:
        if store.read_run_state(name) not in _RESUMABLE:
            continue
        events = store.read_events(name)
        results = {event.tool_use_id for event in events if isinstance(event, ToolResult)}
        uses = [event for event in events if isinstance(event, ToolUse) and event.tool_use_id not in results]
        open_seqs = {event.seq for event in uses}
        places = find_places(events, asked_places if name == source else (), needles)[0]
        if any(seq in open_seqs and is_at_or_below(pointer, "/input") for seq, pointer in places):
            # The outermost run first: it ends those of its subagents. A subagent's alone would leave its question open.
            for each in reversed([name, *_callers(store, name)]):
                if end_session(store, each, seal, also_parked=True)[1]:
                    ended[each] = None
    return [
        f"the run of session {name!r} was ended: one of its open calls has lost a part of its input" for name in ended
    ]


def _callers(store: SessionStore, session_id: str) -> list[str]:
    """The sessions in whose calls a subagent's session runs, nearest first."""
    found: list[str] = []
    row = store.read_summary(session_id)
    while row.is_child and row.parent is not None and row.parent not in (session_id, *found):
        if not store.session_exists(row.parent):
            break
        found.append(row.parent)
        row = store.read_summary(row.parent)
    return found


def _parents(store: SessionStore) -> dict[str, str | None]:
    return {row.id: row.parent for row in store.list_session_summaries(include_children=True)}


def _family(store: SessionStore, session_id: str) -> list[str]:
    """The sessions that this one descends from, and all descendants of any of these."""
    parents = _parents(store)

    def near(name: str) -> list[str]:
        return [other for other, parent in parents.items() if parent == name or other == parents.get(name)]

    return reachable(session_id, near)


def _forks_and_children(store: SessionStore, session_id: str) -> list[str]:
    """All descendants of the session: its forks and children, theirs, and so on."""
    parents = _parents(store)
    return reachable(session_id, lambda name: [other for other, parent in parents.items() if parent == name])


def _forget_beside(store: SessionStore, names: Iterable[str], needles: Needles) -> None:
    """Erase the metadata values, and delete the messages waiting for a run, that contain a text to erase."""
    for name in names:
        metadata: dict[str, Any] = store.read_metadata(name)["metadata"]
        store.update_metadata(name, {key: ERASED for key, value in metadata.items() if needles.are_in(value)})
        if store.has_inbox:
            waiting = store.read_messages([name])
            store.remove_messages([each.number for each in waiting if needles.are_in(dumps_json(dict(each.message)))])


def _erase_archive(path: Path, needles: Needles, **settings: Any) -> None:
    """Rewrite an archive without the erased texts; its signatures remain valid."""
    store = MemorySessionStore()
    first = restore_session(store, path)[0]
    if needles.texts:
        erase(store, first, texts=needles.texts, everywhere=True, **settings)
    with whole_file(SystemDisk(), path) as unfinished:
        archive_session(store, first, unfinished)


# --- begin, erase and end --------------------------------------------------------------------------------------------


@frozen
class _ErasureWork:
    """The work of one erasure on all sessions; `source` is the session that it was requested for.

    `seal` is the key with which changed events are signed again.
    """

    store: SessionStore
    erasure_id: str
    source: str
    seal: Seal
    reason: str
    by: str

    def begin(
        self, session_id: str, asked_places: Sequence[FieldPlace], needles: Needles, *, dry_run: bool
    ) -> ErasedIn:
        """Find the places to erase in one session and, unless it is a dry run, record them there.

        Raises `SessionLockedError` if the log grows during each of `ROUNDS` searches.
        """
        store = self.store
        for _ in range(ROUNDS):
            events = store.read_events(session_id)
            blobs = [
                name for name in store.list_blobs(session_id) if needles.are_in_bytes(store.read_blob(session_id, name))
            ]
            outputs = store.list_outputs(session_id)
            holding = [name for name in outputs if needles.are_in_bytes(store.read_output(session_id, name))]
            # Names of blobs are digests, from which a short value could be guessed: they are erased from events too,
            # and blobs that no event references any longer are deleted.
            places, unerasable = find_places(events, asked_places, Needles([*needles.texts, *blobs, *holding]), outputs)
            result = ErasedIn(session_id, tuple(places), len(blobs) + len(holding), tuple(unerasable))
            if dry_run or not (places or result.blobs or self.source == session_id):
                return result
            place_records = [{"seq": seq, "path": pointer} for seq, pointer in places]
            marker = RecordErasing(self.erasure_id, self.source, place_records, self.reason, self.by)
            # Refused if the log has grown meanwhile: the search has not seen its newest events.
            with suppress(ConcurrencyError):
                store.append_events(session_id, [marker], expected_seq=len(events))
                return result
        raise SessionLockedError(session_id, "a run that keeps writing")

    def finish(self, touched: Sequence[str]) -> tuple[str, ...]:
        """Finish the erasure that the logs of these sessions record as begun; return the store's notices.

        The source's log comes last; each part is idempotent.
        """
        store, ended = self.store, list[tuple[str, int]]()
        touched, fresh = list(touched), list(touched)
        while fresh:
            for name in fresh:
                store.rewrite_events(name, partial(self._rewritten, name))
                ended.append((name, _delete_unnamed(store, name)))
            # Again after each round: a fork made during the rewrite has the old values, and may have been forked in
            # turn.
            fresh = self._begin_in_forks(touched)
            touched += fresh
        # After all rewrites: until then, free pages of a database and caches contain the old values.
        notices = tuple(dict.fromkeys(store.scrub(*touched)))
        relatives = _forks_and_children(store, self.source) if store.session_exists(self.source) else []
        ended = [*((name, 0) for name in relatives if name not in touched), *ended]
        # The source's marker comes last: its presence means that the erasure is finished everywhere.
        ended.sort(key=lambda pair: pair[0] == self.source)
        for name, blobs in ended:
            markers = [event for event in store.iter_events(name) if isinstance(event, RecordErased)]
            if not any(event.erasure_id == self.erasure_id for event in markers):
                store.append_event(name, RecordErased(self.erasure_id, self.source, blobs, self.reason, self.by))
        return notices

    def _begin_in_forks(self, touched: Collection[str]) -> list[str]:
        """Record the erasure in the forks made since it began, which may contain the values; return their ids.

        A fork has the places of its source up to its cut, under the same `seq`.
        """
        store = self.store
        began = {
            name: event
            for name in touched
            for event in store.iter_events(name)
            if isinstance(event, RecordErasing) and event.erasure_id == self.erasure_id
        }
        since = min((event.ts or 0.0 for event in began.values()), default=0.0)
        begun = []
        for row in store.list_session_summaries(include_children=True):
            # Older forks existed when the erasure began: it has searched them if that was requested.
            if row.id in touched or row.parent is None or row.created < since:
                continue
            try:
                events = store.read_events(row.id)
            except (SessionError, InvalidEventError):
                continue  # deleted just now, or damaged: it must be salvaged first
            cuts = [e for e in events if isinstance(e, SessionForked) and e.parent_session_id in began]
            if not cuts:
                continue
            if not any(isinstance(e, RecordErasing) and e.erasure_id == self.erasure_id for e in events):
                copied = [
                    (seq, pointer)
                    for seq, pointer in places_of(began[cuts[-1].parent_session_id])
                    if 1 <= seq < (cuts[-1].seq or 0) and not is_marked(events[seq - 1], pointer)
                ]
                if not copied and not store.list_blobs(row.id):
                    continue  # all blobs of the source are copied, whatever the cut
                records = [{"seq": seq, "path": pointer} for seq, pointer in copied]
                store.append_event(row.id, RecordErasing(self.erasure_id, self.source, records, self.reason, self.by))
            begun.append(row.id)
        return begun

    def _rewritten(self, session_id: str, events: list[Event]) -> Mapping[int, Event]:
        markers = (
            event for event in events if isinstance(event, RecordErasing) and event.erasure_id == self.erasure_id
        )
        return erase_places(session_id, events, [place for event in markers for place in places_of(event)], self.seal)


def _delete_unnamed(store: SessionStore, session_id: str) -> int:
    """Delete blobs and stored outputs that no event refers to; return how many.

    Their references were erased, or a crash left them.
    """
    outputs, blobs = set(store.list_outputs(session_id)), set(store.list_blobs(session_id))
    for event in store.iter_events(session_id):
        text = dumps_event(event)
        blobs.difference_update(DIGEST_WITHIN.findall(text))
        outputs.difference_update([name for name in outputs if name in text])
    store.delete_blobs(session_id, sorted(blobs))
    store.delete_outputs(session_id, sorted(outputs))
    return len(blobs) + len(outputs)
