"""The effects of programs' arguments, as far as permissions depend on them: tables, and four queries.

`hazard(argv)`: does this call run, or write, something that its first words do not show? `read_only(argv)`: is it a call of
the small set that cannot write, run or connect, and what does it read? `inner_commands(argv)`: what else could run, as an
over-approximation for forbidding it? `file_edits(argv)`: does it only create, copy, move, change or remove the files that
it names? Long options are recognized in every abbreviation, short ones in every bundle.
"""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from ..ground.frozen import frozen
from ..ground.patterns import regex
from .hold.steps import count_steps
from .program_tables import (
    CODE_MODULES,
    FETCHERS,
    FIND_VALUED,
    FIND_WORDS,
    GIT_ANYWHERE,
    GIT_COMMANDS,
    GIT_GLOBAL_HARMLESS,
    GIT_SAFE,
    GIT_SHORT,
    INFORMS,
    INTERACTIVE,
    INTERPRETERS,
    LAUNCHERS,
    LISTERS,
    NEVER_READS,
    NEVER_READS_IN,
    OPTIONS,
    PRIVILEGED,
    PYTHONS,
    READERS,
    RUN_A_SCRIPT,
    RUNNERS,
    SHELL_OPTIONS,
    SHELLS,
    SQLITE_HARMLESS,
    STATE_BUILTINS,
    TELL_VERSION,
    WRAPPERS,
    WRITERS,
    Lister,
    Options,
    Reader,
)
from .shell import IS_GLOB, SimpleCommand, base_name
from .subcommands import Subcommands, reading_row, subcommands


@functools.lru_cache(maxsize=1024)
def program_of(word: str) -> str:
    """A program's name without its folder and version: `/usr/bin/python3.11` is `python`, but `sqlite3`, which has a row of
    its own in a table, is kept.
    """
    name = base_name(word)
    if name in INTERPRETERS or name in OPTIONS:
        return name
    return re.sub(r"[-.0-9]+$", "", name) or name


def hazard(argv: tuple[str, ...], rule_words: int = 1) -> str | None:
    """The reason why a rule about the first `rule_words` words of a call does not cover the whole call, or None.

    A subcommand (`docker compose`) that the rule names is intended; an option or a wrapper is a hazard even then. Calls
    covered by a rule about the program alone are also covered by one that names more of its words. If the rule names a
    program after a launcher (`uv run pytest`), the words after it are that program's.
    """
    reason = _hazard(argv, 1)
    if rule_words == 1:
        return reason
    reason = reason if reason is None else _hazard(argv, rule_words)
    at = None if reason is not None else _launched(argv, rule_words)
    if at is not None and is_known(argv[at:]):
        return _hazard(argv[at:], rule_words - at)
    return reason or _beyond_checking(argv, rule_words)


def _launched(argv: Sequence[str], rule_words: int) -> int | None:
    """The position of the program that a rule names after a launcher; None if it names none."""
    name = base_name(argv[0])
    runs = {"exec", "x", "dlx"} if name in _RUN_SCRIPTS else LAUNCHERS.get(name, frozenset())
    at = 1 if name in FETCHERS else next((i + 1 for i in range(1, rule_words) if argv[i] in runs), rule_words)
    return next((i for i in range(at, rule_words) if not argv[i].startswith("-")), None)


# Their subcommand `run` names a script of the project, not a program.
_RUN_SCRIPTS = frozenset({"bun", "npm", "pnpm", "yarn"})
_WRITES_RESULT = regex(r"-[iw]|--(?:write|fix\w*|in-?place|overwrite|unsafe-fixes)(?:=.*)?")


def _beyond_checking(argv: Sequence[str], rule_words: int) -> str | None:
    """The hazard of an option that writes files, under a rule about checking them (`prettier --check`)."""
    if "--check" not in argv[1:rule_words]:
        return None
    option = next(filter(_WRITES_RESULT.fullmatch, argv[rule_words:]), None)
    return option and f"{argv[0]} {option} writes files, and the rule is about checking them"


@functools.lru_cache(maxsize=1024)
def _hazard(argv: tuple[str, ...], rule_words: int) -> str | None:
    name = base_name(argv[0])
    program = program_of(argv[0])
    if _only_looks_up(argv):
        return None
    if name in WRAPPERS or program in WRAPPERS:
        return f"{name} runs another command"
    if name in STATE_BUILTINS:
        return f"{name} changes the shell itself"
    if name in INTERACTIVE:
        return f"{name} runs commands of its own"
    if name in PRIVILEGED:
        return f"{name} changes what other programs may do"
    special = _SPECIAL.get(program)
    if special is not None:
        return special(argv, rule_words)
    if program in INTERPRETERS or program in SHELLS:
        return _code_hazard(argv, INTERPRETERS.get(program, SHELL_OPTIONS))
    return _option_hazard(argv, rule_words)


# Programs that write something if they have more operands than this number, and the effect in words.
_WRITES_LAST = {"uniq": (1, "writes to its second file"), "xxd": (1, "writes to its second file")}
_WRITES_LAST["hostname"] = (0, "sets the name of the machine")


# Text in an argument that many programs execute as code, and options of unknown programs that take a program or code. The
# group `(?>...)` is atomic, because its repetitions would otherwise be tried in every combination on a long word.
_CODE = regex(
    r"(?:\b|_)(?:system|popen|spawn|shell|esyscmd|eval)\s*\(|\b(?>(?:\w*?_)?exec\w*)\s*\(|write18|directlua|%pipe%|run-shell-command|=\||^\||^msl:"
    r"|(?:ladspa|frei0r)=",
    re.I,
)
_RUNNING_OPTION = regex(
    r"--?(?!no-)(?:\w+-)*(?:exec|execute|command|cmd|eval|hook|rsh|shell|program|pager|editor|preload|plugin|interpreter|askpass"
    r"|proxycommand|script|kubeconfig)(?!-(?:ids?|arns?|names?|all)\b)(?:-\w+)*(?:=.*)?",
    re.I | re.S,
)
_SHELL_NAMED = regex(rf"(?:^|[^\w.+-])(?:{'|'.join(sorted(SHELLS))})(?:$|[^\w.+/-])")


def _unknown_hazard(argv: Sequence[str], rule_words: int) -> str | None:
    """The hazard of an unknown program: an argument that names a shell or contains code, an option that takes a program."""
    for word in argv[rule_words:]:
        if word.isalnum() and word not in SHELLS:
            continue
        if _SHELL_NAMED.search(word):
            return f"{word!r} names a shell"
        if _CODE.search(word):
            return f"{word!r} holds code that {argv[0]} may run"
        if word[:1] == "-" and _RUNNING_OPTION.fullmatch(word):
            return f"{argv[0]} {word} may run a program"
    return None


def is_known(argv: Sequence[str]) -> bool:
    """Whether any table describes the program, and so what its further arguments mean."""
    names = {base_name(argv[0]), program_of(argv[0])}
    tables = (
        OPTIONS,
        READERS,
        RUNNERS,
        INTERPRETERS,
        WRITERS,
        NEVER_READS,
        NEVER_READS_IN,
        LAUNCHERS,
        FETCHERS,
        SHELLS,
        _SPECIAL,
    )
    return any(not names.isdisjoint(table) for table in tables) or subcommands(argv[0]) is not None


def _option_hazard(argv: Sequence[str], rule_words: int) -> str | None:
    """The hazard of a program that is harmless except for some options and words."""
    name, program = base_name(argv[0]), program_of(argv[0])
    most, writes = _WRITES_LAST.get(program, (None, ""))
    if most is not None and len(_operands(argv)) > most:
        return f"{name} {writes}"
    if program == "printf" and _sets_variable(argv):
        return "printf sets a variable"
    if name in RUNNERS:
        return _runner_hazard(argv, rule_words, RUNNERS[name])
    options = OPTIONS.get(name) or OPTIONS.get(program)
    if options is None:
        return None if name in READERS or name in WRITERS else _unknown_hazard(argv, rule_words)
    for word in argv[rule_words:] if options.texts else ():
        for pattern, does in options.patterns:
            if pattern.search(word):
                return f"{name} {word} {does}"
    # Options among the rule's words count, too: a call with such an option needs a rule that spells out all of its words.
    words = [*(word for word in argv[1:rule_words] if word.startswith("-")), *argv[rule_words:]]
    if program == "tar":  # its first word is a group of options with or without a dash
        words = [word if word.startswith("-") else f"-{word}" for word in argv[1:2]] + list(argv[2:])
        remote = next((word for word in argv[1:] if _REMOTE_ARCHIVE.fullmatch(word)), None)
        if remote is not None:
            return f"tar reaches {remote} on another machine, through ssh"
    option = option_in(words, options)
    return f"{name} {option} can run a program or write a file" if option else None


def _runner_hazard(argv: Sequence[str], rule_words: int, reader: Reader) -> str | None:
    """The hazard of a test runner or checker: any option that is not known to only select, limit or report."""
    words = list(argv[rule_words:])
    while words:
        word = words.pop(0)
        if word == "--":
            return None
        takes_next = reader.takes_next(word) if word.startswith("-") else False
        if takes_next is None or word.startswith("@"):
            return f"{argv[0]} {word} can run a program or write a file"
        if takes_next and words:
            words.pop(0)
    return None


# An archive with a colon before any slash is on the machine that precedes the colon. It may be a word of its own, or be
# attached to letters (`-tfhost:x`) or to an abbreviation of --file.
_REMOTE_ARCHIVE = regex(r"(?:--f[a-z]*=|(?!--))[^/=]*[^/=:][^/=]*:.*", re.S)


# `printf %n` stores the length of its output in a named variable, and evaluates a subscript in the name's brackets.
_STORES_LENGTH = regex(r"%[^A-Za-z%]*[hlLjzt]*n")


def _sets_variable(argv: Sequence[str]) -> bool:
    return any(word.startswith("-") for word in argv[1:2]) or _STORES_LENGTH.search(" ".join(argv)) is not None


def _only_looks_up(argv: Sequence[str]) -> bool:
    return argv[0] == "command" and tuple(argv[1:2]) in (("-v",), ("-V",))


def _operands(argv: Sequence[str]) -> list[str]:
    return [word for word in argv[1:] if word == "-" or not word.startswith("-")]


def option_in(words: Sequence[str], options: Options) -> str | None:
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


# File names by which a program can open its own input again.
_INPUT = regex(r"-|/dev/(?:stdin|fd/.*)|/proc/[^/]+/(?:task/[^/]+/)?fd/.*")


def _code_hazard(argv: Sequence[str], options: Options) -> str | None:
    """The hazard of an interpreter. Only options before the script's name count; without a script, code comes from an
    option or the input.
    """
    name, program = base_name(argv[0]), program_of(argv[0])
    words = list(argv[1:])
    while words:
        word = words.pop(0)
        if _INPUT.fullmatch(posixpath.normpath(word)):
            break
        if word == "run" and program in RUN_A_SCRIPT:
            continue
        if not word.startswith(("-", "+")) and word not in options.words:
            return None
        # Grouped short options: the first that takes a value ends the group.
        cut = -1 if word.startswith("--") else next((i for i in range(1, len(word)) if word[i] in options.valued), -1)
        flags, letter, value = (word, "", "") if cut < 0 else (word[:cut], word[cut], word[cut + 1 :])
        # In a shell's group of letters, those after the one with a value also count.
        if word.startswith("+") or option_in([word if program in SHELLS else flags], options):
            return f"{name} {word} runs code"
        if letter or word in options.valued_words:
            value = value or (words.pop(0) if words else "")
        if letter == "m" and program in PYTHONS:
            runs = value.partition(".")[0] in CODE_MODULES
            return f"{name} -m {value} runs code" if runs else _hazard((value, *words), 1) if value else None
        if word in INFORMS.get(program, ("--version", "--help")):
            return None
    return f"{name} reads code from its input"


def _client_hazard(argv: Sequence[str], rule_words: int) -> str | None:
    name = base_name(argv[0])
    if len(argv) == 2 and argv[1] in ("--version", "-V", "--help", "-l", "--list"):
        return None
    return f"{name} runs the commands of its input and arguments, which may be shell commands"


# sqlite3 features that run commands or access other files than the database: dot commands, some functions and statements.
_SQLITE_UNSAFE = regex(
    r"^\s*\.|writefile|readfile|load_extension|edit\s*\(|fsdir|zipfile|attach|vacuum\s+into|tokenizer",
    re.IGNORECASE | re.MULTILINE,
)


def _sqlite_hazard(argv: Sequence[str], rule_words: int) -> str | None:
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


_AWK_UNSAFE = regex(r"system|getline|print.*>|\||@|fflush|close|ENVIRON|PROCINFO|ARG[CV]|SYMTAB|/inet", re.I | re.S)


def _awk_hazard(argv: Sequence[str], rule_words: int) -> str | None:
    options = INTERPRETERS[program_of(argv[0])]
    option = option_in([word for word in argv[1:] if not word.startswith(("-F", "-v"))], options)
    if option:
        return f"awk {option} can run a program or write a file"
    if any(_AWK_UNSAFE.search(word) for word in argv[1:]):
        return "the awk program can run commands, read or write files"
    return None


def _git_hazard(argv: Sequence[str], rule_words: int = 1) -> str | None:
    words = list(argv[1:])
    while words and words[0] in GIT_GLOBAL_HARMLESS:
        words.pop(0)
    if not words or words[0].startswith("-"):
        return f"git {words[0]} changes what git runs" if words and words[0] != "--version" else None
    command, rest = words[0], words[1:]
    if command in GIT_COMMANDS:
        operation = next((word for word in rest if not word.startswith("-")), "")
        if rule_words < 2 or (command in GIT_SAFE and operation not in GIT_SAFE[command]):
            return f"git {command} runs other programs"
    if command == "config" and not {"--get", "--list", "-l", "--get-all", "--get-regexp"} & set(rest[:1]):
        return "git config changes what git runs"
    option = option_in(rest, Options(GIT_SHORT.get(command, ""), GIT_ANYWHERE))
    if option:
        return f"git {command} {option} can run a program or write a file"
    if any("::" in word or word.startswith("ext:") for word in rest):
        return "a git address with '::' runs a program"
    return None


# The sed scripts that only select, replace or insert: lines by number or expression with p, d, q or =, s/// without the
# flags w and e, and a, i and c at the end. The delimiter ends a part unless a backslash escapes it.
_SED_OPTIONS = frozenset(
    {"-n", "-E", "-r", "-s", "-u", "-z", "-nE", "-nr", "-En", "-rn"}
    | {"--quiet", "--silent", "--regexp-extended", "--separate"}
)
# Versions of sed differ in whether a delimiter inside brackets ends the expression, so it is not accepted there.
_SED_CLASS = r"\[\^?\]?(?:\[:[a-z]+:\]|\\[a-zA-Z]|(?!{0})[^\]\[\\\n])+\]"
_SED_CLASS_IN_S = _SED_CLASS.format(r"\1")
_SED_MATCH = rf"/(?:[^/\\\n\[]|\\[^\n]|{_SED_CLASS.format('/')})*/I?"
_SED_ADDRESS = rf"(?:\d+(?:~\d+)?|\$|{_SED_MATCH})"
_SED_COMMAND = regex(
    rf"[ ]*(?:{_SED_ADDRESS}(?:,[+~]?{_SED_ADDRESS})?[ ]*!?[ ]*)?"
    rf"(?:[pdq=]|s([/|#,:])(?:(?!\1)[^\\\n\[]|\\[^\n]|{_SED_CLASS_IN_S})*\1(?:(?!\1)[^\\\n]|\\[^\n])*\1[gIip0-9]*)"
    r"[ ]*(?:[;\n]|\Z)"
)
# The rest of the script is a text to be inserted.
_SED_INSERTS = regex(rf"[ ]*{_SED_ADDRESS}[ ]*[aic][ ]?[^\\\n]+")


def _sed_hazard(argv: Sequence[str], rule_words: int = 1) -> str | None:
    scripts, _, unknown = _sed_words(argv)
    if unknown:
        return f"sed {unknown} can write a file or read its script from one"
    if not scripts or not all(map(is_plain_sed_script, scripts)):
        return "the sed script is not certain to only read"
    return None


def is_plain_sed_script(script: str) -> bool:
    """Whether it is certain that a sed script neither runs a command (`e`) nor reads or writes another file (`r`, `w`)."""
    at = 0
    while at < len(script):
        match = _SED_COMMAND.match(script, at)
        if match is None:
            return _SED_INSERTS.fullmatch(script, at) is not None
        # As a delimiter, the colon of `[:alpha:]` may end the expression early (see `_SED_CLASS`).
        if match[1] == ":" and "[:" in match[0]:
            return False
        at = match.end()
    return at > 0


def _sed_words(argv: Sequence[str]) -> tuple[list[str], list[str], str]:
    """The scripts and files of a sed call, and an option that is not known to be harmless, or an empty string."""
    words = list(argv[1:])
    scripts: list[str] = []
    operands: list[str] = []
    while words:
        word = words.pop(0)
        if word in ("-e", "--expression") and words:
            scripts.append(words.pop(0))
        elif not word.startswith("-"):
            operands.append(word)
        elif word not in _SED_OPTIONS:
            return [], [], word
    return (scripts, operands, "") if scripts else (operands[:1], operands[1:], "")


def _java_hazard(argv: Sequence[str], rule_words: int) -> str | None:
    option = option_in(argv[1:], OPTIONS["java"])
    if option is not None:
        return f"java {option} can run a program"
    runs = next((word for word in argv[rule_words:] if not word.startswith("-")), None)
    is_named = any(not word.startswith("-") for word in argv[1:rule_words])
    return None if runs is None or is_named else f"java runs the class or file {runs}"


_SPECIAL: dict[str, Callable[[Sequence[str], int], str | None]] = {
    "awk": _awk_hazard,
    "gawk": _awk_hazard,
    "java": _java_hazard,
    "git": _git_hazard,
    "mariadb": _client_hazard,
    "mawk": _awk_hazard,
    "mysql": _client_hazard,
    "nawk": _awk_hazard,
    "psql": _client_hazard,
    "sed": _sed_hazard,
    "sqlite3": _sqlite_hazard,
}


# --- read-only programs --------------------------------------------------------------------------------------------------


@frozen
class Reads:
    """The paths that a call reads, with everything below them if `recursive`. `values` are the values of options, which are
    judged like paths in case the installed version of the program takes them for operands. `tracked` means that the call
    prints content tracked by git; `needs` names the trust that it requires, in the `repository`, in the `project` or none.
    `follows` is a wildcard: links below the paths are opened if their names match it.
    """

    paths: tuple[str, ...]
    recursive: bool = False
    values: tuple[str, ...] = ()
    tracked: bool = False
    needs: str = ""
    follows: str = ""


def read_only(argv: tuple[str, ...], *, trusted: bool = False, in_plain_repository: bool = False) -> Reads | None:
    """The paths that a call of a read-only program reads; None if it is not certain that the call only reads.

    `trusted` also permits programs that follow a project's configuration, which may name other programs;
    `in_plain_repository` permits git even if `trusted` is false, because a plain repository names none.
    """
    reads = _read_only(argv)
    if reads is None or trusted or (reads.needs == "repository" and in_plain_repository):
        return reads
    return None if reads.needs else reads


@functools.lru_cache(maxsize=1024)
def _read_only(argv: tuple[str, ...]) -> Reads | None:
    # Not the base name: `./ls` may be any program. Callers remove /bin and /usr/bin (`unwrapped`).
    name = argv[0]
    if _only_looks_up(argv):
        return Reads(())
    tells_version = len(argv) == 2 and (name in TELL_VERSION or _PYTHON.fullmatch(name))
    if (
        len(argv) == 2
        and argv[1] == "--help"
        and (name in READERS or name in LISTERS or name in ("find", "sed", "git"))
    ):
        return Reads(())
    if tells_version and (argv[1] == "--version" or argv[1] in INFORMS.get(program_of(name), ())):
        return Reads(())
    if name in ("bash", "sh", "dash") and len(argv) == 3 and argv[1] == "-n" and not argv[2].startswith(("-", "+")):
        return Reads((argv[2],))  # it only checks the syntax
    if name in ("[", "test") and compares_texts(argv[1:-1] if (name, argv[-1]) == ("[", "]") else argv[1:]):
        return Reads(())
    if name == "find":
        return _find_reads(argv)
    if name == "jq":
        return _jq_reads(argv)
    if program_of(name) in INTERPRETERS and name.endswith("awk"):
        return _awk_reads(argv)
    if name in LISTERS:
        return _listing_reads(argv, LISTERS[name])
    table = subcommands(name)
    if table is not None:
        return _subcommand_reads(name, table, argv[1:])
    if name == "sed":
        return None if _sed_hazard(argv) else Reads(tuple(_sed_words(argv)[1]))
    reader = READERS.get(name)
    return None if reader is None else _reads(argv, reader)


_PYTHON = regex(r"python3\.\d+")
# With these, jq reads files that no argument names.
_JQ_READS_MORE = regex(r"\b(?:import|include|modulemeta)\b")


def _awk_reads(argv: Sequence[str]) -> Reads | None:
    """The files that an awk call reads; None if its program could read others, or do more than read."""
    words, operands = list(argv[1:]), list[str]()
    while words:
        word = words.pop(0)
        if word in ("-F", "-v") and words:
            words.pop(0)
        elif not word.startswith("-"):
            operands.append(word)
        elif not _AWK_SETS.fullmatch(word):
            return None
    if not operands or not operands[0].isascii() or _awk_hazard(argv, 1) is not None:
        return None
    return Reads(tuple(word for word in operands[1:] if not _AWK_OPERAND.match(word)))


_AWK_SETS = regex(r"-F.+|-v[A-Za-z_]\w*=.*", re.S)
# An operand of this form sets a variable.
_AWK_OPERAND = regex(r"[A-Za-z_]\w*=(?!=)", re.ASCII)


def _listing_reads(argv: Sequence[str], lister: Lister) -> Reads | None:
    """The archives whose contents a call lists; None if it may unpack or change one."""
    first = 1 if lister.dashed or argv[1:2] == () or argv[1].startswith("-") else 2
    letters, long, operands = argv[1] if first == 2 else "", "", list[str]()
    for word in argv[first:]:
        if not word.startswith("-") or word == "-":
            operands.append(word)
        elif operands or "f" in letters:  # unzip takes it as the name of a member, and tar as that of the archive
            return None
        elif word in lister.long:
            long += word[2]
        elif word.startswith("--") or "f" in word[1:-1]:  # with its value attached, `-f` is not understood
            return None
        else:
            letters += word[1:]
    is_listing = not lister.needs or any(set(needed) <= {*letters, *long} for needed in lister.needs.split())
    if not is_listing or not set(letters) <= set(lister.letters) or letters.count("f") > 1:
        return None
    if "d" in letters and "c" not in letters:  # in `xz -ld` the last letter decides, and it unpacks
        return None
    # For unzip, a dash is an option, not an archive.
    archives = operands if lister.all or operands[:1] == ["-"] else operands[:1]
    # Another machine's archive, a file with further arguments, a pattern that unzip expands itself.
    if not archives or any(":" in word or word.startswith("@") for word in operands) or IS_GLOB.search(operands[0]):
        return None
    return Reads(tuple(f"{word}{end}" for word in archives if word != "-" for end in ("", *lister.suffixes)))


def _jq_reads(argv: Sequence[str]) -> Reads | None:
    words: list[str] = []
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if word in ("--arg", "--argjson"):
            if words[-1] == "--indent" or "--" in words:
                return None  # it is a value or a file
            del rest[:2]
        else:
            words.append(word)
    return None if any(_JQ_READS_MORE.search(word) for word in words) else _reads(words, READERS["jq"])


def _subcommand_reads(name: str, table: Subcommands, words: tuple[str, ...]) -> Reads | None:
    """The reads of a read-only subcommand; None for any other."""
    table_match = reading_row(table, words)
    if table_match is None:
        return None
    row, reader, rest = table_match
    if row.takes_any_option:
        reads: Reads | None = Reads((), values=tuple(word.partition("=")[2] or word for word in rest))
    else:
        reads = _reads((name, *rest), reader)
    needs = "project" if "project" in row.traits else table.needs_trust
    return reads and replace(reads, tracked="tracked" in row.traits, needs=needs)


# Options whose value is a pattern, which may look like a path.
_TAKE_PATTERNS = frozenset(
    {"-e", "--include", "--exclude", "--exclude-dir", "-g", "--glob", "-I", "--ignore", "--hide", "-x"}
)


_PS_VALUE = regex(
    r"(?!.*env)(?:[\d,]+|root|nobody|www-data|[a-z]{2,8}(?:[,=][-a-z%]*)+"
    r"|-?(?:pid|comm|args|cmd|rss|time|user|%cpu|%mem|pcpu|pmem))"
)
_PS_HARMLESS = regex(r"--[a-z-]+(?:=(?!.*env).*)?|-[AaedfFlLHjyTMNw]*(?:o(?!.*env).*|[CGgpqtsUu])?")


def _reads(argv: Sequence[str], reader: Reader) -> Reads | None:
    """The reads of a program according to its table; None for an unknown option, or if its operands make it do more than
    read.
    """
    sorted_words = _sorted_words(argv, reader)
    if sorted_words is None:
        return None
    options, operands, values = sorted_words
    letters = "".join(option[1:] for option in options if option[1] != "-")
    is_recursive = "--recursive" in options or any(letter in reader.recursive for letter in letters)
    follows_links = is_recursive and "L" in letters
    if _does_more(argv, options, operands, values, follows_links=follows_links) or (
        reader.most is not None and len(operands) > reader.most
    ):
        return None
    recursive = reader.always_recursive or is_recursive
    if reader.names_only:
        return Reads((), recursive, tuple(values))
    # With these options, grep and rg have no pattern among their operands; for fd, -e is another one.
    gives_pattern = argv[0] not in ("fd", "fdfind") and any(_first_valued(option, reader) == "e" for option in options)
    has_pattern = reader.skip and "--files" not in options and not gives_pattern
    if argv[0] == "[":
        operands = [word for word in operands if word != "]"]
    paths = tuple(word for word in operands[reader.skip if has_pattern else 0 :] if word != "-")
    follows = "*" if is_recursive and (argv[0] == "diff" or (reader.skip and "R" in letters)) else ""
    return Reads(paths or ((".",) if reader.here or recursive else ()), recursive, tuple(values), follows=follows)


def _first_valued(option: str, reader: Reader) -> str:
    """The first letter of a group of options that takes a value, from the rest of the word or the next word; empty if none
    does.
    """
    return next((letter for letter in option[1:] if option[1] != "-" and letter in reader.valued), "")


def _does_more(
    argv: Sequence[str], options: Sequence[str], operands: Sequence[str], values: Sequence[str], *, follows_links: bool
) -> bool:
    """Whether a program does more with these words than read what its table states."""
    match argv[0]:
        case "printf":
            return _sets_variable(argv)
        case "strings" | "nm" | "size" | "readelf":  # they take arguments from that file
            return any(word.startswith("@") for word in operands)
        case "set":  # any other word becomes a parameter of the shell
            return not options or any(word != "pipefail" for word in operands)
        case "ls":  # a link may lead out of the folder that was judged
            return follows_links
        case "ps":  # letters without a dash, and unknown users, which it reads as letters, print environments
            doubtful = [word for word in (*operands, *options) if not _PS_HARMLESS.fullmatch(word)]
            return any("e" in word.lower() for word in doubtful) or not all(map(_PS_VALUE.fullmatch, values))
        case "lsof":  # `-i @host` looks the host up, and so reveals its name to a server
            return any("@" in word for word in (*operands, *options))
        case "xxd":  # after its first file, even an option is the file to write
            return bool(operands) and argv[-1].startswith("-") and argv[-1] != "-"
        case "date":  # it sets the clock
            return any(not word.startswith("+") for word in operands)
    return False


def _sorted_words(argv: Sequence[str], reader: Reader) -> tuple[list[str], list[str], list[str]] | None:
    """The options, the operands, and option values that can be paths; None for an unknown option."""
    options: list[str] = []
    operands: list[str] = []
    values: list[str] = []
    words = list(argv[1:])
    while words:
        word = words.pop(0)
        if word == "--" and not reader.is_expression:
            operands += words
            break
        if word == "-" or not word.startswith("-") or reader.takes_all:
            operands.append(word)
            continue
        takes_next = reader.takes_next(word)
        if takes_next is None or (takes_next and not words):
            return None
        options.append(word)
        if takes_next:
            value = words.pop(0)
            values += [] if word in _TAKE_PATTERNS else [value]
    return options, operands, values


_INTEGER = regex(r"\"?-?\d{1,9}\"?")
_COMPARES = frozenset({"=", "==", "!=", "-eq", "-ne", "-lt", "-le", "-gt", "-ge"})


def compares_texts(operands: Sequence[str]) -> bool:
    """Whether the operands of `test` only compare texts or numbers, whatever the texts are, and name no file.

    Numbers must be written out, although only `[[` would evaluate another text. With two or three operands, only their
    number and the operator decide (POSIX, test).
    """
    if len(operands) == 2:
        return operands[0] in ("-n", "-z")
    if len(operands) != 3 or operands[1] not in _COMPARES:
        return False
    return not operands[1].startswith("-") or all(map(_INTEGER.fullmatch, (operands[0], operands[2])))


def _find_reads(argv: Sequence[str]) -> Reads | None:
    words = list(argv[1:])
    paths: list[str] = []
    while words and (words[0] in ("-H", "-P") or not words[0].startswith(("-", "(", "!", ","))):
        word = words.pop(0)
        if not word.startswith("-"):
            paths.append(word)
    folders = tuple(paths) or (".",)
    is_chain = _FIND_CHOICES.isdisjoint(words)
    is_regular, name, follows = False, "*", ""
    while words:
        word = words.pop(0)
        if word == "-newer" and words:
            paths.append(words.pop(0))
        elif word in FIND_VALUED:
            if not words:
                return None
            # Unlike a link, a regular file cannot lead elsewhere.
            is_regular = is_regular or (is_chain and word == "-type" and words[0] == "f")
            # Not a pattern with a backslash, which has no meaning to `could_become`.
            name = words[0] if is_chain and word == "-name" and "\\" not in words[0] else name
            words.pop(0)
        elif word == "-exec":
            others = _run_by_find(words)
            if others is None:
                return None
            paths += others
            follows = follows if is_regular else name if follows in ("", name) else "*"
        elif word not in FIND_WORDS:
            return None
    return Reads((*folders, *paths), True, follows=follows)


_FIND_CHOICES = frozenset({"!", "(", ")", ",", "-not", "-o", "-or"})
# Programs that only print the names that find passes to them, and those that only print all of their words.
_PRINT_NAMES = frozenset({"basename", "dirname", "echo"})
PRINT_WORDS = _PRINT_NAMES | {"printf"}
# If one operand is a folder, diff reads the file of the same name in it; the others take arguments from the file `x` if one
# is `@x`.
_OPEN_OTHERS = frozenset({"diff", "nm", "readelf", "size", "strings"})


def _run_by_find(words: list[str]) -> list[str] | None:
    """Remove the words of an `-exec`, and return the paths that its program reads besides those that find passes to it;
    None if it does anything else.
    """
    end = next((at for at, word in enumerate(words) if word == ";" or (word == "+" and words[at - 1] == "{}")), None)
    if end is None:
        return None
    # The call is judged with these names instead of those that find passes on: with `+`, there may be several.
    call, names = words[:end], ["./a"] if words[end] == ";" else ["./a", "./b"]
    del words[: end + 1]
    if not call or not (call[0] in READERS or call[0] in ("awk", "sed")) or any("{}" in w and w != "{}" for w in call):
        return None
    argv = [one for word in call for one in (names if word == "{}" else [word])]
    reads = _read_only(tuple(argv))
    if reads is None or reads.follows or call[0] in _OPEN_OTHERS or not set(names).isdisjoint(reads.values):
        return None
    # A file's name must not become a pattern or a script.
    if call[0] not in _PRINT_NAMES and [path for path in reads.paths if path in names] != names * call.count("{}"):
        return None
    return [path for path in (*reads.paths, *reads.values) if path not in names]


# Programs that pass on whole lines between a find and an xargs.
_PASS_LINES = frozenset({"head", "sort", "tail", "uniq"})
_FILTERS = regex(r"-[vEiFw]+")
_PRINTS = regex(r"-(?:f?print|f?ls|exec|ok)")
_LINES = regex(r"-(?:\d+|n\d+|[rufbV]+)")
_LINE_COUNT = regex(r"[+-]?\d+")
_XARGS_OPTION = regex(r"-(?:0|r|0r|r0|[nPL]\d+)|--null|--no-run-if-empty")


def fed_by_find(commands: Sequence[SimpleCommand]) -> Iterator[tuple[int, SimpleCommand, bool]]:
    """Yield the position of each `xargs` that runs a program on the names which a find or a similar program lists, with a
    find that runs the same program itself, and whether the names are split at whitespace and quotes. For an `xargs` that
    only prints its input, the find is an `echo`.
    """
    for at, command in enumerate(commands):
        is_quiet = all(one.is_descriptor or one.target == "/dev/null" or not one.writes for one in command.redirects)
        if command.argv[0] != "xargs" or not is_quiet or command.assignments or command.globs:
            continue
        start = at
        while start and commands[start].joined_by == "|":
            start -= 1
            if not _passes_lines(commands[start].argv):
                break
        call = _call_of_xargs(command.argv)
        if call is None:
            continue
        words, is_exact, is_each = call
        if not words or words[0] in _PRINT_NAMES:
            yield at, replace(command, argv=("echo",)), False
            continue
        # Each printed name must be one word: NUL-separated, with no program in between, or plain.
        find, expected = commands[start], "-print0" if is_exact else "-print"
        argv = list(_listing_find(find.argv))
        if argv[-1] == expected:
            argv.pop()
        elif is_exact:
            continue
        is_fed = start != at and all(one.operator != "<" for one in command.redirects)
        # Neither error texts nor the lines of a file are names.
        is_fed = is_fed and all(
            one.writes and one.target == "/dev/null" for each in commands[start:at] for one in each.redirects
        )
        if not is_fed or argv[0] != "find" or (is_exact and start != at - 1) or any(map(_PRINTS.match, argv)):
            continue
        runs = (*words, ";") if is_each else (*words, "{}", "+")
        globs = find.globs if find.argv[0] == "find" else frozenset()
        yield at, replace(find, argv=(*argv, "-exec", *runs), globs=globs), not is_exact


def _call_of_xargs(argv: Sequence[str]) -> tuple[list[str], bool, bool] | None:
    """The command that `xargs` runs, whether its input is NUL-separated, and whether `{}` in it is replaced by each line;
    None for an option that is not understood.
    """
    call, is_exact, is_each = list(argv[1:]), False, False
    while call and call[0].startswith("-"):
        option = call.pop(0)
        if option in ("-n", "-P", "-L") and call and call[0].isdigit():
            call.pop(0)
        elif option == "-I{}" or (option == "-I" and call[:1] == ["{}"]):
            del call[: len(option) == 2]
            is_each = True
        elif not _XARGS_OPTION.fullmatch(option):
            return None
        # In `-n10` the 0 is part of a number.
        is_exact = is_exact or option == "--null" or (option[1] != "-" and "0" in option and option[1] not in "nPL")
    return call, is_exact, is_each


def _passes_lines(argv: Sequence[str]) -> bool:
    if argv[0] == "grep":  # selects lines, and changes none
        words = [word for word in argv[1:] if not _FILTERS.fullmatch(word)]
        return len(words) == 1 and not words[0].startswith("-")
    words = list(argv[1:])
    if argv[0] in ("head", "tail") and words[:1] == ["-n"] and all(map(_LINE_COUNT.fullmatch, words[1:2])):
        del words[:2]
    return argv[0] in _PASS_LINES and all(map(_LINES.fullmatch, words))


# The options with which a program only lists files, one per line and nothing else; a search needs one of `_LISTS` for that.
_LISTS = regex(r"-[a-zA-Z]*[lL][a-zA-Z]*|--files(?:-with-matches|-without-match)?")
_LISTING_OPTIONS = {
    # Without `a`, which lists the folder above.
    "ls": regex(r"-[1AtrS]+"),
    "grep": regex(
        r"-[EFGHILPahilnrsvwx]+|-[em]|--(?:files-with-matches|files-without-match|recursive|ignore-case|invert-match"
        r"|word-regexp|line-regexp|extended-regexp|fixed-strings|perl-regexp|no-messages|(?:include|exclude|exclude-dir)(?:=.*)?)"
    ),
    "rg": regex(
        r"-[FPSUilnsuvwx]+|-[egtT]|--(?:files|files-with-matches|files-without-match|hidden|ignore-case|smart-case|word-regexp"
        r"|fixed-strings|invert-match|multiline|no-ignore|no-ignore-vcs|no-messages|(?:i?glob|max-depth|sortr?|type|type-not)(?:=.*)?)"
    ),
    "fd": regex(
        r"-[HIgipsu]+|-[dEet]|--(?:hidden|no-ignore|glob|case-sensitive|ignore-case|full-path"
        r"|(?:type|extension|max-depth|min-depth|exclude|changed-within)(?:=.*)?)"
    ),
}
_LISTING_NAMES = {"egrep": "grep", "fgrep": "grep", "fdfind": "fd"}


def _listing_find(argv: tuple[str, ...]) -> tuple[str, ...]:
    """A find over the folders in which a call only lists files, one per line: `grep -l`, `rg --files`, `fd`, `ls`; the call
    itself for any other.
    """
    name = _LISTING_NAMES.get(argv[0], argv[0])
    known = _LISTING_OPTIONS.get(name)
    words = _sorted_words(argv, READERS[name]) if known is not None else None
    if known is None or words is None or not all(map(known.fullmatch, words[0])) or "-" in words[1]:
        return argv
    reads = _read_only(argv) if name in ("ls", "fd") or any(map(_LISTS.fullmatch, words[0])) else None
    # Such a path would be part of find's expression.
    if reads is None or reads.follows or any(path.startswith(("-", "(", "!", ",")) for path in reads.paths):
        return argv
    # A wildcard expands to names in its folder. `ls` prints names without their folder, so xargs looks them up here; above
    # the contents of each of several folders it prints the folder with a colon, which may be the name of an entry beside it.
    is_titled = name == "ls" and len(reads.paths) > 1
    folders = [posixpath.dirname(path) or "." if is_titled or IS_GLOB.search(path) else path for path in reads.paths]
    if any(IS_GLOB.search(folder) for folder in folders):
        return argv
    return ("find", *(["."] if name == "ls" else []), *folders)


# --- other programs that would run ---------------------------------------------------------------------------------------


FIND_RUNS = frozenset({"-exec", "-execdir", "-ok", "-okdir", "-x", "-X", "--exec", "--exec-batch"})


def inner_commands(argv: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield every argument list that could run inside this one: all tails of a wrapper's, as an over-approximation."""
    name = base_name(argv[0])
    first = 1
    if name in ("find", "fd", "fdfind"):
        first = next((index + 1 for index, word in enumerate(argv) if word in FIND_RUNS), len(argv))
    elif name in LAUNCHERS:
        first = next((index + 1 for index, word in enumerate(argv) if word in LAUNCHERS[name]), len(argv))
    elif name not in FETCHERS and (name not in WRAPPERS or _only_looks_up(argv)):
        first = len(argv)
    for start in range(first, len(argv)):
        count_steps(2 + (len(argv) - start) // 8)
        yield tuple(argv[start:])


_EVALUATES = STATE_BUILTINS | {"test", "[", "printf"}


def takes_code(argv: Sequence[str]) -> bool:
    """Whether a program may run text or a command from its arguments or input. A shell builtin that evaluates words counts
    only if one of them contains a command substitution.
    """
    program = program_of(argv[0])
    name = base_name(argv[0])
    if program in SHELLS or program in INTERPRETERS or name in WRAPPERS:
        return not _only_looks_up(argv)
    # The shell evaluates the subscript in a name's brackets, and arithmetic values.
    return name in _EVALUATES and any("$(" in word or "`" in word for word in argv[1:])


# The options of wrappers that only limit or slow down the command after them. `\0` is where an option's value may be a word
# of its own (see `_behind_limits`). `command` is accepted without options only.
_LIMITS = {
    "timeout": regex(
        r"(?:--preserve-status|--foreground|-v|--verbose|-s\0?\w+|-k\0?[\d.]+[smhd]?|--signal=\w+|--kill-after=[\d.]+[smhd]?)"
    ),
    "nice": regex(r"(?:-n\0?-?\d+|-\d+|--adjustment=-?\d+)"),
    "stdbuf": regex(r"(?:-[ioe]\0?(?:L|0|\d+[KM]?)|--(?:input|output|error)=(?:L|0|\d+[KM]?))"),
    "command": regex(r"(?!)"),
}
_ASSIGNMENT = regex(r"[A-Za-z_]\w*=.*", re.S | re.ASCII)
_DURATION = regex(r"\d+(?:\.\d+)?[smhd]?")
_MAX_WRAPPED = 3
_USUAL_PLACE = regex(r"\A(?:/usr)?/bin/(?=[\w.\[-]+\Z)")


def unwrapped(command: SimpleCommand) -> SimpleCommand | None:
    """The command after wrappers that only limit it (`timeout 10`, `nice`), by its name without /bin or /usr/bin; None if
    that is the command itself, or cannot be determined.
    """
    argv, at = command.argv, 0
    while argv[0] == "env" and at + 1 < len(argv) and _ASSIGNMENT.fullmatch(argv[at + 1]):
        at += 1
    if at:
        set_here = (*command.assignments, *argv[1 : at + 1])
        command, at = replace(command, assignments=set_here), at + 1
    for _ in range(_MAX_WRAPPED):
        option = _LIMITS.get(argv[at]) if at < len(argv) else None
        if option is None:
            break
        at = _behind_limits(argv, at, option)
    if at == len(argv) or argv[at][:1] in ("", "-", "+") or any(index <= at for index in command.globs):
        return None
    name = _USUAL_PLACE.sub("", argv[at])
    if at == 0 and name == argv[0]:
        return None
    if argv[at] in ("cd", "pushd", "popd"):
        return None  # after `command`, it still changes the directory of the shell
    return replace(command, argv=(name, *argv[at + 1 :]), globs=frozenset(index - at for index in command.globs))


def _behind_limits(argv: Sequence[str], at: int, option: re.Pattern[str]) -> int:
    """The position of the command after one wrapper; past the end if its words are not all understood."""
    is_timeout = argv[at] == "timeout"
    at += 1
    while at < len(argv) and argv[at].startswith("-"):
        pair = "\0".join(argv[at : at + 2])
        if option.fullmatch(argv[at]):
            at += 1
        elif option.fullmatch(pair):
            at += 2
        else:
            return len(argv)
    if not is_timeout:
        return at
    return at + 1 if at < len(argv) and _DURATION.fullmatch(argv[at]) else len(argv)


# --- programs that only edit files --------------------------------------------------------------------------------------

# The permitted option letters of a program, and its permitted long options: others write elsewhere, or follow links.
_OPTIONS: Mapping[str, tuple[str, frozenset[str]]] = {
    "mkdir": ("pv", frozenset({"--parents", "--verbose"})),
    "touch": ("acm", frozenset({"--no-create"})),
    "mv": ("finuv", frozenset({"--force", "--interactive", "--no-clobber", "--update", "--verbose"})),
    "cp": (
        "afinpRruv",
        frozenset({"--archive", "--force", "--interactive", "--no-clobber", "--recursive", "--update", "--verbose"}),
    ),
    "rm": ("dfirRv", frozenset({"--dir", "--force", "--interactive", "--recursive", "--verbose"})),
    "rmdir": ("v", frozenset({"--verbose"})),
}  # fmt: skip
# Without `*` and `/` in the suffix, with which sed builds another name or folder for its backup (sed manual, `-i`).
_SED_IN_PLACE = regex(r"(?:-i|--in-place=?)([A-Za-z0-9._~-]*)")


@frozen
class FileEdits:
    """The edits of one command: the paths that it changes, and those that it reads.

    `into` is the file or folder to which the `sources` are copied or moved, None for other programs. With `whole_trees`,
    folders are processed with all their contents; with `removes`, the changed paths no longer exist afterwards.
    """

    changes: tuple[str, ...]
    reads: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    into: str | None = None
    whole_trees: bool = False
    removes: bool = False


def file_edits(argv: Sequence[str]) -> FileEdits | None:
    """The edits of a command; None if it does anything else, or is not fully understood."""
    name = base_name(argv[0])
    if "/" in argv[0] and argv[0] not in (f"/bin/{name}", f"/usr/bin/{name}"):
        return None
    if name == "sed":
        return _sed_edits(argv)
    edits = _edited_operands(argv[1:], *_OPTIONS[name]) if name in _OPTIONS else None
    if edits is None:
        return None
    options, operands = edits
    if name in ("cp", "mv"):
        if len(operands) < 2:
            return None
        *sources, into = operands
        trees = name == "mv" or not {"a", "r", "R", "--archive", "--recursive"}.isdisjoint(options)
        changed, sources_read = (sources, ()) if name == "mv" else ((), sources)
        return FileEdits(tuple(changed), tuple(sources_read), tuple(sources), into, trees, removes=name == "mv")
    if not operands:
        return None
    trees = not {"r", "R", "--recursive"}.isdisjoint(options)
    return FileEdits(tuple(operands), whole_trees=name == "rm" and trees, removes=name in ("rm", "rmdir"))


def _edited_operands(words: Sequence[str], letters: str, long: frozenset[str]) -> tuple[set[str], list[str]] | None:
    """The options and the other words; None if an option is not among the known ones."""
    options: set[str] = set()
    operands: list[str] = []
    for index, word in enumerate(words):
        if word == "--":
            return options, [*operands, *words[index + 1 :]]
        if not word.startswith("-") or word == "-":
            operands.append(word)
        elif word in long:
            options.add(word)
        elif not word.startswith("--") and set(word[1:]) <= set(letters):
            options |= set(word[1:])
        else:
            return None
    return options, operands


def _sed_edits(argv: Sequence[str]) -> FileEdits | None:
    scripts: list[str] = []
    operands: list[str] = []
    suffix: str | None = None
    words = list(argv[1:])
    while words:
        word = words.pop(0)
        in_place = _SED_IN_PLACE.fullmatch(word)
        if in_place is not None:
            suffix = in_place[1]
        elif word in ("-e", "--expression") and words:
            scripts.append(words.pop(0))
        elif not word.startswith("-"):
            operands.append(word)
        elif word not in _SED_OPTIONS:
            return None
    if not scripts:
        scripts, operands = operands[:1], operands[1:]
    if suffix is None or not operands or not scripts or not all(map(is_plain_sed_script, scripts)):
        return None
    copies = [f"{path}{suffix}" for path in operands] if suffix else []
    return FileEdits((*operands, *copies))
