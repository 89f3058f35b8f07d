"""The rules by which endpoints accept a conversation, for tests of code that creates one.

`find_fault` checks chat messages by the behaviour of several vendors' endpoints: the strictest of them determines each rule.
`read_prompt` splits a request of any protocol as its endpoint reads it, and `find_binding_fault` checks whether its
reasoning still fits. By Anthropic's rule for preserved thinking (platform.claude.com, "Prefix checks on thinking blocks"),
a block is bound to its model and to everything before it, and a block between others may not be omitted; OpenAI's encrypted
reasoning and Gemini's thought signatures are bound to their model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from ..ground.frozen import frozen

EndpointProtocol = Literal["chat", "responses", "messages", "gemini"]
_MARKS = ("cache_control",)


def find_fault(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """Find the reason why a provider would refuse the messages; return None if it would not."""
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
        return f"comes before the results of {', '.join(waiting)}"
    if role == "assistant":
        calls = message.get("tool_calls") or []
        if not calls and not message.get("content"):
            return "neither content nor calls"
        ids = [call.get("id") for call in calls]
        if len(set(ids)) < len(ids) or not all(ids):
            return f"call ids are empty or duplicate: {ids}"
        for call in calls:
            try:
                arguments = json.loads(call["function"]["arguments"])
            except ValueError:
                return f"arguments of {call['id']} are not JSON"
            if not isinstance(arguments, dict) or not call["function"].get("name"):
                return f"call {call['id']} has no name or its arguments are not an object"
        return None
    if role not in ("user", "system", "developer"):
        return f"unknown role {role!r}"
    return None if message.get("content") else "empty content"


# --- a request as its endpoint reads it ------------------------------------------------------------------------------


@frozen
class CachedPiece:
    """One piece of a prompt, which vendors cache piece by piece. `data` is its canonical JSON without cache marks.

    `kind` is `tool`, `system` or `message`; `path` is its place in the request; `is_marked` is true if the request wants a
    cache entry to end here. `bound` is the signature of reasoning, None for anything else.
    """

    kind: str
    path: str
    data: bytes
    is_marked: bool = False
    bound: str | None = None


def protocol_of(path: str) -> EndpointProtocol | None:
    """The protocol of a request to this URL path; None for an unknown path."""
    path = path.partition("?")[0]
    if "GenerateContent" in path or "generateContent" in path:
        return "gemini"
    ends: Mapping[str, EndpointProtocol] = {"/messages": "messages", "/responses": "responses", "/completions": "chat"}
    return next((protocol for end, protocol in ends.items() if path.endswith(end)), None)


def read_prompt(protocol: EndpointProtocol, body: Mapping[str, Any]) -> list[CachedPiece]:
    """Split a request's prompt into pieces: tools, then system, then the parts of messages.

    Tools that are loaded only when they are found (`defer_loading`) are not part of the prompt.
    """
    parts = [
        _part("tool", f"tools.{index}", tool)
        for index, tool in enumerate(_tools(protocol, body))
        if not tool.get("defer_loading")
    ]
    system = {"messages": "system", "gemini": "systemInstruction", "responses": "instructions"}.get(protocol)
    value = body.get(system) if system else None
    blocks = value.get("parts") if isinstance(value, Mapping) else [value] if isinstance(value, str) else value
    parts += [_part("system", f"{system}.{index}", block) for index, block in enumerate(blocks or ())]
    return [*parts, *_message_parts(protocol, body)]


def prompt_sha256(parts: Sequence[CachedPiece]) -> str:
    """The digest of a prefix of the prompt."""
    return hashlib.sha256(b"\n".join(part.kind.encode() + b" " + part.data for part in parts)).hexdigest()


def _tools(protocol: EndpointProtocol, body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    tools = body.get("tools") or []
    if protocol != "gemini":
        return list(tools)
    return [one for entry in tools for one in entry.get("functionDeclarations") or [entry]]


def _message_parts(protocol: EndpointProtocol, body: Mapping[str, Any]) -> Iterator[CachedPiece]:
    field = {"responses": "input", "gemini": "contents"}.get(protocol, "messages")
    for index, message in enumerate(body.get(field) or ()):
        path = f"{field}.{index}"
        content = message.get("parts") if protocol == "gemini" else message.get("content")
        if protocol in ("messages", "gemini") and isinstance(content, list):
            for place, block in enumerate(content):
                yield _part("message", f"{path}.content.{place}", {"role": message.get("role"), "block": block})
        else:
            yield _part("message", path, message)


def _part(kind: str, path: str, value: Any) -> CachedPiece:
    block = value["block"] if isinstance(value, Mapping) and "block" in value else value
    fields = block if isinstance(block, Mapping) else {}
    plain = {key: item for key, item in fields.items() if key not in _MARKS} if fields else block
    value = {**value, "block": plain} if block is not value else plain
    signature = fields.get("signature") or fields.get("encrypted_content") or fields.get("thoughtSignature")
    if fields.get("type") == "redacted_thinking":
        signature = fields.get("data")
    for detail in fields.get("reasoning_details") or ():
        signature = detail.get("signature")
    data = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    return CachedPiece(kind, path, data, any(mark in fields for mark in _MARKS), signature)


# --- bound reasoning -------------------------------------------------------------------------------------------------


def bound_signature(protocol: EndpointProtocol, model: str, before: Sequence[CachedPiece], account: str = "") -> str:
    """The signature that an endpoint puts on reasoning: its model, account and binding, for `find_binding_fault`."""
    to = prompt_sha256(before) if protocol == "messages" else "any"
    return f"bound.{hashlib.sha256(model.encode()).hexdigest()[:16]}.{to}{account and '.'}{account}"


@frozen
class BindingFault:
    """Reasoning at `path` that does not fit: `reason` is `model` or `prefix`."""

    path: str
    reason: str


def find_binding_fault(
    protocol: EndpointProtocol, model: str, parts: Sequence[CachedPiece], account: str = ""
) -> BindingFault | None:
    """Find the first piece of reasoning that must not be sent to this model at this place; None if all of it fits."""
    for index, part in enumerate(parts):
        if part.bound is None:
            continue
        expected = bound_signature(protocol, model, parts[:index], account)
        if part.bound != expected:
            same_model = part.bound.split(".")[:2] == expected.split(".")[:2]
            return BindingFault(part.path, "prefix" if same_model else "model")
    return None
