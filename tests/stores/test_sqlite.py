"""Behaviour specific to SQLite stores: the schema, the index, forked processes, damage."""

from __future__ import annotations

import contextlib
import io
import os
import sqlite3
import sys
import tempfile
import unittest
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from openagentic_sdk.cli.main import main
from openagentic_sdk.errors import (
    ConcurrencyError,
    LeaseLostError,
    LogCorruptError,
    OptionsError,
    SessionLockedError,
    StorageError,
)
from openagentic_sdk.events import Event, SessionMeta, SystemNotice, ToolResult, UserMessage
from openagentic_sdk.parts.record.folds.costs import all_costs
from openagentic_sdk.sessions.base import SessionStore
from openagentic_sdk.sessions.folds.summary import SessionSummary
from openagentic_sdk.sessions.log.lock import try_lock
from openagentic_sdk.sessions.sqlite import SqliteSessionStore
from openagentic_sdk.sessions.store import FileSessionStore
from openagentic_sdk.sessions.stores.locate import open_store
from openagentic_sdk.sessions.stores.sqlite import file
from openagentic_sdk.sessions.stores.sqlite.file import _use_wal
from openagentic_sdk.sessions.stores.sqlite.schema import MIGRATIONS
from openagentic_sdk.sessions.stores.sqlite.search import STEP_SESSIONS
from openagentic_sdk.testing.crash import Killed
from tests.pythons import Process
from tests.simulation.databases import FaultyFile

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "fixtures" / "stores"


_FORKING = """
import os, sys
from openagentic_sdk.events import UserMessage
from openagentic_sdk.sessions.sqlite import SqliteSessionStore
store = SqliteSessionStore(sys.argv[1])
store.last_seq(sys.argv[2])
done, told = os.pipe()
if os.fork():
    os.read(done, 1)
    os._exit(0)
store.append_event(sys.argv[2], UserMessage("child's"))
os.write(told, b"x")
print("ready", flush=True)
sys.stdin.readline()
print("stored", store.append_event(sys.argv[2], UserMessage("child's last")).seq, flush=True)
"""


class _Refusing:
    """A connection whose first statement fails."""

    def __init__(self, code: int) -> None:
        self.tries, self._code = 0, code

    def execute(self, statement: str) -> None:
        self.tries += 1
        if self.tries == 1:
            error = sqlite3.OperationalError("refused")
            error.sqlite_errorcode = self._code
            raise error


class SqliteTest(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.path = Path(place.name) / "folder" / "sessions.db"
        self.store = SqliteSessionStore(self.path, durability="flush")
        self.addCleanup(self.store.close)

    def test_a_writer_that_is_stopped_as_the_first_in_the_queue_holds_others_up_once(self) -> None:
        self.store.create_session(session_id="s")
        queue = os.open(self.path.with_name(f"{self.path.name}-leases") / "queue", os.O_RDWR)
        self.addCleanup(os.close, queue)
        self.assertTrue(try_lock(queue))
        self.addCleanup(setattr, file, "TURN_S", file.TURN_S)
        file.TURN_S = 0.05
        self.store.append_event("s", UserMessage("late"))
        file.TURN_S = 3600.0  # nobody waits for it again
        self.assertEqual(self.store.append_event("s", UserMessage("soon")).seq, 2)

    def test_searches_and_sums_report_the_index_that_they_update(self) -> None:
        reports: list[tuple[int, int]] = []
        self.store.index_progress = lambda done, whole: reports.append((done, whole))
        for number, ask in enumerate((lambda: self.store.search("nothing"), lambda: all_costs(self.store, "tag"))):
            self.store.append_event(self.store.create_session(), UserMessage("tea"))
            reports.clear()
            ask()
            self.assertEqual(reports[-1], (number + 1, number + 1))

    def change(self, command: str, *values: object) -> None:
        db = sqlite3.connect(self.path)
        try:
            with db:
                db.execute(command, values)
        finally:
            db.close()

    def ask(self, command: str) -> list[tuple[object, ...]]:
        db = sqlite3.connect(self.path)
        try:
            return db.execute(command).fetchall()
        finally:
            db.close()

    def session(self) -> str:
        session_id = self.store.create_session()
        self.store.append_events(session_id, [UserMessage("one"), ToolResult("c", output="two"), UserMessage("three")])
        return session_id

    def test_the_database_is_made_when_it_is_first_used_with_a_version_and_a_write_ahead_log(self) -> None:
        self.assertFalse(self.path.parent.exists())
        self.session()
        self.assertEqual(self.ask("PRAGMA user_version"), [(len(MIGRATIONS),)])
        self.assertEqual(self.ask("PRAGMA journal_mode"), [("wal",)])

    @unittest.skipIf(sys.platform == "win32", "this system has no POSIX permissions")
    def test_a_disk_that_fails_as_the_database_is_opened_is_not_tried_for_half_a_minute(self) -> None:
        for code, tries in ((sqlite3.SQLITE_FULL, 1), (sqlite3.SQLITE_IOERR, 1), (sqlite3.SQLITE_BUSY, 2)):
            with self.subTest(code):
                opened = _Refusing(code)
                with contextlib.suppress(sqlite3.OperationalError):
                    _use_wal(opened)  # type: ignore[arg-type]
                self.assertEqual(opened.tries, tries)

    def test_events_are_synced_as_the_durability_promises_before_the_call_returns(self) -> None:
        """SQLite syncs a transaction itself at level 2, and only with a later one at level 1."""
        notice, prompt, levels = SystemNotice("a", "b"), UserMessage("hi"), dict[str, str]()
        for durability in ("flush", "barrier", "fsync"):
            store = SqliteSessionStore(self.path.with_name(f"{durability}.db"), durability=durability)
            self.addCleanup(store.close)

            def note(name: str, store: SqliteSessionStore = store) -> None:
                with store._file.reading() as db:
                    (level,) = db.execute("PRAGMA synchronous").fetchone()
                levels[name] = f"{levels.get(name, '')}{level}"

            store.create_session(session_id="s")
            note("create")
            with store.open_writer("s") as writer:
                for name, batch in (
                    ("prompt", [prompt]),
                    ("one notice", [notice]),
                    ("notice and prompt", [notice, prompt]),
                    ("two notices", [notice, notice]),
                ):
                    writer.append(batch)
                    note(name)
            blob = store.put_blob("s", b"x")
            note("blob")
            store.update_metadata("s", {"a": 1})
            note("metadata")
            store.delete_blobs("s", [blob])
            note("erase a blob")
            store.delete_session("s")
            note("delete")
        synced = {"create", "prompt", "notice and prompt", "blob", "delete"}
        expected = {name: "122" if name in synced else "112" for name in levels} | {"erase a blob": "222"}
        self.assertEqual(levels, expected)

    def test_a_writer_whose_last_event_is_gone_appends_no_prompt_after_it(self) -> None:
        name = self.session()
        with self.store.open_writer(name) as writer:
            with closing(sqlite3.connect(self.path)) as db, db:
                db.execute("DELETE FROM events WHERE place = (SELECT max(place) FROM events)")
            with self.assertRaises(ConcurrencyError) as caught:
                writer.append([UserMessage("four")])
        self.assertEqual((caught.exception.expected_seq, caught.exception.actual_seq), (3, 2))
        self.assertEqual(self.store.last_seq(name), 2)

    def test_nobody_else_can_read_the_files(self) -> None:
        with self.store.open_writer(self.session()):
            files = [path for path in self.path.parent.rglob("*") if path.is_file()]
            self.assertGreater(len(files), 2)
            self.assertEqual({path.stat().st_mode & 0o077 for path in files}, {0})

    def test_the_lock_that_a_crash_left_behind_does_not_show_in_the_name_of_the_next_holder(self) -> None:
        session_id = self.session()
        self.store.open_writer(session_id).close()
        [[key, epoch]] = self.ask("SELECT key, epoch FROM sessions")
        left = self.path.with_name(f"{self.path.name}-leases") / f"{key}-{int(str(epoch)) + 1}"
        left.write_text("process 123456789012345")
        with self.store.open_writer(session_id), self.assertRaises(SessionLockedError) as caught:
            self.store.open_writer(session_id)
        self.assertEqual(caught.exception.holder, f"process {os.getpid()}")

    def test_an_interrupt_after_the_transaction_that_opens_a_session_releases_it(self) -> None:
        store = self.store
        store.create_session(session_id="interrupted")
        file = FaultyFile(store._file)
        store._file, file.fault = file, "killed unheard"
        for become in (store.open_writer, store.take_over):
            with self.assertRaises(Killed) as caught:
                become("interrupted")
            file.fault = ""
            store.open_writer("interrupted").close()
            file.fault = "killed unheard"
            del caught  # its frames would keep alive what was never released
        file.fault = ""

    def test_a_database_of_a_newer_version_is_refused_and_left_alone(self) -> None:
        session_id = self.session()
        self.store.close()
        self.change("PRAGMA user_version = 99")
        with self.assertRaises(StorageError) as caught:
            self.store.read_events(session_id)
        self.assertIn("upgrade", str(caught.exception))
        self.assertEqual(self.ask("PRAGMA user_version"), [(99,)])

    def test_a_database_of_each_version_so_far_is_read_and_written(self) -> None:
        for number in range(1, len(MIGRATIONS) + 1):
            self.path.parent.mkdir(exist_ok=True)
            db = sqlite3.connect(self.path)
            db.executescript((FIXTURES / f"sqlite-version-{number}.sql").read_text())
            db.close()
            name = f"from-version-{number}"
            (row,) = self.store.list_session_summaries()
            self.assertEqual((row.id, row.title, row.turns, row.events, row.tokens), (name, "A title", 1, 8, 10))
            self.assertEqual(row, self.store.fold_summary(name))
            self.assertEqual(self.store.read_blob(name, self.store.list_blobs(name)[0]), b"blob")
            self.assertEqual(
                self.store.read_events(name)[1], UserMessage("a prompt \x00 \ud800", seq=2, ts=1760000000.25)
            )
            self.assertEqual(self.store.append_event(name, UserMessage("more")).seq, 9)
            messages = [each.message for each in self.store.read_messages([name])]
            self.assertEqual((messages, row.tenant), ([{"text": "steer \0 \ud800"}], "x") if number > 3 else ([], None))
            self.store.delete_session(name)
            self.store.close()
            self.path.unlink()

    def test_a_file_that_is_not_a_database_is_a_storage_error(self) -> None:
        self.path.parent.mkdir()
        self.path.write_bytes(b"no database" * 1000)
        with self.assertRaises(StorageError):
            self.store.list_sessions()

    def test_a_summary_of_another_version_is_computed_again_when_it_is_shown_and_then_kept(self) -> None:
        session_id = self.session()
        expected = self.store.read_summary(session_id)
        for stale in (None, '{"version":0}', '{"version":99,"id":"x","title":"stolen"}'):
            self.change("UPDATE sessions SET summary = ?", stale)
            self.assertEqual(self.store.list_session_summaries(), [expected])
            self.assertIn('"turns":2', str(self.ask("SELECT summary FROM sessions")))
            self.change("UPDATE sessions SET summary = ?", stale)
            self.store.append_event(session_id, SessionMeta(title="new"))
            expected = self.store.fold_summary(session_id)
            self.assertEqual(self.store.read_summary(session_id), expected)

    def test_a_damaged_summary_hides_no_event_and_is_reported_by_whoever_needs_it(self) -> None:
        session_id = self.session()
        expected = self.store.read_events(session_id)
        self.change("UPDATE sessions SET summary = ?", '{"version"')
        self.assertEqual(self.store.read_events(session_id), expected)
        self.assertEqual(self.store.last_seq(session_id), len(expected))
        self.assertTrue(self.store.session_exists(session_id))
        with self.store.open_writer(session_id) as writer:
            self.assertEqual(writer.last_seq, len(expected))
        [row] = self.store.list_session_summaries()
        self.assertIn("not JSON", row.error or "")

    def test_a_summary_that_was_computed_again_is_kept_for_its_session_and_metadata(self) -> None:
        session_id = self.session()
        number = self.store.last_seq(session_id)

        def replace_session() -> None:
            self.store.delete_session(session_id)
            self.store.create_session(session_id=session_id)
            self.store.append_events(session_id, [UserMessage("new")] * number)
            self.change("UPDATE sessions SET summary = NULL")

        class Interrupted(SqliteSessionStore):
            meanwhile: Callable[[], object]

            def iter_events(self, *args: Any, **named: Any) -> Iterator[Event]:
                events = list(super().iter_events(*args, **named))
                self.meanwhile()
                return iter(events)

        for meanwhile in (lambda: self.store.update_metadata(session_id, {"cwd": "/new"}), replace_session):
            self.change("UPDATE sessions SET summary = NULL")
            with closing(Interrupted(self.path)) as reader:
                reader.meanwhile = meanwhile
                reader.read_summary(session_id)
            self.assertEqual(self.store.read_summary(session_id), self.store.fold_summary(session_id))

    def test_events_that_only_count_are_in_the_summary_of_whoever_asks(self) -> None:
        session_id, other = self.session(), self.session()
        with self.store.open_writer(session_id) as writer, closing(SqliteSessionStore(self.path)) as reader:
            for number in range(4):
                writer.append([ToolResult("c", output=number)])
                self.assertEqual(reader.read_summary(session_id), reader.fold_summary(session_id))
            writer.append([UserMessage("four")])
            writer.append([ToolResult("c")])
            self.store.append_event(other, ToolResult("c"))
            writer.append([ToolResult("c")])
            writer.append([ToolResult("c"), UserMessage("five")])
            self.assertEqual(reader.read_summary(session_id), reader.fold_summary(session_id))
            self.assertEqual((reader.last_seq(session_id), writer.last_seq), (12, 12))
            self.assertEqual(reader.list_sessions(), [session_id, other])

    def test_one_event_that_only_counts_is_refused_once_the_session_was_taken_over(self) -> None:
        session_id = self.session()
        hung = self.store.open_writer(session_id)
        hung.append([ToolResult("c")])
        with self.store.take_over(session_id):
            with self.assertRaises(LeaseLostError):
                hung.append([ToolResult("c")])
            self.assertEqual(self.store.last_seq(session_id), 4)

    def test_one_event_that_only_counts_is_stored_by_one_statement_without_a_temporary_table(self) -> None:
        commands: list[str] = []
        with self.store.open_writer(self.session()) as writer, self.store._file.reading() as db:
            db.set_trace_callback(commands.append)
            writer.append([ToolResult("c", output="four")])
            db.set_trace_callback(None)
        # Its triggers are traced with the same text.
        [insert] = {command for command in commands if not command.startswith("PRAGMA")}
        self.assertIn("four", insert)
        self.assertNotIn("OpenEphemeral", {row[1] for row in self.ask(f"EXPLAIN {insert}")})

    def test_rows_with_these_keys_are_read_by_their_keys_whatever_else_is_required(self) -> None:
        commands: list[str] = []
        with self.store._file.reading() as db:
            db.set_trace_callback(commands.append)
            for cwd in (None, "/work"):
                for tenant in (None, "", "acme"):
                    keys = range(1, 41)
                    list(self.store._page(cwd=cwd, tenant=tenant, include_children=False, limit=None, keys=keys))
            db.set_trace_callback(None)
        self.assertEqual(len(commands), 6)
        for command in commands:
            plan = [str(row[-1]) for row in self.ask(f"EXPLAIN QUERY PLAN {command}")]
            self.assertTrue(any("sessions USING INTEGER PRIMARY KEY" in step for step in plan), f"{command}: {plan}")

    def test_a_damaged_event_is_loud_and_fails_its_own_row_only(self) -> None:
        damaged, whole = self.session(), self.session()
        for change in ("data = '{'", "data = replace(data, '\"seq\":2', '\"seq\":7')", "place = place + 18"):
            self.change(f"UPDATE events SET {change} WHERE place = (1 << 32) + 2")
            self.change("UPDATE sessions SET summary = NULL WHERE key = 1")
            with self.assertRaises(LogCorruptError):
                self.store.read_events(damaged)
            rows = {row.id: row for row in self.store.list_session_summaries()}
            self.assertIn("LogCorruptError", rows[damaged].error or "")
            self.assertIsNone(rows[whole].error)
            self.assertEqual({hit.session_id for hit in self.store.search("three")} - {damaged}, {whole})

    def test_the_intact_part_of_a_damaged_session_can_be_salvaged(self) -> None:
        session_id = self.session()
        digest = self.store.put_blob(session_id, b"blob")
        self.change("UPDATE events SET data = '{' WHERE place = (1 << 32) + 2")
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            self.assertEqual(main(["sessions", "salvage", session_id, "--store", f"sqlite:{self.path}"]), 0)
        self.assertIn("saved 1 event ", out.getvalue())
        (new,) = set(self.store.list_sessions()) - {session_id}
        texts = [event.text for event in self.store.iter_events(new) if isinstance(event, UserMessage)]
        self.assertEqual((texts, self.store.read_blob(new, digest)), (["one"], b"blob"))
        self.assertEqual(self.store.read_summary(new).parent, session_id)

    def test_the_index_finds_what_a_scan_finds(self) -> None:
        session_id = self.session()
        texts = [
            "Größe naïve ÅNGSTRÖM",
            "snake_case kebab-case x1y2",
            "日本語 テキスト",
            "a\x00b C++ e.g. 3.14",
            "don't",
            "a lone \ud800 surrogate",
            "private\ue000use 𞤀𞤁 newer than SQLite's letters, 𝔘nicode",
        ]
        self.store.append_events(session_id, [UserMessage(text) for text in texts])
        for query in (
            "grosse",
            "größe",
            "naive",
            "angstrom",
            "case",
            "snake case",
            "x1",
            "日本",
            "b c",
            "3 14",
            "don t",
            "g",
            "surrogate",
            "use",
            "𞤀",
            "unicode",
            '"case" AND NEAR(g) * ^',
            "\ud800",
        ):
            scanned = SessionStore.search(self.store, query)
            self.assertEqual(self.store.search(query), scanned, query)
            self.assertEqual(self.store.search(query, limit=-1), [])
        for query in ("case", "surrogate", "use", "𞤀", "unicode"):
            self.assertEqual(len(self.store.search(query)), 1, query)

    def test_a_hit_is_shown_in_its_context_whatever_its_accents(self) -> None:
        self.store.append_event(
            self.store.create_session(), UserMessage("word " * 500 + "the caf\u00e9 " + "word " * 500)
        )
        for found in (self.store.search("cafe"), SessionStore.search(self.store, "cafe")):
            self.assertIn("the caf\u00e9", found[0].context)

    def test_an_event_that_was_damaged_since_hides_nothing_but_itself(self) -> None:
        self.store.append_events(self.store.create_session(), [UserMessage("zebra one"), UserMessage("zebra two")])
        self.assertEqual([hit.seq for hit in self.store.search("zebra")], [1, 2])
        self.change("UPDATE events SET data = '{' WHERE place & 4294967295 = 1")
        self.assertEqual([hit.seq for hit in self.store.search("zebra")], [2])

    def test_an_index_of_whole_texts_inside_the_database_goes_when_it_is_opened(self) -> None:
        self.path.parent.mkdir()
        db = sqlite3.connect(self.path)
        db.executescript((FIXTURES / "sqlite-version-2.sql").read_text())
        db.execute("CREATE VIRTUAL TABLE found_text USING fts5 (text, tokenize = 'unicode61')")
        db.execute("CREATE VIRTUAL TABLE found_words USING fts5 (text, tokenize = 'ascii')")
        db.close()
        self.assertEqual(len(self.store.search("prompt")), 1)
        self.assertEqual(self.ask("SELECT name FROM sqlite_master WHERE name LIKE 'found%'"), [])

    def index(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path.with_name(self.path.name + "-search"), isolation_level=None)
        self.addCleanup(db.close)
        return db

    def test_deleted_content_is_not_in_the_files(self) -> None:
        session_id, other = self.store.create_session(), self.store.create_session()
        self.store.append_events(session_id, [UserMessage("a zebra"), UserMessage("a horse")])
        self.store.append_event(other, UserMessage("another zebra"))
        self.assertEqual(len(self.store.search("zebra")), 2)
        self.store.delete_session(session_id)
        self.assertEqual(
            self.index().execute("SELECT rowid >> 32 FROM found WHERE found MATCH 'zebra'").fetchall(), [(2,)]
        )
        self.assertEqual(self.index().execute("SELECT rowid FROM found WHERE found MATCH 'horse'").fetchall(), [])
        self.assertEqual(self.ask("SELECT count(*) FROM events"), [(1,)])
        self.assertEqual([hit.session_id for hit in self.store.search("zebra")], [other])

    def test_a_list_that_is_stopped_while_it_builds_its_index_keeps_what_it_did(self) -> None:
        for number in range(STEP_SESSIONS + 20):
            self.store.create_session(session_id=f"s{number:03d}", metadata={"tags": ["maple"]})
        described: list[str] = []

        def describe(session_id: str) -> SessionSummary:
            described.append(session_id)
            if len(described) == STEP_SESSIONS + 10:
                raise KeyboardInterrupt
            return self.store.kept_summary(session_id)

        with self.assertRaises(KeyboardInterrupt):
            self.store._index.listed("maple", float("inf"), 1000, describe)
        described.clear()
        listed = self.store._index.listed("maple", float("inf"), 1000, describe)
        self.assertEqual(len(described), 20)
        self.assertEqual(len(listed or ()), STEP_SESSIONS + 20)

    def test_an_append_does_not_wait_for_the_index(self) -> None:
        session_id = self.session()
        self.assertEqual(len(self.store.search("three")), 1)
        busy = self.index()
        busy.execute("BEGIN EXCLUSIVE")
        self.store.append_event(session_id, UserMessage("another three"))
        with self.store.open_writer(session_id) as writer:
            writer.append([UserMessage("one more three")])
        busy.execute("ROLLBACK")
        self.assertEqual(len(self.store.search("three")), 3)

    def test_an_index_that_is_damaged_or_of_another_database_is_rebuilt(self) -> None:
        session_id = self.session()
        for damage in (b"", b"no database" * 1000):
            self.assertEqual([hit.seq for hit in self.store.search("three")], [3])
            self.path.with_name(self.path.name + "-search").write_bytes(damage)
        self.assertEqual([hit.seq for hit in self.store.search("three")], [3])
        # Another program, which does not use the index, deletes and creates sessions.
        self.change("DELETE FROM sessions")
        self.store.create_session(session_id=session_id)
        self.store.append_event(session_id, UserMessage("something new"))
        self.assertEqual(self.store.search("three"), [])
        self.assertEqual(len(self.store.search("new")), 1)

    def test_no_event_or_blob_is_without_its_session_whoever_writes(self) -> None:
        session_id = self.session()
        self.store.put_blob(session_id, b"blob")
        for command in (
            "INSERT INTO events (place, updated, data) VALUES ((77 << 32) + 1, 1.0, '{}')",
            "INSERT INTO blobs (session, sha256, data) VALUES (77, 'x', 'y')",
        ):
            with self.assertRaises(sqlite3.IntegrityError):
                self.change(command)
        self.change("DELETE FROM sessions")
        self.assertEqual(self.ask("SELECT (SELECT count(*) FROM events) + (SELECT count(*) FROM blobs)"), [(0,)])

    @unittest.skipUnless(Path("/proc/locks").exists(), "the system does not list its locks")
    def test_a_second_store_and_a_search_take_no_locks_from_the_first_store(self) -> None:
        session_id = self.session()
        held = self.locks()
        self.assertGreaterEqual(len(held), 2)
        with closing(SqliteSessionStore(self.path)) as second:
            second.append_event(session_id, UserMessage("four"))
            self.assertEqual(len(second.search("four")), 1)
        self.assertEqual(self.locks(), held)

    def locks(self) -> set[str]:
        files = {str(path.stat().st_ino): path.name for path in self.path.parent.glob(f"{self.path.name}*")}
        lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        mine = [line for line in lines if line[1] == "POSIX" and line[4] == str(os.getpid())]
        return {files[name] for line in mine if (name := line[5].rpartition(":")[2]) in files}

    @unittest.skipUnless(hasattr(os, "fork"), "this system has no fork")
    def test_events_appended_by_a_forked_child_survive_its_parent_and_closed_files(self) -> None:
        session_id = self.session()
        with Process(
            [sys.executable, "-c", _FORKING, str(self.path), session_id], stdin=-1, stdout=-1, text=True, cwd=ROOT
        ) as process:
            assert process.stdin is not None and process.stdout is not None
            self.assertEqual(process.stdout.readline(), "ready\n")
            process.wait()
            self.store.append_event(session_id, UserMessage("another's"))
            self.store.close()
            process.stdin.write("\n")
            process.stdin.flush()
            self.assertEqual(process.stdout.readline(), "stored 6\n")
        texts = [event.text for event in self.store.read_events(session_id) if isinstance(event, UserMessage)]
        self.assertEqual(texts[-3:], ["child's", "another's", "child's last"])

    @unittest.skipUnless(hasattr(os, "fork"), "this system has no fork")
    def test_a_child_that_is_forked_in_the_middle_of_a_write_is_refused_and_undoes_nothing(self) -> None:
        session_id = self.session()

        def events() -> Iterator[UserMessage]:
            yield UserMessage("one", seq=1, ts=1.0)
            child = os.fork()
            if child == 0:
                code = 1
                with contextlib.suppress(BaseException):
                    try:
                        SqliteSessionStore(self.path).append_event(session_id, UserMessage("from the child"))
                    except StorageError as error:
                        code = 0 if "fork" in str(error) else 2
                os._exit(code)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
            yield UserMessage("two", seq=2, ts=2.0)

        self.store.import_session("imported", events())
        self.assertEqual(len(self.store.read_events("imported")), 2)
        self.assertEqual(self.ask("PRAGMA integrity_check"), [("ok",)])
        self.assertEqual(self.store.last_seq(session_id), 3)

    def test_a_database_in_memory_leaves_no_file_and_ends_with_the_store(self) -> None:
        before = set(Path.cwd().iterdir())
        for url in ("sqlite:///:memory:", "sqlite::memory:", "sqlite:///:memory:?durability=flush"):
            store = open_store(url)
            assert isinstance(store, SqliteSessionStore)
            session_id = store.create_session()
            with store.open_writer(session_id) as writer:
                writer.append([UserMessage("a zebra")])
                with self.assertRaises(SessionLockedError):
                    store.open_writer(session_id)
            self.assertEqual([hit.seq for hit in store.search("zebra")], [1])
            self.assertEqual(store.durability, "memory")
            store.close()
            self.assertEqual(store.list_sessions(), [])
            store.close()
        self.assertEqual(set(Path.cwd().iterdir()), before)
        self.assertFalse(Path("/:memory:").exists())

    def test_a_database_in_memory_does_nothing_for_the_disk_or_for_other_processes(self) -> None:
        commands: list[str] = []
        with closing(SqliteSessionStore(":memory:")) as store:
            session_id = store.create_session()
            with store._file.reading() as db:
                db.set_trace_callback(commands.append)
            store.append_events(session_id, [UserMessage("one")])
            self.assertEqual(len(store.read_events(session_id)), 1)
            store.put_blob(session_id, b"data")
            store.scrub(session_id)
        self.assertIn("COMMIT", commands)
        needless = [each for each in commands if each.startswith(("PRAGMA busy", "PRAGMA sync", "VACUUM"))]
        self.assertEqual(needless, [])

    @unittest.skipIf(sys.platform == "win32", "this system has no fork")
    def test_a_forked_child_cannot_write_for_its_parent_and_can_read_on_its_own(self) -> None:
        session_id = self.session()
        with self.store.open_writer(session_id) as writer:
            child = os.fork()
            if child == 0:
                try:
                    writer.append([UserMessage("from the child")])
                except StorageError:
                    os._exit(len(self.store.read_events(session_id)))
                os._exit(99)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 3)
            writer.append([UserMessage("from the parent")])
        self.assertEqual(len(self.store.read_events(session_id)), 4)

    def test_a_name_is_a_store_or_a_sentence(self) -> None:
        for url in ("sqlite:", "sqlite:x?speed=fast", "nothing", "ftp://x", "sqlite:x?durability=never"):
            with self.assertRaises(OptionsError):
                open_store(url)
        for folder in ("/tmp/x:y%20", "./x", "~/x"):
            store = open_store(folder)
            assert isinstance(store, FileSessionStore)
            self.assertEqual(store.root_dir, Path(folder).expanduser())
        for url, path in (
            ("sqlite:x.db", "x.db"),
            ("sqlite:///tmp/x.db", "/tmp/x.db"),
            ("sqlite:////tmp/x.db", "/tmp/x.db"),
            ("sqlite:/tmp/a%20b.db?durability=fsync", "/tmp/a b.db"),
            ("sqlite:///~/x.db", str(Path.home() / "x.db")),
            ("sqlite:~/x.db", str(Path.home() / "x.db")),
        ):
            store = open_store(url)
            assert isinstance(store, SqliteSessionStore)
            self.assertEqual(str(store.path), path)
