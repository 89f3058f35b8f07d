"""What is said to the model: text, with pictures, documents and sound beside it.

A part is `{"type": "text", "text"}`, or `{"type": "image" | "file" | "audio"}` with one of `path`, `data` (base64) and
`url`, and perhaps a `media_type` and a `name`. Bytes go to blobs beside the log, once, and the event names them by digest;
only a request that leaves holds them again. A `path` is read on this machine, after the gate allowed it as a read; whoever
passes on what others wrote (a server, an editor, a model) checks it with `paths=False` first. A `url` is never fetched here.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import AsyncIterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from ..errors import OptionsError, StorageError
from ..events import ToolUse, UserMessage
from ..files import iter_bytes, open_file, read_at_most
from ..frozen import frozen
from ..media import HEAD_BYTES, media_type_of, part_type_of, why_refused
from ..threads import run_in_thread
from ..tools.files.workspace import resolve_path
from .agent import Run
from .recorder import off_loop
from .tool_call import ask_gate
from .tool_output import put_blob

Parts = Sequence[Mapping[str, Any]]
_MEDIA = ("image", "file", "audio")
_SOURCES = ("path", "data", "url")
# More than any vendor takes: a file is not read any further.
_MAX_FILE_BYTES = 64 << 20
_MAX_TEXT_BYTES = 256 << 10


@frozen
class Part:
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

    `request_id` names a message to a run that goes on: one that is in the log is not taken again. `may_answer` is False for
    a sender who may answer no question, and so may end none by saying something else.
    """

    text: str
    parts: list[Part] = field(default_factory=list)
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
    parts: list[Part] = []
    for number, given in enumerate(prompt, 1):
        if isinstance(given, Mapping) and given.get("type") == "text" and isinstance(given.get("text"), str):
            texts.append(given["text"])
        else:
            parts.append(_read_part(given, f"part {number} of the prompt", paths))
    return Said("\n\n".join(texts), parts)


def _read_part(given: Any, where: str, paths: bool) -> Part:
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
        return Part(**known, **{sources[0]: given[sources[0]]})
    try:
        data = binascii.a2b_base64(given["data"], strict_mode=True)
    except (ValueError, binascii.Error) as error:
        raise OptionsError(f"{where} ({given['type']}): its data is no base64: {error}") from None
    return _checked(Part(**known, data=data), where)


def _checked(part: Part, where: str) -> Part:
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
    return Part(part.type, part.name, media_type, data)


async def store_message(
    run: Run, said: Said, text: str, *, origin: str = "user", request_id: str | None = None
) -> UserMessage:
    """The event of a prompt, its parts' bytes stored. `text` is the prompt's as hooks and commands left it.

    Raises `OptionsError` for a file that may not or cannot be sent.
    """
    attachments = list(said.attachments)
    number = 0
    while said.parts:
        part, number = said.parts.pop(0), number + 1
        if part.path is not None:
            read = await _read_file(run, part, part.path, number)
            if isinstance(read, str):
                text += read
                continue
            part = read
        named = {"name": part.name} if part.name else {}
        if part.data is None:
            kind = {"media_type": part.media_type} if part.media_type else {}
            attachments.append({"type": part.type, "url": part.url, **kind, **named})
            continue
        stored = {"size": len(part.data), "sha256": await put_blob(run, part.data)}
        attachments.append({"type": part.type, "media_type": part.media_type, **named, **stored})
    return UserMessage(text, request_id=request_id, origin=origin, attachments=attachments)


async def _read_file(run: Run, part: Part, path: str, number: int) -> Part | str:
    """A file that a part names, once the gate allows to read it; a text file as text for the prompt."""
    use = ToolUse(f"attachment:{os.urandom(8).hex()}", "Read", {"file_path": path})
    approval = await ask_gate(run, run.agent.gate, use, "read", parks=False)
    if not approval.allowed:
        raise OptionsError(f"{path} is not sent: {approval.reason}")

    def read() -> bytes | None:
        with open_file(resolve_path(os.path.expanduser(path), run.agent.cwd).real) as fd:
            return read_at_most(iter_bytes(fd), _MAX_FILE_BYTES)

    try:
        data: bytes | None = await run_in_thread(read)
    except OSError as error:
        raise OptionsError(f"{path} is not sent: {error.strerror or error}") from None
    if data is None:
        raise OptionsError(f"{path} is not sent: it has more than {_MAX_FILE_BYTES:,} bytes")
    name = part.name or os.path.basename(path)
    found = media_type_of(data[:HEAD_BYTES])
    if found is None and part.media_type is None and len(data) <= _MAX_TEXT_BYTES and b"\0" not in data:
        try:
            return f"\n\nThe file {path}:\n{data.decode()}"
        except UnicodeDecodeError:
            pass
    kind = part_type_of(found) if found and part.type == "file" else part.type
    return _checked(Part(kind, name, part.media_type, data), f"{path}, part {number} of the prompt,")


async def with_data(run: Run, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The messages with the bytes, as base64, of the parts that name a blob; a blob that is gone is said in words."""
    has_parts = any(isinstance(message.get("content"), list) for message in messages)
    if not run.agent.sends_data or not has_parts:
        return messages
    written = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list) and any("sha256" in part for part in content):
            message = {**message, "content": [await _part_with_data(run, part) for part in content]}
        written.append(message)
    return written


async def _part_with_data(run: Run, part: Mapping[str, Any]) -> Mapping[str, Any]:
    if "sha256" not in part:
        return part
    shown = {key: part[key] for key in ("type", "media_type", "name") if key in part}

    def read_base64() -> str:
        return base64.b64encode(run.agent.store.read_blob(run.session_id, part["sha256"])).decode("ascii")

    try:
        return {**shown, "data": await off_loop(True, read_base64)}
    except StorageError:
        name = part.get("name") or part["sha256"]
        return {"type": "text", "text": f"[{part['type']} {name} was here and is not stored any more]"}
