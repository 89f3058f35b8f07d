"""Create the data of a self-checking page about a session, and read events back from such a page or from an archive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import InvalidEventError, OptionsError
from ...events import Event, RecordSigned
from ...ground.patterns import regex
from ...serialization import event_from_dict, event_to_dict, loads_json
from ...sessions.memory import MemorySessionStore
from .archive import MAX_MANIFEST_BYTES, restore_session
from .commit import BadOpeningError, Opening, leaves
from .sign import statement_of

# The marks around the data in the page.
_DATA = regex(rb'(?s)<script type="application/json" id="record">(.*?)</script>')


def bundle_of(session_id: str, events: Sequence[Event]) -> dict[str, Any]:
    """Everything needed to verify these events, as JSON: each event with its leaves and their salts, and the signed ranges.

    `{"session_id", "events": [{"event", "leaves": [[salt, text, None] or ["", "", leaf]]}], "ranges": [...]}`. `leaf` is the
    digest of an erased leaf; the salt is empty for an event that no range covers.
    """
    rows: list[dict[str, Any]] = [
        {"event": event_to_dict(event), "leaves": [["", text, None] for _, text in leaves(event)]} for event in events
    ]
    ranges = []
    for event in events:
        if not isinstance(event, RecordSigned):
            continue
        names = ("session_id", "from_seq", "to_seq", "before", "head", "digests", "signatures")
        values = {name: getattr(event, name) for name in names}
        ranges.append({**values, "seq": event.seq, "statement": statement_of(event).decode("ascii")})
        try:
            opening = Opening.read(event.opening, event.to_seq - event.from_seq + 1)
            for index in range(event.to_seq - event.from_seq + 1):
                place = event.from_seq + index - 1
                if 0 <= place < len(rows):
                    rows[place]["leaves"] = opening.opened_leaves(events[place], index)
        except BadOpeningError:
            continue  # the browser cannot verify a range without its opening either, and reports that
    return {"session_id": session_id, "events": rows, "ranges": ranges}


def read_bundle(path: Path) -> Mapping[str, Sequence[Event]]:
    """Read the sessions in a file; return their events by session id.

    Raises `OptionsError` for a file that is neither a page nor an archive, `StorageError` for a damaged archive, and OSError
    if the file cannot be read.
    """
    with open(path, "rb") as file:
        is_archive = file.read(2) == b"PK"
    if is_archive:
        store = MemorySessionStore()
        return {name: store.read_events(name) for name in restore_session(store, path)}
    if path.stat().st_size > MAX_MANIFEST_BYTES * 4:
        raise OptionsError(f"{path} is too large to be a page of a record")
    match = _DATA.search(path.read_bytes())
    try:
        data = loads_json(match[1]) if match else None
        if not isinstance(data, dict) or not isinstance(data["session_id"], str):
            raise KeyError("session_id")
        return {data["session_id"]: [event_from_dict(each["event"], strict=False) for each in data["events"]]}
    except (InvalidEventError, KeyError, TypeError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else error
        raise OptionsError(f"{path} is neither an archive nor a page of a record: {why}") from None
