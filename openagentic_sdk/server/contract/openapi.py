"""The server's contract as OpenAPI 3.1, generated from the route table, the value types and the events."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from http import HTTPStatus
from typing import Any, get_args, get_origin

from ...events import EVENT_CLASSES, Event
from ...ground.jsonrpc import Json
from ...ground.patterns import regex
from ...ground.schemas.typed import hints_of, json_schema
from ...version import __version__
from . import values
from .refusals import CODES
from .table import ENDPOINTS, EVENTS, Endpoint, QueryField

_PARAMETER = regex(r"\{(\w+)\}")
_KINDS = {str: "string", int: "integer", bool: "boolean"}
LATER_EVENT = {"$ref": "#/components/schemas/UnknownEvent"}
_ENVELOPE = {field.name for field in fields(Event)}


def openapi(root: str = "") -> Json:
    """The OpenAPI document for a server whose routes are below the path `root`."""
    paths: Json = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    bearer = {
        "type": "http",
        "scheme": "bearer",
        "description": "The token of the server; browsers send a cookie instead.",
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "openagentic_sdk", "version": __version__},
        "servers": [{"url": root or "/"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {"securitySchemes": {"token": bearer}, "schemas": schemas()},
    }


@cache
def schemas() -> Json:
    """The schemas of all values and events by name; `Event` is the union of all events, including unknown ones."""
    by_name = {name: _value_schema(kind) for name, kind in vars(values).items() if _is_value(kind)}
    by_name["RefusalReason"]["properties"]["code"] = {"anyOf": [{"enum": list(CODES)}, {"type": "string"}]}
    events = {kind.__name__: event_schema(kind) for kind in EVENT_CLASSES.values()}
    unknown = {
        "type": "object",
        "description": "An event of a type unknown to this version: skip it.",
        "properties": {"type": {"type": "string", "not": {"enum": list(EVENT_CLASSES)}}},
        "required": ["type"],
    }
    known_event = {
        "description": "An event of a session, discriminated by `type`.",
        "oneOf": [_ref(name) for name in events],
        "discriminator": {
            "propertyName": "type",
            "mapping": {kind: _ref(each.__name__)["$ref"] for kind, each in EVENT_CLASSES.items()},
        },
    }
    either = {"anyOf": [_ref("KnownEvent"), LATER_EVENT]}
    return {**by_name, **events, "KnownEvent": known_event, "UnknownEvent": unknown, "Event": either}


def event_schema(kind: type[Event]) -> Json:
    """The schema of an event in server responses. Enumerations are open, for values added by later versions."""
    schema = json_schema(kind)
    own = {name: _opened(each) for name, each in schema["properties"].items() if name not in _ENVELOPE}
    envelope = {name: each for name, each in schema["properties"].items() if name in _ENVELOPE}
    required = ["type", *(name for name in schema.get("required", ()) if name in own)]
    described = _noted(kind, {"type": "object", "properties": {"type": {"const": kind.type}, **own, **envelope}})
    return {**described, "required": required}


def _is_value(kind: Any) -> bool:
    is_record = isinstance(kind, type) and (is_dataclass(kind) or hasattr(kind, "__required_keys__"))
    return is_record and kind.__module__ == values.__name__ and kind.__name__[:1] != "_"


def _value_schema(kind: Any) -> Json:
    """The schema of a value: closed if clients send it, open if the server does, for fields added by later versions."""
    if not is_dataclass(kind):
        return _noted(kind, json_schema(kind) if kind is values.SentPart else _with_parts(json_schema(kind)))
    hints = hints_of(kind)
    properties = {name: _hinted(hint) for name, hint in hints.items()}
    return _noted(kind, {"type": "object", "properties": properties, "required": list(hints)})


def _with_parts(schema: Any) -> Any:
    """The schema with inlined prompt parts replaced by a reference to `SentPart`."""
    if schema == json_schema(values.SentPart):
        return _ref("SentPart")
    if isinstance(schema, list):
        return [_with_parts(each) for each in schema]
    return {name: _with_parts(each) for name, each in schema.items()} if isinstance(schema, dict) else schema


def _hinted(hint: Any) -> Json:
    if get_origin(hint) is list:
        return {"type": "array", "items": _hinted(get_args(hint)[0])}
    has_name = _is_value(hint) or (isinstance(hint, type) and issubclass(hint, Event))
    return _ref(hint.__name__) if has_name else json_schema(hint)


def _noted(kind: Any, schema: Mapping[str, Any]) -> Json:
    # `dataclass` generates a signature as the docstring of a class that has none.
    is_told = kind.__doc__ and not kind.__doc__.startswith(f"{kind.__name__}(")
    return {"description": inspect.cleandoc(kind.__doc__), **schema} if is_told else dict(schema)


def _opened(schema: Any) -> Any:
    """The schema with enumerations of strings opened to any string."""
    if isinstance(schema, list):
        return [_opened(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "enum" in schema and all(isinstance(word, str) for word in schema["enum"]):
        return {"anyOf": [{"enum": schema["enum"]}, {"type": "string"}]}
    return {name: _opened(each) for name, each in schema.items()}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


# OpenAPI links from a created session to the operations on it.
_LINKS: Json = {
    each.name: {"operationId": each.name, "parameters": {"session_id": "$response.body#/session_id"}}
    for each in ENDPOINTS
    if "{session_id}" in each.path
}

# --- one route -------------------------------------------------------------------------------------------------------


def _operation(endpoint: Endpoint) -> Json:
    parameters: list[Json] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _PARAMETER.findall(endpoint.path)
    ]
    parameters += [_query_parameter(name, field) for name, field in endpoint.query.items()]
    if endpoint.has_key:
        key = {"type": "string", "pattern": "^[!-}]{1,200}$"}
        parameters.append({"name": "Idempotency-Key", "in": "header", "schema": key})
    operation: Json = {"operationId": endpoint.name, "summary": endpoint.summary, "tags": [endpoint.room]}
    if parameters:
        operation["parameters"] = parameters
    if endpoint.body is not None:
        operation["requestBody"] = {"required": True, "content": _json(endpoint.body)}
    operation["responses"] = {str(status): _answer(status, kind) for status, kind in endpoint.answers.items()}
    if endpoint.name == "create_session":
        operation["responses"]["201"]["links"] = _LINKS
    operation["responses"]["default"] = {
        "description": "Refused",
        "content": {"application/json": {"schema": {} if endpoint.room in ("responses", "mcp") else _ref("Refusal")}},
    }
    if endpoint.streams:
        operation["responses"]["200"]["content"][EVENTS] = {"schema": {"type": "string"}}
    if endpoint.is_open:
        operation["security"] = []
    return operation


def _query_parameter(name: str, field: QueryField) -> Json:
    schema: Json = {"type": _KINDS[field.kind]}
    if field.kind is int:
        schema |= {"minimum": 0, "maximum": field.most}
    if field.words:
        schema["enum"] = list(field.words)
    return {"name": name, "in": "query", "description": field.says, "schema": schema}


def _answer(status: int, kind: Any) -> Json:
    described: Json = {"description": HTTPStatus(status).phrase}
    if kind is None:
        return described
    is_media = isinstance(kind, str) and "/" in kind
    return {**described, "content": {kind: {"schema": {"type": "string"}}} if is_media else _json(kind)}


def _json(kind: Any) -> Json:
    if isinstance(kind, str):  # the type of an event
        return {"application/json": {"schema": _ref(EVENT_CLASSES[kind].__name__)}}
    return {"application/json": {"schema": _ref(kind.__name__) if _is_value(kind) else {"type": "object"}}}
