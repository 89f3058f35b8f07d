"""Content tracked by git may be printed if no rule forbids reading files of the repository."""

from __future__ import annotations

import subprocess
import tempfile
import unittest
from pathlib import Path

from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.permissions.hold.programs import BUILT_IN
from openagentic_sdk.permissions.rules import parse_rules


class Tracked(unittest.TestCase):
    def test_built_in_rules_about_another_home_folder_do_not_concern_a_repository(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            top = Path(folder).resolve() / "top"
            project = top / "project"
            project.mkdir(parents=True)
            subprocess.run(["git", "init", "-q", str(top)], check=True)
            for rule, source, outcome in (
                ("Read(//home/nobody/.openagentic-sdk/mcp/**)", BUILT_IN, "allow"),
                ("Edit(./notes.txt)", "options", "allow"),
                (f"Read(/{top}/.openagentic-sdk/key)", BUILT_IN, "ask"),
                (f"Read(/{project}/.openagentic-sdk/mcp/**)", BUILT_IN, "ask"),
                ("Read(//home/nob?dy/key)", BUILT_IN, "ask"),
                ("Read(//home/nobody/key)", "options", "ask"),
                ("Read(./secret.txt)", "options", "ask"),
            ):
                for command in ("git diff HEAD", "git show HEAD", "git log -p"):
                    with self.subTest(rule=rule, command=command):
                        deny = parse_rules([rule], "deny", source)
                        gate = PermissionGate(permission_mode="default", workspace_roots=(str(project),), deny=deny)
                        context = {"cwd": str(project), "project_dir": str(project)}
                        self.assertEqual(gate.verdict("Bash", {"command": command}, context).outcome, outcome)

    def test_an_index_that_is_cut_anywhere_keeps_what_it_may_contain_from_being_printed(self) -> None:
        project = Path(self.enterContext(tempfile.TemporaryDirectory())).resolve()
        (project / "secret.txt").write_text("x\n", "utf-8")
        for words in (["init", "-q"], ["add", "."]):
            subprocess.run(["git", *words], cwd=project, check=True)
        index = project / ".git/index"
        whole = index.read_bytes()
        gate = PermissionGate(
            permission_mode="default",
            workspace_roots=(str(project),),
            deny=parse_rules(["Read(./secret.txt)"], "deny", "options"),
        )
        for end in (12, 40, 72, 74, 80, len(whole)):
            with self.subTest(end=end):
                index.write_bytes(whole[:end])
                context = {"cwd": str(project), "project_dir": str(project)}
                self.assertEqual(gate.verdict("Bash", {"command": "git diff"}, context).outcome, "ask")
