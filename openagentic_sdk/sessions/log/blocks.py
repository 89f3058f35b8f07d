"""Read a log's bytes as whole lines, without checking them."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ...ground.disk import Disk
from .line import read_envelope

_CHUNK_BYTES = 1 << 18


def split_lines(block: bytes) -> list[bytes]:
    """The lines of a block, without newlines; `bytes.splitlines` would also split at carriage returns."""
    return block.removesuffix(b"\n").split(b"\n")


def settled_size(disk: Disk, fd: int) -> int:
    """The size of the file after any write in progress, so that a batch is read as a whole or not at all.

    During a write, Linux grows the file visibly, page by page. Searching for a hole makes ext4 and tmpfs wait for its end
    (they take the inode's lock, `ext4_llseek`); XFS and Btrfs block readers themselves.
    """
    size, hole = disk.lseek(fd, 0, os.SEEK_END), getattr(os, "SEEK_HOLE", None)
    if size == 0 or hole is None:
        return size
    try:
        # The end of the file counts as a hole, so that the search always succeeds on a file without any.
        return max(size, disk.lseek(fd, size - 1, hole))
    except OSError:  # a file system without support for finding holes
        return size


def line_blocks(disk: Disk, fd: int, offset: int) -> Iterator[bytes]:
    """Yield blocks of complete lines from `offset` on; bytes after the file's last newline, if any, come last."""
    rest: list[bytes] = []
    # Fixed at the start: a writer that appends faster than this reads would otherwise never let it end.
    end = settled_size(disk, fd)
    while offset < end:
        # The handle has one position: lseek each time, because the caller may use it between two chunks.
        disk.lseek(fd, offset, os.SEEK_SET)
        chunk = disk.read(fd, min(_CHUNK_BYTES, end - offset))
        if not chunk:
            break
        offset += len(chunk)
        cut = chunk.rfind(b"\n") + 1
        if cut:
            yield b"".join([*rest, chunk[:cut]])
            rest = []
        # Joined only once the line is complete: adding chunk by chunk to a line of megabytes would copy it again each
        # time.
        rest.append(chunk[cut:])
    if any(rest):
        yield b"".join(rest)


def offset_of(disk: Disk, fd: int, seq: int) -> int:
    """The offset at which line `seq` begins; the end of the file if it has fewer lines."""
    offset, lines_before = 0, seq - 1
    for block in line_blocks(disk, fd, 0):
        lines = block.count(b"\n")
        if lines > lines_before:
            return offset + sum(len(line) + 1 for line in split_lines(block)[:lines_before])
        offset, lines_before = offset + len(block), lines_before - lines
    return offset


def claimed_dur(disk: Disk, fd: int, offset: int) -> int:
    """The highest `dur` of the complete lines from `offset` on, ignoring damaged ones; 0 without any."""
    blocks = (block for block in line_blocks(disk, fd, offset) if block.endswith(b"\n"))
    envelopes = (read_envelope(line) for block in blocks for line in split_lines(block))
    return max((envelope.dur for envelope in envelopes if envelope), default=0)


def read_range(disk: Disk, fd: int, start: int, end: int) -> bytes:
    """Read the bytes from `start` to `end`, fewer at end of file."""
    disk.lseek(fd, start, os.SEEK_SET)
    parts: list[bytes] = []
    while start < end and (part := disk.read(fd, end - start)):
        parts.append(part)
        start += len(part)
    return b"".join(parts)
