"""A session as OpenTelemetry spans in the GenAI semantic conventions: each span is emitted once the log shows its end.

A session and its subagents form one trace: an `invoke_agent` span for each run, below it a `chat` span for each model call,
including its retries, and an `execute_tool` span for each tool call. A subagent's runs are below the call that started it,
and runs whose caller passed a `traceparent` are below that parent.

Ids derive from the session's id and the log, so folding a log twice yields the same spans.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ....events import (
    AssistantMessage,
    AssistantReasoning,
    EvalCase,
    Event,
    ModelContext,
    ModelRequest,
    ModelResponse,
    ModelRetry,
    Result,
    SessionMeta,
    SystemInit,
    ToolResult,
    ToolStarted,
    ToolUse,
)
from ....ground.frozen import frozen
from ....ground.text import Redact
from ....ground.words import shortened
from ....sessions.folds.summary import calendar_time
from ....sessions.folds.trace import read_traceparent
from ....sessions.folds.usage import Usage, add_usage, normalize_usage
from ....sessions.rebuild import Conversation
from ....version import __version__
from . import genai

Span = dict[str, Any]

_NANOSECONDS = 1_000_000_000
_INTERNAL, _CLIENT = 1, 3
_STATUS_ERROR = 2
_MAX_ERROR_CHARS, _MAX_TEXT_CHARS, _MAX_DESCRIPTION_CHARS = 80, 2_000, 500
_MAX_CONTENT_CHARS, _MAX_MESSAGE_CHARS = 64 * 1024, 16 * 1024
# The first of these events after an answer ends its span; until then, a retry may continue it.
_AFTER_ANSWER = (SystemInit, ModelContext, ModelRequest, ToolStarted, Result)
# The key for the place in the log where a span began; internal, not sent.
_AT = "at"


@frozen
class TracePlace:
    """The place of a session's spans: the trace's id, and the span that started the session (None for no parent)."""

    trace_id: str
    parent_span_id: str | None = None


def own_trace(session_id: str) -> TracePlace:
    """The place of a session that no other session started."""
    return TracePlace(hashlib.sha256(f"session:{session_id}".encode("utf-8", "surrogatepass")).hexdigest()[:32])


def run_span_id(session_id: str, seq: int | None) -> str:
    """The id of the span of a run that began with event `seq`."""
    return _span_id(f"{session_id}:{seq}:run")


def call_span_id(session_id: str, tool_use_id: str, attempt: int = 1) -> str:
    """The id of the span of a tool call."""
    return _span_id(f"{session_id}:call:{tool_use_id}:{attempt}")


def _span_id(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]


class SpanFold:
    """A fold from a log to spans. `take` returns the spans that an event ended, `rest` those still open at the log's end."""

    def __init__(
        self,
        session_id: str,
        place: TracePlace | None = None,
        *,
        mask: Redact | None = None,
        with_content: bool = False,
        tags: Sequence[str] = (),
    ) -> None:
        self._session = session_id
        self._place = place or own_trace(session_id)
        self._trace_id = self._place.trace_id
        self._mask = mask
        self._with_content = with_content
        self._run: Span | None = None
        self._run_usage: Usage | None = None
        self._model: Span | None = None
        self._open_answer: tuple[Span, ModelResponse] | None = (
            None  # an error may be retried; the parts of an answer follow it
        )
        self._answer_usage: Usage | None = None
        self._calls: dict[str, Span] = {}
        self._uses: dict[str, ToolUse] = {}
        self._answer_parts: list[Mapping[str, Any]] = []
        self._finish_reason: str | None = None
        self._descriptions: dict[str, str] = {}
        self._provider: str | None = None
        self._conversation = Conversation() if with_content else None
        self._system = ""
        self._tags = list(tags)

    def take(self, event: Event) -> list[Span]:
        """Apply the next event; return the spans that it ended, or showed to have ended earlier."""
        if self._conversation is not None:
            self._conversation.apply(event)
        ended = self._settled() if isinstance(event, _AFTER_ANSWER) else []
        match event:
            case SessionMeta() if event.tags is not None:
                self._tags = list(event.tags)
            case SystemInit():
                ended += self._end_all(event, "the process died")
                self._init(event)
            case ModelContext():
                self._context(event)
            case ModelRequest():
                self._request(event)
            case ModelRetry() if self._open_answer is not None:
                (self._model, _), self._open_answer = self._open_answer, None
            case ModelResponse():
                ended += self._response(event)
            case AssistantMessage() if self._with_content and not event.incomplete:
                self._answer_parts.append({"type": "text", "content": event.text})
            case AssistantReasoning() if self._with_content:
                self._answer_parts.append({"type": "reasoning", "content": event.text})
            case ToolUse():
                self._use(event)
            case ToolStarted():
                self._started(event)
            case ToolResult():
                ended += self._call_result(event)
            case Result():
                ended += self._result(event)
            case EvalCase():
                ended.append(self._evaluated(event))
        return ended

    def rest(self, last: Event) -> list[Span]:
        """End the spans that are still open after the last event of the log, at that event; return them."""
        return [*self._settled(), *self._end_all(last, "the log ends here")]

    # --- parts -----------------------------------------------------------------------------------------------------------

    def _start(self, name: str, span_id: str, event: Event, kind: int, parent: str | None, facts: Any) -> Span:
        span: Span = {
            "traceId": self._trace_id,
            "spanId": span_id,
            "name": name.encode("utf-8", "replace").decode(),
            "kind": kind,
            "startTimeUnixNano": _nanoseconds(event.ts),
            "attributes": attributes({genai.CONVERSATION: self._session, **facts}),
            _AT: event.seq or 0,
        }
        if parent is not None:
            span["parentSpanId"] = parent
        return span

    def _end(self, span: Span, event: Event, facts: Mapping[str, Any], error: str | None, message: str = "") -> Span:
        # A clock that was set back must not end a span before its start.
        span["endTimeUnixNano"] = str(max(int(_nanoseconds(event.ts)), int(span["startTimeUnixNano"])))
        span["attributes"] += attributes(facts)
        if error is not None:
            description = self._text(message or error)[:_MAX_TEXT_CHARS]
            span["status"] = {"code": _STATUS_ERROR, "message": description}
            span["attributes"] += attributes({genai.ERROR: self._text(error)[:_MAX_ERROR_CHARS]})
        return span

    def _end_all(self, event: Event, why: str) -> list[Span]:
        spans = [span for span in (self._model, *self._calls.values()) if span is not None]
        ended = [self._end(span, event, {}, why) for span in spans]
        if self._run is not None:
            ended.append(self._end(self._run, event, _usage_facts(self._run_usage), why))
        self._run, self._model, self._calls = None, None, {}
        return ended

    def _text(self, text: str) -> str:
        text = text.encode("utf-8", "replace").decode()
        return text if self._mask is None else self._mask(text)

    def _json(self, value: Any) -> str:
        text = self._text(json.dumps(masked(value, self._mask), ensure_ascii=False, default=str))
        # A truncated value becomes a JSON string, because readers parse these attributes.
        return text if len(text) <= _MAX_CONTENT_CHARS else json.dumps(shortened(text, _MAX_CONTENT_CHARS))

    def _newest(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The newest messages that fit into an attribute, except system messages, as JSON in the form of the conventions."""
        newest: list[Any] = []
        size = 0
        for message in reversed(messages):
            if message.get("role") == "system":
                continue
            one = genai.message_of(message, _MAX_MESSAGE_CHARS)
            size += len(json.dumps(one, default=str))
            if size > _MAX_CONTENT_CHARS:
                break
            newest.append(one)
        return self._json(newest[::-1])

    def _init(self, event: SystemInit) -> None:
        name = event.agent_name or "agent"
        self._provider, self._run_usage, self._finish_reason = event.provider, None, None
        facts = {
            genai.OPERATION: genai.INVOKE_AGENT,
            genai.AGENT: name,
            genai.PROVIDER: genai.provider_name(event.provider),
            genai.REQUEST_MODEL: event.model,
            "openagentic.tags": self._tags or None,
        }
        above = read_traceparent(event.traceparent)
        self._trace_id = above[0] if above else self._place.trace_id
        parent = self._place.parent_span_id or (above[1] if above else None)
        self._run = self._start(
            f"{genai.INVOKE_AGENT} {name}", run_span_id(self._session, event.seq), event, _INTERNAL, parent, facts
        )

    def _context(self, event: ModelContext) -> None:
        self._provider, self._system = event.provider, event.system_prompt
        for tool in event.tools:
            function = tool.get("function")
            if isinstance(function, Mapping) and isinstance(function.get("description"), str):
                self._descriptions[str(function.get("name"))] = function["description"][:_MAX_DESCRIPTION_CHARS]

    def _use(self, event: ToolUse) -> None:
        self._uses[event.tool_use_id] = event
        if self._with_content and self._open_answer is not None:
            self._answer_parts.append(genai.call_part(event.tool_use_id, event.name, event.input))

    def _call_result(self, event: ToolResult) -> list[Span]:
        self._uses.pop(event.tool_use_id, None)
        span = self._calls.pop(event.tool_use_id, None)
        if span is None:
            return []
        facts = {genai.TOOL_RESULT: self._json(event.output)} if self._with_content else {}
        error = (event.error_type or event.outcome) if event.is_error else None
        return [self._end(span, event, facts, error, (event.error_message or "") if self._with_content else "")]

    def _result(self, event: Result) -> list[Span]:
        error = event.error_type or "error" if event.stop_reason == "error" else None
        ended = [self._end(span, event, {}, "the run ended") for span in self._calls.values()]
        self._calls = {}
        if self._run is not None:
            facts = {**_usage_facts(self._run_usage), "openagentic.stop_reason": event.stop_reason}
            if self._finish_reason is not None:
                facts[genai.FINISH_REASONS] = [self._finish_reason]
            ended.append(self._end(self._run, event, facts, error, event.error_message or ""))
            self._run = None
        return ended

    def _request(self, event: ModelRequest) -> None:
        self._answer_parts, self._answer_usage = [], None
        operation = genai.operation_of(self._provider)
        facts = {
            genai.OPERATION: operation,
            genai.PROVIDER: genai.provider_name(self._provider),
            genai.REQUEST_MODEL: event.model,
            "openagentic.step": event.step,
            "openagentic.purpose": None if event.purpose == "turn" else event.purpose,
        }
        if self._conversation is not None:
            facts[genai.INPUT_MESSAGES] = self._newest(
                self._conversation.messages() if event.messages is None else event.messages
            )
            system = [{"type": "text", "content": self._system}] if self._system else None
            facts[genai.SYSTEM_INSTRUCTIONS] = None if system is None else self._json(system)
        parent = None if self._run is None else self._run["spanId"]
        name = f"{operation} {event.model}" if event.model else operation
        self._model = self._start(name, _span_id(f"{self._session}:{event.seq}:chat"), event, _CLIENT, parent, facts)

    def _response(self, event: ModelResponse) -> list[Span]:
        usage = normalize_usage(event.usage)
        self._run_usage = add_usage(self._run_usage, usage)
        span = self._model
        if span is None:
            return []
        self._answer_usage = add_usage(self._answer_usage, usage)
        self._model = None
        if not event.complete:  # another attempt may follow and belongs to the same operation
            self._open_answer = span, event
            return []
        self._finish_reason = event.finish_reason or self._finish_reason
        self._open_answer = span, event  # the answer and its calls follow it
        return [] if self._with_content else self._settled()

    def _settled(self) -> list[Span]:
        """End the span of the last answer, if it is open: no more of the answer can follow."""
        if self._open_answer is None:
            return []
        (span, event), self._open_answer = self._open_answer, None
        keys = {entry["key"] for entry in span["attributes"]}
        if event.model and genai.REQUEST_MODEL not in keys:
            span["attributes"] += attributes({genai.REQUEST_MODEL: event.model})
            span["name"] = f"{span['name']} {event.model}"
        provider = genai.provider_name(event.provider)
        if provider is not None:
            span["attributes"] = [each for each in span["attributes"] if each["key"] != genai.PROVIDER]
        is_openai = provider == "openai"
        facts: dict[str, Any] = {
            genai.PROVIDER: provider,
            genai.RESPONSE_MODEL: event.model,
            genai.RESPONSE_ID: event.response_id,
            genai.FINISH_REASONS: [event.finish_reason] if event.finish_reason else None,
            genai.REQUEST_STREAM: True if event.first_token_s is not None else None,
            genai.FIRST_CHUNK: event.first_token_s,
            **_usage_facts(self._answer_usage),
            genai.OPENAI_TIER: event.service_tier if is_openai else None,
            genai.OPENAI_FINGERPRINT: event.system_fingerprint if is_openai else None,
            "openagentic.cost_usd": event.cost_usd,
            "openagentic.attempts": event.attempt if event.attempt > 1 else None,
        }
        if self._answer_parts:
            reason = event.finish_reason or "stop"
            facts[genai.OUTPUT_MESSAGES] = self._json(
                [{"role": "assistant", "parts": self._answer_parts, "finish_reason": reason}]
            )
        return [self._end(span, event, facts, event.error_type, event.error_message or "")]

    def _started(self, event: ToolStarted) -> None:
        use = self._uses.get(event.tool_use_id)
        facts = {
            genai.OPERATION: genai.EXECUTE_TOOL,
            genai.TOOL: event.name,
            genai.TOOL_CALL: event.tool_use_id,
            genai.TOOL_TYPE: "function",
            genai.TOOL_DESCRIPTION: self._descriptions.get(event.name),
        }
        if self._with_content and use is not None:
            facts[genai.TOOL_ARGUMENTS] = self._json(use.input if event.input is None else event.input)
        span_id = call_span_id(self._session, event.tool_use_id, event.attempt)
        parent = None if self._run is None else self._run["spanId"]
        span = self._start(f"{genai.EXECUTE_TOOL} {event.name}", span_id, event, _INTERNAL, parent, facts)
        self._calls[event.tool_use_id] = span

    def _evaluated(self, event: EvalCase) -> Span:
        """Return a span for the scores that an eval gave a run, below that run's span and in the trace of its session."""
        facts: dict[str, Any] = {"openagentic.eval.case": event.case, "openagentic.eval.variant": event.variant}
        facts |= {"openagentic.eval.repeat": event.repeat, genai.CONVERSATION: event.session_id or self._session}
        # Several evals may score the same session.
        span_id = _span_id(f"{event.session_id}:{event.ts}:{event.variant}:{event.repeat}:{event.seq}:{event.case}")
        span = self._start(f"evaluate {self._text(event.case)}", span_id, event, _INTERNAL, None, {})
        span["attributes"] = attributes(facts)
        span["startTimeUnixNano"] = _nanoseconds((event.ts or 0.0) - (event.duration_s or 0.0))
        if event.session_id is not None:
            span["traceId"] = own_trace(event.session_id).trace_id
            if event.run_seq is not None:
                span["parentSpanId"] = run_span_id(event.session_id, event.run_seq)
        span["events"] = [
            {
                "name": genai.EVALUATION_EVENT,
                "timeUnixNano": _nanoseconds(event.ts),
                "attributes": attributes(self._evaluation(event, score)),
            }
            for score in event.scores
        ]
        return self._end(span, event, {}, None)

    def _evaluation(self, event: EvalCase, score: Mapping[str, Any]) -> dict[str, Any]:
        value = score.get("value")
        return {
            genai.EVALUATION_NAME: self._text(str(score.get("name"))),
            genai.EVALUATION_SCORE: float(value) if isinstance(value, int | float) else None,
            genai.EVALUATION_LABEL: "pass" if score.get("passed") else "fail",
            genai.EVALUATION_EXPLANATION: self._text(str(score.get("words") or "")) or None,
            genai.RESPONSE_ID: event.response_id,
            genai.ERROR: score.get("error_type"),
        }


def session_spans(events: Iterable[Event], fold: SpanFold) -> list[Span]:
    """All spans of a log, in the order in which they began."""
    spans, last = list[Span](), None
    for last in events:
        spans += fold.take(last)
    spans += fold.rest(last) if last is not None else []
    return sorted(spans, key=lambda span: int(span[_AT]))


def trace_request(spans: Sequence[Span], resource: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Spans as OTLP/JSON (`ExportTraceServiceRequest`); `resource` contains attributes of the sender."""
    about = {
        "service.name": "openagentic_sdk",
        "telemetry.sdk.language": "python",
        "telemetry.sdk.name": "openagentic_sdk",
        "telemetry.sdk.version": __version__,
        **(resource or {}),
    }
    scope = {"name": "openagentic_sdk", "version": __version__}
    plain_spans = [{key: value for key, value in span.items() if key != _AT} for span in spans]
    scoped = {"scope": scope, "spans": plain_spans, "schemaUrl": genai.SCHEMA_URL}
    return {"resourceSpans": [{"resource": {"attributes": attributes(about)}, "scopeSpans": [scoped]}]}


def attributes(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Attributes in OTLP's JSON form, except those whose value is None."""
    return [{"key": key, "value": _value(value)} for key, value in facts.items() if value is not None]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list | tuple):
        return {"arrayValue": {"values": [_value(each) for each in value]}}
    # OTLP is UTF-8: a lone surrogate would make the whole request invalid.
    return {"stringValue": str(value).encode("utf-8", "replace").decode()}


def _usage_facts(usage: Usage | None) -> dict[str, Any]:
    if usage is None:
        return {}
    return {
        genai.INPUT_TOKENS: usage["input_tokens"],
        genai.CACHE_READ: usage["cached_input_tokens"],
        genai.CACHE_CREATION: usage["cache_write_tokens"],
        genai.OUTPUT_TOKENS: usage["output_tokens"],
        genai.REASONING_TOKENS: usage["reasoning_tokens"] or None,
    }


def _nanoseconds(ts: float | None) -> str:
    return str(int(calendar_time(ts) * _NANOSECONDS))


def masked(value: Any, mask: Redact | None) -> Any:
    """A JSON value with every string in it masked, except keys; unchanged without a mask."""
    if mask is None:
        return value
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, Mapping):
        return {key: masked(item, mask) for key, item in value.items()}
    return [masked(item, mask) for item in value] if isinstance(value, list | tuple) else value
