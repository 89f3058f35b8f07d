"""Behaviour specific to server stores: missing drivers, passwords in errors, data that the server loses."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
from contextlib import closing
from functools import partial
from pathlib import Path

from openagentic_sdk.cli.main import main
from openagentic_sdk.cli.stored.stores import open_session_store
from openagentic_sdk.errors import LogCorruptError, OptionsError, SessionNotFoundError, StorageError
from openagentic_sdk.events import LogSalvaged, ToolResult, UserMessage
from openagentic_sdk.sessions.postgres import PostgresSessionStore
from openagentic_sdk.sessions.redis import RedisSessionStore
from openagentic_sdk.sessions.store import FileSessionStore
from openagentic_sdk.sessions.stores.locate import MAX_PATIENCE_S, open_store
from openagentic_sdk.sessions.stores.log_state import LogHead
from openagentic_sdk.sessions.stores.tables import Execute, Rows, Tables, tables_of
from tests.waiting import until

from ..ports import free_port, until_listens
from ..size import LARGE, full_size
from . import servers
from .own_servers import OwnRedis

ROOT = Path(__file__).parents[2]
_IMPORTS = """
import sys
import openagentic_sdk
from openagentic_sdk.parts.record import archive, importers, interop, lifecycle
from openagentic_sdk.sessions import memory, postgres, redis, sqlite, store
from openagentic_sdk.sessions.stores import locate
assert locate.open_store("memory:").list_sessions() == []
locate.open_store("sqlite:x.db")
found = {"sqlite3", "psycopg", "redis"} & set(sys.modules)
assert not found, found
"""
_MISSING = """
import sys
sys.modules["psycopg"] = sys.modules["redis"] = None
from openagentic_sdk.errors import OptionsError
from openagentic_sdk.sessions.stores.locate import open_store
for url in ("postgresql://host/x", "redis://host/0"):
    try:
        open_store(url)
    except OptionsError as error:
        print(error)
"""


def _fail_next(errors: list[Exception], *_: object) -> None:
    raise errors.pop(0)


class DriverTest(unittest.TestCase):
    @full_size
    def test_importing_every_store_imports_no_driver(self) -> None:
        subprocess.run([sys.executable, "-S", "-c", _IMPORTS], check=True, cwd=ROOT)

    @full_size
    def test_a_missing_driver_is_one_sentence_that_names_the_package_to_install(self) -> None:
        done = subprocess.run([sys.executable, "-c", _MISSING], check=True, cwd=ROOT, capture_output=True, text=True)
        first, second = done.stdout.splitlines()
        self.assertIn("pip install 'psycopg[binary]>=3.2'", first)
        self.assertIn("pip install 'redis>=5'", second)

    def test_a_name_that_cannot_be_used_does_not_show_its_password(self) -> None:
        with self.assertRaises(OptionsError) as caught:
            open_store("mysql://me:secret@host/x")
        self.assertNotIn("secret", str(caught.exception))


class AddressTest(unittest.TestCase):
    def test_a_server_that_is_not_there_is_a_storage_error_at_once_without_the_password(self) -> None:
        for driver, url in (
            ("psycopg", "postgresql://me:secret@127.0.0.1:1/x"),
            ("redis", "redis://me:secret@127.0.0.1:1/0"),
        ):
            if not importlib.util.find_spec(driver):
                self.skipTest(f"the driver {driver} is not installed")
            with self.assertRaises(StorageError) as caught:
                open_store(url).list_sessions()
            self.assertNotIn("secret", str(caught.exception))

    def test_a_mistyped_address_is_not_taken_for_a_folder(self) -> None:
        mistyped = (
            *(
                "rediss//",
                "rediss//me:secret@host",
                "redis//host",
                "postgres//",
                "sqlite//x.db",
                "s3//bucket",
                "https//h",
            ),
            *(
                "sqlite",
                "Memory ",
                "file",
                "redis ://host",
                " redis://host",
                "",
                " ",
                "sqllite://x.db",
                "s3:",
                "mysql:x",
            ),
            *("sqlite://host/x.db", "file://host/x"),
        )
        for address in mistyped:
            with self.subTest(address), self.assertRaisesRegex(OptionsError, "give it as|a file has none") as caught:
                open_session_store(address)
            self.assertNotIn("secret", str(caught.exception))
        for address in ("runs", "./sqlite", "my/sqlite", "/var//file", "filed", "redis-runs", "a b"):
            self.assertIsInstance(open_session_store(address), FileSessionStore)

    def test_a_path_that_is_too_long_is_refused_with_a_remedy(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            deep = "/".join(["d" * 200] * 19 + ["e" * 240])
            for name in ("n" * 300, deep):
                for address in (f"file:{place}/{name}", f"sqlite:{place}/{name}.db"):
                    remedy = "choose a (folder with a )?shorter path|must be a path of at most [0-9]+ bytes"
                    with self.assertRaisesRegex((StorageError, OptionsError), remedy):
                        open_store(address).create_session()

    def test_the_address_of_a_server_sets_how_long_to_wait_for_it(self) -> None:
        for address in ("postgresql://me:secret@127.0.0.1:1/x", "redis://me:secret@127.0.0.1:1/0?prefix=a"):
            mark = "&" if "?" in address else "?"
            for wrong in ("soon", "", "0", "-1", "nan", "inf", "1e9"):
                with self.assertRaisesRegex(OptionsError, "patience_s must be a number of seconds") as caught:
                    open_store(f"{address}{mark}patience_s={wrong}")
                self.assertNotIn("secret", str(caught.exception))
            if importlib.util.find_spec("psycopg" if mark == "?" else "redis"):
                with self.assertRaises(StorageError):
                    open_store(f"{address}{mark}patience_s=0.01").list_sessions()
                open_store(f"{address}{mark}patience_s={MAX_PATIENCE_S}").close()

    @unittest.skipUnless(importlib.util.find_spec("redis"), "the driver redis-py is not installed")
    def test_a_typo_in_an_address_is_reported_before_any_connection(self) -> None:
        wrong = (
            *("redis://me:secret@host:63x9/0", "redis://host:99999/0", "rediss://host:-1", "redis://[::1/0"),
            *(
                "redis:/host/0",
                "redis:host",
                "redis://me:secret@/0",
                "redis://host/one",
                "redis://host/0/1",
                "redis://host/0#1",
            ),
            *(
                "redis://me:secret@host/0?socket_timeout=soon",
                "redis://host/0?db=one",
                "redis://host/0?prefx=a",
                "unix:",
            ),
        )
        for url in wrong:
            with self.assertRaisesRegex(OptionsError, "is not the address of a Redis server: write redis://") as caught:
                open_store(url)
            self.assertNotIn("secret", str(caught.exception))

    @unittest.skipUnless(importlib.util.find_spec("psycopg"), "the driver psycopg is not installed")
    def test_a_typo_in_an_address_of_postgres_is_reported_before_any_connection(self) -> None:
        for url, reason in (
            ("postgresql:/me:secret@host/x", "// is missing"),
            ("postgresql:secret@host", "// is missing"),
            ("postgresql://me:secret@[::1/x", "IPv6"),
            ("postgresql://me:secret@host:54x2/x", "port '54x2'"),
            ("postgresql://me@host:99999/x?password=secret", "port '99999'"),
            ("postgres://me:secret@host/x?connect_timeout=soon", "connect_timeout 'soon'"),
            ("postgresql://me:secret@host/x?sslmod=require", "sslmod"),
            ("postgresql://me:sec%ret@host/x", "write % in it as %25"),
        ):
            with self.assertRaisesRegex(
                OptionsError, "is not an address of a Postgres server: write postgresql://"
            ) as caught:
                open_store(url)
            self.assertIn(reason, str(caught.exception))
            self.assertNotIn("sec", str(caught.exception).partition("write")[0].replace("soon", ""))
            self.assertNotIn("\n", str(caught.exception))
        open_store("PostgreSQL://me@a,b:5432,5433/x").close()

    def test_a_store_without_a_path_and_settings_of_one_that_has_none_are_refused(self) -> None:
        for url in ("sqlite:", "sqlite://", "sqlite:///", "file:", "file:///", "memory:x", "memory:?durability=flush"):
            with self.subTest(url), self.assertRaisesRegex(OptionsError, "cannot be used"):
                open_store(url)
        with self.assertRaises(OptionsError) as caught:
            open_store("mysql://me:secret@[::1/x")
        self.assertNotIn("secret", str(caught.exception))

    @unittest.skipUnless(shutil.which("redis-server"), "the program redis-server is not installed")
    @unittest.skipUnless(importlib.util.find_spec("redis"), "the driver redis-py is not installed")
    def test_a_server_behind_a_socket_is_a_store(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            command = ["redis-server", "--port", "0", "--unixsocket", f"{place}/s", "--dir", place, "--save", ""]
            server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            try:
                with closing(RedisSessionStore(f"unix://{place}/s", patience_s=60.0)) as store:
                    store.create_session(session_id="a")
                    self.assertEqual(store.list_sessions(), ["a"])
            finally:
                server.kill()
                server.wait()
        with closing(open_store(f"unix://{place}/s")) as store, self.assertRaisesRegex(StorageError, "/s"):
            store.list_sessions()

    @unittest.skipUnless(shutil.which("redis-server"), "the program redis-server is not installed")
    @unittest.skipUnless(importlib.util.find_spec("redis"), "the driver redis-py is not installed")
    def test_a_server_that_is_not_up_yet_is_waited_for_as_long_as_configured(self) -> None:
        port = free_port()
        hasty = RedisSessionStore(f"redis://127.0.0.1:{port}/0", patience_s=0.2)
        self.addCleanup(hasty.close)
        with self.assertRaises(StorageError):
            hasty.list_sessions()
        found: list[list[str]] = []
        store = RedisSessionStore(f"redis://127.0.0.1:{port}/0", patience_s=60.0)
        self.addCleanup(store.close)
        asking = threading.Thread(target=lambda: found.append(store.list_sessions()))
        asking.start()
        with tempfile.TemporaryDirectory() as place:
            command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", place]
            server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            try:
                asking.join(60.0)
            finally:
                server.kill()
                server.wait()
        self.assertEqual(found, [[]])

    @unittest.skipUnless(importlib.util.find_spec("redis"), "the driver redis-py is not installed")
    def test_the_durability_notice_also_waits_for_the_first_connection(self) -> None:
        import redis

        errors = [redis.ConnectionError("not up yet"), redis.AuthenticationError("the second attempt")]
        with (
            closing(RedisSessionStore("redis://127.0.0.1:1/0", patience_s=60.0)) as store,
            self.assertRaisesRegex(StorageError, "the second attempt"),
        ):
            store._server.learn = partial(_fail_next, errors)
            store.durability_notice()

    @unittest.skipUnless(importlib.util.find_spec("psycopg"), "the driver psycopg is not installed")
    def test_a_fleet_also_waits_for_the_first_connection_to_its_database(self) -> None:
        import psycopg

        for name, ask in (
            ("read", lambda tables: tables.read("SELECT 1")),
            ("change", lambda tables: tables.change(lambda execute: execute("SELECT 1"))),
        ):
            errors = [psycopg.OperationalError("not up yet"), psycopg.OperationalError("FATAL: the second attempt")]
            with (
                self.subTest(name),
                closing(PostgresSessionStore("postgresql://127.0.0.1:1/x", patience_s=60.0)) as store,
                self.assertRaisesRegex(StorageError, "the second attempt"),
            ):
                store._server.connect = partial(_fail_next, errors)
                ask(store.tables())


@unittest.skipUnless(importlib.util.find_spec("redis"), "the driver redis-py is not installed")
@unittest.skipUnless(shutil.which("redis-server"), "the program redis-server is not installed")
class RedisServerTest(unittest.TestCase):
    def setUp(self) -> None:
        self.place = tempfile.mkdtemp(prefix="redis-")
        self.addCleanup(shutil.rmtree, self.place, ignore_errors=True)
        self.port = free_port()
        self.server: subprocess.Popen[bytes] | None = None
        self.addCleanup(self.stop)

    def start(self, *settings: str) -> None:
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self.place, *settings]
        self.server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        until_listens(self.port, self.server)

    def stop(self) -> None:
        if self.server is not None:
            self.server.kill()
            self.server.wait()
            self.server = None

    def test_the_durability_of_the_server_is_reported(self) -> None:
        for settings, durability, has_notice in (
            (("--save", "", "--appendonly", "no"), "memory", True),
            (("--save", "60 1", "--appendonly", "no"), "snapshot", True),
            (("--appendonly", "yes", "--appendfsync", "everysec"), "everysec", True),
            (("--appendonly", "yes", "--appendfsync", "no"), "flush", False),
            (("--appendonly", "yes", "--appendfsync", "always"), "fsync", False),
            (("--appendonly", "yes", "--appendfsync", "always", "--no-appendfsync-on-rewrite", "yes"), "flush", False),
        ):
            self.start(*settings)
            store = open_store(f"redis://127.0.0.1:{self.port}/0")
            self.assertEqual(store.durability_notice() is not None, has_notice)
            self.assertEqual(store.durability, durability)
            store.close()
            self.stop()

    def test_a_writer_continues_when_the_server_was_killed_and_came_back(self) -> None:
        settings = ("--appendonly", "yes", "--appendfsync", "always")
        self.start(*settings)
        store = open_store(f"redis://127.0.0.1:{self.port}/0")
        self.addCleanup(store.close)
        session_id = store.create_session()
        with store.open_writer(session_id) as writer:
            for number in range(3):
                writer.append([UserMessage(str(number))])
                self.stop()
                self.start(*settings)
            writer.append([UserMessage("3")])
        texts = [event.text for event in store.iter_events(session_id) if isinstance(event, UserMessage)]
        self.assertEqual(texts, ["0", "1", "2", "3"])
        self.assertEqual(store.read_summary(session_id), store.fold_summary(session_id))

    @full_size
    def test_a_release_that_a_restarted_server_lost_is_repeated(self) -> None:
        self.start("--save", "", "--appendonly", "no")
        store = open_store(f"redis://127.0.0.1:{self.port}/0")
        self.addCleanup(store.close)
        assert isinstance(store, RedisSessionStore)
        names = [store.create_session() for _ in range(2)]
        rows = [store._key("head", name) for name in names]

        def holders() -> list[bytes]:
            return [store._call(None, lambda client, row=row: client.hget(row, "holder")) for row in rows]

        with store.open_writer(names[0]):  # keeps the lease of this process alive
            with store.open_writer(names[1]):
                store._call(None, lambda client: client.save())
            self.assertEqual(holders()[1], b"")
            self.stop()
            self.start("--save", "", "--appendonly", "no")
            mine = store._server.holder.name.encode()
            self.assertEqual(holders(), [mine, mine])  # nobody else could write to the second one
            store._server.holder._beat()
            until(lambda: holders()[1] == b"", "the heartbeat has released it again")
            self.assertEqual(holders()[0], mine)


@unittest.skipUnless(importlib.util.find_spec("redis"), "the driver redis-py is not installed")
class ForgetfulRedisTest(unittest.TestCase):
    """A server that deletes keys when its memory is full."""

    def setUp(self) -> None:
        self.server = OwnRedis("--appendonly", "yes", "--maxmemory-policy", "allkeys-lru")
        self.addCleanup(self.server.remove)
        self.store = open_store(self.server.url)
        self.addCleanup(self.store.close)
        self.names = [self.store.create_session(session_id=f"s{number}", metadata={"cwd": "/w"}) for number in range(4)]
        for name in self.names:
            self.store.append_events(name, [UserMessage(name), UserMessage("more")])

    def forget(self, *keys: str) -> None:
        import redis

        with redis.Redis.from_url(self.server.url) as client:
            self.assertEqual(client.delete(*(f"{{openagentic}}:2:{key}" for key in keys)), len(keys))

    def test_the_notice_names_the_eviction_policy(self) -> None:
        self.assertIn("allkeys-lru", self.store.durability_notice() or "")

    def test_doctor_names_the_eviction_policy(self) -> None:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            self.assertEqual(main(["doctor", "--store", self.server.url]), 0)
        self.assertIn("allkeys-lru", out.getvalue())

    def test_a_session_that_lost_keys_is_damaged_and_never_empty(self) -> None:
        self.forget("log:s0", "head:s1")
        for name in ("s0", "s1"):
            self.assertTrue(self.store.session_exists(name))
            for call in (self.store.read_events, self.store.fold_summary):
                with self.assertRaises(LogCorruptError):
                    call(name)
            with self.assertRaises(LogCorruptError):
                self.store.append_event(name, UserMessage("x"))
        rows = {row.id: row for row in self.store.list_session_summaries()}
        self.assertEqual(sorted(rows), self.names)
        self.assertIsNotNone(rows["s1"].error)
        self.assertEqual(len(self.store.search("more")), 2)
        for name in ("s0", "s1"):
            self.store.delete_session(name)
            self.assertFalse(self.store.session_exists(name))
            self.store.create_session(session_id=name)
            self.assertEqual(self.store.append_event(name, UserMessage("new")).seq, 1)

    def test_no_session_is_read_as_shorter_than_it_was_when_the_server_lacks_memory(self) -> None:
        count, size = (300, 20_000) if LARGE else (60, 20_000)
        server = OwnRedis("--maxmemory-policy", "allkeys-lru", "--maxmemory", f"{2_000_000 + count * size // 2}")
        self.addCleanup(server.remove)
        store = open_store(server.url)
        self.addCleanup(store.close)
        stored: dict[str, int] = {}
        for number in range(count):
            name = store.create_session(session_id=f"s{number}", metadata={"cwd": "/w"})
            store.put_blob(name, b"blob")
            with contextlib.suppress(LogCorruptError):
                for _ in range(4):
                    stored[name] = store.append_event(name, UserMessage("x" * (size // 4))).seq or 0
        seen = dict.fromkeys(("whole", "damaged", "gone"), 0)
        for name, events in stored.items():
            try:
                self.assertEqual(len(store.read_events(name)), events, name)
                self.assertEqual(store.last_seq(name), events)
                seen["whole"] += 1
            except LogCorruptError:
                seen["damaged"] += 1
            except SessionNotFoundError:
                seen["gone"] += 1
        self.assertGreater(seen["whole"], 0, seen)
        self.assertGreater(seen["damaged"], 0, seen)
        rows = {row.id: row for row in store.list_session_summaries()}
        for name, row in rows.items():
            self.assertTrue(row.error or row.events == stored[name], row)
        if LARGE:
            print(f"\n{seen}", file=sys.stderr)

    def test_sessions_are_listed_although_the_lists_were_forgotten(self) -> None:
        self.forget("by:all", "by:top")
        self.assertEqual(self.store.list_sessions(), self.names[::-1])
        self.assertEqual([row.id for row in self.store.list_session_summaries(cwd="/w", limit=2)], ["s3", "s2"])

    def test_lost_blobs_are_missed(self) -> None:
        digest = self.store.put_blob("s0", b"blob")
        self.forget("blobs:s0")
        for call in (lambda: self.store.list_blobs("s0"), lambda: self.store.read_blob("s0", digest)):
            with self.assertRaises(StorageError):
                call()

    def test_events_that_the_server_kept_are_salvaged_and_the_holes_named(self) -> None:
        for name in self.names:
            self.store.put_blob(name, name.encode())
        cut = {"truncated": True, "blob": hashlib.sha256(b"s2").hexdigest()}
        self.store.append_event("s2", ToolResult("c", output=cut))
        self.forget("head:s0", "log:s1", "blobs:s2", "head:s3", "log:s3")
        for name, texts, blobs, holes in (
            ("s0", ["s0", "more"], [b"s0"], ["its row is gone"]),
            ("s1", [], [b"s1"], ["events 1 to 2 are gone"]),
            ("s2", ["s2", "more"], [], ["1 of its 1 blobs", f"blob {cut['blob']}"]),
            ("s3", [], [b"s3"], ["its row is gone", "its log is gone"]),
        ):
            before, out = set(self.store.list_sessions()), io.StringIO()
            with contextlib.redirect_stdout(out):
                self.assertEqual(main(["sessions", "verify", name, "--store", self.server.url]), 1)
                self.assertEqual(main(["sessions", "salvage", name, "--store", self.server.url]), 0)
            for hole in holes:
                self.assertEqual(out.getvalue().count(hole), 2, out.getvalue())
            (new,) = set(self.store.list_sessions()) - before
            events = self.store.read_events(new)
            self.assertEqual([event.text for event in events if isinstance(event, UserMessage)], texts)
            saved = [self.store.read_blob(new, digest) for digest in self.store.list_blobs(new)]
            self.assertEqual(saved, blobs)
            assert isinstance(events[0], LogSalvaged)
            self.assertIn("gone", events[0].damage)
        with self.assertRaises(SessionNotFoundError):
            self.store.read_remains("never")

    def test_a_row_that_is_computed_again_does_not_restore_a_deleted_session(self) -> None:
        folded = self.store.fold_summary("s0")
        at = self.store._position("s0")  # type: ignore[attr-defined]
        self.store.delete_session("s0")
        change = self.store._change_metadata  # type: ignore[attr-defined]
        self.assertFalse(change(self.store._server.client(), at, "{}", LogHead(folded)))  # type: ignore[attr-defined]
        self.assertNotIn("s0", self.store.list_sessions())

    def test_a_replica_can_be_read_and_reports_that_it_is_one(self) -> None:
        replica = OwnRedis("--replicaof", "127.0.0.1", str(self.server.port))
        self.addCleanup(replica.remove)
        store = RedisSessionStore(replica.url, patience_s=10)
        self.addCleanup(store.close)
        until(
            lambda: "replica" in (store.durability_notice() or "") and store.session_exists("s3"),
            "the replica has caught up",
        )
        self.assertEqual(len(store.read_events("s3")), 2)
        self.assertFalse(store.wait_for_events("s3", after_seq=2, timeout_s=0.05))
        with self.assertRaises(StorageError):
            store.append_event("s3", UserMessage("refused"))


@unittest.skipUnless(os.environ.get("OPENAGENTIC_TEST_POSTGRES_URL"), "no server URL is set")
class PostgresLossTest(unittest.TestCase):
    def test_a_batch_whose_answer_was_lost_is_stored_once(self) -> None:
        from openagentic_sdk.sessions import postgres
        from openagentic_sdk.sessions.stores.postgres.driver import psycopg

        class LosingStore(postgres.PostgresSessionStore):
            """Loses the response to its first append: the server committed it, and the connection broke."""

            answered = True

            def _send(self, db, at, batch, epoch, holder):  # type: ignore[no-untyped-def]
                done = super()._send(db, at, batch, epoch, holder)
                if not self.answered:
                    self.answered = True
                    db.close()
                    if self.taken_over:
                        self.other.take_over(at.id).close()
                    raise psycopg.OperationalError("the answer was lost")
                return done

        url = servers.own_postgres_schema(self, os.environ["OPENAGENTIC_TEST_POSTGRES_URL"])
        store = LosingStore(url)
        store.other = postgres.PostgresSessionStore(url)
        self.addCleanup(store.close)
        self.addCleanup(store.other.close)
        session_id = store.create_session()
        for store.taken_over in (False, True):
            writer = store.open_writer(session_id)
            before = store.last_seq(session_id)
            store.answered = False
            stored = writer.append([UserMessage("once"), UserMessage("and whole")])
            self.assertTrue(store.answered)
            self.assertEqual([event.seq for event in stored], [before + 1, before + 2])
            self.assertEqual(store.last_seq(session_id), before + 2)
            writer.close()


@unittest.skipUnless(os.environ.get("OPENAGENTIC_TEST_POSTGRES_URL"), "no server URL is set")
class StoppedProcessTest(unittest.TestCase):
    """A stopped process keeps its connections open; the server ends the transactions and locks they hold."""

    def setUp(self) -> None:
        self.url = servers.own_postgres_schema(self, os.environ["OPENAGENTIC_TEST_POSTGRES_URL"])

    def open(self, **limits: int) -> Tables:
        from openagentic_sdk.sessions.stores.postgres.driver import STOPPED_MS

        with contextlib.closing(open_store(self.url)) as creator:
            creator.list_sessions()  # on a busy machine the creation of the tables may be silent for longer than the limits
        self.addCleanup(STOPPED_MS.update, dict(STOPPED_MS))
        STOPPED_MS.update(limits)
        store = open_store(f"{self.url}&application_name={self.name}")
        self.addCleanup(store.close)
        store.list_sessions()
        return tables_of(store)

    @property
    def name(self) -> str:
        return self.url.rpartition("_")[2]

    def connections(self) -> int:
        import psycopg

        command = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
        with psycopg.connect(self.url, autocommit=True) as db:
            return int(db.execute(command, (self.name,)).fetchone()[0])

    def test_its_open_transaction_blocks_others_for_a_while_only_and_is_done_again_when_it_continues(self) -> None:
        tables, attempts = self.open(idle_in_transaction_session_timeout=100), []

        def work(execute: Execute) -> Rows:
            tables.take_turn(execute)
            attempts.append("begun")
            if len(attempts) == 1:  # another process takes its turn while this one is silent
                tables.change(tables.take_turn, steps=2)
                attempts.append("another's turn")
            return execute("SELECT 1")

        self.assertEqual(tables.change(work, steps=2), [(1,)])
        # On a busy machine, a later attempt may be silent for too long as well.
        self.assertEqual((attempts[:2], set(attempts[2:])), (["begun", "another's turn"], {"begun"}))

    def test_its_idle_connections_are_free_for_others_and_opened_again_when_it_continues(self) -> None:
        tables = self.open(idle_session_timeout=100)
        self.addCleanup(tables.close)
        tables.wait("news", 0.01)
        until(lambda: self.connections() == 0, "the server has closed all connections")
        self.assertEqual(tables.read("SELECT 1"), [(1,)])
        self.assertFalse(tables.wait("news", 0.01))

    def test_a_limit_that_a_role_or_an_address_has_set_stays(self) -> None:
        from openagentic_sdk.sessions.stores.postgres.driver import connect

        for options, limits in (("", ("20s", "45s")), ("%20-cidle_session_timeout%3D7min", ("7min", "45s"))):
            with contextlib.closing(connect(self.url + options, 5.0)) as db:
                names = ("idle_session_timeout", "idle_in_transaction_session_timeout")
                self.assertEqual(tuple(db.execute(f"SHOW {name}").fetchone()[0] for name in names), limits)
