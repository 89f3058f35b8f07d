"""A second, minimal reading of answers, strictly by the documentation of each protocol.

Our own readers must return the same text and the same calls.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ...ground.loose import as_list, as_mapping, as_mappings, as_text
from ...ground.patterns import regex
from ...providers.calls import TOOL_SEARCH

WireProtocol = Literal["chat", "responses", "messages", "gemini", "converse"]
# A text, and the name and the arguments of each call.
PlainAnswer = tuple[str, list[tuple[str, Any]]]

_EVENT_TYPE = regex(rb":event-type\x07..(\w+)", re.S)


def read_plainly(body: bytes) -> list[Any]:
    """Read the JSON values of a body: one, or those of its events; empty for a body of another kind."""
    if body[:1] == b"\0":
        return _frames(body)
    text = body.decode("utf-8", "replace").replace("\r\n", "\n").strip()
    try:
        whole = json.loads(text)
        return as_list(whole) or [whole]
    except ValueError:
        lines = [line.removeprefix("data:").strip() for line in text.split("\n") if line.startswith("data:")]
    try:
        return [json.loads(line) for line in lines if line not in ("", "[DONE]")]
    except ValueError:
        return []


def protocol_of_answer(chunks: Sequence[Any]) -> WireProtocol | None:
    """The protocol of an answer, by its contents; None for anything but a model's answer."""
    for chunk in map(as_mapping, chunks):
        kind = as_text(chunk.get("type"))
        if kind in ("message_start", "message") and (chunk.get("message") or isinstance(chunk.get("content"), list)):
            return "messages"
        if kind.startswith("response.") or chunk.get("object") == "response":
            return "responses"
        if "candidates" in chunk:
            return "gemini"
        if kind == "messageStart" or as_mapping(chunk.get("output")).get("message"):
            return "converse"
        choices = as_mappings(chunk.get("choices"))
        if any("delta" in choice or "message" in choice for choice in choices):
            return "chat"
    return None


def plain_answer(protocol: WireProtocol, chunks: Sequence[Any]) -> PlainAnswer:
    """The text and the calls of an answer, read from its JSON values."""
    objects = [chunk for chunk in chunks if isinstance(chunk, Mapping)]
    return _READINGS[protocol](objects)


def _frames(body: bytes) -> list[Any]:
    """The messages of an AWS event stream, with their type; messages of InvokeModel contain an inner event."""
    frames, at = list[Any](), 0
    while at + 16 <= len(body):
        size, headers = (int.from_bytes(body[at + skip : at + skip + 4], "big") for skip in (0, 4))
        try:
            payload = as_mapping(json.loads(body[at + 12 + headers : at + size - 4] or b"{}"))
            inner = as_text(payload.get("bytes"))
            inner_event = json.loads(base64.b64decode(inner)) if inner else None
        except (ValueError, RecursionError):
            return []  # an image or a video
        kind = _EVENT_TYPE.search(body[at + 12 : at + 12 + headers])
        frames.append(inner_event if inner else {**payload, "type": kind[1].decode() if kind else ""})
        at += max(size, 16)
    return frames


def _chat(chunks: Sequence[Mapping[str, Any]]) -> PlainAnswer:
    text, calls, names = "", list[list[str]](), dict[Any, tuple[str, int]]()
    for choice in (one for chunk in chunks for one in as_mappings(chunk.get("choices")) if not one.get("index")):
        message = as_mapping(choice.get("delta"))
        if not (text or any(value for key, value in message.items() if key != "role")):
            # Perplexity repeats the answer so far beside empty deltas.
            message = as_mapping(choice.get("message")) or message
        content = message.get("content")
        if isinstance(content, Mapping):  # Cloudflare returns an answer with a schema as the object itself
            content = json.dumps(content)
        text += (
            content if isinstance(content, str) else "".join(as_text(one.get("text")) for one in as_mappings(content))
        )
        text += as_text(message.get("refusal")) or ("" if content else as_text(choice.get("text")))
        old = as_mapping(message.get("function_call"))
        if any(old.values()):  # the older form with one function
            message = {"tool_calls": [{"index": 0, "function": old}]}
        for call in as_mappings(message.get("tool_calls")):
            function, call_id = as_mapping(call.get("function")), as_text(call.get("id"))
            if not any(function.values()):
                function = as_mapping(call.get("custom"))
            entry = names.get(call.get("index", call_id))
            if entry is None or (call_id not in ("", entry[0]) and function.get("name")):
                entry = names[call.get("index", call_id)] = (call_id, len(calls))
                calls.append(["", ""])
            slot = calls[entry[1]]
            slot[0] = slot[0] or as_text(function.get("name"))
            raw_arguments = function.get("arguments")
            if isinstance(own := function.get("input"), str):  # a tool with its own grammar
                raw_arguments = {"input": own}
            slot[1] += json.dumps(raw_arguments) if isinstance(raw_arguments, Mapping) else as_text(raw_arguments)
    return text, [(name, arguments) for name, arguments in calls]


def _responses(chunks: Sequence[Mapping[str, Any]]) -> PlainAnswer:
    last = as_mapping(chunks[-1].get("response") or chunks[-1])
    output = as_mappings(last.get("output"))
    if not output:  # some endpoints send the items only one by one
        output = [as_mapping(c.get("item")) for c in chunks if c.get("type") == "response.output_item.done"]
    parts = [part for item in output if item.get("type") == "message" for part in as_mappings(item.get("content"))]
    text = "".join(as_text(part.get("text")) or as_text(part.get("refusal")) for part in parts)
    calls = [(as_text(item.get("name")), item.get("arguments")) for item in output if item["type"] == "function_call"]
    calls += [(as_text(item.get("name")), {"input": item["input"]}) for item in output if "input" in item]
    searches = [item for item in output if item["type"] == "tool_search_call" and item.get("execution") == "client"]
    return text, calls + [(TOOL_SEARCH, item.get("arguments")) for item in searches]


def _messages(chunks: Sequence[Mapping[str, Any]]) -> PlainAnswer:
    blocks, pieces = dict[Any, dict[str, Any]](), dict[Any, str]()
    for chunk in chunks:
        index, delta = chunk.get("index"), as_mapping(chunk.get("delta"))
        if chunk.get("type") == "content_block_start":
            blocks[index] = dict(as_mapping(chunk.get("content_block")))
        elif chunk.get("type") == "message":
            blocks.update(enumerate(map(dict, as_mappings(chunk.get("content")))))
        elif delta.get("type") == "text_delta":
            blocks[index]["text"] = as_text(blocks[index].get("text")) + as_text(delta.get("text"))
        elif delta.get("type") == "input_json_delta":
            pieces[index] = pieces.get(index, "") + as_text(delta.get("partial_json"))
    text = "".join(as_text(block.get("text")) for block in blocks.values() if block.get("type") == "text")
    calls = [(place, block) for place, block in blocks.items() if block.get("type") == "tool_use"]
    return text, [(as_text(block.get("name")), pieces.get(place) or block.get("input")) for place, block in calls]


def _gemini(chunks: Sequence[Mapping[str, Any]]) -> PlainAnswer:
    first = [as_mapping(one.get("content")) for chunk in chunks for one in as_mappings(chunk.get("candidates"))[:1]]
    parts = [part for content in first for part in as_mappings(content.get("parts")) if not part.get("thought")]
    calls = _joined([as_mapping(part["functionCall"]) for part in parts if "functionCall" in part])
    text = "".join(as_text(part.get("text")) for part in parts)
    return text, [(as_text(call.get("name")), call.get("args") or {}) for call in calls]


def _joined(pieces: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The calls, with fragments joined: only the first fragment of a call has a name."""
    calls = list[dict[str, Any]]()
    for piece in pieces:
        if piece.get("name"):
            calls.append({"name": piece["name"], "args": dict(piece.get("args") or {})})
        for value in as_mappings(piece.get("partialArgs")) if calls else ():
            holder: Any = calls[-1]
            key: Any = "args"
            for name, number in re.findall(r"\.(\w+)|\[(\d{1,4})\]", value["jsonPath"]):
                if _there(holder, key) is None:
                    holder[key] = {} if name else []
                holder, key = holder[key], name or int(number)
            text = as_text(_there(holder, key)) + as_text(value.get("stringValue"))
            holder[key] = text if "stringValue" in value else value.get("numberValue", value.get("boolValue"))
    return calls


def _there(holder: Any, key: Any) -> Any:
    """Return the value at a key or an index; extend a list that is too short."""
    if isinstance(holder, list):
        holder += [None] * (key + 1 - len(holder))
        return holder[key]
    return holder.get(key)


def _converse(chunks: Sequence[Mapping[str, Any]]) -> PlainAnswer:
    text, calls, done_there = "", dict[Any, list[Any]](), set[Any]()
    message = as_mapping(as_mapping(chunks[0].get("output")).get("message"))
    # A complete answer is read as the events that would have streamed it.
    whole = [
        {"contentBlockIndex": n, "start": b, "delta": b} for n, b in enumerate(as_mappings(message.get("content")))
    ]
    for chunk in whole or chunks:
        index, start, delta = (
            chunk.get("contentBlockIndex"),
            *(as_mapping(chunk.get(key)) for key in ("start", "delta")),
        )
        if use := as_mapping(start.get("toolUse")):
            calls[index] = [as_text(use.get("name")), ""]
            done_there |= {index} if use.get("type") == "server_tool_use" else set()
        text += as_text(delta.get("text"))
        if (use := as_mapping(delta.get("toolUse"))) and index in calls:
            raw_input = use.get("input")
            calls[index][1] = raw_input if isinstance(raw_input, Mapping) else calls[index][1] + as_text(raw_input)
    return text, [(name, arguments) for index, (name, arguments) in calls.items() if index not in done_there]


_READINGS = {"chat": _chat, "responses": _responses, "messages": _messages, "gemini": _gemini, "converse": _converse}
