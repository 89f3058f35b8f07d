"""An index of a folder of sessions, in an SQLite file beside them: their order, the fields that lists filter by, and words.

It is a cache that may be deleted at any time, and no result relies on it alone. It checks the sessions in its results again
before a list shows them, and detects changes in three ways. Whoever creates or changes a session, or locks it to write to
it, creates a file with its name in `touched/`, after taking the lock and before the first event; the file is removed when
nobody holds the log. If the folder has changed, its names are compared: at once, or in a very large folder every few
seconds. Once a minute the times of all logs are compared, which detects changes by earlier versions, other tools and
people, who create no such file.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from ...errors import InvalidEventError, SessionError
from ...events import Event
from ...ground.clock import elapsed_s
from ...ground.disk import remove_tree
from ...ground.system import BINARY, NO_FOLLOW
from ...serialization import dumps_json
from ..folds.search import Progress, event_text, search_words
from ..folds.summary import SessionSummary
from ..log.folder import is_session_id, path_in
from ..log.lock import is_locked
from .families import Cells, FamilyFold, IndexFamilies, sum_families
from .sqlite.clock import boot
from .sqlite.forks import Guarded, connecting, driver, make_private
from .sqlite.schema import place_of
from .sqlite.search import CREATE_TOLD_TABLE, tell_of, trigram_query

if TYPE_CHECKING:
    import sqlite3

# With fewer sessions, reading the folder is as fast.
LEAST_SESSIONS = 1_000
# Up to this number, the names are compared whenever the folder has changed.
FEW_SESSIONS = 20_000
LOGS_EVERY_S = 60.0
# Comparing takes at most 1 / SHARE of the time of a process that only lists.
SHARE = 20
BUSY_S = 2.0
# How often a query is made, at most, because logs in its result have changed.
LOOKS = 3
# A transaction that indexes logs ends after the first log beyond this time.
STEP_S = 0.2
_VERSION = 1
_TABLES = (
    "CREATE TABLE rows (key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, tick INTEGER NOT NULL, size INTEGER NOT NULL, "
    "inode INTEGER NOT NULL, active INTEGER NOT NULL, undescribed INTEGER NOT NULL, unread INTEGER NOT NULL, "
    "seq INTEGER NOT NULL DEFAULT 0, cwd TEXT, tenant TEXT, parent TEXT)",
    "CREATE INDEX rows_tick ON rows (tick, id)",
    "CREATE INDEX rows_active ON rows (active) WHERE active",
    "CREATE INDEX rows_undescribed ON rows (undescribed) WHERE undescribed",
    "CREATE INDEX rows_unread ON rows (unread) WHERE unread",
    "CREATE INDEX rows_cwd ON rows (cwd, tick)",
    "CREATE INDEX rows_parent ON rows (parent) WHERE parent IS NOT NULL",
    "CREATE TABLE notes (name TEXT PRIMARY KEY, value)",
    CREATE_TOLD_TABLE,
    "CREATE VIRTUAL TABLE found USING fts5 (words, detail = 'none', tokenize = 'ascii')",
)
_PUT = (
    "INSERT INTO rows (id, tick, size, inode, active, undescribed, unread) VALUES (?, ?, ?, ?, ?, 1, 1) "
    "ON CONFLICT (id) DO UPDATE SET tick = excluded.tick, size = excluded.size, inode = excluded.inode, "
    "active = excluded.active, undescribed = 1, unread = 1"
)
_NEWEST = (
    "SELECT tick, group_concat(id, '/') FROM rows {where} tick <= ? AND size >= 0 "
    "GROUP BY tick ORDER BY tick DESC LIMIT ?"
)
_FIND = (
    "SELECT id, found.rowid & 4294967295 FROM found JOIN rows ON key = found.rowid >> 32 "
    "WHERE found MATCH ? AND tenant = coalesce(?, tenant) ORDER BY tick DESC, id DESC, found.rowid LIMIT ?"
)
# Statements that mark what has changed since `IndexFamilies` counted it.
_MARKING = (
    "DROP TRIGGER IF EXISTS rows_described",
    "DROP TRIGGER IF EXISTS rows_deleted",
    "CREATE TRIGGER rows_described AFTER UPDATE OF undescribed ON rows WHEN NOT new.undescribed BEGIN "
    "INSERT OR IGNORE INTO uncounted VALUES (new.id); END",
    "CREATE TRIGGER rows_deleted AFTER DELETE ON rows BEGIN INSERT OR IGNORE INTO uncounted VALUES (old.id); END",
    "INSERT INTO uncounted SELECT id FROM rows",
)
# The state of a session's log: its time of modification in nanoseconds, its size, and its inode.
FileLook = tuple[int, int, int]
GONE: FileLook = (0, -1, 0)


class FileIndex:
    """The index of the sessions in `sessions`, kept in the folder `place`."""

    def __init__(self, sessions: Path, place: Path, log_name: str) -> None:
        self._sessions = sessions
        self._place = place
        self._log_name = log_name
        self._path = path_in(place, "sessions.sqlite")
        self._touched = path_in(place, "touched")
        self._can_be_made = True

    # --- changes -----------------------------------------------------------------------------------------------------

    def touch(self, session_id: str) -> None:
        """Record that the session is about to change; without an index, do nothing."""
        try:
            os.close(os.open(f"{self._touched}/{session_id}", os.O_WRONLY | os.O_CREAT | BINARY | NO_FOLLOW, 0o600))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                self.remove()  # a change that cannot be recorded must not be missed

    def forget(self, session_id: str) -> None:
        """Remove the words of a session, or delete the index if that fails."""
        if not os.path.lexists(self._path):
            return
        try:
            with self._opened() as db, _change(db):
                self._drop(db, [row[0] for row in db.execute("SELECT key FROM rows WHERE id = ?", (session_id,))])
                self._families(db, SessionSummary).forget(session_id)
                self._put(db, {session_id: self._look(session_id)}, active=0)
        except (driver().Error, OSError):
            self.remove()

    def remove(self) -> None:
        """Delete the index."""
        for suffix in ("", "-wal", "-shm"):
            with suppress(OSError):
                os.unlink(f"{self._path}{suffix}")
        remove_tree(self._place)

    # --- queries of lists --------------------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        # Without an identifier of the boot, records lost in a power cut could not be detected.
        return bool(boot()) and os.path.exists(self._path)

    def begin(self) -> None:
        """Create the index, if that is possible here."""
        if boot() and self._can_be_made:
            self._can_be_made = self._using(lambda db: True) is not None

    def newest(
        self,
        most: int | None,
        count: int,
        *,
        cwd: str | None = None,
        query: str = "",
        describe: Callable[..., Any],
        progress: Progress | None = None,
    ) -> list[tuple[int, list[str]]] | None:
        """The latest `count` times of logs, none after `most`, each with its ids; None if the index is unusable.

        Times are in nanoseconds. With `cwd` or `query`, only ids that may match; `describe` returns a session's summary.
        """
        trigrams = trigram_query(query)
        conditions: list[str] = []
        values: list[Any] = []
        if cwd is not None:
            conditions.append("cwd = ?")
            values.append(dumps_json(cwd))
        if trigrams:
            conditions.append("key IN (SELECT rowid FROM told WHERE told MATCH ?)")
            values.append(trigrams)
        where = "WHERE " + "".join(f"{each} AND " for each in conditions)

        def ask(db: sqlite3.Connection) -> list[tuple[int, list[str]]]:
            if conditions:
                self._describe(db, describe, progress)
            command = _NEWEST.format(where=where)
            rows = db.execute(command, (*values, _LATEST if most is None else most, count)).fetchall()
            return [(tick, names.split("/")) for tick, names in rows]

        pages: list[tuple[int, list[str]]] | None = self._checked(
            ask, lambda rows: {name: tick for tick, names in rows for name in names}
        )
        return pages

    def beginning(self, start: str) -> list[str] | None:
        """At most three ids with this prefix; None if the index is unusable."""
        values = (start, start[:-1] + chr(ord(start[-1]) + 1))
        command = "SELECT id, tick FROM rows WHERE id >= ? AND id < ? AND size >= 0 LIMIT 3"
        rows = self._checked(lambda db: db.execute(command, values).fetchall(), dict)
        return None if rows is None else [row[0] for row in rows]

    def children(
        self, session_id: str, describe: Callable[..., Any], progress: Progress | None = None
    ) -> list[str] | None:
        """The ids of the sessions started by this session's Task calls, newest first; None if the index is unusable."""

        def ask(db: sqlite3.Connection) -> list[tuple[str, int]]:
            self._describe(db, describe, progress)
            command = "SELECT id, tick FROM rows WHERE parent = ? AND size >= 0 ORDER BY tick DESC, id DESC"
            return db.execute(command, (dumps_json(session_id),)).fetchall()

        rows = self._checked(ask, dict)
        return None if rows is None else [row[0] for row in rows]

    def search(self, words: Sequence[str], limit: int, tenant: str | None) -> list[tuple[str, int]] | None:
        """The id and `seq` of at most `limit` events that match every word, newest session first; None if the index is
        unusable.

        Only words that `read_all` has added are found.
        """
        values = (" ".join(f'"{word}"*' for word in words), None if tenant is None else dumps_json(tenant or None))
        matches: list[tuple[str, int]] | None = self._using(
            lambda db: db.execute(_FIND, (*values, max(0, limit))).fetchall()
        )
        return matches

    def sums(
        self, fold: FamilyFold, kinds: Sequence[str], describe: Callable[..., Any], progress: Progress | None = None
    ) -> Cells | None:
        """The sums of the cells of these kinds; None if the index is unusable."""

        def work(db: sqlite3.Connection) -> Cells | None:
            self._describe(db, describe, progress)
            return sum_families(self._families(db, describe), fold, kinds, progress)

        cells: Cells | None = self._using(work)
        return cells

    def _families(self, db: sqlite3.Connection, describe: Callable[..., Any]) -> IndexFamilies:
        def ids_where(column: str, value: str) -> list[str]:
            command = f"SELECT id FROM rows WHERE {column} = ? AND size >= 0"
            return [row[0] for row in db.execute(command, (value,))]

        return IndexFamilies(
            db,
            marking=_MARKING,
            mark_of=lambda name: name if ids_where("id", name) else None,
            id_of=str,
            children_of=lambda name: ids_where("parent", dumps_json(name)),
            describe=describe,
        )

    def read_all(
        self, describe: Callable[..., Any], read: Callable[..., Iterator[Event]], progress: Progress | None
    ) -> bool:
        """Add the words of all events that are not indexed yet; return False if the index is unusable."""
        command = "SELECT key, id, seq, undescribed FROM rows WHERE unread AND size >= 0 LIMIT 64"

        def work(db: sqlite3.Connection) -> bool:
            (whole,) = db.execute("SELECT count(*) FROM rows WHERE unread AND size >= 0").fetchone()
            done = 0
            while batch := db.execute(command).fetchall():
                began = monotonic()
                with _change(db):  # short transactions: others wait to record their changes
                    for key, session_id, seq, is_undescribed in batch:
                        if is_undescribed:
                            _describe_row(db, key, session_id, describe)
                        self._read(db, (key, session_id, seq), read)
                        done += 1
                        if monotonic() - began > STEP_S:
                            break
                if progress is not None and whole:
                    progress(min(done, whole), whole)
            self._describe(db, describe)
            return True

        return self._using(work) is not None

    # --- updating it -------------------------------------------------------------------------------------------------

    def _using(self, work: Callable[[sqlite3.Connection], Any]) -> Any:
        """Return the result of `work` on an index that is up to date; None if the index is unusable."""
        for _ in range(2):
            try:
                with self._opened(make=True) as db:
                    return work(db)
            except driver().OperationalError:
                return None  # SQLite without FTS5, busy for too long, or the folder is not writable
            except driver().DatabaseError:
                self.remove()  # recreate a damaged cache
            except OSError:
                return None
        return None

    def _checked(self, ask: Callable[[Any], Any], ticks_of: Callable[[Any], dict[str, int]]) -> Any:
        """Return the result of `ask`; repeat it, up to `LOOKS` times, if the log of a session in the result has changed."""

        def work(db: sqlite3.Connection) -> Any:
            for _ in range(LOOKS):
                result = ask(db)
                looks = {name: (tick, self._look(name)) for name, tick in ticks_of(result).items()}
                changed = {name: look for name, (tick, look) in looks.items() if look[0] != tick}
                if not changed:
                    break
                with _change(db):
                    self._put(db, changed, active=0)
            return result

        return self._using(work)

    @contextmanager
    def _opened(self, *, make: bool = False) -> Iterator[sqlite3.Connection]:
        if make:
            self._place.mkdir(mode=0o700, exist_ok=True)
        with connecting():
            make_private(self._path)
            connect = partial(driver().connect, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
            index = Guarded(self._path, connect(self._path))
        try:
            with index.lock:
                db = index.connection
                db.execute("PRAGMA journal_mode = WAL")
                # A power cut may undo changes: after each boot, all logs are compared.
                db.execute("PRAGMA synchronous = OFF")
                # Erasing a session must leave none of its words in free pages.
                db.execute("PRAGMA secure_delete = ON")
                if db.execute("PRAGMA user_version").fetchone()[0] != _VERSION:
                    self._make(db)
                self._refresh(db)
                yield db
        finally:
            index.close()

    def _make(self, db: sqlite3.Connection) -> None:
        with _change(db):
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version == 0:
                for command in _TABLES:
                    db.execute(command)
                for table in ("told", "found"):
                    with suppress(driver().OperationalError):  # SQLite before 3.42 keeps deleted words until it merges
                        db.execute(f"INSERT INTO {table} ({table}, rank) VALUES ('secure-delete', 1)")
                db.execute(f"PRAGMA user_version = {_VERSION}")
            elif version != _VERSION:
                # Not a `DatabaseError`, for which the index of the other version would be deleted.
                raise driver().OperationalError(f"the index has version {version}, not {_VERSION}")

    def _refresh(self, db: sqlite3.Connection) -> None:
        notes = dict(db.execute("SELECT name, value FROM notes").fetchall())
        now = elapsed_s()
        try:
            touched = list(filter(is_session_id, os.listdir(self._touched)))
        except FileNotFoundError:
            # Create it before reading the logs: any later change of one leaves its name here.
            self._touched.mkdir(mode=0o700, exist_ok=True)
            touched, notes = [], {}
        is_of_now = notes.get("boot") == boot() and notes.get("logs", now + 1) <= now
        if not is_of_now or now - notes["logs"] > max(LOGS_EVERY_S, SHARE * notes["took"]):
            self._compare(db, list_logs(self._sessions, self._log_name), boot=boot(), logs=now, names=now)
        elif notes["few"] or now - notes["names"] > SHARE * notes["took"]:
            moved = os.stat(self._sessions).st_mtime_ns
            if moved != notes.get("folder"):
                listed_ids = {row[0] for row in db.execute("SELECT id FROM rows WHERE size >= 0")}
                names = set(filter(_may_be_id, os.listdir(self._sessions)))
                with _change(db):
                    self._put(db, {name: self._look(name) for name in names ^ listed_ids}, active=0)
                    self._note(db, names=now, folder=moved)
        # In two steps, so that a touched session stays marked until its log was read, even if the process dies in between.
        if touched:
            with _change(db):
                self._put(db, {name: self._look(name) for name in touched}, active=1)
                db.executemany("UPDATE rows SET undescribed = 1 WHERE id = ?", [(name,) for name in touched])
        if touched or db.execute("SELECT 1 FROM rows WHERE active LIMIT 1").fetchone():
            with _change(db):
                for name in touched:
                    with suppress(OSError):
                        os.unlink(self._touched / name)
                for (name,) in db.execute("SELECT id FROM rows WHERE active").fetchall():
                    is_held = self._is_held(name)
                    self._put(db, {name: self._look(name)}, active=int(is_held))

    def _compare(self, db: sqlite3.Connection, looks: dict[str, FileLook], **notes: Any) -> None:
        """Update the rows of all logs that have changed."""
        with _change(db):
            old_looks = {row[0]: row[1:] for row in db.execute("SELECT id, tick, size, inode FROM rows")}
            self._put(db, {name: look for name, look in looks.items() if old_looks.get(name) != look}, active=0)
            self._put(db, dict.fromkeys(old_looks.keys() - looks.keys(), GONE), active=0)
            self._note(db, took=elapsed_s() - notes["logs"], few=len(looks) <= FEW_SESSIONS, **notes)

    def _put(self, db: sqlite3.Connection, looks: dict[str, FileLook], *, active: int) -> None:
        for name, look in looks.items():
            row = db.execute("SELECT key, tick, size, inode, active FROM rows WHERE id = ?", (name,)).fetchone()
            if look == GONE and not active:
                if row is not None:
                    self._drop(db, row[:1])
                    db.execute("DELETE FROM rows WHERE key = ?", row[:1])
                continue
            if row is not None and row[1:4] == look:
                if row[4] != active:
                    db.execute("UPDATE rows SET active = ?, undescribed = 1 WHERE key = ?", (active, row[0]))
                continue
            if row is not None and (look[2] != row[3] or look[1] < row[2]):
                self._drop(db, row[:1])  # another log, or a shortened one: its words are no longer valid
            db.execute(_PUT, (name, *look, active))

    def _drop(self, db: sqlite3.Connection, keys: Iterable[int]) -> None:
        for key in keys:
            db.execute("DELETE FROM found WHERE rowid >= ? AND rowid < ?", (place_of(key, 0), place_of(key + 1, 0)))
            db.execute("DELETE FROM told WHERE rowid = ?", (key,))
            db.execute("UPDATE rows SET seq = 0, unread = 1, undescribed = 1 WHERE key = ?", (key,))

    def _note(self, db: sqlite3.Connection, **notes: Any) -> None:
        db.executemany("INSERT OR REPLACE INTO notes (name, value) VALUES (?, ?)", notes.items())

    def _look(self, session_id: str) -> FileLook:
        return look_at(f"{self._sessions}/{session_id}/{self._log_name}")

    def _is_held(self, session_id: str) -> bool:
        try:
            fd = os.open(f"{self._sessions}/{session_id}/{self._log_name}", os.O_RDONLY | BINARY | NO_FOLLOW)
        except OSError:
            return False
        try:
            return is_locked(fd)
        except OSError:
            return True
        finally:
            os.close(fd)

    def _describe(
        self, db: sqlite3.Connection, describe: Callable[[str], SessionSummary], progress: Progress | None = None
    ) -> None:
        """Add the fields and words of the summaries of sessions that have changed."""
        command, done = "SELECT key, id FROM rows WHERE undescribed AND size >= 0 LIMIT 256", 0
        (whole,) = db.execute("SELECT count(*) FROM rows WHERE undescribed AND size >= 0").fetchone()
        while batch := db.execute(command).fetchall():
            with _change(db):
                for key, session_id in batch:
                    _describe_row(db, key, session_id, describe)
            done += len(batch)
            if progress is not None:
                progress(min(done, whole), whole)

    def _read(
        self, db: sqlite3.Connection, row: tuple[int, str, int], read_events: Callable[..., Iterator[Event]]
    ) -> None:
        """Add the words of the events after the last indexed one; `row` is a row's key, id and `seq`."""
        key, session_id, seq = row
        # A damaged log hides only its own events; another command checks logs.
        with suppress(SessionError, InvalidEventError):
            for event in read_events(session_id, after_seq=seq):
                seq = event.seq or seq + 1
                if words := " ".join(search_words(event_text(event))):
                    command = "INSERT OR REPLACE INTO found (rowid, words) VALUES (?, ?)"
                    db.execute(command, (place_of(key, seq), words))
        db.execute("UPDATE rows SET seq = ?, unread = 0 WHERE key = ?", (seq, key))


def _describe_row(db: sqlite3.Connection, key: int, session_id: str, describe: Callable[[str], SessionSummary]) -> None:
    try:
        row = describe(session_id)
    except (SessionError, InvalidEventError):
        row = SessionSummary(id=session_id)
    parent = dumps_json(row.parent) if row.is_child else None
    values = (dumps_json(row.cwd), dumps_json(row.tenant), parent, key)
    db.execute("UPDATE rows SET undescribed = 0, cwd = ?, tenant = ?, parent = ? WHERE key = ?", values)
    tell_of(db, key, row)


_LATEST = (1 << 63) - 1


def list_logs(sessions: Path, log_name: str) -> dict[str, FileLook]:
    """The state of the log of each session, by id; a session without a log is omitted. Raises `OSError`."""
    folder = str(sessions)
    try:
        with os.scandir(folder) as entries:
            # Unchecked, because a page shows few of them; paths are formatted, because `Path` would cost more than `stat`.
            names = [entry.name for entry in entries if _may_be_id(entry.name) and entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return {}
    looks = {name: look_at(f"{folder}/{name}/{log_name}") for name in names}
    return {name: look for name, look in looks.items() if look != GONE}


def _may_be_id(name: str) -> bool:
    """Whether a name may be an id: a cheap check, since ids are checked completely before a session is shown."""
    return name.isascii() and name[0] != "."


def look_at(path: str) -> FileLook:
    """The state of a log; `GONE` if it does not exist."""
    try:
        info = os.stat(path)
    except (OSError, ValueError):
        return GONE
    return info.st_mtime_ns, info.st_size, info.st_ino


@contextmanager
def _change(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:  # also on Ctrl-C: end the transaction
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
