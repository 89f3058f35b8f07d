"""Read the events of a session from what was exported of it: an archive, or a page that checks itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ...errors import InvalidEventError, OptionsError
from ...events import Event
from ...patterns import regex
from ...serialization import event_from_dict, loads_json
from ..archive import MAX_MANIFEST_BYTES, restore_session
from ..memory import MemorySessionStore

# How the page marks what it holds.
DATA_ID = "record"
_DATA = regex(rb'(?s)<script type="application/json" id="record">(.*?)</script>')


def read_bundle(path: Path) -> Mapping[str, Sequence[Event]]:
    """The sessions in a file, by their ids. Raises `OptionsError` for what is neither, `StorageError` for damage."""
    with open(path, "rb") as file:
        is_archive = file.read(2) == b"PK"
    if is_archive:
        store = MemorySessionStore()
        return {name: store.read_events(name) for name in restore_session(store, path)}
    if path.stat().st_size > MAX_MANIFEST_BYTES * 4:
        raise OptionsError(f"{path} is too large to be a page of a record")
    found = _DATA.search(path.read_bytes())
    try:
        data = loads_json(found[1]) if found else None
        if not isinstance(data, dict) or not isinstance(data["session_id"], str):
            raise KeyError("session_id")
        return {data["session_id"]: [event_from_dict(each["event"], strict=False) for each in data["events"]]}
    except (InvalidEventError, KeyError, TypeError) as error:
        raise OptionsError(f"{path} is neither an archive nor a page of a record: {error}") from None
