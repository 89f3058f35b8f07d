"""The tables of the SQLite store, version by version, and where an event stands in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....errors import StorageError
from ..statements import MAKE_OLDEST, OLDEST, READ_OLDEST, read_migrations

if TYPE_CHECKING:
    import sqlite3

# One entry per version of the schema: what turns a database of the version before into this one.
MIGRATIONS = read_migrations(__spec__, id="INTEGER PRIMARY KEY AUTOINCREMENT", storage="")
# The full text index of before stood in the database itself; now it has a file beside it.
_OLD_INDEX = ("found_text", "found_upto", "found_words", "words_upto")
# The place of an event in its table and in the full text index: session's key and seq in one number.
SEQ_BITS = 32
LAST_EVENT = (
    "(SELECT {column} FROM events WHERE place > key << 32 AND place < (key + 1) << 32 ORDER BY place DESC LIMIT 1)"
)
LAST_SEQ = LAST_EVENT.format(column="place & 4294967295")


def place_of(key: int, seq: int) -> int:
    """Where an event of a session stands. No log has as many events as would reach into the next session's place."""
    return (key << SEQ_BITS) + seq


def migrate(db: sqlite3.Connection) -> None:
    """Bring the database to the newest schema. Raises `StorageError` for one that a newer version of this package wrote."""
    if is_usable(db):
        return
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
    """Whether the tables are those of this version, or newer ones that it may go on with; False for older ones.

    Raises `StorageError` for newer ones that it may not use.
    """
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version <= len(MIGRATIONS):
        return bool(version == len(MIGRATIONS))
    is_said = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'openagentic_oldest'").fetchone()
    row = is_said and db.execute(READ_OLDEST).fetchone()
    if row and row[0] == version and row[1] <= len(MIGRATIONS):
        return True
    raise StorageError(
        f"the database has schema version {version}, this package knows up to {len(MIGRATIONS)}: "
        "upgrade openagentic-sdk, or choose another file"
    )
