"""A final answer that fits a schema: how to ask for it in each form, and how to read what came back.

Pure. Three forms, best first: the endpoint's own response format, a call of a last tool, text with JSON in it. Whatever the
form, the value is checked against the schema here; endpoints promise more than they keep.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..errors import OptionsError, ToolInputError
from ..frozen import frozen
from ..providers.base import ToolSpec
from ..serialization import DECODER
from ..tools.function import json_schema
from ..tools.schema import validate

FINAL_ANSWER = "final_answer"

_MAX_STARTS = 1000
_WRAPPED = "value"


@frozen
class OutputSchema:
    """What the answer must be. `schema` is an object's schema; a value of another kind is wrapped in `{"value": ...}`."""

    schema: Mapping[str, Any]
    is_wrapped: bool = False
    name: str = "answer"

    def response_format(self) -> dict[str, Any]:
        """The request's `response_format` for endpoints that have one."""
        inner = {"name": self.name, "strict": True, "schema": strict_schema(self.schema)}
        return {"type": "json_schema", "json_schema": inner}

    def tool(self) -> ToolSpec:
        """The tool whose call is the answer, for endpoints that only have tools."""
        description = "Give the final answer of this task. Call it once, when everything else is done."
        function = {"name": FINAL_ANSWER, "description": description, "parameters": dict(self.schema)}
        return {"type": "function", "function": function}

    def instructions(self) -> str:
        """What the system prompt says to a model that only has text."""
        return (
            "Your final answer must be one JSON value that fits this schema, and nothing else:\n"
            f"{json.dumps(self.schema, ensure_ascii=False)}"
        )

    def read_text(self, text: str) -> Any:
        """The value in a text: the whole text, or the JSON in it. Raises `ToolInputError` with what is wrong."""
        return self.read_value(_json_in(text, self.is_wrapped))

    def read_value(self, value: Any) -> Any:
        """The value, checked. Raises `ToolInputError` with the path of what does not fit."""
        if self.is_wrapped and not (isinstance(value, Mapping) and set(value) == {_WRAPPED}):
            value = {_WRAPPED: value}
        value = without_added_nulls(value, self.schema, self.schema)
        validate(value, self.schema, "the answer")
        return value[_WRAPPED] if self.is_wrapped else value

    def repair_prompt(self, error: ToolInputError) -> str:
        """What to say to the model when its answer did not fit."""
        return f"Your final answer cannot be used: {error}. Give it again, corrected, as one JSON value of the schema."


def read_output_schema(spec: Any) -> OutputSchema:
    """The schema of a JSON schema, a dataclass, a TypedDict or any other type that has one. Raises `OptionsError`."""
    name = "answer" if isinstance(spec, Mapping) else getattr(spec, "__name__", "answer")
    try:
        schema = dict(spec) if isinstance(spec, Mapping) else json_schema(spec)
        json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionsError(f"output_schema is no JSON schema: {error}") from error
    if schema.get("type") == "object":
        return OutputSchema(schema, name=_usable(name))
    definitions = {key: schema.pop(key) for key in ("$defs", "definitions") if key in schema}
    properties = {_WRAPPED: schema}
    wrapper = {"type": "object", "properties": properties, "required": [_WRAPPED], "additionalProperties": False}
    return OutputSchema({**wrapper, **definitions}, is_wrapped=True, name=_usable(name))


def strict_schema(schema: Any) -> Any:
    """The schema as strict mode wants it: every object closed, every property required, optional ones nullable."""
    if isinstance(schema, list):
        return [strict_schema(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    written: dict[str, Any] = {}
    for key, value in schema.items():
        # Below these keys stand names, not keywords: a property may well be called "default".
        if key in ("properties", "$defs", "definitions") and isinstance(value, Mapping):
            written[key] = {name: strict_schema(part) for name, part in value.items()}
        elif key not in ("$schema", "default"):
            written[key] = value if key in ("enum", "const", "required") else strict_schema(value)
    if schema.get("type") == "object" or "properties" in schema:
        required = set(schema.get("required") or ())
        properties = written.get("properties") or {}
        written["properties"] = {
            name: part if name in required else _nullable(part) for name, part in properties.items()
        }
        written["required"] = list(properties)
        written["additionalProperties"] = False
    return written


def without_added_nulls(value: Any, schema: Any, root: Mapping[str, Any]) -> Any:
    """The value without the nulls that strict mode makes of absent properties."""
    schema = _resolved(schema, root)
    if isinstance(value, list):
        return [without_added_nulls(item, schema.get("items"), root) for item in value]
    properties = schema.get("properties")
    if not isinstance(value, Mapping) or not isinstance(properties, Mapping):
        return value
    required = schema.get("required") or ()
    return {
        name: without_added_nulls(item, properties.get(name), root)
        for name, item in value.items()
        if item is not None or name in required or name not in properties or _takes_null(properties[name], root)
    }


def _nullable(schema: Any) -> Any:
    if not isinstance(schema, Mapping) or _takes_null(schema, {}):
        return schema
    kind = schema.get("type")
    if isinstance(kind, str) and "enum" not in schema:
        return {**schema, "type": [kind, "null"]}
    return {"anyOf": [schema, {"type": "null"}]}


def _takes_null(schema: Any, root: Mapping[str, Any]) -> bool:
    schema = _resolved(schema, root)
    kind = schema.get("type")
    kinds = [kind] if isinstance(kind, str) else list(kind or ())
    listed = None in schema["enum"] if isinstance(schema.get("enum"), list) else False
    return "null" in kinds or listed or any(_takes_null(part, root) for part in schema.get("anyOf") or ())


def _resolved(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = schema.get("$ref") if isinstance(schema, Mapping) else None
    if isinstance(reference, str) and reference.startswith("#/"):
        target: Any = root
        for part in reference[2:].split("/"):
            target = target.get(part) if isinstance(target, Mapping) else None
        schema = target
    return schema if isinstance(schema, Mapping) else {}


def _json_in(text: str, any_kind: bool) -> Any:
    """The whole text as JSON, else the last complete object (or list) that stands in it."""
    try:
        return DECODER.decode(text.strip())
    except (ValueError, RecursionError):
        pass
    starts = [place for place, char in enumerate(text) if char in ("{[" if any_kind else "{")][:_MAX_STARTS]
    found, end = None, 0
    for place in starts:
        if place < end:
            continue  # inside of what was found
        try:
            found, end = DECODER.raw_decode(text, place)
        except (ValueError, RecursionError):
            continue
    if found is None:
        raise ToolInputError("the answer has no JSON in it")
    return found


def _usable(name: str) -> str:
    return (
        "".join(char if char.isascii() and (char.isalnum() or char in "_-") else "_" for char in name)[:64] or "answer"
    )
