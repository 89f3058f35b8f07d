"""Rewrite a schema's root without unions, conditions and references, as one object with every alternative's properties."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...ground.frozen import mutable
from ...ground.words import shortened
from .keywords import merged, note_dropped
from .references import SchemaReferences

NOT_AT_ROOT = frozenset(
    ("anyOf", "oneOf", "allOf", "not", "enum", "const", "$ref", "$dynamicRef", "if", "then", "else")
)
_MAX_FORMS_CHARS = 600


@mutable
class RootForm:
    """A schema as one object: its properties, the required ones, its other keywords, and whether it permits objects."""

    properties: dict[str, Any]
    required: dict[str, None]
    rest: dict[str, Any]
    is_object: bool = True

    def schema(self) -> dict[str, Any]:
        """The form as a schema."""
        result = {**self.rest, "type": "object", "properties": self.properties}
        return {**result, "required": [*self.required]} if self.required else result


class RootWriter:
    """A writer that reduces one root to a `RootForm`, reading at most `limit` schemas.

    Constraints that the form cannot express are added to `notes`, with the property names in `sent_names`.
    """

    def __init__(
        self, references: SchemaReferences, sent_names: Mapping[str, str], notes: list[str], limit: int
    ) -> None:
        self._references = references
        self._sent = sent_names
        self._notes = notes
        self._left = limit

    def form(self, schema: Mapping[str, Any], seen: frozenset[str] = frozenset()) -> RootForm:
        """Reduce a schema to its constraints on an object; `seen` contains the references that led to it."""
        self._left -= 1
        properties, required = schema.get("properties"), schema.get("required")
        kinds = schema.get("type", "object")
        form = RootForm(
            dict(properties) if isinstance(properties, Mapping) else {},
            dict.fromkeys(name for name in required if isinstance(name, str)) if isinstance(required, list) else {},
            {key: value for key, value in schema.items() if key not in NOT_AT_ROOT | {"properties", "required"}},
            "object" in (kinds if isinstance(kinds, list) and kinds else [kinds]),
        )
        parts = schema.get("allOf")
        together = list(parts) if isinstance(parts, list) else []
        for key in ("$ref", "$dynamicRef"):
            if isinstance(reference := schema.get(key), str) and reference not in seen:
                seen |= {reference}
                together.append(self._references.find(reference))
        for part in together:
            if isinstance(part, Mapping) and self._left > 0:
                _join(form, self.form(part, seen))
        for key, count in (("anyOf", "one"), ("oneOf", "just one")):
            branches = schema.get(key)
            options = [
                self.form(part, seen)
                for part in (branches if isinstance(branches, list) else ())
                if isinstance(part, Mapping) and self._left > 0
            ]
            if options := [option for option in options if option.is_object]:
                self._choose(form, options, count)
        for key in ("not", "if", "then", "else", "enum", "const"):
            if key in schema:
                note_dropped(key, schema[key], self._notes)
        return form

    def _choose(self, form: RootForm, options: list[RootForm], count: str) -> None:
        """Merge alternatives: a property of any is allowed, a property that all of them require is required."""
        for name in dict.fromkeys(name for option in options for name in option.properties):
            parts = [option.properties[name] for option in options if name in option.properties]
            # Compared by their text: comparing every pair of variants takes seconds if there are thousands.
            variants = [*{repr(part): part for part in parts}.values()]
            form.properties.setdefault(name, variants[0] if len(variants) == 1 else {"anyOf": variants})
        form.required |= {name: None for name in options[0].required if all(name in each.required for each in options)}
        forms = dict.fromkeys(self._words(option) for option in options)
        if len(forms) > 1:
            self._notes.append(
                f"The arguments take {count} of these forms: {shortened('; '.join(forms), _MAX_FORMS_CHARS)}."
            )

    def _words(self, option: RootForm) -> str:
        """The names of a form's properties, with a question mark after the optional ones."""
        more = [f"{self._sent.get(name, name)}?" for name in option.properties if name not in option.required]
        return "{" + ", ".join([*(self._sent.get(name, name) for name in option.required), *more]) + "}"


def _join(form: RootForm, other: RootForm) -> None:
    """Merge another form into `form`; a value must fit both."""
    for name, part in other.properties.items():
        own = form.properties.setdefault(name, part)
        if own != part and isinstance(own, Mapping) and isinstance(part, Mapping):
            form.properties[name] = merged(own, part) if "$ref" not in {*own, *part} else {"allOf": [own, part]}
    form.required |= other.required
    for key, value in other.rest.items():
        form.rest.setdefault(key, value)
    form.is_object &= other.is_object
