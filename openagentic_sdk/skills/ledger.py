"""Every word that Claude Code documents for the files of a project, and what it does here: the one table, `ledger.json`.

Whatever reads such a file asks this table which words it knows, and notices, `docs/claude.md` and the commands that explain
a project are made from it. Words with all else in common stand in one entry of the file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Literal

from ..ground.diagnostic import Diagnostic
from ..ground.frozen import frozen
from ..ground.packaged import read_packaged
from ..ground.text import look_alikes

State = Literal["does", "narrower", "no", "nothing", "ours"]


@frozen
class DocumentedWord:
    """One documented word of one `kind` of place.

    `state` says whether it does here what it does there, less than that (`how`), nothing here (`how` says what to do
    instead), nothing in either (`nothing`: it is for other programs, or for people), or is a word of this library's own
    (`ours`). One that is `aside` does nothing here and changes nothing of a run, which is silent about it. `fact` is what
    `page` of the documentation says of it, in the version that was read; `test` names the test that shows the state.
    """

    kind: str
    word: str
    state: State
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
def rows() -> Mapping[str, Mapping[str, DocumentedWord]]:
    """The rows by kind and word.

    The words of an entry are a list with one `fact`, or each with its own.
    """
    found: dict[str, dict[str, DocumentedWord]] = {}
    for entry in _table()["entries"]:
        common = {key: entry[key] for key in ("kind", "state", "page", "test")}
        common |= {"how": entry.get("how", ""), "aside": entry.get("aside", False)}
        given = entry["words"]
        facts = given if isinstance(given, dict) else dict.fromkeys(given, entry.get("fact"))
        for word, fact in facts.items():
            row = DocumentedWord(word=word, fact=fact, **common)
            if found.setdefault(row.kind, {}).setdefault(word, row) is not row:
                raise ValueError(f"the table has {row.kind} {word} twice")
    return found


def version_read() -> str:
    """The version of Claude Code whose documentation the rows were made from, and the day of it."""
    return str(_table()["read"])


def row_of(kind: str, word: str) -> DocumentedWord | None:
    """The row of a word; None for one that is not documented."""
    return rows()[kind].get(word)


@cache
def words(kind: str, *states: State) -> frozenset[str]:
    """The words of a kind that are in one of the states, or all of them."""
    return frozenset(word for word, row in rows()[kind].items() if not states or row.state in states)


# Findings that a run is silent about: words that change nothing of it, and words that mean nothing to Claude Code either.
ASIDE, UNDOCUMENTED = "word-aside", "word-undocumented"
QUIET = frozenset({ASIDE, UNDOCUMENTED})


def word_notes(
    kind: str, used: Iterable[str], code: str = "field-without-effect", line: Callable[[str], int] = lambda word: 0
) -> list[Diagnostic]:
    """A finding for each of the words that a file uses and that does nothing here, and what to do instead.

    `line` is where a word stands. One that is almost a documented word is taken for a slip of the pen.
    """
    notes: list[Diagnostic] = []
    for word in used:
        row = row_of(kind, word)
        if row is None:
            near = look_alikes(word, sorted(words(kind, "does", "narrower", "ours")), 0.84)
            said = f": did you mean {near[0]}?" if near else ", and none in Claude Code"
            notes.append(Diagnostic(code if near else UNDOCUMENTED, f"{word} has no effect here{said}", line(word)))
        elif row.state == "no":
            advice = f"{word} has no effect here: {row.how}"
            notes.append(Diagnostic(ASIDE if row.aside else code, advice, line(word)))
    return notes


def word_of(note: Diagnostic) -> str:
    """The word that a finding of `word_notes` is about."""
    return note.message.partition(" has no effect here")[0]
