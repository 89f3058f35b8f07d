"""Tables of programs: which run other commands or code, which options run or write something, and which programs only read.

The tables are data, `reading/programs.json`, each with a description and the manual to check it against; the module
`programs` queries them. A program missing from a table of hazards is taken at face value, so these lists are generous; a
program missing from `READERS` is not treated as one that only reads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any, TypeVar

from ..ground.frozen import frozen
from ..ground.packaged import read_packaged
from .shell import word_set, words

T = TypeVar("T")


@frozen
class Options:
    """The options with which a program runs or writes something: `short` letters, `long` names without dashes, `words` that
    match literally (`-exec`), and `texts`, pairs of an expression for words and the effect of such a word. `valued` letters
    and `valued_words` neither run nor write anything, but the next word may be their value.
    """

    short: str = ""
    long: tuple[str, ...] = ()
    words: frozenset[str] = frozenset()
    texts: tuple[tuple[str, str], ...] = ()
    valued: str = ""
    valued_words: frozenset[str] = frozenset()

    @cached_property
    def letters(self) -> frozenset[str]:
        """The short letters, for comparison with a bundle."""
        return frozenset(self.short)

    @cached_property
    def patterns(self) -> tuple[tuple[re.Pattern[str], str], ...]:
        """The expressions of `texts`, compiled."""
        return tuple([(re.compile(text), does) for text, does in self.texts])

    @cached_property
    def long_lines(self) -> str:
        """The long names, each after a line break, so that an abbreviation can be searched for after a break."""
        return "".join(f"\n{name}" for name in self.long)


@frozen
class Reader:
    """The harmless options of a program, and which of its operands are paths.

    `short` letters take no value, `valued` ones do; `long` and `long_valued` likewise. `optional` letters and
    `long_optional` names may have a value in the same word, never in the next one. `plain` and `plain_valued` are options
    that are whole words (`-json`). The first `skip` operands are not paths; with `names_only`, none is. `most` limits the
    number of operands. `recursive` letters make the program read whole trees, and with `always_recursive` it always does;
    with `here`, it reads the current folder if no operand is given. With `takes_all`, every word is an operand; with
    `is_expression`, `--` does not end the options.
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
        """Whether a harmless option takes the next word as its value; None if the option is not known to be harmless."""
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


@frozen
class Lister:
    """A program that can list the contents of archives. `needs` are groups of option letters: a call only lists if it has
    all letters of one group, or if there are no groups.

    Only `letters` are harmless, and the long options `long`, which count as their first letter. The first operand is an
    archive, or `all` are; the program may add one of the `suffixes` to its name. The first word of a call is a group of
    letters with or without a dash, unless the program is `dashed`.
    """

    needs: str = ""
    letters: str = ""
    long: tuple[str, ...] = ()
    all: bool = False
    dashed: bool = False
    suffixes: tuple[str, ...] = ()


_DATA: Mapping[str, Any] = json.loads(read_packaged(__spec__, "reading/programs.json"))
# Fields of `Options` and `Reader` that are not used verbatim, most of them lists of words.
_WORDS: dict[str, Callable[[Any], Any]] = dict.fromkeys(
    ("long", "long_valued", "long_optional", "suffixes"), words
) | dict.fromkeys(("words", "valued_words", "plain", "plain_valued"), word_set)
_WORDS["texts"] = lambda texts: tuple(texts.items())


def _table(name: str) -> frozenset[str]:
    return frozenset(word for line in _DATA[name]["words"] for word in line.split())


def _read(kind: type[T], row: Mapping[str, Any]) -> T:
    return kind(**{field: _WORDS[field](value) if field in _WORDS else value for field, value in row.items()})


def _rows(name: str, read: Callable[[Any], T]) -> dict[str, T]:
    """The rows of a table, each parsed once for all programs that share it."""
    shared = [(programs.split(), read(row)) for programs, row in _DATA[name]["rows"].items()]
    return {program: value for programs, value in shared for program in programs}


WRAPPERS = _table("wrappers")
FETCHERS = _table("fetchers")
LAUNCHERS = _rows("launchers", word_set)
SHELLS = _table("shells")
STATE_BUILTINS = _table("state_builtins")
INTERACTIVE = _table("interactive")
PAGERS = _table("pagers")
PRIVILEGED = _table("privileged")
INTERPRETERS = _rows("interpreters", partial(_read, Options))
PYTHONS = _table("pythons")
RUN_A_SCRIPT = _table("run_a_script")
INFORMS = _rows("informs", words)
SQLITE_HARMLESS = _table("sqlite_harmless")
GIT_ANYWHERE = words(" ".join(_DATA["git_anywhere"]["words"]))
SHELL_OPTIONS = _read(Options, _DATA["shell_options"]["options"])
OPTIONS = _rows("options", partial(_read, Options))
RUNNERS = _rows("runners", partial(_read, Reader))
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
LISTERS = _rows("listers", partial(_read, Lister))
FIND_WORDS = _table("find_words")
FIND_VALUED = _table("find_valued")
CHECKERS = _table("checkers")
OPTIONS_READ = _table("options_read")
NEVER_SUGGESTED = _table("never_suggested")
