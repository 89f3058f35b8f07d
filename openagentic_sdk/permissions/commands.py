"""What a policy says about a command line.

The law of this file: to allow, everything must be understood and every part must be permitted; to forbid, it is enough
that a part could be what a rule names. A rule for whole words never reaches what hides behind them: see `programs`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from .paths import OPTION_NAME, TOO_MANY_PATHS
from .policy import READING_MODES, Policy, permits_access
from .program_tables import SHELLS, WILDCARD_PROOF, WRITERS
from .programs import Reads, hazard, inner_commands, program_of, read_only, takes_code
from .rules import Rule, RuleBook, may_take_value
from .shell import (
    GLOB_LETTERS,
    IS_GLOB,
    MAX_COMMAND_CHARS,
    CommandLine,
    LooseWord,
    NotUnderstood,
    Redirect,
    SimpleCommand,
    could_become,
    loose_words,
    parse_command,
)
from .subject import MAX_FOLDERS, Access, Subject, Workspace, literal, path_like, with_folders

MAX_DEPTH = 8
# How far behind a program's name the rest of a rule is looked for.
MAX_GUESSED_WORDS = 12


@dataclass(frozen=True, slots=True)
class Judged:
    """Whether a line, or a part of one, may run without a question; the sentence that says why; the rule that said yes."""

    allowed: bool
    reason: str
    rule: Rule | None = None


# --- to forbid -----------------------------------------------------------------------------------------------------------


def forbidding_command_rule(book: RuleBook, subject: Subject) -> Rule | None:
    """The first deny or ask rule that some part of the line is, or could be."""
    if book.commands:
        rule = _by_words(book, subject.line) or _by_guess(book, subject)
        if rule is not None:
            return rule
    return first_forbidding_path(book, subject, subject.possible_accesses) if book.paths else None


def could_be_anything(subject: Subject) -> bool:
    """Whether a command of the line has a name that only bash can work out, so that no rule about names can be excluded."""
    command, line = subject.command or "", subject.line
    if not isinstance(line, CommandLine):
        return len(command) > MAX_COMMAND_CHARS or _FED_SHELL.search(command) is not None or _has_open_command(command)
    if not subject.runs_text:
        return False
    if any(map(_feeds_shell, line.commands, line.commands[1:])):
        return True
    return any(_has_open_command(word) for part in line.commands if takes_code(part.argv) for word in part.argv[1:])


# A shell that runs what another program writes.
_FED_SHELL = re.compile(r"\|&?\s*(?:[^\s|]*/)?(?:ba|da|z|k|mk|a)?sh\b|(?:sh|\.|source)\s+<\(")
# What writes nothing but the words of the line, and those of files.
_SHOWS_ITS_TEXT = frozenset({"echo", "printf", "cat"})


def _feeds_shell(before: SimpleCommand, command: SimpleCommand) -> bool:
    """Whether a command runs, as a shell, what the one before it has worked out."""
    if command.joined_by not in ("|", "|&") or before.argv[0] in _SHOWS_ITS_TEXT:
        return False
    return any(program_of(argv) in SHELLS and hazard(argv) is not None for argv in _all_commands(command.argv, 0))


def _has_open_command(text: str) -> bool:
    """Whether a word that only bash can finish stands where a command begins, or behind a program that runs others."""
    wrapped = False
    for word in loose_words(text):
        wrapped = not word.starts and wrapped
        if word.open and (word.starts or wrapped):
            return True
        wrapped = wrapped or takes_code((word.text,))
    return False


def _by_words(book: RuleBook, line: CommandLine | NotUnderstood | None) -> Rule | None:
    if not isinstance(line, CommandLine):
        return None
    for command in line.commands:
        for argv in _all_commands(command.argv, 0):
            name = argv[0].rpartition("/")[2]
            rule = book.forbidding_command(argv)
            if rule is None and name != argv[0]:
                rule = book.forbidding_command((name, *argv[1:]))
            if rule is not None:
                return rule
        rule = _by_input(book, command.argv)
        if rule is not None:
            return rule
    return None


def _by_input(book: RuleBook, argv: Sequence[str]) -> Rule | None:
    """For programs that put words of their input behind, or for `{}` into, the command that they are given."""
    if argv[0].rpartition("/")[2] not in ("xargs", "parallel"):
        return None
    for inner in inner_commands(argv):
        known = inner[: next((index for index, word in enumerate(inner) if "{" in word), len(inner))]
        rule = book.for_beginning(known) if known and known[0] else None
        if rule is not None:
            return rule
    return None


def _all_commands(argv: Sequence[str], depth: int) -> Iterator[tuple[str, ...]]:
    """The command, what it wraps, and the command lines that stand in its arguments."""
    if not argv or not argv[0]:
        return
    yield tuple(argv)
    if depth >= MAX_DEPTH:
        return
    yield from inner_commands(argv)
    if not takes_code(argv):
        return
    for word in argv[1:]:
        line = parse_command(word) if " " in word or "\n" in word else None
        if isinstance(line, CommandLine):
            for command in line.commands:
                yield from _all_commands(command.argv, depth + 1)


def _by_guess(book: RuleBook, subject: Subject) -> Rule | None:
    """Look for the words of rules anywhere in what was not understood, or may reach a program that runs text."""
    doubtful = _doubtful(subject)
    words = loose_words(doubtful) if doubtful else []
    for index, word in enumerate(words):
        rules = _rules_for(book, word)
        behind = words[index + 1 : index + MAX_GUESSED_WORDS] if rules else []
        is_certain = not any(word.open or IS_GLOB.search(word.text) for word in behind)
        texts = {word.text for word in behind}
        for rule in rules:
            is_out = is_certain and not texts.issuperset(rule.words[1:])
            if not is_out and _could_follow(rule.words[1:], behind):
                return rule
    return None


def _doubtful(subject: Subject) -> str:
    """The part of a line that may hold commands which its words do not show: all, nothing, or some of its commands."""
    line = subject.line
    if subject.runs_text or not isinstance(line, CommandLine):
        return subject.command or ""
    return "\n".join(" ".join(part.argv) for part in line.commands if part.globs or hazard(part.argv))


def _rules_for(book: RuleBook, word: LooseWord) -> Sequence[Rule]:
    text = word.text.rpartition("/")[2] or word.text
    if not IS_GLOB.search(text):
        return (*book.commands.get(text, ()), *(book.commands.get(word.text, ()) if text != word.text else ()))
    return [rule for name, rules in book.commands.items() if could_become(text, name) for rule in rules]


def _could_follow(wanted: Sequence[str], words: Sequence[LooseWord]) -> bool:
    """Whether the words may be the wanted ones: each is equal, or could become anything, or a wildcard that fits.

    Options and their values may stand between them.
    """
    left = iter(words)
    for expected in wanted:
        option = ""
        anything = False
        for word in left:
            is_value, option = option, word.text if word.text.startswith("-") else ""
            if word.open and len(is_value) == 2:
                anything = anything or word.text == "$"
            elif word.open:
                return True
            elif word.text == expected or (IS_GLOB.search(word.text) and could_become(word.text, expected)):
                break
            elif not (anything or option or (is_value and may_take_value(is_value))):
                return False
        else:
            return False
    return True


def first_forbidding_path(book: RuleBook, subject: Subject, accesses: Iterable[Access]) -> Rule | None:
    """The first rule that keeps one of the paths from being read or written."""
    bases = subject.workspace.bases
    hits = (book.forbidding_path(access.places.all, bases, write=access.write) for access in accesses)
    return next((hit for hit in hits if hit is not None), None)


# --- to permit -----------------------------------------------------------------------------------------------------------


def permits_command(policy: Policy, subject: Subject, *, reads_only: bool = False) -> Judged:
    """Whether the whole line may run by mode and allow rules; with `reads_only`, by the set of reading programs alone."""
    whole = None if reads_only else policy.allow.for_tool("Bash")
    if whole is not None:
        return Judged(True, f"the allow rule {whole.text} ({whole.source}) covers every command", whole)
    line = subject.line
    if not isinstance(line, CommandLine):
        why = line.reason if line is not None else "there is no command"
        return Judged(False, f"the command is not plain enough to be judged: {why}")
    problem = _problem_of_line(line, subject.workspace)
    if problem is not None:
        return Judged(False, problem)
    rule: Rule | None = None
    reason = ""
    for command, cwds in with_folders(line, subject.workspace.cwd):
        judged = _Part(policy, subject, command, cwds, reads_only).judge()
        if not judged.allowed:
            return judged
        rule, reason = judged.rule or rule, judged.reason
    return Judged(True, reason, rule)


def _problem_of_line(line: CommandLine, workspace: Workspace) -> str | None:
    """What makes parts that are harmless alone a risk together, or in the folder where an earlier line has led."""
    moves = any(command.argv[0] == "cd" for command in line.commands)
    if not moves and not workspace.has_moved:
        return None
    if any(command.argv[0] == "git" for command in line.commands) and (moves or workspace.is_in_other_repository):
        return "cd together with git could run another repository's configuration"
    targets = [r.target for c in line.commands for r in c.redirects if not r.is_descriptor]
    if moves and any(not target.startswith("/") for target in targets):
        return "cd together with a relative redirection could write elsewhere"
    if any("/" in command.argv[0] and not command.argv[0].startswith("/") for command in line.commands):
        return "cd together with a program's relative path could run another program"
    return None


# An option with its value, whatever a wildcard in the value may become.
_OPTION_VALUE = re.compile(r"--[a-z-]+=")


@dataclass(frozen=True, slots=True)
class _Part:
    """One simple command of a line, judged."""

    policy: Policy
    subject: Subject
    command: SimpleCommand
    cwds: tuple[str, ...]
    reads_only: bool

    def judge(self) -> Judged:
        judged = self._cd() if self.command.argv[0] == "cd" else self._program()
        if not judged.allowed:
            return judged
        for redirect in self.command.redirects:
            refused = self._redirect(redirect)
            if refused is not None:
                return refused
        return judged

    def _cd(self) -> Judged:
        argv = self.command.argv
        if len(argv) != 2 or argv[1].startswith("-") or self.command.globs or len(self.cwds) > MAX_FOLDERS:
            return Judged(False, "this cd leads where only the shell knows")
        return self._reading(Reads((argv[1],)), "cd inside the workspace")

    def _program(self) -> Judged:
        argv = self.command.argv
        refused: Judged | None = None
        reads = read_only(argv, trusted=self.subject.workspace.trusted)
        if reads is not None and self.policy.mode in READING_MODES:
            judged = self._reading(reads, f"mode {self.policy.mode} allows {argv[0]}, which only reads")
            if judged.allowed or self.reads_only:
                return judged
            refused = judged
        if self.reads_only:
            return Judged(False, f"{argv[0]} is not among the programs that only read")
        rule = self.policy.allow.for_command(argv)
        if rule is None:
            return refused or Judged(False, f"no rule allows: {' '.join(argv)}")
        if rule.exact and not self.command.globs:
            return Judged(True, f"the allow rule {rule.text} ({rule.source}) names this command", rule)
        problem = self._problem(rule)
        if problem is not None:
            return Judged(False, f"{rule.text} does not cover it: {problem}")
        return Judged(True, f"the allow rule {rule.text} ({rule.source}) covers it", rule)

    def _problem(self, rule: Rule) -> str | None:
        """Why a prefix rule does not cover this call after all."""
        argv = self.command.argv
        if min(self.command.globs, default=len(argv)) < len(rule.words):
            return "the wildcard stands where the rule has a word"
        found = self._could_be_option() or hazard(argv, len(rule.words))
        if found is not None:
            return found
        return self._writes_elsewhere() if argv[0] in WRITERS else self._reads_forbidden_tree()

    def _writes_elsewhere(self) -> str | None:
        """A program that writes what it names stays in the workspace, and off what is protected."""
        if self.policy.mode == "bypass":
            return None
        writing = Policy("acceptEdits", RuleBook(()), self.policy.ask, self.policy.deny)
        for word in self.command.argv[1:]:
            for text in path_like(word):
                for access in self._accesses(text, write=True):
                    verdict = permits_access(writing, access, self.subject)
                    if verdict.outcome != "allow":
                        return verdict.reason
        return None

    def _reads_forbidden_tree(self) -> str | None:
        reads = read_only(self.command.argv, trusted=True)
        if reads is not None and reads.recursive and (self.policy.deny.paths or self.policy.ask.paths):
            return "it reads a whole folder, and rules forbid a part of one: use Grep or Glob, which obey them"
        return None

    def _reading(self, reads: Reads, reason: str) -> Judged:
        """A reading program: every path that it names must be one that may be read."""
        if reads.recursive:
            problem = self._reads_forbidden_tree()
            if problem is not None:
                return Judged(False, problem)
        problem = self._wildcard_problem(reads)
        if problem is not None:
            return Judged(False, problem)
        for path in (*reads.paths, *self._listed_folders()):
            for access in self._accesses(path, write=False):
                verdict = permits_access(self.policy, access, self.subject)
                if verdict.outcome != "allow":
                    return Judged(False, verdict.reason)
                if self.command.argv[0] == "diff" and os.path.isdir(access.places.real):
                    return Judged(False, "diff also reads what the links in a folder lead to")
        return Judged(True, reason)

    def _listed_folders(self) -> tuple[str, ...]:
        """The folders whose names the wildcards of an echo tell."""
        argv = self.command.argv
        return tuple(os.path.dirname(argv[index]) or "." for index in self.command.globs if argv[0] == "echo")

    def _wildcard_problem(self, reads: Reads) -> str | None:
        """A wildcard in a reading call must stand for paths that are looked at."""
        argv = self.command.argv
        for index in self.command.globs:
            if argv[index] not in reads.paths and argv[0] != "echo" and not _OPTION_VALUE.match(argv[index]):
                return f"the wildcard {argv[index]} does not stand for a path"
            if argv[0] == "uniq":
                return "a wildcard could give uniq a file to write"
        return self._could_be_option()

    def _could_be_option(self) -> str | None:
        argv = self.command.argv
        for index in self.command.globs:
            if argv[index][0] in GLOB_LETTERS and argv[0] not in WILDCARD_PROOF:
                return f"the wildcard {argv[index]} could become an option: write ./{argv[index]}"
        return None

    def _accesses(self, text: str, *, write: bool) -> Iterator[Access]:
        """The paths that a word may stand for, from every folder that the command may run in."""
        workspace = self.subject.workspace
        argv = self.command.argv
        is_glob = any(text in (argv[index], os.path.dirname(argv[index])) for index in self.command.globs)
        for cwd in self.cwds:
            yield Access(workspace.follow(literal(text), cwd), write)
            if not is_glob:
                continue
            found = workspace.expand(text, cwd)
            if found is None:
                yield Access(replace(workspace.follow(".", cwd), problem=TOO_MANY_PATHS), write)
            for name in found or ():
                places = workspace.follow(literal(name), cwd)
                yield Access(replace(places, problem=OPTION_NAME) if name.startswith("-") else places, write)

    def _redirect(self, redirect: Redirect) -> Judged | None:
        """None when the redirection may happen."""
        if redirect.is_descriptor or redirect.target == "/dev/null":
            return None
        if redirect.target.startswith(("/dev/tcp", "/dev/udp")):
            return Judged(False, "it opens a network connection")
        if self.reads_only and redirect.writes:
            return Judged(False, f"it writes {redirect.target}")
        for cwd in self.cwds:
            access = Access(self.subject.workspace.follow(literal(redirect.target), cwd), redirect.writes)
            verdict = permits_access(self.policy, access, self.subject)
            if verdict.outcome != "allow":
                return Judged(False, verdict.reason)
        return None
