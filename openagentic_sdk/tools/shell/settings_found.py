"""Find what other programs trust in a workspace, at any depth, and set aside what a command created of that kind.

A sandboxed command may change none of it: the next program that reads it runs outside the sandbox. If a command runs on a
copy, such changes are not applied; setting aside is for commands that write in place.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, count
from typing import Literal

from ...ground.disk import is_within
from ...ground.frozen import frozen
from .protected import git_places, repository_of

# Folders that are created at the top of a workspace as mount points for read-only mounts.
PLACEHOLDERS = (".git", ".claude", ".vscode", ".husky")
SET_ASIDE = ".from-sandbox"

PathKind = Literal["folder", "file", "link"]


@frozen
class Survey:
    """The protected entries in some folders: each outermost path with its kind, links with their targets. `repositories`
    are the tops of working trees, and bare repositories.
    """

    kinds: Mapping[str, PathKind]
    links: Mapping[str, str]
    repositories: Sequence[str]

    def named_places(self, roots: Sequence[str]) -> list[str]:
        """The targets of links with a protected name in these folders, and the paths in git's configuration there."""
        targets = [os.path.realpath(path) for path in self.links]
        for top in self.repositories:
            git_dir = repository_of(top) if os.path.lexists(f"{top}/.git") else top
            targets += git_places([f"{git_dir}/config", f"{git_dir}/config.worktree"], top)
        return [
            path for path in dict.fromkeys(targets) if any(is_within(path, root) and path != root for root in roots)
        ]

    def known_to(self, earlier: Survey, roots: Sequence[str]) -> Survey:
        """Return this survey without the entries in these folders that an earlier survey did not contain."""
        return Survey(
            {path: kind for path, kind in self.kinds.items() if path in earlier.kinds or not _is_in(path, roots)},
            {path: target for path, target in self.links.items() if path in earlier.links or not _is_in(path, roots)},
            [top for top in self.repositories if top in earlier.repositories or not _is_in(top, roots)],
        )


def _is_in(path: str, roots: Sequence[str]) -> bool:
    return any(is_within(path, root) for root in roots)


def survey(
    roots: Iterable[str],
    refusal: Callable[[str], str | None],
    *,
    files: bool = True,
    known_repositories: Sequence[str] | None = None,
) -> Survey:
    """Search whole folders for protected entries, without following links or listing the contents of protected folders.

    Without `files`, only folders and links are searched for, which takes a tenth of the time. Where git may write, the
    search enters `.git`, but only in `known_repositories`, those that existed before; None or empty means everywhere.
    """
    kinds: dict[str, PathKind] = {}
    links: dict[str, str] = {}
    repositories: list[str] = []
    stack = list(roots)
    while stack:
        folder = stack.pop()
        try:
            with os.scandir(folder) as scan:
                entries = list(scan)
        except OSError:  # cannot be listed, so it cannot be changed either
            continue
        names = {entry.name for entry in entries}
        if ".git" in names or names >= {"HEAD", "objects"} or names >= {"HEAD", "commondir"}:
            repositories.append(folder)
        for entry in entries:
            is_folder = entry.is_dir(follow_symlinks=False)
            if not (files or is_folder or entry.is_symlink()):
                continue
            if refusal(entry.path) is None:
                stack += [entry.path] if is_folder else []
            elif entry.is_symlink():
                kinds[entry.path], links[entry.path] = "link", os.readlink(entry.path)
            elif (
                entry.name == ".git"
                and is_folder
                and refusal(f"{entry.path}/index") is None
                and folder in (known_repositories or [folder])
            ):
                stack.append(entry.path)
            else:
                kinds[entry.path] = "folder" if is_folder else "file"
    return Survey(kinds, links, repositories)


# The most entries of closed folders, and of a workspace, that are checked for hard links to a file.
_MOST_CLOSED, _MOST_NAMES = 20_000, 200_000


def linked_files(paths: Iterable[str], roots: Iterable[str]) -> set[tuple[int, int]]:
    """The device and inode number of each regular file with several names among the paths, or in folders among them that are
    below `roots`; only the first 20,000 entries are examined.
    """
    inodes: set[tuple[int, int]] = set()
    stack, budget, below = list(paths), _MOST_CLOSED, tuple(map("{}/".format, roots))
    while stack and budget > 0:
        path = stack.pop()
        budget -= 1
        try:
            status = os.lstat(path)
            if stat.S_ISDIR(status.st_mode) and path.startswith(below):
                # Git's objects have hard links in each local clone, and are never written.
                stack += [entry.path for entry in os.scandir(path) if entry.name != "objects"]
        except OSError:  # deleted, or not accessible to this user
            continue
        if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
            inodes.add((status.st_dev, status.st_ino))
    return inodes


def other_names(paths: Iterable[str], roots: Sequence[str]) -> list[str]:
    """All names, in these folders, of those files among the paths that have several names (hard links); only about the first
    200,000 entries are examined.
    """
    inodes = linked_files(paths, roots)
    if not inodes:
        return []
    numbers = {number for _, number in inodes}
    names: list[str] = []
    stack, budget = list(roots), _MOST_NAMES
    while stack and budget > 0:
        try:
            entries = list(os.scandir(stack.pop()))
        except OSError:
            continue
        budget -= len(entries)
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                stack.append(entry.path)
            # The number alone is compared first, which needs no system call and excludes most files.
            elif entry.inode() in numbers and (entry.stat(follow_symlinks=False).st_dev, entry.inode()) in inodes:
                names.append(entry.path)
    return names


# The state before the first of the commands that are now writing directly, with the folders of each.
_baselines: list[tuple[Survey, tuple[str, ...]]] = []
_baselines_lock = threading.Lock()


@contextmanager
def new_set_aside(
    before: Survey, roots: Sequence[str], refusal: Callable[[str], str | None], notes: list[str]
) -> Iterator[None]:
    """At the end of the block, rename protected entries that a command created, and restore links that it replaced; add
    sentences about what was done to `notes`.

    An entry that another running command may have created does not count as existing before: the first command that ends
    sets it aside, and the others cannot create it again.
    """
    with _baselines_lock:
        for earlier, places in _baselines:
            before = before.known_to(earlier, places)
        _baselines.append(own := (before, tuple(roots)))
    try:
        yield
    finally:
        with _baselines_lock:
            _baselines.remove(own)
            _set_aside(before, roots, refusal, notes)


def _set_aside(before: Survey, roots: Sequence[str], refusal: Callable[[str], str | None], notes: list[str]) -> None:
    for path, target in before.links.items():
        if not os.path.islink(path) or os.readlink(path) != target:
            _rename_aside(path, roots, refusal, notes, link_to=target)
    # An empty list would mean every repository; no folder has the name "".
    for path in survey(roots, refusal, known_repositories=["", *before.repositories]).kinds:
        if path not in before.kinds and not (os.path.dirname(path) in roots and _is_placeholder(path)):
            _rename_aside(path, roots, refusal, notes)


def _is_placeholder(path: str) -> bool:
    """Whether a path is the placeholder that another running command has put in place of a missing folder. It is marked by
    its mode, which any command can set, so only an empty folder counts.
    """
    mode = os.lstat(path).st_mode
    is_marked = stat.S_ISDIR(mode) and stat.S_IMODE(mode) == PLACEHOLDER_MODE
    return is_marked and os.path.basename(path) in PLACEHOLDERS and not os.listdir(path)


def _rename_aside(
    path: str,
    roots: Sequence[str],
    refusal: Callable[[str], str | None],
    notes: list[str],
    link_to: str | None = None,
) -> None:
    aside_path = _aside_path(path, roots, refusal)
    try:
        is_there = os.path.lexists(path)
        if is_there:
            # Renamed rather than deleted: a person may have wanted what the command wrote.
            os.replace(path, aside_path)
            inner = (
                []
                if os.path.islink(aside_path) or not os.path.isdir(aside_path)
                else survey([aside_path], refusal, known_repositories=[""]).kinds
            )
            for name in inner:
                _rename_aside(name, roots, refusal, [])
        if link_to is not None:
            os.symlink(link_to, path)
    except OSError as error:
        notes.append(f"{path} controls what other programs do, and could not be moved aside ({error}): remove it")
        return
    if is_there:
        notes.append(f"{path} controls what other programs do: the command's version of it is now {aside_path}")


def _aside_path(path: str, roots: Sequence[str], refusal: Callable[[str], str | None]) -> str:
    """An unused name to which to move a path, in the nearest folder above it that is not protected itself. A command may
    already have taken the first candidates.
    """
    folder, name = os.path.split(path)
    while refusal(f"{folder}/x") is not None and _is_in(os.path.dirname(folder), roots):
        folder = os.path.dirname(folder)
    suffixes = chain([""], map("-{}".format, count(2)))
    names = (f"{folder}/{name}{SET_ASIDE}{suffix}" for suffix in suffixes)
    return next(place for place in names if not os.path.lexists(place))


# An unusual mode, which marks an empty folder as a placeholder for a missing one while a command runs.
PLACEHOLDER_MODE = 0o1500
