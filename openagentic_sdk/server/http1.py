"""A strict parser for HTTP/1.1 requests (RFC 9112): bytes in, heads and pieces of bodies out, without any I/O.

Anything that two programs on a request's path could interpret differently is refused: both Content-Length and
Transfer-Encoding, a repeated length, a bare line feed, a folded line, whitespace before a colon, a chunk extension.
"""

from __future__ import annotations

from http import HTTPStatus

from ..errors import RequestRefusedError
from ..ground.frozen import frozen
from ..ground.patterns import regex

MAX_HEAD_BYTES = 64 * 1024
MAX_LINE_BYTES = 8 * 1024
MAX_HEADERS = 100
MAX_CHUNK_LINE = 16
_REQUEST_LINE = regex(
    rb"([A-Z][A-Z-]{0,19}) (?:[Hh][Tt][Tt][Pp][Ss]?://([0-9A-Za-z.:\[\]_-]+))?(/[!\"$-~]*|\*|) HTTP/1\.([01])"
)
_NAME = regex(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = regex(rb"[\t -~\x80-\xff]*")
_CHUNK_SIZE = regex(rb"[0-9A-Fa-f]{1,8}")
_LENGTH = regex(rb"[0-9]{1,15}")
# Headers that must not be repeated: two parsers could pick different values.
_ONCE = (
    b"host",
    b"content-length",
    b"transfer-encoding",
    b"content-type",
    b"authorization",
    b"origin",
    b"expect",
    b"upgrade",
    b"sec-websocket-key",
    b"sec-websocket-version",
)

RawHeaders = list[tuple[bytes, bytes]]


@frozen
class RequestHead:
    """A request without its body; header names are in lower case.

    `target` begins with its path, even if it was sent in absolute form. `minor` is the minor version of HTTP. `length` is
    the body's length in bytes, None if it is chunked. `is_kept` is true if the connection may be kept alive, `expects` if
    the client waits for a 100 Continue.
    """

    method: str
    target: bytes
    minor: int
    headers: RawHeaders
    length: int | None
    is_kept: bool
    expects: bool

    def header(self, name: bytes) -> bytes | None:
        """The first value of the header with this lower-case name; None if it is missing."""
        return next((value for key, value in self.headers if key == name), None)

    @property
    def upgrades(self) -> bool:
        """Whether the client requests an upgrade to WebSocket."""
        upgrade, connection = self.header(b"upgrade") or b"", self.header(b"connection") or b""
        return upgrade.strip().lower() == b"websocket" and b"upgrade" in _words(connection)


class RequestReader:
    """The input of one connection, request by request: `read_head`, then `read_body` until it returns b"", and so on.

    Both return None if more bytes are needed, and raise `RequestRefusedError`, after which nothing more can be read.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = 0
        self._left: int | None = 0  # bytes left in the body or the current chunk
        self._is_chunked = False
        self._chunk_ends = False

    @property
    def waiting(self) -> int:
        """The number of received bytes not yet read."""
        return len(self._buffer)

    def feed(self, data: bytes) -> None:
        """Add bytes from the connection."""
        self._buffer += data

    def take_rest(self) -> bytes:
        """Take the bytes after the last request, which belong to another protocol."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest

    def read_head(self) -> RequestHead | None:
        """Take the head of the next request; None if more bytes are needed. Raises `RequestRefusedError`."""
        buffer = self._buffer
        end = buffer.find(b"\r\n\r\n", self._searched)
        seen = len(buffer) if end < 0 else end + 4
        at = buffer.find(b"\n", self._searched, seen)
        while at >= 0:
            # RFC 9112, section 2.2, lets a server accept a bare LF; where a proxy does not, the two would see different
            # requests.
            if at == 0 or buffer[at - 1] != 13:
                raise RequestRefusedError(400, "a line of the request's head does not end with CRLF")
            at = buffer.find(b"\n", at + 1, seen)
        line_end = buffer.find(b"\r\n", 0, MAX_LINE_BYTES + 2)
        if line_end < 0 and len(buffer) > MAX_LINE_BYTES:
            raise RequestRefusedError(414, f"the request line has more than {MAX_LINE_BYTES} bytes")
        if seen > MAX_HEAD_BYTES:
            raise RequestRefusedError(431, f"the request's head has more than {MAX_HEAD_BYTES} bytes")
        if end < 0:
            # Three bytes of the empty line may have arrived: the next search begins with them.
            self._searched = max(0, len(buffer) - 3)
            return None
        lines = bytes(buffer[:end]).split(b"\r\n")
        del buffer[: end + 4]
        self._searched = 0
        head = _read_lines(lines)
        self._is_chunked, self._left = head.length is None, head.length or 0
        self._chunk_ends = False
        return head

    def read_body(self) -> bytes | None:
        """Take the next piece of the body; b"" at its end, None if more bytes are needed. Raises `RequestRefusedError`."""
        while self._is_chunked and not self._left:
            size = self._read_chunk_size()
            if size is None:
                return None
            if not size:
                self._is_chunked = False
            self._left, self._chunk_ends = size, bool(size)
        if not self._left:
            return b""
        piece = bytes(self._buffer[: self._left])
        if not piece:
            return None
        del self._buffer[: len(piece)]
        self._left -= len(piece)
        return piece

    def _read_chunk_size(self) -> int | None:
        """Take the line with the size of the next chunk; None if it is incomplete.

        A size of 0 is taken only together with the empty line that ends the body.
        """
        buffer, start = self._buffer, 2 if self._chunk_ends else 0
        # Only the first byte of the line end after a chunk may have arrived.
        if start and bytes(buffer[:2]) != b"\r\n"[: len(buffer)]:
            raise RequestRefusedError(400, "a chunk does not end with CRLF after its declared size")
        end = buffer.find(b"\r\n", start, start + MAX_CHUNK_LINE)
        line = bytes(buffer[start : end if end >= 0 else start + MAX_CHUNK_LINE])
        if end < 0:
            if b"\n" in line or len(line) >= MAX_CHUNK_LINE:
                raise RequestRefusedError(
                    400, "the line before a chunk is not a hexadecimal size; extensions are not supported"
                )
            return None
        if not _CHUNK_SIZE.fullmatch(line):
            raise RequestRefusedError(
                400, "the line before a chunk is not a hexadecimal size; extensions are not supported"
            )
        size = int(line, 16)
        if size == 0:
            closing = bytes(buffer[end + 2 : end + 4])
            if closing != b"\r\n"[: len(closing)]:
                raise RequestRefusedError(400, "trailers are not supported: end the body with an empty line")
            if len(closing) < 2:
                return None
            end += 2
        del buffer[: end + 2]
        return size


def _words(value: bytes) -> list[bytes]:
    return [word.strip(b" \t").lower() for word in value.split(b",")]


def _read_lines(lines: list[bytes]) -> RequestHead:
    """Parse the lines of a head. Raises `RequestRefusedError`."""
    started = _REQUEST_LINE.fullmatch(lines[0])
    if started is None:
        raise RequestRefusedError(400, "the request line is not of the form METHOD /PATH HTTP/1.1")
    method, authority, target, minor = started[1].decode(), started[2], started[3], int(started[4])
    if authority is None and not target:
        raise RequestRefusedError(400, "the request line is not of the form METHOD /PATH HTTP/1.1")
    if authority is not None and target != b"*":
        target = target or b"/"
    if target == b"*" and method != "OPTIONS":
        raise RequestRefusedError(400, "the target * is for OPTIONS only")
    headers = _read_headers(lines[1:])
    host, lengths, codings, expected = (
        _values(headers, name) for name in (b"host", b"content-length", b"transfer-encoding", b"expect")
    )
    if not host:
        raise RequestRefusedError(400, "the header Host is missing")
    if authority is not None and (target == b"*" or authority.lower() != host[0].lower()):
        # By RFC 9112 section 3.2.2 the target takes precedence over Host; a proxy may have used the other one.
        raise RequestRefusedError(400, "the request line and the header Host name different servers")
    if expected and expected[0].lower() != b"100-continue":
        raise RequestRefusedError(417, "the header Expect may only contain 100-continue")
    words = [word for value in _values(headers, b"connection") for word in _words(value)]
    return RequestHead(
        method,
        target,
        minor,
        headers,
        _body_length(lengths, codings, minor),
        # An HTTP/1.0 connection persists only with `keep-alive`, which this server does not offer.
        is_kept=minor == 1 and b"close" not in words,
        # An HTTP/1.0 client would mistake a 100 Continue for the response (RFC 9110, section 10.1.1).
        expects=bool(expected) and minor == 1,
    )


def _read_headers(lines: list[bytes]) -> RawHeaders:
    """Parse the headers. Raises `RequestRefusedError` if one is malformed or ambiguous."""
    if len(lines) > MAX_HEADERS:
        raise RequestRefusedError(431, f"the request has more than {MAX_HEADERS} headers")
    headers: RawHeaders = []
    for line in lines:
        name, colon, value = line.partition(b":")
        # The name excludes spaces: one before the colon, or at the start of a folded line, is refused (RFC 9112,
        # section 5).
        if not colon or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise RequestRefusedError(400, "a header is not of the form NAME: VALUE on one line")
        headers.append((name.lower(), value.strip(b" \t")))
    repeated = next((name for name in _ONCE if len(_values(headers, name)) > 1), None)
    if repeated is not None:
        raise RequestRefusedError(400, f"the request has more than one {repeated.decode()} header")
    return headers


def _values(headers: RawHeaders, name: bytes) -> list[bytes]:
    """All values of the header with this lower-case name."""
    return [value for key, value in headers if key == name]


def _body_length(lengths: list[bytes], codings: list[bytes], minor: int) -> int | None:
    """The body's length in bytes by RFC 9112 section 6.3, without its leniencies; None if it is chunked.

    Raises `RequestRefusedError`.
    """
    if codings:
        if lengths or not minor:
            raise RequestRefusedError(
                400, "a body must have either Content-Length or, in HTTP/1.1, Transfer-Encoding, not both"
            )
        if codings[0].lower() != b"chunked":
            raise RequestRefusedError(501, "the only supported Transfer-Encoding is chunked")
        return None
    # `int` would also accept a sign, underscores, whitespace and the digits of other scripts.
    if lengths and not _LENGTH.fullmatch(lengths[0]):
        raise RequestRefusedError(
            400, f"Content-Length must be a whole number, not {lengths[0].decode('latin-1')!r:.100}"
        )
    return int(lengths[0]) if lengths else 0


def response_head(status: int, headers: RawHeaders) -> bytes:
    """The head of a response. Raises `ValueError` for a header without a name, or with a line end or NUL."""
    lines = [b"HTTP/1.1 %d %s" % (status, _REASONS.get(status, b""))]
    for name, value in headers:
        # A value from a session or a model could otherwise add headers, or a whole response.
        if not name or any(byte in name + value for byte in b"\r\n\0"):
            raise ValueError(f"the header {name!r} cannot be sent: it has no name, or contains a line end or NUL")
        lines.append(name + b": " + value)
    return b"\r\n".join([*lines, b"", b""])


_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
