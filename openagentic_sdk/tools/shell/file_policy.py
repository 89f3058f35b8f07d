"""The file access of one command, as a value: derived from rules and protected places, enforced by the sandbox and when
changes are applied.

The deepest place above a path decides. By default, every path can be read, and only those in the workspace can be written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Literal

from ...ground.disk import is_within, nearest_holding, remove_tree
from ...ground.frozen import frozen
from ...ground.garbage import when_collected
from ...kernel.tool import RunResources, ToolContext
from .overlay import remove_layers
from .protected import Protected, is_git_content, protected_places, repository_of


def forbids_nothing(path: str) -> str | None:
    """Forbid no path."""
    return None


@frozen(kw_only=True)
class FilePolicy:
    """The file access of a command. `roots` are the resolved folders of the workspace, `writable` other folders that it may
    write.

    `hidden` files and folders cannot be read, nor their contents; `covered` folders are empty except for the workspace and
    what is `shown` in them; `readonly` and `protected` places cannot be changed. `forbids` maps a path to the reason why it
    may not be written, or None. With `git_writes`, what git commands write below `.git` may change, except its configuration
    and hooks. `problem` is the reason why mounts cannot enforce all rules, None if they can.
    """

    roots: tuple[str, ...]
    protected: Protected
    hidden: tuple[str, ...] = ()
    covered: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    readonly: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    forbids: Callable[[str], str | None] = field(default=forbids_nothing)
    git_writes: bool = False
    problem: str | None = None

    def is_protected(self, path: str) -> bool:
        """Whether the path is protected, as defined by the permission gate."""
        return self.protected.covers(path)

    def refusal(self, path: str) -> str | None:
        """The reason why a command may not change an absolute path of the workspace; None if it may."""
        if self.is_protected(path) and not (self.git_writes and self._is_git_content(path)):
            return "it determines what runs later"
        return self.forbids(path)

    def _is_git_content(self, path: str) -> bool:
        above, _, below = path.partition("/.git/")
        # Where `.git` is a file, it names another folder, which `git_dirs` finds; below a protected folder, git is
        # protected too.
        return is_git_content(below) and os.path.isdir(f"{above}/.git") and not self.is_protected(f"{above}/x")

    @property
    def git_dirs(self) -> list[str]:
        """With `git_writes`, the folders outside the workspace in which git stores commits: those of a worktree's
        repository, or of one that contains a root; otherwise none.
        """
        dirs = []
        for root in self.roots if self.git_writes else ():
            top = nearest_holding(".git", root)
            git_dir = None if top is None else os.path.realpath(repository_of(top))
            if (
                git_dir is not None
                and os.path.isdir(git_dir)
                and not any(is_within(git_dir, root) for root in self.roots)
            ):
                dirs.append(git_dir)
        return list(dict.fromkeys(dirs))


# The policy for an unconfined command.
NOTHING_CLOSED = FilePolicy(roots=(), protected=Protected())


def outermost(folders: Sequence[str]) -> tuple[str, ...]:
    """The folders that exist, resolved, without those inside another one."""
    outer_folders: list[str] = []
    for folder in sorted({os.path.realpath(folder) for folder in folders if os.path.isdir(folder)}):
        if not any(is_within(folder, outer) for outer in outer_folders):
            outer_folders.append(folder)
    return tuple(outer_folders)


class CommandRules:
    """A service that applies the permission rules to the files of a command. This default has no rules and no sandbox.

    `sandbox` applies to a tool that has none of its own.
    """

    sandbox: Literal["off", "auto", "require"] = "off"
    # Called before the next request to the model once a command runs in the background.
    before_step: Callable[[], None] | None = None

    def policy(self, ctx: ToolContext, command: str) -> FilePolicy:
        """The file access of a command whose call was permitted."""
        roots = outermost(ctx.workspace_roots or (ctx.cwd,))
        own = () if ctx.session_dir is None else (os.path.realpath(ctx.session_dir),)
        return FilePolicy(roots=roots, protected=protected_places(roots, own))


class RunTemp:
    """A run's folder for temporary files of its commands, and beside it the one for what they write to caches."""

    def __init__(self) -> None:
        import tempfile

        # Resolved, since mounts and the sandbox's rules compare real paths, and /tmp may be a link.
        self._place = os.path.realpath(tempfile.mkdtemp(prefix="openagentic-run-"))
        self.folder = f"{self._place}/tmp"
        for name in ("tmp", "caches"):
            os.mkdir(f"{self._place}/{name}")
        self._finalizer = when_collected(self, _remove_temp, self._place)

    def close(self) -> None:
        self._finalizer.detach()
        _remove_temp(self._place)


def _remove_temp(place: str) -> None:
    if os.path.isdir(place):
        remove_layers(f"{place}/caches")
        remove_tree(place)


def run_temp(ctx: ToolContext) -> RunTemp:
    """The temporary folder of the run of `ctx`."""
    return ctx.services.get(RunResources).get(RunTemp)
