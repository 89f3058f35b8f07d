"""Programs named in a repository's git settings, without a sandbox: the gate asks unless git runs none of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import unittest
from pathlib import Path

from openagentic_sdk import PermissionGate
from openagentic_sdk.permissions.hold.repository import is_plain_repository
from openagentic_sdk.tools.shell.git_config import foreign_settings
from openagentic_sdk.tools.shell.git_settings import read_config
from openagentic_sdk.tools.shell.protected import git_places

from .workspace import WorkspaceTestCase

HOSTILE = "[diff]\n\texternal = touch /tmp/x\n"
# Lines that remove or change the variables that override a repository's settings before they start git.
UNDONE = (
    "env -i git status",
    "env -u GIT_CONFIG_COUNT git status",
    "/usr/bin/env -i git status",
    "GIT_CONFIG_COUNT=0 git status",
    "GIT_CONFIG_COUNT=0; git status",
    "unset GIT_CONFIG_COUNT; git status",
    "export GIT_CONFIG_COUNT=0 && git status",
    "declare -x GIT_CONFIG_COUNT=0; git status",
    "read GIT_CONFIG_COUNT < f; git status",
    "printf -v GIT_CONFIG_COUNT 0; git status",
    "let GIT_CONFIG_COUNT=0; git status",
    "getopts a GIT_CONFIG_COUNT; git status",
    "for GIT_CONFIG_COUNT in 0; do git status; done",
    "sh -c 'GIT_CONFIG_COUNT= git status'",
    "eval 'unset GIT_CONFIG_COUNT'; git status",
    ". ./f; git status",
    "source f; git status",
    "xargs git status < f",
    "/usr/bin/git status",
    "command git status",
    "git status `unset GIT_CONFIG_COUNT`",
)


@unittest.skipIf(shutil.which("git") is None, "git is not installed")
class GitWithoutSandbox(WorkspaceTestCase):
    def setUp(self) -> None:
        super().setUp()
        shutil.rmtree(self.root / ".git")
        subprocess.run(["git", "init", "-q", str(self.root)], check=True)

    def outcome(self, command: str, **options: object) -> str:
        gate = PermissionGate(cwd=str(self.root), allow=["Bash"], **options)  # type: ignore[arg-type]
        return gate.verdict("Bash", {"command": command}, {"cwd": str(self.root)}).outcome

    def test_asks_where_a_line_could_undo_what_overrules_a_repository(self) -> None:
        for setting in ("core.fsmonitor", "core.hooksPath"):
            subprocess.run(["git", "-C", str(self.root), "config", setting, "./monitor"], check=True)
            self.assertEqual(self.outcome("git status"), "allow")
            self.assertEqual(self.outcome("git status | head -3; cd . && git log"), "allow")
            for command in UNDONE:
                with self.subTest(setting=setting, command=command):
                    self.assertEqual(self.outcome(command), "ask")
                    self.assertEqual(self.outcome(command, trusted=True), "allow")
            subprocess.run(["git", "-C", str(self.root), "config", "--unset", setting], check=True)

    def test_asks_about_hooks_in_the_same_lines(self) -> None:
        hooks = self.root / "below" / ".git" / "hooks"
        subprocess.run(["git", "init", "-q", str(self.root / "below")], check=True)
        hooks.mkdir(exist_ok=True)
        (hooks / "pre-commit.sample").touch()
        self.assertEqual(self.outcome("env -i git commit -m x"), "allow")
        (hooks / "pre-commit").touch()
        self.assertEqual(self.outcome("git commit -m x"), "allow")
        for command in UNDONE:
            with self.subTest(command=command):
                self.assertEqual(self.outcome(command), "ask")

    def test_a_repository_inside_matters_only_to_lines_that_may_enter_it(self) -> None:
        below = self.root / "below"
        subprocess.run(["git", "init", "-q", str(below)], check=True)
        subprocess.run(["git", "-C", str(below), "config", "filter.x.clean", "./filter"], check=True)
        for command, expected in (
            ("git status", "allow"),
            ("git status | head -3", "allow"),
            ("git -C below status", "ask"),
            ("cd below && git status", "ask"),
            ("sh -c 'git status'", "ask"),
        ):
            with self.subTest(command=command):
                self.assertEqual(self.outcome(command), expected)

    def test_asks_about_a_configuration_that_is_too_large_to_be_read_whole(self) -> None:
        config = self.root / ".git" / "config"
        for padding in ("#" + "x" * 1_000_000, "#\n" * 500_001, " " * 1_000_001):
            config.write_text(f"[core]\n\tbare = false\n{padding}\n{HOSTILE}")
            settings = foreign_settings(str(self.root), [str(self.root)], deep=False)[str(config)]
            self.assertEqual(settings.harmless_text, "")
            self.assertIn("larger than", settings.dropped[0])
            self.assertFalse(is_plain_repository(str(self.root)))
            self.assertEqual(self.outcome("git status"), "ask")


class LinesOfAConfiguration(WorkspaceTestCase):
    def file(self, data: bytes) -> str:
        path = Path(self.root) / "config"
        path.write_bytes(data)
        return str(path)

    def test_end_where_git_ends_them(self) -> None:
        for mark in ("\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028"):
            with self.subTest(mark=mark):
                settings = read_config(self.file(f"[user]\n\tname = a{mark}[diff]{mark}external = x\n".encode()))
                self.assertEqual(settings and settings.dropped, ())
                hostile = self.file(f"[diff]\n\texternal = a{mark}[user]{mark}name = /x/y\n".encode())
                settings = read_config(hostile)
                self.assertEqual(settings and settings.dropped, ("diff.external",))
                found = git_places([self.file(f"[core]\n\thooksPath = /a{mark}b/hooks\n".encode())], "/w")
                self.assertEqual(found[:1], [f"/a{mark}b/hooks"])

    def test_are_empty_without_a_file(self) -> None:
        self.assertIsNone(read_config(str(self.root / "missing")))

    def test_settings_in_special_files_are_not_waited_for(self) -> None:
        os.mkfifo(self.root / "fifo")
        for path in (str(self.root / "fifo"), "/dev/zero", "with\0nul"):
            settings = read_config(path)
            self.assertEqual(settings and (settings.harmless_text, len(settings.dropped)), ("", 1))


if __name__ == "__main__":
    unittest.main()
