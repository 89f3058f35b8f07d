"""Omit most elements of the tables in Python source before it is parsed.

A syntax tree needs about 300 times the memory of its source: 2.7 MB of numbers in a list took 880 MB.
"""

from __future__ import annotations

import io
import tokenize

from ...ground.frozen import mutable
from ...ground.patterns import regex

_KEPT_ELEMENTS = 16
_MAX_TOKENS = 300_000
_LITERAL = regex(r"[rRbBuU]{0,2}['\"]|\.?[0-9]|(?:True|False|None|[-+:,])\Z")
_LAYOUT = (tokenize.NL, tokenize.COMMENT)


@mutable
class _Bracket:
    """An open bracket; `cut` is the position of its first omitted element, with the number of tokens before it."""

    cuts_before: int
    commas: int = 0
    cut: tuple[tuple[int, int], int] | None = None
    is_literal: bool = True


def without_tables(text: str) -> str:
    """Replace most elements of lists, tuples, sets and dicts of literals with spaces; no position in the text changes.

    Raises `ValueError` if too many tokens are left to parse.
    """
    cuts = list[tuple[tuple[int, int], tuple[int, int], int]]()  # start, end, and number of tokens
    brackets = [_Bracket(0)]  # the first stands for the module
    count = 0
    for count, token in enumerate(tokenize.generate_tokens(io.StringIO(text).readline)):
        inner, word = brackets[-1], token.string
        if token.type == tokenize.OP and word in "([{":
            brackets.append(_Bracket(len(cuts)))
        elif token.type == tokenize.OP and word in ")]}" and len(brackets) > 1:
            brackets.pop()
            if not inner.is_literal:
                brackets[-1].is_literal = False
            elif inner.cut is not None:
                del cuts[inner.cuts_before :]
                cuts.append((inner.cut[0], token.start, count - inner.cut[1]))
        elif not inner.is_literal or token.type in _LAYOUT:
            continue
        elif _LITERAL.match(word) is None:
            inner.is_literal = False
        elif word == ",":
            inner.commas += 1
            if inner.commas == _KEPT_ELEMENTS:
                inner.cut = token.end, count
    kept = count - sum(tokens for _, _, tokens in cuts)
    if kept > _MAX_TOKENS:
        raise ValueError(
            f"it has {kept:,} tokens besides its tables of literals, and at most {_MAX_TOKENS:,} are checked: "
            "move the code of its workflows to a file of their own"
        )
    return _blanked(text, cuts)


def _blanked(text: str, cuts: list[tuple[tuple[int, int], tuple[int, int], int]]) -> str:
    line_starts = [0, 0]  # lines count from 1
    for line in text.split("\n"):
        line_starts.append(line_starts[-1] + len(line) + 1)
    parts, done = list[str](), 0
    for (row, column), (end_row, end_column), _ in cuts:
        start, end = line_starts[row] + column, line_starts[end_row] + end_column
        # Columns of a syntax tree count the bytes of UTF-8.
        blanks = (" " * len(line.encode()) for line in text[start:end].split("\n"))
        parts += [text[done:start], "\n".join(blanks)]
        done = end
    return "".join([*parts, text[done:]])
