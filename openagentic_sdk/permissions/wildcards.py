"""Command rules with wildcards, assignments or pipes: `git * main`, `ls*`, `PYTHONPATH=. pytest *`, `curl * | bash`.

A `*` matches any characters, including spaces between words. ` *` or `:*` at the end also matches if no more words follow. A
rule is compared with the words of a command, so spaces in a rule are word boundaries: `git * main` does not match
`git 'x main'`. The time is linear in the length of the command, whatever the rule.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from ..ground.frozen import frozen
from ..ground.patterns import regex
from .guess import LooseWord
from .shell import IS_GLOB, RESERVED_WORDS, base_name, could_become

MAX_WILDCARDS = 50
_ASSIGNMENT = regex(r"[A-Za-z_]\w*=")
_PIECE = regex(r"""'([^']*)'|"((?:[^"\\$`]|\\.)*)"|\\(.)|([^\s'"\\|&;<>()$`{}#]+)|([{}#])""")
_OPERATOR = regex(r"&&|\|\||\|&?|[;&\n]")
_REDIRECTS = regex(r"[<>]")
_UNKNOWN = regex(r"[$`()]|<<")
_AROUND = regex(r"\s*([<>|&;]+)\s*")
# Separates two words; no word can contain it.
_END = "\0"


@frozen
class Wildcard:
    """One simple command of a rule: the assignments before it, its words, and whether more words may follow.

    A word is a tuple of the characters around its wildcards: `("ls", "")` is `ls*`, `("ls",)` is `ls`. A rule with a
    redirection has `line` instead: the characters around its wildcards, compared with a whole line.
    """

    assignments: tuple[tuple[str, ...], ...]
    words: tuple[tuple[str, ...], ...]
    is_open: bool
    line: tuple[str, ...] = ()

    def fits_line(self, text: str) -> bool:
        """Whether a whole line, whatever its quotes and whitespace, matches a rule with a redirection."""
        return _fits(self.line, _plain_line(text))

    @property
    def literal_words(self) -> int:
        """The number of leading words without wildcards."""
        return next((at for at, word in enumerate(self.words) if len(word) > 1), len(self.words))

    @property
    def is_prefix(self) -> bool:
        """Whether the rule has no wildcard except at the end of its last word."""
        return self.literal_words == len(self.words) or (
            self.literal_words == len(self.words) - 1 and self.words[-1][1:] == ("",)
        )

    def fits(self, argv: Sequence[str]) -> bool:
        """Whether the words of a command match the rule's."""
        pieces = [""]
        for number, word in enumerate(self.words):
            pieces[-1] += (_END if number else "") + word[0]
            pieces += word[1:]
        text = _END.join(argv)
        if self.is_open:
            pieces[-1] += _END
            pieces.append("")
            text += _END
        return _fits(pieces, text)

    def sets(self, assignments: Sequence[str]) -> bool:
        """Whether these assignments match the rule's, one by one."""
        return len(assignments) == len(self.assignments) and all(map(_fits, self.assignments, assignments))

    def could_end_in(self, words: Sequence[LooseWord]) -> int | None:
        """The smallest number of leading words that could contain the rule's words in order, with gaps; None if even all of
        them cannot.

        A word that may become anything matches all that follows the program's name, but never the name itself.
        """
        rule_words = [word for word in self.words if any(word)]
        if not rule_words:
            return 0
        at = 0
        for count, word in enumerate(words, 1):
            if word.open and at and self.literal_words:
                return count
            name = base_name(word.text)
            is_fit = _fits(rule_words[at], word.text) or (at == 0 and _fits(rule_words[at], name))
            at += is_fit or bool(IS_GLOB.search(word.text) and could_become(word.text, "".join(rule_words[at])))
            if at == len(rule_words):
                return count
        return None


def _fits(pieces: Sequence[str], text: str) -> bool:
    """Whether the pieces occur in the text in order, the first at its start and the last at its end."""
    first, last = pieces[0], pieces[-1]
    if len(pieces) == 1:
        return text == first
    if not text.startswith(first):
        return False
    at = len(first)
    for piece in pieces[1:-1]:
        position = text.find(piece, at)
        if position < 0:
            return False
        at = position + len(piece)
    # The last piece must not overlap the others: `a*a` does not match the single letter `a`.
    return len(text) - len(last) >= at and text.endswith(last)


@functools.lru_cache(maxsize=4096)
def read_wildcards(text: str) -> tuple[Wildcard, ...]:
    """Parse the simple commands of a rule, separated by operators. Raises ValueError with the reason if it is invalid."""
    text = text.strip()
    if "*" in text and _REDIRECTS.search(text) and not _UNKNOWN.search(text):
        return (Wildcard((), (), False, tuple(_plain_line(text).split("*"))),)
    is_open = text.endswith((":*", " *"))
    if is_open:
        text = text[:-2].rstrip()
    parts = _words_of_commands(text)
    commands = [_command(words, is_open and number == len(parts)) for number, words in enumerate(parts, 1)]
    if not any(any(word) for one in commands for word in one.words):
        raise ValueError("it has no words besides wildcards; write Bash alone to cover every command")
    if sum(len(word) - 1 for one in commands for word in one.words) > MAX_WILDCARDS:
        raise ValueError(f"it has more than {MAX_WILDCARDS} wildcards; use fewer")
    return tuple(commands)


def _words_of_commands(text: str) -> list[list[tuple[str, ...]]]:
    """The words of each command, each split at its wildcards. Raises ValueError with the invalid part."""
    parts: list[list[tuple[str, ...]]] = [[]]
    word: list[str] | None = None
    at = 0
    while at < len(text):
        operator = _OPERATOR.match(text, at)
        piece = None if operator else _PIECE.match(text, at)
        if piece is not None:
            single, double, escaped, plain, brace = piece.groups()
            literal = escaped if escaped is not None else brace
            pieces = [literal] if literal is not None else (single or double or plain or "").split("*")
            word = word or [""]
            word[-1] += pieces[0]
            word += pieces[1:]
            at = piece.end()
            continue
        if operator is None and not text[at].isspace():
            raise ValueError(f"it contains {text[at]!r}, but a rule consists of the plain words of a command, and *")
        if word is not None:
            parts[-1].append(tuple(word))
            word = None
        if operator is not None:
            parts.append([])
        at = operator.end() if operator else at + 1
    if word is not None:
        parts[-1].append(tuple(word))
    return parts


def _plain_line(text: str) -> str:
    return " ".join(_AROUND.sub(r"\1", text.replace('"', "").replace("'", "")).split())


def _command(words: list[tuple[str, ...]], is_open: bool) -> Wildcard:
    count = 0
    while count < len(words) and _ASSIGNMENT.match(words[count][0]):
        count += 1
    if count == len(words):
        raise ValueError("a command is missing")
    if words[count][0] in RESERVED_WORDS:
        raise ValueError(f"it contains the shell keyword {words[count][0]!r}")
    return Wildcard(tuple(words[:count]), tuple(words[count:]), is_open)
