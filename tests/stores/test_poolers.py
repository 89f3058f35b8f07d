"""The whole contract through pgbouncer: in transaction mode, and in the large size in session mode too."""

from __future__ import annotations

import os
import unittest
import uuid
from urllib.parse import urlsplit

from openagentic_sdk.sessions.base import SessionStore
from openagentic_sdk.sessions.stores.locate import open_store
from openagentic_sdk.testing import store_contract

from ..size import LARGE
from .own_servers import OwnBouncer

POSTGRES_URL = os.environ.get("OPENAGENTIC_TEST_POSTGRES_URL", "")
_TABLES = ("sessions", "holders", "follows")


@unittest.skipUnless(POSTGRES_URL, "OPENAGENTIC_TEST_POSTGRES_URL is not set")
class TransactionPoolerTest(store_contract.StoreContract):
    mode = "transaction"
    many_events = 10_000 if LARGE else 2_000

    @classmethod
    def setUpClass(cls) -> None:
        import psycopg

        parts = urlsplit(POSTGRES_URL)
        bouncer = OwnBouncer(parts.port or 5432, cls.mode)
        cls.addClassCleanup(bouncer.remove)
        cls.database = f"pooled_{uuid.uuid4().hex[:12]}"
        cls.admin = psycopg.connect(POSTGRES_URL, autocommit=True)
        cls.addClassCleanup(cls.admin.close)
        cls.admin.execute(f"CREATE DATABASE {cls.database}")
        cls.addClassCleanup(cls.admin.execute, f"DROP DATABASE {cls.database} WITH (FORCE)")
        cls.direct = parts._replace(path=f"/{cls.database}").geturl()
        cls.url = f"postgresql://postgres@127.0.0.1:{bouncer.port}/{cls.database}"

    def setUp(self) -> None:
        import psycopg

        super().setUp()
        self.store.migrate()
        with psycopg.connect(self.direct, autocommit=True) as db:
            db.execute(f"TRUNCATE {', '.join(f'openagentic_{name}' for name in _TABLES)} CASCADE")

    def make_store(self) -> SessionStore:
        return open_store(self.url)

    def process_source(self) -> str | None:
        return f"from openagentic_sdk.sessions.stores.locate import open_store\nstore = open_store({self.url!r})\n"


@unittest.skipUnless(LARGE, "runs with OPENAGENTIC_TEST_LARGE=1")
class SessionPoolerTest(TransactionPoolerTest):
    mode = "session"
