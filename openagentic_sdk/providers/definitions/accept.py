"""Write a tool's parameters in the form that one vendor accepts; constraints that it cannot express are put into words.

Whatever a vendor's model may send back is either valid input for the tool or is refused with an explanation when it is
checked: the tool itself, its checks and the log keep the original schema.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import islice
from typing import Any
from urllib.parse import unquote

from ...errors import OptionsError
from ...ground.frozen import frozen
from ...ground.loose import as_mapping
from ...ground.patterns import regex
from ...ground.schemas import is_bounded
from ...ground.words import shortened
from .keys import KeyNames, sent_keys
from .keywords import ANNOTATIONS, SILENT, describe, merged, note_dropped, types_of
from .references import MANY, NAMED_SCHEMAS, ONE, SchemaReferences
from .root import NOT_AT_ROOT, RootWriter
from .spelling import respell, without_null
from .table import rules_of

# Limits on the work per schema: references beyond them are not expanded but described in words.
MAX_SCHEMAS = 2_000
MAX_DEPTH = 24
# Limits on the schemas that are read at all, above those for tools that are given as options (`ground.schemas`).
MAX_VALUES = 200_000
MAX_NESTING = 250
_MAX_REMEMBERED = 2_048

_PLAIN_NAME = regex(r"[a-zA-Z0-9_.-]+")
_PLAIN_REFERENCE = regex(r"#/(?:\$defs|definitions)/[a-zA-Z0-9_.-]+")


@frozen
class AcceptedParameters:
    """Parameters in a vendor's form, their property names, and the constraints that the root no longer expresses (`notes`).

    `is_strict` is true if the parameters are unchanged and fit the vendor's strict mode, if the vendor has one.
    """

    parameters: Mapping[str, Any]
    keys: KeyNames
    notes: str = ""
    is_strict: bool = True


_remembered: dict[tuple[str, int], tuple[Mapping[str, Any], AcceptedParameters]] = {}


def accepted(vendor: str, parameters: Mapping[str, Any]) -> AcceptedParameters:
    """The parameters in the vendor's form; cached by identity, so `parameters` must not be changed afterwards.

    Raises `OptionsError` for parameters of more than `MAX_VALUES` values or `MAX_NESTING` levels.
    """
    key = (vendor, id(parameters))
    entry = _remembered.get(key)
    if entry is None or entry[0] is not parameters:
        if len(_remembered) >= _MAX_REMEMBERED:
            _remembered.clear()
        _require_bounded(parameters)
        entry = _remembered[key] = (parameters, _ParametersWriter(parameters, vendor).accept())
    return entry[1]


def _require_bounded(parameters: Mapping[str, Any]) -> None:
    if is_bounded(parameters, max_values=MAX_VALUES, max_levels=MAX_NESTING):
        return
    names = shortened(", ".join(map(str, islice(as_mapping(parameters.get("properties")), 5))), 200)
    shown_names = f" (properties {names})" if names else ""
    raise OptionsError(
        f"the parameters of a tool{shown_names} contain more than {MAX_VALUES:,} values or are nested deeper than "
        f"{MAX_NESTING} levels: simplify the schema, or leave the tool out"
    )


class _ParametersWriter:
    """A writer of one tool's schema by one vendor's rules."""

    def __init__(self, source: Mapping[str, Any], vendor: str) -> None:
        self._source = source
        self._vendor = vendor
        self._rules = rules_of(vendor)
        self._references = SchemaReferences(source)
        self._sent = sent_keys(source, self._rules.keys) if self._rules.keys else {}
        self._left = MAX_SCHEMAS
        self._is_strict = True
        self._notes: list[str] = []  # for the root

    def accept(self) -> AcceptedParameters:
        root = {"type": "object", "properties": {}, **self._source} | {"type": "object"}
        if not NOT_AT_ROOT.isdisjoint(root):
            root = RootWriter(self._references, self._sent, self._notes, MAX_SCHEMAS).form(root).schema()
        if (root_keys := self._rules.root) is not None:
            for key in root.keys() - root_keys:
                note_dropped(key, root.pop(key), self._notes)
        definitions = {key: root.pop(key) for key in ("$defs", "definitions") if key in root}
        form = {"type": "object", "properties": {}} | self._write(root, (), 0)
        if self._rules.references != "none":
            kept_definitions = {key: self._definitions(key, schemas) for key, schemas in definitions.items()}
            form |= {key: schemas for key, schemas in kept_definitions.items() if schemas}
        is_same = form == self._source
        keys = KeyNames(self._references, self._source, self._sent)
        return AcceptedParameters(
            self._source if is_same else form, keys, " ".join(self._notes), is_same and self._is_strict
        )

    def _definitions(self, key: str, schemas: Any) -> dict[str, Any]:
        """The named schemas that plain references can point to, in the vendor's form."""
        return {
            name: self._write(part, (f"#/{key}/{name}",), 1)
            for name, part in (schemas.items() if isinstance(schemas, Mapping) else ())
            if _PLAIN_NAME.fullmatch(name)
        }

    def _write(self, source: Any, stack: tuple[str, ...], depth: int) -> dict[str, Any]:
        """Write a schema, at the root or below; `stack` contains the references that led to it."""
        self._left -= 1
        notes: list[str] = []
        schema, stack = self._settled(dict(source) if isinstance(source, Mapping) else {}, stack, depth, notes)
        if "$ref" in schema:
            return {key: value for key, value in schema.items() if key not in SILENT or key == "title"}
        respell(self._vendor, schema, notes)
        result: dict[str, Any] = {}
        for key, value in schema.items():
            if key in SILENT - {"title", "examples"}:
                continue
            if not self._rules.takes(key):
                note_dropped(key, value, notes)
            elif (below := self._below(key, value, stack, depth)) is not None or key in ("default", "const"):
                result[key] = below
        self._finish(result, notes, depth)
        return result

    # --- references and alternatives -----------------------------------------------------------------------------------

    def _settled(
        self, schema: dict[str, Any], stack: tuple[str, ...], depth: int, notes: list[str]
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        """The schema with each reference that the vendor refuses replaced by its target, and the references followed.

        A schema that still has `$ref` is to be sent as it is.
        """
        while True:
            reference = schema.get("$ref", schema.get("$dynamicRef"))
            if isinstance(reference, str):
                if self._keeps(schema, reference):
                    return schema, stack
                schema, stack = self._resolved(schema, reference, stack, depth, notes)
            elif isinstance(parts := schema.get("allOf"), list) and not self._rules.takes("allOf"):
                del schema["allOf"]
                for part in parts:
                    if isinstance(part, Mapping) and isinstance(reference := part.get("$ref"), str):
                        part, stack = self._resolved(dict(part), reference, stack, depth, notes)
                    schema = merged(schema, part) if isinstance(part, Mapping) else schema
            elif not without_null(schema, self._rules, notes):
                return {key: value for key, value in schema.items() if key not in ("$ref", "$dynamicRef")}, stack

    def _keeps(self, schema: Mapping[str, Any], reference: str) -> bool:
        return (
            self._rules.references != "none"
            and "$ref" in schema
            and _PLAIN_REFERENCE.fullmatch(reference) is not None
            and self._references.find(reference) is not None
            and schema.keys() - {"$ref"} <= ANNOTATIONS
        )

    def _resolved(
        self, schema: dict[str, Any], reference: str, stack: tuple[str, ...], depth: int, notes: list[str]
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        """The schema with its reference replaced by the target, and the references followed.

        A missing target leaves the other keywords; a cycle, or a reference beyond the limits, becomes a note.
        """
        siblings = {key: value for key, value in schema.items() if key not in ("$ref", "$dynamicRef")}
        target = self._references.find(reference)
        if not isinstance(target, Mapping):
            return siblings, stack
        if reference in stack or len(stack) >= MAX_DEPTH or self._left < 0 or depth > MAX_DEPTH:
            name = shortened(unquote(reference.rpartition("/")[2]).strip("#") or "the whole", 80)
            notes.append(f"(as described for {name})")
            kinds = {"type": target["type"]} if isinstance(target.get("type"), str) else {}
            return {**kinds, **{key: value for key, value in siblings.items() if key in ANNOTATIONS}}, stack
        return merged(target, siblings), (*stack, reference)

    # --- subschemas ------------------------------------------------------------------------------------------------------

    def _below(self, key: str, value: Any, stack: tuple[str, ...], depth: int) -> Any:
        """The value of a keyword with its subschemas written; None if nothing is left of it."""
        if key in ONE:
            return self._write(value, stack, depth + 1) if isinstance(value, Mapping) else value
        if key in MANY:
            return [self._write(part, stack, depth + 1) for part in value if part is not False] or None
        if key in NAMED_SCHEMAS:
            rename = self._sent if key in ("properties", "dependentSchemas") else {}
            return {
                rename.get(name, name): self._property_schema(name, self._write(part, stack, depth + 1))
                for name, part in value.items()
                if part is not False
            }
        if key == "required":
            return [self._sent.get(name, name) for name in value]
        if key == "dependentRequired":
            return {
                self._sent.get(name, name): [self._sent.get(each, each) for each in others if isinstance(each, str)]
                for name, others in value.items()
                if isinstance(others, list)
            }
        return value

    def _property_schema(self, name: str, schema: dict[str, Any]) -> dict[str, Any]:
        """A property's schema; if the property was renamed, the description contains its original name."""
        if name in self._sent:
            target = schema["anyOf"][0] if self._is_lone_union(schema) else schema
            if "$ref" not in target:
                describe(target, [f"(its name is {shortened(json.dumps(name), 100)})"])
        return schema

    # --- finishing -------------------------------------------------------------------------------------------------------

    def _finish(self, schema: dict[str, Any], notes: list[str], depth: int) -> None:
        if self._rules.is_strict and ("properties" in schema or schema.get("type") == "object"):
            is_closed = schema.get("additionalProperties") is False
            self._is_strict &= is_closed and set(schema.get("required", ())) == set(schema.get("properties", ()))
        if depth == 0 and self._rules.root is not None and "description" not in self._rules.root:
            self._notes += notes
        else:
            describe(schema, notes)
        if self._is_lone_union(schema):
            self._isolate_union(schema)

    def _is_lone_union(self, schema: Mapping[str, Any]) -> bool:
        return self._rules.needs_lone_unions and bool(schema.get("anyOf"))

    def _isolate_union(self, schema: dict[str, Any]) -> None:
        """Leave a union as the only keyword of its schema, or remove it if the rest of the schema is more specific."""
        if not {"properties", "items", "enum"}.isdisjoint(schema):
            del schema["anyOf"]
            schema.setdefault("type", types_of(schema)[0])
            return
        about = schema.get("description")
        branches = [dict(one) for part in schema["anyOf"] for one in part.get("anyOf", [part])]
        if about and branches:
            branches[0]["description"] = f"{about} {branches[0].get('description', '')}".strip()
        schema.clear()
        schema["anyOf"] = branches
