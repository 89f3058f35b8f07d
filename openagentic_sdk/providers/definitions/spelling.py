"""Rewrite a schema in the keywords that a vendor accepts: a table of rules, applied in order.

Each rule changes one schema in place, but not its subschemas. A constraint that cannot be expressed usually becomes a note.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from ...ground.frozen import frozen
from .keywords import TYPE_OF_KEYWORD, is_about, merged, note_dropped, types_of, types_of_values
from .references import MANY, NAMED_SCHEMAS
from .table import VendorRules, rules_of

_ANY_TYPE = ("string", "number", "boolean", "object", "array", "null")

SchemaDict = dict[str, Any]
Notes = list[str]


@frozen
class SpellingRule:
    """One rule: `concerns` returns whether a vendor needs it, `apply` changes a schema in place and adds notes."""

    concerns: Callable[[VendorRules], bool]
    apply: Callable[[SchemaDict, VendorRules, Notes], None]


def respell(vendor: str, schema: SchemaDict, notes: Notes) -> None:
    """Apply the rules that a vendor needs to a schema, in place."""
    rules = rules_of(vendor)
    for rule in _rules_for(vendor):
        rule.apply(schema, rules, notes)


@cache
def _rules_for(vendor: str) -> tuple[SpellingRule, ...]:
    return tuple(rule for rule in SPELLING if rule.concerns(rules_of(vendor)))


# --- keywords without effect ---------------------------------------------------------------------------------------------

_FORMS: tuple[tuple[type, tuple[str, ...]], ...] = (
    (list, (*MANY, "required", "enum")),
    (Mapping, (*NAMED_SCHEMAS, "dependentRequired")),
)


def _leave_out_other_forms(schema: SchemaDict, rules: VendorRules, notes: Notes) -> None:
    """Remove keywords whose value has the wrong type, and required names that are not strings."""
    for form, keywords in _FORMS:
        for key in keywords:
            if key in schema and not isinstance(schema[key], form):
                del schema[key]
    if "required" in schema:
        schema["required"] = [name for name in schema["required"] if isinstance(name, str)]


def _leave_out_impossible(schema: SchemaDict, rules: VendorRules, notes: Notes) -> None:
    """Remove alternatives and properties that match no value (`false`)."""
    for key in ("anyOf", "oneOf"):
        if key in schema:
            schema[key] = [part for part in schema[key] if part is not False]
            if not schema[key]:
                del schema[key]
    if "properties" in schema:
        schema["properties"] = {name: part for name, part in schema["properties"].items() if part is not False}


# --- keywords of older drafts --------------------------------------------------------------------------------------------


def _spell_exclusive_bounds(schema: SchemaDict, rules: VendorRules, notes: Notes) -> None:
    """Convert the boolean `exclusiveMinimum` and `exclusiveMaximum` of draft 4 into numbers."""
    for bound in ("Minimum", "Maximum"):
        if isinstance(is_exclusive := schema.get(f"exclusive{bound}"), bool):
            # Draft 4: `"minimum": 0, "exclusiveMinimum": true`; from draft 6 on: `"exclusiveMinimum": 0`.
            del schema[f"exclusive{bound}"]
            if is_exclusive and bound.lower() in schema:
                schema[f"exclusive{bound}"] = schema.pop(bound.lower())


def _spell_places(schema: SchemaDict, rules: VendorRules, notes: Notes) -> None:
    """Convert an `items` list, the form before 2020-12, into `prefixItems`."""
    if isinstance(schema.get("items"), list):
        # `prefixItems` must not be empty (JSON Schema 2020-12, section 10.3.1.1), and an empty schema permits every
        # first item.
        schema["prefixItems"] = schema.pop("items") or [{}]
        if isinstance(rest := schema.pop("additionalItems", None), Mapping):
            schema["items"] = rest


# --- keywords that a vendor does not support -----------------------------------------------------------------------------


def _spell_one_of(schema: SchemaDict, rules: VendorRules, notes: Notes) -> None:
    if "oneOf" in schema and "anyOf" not in schema:
        schema["anyOf"] = schema.pop("oneOf")


def _spell_constant(schema: SchemaDict, rules: VendorRules, notes: Notes) -> None:
    if "const" in schema:
        schema.setdefault("enum", [schema.pop("const")])


def _spell_first_items(schema: SchemaDict, rules: VendorRules, notes: Notes) -> None:
    if isinstance(first := schema.get("prefixItems"), list):
        schema.setdefault("items", first[0] if len(first) == 1 else {"anyOf": first})


def _spell_bare_items(schema: SchemaDict, rules: VendorRules, notes: Notes) -> None:
    """Replace `true` with an equivalent empty schema; remove `false`, unless the vendor accepts all of JSON Schema."""
    if schema.get("items") is True:
        schema["items"] = {}
    elif schema.get("items") is False and (rules.keywords is not None or rules.needs_items):
        del schema["items"]


def _spell_format(schema: SchemaDict, rules: VendorRules, notes: Notes) -> None:
    if rules.formats is not None and schema.get("format") not in (None, *rules.formats):
        note_dropped("format", schema.pop("format"), notes)


def _spell_texts(schema: SchemaDict, rules: VendorRules, notes: Notes) -> None:
    """Keep only non-empty strings in `enum`, with a note; replace it with types if it has none, or values other than text
    and null.
    """
    values = schema.get("enum", [])
    texts = [value for value in values if isinstance(value, str) and value]
    if texts == values:
        return
    note_dropped("enum", schema.pop("enum"), notes)
    if texts and all(value is None or isinstance(value, str) for value in values):
        schema["enum"] = texts
    else:
        schema.setdefault("type", types_of_values(values))


def _spell_types(schema: SchemaDict, rules: VendorRules, notes: Notes) -> None:
    """Give the schema one type, or a list or a union of several; `null` in a union becomes a note."""
    is_union = rules.types == "union"
    if "anyOf" in schema or "$ref" in schema:
        if is_union and isinstance(schema.get("type"), list):
            del schema["type"]
        return
    kinds = types_of(schema)
    if is_union and len(kinds) > 1 and "null" in kinds:
        kinds.remove("null")
        notes.append("(or null)")
    # A schema without a type permits all of them; for a vendor that requires one, each is listed.
    kinds = kinds or list(_ANY_TYPE[:4] if is_union else _ANY_TYPE)
    if len(kinds) == 1 or not is_union:
        schema["type"] = kinds[0] if len(kinds) == 1 else kinds
        return
    schema.pop("type", None)
    if "enum" in schema:
        note_dropped("enum", schema.pop("enum"), notes)
    owned = {key: schema.pop(key) for key in [*schema] if key in TYPE_OF_KEYWORD}
    schema["anyOf"] = [
        {"type": kind, **{key: value for key, value in owned.items() if is_about(key, kind)}} for kind in kinds
    ]


def _spell_items(schema: SchemaDict, rules: VendorRules, notes: Notes) -> None:
    if schema.get("type") == "array" and "items" not in schema:
        schema["items"] = {"type": "string"} if rules.types == "union" else {}


def _spell_required(schema: SchemaDict, rules: VendorRules, notes: Notes) -> None:
    """Replace required names that are not defined with a note."""
    names, properties = schema.get("required", ()), schema.get("properties", {})
    defined = [name for name in names if name in properties]
    if len(defined) < len(names):
        note_dropped("required", schema.pop("required"), notes)
        if defined:
            schema["required"] = defined


SPELLING: tuple[SpellingRule, ...] = (
    SpellingRule(lambda rules: True, _leave_out_other_forms),
    SpellingRule(lambda rules: True, _leave_out_impossible),
    SpellingRule(lambda rules: True, _spell_exclusive_bounds),
    SpellingRule(lambda rules: True, _spell_places),
    SpellingRule(lambda rules: not rules.takes("oneOf"), _spell_one_of),
    SpellingRule(lambda rules: not rules.takes("const"), _spell_constant),
    SpellingRule(lambda rules: not rules.takes("prefixItems"), _spell_first_items),
    SpellingRule(lambda rules: True, _spell_bare_items),
    SpellingRule(lambda rules: rules.formats is not None, _spell_format),
    SpellingRule(lambda rules: rules.needs_texts, _spell_texts),
    SpellingRule(lambda rules: rules.types != "any", _spell_types),
    SpellingRule(lambda rules: rules.needs_items, _spell_items),
    SpellingRule(lambda rules: rules.needs_defined, _spell_required),
)


def without_null(schema: SchemaDict, rules: VendorRules, notes: Notes) -> bool:
    """Replace a `null` alternative with a note; return whether a single alternative is left and has become the schema."""
    for key in ("anyOf", "oneOf") if rules.types == "union" else ():
        branches = schema.get(key)
        if not isinstance(branches, list):
            continue
        others = [part for part in branches if not (isinstance(part, Mapping) and part.get("type") == "null")]
        if others and len(others) < len(branches):
            schema[key] = others
            notes.append("(or null)")
        if len(others) == 1 and isinstance(others[0], Mapping):
            del schema[key]
            alone = merged(others[0], schema)
            schema.clear()
            schema.update(alone)
            return True
    return False
