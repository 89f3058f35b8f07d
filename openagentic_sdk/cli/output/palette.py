"""A terminal's colours, and the codes of each style in them.

`COLORTERM` announces 24-bit colour (truecolor, 24bit), `TERM` 256 colours by its suffix; every colour terminal has 16.
`NO_COLOR` (no-color.org) and `TERM=dumb` mean none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...ground.patterns import regex

Style = Callable[[str, str], str]  # a text in the style of this name
Depth = int  # how many colours: 0, 16, 256 or 2 ** 24
TRUE_COLOUR = 1 << 24

# Each style as select-graphic-rendition parameters (ECMA-48, 8.3.117): with 16 colours, with 256, with all.
_STYLES: Mapping[str, tuple[str, str, str]] = {
    "bold": ("1", "1", "1"),
    "dim": ("2", "2", "2"),
    "italic": ("3", "3", "3"),
    "red": ("31", "31", "31"),
    "green": ("32", "32", "32"),
    "yellow": ("33", "33", "33"),
    "cyan": ("36", "36", "36"),
    "heading": ("1;34", "1;38;5;75", "1;38;2;97;175;239"),
    "bullet": ("34", "38;5;75", "38;2;97;175;239"),
    "code": ("36", "38;5;180", "38;2;209;179;128"),
    "link": ("4", "4;38;5;75", "4;38;2;97;175;239"),
    "added": ("32", "38;5;114;48;5;22", "38;2;181;230;181;48;2;20;54;32"),
    "removed": ("31", "38;5;210;48;5;52", "38;2;240;178;178;48;2;66;24;28"),
    "cursor": ("7", "7", "7"),
    "prompt": ("1;36", "1;38;5;75", "1;38;2;97;175;239"),
}
RESET = "\x1b[0m"
# A screen lets through only these: the codes that `codes` can return, and the reset.
CODES = regex("(\x1b\\[(?:0|" + "|".join(sorted({code for row in _STYLES.values() for code in row})) + ")m)")


def colour_depth(environ: Mapping[str, str]) -> Depth:
    """The terminal's number of colours according to its environment."""
    term = environ.get("TERM", "")
    if environ.get("NO_COLOR") or term == "dumb":
        return 0
    if environ.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return TRUE_COLOUR
    return 256 if "256color" in term or term.endswith("-direct") else 16


def codes(style: str, depth: Depth) -> str:
    """The codes that turn a style on. Raises `KeyError` for an unknown one."""
    row = _STYLES[style]
    return f"\x1b[{row[0 if depth <= 16 else 1 if depth == 256 else 2]}m"
