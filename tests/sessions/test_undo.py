"""Undo removes turns together with their changes to files, and touches nothing else."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import stat
import sys
import tempfile
import unittest
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

from openagentic_sdk import AgentDefinition, OpenAgenticOptions, run
from openagentic_sdk.cli.stored.files import newest_restore
from openagentic_sdk.errors import FilesChangedError, SessionLockedError, StorageError
from openagentic_sdk.events import (
    FileKept,
    FilesRestored,
    FilesRestoring,
    SessionRewound,
    SubagentStarted,
    SystemInit,
    SystemNotice,
    ToolResult,
    ToolStarted,
    ToolUse,
    UserMessage,
    UserQuestion,
)
from openagentic_sdk.ground.files import digest_bytes
from openagentic_sdk.parts.record.archive import archive_session, restore_session
from openagentic_sdk.parts.record.lifecycle import append_signed, fork_session, rewind_session
from openagentic_sdk.parts.record.undo import file_changes, plan_restore, restore_files
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.sessions.base import SessionStore
from openagentic_sdk.sessions.seal import Seal
from openagentic_sdk.sessions.sqlite import SqliteSessionStore
from openagentic_sdk.sessions.store import FileSessionStore
from openagentic_sdk.testing import ScriptedProvider
from openagentic_sdk.tools.shell.sandbox_plan import probe_sandbox
from tests.size import LARGE, full_size

Call = tuple[str, dict[str, Any]]


def write(path: str, content: str) -> Call:
    return "Write", {"file_path": path, "content": content, "overwrite": True}


def edit(path: str, old: str, new: str) -> Call:
    return "Edit", {"file_path": path, "old": old, "new": new}


class UndoCase(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.home = Path(os.path.realpath(folder.name))
        self.cwd = self.home / "work"
        self.cwd.mkdir()
        self.store = self.open_store()
        self.session: str | None = None

    def open_store(self) -> SessionStore:
        return FileSessionStore(root_dir=self.home / "store")

    def run_turn(self, *calls: Call, **options: Any) -> str:
        """Send one prompt whose model makes these calls, each in a separate step."""
        steps: list[Any] = [{"tool_calls": [{"name": name, "arguments": input}]} for name, input in calls]
        wanted: dict[str, Any] = {
            "provider": ScriptedProvider([*steps, "done"]),
            "model": "m",
            "cwd": str(self.cwd),
            "session_store": self.store,
            "permission_gate": PermissionGate(permission_mode="bypass"),
            "resume": self.session,
        }
        result = asyncio.run(run(prompt="go", options=OpenAgenticOptions(**{**wanted, **options})))
        self.events = result.events
        self.session = result.session_id
        return result.session_id

    def undo(self, turns: int = 1, **more: Any) -> None:
        assert self.session is not None
        self.assertIsInstance(rewind_session(self.store, self.session, turns=turns, files=True, **more), SessionRewound)

    def put(self, name: str, data: bytes = b"before", mode: int = 0o644) -> Path:
        path = self.cwd / name
        path.write_bytes(data)
        path.chmod(mode)
        return path

    def files(self) -> dict[str, tuple[bytes, int]]:
        """All regular files of the folder, with their bytes and permissions."""
        paths = [path for path in self.cwd.rglob("*") if path.is_file() and not path.is_symlink()]
        return {
            str(path.relative_to(self.cwd)): (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) for path in paths
        }


class Undo(UndoCase):
    def test_undoing_a_turn_restores_the_files_before_it(self) -> None:
        self.put("text", b"one\r\n")
        self.put("run.sh", b"#!/bin/sh\n", 0o755)
        self.put("binary", bytes(range(256)), 0o600)
        states = [self.files()]
        self.run_turn(edit("text", "one", "two"), write("new/deep/file", "x"), write("run.sh", "exit 1\n"))
        states.append(self.files())
        self.run_turn(write("binary", "no more"), edit("text", "two", "three"), edit("text", "three", "four"))
        states.append(self.files())
        self.run_turn(write("new/deep/file", "y"), write("text", "five"))
        for state in reversed(states):
            self.undo()
            self.assertEqual(self.files(), state)

    def test_the_outcome_is_found_behind_the_ends_of_what_was_open(self) -> None:
        session = self.run_turn(write("a", "x"))
        start = next(event.seq or 0 for event in self.events if isinstance(event, UserMessage)) - 1
        self.store.append_events(session, [UserQuestion(str(number), "Well?") for number in range(3)])
        self.undo()
        self.assertEqual(newest_restore(self.store, session, start).paths, [str(self.cwd / "a")])

    def test_several_turns_are_undone_at_once(self) -> None:
        self.put("a")
        before = self.files()
        for number in range(3):
            self.run_turn(write("a", f"{number}"), write(f"n{number}", "x"))
        self.undo(3)
        self.assertEqual(self.files(), before)

    def test_changes_rewound_without_files_still_count(self) -> None:
        self.put("a")
        before = self.files()
        session = self.run_turn(write("b", "x"))
        self.run_turn(write("a", "first"))
        rewind_session(self.store, session, turns=1)
        self.run_turn(write("a", "second"))
        self.undo(2)
        self.assertEqual(self.files(), before)

    def test_content_is_on_disk_before_the_change_and_kept_once_in_a_run(self) -> None:
        self.put("a")
        self.run_turn(edit("a", "before", "b"), edit("a", "b", "c"))
        kept = [event for event in self.events if isinstance(event, FileKept)]
        self.assertEqual([(event.path, event.mode) for event in kept], [(str(self.cwd / "a"), 0o644)])
        assert self.session is not None and kept[0].sha256 is not None
        self.assertEqual(self.store.read_blob(self.session, kept[0].sha256), b"before")

    @full_size
    def test_files_that_something_else_changed_are_left_unchanged_unless_forced(self) -> None:
        def swap_for_link(path: Path) -> None:
            (self.home / "elsewhere").write_text("precious")
            path.unlink()
            path.symlink_to(self.home / "elsewhere")

        def swap_for_folder(path: Path) -> None:
            path.unlink()
            path.mkdir()

        cases: list[tuple[str, Callable[[Path], object], bool]] = [
            ("changed", lambda path: path.write_text("mine"), True),
            ("deleted", lambda path: path.unlink(), True),
            ("a link", swap_for_link, False),
            ("a folder", swap_for_folder, False),
            ("a pipe", lambda path: (path.unlink(), os.mkfifo(path)), False),
        ]
        for name, change, may_overwrite in cases:
            with self.subTest(name):
                self.session = None
                for path in self.cwd.glob("*"):
                    path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
                self.put("other")
                path = self.put("file")
                self.run_turn(write("file", "after"), write("other", "after"))
                change(path)
                now = os.lstat(path) if os.path.lexists(path) else None
                with self.assertRaises(FilesChangedError) as caught:
                    self.undo()
                self.assertEqual(list(caught.exception.files), [str(path)])
                assert self.session is not None
                [refused, _] = plan_restore(self.store, self.session, to_seq=0).files
                self.assertEqual((refused.path, refused.action), (str(path), "refuse"))
                self.assertEqual(refused.sha256, sha256(b"before").hexdigest() if may_overwrite else None)
                self.assertEqual((self.cwd / "other").read_text(), "after")
                self.undo(conflicts="skip")
                self.assertEqual((self.cwd / "other").read_text(), "before")
                left = os.lstat(path) if os.path.lexists(path) else None
                self.assertEqual(left and (left.st_ino, left.st_mtime_ns), now and (now.st_ino, now.st_mtime_ns))
                restored = restore_files(self.store, self.session, to_seq=0, conflicts="overwrite")
                self.assertEqual(
                    path.is_file() and not path.is_symlink() and path.read_text() == "before", may_overwrite
                )
                self.assertEqual(str(path) in restored.failed, not may_overwrite)
        self.assertEqual((self.home / "elsewhere").read_text(), "precious")

    def test_a_folder_that_became_a_link_leads_nowhere(self) -> None:
        (self.cwd / "sub").mkdir()
        self.put("sub/file")
        self.run_turn(write("sub/file", "after"))
        (self.cwd / "sub").rename(self.home / "moved")
        (self.cwd / "sub").symlink_to(self.home / "moved")
        with self.assertRaises(FilesChangedError):
            self.undo()
        self.assertEqual((self.home / "moved" / "file").read_text(), "after")

    def test_a_change_of_somebody_else_between_two_turns_is_not_lost(self) -> None:
        path = self.put("file")
        self.run_turn(write("file", "one"))
        path.write_text("a person's work")
        self.run_turn(("Read", {"file_path": "file"}), write("file", "two"))
        with self.assertRaisesRegex(FilesChangedError, "between the turns"):
            self.undo(2)
        self.undo(1)
        self.assertEqual(path.read_text(), "a person's work")

    def test_a_file_outside_of_the_workspace_is_not_put_back(self) -> None:
        outside = self.home / "outside"
        outside.write_text("before")
        self.run_turn(write(str(outside), "after"))
        with self.assertRaisesRegex(FilesChangedError, "outside the workspace"):
            self.undo()
        assert self.session is not None
        restore_files(self.store, self.session, to_seq=0, roots=[str(self.home)])
        self.assertEqual(outside.read_text(), "before")

    def test_files_of_another_installations_session_are_never_put_back(self) -> None:
        path = self.put("file")
        session = self.run_turn(write("file", "after"))
        archive_session(self.store, session, str(self.home / "archive"))
        other = FileSessionStore(root_dir=self.home / "other")
        restore_session(other, str(self.home / "archive"))
        stranger = Seal(self.home / "another-key")
        with self.assertRaisesRegex(FilesChangedError, "another installation"):
            restore_files(other, session, to_seq=0, seal=stranger)
        self.assertEqual(path.read_text(), "after")

    def test_a_fork_can_take_back_what_its_parent_did(self) -> None:
        path = self.put("file")
        session = self.run_turn(write("file", "after"))
        fork = fork_session(self.store, session)
        restore_files(self.store, fork, to_seq=1)
        self.assertEqual(path.read_text(), "before")

    def test_changes_of_a_subagent_are_undone_with_the_turn_that_started_it(self) -> None:
        path = self.put("file")
        child = ScriptedProvider([{"tool_calls": [{"name": "Write", "arguments": write("file", "child")[1]}]}, "ok"])
        helper = AgentDefinition(description="helps", prompt="help", provider=child, model="m")
        self.run_turn(("Task", {"agent": "helper", "prompt": "go"}), agents={"helper": helper})
        self.assertEqual(path.read_text(), "child")
        self.undo()
        self.assertEqual(path.read_text(), "before")

    def test_changes_of_a_background_subagent_are_undone_too(self) -> None:
        path = self.put("file")
        child = ScriptedProvider([{"tool_calls": [{"name": "Write", "arguments": write("file", "child")[1]}]}, "ok"])
        helper = AgentDefinition(description="helps", prompt="help", provider=child, model="m")
        self.run_turn(
            ("Task", {"agent": "helper", "prompt": "go", "background": True}),
            ("TaskOutput", {"task_id": "task_1", "wait_s": 60}),
            agents={"helper": helper},
        )
        self.assertEqual(path.read_text(), "child")
        self.undo()
        self.assertEqual(path.read_text(), "before")

    def test_calls_whose_changes_nobody_saw_are_named(self) -> None:
        session = self.run_turn(("Bash", {"command": "echo x > made"}), write("a", "x"))
        plan = plan_restore(self.store, session, to_seq=0)
        self.assertEqual([use.name for use in plan.uncovered], ["Bash"])
        self.undo()
        self.assertEqual(list(self.files()), ["made"])

    @unittest.skipUnless(
        probe_sandbox().overlay, "this machine has no overlay file system to observe the effects of commands"
    )
    def test_effects_of_a_command_are_undone_if_they_are_tracked(self) -> None:
        self.put("gone", b"x", 0o755)
        self.put("mode", b"y", 0o600)
        (self.cwd / "folder").mkdir()
        self.put("folder/inner", b"z")
        before = self.files()
        command = "rm gone; chmod 755 mode; rm -r folder; echo n > new; mkdir d; echo m > d/m; mkfifo pipe"
        session = self.run_turn(("Bash", {"command": command}), bash_effects="commit")
        self.assertNotEqual(self.files(), before)
        self.assertEqual(list(plan_restore(self.store, session, to_seq=0).uncovered), [])
        self.undo(conflicts="skip")
        self.assertEqual(self.files(), before)

    def test_files_too_big_to_keep_are_named_and_left_unchanged(self) -> None:
        path = self.put("big")
        os.truncate(path, (128 << 20) + 1)
        self.run_turn(write("big", "small"))
        with self.assertRaisesRegex(FilesChangedError, "134,217,72"):
            self.undo()
        self.assertEqual(path.read_text(), "small")

    def test_a_point_inside_a_turn_is_refused_when_its_content_is_not_kept(self) -> None:
        self.put("a")
        session = self.run_turn(write("a", "one"), write("a", "two"))
        first = next(event.seq for event in self.events if event.type == "tool.result")
        assert first is not None
        with self.assertRaisesRegex(FilesChangedError, "start of a turn"):
            restore_files(self.store, session, to_seq=first)

    def test_nothing_is_put_back_while_a_run_continues(self) -> None:
        self.put("a")
        session = self.run_turn(write("a", "one"))
        with self.store.open_writer(session), self.assertRaises(SessionLockedError):
            self.undo()
        self.assertEqual((self.cwd / "a").read_text(), "one")

    def test_the_model_may_continue_with_the_restored_file(self) -> None:
        self.put("a", b"one")
        self.run_turn(("Read", {"file_path": "a"}))
        self.run_turn(edit("a", "one", "two"))
        self.undo()
        self.run_turn(edit("a", "one", "three"))
        self.assertEqual((self.cwd / "a").read_text(), "three")

    def test_a_log_of_strange_shape_is_not_an_obstacle(self) -> None:
        session = self.run_turn(write("a", "x"))
        strange: list[Any] = [{}, {"path": 5}, {"path": "/etc/passwd", "found": None, "sha256": "0" * 64}]
        self.store.append_events(session, [FilesRestoring(0, strange), FilesRestored(0, ["/etc/passwd"])])
        self.assertEqual(list(file_changes(self.store, session).files), [str(self.cwd / "a")])
        self.undo()
        self.assertEqual(self.files(), {})

    def test_a_failed_call_in_a_later_turn_is_not_a_change_by_somebody_else(self) -> None:
        path = self.put("a", b"one")
        session = self.run_turn(write("a", "two"))
        append_signed(self.store, session, [FileKept("call", str(path), digest_bytes(b"two"), 0o644)])
        self.undo()
        self.assertEqual(path.read_bytes(), b"one")

    def test_files_without_a_kept_copy_are_never_touched(self) -> None:
        victim, there = self.home / "outside", self.put("there", b"mine")
        session = self.run_turn(write("a", "evil"))
        evil, points = self.store.put_blob(session, b"evil"), []
        for states in ({str(victim): [evil, 0o600], str(there): None}, {str(victim): None, str(there): ["x", 1]}):
            use = ToolUse(tool_use_id=str(len(states)) + str(states), name="Bash", input={})
            started = ToolStarted(
                tool_use_id=use.tool_use_id, name="Bash", input_sha256="", idempotency_key="", effect="unsafe"
            )
            result = ToolResult(tool_use_id=use.tool_use_id, output="", meta={"changed": states})
            points.append(self.store.append_events(session, [use, started, result])[-1].seq or 0)
        restored = restore_files(self.store, session, to_seq=points[0], conflicts="overwrite")
        self.assertEqual((victim.exists(), there.read_bytes(), restored.paths), (False, b"mine", []))

    def test_a_name_as_long_as_names_may_be_is_written_and_put_back(self) -> None:
        path = self.put("漢" * 85, b"one")
        self.run_turn(write(path.name, "two"))
        self.assertEqual(path.read_bytes(), b"two")
        self.undo()
        self.assertEqual(path.read_bytes(), b"one")

    def test_sessions_that_start_each_other_and_paths_that_cannot_be_end_in_words(self) -> None:
        session = self.run_turn(write("a", "x"))
        strange: list[Any] = [
            SubagentStarted("t", "helper", session, "go"),
            SubagentStarted("t", "helper", "../..", "go"),
            *[FileKept("t", path, "0" * 64, 0o644) for path in ("", "a\0b", "\ud800", "rel", "/" + "x" * 5000)],
            SystemInit(session_id=session, cwd="/\0", sdk_version="0"),
        ]
        self.store.append_events(session, strange)
        with self.assertRaisesRegex(FilesChangedError, "another installation"):
            self.undo()
        self.undo(conflicts="skip")
        self.assertEqual(self.files(), {})

    def test_files_that_could_not_be_kept_change_only_if_a_run_may_continue_without_its_log(self) -> None:
        class Full(FileSessionStore):
            def put_blob(self, session_id: str, data: bytes) -> str:
                raise StorageError("there is no room for blobs", session_id=session_id)

        self.store = Full(root_dir=self.home / "full")
        path = self.put("file")
        self.run_turn(write("file", "stopped"), on_storage_error="stop")
        self.assertEqual(path.read_text(), "before")
        self.session = None
        self.run_turn(write("file", "changed"), on_storage_error="continue")
        self.assertEqual(path.read_text(), "changed")
        with self.assertRaisesRegex(FilesChangedError, "no room for blobs"):
            self.undo()
        self.assertEqual(path.read_text(), "changed")

    @unittest.skipUnless(LARGE, "writes 100 MB")
    def test_a_file_of_a_hundred_megabytes_is_restored(self) -> None:
        data = os.urandom(1 << 20) * 100
        path = self.put("big", data, 0o755)
        self.run_turn(write("big", "small"))
        self.undo()
        self.assertTrue(path.read_bytes() == data)
        self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o755)


CHANGING = (os.write, os.replace, os.rename, os.link, os.unlink, os.fsync, os.fdatasync, os.fchmod, os.ftruncate)


@unittest.skipUnless(hasattr(os, "fork"), "this system has no fork")
class Killed(UndoCase):
    def kill_at(self, number: int) -> bool:
        """Undo in a process that is killed before its n-th call that changes a disk; return whether it was killed."""
        child = os.fork()
        if child == 0:
            seen = 0

            def count(frame: Any, event: str, called: Any) -> None:
                nonlocal seen
                if event == "c_call" and called in CHANGING:
                    seen += 1
                    if seen == number:
                        os.kill(os.getpid(), signal.SIGKILL)

            sys.setprofile(count)
            try:
                self.undo(2)
            finally:
                os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL

    @full_size
    def test_whatever_point_it_is_killed_at_the_next_one_finishes_it(self) -> None:
        self.put("a", b"one", 0o755)
        self.put("b", b"two")
        before = self.files()
        self.run_turn(write("a", "x"), write("new", "y"))
        session = self.run_turn(write("a", "xx"), write("b", "z"))
        store, after = self.home / "store", self.files()
        self.store.close()
        os.rename(store, self.home / "saved")
        number, killed = 0, True
        while killed:
            number += 1 if LARGE else 2
            with self.subTest(number=number):
                shutil.rmtree(store, ignore_errors=True)
                shutil.copytree(self.home / "saved", store)
                self.store = self.open_store()
                for path in self.cwd.glob("*"):
                    path.unlink()
                for name, (data, mode) in after.items():
                    self.put(name, data, mode)
                killed = self.kill_at(number)
                if not any(isinstance(event, SessionRewound) for event in self.store.iter_events(session)):
                    self.undo(2)
                self.assertEqual(self.files(), before)
                self.assertEqual([path.name for path in self.cwd.glob(".*.tmp")], [])
                self.assertEqual(sum(isinstance(e, SessionRewound) for e in self.store.iter_events(session)), 1)
                self.store.close()
        self.assertGreater(number, 12)

    def test_a_half_finished_restoration_is_reported_by_the_next_run(self) -> None:
        self.put("a", b"one")
        session = self.run_turn(write("a", "two"))
        journal = FilesRestoring(0, [{"path": str(self.cwd / "a"), "found": None, "sha256": None, "mode": None}])
        self.store.append_events(session, [journal])
        self.run_turn(write("b", "x"))
        notices = [event.code for event in self.events if isinstance(event, SystemNotice)]
        self.assertIn("files.half_restored", notices)


@unittest.skipUnless(hasattr(os, "fork"), "this system has no fork")
class KilledInSqlite(Killed):
    def open_store(self) -> SessionStore:
        store = SqliteSessionStore(self.home / "store" / "sessions.db")
        self.addCleanup(store.close)
        return store


if __name__ == "__main__":
    unittest.main()
