"""With a Postgres store's index, lists and searches return the same results as reading everything."""

from __future__ import annotations

import importlib.util
import os
import unittest
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

from openagentic_sdk.events import RecordErased, SessionMeta, UserMessage
from openagentic_sdk.parts.record.erase import erase
from openagentic_sdk.sessions.postgres import PostgresSessionStore
from openagentic_sdk.sessions.stores.locate import open_store
from openagentic_sdk.sessions.stores.postgres import search
from openagentic_sdk.sessions.stores.postgres.search import keys_with_words

from ..waiting import until
from . import indexed, servers
from .indexed import MANY

POSTGRES_URL = os.environ.get("OPENAGENTIC_TEST_POSTGRES_URL", "")
ERASED_BY_AN_OLDER_VERSION = (
    "UPDATE openagentic_sessions SET epoch = epoch + 1, holder = 'older' WHERE id = 's005'",
    "DELETE FROM openagentic_words USING openagentic_sessions WHERE session = key AND id = 's005'",
    "DELETE FROM openagentic_words_upto USING openagentic_sessions WHERE session = key AND id = 's005'",
    "UPDATE openagentic_sessions SET epoch = epoch + 1, holder = '' WHERE id = 's005'",
)


def psycopg_connection(url: str) -> Any:
    import psycopg

    return psycopg.connect(url, autocommit=True)


@unittest.skipUnless(POSTGRES_URL and importlib.util.find_spec("psycopg"), "OPENAGENTIC_TEST_POSTGRES_URL is not set")
class PostgresIndexTest(indexed.IndexedContract):
    store: PostgresSessionStore

    def setUp(self) -> None:
        self.url = servers.own_postgres_schema(self, POSTGRES_URL)
        store = open_store(self.url)
        assert isinstance(store, PostgresSessionStore)
        self.store = store
        self.fill()
        if self.store.search_notice() is not None:
            self.skipTest("this Postgres has no pg_trgm")
        self.store.update_search()

    def ask(self, command: str) -> list[Any]:
        return self.store._call(None, lambda db: db.execute(command).fetchall())

    def do(self, *commands: str) -> None:
        for command in commands:
            self.store._call(None, lambda db, command=command: db.execute(command))

    def behind(self) -> list[str]:
        command = "SELECT id FROM openagentic_sessions WHERE searched < epoch + last_seq + revision ORDER BY id"
        return [row[0] for row in self.ask(command)]

    def indexed_sessions(self) -> int:
        return MANY - len(self.behind())

    def test_a_session_that_is_held_stays_behind_until_it_is_not(self) -> None:
        with self.store.open_writer("s007") as writer:
            writer.append([UserMessage("heldword"), SessionMeta(title="heldtitle")])
            self.store.update_search()
            self.assertEqual(self.behind(), ["s007"])
            self.assertEqual([hit.session_id for hit in self.store.search("heldword")], ["s007"])
            self.touch_others()
            self.assert_lists_agree("heldtitle")
        self.store.close()  # sends the pending releases
        self.store.update_search()
        self.assertEqual(self.behind(), [])
        self.assert_lists_agree("heldtitle")

    def test_sessions_erased_by_an_older_version_are_indexed_again(self) -> None:
        self.store.append_event("s005", UserMessage("a rareword"))
        self.assertEqual(len(self.store.search("rareword")), 1)
        self.do(*ERASED_BY_AN_OLDER_VERSION)
        self.assertEqual(self.behind(), ["s005"])
        self.assertEqual(len(self.store.search("rareword")), 1)
        self.assertEqual(self.behind(), [])
        self.assert_lists_agree("rareword", "s005")

    def test_words_read_before_an_erasure_are_not_added_after_it(self) -> None:
        self.store.append_event("s005", UserMessage("the secretword"))
        row = self.behind_row("s005")
        read = self.store._call(None, lambda db: search._next_events(db, [row]))
        erase(self.store, "s005", texts=["secretword"])
        self.assertEqual(self.store._call(None, lambda db: search._add_words(db, [(row, read[row.key])])), set())
        self.assertEqual(self.store.search("secretword"), [])
        self.assertEqual(self.words_of("s005", "secretword"), [])

    def test_an_erasure_waits_for_words_that_are_being_added_and_takes_them_out(self) -> None:
        self.store.append_event("s005", UserMessage("the secretword"))
        row = self.behind_row("s005")
        read = self.store._call(None, lambda db: search._next_events(db, [row]))
        with psycopg_connection(self.url) as db, ThreadPoolExecutor(1) as threads:
            with db.transaction():
                self.assertEqual(search._add_words(db, [(row, read[row.key])]), {row.key})
                erasing = threads.submit(erase, self.store, "s005", texts=["secretword"])
                waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%openagentic%'"
                until(lambda: erasing.done() or bool(self.ask(waiting)), "the erasure waits for the lock")
            erasing.result()
        self.assertEqual(self.words_of("s005", "secretword"), [])

    def test_words_that_an_older_version_erased_too_early_go_when_its_erasure_is_in_the_log(self) -> None:
        self.store.append_event("s005", UserMessage("the secretword"))
        self.assertEqual(len(self.store.search("secretword")), 1)
        changed = "UPDATE openagentic_events SET data = replace(data, 'secretword', 'harmlessword')"
        self.do(f"{changed} WHERE session = (SELECT key FROM openagentic_sessions WHERE id = 's005')")
        self.assertEqual(self.store.search("secretword"), [])  # hits of the index are verified against the log
        self.store.append_event("s005", RecordErased("e", "s005"))
        self.assertEqual([hit.seq for hit in self.store.search("harmlessword")], [self.store.last_seq("s005") - 1])
        self.assertEqual(self.words_of("s005", "secretword"), [])
        self.assertEqual(self.behind(), [])

    def behind_row(self, session_id: str) -> search._StaleRow:
        rows = [search._StaleRow(*row) for row in self.ask(search._ALL_BEHIND)]
        return next(row for row in rows if row.id == session_id)

    def words_of(self, session_id: str, word: str) -> list[Any]:
        command = f"SELECT words FROM openagentic_words WHERE seq > 0 AND words LIKE '%{word}%' AND session = "
        return self.ask(f"{command} (SELECT key FROM openagentic_sessions WHERE id = '{session_id}')")

    def test_an_index_that_was_dropped_is_created_again(self) -> None:
        self.store.append_event("s005", UserMessage("a rareword"))
        self.store.update_search()
        self.do("DROP TABLE openagentic_words", "DROP TABLE openagentic_words_upto")
        self.assert_lists_agree("rareword")
        self.store.migrate()
        self.assertEqual(len(self.store.search("rareword")), 1)
        self.assert_lists_agree("rareword", "strasse")

    def test_tables_of_an_older_version_get_the_index_when_they_are_next_opened(self) -> None:
        self.store.append_event("s005", UserMessage("a rareword"))
        self.store.update_search()
        self.store.close()
        with psycopg_connection(self.url) as db:
            db.execute("ALTER TABLE openagentic_sessions DROP COLUMN searched")
            db.execute("DROP INDEX openagentic_words_of_rows")
        with closing(open_store(self.url)) as store:
            self.assertEqual(len(store.search("rareword")), 1)
            self.assertIsNone(store.search_notice())
        self.assertEqual(self.behind(), [])
        self.assert_lists_agree("strasse", "rareword")

    def test_only_the_rows_of_a_rare_tag_are_read_beyond_the_first_page(self) -> None:
        self.store.append_event("s000", SessionMeta(tags=["rarest"]))
        self.store.update_search()
        keys = keys_with_words("rarest")
        assert keys is not None
        asked = {"cwd": None, "tenant": None, "include_children": True, "limit": MANY}
        self.assertEqual([row.id for row in self.store._page(**asked, keys=keys)], ["s000"])
