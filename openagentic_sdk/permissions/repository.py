"""Whether git, in some folder, runs nothing but itself whatever the repository there names.

Not a list of keys that run programs, which grows with every release of git, but of those that do not: a repository with any
other key, or in any other form than `git init` and `git clone` leave, is not plain.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from ..ground.patterns import regex

MAX_CONFIG_BYTES = 64 * 1024
MAX_INDEX_BYTES = 64 * 1024 * 1024
# The mode of an entry of the index that is a repository of its own, which `git status` enters (gitformat-index).
_GITLINK = b"\0\0\xe0\0"
_SECTION = regex(r'\[([A-Za-z]+)(?:[ \t]+"[^"\\\n]*")?\]')
_KEY = regex(r"([A-Za-z][A-Za-z0-9-]*)(?:[ \t]*=.*[^\\]|[ \t]*=)?")
# git-config(1); the values of these are numbers, switches, names and addresses.
_HARMLESS: Mapping[str, frozenset[str]] = {
    section: frozenset(keys.split())
    for section, keys in {
        "core": """repositoryformatversion filemode bare logallrefupdates ignorecase precomposeunicode symlinks autocrlf eol
            safecrlf quotepath abbrev compression longpaths sharedrepository trustctime checkstat""",
        "remote": "url fetch pushurl tagopt prune gh-resolved",
        "branch": "remote merge rebase description vscode-merge-base github-pr-owner-number gh-merge-base",
        "user": "name email useconfigonly",
        "extensions": "objectformat",
        "pull": "rebase ff",
        "push": "default autosetupremote followtags",
        "fetch": "prune prunetags",
        "rerere": "enabled",
        "init": "defaultbranch",
        "color": "ui",
        "gc": "auto",
        "commit": "gpgsign",
    }.items()
}


def is_plain_repository(folder: str) -> bool:
    """Whether the repository that git finds from `folder` is plain, or it finds none."""
    place = os.path.realpath(folder)
    while True:
        found = os.path.join(place, ".git")
        if os.path.lexists(found):
            return _is_plain(found)
        if os.path.lexists(os.path.join(place, "HEAD")) and any(
            os.path.lexists(os.path.join(place, name)) for name in ("objects", "commondir")
        ):
            return False  # git takes the folder itself for a repository
        above = os.path.dirname(place)
        if above == place:
            return True
        place = above


def _is_plain(found: str) -> bool:
    if os.path.islink(found) or not os.path.isdir(found):
        return False
    names = set(os.listdir(found))
    if not names.isdisjoint({"commondir", "config.worktree", "modules"}):
        return False
    if any(name.startswith("sharedindex.") for name in names):
        return False
    try:
        with open(os.path.join(found, "config"), "rb") as file:
            config = file.read(MAX_CONFIG_BYTES + 1)
        index = b""
        if "index" in names:
            with open(os.path.join(found, "index"), "rb") as file:
                index = file.read(MAX_INDEX_BYTES + 1)
    except OSError:
        return False
    if len(config) > MAX_CONFIG_BYTES or len(index) > MAX_INDEX_BYTES or _GITLINK in index:
        return False
    return _has_harmless_keys(config)


def _has_harmless_keys(config: bytes) -> bool:
    try:
        lines = config.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        return False
    keys: frozenset[str] = frozenset()
    for line in (line.strip(" \t\r") for line in lines):
        section, key = _SECTION.fullmatch(line), _KEY.fullmatch(line)
        if section is not None:
            if section[1].lower() not in _HARMLESS:
                return False
            keys = _HARMLESS[section[1].lower()]
        elif line and line[0] not in "#;" and (key is None or key[1].lower() not in keys):
            return False
    return True
