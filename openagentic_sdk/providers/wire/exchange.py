"""One request to a model's endpoint and its answer, as events or as one JSON body, over a socket or an injected callable.

The first byte, not the request, decides whether an answer is a stream of events or a whole body: endpoints answer stream
requests with plain JSON (errors above all) and plain requests with streams.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol

from ...errors import GarbledResponseError, ProviderError, ProviderResponseError
from ...ground.frozen import frozen
from ...ground.loose import read_json
from ...ground.patterns import regex
from ..chat_request import encode_request, sendable
from ..failures import http_error, read_error_text, secrets_of
from ..sse import SSEDecoder, SSEEvent
from .connect import shown_url
from .http import HttpTransport
from .thread_feed import ThreadFeed
from .timeouts import ExchangeProgress, FeedWatch, Timeouts, timeout_error

Transport = Callable[[str, dict[str, str], dict[str, Any]], Mapping[str, Any]]
StreamTransport = Callable[[str, dict[str, str], dict[str, Any]], Iterable[bytes]]
Sign = Callable[[str, dict[str, str], bytes], Awaitable[dict[str, str]]]

_MAX_ERROR_BYTES = 64 * 1024
_MAX_COMMENT_BYTES = 64 * 1024
_BOM = b"\xef\xbb\xbf"
# White space, and comments with their line ends.
_KEEP_ALIVES = regex(rb"(?>(?:[ \t\n\r\v\f]|:[^\r\n]*[\r\n])*)")
# The limit of a JSON body, which is parsed at once: twice the default of `max_answer_bytes`.
_MAX_JSON_BYTES = 32 * 1024 * 1024


@frozen
class Whole:
    """A whole body, as parsed JSON."""

    data: Any


class LastEvents(list[SSEEvent]):
    """The events completed by the end of the stream: an unreadable one among them was truncated, which is not an error."""


class BodyReader:
    """A reader of a stream of events or a JSON body, which tells them apart. No I/O.

    `has_begun` is true once an answer has started: a first event with data, or the first byte of a JSON body. Anything that
    only keeps the connection open (white space, comments, events without data) does not count.
    """

    def __init__(self) -> None:
        self.has_begun = False
        self.beginning = ""  # of an answer that is not JSON, for error messages
        self._head = b""
        self._json: bytearray | None = None
        self._events: SSEDecoder | None = None

    def feed(self, chunk: bytes) -> list[SSEEvent]:
        """Add a chunk; return the events that it completes, none while the body is JSON. Raises `ProviderResponseError` for
        an event or body that is too long.
        """
        if self._events is not None:
            events = self._events.feed(chunk)
            self.has_begun = self.has_begun or any(event.data for event in events)
            return events
        if self._json is not None:
            self._json += chunk
            if len(self._json) > _MAX_JSON_BYTES:
                raise ProviderResponseError(
                    f"the endpoint sent a JSON body of more than {_MAX_JSON_BYTES} bytes, which exceeds the limit"
                )
            return []
        self._head = _without_keep_alives(self._head + chunk)
        # The first line is a comment that has not ended; a server may send those for minutes while a request is queued.
        is_comment = self._head.startswith(b":") and len(self._head) < _MAX_COMMENT_BYTES
        if not self._head or is_comment or (len(self._head) < 3 and _BOM.startswith(self._head)):
            return []
        head, self._head = self._head, b""
        # No line of an event stream begins like this; `<` is a web page, which `close` reports.
        if head[:1] in (b"{", b"[", b"<"):
            self._json, self.has_begun = bytearray(head), True
            return []
        # Kept because a body that is not a stream is often a short error text, which explains itself.
        self.beginning = head[:100].decode("utf-8", "replace").strip()
        self._events = SSEDecoder(reads_errors=True)
        return self.feed(head)

    def close(self) -> list[SSEEvent] | Whole:
        """Return the rest: events, or the whole body.

        Raises `GarbledResponseError` for truncated or invalid JSON, and `ProviderResponseError` for a web page.
        """
        if self._events is not None:
            return LastEvents(self._events.close())
        if self._json is None:
            return []
        if self._json[:1] == b"<":
            page = read_error_text(self._json[:_MAX_ERROR_BYTES].decode("utf-8", "replace"))[0]
            raise ProviderResponseError(
                f"the endpoint answered with a web page ({page[:100]!r}): check base_url, which often ends in /v1"
            )
        try:
            # `read_json` reads NaN and infinities, which some servers write although JSON has neither, as None.
            return Whole(read_json(self._json.decode()))
        except (ValueError, RecursionError):
            start = bytes(self._json[:200]).decode("utf-8", "replace")
            raise GarbledResponseError(f"the endpoint's answer is not valid JSON; it begins with {start!r}") from None


class _EventSource(Protocol):
    async def read(self) -> list[Any]: ...

    async def aclose(self) -> None: ...


class ModelExchange:
    """An answer in progress. `read` returns events in batches, or one `Whole`; None at the end."""

    def __init__(
        self,
        source: _EventSource,
        *,
        name: str,
        reader: BodyReader,
        headers: Mapping[str, str],
        first_event_s: float | None = None,
    ) -> None:
        self.headers = headers
        self._source = source
        self._name = name
        self._reader = reader
        self._began = time.monotonic()
        self._first_event_s = first_event_s
        self._end_by: float | None = None
        self._is_over = False
        self.is_broken = False  # whether a failure was treated as the end

    def end_soon(self, linger_s: float, *, extends: bool) -> None:
        """Read for at most `linger_s` more seconds and treat any failure as the end, as the essential part has arrived.

        With `extends`, a later call may postpone the end; without it, the earliest end counts.
        """
        end_by = time.monotonic() + linger_s
        if self._end_by is None or extends or end_by < self._end_by:
            self._end_by = end_by

    @property
    def beginning(self) -> str:
        """The first characters of an answer that is not JSON."""
        return self._reader.beginning

    async def read(self) -> list[SSEEvent] | Whole | None:
        """Wait for the next batch, which may be empty; None at the end."""
        if self._is_over:
            return None
        chunks = await self._next_chunks()
        if chunks is None or not chunks:
            self._is_over = True
            return self._reader.close()
        if isinstance(chunks[0], Whole):
            return chunks[0]
        events: list[SSEEvent] = []
        for chunk in chunks:
            events += self._reader.feed(chunk)
        limit = self._first_event_s
        # The watch on the socket is satisfied by any byte; this limit is about the answer, which comments do not begin.
        if limit is not None and not self._reader.has_begun and time.monotonic() - self._began > limit:
            raise timeout_error(self._name, "first_byte", limit)
        return events

    async def aclose(self) -> None:
        await self._source.aclose()

    async def _next_chunks(self) -> list[Any] | None:
        if self._end_by is None:
            return await self._source.read()
        try:
            # The answer is complete in substance: a server that forgets to close the connection must not delay the run.
            return await asyncio.wait_for(self._source.read(), self._end_by - time.monotonic())
        except ProviderError:
            self.is_broken = True
            return None
        except TimeoutError:
            return None


class _CallableSource:
    """An injected callable, run in a thread so that it may block, with the same time limits as a socket."""

    def __init__(self, answer: Callable[[], Iterable[bytes | Whole]], name: str, timeouts: Timeouts) -> None:
        self._answer = answer
        self._progress = ExchangeProgress("first_byte")
        self._watch = FeedWatch(name, timeouts, self._progress)
        self._feed = ThreadFeed(self._produce)
        self._watch.start(self._feed)

    async def read(self) -> list[Any]:
        items = await self._feed.take()
        # A `Whole` counts for nothing: it is the only item, and whoever produced it holds it in memory anyway.
        self._feed.mark_taken(sum(len(item) for item in items if isinstance(item, bytes)))
        return items

    async def aclose(self) -> None:
        self._watch.stop()
        await self._feed.aclose()

    def _produce(self, feed: ThreadFeed) -> None:
        for item in self._answer():
            self._progress.since = time.monotonic()
            if self._progress.phase != "idle":
                self._progress.phase = "idle"
                feed.call_on_loop(self._watch.arm)
            if isinstance(item, Whole):
                feed.put(item)
            else:
                feed.put(bytes(item), len(item))


class Wire:
    """The transport of a provider: sockets, or the callables that replace them."""

    def __init__(
        self,
        *,
        http: HttpTransport,
        transport: Transport | None = None,
        stream_transport: StreamTransport | None = None,
    ) -> None:
        self.http = http
        self._transport = transport
        self._stream_transport = stream_transport

    def will_stream(self, prefers_stream: bool) -> bool:
        """Whether to request a stream: if only the other kind of callable was injected, that overrides `prefers_stream`."""
        if prefers_stream:
            return self._stream_transport is not None or self._transport is None
        return self._stream_transport is not None and self._transport is None

    async def open(
        self,
        url: str,
        headers: dict[str, str],
        payload: dict[str, Any] | None,
        *,
        stream: bool,
        reader: BodyReader,
        timeouts: Timeouts | None = None,
        sign: Sign | None = None,
    ) -> ModelExchange:
        """Send the request, a GET if it has no payload. Raises a `ProviderError` unless the status is a success, and
        `OptionsError` for a request that cannot be sent.

        The errors of an injected callable are raised by `read`.

        `timeouts` default to those of the connections; `sign` computes the headers from the body as sent.
        """
        timeouts = timeouts or self.http.timeouts
        name = shown_url(url)
        answer_with: Callable[..., Any] | None = self._stream_transport if stream else self._transport
        if answer_with is not None and payload is not None:
            body = sendable(payload)

            def answer() -> Iterable[bytes | Whole]:
                answer_body = answer_with(url, headers, body)
                return answer_body if stream else [Whole(answer_body)]

            return ModelExchange(_CallableSource(answer, name, timeouts), name=name, reader=reader, headers={})
        # Both, whatever was requested: endpoints answer stream requests with JSON errors, and plain requests with
        # streams.
        headers = {"Accept": "text/event-stream, application/json", **headers}
        encoded = None
        if payload is not None:
            headers, encoded = {"Content-Type": "application/json", **headers}, encode_request(payload)
        if sign is not None:
            # The very last step before sending: signatures cover the body's bytes and expire within minutes.
            headers = await sign(url, headers, encoded or b"")
        # May be repeated although it is a POST: asking for the same answer a second time does no harm.
        got = await self.http.request(url, headers, encoded, timeouts=timeouts, may_repeat=True)
        if 200 <= got.status < 300:
            return ModelExchange(
                got, name=name, reader=reader, headers=got.headers, first_event_s=timeouts.first_byte_s
            )
        try:
            error_body = await got.read_all(_MAX_ERROR_BYTES)
        except ProviderError:
            error_body = b""  # the status is sufficient without the body
        finally:
            await got.aclose()
        raise http_error(got.status, got.headers, error_body, endpoint=name, secrets=secrets_of(headers))


def _without_keep_alives(head: bytes) -> bytes:
    """The start of a body without the white space and comments that kept the connection open before it."""
    return _KEEP_ALIVES.sub(b"", head.removeprefix(_BOM), count=1)
