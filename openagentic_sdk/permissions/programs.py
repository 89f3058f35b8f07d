"""What programs do with their arguments, as far as a permission depends on it. Tables, and three questions about them.

`hazard(argv)`: does this call run, or write, something that its first words do not show? `read_only(argv)`: is it a call
of the small set that can neither write nor run nor connect, and what does it read? `inner_commands(argv)`: what else
would run, guessed widely, to forbid it? Long options count in every abbreviation, short ones in every bundle.
"""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ..frozen import frozen
from .program_tables import (
    CODE_MODULES,
    FETCHERS,
    FIND_VALUED,
    FIND_WORDS,
    GIT_ANYWHERE,
    GIT_COMMANDS,
    GIT_GLOBAL_HARMLESS,
    GIT_READS,
    GIT_SHORT,
    INFORMS,
    INTERACTIVE,
    INTERPRETERS,
    LAUNCHERS,
    OPTIONS,
    PYTHONS,
    READERS,
    RUN_A_SCRIPT,
    SHELL_OPTIONS,
    SHELLS,
    SQLITE_HARMLESS,
    STATE_BUILTINS,
    WRAPPERS,
    Options,
    Reader,
)


def program_of(argv: Sequence[str]) -> str:
    """The program's name without its folder and version: `/usr/bin/python3.11` is `python`."""
    return _program(argv[0])


@functools.lru_cache(maxsize=1024)
def _program(word: str) -> str:
    name = word.rpartition("/")[2]
    if name in INTERPRETERS or name in OPTIONS:
        return name
    return re.sub(r"[-.0-9]+$", "", name) or name


@functools.lru_cache(maxsize=1024)
def hazard(argv: tuple[str, ...], named: int = 1) -> str | None:
    """Why a rule about the first `named` words of a call does not cover the whole call, or None.

    A subcommand (`docker compose`) that the rule names is meant; an option or a wrapper is a hazard even then.
    """
    name = argv[0].rpartition("/")[2]
    program = program_of(argv)
    if _only_looks_up(argv):
        return None
    if name in WRAPPERS or program in WRAPPERS:
        return f"{name} runs another command"
    if name in STATE_BUILTINS:
        return f"{name} changes the shell itself"
    if name in INTERACTIVE:
        return f"{name} runs commands of its own"
    special = _SPECIAL.get(program) or _SPECIAL.get(name)
    if special is not None:
        return special(argv, named)
    if program in INTERPRETERS or program in SHELLS:
        return _code_hazard(argv, INTERPRETERS.get(program, SHELL_OPTIONS))
    return _option_hazard(argv, named)


def _option_hazard(argv: Sequence[str], named: int) -> str | None:
    name = argv[0].rpartition("/")[2]
    options = OPTIONS.get(name) or OPTIONS.get(program_of(argv))
    words = [word for word in argv[1:named] if word.startswith("-")]
    found = _option([*words, *argv[named:]], options) if options else None
    return f"{name} {found} can run a program or write a file" if found else None


def _tar_hazard(argv: Sequence[str], named: int) -> str | None:
    # tar's first word is a bundle of options with or without a dash.
    bundle = [f"-{word}" for word in argv[1:2] if not word.startswith("-")]
    return _option_hazard([argv[0], *(bundle or argv[1:2]), *argv[2:]], named)


def _second_file_hazard(argv: Sequence[str], named: int) -> str | None:
    if len(_operands(argv)) > 1:
        return f"{argv[0]} writes to its second file"
    return _option_hazard(argv, named)


def _hostname_hazard(argv: Sequence[str], named: int) -> str | None:
    return "hostname sets the name of the machine" if _operands(argv) else _option_hazard(argv, named)


# Values that no recipe can take for a command of its own: a name, a number, a list of switches.
_PLAIN_VARIABLE = re.compile(
    r"(?!(?:SHELL|\.SHELLFLAGS|MAKEFLAGS|GNUMAKEFLAGS|MAKEFILES)\b)[A-Za-z_]\w*[:+?]?=[\w.,+-]*"
)


def _make_hazard(argv: Sequence[str], named: int) -> str | None:
    for word in argv[named:]:
        if "=" in word and not word.startswith("-") and not _PLAIN_VARIABLE.fullmatch(word):
            return f"make {word} can put a command into a recipe"
    return _option_hazard(argv, named)


def _compiler_hazard(argv: Sequence[str], named: int) -> str | None:
    if any(word.startswith("@") for word in argv[named:]):
        return f"{argv[0]} takes options from a file"
    return _option_hazard(argv, named)


def _printf_hazard(argv: Sequence[str], named: int) -> str | None:
    return "printf sets a variable" if _sets_variable(argv) else None


# printf stores how much it has written under a name that it is given, and works out what stands in the name's brackets.
_STORES_LENGTH = re.compile(r"%[^A-Za-z%]*[hlLjzt]*n")


def _sets_variable(argv: Sequence[str]) -> bool:
    return any(word.startswith("-") for word in argv[1:2]) or _STORES_LENGTH.search(" ".join(argv)) is not None


def _only_looks_up(argv: Sequence[str]) -> bool:
    return argv[0] == "command" and tuple(argv[1:2]) in (("-v",), ("-V",))


def _operands(argv: Sequence[str]) -> list[str]:
    return [word for word in argv[1:] if word == "-" or not word.startswith("-")]


def _option(words: Sequence[str], options: Options) -> str | None:
    """The first word that is, abbreviates or bundles one of the options."""
    for word in words:
        if options.words and (word in options.words or word.partition("=")[0] in options.words):
            return word
        if word.startswith("--"):
            name = word[2:].partition("=")[0]
            if name and f"\n{name}" in options.long_lines:
                return word
        elif word[:1] == "-" and not options.letters.isdisjoint(word[1:]):
            return word
    return None


# The names under which a program finds its own input again.
_INPUT = re.compile(r"-|/dev/(?:stdin|fd/.*)|/proc/[^/]+/(?:task/[^/]+/)?fd/.*")


def _code_hazard(argv: Sequence[str], options: Options) -> str | None:
    """For interpreters: options count up to the script's name; without one, the code comes from elsewhere."""
    name, program = argv[0].rpartition("/")[2], program_of(argv)
    words = list(argv[1:])
    while words:
        word = words.pop(0)
        if _INPUT.fullmatch(posixpath.normpath(word)):
            break
        if word == "run" and program in RUN_A_SCRIPT:
            continue
        if not word.startswith(("-", "+")) and word not in options.words:
            return None
        flags, letter, value = _valued_letter(word, options)
        # In a shell's bundle of letters, those behind the valued one count too.
        if word.startswith("+") or _option([word if program in SHELLS else flags], options):
            return f"{name} {word} runs code"
        if letter or word in options.valued_words:
            value = value or (words.pop(0) if words else "")
        if letter == "m" and program in PYTHONS:
            return f"{name} -m {value} runs code" if value.partition(".")[0] in CODE_MODULES else None
        if word in INFORMS.get(program, ("--version", "--help")):
            return None
    return f"{name} reads code from its input"


def _valued_letter(word: str, options: Options) -> tuple[str, str, str]:
    """A word of short options, cut at the first one that takes a value: what stands before it, its letter, its value."""
    if not word.startswith("--"):
        for index, letter in enumerate(word[1:], 1):
            if letter in options.valued:
                return word[:index], letter, word[index + 1 :]
    return word, "", ""


def _client_hazard(argv: Sequence[str], named: int) -> str | None:
    name = argv[0].rpartition("/")[2]
    if len(argv) == 2 and argv[1] in ("--version", "-V", "--help", "-l", "--list"):
        return None
    return f"{name} runs the commands of its input and arguments, which may be the shell's"


# What of sqlite3 runs commands or touches other files than the database: dot commands, and some functions and statements.
_SQLITE_UNSAFE = re.compile(
    r"^\s*\.|writefile|readfile|load_extension|edit\s*\(|fsdir|zipfile|attach|vacuum\s+into|tokenizer",
    re.IGNORECASE | re.MULTILINE,
)


def _sqlite_hazard(argv: Sequence[str], named: int) -> str | None:
    options = [word for word in argv[1:] if word.startswith("-")]
    unknown = next((word for word in options if word.lstrip("-") not in SQLITE_HARMLESS), None)
    if unknown is not None:
        return f"sqlite3 {unknown} can run a program or write a file"
    statements = _operands(argv)[1:]
    if not statements and not {"-version", "--version", "-help", "--help"} & set(options):
        return "sqlite3 reads commands from its input"
    if any(_SQLITE_UNSAFE.search(statement) for statement in statements):
        return "the statement can run a program or touch other files"
    return None


_AWK_UNSAFE = re.compile(r"system|getline|print.*>|\||@|fflush|close|ENVIRON|PROCINFO|/inet", re.I | re.S)


def _awk_hazard(argv: Sequence[str], named: int) -> str | None:
    options = INTERPRETERS[program_of(argv)]
    found = _option([word for word in argv[1:] if not word.startswith(("-F", "-v"))], options)
    if found:
        return f"awk {found} can run a program or write a file"
    if any(_AWK_UNSAFE.search(word) for word in argv[1:]):
        return "the awk program can run commands, read or write files"
    return None


def _git_hazard(argv: Sequence[str], named: int = 1) -> str | None:
    words = list(argv[1:])
    while words and words[0] in GIT_GLOBAL_HARMLESS:
        words.pop(0)
    if not words or words[0].startswith("-"):
        return f"git {words[0]} changes what git runs" if words and words[0] != "--version" else None
    command, rest = words[0], words[1:]
    if command in GIT_COMMANDS and named < 2:
        return f"git {command} runs other programs"
    if command == "config" and not {"--get", "--list", "-l", "--get-all", "--get-regexp"} & set(rest[:1]):
        return "git config changes what git runs"
    found = _option(rest, Options(GIT_SHORT.get(command, ""), GIT_ANYWHERE))
    if found and not (command in ("pull", "push", "fetch", "commit") and found in ("-u", "--set-upstream")):
        return f"git {command} {found} can run a program or write a file"
    if any("::" in word or word.startswith("ext:") for word in rest):
        return "a git address with '::' runs a program"
    return None


# The few sed scripts that only choose or replace: line numbers with p, d or q, and s/// without its flags w and e. Its
# delimiter ends a part wherever it stands without a backslash that escapes it.
_SED_SCRIPT = re.compile(
    r"(?:\d+|\$)?(?:,(?:\d+|\$))?[pdq=](?:;(?:\d+|\$)(?:,(?:\d+|\$))?[pdq=])*"
    r"|(?:(?:\d+|\$)(?:,(?:\d+|\$))?)?s([/|#,:])(?:(?!\1)[^\\\n\[]|\\.|\[[\w .^$+*?-]+\])*\1"
    r"(?:(?!\1)[^\\\n]|\\.)*\1[gIip0-9]*"
    r"|/[A-Za-z0-9 _.^$-]*/(?:,/[A-Za-z0-9 _.^$-]*/)?[pd]"
)


def _sed_hazard(argv: Sequence[str], named: int = 1) -> str | None:
    words = list(argv[1:])
    scripts: list[str] = []
    operands: list[str] = []
    while words:
        word = words.pop(0)
        if word in ("-e", "--expression") and words:
            scripts.append(words.pop(0))
        elif word.startswith("-") and word not in tuple("-n -E -r -u -z -nE -nr -En --quiet --silent".split()):
            return f"sed {word} can write a file or read its script from one"
        elif not word.startswith("-"):
            operands.append(word)
    scripts = scripts or operands[:1]
    if not scripts or not all(_SED_SCRIPT.fullmatch(script) for script in scripts):
        return "the sed script is not one that surely only reads"
    return None


_SPECIAL: dict[str, Callable[[Sequence[str], int], str | None]] = {
    "awk": _awk_hazard,
    "cc": _compiler_hazard,
    "clang": _compiler_hazard,
    "gawk": _awk_hazard,
    "gcc": _compiler_hazard,
    "git": _git_hazard,
    "hostname": _hostname_hazard,
    "gmake": _make_hazard,
    "make": _make_hazard,
    "mariadb": _client_hazard,
    "mawk": _awk_hazard,
    "mysql": _client_hazard,
    "nawk": _awk_hazard,
    "printf": _printf_hazard,
    "psql": _client_hazard,
    "sed": _sed_hazard,
    "sqlite3": _sqlite_hazard,
    "tar": _tar_hazard,
    "uniq": _second_file_hazard,
    "xxd": _second_file_hazard,
}


# --- the set that only reads ---------------------------------------------------------------------------------------------


@frozen
class Reads:
    """What a reading call reads: paths, and whether it goes down into folders."""

    paths: tuple[str, ...]
    recursive: bool = False


def read_only(argv: tuple[str, ...], *, trusted: bool = False) -> Reads | None:
    """What a call of the reading set reads; None when the call is not surely one that only reads.

    `trusted` lets git read a repository whose configuration may run programs.
    """
    return None if argv[0] == "git" and not trusted else _read_only(argv)


@functools.lru_cache(maxsize=1024)
def _read_only(argv: tuple[str, ...]) -> Reads | None:
    name = argv[0]
    if _only_looks_up(argv):
        return Reads(())
    if name == "find":
        return _find_reads(argv)
    if name == "git":
        return _git_reads(argv)
    if name == "sed":
        return _sed_reads(argv)
    reader = READERS.get(name)
    return None if reader is None else _reads(argv, reader)


def _reads(argv: Sequence[str], reader: Reader) -> Reads | None:
    split = _split(argv, reader)
    if split is None:
        return None
    options, operands = split
    if not _fits(argv, options, operands, reader):
        return None
    if reader.skip and any(_has_no_pattern_operand(option) for option in options):
        reader = replace(reader, skip=0)
    if argv[0] == "[":
        operands = [word for word in operands if word != "]"]
    recursive = reader.always_recursive or "--recursive" in options or any(_has_letter(o, reader) for o in options)
    return Reads(_paths(operands, reader, recursive), recursive)


def _split(argv: Sequence[str], reader: Reader) -> tuple[list[str], list[str]] | None:
    """The options and operands of a call; None when an option is not known as harmless."""
    options: list[str] = []
    operands: list[str] = []
    words = list(argv[1:])
    while words:
        word = words.pop(0)
        if word == "--" and not reader.is_expression:
            return options, operands + words
        if word == "-" or not word.startswith("-") or reader.takes_all:
            operands.append(word)
            continue
        takes_next = _harmless_option(word, reader)
        if takes_next is None or (takes_next and not words):
            return None
        options.append(word)
        if takes_next:
            words.pop(0)
    return options, operands


def _fits(argv: Sequence[str], options: Sequence[str], operands: Sequence[str], reader: Reader) -> bool:
    """Whether options and operands are ones with which the program only reads, and only what they name."""
    name = argv[0]
    if name == "printf" and _sets_variable(argv):
        return False
    if name == "strings" and any(word.startswith("@") for word in operands):
        return False  # it takes the words of that file for its own
    if name == "ls" and any("L" in word for word in options if word[1] != "-"):
        return not any(word == "--recursive" or _has_letter(word, reader) for word in options)
    if name == "date" and any(not word.startswith("+") for word in operands):
        return False
    return reader.most is None or len(operands) <= reader.most


def _has_no_pattern_operand(option: str) -> bool:
    """Whether an option of grep or rg makes a path of the operand that is a pattern without it."""
    return option == "--files" or (option[1] != "-" and "e" in option)


def _has_letter(word: str, reader: Reader) -> bool:
    return word[1] != "-" and any(letter in reader.recursive for letter in word[1:])


def _paths(operands: Sequence[str], reader: Reader, recursive: bool) -> tuple[str, ...]:
    if reader.names_only:
        return ()
    paths = tuple(word for word in operands[reader.skip :] if word != "-")
    return paths or ((".",) if reader.here or recursive else ())


def _harmless_option(word: str, reader: Reader) -> bool | None:
    """Whether a harmless option takes the next word as its value; None for an option that is not known as harmless."""
    if word.startswith("--"):
        name, equals, _ = word[2:].partition("=")
        if equals:
            return False if name in reader.long_valued else None
        if name in reader.long:
            return False
        return True if name in reader.long_valued else None
    for index, letter in enumerate(word[1:], 1):
        if letter in reader.valued:
            return index == len(word) - 1
        if letter not in reader.short:
            return None
    return False


def _find_reads(argv: Sequence[str]) -> Reads | None:
    words = list(argv[1:])
    paths: list[str] = []
    while words and (words[0] in ("-H", "-P") or not words[0].startswith(("-", "(", "!", ","))):
        word = words.pop(0)
        if not word.startswith("-"):
            paths.append(word)
    while words:
        word = words.pop(0)
        if word == "-newer" and words:
            paths.append(words.pop(0))
        elif word in FIND_VALUED:
            if not words:
                return None
            words.pop(0)
        elif word not in FIND_WORDS:
            return None
    return Reads(tuple(paths) or (".",), True)


def _git_reads(argv: Sequence[str]) -> Reads | None:
    words = [word for word in argv[1:] if word not in GIT_GLOBAL_HARMLESS]
    if not words or _git_hazard(argv):
        return None
    reader = GIT_READS.get(words[0])
    if reader is None or any(word.startswith(("/", "~")) or ".." in word.split("/") for word in words[1:]):
        return None
    return _reads(words, reader)


def _sed_reads(argv: Sequence[str]) -> Reads | None:
    if _sed_hazard(argv):
        return None
    has_e = any(word in ("-e", "--expression") for word in argv)
    operands: list[str] = []
    words = list(argv[1:])
    while words:
        word = words.pop(0)
        if word in ("-e", "--expression"):
            words.pop(0)
        elif not word.startswith("-"):
            operands.append(word)
    return Reads(tuple(operands if has_e else operands[1:]))


# --- what else would run -------------------------------------------------------------------------------------------------


_FIND_RUNS = frozenset({"-exec", "-execdir", "-ok", "-okdir", "-x", "-X", "--exec", "--exec-batch"})


def inner_commands(argv: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Every argument list that could run inside this one: all the tails of a wrapper's, guessed widely."""
    name = argv[0].rpartition("/")[2]
    first = 1
    if name in ("find", "fd", "fdfind"):
        first = next((index + 1 for index, word in enumerate(argv) if word in _FIND_RUNS), len(argv))
    elif name in LAUNCHERS:
        first = next((index + 1 for index, word in enumerate(argv) if word in LAUNCHERS[name]), len(argv))
    elif name not in FETCHERS and (name not in WRAPPERS or _only_looks_up(argv)):
        first = len(argv)
    for start in range(first, len(argv)):
        yield tuple(argv[start:])


def takes_code(argv: Sequence[str]) -> bool:
    """Whether the program may run text that it gets from its arguments or its input."""
    return _runs_text(argv[0]) and not _only_looks_up(argv)


@functools.lru_cache(maxsize=1024)
def _runs_text(word: str) -> bool:
    program = _program(word)
    return program in SHELLS or program in INTERPRETERS or word.rpartition("/")[2] in WRAPPERS
