"""Git under Bash, with a repository whose configuration names a program wherever one can be named."""

from __future__ import annotations

import os
import shutil
import subprocess
import unittest

from .support import WorkspaceTestCase

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


@unittest.skipIf(shutil.which("git") is None, "there is no git on this machine")
class GitOfAProjectThatIsNotTrusted(WorkspaceTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.ran = self.workspace.parent / "ran"
        self.ran.mkdir()
        self.git("init", "-q", ".")
        for key, value in (("user.email", "a@example.com"), ("user.name", "a")):
            self.git("config", key, value)
        (self.workspace / "f").write_text("one\n")
        (self.workspace / ".gitattributes").write_text("f filter=mine diff=mine merge=mine\n")
        self.git("add", "f")
        self.git("commit", "-qm", "first")
        for key in SETTINGS:
            self.git("config", key, f"touch {self.ran}/{key}; cat")
        self.git("config", "alias.mine", f"!touch {self.ran}/alias")
        included = self.workspace / ".git" / "more"
        included.write_text(f'[filter "other"]\n\tclean = touch {self.ran}/included; cat\n')
        self.git("config", "include.path", "more")
        for name in ("pre-commit", "post-checkout", "post-commit", "prepare-commit-msg"):
            hook = self.workspace / ".git" / "hooks" / name
            hook.write_text(f"#!/bin/sh\ntouch {self.ran}/{name}\n")
            hook.chmod(0o755)
        (self.workspace / "f").write_text("two\n")

    def git(self, *words: str) -> None:
        subprocess.run(["git", *words], cwd=self.workspace, check=True, capture_output=True)

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
        self.assertIn("git's hooks were off", " ".join(result["notes"]))

    def test_says_nothing_about_hooks_where_nothing_was_changed(self) -> None:
        self.assertNotIn("hooks", " ".join(self.bash("git status; ls")["notes"]))

    def test_runs_them_when_the_project_is_trusted(self) -> None:
        result = self.bash(LINE.replace("git add f g", "git add f"), trusts_git=True)
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


if __name__ == "__main__":
    unittest.main()
