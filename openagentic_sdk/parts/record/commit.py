"""The SHA-256 chain over a session's events, salted so that a field can be erased later and its value cannot be guessed.

    leaf(i)   = SHA-256(salt(i) + path and value of one field of the event, as JSON)
    event(n)  = SHA-256(leaf(1) + leaf(2) + ...)
    chain(n)  = SHA-256(chain(n - 1) + event(n)), from 32 zeros

The chain is computed from stored events at signing time, so appending costs nothing; every store yields the same chain. The
fields that hold the session together form one leaf; every other field, and each value in an object, is a leaf of its own.
Fields with their default value are omitted, so that logs keep their digests when events gain new fields. The salts of each
signed range derive from one random seed. Erasing a value keeps its leaf and removes its salt and the seed of that salt.
"""

from __future__ import annotations

import json.encoder
import os
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from hashlib import sha256
from typing import Any

from ...events import Event, UnknownEvent
from ...ground.frozen import frozen, values_of
from ...serialization import ENVELOPE, dumps_json

FORMAT = b"openagentic-sdk record 1"
ZERO = "0" * 64
SALT_BYTES = 16
_quote = json.encoder.encode_basestring_ascii
ERASED = "[erased]"
# Deeper values, and those in lists, are part of the leaf that contains them.
# Changing this, or the names below, would change the digests of logs that are already signed.
MAX_DEPTH = 4
# The fields that hold a session together: without them events could not be found, paired or interpreted.
_BINDING_NAMES = """
    type seq ts parent_tool_use_id agent_name tool_use_id question_id session_id child_session_id parent_session_id
    source_session_id purged_session_id erasure_id command_id name origin kind trigger method purpose hook_point action
    code cause provider model durability permission_mode sdk_version outcome stop_reason effect mode offset request_id
    before head digests signatures signed allowed rule answered_by approver fields usage policy_sha256
"""
_BINDING = frozenset(_BINDING_NAMES.split())
# Not content: the first is numbered by the store, the second recomputed with a key, the third contains the salts.
_UNCOVERED = frozenset(("seq", "mac", "opening"))
_TEXTS = ("str", "str | None", "Any")


@frozen
class _CommitShape:
    """The division of an event class's fields into leaves.

    `bound` are the fields that form the first leaf, with their defaults. `free` are the fields with leaves of their own:
    name, default, JSON pointer, and the beginning of the leaf's text. `texts` names the fields that may contain any string.
    """

    bound: Sequence[tuple[str, Any]]
    free: tuple[tuple[str, Any, str, str], ...]
    texts: frozenset[str]


_SHAPES: dict[type[Event], _CommitShape] = {}


def _shape(cls: type[Event]) -> _CommitShape:
    known_shape = _SHAPES.get(cls)
    if known_shape is not None:
        return known_shape
    bound: dict[str, Any] = {}
    free: dict[str, Any] = {}
    texts = set()
    for spec in fields(cls):
        name, kind = spec.name, str(spec.type)
        if name in _UNCOVERED:
            continue
        default = spec.default if spec.default_factory is MISSING else spec.default_factory()
        is_free = name not in _BINDING and kind.startswith(("str", "Any", "Mapping", "Sequence"))
        (free if is_free else bound)[name] = default
        if kind in _TEXTS:
            texts.add(name)
    return _SHAPES.setdefault(cls, _CommitShape(tuple(bound.items()), _free(free), frozenset(texts)))


Leaf = tuple[str, str]


def leaves(event: Event) -> list[Leaf]:
    """The leaves of a stored event in order, each with its JSON pointer (RFC 6901) and its text.

    The first leaf contains the fields that hold the session together; its pointer is "".
    """
    if isinstance(event, UnknownEvent):
        data = {name: value for name, value in event.data.items() if name not in _UNCOVERED}
        bound = {name: data[name] for name in ("type", *ENVELOPE) if name in data}
        values = {name: value for name, value in data.items() if name not in bound and name not in ("v", "dur", "crc")}
        free = _free(dict.fromkeys(values, MISSING))
    else:
        shape, values = _shape(event.__class__), values_of(event)
        bound = {"type": event.type}
        bound |= {name: values[name] for name, default in shape.bound if values[name] != default}
        free = shape.free
    result = [("", dumps_json(bound))]
    for name, default, pointer, prefix in free:
        value = values[name]
        if value.__class__ is str and value != default:
            result.append((pointer, f"{prefix}:{_quote(value)}"))
        elif value != default:
            _add_leaves(result, pointer, prefix, value, 1)
    return result


def _free(defaults: Mapping[str, Any]) -> tuple[tuple[str, Any, str, str], ...]:
    return tuple((name, default, f"/{_escaped(name)}", dumps_json(name)) for name, default in defaults.items())


def _add_leaves(result: list[Leaf], pointer: str, prefix: str, value: Any, depth: int) -> None:
    if isinstance(value, Mapping) and value and depth < MAX_DEPTH:
        for key, inner in value.items():
            _add_leaves(result, f"{pointer}/{_escaped(key)}", f"{prefix},{dumps_json(key)}", inner, depth + 1)
    else:
        result.append((pointer, f"{prefix}:{_quote(value) if value.__class__ is str else dumps_json(value)}"))


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def is_text_field(event: Event, pointer: str) -> bool:
    """Whether this place may contain any text; if not, only a value of the same kind may replace its value."""
    names = pointer.split("/")[1:]
    return isinstance(event, UnknownEvent) or len(names) > 1 or names[0] in _shape(event.__class__).texts


# --- salts -----------------------------------------------------------------------------------------------------------


class BadOpeningError(ValueError):
    """An error for salts of a range that this version cannot read, or that do not fit the events."""


def new_opening() -> dict[str, Any]:
    """Create the salts for a range: one seed from which all of them derive."""
    return {"seed": os.urandom(SALT_BYTES).hex()}


@frozen
class Opening:
    """The salts of a signed range of events.

    `seeds` contains the seed of each event's salts, None for an event from which fields were erased. Such an event is in
    `cut`, by its index in the range, with the remaining salts (None for an erased leaf), the digests of the erased leaves
    (None for the others), and the places that contain an erasure mark.
    """

    seeds: Sequence[bytes | None]
    cut: Mapping[int, tuple[Sequence[bytes | None], Sequence[bytes | None], Sequence[str]]]

    @classmethod
    def read(cls, data: Mapping[str, Any], count: int) -> Opening:
        """Parse the stored salts of a range of `count` events. Raises `BadOpeningError`."""
        try:
            seed = data.get("seed")
            if seed is not None:
                salt = _salt(seed)
                return cls([sha256(b"event%d:" % index + salt).digest()[:SALT_BYTES] for index in range(count)], {})
            seeds = [None if each is None else _salt(each) for each in data["seeds"]]
            cut = {int(index): _read_cut(entry) for index, entry in data.get("cut", {}).items()}
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise BadOpeningError(str(error)) from None
        if len(seeds) != count or any((seeds[index] is None) != (index in cut) for index in range(count)):
            raise BadOpeningError("it is for a different number of events, or for other events")
        return cls(seeds, cut)

    def to_dict(self) -> dict[str, Any]:
        """The salts in the form that the checkpoint stores after an erasure."""
        cut = {
            str(index): {
                "salts": [None if salt is None else salt.hex() for salt in salts],
                "leaves": [None if leaf is None else leaf.hex() for leaf in erased],
                "marks": list(marks),
            }
            for index, (salts, erased, marks) in self.cut.items()
        }
        return {"seeds": [None if seed is None else seed.hex() for seed in self.seeds], "cut": cut}

    def leaf_digests(self, event: Event, index: int) -> list[bytes]:
        """The leaf digests of the event at `index` of the range. Raises `BadOpeningError` if the salts do not fit it."""
        seed = self.seeds[index]
        if seed is not None:
            texts = leaves(event)
            return [
                sha256(salt + text.encode()).digest() for salt, (_, text) in zip(salts_of(seed), texts, strict=False)
            ]
        opened = self.opened_leaves(event, index)
        return [
            bytes.fromhex(leaf or "") or sha256(bytes.fromhex(salt) + text.encode()).digest()
            for salt, text, leaf in opened
        ]

    def opened_leaves(self, event: Event, index: int) -> list[tuple[str, str, str | None]]:
        """The salt (in hexadecimal), the text and None for each remaining leaf; "", "" and the digest for an erased one.

        Raises `BadOpeningError` if the salts do not fit the event.
        """
        seed, texts = self.seeds[index], leaves(event)
        if seed is not None:
            return [(salt.hex(), text, None) for salt, (_, text) in zip(salts_of(seed), texts, strict=False)]
        salts, erased, marks = self.cut[index]
        for pointer, text in texts:
            if pointer in marks and text.rpartition(":")[2] not in (f'"{ERASED}"', "{}", "[]", "null"):
                raise BadOpeningError(f"there is a value at {pointer}, which was erased")
        remaining_texts = [text for pointer, text in texts if pointer not in marks]
        if len(remaining_texts) != sum(leaf is None for leaf in erased):
            raise BadOpeningError("it is for an event with other fields")
        standing = iter(remaining_texts)
        return [
            ((salt or b"").hex(), next(standing), None) if leaf is None else ("", "", leaf.hex())
            for salt, leaf in zip(salts, erased, strict=True)
        ]

    def without(self, event: Event, index: int, pointers: Sequence[str]) -> Opening:
        """The salts after erasing these places, each a leaf or an ancestor of leaves. `event` still has the values."""
        texts = leaves(event)
        salts, erased, marks = self.cut.get(index) or ([], [], [])
        if not salts:
            seed = self.seeds[index]
            assert seed is not None, "an event without a seed is in `cut`"
            salts = [salt for salt, _ in zip(salts_of(seed), texts, strict=False)]
            erased = [None] * len(salts)
        standing = iter([leaf for leaf in texts if leaf[0] not in marks])
        new_salts: list[bytes | None] = []
        new_erased: list[bytes | None] = []
        for salt, leaf in zip(salts, erased, strict=True):
            pointer, text = next(standing) if salt is not None else ("", "")
            if salt is not None and any(is_at_or_below(pointer, place) for place in pointers):
                new_salts.append(None)
                new_erased.append(sha256(salt + text.encode()).digest())
            else:
                new_salts.append(salt)
                new_erased.append(leaf)
        outer_marks = [mark for mark in marks if not any(is_at_or_below(mark, place) for place in pointers)]
        seeds = [None if place == index else seed for place, seed in enumerate(self.seeds)]
        return Opening(seeds, {**self.cut, index: (new_salts, new_erased, [*outer_marks, *pointers])})


def is_at_or_below(pointer: str, place: str) -> bool:
    """Whether a JSON pointer is this place or a descendant of it."""
    return pointer == place or pointer.startswith(f"{place}/")


def salts_of(seed: bytes) -> Iterator[bytes]:
    """Yield the salts of one event's leaves, without end."""
    number = 0
    while True:
        block = sha256(b"salt%d:" % number + seed).digest()
        yield block[:SALT_BYTES]
        yield block[SALT_BYTES:]
        number += 1


def _salt(text: Any) -> bytes:
    salt = bytes.fromhex(text)
    if len(salt) != SALT_BYTES:
        raise ValueError("a salt has the wrong length")
    return salt


def _read_cut(entry: Mapping[str, Any]) -> tuple[Sequence[bytes | None], Sequence[bytes | None], Sequence[str]]:
    salts = [None if salt is None else _salt(salt) for salt in entry["salts"]]
    erased = [None if leaf is None else bytes.fromhex(leaf) for leaf in entry["leaves"]]
    marks = [mark for mark in entry["marks"] if isinstance(mark, str) and mark]
    if any(
        (salt is None) == (leaf is None) or len(leaf or ZERO[:32]) != 32
        for salt, leaf in zip(salts, erased, strict=True)
    ):
        raise ValueError("a leaf must be either present or erased")
    return salts, erased, marks


# --- the chain -------------------------------------------------------------------------------------------------------


def event_digest(leaf_digests: Sequence[bytes]) -> bytes:
    """The digest of one event in the chain."""
    return sha256(b"".join(leaf_digests)).digest()


def chain_digests(before: str, digests: Sequence[bytes]) -> str:
    """The chain value after these events, starting from `before`."""
    head = bytes.fromhex(before)
    for digest in digests:
        head = sha256(head + digest).digest()
    return head.hex()


def join_digests(digests: Sequence[bytes]) -> str:
    """The digests as a checkpoint stores them: joined, in base64."""
    return b64encode(b"".join(digests)).decode("ascii")


def split_digests(text: str) -> list[bytes]:
    """The inverse of `join_digests`. Raises `ValueError` for any other text."""
    joined = b64decode(text, validate=True)
    if len(joined) % 32:
        raise ValueError("the digests are truncated")
    return [joined[start : start + 32] for start in range(0, len(joined), 32)]
