"""A session's folder: its valid names, its contents, and its atomic creation."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import chain, takewhile
from pathlib import Path
from typing import Any
from zlib import crc32

from ...errors import InvalidEventError, OptionsError, SessionExistsError, StorageError
from ...ground.disk import Disk, make_folder, remove_tree, rename_durably, write_new_file
from ...ground.frozen import frozen
from ...ground.system import BINARY, NO_FOLLOW, os_reason
from ...serialization import dumps_json, loads_json
from ..folds.summary import LAST_TIME, SessionSummary
from .lock import share_lock, try_lock, wait_for_lock
from .scan import Position
from .summary_file import KeptSummary

LOG_NAME = "events.jsonl"
META_NAME = "meta.json"
SUMMARY_NAME = "summary.json"
BLOBS_NAME = "blobs"
UNFINISHED = ".new-"
# A larger file is not one of ours (`checkpoint.MAX_CHECKPOINT_BYTES`), and is not read into memory.
MAX_CACHE_BYTES = 1 << 24
_ID_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"
# Windows opens a device for these names, whatever follows their first dot.
_DEVICES = frozenset(
    {"con", "prn", "aux", "nul", *(f"{kind}{number}" for kind in ("com", "lpt") for number in range(10))}
)
# The longest path in a session's folder: that of a blob while it is written.
_BELOW_CHARS = len("/blobs/..0123456789ab.tmp") + 64 + 1
# The errors that mean that nothing exists at a path.
_NO_PATH = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
# Opening a FIFO that somebody put in place of a cache would otherwise wait for a writer forever.
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)


def is_session_id(text: str) -> bool:
    """Whether the text is a valid session id: 1 to 128 letters, digits, `.`, `_` and `-`, the first a letter or digit.

    It must not end with `.`, nor be the name of a Windows device, such as `con` or `nul.txt`.
    """
    if not isinstance(text, str):
        return False
    is_spelled_so = (
        # Programs read a leading dash as an option, a leading dot hides the folder, and Windows drops a final dot.
        0 < len(text) <= 128 and text[0] not in "._-" and not text.endswith(".") and not text.strip(_ID_LETTERS)
    )
    return is_spelled_so and text.partition(".")[0].lower() not in _DEVICES


def _most_path_chars() -> int:
    """The maximum length of a path in bytes, including the terminating zero byte."""
    return os.pathconf("/", "PC_PATH_MAX") if hasattr(os, "pathconf") else 260


@lru_cache(4096)
def path_in(folder: Path, name: str) -> Path:
    """The path of an entry of a folder, cached: creating a path, with its text, costs more than a system call."""
    return folder / name


def is_session_folder(folder: Path) -> bool:
    """Whether the session exists. A link in place of a folder could lead out of the store, so it is not a session.

    On a case-insensitive disk, `ABC` is also found as `abc`, which is not that session. Raises `StorageError` if the disk
    gives no answer: the prompt of a session wrongly considered missing could run a second time.
    """
    path = os.fspath(folder)  # joined as text, because this is the most frequent query
    try:
        info = os.lstat(path)
        is_there = stat.S_ISDIR(info.st_mode) and stat.S_ISREG(os.lstat(f"{path}{os.sep}{LOG_NAME}").st_mode)
    except OSError as error:
        if error.errno in _NO_PATH:
            return False
        raise StorageError(
            f"session {folder.name!r} cannot be looked up: {error.strerror}", session_id=folder.name
        ) from error
    return is_there and not _is_spelled_otherwise(path, info)


def _is_spelled_otherwise(path: str, info: os.stat_result) -> bool:
    parent, name = os.path.split(path)
    # One more `lstat` decides it on the disks where case counts; listing a folder of many sessions would not be cheap.
    other = name.swapcase()
    try:
        ignores_case = other != name and os.path.samestat(info, os.lstat(f"{parent}{os.sep}{other}"))
    except OSError:
        return False
    return ignores_case and name not in os.listdir(parent)


def _name_taken_error(folder: Path) -> OptionsError | SessionExistsError:
    names = os.listdir(folder.parent)
    alike = [] if folder.name in names else [name for name in names if name.casefold() == folder.name.casefold()]
    if not alike:
        return SessionExistsError(folder.name)
    return OptionsError(
        f"session {folder.name!r} cannot be created: this file system ignores case, and session {alike[0]!r} exists; choose "
        "another id"
    )


def build_folder(
    disk: Disk,
    parent: Path,
    meta: Meta,
    *,
    sync: bool,
    lines: Iterable[bytes] = (),
    blobs: Iterable[tuple[str, bytes]] = (),
    summary: Callable[[], SessionSummary | None] = lambda: None,
) -> None:
    """Create the folder of a session atomically. `summary` is called once the lines are written.

    Raises `OptionsError` for an id that cannot be used here, `SessionExistsError` and `StorageError`.
    """
    name = meta.session_id
    if not is_session_id(name):
        raise OptionsError(
            f"{name!r} cannot name a session: use up to 128 letters, digits, '.', '_' and '-', "
            "beginning with a letter or digit, not ending with '.', and not a device name of Windows such as 'con'"
        )
    folder = parent / name
    if len(os.fsencode(folder)) + _BELOW_CHARS > _most_path_chars():
        raise OptionsError(
            f"session {name!r} cannot be created: its files in {str(parent)!r:.80} would have paths of more than "
            f"{_most_path_chars()} bytes; choose a folder with a shorter path"
        )
    with storage_errors(name, f"cannot be created in {str(parent)!r}"):
        if folder.exists():
            raise _name_taken_error(folder)
        # Created one by one, each synced into its parent: `makedirs` would leave a new store that a power failure can lose.
        missing = takewhile(lambda path: not path.exists(), chain((parent,), parent.parents))
        for path in reversed(list(missing)):
            make_folder(disk, path, sync=sync)
        # The folder gets its name only when it is complete, so no reader ever sees a session without a log.
        unfinished = folder.with_name(f"{UNFINISHED}{os.urandom(16).hex()}")
        # Shared: processes that create sessions exclude the sweep of leftovers, not each other.
        try:
            with folder_lock(parent, shared=True):
                _fill_folder(disk, unfinished, sync, meta.to_json(), lines, blobs, summary)
                try:
                    rename_durably(disk, unfinished, folder, sync=sync)
                except OSError as error:
                    if folder.exists():
                        # Another process was faster: a rename never replaces a folder with contents (rename(2),
                        # ENOTEMPTY).
                        raise _name_taken_error(folder) from error
                    raise
        except BaseException:  # after any error, leave no incomplete session
            # After closing the lock, because listing the folder needs a descriptor, which may be the last one.
            remove_tree(unfinished)
            raise


def sweep_unfinished(parent: Path) -> None:
    """Remove the leftovers of processes killed while creating sessions; do nothing while a session is being created."""
    # Without the shared lock of creators, a sweep could delete a session that is being created.
    if sys.platform == "win32" or not parent.is_dir():
        return
    fd = os.open(parent, os.O_RDONLY)
    try:
        if try_lock(fd):
            for name in os.listdir(parent):
                if name.startswith(UNFINISHED):
                    remove_tree(parent / name)
    finally:
        os.close(fd)


def _fill_folder(
    disk: Disk,
    folder: Path,
    sync: bool,
    meta: bytes,
    lines: Iterable[bytes],
    blobs: Iterable[tuple[str, bytes]],
    summary: Callable[[], SessionSummary | None],
) -> None:
    folder.mkdir(mode=0o700)
    # Before the log, which refers to them: a crash must not leave an event whose blob is missing.
    for digest, data in blobs:
        (folder / BLOBS_NAME).mkdir(mode=0o700, exist_ok=True)
        write_new_file(disk, folder / BLOBS_NAME / digest, [data], sync=sync)
    write_new_file(disk, folder / META_NAME, [meta], sync=sync)
    size = crc = 0

    def measured() -> Iterator[bytes]:
        nonlocal size, crc
        for line in lines:
            size, crc = size + len(line), crc32(line, crc)
            yield line

    # Copied lines claim (`dur`) to be on disk, so that must be true here at every level.
    write_new_file(disk, folder / LOG_NAME, measured(), sync=sync or lines != ())
    for path in (folder / BLOBS_NAME, folder):
        if sync and path.is_dir():
            disk.fsync_folder(str(path))
    folded = summary()
    if folded is not None:
        kept_summary = KeptSummary(folded, Position(size, folded.events, crc))
        # A cache: whoever finds it missing or stale folds the log again.
        write_new_file(disk, folder / SUMMARY_NAME, [kept_summary.to_json()], sync=False)


# --- files beside the log ----------------------------------------------------------------------------------------------


def read_if_exists(path: Path) -> bytes | None:
    """Return the bytes of a small file that is not a cache; None if it is missing, a link or too large. Raises `OSError`."""
    try:
        fd = os.open(path, os.O_RDONLY | BINARY | NO_FOLLOW | _NO_WAIT)
    except OSError as error:
        if error.errno in _NO_PATH:
            return None
        raise
    try:
        return read_open_cache(fd)
    finally:
        os.close(fd)


def open_cache(path: Path, how: int = os.O_RDONLY) -> int | None:
    """Open a cache file without ever blocking, whatever kind of file it is; None if it is a link or cannot be opened."""
    try:
        return os.open(path, how | BINARY | NO_FOLLOW | _NO_WAIT)
    except OSError:
        return None


def read_cache(path: Path) -> bytes | None:
    """Return the bytes of a cache file; None if it is missing, unreadable or implausible."""
    fd = open_cache(path)
    try:
        return None if fd is None else read_open_cache(fd)
    except OSError:
        return None
    finally:
        if fd is not None:
            os.close(fd)


def read_open_cache(fd: int) -> bytes | None:
    """Return the bytes of an open cache file; None unless it is a regular file of at most `MAX_CACHE_BYTES`."""
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode) or info.st_size > MAX_CACHE_BYTES:
        return None
    return os.read(fd, info.st_size)


@contextlib.contextmanager
def storage_errors(name: str, what: str) -> Iterator[None]:
    """Convert an `OSError` in the block to a `StorageError`; `what` follows the session's name, unless that is empty."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{name and f'session {name!r} '}{what}: {os_reason(error)}", session_id=name) from error


@contextlib.contextmanager
def folder_lock(folder: Path, *, shared: bool = False) -> Iterator[None]:
    """Hold the lock of a folder during the block; with `shared`, other shared holders are allowed. Does nothing on Windows.

    Raises `FileNotFoundError` if the folder is deleted during the wait for its lock, even if its name is reused, and
    `BlockingIOError` after half a minute.
    """
    if sys.platform == "win32":
        yield
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        (share_lock if shared else wait_for_lock)(fd)
        # The lock belongs to the open folder, not to its name: after a deletion another process may lock a new folder
        # of that name.
        if not os.path.samestat(os.fstat(fd), os.stat(folder)):
            raise FileNotFoundError(errno.ENOENT, "deleted and recreated", str(folder))
        yield
    finally:
        os.close(fd)


@frozen
class Meta:
    """The contents of `meta.json`."""

    session_id: str
    created_at: float
    metadata: dict[str, Any]

    @classmethod
    def from_json(cls, text: bytes, session_id: str) -> Meta:
        """Parse the output of `to_json`. Raises `InvalidEventError` for anything else."""
        data = loads_json(text)
        created_at, metadata = (
            (data.get("created_at"), data.get("metadata")) if isinstance(data, dict) else (None, None)
        )
        if not isinstance(created_at, int | float) or abs(created_at) > LAST_TIME or not isinstance(metadata, dict):
            raise InvalidEventError("meta.json lacks a valid created_at or metadata")
        return cls(session_id, created_at, metadata)

    def to_dict(self) -> dict[str, Any]:
        return {"session_id": self.session_id, "created_at": self.created_at, "metadata": self.metadata}

    def to_json(self) -> bytes:
        return dumps_json(self.to_dict()).encode("ascii") + b"\n"
