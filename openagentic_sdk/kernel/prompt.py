"""What is said to the model: text, with pictures, documents and sound beside it.

A part is `{"type": "text", "text"}`, or `{"type": "image" | "file" | "audio"}` with one of `path`, `data` (base64) and
`url`, and perhaps a `media_type` and a `name`. Bytes go to blobs beside the log, once, and the event names them by digest;
only a request that leaves holds them again (`parts.attachments`). A `path` is read on this machine, after the gate allowed
it as a read; whoever passes on what others wrote (a server, an editor, a model) checks it with `paths=False` first. A `url`
is never fetched here.
"""

from __future__ import annotations

import binascii
import hashlib
from collections.abc import AsyncIterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from ..errors import OptionsError
from ..frozen import frozen
from ..media import HEAD_BYTES, media_type_of, part_type_of, why_refused
from ..sessions.request import json_sha256

Parts = Sequence[Mapping[str, Any]]
_MEDIA = ("image", "file", "audio")
_SOURCES = ("path", "data", "url")
# More than any vendor takes: a file is not read any further.
_MAX_FILE_BYTES = 64 << 20
_MAX_TEXT_BYTES = 256 << 10


@frozen
class MediaPart:
    """A picture, document or sound: its bytes, or where they are."""

    type: str
    name: str | None = None
    media_type: str | None = None
    data: bytes | None = None
    path: str | None = None
    url: str | None = None


@frozen
class Said:
    """A prompt as it was given. `parts` are let go of as they are stored; `attachments` are stored already.

    `request_id` names the prompt or message within its session: one that is in the log is not taken again. `may_answer` is
    False for a sender who may answer no question, and so may end none by saying something else.
    """

    text: str
    parts: list[MediaPart] = field(default_factory=list)
    attachments: Sequence[Mapping[str, Any]] = ()
    request_id: str | None = None
    may_answer: bool = True


# None goes on with what is in the log; an iterable gives prompts that run one after the other.
OnePrompt = str | Parts | Said
Prompts = AsyncIterable[OnePrompt | Mapping[str, Any]]
Prompt = OnePrompt | Prompts | None


def read_prompt(prompt: Any, *, paths: bool = True) -> Said:
    """One prompt, checked. Raises `OptionsError` that names the part."""
    if isinstance(prompt, Said):
        return prompt
    if isinstance(prompt, Mapping):
        given = prompt.get("text") if isinstance(prompt.get("text"), str) else prompt.get("content")
        if isinstance(given, str | Sequence):
            return replace(read_prompt(given, paths=paths), may_answer=prompt.get("may_answer") is not False)
    if isinstance(prompt, str):
        return Said(prompt)
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes) or not prompt:
        raise OptionsError(f"a prompt is a str, a list of parts, or a dict with 'text' or 'content', not {prompt!r}")
    texts: list[str] = []
    parts: list[MediaPart] = []
    for number, given in enumerate(prompt, 1):
        if isinstance(given, Mapping) and given.get("type") == "text" and isinstance(given.get("text"), str):
            texts.append(given["text"])
        else:
            parts.append(_read_part(given, f"part {number} of the prompt", paths))
    return Said("\n\n".join(texts), parts)


def prompt_sha256(said: Said) -> str:
    """The digest of a prompt's content, which tells whether a request that is sent again is the same."""
    parts = [{**vars(part), "data": part.data and hashlib.sha256(part.data).hexdigest()} for part in said.parts]
    return json_sha256([said.text, parts, list(said.attachments)])


def _read_part(given: Any, where: str, paths: bool) -> MediaPart:
    if not isinstance(given, Mapping) or given.get("type") not in _MEDIA:
        raise OptionsError(
            f"{where} is a dict whose type is text (with a text), image, file or audio, not {given!r:.200}"
        )
    sources = [name for name in _SOURCES if given.get(name) is not None]
    wrong = [name for name in (*sources, "media_type", "name") if not isinstance(given.get(name, ""), str | None)]
    if len(sources) != 1 or wrong:
        raise OptionsError(
            f"{where} ({given['type']}) needs one of path, data (base64) and url, as a str, and has {sources}"
        )
    if sources == ["path"] and not paths:
        raise OptionsError(
            f"{where} names a file of this machine ({given['path']!r}), which only code here may: send data"
        )
    known = {"type": given["type"], "name": given.get("name"), "media_type": given.get("media_type")}
    if sources != ["data"]:
        return MediaPart(**known, **{sources[0]: given[sources[0]]})
    try:
        data = binascii.a2b_base64(given["data"], strict_mode=True)
    except (ValueError, binascii.Error) as error:
        raise OptionsError(f"{where} ({given['type']}): its data is no base64: {error}") from None
    return checked_part(MediaPart(**known, data=data), where)


def checked_part(part: MediaPart, where: str) -> MediaPart:
    """The part with its media type, when a vendor may take it. Raises `OptionsError`."""
    data = part.data or b""
    found = media_type_of(data[:HEAD_BYTES])
    media_type = found or part.media_type
    if media_type is None:
        raise OptionsError(f"{where} is none of the kinds that its bytes tell: give its media_type")
    if found and part.media_type and found != part.media_type.replace("/jpg", "/jpeg").replace("/mp3", "/mpeg"):
        raise OptionsError(f"{where} says {part.media_type}, and its bytes are {found}")
    if part.type != part_type_of(media_type):
        raise OptionsError(f"{where} says {part.type}, and {media_type} is sent as {part_type_of(media_type)}")
    refusal = why_refused(part.type, data)
    if refusal:
        raise OptionsError(f"{where} ({part.type}, {media_type}) cannot be sent: {refusal}")
    return MediaPart(part.type, part.name, media_type, data)
