"""Text on a terminal: colours only where they belong, and no character that could command the terminal.

Everything that a model, a tool or a file said goes through `printable` before it is shown; the log keeps it as it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Mapping
from typing import TextIO

from ...patterns import regex
from ...text import printable

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_STYLE_CODES = regex("(\x1b\\[(?:0|[12]|3[1236])m)")


def _safe(text: str) -> str:
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    parts = _STYLE_CODES.split(text)
    return "".join(part if place % 2 else printable(part) for place, part in enumerate(parts))


class Screen:
    """Where lines go, and whether the last one is still open. `colour` None means: on a terminal without NO_COLOR."""

    def __init__(self, out: TextIO, *, colour: bool | None = None, environ: Mapping[str, str] = os.environ) -> None:
        self._out = out
        self.is_terminal = out.isatty()
        wanted = self.is_terminal and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
        self.has_colours = wanted if colour is None else colour
        self._at_line_start = True

    def styled(self, text: str, style: str) -> str:
        """The text in a colour, or as it is where colours do not belong."""
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self.has_colours else text

    def write(self, text: str) -> None:
        """Show text at once; the line stays open unless the text ends with a newline.

        Whoever forgot to make a text safe does no harm: of all control codes only the colours of `styled` pass.
        """
        if text:
            self._out.write(_safe(text))
            self._out.flush()
            self._at_line_start = text.endswith("\n")

    def end_line(self) -> None:
        """Go to the start of a line, if not there already."""
        if not self._at_line_start:
            self.write("\n")

    def line_was_typed(self, *, echoed: bool) -> None:
        """Somebody answered: a terminal that echoed the newline is at the start of a line, anything else is not."""
        self._at_line_start = echoed
        self.end_line()

    def rewrite(self, text: str) -> None:
        """Put text in the place of the current line, on a terminal; the empty text clears it."""
        self._out.write(f"\r\x1b[K{_safe(text)}")
        self._out.flush()
        self._at_line_start = not text

    def line(self, text: str) -> None:
        """Show text on lines of its own."""
        self.end_line()
        self.write(text + "\n")


async def read_line(prompt: str, screen: Screen) -> str | None:
    """Ask for one line without stopping the event loop; None at the end of input.

    A terminal hands over whole lines, so waiting until stdin can be read is enough and a cancelled question leaves no
    thread behind. Files and pipes are read directly: their next line is there or about to be.
    """
    screen.write(prompt)
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

    # Windows event loops cannot watch stdin; there the read itself waits.
    with contextlib.suppress(NotImplementedError):
        loop.add_reader(descriptor, settle)
        try:
            await ready
        finally:
            loop.remove_reader(descriptor)
