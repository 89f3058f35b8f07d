"""A standby serves reads while its primary is alive, and takes over when it dies, with or without the last events."""

from __future__ import annotations

import importlib.util
import signal
import threading
import unittest

from openagentic_sdk.errors import ConcurrencyError, LeaseLostError, StorageError
from openagentic_sdk.events import UserMessage
from openagentic_sdk.parts.record.lifecycle import copy_missing
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.sessions.postgres import PostgresSessionStore
from tests.waiting import until

from .own_servers import OwnPostgres


@unittest.skipUnless(importlib.util.find_spec("psycopg"), "the driver psycopg is not installed")
class StandbyTest(unittest.TestCase):
    primary: OwnPostgres
    standby: OwnPostgres

    def setUp(self) -> None:
        self.primary = OwnPostgres()
        self.addCleanup(self.primary.remove)
        self.store = PostgresSessionStore(self.primary.url(), patience_s=10)
        self.addCleanup(self.store.close)
        self.session_id = self.store.create_session(metadata={"cwd": "/w", "tenant": "x"})
        self.store.append_events(self.session_id, [UserMessage("a zebra"), UserMessage("two")])
        self.blob = self.store.put_blob(self.session_id, b"blob")
        self.assertEqual(len(self.store.search("zebra")), 1)
        self.standby = OwnPostgres(standby_of=self.primary)
        self.addCleanup(self.standby.remove)

    def execute(self, server: OwnPostgres, command: str) -> object:
        import psycopg

        with psycopg.connect(server.url(), autocommit=True) as db:
            answer = db.execute(command)  # type: ignore[call-overload]
            return answer.fetchone()[0] if answer.description else None

    def wait_until_replayed(self) -> None:
        end = self.execute(self.primary, "SELECT pg_current_wal_lsn()")
        question = f"SELECT pg_last_wal_replay_lsn() >= '{end}'"
        until(lambda: self.execute(self.standby, question), "the standby has replayed everything")

    def test_a_standby_shows_everything_follows_and_refuses_to_write(self) -> None:
        self.wait_until_replayed()
        reader = PostgresSessionStore(self.standby.url())
        self.addCleanup(reader.close)
        session_id = self.session_id
        self.assertEqual(reader.read_events(session_id), self.store.read_events(session_id))
        self.assertEqual(reader.list_session_summaries(tenant="x"), self.store.list_session_summaries())
        self.assertEqual(reader.read_blob(session_id, reader.list_blobs(session_id)[0]), b"blob")
        self.assertEqual([hit.seq for hit in reader.search("zebra")], [1])
        self.assertIsNotNone(reader.search_notice())
        self.assertEqual(len(list(copy_missing(reader, MemorySessionStore(), session_id))), 1)
        news: list[object] = []
        follower = threading.Thread(target=lambda: news.append(reader.wait_for_news({session_id: 2}, timeout_s=120)))
        follower.start()
        self.store.append_event(session_id, UserMessage("three"))
        follower.join()
        self.assertEqual((news, reader.last_seq(session_id)), ([{session_id}], 3))
        reader = PostgresSessionStore(self.standby.url(), patience_s=2)
        self.addCleanup(reader.close)
        for write in (
            lambda: reader.append_event(session_id, UserMessage("x")),
            lambda: reader.open_writer(session_id),
            reader.create_session,
            lambda: reader.update_metadata(session_id, {"a": 1}),
            lambda: reader.put_message(session_id, {}),
            lambda: reader.delete_session(session_id),
        ):
            with self.assertRaisesRegex(StorageError, "read-only"):
                write()

    def test_after_a_failover_that_lost_events_writers_are_refused_and_the_log_continues_without_a_hole(self) -> None:
        self.wait_until_replayed()
        both = f"postgresql://postgres@127.0.0.1:{self.primary.port},127.0.0.1:{self.standby.port}/postgres"
        store = PostgresSessionStore(f"{both}?target_session_attrs=read-write", patience_s=20)
        self.addCleanup(store.close)
        with store.open_writer(self.session_id) as writer, store.open_writer(store.create_session()) as other:
            writer.append([UserMessage("three")])
            self.wait_until_replayed()
            self.standby.stop(signal.SIGINT)
            writer.append([UserMessage("lost")])
            self.primary.stop()
            self.standby.start()
            self.execute(self.standby, "SELECT pg_promote()")
            with self.assertRaises((ConcurrencyError, LeaseLostError)):
                writer.append([UserMessage("behind what was lost")])
            other.append([UserMessage("goes on")])
        self.assertEqual([event.seq for event in store.read_events(self.session_id)], [1, 2, 3])
        with store.take_over(self.session_id) as again:
            again.append([UserMessage("four")])
        texts = [event.text for event in store.read_events(self.session_id) if isinstance(event, UserMessage)]
        self.assertEqual(texts, ["a zebra", "two", "three", "four"])
        self.assertEqual(store.read_summary(self.session_id), store.fold_summary(self.session_id))
