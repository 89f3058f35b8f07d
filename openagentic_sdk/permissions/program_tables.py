"""Tables of programs: what runs other commands, what takes code, which options run or write, and what only reads.

The tables are data, `reading/programs.json`, each with what it lists and the manual to check it against; `programs` asks the
questions. A program that is missing from a table of hazards is taken for what it seems, so these lists err on the long side;
a program that is missing from `READERS` is never run without a rule or a question.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any, TypeVar

from ..ground.frozen import frozen
from ..ground.packaged import read_packaged
from .shell import word_set, words

T = TypeVar("T")


@frozen
class Options:
    """Options of a program that run or write: `short` letters, `long` names without dashes, `words` that match as they
    stand (`-exec`). `valued` letters and `valued_words` do neither, but the next word may be their value."""

    short: str = ""
    long: tuple[str, ...] = ()
    words: frozenset[str] = frozenset()
    valued: str = ""
    valued_words: frozenset[str] = frozenset()

    @cached_property
    def letters(self) -> frozenset[str]:
        """The short letters, to be compared with a bundle."""
        return frozenset(self.short)

    @cached_property
    def long_lines(self) -> str:
        """The long names with a line break before each: what one of them begins with stands in it behind a break."""
        return "".join(f"\n{name}" for name in self.long)


@frozen
class Reader:
    """A program of the reading set: its harmless options, and which of its operands are paths.

    `short` letters stand alone, `valued` ones take a value; `long` and `long_valued` likewise. `optional` letters and
    `long_optional` names may have a value in the same word, never in the next one. The first `skip` operands
    are no paths; `names_only` means that no operand is. `most` bounds the operands. `recursive` letters read whole trees,
    `always_recursive` programs do so anyway, `here` ones read the current folder when they are given none. `takes_all`
    programs have no options. `is_expression` programs read every word, `--` does not end their options. `plain` and
    `plain_valued` are options that are whole words (`-json`).
    """

    short: str = ""
    valued: str = ""
    long: tuple[str, ...] = ()
    long_valued: tuple[str, ...] = ()
    skip: int = 0
    names_only: bool = False
    most: int | None = None
    recursive: str = ""
    here: bool = False
    always_recursive: bool = False
    takes_all: bool = False
    is_expression: bool = False
    optional: str = ""
    long_optional: tuple[str, ...] = ()
    plain: frozenset[str] = frozenset()
    plain_valued: frozenset[str] = frozenset()

    def takes_next(self, word: str) -> bool | None:
        """Whether a harmless option takes the next word as its value; None for an option that is not known as harmless."""
        if word in self.plain:
            return False
        name, equals, _ = word.partition("=")
        if name in self.plain_valued:
            return not equals
        if word.startswith("--"):
            name = name[2:]
            if name in self.long_optional:
                return False
            if equals:
                return False if name in self.long_valued else None
            if name in self.long:
                return False
            return True if name in self.long_valued else None
        for index, letter in enumerate(word[1:], 1):
            if letter in self.optional:
                return False  # the rest of the word is its value
            if letter in self.valued:
                return index == len(word) - 1
            if letter not in self.short:
                return None
        return False


_DATA: Mapping[str, Any] = json.loads(read_packaged(__spec__, "reading/programs.json"))
# Fields of `Options` and `Reader` that are words; the others are letters, numbers and switches as they stand.
_WORDS = dict.fromkeys(("long", "long_valued", "long_optional"), words) | dict.fromkeys(
    ("words", "valued_words"), word_set
)


def _table(name: str) -> frozenset[str]:
    return frozenset(word for line in _DATA[name]["words"] for word in line.split())


def _read(kind: type[T], row: Mapping[str, Any]) -> T:
    return kind(**{field: _WORDS[field](value) if field in _WORDS else value for field, value in row.items()})


def _rows(name: str, read: Callable[[Any], T]) -> dict[str, T]:
    """The rows of a table, each read once for all programs that share it."""
    shared = [(programs.split(), read(row)) for programs, row in _DATA[name]["rows"].items()]
    return {program: value for programs, value in shared for program in programs}


WRAPPERS = _table("wrappers")
FETCHERS = _table("fetchers")
LAUNCHERS = _rows("launchers", word_set)
SHELLS = _table("shells")
STATE_BUILTINS = _table("state_builtins")
INTERACTIVE = _table("interactive")
PRIVILEGED = _table("privileged")
INTERPRETERS = _rows("interpreters", partial(_read, Options))
PYTHONS = _table("pythons")
RUN_A_SCRIPT = _table("run_a_script")
INFORMS = _rows("informs", words)
SQLITE_HARMLESS = _table("sqlite_harmless")
GIT_ANYWHERE = words(" ".join(_DATA["git_anywhere"]["words"]))
SHELL_OPTIONS = _read(Options, _DATA["shell_options"]["options"])
OPTIONS = _rows("options", partial(_read, Options))
GIT_COMMANDS = _table("git_commands")
GIT_SAFE = _rows("git_safe", word_set)
GIT_SHORT = _rows("git_short", str)
GIT_GLOBAL_HARMLESS = _table("git_global_harmless")
WRITERS = _table("writers")
GIT_WRITES = _table("git_writes")
TREE_PROGRAMS = _rows("tree_programs", partial(_read, Options))
IMPLICIT_TREES = _table("implicit_trees")
FOLLOWS_LINKS = _rows("follows_links", partial(_read, Options))
NEVER_READS = _table("never_reads")
NEVER_READS_IN = _rows("never_reads_in", word_set)
CODE_MODULES = _table("code_modules")
TELL_VERSION = _table("tell_version")
WILDCARD_PROOF = _table("wildcard_proof")
READERS = _rows("readers", partial(_read, Reader))
FIND_WORDS = _table("find_words")
FIND_VALUED = _table("find_valued")
CHECKERS = _table("checkers")
OPTIONS_READ = _table("options_read")
NEVER_SUGGESTED = _table("never_suggested")
