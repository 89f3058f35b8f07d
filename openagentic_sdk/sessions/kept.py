"""The summary of a log as it is kept beside it: a cache that says up to which byte it was folded, and may be deleted."""

from __future__ import annotations

from typing import Any

from ..errors import InvalidEventError
from ..frozen import frozen
from ..serialization import dumps_json, loads_json
from .scan import Position
from .summary import SessionSummary, summary_from_dict, summary_to_dict


@frozen
class KeptSummary:
    """A summary and the place in the log behind the last event that is folded in."""

    summary: SessionSummary
    position: Position

    def to_json(self) -> bytes:
        here = self.position
        data = {"offset": here.offset, "seq": here.seq, "crc": here.crc, "summary": summary_to_dict(self.summary)}
        return dumps_json(data).encode("ascii") + b"\n"

    @classmethod
    def from_json(cls, text: bytes) -> KeptSummary | None:
        """None for anything but what this version's `to_json` writes."""
        try:
            data = loads_json(text)
        except InvalidEventError:
            return None
        summary = summary_from_dict(data.get("summary")) if isinstance(data, dict) else None
        if summary is None or not all(_is_count(data.get(name)) for name in ("offset", "seq", "crc")):
            return None
        return cls(summary, Position(data["offset"], data["seq"], data["crc"]))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and value >= 0
