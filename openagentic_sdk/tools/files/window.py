"""Fit text into what a model can read: a window of numbered lines of limited length, with notes on what was cut.

Pure and streaming: text comes in pieces, and no more of it is kept than will be shown.
"""

from __future__ import annotations

from dataclasses import field
from json.encoder import encode_basestring_ascii

from ...ground.frozen import mutable
from ...ground.text import CUT_MARGIN, Redact, safe_cut

# The JSON size of a line number, a tab and a line end.
LINE_NUMBER_CHARS = 10


@mutable
class LineWindow:
    """The lines `first` to `first + limit - 1` of a text that comes in pieces. Lines are counted from 1.

    A line excludes its newline and one carriage return before that, and keeps at most `max_line_chars`. The window closes
    early if its lines, with their numbers and as JSON, would exceed `max_chars`. A cut splits nothing that `redact` masks.
    """

    first: int
    limit: int
    max_line_chars: int
    max_chars: int
    redact: Redact | None = None
    lines: list[str] = field(default_factory=list)
    cut_lines: int = 0
    closed: bool = False
    _number: int = 1  # the number of the line being assembled
    _head: str = ""
    _length: int = 0
    _chars: int = 0

    def feed(self, text: str) -> None:
        start = 0
        while start < len(text) and not self.closed and self._number < self.first:
            newline = text.find("\n", start)
            self._length += (len(text) if newline < 0 else newline) - start
            start = len(text) if newline < 0 else newline + 1
            if newline >= 0:
                self._next_line()
        while start < len(text) and not self.closed:
            newline = text.find("\n", start)
            end = len(text) if newline < 0 else newline
            # More than is shown, to detect a carriage return at the limit, and not to cut a secret that must be masked.
            room = self.max_line_chars + 1 + (CUT_MARGIN if self.redact else 0) - len(self._head)
            if room > 0:
                self._head += text[start : min(end, start + room)]
            self._length += end - start
            start = len(text) if newline < 0 else newline + 1
            if newline >= 0:
                self._keep_line()
        if start < len(text):
            self._number += text.count("\n", start)
            last = text.rfind("\n", start)
            self._length = len(text) - last - 1 if last >= 0 else self._length + len(text) - start

    def finish(self) -> int:
        """End the text; return its number of lines."""
        if self._length == 0:
            return self._number - 1
        total = self._number
        if not self.closed and self._number >= self.first:
            self._keep_line()
        return total

    @property
    def last(self) -> int:
        """The number of the last line in the window; `first - 1` if it is empty."""
        return self.first + len(self.lines) - 1

    def _keep_line(self) -> None:
        line = self._head
        if self._length == len(line) and line.endswith("\r"):
            line = line[:-1]
        elif self._length > self.max_line_chars:
            line = cut_line(line, self._length, safe_cut(line, self.max_line_chars, self.redact))
            self.cut_lines += 1
        chars = json_chars(line) + LINE_NUMBER_CHARS
        if self.lines and self._chars + chars > self.max_chars:
            self.closed = True
        else:
            self.lines.append(line)
            self._chars += chars
            self.closed = len(self.lines) >= self.limit
        self._next_line()

    def _next_line(self) -> None:
        self._number += 1
        self._head = ""
        self._length = 0


def json_chars(text: str) -> int:
    """The length of a text as ASCII JSON, the form in which it is stored: most characters outside ASCII take six."""
    return len(encode_basestring_ascii(text)) - 2


def cut_line(head: str, length: int, max_chars: int) -> str:
    """The first `max_chars` characters of a line of `length`, with the number of omitted ones; a shorter line as it is."""
    return f"{head[:max_chars]}… (+{length - max_chars:,} characters)" if length > max_chars else head


def number_lines(lines: list[str], first: int) -> str:
    """The lines preceded by their numbers and a tab, like `cat -n`."""
    return "\n".join(f"{number:>6}\t{line}" for number, line in enumerate(lines, first))
