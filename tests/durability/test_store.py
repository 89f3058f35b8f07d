"""The file store meets the contract of all stores, and the promises specific to files."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
from itertools import count
from zlib import crc32

from openagentic_sdk.errors import (
    OptionsError,
    SessionExistsError,
    SessionLockedError,
    SessionNotFoundError,
    StorageError,
)
from openagentic_sdk.events import AssistantMessage, SessionMeta, SystemNotice, UserMessage
from openagentic_sdk.parts.record import lifecycle
from openagentic_sdk.sessions.base import SessionStore
from openagentic_sdk.sessions.core import SessionWriter
from openagentic_sdk.sessions.log.folder import folder_lock
from openagentic_sdk.sessions.store import FileSessionStore, is_session_id
from openagentic_sdk.testing import store_contract
from openagentic_sdk.testing.faults import FaultyOS
from tests.pythons import ROOT, contract_python
from tests.size import LARGE, full_size

from .scenes import CountingDisk, InstantDisk, InterruptedDisk, SceneTest, three_turns

IMPOSSIBLE: tuple[dict[str, object], ...] = (
    {"cost_usd": float("inf")},
    {"created": float("inf")},
    {"created": 10**400},
    {"state": "evil"},
    {"error": "boom"},
    {"id": "another"},
)


WITHOUT_LOCKS = """
import sys
from openagentic_sdk.errors import StorageError
from openagentic_sdk.events import UserMessage
from openagentic_sdk.sessions.store import FileSessionStore

store = FileSessionStore(sys.argv[1])
try:
    store.create_session(session_id="s")
    store.append_event("s", UserMessage("a"))
    store.is_held("s")
    store.claim_request("s", "r")
    store.update_metadata("s", {"a": 1})
    store.delete_session("s")
except StorageError:
    pass
"""


@full_size
class FileSessionStoreTest(store_contract.StoreContract):
    """The contract on the class itself, with a long log; tests.stores checks it by the store's address."""

    can_take_over = False
    python = contract_python

    def make_store(self) -> SessionStore:
        return FileSessionStore(self.place, "flush")

    def process_source(self) -> str:
        return f"from openagentic_sdk.sessions.store import FileSessionStore\nstore = FileSessionStore({str(self.place)!r})"


class FilesTest(SceneTest):
    def test_a_path_that_would_be_too_long_is_refused_when_a_session_is_created(self) -> None:
        place = self.place
        while len(str(place)) < 3589:
            place /= "x" * 200
        place /= "x" * (3799 - len(str(place)))  # the same length wherever temporary folders are
        fits = []
        for length in range(20, 240, 10):
            store = FileSessionStore(place / ("y" * length), "flush")
            try:
                session_id = store.create_session(session_id="a" * 100)
            except OptionsError as error:
                self.assertIn("choose a folder with a shorter path", str(error))
                self.assertFalse((place / ("y" * length)).exists())
                continue
            fits.append(length)
            store.append_event(session_id, UserMessage("fits"))
            self.assertEqual(store.read_blob(session_id, store.put_blob(session_id, b"fits")), b"fits")
            self.assertEqual(store.read_summary(session_id).events, 1)
        self.assertEqual(fits, list(range(20, max(fits) + 10, 10)))
        self.assertLess(len(fits), 20)

    def test_ids_that_differ_in_case_are_one_session_where_the_folder_ignores_case_and_only_under_its_own(self) -> None:
        self.store.create_session(session_id="ABC")
        if not (self.place / "sessions" / "abc").exists():
            self.skipTest("this file system is case-sensitive")
        with self.assertRaises(SessionNotFoundError):
            self.store.read_events("abc")
        with self.assertRaisesRegex(OptionsError, "ignores case, and session 'ABC' exists"):
            self.store.create_session(session_id="abc")
        self.assertFalse(self.store.session_exists("abc"))
        self.assertEqual(self.store.read_events("ABC"), [])

    @unittest.skipUnless(
        LARGE and shutil.which("strace"), "OPENAGENTIC_TEST_LARGE is not set, or strace is not installed"
    )
    def test_a_system_without_locks_left_is_a_storage_error_wherever_one_is_taken_or_given_back(self) -> None:
        for number in range(1, 14):
            with tempfile.TemporaryDirectory() as place:
                command = ["strace", "-f", "-qq", "-o", os.devnull, "-e", f"inject=flock:error=ENOLCK:when={number}"]
                script = [sys.executable, "-c", WITHOUT_LOCKS, place]
                done = subprocess.run([*command, *script], capture_output=True, text=True, cwd=ROOT, timeout=300)
                self.assertEqual((done.returncode, done.stderr), (0, ""), number)

    def test_a_session_is_a_folder_with_a_log_and_what_was_known_at_its_creation(self) -> None:
        session_id = self.store.create_session(metadata={"cwd": "/w"})
        folder = self.place / "sessions" / session_id
        self.assertEqual(self.store.session_dir(session_id), folder)
        self.assertEqual(sorted(os.listdir(folder)), ["events.jsonl", "meta.json", "summary.json"])
        meta = json.loads((folder / "meta.json").read_text())
        self.assertEqual(meta, {"session_id": session_id, "created_at": self.clock.now(), "metadata": {"cwd": "/w"}})

    def test_nobody_else_can_read_the_files(self) -> None:
        self.store.append_event("s", UserMessage("a"))
        self.store.put_blob("s", b"data")
        for path in (self.path, *self.path.parent.rglob("*")):
            self.assertEqual(path.stat().st_mode & 0o077, 0, path)

    def test_only_plain_names_can_name_a_session(self) -> None:
        for name in ("a", "A-b_c.d", "9" * 128):
            self.assertTrue(is_session_id(name), name)
        for name in (
            "",
            ".",
            "..",
            ".a",
            "a/b",
            "a\\b",
            "a\n",
            "a.",
            "-a",
            "con",
            "NUL.txt",
            "lpt1",
            "x" * 129,
            "ä",
            "a b",
        ):
            self.assertFalse(is_session_id(name), name)
            if name:
                with self.assertRaises(OptionsError):
                    self.store.create_session(session_id=name)
            with self.assertRaises(SessionNotFoundError):
                self.store.read_events(name)
        self.assertEqual(os.listdir(self.place), ["sessions"])

    def test_links_do_not_lead_out_of_the_store(self) -> None:
        outside = self.place / "outside"
        outside.mkdir()
        (outside / "events.jsonl").write_text('{"type":"user.message","text":"secret"}\n')
        (self.place / "sessions" / "linked").symlink_to(outside)
        (self.place / "sessions" / "half").mkdir()
        (self.place / "sessions" / "half" / "events.jsonl").symlink_to(outside / "events.jsonl")
        for name in ("linked", "half"):
            for call in (self.store.read_events, self.store.open_writer, self.store.delete_session):
                with self.assertRaises(SessionNotFoundError):
                    call(name)
        self.assertNotIn("linked", self.store.list_sessions())
        self.assertTrue((outside / "events.jsonl").exists())

    def test_a_read_only_store_reads_everything_and_writes_nothing(self) -> None:
        self.store.append_event("s", UserMessage("a"))
        digest = self.store.put_blob("s", b"data")
        before = self.snapshot()
        store = self.make_store(read_only=True)
        self.assertEqual(len(store.read_events("s")), 1)
        self.assertEqual((store.last_seq("s"), store.read_blob("s", digest)), (1, b"data"))
        self.assertEqual([row.turns for row in store.list_session_summaries()], [1])
        for write in (
            lambda: store.create_session(),
            lambda: store.open_writer("s"),
            lambda: store.append_event("s", UserMessage("b")),
            lambda: store.update_metadata("s", {"a": 1}),
            lambda: store.put_blob("s", b"more"),
            lambda: store.delete_session("s"),
            lambda: store.import_session("t", []),
        ):
            with self.assertRaises(StorageError):
                write()
        self.assertEqual(self.snapshot(), before)

    def snapshot(self) -> list[tuple[str, bytes]]:
        return sorted((str(path), path.read_bytes()) for path in self.place.rglob("*") if path.is_file())

    def test_the_log_alone_is_enough(self) -> None:
        self.store.append_event("s", UserMessage("a"))
        self.store.read_summary("s")
        for name in ("meta.json", "summary.json"):
            for damaged in (b"", b"{", b"[]", b'{"created_at": "x"}', b"\xff"):
                (self.path.parent / name).write_bytes(damaged)
                self.assert_usable()
            (self.path.parent / name).unlink()
            self.assert_usable()
        self.store.update_metadata("s", {"cwd": "/w"})
        self.assertEqual(self.store.read_summary("s").cwd, "/w")

    def assert_usable(self) -> None:
        self.assertEqual(self.store.read_metadata("s")["metadata"], {})
        self.assertEqual(self.store.read_summary("s"), self.store.fold_summary("s"))
        self.assertEqual(self.store.list_sessions(), ["s"])

    def test_a_kept_summary_follows_the_log_and_never_another_one(self) -> None:
        for number in range(3):
            self.store.append_events("s", [UserMessage(f"prompt {number}"), AssistantMessage("a")])
            self.assertEqual(self.store.read_summary("s"), self.store.fold_summary("s"))
        self.store.create_session(session_id="t")
        self.store.append_events("t", [UserMessage("of another log" * 9)] * 9)
        shutil.copy(self.store.session_dir("t") / "events.jsonl", self.path)
        self.assertEqual(self.store.read_summary("s"), self.store.fold_summary("s"))
        self.assertEqual(self.store.read_summary("s").turns, 9)

    def test_a_list_reads_what_was_appended_since_the_last_one_and_then_the_last_byte_of_a_log(self) -> None:
        self.store.append_events("s", [AssistantMessage("x" * 1000)] * 2000)
        self.store.list_session_summaries()
        self.store.append_event("s", UserMessage("one more"))
        disk = CountingDisk()
        (row,) = self.make_store(disk=disk).list_session_summaries()
        self.assertEqual((row.events, row.last_prompt), (2001, "one more"))
        self.assertLess(disk.read_bytes, 1000)
        disk.read_bytes = 0
        self.assertEqual(self.make_store(disk=disk).list_session_summaries(), [row])
        self.assertEqual(disk.read_bytes, 1)

    def test_a_list_reads_the_last_byte_of_a_log_while_sessions_are_written_and_afterwards(self) -> None:
        disk = CountingDisk()
        reader = self.make_store(disk=disk)
        lists = 0
        with self.store.open_writer("s") as writer:
            for batch in three_turns():
                writer.append(batch)
                self.assertEqual(reader.list_session_summaries(), [self.store.fold_summary("s")])
                lists += 1
        self.store.append_event("s", AssistantMessage("outside of a run"))
        copied = lifecycle.fork_session(self.store, "s")
        self.store.import_session("t", self.store.read_events("s"))
        rows = {row.id: row for row in reader.list_session_summaries()}
        self.assertEqual(rows, {name: self.store.fold_summary(name) for name in ("s", "t", copied)})
        self.assertEqual(disk.read_bytes, lists + len(rows))

    def test_a_summary_that_gets_shorter_and_longer_stays_whole(self) -> None:
        disk = CountingDisk()
        reader = self.make_store(disk=disk)
        with self.store.open_writer("s") as writer:
            for title in ("long " * 40, "x", "", "longer " * 25):
                writer.append([SessionMeta(title=title), UserMessage(title)])
                writer.append([AssistantMessage("a")])
                self.assertEqual(reader.list_session_summaries(), [self.store.fold_summary("s")])
        self.assertEqual(disk.read_bytes, 4, "each list reads the last byte of the log")

    def test_metadata_that_change_under_a_writer_are_in_the_summary(self) -> None:
        with self.store.open_writer("s") as writer:
            writer.append([UserMessage("a")])
            self.store.update_metadata("s", {"cwd": "/elsewhere"})
            for text in "bc":
                writer.append([UserMessage(text)])
                self.assertEqual(self.store.read_summary("s"), self.store.fold_summary("s"))
            self.assertEqual(self.store.read_summary("s").cwd, "/elsewhere")

    def replace_session(self) -> None:
        """Delete the session and create another with the same name, whose log has the same length but different content."""
        self.store.delete_session("s")
        self.store.create_session(session_id="s")
        self.store.append_event("s", UserMessage("new"))

    def test_a_change_of_metadata_does_not_reach_a_session_that_takes_the_name_meanwhile(self) -> None:
        openings, is_deleting, goes_on = count(1), threading.Event(), threading.Event()

        def hold_deletion() -> None:
            if next(openings) == 2:  # the first opening reads the session's row
                is_deleting.set()
                goes_on.wait()

        def replace_session() -> None:
            self.make_store(disk=InterruptedDisk("opened", hold_deletion)).delete_session("s")
            self.store.create_session(session_id="s")

        def let_go_on() -> None:
            goes_on.set()
            replacing.join(0.3)  # it waits until the change is complete

        replacing = threading.Thread(target=replace_session)
        replacing.start()
        is_deleting.wait()
        self.make_store(disk=InterruptedDisk("made", let_go_on)).update_metadata("s", {"cwd": "/old"})
        replacing.join()
        self.assertEqual(self.store.read_metadata("s")["metadata"], {})
        self.assertEqual(self.store.read_summary("s"), self.store.fold_summary("s"))

    def test_a_summary_is_kept_for_no_session_that_takes_the_name_meanwhile(self) -> None:
        self.store.append_events("s", [UserMessage("old")] * 2)
        (self.path.parent / "summary.json").unlink()
        reader = self.make_store(disk=InterruptedDisk("looked at", self.replace_session))
        self.assertEqual(reader.read_summary("s").last_prompt, "old")
        self.store.append_event("s", UserMessage("more"))
        self.assertEqual(sorted(os.listdir(self.path.parent)), ["events.jsonl", "meta.json", "summary.json"])
        self.assertEqual(self.store.read_summary("s"), self.store.fold_summary("s"))

    def test_deleting_takes_no_session_that_gets_the_name_meanwhile(self) -> None:
        deleting = self.make_store(disk=InterruptedDisk("opened", self.replace_session))
        with self.assertRaises(SessionLockedError):
            deleting.delete_session("s")
        self.assertEqual([event.text for event in self.store.read_events("s")], ["new"])

    def test_a_summary_of_an_end_that_the_log_lost_does_not_speak_for_another_end_as_long(self) -> None:
        self.store.append_event("s", UserMessage("kept"))
        short = self.path.read_bytes()
        self.store.append_event("s", UserMessage("lost"))
        long = (self.path.parent / "summary.json").read_bytes()
        self.path.write_bytes(short)
        self.store.append_event("s", UserMessage("came"))
        self.assertEqual(self.store.read_summary("s").last_prompt, "came")
        self.assertNotEqual((self.path.parent / "summary.json").read_bytes(), long)

    def test_a_summary_that_cannot_be_kept_stops_no_append(self) -> None:
        (self.path.parent / "summary.json").unlink()
        (self.path.parent / "summary.json").mkdir()
        self.store.append_event("s", UserMessage("a"))
        self.assertEqual(self.store.read_summary("s"), self.store.fold_summary("s"))

    def test_a_row_that_cannot_be_read_fails_alone(self) -> None:
        names = ["s", *(self.store.create_session(session_id=f"s{number}") for number in range(3))]
        for name in names:
            self.store.append_events(name, [UserMessage("a"), AssistantMessage("b"), AssistantMessage("c")])
        damaged = self.store.session_dir("s1") / "events.jsonl"
        damaged.write_bytes(damaged.read_bytes().replace(b'"text":"a"', b'"text":"z"'))
        damaged.with_name("summary.json").unlink()
        rows = {row.id: row for row in self.store.list_session_summaries(limit=4)}
        self.assertEqual(set(rows), set(names))
        self.assertEqual([name for name, row in rows.items() if row.error], ["s1"])
        self.assertEqual({row.turns for name, row in rows.items() if name != "s1"}, {1})

    def test_an_invalid_stored_summary_is_computed_again(self) -> None:
        self.store.append_events("s", [UserMessage("a"), AssistantMessage("b")])
        expected = self.store.read_summary("s")
        kept = json.loads((self.path.parent / "summary.json").read_text())
        for change in ({"tags": 7}, {"tags": None}, {"turns": "9"}, {"title": 1}, {"updated": None}, {"version": 99}):
            spoilt = {**kept, "summary": {**kept["summary"], **change}}
            (self.path.parent / "summary.json").write_text(json.dumps(spoilt))
            self.assertEqual(self.store.list_session_summaries(), [expected], change)

    def test_a_stored_summary_that_no_fold_could_produce_is_computed_again(self) -> None:
        self.store.append_events("s", [UserMessage("a"), AssistantMessage("b")])
        expected = self.store.read_summary("s")
        summary = self.path.parent / "summary.json"
        kept = json.loads(summary.read_text())
        del kept["check"]
        for change in (
            {"updated": 1e300},
            {"updated": 10**400},
            {"seq": 10**30},
            *({"summary": {**kept["summary"], **change}} for change in IMPOSSIBLE),
        ):
            with self.subTest(str(change)[:200]):
                body = json.dumps({**kept, **change}).replace("Infinity", "1e999")[:-1].encode()
                summary.write_bytes(body + b',"check":"%08x"}\n' % crc32(body))
                self.assertEqual(self.store.list_session_summaries(), [expected])
                summary.write_bytes(body + b',"check":"%08x"}\n' % crc32(body))
                self.store.append_event("s", SystemNotice("x", "y"))
                self.assertEqual(self.store.read_summary("s"), self.store.fold_summary("s"))
                expected = self.store.read_summary("s")

    @unittest.skipIf(sys.platform == "win32", "this system has no such files")
    def test_a_link_or_pipe_in_place_of_a_summary_is_neither_followed_nor_waited_for(self) -> None:
        summary, other = self.path.parent / "summary.json", self.place / "other"
        other.write_text("precious")
        for put in (
            lambda: os.mkfifo(summary),
            lambda: summary.symlink_to("/dev/zero"),
            lambda: summary.symlink_to(other),
            lambda: os.link(other, summary),
            lambda: os.truncate(shutil.copy(other, summary), 10**11),
        ):
            summary.unlink()
            put()
            with self.store.open_writer("s") as writer:
                writer.append([UserMessage("a")])
                self.assertEqual(self.store.read_summary("s"), self.store.fold_summary("s"))
            self.assertEqual(other.read_text(), "precious")

    def test_a_copied_folder_is_a_session_of_its_own(self) -> None:
        self.store.append_event("s", UserMessage("a"))
        shutil.copytree(self.path.parent, self.place / "sessions" / "t")
        self.assertEqual({row.id for row in self.store.list_session_summaries()}, {"s", "t"})

    @unittest.skipIf(sys.platform == "win32", "writers keep no summary there")
    def test_a_writer_continues_with_the_summary_that_a_list_put_in_place_of_its_own(self) -> None:
        with self.store.open_writer("s") as writer:
            writer.append([UserMessage("a")])
            summary = self.path.parent / "summary.json"
            kept = summary.read_bytes()
            summary.unlink()
            summary.write_bytes(kept)
            writer.append([UserMessage("b"), UserMessage("c")])
            writer.append([UserMessage("d")])
            self.assertEqual(json.loads(summary.read_text())["seq"], 4)
            self.assertEqual(self.store.read_summary("s"), self.store.fold_summary("s"))

    def test_the_remains_of_a_killed_deletion_are_removed_with_the_next_one(self) -> None:
        self.store.append_event("s", UserMessage("secret"))
        os.rename(self.path.parent, self.place / "sessions" / ".deleted-0")
        self.store.create_session(session_id="t")
        self.store.delete_session("t")
        self.assertEqual(os.listdir(self.place / "sessions"), [])

    @unittest.skipIf(sys.platform == "win32", "folders cannot be locked there")
    @full_size
    def test_the_remains_of_a_killed_fork_are_removed_and_forks_in_progress_are_kept(self) -> None:
        self.store.append_events("s", [UserMessage(f"{n}") for n in range(2000)])
        sessions, at = self.place / "sessions", 1
        for sweep in (
            lambda: self.make_store().create_session(session_id="t"),
            lambda: self.store.delete_session("t"),
            lambda: self.store.list_sessions(),
        ):
            left: list[str] = []
            for at in range(at, 60):  # noqa: B020 - the next action continues at the operation reached here
                child = os.fork()
                if child == 0:
                    try:
                        lifecycle.fork_session(self.make_store(disk=FaultyOS(at=at, fault="kill middle")), "s")
                    finally:
                        os._exit(0)
                self.assertTrue(os.WIFSIGNALED(os.waitpid(child, 0)[1]))
                left = [name for name in os.listdir(sessions) if name.startswith(".new-")]
                if left:
                    break
            self.assertEqual(len(left), 1)
            with folder_lock(sessions, shared=True):
                self.make_store(read_only=True).list_sessions()
                self.store.list_sessions()
                self.assertTrue((sessions / left[0]).exists(), "another process may be creating it")
            sweep()
            self.assertFalse((sessions / left[0]).exists())

    def test_a_writer_detects_a_moved_or_replaced_log_before_any_barrier(self) -> None:
        for place in ("log", "session", "store"):
            with self.subTest(place), tempfile.TemporaryDirectory() as folder:
                store = FileSessionStore(os.path.join(folder, "store"), "flush")
                session_id = store.create_session()
                log = store.session_dir(session_id) / "events.jsonl"
                moved = {"log": log, "session": log.parent, "store": store.root_dir}[place]
                with store.open_writer(session_id) as writer:
                    writer.append([UserMessage("first")])
                    moved.rename(f"{moved}.old")
                    self.assert_moved(writer)
                    if place == "log":
                        log.write_bytes(b"")
                        self.assert_moved(writer)

    def assert_moved(self, writer: SessionWriter) -> None:
        with self.assertRaisesRegex(StorageError, "no longer written to, since its file was moved or replaced"):
            writer.append([UserMessage("lost")])

    def test_a_writer_of_a_relative_folder_continues_in_another_working_directory(self) -> None:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            store = FileSessionStore("store", "flush")
            with store.open_writer(store.create_session()) as writer, contextlib.chdir("/"):
                self.assertEqual([event.seq for event in writer.append([UserMessage("kept")])], [1])

    def test_a_folder_without_a_log_is_not_a_session(self) -> None:
        (self.place / "sessions" / "empty").mkdir()
        self.assertEqual(self.store.list_sessions(), ["s"])
        self.assertFalse(self.store.session_exists("empty"))
        with self.assertRaises(SessionExistsError):
            self.store.create_session(session_id="empty")

    def test_a_blob_is_checked_whenever_it_is_read(self) -> None:
        digest = self.store.put_blob("s", b"data")
        (self.path.parent / "blobs" / digest).write_bytes(b"rot!")
        with self.assertRaises(StorageError):
            self.store.read_blob("s", digest)
        self.assertEqual(self.store.put_blob("s", b"data"), digest)
        self.assertEqual(self.store.read_blob("s", digest), b"data")

    def test_nothing_is_made_before_it_is_needed(self) -> None:
        store = FileSessionStore(self.place / "deep" / "er")
        self.assertEqual(store.list_sessions(), [])
        self.assertFalse((self.place / "deep").exists())
        store.create_session(session_id="a")
        self.assertEqual(store.list_sessions(), ["a"])

    def test_an_unknown_durability_is_refused(self) -> None:
        with self.assertRaises(OptionsError):
            FileSessionStore(self.place, "eventually")

    def test_a_new_session_is_on_disk_before_its_id_is_known(self) -> None:
        disk = FaultyOS(disk=InstantDisk())
        self.make_store(disk=disk).create_session()
        changes = [name for name in disk.operations if name in ("fdatasync", "fsync_folder", "rename")]
        self.assertEqual(changes, ["fdatasync", "fdatasync", "fsync_folder", "rename", "fsync_folder"])

    def test_a_blob_is_on_disk_before_its_digest_is_known(self) -> None:
        disk = FaultyOS(disk=InstantDisk())
        self.make_store(disk=disk).put_blob("s", b"data")
        self.assertEqual(disk.operations, ["fsync_folder", "open", "write", "fdatasync", "replace", "fsync_folder"])

    def test_an_existing_blob_is_written_again_only_if_it_may_not_be_on_disk(self) -> None:
        for durability, writes in (("flush", 1), ("barrier", 2)):
            with self.subTest(durability):
                disk = FaultyOS(disk=InstantDisk())
                store = FileSessionStore(self.place / durability, durability, disk=disk)
                store.create_session(session_id="s")
                disk.operations.clear()
                for _ in range(2):
                    store.put_blob("s", b"data")
                self.assertEqual(disk.operations.count("write"), writes)

    def test_scrubbing_removes_only_files_that_do_not_belong_to_the_session(self) -> None:
        self.write(three_turns())
        digest = self.store.put_blob("s", b"data")
        folder = self.path.parent
        for name in ("events.jsonl.torn-1", "blobs/unfinished", "notes"):
            (folder / name).write_bytes(b"a piece of a line")
        before = self.store.read_events("s")
        FileSessionStore(self.place).scrub("s")  # on a real disk
        self.assertEqual(self.store.read_events("s"), before)
        self.assertEqual(self.store.list_blobs("s"), [digest])
        left = {path.name for path in (*folder.iterdir(), *(folder / "blobs").iterdir())}
        self.assertEqual(left & {"events.jsonl.torn-1", "unfinished", "notes"}, set())

    def test_nobody_becomes_the_writer_of_a_log_that_went_or_was_replaced_while_it_was_opened(self) -> None:
        self.store.append_event("s", UserMessage("hi"))

        def replace() -> None:
            self.path.unlink()
            self.path.write_bytes(b"")

        for work, expected in ((replace, SessionLockedError), (self.path.unlink, SessionNotFoundError)):
            with self.subTest(expected.__name__), self.assertRaises(expected) as caught:
                self.make_store(disk=InterruptedDisk("opened", work)).open_writer("s")
            self.assertEqual(caught.exception.session_id, "s")

    def test_a_writer_whose_file_can_no_longer_be_examined_writes_nothing_more(self) -> None:
        class Forgetful(InstantDisk):
            is_failing = False

            def lseek(self, fd: int, offset: int, whence: int) -> int:
                if self.is_failing:
                    raise OSError(errno.EIO, "injected EIO")
                return super().lseek(fd, offset, whence)

        disk = Forgetful()
        with self.make_store(disk=disk, durability="flush").open_writer("s") as writer:
            writer.append([UserMessage("one")])
            disk.is_failing = True
            with self.assertRaisesRegex(StorageError, "injected EIO; open the session again"):
                writer.append([AssistantMessage("two")])
            disk.is_failing = False
            with self.assertRaisesRegex(StorageError, "its file cannot be examined .injected EIO.: open it again"):
                writer.append([AssistantMessage("three")])
        self.assertEqual([event.text for event in self.store.read_events("s")], ["one"])

    def test_a_log_that_cannot_be_read_is_an_error_that_names_the_session(self) -> None:
        class Unreadable(InstantDisk):
            def open(self, path: str, flags: int, mode: int = 0o600) -> int:
                raise OSError(errno.EIO, "injected EIO")

        store = self.make_store(disk=Unreadable())
        for ask in (store.last_seq, store.read_events):
            with self.assertRaises(StorageError) as caught:
                ask("s")
            self.assertEqual(caught.exception.session_id, "s")

    def test_metadata_that_cannot_be_stored_are_an_error_that_names_the_session(self) -> None:
        (self.path.parent / "meta.json").unlink()
        (self.path.parent / "meta.json").mkdir()
        with self.assertRaises(StorageError) as caught:
            self.store.update_metadata("s", {"a": 1})
        self.assertEqual(caught.exception.session_id, "s")
