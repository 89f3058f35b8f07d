"""A session in the form of Claude Code's transcripts, one JSON object per line, for hooks that read it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

from ....events import AssistantMessage, Event, ToolResult, ToolUse, UserMessage
from ....sessions.folds.summary import calendar_time
from ....version import __version__


def transcript_entries(
    events: Sequence[Event], session_id: str, cwd: str, *, parent: str | None = None
) -> Iterator[dict[str, Any]]:
    """Yield an entry for each message, call of the model and result; `parent` is the id of the entry before the first."""
    # Few runs write a transcript, and these modules are slow to import.
    import uuid
    from datetime import UTC, datetime

    for event in events:
        message: dict[str, Any]
        if isinstance(event, UserMessage):
            message = {"role": "user", "content": event.text}
        elif isinstance(event, AssistantMessage) and event.text:
            message = {"role": "assistant", "content": [{"type": "text", "text": event.text}]}
        elif isinstance(event, ToolUse) and not event.is_inside:
            block = {"type": "tool_use", "id": event.tool_use_id, "name": event.name, "input": event.input}
            message = {"role": "assistant", "content": [block]}
        elif isinstance(event, ToolResult) and not event.tool_use_id.startswith(f"{event.parent_tool_use_id}."):
            content = event.error_message if event.is_error and event.output is None else event.output
            text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
            block = {"type": "tool_result", "tool_use_id": event.tool_use_id, "content": text}
            message = {"role": "user", "content": [{**block, "is_error": True} if event.is_error else block]}
        else:
            continue
        name = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{session_id}:{event.seq}"))
        timestamp = datetime.fromtimestamp(calendar_time(event.ts), UTC).isoformat(timespec="milliseconds")
        yield {
            "parentUuid": parent,
            "isSidechain": False,
            "userType": "external",
            "cwd": cwd,
            "sessionId": session_id,
            "version": __version__,
            "type": message["role"],
            "message": message,
            "uuid": name,
            "timestamp": timestamp.replace("+00:00", "Z"),
        }
        parent = name


class TranscriptFile:
    """The transcript of one session as a file that grows with the session."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._count = 0
        self._last: str | None = None

    def write(self, events: Sequence[Event], session_id: str, cwd: str) -> str:
        """Append the entries of new events and return the file's path; the first call replaces the file's content."""
        entries = list(transcript_entries(events[self._count :], session_id, cwd, parent=self._last))
        mode = os.O_APPEND if self._count else os.O_TRUNC
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | mode | getattr(os, "O_NOFOLLOW", 0), 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(b"".join(json.dumps(entry).encode("ascii") + b"\n" for entry in entries))
        self._count = len(events)
        self._last = entries[-1]["uuid"] if entries else self._last
        return self.path
