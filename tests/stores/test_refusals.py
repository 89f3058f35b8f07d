"""What a database that refuses tells the user: one sentence that ends with what to do."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import tempfile
import unittest
from collections.abc import Callable
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

from openagentic_sdk.errors import StorageError
from openagentic_sdk.events import UserMessage
from openagentic_sdk.sessions.base import SessionStore
from openagentic_sdk.sessions.stores.locate import open_store
from openagentic_sdk.sessions.stores.tables import tables_of

from ..size import full_size
from ..waiting import until
from . import servers
from .own_servers import OwnPostgres, OwnRedis, server_user

POSTGRES_URL = os.environ.get("OPENAGENTIC_TEST_POSTGRES_URL")
RESTORE = "restore the database from its backup, or remove the store's other tables too, to start without its sessions"


class RefusalCase(unittest.TestCase):
    def open(self, url: str) -> SessionStore:
        return self.enterContext(closing(open_store(url)))

    def refusal(self, work: Callable[[], object]) -> str:
        """The sentence of the error that the work raises; it is one line without a statement."""
        with self.assertRaises(StorageError) as caught:
            work()
        text = str(caught.exception)
        self.assertNotRegex(text, r"\n|LINE \d|SELECT|INSERT")
        return text


class RemovedTables(RefusalCase):
    """Tables that disappear under a process that uses them."""

    def check(self, url: str, drop: Callable[[str], object], sessions: str) -> None:
        store = self.open(url)
        name = store.create_session()
        writer = self.enterContext(store.open_writer(name))
        writer.append([UserMessage("one")])
        runs = "SELECT count(*) FROM openagentic_runs"
        tables_of(store).read(runs)
        drop("openagentic_runs")
        self.assertIn(RESTORE, self.refusal(lambda: tables_of(store).read(runs)))
        drop(sessions)
        for work in (
            lambda: writer.append([UserMessage("two")]),
            lambda: store.read_events(name),
            lambda: store.list_session_summaries(),
            lambda: store.create_session(),
        ):
            self.assertIn(RESTORE, self.refusal(work))

    @unittest.skipUnless(POSTGRES_URL, "needs OPENAGENTIC_TEST_POSTGRES_URL")
    def test_postgres_names_the_table_and_the_remedy(self) -> None:
        import psycopg

        url = servers.own_postgres_schema(self, POSTGRES_URL or "")
        db = self.enterContext(psycopg.connect(url, autocommit=True))
        self.check(url, lambda table: db.execute(f"DROP TABLE {table} CASCADE"), "openagentic_sessions")

    def test_sqlite_names_the_table_and_the_remedy(self) -> None:
        path = Path(self.enterContext(tempfile.TemporaryDirectory()), "store.db")
        db = self.enterContext(closing(sqlite3.connect(path)))
        self.check(f"sqlite:{path}", lambda table: db.execute(f"DROP TABLE {table}"), "sessions")


@unittest.skipUnless(find_spec("redis"), "the driver redis-py is not installed")
class FullRedis(RefusalCase):
    """A Redis server without memory, without a disk, or that is a replica."""

    def test_a_full_server_is_an_error_with_a_remedy_and_the_session_continues_after_it(self) -> None:
        import redis

        server = OwnRedis("--appendonly", "no", "--save", "", "--maxmemory-policy", "noeviction")
        self.addCleanup(server.remove)
        store = self.open(server.url)
        name = store.create_session()
        writer = self.enterContext(store.open_writer(name))
        client = self.enterContext(closing(redis.Redis.from_url(server.url)))
        events = [UserMessage(str(writer.append([UserMessage("first")])[-1].seq))]

        client.config_set("maxmemory", 1)
        text = self.refusal(lambda: writer.append(events))
        self.assertTrue(text.endswith("; raise its memory limit, or delete data"), text)
        client.config_set("maxmemory", 0)
        writer.append(events)

        server.place.rmdir()
        client.config_set("save", "3600 1")
        client.bgsave()
        until(lambda: client.info("persistence")["rdb_last_bgsave_status"] != "ok", "the snapshot has failed")
        text = self.refusal(lambda: writer.append(events))
        self.assertTrue(text.endswith("; free space on, or repair, the disk that it saves to (see its log)"), text)
        client.config_set("save", "")
        writer.append(events)

        client.replicaof("127.0.0.1", server.port)
        text = self.refusal(lambda: writer.append(events))
        self.assertTrue(text.endswith("; use the primary server, or wait until this one is promoted"), text)
        client.replicaof("NO", "ONE")
        writer.append(events)
        self.assertEqual(len(store.read_events(name)), 4)


@unittest.skipUnless(find_spec("psycopg"), "the driver psycopg is not installed")
class FullPostgres(RefusalCase):
    """A Postgres server whose tables are on a small disk."""

    @full_size
    def test_a_full_server_is_an_error_with_a_remedy_and_the_session_continues_after_it(self) -> None:
        import psycopg

        disk = Path(self.enterContext(tempfile.TemporaryDirectory())) / "disk"
        disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(disk)]
        if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
            self.skipTest("needs root, to mount a small disk")
        self.addCleanup(subprocess.run, ["umount", str(disk)], check=True)
        server = OwnPostgres()
        self.addCleanup(server.remove)
        disk.parent.chmod(0o755)
        os.chown(disk, *_ids_of(server_user()))
        db = self.enterContext(psycopg.connect(server.url(), autocommit=True))
        db.execute(f"CREATE TABLESPACE small LOCATION '{disk}'")
        db.execute("CREATE DATABASE small TABLESPACE small")
        store = self.open(server.url("small"))
        name = store.create_session()
        writer = self.enterContext(store.open_writer(name))
        events = [UserMessage(os.urandom(100_000).hex())]
        stored = 0

        def fill() -> None:
            nonlocal stored
            for _ in range(1000):
                stored += len(writer.append(events))

        text = self.refusal(fill)
        self.assertTrue(text.endswith("; free some space on its disk and try again"), text)
        self.assertIn("No space left on device", text)
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        stored += len(writer.append(events))
        self.assertEqual(store.last_seq(name), stored)


def _ids_of(user: str | None) -> tuple[int, int]:
    import pwd

    entry = pwd.getpwnam(user or "")
    return entry.pw_uid, entry.pw_gid
