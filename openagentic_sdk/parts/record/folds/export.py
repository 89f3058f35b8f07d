"""Export a session for other programs: OpenTelemetry spans, chat-completions messages, Markdown, JSON.

Pure: events in, a value or text out. `mask` is applied to every text, for readers who must not see secrets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ....events import (
    AssistantMessage,
    AssistantReasoning,
    Event,
    Result,
    SubagentStarted,
    SystemInit,
    ToolResult,
    ToolUse,
    UnknownEvent,
    UserMessage,
)
from ....ground.frozen import values_of
from ....ground.text import Redact, visible
from ....serialization import event_to_dict
from ....sessions.rebuild import describe_attachment, rebuild_messages
from .spans import Span, SpanFold, TracePlace, call_span_id, masked, own_trace, session_spans, trace_request


def to_json(events: Iterable[Event], mask: Redact | None = None) -> list[dict[str, Any]]:
    """The events as JSON objects."""
    rows: list[dict[str, Any]] = masked([event_to_dict(event) for event in events], mask)
    return rows


def to_messages(events: Iterable[Event], mask: Redact | None = None) -> list[dict[str, Any]]:
    """The conversation as a chat-completions model would receive it now."""
    messages: list[dict[str, Any]] = masked(rebuild_messages(events), mask)
    return messages


def to_markdown(events: Iterable[Event], mask: Redact | None = None) -> str:
    """A transcript for people. Text of users and models is quoted, so that it cannot create headings in the page."""
    if mask is not None:
        known_events = (event for event in events if not isinstance(event, UnknownEvent))
        events = (
            type(event)(**{key: masked(value, mask) for key, value in values_of(event).items()})
            for event in known_events
        )
    parts = map(_markdown, events)
    return "\n\n".join(part for part in parts if part) + "\n"


def to_otlp(
    events: Iterable[Event],
    *,
    mask: Redact | None = None,
    with_content: bool = False,
    read: Callable[[str, str], Iterable[Event]] | None = None,
    tags: Sequence[str] = (),
) -> dict[str, Any]:
    """OTLP/JSON trace data (`ExportTraceServiceRequest`) in OpenTelemetry's GenAI semantic conventions; see the module
    `spans`.

    Scores of an eval are `gen_ai.evaluation.result` events in that run's trace, below its span. `with_content` adds message
    contents, which the conventions omit by default. `read` returns the events of a subagent's session, given its parent's
    id and its own: its spans are in the same trace, below the calls that started it.
    """
    events = list(events)
    session_id = next((event.session_id for event in events if isinstance(event, SystemInit)), "unknown")
    place, spans, seen = own_trace(session_id), list[Span](), {session_id}
    waiting: list[tuple[str, Sequence[Event], TracePlace]] = [(session_id, events, place)]
    while waiting:
        one, log, at = waiting.pop(0)
        spans += session_spans(log, SpanFold(one, at, mask=mask, with_content=with_content, tags=tags))
        for started in (event for event in log if read is not None and isinstance(event, SubagentStarted)):
            child = started.child_session_id
            if read is not None and child not in seen:
                seen.add(child)
                below = TracePlace(place.trace_id, call_span_id(one, started.tool_use_id))
                waiting.append((child, list(read(one, child)), below))
    return trace_request(spans)


# --- Markdown --------------------------------------------------------------------------------------------------------


def _quoted(text: str) -> str:
    """The text as a block quote that no content can end: every line is prefixed, whatever its line end; tags are escaped."""
    text = re.sub(r"<(?=[A-Za-z/!?])", r"\\<", re.sub(r"\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]", "\n", text))
    return "\n".join(f"> {line}".rstrip() for line in text.split("\n"))


def _inline(text: object) -> str:
    """A name or word on one line, with all Markdown syntax in it escaped."""
    return re.sub(r"([\\`*_\[\]<>#|~!])", r"\\\1", visible(str(text)))


def _code(text: object) -> str:
    return "`" + visible(str(text)).replace("`", "'") + "`"


def _json_block(value: Any) -> str:
    """The value as a code block whose fence is longer than any fence inside it."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"


def _markdown(event: Event) -> str:
    """The transcript text of an event, empty for bookkeeping."""
    match event:
        case SystemInit():
            return f"# Session {_code(event.session_id)}\n\nModel {_inline(event.model)}, in {_code(event.cwd)}"
        case UserMessage():
            who = "User" if event.origin == "user" else f"Message of {_inline(event.origin)}"
            text = "\n".join([event.text, *map(describe_attachment, event.attachments)])
            return f"## {who}\n\n{_quoted(text)}"
        case AssistantMessage() if event.text:
            cut = " (cut short)" if event.incomplete else ""
            return f"## Assistant{cut}\n\n{_quoted(event.text)}"
        case AssistantReasoning():
            return f"### Reasoning\n\n{_quoted(event.text)}"
        case ToolUse():
            return f"### {_inline(event.name)}\n\n{_json_block(event.input)}"
        case ToolResult():
            content = event.error_message if event.is_error and event.error_message else event.output
            beside = "".join(f"\n\n{_inline(describe_attachment(part))}" for part in event.attachments)
            return f"{_inline(event.outcome)}:\n\n{_json_block(content)}{beside}"
        case Result():
            why = f" ({_inline(event.error_message)})" if event.error_message else ""
            return f"---\n\nEnded: {_inline(event.stop_reason)}{why}"
    return ""
