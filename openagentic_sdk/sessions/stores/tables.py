"""A store's database for the rows of other packages, such as the fleet, with its transactions and its clock."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar

from ...errors import FleetStoreError, SessionNotFoundError
from ...ground.clock import elapsed_s
from ..arguments import check_text, is_possible_id
from ..request import json_sha256

T = TypeVar("T")
Rows = list[tuple[Any, ...]]
# Executes one statement, with %s for each value; returns its rows.
Execute = Callable[..., Rows]
Statement = tuple[str, Sequence[Any]]
# Yields statements and receives the rows of each: the driver chooses the connection.
Statements = Generator[Statement, Rows, T]


class Tables(ABC):
    """The database of a store. Statements are written once for all kinds; differences are attributes, as SQL.

    `now` is the database's clock, in seconds since 1970, and `wall` the calendar's, if a file has a separate one; `at_wall`
    converts a calendar time, a value, to the scale of `now`. `skip_locked` makes a SELECT lock its rows and skip those
    locked by others. `sessions` is the store's table, with `id` and `{last_seq}`; `conflict` is the driver's error for a
    row that violates a unique index.
    """

    now: ClassVar[str]
    wall: ClassVar[str]
    at_wall: ClassVar[str]
    skip_locked: ClassVar[str]
    sessions: ClassVar[str]
    last_seq: ClassVar[str]
    conflict: type[Exception]

    @abstractmethod
    def read(self, command: str, values: Sequence[Any] = (), *, patience_s: float = 30.0) -> Rows:
        """The rows of a query. Raises `StorageError`."""

    @abstractmethod
    def change(
        self, work: Callable[[Execute], T], *, steps: int = 1, durable: bool = False, patience_s: float = 30.0
    ) -> T:
        """Do the work, in one transaction if it has several `steps`; restart it if the connection breaks.

        The work may therefore run twice, and must recognize its own traces from an attempt whose response was lost.
        `durable` waits for the disk if the store does not do so anyway. Raises `StorageError`.
        """

    @abstractmethod
    async def change_on(self, connection: Any, steps: Statements[T]) -> T:
        """Execute the steps on the caller's own connection, in the transaction that the caller has begun.

        Raises `OptionsError` for a value that is not a connection to this database, and `StorageError`.
        """

    def lease_now(self) -> float:
        """The time in seconds by which this process measures its leases; a server's time continues while a host sleeps."""
        return elapsed_s()

    @property
    def is_usable(self) -> str:
        """The SQL condition that this process may use the tables' version; for files, `change` checks it instead."""
        return "true"

    def require_usable(self) -> None:
        """Check the version of the tables again. Raises `StorageError` if this version must not use them any more."""

    @abstractmethod
    def take_turn(self, execute: Execute) -> None:
        """In a transaction, wait until all transactions that took a turn before have ended."""

    @abstractmethod
    def telling(self, channel: str) -> Statement | None:
        """The statement that wakes the channel's waiters once its transaction has committed; None if they poll anyway."""

    @abstractmethod
    def wait(self, channel: str, timeout_s: float) -> bool:
        """Block until the channel is notified, or something else may have changed; return False on timeout."""

    @abstractmethod
    def close(self) -> None:
        """Stop listening for notifications; calls of `wait` return."""


def drive(steps: Statements[T], execute: Execute) -> T:
    """Execute each of the steps and return their result."""
    try:
        statement = next(steps)
        while True:
            statement = steps.send(execute(*statement))
    except StopIteration as end:
        result: T = end.value
        return result


_CLAIM = """
    INSERT INTO openagentic_requests (id, session) SELECT %s, key FROM {sessions} WHERE id = %s
    ON CONFLICT (id) DO NOTHING
    RETURNING 1
"""
_CLAIMED = (
    "SELECT owner.id FROM openagentic_requests AS claim JOIN {sessions} AS owner ON key = session WHERE claim.id = %s"
)


class TableStore(ABC):
    """A store whose database other packages may use."""

    @abstractmethod
    def tables(self) -> Tables:
        """This store's database, for the rows of other packages."""

    def claim_request(self, session_id: str, request_id: str) -> str:
        """Like `SessionStore.claim_request`, using a row that only one of several concurrent claims can insert."""
        check_text("request_id", request_id)
        if not is_possible_id(session_id):
            raise SessionNotFoundError(session_id)
        tables, name = self.tables(), json_sha256(request_id)
        claimed = partial(tables.read, _CLAIMED.format(sessions=tables.sessions), (name,))
        # Read first: nearly every repeated request was claimed long ago, and reading takes no lock.
        if not (rows := claimed()):
            command = _CLAIM.format(sessions=tables.sessions)
            tables.change(lambda execute: execute(command, (name, session_id)), durable=True)
            rows = claimed()
        if not rows:
            raise SessionNotFoundError(session_id)
        return str(rows[0][0])


def tables_of(store: object) -> Tables:
    """The database of a store. Raises `FleetStoreError` for a store without one that processes can share."""
    if not isinstance(store, TableStore):
        raise FleetStoreError(type(store).__name__)
    return store.tables()
