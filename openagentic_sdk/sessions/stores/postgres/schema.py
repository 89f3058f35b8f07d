"""The tables of the Postgres store, version by version."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ....errors import StorageError
from ..fleet_schema import FLEET_TABLES, RUN_COLUMNS
from ..tables import REQUESTS

# One entry per version of the schema: what turns a database of the version before into this one. `cwd`, `parent` and
# `tenant` are digests: what they stand for may be any text of any length, which no index takes. An id is compared byte by
# byte.
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
    # Who holds a session is a name in its row; one lease for each process, not one connection for each session.
    (
        """ALTER TABLE openagentic_sessions
            ADD COLUMN holder text COLLATE "C" NOT NULL DEFAULT '',
            ADD COLUMN revision bigint NOT NULL DEFAULT 0""",
        """CREATE TABLE openagentic_holders (
            name text COLLATE "C" PRIMARY KEY,
            until timestamptz NOT NULL
        ) WITH (fillfactor = 50)""",
        """CREATE TABLE openagentic_follows (
            session integer NOT NULL REFERENCES openagentic_sessions (key) ON DELETE CASCADE,
            channel text COLLATE "C" NOT NULL,
            until timestamptz NOT NULL,
            PRIMARY KEY (session, channel)
        )""",
    ),
    # The session's tenant, and the messages that wait for its run; each append moves `touched`, so few indexes hold it.
    (
        """ALTER TABLE openagentic_sessions ADD COLUMN tenant text COLLATE "C" NOT NULL DEFAULT ''""",
        "CREATE INDEX ON openagentic_sessions (touched, is_child)",
        "CREATE INDEX ON openagentic_sessions (tenant, touched) WHERE tenant <> ''",
        "DROP INDEX IF EXISTS openagentic_sessions_is_child_touched_idx",
        "DROP INDEX IF EXISTS openagentic_sessions_touched_idx",
        """CREATE TABLE openagentic_messages (
            number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            session integer NOT NULL REFERENCES openagentic_sessions (key) ON DELETE CASCADE,
            token uuid NOT NULL UNIQUE,
            data text NOT NULL,
            removed timestamptz
        )""",
        "CREATE INDEX ON openagentic_messages (session, number)",
        "CREATE INDEX ON openagentic_messages (removed) WHERE removed IS NOT NULL",
    ),
    # What a resume needs of what was summarised: a cache, of which every row may be deleted.
    (
        """CREATE TABLE openagentic_checkpoints (
            session integer PRIMARY KEY REFERENCES openagentic_sessions (key) ON DELETE CASCADE,
            data bytea NOT NULL
        )""",
    ),
    # Until when somebody follows a session stands in its row: an append sees it without looking elsewhere.
    ("ALTER TABLE openagentic_sessions ADD COLUMN followed timestamptz NOT NULL DEFAULT '-infinity'",),
    # The runs of a fleet. A heartbeat moves `lease_until` often, so no index holds it.
    (
        "CREATE TABLE openagentic_runs (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
        f"{RUN_COLUMNS}) WITH (fillfactor = 70)",
        *FLEET_TABLES,
    ),
    (REQUESTS.format(sessions="openagentic_sessions"), "CREATE INDEX ON openagentic_requests (session)"),
)
# The index that search asks; made where the extension is to be had.
SEARCH: Sequence[str] = (
    "CREATE EXTENSION IF NOT EXISTS pg_trgm WITH SCHEMA public",
    """CREATE TABLE IF NOT EXISTS openagentic_words (
        session integer NOT NULL REFERENCES openagentic_sessions (key) ON DELETE CASCADE,
        seq bigint NOT NULL,
        words text COLLATE "C" NOT NULL,
        PRIMARY KEY (session, seq)
    )""",
    "CREATE INDEX IF NOT EXISTS openagentic_words_trigrams ON openagentic_words USING gin (words public.gin_trgm_ops)",
    """CREATE TABLE IF NOT EXISTS openagentic_words_upto (
        session integer PRIMARY KEY REFERENCES openagentic_sessions (key) ON DELETE CASCADE,
        seq bigint NOT NULL
    )""",
)
# Two numbers name an advisory lock; the first keeps the stores of several schemas of one database apart.
LOCK_SPACE = "hashtext('openagentic-sdk/' || current_schema())"


def require_schema(db: Any) -> None:
    """See that the tables are those of this version; make them when they are not and the role may do so."""
    if _version(db) == len(MIGRATIONS):
        return
    may_create = db.execute(
        "SELECT NOT pg_is_in_recovery() AND coalesce(has_schema_privilege(current_schema(), 'CREATE'), false)"
    ).fetchone()[0]
    if not may_create:
        raise StorageError(
            f"the tables of this database have schema version {_version(db)}, this package needs {len(MIGRATIONS)}, and "
            "this role may not make them: run `openagentic-sdk store migrate URL` once with a role that may"
        )
    migrate(db)


def migrate(db: Any) -> None:
    """Bring the tables to the newest schema. Raises `StorageError` for those of a newer version of this package."""
    with db.transaction():
        db.execute(f"SELECT pg_advisory_xact_lock({LOCK_SPACE}, 0)")
        db.execute("CREATE TABLE IF NOT EXISTS openagentic_schema (version integer NOT NULL)")
        version = _version(db)
        for command in (command for step in MIGRATIONS[version:] for command in step):
            db.execute(command)
        if version < len(MIGRATIONS):
            db.execute("DELETE FROM openagentic_schema")
            db.execute("INSERT INTO openagentic_schema VALUES (%s)", (len(MIGRATIONS),))
        if db.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'pg_trgm'").fetchone():
            _make_search(db)


def _make_search(db: Any) -> None:
    from psycopg import errors

    # Without the rights for it, search reads the logs.
    with suppress(errors.InsufficientPrivilege, errors.UndefinedObject), db.transaction():
        for command in SEARCH:
            db.execute(command)


def _version(db: Any) -> int:
    if db.execute("SELECT to_regclass('openagentic_schema')").fetchone()[0] is None:
        return 0
    row = db.execute("SELECT version FROM openagentic_schema").fetchone()
    version = int(row[0]) if row else 0
    if version > len(MIGRATIONS):
        raise StorageError(
            f"the tables have schema version {version}, this package knows up to {len(MIGRATIONS)}: "
            "upgrade openagentic-sdk, or choose another database"
        )
    return version
