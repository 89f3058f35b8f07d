"""A client for the server: a typed method per operation, iterators over paged lists, and live event streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import is_dataclass
from itertools import islice
from secrets import token_hex
from typing import Any, TypeVar, cast, get_args, get_origin
from urllib.parse import quote, urlencode

from ...errors import (
    InvalidEventError,
    OptionsError,
    ProviderConnectionError,
    ProviderError,
    ProviderResponseError,
    RequestRefusedError,
)
from ...events import EVENT_CLASSES, AnyEvent, Event, Result
from ...ground.backoff import Backoff
from ...ground.garbage import when_collected
from ...ground.schemas.typed import hints_of
from ...ground.text import existing
from ...ground.words import plural
from ...providers.sse import SSEDecoder
from ...providers.wire.http import HttpAnswer, HttpTransport
from ...serialization import event_from_dict, loads_event
from ...sessions.folds.standing import state_after
from .loop_thread import LoopThread
from .operations import AsyncOperations, Operations
from .refusals import code_of
from .table import EVENTS, Endpoint
from .values import InboxQuestion, ListedSession

T = TypeVar("T")
_MAX_REFUSAL_BYTES = 64 * 1024
_MAX_FAILURES = 8
_AGAIN = Backoff(0.25, 10.0)


class AsyncClient(AsyncOperations):
    """A client for the server at `base_url`, which includes any path prefix. `token` is sent with each request, if given.

    Each operation of the contract is a method that returns the contract's value as an object. Path parameters are
    positional; fields of the query or body are keyword arguments. A GET, or a request with an Idempotency-Key (`key`, or a
    generated one), is repeated up to `retries` times if the connection fails or the server asks to retry later; no other
    request is ever repeated.

    Methods raise `RequestRefusedError` (`status`, `code`, the server's message, `retry_after_s`) if the server refuses, a
    `ProviderError` if there is no valid response, and `OptionsError` for invalid arguments.
    """

    def __init__(
        self,
        base_url: str,
        token: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        retries: int = 2,
        http: HttpTransport | None = None,
    ) -> None:
        self._base_url = base_url.rstrip("/")
        self._headers = {**({} if token is None else {"Authorization": f"Bearer {token}"}), **(headers or {})}
        self._retries = retries
        self._owns_http = http is None
        self._http = http or HttpTransport()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the pooled connections, unless they belong to a transport passed to the constructor."""
        if self._owns_http:
            self._http.close()

    async def follow(
        self, session_id: str, *, after: int = 0, until_result: bool = False
    ) -> AsyncGenerator[AnyEvent, None]:
        """Yield the events after `seq` number `after` as they happen, including deltas.

        With `until_result`, stop once the run has ended or waits for an answer. A lost connection is re-established after
        the last event received, and given up after eight failures in a row.

        Raises `RequestRefusedError`, including if `after` exceeds the end of the log (`cursor_beyond_log`), and with
        `until_result` if the run's process has ended and no server can resume the run (`no_run`).
        """
        path = f"/v1/sessions/{_segment(session_id)}/events" + ("?until=result" if until_result else "")
        failures, is_over = 0, False
        while not is_over:
            headers = {"Accept": EVENTS, "Last-Event-ID": str(after)}
            failures += 1
            wait_s = _AGAIN.wait_s(failures)
            try:
                answer = await self._send("GET", path, headers, None, may_repeat=True)
                try:
                    if answer.status == 204:
                        return
                    stream = SSEDecoder()
                    # The server sends an event again if the stream was cut inside it.
                    while chunks := await answer.read():
                        failures, is_over = 0, False
                        for message in [message for chunk in chunks for message in stream.feed(chunk)]:
                            if message.event:
                                _check_notice(message.event, message.data, until_result=until_result)
                                continue
                            event = loads_event(message.data, strict=False)
                            # A delta has no `seq`.
                            after = event.seq or after
                            is_over = until_result and isinstance(event, Result) and state_after(event) != "suspended"
                            yield event
                finally:
                    await answer.aclose()
            except (RequestRefusedError, ProviderError) as error:
                if failures >= _MAX_FAILURES or not _may_pass(error):
                    raise
                is_over, wait_s = False, max(wait_s, getattr(error, "retry_after_s", None) or 0.0)
            if failures >= _MAX_FAILURES:
                raise ProviderResponseError(f"{self._base_url} ends every stream of events immediately")
            if not is_over:
                await asyncio.sleep(wait_s)

    async def iter_sessions(self, **query: Any) -> AsyncGenerator[ListedSession, None]:
        """Yield all sessions of `list_sessions`, page by page."""
        while True:
            page = await self.list_sessions(**query)
            for row in page.sessions:
                yield row
            if page.next is None:
                return
            query["after"] = page.next

    async def iter_questions(self, **query: Any) -> AsyncGenerator[InboxQuestion, None]:
        """Yield all questions of `list_questions`, page by page."""
        while True:
            page = await self.list_questions(**query)
            for question in page.questions:
                yield question
            if page.next is None:
                return
            query["after"] = page.next

    async def _operate(self, endpoint: Endpoint, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        path, body, headers = _request_of(endpoint, args, kwargs)
        may_repeat = endpoint.method == "GET" or endpoint.has_key
        for wait_s in islice(_AGAIN.waits(), self._retries if may_repeat else 0):
            try:
                return await self._ask(endpoint, path, headers, body, may_repeat=may_repeat)
            except (RequestRefusedError, ProviderError) as error:
                if not _may_pass(error):
                    raise
                wait_s = max(wait_s, getattr(error, "retry_after_s", None) or 0.0)
            await asyncio.sleep(wait_s)
        return await self._ask(endpoint, path, headers, body, may_repeat=may_repeat)

    async def _ask(
        self, endpoint: Endpoint, path: str, headers: Mapping[str, str], body: bytes | None, *, may_repeat: bool
    ) -> Any:
        """Send a request; return its response as the contract's type, as text if it is not JSON, or None if it is empty."""
        answer = await self._send(endpoint.method, path, headers, body, may_repeat, endpoint)
        try:
            data = await answer.read_all()
        finally:
            await answer.aclose()
        if not data:
            return None
        if answer.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return data.decode("utf-8", "replace")
        kind = endpoint.answers.get(answer.status)
        try:
            return _value(EVENT_CLASSES.get(kind, kind) if isinstance(kind, str) else kind, json.loads(data))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError, InvalidEventError) as error:
            why = f"{type(error).__name__}: {error}"
            text = f"{self._base_url} answers {endpoint.name}() in a form outside its contract ({why:.200}): check base_url"
            raise ProviderResponseError(text) from None

    async def _send(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | None,
        may_repeat: bool,
        endpoint: Endpoint | None = None,
    ) -> HttpAnswer:
        """Send a request and return its response, whose body is still to be read. Raises `RequestRefusedError`."""
        all_headers = {**self._headers, **headers}
        answer = await self._http.request(
            self._base_url + path, all_headers, body, method=None if method == "GET" else method, may_repeat=may_repeat
        )
        if answer.status < 400 or (endpoint is not None and answer.status in endpoint.answers):
            return answer
        try:
            raise _refusal(answer.status, answer.headers, await answer.read_all(_MAX_REFUSAL_BYTES))
        finally:
            await answer.aclose()


class Client(Operations):
    """The synchronous form of `AsyncClient`, with the same methods.

    Any number of threads may use it, even threads with a running event loop: its own loop runs in a separate thread from
    the first request until `close`.
    """

    def __init__(
        self,
        base_url: str,
        token: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        retries: int = 2,
        http: HttpTransport | None = None,
    ) -> None:
        self._client = AsyncClient(base_url, token, headers=headers, retries=retries, http=http)
        self._loop = LoopThread("openagentic-client")
        when_collected(self, self._loop.close)  # a client that is never closed leaves no thread and no connection

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Abort all pending requests and streams, in all threads, and close the connections."""
        self._loop.close()
        self._client.close()

    def follow(self, session_id: str, *, after: int = 0, until_result: bool = False) -> Iterator[AnyEvent]:
        """Yield events as `AsyncClient.follow` does."""
        return self._iterate(self._client.follow(session_id, after=after, until_result=until_result))

    def iter_sessions(self, **query: Any) -> Iterator[ListedSession]:
        """Yield sessions as `AsyncClient.iter_sessions` does."""
        return self._iterate(self._client.iter_sessions(**query))

    def iter_questions(self, **query: Any) -> Iterator[InboxQuestion]:
        """Yield questions as `AsyncClient.iter_questions` does."""
        return self._iterate(self._client.iter_questions(**query))

    def _iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        ended = object()
        try:
            while (item := self._loop.run(_next(items, ended))) is not ended:
                yield cast("T", item)
        finally:
            self._loop.close_soon(items)

    def _operate(self, endpoint: Endpoint, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._loop.run(self._client._operate(endpoint, args, kwargs))


async def _next(items: AsyncGenerator[T, None], ended: object) -> T | object:
    # A generator belongs to the loop that first iterates over it and later closes it, so `anext` runs here, in that loop.
    return await anext(items, ended)


def _request_of(
    endpoint: Endpoint, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[str, bytes | None, dict[str, str]]:
    """The path with its query, the body and the headers of a request. Raises `OptionsError` for invalid arguments."""
    headers = {"Accept": "application/json, text/event-stream" if endpoint.room == "mcp" else "application/json"}
    if EVENTS in endpoint.answers.values():
        headers["Accept"] = EVENTS
    elif endpoint.room == "page":
        headers["Accept"] = "*/*"
    names = [part for part in endpoint.path.split("/") if part[:1] == "{"]
    count = len(names) + _has_open_body(endpoint)
    if len(args) != count:
        raise OptionsError(f"{endpoint.name}() accepts {plural(count, 'positional argument')}, not {len(args)}")
    path = endpoint.path
    for name, value in zip(names, args, strict=False):
        path = path.replace(name, _segment(value), 1)
    key = kwargs.pop("key", None) if endpoint.has_key else None
    fields = endpoint.query if endpoint.body is None else getattr(endpoint.body, "__annotations__", {})
    if unknown := kwargs.keys() - fields.keys():
        raise OptionsError(f"{endpoint.name}() has no field {min(unknown)!r}: {existing('fields', fields)}")
    body = b"" if endpoint.method == "POST" else None
    if endpoint.body is not None:
        body = json.dumps(args[-1] if _has_open_body(endpoint) else kwargs).encode()
        headers["Content-Type"] = "application/json"
        if endpoint.has_key:
            headers["Idempotency-Key"] = key or token_hex(16)
    else:
        query = {name: _word(value) for name, value in kwargs.items() if value is not None}
        path += f"?{urlencode(query)}" if query else ""
    return path, body, headers


def _has_open_body(endpoint: Endpoint) -> bool:
    """Whether the body is an arbitrary JSON object, defined by another protocol."""
    return endpoint.body is not None and not hasattr(endpoint.body, "__required_keys__")


def _segment(value: Any) -> str:
    # HTTP clients and proxies resolve `.` and `..`, and quoting leaves them as they are.
    if not isinstance(value, str) or value in ("", ".", ".."):
        raise OptionsError(f"{value!r:.100} cannot be part of a path: pass the id as returned by the server")
    return quote(value, safe="")


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _value(kind: Any, value: Any) -> Any:
    """Convert a JSON value to a type of the contract; ignore fields that a newer server added."""
    if get_origin(kind) is list:
        return [_value(get_args(kind)[0], each) for each in value]
    if isinstance(kind, type) and issubclass(kind, Event):
        return event_from_dict(value, strict=False)
    if isinstance(kind, type) and is_dataclass(kind):
        return kind(**{name: _value(hint, value[name]) for name, hint in hints_of(kind).items()})
    return value


def _may_pass(error: RequestRefusedError | ProviderError) -> bool:
    """Whether the same request may succeed if it is sent again."""
    if isinstance(error, RequestRefusedError):
        return error.status in (429, 502, 503, 504) or error.code == "in_progress"
    return isinstance(error, ProviderConnectionError) and error.retryable


def _check_notice(name: str, data: str, *, until_result: bool) -> None:
    """Raise `RequestRefusedError` for the notice `resync` or, with `until_result`, `left`; ignore others.

    After the notice `error` the stream ends, and the next request for it is refused with the reason.
    """
    if name == "resync":
        raise RequestRefusedError(409, "the cursor is after the end of the log", "cursor_beyond_log")
    if name == "left" and until_result:
        raise RequestRefusedError(409, str(json.loads(data).get("message")), "no_run")


def _refusal(status: int, headers: Mapping[str, str], data: bytes) -> RequestRefusedError:
    again = headers.get("retry-after", "")
    again_s = float(again) if again.isascii() and again.isdigit() and len(again) < 7 else None
    try:
        error = json.loads(data)["error"]
        message, code = str(error["message"]), error.get("code")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        message, code = data.decode("utf-8", "replace")[:500] or f"the server answers with {status}", None
    refusal = RequestRefusedError(status, message, code if isinstance(code, str) else "", retry_after_s=again_s)
    refusal.code = refusal.code or code_of(refusal)
    return refusal
