"""Sums over families of sessions, kept up to date beside an index: a family is a session with the sessions of its subagents.

A caller's fold turns the summaries of one family into named cells; here are the sums of all families' cells. If a session
changes, the cells of its family are subtracted, folded again and added, so a report costs what has changed since the last
one. Cells are stored as integers, which makes that exact. Triggers on the tables of the index mark what has changed, so
older versions that update the index mark it, too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING

from ...errors import InvalidEventError, SessionError, SessionNotFoundError
from ...ground.frozen import frozen
from ...serialization import dumps_json, loads_json
from ..folds.summary import SUMMARY_VERSION, SessionSummary, failed_summary

if TYPE_CHECKING:
    import sqlite3

# What a cell counts: the kind of row, a name, and a day since 1970.
CellName = tuple[str, str, int]
# What a trigger marks a session by.
Mark = str | int
Cells = Mapping[CellName, Sequence[float]]
# Sessions per transaction and its time: others wait for the index.
STEP_SESSIONS, STEP_S = 64, 0.2
# The unit of stored numbers: nothing that is shown is rounded to more.
_UNIT = 10**15
_TABLES = (
    "CREATE TABLE families (id TEXT PRIMARY KEY, mark, parent TEXT, root TEXT NOT NULL) WITHOUT ROWID",
    "CREATE INDEX families_mark ON families (mark)",
    "CREATE INDEX families_root ON families (root)",
    "CREATE INDEX families_parent ON families (parent) WHERE parent IS NOT NULL",
    "CREATE TABLE family_cells (root TEXT PRIMARY KEY, cells TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE sums (kind TEXT, name TEXT, day INTEGER, cell TEXT NOT NULL, PRIMARY KEY (kind, name, day)) WITHOUT ROWID",
    "CREATE TABLE uncounted (mark PRIMARY KEY) WITHOUT ROWID",
    "CREATE TABLE counted_as (version TEXT)",
)


@frozen
class FamilyFold:
    """A pure function from the summaries of a family to its cells; increase `version` when it changes."""

    version: int
    cells_of: Callable[[Sequence[SessionSummary]], Cells]


class SumsFamilies(ABC):
    """A store that keeps the sums of a fold over all families of its sessions."""

    @abstractmethod
    def family_sums(self, fold: FamilyFold, kinds: Sequence[str]) -> Cells | None:
        """The sums of the cells of these kinds; None if the store has no index for them now."""


class FamilySums:
    """The sums in the index `db`.

    `marking` are the statements that create the triggers and mark all sessions; `id_of` returns the id of a marked session,
    None if it was deleted. `describe` returns a summary, or raises `SessionNotFoundError`.
    """

    def __init__(
        self,
        db: sqlite3.Connection,
        fold: FamilyFold,
        *,
        marking: Sequence[str],
        id_of: Callable[[Mark], str | None],
        describe: Callable[[str], SessionSummary],
    ) -> None:
        self._db = db
        self._fold = fold
        self._marking = marking
        self._id_of = id_of
        self._describe = describe

    def prepare(self) -> None:
        """In a transaction, create the tables if they do not exist or belong to another version of the fold."""
        version = f"{SUMMARY_VERSION}.{self._fold.version}"
        has_table = self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'counted_as'").fetchone()
        if has_table and self._db.execute("SELECT version FROM counted_as").fetchall() == [(version,)]:
            return
        for command in _TABLES:
            self._db.execute(f"DROP TABLE IF EXISTS {command.split()[2]}" if " TABLE " in command else "SELECT 1")
        for command in (*_TABLES, *self._marking):
            self._db.execute(command)
        self._db.execute("INSERT INTO counted_as VALUES (?)", (version,))

    def step(self) -> bool:
        """In a transaction, count some of the marked sessions; return whether there may be more."""
        began, marks = monotonic(), list[Mark]()
        changed_ids: dict[str, SessionSummary | None] = {}
        marks_by_id: dict[str, Mark] = {}
        for (mark,) in self._db.execute(
            "SELECT mark FROM uncounted ORDER BY mark LIMIT ?", (STEP_SESSIONS,)
        ).fetchall():
            marks.append(mark)
            stored_ids = [loads_json(name) for (name,) in self._rows("id", "mark", mark)]
            live_id = self._id_of(mark)
            for session_id in dict.fromkeys([*stored_ids, *([] if live_id is None else [live_id])]):
                changed_ids[dumps_json(session_id)] = self._summary(session_id)
                marks_by_id[dumps_json(session_id)] = mark
            if monotonic() - began > STEP_S:
                break
        self._count(changed_ids, marks_by_id)
        self._db.executemany("DELETE FROM uncounted WHERE mark = ?", [(mark,) for mark in marks])
        return bool(marks)

    def read(self, kinds: Sequence[str]) -> Cells:
        """The sums of these kinds."""
        rows = self._db.execute(
            f"SELECT kind, name, day, cell FROM sums WHERE kind IN ({', '.join('?' * len(kinds))})", tuple(kinds)
        )
        return {(kind, loads_json(name), day): [x / _UNIT for x in loads_json(cell)] for kind, name, day, cell in rows}

    def _summary(self, session_id: str) -> SessionSummary | None:
        try:
            return self._describe(session_id)
        except SessionNotFoundError:
            return None
        except (SessionError, InvalidEventError) as error:
            return failed_summary(session_id, error)

    def _count(self, changed_ids: Mapping[str, SessionSummary | None], marks_by_id: Mapping[str, Mark]) -> None:
        """Count the families to which these sessions belong and belonged; None for a deleted session."""
        roots = {root for name in changed_ids for (root,) in self._rows("root", "id", name)}
        for name, row in changed_ids.items():
            if row is None:
                self._db.execute("DELETE FROM families WHERE id = ?", (name,))
            else:
                parent = dumps_json(row.parent) if row.is_child and row.parent is not None else None
                self._db.execute(
                    "INSERT OR REPLACE INTO families VALUES (?, ?, ?, ?)", (name, marks_by_id[name], parent, name)
                )
        # Their subagents have another root if they are new or gone.
        roots.update(root for name in changed_ids for (root,) in self._rows("root", "parent", name))
        names = {name for name, row in changed_ids.items() if row is not None}
        names.update(name for root in roots for (name,) in self._rows("id", "root", root))
        for name in names:
            root = self._root_of(name)
            roots.add(root)
            self._db.execute("UPDATE families SET root = ? WHERE id = ?", (root, name))
        difference: dict[CellName, list[int]] = defaultdict(lambda: [0] * 8)
        for root in roots:
            for (cells,) in self._rows("cells", "root", root, table="family_cells"):
                _add(difference, _loads(cells), -1)
            members = [name for (name,) in self._rows("id", "root", root)]
            rows = [changed_ids.get(name) or self._summary(loads_json(name)) for name in members]
            if rows:
                new_cells = {
                    name: [round(x * _UNIT) for x in cell]
                    for name, cell in self._fold.cells_of([row for row in rows if row is not None]).items()
                }
                _add(difference, new_cells, 1)
                self._db.execute("INSERT OR REPLACE INTO family_cells VALUES (?, ?)", (root, _dumps(new_cells)))
            else:
                self._db.execute("DELETE FROM family_cells WHERE root = ?", (root,))
        _change_sums(self._db, difference)

    def _root_of(self, name: str) -> str:
        """The session at the root of a chain of subagents, or the first one if the chain is a circle, as only forged data
        can be.
        """
        seen = list[str]()
        while rows := self._rows("parent", "id", name):
            if name in seen:
                return min(seen[seen.index(name) :])
            seen.append(name)
            ((parent,),) = rows
            if parent is None:
                return name
            name = parent
        return seen[-1]

    def _rows(self, column: str, key: str, value: Mark, *, table: str = "families") -> Sequence[tuple[str]]:
        return self._db.execute(f"SELECT {column} FROM {table} WHERE {key} = ?", (value,)).fetchall()


def forget_family(db: sqlite3.Connection, session_id: str) -> None:
    """Remove the cells of the session's family from the index `db`; whoever reads sums next counts the rest of it again."""
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'counted_as'").fetchone():
        return
    name, difference = dumps_json(session_id), defaultdict[CellName, list[int]](lambda: [0] * 8)
    for (root,) in db.execute("SELECT root FROM families WHERE id = ?", (name,)).fetchall():
        for (cells,) in db.execute("SELECT cells FROM family_cells WHERE root = ?", (root,)).fetchall():
            _add(difference, _loads(cells), -1)
        db.execute("DELETE FROM family_cells WHERE root = ?", (root,))
        db.execute("INSERT OR IGNORE INTO uncounted SELECT mark FROM families WHERE root = ?", (root,))
    db.execute("DELETE FROM families WHERE id = ?", (name,))
    _change_sums(db, difference)


def _change_sums(db: sqlite3.Connection, difference: Mapping[CellName, list[int]]) -> None:
    where = "WHERE kind = ? AND name = ? AND day = ?"
    for (kind, name, day), cell in difference.items():
        at = (kind, dumps_json(name), day)
        for (before,) in db.execute(f"SELECT cell FROM sums {where}", at).fetchall():
            cell = [x + y for x, y in zip(loads_json(before), cell, strict=True)]
        if any(cell):
            db.execute("INSERT OR REPLACE INTO sums VALUES (?, ?, ?, ?)", (*at, dumps_json(cell)))
        else:
            db.execute(f"DELETE FROM sums {where}", at)


def _add(sums: Mapping[CellName, list[int]], cells: Mapping[CellName, Sequence[int]], sign: int) -> None:
    for name, cell in cells.items():
        total = sums[name]
        for at, x in enumerate(cell):
            total[at] += sign * x


def _dumps(cells: Mapping[CellName, Sequence[int]]) -> str:
    return dumps_json([[*name, list(cell)] for name, cell in cells.items()])


def _loads(text: str) -> dict[CellName, Sequence[int]]:
    return {(kind, name, day): cell for kind, name, day, cell in loads_json(text)}
