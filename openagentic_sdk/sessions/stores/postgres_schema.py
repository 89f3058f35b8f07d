"""The tables of the Postgres store, version by version."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...errors import StorageError

if TYPE_CHECKING:
    from psycopg import Connection

# One entry per version of the schema: what turns a database of the version before into this one. `cwd` and `parent` are
# digests: what they stand for may be any text of any length, which no index takes. An id is compared byte by byte.
MIGRATIONS: Sequence[Sequence[str]] = (
    (
        "CREATE SEQUENCE openagentic_touches",
        """CREATE TABLE openagentic_sessions (
            key integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            id text COLLATE "C" NOT NULL UNIQUE,
            created_at double precision NOT NULL,
            metadata text NOT NULL,
            epoch bigint NOT NULL DEFAULT 0,
            last_seq bigint NOT NULL DEFAULT 0,
            updated double precision NOT NULL,
            touched bigint NOT NULL DEFAULT nextval('openagentic_touches'),
            cwd text COLLATE "C" NOT NULL,
            parent text COLLATE "C" NOT NULL,
            is_child boolean NOT NULL,
            summary text
        )""",
        "CREATE INDEX ON openagentic_sessions (is_child, touched)",
        "CREATE INDEX ON openagentic_sessions (touched)",
        "CREATE INDEX ON openagentic_sessions (cwd, touched)",
        "CREATE INDEX ON openagentic_sessions (parent) WHERE is_child",
        """CREATE TABLE openagentic_events (
            session integer NOT NULL REFERENCES openagentic_sessions (key) ON DELETE CASCADE,
            seq bigint NOT NULL,
            updated double precision NOT NULL,
            data text NOT NULL,
            PRIMARY KEY (session, seq)
        )""",
        """CREATE TABLE openagentic_blobs (
            session integer NOT NULL REFERENCES openagentic_sessions (key) ON DELETE CASCADE,
            sha256 text NOT NULL,
            data bytea NOT NULL,
            PRIMARY KEY (session, sha256)
        )""",
    ),
)
# Two numbers name an advisory lock; the first keeps the stores of several schemas of one database apart.
LOCK_SPACE = "hashtext('openagentic-sdk/' || current_schema())"


def migrate(db: Connection[tuple[Any, ...]]) -> None:
    """Bring the tables to the newest schema. Raises `StorageError` for those of a newer version of this package."""
    with db.transaction():
        db.execute(f"SELECT pg_advisory_xact_lock({LOCK_SPACE}, 0)")
        db.execute("CREATE TABLE IF NOT EXISTS openagentic_schema (version integer NOT NULL)")
        row = db.execute("SELECT version FROM openagentic_schema").fetchone()
        version = row[0] if row else 0
        if version > len(MIGRATIONS):
            raise StorageError(
                f"the tables have schema version {version}, this package knows up to {len(MIGRATIONS)}: "
                "upgrade openagentic-sdk, or choose another database"
            )
        for command in (command for step in MIGRATIONS[version:] for command in step):
            db.execute(command)
        if version < len(MIGRATIONS):
            db.execute("DELETE FROM openagentic_schema")
            db.execute("INSERT INTO openagentic_schema VALUES (%s)", (len(MIGRATIONS),))
