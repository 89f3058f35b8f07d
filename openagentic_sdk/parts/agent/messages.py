"""Use the messages of one run to begin another, and parse the JSON of an answer that is still being written. No I/O."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...errors import OptionsError
from ...events import AssistantMessage, Event, ToolResult, ToolUse, UserMessage
from ...ground.checks import shown
from ...ground.patterns import regex
from ...serialization import DECODER
from ...sessions.rebuild import rebuild_messages

_MESSAGE_EVENTS = (UserMessage, AssistantMessage, ToolUse, ToolResult)
_NO_RESULT = "This call has no result in the messages that the conversation began with."


def new_messages(events: Iterable[Event], skipped: int = 0) -> list[dict[str, Any]]:
    """Build the messages from a run's events, without those inside calls and without the first `skipped` message events."""
    message_events = [
        event for event in events if isinstance(event, _MESSAGE_EVENTS) and event.parent_tool_use_id is None
    ]
    return rebuild_messages(message_events[skipped:])


def events_of_messages(messages: Sequence[Mapping[str, Any]]) -> list[Event]:
    """Convert messages, as returned by `new_messages` or in chat-completions form, to events.

    System messages are omitted, and calls without a result get one that explains this. Raises `OptionsError` for the first
    message that cannot be converted.
    """
    events: list[Event] = []
    waiting: list[str] = []
    if not isinstance(messages, Iterable):
        raise OptionsError(f"message_history must be a list of messages, not {shown(messages)}")
    for number, message in enumerate(messages, 1):
        where = f"message_history: message {number}"
        if not isinstance(message, Mapping):
            raise OptionsError(f"{where} must be a mapping, as in result.new_messages(), not {shown(message)}")
        role, text = message.get("role"), _text(message.get("content"), where)
        if role == "tool":
            call_id = message.get("tool_call_id")
            if call_id not in waiting:
                raise OptionsError(
                    f"{where} is the result of call {shown(call_id)}, but no unanswered call before it has that id"
                )
            waiting.remove(str(call_id))
            events.append(ToolResult(str(call_id), text))
            continue
        events += _closed(waiting)
        if role == "user":
            events.append(UserMessage(text))
        elif role == "assistant":
            if text:
                events.append(AssistantMessage(text))
            given = message.get("tool_calls") or ()
            if not isinstance(given, Sequence):
                raise OptionsError(f"{where} has the calls {shown(given)}: tool_calls must be a list")
            calls = [_call(call, where) for call in given]
            events += calls
            waiting += [call.tool_use_id for call in calls]
        elif role != "system":
            raise OptionsError(f"{where} has the role {shown(role)}: the roles are system, user, assistant and tool")
    return [*events, *_closed(waiting)]


def _closed(waiting: list[str]) -> list[Event]:
    closed: list[Event] = [ToolResult(name, _NO_RESULT, is_error=True, outcome="unknown") for name in waiting]
    waiting.clear()
    return closed


def _text(content: Any, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, Sequence) else [content]
    texts = [part.get("text") for part in parts if isinstance(part, Mapping) and part.get("type") == "text"]
    if len(texts) != len(parts) or not all(isinstance(text, str) for text in texts):
        raise OptionsError(f"{where} may contain only text: to keep pictures, continue the session with session=...")
    return "\n\n".join(map(str, texts))


def _call(call: Any, where: str) -> ToolUse:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(call.get("id"), str):
        raise OptionsError(f'{where} has the call {shown(call)}: it needs "id" and "function"')
    try:
        arguments = DECODER.decode(function.get("arguments") or "{}")
    except (TypeError, ValueError, RecursionError):
        arguments = None
    if not isinstance(function.get("name"), str) or not isinstance(arguments, dict):
        raise OptionsError(
            f"{where} has the call {shown(call)}: its function needs a name, and as arguments a string with a JSON object"
        )
    return ToolUse(call["id"], function["name"], arguments)


_CUT_ESCAPE = regex(r"\\(u[0-9a-fA-F]{0,3})?\Z")
_WHOLE = regex(r'([}\]"]|\b(true|false|null))\s*\Z')


def partial_json(text: str) -> Any:
    """Parse what has arrived of the first object or list in a JSON text; a string may be cut.

    Any other incomplete value is left out. Raises `ValueError` while there is no object or list yet, and for invalid JSON.
    """
    start = next((place for place, char in enumerate(text) if char in "{["), len(text))
    text, closers, in_string, is_escaped = text[start:], "", False, False
    cuts: list[tuple[int, str]] = []
    for place, char in enumerate(text):
        if in_string:
            if is_escaped:
                is_escaped = False
            elif char == "\\":
                is_escaped = True
            elif char == '"':
                in_string = False
        elif char == '"':
            in_string = True
        elif char in "{[":
            closers = ("}" if char == "{" else "]") + closers
            cuts.append((place + 1, closers))
        elif char in "}]":
            closers = closers[1:]
            if not closers:
                return json.loads(text[: place + 1])
        elif char == ",":
            cuts.append((place, closers))
    if in_string:
        text = _CUT_ESCAPE.sub("", text) + '"' if is_escaped or "\\u" in text[-6:] else text + '"'
    if _WHOLE.search(text):
        try:
            return json.loads(text + closers)
        except ValueError:
            pass
    if not cuts:
        raise ValueError("no JSON has arrived yet")
    place, closers = cuts[-1]
    return json.loads(text[:place] + closers)
