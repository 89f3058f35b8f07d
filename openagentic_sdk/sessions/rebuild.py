"""Fold events into the messages for a chat-completions model.

For any prefix of any log, the messages are valid. Each assistant message with calls is immediately followed by exactly one
result per call; there are no orphan results, no empty messages, no lone surrogates, and arguments are JSON. The fold is
pure, and messages once sent do not change, so that prompt caches keep working; only a compaction, a rewind or a limit at
resume changes earlier ones.

Reasoning signed by a vendor is valid only after the exact request that it answered. Each answer has that request's digest,
and the fold computes the digest of what it would send now: if the two differ, for any reason, the reasoning is omitted.

The conversation is a list of blocks. A block must stay together: a user message, or an assistant message with the results
of its calls. A change to the view of earlier blocks pushes a new list, so that a rewind finds the previous view, and no
compaction is ever replayed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from ..ground.words import sendable
from ..providers.bound_reasoning import is_bound, without_reasoning
from ..serialization import json_encoder, require_event
from .request import RunningDigest
from .untracked import untrack

Message = dict[str, Any]
_FREED_AT_ONCE = 200
# Rendering this many blocks at once, after a resume or for another model, is done in a thread.
MANY_BLOCKS = 250
_as_json = json_encoder(ensure_ascii=False)

NO_RESULT = "No result of this call was recorded: it may or may not have run. Check before repeating it."
SUMMARY_INTRO = "The conversation so far was summarised to save space. Summary:\n\n"


def rebuild_messages(
    events: Iterable[Event], max_events: int | None = None, max_bytes: int | None = None, *, provider: str | None = None
) -> list[Message]:
    """The messages of a log, oldest first, without the system prompt.

    `max_events` and `max_bytes` keep the newest blocks that fit (`max_bytes` counts the messages as JSON); None means no
    limit. A block is never split, the newest one is always kept, and so is the user message that a kept tool loop answers.
    Of the opaque vendor fields, only those of `provider` are included. A user message with attachments has a list of parts
    as its content; blobs are referenced by `sha256`, and only an outgoing request contains their bytes.
    """
    conversation = Conversation()
    for event in events:
        conversation.apply(require_event(event))
    conversation.provider = provider
    conversation.cut(conversation.cut_seq(max_events, max_bytes))
    return conversation.messages()


def standing_events(events: Iterable[Event]) -> list[Event]:
    """The events that no later rewind removed."""
    return [*newest_standing([*events])][::-1]


def newest_standing(events: Sequence[Event]) -> Iterator[Event]:
    """Yield the events that no later rewind removed, newest first."""
    limit = float("inf")
    for event in reversed(events):
        if (event.seq or 0) <= limit:
            yield event
        if isinstance(event, SessionRewound):
            limit = min(limit, event.to_seq)


@frozen
class _SentRequest:
    """A request: its `seq`, its digest, the requested model, and its contents besides messages."""

    seq: int
    sha256: str
    model: str | None
    context: ModelContext | None = None


@frozen
class _Audience:
    """The recipient of messages: a provider and the context of its requests (None: unknown); `before` digests the prefix."""

    provider: str | None
    context: ModelContext | None
    before: RunningDigest

    def takes(self, message: Message, answers: _SentRequest | None) -> bool:
        """Whether the vendor accepts the reasoning in a message: from the same model, and after the same request."""
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
class MessageBlock:
    """An indivisible stretch of the conversation; `seqs` are the numbers of its events.

    `answers` is the request that an assistant's block answers, None if it is not in the log.
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
        """The non-text contents of the results, as parts of the following message."""
        results, cleared = self.results, self.cleared
        results_shown = [results[call_id] for call_id in self.calls if call_id in results and call_id not in cleared]
        return [part for result in results_shown for part in _pictures(result)]

    def is_empty_for(self, provider: str | None) -> bool:
        """Whether no message is rendered: an answer with vendor fields alone is rendered only for that vendor."""
        return not (self.calls or self.text or (self.extras and self.provider == provider))

    def render(self, audience: _Audience | None = None) -> list[Message]:
        """Return the block's messages for an audience; without one, opaque fields are omitted."""
        if self.is_user:
            text = sendable(self.text or "")
            if not self.parts:
                # Some endpoints reject a message without text.
                return [{"role": "user", "content": text or " "}]
            text_parts = [{"type": "text", "text": text}] if text.strip() else []
            return [{"role": "user", "content": [*text_parts, *self.parts]}]
        if self.is_empty_for(None if audience is None else audience.provider):
            return []
        provider = None if audience is None else audience.provider
        message: Message = {"role": "assistant", "content": sendable(self.text) if self.text else None}
        if self.calls:
            message["tool_calls"] = [
                _call(call_id, use, with_extras=audience is not None and use.provider == provider)
                for call_id, use in self.calls.items()
            ]
        if audience is not None and self.extras and self.provider == provider:
            # Ours last: opaque fields of a vendor must not replace the text or the calls.
            message = {**self.extras, **message}
        messages: list[Message] = [
            message if audience is None or audience.takes(message, self.answers) else without_reasoning(message)
        ]
        for call_id in self.calls:
            cleared = self.cleared.get(call_id)
            text = result_text(self.results.get(call_id)) if cleared is None else _cleared_text(cleared)
            messages.append({"role": "tool", "tool_call_id": call_id, "content": text})
        if pictures := self.pictures:
            messages.append({"role": "user", "content": pictures})
        return messages


class Conversation:
    """A log's conversation, folded event by event. `messages()` may be called at any time: it renders only new messages.

    `view` contains the blocks that the model sees, oldest first. `horizon` is the `seq` of the compaction before which
    everything was released, 0 if nothing was: a rewind to before it can only be folded from the whole log.
    """

    def __init__(self, *, provider: str | None = None) -> None:
        self.horizon = 0
        self.provider = provider
        self.context: ModelContext | None = None  # the contents of requests besides messages
        self._asked: _SentRequest | None = None
        self._turn: MessageBlock | None = None  # the assistant block that may still grow
        self._position = 0
        # The view after each event that changed the view of earlier ones. The last list is the current view.
        self.view: list[MessageBlock] = []
        self._views = [(0, self.view)]
        self._by_call: dict[str, MessageBlock] = {}  # the newest block in view with that call
        self.shown = 0  # the position of the last change of the view of earlier messages
        self.facts_in_view: dict[str, str] = {}  # the texts of the runtime's messages in view, by subject
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
        """Rebuild the conversation with these blocks in view, each given as its events, after a compaction at `horizon`."""
        conversation = cls(provider=provider)
        for events in blocks:
            conversation._turn = None
            for event in events:
                conversation._position = event.seq or 0
                if isinstance(event, SessionCompacted):
                    conversation.view.append(_summary(event, conversation._position))
                else:
                    _FOLDS[event.type](conversation, event)
        if context is not None:
            conversation._context(context)
        conversation._turn = conversation._asked = None
        conversation._position = conversation.horizon = conversation.shown = horizon
        conversation._views = [(horizon, conversation.view)]
        return conversation

    def apply(self, event: Event) -> None:
        """Apply one more event. Events that are not part of a conversation change nothing."""
        self._position = event.seq or self._position + 1
        fold = _FOLDS.get(event.type)
        if fold is not None:
            fold(self, event)

    def clear(self) -> None:
        """Release everything, a little at a time, so that no other thread is held up for long."""
        lists: list[list[Any]] = [self._settled, *(view for _, view in self._views)]
        for each in lists:
            while each:
                del each[-_FREED_AT_ONCE:]
        self._by_call, self.view = {}, []
        self._views = [(0, self.view)]

    def blocks(self) -> list[list[int]]:
        """For each block in view, the `seq` of the request that it answers and of the events that determine it."""
        return [
            [*([block.answers.seq] if block.answers else ()), *block.seqs, *block.cleared_at] for block in self.view
        ]

    def messages(self, before: Iterable[Message] = ()) -> list[Message]:
        """The messages to send now, in a new list after those of `before`; calls without a result get a placeholder."""
        rest, _ = self._settle()
        return [*before, *self._settled, *rest]

    def request_sha256(self, appended: Sequence[Mapping[str, Any]] = ()) -> str:
        """The digest of the request that would be sent now: prompt, `messages()`, `appended`, model and tools."""
        digest = self._settle()[1]
        if appended:
            digest = digest.copy()
            digest.add(appended)
        return digest.hexdigest()

    def size_bytes(self) -> int:
        """The size of `messages()` as canonical JSON; unchanged ones are not measured again."""
        return self._settle()[1].size_bytes - self._system_bytes

    @property
    def has_parts(self) -> bool:
        """Whether any of `messages()` is more than text."""
        return self._settle()[1].has_parts

    @property
    def unsettled(self) -> int:
        """The number of blocks to be rendered for the first time, or again because something before them changed."""
        return len(self.view) - self._settled_blocks

    def _settle(self) -> tuple[list[Message], RunningDigest]:
        """Render what is not settled. Return the messages that may still change, and the digest of everything in view."""
        blocks = self.view
        are_many = len(blocks) - self._settled_blocks > MANY_BLOCKS
        while self._settled_blocks < len(blocks):
            block = blocks[self._settled_blocks]
            # Results are still to come, or calls: those of an answer follow its text, event by event.
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
        """The messages that a compaction up to `seq` would remove from view."""
        every = _Audience(self.provider, None, self._digest)
        return [message for block in self.view if block.last_seq <= seq for message in block.render(every)]

    def summary_seq(self) -> int:
        """The `seq` of the compaction whose summary is first in view; 0 without one."""
        first = self.view[:1]
        return first[0].first_seq if first and first[0].kind == "summary" else 0

    def open_calls(self) -> list[ToolUse]:
        """The calls without a result, oldest first."""
        # No settled block is open.
        return [use for block in self.view[self._settled_blocks :] if block.calls for use in block.open_calls]

    def cut_seq(self, max_events: int | None, max_bytes: int | None) -> int | None:
        """The `seq` of the first event to keep within both limits, or None if nothing has to be removed."""
        if max_events is None and max_bytes is None:
            return None
        blocks = self.view
        events = size = 0
        for index in range(len(blocks) - 1, -1, -1):
            events += len(blocks[index].seqs)
            if max_bytes is not None:
                size += len(json.dumps(blocks[index].render(_Audience(self.provider, None, self._digest))))
            too_much = (max_events is not None and events > max_events) or (max_bytes is not None and size > max_bytes)
            if too_much:
                # Whole blocks only, and at least the newest one: a cut inside a block would separate calls from their
                # results.
                return blocks[min(index + 1, len(blocks) - 1)].first_seq
        return None

    def cut(self, first_seq: int | None) -> None:
        """Hide everything before `first_seq`, except the user message that the first kept block answers."""
        if first_seq is not None:
            self._position += 1
            self._start_late(first_seq)

    # --- one method per relevant kind of event -----------------------------------------------------------------------

    def _user_message(self, event: UserMessage) -> None:
        self._turn = self._asked = None
        kind = "prompt" if event.origin == "user" else f"message of {event.origin}"
        parts = [dict(part) for part in event.attachments]
        self.view.append(
            MessageBlock([self._position], is_user=True, kind=kind, about=event.about, text=event.text, parts=parts)
        )
        if event.about is not None:
            self.facts_in_view[event.about] = event.text

    def _context(self, event: ModelContext) -> None:
        """Change the context of later requests: all messages are rendered and digested again."""
        self.context, self.provider = event, event.provider
        self._unsettle()

    def _request(self, event: ModelRequest | ModelResponse) -> None:
        self._turn = None
        if isinstance(event, ModelRequest) and event.purpose == "turn":
            model = event.model or (self.context.model if self.context else None)
            self._asked = _SentRequest(self._position, event.request_sha256, model, self.context)

    def _assistant_message(self, event: AssistantMessage) -> None:
        turn = self._turn
        # A second text, or one after results, belongs to another answer, even if its request is missing from the log.
        if turn is None or turn.text is not None or turn.results:
            turn = self._turn = MessageBlock([self._position], answers=self._asked)
            self.view.append(turn)
        else:
            turn.seqs.append(self._position)
        turn.text = event.text
        turn.provider, turn.extras = event.provider, event.extras

    def _retry(self, event: ModelRetry) -> None:
        """Drop the partial answer of a failed attempt from the conversation; the next attempt starts over."""
        if event.mid_answer and self._turn is not None:
            self._turn.text = self._turn.extras = None
        if event.model is not None and self._asked is not None:
            self._asked = replace(self._asked, model=event.model)

    def _tool_use(self, event: ToolUse) -> None:
        if event.is_inside:
            return
        turn = self._turn
        if turn is None or turn.results:
            turn = self._turn = MessageBlock([self._position], answers=self._asked)
            self.view.append(turn)
        else:
            turn.seqs.append(self._position)
        call_id = event.tool_use_id or f"call_{self._position}"
        # Keep the first of two calls with one id: results are found by id, and a second call would never get one.
        turn.calls.setdefault(call_id, event)
        self._by_call[call_id] = turn

    def _tool_result(self, event: ToolResult) -> None:
        """Accept a result if its call is in view and has none yet."""
        block = self._by_call.get(event.tool_use_id)
        if block is not None and event.tool_use_id not in block.results:
            block.results[event.tool_use_id] = event
            block.seqs.append(self._position)

    def _init(self, event: SystemInit) -> None:
        self._turn = None
        if event.messages_from_seq is not None:
            self._start_late(event.messages_from_seq)

    def _end(self, event: Result) -> None:
        """Omit a rejected prompt's attachments, so that they do not cause every later request to be rejected.

        The same applies to the pictures of results at the end of a rejected request.
        """
        if event.error_type not in _REFUSALS or not self.view:
            return
        last = self.view[-1]
        if last.is_user and last.parts:
            names = ", ".join(map(describe_attachment, last.parts))
            note = f"{names} was refused and is left out: attach it again if it is needed"
            last.text, last.parts = f"{last.text or ''}\n\n{note}".strip(), []
        elif last.pictures:
            last.results = {call_id: _without_refused(result) for call_id, result in last.results.items()}
        else:
            return
        last.seqs.append(self._position)
        self._unsettle()

    def _start_late(self, first_seq: int) -> None:
        view = self.view
        blocks = [block for block in view if block.first_seq >= first_seq]
        if blocks and not blocks[0].is_user:
            prompts = [block for block in view if block.first_seq < first_seq and block.is_user]
            blocks = prompts[-1:] + blocks
        self._show(blocks)

    def _compact(self, event: SessionCompacted) -> None:
        # A block across that position stays whole, because its calls need their results.
        later_blocks = [block for block in self.view if block.last_seq > event.up_to_seq]
        self._show([_summary(event, self._position), *later_blocks])

    def _clear(self, event: ContextCleared) -> None:
        self._show(
            [
                replace(
                    block, cleared={**block.cleared, **event.results}, cleared_at=(*block.cleared_at, self._position)
                )
                if block.calls.keys() & event.results.keys()
                else block
                for block in self.view
            ]
        )

    def _rewind(self, event: SessionRewound) -> None:
        if max(0, event.to_seq) < self.horizon:
            # `load_view` reads the whole log before this can happen. In a log from elsewhere, a negative number counts as 0.
            raise ValueError(f"a rewind to {event.to_seq} is before {self.horizon}, where the folded events begin")
        while len(self._views) > 1 and self._views[-1][0] > event.to_seq:
            self._views.pop()
        self.view = self._views[-1][1]
        self._show([block for block in self.view if block.last_seq <= event.to_seq])

    # --- the view ----------------------------------------------------------------------------------------------------

    def _show(self, view: list[MessageBlock]) -> None:
        self._turn = None
        self.shown = self._position
        self.view = view
        self._views.append((self._position, view))
        self._by_call = {call_id: block for block in view for call_id in block.calls}
        self.facts_in_view = {block.about: block.text or "" for block in view if block.about is not None}
        self._unsettle()

    def _unsettle(self) -> None:
        """Render everything again on the next request."""
        context = self.context
        self._settled: list[Message] = []  # messages of the first `_settled_blocks` blocks in view
        self._settled_blocks = 0
        self._digest = RunningDigest(context.model, context.tools) if context else RunningDigest("", ())
        self._digest.add(system_messages(context.system_prompt) if context else ())
        self._system_bytes = self._digest.size_bytes


def _differs_in_found_tools(then: ModelContext, now: ModelContext) -> bool:
    """Whether two contexts differ at most in deferred tools, whose definitions are sent where the model found them."""
    fixed = [[tool for tool in one.tools if not tool.get("defer_loading")] for one in (then, now)]
    return fixed[0] == fixed[1] and (then.model, then.system_prompt) == (now.model, now.system_prompt)


def _call(call_id: str, use: ToolUse, *, with_extras: bool) -> Message:
    call = {
        "id": call_id,
        "type": "function",
        "function": {"name": use.name, "arguments": sendable(_as_json(use.input))},
    }
    # Ours last, as in a message: what the log shows must be what runs.
    return {**use.extras, **call} if use.extras and with_extras else call


# Error types of a run whose request was invalid. After others (a network failure), attachments are kept for the next try.
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


def _summary(event: SessionCompacted, seq: int) -> MessageBlock:
    return MessageBlock([seq], is_user=True, kind="summary", text=SUMMARY_INTRO + event.summary)


def system_messages(prompt: str) -> list[Message]:
    """The system prompt as the first message of a request; none if it is empty."""
    return [{"role": "system", "content": prompt}] if prompt else []


def fit_rewritten(
    messages: Sequence[Mapping[str, Any]], instead_of: Sequence[Mapping[str, Any]], model: str
) -> list[Mapping[str, Any]]:
    """Prepare messages substituted by a hook: from the first change on, omit reasoning that is bound to the prefix."""
    same = 0
    while same < min(len(messages), len(instead_of)) and messages[same] == instead_of[same]:
        same += 1
    return [*messages[:same], *(without_reasoning(m) if is_bound(m, model) else m for m in messages[same:])]


def describe_attachment(part: Mapping[str, Any]) -> str:
    """The placeholder of a prompt's attachment for readers: `[image cat.png, image/png, 1,234 bytes]`."""
    facts = (
        part.get("name") or part.get("url"),
        part.get("media_type"),
        f"{part['size']:,} bytes" if isinstance(part.get("size"), int) else None,
    )
    return f"[{' '.join([str(part.get('type')), ', '.join(str(word) for word in facts if word)])}]"


def _cleared_text(cleared: Any) -> str:
    """The placeholder of a cleared output; in a log from elsewhere, its record may be of any type."""
    size, name = (cleared.get("bytes"), cleared.get("sha256")) if isinstance(cleared, Mapping) else (None, None)
    return (
        f"[This output of {size} bytes was cleared to save space. "
        f'Read {{"file_path": "blob:{name}"}} gives it again where that is needed.]'
    )


def result_text(result: ToolResult | None) -> str:
    """A call's result as the model reads it: text unchanged, anything else as JSON, errors preceded by their type."""
    if result is None:
        return NO_RESULT
    shown_output = _without_picture(result.output) if _is_picture(result.output) else result.output
    text = shown_output if isinstance(shown_output, str) else _as_json(shown_output)
    sent = [part for part in result.attachments if _is_picture(part)]
    if sent and isinstance(text, str):
        text = "\n".join([*([text] if text else []), *(f"{describe_attachment(part)} follows below" for part in sent)])
    if result.is_error:
        kind = f" ({result.error_type})" if result.error_type else ""
        error = f"Error{kind}: {result.error_message or 'the tool failed'}"
        text = error if shown_output is None else f"{error}\n{text}"
    return sendable(text)


def _is_picture(output: Any) -> bool:
    """Whether a tool returned something that text cannot express: a picture, a document or a sound."""
    if isinstance(output, str) or not isinstance(output, Mapping):
        return False
    kind, payloads = output.get("type"), [output.get("data"), output.get("sha256")]
    return kind in ("image", "file", "audio") and any(isinstance(value, str) for value in payloads)


def _pictures(result: ToolResult) -> list[Message]:
    return [_picture(part) for part in (result.output, *result.attachments) if _is_picture(part)]


def _without_picture(output: Mapping[str, Any], where: str = "follows below") -> dict[str, Any]:
    fields = {key: value for key, value in output.items() if key not in ("data", "sha256")}
    return {**fields, "note": f"the {output['type']} {where}"}


def _without_refused(result: ToolResult) -> ToolResult:
    """The result without the parts that the endpoint may have rejected."""
    if not _pictures(result):
        return result
    where = "was refused and is left out"
    output = _without_picture(result.output, where) if _is_picture(result.output) else result.output
    notes = [f"{describe_attachment(part)} {where}" for part in result.attachments if _is_picture(part)]
    text = "\n".join([output, *notes]) if notes and isinstance(output, str) else output
    return replace(result, output=text, attachments=[])


def _picture(output: Mapping[str, Any]) -> Message:
    name = os.path.basename(str(output.get("name") or output.get("file_path") or ""))
    part = {"type": output["type"], "media_type": output.get("media_type"), **({"name": name} if name else {})}
    if "sha256" in output:
        return {**part, "sha256": output["sha256"]}
    if output["type"] != "image":
        return {**part, "data": output["data"]}
    media_type = output.get("media_type") or "image/png"
    return {"type": "image_url", "image_url": {"url": f"data:{media_type};base64,{output['data']}"}}
