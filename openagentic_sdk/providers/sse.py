"""Server-sent events: bytes in, events out (WHATWG HTML, section 9.2.6, "Interpreting an event stream").

One deliberate difference from the standard, because servers deviate from it: an event without its final blank line is still
returned at the end of the stream.

Lines end with LF, CR or CRLF and nothing else: U+2028 inside a JSON string is data. Chunks may split a character, so text
is decoded one whole line at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ..errors import ProviderResponseError

# Two orders of magnitude above the largest event in recorded traffic; an endless line must not exhaust the memory.
MAX_EVENT_BYTES = 16 * 1024 * 1024

_LINE_BYTES = 50  # the memory that an empty line of data occupies

_BOM = b"\xef\xbb\xbf"


class SSEEvent(NamedTuple):
    """One event. `event` is empty if the stream does not name it; `last_event_id` remains until the stream changes it."""

    data: str
    event: str = ""
    last_event_id: str = ""


class SSEDecoder:
    """A decoder of chunks of any size into events: call `feed` with each chunk, then `close` at the end of the stream.

    Raises `ProviderResponseError` for an event of more than `max_event_bytes`. With `reads_errors`, a line `error: ...`, a
    non-standard field that gateways send, is the data of an event of that name. To resume a stream: `last_event_id` is the
    newest id, even of an event without data, and `retry_ms` is the delay that the server requested, or None.
    """

    def __init__(self, *, max_event_bytes: int = MAX_EVENT_BYTES, reads_errors: bool = False) -> None:
        self._max_event_bytes = max_event_bytes
        self._reads_errors = reads_errors
        self._tail = bytearray()  # an unfinished line
        self._started = False
        self._data: list[str] = []
        self._data_bytes = 0
        self._event = ""
        self.last_event_id = ""
        self.retry_ms: int | None = None

    def feed(self, chunk: bytes) -> list[SSEEvent]:
        """Add a chunk; return the events that it completes."""
        # A final CR ends its line only once the next byte is known, as that may be the LF of a CRLF.
        if not (b"\n" in chunk or b"\r" in chunk or (self._tail.endswith(b"\r") and bool(chunk))):
            self._tail += chunk
            self._check_size(len(self._tail))
            return []
        data = bytes(self._tail) + chunk
        # bytes.splitlines splits at CR, LF and CRLF only; str.splitlines would also split at U+2028
        lines = data.splitlines()
        if data.endswith(b"\r"):
            self._tail = bytearray(lines.pop() + b"\r")
        elif data.endswith(b"\n"):
            self._tail = bytearray()
        else:
            self._tail = bytearray(lines.pop())
        if lines:
            lines[0] = self._without_bom(lines[0])
        return self._interpret(lines)

    def close(self) -> list[SSEEvent]:
        """Return the last event if the stream ended without a blank line after it, else an empty list."""
        rest, self._tail = bytes(self._tail), bytearray()
        lines = [self._without_bom(rest).rstrip(b"\r")] if rest else []
        return self._interpret([*lines, b""])

    def _without_bom(self, line: bytes) -> bytes:
        if self._started:
            return line
        self._started = True
        return line.removeprefix(_BOM)

    def _interpret(self, lines: list[bytes]) -> list[SSEEvent]:
        events: list[SSEEvent] = []
        for line in lines:
            if line.startswith(b"data:"):
                self._take_data(line[6:] if line.startswith(b"data: ") else line[5:])
            elif not line:
                if self._data:
                    events.append(SSEEvent("\n".join(self._data), self._event, self.last_event_id))
                    self._data, self._data_bytes = [], 0
                self._event = ""
            else:
                name, _, value = line.partition(b":")
                if name == b"data":
                    self._take_data(b"")
                elif name == b"event":
                    self._event = value.removeprefix(b" ").decode("utf-8", "replace")
                elif name == b"id" and b"\0" not in value:
                    self.last_event_id = value.removeprefix(b" ").decode("utf-8", "replace")
                elif name == b"error" and self._reads_errors:
                    self._event = "error"
                    self._take_data(value.removeprefix(b" "))
                elif name == b"retry" and (value := value.strip(b" ")).isdigit():
                    self.retry_ms = int(value[:9])
        return events

    def _take_data(self, value: bytes) -> None:
        self._data_bytes += len(value) + _LINE_BYTES
        self._check_size(self._data_bytes)
        self._data.append(value.decode("utf-8", "replace"))

    def _check_size(self, size: int) -> None:
        if size > self._max_event_bytes:
            raise ProviderResponseError(
                f"the endpoint sent an event of more than {self._max_event_bytes} bytes, which exceeds the limit"
            )


def parse_sse_events(lines: Iterable[bytes]) -> Iterator[str]:
    """Yield the data of each event, from lines of bytes with or without line ends, as the lines arrive."""
    decoder = SSEDecoder()
    for line in lines:
        for event in decoder.feed(line if line.endswith((b"\n", b"\r")) else line + b"\n"):
            yield event.data
    for event in decoder.close():
        yield event.data
