"""Read-only subcommands of programs that also do more: `git log`, `docker ps`, `aws ec2 describe-instances`.

The tables are data, one file per program in `reading/`, derived from the manual that the file names. A row is a subcommand
with its options, and represents calls that change nothing, here or elsewhere, and run nothing; a call is read-only only if
a row covers every word. The words of a row:

`-x`, `--long` a switch, `-x=` an option with a value, `--long?` one whose value is in the same word, `*` every option but
`never_options` in any abbreviation; `args=N` at most N operands; `paths` operands are files; `tracked` prints content
tracked by git; `project` contacts a server that a file of the project may name, and so needs a trusted project; the other
words are keys of `_DOES_MORE`.

No row permits a word that is the address of a server: a call that reads could otherwise send data anywhere. The exception
is a table with `addresses = true`, for a program whose rows contact nothing.

The words of a row's name are those of the subcommand, and may be wildcards; `@` is one or more words of `groups`, `{lists}`
one word of the list `lists`, and a word with a dash an option that the call must have at any position. The longest matching
name decides; `false` is not read-only.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from ..ground.frozen import frozen
from ..ground.packaged import read_packaged
from ..ground.patterns import regex
from .program_tables import Reader

# The file of each program; a test keeps this equal to the names in the files.
PROGRAMS: Mapping[str, str] = {
    "apt": "apt",
    "apt-cache": "apt",
    "aws": "aws",
    "az": "az",
    "brew": "brew",
    "cargo": "cargo",
    "dmesg": "dmesg",
    "docker": "docker",
    "gcloud": "gcloud",
    "gh": "gh",
    "git": "git",
    "go": "go",
    "helm": "helm",
    "ip": "ip",
    "journalctl": "journalctl",
    "kubectl": "kubectl",
    "npm": "npm",
    "oc": "kubectl",
    "pip": "pip",
    "pip3": "pip",
    "pnpm": "pnpm",
    "podman": "docker",
    "systemctl": "systemctl",
    "terraform": "terraform",
    "tofu": "terraform",
    "uv": "uv",
    "yarn": "yarn",
}


@frozen
class SubcommandRow:
    """A subcommand: the words that name it, options that a call must have, the syntax of its options, and the page of the
    manual as its source.

    `reader` is `None` if the call does more than read. `traits` are the other words of the row, such as `paths`.
    """

    words: tuple[str, ...]
    needed_options: tuple[str, ...]
    reader: Reader | None
    traits: frozenset[str]
    manual: str

    @property
    def takes_any_option(self) -> bool:
        return "*" in self.traits

    @property
    def weight(self) -> tuple[int, int]:
        """The specificity of the name: of two matching rows, the heavier one decides."""
        parts = [*self.words, *self.needed_options]
        return len(parts), sum(len(word) for word in parts if "*" not in word and word != "@")

    def may_begin(self, word: str) -> bool:
        """Whether the name may begin with a word: with this very word, or with a wildcard."""
        first = self.words[0] if self.words else "*"
        return first == word or not {"*", "?", "[", "@"}.isdisjoint(first)


@frozen
class Subcommands:
    """The table of one program. `before` is the syntax of the options before the subcommand; `needs_trust` names the trust
    that its calls require, `repository`, `project` or none (empty).

    `@` in a name matches words of `groups` and, among the first two words, of `first`. A call is never read-only if it has
    one of the `never_options` in any abbreviation or a word that `never_harmless` matches, or if `never_command` matches its
    name.
    """

    rows: tuple[SubcommandRow, ...]
    before: Reader
    needs_trust: str
    groups: frozenset[str]
    first: frozenset[str]
    takes_addresses: bool
    never_harmless: re.Pattern[str] | None
    never_command: re.Pattern[str] | None
    never_options: tuple[str, ...]

    @functools.cached_property
    def rows_by_word(self) -> Mapping[str, tuple[SubcommandRow, ...]]:
        """The rows whose name may begin with a word, the most specific first; under `*`, those for every other word."""
        words = {"*", *(row.words[0] for row in self.rows if row.words)}
        return {word: tuple([row for row in self.rows if row.may_begin(word)]) for word in words}


@functools.cache
def subcommands(program: str) -> Subcommands | None:
    """The table of a program, by its bare name; None for a program without a table."""
    name = PROGRAMS.get(program)
    return None if name is None else read_table(read_packaged(__spec__, f"reading/{name}.toml"))


def read_table(text: str) -> Subcommands:
    """Parse the text of a table."""
    import tomllib  # most runs use no such program

    data = tomllib.loads(text)
    everywhere = data.get("anywhere", "")
    lists: Sequence[str] = data.get("lists", ())
    rows = []
    for name, spec in data["rows"].items():
        names = [name.replace("{lists}", one) for one in lists] if "{lists}" in name else [name]
        rows += [_row(each, spec, everywhere, data) for each in names]
    never_harmless, command = data.get("never", ()), data.get("never_command")
    return Subcommands(
        tuple(sorted(rows, key=lambda row: row.weight, reverse=True)),
        _reader(data.get("before", "").split() + everywhere.split())[0],
        data.get("needs_trust", ""),
        frozenset(data.get("groups", "").split()),
        frozenset(data.get("first", "").split()),
        data.get("addresses", False),
        re.compile("|".join(never_harmless)) if never_harmless else None,
        re.compile(command) if command else None,
        tuple(data.get("never_options", "").split()),
    )


def _row(name: str, spec: str | bool, everywhere: str, data: Mapping[str, Any]) -> SubcommandRow:
    words = name.split()
    name_words = tuple(word for index, word in enumerate(words) if index == 0 or not word.startswith("-"))
    needed = tuple(word for index, word in enumerate(words) if index and word.startswith("-"))
    manual = data["manual"].format(
        data.get("joined", "-").join(w for w in name_words if not w.startswith(("-", "*", "@")))
    )
    if not isinstance(spec, str):
        return SubcommandRow(name_words, needed, None, frozenset(), manual)
    reader, traits = _reader([*spec.split(), *everywhere.split(), *needed])
    return SubcommandRow(name_words, needed, reader, traits, manual)


def _reader(spec: Sequence[str]) -> tuple[Reader, frozenset[str]]:
    """The syntax of the options in a specification, and its other words."""
    kinds: dict[str, list[str]] = {kind: [] for kind in ("short", "long", "plain")}
    valued: dict[str, list[str]] = {kind: [] for kind in ("short", "long", "plain")}
    optional: dict[str, list[str]] = {kind: [] for kind in ("short", "long", "plain")}
    traits: list[str] = []
    most: int | None = None
    for word in spec:
        if word.startswith("args="):
            most = int(word[5:])
        elif not word.startswith("-"):
            traits.append(word)
        else:
            into = valued if word[-1] == "=" else optional if word[-1] == "?" else kinds
            bare = word.rstrip("=?")
            kind = "long" if bare.startswith("--") else "short" if len(bare) == 2 else "plain"
            into[kind].append(bare.lstrip("-") if kind != "plain" else bare)
            if into is optional and kind == "long":
                kinds["long"].append(bare[2:])
    reader = Reader(
        "".join(kinds["short"]),
        "".join(valued["short"]),
        tuple(kinds["long"]),
        tuple(valued["long"]),
        names_only="paths" not in traits,
        most=most,
        optional="".join(optional["short"]),
        long_optional=tuple(optional["long"]),
        plain=frozenset(kinds["plain"]),
        plain_valued=frozenset(valued["plain"]),
    )
    return reader, frozenset(traits)


def reading_row(table: Subcommands, words: Sequence[str]) -> tuple[SubcommandRow, Reader, tuple[str, ...]] | None:
    """The row of a read-only call, the syntax of its options, and the words after its name; None if it may do more.

    `words` is the call without its program.
    """
    rest = _behind_globals(table, words)
    if rest is None or _is_forbidden(table, words):
        return None
    for row in table.rows_by_word.get(rest[0] if rest else "", table.rows_by_word["*"]):
        length = _named_length(table, row, rest)
        if length is None or not all(_has_option(option, rest[length:]) for option in row.needed_options):
            continue
        name = " ".join(rest[:length])
        if row.reader is None or (table.never_command is not None and table.never_command.search(name)):
            return None
        if any(does_more(rest[length:]) for trait, does_more in _DOES_MORE.items() if trait in row.traits):
            return None
        return row, row.reader, tuple(rest[length:])
    return None


def _behind_globals(table: Subcommands, words: Sequence[str]) -> list[str] | None:
    """The words from the subcommand on; None for an unknown option before it."""
    rest = list(words)
    reader = table.before
    while rest and rest[0].startswith("-") and (len(rest) > 1 or rest[0] not in table.rows_by_word):
        if any(not row.words for row in table.rows):
            return rest
        takes_next = reader.takes_next(rest[0])
        if takes_next is None:
            return rest if rest[0] in table.rows_by_word else None
        del rest[: 2 if takes_next else 1]
    return rest


# An s3: address names a bucket at the program's own server.
_ADDRESS = regex(r"(?<![A-Za-z0-9+.-])(?!s3://)[A-Za-z][A-Za-z0-9+.-]*://")


def _is_forbidden(table: Subcommands, words: Sequence[str]) -> bool:
    if not table.takes_addresses and any(_ADDRESS.search(word) for word in words):
        return True
    if table.never_harmless is not None and any(table.never_harmless.search(word) for word in words):
        return True
    names = {word.partition("=")[0] for word in words if word.startswith("--") and len(word) > 2}
    names -= {f"--{name}" for name in (*table.before.long, *table.before.long_valued)}
    return any(option.startswith(name) for name in names for option in table.never_options)


def _has_option(option: str, words: Sequence[str]) -> bool:
    return any(word == option or word.startswith(f"{option}=") for word in words)


def _named_length(table: Subcommands, row: SubcommandRow, words: Sequence[str]) -> int | None:
    """The number of words that match the row's name; None if it does not match."""
    at = 0
    for pattern in row.words:
        if pattern == "@":
            began = at
            while at < len(words) and (words[at] in table.groups or (at < 2 and words[at] in table.first)):
                at += 1
            if at == began:
                return None
        elif at < len(words) and fnmatchcase(words[at], pattern) and (pattern[0] == "-" or words[at][:1] != "-"):
            at += 1
        else:
            return None
    return at


def _operands(words: Sequence[str]) -> list[str]:
    return [word for word in words if not word.startswith("-")]


# A package of a registry, perhaps with its version: npm fetches every other form from the place that it names.
_PACKAGE = regex(r"(?:@[\w.-]+/)?\w[\w.-]*(?:@[\w.^~<>=* -]+)?")


# A formula or cask by its name alone: if an operand names a file, brew runs it, and if a tap, fetches it.
_FORMULA = regex(r"\w[\w+-]*(?:@[\w.]+)?")


# Fields of a container that are not its environment, in a template of docker.
_FIELDS = regex(
    r"(?:[^{}]|\{\{\s*(?:json\s+)?\.(?:State|NetworkSettings|Mounts|Name|Id|Image|Created|RestartCount|Platform|HostConfig"
    r"|Config\.(?:Image|Hostname|Labels|ExposedPorts|WorkingDir|User))[\w.]*\s*\}\})+"
)


def _may_print_environment(words: Sequence[str]) -> bool:
    """Whether a call of `docker inspect` may print the environment: it does not have exactly one template, or one with
    fields that are not known to be free of it.
    """
    templates = [word for before, word in itertools.pairwise(words) if before in ("-f", "--format")]
    templates += [word.partition("=")[2] for word in words if word.startswith("--format=")]
    templates += [word[2:] for word in words if word.startswith("-f") and word != "-f"]
    return len(templates) != 1 or not _FIELDS.fullmatch(templates[0])


# The tests for a call that does more than its row describes, by the row's trait.
_DOES_MORE: Mapping[str, Callable[[Sequence[str]], bool]] = {
    # An operand of journalctl is a match of a field, or the path of a program or device.
    "field_operands": lambda words: any("/" in word and "=" not in word for word in _operands(words)),
    # `kubectl get pods secret/x`: operands of kubectl may name a kind other than the row's.
    "bare_operands": lambda words: any("/" in word or "," in word for word in _operands(words)),
    "packages": lambda words: not all(_PACKAGE.fullmatch(word) for word in _operands(words)),
    "formulas": lambda words: not all(_FORMULA.fullmatch(word) for word in _operands(words)),
    "without_environment": _may_print_environment,
    "plain_output": lambda words: any(map(_holds_values, ("", *words), words)),
    # `git config user.name` reads, and the other words without a dot are subcommands of newer versions.
    "dotted": lambda words: not words or not all("." in word for word in words),
    "inside": lambda words: any(word.startswith(("/", "~")) or ".." in word.split("/") for word in words),
}


def _holds_values(before: str, word: str) -> bool:
    """Whether a word, or the value of the option `before` it, makes kubectl print more than a table or names, and so perhaps
    the values of secrets.
    """
    if before in ("-o", "--output"):
        return word not in ("wide", "name")
    if word.startswith(("-o", "--output")) and word not in ("-o", "--output"):
        return word.removeprefix("--output").removeprefix("-o").lstrip("=") not in ("wide", "name")
    return False
