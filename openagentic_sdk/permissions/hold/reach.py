"""Files that a command may reach although none of its words names them: everything below a folder, and the values of
unknown words.

Both are determined by a bounded walk of the places in question, in search of a path that a rule forbids.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice, pairwise

from ...ground.frozen import frozen
from ..guess import UNKNOWN, loose_commands
from ..paths import anchor_of, is_inside
from ..program_tables import (
    FETCHERS,
    FOLLOWS_LINKS,
    IMPLICIT_TREES,
    LAUNCHERS,
    NEVER_READS,
    NEVER_READS_IN,
    SHELLS,
    TREE_PROGRAMS,
    WRAPPERS,
    WRITERS,
    Options,
)
from ..programs import inner_commands, option_in, program_of
from ..rules import Rule, RuleBook
from ..shell import IS_GLOB, CommandLine, base_name, could_become
from ..subject import Subject, literal, moved_folders, path_like
from .steps import count_steps, count_walked

# The most files and folders that are checked for one command.
MAX_ENTRIES = 20_000
_MAX_DEPTH = 6
# The most words after a wrapper that are considered as the name of the program it runs.
_MAX_TAILS = 100


@frozen
class Reach:
    """The files within a command's reach. `folders` are read, or written, with everything below them; each of `endings` is
    the end of a word with an unknown beginning. `words` are the values of words with variables that the line sets, with
    their starting folder. Each flag is true if the path may be written.
    """

    folders: tuple[tuple[str, bool], ...] = ()
    endings: tuple[tuple[str, bool], ...] = ()
    words: tuple[tuple[str, bool, str], ...] = ()


@frozen
class Met:
    """The first forbidden path within reach; `is_tree` is true if it is in a folder that the command processes. `rule` is
    None if the search was cut off at this path.
    """

    path: str
    rule: Rule | None
    is_tree: bool


def reach_of(subject: Subject) -> Reach:
    """The paths that the command of a call may reach besides those that it names."""
    line = subject.line
    if isinstance(line, CommandLine) and not subject.runs_text and not any(_may_reach(c.argv) for c in line.commands):
        return Reach()
    rows = [(base_name(argv[0]), argv, cwds) for argv, cwds in _rows(subject)]
    folders = dict.fromkeys(
        (folder, name in WRITERS)
        for name, argv, cwds in rows
        if _reads_trees(name, argv)
        for folder in _folders(
            subject,
            [word for word in argv[1:] if word not in ("<", ">")],
            cwds,
            or_here=name in IMPLICIT_TREES,
            is_walk=name not in IMPLICIT_TREES or name == "find",
        )
    )
    endings, words = _unknown_words(subject, rows)
    return Reach(tuple(folders), tuple(endings), tuple(words))


def _unknown_words(
    subject: Subject, rows: Sequence[tuple[str, Sequence[str], tuple[str, ...]]]
) -> tuple[dict[tuple[str, bool], None], dict[tuple[str, bool, str], None]]:
    """The endings of paths that only the shell can determine, and the other words that may be paths."""
    endings: dict[tuple[str, bool], None] = {}
    words: dict[tuple[str, bool, str], None] = {}
    # After a cd that only bash can follow, every name may be that of a file anywhere.
    is_lost = any(argv[0] in ("cd", "pushd") and any(UNKNOWN in word for word in argv) for _, argv, _ in rows)
    for name, argv, cwds in rows:
        if name in WRAPPERS and name not in ("xargs", "parallel"):
            continue  # its words belong to the command that it runs, which has its own row
        writes, never_reads = name in WRITERS, _never_reads(name, argv)
        for before, word in pairwise(argv):
            if UNKNOWN in word and (before in ("<", ">") or not never_reads):
                endings[word.rpartition(UNKNOWN)[2], writes or before == ">"] = None
            elif UNKNOWN not in word and "$" in (subject.command or ""):
                words.update(((text, writes, cwd), None) for text in path_like(word) for cwd in cwds)
                if is_lost and not never_reads and word.isprintable() and not word.startswith(("/", "~", "-")):
                    endings[f"/{word}", writes] = None
        if name in ("xargs", "parallel"):  # its input becomes words of the command
            runs = next((inner for inner in inner_commands(argv) if _is_program(inner[0])), None)
            if runs is None or not _never_reads(runs[0], runs):
                endings["", any(word in WRITERS for word in argv)] = None
    return endings, words


def _rows(subject: Subject) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yield the commands of a call, those that they wrap and those in their arguments, with the folders they may run in."""
    line, cwd = subject.line, subject.workspace.cwd
    todo: list[tuple[tuple[str, ...], tuple[str, ...], int]]
    if isinstance(line, CommandLine) and not subject.runs_text:
        todo = [(command.argv, folders, 0) for command, folders in subject.placed_commands if _may_reach(command.argv)]
    else:
        commands = subject.loose_commands
        folders: tuple[str, ...] = (cwd,)
        for argv in commands:
            if argv[0] in ("cd", "pushd") and len(argv) == 2 and UNKNOWN not in argv[1]:
                folders = moved_folders(folders, argv[1])
        todo = [(argv, folders, 0) for argv in commands]
    while todo:
        argv, cwds, depth = todo.pop()
        count_steps(len(argv))
        yield argv, cwds
        todo += [
            (tail, cwds, _MAX_DEPTH)
            for tail in (islice(inner_commands(argv), _MAX_TAILS) if depth < _MAX_DEPTH else ())
            if _is_program(tail[0])
        ]
        name = base_name(argv[0])
        if depth < _MAX_DEPTH and (program_of(name) in SHELLS or name in WRAPPERS):
            texts = [word for word in argv[1:] if " " in word or "\n" in word or "\t" in word]
            todo += [(inner, cwds, depth + 1) for text in texts for inner in loose_commands(text)]


def _may_reach(argv: Sequence[str]) -> bool:
    """Whether a command whose words are all known may process whole folders, or run its arguments."""
    name = base_name(argv[0])
    if name in LAUNCHERS and name != "git":
        return not LAUNCHERS[name].isdisjoint(argv) and name not in ("npm", "yarn", "pnpm")
    return name in TREE_PROGRAMS or name in FETCHERS or name == "git"


def _is_program(word: str) -> bool:
    """Whether a word among a wrapper's arguments may be the name of the program that it runs."""
    return bool(word) and word[0] not in "-+0123456789{" and "=" not in word


def _reads_trees(name: str, argv: Sequence[str]) -> bool:
    """Whether a program processes the folders that it names recursively."""
    if name == "git":
        return "grep" in argv[1:] or "--no-index" in argv
    options = TREE_PROGRAMS.get(name)
    return options is not None and (options == Options() or option_in(argv[1:], options) is not None)


def _never_reads(name: str, argv: Sequence[str]) -> bool:
    """Whether no operand of a program names a file whose content it shows or changes."""
    if name in NEVER_READS_IN:
        command = next((word for word in argv[1:] if not word.startswith("-")), "")
        return command in NEVER_READS_IN[name] and not any(word.startswith(_FILE_OPTIONS) for word in argv)
    return name in NEVER_READS


# With these options, git and gh read a file instead of taking a text.
_FILE_OPTIONS = ("-F", "--file", "--body-file", "-t", "--template", "--input", "--pathspec-from-file", "-C")


def _folders(
    subject: Subject, operands: Sequence[str], cwds: Iterable[str], *, or_here: bool, is_walk: bool = True
) -> list[str]:
    """The folders among some words; with `or_here`, if no operand names an existing path, also those that the command may
    run in. Without `is_walk`, the first operand is a pattern.
    """
    folders: dict[str, None] = {}
    # Even if a file has the name of the pattern.
    plain = [word for word in operands if not word.startswith("-")]
    path_words = plain[0 if is_walk else 1 :]
    for cwd in cwds:
        names_any = False
        for word, text in ((one, text) for one in operands for text in path_like(one) if UNKNOWN not in text):
            names = (subject.workspace.expand(text, cwd) or (".",)) if IS_GLOB.search(text) else (literal(text),)
            for name in names:
                count_steps(5)
                whole = os.path.join(cwd, os.path.expanduser(name) if name.startswith("~/") else name)
                if os.path.isdir(whole):
                    count_steps(20)
                    # In the form used by rules: without dots, and with links resolved.
                    folders |= dict.fromkeys((os.path.normpath(whole), os.path.realpath(whole)))
                names_any = names_any or (word in path_words and os.path.lexists(whole))
        if or_here and not names_any:
            folders[cwd] = None
    return list(folders)


def first_met(book: RuleBook, subject: Subject, reach: Reach, most: int = MAX_ENTRIES) -> Met | None:
    """The first path in a command's reach that a deny or ask rule covers, or at which the search was cut off, if any."""
    bases, workspace = subject.workspace.bases, subject.workspace
    for text, write, cwd in reach.words:
        names = workspace.expand(text, cwd) if IS_GLOB.search(text) else (text,)
        if names is None:
            return Met(text, None, False)
        for name in names:
            if "/" in name or "." in name or workspace.kind(f"{cwd}/{name}") != "missing":
                places = workspace.follow(literal(name), cwd)
                rule = book.forbidding_path(places.all, bases, write=write)
                if rule is not None:
                    return Met(places.real, rule, False)
    for folder, write in reach.folders:
        for path, names in _walk((folder,), most):
            rule = book.forbidding_path(names, bases, write=write) if names else None
            if rule is not None or not names:
                return Met(path, rule, True)
    if reach.endings:
        every_ending = tuple([ending for ending, _ in reach.endings])
        for path, names in _walk(_places(book, subject), most):
            count_steps(len(every_ending) // 8)
            for ending, write in reach.endings if names and names[0].endswith(every_ending) else ():
                rule = book.forbidding_path(names, bases, write=write) if names[0].endswith(ending) else None
                if rule is not None:
                    return Met(path, rule, False)
            if not names:
                return Met(path, None, False)
    return None


def link_out(subject: Subject, argv: Sequence[str], cwds: Sequence[str]) -> str | None:
    """The first link in a command's folders that leads outside the workspace, if the command follows links; or the path at
    which the search stopped, if there is too much to search.
    """
    name = base_name(argv[0])
    follows = FOLLOWS_LINKS.get(name)
    if follows is None or option_in(argv[1:], follows) is None:
        return None
    folders = _folders(subject, argv[1:], cwds, or_here=name in IMPLICIT_TREES or name in ("ls", "tree", "du"))
    return next((path for path, names in _walk(folders, MAX_ENTRIES) if leads_out(subject, names)), None)


def leads_out(subject: Subject, names: Sequence[str]) -> bool:
    """Whether an entry leads outside the workspace; also true for the entry that marks a truncated walk."""
    return not names or not is_inside(names[-1], subject.workspace.roots)


def unsafe_entry(
    subject: Subject, folder: str, written: str, opened: str, plain: re.Pattern[str] | None, most: int
) -> str | None:
    """The first unsafe entry below a folder, as a path that begins with `written`, or None.

    An entry is unsafe if its name matches the wildcard `opened` and it leads outside the workspace or to a folder that is
    not searched, if its path does not match `plain`, or if the walk stops at it because there are more than `most`.
    """
    for path, names in _walk((folder,), most):
        shown = f"{written}{path[len(folder) :]}"
        name = base_name(path)
        # In the locale C, each byte of a letter is one for a wildcard.
        is_opened = not names or (opened and (not name.isascii() or could_become(opened, name)))
        leads_elsewhere = leads_out(subject, names) or (
            len(names) > 1 and os.path.isdir(names[-1]) and not is_inside(names[-1], (folder,))
        )
        if (is_opened and leads_elsewhere) or (plain is not None and not plain.fullmatch(shown)):
            return shown
    return None


def _places(book: RuleBook, subject: Subject) -> list[str]:
    """The places to which a word of unknown value may lead: the workspace, and those outside it that rules name."""
    workspace = subject.workspace
    places = [os.path.realpath(folder) for folder in (workspace.cwd, workspace.base, *workspace.roots)]
    for rule in book.paths:
        place = anchor_of(rule.pattern, workspace.base, rule.root or workspace.base)
        if place is not None and os.path.lexists(place):
            places.append(place)
    distinct = list(dict.fromkeys(places))
    return [one for one in distinct if not any(one != other and is_inside(one, (other,)) for other in distinct)]


def _walk(places: Iterable[str], most: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each path with the paths it is known by (its own; for a link also its target); if there are more than `most`,
    yield the last path once more, with no such paths.
    """
    count = 0
    todo = [(place, os.path.islink(place), os.path.isdir(place)) for place in places]
    while todo:
        place, is_link, is_folder = todo.pop()
        names = (place, os.path.realpath(place)) if is_link else (place,)
        count_walked()
        yield place, names
        count += 1
        if count > most:
            yield place, ()
            return
        # Any other link is not entered: only its own path and its target are compared.
        if is_folder and (not is_link or count == 1):
            # Listed with the kinds of its entries: a system call for each by its path would take most of a walk's time.
            with suppress(OSError), os.scandir(place) as entries:  # what we may not list, the command may not either
                start = place.rstrip("/")
                todo += [(f"{start}/{entry.name}", *_kind(entry)) for entry in islice(entries, most + 1)]


def _kind(entry: os.DirEntry[str]) -> tuple[bool, bool]:
    """Whether an entry is a link, and whether it is a folder."""
    try:
        return entry.is_symlink(), entry.is_dir(follow_symlinks=False)
    except OSError:
        return False, False
