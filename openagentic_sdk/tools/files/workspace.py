"""Every file access of the file tools: what a path means, opening it without races, and putting a new file in its place.

A path is resolved once, and what is opened afterwards is exactly the resolved path, reached folder by folder without
following a single link. A link that is swapped in between makes the call fail; it never leads elsewhere.
Which paths are permitted is the permission gate's decision: it sees the same `ResolvedPath`.
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

from ...errors import ToolError
from ...frozen import frozen
from ..base import ToolContext

# O_PATH needs no permission to list a folder, only to pass through it.
_PASS_THROUGH = os.O_PATH if sys.platform == "linux" else os.O_RDONLY
_FOLDER_FLAGS = _PASS_THROUGH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
LIST_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

CHUNK_BYTES = 1 << 20

# One change of a file at a time in this process: checking what is there and replacing it must not interleave.
change_lock = threading.Lock()


@frozen
class ResolvedPath:
    """What a path means: `lexical` is absolute with `.` and `..` taken out, `real` has every link followed too.

    Neither needs to exist. Rules that deny match either, rules that allow need both; tools open `real`.
    """

    lexical: str
    real: str


def resolve_path(path: str, cwd: str) -> ResolvedPath:
    """What `path` means in the folder `cwd`. `~` alone and a leading `~/` are the home folder; nothing else is expanded.

    Raises `ToolError` for an empty path, one with a NUL, and one that means two things because its `..` follows a link.
    """
    if not path or "\0" in path:
        raise ToolError(f"{path!r} is no path: give the path of a file, absolute or relative to {cwd}")
    expanded = os.path.expanduser(path) if path == "~" or path.startswith("~/") else path
    # POSIX keeps a leading double slash apart; the kernel does not.
    joined = re.sub("^//+", "/", os.path.join(os.path.abspath(cwd), expanded))
    lexical = os.path.normpath(joined)
    real = os.path.realpath(lexical)
    if ".." in joined.split("/") and os.path.realpath(joined) != real:
        raise ToolError(f"{path!r} goes through a link and back up with '..': name the file without '..'")
    return ResolvedPath(lexical, real)


def shown_path(path: str, cwd: str) -> str:
    """The path as results show it: relative to `cwd` when it is below, else absolute."""
    base = os.path.abspath(cwd)
    if path == base:
        return "."
    prefix = base if base.endswith("/") else base + "/"
    return path[len(prefix) :] if path.startswith(prefix) else path


def check_cancelled(ctx: ToolContext) -> None:
    """Raise `ToolError` when the call is to stop."""
    if ctx.cancelled.is_set():
        raise ToolError("stopped: the call was cancelled")


@contextmanager
def open_folder(real: str, *, create: bool = False) -> Iterator[int]:
    """A descriptor of the folder, for `dir_fd`; with `create`, folders that are missing are made."""
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
            raise FileNotFoundError(f"there is no folder {real!r}") from None
        with suppress(FileExistsError):  # somebody else made it; opening says whether it is a folder
            os.mkdir(name, dir_fd=fd)
        return os.open(name, _FOLDER_FLAGS, dir_fd=fd)
    except OSError as error:
        if stat.S_ISLNK(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
            raise ToolError(f"{name!r} in {real!r} became a link while it was being opened: try again") from None
        if isinstance(error, NotADirectoryError):
            raise NotADirectoryError(f"{name!r} in {real!r} is a file, not a folder") from None
        raise OSError(error.errno, error.strerror, real) from None


def check_folder(path: ResolvedPath, ctx: ToolContext) -> None:
    """Raise `FileNotFoundError` or `NotADirectoryError`, with what to do, unless the path is a folder."""
    if os.path.isdir(path.real):
        return
    if os.path.lexists(path.real):
        raise NotADirectoryError(f"{shown_path(path.lexical, ctx.cwd)} is a file: give the folder that holds it")
    raise missing_file(path, ctx.cwd, "folder")


@contextmanager
def open_file(real: str) -> Iterator[int]:
    """A descriptor to read the regular file `real` (a resolved path) from; anything else is refused by its kind."""
    folder, name = os.path.split(real)
    with open_folder(folder) as folder_fd:
        # Opening a device can already do something, so its kind is looked at first, and again on what was opened.
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
    """What is left to read, in pieces of at most `CHUNK_BYTES`."""
    while chunk := os.read(fd, CHUNK_BYTES):
        yield chunk


def read_at_most(chunks: Iterator[bytes], max_bytes: int) -> bytes | None:
    """All of it, or None when it is more than `max_bytes`: a file may grow faster than it is read."""
    pieces, size = [], 0
    for chunk in chunks:
        size += len(chunk)
        if size > max_bytes:
            return None
        pieces.append(chunk)
    return b"".join(pieces)


def missing_file(path: ResolvedPath, cwd: str, noun: str = "file") -> FileNotFoundError:
    """The error for a path where nothing is, with names in its folder that look alike."""
    folder, name = os.path.split(path.real)
    text = f"there is no {noun} {shown_path(path.lexical, cwd)!r} (working directory {os.path.abspath(cwd)})"
    try:
        names = os.listdir(folder)[:2_000]
    except OSError:
        names = []  # a hint only: a folder that cannot be listed has none to give
    from difflib import get_close_matches

    folded = {entry.casefold(): entry for entry in names}
    near = [repr(folded[key]) for key in get_close_matches(name.casefold(), folded, n=3, cutoff=0.7)]
    return FileNotFoundError(f"{text}: did you mean {' or '.join(near)}?" if near else f"{text}: use Glob to find it")


# --- reading and replacing a whole file -------------------------------------------------------------------------------


@frozen
class FileSnapshot:
    """A file as it was read: its bytes, their digest, and what must be the same when it is replaced."""

    data: bytes
    sha256: str
    status: os.stat_result


def read_snapshot(real: str, max_bytes: int) -> FileSnapshot | None:
    """The whole file, or None when there is none. Raises `ToolError` when it is larger than `max_bytes`."""
    try:
        with open_file(real) as fd:
            status = os.fstat(fd)
            data = read_at_most(iter_bytes(fd), max_bytes) if status.st_size <= max_bytes else None
            if data is None:
                raise ToolError(f"{real} has more than the {max_bytes:,} bytes that can be changed")
    except FileNotFoundError:
        return None
    return FileSnapshot(data, digest_bytes(data), status)


def digest_bytes(data: bytes) -> str:
    """The sha256 by which a content is known in the log."""
    return hashlib.sha256(data).hexdigest()


def digest_file(real: str) -> str | None:
    """The sha256 of the file, read in pieces, or None when there is none."""
    digest = hashlib.sha256()
    try:
        with open_file(real) as fd:
            for chunk in iter_bytes(fd):
                digest.update(chunk)
    except FileNotFoundError:
        return None
    return digest.hexdigest()


def file_status(real: str) -> os.stat_result | None:
    """The file as it stands, or None when there is none; what is no regular file is refused by its kind."""
    folder, name = os.path.split(real)
    try:
        with open_folder(folder) as folder_fd:
            status = os.stat(name or ".", dir_fd=folder_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
    _refuse_special(status.st_mode, real)
    return status


def refuse_if_stale(path: ResolvedPath, sha256: str | None, ctx: ToolContext) -> None:
    """Raise `ToolError` when the model has seen the file and it is not the same any more; `sha256` is what it is now."""
    seen = ctx.observed_files.get(path.real)
    if seen is None or seen == sha256:
        return
    what = "was deleted" if sha256 is None else "has changed"
    raise ToolError(
        f"{shown_path(path.lexical, ctx.cwd)} {what} since you last read or wrote it, so nothing was written: "
        "Read it again, then repeat the change on what it holds now"
    )


def replace_file(real: str, data: bytes, before: os.stat_result | None) -> list[str]:
    """Put `data` in place of `real` in one step: readers see the old file or the new one, never a part of it.

    `before` is the file as it was checked; None means that there must be none (`FileExistsError` otherwise). Mode and owner
    are kept, missing folders are made. Returns notes on what could not be kept. Raises `ToolError` when the file changed
    after it was checked.
    """
    folder, name = os.path.split(real)
    with open_folder(folder, create=before is None) as folder_fd:
        temporary = f".{name[:100]}.{os.urandom(6).hex()}.tmp"
        fd = os.open(temporary, _CREATE_FLAGS, 0o600 if before else 0o666, dir_fd=folder_fd)
        try:
            try:
                left = memoryview(data)
                while left:
                    left = left[os.write(fd, left) :]
                notes = _keep_owner_and_mode(fd, before)
                os.fsync(fd)
            finally:
                os.close(fd)
            _move_into_place(folder_fd, temporary, name, real, before)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder_fd)
            raise
        # A folder that may be written and not listed cannot be synced; the file's content is.
        with suppress(PermissionError):
            listed = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder_fd)
            try:
                os.fsync(listed)  # makes the new name durable
            finally:
                os.close(listed)
    return notes


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
    os.fchmod(fd, stat.S_IMODE(before.st_mode))
    if before.st_nlink > 1:
        notes.append(f"it had {before.st_nlink} names (hard links); the others keep the old content")
    return notes


def _move_into_place(folder_fd: int, temporary: str, name: str, real: str, before: os.stat_result | None) -> None:
    if before is not None:
        try:
            now = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
        except FileNotFoundError:
            now = None
        if now is None or _identity(now) != _identity(before):
            raise ToolError(f"{real} changed while it was being replaced, so nothing was written: read it again")
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


def _identity(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
