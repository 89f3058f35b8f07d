"""This process's connections to a Postgres server: few, shared by its stores, and none held while a run waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from ....errors import OptionsError, StorageError
from ....ground.patterns import regex
from ....ground.text import on_one_line
from ..holders import LEASE_S
from ..locate import without_user
from ..per_process import SharedByName
from ..refusals import with_advice
from ..server import RETRIES, StoreServer
from .schema import MIGRATIONS, migrate, require_schema, usable_version

T = TypeVar("T")
MAX_CONNECTIONS = 16
# A connection that is idle for this long is closed, or used if it is a listener's: well before the server would end it.
IDLE_S = 10.0
# The errors of a reachable server that will never accept this client.
_REFUSED = regex(
    "FATAL: (?!.*(starting up|shutting down|not yet accepting|recovery|too many))|connection is bad: invalid "
)
# A process sends news of one session at most this often.
COALESCE_S = 0.02


def driver() -> Any:
    """The module that uses psycopg. Raises `OptionsError` if psycopg is not installed."""
    try:
        from . import driver as psycopg_driver
    except ImportError:
        raise OptionsError("sessions in Postgres need the driver psycopg: pip install 'psycopg[binary]>=3.2'") from None
    return psycopg_driver


def check_url(url: str) -> str:
    """Return the URL, or the string of `name=value` settings, for the driver. Raises `OptionsError` for an invalid one."""
    try:
        scheme, colon, rest = url.partition(":")
        if colon and scheme.lower() in ("postgres", "postgresql"):
            url = f"{scheme.lower()}:{rest}"
            if not rest.startswith("//"):
                raise ValueError("// is missing")
        settings = driver().conninfo.conninfo_to_dict(url)
        for name in ("connect_timeout", "port"):
            for text in filter(None, str(settings.get(name) or "").split(",")):
                if not text.strip("-").isdigit() or not (name != "port" or 0 < int(text) < 65536):
                    raise ValueError(f"{name} {text!r} is invalid")
    except (ValueError, driver().psycopg.Error) as error:
        # The driver's message about invalid percent-encoding quotes the text, which may be a password.
        reason = "write % in it as %25" if "percent-encoded" in str(error) else str(error).partition(" in URI")[0]
        raise OptionsError(
            f"{without_user(url)!r} is not an address of a Postgres server: write "
            f"postgresql://[user[:password]@]host[:port]/database[?setting=value] ({on_one_line(reason.strip(), 200)})"
        ) from None
    return url


class PostgresServer(StoreServer):
    """A Postgres server as used by one process."""

    kind = "Postgres"

    def __init__(self, url: str) -> None:
        self._driver = driver()
        settings = self._driver.conninfo.conninfo_to_dict(url)
        where = f"{settings.get('host') or 'the local server'}/{settings.get('dbname') or ''}"
        psycopg = self._driver.psycopg
        # The last is raised in a process that was stopped during a transaction and then continued.
        broken = psycopg.OperationalError, psycopg.InterfaceError, psycopg.errors.IdleInTransactionSessionTimeout
        super().__init__(where, psycopg.Error, broken, PostgresNews(self))
        self.url = url
        self.is_ready = False
        # The newest version of the tables that is known to permit this one to use them.
        self.usable_version = len(MIGRATIONS)
        self.notifier = Notifier(self)
        self._is_closed = False
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._idle: list[tuple[float, Any]] = []

    def call(self, session_id: str | None, work: Callable[[Any], T], patience_s: float, *, first_s: float = 0.0) -> T:
        began, pauses = time.monotonic(), RETRIES.waits()
        deadline = began + patience_s
        with self.translated(session_id):
            while True:
                db = None
                try:
                    with self._connection(deadline) as db:
                        return work(db)
                except self._broken as error:
                    # Work in several steps extends its time with each step.
                    deadline = deadline if db is None else max(deadline, db.deadline)
                    until = deadline if self.is_ready else began + first_s
                    # A connection that is still open was not lost: the server refused the statement.
                    if (db is not None and not db.closed) or time.monotonic() > until:
                        raise
                    if not self.is_ready and _REFUSED.search(str(error)):
                        raise
                time.sleep(next(pauses))

    def _reason_of(self, error: Any) -> str:
        # Without the lines that quote the statement.
        return with_advice(error.diag.message_primary or str(error), error.sqlstate)

    def _disconnect(self) -> None:
        self.notifier.close()
        with self._guard:
            self._is_closed = True
        self._drop_idle(older_than=float("inf"))

    @contextmanager
    def _connection(self, deadline: float) -> Iterator[Any]:
        if not self._slots.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise StorageError(
                f"all {MAX_CONNECTIONS} connections of this process to {self.where} are in use: try again later"
            )
        try:
            self._drop_idle(older_than=time.monotonic() - IDLE_S)
            with self._guard:
                db = self._idle.pop()[1] if self._idle else None
            db = db or self.connect(deadline - time.monotonic())
            db.deadline = deadline
            try:
                yield db
            finally:
                self._give_back(db)
        finally:
            self._slots.release()

    def connect(self, timeout_s: float) -> Any:
        """Open a connection; the first one creates the tables, or verifies that they exist."""
        db = self._driver.connect(self.url, timeout_s)
        if not self.is_ready:
            try:
                require_schema(db)
            except BaseException:  # it is in no pool yet, so nothing else would close it
                db.close()
                raise
            self.is_ready = True
        return db

    def accepts_newer(self, db: Any) -> bool:
        """Whether a compatible newer version has migrated the tables since this process last looked.

        Raises `StorageError` for a version that does not permit this one to use them.
        """
        before, self.usable_version = self.usable_version, max(self.usable_version, usable_version(db))
        return self.usable_version > before

    def migrate(self) -> None:
        """Create the tables and the indexes, or upgrade them to this version. Raises `StorageError`."""
        with self.translated():
            db = self._driver.connect(self.url, 10.0)
            try:
                migrate(db)
            finally:
                db.close()

    def _give_back(self, db: Any) -> None:
        if db.pgconn.transaction_status != self._driver.IDLE:
            db.close()
            # Whatever broke this connection probably also broke the others.
            self._drop_idle(older_than=float("inf"))
            return
        with self._guard:
            if not self._is_closed:
                self._idle.append((time.monotonic(), db))
        if self._is_closed:
            # A heartbeat or a listener was still using it when the last store closed.
            db.close()

    def _drop_idle(self, *, older_than: float) -> None:
        with self._guard:
            old = [db for since, db in self._idle if since < older_than]
            self._idle = [entry for entry in self._idle if entry[0] >= older_than]
        for db in old:
            db.close()

    def _renew(self, name: str) -> None:
        command = (
            "INSERT INTO openagentic_holders (name, until) VALUES (%s, now() + %s * interval '1 second') "
            "ON CONFLICT (name) DO UPDATE SET until = excluded.until"
        )
        self.call(None, lambda db: db.execute(command, (name, LEASE_S)), LEASE_S)


SERVERS = SharedByName(PostgresServer)


class Notifier:
    """A background sender of notifications, many at once: a notification in each append would serialize all commits."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._changed = threading.Condition()
        self._waiting: set[str] = set()
        self._running = False

    def tell(self, session_id: str) -> None:
        """Queue a notification that the session has news."""
        with self._changed:
            self._waiting.add(session_id)
            self._changed.notify()
            if not self._running:
                # The append is stored: if no thread can start, the followers poll.
                with suppress(RuntimeError):
                    threading.Thread(target=self._run, name="openagentic-notify", daemon=True).start()
                    self._running = True

    def close(self) -> None:
        """Discard unsent notifications: followers also poll."""
        with self._changed:
            self._waiting.clear()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._changed.wait_for(lambda: self._waiting, IDLE_S):
                    self._running = False
                    return
                waiting, self._waiting = self._waiting, set()
            # Followers that get no notification poll.
            with suppress(StorageError):
                self._server.call(None, partial(_notify, session_ids=sorted(waiting)), 1.0)
            time.sleep(COALESCE_S)


def _notify(db: Any, session_ids: list[str]) -> None:
    command = (
        "SELECT pg_notify(channel, id) FROM openagentic_follows JOIN openagentic_sessions ON key = session "
        "WHERE id = ANY(%s) AND until > now()"
    )
    db.execute(command, (session_ids,))


# In the order of their keys, so that two followers of the same sessions cannot deadlock.
_FOLLOW = """
    WITH wanted AS (
        SELECT key FROM openagentic_sessions WHERE id = ANY(%s) ORDER BY key FOR NO KEY UPDATE
    ), told AS (
        UPDATE openagentic_sessions SET followed = greatest(followed, now() + %s * interval '1 second')
        FROM wanted WHERE openagentic_sessions.key = wanted.key
    )
    INSERT INTO openagentic_follows (session, channel, until)
    SELECT key, %s, now() + %s * interval '1 second' FROM wanted
    ON CONFLICT (session, channel) DO UPDATE SET until = excluded.until
"""


class PostgresNews:
    """The news source of a Postgres server. Subscriptions are rows in a table that each append checks."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server

    def listen(self, channel: str) -> PostgresListener | None:
        with self._server.translated():
            standby = "SELECT pg_is_in_recovery()"
            if self._server.call(None, lambda db: db.execute(standby).fetchone()[0], 5.0):
                return None
            db, hears = self._server.connect(5.0), False
            try:
                db.deadline = time.monotonic() + 10.0
                db.execute(f"LISTEN {channel}")
                # Sent on another connection: behind a pooler that shares connections, it does not arrive.
                self._server.call(None, lambda db: db.execute("SELECT pg_notify(%s, '')", (channel,)), 5.0)
                hears = any(True for _ in db.notifies(timeout=1.0, stop_after=1))
            finally:
                if not hears:
                    db.close()
            return PostgresListener(self._server, db) if hears else None

    def follow(self, session_ids: Collection[str], channel: str, for_s: float) -> None:
        def ask(db: Any) -> None:
            with suppress(driver().psycopg.errors.ReadOnlySqlTransaction):
                db.execute(_FOLLOW, (list(session_ids), for_s, channel, for_s))

        self._server.call(None, ask, 5.0)

    def places(self, session_ids: Collection[str]) -> dict[str, tuple[int, int]]:
        command = (
            "SELECT id, last_seq, (SELECT coalesce(max(number), 0) FROM openagentic_messages "
            "WHERE session = key AND removed IS NULL) FROM openagentic_sessions WHERE id = ANY(%s)"
        )
        rows = self._server.call(None, lambda db: db.execute(command, (list(session_ids),)).fetchall(), 5.0)
        return {name: (last_seq, number) for name, last_seq, number in rows}


class PostgresListener:
    """A connection on which the server notifies this process of news."""

    def __init__(self, server: PostgresServer, db: Any) -> None:
        self._server = server
        self._db = db
        self._used_at = time.monotonic()

    def hear(self, timeout_s: float) -> set[str]:
        with self._server.translated():
            now = time.monotonic()
            self._db.deadline = now + timeout_s + 5.0
            if now - self._used_at > IDLE_S:
                self._db.execute("SELECT 1")
                self._used_at = now
            notices = self._db.notifies(timeout=min(timeout_s, IDLE_S), stop_after=1)
            return {notice.payload for notice in notices if notice.payload}

    def close(self) -> None:
        self._db.close()
