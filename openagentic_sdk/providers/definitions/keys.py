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
    used_names = {name for name in names if re.fullmatch(pattern, name)}
    sent_by_name: dict[str, str] = {}
    # Sorted, so that the same schema always gets the same names: prompt caches depend on it.
    for name in sorted(names - used_names):
        plain, seed = re.sub("[^a-zA-Z0-9_]+", "_", name)[: _KEPT_CHARS - 1].strip("_"), name
        while not sent_by_name.get(name) or sent_by_name[name] in used_names:
            seed += "'"
            digest = hashlib.sha256(seed.encode("utf-8", "surrogatepass")).hexdigest()[:8]
            sent_by_name[name] = f"{'' if plain[:1].isalpha() else '_'}{plain}_{digest}"
        used_names.add(sent_by_name[name])
    return sent_by_name


@frozen
class KeyNames:
    """The property names of one schema: `sent` maps the tool's own names to the vendor's."""

    references: SchemaReferences
    schema: Mapping[str, Any]
    sent: Mapping[str, str]

    def as_sent(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Arguments with the vendor's names, for a call in the conversation."""
        return self._with_names(
            arguments, lambda key, properties: (self.sent.get(key, key) if key in properties else key, key)
        )

    def as_own(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Arguments with the tool's own names, for a call from the model. A name that is in the schema is unchanged."""
        own = {sent_name: name for name, sent_name in self.sent.items()}

        def name(key: str, properties: Mapping[str, Any]) -> tuple[str, str]:
            own_name = own[key] if key not in properties and own.get(key) in properties else key
            return own_name, own_name

        return self._with_names(arguments, name)

    def _with_names(
        self, arguments: Mapping[str, Any], name: Callable[[str, Mapping[str, Any]], tuple[str, str]]
    ) -> Mapping[str, Any]:
        """The arguments with other names; `name` maps a key to the name to use and the name in the schema."""

        def read(value: Any, schemas: list[Any]) -> Any:
            if not isinstance(value, Mapping | list) or not schemas:
                return value
            parts = self.references.applicable(schemas)
            if isinstance(value, list):
                return [read(item, _items(parts, index)) for index, item in enumerate(value)]
            schemas_by_key: dict[str, list[Any]] = {}
            for part in parts:
                properties = part.get("properties")
                for key, below in properties.items() if isinstance(properties, Mapping) else ():
                    schemas_by_key.setdefault(key, []).append(below)
            mapping = {}
            for key, item in value.items():
                renamed, own = name(key, schemas_by_key)
                below = read(item, schemas_by_key.get(own) or _others(parts))
                # A model may have used both names of a property: neither value may replace the other.
                mapping[key if renamed != key and renamed in value else renamed] = below
            return mapping

        if not self.sent:
            return arguments
        try:
            result: Mapping[str, Any] = read(arguments, [self.schema])
        # The model may nest arguments more deeply than this recursion can follow; such names are left as they are.
        except RecursionError:
            return arguments
        return result


def _items(parts: list[Mapping[str, Any]], index: int) -> list[Any]:
    schemas: list[Any] = []
    for part in parts:
        items, first = part.get("items"), part.get("prefixItems")
        lists = [each for each in (first, items) if isinstance(each, list)]
        schemas += [each[index] for each in lists if index < len(each)]
        if not any(index < len(each) for each in lists):
            schemas.append(part.get("additionalItems") if isinstance(items, list) else items)
        schemas.append(part.get("contains"))
    return schemas


def _others(parts: list[Mapping[str, Any]]) -> list[Any]:
    """The schemas for a property that is not listed by name."""
    schemas = [part.get("additionalProperties") for part in parts]
    for part in parts:
        by_pattern = part.get("patternProperties")
        schemas += by_pattern.values() if isinstance(by_pattern, Mapping) else ()
    return schemas
