"""OpenAI's chat completions, and the one engine behind every endpoint that speaks them.

`complete` and `stream` go through the same request, reader and assembler, so they give the same answer.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Self
from urllib.parse import urlsplit

from ..errors import OptionsError, ProviderResponseError
from .base import Done, Message, ModelOutput, StreamEvent, ToolCallReady, ToolSpec
from .chat_request import RequestSettings, ToolNames, build_chat_request, used_call_ids, with_real_names
from .exchange import Exchange, StreamTransport, Transport, Whole, Wire
from .failures import error_in_body
from .http import HttpTransport
from .openai_stream_assembler import ChatAssembler
from .quirks import OPENAI, Quirks
from .sse import SSEEvent

# After the end marker only the end of the body is missing; after a finish reason, usage may still follow.
LINGER_AFTER_DONE_S = 0.25
LINGER_AFTER_FINISH_S = 5.0


class ChatProvider:
    """Any endpoint that speaks chat completions. Subclasses say where it is and how a key is shown to it.

    `settings` hold for every request; `with_settings` gives a provider that differs in some and shares the connections.
    """

    name = "chat-completions"

    def __init__(
        self,
        *,
        base_url: str,
        quirks: Quirks,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        settings: RequestSettings | None = None,
        transport: Transport | None = None,
        stream_transport: StreamTransport | None = None,
        http: HttpTransport | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.quirks = quirks
        self.settings = settings or RequestSettings()
        self._api_key = api_key
        self._headers = dict(headers or {})
        self._wire = Wire(http=http or HttpTransport(), transport=transport, stream_transport=stream_transport)

    @property
    def endpoint(self) -> str:
        """What a circuit breaker counts failures for."""
        return self.base_url

    @property
    def http(self) -> HttpTransport:
        """The connections of this provider, to share with another one."""
        return self._wire.http

    def with_settings(self, **changes: Any) -> Self:
        """The same provider with other settings, over the same connections."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.settings = replace(self.settings, **changes)
        return other

    def with_idempotency_key(self, key: str) -> Self:
        """The same provider for the attempts at one call."""
        return self.with_settings(idempotency_key=key)

    def url(self, model: str) -> str:
        """Where requests for this model go."""
        return f"{self.base_url}/chat/completions"

    def authorization(self, key: str) -> dict[str, str]:
        """The header that shows the key."""
        return {"Authorization": f"Bearer {key}"}

    def default_key(self) -> str | None:
        """The key to use when none was given."""
        return None

    async def complete(
        self, *, model: str, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), api_key: str | None = None
    ) -> ModelOutput:
        """The whole answer at once. Raises one of the provider errors."""
        async with aclosing(self._ask(model, messages, tools, api_key, stream=False)) as events:
            async for event in events:
                if isinstance(event, Done) and event.output is not None:
                    return event.output
        raise ProviderResponseError("the answer ended without its end")

    async def stream(
        self, *, model: str, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), api_key: str | None = None
    ) -> AsyncIterator[StreamEvent]:
        """The answer piece by piece; calls come when the answer is whole. Raises one of the provider errors."""
        async with aclosing(self._ask(model, messages, tools, api_key, stream=True)) as events:
            async for event in events:
                yield event

    async def _ask(
        self, model: str, messages: Sequence[Message], tools: Sequence[ToolSpec], api_key: str | None, *, stream: bool
    ) -> AsyncGenerator[StreamEvent, None]:
        stream = self._wire.will_stream(stream)
        payload, names = build_chat_request(
            model=model,
            messages=messages,
            tools=tools,
            settings=self.settings,
            quirks=self.quirks,
            origin=self._origin(),
            stream=stream,
        )
        assembler = ChatAssembler(
            used_ids=used_call_ids(messages), think_tags=self.quirks.think_tags, origin=self._origin()
        )
        exchange = await self._wire.open(self.url(model), self._request_headers(api_key), payload, stream=stream)
        try:
            async for event in read_chat(exchange, assembler, names):
                yield event
        finally:
            await exchange.aclose()

    def _request_headers(self, api_key: str | None) -> dict[str, str]:
        key = (api_key or self._api_key or self.default_key() or "").strip()
        if not key and self.quirks.needs_key:
            raise OptionsError(f"{self.name} needs an API key: set OPENAI_API_KEY, or pass api_key=")
        headers = {"User-Agent": "openagentic-sdk"}
        if key:
            headers.update(self.authorization(key))
        if self.settings.idempotency_key:
            headers["Idempotency-Key"] = self.settings.idempotency_key
        return {**headers, **self._headers, **self.settings.extra_headers}

    def _origin(self) -> str:
        try:
            return urlsplit(self.base_url).netloc.rpartition("@")[2]
        except ValueError:
            return self.base_url


class OpenAIProvider(ChatProvider):
    """OpenAI itself. The key comes with the call, from `api_key`, or from OPENAI_API_KEY.

    `transport(url, headers, payload)` returns the response's dict, `stream_transport` an iterable of byte chunks of the
    body; they take the place of the sockets.
    """

    name = "openai"

    def __init__(
        self,
        *,
        base_url: str = "https://api.openai.com/v1",
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        settings: RequestSettings | None = None,
        quirks: Quirks = OPENAI,
        transport: Transport | None = None,
        stream_transport: StreamTransport | None = None,
        http: HttpTransport | None = None,
    ) -> None:
        super().__init__(
            base_url=base_url,
            quirks=quirks,
            api_key=api_key,
            headers=headers,
            settings=settings,
            transport=transport,
            stream_transport=stream_transport,
            http=http,
        )

    def default_key(self) -> str | None:
        return os.environ.get("OPENAI_API_KEY")


async def read_chat(exchange: Exchange, assembler: ChatAssembler, names: ToolNames) -> AsyncIterator[StreamEvent]:
    """The events of one answer, `Done` with the whole of it last."""
    reading = _ChatReading(exchange, assembler)
    while (batch := await exchange.read()) is not None:
        for event in reading.take(batch):
            yield event
    rest, output = reading.finish()
    for event in rest:
        yield event
    output = with_real_names(output, names)
    for call in output.tool_calls:
        yield ToolCallReady(call)
    yield Done(output, output.usage, output.finish_reason, output.extras, output.refusal)


class _ChatReading:
    """Events of the wire to stream events, and when to stop waiting for more."""

    def __init__(self, exchange: Exchange, assembler: ChatAssembler) -> None:
        self._exchange = exchange
        self._assembler = assembler
        self._unreadable: str | None = None
        self._count = 0

    def take(self, batch: list[SSEEvent] | Whole) -> list[StreamEvent]:
        if isinstance(batch, Whole):
            return self._take_whole(batch.data)
        events: list[StreamEvent] = []
        for event in batch:
            self._count += 1
            events += self._take_event(event)
        return events

    def finish(self) -> tuple[list[StreamEvent], ModelOutput]:
        if not self._count:
            raise ProviderResponseError("the endpoint accepted the request and sent no answer: check base_url")
        return self._assembler.finish()

    def _take_whole(self, data: Any) -> list[StreamEvent]:
        self._count += 1
        error = error_in_body(data)
        if error is not None:
            raise error
        if not isinstance(data, Mapping) or not isinstance(data.get("choices"), list) or not data["choices"]:
            raise ProviderResponseError(f"the endpoint's answer has no choices; it is {json.dumps(data)[:200]}")
        events = self._assembler.apply(data)
        self._assembler.end_marker()
        return events

    def _take_event(self, event: SSEEvent) -> list[StreamEvent]:
        if self._unreadable is not None:
            raise ProviderResponseError(f"the endpoint sent an event that is no JSON: {self._unreadable[:200]!r}")
        if event.data.strip() == "[DONE]":
            self._assembler.end_marker()
            self._exchange.end_soon(LINGER_AFTER_DONE_S)
            return []
        try:
            chunk = json.loads(event.data)
        except (ValueError, RecursionError):
            # As the last event of a stream it is a cut, not a mistake: the end of the stream will tell.
            self._unreadable = event.data
            return []
        error = error_in_body(chunk)
        if error is None and event.event == "error":
            error = error_in_body({"error": chunk})
        if error is not None:
            raise error
        events = self._assembler.apply(chunk) if isinstance(chunk, Mapping) else []
        if self._assembler.has_finish_reason:
            self._exchange.end_soon(LINGER_AFTER_FINISH_S)
        return events
