"""Prompts from people and programs: text, or a list of text, pictures, documents and sound.

A part is `{"type": "text", "text"}`, or `{"type": "image" | "file" | "audio"}` with one of `path`, `data` (base64) and
`url`, and optionally `media_type` and `name`. Bytes are stored once, in blobs beside the log, and the event refers to them
by digest; only an outgoing request contains them again (`parts.attachments`). A `path` is read on this machine, after the
gate allowed it as a read; code that passes on input from others (a server, an editor, a model) must check it with
`paths=False` first. A `url` is never fetched here.
"""

from __future__ import annotations

import binascii
from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .errors import OptionsError
from .ground.media import HEAD_BYTES, media_type_of, part_type_of, why_refused
from .kernel.prompt import MediaPart, Said

PromptParts = Sequence[Mapping[str, Any]]
# None continues from the log; an iterable yields prompts that run one after the other.
OnePrompt = str | PromptParts | Said
Prompt = OnePrompt | AsyncIterable[OnePrompt | Mapping[str, Any]] | None
_MEDIA = ("image", "file", "audio")
_SOURCES = ("path", "data", "url")


def read_prompts(prompt: Prompt) -> Said | AsyncIterator[Said] | None:
    """Check the prompt of a run, None included. Raises an `OptionsError` that names the invalid part; an iterable's prompts
    are checked as they arrive.
    """
    if prompt is None:
        return None
    return _each(prompt) if isinstance(prompt, AsyncIterable) else read_prompt(prompt)


async def _each(prompts: AsyncIterable[Any]) -> AsyncIterator[Said]:
    async for prompt in prompts:
        yield read_prompt(prompt)


def read_prompt(prompt: Any, *, paths: bool = True) -> Said:
    """Check one prompt; without `paths`, it may not name files of this machine. Raises an `OptionsError` that names the
    invalid part.
    """
    if isinstance(prompt, Said):
        return prompt
    if isinstance(prompt, Mapping):
        item = prompt.get("text") if isinstance(prompt.get("text"), str) else prompt.get("content")
        if isinstance(item, str | Sequence):
            typed = prompt.get("typed")
            typed = typed if isinstance(typed, str) else None
            message = read_prompt(item, paths=paths)
            return replace(message, may_answer=prompt.get("may_answer") is not False, typed=typed)
    if isinstance(prompt, str):
        return Said(prompt, names_files=paths)
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes) or not prompt:
        raise OptionsError(
            f"a prompt must be a str, a non-empty list of parts, or a dict with 'text' or 'content', not {prompt!r:.200}"
        )
    texts: list[str] = []
    parts: list[MediaPart] = []
    for number, item in enumerate(prompt, 1):
        if isinstance(item, Mapping) and item.get("type") == "text" and isinstance(item.get("text"), str):
            texts.append(item["text"])
        else:
            parts.append(_read_part(item, f"part {number} of the prompt", paths))
    return Said("\n\n".join(texts), parts, names_files=paths)


def _read_part(part: Any, where: str, paths: bool) -> MediaPart:
    if not isinstance(part, Mapping) or part.get("type") not in _MEDIA:
        advice = ""
        if isinstance(part, Mapping) and "role" in part:
            advice = ": a session has its earlier messages; pass those of another one as Agent.run(message_history=...)"
        raise OptionsError(
            f"{where} must be a dict whose type is text (with a string), image, file or audio, not {part!r:.200}{advice}"
        )
    sources = [name for name in _SOURCES if part.get(name) is not None]
    wrong = [name for name in (*sources, "media_type", "name") if not isinstance(part.get(name, ""), str | None)]
    if wrong:
        value = part[wrong[0]]
        raise OptionsError(f"{where} ({part['type']}): {wrong[0]} must be a string, not {value!r:.100}")
    if len(sources) != 1:
        has = " and ".join(sources) or "none of them"
        raise OptionsError(f"{where} ({part['type']}) needs exactly one of path, data (base64) and url, but has {has}")
    if sources == ["path"] and not paths:
        raise OptionsError(
            f"{where} names a file of this machine ({part['path']!r}), which only local code may do: send data"
        )
    fields = {"type": part["type"], "name": part.get("name"), "media_type": part.get("media_type")}
    if sources != ["data"]:
        return MediaPart(**fields, **{sources[0]: part[sources[0]]})
    try:
        data = binascii.a2b_base64(part["data"], strict_mode=True)
    except (ValueError, binascii.Error) as error:
        raise OptionsError(f"the data of {where} ({part['type']}) is not base64: {error}") from None
    return checked_part(MediaPart(**fields, data=data), where)


def checked_part(part: MediaPart, where: str) -> MediaPart:
    """Return the part with the media type that its bytes show, otherwise the declared one.

    Raises `OptionsError` if there is neither, if the bytes contradict the declaration, or if vendors would refuse them.
    """
    data = part.data or b""
    real_type = media_type_of(data[:HEAD_BYTES])
    media_type = real_type or part.media_type
    if media_type is None:
        raise OptionsError(f"the type of {where} cannot be detected from its bytes: give its media_type")
    if real_type and part.media_type and real_type != part.media_type.replace("/jpg", "/jpeg").replace("/mp3", "/mpeg"):
        raise OptionsError(f"{where} declares {part.media_type}, but its bytes are {real_type}")
    if part.type != part_type_of(media_type):
        raise OptionsError(f"{where} declares {part.type}, but {media_type} is sent as {part_type_of(media_type)}")
    refusal = why_refused(part.type, data)
    if refusal:
        raise OptionsError(f"{where} ({part.type}, {media_type}) cannot be sent: {refusal}")
    return MediaPart(part.type, part.name, media_type, data)
