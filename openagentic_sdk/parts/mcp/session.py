"""A session with one server: requests with time limits, the server's own requests, and paginated lists.

The handshake has determined the era (`handshake`). The time limits are in `patience`: the longest silence, which any
progress ends, and the longest total time; waiting for a person to answer the server's question counts towards neither.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from ...errors import McpError, RpcError
from ...ground.backoff import Backoff
from ...ground.frozen import frozen
from ...ground.jsonrpc import METHOD_NOT_FOUND, Peer
from ...ground.loose import as_list, as_mapping
from ...ground.patterns import regex
from ...ground.text import without_hidden
from ...ground.threads import run_in_thread
from .http import HttpWire
from .patience import Patience, PendingRequest
from .protocol import MAX_ERROR_CHARS, MODERN, SERVER_INFO, modern_meta, read_message, size_within
from .questions import MAX_FIELDS, AskText, elicit
from .server_config import McpServer, mask_secrets
from .stdio import StdioWire

# This client's limits, not the protocol's: a hostile server could otherwise list, page and ask without end.
MAX_PAGES = 100
MAX_LISTED = 1000
MAX_ROUNDS = 10
MAX_INSTRUCTIONS_CHARS = 2_000
# In all entries of a list: characters, and eight for each value.
MAX_LISTED_SIZE = 16 * 1024 * 1024
_MEASURED_AT_ONCE = 256 * 1024  # a longer page is measured in a thread
_LISTS = {f"notifications/{kind}/list_changed": kind for kind in ("tools", "prompts", "resources")}

ServerWire = StdioWire | HttpWire
# Receives progress: (done, total or None, message).
OnProgress = Callable[[float, float | None, str], Coroutine[Any, Any, None]]


@frozen
class RequestHooks:
    """The callbacks of a pending request: for its progress, and for questions to a person (None: nobody can be asked)."""

    on_progress: OnProgress | None = None
    ask: AskText | None = None


_SILENT = RequestHooks()
# Servers word this differently and use any code, so the match only adds a hint to the error and decides nothing.
_NOT_HERE = regex(
    r"(not (available|supported|possible)|unsupported|only (available|supported))[^.]{0,80}"
    r"(protocol|era|version|stateless|session|20\d\d-\d\d-\d\d)",
    re.I,
)
_LISTEN_AGAIN = Backoff(1.0, 30.0, factor=5.0)
_ASK_AGAIN = Backoff(0.1, 0.25)

# The request in whose answer the current message arrived: known over HTTP, not over a pipe.
_current: ContextVar[PendingRequest[RequestHooks] | None] = ContextVar("mcp_request", default=None)


@frozen
class InputRound:
    """A call that a modern server answered with questions: the state to send back, the questions, and the round's number."""

    state: Any
    requests: Mapping[str, Any]
    rounds: int


class McpSession:
    """An open session with a server.

    `version`, `capabilities`, `server_info` and `instructions` come from the handshake; `stale` names the lists that have
    changed since they were read.
    """

    def __init__(self, name: str, settings: McpServer, roots: Sequence[str]) -> None:
        self.name = name
        self.settings = settings
        self.version = ""
        self.is_modern = False
        self.capabilities: Mapping[str, Any] = {}
        self.server_info: Mapping[str, Any] = {}
        self.instructions = ""
        self.stale: set[str] = set()
        self.is_stdio = settings.kind == "stdio"
        self.wire: ServerWire | None = None
        self.when_lost: Callable[[], None] = lambda: None
        self._roots = roots
        self._patience = Patience[RequestHooks]()
        self._listening: asyncio.Task[None] | None = None

    @property
    def lost(self) -> McpError | None:
        """The reason why the connection is lost; None if it is not."""
        return McpError(f"{self.name} is not connected", server=self.name) if self.wire is None else self.wire.lost

    def make_peer(self, send: Callable[[bytes], Any]) -> Peer:
        """Create the peer with which a wire exchanges JSON-RPC messages; `send` sends one line."""
        return Peer(
            send,
            self._on_request,
            self._on_notification,
            cancel_method="notifications/cancelled",
            on_stray=self._on_stray,
            read=read_message,
        )

    def on_lost(self, error: McpError) -> None:
        """Fail all pending requests after the connection broke, as ones that may have taken effect; call `when_lost`."""
        if self.wire is not None:
            self.wire.peer.fail(lambda: McpError(str(error), server=self.name, stderr=error.stderr, in_flight=True))
        self.when_lost()

    async def close(self) -> None:
        """End the session and release its resources."""
        self._patience.close()
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait({self._listening})
        if self.wire is not None:
            await self.wire.close()
            self.wire.peer.fail(lambda: McpError(f"{self.name} was closed", server=self.name, in_flight=True))
            await self.wire.peer.close()

    # --- our requests ------------------------------------------------------------------------------------------------

    async def request(self, method: str, params: Mapping[str, Any], hooks: RequestHooks = _SILENT) -> Mapping[str, Any]:
        """Send a request and return its result.

        Raises `McpError`, with `in_flight` if the request may have taken effect. Also raises the errors of a question to a
        person.
        """
        wire = self.wire
        assert wire is not None, "the handshake has not completed"
        if wire.lost is not None:
            raise wire.lost
        settings = self.settings
        waiting = self._patience.begin(hooks, settings.idle_timeout_s, settings.call_timeout_s)
        if self.is_modern or hooks.on_progress is not None:
            meta = modern_meta(self.version) if self.is_modern else {}
            if hooks.on_progress is not None:
                meta["progressToken"] = waiting.token
            params = {**params, "_meta": meta}
        if not self.is_stdio:
            # The answer's stream is read in this context, so that handlers of the server's own requests find the call
            # they belong to.
            _current.set(waiting)
        try:
            result = await wire.peer.request(method, params)
        except asyncio.CancelledError:
            # First, no matter who cancelled: a person must not be asked on behalf of a call that no longer waits.
            await waiting.end_helpers()
            if waiting.was_given_up():
                raise waiting.failure or self._too_late(method, waiting) from None
            raise
        except RpcError as error:
            words = str(error)[:MAX_ERROR_CHARS]
            message = without_hidden(mask_secrets(self.settings, words))[:2000]
            raise McpError(
                f"the server {self.name} returned an error: {message} ({error.code}){self._other_era(error.code, words)}",
                server=self.name,
                code=error.code,
                data=error.data,
            ) from error
        finally:
            self._patience.end(waiting)
        if not isinstance(result, dict):
            raise self._misbehaves(f"answered {method} with something other than an object")
        return result

    def _other_era(self, code: int, words: str) -> str:
        """A hint at the other era if the error suggests that something is unavailable in this one; else empty."""
        if code != METHOD_NOT_FOUND and not _NOT_HERE.search(words):
            return ""
        other = "legacy" if self.is_modern else "modern"
        return f'; the request used {self.version}, and "era": "{other}" in its entry selects the other protocol'

    def _too_late(self, method: str, waiting: PendingRequest[RequestHooks]) -> McpError:
        settings = self.settings
        complaint = f"sent nothing during {method} for {settings.idle_timeout_s:g} s (idle_timeout_s)"
        if asyncio.get_running_loop().time() >= waiting.ends_at:
            complaint = f"did not finish {method} within {settings.call_timeout_s:g} s (call_timeout_s)"
        return self._misbehaves(f"{complaint}, and was asked to stop")

    def _misbehaves(self, what: str) -> McpError:
        return McpError(f"the server {self.name} {what}", server=self.name, in_flight=True)

    def call(
        self, method: str, params: Mapping[str, Any], hooks: RequestHooks, first_round: InputRound | None = None
    ) -> Awaitable[Mapping[str, Any]]:
        """Send a request, and answer the questions that a modern server asks before its result.

        Raises `McpError` for too many questions or an unknown type of result. Also raises the errors of `request`.

        `first_round` continues a call that was left with open questions.
        """
        if not self.is_modern:
            return self.request(method, params, hooks)
        return self._call_in_rounds(method, params, hooks, first_round)

    async def _call_in_rounds(
        self, method: str, params: Mapping[str, Any], hooks: RequestHooks, first_round: InputRound | None
    ) -> Mapping[str, Any]:
        at = first_round
        while True:
            answers = {} if at is None else await self._answers(at, hooks)
            result = await self.request(method, {**params, **answers} if answers else params, hooks)
            kind = result.get("resultType", "complete")
            if kind == "complete":
                return result
            if kind != "input_required":
                raise self._misbehaves(f"returned a result of the unknown type {kind!r:.60}")
            rounds = 1 if at is None else at.rounds + 1
            requests = as_mapping(result.get("inputRequests"))
            if len(requests) > MAX_FIELDS:
                raise self._misbehaves(f"asks {len(requests):,} questions at once, and the limit is {MAX_FIELDS}")
            if rounds > MAX_ROUNDS:
                text = f"the server {self.name} asked {MAX_ROUNDS} times in one call, which is the limit"
                raise McpError(text, server=self.name)
            at = InputRound(result.get("requestState"), requests, rounds)

    async def _answers(self, at: InputRound, hooks: RequestHooks) -> dict[str, Any]:
        """Answer the questions; return the parameters to add to the repeated call: answers by key, and unchanged state."""
        state = {} if at.state is None else {"requestState": at.state}
        if not at.requests:
            await asyncio.sleep(_ASK_AGAIN.wait_s(at.rounds))  # the server only wants the call repeated
            return state
        resumes = {"request_state": at.state, "requests": dict(at.requests), "rounds": at.rounds}
        answers = {}
        for key, question in at.requests.items():
            method, params = as_mapping(question).get("method"), as_mapping(as_mapping(question).get("params"))
            answers[key] = await self._answer(str(method), params, hooks.ask, resumes)
        return {**state, "inputResponses": answers}

    # --- the server's requests ---------------------------------------------------------------------------------------

    async def _on_request(self, method: str, params: Mapping[str, Any]) -> Any:
        if method == "ping":
            return {}
        # Over a pipe, a server's request has no reference to a call: use the newest one that can ask a person.
        asking = [waiting for waiting in self._patience.open.values() if waiting.about.ask is not None]
        tied = _current.get()
        current = tied if tied in asking else asking[-1] if asking else None
        if current is None:
            return await self._answer(method, params, None, None)
        now, task = asyncio.get_running_loop().time, asyncio.current_task()
        assert task is not None, "a peer answers in tasks"
        current.helpers.add(task)
        current.pause(now())
        try:
            return await current.inside(self._answer(method, params, current.about.ask, None))
        except RpcError:
            raise
        except Exception as error:  # parking or a failing store must reach the tool's caller
            current.give_up(error)
            raise
        finally:
            current.go_on(now())
            current.helpers.discard(task)

    async def _answer(self, method: str, params: Mapping[str, Any], ask: AskText | None, resumes: Any) -> Any:
        if method == "roots/list":
            return {"roots": [{"uri": Path(root).as_uri(), "name": Path(root).name} for root in self._roots]}
        if method == "elicitation/create":
            return await elicit(self.name, params, ask, resumes)
        raise RpcError(METHOD_NOT_FOUND, f"this client has no {method}")

    async def _on_notification(self, method: str, params: Mapping[str, Any]) -> None:
        if method in _LISTS:
            self.stale.add(_LISTS[method])
        if method != "notifications/progress":
            return
        token = params.get("progressToken")
        pending = self._patience.open.get(token) if isinstance(token, int) else None
        if pending is None:
            return
        pending.hear(asyncio.get_running_loop().time())
        done, total, text = params.get("progress"), params.get("total"), params.get("message")
        if pending.about.on_progress is not None and isinstance(done, int | float):
            message = without_hidden(text)[:500] if isinstance(text, str) else ""
            total = total if isinstance(total, int | float) else None
            await pending.inside(pending.about.on_progress(done, total, message))

    def _on_stray(self, reason: str, line: bytes) -> None:
        if isinstance(self.wire, StdioWire):
            self.wire.take_stray(reason, line)

    def listen(self) -> None:
        """Listen for list changes: on a legacy HTTP server's stream or, if a modern server offers it, by an open request."""
        wire = self.wire
        subscriptions = {
            f"{kind}ListChanged": True
            for kind in _LISTS.values()
            if as_mapping(self.capabilities.get(kind)).get("listChanged") is True
        }
        if isinstance(wire, HttpWire) and not self.is_modern:
            wire.listen()
        elif self.is_modern and subscriptions and wire is not None:
            params = {"notifications": subscriptions, "_meta": modern_meta(self.version)}
            self._listening = asyncio.create_task(self._listen(wire, params), name=f"mcp changes {self.name}")

    async def _listen(self, wire: ServerWire, params: Mapping[str, Any]) -> None:
        """Keep a request for list changes open; if the server ends it, repeat it twice, and stop at an error."""
        for pause_s in islice(_LISTEN_AGAIN.waits(), 3):
            try:
                await wire.peer.request("subscriptions/listen", params)
            except (RpcError, McpError):
                return  # lists are read again when needed anyway
            await asyncio.sleep(pause_s)

    # --- lists -------------------------------------------------------------------------------------------------------

    async def list_all(self, method: str, member: str) -> tuple[list[Any], str]:
        """Request a paginated list; return up to `MAX_LISTED` entries, and why they are incomplete ("" if complete).

        Raises `McpError` if the first page fails.
        """
        entries: list[Any] = []
        cursors: set[str] = set()
        params: dict[str, Any] = {}
        room = MAX_LISTED_SIZE
        for page in range(MAX_PAGES):
            try:
                result = await self.request(method, params)
            except McpError as error:
                if page == 0:
                    raise
                return entries, f"page {page + 1} of {method} did not arrive: {error}"
            listed = as_list(result.get(member))[: MAX_LISTED + 1]
            measure = partial(_fitting, listed, room)
            is_long = size_within(listed, _MEASURED_AT_ONCE) is None
            fitting, room = await run_in_thread(measure, name="openagentic-mcp-read") if is_long else measure()
            entries += fitting
            if len(fitting) < len(listed):
                return entries, f"{method} returned more than {MAX_LISTED_SIZE:,} characters: the rest is omitted"
            if len(entries) > MAX_LISTED:
                return entries[:MAX_LISTED], f"{method} returned more than {MAX_LISTED} entries: the rest is omitted"
            cursor = result.get("nextCursor")
            if not isinstance(cursor, str):  # an empty string is a valid cursor
                return entries, ""
            if cursor in cursors:
                return entries, f"{method} does not end: it returned the cursor {cursor!r:.60} twice"
            cursors.add(cursor)
            params = {"cursor": cursor}
        return entries, f"{method} has more than {MAX_PAGES} pages: the rest is omitted"

    def introduced(self, version: str, result: Mapping[str, Any]) -> None:
        """Use this version from now on, and store the server's description of itself."""
        self.version, self.is_modern = version, version in MODERN
        if isinstance(self.wire, HttpWire):
            self.wire.version = version
        self.capabilities = as_mapping(result.get("capabilities"))
        # Legacy servers describe themselves in the result, modern ones in its `_meta`.
        server_info = result.get("serverInfo") or as_mapping(result.get("_meta")).get(SERVER_INFO)
        self.server_info = {
            key: without_hidden(value)[:200]
            for key, value in as_mapping(server_info).items()
            if key in ("name", "version", "title") and isinstance(value, str)
        }
        self.instructions = result["instructions"] if isinstance(result.get("instructions"), str) else ""


def _fitting(entries: Sequence[Any], room: int) -> tuple[Sequence[Any], int]:
    """The first entries that fit into `room` (as measured by `size_within`), and the room that they leave."""
    for count, entry in enumerate(entries):
        size = size_within(entry, room)
        if size is None:
            return entries[:count], room
        room -= size
    return entries, room
