"""Mask secrets in text before it is stored: known values, in the encodings in which they appear, and tokens by their
format.

A mask names what it replaces (`[masked: OPENAI_API_KEY]`). Secrets that a program has transformed on purpose (split,
reversed, encrypted) cannot be recognized: this prevents accidental leaks into logs, but does not stop a thief.
"""

from __future__ import annotations

import json
from base64 import b64encode, urlsafe_b64encode
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote, quote_plus

from ..ground.frozen import changed
from ..ground.patterns import regex
from ..tools.shell.environment import PASSWORD_IN_URL, is_secret_name
from ..tools.shell.secret_shapes import SHAPES, SecretShape

MIN_SECRET_CHARS = 8
_HINTS = tuple(dict.fromkeys([hint for shape in SHAPES for hint in shape.hints]))


# Most texts of one run occur again in the next one: cache those without anything to mask, up to these bounds.
_MAX_KEPT_TEXTS, _MAX_KEPT_CHARS = 512, 16 * 1024


@lru_cache(maxsize=8)
def _clean_texts(patterns: tuple[str, ...]) -> set[str]:
    """The strings in which redactors with the same patterns found nothing to mask."""
    return set()


class Redactor:
    """A callable that masks secrets in text, for the option `redact`.

    `secrets` maps the name shown in a mask to the value; values of fewer than 8 characters are ignored, because they also
    occur in innocent text. `shapes` also masks tokens recognised by their format. `counts` counts the masked places by name.
    """

    def __init__(self, secrets: Mapping[str, str] | None = None, *, shapes: bool = True) -> None:
        self.counts: Counter[str] = Counter()
        forms = {form: name for name, value in (secrets or {}).items() for form in _forms(value)}
        # The longest first, because a secret may be part of another.
        self._forms = sorted(forms.items(), key=lambda pair: -len(pair[0]))
        self._shapes = SHAPES if shapes else ()
        # Two instances with equal `known` mask the same.
        self.known = (*[form for form, _ in self._forms], *(_HINTS if shapes else ()))
        self._clean = _clean_texts(self.known)

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str], more: Mapping[str, str] | None = None, *, shapes: bool = True
    ) -> Redactor:
        """Create a redactor for the values of all variables whose names or values look secret, and for `more`."""
        return cls({**secrets_of(environment), **(more or {})}, shapes=shapes)

    def apart(self) -> Redactor:
        """Return the same redactor with separate counts, because several threads may mask at once."""
        return changed(self, counts=Counter())

    def __call__(self, text: str) -> str:
        """Replace every secret in the text with a mask that names it."""
        if len(text) < MIN_SECRET_CHARS or text in self._clean:
            return text
        original = text
        if _has_any(text, self.known):  # a fast check: most texts contain none
            for form, name in self._forms:
                if form in text:
                    self.counts[name] += text.count(form)
                    text = text.replace(form, _mask(name))
            for shape in self._shapes:
                if _has_any(text, shape.hints):
                    text = self._without_shape(text, shape)
        if text is original and len(text) <= _MAX_KEPT_CHARS:
            if len(self._clean) >= _MAX_KEPT_TEXTS:
                self._clean.clear()
            self._clean.add(text)
        return text

    def spans(self, text: str) -> list[tuple[int, int]]:
        """The start and end of every part of a text that would be masked, unsorted; they may overlap."""
        positions = []
        for form, _ in self._forms:
            at = text.find(form)
            while at >= 0:
                positions.append((at, at + len(form)))
                at = text.find(form, at + 1)
        for shape in self._shapes:
            if _has_any(text, shape.hints):
                positions += shape.spans(text)
        return positions

    def value(self, value: Any) -> Any:
        """Return a JSON value with every string masked; keys are left unchanged."""
        if isinstance(value, str):
            return self(value)
        if isinstance(value, Mapping):
            return {key: self.value(inner) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(inner) for inner in value]
        return value

    def _without_shape(self, text: str, shape: SecretShape) -> str:
        pieces, at = [], 0
        for start, end in shape.spans(text):
            self.counts[shape.name] += 1
            pieces += [text[at:start], _mask(shape.name)]
            at = end
        return "".join((*pieces, text[at:])) if pieces else text


def _has_any(text: str, parts: Iterable[str]) -> bool:
    if len(text) <= _MAX_KEPT_CHARS:
        return any(map(text.__contains__, parts))
    # Unlike `map`, a generator expression lets another thread run between two searches of a long text.
    return any(part in text for part in parts)


def secrets_of(environment: Mapping[str, str]) -> dict[str, str]:
    """The secrets among the values of variables: passwords inside URLs, and values of variables with a secret's name unless
    they are absolute paths or plain numbers.
    """
    secrets: dict[str, str] = {}
    for name, value in environment.items():
        password = PASSWORD_IN_URL.search(value) if "@" in value else None
        if password:
            secrets[name] = password[1]
        elif is_secret_name(name) and not value.startswith("/") and not value.isdigit():  # not a path or a token limit
            secrets[name] = value
    return secrets


def _mask(name: str) -> str:
    return f"[masked: {name}]"


def _forms(value: str) -> Iterator[str]:
    """Yield the encodings of a secret: plain, JSON, HTML, URL, hex, base64 once or twice; none if it is too short."""
    if len(value.strip()) < MIN_SECRET_CHARS:
        return
    yield value
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    yield value.replace("/", "\\/")
    yield value.translate(_IN_HTML)
    for quoted in (quote(value, safe=""), quote_plus(value), quote(quote(value, safe=""), safe="")):
        yield quoted
        yield _ESCAPE.sub(lambda match: match[0].lower(), quoted)
    data = value.encode("utf-8", "surrogatepass")
    yield data.hex()
    yield data.hex().upper()
    for once in dict.fromkeys(_base64_forms(data)):
        yield once
        yield from _base64_forms(once.encode("ascii"))


# The same as `html.escape`, whose module is slow to import.
_IN_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})
_ESCAPE = regex("%[0-9A-F]{2}")


def _base64_forms(data: bytes) -> Iterator[str]:
    """Yield the base64 encodings at each of the three offsets, in both alphabets."""
    for offset in range(3):
        # The characters at both ends also depend on their neighbours; those in between do not.
        first = (0, 2, 3)[offset]
        last = (offset + len(data)) // 3 * 4
        for encode in (b64encode, urlsafe_b64encode):
            yield encode(b"\0" * offset + data)[first:last].decode("ascii")
