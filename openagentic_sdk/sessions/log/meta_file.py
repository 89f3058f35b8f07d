"""What was known of a session at its creation, as it stands in `meta.json`: a cache, which may be deleted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...errors import InvalidEventError
from ...frozen import frozen
from ...serialization import dumps_json, loads_json
from ..folds.summary import LAST_TIME


@frozen
class Meta:
    """What `meta.json` holds."""

    session_id: str
    created_at: float
    metadata: dict[str, Any]

    @classmethod
    def from_json(cls, text: bytes, session_id: str) -> Meta:
        """Raises `InvalidEventError` for anything but what `to_json` writes."""
        data = loads_json(text)
        created_at, metadata = (
            (data.get("created_at"), data.get("metadata")) if isinstance(data, dict) else (None, None)
        )
        if not isinstance(created_at, int | float) or abs(created_at) > LAST_TIME or not isinstance(metadata, dict):
            raise InvalidEventError("meta.json holds no created_at and metadata")
        return cls(session_id, created_at, metadata)

    def changed(self, changes: Mapping[str, Any]) -> Meta:
        """With these keys set; a value of None removes its key."""
        merged = {**self.metadata, **changes}
        return replace(self, metadata={key: value for key, value in merged.items() if value is not None})

    def to_dict(self) -> dict[str, Any]:
        return {"session_id": self.session_id, "created_at": self.created_at, "metadata": self.metadata}

    def to_json(self) -> bytes:
        return dumps_json(self.to_dict()).encode("ascii") + b"\n"
