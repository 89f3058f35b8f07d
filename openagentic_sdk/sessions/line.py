"""One line of a log: an event in its envelope, sealed with a checksum that hangs on the line before it.

    {"v":1,"seq":7,"ts":1760000000.5,"type":"user.message","text":"hi","dur":5,"crc":"89abcdef"}

`crc` is the CRC-32 of everything before `,"crc":`, begun with the CRC of the line before: a changed, dropped, moved or
doubled line breaks the chain. Head and seal stand where they stand in every version of the format, so any reader can
check any log. A line with neither of the two, as older tools wrote them, counts in the chain with all its bytes.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from ..errors import InvalidEventError
from ..events import Event, PermissionDecision, Result, ToolResult, ToolStarted, UnknownEvent, UserMessage
from ..serialization import dumps_json, event_from_dict, event_to_dict

FORMAT_VERSION = 1
# Deeper values could be written here and not be read again from a deeper stack: the JSON reader is recursive.
MAX_DEPTH = 200

_ENVELOPE = ("v", "seq", "ts", "dur", "crc")
_HEAD = b'{"v":'
_SEAL_LENGTH = len(b',"crc":"01234567"}')
_SEAL = re.compile(rb',"dur":(\d{1,18}),"crc":"([0-9a-f]{8})"\}')
_HEAD_PATTERN = re.compile(rb'\{"v":(\d{1,9}),"seq":(\d{1,18}),')


class BadLineError(ValueError):
    """A line that is not what was appended; `kind` as in `LogCorruptError`."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


@dataclass(frozen=True)
class Envelope:
    """What a line says about itself, unchecked."""

    version: int
    seq: int
    dur: int
    crc: int


def is_barrier(event: Event) -> bool:
    """Whether, at durability `barrier`, the event must be on disk before the run goes on."""
    if isinstance(event, ToolStarted):
        return event.effect != "read"
    return isinstance(event, UserMessage | ToolResult | PermissionDecision | Result)


def encode_event(event: Event) -> str:
    """The event's own fields as JSON, without braces and envelope. Raises `InvalidEventError` for what JSON cannot say."""
    data = event_to_dict(event)
    for name in _ENVELOPE:
        data.pop(name, None)
    if not isinstance(data.get("type"), str):
        raise InvalidEventError(f"an event needs a type of kind str, not {data.get('type')!r}")
    body = dumps_json(data)[1:-1]
    if body.count("[") + body.count("{") > MAX_DEPTH and _depth(data) > MAX_DEPTH:
        raise InvalidEventError(f"{event.type}: values are nested more than {MAX_DEPTH} deep")
    return body


def _depth(value: Any) -> int:
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


def seal_line(body: str, *, seq: int, ts: str, dur: int, crc: int) -> tuple[bytes, int]:
    """The whole line with its newline, and the checksum for the next one. `ts` is JSON."""
    text = f'{{"v":{FORMAT_VERSION},"seq":{seq},"ts":{ts},{body},"dur":{dur}'.encode("ascii")
    crc = crc32(text, crc)
    return b'%b,"crc":"%08x"}\n' % (text, crc), crc


def check_line(line: bytes, seq: int, crc: int) -> int:
    """Check a line (without its newline) that should be number `seq` behind checksum `crc`; returns its own checksum.

    Raises `BadLineError`.
    """
    if line.startswith(_HEAD):
        own = crc32(line[:-_SEAL_LENGTH], crc)
        if not line.endswith(b',"crc":"%08x"}' % own):
            raise BadLineError(_damage(line, seq))
        if not line.startswith(b'{"v":1,"seq":%d,' % seq) and _stated_seq(line) != seq:
            raise BadLineError("sequence")
        return own
    _check_plain(line)
    return crc32(line, crc)


def _stated_seq(line: bytes) -> int | None:
    head = _HEAD_PATTERN.match(line)
    return int(head[2]) if head else None


def _damage(line: bytes, seq: int) -> str:
    if b"\0" in line:
        return "hole"
    envelope = read_envelope(line)
    if envelope is None:
        return "json"
    return "checksum" if envelope.seq == seq else "sequence"


def _check_plain(line: bytes) -> None:
    if b"\0" in line:
        raise BadLineError("hole")
    if _SEAL.fullmatch(line, max(0, line.rfind(b',"dur":'))):
        raise BadLineError("checksum")
    if not isinstance(_load_object(line).get("type"), str):
        raise BadLineError("json")


def read_envelope(line: bytes) -> Envelope | None:
    """What a line says of itself, None for a line that is damaged or has no envelope. Nothing is proved by it."""
    head = _HEAD_PATTERN.match(line)
    seal = _SEAL.fullmatch(line, max(0, line.rfind(b',"dur":')))
    if head is None or seal is None or b"\0" in line:
        return None
    return Envelope(int(head[1]), int(head[2]), int(seal[1]), int(seal[2], 16))


def decode_line(line: bytes, seq: int) -> Event:
    """The event of a checked line; an unknown type is kept as it is. Raises `BadLineError`."""
    data = _load_object(line)
    if not line.startswith(_HEAD):
        data["seq"] = seq
        if not isinstance(data.get("ts"), int | float):
            data.pop("ts", None)
    try:
        event = event_from_dict(data, strict=False)
    except InvalidEventError as error:
        raise BadLineError("json") from error
    if event.__class__ is UnknownEvent:
        return UnknownEvent({name: value for name, value in data.items() if name not in ("v", "dur", "crc")})
    return event


def _load_object(line: bytes) -> dict[str, Any]:
    try:
        value = _DECODER.decode(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise BadLineError("json") from error
    if not isinstance(value, dict):
        raise BadLineError("json")
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


# One decoder for all lines: json.loads with an argument builds a new one for each call.
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def stamp_event(event: Event, seq: int, ts: float) -> Event:
    """The event with its place in the log."""
    if isinstance(event, UnknownEvent):
        return UnknownEvent({**event.data, "seq": seq, "ts": ts})
    # What dataclasses.replace does, at a tenth of its price: this runs for every append.
    stamped = object.__new__(event.__class__)
    stamped.__dict__.update(event.__dict__, seq=seq, ts=ts)
    return stamped
