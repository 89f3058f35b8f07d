"""Every word that Claude Code documents for project files, and its effect here, in one table: `ledger.json`.

Parsers of such files take their known words from this table, and notices, `docs/claude.md` and the commands that explain a
project are generated from it. Words that share everything else are in one entry of the file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Literal

from ..ground.diagnostic import Diagnostic
from ..ground.frozen import frozen
from ..ground.packaged import read_packaged
from ..ground.words import look_alikes

WordState = Literal["does", "narrower", "no", "nothing", "ours"]


@frozen
class DocumentedWord:
    """One documented word of one `kind` of place.

    `state` is `does` if the word has the same effect here, `narrower` if it has a narrower one (see `how`), `no` if it has
    none (`how` is what to do instead), `nothing` if it has none in either product (it is for other programs, or for
    people), and `ours` if it is this library's own. If `aside` is true, runs do not report the word, because its missing
    effect does not change them. `fact` is the content of the documentation's `page` about it, in the version that was read;
    `test` names the test that shows the state.
    """

    kind: str
    word: str
    state: WordState
    how: str
    aside: bool
    page: str
    fact: str
    test: str


@cache
def _table() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(read_packaged(__spec__, "ledger.json"))
    return data


@cache
def _entries() -> Mapping[str, list[dict[str, Any]]]:
    """The entries of the file by kind."""
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for entry in _table()["entries"]:
        by_kind.setdefault(entry["kind"], []).append(entry)
    return by_kind


@cache
def rows_of(kind: str) -> Mapping[str, DocumentedWord]:
    """The rows of a kind by word. Raises `ValueError` for a word that the file contains twice.

    In the file, the words of an entry are a list that shares one `fact`, or a map with a fact for each.
    """
    rows: dict[str, DocumentedWord] = {}
    for entry in _entries()[kind]:
        common = {key: entry[key] for key in ("kind", "state", "page", "test")}
        common |= {"how": entry.get("how", ""), "aside": entry.get("aside", False)}
        words = entry["words"]
        facts = words if isinstance(words, dict) else dict.fromkeys(words, str(entry["fact"]))
        for word, fact in facts.items():
            if word in rows:
                raise ValueError(f"the table contains {kind} {word} twice")
            rows[word] = DocumentedWord(word=word, fact=fact, **common)
    return rows


def rows() -> Mapping[str, Mapping[str, DocumentedWord]]:
    """All rows, by kind and word."""
    return {kind: rows_of(kind) for kind in _entries()}


def version_read() -> str:
    """The version of Claude Code whose documentation the rows are based on, and its date."""
    return str(_table()["read"])


def row_of(kind: str, word: str) -> DocumentedWord | None:
    """The row of a word; None for an undocumented one."""
    return rows_of(kind).get(word)


@cache
def words(kind: str, *states: WordState) -> frozenset[str]:
    """The words of a kind that are in one of the states; all words if no state is given."""
    entries = [entry for entry in _entries()[kind] if not states or entry["state"] in states]
    return frozenset(word for entry in entries for word in entry["words"])


# Findings that a run does not report: words that would not change it, and words that Claude Code does not document either.
ASIDE, UNDOCUMENTED = "word-aside", "word-undocumented"
QUIET = frozenset({ASIDE, UNDOCUMENTED})


def word_notes(
    kind: str, used: Iterable[str], code: str = "field-without-effect", line: Callable[[str], int] = lambda word: 0
) -> list[Diagnostic]:
    """Return a finding for each word of a file that has no effect here, with the alternative.

    `line` returns the line of a word. A word that resembles a documented one is treated as a typing error.
    """
    notes: list[Diagnostic] = []
    for word in used:
        row = row_of(kind, word)
        if row is None:
            near = look_alikes(word, sorted(words(kind, "does", "narrower", "ours")), 0.84)
            hint = f": did you mean {near[0]}?" if near else ", and has none in Claude Code"
            notes.append(Diagnostic(code if near else UNDOCUMENTED, f"{word} has no effect here{hint}", line(word)))
        elif row.state == "no":
            advice = f"{word} has no effect here: {row.how}"
            notes.append(Diagnostic(ASIDE if row.aside else code, advice, line(word)))
    return notes


def word_of(note: Diagnostic) -> str:
    """The word of a finding from `word_notes`."""
    return note.message.partition(" has no effect here")[0]
