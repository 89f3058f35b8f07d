"""What every provider over HTTP does alike: keys, settings, one request, reading its answer to the end.

A protocol (chat completions, Responses, Messages) adds how a request is written and a `Reading` that understands the
answer. `complete` and `stream` go through the same request, reader and fold, so they give the same answer.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Self, TypedDict, Unpack
from urllib.parse import urlsplit

from ..errors import OptionsError, ProviderError, ProviderResponseError
from .base import Done, Message, ModelOutput, StreamEvent, ToolCallReady, ToolSpec
from .chat_request import RequestSettings, ToolNames
from .exchange import StreamTransport, Transport, Whole, Wire
from .failures import error_in_body, hide_secrets_in, secrets_of
from .http import HttpTransport
from .sse import SSEEvent

# After the end marker only the end of the body is missing; after a finish reason, usage may still follow.
LINGER_AFTER_DONE_S = 0.25
LINGER_AFTER_FINISH_S = 5.0


class Reading(ABC):
    """An answer being read, event by event or whole.

    `linger_s`, once set, says that what matters has come; `is_over` that nothing can follow any more.
    """

    linger_s: float | None = None
    is_over = False

    def __init__(self) -> None:
        self._unreadable: str | None = None
        self._count = 0

    @abstractmethod
    def take_chunk(self, chunk: Mapping[str, Any]) -> list[StreamEvent]:
        """What can be shown of one event's JSON."""

    @abstractmethod
    def take_whole(self, body: Mapping[str, Any]) -> list[StreamEvent]:
        """What can be shown of an answer that came in one piece. Raises `ProviderResponseError` when it is none."""

    @abstractmethod
    def finish(self) -> tuple[list[StreamEvent], ModelOutput]:
        """What was held back, and the whole answer. Raises `IncompleteResponseError` when its end was not seen."""

    def take_marker(self) -> None:
        """The stream said `[DONE]`."""
        self.linger_s, self.is_over = LINGER_AFTER_DONE_S, True

    def take(self, batch: list[SSEEvent] | Whole) -> list[StreamEvent]:
        """What can be shown of what came. Raises `ProviderHTTPError` for an error in place of an answer."""
        if isinstance(batch, Whole):
            self._count += 1
            return self._checked_whole(batch.data)
        shown: list[StreamEvent] = []
        for event in batch:
            self._count += 1
            shown += self._take_event(event)
        return shown

    def check_answered(self) -> None:
        """Raise `ProviderResponseError` when the endpoint sent nothing at all."""
        if not self._count:
            raise ProviderResponseError("the endpoint accepted the request and sent no answer: check base_url")

    def _checked_whole(self, data: Any) -> list[StreamEvent]:
        _raise_error_in(data)
        if not isinstance(data, Mapping):
            raise ProviderResponseError(f"the endpoint's answer is no object; it is {json.dumps(data)[:200]}")
        return self.take_whole(data)

    def _take_event(self, event: SSEEvent) -> list[StreamEvent]:
        if self._unreadable is not None:
            raise ProviderResponseError(f"the endpoint sent an event that is no JSON: {self._unreadable[:200]!r}")
        if event.data.strip() == "[DONE]":
            self.take_marker()
            return []
        try:
            chunk = json.loads(event.data)
        except (ValueError, RecursionError):
            return self._take_unreadable(event)
        _raise_error_in(chunk)
        if event.event == "error":
            _raise_error_in({"error": chunk})
        return self.take_chunk(chunk) if isinstance(chunk, Mapping) else []

    def _take_unreadable(self, event: SSEEvent) -> list[StreamEvent]:
        if event.event == "error":
            _raise_error_in({"error": event.data})
        lines = event.data.split("\n")
        if len(lines) > 1:  # a server that forgets the blank lines between its events
            return [shown for line in lines if line.strip() for shown in self._take_event(SSEEvent(line))]
        # As the last event of a stream it is a cut, not a mistake: the end of the stream will tell.
        self._unreadable = event.data
        return []


class EndpointArguments(TypedDict, total=False):
    """What the constructor of every provider over HTTP takes, besides what its protocol needs.

    `headers` and `settings` hold for every request. `transport` and `stream_transport` are callables that take the place of
    the sockets, `http` is how the sockets are used; connections can be shared by giving several providers the same one.
    """

    api_key: str | None
    headers: Mapping[str, str] | None
    settings: RequestSettings | None
    transport: Transport | None
    stream_transport: StreamTransport | None
    http: HttpTransport | None


class EndpointProvider(ABC):
    """An endpoint at `base_url`; `with_settings` gives a provider that differs in some settings.

    The key of a call goes before `api_key`, and that before the environment.
    """

    name = "endpoint"
    key_variable: str | None = None
    needs_key = False
    has_response_format = False

    def __init__(self, *, base_url: str, **endpoint: Unpack[EndpointArguments]) -> None:
        if unknown := endpoint.keys() - EndpointArguments.__annotations__.keys():
            raise TypeError(f"{type(self).__name__} takes no argument {', '.join(sorted(unknown))}")
        self.base_url = base_url.rstrip("/")
        self.settings = endpoint.get("settings") or RequestSettings()
        self._api_key = endpoint.get("api_key")
        self._headers = dict(endpoint.get("headers") or {})
        self._wire = Wire(
            http=endpoint.get("http") or HttpTransport(),
            transport=endpoint.get("transport"),
            stream_transport=endpoint.get("stream_transport"),
        )

    @abstractmethod
    def url(self, model: str) -> str:
        """Where requests for this model go."""

    @abstractmethod
    def prepare(
        self, model: str, messages: Sequence[Message], tools: Sequence[ToolSpec], *, stream: bool
    ) -> tuple[dict[str, Any], Reading, ToolNames]:
        """The request's body, what will read the answer, and the names of the tools as they are sent."""

    def authorization(self, key: str) -> dict[str, str]:
        """The headers that show the key."""
        return {"Authorization": f"Bearer {key}"}

    @property
    def endpoint(self) -> str:
        """What a circuit breaker counts failures for."""
        return self.base_url

    @property
    def origin(self) -> str:
        """The host, to which alone opaque fields of its answers go back."""
        try:
            return urlsplit(self.base_url).netloc.rpartition("@")[2]
        except ValueError:
            return self.base_url

    @property
    def http(self) -> HttpTransport:
        """The connections of this provider, to share with another one."""
        return self._wire.http

    def with_settings(self, **changes: Any) -> Self:
        """The same provider with other settings (fields of `RequestSettings`), over the same connections."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.settings = replace(self.settings, **changes)
        return other

    def with_idempotency_key(self, key: str) -> Self:
        """The same provider for the attempts at one call."""
        return self.with_settings(idempotency_key=key)

    def with_response_format(self, response_format: Mapping[str, Any]) -> Self | None:
        """The same provider asking for answers of a JSON schema, or None where the endpoint is not known to have it."""
        return self.with_settings(response_format=response_format) if self.has_response_format else None

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

    def request_headers(self, api_key: str | None = None) -> dict[str, str]:
        """The headers of a request. Raises `OptionsError` when a key is needed and there is none."""
        key = (api_key or self._api_key or self._key_of_environment()).strip()
        if not key and self.needs_key:
            raise OptionsError(f"{self.name} needs an API key: set {self.key_variable}, or pass api_key=")
        headers = {"User-Agent": "openagentic-sdk", **(self.authorization(key) if key else {})}
        if self.settings.idempotency_key:
            headers["Idempotency-Key"] = self.settings.idempotency_key
        return {**headers, **self._headers, **self.settings.extra_headers}

    def _key_of_environment(self) -> str:
        import os

        return os.environ.get(self.key_variable, "") if self.key_variable else ""

    async def _ask(
        self, model: str, messages: Sequence[Message], tools: Sequence[ToolSpec], api_key: str | None, *, stream: bool
    ) -> AsyncGenerator[StreamEvent, None]:
        stream = self._wire.will_stream(stream)
        payload, reading, names = self.prepare(model, messages, tools, stream=stream)
        headers = self.request_headers(api_key)
        exchange = await self._wire.open(self.url(model), headers, payload, stream=stream)
        try:
            while (batch := await exchange.read()) is not None:
                for event in reading.take(batch):
                    yield event
                if reading.linger_s is not None and batch:  # comments do not prolong it
                    exchange.end_soon(reading.linger_s, extends=not reading.is_over)
            reading.check_answered()
            rest, output = reading.finish()
        except ProviderError as error:
            hide_secrets_in(error, secrets_of(headers))
            raise
        finally:
            await exchange.aclose()
        output = with_real_names(output, names)
        for event in (*rest, *map(ToolCallReady, output.tool_calls)):
            yield event
        yield Done(output, output.usage, output.finish_reason, output.extras, output.refusal)


def with_real_names(output: ModelOutput, names: ToolNames) -> ModelOutput:
    """The answer with the tools' own names in its calls."""
    if all(names.real(call.name) == call.name for call in output.tool_calls):
        return output
    return replace(output, tool_calls=[replace(call, name=names.real(call.name)) for call in output.tool_calls])


def _raise_error_in(data: Any) -> None:
    error = error_in_body(data)
    if error is not None:
        raise error
