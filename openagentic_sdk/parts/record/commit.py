"""The SHA-256 chain over a session's events, made so that a field can be erased later and nothing of it can be guessed.

    leaf(i)   = SHA-256(salt(i) + path and value of one field of the event, as JSON)
    event(n)  = SHA-256(leaf(1) + leaf(2) + ...)
    chain(n)  = SHA-256(chain(n - 1) + event(n)), from 32 zeros

It is worked out from stored events when somebody signs, so an append costs nothing; every store gives the same. What an
event must keep to hold the session together is one leaf; every other field, and each value in an object, is a leaf of its
own. A field that has its default is left out, so that logs keep their digests when events get new fields. The salts come
from one random seed for each range that was signed. Erasing keeps the leaf, takes its salt away, and what gave the salt.
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
# Deeper values, and those in lists, are erased together with what they stand in.
MAX_DEPTH = 4
# What holds a session together: without it events would not be found, paired or understood.
_BINDING_NAMES = """
    type seq ts parent_tool_use_id agent_name tool_use_id question_id session_id child_session_id parent_session_id
    source_session_id purged_session_id erasure_id command_id name origin kind trigger method purpose hook_point action
    code cause provider model durability permission_mode sdk_version outcome stop_reason effect mode offset request_id
    before head digests signatures signed allowed rule answered_by approver fields usage policy_sha256
"""
_BINDING = frozenset(_BINDING_NAMES.split())
# Neither is what was said: the one is made anew with a key, the other is what the digests are made with.
_UNCOVERED = frozenset(("seq", "mac", "opening"))
_TEXTS = ("str", "str | None", "Any")


@frozen
class _CommitShape:
    """Which fields of an event class are bound together, and which are leaves, with its default; of
    the latter also the place and how the text begins.
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
    for known in fields(cls):
        name, kind = known.name, str(known.type)
        if name in _UNCOVERED:
            continue
        default = known.default if known.default_factory is MISSING else known.default_factory()
        is_free = name not in _BINDING and kind.startswith(("str", "Any", "Mapping", "Sequence"))
        (free if is_free else bound)[name] = default
        if kind in _TEXTS:
            texts.add(name)
    return _SHAPES.setdefault(cls, _CommitShape(tuple(bound.items()), _free(free), frozenset(texts)))


Leaf = tuple[str, str]


def leaves(event: Event) -> list[Leaf]:
    """The leaves of a stored event in order: where each stands in it (a JSON pointer, RFC 6901), and its text.

    The first one is what holds the session together; its pointer is "".
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
    found = [("", dumps_json(bound))]
    for name, default, pointer, prefix in free:
        value = values[name]
        if value.__class__ is str and value != default:
            found.append((pointer, f"{prefix}:{_quote(value)}"))
        elif value != default:
            _add_leaves(found, pointer, prefix, value, 1)
    return found


def _free(defaults: Mapping[str, Any]) -> tuple[tuple[str, Any, str, str], ...]:
    return tuple((name, default, f"/{_escaped(name)}", dumps_json(name)) for name, default in defaults.items())


def _add_leaves(found: list[Leaf], pointer: str, prefix: str, value: Any, depth: int) -> None:
    if isinstance(value, Mapping) and value and depth < MAX_DEPTH:
        for key, inner in value.items():
            _add_leaves(found, f"{pointer}/{_escaped(key)}", f"{prefix},{dumps_json(key)}", inner, depth + 1)
    else:
        found.append((pointer, f"{prefix}:{_quote(value) if value.__class__ is str else dumps_json(value)}"))


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def is_text_field(event: Event, pointer: str) -> bool:
    """Whether any text may stand at this place of the event; else only a value of the kind that stands there."""
    names = pointer.split("/")[1:]
    return isinstance(event, UnknownEvent) or len(names) > 1 or names[0] in _shape(event.__class__).texts


# --- salts -----------------------------------------------------------------------------------------------------------


class BadOpeningError(ValueError):
    """The salts of a range cannot be read by this version."""


def new_opening() -> dict[str, Any]:
    """Salts for a range: one seed that gives all of them."""
    return {"seed": os.urandom(SALT_BYTES).hex()}


@frozen
class Opening:
    """The salts of a range of `count` events, and what is left of those from which fields were erased.

    `seeds` gives each event's salts, None for those in `cut`: by index, the salts of what is left (None where a leaf was
    erased), the leaf that was erased (None where it stands), and the places that hold a mark in its stead.
    """

    seeds: Sequence[bytes | None]
    cut: Mapping[int, tuple[Sequence[bytes | None], Sequence[bytes | None], Sequence[str]]]

    @classmethod
    def read(cls, kept: Mapping[str, Any], count: int) -> Opening:
        """Raises `BadOpeningError`."""
        try:
            seed = kept.get("seed")
            if seed is not None:
                salt = _salt(seed)
                return cls([sha256(b"event%d:" % index + salt).digest()[:SALT_BYTES] for index in range(count)], {})
            seeds = [None if each is None else _salt(each) for each in kept["seeds"]]
            cut = {int(index): _read_cut(entry) for index, entry in kept.get("cut", {}).items()}
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise BadOpeningError(str(error)) from None
        if len(seeds) != count or any((seeds[index] is None) != (index in cut) for index in range(count)):
            raise BadOpeningError("it has other events")
        return cls(seeds, cut)

    def to_dict(self) -> dict[str, Any]:
        """As the event keeps it, once something was erased."""
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
        """The leaves of the event as the one at `index` of the range. Raises `BadOpeningError` when they cannot be its."""
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
        """Salt and text of each leaf that stands, and in the place of one that was erased the leaf. Raises as above."""
        seed, texts = self.seeds[index], leaves(event)
        if seed is not None:
            return [(salt.hex(), text, None) for salt, (_, text) in zip(salts_of(seed), texts, strict=False)]
        salts, erased, marks = self.cut[index]
        for pointer, text in texts:
            if pointer in marks and text.rpartition(":")[2] not in (f'"{ERASED}"', "{}", "[]", "null"):
                raise BadOpeningError(f"something stands at {pointer}, which was erased")
        left = [text for pointer, text in texts if pointer not in marks]
        if len(left) != sum(leaf is None for leaf in erased):
            raise BadOpeningError("it has other fields")
        standing = iter(left)
        return [
            ((salt or b"").hex(), next(standing), None) if leaf is None else ("", "", leaf.hex())
            for salt, leaf in zip(salts, erased, strict=True)
        ]

    def without(self, event: Event, index: int, pointers: Sequence[str]) -> Opening:
        """The salts when these places, each a leaf or above some, are erased. `event` is the one before that."""
        texts = leaves(event)
        salts, erased, marks = self.cut.get(index) or ([], [], [])
        if not salts:
            seed = self.seeds[index]
            assert seed is not None, "an event without a seed is cut"
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
        kept = [mark for mark in marks if not any(is_at_or_below(mark, place) for place in pointers)]
        seeds = [None if place == index else seed for place, seed in enumerate(self.seeds)]
        return Opening(seeds, {**self.cut, index: (new_salts, new_erased, [*kept, *pointers])})


def is_at_or_below(pointer: str, place: str) -> bool:
    """Whether a JSON pointer names this place or something in it."""
    return pointer == place or pointer.startswith(f"{place}/")


def salts_of(seed: bytes) -> Iterator[bytes]:
    """The salts of one event's leaves, one after the other."""
    number = 0
    while True:
        block = sha256(b"salt%d:" % number + seed).digest()
        yield block[:SALT_BYTES]
        yield block[SALT_BYTES:]
        number += 1


def _salt(text: Any) -> bytes:
    salt = bytes.fromhex(text)
    if len(salt) != SALT_BYTES:
        raise ValueError("a salt has another length")
    return salt


def _read_cut(entry: Mapping[str, Any]) -> tuple[Sequence[bytes | None], Sequence[bytes | None], Sequence[str]]:
    salts = [None if salt is None else _salt(salt) for salt in entry["salts"]]
    erased = [None if leaf is None else bytes.fromhex(leaf) for leaf in entry["leaves"]]
    marks = [mark for mark in entry["marks"] if isinstance(mark, str) and mark]
    if any(
        (salt is None) == (leaf is None) or len(leaf or ZERO[:32]) != 32
        for salt, leaf in zip(salts, erased, strict=True)
    ):
        raise ValueError("a leaf is both there and erased")
    return salts, erased, marks


# --- the chain -------------------------------------------------------------------------------------------------------


def event_digest(leaf_digests: Sequence[bytes]) -> bytes:
    """What the chain says of one event."""
    return sha256(b"".join(leaf_digests)).digest()


def chain_digests(before: str, digests: Sequence[bytes]) -> str:
    """The end of the chain behind these events."""
    head = bytes.fromhex(before)
    for digest in digests:
        head = sha256(head + digest).digest()
    return head.hex()


def join_digests(digests: Sequence[bytes]) -> str:
    """The digests as an event keeps them."""
    return b64encode(b"".join(digests)).decode("ascii")


def split_digests(text: str) -> list[bytes]:
    """What `join_digests` was given. Raises `ValueError`."""
    joined = b64decode(text, validate=True)
    if len(joined) % 32:
        raise ValueError("the digests are cut")
    return [joined[start : start + 32] for start in range(0, len(joined), 32)]
