"""A run's view after a compaction, as bytes that a store keeps beside a log, so that a resume reads only from there.

The bytes name their position in the log, and a keyed digest proves that this installation wrote them for this session.
Anything from an archive, from another session, or edited is not used. It is a cache: it may be deleted, and a resume does
not notice damage of the log before that position; finding that is the purpose of verifying.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import InvalidEventError, OptionsError
from ..serialization import dumps_json, loads_json
from .folds.view import KeptView
from .seal import Seal

# A larger view is not cached but folded from the log again, so that a cache file is never large.
MAX_CHECKPOINT_BYTES = 1 << 24
_PURPOSE = b"openagentic-sdk checkpoint"


def seal_view(seal: Seal, session_id: str, place: Mapping[str, Any], kept: KeptView) -> bytes | None:
    """The bytes to keep; None if there is no usable key, or too much to keep. `place` is JSON."""
    try:
        body = dumps_json({**place, "kept": kept.to_dict()}).encode("ascii")
        data = seal.digest(_PURPOSE, _name(session_id), body).encode("ascii") + b"\n" + body + b"\n"
    except (OptionsError, InvalidEventError):
        return None
    return data if len(data) <= MAX_CHECKPOINT_BYTES else None


def open_view(seal: Seal, session_id: str, data: bytes | None) -> tuple[Mapping[str, Any], KeptView] | None:
    """The stored position and view; None if this installation did not write them for this session."""
    digest, _, rest = (data or b"").partition(b"\n")
    body = rest.removesuffix(b"\n")
    try:
        if not body or not seal.matches(digest.decode("ascii"), _PURPOSE, _name(session_id), body):
            return None
        place = loads_json(body)
        view = KeptView.from_dict(place["kept"])
    except (OptionsError, InvalidEventError, UnicodeDecodeError):
        return None
    return None if view is None else (place, view)


def _name(session_id: str) -> bytes:
    return session_id.encode("utf-8", "surrogatepass")
