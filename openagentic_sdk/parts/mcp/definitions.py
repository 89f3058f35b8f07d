"""Convert a server's tool definitions to a form that models accept, cleaning or omitting each one separately.

Definitions are untrusted text. A name becomes `mcp__server__tool` with at most 64 characters, because endpoints refuse a
whole request that contains any other name. A schema is repaired if its meaning is clear; a tool whose schema cannot be
sent is omitted with the reason, without affecting other tools. Nothing here uses the network: a `$ref` to another
document is refused.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from ...errors import InvalidEventError
from ...ground.diagnostic import Diagnostic
from ...ground.frozen import frozen
from ...ground.loose import as_list
from ...ground.schemas import compiled
from ...ground.text import without_hidden
from ...serialization import dumps_json, loads_json
from ...sessions.request import canonical_json, json_sha256
from .server_config import McpServer

# OpenAI's limit on function names, which many endpoints have adopted.
MAX_NAME_CHARS = 64
MAX_DESCRIPTION_CHARS = 2_000
MAX_SCHEMA_BYTES = 64 * 1024
# For all schemas of a server together, because a run waits while they are read.
MAX_SCHEMAS_BYTES = 4 * 1024 * 1024
MAX_SCHEMA_DEPTH = 32
# Schemas in one input schema; more do not fit into `MAX_SCHEMA_BYTES`.
MAX_SCHEMAS = 10_000
# The members that an agreement to a tool covers; the others (`_meta`, icons) are only displayed.
PINNED = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")


@frozen
class ToolDefinition:
    """A server's tool as described to a model. `name` is the server's name for it, `shown` the name that the model uses.

    `raw` is the definition as the server sent it, and `sha256` its `tool_digest`.
    """

    name: str
    shown: str
    description: str
    input_schema: Mapping[str, Any]
    sha256: str
    raw: Mapping[str, Any]


def tool_digest(raw: Mapping[str, Any]) -> str:
    """The digest of a definition: SHA-256 of the canonical JSON of its name, texts, schemas and annotations.

    Raises `ValueError` or `RecursionError` if it is nested too deeply.
    """
    return json_sha256({key: raw[key] for key in PINNED if key in raw})


def read_definitions(
    server: str, settings: McpServer, raw_tools: Iterable[Any]
) -> tuple[list[ToolDefinition], list[Diagnostic]]:
    """Return the tools of one server that can be offered, sorted by shown name, and the reasons why the others cannot.

    The code of each reason is `shape`, `schema`, `duplicate` or `list` (allow and deny); a seat adds `header` and `pin`.
    """
    problems: list[Diagnostic] = []
    by_name: dict[str, ToolDefinition] = {}
    room = MAX_SCHEMAS_BYTES
    for raw in raw_tools:
        try:
            if room < 0:
                raise ValueError(f"the definitions before it have more than {MAX_SCHEMAS_BYTES:,} bytes")
            definition = _read_definition(server, raw)
            room -= len(canonical_json(definition.input_schema))
        except ValueError as error:
            name = raw.get("name") if isinstance(raw, Mapping) else None
            problems.append(
                Diagnostic("schema" if name else "shape", str(error), path=clean_text(str(name or "(no name)"), 200))
            )
            continue
        if definition.name in by_name:
            why = "the server lists two tools with this name; the first one is used"
            problems.append(Diagnostic("duplicate", why, path=definition.name))
        elif not is_wanted(settings, definition.name):
            problems.append(
                Diagnostic("list", "the allow and deny lists of this server leave it out", path=definition.name)
            )
        else:
            by_name[definition.name] = definition
    counts = Counter(definition.shown for definition in by_name.values())
    by_shown: dict[str, ToolDefinition] = {}
    for definition in by_name.values():
        if counts[definition.shown] > 1:
            definition = replace(definition, shown=hashed_name(server, definition.name))
        if by_shown.setdefault(definition.shown, definition) is not definition:
            why = (
                f"its name for the model, {definition.shown}, is also that of {by_shown[definition.shown].name!r:.200}"
            )
            problems.append(Diagnostic("duplicate", why, path=definition.name))
    return [by_shown[shown] for shown in sorted(by_shown)], problems


def is_wanted(settings: McpServer, tool: str) -> bool:
    """Whether the server's allow and deny lists permit offering this tool."""
    if any(fnmatchcase(tool, pattern) for pattern in settings.deny):
        return False
    return settings.allow is None or any(fnmatchcase(tool, pattern) for pattern in settings.allow)


def _read_definition(server: str, raw: Any) -> ToolDefinition:
    """Read one definition. Raises ValueError with the reason if the tool cannot be offered."""
    if not isinstance(raw, Mapping):
        raise ValueError("it is not an object")
    name = raw.get("name")
    if not isinstance(name, str) or not name or len(name) > 512:
        raise ValueError("it has no name of 1 to 512 characters")
    described = raw.get("description")
    text = described if isinstance(described, str) else raw.get("title") if isinstance(raw.get("title"), str) else ""
    description = f"[MCP server {server}] {clean_text(str(text), MAX_DESCRIPTION_CHARS)}".rstrip()
    schema = read_schema(raw.get("inputSchema"))
    try:
        digest = tool_digest(raw)
    except (ValueError, RecursionError):
        raise ValueError("its definition is nested too deeply") from None
    return ToolDefinition(name, shown_name(server, name), description, schema, digest, raw)


# --- names -----------------------------------------------------------------------------------------------------------


def shown_name(server: str, tool: str) -> str:
    """The name of a tool for the model, unless it collides with that of another tool (then `hashed_name`)."""
    name = _plain_name(server, tool)
    return name if len(name) <= MAX_NAME_CHARS else hashed_name(server, tool)


def hashed_name(server: str, tool: str) -> str:
    """A name cut to fit, ending with the first 8 hex digits of the SHA-256 of the full server and tool names."""
    digest = hashlib.sha256(f"{server}__{tool}".encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{_plain_name(server, tool)[: MAX_NAME_CHARS - 9]}_{digest}"


def _plain_name(server: str, tool: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", f"mcp__{server}__{tool}")


# --- texts -----------------------------------------------------------------------------------------------------------


def clean_text(text: str, max_chars: int) -> str:
    """An untrusted text without invisible characters; if longer than `max_chars`, it is cut there and a note is added."""
    # Only four times as many characters are examined, so that any text is cheap; removed invisible ones do not count.
    beginning = without_hidden(text[: max_chars * 4]).strip()
    omitted = len(beginning[max_chars:]) + len(text[max_chars * 4 :])
    if not omitted:
        return beginning
    return f"{beginning[:max_chars].rstrip()} ... ({omitted} more characters are omitted)"


# --- schemas ---------------------------------------------------------------------------------------------------------


def read_schema(schema: Any) -> dict[str, Any]:
    """Convert an input schema to one that endpoints accept: an object with properties.

    Raises ValueError if it cannot be repaired.

    Repairs add a missing root type, remove keywords whose value has the wrong type (they have no effect), add missing
    `items` to arrays, and remove invisible characters from texts. A `pattern` becomes a note: endpoints refuse many
    patterns, and the server checks it anyway.
    """
    if schema is None:
        schema = {}
    if not isinstance(schema, Mapping):
        raise ValueError(f"its input schema must be an object, not a value of type {type(schema).__name__}")
    with suppress(InvalidEventError):
        text = dumps_json(schema)
        if len(text) <= MAX_SCHEMA_BYTES:
            return _read_again(text)
    return _read_object(schema)


@lru_cache(maxsize=128)  # cached, because each run lists the tools of its servers again
def _read_again(text: str) -> dict[str, Any]:
    return _read_object(loads_json(text))


def _read_object(schema: Mapping[str, Any]) -> dict[str, Any]:
    root = _SchemaReader().read(schema)
    if "object" not in (as_list(root.get("type")) or [root.get("type", "object")]):
        raise ValueError(f"its input schema describes {root['type']!r:.60}, and arguments must be an object")
    root = {"type": "object", "properties": {}, **root} | {"type": "object"}
    root.pop("$schema", None)
    try:
        size = len(canonical_json(root))
    except ValueError:
        raise ValueError("its input schema contains values that JSON cannot express") from None
    if size > MAX_SCHEMA_BYTES:
        raise ValueError(f"its input schema has {size:,} bytes, and the limit is {MAX_SCHEMA_BYTES:,}")
    for reference in compiled(root).unresolved:  # other documents are never fetched (2020-12, section 8.2)
        where = "that schema does not exist" if reference.startswith("#") else "other documents are never fetched"
        raise ValueError(f"its input schema refers to {reference!r:.100}, and {where}")
    return root


class _SchemaReader:
    """A reader of the schemas in one input schema. A keyword that has no effect is read as None and omitted.

    `one`, `some` and `named_schemas` read the keywords whose value is a schema, a list of schemas, or a mapping of names to
    schemas; `_KEYWORDS` maps each keyword to the method that reads it.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._left = MAX_SCHEMAS

    def read(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Read the root schema, or one below it. Raises ValueError if there are too many, or if they nest too deeply."""
        self._left -= 1
        if self._depth > MAX_SCHEMA_DEPTH:
            raise ValueError(f"its input schema is nested deeper than {MAX_SCHEMA_DEPTH} levels")
        if self._left < 0:
            raise ValueError(f"its input schema contains more than {MAX_SCHEMAS:,} schemas")
        result: dict[str, Any] = {}
        self._depth += 1
        for key, value in schema.items():
            clean_value = _KEYWORDS[key](self, value) if key in _KEYWORDS else _clean_values(value)
            if clean_value is not None or (key in ("const", "default") and value is None):
                result[key] = clean_value
        self._depth -= 1
        if isinstance(schema.get("pattern"), str):
            note = f"(pattern: {clean_text(schema['pattern'], 200)})"
            result["description"] = f"{result.get('description', '')} {note}".strip()
        if result.get("type") == "array" and "items" not in result and "prefixItems" not in result:
            result["items"] = {}
        return result

    def one(self, value: Any) -> Any:
        if isinstance(value, list):  # `items` as a list, before 2020-12
            parts = self._parts(value)
            return parts if len(parts) > 1 else parts[0] if parts else {}
        return self.read(value) if isinstance(value, Mapping) else value if isinstance(value, bool) else None

    def some(self, value: Any) -> Any:
        parts = self._parts(as_list(value))
        # A `$ref` may point into the list by index, so only trailing parts that are not schemas can be dropped.
        while parts and parts[-1] is False:
            parts.pop()
        return parts or None

    def _parts(self, value: list[Any]) -> list[Any]:
        """Read a list of schemas. Any other item becomes False, so that a `$ref` by index still finds the items after it."""
        return [self.read(part) if isinstance(part, Mapping) else part is True for part in value]

    def named_schemas(self, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return None
        # A frequent mistake: `required: [...]` one level too deep, among the properties, is a list and not a schema.
        return {name: self.one(part) for name, part in value.items() if isinstance(part, Mapping | bool)}

    def reference(self, value: Any) -> Any:
        """Read a reference; its target is resolved when the whole schema is compiled (`ground.schemas`)."""
        return value if isinstance(value, str) else None

    def type(self, value: Any) -> Any:
        names = [each.lower() if isinstance(each, str) else each for each in as_list(value) or [value]]
        if value is None:
            return None
        if any(not isinstance(name, str) or name not in _TYPES for name in names):
            raise ValueError(f"its input schema has an invalid type: {value!r:.60}")
        return names if isinstance(value, list) else names[0]

    def required(self, value: Any) -> Any:
        return list(dict.fromkeys(name for name in as_list(value) if isinstance(name, str))) or None

    def values(self, value: Any) -> Any:
        return _clean_values(value) if isinstance(value, list) and value else None

    def text(self, value: Any) -> Any:
        return clean_text(value, MAX_DESCRIPTION_CHARS) if isinstance(value, str) else None

    def count(self, value: Any) -> Any:
        return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None

    def number(self, value: Any) -> Any:
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    def flag(self, value: Any) -> Any:
        return value if isinstance(value, bool) else None

    def names_by_name(self, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return None
        return {name: listed for name, each in value.items() if (listed := self.required(each))}

    def nothing(self, value: Any) -> Any:
        return None


_TYPES = frozenset(["object", "array", "string", "number", "integer", "boolean", "null"])
# How to read each keyword; any other value is JSON that is only cleaned.
_KEYWORDS: Mapping[str, Callable[[_SchemaReader, Any], Any]] = {
    keyword: read
    for read, keywords in (
        (_SchemaReader.one, "items additionalItems unevaluatedItems contains not if then else propertyNames"),
        (_SchemaReader.one, "additionalProperties unevaluatedProperties"),
        (_SchemaReader.some, "anyOf oneOf allOf prefixItems"),
        (_SchemaReader.named_schemas, "properties patternProperties $defs definitions dependentSchemas"),
        (_SchemaReader.reference, "$ref $dynamicRef"),
        (_SchemaReader.type, "type"),
        (_SchemaReader.required, "required"),
        (_SchemaReader.values, "enum examples"),
        (_SchemaReader.text, "title description $comment format $id $anchor $schema contentEncoding contentMediaType"),
        (
            _SchemaReader.count,
            "minItems maxItems minLength maxLength minProperties maxProperties minContains maxContains",
        ),
        (_SchemaReader.number, "minimum maximum exclusiveMinimum exclusiveMaximum multipleOf"),
        (_SchemaReader.flag, "nullable uniqueItems deprecated readOnly writeOnly"),
        (_SchemaReader.names_by_name, "dependentRequired"),
        (_SchemaReader.nothing, "pattern"),
    )
    for keyword in keywords.split()
}


def _clean_values(value: Any, depth: int = 0) -> Any:
    if depth > MAX_SCHEMA_DEPTH:
        raise ValueError(f"its input schema is nested deeper than {MAX_SCHEMA_DEPTH} levels")
    if isinstance(value, str):
        return without_hidden(value)
    if isinstance(value, Mapping):
        return {key: _clean_values(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_clean_values(item, depth + 1) for item in value]
    return value
