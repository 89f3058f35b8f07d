"""Send a session's events to a client: as server-sent events, or over a WebSocket that also accepts posted operations.

Both follow the store from the client's cursor, which is a `seq`; deltas, which have no `seq`, are sent in between. A client
that does not read in time is dropped, and can resume later from the last event that it received.
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
from ..parts.masking import environment_redactor, shown
from ..serialization import dumps_event, dumps_json
from ..sessions.folds.standing import LEFT_STATES, has_ended
from ..sessions.follow import Follower
from .call import COMMENT_S, SEND_S, HttpCall, read_json, within
from .connection import Receive, Send
from .contract.refusals import error_body
from .desk import Desk
from .guard import Principal

# A stream ends after this time and its client reconnects, so that a server which waits for open responses can shut down.
MAX_STREAM_S = 600.0
# The reconnection time of an EventSource. It is part of the first event: alone, some clients read it as an empty event.
RETRY = b"retry: 1000\n"
MAX_WRITE_BYTES = 256 * 1024
AUTH_S = 10.0
_CACHED_EVENTS, _CACHED_BYTES = 256, 1024 * 1024
# Close codes. The first three are private (RFC 6455 section 7.4.2): no token, no such session, a cursor beyond the end of
# the log.
NO_TOKEN, NO_SESSION, BAD_CURSOR, GOING_AWAY, RESTART = 4001, 4004, 4009, 1001, 1012


class EventLines:
    """An encoder of events for clients: JSON on one line of ASCII, with secrets masked.

    An event is encoded once for all simultaneous followers.
    """

    def __init__(self) -> None:
        self._redact = environment_redactor()
        self._written: OrderedDict[int, tuple[Event, str, bytes]] = OrderedDict()
        self._written_bytes = 0

    def line(self, event: Event) -> str:
        """Return the JSON of an event."""
        return self._write(event)[1]

    def shown(self, event: Event) -> Event:
        """The event in the form to show, with secrets in the inputs of calls masked as well; see `parts.masking.shown`."""
        return shown(event, self._redact)

    def sse(self, event: Event) -> bytes:
        """Return an event as a server-sent event: `id` is the `seq`, `data` the JSON; deltas have no id."""
        return self._write(event)[2]

    def _write(self, event: Event) -> tuple[Event, str, bytes]:
        # The event is kept with its line, so that its address cannot be reused for another event in the meantime.
        entry = self._written.get(id(event))
        if entry is not None and entry[0] is event:
            return entry
        line = dumps_event(self.shown(event))
        place = "" if event.seq is None else f"id: {event.seq}\n"
        new_entry = self._written[id(event)] = event, line, f"{place}data: {line}\n\n".encode("ascii")
        self._written_bytes += len(new_entry[2])
        while self._written_bytes > _CACHED_BYTES or len(self._written) > _CACHED_EVENTS:
            self._written_bytes -= len(self._written.popitem(last=False)[1][2])
        return new_entry


async def send_events(
    call: HttpCall, desk: Desk, lines: EventLines, session_id: str, after_seq: int, *, one_run: bool
) -> None:
    """Respond with server-sent events after a cursor; with `one_run`, up to the end of the current run.

    The response is 204 if that run has ended at the cursor, and one `resync` event if the cursor exceeds the log.
    """
    row = await desk.row(call.principal, session_id)
    is_over = row.state != "running" and (
        row.state not in LEFT_STATES or await desk.left.why_left(session_id) is not None
    )
    if one_run and after_seq == row.events and is_over and not await desk.has_queued(session_id):
        # Nothing will follow: without this status, an EventSource would reconnect forever.
        return await call.reply(204)
    if after_seq > row.events:
        async with await call.stream() as stream:
            # An empty id resets the cursor, so that an EventSource starts over.
            await stream.send(f"event: resync\nid:\ndata: {dumps_json({'last_seq': row.events})}\n\n".encode())
        return
    async with desk.follow_known(session_id, after_seq=after_seq) as follower, await call.stream() as stream:
        stream.when_gone(follower.wake)
        ends_at, is_over, first, last_refusal = time.monotonic() + MAX_STREAM_S, False, RETRY, None
        ended = False
        while not (stream.is_gone or desk.is_draining or is_over or time.monotonic() > ends_at):
            try:
                batch = await follower.batch(COMMENT_S)
            except OpenAgentSdkError as error:  # the session was deleted, or the store is unavailable
                await stream.send(f"event: error\ndata: {dumps_json({'message': str(error)})}\n\n".encode())
                return
            for piece in _pieces(lines, batch):
                await stream.send(first + piece)
                first = b""
            refusal = None if batch else desk.left.refusal(session_id)
            if refusal is not None and refusal != last_refusal:
                await stream.send(first + f"event: left\ndata: {dumps_json({'message': refusal})}\n\n".encode())
                is_over, last_refusal, first = one_run, refusal, b""
            elif not batch and not stream.is_gone:
                await stream.send(b":\n\n")
            for event in batch:
                ended = has_ended(ended, event)
            if one_run and ended and follower.is_level:
                is_over = is_over or not await desk.has_queued(session_id)


def _pieces(lines: EventLines, batch: Sequence[Event]) -> Iterator[bytes]:
    """Yield the batch in pieces of about `MAX_WRITE_BYTES`, each created once the previous one has been sent."""
    if len(batch) == 1:
        yield lines.sse(batch[0])
        return
    waiting, size = [], 0
    for event in batch:
        waiting.append(lines.sse(event))
        size += len(waiting[-1])
        if size >= MAX_WRITE_BYTES:
            yield b"".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)


# --- over a WebSocket ------------------------------------------------------------------------------------------------

PostAction = Callable[[Principal, str, str, Any, "str | None"], Awaitable[tuple[int, Any]]]


class Socket:
    """A WebSocket to one client, which receives events, and a `reply` to each `{"post", "body", "key", "id"}` it sends."""

    def __init__(self, receive: Receive, send: Send, desk: Desk, lines: EventLines) -> None:
        self._receive = receive
        self._send = send
        self._desk = desk
        self._lines = lines
        self._one_at_a_time = asyncio.Lock()

    async def receive_message(self) -> Any:
        """Receive a message as JSON; None if it is not JSON. Raises `ConnectionResetError` if the client disconnected."""
        message = await self._receive()
        if message["type"] == "websocket.disconnect":
            raise ConnectionResetError("the client has disconnected")
        try:
            return read_json(message.get("text") or "")
        except InvalidEventError:
            return None

    async def receive_token(self) -> str | None:
        """Receive the token in the first message, `{"type": "auth", "token": ...}`; None for any other, or on a timeout."""
        try:
            async with asyncio.timeout(AUTH_S):
                message = await self.receive_message()
        except TimeoutError:
            return None
        is_auth = isinstance(message, dict) and message.get("type") == "auth" and isinstance(message.get("token"), str)
        return message["token"] if is_auth else None

    async def close(self, code: int, reason: str) -> None:
        """Close the WebSocket."""
        async with self._one_at_a_time:
            await within(SEND_S, self._send({"type": "websocket.close", "code": code, "reason": reason}))

    async def serve(self, who: Principal, session_id: str, after_seq: int, post: PostAction) -> None:
        """Send events and receive messages until either side closes."""
        try:
            async with self._desk.follow(who, session_id, after_seq=after_seq) as follower:
                reading = asyncio.create_task(self._read(who, session_id, post))
                reading.add_done_callback(lambda _: follower.wake())
                try:
                    code = await self._write(follower, reading)
                finally:
                    reading.cancel()
        except SessionNotFoundError:
            # The same text for another tenant's session, whatever the store's error.
            return await self.close(NO_SESSION, "the session does not exist")
        except RequestRefusedError as error:
            return await self.close(BAD_CURSOR, str(error))
        if code is not None:
            await self.close(code, "this server is shutting down" if code == RESTART else "reconnect to continue")

    async def _write(self, follower: Follower, reading: asyncio.Task[None]) -> int | None:
        """Send events until the client disconnects (return None) or the server ends the stream (return the close code)."""
        ends_at, last_refusal = time.monotonic() + MAX_STREAM_S, None
        while not reading.done():
            if self._desk.is_draining:
                return RESTART
            if time.monotonic() > ends_at:
                return GOING_AWAY
            for event in (batch := await follower.batch(COMMENT_S)):
                await self._send_text(self._lines.line(event))
            refusal = None if batch else self._desk.left.refusal(follower.session_id)
            if refusal is not None and refusal != last_refusal:
                last_refusal = refusal
                await self._send_text(dumps_json({"type": "left", "message": refusal}))
        return None

    async def _read(self, who: Principal, session_id: str, post: PostAction) -> None:
        with suppress(ConnectionResetError):
            while True:
                message = await self.receive_message()
                if not isinstance(message, dict) or not isinstance(message.get("post"), str):
                    status, value = 400, error_body(OptionsError('a message must be {"post": "runs", "body": {...}}'))
                    message = message if isinstance(message, dict) else {}
                else:
                    key = message.get("key")
                    status, value = await post(who, session_id, message["post"], message.get("body"), key)
                answer = {"type": "reply", "id": message.get("id"), "status": status, "body": value}
                await self._send_text(dumps_json(answer))

    async def _send_text(self, text: str) -> None:
        async with self._one_at_a_time:
            await within(SEND_S, self._send({"type": "websocket.send", "text": text}))
