"""The meaning of JSON Schema keywords: types, alternatives, and descriptions of those that a vendor does not accept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...ground.words import shortened

# Keywords that no model needs to read, removed without a note.
SILENT = frozenset(
    [
        "$schema",
        "$id",
        "$anchor",
        "$dynamicAnchor",
        "$comment",
        "$vocabulary",
        "$defs",
        "definitions",
        "title",
        "examples",
    ]
)
ANNOTATIONS = frozenset(
    ["title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment"]
)
_OF_TYPE = {
    "object": "properties required additionalProperties patternProperties propertyNames minProperties maxProperties",
    "array": "items prefixItems minItems maxItems uniqueItems contains",
    "string": "minLength maxLength pattern format",
    "number": "minimum maximum exclusiveMinimum exclusiveMaximum multipleOf",
}
TYPE_OF_KEYWORD = {keyword: kind for kind, keywords in _OF_TYPE.items() for keyword in keywords.split()}
_TYPE_NAMES: Mapping[type, str] = {
    str: "string", bool: "boolean", int: "integer", float: "number", list: "array", type(None): "null",
}  # fmt: skip
_MAX_NOTE_CHARS = 160


def types_of(schema: Mapping[str, Any]) -> list[str]:
    """The types that a schema declares, else those of its `enum`, else those that its keywords constrain."""
    type_field, values = schema.get("type"), schema.get("enum")
    if isinstance(type_field, str):
        return [type_field]
    if isinstance(type_field, list) and type_field:
        return list(dict.fromkeys(kind for kind in type_field if isinstance(kind, str)))
    if isinstance(values, list) and values:
        return types_of_values(values)
    return list(dict.fromkeys(TYPE_OF_KEYWORD[key] for key in schema if key in TYPE_OF_KEYWORD))


def types_of_values(values: list[Any]) -> list[str]:
    """The types of some values, sorted."""
    return sorted({_TYPE_NAMES.get(type(value), "object") for value in values})


def is_about(keyword: str, kind: str) -> bool:
    """Whether a keyword of `TYPE_OF_KEYWORD` constrains values of a type."""
    return TYPE_OF_KEYWORD[keyword] == ("number" if kind == "integer" else kind)


def merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """One schema for two that both apply; keywords that cannot be combined are taken from the second."""
    result = dict(one)
    for key, value in other.items():
        own = result.get(key)
        if key == "properties" and isinstance(own, Mapping) and isinstance(value, Mapping):
            result[key] = {**own, **value}
        elif key == "required" and isinstance(own, list) and isinstance(value, list):
            result[key] = list(dict.fromkeys([*own, *value]))
        elif key == "enum" and isinstance(own, list) and isinstance(value, list):
            result[key] = [item for item in own if item in value] or value
        elif key == "allOf" and isinstance(own, list) and isinstance(value, list):
            result[key] = [*own, *value]
        else:
            result[key] = value
    return result


def note_dropped(key: str, value: Any, notes: list[str]) -> None:
    """Add a note about what a removed keyword required."""
    if key in SILENT or value in ({}, [], True, False) or value is None:
        return
    if key == "description":
        notes.insert(0, str(value))
        return
    try:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return
    notes.append(f"({key}: {shortened(text, _MAX_NOTE_CHARS)})")


def describe(schema: dict[str, Any], notes: list[str]) -> None:
    """Append notes to the description of a schema."""
    if notes:
        about = schema.get("description")
        schema["description"] = " ".join([*([about] if isinstance(about, str) and about else []), *notes])
