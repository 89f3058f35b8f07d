"""HTTP to models: one request and its answer, over persistent connections.

The standard library's own client (http.client) runs in one thread per request; the loop gets the body in batches and is
never blocked. The traps that this file exists for: iterating over lines hides a truncated body, closing from another thread
hangs where `shutdown` returns at once, keys travel along with redirects, a TLS context costs 40 ms, and a persistent
connection may be dead when it is reused.

A key is in the request's headers and nowhere else; no error message or displayed URL contains it.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from http.client import HTTPConnection, HTTPException, HTTPResponse, IncompleteRead, RemoteDisconnected, parse_headers
from urllib.parse import SplitResult, urljoin, urlsplit

from ...errors import OptionsError, ProviderConnectionError, ProviderError, ProviderResponseError, ProviderTimeoutError
from ...ground.frozen import frozen
from ...ground.text import on_one_line
from ...ground.words import plural, shortened
from .connect import Line, Target, find_proxy, open_connection, proxy_authorization, shared_tls_context, shown_url
from .thread_feed import FeedStopped, ThreadFeed
from .timeouts import ExchangeProgress, FeedWatch, Timeouts

# Far above any model's answer: this only keeps a faulty server from filling the memory.
MAX_BODY_BYTES = 256 * 1024 * 1024

_READ_BYTES = 64 * 1024
_MAX_REDIRECTS = 3
_MAX_SHOWN_CHARS = 300
_MAX_INTERIM_ANSWERS = 100
# Vendors keep connections open for minutes, llama.cpp and Node for 5 s; one closed meanwhile is detected before use.
_MAX_IDLE_S = 60.0
_MAX_KEPT_PER_HOST = 64
_HEADER_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"


class HttpTransport:
    """A transport of requests to any number of hosts over shared, persistent connections, from any loops and threads.

    `timeouts` defaults to `Timeouts()`. `proxies` maps `http` and `https` to a proxy's URL; None reads HTTP_PROXY,
    HTTPS_PROXY, ALL_PROXY and NO_PROXY. `ssl_context` defaults to a shared context with the system's certificates, or those
    of SSL_CERT_FILE and SSL_CERT_DIR. `max_body_bytes` limits the uncompressed size of one answer.
    """

    def __init__(
        self,
        *,
        timeouts: Timeouts | None = None,
        proxies: Mapping[str, str] | None = None,
        ssl_context: ssl.SSLContext | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self.timeouts = timeouts or Timeouts()
        self.max_body_bytes = max_body_bytes
        self.pool = _Pool()
        self._proxies = proxies
        self._ssl_context = ssl_context
        # If a caller forgets to close, no socket stays open longer than the transport exists.
        weakref.finalize(self, _close_idle, self.pool.idle_connections)

    def close(self) -> None:
        """Close the idle connections; the transport can still be used."""
        self.pool.close()

    async def request(
        self,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        method: str | None = None,
        timeouts: Timeouts | None = None,
        may_repeat: bool = False,
    ) -> HttpAnswer:
        """Send a request and return once the head of the answer has arrived.

        `method` defaults to GET without a body, else POST. With `may_repeat`, for requests that change nothing at their
        destination, a request is sent once more on a new connection if its connection was reset, or a reused one was closed,
        before the answer began. `timeouts` default to those of the transport. Raises `ProviderConnectionError`,
        `ProviderTimeoutError`, `ProviderResponseError` for an answer that is not HTTP, and `OptionsError` for a URL or
        header that cannot be sent. Up to `_MAX_REDIRECTS` redirects are followed, within the same origin only, and, unless
        the request is a plain GET, only if the status (307, 308) preserves the method; any other raises
        `ProviderResponseError`.
        """
        # Before any network access, so that an invalid header is reported even if the endpoint is unreachable.
        check_headers(headers)
        is_post = body is not None or method is not None
        method = method or ("GET" if body is None else "POST")
        began = time.monotonic()
        for _ in range(_MAX_REDIRECTS + 1):
            request = _HttpRequest(method, read_url(url), headers, body, timeouts or self.timeouts, began, may_repeat)
            answer = HttpAnswer(self, request)
            try:
                await answer.start()
                followed = _redirect(answer, url, is_post=is_post)
            except BaseException:  # cancellation too must not leak the connection
                await answer.aclose()
                raise
            if followed is None:
                return answer
            await answer.aclose()
            url = followed
        raise ProviderResponseError(
            f"{shortened(shown_url(url), _MAX_SHOWN_CHARS)} redirects too often: check base_url"
        )

    def find_target(self, parts: SplitResult) -> Target:
        """Find the target to connect to for this URL."""
        port = parts.port or (443 if parts.scheme == "https" else 80)
        return Target(parts.scheme, parts.hostname or "", port, find_proxy(parts, self._proxies))

    def tls_context(self) -> ssl.SSLContext:
        """The TLS context of this transport."""
        environment = (os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
        return self._ssl_context or shared_tls_context(environment)


@frozen
class _HttpRequest:
    """A request, its destination and its time limits, counted from `began` (`time.monotonic`)."""

    method: str
    parts: SplitResult
    headers: Mapping[str, str] = field(repr=False)
    body: bytes | None = field(repr=False)
    timeouts: Timeouts
    began: float
    may_repeat: bool


class HttpAnswer:
    """One HTTP answer: its status and headers, and its body as it arrives. Close it, even after its end."""

    def __init__(self, transport: HttpTransport, request: _HttpRequest) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._exchange = _HttpExchange(transport, request, self._enter_phase)
        self._watch = FeedWatch(
            shown_url(request.parts.geturl()), request.timeouts, self._exchange.progress, request.began
        )
        self._feed: ThreadFeed | None = None
        # Body chunks that arrived together with the head.
        self._waiting: list[bytes] = []

    async def start(self) -> None:
        """Send the request and wait for the head of the answer."""
        feed = self._feed = ThreadFeed(self._exchange.run, interrupt=self._exchange.line.cut)
        self._watch.start(feed)
        head, *self._waiting = await feed.take()
        self.status, self.headers = head

    async def read(self) -> list[bytes]:
        """Wait for chunks of the body; return all that have arrived, or an empty list at its end."""
        assert self._feed is not None, "call start() first"
        chunks, self._waiting = self._waiting or await self._feed.take(), []
        self._feed.mark_taken(sum(map(len, chunks)))
        return chunks

    async def read_all(self, max_bytes: int | None = None) -> bytes:
        """Return the whole body, or its first `max_bytes`."""
        body = bytearray()
        while chunks := await self.read():
            body += b"".join(chunks)
            if max_bytes is not None and len(body) >= max_bytes:
                return bytes(body[:max_bytes])
        return bytes(body)

    async def aclose(self) -> None:
        """Close the connection, or keep it for reuse if the body was read to its end; wait for the thread to end."""
        self._watch.stop()
        if self._feed is not None:
            await self._feed.aclose()

    def _enter_phase(self) -> None:
        # Runs in the exchange's thread, whereas the watch belongs to the loop.
        if self._feed is not None:
            self._feed.call_on_loop(self._watch.arm)


class _NotSent(ConnectionResetError):
    """Raised if the connection broke before the whole request was written, so the server cannot have acted on it."""


class _Response(HTTPResponse):
    """http.client's response, corrected: the original mistakes any 1xx answer except 100 for the final one.

    103 Early Hints precede the answer (RFC 8297). RFC 9110, section 15.2, allows any number of interim answers; at most
    100 are read.
    """

    def _read_status(self) -> tuple[str, int, str]:
        for _ in range(_MAX_INTERIM_ANSWERS):
            status: tuple[str, int, str] = super()._read_status()  # type: ignore[misc]
            if not 100 <= status[1] < 200 or status[1] == 101:
                return status
            parse_headers(self.fp)
        raise HTTPException(f"got more than {_MAX_INTERIM_ANSWERS} interim answers")


class _HttpExchange:
    """One request and its answer, in a thread."""

    def __init__(self, transport: HttpTransport, request: _HttpRequest, on_phase: Callable[[], None]) -> None:
        self.progress = ExchangeProgress()
        self.line = Line()
        self._transport = transport
        self._request = request
        self._on_phase = on_phase
        self._origin = f"{request.parts.scheme}://{request.parts.netloc}"

    def run(self, feed: ThreadFeed) -> None:
        """Run the exchange. Failures are raised as provider errors."""
        response: HTTPResponse | None = None
        try:
            target = self._transport.find_target(self._request.parts)
            connection, response = self._send(target)
            self._read(feed, response)
            # HTTP/1.0, `Connection: close` or a body without a length: then the end of the connection is the end of the
            # body.
            if not response.will_close:
                response.close()
                # Release first: another exchange may take the connection at once, and this line must not close it then.
                self.line.release()
                self._transport.pool.give(target, connection)
        except (FeedStopped, ProviderError, OptionsError):
            raise
        except Exception as error:  # noqa: BLE001 - ssl, socket, zlib, http.client raise a dozen types; all mean no answer
            # `from None`: the text of the cause may contain the request's headers, and with them the key.
            raise _explained(error, self._origin, self.progress.phase) from None
        finally:
            if response is not None:
                response.close()
            self.line.close()

    def _send(self, target: Target) -> tuple[HTTPConnection, HTTPResponse]:
        idle_connection = self._transport.pool.take(target)
        may_repeat = self._request.may_repeat
        if idle_connection is not None:
            self.line.hold(idle_connection.sock)
            try:
                return idle_connection, self._ask(target, idle_connection)
            except ConnectionError as error:
                # The server closed an idle connection, perhaps before it had received the whole request.
                if not (may_repeat or isinstance(error, _NotSent)):
                    raise
                self.line.close()
                may_repeat = False
        connection = self._connect(target)
        try:
            return connection, self._ask(target, connection)
        except ConnectionResetError as error:
            # A server that closes without notice after its last answer resets whatever is sent to it afterwards.
            if not may_repeat or isinstance(error, RemoteDisconnected):
                raise
            self.line.close()
        connection = self._connect(target)
        return connection, self._ask(target, connection)

    def _connect(self, target: Target) -> HTTPConnection:
        self._enter("connect")
        tls_context = self._transport.tls_context() if target.scheme == "https" else None
        connect_s = self._request.timeouts.connect_s
        return open_connection(target, self.line, connect_s=connect_s, tls_context=tls_context)

    def _ask(self, target: Target, connection: HTTPConnection) -> HTTPResponse:
        self._enter("first_byte")
        request = self._request
        path = (request.parts.path or "/") + (f"?{request.parts.query}" if request.parts.query else "")
        # Compressed events would wait in the server's buffers until a block is full.
        headers = {"Accept-Encoding": "identity", **request.headers}
        if target.proxy and target.scheme == "http":
            path = target.origin + path
            headers.update(proxy_authorization(target.proxy))
        connection.response_class = _Response
        unsent: OSError | None = None
        try:
            connection.request(request.method, path, request.body, headers)
        except (BrokenPipeError, ConnectionResetError) as error:
            unsent = error  # a server that refuses a large request may answer and close before reading all of it
        try:
            return connection.getresponse()
        except (RemoteDisconnected, ConnectionResetError, BrokenPipeError) as error:
            if unsent is not None:
                raise _NotSent(*error.args) from error
            raise

    def _read(self, feed: ThreadFeed, response: HTTPResponse) -> None:
        headers: dict[str, str] = {}
        for name, value in response.getheaders():
            name = name.lower()
            # Repeated fields are equivalent to one list (RFC 9110, section 5.3).
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        self._check_framing(response, headers)
        unpack = _unpacker(headers.get("content-encoding", ""))
        feed.put((response.status, headers), 0)
        room = self._transport.max_body_bytes
        # `read1` returns what has arrived; `read` would wait until the buffer is full, and events would come in lumps.
        while data := response.read1(_READ_BYTES):
            self._enter("idle")
            for chunk in unpack(data):
                # Counted after decompression: a small body may unpack to any size.
                room -= len(chunk)
                if room < 0:
                    raise ProviderResponseError(
                        f"{self._origin} sent more than {self._transport.max_body_bytes} bytes and was cut off"
                    )
                feed.put(chunk, len(chunk))
        if response.length:  # read1 ends silently when a body is shorter than its Content-Length
            raise ProviderConnectionError(
                f"{self._origin} closed the connection {plural(response.length, 'byte')} before the end of its answer"
            )

    def _check_framing(self, response: HTTPResponse, headers: Mapping[str, str]) -> None:
        """Raise `ProviderResponseError` for an answer whose end is ambiguous (RFC 9112, section 6.3)."""
        length = headers.get("content-length")
        if length is None:
            return
        if "transfer-encoding" in headers:  # which takes precedence; what follows on this connection is not trusted
            response.will_close = True
            return
        values = {value.strip(" \t") for value in length.split(",")}
        # `http.client` reads a list, even of equal numbers, as no length.
        if (
            response.length is None
            or len(values) > 1
            or not all(value.isascii() and value.isdigit() for value in values)
        ):
            raise ProviderResponseError(
                f"{self._origin} sent an answer with the Content-Length {shortened(length, 100)!r}, which does not show "
                "where it ends, so it was discarded: check the server and the proxies in front of it"
            )

    def _enter(self, phase: str) -> None:
        self.progress.since = time.monotonic()
        if self.progress.phase != phase:
            self.progress.phase = phase
            self._on_phase()


class _Pool:
    """Idle connections for reuse, newest first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.idle_connections: dict[Target, list[tuple[float, int, HTTPConnection]]] = {}

    def take(self, target: Target) -> HTTPConnection | None:
        """Remove and return a connection that appears to be alive, or None."""
        while True:
            with self._lock:
                waiting = self.idle_connections.get(target)
                if not waiting:
                    return None
                # The one used last: the server is least likely to have closed it.
                since, process, connection = waiting.pop()
            # After a fork, parent and child share the socket: only the process that opened it may use it.
            if process == os.getpid() and time.monotonic() - since < _MAX_IDLE_S and _is_quiet(connection.sock):
                return connection
            connection.close()

    def give(self, target: Target, connection: HTTPConnection) -> None:
        """Keep a connection whose answer was read to its end."""
        with self._lock:
            waiting = self.idle_connections.setdefault(target, [])
            waiting.append((time.monotonic(), os.getpid(), connection))
            dropped = waiting.pop(0)[2] if len(waiting) > _MAX_KEPT_PER_HOST else None
        if dropped is not None:
            # Outside of the lock: closing a TLS connection may block.
            dropped.close()

    def close(self) -> None:
        with self._lock:
            _close_idle(self.idle_connections)


def _close_idle(connections: dict[Target, list[tuple[float, int, HTTPConnection]]]) -> None:
    """Close and forget all connections. The garbage collector calls this too, so it takes no lock."""
    while connections:
        for _, _, connection in connections.popitem()[1]:
            connection.close()


def read_url(url: str) -> SplitResult:
    """Parse a URL. Raises `OptionsError` if no request can be sent to it."""
    safe_url = shown_url(url)
    # `urlsplit` silently removes tabs and line ends, so the URL that is shown would differ from the one that is requested.
    if not url.isascii() or any(char <= " " or char in "\\\x7f" for char in url):
        raise OptionsError(f"{safe_url!r} contains characters that a URL must not contain: percent-encode them")
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and is_host(parts.hostname or "") and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise OptionsError(
            f"{safe_url!r} must be an http:// or https:// URL with a valid host, and a port from 1 to 65535 if it has one"
        )
    if "@" in parts.netloc:
        raise OptionsError(f"{safe_url!r} contains a user: pass credentials as api_key or headers")
    return parts


def is_host(name: str) -> bool:
    """Whether a name can be resolved: labels of 1 to 63 characters (RFC 1035, section 2.3.4), or an IPv6 address."""
    return ":" in name or all(0 < len(label) < 64 for label in name.removesuffix(".").split("."))


def check_headers(headers: Mapping[str, str]) -> None:
    """Raise `OptionsError` for a header that cannot be sent; the message names it but never contains its value."""
    # http.client would refuse them too, but its message contains the value, which may be a key.
    for name, value in headers.items():
        if not re.fullmatch(_HEADER_NAME, name):
            raise OptionsError(f"{name!r} is not a valid header name: use letters, digits and hyphens")
        if not value.isascii() or any(char < " " or char == "\x7f" for char in value):
            raise OptionsError(
                f"the value of the header {name} contains control characters or characters outside ASCII: remove them"
            )


def _redirect(answer: HttpAnswer, url: str, *, is_post: bool) -> str | None:
    """The URL to follow, or None. Raises `ProviderResponseError` for a redirect that would take the key elsewhere."""
    location = answer.headers.get("location")
    if answer.status not in (301, 302, 303, 307, 308) or not location:
        return None
    try:
        new = urljoin(url, location)
        old_parts, new_parts = urlsplit(url), read_url(new)
    except (ValueError, OptionsError):
        where = shortened(shown_url(location), _MAX_SHOWN_CHARS)
        raise ProviderResponseError(
            f"{shown_url(url)} redirects to {where!r} ({answer.status}), which is not a usable URL: check base_url"
        ) from None
    # The port is part of the origin: another port of the same host may belong to somebody else.
    same_origin = (old_parts.scheme, old_parts.netloc) == (new_parts.scheme, new_parts.netloc)
    if same_origin and (not is_post or answer.status in (307, 308)):
        return new
    target = shortened(shown_url(new), _MAX_SHOWN_CHARS)
    raise ProviderResponseError(
        f"{shown_url(url)} redirects to {target} ({answer.status}), which is not followed: set base_url to the target if "
        "you trust it"
    )


def _is_quiet(sock: socket.socket | None) -> bool:
    """Whether an idle connection has nothing to read: that could only be its end, or bytes that belong to no answer."""
    if sock is None:
        return False
    try:
        sock.setblocking(False)
        # On the plain socket, below TLS: `SSLSocket.recv` refuses flags.
        socket.socket.recv(sock, 1, socket.MSG_PEEK)
    except BlockingIOError:
        sock.setblocking(True)
        return True
    except OSError:
        return False
    return False


def _unpacker(encoding: str) -> Callable[[bytes], Iterator[bytes]]:
    """Return a function that decompresses a body in small pieces, whatever its ratio. Some servers compress unasked."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return lambda data: iter((data,))
    if name not in ("gzip", "x-gzip", "deflate"):
        raise ProviderResponseError(
            f"the endpoint compresses its answers as {encoding[:40]!r} although it was asked not to"
        )
    unpacker = zlib.decompressobj(47)  # gzip or zlib, by the header

    def unpack(data: bytes) -> Iterator[bytes]:
        nonlocal unpacker
        while data:
            if unpacker.eof:  # gzip may have several members (RFC 1952, section 2.2)
                unpacker = zlib.decompressobj(47)
            # Limited: a few kilobytes of gzip can contain gigabytes of zeros.
            piece = unpacker.decompress(data, _READ_BYTES)
            data = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
            if piece:
                yield piece

    return unpack


def _explained(error: Exception, origin: str, phase: str) -> ProviderError:
    if isinstance(error, TimeoutError):
        doing = "cannot be reached in time" if phase == "connect" else "did not respond in time"
        return ProviderTimeoutError(f"{origin} {doing}", phase=phase)
    if isinstance(error, ssl.SSLCertVerificationError):
        cert_file = os.environ.get("SSL_CERT_FILE")
        if cert_file and not os.path.isfile(cert_file):
            advice = f"SSL_CERT_FILE names {cert_file}, which does not exist"
        else:
            advice = "set SSL_CERT_FILE to a file of certificates to trust"
        why = f"{error.verify_message}; {advice}"
        text = f"the certificate of {origin} is not trusted: {why}"
        return ProviderConnectionError(text, retryable=False, was_sent=False)
    if isinstance(error, IncompleteRead):
        return ProviderConnectionError(f"{origin} closed the connection in the middle of its answer")
    if isinstance(error, RemoteDisconnected):
        return ProviderConnectionError(f"{origin} closed the connection without an answer")
    if isinstance(error, OSError):
        why = error.strerror or type(error).__name__
        doing = "cannot be reached" if phase == "connect" else "broke off the connection"
        text = f"{origin} {doing}: {why}. Check base_url and that the server is running"
        return ProviderConnectionError(text, was_sent=phase != "connect")
    if isinstance(error, HTTPException):
        why = on_one_line(f"{type(error).__name__}: {error}".removesuffix(": "), 100)
        return ProviderResponseError(f"{origin} does not respond with HTTP ({why}): check base_url")
    return ProviderResponseError(f"{origin} sent unreadable data ({type(error).__name__})")
