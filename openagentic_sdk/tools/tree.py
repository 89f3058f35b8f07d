"""Walk a folder tree without following links, leaving out what `.gitignore` files say.

The law of the file: every folder is opened and compared with the entry that named it before it is listed, so a link that is
swapped in during the walk leads nowhere. Entries come in a fixed order: a folder's files by name, then its folders by name.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter

from .base import ToolContext
from .gitignore import IgnoreFile
from .workspace import LIST_FLAGS, READ_FLAGS, ResolvedPath, check_cancelled, open_folder

MAX_IGNORE_BYTES = 1 << 20
MAX_DEPTH = 1_000

_by_name = attrgetter("name")

# A file of patterns; the path it speaks of is the text here, then a folder's prefix from the index on, then the name.
_Level = tuple[IgnoreFile, str, int]


@dataclass(frozen=True)
class WalkOptions:
    """What a walk leaves out. `enters` says whether a folder (relative path) is worth entering."""

    include_ignored: bool = False
    include_hidden: bool = True
    enters: Callable[[str], bool] | None = None


@dataclass(frozen=True)
class Folder:
    """One folder of a walk: its path relative to the root (empty or with a slash at its end), and its files."""

    path: str
    prefix: str
    files: list[os.DirEntry[str]]


@dataclass(frozen=True)
class _Waiting:
    path: str
    prefix: str
    inode: int | None
    depth: int
    levels: tuple[_Level, ...]


def walk(root: ResolvedPath, options: WalkOptions, ctx: ToolContext) -> Iterator[Folder]:
    """The folders below `root`, itself first. A folder that cannot be listed is passed over, the root alone raises."""
    levels = () if options.include_ignored else outer_levels(root.real, ctx.cwd)
    stack = [_Waiting(root.real, "", None, 0, levels)]
    while stack:
        check_cancelled(ctx)
        here = stack.pop()
        try:
            with _open_listed_folder(here) as fd:
                folders, files, here_levels = _list(fd, here, options)
        except OSError:
            if here.depth == 0:
                raise
            continue  # gone, or not permitted to this user: the rest of the tree is still worth having
        yield Folder(here.path, here.prefix, files)
        if here.depth < MAX_DEPTH:
            stack += [_below(here, entry, here_levels) for entry in reversed(folders)]


def _below(here: _Waiting, entry: os.DirEntry[str], levels: tuple[_Level, ...]) -> _Waiting:
    prefix = f"{here.prefix}{entry.name}/"
    return _Waiting(_join(here.path, entry.name), prefix, entry.inode(), here.depth + 1, levels)


def _join(folder: str, name: str) -> str:
    return f"{folder}{name}" if folder.endswith("/") else f"{folder}/{name}"


@contextmanager
def _open_listed_folder(here: _Waiting) -> Iterator[int]:
    fd = -1
    if here.inode is not None:
        fd = os.open(here.path, LIST_FLAGS)
        if os.fstat(fd).st_ino != here.inode:
            os.close(fd)
            fd = -1
    if fd < 0:  # the root, a mount point, or swapped in the meantime: the slow way follows no link at all
        with open_folder(here.path) as passed:
            fd = os.open(".", LIST_FLAGS, dir_fd=passed)
    try:
        yield fd
    finally:
        os.close(fd)


def _list(
    fd: int, here: _Waiting, options: WalkOptions
) -> tuple[list[os.DirEntry[str]], list[os.DirEntry[str]], tuple[_Level, ...]]:
    """The folders to enter and the files to show, sorted, and the ignore files that count below."""
    folders, files = [], []
    with os.scandir(fd) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry)
            elif entry.is_file():  # a link to a file is a file of this tree; a link to a folder is not entered
                files.append(entry)
    levels = here.levels
    if not options.include_ignored:
        own = _read_ignore_file(".gitignore", fd)
        levels = ((own, "", len(here.prefix)), *levels) if own else levels
    folders = [entry for entry in folders if entry.name != ".git"]
    if not options.include_hidden:
        folders = [entry for entry in folders if entry.name[0] != "."]
        files = [entry for entry in files if entry.name[0] != "."]
    if levels:
        folders = [entry for entry in folders if not _is_ignored(levels, here.prefix, entry.name, True)]
        files = [entry for entry in files if not _is_ignored(levels, here.prefix, entry.name, False)]
    if options.enters:
        folders = [entry for entry in folders if options.enters(f"{here.prefix}{entry.name}")]
    folders.sort(key=_by_name)
    files.sort(key=_by_name)
    return folders, files, levels


def _is_ignored(levels: tuple[_Level, ...], prefix: str, name: str, is_folder: bool) -> bool:
    for ignore, outer, length in levels:
        verdict = ignore.verdict(f"{outer}{prefix[length:]}{name}", name, is_folder)
        if verdict is not None:
            return verdict
    return False


def outer_levels(real: str, cwd: str) -> tuple[_Level, ...]:
    """The ignore files above `real` that count in it: those of its repository, or without one those from `cwd` down."""
    top = _repository(real) or os.path.realpath(cwd)
    if not (real + "/").startswith(top.rstrip("/") + "/"):
        return ()
    names = [name for name in real[len(top) :].split("/") if name]
    levels: list[_Level] = []
    exclude = _read_ignore_file(_join(top, ".git/info/exclude"))
    if exclude:
        levels.append((exclude, "".join(f"{name}/" for name in names), 0))
    for depth in range(len(names)):
        ignore = _read_ignore_file(_join("/".join([top, *names[:depth]]), ".gitignore"))
        if ignore:
            levels.insert(0, (ignore, "".join(f"{name}/" for name in names[depth:]), 0))
    return tuple(levels)


def _repository(real: str) -> str | None:
    """The nearest folder, from `real` up, that holds a `.git`."""
    folder = real
    while not os.path.lexists(_join(folder, ".git")):
        parent = os.path.dirname(folder)
        if parent == folder:
            return None
        folder = parent
    return folder


def _read_ignore_file(path: str, fd: int | None = None) -> IgnoreFile | None:
    """The patterns in a file, or None when there is no such regular file or it says nothing. git follows no link here."""
    try:
        opened = os.open(path, READ_FLAGS, dir_fd=fd)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            return None
        data = os.read(opened, MAX_IGNORE_BYTES)
    finally:
        os.close(opened)
    return IgnoreFile(data.decode("utf-8", "surrogateescape")) or None
