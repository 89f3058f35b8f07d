"""Put a session, or its signed record, into one page: markup, style, script and events, with no request to anywhere.

Nothing of the session can become markup: events stand in the page as JSON whose `<`, `>` and `&` are escaped, the script
writes them as text only, and the page's policy lets nothing run or load but its own style and script, named by digest.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import quote

from ..errors import SessionError
from ..events import Event, SystemInit
from ..ground.media import HEAD_BYTES, media_type_of
from ..ground.packaged import read_packaged
from ..ground.patterns import regex
from ..ground.text import on_one_line, plural
from ..parts.masking import shown
from ..parts.record.bundle import bundle_of
from ..serialization import event_to_dict
from ..sessions.folds.summary import SessionSummary
from ..sessions.request import DIGEST

# Pictures of one page, before they are written as text.
MAX_PICTURES_BYTES = 8 << 20
# An id that a shell takes as one word.
_PLAIN_ID = regex("[A-Za-z0-9][A-Za-z0-9._-]*")
_ESCAPED = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def build_page(
    events: Iterable[Event],
    *,
    title: str,
    live_address: str | None = None,
    read_blob: Callable[[str], bytes] | None = None,
) -> str:
    """The page. `live_address` is the WebSocket (`?after=SEQ`) of more events, None for a page that stands alone.

    `read_blob` gives the pictures that events name by their sha256; without it, and beyond `MAX_PICTURES_BYTES` in all,
    they are described.
    """
    connect = "connect-src 'none'" if live_address is None else "connect-src 'self'"
    rows = [event_to_dict(shown(event)) for event in events]
    pictures = {} if read_blob is None else _pictures(rows, read_blob)
    session_id = next((event.get("session_id") for event in rows if event["type"] == SystemInit.type), None)
    data = {
        "title": title,
        "session": session_id if isinstance(session_id, str) and _PLAIN_ID.fullmatch(session_id) else None,
        "live": live_address,
        "events": rows,
        "pictures": pictures,
    }
    script = asset("reader.js") + asset("page.js")
    return fill_scripted_page("page.html", on_one_line(title), script, data, ("img-src data:", connect))


def fill_scripted_page(name: str, title: str, script: str, data: object, rules: Iterable[str]) -> str:
    """A page with this script and data: it may run nothing else, and load what `rules` of its policy say."""
    style = asset("page.css")
    parts = {
        "POLICY": "; ".join([_policy(style, "form-action 'none'"), f"script-src '{_digest(script)}'", *rules]),
        "TITLE": html.escape(title),
        "STYLE": style,
        "SCRIPT": script,
        "DATA": dump_for_script(data),
    }
    return _fill(name, parts)


def _pictures(events: Iterable[Mapping[str, Any]], read_blob: Callable[[str], bytes]) -> dict[str, str]:
    """The address (`data:`) of each picture that the events name, by its digest; its first bytes say which kind it is."""
    made: dict[str, str] = {}
    left = MAX_PICTURES_BYTES
    parts = [part for event in events for part in event.get("attachments") or () if isinstance(part, dict)]
    for name, size in ((part.get("sha256"), part.get("size")) for part in parts):
        if not isinstance(name, str) or not DIGEST.fullmatch(name) or name in made:
            continue
        if not isinstance(size, int) or size > left:
            continue
        try:
            data = read_blob(name)
        except SessionError:  # gone, or never there: it is described
            continue
        kind = media_type_of(data[:HEAD_BYTES])
        if kind is not None and kind.startswith("image/") and len(data) <= left:
            made[name] = f"data:{kind};base64,{base64.b64encode(data).decode()}"
            left -= len(data)
    return made


def build_list(rows: Iterable[SessionSummary], *, address: str, query: str = "") -> str:
    """The page of a list of sessions, those that wait for an answer first; each row links to `address` and its id.

    It needs no script. `query` is what was searched for.
    """
    today = time.localtime()[:3]
    lines, spent = [], 0.0
    for row in sorted(rows, key=lambda row: row.state != "waiting"):
        then = time.localtime(row.updated)
        cells = (
            (f"state {row.state}", row.state),
            ("number", str(row.steps)),
            ("number", f"{row.tokens:,}"),
            ("number", "" if row.cost_usd is None else f"${row.cost_usd:.4f}"),
            ("", on_one_line(row.model or "")),
            ("", on_one_line(row.cwd or "")),
            ("", time.strftime("%H:%M" if then[:3] == today else "%Y-%m-%d", then)),
        )
        link = f'<a href="{html.escape(address + quote(row.id, safe=""))}">{html.escape(on_one_line(row.label))}</a>'
        error = f'<p class="error">{html.escape(on_one_line(row.error))}</p>' if row.error else ""
        told = "".join(f'<td class="{name}">{html.escape(text)}</td>' for name, text in cells)
        lines.append(f"<tr><td>{link}{error}</td>{told}</tr>")
        spent += row.cost_usd or 0.0
    count = plural(len(lines), "session")
    parts = {
        "TITLE": "Sessions",
        "ROWS": "\n".join(lines) or '<tr><td colspan="8" class="hint">No session is like that.</td></tr>',
        "SUM": f"{count}, ${spent:.4f}" if spent else count,
        "QUERY": html.escape(query),
    }
    return fill_page("list.html", parts, "form-action 'self'")


def fill_page(name: str, parts: Mapping[str, str], forms: str) -> str:
    """A page without a script: its template with these parts, which are markup, and the house's style."""
    style = asset("page.css")
    return _fill(name, {"POLICY": _policy(style, forms), "STYLE": style, **parts})


def _policy(style: str, forms: str) -> str:
    return f"default-src 'none'; style-src '{_digest(style)}'; base-uri 'none'; {forms}"


def _fill(name: str, parts: Mapping[str, str]) -> str:
    first, *rest = (asset("head.html") + asset(name)).split("@@")
    return "".join([first, *(parts.get(piece, piece) for piece in rest)])


def dump_for_script(value: object) -> str:
    """JSON that cannot end the script element around it."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for char, escaped in _ESCAPED.items():
        text = text.replace(char, escaped)
    return text


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def asset(name: str) -> str:
    """A file of this room, as text."""
    return read_packaged(__spec__, name)


# --- a signed record ----------------------------------------------------------------------------------------------------


def build_record_page(session_id: str, events: Iterable[Event]) -> str:
    """The page of a signed record, which checks itself in the browser: it holds every event as it is, salts included."""
    script = asset("record.js")
    data = bundle_of(session_id, list(events))
    title = f"Record of session {session_id}"
    return fill_scripted_page("record.html", title, script, data, ("connect-src 'none'",))
