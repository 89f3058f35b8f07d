"""The native protocol: sessions, their events and what can be posted to them, below `/v1`; and the pages for people.

Everything else that this server speaks is a projection of it. The table at the end has every route.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from ..errors import (
    AgentNotFoundError,
    ConcurrencyError,
    FleetStoreError,
    InvalidEventError,
    OptionsError,
    QuestionOpenError,
    RequestConflictError,
    RequestRefusedError,
    RoomMissingError,
    SessionExistsError,
    SessionLockedError,
    SessionNotFoundError,
    StorageError,
)
from ..ground.checks import COUNT, TEXT, Check, check_settings, is_a
from ..ground.frozen import frozen
from ..kernel.recorder import off_loop
from ..serialization import event_to_dict
from ..sessions.folds.summary import SessionSummary
from ..sessions.stores.tables import tables_of
from .call import HttpCall
from .desk import MAX_ROWS, Desk
from .guard import Guard, Principal
from .streams import EventLines, send_events

MAX_PAGE_EVENTS = 1000
MAX_PAGE_BYTES = 2 * 1024 * 1024


@frozen
class Office:
    """What every route works with."""

    desk: Desk
    guard: Guard
    lines: EventLines


Handler = Callable[[HttpCall, Office], Awaitable[None]]
_PROMPT, _OBJECT = is_a(str | list, "a text, or a list of parts"), is_a(dict, "an object")


# --- what is posted, by a request or over a WebSocket ----------------------------------------------------------------


async def post_run(
    office: Office, who: Principal, session_id: str | None, body: Any, key: str | None
) -> tuple[int, Any]:
    """`{"prompt": text | parts | null, "agent"?, "options"?}`: a run in this session, or in a new one."""
    given = _fields(body, prompt=_PROMPT, agent=TEXT, options=_OBJECT)
    if session_id is None and "prompt" not in given:
        raise RequestRefusedError(400, "a new session needs a prompt")
    started = await office.desk.start(
        who, given.get("agent"), given.get("prompt"), session_id=session_id, key=key, wishes=given.get("options")
    )
    status = 200 if not started.is_new else 201 if session_id is None else 202
    return status, vars(started)


async def post_answer(office: Office, who: Principal, session_id: str, body: Any, key: str | None) -> tuple[int, Any]:
    """`{"question_id", "answer"}`, or `{"answers": {question_id: answer}}` for several: the run goes on."""
    given = _fields(body, question_id=TEXT, answer=TEXT, answers=_OBJECT)
    answers = given.pop("answers", None)
    if answers is None and len(given) == 2:
        answers, given = {given["question_id"]: given["answer"]}, {}
    if given or not answers or not all(isinstance(answer, str) for answer in answers.values()):
        raise RequestRefusedError(
            400, "an answer needs question_id and answer, or answers: a text for each question_id"
        )
    await office.desk.answer_all(who, session_id, answers, key=key)
    return 202, {"session_id": session_id}


async def post_message(office: Office, who: Principal, session_id: str, body: Any, key: str | None) -> tuple[int, Any]:
    """`{"prompt": text | parts}`: the run that goes on gets it at its next step."""
    given = _fields(body, prompt=_PROMPT)
    if "prompt" not in given:
        raise RequestRefusedError(400, "a message needs a prompt")
    await office.desk.steer(who, session_id, given["prompt"], key=key)
    return 202, {"session_id": session_id}


async def post_cancel(office: Office, who: Principal, session_id: str, body: Any, key: str | None) -> tuple[int, Any]:
    """`{}`: the run ends; nothing happens when none goes on."""
    _fields(body)
    return 202, {"session_id": session_id, "was_running": await office.desk.cancel(who, session_id)}


async def post_fork(office: Office, who: Principal, session_id: str, body: Any, key: str | None) -> tuple[int, Any]:
    """`{"at_seq"?}`: a copy up to there."""
    given = _fields(body, at_seq=COUNT)
    return 201, {"session_id": await office.desk.fork(who, session_id, at_seq=given.get("at_seq"), key=key)}


async def post_rewind(office: Office, who: Principal, session_id: str, body: Any, key: str | None) -> tuple[int, Any]:
    """`{"to_seq"}` or `{"turns"}`: what stands behind is taken back in the model's view."""
    given = _fields(body, to_seq=COUNT, turns=COUNT)
    return 200, event_to_dict(await office.desk.rewind(who, session_id, **given, key=key))


POSTS: dict[str, Callable[..., Awaitable[tuple[int, Any]]]] = {
    "runs": post_run,
    "answers": post_answer,
    "messages": post_message,
    "cancel": post_cancel,
    "fork": post_fork,
    "rewind": post_rewind,
}


async def post(
    office: Office, who: Principal, session_id: str | None, action: str, body: Any, key: str | None
) -> tuple[int, Any]:
    """What came of something that was posted: an HTTP status and a JSON value, also for what was refused."""
    try:
        if action not in POSTS:
            raise RequestRefusedError(404, f"there is no {action!r:.50} to post to: {', '.join(POSTS)} are")
        return await POSTS[action](office, who, session_id, body, key)
    except REFUSALS as error:
        status, message, _ = refusal_of(error)
        return status, error_body(status, message)


def _fields(body: Any, **known: Check) -> dict[str, Any]:
    """The fields of a JSON object; null counts as left out. Raises `OptionsError` for one that does not fit."""
    if not isinstance(body, dict):
        raise RequestRefusedError(400, "the body must be a JSON object")
    if unknown := body.keys() - known.keys():
        names = ", ".join(known) or "none"
        raise RequestRefusedError(400, f"there is no field {min(unknown)!r:.100}: the fields are {names}")
    given = {name: value for name, value in body.items() if value is not None}
    check_settings(given, {name: known[name] for name in given})
    return given


# --- what is refused ---------------------------------------------------------------------------------------------------

_BUSY = "a run goes on in this session: follow it, send it a message, cancel it, or fork it"
# The status of each error, what is said where its own words are not for clients, and after how many seconds to ask again.
_REFUSED: tuple[tuple[type[Exception], int, str, str], ...] = (
    (SessionNotFoundError, 404, "there is no session {error.session_id!r:.220} here", ""),
    (AgentNotFoundError, 404, "", ""),
    (SessionLockedError, 409, _BUSY, "1"),
    (QuestionOpenError, 403, "", ""),
    (SessionExistsError, 409, "the same request is being answered just now: ask again", "1"),
    (ConcurrencyError, 409, "", ""),
    (RequestConflictError, 422, "", ""),
    (RoomMissingError, 501, "", ""),
    (OptionsError, 400, "", ""),
    (InvalidEventError, 400, "", ""),
    (StorageError, 503, "the session store does not answer: ask again", "2"),
)
REFUSALS: tuple[type[Exception], ...] = (RequestRefusedError, *(kind for kind, *_ in _REFUSED))


def error_body(status: int, message: str) -> dict[str, Any]:
    """What a client reads of an error."""
    return {"error": {"status": status, "message": message}}


def refusal_of(error: Exception) -> tuple[int, str, dict[str, str]]:
    """The status, the sentence and the headers that a client gets for an error of `REFUSALS`."""
    if isinstance(error, RequestRefusedError):
        again = error.retry_after_s
        return error.status, str(error), {} if again is None else {"Retry-After": f"{again:.0f}"}
    _, status, said, later_s = next(row for row in _REFUSED if isinstance(error, row[0]))
    return status, said.format(error=error) or str(error), {"Retry-After": later_s} if later_s else {}


# --- the routes --------------------------------------------------------------------------------------------------------


async def create_session(call: HttpCall, office: Office) -> None:
    status, value = await post_run(office, call.principal, None, await call.json(), call.header("idempotency-key"))
    await call.reply(status, value, {"Location": f"/v1/sessions/{value['session_id']}"})


async def post_to_session(call: HttpCall, office: Office) -> None:
    session_id, action = call.parts[2], call.parts[3]
    body, key = await call.json(), call.header("idempotency-key")
    status, value = await POSTS[action](office, call.principal, session_id, body, key)
    await call.reply(status, value)


async def list_agents(call: HttpCall, office: Office) -> None:
    agents = office.desk.agents
    rows = [
        {"name": name, "description": agent.description, "permission_modes": agents.modes(name)}
        for name, agent in agents.items()
    ]
    await call.reply(200, {"agents": rows, "default": agents.default})


async def list_sessions(call: HttpCall, office: Office) -> None:
    limit, offset = _number(call, "limit", 50, MAX_ROWS), _number(call, "offset", 0)
    rows = await office.desk.rows(call.principal, query=call.query.get("query"), limit=limit, offset=offset)
    await call.reply(200, {"sessions": [_row(row) for row in rows]})


async def search(call: HttpCall, office: Office) -> None:
    limit = _number(call, "limit", 50, MAX_ROWS)
    hits = await office.desk.search(call.principal, call.query.get("query", ""), limit=limit)
    await call.reply(200, {"hits": [vars(hit) for hit in hits]})


async def show_session(call: HttpCall, office: Office) -> None:
    """The row of the session; its `open_questions` are whole."""
    row = _row(await office.desk.row(call.principal, call.parts[2]))
    if row["open_questions"]:
        questions = await office.desk.questions(call.principal, call.parts[2])
        row["open_questions"] = [event_to_dict(office.lines.shown(question)) for question in questions]
    await call.reply(200, row)


async def show_events(call: HttpCall, office: Office) -> None:
    """A page of JSON, or server-sent events when they are asked for."""
    after_seq = cursor_of(call)
    if "text/event-stream" in (call.header("accept") or ""):
        one_run = call.query.get("until") == "result"
        return await send_events(call, office.desk, office.lines, call.parts[2], after_seq, one_run=one_run)
    limit = _number(call, "limit", MAX_PAGE_EVENTS, MAX_PAGE_EVENTS)
    events, last_seq = await office.desk.events(call.principal, call.parts[2], after_seq=after_seq, limit=limit)
    lines, size = [], 0
    for event in events:
        lines.append(office.lines.line(event))
        size += len(lines[-1])
        after_seq = event.seq or after_seq
        if size > MAX_PAGE_BYTES:
            break
    body = f'{{"events":[{",".join(lines)}],"next":{after_seq},"last_seq":{last_seq}}}'
    await call.reply_bytes(200, body.encode("ascii"), [(b"content-type", b"application/json")])


def cursor_of(call: HttpCall) -> int:
    """The `seq` that a client has seen last: `Last-Event-ID`, else `?after=`, else 0."""
    text = call.header("last-event-id") or call.query.get("after") or "0"
    return read_number(text, "a cursor is the seq of an event, a number from 0 on")


def read_number(text: str, wanted: str, most: int = 10**30) -> int:
    """A whole number from 0 to `most` that a client sent. Raises `RequestRefusedError` with what was wanted."""
    if not (text.isascii() and text.isdigit()) or len(text) > 30 or int(text) > most:
        raise RequestRefusedError(400, wanted)
    return int(text)


def _number(call: HttpCall, name: str, default: int, most: int = 10**9) -> int:
    return read_number(call.query.get(name, str(default)), f"{name} is a number from 0 to {most}", most)


def _row(row: SessionSummary) -> dict[str, Any]:
    known = {name: value for name, value in vars(row).items() if name != "id"}
    return {"session_id": row.id, "label": row.label, **known}


# --- pages, and a browser's way in -------------------------------------------------------------------------------------


async def show_list_page(call: HttpCall, office: Office) -> None:
    from ..viewer.page import build_list

    query = call.query.get("query", "")
    rows = await office.desk.rows(call.principal, query=query or None, limit=MAX_ROWS)
    await _reply_page(call, build_list(rows, address="/sessions/", query=query))


async def show_session_page(call: HttpCall, office: Office) -> None:
    from ..viewer.page import build_page

    session_id = call.parts[1]
    row = await office.desk.row(call.principal, session_id)
    events = office.desk.store.iter_events(session_id)
    live, read_blob = f"/v1/sessions/{session_id}/events", partial(office.desk.store.read_blob, session_id)
    build = partial(build_page, events, title=row.label, live_address=live, read_blob=read_blob)
    await _reply_page(call, await off_loop(True, build))


async def _reply_page(call: HttpCall, page: str) -> None:
    kind = (b"content-type", b"text/html; charset=utf-8")
    await call.reply_bytes(200, page.encode(), [kind, (b"content-security-policy", b"frame-ancestors 'none'")])


async def make_ticket(call: HttpCall, office: Office) -> None:
    _fields(await call.json())
    await call.reply(201, {"path": f"/signin/{office.guard.new_ticket(call.principal)}"})


async def sign_in(call: HttpCall, office: Office) -> None:
    if call.method != "GET":  # HEAD must not use the ticket up
        raise RequestRefusedError(405, "a ticket is for GET")
    cookie = office.guard.redeem(call.parts[1], secure=call.scope["scheme"] == "https")
    if cookie is None:
        raise RequestRefusedError(401, "this ticket was used, or is too old: make a new one")
    target = call.query.get("to", "/")
    if not target.startswith("/") or target.startswith("//") or "\\" in target or not target.isprintable():
        raise RequestRefusedError(400, "a ticket leads to a page of this server")
    await call.reply(303, headers={"Location": target, "Set-Cookie": cookie})


async def serve_mcp(call: HttpCall, office: Office) -> None:
    from .mcp import serve_http

    await serve_http(call, office.desk)


async def show_metrics(call: HttpCall, office: Office) -> None:
    """The figures of the fleet behind the store: of the principal's tenant, or of all when it has none."""
    from ..fleet.stats import fleet_stats, to_text

    try:
        tables = tables_of(office.desk.store)
    except FleetStoreError as error:
        raise RequestRefusedError(404, str(error)) from error
    stats = await off_loop(True, fleet_stats, tables, call.principal.tenant or None)
    kind = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
    await call.reply_bytes(200, to_text(stats).encode(), [kind])


async def tell_health(call: HttpCall, office: Office) -> None:
    status = 503 if office.desk.is_draining else 200
    await call.reply(status, {"status": "draining" if office.desk.is_draining else "ok"})


# A part that is None stands for any one segment. The routes of `OPEN` need no secret.
Route = tuple[str, tuple[str | None, ...], Handler]
OPEN: tuple[Route, ...] = (
    ("GET", ("healthz",), tell_health),
    ("GET", ("signin", None), sign_in),
)
NATIVE: tuple[Route, ...] = (
    ("GET", ("v1", "agents"), list_agents),
    ("GET", ("v1", "sessions"), list_sessions),
    ("POST", ("v1", "sessions"), create_session),
    ("GET", ("v1", "search"), search),
    ("GET", ("v1", "sessions", None), show_session),
    ("GET", ("v1", "sessions", None, "events"), show_events),
    *(("POST", ("v1", "sessions", None, action), post_to_session) for action in POSTS),
    ("POST", ("v1", "tickets"), make_ticket),
    ("POST", ("mcp",), serve_mcp),
    ("GET", ("metrics",), show_metrics),
    ("GET", (), show_list_page),
    ("GET", ("sessions", None), show_session_page),
)


def find_routes(routes: tuple[Route, ...], parts: tuple[str, ...]) -> dict[str, Handler]:
    """The handlers for a path, by method; empty when there is no such path."""
    return {
        method: handler
        for method, pattern, handler in routes
        if len(pattern) == len(parts)
        and all(wanted in (None, part) for wanted, part in zip(pattern, parts, strict=True))
    }
