"""Git under Bash, in a repository whose configuration names a program in every setting that allows one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import unittest
from dataclasses import replace
from typing import Any

from openagentic_sdk.kernel.tool import Services, ToolContext
from openagentic_sdk.tools.shell.file_policy import CommandRules
from openagentic_sdk.tools.shell.sandbox_plan import probe_sandbox
from tests.size import full_size, full_size_but

from .support import WorkspaceTestCase, close_run
from .test_file_policy import Rules
from .test_sandbox import needs, pretend

SETTINGS = (
    "core.fsmonitor",
    "diff.external",
    "diff.mine.command",
    "diff.mine.textconv",
    "filter.mine.clean",
    "filter.mine.smudge",
    "merge.mine.driver",
    "core.pager",
    "core.editor",
    "core.sshCommand",
    "core.askPass",
    "gpg.program",
    "sequence.editor",
    "pager.log",
    "credential.helper",
    "interactive.diffFilter",
)

LINE = "git status; git diff; git add f g; git commit -qm second; git log -p -1; git checkout -q -b other; git mine"


@unittest.skipIf(shutil.which("git") is None, "git is not installed")
class GitOfAProjectThatIsNotTrusted(WorkspaceTestCase):
    rung = "namespaces"

    def setUp(self) -> None:
        super().setUp()
        needs(self.rung)
        self.ran = self.workspace / "ran"
        self.ran.mkdir()
        self.ctx = ToolContext(cwd=str(self.workspace), services=Services({CommandRules: Rules(git_writes=True)}))
        self.addCleanup(close_run, self.ctx)
        self.git("init", "-q", ".")
        self.configure(("user.email", "a@example.com"), ("user.name", "a"))
        (self.workspace / "f").write_text("one\n")
        (self.workspace / ".gitattributes").write_text("f filter=mine diff=mine merge=mine\n")
        self.git("add", "f")
        self.git("commit", "-qm", "first")
        self.configure(*((key, f"touch {self.ran}/{key}; cat") for key in SETTINGS))
        self.configure(("alias.mine", f"!touch {self.ran}/alias"))
        included = self.workspace / ".git" / "more"
        included.write_text(f'[filter "other"]\n\tclean = touch {self.ran}/included; cat\n')
        self.configure(("include.path", "more"))
        for name in ("pre-commit", "post-checkout", "post-commit", "prepare-commit-msg"):
            hook = self.workspace / ".git" / "hooks" / name
            hook.write_text(f"#!/bin/sh\ntouch {self.ran}/{name}\n")
            hook.chmod(0o755)
        (self.workspace / "f").write_text("two\n")

    def bash(self, command: str, *, timeout_s: float = 120.0, **settings: Any) -> dict[str, Any]:
        return super().bash(command, timeout_s=timeout_s, **{"sandbox": "require", **settings})

    def git(self, *words: str) -> None:
        subprocess.run(["git", *words], cwd=self.workspace, check=True, capture_output=True)

    def configure(self, *settings: tuple[str, str]) -> None:
        """Append settings to the repository's configuration directly, since `git config` would take a process for each."""
        with open(self.workspace / ".git" / "config", "a", encoding="utf-8") as file:
            for key, value in settings:
                section, *name, last = key.split(".")
                file.write(f"[{section} {json.dumps(name[0])}]" if name else f"[{section}]")
                file.write(f"\n\t{last} = {json.dumps(value)}\n")

    def test_a_diff_shows_what_changed_although_the_repository_names_a_program_for_it(self) -> None:
        result = self.bash("git diff")
        self.assertEqual(result["exit_code"], 0, result)
        self.assertIn("+two", result["stdout"])
        self.assertEqual(list(self.ran.iterdir()), [])
        self.git("config", "--unset", "diff.external")
        self.assertIn("+two", self.bash("git diff")["stdout"])

    def test_runs_nothing_that_the_repository_names(self) -> None:
        (self.workspace / "g").write_text("x\n")
        with open(self.workspace / ".gitattributes", "a", encoding="utf-8") as file:
            file.write("g filter=other\n")
        result = self.bash(LINE)
        self.assertEqual(sorted(os.listdir(self.ran)), [], result["stderr"])
        self.assertIn("second", result["stdout"])
        notes = " ".join(result["notes"])
        self.assertIn("git's hooks were disabled", notes)
        self.assertIn("git ignored these settings of a repository here: alias.mine, core.", notes)

    @full_size
    def test_runs_nothing_of_another_repository_in_the_workspace_however_it_is_named(self) -> None:
        (self.workspace / "v").mkdir()
        for name in (".git", "f", ".gitattributes"):
            os.rename(self.workspace / name, self.workspace / "v" / name)
        self.git("init", "-q", ".")
        for words in (
            "git -C v log -p",
            "git --git-dir=v/.git --work-tree=v diff",
            "cd v; env -i PATH=$PATH git status",
            "GIT_DIR=v/.git GIT_WORK_TREE=v git status",
            "git -C v mine; git -C v grep --textconv one",
            "sh -c 'cd v && unset GIT_CONFIG_COUNT && git diff && git log -p --ext-diff'",
        ):
            with self.subTest(words=words):
                self.assertIn("git ignored", " ".join(self.bash(words)["notes"]))
                self.assertEqual(os.listdir(self.ran), [])

    def test_follows_harmless_settings_of_such_a_repository(self) -> None:
        self.git("config", "core.quotePath", "false")
        self.git("config", "remote.origin.url", "https://example.com/x.git")
        (self.workspace / "\u00e9").touch()
        self.assertIn("\u00e9", self.bash("git status --short")["stdout"])
        self.assertIn("example.com", self.bash("git remote -v")["stdout"])

    def test_says_nothing_about_hooks_where_nothing_was_changed(self) -> None:
        self.assertNotIn("hooks", " ".join(self.bash("git status; ls")["notes"]))

    @full_size
    def test_runs_them_when_the_project_is_trusted(self) -> None:
        result = self.bash(LINE.replace("git add f g", "git add f"), sandbox="off", trusts_git=True)
        ran = set(os.listdir(self.ran))
        self.assertLessEqual({"pre-commit", "core.fsmonitor", "diff.mine.command", "filter.mine.clean", "alias"}, ran)
        self.assertNotIn("hooks", " ".join(result["notes"]))

    def test_enters_no_bare_repository_that_lies_among_other_files(self) -> None:
        for folder in ("sub", "."):
            bare = self.workspace / "made" / folder
            for name in ("objects", "refs"):
                (bare / name).mkdir(parents=True)
            (bare / "HEAD").write_text("ref: refs/heads/x\n")
            (bare / "config").write_text(
                f"[core]\n\tbare = false\n\tworktree = /tmp\n\tfsmonitor = touch {self.ran}/bare\n"
            )
            self.bash(f"cd made/{folder} && git status; git log")
            self.assertEqual(os.listdir(self.ran), [])

    def test_of_a_worktree_is_read_where_it_stands(self) -> None:
        self.git("-c", "core.hooksPath=/dev/null", "-c", "filter.mine.smudge=", "worktree", "add", "-q", "../tree")
        shutil.rmtree(self.ran)
        self.ran.mkdir()
        (self.workspace.parent / "tree" / "f").write_text("three\n")
        self.bash("cd ../tree; git diff; git commit -qam third", trusts_git=False)
        tree = str(self.workspace.parent / "tree")
        self.bash(f"git -C {tree} diff; git -C {tree} commit -qam third")
        self.assertEqual(os.listdir(self.ran), [])


@full_size_but("test_runs_nothing_that_the_repository_names", "test_of_a_worktree_is_read_where_it_stands")
class GitInBubblewrap(GitOfAProjectThatIsNotTrusted):
    rung = "bwrap"

    def setUp(self) -> None:
        super().setUp()
        pretend(self, replace(probe_sandbox(), namespaces=False, overlay=False))


if __name__ == "__main__":
    unittest.main()
