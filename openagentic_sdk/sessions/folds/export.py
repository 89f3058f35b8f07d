"""A session in the forms that other programs read: OpenTelemetry spans, chat-completions messages, Markdown, JSON.

Pure: events in, a value or text out. `mask` is applied to every text on the way, for those who must not see secrets.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ...events import (
    AssistantMessage,
    AssistantReasoning,
    EvalCase,
    Event,
    ModelRequest,
    ModelResponse,
    Result,
    SystemInit,
    ToolResult,
    ToolStarted,
    ToolUse,
    UnknownEvent,
    UserMessage,
)
from ...media import describe_attachment
from ...serialization import event_to_dict
from ...text import visible
from ..rebuild import rebuild_messages
from .trace import read_traceparent

Mask = Callable[[str], str]

_NANOSECONDS = 1_000_000_000
_INTERNAL, _CLIENT = 1, 3
_STATUS_ERROR = 2


def to_json(events: Iterable[Event], mask: Mask | None = None) -> list[dict[str, Any]]:
    """The events as JSON objects."""
    masked: list[dict[str, Any]] = _masked([event_to_dict(event) for event in events], mask)
    return masked


def to_messages(events: Iterable[Event], mask: Mask | None = None) -> list[dict[str, Any]]:
    """The conversation as a chat-completions model would be sent it now."""
    masked: list[dict[str, Any]] = _masked(rebuild_messages(events), mask)
    return masked


def to_markdown(events: Iterable[Event], mask: Mask | None = None) -> str:
    """A transcript to read. Text of people and models stands as quotes, so that it cannot become the page's own headings."""
    if mask is not None:
        known = (event for event in events if not isinstance(event, UnknownEvent))
        events = (type(event)(**{key: _masked(value, mask) for key, value in vars(event).items()}) for event in known)
    parts = map(_markdown, events)
    return "\n\n".join(part for part in parts if part) + "\n"


def to_otlp(events: Iterable[Event], *, mask: Mask | None = None, with_content: bool = False) -> dict[str, Any]:
    """OTLP/JSON trace data (`ExportTraceServiceRequest`) in the GenAI semantic conventions of OpenTelemetry.

    One trace per session, or below the `traceparent` of a run where its caller gave one: an `invoke_agent` span per run, a
    `chat` span per model call, an `execute_tool` span per call. What an eval says of a run is a `gen_ai.evaluation.result`
    event, in that run's trace and below its span (see open-telemetry/semantic-conventions-genai,
    docs/gen-ai/gen-ai-events.md). `with_content` adds what was said, which the conventions leave off by default. Ids follow
    from the session's id and `seq`, so exporting twice gives the same spans.
    """
    spans = _Spans(list(events), mask, with_content).all()
    scope = {"name": "openagentic_sdk"}
    resource = {"attributes": _attributes({"service.name": "openagentic_sdk"})}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": scope, "spans": spans}]}]}


# --- Markdown --------------------------------------------------------------------------------------------------------


def _quoted(text: str) -> str:
    """The text as a quote that it cannot end: every line of it, whatever ends it, and no tag."""
    text = re.sub(r"<(?=[A-Za-z/!?])", r"\\<", re.sub(r"\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]", "\n", text))
    return "\n".join(f"> {line}".rstrip() for line in text.split("\n"))


def _inline(text: object) -> str:
    """A name or a word on one line of the page, none of whose letters means anything to Markdown."""
    return re.sub(r"([\\`*_\[\]<>#|~!])", r"\\\1", visible(str(text)))


def _code(text: object) -> str:
    """A name as code on one line."""
    return "`" + visible(str(text)).replace("`", "'") + "`"


def _json_block(value: Any) -> str:
    """The value as a code block, behind a fence that is longer than any that stands in it."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"


def _markdown(event: Event) -> str:
    """What a transcript shows of an event; empty for bookkeeping."""
    match event:
        case SystemInit():
            return f"# Session {_code(event.session_id)}\n\nModel {_inline(event.model)}, in {_code(event.cwd)}"
        case UserMessage():
            who = "User" if event.origin == "user" else f"Message of {_inline(event.origin)}"
            said = "\n".join([event.text, *map(describe_attachment, event.attachments)])
            return f"## {who}\n\n{_quoted(said)}"
        case AssistantMessage() if event.text:
            cut = " (cut short)" if event.incomplete else ""
            return f"## Assistant{cut}\n\n{_quoted(event.text)}"
        case AssistantReasoning():
            return f"### Reasoning\n\n{_quoted(event.text)}"
        case ToolUse():
            return f"### {_inline(event.name)}\n\n{_json_block(event.input)}"
        case ToolResult():
            shown = event.error_message if event.is_error and event.error_message else event.output
            beside = "".join(f"\n\n{_inline(describe_attachment(part))}" for part in event.attachments)
            return f"{_inline(event.outcome)}:\n\n{_json_block(shown)}{beside}"
        case Result():
            why = f" ({_inline(event.error_message)})" if event.error_message else ""
            return f"---\n\nEnded: {_inline(event.stop_reason)}{why}"
    return ""


# --- OpenTelemetry ---------------------------------------------------------------------------------------------------


class _Spans:
    """Turns a log into spans, in one pass."""

    def __init__(self, events: Sequence[Event], mask: Mask | None, with_content: bool) -> None:
        self._events = events
        self._mask = mask
        self._with_content = with_content
        self._session = next((event.session_id for event in events if isinstance(event, SystemInit)), "unknown")
        self._own_trace_id = self._trace_id = _trace_id(self._session)
        self._spans: list[dict[str, Any]] = []
        self._run: dict[str, Any] | None = None
        self._model: dict[str, Any] | None = None
        self._calls: dict[str, dict[str, Any]] = {}
        self._uses: dict[str, ToolUse] = {}

    def all(self) -> list[dict[str, Any]]:
        for event in self._events:
            handle = _SPANS.get(event.type)
            if handle is not None:
                handle(self, event)
        last = self._events[-1] if self._events else None
        for span in (self._model, self._run, *self._calls.values()):
            if span is not None and last is not None and "endTimeUnixNano" not in span:
                self._end(span, last, error="the log ends here")
        return self._spans

    def _start(
        self, name: str, event: Event, kind: int, parent: Mapping[str, Any] | None, facts: Any
    ) -> dict[str, Any]:
        span: dict[str, Any] = {
            "traceId": self._trace_id,
            "spanId": _span_id(self._session, event.seq, name),
            "name": name,
            "kind": kind,
            "startTimeUnixNano": _nanoseconds(event.ts),
            "attributes": _attributes({"gen_ai.conversation.id": self._session, **facts}),
        }
        if parent is not None:
            span["parentSpanId"] = parent["spanId"]
        self._spans.append(span)
        return span

    def _end(self, span: dict[str, Any], event: Event, error: str | None = None, **facts: Any) -> None:
        span["endTimeUnixNano"] = _nanoseconds(event.ts)
        span["attributes"] += _attributes({key.replace("__", "."): value for key, value in facts.items()})
        if error is not None:
            span["status"] = {"code": _STATUS_ERROR, "message": self._text(error)}
            span["attributes"] += _attributes({"error.type": self._text(error)[:80]})

    def _text(self, text: str) -> str:
        return text if self._mask is None else self._mask(text)

    def _init(self, event: SystemInit) -> None:
        name = event.agent_name or "agent"
        facts = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": name,
            "gen_ai.provider.name": event.provider,
            "gen_ai.request.model": event.model,
        }
        if self._run is not None and "endTimeUnixNano" not in self._run:
            self._end(self._run, event, error="the process died")
        above = read_traceparent(event.traceparent)
        self._trace_id = above[0] if above else self._own_trace_id
        parent = {"spanId": above[1]} if above else None
        self._run = self._start(f"invoke_agent {name}", event, _INTERNAL, parent, facts)

    def _result(self, event: Result) -> None:
        if self._run is not None:
            error = event.error_type or "error" if event.stop_reason == "error" else None
            self._end(self._run, event, error=error, openagentic__stop_reason=event.stop_reason)

    def _request(self, event: ModelRequest) -> None:
        facts = {"gen_ai.operation.name": "chat", "openagentic.step": event.step}
        self._model = self._start("chat", event, _CLIENT, self._run, facts)

    def _response(self, event: ModelResponse) -> None:
        span, usage = self._model, event.usage or {}
        if span is None:
            return
        span["name"] = f"chat {event.model}"
        self._end(
            span,
            event,
            error=event.error_type,
            gen_ai__request__model=event.model,
            gen_ai__provider__name=event.provider,
            gen_ai__usage__input_tokens=usage.get("input_tokens"),
            gen_ai__usage__output_tokens=usage.get("output_tokens"),
        )
        if event.finish_reason:
            reasons = {"arrayValue": {"values": [{"stringValue": event.finish_reason}]}}
            span["attributes"].append({"key": "gen_ai.response.finish_reasons", "value": reasons})
        self._model = None

    def _use(self, event: ToolUse) -> None:
        self._uses[event.tool_use_id] = event

    def _started(self, event: ToolStarted) -> None:
        facts = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": event.name,
            "gen_ai.tool.call.id": event.tool_use_id,
            "gen_ai.tool.type": "function",
        }
        use = self._uses.get(event.tool_use_id)
        if self._with_content and use is not None:
            facts["gen_ai.tool.call.arguments"] = self._text(json.dumps(use.input, ensure_ascii=False))
        parent = self._calls.get(event.parent_tool_use_id or "") if use is not None and use.is_inside else self._run
        span = self._start(f"execute_tool {event.name}", event, _INTERNAL, parent or self._run, facts)
        self._calls[event.tool_use_id] = span

    def _tool_result(self, event: ToolResult) -> None:
        span = self._calls.get(event.tool_use_id)
        if span is None:
            return
        if self._with_content:
            output = self._text(json.dumps(event.output, ensure_ascii=False))
            span["attributes"] += _attributes({"gen_ai.tool.call.result": output})
        self._end(span, event, error=event.error_type if event.is_error else None)

    def _evaluated(self, event: EvalCase) -> None:
        """What an eval says of a run: events below that run's span, in the trace of that run's session."""
        facts: dict[str, Any] = {"openagentic.eval.case": event.case, "openagentic.eval.variant": event.variant}
        facts |= {"openagentic.eval.repeat": event.repeat, "gen_ai.conversation.id": event.session_id}
        span = self._start(f"evaluate {self._text(event.case)}", event, _INTERNAL, None, facts)
        span["startTimeUnixNano"] = _nanoseconds((event.ts or 0.0) - (event.duration_s or 0.0))
        # Several evals may say something of one session.
        span["spanId"] = _span_id(
            f"{event.session_id}:{event.ts}:{event.variant}:{event.repeat}", event.seq, event.case
        )
        if event.session_id is not None:
            span["traceId"] = _trace_id(event.session_id)
            if event.run_seq is not None:
                span["parentSpanId"] = _span_id(event.session_id, event.run_seq, "invoke_agent agent")
        span["events"] = [
            {
                "name": "gen_ai.evaluation.result",
                "timeUnixNano": _nanoseconds(event.ts),
                "attributes": _attributes(self._evaluation(event, score)),
            }
            for score in event.scores
        ]
        self._end(span, event)

    def _evaluation(self, event: EvalCase, score: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "gen_ai.evaluation.name": self._text(str(score.get("name"))),
            "gen_ai.evaluation.score.value": float(value)
            if isinstance(value := score.get("value"), int | float)
            else None,
            "gen_ai.evaluation.score.label": "pass" if score.get("passed") else "fail",
            "gen_ai.evaluation.explanation": self._text(str(score.get("words") or "")) or None,
            "gen_ai.response.id": event.response_id,
            "error.type": score.get("error_type"),
        }


_SPANS: Mapping[str, Callable[[_Spans, Any], None]] = {
    SystemInit.type: _Spans._init,
    ModelRequest.type: _Spans._request,
    ModelResponse.type: _Spans._response,
    ToolUse.type: _Spans._use,
    ToolStarted.type: _Spans._started,
    ToolResult.type: _Spans._tool_result,
    Result.type: _Spans._result,
    EvalCase.type: _Spans._evaluated,
}


def _trace_id(session_id: str) -> str:
    return hashlib.sha256(f"session:{session_id}".encode()).hexdigest()[:32]


def _span_id(session_id: str, seq: int | None, name: str) -> str:
    return hashlib.sha256(f"{session_id}:{seq}:{name}".encode()).hexdigest()[:16]


def _nanoseconds(ts: float | None) -> str:
    return str(int((ts or 0.0) * _NANOSECONDS))


def _attributes(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Attributes in OTLP's JSON form; what is None is left out."""
    found = []
    for key, value in facts.items():
        if isinstance(value, bool):
            found.append({"key": key, "value": {"boolValue": value}})
        elif isinstance(value, int):
            found.append({"key": key, "value": {"intValue": str(value)}})
        elif value is not None:
            shown = {"doubleValue": value} if isinstance(value, float) else {"stringValue": str(value)}
            found.append({"key": key, "value": shown})
    return found


# --- masking ---------------------------------------------------------------------------------------------------------


def _masked(value: Any, mask: Mask | None) -> Any:
    if mask is None:
        return value
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, Mapping):
        return {key: _masked(item, mask) for key, item in value.items()}
    return [_masked(item, mask) for item in value] if isinstance(value, list | tuple) else value
