"""Convert a web page to Markdown that a model reads easily.

Made for hostile and broken pages: work is bounded by the page's length, invisible content (scripts, styles, hidden parts)
is omitted, and no HTML tag is passed through. It keeps headings, paragraphs, links, lists, tables, code and quotes.
"""

from __future__ import annotations

import re
from dataclasses import field
from html import unescape
from html.parser import HTMLParser
from urllib.parse import urljoin, urlsplit

from ...ground.frozen import frozen, mutable
from ...ground.patterns import regex

MAX_HTML_CHARS = 2_000_000
MAX_TAGS = 150_000
MAX_DEPTH = 24

_UNSHOWN = frozenset({"script", "style", "template", "noscript", "svg", "canvas", "iframe", "object", "head", "select",
                      "audio", "video", "dialog"})  # fmt: skip
_BLOCKS = frozenset({"address", "article", "aside", "body", "center", "dd", "details", "div", "dl", "dt", "fieldset",
                     "figcaption", "figure", "footer", "form", "header", "hgroup", "html", "main", "nav", "p", "section",
                     "search", "summary"})  # fmt: skip
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_EMPHASIS = {
    **dict.fromkeys(("b", "strong"), "**"),
    **dict.fromkeys(("i", "em"), "*"),
    **dict.fromkeys(("code", "kbd", "samp", "tt"), "`"),
    **dict.fromkeys(("del", "s"), "~~"),
}
_VOID = frozenset(
    {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr"}
)
_SPACE = regex(r"[ \t\n\r\f\v]+")
# The standard library's parser takes quadratic time for unterminated constructs (CPython issue 135462). So it never gets
# a page, only single tags of limited length; a `<` that does not begin such a tag is text.
_TAG = regex(
    r"""(</?[A-Za-z](?:(?:[^<>"']|"[^"<]{0,4000}"|'[^'<]{0,4000}'){0,8000}>|[^<>]{0,8000}>))""",
)
_UNENDED = regex(
    r"<!--|<!\[|<!|<\?|<(script|style|textarea|title|xmp|iframe|noembed|noframes|plaintext)\b", re.IGNORECASE
)


@frozen
class Page:
    """A page as text: its title, possibly empty, and its body in Markdown; `is_cut` is true if it was too long."""

    title: str
    markdown: str
    is_cut: bool = False


def html_to_markdown(html: str, base_url: str = "") -> Page:
    """Convert a page; links become absolute against `base_url` (or the page's own base)."""
    writer = _Writer(base_url)
    writer.feed_tokens(_without_unended(html[:MAX_HTML_CHARS]))
    return Page(writer.page_title(), writer.markdown(), writer.is_cut or len(html) > MAX_HTML_CHARS)


def _without_unended(html: str) -> str:
    """Drop comments, declarations and raw-text elements except titles and text areas, in one pass.

    One that is not closed drops the rest of the page.
    """
    pieces = []
    position = 0
    while (match := _UNENDED.search(html, position)) is not None:
        pieces.append(html[position : match.start()])
        end, keeps = _construct_end(html, match)
        if end < 0:
            return "".join(pieces)
        if keeps:
            pieces.append(html[match.start() : end])
        position = end
    pieces.append(html[position:])
    return "".join(pieces)


def _construct_end(html: str, match: re.Match[str]) -> tuple[int, bool]:
    """The end of a construct (-1 if it has none), and whether the parser should see it."""
    opening = match.group().lower()
    name = match.group(1)
    if name is None:
        closing = {"<!--": "-->", "<![": "]>"}.get(opening, ">")
        end = html.find(closing, match.end())
        return (end + len(closing) if end >= 0 else -1), False
    closer = re.compile(rf"</{name}\s*>", re.IGNORECASE).search(html, match.end())
    return (closer.end() if closer is not None else -1), name.lower() in ("textarea", "title")


@mutable
class _OpenBlock:
    """An open list, quote or table; `lead` is the prefix of its lines."""

    tag: str
    lead: str = ""
    number: int = 0
    rows: list[list[str]] = field(default_factory=list)
    cell: list[str] | None = None


class _Writer(HTMLParser):
    """A writer of Markdown, tag by tag. Lines are collected in `_inline` and flushed at block boundaries."""

    def __init__(self, base_url: str) -> None:
        super().__init__(convert_charrefs=True)
        self.is_cut = False
        self._base_url = base_url
        self._lines: list[str] = []
        self._inline: list[str] = []
        self._blocks: list[_OpenBlock] = []
        self._links: list[tuple[str, int]] = []
        self._unshown: list[str] = []
        self._title: list[str] = []
        self._in_title = False
        self._pre: list[str] | None = None
        self._heading = 0
        self._marker = ""

    def feed_tokens(self, html: str) -> None:
        """Write a whole page: text unchanged, tags through the parser one by one."""
        tokens = _TAG.split(html, MAX_TAGS)
        if len(tokens) > 2 * MAX_TAGS:
            tokens.pop()
            self.is_cut = True
        for index, token in enumerate(tokens):
            if index % 2 == 0:
                if token:
                    self.handle_data(unescape(token))
                continue
            self.feed(token)
            self.rawdata = ""  # a tag whose quotes do not close
            self.clear_cdata_mode()

    # --- callbacks of the parser

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        if tag == "title":
            self._in_title = not self._title
        elif tag == "base" and attributes.get("href"):
            self._base_url = self._absolute(attributes["href"])
        elif self._unshown:
            if tag == self._unshown[-1]:
                self._unshown.append(tag)
        elif tag not in _VOID and _is_hidden(tag, attributes):
            self._unshown.append(tag)
        else:
            self._start(tag, attributes)

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self._in_title = False
        elif self._unshown:
            if tag == self._unshown[-1]:
                self._unshown.pop()
            elif tag in ("html", "body"):
                self._unshown.clear()
        else:
            self._end(tag)

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self._title.append(data)
        elif self._unshown:
            return
        elif self._pre is not None:
            self._pre.append(data)
        else:
            self._inline.append(_SPACE.sub(" ", data))

    # --- meanings of tags

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        if tag == "pre":
            self._flush()
            self._pre = []
        elif self._pre is not None:
            self._pre.append("\n" if tag == "br" else "")
        elif tag in _EMPHASIS:
            self._inline.append(_EMPHASIS[tag])
        elif tag == "a":
            self._links.append((attributes.get("href", ""), len(self._inline)))
        elif tag == "img":
            alt = _SPACE.sub(" ", attributes.get("alt", "")).strip()
            source = attributes.get("src", "")
            if alt and not source.startswith("data:"):
                self._inline.append(f"![{alt}]({self._absolute(source)})")
            elif alt:
                self._inline.append(f"[image: {alt}]")
        elif tag == "br":
            self._inline.append(" " if self._cell() is not None else "\n")
        elif tag == "hr":
            self._flush()
            self._write("---", gap=True)
        else:
            self._start_block(tag, attributes)

    def _start_block(self, tag: str, attributes: dict[str, str]) -> None:
        if tag in _HEADINGS:
            self._flush()
            self._heading = _HEADINGS[tag]
        elif tag in ("ul", "ol", "menu", "blockquote", "table"):
            self._flush()
            if len(self._blocks) < MAX_DEPTH:
                self._blocks.append(_OpenBlock(tag, self._lead_of(tag)))
        elif tag == "li":
            self._flush()
            block = self._blocks[-1] if self._blocks else None
            if block is not None and block.tag == "ol":
                block.number += 1
                self._marker = f"{block.number}. "
            else:
                self._marker = "- "
        elif tag == "tr" and (table := self._table()) is not None:
            self._end_cell()
            table.rows.append([])
        elif tag in ("td", "th") and (table := self._table()) is not None:
            self._end_cell()
            self._inline, self._links, table.cell = [], [], []
        elif tag in _BLOCKS:
            self._flush()

    def _end(self, tag: str) -> None:
        if tag == "pre" and self._pre is not None:
            self._end_pre()
        elif self._pre is not None:
            return
        elif tag in _EMPHASIS:
            self._inline.append(_EMPHASIS[tag])
        elif tag == "a" and self._links:
            href, start = self._links.pop()
            # A block inside the link has already flushed its start: keep the text and drop the link.
            text = "".join(self._inline[start:]).strip() if start <= len(self._inline) else ""
            target = self._absolute(href)
            if text and target and not href.startswith("#"):
                self._inline[start:] = [f"[{text}]({target})"]
        elif tag in _HEADINGS:
            self._flush()
            self._heading = 0
        elif tag in ("td", "th"):
            self._end_cell()
        elif tag in ("ul", "ol", "menu", "blockquote", "table"):
            self._end_block(tag)
        elif tag in _BLOCKS or tag == "li":
            self._flush()

    def _absolute(self, href: str) -> str:
        try:
            joined = urljoin(self._base_url, href.strip())
            scheme = urlsplit(joined).scheme
        except ValueError:  # not a URL
            return ""
        if scheme in ("javascript", "data", "vbscript"):
            return ""
        return re.sub(r"[\s<>()]", lambda match: f"%{ord(match.group()):02X}", joined)

    # --- lists, quotes, tables

    def _lead_of(self, tag: str) -> str:
        """The prefix of a block's lines: a nested list begins where its item's text does."""
        if tag == "blockquote":
            return "> "
        if tag == "table" or not self._blocks:
            return ""
        return {"ol": "   ", "ul": "  ", "menu": "  "}.get(self._blocks[-1].tag, "")

    def _end_block(self, tag: str) -> None:
        if not any(block.tag == tag for block in self._blocks):
            return
        self._end_cell() if tag == "table" else self._flush()
        while True:
            block = self._blocks.pop()
            if block.tag == "table":
                self._write_table(block)
            if block.tag == tag:
                break
        self._marker = ""
        if not self._depth("ul", "ol", "menu"):
            self._gap()

    def _depth(self, *tags: str) -> int:
        return sum(block.tag in tags for block in self._blocks)

    def _table(self) -> _OpenBlock | None:
        return next((block for block in reversed(self._blocks) if block.tag == "table"), None)

    def _cell(self) -> list[str] | None:
        table = self._table()
        return table.cell if table is not None else None

    def _end_cell(self) -> None:
        table = self._table()
        if table is None or table.cell is None:
            return
        table.cell.append("".join(self._inline))
        self._inline = []
        if not table.rows:
            table.rows.append([])
        table.rows[-1].append(_SPACE.sub(" ", " ".join(table.cell)).strip().replace("|", "\\|"))
        table.cell = None

    def _write_table(self, table: _OpenBlock) -> None:
        rows = [row for row in table.rows if any(row)]
        if not rows:
            return
        width = max(len(row) for row in rows)
        if width == 1:  # a table that is only used for layout
            for row in rows:
                self._write(row[0], gap=True)
            return
        self._gap()
        for index, row in enumerate(rows):
            self._write("| " + " | ".join(row + [""] * (width - len(row))) + " |")
            if index == 0:
                self._write("|" + " --- |" * width)
        self._gap()

    # --- lines

    def _flush(self) -> None:
        """End the current line or paragraph."""
        text = "".join(self._inline)
        cell = self._cell()
        self._inline = []
        if cell is not None:
            cell.append(text)
            return
        lines = [_SPACE.sub(" ", line).strip() for line in text.split("\n")]
        lines = [line for line in lines if line]
        if not lines:
            return
        if self._heading:
            self._write("#" * self._heading + " " + " ".join(lines), gap=True)
            return
        in_list = self._depth("ul", "ol", "menu") > 0
        if not in_list:
            self._gap()
        for line in lines:
            self._write(line)
        if not in_list:
            self._gap()

    def _end_pre(self) -> None:
        text = "".join(self._pre or []).strip("\n")
        self._pre = None
        fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
        self._gap()
        for line in (fence, *text.split("\n"), fence):
            self._write(line)
        self._gap()

    def _write(self, line: str, gap: bool = False) -> None:
        if gap:
            self._gap()
        lead = "".join(block.lead for block in self._blocks)
        in_list = bool(self._blocks) and self._blocks[-1].tag in ("ul", "ol", "menu")
        marker = self._marker or ("  " if in_list else "")
        self._marker = ""
        self._lines.append(f"{lead}{marker}{line}".rstrip())
        if gap:
            self._gap()

    def _gap(self) -> None:
        if self._lines and self._lines[-1] and not self._marker:
            self._lines.append("> " * self._depth("blockquote") if self._depth("blockquote") else "")

    def markdown(self) -> str:
        while self._blocks:
            self._end_block(self._blocks[-1].tag)
        if self._pre is not None:
            self._end_pre()
        self._flush()
        # Collapse empty lines into one; an empty line in a quote keeps the quote's mark.
        output_lines: list[str] = []
        for line in (line.rstrip() for line in self._lines):
            is_gap = not line.strip("> ")
            if is_gap and (not output_lines or not output_lines[-1].strip("> ")):
                continue
            if output_lines and not output_lines[-1].strip("> ") and not line.startswith(">"):
                output_lines[-1] = ""
            output_lines.append(line)
        while output_lines and not output_lines[-1].strip("> "):
            output_lines.pop()
        return "\n".join(output_lines).strip()

    def page_title(self) -> str:
        return _SPACE.sub(" ", "".join(self._title)).strip()


def _is_hidden(tag: str, attributes: dict[str, str]) -> bool:
    """Whether a browser would not show an element: pages give models orders in text that only a model reads."""
    if tag in _UNSHOWN or "hidden" in attributes or attributes.get("aria-hidden") == "true":
        return True
    style = attributes.get("style", "").replace(" ", "").lower()
    return any(sign in style for sign in ("display:none", "visibility:hidden", "font-size:0", "opacity:0;"))
