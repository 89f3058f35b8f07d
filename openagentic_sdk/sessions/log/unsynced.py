"""A log whose sync failed: its file may show data that is only in memory, and no later sync of that file proves otherwise.

Linux drops the pages that it could not write and reports success for the next sync, while reads still return them. So the
log is marked, and whoever opens it for writing first copies its contents to a new file, whose own sync counts.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ...ground.disk import Disk, whole_file, write_new_file
from ...ground.system import BINARY, NO_FOLLOW
from .folder import SUMMARY_NAME
from .lock import hold, let_go, try_lock

# The mark is an empty file, <log>.unsynced-<size of the log>: it requires no disk block.
MARK = ".unsynced-"

# Devices and inodes of the logs that this process does not trust, in case no mark could be stored.
DISTRUSTED: set[tuple[int, int]] = set()

_CHUNK_BYTES = 1 << 20


def distrust(disk: Disk, fd: int, path: Path, size: int) -> None:
    """Mark an open log with `size` good bytes, so that no later sync of it is trusted.

    The mark must outlive this process, but not the operating system: after a reboot, whatever is read comes from the disk.
    """
    info = os.fstat(fd)
    DISTRUSTED.add((info.st_dev, info.st_ino))
    mark = str(path.with_name(f"{path.name}{MARK}{size}"))
    try:
        disk.close(disk.open(mark, os.O_WRONLY | os.O_CREAT | BINARY | NO_FOLLOW, 0o600))
    except OSError:
        # No space for another file: rename a cache to the mark.
        with suppress(OSError):
            disk.rename(str(path.with_name(SUMMARY_NAME)), mark)


def marked_size(log_name: str, names: Iterable[str]) -> int | None:
    """The largest size of the log according to the marks among the `names` of a folder; None without marks."""
    sizes = [name.removeprefix(log_name + MARK) for name in names if name.startswith(log_name + MARK)]
    # A name that anybody can create must not stop the session from being opened: an invalid size counts as 0.
    return max((int(size) if size.isdecimal() else 0 for size in sizes), default=None)


def remove_marks(disk: Disk, path: Path, names: Iterable[str]) -> None:
    """Remove the marks of a log that is in a new file and contains a report of what the old one lost."""
    for name in names:
        if name.startswith(path.name + MARK):
            with suppress(FileNotFoundError):
                disk.unlink(str(path.with_name(name)))


def renew_log(disk: Disk, fd: int, path: Path) -> int:
    """Copy the contents of an open, locked log to a new, synced file that replaces it; return the new file, open and locked.

    Until this has returned, the mark is kept, and a second attempt starts over.
    """
    info = disk.fstat(fd)
    new_fd = replace_log(disk, path, _chunks(disk, fd), mode=info.st_mode & 0o777)
    hold(new_fd)
    DISTRUSTED.discard((info.st_dev, info.st_ino))
    return new_fd


def replace_log(
    disk: Disk, path: Path, blocks: Iterable[bytes], *, mode: int = 0o600, stale: Sequence[Path] = ()
) -> int:
    """Replace a log, whose lock the caller holds, with a new, synced file; return that file, open and locked.

    `stale` are caches of the old log, which are removed first. Raises `OSError`.
    """
    fd = -1
    try:
        # Always the same name: a writer that dies here leaves one copy of the log, which the next attempt replaces.
        with whole_file(disk, path, unfinished=path.with_name(f".{path.name}.tmp")) as unfinished:
            write_new_file(disk, unfinished, blocks, sync=True, mode=mode)
            fd = disk.open(str(unfinished), os.O_RDWR | os.O_APPEND | BINARY | NO_FOLLOW)
            try_lock(fd)  # nobody may write to the new log before all of this is done
            for cache in stale:
                with suppress(FileNotFoundError):
                    disk.unlink(str(cache))
    except BaseException:  # after any error, the lock must be released
        if fd >= 0:
            let_go(fd)
            disk.close(fd)
        raise
    return fd


def _chunks(disk: Disk, fd: int) -> Iterator[bytes]:
    disk.lseek(fd, 0, os.SEEK_SET)
    while chunk := disk.read(fd, _CHUNK_BYTES):
        yield chunk
