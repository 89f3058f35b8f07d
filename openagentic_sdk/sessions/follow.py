"""Follow a session's log as it grows, in this process or another: every stored event once, in order, without gaps.

Each event loop watches a store once, with one thread at a time for all followed sessions and followers. A run in this
process notifies its followers directly, so that they also see its deltas, which are in no store. Only the position is kept
per follower: a follower that falls behind reads what it missed from the store.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from threading import Lock
from typing import cast
from weakref import WeakKeyDictionary

from ..errors import SessionError, SessionLockedError
from ..events import AnyEvent, Event, Result, SystemInit
from ..ground.checks import COUNT, check_settings
from ..ground.system import require_threads
from ..ground.threads import run_in_thread, running_loop
from .base import SessionStore, require_store
from .folds.standing import LEFT_STATES, ROW_STATES, has_ended
from .folds.summary import SessionSummary

# The number of newest events kept in memory for a session's followers; a follower further behind reads the store.
MAX_RECENT_EVENTS = 64
# The approximate maximum of characters in memory per session, and per page; a single event may have more.
MAX_PAGE_CHARS = 512 * 1024
# The first page is small, so that its first event arrives soon.
_FIRST_PAGE_EVENTS, _PAGE_EVENTS = 32, 128
_THREAD = "openagentic-follow"
# How often a waiter that receives no events checks whether anybody still works on the result.
LOOK_AT_LEFT_S = 1.0
# The length of one poll by the watcher's thread, and the most polls before it returns without news.
_LOOK_S, _MAX_LOOKS = 0.1, 50


async def follow(
    store: SessionStore,
    session_id: str,
    *,
    after_seq: int = 0,
    deltas: bool = False,
    until_result: bool = False,
    left_s: float = 7.0,
) -> AsyncGenerator[AnyEvent, None]:
    """Yield the events with `seq > after_seq`, the stored ones at once and later ones as they are stored.

    With `deltas`, also yield those of a run in this process as they are shown, starting after the newest event; they have no
    `seq`. Continues forever, or with `until_result` ends after a `result` that no further run follows yet. A `suspended`
    result is not an end, because another process may continue: then, and if the run's process died, it ends once nobody has
    continued for `left_s` seconds; the `state` of the session's row shows which.

    Raises `SessionNotFoundError` if the session does not exist or is deleted, `SessionError` if its log is truncated or
    replaced meanwhile, `OptionsError` for an invalid `after_seq`, and `EventLoopError` without asyncio.
    """
    follower = Follower(store, session_id, after_seq=after_seq, deltas=deltas)
    ended, left_at = False, math.inf
    try:
        while not (until_result and ended and follower.is_level):
            events = await follower.batch(min(LOOK_AT_LEFT_S, max(left_s, 0.05)) if until_result else None)
            if not events and await _is_abandoned(store, session_id):
                left_at = min(left_at, time.monotonic())
                ended = time.monotonic() >= left_at + left_s
            else:
                left_at = math.inf
            for event in cast("Sequence[AnyEvent]", events):
                ended = has_ended(ended, event)
                yield event
    finally:
        await follower.close()


async def _is_abandoned(store: SessionStore, session_id: str) -> bool:
    """Like `is_abandoned`, by id and off the event loop."""
    return await run_in_thread(lambda: is_abandoned(store, store.read_summary(session_id)), name=_THREAD, moment_s=0)


def is_abandoned(store: SessionStore, row: SessionSummary) -> bool:
    """Whether nobody works on the newest request of a session although it is not over.

    Also true if it waits for a person but has no `result` that records this, because its process was killed when it asked.
    """
    if row.state != ROW_STATES["parked"]:
        return row.state in LEFT_STATES
    newest = store.read_events(row.id, after_seq=max(row.events - 1, 0))
    # The writer is looked for first: the log is read whole, and a live run may wait for a person for days.
    if (newest and isinstance(newest[-1], Result)) or is_held(store, row.id):
        return False
    is_open = False
    for event in store.iter_events(row.id):
        if event.parent_tool_use_id is None and isinstance(event, SystemInit | Result):
            is_open = isinstance(event, SystemInit)
    return is_open


def is_held(store: SessionStore, session_id: str) -> bool:
    """Whether another writer holds the session. If the store cannot tell, become the session's writer for a moment."""
    held = store.is_held(session_id)
    if held is not None:
        return held
    try:
        store.open_writer(session_id).close()
    except SessionLockedError:
        return True
    return False


class Follower:
    """A reader that follows one session from the position `after_seq`. Its creator must close it."""

    def __init__(self, store: SessionStore, session_id: str, *, after_seq: int = 0, deltas: bool = False) -> None:
        require_store(store)
        check_settings({"after_seq": after_seq}, {"after_seq": COUNT})
        self._watch = watch_of(store)
        self.session_id = session_id
        self.after_seq = after_seq
        self._seen: _Mark | None = None  # of the event at its position
        self._store = store
        self._wants_deltas = deltas
        self._deltas_taken = 0
        self._page_events = _FIRST_PAGE_EVENTS
        self._knows_end = False
        self._waiter: asyncio.Future[None] | None = None
        self._is_woken = False
        self._timer: asyncio.TimerHandle | None = None
        self._wake_at = math.inf
        self._feed = self._watch.enter(self)

    @property
    def last_seq(self) -> int:
        """The `seq` of the session's newest event known to this process; -1 before the first look."""
        return self._feed.last_seq

    @property
    def is_level(self) -> bool:
        """Whether every event known to this process has been delivered."""
        return self._knows_end and self.after_seq >= self._feed.last_seq

    async def batch(self, timeout_s: float | None = None) -> Sequence[Event]:
        """Wait for one or more events and return them; empty after `timeout_s` (None: no limit) or a call of `wake`.

        Raises `SessionNotFoundError` and other errors of the store.
        """
        while not self._is_woken:
            if self._feed.error is not None:
                raise self._feed.error
            if self.is_level or self._feed.reaches(self.after_seq):
                events = self._take()
            elif not (events := await self._read()) and self.is_level:
                events = self._take()  # a follower that started at the end of the log gets later deltas
            if events:
                return events
            if self.is_level and not self._is_woken:
                self._watch.look_for(self.session_id)
                self._waiter = self._watch.loop.create_future()
                self._wake_in(timeout_s)
                await self._waiter
        self._is_woken = False
        return ()

    def _wake_in(self, timeout_s: float | None) -> None:
        """Call `wake` unless news comes by then. One timer serves many waits, and re-arms itself if it is too early."""
        if timeout_s is None:
            self._wake_at = math.inf
            return
        self._wake_at = self._watch.loop.time() + timeout_s
        if self._timer is not None and self._timer.when() > self._wake_at:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self._watch.loop.call_later(timeout_s, self._is_time)

    def _is_time(self) -> None:
        self._timer = None
        left_s = self._wake_at - self._watch.loop.time()
        if self._waiter is None or self._waiter.done() or left_s == math.inf:
            return
        if left_s <= 0:
            self.wake()
        else:
            self._timer = self._watch.loop.call_later(left_s, self._is_time)

    def wake(self) -> None:
        """Let the pending `batch`, or the next one, return immediately."""
        self._is_woken = True
        self.notice()

    def notice(self) -> None:
        """Make a pending `batch` check for news."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def close(self) -> None:
        """Stop following."""
        if self._timer is not None:
            self._timer.cancel()
        await self._watch.leave(self)

    def _take(self) -> Sequence[Event]:
        """Return the cached events after the position, then the deltas after those, and advance the position."""
        events = self._feed.page(self.after_seq)
        if events:
            self._move_to(events)
            self._knows_end = True  # up to the newest event known here
        if self._wants_deltas and self._feed.last_seq == self.after_seq and len(self._feed.deltas) > self._deltas_taken:
            fresh = self._feed.deltas[self._deltas_taken :]
            self._deltas_taken += len(fresh)
            events = [*events, *fresh]
        return events

    async def _read(self) -> Sequence[Event]:
        """Read the next page from the store, advance the position, and return the page."""
        limit = self._page_events
        read_page = partial(_read_page, self._store, self.session_id, self.after_seq, limit, self._seen)
        async with self._watch.reading:  # so that many concurrent starts do not each open a connection
            self._seen, page = await run_in_thread(read_page, name=_THREAD, moment_s=0)
        is_cut = sum(map(_chars, page)) >= MAX_PAGE_CHARS
        self._knows_end = len(page) < limit and not is_cut
        # Events after the end of a page are read again, so the limit is small if events are large.
        self._page_events = len(page) if is_cut else min(limit * 2, _PAGE_EVENTS)
        if page:
            self._move_to(page)
        self._feed.learn(self.after_seq, self._seen)
        return page

    def _move_to(self, events: Sequence[Event]) -> None:
        self.after_seq, self._deltas_taken = events[-1].seq or self.after_seq, 0
        self._seen = _mark(events[-1])


class Feed:
    """The cached end of one session: its newest events without a gap, and the deltas after the last of them.

    `end` is the `seq` (-1 before the first look) and the mark of the newest event known to this process.
    """

    def __init__(self) -> None:
        self.followers: list[Follower] = []
        # Not a deque, which takes 0.7 kB when empty: a server may follow thousands of sessions at rest.
        self.recent: list[Event] = []
        self._recent_chars = 0
        self.deltas: list[Event] = []
        # One value, because the watcher's thread reads it.
        self.end: tuple[int, _Mark | None] = (-1, None)
        self.error: Exception | None = None
        self._page: tuple[int, Sequence[Event]] = (-1, ())

    @property
    def last_seq(self) -> int:
        return self.end[0]

    def page(self, after_seq: int) -> Sequence[Event]:
        """The cached events after a position, at most one page: the same sequence for all followers at that position."""
        if after_seq >= self.last_seq:
            return ()
        if self._page[0] != after_seq:
            fresh = islice(self.recent, max(0, len(self.recent) - (self.last_seq - after_seq)), None)
            self._page = (after_seq, list(_first_page(fresh)))
        return self._page[1]

    def reaches(self, after_seq: int) -> bool:
        """Whether all events after a position are cached."""
        return bool(self.recent) and (self.recent[0].seq or 0) <= after_seq + 1 and after_seq < self.last_seq

    def learn(self, seq: int, mark: _Mark | None) -> None:
        """Note that the log reaches at least this far, and wake the waiters: polling reports only what is beyond `end`."""
        if seq > self.last_seq:
            self.end = seq, mark
            self._forget()
            self.deltas.clear()
            self.tell()

    def add(self, events: Sequence[Event]) -> None:
        """Add events that were just stored or shown; ignore those already added."""
        is_new = False
        for event in events:
            if event.seq is None:
                self.deltas.append(event)
            elif event.seq > self.last_seq:
                if event.seq != self.last_seq + 1:
                    self._forget()
                self._keep(event)
                self.end = event.seq, _mark(event)
                self.deltas.clear()
            else:
                continue
            is_new = True
        if is_new:
            self.tell()

    def _keep(self, event: Event) -> None:
        """Cache one more event, evicting the oldest ones beyond the limits."""
        self._page = (-1, ())
        self.recent.append(event)
        self._recent_chars += _chars(event)
        while len(self.recent) > MAX_RECENT_EVENTS or (self._recent_chars > MAX_PAGE_CHARS and len(self.recent) > 1):
            self._recent_chars -= _chars(self.recent.pop(0))

    def _forget(self) -> None:
        self._page = (-1, ())
        self.recent.clear()
        self._recent_chars = 0

    def fail(self, error: Exception) -> None:
        """Raise this error in the followers: the session can no longer be followed."""
        self.error = error
        self.tell()

    def tell(self) -> None:
        """Notify all followers."""
        for follower in self.followers:
            follower.notice()


class Watch:
    """The followers of one store's sessions in one event loop, and the thread that polls for them.

    Events that a run of this process stores and shows are cached from the run's start, for later followers, too.
    """

    def __init__(self, store: SessionStore, loop: asyncio.AbstractEventLoop) -> None:
        self.reading = asyncio.Lock()
        self.loop = loop
        self._store = store
        self._feeds: dict[str, Feed] = {}
        self._running: set[str] = set()
        self._looked_for: Collection[str] = ()
        self._changes = 0  # of the sessions to watch
        self._task: asyncio.Task[None] | None = None

    def enter(self, follower: Follower) -> Feed:
        """Add a follower; return the feed of its session."""
        feed = self._feeds.setdefault(follower.session_id, Feed())
        feed.followers.append(follower)
        return feed

    def look_for(self, session_id: str) -> None:
        """Poll for news of this session from now on, as long as it has followers."""
        if session_id not in self._looked_for:
            self._changes += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look())

    async def leave(self, follower: Follower) -> None:
        """Remove a follower. After the last one, nothing polls the store."""
        feed = self._feeds.get(follower.session_id)
        if feed is None or follower not in feed.followers:
            return
        feed.followers.remove(follower)
        if not feed.followers:
            self._changes += 1
            if follower.session_id not in self._running:
                del self._feeds[follower.session_id]
        if self._task is not None and not self._followed():
            # The thread notices the change within `_LOOK_S`; after that nothing here uses the store, and its owner may
            # close it.
            await asyncio.shield(self._task)

    def publish(self, session_id: str, events: Sequence[Event]) -> None:
        """Pass events to all followers of this session."""
        feed = self._feeds.get(session_id)
        if feed is None:
            # Only from the start of a run: a feed that began in the middle would show deltas without the ones before
            # them.
            if not any(isinstance(event, SystemInit) for event in events):
                return
            feed = self._feeds[session_id] = Feed()
        feed.add(events)
        if events and isinstance(events[-1], Result):
            self._running.discard(session_id)
            if not feed.followers:
                del self._feeds[session_id]
        else:
            self._running.add(session_id)

    def _followed(self) -> dict[str, tuple[int, _Mark | None]]:
        """The known ends of followed sessions by id. Also called from the watcher's thread, so the dict is copied first."""
        feeds = list(self._feeds.items())
        return {name: feed.end for name, feed in feeds if feed.followers and feed.last_seq >= 0}

    async def _look(self) -> None:
        while followed := self._followed():
            self._looked_for, now = followed.keys(), self._changes
            news = await run_in_thread(partial(self._find_news, now), name=_THREAD, moment_s=0)
            for session_id, news_of_session in news.items():
                feed = self._feeds.get(session_id)
                if feed is not None and isinstance(news_of_session, Exception):
                    # Notify the current followers; later ones check for themselves.
                    del self._feeds[session_id]
                    feed.fail(news_of_session)
                elif feed is not None and not isinstance(news_of_session, Exception):
                    feed.add(news_of_session)
        self._looked_for = ()

    def _find_news(self, changes: int) -> dict[str, Sequence[Event] | Exception]:
        """Poll for new events of the followed sessions; return these, or an error, by session id.

        Empty on timeout, or if a follower comes or leaves. Runs in a thread; polling takes at most a twentieth of its time,
        however many sessions are followed.
        """
        for _ in range(_MAX_LOOKS):
            followed, began, busy_s = self._followed(), time.monotonic(), time.thread_time()
            if not followed or changes != self._changes:
                return {}
            last_seqs = {name: last_seq for name, (last_seq, _) in followed.items()}
            try:
                news = self._store.wait_for_news(last_seqs, timeout_s=_LOOK_S)
            except Exception as error:  # noqa: BLE001 - re-raised in the followers of the sessions
                return dict.fromkeys(last_seqs, error)
            news_by_session: dict[str, Sequence[Event] | Exception] = {}
            for session_id in news:
                try:
                    after_seq, seen = self._followed().get(session_id, followed[session_id])
                    _, events = _read_page(self._store, session_id, after_seq, MAX_RECENT_EVENTS, seen)
                    if events:
                        news_by_session[session_id] = events
                    elif (last_seq := self._store.last_seq(session_id)) < after_seq:
                        raise SessionError(
                            f"session {session_id!r} ended at event {after_seq} and ends at event {last_seq} now: something "
                            "truncated or replaced its log while it was followed; `openagentic-sdk sessions verify "
                            f"{session_id}` checks what is left",
                            session_id=session_id,
                        )
                except Exception as error:  # noqa: BLE001 - re-raised in the session's followers
                    news_by_session[session_id] = error
            if news_by_session:
                return news_by_session
            time.sleep(max(0.0, min(5.0, 20 * (time.thread_time() - busy_s)) - (time.monotonic() - began)))
        return {}


# The type and time of an event, to recognize it at its position: an erasure changes neither.
_Mark = tuple[str, float | None]


def _mark(event: Event) -> _Mark:
    return event.type, event.ts


def _is_same(mark: _Mark, other: _Mark) -> bool:
    """Whether both can be marks of the same event; some stores round the time."""
    return mark[0] == other[0] and (mark[1] is None or other[1] is None or abs(mark[1] - other[1]) < 0.01)


def _read_page(
    store: SessionStore, session_id: str, after_seq: int, limit: int, seen: _Mark | None
) -> tuple[_Mark | None, list[Event]]:
    """Read the mark of the event at a cursor, and the stored events after it, at most one page. Runs in a thread.

    Raises `SessionError` if the event at the cursor is not the one that was `seen` there.
    """
    has_one = after_seq > 0
    events = store.read_events(session_id, after_seq=after_seq - has_one, limit=limit + has_one)
    mark = _mark(events.pop(0)) if has_one and events else None
    if seen and mark and not _is_same(seen, mark):
        raise SessionError(
            f"event {after_seq} of session {session_id!r} is not the one that was read before: something replaced its log "
            f"while it was followed; `openagentic-sdk sessions verify {session_id}` checks it",
            session_id=session_id,
        )
    return mark, list(_first_page(events))


def _first_page(events: Iterable[Event]) -> Iterator[Event]:
    """Yield the first events, up to the one that reaches `MAX_PAGE_CHARS`."""
    chars = 0
    for event in events:
        yield event
        chars += _chars(event)
        if chars >= MAX_PAGE_CHARS:
            return


def _chars(value: object) -> int:
    """The approximate number of JSON characters of an event, or of a value in it."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(_chars(key) + _chars(each) for key, each in value.items())
    if isinstance(value, (list, tuple)):
        return sum(map(_chars, value))
    return sum(map(_chars, vars(value).values())) if isinstance(value, Event) else 8


# Tuples, replaced under the lock and never changed: `publish` iterates over one without the lock.
_WATCHES: WeakKeyDictionary[SessionStore, tuple[Watch, ...]] = WeakKeyDictionary()
_LOCK = Lock()


def watch_of(store: SessionStore) -> Watch:
    """Return the watch of this store in this event loop, created if missing. Raises `EventLoopError` without a loop."""
    loop = running_loop("follow()")
    require_threads("follow()")
    with _LOCK:
        watches = _WATCHES.get(store, ())
        watch = next((watch for watch in watches if watch.loop is loop), None)
        if watch is None:
            watch = Watch(store, loop)
            _WATCHES[store] = (*(other for other in watches if not other.loop.is_closed()), watch)
        return watch


def publish(store: SessionStore, session_id: str, events: Sequence[Event]) -> None:
    """Notify the followers in this process of what a run has stored or shown. Call this in the event loop of the run."""
    for watch in _WATCHES.get(store, ()):
        if watch.loop is asyncio.get_running_loop():
            watch.publish(session_id, events)
            continue
        # The loop is closed, or its own thread closes it at this moment, which a check beforehand could not exclude.
        with suppress(RuntimeError):
            watch.loop.call_soon_threadsafe(watch.publish, session_id, events)
