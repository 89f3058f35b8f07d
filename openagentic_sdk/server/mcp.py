"""An MCP server for a desk: the five tools of `mcp_tools`, for modern and legacy clients, over HTTP and (`mcp_stdio`) stdio.

No state is kept between requests: a modern request is self-contained, and a legacy client's `initialize` is remembered only
if there is a connection to remember it for. All input is validated before anything is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ..errors import OpenAgentSdkError, RequestRefusedError, RpcError
from ..ground.frozen import frozen
from ..ground.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, encode
from ..ground.loose import as_mapping
from ..ground.threads import error_words
from ..parts.mcp.http_headers import NAMED_BY, decode_header_value
from ..parts.mcp.protocol import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    HEADER_MISMATCH,
    LEGACY,
    MODERN,
    OURSELVES,
    PROTOCOL_VERSION,
    SERVER_INFO,
    UNSUPPORTED_VERSION,
)
from .call import COMMENT_S, EventStream, HttpCall
from .desk import Desk
from .guard import Principal
from .mcp_tools import WAIT_S, AskClient, Caller, InputRequired, RunTools

MAX_OPEN_CALLS = 32

_CAPABILITIES: Mapping[str, Any] = {"tools": {}}
_INSTRUCTIONS = (
    "Agents that work on their own: run_agent starts one and returns its answer. A run that takes longer than the call "
    "continues after it; show_session shows its state."
)
# The tools depend on the served agents, which change only when the process restarts.
_FRESH = {"ttlMs": 300_000, "cacheScope": "private"}
_MAX_PROGRESS_CHARS = 500

Say = Callable[[str, Mapping[str, Any]], Awaitable[None]]


@frozen
class McpCaller:
    """The sender of a request. `say` sends it a notification about the request, `ask` a request of ours (legacy).

    Each is None if there is no channel for it. `capabilities` are those that a legacy client announced.
    """

    who: Principal
    say: Say | None = None
    ask: AskClient | None = None
    capabilities: Mapping[str, Any] | None = None


class Face:
    """The server's side of MCP, for any number of clients of one desk. A tool call waits `wait_s` seconds for a run."""

    def __init__(self, desk: Desk, *, wait_s: float = WAIT_S) -> None:
        self._tools = RunTools(desk, wait_s=wait_s)
        self._open_calls = 0

    async def answer(self, method: str, params: Mapping[str, Any], client: McpCaller) -> dict[str, Any]:
        """Handle a request and return its result. Raises `RpcError`, including for errors of this library."""
        try:
            if is_modern(params):
                return await self._answer_modern(method, params, client)
            if method == "initialize":
                client_version = params.get("protocolVersion")
                # Answer an unknown version with our newest legacy one; the client decides (2025-11-25, basic/lifecycle).
                version = client_version if client_version in LEGACY else LEGACY[0]
                about = {"capabilities": _CAPABILITIES, "serverInfo": OURSELVES, "instructions": _INSTRUCTIONS}
                return {"protocolVersion": version, **about}
            if method == "ping":
                return {}
            if method == "tools/list":
                return {"tools": self._tools.definitions()}
            if method != "tools/call":
                raise RpcError(METHOD_NOT_FOUND, f"unknown method {method!r:.100}")
            ask = client.ask if can_elicit(client.capabilities) else None
            # Over HTTP, a legacy client that disconnects has not cancelled (2025-11-25, basic/transports).
            can_cancel = client.ask is not None
            caller = Caller(client.who, _tell(as_mapping(params.get("_meta")), client.say), ask, can_cancel=can_cancel)
            return await self._call(params, caller)
        except RequestRefusedError as error:
            wait = None if error.retry_after_s is None else {"retryAfter": error.retry_after_s}
            raise RpcError(INVALID_REQUEST, str(error), wait) from error
        except RpcError:
            raise
        except OpenAgentSdkError as error:
            raise RpcError(INTERNAL_ERROR, ": ".join(error_words(error))) from error

    async def _answer_modern(self, method: str, params: Mapping[str, Any], client: McpCaller) -> dict[str, Any]:
        """Handle a modern request and return its result, or a request for the inputs that it needs."""
        meta = read_meta(params)
        common = {"resultType": "complete", "_meta": {SERVER_INFO: OURSELVES}}
        if method == "server/discover":
            about = {
                "supportedVersions": [*MODERN, *LEGACY],
                "capabilities": _CAPABILITIES,
                "instructions": _INSTRUCTIONS,
            }
            return {**common, **about, **_FRESH}
        if method == "tools/list":
            return {**common, "tools": self._tools.definitions(), **_FRESH}
        if method != "tools/call":
            raise RpcError(METHOD_NOT_FOUND, f"unknown method {method!r:.100}")
        capabilities = meta[CLIENT_CAPABILITIES]
        inputs = params.get("inputResponses")
        if inputs is not None and not isinstance(inputs, Mapping):
            raise RpcError(INVALID_PARAMS, f"inputResponses must be an object, not {inputs!r:.100}")
        can_repeat = can_elicit(capabilities)
        caller = Caller(client.who, _tell(meta, client.say), can_repeat=can_repeat, inputs=inputs, can_cancel=True)
        try:
            return {**common, **await self._call(params, caller)}
        except InputRequired as needed:
            return {**common, "resultType": "input_required", "inputRequests": needed.requests}

    async def _call(self, params: Mapping[str, Any], caller: Caller) -> dict[str, Any]:
        name, arguments = params.get("name"), params.get("arguments")
        if not isinstance(name, str) or not isinstance(arguments, Mapping | None):
            raise RpcError(INVALID_PARAMS, "a call must have a name, and its arguments, if any, must be an object")
        if self._open_calls >= MAX_OPEN_CALLS:
            raise RpcError(INTERNAL_ERROR, f"{MAX_OPEN_CALLS} calls are already open: wait until one of them ends")
        self._open_calls += 1
        try:
            return await self._tools.call(name, arguments or {}, caller)
        finally:
            self._open_calls -= 1


def is_modern(params: Mapping[str, Any]) -> bool:
    """Whether a request is self-contained: its `_meta` states the protocol version, the client or its capabilities."""
    meta = as_mapping(params.get("_meta"))
    return any(name in meta for name in (PROTOCOL_VERSION, CLIENT_CAPABILITIES, CLIENT_INFO))


def read_meta(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a modern request's `_meta`. Raises `RpcError` if it is incomplete or names an unsupported version."""
    meta = as_mapping(params.get("_meta"))
    version = meta.get(PROTOCOL_VERSION)
    if not isinstance(version, str) or not isinstance(meta.get(CLIENT_CAPABILITIES), Mapping):
        raise RpcError(INVALID_PARAMS, f"_meta must contain {PROTOCOL_VERSION} and {CLIENT_CAPABILITIES}")
    if version not in MODERN:
        data = {"supported": [*MODERN, *LEGACY], "requested": version[:100]}
        raise RpcError(UNSUPPORTED_VERSION, f"protocol version {version[:100]!r} is not supported", data)
    return meta


def can_elicit(capabilities: Any) -> bool:
    """Whether a client can show a form to its user; an empty capability means forms (2025-11-25, elicitation)."""
    elicitation = as_mapping(capabilities).get("elicitation")
    return isinstance(elicitation, Mapping) and (not elicitation or "form" in elicitation)


def _tell(meta: Mapping[str, Any], say: Say | None) -> Callable[[str], Awaitable[None]] | None:
    """Return a function that reports progress; None if the client sent no progress token or cannot be notified."""
    token = meta.get("progressToken")
    if say is None or not isinstance(token, str | int) or isinstance(token, bool):
        return None
    steps = 0

    async def tell(line: str) -> None:
        nonlocal steps
        steps += 1
        progress = {"progressToken": token, "progress": steps, "message": line[:_MAX_PROGRESS_CHARS]}
        await say("notifications/progress", progress)

    return tell


# --- over HTTP -------------------------------------------------------------------------------------------------------


async def serve_http(call: HttpCall, desk: Desk) -> None:
    """Answer one POST to the MCP endpoint. The caller has checked the principal, the origin and the size.

    MCP sessions, and streams that no request started, do not exist here, so GET and DELETE are not supported.
    """
    message, accepted = await call.json(), call.header("accept") or ""
    if "application/json" not in accepted or "text/event-stream" not in accepted:
        await _refuse(
            call, 406, None, INVALID_REQUEST, "the header Accept must name application/json and text/event-stream"
        )
        return
    if not isinstance(message, Mapping) or not isinstance(message.get("method"), str):
        if isinstance(message, Mapping) and ("result" in message or "error" in message):
            await call.reply(202)  # the response to a request that this server cannot have sent
            return
        await _refuse(call, 400, None, INVALID_REQUEST, "the body must be one JSON-RPC request")
        return
    request_id, params = message.get("id"), message.get("params", {})
    if "id" not in message:
        await call.reply(202)
    elif not isinstance(request_id, str | int) or isinstance(request_id, bool) or not isinstance(params, Mapping):
        await _refuse(
            call, 400, None, INVALID_REQUEST, "an id must be a string or a whole number, and params must be an object"
        )
    else:
        await _answer_http(call, Face(desk, wait_s=WAIT_S), request_id, message["method"], params)


async def _answer_http(
    call: HttpCall, face: Face, request_id: str | int, method: str, params: Mapping[str, Any]
) -> None:
    """Answer a tool call with a stream, and any other request with JSON."""
    version = call.header("mcp-protocol-version")
    speaks_modern = is_modern(params) or (version is not None and version not in LEGACY)
    try:
        if speaks_modern:
            # A modern request repeats parts of its body in headers, for gateways that route by them.
            stated_version = as_mapping(params.get("_meta")).get(PROTOCOL_VERSION)
            expected_headers = {"mcp-protocol-version": stated_version, "mcp-method": method}
            member = NAMED_BY.get(method)
            if member is not None:
                expected_headers["mcp-name"] = params.get(member)
            if stated_version is None and version in MODERN:
                read_meta(params)  # raises an error that names what is missing
            for name, value in expected_headers.items():
                actual = call.header(name)
                if actual is None or value is None or decode_header_value(actual) != value:
                    raise RpcError(HEADER_MISMATCH, f"the header {name} must be present and match the body")
            read_meta(params)
        if method != "tools/call":
            result = await face.answer(method, params, McpCaller(call.principal))
            await call.reply(200, {"jsonrpc": "2.0", "id": request_id, "result": result})
            return
    except RpcError as error:
        # Legacy clients treat any other status as a failure of the transport, and do not read the error.
        status = {METHOD_NOT_FOUND: 404, INTERNAL_ERROR: 500}.get(error.code, 400) if speaks_modern else 200
        await _refuse(call, status, request_id, error.code, str(error), error.data)
        return
    async with await call.stream() as stream:
        await _stream_call(stream, face, call.principal, request_id, params)


async def _stream_call(
    stream: EventStream, face: Face, who: Principal, request_id: str | int, params: Mapping[str, Any]
) -> None:
    """Stream a call's progress and its result. A disconnection ends the wait; for the run, see `Caller.can_cancel`."""
    # Progress, comments and the result are sent by different tasks: none may begin inside another's event.
    turn = asyncio.Lock()

    async def send(message: Mapping[str, Any]) -> None:
        async with turn:
            await stream.send(b"event: message\ndata: " + encode(message) + b"\n")

    async def say(method: str, content: Mapping[str, Any]) -> None:
        await send({"jsonrpc": "2.0", "method": method, "params": content})

    work = asyncio.create_task(face.answer("tools/call", params, McpCaller(who, say)))

    def leave() -> None:
        work.cancel()

    stream.when_gone(leave)
    try:
        while not (await asyncio.wait({work}, timeout=COMMENT_S))[0]:
            async with turn:
                await stream.send(b":\n\n")
        if not work.cancelled():
            await send({"jsonrpc": "2.0", "id": request_id, **_outcome(work)})
    finally:
        work.cancel()


def _outcome(work: asyncio.Task[dict[str, Any]]) -> dict[str, Any]:
    error = work.exception()
    if error is None:
        return {"result": work.result()}
    code = error.code if isinstance(error, RpcError) else INTERNAL_ERROR
    text = ": ".join(error_words(error)) if code == INTERNAL_ERROR else str(error)
    return {"error": _error(code, text, error.data if isinstance(error, RpcError) else None)}


def _error(code: int, text: str, data: Any) -> dict[str, Any]:
    return {"code": code, "message": text, **({} if data is None else {"data": data})}


async def _refuse(
    call: HttpCall, status: int, request_id: str | int | None, code: int, text: str, data: Any = None
) -> None:
    await call.reply(status, {"jsonrpc": "2.0", "id": request_id, "error": _error(code, text, data)})
