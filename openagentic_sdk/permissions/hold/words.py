"""Decide whether the words of a command show everything that it reads and runs, for rules that only words can enforce.

They do so only for programs of the tables that touch no files but those named by their words, and run nothing. Any other
program needs a question unless an allow rule names it: interpreters, programs that take programs or lists of files from
their input, arguments or a file, files run by their path, unknown programs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from ...ground.patterns import regex
from ...tools.shell.environment import USUAL_FOLDERS
from ..command_allow import names_command
from ..policy import Policy
from ..program_tables import NEVER_READS, NEVER_READS_IN, WILDCARD_PROOF, WRITERS, Options
from ..programs import hazard, option_in, program_of, read_only, unwrapped
from ..shell import GLOB_LETTERS, CommandLine, SimpleCommand, base_name, word_set
from ..subject import HARMLESS_DEVICES, Subject, Workspace, literal, path_like
from .programs import enforced_by_words, unheld_rules

# In addition to the tables of reading and writing programs: programs that only read the files that their words name.
_READ_THEIR_WORDS = word_set("""
    base32 base64 bzcat colrm column curl fmt hexdump iconv join look pr shuf sum tsort wget xxd xzcat zcat zstdcat
    ping dig host nslookup
""")
# Writing programs whose input determines what they write, or that start others.
_FOLLOW_THEIR_INPUT = frozenset({"patch", "rsync", "sponge", "rename"})
_AWKS = frozenset({"awk", "gawk", "mawk", "nawk"})
_AWK_NAMES_FILES = regex(r"ARG|SYMTAB")
# Programs that create or move links, so that a name later in the line may lead elsewhere than now.
_MOVES_NAMES = {
    **dict.fromkeys(("ln", "link", "mv", "tar", "unzip"), Options()),
    "cp": Options("aRrdPslb", ("archive", "recursive", "no-dereference", "preserve", "symbolic-link", "link")),
    "git": Options(),
}


def opaque_command(policy: Policy, subject: Subject, named: frozenset[int]) -> str | None:
    """The reason why the words of a line do not show whether a deny rule enforced by words is violated; None if they do, or
    if no such rule is in force. `named` are the positions of commands that an allow rule is known to name.
    """
    line, workspace = subject.line, subject.workspace
    rule = next(unheld_rules(policy.deny.rules, confined=workspace.confined), None)
    if rule is None or not isinstance(line, CommandLine):
        return None
    moved = ""
    for index, (command, cwds) in enumerate(subject.placed_commands):
        argv = command.argv
        name = base_name(argv[0])
        reason = _opaque(unwrapped(command) or command, workspace) or _shadows(command, cwds, workspace)
        if reason is None and moved and name not in ("cd", "echo", "true", "false", ":", "pwd"):
            reason = f"{moved} may have changed the targets of the following names: run them one by one"
        if reason is None and name == "cd" and command is not line.commands[-1] and not _is_plain_cd(command):
            reason = "the target of this cd is known only to the shell"
        if reason is not None and index not in named and not names_command(policy, subject, command, cwds):
            return f"{reason}, and {enforced_by_words(rule, workspace.confined)}"
        moves = _MOVES_NAMES.get(name)
        if moves is not None and (moves == Options() or option_in(argv[1:], moves) is not None):
            moved = moved if name == "git" and read_only(argv, trusted=True) is not None else name
    return None


def _is_plain_cd(command: SimpleCommand) -> bool:
    return len(command.argv) == 2 and not command.argv[1].startswith("-") and not command.globs


def _opaque(command: SimpleCommand, workspace: Workspace) -> str | None:
    """The reason why a command may read or run something that its words do not name; None if it may not."""
    argv = command.argv
    if command.open_assignments:
        return f"{command.open_assignments[0]} can make a program do something else"
    folder, _, name = argv[0].rpartition("/")
    if folder and folder not in USUAL_FOLDERS:
        return f"{argv[0]} is run by its path"
    argv = (name, *argv[1:])
    for index in command.globs:
        if argv[index][0] in GLOB_LETTERS and name not in WILDCARD_PROOF:
            return f"the wildcard {argv[index]} could become an option"
    if read_only(argv, trusted=workspace.trusted, in_plain_repository=name == "git") is not None:
        return None
    reason = hazard(argv, 2 if name == "git" else 1)
    if reason is not None:
        return reason
    if name in _AWKS:
        names_files = any(_AWK_NAMES_FILES.search(word) for word in argv[1:])
        return "the awk program can choose the files that it reads" if names_files else None
    is_closed = name in WRITERS - _FOLLOW_THEIR_INPUT or name in NEVER_READS or name in _READ_THEIR_WORDS
    if is_closed or (name in NEVER_READS_IN and _subcommand(argv) in NEVER_READS_IN[name]):
        return None
    runs = program_of(name)
    return f"the words of the command do not show what {runs} reads and runs"


def _subcommand(argv: Sequence[str]) -> str:
    return next((word for word in argv[1:] if not word.startswith("-")), "")


def _shadows(command: SimpleCommand, cwds: Sequence[str], workspace: Workspace) -> str | None:
    """The problem if a command writes to a folder in which programs are looked up by name."""
    words = [redirect.target for redirect in command.redirects if redirect.writes]
    if base_name(command.argv[0]) in WRITERS | {"curl", "wget"}:
        words += [text for word in command.argv[1:] for text in path_like(word)]
    places = [(word, workspace.follow(literal(word), cwd).real) for word in words for cwd in cwds]
    places = [(word, real) for word, real in places if real not in HARMLESS_DEVICES]
    if not places:
        return None
    searched = {os.path.realpath(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder}
    for word, real in places:
        if (real in searched or os.path.dirname(real) in searched) and not _is_read(command, word):
            return f"{word} is in a folder that is searched for programs"
    return None


def _is_read(command: SimpleCommand, word: str) -> bool:
    """Whether a word of a copy command is a source."""
    return base_name(command.argv[0]) in ("cp", "tar", "gzip") and command.argv[-1] != word
