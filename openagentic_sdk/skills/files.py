"""Read small untrusted text files: only regular ones, only inside a boundary, only up to a size."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

from ..errors import FileRefusedError
from ..ground.clock import Clock, SystemClock
from ..ground.disk import is_within
from ..ground.frozen import frozen

# These never contain skills of the project, only other people's code.
SKIPPED_FOLDERS = frozenset({".git", "node_modules"})


def bytecode_folder(of: str) -> str:
    """The folder in which a project's hooks or commands (`of`) store Python bytecode: not beside their sources.

    A file that a run leaves in the project would end its trust, or be trusted without having been seen. The folder is the
    user's own, because nobody else may put code there; that of hooks contains nothing written by a model's command.
    """
    home = os.environ.get("OPENAGENTIC_SDK_HOME") or os.path.expanduser("~/.openagentic-sdk")
    return os.path.join(os.path.abspath(home), "bytecode", of)


def read_bytes(path: str, *, boundary: str | None, max_bytes: int) -> bytes:
    """Read a regular file of at most `max_bytes` whose real path is inside the real folder `boundary` (None: anywhere).

    Raises `FileRefusedError` for any other file, and OSError if it cannot be opened. A link exchanged meanwhile is detected:
    the check is on the actual location of the opened file.
    """
    # Opening a FIFO would wait for its other end forever.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0))
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise FileRefusedError(f"{path} is not a regular file")
        if boundary is not None:
            real = _place_of(path, handle, status)
            if not is_within(real, boundary):
                raise FileRefusedError(f"{path} leads to {real}, outside {boundary}")
        # Reading only the expected size avoids a buffer of the maximum size for every small file.
        data = bytearray()
        while len(data) <= max_bytes:
            part = os.read(handle, min(max_bytes + 1 - len(data), status.st_size + 1))
            data += part
            if len(part) < status.st_size + 1:
                break
    finally:
        os.close(handle)
    if len(data) > max_bytes:
        raise FileRefusedError(f"{path} is larger than {max_bytes} bytes")
    return bytes(data)


def _place_of(path: str, handle: int, opened: os.stat_result) -> str:
    """The real path of the opened file, to which its path may no longer lead."""
    try:
        return os.readlink(f"/proc/self/fd/{handle}")  # Linux reports the path that was opened
    except OSError:
        real = os.path.realpath(path)
        now = os.lstat(real)
        if (now.st_dev, now.st_ino) != (opened.st_dev, opened.st_ino):
            raise FileRefusedError(f"{path} was replaced while it was being read") from None
        return real


def read_text(path: str, *, boundary: str | None, max_bytes: int) -> str:
    """Like `read_bytes`, as text; invalid UTF-8 becomes U+FFFD. Raises `FileRefusedError` for a binary file."""
    data = read_bytes(path, boundary=boundary, max_bytes=max_bytes)
    if b"\0" in data:
        raise FileRefusedError(f"{path} is a binary file")
    return data.decode("utf-8", "replace")


@frozen
class Bounds:
    """The limits of a walk: levels below the root, folders in total, and the hidden folders to enter."""

    max_depth: int = 6
    max_folders: int = 10_000
    hidden: frozenset[str] = frozenset()


# A file that changed this recently may change again without a new time stamp, so what was read from it is not cached.
SAME_TICK_S = 0.02


class FoundFile(NamedTuple):
    """An entry of a folder: its name, its path (with the folder's path as given) and its real path."""

    name: str
    path: str
    real_path: str


def walk_files(
    root: str,
    *,
    boundary: str,
    bounds: Bounds,
    problems: list[tuple[str, str]],
    listings: FolderListings | None = None,
) -> Iterator[tuple[str, list[FoundFile]]]:
    """Yield the folders from `root` downwards, sorted by path, each with its files.

    Links are followed while they stay inside the real folder `boundary`; a folder is entered once however many links lead
    to it. Skipped entries are added to `problems` as (path, reason). `listings` caches unchanged folders for later walks.
    """
    listings = listings or FolderListings(SystemClock())
    seen: set[str] = set()
    waiting = [(root, os.path.realpath(root), 0)]
    while waiting:
        folder, real, depth = waiting.pop()
        if real in seen:
            continue
        if not is_within(real, boundary):
            problems.append((folder, f"leads to {real}, outside {boundary}"))
            continue
        if len(seen) >= bounds.max_folders:
            problems.append((root, f"more than {bounds.max_folders} folders: the rest is not examined"))
            return
        seen.add(real)
        folders, files = listings.list_folder(folder, real, bounds, problems)
        if folders and depth >= bounds.max_depth:
            problems.append((folder, f"folders more than {bounds.max_depth} levels down are not examined"))
            folders = []
        yield folder, files
        waiting.extend((below.path, below.real_path, depth + 1) for below in reversed(folders))


class FolderListings:
    """A cache of the contents of folders; a folder is listed again only if it has changed.

    The target of a link may change while its folder does not, so folders with links are listed every time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._cached_folders: dict[str, tuple[tuple[int, int, int], tuple[list[FoundFile], list[FoundFile]]]] = {}

    def list_folder(
        self, folder: str, real: str, bounds: Bounds, problems: list[tuple[str, str]]
    ) -> tuple[list[FoundFile], list[FoundFile]]:
        """List one folder: return the folders to enter, and the files, sorted by name."""
        try:
            status = os.stat(real)
        except OSError as error:
            problems.append((folder, f"cannot be listed: {error.strerror}"))
            return [], []
        stamp = (status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
        entry = self._cached_folders.get(folder)
        if entry is not None and entry[0] == stamp:
            return entry[1]
        folders, files, is_whole = _list_folder(folder, real, bounds, problems)
        # `status` is from before the listing: a change during it has a newer time stamp, and misses the cache.
        if is_whole and self._clock.now() - status.st_ctime > SAME_TICK_S:
            self._cached_folders[folder] = (stamp, (folders, files))
        return folders, files


def _list_folder(
    folder: str, real: str, bounds: Bounds, problems: list[tuple[str, str]]
) -> tuple[list[FoundFile], list[FoundFile], bool]:
    """List one folder: return the folders to enter, the files, and whether the listing is complete and has no links."""
    folders: list[FoundFile] = []
    files: list[FoundFile] = []
    is_whole = True
    try:
        with os.scandir(real) as entries:
            for entry in entries:
                is_link = entry.is_symlink()
                is_whole = is_whole and not is_link
                where = os.path.realpath(entry.path) if is_link else entry.path
                item = FoundFile(entry.name, f"{folder}{os.sep}{entry.name}", where)
                try:
                    is_folder = entry.is_dir()
                except OSError:  # a link that leads to itself
                    is_folder = False
                if not is_folder:
                    files.append(item)
                elif entry.name not in SKIPPED_FOLDERS and (entry.name[:1] != "." or entry.name in bounds.hidden):
                    folders.append(item)
    except OSError as error:
        problems.append((folder, f"cannot be listed: {error.strerror}"))
        is_whole = False
    return sorted(folders), sorted(files), is_whole


MAX_TREE_FILES = 5000
MAX_TREE_BYTES = 64 * 1024 * 1024


def tree_sha256(folder: str) -> str:
    """One digest over the names and bytes of all regular files below a folder; of links, their names and targets count.

    Raises `FileRefusedError` for more than `MAX_TREE_FILES` files or `MAX_TREE_BYTES` bytes, and OSError if one cannot be
    read.
    """
    digest = hashlib.sha256()
    for name, path in sorted(_list_tree(folder)):
        digest.update(f"{name}\0".encode("utf-8", "surrogateescape"))
        if os.path.islink(path):
            digest.update(b"link " + hashlib.sha256(os.fsencode(os.readlink(path))).digest())
        else:
            with open(path, "rb") as file:
                digest.update(b"file " + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _list_tree(folder: str) -> list[tuple[str, str]]:
    """List the files and links below a folder: their names relative to it, and their paths."""
    items: list[tuple[str, str]] = []
    total = 0
    waiting = [(folder, "")]
    while waiting:
        path, prefix = waiting.pop()
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append((entry.path, f"{prefix}{entry.name}/"))
                elif entry.is_file(follow_symlinks=False) or entry.is_symlink():
                    items.append((f"{prefix}{entry.name}", entry.path))
                    total += entry.stat(follow_symlinks=False).st_size
                if len(items) > MAX_TREE_FILES or total > MAX_TREE_BYTES:
                    raise FileRefusedError(
                        f"{folder} contains more than {MAX_TREE_FILES} files or {MAX_TREE_BYTES} bytes"
                    )
    return items


def list_resources(folder: str, most: int) -> tuple[list[str], int]:
    """List the first `most` files below a skill's folder by name, except its SKILL.md; count the others.

    Return an empty list and 0 for a folder that cannot be listed, or whose files are too many or too large.
    """
    try:
        names = sorted(name for name, _ in _list_tree(folder) if name.casefold() != "skill.md")
    except OSError:
        return [], 0
    return names[:most], max(len(names) - most, 0)
