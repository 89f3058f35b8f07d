"""Convert a server's elicitation requests to questions for a person, and the answers to the server's form.

A form is asked field by field. The text names the server that asks, which is untrusted. Only defaults that the server
itself gives are filled in, no address is opened, and if no person can be asked, the answer is `decline`.

A parked question is found again by its text, even by a later version: do not reword it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from ...errors import ToolInputError
from ...ground.loose import as_list, as_mapping, as_text
from ...ground.patterns import regex
from ...ground.schemas import validate
from ...ground.text import without_hidden
from ...sessions.answers import HIDDEN_ANSWER, ambiguous_choices, pick_choices
from .definitions import clean_text

# Asks a person a question: (text, choices, details for an interface or a later run).
AskText = Callable[[str, tuple[str, ...], Mapping[str, Any]], Awaitable[str]]

MAX_FIELDS = 30
MAX_TEXT_CHARS = 2_000
MAX_KEPT_CHARS = 100_000
_TRIES = 3
_SECRET = regex(
    r"pass(word|phrase|code)|\bsecret|\btoken\b|api[-_ ]?key|access[-_ ]?key|private[-_ ]?key|credential|\bpin\b|\botp\b"
    r"|one[- ]time|\bcvv\b|\bcvc\b|credit[-_ ]?card|seed phrase|recovery (code|phrase)|social security",
    re.I,
)
_YES, _NO = ("accept", "yes", "y", "true", "1"), ("decline", "no", "n", "false", "0")


async def elicit(server: str, params: Mapping[str, Any], ask: AskText | None, resumes: Any = None) -> dict[str, Any]:
    """Answer a server's `elicitation/create` by asking a person: return `{"action", "content"?}`.

    Without `ask`, nobody can be asked. `resumes` is stored with each question, unless it is too long, for a run that
    continues the call.
    """
    if ask is None:
        return {"action": "decline"}
    intro = f"The MCP server {server} asks: {clean_text(as_text(params.get('message')), MAX_TEXT_CHARS)}"
    details: dict[str, Any] = {"mcp": {"server": server, "resumes": resumes}}
    if len(str(details)) > MAX_KEPT_CHARS:
        # A server's state may have any size; one too large is not stored, and the call starts again.
        details = {"mcp": {"server": server}}
    if params.get("mode") == "url":
        url = as_text(params.get("url"))
        try:
            # Without a user name, which could look like the host.
            host = urlsplit(url).netloc.rpartition("@")[2] if re.match(r"https?://", url) else ""
        except ValueError:
            host = ""
        if not host:
            return {"action": "cancel"}
        where = f"this address of {clean_text(host, 200)} yourself: {clean_text(url, 2000)}"
        text = f"{intro}\nIt wants you to open {where}"
        return {"action": "accept" if await _agrees(ask, text, details) else "decline"}
    schema = as_mapping(params.get("requestedSchema"))
    fields = as_mapping(schema.get("properties"))
    if not fields:
        return {"action": "accept", "content": {}} if await _agrees(ask, intro, details) else {"action": "decline"}
    if len(fields) > MAX_FIELDS:
        return {"action": "cancel"}
    content: dict[str, Any] = {}
    for name, kind in fields.items():
        field = _Field(name, as_mapping(kind), name in as_list(schema.get("required")))
        filled = await _fill(field, intro, ask, details)
        if isinstance(filled, str):
            return {"action": filled}
        content |= filled
    return {"action": "accept", "content": content}


async def _agrees(ask: AskText, text: str, details: Mapping[str, Any]) -> bool:
    return (await ask(text, ("accept", "decline"), details)).strip().lower() in _YES


async def _fill(field: _Field, intro: str, ask: AskText, details: Mapping[str, Any]) -> dict[str, Any] | str:
    """Ask for one field; return its name and value (nothing if it is skipped), or the action that ends the form."""
    problem = ""
    for _ in range(_TRIES):
        about, warning = {**details, **field.details()}, ""
        if field.asks_for_secret(intro):
            about["secret"] = True
            warning = (
                "\nCareful: this asks for a secret, which a server should never do in a form: it gets what you type."
            )
        reply = (await ask(f"{intro}\n{field.text()}{warning}{problem}", field.choices(), about)).strip()
        if reply == HIDDEN_ANSWER:
            return "cancel"  # it was given to an earlier run and is stored nowhere
        if reply.lower() in ("decline", "cancel"):
            return reply.lower()
        if not reply and "default" in field.schema:
            return {field.name: field.schema["default"]}
        if not reply and not field.is_required:
            return {}
        try:
            return {field.name: validate(field.read(reply), field.schema, "the answer")}
        except ToolInputError as error:
            problem = (
                f"\n({without_hidden(reply)[:100]!r} does not fit: {clean_text(field.bounds() or str(error), 500)})"
            )
        except ValueError as error:
            problem = f"\n({without_hidden(reply)[:100]!r} does not fit: {clean_text(str(error), 500)})"
    return "cancel"


class _Field:
    """One field of a form: a text, a number, a yes or no, or a choice of one or several."""

    def __init__(self, name: str, schema: Mapping[str, Any], is_required: bool) -> None:
        self.name = name
        self.schema = schema
        self.is_required = is_required
        self._items = as_mapping(schema.get("items"))
        choice_schema = self._items if schema.get("type") == "array" else schema
        pairs = [
            (as_text(as_mapping(o).get("const")), as_text(as_mapping(o).get("title")))
            for o in (as_list(choice_schema.get("oneOf")) or as_list(choice_schema.get("anyOf")))
        ]
        listed = [value for value in as_list(choice_schema.get("enum")) if isinstance(value, str)]
        titles = [title for title in as_list(choice_schema.get("enumNames")) if isinstance(title, str)]
        self._choices = pairs or list(zip(listed, titles if len(titles) == len(listed) else listed, strict=True))
        self._labels: list[str] = []
        taken = {"", "decline", "cancel"}
        for number, (value, title) in enumerate(self._choices, 1):
            label = clean_text(title or value, 200)
            # A label that is empty, repeated or a word for refusing could not be picked.
            label = f"{label} ({number})".strip() if label.strip(" ,").casefold() in taken else label
            taken.add(label.strip(" ,").casefold())
            self._labels.append(label)
        for label in ambiguous_choices(self._labels) if self._is_list else ():
            number = self._labels.index(label) + 1
            self._labels[number - 1] = f"{label} ({number})"

    def choices(self) -> tuple[str, ...]:
        """The choices as shown to a person, with `decline`; empty for a field that accepts any text or number."""
        if self.schema.get("type") == "boolean":
            return ("yes", "no", "decline")
        return (*self._labels, "decline") if self._labels else ()

    def details(self) -> dict[str, Any]:
        """Whether the field accepts several answers, and whether it may be empty; see `sessions.answers`."""
        return {"multi_select": self._is_list, "optional": "default" in self.schema or not self.is_required}

    def asks_for_secret(self, intro: str) -> bool:
        """Whether the field asks for a password, key or similar, by its schema, its words or those of the message."""
        schema = self.schema
        if schema.get("format") == "password" or schema.get("writeOnly") is True:
            return True
        if schema.get("type", "string") not in ("string", "integer", "number") or self._choices:
            return False
        own = " ".join(as_text(each) for each in (self.name, schema.get("title"), schema.get("description")))
        return _SECRET.search(own.replace("_", " ")) is not None or _SECRET.search(intro) is not None

    def text(self) -> str:
        """The question for this field, with hints at what may be answered."""
        title = clean_text(as_text(self.schema.get("title")) or self.name, 200)
        about = clean_text(as_text(self.schema.get("description")), 500)
        hints = [
            clean_text(as_text(self.schema.get("format")), 100),
            "several, with commas between them" if self._is_list else "",
        ]
        if "default" in self.schema:
            hints.append(f"empty for {clean_text(str(self.schema['default']), 200)}")
        elif not self.is_required:
            hints.append("may be empty")
        hints.append("or answer: decline")
        hint_text = ", ".join(hint for hint in hints if hint)
        return f"{title}{': ' + about if about else ''} ({hint_text})"

    def bounds(self) -> str:
        """The permitted range in words; empty if there are no limits."""
        for of, least, words, between in (
            ("Items", 0, "choose ", ""),
            ("imum", None, "it must be ", "from "),
            ("Length", 0, "its number of characters must be ", "from "),
        ):
            low, high = self.schema.get(f"min{of}", least), self.schema.get(f"max{of}")
            if low != least and high is not None:
                return clean_text(f"{words}{between}{low} to {high}", 200)
            if low != least or high is not None:
                return clean_text(f"{words}{f'at most {high}' if low == least else f'at least {low}'}", 200)
        return ""

    @property
    def _is_list(self) -> bool:
        return self.schema.get("type") == "array"

    def read(self, reply: str) -> Any:
        """Convert the answer to the field's value. Raises ValueError with the problem."""
        kind = self.schema.get("type")
        if self._is_list or self._choices:
            picked = self._pick(reply)
            return picked if self._is_list else picked[0]
        if kind == "boolean":
            if reply.lower() not in (*_YES, *_NO):
                raise ValueError("answer yes or no")
            return reply.lower() in _YES
        return self._read_number(reply) if kind in ("integer", "number") else self._read_text(reply)

    def _read_number(self, reply: str) -> int | float:
        value = float(reply)  # its ValueError is written for people
        if self.schema.get("type") == "integer" and not value.is_integer():
            raise ValueError("it is not a whole number")
        if not math.isfinite(value):
            raise ValueError("it is not a number")
        # Digits are read as an int: a float cannot represent every integer above 2 ** 53.
        if re.fullmatch(r"[+-]?[0-9]+", reply):
            return int(reply)
        return int(value) if value.is_integer() else value

    def _read_text(self, reply: str) -> str:
        pattern = _FORMATS.get(as_text(self.schema.get("format")))
        if pattern is not None and re.fullmatch(pattern, reply) is None:
            raise ValueError(f"it is not a valid {self.schema['format']}")
        return reply

    def _pick(self, reply: str) -> list[str]:
        """The values of the choices that an answer names by label, title, value or, failing those, number."""
        values = [value for value, _ in self._choices]
        titles = [title for _, title in self._choices]
        numbers = [str(number) for number in range(1, len(values) + 1)]
        unclear = set(ambiguous_choices([*self._labels, *titles, *values]) if self._is_list else ()) - {*self._labels}
        named: dict[str, str] = {}
        for names in (self._labels, titles, values, numbers):
            for name, value in zip(names, values, strict=True):
                if name not in unclear:
                    named.setdefault(name, value)
        picked = pick_choices(reply, list(named), several=self._is_list)
        if not picked and (reply or not self._is_list):
            raise ValueError(f"choose one of {', '.join(self._labels)}")
        return list(dict.fromkeys(named[name] for name in picked))


_FORMATS = {
    "email": r"[^@\s]+@[^@\s]+\.[^@\s]+",
    "uri": r"[A-Za-z][A-Za-z0-9+.-]*:\S+",
    "date": r"\d{4}-\d\d-\d\d",
    "date-time": r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:[Zz]|[+-]\d\d:\d\d)?",
}
