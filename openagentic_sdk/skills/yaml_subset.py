"""The part of YAML that metadata in Markdown files uses: maps, lists and scalars, every scalar a string.

Read: block maps and lists at any sane depth, flow lists and maps, plain, quoted and block scalars over several lines,
comments. Refused: anchors, aliases, tags, directives, complex keys, several documents, tabs as indentation. What is read
equals what PyYAML's BaseLoader reads, rule by rule: where YAML leaves a choice, PyYAML's scanner is the reference.
Patterns are possessive (`*+`) or atomic (`(?>...)`), so that no input makes them try twice; a group is never possessive,
which Python before 3.11.5 gets wrong.
"""

from __future__ import annotations

import re
from typing import NamedTuple, NoReturn, TypeAlias

MAX_DEPTH = 20
# A key longer than this is none (YAML 1.1, section 7.4.2).
_MAX_KEY_CHARS = 1024

Value: TypeAlias = str | list["Value"] | dict[str, "Value"]


class Unreadable(ValueError):
    """This text is not in the subset; `line` says where reading stopped."""

    def __init__(self, reason: str, line: int) -> None:
        super().__init__(reason)
        self.line = line


class Source(NamedTuple):
    """A value as it stands in the file, and its line."""

    text: str
    line: int


def read_mapping(
    text: str, *, first_line: int = 1
) -> tuple[dict[str, Value], dict[str, Source], list[tuple[str, int]]]:
    """The top-level map, the source of each of its values, and its repeated keys with their lines.

    `text` has `\\n` as line breaks. Raises `Unreadable`; its lines, like those of the sources, count from `first_line`.
    """
    reader = _Reader(text, first_line)
    return reader.read_document(), reader.sources, reader.repeated


_UNPRINTABLE = re.compile("[^\t\n -~\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_DOCUMENT_MARK = re.compile(r"^(?:---|\.\.\.)(?=[ \t\n]|\Z)", re.MULTILINE)
_GAP = re.compile(r"(?>(?:[ ]*+(?:#[^\n]*+)?\n)*)[ ]*+(?:#[^\n]*+\Z)?")
_BLANK_WITH_TAB = re.compile(r"[ \t]*+(?:#[^\n]*+)?(?:\n|\Z)")
_LINE_END = re.compile(r"[ \t]*+(?:#[^\n]*+)?(?=\n|\Z)")
_DASH = re.compile(r"-(?=[ \t\n]|\Z)")

_PLAIN_START = re.compile(r"[^ \t\n\-?:,\[\]{}#&*!|>'\"%@`]|[-?:](?=[^ \t\n])")
_PLAIN_LINE = re.compile(r"[^\n:#]*+(?>(?:(?::(?![ \t\n]|\Z)|(?<![ \t\n])#)[^\n:#]*+)*)")
_PLAIN_BREAK = re.compile(r"[ \t]*+((?>(?:\n[ ]*+)+))")
_PLAIN_KEY = re.compile(
    r"(?:[^ \t\n\-?:,\[\]{}#&*!|>'\"%@`]|[-?:](?=[^ \t\n]))"
    r"[^\n:#]*+(?>(?:(?::(?![ \t\n]|\Z)|(?<![ \t\n])#)[^\n:#]*+)*)(?=:)"
)
_QUOTED_KEY = re.compile(
    r"""("[^"\\\n]*+(?>(?:\\[^\n][^"\\\n]*+)*)"|'[^'\n]*+(?>(?:''[^'\n]*+)*)')[ ]*+(?=:(?:[ \t\n]|\Z))"""
)

# `key: text` in the first column, with another line of the first column, or nothing, below: most lines are like this.
_SIMPLE_PAIR = re.compile(
    r"([A-Za-z_][\w-]{0,63}+):[ ]++([^ \t\n\-?:,\[\]{}#&*!|>'\"%@`][^\n:#]*+(?>(?::(?![ \t\n])[^\n:#]*+)*))\n"
    r"(?=[^ \t\n#-]|\Z)"
)

_DOUBLE_QUOTED = re.compile(r'"([^"\\]*+(?>(?:\\.[^"\\]*+)*))"', re.DOTALL)
_SINGLE_QUOTED = re.compile(r"'([^']*+(?>(?:''[^']*+)*))'")
_SPACE_RUN = re.compile(r"[ \t\n]++")
_ESCAPE_OR_SPACE = re.compile(
    r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|\n([ \t\n]*+)|([^xuU\n]))|([ \t\n]++)|(\\)"
)
_ESCAPES = {
    "0": "\0", "a": "\a", "b": "\b", "t": "\t", "\t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", "e": "\x1b",
    " ": " ", '"': '"', "\\": "\\", "/": "/", "N": "\x85", "_": "\xa0", "L": "\u2028", "P": "\u2029",
}  # fmt: skip

_BLOCK_HEADER = re.compile(r"([|>])(?:([+-])([1-9])?|([1-9])([+-])?)?(?:[ ]++(?:#[^\n]*+)?)?(?:\n|\Z)")
_BLOCK_LEAD = re.compile(r"((?>(?:[ ]*+\n)*))([ ]*+)")

_FLOW_GAP = re.compile(r"(?>(?:[ \t\n]++|#[^\n]*+)*)")
_FLOW_PLAIN_START = re.compile(r"[^ \t\n\-?:,\[\]{}#&*!|>'\"%@`]|-(?=[^ \t\n])")
_FLOW_PLAIN_LINE = re.compile(r"[^\n:#,?\[\]{}]*+(?>(?:(?::(?![ \t\n,\[\]{}]|\Z)|(?<![ \t\n])#)[^\n:#,?\[\]{}]*+)*)")
_FLOW_COLON = re.compile(r"[ \t]*+:")


class _Reader:
    """One pass over the text; `pos` is where it stands, `end` where the last value ended."""

    def __init__(self, text: str, first_line: int) -> None:
        self.text = text
        self.first_line = first_line
        self.pos = 0
        self.end = 0
        self.line_start = 0
        self.counted = (0, first_line)
        self.sources: dict[str, Source] = {}
        self.repeated: list[tuple[str, int]] = []

    def read_document(self) -> dict[str, Value]:
        self._refuse_foreign_text()
        self._skip_gap()
        if self.pos >= len(self.text):
            return {}
        data = self._flow_document() if self._peek() == "{" else self._block_map(self._column(), depth=1)
        if self.pos < len(self.text):
            self._fail("text to the left of the first key")
        return data

    def _flow_document(self) -> dict[str, Value]:
        """A document that is one flow map, as JSON is."""
        self.pos += 1
        data = self._flow_map(1)
        self._finish_line()
        self._skip_gap()
        return data

    def _refuse_foreign_text(self) -> None:
        # What nearly every text passes at once spares it the search with a pattern.
        if not (self.text.isascii() and self.text.replace("\n", "").isprintable()):
            self._refuse(_UNPRINTABLE, "a control character")
        if "---" in self.text or "..." in self.text:
            self._refuse(_DOCUMENT_MARK, "a document mark")

    def _refuse(self, pattern: re.Pattern[str], reason: str) -> None:
        if match := pattern.search(self.text):
            self.pos = match.start()
            self._fail(reason)

    # --- where we are ---

    def _fail(self, reason: str) -> NoReturn:
        raise Unreadable(reason, self._line())

    def _line(self) -> int:
        # Counted from where the last count ended: a text of many keys is gone through once.
        pos, line = self.counted if self.counted[0] <= self.pos else (0, self.first_line)
        self.counted = (self.pos, line + self.text.count("\n", pos, self.pos))
        return self.counted[1]

    def _peek(self) -> str:
        return self.text[self.pos : self.pos + 1]

    def _column(self) -> int:
        return self.pos - self.line_start

    def _skip_gap(self) -> None:
        """Go to the next token of the block structure, over blank lines and comments."""
        while True:
            gap = _GAP.match(self.text, self.pos)
            assert gap is not None  # it matches the empty text too
            self.pos = gap.end()
            if self._peek() != "\t":
                break
            blank = _BLANK_WITH_TAB.match(self.text, self.pos)
            if blank is None:
                self._fail("a tab where spaces are needed")
            self.pos = blank.end()
        self.line_start = self.text.rfind("\n", 0, self.pos) + 1

    def _finish_line(self) -> None:
        """Behind a quoted or flow value only a comment may follow."""
        self.end = self.pos
        rest = _LINE_END.match(self.text, self.pos)
        if rest is None:
            self._fail("text behind a value that had ended")
        self.pos = rest.end()

    # --- block structure ---

    def _block_map(self, column: int, depth: int) -> dict[str, Value]:
        self._check_depth(depth)
        data: dict[str, Value] = {}
        while True:
            if depth == 1 and column == 0:
                self._simple_pairs(data)
                if data and self.pos >= len(self.text):
                    return data
            line = self._line() if depth == 1 else 0
            key = self._key()
            if key is None:
                self._fail("no key where one is needed")
            value_start = self.pos
            value = self._block_value(column, depth, compact=False)
            if depth == 1:
                self._note_source(key, value_start, line, repeated=key in data)
            data[key] = value
            if not self._continues_at(column):
                return data

    def _simple_pairs(self, data: dict[str, Value]) -> None:
        """Read the lines that one pattern can read; what is read is what the rest of this class would read."""
        while match := _SIMPLE_PAIR.match(self.text, self.pos):
            key, value = match[1], match[2].rstrip(" \t")
            line = self._line()
            if key in data:
                self.repeated.append((key, line))
            self.sources[key] = Source(value, line)
            data[key] = value
            self.pos = self.line_start = match.end()

    def _note_source(self, key: str, value_start: int, line: int, *, repeated: bool) -> None:
        if repeated:
            self.repeated.append((key, line))
        self.sources[key] = Source(self.text[value_start : max(self.end, value_start)].strip(), line)

    def _block_list(self, column: int, depth: int) -> list[Value]:
        self._check_depth(depth)
        items: list[Value] = []
        while True:
            self.pos += 1
            items.append(self._block_value(column, depth, compact=True))
            if not self._continues_at(column) or not _DASH.match(self.text, self.pos):
                return items

    def _continues_at(self, column: int) -> bool:
        """Go to the next line of a block; False when it lies left of the block or the text ends."""
        self._skip_gap()
        if self.pos >= len(self.text) or self._column() < column:
            return False
        if self._column() > column:
            self._fail("a line that is indented more than its neighbours")
        return True

    def _check_depth(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            self._fail(f"more than {MAX_DEPTH} levels")

    def _block_value(self, parent: int, depth: int, *, compact: bool) -> Value:
        """What stands behind `key:` or (compact) `- `, on this line or deeper than `parent` on the next ones."""
        self.end = self.pos
        line_start = self.line_start
        before = self.pos
        self._skip_gap()
        if self.pos >= len(self.text):
            return ""
        inline = self.line_start == line_start
        if inline and self.pos == before:
            self._fail("no space behind an indicator")
        column = self._column()
        dash = _DASH.match(self.text, self.pos) is not None
        # A list may stand in the column of its key, and so, in PyYAML, may the header of a block scalar.
        beside_key = column == parent and (self._peek() in ("|", ">") or (dash and not compact))
        if not inline and column <= parent and not beside_key:
            return ""
        if dash:
            if inline and not compact:
                self._fail("a list that begins on the line of its key")
            return self._block_list(column, depth + 1)
        if (compact or not inline) and self._key_follows():
            return self._block_map(column, depth + 1)
        return self._scalar(parent, depth)

    def _key_follows(self) -> bool:
        pos = self.pos
        found = self._key() is not None
        self.pos = pos
        return found

    def _key(self) -> str | None:
        """Read `key:`; None, and nothing read, when there is no key here."""
        start = self.pos
        if self._peek() in ("'", '"'):
            match = _QUOTED_KEY.match(self.text, start)
            key = self._quoted() if match else ""
        else:
            match = _PLAIN_KEY.match(self.text, start)
            key = match[0].rstrip(" ") if match else ""
        if match is None:
            return None
        if match.end() - start > _MAX_KEY_CHARS:
            self._fail(f"a key of more than {_MAX_KEY_CHARS} characters")
        self.pos = match.end() + 1
        return key

    # --- scalars ---

    def _scalar(self, parent: int, depth: int) -> Value:
        start = self._peek()
        if start in ("'", '"'):
            value: Value = self._quoted()
        elif start in ("[", "{"):
            value = self._flow_node(depth)
        elif start in ("|", ">"):
            return self._block_scalar(parent)
        else:
            return self._plain(parent + 1)
        self._finish_line()
        return value

    def _plain(self, indent: int) -> str:
        if not _PLAIN_START.match(self.text, self.pos):
            self._fail(f"a value cannot begin with {self._peek()!r}: put it in quotes")
        parts: list[str] = []
        while True:
            parts.append(self._plain_line(_PLAIN_LINE))
            if self._peek() == ":":
                self._fail("a colon inside a value: put it in quotes")
            fold = self._fold_before_next_line(indent)
            if fold is None:
                return "".join(parts)
            parts.append(fold)

    def _plain_line(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.pos)
        assert match is not None  # it matches the empty text too
        text = match[0].rstrip(" \t")
        self.end = self.pos + len(text)
        self.pos = match.end()
        return text

    def _fold_before_next_line(self, indent: int) -> str | None:
        """Go to the next line of a plain scalar and return what stands for the break; None, not moved, when it is over."""
        match = _PLAIN_BREAK.match(self.text, self.pos)
        if match is None:
            return None
        breaks = match[1]
        following = self.text[match.end() : match.end() + 1]
        column = len(breaks) - breaks.rfind("\n") - 1
        if not following or following in "#\t" or column < indent:
            return None
        self.pos = match.end()
        return _fold(breaks)

    def _quoted(self) -> str:
        double = self._peek() == '"'
        match = (_DOUBLE_QUOTED if double else _SINGLE_QUOTED).match(self.text, self.pos)
        if match is None:
            self._fail("a quote that is never closed")
        text = match[1]
        if double and "\\" in text:
            text = _ESCAPE_OR_SPACE.sub(self._unescape, text)
        elif "\n" in text:
            text = _SPACE_RUN.sub(lambda run: _fold(run[0]), text)
        self.pos = match.end()
        return text if double else text.replace("''", "'")

    def _unescape(self, match: re.Match[str]) -> str:
        digits = match[1] or match[2] or match[3]
        if digits:
            code = int(digits, 16)
            if code > 0x10FFFF:
                self._fail(f"there is no character with the number {digits}")
            return chr(code)
        if match[6]:
            return _fold(match[6])
        if match[4] is not None:
            return "\n" * match[4].count("\n")
        if match[5] not in _ESCAPES:
            self._fail("an unknown escape behind a backslash")
        return _ESCAPES[match[5]]

    def _block_scalar(self, parent: int) -> str:
        header = _BLOCK_HEADER.match(self.text, self.pos)
        if header is None:
            self._fail("a value cannot begin with | or >: put it in quotes")
        self.pos = header.end()
        chomping, digit = header[2] or header[5], header[3] or header[4]
        least = max(parent + 1, 1)
        lines = self._block_lines(least + int(digit) - 1 if digit else self._block_indent(least))
        self.end = self.pos
        return _chomp(lines, chomping, header[1] == ">", self.text[self.pos - 1 : self.pos] == "\n")

    def _block_indent(self, least: int) -> int:
        lead = _BLOCK_LEAD.match(self.text, self.pos)
        assert lead is not None  # it matches the empty text too
        blank = max((len(line) for line in lead[1].split("\n")), default=0)
        return max(least, blank, len(lead[2]))

    def _block_lines(self, indent: int) -> list[str]:
        """The lines of a block scalar without their indentation, blank ones as ''."""
        lines: list[str] = []
        while self.pos < len(self.text):
            end = self.text.find("\n", self.pos)
            stop = len(self.text) if end < 0 else end
            line = self.text[self.pos : stop]
            if line[:indent].strip(" ") or (end < 0 and len(line) <= indent):
                break  # text left of the block, or spaces that no line break makes a line
            lines.append(line[indent:])
            self.pos = min(stop + 1, len(self.text))
        return lines

    # --- flow structure ---

    def _flow_node(self, depth: int) -> Value:
        start = self._peek()
        if start in ("[", "{"):
            self._check_depth(depth + 1)
            self.pos += 1
            return self._flow_list(depth + 1) if start == "[" else self._flow_map(depth + 1)
        if start and start in "'\"":
            return self._quoted()
        return self._flow_plain()

    def _flow_list(self, depth: int) -> list[Value]:
        items: list[Value] = []
        while self._flow_goes_on("]", first=not items):
            item, is_key = self._flow_item(depth)
            items.append({_as_key(item): self._flow_value(depth)} if is_key else item)
        return items

    def _flow_map(self, depth: int) -> dict[str, Value]:
        data: dict[str, Value] = {}
        while self._flow_goes_on("}", first=not data):
            key, has_value = self._flow_item(depth)
            if not isinstance(key, str):
                self._fail("a key that is no text")
            data[key] = self._flow_value(depth) if has_value else ""
        return data

    def _flow_goes_on(self, closer: str, *, first: bool) -> bool:
        """Step over the comma to the next item; False, and past it, at the closing bracket."""
        self._skip_flow_gap()
        if not first and self._peek() == ",":
            self.pos += 1
            self._skip_flow_gap()
        elif not first and self._peek() != closer:
            self._fail(f"{closer} or a comma is missing")
        if self._peek() != closer:
            return True
        self.pos += 1
        return False

    def _flow_item(self, depth: int) -> tuple[Value, bool]:
        """One item, and whether it is a key: a colon follows it on the same line."""
        item = self._flow_node(depth)
        colon = _FLOW_COLON.match(self.text, self.pos)
        if colon is None:
            return item, False
        if not isinstance(item, str):
            self._fail("a key that is no text")
        self.pos = colon.end()
        return item, True

    def _flow_value(self, depth: int) -> Value:
        self._skip_flow_gap()
        return "" if self._peek() in (",", "]", "}") else self._flow_node(depth)

    def _flow_plain(self) -> str:
        if not _FLOW_PLAIN_START.match(self.text, self.pos):
            self._fail(f"an item cannot begin with {self._peek()!r}: put it in quotes")
        parts = [self._plain_line(_FLOW_PLAIN_LINE)]
        while True:
            stop = self.end
            fold = self._fold_before_next_line(0)
            part = self._plain_line(_FLOW_PLAIN_LINE) if fold else ""
            if not fold or not part:
                self.pos = self.end = stop
                return "".join(parts)
            parts += [fold, part]

    def _skip_flow_gap(self) -> None:
        if self._peek() not in " \t\n#":
            return  # most items have no gap before them
        gap = _FLOW_GAP.match(self.text, self.pos)
        assert gap is not None  # it matches the empty text too
        self.pos = gap.end()


def _as_key(item: Value) -> str:
    assert isinstance(item, str)  # `_flow_item` refused everything else
    return item


def _fold(run: str) -> str:
    """White space inside a scalar that goes over several lines: one break is a space, more are one less."""
    breaks = run.count("\n")
    if breaks == 0:
        return run
    return " " if breaks == 1 else "\n" * (breaks - 1)


def _chomp(lines: list[str], chomping: str | None, folded: bool, ends_with_break: bool) -> str:
    count = len(lines)
    while count and not lines[count - 1]:
        count -= 1
    tail = len(lines) - count
    if count == 0:
        return "\n" * tail if chomping == "+" else ""
    text = _fold_lines(lines[:count]) if folded else "\n".join(lines[:count])
    if chomping == "-" or not (tail or ends_with_break):
        return text
    return text + "\n" * (1 + tail if chomping == "+" else 1)


def _fold_lines(lines: list[str]) -> str:
    """`>`: a break between two lines of text is a space; lines that begin with white space keep theirs."""
    parts: list[str] = []
    blank, before = 0, ""
    for line in lines:
        if not line:
            blank += 1
            continue
        if before:
            both_text = before[0] not in " \t" and line[0] not in " \t"
            parts.append(("" if blank else " ") if both_text else "\n")
        parts.append("\n" * blank + line)
        blank, before = 0, line
    return "".join(parts)
