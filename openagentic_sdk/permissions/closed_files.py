"""What deny and ask rules about files and programs mean on disk now: the paths that the sandbox of a command closes.

Patterns are expanded by looking, just before the command starts; what a walk could not see to its end is said.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial

from ..ground.disk import nearest_holding
from ..ground.frozen import frozen
from ..ground.patterns import regex
from ..tools.shell.environment import USUAL_FOLDERS
from .guess import UNKNOWN, loose_commands
from .paths import anchored, compile_pattern, matches_any
from .rules import EDIT_TOOLS, Rule, RuleBook
from .shell import IS_GLOB, CommandLine, word_set
from .subject import Subject, Workspace

MAX_ENTRIES = 200_000
BUILT_IN = "built in"


@frozen
class ClosedFiles:
    """`hidden` cannot be read, `readonly` not be changed; `forbids` says which rule keeps a path from being written.

    `problem` is set when there was more to look through than is looked at.
    """

    hidden: tuple[str, ...]
    readonly: tuple[str, ...]
    forbids: Callable[[str], str | None]
    problem: str | None = None


def closed_files(rules: Sequence[Rule], bases: Sequence[str]) -> ClosedFiles:
    """What these rules, which forbid, close; `bases` are the folders where relative patterns stand."""
    paths = [rule for rule in rules if rule.kind == "path"]
    reads = [rule for rule in paths if rule.tool not in EDIT_TOOLS]
    edits = [rule for rule in paths if rule.tool in EDIT_TOOLS]
    (hidden, whole), (readonly, looked) = _expanded(reads, bases), _expanded(edits, bases)
    problem = None
    if not (whole and looked):
        problem = f"there is more to look through than {MAX_ENTRIES} files, and rules forbid some: name what is meant"
    programs = [path for rule in rules for path in program_files(rule) or ()]
    return ClosedFiles(
        tuple(dict.fromkeys((*hidden, *programs))), tuple(readonly), partial(_forbidding, paths, tuple(bases)), problem
    )


def _forbidding(rules: Sequence[Rule], bases: tuple[str, ...], path: str) -> str | None:
    rule = RuleBook(rules).forbidding_path((path,), bases, write=True) if rules else None
    return None if rule is None else f"the rule {rule.text} ({rule.source}) is about it"


def _expanded(rules: Sequence[Rule], bases: Sequence[str]) -> tuple[list[str], bool]:
    """The existing paths that the rules mean, and where links among them lead; whether all was seen."""
    found: dict[str, None] = {}
    tops: dict[str, list[re.Pattern[str]]] = {}
    for rule in rules:
        for base in bases:
            anchor, rest, deep = anchored(rule.pattern, base, rule.root or base, wide=True)
            names = [name for name in rest.split("/") if name]
            while names[-1:] == ["**"]:
                names.pop()
            fixed = next((at for at, name in enumerate(names) if IS_GLOB.search(name)), len(names))
            if deep or fixed < len(names):
                pattern = compile_pattern(rule.pattern, base, rule.root or base, wide=True)
                for top in _spelled(anchor, [] if deep else names[:fixed]):
                    tops.setdefault(top, []).append(pattern)
            else:
                found.update(dict.fromkeys(_spelled(anchor, names)))
    left = MAX_ENTRIES
    for top, patterns in tops.items():
        matching, left = _matching(top, patterns, left)
        found.update(dict.fromkeys(matching))
        if left < 0:
            break
    # A link is closed where it leads: its own name is nothing to stand on.
    return list(dict.fromkeys(os.path.realpath(path) for path in found)), left >= 0


def _spelled(folder: str, names: Sequence[str]) -> list[str]:
    """The paths below a folder that have these names, whatever the case of their letters."""
    found = [folder] if os.path.lexists(folder) else []
    for name in names:
        wanted = _folded(re.sub(r"\\(.)", r"\1", name))
        found = [f"{place.rstrip('/')}/{one}" for place in found for one in _names(place) if _folded(one) == wanted]
    return found


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # not a folder, or none that we may list: then the command may not either
        return []


def _matching(top: str, patterns: Sequence[re.Pattern[str]], left: int) -> tuple[list[str], int]:
    """The outermost paths below `top` that fit a pattern, and how many more could be looked at."""
    together = re.compile("|".join(f"(?:{one.pattern})" for one in patterns), re.DOTALL | re.IGNORECASE)
    found: list[str] = []
    stack = [top]
    while stack and left >= 0:
        folder = stack.pop()
        try:
            entries = list(os.scandir(folder))
        except OSError:
            continue
        left -= len(entries)
        for entry in entries:
            if matches_any(together, (entry.path,)):
                found.append(entry.path)
            elif entry.is_dir(follow_symlinks=False):
                stack.append(entry.path)
    return found, left


# --- programs ------------------------------------------------------------------------------------------------------------

# What commands themselves are run by.
_NEEDED = frozenset({"bash"})


@lru_cache(maxsize=256)
def program_files(rule: Rule) -> tuple[str, ...] | None:
    """The files of a program that a rule is about as a whole; None where hiding files could not hold the rule: it is about
    some words of it, about a builtin of the shell, or the program is one name of a file with others."""
    if rule.kind != "command" or rule.exact or len(rule.words) != 1 or rule.words[0] in _NEEDED | _BUILTINS:
        return None
    name = rule.words[0]
    searched = [*USUAL_FOLDERS, "/sbin", "/usr/sbin", *filter(None, os.environ.get("PATH", "").split(os.pathsep))]
    places = [name] if "/" in name else [os.path.join(folder, name) for folder in searched]
    real = {os.path.realpath(place) for place in places if os.path.isfile(place)}
    return tuple(sorted(real)) if all(os.path.basename(path) == os.path.basename(name) for path in real) else None


_BUILTINS = word_set("""
    . : [ alias bg bind break builtin caller cd command compgen complete compopt continue declare dirs disown echo enable
    eval exec exit export false fc fg getopts hash help history jobs kill let local logout mapfile popd printf pushd pwd
    read readarray readonly return set shift shopt source suspend test time times trap true type typeset ulimit umask
    unalias unset wait
""")


def unheld_rules(rules: Iterable[Rule], *, confined: bool) -> Iterator[Rule]:
    """The rules of people's among these that no mount holds, so that words alone decide."""
    for rule in rules:
        is_held = rule.kind == "path" or (rule.kind == "command" and program_files(rule) is not None)
        if rule.source != BUILT_IN and rule.kind in ("path", "command", "wildcard") and not (confined and is_held):
            yield rule


# --- what git has tracked ------------------------------------------------------------------------------------------------

_GIT = regex(r"(?<![\w.-])git(?![\w.-])")
# Commands of git that print or bring back no content of files, whatever they are given.
_TELLS_NO_CONTENT = word_set("""
    status add rm mv commit branch tag remote rev-parse ls-files ls-tree ls-remote describe merge-base rev-list push fetch
    init config symbolic-ref for-each-ref show-ref check-ignore check-attr count-objects gc fsck prune maintenance version
    help var name-rev switch
""")
_ONLY_NAMES = frozenset(
    {"--stat", "--shortstat", "--numstat", "--dirstat", "--name-only", "--name-status", "--summary"}
)
_CONTENT_OPTIONS = regex(r"-[pucm]|--patch.*|-[ULW].*|--unified.*|--word-diff.*|--color-words.*|--cc|--diff-merges.*")
_VERBOSE = regex(r"-[a-z]*[vpie][a-z]*|--verbose|--patch|--interactive|--edit")
_WRITES = regex(
    r"\b(?:add|am|apply|branch|bisect|checkout|cherry-pick|clean|commit|fetch|gc|merge|mv|notes|pack-refs|prune|pull|push"
    r"|rebase|reflog|remote|reset|restore|revert|rm|stash|submodule|switch|symbolic-ref|tag|update-index|update-ref|worktree)\b"
)


def prints_tracked_content(subject: Subject, rules: Sequence[Rule]) -> bool:
    """Whether git could tell, in some command of a line, what it has stored of files that the rules forbid to read."""
    if _GIT.search(subject.command or "") is None:
        return False
    line, cwd = subject.line, subject.workspace.cwd
    rows = (
        [part.argv for part in line.commands]
        if isinstance(line, CommandLine)
        else loose_commands(subject.command or "")
    )
    for argv in rows:
        at = next((at for at, word in enumerate(argv) if _GIT.search(word)), None)
        # A shell may be given it as one word.
        words = [] if at is None else " ".join(argv[at:]).replace(UNKNOWN, "$").split()[1:]
        if words and _prints(words) and not (_reads_index_only(words, cwd) and not _tracks(subject.workspace, rules)):
            return True
    return False


def _prints(words: list[str]) -> bool:
    while words and words[0].startswith("-"):
        words = words[2:] if words[0] in ("-C", "-c", "--git-dir", "--work-tree") else words[1:]
    command, options = words[0] if words else "help", [word for word in words[1:] if word.startswith("-")]
    if command in _TELLS_NO_CONTENT:
        return command in ("commit", "add", "status") and any(_VERBOSE.fullmatch(word) for word in options)
    has_content = any(_CONTENT_OPTIONS.fullmatch(word) for word in options)
    if command in ("log", "shortlog", "reflog"):
        return has_content
    return command not in ("diff", "show", "stash") or has_content or _ONLY_NAMES.isdisjoint(options)


def _reads_index_only(words: Sequence[str], cwd: str) -> bool:
    """Whether it is a `git diff` of files against the index, no older state."""
    plain = [word for word in words[1:] if not word.startswith("-")]
    named = all(os.path.lexists(os.path.join(cwd, word)) for word in plain)
    return words[0] == "diff" and named and not {"--cached", "--staged", "--merge-base"} & set(words)


def _tracks(workspace: Workspace, rules: Sequence[Rule]) -> bool:
    """Whether the index of the repository holds a path that the rules are about, or cannot be read."""
    top = nearest_holding(".git", workspace.cwd)
    if top is None:
        return False
    try:
        with open(f"{top}/.git/index", "rb") as file:
            names = index_names(file.read())
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return True
    book = RuleBook(rules)
    return any(book.forbidding_path((f"{top}/{name}",), workspace.bases, write=False) for name in names)


def index_names(data: bytes) -> Iterator[str]:
    """The paths in an index (gitformat-index, versions 2 and 3). Raises ValueError for any other."""
    if data[:4] != b"DIRC" or data[4:8] not in (b"\0\0\0\2", b"\0\0\0\3"):
        raise ValueError("an index of another version")
    at = 12
    for _ in range(int.from_bytes(data[8:12], "big")):
        start = at + (64 if data[at + 60] & 0x40 else 62)
        end = data.index(b"\0", start)
        yield os.fsdecode(data[start:end])
        at += (end - at + 8) // 8 * 8


def writes_git(command: str) -> bool:
    """Whether a command that was allowed may be one by which git stores something."""
    found = _GIT.search(command)
    return found is not None and _WRITES.search(command, found.end()) is not None
