"""Commands that no rule settles are tried on a copy: the questions, the changes kept or discarded, and the log."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
import unittest
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from openagentic_sdk import MemorySessionStore, OpenAgenticOptions, PermissionGate, run_sync
from openagentic_sdk.events import (
    Event,
    FileKept,
    PermissionDecision,
    ToolResult,
    ToolStarted,
    TrialStarted,
    UserQuestion,
)
from openagentic_sdk.parts.record.undo import restore_files
from openagentic_sdk.permissions.policy import PermissionMode
from openagentic_sdk.runs.background import answer_question
from openagentic_sdk.sessions.base import SessionStore
from openagentic_sdk.sessions.store import FileSessionStore
from openagentic_sdk.testing import ScriptedProvider
from openagentic_sdk.tools.shell.sandbox_plan import probe_sandbox
from tests.size import full_size


@unittest.skipUnless(probe_sandbox().overlay, "this machine gives no copy to try a command on")
class TrialTestCase(unittest.TestCase):
    def setUp(self) -> None:
        self.root = Path(os.path.realpath(tempfile.mkdtemp(prefix="trial-test-")))
        self.addCleanup(shutil.rmtree, self.root, ignore_errors=True)
        (self.root / "notes.txt").write_text("one\n", "utf-8")
        self.store: SessionStore = MemorySessionStore()
        self.questions: list[UserQuestion] = []

    def calls(
        self,
        command: str,
        *,
        mode: PermissionMode = "default",
        answer: str | None = "no",
        before_answer: Callable[[], object] = lambda: None,
        sandbox: Any = "auto",
        **rules: Sequence[str],
    ) -> list[Event]:
        """The events of one run whose model requests one command."""

        async def answered(question: UserQuestion) -> str:
            self.questions.append(question)
            before_answer()
            return answer or ""

        gate = PermissionGate(permission_mode=mode, user_answerer=None if answer is None else answered, **rules)  # type: ignore[arg-type]
        call = {"name": "Bash", "arguments": {"command": command}}
        options = OpenAgenticOptions(
            provider=ScriptedProvider([{"tool_calls": [call]}, "Done."]),
            model="m",
            permission_gate=gate,
            session_store=self.store,
            cwd=str(self.root),
            sandbox=sandbox,
        )
        session_id = run_sync(prompt="Do it.", options=options).session_id
        return list(self.store.iter_events(session_id))

    def result(self, events: Sequence[Event]) -> ToolResult:
        return next(event for event in events if isinstance(event, ToolResult))

    def decisions(self, events: Sequence[Event]) -> list[tuple[bool, object]]:
        found = [event for event in events if isinstance(event, PermissionDecision)]
        return [(event.allowed, event.details.get("category")) for event in found]

    def is_tried(self, events: Sequence[Event]) -> bool:
        """Whether the log contains a trial."""
        return any(isinstance(event, TrialStarted) for event in events)

    def starts(self, events: Sequence[Event]) -> list[str]:
        return [event.effect for event in events if isinstance(event, ToolStarted)]


class QuestionsAboutTrials(TrialTestCase):
    @full_size
    def test_a_command_that_changes_nothing_gives_its_result_without_a_question(self) -> None:
        events = self.calls("python3 -c 'print(6 * 7)'")
        self.assertEqual(self.questions, [])
        self.assertEqual(self.result(events).output["stdout"], "42\n")
        self.assertTrue(self.is_tried(events))
        self.assertEqual(self.decisions(events), [(True, "trial")])
        self.assertEqual(self.starts(events), ["read"])

    def test_caches_of_tools_are_discarded_without_a_question_unless_something_else_changed(self) -> None:
        command = (
            "mkdir -p src/__pycache__ .ruff_cache; echo x > src/__pycache__/a.pyc; echo x > .ruff_cache/b; echo ok"
        )
        (self.root / "src").mkdir()
        events = self.calls(command, answer=None)
        self.assertEqual(self.result(events).output["stdout"], "ok\n")
        self.assertEqual(self.starts(events), ["read"])
        self.assertEqual(sorted(path.name for path in self.root.rglob("*")), ["notes.txt", "src"])
        self.calls(f"{command}; echo x > src/pycache")
        (self.root / ".ruff_cache").mkdir()
        self.calls("rmdir .ruff_cache")
        self.assertEqual(len(self.questions), 2)
        self.assertEqual(self.result(self.calls(command, answer=None, deny=["Edit(src/**)"])).outcome, "denied")

    def test_what_it_changed_is_asked_about_once_with_the_list_and_the_differences_and_then_kept(self) -> None:
        events = self.calls("echo two >> notes.txt; echo new > made.txt", answer="yes")
        (question,) = self.questions
        self.assertEqual(question.details["changes"]["created"], [str(self.root / "made.txt")])
        self.assertIn("+two", question.details["diff"])
        self.assertIn("mode acceptEdits", question.details["reason"])
        self.assertEqual((self.root / "notes.txt").read_text("utf-8"), "one\ntwo\n")
        self.assertEqual((self.root / "made.txt").read_text("utf-8"), "new\n")
        self.assertEqual(self.decisions(events), [(True, "answer")])
        self.assertEqual(self.starts(events), ["unsafe"])

    def test_a_file_that_is_only_touched_has_changed(self) -> None:
        os.utime(self.root / "notes.txt", (1, 1))
        self.calls("touch notes.txt", answer="yes")
        self.assertEqual(len(self.questions), 1)
        self.assertGreater(os.stat(self.root / "notes.txt").st_mtime, 1)

    def test_before_the_answer_and_after_a_no_nothing_has_changed(self) -> None:
        seen: list[str] = []
        events = self.calls(
            "echo two >> notes.txt", before_answer=lambda: seen.append((self.root / "notes.txt").read_text("utf-8"))
        )
        self.assertEqual(seen, ["one\n"])
        self.assertEqual((self.root / "notes.txt").read_text("utf-8"), "one\n")
        self.assertEqual(self.result(events).outcome, "denied")
        self.assertEqual(self.starts(events), [])

    def test_a_file_that_changed_while_the_person_thought_is_tried_and_asked_about_again(self) -> None:
        def change() -> None:
            if len(self.questions) == 1:
                (self.root / "notes.txt").write_text("other\n", "utf-8")

        self.calls("sed -i 's/$/ end/' notes.txt", answer="yes", before_answer=change)
        self.assertEqual(len(self.questions), 2)
        self.assertIn("+other end", self.questions[1].details["diff"])
        self.assertEqual((self.root / "notes.txt").read_text("utf-8"), "other end\n")

    @full_size
    def test_changes_by_others_during_a_question_are_not_overwritten_unseen(self) -> None:
        cases = {
            "a file that the copy has and did not change": "chmod 644 notes.txt && touch made.txt",
            "a new file in a folder that is deleted": "rm -r folder",
            "a new file in a folder that is made anew": "rm -r folder && mkdir folder",
        }
        for name, command in cases.items():
            with self.subTest(name):
                (self.root / "folder").mkdir(exist_ok=True)
                (self.root / "folder/old").write_text("old\n", "utf-8")
                os.chmod(self.root / "notes.txt", 0o644)
                self.questions.clear()

                def work() -> None:
                    if len(self.questions) == 1:
                        (self.root / "notes.txt").write_text("mine\n", "utf-8")
                        (self.root / "folder/late").write_text("mine\n", "utf-8")

                self.calls(command, answer="yes", before_answer=work)
                self.assertEqual((self.root / "notes.txt").read_text("utf-8"), "mine\n")
                late = self.root / "folder/late"
                shown = str(late) in str(self.questions[-1].details["changes"])
                self.assertTrue(late.exists() or shown, "a file that no question named was deleted")

    def test_with_nobody_to_ask_what_it_changed_is_dropped_and_refused(self) -> None:
        events = self.calls("touch made.txt", answer=None)
        self.assertEqual(self.result(events).outcome, "denied")
        self.assertFalse((self.root / "made.txt").exists())

    def test_in_accept_edits_what_it_changed_is_kept_without_a_question_and_can_be_undone(self) -> None:
        events = self.calls("sed -i 's/$/\\ntwo/' notes.txt", mode="acceptEdits")
        self.assertEqual(self.questions, [])
        self.assertEqual((self.root / "notes.txt").read_text("utf-8"), "one\ntwo\n")
        kept = [event for event in events if isinstance(event, FileKept)]
        self.assertEqual([event.path for event in kept], [str(self.root / "notes.txt")])
        self.assertEqual(self.starts(events), ["unsafe"])

    def test_in_plan_a_command_is_tried_and_what_it_changed_is_dropped(self) -> None:
        events = self.calls("echo two | tee -a notes.txt", mode="plan")
        self.assertEqual(self.result(events).output["stdout"], "two\n")
        self.assertFalse(self.result(events).output["effects"]["applied"])
        self.assertEqual((self.root / "notes.txt").read_text("utf-8"), "one\n")

    def test_protected_files_ask_before_as_ever(self) -> None:
        for command in ("echo x > .npmrc", "mkdir -p .git/hooks && echo x > .git/hooks/pre-commit"):
            with self.subTest(command=command):
                self.questions.clear()
                events = self.calls(command)
                (question,) = self.questions
                self.assertEqual(question.prompt, "Allow Bash?")
                self.assertEqual(self.result(events).outcome, "denied")
        self.assertEqual(sorted(os.listdir(self.root)), ["notes.txt"])

    def test_a_change_that_a_deny_rule_forbids_is_refused(self) -> None:
        events = self.calls("sh -c 'echo x > made.txt'", mode="acceptEdits", answer="yes", deny=["Edit(made.txt)"])
        self.assertEqual(self.result(events).outcome, "denied")
        self.assertFalse((self.root / "made.txt").exists())

    @full_size
    def test_a_command_that_needs_the_network_is_asked_about_before_with_the_reason(self) -> None:
        events = self.calls("python3 -c 'import socket; socket.create_connection((\"192.0.2.1\", 80), 2)'")
        (question,) = self.questions
        self.assertEqual(question.prompt, "Allow Bash?")
        self.assertIn("needs the network", question.details["reason"])
        self.assertEqual(self.result(events).outcome, "denied")

    def test_links_that_a_command_makes_are_asked_about_before(self) -> None:
        self.calls("ln -s /etc outside", mode="acceptEdits")
        self.assertEqual([question.prompt for question in self.questions], ["Allow Bash?"])


class CommandsWithoutTrial(TrialTestCase):
    def test_ask_rules_modes_and_approvers_decide_as_ever(self) -> None:
        modes: Sequence[PermissionMode] = ("prompt", "dontAsk", "deny")
        for mode in modes:
            with self.subTest(mode=mode):
                events = self.calls("touch made.txt", mode=mode)
                self.assertFalse(self.is_tried(events))
        self.questions.clear()
        events = self.calls("touch made.txt", ask=["Bash(touch:*)"])
        self.assertEqual([question.prompt for question in self.questions], ["Allow Bash?"])
        self.assertFalse(self.is_tried(events))
        self.assertFalse((self.root / "made.txt").exists())

    def test_without_a_sandbox_nothing_is_tried(self) -> None:
        events = self.calls("touch made.txt", sandbox="off")
        self.assertFalse(self.is_tried(events))
        self.assertEqual([question.prompt for question in self.questions], ["Allow Bash?"])

    def test_an_interactive_program_is_asked_about_with_a_sentence(self) -> None:
        self.calls("vim notes.txt")
        (question,) = self.questions
        self.assertIn("waits for a person", question.details["reason"])

    @full_size
    def test_a_program_that_only_pages_or_calculates_is_tried(self) -> None:
        for command in ("less notes.txt", "echo one | more"):
            with self.subTest(command):
                if shutil.which(command.split()[-2]) is None and shutil.which(command.split()[-1]) is None:
                    self.skipTest("the program is not installed")
                events = self.calls(command)
                self.assertEqual(self.result(events).output["stdout"], "one\n")
        self.assertEqual(self.questions, [])

    @full_size
    def test_python_can_compile_in_a_trial_and_leaves_no_code_for_an_allowed_command(self) -> None:
        (self.root / "a.py").write_text("x = 1\n", "utf-8")
        self.calls("python3 -m py_compile a.py")
        self.assertEqual(self.questions, [])
        shown = "echo $PYTHONPYCACHEPREFIX"
        allowed = [self.result(self.calls(shown)).output["stdout"] for _ in range(2)]
        tried = self.result(self.calls(f"python3 -c pass; {shown}")).output["stdout"]
        self.assertEqual(len({*allowed, tried}), 3)

    @full_size
    def test_the_question_quotes_what_the_program_lacked(self) -> None:
        self.calls('python3 -c \'open("/etc/x", "w")\'')
        reason = self.questions[0].details["reason"]
        self.assertIn("it writes where a trial may not write, by its output: ", reason)
        self.assertIn("Read-only file system: '/etc/x'", reason)

    def test_a_pipe_that_another_program_holds_is_asked_about_at_once(self) -> None:
        os.mkfifo(self.root / "pipe")
        events = self.calls("read -r x < pipe")
        self.assertFalse(self.is_tried(events))
        self.assertIn("connects to another program", self.questions[0].details["reason"])

    def test_a_denied_command_is_not_tried(self) -> None:
        events = self.calls("touch made.txt", deny=["Bash(touch:*)"])
        self.assertEqual(self.decisions(events), [(False, "deny_rule")])


class TrialsInTheLog(TrialTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.files = FileSessionStore(root_dir=str(self.root.parent / f"{self.root.name}-store"))
        self.addCleanup(shutil.rmtree, self.files.root_dir, ignore_errors=True)
        self.store = self.files

    def cut_behind(self, events: Sequence[Event], kind: type[Event]) -> str:
        """Truncate the log after the first event of a kind, as after a crash; return the session."""
        (session_id,) = os.listdir(self.files.root_dir / "sessions")
        log = self.files.root_dir / "sessions" / session_id / "events.jsonl"
        last = next(event.seq for event in events if isinstance(event, kind))
        lines = [line for line in log.read_bytes().splitlines(keepends=True) if json.loads(line)["seq"] <= (last or 0)]
        log.write_bytes(b"".join(lines))
        return session_id

    def go_on(self, session_id: str) -> list[Event]:
        options = OpenAgenticOptions(
            provider=ScriptedProvider(["Done."]),
            model="m",
            permission_gate=PermissionGate(),
            session_store=self.files,
            cwd=str(self.root),
            resume=session_id,
        )
        run_sync(prompt=None, options=options)
        return list(self.files.iter_events(session_id))

    @full_size
    def test_rewinding_files_undoes_what_a_command_did(self) -> None:
        command = "sed -i 's/one/two/' notes.txt && python3 -c 'open(\"made\", \"w\")'"
        events = self.calls(command, mode="acceptEdits")
        self.assertEqual((self.root / "notes.txt").read_text("utf-8"), "two\n")
        restore_files(self.files, events[0].session_id, to_seq=1)  # type: ignore[attr-defined]
        self.assertEqual((self.root / "notes.txt").read_text("utf-8"), "one\n")
        self.assertFalse((self.root / "made").exists())

    @full_size
    def test_a_log_that_ends_within_a_trial_continues_with_another_one(self) -> None:
        session_id = self.cut_behind(self.calls("python3 -c 'print(6 * 7)'"), TrialStarted)
        found = self.go_on(session_id)
        self.assertEqual([event.attempt for event in found if isinstance(event, TrialStarted)], [1, 2])
        self.assertEqual(self.result(found).output["stdout"], "42\n")

    @full_size
    def test_an_answer_that_comes_later_counts_for_the_changes_that_were_shown_and_no_others(self) -> None:
        for changes_first in (False, True):
            with self.subTest(changes_first=changes_first):
                shutil.rmtree(self.files.root_dir / "sessions", ignore_errors=True)
                (self.root / "notes.txt").write_text("one\n", "utf-8")
                events = self.calls("sed -i 's/$/ end/' notes.txt")
                session_id = self.cut_behind(events, UserQuestion)
                question = next(event for event in events if isinstance(event, UserQuestion))
                asyncio.run(answer_question(self.files, session_id, question.question_id, "yes"))
                if changes_first:
                    (self.root / "notes.txt").write_text("other\n", "utf-8")
                found = self.go_on(session_id)
                outcome, text = self.result(found).outcome, (self.root / "notes.txt").read_text("utf-8")
                self.assertEqual((outcome, text), ("denied", "other\n") if changes_first else ("ok", "one end\n"))


class HiddenFiles(TrialTestCase):
    @full_size
    def test_home_folders_and_what_read_rules_deny_or_ask_about_are_hidden(self) -> None:
        home = Path(os.path.realpath(os.path.expanduser("~")))
        if not os.access(home, os.W_OK):
            self.skipTest(f"{home}, the home folder, cannot be written")
        planted = home / f".trial-test-{os.getpid()}"
        planted.write_text("SECRET", "utf-8")
        self.addCleanup(planted.unlink)
        (self.root / ".env").write_text("SECRET", "utf-8")
        (self.root / "asked.txt").write_text("SECRET", "utf-8")
        read = "import glob; print([open(p).read() for p in glob.glob('%s')])"
        for path in (str(planted)[:-1] + "*", ".en[v]", "aske[d].txt"):
            with self.subTest(path=path):
                (self.root / "read.py").write_text(read % path, "utf-8")
                events = self.calls("python3 read.py", deny=["Read(.env)"], ask=["Read(asked.txt)"])
                self.assertNotIn("SECRET", str([event for event in events if isinstance(event, ToolResult)]))


if __name__ == "__main__":
    unittest.main()
