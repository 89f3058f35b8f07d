"""The tables of the SQLite store, version by version, and where an event stands in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....errors import StorageError
from ..fleet_schema import FLEET_TABLES, RUN_COLUMNS
from ..tables import REQUESTS

if TYPE_CHECKING:
    import sqlite3

# One entry per version of the schema: what turns a database of the version before into this one. What may hold any text
# (`cwd`, `parent`, `tenant`) is kept as JSON, in ASCII.
MIGRATIONS: Sequence[Sequence[str]] = (
    (
        """CREATE TABLE sessions (
            key INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            created_at REAL NOT NULL,
            metadata TEXT NOT NULL,
            epoch INTEGER NOT NULL DEFAULT 0,
            held INTEGER NOT NULL DEFAULT 0,
            touched INTEGER NOT NULL,
            cwd TEXT NOT NULL DEFAULT 'null',
            parent TEXT NOT NULL DEFAULT 'null',
            is_child INTEGER NOT NULL DEFAULT 0,
            summary TEXT
        )""",
        "CREATE INDEX sessions_touched ON sessions (is_child, touched)",
        "CREATE INDEX sessions_cwd ON sessions (cwd, is_child, touched)",
        "CREATE INDEX sessions_parent ON sessions (parent) WHERE parent != 'null'",
        "CREATE INDEX sessions_newest ON sessions (touched)",
        """CREATE TABLE events (
            session INTEGER NOT NULL REFERENCES sessions (key) ON DELETE CASCADE,
            seq INTEGER NOT NULL,
            updated REAL NOT NULL,
            data TEXT NOT NULL,
            PRIMARY KEY (session, seq)
        )""",
        """CREATE TABLE blobs (
            session INTEGER NOT NULL REFERENCES sessions (key) ON DELETE CASCADE,
            sha256 TEXT NOT NULL,
            data BLOB NOT NULL,
            PRIMARY KEY (session, sha256)
        )""",
    ),
    # One number instead of (session, seq): an append writes one page where a key of two columns makes it two.
    (
        "CREATE TABLE placed_events (place INTEGER PRIMARY KEY, updated REAL NOT NULL, data TEXT NOT NULL)",
        "INSERT INTO placed_events SELECT (session << 32) + seq, updated, data FROM events",
        "DROP TABLE events",
        "ALTER TABLE placed_events RENAME TO events",
        """CREATE TRIGGER sessions_events AFTER DELETE ON sessions BEGIN
            DELETE FROM events WHERE place > old.key << 32 AND place < (old.key + 1) << 32;
        END""",
    ),
    # No event or blob without its session, also on connections that do not ask SQLite for foreign keys.
    (
        """CREATE TRIGGER events_sessions BEFORE INSERT ON events BEGIN
            SELECT RAISE (ABORT, 'FOREIGN KEY constraint failed: there is no such session')
            WHERE NOT EXISTS (SELECT 1 FROM sessions WHERE key = new.place >> 32);
        END""",
        """CREATE TRIGGER blobs_sessions BEFORE INSERT ON blobs BEGIN
            SELECT RAISE (ABORT, 'FOREIGN KEY constraint failed: there is no such session')
            WHERE NOT EXISTS (SELECT 1 FROM sessions WHERE key = new.session);
        END""",
        "CREATE TRIGGER sessions_blobs AFTER DELETE ON sessions BEGIN DELETE FROM blobs WHERE session = old.key; END",
    ),
    # The session's tenant, as JSON, and the messages that wait for its run.
    (
        "ALTER TABLE sessions ADD COLUMN tenant TEXT NOT NULL DEFAULT 'null'",
        "CREATE INDEX sessions_tenant ON sessions (tenant, is_child, touched) WHERE tenant != 'null'",
        """CREATE TABLE messages (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            session INTEGER NOT NULL REFERENCES sessions (key) ON DELETE CASCADE,
            data TEXT NOT NULL
        )""",
        "CREATE INDEX messages_session ON messages (session, number)",
        """CREATE TRIGGER messages_sessions BEFORE INSERT ON messages BEGIN
            SELECT RAISE (ABORT, 'FOREIGN KEY constraint failed: there is no such session')
            WHERE NOT EXISTS (SELECT 1 FROM sessions WHERE key = new.session);
        END""",
        "CREATE TRIGGER sessions_messages AFTER DELETE ON sessions BEGIN DELETE FROM messages WHERE session = old.key; END",
    ),
    # What a resume needs of what was summarised: a cache, of which every row may be deleted.
    (
        "CREATE TABLE checkpoints (session INTEGER PRIMARY KEY, data BLOB NOT NULL)",
        """CREATE TRIGGER sessions_checkpoints AFTER DELETE ON sessions BEGIN
            DELETE FROM checkpoints WHERE session = old.key;
        END""",
    ),
    # The runs of a fleet, in the tables that Postgres has.
    (f"CREATE TABLE openagentic_runs (id INTEGER PRIMARY KEY AUTOINCREMENT, {RUN_COLUMNS})", *FLEET_TABLES),
    (
        REQUESTS.format(sessions="sessions"),
        "CREATE INDEX openagentic_requests_session ON openagentic_requests (session)",
        """CREATE TRIGGER sessions_requests AFTER DELETE ON sessions BEGIN
            DELETE FROM openagentic_requests WHERE session = old.key;
        END""",
    ),
)
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
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version == len(MIGRATIONS):
        return
    db.execute("BEGIN IMMEDIATE")
    with db:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version > len(MIGRATIONS):
            raise StorageError(
                f"the database has schema version {version}, this package knows up to {len(MIGRATIONS)}: "
                "upgrade openagentic-sdk, or choose another file"
            )
        for step in MIGRATIONS[version:]:
            for command in step:
                db.execute(command)
        if db.execute("SELECT 1 FROM pragma_module_list WHERE name = 'fts5'").fetchone():
            for name in _OLD_INDEX:
                db.execute(f"DROP TABLE IF EXISTS {name}")
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
