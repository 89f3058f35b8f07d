"""Concurrent commands in one workspace: none loses data to another, or loses its folders when another ends."""

from __future__ import annotations

import os
import threading
from typing import Any

from openagentic_sdk.kernel.tool import Services, ToolContext
from openagentic_sdk.tools.bash import BashTool
from openagentic_sdk.tools.shell.background import BashOutputTool, KillBashTool
from openagentic_sdk.tools.shell.file_policy import CommandRules, run_temp
from tests.waiting import until

from .support import WorkspaceTestCase, close_run
from .test_file_policy import Rules
from .test_sandbox import needs

# Appended to a command: signal that it has done its work, and end when told to.
HOLD = "; touch $TMPDIR/ready; until [ -e $TMPDIR/go ]; do sleep 0.01; done"


class OnCopies(WorkspaceTestCase):
    def setUp(self) -> None:
        super().setUp()
        needs("overlay")
        for name in ("kept", "changed", "gone", "folder/old"):
            path = self.workspace / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(name)
        self.workspace.joinpath("folder/old").chmod(0o644)

    def run_beside(self, first: str, second: str) -> dict[str, Any]:
        """Run `first`; while it is running, start and finish `second`; return the result of `first`."""
        other = ToolContext(cwd=str(self.workspace))
        self.addCleanup(close_run, other)
        ready, go = (f"{run_temp(self.ctx).folder}/{name}" for name in ("ready", "go"))
        found: list[dict[str, Any]] = []
        thread = threading.Thread(target=lambda: found.append(self.bash(first + HOLD, sandbox="auto", timeout_s=120)))
        thread.start()
        try:
            until(lambda: os.path.exists(ready), "the first command has done its work")
            BashTool(sandbox="auto").run_sync({"command": second}, other)
        finally:
            open(go, "w").close()
            thread.join()
        return found[0]

    def test_files_written_by_another_command_meanwhile_are_kept_and_named_in_a_note(self) -> None:
        result = self.run_beside(
            "echo first >> changed; echo first > new; rm gone; echo first > mine", "echo second | tee changed new gone"
        )
        for name in ("changed", "new", "gone"):
            self.assertEqual((self.workspace / name).read_text(), "second\n")
            self.assertIn(
                f"{self.workspace / name} were discarded: something else changed it", " ".join(result["notes"])
            )
        self.assertEqual((self.workspace / "mine").read_text(), "first\n")

    def test_a_deleted_folder_keeps_what_another_command_put_into_it(self) -> None:
        result = self.run_beside("rm -r folder", "echo second > folder/new")
        self.assertEqual([path.name for path in (self.workspace / "folder").iterdir()], ["new"])
        self.assertIn("folder/new were discarded", " ".join(result["notes"]))

    def test_the_same_content_from_both_is_not_a_conflict(self) -> None:
        result = self.run_beside("echo same > changed; rm gone", "echo same > changed; rm gone; echo x > kept")
        self.assertNotIn("dropped", " ".join(result["notes"]))
        self.assertEqual((self.workspace / "kept").read_text(), "x\n")


class InTheBackground(WorkspaceTestCase):
    def setUp(self) -> None:
        super().setUp()
        needs("namespaces")

    def start(self, command: str) -> str:
        tool = BashTool(sandbox="auto")
        return str(tool.run_sync({"command": command, "run_in_background": True}, self.ctx)["shell_id"])

    def made(self, name: str) -> None:
        until(lambda: (self.workspace / name).exists(), f"{name} exists")

    def end(self, shell_id: str) -> dict[str, Any]:
        result: dict[str, Any] = KillBashTool().run_sync({"shell_id": shell_id}, self.ctx)
        return result

    def test_a_second_shell_cannot_make_again_what_the_end_of_the_first_set_aside(self) -> None:
        first = self.start("mkdir -p sub/.git; echo x > sub/.git/config; touch one; sleep 1000")
        self.made("one")
        second = self.start(
            "touch two; until [ -e go ]; do sleep 0.01; done; mkdir -p sub/.git; echo y > sub/.git/config; touch three; "
            "sleep 1000"
        )
        self.made("two")
        self.end(first)
        (self.workspace / "go").touch()
        self.made("three")
        self.end(second)
        names = sorted(path.name for path in (self.workspace / "sub").iterdir())
        self.assertEqual(names, [".git.from-sandbox", ".git.from-sandbox-2"])

    def test_files_older_than_both_commands_are_kept(self) -> None:
        (self.workspace / "sub/.git").mkdir(parents=True)
        shells = [self.start(f"touch {name}; sleep 1000") for name in ("one", "two")]
        for name in ("one", "two"):
            self.made(name)
        for shell in shells:
            self.end(shell)
        self.assertTrue((self.workspace / "sub/.git").exists())

    def test_a_shell_that_has_ended_by_itself_leaves_nothing_and_its_output_names_it(self) -> None:
        shell = self.start("mkdir -p sub/.git; echo x > sub/.npmrc")
        until(
            lambda: BashOutputTool().run_sync({"shell_id": shell}, self.ctx)["status"] == "exited",
            "the shell has ended",
        )
        self.assertEqual(
            sorted(path.name for path in (self.workspace / "sub").iterdir()),
            [".git.from-sandbox", ".npmrc.from-sandbox"],
        )
        notes = " ".join(BashOutputTool().run_sync({"shell_id": shell}, self.ctx)["notes"])
        self.assertIn("is now", notes)

    def test_files_that_a_command_created_inside_a_repository_are_moved_out_of_it(self) -> None:
        (self.workspace / ".git/hooks").mkdir(parents=True)
        rules = Services({CommandRules: Rules(git_writes=True)})
        self.ctx = ToolContext(cwd=str(self.workspace), services=rules)
        self.addCleanup(close_run, self.ctx)
        made = "mkdir -p .git/x/.git/hooks .git/hooks; echo 1 > .git/x/.git/HEAD; touch one; sleep 1000"
        shell = self.start(made)
        self.made("one")
        self.end(shell)
        aside = self.workspace / "x.from-sandbox"
        self.assertEqual(sorted(os.listdir(self.workspace / ".git")), ["hooks"])
        self.assertEqual(os.listdir(aside), [".git.from-sandbox"])
        self.assertEqual(sorted(os.listdir(aside / ".git.from-sandbox")), ["HEAD.from-sandbox", "hooks.from-sandbox"])
