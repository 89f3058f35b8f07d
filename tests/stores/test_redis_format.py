"""The format of a session on a Redis server, which every operation checks, and the server settings that endanger data."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import shutil
import signal
import threading
import unittest
from collections.abc import Callable
from functools import partial
from typing import Any

from openagentic_sdk import OpenAgenticOptions, run
from openagentic_sdk.errors import OptionsError, SessionLockedError, SessionNotFoundError, StorageError
from openagentic_sdk.events import UserMessage
from openagentic_sdk.parts.record.lifecycle import fork_session
from openagentic_sdk.sessions import redis as redis_store
from openagentic_sdk.sessions.redis import RedisSessionStore
from openagentic_sdk.sessions.stores.locate import open_store
from openagentic_sdk.sessions.stores.redis.scripts import run as run_script
from openagentic_sdk.testing import ScriptedProvider

from ..size import LARGE
from .own_servers import OwnRedis

# The append script of format 1: it checks key, epoch, holder and length, but no format.
OLD_APPEND = """
    local key, epoch, holder = unpack(redis.call('HMGET', KEYS[1], 'key', 'epoch', 'holder'))
    if (key or '') ~= ARGV[1] or epoch ~= ARGV[2] or holder ~= ARGV[3] then return 0 end
    if redis.call('LLEN', KEYS[2]) ~= tonumber(ARGV[4]) then return 0 end
    redis.call('RPUSH', KEYS[2], ARGV[5])
    redis.call('HSET', KEYS[1], 'updated', '2.0')
    if ARGV[6] == 'counts' then redis.call('HSET', KEYS[1], 'last_seq', redis.call('LLEN', KEYS[2])) end
    redis.call('ZADD', KEYS[4], redis.call('INCR', KEYS[3]), ARGV[7])
    return 1
"""
OLD_CREATE = """
    if redis.call('EXISTS', KEYS[1]) == 1 then
        if redis.call('HGET', KEYS[1], 'key') == ARGV[2] then return 1 end
        return 0
    end
    redis.call('DEL', KEYS[2])
    redis.call('HSET', KEYS[1], 'key', ARGV[2], 'created_at', '1.0', 'metadata', '{}', 'epoch', 0, 'holder', '',
               'revision', 0, 'updated', '1.0', 'summary', '', 'last_seq', 0)
    redis.call('ZADD', KEYS[4], redis.call('INCR', KEYS[3]), ARGV[1])
    return 1
"""


class OldProcess:
    """A process of the previous version, as seen by the server."""

    def __init__(self, url: str) -> None:
        import redis

        self.client = redis.Redis.from_url(url)
        self.refusal = redis.ResponseError

    def names(self, session_id: str) -> list[str]:
        own = [f"{{openagentic}}:{kind}:{session_id}" for kind in ("head", "log")]
        return [*own, "{openagentic}:touches:", "{openagentic}:by:all"]

    def create(self, session_id: str) -> bool:
        return bool(self.client.register_script(OLD_CREATE)(self.names(session_id), [session_id, f"key {session_id}"]))

    def append(self, session_id: str, seq: int, text: str, *, counts: bool = True, holder: str = "") -> bool:
        line = json.dumps({"v": 1, "seq": seq, "ts": 2.0, "type": "user.message", "text": text})
        arguments = [f"key {session_id}", 0, holder, seq - 1, line, "counts" if counts else "", session_id]
        return bool(self.client.register_script(OLD_APPEND)(self.names(session_id), arguments))


def texts(store: Any, session_id: str) -> list[str]:
    return [event.text for event in store.read_events(session_id) if isinstance(event, UserMessage)]


@unittest.skipUnless(importlib.util.find_spec("redis"), "the driver redis-py is not installed")
@unittest.skipUnless(shutil.which("redis-server"), "the program redis-server is not installed")
class RedisTest(unittest.TestCase):
    def serve(self, *settings: str) -> OwnRedis:
        server = OwnRedis(*(settings or ("--save", "", "--appendonly", "no")))
        self.addCleanup(server.remove)
        return server

    def open(self, url: str) -> Any:
        store = open_store(url)
        self.addCleanup(store.close)
        return store


class FormatTest(RedisTest):
    def test_a_session_of_the_old_format_continues_whole_and_its_old_process_can_write_no_more(self) -> None:
        server = self.serve()
        old, store = OldProcess(server.url), self.open(server.url)
        for name in ("a", "b"):
            self.assertTrue(old.create(name))
            self.assertTrue(old.append(name, 1, "one") and old.append(name, 2, "two"))
        store.create_session(session_id="new")
        self.assertEqual(texts(store, "a"), ["one", "two"])
        store.append_event("a", UserMessage("three"))
        for name in ("a", "new"):
            for write in (lambda name=name: old.append(name, 3, "mine"), lambda name=name: old.create(name)):
                with self.assertRaisesRegex(old.refusal, "WRONGTYPE"):
                    write()
        self.assertEqual(texts(store, "a"), ["one", "two", "three"])
        fork = fork_session(store, "a")
        self.assertEqual(texts(store, fork), ["one", "two", "three"])
        self.assertEqual(sorted(store.list_sessions()), sorted(["a", "b", "new", fork]))
        self.assertEqual({row.id: row.events for row in store.list_session_summaries()}["b"], 2)
        self.assertEqual(list(old.client.scan_iter(match="{openagentic}:log:*")), [])
        store.delete_session("a")
        self.assertEqual([name for name in old.client.scan_iter() if name.endswith(b":a")], [])

    def test_a_session_of_a_first_version_which_gave_it_no_key_can_be_erased_from_sent_to_and_claimed(self) -> None:
        server = self.serve()
        old, store = OldProcess(server.url), self.open(server.url)
        old.create("a")
        self.assertTrue(old.append("a", 1, "one") and old.append("a", 2, "two"))
        old.client.hdel("{openagentic}:head:a", "key")
        store.rewrite_events("a", lambda events: {1: UserMessage("gone", seq=1, ts=2.0)})
        self.assertEqual(texts(store, "a"), ["gone", "two"])
        self.assertEqual(store.claim_request("a", "r"), "a")
        number = store.put_message("a", {"n": 1})
        self.assertEqual([each.number for each in store.read_messages(["a"])], [number])

    def test_a_create_that_arrives_after_its_session_was_deleted_is_refused(self) -> None:
        store = self.open(self.serve().url)
        late: list[Any] = []

        def note_and_run(name: str, *rest: Any) -> Any:
            if name == "create":
                late.append(partial(run_script, name, *rest[:2]))
            return run_script(name, *rest)

        self.addCleanup(setattr, redis_store, "run", run_script)
        redis_store.run = note_and_run  # type: ignore[assignment]
        store.create_session(session_id="s")
        store.delete_session("s")
        self.assertEqual(store._call("s", late[0]), 0)
        self.assertEqual(store.list_sessions(), [])
        store.create_session(session_id="s")
        self.assertEqual(store.list_sessions(), ["s"])

    def test_events_of_a_version_that_did_not_count_them_are_in_the_session_and_in_its_fork(self) -> None:
        server = self.serve()
        old, store = OldProcess(server.url), self.open(server.url)
        old.create("a")
        self.assertTrue(old.append("a", 1, "one") and old.append("a", 2, "two", counts=False))
        self.assertEqual(texts(store, "a"), ["one", "two"])
        store.append_event("a", UserMessage("three"))
        self.assertEqual(texts(store, fork_session(store, "a")), ["one", "two", "three"])
        self.assertEqual([row.events for row in store.list_session_summaries() if row.id == "a"], [3])

    def test_a_session_that_a_process_of_the_old_format_holds_is_left_to_it(self) -> None:
        server = self.serve()
        old, store = OldProcess(server.url), self.open(server.url)
        old.create("a")
        old.client.hset("{openagentic}:head:a", "holder", "x process 7 on h")
        old.client.set("{openagentic}:holder:x process 7 on h", 1, px=600_000)
        for call in (store.read_events, store.open_writer, store.delete_session, store.last_seq):
            with self.assertRaisesRegex(SessionLockedError, "process 7 on h, of an older version"):
                call("a")
        self.assertEqual(store.list_sessions(), [])
        self.assertTrue(old.append("a", 1, "one", holder="x process 7 on h"))
        old.client.delete("{openagentic}:holder:x process 7 on h")
        self.assertEqual(store.list_sessions(), ["a"])
        store.append_event("a", UserMessage("two"))
        self.assertEqual(texts(store, "a"), ["one", "two"])

    def test_no_operation_touches_a_session_of_a_newer_format(self) -> None:
        server = self.serve()
        store = self.open(server.url)
        store.create_session(session_id="a")
        store.append_event("a", UserMessage("one"))
        digest = store.put_blob("a", b"blob")
        writer = store.open_writer("a")
        client = OldProcess(server.url).client
        client.hset("{openagentic}:2:head:a", "format", 3)

        def state() -> list[Any]:
            names = sorted(client.scan_iter(match="*:a"))
            return [(name, client.dump(name)) for name in names]

        before = state()
        calls: list[tuple[str, Callable[[], Any]]] = [
            ("an open writer", lambda: writer.append([UserMessage("two")])),
            ("append_event", lambda: store.append_event("a", UserMessage("two"))),
            ("open_writer", lambda: store.open_writer("a")),
            ("take_over", lambda: store.take_over("a")),
            ("read_events", lambda: store.read_events("a")),
            ("last_seq", lambda: store.last_seq("a")),
            ("read_metadata", lambda: store.read_metadata("a")),
            ("update_metadata", lambda: store.update_metadata("a", {"x": 1})),
            ("put_blob", lambda: store.put_blob("a", b"more")),
            ("read_blob", lambda: store.read_blob("a", digest)),
            ("list_blobs", lambda: store.list_blobs("a")),
            ("delete_blobs", lambda: store.delete_blobs("a", [digest])),
            ("rewrite_events", lambda: store.rewrite_events("a", lambda events: {})),
            ("read_remains", lambda: store.read_remains("a")),
            ("read_kept_view", lambda: list(store.read_kept_view("a")[1])),
            ("fork", lambda: fork_session(store, "a")),
            ("fold_summary", lambda: store.fold_summary("a")),
            ("is_held", lambda: store.is_held("a")),
            ("session_exists", lambda: store.session_exists("a")),
            ("delete_session", lambda: store.delete_session("a")),
        ]
        for name, call in calls:
            with self.subTest(name), self.assertRaisesRegex(StorageError, "format 3 by a newer version"):
                call()
        store.keep_checkpoint("a", b"mine")
        self.assertEqual(state(), before)
        (row,) = store.list_session_summaries()
        self.assertRegex(str(row.error), "format 3")
        self.assertEqual(store.list_sessions(), ["a"])
        with self.assertRaises(SessionNotFoundError):
            store.read_events("b")


class PromiseTest(RedisTest):
    def test_acknowledged_events_survive_the_death_of_a_server_whose_settings_promise_that(self) -> None:
        for policy, durability in (("always", "fsync"), ("no", "flush")):
            with self.subTest(policy):
                server = self.serve("--appendonly", "yes", "--appendfsync", policy, "--save", "")
                store = RedisSessionStore(server.url, patience_s=0.2)
                self.addCleanup(store.close)
                patient = self.open(server.url)
                patient.create_session(session_id="a")
                self.assertEqual(patient.durability, durability)
                acknowledged, enough = 0, threading.Event()

                def write(store: Any = store, enough: threading.Event = enough) -> None:
                    nonlocal acknowledged
                    while not enough.is_set():  # the patience may also end because the machine is busy
                        with contextlib.suppress(StorageError), store.open_writer("a") as writer:
                            while True:
                                acknowledged = writer.append([UserMessage("x" * 500)])[-1].seq or 0
                                if acknowledged >= (6000 if LARGE else 600):
                                    enough.set()

                writing = threading.Thread(target=write)
                writing.start()
                enough.wait()
                server.signal(signal.SIGKILL)
                server.stop()
                writing.join()
                server.start()
                again = RedisSessionStore(server.url)
                self.addCleanup(again.close)
                self.assertGreaterEqual(len(again.read_events("a")), acknowledged)

    def test_a_run_reports_the_durability_of_the_servers_settings_even_when_they_change(self) -> None:
        server = self.serve("--appendonly", "yes", "--appendfsync", "always")
        store = self.open(server.url)
        client = OldProcess(server.url).client

        def said() -> tuple[str, list[str]]:
            options = OpenAgenticOptions(provider=ScriptedProvider(["Tea."]), model="scripted", session_store=store)
            events = asyncio.run(run(prompt="Tea?", options=options)).events
            notices = [
                event.message for event in events if event.type == "system.notice" and event.code == "store.durability"
            ]  # type: ignore[attr-defined]
            return events[0].durability, notices  # type: ignore[attr-defined]

        self.assertEqual(said(), ("fsync", []))
        client.config_set("appendfsync", "everysec")
        durability, (notice,) = said()
        self.assertEqual(durability, "everysec")
        self.assertIn("up to two seconds", notice)
        client.config_set("appendonly", "no")
        client.config_set("save", "")
        self.assertEqual(said()[0], "memory")

    def test_a_server_that_hides_its_settings_is_promised_for_with_the_least_that_they_may_keep(self) -> None:
        for settings, hidden, durability in (
            (("--appendonly", "yes", "--appendfsync", "always"), ("-config",), "everysec"),
            (("--appendonly", "no", "--save", "1 1"), ("-config",), "memory"),
            (("--appendonly", "yes", "--appendfsync", "always"), ("-config", "-info"), "memory"),
        ):
            with self.subTest(settings=settings, hidden=hidden):
                server = self.serve(*settings)
                OldProcess(server.url).client.execute_command("ACL", "SETUSER", "default", *hidden)
                store = self.open(server.url)
                self.assertIn("does not reveal its settings", str(store.durability_notice()))
                self.assertEqual(store.durability, durability)
                store.append_event(store.create_session(), UserMessage("x"))

    def test_durability_that_the_server_cannot_keep_is_refused_before_anything_is_stored(self) -> None:
        server = self.serve("--appendonly", "yes", "--appendfsync", "everysec")
        client = OldProcess(server.url).client
        for wanted, policy, is_kept in (
            ("flush", "everysec", False),
            ("barrier", "no", False),
            ("fsync", "no", False),
            ("flush", "no", True),
            ("barrier", "always", True),
            ("fsync", "always", True),
        ):
            with self.subTest(wanted=wanted, policy=policy):
                client.config_set("appendfsync", policy)
                store = self.open(f"{server.url}?durability={wanted}")
                if is_kept:
                    store.create_session()
                else:
                    with self.assertRaisesRegex(
                        StorageError, f"durability '{wanted}' was requested.*appendfsync to always"
                    ):
                        store.create_session()
                store.close()
        with self.assertRaises(OptionsError):
            open_store(f"{server.url}?durability=never")


if __name__ == "__main__":
    unittest.main()
