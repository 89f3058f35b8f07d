"""Determine whether a text contains a value: addresses, amounts and dates are compared by meaning, other words literally.

A value is never matched inside a longer one: `bob@a.org` is not in `xbob@a.org`, 100 is not in 1,000, and a path is not in
a longer path. Ambiguous values (`1.234`, `01/02/2024`, `007`, a URL with a user name or non-ASCII letters) only match
literally. Every repetition in a pattern is bounded, so that searching a hostile text takes linear time.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Container, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from string import ascii_letters, ascii_lowercase, ascii_uppercase, digits
from typing import Any

from ...ground.frozen import frozen
from ...ground.patterns import regex

_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_MONTH = r"(?i:jan|feb|mar|apr|may|june?|july?|aug|sept?|oct|nov|dec)[a-zA-Z]{0,6}"
_SCALE = r"\s?(?:%|‰|(?i:k|m|bn|mio|mrd|thousand|million|billion|trillion)\b)"
# The patterns of typed values, the longest first. A kind is the name of a group.
_TYPED = regex(
    r"(?P<url>(?<!\w)(?:[A-Za-z][A-Za-z0-9+.-]{1,20}://|www\.)[^\s<>\"'`]+)"
    r"|(?P<email>(?<![\w.!#$%&*+/=?^{|}~@-])[A-Za-z0-9_.!#$%&*+/=?^{|}~-]{1,64}"
    r"@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,8}(?![\w@-]|\.\w))"
    r"|(?P<iban>(?<![\w@./-])[A-Za-z]{2}[0-9]{2}(?:[ ]?[A-Za-z0-9]{4}){2,7}(?:[ ]?[A-Za-z0-9]{1,3})?(?![\w@]))"
    r"|(?P<date>(?<![\w./-])[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:(?=[Tt][0-9]{2}:)|(?!\w|[./-][0-9]))"
    rf"|(?<![\w.,/-]){_MONTH}\.?\s+[0-9]{{1,2}}(?:st|nd|rd|th)?(?:,?\s+[0-9]{{4}})?(?![\w/-]|[.,:][0-9])"
    rf"|(?<![\w.,/:-])[0-9]{{1,2}}(?:st|nd|rd|th)?\.?\s+(?:of\s+)?{_MONTH}\.?(?:,?\s+[0-9]{{4}})?(?![\w/-]|[.,:][0-9]))"
    r"|(?P<time>(?:(?<![\w.,:+-])|(?<=[0-9][Tt]))"
    r"(?:[0-9]{1,2}:[0-9]{2}(?::[0-9]{2})?(?:\s?[AaPp]\.?[Mm]\b)?|[0-9]{1,2}\s?[AaPp][Mm]\b)(?![\w:]|[.+-][0-9]))"
    r"|(?P<path>(?<![\w.~@%+=:,\\/-])(?:~|\.{1,2})?(?:/[\w.@%+=:,-]+)+/?|\b[A-Za-z]:\\[^\s<>\"'`]+)"
    r"|(?P<number>(?<![\w.,/−-])(?<![0-9][: '])[-+]?[0-9]{1,30}(?:[.,'][0-9]{3}){0,10}(?:[.,][0-9]{1,30})?"
    rf"(?!\w|[.,:/' -][0-9]|{_SCALE}))"
)
_URL = regex(r"(?:([A-Za-z][A-Za-z0-9+.-]*)://)?([^/?#\\]*)(.*)", re.DOTALL)
_ESCAPE = regex(r"%[0-9A-Fa-f]{2}")
_UNRESERVED = frozenset(ascii_letters + digits + "-._~")
_PORTS = {"http": ":80", "https": ":443"}
_SMALL = str.maketrans(ascii_uppercase, ascii_lowercase)
# Characters between two words that do not join them into a longer one.
_SEPARATORS = frozenset(',;"`()[]{}<>|“”‘«»„…—–')
_APOSTROPHES = "'’"
# The most other characters, such as dots and hyphens, that are skipped in search of a letter. More of them count as joined.
_MAX_JOIN_CHARS = 8
_MAX_TYPED = 20_000


@frozen
class TypedValue:
    """A value in a text, from position `start` to `end`. `kind` is one of `url email iban date time path number`.

    `canonical` is the same for every spelling of the value.
    """

    kind: str
    canonical: str
    start: int
    end: int


def typed_values(text: str) -> Iterator[TypedValue]:
    """Yield the typed values of a text in order, up to 20,000."""
    for number, match in enumerate(_TYPED.finditer(text)):
        if number == _MAX_TYPED:
            return
        kind, word = match.lastgroup or "", match.group()
        if kind in ("url", "path"):
            word = word.rstrip(".,;:!?)]}'\"")
        elif kind == "iban":
            word = _iban_of(word)
        if canonical := _canonical(kind, word):
            yield TypedValue(kind, canonical, match.start(), match.start() + len(word))


def _canonical(kind: str, word: str) -> str:
    """The meaning of a word of this kind, equal for every spelling; empty if it is ambiguous."""
    match kind:
        case "url":
            return _canonical_url(word)
        case "email":
            return word.translate(_SMALL)
        case "iban":
            compact = word.replace(" ", "").upper()
            return compact if sum(letter.isdigit() for letter in compact) >= 6 else ""
        case "date":
            return _canonical_date(word)
        case "time":
            return _canonical_time(word)
        case "number":
            return _canonical_number(word)
    return word.rstrip("/") or word


def _iban_of(word: str) -> str:
    """The groups that form an IBAN: up to where its check digits match, else up to the last group with a digit."""
    groups = word.split(" ")
    for count in range(1, len(groups) + 1):
        compact = "".join(groups[:count]).upper()
        turned = compact[4:] + compact[:4]
        if groups[count : count + 1] and len(groups[count]) == 4 and any(letter in digits for letter in groups[count]):
            continue  # another group of the account number
        if len(compact) >= 15 and int("".join(str(int(letter, 36)) for letter in turned)) % 97 == 1:
            return " ".join(groups[:count])
    while len(groups) > 1 and not any(letter in digits for letter in groups[-1]):
        groups.pop()
    return " ".join(groups)


def _canonical_url(word: str) -> str:
    """A URL with scheme and host in lower case, without the default port; without a scheme, it begins with `//`.

    Escapes in its path are normalized. A URL that programs parse differently is marked and kept verbatim: one with a user
    name or a percent sign before its path, a backslash, or non-ASCII letters.
    """
    parts = _URL.fullmatch(word)
    if parts is None or not word.isascii() or any(letter in parts[2] for letter in "@%") or "\\" in word:
        return f"as written {word}"
    scheme, host, rest = (parts[1] or "").lower(), parts[2].lower(), parts[3]
    host = host.removesuffix(_PORTS.get(scheme, "\0"))
    rest = _ESCAPE.sub(_decoded, rest)
    return f"{scheme}:" * bool(scheme) + f"//{host}{'' if rest == '/' else rest}"


def _decoded(escape: re.Match[str]) -> str:
    """The character of an escape if RFC 3986 (section 2.3) treats both as equivalent, else the escape in upper case."""
    letter = chr(int(escape.group()[1:], 16))
    return letter if letter in _UNRESERVED else escape.group().upper()


def _canonical_date(word: str) -> str:
    numbers = re.findall(r"[0-9]+", word)
    if "-" in word:
        year, month, day = map(int, numbers)
    else:
        name = re.search(r"[a-z]{3,}", word.lower().replace("of", ""))
        month = _MONTHS.index(name.group()[:3]) + 1 if name is not None and name.group()[:3] in _MONTHS else 0
        day, year = int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else 0
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return ""
    return f"{year:04}-{month:02}-{day:02}"


def _canonical_time(word: str) -> str:
    hours, minutes, seconds, *_ = [*map(int, re.findall(r"[0-9]+", word)), 0, 0]
    letters = word.lower()
    is_half = "m" in letters
    if hours > (12 if is_half else 24) or minutes > 59 or seconds > 59 or (is_half and not hours):
        return ""
    if "p" in letters and hours < 12:
        hours += 12
    if "a" in letters and hours == 12:
        hours = 0
    return f"{hours:02}:{minutes:02}" + (f":{seconds:02}" if seconds else "")


def _canonical_number(word: str) -> str:
    sign, plain = ("-", word[1:]) if word[0] == "-" else ("", word.removeprefix("+"))
    plain = plain.replace("'", "")
    marks = [letter for letter in plain if letter in ".,"]
    groups = re.split("[.,]", plain)
    if len(set(marks)) == 2:
        if marks.count(marks[-1]) > 1:
            return ""
        plain = f"{''.join(groups[:-1])}.{groups[-1]}"  # the last one is the decimal separator
    elif len(marks) > 1:
        plain = "".join(groups) if all(len(group) == 3 for group in groups[1:]) else ""
    elif marks and len(groups[1]) == 3 and 0 < len(groups[0]) < 4 and groups[0] != "0":
        # 1,234 is read as in English, as more than a thousand; 1.234 counts as ambiguous between locales.
        plain = "".join(groups) if marks[0] == "," else ""
    elif marks:
        plain = ".".join(groups)
    if not plain or (plain[0] == "0" and plain[1:2] not in ("", ".")):
        return ""
    return _plain_decimal(sign + plain)


def _plain_decimal(text: str) -> str:
    """A number without an exponent or insignificant zeros; empty if it is not finite, or its exponent is extreme."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        return ""
    if not number.is_finite() or abs(number.adjusted()) > 400:
        return ""
    return format(number.normalize() if number else Decimal(0), "f")


def spelled(value: Any) -> str:
    """A scalar as text; in hexadecimal if it is an integer that exceeds Python's limit on digits."""
    try:
        return str(value)
    except ValueError:
        return hex(value)


def meanings_of(value: Any) -> tuple[str, ...]:
    """The meanings of a value, equal for every spelling of it: its typed values, otherwise all its words."""
    if isinstance(value, int | float):
        return (f"number:{_plain_decimal(spelled(value)) or 'none'}",)
    return _meanings_of_text(str(value))


@lru_cache(maxsize=1024)
def _meanings_of_text(text: str) -> tuple[str, ...]:
    text = text.strip()
    if text.isalpha():
        return (f"words:{text}",)
    whole = _whole(text)
    return tuple([f"{each.kind}:{each.canonical}" for each in whole]) or (f"words:{_words(text)}",)


def _whole(text: str) -> list[TypedValue]:
    """The typed values that make up a text: one, a date with its time, or a list of addresses; otherwise empty."""
    values = [*typed_values(text)]
    if not values:
        return []
    between, at = [], 0
    for value in values:
        between.append(text[at : value.start])
        at = value.end
    first, *inner = between
    kinds = [value.kind for value in values]
    if first or text[at:]:
        return []
    if kinds == ["date", "time"]:
        return values if inner[0] in ("T", "t", " ") else []
    is_list = len({*kinds}) == 1 and kinds[0] in ("email", "iban", "url")
    return values if not inner or (is_list and not any(gap.strip(" ,;") for gap in inner)) else []


@frozen
class KnownText:
    """A text to search for values; its typed values are computed on first use."""

    text: str

    @property
    def by_kind(self) -> Mapping[str, Mapping[str, int]]:
        """The typed values of the text by kind, each with its first position."""
        return _values_by_kind(self.text)

    def place_of(self, value: Any) -> int | None:
        """The position of the value in the text; None if absent. Empty values and booleans match at 0.

        The position of words is that in the text with normalized white space.
        """
        if value is None or isinstance(value, bool) or value == "":
            return 0
        return self.place_of_meanings(meanings_of(value))

    def place_of_meanings(self, meanings: tuple[str, ...]) -> int | None:
        """Like `place_of`, for the result of `meanings_of`."""
        first: int | None = None
        for meaning in meanings:
            kind, _, canonical = meaning.partition(":")
            place = _word_place(canonical, self.text) if kind == "words" else self._typed_place(kind, canonical)
            if place is None:
                return None
            first = place if first is None else first
        return first

    def _typed_place(self, kind: str, canonical: str) -> int | None:
        places = self.by_kind.get(kind, {})
        place = places.get(canonical)
        if place is None and kind == "date":  # a date without a year means that day of any year
            place = places.get(f"0000{canonical[4:]}")
        if place is None and kind == "url":  # if one of the two has no scheme, it matches http and https
            names_one = canonical.startswith(("http://", "https://"))
            others = [canonical.partition(":")[2]] if names_one else [f"http:{canonical}", f"https:{canonical}"]
            place = next((places[other] for other in others if other in places), None)
        return place


def leaves(value: Any, place: str, names: Container[str] | None = None) -> Iterator[tuple[str, Any]]:
    """Yield the scalars of nested JSON, each with its dotted place.

    With `names`, also yield field names that are not among them: if a schema leaves names open, a name is a value.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            if names is not None and key not in names:
                yield f"name in {place}", key
            yield from leaves(item, f"{place}.{key}", names)
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from leaves(item, f"{place}.{number}", names)
    else:
        yield place, value


def property_names(schema: Any) -> frozenset[str]:
    """The field names that a JSON Schema fixes, at any depth."""
    if isinstance(schema, list | tuple):
        return frozenset().union(*map(property_names, schema))
    if not isinstance(schema, Mapping):
        return frozenset()
    properties = schema.get("properties")
    own = frozenset(map(str, properties)) if isinstance(properties, Mapping) else frozenset()
    return own.union(*map(property_names, schema.values()))


@lru_cache(maxsize=512)
def _values_by_kind(text: str) -> Mapping[str, Mapping[str, int]]:
    by_kind: dict[str, dict[str, int]] = {}
    for value in typed_values(text):
        by_kind.setdefault(value.kind, {}).setdefault(value.canonical, value.start)
    return by_kind


@lru_cache(maxsize=4096)
def _words(text: str) -> str:
    """A text with normalized white space. Line ends are kept: in a shell, they begin a new command."""
    return "\n".join(line for each in text.splitlines() if (line := " ".join(each.split())))


@lru_cache(maxsize=1024)
def _on_one_line(text: str) -> str:
    return " ".join(text.split())


@lru_cache(maxsize=1024)
def _in_small_letters(text: str) -> str:
    return _on_one_line(text).translate(_SMALL)


def _word_place(words: str, text: str) -> int | None:
    """The position of whole words in a text with normalized white space; None if absent.

    The case of ASCII letters is ignored if the words consist of letters, spaces, dots, apostrophes and hyphens only.
    """
    if not words:
        return None
    if "\n" in words:
        inside = _words(text)
    elif all(letter.isalpha() or letter in " .'-" for letter in words):
        words, inside = words.translate(_SMALL), _in_small_letters(text)
    else:
        inside = _on_one_line(text)
    at = inside.find(words)
    while at >= 0:
        if not _is_joined(inside, at - 1, -1) and not _is_joined(inside, at + len(words), 1):
            return at
        at = inside.find(words, at + 1)
    return None


def _is_joined(text: str, at: int, step: int) -> bool:
    """Whether the text from this position on continues an adjacent word; `step` is -1 before that word and 1 after it."""
    for _ in range(_MAX_JOIN_CHARS):
        if not 0 <= at < len(text):
            return False
        letter = text[at]
        if letter.isspace() or letter in _SEPARATORS:
            return False
        if letter.isalnum() or letter == "_" or unicodedata.category(letter)[0] in "MC":
            return True
        if letter in _APOSTROPHES and step > 0 and text[at + 1 : at + 2] == "s" and not text[at + 2 : at + 3].isalnum():
            return False  # a possessive
        at += step
    return True
