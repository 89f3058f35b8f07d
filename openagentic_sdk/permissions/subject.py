"""The subject of a call for permissions: the paths it touches, the command it runs, the host, the name.

Paths are resolved through functions that are passed in (`LinkFollower`), so that one decision reads each link once. For
other questions, such as which files a folder contains or whether a repository is plain, it examines the disk itself.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..ground.frozen import frozen
from ..ground.patterns import regex
from ..kernel.gate import NamesOf
from ..tools.shell.protected import Protected
from .guess import LooseWord, loose_commands, loose_words
from .hold.steps import count_steps
from .paths import TOO_MANY_PATHS, Places, is_inside
from .program_tables import GIT_WRITES, WRITERS
from .programs import hazard, read_only, takes_code
from .rules import EDIT_TOOLS, READ_TOOLS, SKILL_TOOLS, TASK_TOOLS, host_of
from .shell import IS_GLOB, CommandLine, NotUnderstood, SimpleCommand, base_name, parse_command, word_set

Follow = Callable[[str, str], Places]
Expand = Callable[[str, str], tuple[str, ...] | None]

# Tools that only act on the session itself; the calls of a subagent pass the gate one by one.
SESSION_TOOLS = (
    SKILL_TOOLS
    | TASK_TOOLS
    | {"TodoWrite", "TodoRead", "SkillList", "SkillDeactivate", "AskUserQuestion", "BashOutput", "KillBash"}
)
NETWORK_TOOLS = frozenset({"WebFetch", "WebSearch"})

# Parameters in which an unknown tool may name a path.
_PATH_KEYS = ("file_path", "path", "root", "notebook_path", "directory", "project_dir")


# Devices that can be read and written anywhere without disclosing or changing anything.
HARMLESS_DEVICES = word_set(
    "/dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/stdin /dev/stdout /dev/stderr /dev/tty"
)


@frozen
class Access:
    """One path that a call reads or writes."""

    places: Places
    write: bool


@frozen
class Workspace:
    """The place of a call. `cwd` is the base of relative paths, `base` that of relative patterns in rules.

    `roots` are the resolved folders of the workspace, `protected` the places where every edit requires approval, determined
    by `find_protected`. `follow`, `expand` and `kind` are as in `LinkFollower`. `trusted` means that the project's own
    configuration may run programs (git's, for example), `confined` that mounts enforce the rules about files. `started_in`
    is the folder in which the session began, None if this call still runs in it.
    """

    cwd: str
    base: str
    roots: tuple[str, ...]
    find_protected: Callable[[], Protected]
    follow: Follow
    expand: Expand
    kind: Callable[[str], str]
    trusted: bool = False
    confined: bool = False
    started_in: str | None = None

    @functools.cached_property
    def protected(self) -> Protected:
        """The places where every edit requires approval."""
        return self.find_protected()

    @property
    def has_moved(self) -> bool:
        """Whether an earlier command has changed the shell's folder."""
        return self.started_in is not None

    @property
    def is_in_other_repository(self) -> bool:
        """Whether git would read the configuration of a repository other than the one at the start of the session."""
        return self.has_moved and repository_of(self.cwd) != repository_of(self.started_in or self.cwd)

    def is_same_repository(self, folder: str) -> bool:
        """Whether git reads the configuration of the same repository in this folder as in the working directory."""
        return repository_of(os.path.realpath(folder)) == repository_of(os.path.realpath(self.cwd))

    @functools.cached_property
    def bases(self) -> tuple[str, ...]:
        """The folders to which relative patterns of forbidding rules refer."""
        return tuple(dict.fromkeys((self.base, self.cwd, *self.roots)))


def repository_of(folder: str) -> str | None:
    """The folder whose configuration git reads here: the nearest with a `.git` or, as in a bare repository, with `objects`;
    None if no such folder exists.
    """
    while not os.path.lexists(f"{folder}/.git") and not os.path.isdir(f"{folder}/objects"):
        if folder == "/":
            return None
        folder = os.path.dirname(folder)
    return folder


@frozen
class Subject:
    """A call, ready to be compared with rules. `problem` is set if nothing can permit it in this form.

    `name` is the skill or subagent as the call names it, `other_names` are its further names. `rule_names` are names by
    which rules may refer to the tool besides `tool`.
    """

    tool: str
    input: Mapping[str, Any]
    effect: str | None
    workspace: Workspace
    accesses: tuple[Access, ...] = ()
    command: str | None = None
    line: CommandLine | NotUnderstood | None = None
    host: str | None = None
    name: str | None = None
    other_names: tuple[str, ...] = ()
    rule_names: tuple[str, ...] = ()
    problem: str | None = None

    @functools.cached_property
    def runs_text(self) -> bool:
        """Whether more may run than the words of the line show: the line was not understood, or one of its programs accepts
        code or has an assignment that can change what it does.
        """
        line = self.line
        return not isinstance(line, CommandLine) or any(
            takes_code(command.argv) or command.open_assignments for command in line.commands
        )

    @functools.cached_property
    def placed_commands(self) -> tuple[tuple[SimpleCommand, tuple[str, ...]], ...]:
        """The commands of an understood line, each with every folder in which it may run."""
        return tuple(with_folders(self.line, self.workspace.cwd)) if isinstance(self.line, CommandLine) else ()

    @functools.cached_property
    def doubtful_words(self) -> tuple[LooseWord, ...]:
        """The words in which commands may hide that the parsed words do not show, split generously: all words of the line
        if `runs_text`, otherwise those of its commands with a wildcard or a hazard.
        """
        line = self.line
        if not isinstance(line, CommandLine) or self.runs_text:
            return tuple(loose_words(self.command or ""))
        parts = [" ".join(part.argv) for part in line.commands if part.globs or hazard(part.argv)]
        return tuple(loose_words("\n".join(parts))) if parts else ()

    @functools.cached_property
    def loose_commands(self) -> list[tuple[str, ...]]:
        """The commands of the line, even if it was not understood, as an over-approximation."""
        return loose_commands(self.command or "")

    @functools.cached_property
    def stays_inside(self) -> bool:
        """Whether no word of a command leads outside the workspace, except to harmless devices."""
        reals = (access.places.real for access in self.possible_accesses)
        return all(is_inside(real, self.workspace.roots) or real in HARMLESS_DEVICES for real in reals)

    @functools.cached_property
    def possible_accesses(self) -> tuple[Access, ...]:
        """Access to every path that a part of the command line could name: an over-approximation, used to forbid."""
        workspace, text_of_line = self.workspace, self.command or ""
        has_substitution = not isinstance(self.line, CommandLine) and not {"(", "{", "`"}.isdisjoint(text_of_line)
        texts: dict[tuple[str, bool, str], None] = {}
        for text, write, cwd in _possible_paths(self):
            texts[text, write, cwd] = None
            here = _HERE.match(text) if text[:1] in ("/", "~", "$") else None
            if here:
                texts[f".{text[here.end() :]}", write, cwd] = None
            if has_substitution and text.startswith("/"):
                texts[f".{text}", write, cwd] = None
        accesses: list[Access] = []
        for text, write, cwd in texts:
            # `[[` is a keyword; as a glob it has no closing bracket and matches only itself.
            if IS_GLOB.search(text) and text != "[[":
                names = workspace.expand(text, cwd)
                if names is None:
                    accesses.append(Access(replace(workspace.follow(".", cwd), problem=TOO_MANY_PATHS), write))
                accesses += [Access(workspace.follow(path, cwd), write) for path in names or ()]
            elif "/" in text or "." in text or workspace.kind(f"{cwd}/{text}") != "missing":
                accesses.append(Access(workspace.follow(text, cwd), write))
        return tuple(accesses)


def describe(
    tool: str,
    input: Mapping[str, Any],
    effect: str | None,
    workspace: Workspace,
    names_of: NamesOf | None = None,
    rule_names: NamesOf | None = None,
) -> Subject:
    """Build the subject of a call. `names_of` returns further names of a skill, `rule_names` further names of the tool."""
    if tool == "Bash":
        command = input.get("command")
        if not isinstance(command, str) or not command.strip():
            return Subject(tool, input, effect, workspace, problem="the command is empty")
        return Subject(tool, input, effect, workspace, command=command, line=parse_command(command))
    if tool in NETWORK_TOOLS:
        url = input.get("url")
        host = host_of(url) if isinstance(url, str) else None
        return Subject(tool, input, effect, workspace, host=host)
    if tool in SESSION_TOOLS:
        name = _text(input, "agent", "subagent_type") if tool in TASK_TOOLS else None
        others: Sequence[str] = ()
        if tool in SKILL_TOOLS:
            name, others = _text(input, "name", "skill"), names_of(input) if names_of is not None else ()
        return Subject(tool, input, effect, workspace, name=name, other_names=tuple(others))
    paths: list[str] = []
    if tool in ("Grep", "Glob", "LS"):
        paths = [_text(input, "root", "path") or workspace.cwd, *_outside_of_pattern(tool, input)]
    elif tool in EDIT_TOOLS or tool in READ_TOOLS:
        path = _text(input, "file_path", "notebook_path", "path") or ""
        if tool != "Read" or not path.startswith("blob:"):  # a blob is an output stored by this session
            paths = [path]
    elif effect == "read" and not tool.startswith("mcp__"):
        paths = [value for key in _PATH_KEYS if isinstance(value := input.get(key), str) and value]
    accesses = tuple(Access(workspace.follow(path, workspace.cwd), tool in EDIT_TOOLS) for path in paths)
    problem = next((access.places.problem for access in accesses if access.places.problem), None)
    extra_names = () if rule_names is None else tuple(rule_names(input))
    return Subject(tool, input, effect, workspace, accesses, rule_names=extra_names, problem=problem)


def _outside_of_pattern(tool: str, input: Mapping[str, Any]) -> list[str]:
    """The folder that a Glob pattern or `file_glob` itself names, as a list that is empty unless the pattern is absolute or
    contains `..`. If its braces may hide such an alternative, the root folder.
    """
    pattern = input.get("pattern") if tool == "Glob" else input.get("file_glob")
    # Braces may hide an alternative that leads elsewhere, such as `{src,/etc}`.
    if isinstance(pattern, str) and re.search(r"[{,](?:\.\.|[/~])", pattern):
        return ["/"]
    if not isinstance(pattern, str) or not (pattern.startswith(("/", "~")) or ".." in pattern.split("/")):
        return []
    fixed = []
    for part in pattern.split("/"):
        if any(letter in part for letter in "*?[{"):
            break
        fixed.append(part)
    return ["/".join(fixed) or "/"]


def _text(input: Mapping[str, Any], *keys: str) -> str | None:
    return next((input[key] for key in keys if isinstance(input.get(key), str)), None)


# --- what a command line could touch -------------------------------------------------------------------------------------


# Text in a line with code that indicates that the code writes.
_WRITES = regex(r">|write|unlink|remove|rename|[\"'][wax]b?\+?[\"']")

# The most folders in which a command may possibly run; with more, the line is asked about.
MAX_FOLDERS = 8


def with_folders(line: CommandLine, cwd: str) -> Iterator[tuple[SimpleCommand, tuple[str, ...]]]:
    """Yield each command with every folder in which it may run: a cd may fail, or run in a separate process.

    A command joined to a cd by `&&` runs only if the cd succeeded.
    """
    folders: tuple[str, ...] = (cwd,)
    here = folders
    joins = (*(command.joined_by for command in line.commands[1:]), "")
    for command, joined_by in zip(line.commands, joins, strict=True):
        count_steps(4 * len(folders))
        if command.joined_by not in ("&&", "|", "|&"):
            here = folders
        yield command, here
        words = cd_words(command.argv)
        if len(words) != 2 or len(here) > MAX_FOLDERS:
            continue
        moved = _targets_of_cd(here, words[1])
        folders = tuple(dict.fromkeys((*folders, *moved)))
        is_certain = joined_by == "&&" and command.joined_by not in ("|", "|&")
        here = moved if is_certain else folders


def cd_words(argv: Sequence[str]) -> Sequence[str]:
    """The words of a `cd` or `pushd`, even one after `command` or `builtin`; none for any other command."""
    at = next((at for at, word in enumerate(argv) if word not in ("command", "builtin", "-p", "--")), 0)
    return argv[at:] if argv[at] in ("cd", "pushd") else ()


def moved_folders(folders: tuple[str, ...], target: str) -> tuple[str, ...]:
    """The folders in which a command may run after a cd; unchanged if there are already more than `MAX_FOLDERS`."""
    if len(folders) > MAX_FOLDERS:
        return folders
    return tuple(dict.fromkeys((*folders, *_targets_of_cd(folders, target))))


def _targets_of_cd(folders: tuple[str, ...], target: str) -> tuple[str, ...]:
    count_steps(sum(len(folder) + len(target) for folder in folders) // 16)
    moved = [os.path.join(folder, literal(target)) for folder in folders]
    # The shell applies ".." to the name that it remembers, the kernel to the actual folder.
    return tuple(dict.fromkeys((*moved, *map(os.path.normpath, moved))))


# Other names of the folder that a command runs in; a path after a substitution may be one, too.
_HERE = regex(r"/+proc/+[^/]+/+(?:task/+[^/]+/+)?cwd(?=/|$)|~\+(?=/)|\$\{?\w+\}?(?=/)")


# The command's own folder in /proc; a name with a process number leads to the folder of another process.
_OWN_FOLDER = regex(r"/(?:\.?/)*proc/(?:\.?/)*(?:self|thread-self)/(?:\.?/)*cwd(?=/|$)")


def literal(word: str) -> str:
    """A shell word as a path: a quoted tilde is an ordinary character, /proc/self/cwd is the command's own folder."""
    own = _OWN_FOLDER.match(word) if word.startswith("/") else None
    return f"./{word}" if word.startswith("~") else f".{word[own.end() :]}" if own else word


def _possible_paths(subject: Subject) -> Iterator[tuple[str, bool, str]]:
    """Yield everything in the line that could be a path, whether it could be written, and its starting folder."""
    text, cwd = subject.command or "", subject.workspace.cwd
    if subject.runs_text:
        words = subject.doubtful_words
        writes = _WRITES.search(text) is not None or any(word.text in WRITERS for word in words)
        folders: tuple[str, ...] = (cwd,)
        for before, word in zip((None, *words), words, strict=False):
            if before is not None and before.text in ("cd", "pushd", "-C"):
                folders = moved_folders(folders, word.text)
            for folder in folders:
                yield from ((path, writes, folder) for path in path_like(word.text))
    for command, places in subject.placed_commands:
        for path, write in _named_paths(command):
            for folder in places:
                yield path, write, folder


def _named_paths(command: SimpleCommand) -> list[tuple[str, bool]]:
    reads = read_only(command.argv)
    if reads is not None:
        # The shell lists a folder for a wildcard, whatever the program does with the names.
        expanded = (command.argv[index] for index in command.globs)
        paths = [(path, False) for path in (*reads.paths, *reads.values, *expanded)]
    else:
        risk = hazard(command.argv)
        name = base_name(command.argv[0])
        writes = risk is not None or name in WRITERS or (name == "git" and not GIT_WRITES.isdisjoint(command.argv))
        # A program that runs or writes something may get its arguments in one word.
        inner = [part for word in command.argv[1:] if risk and " " in word for part in word.split()]
        paths = [(path, writes) for word in (*command.argv[1:], *inner) for path in path_like(word)]
    paths += [(redirect.target, redirect.writes) for redirect in command.redirects if not redirect.is_descriptor]
    return paths


_MARKS = regex("[=@:,;<>|+]+")
_CODED = regex("%([0-9A-Fa-f]{2})")


# Longer words are texts: they rarely occur again, and their parts need much memory.
_MAX_KEPT_WORD = 200


def path_like(word: str) -> tuple[str, ...]:
    """The parts of a word that could be a path: the word itself, the text after and between marks such as `=`, `@` or `:`,
    and values attached to short options.
    """
    if len(word) <= _MAX_KEPT_WORD:
        return _path_like(word)
    marks = sum(1 for _ in _MARKS.finditer(word))
    count_steps(2 * marks + marks * len(word) // 1024)
    return _path_like.__wrapped__(word)


@functools.lru_cache(maxsize=4096)
def _path_like(word: str) -> tuple[str, ...]:
    is_option = word.startswith("-")
    if not _MARKS.search(word) and (not is_option or word.startswith("--") or len(word) < 3):
        return () if is_option or not word else (word,)
    candidates = {} if is_option else {word: None}
    start = 0
    for mark in _MARKS.finditer(word):
        if not is_option or start:
            candidates[word[start : mark.start()]] = None
        start = mark.end()
        candidates[word[start:]] = None
    if is_option and word[1:2] != "-":
        # In `-abc/x` the letters are options, and the rest may be the value of the last one.
        letters = next((at for at in range(1, len(word)) if not word[at].isalnum()), len(word))
        values = (word[at:] for at in range(2, min(letters, 8) + 1))
        candidates.update((part, None) for value in values for part in (value, *path_like(value.lstrip("-"))))
    decoded = _CODED.sub(lambda code: chr(int(code[1], 16)), word) if "%" in word and ":" in word else word
    if decoded != word:
        candidates.update((part, None) for part in path_like(decoded))
    return tuple(text for text in candidates if text)
