"""Check values against the parts of a schema: the assertions of JSON Schema 2020-12, in bounded time.

A check returns None or a `Fault`. Every operation counts its steps, so that no schema and no value can make a check run
forever: `TooMuchWork` ends it at any point.
"""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from ..words import shortened
from .expressions import Expression, expression

MAX_STEPS = 500_000
MAX_DEPTH = 100
_MAX_LISTED = 20  # values or names in an error
_NOTHING: Any = object()
OBJECT, ARRAY, STRING, INTEGER, FLOAT, BOOLEAN, NULL, OTHER = KINDS = range(8)
_KIND: Mapping[type, int] = {
    dict: OBJECT, list: ARRAY, str: STRING, int: INTEGER, float: FLOAT, bool: BOOLEAN, type(None): NULL,
}  # fmt: skip
NUMBER = (INTEGER, FLOAT)
TYPES: Mapping[str, tuple[int, ...]] = {
    "object": (OBJECT,), "array": (ARRAY,), "string": (STRING,), "integer": NUMBER, "number": NUMBER, "boolean": (BOOLEAN,),
    "null": (NULL,),
}  # fmt: skip

Path: TypeAlias = tuple[Any, Any] | None  # (the path above, a name or an index)
Seen: TypeAlias = set[Any] | None  # the evaluated names or indexes; None if not needed
# Checks a value at a path in a run; the last argument collects what was evaluated.
Check: TypeAlias = "Callable[[Any, Path, SchemaRun, Seen], Fault | None]"


class TooMuchWork(Exception):
    """The check was aborted: it took too many steps, or nested too deeply."""


class SchemaRun:
    """One check of one value: its remaining budget, and its results so far."""

    __slots__ = ("depth", "fills", "is_filling", "left", "patterns", "scope")

    def __init__(self, is_filling: bool = False, steps_left: int = MAX_STEPS) -> None:
        self.left = steps_left
        self.depth = 0
        self.is_filling = is_filling
        self.fills: list[tuple[Path, str, Any]] = []
        self.patterns: dict[str, Expression] = {}
        self.scope: list[str] = []

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise TooMuchWork(f"takes more than {MAX_STEPS:,} steps to check")

    def descend(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise TooMuchWork(f"is nested deeper than {MAX_DEPTH} levels, or its schema refers to itself")

    def has_match(self, pattern: str, text: str) -> bool:
        matcher = self.patterns.get(pattern)
        if matcher is None:
            matcher = self.patterns[pattern] = expression(pattern)
            self.spend(matcher.size + len(pattern))
        return matcher.is_in(text, self.spend)


class Fault:
    """A mismatch: its path, the expected value, and the actual one.

    Most faults are never shown, so the message is composed on demand.
    """

    __slots__ = ("_weight", "_words", "path", "value")

    def __init__(self, path: Path, words: str | Callable[[], str], value: Any = _NOTHING, weight: int = 1) -> None:
        self.path, self._words, self.value, self._weight = path, words, value, weight

    def weight_below(self, top: Path) -> int:
        """The weight of the fault below `top`: the deeper a value fits an alternative, the likelier it was intended."""
        weight, path = self._weight, self.path
        while path is not None and path is not top:
            path, weight = path[0], weight + 2
        return weight

    def words(self) -> str:
        words = self._words if isinstance(self._words, str) else self._words()
        return words if self.value is _NOTHING else f"{words}, not {show(self.value)}"


def kind_of(value: Any) -> int:
    """The JSON type of a value, which may be an instance of a subclass of the decoder's types."""
    kind = _KIND.get(value.__class__)
    if kind is not None:
        return kind
    if isinstance(value, Mapping):
        return OBJECT
    if isinstance(value, list | tuple):
        return ARRAY
    return next((_KIND[kind] for kind in (str, int, float) if isinstance(value, kind)), OTHER)


class Node:
    """One schema within a schema. `children` are the subschemas by keyword, `checks` the checks for values of each type.

    `target` is the schema that `$ref` refers to; `targets` are the schemas with the anchor in `$dynamicRef`, by resource,
    with "" for the schema that it initially refers to.
    """

    __slots__ = ("_keys", "_limits", "base", "checks", "children", "is_never", "schema", "target", "targets")

    def __init__(self, schema: Mapping[str, Any] | bool, base: str) -> None:
        self.schema: Mapping[str, Any] = schema if isinstance(schema, Mapping) else {}
        self.is_never = schema is False
        self.base = base
        self.children: dict[str, Any] = {}
        self.target: Node | None = None
        self.targets: dict[str, Node] = {}
        self.checks: list[tuple[Check, ...]] = [(Node._reject_all,) if schema is False else ()] * len(KINDS)

    def check(self, value: Any, path: Path, run: SchemaRun, seen: Seen) -> Fault | None:
        # `spend(1)` and `kind_of` without their calls: this runs for every value.
        run.left -= 1
        if run.left < 0:
            run.spend(0)
        kind = _KIND.get(value.__class__)
        checks = self.checks[kind_of(value) if kind is None else kind]
        if not checks:
            return None
        run.descend()
        for check in checks:
            fault = check(value, path, run, seen)
            if fault is not None:
                run.depth -= 1
                return fault
        run.depth -= 1
        return None

    def finish(self, is_scoped: bool, run: SchemaRun) -> None:
        """Build the checks, once all children and targets exist. `is_scoped` is true if there is any `$dynamicRef`."""
        schema = self.schema
        if not schema:
            return
        self._keys = [{key_of(value, run) for value in schema["enum"]}] if "enum" in schema else []
        self._keys += [{key_of(schema["const"], run)}] if "const" in schema else []
        self._limits = self._read_limits()
        bound_checks = [(kinds, check.__get__(self)) for words, kinds, check in _CHECKS if not words.isdisjoint(schema)]
        for kind in KINDS:
            rest = self.children.get("unevaluatedProperties" if kind == OBJECT else "unevaluatedItems")
            checks: list[Check] = [check for kinds, check in bound_checks if kind in kinds]
            checks += [self._within] if kind in self._limits else []
            if kind in (OBJECT, ARRAY) and rest is not None:
                checks = [_with_rest(rest, checks)]
            self.checks[kind] = tuple(checks)
        self._bind_types()
        if is_scoped:
            self.checks = [(_scoped(self.base, checks),) if checks else () for checks in self.checks]

    def _bind_types(self) -> None:
        types = self.schema.get("type")
        if types is not None:
            names = [types] if isinstance(types, str) else types
            allowed = {kind for name in names for kind in TYPES[name]}
            self.checks = [
                checks if kind in allowed else (self._wrong_type,) for kind, checks in enumerate(self.checks)
            ]
            if "integer" in names and "number" not in names:
                self.checks[FLOAT] = (self._whole, *self.checks[FLOAT])
        if self.schema.get("nullable") is True:
            self.checks[NULL] = ()

    def _read_limits(self) -> dict[int, list[tuple[Callable[[Any, Any], bool], Any, str]]]:
        """The limits for each type: the comparison that detects a violation, its operand, and its wording."""
        limits: dict[int, list[tuple[Callable[[Any, Any], bool], Any, str]]] = {}
        for keyword in _LIMITS.keys() & self.schema.keys():
            fails, words, unit, kinds = _LIMITS[keyword]
            limit, exclusive = self.schema[keyword], f"exclusive{keyword.title()}"
            if self.schema.get(exclusive) is True:  # draft 4
                fails, words, _, _ = _LIMITS[exclusive]
            for kind in kinds if not isinstance(limit, bool) else ():
                limits.setdefault(kind, []).append((fails, limit, f"must be {words} {show(limit)}{unit[limit != 1]}"))
        return limits

    # --- any kind of value -------------------------------------------------------------------------------------------

    @staticmethod
    def _reject_all(value: Any, path: Path, run: SchemaRun, seen: Seen) -> Fault | None:
        return Fault(path, "is not allowed here")

    def _wrong_type(self, value: Any, path: Path, run: SchemaRun, seen: Seen) -> Fault | None:
        return Fault(path, lambda: f"must be {accepted_values({'type': self.schema['type']})}", value)

    def _whole(self, value: Any, path: Path, run: SchemaRun, seen: Seen) -> Fault | None:
        return None if value.is_integer() else self._wrong_type(value, path, run, seen)

    def _listed_value(self, value: Any, path: Path, run: SchemaRun, seen: Seen) -> Fault | None:
        key = key_of(value, run)
        if all(key in keys for keys in self._keys):
            return None
        return Fault(path, lambda: f"must be {accepted_values(self.schema)}", value, 0)

    def _referred(self, value: Any, path: Path, run: SchemaRun, seen: Seen) -> Fault | None:
        return None if self.target is None else self.target.check(value, path, run, seen)

    def _referred_dynamically(self, value: Any, path: Path, run: SchemaRun, seen: Seen) -> Fault | None:
        """Check against the anchor of this name in the outermost resource entered (2020-12, core 8.2.3.2)."""
        target = next((self.targets[base] for base in run.scope if base in self.targets), self.targets.get(""))
        return None if target is None else target.check(value, path, run, seen)

    def _all_of(self, value: Any, path: Path, run: SchemaRun, seen: Seen) -> Fault | None:
        parts: list[Node] = self.children["allOf"]
        return next(filter(None, (part.check(value, path, run, seen) for part in parts)), None)

    def _any_of(self, value: Any, path: Path, run: SchemaRun, seen: Seen) -> Fault | None:
        return self._some_of("anyOf", value, path, run, seen)

    def _one_of(self, value: Any, path: Path, run: SchemaRun, seen: Seen) -> Fault | None:
        return self._some_of("oneOf", value, path, run, seen)

    def _some_of(self, keyword: str, value: Any, path: Path, run: SchemaRun, seen: Seen) -> Fault | None:
        if run.is_filling:
            # A default must not make a second form fit: it is only used if none fits without it.
            run.is_filling = False
            fault = self._some_of(keyword, value, path, run, seen)
            run.is_filling = True
            if fault is None:
                return None
        faults: list[Fault] = []
        fits = 0
        for part in self.children[keyword]:
            mine: Seen = None if seen is None else set()
            mark = len(run.fills)
            fault = part.check(value, path, run, mine)
            if fault is not None:
                faults.append(fault)
                del run.fills[mark:]
                continue
            fits += 1
            if keyword == "oneOf" and fits > 1:
                return Fault(
                    path, f"fits more than one of the {len(self.children[keyword])} forms, but must fit just one"
                )
            if seen is not None and mine:
                seen |= mine
            elif seen is None and keyword == "anyOf":
                return None
        if fits:
            return None
        best = max(faults, key=lambda fault: fault.weight_below(path))
        here = Fault(path, lambda: f"must be {self._all_accepted_values(keyword)}", value, 0)
        return best if best.weight_below(path) > 1 else here

    def _all_accepted_values(self, keyword: str) -> str:
        words: list[str] = []
        for part in self.children[keyword][:_MAX_LISTED]:
            hops = 0
            while part.target is not None and hops < MAX_DEPTH:
                part, hops = part.target, hops + 1
            words.append(accepted_values(part.schema))
        return shortened(" or ".join(filter(None, words)), 300) or "another value"

    def _fits(self, value: Any, path: Path, run: SchemaRun, seen: Seen) -> bool:
        """Whether a value fits without added defaults, for keywords that only test it: `if`, `not` and `contains`."""
        was_filling, run.is_filling = run.is_filling, False
        mine: Seen = None if seen is None else set()
        fits = self.check(value, path, run, mine) is None
        run.is_filling = was_filling
        if fits and seen is not None and mine:
            seen |= mine
        return fits

    def _not(self, value: Any, path: Path, run: SchemaRun, seen: Seen) -> Fault | None:
        part: Node = self.children["not"]
        fits = part._fits(value, path, run, None)
        return (
            Fault(path, lambda: f"must not be {accepted_values(part.schema) or 'what its schema forbids'}")
            if fits
            else None
        )

    def _condition(self, value: Any, path: Path, run: SchemaRun, seen: Seen) -> Fault | None:
        when: Node = self.children["if"]
        part: Node | None = self.children.get("then" if when._fits(value, path, run, seen) else "else")
        return None if part is None else part.check(value, path, run, seen)

    def _within(self, value: Any, path: Path, run: SchemaRun, seen: Seen) -> Fault | None:
        kind = kind_of(value)
        size = value if kind in NUMBER else len(value)
        for is_outside, limit, words in self._limits[kind]:
            if is_outside(size, limit):
                return Fault(path, words, size)
        return None

    # --- objects -----------------------------------------------------------------------------------------------------

    def _members(self, value: Any, path: Path, run: SchemaRun, seen: Seen) -> Fault | None:
        """Check `properties`, `patternProperties`, `additionalProperties` and `required`."""
        required = self.schema.get("required", ())
        properties: dict[str, Node] = self.children.get("properties", {})
        run.spend(len(required) + len(value))
        for name in required:
            if name not in value and not self._fill(properties.get(name), path, name, run):
                return Fault((path, name), "is missing")
        patterns, extra = self.children.get("patternProperties"), self.children.get("additionalProperties")
        for name, item in value.items():
            part = properties.get(name)
            parts = [] if part is None else [part]
            if patterns and isinstance(name, str):
                parts += [other for pattern, other in patterns.items() if run.has_match(pattern, name)]
            if not parts and extra is not None:
                if extra.is_never:
                    return Fault((path, name), lambda: f"is not known; the names are {listed(properties)}")
                parts = [extra]
            for part in parts:
                fault = part.check(item, (path, name), run, None)
                if fault is not None:
                    return fault
            if parts and seen is not None:
                seen.add(name)
        return None

    def _fill(self, part: Node | None, path: Path, name: str, run: SchemaRun) -> bool:
        """Insert the default of a missing required property, if there is a valid one; return whether there is."""
        if not run.is_filling or part is None or "default" not in part.schema:
            return False
        default = copied(part.schema["default"], run)
        fits = part.check(default, (path, name), run, None) is None
        if fits:
            run.fills.append((path, name, default))
        return fits

    def _names(self, value: Any, path: Path, run: SchemaRun, seen: Seen) -> Fault | None:
        for name in value:
            fault = self.children["propertyNames"].check(name, None, run, None)
            if fault is not None:
                return Fault((path, name), _named_words(fault))
        return None

    def _dependents(self, value: Any, path: Path, run: SchemaRun, seen: Seen) -> Fault | None:
        """Check `dependentRequired`, `dependentSchemas`, and `dependencies`, which combined the two until 2019."""
        for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            parts: dict[str, Node] = self.children.get(keyword, {})
            for name, names in self.schema.get(keyword, {}).items():
                run.spend(1)
                if name in value and name in parts:
                    fault = parts[name].check(value, path, run, seen)
                    if fault is not None:
                        return fault
                elif name in value:
                    run.spend(len(names))
                    missing = next((other for other in names if other not in value), None)
                    if missing is not None:
                        return Fault((path, missing), _needed_words(name))
        return None

    # --- lists -------------------------------------------------------------------------------------------------------

    def _items(self, value: Any, path: Path, run: SchemaRun, seen: Seen) -> Fault | None:
        """Check `prefixItems` and `items`; before 2020-12 these were a list in `items`, and `additionalItems`."""
        rest = self.children.get("items")
        first = self.children.get("prefixItems", ())
        if isinstance(rest, list):
            first, rest = rest, self.children.get("additionalItems")
        for index, item in enumerate(value):
            part: Node | None = first[index] if index < len(first) else rest
            if part is None:
                break
            fault = part.check(item, (path, index), run, None)
            if fault is not None:
                return fault
            if seen is not None:
                seen.add(index)
        return None

    def _contains(self, value: Any, path: Path, run: SchemaRun, seen: Seen) -> Fault | None:
        part: Node = self.children["contains"]
        least, most = self.schema.get("minContains", 1), self.schema.get("maxContains")
        indexes = [index for index, item in enumerate(value) if part._fits(item, (path, index), run, None)]
        if seen is not None:
            seen.update(indexes)
        if len(indexes) >= least and (most is None or len(indexes) <= most):
            return None

        def words() -> str:
            bounds = f"at least {show(least)}" + ("" if most is None else f" and at most {show(most)}")
            return f"must contain {bounds} of {accepted_values(part.schema) or 'the items that its schema requires'}"

        return Fault(path, words, len(indexes))

    def _unique(self, value: Any, path: Path, run: SchemaRun, seen: Seen) -> Fault | None:
        keys: set[Any] = set()
        for index, item in enumerate(value if self.schema["uniqueItems"] else ()):
            keys.add(key_of(item, run))
            if len(keys) <= index:
                return Fault((path, index), "is in the list twice")
        return None

    # --- texts and numbers -------------------------------------------------------------------------------------------

    def _pattern(self, value: Any, path: Path, run: SchemaRun, seen: Seen) -> Fault | None:
        pattern = self.schema["pattern"]
        return (
            None
            if run.has_match(pattern, value)
            else Fault(path, lambda: f"must match {shortened(pattern, 200)}", value)
        )

    def _multiple(self, value: Any, path: Path, run: SchemaRun, seen: Seen) -> Fault | None:
        of = self.schema["multipleOf"]
        run.spend(int(value).bit_length() // 64 if value - value == 0 else 0)
        fits = value - value == 0 and _is_multiple(value, of)
        return None if fits else Fault(path, lambda: f"must be a multiple of {show(of)}", value)


def _with_rest(rest: Node, checks: Sequence[Check]) -> Check:
    """Return a check that runs these, and then `rest` for each property or item that none of them evaluated."""

    def check(value: Any, path: Path, run: SchemaRun, seen: Seen) -> Fault | None:
        mine: set[Any] = set()
        for one in checks:
            fault = one(value, path, run, mine)
            if fault is not None:
                return fault
        pairs: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, Mapping) else enumerate(value)
        for name, item in pairs:
            fault = None if name in mine else rest.check(item, (path, name), run, None)
            if fault is not None:
                return fault
            if seen is not None:
                seen.add(name)
        return None

    return check


def _scoped(base: str, checks: Sequence[Check]) -> Check:
    """Return a check that runs these with their own resource as the innermost entered one (2020-12, core 7.1)."""

    def check(value: Any, path: Path, run: SchemaRun, seen: Seen) -> Fault | None:
        run.scope.append(base)
        fault = next(filter(None, (one(value, path, run, seen) for one in checks)), None)
        run.scope.pop()
        return fault

    return check


def _named_words(fault: Fault) -> Callable[[], str]:
    return lambda: f"has a name that {fault.words()}"


def _needed_words(name: str) -> Callable[[], str]:
    return lambda: f"is missing: {show(name)} needs it"


def _is_multiple(value: float, of: float) -> bool:
    """Whether a finite number is a multiple in decimal notation: 0.0075 is a multiple of 0.0001."""
    (digits, tens), (of_digits, of_tens) = _decimal(value), _decimal(of)
    low = min(tens, of_tens)
    rest: int = digits * 10 ** (tens - low) % (of_digits * 10 ** (of_tens - low))
    return rest == 0


def _decimal(number: float) -> tuple[int, int]:
    """A number as digits and a power of ten."""
    if isinstance(number, int):
        return int(number), 0
    digits, _, tens = float.__repr__(number).partition("e")
    whole, _, part = digits.partition(".")
    return int(whole + part), int(tens or 0) - len(part)


def key_of(value: Any, run: SchemaRun) -> Any:
    """A key that is equal exactly for equal JSON values: 1 and 1.0 are equal, true and 1 are not (2020-12, core 4.2.2).

    Numbers become bytes, whose hashes cannot be made to collide deliberately.
    """
    if value.__class__ is str:
        return value
    run.spend(1)
    kind = kind_of(value)
    if kind == INTEGER or (kind == FLOAT and value.is_integer()):
        run.spend(int(value).bit_length() // 2048)
        return b"%x" % int(value)
    if kind == FLOAT:
        return float.__repr__(value).encode()
    if kind == OTHER:
        return ("?", id(value))
    if kind not in (OBJECT, ARRAY):
        return value
    run.descend()
    run.spend(len(value))  # its strings and names
    if kind == ARRAY:
        key: Any = ("[", *[key_of(item, run) for item in value])
    else:
        key = ("{", frozenset([(name, key_of(item, run)) for name, item in value.items()]))
    run.depth -= 1
    return key


def copied(value: Any, run: SchemaRun) -> Any:
    """Return a deep copy of a JSON value; the run pays for each part."""
    run.spend(1)
    kind = kind_of(value)
    if kind == OBJECT:
        return {name: copied(item, run) for name, item in value.items()}
    return [copied(item, run) for item in value] if kind == ARRAY else value


class _Repr(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxlong = self.maxother = 60
        self.maxlevel = 3

    def repr_int(self, number: int, level: int) -> str:
        return repr(number) if number.bit_length() < 200 else f"a number of some {number.bit_length() * 3 // 10} digits"

    def repr_instance(self, thing: Any, level: int) -> str:
        return repr(thing) if isinstance(thing, float) else f"<{type(thing).__name__}>"


_REPR = _Repr()


def show(value: Any) -> str:
    """The first 80 characters of a value's Python notation; the whole of a large value is never written."""
    return shortened(_REPR.repr(value), 80)


def accepted_values(schema: Mapping[str, Any]) -> str:
    """The accepted values of a schema in words; empty if it has no type and no values."""
    if "const" in schema:
        return show(schema["const"])
    if "enum" in schema:
        return f"one of {listed(schema['enum'], show)}"
    names = {"object": "an object", "array": "a list", "integer": "a whole number", "null": "null"}
    types = schema.get("type") or ()
    words = (names.get(name, f"a {name}") for name in ([types] if isinstance(types, str) else types))
    return " or ".join(dict.fromkeys(words))


def listed(values: Any, write: Callable[[Any], str] = str) -> str:
    """The first `_MAX_LISTED` values or names as text, with the number of the others; `(none)` for no values."""
    first = [write(value) for value, _ in zip(values, range(_MAX_LISTED), strict=False)]
    more = f" and {len(values) - _MAX_LISTED:,} more" if len(values) > _MAX_LISTED else ""
    return shortened(", ".join(first), 600) + more if first else "(none)"


# The checks, in this order: the keywords, the kinds of values that they apply to, and the check.
_CHECKS: Sequence[tuple[frozenset[str], tuple[int, ...], Any]] = [
    (frozenset(words.split()), tuple(kinds), check)
    for words, kinds, check in (
        ("const enum", KINDS, Node._listed_value),
        ("$ref", KINDS, Node._referred),
        ("$dynamicRef", KINDS, Node._referred_dynamically),
        ("allOf", KINDS, Node._all_of),
        ("anyOf", KINDS, Node._any_of),
        ("oneOf", KINDS, Node._one_of),
        ("not", KINDS, Node._not),
        ("if", KINDS, Node._condition),
        ("properties patternProperties additionalProperties required", (OBJECT,), Node._members),
        ("propertyNames", (OBJECT,), Node._names),
        ("dependentRequired dependentSchemas dependencies", (OBJECT,), Node._dependents),
        ("prefixItems items additionalItems", (ARRAY,), Node._items),
        ("contains", (ARRAY,), Node._contains),
        ("uniqueItems", (ARRAY,), Node._unique),
        ("pattern", (STRING,), Node._pattern),
        ("multipleOf", NUMBER, Node._multiple),
    )
]
# The test for a violated limit, the limit in words, and the kinds of values that it applies to.
_LIMITS: Mapping[str, tuple[Callable[[Any, Any], bool], str, tuple[str, str], tuple[int, ...]]] = {
    "minItems": (operator.lt, "at least", (" item", " items"), (ARRAY,)),
    "maxItems": (operator.gt, "at most", (" item", " items"), (ARRAY,)),
    "minProperties": (operator.lt, "at least", (" property", " properties"), (OBJECT,)),
    "maxProperties": (operator.gt, "at most", (" property", " properties"), (OBJECT,)),
    "minLength": (operator.lt, "at least", (" character", " characters"), (STRING,)),
    "maxLength": (operator.gt, "at most", (" character", " characters"), (STRING,)),
    "minimum": (operator.lt, "at least", ("", ""), NUMBER),
    "maximum": (operator.gt, "at most", ("", ""), NUMBER),
    "exclusiveMinimum": (operator.le, "above", ("", ""), NUMBER),
    "exclusiveMaximum": (operator.ge, "below", ("", ""), NUMBER),
}
