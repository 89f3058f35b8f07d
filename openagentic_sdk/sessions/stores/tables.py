"""A store's database as other rooms use it: rows of their own, changed in its transactions, by its clock."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

from ...errors import FleetStoreError

T = TypeVar("T")
Rows = list[tuple[Any, ...]]
# Runs one statement, whose values stand in it as %s; gives the rows that come back.
Execute = Callable[..., Rows]


class Tables(ABC):
    """One database. Statements are written once for all kinds: what differs stands in the attributes, as SQL.

    `now` is the database's clock, in seconds since 1970. `skip_locked` makes a SELECT lock its rows and leave out those that
    others have locked. `sessions` is the store's table, with `id` and `{last_seq}`; `conflict` is what the driver raises for
    a row that a unique index refuses.
    """

    now: ClassVar[str]
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
    def on(self, connection: Any) -> Execute:
        """Statements on a connection of the caller's own, in the transaction that he has begun. Raises `OptionsError`."""

    @abstractmethod
    def tell(self, execute: Execute, channel: str) -> None:
        """Wake whoever waits for the channel, once the transaction has taken effect."""

    @abstractmethod
    def wait(self, channel: str, timeout_s: float) -> bool:
        """Block until somebody told the channel something, or the time is over; says whether."""

    @abstractmethod
    def close(self) -> None:
        """Wait for nothing any more."""


class TableStore(ABC):
    """A store that lets other rooms use its database."""

    @abstractmethod
    def tables(self) -> Tables:
        """The database."""


def tables_of(store: object) -> Tables:
    """The database behind a store. Raises `FleetStoreError` for a store that has none which processes share."""
    if not isinstance(store, TableStore):
        raise FleetStoreError(type(store).__name__)
    return store.tables()
