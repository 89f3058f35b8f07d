"""One HTTP request over ASGI: its target, its JSON body, and its response, whole or as server-sent events."""

from __future__ import annotations

import asyncio
import json
import types
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, unquote_to_bytes

from ..errors import InvalidEventError, RequestRefusedError
from ..ground.checks import refuse_repeated_keys
from ..serialization import dumps_json, refuse_constant
from .connection import AsgiMessage, AsgiScope, Receive, Send
from .guard import Principal, headers_named

MAX_BODY_BYTES = 4 * 1024 * 1024
# A client that reads nothing for this long is dropped; it resumes later where it stopped.
SEND_S = 20.0
# Well below the 60 s after which nginx and common load balancers close a silent connection by default.
COMMENT_S = 15.0
MAX_QUERY_FIELDS = 20

PROTECTION = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
# A proxy that compresses or buffers a stream would hold its events back.
_STREAM = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
    *PROTECTION[1:],
)


_DECODER = json.JSONDecoder(parse_constant=refuse_constant, object_pairs_hook=refuse_repeated_keys)


def read_json(text: str) -> Any:
    """Decode a client's JSON. A key that appears twice is refused, because a gateway could have checked the other value.

    Raises `InvalidEventError`.
    """
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise InvalidEventError(str(error)) from None


class HttpCall:
    """One HTTP request and the response to it.

    `parts` are the decoded segments of its path, relative to `root`, where the application is mounted. `query` maps the
    fields of its query to strings, and `query_values` those that the route accepts to parsed values. `principal` is set once
    the request has been authorized.
    """

    def __init__(self, scope: AsgiScope, receive: Receive, send: Send, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        self.scope = scope
        self.method: str = scope.get("method", "GET")
        self.principal = Principal()
        self.has_begun = False
        self.status = 0  # the response's status, once it has started
        self.more_headers: list[tuple[bytes, bytes]] = []
        self._receive = receive
        self._send = send
        self._max_body_bytes = max_body_bytes
        self.parts: tuple[str, ...] = ()
        self.query: dict[str, str] = {}
        self.query_values: dict[str, Any] = {}
        self.root = ""

    def read_target(self) -> None:
        """Set `parts`, `query` and `root` from the request's URL. Raises `RequestRefusedError` 400."""
        try:
            text = self.scope.get("query_string", b"").decode("ascii")
            pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=MAX_QUERY_FIELDS)
        except ValueError:
            raise RequestRefusedError(
                400, f"the query must be percent-encoded UTF-8 with at most {MAX_QUERY_FIELDS} parameters"
            ) from None
        query = dict(pairs)
        if len(query) != len(pairs):
            names = [name for name, _ in pairs]
            raise RequestRefusedError(
                400, f"the query parameter {max(names, key=names.count)!r:.100} appears more than once"
            )
        raw = self.scope.get("raw_path")
        path = self.scope["path"].encode("utf-8", "surrogateescape") if raw is None else raw.partition(b"?")[0]
        pieces = path.removeprefix(b"/").split(b"/")
        root = [
            piece.encode("utf-8", "surrogateescape") for piece in self.scope.get("root_path", "").split("/") if piece
        ]
        # A path includes the mount's own (ASGI 3, root_path), except under servers older than that rule.
        if root and [piece if raw is None else unquote_to_bytes(piece) for piece in pieces[: len(root)]] == root:
            pieces = pieces[len(root) :]
        self.root = "".join(f"/{quote(piece, safe='')}" for piece in root)
        parts = []
        for piece in pieces if pieces != [b""] else ():
            try:
                part = (piece if raw is None else unquote_to_bytes(piece)).decode("utf-8")
            except UnicodeDecodeError:
                raise RequestRefusedError(400, "the path is not UTF-8") from None
            # An encoded slash, or dots, could mean another path to a proxy in front of this server.
            if part in (".", "..") or not part.isprintable() or "/" in part or "\\" in part:
                raise RequestRefusedError(
                    400,
                    "a segment of the path is . or .., or contains a slash, a backslash or an unprintable character",
                )
            parts.append(part)
        self.parts, self.query = tuple(parts), query

    def header(self, name: str) -> str | None:
        """The value of a header by its lower-case name; None if missing. Raises `RequestRefusedError` if it is repeated."""
        values = headers_named(self.scope, name.encode())
        if len(values) > 1:
            raise RequestRefusedError(400, f"the request has more than one {name} header")
        return values[0] if values else None

    def check_kind(self, *, may_be_empty: bool = False) -> None:
        """Raise `RequestRefusedError` 415 unless the headers describe the body as JSON that is not compressed.

        Pages of other sites cannot send JSON without CORS. With `may_be_empty`, a request without a body needs no media
        type if it has the header Authorization, which such pages cannot send either: OpenAI's client for Node cancels a
        response in this way.
        """
        kind = (self.header("content-type") or "").lower().replace(" ", "")
        is_empty = not kind and (self.header("content-length") or "0") == "0" and not self.header("transfer-encoding")
        if may_be_empty and is_empty and self.header("authorization"):
            return
        if kind not in ("application/json", "application/json;charset=utf-8"):
            raise RequestRefusedError(415, f"the Content-Type must be application/json, not {kind!r:.100}")
        if (self.header("content-encoding") or "identity").lower() != "identity":
            raise RequestRefusedError(415, "the body must not be compressed")

    async def json(self, *, may_be_empty: bool = False) -> Any:
        """Read the body as JSON; with `may_be_empty`, an empty body is {}.

        Raises `RequestRefusedError` (413 if it is too large, 415 if it has no media type, 400 if it is malformed), and
        `ConnectionResetError` if the client has disconnected.
        """
        length = self.header("content-length")
        if length is not None and not (length.isascii() and length.isdigit()):
            raise RequestRefusedError(400, f"Content-Length must be a whole number, not {length!r:.100}")
        # Before `int`, whose time grows with the square of the number of digits.
        if length is not None and (len(length) > 15 or int(length) > self._max_body_bytes):
            raise self._too_big()
        pieces, size, more = [], 0, True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ConnectionResetError("the client has disconnected")
            pieces.append(message.get("body", b""))
            size, more = size + len(pieces[-1]), message.get("more_body", False)
            if size > self._max_body_bytes:
                raise self._too_big()
        if may_be_empty and not size:
            return {}
        if self.header("content-type") is None:
            raise RequestRefusedError(415, "the Content-Type must be application/json, and is missing")
        try:
            return read_json(b"".join(pieces).decode("utf-8"))
        except (InvalidEventError, UnicodeDecodeError) as error:
            raise RequestRefusedError(400, f"the body is not usable JSON ({error})") from None

    async def reply(self, status: int, value: Any = None, headers: Mapping[str, str] | None = None) -> None:
        """Respond with `value` as JSON; None sends no body."""
        body = b"" if value is None else dumps_json(value).encode("ascii")
        kind = [] if value is None else [(b"content-type", b"application/json")]
        # Nothing in JSON is to be loaded or framed, even if a browser is made to open it as a page.
        policy = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
        extra_headers = [(name.lower().encode(), text.encode()) for name, text in (headers or {}).items()]
        await self.reply_bytes(status, body, [*kind, policy, *extra_headers])

    async def reply_bytes(self, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Respond with these bytes."""
        length = [] if status == 204 else [(b"content-length", b"%d" % len(body))]
        await self._start(status, [*PROTECTION, *headers, *length])
        await self.send_piece(b"" if self.method == "HEAD" else body, more=False)

    async def stream(self) -> EventStream:
        """Start a response of server-sent events. Its headers are sent at once; a HEAD request receives only them."""
        await self._start(200, list(_STREAM))
        # A comment at once: some proxies forward headers only together with the first bytes of the body.
        await self.send_piece(b"" if self.method == "HEAD" else b": hello\n\n", more=self.method != "HEAD")
        return EventStream(self, is_gone=self.method == "HEAD")

    async def gone(self) -> None:
        """Wait until the client has disconnected."""
        while (await self._receive())["type"] != "http.disconnect":
            continue

    async def send_piece(self, data: bytes, *, more: bool) -> None:
        """Send a piece of the body; `more` is false for the last one. Raises `TimeoutError` if the client does not read,
        `OSError` if it has disconnected.
        """
        await within(SEND_S, self._send({"type": "http.response.body", "body": data, "more_body": more}))

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.has_begun, self.status = True, status
        message: AsgiMessage = {
            "type": "http.response.start",
            "status": status,
            "headers": [*headers, *self.more_headers],
        }
        await self._send(message)

    def _too_big(self) -> RequestRefusedError:
        return RequestRefusedError(413, f"the body has more than {self._max_body_bytes} bytes")


@types.coroutine
def within(seconds: float, work: Awaitable[None]) -> Generator[Any, Any, None]:
    """Await `work` for at most this many `seconds`. Raises `TimeoutError`.

    Unlike `asyncio.timeout`, this sets a timer only if the work has to wait, which is rare when sending.
    """
    steps = work.__await__()
    try:
        waited = next(steps)
    except StopIteration:
        return
    task, is_over = asyncio.current_task(), False

    def give_up() -> None:
        nonlocal is_over
        is_over = True
        if task is not None:
            task.cancel()

    timer = asyncio.get_running_loop().call_later(seconds, give_up)
    try:
        while True:
            try:
                yield waited
            except BaseException as error:  # noqa: BLE001 - any exception thrown in, even CancelledError, must reach the work
                waited = steps.throw(error)
            else:
                waited = next(steps)
    except StopIteration:
        return
    except asyncio.CancelledError:
        # As `asyncio.timeout` does: if somebody else has cancelled the task as well, that cancellation remains.
        if is_over and task is not None and task.uncancel() <= 0:
            raise TimeoutError(f"the client did not read fast enough: a send waited for {seconds:g} s") from None
        raise
    finally:
        timer.cancel()


class EventStream:
    """A stream of server-sent events to one client, open during the block.

    `is_gone` is true once the client has disconnected, and for a HEAD request, which receives no events.
    """

    def __init__(self, call: HttpCall, *, is_gone: bool = False) -> None:
        self._call = call
        self.is_gone = is_gone
        self._watch = asyncio.create_task(call.gone())
        self._watch.add_done_callback(self._on_left)
        self._tell: Callable[[], None] | None = None

    async def __aenter__(self) -> EventStream:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._tell = None
        self._watch.cancel()
        # After an error the body must not end properly, or the client would consider the stream complete.
        if kind is None and not self.is_gone:
            await self._call.send_piece(b"", more=False)

    def when_gone(self, tell: Callable[[], None]) -> None:
        """Call `tell` once the client has disconnected; at once if it already has."""
        self._tell = tell
        if self.is_gone:
            tell()

    async def send(self, data: bytes) -> None:
        """Send whole events, unless the client has disconnected. Raises the errors of `HttpCall.send_piece`."""
        if not self.is_gone:
            await self._call.send_piece(data, more=True)

    def _on_left(self, watch: asyncio.Task[None]) -> None:
        self.is_gone = self.is_gone or not watch.cancelled()
        if self._tell is not None:
            self._tell()
