"""The server's contract as TypeScript: types of values, events and operations, generated from the OpenAPI document.

No copy is stored: `openagentic-sdk serve --contract typescript > contract.ts` prints the contract of this version.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from .openapi import LATER_EVENT, openapi, schemas

_HEAD = """\
// The contract of a server of openagentic_sdk {version}, printed by `openagentic-sdk serve --contract typescript`.
// A later server may send events of other types, further fields, and words other than those listed. Types do not check data
// at run time, so a switch over `event.type` needs a default.
"""
_OPERATIONS = """
/** Each operation: `path` is below the server's address, `body` and `result` are JSON; a refusal is a `Refusal`. */
export interface Operations {"""
_PLAIN = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}


def typescript() -> str:
    """The contract as the source of a TypeScript module."""
    document = openapi()
    lines = [_HEAD.format(version=document["info"]["version"])]
    for name, schema in schemas().items():
        lines.append(_comment(schema.get("description", "")) + _declaration(name, schema))
    lines.append(_OPERATIONS)
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            lines += _operation(path, method.upper(), operation)
    return "\n".join([*lines, "}", ""])


def _declaration(name: str, schema: Mapping[str, Any]) -> str:
    text = _type(schema)
    if text.startswith("{"):
        return f"export interface {name} {text}"
    return f"export type {name} = {text};"


def _operation(path: str, method: str, operation: Mapping[str, Any]) -> list[str]:
    parameters = operation.get("parameters", [])
    query = {each["name"]: each["schema"] for each in parameters if each["in"] == "query"}
    bodies = {status: _content(answer) for status, answer in operation["responses"].items() if status < "3"}
    body = _content(operation["requestBody"]) if "requestBody" in operation else "never"
    return [
        f"  /** {operation['summary']}. */",
        f"  {operation['operationId']}: {{",
        f"    method: {json.dumps(method)};",
        f"    path: {json.dumps(path)};",
        f"    query: {_object(query, (), '    ') if query else 'never'};",
        f"    body: {body};",
        f"    result: {' | '.join(dict.fromkeys(bodies.values())) or 'never'};",
        "  };",
    ]


def _content(answer: Mapping[str, Any]) -> str:
    """The type of a body: its JSON type if it has one, else string, or null for no body."""
    content = answer.get("content")
    if content is None:
        return "null"
    return _type(content["application/json"]["schema"], "    ") if "application/json" in content else "string"


def _type(schema: Mapping[str, Any], indent: str = "") -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        return " | ".join(map(json.dumps, schema["enum"]))
    if either := schema.get("oneOf") or schema.get("anyOf"):
        is_open = any("enum" in each for each in either)
        types = [
            "(string & {})"  # next to a plain `string`, editors would not suggest the words
            if is_open and each == {"type": "string"}
            else _type(each, indent)
            for each in either
            if each != LATER_EVENT  # with it, comparing `type` would not narrow the union
        ]
        return " | ".join(dict.fromkeys(types))
    kind = schema.get("type")
    if kind == "array":
        item = _type(schema.get("items", {}), indent)
        return f"({item})[]" if " | " in item and item[:1] != "{" else f"{item}[]"
    if kind == "object" and schema.get("properties"):
        return _object(schema["properties"], schema.get("required", ()), indent)
    if kind == "object":
        rest = schema.get("additionalProperties", {})
        return f"Record<string, {'never' if rest is False else _type(rest, indent)}>"
    return _PLAIN.get(kind or "", "unknown")


def _object(members: Mapping[str, Any], required: Iterable[str], indent: str) -> str:
    inner = indent + "  "
    lines = []
    for name, schema in members.items():
        if noted := schema.get("description"):
            lines.append(_comment(noted, inner).rstrip("\n"))
        key = name if re.fullmatch(r"[A-Za-z_]\w*", name) else json.dumps(name)
        lines.append(f"{inner}{key}{'' if name in required else '?'}: {_type(schema, inner)};")
    return "\n".join(["{", *lines, indent + "}"])


def _comment(text: str, indent: str = "") -> str:
    lines = text.replace("*/", "* /").strip().splitlines()
    if len(lines) < 2:
        return f"{indent}/** {lines[0]} */\n" if lines else ""
    return "\n".join([f"{indent}/**", *(f"{indent} * {line}".rstrip() for line in lines), f"{indent} */", ""])
