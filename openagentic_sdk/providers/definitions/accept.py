"""Write the parameters of a tool as one vendor takes them; what gets lost on the way is said in descriptions.

What a vendor's model may send back is an input of the tool, or is refused with a sentence when it is checked: the tool
itself, its checks and the log keep the schema as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from ...ground.frozen import frozen, mutable
from ...ground.patterns import regex
from ...ground.text import shortened
from .keys import KeyNames, sent_keys
from .references import MANY, NAMED, ONE, SchemaReferences
from .table import rules_of

# No schema makes more work than this: references are written out so far, and what is nested deeper is said in words.
MAX_SCHEMAS = 2_000
MAX_DEPTH = 24
_MAX_REMEMBERED = 2_048
_MAX_NOTE_CHARS = 160

_PLAIN_REFERENCE = regex(r"#/(?:\$defs|definitions)/[a-zA-Z0-9_.-]+")
_NOT_AT_ROOT = frozenset(
    ("anyOf", "oneOf", "allOf", "not", "enum", "const", "$ref", "$dynamicRef", "if", "then", "else")
)
# What no model needs to read, so that it goes without a word.
_SILENT = frozenset(
    (
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
    )
)
_ANNOTATIONS = frozenset(
    ["title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment"]
)
_OF_TYPE = {
    "object": "properties required additionalProperties patternProperties propertyNames minProperties maxProperties",
    "array": "items prefixItems minItems maxItems uniqueItems contains",
    "string": "minLength maxLength pattern format",
    "number": "minimum maximum exclusiveMinimum exclusiveMaximum multipleOf",
}
_TYPE_OF_KEYWORD = {keyword: kind for kind, keywords in _OF_TYPE.items() for keyword in keywords.split()}
_TYPE_NAMES: Mapping[type, str] = {str: "string", bool: "boolean", int: "integer", float: "number"}
_ANY_TYPE = ("string", "number", "boolean", "object", "array", "null")


@frozen
class AcceptedParameters:
    """Parameters as a vendor takes them, the names in them, and what the root does not say any more (`notes`).

    `is_strict` says that the vendor's strict mode has a form for them, where it has such a mode.
    """

    parameters: Mapping[str, Any]
    keys: KeyNames
    notes: str = ""
    is_strict: bool = True


_remembered: dict[tuple[str, int], tuple[Mapping[str, Any], AcceptedParameters]] = {}


def accepted(vendor: str, parameters: Mapping[str, Any]) -> AcceptedParameters:
    """The parameters as the vendor takes them, written once as long as they are the same object."""
    key = (vendor, id(parameters))
    known = _remembered.get(key)
    if known is None or known[0] is not parameters:
        if len(_remembered) >= _MAX_REMEMBERED:
            _remembered.clear()
        known = _remembered[key] = (parameters, _ParametersWriter(parameters, rules_of(vendor)).accept())
    return known[1]


@mutable
class _RootForm:
    """A root without unions: all properties of its alternatives, and what all of them require."""

    properties: dict[str, Any]
    required: list[str]
    rest: dict[str, Any]
    is_object: bool = True


class _ParametersWriter:
    """Writes the schema of one tool by one vendor's rules."""

    def __init__(self, source: Mapping[str, Any], rules: Mapping[str, str | int]) -> None:
        self._source = source
        self._rules = rules
        self._allowed = frozenset(str(rules["keywords"]).split()) if "keywords" in rules else None
        self._formats = frozenset(str(rules["formats"]).split()) if "formats" in rules else None
        self._references = SchemaReferences(source)
        self._sent = sent_keys(source, str(rules["keys"])) if "keys" in rules else {}
        self._left = MAX_SCHEMAS
        self._is_strict = True
        self._notes: list[str] = []  # about the root

    def accept(self) -> AcceptedParameters:
        root = {"type": "object", "properties": {}, **self._source} | {"type": "object"}
        if not _NOT_AT_ROOT.isdisjoint(root):
            form = self._flat(root, frozenset())
            root = {**form.rest, "type": "object", "properties": form.properties}
            if form.required:
                root["required"] = form.required
        shown = str(self._rules.get("root", ""))
        kept: Mapping[str, Any] = root
        if shown != "plain":
            kept = {key: value for key, value in root.items() if key in shown.split()}
            for key in root.keys() - kept.keys():
                self._drop(key, root[key], self._notes)
        definitions = {key: root[key] for key in ("$defs", "definitions") if self._keeps_definitions and key in kept}
        written = self._write({key: value for key, value in kept.items() if key not in definitions}, (), 0)
        for key, named in definitions.items():
            if isinstance(named, Mapping):
                plain = {name: part for name, part in named.items() if re.fullmatch(r"[a-zA-Z0-9_.-]+", name)}
                if plain:
                    written[key] = {name: self._write(part, (f"#/{key}/{name}",), 1) for name, part in plain.items()}
        written = {"type": "object", "properties": {}} | written
        is_same = written == self._source
        notes = " ".join(self._notes)
        keys = KeyNames(self._references, self._source, self._sent)
        return AcceptedParameters(self._source if is_same else written, keys, notes, is_same and self._is_strict)

    @property
    def _keeps_definitions(self) -> bool:
        return self._rules.get("references") != "none"

    # --- the root ----------------------------------------------------------------------------------------------------

    def _flat(self, schema: Mapping[str, Any], seen: frozenset[str]) -> _RootForm:
        self._left -= 1
        named, required = schema.get("properties"), schema.get("required")
        form = _RootForm(
            dict(named) if isinstance(named, Mapping) else {},
            [name for name in required if isinstance(name, str)] if isinstance(required, list) else [],
            {key: value for key, value in schema.items() if key not in _NOT_AT_ROOT | {"properties", "required"}},
            "object" in _types_of(schema, "object"),
        )
        parts = schema.get("allOf")
        together = [*(parts if isinstance(parts, list) else ())]
        for key in ("$ref", "$dynamicRef"):
            if key in schema and schema[key] not in seen and self._left > 0:
                seen |= {schema[key]} if isinstance(schema[key], str) else set()
                together.append(self._references.find(schema[key]))
        for part in together:
            if isinstance(part, Mapping) and self._left > 0:
                _join(form, self._flat(part, seen))
        for key in ("anyOf", "oneOf"):
            branches = schema.get(key)
            options = [
                self._flat(part, seen)
                for part in (branches if isinstance(branches, list) else ())
                if isinstance(part, Mapping) and self._left > 0
            ]
            if options := [option for option in options if option.is_object]:
                self._choose(form, options, "just one" if key == "oneOf" else "one")
        for key in ("not", "if", "then", "else", "enum", "const"):
            if key in schema:
                self._drop(key, schema[key], self._notes)
        return form

    def _choose(self, form: _RootForm, options: list[_RootForm], count: str) -> None:
        """Take in alternatives: each property of any of them may be given, and what none can do without must be."""
        for name in dict.fromkeys(name for option in options for name in option.properties):
            found: list[Any] = []
            for option in options:
                if name in option.properties and option.properties[name] not in found:
                    found.append(option.properties[name])
            form.properties.setdefault(name, found[0] if len(found) == 1 else {"anyOf": found})
        shared = [name for name in options[0].required if all(name in option.required for option in options)]
        form.required += [name for name in shared if name not in form.required]
        if len(options) > 1:
            forms = []
            for option in options:
                more = [f"{self._sent.get(name, name)}?" for name in option.properties if name not in option.required]
                forms.append("{" + ", ".join([*(self._sent.get(name, name) for name in option.required), *more]) + "}")
            if len(set(forms)) > 1:
                words = "; ".join(dict.fromkeys(forms))
                self._notes.append(f"The arguments take {count} of these forms: {shortened(words, 600)}.")

    # --- schemas below -----------------------------------------------------------------------------------------------

    def _write(self, source: Any, stack: tuple[str, ...], depth: int) -> dict[str, Any]:
        """A schema below the root, or the root itself; `stack` are the references that led to it."""
        self._left -= 1
        if not isinstance(source, Mapping):
            source = {}
        schema, notes = dict(source), list[str]()
        for _ in range(MAX_DEPTH):
            reference = schema.get("$ref", schema.get("$dynamicRef"))
            if isinstance(reference, str):
                if self._keeps(schema, reference):
                    return {key: value for key, value in schema.items() if key not in _SILENT or key == "title"}
                schema, stack = self._resolved(schema, reference, stack, depth, notes)
            elif isinstance(parts := schema.get("allOf"), list) and not self._takes("allOf"):
                del schema["allOf"]
                for part in parts:
                    if isinstance(part, Mapping) and isinstance(reference := part.get("$ref"), str):
                        part, stack = self._resolved(dict(part), reference, stack, depth, notes)
                    schema = _merged(schema, part) if isinstance(part, Mapping) else schema
            elif not self._without_null(schema, notes):
                break
        self._respell(schema, notes)
        written: dict[str, Any] = {}
        for key, value in schema.items():
            if key in _SILENT - {"title", "examples"}:
                continue
            if self._allowed is not None and key not in self._allowed:
                self._drop(key, value, notes)
                continue
            if (value := self._below(key, value, stack, depth)) is not None or key in ("default", "const"):
                written[key] = value
        self._finish(written, notes, depth)
        return written

    def _keeps(self, schema: Mapping[str, Any], reference: str) -> bool:
        return (
            self._keeps_definitions
            and "$ref" in schema
            and _PLAIN_REFERENCE.fullmatch(reference) is not None
            and self._references.find(reference) is not None
            and schema.keys() - {"$ref"} <= _ANNOTATIONS
        )

    def _resolved(
        self, schema: dict[str, Any], reference: str, stack: tuple[str, ...], depth: int, notes: list[str]
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        """A schema with what its reference leads to in the place of the reference."""
        siblings = {key: value for key, value in schema.items() if key not in ("$ref", "$dynamicRef")}
        target = self._references.find(reference)
        if not isinstance(target, Mapping):
            return siblings, stack
        if reference in stack or self._left < 0 or depth > MAX_DEPTH:
            name = shortened(unquote(reference.rpartition("/")[2]).strip("#") or "the whole", 80)
            notes.append(f"(once more as described for {name})")
            kinds = {"type": target["type"]} if isinstance(target.get("type"), str) else {}
            return {**kinds, **{key: value for key, value in siblings.items() if key in _ANNOTATIONS}}, stack
        return _merged(target, siblings), (*stack, reference)

    def _respell(self, schema: dict[str, Any], notes: list[str]) -> None:
        """Say in the keywords that the vendor takes what it does not take in others."""
        for bound in ("Minimum", "Maximum"):  # until draft 4 it said whether the other is exclusive
            if isinstance(is_exclusive := schema.get(f"exclusive{bound}"), bool):
                del schema[f"exclusive{bound}"]
                if is_exclusive and bound.lower() in schema:
                    schema[f"exclusive{bound}"] = schema.pop(bound.lower())
        if isinstance(schema.get("items"), list):  # and until 2019 the places of a list were its items
            schema["prefixItems"] = schema.pop("items") or [{}]
            if isinstance(rest := schema.pop("additionalItems", None), Mapping):
                schema["items"] = rest
        if not self._takes("oneOf") and "oneOf" in schema and "anyOf" not in schema:
            schema["anyOf"] = schema.pop("oneOf")
        if not self._takes("const") and "const" in schema:
            schema.setdefault("enum", [schema.pop("const")])
        if not self._takes("prefixItems") and isinstance(first := schema.get("prefixItems"), list):
            schema.setdefault("items", first[0] if len(first) == 1 else {"anyOf": first})
        if self._formats is not None and schema.get("format") not in (None, *self._formats):
            self._drop("format", schema.pop("format"), notes)
        if self._rules.get("enum") == "texts" and isinstance(values := schema.get("enum"), list):
            texts = [value for value in values if isinstance(value, str) and value]
            if texts != values:
                self._drop("enum", schema.pop("enum"), notes)
                if texts and all(value is None or isinstance(value, str) for value in values):
                    schema["enum"] = texts
                else:
                    schema.setdefault("type", sorted({_TYPE_NAMES.get(type(value), "object") for value in values}))
        if "types" in self._rules:
            self._type(schema, notes)
        if schema.get("type") == "array" and self._rules.get("items") == "needed" and "items" not in schema:
            schema["items"] = {"type": "string"} if self._rules.get("types") == "union" else {}
        if self._rules.get("required") == "defined" and isinstance(names := schema.get("required"), list):
            properties = schema.get("properties")
            known = [name for name in names if isinstance(properties, Mapping) and name in properties]
            if known != names:
                self._drop("required", schema.pop("required"), notes)
                if known:
                    schema["required"] = known

    def _without_null(self, schema: dict[str, Any], notes: list[str]) -> bool:
        """Say in words that null is one of the alternatives; whether just one other is left, which is then the schema."""
        for key in ("anyOf", "oneOf") if self._rules.get("types") == "union" else ():
            branches = schema.get(key)
            if not isinstance(branches, list):
                continue
            others = [part for part in branches if not (isinstance(part, Mapping) and part.get("type") == "null")]
            if others and len(others) < len(branches):
                schema[key] = others
                notes.append("(or null)")
            if len(others) == 1 and isinstance(others[0], Mapping):
                del schema[key]
                merged = _merged(others[0], schema)
                schema.clear()
                schema.update(merged)
                return True
        return False

    def _type(self, schema: dict[str, Any], notes: list[str]) -> None:
        """Give the schema one type, or a list or a union of several."""
        is_union = self._rules["types"] == "union"
        if "anyOf" in schema or "$ref" in schema:
            if is_union and isinstance(schema.get("type"), list):
                del schema["type"]
            return
        kinds = _types_of(schema)
        if is_union and len(kinds) > 1 and "null" in kinds:
            kinds = [kind for kind in kinds if kind != "null"]
            notes.append("(or null)")
        if not kinds:
            kinds = list(_ANY_TYPE[:4] if is_union else _ANY_TYPE)
        if len(kinds) == 1 or not is_union:
            schema["type"] = kinds[0] if len(kinds) == 1 else kinds
            return
        schema.pop("type", None)
        values = schema.pop("enum", None)
        if values is not None:
            self._drop("enum", values, notes)
        owned = {key: schema.pop(key) for key in [*schema] if key in _TYPE_OF_KEYWORD}
        schema["anyOf"] = [
            {"type": kind, **{key: value for key, value in owned.items() if _is_about(key, kind)}} for kind in kinds
        ]

    def _below(self, key: str, value: Any, stack: tuple[str, ...], depth: int) -> Any:
        """The value of a keyword with the schemas in it written; None when it says nothing."""
        if key in ONE:
            return self._write(value, stack, depth + 1) if isinstance(value, Mapping) else value
        if key in MANY and isinstance(value, list):
            return [self._write(part, stack, depth + 1) for part in value if part is not False] or None
        if key in NAMED and isinstance(value, Mapping):
            rename = self._sent if key in ("properties", "dependentSchemas") else {}
            return {
                rename.get(name, name): self._named(name, self._write(part, stack, depth + 1))
                for name, part in value.items()
                if part is not False
            }
        if key == "required" and isinstance(value, list):
            return [self._sent.get(name, name) for name in value if isinstance(name, str)]
        if key == "dependentRequired" and isinstance(value, Mapping):
            return {
                self._sent.get(name, name): [self._sent.get(other, other) for other in others]
                for name, others in value.items()
                if isinstance(others, list)
            }
        return value

    def _named(self, name: str, written: dict[str, Any]) -> dict[str, Any]:
        """A property's schema; under another name it tells its own."""
        if name in self._sent:
            target = written["anyOf"][0] if self._stands_alone(written) else written
            if "$ref" not in target:
                _say(target, [f"(its name is {shortened(json.dumps(name), 100)})"])
        return written

    def _finish(self, written: dict[str, Any], notes: list[str], depth: int) -> None:
        if self._rules.get("closed") and ("properties" in written or written.get("type") == "object"):
            is_closed = written.get("additionalProperties") is False
            self._is_strict &= is_closed and set(written.get("required", ())) == set(written.get("properties", ()))
        if depth == 0 and "description" not in str(self._rules.get("root", "plain description")).split() and notes:
            self._notes += notes
        else:
            _say(written, notes)
        if self._stands_alone(written):
            if not {"properties", "items", "enum"}.isdisjoint(written):
                del written["anyOf"]
                written.setdefault("type", _types_of(written)[0])
                return
            about = written.get("description")
            branches = [dict(one) for part in written["anyOf"] for one in part.get("anyOf", [part])]
            if about and branches:
                branches[0]["description"] = f"{about} {branches[0].get('description', '')}".strip()
            written.clear()
            written["anyOf"] = branches

    def _stands_alone(self, written: Mapping[str, Any]) -> bool:
        return self._rules.get("anyOf") == "alone" and bool(written.get("anyOf"))

    def _takes(self, keyword: str) -> bool:
        return self._allowed is None or keyword in self._allowed

    def _drop(self, key: str, value: Any, notes: list[str]) -> None:
        """Leave a keyword out, and say in words what it asked for."""
        if key in _SILENT or value in ({}, [], True, False) or value is None:
            return
        if key == "description":
            notes.insert(0, str(value))
            return
        try:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError):
            return
        notes.append(f"({key}: {shortened(text, _MAX_NOTE_CHARS)})")


def _say(written: dict[str, Any], notes: list[str]) -> None:
    if notes:
        about = written.get("description")
        written["description"] = " ".join([*([about] if isinstance(about, str) and about else []), *notes])


def _join(form: _RootForm, other: _RootForm) -> None:
    """Take in what holds as well."""
    for name, part in other.properties.items():
        own = form.properties.setdefault(name, part)
        if own != part and isinstance(own, Mapping) and isinstance(part, Mapping):
            form.properties[name] = _merged(own, part) if "$ref" not in {*own, *part} else {"allOf": [own, part]}
    form.required += [name for name in other.required if name not in form.required]
    for key, value in other.rest.items():
        form.rest.setdefault(key, value)
    form.is_object &= other.is_object


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """One schema for two that both hold; where that cannot be said, the second one counts."""
    made = dict(one)
    for key, value in other.items():
        own = made.get(key)
        if key == "properties" and isinstance(own, Mapping) and isinstance(value, Mapping):
            made[key] = {**own, **value}
        elif key == "required" and isinstance(own, list) and isinstance(value, list):
            made[key] = list(dict.fromkeys([*own, *value]))
        elif key == "enum" and isinstance(own, list) and isinstance(value, list):
            made[key] = [item for item in own if item in value] or value
        elif key == "allOf" and isinstance(own, list) and isinstance(value, list):
            made[key] = [*own, *value]
        else:
            made[key] = value
    return made


def _types_of(schema: Mapping[str, Any], default: str | None = None) -> list[str]:
    """The types that a schema names, or those that its keywords are about."""
    named = schema.get("type")
    if isinstance(named, str):
        return [named]
    if isinstance(named, list) and named:
        return [kind for kind in dict.fromkeys(named) if isinstance(kind, str)]
    if default is not None:
        return [default]
    values = schema.get("enum")
    if isinstance(values, list) and values:
        return sorted({_TYPE_NAMES.get(type(value), "null" if value is None else "object") for value in values})
    return list(dict.fromkeys(_TYPE_OF_KEYWORD[key] for key in schema if key in _TYPE_OF_KEYWORD))


def _is_about(keyword: str, kind: str) -> bool:
    return _TYPE_OF_KEYWORD[keyword] == ("number" if kind == "integer" else kind)
