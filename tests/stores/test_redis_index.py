"""With a Redis store's index, lists and searches return the same results as reading everything."""

from __future__ import annotations

import importlib.util
import os
import shutil
import unittest
from contextlib import closing
from typing import Any

from openagentic_sdk.events import AssistantMessage, RecordErased, SessionMeta, UserMessage
from openagentic_sdk.parts.record.erase import erase
from openagentic_sdk.sessions.base import SessionStore, whole_id
from openagentic_sdk.sessions.folds.summary import summary_matches
from openagentic_sdk.sessions.redis import RedisSessionStore
from openagentic_sdk.sessions.stores.locate import open_store
from openagentic_sdk.sessions.stores.redis import search

from . import servers
from .own_servers import OwnRedis

REDIS_URL = os.environ.get("OPENAGENTIC_TEST_REDIS_URL", "")
# More sessions than a list reads without the index.
MANY = 130
TITLES = {
    "s000": "Straße",
    "s001": "100% done_now",
    "s002": "back\\slash",
    "s003": "ﬁsh \N{KELVIN SIGN}elvin",
    "s004": "a\0b",
}


@unittest.skipUnless(REDIS_URL and importlib.util.find_spec("redis"), "OPENAGENTIC_TEST_REDIS_URL is not set")
class RedisIndexTest(unittest.TestCase):
    def setUp(self) -> None:
        self.url = servers.own_redis_prefix(self, REDIS_URL)
        store = open_store(self.url)
        assert isinstance(store, RedisSessionStore)
        self.store = store
        self.addCleanup(self.store.close)
        for number in range(MANY):
            name = f"s{number:03d}"
            metadata = {"tags": ["even" if number % 2 else "odd"], **({"tenant": "acme"} if number < 3 else {})}
            self.store.create_session(session_id=name, metadata=metadata)
            if name in TITLES:
                self.store.append_event(name, SessionMeta(title=TITLES[name]))

    def key(self, rest: str) -> str:
        return self.store._key("index", rest)

    def client(self) -> Any:
        return self.store._server.client()

    def touch_others(self) -> None:
        """Write to so many other sessions that lists reach the first ones only through the index."""
        for number in range(20, MANY):
            self.store.append_event(f"s{number:03d}", UserMessage("later"))

    def found(self, words: str, store: SessionStore | None = None) -> list[tuple[str, int]]:
        return [(hit.session_id, hit.seq) for hit in (store or self.store).search(words)]

    def assert_lists_agree(self, *queries: str) -> None:
        everything = self.store.list_session_summaries()
        for query in queries:
            expected = [row.id for row in everything if summary_matches(row, query=query)]
            with self.subTest(query=query):
                self.assertEqual([row.id for row in self.store.list_session_summaries(query=query)], expected)
                page = self.store.page_sessions(limit=MANY * 2, query=query)
                self.assertEqual([row.id for row in page.rows], expected)

    def assert_nothing_indexed(self) -> None:
        client, kept = self.client(), self.key("")
        self.assertEqual(client.zcard(f"{kept}words"), 0)
        for name in ("rows", "names", "grams", "upto"):
            self.assertEqual(client.hlen(f"{kept}{name}"), 0, name)
        bitmaps = list(client.scan_iter(match=f"{kept}gram:*", count=1000))
        self.assertEqual([name for name in bitmaps if client.bitcount(name)], [])
        self.assertEqual(list(client.scan_iter(match=f"{kept}docs:*", count=1000)), [])

    def test_a_list_finds_by_the_index_what_it_finds_without_it(self) -> None:
        self.store.update_search()
        queries = (
            "strasse",
            "STRASSE",
            "0%",
            "100%",
            "e_n",
            "k\\s",
            "fish kelvin",
            "odd",
            "s00",
            "odd s002",
            "%%%",
            "a",
        )
        self.assert_lists_agree(*queries, "nothinglikethis", "odd\ud800")
        long = "".join(chr(0x4E00 + number) for number in range(20_000))
        self.store.append_event("s000", SessionMeta(tags=[long[:180]]))
        self.assert_lists_agree(long, long[:150])
        self.assertEqual(self.store.search(long), [])

    def test_only_the_rows_of_a_rare_word_are_read_beyond_the_newest(self) -> None:
        self.store.append_event("s000", SessionMeta(tags=["rarest"]))
        self.store.update_search()
        listed = self.store._words.listed("rarest", None, float("inf"))
        self.assertEqual([name for _, name in listed], ["s000"])
        self.touch_others()
        self.assert_lists_agree("rarest")

    def test_the_sessions_of_a_tenant_are_found_by_the_index(self) -> None:
        self.touch_others()
        rows = self.store.list_session_summaries(tenant="acme")
        self.assertEqual([row.id for row in rows], ["s002", "s001", "s000"])
        self.assertEqual(
            [row.id for row in self.store.list_session_summaries(tenant="acme", offset=1, limit=1)], ["s001"]
        )
        self.assertEqual(len(self.store.list_session_summaries(tenant="")), MANY - 3)
        listed = self.store._words.listed("", "acme", float("inf"))
        self.assertEqual({name for _, name in listed}, {"s000", "s001", "s002"})

    def test_words_are_found_by_their_starts_in_the_newest_session_first(self) -> None:
        for name in ("s001", "s009", "s005"):
            self.store.append_events(name, [UserMessage("Ünder the Bridge"), AssistantMessage("x" * 100 + " bridges")])
        self.store.append_event("s009", UserMessage("more"))
        self.assertEqual(
            self.found("bridge"), [("s009", 1), ("s009", 2), ("s005", 1), ("s005", 2), ("s001", 2), ("s001", 3)]
        )
        self.assertEqual(self.found("under bri"), [("s009", 1), ("s005", 1), ("s001", 2)])
        self.assertEqual(self.found("x" * 90 + " bridges"), [("s009", 2), ("s005", 2), ("s001", 3)])
        self.assertEqual(self.found("x" * 101), [])
        self.assertEqual(self.found("idge"), [])
        self.assertEqual(len(self.store.search("bridge", limit=2)), 2)

    def test_what_was_written_since_is_found(self) -> None:
        self.store.update_search()
        with self.store.open_writer("s007") as writer:
            writer.append([UserMessage("heldword"), SessionMeta(title="heldtitle")])
            self.assertEqual(self.found("heldword"), [("s007", 1)])
            writer.append([UserMessage("heldword")])
            self.assertEqual(self.found("heldword"), [("s007", 1), ("s007", 3)])
            self.touch_others()
            self.assert_lists_agree("heldtitle")
        self.store.update_metadata("s010", {"tags": ["fresh"]})
        self.assert_lists_agree("fresh", "odd", "later")

    def test_a_long_log_is_found_to_its_end(self) -> None:
        self.store.append_events("s003", [UserMessage(f"word{number} " + "filler " * 50) for number in range(300)])
        self.assertEqual(self.found("word299"), [("s003", 301)])
        self.store.append_events("s003", [UserMessage("lastword")])
        self.assertEqual(self.found("lastword"), [("s003", 302)])
        self.assertEqual(self.found("word1 filler")[:1], [("s003", 3)])

    def test_erased_words_leave_the_index_in_the_same_step(self) -> None:
        self.store.append_event("s005", UserMessage("the secretword stays nowhere"))
        self.assertEqual(len(self.found("secretword")), 1)
        erase(self.store, "s005", texts=["secretword"])
        self.assertEqual(self.client().zlexcount(self.key("words"), "[secretword", "(secretword\xff"), 0)
        self.assertEqual(self.found("secretword"), [])
        self.assertEqual(len(self.found("stays")), 0)

    def test_words_read_before_an_erasure_are_not_added_after_it(self) -> None:
        self.store.append_event("s005", UserMessage("the secretword"))
        index = self.store._words
        index.update_rows(MANY)
        (at,) = index._living(["s005"])
        reading = search._UnreadLog.of(at, "")
        batch = index._next_events([reading])[0]
        erase(self.store, "s005", texts=["secretword"])
        self.assertEqual(index._add_batches([(reading, batch)]), [])
        self.assertEqual(self.client().zlexcount(self.key("words"), "[secretword", "(secretword\xff"), 0)
        self.assertEqual(self.found("secretword"), [])

    def test_what_a_version_without_the_index_erases_is_read_again(self) -> None:
        self.store.append_event("s005", UserMessage("the secretword"))
        self.assertEqual(len(self.found("secretword")), 1)
        log, head = self.store._key("log", "s005"), self.store._key("head", "s005")
        self.client().lset(log, 0, self.client().lindex(log, 0).replace(b"secretword", b"harmlessword"))
        self.client().hincrby(head, "epoch", 2)
        self.assertEqual(self.found("secretword"), [])
        self.store.append_event("s005", RecordErased("e", "s005"))
        self.assertEqual(self.found("harmlessword"), [("s005", 1)])
        self.assertEqual(self.client().zlexcount(self.key("words"), "[secretword", "(secretword\xff"), 0)

    def test_deleting_takes_everything_out_of_the_index(self) -> None:
        self.store.append_event("s005", UserMessage("a word"))
        self.store.update_search()
        for number in range(MANY):
            self.store.delete_session(f"s{number:03d}")
        self.assert_nothing_indexed()
        self.store.create_session(session_id="new")
        self.store.append_event("new", UserMessage("a word"))
        self.assertEqual(self.found("word"), [("new", 1)])

    def test_what_a_version_without_the_index_deletes_and_changes_is_noticed(self) -> None:
        self.store.append_event("s005", UserMessage("a word"))
        self.store.update_search()
        client, key = self.client(), self.store._key
        for number in range(MANY - 1):
            name = f"s{number:03d}"
            client.delete(*self.store._doomed(name))
            client.zrem(key("by", "all"), name)
            client.zrem(key("by", "top"), name)
        self.assertEqual(self.found("word"), [])
        client.hset(
            key("head", f"s{MANY - 1}"), mapping={"metadata": '{"tags": ["changed"]}', "summary": "", "revision": 1}
        )
        for _ in range(MANY):
            self.store.update_search()
        self.assertEqual(client.hlen(self.key("rows")), 1)
        (row,) = self.store.list_session_summaries(query="changed")
        self.assertEqual(row.id, f"s{MANY - 1}")

    def test_ids_are_found_by_their_starts(self) -> None:
        self.store.create_session(session_id="unlike-the-others")
        self.assertEqual(whole_id(self.store, "unl"), "unlike-the-others")
        self.assertEqual(whole_id(self.store, "s005"), "s005")
        self.assertEqual(self.store.ids_beginning("s1299"), [])
        self.assertEqual(len(self.store.ids_beginning("s12")), 3)
        self.store.create_session(session_id="üb")
        self.assertEqual(self.store.ids_beginning("ü"), ["üb"])
        self.store.delete_session("üb")
        self.assertEqual(self.store.ids_beginning("ü"), [])
        self.store.create_session(session_id="üb")
        self.assertEqual(self.store.ids_beginning("ü"), ["üb"])
        self.assertEqual(self.store.ids_beginning("\ud800"), [])

    def test_an_update_that_is_stopped_keeps_what_it_did(self) -> None:
        def stop(done: int, whole: int) -> None:
            raise KeyboardInterrupt

        for number in range(MANY):
            self.store.append_event(f"s{number:03d}", UserMessage("later"))
        with self.assertRaises(KeyboardInterrupt):
            self.store.update_search(stop)
        self.assertEqual(self.client().hlen(self.key("upto")), search.STEP_SESSIONS)
        reports: list[tuple[int, int]] = []
        self.store.update_search(lambda done, whole: reports.append((done, whole)))
        self.assertLessEqual(reports[0][1], MANY)
        self.assertEqual(reports[-1][0], reports[-1][1])
        self.assertEqual(len(self.store.search("later", limit=MANY)), MANY)

    def test_an_index_that_was_deleted_is_made_anew(self) -> None:
        self.store.append_event("s005", UserMessage("a word"))
        self.assertEqual(len(self.found("word")), 1)
        for name in list(self.client().scan_iter(match=f"{self.key('')}*", count=1000)):
            self.client().delete(name)
        self.assertEqual(self.found("word"), [("s005", 1)])
        self.touch_others()
        self.assert_lists_agree("strasse", "s005")
        self.assertEqual(self.store.ids_beginning("s005"), ["s005"])

    def test_two_searches_at_once_leave_the_newer_words(self) -> None:
        with closing(open_store(self.url)) as other:
            self.store.append_event("s009", UserMessage("firstword"))
            other.append_event("s009", UserMessage("secondword"))
            other.update_search()
            self.store.update_search()
            self.assertEqual(self.found("secondword", other), [("s009", 2)])
            self.assertEqual(self.found("firstword"), [("s009", 1)])


@unittest.skipUnless(importlib.util.find_spec("redis"), "the driver redis-py is not installed")
@unittest.skipUnless(shutil.which("redis-server"), "the program redis-server is not installed")
class WithoutAnIndexTest(unittest.TestCase):
    def test_a_server_that_takes_no_index_is_searched_by_reading_every_log(self) -> None:
        import redis

        server = OwnRedis("--save", "", "--appendonly", "no")
        self.addCleanup(server.remove)
        with closing(open_store(server.url)) as store:
            for number in range(MANY):
                store.create_session(session_id=f"s{number:03d}", metadata={"tags": [f"tag{number}."]})
            store.append_event("s007", UserMessage("a rareword"))
        with closing(redis.Redis.from_url(server.url)) as client:
            for policy in ("noeviction", "allkeys-lru"):
                with self.subTest(policy):
                    client.config_set("maxmemory", 0)  # or the next line would delete all keys at once
                    client.config_set("maxmemory-policy", policy)
                    client.config_set("maxmemory", 1 if policy == "noeviction" else 0)
                    with closing(open_store(server.url)) as other:
                        other.update_search()
                        self.assertEqual([hit.session_id for hit in other.search("rareword")], ["s007"])
                        self.assertEqual([row.id for row in other.list_session_summaries(query="tag9.")], ["s009"])
                        self.assertEqual(other.ids_beginning("s009"), ["s009"])
                        self.assertEqual(list(client.scan_iter(match="*:index:*")), [])
