"""Small handwritten answers with the requested habits of `profiles.json`."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from .test_clouds import message as aws_message

Call = tuple[str, Mapping[str, Any]]


def answer(protocol: str, habits: Collection[str], text: str, calls: Sequence[Call] = (), number: int = 1) -> bytes:
    """The body of a stream in which a model writes this text and makes these calls."""
    return _WRITERS[protocol](frozenset(habits), text, calls, number)


def events(chunks: Sequence[Mapping[str, Any]], end: str = "") -> bytes:
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + end.encode()


def refusal() -> bytes:
    """An error after status 200, and nothing more."""
    return events([{"error": {"message": "the model is overloaded", "type": "server_error", "code": 500}}])


def _chat(habits: frozenset[str], text: str, calls: Sequence[Call], number: int) -> bytes:
    choices: list[dict[str, Any]] = [{"delta": {"role": "assistant", "content": ""}}]
    for field in ("reasoning_content", "reasoning"):
        if f"reasoning in {field}" in habits:
            choices.append({"delta": {field: "Hm."}})
    if "reasoning in reasoning_details" in habits:
        choices.append({"delta": {"reasoning_details": [{"type": "reasoning.text", "text": "Hm.", "index": 0}]}})
    half = len(text) // 2
    for piece in filter(None, (text[:half], text[half:])):
        held = [{"type": "text", "text": piece}] if "content is a list" in habits else piece
        choices.append({"delta": {"content": held}})
        if "text beside the delta" in habits:
            choices[-1]["text"] = piece
        if "message beside the delta" in habits:
            choices[-1]["message"] = {"role": "assistant", "content": text[: half if piece == text[:half] else None]}
    for place, (name, arguments) in enumerate(calls):
        choices += [{"delta": {"tool_calls": [piece]}} for piece in _fragments(habits, place, name, arguments, number)]
    if "finish never comes" not in habits:
        reason = "tool_calls" if calls and "calls end with stop" not in habits else "stop"
        choices.append({"delta": {}, "finish_reason": reason})
        choices += [choices[-1]] if "finish repeats" in habits else []
    usage = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
    chunks = [{"id": f"c{number}", "model": "m", "choices": [{"index": 0, **choice}]} for choice in choices]
    if "first chunk has no choices" in habits:
        chunks.insert(0, {"id": "", "model": "", "choices": [], "prompt_filter_results": []})  # type: ignore[dict-item]
    if "usage in every chunk" in habits:
        chunks = [{**chunk, "usage": usage} for chunk in chunks]
    elif "usage beside choices" in habits:
        chunks[-1]["usage"] = usage
    else:
        chunks.append({"id": f"c{number}", "model": "m", "choices": [], "usage": usage})
    before = b": PROCESSING\n\n" if "comments keep the line open" in habits else b""
    return before + events(chunks, "" if "no [DONE]" in habits else "data: [DONE]\n\n")


def _fragments(
    habits: frozenset[str], place: int, name: str, arguments: Mapping[str, Any], number: int
) -> list[dict[str, Any]]:
    written, call_id = json.dumps(arguments), f"call{number}x{place}"
    texts = [written]
    if not habits & {"calls come whole", "calls have no index", "calls share one index"}:
        texts = ["", written[:4], written[4:]]
    pieces: list[dict[str, Any]] = []
    for turn, text in enumerate(texts):
        piece: dict[str, Any] = {"index": place, "function": {"arguments": text}}
        if turn == 0 or "ids and names repeat" in habits:
            piece |= {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}
        elif "ids rotate" in habits:
            piece["id"] = f"{call_id}x{turn}"
        if "calls share one index" in habits:
            piece["index"] = 0
        if "calls have no index" in habits:
            del piece["index"]
        pieces.append(piece)
    return pieces


def _responses(habits: frozenset[str], text: str, calls: Sequence[Call], number: int) -> bytes:
    items: list[dict[str, Any]] = []
    if "reasoning is encrypted" in habits:
        items.append({"type": "reasoning", "id": f"rs_{number}", "summary": [], "encrypted_content": "sealed"})
    if text:
        said = {"type": "output_text", "text": text, "annotations": []}
        phase = {"phase": "commentary" if calls else "final_answer"} if "messages have a phase" in habits else {}
        items.append({"type": "message", "id": f"msg_{number}", "role": "assistant", "content": [said], **phase})
    for place, (name, arguments) in enumerate(calls):
        ids = {"id": f"fc_{number}_{place}", "call_id": f"call_{number}_{place}"}
        items.append({"type": "function_call", **ids, "name": name, "arguments": json.dumps(arguments)})
    items = [{**item, "status": "completed"} for item in items]

    def response_id(event: int) -> str:
        return f"resp_{number}_{event}" if "ids rotate" in habits else f"resp_{number}"

    said_events: list[dict[str, Any]] = [{"type": "response.created", "response": {"id": response_id(0)}}]
    for place, item in enumerate(items):
        named = item["id"] + (f"_{len(said_events)}" if "ids rotate" in habits else "")
        at = {} if "deltas have no output_index" in habits else {"output_index": place}
        begun = {**item, "id": named, "status": "in_progress", "content": [], "arguments": ""}
        said_events.append({"type": "response.output_item.added", "output_index": place, "item": begun})
        kind, whole = "output_text", text
        if item["type"] == "function_call":
            kind, whole = "function_call_arguments", item["arguments"]
        for piece in (whole[:3], whole[3:]) if item["type"] != "reasoning" else ():
            said_events.append({"type": f"response.{kind}.delta", "item_id": named, "delta": piece, **at})
        said_events.append({"type": "response.output_item.done", "output_index": place, "item": item})
    usage = {"input_tokens": 7, "output_tokens": 5}
    output = [] if "output of the end is empty" in habits else items
    end = {"id": response_id(1), "status": "completed", "output": output, "usage": usage}
    marker = "data: [DONE]\n\n" if "[DONE] behind the end" in habits else ""
    before = b": PROCESSING\n\n" if "comments keep the line open" in habits else b""
    return before + events([*said_events, {"type": "response.completed", "response": end}], marker)


def _message_events(habits: frozenset[str], text: str, calls: Sequence[Call], number: int) -> list[dict[str, Any]]:
    blocks: list[tuple[dict[str, Any], dict[str, Any] | None]] = []
    if "calls in the vendor's own code" in habits:
        found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
        query = {"type": "input_json_delta", "partial_json": '{"query": "tea"}'}
        blocks += [({"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}, query)]
        blocks += [(found, None)]
    if text:
        blocks.append(({"type": "text", "text": ""}, {"type": "text_delta", "text": text}))
    for place, (name, arguments) in enumerate(calls):
        use = {"type": "tool_use", "id": f"toolu_{number}_{place}", "name": name, "input": {}}
        blocks.append((use, {"type": "input_json_delta", "partial_json": json.dumps(arguments)}))
    begun = {"id": f"msg_{number}", "type": "message", "role": "assistant", "content": [], "usage": {"input_tokens": 7}}
    said: list[dict[str, Any]] = [{"type": "message_start", "message": begun}]
    for place, (block, delta) in enumerate(() if "no blocks" in habits else blocks):
        said.append({"type": "content_block_start", "index": place, "content_block": block})
        said += [{"type": "content_block_delta", "index": place, "delta": delta}] if delta else []
        said.append({"type": "content_block_stop", "index": place})
    reason = "tool_use" if calls else "end_turn"
    said.append({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 5}})
    return said if "no message_stop" in habits else [*said, {"type": "message_stop"}]


def _messages(habits: frozenset[str], text: str, calls: Sequence[Call], number: int) -> bytes:
    return b"".join(
        f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
        for event in _message_events(habits, text, calls, number)
    )


def _invoked(habits: frozenset[str], text: str, calls: Sequence[Call], number: int) -> bytes:
    """The Messages API in the frames of Bedrock's InvokeModel."""
    frames = b""
    for event in _message_events(habits, text, calls, number):
        inner = {"bytes": base64.b64encode(json.dumps(event).encode()).decode()}
        frames += aws_message(json.dumps(inner).encode(), message_type="event", event_type="chunk")
    return frames


def _gemini(habits: frozenset[str], text: str, calls: Sequence[Call], number: int) -> bytes:
    parts: list[dict[str, Any]] = [{"text": piece} for piece in (text[:3], text[3:]) if piece]
    signature = {"thoughtSignature": "c2ln"} if "calls are signed" in habits else {}
    for place, (name, arguments) in enumerate(calls):
        called: dict[str, Any] = {"name": name, "args": dict(arguments)}
        if "calls come in pieces" in habits:
            called = {"name": name, "willContinue": True}
        parts.append({"functionCall": called, **({} if place else signature)})
        for key, value in arguments.items() if "calls come in pieces" in habits else ():
            for text, goes_on in ((value[:1], True), (value[1:], False)):
                piece = {"jsonPath": f"$.{key}", "stringValue": text, "willContinue": goes_on}
                parts.append({"functionCall": {"partialArgs": [piece], "willContinue": True}})
            parts.append({"functionCall": {}})
    if "signature beside an empty text" in habits:
        parts.append({"text": "", "thoughtSignature": "bGFzdA=="})
    usage = {"promptTokenCount": 7, "candidatesTokenCount": 5, "totalTokenCount": 12}
    chunks: list[dict[str, Any]] = [
        {"candidates": [{"content": {"role": "model", "parts": [part]}, "index": 0}], "usageMetadata": usage}
        for part in parts
    ]
    for chunk in chunks if "finish repeats" in habits else chunks[-1:]:
        chunk["candidates"][0]["finishReason"] = "STOP"
    return events([{**chunk, "responseId": f"gen{number}", "modelVersion": "m"} for chunk in chunks])


_WRITERS: Mapping[str, Callable[[frozenset[str], str, Sequence[Call], int], bytes]] = {
    "chat": _chat,
    "responses": _responses,
    "messages": _messages,
    "invoke": _invoked,
    "gemini": _gemini,
}
