"""Sums over families of sessions, kept up to date beside an index: a family is a session with the sessions of its subagents.

A caller's fold turns the summaries of one family into named cells; this module keeps the sums of all families' cells. If a
session changes, the cells of its family are subtracted, folded again and added, so a report costs what has changed since the
last one. Numbers are added as integers, which makes that exact. Each index marks changed sessions, by means that also notice
changes by older versions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar

from ...errors import InvalidEventError, SessionError, SessionNotFoundError
from ...ground.frozen import frozen
from ...serialization import dumps_json, loads_json
from ..arguments import is_possible_id
from ..folds.search import Progress
from ..folds.summary import SUMMARY_VERSION, SessionSummary, failed_summary

if TYPE_CHECKING:
    import sqlite3

# The name of a cell: the kind of row, a name, and a day, counted from the start of 1970.
CellName = tuple[str, str, int]
Cells = Mapping[CellName, Sequence[float]]
# The identity of a changed session, in the form that an SQLite trigger stores.
Mark = str | int
# Numbers are added as integer multiples of 1 / _UNIT, which is finer than anything shown.
_UNIT = 10**15
# The version of the stored form.
_FORMAT = "2"
# How often a report starts over because a process of another version did.
_ATTEMPTS = 3
# The stored parts: the root of each session, the sessions and cells of each root, and the sums of a kind.
ROOT, FAMILY, SUM = "root", "family", "sum:"


@frozen
class FamilyFold:
    """A pure function from the summaries of a family to its cells; increase `version` when it changes."""

    version: int
    cells_of: Callable[[Sequence[SessionSummary]], Cells]


@frozen
class FamilyChange:
    """One change to the stored parts: for each, the new values by name; None deletes a value.

    `counted` are the ids whose marks are removed, each with the value of its mark; `again` are the ids to mark.
    """

    parts: Mapping[str, Mapping[str, str | None]]
    counted: Mapping[str, Any]
    again: Collection[str] = ()


class FamilyTable(ABC):
    """The storage for the sums of a store, and the queries that the algorithm makes about its sessions."""

    # The most sessions per change, for which other processes wait.
    step_sessions: ClassVar[int] = 64
    _version: str | None = None

    def prepare(self, version: str) -> None:
        """Start over with all sessions marked, unless the stored table has this version."""
        self._version = version
        self._begin(version)

    @abstractmethod
    def _begin(self, version: str) -> None:
        """Implement `prepare`."""

    def _is_ours(self, version: str | None) -> bool:
        """Whether sums of this version are usable: it is the prepared version or, without one, a version of this format."""
        if self._version is not None:
            return version == self._version
        return version is not None and version.startswith(f"{_FORMAT}.")

    @abstractmethod
    def marked(self) -> Mapping[str, Any]:
        """The ids of the sessions that were changed or deleted since they were counted, each with its mark."""

    @abstractmethod
    def changing(self) -> AbstractContextManager[bool]:
        """Bracket the reads and the `store` of one change: `store` detects what other processes have stored meanwhile.

        Yields False if the stored sums have another version.
        """

    @abstractmethod
    def read(self, part: str, names: Collection[str]) -> dict[str, str]:
        """The stored values of this part with these names; names without a value are omitted."""

    @abstractmethod
    def read_whole(self, parts: Sequence[str]) -> Mapping[str, Collection[str]] | None:
        """All values of these parts at one moment; None if the stored sums have another version."""

    @abstractmethod
    def summaries(self, ids: Collection[str]) -> dict[str, SessionSummary | None]:
        """The current summaries of these sessions; None for one that does not exist."""

    @abstractmethod
    def children(self, ids: Collection[str]) -> set[str]:
        """The ids of the sessions that Task calls of these sessions started."""

    @abstractmethod
    def store(self, change: FamilyChange) -> bool:
        """Apply the change as a whole; return False, and store nothing, if another process has stored one meanwhile."""


class SumsFamilies(ABC):
    """A store that keeps the sums of a fold over all families of its sessions."""

    @abstractmethod
    def family_sums(self, fold: FamilyFold, kinds: Sequence[str]) -> Cells | None:
        """The sums of the cells of these kinds; None if the store has no index for them now."""


def sum_families(
    table: FamilyTable, fold: FamilyFold, kinds: Sequence[str], progress: Progress | None = None
) -> Cells | None:
    """Count what has changed, and return the sums of the cells of these kinds; None if other versions prevent that."""
    for _ in range(_ATTEMPTS):
        table.prepare(f"{_FORMAT}.{SUMMARY_VERSION}.{fold.version}")
        marks = list(table.marked().items())
        for at in range(0, len(marks), table.step_sessions):
            if not _count(table, fold, dict(marks[at : at + table.step_sessions])):
                break
            if progress is not None:
                progress(min(at + table.step_sessions, len(marks)), len(marks))
        else:
            stored = table.read_whole([SUM + kind for kind in kinds])
            if stored is not None:
                return {
                    (kind, name, day): [x / _UNIT for x in cell]
                    for kind in kinds
                    for name, day, cell in map(loads_json, stored.get(SUM + kind, ()))
                }
    return None


def forget_family(table: FamilyTable, session_id: str) -> None:
    """Remove the stored cells of the session's family; the next report counts the family's other sessions again."""
    while True:
        with table.changing() as is_ours:
            roots = set(table.read(ROOT, [session_id]).values()) if is_ours else set()
            if not roots:
                return
            families = _families(table, roots)
            parts = {ROOT: {session_id: None}, FAMILY: dict.fromkeys(families), **_new_sums(table, families, {})}
            again = [name for members, _ in families.values() for name in members]
            if table.store(FamilyChange(parts, {}, again)):
                return


# The sessions of a family, and its cells.
_Family = tuple[Sequence[str], Cells]


def _count(table: FamilyTable, fold: FamilyFold, marks: Mapping[str, Any]) -> bool:
    """Count the families to which these sessions belong or belonged; return False if another version started over."""
    while True:
        with table.changing() as is_ours:
            if not is_ours:
                return False
            rows, old_roots, old_families = _connected(table, marks)
            members = defaultdict[str, list[str]](list)
            for name, row in rows.items():
                if row is not None:
                    members[_root_of(name, rows)].append(name)
            families: dict[str, _Family] = {
                root: (names, fold.cells_of([row for name in names if (row := rows[name]) is not None]))
                for root, names in members.items()
            }
            roots = {name: root for root, names in members.items() for name in names}
            parts: dict[str, Mapping[str, str | None]] = {
                ROOT: {
                    name: roots.get(name) for name in rows if name in marks or roots.get(name) != old_roots.get(name)
                },
                FAMILY: {**dict.fromkeys(old_families), **{root: _dumps(family) for root, family in families.items()}},
                **_new_sums(table, old_families, families),
            }
            if table.store(FamilyChange(parts, marks)):
                return True


def _connected(
    table: FamilyTable, names: Iterable[str]
) -> tuple[dict[str, SessionSummary | None], dict[str, str], dict[str, _Family]]:
    """The sessions of all families to which these belong or belonged: their summaries, old roots and old families."""
    rows: dict[str, SessionSummary | None] = {}
    roots: dict[str, str] = {}
    families: dict[str, _Family] = {}
    new_ids = set(names)
    while new_ids:
        new_rows, new_roots = table.summaries(new_ids), table.read(ROOT, new_ids)
        new_families = _families(table, set(new_roots.values()) - families.keys())
        near = table.children(new_ids).union(*(members for members, _ in new_families.values()))
        near.update(name for row in new_rows.values() if (name := _parent_of(row)) is not None)
        rows |= new_rows
        roots |= new_roots
        families |= new_families
        new_ids = near - rows.keys()
    return rows, roots, families


def _parent_of(row: SessionSummary | None) -> str | None:
    is_known = row is not None and row.is_child and row.parent is not None and is_possible_id(row.parent)
    return row.parent if row is not None and is_known else None


def _root_of(name: str, rows: Mapping[str, SessionSummary | None]) -> str:
    """The session at the root of a chain of subagents; in a cycle, which only forged data contains, the one with the
    smallest id.
    """
    seen = list[str]()
    while (parent := _parent_of(rows[name])) is not None and rows[parent] is not None:
        if name in seen:
            return min(seen[seen.index(name) :])
        seen.append(name)
        name = parent
    return name


def _new_sums(
    table: FamilyTable, old_families: Mapping[str, _Family], new_families: Mapping[str, _Family]
) -> dict[str, dict[str, str | None]]:
    """The sums that change when these families replace the old ones, by part and name; None for one that becomes zero."""
    # Cells have eight numbers (`sessions.folds.spent.ZERO`).
    difference: dict[CellName, list[int]] = defaultdict(lambda: [0] * 8)
    for families, sign in ((old_families, -1), (new_families, 1)):
        for _, cells in families.values():
            for name, cell in cells.items():
                difference[name] = [x + sign * round(y * _UNIT) for x, y in zip(difference[name], cell, strict=True)]
    parts: dict[str, dict[str, str | None]] = {}
    by_kind = defaultdict[str, dict[str, CellName]](dict)
    for name, cell in difference.items():
        if any(cell):
            by_kind[SUM + name[0]][sha256(dumps_json(name).encode()).hexdigest()] = name
    for part, names in by_kind.items():
        stored, parts[part] = table.read(part, names), {}
        for digest, name in names.items():
            cell = difference[name]
            if digest in stored:
                cell = [x + y for x, y in zip(loads_json(stored[digest])[2], cell, strict=True)]
            parts[part][digest] = dumps_json([*name[1:], cell]) if any(cell) else None
    return parts


def _families(table: FamilyTable, roots: Collection[str]) -> dict[str, _Family]:
    stored = table.read(FAMILY, roots) if roots else {}
    families: dict[str, _Family] = {}
    for root, (members, cells) in ((root, loads_json(text)) for root, text in stored.items()):
        families[root] = members, {(kind, name, day): cell for kind, name, day, cell in cells}
    return families


def _dumps(family: _Family) -> str:
    members, cells = family
    return dumps_json(
        [members, [[*name, [int(x) if x == int(x) else x for x in cell]] for name, cell in cells.items()]]
    )


# --- in the index of a store in files or SQLite ----------------------------------------------------------------------

# The tables to drop, including those of format 1.
_DROPPED = ("families", "family_cells", "sums", "uncounted", "counted_as")
_TABLES = (
    "CREATE TABLE families (id TEXT PRIMARY KEY, mark, root TEXT NOT NULL) WITHOUT ROWID",
    "CREATE INDEX families_mark ON families (mark)",
    "CREATE TABLE sums (part TEXT, name TEXT, value TEXT NOT NULL, PRIMARY KEY (part, name)) WITHOUT ROWID",
    "CREATE TABLE uncounted (mark PRIMARY KEY) WITHOUT ROWID",
    "CREATE TABLE counted_as (version TEXT)",
)


class IndexFamilies(FamilyTable):
    """The sums in the SQLite index `db`, whose triggers mark changed sessions.

    `marking` contains the statements that create the triggers and mark all sessions. `mark_of` returns the mark of a session
    by its id, and `id_of` its id by the mark, both None if it was deleted; `children_of` returns ids. `describe` returns a
    summary, or raises `SessionNotFoundError`.
    """

    def __init__(
        self,
        db: sqlite3.Connection,
        *,
        marking: Sequence[str],
        mark_of: Callable[[str], Mark | None],
        id_of: Callable[[Mark], str | None],
        children_of: Callable[[str], Iterable[str]],
        describe: Callable[[str], SessionSummary],
    ) -> None:
        self._db = db
        self._marking = marking
        self._mark_of = mark_of
        self._id_of = id_of
        self._children_of = children_of
        self._describe = describe

    def _begin(self, version: str) -> None:
        with self.changing():
            if version in self._versions():
                return
            self._drop()
            for command in (*_TABLES, *self._marking):
                self._db.execute(command)
            self._db.execute("INSERT INTO counted_as VALUES (?)", (version,))

    def _versions(self) -> list[str]:
        has_tables = self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'counted_as'").fetchone()
        return [row[0] for row in self._db.execute("SELECT version FROM counted_as")] if has_tables else []

    def _drop(self) -> None:
        for name in _DROPPED:
            self._db.execute(f"DROP TABLE IF EXISTS {name}")

    def marked(self) -> Mapping[str, Any]:
        ids: dict[str, list[Mark]] = {}
        idle = []
        for (mark,) in self._db.execute("SELECT mark FROM uncounted ORDER BY mark").fetchall():
            rows = self._db.execute("SELECT id FROM families WHERE mark = ?", (mark,)).fetchall()
            live_id = self._id_of(mark)
            names = {name for (name,) in rows} | (set() if live_id is None else {live_id})
            for name in names:
                ids.setdefault(name, []).append(mark)
            if not names:
                idle.append((mark,))
        if idle:
            with self.changing():
                self._db.executemany("DELETE FROM uncounted WHERE mark = ?", idle)
        return ids

    @contextmanager
    def changing(self) -> Iterator[bool]:
        if self._db.in_transaction:  # of a caller that also removes other things
            yield any(map(self._is_ours, self._versions()))
            return
        self._db.execute("BEGIN IMMEDIATE")
        with self._db:
            yield any(map(self._is_ours, self._versions()))

    def read(self, part: str, names: Collection[str]) -> dict[str, str]:
        stored_values: dict[str, str] = {}
        for name in names:
            if part == ROOT:
                rows = self._db.execute("SELECT id, root FROM families WHERE id = ?", (name,))
            else:
                rows = self._db.execute("SELECT name, value FROM sums WHERE part = ? AND name = ?", (part, name))
            stored_values.update(rows.fetchall())
        return stored_values

    def read_whole(self, parts: Sequence[str]) -> Mapping[str, Collection[str]] | None:
        values = defaultdict[str, list[str]](list)
        with self.changing() as is_ours:
            if not is_ours:
                return None
            command = f"SELECT part, value FROM sums WHERE part IN ({', '.join('?' * len(parts))})"
            for part, value in self._db.execute(command, tuple(parts)):
                values[part].append(value)
        return values

    def summaries(self, ids: Collection[str]) -> dict[str, SessionSummary | None]:
        # The mark is read first: a deletion after that marks the session again, and its row here is found.
        return {name: None if self._mark_of(name) is None else summary_or_error(self._describe, name) for name in ids}

    def children(self, ids: Collection[str]) -> set[str]:
        return {child for name in ids for child in self._children_of(name)}

    def store(self, change: FamilyChange) -> bool:
        db = self._db
        for part, values in change.parts.items():
            for name, value in values.items():
                if part == ROOT:
                    db.execute("DELETE FROM families WHERE id = ?", (name,))
                    if value is not None:
                        db.execute("INSERT INTO families VALUES (?, ?, ?)", (name, self._mark_of(name), value))
                elif value is None:
                    db.execute("DELETE FROM sums WHERE part = ? AND name = ?", (part, name))
                else:
                    db.execute("INSERT OR REPLACE INTO sums VALUES (?, ?, ?)", (part, name, value))
        marks = [(mark,) for marks in change.counted.values() for mark in marks]
        db.executemany("DELETE FROM uncounted WHERE mark = ?", marks)
        again = [(mark,) for name in change.again if (mark := self._mark_of(name)) is not None]
        db.executemany("INSERT OR IGNORE INTO uncounted VALUES (?)", again)
        return True

    def forget(self, session_id: str) -> None:
        """Remove the session's family, or all sums if another version stored them. Call it inside a transaction."""
        if any(map(self._is_ours, self._versions())):
            forget_family(self, session_id)
        else:
            self._drop()  # an older version's: the next report counts all


def summary_or_error(
    describe: Callable[[str], SessionSummary],
    session_id: str,
    failed_row: Callable[[str, Exception], SessionSummary] = failed_summary,
) -> SessionSummary | None:
    """The session's summary, or the `failed_row` of a session that cannot be read; None if it does not exist."""
    try:
        return describe(session_id)
    except SessionNotFoundError:
        return None
    except (SessionError, InvalidEventError) as error:
        return failed_row(session_id, error)
