"""Every store of the package meets the contract."""

from __future__ import annotations

import os
import unittest

from openagentic_sdk.sessions.base import SessionStore
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.sessions.stores.locate import open_store
from openagentic_sdk.testing import store_contract
from tests.waiting import pause

from ..pythons import contract_python
from ..size import sized
from . import servers
from .holes import lose_event
from .minimal import MinimalStore

MANY_EVENTS = sized(500, 2_000, 10_000)
POSTGRES_URL = os.environ.get("OPENAGENTIC_TEST_POSTGRES_URL", "")
REDIS_URL = os.environ.get("OPENAGENTIC_TEST_REDIS_URL", "")


class MemoryStoreTest(store_contract.StoreContract):
    many_events = MANY_EVENTS
    keeps_on_close = False

    def make_store(self) -> SessionStore:
        return MemorySessionStore()

    def lose_event(self, session_id: str, seq: int) -> bool:
        return lose_event("memory:", self.store, session_id, seq)


class MinimalStoreTest(store_contract.StoreContract):
    """The methods derived from the core meet the contract too."""

    many_events = MANY_EVENTS
    keeps_on_close = False
    can_take_over = False

    def make_store(self) -> SessionStore:
        return MinimalStore()


class UrlStoreContract(store_contract.StoreContract):
    """The contract for a store opened by URL, so that other processes can open it too."""

    many_events = MANY_EVENTS
    url: str

    def make_store(self) -> SessionStore:
        return open_store(self.url.format(place=self.place))

    def process_source(self) -> str | None:
        url = self.url.format(place=self.place)
        return f"from openagentic_sdk.sessions.stores.locate import open_store\nstore = open_store({url!r})\n"

    python = contract_python

    def lose_event(self, session_id: str, seq: int) -> bool:
        return lose_event(self.url.format(place=self.place), self.store, session_id, seq)


class SqliteStoreTest(UrlStoreContract):
    url = "sqlite://{place}/sessions.db?durability=flush"


class FileStoreTest(UrlStoreContract):
    url = "file:{place}?durability=flush"
    can_take_over = False

    def distinct_time(self) -> None:
        pause(0.011, "lists sort by modification time, which has a granularity of up to 10 ms")


@unittest.skipUnless(POSTGRES_URL, "OPENAGENTIC_TEST_POSTGRES_URL is not set")
class PostgresStoreTest(UrlStoreContract):
    def setUp(self) -> None:
        self.url = servers.own_postgres_schema(self, POSTGRES_URL)
        super().setUp()


@unittest.skipUnless(REDIS_URL, "OPENAGENTIC_TEST_REDIS_URL is not set")
class RedisStoreTest(UrlStoreContract):
    def setUp(self) -> None:
        self.url = servers.own_redis_prefix(self, REDIS_URL)
        super().setUp()


# Delete it from the module: without a place it is as abstract as the contract, and unittest would run it.
del UrlStoreContract
