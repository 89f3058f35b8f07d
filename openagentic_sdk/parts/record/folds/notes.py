"""One-line descriptions, for people, of calls and of events outside the conversation."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from ....events import (
    CommandExpanded,
    Event,
    HookEvent,
    LogFragment,
    LogRecovered,
    LogSalvaged,
    McpServerChanged,
    SessionCompacted,
    SessionForked,
    SessionMeta,
    SessionRewound,
    SkillActivated,
    SkillDeactivated,
    SkillDrifted,
    SubagentFinished,
    SubagentStarted,
    SystemNotice,
    TextCommandFinished,
    TextCommandStarted,
    ToolProgress,
    ToolResult,
)
from ....ground.text import on_one_line
from ....ground.words import plural

_MAX_ARGUMENT_CHARS = 100
MAX_ERROR_CHARS = 300
_MCP_STATES = {"failed": "cannot be used", "lost": "has ended"}
# The most informative argument of a call, per tool; for other tools, the first string.
_SUMMARY_ARGUMENTS = {
    "Bash": "command",
    "Edit": "file_path",
    "Glob": "pattern",
    "Grep": "query",
    "Read": "file_path",
    "Task": "agent",
    "WebFetch": "url",
    "WebSearch": "query",
    "Write": "file_path",
}


def describe_input(name: str, arguments: Mapping[str, Any], cwd: str = "") -> str:
    """A call's most informative argument, or all arguments abridged, on one line. A path below `cwd` is made relative."""
    value = arguments.get(_SUMMARY_ARGUMENTS.get(name, ""))
    if not isinstance(value, str):
        value = next((each for each in arguments.values() if isinstance(each, str)), None)
    if value is None:
        value = ", ".join(f"{key}: {_in_short(each)}" for key, each in arguments.items())
    if cwd and value.startswith(cwd + os.sep):
        value = value[len(cwd) + 1 :]
    return on_one_line(value, _MAX_ARGUMENT_CHARS)


def _grant_words(event: CommandExpanded | SkillActivated) -> str:
    """The permissions and the model that a command or skill adds to the turn."""
    grants = f"; it may use {on_one_line(', '.join(event.grants))}" if event.grants else ""
    return grants + (f"; {on_one_line(event.model)} answers" if event.model else "")


def _in_short(value: Any) -> str:
    if isinstance(value, list | dict):
        return plural(len(value), "item")
    return json.dumps(value)


def progress_words(event: ToolProgress) -> str:
    """The progress of a call on one line: `3 of 10 counting`."""
    far = f"{event.progress:g}" + (f" of {event.total:g}" if event.total is not None else "")
    return f"{far} {on_one_line(event.message, MAX_ERROR_CHARS)}".rstrip()


def note_of(event: Event) -> tuple[str, str] | None:
    """The note about an event outside the conversation, on one line, with its style; None for events without one."""
    match event:
        case CommandExpanded():
            return f"command /{on_one_line(event.name)}{_grant_words(event)}", "dim"
        case SkillActivated():
            return f"skill {on_one_line(event.name)} is active{_grant_words(event)}", "dim"
        case SkillDeactivated():
            return f"skill {on_one_line(event.name)} is no longer active", "dim"
        case SkillDrifted():
            return f"the file of skill {on_one_line(event.name)} has changed; its stored text remains in use", "yellow"
        case TextCommandStarted():
            return f"{on_one_line(event.name)} runs {on_one_line(event.command, _MAX_ARGUMENT_CHARS)}", "dim"
        case TextCommandFinished() if event.error_message is not None:
            return f"which {on_one_line(event.error_message)}", "yellow"
        case SubagentStarted():
            session, prompt = on_one_line(event.child_session_id), on_one_line(event.prompt, _MAX_ARGUMENT_CHARS)
            return f"subagent {on_one_line(event.name)} begins in session {session}: {prompt}", "dim"
        case SubagentFinished():
            stop = "" if event.stop_reason == "end" else f" ({on_one_line(event.stop_reason)})"
            return f"subagent {on_one_line(event.name)} ends{stop}", "dim"
        case HookEvent():
            return _hook_note(event)
        case McpServerChanged():
            return _server_note(event)
        case SystemNotice():
            return f"note: {on_one_line(event.message, MAX_ERROR_CHARS)}", "yellow"
        case SessionCompacted():
            return f"the conversation up to event {event.up_to_seq} was summarized ({on_one_line(event.method)})", "dim"
        case LogRecovered():
            if event.moved_to is None:
                return (
                    f"the disk has lost the log's end ({plural(event.bytes, 'byte')}), which had not been synced",
                    "yellow",
                )
            return f"the log's unfinished last line ({plural(event.bytes, 'byte')}) was moved aside", "yellow"
        case LogSalvaged():
            what = (
                f"{plural(event.events, 'event')} saved from the damaged session {on_one_line(event.source_session_id)}"
            )
            return f"{what}: {on_one_line(event.damage, MAX_ERROR_CHARS)}", "yellow"
        case LogFragment():
            kind = on_one_line(str(event.event.get("type")))
            return f"kept from after the damage, not part of the conversation: event {event.source_seq}, {kind}", "dim"
        case SessionForked():
            return f"forked from session {on_one_line(event.parent_session_id)} at event {event.parent_seq}", "dim"
        case SessionRewound():
            return f"everything after event {event.to_seq} was undone", "dim"
        case SessionMeta() if event.title is not None:
            return f"titled {on_one_line(event.title)!r}", "dim"
    return None


def _hook_note(event: HookEvent) -> tuple[str, str] | None:
    name = on_one_line(event.name)
    if message := event.details.get("system_message"):
        return f"hook {name}: {on_one_line(str(message))}", "yellow"
    if event.action == "block" or event.error_message:
        what = on_one_line(event.error_message or str(event.details.get("block_reason") or "blocked"))
        return f"hook {name} at {on_one_line(event.hook_point)}: {what}", "yellow"
    return None


def _server_note(event: McpServerChanged) -> tuple[str, str] | None:
    name = on_one_line(event.name)
    if event.state in _MCP_STATES:
        why = f": {on_one_line(event.error_message, MAX_ERROR_CHARS)}" if event.error_message else ""
        return f"MCP server {name} {_MCP_STATES[event.state]}{why}", "yellow"
    if tools := [str(one.get("tool")) for one in event.left_out if one.get("code") == "pin"]:
        names = on_one_line(", ".join(tools), MAX_ERROR_CHARS)
        advice = f"`openagentic-sdk mcp trust {name}` approves them in their current state"
        return f"MCP server {name}: withheld until somebody approves: {names} ({advice})", "yellow"
    return None


def printed_by_plan(result: ToolResult) -> str:
    """The text that a plan printed for the user (its model sees only a part of it); empty for other results."""
    printed = (result.meta or {}).get("printed")
    return printed.rstrip("\n") if isinstance(printed, str) else ""
