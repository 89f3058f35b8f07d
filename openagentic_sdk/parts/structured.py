"""A final answer that matches a schema: how to request it in each form, and how to read the answer.

No I/O. There are three forms, best first: the endpoint's own response format, a call of a final tool, and text that contains
JSON. The value is checked against the schema in every form, because endpoints do not always keep to it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import InvalidEventError, OptionsError, ToolInputError
from ..ground.frozen import frozen
from ..ground.loose import as_list, as_mapping
from ..ground.patterns import regex
from ..ground.schemas import compiled, require_checkable
from ..providers.base import ToolSpec
from ..serialization import DECODER, dumps_field
from ..tools.schema import object_schema

if TYPE_CHECKING:
    from ..ground.schemas.typed import JsonType

FINAL_ANSWER = "final_answer"

# Decoding may run from each opening bracket to the end of the text, so a limit on their number is a limit on the time.
_MAX_STARTS = 1000
_WRAPPED = "value"
# The keywords that every endpoint accepts in strict mode: OpenAI (developers.openai.com/api/docs/guides/structured-outputs,
# "Supported schemas") and Azure (learn.microsoft.com, "Structured outputs", "Supported schemas and limitations").
_STRICT = regex(
    r"type|properties|required|additionalProperties|items|anyOf|enum|const|\$ref|\$defs|definitions|title|description"
)
# Constraints on a single value. Azure refuses them, as do fine-tuned models; other endpoints refuse some.
_VALUE_LIMITS = regex(
    r"(min|max)(Length|Items|Properties)|(exclusiveM|m)(in|ax)imum|multipleOf|pattern|format|uniqueItems"
)
_NOTES = regex(r"\$schema|\$comment|default|examples|deprecated|readOnly|writeOnly|x-.*")
_UNIONS = ("anyOf", "oneOf", "allOf")


@frozen
class OutputSchema:
    """The schema of the answer, always for an object: a value of any other type is wrapped in `{"value": ...}`.

    `kind` is the Python type that it was derived from, if any: values that this type rejects are also sent back to the
    model.
    """

    schema: Mapping[str, Any]
    is_wrapped: bool = False
    name: str = "answer"
    kind: JsonType[Any] | None = None

    def response_format(self) -> dict[str, Any]:
        """The `response_format` of the request; strict if strict mode can express the schema."""
        strict = strict_schema(self.schema)
        own = {key: value for key, value in self.schema.items() if key != "$schema"}
        inner = {"name": self.name, "strict": strict is not None, "schema": own if strict is None else strict}
        return {"type": "json_schema", "json_schema": inner}

    def tool(self) -> ToolSpec:
        """The definition of the tool whose call is the answer, for endpoints that support tools but no response format."""
        description = "Give the final answer of this task. Call it once, when everything else is done."
        function = {"name": FINAL_ANSWER, "description": description, "parameters": dict(self.schema)}
        return {"type": "function", "function": function}

    def instructions(self) -> str:
        """The part of the system prompt for a model that only returns text."""
        return (
            "Your final answer must be one JSON value that fits this schema, and nothing else:\n"
            f"{json.dumps(self.schema, ensure_ascii=False)}"
        )

    def read_text(self, text: str) -> Any:
        """Read the value from a text: all of it, or the last JSON value in it. Raises `ToolInputError` with the problem."""
        return self.read_value(_json_in(text, self.is_wrapped))

    def read_value(self, value: Any) -> Any:
        """Check the value and return it unwrapped. Raises `ToolInputError` with the path of the mismatch.

        A value that matches the schema is not changed; else the nulls that strict mode adds are dropped. An object whose
        only key is `value` is read as the wrapper if it matches as one.
        """
        try:  # as in the log; a result that the log cannot contain would be shown and not stored
            dumps_field(value)
        except InvalidEventError as error:
            raise ToolInputError(f"the answer cannot be stored: {error}") from None
        forms = [{_WRAPPED: value}] if self.is_wrapped else [value]
        if self.is_wrapped and isinstance(value, Mapping) and set(value) == {_WRAPPED}:
            forms.insert(0, value)
        failure: ToolInputError | None = None
        for form in forms:
            try:
                checked = self._checked(form)
            except ToolInputError as error:
                failure = failure or error
            except RecursionError:
                failure = failure or ToolInputError("the answer is nested too deeply")
            else:
                result = checked[_WRAPPED] if self.is_wrapped else checked
                if self.kind is not None:
                    self.kind.read(result, "the answer")
                return result
        raise failure or AssertionError("there is always a form")

    def _checked(self, value: Any) -> Any:
        schema = compiled(self.schema)
        try:
            return schema.check(value, "the answer")
        except ToolInputError:
            bare = without_added_nulls(value, self.schema, self.schema)
            if bare == value:
                raise
            return schema.check(bare, "the answer")

    def repair_prompt(self, error: ToolInputError) -> str:
        """The message that tells the model what is wrong with its answer."""
        return f"Your final answer cannot be used: {error}. Give it again, corrected, as one JSON value of the schema."


def read_output_schema(spec: Any) -> OutputSchema:
    """Create the output schema from a JSON schema, or from a type that JSON can represent. Raises `OptionsError`."""
    kind = None
    if not isinstance(spec, Mapping):
        from ..ground.schemas.typed import json_type  # imported late: JSON schemas do not need it

        try:
            kind = json_type(spec)
        except OptionsError as error:
            raise OptionsError(f"output_schema (`output` of an Agent) cannot be used, since {error}") from error
    name = "answer" if isinstance(spec, Mapping) else getattr(spec, "__name__", "answer")
    try:
        schema = dict(spec if kind is None else kind.schema)
        json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionsError(f"output_schema is not a JSON schema: {error}") from error
    require_checkable(schema, "output_schema")
    if schema.get("type") == "object":
        return OutputSchema(schema, name=_usable(name), kind=kind)
    definitions: dict[str, Any] = {}
    if "$id" not in schema:  # references resolve against an $id, so it must stay the root
        schema = _moved(schema)
        definitions = {key: schema.pop(key) for key in ("$defs", "definitions") if key in schema}
    wrapper = object_schema({_WRAPPED: schema}, required=[_WRAPPED], additionalProperties=False, **definitions)
    require_checkable(wrapper, "output_schema")
    return OutputSchema(wrapper, is_wrapped=True, name=_usable(name), kind=kind)


def _moved(part: Any) -> Any:
    """The schema with its internal references adjusted for its place inside the wrapper, except those to its definitions."""
    if isinstance(part, list | tuple):
        return [_moved(item) for item in part]
    if not isinstance(part, Mapping):
        return part
    moved: dict[str, Any] = {}
    for key, value in part.items():
        if key == "$ref" and isinstance(value, str) and re.match(r"#(?!/(\$defs|definitions)/|[^/])", value):
            moved[key] = f"#/properties/{_WRAPPED}{value[1:]}"
        elif key in ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"):
            moved[key] = {name: _moved(item) for name, item in as_mapping(value).items()}
        else:
            moved[key] = value if key in ("const", "enum", "default", "examples") else _moved(value)
    return moved


def strict_schema(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """The schema for strict mode: every object closed, every property required, optional ones nullable.

    None if strict mode cannot express it, as for open objects and for keywords that endpoints refuse there. Constraints on
    a single value (`minLength`) are moved to its description.
    """
    try:
        return _strict(schema, schema)
    except _NoStrictFormError:
        return None


class _NoStrictFormError(ValueError):
    """An error for a part of a schema that strict mode cannot express."""


def _strict(schema: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(schema, Mapping):
        raise _NoStrictFormError
    extra_rules = {key: value for key, value in schema.items() if _VALUE_LIMITS.fullmatch(key)}
    strict = {key: value for key, value in schema.items() if key not in extra_rules and not _NOTES.fullmatch(key)}
    if "$ref" in strict:
        if extra_rules:
            raise _NoStrictFormError
        return _strict_reference(strict, root)
    kinds = [strict["type"]] if isinstance(strict.get("type"), str) else as_list(strict.get("type"))
    bases = strict.keys() & {"type", "enum", "const", "anyOf", "properties", "items"}
    is_one_kind = "anyOf" not in bases and bases & {"type", "enum", "const"}
    if not (is_one_kind or bases == {"anyOf"}) or not all(map(_STRICT.fullmatch, strict)):
        raise _NoStrictFormError
    # The keys in these objects are names, not keywords: a property may be called "default".
    for key in strict.keys() & {"properties", "$defs", "definitions"}:
        strict[key] = {name: _strict(part, root) for name, part in as_mapping(strict[key]).items()}
    if "anyOf" in strict:
        strict["anyOf"] = [_strict(part, root) for part in as_list(strict["anyOf"])]
    if "array" in kinds or "items" in strict:
        strict["items"] = _strict(strict.get("items"), root)
    if "object" in kinds or "properties" in strict:
        strict |= _closed_object(strict, root)
    if extra_rules:
        rules = ", ".join(f"{key}: {json.dumps(value)}" for key, value in extra_rules.items())
        strict["description"] = f"{strict.get('description', '')} ({rules})".strip()
    return strict


def _strict_reference(schema: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    """Return a reference to the whole schema or to one of its definitions; strict mode allows no keyword beside it.

    Raises `_NoStrictFormError` for any other reference, and for one beside keywords other than a title or description.
    """
    reference = str(schema["$ref"])
    is_known = reference == "#" or re.fullmatch(r"#/(\$defs|definitions)/[^/]+", reference)
    if schema.keys() - {"$ref", "title", "description"} or not (is_known and _target(reference, root)):
        raise _NoStrictFormError
    return {"$ref": reference}


def _closed_object(schema: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    """The strict keywords of an object whose properties are already strict. Raises `_NoStrictFormError` if it is open."""
    properties, required = schema.get("properties") or {}, as_list(schema.get("required"))
    # Without properties it is a map with arbitrary keys; a name that is only required accepts any value.
    is_open = schema.get("additionalProperties", not properties) is not False
    if is_open or set(required) - properties.keys():
        raise _NoStrictFormError
    return {
        "properties": {name: part if name in required else _nullable(part, root) for name, part in properties.items()},
        "required": list(properties),
        "additionalProperties": False,
    }


def without_added_nulls(value: Any, schema: Any, root: Mapping[str, Any]) -> Any:
    """The value without the nulls that strict mode requires for absent properties."""
    return _without_nulls(value, _branches([schema], root), root)


def _without_nulls(value: Any, schemas: list[Mapping[str, Any]], root: Mapping[str, Any]) -> Any:
    """Like `without_added_nulls`, for a value that may match any of these schemas."""
    if isinstance(value, list) and schemas:
        items = _branches([schema.get("items") for schema in schemas], root)
        return [_without_nulls(item, items, root) for item in value]
    if not isinstance(value, Mapping) or not schemas:
        return value
    members = {}
    for name, item in value.items():
        holders = [schema for schema in schemas if name in as_mapping(schema.get("properties"))]
        parts = [schema["properties"][name] for schema in holders]
        is_optional = any(name not in as_list(schema.get("required")) for schema in holders)
        if item is not None or not is_optional or any(_takes_null(part, root) for part in parts):
            members[name] = _without_nulls(item, _branches(parts, root), root)
    return members


def _nullable(schema: dict[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    if _takes_null(schema, root):
        return schema
    kind = schema.get("type")
    if isinstance(kind, str) and not schema.keys() & {"enum", "const"}:
        return {**schema, "type": [kind, "null"]}
    return {"anyOf": [schema, {"type": "null"}]}


def _takes_null(schema: Any, root: Mapping[str, Any]) -> bool:
    return schema is True or any(map(_is_nullable, _branches([schema], root)))


def _is_nullable(schema: Mapping[str, Any]) -> bool:
    """Whether a schema itself accepts null; False for a reference or a union, whose branches are checked separately."""
    if schema.keys() & {"$ref", *_UNIONS}:
        return False
    kinds = schema.get("type", "null")
    return schema.get("nullable") is True or (
        "null" in (kinds if isinstance(kinds, list) else [kinds])
        and None in as_list(schema.get("enum", [None]))
        and schema.get("const") is None
    )


def _branches(schemas: Sequence[Any], root: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """These schemas and all that they include by reference or union: a value may match any of them."""
    branches: list[Mapping[str, Any]] = []
    waiting = list(schemas)
    while waiting:
        schema = waiting.pop()
        if isinstance(schema, Mapping) and not any(schema is other for other in branches):
            branches.append(schema)
            waiting += [part for key in _UNIONS for part in as_list(schema.get(key))]
            waiting.append(_target(schema.get("$ref"), root))
    return branches


def _target(reference: Any, root: Mapping[str, Any]) -> Any:
    if not isinstance(reference, str) or not (reference + "/").startswith("#/"):
        return None
    target: Any = root
    for part in reference.split("/")[1:]:
        target = as_mapping(target).get(part)
    return target


def _json_in(text: str, any_kind: bool) -> Any:
    """Decode the text as JSON, else the last complete object in it (or list, if `any_kind`). Raises `ToolInputError`."""
    try:
        return DECODER.decode(text.strip())
    except (ValueError, RecursionError):
        pass
    starts = [place for place, char in enumerate(text) if char in ("{[" if any_kind else "{")][:_MAX_STARTS]
    value, end = None, 0
    for place in starts:
        if place < end:
            continue  # inside a value already decoded
        try:
            value, end = DECODER.raw_decode(text, place)
        except (ValueError, RecursionError):
            continue
    if value is None:
        raise ToolInputError("the answer contains no JSON")
    return value


# OpenAI allows a-z, A-Z, 0-9, _ and - in the name of a response format, at most 64 of them.
def _usable(name: str) -> str:
    return (
        "".join(char if char.isascii() and (char.isalnum() or char in "_-") else "_" for char in name)[:64] or "answer"
    )
