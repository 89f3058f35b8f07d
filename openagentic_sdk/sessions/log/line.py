"""One line of a log: an event in its envelope, sealed with a checksum over the whole log before it.

    {"v":1,"seq":7,"ts":1760000000.5,"type":"user.message","text":"hi","dur":5,"crc":"89abcdef"}

`crc` is the CRC-32 of every byte of the file before `,"crc":`. So the lines form a chain: a changed, dropped, moved or
doubled line is noticed at the next seal, one good seal vouches for all lines before it, and the checksum continues from
line to line without reading them again. Head and seal have the same position in every version of the format, so any reader
can check any log. Lines without either, as older tools wrote them, are treated like any other bytes.
"""

from __future__ import annotations

from typing import Any, Literal, cast
from zlib import crc32

from ...errors import InvalidEventError, OptionsError
from ...events import BARRIERS, Event, ToolStarted, UnknownEvent
from ...ground.frozen import changed, frozen
from ...ground.patterns import regex
from ...serialization import DECODER, dumps_fields, dumps_time, event_from_dict, require_event

FORMAT_VERSION = 1
# How far a store ensures that appended events are on disk, see `is_barrier`.
Durability = Literal["flush", "barrier", "fsync"]
DURABILITY_LEVELS: tuple[Durability, ...] = ("flush", "barrier", "fsync")

HEAD = b'{"v":'
SEAL_LENGTH = len(b',"crc":"01234567"}')
HEAD_PATTERN = regex(rb'\{"v":(\d{1,9}),"seq":(\d{1,18}),')
_SEAL = regex(rb',"dur":(\d{1,18}),"crc":"([0-9a-f]{8})"\}')


def check_durability(level: Any) -> Durability:
    """Return the durability level. Raises `OptionsError` for an unknown one."""
    if level not in DURABILITY_LEVELS:
        raise OptionsError(f"durability {level!r} is unknown: choose one of {', '.join(DURABILITY_LEVELS)}")
    return cast(Durability, level)


class BadLineError(ValueError):
    """Raised for a line that differs from what was appended; `kind` is as in `LogCorruptError`."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


@frozen
class Envelope:
    """The numbers in a line's head and seal, unchecked. `crc_behind` is the checksum up to and including its newline."""

    version: int
    seq: int
    dur: int
    crc_behind: int


def is_barrier(event: Event) -> bool:
    """Whether, at durability `barrier`, the event must be on disk before the run continues."""
    if isinstance(event, ToolStarted):
        # If a power failure loses it, the read is repeated, which does no harm.
        return event.effect != "read"
    return isinstance(event, BARRIERS)


def seal_line(body: str, *, seq: int, ts: str, dur: int, crc: int) -> tuple[bytes, int]:
    """The complete line with its newline, and the checksum after it. `ts` is JSON."""
    # Assembled as text, not through a dict: the position of head and seal in the line is part of the format.
    text = f'{{"v":{FORMAT_VERSION},"seq":{seq},"ts":{ts},{body},"dur":{dur}'.encode("ascii")
    own = crc32(text, crc)
    seal = b',"crc":"%08x"}\n' % own
    # The chain continues over the seal and the newline too, so that every byte of the file is covered by the next one.
    return text + seal, crc32(seal, own)


def check_line(line: bytes, seq: int, crc: int) -> int:
    """Check a line (without its newline) that should be number `seq` after checksum `crc`; return the checksum after it.

    Raises `BadLineError`.
    """
    if line.startswith(HEAD):
        own = crc32(line[:-SEAL_LENGTH], crc)
        envelope = read_envelope(line)
        if not line.endswith(b',"crc":"%08x"}' % own):
            if b"\0" in line:
                raise BadLineError("hole")
            # A wrong checksum under the right number means changed bytes; under another number, a line in the wrong
            # place.
            raise BadLineError("json" if envelope is None else "checksum" if envelope.seq == seq else "sequence")
        if envelope is None or envelope.seq != seq:
            raise BadLineError("sequence")
    elif b"\0" in line:
        raise BadLineError("hole")
    # It ends like a line of ours but does not begin like one, so it was changed, not written by an older tool.
    elif _SEAL.fullmatch(line.removesuffix(b"\r"), max(0, line.rfind(b',"dur":'))):
        raise BadLineError("checksum")
    else:
        # Older tools wrote UTF-8, and editors put a byte order mark before it.
        data = _load_object(line, "utf-8-sig")
        if not isinstance(data.get("type"), str):
            raise BadLineError("json")
        if "v" in data and "crc" in data:  # ours, but rewritten: lines of older tools have neither
            raise BadLineError("checksum")
    return crc32(line, crc)


def check_block(block: bytes, seq: int, crc: int) -> tuple[int, int] | None:
    """Check many complete lines, the first being number `seq`, by the seal of the last.

    Returns the last one's number and the checksum after it, or None if the lines must be checked one by one.
    """
    own = crc32(memoryview(block)[: -SEAL_LENGTH - 1], crc)
    seal = b',"crc":"%08x"}\n' % own
    last = seq + block.count(b"\n") - 1
    # A fitting checksum proves the bytes, not their numbers: whoever rewrites a log can compute it as well.
    if not block.endswith(seal) or not block.startswith(b'{"v":1,"seq":%d,' % last, block.rfind(b"\n", 0, -1) + 1):
        return None
    return last, crc32(seal, own)


def read_envelope(line: bytes) -> Envelope | None:
    """A line's envelope; None for a line that is damaged or has none. Nothing is verified."""
    head = HEAD_PATTERN.match(line)
    seal = _SEAL.fullmatch(line, max(0, line.rfind(b',"dur":')))
    if head is None or seal is None or b"\0" in line:
        return None
    crc_behind = crc32(line[-SEAL_LENGTH:] + b"\n", int(seal[2], 16))
    return Envelope(int(head[1]), int(head[2]), int(seal[1]), crc_behind)


def decode_line(line: bytes, seq: int) -> Event:
    """Decode the event of a checked line; an unknown type is kept verbatim. Raises `BadLineError`."""
    sealed = line.startswith(HEAD)
    data = _load_object(line, "ascii" if sealed else "utf-8-sig")
    if not sealed:
        data["seq"] = seq
        # The tool that wrote the line promised no type here; an event without a time is better than no event.
        if not isinstance(data.get("ts"), int | float):
            data.pop("ts", None)
    try:
        event = event_from_dict(data, strict=False)
    except InvalidEventError as error:
        raise BadLineError("json") from error
    if event.seq != seq:
        raise BadLineError("sequence")
    if event.__class__ is UnknownEvent:
        # A copy of the event gets an envelope of its own, which the old one would contradict.
        return UnknownEvent({name: value for name, value in data.items() if name not in ("v", "dur", "crc")})
    return event


def _load_object(line: bytes, encoding: str) -> dict[str, Any]:
    try:
        text = line.decode(encoding)
        # Unlike `json.loads`, this accepts no whitespace before the value; whitespace after it is checked below.
        value, end = DECODER.raw_decode(text)
    except (ValueError, RecursionError) as error:
        raise BadLineError("json") from error
    if value.__class__ is not dict or (end != len(text) and text[end:].strip(" \r\t")):
        raise BadLineError("json")
    return value


def stamp_event(event: Event, seq: int, ts: float) -> Event:
    """The event with its position in the log and its time."""
    if isinstance(event, UnknownEvent):
        return UnknownEvent({**event.data, "seq": seq, "ts": ts})
    return changed(require_event(event), seq=seq, ts=ts)


def dumps_stored(event: Event, body: str | None = None) -> str:
    """The JSON of a stamped event as a database stores it: ASCII, so U+0000 and lone surrogates survive every server.

    `body` is the result of `dumps_fields`, if known. Raises `InvalidEventError` for values that JSON cannot express, and
    for values nested too deeply for some readers.
    """
    return f'{{"seq":{event.seq},"ts":{dumps_time(event.ts or 0)},{body or dumps_fields(event)}}}'
