"""Watch over abandoned requests, whose processes have ended: resume those that can be; report why for the others."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from ..errors import (
    OpenAgentSdkError,
    RequestRefusedError,
    SessionError,
    SessionLockedError,
    SessionNotFoundError,
    StorageError,
)
from ..kernel.recorder import off_loop
from ..runs.left import MAX_DEATHS, LeftRequest, give_up
from ..sessions.folds.standing import LEFT_STATES
from ..sessions.folds.summary import SessionSummary
from ..sessions.follow import is_left

if TYPE_CHECKING:
    from .desk import Desk

# Intervals of the checks of followed sessions and of the newest sessions. A request is resumed only at the second check, so
# that a process about to resume it itself is not overtaken.
LOOK_S, SCAN_S = 0.5, 5.0
SCAN_ROWS = 100


class LeftRequests:
    """The periodic check for abandoned requests.

    It covers the sessions that clients follow or request, as long as there are any; after `look_on` also the newest
    sessions, until `end`.
    """

    def __init__(self, desk: Desk) -> None:
        self.look_s, self.scan_s = LOOK_S, SCAN_S
        self._desk = desk
        self._ends = asyncio.Event()
        self._is_looking = False
        self._scans = False
        self._wanted: set[str] = set()
        self._seen: dict[str, int] = {}  # abandoned sessions by id, with the ends of their logs
        self._refused: dict[str, str] = {}  # the reasons for those that cannot be resumed here

    async def why_left(self, session_id: str) -> str | None:
        """Why nobody resumes an abandoned request; None if it is not abandoned, or this process will try to resume it."""
        left: LeftRequest | None = await off_loop(True, self._desk.find_left, session_id)
        if left is None:
            return None
        self._wanted.add(session_id)
        self.look()
        return left.refusal

    def want(self, session_id: str) -> None:
        """Schedule a check of an abandoned session that a client reads, if this process scans and has not refused it."""
        if self._scans and session_id not in self._refused:
            self._wanted.add(session_id)
            self.look()

    def refusal(self, session_id: str) -> str | None:
        """Why this process cannot resume the session's abandoned request, according to the last check; None otherwise."""
        return self._refused.get(session_id)

    def look(self) -> None:
        """Start the checks unless they are running."""
        if not self._is_looking and not self._ends.is_set():
            self._is_looking = True
            self._desk.keep(self._look())

    def look_on(self) -> None:
        """Keep checking from now on, even without followers."""
        self._scans = True
        self.look()

    def end(self) -> None:
        """Stop the checks: this process is ending."""
        self._ends.set()

    async def _look(self) -> None:
        loop, scans_at = asyncio.get_running_loop(), 0.0
        while self._scans or self._wanted or self._desk.followers:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.look_s):
                    await self._ends.wait()
            if self._ends.is_set():
                break
            with suppress(StorageError):  # the store is temporarily unavailable
                if self._scans and loop.time() >= scans_at:
                    scans_at = loop.time() + self.scan_s
                    await self._scan()
                for session_id in {follower.session_id for follower in self._desk.followers} | self._wanted:
                    await self._look_at(session_id)
        self._is_looking = False

    async def _scan(self) -> None:
        """Find abandoned requests among the newest sessions, and deliver messages that no run has received."""
        store = self._desk.store
        rows: list[SessionSummary] = await off_loop(True, partial(store.list_session_summaries, limit=SCAN_ROWS))
        ids = [row.id for row in rows if row.state != "running" and row.state not in LEFT_STATES]
        for session_id in await self._desk.messages.sessions_of(ids):
            with suppress(OpenAgentSdkError):  # deleted, or it cannot be resumed here
                await self._desk.messages.take_up(session_id)
        for row in rows:
            with suppress(SessionError):
                if row.id not in self._refused and await off_loop(True, is_left, store, row):
                    self._wanted.add(row.id)

    async def _look_at(self, session_id: str) -> None:
        """Check a session: resume its request at the second check that finds it abandoned in the same state."""
        left: LeftRequest | None = None
        with suppress(SessionError):
            left = await off_loop(True, self._desk.find_left, session_id)
        if left is None:
            self._wanted.discard(session_id)
            self._seen.pop(session_id, None)
            self._refused.pop(session_id, None)
        elif self._seen.get(session_id) != left.seq:
            self._seen[session_id] = left.seq
            self._wanted.add(session_id)
        elif (refusal := left.refusal or await self._go_on_with(left)) is not None:
            self._wanted.discard(session_id)
            if self._refused.get(session_id) != refusal:
                self._refused[session_id] = refusal
                for follower in list(self._desk.followers):
                    if follower.session_id == session_id:
                        follower.wake()

    async def _go_on_with(self, left: LeftRequest) -> str | None:
        """Resume an abandoned request; return the reason if that is impossible."""
        try:
            if left.deaths >= MAX_DEATHS:
                await off_loop(True, give_up, self._desk.store, left)
            else:
                await self._desk.go_on_with(left)
        except (SessionLockedError, SessionNotFoundError):
            return None  # another process has resumed it
        except OpenAgentSdkError as error:
            if isinstance(error, RequestRefusedError) and error.status == 429:
                return None  # at capacity now: checked again later
            return f"the request was left by its process, and cannot go on here: {error}"
        return None
