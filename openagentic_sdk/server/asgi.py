"""The ASGI application: authorize a request, find its route, and turn errors into responses.

It runs under any ASGI server, including the small one of this package. A server that shuts down waits for open responses,
and a stream may stay open for a long time. The application therefore handles termination signals too, and ends its streams.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from types import FrameType
from typing import Any

from ..agents import Agents
from ..errors import OptionsError, RequestRefusedError
from ..ground.signals import handled_signals
from ..ground.threads import running_loop
from ..options import OpenAgenticOptions
from ..sessions.base import SessionStore
from ..sessions.stores.locate import open_store
from .call import MAX_BODY_BYTES, PROTECTION, HttpCall
from .connection import TRUSTED, AsgiScope, Receive, Send
from .contract.refusals import REFUSALS, error_body, refusal_of
from .contract.table import ENDPOINTS, Endpoint
from .desk import GRACE_S, MAX_RUNS, Desk, rate_headers
from .guard import Auth, Guard, Principal, read_token
from .operations.journal import Journal, ServedRequest
from .operations.webhooks import WATCH_S, Webhooks, WebhookTarget, poster
from .projections import PROJECTED
from .routes import NATIVE, Office, cursor_of, post, read_query
from .streams import NO_TOKEN, EventLines, Socket

HANDLERS = {**NATIVE, **PROJECTED}
# The routes of each path, by method. They are indexed by the number of segments and the first segment.
_PATHS: dict[tuple[int, str | None], list[tuple[tuple[str | None, ...], dict[str, Endpoint]]]] = {}
for _endpoint in ENDPOINTS:
    _paths = _PATHS.setdefault((len(_endpoint.parts), _endpoint.parts[0] if _endpoint.parts else None), [])
    _methods = next((methods for parts, methods in _paths if parts == _endpoint.parts), None)
    if _methods is None:
        _paths.append((_endpoint.parts, _methods := {}))
    _methods[_endpoint.method] = _endpoint
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Application:
    """The ASGI application that `app` returns. `desk` owns the runs, `guard` authorizes requests."""

    def __init__(
        self, desk: Desk, guard: Guard, journal: Journal, *, grace_s: float, notice_s: float, max_body_bytes: int
    ) -> None:
        self.desk = desk
        self.guard = guard
        self.journal = journal
        desk.on_stop = self._run_stopped
        self.webhooks: Webhooks | None = None
        self._office = Office(desk, guard, EventLines(), journal)
        self._notice_s = notice_s
        self._grace_s = grace_s
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        running_loop("this server")
        if scope["type"] == "lifespan":
            await receive()  # lifespan.startup
            async with self.lifespan():
                await send({"type": "lifespan.startup.complete"})
                await receive()  # lifespan.shutdown
            await send({"type": "lifespan.shutdown.complete"})
        elif scope["type"] == "websocket":
            await self._serve_socket(scope, receive, send)
        else:
            await self._serve(scope, receive, send)

    # --- HTTP ----------------------------------------------------------------------------------------------------------

    async def _serve(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        call, request = HttpCall(scope, receive, send, self._max_body_bytes), self.journal.begin(scope)
        call.more_headers.append((b"x-request-id", request.id.encode()))
        try:
            await self._route(call, request)
        except REFUSALS as error:
            if call.has_begun:
                return
            status, _, headers = refusal_of(error)
            more = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
            await call.reply(status, error_body(error), {**headers, **more})
        except (OSError, TimeoutError):
            # The client has disconnected or does not read: it resumes later where it stopped.
            return
        except Exception:
            request.status = 500  # reported and answered with 500 by the ASGI server
            raise
        finally:
            request.status = call.status or request.status
            self.journal.end(request)

    async def _route(self, call: HttpCall, request: ServedRequest) -> None:
        """Authorize a request and run its handler. Raises one of `REFUSALS`."""
        # Checked first: under a foreign Host or Origin (DNS rebinding, another site's page), every path is refused alike.
        foreign = self.guard.check_source(call.scope)
        if foreign is not None:
            call.more_headers += [(b"access-control-allow-origin", foreign.encode()), (b"vary", b"origin")]
        call.read_target()
        routes = find_routes(call.parts)
        if call.method == "OPTIONS":
            if not routes:
                raise RequestRefusedError(404, "nothing is served at this path")
            methods = ", ".join(routes)
            allowed = {"Allow": methods}
            if foreign is not None:
                header_names = "authorization, content-type, idempotency-key, last-event-id"
                allowed |= {"Access-Control-Allow-Methods": methods, "Access-Control-Allow-Headers": header_names}
            return await call.reply(204, headers=allowed)
        # Also for paths without routes: a client without the token must not learn which paths exist.
        if not any(endpoint.is_open for endpoint in routes.values()):
            principal = await self.guard.find_principal(call.scope, foreign)
            if principal is None:
                raise RequestRefusedError(401, "send the token of this server in the header Authorization: Bearer ...")
            call.principal = principal
            request.who, request.tenant = principal.name, principal.tenant
        endpoint = routes.get("GET" if call.method == "HEAD" else call.method)
        if endpoint is None and routes:
            return await call.reply(
                405,
                error_body(RequestRefusedError(405, "the method is not supported for this path")),
                {"Allow": ", ".join(routes)},
            )
        if endpoint is None:
            raise RequestRefusedError(404, _not_served(call.parts))
        request.route = endpoint.name
        if call.method == "POST":
            call.check_kind(may_be_empty=endpoint.body is None)
            limits = rate_headers(self.desk)
            call.more_headers += [(name.lower().encode(), value.encode()) for name, value in limits.items()]
        if endpoint.query:
            call.query_values = read_query(endpoint.query, call.query)
        await HANDLERS[endpoint.name](call, self._office)

    # --- WebSocket -----------------------------------------------------------------------------------------------------

    async def _serve_socket(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        await receive()  # websocket.connect
        request = self.journal.begin(scope)
        try:
            request.route, request.status = "follow", 101
            await self._open_socket(scope, receive, send, request)
        except REFUSALS as error:
            request.status = refusal_of(error)[0]
            if "websocket.http.response" not in (scope.get("extensions") or {}):
                await send({"type": "websocket.close", "code": 1008})  # the ASGI server answers 403
                return
            status, message, _ = refusal_of(error)
            headers = [*PROTECTION, (b"content-type", b"text/plain; charset=utf-8")]
            await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
            await send({"type": "websocket.http.response.body", "body": f"{message}\n".encode()})
        except (OSError, TimeoutError):
            return
        finally:
            self.journal.end(request, "websocket")

    async def _open_socket(self, scope: AsgiScope, receive: Receive, send: Send, request: ServedRequest) -> None:
        """Authorize a WebSocket by its headers or its first message, and serve it."""
        foreign = self.guard.check_source(scope)
        call = HttpCall(scope, receive, send)
        call.read_target()
        match call.parts:
            case ("v1", "sessions", session_id, "events"):
                after_seq = cursor_of(call)
            case _:
                raise RequestRefusedError(404, "no WebSocket is served at this path")
        principal = await self.guard.find_principal(scope, foreign)
        is_told = principal is not None and TRUSTED in (scope.get("extensions") or {})
        await send({"type": "websocket.accept", **({TRUSTED: True} if is_told else {})})
        socket = Socket(receive, send, self.desk, self._office.lines)
        if principal is None:
            token = await socket.receive_token()
            principal = None if token is None else await self.guard.find_by_token(scope, token)
        if principal is None:
            return await socket.close(NO_TOKEN, 'send {"type": "auth", "token": ...} first')
        request.who, request.tenant = principal.name, principal.tenant
        await socket.serve(principal, session_id, after_seq, partial(self._post, scope))

    async def _post(
        self, scope: AsgiScope, who: Principal, session_id: str, action: str, body: Any, key: str | None
    ) -> tuple[int, Any]:
        """Handle a message posted over a WebSocket as a separate request."""
        request = self.journal.begin({**scope, "type": "message", "path": f"/v1/sessions/{session_id}/{action}"})
        request.route, request.who, request.tenant = "post", who.name, who.tenant
        try:
            request.status, answer = await post(self._office, who, session_id, action, body, key)
        finally:
            self.journal.end(request, "message")
        return request.status, answer

    def _run_stopped(self, session_id: str, stop_reason: str, error: str | None) -> None:
        self.journal.run_ended(session_id, stop_reason, error)
        if self.webhooks is not None:
            self.webhooks.notice(session_id)

    async def _drain(self) -> None:
        """Accept no more prompts; after `notice_s` seconds, in which `/ready` shows this, suspend the runs."""
        self.desk.stop_taking()
        self.journal.note("drain", state="begins")
        await asyncio.sleep(self._notice_s)
        await self.desk.drain(self._grace_s)
        self.journal.note("drain", state="ends")

    # --- lifespan ------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def lifespan(self, host: object = None) -> AsyncGenerator[None, None]:
        """Run this application during the block: for another application that mounts it.

        ASGI servers send lifespan events only to the outermost application. Pass `FastAPI(lifespan=agents.lifespan)`, or
        enter this context in a lifespan of your own: `async with agents.lifespan():`.
        """
        self.desk.open()
        loop = asyncio.get_running_loop()

        def end_streams(number: int, frame: FrameType | None) -> None:
            loop.call_soon_threadsafe(self.desk.stop_taking)
            if callable(server_handler := server_handlers.get(number)):
                server_handler(number, frame)

        with handled_signals(SIGNALS, end_streams) as server_handlers:
            if self.webhooks is not None:
                await self.webhooks.start()
            try:
                yield
            finally:
                await self._drain()
                if self.webhooks is not None:
                    await self.webhooks.close()


def find_routes(parts: tuple[str, ...]) -> dict[str, Endpoint]:
    """The routes of a path by method; empty for an unknown path."""
    for pattern, routes in _PATHS.get((len(parts), parts[0] if parts else None), ()):
        if all(segment in (None, part) for segment, part in zip(pattern, parts, strict=True)):
            return routes
    return {}


def _not_served(parts: tuple[str, ...]) -> str:
    """The error message for a path without routes."""
    if parts[-2:] == ("chat", "completions"):
        return (
            "Chat Completions is not served: use the Responses API (POST /v1/responses), which the same clients support"
        )
    return "nothing is served at this path: GET /openapi.json lists the routes"


def app(
    agents: Agents | Mapping[str, OpenAgenticOptions] | None,
    *,
    store: SessionStore | str | None = None,
    auth: Auth | str | None = None,
    hosts: Iterable[str] = (),
    origins: Iterable[str] = (),
    max_runs: int = MAX_RUNS,
    max_body_bytes: int = MAX_BODY_BYTES,
    grace_s: float = GRACE_S,
    in_fleet: bool = False,
    problem: str = "",
    notice_s: float = 0.0,
    journal: Journal | None = None,
    webhooks: Sequence[WebhookTarget] = (),
    webhook_hosts: Iterable[str] = (),
) -> Application:
    """Return the application that serves these agents with a store, or with the one that `open_store(store)` opens.

    agents          the agents that clients may start; with None, sessions can only be viewed
    auth            the token, or a sync or async function from the ASGI scope to a `Principal`, or to None to refuse;
                    None selects the token of this installation, see `guard.read_token`
    hosts           names by which clients reach the server, as in the header `Host`; its own address is always valid
    origins         other origins whose pages may send requests, with a token
    max_runs        the maximum number of simultaneous runs in this process; more are refused with status 429
    max_body_bytes  the maximum size of a request body
    grace_s         seconds that runs have at shutdown to finish their step before they are suspended
    in_fleet        whether runs are queued in the store's database for `openagentic-sdk fleet work` instead of running here
    problem         why there are no agents: the message for clients that try to start one
    notice_s        seconds at shutdown in which `/ready` returns 503 while requests are still answered
    webhooks        receivers of notices about sessions that wait, ended or failed
    webhook_hosts   hosts of `webhooks` that may be in private networks
    journal         the log with a line per request, and the counts in `/metrics` (default: only the counts)

    Raises `OptionsError`, including for an agent whose project folder does not exist (not with `in_fleet`).
    """
    registry = Agents(agents) if agents is not None and not isinstance(agents, Agents) else agents
    for name, agent in () if registry is None or in_fleet else registry.items():
        folder = agent.made().working_dir()
        if not folder.is_dir():
            raise OptionsError(f"the project folder of agent {name!r} does not exist: {str(folder)!r}")
    opened = store if isinstance(store, SessionStore) else open_store(store)
    guard = Guard(read_token() if auth is None else auth, hosts=hosts, origins=origins)
    desk = _fleet_desk(opened, registry) if in_fleet else Desk(registry, opened, max_runs=max_runs, problem=problem)
    journal = journal or Journal()
    application = Application(desk, guard, journal, grace_s=grace_s, notice_s=notice_s, max_body_bytes=max_body_bytes)
    if webhooks:
        post = poster(tuple(webhook_hosts))
        application.webhooks = Webhooks(opened, webhooks, journal, post=post, watch_s=WATCH_S if in_fleet else None)
    return application


def _fleet_desk(store: SessionStore, agents: Agents | None) -> Desk:
    from ..fleet.fleet import Fleet
    from .fleet_desk import FleetDesk

    return FleetDesk(Fleet(store, agents))
