"""Markdown on a terminal, rendered word by word as it arrives, wrapped at the width.

The text is already safe (`printable`); this only determines styles, indents and line breaks. Blocks are recognized by the
beginning of a line (CommonMark 0.31, section 4: headings, fences, quotes, lists; tables as in GitHub's spec). A word is
shown once it is complete and no span (`**`, `` ` ``, `[`) is open before it; lines of code, headings and tables when they
end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ...ground.patterns import regex
from ..output.palette import Style
from ..output.widths import begins_letter, cut_at, fitting, text_width, words_of, wrapped

# A span that is not closed within this many characters, or within a line of that length, is plain text.
MAX_SPAN_CHARS = 300
MAX_WORD_CHARS = 1_000
MAX_TABLE_ROWS = 500
TAB = "    "

_HEADING = regex(r" {0,3}(#{1,6})[ \t]+(.*?)[ \t]*#*[ \t]*\Z")
_FENCE = regex(r"( {0,12})(`{3,}|~{3,})[ \t]*([^`]*)\Z")
_RULE = regex(r" {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*\Z")
_ITEM = regex(r"( *)([-*+]|\d{1,9}[.)])[ \t]+(?:\[([ xX])\][ \t]+)?")
_QUOTE = regex(r" {0,3}((?:>[ \t]?)+)")
_DIVIDER = regex(r"[ \t]*\|?[ \t]*:?-+:?[ \t]*(\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*\Z")
# Starts of lines that may still become the start of a block other than a paragraph.
_UNDECIDED = regex(r" *(?:#{0,6}|`{0,3}|~{0,3}|[-*+_][-*_ \t]*|\d{0,9}[.)]?|>*)[ \t]*(?:\[[ xX]?\]?)?[ \t]*\Z")
_SPAN = regex(
    r"(?P<ticks>`+)(?P<code>.+?)(?<!`)(?P=ticks)(?!`)"
    r"|\*\*(?=\S)(?P<bold>.+?)(?<=\S)\*\*"
    r"|(?<!\w)__(?=\S)(?P<strong>.+?)(?<=\S)__(?!\w)"
    r"|\*(?=[^\s*])(?P<italic>[^*]+?)(?<=[^\s*])\*(?!\*)"
    r"|~~(?=\S)(?P<struck>.+?)(?<=\S)~~"
    r"|\[(?P<label>[^\[\]]+)\]\((?P<url>[^()\s]+)\)"
    r"|\\(?P<escaped>[!-/:-@\[-`{-~])"
)
_MARKS = regex(r"[`*_~\[\\]")
_OPENERS = regex(r"`+|\*\*|__|\*(?=\S)|~~|\[|\\\Z")
_CELL_END = regex(r"(?<!\\)\|")


class Markdown:
    """A renderer of one text. `feed` adds a piece and returns the output that can be written now; `close` returns the rest.

    `style(text, name)` applies a style of the screen; `width` is called again for each piece.
    """

    def __init__(self, style: Style, width: Callable[[], int]) -> None:
        self._style = style
        self._measure = width
        self._width = width()
        self._line = ""  # the part of the incomplete line that is not written yet
        self._begun = False  # its beginning is written: it is a paragraph's, an item's or a quote's
        self._indent, self._indent_width = "", 0  # the start of its further rows
        self._column = 0
        self._gap = ""  # spaces to be written once a word follows on the same row
        self._fence: tuple[str, int] | None = None
        self._table: list[str] = []

    def feed(self, text: str) -> str:
        """Add text; return the output that can be written now."""
        self._width = self._measure()
        *whole, rest = text.replace("\t", TAB).split("\n")
        out = []
        for line in whole:
            self._line += line
            out.append(self._end_line())
        self._line += rest
        if self._begun and " " not in rest and rest.isascii():
            return "".join(out)  # no word has ended
        if self._line and self._fence is None and (self._begun or not self._may_be_a_block()):
            out.append(self._end_table() + self._go_on(_ready(self._line)))
        return "".join(out)

    def close(self) -> str:
        """End the text; return the rest of the output."""
        self._width = self._measure()
        rest = self._end_line() if self._line or self._begun else ""
        return rest + self._end_table()

    # --- lines -------------------------------------------------------------------------------------------------------

    def _may_be_a_block(self) -> bool:
        """Whether the start of a line is, or may still become, a block that is shown as a whole."""
        line = self._line
        if line.lstrip().startswith(("|", "#")) or _UNDECIDED.match(line):
            return True
        return _FENCE.match(line) is not None or _RULE.match(line) is not None

    def _end_line(self) -> str:
        if self._begun:
            return self._go_on(len(self._line)) + self._end_row()
        if self._fence is not None:
            return self._code(*self._fence)
        if self._line.lstrip().startswith("|") and len(self._table) < MAX_TABLE_ROWS:
            self._table.append(self._line)
            self._line = ""
            return ""
        return self._end_table() + self._block()

    def _block(self) -> str:
        """Render a line that is shown as a whole."""
        line, self._line = self._line, ""
        if fence := _FENCE.match(line):
            self._fence = fence[2], len(fence[1])
            return self._style(f"  {fence[3]}", "dim") + "\n" if fence[3] else ""
        if heading := _HEADING.match(line):
            return self._words(heading[2], "heading") + self._end_row()
        if _RULE.match(line):
            return self._style("─" * min(self._width - 1, 40), "dim") + "\n"
        self._line = line
        return (self._go_on(len(line)) if line.strip() else "") + self._end_row()

    def _end_row(self) -> str:
        self._line, self._begun, self._gap = "", False, ""
        self._indent, self._indent_width, self._column = "", 0, 0
        return "\n"

    def _code(self, fence: str, indent: int) -> str:
        line, self._line = self._line, ""
        end = _FENCE.match(line)
        if end and not end[3] and end[2].startswith(fence):
            self._fence = None
            return ""
        code = line[min(indent, len(line) - len(line.lstrip(" "))) :]
        gutter, rows = self._style("  │", "dim"), cut_at(code, self._width - 5)
        return "".join(f"{gutter} {self._style(row, 'code')}\n" for row in rows)

    # --- words -------------------------------------------------------------------------------------------------------

    def _go_on(self, ready: int) -> str:
        """Render the first `ready` characters of the incomplete line, which end with a complete word or span."""
        out = ""
        if not self._begun:
            out, count = self._begin()
            self._line, ready = self._line[count:], max(ready - count, 0)
        text, self._line = self._line[:ready], self._line[ready:]
        return out + self._words(text, "") if text else out

    def _begin(self) -> tuple[str, int]:
        """Begin a line; return the mark of an item or quote, otherwise the indent, and how many characters it replaces."""
        self._begun, line = True, self._line
        if quote := _QUOTE.match(line):
            bar = "▌ " * quote[1].count(">")
            self._indent, self._indent_width, self._column = self._style(bar, "dim"), len(bar), len(bar)
            return self._indent, quote.end()
        item = _ITEM.match(line)
        lead = item[1] if item else line[: len(line) - len(line.lstrip(" "))]
        if item is None:
            mark, styled_mark, count = lead, lead, len(lead)
        else:
            sign, box = "•" if item[2] in "-*+" else item[2], {None: "", " ": "☐ "}.get(item[3], "☑ ")
            mark, styled_mark = f"{lead}{sign} {box}", f"{lead}{self._style(sign, 'bullet')} {box}"
            count = item.end()
        self._indent_width = self._column = text_width(mark)
        self._indent = " " * self._column
        return styled_mark, count

    def _words(self, text: str, style: str) -> str:
        out: list[str] = []
        for piece, name in _spans(text, style) if _MARKS.search(text) else ((text, style),):
            body = piece.strip(" ")
            width = text_width(body)
            lead = piece.find(body) if body else len(piece)
            self._gap += piece[:lead]
            if self._column + len(self._gap) + width < self._width:  # all of it, which is usual
                if body:
                    out += self._gap, self._style(body, name)
                    self._column += len(self._gap) + width
                    self._gap = piece[lead + len(body) :]
                continue
            for word in words_of(piece[lead:]):
                if word[0] == " ":
                    self._gap += word
                else:
                    out.append(self._place(word, name))
        return "".join(out)

    def _place(self, word: str, style: str) -> str:
        """Place a word after the written text, or on the next row; a word longer than a row is split."""
        gap, self._gap = self._gap, ""
        room = self._width - 1 - self._column - len(gap)
        width = text_width(word)
        out = gap
        if width > room and self._column > self._indent_width:
            out, room = "\n" + self._indent, self._width - 1 - self._indent_width
            self._column, gap = self._indent_width, ""
        while width > room > 0:
            cut = fitting(word, room)
            out += self._style(word[:cut], style) + "\n" + self._indent
            word, self._column, gap = word[cut:], self._indent_width, ""
            width, room = text_width(word), max(self._width - 1 - self._indent_width, 4)
        self._column += len(gap) + width
        return out + self._style(word, style)

    # --- tables ------------------------------------------------------------------------------------------------------

    def _end_table(self) -> str:
        rows, self._table = self._table, []
        if len(rows) < 2 or not _DIVIDER.match(rows[1]):
            return "".join(f"{row}\n" for row in rows)
        cells = [_cells(row) for row in (rows[0], *rows[2:])]
        count = len(cells[0])
        cells = [[*row, *[""] * count][:count] for row in cells]
        widths = _column_widths(cells, self._width - 1)
        if widths is None:
            return "".join(f"{row}\n" for row in rows)
        out = [self._table_row(cells[0], widths, "bold")]
        out.append(self._style("─┼─".join("─" * width for width in widths), "dim") + "\n")
        out += [self._table_row(row, widths, "") for row in cells[1:]]
        return "".join(out)

    def _table_row(self, row: list[str], widths: list[int], style: str) -> str:
        parts = [
            [line.rstrip() for line in wrapped(" ".join(cell.split()), width)]
            for cell, width in zip(row, widths, strict=True)
        ]
        bar = self._style(" │ ", "dim")
        lines = []
        for number in range(max(map(len, parts))):
            texts = [part[number] if number < len(part) else "" for part in parts]
            padded = [
                self._style(text, style) + " " * (width - text_width(text))
                for text, width in zip(texts, widths, strict=True)
            ]
            lines.append(bar.join(padded).rstrip() + "\n")
        return "".join(lines)


def _ready(text: str) -> int:
    """The number of characters of an incomplete line that can be written: those before its last word or open span."""
    at = ready = 0
    while opener := _OPENERS.search(text, at):
        ready = max(ready, _last_break(text, at, opener.start()))
        span = _SPAN.match(text, opener.start())
        if span is None and len(text) - opener.start() <= MAX_SPAN_CHARS:
            return ready
        at = opener.end() if span is None else span.end()
    return max(ready, _last_break(text, at, len(text)))


def _last_break(text: str, start: int, end: int) -> int:
    """The start of the last word in this part of a text, 0 if no space precedes it; an overlong word is broken before its
    last character.
    """
    blank = text.rfind(" ", start, end) + 1
    after = max(blank, start)
    if end - after < 2 or (text.isascii() and end - after < MAX_WORD_CHARS):
        return blank
    last = len(words_of(text[after:end])[-1])
    if last > MAX_WORD_CHARS:
        last = next(rest for rest in range(1, last + 1) if begins_letter(text, end - rest))
    return end - last if end - last > after else blank


def _spans(text: str, style: str) -> Iterator[tuple[str, str]]:
    """Yield the text in pieces of one style, without the marks, each with its style."""
    at = 0
    for span in _SPAN.finditer(text):
        if span.start() > at:
            yield text[at : span.start()], style
        at = span.end()
        kind = span.lastgroup or ""
        if kind == "url":
            yield span["label"], "link"
            if span["url"] != span["label"]:
                yield f" ({span['url']})", "dim"
        elif kind == "code":
            yield span["code"], "code"
        elif kind == "escaped":
            yield span["escaped"], style
        else:
            yield from _spans(span[kind], {"strong": "bold", "struck": "dim"}.get(kind, kind))
    if at < len(text):
        yield text[at:], style


def _cells(row: str) -> list[str]:
    inner = row.strip().removeprefix("|")
    inner = inner[:-1] if inner.endswith("|") and not inner.endswith("\\|") else inner
    return ["".join(piece for piece, _ in _spans(cell.strip(), "")) for cell in _CELL_END.split(inner)]


def _column_widths(rows: list[list[str]], columns: int) -> list[int] | None:
    """The widths of a table's columns, reducing the widest until a row fits; None if that leaves too little for a word in
    each column.
    """
    widths = [max(map(text_width, column)) or 1 for column in zip(*rows, strict=True)]
    room = columns - 3 * (len(widths) - 1)
    if room < 6 * len(widths) and sum(widths) > room:
        return None
    while sum(widths) > room:
        widths[widths.index(max(widths))] -= 1
    return widths
