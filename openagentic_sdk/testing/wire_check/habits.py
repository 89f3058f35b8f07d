"""Undocumented habits of endpoints, by name, and the vendors that have them.

A profile in `profiles.json` is a vendor: its hosts, the habits that its recorded answers showed, and when they were read. A
habit that is new for a vendor deserves a look: readers that do not expect it may misread it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from ...ground.loose import as_list, as_mapping, as_mappings, as_text
from ...ground.packaged import read_packaged
from .plain import WireProtocol
from .recordings import Exchange

PROFILES: Mapping[str, Mapping[str, Any]] = json.loads(read_packaged(__spec__, "profiles.json"))

Chunks = Sequence[Mapping[str, Any]]


def habits_of(exchange: Exchange, protocol: WireProtocol, chunks: Sequence[Any]) -> list[str]:
    """The names of the habits that an answer shows, sorted."""
    objects = [chunk for chunk in chunks if isinstance(chunk, Mapping)]
    names = {name for name, shows in _HABITS[protocol].items() if shows(objects)}
    if len(objects) > 1 and exchange.body[:1] not in (b"\0", b"["):
        names |= {name for name, shows in _STREAMED.items() if shows(exchange, objects, protocol)}
    return sorted(names)


def profile_of(host: str) -> str | None:
    """The vendor whose profile names this host; None for an unknown host."""
    for vendor, profile in PROFILES.items():
        if any(host == one or host.endswith(f".{one}") for one in profile["hosts"]):
            return vendor
    return None


def new_habits(host: str, habits: Sequence[str]) -> list[str]:
    """The habits that the profile of the host's vendor lacks; empty without a profile."""
    vendor = profile_of(host)
    return [] if vendor is None else [name for name in habits if name not in PROFILES[vendor]["habits"]]


# --- chat completions ------------------------------------------------------------------------------------------------


def _choices(chunks: Chunks) -> Iterator[Mapping[str, Any]]:
    yield from (choice for chunk in chunks for choice in as_mappings(chunk.get("choices")) if not choice.get("index"))


def _deltas(chunks: Chunks) -> Iterator[Mapping[str, Any]]:
    yield from (as_mapping(choice.get("delta")) for choice in _choices(chunks))


def _pieces(chunks: Chunks) -> list[Mapping[str, Any]]:
    """The fragments of calls, in order."""
    return [call for delta in _deltas(chunks) for call in as_mappings(delta.get("tool_calls"))]


def _runs(chunks: Chunks) -> list[list[Mapping[str, Any]]]:
    """The groups of consecutive fragments with the same index."""
    return [list(run) for _, run in groupby(_pieces(chunks), key=lambda piece: str(piece.get("index")))]


def _called_name(piece: Mapping[str, Any]) -> str:
    return as_text(as_mapping(piece.get("function")).get("name"))


def _has_field(field: str) -> Callable[[Chunks], bool]:
    def shows(chunks: Chunks) -> bool:
        messages = [as_mapping(choice.get(key)) for choice in _choices(chunks) for key in ("delta", "message")]
        return any(one.get(field) for one in messages)

    return shows


def _repeats(chunks: Chunks) -> bool:
    return any(
        piece.get("id") and piece.get("id") == run[0].get("id") and _called_name(piece) == _called_name(run[0]) != ""
        for run in _runs(chunks)
        for piece in run[1:]
    )


def _ids_rotate(chunks: Chunks) -> bool:
    return any(
        piece.get("id") not in (None, "", run[0].get("id")) and not _called_name(piece)
        for run in _runs(chunks)
        for piece in run[1:]
    )


def _one_index(chunks: Chunks) -> bool:
    return any(
        _called_name(piece) and piece.get("index") is not None and piece.get("id") not in (None, "", run[0].get("id"))
        for run in _runs(chunks)
        for piece in run[1:]
    )


def _whole_calls(chunks: Chunks) -> bool:
    pieces = _pieces(chunks)
    return bool(pieces) and all(
        _called_name(piece) and as_text(as_mapping(piece.get("function")).get("arguments")).endswith("}")
        for piece in pieces
    )


def _finish_reasons(chunks: Chunks) -> list[str]:
    return [reason for choice in _choices(chunks) if (reason := as_text(choice.get("finish_reason")))]


def _has_calls(chunks: Chunks) -> bool:
    messages = [as_mapping(choice.get(key)) for choice in _choices(chunks) for key in ("delta", "message")]
    return any(one.get("tool_calls") for one in messages)


def _usage_beside_choices(chunks: Chunks) -> bool:
    return any(chunk.get("usage") and chunk.get("choices") for chunk in chunks if not _is_whole(chunk))


def _is_whole(chunk: Mapping[str, Any]) -> bool:
    return any("message" in choice and "delta" not in choice for choice in as_mappings(chunk.get("choices")))


_CHAT: Mapping[str, Callable[[Chunks], bool]] = {
    "calls have no index": lambda chunks: any(piece.get("index") is None for piece in _pieces(chunks)),
    "calls share one index": _one_index,
    "calls come whole": _whole_calls,
    "ids and names repeat": _repeats,
    "ids rotate": _ids_rotate,
    "calls end with stop": lambda chunks: _has_calls(chunks) and _finish_reasons(chunks)[-1:] == ["stop"],
    "finish repeats": lambda chunks: len(_finish_reasons(chunks)) > 1,
    "finish never comes": lambda chunks: len(chunks) > 1 and not _finish_reasons(chunks),
    "first chunk has no choices": lambda chunks: len(chunks) > 1 and not as_list(chunks[0].get("choices")),
    "usage beside choices": _usage_beside_choices,
    "usage in every chunk": lambda chunks: (
        len(chunks) > 3 and sum(bool(c.get("usage")) for c in chunks) > len(chunks) / 2
    ),
    "content is a list": lambda chunks: any(isinstance(delta.get("content"), list) for delta in _deltas(chunks)),
    "reasoning in reasoning_content": _has_field("reasoning_content"),
    "reasoning in reasoning": _has_field("reasoning"),
    "reasoning in reasoning_details": _has_field("reasoning_details"),
    "message beside the delta": lambda chunks: any("message" in one and "delta" in one for one in _choices(chunks)),
    "text beside the delta": lambda chunks: any("text" in one and "delta" in one for one in _choices(chunks)),
}

# --- the other protocols ---------------------------------------------------------------------------------------------


def _response_ids_rotate(chunks: Chunks) -> bool:
    return len({response["id"] for chunk in chunks if (response := as_mapping(chunk.get("response"))).get("id")}) > 1


def _output(chunks: Chunks) -> list[Mapping[str, Any]]:
    last = as_mapping(chunks[-1].get("response") or chunks[-1]) if chunks else {}
    return as_mappings(last.get("output"))


def _deltas_without_place(chunks: Chunks) -> bool:
    return any(as_text(chunk.get("type")).endswith(".delta") and "output_index" not in chunk for chunk in chunks)


_RESPONSES: Mapping[str, Callable[[Chunks], bool]] = {
    "ids rotate": _response_ids_rotate,
    "messages have a phase": lambda chunks: any(item.get("phase") for item in _output(chunks)),
    "reasoning is encrypted": lambda chunks: any(item.get("encrypted_content") for item in _output(chunks)),
    "deltas have no output_index": _deltas_without_place,
    "output of the end is empty": lambda chunks: len(chunks) > 1 and not _output(chunks),
}
_MESSAGES: Mapping[str, Callable[[Chunks], bool]] = {
    "no message_stop": lambda chunks: len(chunks) > 1 and all(chunk.get("type") != "message_stop" for chunk in chunks),
    "no blocks": lambda chunks: len(chunks) > 1 and all("content_block" not in chunk for chunk in chunks),
    "calls in the vendor's own code": lambda chunks: any(
        as_text(as_mapping(chunk.get("content_block")).get("type")).startswith("server_tool") for chunk in chunks
    ),
}


def _gemini_finishes(chunks: Chunks) -> list[Any]:
    return [
        one["finishReason"] for c in chunks for one in as_mappings(c.get("candidates"))[:1] if one.get("finishReason")
    ]


def _gemini_parts(chunks: Chunks) -> list[Mapping[str, Any]]:
    first = [as_mapping(one.get("content")) for c in chunks for one in as_mappings(c.get("candidates"))[:1]]
    return [part for content in first for part in as_mappings(content.get("parts"))]


_GEMINI: Mapping[str, Callable[[Chunks], bool]] = {
    "finish repeats": lambda chunks: len(_gemini_finishes(chunks)) > 1,
    "signature beside an empty text": lambda chunks: any(
        part.get("thoughtSignature") and part.get("text") == "" for part in _gemini_parts(chunks)
    ),
    "calls are signed": lambda chunks: any(
        part.get("thoughtSignature") and part.get("functionCall") for part in _gemini_parts(chunks)
    ),
    "calls come in pieces": lambda chunks: any(
        as_mapping(part.get("functionCall")).get("willContinue") for part in _gemini_parts(chunks)
    ),
}
_HABITS: Mapping[WireProtocol, Mapping[str, Callable[[Chunks], bool]]] = {
    "chat": _CHAT,
    "responses": _RESPONSES,
    "messages": _MESSAGES,
    "gemini": _GEMINI,
    "converse": {},
}

# --- habits visible only in a stream's bytes ----------------------------------------------------------------------------


def _comments(exchange: Exchange, chunks: Chunks, protocol: WireProtocol) -> bool:
    return exchange.body.startswith(b":") or b"\n:" in exchange.body


def _no_marker(exchange: Exchange, chunks: Chunks, protocol: WireProtocol) -> bool:
    return protocol == "chat" and b"[DONE]" not in exchange.body


def _other_marker(exchange: Exchange, chunks: Chunks, protocol: WireProtocol) -> bool:
    return protocol != "chat" and b"data: [DONE]" in exchange.body


def _error(exchange: Exchange, chunks: Chunks, protocol: WireProtocol) -> bool:
    return any(chunk.get("error") for chunk in chunks)


_STREAMED: Mapping[str, Callable[[Exchange, Chunks, WireProtocol], bool]] = {
    "comments keep the line open": _comments,
    "no [DONE]": _no_marker,
    "[DONE] behind the end": _other_marker,
    "errors behind a 200": _error,
}
