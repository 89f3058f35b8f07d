"""Text that strangers wrote, without what a person who reads it cannot see."""

from __future__ import annotations

import re

# Control characters, zero-width and directional marks, tag characters, lone surrogates: they show a person something else
# than the model reads. Tab and line feed stay.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ufeff\uffa0\ufff9-\ufffb\ud800-\udfff\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
# What stays with a letter that needs it only: a joiner between two of an emoji or of a script, a selector of one's shape.
_STRAY = re.compile(
    "(?<![^\x00-\x7f\u2000-\u206f])[\u200c\u200d]|[\u200c\u200d](?![^\x00-\x7f\u2000-\u206f])"
    "|(?<![^\x00-\x7f\u200c\u200d\ufe00-\ufe0f])[\ufe00-\ufe0f](?!\u20e3)"
)
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")


def printable(text: str) -> str:
    """Text without characters that a person cannot see; CRLF becomes LF."""
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    text = _PAIR.sub(lambda pair: pair[0].encode("utf-16", "surrogatepass").decode("utf-16"), text)
    return _STRAY.sub("", _HIDDEN.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))


def one_line(text: str) -> str:
    """Visible text on one line."""
    if text.isascii() and text.isprintable() and "  " not in text:
        return text.strip()
    return " ".join(printable(" ".join(text.split())).split())
