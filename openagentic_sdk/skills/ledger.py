"""Every word that Claude Code documents for the files of a project, and what it does here: the one table, `ledger.json`.

Whatever reads such a file asks this table which words it knows, and notices, `docs/claude.md` and the commands that explain
a project are made from it. Words with all else in common stand in one entry of the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

from ..ground.frozen import frozen
from ..ground.packaged import read_packaged

State = Literal["does", "narrower", "no", "nothing"]


@frozen
class DocumentedWord:
    """One documented word of one `kind` of place.

    `state` says whether it does here what it does there, less than that (`how`), nothing here (`how` says what to do
    instead), or nothing in either (`nothing`: it is for other programs, or for people). `fact` is what `page` of the
    documentation says of it, in the version that was read; `test` is the name of the test that shows the state.
    """

    kind: str
    word: str
    state: State
    how: str
    page: str
    fact: str
    test: str


@cache
def _table() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(read_packaged(__spec__, "ledger.json"))
    return data


@cache
def rows() -> Mapping[str, Mapping[str, DocumentedWord]]:
    """The rows by kind and word."""
    found: dict[str, dict[str, DocumentedWord]] = {}
    for entry in _table()["entries"]:
        common = {key: entry[key] for key in ("kind", "state", "page", "fact", "test")}
        for word in entry["words"]:
            row = DocumentedWord(word=word, how=entry.get("how", ""), **common)
            if found.setdefault(row.kind, {}).setdefault(word, row) is not row:
                raise ValueError(f"the table has {row.kind} {word} twice")
    return found


def version_read() -> str:
    """The day of the documentation that the rows were made from."""
    return str(_table()["read"])


def row_of(kind: str, word: str) -> DocumentedWord | None:
    """The row of a word; None for one that is not documented."""
    return rows()[kind].get(word)


@cache
def words(kind: str, *states: State) -> frozenset[str]:
    """The words of a kind that are in one of the states, or all of them."""
    return frozenset(word for word, row in rows()[kind].items() if not states or row.state in states)
