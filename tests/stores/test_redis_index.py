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
from openagentic_sdk.sessions.base import whole_id
from openagentic_sdk.sessions.redis import RedisSessionStore
from openagentic_sdk.sessions.stores.locate import open_store
from openagentic_sdk.sessions.stores.redis import search

from . import indexed, servers
from .indexed import MANY
from .own_servers import OwnRedis

REDIS_URL = os.environ.get("OPENAGENTIC_TEST_REDIS_URL", "")


@unittest.skipUnless(REDIS_URL and importlib.util.find_spec("redis"), "OPENAGENTIC_TEST_REDIS_URL is not set")
class RedisIndexTest(indexed.IndexedContract):
    store: RedisSessionStore

    def setUp(self) -> None:
        self.url = servers.own_redis_prefix(self, REDIS_URL)
        store = open_store(self.url)
        assert isinstance(store, RedisSessionStore)
        self.store = store
        self.fill()

    def indexed_sessions(self) -> int:
        return self.client().hlen(self.key("upto"))

    def key(self, rest: str) -> str:
        return self.store._key("index", rest)

    def client(self) -> Any:
        return self.store._server.client()

    def assert_nothing_indexed(self) -> None:
        client, kept = self.client(), self.key("")
        self.assertEqual(client.zcard(f"{kept}words"), 0)
        for name in ("rows", "names", "grams", "upto"):
            self.assertEqual(client.hlen(f"{kept}{name}"), 0, name)
        bitmaps = list(client.scan_iter(match=f"{kept}gram:*", count=1000))
        self.assertEqual([name for name in bitmaps if client.bitcount(name)], [])
        self.assertEqual(list(client.scan_iter(match=f"{kept}docs:*", count=1000)), [])

    def test_words_that_no_index_can_hold_are_found_in_lists(self) -> None:
        self.store.update_search()
        self.assert_lists_agree("odd\ud800")
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

    def test_sessions_erased_by_a_version_without_the_index_are_read_again(self) -> None:
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

    def test_changes_and_deletions_by_a_version_without_the_index_are_detected(self) -> None:
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

    def test_an_index_that_was_deleted_is_created_again(self) -> None:
        self.store.append_event("s005", UserMessage("a word"))
        self.assertEqual(len(self.found("word")), 1)
        for name in list(self.client().scan_iter(match=f"{self.key('')}*", count=1000)):
            self.client().delete(name)
        self.assertEqual(self.found("word"), [("s005", 1)])
        self.touch_others()
        self.assert_lists_agree("strasse", "s005")
        self.assertEqual(self.store.ids_beginning("s005"), ["s005"])


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
