"""The routes of the two protocols derived from the native one: AG-UI and the Responses API.

A route starts a run through the desk, follows its session, and folds the events into messages of its protocol; the modules
`agui` and `responses` contain the folds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial

from ..errors import OpenAgentSdkError, OptionsError, RequestRefusedError
from ..events import Event, Result, SystemInit, UserAnswer, UserMessage
from ..ground.jsonrpc import Json
from ..kernel.recorder import off_loop
from ..serialization import dumps_json
from ..sessions.folds.standing import Request, RequestState, find_request, state_after, with_lease
from . import agui, responses
from .call import COMMENT_S, EventStream, HttpCall
from .contract.refusals import REFUSALS, code_of, refusal_of
from .desk import note_key
from .guard import Principal
from .routes import Office, RouteHandler


async def run_for_ag_ui(call: HttpCall, office: Office) -> None:
    """`POST /v1/ag-ui/{agent}`: start a run in the thread's session, or answer its questions, and stream the run.

    A client that lost the stream of a run sends the same input again, or one without a new message, and receives the run
    from its start.
    """
    desk, who, agent = office.desk, call.principal, call.parts[2]
    run = agui.read_run_input(await call.json())
    desk.agents[agent]  # an unknown agent is an error of the request, not of the run
    session_id, is_there = await desk.place(who, run.thread_id)
    before: list[Event] = await off_loop(True, desk.store.read_events, session_id) if is_there else []
    open_questions = (await desk.row(who, session_id)).open_questions if is_there else ()
    answer_seqs = {event.question_id: event.seq or 0 for event in before if isinstance(event, UserAnswer)}
    left_out = [*run.left_out, *(["messages"] if run.answers and run.prompt else [])]
    request_id = f"ag-ui {run.run_id}"
    request = find_request(before, request_id.__eq__)
    if request is None and run.prompt is None and not run.answers:
        request = agui.untold(run, before)
    refused = agui.refusal(run, open_questions, answer_seqs) if request is None else None
    fold = agui.RunEvents(run.thread_id, run.run_id, left_out=left_out)
    after_seq = request.after_seq if request is not None else before[-1].seq or 0 if before else 0
    try:
        if refused is None:
            told_from = request.said_seq if request is not None and run.message is None else after_seq
            snapshot = agui.catch_up(run, before, told_from)
            fold = agui.RunEvents(run.thread_id, run.run_id, snapshot=snapshot, left_out=left_out)
            fresh = {name: answer for name, answer in run.answers.items() if name not in answer_seqs}
            if fresh:
                await desk.answer_all(who, session_id, fresh)
            elif run.answers:  # answered before: stream again the run that the answers resumed
                after_seq, request = max(answer_seqs[name] for name in run.answers), None
                await desk.left.why_left(session_id)
            elif run.prompt is not None:
                started = await desk.start(who, agent, run.prompt, name=run.thread_id, request_id=request_id)
                session_id = started.session_id
                request = request or await desk.find_queued(session_id, request_id.__eq__)
            else:
                await desk.left.why_left(session_id)
    except OptionsError as error:
        refused = str(error)
    before, snapshot = [], None  # both may be large, and a stalled client would keep them in memory
    async with await call.stream() as stream:
        if refused is not None:
            return await _send(stream, fold.fail(refused, "refused"))
        await _send(stream, fold.begin())
        await _tell(office, stream, session_id, after_seq, request, fold, lambda events: _send(stream, events))


async def create_response(call: HttpCall, office: Office) -> None:
    """`POST /v1/responses`: start a run and return it as one object, as a stream, or in the background."""
    desk, who, body = office.desk, call.principal, await call.json()
    key = call.header("idempotency-key")
    agent, previous = responses.named_in(body)
    session_id = None
    if previous is not None:
        session_id, before, earlier_agent = await _find_request(office, who, previous)
        agent = agent or earlier_agent
    agent = agent or desk.agents.default
    parsed_request = responses.read_request(body, desk.agents[agent].accepts)
    if session_id is not None and not before.is_newest:
        # When a request is repeated, its own first attempt has superseded `previous`: that must not lead to a fork.
        again = None if key is None else await _request(office, session_id, lambda name: name.startswith(f"{key}~"))
        if again is None:
            session_id = await desk.fork(who, session_id, at_seq=before.last_seq, key=key)
    wishes = None if parsed_request.output_schema is None else {"output_schema": parsed_request.output_schema}
    started = await desk.start(
        who, agent, parsed_request.prompt, session_id=session_id, key=key, wishes=wishes, notes=parsed_request.echo
    )
    response_id = responses.response_id(started.session_id, started.request_id)
    fold = responses.ResponseEvents(response_id, model=agent, echo=parsed_request.echo)
    request = await _request(office, started.session_id, started.request_id.__eq__)
    if request is None:  # queued, and not in the log yet
        request = Request(started.request_id, started.after_seq, 0, started.after_seq, "queued")
    await _answer(
        call,
        office,
        started.session_id,
        request,
        fold,
        streams=parsed_request.stream,
        waits=not parsed_request.background,
    )


async def show_response(call: HttpCall, office: Office) -> None:
    """`GET /v1/responses/{id}`: the object in its current state, or its stream after a `sequence_number`."""
    session_id, request, model, echo = await _find_response(call, office)
    fold = responses.ResponseEvents(call.parts[2], model=model, echo=echo)
    streams, starting_after = call.query_values.get("stream", False), call.query_values.get("starting_after", 0)
    await _answer(call, office, session_id, request, fold, streams=streams, waits=False, starting_after=starting_after)


async def cancel_response(call: HttpCall, office: Office) -> None:
    """`POST /v1/responses/{id}/cancel`: cancel the run of a response, if it is its session's newest; return the object."""
    await call.json(may_be_empty=True)
    session_id, request, model, echo = await _find_response(call, office)
    # A later request of the session has nothing to do with this response, and must not be cancelled with it.
    if request.is_newest and request.state not in ("over", "dead"):
        await office.desk.cancel(call.principal, session_id, request_id=request.id)
    request = await _request(office, session_id, request.id.__eq__) or request
    fold = responses.ResponseEvents(call.parts[2], model=model, echo=echo)
    await _answer(call, office, session_id, request, fold, streams=False, waits=False)


async def _answer(
    call: HttpCall,
    office: Office,
    session_id: str,
    request: Request,
    fold: responses.ResponseEvents,
    *,
    streams: bool,
    waits: bool,
    starting_after: int = 0,
) -> None:
    """Send a response: as a stream, or as an object, with `waits` once it is complete, otherwise in its current state."""
    desk, after_seq = office.desk, request.after_seq

    async def nowhere(events: Iterable[Json]) -> None:
        """Discard the events: only the object is sent."""

    if streams:
        async with await call.stream() as stream:

            async def send(events: Iterable[Json]) -> None:
                await _send(stream, responses.after(events, starting_after), with_names=True)

            await desk.left.why_left(session_id)
            await _tell(office, stream, session_id, after_seq, request, fold, send)
        return
    if waits:
        await _tell(office, None, session_id, after_seq, request, fold, nowhere)
    else:
        limit = request.last_seq - after_seq
        for event in await off_loop(True, lambda: desk.store.read_events(session_id, after_seq=after_seq, limit=limit)):
            if not _is_past(event, request):
                fold.take(office.lines.shown(event))
    if not fold.is_done and not waits:
        why = await desk.left.why_left(session_id) if request.is_newest else None
        state: RequestState = "queued" if request.state == "suspended" else request.state
        fold.set_status(state if why is None else with_lease(request.state, False), why)
    await call.reply(200, fold.response())


RunProjection = agui.RunEvents | responses.ResponseEvents
TellEvents = Callable[[Iterable[Json]], Awaitable[None]]


async def _tell(
    office: Office,
    stream: EventStream | None,
    session_id: str,
    after_seq: int,
    request: Request | None,
    fold: RunProjection,
    send: TellEvents,
) -> None:
    """Follow a session and send its events, folded, until the run is over, the client disconnects, or this process ends.

    For a `request` accepted before, all its known events are sent, including those after a pause.
    """
    desk, of_request = office.desk, _RequestEvents(request)
    if request is not None and of_request.is_waiting and request.state in ("over", "dead"):
        return await send(fold.stop(request.state))
    async with desk.follow_known(session_id, after_seq=after_seq) as follower:
        if stream is not None:
            stream.when_gone(follower.wake)
        while not fold.is_done and not (stream is not None and stream.is_gone):
            if desk.is_draining:
                return await send(fold.leave())
            try:
                batch = await follower.batch(COMMENT_S)
            except OpenAgentSdkError as error:  # the session was deleted, or the store is unavailable
                return await send(fold.fail(str(error)))
            for event in map(office.lines.shown, batch):
                for passed in of_request.take(event):
                    await send(fold.take(passed))
                if of_request.is_over:
                    return await send(fold.stop("over"))
            refusal = None if batch else desk.left.refusal(session_id)
            if refusal is not None:
                return await send(fold.stop("dead", refusal))
            if not batch and request is not None and request.state == "queued":
                now = await desk.find_queued(session_id, request.id.__eq__)
                if now is not None and now.state != "queued":
                    return await send(fold.stop(now.state))
            if not batch and stream is not None and not stream.is_gone:
                await stream.send(b":\n\n")


class _RequestEvents:
    """The events of one request among those of its session, or all events without a request.

    `is_waiting` is true until its prompt has come, and `is_over` once an event of a later request has.
    """

    def __init__(self, request: Request | None) -> None:
        self._request = request
        # The events before the prompt of a queued request are those of others that were queued before it.
        self.is_waiting = request is not None and not request.said_seq
        self.is_over = False
        self._begun: Event | None = None

    def take(self, event: Event) -> list[Event]:
        """Return the events to show after this one has come: none, the event, or the begin of its run and the event."""
        request, earlier = self._request, list[Event]()
        if request is None:
            return [event]
        if self.is_waiting:
            self._begun = event if isinstance(event, SystemInit) else self._begun
            if not (isinstance(event, UserMessage | Result) and event.request_id == request.id):
                return []
            self.is_waiting = False
            earlier = [] if self._begun is None else [self._begun]
        self.is_over = not request.is_newest and (event.seq or 0) > request.last_seq
        return earlier if self.is_over or _is_past(event, request) else [*earlier, event]


def _is_past(event: Event, request: Request) -> bool:
    """Whether the event parked the request at a point that the request has since passed."""
    is_pause = isinstance(event, Result) and state_after(event) == "parked"
    return is_pause and ((event.seq or 0) < request.last_seq or not request.is_newest)


async def _send(stream: EventStream, events: Iterable[Json], *, with_names: bool = False) -> None:
    pieces = [f"event: {each['type']}\n" * with_names + f"data: {dumps_json(each)}\n\n" for each in events]
    if pieces:
        await stream.send("".join(pieces).encode("ascii"))


async def _find_response(call: HttpCall, office: Office) -> tuple[str, Request, str, Json]:
    """Like `_find_request`, for the response in the path; also return the request's fields to echo."""
    session_id, request, agent = await _find_request(office, call.principal, call.parts[2])
    metadata = (await off_loop(True, office.desk.store.read_metadata, session_id))["metadata"]
    return session_id, request, agent, metadata.get(note_key(request.id)) or {}


async def _find_request(office: Office, who: Principal, response_id: str) -> tuple[str, Request, str]:
    """Find a response; return its session's id, its request, and its agent. Raises `RequestRefusedError` 404."""
    session_id = responses.session_of(response_id)
    if session_id is not None:
        agent = await office.desk.agent_of(who, session_id)
        id_of = partial(responses.response_id, session_id)
        request = await _request(office, session_id, lambda name: id_of(name) == response_id)
        if request is not None:
            return session_id, request, agent
    raise RequestRefusedError(404, f"response {response_id!r:.250} does not exist")


async def _request(office: Office, session_id: str, is_wanted: Callable[[str], bool]) -> Request | None:
    store = office.desk.store
    request: Request | None = await off_loop(True, lambda: find_request(store.iter_events(session_id), is_wanted))
    return request or await office.desk.find_queued(session_id, is_wanted)


async def list_models(call: HttpCall, office: Office) -> None:
    """`GET /v1/models`: the agents, by the names that `model` accepts."""
    await call.reply(200, {"object": "list", "data": [responses.model(name) for name in office.desk.agents]})


async def show_model(call: HttpCall, office: Office) -> None:
    """`GET /v1/models/{model}`: one agent."""
    office.desk.agents[call.parts[2]]
    await call.reply(200, responses.model(call.parts[2]))


def in_openai_words(
    handler: Callable[[HttpCall, Office], Awaitable[None]],
) -> Callable[[HttpCall, Office], Awaitable[None]]:
    """Wrap a handler so that its refusals have the form that OpenAI's clients expect."""

    async def handle(call: HttpCall, office: Office) -> None:
        try:
            await handler(call, office)
        except REFUSALS as error:
            if call.has_begun:
                raise
            status, message, headers = refusal_of(error)
            await call.reply(status, responses.error(status, message, code_of(error)), headers)

    return handle


PROJECTED: Mapping[str, RouteHandler] = {
    "run_ag_ui": run_for_ag_ui,
    "create_response": in_openai_words(create_response),
    "show_response": in_openai_words(show_response),
    "cancel_response": in_openai_words(cancel_response),
    "list_models": in_openai_words(list_models),
    "show_model": in_openai_words(show_model),
}
