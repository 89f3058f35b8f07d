"""Read the CLAUDE.md files and rules that apply to every run of a project, in order of precedence.

The order is: the managed CLAUDE.md, the user's CLAUDE.md and rules, the folders above the project, and each folder from the
project's root to the working directory, the nearest last. Within a folder it is: CLAUDE.md, .claude/CLAUDE.md, AGENTS.md and
.claude/rules (both only in the project), CLAUDE.local.md. A file is included once, however many names it has. Imports
(`@path`) follow the file that names them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import field, replace
from pathlib import Path

from ...ground.diagnostic import Diagnostic
from ...ground.disk import is_within, may_exist
from ...ground.frozen import frozen, mutable
from ...ground.globs import compile_glob
from ...ground.patterns import regex
from ...ground.text import without_hidden
from ...skills.fields import Fields
from ...skills.files import read_text
from ...skills.frontmatter import read_frontmatter
from ...skills.index import claude_home, folders_up
from ...skills.outline import fence_behind
from .claude import ClaudeFolders, MarkdownFile, markdown_below, user_boundary

MAX_MEMORY_BYTES = 256 * 1024
MAX_MEMORY_FILES = 200
MAX_IMPORT_HOPS = 4


@frozen
class MemoryFile:
    """One memory file.

    `scope` is `managed`, `user`, `above` (in a folder above the project), `project` or `local`. A rule with `paths` applies
    to files that match one of these globs, relative to `folder`.
    """

    path: str
    scope: str
    text: str
    paths: tuple[str, ...] = ()
    folder: str = ""


@frozen
class ProjectMemory:
    """The memory of a run: `files` always apply, `rules` only to some files; `diagnostics` reports what was omitted."""

    files: tuple[MemoryFile, ...] = ()
    rules: tuple[MemoryFile, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()

    def rules_for(self, path: str) -> list[MemoryFile]:
        """The rules that apply to the file with this absolute path."""
        return [rule for rule in self.rules if is_for(rule.paths, path, rule.folder)]


def is_for(patterns: Sequence[str], path: str, folder: str) -> bool:
    """Whether a file is below a folder, and its path relative to that folder matches one of the patterns."""
    real, place = os.path.realpath(path), os.path.realpath(folder)
    if not is_within(real, place):
        return False
    relative = os.path.relpath(real, place).replace(os.sep, "/")
    return any(fits.fullmatch(relative) for fits in map(compile_glob, patterns) if fits)


def read_memory(
    folders: ClaudeFolders,
    *,
    agents_md: str = "fallback",
    allow_outside_imports: bool = False,
    excludes: Sequence[str] = (),
    own_excludes: Sequence[str] = (),
) -> ProjectMemory:
    """Read the memory of a project and its user.

    AGENTS.md is read if there is no CLAUDE.md (`agents_md="fallback"`), in addition to it (`both`) or never (`never`).
    Files above the project are read if they belong to this user or to root and are not writable by everyone. Imports from
    outside the project by its files are omitted unless `allow_outside_imports`. `excludes` are globs of absolute paths that
    are not read, except as managed memory; `own_excludes` apply only to the memory of the project itself, with its imports.
    """
    reading = _MemoryReading(allow_outside_imports, tuple(excludes), tuple(own_excludes))
    if folders.managed_dir is not None:
        reading.add(os.path.join(folders.managed_dir, "CLAUDE.md"), "managed", None)
    if folders.user_dir is not None:
        reading.add(os.path.join(folders.user_dir, "CLAUDE.md"), "user", None)
        reading.add_rules(os.path.join(folders.user_dir, "rules"), "user", folders.boundary, folders.project_dir)
    if folders.reads_project:
        # From the root of the file system down to the folder that contains the project.
        for above in reversed(Path(os.path.realpath(folders.project_dir)).parents):
            reading.add_above(str(above), folders)
    is_found = any(os.path.isfile(os.path.join(folder, name)) for folder in folders.folders for name in _CLAUDE_NAMES)
    with_agents = agents_md == "both" or (agents_md == "fallback" and not is_found)
    for folder in folders.folders:
        reading.add_folder(folder, folders, with_agents)
    return reading.memory()


def read_nested_memory(folders: ClaudeFolders, path: str, excludes: Sequence[str] = ()) -> ProjectMemory:
    """Read the memory of the folders below the working directory on the path to one file, except those in `folders`.

    `excludes` are globs of absolute paths that are not read.
    """
    reading = _MemoryReading(False, tuple(excludes))
    for folder in nested_folders(folders, path):
        reading.add_folder(folder, folders, False)
    return reading.memory()


def nested_folders(folders: ClaudeFolders, path: str) -> list[str]:
    """The project folders above a file whose memory is not read when a run starts, outermost first."""
    if not (folders.reads_project or folders.reads_local):
        return []  # no setting source permits these folders
    folder = os.path.dirname(os.path.realpath(path))
    if not is_within(folder, folders.boundary):
        return []
    real_folders = {os.path.realpath(each) for each in folders.folders}
    return [each for each in reversed(folders_up(folders.boundary, folder)) if each not in real_folders]


_CLAUDE_NAMES = ("CLAUDE.md", os.path.join(".claude", "CLAUDE.md"))


@mutable
class _MemoryReading:
    """A reader that collects memory files, each once, and what was left out."""

    allow_outside: bool
    excludes: tuple[str, ...] = ()
    own_excludes: tuple[str, ...] = ()
    files: list[MemoryFile] = field(default_factory=list)
    rules: list[MemoryFile] = field(default_factory=list)
    problems: list[Diagnostic] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)

    def memory(self) -> ProjectMemory:
        return ProjectMemory(tuple(self.files), tuple(self.rules), tuple(self.problems))

    def add_folder(self, folder: str, folders: ClaudeFolders, with_agents: bool) -> None:
        """Add the memory of one folder of the project."""
        if folders.reads_project:
            for name in (*_CLAUDE_NAMES, *(["AGENTS.md"] if with_agents else [])):
                self.add(os.path.join(folder, name), "project", folders.boundary)
            self.add_rules(os.path.join(folder, ".claude", "rules"), "project", folders.boundary, folder)
        if folders.reads_local:
            self.add(os.path.join(folder, "CLAUDE.local.md"), "local", folders.boundary)

    def add_above(self, folder: str, folders: ClaudeFolders) -> None:
        """Add the memory of a folder above the project, unless another user may have written it."""
        names = [*_CLAUDE_NAMES, *(["CLAUDE.local.md"] if folders.reads_local else [])]
        for path in (os.path.join(folder, name) for name in names):
            if os.path.dirname(path) == claude_home() or not os.path.isfile(path):
                continue
            status = os.stat(path)
            if status.st_uid not in (os.geteuid(), 0) or status.st_mode & 0o002:
                self.leave_out(path, "it is above the project and is owned by another user or writable by anyone")
            else:
                self.add(path, "above", os.path.realpath(folder))

    def add(self, path: str, scope: str, boundary: str | None, hops: int = 0) -> None:
        """Read one file, then its imports."""
        text = self.read(path, scope, boundary, hops > 0) if may_exist(path) else None
        if text is None:
            return
        text = without_comments(without_hidden(text))
        if text.strip():
            self.files.append(MemoryFile(path, scope, text.strip("\n")))
        for target in import_targets(text, os.path.dirname(path)):
            if hops >= MAX_IMPORT_HOPS:
                self.leave_out(target, f"imported through more than {MAX_IMPORT_HOPS} files, last by {path}")
            else:
                self.add(target, scope, None if self.allow_outside else boundary, hops + 1)

    def add_rules(self, root: str, scope: str, boundary: str, folder: str) -> None:
        """Add the rule files below `root`; those with `paths` apply to files below `folder`."""
        boundary = boundary if scope == "project" else user_boundary(os.path.dirname(root))
        for file in markdown_below(root, scope, boundary, self.problems):
            text = self.read(file.path, scope, boundary, False)
            if text is not None:
                self.add_rule(file, text, folder)

    def add_rule(self, file: MarkdownFile, text: str, folder: str) -> None:
        front = read_frontmatter(text)
        fields = Fields(front)
        paths = fields.globs("paths")
        body = without_comments(without_hidden(front.body)).strip("\n")
        for note in fields.without_effect("rule-file"):
            self.problems.append(replace(note, path=file.path))
        for pattern in paths:
            if compile_glob(pattern) is None:
                self.leave_out(
                    file.path, f"the pattern {pattern[:80]!r} is empty or has too many braces, and matches nothing"
                )
        if body.strip():
            (self.rules if paths else self.files).append(
                MemoryFile(file.path, file.scope, body, paths=paths, folder=folder)
            )

    def read(self, path: str, scope: str, boundary: str | None, is_import: bool) -> str | None:
        real = os.path.realpath(path)
        if real in self.seen or self.is_excluded(path, scope):
            return None
        self.seen.add(real)
        if len(self.files) + len(self.rules) >= MAX_MEMORY_FILES:
            self.leave_out(path, f"more than {MAX_MEMORY_FILES} files of memory")
            return None
        try:
            return read_text(path, boundary=boundary, max_bytes=MAX_MEMORY_BYTES)
        except OSError as error:
            outside = is_import and boundary is not None and not is_within(real, boundary)
            advice = '; to import it, set "allowOutsideImports": true in trusted settings' if outside else ""
            self.leave_out(path, f"{error}{advice}")
            return None

    def is_excluded(self, path: str, scope: str) -> bool:
        if scope == "managed":
            return False
        globs = (*self.excludes, *(self.own_excludes if scope in ("project", "local") else ()))
        names = {path.lstrip("/"), os.path.realpath(path).lstrip("/")}
        patterns = [compile_glob(pattern.lstrip("/")) for pattern in globs]
        return any(fits.fullmatch(name) for fits in patterns if fits for name in names)

    def leave_out(self, path: str, reason: str) -> None:
        self.problems.append(Diagnostic.left_out("memory", reason, path))


# --- the text of one file --------------------------------------------------------------------------------------------

_COMMENT = regex(r"[ ]{0,3}<!--")
_CODE_SPAN = regex(r"`+[^`\n]*`+")
_IMPORT = regex(r"(?<![\w@/.`-])@((?:~|\.{1,2})?/?[\w.-][\w./-]*)")


def without_comments(text: str) -> str:
    """The text without HTML comments on lines of their own; those in fenced code are kept."""
    kept_lines: list[str] = []
    comment: list[str] = []
    fence = ""
    for line in text.split("\n"):
        rest = line if fence else _behind_comments(line, is_open=bool(comment))
        if rest is None:
            comment.append(line)
            continue
        comment = []
        if rest.strip() or rest == line:
            kept_lines.append(rest)
            fence = fence_behind(fence, rest)
    # An unclosed comment counts as text: omitting the rest of the file would lose more.
    return "\n".join([*kept_lines, *comment])


def _behind_comments(line: str, *, is_open: bool) -> str | None:
    """The text after the comments at the beginning of a line; None if the last one continues on the next line."""
    position = 0
    while True:
        if not is_open:
            begin = _COMMENT.match(line, position)
            if begin is None:
                return line[position:]
            position = begin.end()
        end = line.find("-->", position)
        if end < 0:
            return None
        position, is_open = end + 3, False


def import_targets(text: str, folder: str) -> list[str]:
    """The files that a text imports, in order: existing files named as `@path` outside code."""
    targets: list[str] = []
    fence = ""
    for line in text.split("\n"):
        before, fence = fence, fence_behind(fence, line)
        if before or fence or "@" not in line:
            continue
        for match in _IMPORT.finditer(_CODE_SPAN.sub("", line)):
            path = _existing(match[1], folder)
            if path is not None and path not in targets:
                targets.append(path)
    return targets


def _existing(name: str, folder: str) -> str | None:
    """The file that an import names, None if it does not exist; a full stop after the name may end the sentence."""
    for candidate in (name, name.rstrip(".")):
        path = os.path.normpath(os.path.join(folder, os.path.expanduser(candidate)))
        if os.path.isfile(path):
            return path
    return None
