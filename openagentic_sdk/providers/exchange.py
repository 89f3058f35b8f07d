"""One request to a model's endpoint and its answer as events or as one JSON body, over a socket or an injected callable.

Whether an answer is a stream of events or a whole body is seen from its first byte, not from what was asked for: endpoints
answer streams with plain JSON (errors above all) and plain requests with streams.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from ..errors import ProviderError, ProviderResponseError
from .chat_request import encode_request, sendable
from .failures import http_error, secrets_of
from .http import HttpTransport, shown_url
from .sse import SSEDecoder, SSEEvent
from .thread_feed import ThreadFeed
from .timeouts import timeout_error

Transport = Callable[[str, dict[str, str], dict[str, Any]], Mapping[str, Any]]
StreamTransport = Callable[[str, dict[str, str], dict[str, Any]], Iterable[bytes]]

_MAX_ERROR_BYTES = 64 * 1024
_BOM = b"\xef\xbb\xbf"


class Whole:
    """A body that came in one piece: parsed JSON."""

    def __init__(self, data: Any) -> None:
        self.data = data


class BodyReader:
    """Tells a stream of events from a JSON body, and reads it. Pure."""

    def __init__(self) -> None:
        self.saw_event = False
        self._head = b""
        self._json: bytearray | None = None
        self._events: SSEDecoder | None = None

    def feed(self, chunk: bytes) -> list[SSEEvent]:
        """The events that this chunk completes; none while the body is JSON."""
        if self._events is not None:
            events = self._events.feed(chunk)
            self.saw_event = self.saw_event or bool(events)
            return events
        if self._json is not None:
            self._json += chunk
            return []
        self._head += chunk
        first = self._head.removeprefix(_BOM).lstrip()[:1]
        if not first or (len(self._head) < 3 and _BOM.startswith(self._head)):
            return []
        head, self._head = self._head, b""
        if first in (b"{", b"["):
            self._json = bytearray(head.removeprefix(_BOM))
            return []
        self._events = SSEDecoder()
        return self.feed(head)

    def close(self) -> list[SSEEvent] | Whole:
        """The rest: events, or the whole body. Raises `ProviderResponseError` for JSON that is cut or none."""
        if self._events is not None:
            return self._events.close()
        if self._json is None:
            return []
        try:
            return Whole(json.loads(bytes(self._json)))
        except (ValueError, RecursionError):
            start = bytes(self._json[:200]).decode("utf-8", "replace")
            raise ProviderResponseError(f"the endpoint's answer is not valid JSON; it begins with {start!r}") from None


class _Source(Protocol):
    async def read(self) -> list[Any]: ...

    async def aclose(self) -> None: ...


class Exchange:
    """An answer on its way. `read` gives events in batches, or one `Whole`; None is the end."""

    def __init__(self, source: _Source, *, name: str, first_event_s: float | None = None) -> None:
        self._source = source
        self._name = name
        self._reader = BodyReader()
        self._began = time.monotonic()
        self._first_event_s = first_event_s
        self._end_by: float | None = None
        self._is_over = False

    def end_soon(self, linger_s: float, *, extends: bool) -> None:
        """What matters has come: read on only this long, and take any failure for the end.

        `extends` lets a later call move the end further away; without it the first word stands.
        """
        end_by = time.monotonic() + linger_s
        if self._end_by is None or extends or end_by < self._end_by:
            self._end_by = end_by

    async def read(self) -> list[SSEEvent] | Whole | None:
        """The next batch, possibly empty."""
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
        self._check_first_event()
        return events

    async def aclose(self) -> None:
        await self._source.aclose()

    async def _next_chunks(self) -> list[Any] | None:
        if self._end_by is None:
            return await self._source.read()
        try:
            return await asyncio.wait_for(self._source.read(), self._end_by - time.monotonic())
        except (TimeoutError, ProviderError):
            return None

    def _check_first_event(self) -> None:
        limit = self._first_event_s
        if limit is not None and not self._reader.saw_event and time.monotonic() - self._began > limit:
            raise timeout_error(self._name, "first_byte", limit)


class _CallableSource:
    """An injected callable, run in a thread so that it may block."""

    def __init__(self, produce: Callable[[ThreadFeed], None]) -> None:
        self._feed = ThreadFeed(produce)

    async def read(self) -> list[Any]:
        items = await self._feed.take()
        self._feed.mark_taken(sum(len(item) for item in items if isinstance(item, bytes)))
        return items

    async def aclose(self) -> None:
        await self._feed.aclose()


class Wire:
    """How a provider asks: through sockets, or through injected callables in their place."""

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

    def will_stream(self, wanted: bool) -> bool:
        """Whether a request is to ask for a stream: an injected callable of the other kind alone decides otherwise."""
        if wanted:
            return self._stream_transport is not None or self._transport is None
        return self._stream_transport is not None and self._transport is None

    async def open(self, url: str, headers: dict[str, str], payload: dict[str, Any], *, stream: bool) -> Exchange:
        """Send the request. Raises one of the provider errors for anything but an answer with a status of success."""
        answer_with: Callable[..., Any] | None = self._stream_transport if stream else self._transport
        if answer_with is None:
            return await self._open_socket(url, headers, payload)

        def produce(feed: ThreadFeed) -> None:
            answer = answer_with(url, headers, sendable(payload))
            if not stream:
                feed.put(Whole(answer))
                return
            for chunk in answer:
                feed.put(bytes(chunk), len(chunk))

        return Exchange(_CallableSource(produce), name=shown_url(url))

    async def _open_socket(self, url: str, headers: dict[str, str], payload: dict[str, Any]) -> Exchange:
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream, application/json", **headers}
        answer = await self.http.request(url, headers, encode_request(payload))
        if 200 <= answer.status < 300:
            return Exchange(answer, name=shown_url(url), first_event_s=self.http.timeouts.first_byte_s)
        try:
            body = await answer.read_all(_MAX_ERROR_BYTES)
        except ProviderError:
            body = b""  # the status says enough
        finally:
            await answer.aclose()
        raise http_error(answer.status, answer.headers, body, endpoint=shown_url(url), secrets=secrets_of(headers))
