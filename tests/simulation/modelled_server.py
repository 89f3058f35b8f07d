"""A Postgres server in memory, and a driver whose connections break.

The server recognizes the statements of the store by their text; an unknown one fails the schedule. A statement sent before
a connection broke may arrive after later statements of others, like packets in a network.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

from openagentic_sdk.sessions import postgres
from openagentic_sdk.sessions.stores import statements, tables
from openagentic_sdk.sessions.stores.postgres import families, schema, search
from openagentic_sdk.sessions.stores.postgres.schema import MIGRATIONS
from openagentic_sdk.testing.crash import Killed

FAULTS = (
    "cut before",
    "cut after",
    "cut after",
    "late",
    "late",
    "slow",
    "away",
    "away",
    "killed before",
    "killed after",
)
# The statement arrives after its sender has given up, since no other statement passes until then.
STRAGGLER = "late, then away"
# The statement takes effect, and its sender neither receives the answer nor reaches the server again.
UNHEARD = "cut after, then away"
# The name of each statement that changes something.
CHANGE = "a change"
# Longer than any patience, and than a lease.
LONG_S = 60.0


_LIST = f"{postgres._ROW} FROM openagentic_sessions WHERE {{}} ORDER BY touched DESC LIMIT ALL"


class Refusal(Exception):
    """An error of the driver, without the details that a server adds."""

    diag = SimpleNamespace(message_primary=None)
    sqlstate = None


class BrokenConnectionError(Refusal):
    """The connection broke."""


class Times:
    """The one clock of a schedule, in place of the module `time`."""

    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class Database:
    """The tables: sessions as rows by id, events as lists by session key."""

    def __init__(self, times: Times, rng: random.Random) -> None:
        self.times, self.rng = times, rng
        self.sessions: dict[str, dict[str, Any]] = {}
        self.events: dict[int, list[tuple[int, float, str]]] = {}
        self.holders: dict[str, float] = {}
        self.requests: dict[str, int] = {}
        self.messages: list[dict[str, Any]] = []
        self.numbers = 0
        self.late: list[Callable[[], object]] = []
        # The version of the tables, and the oldest that may continue with them; None without a record of it.
        self.schema: tuple[int, int | None] = (len(MIGRATIONS), len(MIGRATIONS))

    def saved(self) -> Callable[[], None]:
        """Return a function that undoes all changes from here on."""
        kept = {
            "sessions": {name: dict(row) for name, row in self.sessions.items()},
            "events": {key: list(rows) for key, rows in self.events.items()},
        }
        return lambda: vars(self).update(kept)

    def lines(self, name: str) -> list[str]:
        """The stored log of a session."""
        return [line for _, _, line in self.events[self.sessions[name]["key"]]]

    def deliver(self) -> None:
        """Deliver a statement whose sender has given up."""
        if self.late:
            self.late.pop(self.rng.randrange(len(self.late)))()

    def execute(self, command: str, values: Sequence[Any]) -> tuple[list[tuple[Any, ...]], int]:
        """Execute a statement; return its rows, and the number of rows it changed."""
        came = self._ANSWERS[command](self, *values)
        return ([], came) if isinstance(came, int) else (came, len(came))

    def by_key(self, key: int, **wanted: Any) -> dict[str, Any] | None:
        found = next((row for row in self.sessions.values() if row["key"] == key), None)
        return found if found and all(found[name] == value for name, value in wanted.items()) else None

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    # --- statements --------------------------------------------------------------------------------------------------

    def row_of(self, name: str) -> list[tuple[Any, ...]]:
        row = self.sessions.get(name)
        if row is None:
            return []
        left_s = self.holders.get(row["holder"], self.times.now_s) - self.times.now_s if row["holder"] else 0.0
        first = (row["key"], row["epoch"], row["revision"], row["holder"], left_s, row["touched"], name)
        return [(*first, row["created_at"], row["metadata"], row["summary"], row["last_seq"], row["updated"])]

    def key_of(self, name: str) -> list[tuple[Any, ...]]:
        return [(self.sessions[name]["key"],)] if name in self.sessions else []

    def names(self) -> list[tuple[Any, ...]]:
        return [(name,) for name in sorted(self.sessions, key=lambda name: -self.sessions[name]["touched"])]

    def listed(self, cwd: str | None = None) -> list[tuple[Any, ...]]:
        rows = [(name, row) for (name,) in self.names() for row in self.row_of(name)]
        return [
            row
            for name, row in rows
            if not self.sessions[name]["is_child"] and cwd in (None, self.sessions[name]["cwd"])
        ]

    def add(self, name: str, created_at: float, metadata: str, *columns: Any) -> list[tuple[Any, ...]]:
        if name in self.sessions:
            return []
        key = self.number()
        row = {"key": key, "epoch": 0, "revision": 0, "holder": "", "touched": self.number()}
        row |= {"created_at": created_at, "metadata": metadata}
        self.sessions[name] = row | dict(zip(postgres._COLUMNS, columns, strict=True))
        self.events[key] = []
        return [(key,)]

    def set_columns(self, *values: Any) -> int:
        *columns, key = values
        row = self.by_key(key)
        if row is not None:
            row.update(zip(postgres._COLUMNS, columns, strict=True))
        return int(row is not None)

    def append(self, *values: Any) -> list[tuple[Any, ...]]:
        epoch, holder, *columns, key, old_epoch, old_holder, revision, last_seq, _, times, lines = values
        row = self.by_key(key, epoch=old_epoch, holder=old_holder, revision=revision, last_seq=last_seq)
        if row is None:
            return []
        row |= {"epoch": epoch, "holder": holder, "touched": self.number()}
        row.update(zip(postgres._COLUMNS, columns, strict=False))
        self.insert(key, last_seq, times, lines)
        return [(False,)]

    def insert(self, key: int, last_seq: int, times: str | float, lines: str) -> int:
        stamps = [float(each) for each in times.split(" ")] if isinstance(times, str) else [times]
        texts = lines.split("\n") if isinstance(times, str) else [lines]
        if not lines:
            return 0
        rows = self.events[key]
        for seq, (stamp, text) in enumerate(zip(stamps, texts, strict=True), last_seq + 1):
            assert seq == len(rows) + 1, "an event with a number that is taken"  # the table's primary key
            rows.append((seq, stamp, text))
        return len(texts)

    def events_of(self, key: int, after_seq: int, size: int) -> list[tuple[Any, ...]]:
        return [(seq, text) for seq, _, text in self.events.get(key, ())[max(0, after_seq) :][:size]]

    def time_of(self, key: int, seq: int) -> list[tuple[Any, ...]]:
        return [(stamp,) for number, stamp, _ in self.events.get(key, ()) if number == seq]

    def copy_events(self, target: int, source: int, at_seq: int) -> int:
        self.events[target] = self.events[source][:at_seq]
        return at_seq

    def claim(self, holder: str, key: int, epoch: int, old_holder: str, usable_version: int | None = None) -> int:
        row = self.by_key(key, epoch=epoch, holder=old_holder)
        if usable_version is not None and self.schema[0] > usable_version:
            return 0
        if row is not None:
            row |= {"epoch": epoch + 1, "holder": holder}
        return int(row is not None)

    def delete(self, key: int, epoch: int, holder: str, last_seq: int) -> int:
        found = self.by_key(key, epoch=epoch, holder=holder, last_seq=last_seq)
        if found is None:
            return 0
        self.sessions = {name: row for name, row in self.sessions.items() if row is not found}
        self.requests = {name: owner for name, owner in self.requests.items() if owner != key}
        self.messages = [each for each in self.messages if each["session"] != key]
        del self.events[key]
        return 1

    def change(self, metadata: str, *values: Any) -> int:
        *columns, key, revision, last_seq = values
        row = self.by_key(key, revision=revision, last_seq=last_seq)
        if row is None:
            return 0
        row |= {"metadata": metadata, "revision": revision + 1}
        row.update(zip(postgres._COLUMNS, columns, strict=True))
        return 1

    def is_at(self, key: int, epoch: int) -> list[tuple[Any, ...]]:
        return [(1,)] if self.by_key(key, epoch=epoch) else []

    def put(self, text: str, key: int, seq: int) -> int:
        rows = self.events[key]
        rows[seq - 1] = (*rows[seq - 1][:2], text)
        return 1

    def replace(self, *values: Any) -> int:
        row = self.by_key(values[-1])
        assert row is not None
        row["revision"] += 1
        return self.set_columns(*values)

    def renew(self, name: str, lease_s: float) -> int:
        self.holders[name] = self.times.now_s + lease_s
        return 1

    def claim_request(self, request: str, name: str) -> list[tuple[Any, ...]]:
        if request in self.requests or name not in self.sessions:
            return []
        self.requests[request] = self.sessions[name]["key"]
        return [(1,)]

    def owner_of(self, request: str) -> list[tuple[Any, ...]]:
        key = self.requests.get(request)
        return [(name,) for name, row in self.sessions.items() if row["key"] == key]

    def put_message(self, name: str, token: Any, data: str) -> list[tuple[Any, ...]]:
        if name not in self.sessions:
            return []
        if any(each["token"] == token for each in self.messages):
            return [(None, False)]
        number, key = self.number(), self.sessions[name]["key"]
        self.messages.append({"number": number, "session": key, "token": token, "data": data, "removed": False})
        return [(number, False)]

    def number_of(self, token: Any) -> list[tuple[Any, ...]]:
        return [(each["number"],) for each in self.messages if each["token"] == token]

    def read_messages(self, names: Sequence[str], after: int) -> list[tuple[Any, ...]]:
        ids = {self.sessions[name]["key"]: name for name in names if name in self.sessions}
        shown = (each for each in self.messages if each["session"] in ids and not each["removed"])
        return [(each["number"], ids[each["session"]], each["data"]) for each in shown if each["number"] > after]

    def remove_messages(self, numbers: Sequence[int]) -> int:
        for each in self.messages:
            each["removed"] = each["removed"] or each["number"] in numbers
        return len(numbers)

    _ANSWERS: ClassVar[dict[str, Callable[..., Any]]] = {
        postgres._ROW_OF: row_of,
        "SELECT key FROM openagentic_sessions WHERE id = %s": key_of,
        "SELECT 1 FROM openagentic_sessions WHERE id = %s FOR KEY SHARE": key_of,
        "SELECT id FROM openagentic_sessions ORDER BY touched DESC": names,
        _LIST.format("NOT is_child"): listed,
        _LIST.format("NOT is_child AND cwd = %s"): listed,
        postgres._ADD: add,
        f"UPDATE openagentic_sessions SET {postgres._SET_COLUMNS} WHERE key = %s": set_columns,
        **dict.fromkeys(postgres._APPENDS.values(), append),
        "INSERT INTO openagentic_events (session, seq, updated, data) SELECT %s, %s + number, updated, data FROM "
        f"{postgres._PACKED} AS row (updated, data, number)": insert,
        "SELECT seq, data FROM openagentic_events WHERE session = %s AND seq > %s ORDER BY seq LIMIT %s": events_of,
        "SELECT updated FROM openagentic_events WHERE session = %s AND seq = %s": time_of,
        postgres._COPY_EVENTS: copy_events,
        postgres._COPY_BLOBS: lambda self, target, source: 0,
        postgres._CLAIM: claim,
        postgres._RELEASE: claim,
        postgres._DELETE: delete,
        postgres._CHANGE: change,
        "INSERT INTO openagentic_holders (name, until) VALUES (%s, now() + %s * interval '1 second') "
        "ON CONFLICT (name) DO UPDATE SET until = excluded.until": renew,
        tables._CLAIM.format(sessions="openagentic_sessions"): claim_request,
        tables._CLAIMED.format(sessions="openagentic_sessions"): owner_of,
        postgres._PUT: put_message,
        "SELECT number FROM openagentic_messages WHERE token = %s": number_of,
        postgres._READ_MESSAGES: read_messages,
        postgres._REMOVE_MESSAGES: remove_messages,
        families._HAS_SUMS: lambda self: [(False,)],
        search._HAS_INDEX: lambda self: [(False,)],
        "SELECT 1 FROM openagentic_sessions WHERE key = %s AND epoch = %s FOR UPDATE": lambda self, key, epoch: (
            [(1,)] if self.by_key(key, epoch=epoch) else []
        ),
        "UPDATE openagentic_events SET data = %s WHERE session = %s AND seq = %s": put,
        f"UPDATE openagentic_sessions SET revision = revision + 1, {postgres._SET_COLUMNS} WHERE key = %s": replace,
        "DELETE FROM openagentic_checkpoints WHERE session = %s": lambda self, key: 0,
        "SELECT to_regclass('openagentic_schema')": lambda self: [("there",)],
        "SELECT to_regclass('openagentic_oldest')": lambda self: [("there",)],
        "SELECT version FROM openagentic_schema": lambda self: [self.schema[:1]],
        statements.READ_OLDEST: lambda self: [self.schema] if self.schema[1] is not None else [],
        schema._HAS_INDEXES: lambda self: [(True,)],
    }


class Cursor:
    """The result of a statement."""

    description = "rows"

    def __init__(self, rows: list[tuple[Any, ...]], rowcount: int) -> None:
        self.rows, self.rowcount = rows, rowcount

    def fetchone(self) -> tuple[Any, ...] | None:
        return self.rows[0] if self.rows else None

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self.rows

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.rows)


class Wire:
    """The connection between one process and the server.

    The `at`-th statement from now on meets `fault`, or, if `name` is given, the first that has this name.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self.fault, self.at, self.count, self.struck, self.is_dead, self.name = "", 0, 0, False, False, ""

    def plan(self, fault: str, at: int, name: str = "") -> None:
        self.fault, self.at, self.count, self.struck, self.name = fault, at, 0, False, name

    def pass_through(
        self, work: Callable[[], Any], late: Callable[[], object] | None = None, names: Collection[str] = ()
    ) -> Any:
        """Do the work on the server, unless the fault prevents it."""
        if self.is_dead:
            raise Killed
        self.count += 1
        stays = self.struck and self.fault in ("away", STRAGGLER, UNHEARD)
        is_here = (self.name in names and not self.struck) if self.name else self.count == self.at
        fault = "away" if stays else self.fault if self.fault and is_here else ""
        self.struck = self.struck or bool(fault)
        if fault == "killed before":
            self.die()
        if fault in ("late", STRAGGLER) and late is not None:
            late()
        if fault in ("cut before", "late", "away", STRAGGLER):
            raise BrokenConnectionError(f"simulated: {fault}")
        if self.database.rng.random() < 0.3:
            self.database.deliver()
        came = work()
        if fault == "slow":
            self.database.times.sleep(LONG_S)
        if fault in ("cut after", "slow", UNHEARD):
            raise BrokenConnectionError(f"simulated: {fault}")
        if fault == "killed after":
            self.die()
        return came

    def die(self) -> None:
        self.is_dead = True
        raise Killed


class Connection:
    """A connection in autocommit mode."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.closed = False
        self.deadline = 0.0
        self.pgconn = SimpleNamespace(transaction_status=0)
        self.is_inside = False

    def execute(self, command: str, values: Sequence[Any] = ()) -> Cursor:
        database = self.wire.database
        late = None if self.is_inside else lambda: database.late.append(partial(database.execute, command, values))
        with self.breaking():
            names = () if command.lstrip().startswith("SELECT") else (command, CHANGE)
            return Cursor(*self.wire.pass_through(lambda: database.execute(command, values), late, names))
        raise AssertionError("it returns or raises")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        take_back = self.wire.database.saved()
        self.is_inside = True
        try:
            with self.breaking():
                yield
                try:
                    self.wire.pass_through(lambda: None)  # the commit
                except (Killed, BrokenConnectionError):
                    if self.wire.fault in ("cut after", "slow", "killed after"):
                        take_back = self.keep
                    raise
        except BaseException:
            take_back()
            raise
        finally:
            self.is_inside = False

    def keep(self) -> None:
        """Commit, although the response is lost."""

    @contextmanager
    def breaking(self) -> Iterator[None]:
        try:
            yield
        except BrokenConnectionError:
            self.close()
            raise

    def close(self) -> None:
        self.closed = True
        self.pgconn.transaction_status = 1


class Driver:
    """The driver of one process, with the interface of `sessions.stores.postgres.driver`."""

    IDLE = 0
    psycopg = SimpleNamespace(
        Error=Refusal,
        OperationalError=BrokenConnectionError,
        InterfaceError=BrokenConnectionError,
        errors=SimpleNamespace(IdleInTransactionSessionTimeout=BrokenConnectionError, UniqueViolation=Refusal),
    )

    conninfo = SimpleNamespace(conninfo_to_dict=lambda url: {"host": "model", "dbname": url.rpartition("/")[2]})

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    def connect(self, url: str, timeout_s: float) -> Connection:
        self.wire.pass_through(lambda: None)
        return Connection(self.wire)
