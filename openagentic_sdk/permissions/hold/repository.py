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
_FETCHES = regex(r"^[ \t]*(?:promisor|partialclone)", re.I | re.M)
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
    if _GITLINK in index or _leads_elsewhere(git_path):
        return False
    settings = read_config(os.path.join(git_path, "config"))
    return settings is not None and not settings.dropped and not _FETCHES.search(settings.harmless_text)


def _leads_elsewhere(git_path: str) -> bool:
    """Whether a file of the repository may be another one, whose content git prints: a link, or an object elsewhere."""
    count = 0
    for place, folders, files in walk(git_path):
        count += len(files)
        if count > _MOST_FILES or "alternates" in files:
            return True
        if any(os.path.islink(os.path.join(place, name)) for name in (*folders, *files)):
            return True
    return False
