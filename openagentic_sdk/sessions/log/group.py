"""Appends of several threads, committed together by one of them.

The first thread that comes leads: it commits everything that waits, its own included, while later ones queue up behind it;
then the first of those leads. So a disk that takes long for a sync is asked once for all that came meanwhile. A thread that
was woken by one commit needs a moment to come back with its next append, so a leader waits for as many as there were the
last time, but never longer than that last sync took: one thread alone never waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from ...errors import SessionError
from ...events import Event


class Ticket:
    """One append on its way: what is to be stored, and later what came of it; `seq` is the number of its last event."""

    __slots__ = ("bodies", "error", "events", "leads", "seq", "stored", "sync", "turn")

    def __init__(self, events: Sequence[Event], bodies: Sequence[str], *, sync: bool) -> None:
        self.events = events
        self.bodies = bodies
        self.sync = sync
        self.stored: list[Event] = []
        self.seq = 0
        self.error: SessionError | None = None
        self.leads = False
        self.turn: threading.Lock | None = None


class GroupCommit:
    """`commit` stores all tickets that it gets, or sets the `error` of each; it is never called by two threads at a time."""

    def __init__(self, commit: Callable[[Sequence[Ticket]], None]) -> None:
        self._commit = commit
        self._guard = threading.Lock()
        self._waiting: list[Ticket] = []
        self._group: list[Ticket] = []  # what the leader commits
        self._is_led = False
        self._wanted = 0
        self._complete = threading.Lock()
        self._complete.acquire()
        self._last_count = 1
        self._last_s = 0.0

    def run(self, ticket: Ticket) -> None:
        """Come back when the ticket is stored or has an error."""
        interrupted: KeyboardInterrupt | None = None
        try:
            self._queue(ticket)
            turn = ticket.turn
            if turn:
                turn.acquire()
            if ticket.leads:
                self._lead()
        except BaseException:  # Ctrl-C while waiting: the others must not wait for this one
            self._withdraw(ticket)
            raise
        finally:
            # Ctrl-C may come at the start of each call too, and the others wait for this one.
            while ticket.leads:
                try:
                    self._hand_over(ticket)
                except KeyboardInterrupt as error:
                    interrupted = error
        if interrupted is not None:
            raise interrupted

    def _queue(self, ticket: Ticket) -> None:
        with self._guard:
            self._waiting.append(ticket)
            if self._is_led:
                ticket.turn = threading.Lock()
                ticket.turn.acquire()
                if len(self._waiting) == self._wanted:
                    self._wanted = 0
                    self._complete.release()
            else:
                ticket.leads = self._is_led = True

    def _lead(self) -> None:
        self._wait_for_others()
        with self._guard:
            self._group, self._waiting = self._waiting, []
        group = self._group
        began = time.perf_counter()
        try:
            self._commit(group)
        finally:
            synced = any(ticket.sync for ticket in group)
            self._last_count, self._last_s = len(group), time.perf_counter() - began if synced else 0.0

    def _wait_for_others(self) -> None:
        with self._guard:
            if len(self._waiting) >= self._last_count or not self._last_s:
                return
            self._wanted = self._last_count
        try:
            self._complete.acquire(timeout=self._last_s)
        finally:
            with self._guard:
                if not self._wanted:
                    # The last one came; when it came just after the time was over, its signal must not stay behind.
                    self._complete.acquire(blocking=False)
                self._wanted = 0

    def _hand_over(self, leader: Ticket) -> None:
        """Wake those whose tickets are done, and the one that leads next. Called again when it was interrupted."""
        for ticket in self._group:
            _wake(ticket)
        with self._guard:
            heir = self._waiting[0] if self._waiting else None
            self._is_led = heir is not None
            self._group = []
            if heir:
                heir.leads = True
                _wake(heir)
            leader.leads = False

    def _withdraw(self, ticket: Ticket) -> None:
        with self._guard:
            if ticket in self._waiting:
                self._waiting.remove(ticket)


def _wake(ticket: Ticket) -> None:
    turn, ticket.turn = ticket.turn, None
    if turn:
        turn.release()
