"""The native protocol: sessions, their events and the operations on them, under `/v1`; and the pages for people.

All other protocols of this server are derived from it. `NATIVE`, at the end, maps the names of its routes to handlers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import field
from functools import cache, partial
from typing import Any
from urllib.parse import quote

from ..errors import FleetStoreError, RequestRefusedError, RoomMissingError, SessionNotFoundError, ToolInputError
from ..events import Event, UserQuestion
from ..ground.frozen import frozen
from ..ground.schemas.typed import JsonType, json_type
from ..ground.text import existing
from ..kernel.recorder import off_loop
from ..serialization import event_to_dict
from ..sessions.base import SessionPage
from ..sessions.folds.summary import SessionSummary, summary_matches
from ..sessions.stores.tables import Tables, tables_of
from .call import HttpCall
from .contract import values
from .contract.refusals import REFUSALS, error_body, refusal_of
from .contract.table import MAX_PAGE_EVENTS, QueryField
from .desk import Desk, count_runs
from .guard import Guard, Principal
from .operations.journal import Journal
from .shelf import ARCHIVED
from .streams import EventLines, send_events

# Rows of a page without `limit`.
PAGE_ROWS = 50
# Sessions whose questions appear above the list on the page for people.
INBOX_ROWS = 10
MAX_PAGE_BYTES = 2 * 1024 * 1024


@frozen
class Office:
    """The objects that all routes use."""

    desk: Desk
    guard: Guard
    lines: EventLines
    journal: Journal = field(default_factory=Journal)


RouteHandler = Callable[[HttpCall, Office], Awaitable[None]]


# --- posted operations, over HTTP or a WebSocket ---------------------------------------------------------------------


async def post_run(
    office: Office, who: Principal, session_id: str | None, body: Any, key: str | None
) -> tuple[int, Any]:
    """Start a run in the session `session_id`, or in a new session."""
    fields = read_fields(body, values.SessionBody if session_id is None else values.RunBody)
    started = await office.desk.start(
        who, fields.get("agent"), fields.get("prompt"), session_id=session_id, key=key, wishes=fields.get("options")
    )
    status = 200 if not started.is_new else 201 if session_id is None else 202
    return status, vars(started)


async def post_answer(office: Office, who: Principal, session_id: str, body: Any, key: str | None) -> tuple[int, Any]:
    """Answer one or several questions and resume the run."""
    fields = read_fields(body, values.AnswersBody)
    answers = fields.pop("answers", None)
    if answers is None and len(fields) == 2:
        answers, fields = {fields["question_id"]: fields["answer"]}, {}
    if fields or not answers:
        raise RequestRefusedError(
            400, "an answer needs either question_id and answer, or answers, which maps each question_id to a text"
        )
    await office.desk.answer_all(who, session_id, answers, key=key)
    return 202, {"session_id": session_id}


async def post_message(office: Office, who: Principal, session_id: str, body: Any, key: str | None) -> tuple[int, Any]:
    """Send a message to the current run, which receives it at its next step."""
    await office.desk.steer(who, session_id, read_fields(body, values.MessageBody)["prompt"], key=key)
    return 202, {"session_id": session_id}


async def post_cancel(office: Office, who: Principal, session_id: str, body: Any, key: str | None) -> tuple[int, Any]:
    """End the run, whether it is running or waiting; do nothing if the session has none."""
    read_fields(body, values.EmptyBody)
    return 202, {"session_id": session_id, "was_running": await office.desk.cancel(who, session_id)}


async def post_fork(office: Office, who: Principal, session_id: str, body: Any, key: str | None) -> tuple[int, Any]:
    """Copy the session up to the event `at_seq`, or whole if it is omitted."""
    fields = read_fields(body, values.ForkBody)
    return 201, {"session_id": await office.desk.fork(who, session_id, at_seq=fields.get("at_seq"), key=key)}


async def post_rewind(office: Office, who: Principal, session_id: str, body: Any, key: str | None) -> tuple[int, Any]:
    """Remove the newest events from the model's view."""
    fields = read_fields(body, values.RewindBody)
    return 200, event_to_dict(await office.desk.rewind(who, session_id, **fields, key=key))


async def post_title(office: Office, who: Principal, session_id: str, body: Any, key: str | None) -> tuple[int, Any]:
    """Set the title shown to people."""
    return 200, _row(await office.desk.rename(who, session_id, read_fields(body, values.TitleBody)["title"]))


async def post_archive(office: Office, who: Principal, session_id: str, body: Any, key: str | None) -> tuple[int, Any]:
    """Archive the session, or restore it to lists."""
    archived = read_fields(body, values.ArchiveBody).get("archived", True)
    return 200, _row(await office.desk.archive(who, session_id, archived=archived))


async def post_delete(office: Office, who: Principal, session_id: str, body: Any, key: str | None) -> tuple[int, Any]:
    """Delete the session and its subagents' sessions, if confirmed by its id."""
    confirmed = read_fields(body, values.DeleteBody)["confirm"]
    return 200, {"deleted": await office.desk.delete(who, session_id, confirmed=confirmed)}


# By the last segment of the path.
POSTS: dict[str, Callable[..., Awaitable[tuple[int, Any]]]] = {
    "runs": post_run,
    "answers": post_answer,
    "messages": post_message,
    "cancel": post_cancel,
    "fork": post_fork,
    "rewind": post_rewind,
    "rename": post_title,
    "archive": post_archive,
    "delete": post_delete,
}


async def post(
    office: Office, who: Principal, session_id: str | None, action: str, body: Any, key: str | None
) -> tuple[int, Any]:
    """Handle a posted operation; return an HTTP status and a JSON value, even if it is refused."""
    try:
        if action not in POSTS:
            raise RequestRefusedError(404, f"unknown action {action!r:.50}: the actions are {', '.join(POSTS)}")
        return await POSTS[action](office, who, session_id, body, key)
    except REFUSALS as error:
        return refusal_of(error)[0], error_body(error)


def read_fields(body: Any, kind: Any) -> dict[str, Any]:
    """Check a JSON object of this type; return its fields except those that are null. Raises `RequestRefusedError` 400."""
    if not isinstance(body, dict):
        raise RequestRefusedError(400, "the body must be a JSON object")
    annotations = kind.__annotations__
    if unknown := body.keys() - annotations.keys():
        raise RequestRefusedError(400, f"unknown field {min(unknown)!r:.100}: {existing('fields', annotations)}")
    try:
        fields: dict[str, Any] = _type_of(kind).read(
            {name: value for name, value in body.items() if value is not None}, "the body"
        )
    except ToolInputError as error:
        raise RequestRefusedError(400, str(error)) from None
    return fields


@cache
def _type_of(kind: Any) -> JsonType[Any]:
    return json_type(kind)


# --- the routes --------------------------------------------------------------------------------------------------------


async def create_session(call: HttpCall, office: Office) -> None:
    status, value = await post_run(office, call.principal, None, await call.json(), call.header("idempotency-key"))
    await call.reply(status, value, {"Location": f"{call.root}/v1/sessions/{quote(value['session_id'], safe='')}"})


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
    parameters, query = call.query_values, call.query_values.get("query")
    limit = parameters.get("limit", PAGE_ROWS)
    if "offset" in parameters:
        if parameters.keys() & {"after", "state", "archived"}:
            raise RequestRefusedError(
                400,
                "an offset can be combined with query and limit only; otherwise, pass the `next` of a page as `after`",
            )
        rows = await office.desk.rows(call.principal, query=query, limit=limit, offset=parameters["offset"])
        return await call.reply(200, {"sessions": [_row(row) for row in rows], "next": None})
    keep = _keeping(query, parameters.get("state"), archived=parameters.get("archived", False))
    page = await office.desk.page(call.principal, keep, limit=limit, after=parameters.get("after"))
    await call.reply(200, {"sessions": [_row(row) for row in page.rows], "next": page.next})


async def list_questions(call: HttpCall, office: Office) -> None:
    """List the open questions of all sessions visible to the principal."""
    page, pairs = await _inbox(call, office, call.query_values.get("limit", PAGE_ROWS), call.query_values.get("after"))
    questions = [
        {"session_id": row.id, "label": row.label, "updated": row.updated, "question": event_to_dict(question)}
        for row, question in pairs
    ]
    await call.reply(200, {"questions": questions, "next": page.next})


async def _inbox(
    call: HttpCall, office: Office, limit: int, after: str | None = None
) -> tuple[SessionPage, list[tuple[SessionSummary, Event]]]:
    """Read a page of the sessions with open questions; return it, and each question with its session, secrets masked."""
    page = await office.desk.page(call.principal, _is_asking, limit=limit, after=after)
    pairs = []
    for row in page.rows:
        with suppress(SessionNotFoundError):  # deleted meanwhile
            questions = await office.desk.questions(call.principal, row.id)
            pairs += [(row, office.lines.shown(question)) for question in questions]
    return page, pairs


def _keeping(query: str | None, state: str | None, *, archived: bool = False) -> Callable[[SessionSummary], bool]:
    """Return the filter of a list: a function that returns whether the list shows a session."""

    def keep(row: SessionSummary) -> bool:
        is_found = not query or summary_matches(row, query=query, include_children=True)
        return is_found and (ARCHIVED in row.tags) is archived and (not state or row.state == state)

    return keep


def _is_asking(row: SessionSummary) -> bool:
    return bool(row.open_questions)


async def search(call: HttpCall, office: Office) -> None:
    limit = call.query_values.get("limit", PAGE_ROWS)
    hits = await office.desk.search(call.principal, call.query_values.get("query", ""), limit=limit)
    await call.reply(200, {"hits": [vars(hit) for hit in hits]})


async def show_session(call: HttpCall, office: Office) -> None:
    """Return the session's summary with its open questions as whole events."""
    row = _row(await office.desk.row(call.principal, call.parts[2]))
    if row["open_questions"]:
        questions = await office.desk.questions(call.principal, call.parts[2])
        row["open_questions"] = [event_to_dict(office.lines.shown(question)) for question in questions]
    await call.reply(200, row)


async def explain_session(call: HttpCall, office: Office) -> None:
    """Return the reason why the session stopped, and how to continue it."""
    from ..runs.why import why_session

    await office.desk.row(call.principal, call.parts[2])
    await call.reply(200, vars(await off_loop(True, why_session, office.desk.store, call.parts[2])))


async def show_context(call: HttpCall, office: Office) -> None:
    """Return how full the model's window is, even during a run."""
    from ..runs.window import session_window

    session_id, window = call.parts[2], call.query_values.get("window")
    if window == 0:
        raise RequestRefusedError(400, "window must be the size of the model's window in tokens, at least 1, not 0")
    await office.desk.row(call.principal, session_id)
    contents = await off_loop(True, session_window, office.desk.store, session_id, window)
    dropped = [{"seq": seq, "text": text} for seq, text in contents.dropped]
    answer = {"session_id": session_id, **vars(contents), "dropped": dropped, "lines": contents.lines()}
    await call.reply(200, answer)


async def show_events(call: HttpCall, office: Office) -> None:
    """Return a page of events as JSON, or server-sent events if the request accepts them."""
    after_seq = cursor_of(call)
    if "text/event-stream" in (call.header("accept") or ""):
        one_run = "until" in call.query_values
        return await send_events(call, office.desk, office.lines, call.parts[2], after_seq, one_run=one_run)
    limit = call.query_values.get("limit", MAX_PAGE_EVENTS)
    events, last_seq = await office.desk.events(call.principal, call.parts[2], after_seq=after_seq, limit=limit)
    lines, size = [], 0
    for event in events:
        lines.append(office.lines.line(event))
        size += len(lines[-1])
        after_seq = event.seq or after_seq
        # Checked after adding: a page has at least one event, however large, so paging makes progress.
        if size > MAX_PAGE_BYTES:
            break
    body = f'{{"events":[{",".join(lines)}],"next":{after_seq},"last_seq":{last_seq}}}'
    await call.reply_bytes(200, body.encode("ascii"), [(b"content-type", b"application/json")])


def cursor_of(call: HttpCall) -> int:
    """The `seq` of the client's last event: `Last-Event-ID`, else `?after=`, else 0. Raises `RequestRefusedError` 400."""
    # A browser that reconnects repeats its first URL, so the header is the newer of the two.
    text = call.header("last-event-id") or call.query.get("after") or "0"
    return read_number(text, "a cursor must be the seq of an event, a number of at least 0")


def read_number(text: str, problem: str, most: int = 10**30) -> int:
    """Parse a client's integer from 0 to `most`. Raises `RequestRefusedError` 400 with the message `problem`."""
    # The length is checked before `int`, which refuses more than 4300 digits with an error of its own.
    if not (text.isascii() and text.isdigit()) or len(text) > 40 or int(text) > most:
        raise RequestRefusedError(400, problem)
    return int(text)


def read_query(fields: Mapping[str, QueryField], query: Mapping[str, str]) -> dict[str, Any]:
    """Parse the query fields that a route accepts, each by its type; ignore others. Raises `RequestRefusedError` 400."""
    values: dict[str, Any] = {}
    for name, query_field in fields.items():
        word = query.get(name)
        if word is None:
            continue
        if query_field.kind is int:
            values[name] = read_number(
                word, f"{name} must be a whole number from 0 to {query_field.most}", query_field.most
            )
        elif query_field.kind is bool:
            if word.lower() not in ("true", "false", "1", "0"):
                raise RequestRefusedError(400, f"{name} must be true or false, not {word!r:.100}")
            values[name] = word.lower() in ("true", "1")
        elif query_field.words and word not in query_field.words:
            raise RequestRefusedError(400, f"{name} must be one of {', '.join(query_field.words)}, not {word!r:.100}")
        else:
            values[name] = word
    return values


def _row(row: SessionSummary) -> dict[str, Any]:
    fields = {name: value for name, value in vars(row).items() if name != "id"}
    return {"session_id": row.id, "label": row.label, **fields}


# --- pages and sign-in -------------------------------------------------------------------------------------------------


async def show_list_page(call: HttpCall, office: Office) -> None:
    from ..viewer.page import ListView, build_list

    desk, query, state = office.desk, call.query_values.get("query", ""), call.query_values.get("state", "")
    page = await desk.page(
        call.principal, _keeping(query, state), limit=PAGE_ROWS, after=call.query_values.get("after")
    )
    agents = [(name, agent.description) for name, agent in desk.agents.items()] if desk.takes_prompts else []
    is_first = not (query or state or "after" in call.query_values)
    waiting, pairs = await _inbox(call, office, INBOX_ROWS) if is_first else (page, [])
    inbox = [(row.id, row.label, question) for row, question in pairs if isinstance(question, UserQuestion)]
    is_more = is_first and waiting.next is not None
    view = ListView(call.root, query, state, page.next, agents, desk.problem, inbox, is_more)
    await _reply_page(call, build_list(page.rows, view))


async def show_session_page(call: HttpCall, office: Office) -> None:
    from ..runs.why import why_session
    from ..viewer.page import Live, build_page

    session_id = call.parts[1]
    await office.desk.row(call.principal, session_id)
    # The row and its questions are read after the events, so that what happens meanwhile is shown twice rather than never.
    events = await off_loop(True, lambda: list(office.desk.store.iter_events(session_id)))
    row = await office.desk.row(call.principal, session_id)
    live = Live(
        f"{call.root}/v1/sessions/{quote(session_id, safe='')}/events",
        row.state,
        await office.desk.questions(call.principal, session_id) if row.open_questions else (),
        home=f"{call.root}/",
        may_answer=call.principal.may_answer and office.desk.takes_prompts,
        takes_prompts=office.desk.takes_prompts,
    )
    read_blob = partial(office.desk.store.read_blob, session_id)
    cause = await off_loop(True, why_session, office.desk.store, session_id)
    build = partial(build_page, events, title=row.label, live=live, read_blob=read_blob, cause=cause)
    await _reply_page(call, await off_loop(True, build))


async def _reply_page(call: HttpCall, page: str) -> None:
    kind = (b"content-type", b"text/html; charset=utf-8")
    await call.reply_bytes(200, page.encode(), [kind, (b"content-security-policy", b"frame-ancestors 'none'")])


async def make_ticket(call: HttpCall, office: Office) -> None:
    read_fields(await call.json(), values.EmptyBody)
    await call.reply(201, {"path": f"{call.root}/signin/{office.guard.new_ticket(call.principal)}"})


async def sign_in(call: HttpCall, office: Office) -> None:
    if call.method != "GET":  # HEAD must not use the ticket up
        raise RequestRefusedError(405, "a ticket is valid for GET only")
    cookie = office.guard.redeem(call.parts[1], secure=call.scope["scheme"] == "https", path=call.root or "/")
    if cookie is None:
        raise RequestRefusedError(401, "this ticket was used or has expired: create a new one")
    target = call.query.get("to", "/")
    if not target.startswith("/") or target.startswith("//") or "\\" in target or not target.isprintable():
        raise RequestRefusedError(
            400, f"`to` must be a path on this server that begins with a single /, not {target!r:.200}"
        )
    if not f"{target}/".startswith(f"{call.root}/"):
        target = call.root + target
    await call.reply(303, headers={"Location": target, "Set-Cookie": cookie})


async def serve_mcp(call: HttpCall, office: Office) -> None:
    from .mcp import serve_http

    await serve_http(call, office.desk)


async def show_contract(call: HttpCall, office: Office) -> None:
    """Return this server's contract as OpenAPI."""
    from .contract.openapi import openapi

    await call.reply(200, openapi(call.root))


async def show_metrics(call: HttpCall, office: Office) -> None:
    """Return this process's metrics, to principals without a tenant, and those of the store's fleet.

    The fleet's metrics are those of the principal's tenant, or of all if it has none. A principal with a tenant is refused
    if the store has no fleet.
    """
    tenant, texts = call.principal.tenant, []
    if not tenant:
        texts.append(office.journal.to_text(running=count_runs(office.desk), is_draining=office.desk.is_draining))
    try:
        texts.append(await _fleet_figures(tables_of(office.desk.store), tenant or None))
    except FleetStoreError as error:
        if tenant:
            raise RequestRefusedError(404, str(error)) from error
    except RoomMissingError:
        if tenant:
            raise
    kind = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
    await call.reply_bytes(200, "".join(texts).encode(), [kind])


async def _fleet_figures(tables: Tables, tenant: str | None) -> str:
    from ..fleet.stats import fleet_stats, to_text

    return to_text(await off_loop(True, fleet_stats, tables, tenant))


async def tell_health(call: HttpCall, office: Office) -> None:
    """Report that the process is alive, even during shutdown."""
    await call.reply(200, {"status": "ok"})


async def tell_ready(call: HttpCall, office: Office) -> None:
    """Report whether the process accepts requests."""
    status = 503 if office.desk.is_draining else 200
    await call.reply(status, {"status": "draining" if office.desk.is_draining else "ok"})


NATIVE: Mapping[str, RouteHandler] = {
    "list_agents": list_agents,
    "create_session": create_session,
    "list_sessions": list_sessions,
    "list_questions": list_questions,
    "search": search,
    "show_session": show_session,
    "explain_session": explain_session,
    "show_context": show_context,
    "show_events": show_events,
    **dict.fromkeys(
        ("create_run", "answer", "send_message", "cancel", "fork", "rewind", "rename", "archive", "delete"),
        post_to_session,
    ),
    "make_ticket": make_ticket,
    "mcp": serve_mcp,
    "show_contract": show_contract,
    "show_metrics": show_metrics,
    "tell_health": tell_health,
    "tell_ready": tell_ready,
    "tell_ready_as_before": tell_ready,
    "sign_in": sign_in,
    "show_list_page": show_list_page,
    "show_session_page": show_session_page,
}
