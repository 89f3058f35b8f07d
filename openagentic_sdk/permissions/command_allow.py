"""Decide which command lines may run without a question, by mode and allow rules.

The whole line must be understood and every part permitted. A rule about the words of a command never covers another command
that is hidden in them: see `programs`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..ground.disk import walk
from ..ground.frozen import frozen
from ..ground.patterns import regex
from ..ground.system import user_home
from .compound import may_move, read_compound
from .hold.programs import BUILT_IN
from .hold.reach import Reach, first_met, link_out, unsafe_entry
from .hold.repository import is_plain_repository
from .hold.steps import count_steps
from .paths import OPTION_NAME, TOO_MANY_PATHS, is_inside, is_protected
from .policy import READING_MODES, Policy, permits_access
from .program_tables import NEVER_READS, NEVER_READS_IN, READERS, WILDCARD_PROOF, WRITERS
from .programs import PRINT_WORDS, Reads, fed_by_find, file_edits, hazard, is_known, read_only, unwrapped
from .rules import EDIT_TOOLS, Rule, RuleBook
from .shell import GLOB_LETTERS, CommandLine, NotUnderstood, Redirect, SimpleCommand, base_name, shell_word
from .subject import (
    HARMLESS_DEVICES,
    MAX_FOLDERS,
    Access,
    Subject,
    Workspace,
    cd_words,
    literal,
    path_like,
    repository_of,
    with_folders,
)


@frozen
class Judged:
    """A judgement of a line or part of one: whether it may run without a question, the reason as a sentence, and the rule
    that allowed it.

    `is_edit` is true if the mode allows it because it only edits files, as the file tools do. `named` are the positions of
    the commands of a line that were allowed by a rule.
    """

    allowed: bool
    reason: str
    rule: Rule | None = None
    is_edit: bool = False
    named: frozenset[int] = frozenset()


def permits_command(policy: Policy, subject: Subject, *, reads_only: bool = False) -> Judged:
    """Judge whether mode and allow rules permit the whole line; with `reads_only`, only read-only programs are permitted."""
    # First: such a rule also covers lines that nobody can evaluate.
    whole = None if reads_only else policy.allow.for_tool("Bash")
    if whole is not None:
        return Judged(True, f"the allow rule {whole.text} ({whole.source}) covers every command", whole)
    line: CommandLine | NotUnderstood | None = subject.line
    unclear = line if isinstance(line, NotUnderstood) else None
    if unclear is not None:
        line = _plain_form(subject) or line
    if not isinstance(line, CommandLine):
        return _unreadable(line.reason if line is not None else "the command is empty")
    placed = subject.placed_commands or tuple(with_folders(line, subject.workspace.cwd))
    problem = _problem_of_line(placed, subject.workspace)
    if problem is not None:
        return Judged(False, problem)
    rule: Rule | None = None
    reason, is_edit = "", False
    named: set[int] = set()
    fed = {at: (find, splits) for at, find, splits in fed_by_find(line.commands)}
    for index, (command, cwds) in enumerate(placed):
        count_steps(20 + len(command.argv))
        judged = _JudgedCommand(policy, subject, command, cwds, reads_only).judge()
        if not judged.allowed and index in fed:
            find, splits = fed[index]
            plain = None if not splits else _PLAIN_PATH if unclear is None else _PLAIN_WORD
            judged = _JudgedCommand(policy, subject, find, cwds, True, plain).judge()
        if not judged.allowed:
            # A loop or substitution may have been rewritten with an xargs that does not appear in the line.
            is_ours = unclear is not None and command.argv[0] == "xargs" and "xargs" not in (subject.command or "")
            return _unreadable(unclear.reason) if unclear is not None and is_ours else judged
        rule, reason = judged.rule or rule, judged.reason
        is_edit = is_edit or judged.is_edit
        if judged.rule is not None:
            named.add(index)
    return Judged(True, reason, rule, is_edit, frozenset(named))


def _unreadable(reason: str) -> Judged:
    return Judged(False, f"what the command does cannot be determined from its text: {reason}")


def names_command(policy: Policy, subject: Subject, command: SimpleCommand, cwds: tuple[str, ...]) -> bool:
    """Whether an allow rule matches this command of the line and covers all of its words."""
    return any(judged.allowed for judged in _JudgedCommand(policy, subject, command, cwds, False).by_rules())


def _plain_form(subject: Subject) -> CommandLine | None:
    """A compound line, rewritten as a plain one that has all of its commands; None if the line could run anything else."""
    workspace, text = subject.workspace, subject.command or ""
    variables = {} if workspace.confined else {"HOME": user_home()}
    if not may_move(text):
        variables["PWD"] = workspace.cwd
    return read_compound(text, variables)


def _problem_of_line(placed: Sequence[tuple[SimpleCommand, tuple[str, ...]]], workspace: Workspace) -> str | None:
    """The problem with a line whose parts are harmless on their own: their combination with a cd in it, or with one in an
    earlier call; None if there is no problem.
    """
    # Each command of a line is judged by itself, and these combinations would be missed.
    moves = any(cd_words(command.argv) for command, _ in placed)
    if not moves and not workspace.has_moved:
        return None
    programs = [((unwrapped(command) or command).argv[0], cwds) for command, cwds in placed]
    for name, cwds in programs:
        if name == "git" and (workspace.is_in_other_repository or not all(map(workspace.is_same_repository, cwds))):
            return "cd together with git could run another repository's configuration"
    targets = [r.target for c, _ in placed for r in c.redirects if not r.is_descriptor]
    if moves and any(not target.startswith("/") for target in targets):
        return "cd together with a relative redirection could write elsewhere"
    if any("/" in name and not name.startswith("/") for name, _ in programs):
        return "cd together with a program's relative path could run another program"
    return None


# A program that takes more than plain texts may read a file name between these separators in an argument.
_PARTS = regex(r"[\s'\"(){}=]+")

# The most entries to check in a folder before it is copied, moved or removed without a question.
# A decision must not take seconds: a larger tree is asked about.
_MOST_IN_TREE = 2000
_MOST_PASSED_ON = 20_000
# A path that xargs passes on as one word, with or without its folder, and that cannot become an option without it; and one
# that the shell also keeps unchanged, because it cannot be a wildcard.
_PLAIN_PATH = regex(r"(?!.*/-)[A-Za-z0-9_./@+,=:%~^{}\[\]()!#$&-]+")
_PLAIN_WORD = regex(r"(?!.*/-)[A-Za-z0-9_./@+,=:%~^{}#$&-]+")

# The start of an option with a value, which it remains whatever a wildcard in the value expands to.
_OPTION_VALUE = regex(r"--[a-z-]+=")


class _JudgedCommand:
    """A simple command of a line, with every folder in which it may run, and the checks by which it is judged.

    With `reads_only`, only read-only programs are permitted. For a find whose names are split into words, the names must
    match `plain_names`.
    """

    def __init__(
        self,
        policy: Policy,
        subject: Subject,
        command: SimpleCommand,
        cwds: tuple[str, ...],
        reads_only: bool,
        plain_names: re.Pattern[str] | None = None,
    ) -> None:
        self.policy, self.subject, self.command = policy, subject, command
        self.cwds, self.reads_only, self.plain_names = cwds, reads_only, plain_names
        self.globs = {command.argv[index] for index in command.globs}
        self.glob_folders = set(map(os.path.dirname, self.globs))

    def judge(self) -> Judged:
        judged = self.cd() if self.command.argv[0] == "cd" else self.program()
        inner = None if judged.allowed else unwrapped(self.command)
        if inner is not None:
            # The program in /bin need not be the one that a rule refers to by name.
            reads_only = self.reads_only or inner.argv[0] not in self.command.argv
            inner_program = _JudgedCommand(self.policy, self.subject, inner, self.cwds, reads_only).program()
            judged = inner_program if inner_program.allowed else judged
        if not judged.allowed:
            return judged
        for redirect in self.command.redirects:
            refused = self.redirect(redirect)
            if refused is not None:
                return refused
        return judged

    def cd(self) -> Judged:
        argv = self.command.argv
        # `cd -` and `cd` alone depend on the shell's history and environment, any other cd on CDPATH.
        is_open = self.command.open_assignments or self.command.globs or len(self.cwds) > MAX_FOLDERS
        if len(argv) != 2 or argv[1].startswith("-") or is_open:
            return Judged(False, "the target of this cd is known only to the shell")
        return self.reading(Reads((argv[1],)), "cd inside the workspace")

    def program(self) -> Judged:
        argv = self.command.argv
        refused: Judged | None = None
        sets = self.command.open_assignments
        # A variable such as GIT_PAGER or LD_PRELOAD makes a program that only reads run another one.
        reads = None if sets else self.reads()
        if reads is not None and self.policy.mode in READING_MODES:
            judged = self.reading(reads, f"mode {self.policy.mode} allows {argv[0]}, which only reads")
            if judged.allowed or self.reads_only:
                return judged
            refused = judged
        if self.reads_only:
            return Judged(False, f"{argv[0]} is not a known read-only program")
        for judged in self.by_rules():
            if judged.allowed:
                return judged
            refused = refused or judged
        edited = self.editing() if self.policy.mode == "acceptEdits" and not sets else None
        if edited is not None:
            return edited
        words = " ".join((*self.command.assignments, *map(shell_word, argv)))
        return refused or Judged(False, f"no rule allows: {words}")

    def reads(self) -> Reads | None:
        """The paths that a read-only call reads; None if the call is not known to be read-only in this project."""
        argv, trusted, cwds = self.command.argv, self.subject.workspace.trusted, self.cwds
        if argv[:2] == ("git", "-C") and len(argv) > 3 and self.is_readable_folder(argv[2]):
            cwds = tuple([os.path.join(cwd, literal(argv[2])) for cwd in cwds])
            argv = ("git", *argv[3:])
            trusted = trusted and all(map(self.subject.workspace.is_same_repository, cwds))
        is_plain = argv[0] == "git" and not trusted and all(is_plain_repository(cwd) for cwd in cwds)
        return read_only(argv, trusted=trusted, in_plain_repository=is_plain)

    def is_readable_folder(self, text: str) -> bool:
        """Whether a word is a path that may be read; False for an option or a wildcard."""
        if not text or text.startswith("-") or text in self.globs:
            return False
        accesses = self.accesses(text, write=False)
        return all(permits_access(self.policy, access, self.subject).outcome == "allow" for access in accesses)

    def by_rules(self) -> Iterator[Judged]:
        """Yield the judgement by the most specific matching rule with words, and by the first match with wildcards."""
        book = self.policy.allow
        rule = None if self.command.open_assignments else book.for_command(self.command.argv)
        # A rule that spells out the whole line was written by somebody who saw all of it: nothing else is checked.
        if rule is not None and rule.exact and not self.command.globs:
            yield Judged(True, f"the allow rule {rule.text} ({rule.source}) names this command", rule)
        elif rule is not None:
            yield self.covered(rule, self.problem(len(rule.words)))
        rule_match = book.for_wildcard(self.command)
        if rule_match is not None:
            rule, wildcard = rule_match
            problem = self.problem(max(wildcard.literal_words, 1))
            if self.command.globs and not wildcard.is_prefix:
                problem = "its own wildcard could expand to words other than the rule's"
            yield self.covered(rule, problem)

    def covered(self, rule: Rule, problem: str | None) -> Judged:
        if problem is not None:
            return Judged(False, f"{rule.text} does not cover it: {problem}")
        return Judged(True, f"the allow rule {rule.text} ({rule.source}) covers it", rule)

    def problem(self, rule_words: int) -> str | None:
        """The reason why a rule about the first `rule_words` words of a call does not cover the rest after all, or None."""
        argv = self.command.argv
        if self.command.globs and min(self.command.globs) < rule_words:
            return "a wildcard takes the place of one of the rule's words"
        reason = self.could_be_option() or hazard(argv, rule_words)
        if reason is not None:
            return reason
        # A rule names the beginning of a command; what follows is the model's choice, and only a sandbox limits its
        # effect.
        if not self.subject.workspace.confined and not is_known(argv) and len(argv) > rule_words:
            return f"no sandbox confines it, and what the further arguments of {argv[0]} do is unknown: allow the whole line"
        protected = self.reaches_protected(rule_words)
        if protected is not None:
            return protected
        link = link_out(self.subject, argv, self.cwds)
        if link is not None:
            return f"it follows links, and {link} leads outside the workspace"
        if base_name(argv[0]) in WRITERS:
            return self.writes_elsewhere()
        return self.reaches_outside(rule_words) or self.reads_forbidden_tree(read_only(argv, trusted=True))

    def reaches_protected(self, rule_words: int) -> str | None:
        """The problem if a word names a protected path: a program that is not read-only may write to any path it names."""
        if read_only(self.command.argv, trusted=True) is not None:
            return None
        for word in self.command.argv[rule_words:]:
            for text in path_like(word):
                # In most git commands HEAD is a revision; it is also the name of a protected file of the repository.
                is_revision = base_name(self.command.argv[0]) == "git" and text.rpartition("/")[2] == "HEAD"
                for access in () if is_revision else self.accesses(text, write=True):
                    if is_protected(access.places, self.subject.workspace.protected):
                        return f"{access.places.written} is protected: it can change what runs later"
        return None

    def writes_elsewhere(self) -> str | None:
        """The problem if a program may write to a path that is protected or outside the workspace; None in mode `bypass`."""
        if self.policy.mode == "bypass":
            return None
        # Without the allow rules: one about this program must not also permit the places that it writes to.
        writing = Policy("acceptEdits", RuleBook(()), self.policy.ask, self.policy.deny)
        for word in self.command.argv[1:]:
            for text in path_like(word):
                for access in self.accesses(text, write=True):
                    verdict = permits_access(writing, access, self.subject)
                    if verdict.outcome != "allow":
                        return verdict.reason
        return None

    def reaches_outside(self, rule_words: int) -> str | None:
        """The problem if a word names an existing file outside the workspace, which needs a separate rule."""
        name = base_name(self.command.argv[0])
        kind = self.subject.workspace.kind
        takes_texts = name in READERS or name in NEVER_READS or name in NEVER_READS_IN
        stays_inside = self.subject.stays_inside
        if stays_inside and (takes_texts or "/" not in "".join(self.command.argv)):
            return None
        for index, word in enumerate(self.command.argv[rule_words:], rule_words):
            texts = () if stays_inside else path_like(word)
            if "/" in word and not takes_texts and _PARTS.search(word):
                texts += tuple(part for part in _PARTS.split(word) if "/" in part)
            for text in texts:
                is_glob = index in self.command.globs
                # A name without a slash leaves its folder only if it is a link.
                may_leave = is_glob or "/" in text or text in ("..", "~")
                if not may_leave and all(kind(f"{cwd}/{text}") != "link" for cwd in self.cwds):
                    continue
                for access in self.accesses(text, write=False):
                    real = access.places.real
                    of_process = access.places.is_of_process
                    if real in HARMLESS_DEVICES or (is_inside(real, self.subject.workspace.roots) and not of_process):
                        continue
                    # A text that merely looks like a path (a pattern, a URL) leads nowhere and need not be asked about.
                    there = (
                        of_process
                        or os.path.lexists(real)
                        or (os.path.dirname(real) != "/" and os.path.isdir(os.path.dirname(real)))
                    )
                    if there and permits_access(self.policy, access, self.subject).outcome != "allow":
                        return f"{access.places.written} is outside the workspace"
        return None

    def reads_forbidden_tree(self, reads: Reads | None) -> str | None:
        if reads is None or not reads.recursive:
            return None
        folders = [(os.path.join(cwd, literal(path)), False) for path in reads.paths or (".",) for cwd in self.cwds]
        for book in (self.policy.deny, self.policy.ask):
            hit = first_met(book, self.subject, Reach(tuple(folders))) if book.paths else None
            if hit is not None:
                return f"it reads a whole folder, and rules forbid {hit.path}: use Grep or Glob, which obey them"
        return None

    def reading(self, reads: Reads, reason: str) -> Judged:
        """Judge a read-only program: every path that it names must be readable."""
        problem = self.reads_forbidden_tree(reads) or self.wildcard_problem(reads)
        if problem is None and (reads.follows or self.plain_names):
            problem = self.entry_problem(reads)
        if problem is None and reads.tracked and self.forbids_tracked():
            problem = "it prints tracked content regardless of rules about files"
        if problem is not None:
            return Judged(False, problem)
        values = [
            value for value in reads.values if any(os.path.lexists(os.path.join(cwd, value)) for cwd in self.cwds)
        ]
        for path in (*reads.paths, *values, *self.listed_folders()):
            if path == "/dev/null":
                continue
            for access in self.accesses(path, write=False):
                verdict = permits_access(self.policy, access, self.subject)
                if verdict.outcome != "allow":
                    return Judged(False, verdict.reason)
                if self.command.argv[0] == "diff" and not reads.follows and os.path.isdir(access.places.real):
                    return Judged(False, "diff also follows the links in a folder")
        return Judged(True, reason)

    def entry_problem(self, reads: Reads) -> str | None:
        """The problem with the files that find passes on: one leads elsewhere or becomes several words, there are too
        many, or a wildcard names their folders.
        """
        if self.command.globs:
            return "its wildcards expand to folders that are not searched: write them out, or quote a pattern"
        for path in reads.paths:
            for cwd in self.cwds:
                folder = os.path.realpath(os.path.join(cwd, literal(path)))
                entry = unsafe_entry(self.subject, folder, path, reads.follows, self.plain_names, _MOST_PASSED_ON)
                if entry is not None:
                    problem = "leads elsewhere, has an unusual name, or is one of too many"
                    return f"it opens what it finds, and {entry} {problem}"
        return None

    def forbids_tracked(self) -> bool:
        """Whether a rule forbids reading files that git may have tracked here."""
        places = (*self.subject.workspace.roots, *filter(None, map(repository_of, self.cwds)))

        def is_elsewhere(rule: Rule) -> bool:
            """Whether a rule is a built-in one about files of the home folder, outside this repository."""
            path = rule.pattern.removeprefix("/").removesuffix("/**")
            return rule.source == BUILT_IN and "?" not in path and not is_inside(os.path.realpath(path), places)

        rules = (*self.policy.deny.paths, *self.policy.ask.paths)
        return any(rule.tool not in EDIT_TOOLS and not is_elsewhere(rule) for rule in rules)

    def listed_folders(self) -> tuple[str, ...]:
        """The folders whose entries are revealed by wildcards, if the program prints its words like `echo`."""
        argv = self.command.argv
        return tuple(os.path.dirname(argv[index]) or "." for index in self.command.globs if argv[0] in PRINT_WORDS)

    def wildcard_problem(self, reads: Reads) -> str | None:
        """The problem if a wildcard in a call that reads expands to something that is not checked."""
        argv = self.command.argv
        for index in self.command.globs:
            if argv[0] == "printf" and index == 1:
                return "a name could become the format of printf"
            if argv[index] not in reads.paths and argv[0] not in PRINT_WORDS and not _OPTION_VALUE.match(argv[index]):
                return f"the wildcard {argv[index]} does not expand to a path"
            # Their second operand is their output file.
            if argv[0] in ("uniq", "xxd"):
                return f"a wildcard could name a file for {argv[0]} to write"
        return self.could_be_option()

    def could_be_option(self) -> str | None:
        argv = self.command.argv
        for index in self.command.globs:
            # A file called `-rf` becomes an option of the program as soon as `*` or `-r*` expands to it.
            begins_open = argv[index][0] in GLOB_LETTERS or (
                argv[index][0] == "-" and not _OPTION_VALUE.match(argv[index])
            )
            if begins_open and argv[0] not in WILDCARD_PROOF:
                return f"the wildcard {argv[index]} could become an option: write ./{argv[index]}"
        return None

    def editing(self) -> Judged | None:
        """The judgement of a command that only edits files and stays in the workspace; None for any other."""
        edits = file_edits(self.command.argv)
        if edits is None or self.could_be_option() is not None:
            return None
        if edits.whole_trees and self.reads_forbidden_tree(Reads(edits.sources or edits.changes, recursive=True)):
            return None
        sources = {name.rstrip("/") for text in edits.sources for name in self.names(text)}
        if any(os.path.basename(name) in ("", ".", "..") for name in sources) or self.is_glob(edits.into):
            return None  # a folder's contents, with unknown names, or a place that only the shell can determine
        goals = [os.path.join(edits.into, os.path.basename(name)) for name in sources] if edits.into is not None else []
        changed = [*edits.changes, *([edits.into] if edits.into is not None else ())]
        for text, write in [*((text, True) for text in (*changed, *goals)), *((text, False) for text in edits.reads)]:
            for access in self.accesses(text, write=write):
                if permits_access(self.policy, access, self.subject).outcome != "allow":
                    return None
                real = access.places.real
                if (
                    edits.removes
                    and text != edits.into
                    and any(is_inside(each, (real,)) for each in self.needed_folders())
                ):
                    return None
                if edits.whole_trees and text != edits.into and not self.is_plain_tree(real, edits.into is None):
                    return None
        name = self.command.argv[0]
        return Judged(True, f"mode {self.policy.mode} allows {name}, which edits inside the workspace", is_edit=True)

    def needed_folders(self) -> tuple[str, ...]:
        """The folders that are not removed without a question: the workspace's, and those in which this command may run."""
        return (*self.subject.workspace.roots, *map(os.path.realpath, self.cwds))

    def names(self, text: str) -> tuple[str, ...]:
        """The names to which a word expands in the folders where the command may run; the word itself if unknown."""
        if not self.is_glob(text):
            return (literal(text),)
        expansions = [self.subject.workspace.expand(text, cwd) for cwd in self.cwds]
        return tuple(name for names in expansions for name in ((text,) if names is None else names))

    def is_glob(self, text: str | None) -> bool:
        return text in self.globs

    def is_plain_tree(self, folder: str, may_link: bool) -> bool:
        """Whether a folder is free of protected entries and, unless `may_link`, of links; False for over 2,000 entries."""
        looked_at = 0
        protected = self.subject.workspace.protected
        # Links are not followed; those that it finds are judged below.
        for place, folders, files in walk(folder):
            looked_at += len(folders) + len(files)
            if looked_at > _MOST_IN_TREE:
                return False
            for name in (*folders, *files):
                path = os.path.join(place, name)
                if protected.covers(path) or (os.path.islink(path) and not may_link):
                    return False
        return True

    def accesses(self, text: str, *, write: bool) -> Iterator[Access]:
        """Yield the paths that a word may denote, from every folder in which the command may run."""
        workspace = self.subject.workspace
        is_glob = text in self.globs or text in self.glob_folders
        for cwd in self.cwds:
            yield Access(workspace.follow(literal(text), cwd), write)
            if not is_glob:
                continue
            expansion = workspace.expand(text, cwd)
            if expansion is None:
                yield Access(replace(workspace.follow(".", cwd), problem=TOO_MANY_PATHS), write)
            for name in expansion or ():
                places = workspace.follow(literal(name), cwd)
                yield Access(replace(places, problem=OPTION_NAME) if name.startswith("-") else places, write)

    def redirect(self, redirect: Redirect) -> Judged | None:
        """The problem with the redirection; None if it is permitted."""
        if redirect.is_descriptor or redirect.target == "/dev/null":
            return None
        # No such files exist: bash itself opens a socket for these names (Bash manual, 3.6).
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
