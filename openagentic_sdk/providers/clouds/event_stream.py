"""AWS's binary event streams: bytes in, events out (`application/vnd.amazon.eventstream`).

A message consists of: total length, length of the headers, CRC-32 of those eight bytes, headers, payload, CRC-32 of
everything before; numbers are big-endian. Every checksum is verified: a damaged message is an error, never a shorter answer.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from typing import Any
from zlib import crc32

from ...errors import ProviderResponseError
from ..sse import MAX_EVENT_BYTES, SSEEvent
from ..wire.exchange import BodyReader, Whole

_PRELUDE = struct.Struct(">III")
_OVERHEAD = _PRELUDE.size + 4
# The number of bytes of a header's value by its type byte; -1 means that two bytes before the value contain its length.
_VALUE_BYTES = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 6: -1, 7: -1, 8: 8, 9: 16}
_TEXT = 7
# The errors that Bedrock sends within a stream, with the HTTP statuses that they have outside of one.
_STATUS = {
    "throttlingException": 429,
    "modelStreamErrorException": 503,  # 424 outside a stream, with the advice to retry
    "modelTimeoutException": 408,
    "internalServerException": 500,
    "serviceUnavailableException": 503,
    "validationException": 400,
}


class EventStreamDecoder:
    """A decoder of chunks of any size into events: call `feed` with each chunk, then `close` at the end of the stream.

    `is_plain` is true for Converse, whose messages are JSON; those of InvokeModel contain events in base64.
    """

    def __init__(self, *, is_plain: bool = False) -> None:
        self._rest = bytearray()
        self._is_plain = is_plain

    def feed(self, chunk: bytes) -> list[SSEEvent]:
        """Add a chunk; return the events that it completes. Raises `ProviderResponseError` for a damaged message."""
        self._rest += chunk
        events = []
        while len(self._rest) >= _PRELUDE.size:
            total, header_bytes, crc = _PRELUDE.unpack_from(self._rest)
            # Check the prelude first: with a damaged length, this would wait for bytes that never come.
            if crc != crc32(self._rest[:8]) or not _OVERHEAD + header_bytes <= total <= MAX_EVENT_BYTES:
                raise ProviderResponseError("the endpoint's event stream is damaged: a message's prelude is invalid")
            if len(self._rest) < total:
                break
            message = bytes(self._rest[:total])
            del self._rest[:total]
            if int.from_bytes(message[-4:], "big") != crc32(message[:-4]):
                raise ProviderResponseError("the endpoint's event stream is damaged: a message's checksum is wrong")
            headers = _read_headers(message[_PRELUDE.size : _PRELUDE.size + header_bytes])
            event = _read_message(headers, self._is_plain, message[_PRELUDE.size + header_bytes : -4])
            if event is not None:
                events.append(event)
        return events

    def close(self) -> list[SSEEvent]:
        """Return no events: a truncated message is dropped, and the missing end of the answer reveals the loss."""
        self._rest.clear()
        return []


class EventStreamReader(BodyReader):
    """A reader of a stream of messages or a JSON body: a message begins with a NUL (in its length), text never does.
    `is_plain` is as in `EventStreamDecoder`.
    """

    def __init__(self, *, is_plain: bool = False) -> None:
        super().__init__()
        self._is_plain = is_plain
        self._messages: EventStreamDecoder | None = None

    def feed(self, chunk: bytes) -> list[SSEEvent]:
        if self._messages is None and (self.has_begun or chunk[:1] != b"\0"):
            return super().feed(chunk)
        self._messages = self._messages or EventStreamDecoder(is_plain=self._is_plain)
        events = self._messages.feed(chunk)
        self.has_begun = self.has_begun or bool(events)
        return events

    def close(self) -> list[SSEEvent] | Whole:
        return super().close() if self._messages is None else self._messages.close()


def _read_headers(data: bytes) -> dict[str, str]:
    """Read the headers whose values are text."""
    headers: dict[str, str] = {}
    at = 0
    try:
        while at < len(data):
            name = data[at + 1 : at + 1 + data[at]].decode()
            at += 1 + data[at]
            kind, at = data[at], at + 1
            size = _VALUE_BYTES[kind]
            if size < 0:
                size, at = int.from_bytes(data[at : at + 2], "big"), at + 2
            if at + size > len(data):
                raise IndexError(size)
            if kind == _TEXT:
                headers[name] = data[at : at + size].decode()
            at += size
    except (IndexError, KeyError, UnicodeDecodeError):
        raise ProviderResponseError(
            "the endpoint's event stream is damaged: a message's headers cannot be read"
        ) from None
    return headers


def _read_message(headers: dict[str, str], is_plain: bool, payload: bytes) -> SSEEvent | None:
    """Read one message as an event; return None if its kind is unknown.

    A plain message is JSON with its kind in the headers (Converse); any other contains an event in base64 (InvokeModel).
    """
    try:
        data: Any = json.loads(payload) if payload else {}
    except (ValueError, RecursionError):
        raise ProviderResponseError(f"the endpoint sent a message that is not JSON: {payload[:200]!r}") from None
    kind = headers.get(":message-type", "event")
    if kind in ("exception", "error"):
        name = headers.get(":exception-type") or headers.get(":error-code") or "error"
        text = data.get("message") if isinstance(data, dict) else None
        error = {"message": text or headers.get(":error-message") or name, "type": name}
        if name in _STATUS:
            error["code"] = _STATUS[name]
        return SSEEvent(json.dumps({"error": error}), "error")
    if is_plain and isinstance(data, dict):
        return SSEEvent(json.dumps({**data, "type": headers.get(":event-type", "")}))
    if headers.get(":event-type") != "chunk" or not isinstance(data, dict):
        return None
    try:
        return SSEEvent(base64.b64decode(data["bytes"], validate=True).decode())
    except (KeyError, TypeError, ValueError, binascii.Error):
        raise ProviderResponseError(f"the endpoint sent a chunk without bytes in base64: {payload[:200]!r}") from None
