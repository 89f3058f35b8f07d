"""Python types in JSON: the schema of a type, its values from JSON, and JSON from values.

Classes of other libraries are recognized by their attributes: nothing is imported to inspect them, and a pydantic model
describes and validates itself. A type that JSON cannot represent raises `OptionsError` when the schema is made, never
during a run.
"""

from __future__ import annotations

import base64
import collections
import collections.abc as abc
import dataclasses
import enum
import itertools
import json
import math
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, Generic, NoReturn, TypeVar

from ...errors import OptionsError, ToolError, ToolInputError
from ..checks import shown
from ..frozen import frozen
from ..patterns import regex
from .reading import compiled

T = TypeVar("T")
ReadValue = Callable[[Any, str], Any]
"""A function from a JSON value and its path (`items[2].price`) to the Python value."""

MISSING = dataclasses.MISSING
NO_DEFAULT: Any = object()
WAY_OUT = "use str, int, float, bool, list, dict, Literal, or make it a dataclass, a TypedDict or a pydantic model"


class _Misfit(ValueError):
    """Raised if a JSON value does not fit its type, with the value's path and the problem."""

    def __init__(self, path: str, words: str) -> None:
        super().__init__(path, words)
        self.path, self.words = path, words


@frozen
class JsonType(Generic[T]):
    """A type as JSON: its `schema`, and the parser of its values."""

    schema: Mapping[str, Any]
    read_at: ReadValue

    def read(self, value: Any, what: str = "the value") -> T:
        """Convert a JSON value to a value of the type. Raises `ToolInputError` with the path of the mismatch."""
        try:
            result: T = self.read_at(value, "")
            return result
        except _Misfit as misfit:
            place = f"{what}: {misfit.path or 'the value'}" if misfit.path or what != "the value" else what
            raise ToolInputError(f"{place} {misfit.words}", path=misfit.path) from misfit.__cause__
        except RecursionError:
            raise ToolInputError(f"{what}: the value is nested too deeply") from None


@frozen
class Member:
    """One named member of a record: in JSON, as a constructor argument, and as an attribute.

    `hint` is its type, `default` its default according to the schema, if any. If `argument` is `None`, it cannot be passed;
    if `attribute` is `None`, it cannot be read.
    """

    name: str
    argument: str | None
    attribute: str | None
    is_required: bool
    hint: Any = Any
    default: Any = NO_DEFAULT


def json_type(annotation: Any) -> JsonType[Any]:
    """The JSON form of a type. Raises `OptionsError`, with alternatives, for one that JSON cannot represent."""
    return _TypeReader(annotation).whole(lambda reader: reader.node(annotation))


def json_schema(annotation: Any) -> dict[str, Any]:
    """The JSON schema of a Python type. Raises `OptionsError` for a type that JSON cannot represent."""
    return dict(json_type(annotation).schema)


def record_type(members: Iterable[Member], make: Callable[..., T], around: Any = None) -> JsonType[T]:
    """The JSON type of an object with these members; `make` receives those present. Names are resolved in `around`."""
    return _TypeReader(around).whole(lambda reader: reader.record(list(members), make))


def hints_of(thing: Any) -> dict[str, Any]:
    """The annotations of a class or function with their names resolved, even those local to an enclosing function.

    Raises `OptionsError` for a name that cannot be resolved.
    """
    local = dict(_names_around(thing))
    if isinstance(thing, type):
        local.setdefault(thing.__name__, thing)
    try:
        return typing.get_type_hints(thing, localns=local or None, include_extras=True)
    except (NameError, AttributeError) as error:
        name = getattr(thing, "__name__", thing)
        raise OptionsError(
            f"an annotation of {name} cannot be resolved ({error}): define or import that name where the module runs, "
            "not under `if TYPE_CHECKING`"
        ) from error


def _names_around(thing: Any) -> Mapping[str, Any]:
    """The local names of the function in which a function or class is defined; empty if that function is not running."""
    outer, inside, _ = getattr(thing, "__qualname__", "").rpartition(".<locals>")
    frame = sys._getframe() if inside else None
    while frame is not None and frame.f_code.co_qualname != outer:
        frame = frame.f_back
    return {} if frame is None else frame.f_locals


def _names_of_callers() -> Iterator[dict[str, Any]]:
    """Yield the global and local names of each caller outside this package, nearest first."""
    frame, package = sys._getframe(), __name__.partition(".")[0]
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_globals.get("__name__", "").partition(".")[0] != package:
            yield {**frame.f_globals, **frame.f_locals}


# --- JSON from values ------------------------------------------------------------------------------------------------


def to_json(value: Any) -> Any:
    """Convert a value to JSON: records become objects, sets and tuples lists, enum members their values, times ISO 8601,
    bytes base64, and numbers without a JSON form their names ("NaN"). Raises `ToolError` for a value that JSON cannot
    represent.
    """
    try:
        return _to_json(value)
    except RecursionError:
        raise ToolError(f"{shown(value)} contains itself, or is nested too deeply for JSON") from None


def _to_json(value: Any) -> Any:
    kind = type(value)
    if value is None or kind in (str, bool):
        return value
    if kind is int:
        if value.bit_length() > MAX_INT_BITS:
            raise ToolError(
                f"a whole number of {value.bit_length():,} bits is too long for JSON: return it as hex text"
            )
        return value
    if kind is float:
        return value if math.isfinite(value) else _NOT_FINITE.get(value, "NaN")
    if isinstance(value, enum.Enum):
        return _to_json(value.value)
    if hasattr(kind, "model_dump"):
        return value.model_dump(mode="json", by_alias=True)
    members = _members(kind)
    if members is not None:
        values = {member.name: getattr(value, member.attribute, MISSING) for member in members if member.attribute}
        return _tag(kind) | {name: _to_json(item) for name, item in values.items() if item is not MISSING}
    if isinstance(value, abc.Mapping):
        return {_key_text(key): _to_json(item) for key, item in value.items()}
    text = _text_form(kind)
    if text is not None:
        return text.write(value)
    if isinstance(value, str | int | float):
        return _to_json(next(base(value) for base in (str, int, float) if isinstance(value, base)))
    if isinstance(value, abc.Collection):
        return [_to_json(item) for item in value]
    if (adapter := _adapter(kind, kind)) is not None:
        return adapter.dump_python(value, mode="json")
    raise ToolError(f"JSON cannot represent {shown(value)}: return text, numbers, lists, dicts or a dataclass of them")


# Python refuses to convert longer ones to decimal digits, see `sys.set_int_max_str_digits`.
MAX_INT_BITS = 14_000
_NOT_FINITE = {math.inf: "Infinity", -math.inf: "-Infinity"}


def require_writable(annotation: Any, others: tuple[type, ...] = ()) -> None:
    """Raise `OptionsError` for a result type that `to_json` cannot convert; the classes `others` are always accepted."""
    kind = typing.get_origin(annotation) or annotation
    if kind in _UNWRITABLE:
        raise OptionsError(f"{shown(annotation)} cannot be returned as JSON: call or await it, and return the result")
    is_around = kind in (typing.Annotated, typing.Union, types.UnionType)
    for arg in annotation.__args__ if is_around else typing.get_args(annotation):
        require_writable(arg, others)
    is_open = is_around or not isinstance(kind, type) or kind in (object, Any)
    if is_open or issubclass(kind, (*_WRITABLE, *others)):
        return
    if issubclass(kind, abc.Iterator | abc.AsyncIterator):
        raise OptionsError(f"{shown(annotation)} cannot be returned as JSON: collect the values in a list")
    is_known = _members(kind) is not None or _text_form(kind) or hasattr(kind, "model_dump") or _adapter(kind, kind)
    if not (is_known or getattr(kind, "__abstractmethods__", None) or getattr(kind, "_is_protocol", False)):
        raise OptionsError(f"{kind.__name__} cannot be returned as JSON: {WAY_OUT}")


_UNWRITABLE = (abc.Callable, abc.Awaitable, abc.Coroutine)
_WRITABLE = (type(None), str, int, float, enum.Enum, abc.Collection)


def _key_text(key: Any) -> str:
    plain = _to_json(key)
    return plain if isinstance(plain, str) else json.dumps(plain)


# --- types that are a string in JSON ----------------------------------------------------------------------------------


@frozen
class _TextForm:
    """The string form in JSON of a class's values. `description` describes such a string in errors."""

    format: str
    description: str
    read: Callable[[type, str], Any]
    write: Callable[[Any], str] = str


_DURATION = regex(
    r"([+-]?)P(?:(\d+(?:\.\d+)?)W)?(?:(\d+(?:\.\d+)?)D)?(?:T(?:(\d+(?:\.\d+)?)H)?(?:(\d+(?:\.\d+)?)M)?(?:(\d+(?:\.\d+)?)S)?)?",
)


def _read_duration(kind: Any, text: str) -> Any:
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()[1:]) or text.endswith("T"):
        raise ValueError(text)
    names = ("weeks", "days", "hours", "minutes", "seconds")
    parts = zip(names, match.groups()[1:], strict=True)
    return kind(**{name: float(part) for name, part in parts if part}) * (-1 if match[1] == "-" else 1)


def _write_duration(value: Any) -> str:
    if value.days < 0:
        return "-" + _write_duration(-value)
    fraction = f".{value.microseconds:06}".rstrip("0") if value.microseconds else ""
    return f"P{value.days}DT{value.seconds}{fraction}S"


def _construct(kind: type, text: str) -> Any:
    return kind(text)


def _from_iso(kind: Any, text: str) -> Any:
    return kind.fromisoformat(text)


def _decoded(kind: type, text: str) -> Any:
    return kind(base64.b64decode(text, validate=True))


def _iso(value: Any) -> str:
    return str(value.isoformat())


def _base64(value: Any) -> str:
    return base64.b64encode(value).decode("ascii")


# By name: code that uses one of these classes in an annotation has imported its module; other code need not.
_TEXT_FORMS: Mapping[str, _TextForm] = {
    "uuid.UUID": _TextForm("uuid", "a UUID", _construct),
    "fractions.Fraction": _TextForm("fraction", 'a fraction, such as "1/3"', _construct),
    "decimal.Decimal": _TextForm("decimal", 'a decimal number, such as "12.50"', _construct),
    "datetime.datetime": _TextForm("date-time", "a date and time, such as 2024-05-31T12:00:00Z", _from_iso, _iso),
    "datetime.date": _TextForm("date", "a date, such as 2024-05-31", _from_iso, _iso),
    "datetime.time": _TextForm("time", "a time, such as 12:00:00", _from_iso, _iso),
    "datetime.timedelta": _TextForm("duration", "a duration, such as P1DT12H30M", _read_duration, _write_duration),
    "builtins.bytes": _TextForm("base64", "base64", _decoded, _base64),
    "builtins.bytearray": _TextForm("base64", "base64", _decoded, _base64),
    "pathlib.PurePath": _TextForm("path", "a path", _construct),
    "pathlib._local.PurePath": _TextForm("path", "a path", _construct),  # Python 3.13
    "zoneinfo.ZoneInfo": _TextForm("time-zone", "the name of a time zone", _construct),
    **{
        f"ipaddress.{name}": _TextForm(words, f"an {words}", _construct)
        for version in "46"
        for name, words in (
            (f"IPv{version}Address", f"ipv{version}"),
            (f"IPv{version}Network", f"ipv{version} network"),
            (f"IPv{version}Interface", f"ipv{version} interface"),
        )
    },
}


def _text_form(kind: type) -> _TextForm | None:
    names = (f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__)
    return next((_TEXT_FORMS[name] for name in names if name in _TEXT_FORMS), None)


# --- records ---------------------------------------------------------------------------------------------------------


def _members(kind: Any) -> list[Member] | None:
    """The members of a dataclass, NamedTuple, attrs or msgspec class, without types; None for other classes."""
    if hasattr(kind, "__attrs_attrs__"):
        return [
            Member(one.alias, one.alias if one.init else None, one.name, type(one.default).__name__ == "_Nothing")
            for one in kind.__attrs_attrs__
        ]
    if dataclasses.is_dataclass(kind):
        return [
            Member(one.name, one.name if one.init else None, one.name, one.default is one.default_factory is MISSING)
            for one in dataclasses.fields(kind)
        ]
    if hasattr(kind, "_field_defaults"):
        return [Member(name, name, name, name not in kind._field_defaults) for name in kind._fields]
    if hasattr(kind, "__struct_config__"):
        # msgspec lists the defaults of the last fields only.
        defaults = [False] * (len(kind.__struct_fields__) - len(kind.__struct_defaults__))
        defaults += [type(default).__name__ != "NoDefaultType" for default in kind.__struct_defaults__]
        names = zip(kind.__struct_encode_fields__, kind.__struct_fields__, defaults, strict=True)
        return [Member(encoded, name, name, not has_default) for encoded, name, has_default in names]
    return None


def _tag(kind: Any) -> dict[str, Any]:
    """The tag that identifies a msgspec class in JSON; empty for other classes."""
    tag = getattr(getattr(kind, "__struct_config__", None), "tag", None)
    return {} if tag is None else {kind.__struct_config__.tag_field: tag}


def _typed_dict_members(kind: Any, hints: Mapping[str, Any]) -> Iterator[Member]:
    for name, hint in hints.items():
        is_required = name in kind.__required_keys__
        # Read here, because with string annotations the class itself has not evaluated them.
        while (word := str(typing.get_origin(hint)).rpartition(".")[2]) in ("Required", "NotRequired", "ReadOnly"):
            is_required = is_required if word == "ReadOnly" else word == "Required"
            (hint,) = typing.get_args(hint)
        yield Member(name, name, None, is_required, hint)


# --- metadata of annotations -----------------------------------------------------------------------------------------


_LIMITS = {
    "gt": ("exclusiveMinimum", lambda value, limit: value > limit),
    "ge": ("minimum", lambda value, limit: value >= limit),
    "lt": ("exclusiveMaximum", lambda value, limit: value < limit),
    "le": ("maximum", lambda value, limit: value <= limit),
    "multiple_of": ("multipleOf", lambda value, limit: value % limit == 0 * limit),
    "min_length": ("min", lambda value, limit: len(value) >= limit),
    "max_length": ("max", lambda value, limit: len(value) <= limit),
}
_LENGTHS = {"string": "Length", "array": "Items", "object": "Properties"}


def _flat(notes: Iterable[Any]) -> Iterator[Any]:
    """Yield the metadata of an annotation, even if nested (pydantic's `Field(...)`, `annotated_types.Interval`)."""
    for note in notes:
        yield note
        if is_field(note):
            yield from _flat(note.metadata)
        elif hasattr(note, "__is_annotated_types_grouped_metadata__"):
            yield from _flat(note)


def is_field(note: Any) -> bool:
    """Whether a piece of metadata is the result of pydantic's `Field(...)`."""
    return hasattr(note, "metadata") and hasattr(note, "is_required") and not isinstance(note, type)


def _annotation_schema(notes: Sequence[Any]) -> dict[str, Any]:
    """The keywords in the metadata that inform the model, such as `description`, without those that limit values."""
    texts = [note if isinstance(note, str) else getattr(note, "documentation", None) for note in notes]
    texts += [getattr(note, "description", None) for note in notes]
    annotations = {"description": next((text for text in texts if isinstance(text, str)), None)}
    for note in notes:
        annotations |= {
            name: getattr(note, name) for name in ("title", "examples") if name not in annotations and _has(note, name)
        }
        for extra in ("json_schema_extra", "extra_json_schema"):
            annotations |= getattr(note, extra) if isinstance(getattr(note, extra, None), Mapping) else {}
    return {name: value for name, value in annotations.items() if value is not None}


def _in_zone(zone: Any) -> Callable[[Any], bool]:
    """Return the test for `annotated_types.Timezone`: a zone or its name, None for naive times, `...` for any zone."""
    if isinstance(zone, str):
        from zoneinfo import ZoneInfo  # slow to import

        zone = ZoneInfo(zone)

    def fits(time: Any) -> bool:
        offset = time.utcoffset()
        return (offset is None) is (zone is None) and (zone in (None, ...) or offset == zone.utcoffset(time))

    fits.__name__ = "no time zone" if zone is None else "a time zone" if zone is ... else f"the time zone {zone}"
    return fits


def _has(note: Any, name: str) -> bool:
    """Whether metadata has this attribute; strings are excluded, because they have methods of such names."""
    return not isinstance(note, str) and getattr(note, name, None) is not None


def _adapter(annotation: Any, *parts: Any) -> Any:
    """Pydantic's adapter for a type that only pydantic understands; None for other types.

    Nothing is imported for it: whoever defined such a type has imported pydantic.
    """
    is_its_own = any(
        hasattr(part, "__get_pydantic_core_schema__") or hasattr(part, "__pydantic_validator__") for part in parts
    )
    pydantic = sys.modules.get("pydantic") if is_its_own else None
    if pydantic is None:
        return None
    try:
        return pydantic.TypeAdapter(annotation)
    except Exception as error:  # the core schema comes from the type's library, whose code may raise anything
        raise OptionsError(f"{shown(annotation)} has no JSON schema according to pydantic: {error}") from error


# --- schema and reader of a type -------------------------------------------------------------------------------------


def _read_any(value: Any, path: str) -> Any:
    return value


def _reads(kinds: tuple[type, ...], description: str, make: Callable[[Any], Any] | None = None) -> ReadValue:
    def read(value: Any, path: str) -> Any:
        # In Python, bool is a subclass of int; in JSON, `true` is not a number.
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise _Misfit(path, f"must be {description}, not {shown(value)}")
        return value if make is None else _call_constructor(path, make, value)

    return read


def _call_constructor(path: str, make: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    try:
        return make(*args, **kwargs)
    except (_Misfit, RecursionError):
        raise
    except Exception as error:  # any class or validator may raise anything
        raise _misfit(path, error) from error


def _misfit(path: str, error: Exception) -> _Misfit:
    """The error of a class that rejected a value; for pydantic, only the first one, with its location."""
    faults = error.errors(include_url=False) if hasattr(error, "errors") and callable(error.errors) else ()
    for fault in faults:
        for key in fault["loc"]:
            path += f"[{key}]" if isinstance(key, int) else f".{key}" if path else str(key)
        return _Misfit(path, f"does not fit: {fault['msg']}")
    return _Misfit(path, f"does not fit: {str(error) or type(error).__name__}")


def _whole_number(value: Any) -> int:
    # JSON has one type of number: `4.0` is a whole number, and models write it. Infinity fails in `int`.
    if value != int(value):
        raise ValueError("it is not a whole number")
    return int(value)


_read_text = _reads((str,), "text")
_read_float = _reads((int, float), "a number", float)
_PLAIN: Mapping[Any, tuple[dict[str, Any], ReadValue]] = {
    str: ({"type": "string"}, _read_text),
    int: ({"type": "integer"}, _reads((int, float), "a whole number", _whole_number)),
    float: ({"type": "number"}, _read_float),
    bool: ({"type": "boolean"}, _reads((bool,), "true or false")),
    type(None): ({"type": "null"}, _reads((type(None),), "null")),
    None: ({"type": "null"}, _reads((type(None),), "null")),
    Any: ({}, _read_any),
    object: ({}, _read_any),
    typing.LiteralString: ({"type": "string"}, _read_text),
    os.PathLike: ({"type": "string", "format": "path"}, _read_text),
}
_ARRAYS: Mapping[Any, Callable[[Any], Any]] = {
    list: list,
    tuple: tuple,
    set: set,
    frozenset: frozenset,
    collections.deque: collections.deque,
    **dict.fromkeys((abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable, abc.Reversible), list),
    **dict.fromkeys((abc.Set, abc.MutableSet), set),
}
_OBJECTS: Mapping[Any, Callable[[Any], Any]] = {
    **dict.fromkeys((dict, abc.Mapping, abc.MutableMapping), dict),
    collections.OrderedDict: collections.OrderedDict,
    collections.Counter: collections.Counter,
    collections.defaultdict: lambda items: collections.defaultdict(None, items),
}


class _SharedType:
    """A type already encountered: its name among the definitions, and its schema and parser once read."""

    def __init__(self, name: str) -> None:
        self.name, self.is_referred = name, False
        self.schema: dict[str, Any] | None = None
        self.read: ReadValue = _read_any


class _TypeReader:
    """A reader of one annotation with everything in it. `around` is the class or function that resolves its names."""

    def __init__(self, around: Any = None) -> None:
        self._names: dict[str, Any] = {}
        self._take_names(around)
        self._definitions: dict[str, Any] = {}
        self._shared: dict[Any, _SharedType] = {}

    def _take_names(self, around: Any) -> None:
        module = sys.modules.get(getattr(around, "__module__", None) or "")
        self._names |= {**vars(module or types), **_names_around(around)}

    def whole(self, build: Callable[[_TypeReader], tuple[dict[str, Any], ReadValue]]) -> JsonType[Any]:
        """Build a type with its definitions; a reference at the root is resolved."""
        schema, read = build(self)
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            schema = {**self._definitions[name], **{key: value for key, value in schema.items() if key != "$ref"}}
        return JsonType({**schema, "$defs": self._definitions} if self._definitions else schema, read)

    def node(self, annotation: Any) -> tuple[dict[str, Any], ReadValue]:
        """Return the schema and parser of a type within the annotation."""
        if isinstance(annotation, str):
            try:
                annotation = typing.ForwardRef(annotation)
            except (SyntaxError, ValueError, IndexError):  # Python 3.11 indexes an empty one
                _refuse(annotation)
        origin, args = typing.get_origin(annotation), typing.get_args(annotation)
        if origin is typing.Annotated:
            return self._noted(args[0], annotation.__metadata__)
        if origin is typing.Literal:
            return self._choice(annotation, [(to_json(one), one) for one in args])
        if origin in (typing.Union, types.UnionType):
            return self._union(args)
        if origin is typing.Final:
            return self.node(args[0])
        if isinstance(annotation, typing.NewType):
            return self.node(annotation.__supertype__)
        if isinstance(annotation, TypeVar):
            return self._union(annotation.__constraints__ or (annotation.__bound__ or Any,))
        if isinstance(annotation, typing.ForwardRef):
            name = annotation.__forward_arg__
            return self._once(("text", name), name, lambda: self.node(self._resolved(name)))
        if hasattr(origin or annotation, "__value__"):  # `type Name = ...`, here or in typing_extensions
            alias = origin or annotation
            self._take_names(alias)
            value = alias.__value__[args] if args else alias.__value__
            return self._once(annotation, alias.__name__, lambda: self.node(value))
        kind = origin or annotation
        if getattr(annotation, "__unpacked__", False) or not _is_hashable(kind):
            _refuse(annotation)
        if kind in _PLAIN:
            schema, read = _PLAIN[kind]
            return dict(schema), read
        if kind in _ARRAYS:
            return self._array(annotation, kind, args)
        if kind in _OBJECTS:
            return self._object(kind, args if kind is not collections.Counter else (*args, int))
        return self._class(annotation, kind) if isinstance(kind, type) else _refuse(annotation)

    def record(
        self, members: Sequence[Member], make: Callable[..., Any], tag: Mapping[str, Any] = types.MappingProxyType({})
    ) -> tuple[dict[str, Any], ReadValue]:
        """Return the schema and parser of an object with only these members; `make` receives those that are present."""
        init_members = [member for member in members if member.argument is not None]
        nodes = {member.name: self.node(member.hint) for member in init_members}
        properties: dict[str, Any] = {name: {"const": value} for name, value in tag.items()}
        properties |= {name: schema for name, (schema, _) in nodes.items()}
        for member in init_members:
            if member.default is not NO_DEFAULT:
                properties[member.name] = {**properties[member.name], "default": member.default}
        arguments = {member.name: member.argument for member in members if member.argument is not None}
        required = [*tag, *(member.name for member in init_members if member.is_required)]

        def read(value: Any, path: str) -> Any:
            if not isinstance(value, Mapping):
                raise _Misfit(path, f"must be an object, not {shown(value)}")
            for name in required:
                if name not in value or (name in tag and value[name] != tag[name]):
                    raise _Misfit(path, f"must have {name!r}" + (f" set to {tag[name]!r}" if name in tag else ""))
            values = {}
            for name, item in value.items():
                if name in nodes:
                    values[arguments[name]] = nodes[name][1](item, f"{path}.{name}" if path else name)
                elif name not in tag:
                    raise _Misfit(path, f"must not have {name!r}")
            return _call_constructor(path, make, **values)

        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}, read

    def _class(self, annotation: Any, kind: Any) -> tuple[dict[str, Any], ReadValue]:
        if hasattr(kind, "model_json_schema"):
            load = getattr(kind, "model_validate_json", None)
            # As JSON, since pydantic's strict mode accepts a date or an enum as text only there.
            read = (lambda value: load(json.dumps(value))) if load else kind.model_validate
            return self._once(kind, kind.__name__, lambda: self._foreign(kind.model_json_schema(), read))
        if (adapter := _adapter(annotation, kind)) is not None:
            return self._adapted(adapter)
        if issubclass(kind, enum.Flag):
            most = sum(one.value for one in kind)
            read_flags = _reads((int,), "a sum of flags", lambda value: kind(value))
            return {"type": "integer", "minimum": 0, "maximum": most}, read_flags
        if issubclass(kind, enum.Enum):
            return self._choice(kind, [(to_json(one), one) for one in kind])
        if (form := _text_form(kind)) is not None:
            read_form = _reads((str,), form.description, lambda text: _text_value(form, kind, text))
            if form.format == "decimal":
                either = _reads((str, int, float), form.description, lambda value: kind(str(value)))
                return {"anyOf": [{"type": "number"}, {"type": "string", "format": form.format}]}, either
            return {"type": "string", "format": form.format}, read_form
        if issubclass(kind, str | int | float):
            schema, read_plain = _PLAIN[next(base for base in kind.__mro__ if base in _PLAIN)]
            return dict(schema), lambda value, path: _call_constructor(path, kind, read_plain(value, path))
        is_typed_dict = issubclass(kind, dict) and hasattr(kind, "__required_keys__")
        if is_typed_dict or _members(kind) is not None:
            return self._once(annotation, kind.__name__, lambda: self._typed_record(annotation, kind, is_typed_dict))
        return _refuse(annotation)

    def _typed_record(self, annotation: Any, kind: Any, is_typed_dict: bool) -> tuple[dict[str, Any], ReadValue]:
        self._take_names(kind)
        bound = _bound_variables(annotation)
        hints = {name: _substituted(hint, bound | {typing.Self: annotation}) for name, hint in hints_of(kind).items()}
        if is_typed_dict:
            return self.record(list(_typed_dict_members(kind, hints)), dict)
        members = [dataclasses.replace(one, hint=hints.get(one.attribute or "", Any)) for one in _members(kind) or ()]
        for name, hint in hints.items():
            if isinstance(hint, dataclasses.InitVar):
                is_required = kind.__dataclass_fields__[name].default is MISSING
                members.append(Member(name, name, None, is_required, hint.type))
        return self.record(members, kind, _tag(kind))

    def _once(
        self, key: Any, name: str, build: Callable[[], tuple[dict[str, Any], ReadValue]]
    ) -> tuple[dict[str, Any], ReadValue]:
        """Build a type; return a reference to it if it was encountered before or contains itself."""
        key = key if _is_hashable(key) else id(key)
        shared_type = self._shared.get(key)
        if shared_type is None:
            shared_type = self._shared[key] = _SharedType(self._free_name(name))
            shared_type.schema, shared_type.read = build()
            if not shared_type.is_referred:
                return shared_type.schema, shared_type.read
            self._definitions[shared_type.name] = shared_type.schema
        elif shared_type.schema is not None:
            self._definitions[shared_type.name] = shared_type.schema
        shared_type.is_referred = True
        return {"$ref": f"#/$defs/{shared_type.name}"}, lambda value, path: shared_type.read(value, path)

    def _free_name(self, name: str) -> str:
        name = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "value"
        used_names = {*self._definitions, *(one.name for one in self._shared.values())}
        numbered = (f"{name}_{number}" for number in itertools.count(2))
        return next(free for free in itertools.chain((name,), numbered) if free not in used_names)

    def _resolved(self, name: str) -> Any:
        failure: Exception | None = None
        # A plain alias (`Json = dict[str, "Json"] | int`) does not name its module: look the name up in the calling frames.
        for names in (self._names.copy(), *_names_of_callers()):
            try:
                return eval(name, names)
            except (NameError, AttributeError, SyntaxError) as error:
                failure = failure or error
        raise OptionsError(
            f"the annotation {name!r} cannot be resolved ({failure}): define the name in the module"
        ) from failure

    def _foreign(self, schema: Mapping[str, Any], validate: Callable[[Any], Any]) -> tuple[dict[str, Any], ReadValue]:
        """Return a schema that a class generated itself, with a parser; its definitions are merged with the others."""
        own = dict(schema)
        definitions = own.pop("$defs", {})
        names = {
            name: name if self._definitions.get(name, definition) == definition else self._free_name(name)
            for name, definition in definitions.items()
        }
        renamed = {f"#/$defs/{name}": f"#/$defs/{other}" for name, other in names.items()}
        self._definitions |= {names[name]: _redirected(definition, renamed) for name, definition in definitions.items()}
        return _redirected(own, renamed), lambda value, path: _call_constructor(path, validate, value)

    def _adapted(self, adapter: Any) -> tuple[dict[str, Any], ReadValue]:
        return self._foreign(adapter.json_schema(), lambda value: adapter.validate_json(json.dumps(value)))

    def _noted(self, annotation: Any, metadata: Sequence[Any]) -> tuple[dict[str, Any], ReadValue]:
        notes = list(_flat(metadata))
        if (adapter := _adapter(typing.Annotated[(annotation, *metadata)], *notes)) is not None:
            schema, read_inner = self._adapted(adapter)
            return {**schema, **_annotation_schema(notes)}, read_inner
        schema, read_inner = self.node(annotation)
        limits = [(name, getattr(note, name)) for note in notes for name in _LIMITS if _has(note, name)]
        tests = [note.func for note in notes if callable(getattr(note, "func", None))]
        tests += [_in_zone(note.tz) for note in notes if type(note).__name__ == "Timezone"]
        keywords: dict[str, Any] = {}
        kinds = {part.get("type") for part in (schema, *schema.get("anyOf", ())) if "format" not in part}
        for name, limit in limits:
            keyword = _LIMITS[name][0]
            words = (
                [keyword + _LENGTHS[kind] for kind in _LENGTHS if kind in kinds]
                if name.endswith("length")
                else [keyword]
            )
            if isinstance(limit, int | float):
                keywords |= dict.fromkeys(words, limit)
        for pattern in (note.pattern for note in notes if _has(note, "pattern")):
            keywords["pattern"] = getattr(pattern, "pattern", pattern)

        def read(value: Any, path: str) -> Any:
            try:
                compiled(keywords).check(value)
            except ToolInputError as error:
                raise _Misfit(path, str(error).partition("the value ")[2]) from None
            inner_value = read_inner(value, path)
            for name, limit in limits if type(inner_value) is not type(value) else ():
                if inner_value is not None and not _call_constructor(path, _LIMITS[name][1], inner_value, limit):
                    raise _Misfit(path, f"must satisfy {name}={limit}, but is {shown(value)}")
            for test in tests:
                if not _call_constructor(path, test, inner_value):
                    raise _Misfit(path, f"must pass the check {getattr(test, '__name__', test)}, but is {shown(value)}")
            return inner_value

        schema = {**schema, **keywords, **_annotation_schema(notes)}
        return schema, read if keywords or limits or tests else read_inner

    def _choice(self, annotation: Any, options: Sequence[tuple[Any, Any]]) -> tuple[dict[str, Any], ReadValue]:
        if not options:
            _refuse(annotation)

        def read(value: Any, path: str) -> Any:
            for plain, option in options:
                if plain == value and isinstance(plain, bool) == isinstance(value, bool):
                    return option
            raise _Misfit(path, f"must be one of {', '.join(repr(plain) for plain, _ in options)}, not {shown(value)}")

        return {"enum": [plain for plain, _ in options]}, read

    def _union(self, args: Sequence[Any]) -> tuple[dict[str, Any], ReadValue]:
        nodes = [self.node(arg) for arg in args]
        # A float also accepts integers: another type that accepts them has precedence.
        readers = sorted((read for _, read in nodes), key=lambda read: read is _read_float)

        def read(value: Any, path: str) -> Any:
            misfits = []
            for read_one in readers:
                try:
                    return read_one(value, path)
                except _Misfit as misfit:
                    misfits.append(misfit)
            raise max(misfits, key=lambda misfit: len(misfit.path))

        return {"anyOf": [schema for schema, _ in nodes]}, read

    def _array(self, annotation: Any, kind: Any, args: tuple[Any, ...]) -> tuple[dict[str, Any], ReadValue]:
        make = _ARRAYS[kind]
        is_by_place = kind is tuple and (annotation == tuple[()] or (bool(args) and Ellipsis not in args))
        nodes = [self.node(arg) for arg in (args if is_by_place else args[:1])]
        if make in (set, frozenset) and args and getattr(typing.get_origin(args[0]) or args[0], "__hash__", 0) is None:
            raise OptionsError(f"{shown(annotation)} cannot contain {shown(args[0])}, which is not hashable: use list")
        schema: dict[str, Any] = {"type": "array"}
        if is_by_place:
            schema |= {"items": {"anyOf": [one for one, _ in nodes]}} if nodes else {}
            schema |= {"minItems": len(nodes), "maxItems": len(nodes)}
        elif nodes and nodes[0][0]:
            schema["items"] = nodes[0][0]
        readers = [read for _, read in nodes] or [_read_any]

        def read(value: Any, path: str) -> Any:
            if not isinstance(value, list | tuple) or (is_by_place and len(value) != len(nodes)):
                count = f" of length {len(nodes)}" if is_by_place else ""
                raise _Misfit(path, f"must be a list{count}, not {shown(value)}")
            pairs = zip(value, readers if is_by_place else repeat(readers[0]), strict=False)
            return _call_constructor(
                path, make, [read_one(item, f"{path}[{at}]") for at, (item, read_one) in enumerate(pairs)]
            )

        return schema, read

    def _object(self, kind: Any, args: tuple[Any, ...]) -> tuple[dict[str, Any], ReadValue]:
        key_type, item_type = args[:2] if len(args) > 1 else (str, Any)
        (key_schema, read_key), (item_schema, read_item) = self.node(key_type), self.node(item_type)
        is_text = key_schema.get("type") == "string" or all(isinstance(one, str) for one in key_schema.get("enum", [0]))
        if key_schema.get("type") in ("array", "object") or "$ref" in key_schema or "properties" in key_schema:
            raise OptionsError(
                f"{shown(key_type)} cannot be a key in JSON, whose keys are strings: use a list of pairs"
            )
        schema: dict[str, Any] = {"type": "object"}
        if args:
            schema["additionalProperties"] = item_schema
        if "enum" in key_schema and is_text:
            schema["propertyNames"] = key_schema
        make = _OBJECTS[kind]

        def read(value: Any, path: str) -> Any:
            if not isinstance(value, Mapping):
                raise _Misfit(path, f"must be an object, not {shown(value)}")
            items = {}
            for key, item in value.items():
                here = f"{path}.{key}" if path else str(key)
                plain = key if is_text or not key_schema else _call_constructor(here, json.loads, key)
                items[read_key(plain, here)] = read_item(item, here)
            return make(items)

        return schema, read


def _text_value(form: _TextForm, kind: type, text: str) -> Any:
    try:
        return form.read(kind, text)
    except (ValueError, ArithmeticError) as error:
        raise ValueError(f"{shown(text)} is not {form.description}") from error


def _redirected(schema: Any, references: Mapping[str, str]) -> Any:
    if isinstance(schema, Mapping):
        return {key: _redirected(item, references) for key, item in schema.items()}
    if isinstance(schema, list):
        return [_redirected(item, references) for item in schema]
    return references.get(schema, schema) if isinstance(schema, str) else schema


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _bound_variables(annotation: Any) -> dict[Any, Any]:
    """The value of each type variable in a parametrized generic class and its bases."""
    origin = typing.get_origin(annotation) or annotation
    variables = dict(zip(getattr(origin, "__parameters__", ()), typing.get_args(annotation), strict=False))
    for base in getattr(origin, "__orig_bases__", ()):
        variables = {name: _substituted(value, variables) for name, value in _bound_variables(base).items()} | variables
    return variables


def _substituted(hint: Any, bound: Mapping[Any, Any]) -> Any:
    """A hint with its bound type variables and Self replaced."""
    if _is_hashable(hint) and hint in bound:
        return bound[hint]
    args = typing.get_args(hint)
    variables = getattr(hint, "__parameters__", ())
    if args and variables:
        return hint[tuple(bound.get(variable, variable) for variable in variables)]
    return hint


def _refuse(annotation: Any) -> NoReturn:
    name = annotation.__name__ if isinstance(annotation, type) else shown(annotation)
    raise OptionsError(f"{name} has no JSON schema: {WAY_OUT}")
