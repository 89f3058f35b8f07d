"""Decode a response body from the web: compression, type, character set, HTML.

The character set is determined in this order: a byte order mark, the Content-Type, a `<meta>` or XML declaration near the
start, UTF-8 if it decodes, and windows-1252, which accepts anything (WHATWG Encoding).
"""

from __future__ import annotations

import codecs
import re
import zlib
from collections.abc import Mapping

from ...errors import ToolError
from ...ground.frozen import frozen
from ...ground.patterns import regex
from .markdown import html_to_markdown

_SNIFF_BYTES = 2048

_BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_META_CHARSET = regex(rb"<meta[^>]{0,512}?charset\s*=\s*[\"']?\s*([A-Za-z0-9_.:-]{1,40})", re.IGNORECASE)
_XML_CHARSET = regex(rb"^\s*<\?xml[^>]{0,200}?encoding\s*=\s*[\"']([A-Za-z0-9_.:-]{1,40})")
_HTML_START = regex(rb"\s*(?:<!--.{0,500}?-->\s*)?<(?:!doctype html|html|head|body)\b", re.IGNORECASE | re.DOTALL)
_TEXT_TYPES = regex(
    r"text/.*|application/(?:.*\+)?(?:json|xml|yaml|javascript|ecmascript|x-javascript|x-yaml|toml|x-sh|sql|x-ndjson"
    r"|ld\+json|rss|atom|graphql)|image/svg\+xml|message/.*"
)
# The encoding that pages call latin-1 or ASCII is windows-1252 in practice and by the standard.
_ALIASES = {"iso-8859-1": "windows-1252", "latin-1": "windows-1252", "latin1": "windows-1252", "us-ascii": "windows-1252",
            "ascii": "windows-1252", "x-sjis": "shift_jis", "gb2312": "gbk", "ks_c_5601-1987": "cp949", "utf8": "utf-8",
            "unicode": "utf-16", "utf-16le": "utf-16-le", "utf-16be": "utf-16-be"}  # fmt: skip


@frozen
class PageText:
    """A response body as text. `is_cut` is true if it was too long to be read completely."""

    content_type: str
    charset: str
    title: str
    text: str
    is_cut: bool
    notes: tuple[str, ...]


def page_of(url: str, headers: Mapping[str, str], body: bytes, *, is_raw: bool, max_bytes: int) -> PageText:
    """Decode the text of a response; HTML becomes Markdown unless `is_raw`. Raises `ToolError` for other content."""
    fields = {name.lower(): value for name, value in headers.items()}
    content_type, declared = parse_content_type(fields.get("content-type", ""))
    data, is_cut = _decompressed(body, fields.get("content-encoding", ""), max_bytes)
    kind = content_type or sniff_type(data)
    if not _TEXT_TYPES.fullmatch(kind) and kind != "application/xhtml+xml":
        raise ToolError(f"{url} is {kind} ({len(body):,} bytes), not text: fetch a page, or download it with a command")
    charset, note = find_charset(data, declared)
    text = data.decode(charset, "replace").removeprefix("\ufeff")
    title = ""
    if not is_raw and kind in ("text/html", "application/xhtml+xml"):
        page = html_to_markdown(text, url)
        title, text, is_cut = page.title, page.markdown, is_cut or page.is_cut
    return PageText(kind, charset, title, text, is_cut, (note,) if note else ())


def parse_content_type(value: str) -> tuple[str, str]:
    """Parse a Content-Type: return its media type and charset in lower case, both empty if absent."""
    kind, _, parameters = value.partition(";")
    match = re.search(r"charset\s*=\s*[\"']?\s*([^\s;\"']+)", parameters, re.IGNORECASE)
    return kind.strip().lower(), match[1].lower() if match else ""


def sniff_type(data: bytes) -> str:
    """The type of a body without a declared one: HTML, plain text, or `application/octet-stream` for binary data."""
    start = data[:_SNIFF_BYTES]
    if _HTML_START.match(start):
        return "text/html"
    has_bom = any(start.startswith(mark) for mark, _ in _BOMS)
    return "application/octet-stream" if b"\0" in start and not has_bom else "text/plain"


def find_charset(data: bytes, declared: str) -> tuple[str, str]:
    """Find the character set of a body; return it, and a note if the declared one is unknown, else ""."""
    for mark, name in _BOMS:
        if data.startswith(mark):
            return name, ""
    start = data[:_SNIFF_BYTES]
    match = _META_CHARSET.search(start) or _XML_CHARSET.search(start)
    inside = match[1].decode("ascii").lower() if match else ""
    for name in (declared, inside):
        charset = known_charset(name)
        if charset is not None:
            # A readable <meta> proves that the page is not in UTF-16, whatever it claims (WHATWG HTML 13.2.3.2).
            return ("utf-8" if name == inside and name != declared and charset.startswith("utf-16") else charset), ""
    note = f"the page claims the unknown character set {declared or inside!r}" if declared or inside else ""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        # An error in the last bytes may be a character that the read limit has cut.
        if error.end < len(data) - 3:
            return "windows-1252", note
    return "utf-8", note


def known_charset(name: str) -> str | None:
    """Python's name for a text encoding of the web; None for an unknown one or one that is not for text."""
    name = _ALIASES.get(name.strip().lower(), name.strip().lower())
    if not name:
        return None
    try:
        codec = codecs.lookup(name)
        b"x".decode(codec.name, "replace")  # refuses codecs that are not text encodings, such as zip and rot13
    except (LookupError, ValueError):
        return None
    # No page is served in these, and each decodes bytes in its own way.
    return (
        None
        if codec.name in ("utf-7", "idna", "punycode", "unicode_escape", "raw_unicode_escape", "undefined")
        else name
    )


def _decompressed(body: bytes, encoding: str, max_bytes: int) -> tuple[bytes, bool]:
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return body, False
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise ToolError(f"the page is compressed as {encoding!r}, which is not supported: try another address")
    # 47: gzip or zlib, by the header; -15: the raw stream that some servers send as deflate.
    for window in (47, -15):
        unpacker = zlib.decompressobj(window)
        try:
            data = unpacker.decompress(body, max_bytes)
        except zlib.error:
            continue
        return data, bool(unpacker.unconsumed_tail)
    raise ToolError(f"the page is declared as compressed with {encoding!r}, but cannot be decompressed: try again")
