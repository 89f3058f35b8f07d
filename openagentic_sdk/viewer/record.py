"""Put a signed record into one page that checks it in the browser, without a request to anywhere."""

from __future__ import annotations

from collections.abc import Iterable

from ..events import Event
from ..parts.record.bundle import bundle_of
from .page import asset, fill_scripted_page


def build_record_page(session_id: str, events: Iterable[Event]) -> str:
    """The page of a signed record, which checks itself in the browser: it holds every event as it is, salts included."""
    script = asset("record.js")
    data = bundle_of(session_id, list(events))
    title = f"Record of session {session_id}"
    return fill_scripted_page("record.html", title, script, data, ("connect-src 'none'",))
