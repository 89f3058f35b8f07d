"""A psycopg driver with a time limit on every wait. Imported only when a Postgres store is created."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

import psycopg as psycopg
from psycopg import conninfo
from psycopg.pq import TransactionStatus

IDLE = TransactionStatus.IDLE

# A vanished host is detected after 10 + 3 * 5 seconds instead of the two hours that are the systems' default.
KEEPALIVE = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 20_000}

# The host of a process that is stopped or hangs still answers keepalives: only the server can end its connections, and with
# them its locks. A transaction may take longer than the 30 s for which a copy waits for the store that it reads.
STOPPED_MS = {"idle_session_timeout": 20_000, "idle_in_transaction_session_timeout": 45_000}
# A limit set by the role, the database or the URL is kept; servers before version 14 lack the first one.
_LIMIT = (
    "SELECT CASE current_setting(name, true) WHEN '0' THEN set_config(name, ms, false) END "
    "FROM unnest(%s::text[], %s::text[]) AS limits (name, ms)"
)


class WaitedTooLong(psycopg.OperationalError):
    """Raised if the server does not answer in time. The connection is closed; its last statement may have taken effect."""


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that waits for the server until `deadline`, a time of `time.monotonic`; None means without a limit."""

    deadline: float | None = None

    def wait(self, gen: Any, *how: Any, **kwargs: Any) -> Any:
        try:
            return super().wait(_until(self.deadline, gen), *how, **kwargs)
        except WaitedTooLong:
            # A late answer must not be mistaken for that of the next query.
            self.pgconn.finish()
            raise


def connect(url: str, timeout_s: float) -> BoundedConnection:
    """Open a connection in autocommit mode. Raises psycopg's errors.

    Unless there is a pooler, the connection prepares frequent statements, and the server closes it if this process no longer
    uses it. Behind a pooler, the next statement may reach another backend, which lacks what was prepared, and a setting
    would affect other clients.
    """
    settings = conninfo.conninfo_to_dict(url)
    limits = {name: value for name, value in KEEPALIVE.items() if name not in settings}
    # libpq treats a timeout below two seconds as two.
    limits["connect_timeout"] = max(2, min(int(timeout_s), int(str(settings.get("connect_timeout") or 10))))
    db = BoundedConnection.connect(url, autocommit=True, prepare_threshold=None, **limits)  # type: ignore[arg-type]
    try:
        db.deadline = time.monotonic() + limits["connect_timeout"]
        row = db.execute("SELECT pg_backend_pid()").fetchone()
        # A pooler announces a process number of its own on connection.
        if row and row[0] == db.info.backend_pid:
            db.execute(_LIMIT, (list(STOPPED_MS), list(map(str, STOPPED_MS.values()))))
            db.prepare_threshold = 2
    except BaseException:  # whatever interrupts the set-up, an open connection would leak on the server
        db.close()
        raise
    return db


def _until(deadline: float | None, work: Any) -> Generator[Any, Any, Any]:
    """Wrap the generator, which psycopg resumes every 0.1 s without data, to fail after the deadline."""
    try:
        condition = next(work)
        while True:
            ready = yield condition
            if not ready and deadline is not None and time.monotonic() > deadline:
                work.close()
                raise WaitedTooLong("the server did not respond in time")
            condition = work.send(ready)
    except StopIteration as end:
        return end.value
