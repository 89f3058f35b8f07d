"""Convert other programs' conversations to events: Claude Code transcripts and chat-completions message lists.

A transcript is a tree of lines that point at their parents. The branch of its last line is imported, in file order: with all
calls of a parallel answer and all their results, across compactions, and including the lines before a dangling pointer.
Lines that cannot be read are counted, and nothing is guessed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from ...errors import InvalidEventError, StorageError
from ...events import (
    AssistantMessage,
    AssistantReasoning,
    Event,
    ModelContext,
    ModelResponse,
    SessionCompacted,
    SessionMeta,
    SystemInit,
    ToolResult,
    ToolUse,
    UserMessage,
)
from ...ground.disk import read_regular
from ...ground.frozen import frozen
from ...ground.words import plural
from ...serialization import loads_json
from ...sessions.base import SessionStore, stamp_events
from ...sessions.core import new_session_id
from ...sessions.folds.usage import normalize_usage
from .depth import flattened
from .lifecycle import all_or_none

# Far more than any conversation: once parsed, a transcript takes several times its size in memory.
MAX_TRANSCRIPT_BYTES = 512 * 1024 * 1024
MAX_TRANSCRIPT_LINES = 1_000_000

PROVIDER = "anthropic"
TranscriptLine = Mapping[str, Any]


@frozen
class ImportedSession:
    """A conversation that was read: numbered events, metadata of the session, and counts of the other lines.

    `unreadable` counts damaged lines, `left_out` those of abandoned branches, subagents and bookkeeping.
    """

    events: Sequence[Event]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    created_at: float | None = None
    unreadable: int = 0
    left_out: int = 0


class ImportedIds(list[str]):
    """The ids of the sessions that an import created, and the numbers of damaged and omitted lines."""

    unreadable = 0
    left_out = 0


# --- message lists ---------------------------------------------------------------------------------------------------


def events_from_messages(messages: Iterable[Mapping[str, Any]]) -> list[Event]:
    """Convert a chat-completions message list to numbered events; `rebuild_messages` is the inverse.

    Raises `InvalidEventError` for a message without a known role.
    """
    events: list[Event] = []
    waiting: dict[str, None] = {}  # calls without a result: a result without a call id belongs to the oldest
    for step, message in enumerate(messages, start=1):
        role = message.get("role") if isinstance(message, Mapping) else None
        if role in ("system", "developer"):
            events.append(ModelContext("", "", _text(message.get("content"))))
        elif role == "user":
            events.append(UserMessage(_text(message.get("content"))))
        elif role == "assistant":
            answer_events = _answer(message, step)
            waiting.update({event.tool_use_id: None for event in answer_events if isinstance(event, ToolUse)})
            events.extend(answer_events)
        elif role == "tool":
            call_id = str(message.get("tool_call_id") or "") or next(iter(waiting), "")
            waiting.pop(call_id, None)
            events.append(ToolResult(call_id, output=_text(message.get("content"))))
        else:
            raise InvalidEventError(
                f"message {step} has no known role (system, developer, user, assistant or tool): {message!r:.200}"
            )
    return stamp_events(events, first_seq=1, now=0.0)


def _answer(message: Mapping[str, Any], step: int) -> list[Event]:
    # Ends the previous answer, so that two answers in a row remain two.
    events: list[Event] = [ModelResponse(step, 1)]
    text = _text(message.get("content")) or _text(message.get("refusal"))
    if text:
        events.append(AssistantMessage(text, refusal=bool(message.get("refusal"))))
    calls = message.get("tool_calls")
    for index, call in enumerate(calls if isinstance(calls, list | tuple) else ()):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            continue
        call_id, name = str(call.get("id") or f"call_{step}_{index}"), str(function.get("name") or "unknown")
        raw = function.get("arguments")
        try:
            arguments = loads_json(raw) if isinstance(raw, str) and raw.strip() else raw or {}
        except InvalidEventError:
            arguments = None
        if isinstance(arguments, dict):
            events.append(ToolUse(call_id, name, arguments))
        else:
            events.append(ToolUse(call_id, name, {}, raw_arguments=str(raw)))
    return events


def _text(content: Any) -> str:
    """The text of a message's content; each part without text is represented by its type in brackets."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts = []
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, Mapping):
            text = part.get("text")
            texts.append(text if isinstance(text, str) else f"[{part.get('type')}]")
        else:
            texts.append(part if isinstance(part, str) else "[content]")
    return "\n".join(texts)


# --- Claude Code transcripts -----------------------------------------------------------------------------------------


def read_claude_transcript(path: str | os.PathLike[str]) -> ImportedSession:
    """Read the session in a transcript file. Raises `StorageError` if it cannot be read or has no conversation."""
    session = parse_claude_transcript(_read_transcript(path))
    if not session.events:
        raise StorageError(f"transcript {path} contains no conversation ({plural(session.unreadable, 'damaged line')})")
    return session


def parse_claude_transcript(data: bytes, *, of_subagent: bool = False) -> ImportedSession:
    """Parse the session in a transcript's bytes; it is empty if they contain no conversation.

    With `of_subagent`, sidechain lines, which a main transcript excludes from its conversation, are the conversation.
    """
    lines, unreadable = _parse_lines(data)
    if of_subagent:
        lines = [{**line, "isSidechain": False} for line in lines]
    # The lines that belong to the branch of the last line, in the order of the file.
    chain = _chain(lines)
    messages = {_message_id(lines[index]) for index in chain} - {None}
    # Each block of a parallel answer has its own line, and the pointers follow only one of them.
    chain |= {index for index, line in enumerate(lines) if _message_id(line) in messages and not _is_aside(line)}
    calls = {name for index in chain for name in _names(lines[index], "tool_use", "id")}
    for index, line in enumerate(lines):
        answers = _names(line, "tool_result", "tool_use_id") if line.get("type") == "user" else set()
        if answers & calls and not _is_aside(line):
            chain.add(index)
    chain |= {index for index, line in enumerate(lines) if str(line.get("type")) in _MARKERS}
    active = [lines[index] for index in sorted(chain)]
    events = _BranchReader(lines).read(active)
    lines_with_cwd = [line for line in active if isinstance(line.get("cwd"), str)]
    times = [event.ts for event in events if event.ts]
    metadata = {"cwd": lines_with_cwd[0]["cwd"]} if lines_with_cwd else {}
    metadata |= {"imported_from": "claude-code", "claude_session_id": _first_text(lines, "sessionId")}
    return ImportedSession(
        events,
        {key: value for key, value in metadata.items() if value is not None},
        min(times) if times else None,
        unreadable,
        len(lines) - len(active),
    )


def import_claude_transcript(
    store: SessionStore, path: str | os.PathLike[str], *, session_id: str | None = None
) -> ImportedIds:
    """Import a transcript, with those of its subagents as child sessions; return the ids, the main session's first.

    The main session's id is the name of the file unless another is given. Either all are imported or none. Raises
    `StorageError`, `SessionExistsError`, and `InvalidEventError` for content that a log cannot contain.
    """
    main = read_claude_transcript(path)
    file = Path(path)
    main_id = session_id or file.stem or new_session_id()
    # The sessions of a transcript's subagents by their new ids, with the metadata that links them to it.
    folder = file.parent / file.stem / "subagents"
    subagents: dict[str, tuple[ImportedSession, dict[str, Any]]] = {}
    for child in sorted(folder.rglob("agent-*.jsonl")):
        session = parse_claude_transcript(_read_transcript(child), of_subagent=True)
        name = f"{main_id}.{child.stem}"
        if name in subagents:
            name = ".".join((main_id, *child.relative_to(folder).with_suffix("").parts))
        if session.events:
            parent = {"parent_session_id": main_id, "parent_tool_use_id": child.stem, "agent_name": child.stem}
            subagents[name] = session, parent
    sessions = {main_id: (main, {}), **subagents}
    with all_or_none(store) as ids:
        for name, (session, parent) in sessions.items():
            metadata = {**session.metadata, **parent}
            events = flattened(session.events)
            ids.append(store.import_session(name, events, metadata=metadata, created_at=session.created_at))
    done = ImportedIds(ids)
    done.unreadable = sum(session.unreadable for session, _ in sessions.values())
    done.left_out = sum(session.left_out for session, _ in sessions.values())
    return done


def _read_transcript(path: str | os.PathLike[str]) -> bytes:
    """Read the bytes of a transcript. Raises `StorageError` for a file that is too large or cannot be read."""
    try:
        data = read_regular(path, MAX_TRANSCRIPT_BYTES)
        if data.count(b"\n") > MAX_TRANSCRIPT_LINES:
            raise ValueError(f"it has more than {MAX_TRANSCRIPT_LINES:,} lines")
        return data
    except OSError as error:
        raise StorageError(f"transcript {path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise StorageError(f"transcript {path} cannot be read: {error}") from error


def _parse_lines(data: bytes) -> tuple[list[TranscriptLine], int]:
    """The lines that are JSON objects, and the number of others: a torn end, runs of NUL, two joined lines."""
    lines: list[TranscriptLine] = []
    unreadable = 0
    for raw in data.split(b"\n"):
        if not raw.strip():
            continue
        try:
            line = loads_json(raw)
        except (InvalidEventError, UnicodeDecodeError):
            line = None
        if isinstance(line, dict):
            lines.append(line)
        else:
            unreadable += 1
    return lines, unreadable


def _chain(lines: Sequence[TranscriptLine]) -> set[int]:
    places = {line["uuid"]: index for index, line in enumerate(lines) if isinstance(line.get("uuid"), str)}
    message_lines = [index for index, line in enumerate(lines) if line.get("type") in ("user", "assistant")]
    ends = [index for index in message_lines if not _is_aside(lines[index])]
    chain: set[int] = set()
    place = ends[-1] if ends else None
    while place is not None and place not in chain:
        chain.add(place)
        line = lines[place]
        pointer = line.get("parentUuid") or line.get("logicalParentUuid")
        if isinstance(pointer, str) and pointer in places:
            place = places[pointer]
        elif pointer is None and line.get("subtype") != "compact_boundary":
            place = None
        else:
            # A dangling pointer: continue with the preceding line of the file.
            before = range(place - 1, -1, -1)
            place = next((index for index in before if "uuid" in lines[index] and not _is_aside(lines[index])), None)
    return chain


def _is_aside(line: TranscriptLine) -> bool:
    return bool(line.get("isSidechain") or line.get("teamName"))


def _message(line: TranscriptLine) -> Mapping[str, Any]:
    message = line.get("message")
    return message if isinstance(message, Mapping) else {}


def _message_id(line: TranscriptLine) -> str | None:
    name = _message(line).get("id")
    return name if isinstance(name, str) and line.get("type") == "assistant" else None


def _blocks(line: TranscriptLine) -> list[Mapping[str, Any]]:
    content = _message(line).get("content")
    return [block for block in content if isinstance(block, Mapping)] if isinstance(content, list) else []


def _names(line: TranscriptLine, kind: str, field_name: str) -> set[str]:
    """The values of this field in the line's blocks of this kind, if they are strings."""
    values = (block.get(field_name) for block in _blocks(line) if block.get("type") == kind)
    return {name for name in values if isinstance(name, str)}


def _first_text(lines: Iterable[TranscriptLine], name: str) -> str | None:
    return next((line[name] for line in lines if isinstance(line.get(name), str)), None)


_MARKERS = frozenset({"custom-title", "ai-title", "tag"})


class _BranchReader:
    """A converter from the lines of one branch to events, in order."""

    def __init__(self, lines: Sequence[TranscriptLine]) -> None:
        self._events: list[Event] = []
        self._by_message: dict[str, list[TranscriptLine]] = {}
        for line in lines:
            if (name := _message_id(line)) is not None and not _is_aside(line):
                self._by_message.setdefault(name, []).append(line)
        self._has_title = any(line.get("type") == "custom-title" for line in lines)
        self._model = _first_text((_message(line) for line in lines), "model")
        self._trigger = "auto"
        self._steps = 0

    def read(self, lines: Sequence[TranscriptLine]) -> list[Event]:
        for line in lines:
            try:
                ts = datetime.fromisoformat(line["timestamp"]).timestamp()
            except (KeyError, TypeError, ValueError, OverflowError):
                ts = 0.0
            if not self._events and line.get("type") in ("user", "assistant"):
                version = f"claude-code/{line.get('version') or 'unknown'}"
                session_id, cwd = str(line.get("sessionId") or ""), str(line.get("cwd") or "")
                init = SystemInit(session_id, cwd, version, model=self._model, provider=PROVIDER)
                self._add([init], ts)
            reader = _READERS.get(str(line.get("type")))
            if reader is not None:
                self._add(reader(self, line), ts)
        return self._events

    def _add(self, events: Iterable[Event], ts: float) -> None:
        for event in events:
            self._events.append(replace(event, seq=len(self._events) + 1, ts=ts))

    def _user(self, line: TranscriptLine) -> Iterator[Event]:
        if line.get("isCompactSummary"):
            yield SessionCompacted(len(self._events), _text(_message(line).get("content")), trigger=self._trigger)
            return
        results = [block for block in _blocks(line) if block.get("type") == "tool_result"]
        for block in results:
            failed, text = block.get("is_error") is True, _text(block.get("content"))
            yield ToolResult(
                str(block.get("tool_use_id")),
                output=None if failed else text,
                is_error=failed,
                error_message=text if failed else None,
                outcome="error" if failed else "ok",
            )
        own_blocks = [block for block in _blocks(line) if block.get("type") != "tool_result"]
        content = own_blocks if results or own_blocks else _message(line).get("content")
        if content:
            yield UserMessage(_text(content), origin="hook" if line.get("isMeta") else "user")

    def _assistant(self, line: TranscriptLine) -> Iterator[Event]:
        """Yield the events of a whole answer for its first line, none for its other lines, which may follow results."""
        name = _message_id(line)
        lines = [line] if name is None else self._by_message.pop(name, [])
        if not lines:
            return
        self._steps += 1
        last = _message(lines[-1])
        usage = last.get("usage")
        yield ModelResponse(
            self._steps,
            1,
            usage=normalize_usage(usage if isinstance(usage, Mapping) else None),
            model=last["model"] if isinstance(last.get("model"), str) else None,
            provider=PROVIDER,
        )
        blocks: list[Mapping[str, Any]] = []
        for each in lines:
            content = _message(each).get("content")
            blocks += [{"type": "text", "text": content}] if isinstance(content, str) else _blocks(each)
        yield from (AssistantReasoning(str(b.get("thinking") or "")) for b in blocks if b.get("type") == "thinking")
        text = "\n\n".join(str(b.get("text") or "") for b in blocks if b.get("type") == "text")
        if text:
            yield AssistantMessage(text)
        for block in blocks:
            if block.get("type") == "tool_use":
                arguments = block.get("input")
                yield ToolUse(
                    str(block.get("id")), str(block.get("name")), arguments if isinstance(arguments, dict) else {}
                )

    def _system(self, line: TranscriptLine) -> Iterator[Event]:
        details = line.get("compactMetadata")
        if line.get("subtype") == "compact_boundary" and isinstance(details, Mapping):
            self._trigger = str(details.get("trigger") or "auto")
        return iter(())

    def _title(self, line: TranscriptLine) -> Iterator[Event]:
        title = line.get("customTitle") if line.get("type") == "custom-title" else line.get("aiTitle")
        if isinstance(title, str) and (line.get("type") == "custom-title" or not self._has_title):
            yield SessionMeta(title=title)

    def _tag(self, line: TranscriptLine) -> Iterator[Event]:
        yield SessionMeta(tags=[line["tag"]] if isinstance(line.get("tag"), str) and line["tag"] else [])


_READERS = {
    "user": _BranchReader._user,
    "assistant": _BranchReader._assistant,
    "system": _BranchReader._system,
    "custom-title": _BranchReader._title,
    "ai-title": _BranchReader._title,
    "tag": _BranchReader._tag,
}
