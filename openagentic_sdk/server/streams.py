"""A session's events on their way to a client: as server-sent events, or over a WebSocket that also takes what POST takes.

Both follow the store from the client's cursor, which is a `seq`; deltas come between, without one. A client that does not
read in time is dropped, and goes on later from the last event that it has.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from ..errors import InvalidEventError, OpenAgentSdkError, OptionsError, RequestRefusedError, SessionNotFoundError
from ..events import Event
from ..parts.masking import known_here, shown
from ..serialization import dumps_event, dumps_json, loads_json
from ..sessions.folds.standing import LEFT_STATES, is_end
from ..sessions.follow import Follower
from .call import COMMENT_S, SEND_S, HttpCall
from .connection import Receive, Send
from .contract.refusals import error_body
from .desk import Desk
from .guard import Principal

# A stream ends after so long by itself, and its client goes on: servers that wait for open answers can end too.
MAX_STREAM_S = 600.0
# How soon an EventSource comes back. It stands in the first event: alone, some clients take it for an event without data.
RETRY = b"retry: 1000\n"
MAX_WRITE_BYTES = 256 * 1024
AUTH_S = 10.0
_CACHED_EVENTS, _CACHED_BYTES = 256, 1024 * 1024
# Close codes of our own (RFC 6455 section 7.4.2): no token, no such session, a cursor behind the end of the log.
NO_TOKEN, NO_SESSION, BAD_CURSOR, GOING_AWAY, RESTART = 4001, 4004, 4009, 1001, 1012


class EventLines:
    """Events as clients see them: JSON on one line of ASCII, secrets masked. Each event is encoded once for all that follow
    it at the same time.
    """

    def __init__(self) -> None:
        self._redact = known_here()
        self._written: OrderedDict[int, tuple[Event, str, bytes]] = OrderedDict()
        self._written_bytes = 0

    def line(self, event: Event) -> str:
        """The JSON of an event."""
        return self._write(event)[1]

    def shown(self, event: Event) -> Event:
        """The event with the secrets in inputs of calls masked."""
        return shown(event, self._redact)

    def sse(self, event: Event) -> bytes:
        """A server-sent event: `id` is the `seq`, `data` the JSON; deltas have no id."""
        return self._write(event)[2]

    def _write(self, event: Event) -> tuple[Event, str, bytes]:
        found = self._written.get(id(event))
        if found is not None and found[0] is event:
            return found
        line = dumps_event(self.shown(event))
        place = "" if event.seq is None else f"id: {event.seq}\n"
        made = self._written[id(event)] = event, line, f"{place}data: {line}\n\n".encode("ascii")
        self._written_bytes += len(made[2])
        while self._written_bytes > _CACHED_BYTES or len(self._written) > _CACHED_EVENTS:
            self._written_bytes -= len(self._written.popitem(last=False)[1][2])
        return made


async def send_events(
    call: HttpCall, desk: Desk, lines: EventLines, session_id: str, after_seq: int, *, one_run: bool
) -> None:
    """Answer with server-sent events behind a cursor; with `one_run` up to the end of the run that goes on."""
    row = await desk.row(call.principal, session_id)
    is_over = row.state != "running" and (
        row.state not in LEFT_STATES or await desk.left.why_left(session_id) is not None
    )
    if one_run and after_seq == row.events and is_over:
        # There is no more to come: an EventSource comes back for ever unless it is told so.
        return await call.reply(204)
    if after_seq > row.events:
        async with await call.stream() as stream:
            # An empty id takes the cursor back, so that an EventSource begins anew.
            await stream.send(f"event: resync\nid:\ndata: {dumps_json({'last_seq': row.events})}\n\n".encode())
        return
    async with desk.follow_known(session_id, after_seq=after_seq) as follower, await call.stream() as stream:
        stream.when_gone(follower.wake)
        ends_at, is_over, first, told = time.monotonic() + MAX_STREAM_S, False, RETRY, None
        while not (stream.is_gone or desk.is_draining or is_over or time.monotonic() > ends_at):
            try:
                batch = await follower.batch(COMMENT_S)
            except OpenAgentSdkError as error:  # the session was deleted, or its store is away
                await stream.send(f"event: error\ndata: {dumps_json({'message': str(error)})}\n\n".encode())
                return
            for piece in _pieces(lines, batch):
                await stream.send(first + piece)
                first = b""
            refusal = None if batch else desk.left.refusal(session_id)
            if refusal is not None and refusal != told:
                await stream.send(first + f"event: left\ndata: {dumps_json({'message': refusal})}\n\n".encode())
                is_over, told, first = one_run, refusal, b""
            elif not batch and not stream.is_gone:
                await stream.send(b":\n\n")
            is_over = is_over or (one_run and bool(batch) and is_end(batch[-1]) and follower.is_level)


def _pieces(lines: EventLines, batch: Sequence[Event]) -> Iterator[bytes]:
    """The batch as writes of about `MAX_WRITE_BYTES`, each made when the one before it was taken."""
    waiting, size = [], 0
    for event in batch:
        waiting.append(lines.sse(event))
        size += len(waiting[-1])
        if size >= MAX_WRITE_BYTES:
            yield b"".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield waiting[0] if len(waiting) == 1 else b"".join(waiting)


# --- over a WebSocket ------------------------------------------------------------------------------------------------

Post = Callable[[Principal, str, str, Any, "str | None"], Awaitable[tuple[int, Any]]]


class Socket:
    """One client on a WebSocket: events go out; `{"post", "body", "key", "id"}` comes in and is answered by a `reply`."""

    def __init__(self, receive: Receive, send: Send, desk: Desk, lines: EventLines) -> None:
        self._receive = receive
        self._send = send
        self._desk = desk
        self._lines = lines
        self._one_at_a_time = asyncio.Lock()

    async def receive_message(self) -> Any:
        """The next message as JSON, None when it is not JSON. Raises `ConnectionResetError` at the end."""
        message = await self._receive()
        if message["type"] == "websocket.disconnect":
            raise ConnectionResetError("the client has left")
        try:
            return loads_json(message.get("text") or "")
        except InvalidEventError:
            return None

    async def receive_token(self) -> str | None:
        """The token of the first message `{"type": "auth", "token": ...}`, when it comes in time."""
        try:
            async with asyncio.timeout(AUTH_S):
                said = await self.receive_message()
        except TimeoutError:
            return None
        is_auth = isinstance(said, dict) and said.get("type") == "auth" and isinstance(said.get("token"), str)
        return said["token"] if is_auth else None

    async def close(self, code: int, reason: str) -> None:
        """End it."""
        async with self._one_at_a_time, asyncio.timeout(SEND_S):
            await self._send({"type": "websocket.close", "code": code, "reason": reason})

    async def serve(self, who: Principal, session_id: str, after_seq: int, post: Post) -> None:
        """Send events and take messages until one side leaves."""
        try:
            async with self._desk.follow(who, session_id, after_seq=after_seq) as follower:
                reading = asyncio.create_task(self._read(who, session_id, post))
                reading.add_done_callback(lambda _: follower.wake())
                try:
                    code = await self._write(follower, reading)
                finally:
                    reading.cancel()
        except SessionNotFoundError:
            # In the same words for a session of somebody else, whatever the store says.
            return await self.close(NO_SESSION, "there is no such session here")
        except RequestRefusedError as error:
            return await self.close(BAD_CURSOR, str(error))
        if code is not None:
            await self.close(code, "this server is about to end" if code == RESTART else "come again")

    async def _write(self, follower: Follower, reading: asyncio.Task[None]) -> int | None:
        """Send until the client leaves (None), or it is time to end."""
        ends_at, told = time.monotonic() + MAX_STREAM_S, None
        while not reading.done():
            if self._desk.is_draining:
                return RESTART
            if time.monotonic() > ends_at:
                return GOING_AWAY
            for event in (batch := await follower.batch(COMMENT_S)):
                await self._send_text(self._lines.line(event))
            refusal = None if batch else self._desk.left.refusal(follower.session_id)
            if refusal is not None and refusal != told:
                told = refusal
                await self._send_text(dumps_json({"type": "left", "message": refusal}))
        return None

    async def _read(self, who: Principal, session_id: str, post: Post) -> None:
        with suppress(ConnectionResetError):
            while True:
                said = await self.receive_message()
                if not isinstance(said, dict) or not isinstance(said.get("post"), str):
                    status, value = 400, error_body(OptionsError('a message is {"post": "runs", "body": {...}}'))
                    said = said if isinstance(said, dict) else {}
                else:
                    key = said.get("key")
                    status, value = await post(who, session_id, said["post"], said.get("body"), key)
                answer = {"type": "reply", "id": said.get("id"), "status": status, "body": value}
                await self._send_text(dumps_json(answer))

    async def _send_text(self, text: str) -> None:
        async with self._one_at_a_time, asyncio.timeout(SEND_S):
            await self._send({"type": "websocket.send", "text": text})
