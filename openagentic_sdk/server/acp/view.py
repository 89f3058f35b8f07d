"""A session as an editor shows it: a fold from events to ACP 1 `session/update`s, the same live and from a stored log.

Ids of messages and calls are derived from the log, so live updates and a replay use the same ones. User prompts are sent
only in a replay: a live editor has already shown them. Calls of subagents appear as calls, below the call that started them.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

from ...events import (
    CommandExpanded,
    Event,
    FileKept,
    HookEvent,
    LogRecovered,
    LogSalvaged,
    McpServerChanged,
    ModelResponse,
    Result,
    SessionCompacted,
    SessionForked,
    SessionMeta,
    SessionRewound,
    SkillActivated,
    SkillDrifted,
    SubagentFinished,
    SubagentStarted,
    SystemInit,
    SystemNotice,
    TextCommandFinished,
    TextCommandStarted,
    TodoUpdated,
    ToolProgress,
    ToolResult,
    ToolStarted,
    ToolUse,
    UserMessage,
)
from ...ground.frozen import mutable
from ...ground.jsonrpc import Json
from ...ground.patterns import regex
from ...ground.text import on_one_line
from ...parts.masking import environment_redactor, shown
from ...parts.record.folds.notes import note_of, progress_words
from ...parts.record.folds.window import model_window
from ...sessions.folds.streamed import Piece, Streamed
from ...sessions.folds.summary import total_tokens
from ...sessions.rebuild import describe_attachment
from .calls import content, describe_call, describe_result, fenced, plain, text_block

ReadBlob = Callable[[str], bytes | None]

_PLAIN_ID = regex(r"[\w.:-]{1,100}\Z")
_STATUSES = ("pending", "in_progress", "completed")
# Shown outside the conversation; `_CONVERSATION_EVENTS`, which change the conversation, are shown inside it.
_NOTICES = (HookEvent, LogRecovered, McpServerChanged, SkillDrifted, SystemNotice)
_CONVERSATION_EVENTS = (LogSalvaged, SessionForked, SessionRewound)
# Notices shown in the conversation if the editor accepts none: something does not work as the user configured it.
_GRAVE = ("settings.withheld", "unsaved", "unsigned")
# Clients in other languages limit the length of a line.
MAX_CHUNK_CHARS = 16 * 1024
# The largest image or audio clip of a prompt that is sent back when its session is loaded, in bytes.
MAX_SHOWN_BYTES = 5 << 20
# The largest old text of a diff, in bytes.
MAX_OLD_BYTES = 512 * 1024


@mutable
class ShownCall:
    """A displayed tool call: its id in the protocol, the tool's name, and its content so far."""

    id: str
    name: str
    content: Sequence[Json] = ()


class EditorView:
    """A fold from the events of one session to its updates; `take` returns those for the next event.

    `context_tokens` is the run's `max_context_tokens`; None uses the size of the model's window, if that is known. `notices`
    and `compaction` state whether the editor accepts such updates. `cwd` applies until the log names the session's folder.
    `read_blob` returns the bytes of a blob stored beside the log, None if they are missing.
    """

    def __init__(
        self,
        cwd: str = "/",
        *,
        context_tokens: int | None = None,
        notices: bool = False,
        compaction: bool = False,
        read_blob: ReadBlob = lambda sha256: None,
    ) -> None:
        self._cwd = cwd
        self._context_tokens = self._window = context_tokens
        self._notices = notices
        self._compaction = compaction
        self.read_blob = read_blob
        self._cost_usd: float | None = 0.0
        self._calls: dict[tuple[str, str], ShownCall] = {}
        self._newest: dict[str, ShownCall] = {}  # by the id in the log, whichever agent sent it
        self._ids: set[str] = set()
        self._streamed = Streamed()
        self._redact = environment_redactor()

    def take(self, event: Event) -> list[Json]:
        """Apply an event; return its updates in order, none for an event that editors do not show."""
        if isinstance(event, ToolUse | ToolStarted | ToolProgress | ToolResult | FileKept):
            return self._call(shown(event, self._redact))
        if isinstance(event, TextCommandStarted | TextCommandFinished):
            # A command in the text of a skill or slash command is shown as a call, although no model asked for it.
            key = ("", event.command_id)
            if isinstance(event, TextCommandStarted):
                title = f"{on_one_line(event.name, 80)}: {on_one_line(event.command, 100)}"
                update = self._open(key, "Bash", {"title": title, "kind": "execute"}, event)
                return [{**update, "status": "in_progress"}]
            call = self._calls.get(key)
            text = event.error_message or event.output
            fields: Json = {"status": "completed" if event.outcome == "ok" else "failed"}
            if text:
                fields["content"] = [content(fenced(text))]
            return [] if call is None else [{"sessionUpdate": "tool_call_update", "toolCallId": call.id, **fields}]
        if event.parent_tool_use_id is not None:
            return []
        updates = [chunk for piece in self._streamed.take(event) for chunk in _chunks(piece)]
        return updates + self._beside(event)

    def call_of(self, tool_use_id: str | None) -> ShownCall | None:
        """The call with this id in the log, the newest if several agents used the id, or None."""
        return self._newest.get(tool_use_id or "")

    # --- messages and notices ----------------------------------------------------------------------------------------

    def _beside(self, event: Event) -> list[Json]:
        """Apply an event; return its updates other than the model's messages."""
        match event:
            case SystemInit():
                self._cwd = event.cwd
                self._window = self._context_tokens or model_window(event.model)
            case ModelResponse():
                return self._usage(event)
            case SubagentFinished():
                self._spend(event.cost_usd)
            case TodoUpdated():
                return [{"sessionUpdate": "plan", "entries": [_entry(item) for item in event.todos]}]
            case SessionMeta() if event.title is not None:
                return [{"sessionUpdate": "session_info_update", "title": plain(event.title)}]
            case SessionCompacted() if self._compaction:
                update = {"sessionUpdate": "compaction_update", "compactionId": f"compaction.{event.seq}"}
                return [{**update, "status": "completed", "summary": [text_block(event.summary)]}]
            case Result() if event.stop_reason not in ("end", "interrupted"):
                why = event.error_message or "continue with another prompt"
                return self._message_chunk(event, f"Stopped ({on_one_line(event.stop_reason, 80)}): {why}")
            case _ if isinstance(event, (*_CONVERSATION_EVENTS, *_NOTICES)):
                return self._note(event)
        return []

    def _message_chunk(self, event: Event, text: str) -> list[Json]:
        block = text_block(text)
        return [{"sessionUpdate": "agent_message_chunk", "messageId": f"note.{event.seq}", "content": block}]

    def _note(self, event: Event) -> list[Json]:
        text, style = note_of(event) or ("", "")
        if isinstance(event, SessionForked):
            self._cost_usd = 0.0  # the cost of copied events was charged to the original session
        is_missed = not self._notices and (
            isinstance(event, McpServerChanged) or (isinstance(event, SystemNotice) and event.code in _GRAVE)
        )
        if text and (is_missed or isinstance(event, _CONVERSATION_EVENTS)):
            return self._message_chunk(event, text[:1].upper() + text[1:] + ".")
        if not text or not self._notices:
            return []
        severity = "warning" if style == "yellow" else "info"
        return [{"sessionUpdate": "notice", "severity": severity, "title": text}]

    def _usage(self, event: ModelResponse) -> list[Json]:
        self._spend(event.cost_usd if event.usage is not None else 0.0)
        if self._window is None or not event.complete or event.usage is None:
            return []
        used, size = total_tokens(event.usage), self._window
        update: Json = {"sessionUpdate": "usage_update", "used": max(0, used), "size": size}
        if self._cost_usd is not None and isfinite(self._cost_usd):
            update["cost"] = {"amount": self._cost_usd, "currency": "USD"}
        return [update]

    def _spend(self, cost_usd: float | None) -> None:
        self._cost_usd = None if cost_usd is None or self._cost_usd is None else self._cost_usd + max(cost_usd, 0.0)

    # --- tool calls --------------------------------------------------------------------------------------------------

    def _call(self, event: ToolUse | ToolStarted | ToolProgress | ToolResult | FileKept) -> list[Json]:
        """Apply an event of a tool call; return its updates. A call whose first event is missing is opened first."""
        parent = self.call_of(event.parent_tool_use_id)
        home = f"{parent.id}/" if parent is not None else ""
        key = (home, event.tool_use_id)
        if isinstance(event, ToolUse):
            return [self._open(key, event.name, self._fields(event, event.name, event.input), event)]
        call = self._calls.get(key)
        if isinstance(event, ToolProgress | FileKept):
            blocks = [] if call is None else self._meanwhile(event, call)
            update = {"sessionUpdate": "tool_call_update", "toolCallId": call.id if call else "", "content": blocks}
            return [update] if blocks else []
        opened = []
        if call is None:  # its first event is missing from the log that was read
            name = event.name if isinstance(event, ToolStarted) else "Tool call"
            opened = [self._open(key, name, self._fields(event, name, {}), event)]
            call = self._calls[key]
        if isinstance(event, ToolStarted):
            changed = {} if event.input is None else self._fields(event, call.name, event.input)
            # The permission request may have replaced the call's content in the editor: send it again.
            fields = {"content": list(call.content), **changed, "status": "in_progress"}
        else:
            fields = describe_result(call.name, event, call.content)
        # The content of a finished call is not needed again, and may be long.
        call.content = () if isinstance(event, ToolResult) else fields.get("content", call.content)
        return [*opened, {"sessionUpdate": "tool_call_update", "toolCallId": call.id, **fields}]

    def _meanwhile(self, event: ToolProgress | FileKept, call: ShownCall) -> list[Json]:
        """The new content of a call in progress: its progress, or its diff once the replaced text is known; else empty."""
        if isinstance(event, ToolProgress):
            return [content(progress_words(event))]
        new_files = [block for block in call.content if block["type"] == "diff" and block["oldText"] is None]
        data = self.read_blob(event.sha256) if new_files and event.sha256 is not None else None
        if data is None or len(data) > MAX_OLD_BYTES:
            return []
        try:
            call.content = [{**block, "oldText": plain(data.decode())} for block in call.content]
        except UnicodeDecodeError:
            return []
        return list(call.content)

    def _fields(self, event: Event, name: str, input: Mapping[str, Any]) -> Json:
        fields = describe_call(name, input, self._cwd)
        if event.parent_tool_use_id is not None and event.agent_name:
            fields["title"] = f"{on_one_line(event.agent_name, 80)}: {fields['title']}"
        return fields

    def _open(self, key: tuple[str, str], name: str, fields: Json, event: Event) -> Json:
        """Open a call; return its update. A model may send any id, even a duplicate; the editor gets a plain, unique one."""
        home, call_id = key
        wire_id = home + (call_id if _PLAIN_ID.match(call_id) else f"call.{event.seq}")
        if wire_id in self._ids:
            wire_id = f"{wire_id}@{event.seq}"
        self._ids.add(wire_id)
        self._calls[key] = self._newest[call_id] = ShownCall(wire_id, name, fields.get("content", ()))
        return {"sessionUpdate": "tool_call", "toolCallId": wire_id, "status": "pending", **fields}


def _chunks(piece: Piece) -> Iterator[Json]:
    kind = "agent_thought_chunk" if piece.is_thought else "agent_message_chunk"
    for start in range(0, len(piece.text), MAX_CHUNK_CHARS):
        block = text_block(piece.text[start : start + MAX_CHUNK_CHARS])
        yield {"sessionUpdate": kind, "messageId": piece.id, "content": block}


def _entry(item: Any) -> Json:
    todo = item if isinstance(item, Mapping) else {"content": item}  # an imported log may contain anything
    status, text = todo.get("status"), plain(str(todo.get("content", "")))
    return {"content": text, "priority": "medium", "status": status if status in _STATUSES else "pending"}


# --- a stored log ----------------------------------------------------------------------------------------------------


def replay(view: EditorView, events: Iterable[Event]) -> Iterator[Json]:
    """Yield the updates for a whole log, including user prompts but not notices, which do not belong to the history."""
    prompt: UserMessage | None = None
    for event in events:
        if prompt is not None:
            yield from _prompt(prompt, event, view.read_blob)
            prompt = None
        if isinstance(event, UserMessage) and event.parent_tool_use_id is None:
            prompt = event if event.origin in ("user", "steering") else None
        for update in view.take(event):
            if update["sessionUpdate"] != "notice":
                yield update
    if prompt is not None:
        yield from _prompt(prompt, None, view.read_blob)


def _prompt(prompt: UserMessage, next_event: Event | None, read_blob: ReadBlob) -> Iterator[Json]:
    """Yield the parts of a prompt as it was typed: the event after it shows whether it was a command or a skill."""
    text = prompt.text
    if isinstance(next_event, CommandExpanded) or (
        isinstance(next_event, SkillActivated) and next_event.requested_by == "user"
    ):
        text = f"/{next_event.name} {next_event.arguments or ''}".rstrip()
    blocks = [text_block(text)] if text else []
    blocks += [_attachment(part, read_blob) for part in prompt.attachments if isinstance(part, Mapping)]
    for block in blocks:
        yield {"sessionUpdate": "user_message_chunk", "messageId": f"user.{prompt.seq}", "content": block}


def _attachment(part: Mapping[str, Any], read_blob: ReadBlob) -> Json:
    kind, media_type, digest, size = (part.get(name) for name in ("type", "media_type", "sha256", "size"))
    if kind in ("image", "audio") and isinstance(media_type, str) and isinstance(digest, str):
        data = read_blob(digest) if isinstance(size, int) and size <= MAX_SHOWN_BYTES else None
        if data is not None:
            return {"type": kind, "data": base64.b64encode(data).decode("ascii"), "mimeType": media_type}
    return text_block(describe_attachment(part))


def with_subagents(
    events: Iterable[Event], read_child: Callable[[SubagentStarted], Iterable[Event]], depth: int = 8
) -> Iterator[Event]:
    """Yield the events of a log, with each subagent's events inserted after its start, up to `depth` levels deep."""
    for event in events:
        yield event
        if isinstance(event, SubagentStarted) and depth:
            yield from with_subagents(read_child(event), read_child, depth - 1)
