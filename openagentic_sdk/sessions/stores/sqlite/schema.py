"""The tables of the SQLite store, version by version, and the position of an event in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....errors import StorageError
from ..statements import MAKE_OLDEST, OLDEST, READ_OLDEST, read_migrations

if TYPE_CHECKING:
    import sqlite3

# One entry per version of the schema: the statements that migrate a database from the previous version.
MIGRATIONS = read_migrations(__spec__, id="INTEGER PRIMARY KEY AUTOINCREMENT", storage="")
# Earlier versions kept the full text index in the database; now it is in a file beside it.
_OLD_INDEX = ("found_text", "found_upto", "found_words", "words_upto")
# The position of an event in its table and in the full text index: the session's key and seq in one number.
SEQ_BITS = 32
# One descent of the index, however many events the session has.
LAST_EVENT = (
    "(SELECT {column} FROM events WHERE place > key << 32 AND place < (key + 1) << 32 ORDER BY place DESC LIMIT 1)"
)
LAST_SEQ = LAST_EVENT.format(column="place & 4294967295")


def place_of(key: int, seq: int) -> int:
    """The position of a session's event. No log has enough events to reach the next session's positions."""
    return (key << SEQ_BITS) + seq


def migrate(db: sqlite3.Connection) -> None:
    """Migrate the database to the newest schema. Raises `StorageError` if a newer version of this package wrote it."""
    if is_usable(db):
        return
    # A transaction that reads before it writes fails at once (SQLITE_BUSY) if another one wrote in between; this one waits.
    db.execute("BEGIN IMMEDIATE")
    with db:
        if is_usable(db):
            return
        (version,) = db.execute("PRAGMA user_version").fetchone()
        for step in MIGRATIONS[version:]:
            for command in step:
                db.execute(command)
        if db.execute("SELECT 1 FROM pragma_module_list WHERE name = 'fts5'").fetchone():
            for name in _OLD_INDEX:
                db.execute(f"DROP TABLE IF EXISTS {name}")
        db.execute(MAKE_OLDEST)
        db.execute("DELETE FROM openagentic_oldest")
        db.execute("INSERT INTO openagentic_oldest VALUES (?, ?)", (len(MIGRATIONS), OLDEST))
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


def is_usable(db: sqlite3.Connection) -> bool:
    """Whether the tables have this version, or a newer compatible one; False for older ones.

    Raises `StorageError` for newer ones that this version must not use.
    """
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version <= len(MIGRATIONS):
        return bool(version == len(MIGRATIONS))
    is_said = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'openagentic_oldest'").fetchone()
    row = is_said and db.execute(READ_OLDEST).fetchone()
    if row and row[0] == version and row[1] <= len(MIGRATIONS):
        return True
    raise StorageError(
        f"the database has schema version {version}, and this package supports up to {len(MIGRATIONS)}: upgrade"
        " openagentic-sdk, or choose another file"
    )
