"""The commands that import and export sessions."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
import unittest
from pathlib import Path

from openagentic_sdk.cli.main import main
from openagentic_sdk.events import UserMessage
from openagentic_sdk.parts.record.importers import import_claude_transcript
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.sessions.store import FileSessionStore
from openagentic_sdk.sessions.stores.locate import open_store

from . import servers

TRANSCRIPTS = Path(__file__).parents[2] / "fixtures" / "stores" / "claude"


def run_command(*arguments: str) -> tuple[int, str]:
    """The exit code of a command, and everything it printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = main(arguments)
    return code, out.getvalue()


class MovingTest(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.here = f"sqlite:{place.name}/here.db?durability=flush"
        self.place = place.name

    def test_a_folder_of_transcripts_is_brought_in_once_and_damaged_lines_are_counted(self) -> None:
        code, printed = run_command("import", "claude", str(TRANSCRIPTS), "--store", self.here)
        self.assertEqual(code, 0, printed)
        self.assertIn("5 of its lines are damaged", printed)
        store = open_store(self.here)
        self.addCleanup(store.close)
        self.assertEqual(len(store.list_sessions()), len(list(TRANSCRIPTS.glob("*.jsonl"))))
        code, printed = run_command("import", "claude", str(TRANSCRIPTS), "--store", self.here)
        self.assertEqual((code, "0 sessions were imported" in printed), (0, True), printed)
        self.assertEqual(
            run_command("import", "claude", str(TRANSCRIPTS / "nothing.jsonl"), "--store", self.here)[0], 2
        )
        done = import_claude_transcript(MemorySessionStore(), TRANSCRIPTS / "hostile.jsonl")
        self.assertEqual((list(done), done.unreadable), (["hostile"], 5))

    def test_one_transcript_that_cannot_be_read_keeps_no_other_out(self) -> None:
        folder = Path(self.place) / "projects"
        folder.mkdir()
        (folder / "a.jsonl").write_bytes(b"no transcript\n")
        (folder / "b.jsonl").write_bytes((TRANSCRIPTS / "simple.jsonl").read_bytes())
        code, printed = run_command("import", "claude", str(folder), "--store", self.here)
        self.assertEqual((code, "1 session was imported, 1 transcript could not be" in printed), (1, True), printed)

    def test_sessions_go_from_any_store_to_any_other_and_an_interrupted_copy_continues(self) -> None:
        store = open_store(self.here)
        self.addCleanup(store.close)
        for name in ("one", "two"):
            store.create_session(session_id=name, metadata={"cwd": "/w"})
            store.append_events(name, [UserMessage(name), UserMessage("more")])
            store.put_blob(name, name.encode())
        store.create_session(session_id="child", metadata={"parent_session_id": "one", "parent_tool_use_id": "c"})
        targets = [f"{self.place}/files", f"sqlite:{self.place}/there.db"]
        if url := os.environ.get("OPENAGENTIC_TEST_POSTGRES_URL"):
            targets.append(servers.own_postgres_schema(self, url))
        if url := os.environ.get("OPENAGENTIC_TEST_REDIS_URL"):
            targets.append(servers.own_redis_prefix(self, url))
        for url in targets:
            with self.subTest(url.partition(":")[0]):
                self.assertEqual(run_command("sessions", "copy", "two", "--store", self.here, "--to", url)[0], 0)
                code, printed = run_command("sessions", "copy", "--all", "--store", self.here, "--to", url)
                self.assertEqual(code, 0, printed)
                self.assertIn("two  exists already", printed)
                self.assertIn("2 sessions copied", printed)
                target = open_store(url)
                self.addCleanup(target.close)
                for name in ("one", "two", "child"):
                    self.assertEqual(target.read_events(name), store.read_events(name))
                    self.assertEqual(target.read_metadata(name), store.read_metadata(name))
                    self.assertEqual(target.list_blobs(name), store.list_blobs(name))
                self.assertEqual(target.list_children("one"), ["child"])
                target.append_event("two", UserMessage("went on"))
                code, printed = run_command("sessions", "copy", "two", "--store", self.here, "--to", url)
                advice = (
                    "has 2 events, and in the target it has 3 events: unless it was continued there, delete it there"
                )
                self.assertEqual((code, advice in printed), (1, True), printed)
        self.assertEqual(run_command("sessions", "copy", "--store", self.here, "--to", url)[0], 2)

    def test_a_session_that_cannot_be_copied_does_not_stop_the_others(self) -> None:
        source, target = Path(self.place, "from"), f"sqlite:{self.place}/to.db"
        store = FileSessionStore(source, durability="flush")
        for name in ("a-damaged", "b-changed", "c-well"):
            store.create_session(session_id=name)
            store.append_events(name, [UserMessage(name)] * 3)
        log = store.session_dir("a-damaged") / "events.jsonl"
        log.write_bytes(log.read_bytes().replace(b"a-damaged", b"a-changed"))
        open_store(target).create_session(session_id="b-changed")
        code, printed = run_command("sessions", "copy", "--all", "--store", str(source), "--to", target)
        self.assertEqual(code, 1, printed)
        for text in ("'a-damaged' is damaged at seq 1", "'b-changed' already exists", "1 session copied, 2 not"):
            self.assertIn(text, printed)
        self.assertEqual(sorted(open_store(target).list_sessions()), ["b-changed", "c-well"])

    def test_a_store_can_be_made_ready_before_it_is_used(self) -> None:
        code, printed = run_command("store", "migrate", self.here)
        self.assertEqual((code, "the store is ready" in printed), (0, True), printed)
        if url := os.environ.get("OPENAGENTIC_TEST_POSTGRES_URL"):
            code, printed = run_command("store", "migrate", servers.own_postgres_schema(self, url))
            self.assertEqual((code, printed.splitlines()), (0, ["the store is ready"]))
