"""A store's database as other rooms use it: rows of their own, changed in its transactions, by its clock."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar

from ...errors import FleetStoreError, SessionNotFoundError
from ..request import json_sha256

T = TypeVar("T")
Rows = list[tuple[Any, ...]]
# Runs one statement, whose values stand in it as %s; gives the rows that come back.
Execute = Callable[..., Rows]
Statement = tuple[str, Sequence[Any]]
# Statements one after the other, each of which is answered with its rows: whoever drives them chooses the connection.
Steps = Generator[Statement, Rows, T]


class Tables(ABC):
    """One database. Statements are written once for all kinds: what differs stands in the attributes, as SQL.

    `now` is the database's clock, in seconds since 1970, and `wall` that of the calendar, where a file has another one;
    `at_wall` is a time of the calendar, a value, as `now` will count it. `skip_locked` makes a SELECT lock its rows and
    leave out those that others have locked. `sessions` is the store's table, with `id` and `{last_seq}`; `conflict` is
    what the driver raises for a row that a unique index refuses.
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
        """Do the work, in one transaction when it has several `steps`; again from its start when the connection breaks.

        So it must know the traces of its own that an answer which was lost left behind. `durable` waits for the disk where
        the store does not do so anyway. Raises `StorageError`.
        """

    @abstractmethod
    async def change_on(self, connection: Any, steps: Steps[T]) -> T:
        """Go through the steps on a connection of the caller's own, in the transaction that he has begun.

        Raises `OptionsError` for what is no connection to this database, and `StorageError`.
        """

    @abstractmethod
    def take_turn(self, execute: Execute) -> None:
        """Wait, in a transaction, until that of everybody who took his turn before has ended."""

    @abstractmethod
    def telling(self, channel: str) -> Statement | None:
        """What wakes those who wait for the channel, once its transaction has taken effect; None where they look anyway."""

    @abstractmethod
    def wait(self, channel: str, timeout_s: float) -> bool:
        """Block until somebody told the channel something, or the time is over; says whether."""

    @abstractmethod
    def close(self) -> None:
        """Wait for nothing any more."""


def drive(steps: Steps[T], execute: Execute) -> T:
    """What comes of the steps, each executed."""
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
    """A store that lets other rooms use its database."""

    @abstractmethod
    def tables(self) -> Tables:
        """The database."""

    def claim_request(self, session_id: str, request_id: str) -> str:
        """As in `SessionStore`: a row that only one of many can insert."""
        tables, name = self.tables(), json_sha256(request_id)
        claimed = partial(tables.read, _CLAIMED.format(sessions=tables.sessions), (name,))
        if not (rows := claimed()):
            command = _CLAIM.format(sessions=tables.sessions)
            tables.change(lambda execute: execute(command, (name, session_id)), durable=True)
            rows = claimed()
        if not rows:
            raise SessionNotFoundError(session_id)
        return str(rows[0][0])


def tables_of(store: object) -> Tables:
    """The database behind a store. Raises `FleetStoreError` for a store that has none which processes share."""
    if not isinstance(store, TableStore):
        raise FleetStoreError(type(store).__name__)
    return store.tables()
