"""Resolve the references in a schema, within that schema only: nothing is ever fetched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from ...serialization import pointer_names

# The keywords that contain schemas, grouped by form: one schema, a list, or an object by name.
ONE = (
    "items", "additionalItems", "unevaluatedItems", "contains", "not", "if", "then", "else", "propertyNames",
    "additionalProperties", "unevaluatedProperties",
)  # fmt: skip
MANY = ("allOf", "anyOf", "oneOf", "prefixItems")
NAMED_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_MAX_APPLICABLE = 500


class SchemaReferences:
    """The targets of references in one schema."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        base = root.get("$id")
        self._base = base.partition("#")[0] if isinstance(base, str) else ""
        self._anchors: dict[str, Mapping[str, Any]] | None = None

    def find(self, reference: Any) -> Any:
        """Find the schema that a reference points to; return None if it points nowhere in this schema."""
        if not isinstance(reference, str):
            return None
        address, _, fragment = reference.partition("#")
        if address not in ("", self._base):
            return None
        for pointer in dict.fromkeys((unquote(fragment), fragment)):
            schema = self._at(pointer)
            if isinstance(schema, Mapping | bool):
                return schema
        return None

    def _at(self, fragment: str) -> Any:
        if fragment and not fragment.startswith("/"):
            if self._anchors is None:
                self._anchors = {}
                for part in mappings_in(self._root):
                    for name in (part.get("$anchor"), part.get("$dynamicAnchor"), str(part.get("$id", ""))[1:]):
                        if isinstance(name, str) and name:
                            self._anchors.setdefault(name, part)
            return self._anchors.get(fragment)
        value: Any = self._root
        for name in pointer_names(fragment):
            if isinstance(value, Mapping):
                value = value.get(name)
            elif isinstance(value, list) and name.isdecimal() and int(name[:6]) < len(value):
                value = value[int(name[:6])]
            else:
                return None
        return value

    def applicable(self, schemas: list[Any]) -> list[Mapping[str, Any]]:
        """The schemas, at most `_MAX_APPLICABLE`, that may constrain the same value.

        They are these, the targets of their references, and their parts, alternatives and conditions.
        """
        result: list[Mapping[str, Any]] = []
        waiting, seen = list(schemas), set()
        while waiting and len(result) < _MAX_APPLICABLE:
            schema = waiting.pop()
            if not isinstance(schema, Mapping) or id(schema) in seen:
                continue
            seen.add(id(schema))
            result.append(schema)
            waiting += [self.find(schema[key]) for key in ("$ref", "$dynamicRef") if key in schema]
            waiting += [schema[key] for key in ("if", "then", "else") if key in schema]
            for key in ("allOf", "anyOf", "oneOf"):
                waiting += schema[key] if isinstance(schema.get(key), list) else ()
            dependent = schema.get("dependentSchemas")
            waiting += dependent.values() if isinstance(dependent, Mapping) else ()
        return result


def mappings_in(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield every object in a JSON value."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Mapping):
            yield one
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
