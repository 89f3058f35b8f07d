"""Events to JSON and back.

One JSON object per event: its `type`, its fields, and the envelope fields that are set. Writing is strict (ASCII, no NaN,
only JSON types); reading ignores unknown fields and, unless it is strict, keeps events of unknown types verbatim, so that a
log of a newer version survives a copy by an older one.
"""

from __future__ import annotations

import json
import json.encoder
import marshal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from math import isfinite
from operator import attrgetter, call, itemgetter
from typing import Any, NoReturn

from .errors import InvalidEventError, UnknownEventTypeError
from .events import EVENT_CLASSES, AnyEvent, Event, UnknownEvent
from .ground.frozen import values_of
from .ground.words import sendable

# Deeper values could be written here but not read back from a deeper stack: the JSON reader is recursive.
MAX_DEPTH = 200
ENVELOPE = ("seq", "ts", "parent_tool_use_id", "agent_name", "mac")

_NONE = type(None)
_NUMBER = (int, float)
_JSON = (str, int, float, bool, list, dict, _NONE)
# The annotations that event fields use, and the JSON values that each accepts.
_ACCEPTED: Mapping[str, tuple[type, ...] | None] = {
    "Any": None,
    "str": (str,),
    "StopReason": (str,),  # a word unknown to this version is kept unchanged
    "StopReason | None": (str, _NONE),
    "Outcome": (str,),
    "Effect": (str,),
    "Mode": (str,),
    "Mode | None": (str, _NONE),
    "QuestionKind": (str,),
    "int": (int,),
    "float": _NUMBER,
    "bool": (bool,),
    "bool | None": (bool, _NONE),
    "str | None": (str, _NONE),
    "int | None": (int, _NONE),
    "float | None": (*_NUMBER, _NONE),
    "Mapping[str, Any]": (dict,),
    "Mapping[str, Any] | None": (dict, _NONE),
    "Sequence[str]": (list, tuple),
    "Sequence[str] | None": (list, tuple, _NONE),
    "Sequence[Mapping[str, Any]]": (list, tuple),
    "Sequence[Mapping[str, Any]] | None": (list, tuple, _NONE),
}

# The type of the elements, for the annotations that are lists.
_ELEMENTS: Mapping[str, type] = {"Sequence[str]": str, "Sequence[Mapping[str, Any]]": dict}


# Fields added to events that may already be signed: omitted while empty, or old digests would not match.
_LATER = frozenset({"approver"})

# The text of an event with a placeholder for each value, and the encoders of the values.
_LineForm = tuple[str, tuple[Callable[[Any], str], ...]]
_MOST_LINES = 256
# The fields that a line of the log adds to an event.
_LINE_FIELDS = ("v", "seq", "ts", "dur", "crc")


class _Shape:
    """The JSON layout of one event class, computed once. `plain` holds the usual types of each field."""

    def __init__(self, cls: type[AnyEvent]) -> None:
        own = [f for f in fields(cls) if f.name not in ENVELOPE]
        self.cls = cls
        self.defaults = {f.name: f.default for f in fields(cls) if f.default is not MISSING}
        # A whole number in the place of a float is unusual, and may be too large for one.
        kinds_by_name = ((f.name, _ACCEPTED[str(f.type)] or _JSON) for f in fields(cls))
        self.plain = {name: frozenset(kinds) - ({int} if float in kinds else set()) for name, kinds in kinds_by_name}
        self.size = len(self.plain)
        kinds = ((f.name, _ELEMENTS.get(str(f.type).removesuffix(" | None"))) for f in own)
        self.lists = {name: kind for name, kind in kinds if kind is not None}
        self.names = tuple(f.name for f in own)
        self.accepted = {f.name: _ACCEPTED[str(f.type)] for f in fields(cls)}
        self.head = f'"type":{_quote(cls.type)}'
        # `mac` is the last field: its digest covers everything before it.
        self.written = (*self.names, "parent_tool_use_id", "agent_name", "mac")
        self.values = itemgetter(*self.written)
        self.lines: dict[tuple[type, ...], _LineForm] = {}
        self.required = tuple(f.name for f in own if f.default is MISSING and f.default_factory is MISSING)


_SHAPES: dict[str, _Shape] = {}


def _shape(event_type: str) -> _Shape | None:
    shape = _SHAPES.get(event_type)
    if shape is None and event_type in EVENT_CLASSES:
        shape = _SHAPES[event_type] = _Shape(EVENT_CLASSES[event_type])
    return shape


def require_event(value: Event) -> Event:
    """Return the value if it is an event. Raises `InvalidEventError` for anything else, such as an event's JSON."""
    if not isinstance(value, Event):
        raise InvalidEventError(f"an event must be an Event object, as from event_from_dict(), not {value!r:.200}")
    return value


def event_to_dict(event: Event) -> dict[str, Any]:
    """Convert an event to a new dict, without the envelope fields that are None. Raises `UnknownEventTypeError`."""
    require_event(event)
    if isinstance(event, UnknownEvent):
        return dict(event.data)
    shape = _shape(event.type)
    if shape is None:
        raise UnknownEventTypeError(event.type)
    values = values_of(event)
    data: dict[str, Any] = {"type": event.type}
    data |= {name: values[name] for name in shape.names if values[name] is not None or name not in _LATER}
    return data | {name: values[name] for name in ENVELOPE if values[name] is not None}


def event_from_dict(data: Mapping[str, Any], *, strict: bool = True) -> AnyEvent:
    """Build the event that a dict describes.

    Raises `InvalidEventError` if a required field is missing or a field has the wrong type, and `UnknownEventTypeError` for
    an unknown type; with `strict=False`, that is an `UnknownEvent`, and elements of the wrong type are left out of
    lists: a log that contains them, which older versions and other tools could write, stays readable.
    """
    if data.__class__ is not dict and not isinstance(data, Mapping):
        raise InvalidEventError(f"an event is a JSON object, not {type(data).__name__}")
    event_type = data.get("type")
    if not isinstance(event_type, str):
        raise InvalidEventError(f"the type of an event must be a string, not {event_type!r:.100}")
    shape = _shape(event_type)
    if shape is None:
        if strict:
            raise UnknownEventTypeError(event_type)
        return UnknownEvent(data)
    return _build_plain(shape, data) or _build(shape, data if strict else _without_misfits(shape, data))


def _build_plain(shape: _Shape, data: Mapping[str, Any]) -> AnyEvent | None:
    """Build a usual event without its constructor, which takes most of the time to read a log; None for an unusual one."""
    values, plain = dict(shape.defaults), shape.plain
    for name, value in data.items():
        kinds = plain.get(name)
        if kinds is not None:
            if value.__class__ not in kinds:
                return None
            values[name] = value
    # If a required field is missing, there are fewer values: only fields with a default are filled in.
    if len(values) != shape.size or not (values["seq"] or 0) >= 0 or values["seq"] == 0:
        return None
    for name, kind in shape.lists.items():
        for item in values[name] or ():
            if item.__class__ is not kind:
                return None
    event = object.__new__(shape.cls)
    event.__dict__.update(values)
    return event


def _build(shape: _Shape, data: Mapping[str, Any]) -> AnyEvent:
    values = {name: data[name] for name in shape.names if name in data}
    missing = [name for name in shape.required if name not in values]
    if missing:
        raise InvalidEventError(f"{shape.cls.type}: field {missing[0]!r} is missing")
    envelope = {name: data[name] for name in ENVELOPE if data.get(name) is not None}
    for name, value in (*values.items(), *envelope.items()):
        _check_kind(shape, name, value)
    if (seq := envelope.get("seq", 1)) < 1:
        raise InvalidEventError(f"field 'seq' must be a whole number from 1, not {seq!r}")
    return shape.cls(**values, **envelope)


def _without_misfits(shape: _Shape, data: Mapping[str, Any]) -> Mapping[str, Any]:
    lists = {name: data[name] for name in shape.lists if isinstance(data.get(name), list)}
    return {**data, **{n: [item for item in each if isinstance(item, shape.lists[n])] for n, each in lists.items()}}


def _check_kind(shape: _Shape, name: str, value: Any) -> None:
    accepted = shape.accepted[name]
    # `bool` is a subclass of `int`: True is not a number of tokens.
    is_bool, is_huge = value.__class__ is bool, value.__class__ is int and not -1e300 < value < 1e300
    if accepted is not None and (
        not isinstance(value, accepted) or (is_bool and bool not in accepted) or (is_huge and float in accepted)
    ):
        kinds = " or ".join("null" if kind is _NONE else kind.__name__ for kind in accepted)
        found = "an integer beyond 1e300" if is_huge else type(value).__name__
        raise InvalidEventError(f"{shape.cls.type}: field {name!r} must be {kinds}, not {found}")
    if value and name in shape.lists:
        _check_elements(shape, name, value)


def _check_elements(shape: _Shape, name: str, value: Sequence[Any]) -> None:
    kind = shape.lists[name]
    for item in value:
        if not isinstance(item, kind):
            raise InvalidEventError(
                f"{shape.cls.type}: field {name!r} must be a list of {kind.__name__}, and contains {type(item).__name__}"
            )


def dumps_json(value: Any) -> str:
    """Encode a value as in every log line: ASCII, compact, no NaN.

    ASCII keeps lone surrogates, U+2028 and NUL out of the bytes of the file. Raises `InvalidEventError` for values that
    JSON cannot express.
    """
    try:
        return "".join(_chunks(value, 0))
    except (TypeError, ValueError, RecursionError) as error:
        raise _not_json(error) from None


def dumps_field(value: Any) -> str:
    """Encode the value of an event's field. Raises `InvalidEventError` for one that is not JSON or nested too deeply."""
    try:
        return _dumps_value(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise _not_json(error) from None


def dumps_time(ts: float) -> str:
    """Encode a time. Raises `InvalidEventError` for one that a reader would reject."""
    if not (ts.__class__ is float or ts.__class__ is int) or not -1e300 < ts < 1e300:
        raise InvalidEventError(f"field 'ts' must be a number of seconds below 1e300, not this {type(ts).__name__}")
    # `repr` writes a float as JSON does; a second run of the encoder would cost as much as that for the event.
    return repr(ts)


def _not_json(error: Exception) -> InvalidEventError:
    return InvalidEventError(f"this value cannot be written as JSON: {error}")


def loads_json(text: str | bytes) -> Any:
    """Decode JSON as in every log line: NaN and Infinity are rejected. Raises `InvalidEventError`."""
    try:
        text = text if isinstance(text, str) else text.decode(json.detect_encoding(text), "surrogatepass")
        return DECODER.decode(text)
    except (ValueError, RecursionError, AttributeError) as error:  # not text: it has no `decode`
        raise InvalidEventError(f"this is not JSON: {error}") from None


def pointer_names(pointer: str) -> list[str]:
    """The names and indices of a JSON pointer, in order (RFC 6901, section 4)."""
    return [name.replace("~1", "/").replace("~0", "~") for name in pointer.split("/")[1:]]


def refuse_constant(name: str) -> NoReturn:
    """Raise `ValueError` for NaN and Infinity, which Python's JSON decoder would accept."""
    raise ValueError(f"{name} is not JSON")


# Created once: json.loads would build a new one for each call that rejects NaN.
DECODER = json.JSONDecoder(parse_constant=refuse_constant)


def json_encoder(**settings: Any) -> Callable[[Any], str]:
    """Return a function like `json.JSONEncoder(**settings).encode`, with its C encoder created once.

    `encode` itself creates one per call, half of the cost of a usual event. A self-referential value raises
    `RecursionError`.
    """
    chunks = _chunks_of(json.JSONEncoder(**settings))
    return lambda value: "".join(chunks(value, 0))


def _chunks_of(plain: json.JSONEncoder) -> Callable[[Any, int], Iterable[str]]:
    make = vars(json.encoder).get("c_make_encoder")
    if make is None:
        return lambda value, _: (plain.encode(value),)
    quote = json.encoder.encode_basestring_ascii if plain.ensure_ascii else json.encoder.encode_basestring
    separators = plain.key_separator, plain.item_separator
    # Without markers: with them, one failure would spoil later calls.
    chunks: Callable[[Any, int], Iterable[str]]
    chunks = make(None, plain.default, quote, None, *separators, plain.sort_keys, False, plain.allow_nan)
    return chunks


_chunks = _chunks_of(json.JSONEncoder(allow_nan=False, separators=(",", ":")))
_quote = json.encoder.encode_basestring_ascii


def dumps_fields(event: Event) -> str:
    """Encode an event like `event_to_dict`, but without braces, `seq` and `ts`, for a line that adds these itself.

    Raises `InvalidEventError` for values that JSON cannot express or that a reader would reject: fields of the wrong type,
    and values nested too deeply.
    """
    if isinstance(event, UnknownEvent):
        return _dumps_unknown(event)
    shape = _SHAPES.get(require_event(event).type) or _shape(event.type)
    if shape is None:
        raise UnknownEventTypeError(event.type)
    try:
        own = event.__dict__ if event.__class__ is shape.cls else values_of(event)
        values = shape.values(own)
        template, encoders = shape.lines.get(tuple(map(type, values))) or _line(shape, values)
        for name in shape.lists:
            if own[name]:  # the form depends on the types of the values, not on those of their elements
                _check_elements(shape, name, own[name])
        return template % tuple(map(call, encoders, values))
    except InvalidEventError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise _not_json(error) from None


def _line(shape: _Shape, values: Sequence[Any]) -> _LineForm:
    """Build the text and encoders for events whose fields have these types. Raises `InvalidEventError` for a wrong type."""
    parts, encoders = [shape.head], []
    for name, value in zip(shape.written, values, strict=True):
        _check_kind(shape, name, value)
        is_left_out = value is None and (name not in shape.names or name in _LATER)
        parts.append("%s" if is_left_out else f',"{name}":%s')
        encoders.append({None: ""}.__getitem__ if is_left_out else _ENCODERS.get(value.__class__, _dumps_value))
    line, kinds = ("".join(parts), tuple(encoders)), tuple(map(type, values))
    # Most events of a class have the same kinds of values: each form is computed once. Rare kinds are not cached, to save
    # memory; nor is a whole number in the place of a float, whose size must be checked each time.
    is_usual = all(kind is not int or int in shape.plain[n] for n, kind in zip(shape.written, kinds, strict=True))
    if is_usual and len(shape.lines) < _MOST_LINES and _ENCODERS.keys() >= set(kinds):
        shape.lines[kinds] = line
    return line


def _dumps_value(value: Any) -> str:
    if not value and value.__class__ is dict:
        return "{}"
    text = "".join(_chunks(value, 0))
    if "[" in text or text.find("{", 1) >= 0:  # searching for a character costs far less than counting
        _check_depth(value, text, MAX_DEPTH - 1)
    return text


def _dumps_float(value: float) -> str:
    return repr(value) if isfinite(value) else dumps_json(value)


class EncodedEvents(list[Event]):
    """A list of events on their way into a log, each with the JSON from `dumps_fields`.

    Signing needs that JSON before an event has its place in the log, and the store afterwards: an event is encoded once.
    """

    def __init__(self, events: Iterable[Event], bodies: Sequence[str]) -> None:
        super().__init__(events)
        self.bodies = bodies


def encode_events(events: Sequence[Event]) -> Sequence[str]:
    """Return the JSON of each event from `dumps_fields`, without encoding `EncodedEvents` again."""
    return events.bodies if isinstance(events, EncodedEvents) else [dumps_fields(event) for event in events]


def joined(first: Sequence[Event], then: Sequence[Event]) -> Sequence[Event]:
    """Combine two batches into one, with the JSON of each event."""
    return EncodedEvents((*first, *then), (*encode_events(first), *encode_events(then))) if first else then


class WrittenList(list[Any]):
    """A list, not to be changed, with its JSON, both as in a log line and with sorted keys."""

    __slots__ = ("canonical", "text")

    # Code that copies a list through its class, such as dataclasses.asdict, passes no texts.
    def __init__(self, values: Iterable[Any], text: str = "", canonical: str = "") -> None:
        super().__init__(values)
        self.text, self.canonical = text or _dumps_value([*self]), canonical or _canonical([*self])


def written(values: list[Any]) -> list[Any]:
    """Return the list with its JSON, reusing that of an equal earlier list, or unchanged if it cannot be encoded."""
    try:
        # Distinguishes 1 from True, and one order of keys from another; version 0 writes equal values alike.
        key = marshal.dumps(values, 0)
        texts = _WRITTEN.get(key)
        if texts is None:
            if len(_WRITTEN) >= _MOST_WRITTEN:
                _WRITTEN.clear()
            texts = _WRITTEN[key] = _dumps_value(values), _canonical(values)
    except (TypeError, ValueError, RecursionError):
        return values
    return WrittenList(values, *texts)


_WRITTEN: dict[bytes, tuple[str, str]] = {}
_MOST_WRITTEN = 16


def dumps_canonical(value: Any) -> str:
    """Encode a value for digests: JSON with sorted keys, ASCII, compact."""
    return value.canonical if value.__class__ is WrittenList else _canonical(value)


_canonical = json_encoder(sort_keys=True, separators=(",", ":"))


# The encoder of values of exactly this class; those of simple ones avoid the overhead of the JSON encoder.
_ENCODERS: Mapping[type, Callable[[Any], str]] = {
    _NONE: {None: "null"}.__getitem__,
    bool: {True: "true", False: "false"}.__getitem__,
    str: _quote,
    int: repr,
    float: _dumps_float,
    dict: _dumps_value,
    list: _dumps_value,
    tuple: _dumps_value,
    WrittenList: attrgetter("text"),
}


def _dumps_unknown(event: UnknownEvent) -> str:
    """Encode the fields of an event of an unknown type verbatim, without those that a line adds itself."""
    if not isinstance(event.data.get("type"), str):
        raise InvalidEventError(f"the type of an event must be a string, not {event.data.get('type')!r:.100}")
    data = {name: value for name, value in event.data.items() if name not in _LINE_FIELDS}
    try:
        text = "".join(_chunks(data, 0))
        _check_depth(data, text, MAX_DEPTH)
    except (TypeError, ValueError, RecursionError) as error:
        raise _not_json(error) from None
    return text[1:-1]


def _check_depth(value: Any, text: str, max_depth: int) -> None:
    """Raise `ValueError` if a value, given with its JSON, is nested deeper than `max_depth`."""
    if text.count("[") + text.count("{") > max_depth and nesting(value) > max_depth:
        raise ValueError(f"it is nested more than {max_depth} deep")


def whole_letters(value: Any) -> Any:
    """Replace surrogates in a JSON value: a pair becomes its character, a lone one U+FFFD."""
    if isinstance(value, str):
        return sendable(value)
    if isinstance(value, Mapping):
        return {sendable(key): whole_letters(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [whole_letters(item) for item in value]
    return value


def nesting(value: Any) -> int:
    """The nesting depth of a JSON value: 1 for a string or number, 2 for a list of them."""
    depth, level = 0, [value]
    while level:
        depth += 1
        level = [
            child
            for item in level
            if isinstance(item, dict | list | tuple)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
    return depth


def dumps_event(event: Event) -> str:
    """Encode an event as one line of JSON, without the newline."""
    return dumps_json(event_to_dict(event))


def loads_event(text: str | bytes, *, strict: bool = True) -> AnyEvent:
    """Parse the event of one line; see `event_from_dict` for `strict` and the errors."""
    return event_from_dict(loads_json(text), strict=strict)
