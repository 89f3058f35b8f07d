"""One TCP connection of the small server: HTTP/1.1 and WebSocket on one side, an ASGI application on the other.

The requests of a connection are answered in sequence. Pipelined data is buffered only up to a limit. The application's
`send` returns once the client has read enough of what was sent before.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from email.utils import formatdate
from typing import Any
from urllib.parse import unquote_to_bytes

from ..errors import RequestRefusedError
from ..ground.words import plural
from .http1 import RawHeaders, RequestHead, RequestReader, response_head
from .websocket import BINARY, PING, PONG, TEXT, BrokenFrameError, FrameReader, accept_key, close_frame, frame, is_key

AsgiScope = MutableMapping[str, Any]
AsgiMessage = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[AsgiMessage]]
Send = Callable[[AsgiMessage], Awaitable[None]]
App = Callable[[AsgiScope, Receive, Send], Awaitable[None]]

# An extension of ASGI's `websocket.accept`: the application has authenticated the client, so its messages may be large.
TRUSTED = "openagentic.trusted"
HEAD_S = 10.0  # from the first byte of a head to its last
IDLE_S = 75.0  # between two requests
BODY_S = 30.0  # without a byte of the body
WHOLE_BODY_S = 120.0
CLOSE_S = 2.0  # for a peer to read an error or to answer a close
PING_S = 25.0
MAX_AHEAD_BYTES = 64 * 1024
MAX_REQUESTS = 1000


class HttpConnection(asyncio.Protocol):
    """One TCP connection. `app` is called once per request; `everyone` contains the server's open connections.

    If there are already `max_connections` of them, this one is refused.
    """

    def __init__(self, app: App, everyone: set[HttpConnection], max_connections: int) -> None:
        self._app = app
        self._everyone = everyone
        self._max_connections = max_connections
        self._reader = RequestReader()
        self._transport: asyncio.Transport | None = None
        self._exchange: AsgiExchange | WebSocket | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._requests = 0
        self._body_until = 0.0
        self._room: asyncio.Future[None] | None = None
        self._news: asyncio.Future[None] | None = None
        self._is_draining = self._is_deaf = self._has_ended = False
        self.is_gone = False

    # --- called by asyncio -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if len(self._everyone) >= self._max_connections:
            error = f"the limit of {plural(self._max_connections, 'open connection')} is reached: try again later"
            self._answer(RequestRefusedError(503, error), (b"retry-after", b"1"))
            self._is_deaf = True
            transport.close()
            return
        self._everyone.add(self)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # so that the next comment or ping detects a vanished peer
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60_000)
        self._wait_at_most(HEAD_S)

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        if isinstance(self._exchange, WebSocket):
            self._exchange.feed(data)
            return
        self._reader.feed(data)
        if self._exchange is None:
            self._begin()
        else:
            self.wake()
            self.read_ahead(self._reader.waiting)

    def eof_received(self) -> bool:
        """Keep the connection open for a request in progress; WebSockets end.

        A client that has sent end of file may still read its response. Event streams notice the end and finish.
        """
        self._has_ended = True
        self.wake()
        return isinstance(self._exchange, AsgiExchange)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_gone = True
        self._everyone.discard(self)
        self._wait_at_most(None)
        self.wake()
        self.resume_writing()

    def pause_writing(self) -> None:
        self._room = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        self._room = None

    # --- called for the application ----------------------------------------------------------------------------------

    def put(self, data: bytes) -> None:
        """Send bytes without waiting. Raises `ConnectionResetError` if the client has disconnected."""
        if self.is_gone or self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("the client has disconnected")
        self._transport.write(data)

    @property
    def has_ended(self) -> bool:
        """Whether the client will send nothing more."""
        return self.is_gone or self._has_ended

    async def write(self, data: bytes) -> None:
        """Send bytes, and wait while the send buffer is full. Raises `ConnectionResetError` after a disconnection."""
        self.put(data)
        if self._room is not None:
            # Shared by all senders of the connection: cancelling one of them must not cancel the others' wait.
            await asyncio.shield(self._room)

    async def news(self, timeout_s: float | None = None) -> None:
        """Wait for more bytes, a call of `wake`, or the end of the connection. Raises `TimeoutError`."""
        if self._transport is not None and not self.is_gone:
            self._transport.resume_reading()
        waiter = self._news = asyncio.get_running_loop().create_future()
        if timeout_s is None:
            await waiter
        else:
            async with asyncio.timeout(timeout_s):
                await waiter

    def wake(self) -> None:
        """Make `news` return."""
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def read_ahead(self, waiting: int) -> None:
        """Stop reading if more than `MAX_AHEAD_BYTES` are unprocessed; `news` resumes it."""
        if waiting > MAX_AHEAD_BYTES and self._transport is not None:
            self._transport.pause_reading()

    async def read_body(self) -> bytes:
        """Wait for the next piece of the request body; b"" at its end.

        Raises `RequestRefusedError`, and `ConnectionResetError` if the client has disconnected.
        """
        loop = asyncio.get_running_loop()
        self._body_until = self._body_until or loop.time() + WHOLE_BODY_S
        while (piece := self._reader.read_body()) is None:
            if self.has_ended:
                raise ConnectionResetError("the client has disconnected")
            try:
                await self.news(min(BODY_S, self._body_until - loop.time()))
            except TimeoutError:
                raise RequestRefusedError(408, "the body did not arrive in time") from None
        return piece

    def drain(self) -> None:
        """Accept no more requests: an idle connection is closed now, a busy one after its response."""
        self._is_draining = True
        if self._exchange is None:
            self.close()

    def close(self) -> None:
        """Close the connection once all written data has been sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once and cancel its request."""
        if self._task is not None:
            self._task.cancel()
        if self._transport is not None:
            self._transport.abort()

    @property
    def task(self) -> asyncio.Task[None] | None:
        """The task of the current request; None between requests."""
        return self._task

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _wait_at_most(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = None if seconds is None else loop.call_later(seconds, self._too_slow)

    def _too_slow(self) -> None:
        if self._reader.waiting:
            self._refuse(RequestRefusedError(408, f"the request's head did not arrive within {HEAD_S:g} s"))
        else:
            self.close()

    def _begin(self) -> None:
        """Start the next request if its head is complete."""
        if not self._reader.waiting:
            return
        try:
            head = self._reader.read_head()
        except RequestRefusedError as error:
            self._refuse(error)
            return
        if head is None:
            loop = asyncio.get_running_loop()
            # A client that sends a byte now and then must not extend the time for the head.
            if self._timer is None or self._timer.when() > loop.time() + HEAD_S:
                self._wait_at_most(HEAD_S)
            return
        self._wait_at_most(None)
        self._requests += 1
        self._body_until = 0.0
        is_socket = head.upgrades and head.method == "GET" and head.length == 0 and head.minor == 1
        self._exchange = WebSocket(self, head, self._reader.take_rest()) if is_socket else AsgiExchange(self, head)
        self._task = asyncio.get_running_loop().create_task(self._serve(self._exchange, head))

    def _scope(self, head: RequestHead, exchange: AsgiExchange | WebSocket) -> AsgiScope:
        path, _, query = head.target.partition(b"?")
        transport = self._transport
        assert transport is not None
        peer, own = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        secure = transport.get_extra_info("ssl_object") is not None
        scope: AsgiScope = {
            "type": exchange.kind,
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": f"1.{head.minor}",
            "scheme": ("https" if secure else "http") if exchange.kind == "http" else ("wss" if secure else "ws"),
            "path": unquote_to_bytes(path).decode("utf-8", "replace"),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": head.headers,
            "client": tuple(peer[:2]) if isinstance(peer, tuple) else None,
            "server": tuple(own[:2]) if isinstance(own, tuple) else (own or None, None),
        }
        if exchange.kind == "http":
            scope["method"] = head.method
        else:
            scope["subprotocols"] = []
            scope["extensions"] = {"websocket.http.response": {}, TRUSTED: {}}
        return scope

    async def _serve(self, exchange: AsgiExchange | WebSocket, head: RequestHead) -> None:
        """Run the application for one request, then start the next one or close the connection."""
        try:
            await self._app(self._scope(head, exchange), exchange.receive, exchange.send)
            await exchange.finish()
        except RequestRefusedError as error:
            self._refuse(error, begun=exchange.has_begun)
            return
        except (ConnectionError, TimeoutError):
            self.abort_transport()
            return
        except asyncio.CancelledError:
            self.abort_transport()
            raise
        except Exception as error:  # noqa: BLE001 - an app may fail in any way: the client gets a plain 500, the operator the error
            context = {"message": "the application failed", "exception": error, "protocol": self}
            asyncio.get_running_loop().call_exception_handler(context)
            self._refuse(RequestRefusedError(500, "the server failed"), begun=exchange.has_begun)
            return
        self._exchange = self._task = None
        if self.is_gone:
            return
        if not exchange.is_reusable or self._is_draining or self._has_ended or self._requests >= MAX_REQUESTS:
            self._linger()
            return
        self._wait_at_most(IDLE_S)
        assert self._transport is not None
        self._transport.resume_reading()
        self._begin()

    def abort_transport(self) -> None:
        """Drop a peer that is too slow or has broken the protocol."""
        if self._transport is not None:
            self._transport.abort()

    def _refuse(self, error: RequestRefusedError, *, begun: bool = False) -> None:
        """Respond with an error, unless a response has `begun`, and close: where the next request starts may be unknown."""
        if not begun:
            self._answer(error)
        self._linger()

    def _answer(self, error: RequestRefusedError, *headers: tuple[bytes, bytes]) -> None:
        if not self.is_gone and self._transport is not None:
            body = f"{error}\n".encode()
            kind = (b"content-type", b"text/plain; charset=utf-8")
            all_headers = [kind, (b"content-length", b"%d" % len(body)), *headers, (b"connection", b"close")]
            self._transport.write(response_head(error.status, all_headers) + body)

    def _linger(self) -> None:
        """Close after a response, but first discard input for a moment: a reset could make the client lose the response."""
        self._is_deaf = True
        if self._transport is not None and not self._transport.is_closing():
            with suppress(OSError):  # the peer has already disconnected
                if self._transport.can_write_eof():
                    self._transport.write_eof()
            self._transport.resume_reading()
            self._timer = asyncio.get_running_loop().call_later(CLOSE_S, self.close)


class AsgiExchange:
    """One request and its response, as ASGI's `receive` and `send`."""

    kind = "http"

    def __init__(self, connection: HttpConnection, head: RequestHead) -> None:
        self._connection = connection
        self._head = head
        self._start: AsgiMessage | None = None
        self._is_chunked = False
        self._is_read = False
        self._is_answered = False
        self._asked_for_body = not head.expects
        self.has_begun = False

    @property
    def is_reusable(self) -> bool:
        """Whether the connection may carry another request."""
        return self._head.is_kept and self._is_read

    async def receive(self) -> AsgiMessage:
        """Return the next piece of the body; after its end, wait for a disconnection or the end of the response."""
        connection = self._connection
        if not self._is_read and not connection.is_gone:
            if not self._asked_for_body and self._head.length != 0:
                self._asked_for_body = True
                await connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            try:
                piece = await connection.read_body()
            except ConnectionResetError:
                return {"type": "http.disconnect"}
            self._is_read = not piece
            return {"type": "http.request", "body": piece, "more_body": not self._is_read}
        while not connection.has_ended and not self._is_answered:
            await connection.news()
        return {"type": "http.disconnect"}

    async def send(self, message: AsgiMessage) -> None:
        """Send a part of the response; its head is sent with the first piece of its body."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        if message["type"] != "http.response.body" or self._start is None or self._is_answered:
            raise RuntimeError(
                f"{message['type']} cannot be sent now: send http.response.start, then http.response.body until the end"
            )
        body, more = message.get("body", b""), message.get("more_body", False)
        data = b"" if self.has_begun else self._answer_head(len(body), more)
        self.has_begun = True
        if self._head.method != "HEAD":
            data += b"%x\r\n%b\r\n" % (len(body), body) if self._is_chunked and body else body
            data += b"0\r\n\r\n" if self._is_chunked and not more else b""
        if not more:
            self._is_answered = True
            self._connection.wake()
        await self._connection.write(data)

    async def finish(self) -> None:
        """Check, after the application has returned, that its response is complete; do not read the rest of the body.

        Raises `ConnectionResetError` for an incomplete response, and `RuntimeError` without one.
        """
        if not self._is_answered:
            # A response abandoned because its client did not read: the missing end shows that it is incomplete.
            if self.has_begun or self._connection.has_ended:
                raise ConnectionResetError("cut")
            raise RuntimeError("the application returned without a response")
        # An empty body needs no reading: the connection can carry another request.
        if not self._is_read and self._head.length == 0:
            self._is_read = True

    def _answer_head(self, size: int, more: bool) -> bytes:
        assert self._start is not None
        status, headers = self._start["status"], list(self._start["headers"])
        names = {name.lower() for name, _ in headers}
        has_body = status >= 200 and status not in (204, 304)
        if has_body and b"content-length" not in names:
            if not more:
                headers.append((b"content-length", b"%d" % size))
            elif self._head.minor == 1:
                self._is_chunked = True
                headers.append((b"transfer-encoding", b"chunked"))
        # A body that was not read would be taken for the next request.
        if not self._head.is_kept or (self._head.length != 0 and not self._is_read):
            headers.append((b"connection", b"close"))
        headers.append((b"date", formatdate(usegmt=True).encode()))
        return response_head(status, headers)


class WebSocket:
    """One WebSocket, as ASGI's `receive` and `send`. Pings are handled here; the application sees only messages."""

    kind = "websocket"
    is_reusable = False

    def __init__(self, connection: HttpConnection, head: RequestHead, rest: bytes) -> None:
        self._connection = connection
        self._head = head
        self._frames = FrameReader()
        self._frames.feed(rest)
        self._messages: deque[AsgiMessage] = deque([{"type": "websocket.connect"}])
        self._state = "asked"  # later "open" and "closed", or "refused"
        self._silent_intervals = 0
        self._pinger: asyncio.TimerHandle | None = None
        self._refusal: AsgiMessage | None = None
        self.has_begun = False

    def feed(self, data: bytes) -> None:
        """Add bytes from the client. Frames are parsed only when the application receives, so a client cannot flood it."""
        self._silent_intervals = 0
        self._frames.feed(data)
        self._connection.wake()
        self._connection.read_ahead(self._frames.waiting)

    async def receive(self) -> AsgiMessage:
        """Wait for the next ASGI message."""
        while True:
            if self._messages:
                return self._messages.popleft()
            if self._state == "closed" or self._connection.is_gone:
                return {"type": "websocket.disconnect", "code": 1006}
            if self._state == "open":
                await self._read_frame()
            else:
                await self._connection.news()

    async def _read_frame(self) -> None:
        """Read the next frame: answer a ping or a close, and queue a message."""
        try:
            received = self._frames.next()
        except BrokenFrameError as error:
            await self._close(error.code, str(error))
            self._messages.append({"type": "websocket.disconnect", "code": error.code, "reason": str(error)})
            return
        if received is None:
            await self._connection.news()
        elif received.kind == "ping":
            assert isinstance(received.data, bytes)
            await self._connection.write(frame(PONG, received.data))
            await asyncio.sleep(0)  # a flood of these must not hold up other connections
        elif received.kind == "close":
            await self._close(received.code)
            message = {"type": "websocket.disconnect", "code": received.code, "reason": received.data}
            self._messages.append(message)
        elif received.kind == "pong":
            await asyncio.sleep(0)
        else:
            key = "text" if received.kind == "text" else "bytes"
            self._messages.append({"type": "websocket.receive", key: received.data})

    async def send(self, message: AsgiMessage) -> None:
        """Send an accept, a message, a close, or an HTTP response instead of a WebSocket.

        Raises `ConnectionResetError` after the end of the WebSocket.
        """
        kind = message["type"]
        if kind == "websocket.accept" and self._state == "asked":
            if message.get(TRUSTED):
                self._frames.trust()
            await self._accept(message.get("headers", ()))
        elif kind == "websocket.send" and self._state == "open":
            text, data = message.get("text"), message.get("bytes")
            await self._connection.write(frame(TEXT, text.encode()) if text is not None else frame(BINARY, data or b""))
        elif kind == "websocket.close":
            if self._state == "asked":
                await self._answer(403, [], b"")
            await self._close(message.get("code", 1000), message.get("reason") or "")
        elif kind == "websocket.http.response.start" and self._state == "asked":
            self._refusal = message
        elif kind == "websocket.http.response.body" and self._refusal is not None:
            await self._answer(self._refusal["status"], list(self._refusal["headers"]), message.get("body", b""))
        elif self._state == "open" or self._refusal is None:
            raise ConnectionResetError(f"{kind} cannot be sent in this state of the WebSocket")

    async def finish(self) -> None:
        """End the WebSocket after the application has returned."""
        if self._state == "asked":
            await self._answer(500, [], b"")
        await self._close(1000)

    async def _accept(self, headers: RawHeaders) -> None:
        key = self._head.header(b"sec-websocket-key")
        if self._head.header(b"sec-websocket-version") != b"13":
            return await self._answer(426, [(b"sec-websocket-version", b"13")], b"Sec-WebSocket-Version must be 13\n")
        if key is None or not is_key(key):
            return await self._answer(400, [], b"Sec-WebSocket-Key is missing\n")
        upgrade_headers = [
            (b"upgrade", b"websocket"),
            (b"connection", b"Upgrade"),
            (b"sec-websocket-accept", accept_key(key)),
        ]
        self._state, self.has_begun = "open", True
        await self._connection.write(response_head(101, [*upgrade_headers, *headers]))
        self._pinger = asyncio.get_running_loop().call_later(PING_S, self._ping)

    async def _answer(self, status: int, headers: RawHeaders, body: bytes) -> None:
        self._state, self.has_begun = "refused", True
        more = [(b"content-length", b"%d" % len(body)), (b"connection", b"close")]
        await self._connection.write(response_head(status, [*headers, *more]) + body)
        self._messages.append({"type": "websocket.disconnect", "code": 1006})

    async def _close(self, code: int, reason: str = "") -> None:
        if self._state == "open":
            self._state = "closed"
            if self._pinger is not None:
                self._pinger.cancel()
            if not self._connection.is_gone:
                await self._connection.write(close_frame(code, reason))

    def _ping(self) -> None:
        """Ping the peer; drop it after two intervals without data from it."""
        if self._state != "open" or self._connection.is_gone:
            return
        if self._silent_intervals > 1:
            self._connection.abort_transport()
            return
        self._silent_intervals += 1
        try:
            self._connection.put(frame(PING, b""))
        except ConnectionResetError:  # the connection is being closed
            return
        self._pinger = asyncio.get_running_loop().call_later(PING_S, self._ping)
