"""AG-UI 1.0: read a front end's input and fold a run's events into AG-UI events. JSON in and out, no I/O.

A thread is a session, and the log is authoritative: of an input's messages, only a new user message at the end is used. A
run that waits for a person ends with an interrupt, and the input with the answer resumes it: its calls are not sent again,
only their results. A client's tools, state and context are ignored, and a custom event lists what was ignored.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from ..errors import OptionsError
from ..events import (
    Event,
    HookEvent,
    ModelRequest,
    ModelResponse,
    ModelRetry,
    PermissionDecision,
    Result,
    SkillActivated,
    SubagentFinished,
    SubagentStarted,
    SystemInit,
    SystemNotice,
    TodoUpdated,
    ToolResult,
    ToolStarted,
    ToolUse,
    UserAnswer,
    UserMessage,
    UserQuestion,
)
from ..ground.frozen import frozen
from ..ground.jsonrpc import Json
from ..ground.text import existing
from ..parts.masking import environment_redactor, shown
from ..parts.record.folds.notes import printed_by_plan
from ..serialization import dumps_json
from ..sessions.answers import takes_own_words
from ..sessions.folds.standing import Request, RequestState, find_request, is_end
from ..sessions.folds.streamed import Piece, Streamed, message_id
from ..sessions.folds.usage import add_usage, normalize_usage
from ..sessions.rebuild import result_text

VERSION = "1.0"
MAX_ID_CHARS = 200
# Ignored fields of an input; most clients send the first two empty.
_LEFT_OUT = ("tools", "context", "state", "forwardedProps")
# The details of a question that a client receives, besides its text and choices.
_QUESTION_FIELDS = ("tool_name", "preview", "reason", "header", "multi_select")
_PARTS = {"image": "image", "audio": "audio", "document": "file"}
_USAGE = {
    "input_tokens": "inputTokens",
    "cached_input_tokens": "cachedInputTokens",
    "cache_write_tokens": "cacheWriteInputTokens",
    "output_tokens": "outputTokens",
    "reasoning_tokens": "reasoningTokens",
}


# --- input -----------------------------------------------------------------------------------------------------------


@frozen
class RunInput:
    """The fields of a `RunAgentInput` that are used.

    `prompt` is the user's prompt, None if the last message is not the user's; `message` is that message verbatim. `answers`
    maps the ids of interrupts (questions) to answers. `known_ids` are the ids of the agent messages that the client has,
    `left_out` the names of the ignored fields.
    """

    thread_id: str
    run_id: str
    prompt: Sequence[Mapping[str, Any]] | None = None
    message: Mapping[str, Any] | None = None
    answers: Mapping[str, str] = field(default_factory=dict)
    known_ids: Sequence[str] = ()
    left_out: Sequence[str] = ()


def read_run_input(data: Any) -> RunInput:
    """Parse the input of a run. Raises an `OptionsError` that names the invalid field."""
    if not isinstance(data, Mapping):
        raise OptionsError("a run's input must be one JSON object (RunAgentInput)")
    messages, resume = data.get("messages"), data.get("resume") or []
    if not isinstance(messages, list) or not all(isinstance(message, Mapping) for message in messages):
        raise OptionsError("messages must be a list of objects")
    if not isinstance(resume, list) or not all(isinstance(entry, Mapping) for entry in resume):
        raise OptionsError("resume must be a list of answers, {interruptId, status, payload}")
    last = messages[-1] if messages else {}
    is_new = last.get("role") == "user"
    return RunInput(
        _id(data, "threadId"),
        _id(data, "runId"),
        prompt=_parts(last.get("content")) if is_new else None,
        message=last if is_new else None,
        answers={_id(entry, "interruptId"): _answer(entry) for entry in resume},
        known_ids=[str(message.get("id")) for message in messages if message.get("role") == "assistant"],
        left_out=[name for name in _LEFT_OUT if data.get(name)],
    )


def _id(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= MAX_ID_CHARS:
        raise OptionsError(f"{name} must be a string of 1 to {MAX_ID_CHARS} characters, not {value!r:.100}")
    return value


def _parts(content: Any) -> list[Json]:
    """Convert a user message's content to prompt parts. Media are bytes or URLs; vendors' file ids are not supported."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list) or not content:
        raise OptionsError("the content of the last message must be a string or a non-empty list of parts")
    parts = []
    for number, part in enumerate(content, 1):
        match part:
            case {"type": "text", "text": str(text)}:
                parts.append({"type": "text", "text": text})
            case {"type": str(kind), "source": {"type": "data", "value": str(value), "mimeType": str(media_type)}} if (
                kind in _PARTS
            ):
                parts.append({"type": _PARTS[kind], "data": value, "media_type": media_type})
            case {"type": str(kind), "source": {"type": "url", "value": str(value)} as source} if kind in _PARTS:
                media_type = source.get("mimeType")
                type_field = {"media_type": media_type} if isinstance(media_type, str) else {}
                parts.append({"type": _PARTS[kind], "url": value, **type_field})
            case _:
                raise OptionsError(
                    f"part {number} of the last message must be text, or an image, audio or document with its data or url"
                )
    return parts


def _answer(entry: Mapping[str, Any]) -> str:
    """The answer as text; a dismissed question means no.

    Accepted payloads are a string, `{"answer": text}`, `{"approved": bool}` and a bool. Raises `OptionsError` for any other.
    """
    payload = entry.get("payload")
    if entry.get("status") == "cancelled":
        return "no because the question was dismissed"
    if isinstance(payload, Mapping):
        payload = payload.get("answer", payload.get("approved"))
    if isinstance(payload, bool):
        return "yes" if payload else "no"
    if not isinstance(payload, str) or not payload.strip():
        raise OptionsError(
            f"the answer to interrupt {_id(entry, 'interruptId')!r:.100} needs a payload with a string, or true or false: "
            '"yes", or {"answer": "yes"}'
        )
    return payload


def refusal(run: RunInput, open_questions: Iterable[str], answered: Container[str] = ()) -> str | None:
    """The reason why this input is refused; None if it is accepted.

    `answered` contains the thread's answered questions: answering them again is harmless and changes nothing.
    """
    waiting = list(open_questions)
    missing = [question for question in waiting if question not in run.answers]
    if missing:
        return f"the thread waits for an answer: resume must cover the interrupts {', '.join(missing)}"
    unknown = [question for question in run.answers if question not in waiting and question not in answered]
    if unknown:
        return f"the thread has no interrupt {unknown[0]!r:.100}: {existing('open interrupts', waiting)}"
    if run.prompt is None and not run.answers:
        return "the input asks for nothing: the last message is not the user's, and nothing is resumed"
    return None


def untold(run: RunInput, events: Sequence[Event]) -> Request | None:
    """The thread's newest request, if the client has lost its stream; otherwise None.

    It has if the request is queued, running or suspended, or if the client's last agent message is not the thread's
    last one. A client without any agent messages has not lost the stream of a finished request.
    """
    prompts = (event for event in reversed(events) if isinstance(event, UserMessage) and event.origin == "user")
    newest = next(prompts, None)
    request = None if newest is None else find_request(events, (newest.request_id or "").__eq__)
    if request is None or request.state in ("queued", "running", "suspended"):
        return request
    last = [message["id"] for message in conversation(events) if message["role"] == "assistant"][-1:]
    return request if run.known_ids and list(run.known_ids[-1:]) != last else None


def catch_up(run: RunInput, events: Sequence[Event], told_from: int) -> list[Json] | None:
    """The thread's messages up to event `told_from`, from which the run is streamed; None if the client already has them.

    `events` are all events of the thread. Raises `OptionsError` if the client has agent messages that were never in the
    thread: that is another conversation.
    """
    messages = conversation(event for event in events if (event.seq or 0) <= told_from)
    said_in_all = {message["id"] for message in conversation(events)}
    answer_ids = [message["id"] for message in messages if message["role"] == "assistant"]
    # A partial answer shown when its process died is in no message of the log, but its model request is in the log.
    attempt_ids = {message_id(event) for event in events if isinstance(event, ModelRequest | ModelRetry)}
    strangers = [each for each in run.known_ids if each not in attempt_ids | said_in_all]
    if strangers:
        raise OptionsError(
            f"message {strangers[0]!r:.100} does not belong to thread {run.thread_id!r}: send the thread's own messages, "
            "or use another threadId"
        )
    if list(run.known_ids[-1:]) == answer_ids[-1:]:
        return None
    return messages if run.message is None else [*messages, dict(run.message)]


# --- output ----------------------------------------------------------------------------------------------------------


class RunEvents:
    """A fold from a run's log to AG-UI events: `take` returns those for the next event, `begin` the first ones.

    Feed it the session's own events from the run's `system.init` on; deltas may come between them. The last AG-UI event is
    RUN_FINISHED or RUN_ERROR, exactly once; then `is_done` is true. `snapshot` contains the thread's messages for a client
    that lacks some, see `catch_up`.
    """

    def __init__(
        self, thread_id: str, run_id: str, *, snapshot: Sequence[Json] | None = None, left_out: Sequence[str] = ()
    ) -> None:
        self.is_done = False
        self._run = {"threadId": thread_id, "runId": run_id}
        self._snapshot = snapshot
        self._left_out = list(left_out)
        self._has_begun = False
        self._streamed = Streamed()
        self._redact = environment_redactor()
        self._open: set[str] = set()
        self._questions: dict[str, UserQuestion] = {}
        self._subagents: dict[str, str] = {}  # active subagents: their ids by session
        self._usage: dict[tuple[str, str], Any] = {}
        self._is_workflow = False
        self._steps: dict[str, str] = {}  # active steps of a workflow: their names by call id

    def begin(self) -> list[Json]:
        """Return RUN_STARTED, the snapshot if any, and the list of ignored fields; nothing after the first call."""
        if self._has_begun:
            return []
        self._has_begun = True
        events: list[Json] = [{"type": "RUN_STARTED", **self._run, "protocolVersion": VERSION}]
        if self._snapshot is not None:
            events.append({"type": "MESSAGES_SNAPSHOT", "messages": list(self._snapshot)})
            self._snapshot = None
        if self._left_out:
            events.append({"type": "CUSTOM", "name": "input.left_out", "value": {"fields": self._left_out}})
        return events

    def fail(self, message: str, code: str | None = None) -> list[Json]:
        """End a run that could not start or be followed; return its last events, or nothing if it has ended."""
        if self.is_done:
            return []
        return [
            *self.begin(),
            *self._end({"type": "RUN_ERROR", "message": message, **({"code": code} if code else {})}),
        ]

    def leave(self) -> list[Json]:
        """End the stream because this process ends; return the last events.

        Another process resumes the run and streams it if the client sends its input again.
        """
        return self.stop(
            "suspended", "this server is shutting down, and the run continues on another one: send the input again"
        )

    def stop(self, state: RequestState, message: str | None = None) -> list[Json]:
        """End the stream of a run in this state whose log contains no end event; return the last events."""
        if self.is_done or state != "over":
            return self.fail(message or f"the run is {state}", state)
        return [*self.begin(), *self._end({"type": "RUN_FINISHED", **self._run, "outcome": {"type": "cancelled"}})]

    def take(self, event: Event) -> list[Json]:
        """Apply an event of the log; return its AG-UI events in order."""
        if self.is_done or event.parent_tool_use_id is not None:
            return []
        events = self.begin()
        for piece in self._streamed.take(event):
            events += self._piece_events(piece)
        return events + self._beside(event)

    # --- messages and calls ------------------------------------------------------------------------------------------

    def _piece_events(self, piece: Piece) -> list[Json]:
        """Apply a piece of a message or thought; return its AG-UI events."""
        kind = "REASONING_MESSAGE" if piece.is_thought else "TEXT_MESSAGE"
        place = {"messageId": piece.id}
        events: list[Json] = []
        if piece.id not in self._open and piece.text:
            self._open.add(piece.id)
            role = "reasoning" if piece.is_thought else "assistant"
            events = [{"type": "REASONING_START", **place}] if piece.is_thought else []
            events.append({"type": f"{kind}_START", **place, "role": role})
        if piece.text:
            events.append({"type": f"{kind}_CONTENT", **place, "delta": piece.text})
        if piece.ends and piece.id in self._open:
            self._open.discard(piece.id)
            events.append({"type": f"{kind}_END", **place})
            events += [{"type": "REASONING_END", **place}] if piece.is_thought else []
        return events

    def _beside(self, event: Event) -> list[Json]:
        """Apply an event, except for the model's text in it; return its AG-UI events."""
        match event:
            case SystemInit():
                self._is_workflow = event.provider == event.model == "workflow"
            case ToolUse():
                return self._call(shown(event, self._redact))
            case ToolStarted() if self._is_workflow:
                name = self._steps[event.tool_use_id] = f"{event.tool_use_id} {shown(event, self._redact).name}"
                return [{"type": "STEP_STARTED", "stepName": name}]
            case ToolResult():
                text = printed_by_plan(event) or result_text(event)
                place = {"messageId": f"result.{event.seq}", "toolCallId": event.tool_use_id, "role": "tool"}
                return [{"type": "TOOL_CALL_RESULT", **place, "content": text}, *self._end_step(event.tool_use_id)]
            case TodoUpdated():
                todos = {"todos": [dict(item) for item in event.todos if isinstance(item, Mapping)]}
                return [{"type": "ACTIVITY_SNAPSHOT", "messageId": "todo", "activityType": "todo", "content": todos}]
            case ModelResponse():
                self._spend(event.provider or "", event.model or "", event.usage)
            case SubagentStarted() | SubagentFinished():
                return self._subagent(event)
            case UserQuestion():
                self._questions[event.question_id] = event
            case UserAnswer():
                self._questions.pop(event.question_id, None)
            case Result() if is_end(event):
                return self._finish(event)
        value: Json  # of an event that AG-UI has no type for, but that interests users
        match event:
            case PermissionDecision():
                value = {"toolCallId": event.tool_use_id, "toolName": event.name, "allowed": event.allowed}
                value |= {"reason": event.reason, "answeredBy": event.answered_by}
            case SystemNotice():
                value = {"code": event.code, "message": event.message}
            case HookEvent() if event.action not in (None, "none"):
                value = {"hook": event.name, "point": event.hook_point, "action": event.action}
            case SkillActivated():
                value = {"name": event.name, "requestedBy": event.requested_by}
            case _:
                return []
        return [{"type": "CUSTOM", "name": event.type, "value": value}]

    def _end_step(self, call_id: str) -> list[Json]:
        name = self._steps.pop(call_id, None)
        return [] if name is None else [{"type": "STEP_FINISHED", "stepName": name}]

    def _call(self, event: ToolUse) -> list[Json]:
        place = {"toolCallId": event.tool_use_id}
        arguments = event.raw_arguments if event.raw_arguments is not None else dumps_json(event.input)
        parent = self._streamed.parent_id(event)
        return [
            {"type": "TOOL_CALL_START", **place, "toolCallName": event.name, "parentMessageId": parent},
            {"type": "TOOL_CALL_ARGS", **place, "delta": arguments},
            {"type": "TOOL_CALL_END", **place},
        ]

    def _subagent(self, event: SubagentStarted | SubagentFinished) -> list[Json]:
        run_id = self._subagents.get(event.child_session_id)
        events = []
        if run_id is None:  # started by an earlier run and continued in this one
            run_id = self._subagents[event.child_session_id] = f"subagent.{event.seq}"
            place = {"subagentRunId": run_id, "name": event.name, "parentToolCallId": event.tool_use_id}
            events.append({"type": "SUBAGENT_STARTED", **place})
        if isinstance(event, SubagentStarted):
            return events
        del self._subagents[event.child_session_id]
        self._spend("", "", event.usage)
        if event.stop_reason in ("end", "interrupted"):
            return [*events, {"type": "SUBAGENT_FINISHED", "subagentRunId": run_id, "outcome": {"type": "success"}}]
        why = f"the subagent stopped: {event.stop_reason}"
        return [*events, {"type": "SUBAGENT_ERROR", "subagentRunId": run_id, "message": why, "code": event.stop_reason}]

    def _spend(self, provider: str, model: str, usage: Mapping[str, Any] | None) -> None:
        if usage is not None:
            self._usage[provider, model] = add_usage(self._usage.get((provider, model)), usage)

    # --- the end -----------------------------------------------------------------------------------------------------

    def _finish(self, event: Result) -> list[Json]:
        finished: Json = {"type": "RUN_FINISHED", **self._run}
        if event.stop_reason == "waiting" and self._questions:
            interrupts = [_interrupt(question) for question in self._questions.values()]
            return self._end({**finished, "outcome": {"type": "interrupt", "interrupts": interrupts}})
        if event.stop_reason == "interrupted":
            return self._end({**finished, "outcome": {"type": "cancelled"}})
        if event.stop_reason == "end":
            output = event.structured_output
            result = {} if output is None else {"result": output}
            return self._end({**finished, "outcome": {"type": "success"}, **result})
        why = event.error_message or f"the run stopped: {event.stop_reason}"
        return self._end({"type": "RUN_ERROR", "message": why, "code": event.error_type or event.stop_reason})

    def _end(self, last: Json) -> list[Json]:
        """End the run; return the ends of its open messages, subagents and steps, and then the event `last`."""
        self.is_done = True
        events = []
        for wire_id in sorted(self._open):
            events += self._piece_events(Piece(wire_id, 0, ends=True, is_thought=wire_id.startswith("thought.")))
        for wire_id in self._subagents.values():
            events.append({"type": "SUBAGENT_FINISHED", "subagentRunId": wire_id, "outcome": {"type": "suspended"}})
        for call_id in list(self._steps):  # parked: a run ends with no step in progress
            events += self._end_step(call_id)
        usage = [
            _usage(provider, model, counts) for (provider, model), counts in self._usage.items() if counts is not None
        ]
        return [*events, {**last, **({"usage": usage} if usage else {})}]


def _interrupt(question: UserQuestion) -> Json:
    """The AG-UI form of a question; the schema describes the payload of an answer."""
    answer: Json = {"type": "string"}
    if question.choices:
        answer["examples" if takes_own_words(question) else "enum"] = list(question.choices)
    schema = {"type": "object", "properties": {"answer": answer}, "required": ["answer"]}
    form: Json = {
        "id": question.question_id,
        "reason": "tool_call" if question.kind == "permission" else "input_required",
        "message": question.prompt,
        "responseSchema": schema,
        "metadata": {key: question.details[key] for key in _QUESTION_FIELDS if key in question.details},
    }
    return {**form, "toolCallId": question.tool_use_id} if question.tool_use_id is not None else form


def _usage(provider: str, model: str, raw_usage: Mapping[str, Any]) -> Json:
    normal = normalize_usage(raw_usage) or {}
    counts = {name: normal[key] for key, name in _USAGE.items() if normal.get(key, -1) >= 0}
    total = {"totalTokens": counts["inputTokens"] + counts["outputTokens"]} if len(counts) == len(_USAGE) else {}
    return {**({"provider": provider} if provider else {}), **({"model": model} if model else {}), **counts, **total}


def conversation(events: Iterable[Event]) -> list[Json]:
    """The messages of a thread that a client has received if it followed all of the thread's runs."""
    messages: dict[str, Json] = {}
    fold = RunEvents("", "")
    for event in events:
        if fold.is_done:
            fold = RunEvents("", "")
        if isinstance(event, UserMessage) and event.origin in ("user", "steering") and event.parent_tool_use_id is None:
            wire_id = f"user.{event.seq}"
            messages[wire_id] = {"id": wire_id, "role": "user", "content": event.text}
        for update in fold.take(event):
            _apply(messages, update)
    return list(messages.values())


def _apply(messages: dict[str, Json], update: Json) -> None:
    """Apply an AG-UI event to the messages, which are keyed by their ids."""
    match update:
        case {"type": "TEXT_MESSAGE_START" | "REASONING_MESSAGE_START", "messageId": wire_id, "role": role}:
            messages.setdefault(wire_id, {"id": wire_id, "role": role})["content"] = ""
        case {"type": "TEXT_MESSAGE_CONTENT" | "REASONING_MESSAGE_CONTENT", "messageId": wire_id, "delta": delta}:
            messages[wire_id]["content"] += delta
        case {"type": "TOOL_CALL_START", "parentMessageId": wire_id, "toolCallId": call_id, "toolCallName": name}:
            parent = messages.setdefault(wire_id, {"id": wire_id, "role": "assistant"})
            call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
            parent["toolCalls"] = [*parent.get("toolCalls", []), call]
        case {"type": "TOOL_CALL_ARGS", "toolCallId": call_id, "delta": delta}:
            calls = (call for message in messages.values() for call in message.get("toolCalls", []))
            [call for call in calls if call["id"] == call_id][-1]["function"]["arguments"] += delta
        case {"type": "TOOL_CALL_RESULT", "messageId": wire_id, "toolCallId": call_id, "content": content}:
            messages[wire_id] = {"id": wire_id, "role": "tool", "toolCallId": call_id, "content": content}
        case {"type": "ACTIVITY_SNAPSHOT", "messageId": wire_id, "activityType": kind, "content": content}:
            messages[wire_id] = {"id": wire_id, "role": "activity", "activityType": kind, "content": content}
