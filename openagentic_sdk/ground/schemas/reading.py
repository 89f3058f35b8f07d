"""Read a JSON schema once: every subschema, its references, and the parts that cannot be checked.

Only what was read as a schema can be referenced, and nothing is ever fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urljoin

from ...errors import OptionsError, ToolInputError
from ..words import shortened
from . import is_bounded
from .checker import TYPES, Node, Path, SchemaRun, TooMuchWork, copied, show
from .expressions import expression

MAX_SCHEMAS = 20_000  # per schema
MAX_SCHEMA_DEPTH = 100
MAX_VALUES = 200_000  # of any kind, also those of `enum` and `examples`
_MAX_LEVELS = 2 * MAX_SCHEMA_DEPTH + 50  # of JSON: a property is two levels below its object
_MAX_READ = 4_000_000  # characters of patterns, references and schema locations
_MAX_PROBLEMS = 20
_MAX_COMPILED = 512


class Schema:
    """A JSON Schema ready to check values: draft 2020-12, and the surviving keywords of earlier drafts and of OpenAPI.

    `problems` describes its unchecked parts, with their locations: unknown keywords, keywords with invalid values, patterns
    that could take forever, references without a target, which `unresolved` lists. The source must not change afterwards.
    """

    def __init__(self, source: Any) -> None:
        self.source = source
        self.problems: list[str] = []
        self.unresolved: list[str] = []
        self._is_unusable = False
        self._has_defaults = False
        self._root = Node(True, "")
        try:
            reader = _DocumentReader(source)
            self.problems, self.unresolved = reader.problems, reader.unresolved
            self._root, self._has_defaults = reader.root, reader.has_defaults
        except (TooMuchWork, RecursionError) as error:
            self._is_unusable = True
            self.problems.append(
                f"the schema {str(error) if isinstance(error, TooMuchWork) else 'is nested too deeply'}"
            )

    def check(self, value: Any, what: str = "the arguments") -> Any:
        """Return the value with defaults filled in for missing required properties. `what` is its name in errors.

        Raises `ToolInputError` with the path of the first mismatch, or if the check would take too much work.
        """
        try:
            if self._is_unusable:
                raise TooMuchWork(f"cannot be checked, since {self.problems[0]}")
            run = SchemaRun()
            fault = self._root.check(value, None, run, None)
            # First without defaults: a value that fits as it is must not be changed.
            if fault is not None and self._has_defaults:
                run = SchemaRun(is_filling=True, steps_left=run.left)
                fault = self._root.check(value, None, run, None)
            if fault is None:
                return _filled(value, run) if run.fills else value
        except (TooMuchWork, RecursionError) as error:
            words = str(error) if isinstance(error, TooMuchWork) else "is nested too deeply"
            raise ToolInputError(f"{what}: the value {words}") from None
        path = _written(fault.path)
        raise ToolInputError(f"{what}: {path or 'the value'} {fault.words()}", path=path)


_compiled: dict[int, Schema] = {}


def compiled(source: Mapping[str, Any]) -> Schema:
    """Return the parsed schema; the same source object is usually parsed only once."""
    schema = _compiled.get(id(source))
    if schema is None or schema.source is not source:
        schema = Schema(source)
        if len(_compiled) >= _MAX_COMPILED:
            _compiled.clear()
        _compiled[id(source)] = schema
    return schema


def require_checkable(schema: Mapping[str, Any], what: str) -> None:
    """Raise `OptionsError` if part of the caller's own schema could not be checked."""
    problems = compiled(schema).problems
    if problems:
        raise OptionsError(f"{what}: {problems[0]}; change the schema, or begin your own keywords with x-")


def _filled(value: Any, run: SchemaRun) -> Any:
    value = copied(value, run)
    for path, name, default in run.fills:
        target = value
        for key in _keys(path):
            target = target[key]
        target[name] = default
    return value


def _keys(path: Path) -> list[Any]:
    keys: list[Any] = []
    while path is not None:
        path, key = path
        keys.append(key)
    return keys[::-1]


def _written(path: Path) -> str:
    text = ""
    for key in _keys(path):
        if isinstance(key, int):
            text += f"[{key}]"
        else:
            name = shortened(key, 100) if isinstance(key, str) and key.isprintable() else show(key)
            text += f".{name}" if text else name
    return shortened(text, 400)


# --- reading -----------------------------------------------------------------------------------------------------------


class _DocumentReader:
    """A reader that finds every schema in a document, then builds their checks."""

    def __init__(self, source: Any) -> None:
        self.problems: list[str] = []
        self.unresolved: list[str] = []
        self.has_defaults = False
        self._nodes: list[tuple[Node, str]] = []
        self._places: dict[tuple[str, str], Node] = {}
        self._dynamic: dict[str, dict[str, Node]] = {}  # anchor -> resource -> schema
        self._left = _MAX_READ
        if not is_bounded(source, max_values=MAX_VALUES, max_levels=_MAX_LEVELS):
            raise TooMuchWork(
                f"contains more than {MAX_VALUES:,} values, or is nested deeper than {_MAX_LEVELS} levels"
            )
        self.root = self._read(source, "", [("", "")], 0)
        is_scoped = any("$dynamicRef" in node.schema for node, _ in self._nodes)
        for node, place in self._nodes:
            self._resolve(node, place)
        run = SchemaRun()
        for node, _ in self._nodes:
            node.finish(is_scoped, run)

    def _spend(self, characters: int) -> None:
        self._left -= characters
        if self._left < 0:
            raise TooMuchWork("has too many long patterns, references or names to be read in bounded time")

    def _problem(self, place: str, words: str) -> None:
        if len(self.problems) < _MAX_PROBLEMS:
            where = shortened(place if place.isprintable() else repr(place), 200)
            self.problems.append(f"{words} (at {where})" if where else words)

    def _read(self, source: Any, base: str, places: list[tuple[str, str]], depth: int) -> Node:
        """Read a schema; `places` are its JSON pointers within each enclosing resource."""
        if len(self._nodes) > MAX_SCHEMAS or depth > MAX_SCHEMA_DEPTH:
            raise TooMuchWork(
                f"contains more than {MAX_SCHEMAS:,} schemas, or is nested deeper than {MAX_SCHEMA_DEPTH} levels"
            )
        place = places[0][1]
        self._spend(sum(10 + len(pointer) for _, pointer in places))
        if not isinstance(source, Mapping | bool):
            self._problem(place, f"a schema must be an object, true or false, not {show(source)}")
            source = True
        keywords = dict(self._keywords(source, place)) if isinstance(source, Mapping) else source
        if isinstance(keywords, dict) and isinstance(keywords.get("$id"), str) and not keywords["$id"].startswith("#"):
            self._spend(10 * (len(base) + len(keywords["$id"])))
            base = _joined(base, keywords["$id"])[0]
            places = [*places, (base, "")]
        node = Node(keywords, base)
        self._nodes.append((node, place))
        for resource, pointer in places:
            self._places.setdefault((resource, pointer), node)
        self._places.setdefault((base, places[-1][1]), node)
        self._name(node)
        for keyword, value in node.schema.items():
            below = [(resource, f"{pointer}/{keyword}") for resource, pointer in places]
            if keyword in _ONE and not (keyword == "items" and isinstance(value, list | tuple)):
                node.children[keyword] = self._read(value, base, below, depth + 1)
            elif keyword == "items" or keyword in _MANY:
                node.children[keyword] = [
                    self._read(part, base, _below(below, str(index)), depth + 1) for index, part in enumerate(value)
                ]
            elif keyword in _NAMED_SCHEMAS:
                node.children[keyword] = {
                    name: self._read(part, base, _below(below, name), depth + 1)
                    for name, part in value.items()
                    if keyword != "dependencies" or not isinstance(part, list | tuple)
                }
        required = node.schema.get("required", ())
        properties = node.children.get("properties", {})
        self.has_defaults |= any(name in properties and "default" in properties[name].schema for name in required)
        return node

    def _keywords(self, source: Mapping[str, Any], place: str) -> Iterator[tuple[str, Any]]:
        """Yield the meaningful keywords with their values; record a problem for each invalid or unknown one."""
        for keyword, value in source.items():
            wrong = _WRONG.get(keyword)
            if keyword in ("pattern", "patternProperties"):
                patterns = [value] if isinstance(value, str) else value if isinstance(value, Mapping) else ()
                self._spend(20 * sum(len(pattern) for pattern in patterns if isinstance(pattern, str)))
            if wrong is not None:
                words = wrong(value)
                if not words:
                    yield keyword, value
                elif value is not None and value not in ([], (), {}):  # empty: no constraint
                    self._problem(f"{place}/{keyword}", f"{keyword} {words}" if words.startswith("must ") else words)
            elif not isinstance(keyword, str) or not (keyword in _NOTES or keyword.startswith("x-")):
                self._problem(place, f"{show(keyword)} is not a supported keyword, so it would never reject anything")
            elif keyword == "default":
                yield keyword, value

    def _name(self, node: Node) -> None:
        names = [node.schema.get("$anchor"), node.schema.get("$dynamicAnchor")]
        identity = node.schema.get("$id", "")
        if identity.startswith("#"):  # an anchor, up to draft 7
            names.append(identity[1:])
        for name in filter(None, names):
            self._places.setdefault((node.base, name), node)
        if names[1]:
            self._dynamic.setdefault(names[1], {}).setdefault(node.base, node)

    def _resolve(self, node: Node, place: str) -> None:
        for keyword in ("$ref", "$dynamicRef"):
            if keyword not in node.schema:
                continue
            reference = node.schema[keyword]
            self._spend(10 * len(reference) + (0 if reference.startswith("#") else 10 * len(node.base)))
            address, fragment = _joined(node.base, reference)
            # A generator that does not escape means the characters literally.
            target = self._places.get((address, fragment)) or self._places.get((address, reference.partition("#")[2]))
            if target is None:
                self.unresolved.append(reference)
                words = f"refers to {show(reference)}, which does not exist"
                elsewhere = f"refers to {show(reference)}, which is in another document, and those are never fetched"
                is_here = (address, "") in self._places
                self._problem(f"{place}/{keyword}", f"{keyword} {words if is_here else elsewhere}")
            elif keyword == "$ref":
                node.target = target
            else:
                others = self._dynamic.get(fragment, {})
                node.targets = {"": target, **(others if others.get(target.base) is target else {})}


def _below(places: list[tuple[str, str]], name: str) -> list[tuple[str, str]]:
    step = str(name).replace("~", "~0").replace("/", "~1")
    return [(resource, f"{pointer}/{step}") for resource, pointer in places]


def _joined(base: str, reference: str) -> tuple[str, str]:
    """The address of the referenced resource, and the fragment within it."""
    address, _, fragment = reference.partition("#")
    try:
        return (urljoin(base, address) if address else base), unquote(fragment)
    except ValueError:
        return address, unquote(fragment)


# --- the values of keywords ---------------------------------------------------------------------------------------------


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def _are_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and (isinstance(value, int) or value.is_integer())


def _are_types(value: Any) -> bool:
    names = [value] if isinstance(value, str) else value
    return _are_texts(names) and bool(names) and all(name in TYPES for name in names)


def _pattern_words(pattern: Any) -> str:
    if not isinstance(pattern, str):
        return f"must be a pattern, not {show(pattern)}"
    try:
        expression(pattern)
    except (ValueError, OverflowError, RecursionError) as error:
        return f"the pattern {show(pattern)} cannot be checked: {error}"
    return ""


def _pattern_names_words(value: Any) -> str:
    if not isinstance(value, Mapping):
        return "must be an object of schemas"
    return next(filter(None, map(_pattern_words, value)), "")


def _must(holds: Callable[[Any], bool], words: str) -> Callable[[Any], str]:
    return lambda value: "" if holds(value) else f"must be {words}, not {show(value)}"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ONE = _words(
    "items additionalItems unevaluatedItems contains not if then else propertyNames additionalProperties "
    "unevaluatedProperties contentSchema"
)
_MANY = _words("allOf anyOf oneOf prefixItems")
_NAMED_SCHEMAS = _words("properties patternProperties $defs definitions dependentSchemas dependencies")
# Annotations for people, models and vendors' validators, and formats: they assert nothing.
_NOTES = _words(
    "title description default example examples deprecated readOnly writeOnly $comment $schema $vocabulary format id "
    "contentEncoding contentMediaType discriminator xml externalDocs enumNames enumDescriptions markdownDescription "
    "propertyOrdering"
)
_TABLE: list[tuple[str, Callable[[Any], str]]] = [
    ("type", _must(_are_types, f"one or more of {', '.join(TYPES)}")),
    ("enum", _must(lambda value: isinstance(value, list | tuple), "a list of values")),
    ("const", lambda value: ""),
    (
        "minItems maxItems minLength maxLength minProperties maxProperties minContains maxContains",
        _must(_is_count, "a whole number from 0 on"),
    ),
    ("minimum maximum", _must(_is_number, "a number")),
    ("exclusiveMinimum exclusiveMaximum", _must(lambda v: isinstance(v, bool) or _is_number(v), "a number")),
    ("multipleOf", _must(lambda value: _is_number(value) and 0 < value < float("inf"), "a number above 0")),
    ("required", _must(_are_texts, "a list of names")),
    ("uniqueItems nullable", _must(lambda value: isinstance(value, bool), "true or false")),
    (
        "dependentRequired",
        _must(lambda v: isinstance(v, Mapping) and all(map(_are_texts, v.values())), "an object of lists of names"),
    ),
    ("pattern", _pattern_words),
    ("patternProperties", _pattern_names_words),
    ("$ref $dynamicRef $id $anchor $dynamicAnchor", _must(lambda value: isinstance(value, str), "a string")),
    (" ".join(_ONE), lambda value: ""),
    (" ".join(_MANY), _must(lambda value: isinstance(value, list | tuple) and bool(value), "a list of schemas")),
    (
        " ".join(_NAMED_SCHEMAS - {"patternProperties"}),
        _must(lambda value: isinstance(value, Mapping), "an object whose members are schemas"),
    ),
]
_WRONG: Mapping[str, Callable[[Any], str]] = {keyword: check for words, check in _TABLE for keyword in words.split()}
