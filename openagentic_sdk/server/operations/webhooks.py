"""Notify other services that a session waits for an answer, has ended or has failed: signed, and at least once.

The log is the queue: a message is due for each `result` that ends a request, after the last one that the session's metadata
marks as delivered. So the next process delivers what a killed one did not, and a message may arrive twice, with the same
`webhook-id`. Headers and signature follow Standard Webhooks 1.0.0 (standardwebhooks.com).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import random
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

from ...errors import OptionsError, SessionError, SessionNotFoundError
from ...events import Event, Result, UserQuestion
from ...ground.frozen import frozen
from ...ground.threads import run_in_thread
from ...kernel.recorder import off_loop
from ...parts.record.lifecycle import TOLD_KEY
from ...serialization import dumps_json
from ...sessions.base import SessionStore
from ...sessions.folds.standing import is_end
from ...sessions.folds.summary import SessionSummary
from ...sessions.folds.view import SessionView
from ..streams import EventLines
from .journal import Journal

# The waiting times between attempts that the specification recommends; after the last attempt a message is given up.
DELAYS_S = (5.0, 300.0, 1800.0, 7200.0, 18000.0, 36000.0, 50400.0, 72000.0, 86400.0)
# A process that starts ignores sessions that were last updated longer ago.
HORIZON_S = 86400.0
# The number of newest sessions that are examined at most.
MAX_ROWS = 1000
# How often a server whose runs are a fleet's looks for those that have stopped.
WATCH_S = 2.0
TIMEOUT_S = 15.0
MAX_TEXT_CHARS = 2000
MIN_SECRET_BYTES = 24
_PREFIX = "whsec_"
# Sends one message; returns the status of the response. Raises `OSError` and `OpenAgentSdkError`.
PostWebhook = Callable[[str, Mapping[str, str], bytes], Awaitable[int]]


@frozen
class WebhookTarget:
    """A receiver of webhooks. `secret` is `whsec_` followed by base64, as the specification defines it."""

    url: str
    secret: str

    def key(self) -> bytes:
        """Decode the signing key. Raises `OptionsError` for an invalid secret."""
        try:
            key = base64.b64decode(self.secret.removeprefix(_PREFIX), validate=True)
        except (ValueError, binascii.Error):
            key = b""
        if not self.secret.startswith(_PREFIX) or len(key) < MIN_SECRET_BYTES:
            raise OptionsError(
                f"a webhook's secret must be {_PREFIX} followed by {MIN_SECRET_BYTES} or more bytes in base64"
            )
        return key

    @property
    def name(self) -> str:
        """The target's name in session metadata: a digest, since the URL may contain a secret."""
        return hashlib.sha256(self.url.encode()).hexdigest()[:16]


def sign(key: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """The value of the `webhook-signature` header."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


class Webhooks:
    """A sender of webhooks about a store's sessions to `targets`, from `start` to `close`. `now` returns epoch seconds.

    With `watch_s`, it looks for runs of other processes that have stopped, about every so many seconds.
    """

    def __init__(
        self,
        store: SessionStore,
        targets: Sequence[WebhookTarget],
        journal: Journal,
        *,
        post: PostWebhook,
        delays_s: Sequence[float] = DELAYS_S,
        now: Callable[[], float] = time.time,
        watch_s: float | None = None,
    ) -> None:
        self._store = store
        self._targets = [(target, target.key()) for target in targets]
        self._journal = journal
        self._post = post
        self._delays_s = delays_s
        self._now = now
        self._lines = EventLines()
        # By session and the name of a target.
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._again: set[tuple[str, str]] = set()
        self._watch_s = watch_s
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start delivering what earlier processes did not.

        Of the newest 1,000 sessions, those that were updated in the last `HORIZON_S` seconds are examined.
        """
        rows: list[SessionSummary] = await off_loop(True, partial(self._store.list_session_summaries, limit=MAX_ROWS))
        for row in rows:
            if row.updated >= self._now() - HORIZON_S:
                self.notice(row.id)
        if self._watch_s is not None:
            self._watching = asyncio.get_running_loop().create_task(self._watch(rows, self._watch_s))

    async def _watch(self, rows: Sequence[SessionSummary], pause_s: float) -> None:
        """Notice the runs that other processes have stopped, such as a fleet's workers."""
        while True:
            # Not at the same time as other servers, so that they mostly find the messages delivered.
            await asyncio.sleep(random.uniform(0.5, 1.5) * pause_s)
            seen = {row.id: row.events for row in rows}
            with suppress(SessionError):  # the store is temporarily unavailable
                rows = await off_loop(True, self._newest_rows, seen)
            for row in rows:
                if row.state != "running" and seen.get(row.id) != row.events:
                    self.notice(row.id)

    def _newest_rows(self, seen: Mapping[str, int]) -> list[SessionSummary]:
        """The sessions that were written most recently, down to one that is as it was `seen`."""
        count = 100
        while True:
            rows = self._store.list_session_summaries(limit=count)
            if len(rows) < count or count == MAX_ROWS or seen.get(rows[-1].id) == rows[-1].events:
                return rows
            count = min(2 * count, MAX_ROWS)

    def notice(self, session_id: str) -> None:
        """Start delivering what is due for this session; call it after one of its runs has stopped."""
        for target, key in self._targets:  # separately: a receiver that is down must not delay the others
            about = session_id, target.name
            self._again.add(about)
            if about not in self._tasks:
                telling = self._tell_all(session_id, target, key)
                task = self._tasks[about] = asyncio.get_running_loop().create_task(telling)
                task.add_done_callback(lambda _, about=about: self._tasks.pop(about, None))  # type: ignore[misc]

    async def settled(self) -> None:
        """Wait until all messages have been delivered, given up, or put off because the store failed."""
        while self._tasks:
            # Not `gather`, which returns at once if all have ended, so that the callbacks that remove them never run.
            await asyncio.wait(self._tasks.values())

    async def close(self) -> None:
        """Cancel all deliveries; the next process makes them."""
        tasks = [*self._tasks.values(), *((self._watching,) if self._watching is not None else ())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _tell_all(self, session_id: str, target: WebhookTarget, key: bytes) -> None:
        while (session_id, target.name) in self._again:
            self._again.discard((session_id, target.name))
            try:
                await self._tell(session_id, target, key)
            except SessionError as error:  # deleted, or the store is unavailable: tried again after the next run
                self._journal.webhook("put off", session=session_id, error=str(error))

    async def _tell(self, session_id: str, target: WebhookTarget, key: bytes) -> None:
        metadata = (await off_loop(True, self._store.read_metadata, session_id))["metadata"]
        # The source of a fork delivers the events that both have.
        sent_seq = metadata.get(f"{TOLD_KEY}.{target.name}", metadata.get("parent_seq"))
        after_seq = sent_seq if isinstance(sent_seq, int) else 0
        events: list[Event] = await off_loop(True, partial(self._store.read_events, session_id, after_seq=after_seq))
        for event in events:
            # A suspended request is resumed by another process: it has not ended.
            if isinstance(event, Result) and event.seq and is_end(event):
                await self._send(session_id, event.seq, target, key)
                marks = {f"{TOLD_KEY}.{target.name}": event.seq}
                await off_loop(True, self._store.update_metadata, session_id, marks)

    def _open_questions(self, session_id: str, seq: int) -> list[UserQuestion]:
        """The questions that were open after event `seq`, oldest first: also those asked before an earlier message."""
        view = SessionView()
        for event in self._store.iter_events(session_id, limit=seq):
            view.apply(event)
        return view.open_questions()

    def _message(self, session_id: str, seq: int) -> dict[str, Any]:
        """The message about the end of a run, event `seq`; if the run waits, with its questions. Raises `SessionError`."""
        metadata = self._store.read_metadata(session_id)["metadata"]
        result = next(iter(self._store.read_events(session_id, after_seq=seq - 1, limit=1)), None)
        if not isinstance(result, Result):  # another session has the id of a deleted one
            raise SessionNotFoundError(session_id)
        kind = {"waiting": "waiting", "error": "failed"}.get(result.stop_reason, "ended")
        data: dict[str, Any] = {
            "session_id": session_id,
            "seq": result.seq,
            "agent": metadata.get("agent"),
            "stop_reason": result.stop_reason,
            "text": result.final_text[:MAX_TEXT_CHARS],
        }
        if kind == "failed":
            data["error"] = (result.error_message or "")[:MAX_TEXT_CHARS]
        if kind == "waiting":
            data["questions"] = [
                {
                    "question_id": question.question_id,
                    "prompt": question.prompt[:MAX_TEXT_CHARS],
                    "choices": list(question.choices),
                    "preview": question.details.get("preview"),
                    "reason": question.details.get("reason"),
                }
                for question in map(self._lines.shown, self._open_questions(session_id, seq))
                if isinstance(question, UserQuestion)
            ]
        stamp = datetime.fromtimestamp(result.ts or 0, UTC).isoformat(timespec="milliseconds")
        return {"type": f"session.{kind}", "timestamp": stamp, "data": data}

    async def _send(self, session_id: str, seq: int, target: WebhookTarget, key: bytes) -> None:
        """Send until the receiver accepts (2xx). Give up after the last attempt, or if the receiver is gone (410).

        Raises `SessionNotFoundError` if the session is deleted meanwhile.
        """
        digest = hashlib.sha256(f"{session_id}.{seq}.{target.name}".encode()).hexdigest()[:32]
        message_id, facts = f"msg_{digest}", {"session": session_id, "seq": seq, "target": target.name}
        for delay_s in (*self._delays_s, None):
            timestamp = int(self._now())
            try:
                # Read for each attempt, which may be days later: the text may have been erased.
                body = dumps_json(await off_loop(True, self._message, session_id, seq)).encode("ascii")
                headers = {
                    "Content-Type": "application/json",
                    "User-Agent": "openagentic-sdk",
                    "webhook-id": message_id,
                    "webhook-timestamp": str(timestamp),
                    "webhook-signature": sign(key, message_id, timestamp, body),
                }
                status, error = await self._post(target.url, headers, body), None
            except SessionNotFoundError:
                raise
            except Exception as failed:  # noqa: BLE001 - any failure of the network or the store is retried
                status, error = 0, str(failed)
            if 200 <= status < 300:
                return self._journal.webhook("delivered", status=status, **facts)
            if status == 410 or delay_s is None:
                return self._journal.webhook("given up", status=status, error=error, **facts)
            self._journal.webhook("failed", status=status, error=error, again_s=delay_s, **facts)
            await asyncio.sleep(delay_s)


def poster(allowed_hosts: Sequence[str] = ()) -> PostWebhook:
    """Return a sender with the rules of WebFetch: only to checked addresses, without following redirects.

    Hosts in private networks are reachable only if they are in `allowed_hosts`; metadata services never are.
    """
    from ...tools.web.address import check_addresses, parse_web_url
    from ...tools.web.fetch import FetchRequest, FetchSignal, resolve
    from ...tools.web.transport import fetch_from_addresses

    def send(url: str, headers: Mapping[str, str], body: bytes) -> int:
        host = parse_web_url(url, allow_local_names=True).host
        is_named = host in allowed_hosts
        web = parse_web_url(url, allow_local_names=is_named)
        addresses = check_addresses(url, host, resolve(host), allow_private_networks=is_named)
        signal = FetchSignal(threading.Event())
        signal.deadline = time.monotonic() + TIMEOUT_S
        return fetch_from_addresses(FetchRequest(web, addresses, headers, 4096, body), signal).status

    async def post(url: str, headers: Mapping[str, str], body: bytes) -> int:
        return await run_in_thread(partial(send, url, headers, body))

    return post
