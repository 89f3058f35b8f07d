"""Each known attack on rules and sandbox, in every mode and on every rung: the table in docs/permissions.md.

A cell is the outcome of a line under a rule that allows all of `Bash` and others that deny: `asked` (no mode runs it
without a question), `held` (it runs without achieving its aim), `open in bypass` and `open` (it achieves its aim).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import unittest
from dataclasses import replace
from pathlib import Path

from openagentic_sdk.kernel.gate import CallContext
from openagentic_sdk.kernel.tool import Services, ToolContext
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.permissions.policy import MODES
from openagentic_sdk.tools.bash import BashTool
from openagentic_sdk.tools.shell.file_policy import CommandRules
from openagentic_sdk.tools.shell.sandbox_plan import SandboxReport, probe_sandbox
from tests.size import full_size
from tests.tools_run.support import WorkspaceTestCase, close_run
from tests.tools_run.test_sandbox import needs, pretend

from .test_disk_fuzz import Rules

SECRET, MARK = "swordfish-7291", "ran-the-denied"
DENY = ("Read(.env)", "Read(./secrets/**)", "Edit(locked)", "Bash(denied:*)")
PAGE = Path(__file__).parents[2] / "docs" / "permissions.md"
RUNGS = ("overlay", "bwrap", "landlock", "none")


def rows() -> dict[str, list[str]]:
    """The lines of the table with their cells."""
    found: dict[str, list[str]] = {}
    for line in PAGE.read_text("utf-8").partition("<!-- findings -->")[2].partition("\n\n")[2].splitlines():
        if not line.startswith("|"):
            break
        first, *cells = (cell.strip() for cell in line.strip("| ").split(" | "))
        if first.startswith("`"):
            found[first.strip("`").replace("\\|", "|")] = cells
    return found


@unittest.skipIf(shutil.which("git") is None, "git is not installed")
class Findings(WorkspaceTestCase):
    def setUp(self) -> None:
        super().setUp()
        needs("overlay")
        needs("bwrap")
        needs("landlock")
        self.best = probe_sandbox()
        self.programs = self.workspace.parent / "bin"
        self.programs.mkdir()
        (self.programs / "denied").write_text(f"#!/bin/sh\necho {MARK}\n")
        (self.programs / "denied").chmod(0o755)
        path = os.environ["PATH"]
        self.addCleanup(os.environ.__setitem__, "PATH", path)
        os.environ["PATH"] = f"{self.programs}:{path}"
        self.make_project()

    def make_project(self) -> None:
        """Create a project with denied and protected files, and a hostile repository inside it."""
        texts = dict.fromkeys((".env", "secrets/key"), SECRET) | dict.fromkeys(("a", "v/f"), "x\n")
        texts |= dict.fromkeys((".npmrc", "locked", ".git/hooks/x", "hooks-of-git/x", "shared.gitconfig"), "")
        texts |= {"v/.gitattributes": "f diff=d\n"}
        for name, text in texts.items():
            place = self.workspace / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        for top in (".", "v"):
            self.git(top, "init", "-q", "--template=")
            self.git(top, "add", "-A")
            self.git(top, "-c", "user.name=n", "-c", "user.email=e@x", "commit", "-qm", "one")
        self.git(".", "config", "core.hooksPath", "hooks-of-git")
        self.git(".", "config", "include.path", "../shared.gitconfig")
        self.git("v", "config", "diff.d.textconv", f"echo {MARK};:")
        self.workspace.rename(self.workspace.parent / "project")

    def fill(self) -> None:
        shutil.rmtree(self.workspace, ignore_errors=True)
        shutil.copytree(self.workspace.parent / "project", self.workspace)
        os.link(self.workspace / ".env", self.workspace / "other")
        (self.workspace.parent / "outside").write_text("x")
        (self.workspace.parent / "outside").chmod(0o600)

    def git(self, top: str, *words: str) -> None:
        subprocess.run(["git", *words], cwd=self.workspace / top, check=True, capture_output=True)

    def state(self, gate: PermissionGate, context: CallContext) -> dict[str, tuple[int, bytes]]:
        """Everything that must not change: protected files, denied files, and files outside the project."""
        refusal = gate.file_policy("true", context, asked=False).refusal
        paths = [os.path.join(top, name) for top, _, names in os.walk(self.workspace) for name in names]
        kept = [*filter(refusal, paths), str(self.workspace.parent / "outside")]
        return {path: (os.lstat(path).st_mode, Path(path).read_bytes()) for path in kept if not os.path.islink(path)}

    def cell(self, line: str, rung: str) -> str:
        self.fill()
        reports = {
            "overlay": self.best,
            "bwrap": replace(self.best, namespaces=False, overlay=False),
            "landlock": replace(self.best, namespaces=False, overlay=False, bwrap=False),
            "none": SandboxReport(False, False, False, {}),
        }
        pretend(self, reports[rung])
        confined = {"overlay": "namespaces", "bwrap": "bwrap"}.get(rung)
        root, context = str(self.workspace), CallContext(cwd=str(self.workspace), confined=confined)
        gates = {mode: PermissionGate(cwd=root, permission_mode=mode, allow=["Bash"], deny=DENY) for mode in MODES}
        running = {
            mode for mode, gate in gates.items() if gate.verdict("Bash", {"command": line}, context).outcome == "allow"
        }
        if not running:
            return "asked"
        gate = gates[min(running)]
        ctx = ToolContext(cwd=root, services=Services({CommandRules: Rules(gate, context)}))
        before = self.state(gate, context)
        result = BashTool(sandbox="auto", timeout_s=60).run_sync({"command": line}, ctx)
        close_run(ctx)
        output = result["stdout"] + result["stderr"]
        if self.state(gate, context) == before and SECRET not in output and MARK not in output:
            return "held"
        return "open in bypass" if running <= {"bypass", "bypassPermissions"} else "open"

    @full_size
    def test_the_table_shows_the_decision_about_each_line_on_each_rung(self) -> None:
        table = rows()
        self.assertGreater(len(table), 15)
        for line, cells in table.items():
            for rung, expected in zip(RUNGS, cells, strict=True):
                with self.subTest(line=line, rung=rung):
                    self.assertEqual(self.cell(line, rung), expected)


if __name__ == "__main__":
    unittest.main()
