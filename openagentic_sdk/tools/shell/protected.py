"""The single list of places that determine what runs later, for the permission gate, the sandbox and applied changes.

A name counts even if it does not exist yet, at any depth, ignoring case. Paths that git and other programs read from
configuration are looked up: the folders of hooks and the files that a repository's configuration names.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache

from ...ground.disk import is_within, nearest_holding, read_regular
from ...ground.frozen import frozen
from ...ground.patterns import regex
from ...ground.system import user_home
from ...ground.text import is_hidden
from ...sessions.seal import data_home
from .git_settings import HARMLESS, MAX_GIT_FILE_BYTES, config_lines


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Folders of Git, agents and editors, and of tools that run programs named in their settings.
PROTECTED_FOLDERS = _names("""
    .git .claude .agents .codex .gemini .cursor .windsurf .continue .roo .kiro .amazonq .openagentic-sdk .opencode
    .vscode .idea .zed .fleet .husky .githooks .lefthook .devcontainer .circleci .buildkite .woodpecker .gitea .forgejo
    .ssh .gnupg .aws .kube .docker .cargo .yarn .mvn .bundle .direnv
""")
PROTECTED_FILES = _names("""
    .bashrc .bash_profile .bash_login .bash_logout .bash_aliases .profile .inputrc .zshrc .zshenv .zprofile .zlogin
    .zlogout .kshrc .cshrc .tcshrc .login .xprofile .xsessionrc .xinitrc .gitconfig .gitmodules .gitattributes .mcp.json
    .ripgreprc .npmrc .pypirc .netrc .envrc .vimrc .exrc .nvimrc .lvimrc .gvimrc .emacs .dir-locals.el .gdbinit .lldbinit
    .pdbrc .pythonrc .irbrc .pryrc .rprofile .perltidyrc .tmux.conf .screenrc .curlrc .wgetrc .psqlrc .sqliterc .my.cnf
    .yarnrc.yml .claude.json .yarnrc .pnp.cjs .pnp.loader.mjs .pnpmfile.cjs bunfig.toml .bazelrc .gemrc .sbtopts .jvmopts
    .pre-commit-config.yaml .pre-commit-config.yml lefthook.yml lefthook.yaml .lefthook.yml .tool-versions .mise.toml
    mise.toml gradle-wrapper.properties sitecustomize.py usercustomize.py claude.md claude.local.md agents.md
    agents.override.md gemini.md .cursorrules .windsurfrules .clinerules .roorules .aider.conf.yml copilot-instructions.md
    .gitlab-ci.yml .travis.yml .drone.yml .woodpecker.yml azure-pipelines.yml bitbucket-pipelines.yml jenkinsfile
""")
# Continuous integration; startup files of shells and sessions in a home folder; code that Python runs at its start.
_PROTECTED_TAILS = regex(
    r"/\.github/(?:workflows|actions)(?:/|$)"
    r"|/\.config/(?:fish|git|autostart|systemd|environment\.d|nvim)(?:/|$)|/\.local/bin(?:/|$)"
    r"|/(?:\.venv|venv|site-packages|dist-packages)/(?:.*/)?[^/]+\.pth$"
)
# With a HEAD beside them, these are a bare repository, whose configuration and hooks git obeys.
_OF_REPOSITORIES = frozenset({"config", "config.worktree", "commondir", "gitdir"})
_IN_REPOSITORIES = regex(r"^(.*)/(?:hooks/.+|hooks|info/attributes|info/grafts|objects/info/[^/]*alternates)$")

# The paths in `.git` that an allowed git command writes; nothing else there, above all no configuration and no hook.
_GIT_CONTENT = regex(
    r"(?:modules/(?:[^/]+/)+|worktrees/[^/]+/)?(?:"
    r"(?:index|packed-refs|shallow|HEAD|[A-Z]+_HEAD|AUTO_MERGE|[A-Z]+_(?:MSG|MODE|RR|LOG|EDITMSG)|BISECT_[A-Z_]+|gc\.[a-z]+)"
    r"(?:\.lock)?|(?:refs|logs)(?:/(?!.*\.\.).*)?|objects(?:/(?!info/[^/]*alternates).*)?"
    r"|(?:rebase-merge|rebase-apply|sequencer)(?:/(?!git-rebase-todo).*)?|rr-cache(?:/.*)?)$"
)


@frozen
class Protected:
    """The protected places of one workspace: the names of the list, and `paths` with everything below them.

    `roots` are the folders of the workspace: names above them do not count (a project may be in `~/.codex/worktrees`),
    except `.git`. `around` are folders that are protected except for a workspace inside them, `homes` those whose own dot
    files count, `import_folders` those from which this process imports Python: a file there with the name of a standard
    library module counts.
    """

    roots: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    around: tuple[str, ...] = ()
    homes: tuple[str, ...] = ()
    import_folders: tuple[str, ...] = ()

    def covers(self, path: str) -> bool:
        """Whether a change of this absolute path could change what runs later."""
        root = min((root for root in self.roots if is_within(path, root)), key=len, default="")
        if has_protected_name(path, 0 if "/.git/" in f"{root}/" else len(root.rstrip("/"))):
            return True
        if any(is_within(path, place) for place in self.paths):
            return True
        if any(is_within(path, place) and not is_within(root, place) for place in self.around):
            return True
        if any(path.startswith(f"{home}/.") and not root.startswith(f"{home}/.") for home in self.homes):
            return True
        return any(_is_module(path, folder) for folder in self.import_folders)

    def plus(self, paths: Iterable[str]) -> Protected:
        """Return these places with more paths."""
        return replace(self, paths=tuple(dict.fromkeys((*self.paths, *paths))))


def protected_places(roots: Sequence[str], paths: Iterable[str] = ()) -> Protected:
    """The protected places of a workspace, including these `paths`; `roots` are its resolved folders."""
    code, prefixes, others = program_places()
    home, own = os.path.realpath(user_home()), data_home()
    around = prefixes if own is None else (*prefixes, os.path.realpath(own))
    homes = tuple([home] if any(is_within(home, root) for root in roots) else [])
    imports = tuple(dict.fromkeys([folder for folder in others for root in roots if is_within(folder, root)]))
    return Protected(tuple(roots), tuple(dict.fromkeys((*paths, *code))), around, homes, imports)


@cache
def program_places() -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """The places of installed code (this package, others, the interpreter), Python's prefixes, and other import folders."""
    prefixes = {os.path.realpath(place) for place in (sys.prefix, sys.base_prefix, sys.exec_prefix)} - {"/"}
    own = os.path.realpath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 2))
    code, others = {own, os.path.realpath(sys.executable)}, set[str]()
    for entry in map(os.path.realpath, sys.path):
        is_installed = not {"site-packages", "dist-packages"}.isdisjoint(entry.split("/")) or entry.endswith(".zip")
        if not any(is_within(entry, prefix) for prefix in prefixes):
            (code if is_installed else others).add(entry)
    return tuple(sorted(code)), tuple(sorted(prefixes)), tuple(sorted(others - {"/"}))


def has_protected_name(path: str, above: int = 0) -> bool:
    """Whether a name in an absolute path, after its first `above` characters, is on the list or marks a repository."""
    folded = path[above:].casefold()
    if not folded.isascii():  # some file systems ignore invisible characters
        folded = "".join(letter for letter in folded if not is_hidden(letter))
    # Some file systems, such as those of Windows, ignore spaces and dots at the end of a name.
    parts = [part.rstrip(" .") or part for part in folded.split("/")]
    # A new HEAD can turn the folder around it into a repository, whose configuration and hooks git obeys.
    if parts[-1] in PROTECTED_FILES or parts[-1] == "head" or not PROTECTED_FOLDERS.isdisjoint(parts):
        return True
    if _PROTECTED_TAILS.search("/".join(parts)):
        return True
    if parts[-1] in _OF_REPOSITORIES:
        return os.path.lexists(f"{os.path.dirname(path)}/HEAD")
    inside = _IN_REPOSITORIES.match(path)
    return inside is not None and os.path.lexists(f"{inside[1]}/HEAD")


def is_git_content(path: str) -> bool:
    """Whether a path below `.git` is written by git commands: commits, branches, the index."""
    return _GIT_CONTENT.fullmatch(path) is not None


def _is_module(path: str, folder: str) -> bool:
    """Whether a file would be imported from the folder instead of a module of the standard library or this package."""
    if not path.startswith(folder + "/"):
        return False
    name, _, rest = path[len(folder) + 1 :].partition("/")
    module = name.partition(".")[0]
    is_code = rest.startswith("__init__.") if rest else "." in name
    return is_code and (module in sys.stdlib_module_names or module == "openagentic_sdk")


# --- paths in git's configuration ----------------------------------------------------------------------------------------

_SECTION = regex(r'\[\s*([A-Za-z0-9.-]+)(?:\s+"((?:[^"\\]|\\.)*)")?\s*\]')
_NAMES_A_PATH = ("path", "file", "dir", "template")
_MAX_INCLUDES = 100


def git_places(files: Sequence[str], top: str) -> list[str]:
    """The files and folders, existing or not, that git configuration files include, use as hooks or run; `top` is the
    working tree.
    """
    places: dict[str, None] = {}
    todo, seen = list(files), set[str]()
    while todo and len(seen) < _MAX_INCLUDES:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        for section, name, value in _settings(path):
            kind = section.partition(".")[0]
            if kind in ("include", "includeif") and name == "path":
                todo.append(_absolute(value, os.path.dirname(path)))
                places[todo[-1]] = None
            elif name not in HARMLESS.get(kind, ()):
                if name.endswith(_NAMES_A_PATH):
                    places[_absolute(value, top)] = None
                words = value.removeprefix("!").replace("'", " ").replace('"', " ").split()
                paths = ((word, _absolute(word, top)) for word in words if word[0] != "-")
                places.update((path, None) for word, path in paths if "/" in word or os.path.isfile(path))
    if not places:
        return []
    real = [os.path.realpath(path) for path in places]
    return [path for path in dict.fromkeys((*places, *real)) if not is_within(top, path)]


def git_places_above(folder: str) -> list[str]:
    """The places used by the git configuration of the repository around a folder, and by the user's own configuration."""
    home = user_home()
    own = [os.path.join(home, name) for name in (".gitconfig", ".config/git/config")]
    top = nearest_holding(".git", folder)
    places = git_places(own, home)
    if top is not None:
        git_dir = repository_of(top)
        places += git_places([os.path.join(git_dir, name) for name in ("config", "config.worktree")], top)
    return places


def repository_of(top: str) -> str:
    """The folder in which the repository of a working tree stores its configuration."""
    return common_dir_of(git_dir_of(top))


def git_dir_of(top: str) -> str:
    """The `.git` of a working tree or, if that is a file (in a linked worktree or submodule), the folder that it names."""
    path = os.path.join(top, ".git")
    return os.path.join(top, _line(path).removeprefix("gitdir:").strip()) if os.path.isfile(path) else path


def common_dir_of(git_dir: str) -> str:
    """The folder that a repository shares with its worktrees."""
    shared = _line(os.path.join(git_dir, "commondir")).strip()
    return os.path.normpath(os.path.join(git_dir, shared)) if shared else git_dir


def _line(path: str) -> str:
    try:
        return read_regular(path, MAX_GIT_FILE_BYTES).decode("utf-8", "surrogateescape")
    except (OSError, ValueError):
        return ""


def _settings(path: str) -> list[tuple[str, str, str]]:
    """The settings of a configuration file, each as section (with subsection) and name, both in lower case, and value; none
    if the file cannot be read.
    """
    try:
        # git continues a line that ends with a backslash on the next one.
        lines = "\n".join(config_lines(path)).replace("\\\n", "").split("\n")
    except (OSError, ValueError):
        return []
    section, settings = "", []
    for line in lines:
        header = _SECTION.search(line) if line.lstrip().startswith("[") else None
        if header:
            section = (header[1] if header[2] is None else f"{header[1]}.{header[2]}").lower()
            # A setting may follow its section's header on the same line.
            line = line[header.end() :]
        name, equals, value = line.partition("=")
        name = name.strip().lower()
        if equals and name.isascii() and name[:1].isalpha() and name.replace("-", "").isalnum():
            settings.append((section, name, value.strip().strip('"')))
    return settings


def _absolute(name: str, folder: str) -> str:
    return os.path.normpath(os.path.join(folder, os.path.expanduser(name)))
