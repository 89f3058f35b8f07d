"""Read, write and remove files, durably where needed; tests can substitute a failing disk for the system calls.

`SystemDisk` hides platform differences: a system without `fdatasync` uses `fsync`, macOS the call that also flushes the
drive's cache, and where a folder cannot be synced (Windows), syncing one does nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from .system import BINARY, NO_FOLLOW

MAX_TOML_BYTES = 4 << 20
_MAX_KEY_PARTS = 64
_KEY = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""


def may_exist(path: str | os.PathLike[str]) -> bool:
    """Whether something is at the path, or that cannot be determined (EIO, EACCES): then reading it shows the reason."""
    try:
        os.lstat(path)
    except OSError as error:
        return error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
    except ValueError:  # a NUL
        return False
    return True


def read_regular(path: str | os.PathLike[str], max_bytes: int) -> bytes:
    """Read a regular file of at most `max_bytes`. Raises `OSError`, and `ValueError` for a larger or special file."""
    # Opening a FIFO would wait for its other end forever.
    flags = os.O_RDONLY | BINARY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
    with open(os.open(path, flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is not a regular file")
        return _read_at_most(file, max_bytes)


def read_named(path: str | os.PathLike[str], max_bytes: int) -> bytes:
    """Read a file that the user named, or a pipe to its end. Raises `OSError`, and `ValueError` above `max_bytes`."""
    with open(path, "rb") as file:
        return _read_at_most(file, max_bytes)


def _read_at_most(file: BinaryIO, max_bytes: int) -> bytes:
    # One byte more than allowed shows that the file is too large, without reading all of it.
    data = file.read(max_bytes + 1) or b""  # None if a file that would make us wait has nothing yet
    if len(data) > max_bytes:
        raise ValueError(f"it is larger than {max_bytes} bytes")
    return data


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file of at most `MAX_TOML_BYTES`. Raises `OSError`, and `ValueError` for an invalid file."""
    import tomllib  # most runs have no such file

    text = read_regular(path, MAX_TOML_BYTES).decode("utf-8-sig")
    # tomllib stores every prefix of a key: one of 10,000 parts, 20 kB, takes 400 MB.
    if re.search(rf"(?<![A-Za-z0-9_.-]){_KEY}(?:[ \t]*\.[ \t]*{_KEY}){{{_MAX_KEY_PARTS}}}", text):
        raise ValueError(f"a key in it has more than {_MAX_KEY_PARTS} dotted parts")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


class Disk(Protocol):
    """The system calls that durable files use: functions of `os` and `fsync_folder`. Each may raise `OSError`."""

    def open(self, path: str, flags: int, mode: int = 0o666) -> int: ...

    def close(self, fd: int) -> None: ...

    def read(self, fd: int, n: int) -> bytes: ...

    def write(self, fd: int, data: bytes | memoryview) -> int: ...

    def lseek(self, fd: int, position: int, how: int) -> int: ...

    def fstat(self, fd: int) -> os.stat_result: ...

    def ftruncate(self, fd: int, length: int) -> None: ...

    def fdatasync(self, fd: int) -> None: ...

    def fsync_folder(self, path: str) -> None: ...

    def replace(self, src: str, dst: str) -> None: ...

    def rename(self, src: str, dst: str) -> None: ...

    def unlink(self, path: str) -> None: ...


class SystemDisk:
    """The real disk."""

    open = staticmethod(os.open)
    close = staticmethod(os.close)
    read = staticmethod(os.read)
    write = staticmethod(os.write)
    lseek = staticmethod(os.lseek)
    fstat = staticmethod(os.fstat)
    ftruncate = staticmethod(os.ftruncate)
    replace = staticmethod(os.replace)
    rename = staticmethod(os.rename)
    unlink = staticmethod(os.unlink)

    if sys.platform == "darwin":

        @staticmethod
        def fdatasync(fd: int) -> None:
            import fcntl

            # fsync on macOS leaves the data in the drive's cache; by fcntl(2), this call does what fsync does elsewhere.
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)

    elif sys.platform == "win32":
        fdatasync = staticmethod(os.fsync)
    else:
        fdatasync = staticmethod(os.fdatasync)

    @staticmethod
    def fsync_folder(path: str) -> None:
        if sys.platform == "win32":
            return
        fd = os.open(path, os.O_RDONLY | BINARY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def is_within(path: str, folder: str) -> bool:
    """Whether a path is a folder or below it, compared name by name; both must be absolute and resolved."""
    # With the separator: a bare prefix would put `/work-other` into `/work` (CVE-2025-53110).
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def path_below(folder: str, name: str) -> str | None:
    """Resolve an untrusted path relative to a folder without links; None if it leads outside that folder, or is not a valid
    path (a NUL, a lone surrogate).
    """
    try:
        real = os.path.realpath(os.path.join(folder, name))
    except ValueError:
        return None
    return real if is_within(real, folder) else None


def nearest_holding(name: str, folder: str) -> str | None:
    """Return the nearest folder that contains an entry of this name: `folder` (absolute) or one above it, or None."""
    while not os.path.lexists(os.path.join(folder, name)):
        parent = os.path.dirname(folder)
        if parent == folder:
            return None
        folder = parent
    return folder


@contextlib.contextmanager
def whole_file(
    disk: Disk, path: Path, *, sync: bool = True, is_new: bool = False, unfinished: Path | None = None
) -> Iterator[Path]:
    """Yield an unused path beside `path`; the file that the block creates there is renamed to `path`, complete or not at
    all.

    With `is_new`, an existing file is never replaced: `FileExistsError`. Without `sync`, this holds if the process dies,
    not if the system crashes. `unfinished` is a name that only this caller uses: what a crash left under it is removed.
    """
    if unfinished is None:
        unfinished = path.with_name(f".{path.name}.{os.urandom(6).hex()}.tmp")
    else:
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(str(unfinished))
    try:
        yield unfinished
        if is_new:
            _take_free_name(disk, unfinished, path)
        else:
            disk.replace(str(unfinished), str(path))
    except BaseException as error:  # after any error, do not leave unfinished data on a disk that may be full
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        # The caller knows only the final name of the file, and the error of a failed write has no name.
        if isinstance(error, OSError) and error.errno and str(error.filename) in ("None", str(unfinished)):
            error.filename, error.filename2 = str(path), None
        raise
    try:
        if sync:
            disk.fsync_folder(str(path.parent))
    except OSError:
        if is_new:
            path.unlink(missing_ok=True)  # a retry creates it anew
        raise


def _take_free_name(disk: Disk, unfinished: Path, path: Path) -> None:
    try:  # unlike a rename, a link never replaces anything
        os.link(unfinished, path)
    except FileExistsError:
        raise FileExistsError(f"{path} already exists: choose another file") from None
    except OSError:  # a file system without hard links: an empty file claims the name
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY | NO_FOLLOW, 0o600))
        disk.replace(str(unfinished), str(path))
    else:
        os.unlink(unfinished)


def write_durably(
    disk: Disk, path: Path, data: bytes | Iterable[bytes], *, sync: bool = True, mode: int = 0o600, is_new: bool = False
) -> None:
    """Write a whole file, at once or in blocks, as `whole_file` does. Raises `OSError`."""
    with whole_file(disk, path, sync=sync, is_new=is_new) as unfinished:
        write_new_file(disk, unfinished, [data] if isinstance(data, bytes) else data, sync=sync, mode=mode)


def rename_durably(disk: Disk, src: Path, dst: Path, *, sync: bool) -> None:
    """Rename within a folder, and with `sync` sync the folder. Raises `OSError`, after undoing what could not be synced."""
    disk.rename(str(src), str(dst))
    try:
        if sync:
            disk.fsync_folder(str(dst.parent))
    except OSError:
        with contextlib.suppress(OSError):
            # Its name may or may not survive a power failure; without this, a retry would find that the target exists.
            disk.rename(str(dst), str(src))
        raise


def make_folder(disk: Disk, path: Path, *, sync: bool) -> None:
    """Create a folder that only its owner can access, unless it exists; with `sync`, also sync its parent.

    Raises `OSError`, after undoing the creation.
    """
    path.mkdir(mode=0o700, exist_ok=True)
    try:
        if sync:
            disk.fsync_folder(str(path.parent))
    except OSError:
        with contextlib.suppress(OSError):
            path.rmdir()
        raise


def remove_tree(path: str | Path, *, ignore_errors: bool = True) -> None:
    """Delete a folder and its contents. With `ignore_errors`, delete as much as possible; otherwise raise `OSError`."""
    import shutil  # imports every compression module

    try:
        shutil.rmtree(path, ignore_errors=ignore_errors)
    except RecursionError:  # before Python 3.13 it calls itself for each level, and a command can create any depth
        _flatten(os.fspath(path))
        shutil.rmtree(path, ignore_errors=ignore_errors)
    if ignore_errors and may_exist(path) and not _can_open_two():
        _remove_by_path(os.fspath(path))


@contextlib.contextmanager
def scratch_folder(prefix: str) -> Iterator[str]:
    """Yield a new folder for temporary files, which is removed after the block as far as possible."""
    import tempfile  # which imports what `remove_tree` avoids

    folder = tempfile.mkdtemp(prefix=prefix)
    try:
        yield folder
    finally:
        remove_tree(folder)


def _can_open_two() -> bool:
    """Whether the process may open two more files: `rmtree` opens each folder and lists it."""
    opened = list[int]()
    try:
        for _ in range(2):
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return False
    finally:
        for fd in opened:
            os.close(fd)
    return True


def _remove_by_path(top: str) -> None:
    """Delete as much of a tree as possible, with one open file at a time."""
    folders = list[str]()
    for folder, inner, names in walk(top):
        folders.append(folder)
        for name in (*inner, *names):  # a link to a folder is among the first
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(folder, name))
    for folder in reversed(folders):
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def _flatten(top: str) -> None:
    """Move every folder of a tree to its top, so that it is as shallow as possible and no path in it is too long."""
    waiting, moved = [top], 0
    while waiting:
        folder = waiting.pop()
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in [entry for entry in entries if entry.is_dir(follow_symlinks=False)]:
                moved += 1
                place = entry.path if folder == top else os.path.join(top, f".moved-{os.getpid()}-{moved}")
                os.rename(entry.path, place)
                waiting.append(place)


def walk(top: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield the same as `os.walk`, which before Python 3.12 recurses and so fails in a tree of a thousand levels."""
    waiting = [top]
    while waiting:
        folder, folders, files = waiting.pop(), list[str](), list[str]()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    (folders if _is_folder(entry) else files).append(entry.name)
        except OSError:
            continue
        yield folder, folders, files
        # Only now, because the caller may remove names.
        paths = [os.path.join(folder, name) for name in reversed(folders)]
        waiting += [path for path in paths if not os.path.islink(path)]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself, which must not hide the other entries
        return False


def write_new_file(disk: Disk, path: Path, blocks: Iterable[bytes], *, sync: bool, mode: int = 0o600) -> None:
    """Create a file with these blocks, under a name that nothing else uses. Raises `OSError`."""
    fd = disk.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY | NO_FOLLOW, mode)
    try:
        for block in blocks:
            view = memoryview(block)
            while view:
                count = disk.write(fd, view)
                # POSIX lets a write return 0 for a regular file on a full disk; the loop would never end.
                if not count:
                    raise OSError(errno.ENOSPC, "nothing more can be written")
                view = view[count:]
        if sync:
            disk.fdatasync(fd)
    finally:
        disk.close(fd)
