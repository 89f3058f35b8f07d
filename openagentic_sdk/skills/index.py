"""The available skills, which of several with one name wins, and why.

A skill is a folder with a SKILL.md below one of the roots of a `SkillIndex`. Nothing is shadowed silently: shadowed and
skipped skills are listed beside the winners. The result is sorted and depends on nothing but the files.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

from ..errors import FileRefusedError, SkillNotFoundError
from ..ground.clock import Clock, SystemClock
from ..ground.diagnostic import Diagnostic
from ..ground.disk import is_within, may_exist
from ..ground.frozen import frozen
from ..ground.system import user_home
from ..ground.text import one_line
from .files import SAME_TICK_S, Bounds, FolderListings, FoundFile, read_text, walk_files
from .names import name_key
from .parse import SkillDoc, parse_skill_markdown

MAX_SKILL_BYTES = 1024 * 1024
PROJECT_FOLDERS = (".claude/skills", ".agents/skills")
Precedence = Literal["project", "user"]
# The user's folders, in addition to `skills` in `claude_home`.
USER_FOLDERS = (".agents/skills", ".openagentic-sdk/skills")
# An error that names a thousand skills would be all that the model reads.
_MAX_NAMED = 50


@frozen
class SkillInfo:
    """One skill, without its text.

    `path` is the absolute path of its SKILL.md, `folder` the name of its folder, `scope` `project`, `user` or `path`.
    `root` is the folder of skills below which it was found, `boundary` the real folder that its files may not leave.
    """

    name: str
    summary: str
    path: str
    scope: str = "path"
    folder: str = ""
    root: str = ""
    boundary: str = ""
    argument_hint: str = ""
    model_invocable: bool = True
    user_invocable: bool = True
    paths: tuple[str, ...] = ()
    allowed_tools: tuple[str, ...] = ()
    hooks: Any = None
    plugin_root: str = ""
    plugin_data: str = ""
    diagnostics: tuple[Diagnostic, ...] = ()

    @property
    def id(self) -> str:
        """The name with its scope, `project:commit`: an address that no other scope can take over."""
        return f"{self.scope}:{self.name}"

    @property
    def names(self) -> tuple[str, ...]:
        """All names of the skill: the declared one, its folder's, and both with the scope, in the order of `find_skill`."""
        return (self.name, self.folder, self.id, f"{self.scope}:{self.folder}")


@frozen
class Shadowed:
    """A skill that is not listed, the one listed instead, and the deciding rule."""

    loser: SkillInfo
    winner: SkillInfo
    reason: str


@frozen
class SkillRoot:
    """A folder in which to look for skills.

    `boundary` is the real folder that links may not leave. A lower `rank` wins. `prefix` precedes the name of each skill.
    If the name of a skill from a folder below the working directory is taken, that folder's path `nested` precedes it:
    `apps/web:deploy`.
    """

    folder: str
    scope: str
    boundary: str
    rank: tuple[int, int]
    prefix: str = ""
    plugin_root: str = ""
    plugin_data: str = ""
    nested: str = ""


@frozen
class IndexResult:
    """The listed skills, sorted by name, those shadowed by another of the same name, and the problems of the files."""

    skills: tuple[SkillInfo, ...]
    shadowed: tuple[Shadowed, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()

    @property
    def hidden(self) -> tuple[SkillInfo, ...]:
        """The shadowed skills, which may still be found by a qualified id."""
        return tuple(pair.loser for pair in self.shadowed)

    def find(self, name: str) -> SkillInfo:
        """Find the skill with this declared name, folder name or qualified id. Raises `SkillNotFoundError`."""
        skill = find_skill(name, self.skills, self.hidden)
        if skill is not None:
            return skill
        names = [skill.name for skill in self.skills]
        raise SkillNotFoundError(name, [*names[:_MAX_NAMED], *(["..."] if len(names) > _MAX_NAMED else [])])


def find_skill(name: str, skills: Iterable[SkillInfo], hidden: Iterable[SkillInfo] = ()) -> SkillInfo | None:
    """Find the skill with this declared name, else folder name, else qualified id; return it, or None.

    Only qualified ids are also looked up among the `hidden` skills, which are shadowed.
    """
    key = name_key(name)
    listed = tuple(skills)
    # All declared names before any folder's name: a folder's name cannot take over another skill's.
    for kind, candidates in enumerate((listed, listed, (*listed, *hidden), (*listed, *hidden))):
        for skill in candidates:
            if name_key(skill.names[kind]) == key:
                return skill
    return None


def nested_variants(skill: SkillInfo, skills: Iterable[SkillInfo]) -> tuple[str, ...]:
    """The names of the skills from subfolders that share this skill's name, and therefore have a prefix."""
    ending = f":{name_key(skill.name)}"
    return tuple(
        each.name
        for each in skills
        if each.scope == "project" and each.path != skill.path and name_key(each.name).endswith(ending)
    )


def index_skills(
    project_dir: str | os.PathLike[str] | None = None,
    *,
    cwd: str | os.PathLike[str] | None = None,
    setting_sources: Iterable[str] = (),
    paths: Sequence[str | os.PathLike[str]] = (),
    home: str | os.PathLike[str] | None = None,
    precedence: Precedence = "user",
) -> list[SkillInfo]:
    """Read the skills of a project, sorted by name; with `user` in `setting_sources` also those of the user.

    `cwd`, a folder inside the project, adds the skills of the folders between it and the project's root. `paths` are
    additional folders of skills. `precedence` (`project` or `user`) decides if both have the same name; `home` is the
    user's folder.
    """
    index = SkillIndex(
        project_dir, cwd=cwd, setting_sources=setting_sources, paths=paths, home=home, precedence=precedence
    )
    return list(index.read().skills)


def claude_home(home: str | os.PathLike[str] | None = None) -> str:
    """The user's own folder of Claude files: `.claude` in `home`; without a `home`, `$CLAUDE_CONFIG_DIR` or `~/.claude`."""
    if home is not None:
        return os.path.join(os.path.abspath(home), ".claude")
    path = os.environ.get("CLAUDE_CONFIG_DIR")
    return os.path.abspath(os.path.expanduser(path)) if path else os.path.join(user_home(), ".claude")


def folders_up(project_dir: str | os.PathLike[str], cwd: str | os.PathLike[str] | None) -> list[str]:
    """The folders from `cwd` up to the project's root, nearest first; only the root if `cwd` is not inside it."""
    root = os.path.abspath(project_dir)
    folder = os.path.abspath(cwd) if cwd is not None else root
    folders: list[str] = []
    while folder != root:
        parent = os.path.dirname(folder)
        if parent == folder:
            return [root]
        folders.append(folder)
        folder = parent
    return [*folders, root]


# The state of a file when it was read: its size, both times, and its inode.
_Stamp = tuple[int, int, int, int]


class SkillIndex:
    """The skills of one project and user, read again only if a file changed.

    Settings are those of `index_skills`; `below` are additional folders of the project, whose skills come last, and
    `plugins` the folders of plugins. `roots` is where to look for skills, in order of priority: explicit paths, then
    project and user according to `precedence`. Within the project the folder nearest to `cwd` wins, and `.claude` before
    `.agents`.
    """

    def __init__(
        self,
        project_dir: str | os.PathLike[str] | None = None,
        *,
        cwd: str | os.PathLike[str] | None = None,
        setting_sources: Iterable[str] = (),
        paths: Sequence[str | os.PathLike[str]] = (),
        home: str | os.PathLike[str] | None = None,
        precedence: Precedence = "user",
        below: Sequence[str] = (),
        plugins: Sequence[SkillRoot] = (),
        bounds: Bounds | None = None,
        clock: Clock | None = None,
    ) -> None:
        order = {"project": (1, 2), "user": (2, 1)}[precedence]
        explicit = [os.path.abspath(path) for path in paths]
        roots = [SkillRoot(path, "path", os.path.realpath(path), (0, i)) for i, path in enumerate(explicit)]
        if project_dir is not None:
            boundary = os.path.realpath(project_dir)
            nearest = [*folders_up(project_dir, cwd), *below]
            start = os.path.abspath(cwd) if cwd is not None else os.path.abspath(project_dir)
            for i, (folder, place) in enumerate((folder, place) for folder in nearest for place in PROJECT_FOLDERS):
                nested = os.path.relpath(folder, start) if folder in below else ""
                where = os.path.join(folder, place)
                roots.append(SkillRoot(where, "project", boundary, (order[0], i), nested=nested))
        if "user" in setting_sources:
            base = os.path.abspath(home) if home is not None else user_home()
            own = claude_home(home)
            places = [os.path.join(own, "skills"), *(os.path.join(base, place) for place in USER_FOLDERS)]
            for i, place in enumerate(places):
                # Links may lead anywhere in the user's folder; a Claude folder elsewhere is a boundary of its own.
                boundary = os.path.realpath(base if os.path.dirname(own) == base or i else own)
                roots.append(SkillRoot(place, "user", boundary, (order[1], i)))
        self.roots = sorted([*roots, *plugins], key=lambda root: root.rank)
        self._bounds = bounds or Bounds()
        self._clock = clock or SystemClock()
        self._listings = FolderListings(self._clock)
        self._read: dict[str, tuple[_Stamp, SkillInfo]] = {}

    def read(self) -> IndexResult:
        """Read the skills from the current files."""
        problems: list[Diagnostic] = []
        skills: list[tuple[SkillRoot, SkillInfo]] = []
        seen: set[str] = set()
        for root in self.roots:
            skills.extend((root, info) for info in self._below(root, seen, problems))
        winners, shadowed = _settle(skills)
        notes = [replace(note, path=info.path) for info in winners for note in info.diagnostics]
        clashes = [
            Diagnostic(
                "skill-shadowed",
                f"{pair.loser.name!r} is hidden by {pair.winner.path}: {pair.reason}",
                path=pair.loser.path,
            )
            for pair in shadowed
        ]
        return IndexResult(tuple(winners), tuple(shadowed), (*problems, *notes, *clashes))

    def find(self, name: str) -> SkillInfo:
        """Like `IndexResult.find`, on the current files."""
        return self.read().find(name)

    def _below(self, root: SkillRoot, seen: set[str], problems: list[Diagnostic]) -> list[SkillInfo]:
        """The skills below one root, except those whose real files were `seen` below another."""
        if not os.path.isdir(root.folder):
            if root.scope == "path":  # the others need not exist, this one was named
                reason = "is not a folder: name one that contains skills"
                problems.append(Diagnostic.left_out("skill", reason, root.folder))
            # A folder that cannot be examined is walked, which reports the reason.
            if root.scope == "path" or not may_exist(root.folder):
                return []
        left_out: list[tuple[str, str]] = []
        skills: list[SkillInfo] = []
        folders = walk_files(
            root.folder, boundary=root.boundary, bounds=self._bounds, problems=left_out, listings=self._listings
        )
        inside: str | None = None  # the folder of the last skill: what lies below it belongs to it
        for folder, files in folders:
            # SKILL.md, else the same name in another letter case, as some published skills have it.
            candidates = [file for file in files if file.name.casefold() == "skill.md"]
            file = next((file for file in candidates if file.name == "SKILL.md"), candidates[0] if candidates else None)
            if file is None or file.real_path in seen or (inside is not None and is_within(folder, inside)):
                continue
            inside = folder if folder != root.folder else None
            seen.add(file.real_path)
            try:
                skills.append(self._info(file, root))
            except OSError as error:
                left_out.append((file.path, str(error)))
        problems.extend(Diagnostic.left_out("skill", reason, path) for path, reason in left_out)
        return skills

    def _info(self, file: FoundFile, root: SkillRoot) -> SkillInfo:
        status = os.stat(file.real_path)
        if not stat.S_ISREG(status.st_mode):
            raise FileRefusedError(f"{file.path} is not a regular file")
        stamp = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
        entry = self._read.get(file.path)
        if entry is not None and entry[0] == stamp:
            return entry[1]
        text = read_text(file.path, boundary=root.boundary, max_bytes=MAX_SKILL_BYTES)
        doc = parse_skill_markdown(text, folder=_folder_of(file.path), head_only=True)
        info = describe_skill(doc, file.path, root)
        # A file changed within the clock's resolution could change once more without a new stamp.
        if self._clock.now() - status.st_ctime > SAME_TICK_S:
            self._read[file.path] = (stamp, info)
        return info


def describe_skill(doc: SkillDoc, path: str, root: SkillRoot) -> SkillInfo:
    """The index entry of a parsed skill whose SKILL.md is at `path`, below `root`."""
    return SkillInfo(
        name=root.prefix + doc.name,
        summary=f"{doc.summary} {one_line(doc.when_to_use)}".strip(),
        path=path,
        scope=root.scope,
        folder=root.prefix + _folder_of(path),
        plugin_root=root.plugin_root,
        plugin_data=root.plugin_data,
        root=root.folder,
        boundary=root.boundary,
        argument_hint=doc.argument_hint,
        model_invocable=not doc.disable_model_invocation,
        user_invocable=doc.user_invocable,
        paths=doc.paths,
        allowed_tools=doc.allowed_tools,
        hooks=doc.hooks,
        diagnostics=doc.diagnostics,
    )


def _folder_of(path: str) -> str:
    """The name of the folder that contains the file at an absolute path."""
    return path.rsplit(os.sep, 2)[-2]


def load_skill(info: SkillInfo) -> SkillDoc:
    """Read and parse the current file of a skill. Raises `OSError` if it can no longer be read."""
    try:
        text = read_text(info.path, boundary=info.boundary or None, max_bytes=MAX_SKILL_BYTES)
    except OSError as error:
        if error.strerror is None:
            raise  # the message is a sentence already
        raise type(error)(f"the skill {info.name!r} cannot be read from {info.path}: {error.strerror}") from error
    return parse_skill_markdown(text, folder=_folder_of(info.path))


def _settle(rooted_skills: Sequence[tuple[SkillRoot, SkillInfo]]) -> tuple[list[SkillInfo], list[Shadowed]]:
    """Choose the first skill of each name; return the chosen ones, sorted by name, and the shadowed ones.

    `rooted_skills` is in the order of the roots, then of the paths. A skill of a nested folder is renamed if its name is
    taken.
    """
    winners: dict[str, tuple[SkillRoot, SkillInfo]] = {}
    shadowed: list[Shadowed] = []
    for root, info in rooted_skills:
        key = name_key(info.name)
        if key in winners and root.nested:
            info = replace(info, name=f"{root.nested}:{info.name}", folder=f"{root.nested}:{info.folder}")
            key = name_key(info.name)
        if key not in winners:
            winners[key] = (root, info)
            continue
        winning_root, winner = winners[key]
        if winning_root.scope != root.scope:
            reason = f"skills of scope {winning_root.scope} take precedence over those of scope {root.scope}"
        elif winning_root.folder != root.folder:
            reason = f"{winning_root.folder} comes before {root.folder}"
        else:
            reason = "its path sorts first in the same folder of skills"
        shadowed.append(Shadowed(info, winner, reason))
    skills = sorted((info for _, info in winners.values()), key=lambda info: (info.name, info.path))
    return skills, shadowed
