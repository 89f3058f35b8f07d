"""The table of all routes, from which the application, the OpenAPI document and the client are generated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal, get_args

from ...ground.frozen import frozen
from . import values

MAX_ROWS = 200
MAX_PAGE_EVENTS = 1000


@frozen
class QueryField:
    """A field of a query: text, an integer from 0 to `most`, a flag, or one of `words`. `says` is its description."""

    says: str
    kind: type[str] | type[int] | type[bool] = str
    most: int = 2**63 - 1
    words: tuple[str, ...] = ()


@frozen
class Endpoint:
    """One route. `name` is the name of the client's method; parameters in `path` are written `{name}`.

    `answers` maps each status that is not a refusal to its content: the class of a JSON value, the type of an event, a media
    type, or None. `body` is the type of the request body; `query` contains the query's fields by name. `has_key` is true if
    the route accepts an Idempotency-Key, `is_open` if it needs no secret, and `streams` if the response is also available as
    server-sent events. `room` is the route's protocol.
    """

    name: str
    method: str
    path: str
    summary: str
    answers: Mapping[int, Any]
    body: Any = None
    query: Mapping[str, QueryField] = field(default_factory=dict)
    has_key: bool = False
    is_open: bool = False
    streams: bool = False
    room: Literal["native", "page", "ag-ui", "responses", "mcp"] = "native"

    @property
    def parts(self) -> tuple[str | None, ...]:
        """The segments of the path; None matches any one segment."""
        return tuple(None if part[:1] == "{" else part for part in self.path.strip("/").split("/") if part)


_LIMIT = QueryField("the maximum number of rows (default: 50)", int, MAX_ROWS)
_CURSOR = QueryField("the `next` of the previous page")
_LIST = {
    "query": QueryField("words in the title, prompts, tags, model or id"),
    "state": QueryField("only sessions in this state", words=get_args(values.RowState)),
    "after": _CURSOR,
}
_SESSION = "/v1/sessions/{session_id}"
PAGE, TEXT, EVENTS = "text/html", "text/plain", "text/event-stream"
OBJECT = dict[str, Any]

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        "list_agents",
        "GET",
        "/v1/agents",
        "List the agents and the permission modes that a client may choose",
        {200: values.AgentList},
    ),
    Endpoint(
        "list_sessions",
        "GET",
        "/v1/sessions",
        "List a page of sessions, most recently updated first",
        {200: values.SessionList},
        query={
            **_LIST,
            "archived": QueryField("only archived sessions", bool),
            "limit": _LIMIT,
            "offset": QueryField("rows to skip; unlike `after`, not stable while sessions change", int),
        },
    ),
    Endpoint(
        "create_session",
        "POST",
        "/v1/sessions",
        "Create a session and start its first run",
        {201: values.StartedRun, 200: values.StartedRun},
        values.SessionBody,
        has_key=True,
    ),
    Endpoint(
        "list_questions",
        "GET",
        "/v1/questions",
        "List the open questions of all sessions: an inbox",
        {200: values.QuestionList},
        query={"limit": _LIMIT, "after": _CURSOR},
    ),
    Endpoint(
        "search",
        "GET",
        "/v1/search",
        "Search for events that contain all words",
        {200: values.FoundEvents},
        query={"query": QueryField("the words to search for"), "limit": _LIMIT},
    ),
    Endpoint("show_session", "GET", _SESSION, "Return one session with its open questions", {200: values.ShownSession}),
    Endpoint(
        "explain_session",
        "GET",
        f"{_SESSION}/why",
        "Explain why the session stopped and how to continue",
        {200: values.SessionCause},
    ),
    Endpoint(
        "show_context",
        "GET",
        f"{_SESSION}/context",
        "Return how full the model's window is and what a compaction would drop",
        {200: values.SessionContext},
        query={"window": QueryField("the size of the window in tokens, if the session does not name it", int, 10**15)},
    ),
    Endpoint(
        "show_events",
        "GET",
        f"{_SESSION}/events",
        "Return the events after a cursor: a page of JSON, server-sent events, or a WebSocket",
        {200: values.EventPage, 204: None},
        query={
            "after": QueryField("the `seq` of the last event that the client has", int, 10**30),
            "limit": QueryField("the maximum number of events in a page of JSON", int, MAX_PAGE_EVENTS),
            "until": QueryField("end the stream with the current run", words=("result",)),
        },
        streams=True,
    ),
    Endpoint(
        "create_run",
        "POST",
        f"{_SESSION}/runs",
        "Start a run with a prompt, or without one to continue from the log",
        {202: values.StartedRun, 200: values.StartedRun},
        values.RunBody,
        has_key=True,
    ),
    Endpoint(
        "answer",
        "POST",
        f"{_SESSION}/answers",
        "Answer the session's open questions and resume its run",
        {202: values.SessionName},
        values.AnswersBody,
        has_key=True,
    ),
    Endpoint(
        "send_message",
        "POST",
        f"{_SESSION}/messages",
        "Send a message to the current run",
        {202: values.SessionName},
        values.MessageBody,
        has_key=True,
    ),
    Endpoint(
        "cancel",
        "POST",
        f"{_SESSION}/cancel",
        "Cancel the run, whether it is running or waiting",
        {202: values.CancelledRun},
        values.EmptyBody,
    ),
    Endpoint(
        "fork",
        "POST",
        f"{_SESSION}/fork",
        "Copy the session up to an event",
        {201: values.SessionName},
        values.ForkBody,
        has_key=True,
    ),
    Endpoint(
        "rewind",
        "POST",
        f"{_SESSION}/rewind",
        "Remove the newest events from the model's view",
        {200: "session.rewound"},
        values.RewindBody,
        has_key=True,
    ),
    Endpoint(
        "rename", "POST", f"{_SESSION}/rename", "Set the session's title", {200: values.ListedSession}, values.TitleBody
    ),
    Endpoint(
        "archive",
        "POST",
        f"{_SESSION}/archive",
        "Archive the session, or restore it to lists",
        {200: values.ListedSession},
        values.ArchiveBody,
    ),
    Endpoint(
        "delete",
        "POST",
        f"{_SESSION}/delete",
        "Delete the session, confirmed by its id",
        {200: values.DeletedSessions},
        values.DeleteBody,
    ),
    Endpoint(
        "make_ticket",
        "POST",
        "/v1/tickets",
        "Create a path that signs a browser in once",
        {201: values.SigninTicket},
        values.EmptyBody,
    ),
    Endpoint("run_ag_ui", "POST", "/v1/ag-ui/{agent}", "Start an AG-UI run", {200: EVENTS}, OBJECT, room="ag-ui"),
    Endpoint(
        "create_response",
        "POST",
        "/v1/responses",
        "Create a response",
        {200: OBJECT},
        OBJECT,
        has_key=True,
        streams=True,
        room="responses",
    ),
    Endpoint(
        "show_response",
        "GET",
        "/v1/responses/{response_id}",
        "Return a response in its current state, or its stream",
        {200: OBJECT},
        query={
            "stream": QueryField("return its events instead", bool),
            "starting_after": QueryField("the `sequence_number` of the last event that the client has", int),
        },
        streams=True,
        room="responses",
    ),
    Endpoint(
        "cancel_response",
        "POST",
        "/v1/responses/{response_id}/cancel",
        "Cancel a response",
        {200: OBJECT},
        room="responses",
    ),
    Endpoint("list_models", "GET", "/v1/models", "List the agents as models", {200: OBJECT}, room="responses"),
    Endpoint("show_model", "GET", "/v1/models/{model}", "Return one agent as a model", {200: OBJECT}, room="responses"),
    Endpoint(
        "mcp",
        "POST",
        "/mcp",
        "Handle a request to the MCP server",
        {200: OBJECT, 202: None},
        OBJECT,
        streams=True,
        room="mcp",
    ),
    Endpoint("show_contract", "GET", "/openapi.json", "Return this contract", {200: OBJECT}, is_open=True),
    Endpoint("show_metrics", "GET", "/metrics", "Return metrics for Prometheus", {200: TEXT}),
    Endpoint(
        "tell_health", "GET", "/health", "Report whether the process is alive", {200: values.ServerHealth}, is_open=True
    ),
    Endpoint(
        "tell_ready",
        "GET",
        "/ready",
        "Report whether the process accepts requests",
        {200: values.ServerHealth, 503: values.ServerHealth},
        is_open=True,
    ),
    Endpoint(
        "tell_ready_as_before",
        "GET",
        "/healthz",
        "Report the same as `/ready`, under its older name",
        {200: values.ServerHealth, 503: values.ServerHealth},
        is_open=True,
        room="page",
    ),
    Endpoint(
        "sign_in",
        "GET",
        "/signin/{ticket}",
        "Sign a browser in",
        {303: None},
        query={"to": QueryField("the page to open, on this server")},
        is_open=True,
        room="page",
    ),
    Endpoint(
        "show_list_page",
        "GET",
        "/",
        "Show the page with all sessions",
        {200: PAGE},
        query=_LIST,
        room="page",
    ),
    Endpoint(
        "show_session_page", "GET", "/sessions/{session_id}", "Show the page of one session", {200: PAGE}, room="page"
    ),
)
