"""Two versions of the package take turns on one store: this one, and older ones from the git history.

In a clone without that history the tests that need an older version are skipped with a sentence.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import unittest
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

from openagentic_sdk.errors import StorageError
from openagentic_sdk.fleet.queue import Claimer, NewRun, Queue
from openagentic_sdk.parts.record.folds.costs import all_costs, cost_report
from openagentic_sdk.parts.record.verify_log import verify_session
from openagentic_sdk.sessions.store import FileSessionStore
from openagentic_sdk.sessions.stores.families import SumsFamilies
from openagentic_sdk.sessions.stores.locate import open_store
from openagentic_sdk.sessions.stores.sqlite import schema
from openagentic_sdk.sessions.stores.tables import tables_of
from tests.fleet.places import FleetTest
from tests.pythons import ROOT
from tests.size import IN_MEMORY, LARGE, full_size
from tests.stores import servers

# The version before the file index, SQLite's clock and the present search; and the version whose databases had the last
# schema but one.
BEFORE = "934eb5e1"
SCHEMA_BEFORE = "98ed1c2e^"
POSTGRES_URL = os.environ.get("OPENAGENTIC_TEST_POSTGRES_URL", "")
REDIS_URL = os.environ.get("OPENAGENTIC_TEST_REDIS_URL", "")


OPERATIONS = (
    *("create", "append", "append", "open", "write", "close", "fork", "tag", "delete", "kill"),
    *("erase", "part", "foreign", "blob", "set", "follow"),
)


def words_of(texts: list[str]) -> list[int]:
    """The places of the events whose text can be erased."""
    return [seq for seq, text in enumerate(texts, 1) if text.startswith("word")]


@cache
def older_package(commit: str) -> str:
    """A folder with the package at that commit. Skip the test if the clone does not have it."""
    command = ["git", "-C", ROOT, "archive", commit, "openagentic_sdk"]
    try:
        packed = subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        raise unittest.SkipTest(f"this clone does not contain commit {commit}") from None
    folder = tempfile.mkdtemp(dir=IN_MEMORY)
    unittest.addModuleCleanup(subprocess.run, ["rm", "-rf", folder], check=False)
    subprocess.run(["tar", "-x", "-C", folder], input=packed, check=True)
    Path(folder, "tests").symlink_to(Path(ROOT, "tests"))
    return folder


class VersionProcess:
    """A process that runs one version with a store of its own."""

    def __init__(self, test: unittest.TestCase, folder: str, url: str) -> None:
        script = str(Path(ROOT, "tests", "stores", "version_process.py"))
        environment = {**os.environ, "PYTHONPATH": folder, "PYTHONSAFEPATH": "1", "PYTHONWARNINGS": "ignore"}
        self.process = subprocess.Popen(
            [sys.executable, script, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )
        test.addCleanup(self.end)
        test.assertEqual(self.hear(), "ready")

    def hear(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline() or '"ended"')

    def ask(self, what: str, name: str = "", text: str = "") -> Any:
        self.begin(what, name, text)
        return self.hear()

    def begin(self, what: str, name: str = "", text: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"what": what, "name": name, "text": text}) + "\n")
        self.process.stdin.flush()

    def do(self, what: str, name: str = "", text: str = "") -> Any:
        answer = self.ask(what, name, text)
        if "came" not in answer:
            raise AssertionError(f"{what} {name} {text}: {answer}")
        return answer["came"]

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


class TakingTurns(unittest.TestCase):
    """Taking turns on files; the other stores extend this class."""

    url = ""
    # The index of a folder learns of metadata that an older version changed when the log changes.
    lists_metadata_of_old_versions = False

    def make_url(self) -> str:
        place = tempfile.TemporaryDirectory(dir=IN_MEMORY)
        self.addCleanup(place.cleanup)
        return f"file:{place.name}"

    @full_size
    def test_whatever_each_does_the_other_reads_lists_finds_and_continues_with(self) -> None:
        folders, url = (older_package(BEFORE), ROOT), self.make_url()
        for seed in range(10 if LARGE else 1):
            self.play(random.Random(seed), [VersionProcess(self, folder, url) for folder in folders], f"{seed}-")
        with closing(open_store(url)) as store:
            for name in store.list_sessions() if isinstance(store, FileSessionStore) else ():
                self.assertEqual(verify_session(store, name).problems, (), name)

    def play(self, rng: random.Random, both: list[VersionProcess], prefix: str) -> None:
        model: dict[str, list[str]] = {}
        held: dict[str, VersionProcess] = {}
        # The index of the older version still finds what that version erased, without showing it.
        erased_by_old: set[str] = set()
        for step in range(80):
            one, other = rng.sample(both, 2)
            free = sorted(set(model) - set(held))
            text = f"word{step} {prefix}"
            match rng.choice(OPERATIONS):
                case "create":
                    name = one.do("create", f"{prefix}{step}")
                    model[name] = []
                case "append" if free:
                    name = rng.choice(free)
                    one.do("append", name, text)
                    model[name] += [text, text]
                case "open" if free:
                    name = rng.choice(free)
                    one.do("open", name)
                    held[name] = one
                    self.assertEqual(other.ask("open", name).get("error"), "SessionLockedError")
                case "write" if held:
                    name = rng.choice(sorted(held))
                    held[name].do("write", name, text)
                    model[name].append(text)
                case "close" if held:
                    name = rng.choice(sorted(held))
                    held.pop(name).do("close", name)
                case "fork" if free:
                    source = rng.choice(free)
                    name = one.do("fork", source)
                    model[name] = [*model[source], "session.forked"]
                case "tag" if free:
                    name = rng.choice(free)
                    one.do("tag", name, f"tag{step}")
                    model[name].append("session.meta")
                case "delete" if len(free) > 3:
                    name = rng.choice(free)
                    one.do("delete", name)
                    del model[name]
                    self.assertEqual(other.ask("read", name).get("error"), "SessionNotFoundError")
                case "erase" if seqs := [(name, seq) for name in free for seq in words_of(model[name])]:
                    name, seq = rng.choice(seqs)
                    gone, model[name][seq - 1] = model[name][seq - 1], f"erased{step}"
                    one.do("erase", name, f"{seq} erased{step}")
                    if one is both[0]:
                        erased_by_old.add(name)
                    found = other.do("search", text=gone.split()[0])
                    self.assertEqual([place for place in found if place == [name, seq]], [])
                case "part" if sources := [name for name in sorted(model) if model[name]]:
                    source = rng.choice(sources)
                    at_seq = rng.randrange(len(model[source]) + 1)
                    one.do("part", f"part-{prefix}{step}", f"{source} {at_seq}")
                    model[f"part-{prefix}{step}"] = model[source][:at_seq]
                case "foreign" if free:
                    name = rng.choice(free)
                    one.do("foreign", name, text)
                    model[name].append("from.the.future")
                case "blob" if model:
                    name = rng.choice(sorted(model))
                    digest = one.do("put", name, text)
                    self.assertEqual(other.do("get", name, digest), text)
                    other.do("drop", name, digest)
                    self.assertEqual(one.ask("get", name, digest).get("error"), "StorageError")
                case "set" if model:
                    name = rng.choice(sorted(model))
                    one.do("set", name, f"{prefix}{step}")
                    note, listed = other.do("noted", name)
                    self.assertEqual(note, f"{prefix}{step}")
                    if self.lists_metadata_of_old_versions or one is both[1]:
                        self.assertEqual(listed, [name])
                case "follow" if free:
                    name = rng.choice(free)
                    other.begin("is_told", name, str(len(model[name])))
                    one.do("append", name, text)
                    model[name] += [text, text]
                    self.assertEqual(other.hear(), {"came": True})
                case "kill" if held:
                    name = rng.choice(sorted(held))
                    self.assertEqual(held[name].do("claim", name, f"{prefix}{name}"), name)
            self.compare(model, other, dict.fromkeys(erased_by_old, both[1]))
            self.check_sums()
        for name, holder in held.items():
            holder.do("close", name)
        for each in both:
            each.end()

    def check_sums(self) -> None:
        """Compare the sums of costs with the rows, where what an older version does counts at once."""

    def compare(self, model: dict[str, list[str]], asked: VersionProcess, searching: dict[str, VersionProcess]) -> None:
        rows = {name: count for name, count, _ in asked.do("list")}
        for name, texts in model.items():
            self.assertEqual(rows.get(name), len(texts), name)
        for name in list(model)[-2:]:
            self.assertEqual(asked.do("read", name), model[name])
            if words := [text for text in model[name] if text.startswith("word")]:
                hits = searching.get(name, asked).do("search", text=words[-1].split()[0])
                found = [seq for session, seq in hits if session == name]
                self.assertEqual(
                    found, [n for n, text in enumerate(model[name], 1) if text.split()[0] == words[-1].split()[0]]
                )


class SqliteTakingTurns(TakingTurns):
    lists_metadata_of_old_versions = True

    def make_url(self) -> str:
        return f"{super().make_url().replace('file:', 'sqlite:')}/runs.db"

    @full_size
    def test_a_restarted_process_of_an_older_schema_is_refused_with_the_reason(self) -> None:
        url = self.make_url()
        old = VersionProcess(self, older_package(SCHEMA_BEFORE), url)
        old.do("create", "s")
        old.do("append", "s", "hello")
        new = VersionProcess(self, ROOT, url)
        self.assertEqual(new.do("read", "s"), ["hello", "hello"])
        again = VersionProcess(self, older_package(SCHEMA_BEFORE), url)
        refused = again.ask("append", "s", "more")
        self.assertEqual(refused.get("error"), "StorageError")
        self.assertIn("schema version", refused["words"])
        self.assertEqual(new.do("read", "s"), ["hello", "hello"])


class ServerTakingTurns(TakingTurns):
    """Taking turns on a server; its subclasses name it."""

    lists_metadata_of_old_versions = True

    def check_sums(self) -> None:
        with closing(open_store(self.url)) as store:
            self.assertIsInstance(store, SumsFamilies)
            rows = store.list_session_summaries(include_children=True)
            self.assertEqual(all_costs(store, "tag"), cost_report(rows, "tag"))
            self.assertEqual(all_costs(store, "tag").sessions, len(rows))


@unittest.skipUnless(POSTGRES_URL, "OPENAGENTIC_TEST_POSTGRES_URL is not set")
class PostgresTakingTurns(ServerTakingTurns, SqliteTakingTurns):
    def make_url(self) -> str:
        self.url = servers.own_postgres_schema(self, POSTGRES_URL)
        return self.url


@unittest.skipUnless(REDIS_URL, "OPENAGENTIC_TEST_REDIS_URL is not set")
class RedisTakingTurns(ServerTakingTurns):
    def make_url(self) -> str:
        self.url = servers.own_redis_prefix(self, REDIS_URL)
        return self.url


del ServerTakingTurns  # it has no store of its own


class NewerTables(unittest.TestCase):
    """The oldest compatible version recorded in the tables decides what this version may do, even while it runs."""

    def setUp(self) -> None:
        self.url = self.make_url()
        self.store = open_store(self.url)
        self.addCleanup(self.store.close)
        self.store.create_session(session_id="s")

    def make_url(self) -> str:
        place = tempfile.TemporaryDirectory(dir=IN_MEMORY)
        self.addCleanup(place.cleanup)
        self.path = Path(place.name, "runs.db")
        self.other_url = f"sqlite:{self.path}"
        return self.other_url

    def move_on(self, oldest: int | None) -> None:
        """Migrate the tables as a newer version does."""
        with closing(sqlite3.connect(self.path)) as db:
            db.execute("DELETE FROM openagentic_oldest")
            newer = len(schema.MIGRATIONS) + 1
            if oldest is not None:
                db.execute("INSERT INTO openagentic_oldest VALUES (?, ?)", (newer, oldest))
            db.execute(f"PRAGMA user_version = {newer}")
            db.commit()

    def claimed(self) -> int | None:
        """The number of the next run, claimed by a worker that was running before."""
        run = self.queue.claim(Claimer("worker", 60.0, ("agent",)))
        return run and run.id

    def enqueue(self) -> int:
        self.queue = Queue(tables_of(self.store))
        return self.queue.add(NewRun("agent", "{}", "", "default", 0, 3))

    def test_tables_that_only_gained_something_are_used(self) -> None:
        run = self.enqueue()
        self.move_on(len(schema.MIGRATIONS))
        with closing(open_store(self.other_url)) as started_again:
            self.assertEqual(started_again.list_sessions(), ["s"])
            started_again.open_writer("s").close()
        self.assertEqual(self.claimed() or self.claimed(), run)  # the first claim may only find the new version
        self.store.open_writer("s").close()

    def test_tables_that_this_version_would_damage_are_refused_to_who_starts_and_to_who_runs(self) -> None:
        run = self.enqueue()
        writer = self.store.open_writer("s")
        for oldest in (len(schema.MIGRATIONS) + 1, None):
            self.move_on(oldest)
            started_again = open_store(self.other_url)
            with closing(started_again), self.assertRaisesRegex(StorageError, "upgrade openagentic-sdk"):
                started_again.list_sessions()
            with self.assertRaisesRegex(StorageError, "upgrade openagentic-sdk"):
                self.store.take_over("s")
            with self.assertRaisesRegex(StorageError, "upgrade openagentic-sdk"):
                self.claimed()
            self.assertEqual(Queue(tables_of(self.store)).find(run).attempts, 0)
        writer.close()


@unittest.skipUnless(POSTGRES_URL, "OPENAGENTIC_TEST_POSTGRES_URL is not set")
class NewerTablesOnPostgres(NewerTables):
    def make_url(self) -> str:
        url = servers.own_postgres_schema(self, POSTGRES_URL)
        self.other_url = f"{url}&application_name=other"  # the stores of one address share their connections
        return url

    def move_on(self, oldest: int | None) -> None:
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as db:
            db.execute("DELETE FROM openagentic_oldest")
            newer = len(schema.MIGRATIONS) + 1
            if oldest is not None:
                db.execute("INSERT INTO openagentic_oldest VALUES (%s, %s)", (newer, oldest))
            db.execute("UPDATE openagentic_schema SET version = %s", (newer,))


class RollingUpgrade(FleetTest):
    """Workers of two versions on one database, each replaced in the middle of a run."""

    @full_size
    def test_workers_of_two_versions_hand_runs_to_each_other(self) -> None:
        folder = older_package(BEFORE)
        environment = {**os.environ, "PYTHONPATH": folder, "PYTHONSAFEPATH": "1"}
        command = ["-m", "openagentic_sdk", "fleet", "work", "--agents", "tests.fleet.payments:agents"]
        runs = {key: self.pay(key, 0.1) for key in ("a", "b", "c")}
        runs["old"] = self.pay("old", 60.0)
        old = subprocess.Popen(
            [sys.executable, *command, "--store", self.url, "--lease", str(self.lease_s)],
            env=environment,
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.addCleanup(old.wait)
        self.addCleanup(old.kill)
        self.until(lambda: self.payments()["old"], "the old worker has paid")
        old.kill()
        with self.worker():
            self.until_over(*runs.values())
        for key, run_id in runs.items():
            self.check_ended(run_id, key)
        # And in reverse: a restarted old worker continues what a new one began.
        run_id = self.pay("new", 60.0)
        with self.worker() as new:
            self.until(lambda: self.payments()["new"], "the new worker has paid")
            new.kill()
            again = subprocess.Popen(
                [sys.executable, *command, "--store", self.url, "--lease", str(self.lease_s)],
                env=environment,
                cwd=folder,
            )
            self.addCleanup(again.wait)
            self.addCleanup(again.kill)
            self.until_over(run_id)
        self.assertEqual(self.check_ended(run_id, "new"), "unknown")


if __name__ == "__main__":
    unittest.main()
