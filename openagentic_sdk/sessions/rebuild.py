"""Fold events into the messages that a chat-completions model is sent.

From any prefix of any log, the messages are valid. Each assistant message with calls is followed at once by exactly one
result per call; there are no orphan results, no empty messages, no lone surrogates, and arguments are JSON. The fold is
pure, and messages that were once sent stay as they were, so that prompt caches keep working; only a compaction, a rewind or
a cut at resume changes what came before.

Reasoning that a vendor signed fits only behind the very request that it answered. Each answer knows that request's digest,
and the fold knows the digest of what it would send now: where the two differ, whatever the reason, that is left out.

The conversation is a list of blocks. A block is what must stay together: a user message, or an assistant message with the
results of its calls. What changes the view of earlier blocks puts a new list upon the one before, so that a rewind finds
what was in view then, and no compaction is ever replayed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from ..events import (
    AssistantMessage,
    ContextCleared,
    Event,
    ModelContext,
    ModelRequest,
    ModelResponse,
    ModelRetry,
    Result,
    SessionCompacted,
    SessionRewound,
    SystemInit,
    ToolResult,
    ToolUse,
    UserMessage,
)
from ..ground.frozen import frozen, mutable
from ..ground.text import sendable
from ..ground.untracked import untrack
from ..providers.bound_reasoning import is_bound, without_reasoning
from ..serialization import json_encoder
from .request import RunningDigest, canonical_json

Message = dict[str, Any]
_FREED_AT_ONCE = 200
# Rendering that many blocks at once, after a resume or for another model, is work for a thread of its own.
MANY_BLOCKS = 250
_as_json = json_encoder(ensure_ascii=False)

NO_RESULT = "No result of this call was recorded: it may or may not have run. Check before repeating it."
SUMMARY_INTRO = "The conversation so far was summarised to save space. Summary:\n\n"


def rebuild_messages(
    events: Iterable[Event], max_events: int | None = None, max_bytes: int | None = None, *, provider: str | None = None
) -> list[Message]:
    """The messages of a log, oldest first, without the system prompt.

    `max_events` and `max_bytes` keep the newest blocks that fit (`max_bytes` counts the messages as JSON); None is no
    limit. A block is never split, the newest one always stays, and the user message that a kept tool loop answers stays
    with it. Opaque vendor fields are included for messages of `provider` only. A user message with attachments has a list of
    parts as its content; what is in a blob is named by `sha256`, and only a request that leaves holds its bytes.
    """
    conversation = Conversation()
    for event in events:
        conversation.apply(event)
    conversation.provider = provider
    conversation.cut(conversation.cut_seq(max_events, max_bytes))
    return conversation.messages()


def standing_events(events: Iterable[Event]) -> list[Event]:
    """The events that no later rewind took back."""
    standing: list[Event] = []
    for event in events:
        if isinstance(event, SessionRewound):
            standing = [earlier for earlier in standing if (earlier.seq or 0) <= event.to_seq]
        standing.append(event)
    return standing


@frozen
class _SentRequest:
    """A request: its `seq`, the digest of all of it, the model that was asked, and what it carried besides messages."""

    seq: int
    sha256: str
    model: str | None
    context: ModelContext | None = None


@frozen
class _Audience:
    """Whom a message is for: a provider and, when it is known, what requests carry; `before` is the digest of all before."""

    provider: str | None
    context: ModelContext | None
    before: RunningDigest

    def takes(self, message: Message, answers: _SentRequest | None) -> bool:
        """Whether the vendor takes the reasoning in a message back: from the same model, and behind the same request."""
        if self.context is None:
            return True
        if answers is None or answers.model != self.context.model:
            return False
        if not is_bound(message, self.context.model):
            return True
        then = answers.context
        if then is None or then is self.context or not _differs_in_found_tools(then, self.context):
            return answers.sha256 == self.before.hexdigest()
        return answers.sha256 == self.before.hexdigest(then.tools)


@mutable
class _MessageBlock:
    """A stretch of the conversation that must stay whole; `seqs` are the events that it was made of.

    `answers` is the request that an assistant's block answers, None when the log does not have it.
    """

    seqs: list[int]
    is_user: bool = False
    kind: str = "prompt"
    about: str | None = None
    text: str | None = None
    parts: Sequence[Message] = ()
    provider: str | None = None
    answers: _SentRequest | None = None
    extras: Mapping[str, Any] | None = None
    calls: dict[str, ToolUse] = field(default_factory=dict)
    results: dict[str, ToolResult] = field(default_factory=dict)
    cleared: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    cleared_at: tuple[int, ...] = ()

    @property
    def first_seq(self) -> int:
        return self.seqs[0]

    @property
    def last_seq(self) -> int:
        return max(self.seqs)

    @property
    def open_calls(self) -> list[ToolUse]:
        return [use for call_id, use in self.calls.items() if call_id not in self.results]

    @property
    def pictures(self) -> list[Message]:
        """What of the results text cannot say, as parts of the message behind them."""
        results, cleared = self.results, self.cleared
        shown = [results[call_id] for call_id in self.calls if call_id in results and call_id not in cleared]
        return [part for result in shown for part in _pictures(result)]

    def is_empty_for(self, provider: str | None) -> bool:
        """Whether it makes no message: an answer of vendor fields alone is one for that vendor only."""
        return not (self.calls or self.text or (self.extras and self.provider == provider))

    def render(self, asked: _Audience | None = None) -> list[Message]:
        """The block's messages, for whom they are; None for nobody in particular leaves opaque fields out."""
        if self.is_user:
            text = sendable(self.text or "")
            if not self.parts:
                return [{"role": "user", "content": text or " "}]
            said = [{"type": "text", "text": text}] if text.strip() else []
            return [{"role": "user", "content": [*said, *self.parts]}]
        if self.is_empty_for(None if asked is None else asked.provider):
            return []
        provider = None if asked is None else asked.provider
        message: Message = {"role": "assistant", "content": sendable(self.text) if self.text else None}
        if self.calls:
            message["tool_calls"] = [
                _call(call_id, use, with_extras=asked is not None and use.provider == provider)
                for call_id, use in self.calls.items()
            ]
        if asked is not None and self.extras and self.provider == provider:
            message = {**self.extras, **message}
        messages: list[Message] = [
            message if asked is None or asked.takes(message, self.answers) else without_reasoning(message)
        ]
        for call_id in self.calls:
            cleared = self.cleared.get(call_id)
            text = result_text(self.results.get(call_id)) if cleared is None else _cleared_text(cleared)
            messages.append({"role": "tool", "tool_call_id": call_id, "content": text})
        if pictures := self.pictures:
            messages.append({"role": "user", "content": pictures})
        return messages


@frozen
class Origin:
    """The events that one message was made of: the first and last `seq`, and what they are."""

    first_seq: int
    last_seq: int
    kind: str


def _origins(block: _MessageBlock, provider: str | None) -> list[Origin]:
    """One per message that the block renders to."""
    if block.is_user:
        return [Origin(block.first_seq, block.first_seq, block.kind)]
    if block.is_empty_for(provider):
        return []
    said = [block.first_seq, *(use.seq or block.first_seq for use in block.calls.values())]
    origins = [Origin(min(said), max(said), "answer")]
    for call_id, use in block.calls.items():
        result = block.results.get(call_id)
        at = result.seq if result is not None and result.seq is not None else 0
        origins.append(Origin(at, at, f"result of {use.name}" if at else f"no result of {use.name}"))
    if block.pictures:
        origins.append(Origin(block.first_seq, block.last_seq, "pictures of results"))
    return origins


def untrack_blocks(conversation: Conversation, since: int) -> int:
    """Let the garbage collector look no more at blocks in view, from place `since` on; returns the place behind them."""
    untrack(conversation._view[since:])
    return len(conversation._view)


class Conversation:
    """The fold itself, event by event. `messages()` may be asked at any time and costs O(new) besides one list copy.

    `horizon` is the `seq` of the compaction before which everything was let go of, 0 while nothing was: a rewind to before
    it cannot be folded any more, only the whole log can.
    """

    def __init__(self, *, provider: str | None = None) -> None:
        self.horizon = 0
        self.provider = provider
        self.context: ModelContext | None = None  # what requests carry besides messages
        self._asked: _SentRequest | None = None
        self._turn: _MessageBlock | None = None  # the assistant block that may still grow
        self._position = 0
        # What was in view behind each event that changed the view of earlier ones. The last list is the present view.
        self._view: list[_MessageBlock] = []
        self._views = [(0, self._view)]
        self._by_call: dict[str, _MessageBlock] = {}  # the newest block in view with that call
        self.shown = 0  # the position of what last changed the view of earlier messages
        self.told: dict[str, str] = {}  # what messages of the runtime in view say, by what they are about
        self._unsettle()

    @classmethod
    def restored(
        cls,
        blocks: Iterable[Sequence[Event]],
        *,
        horizon: int,
        provider: str | None = None,
        context: ModelContext | None = None,
    ) -> Conversation:
        """The conversation with these blocks in view, each given as its events, behind a compaction at `horizon`."""
        conversation = cls(provider=provider)
        for events in blocks:
            conversation._turn = None
            for event in events:
                conversation._position = event.seq or 0
                if isinstance(event, SessionCompacted):
                    conversation._view.append(_summary(event, conversation._position))
                else:
                    _FOLDS[event.type](conversation, event)
        if context is not None:
            conversation._context(context)
        conversation._turn = conversation._asked = None
        conversation._position = conversation.horizon = conversation.shown = horizon
        conversation._views = [(horizon, conversation._view)]
        return conversation

    def apply(self, event: Event) -> None:
        """Take one more event into account. Events of the log's other kinds change nothing."""
        self._position = event.seq or self._position + 1
        fold = _FOLDS.get(event.type)
        if fold is not None:
            fold(self, event)

    def clear(self) -> None:
        """Forget everything, a little at a time: it holds up no other thread for long."""
        lists: list[list[Any]] = [self._settled, *(view for _, view in self._views)]
        for each in lists:
            while each:
                del each[-_FREED_AT_ONCE:]
        self._by_call, self._view = {}, []
        self._views = [(0, self._view)]

    def blocks(self) -> list[list[int]]:
        """What is in view, as the `seq` of the request that each block answers and of the events that made it what it is."""
        return [
            [*([block.answers.seq] if block.answers else ()), *block.seqs, *block.cleared_at] for block in self._view
        ]

    def messages(self, before: Iterable[Message] = ()) -> list[Message]:
        """The messages as they would be sent now, in a new list behind those of `before`; calls without a result get one
        that says so."""
        rest, _ = self._settle()
        return [*before, *self._settled, *rest]

    def request_sha256(self, appended: Sequence[Mapping[str, Any]] = ()) -> str:
        """The digest of the request that would be sent now: of the system prompt, `messages()` and what is appended to them,
        the model and the tools."""
        digest = self._settle()[1]
        if appended:
            digest = digest.copy()
            digest.add(appended)
        return digest.hexdigest()

    def size_bytes(self) -> int:
        """The size of `messages()` as canonical JSON; what did not change since the last time is not measured again."""
        return self._settle()[1].size_bytes - self._system_bytes

    @property
    def has_parts(self) -> bool:
        """Whether one of `messages()` is more than a text."""
        return self._settle()[1].has_parts

    @property
    def unsettled(self) -> int:
        """How many blocks are still to be rendered for the first time, or again because something before them changed."""
        return len(self._view) - self._settled_blocks

    def _settle(self) -> tuple[list[Message], RunningDigest]:
        """Render what is not settled. Gives the messages of what may still change, and the digest of all that is in view."""
        blocks = self._view
        are_many = len(blocks) - self._settled_blocks > MANY_BLOCKS
        while self._settled_blocks < len(blocks):
            block = blocks[self._settled_blocks]
            if block.open_calls or (block is self._turn and not block.calls):
                break
            rendered = block.render(_Audience(self.provider, self.context, self._digest))
            self._digest.add(rendered)
            self._settled.extend(rendered)
            self._settled_blocks += 1
            if are_many:
                untrack(rendered)
        if self._settled_blocks == len(blocks):
            return [], self._digest
        rest, digest = list[Message](), self._digest.copy()
        for block in blocks[self._settled_blocks :]:
            rendered = block.render(_Audience(self.provider, self.context, digest))
            digest.add(rendered)
            rest.extend(rendered)
        return rest, digest

    def messages_up_to(self, seq: int) -> list[Message]:
        """The messages that a compaction up to `seq` would take out of view."""
        every = _Audience(self.provider, None, self._digest)
        return [message for block in self._view if block.last_seq <= seq for message in block.render(every)]

    def summary_seq(self) -> int:
        """The `seq` of the compaction whose summary stands first in view; 0 when none does."""
        first = self._view[:1]
        return first[0].first_seq if first and first[0].kind == "summary" else 0

    def origins(self) -> list[Origin]:
        """For each of `messages()` in the same order, which events it was made of."""
        return [origin for block in self._view for origin in _origins(block, self.provider)]

    def outputs(self) -> list[tuple[ToolUse, ToolResult]]:
        """The calls in view whose output the model sees, oldest first; none of an answer that still waits for a result."""
        return [
            (use, block.results[call_id])
            for block in self._view
            if not block.open_calls
            for call_id, use in block.calls.items()
            if call_id not in block.cleared
        ]

    def open_calls(self) -> list[ToolUse]:
        """The calls that were asked for and have no result, oldest first."""
        # Of what is settled, none is open.
        return [use for block in self._view[self._settled_blocks :] if block.calls for use in block.open_calls]

    def cut_seq(self, max_events: int | None, max_bytes: int | None) -> int | None:
        """The first event to keep so that both limits hold, or None when nothing has to go."""
        if max_events is None and max_bytes is None:
            return None
        blocks = self._view
        events = size = 0
        for index in range(len(blocks) - 1, -1, -1):
            events += len(blocks[index].seqs)
            if max_bytes is not None:
                size += len(json.dumps(blocks[index].render(_Audience(self.provider, None, self._digest))))
            too_much = (max_events is not None and events > max_events) or (max_bytes is not None and size > max_bytes)
            if too_much:
                return blocks[min(index + 1, len(blocks) - 1)].first_seq
        return None

    def cut(self, first_seq: int | None) -> None:
        """Hide what came before `first_seq`, but for the user message that the first kept block answers."""
        if first_seq is not None:
            self._position += 1
            self._start_late(first_seq)

    # --- one method per kind of event that matters -------------------------------------------------------------------

    def _user_message(self, event: UserMessage) -> None:
        self._turn = self._asked = None
        kind = "prompt" if event.origin == "user" else f"message of {event.origin}"
        parts = [dict(part) for part in event.attachments]
        self._view.append(
            _MessageBlock([self._position], is_user=True, kind=kind, about=event.about, text=event.text, parts=parts)
        )
        if event.about is not None:
            self.told[event.about] = event.text

    def _context(self, event: ModelContext) -> None:
        """What follows is asked with other facts. What they are the start of is rendered and digested anew."""
        self.context, self.provider = event, event.provider
        self._unsettle()

    def _request(self, event: ModelRequest | ModelResponse) -> None:
        self._turn = None
        if isinstance(event, ModelRequest) and event.purpose == "turn":
            model = event.model or (self.context.model if self.context else None)
            self._asked = _SentRequest(self._position, event.request_sha256, model, self.context)

    def _assistant_message(self, event: AssistantMessage) -> None:
        turn = self._turn
        if turn is None or turn.text is not None or turn.results:
            turn = self._turn = _MessageBlock([self._position], answers=self._asked)
            self._view.append(turn)
        else:
            turn.seqs.append(self._position)
        turn.text = event.text
        turn.provider, turn.extras = event.provider, event.extras

    def _retry(self, event: ModelRetry) -> None:
        """What had come of an attempt that failed is no part of the conversation; the next one begins again."""
        if event.mid_answer and self._turn is not None:
            self._turn.text = self._turn.extras = None
        if event.model is not None and self._asked is not None:
            self._asked = replace(self._asked, model=event.model)

    def _tool_use(self, event: ToolUse) -> None:
        if event.is_inside:
            return
        turn = self._turn
        if turn is None or turn.results:
            turn = self._turn = _MessageBlock([self._position], answers=self._asked)
            self._view.append(turn)
        else:
            turn.seqs.append(self._position)
        call_id = event.tool_use_id or f"call_{self._position}"
        turn.calls.setdefault(call_id, event)
        self._by_call[call_id] = turn

    def _tool_result(self, event: ToolResult) -> None:
        """A result counts when its call is in view and has none yet."""
        block = self._by_call.get(event.tool_use_id)
        if block is not None and event.tool_use_id not in block.results:
            block.results[event.tool_use_id] = event
            block.seqs.append(self._position)

    def _init(self, event: SystemInit) -> None:
        self._turn = None
        if event.messages_from_seq is not None:
            self._start_late(event.messages_from_seq)

    def _end(self, event: Result) -> None:
        """A prompt that was refused for what it brought does not refuse every later one: its attachments are left out.

        So are the pictures of the results that a refused request ended with.
        """
        last = self._view[-1:]
        if event.error_type in _REFUSALS and last and last[0].is_user and last[0].parts:
            names = ", ".join(map(describe_attachment, last[0].parts))
            last[
                0
            ].text = (
                f"{last[0].text or ''}\n\n{names} was refused and is left out: attach it again if it is needed".strip()
            )
            last[0].parts = []
            last[0].seqs.append(self._position)
            self._unsettle()
        elif event.error_type in _REFUSALS and last and last[0].pictures:
            last[0].results = {call_id: _without_refused(result) for call_id, result in last[0].results.items()}
            last[0].seqs.append(self._position)
            self._unsettle()

    def _start_late(self, first_seq: int) -> None:
        view = self._view
        kept = [block for block in view if block.first_seq >= first_seq]
        if kept and not kept[0].is_user:
            prompts = [block for block in view if block.first_seq < first_seq and block.is_user]
            kept = prompts[-1:] + kept
        self._show(kept)

    def _compact(self, event: SessionCompacted) -> None:
        kept = [block for block in self._view if block.last_seq > event.up_to_seq]
        self._show([_summary(event, self._position), *kept])

    def _clear(self, event: ContextCleared) -> None:
        self._show(
            [
                replace(
                    block, cleared={**block.cleared, **event.results}, cleared_at=(*block.cleared_at, self._position)
                )
                if block.calls.keys() & event.results.keys()
                else block
                for block in self._view
            ]
        )

    def _rewind(self, event: SessionRewound) -> None:
        if event.to_seq < self.horizon:
            raise ValueError(f"a rewind to {event.to_seq} is before {self.horizon}, from where on the log was folded")
        while len(self._views) > 1 and self._views[-1][0] > event.to_seq:
            self._views.pop()
        self._view = self._views[-1][1]
        self._show([block for block in self._view if block.last_seq <= event.to_seq])

    # --- the view ----------------------------------------------------------------------------------------------------

    def _show(self, view: list[_MessageBlock]) -> None:
        self._turn = None
        self.shown = self._position
        self._view = view
        self._views.append((self._position, view))
        self._by_call = {call_id: block for block in view for call_id in block.calls}
        self.told = {block.about: block.text or "" for block in view if block.about is not None}
        self._unsettle()

    def _unsettle(self) -> None:
        """Render everything anew when it is next asked for."""
        context = self.context
        self._settled: list[Message] = []  # messages of the first `_settled_blocks` blocks in view
        self._settled_blocks = 0
        self._digest = RunningDigest(context.model, context.tools) if context else RunningDigest("", ())
        self._digest.add(system_messages(context.system_prompt) if context else ())
        self._system_bytes = self._digest.size_bytes


def _differs_in_found_tools(then: ModelContext, now: ModelContext) -> bool:
    """Whether two contexts are the same but for tools whose definitions stand where they were found."""
    fixed = [[tool for tool in one.tools if not tool.get("defer_loading")] for one in (then, now)]
    return fixed[0] == fixed[1] and (then.model, then.system_prompt) == (now.model, now.system_prompt)


def _call(call_id: str, use: ToolUse, *, with_extras: bool) -> Message:
    call = {
        "id": call_id,
        "type": "function",
        "function": {"name": use.name, "arguments": sendable(_as_json(use.input))},
    }
    return {**use.extras, **call} if use.extras and with_extras else call


# How a run ends whose request was wrong in itself; the rest (a network that was down) may pass, and what was attached stays.
_REFUSALS = ("OptionsError", "ProviderHTTPError", "ContextLengthError")

_FOLDS: Mapping[str, Callable[[Conversation, Any], None]] = {
    UserMessage.type: Conversation._user_message,
    ModelContext.type: Conversation._context,
    ModelRequest.type: Conversation._request,
    ModelResponse.type: Conversation._request,
    ModelRetry.type: Conversation._retry,
    AssistantMessage.type: Conversation._assistant_message,
    ToolUse.type: Conversation._tool_use,
    ToolResult.type: Conversation._tool_result,
    SystemInit.type: Conversation._init,
    Result.type: Conversation._end,
    SessionCompacted.type: Conversation._compact,
    ContextCleared.type: Conversation._clear,
    SessionRewound.type: Conversation._rewind,
}


def _summary(event: SessionCompacted, seq: int) -> _MessageBlock:
    return _MessageBlock([seq], is_user=True, kind="summary", text=SUMMARY_INTRO + event.summary)


def system_messages(prompt: str) -> list[Message]:
    """The system prompt as the first message of a request; none for an empty one."""
    return [{"role": "system", "content": prompt}] if prompt else []


def fit_rewritten(
    messages: Sequence[Mapping[str, Any]], instead_of: Sequence[Mapping[str, Any]], model: str
) -> list[Mapping[str, Any]]:
    """Messages that a hook put in the place of others: from the first one that is another on, reasoning that was bound to
    what stood before it is left out."""
    same = 0
    while same < min(len(messages), len(instead_of)) and messages[same] == instead_of[same]:
        same += 1
    return [*messages[:same], *(without_reasoning(m) if is_bound(m, model) else m for m in messages[same:])]


def size_of(messages: Sequence[Mapping[str, Any]]) -> int:
    """The messages' size as canonical JSON, in bytes."""
    return sum(len(canonical_json(message)) for message in messages)


def describe_attachment(part: Mapping[str, Any]) -> str:
    """What a reader sees in the place of an attachment of a prompt: `[image cat.png, image/png, 1,234 bytes]`."""
    known = (
        part.get("name") or part.get("url"),
        part.get("media_type"),
        f"{part['size']:,} bytes" if "size" in part else None,
    )
    return f"[{' '.join([str(part.get('type')), ', '.join(str(word) for word in known if word)])}]"


def _cleared_text(cleared: Mapping[str, Any]) -> str:
    """What stands in the place of an output that was cleared."""
    size, name = cleared.get("bytes"), cleared.get("sha256")
    return (
        f"[This output of {size} bytes was cleared to save space. "
        f'Read {{"file_path": "blob:{name}"}} gives it again where that is needed.]'
    )


def result_text(result: ToolResult | None) -> str:
    """What the model reads as a call's result: text as it is, anything else as JSON, errors with their kind in front."""
    if result is None:
        return NO_RESULT
    shown = _without_picture(result.output) if _is_picture(result.output) else result.output
    text = shown if isinstance(shown, str) else _as_json(shown)
    sent = [part for part in result.attachments if _is_picture(part)]
    if sent and isinstance(text, str):
        text = "\n".join([*([text] if text else []), *(f"{describe_attachment(part)} follows below" for part in sent)])
    if result.is_error:
        kind = f" ({result.error_type})" if result.error_type else ""
        error = f"Error{kind}: {result.error_message or 'the tool failed'}"
        text = error if shown is None else f"{error}\n{text}"
    return sendable(text)


def _is_picture(output: Any) -> bool:
    """Whether a tool gave something that text cannot say: a picture, a document or a sound."""
    if isinstance(output, str) or not isinstance(output, Mapping):
        return False
    kind, held = output.get("type"), [output.get("data"), output.get("sha256")]
    return kind in ("image", "file", "audio") and any(isinstance(value, str) for value in held)


def _pictures(result: ToolResult) -> list[Message]:
    """The pictures of a result as parts of a message."""
    return [_picture(part) for part in (result.output, *result.attachments) if _is_picture(part)]


def _without_picture(output: Mapping[str, Any], where: str = "follows below") -> dict[str, Any]:
    shown = {key: value for key, value in output.items() if key not in ("data", "sha256")}
    return {**shown, "note": f"the {output['type']} {where}"}


def _without_refused(result: ToolResult) -> ToolResult:
    """The result without what the endpoint may have refused in it."""
    if not _pictures(result):
        return result
    where = "was refused and is left out"
    output = _without_picture(result.output, where) if _is_picture(result.output) else result.output
    notes = [f"{describe_attachment(part)} {where}" for part in result.attachments if _is_picture(part)]
    said = "\n".join([output, *notes]) if notes and isinstance(output, str) else output
    return replace(result, output=said, attachments=[])


def _picture(output: Mapping[str, Any]) -> Message:
    name = os.path.basename(str(output.get("name") or output.get("file_path") or ""))
    part = {"type": output["type"], "media_type": output.get("media_type"), **({"name": name} if name else {})}
    if "sha256" in output:
        return {**part, "sha256": output["sha256"]}
    if output["type"] != "image":
        return {**part, "data": output["data"]}
    media_type = output.get("media_type") or "image/png"
    return {"type": "image_url", "image_url": {"url": f"data:{media_type};base64,{output['data']}"}}
