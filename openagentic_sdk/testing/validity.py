"""The rules by which a chat-completions provider accepts a list of messages, for tests of whatever makes one.

Written from the behaviour of several vendors' endpoints: the strictest of them decides each rule.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def find_fault(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """Why a provider would refuse the messages, or None when it would not."""
    waiting: list[str] = []
    for position, message in enumerate(messages):
        fault = _fault_of(message, waiting)
        if fault is not None:
            return f"message {position} ({message.get('role')}): {fault}"
        if message.get("role") == "tool":
            waiting.remove(message["tool_call_id"])
        elif message.get("tool_calls"):
            waiting = [call["id"] for call in message["tool_calls"]]
    return f"calls without a result: {', '.join(waiting)}" if waiting else None


def _fault_of(message: Mapping[str, Any], waiting: Sequence[str]) -> str | None:
    role = message.get("role")
    try:
        json.dumps(message, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        return f"not sendable as UTF-8 JSON: {error}"
    if role == "tool":
        return (
            None
            if message.get("tool_call_id") in waiting
            else f"answers {message.get('tool_call_id')!r}, which is not open"
        )
    if waiting:
        return f"stands before the results of {', '.join(waiting)}"
    if role == "assistant":
        return _assistant_fault(message)
    if role not in ("user", "system", "developer"):
        return f"unknown role {role!r}"
    return None if message.get("content") else "empty content"


def _assistant_fault(message: Mapping[str, Any]) -> str | None:
    calls = message.get("tool_calls") or []
    if not calls and not message.get("content"):
        return "neither content nor calls"
    ids = [call.get("id") for call in calls]
    if len(set(ids)) < len(ids) or not all(ids):
        return f"call ids are empty or doubled: {ids}"
    for call in calls:
        try:
            arguments = json.loads(call["function"]["arguments"])
        except ValueError:
            return f"arguments of {call['id']} are not JSON"
        if not isinstance(arguments, dict) or not call["function"].get("name"):
            return f"call {call['id']} has no name or its arguments are no object"
    return None
