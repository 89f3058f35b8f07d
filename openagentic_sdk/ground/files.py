"""Open and replace files without races: exactly the resolved path is opened, and no link is followed.

A path is resolved once, and what is opened afterwards is the resolved path, reached folder by folder without following a
single link. A link swapped in meanwhile makes the call fail; it never leads elsewhere.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from ..errors import ToolError
from .frozen import frozen

# O_PATH requires no permission to list a folder, only to search it.
_PASS_THROUGH = os.O_PATH if sys.platform == "linux" else os.O_RDONLY
_FOLDER_FLAGS = _PASS_THROUGH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# `O_NONBLOCK`, because opening a FIFO would otherwise wait for a writer; it has no effect on a regular file.
READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
LIST_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
CHUNK_BYTES = 1 << 20
# The most characters of a file's name in its temporary name: names have at most 255 bytes, characters up to four.
_KEPT_LETTERS = 50


# Each with its number of users, so that a lock is removed with its last one and the table cannot grow forever.
_path_locks: dict[str, tuple[threading.Lock, int]] = {}
_path_locks_guard = threading.Lock()


@contextmanager
def change_lock(real: str) -> Iterator[None]:
    """Hold a lock on this file during the block, within this process: checking and replacing it must not interleave."""
    with _path_locks_guard:
        lock, users = _path_locks.get(real, (threading.Lock(), 0))
        _path_locks[real] = lock, users + 1
    try:
        with lock:
            yield
    finally:
        with _path_locks_guard:
            users = _path_locks[real][1] - 1
            if users:
                _path_locks[real] = lock, users
            else:
                del _path_locks[real]


@contextmanager
def open_folder(real: str, *, create: bool = False) -> Iterator[int]:
    """Yield a descriptor of the folder, for use as `dir_fd`; with `create`, create missing folders.

    Raises `ToolError` if a name on the way is a link.
    """
    # Name by name: `O_NOFOLLOW` applies to the last name of a path only.
    fd = os.open("/", _FOLDER_FLAGS)
    try:
        for name in real.split("/"):
            if name:
                inner = _enter(fd, name, real, create)
                os.close(fd)
                fd = inner
        yield fd
    finally:
        os.close(fd)


def _enter(fd: int, name: str, real: str, create: bool) -> int:
    try:
        return os.open(name, _FOLDER_FLAGS, dir_fd=fd)
    except FileNotFoundError:
        if not create:
            raise FileNotFoundError(f"the folder {real!r} does not exist") from None
        with suppress(FileExistsError):  # another process created it; opening shows whether it is a folder
            os.mkdir(name, dir_fd=fd)
        return os.open(name, _FOLDER_FLAGS, dir_fd=fd)
    except OSError as error:
        # Systems disagree on the error for a link (ELOOP, ENOTDIR, EMLINK), so look at its type.
        if stat.S_ISLNK(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
            raise ToolError(f"{name!r} in {real!r} became a link while it was being opened: try again") from None
        if isinstance(error, NotADirectoryError):
            raise NotADirectoryError(f"{name!r} in {real!r} is a file, not a folder") from None
        raise OSError(error.errno, error.strerror, real) from None


@contextmanager
def open_file(real: str) -> Iterator[int]:
    """Yield a read descriptor of the regular file at `real`, a resolved path. Raises `ToolError` for other kinds."""
    folder, name = os.path.split(real)
    with open_folder(folder) as folder_fd:
        # Opening a device can have effects, so check the file type before opening, and again after it.
        _refuse_special(os.stat(name or ".", dir_fd=folder_fd, follow_symlinks=False).st_mode, real)
        try:
            fd = os.open(name, READ_FLAGS, dir_fd=folder_fd)
        except OSError as error:
            raise OSError(error.errno, error.strerror, real) from None
    try:
        _refuse_special(os.fstat(fd).st_mode, real)
        yield fd
    finally:
        os.close(fd)


_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISDIR, "a folder: use Glob to see what is in it"),
    (stat.S_ISLNK, "a link that appeared while it was being opened: try again"),
    (stat.S_ISFIFO, "a pipe, not a file: nothing was read"),
    (stat.S_ISSOCK, "a socket, not a file: nothing was read"),
    (stat.S_ISCHR, "a device, not a file: nothing was read"),
    (stat.S_ISBLK, "a device, not a file: nothing was read"),
)


def _refuse_special(mode: int, real: str) -> None:
    for is_kind, words in _KINDS:
        if is_kind(mode):
            raise ToolError(f"{real} is {words}")


def iter_bytes(fd: int) -> Iterator[bytes]:
    """Yield the remaining bytes of a file in chunks of at most `CHUNK_BYTES`."""
    while chunk := os.read(fd, CHUNK_BYTES):
        yield chunk


def read_at_most(chunks: Iterator[bytes], max_bytes: int) -> bytes | None:
    """Return all bytes, or None if there are more than `max_bytes`: a file may grow faster than it is read."""
    pieces, size = [], 0
    for chunk in chunks:
        size += len(chunk)
        if size > max_bytes:
            return None
        pieces.append(chunk)
    return b"".join(pieces)


@frozen
class FileSnapshot:
    """A file as read: its bytes, their digest, and the status that must be unchanged when it is replaced."""

    data: bytes
    sha256: str
    status: os.stat_result


def read_snapshot(real: str, max_bytes: int) -> FileSnapshot | None:
    """Read the whole file; None if it does not exist. Raises `ToolError` if it exceeds `max_bytes`."""
    try:
        with open_file(real) as fd:
            status = os.fstat(fd)
            # Files in /proc have size 0 and any content: the size alone decides nothing.
            data = read_at_most(iter_bytes(fd), max_bytes) if status.st_size <= max_bytes else None
            if data is None:
                raise ToolError(f"{real} exceeds the limit of {max_bytes:,} bytes for changes")
    except FileNotFoundError:
        return None
    return FileSnapshot(data, digest_bytes(data), status)


def digest_bytes(data: bytes) -> str:
    """The SHA-256 by which the log identifies this content."""
    return hashlib.sha256(data).hexdigest()


def digest_file(real: str) -> str | None:
    """Return the SHA-256 of a file; None if it does not exist. Raises `ToolError` unless it is a regular file."""
    digest = hashlib.sha256()
    try:
        with open_file(real) as fd:
            for chunk in iter_bytes(fd):
                digest.update(chunk)
    except FileNotFoundError:
        return None
    return digest.hexdigest()


def file_status(real: str) -> os.stat_result | None:
    """Return the status of a regular file; None if it does not exist. Raises `ToolError` for other kinds of file."""
    folder, name = os.path.split(real)
    try:
        with open_folder(folder) as folder_fd:
            status = os.stat(name or ".", dir_fd=folder_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
    _refuse_special(status.st_mode, real)
    return status


def file_state(real: str) -> tuple[str | None, int] | None:
    """Return the digest and permissions of a file; None if it does not exist, `(None, 0)` if it cannot be read."""
    try:
        status = file_status(real)
        return None if status is None else (digest_file(real), stat.S_IMODE(status.st_mode))
    except (ToolError, OSError):
        return None, 0


def replace_file(real: str, data: bytes, before: os.stat_result | None, mode: int | None = None) -> list[str]:
    """Replace `real` with `data` atomically: readers see the old file or the new one, never a part of it.

    `before` is the status of the file when it was checked; None means that it must not exist (`FileExistsError` otherwise).
    Owner and mode are kept unless `mode` sets other permissions; missing folders are created. Returns notes on what could
    not be kept. Raises `ToolError` if the file has changed since the check.
    """
    folder, name = os.path.split(real)
    with open_folder(folder, create=before is None) as folder_fd:
        temporary = f".{name[:_KEPT_LETTERS]}.{os.urandom(6).hex()}.tmp"
        # In the same folder, because a rename across file systems is not atomic; private until it has the old file's
        # mode.
        fd = os.open(temporary, _CREATE_FLAGS, 0o600 if before else 0o666, dir_fd=folder_fd)
        try:
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(fd, rest) :]
                notes = _keep_owner_and_mode(fd, before)
                if mode is not None:
                    os.fchmod(fd, mode)
                # Before the rename: otherwise a power failure could leave the new name with an empty file.
                os.fsync(fd)
            finally:
                os.close(fd)
            _move_into_place(folder_fd, temporary, name, real, before)
        except BaseException:  # also on Ctrl-C: delete the temporary file
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder_fd)
            raise
        _sync_folder(folder_fd)
    return notes


def sweep_unfinished(real: str) -> None:
    """Remove what a `replace_file` of this path left behind when its process was killed."""
    folder, name = os.path.split(real)
    unfinished = re.compile(rf"\.{re.escape(name[:_KEPT_LETTERS])}\.[0-9a-f]{{12}}\.tmp")
    with suppress(OSError, ToolError), open_folder(folder) as folder_fd:
        listed = os.open(".", LIST_FLAGS, dir_fd=folder_fd)
        try:
            for entry in os.listdir(listed):
                if unfinished.fullmatch(entry):
                    os.unlink(entry, dir_fd=folder_fd)
        finally:
            os.close(listed)


def remove_file(real: str, before: os.stat_result) -> None:
    """Remove the file `real` if it is still the one that was checked. Raises `ToolError` if it has changed."""
    folder, name = os.path.split(real)
    with open_folder(folder) as folder_fd:
        _check_unchanged(folder_fd, name, real, before)
        os.unlink(name, dir_fd=folder_fd)
        _sync_folder(folder_fd)


def _sync_folder(folder_fd: int) -> None:
    """Make the folder's names durable. A writable folder that cannot be listed cannot be synced; the files in it can."""
    with suppress(PermissionError):
        listed = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder_fd)
        try:
            os.fsync(listed)
        finally:
            os.close(listed)


def _keep_owner_and_mode(fd: int, before: os.stat_result | None) -> list[str]:
    if before is None:
        return []
    notes = []
    mine = os.fstat(fd)
    if (mine.st_uid, mine.st_gid) != (before.st_uid, before.st_gid):
        try:
            os.fchown(fd, before.st_uid, before.st_gid)
        except PermissionError:
            notes.append(f"its owner was {before.st_uid}:{before.st_gid} and could not be kept")
    # After `fchown`, which clears the set-user-ID and set-group-ID bits.
    os.fchmod(fd, stat.S_IMODE(before.st_mode))
    if before.st_nlink > 1:
        notes.append(f"it had {before.st_nlink} names (hard links); the others keep the old content")
    return notes


def _move_into_place(folder_fd: int, temporary: str, name: str, real: str, before: os.stat_result | None) -> None:
    if before is not None:
        _check_unchanged(folder_fd, name, real, before)
        os.replace(temporary, name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
        return
    try:  # unlike a rename, a link never replaces anything
        os.link(temporary, name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd, follow_symlinks=False)
    except FileExistsError:
        raise FileExistsError(
            f"{real} exists: Read it and set overwrite to replace it, or choose another name"
        ) from None
    except OSError:  # a file system without hard links: an empty file claims the name instead
        os.close(os.open(name, _CREATE_FLAGS, 0o666, dir_fd=folder_fd))
        os.replace(temporary, name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
    else:
        os.unlink(temporary, dir_fd=folder_fd)


def _check_unchanged(folder_fd: int, name: str, real: str, before: os.stat_result) -> None:
    try:
        now = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    except FileNotFoundError:
        now = None
    if now is None or _identity(now) != _identity(before):
        raise ToolError(f"{real} changed while it was being replaced, so nothing was written: read it again")


def _identity(status: os.stat_result) -> tuple[int, int, int, int]:
    # Without the times of access and of status changes: a backup or a new hard link changes those, but not the content.
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
