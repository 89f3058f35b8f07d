"""What a run kept of its view behind a compaction, as bytes that a store keeps beside a log: a resume reads from there on.

The text says which place of the log it speaks of, and a keyed digest says that this installation wrote it for this session.
What an archive brings, what was kept for another session, and what was edited is not used. It is a cache: it may be deleted,
and damage of the log before that place is not noticed by a resume; finding it is what verifying is for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import InvalidEventError, OptionsError
from ..serialization import dumps_json, loads_json
from .folds.view import KeptView
from .seal import Seal

# A view that weighs more is folded from the log again: what reads a cache never reads much.
MAX_CHECKPOINT_BYTES = 1 << 24
_PURPOSE = b"openagentic-sdk checkpoint"


def seal_view(seal: Seal, session_id: str, place: Mapping[str, Any], kept: KeptView) -> bytes | None:
    """The bytes to keep; None where there is no usable key, or too much to keep. `place` is JSON."""
    try:
        body = dumps_json({**place, "kept": kept.to_dict()}).encode("ascii")
        data = seal.digest(_PURPOSE, _name(session_id), body).encode("ascii") + b"\n" + body + b"\n"
    except (OptionsError, InvalidEventError):
        return None
    return data if len(data) <= MAX_CHECKPOINT_BYTES else None


def open_view(seal: Seal, session_id: str, data: bytes | None) -> tuple[Mapping[str, Any], KeptView] | None:
    """The place and the view that were kept; None for what this installation did not write for this session."""
    digest, _, rest = (data or b"").partition(b"\n")
    body = rest.removesuffix(b"\n")
    try:
        if not body or not seal.matches(digest.decode("ascii"), _PURPOSE, _name(session_id), body):
            return None
        known = loads_json(body)
        kept = KeptView.from_dict(known["kept"])
    except (OptionsError, InvalidEventError, UnicodeDecodeError):
        return None
    return None if kept is None else (known, kept)


def _name(session_id: str) -> bytes:
    return session_id.encode("utf-8", "surrogatepass")
