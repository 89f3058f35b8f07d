"""Say what one request was made of: which event, file, skill or hook put each part there, and what of it was cached.

A provider's cache holds a prefix: a request that begins with all of the request before it is cheap. `broke_at` is the first
message where that is not so.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from ...errors import OptionsError
from ...events import Event, ModelContext, ModelRequest
from ...frozen import frozen
from ..rebuild import Conversation, Origin
from .audit import RebuiltRequest, rebuild_requests

_PREVIEW_CHARS = 100


@frozen
class PromptSlice:
    """A slice of the system prompt: `kind` and `source` (a file or skill) say who put it there."""

    kind: str
    source: str
    chars: int
    preview: str


@frozen
class MessagePart:
    """One message: its role, where it is from, its size as JSON in bytes, and its beginning."""

    index: int
    role: str
    origin: str
    first_seq: int | None
    last_seq: int | None
    bytes: int
    preview: str


@frozen
class PrefixReport:
    """How the request continues the one before: `kept_messages` are the same, `broke_at` is the first that is not.

    `reason` says why it broke; None when the whole request before is a prefix of this one, or when there was none.
    """

    kept_messages: int
    previous_messages: int
    broke_at: int | None = None
    reason: str | None = None


@frozen
class StepExplanation:
    """One request, taken apart. `matches` says whether its digest is the recorded one."""

    step: int
    seq: int
    model: str
    matches: bool
    rewritten_by_hook: bool
    system: Sequence[PromptSlice]
    messages: Sequence[MessagePart]
    tools: Sequence[str]
    prefix: PrefixReport
    request: RebuiltRequest


def explain_step(events: Iterable[Event], step: int) -> StepExplanation:
    """Explain the request of a step. Raises `OptionsError` when the log has no such step."""
    events = list(events)
    turns = {event.seq for event in events if isinstance(event, ModelRequest) and event.purpose == "turn"}
    rebuilt = [request for request in rebuild_requests(events) if request.seq in turns]
    at = next((index for index, request in enumerate(rebuilt) if request.step == step), None)
    if at is None:
        steps = f"1 to {rebuilt[-1].step}" if rebuilt else "none"
        raise OptionsError(f"this session has no step {step}: its steps are {steps}")
    request, previous = rebuilt[at], rebuilt[at - 1] if at else None
    before = [event for event in events if (event.seq or 0) < request.seq]
    context = next(event for event in reversed(before) if isinstance(event, ModelContext))
    event = next(event for event in events if event.seq == request.seq)
    rewritten = isinstance(event, ModelRequest) and event.messages is not None
    conversation = Conversation(provider=context.provider)
    for earlier in before:
        conversation.apply(earlier)
    text = context.system_prompt
    slices = context.parts or ([{"kind": "base", "source": "", "start": 0, "end": len(text)}] if text else [])
    return StepExplanation(
        step,
        request.seq,
        request.model,
        request.matches,
        rewritten,
        [
            PromptSlice(
                str(part["kind"]),
                str(part["source"]),
                part["end"] - part["start"],
                _clip(text[part["start"] : part["end"]]),
            )
            for part in slices
        ],
        _parts(request, [] if rewritten else conversation.origins()),
        [tool["function"]["name"] for tool in request.tools],
        _prefix(previous, request, events),
        request,
    )


def _parts(request: RebuiltRequest, origins: Sequence[Origin]) -> list[MessagePart]:
    """The request's messages; `origins` are those of the conversation, which the system prompt stands in front of."""
    parts = []
    has_system = bool(request.messages) and request.messages[0].get("role") == "system"
    for index, message in enumerate(request.messages):
        position, role = index - has_system, str(message.get("role"))
        origin = origins[position] if 0 <= position < len(origins) else None
        known = origin.kind if origin else "system prompt" if role == "system" else "hook"
        first, last = (origin.first_seq or None, origin.last_seq or None) if origin else (None, None)
        content = message.get("content")
        said = content if isinstance(content, str) else json.dumps(content) if content else ""
        calls = [f"{c['function']['name']}({c['function']['arguments']})" for c in message.get("tool_calls") or ()]
        shown = _clip(" ".join([said, *calls]).strip())
        parts.append(MessagePart(index, role, known, first, last, len(json.dumps(message)), shown))
    return parts


def _clip(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _PREVIEW_CHARS else f"{line[: _PREVIEW_CHARS - 3]}..."


def _prefix(previous: RebuiltRequest | None, request: RebuiltRequest, events: Sequence[Event]) -> PrefixReport:
    if previous is None:
        return PrefixReport(0, 0)
    kept = 0
    for before, now in zip(previous.messages, request.messages, strict=False):
        if before != now:
            break
        kept += 1
    count = len(previous.messages)
    if previous.model != request.model:
        return PrefixReport(0, count, 0, f"the model changed from {previous.model} to {request.model}")
    if previous.tools != request.tools:
        return PrefixReport(0, count, 0, "the tools changed")
    if kept == count:
        return PrefixReport(kept, count)
    return PrefixReport(kept, count, kept, _reason(previous, request, events, kept))


def _reason(previous: RebuiltRequest, request: RebuiltRequest, events: Sequence[Event], kept: int) -> str:
    between = [event for event in events if previous.seq < (event.seq or 0) < request.seq]
    words = {
        "session.compacted": "the conversation was summarised",
        "session.rewound": "the session was rewound",
        "system.init": "another run began, with a shorter history or another provider",
        "skill.activated": "a skill became active",
        "skill.deactivated": "a skill was deactivated",
    }
    if kept == 0 and request.messages and request.messages[0].get("role") == "system":
        changed = [f"{words[e.type]} (seq {e.seq})" for e in between if e.type.startswith("skill.") and e.type in words]
        return "the system prompt changed" + (f": {', '.join(changed)}" if changed else "")
    known = [f"{words[event.type]} (seq {event.seq})" for event in between if event.type in words]
    return "; ".join(known) or f"message {kept} is another one: a hook or the request before was rewritten"
