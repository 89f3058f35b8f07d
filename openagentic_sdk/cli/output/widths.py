"""The width of text on a terminal, and where it can be cut: at user-perceived characters, and between words.

A user-perceived character may be several code points: a base and its marks, an emoji of joined parts. Widths are those of
Unicode Standard Annex 11 (two columns for wide characters, none for marks); a joined sequence counts as its first part, as
new terminals show it. Older ones show more, so nothing here relies on the cursor's position.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from ...ground.patterns import regex

_JOINER, _EMOJI_SHAPE = "\u200d", "\ufe0f"
_SKIN_TONES = ("\U0001f3fb", "\U0001f3ff")
# The characters that join the letter before them.
_JOINED = regex("[\u200d\ufe0f\U0001f3fb-\U0001f3ff]")
# A row may end between the letters of scripts that are written without spaces, but not before their closing signs.
_PLAIN_WORDS = regex(" +|[^ ]+")
_WORDS = regex(
    " +|[^ \u2e80-\ua4cf\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef]+"
    "|[\u2e80-\ua4cf\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef]"
    "[\u3001\u3002\u3009\u300b\u300d\u300f\u3011\uff01\uff09\uff0c\uff1a\uff1b\uff1f]*"
)


@lru_cache(maxsize=4096)
def _letter_width(letter: str) -> int:
    if unicodedata.category(letter) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def text_width(text: str) -> int:
    """The number of columns of a text without control characters."""
    if text.isascii():
        return len(text)
    if _JOINED.search(text) is None:
        return sum(map(_letter_width, text))
    return sum(_letter_width_in(text, at) for at in range(len(text)))


def _letter_width_in(text: str, at: int) -> int:
    letter, before = text[at], text[at - 1] if at else ""
    if letter == _EMOJI_SHAPE:  # makes a sign that is one column wide an emoji of two
        return int(bool(before) and _letter_width(before) == 1 and before > "\x7f")
    if before == _JOINER or (_SKIN_TONES[0] <= letter <= _SKIN_TONES[1] and before and _letter_width(before) == 2):
        return 0
    return _letter_width(letter)


def begins_letter(text: str, at: int) -> bool:
    """Whether a user-perceived character begins here, so that a cursor may be placed before it."""
    if not 0 < at < len(text) or (text[at].isascii() and text[at - 1].isascii()):
        return True
    return text[at] != _EMOJI_SHAPE and text[at - 1] != _JOINER and _letter_width_in(text, at) > 0


def fitting(text: str, columns: int) -> int:
    """The number of code points that fit into these columns; at least those of one user-perceived character."""
    if text.isascii():
        return max(columns, 1)
    width, cut = 0, 0
    for at in range(len(text)):
        if begins_letter(text, at):
            if width > columns:
                break
            cut = at
        width += _letter_width_in(text, at)
    else:
        if width <= columns:
            return len(text)
    return cut or next((at for at in range(1, len(text)) if begins_letter(text, at)), len(text))


def cut_at(text: str, columns: int) -> list[str]:
    """The text in pieces of at most this many columns, ignoring word boundaries; one empty piece for an empty text."""
    pieces = []
    while text_width(text) > columns:
        cut = fitting(text, columns)
        pieces.append(text[:cut])
        text = text[cut:]
    return [*pieces, text]


def shortened(text: str, columns: int) -> str:
    """The text, or its beginning and an ellipsis if it is too wide."""
    if text_width(text) <= columns:
        return text
    return text[: fitting(text, columns - 1)] + "…" if columns > 1 else "…"


def words_of(text: str) -> list[str]:
    """The text in pieces between which a row may be broken: words, and the runs of spaces between them."""
    return (_PLAIN_WORDS if text.isascii() else _WORDS).findall(text)


def wrapped(text: str, columns: int) -> list[str]:
    """The text in rows broken between words, or inside a word that is wider than a row.

    Rows keep the indent of their line, up to a quarter of the width, and lose the spaces at which they are broken. A line
    with styles is left unchanged.
    """
    rows: list[str] = []
    for line in text.split("\n"):
        if "\x1b" in line or text_width(line) <= columns:
            rows.append(line)
            continue
        indent = line[: min(len(line) - len(line.lstrip(" ")), columns // 4)]
        row, width = indent, len(indent)
        for word in words_of(line[len(indent) :]):
            wide = text_width(word)
            if width + wide > columns and word[0] != " " and width > len(indent):
                rows.append(row.rstrip(" "))
                row, width = indent, len(indent)
            while width + wide > columns and word[0] != " ":
                cut = fitting(word, columns - width)
                rows.append(row + word[:cut])
                word, row, width = word[cut:], indent, len(indent)
                wide = text_width(word)
            row, width = row + word, width + wide
        rows.append(row if width <= columns else row.rstrip(" "))
    return rows
