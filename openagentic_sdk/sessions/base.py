"""The interface of a session store: a small core that a backend implements, and everything else derived from it once.

All calls are synchronous and blocking. A store that uses a network sets `is_remote`, and the runtime calls it off the event
loop. Every read returns an exact prefix of what was appended, in the order of `seq`, or raises: records are never skipped.
"""

from __future__ import annotations

import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

from ..errors import (
    InvalidEventError,
    LogCorruptError,
    OptionsError,
    SessionError,
    SessionHeldError,
    SessionNotFoundError,
    StorageError,
)
from ..events import Event, RecordKept, UserMessage
from ..ground.checks import check_settings, is_a, or_none, shown
from ..ground.clock import Clock, SystemClock
from ..ground.frozen import frozen
from ..ground.patterns import regex
from ..ground.text import on_one_line
from ..serialization import EncodedEvents, dumps_event, dumps_json, encode_events, loads_event, loads_json
from .arguments import MAX_ID_CHARS, check_filters, check_query, check_text, cut_limit, cut_number
from .checkpoint import CheckpointingStore
from .core import SessionWriter
from .folds.search import Progress, SearchHit, scan_events, search_words
from .folds.standing import ROW_STATES, with_lease
from .folds.summary import (
    LAST_TIME,
    SessionSummary,
    failed_summary,
    fold_session_summary,
    page_of,
    start_summary,
    summary_matches,
)
from .log.line import dumps_stored, stamp_event
from .rewriting import Rewriting
from .waiting import PollingStore

Metadata = Mapping[str, Any]
When = float | None  # epoch seconds; None means now
# The most ids to find for a prefix that a person typed: more than one is ambiguous.
SOME_IDS = 3
_MOST_SUBAGENTS = 100
# Digests of blobs within a text.
DIGEST_WITHIN = regex(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")


# A row's position in a list: the time or number of its last write, a tie-breaker for the same time, its id.
Place = tuple[float, float, str]
# The most rows that one page reads.
MOST_SCANNED = 1000


@frozen
class SessionPage:
    """A page of a list of sessions. `next` is the cursor of the next page, None on the last one."""

    rows: Sequence[SessionSummary]
    next: str | None = None


@frozen
class Remains:
    """The readable remainder of a session that may be damaged: `holes` describes known losses in sentences.

    `iter_events` yields the events up to the first damaged or missing one, where it raises `LogCorruptError`; `blobs` are
    the digests of its blobs, readable with `read_blob`.
    """

    metadata: Mapping[str, Any]
    iter_events: Callable[[], Iterator[Event]]
    blobs: tuple[str, ...]
    read_blob: Callable[[str], bytes]
    holes: tuple[str, ...] = ()


class SessionStore(PollingStore, CheckpointingStore, Rewriting):
    """A session store: the core, and everything derived from it, overridable by faster implementations."""

    index_progress: Progress | None = None
    """Called with the number of sessions done and the total while an index is updated by a search, a list with a query or of
    a folder, or a sum of costs.
    """

    place: object = None
    """Where the sessions are: equal for two stores of this process that share them; None if no other store does."""

    def last_seq(self, session_id: str) -> int:
        """Return the `seq` of the log's last event, 0 for an empty log. Raises `SessionNotFoundError`."""
        return self.kept_summary(session_id).events

    def read_run_state(self, session_id: str) -> str:
        return self.kept_summary(session_id).state

    def open_question_ids(self, session_id: str) -> tuple[str, ...]:
        return self.read_summary(session_id).open_questions

    def claim_request(self, session_id: str, request_id: str) -> str:
        """Like `StoreCore.claim_request`, but store nothing: this default searches all logs for the request id, so two
        processes may succeed at once. A store with an index lets only one of them succeed.
        """
        check_text("request_id", request_id)
        self.read_metadata(session_id)
        owners: list[tuple[float, str]] = []
        for name in self.list_sessions():
            with suppress(SessionNotFoundError):
                ids = (event.request_id for event in self.iter_events(name) if isinstance(event, UserMessage))
                if request_id in ids:
                    owners.append((self.read_metadata(name)["created_at"], name))
        return min(owners, default=(0.0, session_id))[1]  # the oldest: copies of it contain the prompt, too

    def take_over(self, session_id: str) -> SessionWriter:
        """Become the writer although the holder is alive but hangs: from now on, the holder's appends raise
        `LeaseLostError`.

        A store whose lock belongs to the operating system cannot do this, and raises the errors of `open_writer`.
        """
        return self.open_writer(session_id)

    def session_exists(self, session_id: str) -> bool:
        """Whether the session exists."""
        return session_id in self.list_sessions()

    # --- lists, derived ----------------------------------------------------------------------------------------------

    def read_summary(self, session_id: str) -> SessionSummary:
        """Return the session's row, as lists show it. Raises `SessionNotFoundError`."""
        return as_shown(self, self.kept_summary(session_id))

    def kept_summary(self, session_id: str) -> SessionSummary:
        """Like `fold_summary`; a store that maintains summaries returns the stored one, and folds only a stale one."""
        return self.fold_summary(session_id)

    def is_held(self, session_id: str) -> bool | None:
        """Whether a live process writes to the session; None if unknown. Raises `SessionNotFoundError`."""
        return None

    def fold_summary(self, session_id: str) -> SessionSummary:
        """Compute the session's row from its whole log."""
        meta = self.read_metadata(session_id)
        start = start_summary(session_id, meta["created_at"], meta["metadata"])
        return fold_session_summary(start, self.iter_events(session_id))

    def list_session_summaries(
        self,
        *,
        cwd: str | None = None,
        limit: int | None = None,
        offset: int = 0,
        query: str | None = None,
        include_children: bool = False,
        tenant: str | None = None,
    ) -> list[SessionSummary]:
        """Return a page of rows, most recently written session first; an unreadable session is a row with an `error`.

        `query` filters by words in title, prompts, tags, model and id. Sessions of subagents are excluded unless
        `include_children`. `cwd` selects the sessions of one folder, `tenant` those of one tenant, "" those without one
        (None: all).
        """
        check_filters(query=query, tenant=tenant, cwd=cwd)
        limit, offset = cut_limit(limit), cut_number("offset", offset)
        if limit == 0:
            return []
        if not query:
            page = partial(self._list_page, cwd=cwd, tenant=tenant, include_children=include_children)
            return list(page(limit=limit, offset=offset))
        rows = self._rows_behind(None, tenant=tenant, include_children=include_children, query=query, cwd=cwd)
        matching = (row for _, row in rows if summary_matches(row, query=query, include_children=True))
        return list(page_of(matching, limit=limit, offset=offset))

    def page_sessions(
        self,
        *,
        limit: int,
        after: str | None = None,
        tenant: str | None = None,
        include_children: bool = False,
        keep: Callable[[SessionSummary], bool] | None = None,
        query: str | None = None,
    ) -> SessionPage:
        """Return the rows of `list_session_summaries` after the cursor `after`, the `next` of the previous page.

        Sessions created, written to or deleted between two pages do not shift others: no row appears twice, and only rows
        that were written to can be missed. A page examines at most `MOST_SCANNED` rows, so with a filter (`keep` or `query`)
        it may be shorter than `limit`, or empty, and yet have a next page. Raises `OptionsError` for an invalid cursor.
        """
        check_filters(query=query, tenant=tenant)
        limit = cut_number("limit", limit)
        place = read_cursor(after)
        if limit == 0:
            return SessionPage([], after)
        rows: list[SessionSummary] = []
        candidates = self._rows_behind(place, tenant=tenant, include_children=include_children, query=query or "")
        for count, (place_of_row, row) in enumerate(candidates, 1):
            if summary_matches(row, query=query, include_children=True) and (keep is None or keep(row)):
                rows.append(row)
            # A page ends after so many rows even if none fits: a rare filter must not read the whole store in one request.
            if len(rows) >= limit or count == MOST_SCANNED:
                return SessionPage(rows, written_cursor(place_of_row()))
        return SessionPage(rows)

    def _rows_behind(
        self,
        after: Place | None,
        *,
        tenant: str | None,
        include_children: bool,
        query: str = "",
        cwd: str | None = None,
    ) -> Iterator[tuple[Callable[[], Place], SessionSummary]]:
        """Yield the rows after a position, lazily, each with a function that returns its own position.

        A store may omit rows without the words of `query`; the caller filters anyway.
        """
        matches = partial(summary_matches, cwd=cwd, include_children=include_children, tenant=tenant)
        ids = self._ids_behind(after, query=query, cwd=cwd)
        rows = ((place, self._row(session_id)) for place, session_id in ids)
        return ((place, row) for place, row in rows if matches(row))

    def _ids_behind(
        self, after: Place | None, *, query: str = "", cwd: str | None = None
    ) -> Iterator[tuple[Callable[[], Place], str]]:
        """Yield the ids of `list_sessions` after a position, lazily; a store may omit ids that do not match."""
        for session_id in self.list_sessions():
            place = partial(self._place_of, session_id)
            if after is None or place() < after:
                yield place, session_id

    def _place_of(self, session_id: str) -> Place:
        return self._row(session_id).updated, 0.0, session_id

    def _row(self, session_id: str) -> SessionSummary:
        try:
            return self.read_summary(session_id)
        except (SessionError, InvalidEventError) as error:
            return failed_summary(session_id, error)

    def _list_page(
        self, *, cwd: str | None, tenant: str | None, include_children: bool, limit: int | None, offset: int
    ) -> Iterator[SessionSummary]:
        rows = self._rows_behind(None, tenant=tenant, include_children=include_children, cwd=cwd)
        return page_of((row for _, row in rows), limit=limit, offset=offset)

    def ids_beginning(self, start: str) -> list[str]:
        """Return the ids with this prefix: all of them, or at least two if there are more; none for an empty prefix."""
        check_text("start", start)
        return [name for name in self.list_sessions() if start and name.startswith(start)]

    def update_search(self, progress: Progress | None = None) -> None:
        """Update the index that `search` uses, if the store has one; a search does this itself.

        `progress` is used instead of `index_progress`.
        """

    def list_children(self, session_id: str) -> list[str]:
        """Return the ids of the sessions started by this session's Task calls."""
        return [
            row.id
            for row in self.list_session_summaries(include_children=True)
            if row.is_child and row.parent == session_id
        ]

    def search(self, query: str, *, limit: int = 50, tenant: str | None = None) -> list[SearchHit]:
        """Return the events in which every word of `query` begins some word, newest session first.

        `tenant` selects sessions as in lists; `limit` is the most events. Raises `OptionsError` for a query of more than
        `MAX_QUERY_CHARS` characters or `MAX_QUERY_WORDS` words.
        """
        check_text("query", query)
        check_filters(query=query, tenant=tenant)
        limit = cut_number("limit", limit)
        words = list(dict.fromkeys(search_words(query)))
        check_query(query, words)
        return self._find_words(words, limit, tenant) if words and limit else []

    def _find_words(self, words: Sequence[str], limit: int, tenant: str | None) -> list[SearchHit]:
        """Implement `search` by scanning all logs; a store with an index overrides it."""
        hits: list[SearchHit] = []
        for session_id in self.list_sessions():
            try:
                meta = self.read_metadata(session_id) if tenant is not None else None
                if meta and (start_summary(session_id, 0.0, meta["metadata"]).tenant or "") != tenant:
                    continue
                hits.extend(scan_events(session_id, self.iter_events(session_id), words, limit - len(hits)))
            except SessionError as error:
                # A damaged log hides only its own events; another command checks logs. An unreachable server
                # hides everything.
                if self.is_remote and isinstance(error, StorageError):
                    raise
            if len(hits) >= limit:
                break
        return hits

    # --- whole sessions, derived -------------------------------------------------------------------------------------

    def read_remains(self, session_id: str) -> Remains:
        """Return the part of a session that can still be read. Raises `SessionNotFoundError` if nothing is left."""
        metadata = self.read_metadata(session_id)["metadata"]
        blobs: list[str] = []
        holes: tuple[str, ...] = ()
        try:
            blobs = self.list_blobs(session_id)
        except LogCorruptError:
            holes = ("its blobs are unknown, since its log is damaged",)
        events, read_blob = partial(self.iter_events, session_id), partial(self.read_blob, session_id)
        return Remains(metadata, events, tuple(blobs), read_blob, holes)

    def list_blobs(self, session_id: str) -> list[str]:
        """Return the digests of the session's blobs; by default, those that its log names and the store has.

        Raises `SessionNotFoundError`.
        """
        digests_in_log: dict[str, None] = {}
        for event in self.iter_events(session_id):
            digests_in_log.update(dict.fromkeys(DIGEST_WITHIN.findall(dumps_event(event))))
        digests: list[str] = []
        for digest in digests_in_log:
            with suppress(StorageError):
                self.read_blob(session_id, digest)
                digests.append(digest)
        return digests

    def import_session(
        self,
        session_id: str,
        events: Iterable[Event],
        *,
        metadata: Mapping[str, Any] | None = None,
        created_at: float | None = None,
        blobs: Iterable[bytes] = (),
    ) -> str:
        """Create a session with these events, `seq` (from 1 without gaps) and `ts` unchanged, completely or not at all.

        Returns its id. `created_at` is in seconds since the epoch (default: now). Raises `SessionExistsError`,
        `OptionsError` for an invalid id, and `InvalidEventError` for a gap.
        """
        self._import_events(session_id, created_at, metadata or {}, check_sequence(events), iter(blobs))
        return session_id

    def _import_events(
        self, session_id: str, created_at: When, metadata: Metadata, events: Iterator[Event], blobs: Iterator[bytes]
    ) -> None:
        """Implement `import_session`; the `seq` of the events is checked as they are read. `created_at` None means now.

        This default assigns new times, and a process that dies leaves a partial session; the stores of this package use one
        transaction.
        """
        self.create_session(metadata=metadata, session_id=session_id)
        try:
            for data in blobs:
                self.put_blob(session_id, data)
            with self.open_writer(session_id) as writer:
                writer.append(list(events))
        except BaseException:  # after any error, and on Ctrl-C: leave no partial session
            self.delete_session(session_id)
            raise

    def copy_session(
        self, source_id: str, target_id: str, *, at_seq: int, tail: Sequence[Event], metadata: Mapping[str, Any]
    ) -> str:
        """Create a session from the source's events up to `at_seq`, then the new events `tail`, and the source's blobs.

        It appears completely or not at all. Returns its id. Raises `OptionsError` if `at_seq` exceeds the last event.
        """
        check_copied_part(source_id, at_seq, self.last_seq(source_id))
        head = self.iter_events(source_id, limit=at_seq)
        now = time.time()
        stamped = stamp_events(tail, first_seq=at_seq + 1, now=now)
        blobs = (self.read_blob(source_id, digest) for digest in self.list_blobs(source_id))
        return self.import_session(target_id, chain(head, stamped), metadata=metadata, created_at=now, blobs=blobs)

    def refuse_kept(self, session_id: str, doing: str = "deleted", *, may_shorten: bool = False) -> None:
        """Raise `SessionHeldError` for a session that is on hold or, unless `may_shorten`, must still be retained.

        `doing` is the participle of the refused action, for the error's text.
        """
        is_held, until = False, 0.0
        try:
            summary = self.kept_summary(session_id)
            is_held, until = summary.held, summary.kept_until
        except (SessionError, InvalidEventError):
            # A damaged log: its readable part may show that it is held.
            with suppress(SessionError, InvalidEventError):
                for event in self.iter_events(session_id):
                    if isinstance(event, RecordKept):
                        is_held = is_held if event.held is None else event.held
                        until = until if event.until is None else min(event.until, LAST_TIME)
        if is_held or (until > time.time() and not may_shorten):
            raise SessionHeldError(session_id, doing, None if is_held else until)

    def durability_notice(self) -> str | None:
        """Return a sentence for people if this store may lose acknowledged events; None if it is as durable as its
        `durability` states.
        """
        return None

    def search_notice(self) -> str | None:
        """Return a sentence for people if search is slower than it could be; otherwise None."""
        return None

    def migrate(self) -> None:
        """Create the store's schema, or upgrade it to this version; most stores do so on first use."""
        self.list_session_summaries(limit=1)

    def close(self) -> None:
        """Release connections and handles; the store can be used again."""


def as_it_is(place: Place) -> Place:
    """Return the position, which is already known."""
    return place


def written_cursor(place: Place) -> str:
    """Encode a position in a list as a cursor for clients."""
    return urlsafe_b64encode(dumps_json(place).encode("ascii")).decode("ascii").rstrip("=")


def read_cursor(text: str | None) -> Place | None:
    """Decode a cursor; None means the first page. Raises `OptionsError` for an invalid one."""
    if text is None:
        return None
    try:
        match loads_json(urlsafe_b64decode(f"{text}==").decode("ascii")):
            # Cursors come from clients: a huge number would be an error of the database instead of ours.
            case [int() | float() as moment, int() | float() as among, str(name)] if abs(moment) < 1 << 63:
                return moment, among, name
    except (ValueError, InvalidEventError):
        pass
    raise OptionsError(
        f"{text!r:.200} is not a cursor of a list: send the `next` of the previous page, or no cursor for the first page"
    )


def whole_id(store: SessionStore, start: str) -> str:
    """Find the session with this id, or the only one whose id begins with it; return its whole id.

    A session that belongs to another, such as the inbox of a workflow, is not a second one beside it.
    Raises `SessionNotFoundError`, and `OptionsError` if the prefix is ambiguous.
    """
    if store.session_exists(start):
        return start
    matching = store.ids_beginning(start)
    if len(matching) == 2:
        first, second = sorted(matching, key=len)
        metadata = store.read_metadata(second)["metadata"]
        if metadata.get("parent_tool_use_id") is not None and metadata.get("parent_session_id") == first:
            return first
    if len(matching) > 1:
        count = len(matching) if len(matching) < SOME_IDS else "several"
        raise OptionsError(f"{count} sessions have ids that begin with {start!r}: give more of the id")
    if not matching:
        raise SessionNotFoundError(start)
    return matching[0]


def as_shown(
    store: SessionStore, row: SessionSummary, is_held: Callable[[], bool | None] | None = None
) -> SessionSummary:
    """Return a session's row as lists show it: with its subagents' questions, and `stopped` if its process is gone.

    `is_held` is called instead of `store.is_held` if it is given.
    """
    if row.state not in ("running", "waiting"):
        return row
    questions = dict.fromkeys(row.open_questions)
    names, waiting = {row.id}, [(row, name) for name in row.subagents]
    while waiting and len(names) < _MOST_SUBAGENTS:
        parent, name = waiting.pop()
        if name in names:
            continue
        names.add(name)
        with suppress(SessionError, InvalidEventError):
            child = store.kept_summary(name)
            # A log may come from anywhere, and contain any name.
            if child.is_child and child.parent == parent.id and child.tenant == row.tenant:
                questions.update(dict.fromkeys(child.open_questions))
                waiting += [(child, inner) for inner in child.subagents]
    state = row.state
    if questions:
        state = "waiting"
    elif state == "running" and with_lease("running", (is_held or partial(store.is_held, row.id))()) == "dead":
        newer = store.kept_summary(row.id)
        if newer.events > row.events:  # its run ended, or another one began, between the two checks
            return as_shown(store, newer)
        state = ROW_STATES["dead"]
    return replace(row, state=state, open_questions=tuple(questions))


def stamp_events(events: Iterable[Event], *, first_seq: int, now: float) -> list[Event]:
    """The events as stored: numbered from `first_seq`, with the time `now`."""
    stamped = [stamp_event(event, first_seq + index, now) for index, event in enumerate(events)]
    return EncodedEvents(stamped, events.bodies) if isinstance(events, EncodedEvents) else stamped


def dumps_all_stored(events: Sequence[Event]) -> list[str]:
    """The result of `dumps_stored` for each stamped event; encoded events are not encoded again."""
    return [dumps_stored(event, body) for event, body in zip(events, encode_events(events), strict=True)]


def loads_stored(session_id: str, seq: int, text: str) -> Event:
    """Decode the event that should have number `seq`. Raises `LogCorruptError`."""
    try:
        event = loads_event(text, strict=False)
    except InvalidEventError:
        raise LogCorruptError(session_id, seq, 0, "json") from None
    # A line that was copied or moved within the log is valid JSON, and only its number shows it.
    if event.seq != seq:
        raise LogCorruptError(session_id, seq, 0, "sequence")
    return event


def iter_pages(
    session_id: str,
    read_page: Callable[[int, int], Sequence[tuple[int, str]]],
    *,
    after_seq: int,
    limit: int | None,
    page_events: int,
) -> Iterator[Event]:
    """Yield events that a database stores as text, page by page: `read_page(after_seq, size)` returns pairs of `seq` and
    text.

    Raises `LogCorruptError` for a gap and for an invalid event.
    """
    while limit is None or limit > 0:
        size = page_events if limit is None else min(limit, page_events)
        page = read_page(after_seq, size)
        for seq, text in page:
            after_seq += 1
            if seq != after_seq:
                raise LogCorruptError(session_id, after_seq, 0, "sequence")
            yield loads_stored(session_id, seq, text)
        if len(page) < size:
            return
        limit = None if limit is None else limit - size


def windows_from_end(store: SessionStore, session_id: str, last_seq: int, size: int) -> Iterator[Sequence[Event]]:
    """Yield the newest `size` events up to `last_seq`, then the newest 16 * `size`, and so on; finally all of them."""
    after_seq = last_seq
    while after_seq:
        after_seq, size = max(0, last_seq - size), size * 16
        yield store.read_events(session_id, after_seq=after_seq, limit=last_seq - after_seq)


def merged_metadata(metadata: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata with these keys set; a value of None removes its key."""
    return {key: value for key, value in {**metadata, **changes}.items() if value is not None}


def check_sequence(events: Iterable[Event]) -> Iterator[Event]:
    """Yield the events unchanged; raise `InvalidEventError` where `seq` is not 1, 2, 3 ..."""
    for expected, event in enumerate(events, start=1):
        if event.seq != expected:
            raise InvalidEventError(
                f"event {expected} of the session has seq {event.seq}: number the events 1, 2, 3 ..."
            )
        yield event


def check_copied_part(source_id: str, at_seq: int, last_seq: int) -> None:
    """Raise `OptionsError` for a range that the source of a copy does not have."""
    if isinstance(at_seq, bool) or not isinstance(at_seq, int) or not 0 <= at_seq <= last_seq:
        raise OptionsError(
            f"session {source_id!r} cannot be copied up to event {shown(at_seq)}: give a number from 0 to {last_seq}"
        )


def check_session_id(session_id: str) -> str:
    """Return the id if every store can distinguish it from others. Raises `OptionsError`.

    Valid ids have 1 to 200 printable characters; a file store accepts fewer ids.
    """
    if not isinstance(session_id, str) or not 0 < len(session_id) <= MAX_ID_CHARS:
        raise OptionsError(f"session_id must be a string of 1 to {MAX_ID_CHARS} characters, not {shown(session_id)}")
    if on_one_line(session_id) != session_id:
        raise OptionsError(f"session_id must not contain invisible characters, as {session_id!r} does")
    return session_id


def read_clock(clock: Clock | None) -> Clock:
    """Return the clock of a store, by default the machine's. Raises `OptionsError` for anything else."""
    check_settings({"clock": clock}, {"clock": or_none(is_a(Clock, "a clock, as in `ground.clock.Clock`"))})
    return clock or SystemClock()


def require_store(store: object) -> None:
    """Raise `OptionsError` unless the value is a session store; the name of a store is not one."""
    if not isinstance(store, SessionStore):
        # A name may contain a password.
        value = "a string: pass it to open_store()" if isinstance(store, str) else shown(store)
        raise OptionsError(f"store must be a session store, such as FileSessionStore('runs'), not {value}")
