"""Write a tool's JSON schema in few words, check arguments against one, and say where they do not fit.

The part of JSON Schema 2020-12 that tool schemas use: type, enum, const, required, properties, additionalProperties, items,
minItems, maxItems, minLength, maxLength, minimum, maximum, pattern, anyOf, oneOf, allOf, and $ref into $defs. Other keywords
are notes to the model and are not checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import ToolInputError
from ..serialization import pointer_names
from ..text import shortened

_OBJECT = (dict, Mapping)  # most are dicts, and those are told at once
_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, _OBJECT),
    "array": lambda value: isinstance(value, list | tuple),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "integer": lambda value: (
        not isinstance(value, bool) and (isinstance(value, int) or (isinstance(value, float) and value.is_integer()))
    ),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
}
MAX_DEPTH = 64
# What `validate` checks, and what only tells.
_CHECKED = frozenset({
    "type", "enum", "const", "required", "properties", "additionalProperties", "items", "minItems", "maxItems",
    "minLength", "maxLength", "minimum", "maximum", "pattern", "anyOf", "oneOf", "allOf", "$ref", "$defs",
    "definitions", "$schema", "$id", "$comment", "title", "description", "default", "examples",
})  # fmt: skip


def object_schema(properties: Mapping[str, Any], **keywords: Any) -> dict[str, Any]:
    """The schema of an object with these properties; `keywords` are further ones of JSON Schema, such as `required`."""
    return {"type": "object", "properties": properties, **keywords}


def string(about: str, **keywords: Any) -> dict[str, Any]:
    """The schema of a text, `about` is what the model is told of it; so for the four below."""
    return {"type": "string", **keywords, "description": about}


def integer(about: str, **keywords: Any) -> dict[str, Any]:
    return {"type": "integer", **keywords, "description": about}


def number(about: str, **keywords: Any) -> dict[str, Any]:
    return {"type": "number", **keywords, "description": about}


def array(about: str, **keywords: Any) -> dict[str, Any]:
    return {"type": "array", **keywords, "description": about}


def boolean(about: str) -> dict[str, Any]:
    return {"type": "boolean", "description": about}


def validate(value: Any, schema: Mapping[str, Any], what: str = "the arguments") -> None:
    """Raise `ToolInputError` with the path of the first value that does not fit; `what` names the whole."""
    _Check(schema, what).value(value, schema, "", 0)


def unknown_keyword(schema: Any) -> str | None:
    """The first keyword that `validate` does not check and that is more than a note; None when there is none."""
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if not isinstance(part, Mapping):
            continue
        for key, value in part.items():
            if key not in _CHECKED:
                return str(key)
            if key in ("properties", "$defs", "definitions") and isinstance(value, Mapping):
                waiting += value.values()
            elif key in ("items", "additionalProperties", "anyOf", "oneOf", "allOf"):
                waiting += value if isinstance(value, list | tuple) else [value]
    return None


class _Check:
    def __init__(self, root: Mapping[str, Any], what: str) -> None:
        self._root = root
        self._what = what

    def value(self, value: Any, schema: Mapping[str, Any] | bool, path: str, depth: int) -> None:
        if schema is True or schema == {}:
            return
        if schema is False:
            self.fail(path, "is not allowed here")
        assert isinstance(schema, _OBJECT)
        if depth > MAX_DEPTH:
            self.fail(path, f"is nested deeper than {MAX_DEPTH} levels")
        schema = self.resolve(schema)
        self.kind(value, schema, path)
        self.choices(value, schema, path, depth)
        if isinstance(value, _OBJECT):
            self.object(value, schema, path, depth)
        elif isinstance(value, list | tuple):
            self.array(value, schema, path, depth)
        elif isinstance(value, str):
            self.string(value, schema, path)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            self.number(value, schema, path)

    def resolve(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        reference, hops = schema.get("$ref"), 0
        while isinstance(reference, str) and reference.startswith("#/") and hops < MAX_DEPTH:
            target: Any = self._root
            for name in pointer_names(reference[1:]):
                target = target.get(name, {}) if isinstance(target, Mapping) else {}
            schema, hops = target, hops + 1
            reference = schema.get("$ref")
        return schema

    def kind(self, value: Any, schema: Mapping[str, Any], path: str) -> None:
        kinds = schema.get("type")
        names = [kinds] if isinstance(kinds, str) else list(kinds or ())
        if names and not any(name in _TYPES and _TYPES[name](value) for name in names):
            self.fail(path, f"must be {_wanted({'type': names})}, not {_show(value)}")
        is_other = "const" in schema and value != schema["const"]
        if is_other or ("enum" in schema and value not in schema["enum"]):
            self.fail(path, f"must be {_wanted(schema)}, not {_show(value)}")

    def choices(self, value: Any, schema: Mapping[str, Any], path: str, depth: int) -> None:
        for part in schema.get("allOf", ()):
            self.value(value, part, path, depth + 1)
        for keyword in ("anyOf", "oneOf"):
            options = schema.get(keyword)
            if options:
                self.one_of(value, options, path, depth)

    def one_of(self, value: Any, options: Any, path: str, depth: int) -> None:
        deepest: ToolInputError | None = None
        for option in options:
            try:
                self.value(value, option, path, depth + 1)
                return
            except ToolInputError as error:
                if deepest is None or len(error.path) > len(deepest.path):
                    deepest = error
        if deepest is not None and len(deepest.path) > len(path):
            raise deepest
        wanted = [_wanted(self.resolve(option)) for option in options if isinstance(option, Mapping)]
        self.fail(path, f"must be {' or '.join(filter(None, wanted)) or 'another value'}, not {_show(value)}")

    def object(self, value: Mapping[str, Any], schema: Mapping[str, Any], path: str, depth: int) -> None:
        properties = schema.get("properties", {})
        for name in schema.get("required", ()):
            if name not in value:
                self.fail(_join(path, name), "is missing")
        extra = schema.get("additionalProperties", True)
        for name, item in value.items():
            if name in properties:
                self.value(item, properties[name], _join(path, name), depth + 1)
            elif extra is False:
                known = ", ".join(properties) or "(none)"
                self.fail(_join(path, name), f"is not known; the names are {known}")
            else:
                self.value(item, extra, _join(path, name), depth + 1)

    def array(self, value: Any, schema: Mapping[str, Any], path: str, depth: int) -> None:
        self.bounds(len(value), schema, "minItems", "maxItems", path, " items")
        if "items" in schema:
            for index, item in enumerate(value):
                self.value(item, schema["items"], f"{path}[{index}]", depth + 1)

    def string(self, value: str, schema: Mapping[str, Any], path: str) -> None:
        self.bounds(len(value), schema, "minLength", "maxLength", path, " characters")
        pattern = schema.get("pattern")
        if pattern is not None and not re.search(pattern, value):
            self.fail(path, f"must match {pattern}, not {_show(value)}")

    def number(self, value: float, schema: Mapping[str, Any], path: str) -> None:
        self.bounds(value, schema, "minimum", "maximum", path, "")

    def bounds(self, size: float, schema: Mapping[str, Any], low: str, high: str, path: str, unit: str) -> None:
        if low in schema and size < schema[low]:
            self.fail(path, f"must be at least {schema[low]}{unit}, not {size}")
        if high in schema and size > schema[high]:
            self.fail(path, f"must be at most {schema[high]}{unit}, not {size}")

    def fail(self, path: str, reason: str) -> None:
        raise ToolInputError(f"{self._what}: {path or 'the value'} {reason}", path=path)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else str(name)


def _wanted(schema: Mapping[str, Any]) -> str:
    """What a schema takes, in words; empty when it does not say a type or values."""
    if "const" in schema:
        return _show(schema["const"])
    if "enum" in schema:
        return f"one of {', '.join(map(_show, schema['enum']))}"
    names = {"object": "an object", "array": "a list", "integer": "a whole number", "null": "null"}
    kinds = schema.get("type") or ()
    return " or ".join(names.get(kind, f"a {kind}") for kind in ([kinds] if isinstance(kinds, str) else kinds))


def _show(value: Any) -> str:
    return shortened(repr(value), 60)
