r"""Untrusted text, and how it is displayed to a person.

A character is hidden if it is invisible or affects how others are displayed: control and format characters, lone surrogates,
fillers, joiners, variation selectors, tags. Hidden characters are recognized by their Unicode properties: the general
category, the name of a script's fillers, and the ranges reserved for more of them (Default_Ignorable_Code_Point in
Unicode's DerivedCoreProperties.txt).

    visible         for decisions: one line of plain characters, everything else as an escape (`\x1b`, `\u202e`)
    printable       for reading on a terminal: line feeds and tabs are kept, and joiners where a script needs them
    on_one_line     the same on one line, truncated if it is too long
    without_hidden  for models: hidden characters are removed, by the same rule as `printable`

A text in which secrets are masked is truncated with `safe_cut`, any other with `words.shortened`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Protocol, runtime_checkable

from .patterns import regex
from .words import shortened

# More consecutive spaces than this could push the rest of a line out of sight.
MAX_BLANKS = 40
# The most characters that are ever combined into one.
_MAX_JOINED = 64

_FILLER = regex(
    "FILLER|VARIATION SELECTOR|GRAPHEME JOINER|VOWEL INHERENT|PATTERN BLANK|NULL NOTEHEAD|GLYPH FULL BLANK|GLYPH HALF BLANK"
)
_KEPT_FREE = regex("[\u2065\ufff0-\ufff8\U000e0000-\U000e0fff]")
_BLANKS = regex(rf" {{{MAX_BLANKS + 1},}}")
_EMPTY_LINES = regex(r"\n(?:[ \t\r]*\n){4,}")
_HIDDEN_ASCII = bytes({*range(32), 127} - set(b"\t\n"))
_PAIR = regex("[\ud800-\udbff][\udc00-\udfff]")
_JOINER = regex("[\u200c\u200d\ufe00-\ufe0f]")
_MAX_JOINERS = 200_000  # more are not text of any language, and checking the neighbours of each would take long


@lru_cache(maxsize=4096)
def is_hidden(letter: str) -> bool:
    """Whether a character on its own is invisible or affects how others are displayed. Spaces, tabs and line feeds do not
    count.
    """
    if " " <= letter <= "~" or letter in "\t\n":
        return False
    category = unicodedata.category(letter)
    if category in ("Cc", "Cf", "Cs", "Zl", "Zp") or _KEPT_FREE.match(letter):
        return True
    # A filler in punctuation is visible.
    return category[0] != "P" and _FILLER.search(unicodedata.name(letter, "")) is not None


@lru_cache(maxsize=4096)
def is_plain(letter: str) -> bool:
    """Whether a character is visible or an ordinary space; characters unknown to Python are not plain."""
    return " " <= letter <= "~" or (
        letter > "~" and unicodedata.category(letter)[0] not in "CZ" and not is_hidden(letter)
    )


def visible(text: str) -> str:
    """The text on one line, with each character that is not plain as an escape, and long runs of spaces as their count."""
    if not (text.isascii() and text.isprintable()):
        text = text.translate({ord(letter): escape(letter) for letter in set(text) if not is_plain(letter)})
    return _BLANKS.sub(lambda run: f"[{len(run[0])} spaces]", text)


def visible_lines(text: str) -> list[str]:
    """The lines of a text, each `visible`, with tabs as four spaces, and long runs of empty lines as their count."""
    text = _EMPTY_LINES.sub(lambda run: f"\n\n[{run[0].count(chr(10)) - 2} more empty lines]\n", text)
    return [visible(line.replace("\t", "    ")) for line in text.split("\n")]


def printable(text: str) -> str:
    """The text with every hidden character as an escape; line feeds and tabs are kept, CRLF becomes a line feed."""
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return _replace_hidden(text.replace("\r\n", "\n"), escape)


def on_one_line(text: str, max_chars: int | None = None) -> str:
    """`printable` text on one line, with line feeds and tabs escaped as well.

    The text is first truncated to `max_chars`, with an ellipsis: escapes make the result longer.
    """
    cut = text if max_chars is None else shortened(text, max_chars)
    return printable(cut).replace("\n", "\\n").replace("\t", "\\t")


def existing(noun: str, names: Iterable[str], where: str = "") -> str:
    """The end of an error about an unknown name: `the servers here are a, b`, or `there are no servers here`."""
    named_noun = f"{noun} {where}".rstrip()
    listed = ", ".join(names)
    return f"the {named_noun} are {listed}" if listed else f"there are no {named_noun}"


def without_hidden(text: str) -> str:
    """The text without hidden characters; line ends become line feeds, surrogate pairs one character."""
    if text.isascii() and len(text.encode().translate(None, _HIDDEN_ASCII)) == len(text):
        return text  # most texts are plain and need no check of each character
    if not text.isascii():
        text = _PAIR.sub(lambda pair: pair[0].encode("utf-16", "surrogatepass").decode("utf-16"), text)
    return _replace_hidden(text.replace("\r\n", "\n").replace("\r", "\n"), lambda letter: "")


def one_line(text: str) -> str:
    """The text without hidden characters on one line, with single spaces."""
    if text.isascii() and text.isprintable() and "  " not in text:
        return text.strip()
    return " ".join(without_hidden(" ".join(text.split())).split())


def escape(letter: str) -> str:
    r"""A character in Python's source notation: `\n`, `\x1b`, `\u202e`, `\U000e0041`."""
    short = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(letter)
    code = ord(letter)
    return short or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")


def _replace_hidden(text: str, replacement: Callable[[str], str]) -> str:
    hidden = {letter for letter in set(text) if is_hidden(letter)}
    if len(_JOINER.findall(text)) <= _MAX_JOINERS:
        text = _JOINER.sub(lambda match: match[0] if _is_at_work(text, match.start()) else replacement(match[0]), text)
        hidden = {letter for letter in hidden if not _JOINER.match(letter)}
    for letter in hidden:
        text = text.replace(letter, replacement(letter))
    return text


def _is_at_work(text: str, at: int) -> bool:
    """Whether a hidden character is used as intended: it joins two letters of a script or an emoji, or selects a variant."""
    letter, before, after = text[at], text[max(at - 1, 0) : at], text[at + 1 : at + 2]
    if "\ufe00" <= letter <= "\ufe0f":
        return _bears_marks(before) or (before in tuple("0123456789#*") and after == "\u20e3")
    if letter in "\u200c\u200d":
        return _bears_marks(text[max(at - 2, 0) : at - 1] if before == "\ufe0f" else before) and _bears_marks(after)
    return False


def settled(text: str) -> int:
    """The number of characters at the start of an incomplete text that look the same whatever follows it."""
    if not text or (text[-1].isascii() and text[-1] not in "0123456789#*\r"):
        return len(text)
    for at in range(len(text) - 1, max(len(text) - _MAX_JOINED, 0), -1):
        is_mark = unicodedata.category(text[at])[0] == "M"
        if is_plain(text[at]) and not is_mark and text[at - 1] not in "\u200c\u200d":
            return at
    return 0 if len(text) <= _MAX_JOINED else len(text)


def _bears_marks(letter: str) -> bool:
    return letter > "\x7f" and is_plain(letter)


# --- cutting without leaving half a secret -----------------------------------------------------------------------------

# The longest distance from a cut that a secret may reach: no token and no private key is longer.
CUT_MARGIN = 8_192
Redact = Callable[[str], str]


@runtime_checkable
class KnowsSpans(Protocol):
    """A redactor that can report which parts of a text it masks."""

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return the start and end of each masked part."""
        ...


def safe_cut(text: str, at: int, redact: Redact | None, *, forward: bool = False) -> int:
    """The position nearest to `at` (before it, or after it with `forward`) where a cut splits nothing that is masked.

    `CUT_MARGIN` characters on both sides of the cut must be available, if the text has as many. If `redact` cannot report
    spans, the position is `at`, a line end, or the end of that margin.
    """
    if redact is None or not 0 < at < len(text):
        return at
    start = max(0, at - CUT_MARGIN)
    window = text[start : at + CUT_MARGIN]
    place = at - start
    if isinstance(redact, KnowsSpans):
        spans = redact.spans(window)
        while inside := [span for span in spans if span[0] < place < span[1]]:
            place = max(span[1] for span in inside) if forward else min(span[0] for span in inside)
        return start + place
    whole = redact(window)
    ends = (newline.end() for newline in re.finditer("\n", window))
    lines = [end for end in ends if end >= place] if forward else [end for end in ends if end <= place][::-1]
    edge = len(window) if forward else 0
    safe = (end for end in (place, *lines) if redact(window[:end]) + redact(window[end:]) == whole)
    return start + next(safe, edge)
