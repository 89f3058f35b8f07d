"""An index of the words of a Redis store, beside the sessions, created and updated by searches and lists with a query.

Three parts, each brought up to date from the newest session it covers, in the order of `by:all`:

    index:ids          sorted set: all ids, in the order of their bytes
    index:gram:<n>     bitmap: the sessions whose rows contain one of the trigrams (or the tenant) that hash to n
    index:words        sorted set: `word session first-last`, in the order of its bytes: a word of these events

Beside them: `rows`, `names`, `grams`, `upto` and `docs:<session>` hold what is indexed, so that all of it can be removed;
sessions are small numbers there, `free` holds the numbers to reuse, and `behind` and `unread` the sessions to index again. A
script adds words only if nothing was replaced in the log since it was read, and erasing or deleting a session removes its
words in the same step. Each result is compared with the sessions themselves, so that a version without the index may run
beside it: its appends move a session in `by:all`, and each update checks a few sessions in turn.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from ....errors import InvalidEventError, LogCorruptError, SessionError, SessionNotFoundError
from ....events import Event, RecordErased
from ....ground.frozen import changed, frozen
from ...base import SessionStore, loads_stored
from ...folds.search import Progress, SearchHit, event_text, scan_events, search_words
from ...folds.summary import SessionSummary, summary_text
from ..database import SessionRow
from .scripts import run

StoreCall = Callable[[str | None, Callable[[Any], Any]], Any]
# The number of bitmaps, each with one bit for every session: at most a kilobyte per session.
GRAMS = 8192
# A script accepts a limited number of arguments; more bitmaps of a long query would hardly exclude more sessions.
MOST_GRAMS = 500
LEAST_LETTERS = 3
STEP_SESSIONS = 50
STEP_EVENTS = 25
STEP_WORDS = 5_000
# Longer words are found by their start, and compared afterwards.
WORD_CHARS = 64
# If its rarest word has more places than this, a search reads logs, newest first.
MOST_PLACES = 200_000
# The number of sessions that each update checks again, in turn.
LOOKS = 50


class RedisIndex:
    """The index of a store; `key` names a key of the store, and `rows` returns the rows of sessions."""

    def __init__(
        self,
        store: SessionStore,
        call: StoreCall,
        key: Callable[[str, str], str],
        rows: Callable[[Sequence[str]], Iterable[SessionRow]],
    ) -> None:
        self._store = store
        self._call = call
        self._key = key
        self._rows = rows
        self._index = key("index", "")
        self._all = key("by", "all")

    # --- queries -----------------------------------------------------------------------------------------------------

    def ids_beginning(self, start: str, limit: int) -> list[str]:
        """At most `limit` ids with this prefix."""
        arguments = [self._index, start.encode("utf-8", "surrogatepass"), limit]
        names = self._call(None, partial(run, "ids_beginning", [self._all], arguments))
        return [name.decode() for name in names]

    def listed(self, query: str, tenant: str | None, before: float) -> list[tuple[float, str]] | None:
        """The positions and ids of the sessions that may match, newest first, all before `before`; None if no word of
        the query is long enough.
        """
        words = [word for word in query.casefold().split() if len(word) >= LEAST_LETTERS]
        grams = {gram for word in words for gram in _grams(word)} | ({_tenant(tenant)} if tenant is not None else set())
        if not grams:
            return None
        bits: bytes = self._call(None, partial(run, "rows_with", [], [self._index, *sorted(grams)[:MOST_GRAMS]])) or b""
        numbers = [at * 8 + bit for at, byte in enumerate(bits) if byte for bit in range(8) if byte & (128 >> bit)]
        return [(at, name) for at, name in self._placed(numbers).values() if at < before]

    def search(self, words: Sequence[str], limit: int, tenant: str | None) -> list[SearchHit] | None:
        """At most `limit` events that contain every word, newest session first; None if all words are too common."""
        ranges = [_range(word) for word in dict.fromkeys(words)]

        def count(client: Any) -> list[int]:
            with client.pipeline(transaction=False) as pipe:
                for first, end in ranges:
                    pipe.zlexcount(f"{self._index}words", first, end)
                return list(pipe.execute())

        counts = sorted(zip(self._call(None, count), ranges, strict=True))
        if counts[0][0] > MOST_PLACES:
            return None
        places: set[tuple[int, int, int]] | None = None
        for number, ends in counts:
            if number <= MOST_PLACES:
                word_places = self._places(*ends)
                places = word_places if places is None else places & word_places
        docs: dict[int, list[tuple[int, int]]] = {}
        for key, first, last in sorted(places or ()):
            docs.setdefault(key, []).append((first, last))
        hits: list[SearchHit] = []
        # Lazily, because a common word fills the page soon.
        for key, (_, session_id) in self._placed(list(docs)).items():
            if len(hits) >= limit:
                break
            hits += self._hits(session_id, docs[key], words, limit - len(hits), tenant)
        return hits

    def _places(self, first: bytes, end: bytes) -> set[tuple[int, int, int]]:
        """The places of the words in a range: for each, the session's number and the first and last event."""
        places = set()
        for member in self._call(None, lambda client: client.zrangebylex(f"{self._index}words", first, end)):
            _, key, events = member.rsplit(b" ", 2)
            begins, _, ends = events.partition(b"-")
            places.add((int(key), int(begins), int(ends)))
        return places

    def _placed(self, numbers: Sequence[int]) -> dict[int, tuple[float, str]]:
        """The positions and ids of these sessions, newest first, by number; deleted sessions are omitted."""
        if not numbers:
            return {}
        names = self._call(None, lambda client: client.hmget(f"{self._index}names", numbers))
        living = [(number, name) for number, name in zip(numbers, names, strict=True) if name is not None]
        if not living:
            return {}
        scores = self._call(None, lambda client: client.zmscore(self._all, [name for _, name in living]))
        rows = [
            (score, number, name.decode())
            for (number, name), score in zip(living, scores, strict=True)
            if score is not None
        ]
        return {number: (score, name) for score, number, name in sorted(rows, reverse=True)}

    def _hits(
        self, session_id: str, docs: Sequence[tuple[int, int]], words: Sequence[str], limit: int, tenant: str | None
    ) -> list[SearchHit]:
        hits: list[SearchHit] = []
        # A damaged log hides only its own events, and a session may have been deleted.
        with suppress(LogCorruptError, InvalidEventError, SessionNotFoundError):
            if tenant is not None and (self._store.kept_summary(session_id).tenant or "") != tenant:
                return []
            for first, last in docs:
                events = self._store.iter_events(session_id, after_seq=first - 1, limit=last - first + 1)
                hits += scan_events(session_id, events, words, limit - len(hits))
        return hits

    # --- updates -----------------------------------------------------------------------------------------------------

    def update_rows(self, at_most: int, progress: Progress | None = None) -> int:
        """Bring the rows of at most `at_most` sessions up to date; return the number of sessions left."""
        return self._update({"rows": "behind"}, self._add_rows, progress, at_most)

    def update_words(self, progress: Progress | None = None) -> None:
        """Bring rows and words of all sessions up to date. If the update is interrupted, finished steps remain."""

        def add(names: Sequence[str]) -> None:
            self._add_rows(names)
            self._add_words(names)

        self._update({"words": "unread", "rows": "behind"}, add, progress, None)

    def _update(
        self,
        parts: Mapping[str, str],
        add: Callable[[Sequence[str]], None],
        progress: Progress | None,
        at_most: int | None,
    ) -> int:
        """Index the sessions that the first of these parts does not cover yet, and those in the sets to index again.

        `parts` gives each part with the name of its set. Returns the number of sessions that are left.
        """
        places = f"{self._index}places"

        def begin(client: Any) -> Any:
            run("look_again", [self._all], [self._index, self._key("head", ""), LOOKS], client)
            stale = client.sunion([f"{self._index}{name}" for name in parts.values()])
            return client.hget(places, next(iter(parts))), stale, client.zrevrange(self._all, 0, 0, withscores=True)

        reached, stale, newest = self._call(None, begin)
        at, last = float(reached or 0), newest[0][1] if newest else 0.0
        names = [name.decode() for name in sorted(stale)][:at_most]
        total = len(stale) + self._call(None, lambda client: client.zcount(self._all, f"({at:.0f}", f"{last:.0f}"))
        count = 0
        while True:
            for first in range(0, len(names), STEP_SESSIONS):
                add(names[first : first + STEP_SESSIONS])
                self._call(None, partial(run, "reached", [places], [f"{at:.0f}", *parts]))
                count += len(names[first : first + STEP_SESSIONS])
                if progress is not None:
                    progress(min(count, total), total)
            if at_most is not None and count >= at_most:
                return int(total - count)
            size = STEP_SESSIONS if at_most is None else min(STEP_SESSIONS, at_most - count)
            page = self._call(None, partial(_page, self._all, at, last, size))
            if not page:
                return 0
            names, at = [name.decode() for name, _ in page], page[-1][1]

    def _index_entries(self, names: Sequence[str], part: str) -> dict[str, str]:
        entries = self._call(None, lambda client: client.hmget(f"{self._index}{part}", names))
        return {name: (entry or b"").decode() for name, entry in zip(names, entries, strict=True)}

    def _living(self, names: Sequence[str]) -> list[SessionRow]:
        """Return the rows of the sessions that exist; remove the others from the index."""
        rows = dict(zip(names, self._rows(names), strict=True))
        for name, at in rows.items():
            if at.key is None:
                self._call(None, partial(run, "forget", [self._all], [self._index, name]))
        return [at for at in rows.values() if at.key is not None]

    def _add_rows(self, names: Sequence[str]) -> None:
        rows = self._living(names)
        if folded_names := [at.id for at in rows if not at.head.is_kept]:
            # Folding a row stores it and raises its revision: read it again, or the script would refuse it as changed.
            for name in folded_names:
                with suppress(SessionError, InvalidEventError):
                    self._store.kept_summary(name)
            rows = self._living(names)
        entries = self._index_entries(names, "rows")
        steps = []
        for at in rows:
            state = (at.revision, at.head.last_seq, at.key)
            is_same = entries[at.id].partition(" ")[2] == " ".join(map(str, state))
            steps.append((at.id, [entries[at.id], *state, b"same" if is_same else self._packed_row(at)]))

        def add(client: Any) -> None:
            with client.pipeline(transaction=False) as pipe:
                for name, arguments in steps:
                    run("index_row", [self._key("head", name)], [self._index, name, *arguments], pipe)
                pipe.execute()

        self._call(None, add)

    def _packed_row(self, at: SessionRow) -> bytes:
        row = at.head.summary if at.head.is_kept else SessionSummary(id=at.id)
        grams = {*_grams(summary_text(row)), _tenant(row.tenant or "")}
        return b"".join(gram.to_bytes(2, "big") for gram in sorted(grams))

    def _add_words(self, names: Sequence[str]) -> None:
        """Add the words of the events after those indexed, unless something in a log is replaced meanwhile."""
        entries = self._index_entries(names, "upto")
        logs = [_UnreadLog.of(at, entries[at.id]) for at in self._living(names)]
        self._add_batches([(log, ()) for log in logs if log.is_read])
        erased_ids: list[str] = []
        while logs := [log for log in logs if not log.is_read]:
            batches = list(zip(logs, self._next_events(logs), strict=True))
            # A version without this index replaced events without removing words: start over.
            erased_now = {log.at.id for log, events in batches if log.first_seq and any(map(_is_erased, events))}
            logs = self._add_batches(
                [(log, events) for log, events in batches if events and log.at.id not in erased_now]
            )
            erased_ids += erased_now
        for name in erased_ids:
            self._call(None, partial(run, "forget", [self._all], [self._index, name]))
        if erased_ids:
            self._add_rows(erased_ids)
            self._add_words(erased_ids)

    def _next_events(self, logs: Sequence[_UnreadLog]) -> list[list[Event]]:
        """The next events of each log, at most `STEP_EVENTS`, none after its row's last `seq` or after a damaged one."""

        def read(client: Any) -> list[Any]:
            with client.pipeline(transaction=False) as pipe:
                for each in logs:
                    last = min(each.seq + STEP_EVENTS, each.at.head.last_seq)
                    pipe.lrange(self._key("log", each.at.id), each.seq, last - 1)
                return list(pipe.execute())

        batches = []
        for each, lines in zip(logs, self._call(None, read), strict=True):
            events: list[Event] = []
            # A damaged log hides only its own events; another command checks logs.
            with suppress(LogCorruptError):
                for seq, line in enumerate(lines, each.seq + 1):
                    events.append(loads_stored(each.at.id, seq, line.decode()))
            batches.append(events)
        return batches

    def _add_batches(self, batches: Sequence[tuple[_UnreadLog, Sequence[Event]]]) -> list[_UnreadLog]:
        """Add the words of these events; return those of the logs that had not changed. `unread` contains the others."""
        steps = [(log, changed(log, seq=events[-1].seq or 0) if events else log, events) for log, events in batches]

        def add(client: Any) -> list[Any]:
            with client.pipeline(transaction=False) as pipe:
                for log, after, events in steps:
                    at = log.at
                    arguments = [self._index, at.id, log.entry, at.key, at.revision, after.seq, *_docs(events)]
                    run("index_words", [self._key("head", at.id)], arguments, pipe)
                return list(pipe.execute())

        answers = self._call(None, add) if steps else []
        return [after for (_, after, _), is_added in zip(steps, answers, strict=True) if is_added]


@frozen
class _UnreadLog:
    """A log that is indexed up to `seq`; this update began at `first_seq`, with the index entry `first_entry`."""

    at: SessionRow
    seq: int
    first_seq: int
    first_entry: str

    @classmethod
    def of(cls, at: SessionRow, entry: str) -> _UnreadLog:
        upto, _, key = entry.partition(" ")
        seq = int(upto) if upto and key == at.key else 0
        return cls(at, seq, seq, entry)

    @property
    def is_read(self) -> bool:
        return self.seq >= self.at.head.last_seq

    @property
    def entry(self) -> str:
        return self.first_entry if self.seq == self.first_seq else f"{self.seq} {self.at.key}"


def _is_erased(event: Event) -> bool:
    return isinstance(event, RecordErased)


def _page(lists: str, after: float, upto: float, size: int, client: Any) -> Any:
    return client.zrangebyscore(lists, f"({after:.0f}", f"{upto:.0f}", 0, size, withscores=True)


def _docs(events: Iterable[Event]) -> Iterator[str]:
    """Yield alternately a range of `seq` (`first-last`) and all words of its events."""
    words: set[str] = set()
    first = last = 0
    for event in events:
        if len(words) > STEP_WORDS:
            yield from (f"{first}-{last}", " ".join(sorted(words)))
            words, first = set(), 0
        last = event.seq or 0
        first = first or last
        words.update(word[:WORD_CHARS] for word in search_words(event_text(event)))
    if words:
        yield from (f"{first}-{last}", " ".join(sorted(words)))


def _range(word: str) -> tuple[bytes, bytes]:
    start = word[:WORD_CHARS].encode("utf-8", "replace")
    # The byte 255 is in no UTF-8 text, so the range ends after every word with this beginning.
    return b"[" + start, b"(" + start + b"\xff"


def _grams(text: str) -> set[int]:
    """The bitmaps of the trigrams of a text, none of which spans two lines."""
    grams: set[str] = set()
    for line in text.split("\n"):
        grams.update(line[at : at + LEAST_LETTERS] for at in range(len(line) - LEAST_LETTERS + 1))
    return {_hashed(gram) for gram in grams}


def _tenant(tenant: str) -> int:
    return _hashed(f"\n{tenant}")


def _hashed(text: str) -> int:
    # Not `hash`, which differs between processes: all of them share these bitmaps.
    return zlib.crc32(text.encode("utf-8", "surrogatepass")) % GRAMS
