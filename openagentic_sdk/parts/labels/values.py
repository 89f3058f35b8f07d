"""Whether a value stands in a text: addresses, amounts and dates by what they mean, other words as they are written.

Nothing is found because it is a part of something longer: `bob@a.org` is not in `xbob@a.org`, 100 is not in 1,000, and a
path is not in a longer path. Every repetition
in a pattern is bounded, so that a hostile text costs time in proportion to its length.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from ...ground.frozen import frozen
from ...ground.patterns import regex

_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_MONTH = r"(?:jan|feb|mar|apr|may|june?|july?|aug|sept?|oct|nov|dec)[a-z]{0,6}"
# One word of a text that means more than its letters, the longest first. A kind is a group's name.
_TYPED = regex(
    r"(?P<url>\b[a-z][a-z0-9+.-]{1,20}://[^\s<>\"'`]+|\bwww\.[^\s<>\"'`]+)"
    r"|(?P<email>(?<![\w.+-])[\w.!#$%&*+/=?^{|}~-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8})"
    r"|(?P<iban>\b[a-z]{2}\d{2}(?:[ ]?[a-z0-9]{4}){2,7}(?:[ ]?[a-z0-9]{1,3})?\b)"
    r"|(?P<date>\b\d{4}-\d{1,2}-\d{1,2}"
    rf"|\b{_MONTH}\.?\s+\d{{1,2}}(?:st|nd|rd|th)?(?:,?\s+\d{{4}})?\b"
    rf"|\b\d{{1,2}}(?:st|nd|rd|th)?\.?\s+(?:of\s+)?{_MONTH}\.?(?:,?\s+\d{{4}})?\b)"
    r"|(?P<time>\b\d{1,2}:\d{2}(?::\d{2})?(?:\s?[ap]\.?m\b)?|\b\d{1,2}\s?[ap]m\b)"
    r"|(?P<path>(?:~|\.{1,2})?(?:/[\w.@%+=:,-]+)+/?|\b[a-z]:\\[^\s<>\"'`]+)"
    r"|(?P<number>(?<![\w.,-])[-+]?\d{1,30}(?:[., ']\d{3}){0,10}(?:[.,]\d{1,30})?(?![\w]|[.,-]\d))",
    re.IGNORECASE,
)
_KINDS = ("url", "email", "iban", "date", "time", "path", "number")
# What joins words to one longer word.
_JOINS = "@./\\-_+:%#=&~"
_MAX_TYPED = 20_000


@frozen
class TypedValue:
    """A value of a text with its meaning: `kind` is one of `url email iban date time path number`."""

    kind: str
    canonical: str
    start: int
    end: int


def typed_values(text: str) -> Iterator[TypedValue]:
    """The values of a text that mean more than their letters, in order, the first 20,000."""
    for number, match in enumerate(_TYPED.finditer(text)):
        if number == _MAX_TYPED:
            return
        kind, word = match.lastgroup or "", match.group()
        if kind in ("url", "path"):
            word = word.rstrip(".,;:!?)]}'\"")
        if canonical := _canonical(kind, word):
            yield TypedValue(kind, canonical, match.start(), match.start() + len(word))


def _canonical(kind: str, word: str) -> str:
    """What a word of this kind means, the same text for every spelling; empty for a word that is none of the kind."""
    match kind:
        case "url":
            return _canonical_url(word)
        case "email":
            return word.strip(".").casefold()
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


def _canonical_url(word: str) -> str:
    scheme, has_scheme, rest = word.partition("://")
    rest = rest if has_scheme else word
    host, slash, path = rest.partition("/")
    host = host.casefold().rpartition("@")[2]
    scheme = scheme.casefold() if has_scheme else "http"
    host = host.removesuffix(":80" if scheme == "http" else ":443" if scheme == "https" else "\0")
    whole = host + (slash + unquote(path.partition("#")[0]) if path else "")
    return whole.rstrip("/") if scheme in ("http", "https") else f"{scheme}://{whole}"


def _canonical_date(word: str) -> str:
    numbers = re.findall(r"\d+", word)
    if "-" in word:
        year, month, day = map(int, numbers)
    else:
        name = re.search(r"[a-z]{3,}", word.casefold().replace("of", ""))
        month = _MONTHS.index(name.group()[:3]) + 1 if name is not None and name.group()[:3] in _MONTHS else 0
        day, year = int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else 0
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return ""
    return f"{year:04}-{month:02}-{day:02}"


def _canonical_time(word: str) -> str:
    hours, minutes, *_ = [*map(int, re.findall(r"\d+", word)), 0]
    letters = word.casefold()
    if "p" in letters and hours < 12:
        hours += 12
    if "a" in letters and hours == 12:
        hours = 0
    return f"{hours:02}:{minutes:02}" if hours < 25 and minutes < 60 else ""


def _canonical_number(word: str) -> str:
    plain = word.replace(" ", "").replace("'", "")
    comma, point = plain.rfind(","), plain.rfind(".")
    if comma >= 0 and point >= 0:  # the later one is the decimal mark
        plain = plain.replace("," if point > comma else ".", "").replace(",", ".")
    elif comma >= 0:
        groups = plain.split(",")
        plain = "".join(groups) if all(len(group) == 3 for group in groups[1:]) else plain.replace(",", ".")
    try:
        number = Decimal(plain)
    except InvalidOperation:
        return ""
    return format(number.normalize() if number else Decimal(0), "f")


@frozen
class KnownText:
    """A text that values are looked for in; its typed values are found when they are first asked for."""

    text: str

    @property
    def by_kind(self) -> Mapping[str, frozenset[str]]:
        """The typed values of the text by kind."""
        return _values_by_kind(self.text)

    def place_of(self, value: Any) -> int | None:
        """Where the value stands in the text, None where it does not. Booleans and None carry nothing and stand anywhere."""
        if value is None or isinstance(value, bool):
            return 0
        text = str(value).strip()
        if not text:
            return 0
        if isinstance(value, int | float):
            return self._typed_place([TypedValue("number", _canonical_number(format(Decimal(str(value)), "f")), 0, 0)])
        whole = [*typed_values(text)]
        if whole and not _uncovered(text, whole).strip(" ,;TtZ"):
            return self._typed_place(whole)
        return _word_place(text, self.text)

    def _typed_place(self, values: list[TypedValue]) -> int | None:
        known = self.by_kind
        for value in values:
            same = known.get(value.kind, frozenset())
            # A date without a year means that day of any year.
            if value.canonical not in same and not (value.kind == "date" and f"0000{value.canonical[4:]}" in same):
                return None
        first = values[0]
        return next((at.start for at in typed_values(self.text) if at.kind == first.kind and _alike(at, first)), 0)


def leaves(value: Any, place: str, names: Container[str] | None = None) -> Iterator[tuple[str, Any]]:
    """The values of nested JSON that are no containers, each with its dotted place.

    With `names`, the names of fields too, but for those: where a schema leaves names open, a name is a value.
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
    """The names of fields that a JSON Schema fixes, at any depth."""
    if isinstance(schema, list | tuple):
        return frozenset().union(*map(property_names, schema))
    if not isinstance(schema, Mapping):
        return frozenset()
    properties = schema.get("properties")
    own = frozenset(map(str, properties)) if isinstance(properties, Mapping) else frozenset()
    return own.union(*map(property_names, schema.values()))


def meanings_of(value: Any) -> tuple[str, ...]:
    """What a value means, in texts that are equal for every spelling of it: its typed values, or else all its words."""
    if isinstance(value, int | float):
        return (f"number:{_canonical_number(format(Decimal(str(value)), 'f'))}",)
    text = str(value).strip()
    whole = [*typed_values(text)]
    if whole and not _uncovered(text, whole).strip(" ,;TtZ"):
        return tuple(f"{each.kind}:{each.canonical}" for each in whole)
    return (f"words:{_folded(text)}",)


def _alike(found: TypedValue, wanted: TypedValue) -> bool:
    return found.canonical == wanted.canonical or (
        wanted.kind == "date" and found.canonical[4:] == wanted.canonical[4:]
    )


def _uncovered(text: str, values: list[TypedValue]) -> str:
    """What of a text no typed value covers."""
    rest, at = [], 0
    for value in values:
        rest.append(text[at : value.start])
        at = value.end
    return "".join([*rest, text[at:]])


@lru_cache(maxsize=512)
def _values_by_kind(text: str) -> Mapping[str, frozenset[str]]:
    found: dict[str, set[str]] = {kind: set() for kind in _KINDS}
    for value in typed_values(text):
        found[value.kind].add(value.canonical)
    return {kind: frozenset(values) for kind, values in found.items()}


@lru_cache(maxsize=4096)
def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def _word_place(value: str, text: str) -> int | None:
    """Where words stand in a text with nothing joined to them; case and white space do not count."""
    words, inside = _folded(value), _folded(text)
    at = inside.find(words)
    while at >= 0:
        if not _is_joined(inside, at - 1, -1) and not _is_joined(inside, at + len(words), 1):
            return at
        at = inside.find(words, at + 1)
    return None


def _is_joined(text: str, at: int, step: int) -> bool:
    """Whether the letter at this place belongs to the word before or behind it (`step`)."""
    if not 0 <= at < len(text):
        return False
    if text[at].isalnum() or text[at] == "_":
        return True
    beyond = at + step
    return text[at] in _JOINS and 0 <= beyond < len(text) and (text[beyond].isalnum() or text[beyond] == "_")
