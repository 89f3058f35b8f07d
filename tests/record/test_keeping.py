"""Holds, retention times and purges that leave a tombstone; and the commands for them."""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial

from openagentic_sdk.cli.main import main
from openagentic_sdk.errors import OptionsError, SessionExistsError, SessionHeldError
from openagentic_sdk.events import RecordErased, RecordKept, RecordPurged, UserMessage
from openagentic_sdk.parts.record.archive import archive_session, restore_session
from openagentic_sdk.parts.record.erase import erase
from openagentic_sdk.parts.record.keep import hold_session, purge_session, purge_sessions, retain_session
from openagentic_sdk.parts.record.lifecycle import TOMBSTONES, delete_session, export_session, fork_session
from openagentic_sdk.parts.record.sign import sign_session
from openagentic_sdk.parts.record.verify_log import salvage
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.sessions.seal import KEY_FILE_NAME
from openagentic_sdk.sessions.sqlite import SqliteSessionStore
from openagentic_sdk.sessions.store import FileSessionStore
from openagentic_sdk.testing.clock import FakeClock

from .support import RecordCase


class Keeping(RecordCase):
    def test_a_held_session_cannot_be_deleted_in_any_way_until_it_is_released(self) -> None:
        stores = [FileSessionStore(self.folder / "files"), SqliteSessionStore(self.folder / "db"), MemorySessionStore()]
        for store in stores:
            self.addCleanup(store.close)
            with self.subTest(type(store).__name__):
                self.filled(store)
                hold_session(store, "s", reason="a case")
                archive = self.folder / f"{type(store).__name__}.zip"
                ways = (
                    partial(store.delete_session, "s"),
                    partial(delete_session, store, "s"),
                    partial(purge_session, store, "s"),
                    partial(archive_session, store, "s", archive, remove=True),
                )
                for way in ways:
                    with self.assertRaises(SessionHeldError):
                        way()
                self.assertTrue(store.read_summary("s").held)
                hold_session(store, "s", release=True)
                delete_session(store, "s")
                self.assertFalse(store.session_exists("s"))

    def test_a_hold_covers_the_subagents_that_begin_after_it(self) -> None:
        store = MemorySessionStore()
        self.filled(store)
        hold_session(store, "s")
        for child, parent in (("child", "s"), ("grandchild", "child")):
            store.create_session(session_id=child, metadata={"parent_session_id": parent, "parent_tool_use_id": "c"})
            store.append_event(child, UserMessage("a secret of the case"))
        ways = (
            partial(delete_session, store, "grandchild"),
            partial(purge_session, store, "grandchild"),
            partial(archive_session, store, "child", self.folder / "child.zip", remove=True),
            partial(archive_session, store, "s", self.folder / "s.zip", remove=True),
            partial(erase, store, "grandchild", [(1, "/text")], spread=False),
            partial(erase, store, "grandchild", texts=["a secret of the case"]),
        )
        for way in ways:
            with self.assertRaises(SessionHeldError):
                way()
            self.assertEqual(len(store.list_sessions()), 3)
        hold_session(store, "s", release=True)
        self.assertTrue(erase(store, "grandchild", texts=["a secret of the case"]).sessions)
        self.assertEqual(delete_session(store, "child"), ["grandchild", "child"])

    def test_of_a_held_family_all_is_copied_or_nothing(self) -> None:
        source, path = MemorySessionStore(), self.folder / "family.zip"
        self.filled(source)
        source.create_session(session_id="child", metadata={"parent_session_id": "s", "parent_tool_use_id": "c"})
        hold_session(source, "s")
        retain_session(source, "s", time.time() + 86_400)
        archive_session(source, "s", path)
        ways = (lambda store: restore_session(store, path), lambda store: export_session(source, store, "s"))
        for way in ways:
            target = MemorySessionStore()
            target.create_session(session_id="child")
            with self.assertRaises(SessionExistsError):
                way(target)
            self.assertEqual(target.list_sessions(), ["child"])
            delete_session(target, "child")
            self.assertEqual(sorted(way(target)), ["child", "s"])
            self.assertTrue(target.read_summary("s").held)

    def test_a_held_session_whose_log_is_damaged_is_not_deleted_either(self) -> None:
        store = FileSessionStore(self.folder / "files")
        self.filled(store)
        hold_session(store, "s")
        store.append_event("s", UserMessage("more"))
        folder = store.session_dir("s")
        (folder / "summary.json").unlink()
        path = folder / "events.jsonl"
        lines = path.read_bytes().split(b"\n")
        lines[-2] = lines[-2].replace(b"more", b"less")
        path.write_bytes(b"\n".join([*lines, b""]))
        with self.assertRaises(SessionHeldError):
            store.delete_session("s")

    def test_a_session_to_be_kept_stays_until_its_date_and_its_fork_is_free(self) -> None:
        store = MemorySessionStore()
        self.filled(store)
        retain_session(store, "s", time.time() + 3600)
        fork_session(store, "s", session_id="fork", seal=self.seal)
        with self.assertRaisesRegex(SessionHeldError, "kept until"):
            delete_session(store, "s")
        delete_session(store, "fork")
        retain_session(store, "s", time.time() - 1)
        delete_session(store, "s")

    def test_a_time_that_no_calendar_shows_is_the_last_one(self) -> None:
        store = MemorySessionStore()
        self.filled(store)
        store.append_event("s", RecordKept(until=1e300))
        with self.assertRaisesRegex(SessionHeldError, "kept until 9999"):
            store.delete_session("s")

    def test_a_purge_deletes_old_sessions_leaves_tombstones_and_lists_forks(self) -> None:
        clock = FakeClock(now=time.time() - 90 * 86_400)
        store = MemorySessionStore(clock=clock)
        self.filled(store)
        store.create_session(session_id="child", metadata={"parent_session_id": "s", "parent_tool_use_id": "c"})
        store.append_event("child", UserMessage("x"))
        signed = sign_session(store, "s", [self.key])
        self.filled(store, "held")
        hold_session(store, "held")
        clock.advance(89 * 86_400)
        fork_session(store, "s", session_id="fork", seal=self.seal)
        self.assertEqual(
            [(row.session_id, bool(row.why)) for row in purge_sessions(store, 30 * 86_400, dry_run=True)],
            [("held", True), ("s", False)],
        )
        done = purge_sessions(store, 30 * 86_400, reason="over", by="cron")
        self.assertEqual([(row.session_id, bool(row.why)) for row in done], [("held", True), ("s", False)])
        self.assertEqual(sorted(store.list_sessions()), ["fork", "held", TOMBSTONES])
        tombstones = store.read_events(TOMBSTONES)
        stones = {stone.purged_session_id: stone for stone in tombstones if isinstance(stone, RecordPurged)}
        self.assertEqual(sorted(stones), ["child", "s"])
        stone = stones["s"]
        self.assertEqual((stone.head, stone.signed["to_seq"], stone.by), (signed.head, signed.to_seq, "cron"))
        told = store.read_events("fork")[-1]
        self.assertEqual(told.source_session_id if isinstance(told, RecordErased) else None, "s")
        self.assertEqual(sorted(row.session_id for row in purge_sessions(store, 0.0)), ["fork", "held"])

    def test_a_session_that_got_the_id_of_a_purged_one_leaves_a_tombstone_too(self) -> None:
        store = MemorySessionStore()
        for count in (1, 2):
            store.create_session(session_id="daily")
            store.append_events("daily", [UserMessage("x")] * count)
            purge_session(store, "daily")
        tombstones = store.read_events(TOMBSTONES)
        self.assertEqual([stone.events for stone in tombstones if isinstance(stone, RecordPurged)], [1, 2])

    def test_the_tombstones_cannot_be_deleted(self) -> None:
        store = MemorySessionStore()
        store.create_session(session_id=TOMBSTONES)
        delete_session(store, TOMBSTONES)  # it has no more than the name
        self.filled(store)
        purge_session(store, "s")
        for way in (delete_session, purge_session):
            with self.assertRaisesRegex(OptionsError, "the tombstones record what was purged"):
                way(store, TOMBSTONES)

    def test_a_purge_leaves_no_page_of_what_was(self) -> None:
        store = SqliteSessionStore(self.folder / "sessions.db")
        self.addCleanup(store.close)
        self.filled(store, secret="a-long-secret-value")
        store.search("secret")
        scrub = store.scrub
        store.scrub = self._stopped  # type: ignore[method-assign]
        with self.assertRaises(KeyboardInterrupt):
            purge_sessions(store, -60)
        store.scrub = scrub  # type: ignore[method-assign]
        self.assertEqual(purge_sessions(store, 0.0), [])  # nothing is left to purge but what the pages contain
        for path in self.folder.glob("sessions.db*"):
            self.assertNotIn(b"a-long-secret-value", path.read_bytes() if path.is_file() else b"")

    def _stopped(self, *session_ids: str) -> Sequence[str]:
        raise KeyboardInterrupt

    def test_a_purge_of_many_scrubs_the_store_once_and_reports_its_progress(self) -> None:
        store = MemorySessionStore()
        for number in range(3):
            store.create_session(session_id=f"s{number}")
            store.create_session(
                session_id=f"c{number}", metadata={"parent_session_id": f"s{number}", "parent_tool_use_id": "c"}
            )
        scrubbed: list[tuple[str, ...]] = []
        store.scrub = lambda *names: scrubbed.append(names) or ()  # type: ignore[method-assign,func-returns-value]
        reports: list[tuple[int, int]] = []
        purge_sessions(store, -60, progress=lambda done, whole: reports.append((done, whole)))
        self.assertEqual([sorted(names) for names in scrubbed], [sorted(f"{k}{n}" for k in "sc" for n in range(3))])
        self.assertEqual(reports, [(1, 3), (2, 3), (3, 3)])

    def test_a_session_with_a_child_that_must_be_kept_is_not_deleted_in_part(self) -> None:
        store = MemorySessionStore()
        store.create_session(session_id="s")
        for name in ("a", "b"):
            store.create_session(session_id=name, metadata={"parent_session_id": "s", "parent_tool_use_id": "c"})
        for name in ("a", "b"):
            hold_session(store, name)
            with self.assertRaises(SessionHeldError):
                delete_session(store, "s")
            self.assertEqual(len(store.list_sessions()), 3)
            hold_session(store, name, release=True)


class Commands(RecordCase):
    def command(self, *argv: str) -> tuple[int, str]:
        return self.top("sessions", *argv)

    def top(self, *argv: str) -> tuple[int, str]:
        out = io.StringIO()
        with redirect_stdout(out), redirect_stderr(out):
            code = main([*argv, "--store", str(self.folder / "files")])
        return code, out.getvalue()

    def setUp(self) -> None:
        super().setUp()
        before = os.environ.get(KEY_FILE_NAME)
        os.environ[KEY_FILE_NAME] = str(self.folder / "installation.key")
        undo = os.environ.pop if before is None else os.environ.__setitem__
        self.addCleanup(undo, KEY_FILE_NAME, *([] if before is None else [before]))
        self.store = FileSessionStore(self.folder / "files")
        self.filled(self.store, secret="4711-secret")

    def test_a_record_is_signed_checked_erased_from_and_still_holds(self) -> None:
        code, receipt = self.command("sign", "s", "--json")
        self.assertEqual((code, json.loads(receipt)["to_seq"]), (0, 10))
        (self.folder / "receipt").write_text(receipt)
        (self.folder / "text").write_text("4711-secret\n")
        code, said = self.command(
            "erase", "s", "--text-file", str(self.folder / "text"), "--reason", "asked for", "--yes"
        )
        self.assertEqual((code, "erased" in said), (0, True))
        self.assertNotIn("4711-secret", (self.store.session_dir("s") / "events.jsonl").read_text())
        code, said = self.command("verify", "--signed", "s", "--receipt", str(self.folder / "receipt"))
        self.assertEqual((code, "holds" in said, "/text was erased" in said), (0, True, True), said)
        self.assertIn("  events 1 to 10: this installation (valid: it was created with its key)\n", said)
        code, said = self.command("verify", "--signed", "s", "--json")
        self.assertEqual((code, json.loads(said)["ok"]), (0, True))
        code, said = self.command("verify", "s")
        self.assertEqual((code, said), (0, "s: intact\n"))
        code, said = self.command("verify", "s", "--json")
        self.assertEqual(json.loads(said), {"session_id": "s", "ok": True, "findings": []})
        page = str(self.folder / "record.html")
        self.assertEqual(self.top("export", "s", "--format", "record", "-o", page)[0], 0)
        code, said = self.top("verify", "--signed", page)
        self.assertEqual((code, "holds" in said), (0, True), said)

    def test_erasing_from_a_salvaged_session_names_the_damaged_log_to_delete(self) -> None:
        log = self.store.session_dir("s") / "events.jsonl"
        log.write_bytes(log.read_bytes()[:-9] + b"\n" + log.read_bytes()[-9:])
        saved = salvage(self.store, "s").session_id
        (self.folder / "text").write_text("4711-secret")
        erasing = ("erase", saved, "--text-file", str(self.folder / "text"), "--yes")
        code, said = self.command(*erasing)
        self.assertEqual((code, "delete it with `openagentic-sdk sessions delete s --store" in said), (1, True), said)
        self.assertEqual(self.command("delete", "s", "--yes")[0], 0)
        self.assertEqual(self.command(*erasing)[0], 0)
        self.assertNotIn("4711-secret", str(self.store.read_events(saved)))

    def test_verify_fails_for_an_unsigned_session_if_signatures_are_required(self) -> None:
        code, said = self.command("verify", "--signed", "s")
        self.assertEqual((code, "is not signed" in said), (1, True))

    def test_a_session_is_held_kept_and_purged_from_the_command_line(self) -> None:
        self.assertEqual(self.command("hold", "s")[0], 0)
        code, said = self.command("delete", "s", "--yes")
        self.assertEqual((code, "is held" in said), (1, True))
        self.assertEqual(self.command("hold", "s", "--release")[0], 0)
        self.assertEqual(self.command("retain", "s", "--for", "10y")[0], 0)
        self.assertEqual(self.command("purge", "--older-than", "0h", "--yes")[0], 1)
        self.assertEqual(self.command("retain", "s", "--release")[0], 0)
        code, said = self.command("purge", "--older-than", "0h", "--json", "--yes")
        self.assertEqual((code, [row["session_id"] for row in json.loads(said)["purged"]]), (0, ["s"]))
        self.assertEqual(self.command("retain", "tombstones", "--until", "soon")[0], 2)
