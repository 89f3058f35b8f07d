"""A run's view after a compaction, as bytes that a store keeps beside a log, so that a resume reads only what follows it.

The bytes name their position in the log, and a keyed digest proves that this installation wrote them for this session.
Anything from an archive, from another session, or edited is not used. It is a cache that may be deleted. A resume does not
notice damage to the log before that position; verifying the session finds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any

from ..errors import InvalidEventError, OptionsError, SessionError
from ..events import Event
from ..serialization import dumps_json, event_from_dict, event_to_dict, loads_json
from .core import StoreCore
from .folds.view import KeptView
from .log.line import dumps_stored
from .request import json_sha256
from .seal import Seal

# A larger view is not cached but folded from the log again, so that a cache file is never large.
MAX_CHECKPOINT_BYTES = 1 << 24
KEPT_VERSION = 8
_PURPOSE = b"openagentic-sdk checkpoint"


def seal_view(seal: Seal, session_id: str, place: Mapping[str, Any], kept: KeptView) -> bytes | None:
    """The bytes to keep; None if there is no usable key, or too much to keep. `place` is JSON."""
    try:
        body = dumps_json({**place, "kept": view_to_dict(kept)}).encode("ascii")
        data = seal.digest(_PURPOSE, _name(session_id), body).encode("ascii") + b"\n" + body + b"\n"
    except (OptionsError, InvalidEventError):
        return None
    return data if len(data) <= MAX_CHECKPOINT_BYTES else None


def open_view(seal: Seal, session_id: str, data: bytes | None) -> tuple[Mapping[str, Any], KeptView] | None:
    """The stored position and view; None unless this version, on this installation, wrote them for this session."""
    digest, _, rest = (data or b"").partition(b"\n")
    body = rest.removesuffix(b"\n")
    try:
        # Checked before anything is decoded: unlike a log, this data is trusted afterwards.
        if not body or not seal.matches(digest.decode("ascii"), _PURPOSE, _name(session_id), body):
            return None
        place = loads_json(body)
        view = view_from_dict(place["kept"])
    except (OptionsError, InvalidEventError, UnicodeDecodeError):
        return None
    return None if view is None else (place, view)


def view_to_dict(kept: KeptView) -> dict[str, Any]:
    """The kept view as a JSON object."""
    return {**vars(kept), "version": KEPT_VERSION, "events": [event_to_dict(event) for event in kept.events]}


def view_from_dict(data: Mapping[str, Any]) -> KeptView | None:
    """Rebuild the view from the result of `view_to_dict`; None for another version. The input is trusted."""
    if data.get("version") != KEPT_VERSION:
        return None
    fields = {name: value for name, value in data.items() if name != "version"}
    fields["events"] = tuple(event_from_dict(event, strict=False) for event in data["events"])
    fields["blocks"] = tuple(map(tuple, data["blocks"]))
    fields["used_ids"] = tuple(data["used_ids"])
    fields["folds"] = {name: (version, state) for name, (version, state) in data["folds"].items()}
    return KeptView(**fields)


def _name(session_id: str) -> bytes:
    return session_id.encode("utf-8", "surrogatepass")


class CheckpointingStore(StoreCore):
    """A store that keeps a session's view after a compaction, as bytes that `keep_checkpoint` stores."""

    @cached_property
    def seal(self) -> Seal:
        """The seal of data kept beside logs; by default, with this installation's key."""
        return Seal()

    def read_kept_view(self, session_id: str) -> tuple[KeptView | None, Iterator[Event]]:
        stored = open_view(self.seal, session_id, self.read_checkpoint(session_id))
        if stored is not None:
            place, view = stored
            # The log may have been rewritten, or restored from a backup, since the view was kept.
            if place.get("event") == _digest_of_event(self, session_id, place["seq"]):
                return view, self.iter_events(session_id, after_seq=place["seq"])
        return None, self.iter_events(session_id)

    def keep_view(self, session_id: str, kept: KeptView) -> None:
        """Keep a view for the next resume. Failures are ignored: it is a cache."""
        with suppress(SessionError):
            place = {"seq": kept.horizon, "event": _digest_of_event(self, session_id, kept.horizon)}
            data = seal_view(self.seal, session_id, place, kept)
            if data is not None:
                self.keep_checkpoint(session_id, data)

    def keep_checkpoint(self, session_id: str, data: bytes) -> None:
        """Keep these bytes beside the log, replacing earlier ones: a cache that is deleted with the session and that no
        copy, import or archive includes. A store need not support it.
        """

    def read_checkpoint(self, session_id: str) -> bytes | None:
        """Return the bytes last passed to `keep_checkpoint`; None if they no longer exist."""
        return None


def _digest_of_event(store: StoreCore, session_id: str, seq: int) -> str | None:
    """A digest that distinguishes the log up to an event from others: that of the event with its position and time."""
    for event in store.iter_events(session_id, after_seq=seq - 1, limit=1):
        return json_sha256(dumps_stored(event))
    return None
