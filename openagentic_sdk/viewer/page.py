"""Render a session, or its signed record, as one page with markup, style, script and events; only a live one makes requests.

No session content can become markup: events are in the page as JSON with `<`, `>` and `&` escaped, the script inserts them
as text only, and the page's Content Security Policy allows no style or script but its own, identified by digest.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from ..errors import SessionError
from ..events import Event, SystemInit, UserQuestion
from ..ground.frozen import frozen
from ..ground.media import HEAD_BYTES, media_type_of
from ..ground.packaged import read_packaged
from ..ground.patterns import regex
from ..ground.text import on_one_line
from ..ground.words import plural
from ..parts.masking import shown
from ..parts.record.bundle import bundle_of
from ..parts.record.folds.window import read_window
from ..runs.why import Cause
from ..serialization import event_to_dict
from ..sessions.arguments import DIGEST
from ..sessions.folds.summary import SessionSummary

STATES = ("waiting", "running", "queued", "suspended", "stopped", "failed", "idle")
# The limit on all images of one page, before base64 encoding.
MAX_PICTURES_BYTES = 8 << 20
# The limit on a question's text in a list.
MAX_ASKED_CHARS = 300
# An id that a shell reads as one word.
_PLAIN_ID = regex("[A-Za-z0-9][A-Za-z0-9._-]*")
_ESCAPED = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


@frozen
class Live:
    """The data of a served page besides the events.

    `address` is the WebSocket of later events (`?after=SEQ`), `state` the session's state, `questions` its open questions,
    and `home` the address of the list. `may_answer` and `takes_prompts` are the permissions of the person who views the
    page.
    """

    address: str
    state: str
    questions: Sequence[UserQuestion] = ()
    home: str = "/"
    may_answer: bool = False
    takes_prompts: bool = False


def build_page(
    events: Iterable[Event],
    *,
    title: str,
    live: Live | None = None,
    read_blob: Callable[[str], bytes] | None = None,
    cause: Cause | None = None,
) -> str:
    """Build the page of a session; with `live`, it follows the session and accepts prompts and answers, as permitted.
    `cause` explains the session's state.

    `read_blob` returns the images that events reference by their sha256; without it, and beyond `MAX_PICTURES_BYTES` in
    total, they are described instead.
    """
    connect = "connect-src 'none'" if live is None else "connect-src 'self'"
    masked = [shown(event) for event in events]
    rows = [event_to_dict(event) for event in masked]
    window = read_window(masked)
    pictures = {} if read_blob is None else _pictures(rows, read_blob)
    session_id = next((event.get("session_id") for event in rows if event["type"] == SystemInit.type), None)
    data = {
        "title": title,
        "session": session_id if isinstance(session_id, str) and _PLAIN_ID.fullmatch(session_id) else None,
        "live": None
        if live is None
        else {**vars(live), "questions": [event_to_dict(shown(q)) for q in live.questions]},
        "events": rows,
        "pictures": pictures,
        "why": None if cause is None or not cause.kind else cause.lines(*cause.flags_outside("")),
        "context": window.lines(),
    }
    script = asset("reader.js") + asset("flow.js") + ("" if live is None else asset("live.js")) + asset("page.js")
    parts = {"BACK": "", "DESK": ""}
    if live is not None:
        parts["BACK"] = f'<nav aria-label="Pages"><a href="{html.escape(live.home)}">All sessions</a></nav>\n  '
        parts["DESK"] = asset("live.html") if live.takes_prompts else ""
    return fill_scripted_page("page.html", on_one_line(title), script, data, ("img-src data:", connect), parts)


def fill_scripted_page(
    name: str, title: str, script: str, data: object, rules: Iterable[str], more: Mapping[str, str] | None = None
) -> str:
    """Build a page with this script and data. It cannot run any other script, and can load only what the policy `rules`
    allow.

    `more` contains additional values for its template, as markup.
    """
    style = asset("page.css")
    parts = {
        "POLICY": "; ".join([_policy(style, "form-action 'none'"), f"script-src '{_digest(script)}'", *rules]),
        "TITLE": html.escape(title),
        "STYLE": style,
        "SCRIPT": script,
        "DATA": dump_for_script(data),
        **(more or {}),
    }
    return _fill(name, parts)


def _pictures(events: Iterable[Mapping[str, Any]], read_blob: Callable[[str], bytes]) -> dict[str, str]:
    """The `data:` URL of each image that the events reference, by digest, up to `MAX_PICTURES_BYTES` in all; the first bytes
    of an image determine its type.
    """
    urls: dict[str, str] = {}
    room = MAX_PICTURES_BYTES
    parts = [part for event in events for part in event.get("attachments") or () if isinstance(part, dict)]
    for name, size in ((part.get("sha256"), part.get("size")) for part in parts):
        if not isinstance(name, str) or not DIGEST.fullmatch(name) or name in urls:
            continue
        if not isinstance(size, int) or size > room:
            continue
        try:
            data = read_blob(name)
        except SessionError:  # deleted or never stored: it is described instead
            continue
        kind = media_type_of(data[:HEAD_BYTES])
        if kind is not None and kind.startswith("image/") and len(data) <= room:
            urls[name] = f"data:{kind};base64,{base64.b64encode(data).decode()}"
            room -= len(data)
    return urls


@frozen
class ListView:
    """The contents of a page that lists sessions, besides its rows.

    `query` and `state` are those of the search; `older` is the cursor of the next page, None at the end. `agents` are the
    names and descriptions of agents that can be started; `problem` is the reason if none can. `questions` contains open
    questions, each with its session, the session's label and the event; `questions_are_cut` is true if there are more.
    """

    root: str = ""
    query: str = ""
    state: str = ""
    older: str | None = None
    agents: Sequence[tuple[str, str]] = ()
    problem: str = ""
    questions: Sequence[tuple[str, str, UserQuestion]] = ()
    questions_are_cut: bool = False


def build_list(rows: Iterable[SessionSummary], view: ListView) -> str:
    """Build the page of a list of sessions, waiting ones first; each row links to its session's page."""
    today = time.localtime()[:3]
    lines, total_usd = [], 0.0
    for row in sorted(rows, key=lambda row: row.state != "waiting"):
        local_time = time.localtime(row.updated)
        cells = (
            (f"state {row.state}", row.state),
            ("number detail", str(row.steps)),
            ("number detail", f"{row.tokens:,}"),
            ("number detail", "" if row.cost_usd is None else f"${row.cost_usd:.4f}"),
            ("detail", on_one_line(row.model or "")),
            ("detail folder", on_one_line(row.cwd or "")),
            ("", time.strftime("%H:%M" if local_time[:3] == today else "%Y-%m-%d", local_time)),
        )
        address = f"{view.root}/sessions/{quote(row.id, safe='')}"
        link = f'<a href="{html.escape(address)}">{_shown(row.label)}</a>'
        error = f'<p class="error">{_shown(row.error)}</p>' if row.error else ""
        cell_text = "".join(f'<td class="{name}">{html.escape(text)}</td>' for name, text in cells)
        lines.append(f"<tr><td>{link}{error}</td>{cell_text}</tr>")
        total_usd += row.cost_usd or 0.0
    count = plural(len(lines), "session")
    parts = {
        "TITLE": "Sessions",
        "ROWS": "\n".join(lines) or '<tr><td colspan="8" class="hint">No session matches.</td></tr>',
        "SUM": f"{count}, ${total_usd:.4f}" if total_usd else count,
        "QUERY": html.escape(view.query),
        "STATES": "".join(_option(state, state or "every state", state == view.state) for state in ("", *STATES)),
        "START": f'<p id="trouble" role="alert">{_shown(view.problem)}</p>' if view.problem else "",
        "INBOX": _inbox(view),
        "PAGES": _links(view),
        "SCRIPTS": "",
    }
    if not view.agents:
        return fill_page("list.html", parts, "form-action 'self'")
    names = "".join(_option(name, f"{name}: {about}" if about else name, False) for name, about in view.agents)
    script = asset("list.js")
    data = f'<script type="application/json" id="data">{dump_for_script({"root": view.root})}</script>'
    parts |= {
        "START": asset("start.html").replace("@@AGENTS@@", names),
        "SCRIPTS": f"{data}\n<script>{script}</script>",
    }
    return fill_page("list.html", parts, f"form-action 'self'; script-src '{_digest(script)}'; connect-src 'self'")


def _inbox(view: ListView) -> str:
    """The questions that wait for an answer, each a link to the page for answering it."""
    if not view.questions:
        return ""
    lines = []
    for session_id, label, question in view.questions:
        address = html.escape(f"{view.root}/sessions/{quote(session_id, safe='')}")
        preview = question.details.get("preview")
        first = next((line for line in preview if str(line).strip()), "") if isinstance(preview, list) else ""
        about = f" <code>{_cut(str(first))}</code>" if first else ""
        link = f'<a href="{address}">{_cut(question.prompt)}</a>'
        lines.append(f'<li>{link}{about} <span class="hint">{_shown(label)}</span></li>')
    more = '<p><a href="?state=waiting">All sessions that wait</a></p>' if view.questions_are_cut else ""
    count = f"{plural(len(lines), 'question')} for you"
    listed = "\n".join(lines)
    return (
        f'<section class="asked" aria-labelledby="inbox"><h2 id="inbox">{count}</h2><ul>{listed}</ul>{more}</section>'
    )


def _cut(text: str) -> str:
    return _shown(on_one_line(text.strip(), MAX_ASKED_CHARS))


def _links(view: ListView) -> str:
    """The link to the next page of the list; empty on the last one."""
    query = {name: value for name, value in (("query", view.query), ("state", view.state)) if value}
    links = [] if view.older is None else [("Older sessions", {**query, "after": view.older})]
    anchors = "".join(f'<a href="?{html.escape(urlencode(each))}">{text}</a>' for text, each in links)
    return f'<nav aria-label="Pages of the list">{anchors}</nav>' if anchors else ""


def _option(value: str, text: str, is_chosen: bool) -> str:
    return f'<option value="{html.escape(value)}"{" selected" if is_chosen else ""}>{_shown(text)}</option>'


def _shown(text: str) -> str:
    return html.escape(on_one_line(text))


def fill_page(name: str, parts: Mapping[str, str], rules: str) -> str:
    """Build a page in the common style: its template with these parts, as markup, and additional rules of its policy."""
    style = asset("page.css")
    return _fill(name, {"POLICY": _policy(style, rules), "STYLE": style, **parts})


def _policy(style: str, rules: str) -> str:
    return f"default-src 'none'; style-src '{_digest(style)}'; base-uri 'none'; {rules}"


def _fill(name: str, parts: Mapping[str, str]) -> str:
    # In one pass: `@@NAME@@` in an inserted text, which may come from a session, must not be replaced in turn.
    first, *rest = (asset("head.html") + asset(name)).split("@@")
    return "".join([first, *(parts.get(piece, piece) for piece in rest)])


def dump_for_script(value: object) -> str:
    """Serialize to JSON that cannot terminate the script element around it."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for char, escaped in _ESCAPED.items():
        text = text.replace(char, escaped)
    return text


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def asset(name: str) -> str:
    """Read an asset file of this package as text."""
    return read_packaged(__spec__, name)


# --- a signed record ----------------------------------------------------------------------------------------------------


def build_record_page(session_id: str, events: Iterable[Event]) -> str:
    """Build the page of a signed record, which verifies itself in the browser: it contains every event with its salts."""
    script = asset("record.js")
    data = bundle_of(session_id, list(events))
    title = f"Record of session {session_id}"
    return fill_scripted_page("record.html", title, script, data, ("connect-src 'none'",))
