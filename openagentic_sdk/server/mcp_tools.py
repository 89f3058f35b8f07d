"""The MCP tools for programs that use agents: five tools on top of the desk, and how their results present a session.

A run belongs to the desk: if it takes longer than a call waits, the caller gets its session and asks again. A model that
calls these tools can never answer a permission question: only the client's user, asked by the client itself (elicitation),
or a person at this machine can.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ..errors import OpenAgentSdkError, RequestRefusedError, RpcError, ToolInputError
from ..events import (
    AssistantMessage,
    Event,
    Result,
    StopReason,
    ToolResult,
    ToolUse,
    UserAnswer,
    UserMessage,
    UserQuestion,
)
from ..ground.frozen import frozen
from ..ground.jsonrpc import INVALID_PARAMS
from ..ground.schemas import validate
from ..ground.text import on_one_line, without_hidden
from ..kernel.recorder import off_loop
from ..parts.record.folds.notes import describe_input, note_of
from ..permissions.interactive import question_text
from ..sessions.answers import takes_own_words
from ..sessions.base import SessionStore
from ..sessions.folds.standing import is_end, state_after
from ..sessions.resume import load_view
from ..sessions.store import FileSessionStore
from ..tools.schema import number, string
from .desk import Desk
from .guard import Principal

# Most clients time out a call after 60 s.
WAIT_S = 50.0
MAX_WAIT_S = 3600.0
MAX_TEXT_CHARS = 16_000
MAX_LINE_CHARS = 1_000
MAX_PROMPT_CHARS = 500_000

# The status that a caller sees for the state of a stopped run.
_STATUSES = {"parked": "waiting", "over": "done"}
_ELICIT = "elicitation/create"
# The choice that stores a rule in this machine's settings, which a remote person may not do.
_NOT_FROM_AFAR = "always save"

TellLine = Callable[[str], Awaitable[None]]
AskClient = Callable[[str, Mapping[str, Any]], Awaitable[Any]]


@frozen
class Caller:
    """The caller of a tool, and what its client supports during the call.

    `tell` receives a line about each step. `ask` sends a request to the client and waits (`elicitation/create`, legacy).
    `can_repeat` means that the client can be asked to repeat the call with answers (modern), which then arrive as `inputs`,
    by key. `can_cancel` means that a client which abandons the call wants to cancel it, and has not merely disconnected.
    """

    who: Principal
    tell: TellLine | None = None
    ask: AskClient | None = None
    can_repeat: bool = False
    inputs: Mapping[str, Any] | None = None
    can_cancel: bool = False


class InputRequired(Exception):
    """Raised if the call must be repeated with the answers to `requests`, by their keys."""

    def __init__(self, requests: Mapping[str, Any]) -> None:
        super().__init__("input is required")
        self.requests = requests


# The session of a call, the `seq` before its events, whether a run is in progress, and the id of a request that is queued.
_Begun = tuple[str, int, bool, str | None]


@frozen
class _RunStanding:
    """The state of a run: `running`, `waiting` for a person, `done` or `failed`, and its final text.

    `after_seq` is the `seq` of the last event that was read to determine it.
    """

    status: str
    after_seq: int
    text: str = ""
    stop_reason: StopReason | None = None


@frozen
class ParkedQuestion:
    """A question on which a run is parked, and the tool whose call asks it."""

    question: UserQuestion
    tool: str

    @property
    def id(self) -> str:
        """The id of the question."""
        return self.question.question_id

    @property
    def is_for_models(self) -> bool:
        """Whether the question is about the work: neither a permission nor an MCP server's question to its user."""
        return self.question.kind == "question" and self.tool == "AskUserQuestion"

    def choices(self) -> list[str]:
        """The choices that a remote client may select."""
        return [choice for choice in self.question.choices if choice != _NOT_FROM_AFAR]

    def row(self) -> dict[str, Any]:
        """The question as JSON; `kind` is `question` if `answer_question` accepts it, else `person` or `permission`."""
        kind = self.question.kind if self.question.kind != "question" or self.is_for_models else "person"
        choices = [_shown_choice(choice) for choice in self.choices()]
        return {"question_id": self.id, "kind": kind, "prompt": _cut(self.question.prompt), "choices": choices}

    def meant(self, answer: str) -> str:
        """The choice that an answer repeats as `row` shows it, which may be cut; otherwise the answer itself."""
        return next((choice for choice in self.choices() if _shown_choice(choice) == answer.strip()), answer)


class RunTools:
    """The MCP tools of a desk, for any number of callers.

    A call waits `wait_s` seconds for a run, unless the call itself specifies the time.
    """

    def __init__(self, desk: Desk, *, wait_s: float = WAIT_S) -> None:
        self._desk = desk
        self._wait_s = wait_s

    def definitions(self) -> list[dict[str, Any]]:
        """The tool definitions for `tools/list`, in a fixed order."""
        agents = self._desk.agents
        agent_list = "; ".join(f"{name}: {on_one_line(agents[name].description, 300)}" for name in agents)
        session = string("The session's id.", maxLength=200)
        wait = number("Seconds to wait for the end of the run.", minimum=0, maximum=MAX_WAIT_S)
        return [
            _tool(
                "run_agent",
                f"Let an agent do something, and wait for its answer. The agents are: {agent_list}. A run that takes "
                "longer than the wait continues: show_session shows its progress and state.",
                {
                    "prompt": string("What to do.", minLength=1, maxLength=MAX_PROMPT_CHARS),
                    "agent": string(f"Default: {agents.default}.", enum=list(agents)),
                    "session_id": {**session, "description": "The session to continue; if omitted, a new one."},
                    "wait_s": wait,
                },
                ("prompt",),
            ),
            _tool(
                "list_sessions",
                "List the sessions, most recently written first.",
                {
                    "query": string("Words in the title, prompts, tags, model or id.", maxLength=500),
                    "limit": {"type": "integer", "minimum": 1, "maximum": 50},
                    "offset": {"type": "integer", "minimum": 0},
                },
                reads=True,
            ),
            _tool(
                "show_session",
                "Report what happened in a session after an event, whether its run is in progress, and its open questions.",
                {"session_id": session, "after_seq": {"type": "integer", "minimum": 0}},
                ("session_id",),
                reads=True,
            ),
            _tool("cancel_run", "End the run of a session permanently.", {"session_id": session}, ("session_id",)),
            _tool(
                "answer_question",
                "Answer a question that an agent asks about its work, so that it continues. Permission questions cannot "
                "be answered here: a person does that.",
                {
                    "session_id": session,
                    "question_id": {"type": "string", "maxLength": 200},
                    "answer": {"type": "string", "minLength": 1, "maxLength": 20_000},
                    "wait_s": wait,
                },
                ("session_id", "question_id", "answer"),
            ),
        ]

    async def call(self, name: str, arguments: Mapping[str, Any], caller: Caller) -> dict[str, Any]:
        """Run a tool and return the result of `tools/call`; errors become results with `isError`.

        Raises `InputRequired`, and `RpcError` for an unknown tool or unusable `inputs` of the caller.
        """
        schema = next((tool["inputSchema"] for tool in self.definitions() if tool["name"] == name), None)
        if schema is None:
            raise RpcError(INVALID_PARAMS, f"unknown tool {name!r:.100}")
        try:
            arguments = validate(arguments, schema)
            if name in ("run_agent", "answer_question"):
                return await self._go_on(name, arguments, caller)
            if name == "list_sessions":
                return await self._list_sessions(arguments, caller)
            if name == "show_session":
                return await self._show_session(arguments, caller)
            was_running = await self._desk.cancel(caller.who, arguments["session_id"])
            message = "the run was ended" if was_running else "no run was in progress in this session"
            return _result(message, {"session_id": arguments["session_id"], "cancelled": was_running})
        except RpcError:
            raise
        except OpenAgentSdkError as error:
            again_s = error.retry_after_s if isinstance(error, RequestRefusedError) else None
            refused: dict[str, Any] = {"content": [_text(str(error))], "isError": True}
            return refused if again_s is None else {**refused, "structuredContent": {"retryAfter": again_s}}

    # --- the tools ---------------------------------------------------------------------------------------------------

    async def _go_on(self, name: str, arguments: Mapping[str, Any], caller: Caller) -> dict[str, Any]:
        """Start a run, or answer a parked run's question; return the state that the run reaches in time."""
        until = time.monotonic() + arguments.get("wait_s", self._wait_s)
        beginning = asyncio.create_task(self._begin(name, arguments, caller))
        try:
            # Shielded, because the run that a cancelled call began must still be found in order to be ended.
            session_id, after_seq, goes_on, queued = await asyncio.shield(beginning)
            return await self._until(caller, session_id, after_seq, until, goes_on=goes_on, queued=queued)
        except asyncio.CancelledError:
            if caller.can_cancel and not self._desk.is_draining:
                self._desk.keep(self._end_with_call(caller.who, beginning))
            else:
                beginning.cancel()
            raise

    async def _begin(self, name: str, arguments: Mapping[str, Any], caller: Caller) -> _Begun:
        """Begin the work of a call."""
        session_id: Any = arguments.get("session_id")
        if caller.inputs:
            return (*(await self._take_inputs(caller)), None)
        if name == "run_agent":
            agent, prompt = arguments.get("agent"), arguments["prompt"]
            started = await self._desk.start(caller.who, agent, prompt, session_id=session_id)
            queued = await self._desk.find_queued(started.session_id, started.request_id.__eq__)
            return started.session_id, started.after_seq, True, None if queued is None else queued.id
        question = await self._find_question(caller.who, session_id, arguments["question_id"])
        if not question.is_for_models:
            raise ToolInputError("only a person may answer this, not a model that calls a tool", path="question_id")
        after_seq = (await self._desk.row(caller.who, session_id)).events
        await self._desk.answer_all(caller.who, session_id, {question.id: question.meant(arguments["answer"])})
        return session_id, after_seq, True, None

    async def _end_with_call(self, who: Principal, beginning: asyncio.Task[_Begun]) -> None:
        """End the run of a cancelled call, if its agent's `ends_with_call` is set."""
        with suppress(OpenAgentSdkError, RpcError):  # it never started or has ended: nobody waits for the result
            session_id = (await beginning)[0]
            if self._desk.agents[await self._desk.agent_of(who, session_id)].ends_with_call:
                await self._desk.cancel(who, session_id)

    async def _list_sessions(self, arguments: Mapping[str, Any], caller: Caller) -> dict[str, Any]:
        rows = await self._desk.rows(
            caller.who,
            query=arguments.get("query"),
            limit=int(arguments.get("limit", 20)),
            offset=int(arguments.get("offset", 0)),
        )
        listed = [
            {
                "session_id": row.id,
                "label": on_one_line(row.label, 200),
                "state": row.state,
                "updated": row.updated,
                "turns": row.turns,
                "last_seq": row.events,
            }
            for row in rows
        ]
        lines = [f"{row['session_id']} {row['state']:9} {row['label']}" for row in listed]
        return _result("\n".join(lines) or "there are no sessions", {"sessions": listed})

    async def _show_session(self, arguments: Mapping[str, Any], caller: Caller) -> dict[str, Any]:
        session_id, after_seq = arguments["session_id"], int(arguments.get("after_seq", 0))
        row = await self._desk.row(caller.who, session_id)
        events, last_seq = await self._desk.events(caller.who, session_id, after_seq=after_seq)
        lines: list[str] = []
        size = 0
        for event in events:
            line = _line_of(event)
            size += len(line) + 1
            if size > MAX_TEXT_CHARS:
                break
            lines += [line] if line else []
            after_seq = event.seq or after_seq
        questions = await self._open_questions(session_id) if row.open_questions else []
        rows = [question.row() for question in questions]
        lines_asked = [f"it asks ({each['kind']}, {each['question_id']}): {each['prompt']}" for each in rows]
        more = [f"(more: show_session with after_seq {after_seq})"] if after_seq < last_seq else []
        data = {
            "session_id": session_id,
            "state": row.state,
            "after_seq": after_seq,
            "last_seq": last_seq,
            "questions": rows,
        }
        return _result("\n".join([*lines, *more, f"state: {row.state}", *lines_asked]), data)

    # --- a run, from a prompt to its end or to a question --------------------------------------------------------------

    async def _until(
        self,
        caller: Caller,
        session_id: str,
        after_seq: int,
        until: float,
        *,
        goes_on: bool = True,
        queued: str | None = None,
    ) -> dict[str, Any]:
        """Follow a session until its run ends, a question needs a person who cannot be asked, or the wait is over.

        Return the run's state as the result of the tool. Raises `InputRequired` if the client can repeat the call with an
        answer.
        """
        while True:
            state = (
                await self._follow(caller, session_id, after_seq, until, queued)
                if goes_on
                else _RunStanding("waiting", after_seq)
            )
            question = next(iter(await self._open_questions(session_id)), None) if state.status == "waiting" else None
            if question is None or not goes_on or not caller.who.may_answer:
                return _run_result(session_id, state, question, self._desk.store)
            request = _elicitation(session_id, question)
            if caller.can_repeat:
                raise InputRequired({f"{session_id}/{question.id}": {"method": _ELICIT, "params": request}})
            answer = None
            if caller.ask is not None:
                with suppress(RpcError):  # the client cannot ask after all
                    answer = _read_answer(await caller.ask(_ELICIT, request), question)
            if answer is None:
                return _run_result(session_id, state, question, self._desk.store)
            after_seq, queued = (await self._desk.row(caller.who, session_id)).events, None
            await self._desk.answer_all(caller.who, session_id, {question.id: answer})

    async def _follow(
        self, caller: Caller, session_id: str, after_seq: int, until: float, queued: str | None
    ) -> _RunStanding:
        """Follow a session until its run ends, parks or cannot be resumed, or the wait is over; return the run's state.

        The events before the prompt of a `queued` request are those of others that were queued before it.
        """
        async with self._desk.follow(caller.who, session_id, after_seq=after_seq, deltas=False) as follower:
            while (left_s := until - time.monotonic()) > 0 and not self._desk.is_draining:
                batch = await follower.batch(left_s)
                if not batch and (refusal := self._desk.left.refusal(session_id)) is not None:
                    return _RunStanding("failed", follower.after_seq, refusal)
                for event in batch:
                    if isinstance(event, UserMessage | Result) and event.request_id == queued:
                        queued = None
                    if queued is not None:
                        continue
                    if caller.tell is not None and (line := _line_of(event)):
                        await caller.tell(line)
                    if isinstance(event, Result) and is_end(event) and event.parent_tool_use_id is None:
                        text = event.final_text
                        if event.structured_output is not None and not text:
                            text = json.dumps(event.structured_output)
                        failure = f"\n{event.error_message}" if event.error_message else ""
                        status = "failed" if event.stop_reason == "error" else _STATUSES[state_after(event)]
                        return _RunStanding(status, event.seq or 0, f"{text}{failure}".strip(), event.stop_reason)
            return _RunStanding("running", follower.after_seq)

    async def _take_inputs(self, caller: Caller) -> tuple[str, int, bool]:
        """Store the client's answer; return the session, the `seq` before it, and whether the run is in progress now."""
        assert caller.inputs is not None, "the caller has checked this"
        key, response = next(iter(caller.inputs.items()))
        session_id, slash, question_id = str(key).partition("/")
        if len(caller.inputs) != 1 or not slash:
            raise RpcError(INVALID_PARAMS, "inputResponses must have the one key that inputRequests had")
        question = await self._find_question(caller.who, session_id, question_id)
        answer = _read_answer(response, question)
        after_seq = (await self._desk.row(caller.who, session_id)).events
        if answer is not None:
            await self._desk.answer_all(caller.who, session_id, {question_id: answer})
        return session_id, after_seq, answer is not None

    async def _find_question(self, who: Principal, session_id: str, question_id: str) -> ParkedQuestion:
        """Find an open question. Raises `ToolInputError` if it is not open, and `SessionNotFoundError`."""
        await self._desk.row(who, session_id)
        for question in await self._open_questions(session_id):
            if question.id == question_id:
                return question
        raise ToolInputError(f"no question {question_id!r:.100} is open in this session", path="question_id")

    async def _open_questions(self, session_id: str) -> Sequence[ParkedQuestion]:
        def read() -> Sequence[ParkedQuestion]:
            view, _ = load_view(self._desk.store, session_id)
            calls = {
                record.use.tool_use_id: record.use.name for record in (*view.open_inner_calls(), *view.open_calls())
            }
            questions = view.open_questions()
            return [ParkedQuestion(each, calls[each.tool_use_id]) for each in questions if each.tool_use_id in calls]

        questions: Sequence[ParkedQuestion] = await off_loop(True, read)
        return questions


# --- text ------------------------------------------------------------------------------------------------------------


def _tool(
    name: str, description: str, properties: Mapping[str, Any], required: Sequence[str] = (), *, reads: bool = False
) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
    hints = {"readOnlyHint": reads, "openWorldHint": not reads}
    return {"name": name, "description": description, "inputSchema": schema, "annotations": hints}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": _cut(text, MAX_TEXT_CHARS)}


def _result(text: str, data: Mapping[str, Any]) -> dict[str, Any]:
    return {"content": [_text(text)], "structuredContent": data, "isError": False}


def _cut(text: str, max_chars: int = MAX_LINE_CHARS) -> str:
    text = without_hidden(text)
    return text if len(text) <= max_chars else f"{text[:max_chars]} [{len(text) - max_chars} more characters]"


def _shown_choice(choice: str) -> str:
    return _cut(choice, 200)


def _run_result(
    session_id: str, state: _RunStanding, question: ParkedQuestion | None, store: SessionStore
) -> dict[str, Any]:
    """The state of a run as the result of a tool."""
    text = _cut(state.text, MAX_TEXT_CHARS)
    data: dict[str, Any] = {
        "session_id": session_id,
        "status": state.status,
        "stop_reason": state.stop_reason,
        "after_seq": state.after_seq,
        "text": text,
    }
    lines = [text] if text else []
    if state.status == "running":
        lines.append(f"The run continues in session {session_id}: call show_session with after_seq {state.after_seq}.")
    elif question is None:
        lines.append(f"[session {session_id}, {state.status}]")
    else:
        data["question"] = question.row()
        lines.append(
            f"Session {session_id} asks ({question.id}): {data['question']['prompt']} {data['question']['choices'] or ''}"
        )
        place = f" --store {shlex.quote(str(store.root_dir))}" if isinstance(store, FileSessionStore) else ""
        by_person = f"A person answers it with: openagentic-sdk chat --resume {session_id}{place}"
        lines.append("Answer with answer_question." if question.is_for_models else by_person)
    return {**_result("\n\n".join(lines), data), "isError": state.status == "failed"}


def _elicitation(session_id: str, parked: ParkedQuestion) -> dict[str, Any]:
    """The question as a form: a choice or a line of text."""
    question, choices = parked.question, parked.choices()
    answer: dict[str, Any] = {"type": "string", "title": "Answer", **({"enum": choices} if choices else {})}
    is_free = bool(choices) and takes_own_words(question)
    words = {"other": {"type": "string", "title": "Or in your own words"}} if is_free else {}
    text = question_text(question).rpartition("\n")[0] if question.kind == "permission" else question.prompt
    schema = {"type": "object", "properties": {"answer": answer, **words}, "required": [] if words else ["answer"]}
    message = _cut(f"The agent of session {session_id} asks:\n{text}", 4_000)
    return {"mode": "form", "message": message, "requestedSchema": schema}


def _read_answer(response: Any, question: ParkedQuestion) -> str | None:
    """The user's answer; None if the user gave no valid one. For a permission, only the choices offered are valid."""
    content = response.get("content") if isinstance(response, Mapping) and response.get("action") == "accept" else None
    if not isinstance(content, Mapping):
        return None
    texts = [text.strip() for text in (content.get("other"), content.get("answer")) if isinstance(text, str)]
    answer = next(filter(None, texts), "")
    if question.question.kind == "permission" and answer not in question.choices():
        return None
    return answer[:20_000] or None


def _line_of(event: Event) -> str:
    """An event as one line of progress; empty for an event that is not shown."""
    where = f"{on_one_line(event.agent_name)}: " if event.agent_name else ""
    match event:
        case UserMessage():
            line = f"prompt ({event.origin}): {event.text}"
        case AssistantMessage() if event.text:
            line = f"says: {event.text}"
        case ToolUse():
            line = f"calls {event.name}: {describe_input(event.name, event.input)}"
        case ToolResult():
            output = event.error_message if event.is_error else event.output
            text = output if isinstance(output, str) else json.dumps(output, default=str)
            line = f"result ({event.outcome}): {text[:4_000]}"
        case UserQuestion():
            line = f"asks ({event.kind}): {event.prompt}"
        case UserAnswer():
            line = f"is answered by {event.answered_by}: {event.answer}"
        case Result():
            line = f"ends ({event.stop_reason})"
        case _:
            note = note_of(event)
            line = note[0] if note is not None else ""
    return on_one_line(f"{where}{without_hidden(line[:4_000])}", MAX_LINE_CHARS) if line else ""
