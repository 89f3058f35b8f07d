"""Keep git from running what a repository's own configuration names: hooks, monitors, drivers, pagers, helpers.

The environment has the last word in git: it turns off hooks and monitors and keeps git out of submodules and of bare
repositories among ordinary files. For everything else, a sandbox replaces a configuration that could run something with its
harmless part (`git_settings`); without mounts, the permission gate asks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from ...ground.disk import nearest_holding, walk
from ...ground.patterns import regex
from .git_settings import GitSettings, read_config
from .protected import common_dir_of, git_dir_of, repository_of

_OVERRULED = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "diff.ignoreSubmodules": "all",
    "submodule.recurse": "false",
    "fetch.recurseSubmodules": "false",
    "status.submoduleSummary": "false",
    "diff.submodule": "short",
    "log.showSignature": "false",
    "commit.gpgSign": "false",
    "tag.gpgSign": "false",
    "push.gpgSign": "false",
    "protocol.ext.allow": "never",
    "safe.bareRepository": "explicit",
}
_POWERLESS = frozenset(map(str.lower, _OVERRULED))
_GIT = regex(r"git")
_CHANGES = regex(
    r"\bgit\b[^;&|\n]*\b(?:commit|merge|rebase|checkout|switch|push|pull|am|cherry-pick|revert|worktree|gc|receive-pack)\b"
)
_MOST_NAMED = 5
_MOST_FOLDERS = 20_000


def overruling(count: int = 0) -> dict[str, str]:
    """The variables that override a repository's settings; `count` is the number of settings already in the environment."""
    variables = {"GIT_CONFIG_COUNT": str(count + len(_OVERRULED))}
    for number, (key, value) in enumerate(_OVERRULED.items(), count):
        variables |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return variables


def is_powerless(settings: GitSettings) -> bool:
    """Whether git runs nothing that these settings name, once the environment has overridden some."""
    return _POWERLESS.issuperset(settings.dropped)


def foreign_settings(folder: str, roots: Sequence[str], *, deep: bool) -> dict[str, GitSettings]:
    """The configurations that could run something, by resolved path, of the repositories that contain `folder` or one of the
    workspace's `roots` and, with `deep`, of those inside the roots (in the first 20,000 folders of each).
    """
    by_path: dict[str, GitSettings] = {}
    for path in _all_configurations(folder, roots, deep):
        settings = read_config(path)
        if settings is not None and settings.dropped:
            by_path[os.path.realpath(path)] = settings
    return by_path


def hook_folders(folder: str, roots: Sequence[str]) -> Iterator[str]:
    """Yield the folders with hooks of the repositories that contain `folder` or one of the `roots`, or are inside these."""
    for git_dir in {os.path.dirname(path) for path in _all_configurations(folder, roots, deep=True)}:
        if _holds_hooks(f"{git_dir}/hooks"):
            yield f"{git_dir}/hooks"


def _all_configurations(folder: str, roots: Sequence[str], deep: bool) -> Iterator[str]:
    tops = {nearest_holding(".git", place) for place in (folder, *roots)} - {None}
    if deep:
        tops.update(_repositories_in(roots))
    for top in tops:
        yield from _configurations(str(top))


def names_git(command: str) -> bool:
    """Whether a command line could refer to git or one of its programs."""
    return _GIT.search(command) is not None


def _repositories_in(roots: Iterable[str]) -> Iterator[str]:
    for root in roots:
        for folder, folders, files in islice(walk(root), _MOST_FOLDERS):
            names = {*folders, *files}
            if ".git" in names:
                if ".git" in folders:
                    folders.remove(".git")
                yield folder
            # A bare repository has no `.git`: git recognises it by these names.
            elif names >= {"HEAD", "objects"} or names >= {"HEAD", "commondir"}:
                folders.clear()
                yield folder


def _configurations(top: str) -> Iterator[str]:
    """Yield the files, existing or not, that may configure git in a working tree, its linked worktrees and submodules."""
    link = os.path.join(top, ".git")
    own = git_dir_of(top) if os.path.lexists(link) else top
    common = common_dir_of(own)
    for git_dir in dict.fromkeys((own, common)):
        yield from (f"{git_dir}/config", f"{git_dir}/config.worktree")
    for name in ("modules", "worktrees"):
        for folder, folders, files in walk(f"{common}/{name}"):
            folders[:] = [each for each in folders if each not in ("objects", "refs", "logs")]
            yield from (os.path.join(folder, each) for each in files if each in ("config", "config.worktree"))


def git_note(command: str, folder: str, foreign: Mapping[str, GitSettings], *, is_left_out: bool) -> str | None:
    """The note in the result of a git command for which parts of the repository's configuration were disabled; None if none
    were. `is_left_out` is true if the command was shown only the harmless part of these configurations.
    """
    parts = []
    dropped = {name for settings in foreign.values() for name in settings.dropped}
    if _CHANGES.search(command) and ("core.hookspath" in dropped or _has_hooks(folder)):
        parts.append("git's hooks were disabled, so their checks did not run")
    setting_names = sorted(dropped - _POWERLESS)
    if setting_names and is_left_out and _GIT.search(command):
        more = f" and {len(setting_names) - _MOST_NAMED} more" if len(setting_names) > _MOST_NAMED else ""
        parts.append(f"git ignored these settings of a repository here: {', '.join(setting_names[:_MOST_NAMED])}{more}")
    return f"{'; '.join(parts)}, since this project is not trusted" if parts else None


def _has_hooks(folder: str) -> bool:
    top = nearest_holding(".git", folder)
    return top is not None and _holds_hooks(f"{repository_of(top)}/hooks")


def _holds_hooks(folder: str) -> bool:
    try:
        names = os.listdir(folder)
    except (OSError, ValueError):  # missing, or not a valid file name
        return False
    # `git init` creates samples, which are not run.
    return any(not name.endswith(".sample") for name in names)
