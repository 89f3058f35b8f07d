"""Infer from the lines of a damaged log what happened to them: edited, deleted, doubled, moved or interleaved.

Each line contains its number and the checksum of all lines before it. So a line in the wrong place still shows where it
belongs, and later lines can be proved to be as written although the chain from the log's start is broken.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator
from typing import Any
from zlib import crc32

from ...ground.disk import Disk
from ...ground.frozen import frozen
from ...serialization import event_to_dict
from .blocks import line_blocks, offset_of, read_range, split_lines
from .line import HEAD, HEAD_PATTERN, SEAL_LENGTH, BadLineError, Envelope, check_line, decode_line, read_envelope


@frozen
class LogDamage:
    """A change to a log: `name` is `edited`, `deleted`, `doubled`, `moved`, `interleaved` or `line ends`; `text` describes
    it with the numbers of the events.
    """

    name: str
    text: str


@frozen
class Fragment:
    """An event after damage. `is_proved` is true if the checksum of the line before confirms it; otherwise it only looks
    intact.
    """

    seq: int
    event: dict[str, Any]
    is_proved: bool


def name_change(disk: Disk, fd: int, offset: int, expected: int, crc: int) -> LogDamage:
    """Determine the change that explains why line `expected`, at `offset` after checksum `crc`, is not as written."""
    lines = _lines(disk, fd, offset)
    line = next(lines)
    # First, because an editor that converts line ends changes every line, and then nothing else is wrong.
    if (plain := as_written(line, offset)) != line:
        try:
            check_line(plain, expected, crc)
        except BadLineError:
            line = plain
        else:
            return LogDamage(
                "line ends", "its line end was converted to CRLF, or a byte order mark put before it (line ends)"
            )
    envelope = read_envelope(line)
    # JSON escapes the quotes inside strings, so a second head in a line is hardly ever part of its event.
    if HEAD_PATTERN.search(line, 1):
        return LogDamage("interleaved", "pieces of two lines are mixed (interleaved)")
    if envelope is None:
        return LogDamage("edited", "its bytes differ from those that were written (edited)")
    if envelope.seq == expected:
        follower = next(lines, b"")
        following = read_envelope(follower)
        # The next line fits the seal at the end of this one: bytes from within one line up to within a later one are
        # missing.
        if following is not None and following.seq > expected + 1 and _follows(follower, envelope):
            return LogDamage(
                "deleted", f"bytes from within it up to within event {following.seq - 1} are missing (deleted)"
            )
        what = "its bytes" if expected == 1 else "its bytes, or those of the event before it,"
        return LogDamage("edited", f"{what} differ from those that were written (edited)")
    if envelope.seq > expected:
        has_expected = False
        for later in lines:
            if later == line:
                return LogDamage("doubled", f"event {envelope.seq} is here as well as in its own place (doubled)")
            there = read_envelope(later)
            has_expected = has_expected or (there is not None and there.seq == expected)
        if has_expected:
            return LogDamage("moved", f"event {envelope.seq} is in its place, and event {expected} comes later (moved)")
        missing = f"events {expected} to {envelope.seq - 1} are" if envelope.seq > expected + 1 else "it is"
        return LogDamage("deleted", f"{missing} missing: event {envelope.seq} is here (deleted)")
    start, end = offset_of(disk, fd, envelope.seq), offset_of(disk, fd, envelope.seq + 1)
    if read_range(disk, fd, start, end) == line + b"\n":
        return LogDamage("doubled", f"event {envelope.seq} is here a second time (doubled)")
    return LogDamage("interleaved", f"another event {envelope.seq} is here, from a second writer or log (interleaved)")


def as_written(line: bytes, offset: int) -> bytes:
    """The line without the additions of editors on other systems: a trailing carriage return, a byte order mark."""
    if offset == 0:
        line = line.removeprefix(BOM_UTF8)
    return line[:-1] if line.endswith(b"\r") and line.startswith(HEAD) else line


def fragments(disk: Disk, fd: int, offset: int, good: int) -> Iterator[Fragment]:
    """Yield the intact events after damage at `offset`, in a log whose first `good` events are intact."""
    before: Envelope | None = None
    for line in _lines(disk, fd, offset):
        envelope = read_envelope(line)
        is_proved = envelope is not None and before is not None and _follows(line, before)
        # A line that claims to follow the previous one, and does not, is damaged.
        is_damaged = before is not None and envelope is not None and envelope.seq == before.seq + 1 and not is_proved
        is_first = before is None and (envelope is None or envelope.seq <= good + 1)
        before = envelope
        if envelope is None or is_damaged or is_first or envelope.seq <= good:
            continue
        try:
            event = decode_line(line, envelope.seq)
        except BadLineError:
            continue
        yield Fragment(envelope.seq, event_to_dict(event), is_proved)


def _follows(line: bytes, before: Envelope) -> bool:
    """Whether the line's seal shows that it was written directly after the line of `before`."""
    return line.endswith(b',"crc":"%08x"}' % crc32(line[:-SEAL_LENGTH], before.crc_behind))


def _lines(disk: Disk, fd: int, offset: int) -> Iterator[bytes]:
    """Yield the complete lines from `offset` on."""
    for block in line_blocks(disk, fd, offset):
        if block.endswith(b"\n"):
            yield from split_lines(block)
