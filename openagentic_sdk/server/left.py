"""The watch over requests that their processes left: a server goes on with those that it can, and says why of the others."""

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

# How often those sessions that somebody follows are looked at, and the newest others. A request is taken up at the second
# look, so that no process is overtaken that is about to go on itself.
LOOK_S, SCAN_S = 0.5, 5.0
SCAN_ROWS = 100


class LeftRequests:
    """Looks at the sessions that somebody follows or asked for, as long as there are any; from `look_on` on also at the
    newest sessions, until `end`.
    """

    def __init__(self, desk: Desk) -> None:
        self.look_s, self.scan_s = LOOK_S, SCAN_S
        self._desk = desk
        self._ends = asyncio.Event()
        self._is_looking = False
        self._scans = False
        self._wanted: set[str] = set()
        self._seen: dict[str, int] = {}  # those that were found left, with the end of their logs
        self._refused: dict[str, str] = {}  # those of them that nobody can go on with here, and why

    async def why_left(self, session_id: str) -> str | None:
        """Why nobody goes on with a request that its process left; None when somebody does, or this process will soon."""
        left: LeftRequest | None = await off_loop(True, self._desk.find_left, session_id)
        if left is None:
            return None
        self._wanted.add(session_id)
        self.look()
        return left.refusal

    def want(self, session_id: str) -> None:
        """Look soon at a session that somebody reads and that was left, once this process serves, unless it was refused."""
        if self._scans and session_id not in self._refused:
            self._wanted.add(session_id)
            self.look()

    def refusal(self, session_id: str) -> str | None:
        """Why nobody here can go on with what a process left, as the last look found it."""
        return self._refused.get(session_id)

    def look(self) -> None:
        """Look, if nobody does yet."""
        if not self._is_looking and not self._ends.is_set():
            self._is_looking = True
            self._desk.keep(self._look())

    def look_on(self) -> None:
        """Look from now on, whether somebody follows or not."""
        self._scans = True
        self.look()

    def end(self) -> None:
        """Look no more, since this process ends."""
        self._ends.set()

    async def _look(self) -> None:
        loop, scans_at = asyncio.get_running_loop(), 0.0
        while self._scans or self._wanted or self._desk.followers:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.look_s):
                    await self._ends.wait()
            if self._ends.is_set():
                break
            with suppress(StorageError):  # the store is away for now
                if self._scans and loop.time() >= scans_at:
                    scans_at = loop.time() + self.scan_s
                    await self._scan()
                for session_id in {follower.session_id for follower in self._desk.followers} | self._wanted:
                    await self._look_at(session_id)
        self._is_looking = False

    async def _scan(self) -> None:
        """Want those of the newest sessions that were left, and take up messages that no run has taken."""
        store = self._desk.store
        rows: list[SessionSummary] = await off_loop(True, partial(store.list_session_summaries, limit=SCAN_ROWS))
        ids = [row.id for row in rows if row.state != "running" and row.state not in LEFT_STATES]
        for session_id in await self._desk.messages.sessions_of(ids):
            with suppress(OpenAgentSdkError):  # it is gone, or nothing here can go on with it
                await self._desk.messages.take_up(session_id)
        for row in rows:
            with suppress(SessionError):
                if row.id not in self._refused and await off_loop(True, is_left, store, row):
                    self._wanted.add(row.id)

    async def _look_at(self, session_id: str) -> None:
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
        """Go on with a request that its process left; says why that cannot be."""
        try:
            if left.deaths >= MAX_DEATHS:
                await off_loop(True, give_up, self._desk.store, left)
            else:
                await self._desk.go_on_with(left)
        except (SessionLockedError, SessionNotFoundError):
            return None  # another process goes on with it
        except OpenAgentSdkError as error:
            if isinstance(error, RequestRefusedError) and error.status == 429:
                return None  # there is no room now: it is looked at again
            return f"the request was left by its process, and cannot go on here: {error}"
        return None
