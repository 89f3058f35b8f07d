"""A log's bytes by whole lines, unchecked."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ...disk import Disk
from .line import read_envelope

_CHUNK_BYTES = 1 << 18


def split_lines(block: bytes) -> list[bytes]:
    """The lines of a block, without their newlines; `bytes.splitlines` would split at a carriage return too."""
    return block.removesuffix(b"\n").split(b"\n")


def line_blocks(disk: Disk, fd: int, offset: int) -> Iterator[bytes]:
    """Many finished lines at a time; what stands behind the file's last newline, if anything, comes last."""
    rest: list[bytes] = []
    while True:
        # One position per file: lseek each time, since the caller may use the handle between two chunks.
        disk.lseek(fd, offset, os.SEEK_SET)
        chunk = disk.read(fd, _CHUNK_BYTES)
        if not chunk:
            break
        offset += len(chunk)
        cut = chunk.rfind(b"\n") + 1
        if cut:
            yield b"".join([*rest, chunk[:cut]])
            rest = []
        rest.append(chunk[cut:])
    if any(rest):
        yield b"".join(rest)


def offset_of(disk: Disk, fd: int, seq: int) -> int:
    """Where line `seq` begins."""
    offset, lines_before = 0, seq - 1
    for block in line_blocks(disk, fd, 0):
        lines = block.count(b"\n")
        if lines > lines_before:
            return offset + sum(len(line) + 1 for line in split_lines(block)[:lines_before])
        offset, lines_before = offset + len(block), lines_before - lines
    return offset


def claimed_dur(disk: Disk, fd: int, offset: int) -> int:
    """The highest `dur` of the finished lines from `offset` on, damaged ones left out."""
    blocks = (block for block in line_blocks(disk, fd, offset) if block.endswith(b"\n"))
    envelopes = (read_envelope(line) for block in blocks for line in split_lines(block))
    return max((envelope.dur for envelope in envelopes if envelope), default=0)


def read_range(disk: Disk, fd: int, start: int, end: int) -> bytes:
    """The bytes from `start` to `end`, fewer when the file ends before."""
    disk.lseek(fd, start, os.SEEK_SET)
    parts: list[bytes] = []
    while start < end and (part := disk.read(fd, end - start)):
        parts.append(part)
        start += len(part)
    return b"".join(parts)
