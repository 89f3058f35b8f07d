"""Text on a terminal: colours only where appropriate, and no character that could control the terminal.

All text of models, tools and files passes through `printable` before it is shown; the log keeps it unchanged. Below the
text there may be changing rows (`show_below`): they are removed before more text is written, and redrawn after it, in one
write, so that nothing flickers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TextIO

from ...ground.text import printable
from .palette import CODES, RESET, codes, colour_depth
from .piped import piped_stdin
from .widths import text_width

_MOMENT_S = 0.2
# Synchronized output (github.com/contour-terminal/vt-extensions): terminals that support it show all of it at once.
_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"


def _safe(text: str) -> str:
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    if "\x1b" not in text:
        return printable(text)
    parts = CODES.split(text)
    return "".join(part if place % 2 else printable(part) for place, part in enumerate(parts))


def plain_width(text: str) -> int:
    """The number of columns of a text that may contain styles."""
    return text_width(CODES.sub("", text) if "\x1b" in text else text)


class Screen:
    """An output stream, usually a terminal, and the state of its last line.

    With `colour` None, colours are used on a terminal without NO_COLOR. With `plain`, no rows are kept below the text and,
    unless `colour` is true, no colour is used, for screen readers and for simple terminals.
    """

    def __init__(
        self, out: TextIO, *, colour: bool | None = None, plain: bool = False, environ: Mapping[str, str] = os.environ
    ) -> None:
        self._out = out
        self.is_terminal = out.isatty()
        self.can_rewrite = self.is_terminal and not plain and environ.get("TERM", "") not in ("", "dumb")
        depth = colour_depth(environ)
        self._depth = (depth if self.is_terminal and not plain else 0) if colour is None else (depth or 16) * colour
        self._at_line_start = True
        self._open = ""  # the contents of the row that is still open
        self._column = 0
        self._below: Sequence[str] = ()
        self._drawn: Sequence[str] = ()
        self._hide_count = 0
        self._size, self._measure_at = os.terminal_size((80, 24)), 0.0
        self._cut: tuple[Sequence[str], os.terminal_size, Sequence[str]] = (), self._size, ()

    @property
    def has_colours(self) -> bool:
        """Whether styles are shown."""
        return self._depth > 0

    @property
    def width(self) -> int:
        """The number of columns of the terminal, measured at most every 0.2 s; at least 10, and 80 if unknown."""
        return max(self._measured().columns, 10)

    def _measured(self) -> os.terminal_size:
        now = time.monotonic()
        if self.is_terminal and now >= self._measure_at:
            try:
                self._size = os.get_terminal_size(self._out.fileno())
            except (OSError, ValueError):  # no real terminal
                self._size = os.terminal_size((0, 0))
            if not (self._size.columns and self._size.lines):  # it does not report its size: use the environment's
                self._size = shutil.get_terminal_size()
            self._measure_at = now + _MOMENT_S
        return self._size

    def styled(self, text: str, style: str) -> str:
        """The text in a style of the palette, or unchanged if colours are off."""
        return f"{codes(style, self._depth)}{text}{RESET}" if self._depth and style and text else text

    def write(self, text: str) -> None:
        """Show text immediately; the line stays open unless the text ends with a newline.

        Unsafe text does no harm: of all control codes only those of `styled` pass.
        """
        if text:
            self._put(_safe(text))

    def _put(self, text: str) -> None:
        _, is_new, last = text.rpartition("\n")
        erased = self._erased()
        self._column = plain_width(last) + (0 if is_new else self._column)
        if self.can_rewrite:
            self._open = last if is_new else self._open + last
        self._at_line_start = self._column == 0
        self._out.write(self._in_one(erased + text + self._redrawn()))
        self._out.flush()

    def end_line(self) -> None:
        """Move to the start of a line, unless already there."""
        if not self._at_line_start:
            self.write("\n")

    def line_was_typed(self, *, echoed: bool) -> None:
        """Note that somebody answered; move to the start of a line unless the terminal did so by echoing the newline."""
        self._at_line_start, self._open = echoed, ""
        self._column = 0 if echoed else max(self._column, 1)
        self.end_line()

    def rewrite(self, text: str) -> None:
        """Replace the current line, on a terminal; the empty text clears it."""
        self._out.write(f"\r\x1b[K{_safe(text)}")
        self._out.flush()
        self._at_line_start, self._open = not text, _safe(text)
        self._column = plain_width(text)

    def line(self, text: str) -> None:
        """Show text on lines of its own: it begins at the start of a line, and a newline is added."""
        self.write(("" if self._at_line_start else "\n") + text + "\n")

    def lines(self, lines: Iterable[str]) -> None:
        """Show each of these strings as `line` does."""
        for line in lines:
            self.line(line)

    def tell(self, as_json: bool, data: Any, lines: Iterable[str]) -> None:
        """Show a command's result: `data` as one line of JSON if `as_json`, otherwise the lines."""
        self.lines([json.dumps(data)] if as_json else lines)

    def clear(self) -> None:
        """Clear the screen, and redraw the rows below the text at its top."""
        if self.can_rewrite:
            self.begin_anew()
            self._out.write("\x1b[2J\x1b[H" + self._redrawn())
            self._out.flush()

    def begin_anew(self) -> None:
        """Record that something else has written to the terminal, whose cursor is now at the start of a row; existing
        rows are not touched.
        """
        self._drawn, self._open, self._column, self._at_line_start = (), "", 0, True

    # --- rows that change --------------------------------------------------------------------------------------------

    def show_below(self, rows: Sequence[str]) -> None:
        """Show these rows below the text from now on, each truncated at the width; an empty list removes them.

        Does nothing unless the output is a terminal on which rows can be rewritten.
        """
        if not self.can_rewrite or (list(rows) == list(self._below) and bool(self._drawn) == bool(rows)):
            return
        erased = self._erased()
        self._below = list(rows)
        if self._hide_count:
            return
        self._out.write(self._in_one(erased + self._redrawn()))
        self._out.flush()

    @contextlib.contextmanager
    def nothing_below(self) -> Iterator[None]:
        """Hide the status rows while something else uses the terminal."""
        self._out.write(self._erased())
        self._hide_count += 1
        try:
            yield
        finally:
            self._hide_count -= 1

    def _in_one(self, text: str) -> str:
        return _BEGIN + text + _END if self.can_rewrite and (self._drawn or "\x1b[J" in text) else text

    def resized(self) -> None:
        """Redraw the rows below the text for the terminal's new size."""
        self._measure_at = 0.0
        if self._drawn:
            self._out.write(self._in_one(self._erased() + self._redrawn()))
            self._out.flush()

    def _erased(self) -> str:
        """Return the codes that remove the rows below and rewrite the open row, and note that no rows are drawn."""
        if not self._drawn:
            return ""
        rows = len(self._drawn)
        if self.width < self._cut[1].columns:  # a terminal that became narrower has wrapped them
            rows = sum(max(1, -(-plain_width(row) // self.width)) for row in self._drawn)
        up = rows - 1 + -(-self._column // self.width)
        self._drawn = ()
        return "\r" + (f"\x1b[{up}A" if up else "") + "\x1b[J" + self._open

    def _redrawn(self) -> str:
        if not self._below or self._hide_count:
            return ""
        size = self._measured()
        if self._cut[:2] != (self._below, size):
            # Rows that do not fit on the screen with the text would scroll away, and could not be removed.
            visible_rows = self._below[-max(size.lines - 1, 1) :]
            self._cut = self._below, size, [_cut_styled(_safe(row), self.width - 1) for row in visible_rows]
        self._drawn = self._cut[2]
        return ("\n" if self._column else "") + "\n".join(self._drawn)


def _cut_styled(row: str, columns: int) -> str:
    """A row without the part beyond its last column; active styles are turned off."""
    if plain_width(row) <= columns:
        return row
    parts, room = [], columns - 1
    for place, part in enumerate(CODES.split(row)):
        if place % 2:
            parts.append(part)
            continue
        for letter in part:
            room -= text_width(letter)
            if room < 0:
                return "".join([*parts, "…", RESET if len(parts) > 1 and "\x1b" in row else ""])
            parts.append(letter)
    return "".join(parts)


async def read_line(prompt: str, screen: Screen) -> str | None:
    """Ask for one line without blocking the event loop; None at end of input.

    A terminal delivers whole lines, so waiting until stdin is readable is enough and a cancelled question leaves no thread.
    """
    screen.write(prompt)
    piped = piped_stdin()
    if piped is not None:
        reply = await piped.next_line(_wait_until_readable)
        screen.line_was_typed(echoed=False)
        return reply
    if sys.stdin.isatty():
        await _wait_until_readable(sys.stdin.fileno())
    line = sys.stdin.readline()
    screen.line_was_typed(echoed=sys.stdin.isatty() and line.endswith("\n"))
    return line.rstrip("\n") if line else None


async def _wait_until_readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def settle() -> None:
        if not ready.done():
            ready.set_result(None)

    # Windows event loops cannot watch stdin; there the read itself waits. No loop can watch a file, which never waits.
    with contextlib.suppress(NotImplementedError, PermissionError):
        loop.add_reader(descriptor, settle)
        try:
            await ready
        finally:
            loop.remove_reader(descriptor)
