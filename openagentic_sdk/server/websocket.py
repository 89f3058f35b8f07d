"""Read and write WebSocket frames (RFC 6455), as a server, without any I/O.

No extensions are offered, so reserved bits are zero and nothing is compressed. A message is text, whose UTF-8 is checked as
it arrives, or bytes; its size is checked before its payload is buffered.
"""

from __future__ import annotations

import base64
import codecs
import hashlib
import struct
from io import StringIO
from typing import Literal

from ..ground.frozen import frozen

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
# For the first message, whose sender may not be authenticated yet.
MAX_FIRST_BYTES = 64 * 1024
# The least that a fragment adds to the size of its message, so that a message of empty fragments is limited as well.
_MIN_PART_BYTES = 64
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
# Close codes that a peer may send, RFC 6455 section 7.4.
_CODES = frozenset({1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014})


@frozen
class Received:
    """A received message or control frame.

    `data` is a str for text, otherwise bytes; for a close, its reason. `code` is a close's status code, 1005 if it has
    none.
    """

    kind: Literal["text", "binary", "ping", "pong", "close"]
    data: str | bytes
    code: int = 0


class BrokenFrameError(Exception):
    """Raised if the peer violated the protocol; the connection ends with the close code `code`."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def accept_key(key: bytes) -> bytes:
    """The Sec-WebSocket-Accept for a client's Sec-WebSocket-Key."""
    return base64.b64encode(hashlib.sha1(key + GUID, usedforsecurity=False).digest())


def is_key(key: bytes | None) -> bool:
    """Whether this is a valid Sec-WebSocket-Key: 16 bytes in base64."""
    try:
        return key is not None and len(base64.b64decode(key, validate=True)) == 16
    except ValueError:
        return False


def frame(opcode: int, payload: bytes) -> bytes:
    """One unfragmented frame from a server, which is never masked."""
    size = len(payload)
    if size < 126:
        return bytes((0x80 | opcode, size)) + payload
    if size < 0x10000:
        return struct.pack("!BBH", 0x80 | opcode, 126, size) + payload
    return struct.pack("!BBQ", 0x80 | opcode, 127, size) + payload


def close_frame(code: int, reason: str = "") -> bytes:
    """A close frame; for code 1005, one without a code. The reason is truncated to the maximum length."""
    if code == 1005:
        return frame(CLOSE, b"")
    return frame(
        # A control frame has at most 125 bytes, two of which are the code; the cut must not divide a character.
        CLOSE,
        struct.pack("!H", code) + reason.encode("utf-8", "replace")[:123].decode("utf-8", "ignore").encode(),
    )


class FrameReader:
    """A parser that turns a client's bytes into messages. After a close or an error, it reads nothing more.

    A message may have `max_bytes`, but the first one only `max_first_bytes`, unless `trust` was called before.
    """

    def __init__(self, max_bytes: int = MAX_MESSAGE_BYTES, max_first_bytes: int = MAX_FIRST_BYTES) -> None:
        self._max_bytes, self._later_max_bytes = min(max_bytes, max_first_bytes), max_bytes
        self._buffer = bytearray()
        self._opcode = 0  # the opcode of the unfinished message, 0 for none
        self._text, self._bytes = StringIO(), bytearray()
        self._size = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self.is_over = False

    def trust(self) -> None:
        """Accept messages of the full size from now on: the client has been authenticated."""
        self._max_bytes = self._later_max_bytes

    @property
    def waiting(self) -> int:
        """The number of received bytes not yet read."""
        return len(self._buffer)

    def feed(self, data: bytes) -> None:
        """Add bytes from the client."""
        if not self.is_over:
            self._buffer += data

    def next(self) -> Received | None:
        """Take the next message or control frame; None if more bytes are needed. Raises `BrokenFrameError`."""
        try:
            while not self.is_over and (frame := self._next_frame()) is not None:
                received = self._take(*frame)
                if received is not None:
                    self.is_over = received.kind == "close"
                    if received.kind in ("text", "binary"):
                        self._max_bytes = self._later_max_bytes
                    return received
        except BrokenFrameError:
            self.is_over = True
            raise
        return None

    def _next_frame(self) -> tuple[bool, int, bytes] | None:
        """Take a frame: whether it is final, its opcode and its unmasked payload; None if more bytes are needed."""
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        is_final, opcode, size = bool(buffer[0] & 0x80), buffer[0] & 0x0F, buffer[1] & 0x7F
        if buffer[0] & 0x70:
            raise BrokenFrameError(1002, "reserved bits are set")
        if opcode not in (0, TEXT, BINARY, CLOSE, PING, PONG):
            raise BrokenFrameError(1002, f"unknown opcode {opcode}")
        if not (buffer[1] & 0x80):
            raise BrokenFrameError(1002, "a client's frame is not masked")
        if opcode >= 8 and (not is_final or size > 125):
            raise BrokenFrameError(1002, "a control frame is fragmented or has more than 125 bytes")
        if opcode == 0 and not self._opcode:
            raise BrokenFrameError(1002, "a continuation frame is not part of a message")
        if opcode in (TEXT, BINARY) and self._opcode:
            raise BrokenFrameError(1002, "a message begins inside another one")
        start = {126: 4, 127: 10}.get(size, 2)
        if len(buffer) < start:
            return None
        if size >= 126:
            size = int.from_bytes(buffer[2:start], "big")
        # Refused by its declared size, before the payload is buffered.
        if opcode < 8 and self._size + size > self._max_bytes:
            raise BrokenFrameError(1009, f"a message has more than {self._max_bytes} bytes")
        if len(buffer) < start + 4 + size:
            return None
        mask, payload = bytes(buffer[start : start + 4]), bytes(buffer[start + 4 : start + 4 + size])
        del buffer[: start + 4 + size]
        # XOR of two large integers: a loop over the bytes in Python takes about twenty times as long.
        key = (mask * (size // 4 + 1))[:size]
        return is_final, opcode, (int.from_bytes(payload, "big") ^ int.from_bytes(key, "big")).to_bytes(size, "big")

    def _take(self, is_final: bool, opcode: int, payload: bytes) -> Received | None:
        """Add a frame to the current message; return the message once it is complete, or a control frame."""
        if opcode == PING:
            return Received("ping", payload)
        if opcode == PONG:
            return Received("pong", payload)
        if opcode == CLOSE:
            if not payload:
                return Received("close", "", 1005)
            code = int.from_bytes(payload[:2], "big")
            # 1005, 1006 and 1015 describe a connection and must not be sent (RFC 6455, section 7.4.1).
            if len(payload) == 1 or not (code in _CODES or 3000 <= code <= 4999):
                raise BrokenFrameError(1002, "a close frame has an invalid code")
            try:
                return Received("close", payload[2:].decode("utf-8"), code)
            except UnicodeDecodeError:
                raise BrokenFrameError(1007, "the reason in a close frame is not UTF-8") from None
        self._opcode = opcode or self._opcode
        self._size += max(len(payload), _MIN_PART_BYTES)
        if self._opcode == TEXT:
            try:
                self._text.write(self._decoder.decode(payload, is_final))
            except UnicodeDecodeError:
                raise BrokenFrameError(1007, "a text message is not UTF-8") from None
        else:
            self._bytes += payload
        if not is_final:
            return None
        whole = (
            Received("text", self._text.getvalue()) if self._opcode == TEXT else Received("binary", bytes(self._bytes))
        )
        self._opcode, self._size, self._text, self._bytes = 0, 0, StringIO(), bytearray()
        self._decoder.reset()
        return whole
