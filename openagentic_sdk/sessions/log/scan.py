"""Read a log from its start or from its last durable line, checking each line against the one before.

A reader receives an exact prefix of what was appended. Where the good lines end, there are two cases. Either a crash
explains the end: the last line is unfinished, or unsynced pages came back as zeros, and no later line claims (`dur`) that
this was on disk; then the log ends there. Or nothing explains the end, and `LogCorruptError` gives its position.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from zlib import crc32

from ...errors import LogCorruptError
from ...events import Event
from ...ground.disk import Disk
from ...ground.frozen import frozen
from .blocks import claimed_dur, line_blocks, offset_of, read_range, settled_size, split_lines
from .damage import name_change
from .line import (
    FORMAT_VERSION,
    HEAD_PATTERN,
    SEAL_LENGTH,
    BadLineError,
    Envelope,
    check_block,
    check_line,
    decode_line,
    read_envelope,
)

# A disk loses whole sectors, so a hole ends at a multiple of this or at the end of the file.
SECTOR_BYTES = 512

# Usually contains the last durable line, so that opening reads one window whatever the size of the log.
_FIRST_WINDOW_BYTES = 1 << 14
_NEAR_BYTES = 1 << 20


@frozen
class Position:
    """A position after a good line: its byte offset, the line's `seq` and checksum, and whether its newline is present."""

    offset: int = 0
    seq: int = 0
    crc: int = 0
    terminated: bool = True

    def finished(self) -> Position:
        """The position after the newline."""
        if self.terminated:
            return self
        return Position(self.offset + 1, self.seq, crc32(b"\n", self.crc))


START = Position()


@frozen
class LogEnd:
    """The end of the good lines of a log. `size` above `position.offset` means that a torn tail follows.

    `dur` is the highest `seq` that a line claims to be on disk and `durable_offset` the end of that line (0 for none),
    `version` the highest format version among the examined lines.
    """

    position: Position
    size: int
    dur: int = 0
    durable_offset: int = 0
    version: int = 0

    @property
    def torn_bytes(self) -> int:
        return self.size - self.position.offset


class LogReader:
    """A reader of the good lines from `position` on. At the end, `position` is the position after the last one.

    `session_id` is for the message of `LogCorruptError`.
    """

    def __init__(self, disk: Disk, fd: int, session_id: str | None, position: Position = START) -> None:
        self.position = position
        self._disk = disk
        self._fd = fd
        self._session_id = session_id

    def __iter__(self) -> Iterator[bytes]:
        """Yield lines without newlines. Raises `LogCorruptError` unless a crash explains where the log ends."""
        for block in self.blocks():
            yield from split_lines(block)

    def events(self, after_seq: int = 0) -> Iterator[Event]:
        """Yield the lines' events after `after_seq`. Raises `LogCorruptError` also for a line that is not an event."""
        seq = self.position.seq
        try:
            for line in self:
                seq += 1
                if seq > after_seq:
                    yield decode_line(line, seq)
        except BadLineError as bad:
            offset = offset_of(self._disk, self._fd, seq)
            raise LogCorruptError(self._session_id, seq, offset, bad.kind) from bad

    def blocks(self) -> Iterator[bytes]:
        """Yield blocks of good lines, with newlines (the log's last line may lack one). Raises `LogCorruptError`."""
        while True:
            before = self.position
            try:
                yield from self._good_blocks()
                return
            except BadLineError as bad:
                # A writer may have cut and rewritten its unfinished line during the read: read again, once.
                if self.position == before:
                    self._judge(bad.kind)
                    return

    def _good_blocks(self) -> Iterator[bytes]:
        for block in line_blocks(self._disk, self._fd, self.position.offset):
            if not block.endswith(b"\n"):
                yield from self._unfinished_line(block)
                return
            here = self.position
            checked = check_block(block, here.seq + 1, here.crc)
            # One checksum over the block is much cheaper than one per line; only a block that does not fit is checked
            # line by line.
            if checked is None:
                yield from self._good_lines(block)
            else:
                seq, crc = checked
                self.position = Position(here.offset + len(block), seq, crc)
                yield block

    def _good_lines(self, block: bytes) -> Iterator[bytes]:
        for line in block[:-1].split(b"\n"):
            here = self.position
            crc = check_line(line, here.seq + 1, here.crc)
            self.position = Position(here.offset + len(line) + 1, here.seq + 1, crc32(b"\n", crc))
            yield line + b"\n"

    def _unfinished_line(self, line: bytes) -> Iterator[bytes]:
        """Yield a last line that lacks only its newline; leave anything else after `position`."""
        # After a power failure a file may be longer than what reached the disk; the rest reads as zeros.
        line = line.rstrip(b"\0")
        here = self.position
        try:
            crc = check_line(line, here.seq + 1, here.crc)
        except BadLineError as bad:
            self._check_form(line, bad.kind)
            return
        self.position = Position(here.offset + len(line), here.seq + 1, crc, terminated=False)
        yield line

    def _judge(self, kind: str) -> None:
        """End the log here if the next line is what a crash leaves; otherwise raise, and describe the damage."""
        here = self.position
        line = split_lines(next(line_blocks(self._disk, self._fd, here.offset)))[0]
        if b"\0" not in line:
            # A crash leaves part of a line, or zeros in it; other bytes in a complete line came later.
            change = name_change(self._disk, self._fd, here.offset, here.seq + 1, here.crc)
            raise LogCorruptError(self._session_id, here.seq + 1, here.offset, kind, change.name, change.text)
        # These zeros are not a write that never reached the disk: a later line was written when this one had been
        # synced.
        if claimed_dur(self._disk, self._fd, here.offset) > here.seq:
            kind = "durable-loss"
        # Zeros that end inside a sector were written by a program: no disk loses part of a sector.
        elif any((here.offset + hole.end()) % SECTOR_BYTES == 0 for hole in re.finditer(rb"\0+", line)):
            self._check_form(line, kind)
            return
        raise LogCorruptError(self._session_id, here.seq + 1, here.offset, kind)

    def _check_form(self, line: bytes, kind: str) -> None:
        """Raise for a file whose first line does not begin like a log's, or that contains other data: no crash causes that.

        A tail that is too short to contain an event in any form is left to be moved aside.
        """
        begins = line.startswith(b'{"'[: len(line)]) or not line[:SECTOR_BYTES].strip(b"\0")
        holds_others = b"\0" not in line and HEAD_PATTERN.search(line, 1)
        if self.position.seq == 0 and len(line) > SEAL_LENGTH and (not begins or holds_others):
            text = "its encoding, line ends or layout differ from those that were written (edited)"
            raise LogCorruptError(self._session_id, 1, 0, kind, "edited", text)


def cut_block(block: bytes, start: Position, lines: int) -> tuple[bytes, Position]:
    """The first lines of a good block that begins at `start`, and the position where they end."""
    part = b"".join(line + b"\n" for line in split_lines(block)[:lines])
    return part, Position(start.offset + len(part), start.seq + lines, crc32(part, start.crc))


def position_behind(disk: Disk, fd: int, seq: int) -> Position | None:
    """The position after line `seq`, found by counting lines; None unless that line is sealed and complete."""
    offset = offset_of(disk, fd, seq + 1)
    line = read_range(disk, fd, offset_of(disk, fd, seq), offset)
    envelope = read_envelope(line[:-1]) if line.endswith(b"\n") else None
    return Position(offset, seq, envelope.crc_behind) if envelope and envelope.seq == seq else None


def find_end(disk: Disk, fd: int, session_id: str | None) -> LogEnd:
    """Find where the good lines of a log end, from its last lines: only those that may not be on disk yet are checked.

    Raises `LogCorruptError` for damage in these.
    """
    size = settled_size(disk, fd)
    last, anchor = _find_anchor(disk, fd, size)
    reader = LogReader(disk, fd, session_id, anchor)
    version = last.version if last else 0
    for line in reader:
        # The common case without parsing; only a line of another version needs its envelope here.
        if not line.startswith(b'{"v":1,'):
            envelope = read_envelope(line)
            version = max(version, envelope.version if envelope else 0)
    return LogEnd(reader.position, size, last.dur if last else 0, anchor.offset, version)


def _find_anchor(disk: Disk, fd: int, size: int) -> tuple[Envelope | None, Position]:
    """The last envelope in the log, and the position after the line that it claims to be on disk (`START` if unknown)."""
    window_bytes = _FIRST_WINDOW_BYTES
    while True:
        start = max(0, size - window_bytes)
        window = read_range(disk, fd, start, size)
        last = _last_envelope(window, whole=start == 0)
        # Trusted without reading what is before it: that line's writer saw all of it on disk, sealed by the same chain.
        anchor = _line_of(window, start, last.version, last.dur) if last and last.dur else None
        if anchor or start == 0 or (last and last.dur == 0):
            return last, anchor or START
        window_bytes *= 4


def find_seq(disk: Disk, fd: int, seq: int) -> Position:
    """The position after line `seq` or an earlier one: a near one if `seq` is in the last MiB or claimed to be on disk."""
    size = disk.fstat(fd).st_size
    window_bytes = _FIRST_WINDOW_BYTES
    while seq > 0 and window_bytes <= _NEAR_BYTES:
        start = max(0, size - window_bytes)
        window = read_range(disk, fd, start, size)
        position = _line_of(window, start, FORMAT_VERSION, seq)
        if position or start == 0:
            return position or START
        last = _last_envelope(window, whole=False)
        # After the synced part the log may end at a hole, which only reading from there on would show.
        if last and seq <= last.dur:
            return _bisect(disk, fd, size, seq, last.seq)
        window_bytes *= 4
    return START


def _bisect(disk: Disk, fd: int, size: int, seq: int, last_seq: int) -> Position:
    """The position after a line not far before `seq`, found by bisection; the start if the numbers do not increase."""
    nearest, low, high = START, 0, size
    while high - low > _FIRST_WINDOW_BYTES:
        middle = (low + high) // 2
        here = _line_behind(disk, fd, middle, min(high, middle + _NEAR_BYTES))
        # A line without an envelope, as older tools wrote them, has no number to compare: look before it.
        if here is None or here.seq > seq:
            high = middle
        elif nearest.seq < here.seq:
            nearest, low = here, here.offset
        else:
            return START
        # Numbers out of order mean damage or a foreign log: reading from the start finds and names it.
        if here is not None and not nearest.seq <= here.seq <= last_seq:
            return START
    return nearest


def _line_behind(disk: Disk, fd: int, offset: int, end: int) -> Position | None:
    """The position after the first line that begins after `offset`; None if it is damaged or does not end before `end`."""
    window_bytes = _FIRST_WINDOW_BYTES
    while True:
        window = read_range(disk, fd, offset, min(end, offset + window_bytes))
        start = window.find(b"\n") + 1
        stop = window.find(b"\n", start) if start else -1
        if stop >= 0:
            envelope = read_envelope(window[start:stop])
            return Position(offset + stop + 1, envelope.seq, envelope.crc_behind) if envelope else None
        if offset + window_bytes >= end:
            return None
        window_bytes *= 4


def _last_envelope(window: bytes, *, whole: bool) -> Envelope | None:
    end = len(window)
    while end > 0:
        start = window.rfind(b"\n", 0, end) + 1
        if start == 0 and not whole:
            return None
        envelope = read_envelope(window[start:end])
        if envelope:
            return envelope
        end = start - 1
    return None


def _line_of(window: bytes, start: int, version: int, seq: int) -> Position | None:
    head = b'\n{"v":%d,"seq":%d,' % (version, seq)
    at = window.rfind(head) + 1
    if at == 0 and not (start == 0 and window.startswith(head[1:])):
        return None
    end = window.find(b"\n", at)
    envelope = read_envelope(window[at:end])
    return Position(start + end + 1, seq, envelope.crc_behind) if envelope else None
