"""The part of YAML that metadata in Markdown files uses: maps, lists and scalars, every scalar a string.

Supported: block maps and lists at any sane depth, flow lists and maps, plain, quoted and block scalars over several
lines, comments. Refused: anchors, aliases, tags, directives, complex keys, several documents, tabs as indentation. The
result equals that of PyYAML's BaseLoader, rule by rule: where YAML leaves a choice, PyYAML's scanner is the reference.
Patterns are possessive (`*+`) or atomic (`(?>...)`), so that no input causes backtracking; a group is never possessive,
which Python before 3.11.5 handles incorrectly.
"""

from __future__ import annotations

import re
from typing import NamedTuple, NoReturn, TypeAlias

from ..ground.patterns import regex

MAX_DEPTH = 20
# Longer text is not a key (YAML 1.1, section 7.4.2).
_MAX_KEY_CHARS = 1024

Value: TypeAlias = str | list["Value"] | dict[str, "Value"]


class Unreadable(ValueError):
    """An error for a text that is not in the supported subset of YAML; `line` is where reading stopped."""

    def __init__(self, reason: str, line: int) -> None:
        super().__init__(reason)
        self.line = line


class SourceText(NamedTuple):
    """A value as written in the file, and its line."""

    text: str
    line: int


def read_mapping(
    text: str, *, first_line: int = 1
) -> tuple[dict[str, Value], dict[str, SourceText], list[tuple[str, int]]]:
    r"""Read the top-level map, the source of each of its values, and its duplicate keys with their lines.

    `text` has `\n` as line breaks. Raises `Unreadable`; its lines, like those of the sources, count from `first_line`.
    """
    reader = YamlReader(text, first_line)
    return reader.read_document(), reader.sources, reader.repeated


_UNPRINTABLE = regex("[^\t\n -~\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_DOCUMENT_MARK = regex(r"^(?:---|\.\.\.)(?=[ \t\n]|\Z)", re.MULTILINE)
_GAP = regex(r"(?>(?:[ ]*+(?:#[^\n]*+)?\n)*)[ ]*+(?:#[^\n]*+\Z)?")
_BLANK_WITH_TAB = regex(r"[ \t]*+(?:#[^\n]*+)?(?:\n|\Z)")
_LINE_END = regex(r"[ \t]*+(?:#[^\n]*+)?(?=\n|\Z)")
_DASH = regex(r"-(?=[ \t\n]|\Z)")

# How a plain scalar begins, and the rest of its line.
_START = r"(?:[^ \t\n\-?:,\[\]{}#&*!|>'\"%@`]|[-?:](?=[^ \t\n]))"
_REST = r"[^\n:#]*+(?>(?:(?::(?![ \t\n]|\Z)|(?<![ \t\n])#)[^\n:#]*+)*)"
_PLAIN_START, _PLAIN_LINE, _PLAIN_KEY = regex(_START), regex(_REST), regex(rf"{_START}{_REST}(?=:)")
_PLAIN_BREAK = regex(r"[ \t]*+((?>(?:\n[ ]*+)+))")
_QUOTED_KEY = regex(
    r"""("[^"\\\n]*+(?>(?:\\[^\n][^"\\\n]*+)*)"|'[^'\n]*+(?>(?:''[^'\n]*+)*)')[ ]*+(?=:(?:[ \t\n]|\Z))"""
)

# `key: text` in the first column, with another line of the first column, or nothing, below: most lines are like this.
_SIMPLE_PAIR = regex(
    r"([A-Za-z_][\w-]{0,63}+):[ ]++([^ \t\n\-?:,\[\]{}#&*!|>'\"%@`][^\n:#]*+(?>(?::(?![ \t\n])[^\n:#]*+)*))\n"
    r"(?=[^ \t\n#-]|\Z)"
)

_DOUBLE_QUOTED = regex(r'"([^"\\]*+(?>(?:\\.[^"\\]*+)*))"', re.DOTALL)
_SINGLE_QUOTED = regex(r"'([^']*+(?>(?:''[^']*+)*))'")
_SPACE_RUN = regex(r"[ \t\n]++")
_ESCAPE_OR_SPACE = regex(
    r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|\n([ \t\n]*+)|([^xuU\n]))|([ \t\n]++)|(\\)"
)
_ESCAPES = {
    "0": "\0", "a": "\a", "b": "\b", "t": "\t", "\t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", "e": "\x1b",
    " ": " ", '"': '"', "\\": "\\", "/": "/", "N": "\x85", "_": "\xa0", "L": "\u2028", "P": "\u2029",
}  # fmt: skip

_BLOCK_HEADER = regex(r"([|>])(?:([+-])([1-9])?|([1-9])([+-])?)?(?:[ ]++(?:#[^\n]*+)?)?(?:\n|\Z)")
_BLOCK_LEAD = regex(r"((?>(?:[ ]*+\n)*))([ ]*+)")

_FLOW_GAP = regex(r"(?>(?:[ \t\n]++|#[^\n]*+)*)")
_FLOW_PLAIN_START = regex(r"[^ \t\n\-?:,\[\]{}#&*!|>'\"%@`]|-(?=[^ \t\n])")
_FLOW_PLAIN_LINE = regex(r"[^\n:#,?\[\]{}]*+(?>(?:(?::(?![ \t\n,\[\]{}]|\Z)|(?<![ \t\n])#)[^\n:#,?\[\]{}]*+)*)")
_FLOW_COLON = regex(r"[ \t]*+:")


class YamlReader:
    """A reader of one text, in a single pass; `pos` is the current position, `end` the end of the last value."""

    def __init__(self, text: str, first_line: int) -> None:
        self.text = text
        self.first_line = first_line
        self.pos = 0
        self.end = 0
        self.line_start = 0
        self.counted = (0, first_line)
        self.sources: dict[str, SourceText] = {}
        self.repeated: list[tuple[str, int]] = []

    def read_document(self) -> dict[str, Value]:
        # Nearly every text passes this quick check, which avoids the search with a pattern.
        if not (self.text.isascii() and self.text.replace("\n", "").isprintable()):
            self.refuse(_UNPRINTABLE, "a control character")
        if "---" in self.text or "..." in self.text:
            self.refuse(_DOCUMENT_MARK, "a document mark")
        self.skip_gap()
        if self.pos >= len(self.text):
            return {}
        if self.peek() == "{":  # one flow map, as JSON is
            self.pos += 1
            data = self.flow_map(1)
            self.finish_line()
            self.skip_gap()
        else:
            data = self.block_map(self.column(), depth=1)
        if self.pos < len(self.text):
            self.fail("text to the left of the first key")
        return data

    def refuse(self, pattern: re.Pattern[str], reason: str) -> None:
        if match := pattern.search(self.text):
            self.pos = match.start()
            self.fail(reason)

    # --- where we are ---

    def fail(self, reason: str) -> NoReturn:
        raise Unreadable(reason, self.line())

    def line(self) -> int:
        # Counted from where the last count ended, so that a text with many keys is scanned only once.
        pos, line = self.counted if self.counted[0] <= self.pos else (0, self.first_line)
        self.counted = (self.pos, line + self.text.count("\n", pos, self.pos))
        return self.counted[1]

    def peek(self) -> str:
        return self.text[self.pos : self.pos + 1]

    def column(self) -> int:
        return self.pos - self.line_start

    def skip_gap(self) -> None:
        """Advance to the next token of the block structure, over blank lines and comments."""
        while True:
            gap = _GAP.match(self.text, self.pos)
            assert gap is not None  # it matches the empty text too
            self.pos = gap.end()
            if self.peek() != "\t":
                break
            blank = _BLANK_WITH_TAB.match(self.text, self.pos)
            if blank is None:
                self.fail("a tab where spaces are needed")
            self.pos = blank.end()
        self.line_start = self.text.rfind("\n", 0, self.pos) + 1

    def finish_line(self) -> None:
        """Require that only a comment follows a quoted or flow value."""
        self.end = self.pos
        rest = _LINE_END.match(self.text, self.pos)
        if rest is None:
            self.fail("text after the end of a value")
        self.pos = rest.end()

    # --- block structure ---

    def block_map(self, column: int, depth: int) -> dict[str, Value]:
        self.check_depth(depth)
        data: dict[str, Value] = {}
        while True:
            if depth == 1 and column == 0:
                self.simple_pairs(data)
                if data and self.pos >= len(self.text):
                    return data
            line = self.line() if depth == 1 else 0
            key = self.key()
            if key is None:
                self.fail("a key is missing")
            value_start = self.pos
            value = self.block_value(column, depth, compact=False)
            if depth == 1:
                if key in data:
                    self.repeated.append((key, line))
                self.sources[key] = SourceText(self.text[value_start : max(self.end, value_start)].strip(), line)
            data[key] = value
            if not self.continues_at(column):
                return data

    def simple_pairs(self, data: dict[str, Value]) -> None:
        """Read the lines that a single pattern can read, with the same result as the rest of this class."""
        while match := _SIMPLE_PAIR.match(self.text, self.pos):
            key, value = match[1], match[2].rstrip(" \t")
            line = self.line()
            if key in data:
                self.repeated.append((key, line))
            self.sources[key] = SourceText(value, line)
            data[key] = value
            self.pos = self.line_start = match.end()

    def block_list(self, column: int, depth: int) -> list[Value]:
        self.check_depth(depth)
        items: list[Value] = []
        while True:
            self.pos += 1
            items.append(self.block_value(column, depth, compact=True))
            if not self.continues_at(column) or not _DASH.match(self.text, self.pos):
                return items

    def continues_at(self, column: int) -> bool:
        """Advance to the next line of a block; return False if it is left of the block or the text ends."""
        self.skip_gap()
        if self.pos >= len(self.text) or self.column() < column:
            return False
        if self.column() > column:
            self.fail("a line with more indentation than its neighbours")
        return True

    def check_depth(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            self.fail(f"more than {MAX_DEPTH} levels")

    def block_value(self, parent: int, depth: int, *, compact: bool) -> Value:
        """Read the value after `key:` or (compact) `- `, on this line or indented deeper than `parent` on the next ones."""
        self.end = self.pos
        line_start = self.line_start
        before = self.pos
        self.skip_gap()
        if self.pos >= len(self.text):
            return ""
        inline = self.line_start == line_start
        if inline and self.pos == before:
            self.fail("no space after an indicator")
        column = self.column()
        dash = _DASH.match(self.text, self.pos) is not None
        # A list may be in the column of its key; in PyYAML, so may the header of a block scalar.
        beside_key = column == parent and (self.peek() in ("|", ">") or (dash and not compact))
        if not inline and column <= parent and not beside_key:
            return ""
        if dash:
            if inline and not compact:
                self.fail("a list that begins on the line of its key")
            return self.block_list(column, depth + 1)
        if compact or not inline:
            start = self.pos
            is_key = self.key() is not None
            self.pos = start
            if is_key:
                return self.block_map(column, depth + 1)
        return self.scalar(parent, depth)

    def key(self) -> str | None:
        """Read `key:`; return None, without reading, if there is no key here."""
        start = self.pos
        if self.peek() in ("'", '"'):
            match = _QUOTED_KEY.match(self.text, start)
            key = self.quoted() if match else ""
        else:
            match = _PLAIN_KEY.match(self.text, start)
            key = match[0].rstrip(" ") if match else ""
        if match is None:
            return None
        if match.end() - start > _MAX_KEY_CHARS:
            self.fail(f"a key of more than {_MAX_KEY_CHARS} characters")
        self.pos = match.end() + 1
        return key

    # --- scalars ---

    def scalar(self, parent: int, depth: int) -> Value:
        start = self.peek()
        if start in ("'", '"'):
            value: Value = self.quoted()
        elif start in ("[", "{"):
            value = self.flow_node(depth)
        elif start in ("|", ">"):
            return self.block_scalar(parent)
        else:
            return self.plain(parent + 1)
        self.finish_line()
        return value

    def plain(self, indent: int) -> str:
        if not _PLAIN_START.match(self.text, self.pos):
            self.fail(f"a value cannot begin with {self.peek()!r}, so put it in quotes")
        parts: list[str] = []
        while True:
            parts.append(self.plain_line(_PLAIN_LINE))
            if self.peek() == ":":
                self.fail("a colon inside a value that is not in quotes")
            fold = self.fold_before_next_line(indent)
            if fold is None:
                return "".join(parts)
            parts.append(fold)

    def plain_line(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.pos)
        assert match is not None  # it matches the empty text too
        text = match[0].rstrip(" \t")
        self.end = self.pos + len(text)
        self.pos = match.end()
        return text

    def fold_before_next_line(self, indent: int) -> str | None:
        """Advance to the next line of a plain scalar and return the folded break; None, without advancing, at its end."""
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

    def quoted(self) -> str:
        double = self.peek() == '"'
        match = (_DOUBLE_QUOTED if double else _SINGLE_QUOTED).match(self.text, self.pos)
        if match is None:
            self.fail("a quote that is never closed")
        text = match[1]
        if double and "\\" in text:
            text = _ESCAPE_OR_SPACE.sub(self.unescape, text)
        elif "\n" in text:
            text = _SPACE_RUN.sub(lambda run: _fold(run[0]), text)
        self.pos = match.end()
        return text if double else text.replace("''", "'")

    def unescape(self, match: re.Match[str]) -> str:
        digits = match[1] or match[2] or match[3]
        if digits:
            code = int(digits, 16)
            if code > 0x10FFFF:
                self.fail(f"there is no character with the number {digits}")
            return chr(code)
        if match[6]:
            return _fold(match[6])
        if match[4] is not None:
            return "\n" * match[4].count("\n")
        if match[5] not in _ESCAPES:
            self.fail("an unknown escape after a backslash")
        return _ESCAPES[match[5]]

    def block_scalar(self, parent: int) -> str:
        header = _BLOCK_HEADER.match(self.text, self.pos)
        if header is None:
            self.fail("a value cannot begin with | or >, so put it in quotes")
        self.pos = header.end()
        chomping, digit = header[2] or header[5], header[3] or header[4]
        least = max(parent + 1, 1)
        if digit:
            indent = least + int(digit) - 1
        else:
            lead = _BLOCK_LEAD.match(self.text, self.pos)
            assert lead is not None  # it matches the empty text too
            indent = max(least, *(len(line) for line in lead[1].split("\n")), len(lead[2]))
        lines = self.block_lines(indent)
        self.end = self.pos
        return _chomp(lines, chomping, header[1] == ">", self.text[self.pos - 1 : self.pos] == "\n")

    def block_lines(self, indent: int) -> list[str]:
        """Read the lines of a block scalar without their indentation, blank ones as ''."""
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

    def flow_node(self, depth: int) -> Value:
        start = self.peek()
        if start in ("[", "{"):
            self.check_depth(depth + 1)
            self.pos += 1
            return self.flow_list(depth + 1) if start == "[" else self.flow_map(depth + 1)
        if start and start in "'\"":
            return self.quoted()
        return self.flow_plain()

    def flow_list(self, depth: int) -> list[Value]:
        items: list[Value] = []
        while self.flow_goes_on("]", first=not items):
            item, is_key = self.flow_item(depth)
            items.append({str(item): self.flow_value(depth)} if is_key else item)
        return items

    def flow_map(self, depth: int) -> dict[str, Value]:
        data: dict[str, Value] = {}
        while self.flow_goes_on("}", first=not data):
            key, has_value = self.flow_item(depth)
            if not isinstance(key, str):
                self.fail("a key that is not a string")
            data[key] = self.flow_value(depth) if has_value else ""
        return data

    def flow_goes_on(self, closer: str, *, first: bool) -> bool:
        """Step over the comma to the next item; at the closing bracket, step over that and return False."""
        self.skip_flow_gap()
        if not first and self.peek() == ",":
            self.pos += 1
            self.skip_flow_gap()
        elif not first and self.peek() != closer:
            self.fail(f"{closer} or a comma is missing")
        if self.peek() != closer:
            return True
        self.pos += 1
        return False

    def flow_item(self, depth: int) -> tuple[Value, bool]:
        """Read one item; return it, and whether it is a key, which a colon follows on the same line."""
        item = self.flow_node(depth)
        colon = _FLOW_COLON.match(self.text, self.pos)
        if colon is None:
            return item, False
        if not isinstance(item, str):
            self.fail("a key that is not a string")
        self.pos = colon.end()
        return item, True

    def flow_value(self, depth: int) -> Value:
        self.skip_flow_gap()
        return "" if self.peek() in (",", "]", "}") else self.flow_node(depth)

    def flow_plain(self) -> str:
        if not _FLOW_PLAIN_START.match(self.text, self.pos):
            self.fail(f"an item cannot begin with {self.peek()!r}, so put it in quotes")
        parts = [self.plain_line(_FLOW_PLAIN_LINE)]
        while True:
            stop = self.end
            fold = self.fold_before_next_line(0)
            part = self.plain_line(_FLOW_PLAIN_LINE) if fold else ""
            if not fold or not part:
                self.pos = self.end = stop
                return "".join(parts)
            parts += [fold, part]

    def skip_flow_gap(self) -> None:
        if self.peek() not in " \t\n#":
            return  # most items have no gap before them
        gap = _FLOW_GAP.match(self.text, self.pos)
        assert gap is not None  # it matches the empty text too
        self.pos = gap.end()


def _fold(run: str) -> str:
    """Fold the white space inside a multi-line scalar: one break is a space, several are one fewer."""
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
    """Fold a `>` scalar: breaks between lines of text become spaces, those around lines that begin with white space stay."""
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
