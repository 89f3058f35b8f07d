"""Prompts as the kernel accepts them: text, with pictures, documents and sounds. The module `prompts` parses them."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from ..ground.frozen import frozen
from ..sessions.request import json_sha256


@frozen
class MediaPart:
    """A picture, document or sound: its bytes, or their location."""

    type: str
    name: str | None = None
    media_type: str | None = None
    data: bytes | None = None
    path: str | None = None
    url: str | None = None


@frozen
class Said:
    """A prompt as received. `parts` are removed as they are stored; `attachments` are already stored. `typed` is the
    portion of the text that a person wrote, None for all of it, and `sources` names the outside origins of the rest.

    `request_id` identifies the prompt or message within its session: one that is already in the log is not accepted again.
    `may_answer` is False for a sender who may not answer questions, and so may not close one by sending something else.
    `names_files` is False if the text cannot attach files of this machine.
    """

    text: str
    parts: list[MediaPart] = field(default_factory=list)
    attachments: Sequence[Mapping[str, Any]] = ()
    request_id: str | None = None
    may_answer: bool = True
    names_files: bool = True
    typed: str | None = None
    sources: Sequence[str] = ()


# Prompts to run one after the other.
Prompts = AsyncIterable[Said]


def prompt_sha256(prompt: Said) -> str:
    """The digest of a prompt's content; it shows whether a repeated request is the same."""
    parts = [{**vars(part), "data": part.data and hashlib.sha256(part.data).hexdigest()} for part in prompt.parts]
    return json_sha256([prompt.text, parts, list(prompt.attachments)])
