"""Frontmatter values converted to the types that their keys require: text, lists of words, permission rules, flags."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import OptionsError
from ..ground.diagnostic import Diagnostic
from ..ground.text import one_line, without_hidden
from ..providers.named import split_model
from .frontmatter import Frontmatter
from .ledger import word_notes
from .yaml_subset import Value

_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})


class Fields:
    """A reader of frontmatter values, each by the type that its key requires. Invalid values are listed in `diagnostics`."""

    def __init__(self, front: Frontmatter) -> None:
        self._front = front
        self.diagnostics: list[Diagnostic] = []

    def without_effect(self, kind: str) -> list[Diagnostic]:
        """Return a finding for each field that has no effect here in a file of this kind."""
        return word_notes(kind, self._front.data, line=self.line)

    def line(self, key: str) -> int:
        source = self._front.sources.get(key)
        return source.line if source else 0

    def text(self, key: str) -> str:
        """The value as text; for a list or map its source, because that is what the author wrote."""
        value = self._front.data.get(key)
        if not value:
            return ""
        if isinstance(value, str):
            return without_hidden(value).strip()
        self._misfit(key, "text is expected here: put the value in quotes")
        return self.source(key)

    def source(self, key: str) -> str:
        """The value on one line; a list or map as written in the file, since the brackets in `[a]` are part of the text."""
        source = self._front.sources.get(key)
        value = self._front.data.get(key)
        if isinstance(value, str) and not value.startswith("["):
            return one_line(value)
        return one_line(source.text) if source else ""

    def words(self, key: str) -> tuple[str, ...]:
        """The words of a value: a list, or text separated by spaces or commas."""
        return self._parts(key, lambda text: [part for part in re.split(r"[\s,]+", text) if part])

    def globs(self, key: str) -> tuple[str, ...]:
        """The patterns of a value: a list, or text separated by commas; a comma inside braces belongs to its pattern."""
        return self._parts(key, lambda text: _split_outside(text, "{", "}", ","))

    def rules(self, key: str) -> tuple[str, ...]:
        """The permission rules of a value: a list, or text separated by spaces or commas outside parentheses."""
        return self._parts(key, split_rules)

    def flag(self, key: str, default: bool) -> bool:
        """The value as a boolean: true/false, yes/no, on/off, 1/0, ignoring case; `default` for any other value."""
        value = self._front.data.get(key)
        word = value.strip().casefold() if isinstance(value, str) else None
        if word in _TRUE or word in _FALSE:
            return word in _TRUE
        if value not in (None, ""):
            self._misfit(key, f"{value!r} is neither true nor false: {str(default).lower()} is assumed")
        return default

    def map(self, key: str) -> Mapping[str, Any]:
        """The value as a map; {} if it is anything else."""
        value = self._front.data.get(key)
        if isinstance(value, dict):
            return value
        if value:
            self._misfit(key, "a map of names to values is expected here")
        return {}

    def _parts(self, key: str, split: Callable[[str], list[str]]) -> tuple[str, ...]:
        value = self._front.data.get(key)
        if not value:
            return ()
        items: list[Value] = value if isinstance(value, list) else [value]
        parts: list[str] = []
        for item in items:
            if isinstance(item, str):
                parts.extend(split(without_hidden(item)))
            else:
                self._misfit(key, "a list of strings is expected here; other values were ignored")
        return tuple(parts)

    def _misfit(self, key: str, reason: str) -> None:
        self.diagnostics.append(Diagnostic("field-kind", f"{key}: {reason}", self.line(key)))


# Words of one client's model menu, under which no endpoint serves a model.
_MENU_WORDS = frozenset({"inherit", "default", "sonnet", "opus", "haiku", "fable", "opusplan", "best"})


def served_model(name: str, model_names: Mapping[str, str] | None = None) -> str | None:
    """The model that a file requests, by its name at the endpoint; None if it requests none.

    `model_names` maps words to models; a word of the menu without a model leaves the model unchanged. Raises `OptionsError`
    for a word that also names a provider: a file must not choose the provider.
    """
    plain = name.strip()
    word = plain.partition("[")[0].casefold()
    models = {each.casefold(): model for each, model in (model_names or {}).items()}
    model_name = models.get(word, None if word in _MENU_WORDS else plain or None)
    provider, model = split_model(model_name)
    if provider is not None:
        raise OptionsError(
            f"the model {model_name!r} in a file names a provider, and a file may only name models of the current "
            f"provider: write {model!r} there, and choose the provider in code or with --model"
        )
    return model_name


def unmapped_model(name: str, model_names: Mapping[str, str] | None = None) -> str | None:
    """The word by which a file requests a model that is not mapped; None for every other name."""
    word = name.strip().partition("[")[0].casefold()
    is_mapped = word in {each.casefold() for each in model_names or {}}
    return word if word in _MENU_WORDS - {"inherit", "default"} and not is_mapped else None


def how_to_map(word: str) -> str:
    """A clause that explains how to map a word of the menu to a model."""
    variable = f" or ANTHROPIC_DEFAULT_{word.upper()}_MODEL" if word in ("haiku", "sonnet", "opus") else ""
    return f'"modelNames": {{"{word}": ...}} in settings.json{variable} names one'


def split_rules(text: str) -> list[str]:
    """Split text into permission rules: `Read, Bash(git add:*) Grep` contains three."""
    return _split_outside(text, "(", ")", ", \t\n")


def _split_outside(text: str, opener: str, closer: str, separators: str) -> list[str]:
    parts, start, depth = [], 0, 0
    for i, char in enumerate(text):
        if char == opener:
            depth += 1
        elif char == closer:
            depth = max(depth - 1, 0)
        elif depth == 0 and char in separators:
            parts.append(text[start:i])
            start = i + 1
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]
