"""Explain what one request consisted of: which event, file, skill or hook contributed each part, and what was cached.

A provider's cache stores a prefix, in the order tools, system prompt, messages: a request that begins with the whole
previous request is cheap. `broke_at` is the first message that differs from the previous request's. Bytes are counted in
that order over the canonical JSON of the tools and of each message; tools with `defer_loading` are not counted.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import is_, itemgetter
from typing import Any

from ....errors import OptionsError
from ....events import (
    ContextCleared,
    Event,
    ModelContext,
    ModelRequest,
    ModelResponse,
    ModelRetry,
    PermissionDecision,
    SessionCompacted,
    SessionRewound,
    SystemInit,
    ToolResult,
    UserMessage,
)
from ....ground.frozen import frozen
from ....ground.loose import as_mapping, as_mappings, tool_name
from ....ground.words import shortened
from ....providers.definitions.refusals import CUT_DESCRIPTIONS, HOLD_TOOL
from ....sessions.folds.usage import normalize_usage
from ....sessions.rebuild import Conversation, MessageBlock
from ....sessions.request import canonical_json
from .audit import RebuiltRequest, rebuild_requests

_PREVIEW_CHARS = 100
_WISHES = {HOLD_TOOL: "refuses a tool", CUT_DESCRIPTIONS: "accepts only shorter descriptions of tools"}


@frozen
class PromptSlice:
    """A slice of the system prompt; `kind` and `source` (a file or skill) identify its origin."""

    kind: str
    source: str
    chars: int
    preview: str


@frozen
class Origin:
    """The events from which one message was built: the first and last `seq`, and their kind."""

    first_seq: int
    last_seq: int
    kind: str


def origins(conversation: Conversation) -> list[Origin]:
    """The origins of the conversation's messages, in the same order."""
    return [origin for block in conversation.view for origin in _origins(block, conversation.provider)]


def _origins(block: MessageBlock, provider: str | None) -> list[Origin]:
    """The origin of each message that the block renders to."""
    if block.is_user:
        return [Origin(block.first_seq, block.first_seq, block.kind)]
    if block.is_empty_for(provider):
        return []
    seqs = [block.first_seq, *(use.seq or block.first_seq for use in block.calls.values())]
    origins = [Origin(min(seqs), max(seqs), "answer")]
    for call_id, use in block.calls.items():
        result = block.results.get(call_id)
        at = result.seq if result is not None and result.seq is not None else 0
        origins.append(Origin(at, at, f"result of {use.name}" if at else f"no result of {use.name}"))
    if block.pictures:
        origins.append(Origin(block.first_seq, block.last_seq, "pictures of results"))
    return origins


@frozen
class MessagePart:
    """One message: its role, its origin, its size as JSON in bytes, and its beginning.

    `untrusted` is the source of an untrusted text, None if the log records none.
    """

    index: int
    role: str
    origin: str
    first_seq: int | None
    last_seq: int | None
    bytes: int
    preview: str
    untrusted: str | None = None


@frozen
class LabelledCall:
    """A call in the answer that label rules object to. `findings` are the values objected to, with their provenance.

    They are copied from the permission decision, event `seq`.
    """

    seq: int
    tool: str
    allowed: bool
    rule: str
    findings: Sequence[Mapping[str, Any]]


@frozen
class PrefixReport:
    """The comparison of a request with the previous one: it repeats `kept_messages` messages; `broke_at` is the first that
    differs.

    `reason` explains the break and `seq` is the event that caused it; both are None if the whole previous request is a
    prefix of this one or if there was no previous request. `same_bytes` of the `previous_bytes` of that request are the
    common prefix; nothing after it can come from the cache. The endpoint reported that `cached_tokens` of the
    `input_tokens` were cached (None if it reported nothing), `after_s` seconds after the previous request.
    """

    kept_messages: int
    broke_at: int | None = None
    reason: str | None = None
    seq: int | None = None
    same_bytes: int = 0
    previous_bytes: int = 0
    cached_tokens: int | None = None
    input_tokens: int | None = None
    after_s: float | None = None


@frozen
class StepExplanation:
    """One request and its parts. `matches` is true if its digest equals the recorded one.

    `request` is the complete request: its `model`, `messages` and `tools`.
    """

    step: int
    seq: int
    model: str
    matches: bool
    rewritten_by_hook: bool
    system: Sequence[PromptSlice]
    messages: Sequence[MessagePart]
    tools: Sequence[str]
    prefix: PrefixReport
    labelled_calls: Sequence[LabelledCall]
    request: Mapping[str, Any]


def explain_step(events: Iterable[Event], step: int) -> StepExplanation:
    """Explain the request of a step. Raises `OptionsError` if the log does not have this step."""
    events = list(events)
    # Requests for a summary are not steps.
    turns = {event.seq for event in events if isinstance(event, ModelRequest) and event.purpose == "turn"}
    rebuilt = [request for request in rebuild_requests(events) if request.seq in turns]
    at = next((index for index, request in enumerate(rebuilt) if request.step == step), None)
    if at is None:
        steps = f"its steps are 1 to {rebuilt[-1].step}" if rebuilt else "it has no steps"
        raise OptionsError(f"this session has no step {step}: {steps}")
    request, previous = rebuilt[at], rebuilt[at - 1] if at else None
    before = [event for event in events if (event.seq or 0) < request.seq]
    context = next(event for event in reversed(before) if isinstance(event, ModelContext))
    event = next(event for event in events if event.seq == request.seq)
    rewritten = isinstance(event, ModelRequest) and event.messages is not None
    conversation = Conversation(provider=context.provider)
    for earlier in before:
        conversation.apply(earlier)
    text = context.system_prompt
    slices = [part for part in context.parts if all(isinstance(part.get(name), int) for name in ("start", "end"))]
    if text and not slices:
        slices = [{"kind": "base", "source": "", "start": 0, "end": len(text)}]
    return StepExplanation(
        step,
        request.seq,
        request.model,
        request.matches,
        rewritten,
        [
            PromptSlice(
                str(part.get("kind", "")),
                str(part.get("source", "")),
                part["end"] - part["start"],
                _preview(text[part["start"] : part["end"]]),
            )
            for part in slices
        ],
        # The messages of a rewritten request are those of a hook, and correspond to no events.
        _message_parts(request.messages, [] if rewritten else origins(conversation), _untrusted_seqs(before)),
        [tool_name(tool) for tool in request.tools],
        _Prefixes(events).report(previous, request),
        _labelled_calls(events, request.seq, rebuilt[at + 1].seq if at + 1 < len(rebuilt) else None),
        {"model": request.model, "messages": request.messages, "tools": request.tools},
    )


def _untrusted_seqs(events: Iterable[Event]) -> Mapping[int, str]:
    """The sources of untrusted texts, by the `seq` of the event that introduced them."""
    sources: dict[int, str] = {}
    for event in events:
        source: Any = None
        match event:
            case ToolResult():
                source = (event.meta or {}).get("untrusted")
            case UserMessage() if event.untrusted:
                source = ", ".join(event.untrusted)
        if isinstance(source, str):
            sources[event.seq or 0] = source
    return sources


def _labelled_calls(events: Iterable[Event], after: int, until: int | None) -> list[LabelledCall]:
    """The calls of one answer whose permission decisions contain findings of label rules."""
    calls = []
    for event in events:
        if isinstance(event, PermissionDecision) and after < (event.seq or 0) < (until or float("inf")):
            labels = as_mapping(event.details.get("labels"))
            if findings := as_mappings(labels.get("findings")):
                calls.append(LabelledCall(event.seq or 0, event.name, event.allowed, str(labels.get("rule")), findings))
    return calls


def _message_parts(
    messages: Sequence[Mapping[str, Any]], origins: Sequence[Origin], untrusted: Mapping[int, str]
) -> list[MessagePart]:
    """The messages of a request, system prompt first; `origins` are the origins of the others."""
    parts = []
    has_system = bool(messages) and messages[0].get("role") == "system"
    for index, message in enumerate(messages):
        position, role = index - has_system, str(message.get("role"))
        origin = origins[position] if 0 <= position < len(origins) else None
        kind = origin.kind if origin else "system prompt" if role == "system" else "hook"
        first, last = (origin.first_seq or None, origin.last_seq or None) if origin else (None, None)
        content = message.get("content")
        text = content if isinstance(content, str) else json.dumps(content) if content else ""
        calls = [f"{c['function']['name']}({c['function']['arguments']})" for c in message.get("tool_calls") or ()]
        preview = _preview(" ".join([text, *calls]))
        source = next((untrusted[seq] for seq in range(first or 0, (last or -1) + 1) if seq in untrusted), None)
        parts.append(MessagePart(index, role, kind, first, last, len(json.dumps(message)), preview, source))
    return parts


def _preview(text: str) -> str:
    return shortened(" ".join(text.split()), _PREVIEW_CHARS)


def find_misses(events: Iterable[Event]) -> Iterator[tuple[RebuiltRequest, PrefixReport]]:
    """Yield each request of a log that does not begin with the previous one, with a report; requests for summaries, too."""
    events = list(events)
    apart = {event.seq for event in events if isinstance(event, ModelRequest) and event.purpose != "turn"}
    previous: RebuiltRequest | None = None
    prefixes = _Prefixes(events)
    for request in rebuild_requests(events):
        if previous is not None:
            leads_alike = previous.model == request.model and _lead(previous) == _lead(request)
            if not leads_alike or _same(previous.messages, request.messages) < len(previous.messages):
                yield request, prefixes.report(previous, request)
        previous = previous if request.seq in apart else request


def _lead(request: RebuiltRequest) -> list[Mapping[str, Any]]:
    """The tools that precede all messages in the provider's cache."""
    return [tool for tool in request.tools if not tool.get("defer_loading")]


class _Prefixes:
    """A comparer of each request of a log with the previous one; the lookups for all reports are computed once."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._answers = [event for event in events if isinstance(event, ModelResponse)]
        self._sent = {event.seq: event.ts or 0.0 for event in events if isinstance(event, ModelRequest)}
        self._breaks = [(event.seq or 0, words) for event in events if (words := _broken_prefix(event))]
        self._sizes: dict[int, tuple[Any, int]] = {}

    def report(self, previous: RebuiltRequest | None, request: RebuiltRequest) -> PrefixReport:
        at = bisect_right(self._answers, request.seq, key=lambda answer: answer.seq or 0)
        tokens = normalize_usage(self._answers[at].usage) if at < len(self._answers) else None
        cached, input_tokens = (
            (tokens["cached_input_tokens"], tokens["input_tokens"]) if tokens is not None else (None, None)
        )
        if previous is None:
            return PrefixReport(0, cached_tokens=cached, input_tokens=input_tokens)
        before, now = ([_lead(each), *each.messages] for each in (previous, request))
        same = _same(before, now) if previous.model == request.model else 0
        sizes = [len(canonical_json(before[0])), *map(self._size, before[1:])]
        same_bytes, whole = sum(sizes[:same]), sum(sizes)
        if previous.model == request.model and same < min(len(before), len(now)):
            same_bytes += _same(canonical_json(before[same]), canonical_json(now[same]))
        is_broken = same < len(before)
        seq, reason = self._break(previous, request) if is_broken else (None, None)
        return PrefixReport(
            max(same - 1, 0),
            max(same - 1, 0) if is_broken else None,
            reason,
            seq,
            same_bytes,
            whole,
            cached,
            input_tokens,
            round(self._sent[request.seq] - self._sent[previous.seq], 3),
        )

    def _size(self, message: Any) -> int:
        entry = self._sizes.get(id(message))
        if entry is None:
            # The entry keeps the message alive, so that no other object gets its id.
            entry = self._sizes[id(message)] = message, len(canonical_json(message))
        return entry[1]

    def _break(self, previous: RebuiltRequest, request: RebuiltRequest) -> tuple[int, str]:
        """The `seq` of the event that broke the prefix, and a description of all causes."""
        first = bisect_left(self._breaks, previous.seq, key=itemgetter(0))
        breaks = self._breaks[first : bisect_right(self._breaks, request.seq, key=itemgetter(0))]
        if not breaks:
            return request.seq, "the previous request was rewritten, or this log is from an older version"
        return breaks[0][0], "; ".join(f"{words} (event {seq})" for seq, words in breaks)


def _same(before: Sequence[Any], now: Sequence[Any]) -> int:
    """The length of the common prefix of both."""
    if len(before) <= len(now) and all(map(is_, before, now)):
        return len(before)
    different = (at for at, (a, b) in enumerate(zip(before, now, strict=False)) if a is not b and a != b)
    return next(different, min(len(before), len(now)))


def _broken_prefix(event: Event) -> str | None:
    match event:
        case ModelContext():
            return event.cause or "another model, system prompt or tools"
        case SessionCompacted():
            return "the conversation was summarized"
        case ContextCleared():
            return "outputs of calls were cleared"
        case SessionRewound():
            return "the session was rewound"
        case SystemInit() if event.messages_from_seq is not None:
            return "the run began with a shorter history"
        case ModelRetry() if event.control is not None:
            wish = _WISHES.get(event.control.partition(" ")[0], "requires reasoning to be omitted")
            return f"the endpoint {wish}: {event.control}"
        case ModelRequest() if event.messages is not None:
            return "a hook rewrote the messages" if event.purpose == "turn" else f"{event.purpose}: a separate request"
    return None
