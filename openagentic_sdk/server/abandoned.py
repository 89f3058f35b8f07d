"""Find abandoned requests, whose processes have ended: resume those that can be resumed, and report why others cannot."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import suppress
from functools import partial
from itertools import filterfalse
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
from ..runs.abandoned import MAX_DEATHS, AbandonedRequest, give_up
from ..sessions.base import SessionPage
from ..sessions.folds.standing import LEFT_STATES, ROW_STATES
from ..sessions.folds.summary import SessionSummary
from ..sessions.follow import is_abandoned

if TYPE_CHECKING:
    from .desk import Desk

# Intervals of the checks of followed sessions and of the newest sessions. A request is resumed only at the second check, so
# that a process about to resume it itself is not overtaken.
LOOK_S, SCAN_S = 0.5, 5.0
SCAN_ROWS = 100
# After the older sessions have been examined, too, a page at each scan, they are examined again after this time.
WALK_S = 600.0
# Older ones that were last written to longer ago than this are left alone: nobody expects them to continue.
HORIZON_S = 86_400.0
# How many requests are resumed at the same time, so that one whose run is slow to begin does not delay the others.
TOGETHER = 8
# The states that a session can leave without another event in its log: its process dies, or resumes it.
_MAY_CHANGE = frozenset((ROW_STATES["running"], ROW_STATES["parked"])) | LEFT_STATES


def _may_be_left(row: SessionSummary) -> bool:
    return row.state in LEFT_STATES or row.state == ROW_STATES["parked"]


class AbandonedRequests:
    """The periodic check for abandoned requests, which resumes those that it can.

    It covers the sessions that clients follow or request, as long as there are any; after `look_on` also the newest
    sessions, until `end`.
    """

    def __init__(self, desk: Desk) -> None:
        self.look_s, self.scan_s = LOOK_S, SCAN_S
        self._desk = desk
        self._ends = asyncio.Event()
        self._is_looking = False
        self._scans = False
        self._scheduled: set[str] = set()
        self._turns = asyncio.Semaphore(TOGETHER)
        self._in_progress: set[str] = set()  # sessions whose requests are being resumed, or wait for a turn
        self._seen: dict[str, int] = {}  # abandoned sessions by id, with the last `seq` of each log
        self._refused: dict[str, str] = {}  # the reasons for those that cannot be resumed here
        self._at_rest: dict[str, int] = {}  # sessions that need no check while their logs end at these `seq`
        self._walked: str | None = None  # the cursor of the page of older sessions that was examined last
        self._walks_at = 0.0

    async def why_left(self, session_id: str) -> str | None:
        """Return the reason why this process cannot resume the session's abandoned request; None if it will try to, or if
        the session has no such request.
        """
        request: AbandonedRequest | None = await off_loop(True, self._desk.find_left, session_id)
        if request is None:
            return None
        self._scheduled.add(session_id)
        self.look()
        return request.refusal

    def schedule(self, session_id: str) -> None:
        """If `look_on` was called, schedule a check of an abandoned session, unless its request was refused before."""
        if self._scans and session_id not in self._refused:
            self._scheduled.add(session_id)
            self.look()

    def refusal(self, session_id: str) -> str | None:
        """The reason why this process cannot resume the session's request; None if the last check found no such reason."""
        return self._refused.get(session_id)

    def look(self) -> None:
        """Start the checks, unless they are running or `end` was called."""
        if not self._is_looking and not self._ends.is_set():
            self._is_looking = True
            self._desk.keep(self._look())

    def look_on(self) -> None:
        """Check the newest sessions, too, from now on, even without followers."""
        self._scans = True
        self.look()

    def end(self) -> None:
        """Stop the checks: this process is ending."""
        self._ends.set()

    async def _look(self) -> None:
        loop, scans_at = asyncio.get_running_loop(), 0.0
        while not self._ends.is_set() and (self._scans or self._scheduled or self._desk.followers):
            with suppress(StorageError):  # the store is temporarily unavailable
                followed = {follower.session_id: follower.last_seq for follower in self._desk.followers}
                self._at_rest = dict(self._at_rest.items() & followed.items())
                await self._look_at((followed.keys() - self._at_rest.keys()) | self._scheduled)
                if self._scans and loop.time() >= scans_at:
                    scans_at = loop.time() + self.scan_s
                    await self._scan()
            with suppress(TimeoutError):
                async with asyncio.timeout(self.look_s):
                    await self._ends.wait()
        self._is_looking = False

    async def _scan(self) -> None:
        """Find abandoned requests among the newest sessions and, page by page, among all others.

        Also start runs for messages that no run of the newest sessions has received.
        """
        store = self._desk.store
        rows: list[SessionSummary] = await off_loop(True, partial(store.list_session_summaries, limit=SCAN_ROWS))
        may_be_left = {row.id for row in rows if _may_be_left(row)}
        if (now := asyncio.get_running_loop().time()) >= self._walks_at:
            horizon, ages = time.time() - HORIZON_S, [math.inf]

            def is_recent(row: SessionSummary) -> bool:
                ages.append(row.updated)
                return row.updated >= horizon and _may_be_left(row)

            read_page = partial(store.page_sessions, limit=SCAN_ROWS, after=self._walked, keep=is_recent)
            page: SessionPage = await off_loop(True, read_page)
            self._walked = None if ages[-1] < horizon else page.next
            self._walks_at = now + WALK_S if self._walked is None else now
            may_be_left |= {row.id for row in page.rows}
        await self._look_at(may_be_left - self._refused.keys() - self._seen.keys())
        ids = [row.id for row in rows if row.state != "running" and row.state not in LEFT_STATES]
        for session_id in await self._desk.messages.sessions_of(ids):
            with suppress(OpenAgentSdkError):  # deleted, or it cannot be resumed here
                await self._desk.messages.take_up(session_id)

    async def _look_at(self, session_ids: set[str]) -> None:
        """Check sessions: start resuming the requests that two checks found abandoned in the same state."""
        session_ids = session_ids - self._in_progress
        abandoned_seqs: dict[str, int] = await off_loop(True, self._find_left, session_ids)
        for session_id in session_ids - abandoned_seqs.keys():
            self._scheduled.discard(session_id)
            self._seen.pop(session_id, None)
            self._refused.pop(session_id, None)
        for session_id, seq in abandoned_seqs.items():
            if self._seen.get(session_id) != seq:
                self._seen[session_id] = seq
                self._scheduled.add(session_id)
            else:
                self._in_progress.add(session_id)
                self._desk.keep(self._take_up(session_id, seq))

    def _find_left(self, session_ids: set[str]) -> dict[str, int]:
        """Find the abandoned sessions among these; return the last `seq` of each log. Runs in a thread."""
        store, seqs = self._desk.store, {}
        for session_id in filterfalse(self._desk.goes_on, session_ids):
            with suppress(SessionError):
                row = store.read_summary(session_id)
                if row.state not in _MAY_CHANGE:
                    self._at_rest[session_id] = row.events
                elif is_abandoned(store, row):
                    seqs[session_id] = row.events
        return seqs

    async def _take_up(self, session_id: str, seq: int) -> None:
        """Resume a session's request if its log still ends at `seq`; note why if that fails, and wake its followers."""
        refusal = None
        try:
            async with self._turns:
                if self._ends.is_set():
                    return
                with suppress(SessionError):
                    request: AbandonedRequest | None = await off_loop(True, self._desk.find_left, session_id)
                    if request is not None and request.seq == seq:
                        refusal = request.refusal or await self._go_on_with(request)
        finally:
            self._in_progress.discard(session_id)
        if refusal is not None:
            self._scheduled.discard(session_id)
            if self._refused.get(session_id) != refusal:
                self._refused[session_id] = refusal
                for follower in list(self._desk.followers):
                    if follower.session_id == session_id:
                        follower.wake()

    async def _go_on_with(self, request: AbandonedRequest) -> str | None:
        """Resume an abandoned request, or give it up after `MAX_DEATHS`; return the reason if that is impossible.

        Return None also if another process has resumed it or there is no room for a run now.
        """
        try:
            if request.deaths >= MAX_DEATHS:
                await off_loop(True, give_up, self._desk.store, request)
            else:
                await self._desk.go_on_with(request)
        except (SessionLockedError, SessionNotFoundError):
            return None  # another process has resumed it
        except OpenAgentSdkError as error:
            if isinstance(error, RequestRefusedError) and error.status == 429:
                return None  # at capacity now: checked again later
            return f"the request was abandoned by its process and cannot be continued here: {error}"
        return None
