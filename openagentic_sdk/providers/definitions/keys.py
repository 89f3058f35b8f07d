"""Property names in a vendor's form, and the mapping back for the arguments of calls."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any

from ...ground.frozen import frozen
from .references import SchemaReferences, mappings_in

_KEPT_CHARS = 55


def sent_keys(schema: Mapping[str, Any], pattern: str) -> dict[str, str]:
    """The property names that a vendor's pattern refuses, each with a unique replacement that it accepts."""
    names = {
        name
        for part in mappings_in(schema)
        if isinstance(part.get("properties"), Mapping)
        for name in part["properties"]
    }
    taken = {name for name in names if re.fullmatch(pattern, name)}
    sent: dict[str, str] = {}
    for name in sorted(names - taken):
        plain, seed = re.sub("[^a-zA-Z0-9_]+", "_", name)[: _KEPT_CHARS - 1].strip("_"), name
        while not sent.get(name) or sent[name] in taken:
            seed += "'"
            digest = hashlib.sha256(seed.encode("utf-8", "surrogatepass")).hexdigest()[:8]
            sent[name] = f"{'' if plain[:1].isalpha() else '_'}{plain}_{digest}"
        taken.add(sent[name])
    return sent


@frozen
class KeyNames:
    """The property names of one schema: `sent` maps the tool's own names to the vendor's."""

    references: SchemaReferences
    schema: Mapping[str, Any]
    sent: Mapping[str, str]

    def as_sent(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Arguments with the vendor's names, for a call in the conversation."""
        return self._named(arguments, lambda key, known: (self.sent.get(key, key) if key in known else key, key))

    def as_own(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Arguments with the tool's own names, for a call from the model. A name that is in the schema is unchanged."""
        own = {sent: name for name, sent in self.sent.items()}

        def name(key: str, known: Mapping[str, Any]) -> tuple[str, str]:
            named = own[key] if key not in known and own.get(key) in known else key
            return named, named

        return self._named(arguments, name)

    def _named(
        self, arguments: Mapping[str, Any], name: Callable[[str, Mapping[str, Any]], tuple[str, str]]
    ) -> Mapping[str, Any]:
        """The arguments with other names; `name` returns the name to use and the name in the schema."""

        def read(value: Any, schemas: list[Any]) -> Any:
            if not isinstance(value, Mapping | list) or not schemas:
                return value
            parts = self.references.applicable(schemas)
            if isinstance(value, list):
                return [read(item, _items(parts, index)) for index, item in enumerate(value)]
            known: dict[str, list[Any]] = {}
            for part in parts:
                properties = part.get("properties")
                for key, below in properties.items() if isinstance(properties, Mapping) else ():
                    known.setdefault(key, []).append(below)
            made = {}
            for key, item in value.items():
                renamed, own = name(key, known)
                below = read(item, known.get(own) or _others(parts))
                made[key if renamed != key and renamed in value else renamed] = below
            return made

        if not self.sent:
            return arguments
        try:
            named: Mapping[str, Any] = read(arguments, [self.schema])
        except RecursionError:
            return arguments
        return named


def _items(parts: list[Mapping[str, Any]], index: int) -> list[Any]:
    found: list[Any] = []
    for part in parts:
        items, first = part.get("items"), part.get("prefixItems")
        lists = [each for each in (first, items) if isinstance(each, list)]
        found += [each[index] for each in lists if index < len(each)]
        if not any(index < len(each) for each in lists):
            found.append(part.get("additionalItems") if isinstance(items, list) else items)
        found.append(part.get("contains"))
    return found


def _others(parts: list[Mapping[str, Any]]) -> list[Any]:
    """The schemas for a property that is not listed by name."""
    found = [part.get("additionalProperties") for part in parts]
    for part in parts:
        named = part.get("patternProperties")
        found += named.values() if isinstance(named, Mapping) else ()
    return found
