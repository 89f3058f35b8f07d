"""The common part of every provider over HTTP: keys, settings, one request, reading its answer to the end.

A protocol (chat completions, Responses, Messages, Gemini) adds the format of requests and a `Reading` of answers.
`complete` and `stream` share the request, the reader and the fold, so they return the same answer.
"""

from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from copy import copy
from dataclasses import replace
from itertools import count
from typing import Any, Self, TypedDict, Unpack
from urllib.parse import urlencode, urlsplit

from ..errors import OptionsError, ProviderError, ProviderHTTPError, ProviderResponseError
from ..ground.checks import shown
from ..ground.loose import as_mappings, read_json
from ..ground.settings import advice_on
from .base import Done, Message, ModelOutput, ProviderSession, Retrying, StreamEvent, ToolCallReady, ToolSpec
from .bound_reasoning import without_reasoning
from .chat_request import RequestSettings, ToolNames
from .controls import NO_REASONING, SessionControls, is_reasoning_refused
from .definitions.refusals import CUT_DESCRIPTIONS, HOLD_TOOL, cut_descriptions, description_limit, refused_tool
from .failures import hide_secrets_in, secrets_of, unexpected
from .keys import ApiKey, HeaderSource, KeySource, call, is_host_of
from .token_count import TokenCount, estimate_tokens
from .wire.connect import shown_url
from .wire.exchange import BodyReader, ModelExchange, StreamTransport, Transport, Whole, Wire
from .wire.http import HttpTransport
from .wire.reading import Reading, raise_error_in

# The maximum number of times that a refused request is rewritten: after a dozen, single tools are not the cause.
MAX_REWRITES = 12
# The fields in which endpoints return their list of models, and those with a model's name.
_MODEL_LISTS = ("data", "models", "modelSummaries", "publisherModels")
_MODEL_NAMES = ("id", "modelId", "name", "model")


class EndpointArguments(TypedDict, total=False):
    """The constructor arguments common to every provider over HTTP.

    `api_key` is a string or a callable, see the module `keys`; `headers` are sent with each request, and may be a callable
    too. `settings` apply to every request. `transport` and `stream_transport` are callables that replace the sockets, `http`
    configures the sockets; providers that are given the same `HttpTransport` share its connections.
    """

    api_key: ApiKey | None
    headers: HeaderSource | None
    settings: RequestSettings | None
    transport: Transport | None
    stream_transport: StreamTransport | None
    http: HttpTransport | None


class EndpointProvider(ABC):
    """A provider over HTTP: an endpoint at `base_url`, which may contain a query.

    `base_url` defaults to the one in the environment (`url_variable`), then to the vendor's (`usual_url`). The key of a
    call takes precedence over `api_key`, and that over the environment, whose key is sent only to the vendor's own hosts
    (`hosts`) and to the address in the environment.
    """

    name = "endpoint"
    usual_url = ""
    url_variable: str | None = None
    key_variable: str | None = None
    hosts: tuple[str, ...] = ()
    # The end of the address of a request, which a pasted `base_url` may contain.
    operation = ""
    # The kinds of parts besides text that the protocol supports.
    inputs: tuple[str, ...] = ("image", "file", "audio")
    needs_key = False
    has_response_format = False

    def __init__(self, *, base_url: str | None, **endpoint: Unpack[EndpointArguments]) -> None:
        if unknown := endpoint.keys() - EndpointArguments.__annotations__.keys():
            name, names = min(unknown), (*EndpointArguments.__annotations__, "base_url")
            raise TypeError(f"{type(self).__name__} takes no argument {name}{advice_on(name, names)}")
        variable_url = os.environ.get(self.url_variable, "").strip() if base_url is None and self.url_variable else ""
        self._is_url_of_environment = bool(variable_url)
        if base_url is not None and not isinstance(base_url, str):
            raise OptionsError(f"base_url must be a string, not {shown(base_url)}")
        url, _, self._query = (base_url or variable_url or self.usual_url).partition("?")
        if "#" in url + self._query:
            raise OptionsError(
                f"base_url {shown_url(url)!r} contains a #: no server receives what follows it, so remove it"
            )
        self.base_url = url.rstrip("/").removesuffix(self.operation)
        self.settings = endpoint.get("settings") or RequestSettings()
        key = endpoint.get("api_key")
        if key is not None and not (isinstance(key, str) or callable(key)):
            raise OptionsError(f"api_key must be text or a callable, not a value of type {type(key).__name__}")
        self._key = KeySource(key) if key else None
        self._call_keys: dict[Any, KeySource] = {}
        self._headers = endpoint.get("headers") or {}
        self._session = ProviderSession()
        self._wire = Wire(
            http=endpoint.get("http") or HttpTransport(),
            transport=endpoint.get("transport"),
            stream_transport=endpoint.get("stream_transport"),
        )

    @abstractmethod
    def url(self, model: str) -> str:
        """The address of requests for this model."""

    def url_of_request(self, model: str, *, stream: bool) -> str:
        """The address of one request, for endpoints with a separate address for streams."""
        return self.url(model)

    @abstractmethod
    def prepare(
        self, model: str, messages: Sequence[Message], tools: Sequence[ToolSpec], *, stream: bool
    ) -> tuple[dict[str, Any], Reading, ToolNames]:
        """Return the request body, the reader of its answer, and the names of the tools as sent.

        Raises `OptionsError` for messages, tools and settings that the protocol cannot express.
        """

    def authorization(self, key: str) -> dict[str, str]:
        """The headers that carry the key."""
        return {"Authorization": f"Bearer {key}"}

    def fixed_headers(self) -> dict[str, str]:
        """The headers that the protocol requires with each request."""
        return {}

    async def signed(self, url: str, headers: dict[str, str], body: bytes) -> dict[str, str]:
        """Return the headers to send, with a signature if the endpoint requires one over the whole request."""
        return headers

    def body_reader(self) -> BodyReader:
        """A reader that splits an answer into events."""
        return BodyReader()

    def learn_from(self, error: ProviderHTTPError, model: str) -> bool:
        """Adapt to a refusal if possible; return whether to write the request again."""
        return False

    def control_for(self, error: ProviderHTTPError) -> str | None:
        """The control for this session's further requests if this one was refused for its reasoning, else None."""
        return NO_REASONING if is_reasoning_refused(error) else None

    def for_session(self, state: ProviderSession) -> Self:
        """Return a copy for one session: adjustments that the endpoint requires there affect no other session."""
        other = copy(self)
        other._session = state
        return other

    def address(self, path: str, **query: str) -> str:
        """The URL of a path below `base_url`, with the query parameters of `base_url` and of `query`."""
        parts = [part for part in (self._query, urlencode(query, safe=":")) if part]
        return self.base_url + path + ("?" + "&".join(parts) if parts else "")

    @property
    def controls(self) -> SessionControls:
        """The controls that apply to this session's requests to this endpoint."""
        return SessionControls(self._session.controls, self.origin)

    @property
    def endpoint(self) -> str:
        """The name under which a circuit breaker counts failures."""
        return self.base_url

    @property
    def origin(self) -> str:
        """The endpoint's host, with its port if given. Opaque fields of its answers are sent back to no other."""
        try:
            return urlsplit(self.base_url).netloc.rpartition("@")[2]
        except ValueError:
            return self.base_url

    @property
    def is_at_home(self) -> bool:
        """Whether this is the vendor's own endpoint, or the address came from the environment (`url_variable`)."""
        return self._is_url_of_environment or is_host_of(self.hosts, self.base_url)

    @property
    def http(self) -> HttpTransport:
        """The transport of this provider, whose pooled connections another provider may share."""
        return self._wire.http

    def with_settings(self, **changes: Any) -> Self:
        """Return a copy with other settings (fields of `RequestSettings`), over the same connections."""
        other = copy(self)
        other.settings = replace(self.settings, **changes)
        return other

    def with_idempotency_key(self, key: str) -> Self:
        """Return a copy that sends this key with each attempt at one call."""
        return self.with_settings(idempotency_key=key)

    def with_response_format(self, response_format: Mapping[str, Any]) -> Self | None:
        """Return a copy that requests answers in this format; None if the endpoint is not known to support it."""
        return self.with_settings(response_format=response_format) if self.has_response_format else None

    async def complete(
        self, *, model: str, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), api_key: ApiKey | None = None
    ) -> ModelOutput:
        """Return the whole answer at once. Raises a `ProviderError`, or `OptionsError` for a request that cannot be sent."""
        async with aclosing(self._ask(model, messages, tools, api_key, stream=False)) as events:
            async for event in events:
                if isinstance(event, Done) and event.output is not None:
                    return event.output
        raise ProviderResponseError("the answer ended without its end marker")

    async def stream(
        self, *, model: str, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), api_key: ApiKey | None = None
    ) -> AsyncIterator[StreamEvent]:
        """Yield the answer's events as they arrive, its calls at the end. Raises the same errors as `complete`."""
        async with aclosing(self._ask(model, messages, tools, api_key, stream=True)) as events:
            async for event in events:
                yield event

    async def models(self, *, api_key: ApiKey | None = None) -> list[str]:
        """Return the names of the models that the endpoint serves. Raises the same errors as `complete`."""
        body = await self.fetch(self.models_url(), api_key=api_key)
        if isinstance(body, Mapping):
            body = next((body[key] for key in _MODEL_LISTS if isinstance(body.get(key), list)), body)
        if not isinstance(body, list):
            raise unexpected("answer lists no models", body)
        names = [next((one[key] for key in _MODEL_NAMES if one.get(key)), None) for one in as_mappings(body)]
        return [short for name in names if isinstance(name, str) and (short := name.rpartition("models/")[2])]

    def models_url(self) -> str:
        """The address of the list of models."""
        return self.address("/models")

    async def count_tokens(
        self, *, model: str, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), api_key: ApiKey | None = None
    ) -> TokenCount:
        """Return the number of input tokens of a request: the endpoint's own count if it has one, else an estimate.

        Raises the same errors as `complete`.
        """
        payload = self.prepare(model, messages, self.controls.offered(tools), stream=False)[0]
        request = self.count_request(model, payload)
        if request is None:
            return estimate_tokens(payload)
        url, question, field = request
        try:
            body = await self.fetch(url, question, api_key=api_key)
        except ProviderHTTPError as error:
            # Servers that imitate a vendor's protocol often lack this address.
            if error.status not in (404, 405, 501):
                raise
            return estimate_tokens(payload)
        count = body.get(field) if isinstance(body, Mapping) else None
        if isinstance(count, bool) or not isinstance(count, int):
            raise unexpected(f"count of tokens has no whole number as {field}", body)
        return TokenCount(count)

    def count_request(self, model: str, payload: dict[str, Any]) -> tuple[str, dict[str, Any], str] | None:
        """The URL that counts tokens, the payload for it, and the count's field in the answer; None without such a URL."""
        return None

    async def request_headers(self, api_key: ApiKey | None = None, *, fresh: bool = False) -> dict[str, str]:
        """Return the headers of a request. Raises `OptionsError` if a required key is missing. Also raises the errors of
        `keys.call`.

        `fresh` calls the callables again, because their last values were refused.
        """
        key = await self._find_key(api_key, fresh=fresh)
        auth = self.authorization(key) if key else {}
        headers = {"User-Agent": "openagentic-sdk", **self.fixed_headers(), **auth}
        if self.settings.idempotency_key:
            headers["Idempotency-Key"] = self.settings.idempotency_key
        own = self._headers if isinstance(self._headers, Mapping) else await call(self._headers, "headers")
        return {**headers, **own, **self.settings.extra_headers}

    async def fetch(self, url: str, payload: dict[str, Any] | None = None, *, api_key: ApiKey | None = None) -> Any:
        """Fetch the JSON at a URL of this endpoint, by POST if there is a payload. Raises the same errors as `complete`."""
        exchange, headers = await self._open(url, payload, api_key, stream=False)
        try:
            body: Whole | None = None
            while (batch := await exchange.read()) is not None:
                body = batch if isinstance(batch, Whole) else body
            if body is None:
                raise ProviderResponseError("the endpoint's answer is not JSON: check base_url")
            raise_error_in(body.data)
            return body.data
        except ProviderError as error:
            hide_secrets_in(error, secrets_of(headers))
            raise
        finally:
            await exchange.aclose()

    async def _find_key(self, api_key: ApiKey | None, *, fresh: bool) -> str:
        if source := self._key_source(api_key):
            return await source.key(fresh=fresh)
        key = os.environ.get(self.key_variable, "").strip() if self.key_variable else ""
        withheld = bool(key) and not self.is_at_home
        if self.needs_key and (withheld or not key):
            advice = f"set {self.key_variable}, or pass api_key=" if self.key_variable else "pass a token as api_key="
            if self.key_variable and not self.is_at_home:
                hosts = " and ".join(self.hosts)
                advice = f"${self.key_variable} is sent to {hosts} only, so pass api_key= for {self.origin}"
            raise OptionsError(f"{self.name} needs an API key: {advice} (on the command line, --api-key-env NAME)")
        return "" if withheld else key

    def _key_source(self, api_key: ApiKey | None) -> KeySource | None:
        if not api_key:
            return self._key
        if isinstance(api_key, str):
            return KeySource(api_key)
        if len(self._call_keys) > 16:  # the caller may create a new callable for each call
            self._call_keys.clear()
        return self._call_keys.setdefault(api_key, KeySource(api_key))

    async def _open(
        self, url: str, payload: dict[str, Any] | None, api_key: ApiKey | None, *, stream: bool
    ) -> tuple[ModelExchange, dict[str, str]]:
        """Send a request; if the key is refused and comes from a callable, send it once more with a new key."""
        source = self._key_source(api_key)
        renewable = (source is not None and source.is_renewable) or callable(self._headers)
        for fresh in (False, True):
            headers = await self.request_headers(api_key, fresh=fresh)
            try:
                opened = self._wire.open(
                    url,
                    headers,
                    payload,
                    stream=stream,
                    reader=self.body_reader(),
                    timeouts=self.settings.timeouts,
                    sign=self.signed,
                )
                return await opened, headers
            except ProviderHTTPError as error:
                if error.status != 401 or fresh or not renewable:
                    raise
        raise AssertionError("the second attempt returns or raises")

    def _control_against(
        self, error: ProviderHTTPError, payload: Mapping[str, Any], names: ToolNames
    ) -> tuple[str | None, str]:
        """The control under which the endpoint may accept the refused request, or None, and its effect on tools in words."""
        max_chars = description_limit(error)
        if max_chars and max_chars < (self.controls.description_chars() or max_chars + 1):
            return f"{CUT_DESCRIPTIONS} {max_chars}", f"descriptions of tools are truncated to {max_chars} characters: "
        sent_name = refused_tool(error, payload)
        name = None if sent_name is None else names.real(sent_name)
        # A tool that the request requires cannot be withheld.
        if name and name != self.settings.tool_choice:
            return f"{HOLD_TOOL} {name}", f"{name} is withheld, because its definition is refused: "
        return self.control_for(error), ""

    async def _ask(
        self,
        model: str,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        api_key: ApiKey | None,
        *,
        stream: bool,
    ) -> AsyncGenerator[StreamEvent, None]:
        stream = self._wire.will_stream(stream and self.settings.stream)
        url = self.url_of_request(model, stream=stream)
        for attempt in count(1):
            controls = self.controls
            outgoing = [without_reasoning(message) for message in messages] if controls.has(NO_REASONING) else messages
            payload, reading, names = self.prepare(model, outgoing, controls.offered(tools), stream=stream)
            if max_chars := controls.description_chars():
                cut_descriptions(payload, max_chars)
            try:
                exchange, headers = await self._open(url, payload, api_key, stream=stream)
                break
            except ProviderHTTPError as error:
                control, effect = self._control_against(error, payload, names)
                if control is not None and not controls.has(control) and attempt <= MAX_REWRITES:
                    yield Retrying(f"{effect}{error}", 0.0, attempt, control=controls.add(control))
                # At most once per request: if the rewritten request is refused too, the cause was another one.
                elif attempt > 1 or not self.learn_from(error, model):
                    raise
        for notice in reading.notices:
            warnings.warn(f"{self.name}: {notice}", stacklevel=2)
        reading.raw = [] if self.settings.keep_raw else None
        try:
            while (batch := await exchange.read()) is not None:
                for event in reading.take(batch):
                    yield event
                if reading.linger_s is not None and batch:  # comments do not extend the time
                    exchange.end_soon(reading.linger_s, extends=not reading.is_over)
            reading.check_answered(exchange.beginning)
            reading.is_broken |= exchange.is_broken
            rest, output = reading.finish()
        except ProviderError as error:
            hide_secrets_in(error, secrets_of(headers))
            raise
        finally:
            await exchange.aclose()
        output = replace(
            output,
            tool_calls=[names.own_call(call) for call in output.tool_calls],
            raw=reading.raw,
            record_raw=self.settings.keep_raw,
            rate_limits={name: text for name, text in exchange.headers.items() if "ratelimit" in name} or None,
            cost_usd=output.cost_usd if output.cost_usd is not None else _cost_in(exchange.headers),
            notices=(*reading.notices, *names.notices),
        )
        for event in (*rest, *map(ToolCallReady, output.tool_calls)):
            yield event
        yield Done(output, output.usage, output.finish_reason, output.extras, output.refusal)


def _cost_in(headers: Mapping[str, str]) -> float | None:
    try:
        cost = read_json(headers["x-litellm-response-cost"])
        # A header of the endpoint: `nan`, or an absurd number, would make every sum of costs wrong.
        return float(cost) if isinstance(cost, int | float) and 0 <= cost < 1e9 else None
    except (KeyError, ValueError, RecursionError):
        return None
