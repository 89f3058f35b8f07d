"""Determine whether git in a folder runs only itself and contacts nothing, whatever the repository there configures.

A repository is not plain if a setting could run something, or if its form is not the one that `git init` and `git clone`
produce.
"""

from __future__ import annotations

import os
import re

from ...ground.disk import read_regular, walk
from ...ground.patterns import regex
from ...tools.shell.git_settings import read_config

MAX_INDEX_BYTES = 64 * 1024 * 1024
# The mode of an index entry for a nested repository, which `git status` enters (gitformat-index).
_GITLINK = b"\0\0\xe0\0"
# A partial clone requests each missing object from its remote, even one that only the command names.
# Another object format has another form of the index.
_FETCHES = regex(r"^[ \t]*(?:promisor|partialclone|objectformat)", re.I | re.M)
# The most files of a repository that are searched for links.
_MOST_FILES = 20_000


def is_plain_repository(folder: str) -> bool:
    """Whether the repository that git finds from `folder` is plain; also true if none is found."""
    place = os.path.realpath(folder)
    while True:
        git_path = os.path.join(place, ".git")
        if os.path.lexists(git_path):
            return _is_plain(git_path)
        if os.path.lexists(os.path.join(place, "HEAD")) and any(
            os.path.lexists(os.path.join(place, name)) for name in ("objects", "commondir")
        ):
            return False  # git treats the folder itself as a repository
        above = os.path.dirname(place)
        if above == place:
            return True
        place = above


def _is_plain(git_path: str) -> bool:
    if os.path.islink(git_path) or not os.path.isdir(git_path):
        return False
    names = set(os.listdir(git_path))
    if not names.isdisjoint({"commondir", "config.worktree", "modules"}):
        return False
    # A split index keeps most entries in another file, which is not searched for nested repositories.
    if any(name.startswith("sharedindex.") for name in names):
        return False
    try:
        index = b""
        if "index" in names:
            index = read_regular(os.path.join(git_path, "index"), MAX_INDEX_BYTES)
    except (OSError, ValueError):
        return False
    if _GITLINK in index or _leads_elsewhere(git_path) or _names_outside(index, os.path.dirname(git_path)):
        return False
    settings = read_config(os.path.join(git_path, "config"))
    return settings is not None and not settings.dropped and not _FETCHES.search(settings.harmless_text)


def _leads_elsewhere(git_path: str) -> bool:
    """Whether a file of the repository may be another one, whose content git prints: a link, or an object elsewhere."""
    count = 0
    for place, folders, files in walk(git_path):
        count += len(folders) + len(files)
        if count > _MOST_FILES or "alternates" in files:
            return True
        if any(os.path.islink(os.path.join(place, name)) for name in (*folders, *files)):
            return True
    return False


def _names_outside(index: bytes, place: str) -> bool:
    """Whether an index may name a path outside the work tree or behind a link, which `git diff` or `git grep` reads."""
    if not index:
        return False
    if index[:4] != b"DIRC" or index[4:8] not in (b"\0\0\0\2", b"\0\0\0\3"):
        return True
    at, folders = 12, set[bytes]()
    for _ in range(int.from_bytes(index[8:12], "big")):
        # 60 bytes, the flags, perhaps more flags, the name, and up to eight NUL bytes (gitformat-index).
        start = at + (64 if int.from_bytes(index[at + 60 : at + 61], "big") & 0x40 else 62)
        end = index.find(b"\0", start)
        folder, _, name = index[start:end].rpartition(b"/")
        if end < 0 or name == b".." or index[start : start + 1] == b"/" or b".." in folder.split(b"/"):
            return True
        while folder and folder not in folders:
            folders.add(folder)
            folder = folder.rpartition(b"/")[0]
        at += ((end - at) // 8 + 1) * 8
    return any(os.path.islink(os.path.join(os.fsencode(place), folder)) for folder in folders)
