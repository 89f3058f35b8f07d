"""Store the images, documents and audio of prompts and results once, beside the log, and insert them into model requests."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import OptionsError, StorageError
from ..events import ToolResult, ToolUse
from ..ground.files import iter_bytes, open_file, read_at_most
from ..ground.media import HEAD_BYTES, media_type_of, part_type_of
from ..ground.threads import run_in_thread
from ..kernel.part import IncomingPrompt, Part
from ..kernel.prompt import MediaPart
from ..kernel.recorder import off_loop
from ..kernel.tool_call import ask_gate
from ..kernel.tool_output import put_blob
from ..prompts import checked_part
from ..providers.wrappers.abilities import MEDIA_KINDS, takes
from ..sessions.folds.features.untrusted import UntrustedFold, is_outside, short_source
from ..tools.files.workspace import resolve_path

# More than any vendor accepts; reading a file stops here.
_MAX_FILE_BYTES = 64 << 20
_MAX_TEXT_BYTES = 256 << 10


class Attachments(Part):
    """A part that stores images, documents and audio as blobs of the session, and inserts them into model requests."""

    async def fill_prompt(self, prompt: IncomingPrompt) -> None:
        """Replace a prompt's parts with attachments that name a stored blob or a URL; append a text file's content as text.

        Raises `OptionsError` for a file that must not or cannot be sent.
        """
        cwd, *roots = self.run.view.fold(UntrustedFold).place
        number = 0
        while prompt.said.parts:
            part, number = prompt.said.parts.pop(0), number + 1
            if part.path is not None:
                if prompt.origin == "user" and is_outside(part.path, cwd, roots):
                    prompt.sources.append(short_source(f"file: {part.path}"))
                content = await self._read_file(part, part.path, number)
                if isinstance(content, str):
                    prompt.behind += content
                    continue
                part = content
            name_field = {"name": part.name} if part.name else {}
            if part.data is None:
                kind = {"media_type": part.media_type} if part.media_type else {}
                prompt.attachments.append({"type": part.type, "url": part.url, **kind, **name_field})
                continue
            blob_fields = {"size": len(part.data), "sha256": await put_blob(self.run, part.data)}
            prompt.attachments.append({"type": part.type, "media_type": part.media_type, **name_field, **blob_fields})

    async def _read_file(self, part: MediaPart, path: str, number: int) -> MediaPart | str:
        """Read the file that a part names; return the part with its data, or a text file's content to append to the prompt.

        Raises `OptionsError` if the gate denies it, or if the file cannot be read, is too large, or has content that cannot
        be sent.
        """
        run = self.run
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
            raise OptionsError(f"{path} is not sent: it exceeds {_MAX_FILE_BYTES:,} bytes")
        name = part.name or os.path.basename(path)
        media_type = media_type_of(data[:HEAD_BYTES])
        if media_type is None and part.media_type is None and len(data) <= _MAX_TEXT_BYTES and b"\0" not in data:
            try:
                return f"\n\nThe file {path}:\n{data.decode()}"
            except UnicodeDecodeError:
                pass
        kind = part_type_of(media_type) if media_type and part.type == "file" else part.type
        return checked_part(MediaPart(kind, name, part.media_type, data), f"{path}, part {number} of the prompt,")

    async def send(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Return the messages with the base64 data of each part that names a blob; a note replaces an unreadable blob."""
        has_parts = any(isinstance(message.get("content"), list) for message in messages)
        if not has_parts:
            return messages
        full_messages = []
        for message in messages:
            content = message.get("content")
            if isinstance(content, list) and any("sha256" in part for part in content):
                message = {**message, "content": [await self._part_with_data(part) for part in content]}
            full_messages.append(message)
        return full_messages

    async def _part_with_data(self, part: Mapping[str, Any]) -> Mapping[str, Any]:
        if "sha256" not in part:
            return part
        fields = {key: part[key] for key in ("type", "media_type", "name") if key in part}

        def read_base64() -> str:
            return base64.b64encode(self.run.agent.store.read_blob(self.run.session_id, part["sha256"])).decode("ascii")

        try:
            return {**fields, "data": await off_loop(True, read_base64)}
        except StorageError:
            name = part.get("name") or part["sha256"]
            return {"type": "text", "text": f"[{part['type']} {name} was here and is no longer stored]"}

    async def store_result(self, result: ToolResult) -> ToolResult:
        """Store the images, documents and audio of a result as blobs; return the result with their digests.

        A note replaces content that the model's endpoint does not accept; the content itself stays stored.
        """
        output, attachments = result.output, [await self._beside_the_log(part) for part in result.attachments]
        if not isinstance(output, str) and isinstance(output, Mapping) and output.get("type") in MEDIA_KINDS:
            output = self._as_accepted(await self._beside_the_log(output))
        if attachments:
            originals, attachments = attachments, [self._as_accepted(part) for part in attachments]
            notes = [f"[{new['note']}]" for new, old in zip(attachments, originals, strict=True) if new is not old]
            output = "\n".join([output, *notes]) if notes and isinstance(output, str) else output
        if output is result.output and not attachments:
            return result
        return replace(result, output=output, attachments=attachments)

    def _as_accepted(self, part: Mapping[str, Any]) -> Mapping[str, Any]:
        """The part if the endpoint accepts it, else the part with type `other` and a note."""
        kind, media_type = str(part.get("type")), str(part.get("media_type"))
        is_sound_of_use = kind != "audio" or media_type in ("audio/wav", "audio/x-wav", "audio/mpeg", "audio/mp3")
        if kind == "other" or (is_sound_of_use and takes(self.run.agent.provider, kind)):
            return part
        note = f"the {kind} ({media_type}) is stored but not sent: this model's endpoint does not accept this kind"
        return {**part, "type": "other", "note": note}

    async def _beside_the_log(self, part: Mapping[str, Any]) -> Mapping[str, Any]:
        """Store a part's `data` as a blob; return the part with the blob's size and digest, or unchanged without valid
        base64.
        """
        fields = dict(part)
        try:
            data = base64.b64decode(fields.pop("data"), validate=True)
        except (KeyError, TypeError, ValueError):
            return part
        return {**fields, "size": len(data), "sha256": await put_blob(self.run, data)}
