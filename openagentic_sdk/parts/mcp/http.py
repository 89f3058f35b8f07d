"""Connect to a server by URL: every message is a POST, and the answer is JSON or an event stream.

Modern servers keep no state between requests, and closing the answer cancels its request. Legacy servers may keep a
session, send their own requests on a separate stream, and resume an answer whose stream broke. The oldest transport
(2024-11-05) has one stream for all answers, which also gives the URL to POST to.

Secrets are sent only in request headers. Redirects are followed only within the origin (`providers.wire.http`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from typing import Any, Protocol
from urllib.parse import urljoin, urlsplit

from ...errors import McpError, OptionsError, ProviderConnectionError, ProviderError, ProviderTimeoutError
from ...ground.backoff import Backoff
from ...ground.jsonrpc import Peer
from ...ground.text import one_line
from ...providers.keys import KeySource
from ...providers.sse import SSEDecoder, SSEEvent
from ...providers.wire.connect import shown_url
from ...providers.wire.http import HttpAnswer, HttpTransport
from ...providers.wire.timeouts import Timeouts
from .http_headers import ParamHeaders, request_headers
from .protocol import MAX_ERROR_CHARS, MODERN, as_batch, read_long_message, read_message
from .server_config import McpServer, mask_secrets

MAX_BODY_BYTES = 64 * 1024 * 1024
_MAX_ERROR_BYTES = 64 * 1024
# Each refusal may lead to a renewal or a login; a server that refuses every token would otherwise repeat that forever.
_MAX_REFUSALS = 3
_MANY_EVENTS = 32
# The server determines how many requests it sends, and each answer to one is a separate POST.
_ANSWERS_AT_ONCE = 8
# How long a server may take to accept a notification or an answer, and how many may be pending; others are not sent.
_ASIDE_S, _MAX_ASIDE = 30.0, 100
# How often a broken stream is resumed, the delay before that if the stream set none, and the bounds of one that it set.
_MAX_BREAKS, _RETRY_S, _MIN_RETRY_S, _MAX_RETRY_S = 2, 1.0, 0.05, 60.0
_STREAM_AGAIN = Backoff(0.1, 30.0)
_MEDIA = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}

# The arguments to repeat in the headers of the request that this task sends.
_copied: ContextVar[ParamHeaders | None] = ContextVar("mcp_param_headers", default=None)


class HttpAuth(Protocol):
    """The authentication of requests to a server.

    `headers` is called before every request; `refused` is called with a 401 or 403 and its challenge, and returns whether
    to send the request again.
    """

    async def headers(self) -> Mapping[str, str]: ...

    async def refused(self, status: int, www_authenticate: str | None) -> bool: ...


class HttpStatusError(McpError):
    """An error for an HTTP error status, if the body contains no JSON-RPC error that counts as the answer."""

    def __init__(self, message: str, *, server: str, status: int) -> None:
        # A server behind a gateway may have acted before the gateway gave up.
        super().__init__(message, server=server, in_flight=status >= 500)
        self.status = status


class SessionGoneError(McpError):
    """An error for a session that the server no longer has; the server has not acted on the request."""


class HttpWire:
    """The connection to a server, established by the first request. The handshake sets `version`."""

    def __init__(
        self,
        name: str,
        settings: McpServer,
        make_peer: Callable[[Callable[[bytes], object]], Peer],
        on_lost: Callable[[McpError], None],
        auth: HttpAuth | None = None,
    ) -> None:
        self.name = name
        self.peer = make_peer(self._send)
        self.version: str | None = None
        self.lost: McpError | None = None
        self._settings = settings
        self._auth = auth
        self._on_lost = on_lost
        self._key = None if settings.token is None else KeySource(settings.token)
        self._url = str(settings.url)
        self._session_id: str | None = None
        self._sent: Mapping[str, str] = {}
        self._listening: asyncio.Task[None] | None = None
        self._post_to: asyncio.Future[str] | None = None
        # Limits how many answers to the server's own requests are sent at once.
        self._answering = asyncio.Semaphore(_ANSWERS_AT_ONCE)
        self._aside: set[asyncio.Task[object]] = set()
        connect_s = min(10.0, settings.connect_timeout_s)
        # `patience` limits each call; unlike a timeout here, it excludes the time that a person takes to answer.
        timeouts = Timeouts(connect_s=connect_s, first_byte_s=None, idle_s=None, total_s=None)
        self._http = HttpTransport(timeouts=timeouts, max_body_bytes=MAX_BODY_BYTES)

    @property
    def is_modern(self) -> bool:
        return self.version in MODERN

    @asynccontextmanager
    async def copying(self, copied: ParamHeaders | None) -> AsyncIterator[None]:
        """During the block, repeat these arguments in the headers of requests."""
        token = _copied.set(copied)
        try:
            yield
        finally:
            _copied.reset(token)

    async def close(self) -> None:
        """End the session, if there is one, and close the connections; errors from the server are ignored."""
        self.lost = self.lost or McpError(f"the connection to {self.name} was closed", server=self.name)
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait({self._listening})
        if self._session_id is not None:
            with suppress(ProviderError, OptionsError, McpError, TimeoutError):
                async with asyncio.timeout(2.0), self._exchange("DELETE", None, {}):
                    pass
        for task in self._aside:
            task.cancel()
        self._http.close()

    # --- one exchange ------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _exchange(
        self, method: str, body: bytes | None, more: Mapping[str, str], url: str | None = None
    ) -> AsyncIterator[HttpAnswer]:
        """Send a request, with a login if required; yield its answer, whatever its status, open during the block."""
        fresh = False
        for _ in range(_MAX_REFUSALS):
            headers = {**self._settings.headers, **await self._credentials(fresh), **more}
            if self._session_id is not None:
                headers["Mcp-Session-Id"] = self._session_id
            if self.version is not None:
                headers["MCP-Protocol-Version"] = self.version
            # Kept for `_masked`: a server's error may repeat the headers of the request.
            self._sent = headers
            answer = await self._http.request(url or self._url, headers, body, method=method)
            try:
                if answer.status in (401, 403) and await self._may_repeat(answer, fresh):
                    fresh = True
                    continue
                yield answer
                return
            finally:
                await answer.aclose()
        raise McpError(f"the server {self.name} refused the login {_MAX_REFUSALS} times", server=self.name)

    async def _credentials(self, fresh: bool) -> Mapping[str, str]:
        if self._auth is not None:
            return await self._auth.headers()
        return {} if self._key is None else {"Authorization": f"Bearer {await self._key.key(fresh=fresh)}"}

    async def _may_repeat(self, answer: HttpAnswer, fresh: bool) -> bool:
        if self._auth is not None:
            return await self._auth.refused(answer.status, answer.headers.get("www-authenticate"))
        return answer.status == 401 and not fresh and self._key is not None and self._key.is_renewable

    async def _send(self, line: bytes) -> None:
        """POST one of our messages.

        For a request, return only when its answer has been passed to the peer, unless the answer comes on the oldest
        transport's stream.

        Raises `McpError` for a request only: a notification or an answer that cannot be sent is dropped.
        """
        message = json.loads(line)
        request_id, method = message.get("id"), message.get("method")
        is_request = method is not None and request_id is not None
        try:
            if self.lost is not None:
                raise self.lost
            if is_request:
                await self._post(line, message, is_request)
            else:
                await self._post_aside(line, message)
        except McpError:
            if is_request:  # a notification has no caller; the next request gets the same error
                raise
        except (ProviderError, OptionsError) as error:
            if is_request:
                raise self._explained(error) from error

    async def _post_aside(self, line: bytes, message: Mapping[str, Any]) -> None:
        """POST a notification or an answer. It is dropped silently if too many are pending, or if the server is too slow."""
        task = asyncio.current_task()
        assert task is not None, "a peer sends in tasks"
        if len(self._aside) >= _MAX_ASIDE:
            return
        self._aside.add(task)
        try:
            async with self._answering, asyncio.timeout(_ASIDE_S):
                await self._post(line, message, False)
        except TimeoutError:
            pass
        finally:
            self._aside.discard(task)

    async def _post(self, line: bytes, message: Mapping[str, Any], is_request: bool) -> None:
        request_id, method = message.get("id"), str(message.get("method"))
        if self._post_to is not None:
            async with self._exchange("POST", line, _MEDIA, await self._post_to) as answer:
                if answer.status >= 400:
                    await self._raise_status(answer)
            return
        if self.is_modern and not is_request:
            return  # a modern server accepts only requests; closing the answer cancels one
        more = dict(_MEDIA)
        if self.is_modern:
            more |= request_headers(method, message.get("params") or {}, _copied.get())
        async with self._exchange("POST", line, more) as answer:
            if is_request:
                await self._read_answer(answer, request_id, method)

    async def _read_answer(self, answer: HttpAnswer, request_id: Any, method: str) -> None:
        if method == "initialize":
            self._session_id = answer.headers.get("mcp-session-id")
        if answer.status == 202:
            raise McpError(f"the server {self.name} accepted a request without answering it (202)", server=self.name)
        if not 200 <= answer.status < 300:
            await self._raise_status(answer, request_id)
            return
        if answer.headers.get("content-type", "").partition(";")[0].strip().lower() == "text/event-stream":
            await self._read_stream(answer, request_id)
            return
        try:
            whole = await read_long_message(bytes(await answer.read_all()))
        except ValueError as error:
            raise self._garbled(f"sent an answer that is not JSON ({error})") from None
        if not self._take(whole, request_id):
            raise self._garbled("sent an answer that does not match the request")

    def _take(self, whole: Any, request_id: Any) -> bool:
        """Pass messages (before 2025-06-18, possibly a list) to the peer; return whether one was the answer."""
        has_answer = False
        for message in as_batch(whole):
            if isinstance(message, dict):
                is_answer = "method" not in message and request_id is not None and message.get("id") == request_id
                has_answer = has_answer or is_answer
                error = message.get("error")
                if isinstance(error, dict):
                    words = str(error.get("message"))[:MAX_ERROR_CHARS]
                    message = {**message, "error": {**error, "message": self._masked(words)}}
                self.peer.take(message)
        return has_answer

    async def _raise_status(self, answer: HttpAnswer, request_id: Any = None) -> None:
        """Pass a JSON-RPC error in the body to the peer as the answer; else raise an error for the status."""
        body = await answer.read_all(_MAX_ERROR_BYTES)
        try:
            message = read_message(body)
        except ValueError:
            message = None
        error = message.get("error") if isinstance(message, dict) else None
        code = error.get("code") if isinstance(error, dict) else None
        text = str(error.get("message")) if isinstance(error, dict) else body.decode("utf-8", "replace")
        about = f"the server {self.name} answered {answer.status}: {one_line(self._masked(text))[:300]}".rstrip(": ")
        # The specification requires 404 for an ended session; servers modelled on the TypeScript SDK answer 400 with
        # -32000.
        is_gone = answer.status == 404 or (answer.status == 400 and (code == -32000 or "session" in text.lower()))
        if self._session_id is not None and is_gone:
            self._session_id = None
            raise SessionGoneError(about, server=self.name)
        # During `initialize`, only MCP's own codes are an answer: with any other, the caller needs the status to decide
        # whether to try the oldest transport.
        if request_id is None or not isinstance(code, int) or (self.version is None and not -32029 <= code <= -32020):
            raise HttpStatusError(about, server=self.name, status=answer.status)
        self._take({"jsonrpc": "2.0", "id": request_id, "error": error}, request_id)

    def _masked(self, text: str) -> str:
        """A server's text without the secrets that were sent to it."""
        credentials = {name: value.rpartition(" ")[2] for name, value in self._sent.items() if name == "Authorization"}
        return mask_secrets(self._settings, text, credentials)

    def _garbled(self, what: str) -> McpError:
        return McpError(f"the server {self.name} {what}", server=self.name, in_flight=True)

    def _explained(self, error: ProviderError | OptionsError) -> McpError:
        """A transport error as an `McpError`; `in_flight` unless the request was certainly not sent."""
        not_sent = isinstance(error, OptionsError) or (
            isinstance(error, ProviderConnectionError) and not error.was_sent
        )
        not_sent = not_sent or (isinstance(error, ProviderTimeoutError) and error.phase == "connect")
        # The transport's messages name the settings of a provider, and a server's entry has other names for them.
        text = str(error).replace("base_url", "its url").replace("api_key", "token")
        return McpError(f"the server {self.name}: {text}", server=self.name, in_flight=not not_sent)

    # --- streams -----------------------------------------------------------------------------------------------------

    async def _read_stream(self, answer: HttpAnswer, request_id: Any) -> None:
        """Read events until the answer has arrived.

        A legacy stream that breaks is resumed after its last event. Raises `McpError` if no answer arrives.
        """
        stream, breaks = SSEDecoder(), 0
        if await self._read_events(answer, stream, request_id):
            return
        while not self.is_modern and stream.last_event_id and breaks < _MAX_BREAKS:
            await asyncio.sleep(_pause_s(stream))
            more = {"Accept": "text/event-stream", "Last-Event-ID": stream.last_event_id}
            stream = _successor(stream)
            try:
                async with self._exchange("GET", None, more) as rest:
                    if rest.status == 200:
                        before = stream.last_event_id
                        if await self._read_events(rest, stream, request_id):
                            return
                        # A server may end each stream on purpose after a few events, so only breaks without a new event
                        # count.
                        breaks = breaks + 1 if stream.last_event_id == before else 0
                        continue
            except (ProviderError, OptionsError, McpError):
                # Counts as a break, like any other: the call itself was sent, whatever is wrong with the id or the login.
                pass
            breaks += 1
        raise self._garbled("closed the stream before it answered")

    async def _read_events(self, answer: HttpAnswer, stream: SSEDecoder, request_id: Any) -> bool:
        """Pass events to the peer; return True as soon as one is the answer, False if the stream ends first."""
        taken = 0
        try:
            while chunks := await answer.read():
                for event in (event for chunk in chunks for event in stream.feed(chunk)):
                    if await self._take_event(event, request_id):
                        return True
                    taken += 1
                    if taken % _MANY_EVENTS == 0:
                        await asyncio.sleep(0)  # a flood of events must not block the event loop
            for event in stream.close():
                if await self._take_event(event, request_id):
                    return True
            return False
        except ProviderConnectionError:
            return False

    async def _take_event(self, event: SSEEvent, request_id: Any) -> bool:
        if not event.data or event.event not in ("", "message"):
            return False
        try:
            return self._take(await read_long_message(event.data.encode("utf-8", "replace")), request_id)
        except ValueError:
            return False  # not a message; the answer may still follow

    def listen(self) -> None:
        """Start to read the stream on which a legacy server sends its own requests and notifications."""
        if (self._listening is None or self._listening.done()) and self._post_to is None:
            self._listening = asyncio.create_task(self._listen(), name=f"mcp stream {self.name}")

    async def _listen(self) -> None:
        stream, breaks, empty = SSEDecoder(), 0, 0
        while breaks <= _MAX_BREAKS:
            more, began_at = {"Accept": "text/event-stream"}, asyncio.get_running_loop().time()
            if stream.last_event_id:
                more["Last-Event-ID"] = stream.last_event_id
            stream = _successor(stream)
            try:
                async with self._exchange("GET", None, more) as answer:
                    if answer.status != 200:
                        return  # usually 405: the server has no such stream
                    await self._read_events(answer, stream, None)
                    breaks = 0
            except (ProviderError, OptionsError, McpError):
                breaks += 1
            # A server that ends each stream immediately is asked less and less often, whatever `retry` it sends.
            is_empty = asyncio.get_running_loop().time() - began_at < _RETRY_S
            empty = empty + 1 if is_empty else 0
            await asyncio.sleep(max(_pause_s(stream), _STREAM_AGAIN.wait_s(empty) if empty > _MAX_BREAKS else 0.0))

    # --- the transport of 2024-11-05 ---------------------------------------------------------------------------------

    async def open_old_stream(self) -> None:
        """GET the stream that gives the URL to POST to, and wait for that URL. Raises `McpError` if it does not arrive."""
        post_to = self._post_to = asyncio.get_running_loop().create_future()
        self._listening = asyncio.create_task(self._read_old_stream(post_to), name=f"mcp stream {self.name}")
        await post_to

    async def _read_old_stream(self, post_to: asyncio.Future[str]) -> None:
        try:
            async with self._exchange("GET", None, {"Accept": "text/event-stream"}) as answer:
                if answer.status != 200:
                    await self._raise_status(answer)
                stream = SSEDecoder()
                taken = 0
                while chunks := await answer.read():
                    for event in (event for chunk in chunks for event in stream.feed(chunk)):
                        if event.event == "endpoint" and not post_to.done():
                            post_to.set_result(self._within_origin(event.data.strip()))
                        else:
                            await self._take_event(event, None)
                        taken += 1
                        if taken % _MANY_EVENTS == 0:
                            await asyncio.sleep(0)
            raise self._garbled("closed its stream")
        except (ProviderError, OptionsError, McpError) as error:
            failure = error if isinstance(error, McpError) else self._explained(error)
            if not post_to.done():
                post_to.set_exception(failure)
            elif self.lost is None:
                self.lost = failure
                self._on_lost(failure)
        finally:
            # Ends the wait for the URL if the stream ended for another reason. Cancelling the future instead would look to
            # whoever waits as if the run had been cancelled.
            if not post_to.done():
                post_to.set_exception(self._garbled("closed its stream"))

    def _within_origin(self, endpoint: str) -> str:
        # The server chooses this URL, and requests to it carry the credentials.
        try:
            url = urljoin(self._url, endpoint)
            ours, theirs = urlsplit(self._url), urlsplit(url)
        except ValueError as error:
            raise McpError(
                f"the server {self.name} expects messages at {endpoint!r:.200}, which is not a URL ({error})",
                server=self.name,
            ) from error
        if (ours.scheme, ours.netloc) != (theirs.scheme, theirs.netloc):
            raise McpError(
                f"the server {self.name} expects messages at {shown_url(url)}, which has another scheme, host or "
                "port: nothing was sent there",
                server=self.name,
            )
        return url


def _pause_s(stream: SSEDecoder) -> float:
    return _RETRY_S if stream.retry_ms is None else min(max(stream.retry_ms / 1000, _MIN_RETRY_S), _MAX_RETRY_S)


def _successor(stream: SSEDecoder) -> SSEDecoder:
    """A decoder for the stream that resumes this one."""
    fresh = SSEDecoder()
    fresh.last_event_id, fresh.retry_ms = stream.last_event_id, stream.retry_ms
    return fresh
