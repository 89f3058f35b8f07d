"""The parts of a message: text, images, files and audio, in one form that each protocol translates into its own.

    {"type": "text", "text": "..."}
    {"type": "image" | "file" | "audio", "media_type": "image/png", "name"?: "a.png", "data": base64 | "url": "https://..."}

Parts in chat-completions form (`image_url`, `input_audio`, `file`) are read too. A protocol that cannot carry a part raises
the error of `cannot_carry` before it sends anything. A URL is passed on and never fetched here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import OptionsError
from ..ground.frozen import frozen
from ..ground.loose import as_mapping, as_text
from .wrappers.abilities import MEDIA_KINDS

_FORMATS = {"wav": "audio/wav", "mp3": "audio/mpeg"}
_SHORT_FORMATS = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}
_USUAL = {"image": "image/png", "file": "application/pdf", "audio": "audio/wav"}


@frozen
class ContentPart:
    """One part of a message: exactly one of `text`, `data` (base64), `url` and `file_id` (a file at the vendor).

    `detail` is the resolution at which the model looks at an image (`low`, `high`, `auto`); empty leaves it to the
    endpoint.
    """

    kind: str
    text: str = ""
    media_type: str = ""
    name: str | None = None
    data: str | None = None
    url: str | None = None
    file_id: str | None = None
    detail: str = ""

    @property
    def data_url(self) -> str:
        """The part's URL, or a `data:` URL that contains its data (RFC 2397)."""
        return self.url or f"data:{self.media_type};base64,{self.data}"

    @property
    def audio_format(self) -> str | None:
        """`wav` or `mp3`, the two formats of chat completions; None for any other audio."""
        return _SHORT_FORMATS.get(self.media_type)

    def __str__(self) -> str:
        what = self.name or self.url or self.media_type
        return f"the {self.kind} part {what[:100]!r}" if what else f"the {self.kind} part"


def read_parts(content: Any) -> list[ContentPart]:
    """Read the parts of a message's content, without empty text. Raises `OptionsError` for an invalid part."""
    if content is None:
        return []
    if isinstance(content, str):
        return [ContentPart("text", content)] if content else []
    if not isinstance(content, Sequence) or isinstance(content, bytes | bytearray):
        raise OptionsError(f"a message's content must be a string or a list of parts, not {type(content).__name__}")
    parts = [read_part(item) for item in content]
    return [part for part in parts if part.kind != "text" or part.text]


def read_part(item: Any) -> ContentPart:
    """Read a part in this module's form or that of chat completions. Raises `OptionsError`, which names the fault."""
    if isinstance(item, str):
        return ContentPart("text", item)
    if not isinstance(item, Mapping):
        raise OptionsError(f"a part of a message must be an object with a type, not {type(item).__name__}")
    kind = item.get("type")
    if kind in ("text", "input_text", "output_text"):
        return ContentPart("text", str(item.get("text") or ""))
    if kind == "image_url" or (kind == "input_image" and item.get("image_url")):
        inner = item.get("image_url")
        image = inner if isinstance(inner, Mapping) else {"url": inner, "detail": item.get("detail")}
        return replace(_from_url("image", str(image.get("url") or "")), detail=as_text(image.get("detail")))
    if kind == "input_audio":
        inner = as_mapping(item.get("input_audio"))
        media_type = _FORMATS.get(str(inner.get("format")), f"audio/{inner.get('format') or 'wav'}")
        return ContentPart("audio", media_type=media_type, data=_base64_of("audio", inner.get("data")))
    if kind == "file" and isinstance(item.get("file"), Mapping):
        inner, name = item["file"], item["file"].get("filename")
        if inner.get("file_id"):
            return ContentPart("file", name=name, file_id=str(inner["file_id"]))
        return _from_url("file", str(inner.get("file_data") or ""), name)
    if kind not in MEDIA_KINDS:
        raise OptionsError(f"a part of a message must be text, image, file or audio, not {kind!r:.100}")
    name = str(item["name"]) if item.get("name") else None
    detail = as_text(item.get("detail"))
    if item.get("url"):
        part = _from_url(kind, str(item["url"]), name)
        return replace(part, media_type=str(item.get("media_type") or part.media_type), detail=detail)
    media_type = str(item.get("media_type") or _USUAL[kind])
    return ContentPart(kind, "", media_type, name, _base64_of(kind, item.get("data")), detail=detail)


def cannot_carry(
    part: ContentPart, where: str, instead: str = "remove it, or use a model that accepts it"
) -> OptionsError:
    """The error for a part that has no form in `where`."""
    return OptionsError(f"{part} cannot be sent to {where}: {instead}")


def _from_url(kind: str, url: str, name: str | None = None) -> ContentPart:
    match = re.fullmatch(r"data:([\w.+-]+/[\w.+-]+)(?:;[\w=.+-]+)*;base64,(.*)", url, re.S)
    if match is not None:
        return ContentPart(kind, "", match[1], name, _base64_of(kind, match[2]))
    if not url.startswith(("https://", "http://", "gs://", "s3://")):
        raise OptionsError(f"the {kind} part needs data in base64 or an http, https, gs or s3 URL, not {url[:40]!r}")
    return ContentPart(kind, "", "", name, None, url)


def _base64_of(kind: str, data: Any) -> str:
    # Checked here, where the part can be named: vendors answer invalid base64 with a 400 about the whole request.
    if not isinstance(data, str) or not data or re.fullmatch(r"[A-Za-z0-9+/]+={0,2}", data) is None:
        raise OptionsError(f"the {kind} part needs data in valid base64 or a url")
    return data
