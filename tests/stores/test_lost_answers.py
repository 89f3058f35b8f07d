"""A connection breaks or hangs at any piece of any call: the operation happens once, or not at all and with an error."""

from __future__ import annotations

import importlib.util
import os
import unittest
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

from openagentic_sdk.errors import StorageError
from openagentic_sdk.events import Event, SessionMeta, ToolResult, UserMessage
from openagentic_sdk.sessions.base import SessionStore, stamp_events
from openagentic_sdk.sessions.postgres import PostgresSessionStore
from openagentic_sdk.sessions.redis import RedisSessionStore

from ..size import LARGE
from ..waiting import until
from . import servers
from .proxy import Fault, Proxy

POSTGRES_URL = os.environ.get("OPENAGENTIC_TEST_POSTGRES_URL", "")
REDIS_URL = os.environ.get("OPENAGENTIC_TEST_REDIS_URL", "")
BATCH: list[Event] = [UserMessage("two"), ToolResult("c", output="three")]
PATIENCE_S = 0.4


def texts(store: SessionStore, name: str) -> list[str]:
    return [getattr(event, "text", "result") for event in store.read_events(name)]


class Calls:
    """The calls that change a store. Each starts from a session of one event and returns a check of the outcome."""

    def __init__(self, store: SessionStore, name: str) -> None:
        self.store, self.name, self.other = store, name, f"{name}-other"
        store.import_session(name, stamp_events([UserMessage("one")], first_seq=1, now=1.0), blobs=[b"blob"])

    def writer(self) -> Callable[[], object]:
        with self.store.open_writer(self.name) as writer:
            writer.append(BATCH)
            writer.append([SessionMeta(title="t")])
        # The session must be free for this process even if closing the writer failed.
        with self.store.open_writer(self.name) as writer:
            writer.append([ToolResult("c")])
        return lambda: texts(self.store, self.name) == ["one", "two", "result", "result", "result"]

    def append(self) -> Callable[[], object]:
        stored = self.store.append_events(self.name, BATCH, expected_seq=1)
        return lambda: [event.seq for event in stored] == [2, 3] and len(texts(self.store, self.name)) == 3

    def create(self) -> Callable[[], object]:
        self.store.create_session(session_id=self.other, metadata={"cwd": "/w"})
        return lambda: self.store.read_events(self.other) == []

    def bring(self) -> Callable[[], object]:
        """Import from iterators that can be read only once: the result is complete, or absent with an error."""
        self.store.import_session(self.other, iter(self.store.read_events(self.name)), blobs=iter([b"blob", b"more"]))
        return lambda: (texts(self.store, self.other), len(self.store.list_blobs(self.other))) == (["one"], 2)

    def copy(self) -> Callable[[], object]:
        self.store.copy_session(self.name, self.other, at_seq=1, tail=BATCH, metadata={})
        return lambda: (len(texts(self.store, self.other)), len(self.store.list_blobs(self.other))) == (3, 1)

    def change(self) -> Callable[[], object]:
        self.store.update_metadata(self.name, {"cwd": "/elsewhere"})
        return lambda: self.store.read_summary(self.name).cwd == "/elsewhere"

    def delete(self) -> Callable[[], object]:
        self.store.delete_session(self.name, expected_seq=1)
        return lambda: not self.store.session_exists(self.name)

    def blob(self) -> Callable[[], object]:
        digest = self.store.put_blob(self.name, b"second")
        return lambda: self.store.read_blob(self.name, digest) == b"second"

    def say(self) -> Callable[[], object]:
        if not self.store.has_inbox:
            return lambda: True
        number = self.store.put_message(self.name, {"n": 1})
        second = self.store.put_message(self.name, {"n": 2})
        self.store.remove_messages([number])
        return lambda: [each.number for each in self.store.read_messages([self.name])] == [second]

    def read(self) -> Callable[[], object]:
        found = texts(self.store, self.name), self.store.read_blob(self.name, self.store.list_blobs(self.name)[0])
        hits = [hit.session_id for hit in self.store.search("one") if hit.session_id == self.name]
        return lambda: (found, hits) == ((["one"], b"blob"), [self.name])


CALLS = ("writer", "append", "create", "bring", "copy", "change", "delete", "blob", "say", "read")


class LostAnswerTest(unittest.TestCase):
    def urls(self) -> Iterator[str]:
        if POSTGRES_URL and importlib.util.find_spec("psycopg"):
            yield servers.own_postgres_schema(self, POSTGRES_URL)
        if REDIS_URL and importlib.util.find_spec("redis"):
            yield servers.own_redis_prefix(self, REDIS_URL)
        if not POSTGRES_URL and not REDIS_URL:
            self.skipTest("OPENAGENTIC_TEST_POSTGRES_URL and OPENAGENTIC_TEST_REDIS_URL are not set")

    def patient(self, url: str, patience_s: float) -> SessionStore:
        kind = RedisSessionStore if url.startswith("redis") else PostgresSessionStore
        store = kind(url, patience_s=patience_s)
        self.addCleanup(store.close)
        return store

    def run_at_each_piece(self, fault: Fault, every: int, patience_s: float, *, first: int = 1) -> None:
        for url in self.urls():
            direct = self.patient(url, 30.0)
            with Proxy(url) as proxy:
                store = self.patient(proxy.url, patience_s)
                until(partial(self.is_connected, store), "the store is connected")
                for call in CALLS:
                    if call == "read":
                        direct.search(
                            "one"
                        )  # indexes the sessions of the other calls, which takes longer than the patience
                    piece = first
                    while self.run_at(proxy, store, direct, call, piece, fault):
                        piece += every
                    self.assertTrue(piece > 1 or not store.has_inbox, call)
                store.close()
            for name in direct.list_sessions():
                self.assertEqual(direct.read_summary(name), direct.fold_summary(name), name)

    def is_connected(self, store: SessionStore) -> bool:
        with suppress(StorageError):
            store.list_sessions()
            return True
        return False

    def run_at(
        self, proxy: Proxy, store: SessionStore, direct: SessionStore, call: str, piece: int, fault: Fault
    ) -> bool:
        """Run the call with a fault at that piece and check the outcome; return False if it sends fewer pieces."""
        kind = direct.__class__.__name__
        with self.subTest(kind, call=call, piece=piece, fault=fault):
            calls = Calls(direct, f"{call}-{piece}")
            calls.store = store
            proxy.fail(piece, fault)
            failure: StorageError | None = None
            try:
                done = getattr(calls, call)()
            except StorageError as error:
                failure = error
            if proxy.disarm():
                if failure is None:
                    return False
                # Without a fault, only the short patience can end, on a busy machine.
                self.assertTrue(fault.startswith("hang"), failure)
            calls.store = direct
            if failure is None:
                self.assertTrue(done(), texts(direct, calls.name) if direct.session_exists(calls.name) else "gone")
            elif fault.startswith("cut"):
                # Only a source that can be read just once makes a retry impossible.
                self.assertEqual(call, "bring", failure)
                self.assertFalse(direct.session_exists(calls.other))
            if direct.session_exists(calls.other):
                self.assertIn(len(texts(direct, calls.other)), ({"create": 0, "bring": 1, "copy": 3}[call],))
        return True

    def test_a_connection_that_breaks_before_or_after_any_piece_doubles_and_loses_nothing(self) -> None:
        # In the small size: cut after odd pieces, so that each call loses a response, and before even ones.
        for fault, first in (("cut before", 2), ("cut inside", 2), ("cut answer", 1), ("cut after", 1)):
            self.run_at_each_piece(fault, 1 if LARGE else 2, 60.0, first=1 if LARGE else first)  # type: ignore[arg-type]

    def test_a_server_that_stops_answering_at_any_piece_is_given_up_when_patience_ends(self) -> None:
        for fault in ("hang before", "hang inside", "hang answer", "hang after"):
            self.run_at_each_piece(fault, 1 if LARGE else 7, PATIENCE_S)  # type: ignore[arg-type]
