"""Find what other programs trust in a workspace, at any depth: git's folders, settings of agents and editors, start files.

A command in a sandbox may change none of it, and what it makes of that kind is set aside: the next program that looks there
runs outside of the sandbox.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from ...ground.frozen import frozen

SETTINGS_FOLDERS = (".git", ".claude", ".vscode", ".husky")
SETTINGS_FILES = (".mcp.json", ".gitmodules", ".envrc", ".bashrc", ".bash_profile", ".profile", ".zshrc")
SETTINGS = frozenset((*SETTINGS_FOLDERS, *SETTINGS_FILES))
# git takes a folder with these for a repository, whatever its name: the file that makes it one, and its two folders.
BARE_HEAD, BARE_FOLDERS = "HEAD", frozenset({"objects", "refs"})
MAX_ENTRIES = 20_000
SET_ASIDE = ".from-sandbox"

Kind = Literal["folder", "file", "link", "bare"]


@frozen
class SettingsFound:
    """Each path with its kind, links with where they lead; `bare` is the HEAD of a repository that has no `.git`.

    `is_whole` is False when the tree was too large to be looked through.
    """

    kinds: Mapping[str, Kind]
    links: Mapping[str, str]
    is_whole: bool = True

    def to_protect(self, writable: Sequence[str]) -> list[str]:
        """What is to be read-only: the paths, and what links of such a name lead to inside of the workspace."""
        paths = []
        for path, kind in self.kinds.items():
            if kind == "bare":
                folder = os.path.dirname(path)
                paths += [os.path.join(folder, name) for name in ("config", "hooks", "info", BARE_HEAD)]
            elif kind == "link":
                real = os.path.realpath(path)
                if any(real.startswith(root.rstrip("/") + "/") for root in writable):
                    paths.append(real)
            else:
                paths.append(path)
        return [path for path in paths if os.path.exists(path)]


def find_settings(roots: Iterable[str]) -> SettingsFound:
    """Everything of that kind in the folders, links not followed; what lies in a folder that was found is part of it."""
    kinds: dict[str, Kind] = {}
    links: dict[str, str] = {}
    left, stack = MAX_ENTRIES, list(roots)
    while stack and left > 0:
        folder = stack.pop()
        try:
            with os.scandir(folder) as found:
                entries = {entry.name: entry for entry in found}
        except OSError:  # not to be listed, so not to be changed either
            continue
        left -= len(entries)
        if BARE_HEAD in entries and entries.keys() >= BARE_FOLDERS:
            kinds[os.path.join(folder, BARE_HEAD)] = "bare"
        for name, entry in entries.items():
            if name in SETTINGS:
                if entry.is_symlink():
                    kinds[entry.path], links[entry.path] = "link", os.readlink(entry.path)
                else:
                    kinds[entry.path] = "folder" if entry.is_dir(follow_symlinks=False) else "file"
            elif entry.is_dir(follow_symlinks=False):
                stack.append(entry.path)
    return SettingsFound(kinds, links, left > 0)


def set_aside_new(before: SettingsFound, roots: Iterable[str], notes: list[str]) -> None:
    """Rename what a command made of that kind, and put links back that it replaced; `notes` says what was done."""
    for path, target in before.links.items():
        if not os.path.islink(path) or os.readlink(path) != target:
            _rename_aside(path, notes)
            os.symlink(target, path)
    for path in find_settings(roots).kinds:
        if path not in before.kinds and stat.S_IMODE(os.lstat(path).st_mode) != PLACEHOLDER_MODE:
            _rename_aside(path, notes)


def _rename_aside(path: str, notes: list[str]) -> None:
    if os.path.lexists(path):
        os.replace(path, path + SET_ASIDE)
        notes.append(f"{path} decides what other programs do: what the command made of it is now {path}{SET_ASIDE}")


# An unusual mode: an empty folder that has it was made to stand for a missing one while a command runs.
PLACEHOLDER_MODE = 0o1500
