"""Prompts as the kernel takes them: text, with pictures, documents and sound beside it. `prompts` reads them."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from ..ground.frozen import frozen
from ..sessions.request import json_sha256


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
    """A prompt as it was given. `parts` are let go of as they are stored; `attachments` are stored already. `typed` is what
    of the text a person wrote, None for all of it.

    `request_id` names the prompt or message within its session: one that is in the log is not taken again. `may_answer` is
    False for a sender who may answer no question, and so may end none by saying something else. `names_files` is False for
    one whose text attaches nothing of this machine.
    """

    text: str
    parts: list[MediaPart] = field(default_factory=list)
    attachments: Sequence[Mapping[str, Any]] = ()
    request_id: str | None = None
    may_answer: bool = True
    names_files: bool = True
    typed: str | None = None


# Prompts that run one after the other.
Prompts = AsyncIterable[Said]


def prompt_sha256(said: Said) -> str:
    """The digest of a prompt's content, which tells whether a request that is sent again is the same."""
    parts = [{**vars(part), "data": part.data and hashlib.sha256(part.data).hexdigest()} for part in said.parts]
    return json_sha256([said.text, parts, list(said.attachments)])
