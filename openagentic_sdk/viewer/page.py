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
from collections.abc import Iterable

from ..events import Event
from ..runtime.masking import shown
from ..serialization import event_to_dict

_ESCAPED = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def build_page(events: Iterable[Event], *, title: str, live_address: str | None = None) -> str:
    """The page. `live_address` is where more events are to be had (`?after=SEQ`), None for a page that stands alone."""
    style, script = _asset("page.css"), _asset("page.js")
    rules = [
        "default-src 'none'",
        f"style-src '{_digest(style)}'",
        f"script-src '{_digest(script)}'",
        "connect-src 'none'" if live_address is None else "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    data = {"title": title, "live": live_address, "events": [event_to_dict(shown(event)) for event in events]}
    parts = {
        "POLICY": "; ".join(rules),
        "TITLE": html.escape(title),
        "STYLE": style,
        "SCRIPT": script,
        "DATA": dump_for_script(data),
    }
    head, *rest = _asset("page.html").split("@@")
    filled = [parts.get(piece, piece) for piece in rest]
    return "".join([head, *filled])


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
