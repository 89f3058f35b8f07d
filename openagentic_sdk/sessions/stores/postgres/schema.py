"""The tables of the Postgres store, version by version."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from ....errors import StorageError
from ..statements import MAKE_OLDEST, OLDEST, READ_OLDEST, read_migrations, read_statements

# One entry per version of the schema: the statements that migrate a database from the previous version.
MIGRATIONS = read_migrations(
    __spec__, id="bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY", storage=" WITH (fillfactor = 70)"
)
# Two numbers name an advisory lock; the first keeps the stores of several schemas of one database apart. The second is 0
# for a migration, 1 for a new message, and 2 for a claim of a run while there are limits.
LOCK_SPACE = "hashtext('openagentic-sdk/' || current_schema())"

# Whether the indexes that an older version does not create exist; that of search requires that the extension is available.
_HAS_INDEXES = (
    "SELECT to_regclass('openagentic_sessions_uncounted') IS NOT NULL "
    "AND (to_regclass('openagentic_sessions_behind') IS NOT NULL "
    "OR NOT EXISTS (SELECT 1 FROM pg_available_extensions WHERE name = 'pg_trgm'))"
)


def require_schema(db: Any) -> None:
    """Check that the tables have this version, or a newer compatible one; migrate older ones if the role may.

    Raises `StorageError` if they remain unusable.
    """
    is_current = usable_version(db) >= len(MIGRATIONS)
    if is_current and db.execute(_HAS_INDEXES).fetchone()[0]:
        return
    may_create = db.execute(
        "SELECT NOT pg_is_in_recovery() AND coalesce(has_schema_privilege(current_schema(), 'CREATE'), false)"
    ).fetchone()[0]
    if is_current:
        if may_create:
            migrate(db)
        return
    schema, path = db.execute("SELECT current_schema(), current_setting('search_path')").fetchone()
    if schema is None:
        raise StorageError(
            f"no schema of search_path ({path}) exists in this database: create it, or name another in the URL's options"
        )
    if not may_create:
        raise StorageError(
            f"this database has schema version {usable_version(db)} (0: no tables yet), and this package needs "
            f"{len(MIGRATIONS)}; this role may not create tables, or this server is a standby: run "
            "`openagentic-sdk store migrate URL` once on the primary with a role that may create them"
        )
    migrate(db)


def migrate(db: Any) -> None:
    """Migrate the tables to the newest schema. Raises `StorageError` for a schema of a newer package version."""
    with db.transaction():
        # Of processes that start together, one migrates; the others find its version when they get the lock.
        db.execute(f"SELECT pg_advisory_xact_lock({LOCK_SPACE}, 0)")
        db.execute("CREATE TABLE IF NOT EXISTS openagentic_schema (version integer NOT NULL)")
        version = usable_version(db)
        for command in (command for step in MIGRATIONS[version:] for command in step):
            db.execute(command)
        if version < len(MIGRATIONS):
            db.execute("DELETE FROM openagentic_schema")
            db.execute("INSERT INTO openagentic_schema VALUES (%s)", (len(MIGRATIONS),))
            db.execute(MAKE_OLDEST)
            db.execute("DELETE FROM openagentic_oldest")
            db.execute("INSERT INTO openagentic_oldest VALUES (%s, %s)", (len(MIGRATIONS), OLDEST))
        _make_index(db, "sums.sql")
        if db.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'pg_trgm'").fetchone():
            is_new = db.execute("SELECT to_regclass('openagentic_words_upto') IS NULL").fetchone()[0]
            # New tables beside an old column, after somebody dropped them: `searched` still describes the lost words.
            if _make_index(db, "search.sql") and is_new:
                db.execute("UPDATE openagentic_sessions SET searched = -1 WHERE searched >= 0")


def _make_index(db: Any, name: str) -> bool:
    """Create the tables and indexes in this SQL file; return False if the role may not create them.

    Without them, searches read the logs, and reports the rows.
    """
    from psycopg import errors

    with suppress(errors.InsufficientPrivilege, errors.UndefinedObject), db.transaction():
        for command in read_statements(__spec__, name):
            db.execute(command)
        return True
    return False


def usable_version(db: Any) -> int:
    """The version of the tables, 0 without tables. Raises `StorageError` for one that this version must not use."""
    if db.execute("SELECT to_regclass('openagentic_schema')").fetchone()[0] is None:
        return 0
    row = db.execute("SELECT version FROM openagentic_schema").fetchone()
    version = int(row[0]) if row else 0
    if version > len(MIGRATIONS) and not _may_go_on(db, version):
        raise StorageError(
            f"the tables have schema version {version}, and this package supports up to {len(MIGRATIONS)}: upgrade"
            " openagentic-sdk, or choose another database"
        )
    return version


def _may_go_on(db: Any, version: int) -> bool:
    """Whether the newer version that created the tables permits this version to use them."""
    if db.execute("SELECT to_regclass('openagentic_oldest')").fetchone()[0] is None:
        return False
    row = db.execute(READ_OLDEST).fetchone()
    return row is not None and row[0] == version and row[1] <= len(MIGRATIONS)
