"""The meaning of a path to a rule: its target, whether it is inside the workspace, and the patterns it matches.

A path is compared by its target and by every name on the way there (`Places`). A forbidding rule applies if any of them
matches, a permitting rule only if all do. Patterns are those of gitignore.
"""

from __future__ import annotations

import fnmatch
import functools
import os
import re
import stat
import sys
import unicodedata
from collections.abc import Iterable, Sequence

from ..ground.disk import is_within
from ..ground.frozen import frozen
from ..ground.globs import path_regex
from ..ground.patterns import regex
from ..ground.system import user_home
from ..tools.shell.protected import Protected
from .hold.steps import count_steps
from .shell import IS_GLOB, as_fnmatch

MAX_LINKS = 40
# No system opens a longer path (PATH_MAX of Linux, limits.h).
MAX_PATH_CHARS = 4096
# Each multiplies the time of a comparison by the depth of the path.
MAX_DOUBLE_STARS = 4

TOO_MANY_PATHS = "a wildcard expands to too many paths to check"
OPTION_NAME = "a wildcard expands to a file whose name looks like an option: write ./ before it"


_SPECIAL = regex(r"[*?\[\]]")


@frozen
class Places:
    """Every name of one file: the absolute path as written, the whole path after each link on the way (`others`), and the
    final target (`real`).

    `problem` is set if the path cannot be followed (a loop of links, a NUL, too long): then nothing permits it.
    """

    written: str
    real: str
    others: tuple[str, ...] = ()
    problem: str | None = None

    @property
    def is_of_process(self) -> bool:
        """Whether the path leads through /proc, where the same name is another place for another process."""
        return any(name.startswith("/proc/") for name in (self.written, self.real, *self.others))

    @property
    def all(self) -> tuple[str, ...]:
        """The distinct names, the written one first."""
        if self.real == self.written and not self.others:
            return (self.written,)
        return tuple(dict.fromkeys((self.written, *self.others, self.real)))


class LinkFollower:
    """A resolver of paths for one decision: it follows links like the operating system, and reads each link once.

    Missing parts are taken literally. A leading `~` or `~/` is the home folder, as in the file tools.
    """

    def __init__(self) -> None:
        # Read once per decision, so that every rule judges the same state even if a command changes links meanwhile.
        self._targets: dict[str, str | None] = {}
        self._real: dict[str, bool] = {}
        self._places: dict[tuple[str, str], Places] = {}
        self._names: dict[str, tuple[list[str], list[str]]] = {}

    def follow(self, path: str, cwd: str) -> Places:
        """Resolve `path` from the folder `cwd`."""
        places = self._places.get((path, cwd))
        if places is None:
            places = self._places[path, cwd] = self._follow(path, cwd)
        return places

    def kind(self, path: str) -> str:
        """The kind of the entry at an absolute path: `link`, `missing` (or inaccessible) or `other`."""
        target = self._target(path)
        return "other" if target is None else "missing" if target is _MISSING else "link"

    def expand(self, pattern: str, cwd: str, most: int = 1000) -> tuple[str, ...] | None:
        """The current expansion of a shell's glob; None if it cannot be determined or takes too long: more than `most`
        paths, or more than two wildcard folders in the pattern. Shells before bash 5.2 include `..` in the expansion of
        `.*`.
        """
        plain = as_fnmatch(pattern)
        parts = (plain or "").split("/")
        if plain is None or sum(IS_GLOB.search(part) is not None for part in parts[:-1]) > 2:
            return None
        # Listed as a possible expansion in any case, because the bash that will run it may be older than 5.2.
        climbing = "/".join(".." if part[:1] == "." and _matching([".."], part) else part for part in parts)
        paths = ["/" if plain.startswith("/") else ""]
        names = [part for part in parts if part]
        for at, part in enumerate(names):
            above = [f"{path}/" if path[-1:] not in ("", "/") else path for path in paths]
            if IS_GLOB.search(part):
                enters = at + 1 < len(names) or plain.endswith("/")
                found = [(path, self._entries(os.path.join(cwd, path), part, enters=enters)) for path in above]
                paths = [f"{path}{name}" for path, entries in found for name in entries]
            else:
                count_steps(_LOOK_STEPS * len(above))
                paths = [f"{path}{part}" for path in above if os.path.lexists(os.path.join(cwd, path, part))]
        if plain.endswith("/"):
            count_steps(_LOOK_STEPS * len(paths))
            paths = [f"{path}/" for path in paths if os.path.isdir(os.path.join(cwd, path))]
        expansion = paths if climbing == plain else [climbing, *paths]
        return None if len(expansion) > most else tuple(expansion)

    def _entries(self, folder: str, pattern: str, *, enters: bool) -> list[str]:
        """The names in a folder, listed once, that one part of a glob matches; with `enters`, only folders and links."""
        if folder not in self._names:
            self._names[folder] = _listed(folder)
        every_name, folders = self._names[folder]
        names = folders if enters else every_name
        count_steps(10 + len(every_name) // 4)
        return [name for name in _matching(names, pattern) if pattern[0] == "." or name[0] != "."]

    def _target(self, path: str) -> str | None:
        """The target of a link, or None for any other entry; read once."""
        if path not in self._targets:
            count_steps(3)
            try:
                is_link = stat.S_ISLNK(os.lstat(path).st_mode)
                self._targets[path] = os.readlink(path) if is_link else None
            except (OSError, ValueError):  # missing, or not accessible
                self._targets[path] = _MISSING
        return self._targets[path]

    def _follow(self, path: str, cwd: str) -> Places:
        if not path or "\0" in path:
            return Places(path, path, problem=f"{path!r} is not a path")
        if path == "~" or path.startswith("~/"):
            path = os.path.expanduser(path)
        whole = path if path.startswith("/") else f"{cwd}/{path}"
        # POSIX gives two leading slashes a meaning of their own, and `normpath` keeps them; Linux does not.
        lexical_path = os.path.normpath("/" + whole.lstrip("/"))
        if len(whole) > MAX_PATH_CHARS:
            problem = f"a path of {len(whole)} characters is longer than the {MAX_PATH_CHARS} that can be opened"
            return Places(lexical_path, lexical_path, problem=problem)
        if whole is not path and self._is_real(cwd):
            real, passed = self._walk(path, cwd.rstrip("/"))
        else:
            real, passed = self._walk(whole)
        if real is None:
            return Places(
                lexical_path, lexical_path, tuple(passed), problem=f"{path!r} is part of a symbolic link loop"
            )
        return Places(lexical_path, real, tuple(passed))

    def _is_real(self, folder: str) -> bool:
        """Whether a folder's path contains no link."""
        if folder not in self._real:
            self._real[folder] = self._walk(folder)[0] == folder
        return self._real[folder]

    def _walk(self, path: str, at: str = "") -> tuple[str | None, list[str]]:
        """The target of a path (None for a loop), and the whole path's name after each followed link.

        `at` is the starting folder, already resolved.
        """
        # Reversed: parts are taken from the end of the list, and those of a link's target are put there.
        todo = _parts(path)
        count_steps(3 + len(path) // 64)
        passed: list[str] = []
        while todo:
            part = todo.pop()
            if part == "..":
                # The parent of the place reached so far, after all links: not of the path as written.
                at = at.rpartition("/")[0]
                continue
            parent, here = at, f"{at}/{part}"
            if self._targets.get(parent) is _MISSING:
                self._targets[here] = _MISSING  # a missing folder contains nothing
            target = self._target(here)
            if target is _MISSING and ".." not in todo:
                return "/".join((here, *reversed(todo))), passed
            if target is None or target is _MISSING:
                at = here
                continue
            # As the kernel does (ELOOP; path_resolution(7)).
            if len(passed) >= MAX_LINKS:
                return None, passed
            count_steps(3 + len(target) // 64)
            todo.extend(_parts(target))
            at = "" if target.startswith("/") else at
            passed.append(os.path.normpath(f"{at}/{'/'.join(reversed(todo))}"))
        return at or "/", passed


def _listed(folder: str) -> tuple[list[str], list[str]]:
    """The names in a folder, and those of them that are folders or links; none if it cannot be listed."""
    try:
        with os.scandir(folder) as scan:
            entries = list(scan)
    except (OSError, ValueError):
        return [], []
    return [entry.name for entry in entries], [entry.name for entry in entries if _may_enter(entry)]


def _may_enter(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder or a link, or cannot be examined."""
    try:
        return entry.is_symlink() or entry.is_dir(follow_symlinks=False)
    except OSError:
        return True


def _parts(path: str) -> list[str]:
    return [part for part in reversed(path.split("/")) if part and part != "."]


# Represents a name that leads nowhere; no link can contain it.
_MISSING = "\0missing"
# The cost of examining one path, in decision steps.
_LOOK_STEPS = 5


def _matching(names: Sequence[str], pattern: str) -> list[str]:
    """The names that a wildcard without a slash matches."""
    # Few texts with a `[` are wildcards, and compiling one is slow: compare its literal beginning and end first.
    pieces = _SPECIAL.split(pattern)
    fitting = [name for name in names if name.startswith(pieces[0]) and name.endswith(pieces[-1])]
    count_steps(2 * len(pattern) if fitting else 0)
    return fnmatch.filter(fitting, pattern) if fitting else []


def is_inside(path: str, roots: Iterable[str]) -> bool:
    """Whether a resolved path is one of the folders or below one, compared name by name."""
    return any(is_within(path, root) for root in roots)


def is_protected(places: Places, protected: Protected) -> bool:
    """Whether an edit of this file, under any of its names, could change what runs later."""
    return any(map(protected.covers, places.all))


# --- patterns ----------------------------------------------------------------------------------------------------------


def pattern_problem(pattern: str) -> str | None:
    """The reason why a path pattern is invalid, or None."""
    if not pattern.strip("/ "):
        return None if pattern == "/" else "it contains no path"
    if pattern.startswith("!"):
        return "a pattern negated with '!' is not supported; list the files you mean"
    if "\0" in pattern or "\n" in pattern:
        return "it contains a NUL or a line break"
    if ".." in pattern and ".." in re.sub(r"^(?:\./)?(?:\.\./)*(?:\.\.$)?", "", pattern).split("/"):
        return "'..' is valid only at the start of a pattern"
    if "{" in pattern:
        return "braces are not part of gitignore patterns; write one rule for each alternative"
    if pattern.split("/").count("**") > MAX_DOUBLE_STARS:
        return f"it contains '**' more than {MAX_DOUBLE_STARS} times"
    try:
        path_regex(pattern)
    except ValueError:
        return "its brackets do not form a character class"
    return None


def compile_pattern(pattern: str, base: str, root: str, *, wide: bool) -> re.Pattern[str]:
    """Compile a rule's pattern to a regular expression for whole absolute paths.

    `//x` is the path /x, `~/x` is in the home folder, `/x` is relative to `root` (the settings file's project), anything
    else to `base`: anchored there if it contains a slash, at any depth if it is a bare name. Everything below a match also
    matches. `wide` is for forbidding rules: case is ignored, and `dir/**` matches at any depth.
    """
    return _compiled(*anchored(pattern, base, root, wide), wide)


@functools.lru_cache(maxsize=4096)  # by anchor: most deny rules are the same below each session's base
def _compiled(anchor: str, rest: str, deep: bool, wide: bool) -> re.Pattern[str]:
    spellings = dict.fromkeys(re.escape(one.rstrip("/")) for one in _spellings(anchor))
    prefix = next(iter(spellings)) if len(spellings) == 1 else f"(?:{'|'.join(spellings)})"
    middle = "/(?:.*/)?" if deep else "/"
    names = [name for name in unicodedata.normalize("NFC", rest).split("/") if name]
    while names[-1:] == ["**"] and len(names) > 1:
        names.pop()  # equivalent, because everything below a match also matches
    text = f"{prefix}{middle}{path_regex('/'.join(names))}(?:/.*)?" if names else f"{prefix}/.*|{prefix or '/'}"
    # A disk may ignore case, and then `.GIT/config` is the file that a rule about `.git` means.
    return re.compile(text, re.DOTALL | (re.IGNORECASE if wide else 0))


def anchored(pattern: str, base: str, root: str, wide: bool) -> tuple[str, str, bool]:
    """The folder of a pattern, the pattern below it, and whether it may match at any depth there."""
    if pattern.startswith("//"):
        return "/", pattern.lstrip("/"), False
    if pattern == "~" or pattern.startswith("~/"):
        return user_home(), pattern[2:], False
    if pattern.startswith("/"):
        return root, pattern.lstrip("/"), False
    if pattern.startswith("./"):
        return *_climb(base, pattern[2:].lstrip("/")), False
    if pattern.startswith("../") or pattern == "..":
        return *_climb(base, pattern), False
    inner = pattern.rstrip("/")
    # A rule that forbids `secrets/**` should not depend on the folder in which it was written.
    single = "/" not in inner or (wide and inner.endswith("/**") and "/" not in inner[:-3])
    return base, pattern, single


def _climb(base: str, pattern: str) -> tuple[str, str]:
    while pattern == ".." or pattern.startswith("../"):
        base, pattern = os.path.dirname(base), pattern[3:]
    return base, pattern


def anchor_of(pattern: str, base: str, root: str) -> str | None:
    """The absolute path up to the first component of a pattern that has a wildcard; None if it may match at any depth."""
    anchor, rest, deep = anchored(pattern, base, root, False)
    fixed = []
    for name in rest.split("/"):
        if any(letter in name for letter in "*?[\\"):
            break
        fixed.append(name)
    return None if deep else os.path.normpath(f"{anchor}/{'/'.join(fixed)}")


def matches(pattern: re.Pattern[str], name: str) -> bool:
    """Whether a pattern matches a path; canonically equivalent spellings (NFC, NFD) are equal."""
    if name.isascii():
        return pattern.fullmatch(name) is not None
    return any(map(pattern.fullmatch, _spellings(name)))


_NAMES_ARE_UTF8 = sys.getfilesystemencoding() == "utf-8"


def _spellings(name: str) -> tuple[str, ...]:
    """The forms of a name that rules are compared with: NFC and, if this process does not decode names as UTF-8, also the
    UTF-8 reading.
    """
    # macOS stores decomposed names, and a keyboard sends composed ones: both must match.
    composed = unicodedata.normalize("NFC", name)
    if _NAMES_ARE_UTF8 or name.isascii():
        return (composed,)
    return composed, unicodedata.normalize("NFC", as_utf8(name))


def as_utf8(name: str) -> str:
    """A file's name read as UTF-8, whatever the encoding in which this process decodes names."""
    try:
        return os.fsencode(name).decode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # not the name of any file here
        return name


def matches_any(pattern: re.Pattern[str], names: Sequence[str]) -> bool:
    """Whether a pattern matches at least one name."""
    return any(matches(pattern, name) for name in names)
