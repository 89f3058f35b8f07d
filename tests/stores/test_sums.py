"""The costs of all sessions, which a store with an index keeps summed up, are those that its rows add up to."""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import tempfile
import unittest
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from openagentic_sdk.events import AssistantMessage, ModelResponse, SessionMeta, ToolUse, UserMessage
from openagentic_sdk.parts.record.erase import erase
from openagentic_sdk.parts.record.folds.costs import BY, CostReport, all_costs, cost_report
from openagentic_sdk.parts.record.lifecycle import fork_session
from openagentic_sdk.serialization import dumps_json
from openagentic_sdk.sessions.base import SessionStore, stamp_events
from openagentic_sdk.sessions.core import SessionWriter
from openagentic_sdk.sessions.folds.summary import summary_to_dict
from openagentic_sdk.sessions.postgres import PostgresSessionStore
from openagentic_sdk.sessions.redis import RedisSessionStore
from openagentic_sdk.sessions.sqlite import SqliteSessionStore
from openagentic_sdk.sessions.stores.families import FamilyFold, SumsFamilies
from openagentic_sdk.sessions.stores.remote import RemoteStore
from tests.size import IN_MEMORY, full_size, sized
from tests.stores.servers import own_postgres_schema, own_redis_prefix
from tests.stores.test_file_index import IndexedStore

POSTGRES_URL = os.environ.get("OPENAGENTIC_TEST_POSTGRES_URL", "")
REDIS_URL = os.environ.get("OPENAGENTIC_TEST_REDIS_URL", "")

DAY_S = 86_400
TAGS = ("nightly", "ci", "a b", "Ω")


def plain(report: CostReport) -> object:
    """The report without the order of rows that cost the same."""
    return (*(getattr(report, name) for name in report.__dataclass_fields__ if name != "rows"), set(report.rows))


def contents(path: Path) -> bytes:
    """What is stored in an SQLite file: its rows as text."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        return "\n".join(db.iterdump()).encode()


def answer(random_: random.Random) -> ModelResponse:
    usage = {"input_tokens": random_.randrange(1000), "output_tokens": random_.randrange(100)}
    cost_usd = random_.choice([None, random_.random(), 0.1, 1e-7])
    return ModelResponse(1, 1, model=random_.choice("mn"), usage=usage, cost_usd=cost_usd)


class SumsContract(unittest.TestCase):
    """What holds for each store with an index; the classes below are such stores."""

    def open(self) -> SessionStore:
        raise NotImplementedError

    def damage(self, session_id: str) -> None:
        raise NotImplementedError

    def forget_index(self) -> None:
        raise NotImplementedError

    def index_bytes(self) -> bytes:
        raise NotImplementedError

    def described(self) -> list[str]:
        """The sessions whose summaries the store reads from now on."""
        ids: list[str] = []
        summary_of = self.store.kept_summary
        self.store.kept_summary = lambda name: ids.append(name) or summary_of(name)  # type: ignore[method-assign,func-returns-value]
        return ids

    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory(dir=IN_MEMORY)
        self.addCleanup(place.cleanup)
        self.place = Path(place.name)
        self.store, self.other = self.open(), self.open()
        self.addCleanup(self.store.close)
        self.addCleanup(self.other.close)

    def add(
        self, name: str, cost: float, *tags: str, parent: str | None = None, store: SessionStore | None = None
    ) -> None:
        metadata = {"cwd": f"/{name[0]}"}
        if parent is not None:
            metadata |= {"parent_session_id": parent, "parent_tool_use_id": "t", "agent_name": "helper"}
        usage = {"input_tokens": 10, "output_tokens": 1}
        events = [
            UserMessage("prompt"),
            ModelResponse(1, 1, model="m", usage=usage, cost_usd=cost),
            SessionMeta(tags=list(tags)),
        ]
        (store or self.store).import_session(
            name, stamp_events(events, first_seq=1, now=20_000 * DAY_S), metadata=metadata
        )

    def compare(self, every_by: Sequence[str] = ("tag", "subagent")) -> None:
        rows = self.store.list_session_summaries(include_children=True)
        for by in every_by:
            for first_day in (0, 20_001) if every_by == BY else (0,):
                expected = plain(cost_report(rows, by, first_day=first_day))
                self.assertEqual(plain(all_costs(self.store, by, first_day=first_day)), expected, (by, first_day))

    def costs_of_tags(self) -> dict[str, float]:
        return {row.name: row.known_cost_usd for row in all_costs(self.store, "tag").rows}

    def test_a_subagent_counts_under_its_root_whenever_that_comes_goes_or_gets_other_tags(self) -> None:
        self.add("grandchild", 4.0, "own", parent="child")
        self.add("child", 2.0, parent="root")
        self.assertEqual(self.costs_of_tags(), {"(no tag)": 6.0})
        self.add("root", 1.0, "nightly", store=self.other)
        self.assertEqual(self.costs_of_tags(), {"nightly": 7.0})
        self.other.append_event("root", SessionMeta(tags=["ci"]))
        self.assertEqual(self.costs_of_tags(), {"ci": 7.0})
        self.store.delete_session("child")
        self.assertEqual(self.costs_of_tags(), {"ci": 1.0, "own": 4.0})
        self.other.delete_session("root")
        self.add("root", 32.0, "a b")
        self.assertEqual(self.costs_of_tags(), {"a b": 32.0, "own": 4.0})
        self.compare()

    def test_only_what_has_changed_is_read_again(self) -> None:
        for number in range(30):
            self.add(f"s{number}", 1.0, "nightly")
        self.compare()
        self.other.append_event("s3", answer(random.Random(1)))
        described = self.described()
        all_costs(self.store, "tag")
        self.assertEqual(set(described), {"s3"})

    def test_one_that_is_damaged_is_named_and_counts_again_when_it_was_mended(self) -> None:
        self.add("whole", 1.0)
        self.add("broken", 2.0)
        self.compare()
        self.damage("broken")
        self.compare()

    def test_circles_of_parents_and_a_parent_that_is_its_own_are_counted_once(self) -> None:
        self.add("a", 1.0, "ci", parent="b")
        self.add("b", 2.0, "nightly", parent="a")
        self.add("c", 4.0, parent="a")
        self.add("d", 8.0, "a b", parent="d")
        self.compare()
        self.store.delete_session("a")
        self.compare()

    def test_an_erasure_a_fork_and_the_loss_of_the_index_change_nothing_else(self) -> None:
        self.add("one", 1.0, "ci")
        self.compare()
        fork_session(self.store, "one")
        self.compare()
        erase(self.store, "one", texts=["prompt"])
        self.compare()
        self.forget_index()
        self.compare()

    def test_nothing_of_a_deleted_session_stays_in_the_index(self) -> None:
        self.add("kept", 1.0, "ci")
        self.add("secret", 1.0, "tell-tale", parent="kept")
        self.compare()
        self.assertIn(b"helper", self.index_bytes())
        self.other.delete_session("secret")
        self.assertNotIn(b"tell-tale", self.index_bytes())
        self.assertNotIn(b"helper", self.index_bytes())
        self.compare()

    def test_a_fold_of_another_version_recounts_everything(self) -> None:
        self.add("one", 1.0, "ci")
        self.compare()
        assert isinstance(self.store, SumsFamilies)
        for version in (2, 3):
            fold = FamilyFold(version, lambda rows, version=version: {("n", "", 0): [version * len(rows)] * 8})  # type: ignore[misc]
            self.assertEqual(self.store.family_sums(fold, ["n"]), {("n", "", 0): [version] * 8})
        self.compare()

    def _play(self, seed: int) -> None:
        random_, stores = random.Random(seed), (self.store, self.other)
        writers: list[SessionWriter] = []
        for step in range(40):
            store, names = random_.choice(stores), self.store.list_sessions()
            held = {writer.session_id for writer in writers}
            name = random_.choice(sorted(set(names) - held) or ["none"])
            match random_.randrange(9):
                case 0 | 1:
                    parent = random_.choice([None, f"s{random_.randrange(8)}"])
                    if (new := f"s{random_.randrange(8)}") not in names:
                        self.add(new, random_.random(), random_.choice(TAGS), parent=parent, store=store)
                case 2 | 3 if name != "none":
                    store.append_event(name, answer(random_))
                    store.append_event(name, ToolUse("t", "Read", {}))
                case 4 if name != "none":
                    store.append_event(name, SessionMeta(tags=random_.sample(TAGS, random_.randrange(3))))
                case 5 if name != "none":
                    store.delete_session(name)
                case 6 if name != "none":
                    store.update_metadata(name, {"tags": [random_.choice(TAGS)], "cwd": random_.choice(["/x", None])})
                case 7 if name != "none" and len(writers) < 2:
                    writers.append(store.open_writer(name))
                case 8 if writers:
                    writer = writers.pop(random_.randrange(len(writers)))
                    writer.append([answer(random_)])
                    if random_.random() < 0.5:
                        self.compare(["tag"])
                    writer.close()
            if not step % 4:
                self.compare(random_.sample(BY, 1))
        for writer in writers:
            writer.close()
        self.compare(BY)

    @full_size
    def test_whatever_is_done_the_sums_are_those_of_the_rows(self) -> None:
        for seed in range(sized(3, 6, 200)):
            with self.subTest(seed=seed):
                for name in self.store.list_sessions():
                    self.store.delete_session(name)
                self._play(seed)


class OnFiles(SumsContract):
    def open(self) -> SessionStore:
        return IndexedStore(self.place, "flush")

    def damage(self, session_id: str) -> None:
        path = self.place / "sessions" / session_id / "events.jsonl"
        path.write_bytes(path.read_bytes().replace(b"prompt", b"PROMPT"))
        (path.parent / "summary.json").unlink(missing_ok=True)
        (self.place / "index" / "touched" / session_id).touch()

    def forget_index(self) -> None:
        assert isinstance(self.store, IndexedStore)
        self.store._index.remove()

    def index_bytes(self) -> bytes:
        return contents(self.place / "index" / "sessions.sqlite")


class OnSqlite(SumsContract):
    def open(self) -> SessionStore:
        return SqliteSessionStore(self.place / "runs.db", durability="flush")

    def damage(self, session_id: str) -> None:
        self.store.append_event(session_id, AssistantMessage("to be damaged"))
        with self.store._file.transaction(session_id) as db:  # type: ignore[attr-defined]
            db.execute("UPDATE sessions SET summary = NULL WHERE id = ?", (session_id,))
            db.execute("UPDATE events SET data = 'x' WHERE data LIKE '%to be damaged%'")

    def test_deletions_that_leave_the_index_are_detected_within_a_minute(self) -> None:
        for name in ("one", "two"):
            self.add(name, 1.0, "ci")
        self.compare()
        with contextlib.closing(sqlite3.connect(self.place / "runs.db")) as db, db:
            db.execute("DELETE FROM sessions WHERE id = 'one'")
        with contextlib.closing(sqlite3.connect(self.place / "runs.db-search")) as db, db:
            db.execute("UPDATE looked SET touched = touched - 60 WHERE what = 'deleted'")
        self.compare()

    def forget_index(self) -> None:
        (self.place / "runs.db-search").unlink()

    def index_bytes(self) -> bytes:
        return contents(self.place / "runs.db-search")


class OnServer(SumsContract):
    def described(self) -> list[str]:
        ids: list[str] = []
        assert isinstance(self.store, RemoteStore)
        summary_in = self.store._summary_in
        self.store._summary_in = lambda at: ids.append(at.id) or summary_in(at)  # type: ignore[method-assign,func-returns-value]
        return ids


@unittest.skipUnless(POSTGRES_URL, "needs a Postgres server: set OPENAGENTIC_TEST_POSTGRES_URL")
class OnPostgres(OnServer):
    def setUp(self) -> None:
        self.url = own_postgres_schema(self, POSTGRES_URL)
        super().setUp()

    def open(self) -> SessionStore:
        return PostgresSessionStore(self.url)

    def damage(self, session_id: str) -> None:
        self.store.append_event(session_id, AssistantMessage("to be damaged"))
        self.run_sql("UPDATE openagentic_sessions SET summary = NULL WHERE id = %s", session_id)
        self.run_sql("UPDATE openagentic_events SET data = 'x' WHERE data LIKE '%%to be damaged%%'")

    def forget_index(self) -> None:
        self.run_sql("DELETE FROM openagentic_sums")

    def index_bytes(self) -> bytes:
        rows = self.run_sql("SELECT value FROM openagentic_sums") + self.run_sql("SELECT id FROM openagentic_families")
        return "\n".join(value for (value,) in rows).encode()

    def run_sql(self, command: str, *values: object) -> list[Any]:
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as db:
            cursor = db.execute(command, values)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else []

    def test_changes_by_a_version_without_sums_count_in_the_next_report(self) -> None:
        for name in ("one", "two", "three"):
            self.add(name, 1.0, "ci")
        self.add("child", 1.0, parent="one")
        self.compare()
        self.run_sql("DELETE FROM openagentic_sessions WHERE id = 'one'")
        self.compare()
        self.run_sql("DELETE FROM openagentic_sessions WHERE id = 'two'")
        self.add("two", 8.0, "nightly")
        # As an erasure does it there.
        without_costs = dumps_json(summary_to_dict(replace(self.store.kept_summary("three"), spent={})))
        command = "UPDATE openagentic_sessions SET summary = %s, revision = revision + 1 WHERE id = 'three'"
        self.run_sql(command, without_costs)
        self.compare()

    def test_without_the_right_to_change_the_tables_of_the_sums_the_rows_are_added_up(self) -> None:
        self.add("one", 1.0, "ci")
        self.run_sql("DROP TABLE openagentic_sums")
        assert isinstance(self.store, PostgresSessionStore)
        self.assertIsNone(self.store.family_sums(FamilyFold(1, lambda rows: {}), ["n"]))
        self.compare()
        self.store.delete_session("one")
        self.compare()


@unittest.skipUnless(REDIS_URL, "needs a Redis server: set OPENAGENTIC_TEST_REDIS_URL")
class OnRedis(OnServer):
    def setUp(self) -> None:
        self.url = own_redis_prefix(self, REDIS_URL)
        super().setUp()

    def open(self) -> SessionStore:
        return RedisSessionStore(self.url)

    def damage(self, session_id: str) -> None:
        self.store.append_event(session_id, AssistantMessage("to be damaged"))
        with self.client() as client:
            client.hdel(self.key("head", session_id), "summary")
            client.lset(self.key("log", session_id), -1, "x")

    def forget_index(self) -> None:
        with self.client() as client:
            client.delete(*client.scan_iter(match=self.key("index", "*"), count=1000))

    def index_bytes(self) -> bytes:
        with self.client() as client:
            names = [
                self.key("index", f"sums:{part}") for part in ("root", "family", "state", "sum:tag", "sum:subagent")
            ]
            return b"\n".join(each for name in names for pair in client.hgetall(name).items() for each in pair)

    def key(self, kind: str, rest: str) -> str:
        assert isinstance(self.store, RedisSessionStore)
        return self.store._key(kind, rest)

    def client(self) -> Any:
        import redis

        return redis.Redis.from_url(self.url.partition("?")[0])

    def test_changes_by_a_version_without_sums_count_within_a_minute(self) -> None:
        for name in ("one", "two", "three"):
            self.add(name, 1.0, "ci")
        self.add("child", 1.0, parent="one")
        self.compare()
        with self.client() as client:
            for name in ("one", "two"):
                client.delete(self.key("head", name), self.key("log", name), self.store._server.old_name("head", name))  # type: ignore[attr-defined]
                client.zrem(self.key("by", "all"), name)
                client.zrem(self.key("by", "top"), name)
            self.compare()
            self.add("two", 8.0, "nightly")
            self.compare()
            # As an erasure does it there.
            without_costs = dumps_json(summary_to_dict(replace(self.store.kept_summary("three"), spent={})))
            client.hset(self.key("head", "three"), "summary", without_costs)
            client.hincrby(self.key("head", "three"), "revision", 1)
            client.delete(self.key("index", "sums:looked"))  # as after a minute
        self.compare()


del SumsContract, OnServer  # they have no store of their own
