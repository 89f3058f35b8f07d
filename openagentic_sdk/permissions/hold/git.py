"""Recognize git commands by their words: those that print files from git's storage, which mounts cannot hide, those that may
run what a repository's configuration names, and those that store something.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from ...ground.disk import nearest_holding, read_regular
from ...ground.patterns import regex
from ...tools.shell.git_config import foreign_settings, hook_folders, is_powerless
from ..guess import UNKNOWN
from ..rules import Rule, RuleBook
from ..shell import CommandLine, NotUnderstood, SimpleCommand, word_set
from ..subject import Subject, Workspace
from .programs import BUILTINS
from .repository import MAX_INDEX_BYTES

_GIT = regex(r"(?<![\w.-])git(?![\w.-])")
# Git commands that never print or restore file contents, whatever their arguments.
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
# Shell builtins that may set a variable, or run something that does.
_COULD_SET = BUILTINS - {"cd", "echo", "false", "pwd", "test", "true", "["}
_WRITES = regex(
    r"\b(?:add|am|apply|branch|bisect|checkout|cherry-pick|clean|commit|fetch|gc|merge|mv|notes|pack-refs|prune|pull|push"
    r"|rebase|reflog|remote|reset|restore|revert|rm|stash|submodule|switch|symbolic-ref|tag|update-index|update-ref|worktree)\b"
)


def prints_tracked_content(subject: Subject, rules: Sequence[Rule]) -> bool:
    """Whether a command of a line could make git print stored content of files that rules protect."""
    if _GIT.search(subject.command or "") is None:
        return False
    line, cwd = subject.line, subject.workspace.cwd
    rows = [part.argv for part in line.commands] if isinstance(line, CommandLine) else subject.loose_commands
    for argv in rows:
        at = next((at for at, word in enumerate(argv) if _GIT.search(word)), None)
        # A shell may receive the command as one word.
        words = [] if at is None else " ".join(argv[at:]).replace(UNKNOWN, "$").split()[1:]
        if words and _prints(words) and not (_reads_index_only(words, cwd) and not _tracks(subject.workspace, rules)):
            return True
    return False


def _prints(words: list[str]) -> bool:
    while words and words[0].startswith("-"):
        words = words[2:] if words[0] in ("-C", "-c", "--git-dir", "--work-tree") else words[1:]
    command, options = words[0] if words else "help", [word for word in words[1:] if word.startswith("-")]
    if command in _TELLS_NO_CONTENT:
        # `git commit -v`, `git add -p` and `git status -v` print differences.
        return command in ("commit", "add", "status") and any(_VERBOSE.fullmatch(word) for word in options)
    has_content = any(_CONTENT_OPTIONS.fullmatch(word) for word in options)
    if command in ("log", "shortlog", "reflog"):
        return has_content
    return command not in ("diff", "show", "stash") or has_content or _ONLY_NAMES.isdisjoint(options)


def _reads_index_only(words: Sequence[str], cwd: str) -> bool:
    """Whether a git command is a `diff` of files against the index, without older states."""
    plain = [word for word in words[1:] if not word.startswith("-")]
    all_exist = all(os.path.lexists(os.path.join(cwd, word)) for word in plain)
    return words[0] == "diff" and all_exist and not {"--cached", "--staged", "--merge-base"} & set(words)


def _tracks(workspace: Workspace, rules: Sequence[Rule]) -> bool:
    """Whether the repository's index contains a path that the rules are about, or cannot be read."""
    top = nearest_holding(".git", workspace.cwd)
    if top is None:
        return False
    try:
        names = list(index_names(read_regular(f"{top}/.git/index", MAX_INDEX_BYTES)))
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return True
    book = RuleBook(rules)
    return any(book.forbidding_path((f"{top}/{name}",), workspace.bases, write=False) for name in names)


def index_names(data: bytes) -> Iterator[str]:
    """Yield the paths in an index (gitformat-index, versions 2 and 3). Raises ValueError for any other, or a cut one."""
    if data[:4] != b"DIRC" or data[4:8] not in (b"\0\0\0\2", b"\0\0\0\3"):
        raise ValueError("the file is not a git index of version 2 or 3")
    at = 12
    for _ in range(int.from_bytes(data[8:12], "big")):
        if at + 62 > len(data):
            raise ValueError("the index ends within an entry")
        # The extended flag of version 3, in the high byte of the flags, means two more bytes before the name.
        start = at + (64 if data[at + 60] & 0x40 else 62)
        end = data.index(b"\0", start)
        yield os.fsdecode(data[start:end])
        at += (end - at + 8) // 8 * 8


def runs_settings(subject: Subject) -> str | None:
    """The reason why git could run something that a repository names, in an untrusted project; None if it cannot."""
    command, workspace = subject.command or "", subject.workspace
    if workspace.trusted or _GIT.search(command) is None:
        return None
    remedy = "and no sandbox confines it: trust the project after reviewing that"
    # The variables that override a repository's settings only reach a git that the shell starts itself.
    commands = _plain_commands(subject.line)
    for path, settings in foreign_settings(workspace.cwd, workspace.roots, deep=not _stays(commands)).items():
        if not (commands and is_powerless(settings)):
            return f"git follows {path}, which could make it run something ({settings.dropped[0]}), {remedy}"
    hooks = None if commands else next(hook_folders(workspace.cwd, workspace.roots), None)
    return None if hooks is None else f"git could run the hooks in {hooks}, {remedy}"


def _plain_commands(line: CommandLine | NotUnderstood | None) -> tuple[SimpleCommand, ...]:
    """The commands of a line, if git appears in them only as a command name and nothing sets a variable; otherwise none."""
    if not isinstance(line, CommandLine):
        return ()
    for command in line.commands:
        name = command.argv[0] if command.argv else ""
        names_git = name != "git" and any(map(_GIT.search, command.argv))
        if command.open_assignments or names_git or name in _COULD_SET:
            return ()
    return line.commands


def _stays(commands: tuple[SimpleCommand, ...]) -> bool:
    """Whether git works only in the folder where the line starts: no cd, and git's subcommand comes before any option."""
    return bool(commands) and not any(
        command.argv[:1] == ("cd",)
        or (command.argv[:1] == ("git",) and command.argv[1:2] and command.argv[1][0] == "-")
        for command in commands
    )


def writes_git(command: str) -> bool:
    """Whether a command line may run a git command that stores something."""
    git_match = _GIT.search(command)
    return git_match is not None and _WRITES.search(command, git_match.end()) is not None
