"""The waiters of this process for events of sessions: one listener is notified, and polls, for all of them.

A writer notifies only the processes that follow its session. A notification is a hint that may get lost; every `POLL_S` the
listener queries the ends of all followed sessions at once, and more often if a server cannot notify.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Mapping
from typing import Protocol

from ...errors import SessionError
from ...ground.system import start_daemon

POLL_S = 1.0
# For servers without notifications: a standby, or a pooler that shares connections between transactions.
DEAF_POLL_S = 0.1
# How long a server keeps a follower that vanished, and a process a session that nobody waits for.
FOLLOW_S = 60.0
LINGER_S = 5.0


class Listener(Protocol):
    """A connection on which a server announces the sessions that have news."""

    def hear(self, timeout_s: float) -> set[str]:
        """Wait for notifications; return the ids of the sessions with news, an empty set on timeout."""

    def close(self) -> None:
        """Close the connection."""


class NewsSource(Protocol):
    """The interface of a store to its followers. Each call may raise `SessionError`."""

    def listen(self, channel: str) -> Listener | None:
        """Listen for notifications on `channel`; None if the server cannot notify."""

    def follow(self, session_ids: Collection[str], channel: str, for_s: float) -> None:
        """Ask the writers of these sessions to notify `channel` for this time."""

    def places(self, session_ids: Collection[str]) -> dict[str, tuple[int, int]]:
        """The last `seq` and the highest waiting message number of each session; missing sessions are omitted."""


class _NewsWaiters:
    def __init__(self) -> None:
        self.waiters = 0
        self.left = time.monotonic()
        self.asked_until = 0.0
        self.last_seq = -1
        self.last_message = 0
        self.is_gone = False

    def has_news(self, after_seq: int, messages_after: int | None) -> bool:
        is_said = messages_after is not None and self.last_message > messages_after
        return self.is_gone or self.last_seq > after_seq or is_said


class News:
    """The sessions that one process follows on a server, with their waiters and the thread that listens for them."""

    def __init__(self, source: NewsSource) -> None:
        self._source = source
        self._channel = f"openagentic_{os.urandom(8).hex()}"
        self._changed = threading.Condition()
        self._followed: dict[str, _NewsWaiters] = {}
        self._running = False

    def wait(self, known: Mapping[str, int], messages_after: int | None, timeout_s: float) -> dict[str, bool]:
        """Wait until a session has an event after the known one, or a message after `messages_after`.

        Returns the ids of all sessions with news, each with whether it still exists; empty on timeout. A session's deletion
        is news, too.
        """
        deadline = time.monotonic() + timeout_s
        entries: dict[str, _NewsWaiters] = {}
        with self._changed:
            for name in known:
                entry = self._followed.get(name)
                if entry is None or entry.is_gone:
                    entry = self._followed[name] = _NewsWaiters()
                entry.waiters += 1
                entries[name] = entry

        def sessions_with_news() -> dict[str, bool]:
            seqs = known.items()
            return {
                name: not entries[name].is_gone for name, seq in seqs if entries[name].has_news(seq, messages_after)
            }

        try:
            # The listener already tracks the sessions that are followed: only new ones cost a request.
            self._begin({name: entry for name, entry in entries.items() if entry.last_seq < 0})
            with self._changed:
                if not self._running:
                    start_daemon(self._run, "openagentic-news")
                    self._running = True
                return self._changed.wait_for(sessions_with_news, max(0.0, deadline - time.monotonic()))
        finally:
            with self._changed:
                for entry in entries.values():
                    entry.waiters -= 1
                    entry.left = time.monotonic()

    def close(self) -> None:
        """Release the waiters, as if their sessions were gone, and let the listener stop."""
        with self._changed:
            for entry in self._followed.values():
                entry.is_gone = True
            self._followed.clear()
            self._changed.notify_all()

    def _begin(self, entries: Mapping[str, _NewsWaiters]) -> None:
        """Subscribe, then query, so that nothing is missed in between."""
        if entries:
            self._source.follow(entries, self._channel, FOLLOW_S)
            for entry in entries.values():
                entry.asked_until = time.monotonic() + FOLLOW_S
            self._learn(entries, self._source.places(entries))

    def _learn(self, session_ids: Collection[str], places: Mapping[str, tuple[int, int]]) -> None:
        with self._changed:
            for session_id in session_ids:
                entry = self._followed.get(session_id)
                if entry is not None and session_id in places:
                    entry.last_seq, entry.last_message = places[session_id]
                elif entry is not None:
                    entry.is_gone = True
                    del self._followed[session_id]
            self._changed.notify_all()

    def _run(self) -> None:
        listener: Listener | None = None
        listens, polled, took_s = False, time.monotonic(), 0.0
        while names := self._followed_ids():
            try:
                if not listens:
                    listener, listens = self._source.listen(self._channel), True
                self._ask_again()
                # Polling many sessions slows down writers: it may take at most a twentieth of the time.
                poll_s = max(POLL_S if listener else DEAF_POLL_S, 20 * took_s)
                left_s = max(0.0, polled + poll_s - time.monotonic())
                names_with_news = listener.hear(left_s) if listener else self._pause(left_s)
                began = time.monotonic()
                places = self._source.places(names_with_news or names)
                if not names_with_news:
                    polled, took_s = time.monotonic(), time.monotonic() - began
                self._learn(names_with_news or names, places)
            except SessionError:
                # The server is unreachable or refuses: subscribe again, and poll until then.
                self._end(listener)
                listener, listens = None, False
                self._pause(POLL_S)
        self._end(listener)

    def _followed_ids(self) -> list[str]:
        """The sessions that somebody waits for, or did in the last `LINGER_S`; without any, the listener is to stop."""
        now = time.monotonic()
        with self._changed:
            for name, entry in list(self._followed.items()):
                if not entry.waiters and now - entry.left > LINGER_S:
                    del self._followed[name]
            self._running = bool(self._followed)
            return list(self._followed)

    def _ask_again(self) -> None:
        soon = time.monotonic() + FOLLOW_S / 2
        with self._changed:
            # Renewed when half the time is left, so that one failed attempt does not lose notifications.
            due = [name for name, entry in self._followed.items() if 0 < entry.asked_until < soon]
        if due:
            self._source.follow(due, self._channel, FOLLOW_S)
            with self._changed:
                for name in due:
                    if name in self._followed:
                        self._followed[name].asked_until = time.monotonic() + FOLLOW_S

    def _pause(self, seconds: float) -> set[str]:
        time.sleep(seconds)
        return set()

    def _end(self, listener: Listener | None) -> None:
        if listener is not None:
            listener.close()
