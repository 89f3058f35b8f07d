"""Watch a session's log as it grows, from this process or another: every stored event once, in order, without a gap.

However many follow, a store is watched once: by one thread at a time, for all sessions that are followed. A run of this
process tells its followers itself, so that they also see its deltas, which are in no store.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from threading import Lock
from weakref import WeakKeyDictionary

from ..errors import EventLoopError
from ..events import Event, Result
from ..threads import in_daemon_thread
from .base import FIRST_POLL_S, LAST_POLL_S, SessionStore

# How long one wait in the store lasts; it bounds how late the watcher notices who came and who left.
WAIT_S = 0.1
# A follower reads from the store again when it lets more than this come to it.
MAX_WAITING_EVENTS = 1000
_PAGE_EVENTS = 500
_THREAD = "openagentic-follow"


async def follow(
    store: SessionStore, session_id: str, *, after_seq: int = 0, deltas: bool = False, until_result: bool = False
) -> AsyncGenerator[Event, None]:
    """The events with `seq > after_seq`, those that are there at once and the others as they come.

    With `deltas` also those of a run in this process, as they are shown; they have no `seq`, and a follower that does not
    keep up misses some. Goes on for ever, or with `until_result` ends behind a `result` when nothing follows it yet. Raises
    `SessionNotFoundError` when there is no such session, or when it is deleted, and `EventLoopError` where asyncio does
    not run.
    """
    try:
        watch = _watch_of(store)
    except RuntimeError:
        raise EventLoopError(
            "follow() needs asyncio's event loop, and none runs here: start with asyncio.run()"
        ) from None
    me = Follower(session_id, after_seq, deltas)
    watch.followers.append(me)
    try:
        while True:
            ended = False
            if me.is_behind:
                me.is_behind = False
                async with watch.reading:  # many that begin at once open no connection each
                    read = partial(store.read_events, session_id, after_seq=me.after_seq, limit=_PAGE_EVENTS)
                    batch = await in_daemon_thread(read, _THREAD)
                me.is_behind = len(batch) == _PAGE_EVENTS
                for event in batch:
                    me.after_seq = event.seq or me.after_seq
                    yield event
                ended = bool(batch) and isinstance(batch[-1], Result)
            while me.waiting and not me.is_behind:
                event = me.waiting.popleft()
                if event.seq is None:
                    yield event
                elif event.seq == me.after_seq + 1:
                    me.after_seq = event.seq
                    ended = isinstance(event, Result)
                    yield event
                elif event.seq > me.after_seq:
                    me.is_behind = True
            if me.error is not None:
                raise me.error
            if until_result and ended and not me.is_behind and not me.waiting:
                return
            if not me.is_behind and not me.waiting:
                watch.look_behind(session_id, me.after_seq)
                me.news.clear()
                await me.news.wait()
    finally:
        await watch.leave(me)


class Follower:
    """One who follows: where it stands, and what has come since. `is_behind` says that the store knows more."""

    def __init__(self, session_id: str, after_seq: int, wants_deltas: bool) -> None:
        self.session_id = session_id
        self.after_seq = after_seq
        self.wants_deltas = wants_deltas
        self.is_behind = True
        self.waiting: deque[Event] = deque()
        self.error: Exception | None = None
        self.news = asyncio.Event()

    def take(self, events: Sequence[Event]) -> None:
        """Let events come to it; what is too much is read from the store later, but for deltas."""
        self.waiting.extend(event for event in events if event.seq is not None or self.wants_deltas)
        if len(self.waiting) > MAX_WAITING_EVENTS:
            self.waiting.clear()
            self.is_behind = True
        self.news.set()


class Watch:
    """All who follow sessions of one store in one event loop, and the one thread that looks for news for them."""

    def __init__(self, store: SessionStore, loop: asyncio.AbstractEventLoop) -> None:
        self.followers: list[Follower] = []
        self.reading = asyncio.Lock()
        self.loop = loop
        self._store = store
        self._known: dict[str, int] = {}  # the last event of each session that was handed out
        self._task: asyncio.Task[None] | None = None

    def look_behind(self, session_id: str, seq: int) -> None:
        """Somebody waits for what comes behind `seq`: look for it from now on, as long as somebody follows."""
        self._known[session_id] = min(seq, self._known.get(session_id, seq))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look())

    async def leave(self, follower: Follower) -> None:
        """Somebody follows no more. Behind the last one nothing reads the store any longer."""
        self.followers.remove(follower)
        if all(other.session_id != follower.session_id for other in self.followers):
            self._known.pop(follower.session_id, None)
        if not self.followers and self._task is not None:
            await asyncio.shield(self._task)

    def publish(self, session_id: str, events: Sequence[Event]) -> None:
        """Hand events to all who follow this session."""
        last = events[-1].seq if events else None
        if last is not None and session_id in self._known:
            self._known[session_id] = max(last, self._known[session_id])
        for follower in self.followers:
            if follower.session_id == session_id:
                follower.take(events)

    async def _look(self) -> None:
        while self._known:
            news = await in_daemon_thread(partial(_wait_for_news, self._store, dict(self._known)), _THREAD)
            for session_id, found in news.items():
                if not isinstance(found, Exception):
                    self.publish(session_id, found)
                    continue
                self._known.pop(session_id, None)
                for follower in self.followers:
                    if follower.session_id == session_id:
                        follower.error = found
                        follower.news.set()


def _wait_for_news(store: SessionStore, known: Mapping[str, int]) -> dict[str, list[Event] | Exception]:
    """What each session has behind the `seq` that is known of it; nothing when `WAIT_S` is over."""
    over, poll_s = time.monotonic() + WAIT_S, FIRST_POLL_S
    while True:
        news: dict[str, list[Event] | Exception] = {}
        for session_id, seq in known.items():
            try:
                if len(known) == 1 and not store.wait_for_events(session_id, after_seq=seq, timeout_s=WAIT_S):
                    continue
                found = store.read_events(session_id, after_seq=seq, limit=_PAGE_EVENTS)
                if found:
                    news[session_id] = found
            except Exception as error:  # noqa: BLE001 - it is raised where its session is followed
                news[session_id] = error
        left_s = over - time.monotonic()
        if news or left_s <= 0:
            return news
        time.sleep(min(poll_s, left_s))
        poll_s = min(poll_s * 2, LAST_POLL_S)


_WATCHES: WeakKeyDictionary[SessionStore, list[Watch]] = WeakKeyDictionary()
_LOCK = Lock()


def _watch_of(store: SessionStore) -> Watch:
    """The watch of this store in this event loop. Raises `RuntimeError` where none runs."""
    loop = asyncio.get_running_loop()
    with _LOCK:
        watches = _WATCHES.setdefault(store, [])
        watches[:] = [watch for watch in watches if not watch.loop.is_closed()]
        found = next((watch for watch in watches if watch.loop is loop), None)
        if found is None:
            watches.append(found := Watch(store, loop))
        return found


def publish(store: SessionStore, session_id: str, events: Sequence[Event]) -> None:
    """Tell the followers in this process what a run has stored or shown, from that run's own event loop."""
    for watch in _WATCHES.get(store, ()):
        if watch.loop is asyncio.get_running_loop():
            watch.publish(session_id, events)
        elif not watch.loop.is_closed():
            watch.loop.call_soon_threadsafe(watch.publish, session_id, events)
