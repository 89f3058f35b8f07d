"""Walk a folder tree without following links, excluding what `.gitignore` files exclude.

Every folder is opened and compared with the entry that named it before it is listed, so a link swapped in during the walk
leads nowhere. Folders come in a fixed order, each before its subfolders.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import NamedTuple

from ...ground.disk import nearest_holding
from ...ground.files import LIST_FLAGS, READ_FLAGS, open_folder
from ...ground.frozen import frozen
from ...kernel.tool import ToolContext
from ..files.workspace import ResolvedPath, Search, check_cancelled
from .gitignore import IgnoreFile
from .pattern import GlobPattern, type_suffixes

MAX_IGNORE_BYTES = 1 << 20
MAX_DEPTH = 1_000

_DirEntries = list[os.DirEntry[str]]
_by_name = attrgetter("name")

# A file of patterns, the path from its folder to the root of the walk, and the length of the prefix up to its folder.
_Level = tuple[IgnoreFile, str, int]


@frozen
class WalkOptions:
    """The exclusions of a walk. `enters` returns whether a folder, by its relative path, is worth entering."""

    include_ignored: bool = False
    include_hidden: bool = True
    enters: Callable[[str], bool] | None = None


class Folder(NamedTuple):
    """One folder of a walk: its location, its path relative to the root (empty or with a trailing slash), its files.

    `names` are those of its regular files and links to such, unordered; `entries` contains these and possibly more.
    """

    path: str
    prefix: str
    names: list[str]
    entries: _DirEntries


class _WaitingFolder(NamedTuple):
    path: str
    prefix: str
    inode: int
    levels: tuple[_Level, ...]


def walk(root: ResolvedPath, options: WalkOptions, ctx: ToolContext) -> Iterator[Folder]:
    """Yield `root` and the folders below, down to `MAX_DEPTH` levels. A folder that cannot be listed is skipped.

    Raises `OSError` if the root cannot be listed, and `ToolError` if the call is cancelled.
    """
    levels = () if options.include_ignored else outer_levels(root.real, ctx.cwd)
    stack = [_WaitingFolder(root.real, "", -1, levels)]
    while stack:
        check_cancelled(ctx)
        here = stack.pop()
        try:
            names, entries, folders, levels = _list(here, options)
        except OSError:
            if not here.prefix:
                raise
            continue  # deleted, or not permitted to this user: continue with the rest of the tree
        yield Folder(here.path, here.prefix, names, entries)
        if folders and here.prefix.count("/") < MAX_DEPTH:
            base = here.path if here.path.endswith("/") else here.path + "/"
            folders.sort(key=_by_name, reverse=True)
            for entry in folders:
                name = entry.name
                stack.append(_WaitingFolder(base + name, f"{here.prefix}{name}/", entry.inode(), levels))


def matching_files(
    search: Search, pattern: GlobPattern, enters: Callable[[str], bool] | None = None
) -> Iterator[tuple[Folder, list[str]]]:
    """Yield the folders of a search that may contain a match, each with the names of the files that match.

    `enters` is as in `WalkOptions`.
    """
    input = search.input
    suffixes = type_suffixes(input["type"]) if input.get("type") else None
    options = WalkOptions(bool(input.get("include_ignored")), input.get("include_hidden", True), enters)
    for folder in walk(search.root, options, search.ctx):
        pick = pattern.in_folder(folder.prefix)
        if pick is None:
            continue
        names = pick(folder.names)
        yield folder, names if suffixes is None else [name for name in names if name.endswith(suffixes)]


def _list(here: _WaitingFolder, options: WalkOptions) -> tuple[list[str], _DirEntries, _DirEntries, tuple[_Level, ...]]:
    """List a folder: names of files to show, all entries, folders to enter, and the ignore files that apply below."""
    fd = _open_listed(here)
    try:
        with os.scandir(fd) as scan:
            entries = list(scan)
        names = [entry.name for entry in entries if _is_file(entry)]
        folders: _DirEntries = []
        if len(names) < len(entries):  # never `.git`, never through a link
            folders = [entry for entry in entries if entry.is_dir(follow_symlinks=False) and entry.name != ".git"]
        levels = here.levels
        if not options.include_ignored and (own := _read_ignore_file(".gitignore", fd)):
            levels = ((own, "", len(here.prefix)), *levels)
    finally:
        os.close(fd)
    if not options.include_hidden:
        names = [name for name in names if name[0] != "."]
        folders = [entry for entry in folders if entry.name[0] != "."]
    if options.enters:
        folders = [entry for entry in folders if options.enters(here.prefix + entry.name)]
    if levels and (ignored := _ignored(names, levels, here.prefix, folders=False)):
        names = [name for name in names if name not in ignored]
    if levels and folders:
        ignored = _ignored([entry.name for entry in folders], levels, here.prefix, folders=True)
        folders = [entry for entry in folders if entry.name not in ignored]
    return names, entries, folders, levels


def _is_file(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a file or a link to one; circular links, and those into unreadable folders, are neither."""
    try:
        return entry.is_file()
    except OSError:
        return False


def _open_listed(here: _WaitingFolder) -> int:
    if here.inode >= 0:
        fd = os.open(here.path, LIST_FLAGS)
        if os.fstat(fd).st_ino == here.inode:
            return fd
        os.close(fd)
    # The root, a mount point, or replaced in the meantime: the slow way follows no links.
    with open_folder(here.path) as passed:
        return os.open(".", LIST_FLAGS, dir_fd=passed)


def _ignored(names: list[str], levels: tuple[_Level, ...], prefix: str, *, folders: bool) -> set[str]:

    verdicts: dict[str, bool] = {}
    for ignore, outer, length in reversed(levels):  # the nearest last, because it takes precedence
        verdicts |= ignore.rules_in(outer + prefix[length:], folders=folders).verdicts(names)
    return {name for name, is_left_out in verdicts.items() if is_left_out}


def outer_levels(real: str, cwd: str) -> tuple[_Level, ...]:
    """The ignore files above `real` that apply to it: from its repository's top down, or from `cwd` if it is in none."""
    top = nearest_holding(".git", real) or os.path.realpath(cwd)
    if not (real + "/").startswith(top.rstrip("/") + "/"):
        return ()
    names = [name for name in real[len(top) :].split("/") if name]
    levels: list[_Level] = []
    exclude = _read_ignore_file(os.path.join(top, ".git/info/exclude"))
    if exclude:
        levels.append((exclude, "".join(f"{name}/" for name in names), 0))
    for depth in range(len(names)):
        ignore = _read_ignore_file(os.path.join(top, *names[:depth], ".gitignore"))
        if ignore:
            levels.insert(0, (ignore, "".join(f"{name}/" for name in names[depth:]), 0))
    return tuple(levels)


def _read_ignore_file(path: str, fd: int | None = None) -> IgnoreFile | None:
    """Read the patterns in the first `MAX_IGNORE_BYTES` of a file; None if there is no such regular file or it is empty.

    Links are not followed, as in git.
    """
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
