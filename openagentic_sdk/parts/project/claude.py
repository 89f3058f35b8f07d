"""Find the root of a project, and the folders of the project and of the user that contain `.claude` files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Protocol, TypeVar

from ...ground.diagnostic import Diagnostic
from ...ground.disk import may_exist, nearest_holding
from ...ground.frozen import frozen
from ...skills.files import Bounds, read_text, walk_files
from ...skills.index import claude_home, folders_up
from ...skills.names import name_key

# A generous limit: Claude Code also stores the history of every conversation in this file.
MAX_CLAUDE_JSON_BYTES = 64 * 1024 * 1024
MANAGED_DIR = "/etc/claude-code"


@frozen
class ClaudeFolders:
    """The places from which a run reads `.claude` files, all absolute.

    `project_dir` is the project's root and `folders` are those from it down to the working directory, root first; `boundary`
    is the root's real path, which links must not leave. `user_dir` is `~/.claude`, `managed_dir` the folder of the machine's
    administrator. A place that the setting sources exclude is None.
    """

    project_dir: str
    folders: tuple[str, ...]
    boundary: str
    user_dir: str | None
    managed_dir: str | None
    reads_project: bool
    reads_local: bool


def find_project_root(cwd: str | os.PathLike[str]) -> str:
    """Find the nearest folder from `cwd` upwards that contains `.git`; return `cwd` itself if none does."""
    start = os.path.abspath(cwd)
    return nearest_holding(".git", start) or start


def claude_folders(
    project_dir: str | os.PathLike[str],
    *,
    cwd: str | os.PathLike[str] | None = None,
    setting_sources: Iterable[str] = (),
    home: str | os.PathLike[str] | None = None,
    managed_dir: str | os.PathLike[str] | None = MANAGED_DIR,
) -> ClaudeFolders:
    """The folders that `setting_sources` (`user`, `project`, `local`) permit; without any, nothing is read."""
    sources = frozenset(setting_sources)
    return ClaudeFolders(
        project_dir=os.path.abspath(project_dir),
        folders=tuple(reversed(folders_up(project_dir, cwd))),
        boundary=os.path.realpath(project_dir),
        user_dir=claude_home(home) if "user" in sources else None,
        managed_dir=os.path.abspath(managed_dir) if managed_dir is not None and sources else None,
        reads_project="project" in sources,
        reads_local="local" in sources,
    )


@frozen
class MarkdownFile:
    """A Markdown file in one of the folders. `relative` is its path there; links must not leave `boundary`.

    For a plugin's file, these refer to the plugin's folder, and `prefix` is prepended to its name.
    """

    path: str
    relative: str
    scope: str
    boundary: str
    prefix: str = ""
    plugin_root: str = ""
    plugin_data: str = ""


def markdown_files(folders: ClaudeFolders, kind: str, problems: list[Diagnostic]) -> Iterator[MarkdownFile]:
    """Yield the `.md` files of `.claude/<kind>`: the project's, nearest folder first, then the user's."""
    if folders.reads_project:
        for folder in reversed(folders.folders):
            place = os.path.join(folder, ".claude", kind)
            yield from markdown_below(place, "project", folders.boundary, problems)
    if folders.user_dir is not None:
        boundary = user_boundary(folders.user_dir)
        yield from markdown_below(os.path.join(folders.user_dir, kind), "user", boundary, problems)


class NamedFile(Protocol):
    """A named object that a Markdown file defines."""

    @property
    def name(self) -> str:
        """The object's name."""

    @property
    def path(self) -> str:
        """The file that defines the object."""


N = TypeVar("N", bound=NamedFile)


def read_named(
    folders: ClaudeFolders,
    kind: str,
    more: Iterable[MarkdownFile],
    max_bytes: int,
    parse: Callable[[str, MarkdownFile], tuple[N | None, list[Diagnostic]]],
) -> tuple[tuple[N, ...], tuple[Diagnostic, ...]]:
    """Read the files of `.claude/<kind>` and `more`; return the first object of each name, and the problems found."""
    problems: list[Diagnostic] = []
    by_name: dict[str, N] = {}
    one = kind.removesuffix("s")
    for file in (*markdown_files(folders, kind, problems), *more):
        try:
            text = read_text(file.path, boundary=file.boundary, max_bytes=max_bytes)
        except OSError as error:
            problems.append(Diagnostic.left_out(one, error, file.path))
            continue
        item, notes = parse(text, file)
        problems.extend(replace(note, path=file.path) for note in notes)
        winner = by_name.setdefault(name_key(item.name), item) if item is not None else None
        if item is not None and winner is not None and winner is not item:
            hidden = f"the {one} {item.name} is hidden by {winner.path}"
            problems.append(Diagnostic(f"{one}-shadowed", hidden, path=item.path))
    return tuple(sorted(by_name.values(), key=lambda each: each.name)), tuple(problems)


def user_boundary(user_dir: str) -> str:
    """The folder that links in the user's own files must not leave: the home folder, unless the files are elsewhere."""
    usual = os.path.basename(user_dir) == ".claude"
    return os.path.realpath(os.path.dirname(user_dir) if usual else user_dir)


def claude_json(folders: ClaudeFolders) -> str | None:
    """Claude Code's own file for the user: `~/.claude.json`, or `.claude.json` in the folder $CLAUDE_CONFIG_DIR.

    None if the user's files are not read.
    """
    if folders.user_dir is None:
        return None
    usual = os.path.basename(folders.user_dir) == ".claude"
    return os.path.join(os.path.dirname(folders.user_dir) if usual else folders.user_dir, ".claude.json")


def markdown_below(root: str, scope: str, boundary: str, problems: list[Diagnostic]) -> Iterator[MarkdownFile]:
    """Yield the `.md` files below one folder, by path, without links that lead outside the real folder `boundary`."""
    if not may_exist(root):
        return
    left_out: list[tuple[str, str]] = []
    for _, files in walk_files(root, boundary=boundary, bounds=Bounds(), problems=left_out):
        for file in files:
            if file.name.endswith(".md"):
                yield MarkdownFile(file.path, os.path.relpath(file.path, root), scope, boundary)
    problems.extend(Diagnostic.left_out("folder", reason, path) for path, reason in left_out)
