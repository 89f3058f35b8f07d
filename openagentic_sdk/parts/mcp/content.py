"""Convert a server's content to what a model reads: text, with images, audio and documents attached.

The text is untrusted, so invisible characters are removed. Links are not fetched. Content that cannot be shown is described
in one line; parts of unknown types, and structured content beside text, are also stored unchanged, up to `MAX_KEPT_BYTES`.
"""

from __future__ import annotations

import binascii
import json
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from ...errors import InvalidEventError
from ...ground.loose import as_list, as_mapping, as_text
from ...ground.media import HEAD_BYTES, media_type_of, part_type_of, why_refused
from ...ground.text import without_hidden
from ...ground.threads import run_in_thread
from ...kernel.tool import ToolOutput
from ...serialization import dumps_field
from .definitions import clean_text
from .protocol import size_within

# A larger structure is not stored in addition to the text with the same content.
MAX_KEPT_BYTES = 64 * 1024
# The maximum number of parts that are read from one result.
MAX_PARTS = 10_000
# A result of at most this size (characters, plus eight for each value) is converted on the event loop.
_SHORT = 256 * 1024

_PLAIN_RESULT, _PLAIN_PART = {"content", "resultType"}, {"type", "text"}


class Content:
    """The content of a result, collected part by part: `texts` for the model, `attachments`, and `unknown` parts."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.attachments: list[dict[str, Any]] = []
        self.unknown: list[Any] = []

    @property
    def text(self) -> str:
        """All texts joined."""
        return "\n".join(self.texts) if len(self.texts) != 1 else self.texts[0]

    @property
    def sendable(self) -> list[dict[str, Any]]:
        """The attachments that can be sent to a model, without those of type `other`."""
        return [part for part in self.attachments if part["type"] != "other"]

    def add(self, part: Any) -> None:
        """Add one part of any type."""
        part = as_mapping(part)
        kind, text = part.get("type"), part.get("text")
        if kind == "text":
            self.texts.append(without_hidden(text) if isinstance(text, str) else "")
        elif kind in ("image", "audio"):
            self._add_bytes(as_text(part.get("data")), as_text(part.get("mimeType")), "")
        elif kind == "resource_link":
            words = [clean_text(as_text(part.get(key)), 300) for key in ("name", "uri", "mimeType", "description")]
            self.texts.append(f"[resource {', '.join(word for word in words if word)}]")
        elif kind == "resource":
            self.add_resource(as_mapping(part.get("resource")))
        else:
            self.unknown.append(part)
            self.texts.append(f"[content of the type {clean_text(str(kind), 60)!r}, which cannot be shown]")

    def add_resource(self, resource: Mapping[str, Any]) -> None:
        """Add the contents of a resource: its text, else its bytes."""
        uri = clean_text(as_text(resource.get("uri")), 500)
        if isinstance(resource.get("text"), str):
            self.texts.append(
                f"[{uri}]\n{without_hidden(resource['text'])}" if uri else without_hidden(resource["text"])
            )
        else:
            self._add_bytes(as_text(resource.get("blob")), as_text(resource.get("mimeType")), uri)

    def _add_bytes(self, data: str, media_type: str, name: str) -> None:
        media_type, title = clean_text(media_type, 100), f"{clean_text(media_type, 100)} {name}".strip() or "bytes"
        try:
            # Strict, as vendors are: otherwise other characters would be skipped here, and the request would fail there.
            raw = binascii.a2b_base64(data, strict_mode=True)
        except ValueError:
            self.texts.append(f"[{title}: its data is not base64]")
            return
        # Determined by the first bytes: models reject a request whose image is not of the declared type.
        media_type = media_type_of(raw[:HEAD_BYTES]) or media_type or "application/octet-stream"
        if part_type_of(media_type) == "file" and media_type != "application/pdf":
            decoded = _text_of(raw)
            if decoded is not None:
                self.texts.append(f"[{name}]\n{decoded}" if name else decoded)
                return
        part_type = part_type_of(media_type)
        is_known = media_type_of(raw[:HEAD_BYTES]) is not None
        refusal = why_refused(part_type, raw) if is_known else "no model accepts this kind"
        part = {"type": part_type if refusal is None else "other", "media_type": media_type, "data": data}
        self.attachments.append({**part, "name": name} if name else part)
        if refusal is not None:
            self.texts.append(
                f"[{media_type}{' ' + name if name else ''}, {len(raw):,} bytes, is not shown: {refusal}]"
            )


def read_result(result: Mapping[str, Any]) -> ToolOutput | str:
    """Convert a tool's result. The model receives `content`, or the structured content if `content` is empty."""
    if (plain := _plain_text(result)) is not None:
        return without_hidden(plain)
    parts = as_list(result.get("content"))
    content = Content()
    for part in parts[:MAX_PARTS]:
        content.add(part)
    if len(parts) > MAX_PARTS:
        content.texts.append(f"[{len(parts) - MAX_PARTS:,} more parts of this result are left out]")
    facts: dict[str, Any] = {}
    if content.unknown and _can_be_kept(content.unknown, _json_text(content.unknown)):
        facts["unknown"] = content.unknown
    structure = result.get("structuredContent")
    text = content.text
    if "structuredContent" in result:
        structure_text = _json_text(structure)
        if not text.strip() and not content.attachments:
            text = without_hidden(structure_text)
        elif _can_be_kept(structure, structure_text):
            facts["structured_content"] = structure
    meta = {"mcp": facts} if facts else None
    return ToolOutput(text, meta, is_error=result.get("isError") is True, attachments=content.attachments)


def _plain_text(result: Mapping[str, Any]) -> str | None:
    """The text of a result that consists of one plain text, as most do; None for any other result."""
    parts = as_list(result.get("content"))
    if len(parts) != 1 or not result.keys() <= _PLAIN_RESULT:
        return None
    [part] = parts
    is_plain = part.__class__ is dict and part.keys() == _PLAIN_PART and part["type"] == "text"
    return part["text"] if is_plain and isinstance(part["text"], str) else None


def _can_be_kept(structure: Any, text: str) -> bool:
    """Whether a structure, whose JSON is `text`, is small enough to store, and not nested too deeply for an event."""
    if len(text) > MAX_KEPT_BYTES:
        return False
    with suppress(InvalidEventError):
        dumps_field({"mcp": {"": structure}})
        return True
    return False


async def read_long_result(result: Mapping[str, Any]) -> ToolOutput | str:
    """Like `read_result`; a long result is converted in a thread, so that it does not block the event loop."""
    plain = _plain_text(result)
    if plain is not None and len(plain) <= _SHORT:
        return without_hidden(plain)
    if size_within(result, _SHORT) is not None:
        return read_result(result)
    return await run_in_thread(partial(read_result, result), name="openagentic-mcp-result")


def _json_text(value: Any) -> str:
    """Return the value as JSON; if it is nested too deeply, the beginning of its `repr`.

    It is encoded in pieces, because the C encoder blocks all threads.
    """
    try:
        return "".join(json.JSONEncoder(ensure_ascii=False).iterencode(value))
    except RecursionError:
        return repr(value)[:MAX_KEPT_BYTES]


def _text_of(raw: bytes) -> str | None:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else without_hidden(text)
