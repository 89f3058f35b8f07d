"""Find the deny and ask rules that some part of a command line matches, or could match.

It is enough that a part could match a rule. Whatever is not understood, or may reach a program that runs text, is matched
generously.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ..ground.patterns import regex
from .guess import LooseWord, loose_words
from .hold.files import rule_by_content
from .hold.steps import count_steps
from .program_tables import SHELLS, WRAPPERS
from .programs import FIND_RUNS, hazard, inner_commands, program_of, takes_code
from .rules import Rule, RuleBook, may_take_value
from .shell import (
    IS_GLOB,
    MAX_COMMAND_CHARS,
    CommandLine,
    NotUnderstood,
    SimpleCommand,
    base_name,
    could_become,
    parse_command,
)
from .subject import Access, Subject
from .wildcards import Wildcard, read_wildcards

# The deepest nesting of commands within commands (`sh -c "sh -c ..."`) that is searched: deeper than people write.
MAX_DEPTH = 8
# How many words after a program's name are searched for the rest of a rule.
MAX_GUESSED_WORDS = 12


def forbidding_command_rule(book: RuleBook, subject: Subject) -> Rule | None:
    """A deny or ask rule of the book that some part of the line matches, or could match; None if no rule does."""
    if book.commands:
        # The words first, because the rule that they match is the better reason.
        rule = _by_words(book, subject.line) or _by_guess(book, subject)
        if rule is not None:
            return rule
    for rule in book.wildcards:
        if _is_wildcards(read_wildcards(rule.pattern), subject):
            return rule
    return first_forbidding_path(book, subject, subject.possible_accesses) if book.paths else None


_LOCALE = regex(r"LC_\w+|LANG")
# A shell that runs what another program writes.
_SHELL = r"(?:[^\s|;&()]*/)?(?:(?:ba|da|z|k|mk|a)?sh|at|batch|parallel)\b(?!\.)"
_FED_SHELL = regex(rf"\|&?\s*{_SHELL}|>\s*\(\s*{_SHELL}")
_SHELL_BEGINS = regex(rf"(?:^|[\s(])(?:{_SHELL}|\.|source)\s")
_OUTPUT_AS_FILE = regex(r"<\s*\(")
_SEPARATORS = regex(r"[;|&\n]")
_RUN_THEIR_INPUT = SHELLS | {"at", "batch"}
# Programs that append words from their input to the command that they are given.
_TAKES_INPUT = frozenset({"xargs", "parallel"})
# Programs that only write words of the line, and contents of files.
_SHOWS_ITS_TEXT = frozenset({"echo", "printf", "cat"})


def could_be_anything(subject: Subject) -> bool:
    """Whether the line may run a command whose name only bash, or the input of a program, determines, so that any rule about
    commands could match.
    """
    command, line = subject.command or "", subject.line
    if not command.isascii() and _LOCALE.search(command):
        return True  # bash would read the following bytes as other characters
    if not _TAKES_INPUT.isdisjoint(command.split()) and any(map(_takes_program_from_input, subject.loose_commands)):
        return True
    if not isinstance(line, CommandLine):
        is_open = len(command) > MAX_COMMAND_CHARS or _feeds_shell(command)
        return is_open or _has_open_command(subject.doubtful_words)
    if not subject.runs_text:
        return False
    for before, part in zip(line.commands, line.commands[1:], strict=False):
        is_fed = part.joined_by in ("|", "|&") and before.argv[0] not in _SHOWS_ITS_TEXT
        inner = _all_commands(part.argv, 0) if is_fed else ()
        if any(program_of(argv[0]) in _RUN_THEIR_INPUT and hazard(argv) is not None for argv in inner):
            return True
    return any(
        _has_open_command(loose_words(word))
        for part in line.commands
        for word in (*(part.argv[1:] if takes_code(part.argv) else ()), *part.open_assignments)
    )


def _feeds_shell(command: str) -> bool:
    """Whether a shell may run what another program writes."""
    if _FED_SHELL.search(command) is not None:
        return True
    for part in _SEPARATORS.split(command):
        begins = _SHELL_BEGINS.search(part)
        if begins is not None and _OUTPUT_AS_FILE.search(part, begins.end()) is not None:
            return True
    return False


def _takes_program_from_input(argv: Sequence[str]) -> bool:
    """Whether a command's input names the program that it runs: `xargs env`, `parallel` alone."""
    name = base_name(argv[0])
    if name in WRAPPERS and name not in _TAKES_INPUT:
        return any(_takes_program_from_input(inner) for inner in inner_commands(argv) if inner[0] in _TAKES_INPUT)
    if name not in _TAKES_INPUT:
        return False
    last = base_name(argv[-1])
    is_wrapper = len(argv) > 1 and (last in WRAPPERS or program_of(last) in SHELLS)
    return is_wrapper or (name == "parallel" and all(word.startswith("-") for word in argv[1:]))


def _has_open_command(words: Iterable[LooseWord]) -> bool:
    """Whether a word that only bash can expand is at the start of a command, or after a program that runs others."""
    wrapped = False
    for word in words:
        wrapped = not word.starts and wrapped
        if word.open and (word.starts or wrapped):
            return True
        wrapped = wrapped or takes_code((word.text,)) or word.text in FIND_RUNS or word.text == "foreach"
    return False


def _by_words(book: RuleBook, line: CommandLine | NotUnderstood | None) -> Rule | None:
    if not isinstance(line, CommandLine):
        return None
    for command in line.commands:
        for argv in _all_commands(command.argv, 0):
            name = base_name(argv[0])
            rule = book.forbidding_command(argv)
            # `/bin/rm` is matched by a rule about `rm` too: a path must not evade it.
            if rule is None and name != argv[0]:
                rule = book.forbidding_command((name, *argv[1:]))
            if rule is not None:
                return rule
        if base_name(command.argv[0]) not in _TAKES_INPUT:
            continue
        # These append words from their input to the command that they are given, or replace `{}` with them.
        for inner in inner_commands(command.argv):
            fixed_words = inner[: next((index for index, word in enumerate(inner) if "{" in word), len(inner))]
            rule = book.for_beginning(fixed_words) if fixed_words and fixed_words[0] else None
            if rule is not None:
                return rule
    return None


def _is_wildcards(wildcards: Sequence[Wildcard], subject: Subject) -> bool:
    """Whether the commands of a rule follow each other in the line, or could in a part that was not understood.

    If the rule has several commands, each may have more words in the line, and other commands may be between them.
    """
    line = subject.line
    if wildcards[0].line:
        return any(wildcards[0].fits_line(text) for text in (subject.command or "").splitlines())
    commands = line.commands if isinstance(line, CommandLine) else ()
    remaining = iter(commands)
    wider = [replace(one, is_open=True) for one in wildcards] if len(wildcards) > 1 else wildcards
    if all(any(_is_wildcard(one, command) for command in remaining) for one in wider):
        return True
    words = [*subject.doubtful_words]
    if any(base_name(command.argv[0]) in _TAKES_INPUT for command in commands):
        # Represents the words that xargs reads from its input.
        words.append(LooseWord("$", False, True))
    for one in wildcards:
        count_steps(len(words))
        count = one.could_end_in(words)
        if count is None:
            return False
        words = words[count:]
    return True


def _is_wildcard(wildcard: Wildcard, command: SimpleCommand) -> bool:
    if wildcard.assignments and not any(wildcard.sets((each,)) for each in command.assignments):
        return False
    return any(
        wildcard.fits(argv) or wildcard.fits((base_name(argv[0]), *argv[1:])) for argv in _all_commands(command.argv, 0)
    )


def _all_commands(argv: Sequence[str], depth: int) -> Iterator[tuple[str, ...]]:
    """Yield the command, the commands that it wraps, and those of command lines in its arguments."""
    if not argv or not argv[0]:
        return
    count_steps(4)
    yield tuple(argv)
    if depth >= MAX_DEPTH:
        return
    yield from inner_commands(argv)
    if not takes_code(argv):
        return
    for word in argv[1:]:
        # A single word is not a command with arguments, and is already matched as a word.
        line = parse_command(word) if " " in word or "\n" in word else None
        if isinstance(line, CommandLine):
            for command in line.commands:
                yield from _all_commands(command.argv, depth + 1)


def _by_guess(book: RuleBook, subject: Subject) -> Rule | None:
    """Search for the words of rules anywhere in text that was not understood, or may reach a program that runs text."""
    words = subject.doubtful_words
    count_steps(len(words))
    for index, word in enumerate(words):
        name = base_name(word.text) or word.text
        if IS_GLOB.search(name):
            count_steps(2 * len(book.commands))
            rules = [rule for program, rules in book.commands.items() if could_become(name, program) for rule in rules]
        else:
            rules = [rule for key in dict.fromkeys((name, word.text)) for rule in book.commands.get(key, ())]
        following_words = words[index + 1 : index + MAX_GUESSED_WORDS] if rules else []
        # If no word is open, one comparison of sets excludes a rule whose words are not all present.
        count_steps(2 * len(rules))
        is_certain = not any(word.open or IS_GLOB.search(word.text) for word in following_words)
        texts = {word.text for word in following_words}
        for rule in rules:
            is_out = is_certain and not texts.issuperset(rule.words[1:])
            if not is_out and _could_follow(rule.words[1:], following_words):
                return rule
    return None


def _could_follow(rule_words: Sequence[str], words: Sequence[LooseWord]) -> bool:
    """Whether the words may be the rule's: each is equal, could become anything, or is a wildcard that matches.

    Options and their values may be between them.
    """
    remaining = iter(words)
    for expected in rule_words:
        option = ""
        anything = False
        for word in remaining:
            is_value, option = option, word.text if word.text.startswith("-") else ""
            # After a short option, an open word is probably its value; it may still be the expected word.
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
    """The first rule that forbids reading or writing one of the paths."""
    bases = subject.workspace.bases
    for access in accesses:
        count_steps(2 + len(access.places.written) * len(book.paths) // 4096)
        rule = book.forbidding_path(access.places.all, bases, write=access.write)
        rule = rule or rule_by_content(book, bases, access.places.real, write=access.write)
        if rule is not None:
            return rule
    return None
