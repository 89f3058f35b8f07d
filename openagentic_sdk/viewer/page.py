"""Put a session into one page: markup, style, script and events, with no request to anywhere.

Nothing of the session can become markup: events stand in the page as JSON whose `<`, `>` and `&` are escaped, the script
writes them as text only, and the page's policy lets nothing run or load but its own style and script, named by digest.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import pkgutil
import time
from collections.abc import Iterable, Mapping
from urllib.parse import quote

from ..events import Event
from ..runtime.masking import shown
from ..serialization import event_to_dict
from ..sessions.folds.summary import SessionSummary

_ESCAPED = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def build_page(events: Iterable[Event], *, title: str, live_address: str | None = None) -> str:
    """The page. `live_address` is the WebSocket (`?after=SEQ`) of more events, None for a page that stands alone."""
    style, script = _asset("page.css"), _asset("reader.js") + _asset("page.js")
    connect = "connect-src 'none'" if live_address is None else "connect-src 'self'"
    rules = [_policy(style, "form-action 'none'"), "img-src data:", f"script-src '{_digest(script)}'", connect]
    data = {"title": title, "live": live_address, "events": [event_to_dict(shown(event)) for event in events]}
    parts = {
        "POLICY": "; ".join(rules),
        "TITLE": html.escape(title),
        "STYLE": style,
        "SCRIPT": script,
        "DATA": dump_for_script(data),
    }
    return _fill("page.html", parts)


def build_list(rows: Iterable[SessionSummary], *, address: str) -> str:
    """The page of a list of sessions; each row links to `address` and its id. It needs no script."""
    lines = []
    for row in rows:
        link = f'<a href="{html.escape(address + quote(row.id, safe=""))}">{html.escape(row.label)}</a>'
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(row.updated))
        cells = (link, row.state, str(row.turns), html.escape(row.model or ""), when, html.escape(row.error or ""))
        lines.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    return fill_page("list.html", {"ROWS": "\n".join(lines)}, "form-action 'self'")


def fill_page(name: str, parts: Mapping[str, str], forms: str) -> str:
    """A page without a script: its template with these parts, which are markup, and the house's style."""
    style = _asset("page.css")
    return _fill(name, {"POLICY": _policy(style, forms), "STYLE": style, **parts})


def _policy(style: str, forms: str) -> str:
    return f"default-src 'none'; style-src '{_digest(style)}'; base-uri 'none'; {forms}"


def _fill(name: str, parts: Mapping[str, str]) -> str:
    head, *rest = _asset(name).split("@@")
    return "".join([head, *(parts.get(piece, piece) for piece in rest)])


def dump_for_script(value: object) -> str:
    """JSON that cannot end the script element that it stands in."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for char, escaped in _ESCAPED.items():
        text = text.replace(char, escaped)
    return text


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _asset(name: str) -> str:
    data = pkgutil.get_data(__package__, name)  # also inside of a zip
    assert data is not None, f"{name} is part of the package"
    return data.decode("utf-8")
