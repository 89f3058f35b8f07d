"""The sums over families of sessions in a Postgres store, which reports keep up to date.

A session is marked while `counted` in its row is less than the sum of two numbers: neither ever decreases, and each relevant
change increases one. A deleted session is marked by its row here, whose `session` the server sets to null. Neither needs the
cooperation of older versions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from ...folds.summary import SessionSummary
from ..database import SessionRow, text_key
from ..families import ROOT, FamilyChange, FamilyTable
from .search import by_index

# For a missing table, `to_regclass` and thus the whole condition is NULL, where the table's name would be an error.
_HAS_SUMS = """
    SELECT to_regclass('openagentic_sessions_uncounted') IS NOT NULL AND NOT pg_is_in_recovery()
       AND has_table_privilege(to_regclass('openagentic_sums'), 'SELECT, INSERT')
       AND has_table_privilege(to_regclass('openagentic_families'), 'SELECT, INSERT')
"""
_MARKED = "SELECT id, last_seq + revision FROM openagentic_sessions WHERE counted < last_seq + revision ORDER BY key"
_GONE = "SELECT id, -1 FROM openagentic_families WHERE session IS NULL"
_NOTE = "SELECT name, value FROM openagentic_sums WHERE part = 'note'"
_VALUES = "SELECT name, value FROM openagentic_sums WHERE part = %s AND name = ANY(%s)"
_ROOTS = "SELECT id, root FROM openagentic_families WHERE id = ANY(%s)"
_CHILDREN = "SELECT id FROM openagentic_sessions WHERE parent = ANY(%s) AND is_child"
_PASS = "UPDATE openagentic_sums SET value = %s WHERE part = 'note' AND name = 'turn' AND value = %s"
# A deletion also locks the session's row first, and then its row here. NO KEY, because inserting a blob or a message would
# wait for a full lock of the session's row.
_LOCK = "SELECT id, key FROM openagentic_sessions WHERE id = ANY(%s) ORDER BY key FOR NO KEY UPDATE"
_PUT_ROOTS = """
    INSERT INTO openagentic_families (id, session, root) SELECT * FROM unnest(%s::text[], %s::integer[], %s::text[])
    ON CONFLICT (id) DO UPDATE SET session = excluded.session, root = excluded.root
"""
_PUT_VALUES = """
    INSERT INTO openagentic_sums (part, name, value) SELECT %s, * FROM unnest(%s::text[], %s::text[])
    ON CONFLICT (part, name) DO UPDATE SET value = excluded.value
"""
_COUNTED = """
    UPDATE openagentic_sessions SET counted = mark FROM unnest(%s::text[], %s::bigint[]) AS given (id, mark)
    WHERE openagentic_sessions.id = given.id AND last_seq + revision = mark
"""


def has_sums(db: Any) -> bool:
    """Whether there are tables for the sums that this role may change."""
    return bool(db.execute(_HAS_SUMS).fetchone()[0])


class PostgresFamilies(FamilyTable):
    """The sums of a Postgres store; `page` returns the store's rows, `summary_in` the summary of one that still exists."""

    step_sessions = 200

    def __init__(
        self,
        call: Callable[[None, Callable[[Any], Any]], Any],
        page: Callable[..., Iterator[SessionRow]],
        summary_in: Callable[[SessionRow], SessionSummary | None],
    ) -> None:
        self._call = call
        self._page = page
        self._summary_in = summary_in
        self._turn = ""

    def _begin(self, version: str) -> None:
        def attempt(db: Any) -> None:
            if dict(db.execute(_NOTE).fetchall()).get("version") == version:
                return
            with db.transaction():
                # Blocks other writers, including one that begins at the same time, but no readers.
                db.execute("LOCK TABLE openagentic_sums IN SHARE ROW EXCLUSIVE MODE")
                if dict(db.execute(_NOTE).fetchall()).get("version") == version:
                    return
                db.execute("DELETE FROM openagentic_sums")
                db.execute("DELETE FROM openagentic_families")
                db.execute("UPDATE openagentic_sessions SET counted = -1 WHERE counted >= 0")
                db.execute(_PUT_VALUES, ("note", ["version", "turn"], [version, uuid4().hex]))

        self._call(None, attempt)

    def marked(self) -> Mapping[str, Any]:
        def ask(db: Any) -> dict[str, int]:
            gone = db.execute(_GONE).fetchall()
            return {**dict(gone), **dict(by_index(db, _MARKED, through_order=True))}

        marks: dict[str, int] = self._call(None, ask)
        return marks

    @contextmanager
    def changing(self) -> Iterator[bool]:
        note = dict(self._rows(_NOTE))
        self._turn = note.get("turn", "")
        yield self._is_ours(note.get("version"))

    def read(self, part: str, names: Collection[str]) -> dict[str, str]:
        if not names:
            return {}
        return dict(self._rows(_ROOTS, list(names)) if part == ROOT else self._rows(_VALUES, part, list(names)))

    def read_whole(self, parts: Sequence[str]) -> Mapping[str, Collection[str]] | None:
        values = defaultdict[str, list[str]](list)
        command = "SELECT part, name, value FROM openagentic_sums WHERE part = ANY(%s)"
        for part, name, value in self._rows(command, [*parts, "note"]):
            values["version" if (part, name) == ("note", "version") else part].append(value)
        return values if any(map(self._is_ours, values["version"])) else None

    def summaries(self, ids: Collection[str]) -> dict[str, SessionSummary | None]:
        keys = ("SELECT key FROM openagentic_sessions WHERE id = ANY(%s)", [list(ids)])
        rows = self._page(cwd=None, tenant=None, include_children=True, limit=None, keys=keys)
        return {**dict.fromkeys(ids), **{at.id: self._summary_in(at) for at in rows}}

    def children(self, ids: Collection[str]) -> set[str]:
        return {name for (name,) in self._rows(_CHILDREN, list(map(text_key, ids)))}

    def store(self, change: FamilyChange) -> bool:
        roots = change.parts.get(ROOT, {})
        living_roots = {name: root for name, root in roots.items() if root is not None}

        def attempt(db: Any) -> bool:
            with db.transaction():
                db.execute("SET LOCAL synchronous_commit = off")  # a crash may lose the newest entries of a cache
                keys = dict(db.execute(_LOCK, (sorted({*living_roots, *change.counted, *change.again}),)).fetchall())
                if not db.execute(_PASS, (uuid4().hex, self._turn)).rowcount:
                    return False
                db.execute("DELETE FROM openagentic_families WHERE id = ANY(%s)", ([*(roots.keys() - living_roots)],))
                names = list(living_roots)
                db.execute(_PUT_ROOTS, (names, [keys.get(name) for name in names], [*living_roots.values()]))
                for part, values in change.parts.items():
                    if part != ROOT:
                        kept_values = {name: value for name, value in values.items() if value is not None}
                        command = "DELETE FROM openagentic_sums WHERE part = %s AND name = ANY(%s)"
                        db.execute(command, (part, [*(values.keys() - kept_values)]))
                        db.execute(_PUT_VALUES, (part, [*kept_values], [*kept_values.values()]))
                db.execute(_COUNTED, (list(change.counted), list(change.counted.values())))
                db.execute("UPDATE openagentic_sessions SET counted = -1 WHERE id = ANY(%s)", (list(change.again),))
            return True

        return bool(self._call(None, attempt))

    def _rows(self, command: str, *values: Any) -> list[Any]:
        return list(self._call(None, lambda db: db.execute(command, values).fetchall()))
