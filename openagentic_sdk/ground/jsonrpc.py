"""JSON-RPC 2.0 between two peers that both send requests, one JSON object per line.

There is no transport here: bytes come in through `Lines`, messages through `Peer.receive`, and a peer is given the function
that sends its output. Input is hostile until checked: lines have a size limit, an invalid message is answered or ignored,
and neither ends the connection. Output is ASCII on one line; a lone surrogate, for which parsers in other languages reject
the whole line, becomes U+FFFD.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from ..errors import InvalidEventError, RpcError
from ..serialization import dumps_json, loads_json, whole_letters
from .frozen import frozen
from .patterns import regex
from .threads import error_words

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32601, -32602, -32603
REQUEST_CANCELLED = -32800
# The reason for which a late answer is passed to `on_stray`.
NO_OPEN_REQUEST = "it answers no open request"
# How many of the other side's requests may be open, and how many of our own answers to it unsent.
MAX_OPEN = 1000

Id = str | int | None
# A JSON object.
Json = dict[str, Any]
Handler = Callable[[str, Mapping[str, Any]], Awaitable[Any]]

# In ASCII JSON: a lone surrogate, high or low.
_HALF_LETTER = regex(r"\\ud[89ab]..(?!\\ud[c-f])|(?<!\\ud[89ab]..)\\ud[c-f]", re.IGNORECASE)


@frozen
class AnswerThen:
    """A handler's result with a follow-up: `then` runs once the answer has been sent."""

    result: Any
    then: Callable[[], Awaitable[None]]


def encode(message: Mapping[str, Any]) -> bytes:
    """Encode the message as one line. Raises `InvalidEventError` for values that JSON cannot express."""
    text = dumps_json(message)
    # A single character is found at a tenth of the cost of three; the expression would take most of the time.
    if "\\" in text and "\\ud" in text and _HALF_LETTER.search(text):
        text = dumps_json(whole_letters(message))
    return text.encode("ascii") + b"\n"


class Lines:
    """A splitter of a byte stream into lines; lines longer than `max_bytes` are discarded."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes | None]:
        """Return the lines completed by these bytes, without line ends and blank lines; None replaces one that was too
        long.
        """
        if not self._size and data.find(b"\n") == len(data) - 1 <= self._max_bytes:
            whole = data.strip(b" \t\r\n")  # one complete line, the most frequent case
            return [whole] if whole else []
        *ends, rest = data.split(b"\n")
        lines: list[bytes | None] = []
        for end in ends:
            self._keep(end)
            line = None if self._size > self._max_bytes else b"".join(self._parts).strip(b" \t\r")
            self._parts, self._size = [], 0
            if line != b"":
                lines.append(line)
        self._keep(rest)
        return lines

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._max_bytes:
            self._parts = []
        elif part:
            self._parts.append(part)


class Peer:
    """One side of a connection. It answers in any order, and accepts the next message without waiting for a handler.

    `send` receives each outgoing line, in the required order, and may block its caller. `on_request` returns a request's
    result or an `AnswerThen`, or raises; `on_notification` is called for notifications. Both are started in the order of
    the messages. `cancel_method` is the notification that cancels a request, in either direction. `on_stray` receives, with
    the reason, each line that is not a message and each answer that nobody awaits; without it, a line that is not a message
    is answered with an error. `read` parses a line, or raises `InvalidEventError`.
    """

    def __init__(
        self,
        send: Callable[[bytes], Awaitable[None]],
        on_request: Handler,
        on_notification: Handler,
        *,
        cancel_method: str = "$/cancel_request",
        on_stray: Callable[[str, bytes], None] | None = None,
        read: Callable[[bytes], Any] = loads_json,
    ) -> None:
        self._send = send
        self._on_request = on_request
        self._on_notification = on_notification
        self._cancel_method = cancel_method
        self._on_stray = on_stray
        self._read = read
        self._last_request_id = 0
        self._waiting: dict[Id, asyncio.Future[Any]] = {}
        self._answering: dict[Id, asyncio.Task[None]] = {}
        self._spawned_tasks: set[asyncio.Task[None]] = set()

    # --- sending -----------------------------------------------------------------------------------------------------

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification, which has no answer."""
        await self._send(encode({"jsonrpc": "2.0", "method": method, "params": params}))

    async def request(self, method: str, params: Mapping[str, Any]) -> Any:
        """Send a request and wait for its result. Raises `RpcError` if the other side refuses or disconnects.

        Cancelling this call sends the cancellation to the other side.
        """
        self._last_request_id += 1
        request_id = self._last_request_id
        answer = self._waiting[request_id] = asyncio.get_running_loop().create_future()
        try:
            await self._send(encode({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}))
            return await answer
        except asyncio.CancelledError:
            self._spawn(self.notify(self._cancel_method, {"requestId": request_id}))
            raise
        finally:
            del self._waiting[request_id]

    # --- receiving ---------------------------------------------------------------------------------------------------

    def receive(self, line: bytes | None) -> None:
        """Process one line from `Lines`; None stands for one that was too long."""
        try:
            message = self._read(line) if line is not None else None
        except InvalidEventError as error:
            self._stray(PARSE_ERROR, str(error), line)
            return
        if line is None:
            self._stray(INVALID_REQUEST, "the line is too long: send less at once", line)
        else:
            self.take(message, line)

    def take(self, message: Any, line: bytes = b"") -> None:
        """Process one parsed message; `line` is its source."""
        if not isinstance(message, dict):
            self._stray(INVALID_REQUEST, "a message must be one JSON object", line)
        elif "method" not in message and ("result" in message or "error" in message):
            if not self._take_answer(message) and self._on_stray is not None:
                self._on_stray(NO_OPEN_REQUEST, line)
        elif not isinstance(message.get("method"), str) or not isinstance(message.get("params", {}), dict | None):
            request_id = message.get("id")
            self._refuse(
                request_id if _is_id(request_id) else None,
                INVALID_REQUEST,
                "method must be a string and params an object",
            )
        elif "id" not in message:
            self._take_notification(message["method"], message.get("params") or {})
        elif not _is_id(message["id"]):
            self._refuse(None, INVALID_REQUEST, "an id must be a string or a whole number")
        elif message["id"] in self._answering:
            # An answer with this id would be mistaken for the answer to the request that uses it.
            self._refuse(None, INVALID_REQUEST, f"id {message['id']!r:.100} is already used by an open request")
        elif len(self._answering) >= MAX_OPEN:
            self._refuse(message["id"], INTERNAL_ERROR, f"{MAX_OPEN} requests are open already: wait for their answers")
        else:
            work = self._answer(message["id"], message["method"], message.get("params") or {})
            task = self._answering[message["id"]] = asyncio.create_task(work)
            # A task that is cancelled before its first step runs none of its code.
            task.add_done_callback(partial(self._forget, message["id"]))

    def fail(self, error: Callable[[], Exception]) -> None:
        """Fail our pending requests with this error, and cancel the handlers of requests from the lost other side."""
        self._fail_waiting(error)
        for task in self._answering.values():
            task.cancel()

    async def close(self) -> None:
        """Fail our pending requests, and wait for the handlers of requests from the other side, which has disconnected."""
        self._fail_waiting(lambda: RpcError(INTERNAL_ERROR, "the connection was closed before the answer came"))
        while tasks := {*self._answering.values(), *self._spawned_tasks} - {asyncio.current_task()}:
            await asyncio.wait(tasks)

    def _fail_waiting(self, error: Callable[[], Exception]) -> None:
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(error())

    def _take_answer(self, message: Mapping[str, Any]) -> bool:
        """Deliver an answer to its request; False if that was cancelled, already answered, or never sent."""
        request_id = message.get("id")
        # Ours are all whole numbers; True would equal 1.
        answer = self._waiting.get(request_id) if request_id.__class__ is int else None
        if answer is None or answer.done():
            return False
        if "result" in message:
            answer.set_result(message["result"])
            return True
        error = message["error"] if isinstance(message["error"], dict) else {}
        code = error.get("code")
        text = str(error.get("message") or "the request failed, and no reason was given")
        answer.set_exception(RpcError(code if isinstance(code, int) else INTERNAL_ERROR, text, error.get("data")))
        return True

    def _take_notification(self, method: str, params: Mapping[str, Any]) -> None:
        if method != self._cancel_method:
            self._spawn(self._hear(method, params))
            return
        cancelled = params.get("requestId")
        task = self._answering.get(cancelled) if _is_id(cancelled) else None
        if task is not None:
            task.cancel()

    async def _hear(self, method: str, params: Mapping[str, Any]) -> None:
        with suppress(Exception):  # a notification is never answered, not even an invalid one
            await self._on_notification(method, params)

    async def _answer(self, request_id: Id, method: str, params: Mapping[str, Any]) -> None:
        then: Callable[[], Awaitable[None]] | None = None
        try:
            result = await self._on_request(method, params)
            if isinstance(result, AnswerThen):
                result, then = result.result, result.then
            line = encode({"jsonrpc": "2.0", "id": request_id, "result": result})
        except asyncio.CancelledError:
            line = _error_line(request_id, REQUEST_CANCELLED, "the request was cancelled")
        except RpcError as error:
            line = _error_line(request_id, error.code, str(error), error.data)
        except Exception as error:  # noqa: BLE001 - a handler's error is an answer and must not end the connection
            line = _error_line(request_id, INTERNAL_ERROR, ": ".join(error_words(error)))
        finally:
            del self._answering[request_id]  # before the answer: the other side may use its id again at once
        await self._send(line)
        if then is not None:
            await then()

    def _forget(self, request_id: Id, task: asyncio.Task[None]) -> None:
        if self._answering.get(request_id) is task:
            del self._answering[request_id]

    def _stray(self, code: int, text: str, line: bytes | None) -> None:
        if self._on_stray is None:
            self._refuse(None, code, text)
        else:
            self._on_stray(text, line or b"")

    def _refuse(self, request_id: Id, code: int, text: str) -> None:
        if len(self._spawned_tasks) < MAX_OPEN:  # otherwise the other side is not reading, and gets no more messages
            self._spawn(self._send(_error_line(request_id, code, text)))
        elif self._on_stray is not None:
            self._on_stray(text, b"")

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._spawned_tasks.add(task)
        task.add_done_callback(self._spawned_tasks.discard)


def _is_id(value: Any) -> bool:
    return value is None or (isinstance(value, str | int) and not isinstance(value, bool))


def _error_line(request_id: Id, code: int, text: str, data: Any = None) -> bytes:
    error = {"code": code, "message": text, **({} if data is None else {"data": data})}
    return encode({"jsonrpc": "2.0", "id": request_id, "error": error})
