"""Find the places of a value in a session, in any encoding, and replace them with marks. Pure."""

from __future__ import annotations

from base64 import b64encode, urlsafe_b64encode
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any
from urllib.parse import quote, quote_plus

from ...errors import OptionsError
from ...events import (
    AssistantMessage,
    Event,
    LogRecovered,
    LogSalvaged,
    ModelRequest,
    RecordErasing,
    RecordSigned,
    ToolResult,
    UnknownEvent,
)
from ...ground.frozen import changed
from ...serialization import dumps_json, event_from_dict, event_to_dict, pointer_names
from ...sessions.arguments import DIGEST
from ...sessions.rewriting import sign_again
from ...sessions.seal import Seal
from .commit import ERASED, BadOpeningError, Opening, is_at_or_below, is_text_field, leaves

# Shorter texts occur in too many unrelated places. The others limit the lines, and the inner values, that are searched for
# on their own.
MIN_CHARS = 4
MIN_LINE_CHARS = 16
MIN_INNER_CHARS = 8
FieldPlace = tuple[int, str]


class Needles:
    """The strings to look for, and their forms inside other strings and in bytes. Strings under `MIN_CHARS` are dropped."""

    def __init__(self, texts: Iterable[str]) -> None:
        unique_texts = {text.strip() for text in texts if len(text.strip()) >= MIN_CHARS}
        self.texts = sorted(unique_texts - {ERASED})
        self._forms = tuple(dict.fromkeys(form for text in self.texts for form in _forms(text)))
        encodings = ("utf-8", "utf-16-le", "utf-16-be")
        self._bytes = tuple(form.encode(name, "surrogatepass") for form in self._forms for name in encodings)

    def are_in(self, value: Any) -> bool:
        """Whether a JSON value contains one of the strings: in a string, as a number, or in a member name."""
        if isinstance(value, str):
            return any(form in value for form in self._forms)
        if isinstance(value, Mapping):
            return any(self.are_in(str(key)) or self.are_in(inner) for key, inner in value.items())
        if isinstance(value, list | tuple):
            return any(map(self.are_in, value))
        if isinstance(value, int | float) and not isinstance(value, bool):
            return dumps_json(value) in self.texts
        return False

    def are_in_bytes(self, data: bytes) -> bool:
        """Whether the bytes contain one of the strings in any form."""
        return any(form in data for form in self._bytes)


def _forms(text: str) -> Iterator[str]:
    whole = text.encode("utf-8", "surrogatepass")
    yield text
    yield dumps_json(text)[1:-1]
    yield dumps_json(dumps_json(text)[1:-1])[1:-1]
    yield text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    yield quote(whole)
    yield quote(whole, safe="")
    yield quote_plus(whole)
    yield whole.hex()
    yield whole.hex().upper()
    for ended in (whole, whole + b"\n"):
        yield sha256(ended).hexdigest()
    for encode in (b64encode, urlsafe_b64encode):
        for before in range(3):
            # The base64 forms of the bytes at each alignment, without characters that depend on neighbouring bytes.
            base64_text = encode(b"\0" * before + whole).decode("ascii").rstrip("=")
            first, last = (before * 8 + 5) // 6, len(base64_text) - bool((before + len(whole)) % 3)
            if last - first >= MIN_INNER_CHARS:
                yield base64_text[first:last]


def places_of(event: RecordErasing) -> list[FieldPlace]:
    """The places that an erasure names; invalid entries, possible in a log from elsewhere, are omitted."""
    return [
        (each["seq"], each["path"])
        for each in event.fields
        if isinstance(each, Mapping) and isinstance(each.get("seq"), int) and isinstance(each.get("path"), str)
    ]


def value_at(event: Event, pointer: str) -> Any:
    """The value at a JSON pointer (RFC 6901). Raises `OptionsError` for a place that the event does not have."""
    value: Any = event_to_dict(event)
    for name in pointer_names(pointer):
        try:
            value = value[int(name)] if isinstance(value, list | tuple) else value[name]
        except (KeyError, IndexError, ValueError, TypeError):
            raise OptionsError(f"event {event.seq} ({event.type}) has no field at {pointer}") from None
    return value


def leaf_place(event: Event, pointer: str) -> str:
    """The place to erase for a given one: itself, or the nearest erasable object or list that contains it.

    Raises `OptionsError` for a place that the event does not have, and for one that is empty or needed to read the session.
    """
    if not pointer.startswith("/"):
        raise OptionsError(f"{pointer!r} is not a JSON pointer: begin it with /, as in /output/stdout")
    value_at(event, pointer)
    places = [place for place, _ in leaves(event) if place]
    if any(is_at_or_below(place, pointer) for place in places):
        return pointer
    above = [place for place in places if is_at_or_below(pointer, place)]
    if not above:
        raise OptionsError(
            f"{pointer} of event {event.seq} ({event.type}) cannot be erased: it is needed to read the session, or is empty"
        )
    return above[0]


def needles_of(value: Any) -> Needles:
    """The values to look for elsewhere when this value is erased: itself, its long lines, and its members or items."""
    return Needles([*_texts_of(value, 0)])


def _texts_of(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        if depth == 0 or len(value.strip()) >= MIN_INNER_CHARS:
            yield value
            yield from (line for line in value.split("\n") if len(line.strip()) >= MIN_LINE_CHARS)
    elif isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _texts_of(inner, depth + 1)
    elif depth == 0 and isinstance(value, int | float):
        yield dumps_json(value)


def find_places(
    events: Sequence[Event], asked_places: Iterable[FieldPlace], needles: Needles, outputs: Collection[str] = ()
) -> tuple[list[FieldPlace], list[FieldPlace]]:
    """Find the places of a log to erase, and those that contain a needle but cannot be erased.

    The places to erase are `asked_places`, those that contain a needle, digests over any of them (from which a short value
    could be guessed), and the names of `outputs` that belong to them.
    """
    places: dict[FieldPlace, None] = dict.fromkeys(asked_places)
    unerasable: list[FieldPlace] = []
    if needles.texts:
        for event in events:
            if isinstance(event, RecordSigned):
                continue
            for pointer, text in leaves(event):
                seq = event.seq or 0
                if not pointer:
                    if needles.are_in(text):
                        unerasable.append((seq, "its identifiers"))
                elif needles.are_in(value_at(event, pointer)):
                    places[seq, pointer] = None
                elif needles.are_in(pointer.replace("~1", "/").replace("~0", "~")):
                    # A member name contains the value: erase the object that has the member.
                    places[seq, "/".join(pointer.split("/")[:-1]) if pointer.count("/") > 1 else pointer] = None
    places.update(dict.fromkeys(_derived(events, list(places))))
    touched = {seq for seq, _ in places}
    for event in events if outputs else ():
        if isinstance(event, ToolResult) and event.seq in touched:
            pointers = (pointer for pointer, text in leaves(event) if pointer and any(name in text for name in outputs))
            places.update(dict.fromkeys((event.seq or 0, pointer) for pointer in pointers))
    return _outermost(places), unerasable


def _outermost(places: Iterable[FieldPlace]) -> list[FieldPlace]:
    """The places that are not inside another of these places, in order."""
    outermost: list[FieldPlace] = []
    # Compared step by step, so that everything inside a place follows it directly: as text, "/a-b" comes before "/a/b".
    for seq, pointer in sorted(places, key=lambda place: (place[0], place[1].split("/"))):
        if not outermost or outermost[-1][0] != seq or not is_at_or_below(pointer, outermost[-1][1]):
            outermost.append((seq, pointer))
    return outermost


def _derived(events: Sequence[Event], places: Sequence[FieldPlace]) -> Iterator[FieldPlace]:
    """Yield places that derive from erased values: digests of the same call and of later requests, signatures, and names."""
    if not places:
        return
    touched = {seq for seq, _ in places}
    first = min(touched)
    calls = {call for event in events if event.seq in touched and (call := getattr(event, "tool_use_id", None))}
    for event in events:
        seq = event.seq or 0
        if isinstance(event, ModelRequest) and seq > first and event.request_sha256 != ERASED:
            yield seq, "/request_sha256"
        elif isinstance(event, AssistantMessage) and seq in touched and event.extras:
            yield seq, "/extras"  # a vendor's signature does not fit the changed text, and the request would be refused
        elif isinstance(event, LogRecovered) and event.moved_to:
            yield seq, "/moved_to"  # the name is a checksum of the erased content
        elif getattr(event, "tool_use_id", None) in calls:
            for pointer, _ in leaves(event):
                value = value_at(event, pointer) if pointer and not pointer.endswith("/policy_sha256") else None
                if isinstance(value, str) and DIGEST.fullmatch(value):
                    yield seq, pointer


# --- erasing ---------------------------------------------------------------------------------------------------------


def erase_places(session_id: str, events: list[Event], places: Sequence[FieldPlace], seal: Seal) -> Mapping[int, Event]:
    """Erase these places of a log; return the events that change, by `seq`, in their new form.

    These are the events that lose a value, the checkpoints that lose salts, and the events whose keyed digests are
    recomputed.
    """
    by_seq: dict[int, list[str]] = {}
    for seq, pointer in places:
        if 1 <= seq <= len(events) and not is_marked(events[seq - 1], pointer):
            # A log from elsewhere may name any place: fields that hold the session together are kept.
            by_seq.setdefault(seq, []).append(leaf_place(events[seq - 1], pointer))
    after = list(events)
    start = 0  # the last event before the range that the next checkpoint covers
    # In a salvaged log, copied checkpoints name the positions of the old one: no salt there can be matched to its value.
    moved = events[0].events + 1 if events and isinstance(events[0], LogSalvaged) else 0
    for event in events:
        if isinstance(event, RecordSigned) and (event.seq or 0) <= moved:
            after[(event.seq or 1) - 1] = changed(event, opening={}) if by_seq else event
            start = event.to_seq
        elif isinstance(event, RecordSigned) and event.from_seq == start + 1 and event.to_seq < (event.seq or 0):
            after[(event.seq or 1) - 1] = _without_salts(event, events, by_seq)
            start = event.to_seq
    for seq, pointers in by_seq.items():
        after[seq - 1] = _marked(after[seq - 1], pointers)
    after = sign_again(session_id, events, after, seal)
    return {new.seq or 0: new for old, new in zip(events, after, strict=True) if new != old}


def is_marked(event: Event, pointer: str) -> bool:
    """Whether nothing is left to erase at this place."""
    try:
        return value_at(event, leaf_place(event, pointer)) in (ERASED, {}, [], (), None)
    except OptionsError:
        return True


def _without_salts(signed: RecordSigned, events: Sequence[Event], by_seq: Mapping[int, Sequence[str]]) -> RecordSigned:
    """The checkpoint without the salts of erased values."""
    cut = [seq for seq in by_seq if signed.from_seq <= seq <= signed.to_seq]
    if not cut:
        return signed
    try:
        opening = Opening.read(signed.opening, signed.to_seq - signed.from_seq + 1)
        for seq in cut:
            opening = opening.without(events[seq - 1], seq - signed.from_seq, by_seq[seq])
    except (BadOpeningError, StopIteration, ValueError):
        # The salts were tampered with: nothing in this range is provable, and the remainder could still reveal the value.
        return changed(signed, opening={})
    return changed(signed, opening=opening.to_dict())


def _marked(event: Event, pointers: Sequence[str]) -> Event:
    data = dict(event.data) if isinstance(event, UnknownEvent) else event_to_dict(event)
    for pointer in pointers:
        *above, name = pointer_names(pointer)
        holder = data
        for part in above:
            holder[part] = holder = dict(holder[part])
        kind = holder[name]
        is_free = is_text_field(event, pointer)
        holder[name] = ERASED if is_free or isinstance(kind, str) else {} if isinstance(kind, Mapping) else []
    return event_from_dict(data, strict=False)
