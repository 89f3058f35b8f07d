"""Stores shared by processes: forks, leases, connections without an owner, and lost responses."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path

from openagentic_sdk.errors import LeaseLostError, SessionLockedError, StorageError
from openagentic_sdk.events import ToolResult, UserMessage
from openagentic_sdk.sessions.base import SessionStore
from openagentic_sdk.sessions.core import SessionWriter
from openagentic_sdk.sessions.stores.locate import open_store
from tests.pythons import Python
from tests.size import LARGE, full_size
from tests.waiting import pause, until

from . import servers
from .own_servers import OwnBouncer, OwnPostgres, OwnRedis

POSTGRES_URL = os.environ.get("OPENAGENTIC_TEST_POSTGRES_URL", "")
REDIS_URL = os.environ.get("OPENAGENTIC_TEST_REDIS_URL", "")
CHILDREN, APPENDS = (8, 200) if LARGE else (3, 15)
ROOT = Path(__file__).parents[2]
_HOLD = """
import sys
from openagentic_sdk.sessions.stores.locate import open_store
store = open_store(sys.argv[1])
writer = store.open_writer(sys.argv[2])
print("open", flush=True)
sys.stdin.readline()
"""


def shared_urls(test: unittest.TestCase) -> Iterator[str]:
    """A fresh URL for each kind of store that processes can share."""
    place = tempfile.TemporaryDirectory()
    test.addCleanup(place.cleanup)
    yield f"sqlite:{place.name}/s.db?durability=flush"
    if POSTGRES_URL and importlib.util.find_spec("psycopg"):
        yield servers.own_postgres_schema(test, POSTGRES_URL)
    if REDIS_URL and importlib.util.find_spec("redis"):
        yield servers.own_redis_prefix(test, REDIS_URL)


def fork_child(work: Callable[[], None]) -> int:
    """Fork a child that does the work, and return its pid; it exits with 0 if nothing was raised."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:  # noqa: BLE001 - the child must not run the parent's tests
            Path(tempfile.gettempdir(), f"child-{os.getpid()}").write_text(traceback.format_exc())
        os._exit(code)
    return child


def check_child(case: unittest.TestCase, child: int) -> None:
    """Wait for a child of `fork_child`; fail with its traceback if it raised something."""
    error, code = Path(tempfile.gettempdir(), f"child-{child}"), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    case.assertEqual(code, 0, error.read_text() if error.exists() else "it left no traceback")


def texts(store: SessionStore, session_id: str) -> list[str]:
    return [event.text for event in store.read_events(session_id) if isinstance(event, UserMessage)]


@unittest.skipIf(sys.platform == "win32", "this system has no fork")
class ForkTest(unittest.TestCase):
    def test_a_store_used_before_a_fork_serves_parent_and_children_side_by_side(self) -> None:
        for url in shared_urls(self):
            with self.subTest(url.partition(":")[0]):
                store = open_store(url)
                self.addCleanup(store.close)
                names = [store.create_session(session_id=f"s{number}") for number in range(CHILDREN + 1)]
                store.append_event(names[0], UserMessage("before"))

                def write(name: str, store: SessionStore = store) -> None:
                    for number in range(APPENDS):
                        store.append_event(name, UserMessage(f"{name} {number}"))
                        assert store.read_events(name)[-1].text == f"{name} {number}"  # type: ignore[attr-defined]

                children = [fork_child(lambda name=name: write(name)) for name in names[1:]]  # type: ignore[misc]
                write(names[0])
                for child in children:
                    check_child(self, child)
                for name in names:
                    expected = [f"{name} {number}" for number in range(APPENDS)]
                    self.assertEqual([text for text in texts(store, name) if text != "before"], expected)

    @full_size
    def test_a_server_that_forks_workers_again_and_again_while_its_threads_write_and_follow_loses_nothing(self) -> None:
        workers, per_worker = (40, 25) if LARGE else (4, 5)
        for url in shared_urls(self):
            with self.subTest(url.partition(":")[0]):
                store = open_store(url)
                self.addCleanup(store.close)
                names = [store.create_session(session_id=f"s{number}") for number in range(3)]
                end = threading.Event()
                self.addCleanup(end.set)
                failures: list[BaseException] = []
                counts = dict.fromkeys(names, 0)

                def write(
                    name: str,
                    store: SessionStore = store,
                    counts: dict[str, int] = counts,
                    end: threading.Event = end,
                ) -> None:
                    with store.open_writer(name) as writer:
                        while not end.is_set():
                            writer.append([UserMessage(f"{name} {counts[name]}")])
                            counts[name] += 1

                def follow(store: SessionStore = store, names: list[str] = names, end: threading.Event = end) -> None:
                    known = dict.fromkeys(names, 0)
                    while not end.is_set():
                        for name in store.wait_for_news(known, timeout_s=0.2):
                            known[name] = store.last_seq(name)

                def guarded(work: Callable[[], None], failures: list[BaseException] = failures) -> None:
                    try:
                        work()
                    except BaseException as error:  # noqa: BLE001 - an error of a thread must reach the test
                        failures.append(error)

                works: list[Callable[[], None]] = [follow, *(functools.partial(write, name) for name in names)]
                threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
                for thread in threads:
                    thread.start()

                def serve(number: int, store: SessionStore = store, names: list[str] = names) -> None:
                    name = store.create_session(session_id=f"worker-{number}")
                    with store.open_writer(name) as writer:
                        for count in range(per_worker):
                            writer.append([UserMessage(f"{name} {count}")])
                            assert store.wait_for_events(name, after_seq=count, timeout_s=120)
                    assert len(store.read_events(name)) == per_worker
                    with contextlib.suppress(SessionLockedError):
                        store.append_event(names[0], UserMessage("not while the parent writes"))
                        raise AssertionError("the child wrote to the parent's session")

                until(lambda counts=counts, failures=failures: failures or all(counts.values()), "every thread writes")
                for first in range(0, workers, 4):
                    children = [fork_child(lambda number=number: serve(number)) for number in range(first, first + 4)]  # type: ignore[misc]
                    for child in children:
                        check_child(self, child)
                end.set()
                for thread in threads:
                    thread.join()
                self.assertEqual(failures, [])
                for name in names:
                    self.assertEqual(texts(store, name), [f"{name} {number}" for number in range(counts[name])])
                for number in range(workers):
                    name = f"worker-{number}"
                    self.assertEqual(texts(store, name), [f"{name} {count}" for count in range(per_worker)])

    def test_a_writer_that_was_opened_before_a_fork_is_refused_in_the_child_and_continues_in_the_parent(self) -> None:
        for url in shared_urls(self):
            with self.subTest(url.partition(":")[0]):
                store = open_store(url)
                self.addCleanup(store.close)
                session_id = store.create_session()
                with store.open_writer(session_id) as writer:

                    def misuse(writer: SessionWriter = writer) -> None:
                        with self.assertRaisesRegex(StorageError, "fork"):
                            writer.append([UserMessage("from the child")])
                        # Closing the writer in the child must not release the parent's lease.
                        writer.close()

                    child = fork_child(misuse)
                    check_child(self, child)
                    with self.assertRaises(SessionLockedError):
                        store.open_writer(session_id)
                    writer.append([UserMessage("from the parent")])
                self.assertEqual(texts(store, session_id), ["from the parent"])


_FORK_AND_HOLD = """
import os, sys
from openagentic_sdk.sessions.stores.locate import open_store
store = open_store(sys.argv[1])
writer = store.open_writer(sys.argv[2])
if not os.fork():
    print(os.getpid(), flush=True)  # the child itself: what it had of its parent it has let go of
sys.stdin.readline()
"""


class LeaseTest(unittest.TestCase):
    def remote_stores(self) -> Iterator[tuple[str, SessionStore]]:
        for url in shared_urls(self):
            if not url.startswith("sqlite"):
                store = open_store(url)
                self.addCleanup(store.close)
                with self.subTest(url.partition(":")[0]):
                    yield url, store

    def end_leases(self, url: str, store: SessionStore) -> None:
        """Expire all leases, as 15 seconds without a heartbeat would."""
        server = store._server  # type: ignore[attr-defined]
        if url.startswith("redis"):
            for key in server.client().scan_iter(match=server.name("holder", "*")):
                server.client().delete(key)
        else:
            server.call(None, lambda db: db.execute("UPDATE openagentic_holders SET until = now()"), 5.0)

    def hold(self, url: str, session_id: str, temporary: str | None = None) -> subprocess.Popen[str]:
        environment = {**os.environ, "TMPDIR": temporary} if temporary else None
        pipe = subprocess.PIPE
        holder = Python("-c", _HOLD, url, session_id, stdin=pipe, stdout=pipe, text=True, cwd=ROOT, env=environment)
        self.addCleanup(holder.__exit__, None, None, None)
        self.addCleanup(holder.kill)
        assert holder.stdout is not None
        self.assertEqual(holder.stdout.readline(), "open\n")
        return holder

    def test_a_holder_that_died_on_this_host_is_replaced_at_once(self) -> None:
        for url, store in self.remote_stores():
            session_id = store.create_session()
            holder = self.hold(url, session_id)
            with self.assertRaises(SessionLockedError):
                store.open_writer(session_id)
            holder.kill()
            holder.wait()
            store.open_writer(session_id).close()

    @unittest.skipIf(sys.platform == "win32", "this system has no fork")
    def test_a_session_is_free_when_its_process_was_killed_although_a_child_that_it_forked_lives(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        for url in (*shared_urls(self), f"file:{place.name}/files?durability=flush"):
            with self.subTest(url.partition(":")[0]):
                store = open_store(url)
                self.addCleanup(store.close)
                session_id = store.create_session()
                pipe = subprocess.PIPE
                script = ("-c", _FORK_AND_HOLD, url, session_id)
                with Python(*script, stdin=pipe, stdout=pipe, text=True, cwd=ROOT) as holder:
                    assert holder.stdout is not None
                    child = int(holder.stdout.readline())
                    with self.assertRaises(SessionLockedError):
                        store.open_writer(session_id)
                    holder.kill()
                    holder.wait()
                    os.kill(child, 0)  # the child is alive
                    with store.open_writer(session_id) as writer:
                        writer.append([UserMessage("free")])
                    # The child ends when its pipe has no writer left.

    def test_a_holder_that_died_elsewhere_is_refused_with_the_time_when_its_lease_ends(self) -> None:
        for url, store in self.remote_stores():
            session_id = store.create_session()
            # Another folder for lock files makes the store look like one on another host.
            elsewhere = tempfile.TemporaryDirectory()
            self.addCleanup(elsewhere.cleanup)
            holder = self.hold(url, session_id, elsewhere.name)
            holder.kill()
            holder.wait()
            with self.assertRaises(SessionLockedError) as caught:
                store.append_event(session_id, UserMessage("too early"))
            assert caught.exception.retry_after_s is not None
            self.assertTrue(0 < caught.exception.retry_after_s <= 15, caught.exception)
            self.assertIn("(if that has died, for another ", str(caught.exception))
            self.end_leases(url, store)
            store.append_event(session_id, UserMessage("in time"))
            self.assertEqual(texts(store, session_id), ["in time"])

    def test_a_holder_that_was_taken_for_dead_cannot_append_after_an_append_from_outside(self) -> None:
        for url, store in self.remote_stores():
            other = open_store(url)
            self.addCleanup(other.close)
            session_id = store.create_session()
            with store.open_writer(session_id) as writer:
                self.end_leases(url, store)
                other.append_event(session_id, UserMessage("outside"))
                with self.assertRaises(LeaseLostError):
                    writer.append([UserMessage("woken up")])
            self.assertEqual(texts(store, session_id), ["outside"])

    def test_parked_sessions_hold_no_connection(self) -> None:
        count = 1000 if LARGE else 60
        for url, store in self.remote_stores():
            with contextlib.ExitStack() as stack:
                for number in range(count):
                    name = store.create_session(session_id=f"s{number}")
                    stack.enter_context(store.open_writer(name)).append([UserMessage("waiting")])
                server = store._server  # type: ignore[attr-defined]
                held = server.client().connection_pool._connections if url.startswith("redis") else server._idle
                self.assertLessEqual(len(held), 3)
                with self.assertRaises(SessionLockedError):
                    open_store(url).open_writer("s7")

    def test_a_session_whose_release_was_lost_is_free_for_the_same_process_at_once(self) -> None:
        for _, store in self.remote_stores():
            session_id = store.create_session()
            writer = store.open_writer(session_id)
            at = writer._at  # type: ignore[attr-defined]
            # The release never reached the server: only this process knows that the writer is closed.
            writer._holder.drop(at.key, writer.epoch)  # type: ignore[attr-defined]
            with store.open_writer(session_id) as second:
                second.append([UserMessage("second")])
                with self.assertRaises(LeaseLostError):
                    writer.append([UserMessage("first")])

    def test_threads_that_share_a_writer_are_served_one_after_the_other(self) -> None:
        for url in shared_urls(self):
            with self.subTest(url.partition(":")[0]):
                store = open_store(url)
                self.addCleanup(store.close)
                session_id = store.create_session()
                failures: list[BaseException] = []
                with store.open_writer(session_id) as writer:

                    def write(writer: SessionWriter = writer, failures: list[BaseException] = failures) -> None:
                        try:
                            for number in range(20):
                                writer.append([ToolResult("c"), UserMessage(str(number))][number % 2 :])
                        except BaseException as error:  # noqa: BLE001 - an error of a thread must reach the test
                            failures.append(error)

                    threads = [threading.Thread(target=write) for _ in range(4)]
                    for thread in threads:
                        thread.start()
                    for thread in threads:
                        thread.join()
                    self.assertEqual((failures, writer.last_seq), ([], 120))
                self.assertEqual(len(store.read_events(session_id)), 120)
                self.assertEqual(store.read_summary(session_id), store.fold_summary(session_id))


class InterruptTest(unittest.TestCase):
    def test_after_ctrl_c_inside_an_append_the_writer_continues_after_what_was_stored(self) -> None:
        for url in shared_urls(self):
            if url.startswith("sqlite"):
                continue
            for was_sent in (False, True):
                with self.subTest(url.partition(":")[0], was_sent=was_sent):
                    store = open_store(url)
                    self.addCleanup(store.close)
                    session_id = store.create_session()
                    with store.open_writer(session_id) as writer:
                        send = store._send  # type: ignore[attr-defined]

                        def interrupted(*how, send=send, was_sent=was_sent):  # type: ignore[no-untyped-def]
                            if was_sent:
                                send(*how)
                            raise KeyboardInterrupt

                        store._send = interrupted  # type: ignore[attr-defined]
                        with self.assertRaises(KeyboardInterrupt):
                            writer.append([UserMessage("one"), UserMessage("two")])
                        store._send = send  # type: ignore[attr-defined]
                        self.assertEqual(writer.last_seq, 2 if was_sent else 0)
                        writer.append([UserMessage("three")])
                    expected = ["one", "two", "three"] if was_sent else ["three"]
                    self.assertEqual(texts(store, session_id), expected)


class HangingServerTest(unittest.TestCase):
    """A stopped server answers no request and keeps its connections open."""

    @unittest.skipUnless(importlib.util.find_spec("redis"), "the driver redis-py is not installed")
    def test_an_append_to_a_redis_that_stalls_is_stored_once(self) -> None:
        from openagentic_sdk.sessions.redis import RedisSessionStore

        server = OwnRedis("--appendonly", "yes")
        self.addCleanup(server.remove)
        # The response timeout is one second, and the server stalls for longer.
        self.check(server, functools.partial(RedisSessionStore, server.url), 10 if LARGE else 1.2)

    @unittest.skipUnless(importlib.util.find_spec("psycopg"), "the driver psycopg is not installed")
    def test_an_append_to_a_postgres_that_stalls_is_stored_once(self) -> None:
        from openagentic_sdk.sessions.postgres import PostgresSessionStore

        server = OwnPostgres()
        self.addCleanup(server.remove)
        self.check(server, functools.partial(PostgresSessionStore, server.url()), 10 if LARGE else 0.7)

    def check(self, server: OwnRedis | OwnPostgres, make_store: Callable[..., SessionStore], stall_s: float) -> None:
        store, hasty = make_store(patience_s=120.0), make_store(patience_s=20 if LARGE else 3.0)
        self.addCleanup(store.close)
        self.addCleanup(hasty.close)
        session_id = store.create_session()
        with store.open_writer(session_id) as writer:
            writer.append([UserMessage("0")])
            server.signal(signal.SIGSTOP)
            timer = threading.Timer(stall_s, server.signal, [signal.SIGCONT])
            timer.start()
            writer.append([UserMessage("1")])
            timer.join()
            self.assertEqual(texts(store, session_id), ["0", "1"])
        # A server that never answers is given up after `patience_s`, and the writer recovers afterwards.
        with hasty.open_writer(session_id) as writer:
            server.signal(signal.SIGSTOP)
            with self.assertRaises(StorageError):
                writer.append([UserMessage("2")])
            server.signal(signal.SIGCONT)
            writer.append([UserMessage("3")])
            self.assertIn(texts(store, session_id), (["0", "1", "2", "3"], ["0", "1", "3"]))
            self.assertEqual(writer.last_seq, store.last_seq(session_id))
        self.assertEqual(store.read_summary(session_id), store.fold_summary(session_id))


@unittest.skipUnless(importlib.util.find_spec("psycopg"), "the driver psycopg is not installed")
class PoolerAndRolesTest(unittest.TestCase):
    server: OwnPostgres

    @classmethod
    def setUpClass(cls) -> None:
        cls.server = OwnPostgres()
        cls.addClassCleanup(cls.server.remove)

    def execute(self, *commands: str, database: str = "postgres") -> None:
        import psycopg

        with psycopg.connect(self.server.url(database), autocommit=True) as db:
            for command in commands:
                db.execute(command)  # type: ignore[call-overload]

    def test_a_pooler_in_between_works_in_both_modes(self) -> None:
        for mode in ("session", "transaction"):
            with self.subTest(mode):
                bouncer = OwnBouncer(self.server.port, mode)
                self.addCleanup(bouncer.remove)
                self.execute(f"CREATE DATABASE through_{mode}")
                url = self.server.url(f"through_{mode}", port=bouncer.port)
                one, other = open_store(url), open_store(url)
                self.addCleanup(one.close)
                self.addCleanup(other.close)
                session_id = one.create_session(metadata={"cwd": "/w"})
                with one.open_writer(session_id) as writer:
                    with self.assertRaises(SessionLockedError):
                        other.open_writer(session_id)
                    failures: list[BaseException] = []

                    def follow(
                        store: SessionStore = other,
                        session_id: str = session_id,
                        failures: list[BaseException] = failures,
                    ) -> None:
                        try:
                            after_seq = 0
                            while after_seq < 20:
                                assert store.wait_for_events(session_id, after_seq=after_seq, timeout_s=120)
                                after_seq = store.last_seq(session_id)
                        except BaseException as error:  # noqa: BLE001 - an error of a thread must reach the test
                            failures.append(error)

                    follower = threading.Thread(target=follow)
                    follower.start()
                    for number in range(20):
                        writer.append([UserMessage(str(number))])
                    follower.join()
                    self.assertEqual(failures, [])
                copy = one.copy_session(session_id, "copy", at_seq=10, tail=[], metadata={})
                self.assertEqual(len(other.read_events(copy)), 10)
                self.assertEqual([hit.seq for hit in one.search("19")], [20])
                with other.take_over(session_id) as second:
                    second.append([UserMessage("last")])
                one.delete_session(session_id)

    def test_a_role_that_may_only_read_and_write_rows_is_enough_once_the_tables_are_there(self) -> None:
        self.execute("CREATE DATABASE roles", "CREATE ROLE app LOGIN")
        self.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC", database="roles")
        early = open_store(self.server.url("roles", "app"))
        self.addCleanup(early.close)
        with self.assertRaisesRegex(StorageError, "store migrate"):
            early.list_sessions()
        owner = open_store(self.server.url("roles"))
        self.addCleanup(owner.close)
        owner.list_sessions()
        self.execute(
            "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO app",
            "GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO app",
            database="roles",
        )
        store = open_store(self.server.url("roles", "app"))
        self.addCleanup(store.close)
        session_id = store.create_session()
        store.append_event(session_id, UserMessage("a zebra"))
        with store.open_writer(session_id) as writer:
            writer.append([UserMessage("two")])
        with store.take_over(session_id) as writer:
            writer.append([UserMessage("three")])
        self.assertEqual([hit.seq for hit in store.search("zebra")], [1])
        store.delete_session(store.copy_session(session_id, "copy", at_seq=2, tail=[], metadata={}))

    def test_a_writer_survives_restarts_and_killed_backends(self) -> None:
        restarts, kills = (20, 100) if LARGE else (1, 5)
        self.execute("CREATE DATABASE restarts")
        store = open_store(self.server.url("restarts"))
        self.addCleanup(store.close)
        session_id = store.create_session()
        count = 0
        with store.open_writer(session_id) as writer:
            for number in range(restarts + kills):
                if number < restarts:
                    self.server.stop()
                    thread = threading.Thread(target=self.server.start)
                    thread.start()
                else:
                    self.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'restarts'")
                for _ in range(3):
                    writer.append([UserMessage(str(count))])
                    count += 1
                if number < restarts:
                    thread.join()
        self.assertEqual(texts(store, session_id), [str(number) for number in range(count)])
        self.server.stop()
        thread = threading.Thread(
            target=lambda: (pause(0.1, "another writer is requested meanwhile"), self.server.start())
        )
        thread.start()
        store.open_writer(session_id).close()
        thread.join()
