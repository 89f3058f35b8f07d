"""The routes of the two protocols that are projections of the native one: AG-UI and the Responses API.

Each starts a run through the desk, follows its session, and folds the events into messages of its own; `agui` and
`responses` are those folds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

from ..errors import OpenAgentSdkError, OptionsError, RequestRefusedError
from ..events import Event, SystemInit, UserAnswer, UserMessage
from ..kernel.recorder import off_loop
from ..serialization import dumps_json
from ..sessions.base import SessionStore
from . import agui, responses
from .agui import Json
from .call import COMMENT_S, EventStream, HttpCall
from .contract.refusals import REFUSALS, code_of, refusal_of
from .routes import Handler, Office


async def run_for_ag_ui(call: HttpCall, office: Office) -> None:
    """`POST /v1/ag-ui/{agent}`: start a run in the session of the thread, or answer what it waits for, and tell the run."""
    desk, who, agent = office.desk, call.principal, call.parts[2]
    run = agui.read_run_input(await call.json())
    desk.agents[agent]  # an unknown agent is an error of the request, not of the run
    session_id, is_there = await desk.place(who, run.thread_id)
    before: list[Event] = await off_loop(True, desk.store.read_events, session_id) if is_there else []
    open_questions = (await desk.row(who, session_id)).open_questions if is_there else ()
    answered = {event.question_id: event.seq or 0 for event in before if isinstance(event, UserAnswer)}
    left_out = [*run.left_out, *(["messages"] if run.answers and run.prompt else [])]
    refused = agui.refusal(run, open_questions, answered)
    fold = agui.RunEvents(run.thread_id, run.run_id, left_out=left_out)
    after_seq = before[-1].seq or 0 if before else 0
    try:
        if refused is None:
            snapshot = agui.catch_up(run, before)
            fold = agui.RunEvents(run.thread_id, run.run_id, snapshot=snapshot, left_out=left_out)
            fresh = {name: answer for name, answer in run.answers.items() if name not in answered}
            if fresh:
                await desk.answer_all(who, session_id, fresh)
            elif run.answers:  # told again: the run that went on with them is told again
                after_seq = max(answered[name] for name in run.answers)
                if not any(isinstance(event, SystemInit) for event in before[after_seq:]):
                    await desk.start(who, None, None, session_id=session_id)
            else:
                request_id = f"ag-ui {run.run_id}"
                started = await desk.start(who, agent, run.prompt, name=run.thread_id, request_id=request_id)
                session_id = started.session_id
                if not started.is_new:
                    after_seq = await off_loop(True, _before_run, desk.store, session_id, request_id)
    except OptionsError as error:
        refused = str(error)
    async with await call.stream() as stream:
        if refused is not None:
            return await _send(stream, fold.fail(refused, "refused"))
        await _send(stream, fold.begin())
        await _tell(office, stream, session_id, after_seq, fold, lambda told: _send(stream, told))


async def create_response(call: HttpCall, office: Office) -> None:
    """`POST /v1/responses`: the answer of a run as one object, as its stream, or in the background."""
    desk, who = office.desk, call.principal
    asked = responses.read_request(await call.json())
    session_id = None if asked.previous_response_id is None else responses.session_of(asked.previous_response_id)
    started = await desk.start(
        who, asked.model or None, asked.prompt, session_id=session_id, key=call.header("idempotency-key")
    )
    fold = responses.ResponseEvents(
        responses.response_id(started.session_id, started.request_id),
        model=asked.model or desk.agents.default,
        previous_response_id=asked.previous_response_id,
        background=asked.background,
        metadata=asked.metadata,
    )
    after_seq = started.after_seq
    if not started.is_new:
        after_seq = await off_loop(True, _before_run, desk.store, started.session_id, started.request_id)
    await _answer(call, office, started.session_id, after_seq, fold, streams=asked.stream, waits=not asked.background)


async def show_response(call: HttpCall, office: Office) -> None:
    """`GET /v1/responses/{id}`: the object as it stands, or its stream behind a `sequence_number`."""
    session_id, after_seq, model = await _find_response(call, office)
    fold = responses.ResponseEvents(call.parts[2], model=model)
    streams, starting_after = call.asked.get("stream", False), call.asked.get("starting_after", 0)
    await _answer(
        call, office, session_id, after_seq, fold, streams=streams, waits=False, starting_after=starting_after
    )


async def cancel_response(call: HttpCall, office: Office) -> None:
    """`POST /v1/responses/{id}/cancel`."""
    await call.json(may_be_empty=True)
    session_id, after_seq, model = await _find_response(call, office)
    await office.desk.cancel(call.principal, session_id)
    fold = responses.ResponseEvents(call.parts[2], model=model)
    await _answer(call, office, session_id, after_seq, fold, streams=False, waits=False)


async def _answer(
    call: HttpCall,
    office: Office,
    session_id: str,
    after_seq: int,
    fold: responses.ResponseEvents,
    *,
    streams: bool,
    waits: bool,
    starting_after: int = 0,
) -> None:
    """A response as a stream, or as an object: when it is whole, or as it stands."""

    async def nowhere(told: Iterable[Json]) -> None:
        """Only the object is sent."""

    if streams:
        async with await call.stream() as stream:

            async def send(told: Iterable[Json]) -> None:
                await _send(stream, responses.after(told, starting_after), named=True)

            await _tell(office, stream, session_id, after_seq, fold, send)
        return
    if waits:
        await _tell(office, None, session_id, after_seq, fold, nowhere)
    else:
        for event in await off_loop(True, lambda: office.desk.store.read_events(session_id, after_seq=after_seq)):
            fold.take(office.lines.shown(event))
    await call.reply(200, fold.response())


Fold = agui.RunEvents | responses.ResponseEvents
Tell = Callable[[Iterable[Json]], Awaitable[None]]


async def _tell(
    office: Office, stream: EventStream | None, session_id: str, after_seq: int, fold: Fold, send: Tell
) -> None:
    """Follow a session and tell what its events mean, until the run is over, the client leaves, or this process ends."""
    async with office.desk.follow_known(session_id, after_seq=after_seq) as follower:
        if stream is not None:
            stream.when_gone(follower.wake)
        while not fold.is_done and not (stream is not None and stream.is_gone):
            if office.desk.is_draining:
                return await send(fold.fail("this server is about to end; the run can go on at the next one"))
            try:
                batch = await follower.batch(COMMENT_S)
            except OpenAgentSdkError as error:  # the session was deleted, or its store is away
                return await send(fold.fail(str(error)))
            for event in batch:
                await send(fold.take(office.lines.shown(event)))
            if not batch and stream is not None and not stream.is_gone:
                await stream.send(b":\n\n")


async def _send(stream: EventStream, told: Iterable[Json], *, named: bool = False) -> None:
    pieces = [f"event: {each['type']}\n" * named + f"data: {dumps_json(each)}\n\n" for each in told]
    if pieces:
        await stream.send("".join(pieces).encode("ascii"))


async def _find_response(call: HttpCall, office: Office) -> tuple[str, int, str]:
    """The session of a response, where its run begins, and the agent. Raises `RequestRefusedError` 404."""
    response_id = call.parts[2]
    session_id = responses.session_of(response_id)
    if session_id is not None:
        agent = await office.desk.agent_of(call.principal, session_id)
        store = office.desk.store
        after_seq = await off_loop(True, _before_run, store, session_id, None, response_id)
        if after_seq is not None:
            return session_id, after_seq, agent
    raise RequestRefusedError(404, f"there is no response {response_id!r:.250} here")


def _before_run(
    store: SessionStore, session_id: str, request_id: str | None, response_id: str | None = None
) -> int | None:
    """The `seq` before the first event of the run that took this request; None when none did."""
    began = 0
    for event in store.iter_events(session_id):
        if isinstance(event, SystemInit):
            began = (event.seq or 1) - 1
        elif isinstance(event, UserMessage) and event.request_id is not None:
            known = event.request_id
            if known == request_id or responses.response_id(session_id, known) == response_id:
                return began
    return None


async def list_models(call: HttpCall, office: Office) -> None:
    """`GET /v1/models`: the agents, which are what `model` names."""
    await call.reply(200, {"object": "list", "data": [responses.model(name) for name in office.desk.agents]})


async def show_model(call: HttpCall, office: Office) -> None:
    """`GET /v1/models/{model}`."""
    office.desk.agents[call.parts[2]]
    await call.reply(200, responses.model(call.parts[2]))


def in_openai_words(
    handler: Callable[[HttpCall, Office], Awaitable[None]],
) -> Callable[[HttpCall, Office], Awaitable[None]]:
    """The handler with its refusals as OpenAI's clients expect them."""

    async def handle(call: HttpCall, office: Office) -> None:
        try:
            await handler(call, office)
        except REFUSALS as error:
            if call.has_begun:
                raise
            status, message, headers = refusal_of(error)
            await call.reply(status, responses.error(status, message, code_of(error)), headers)

    return handle


PROJECTED: Mapping[str, Handler] = {
    "run_ag_ui": run_for_ag_ui,
    "create_response": in_openai_words(create_response),
    "show_response": in_openai_words(show_response),
    "cancel_response": in_openai_words(cancel_response),
    "list_models": in_openai_words(list_models),
    "show_model": in_openai_words(show_model),
}
