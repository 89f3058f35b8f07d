"""The command starts with the modules and programs of Python and its own package, whatever is in the current folder."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from openagentic_sdk.tools.base import ToolContext
from openagentic_sdk.tools.bash import BashTool
from openagentic_sdk.tools.shell.environment import command_environment, find_program, search_path
from tests.size import FULL, LARGE, drawn

ROOT = Path(__file__).resolve().parents[2]
# Standard library modules that the command imports at some point, and two names of the package's own.
PLANTED = (
    "typing",
    "json",
    "argparse",
    "asyncio",
    "re",
    "dataclasses",
    "subprocess",
    "version",
    "openagentic_sdk_plugin",
)
# Modules that `site` does not import: it runs before the command can correct PYTHONPATH.
LATE = ("argparse", "asyncio", "json")


class WorkingDirectoryTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory())).resolve()
        for name in PLANTED:
            (self.folder / f"{name}.py").write_text("import os\nos.write(2, b'planted code ran')\n")

    def start(self, *arguments: str, path: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PYTHONPATH": path, "HOME": str(self.folder / "home")}
        command = [sys.executable, "-m", "openagentic_sdk", *arguments]
        return subprocess.run(command, cwd=cwd or self.folder, env=env, capture_output=True, text=True, timeout=300)

    def test_no_module_of_a_strangers_folder_is_imported(self) -> None:
        script = ROOT / "fixtures/scripts/first_run.json"
        run = ("run", "--script", str(script), "--cwd", str(ROOT / "fixtures/projects/checklist"), "--store", "memory:")
        for arguments in (
            ("--help",),
            *([("--version",), (*run, "Ready?")] if FULL else []),
            *([("doctor",)] if LARGE else []),
        ):
            with self.subTest(arguments=arguments[0]):
                done = self.start(*arguments, path=str(ROOT))
                self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_python_path_that_names_the_folder_is_mended(self) -> None:
        for name in {*PLANTED} - {*LATE}:
            (self.folder / f"{name}.py").unlink()
        cases = (
            (f"{os.pathsep}{ROOT}", "--help"),
            (f".{os.pathsep}{ROOT}", "--help"),
            (f"{self.folder}{os.pathsep}{ROOT}", "doctor"),
        )
        for path, command in drawn(cases, 3):
            with self.subTest(path=path):
                done = self.start("doctor" if LARGE else command, path=path)
                self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_link_to_the_folder_changes_nothing(self) -> None:
        link = self.folder / "home-of-links"
        link.symlink_to(self.folder)
        done = self.start("--version", path=str(ROOT), cwd=link)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_the_bare_checkout_runs_from_its_own_folder(self) -> None:
        done = self.start("--version", path="", cwd=ROOT)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_program_that_uses_the_library_keeps_the_modules_beside_it(self) -> None:
        (self.folder / "mine.py").write_text("GREETING = 'mine'\n")
        for name in PLANTED:
            (self.folder / f"{name}.py").unlink()
        code = "import openagentic_sdk, mine; print(mine.GREETING)"
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, "-c", code], cwd=self.folder, env=env, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (0, "mine\n"), done.stderr)


class Programs(unittest.TestCase):
    def setUp(self) -> None:
        self.workspace = Path(self.enterContext(tempfile.TemporaryDirectory())).resolve()
        (self.workspace / "bin").mkdir()
        for name in ("bash", "only-here"):
            (self.workspace / "bin" / name).write_text("#!/bin/sh\necho planted\n")
            (self.workspace / "bin" / name).chmod(0o755)
        old = os.environ["PATH"]
        self.addCleanup(os.environ.__setitem__, "PATH", old)
        (self.workspace.parent / f"{self.workspace.name}-link").symlink_to(self.workspace / "bin")
        self.link = str(self.workspace.parent / f"{self.workspace.name}-link")
        self.addCleanup(os.unlink, self.link)
        os.environ["PATH"] = os.pathsep.join((str(self.workspace / "bin"), self.link, "bin", "", ".", old))

    def test_no_program_of_the_workspace_is_found(self) -> None:
        self.assertIsNone(find_program("only-here", [str(self.workspace)]))
        self.assertIn(
            find_program("bash", [str(self.workspace)]), ("/usr/bin/bash", "/bin/bash", "/usr/local/bin/bash")
        )
        outside, inside = search_path(os.environ["PATH"], [str(self.workspace)])
        self.assertEqual(inside, [str(self.workspace / "bin"), self.link])
        self.assertTrue(all(folder.startswith("/") for folder in outside))

    def test_a_link_into_the_workspace_is_not_a_way_around(self) -> None:
        with tempfile.TemporaryDirectory() as elsewhere:
            os.symlink(self.workspace / "bin/only-here", os.path.join(elsewhere, "only-here"))
            os.environ["PATH"] = elsewhere
            self.assertIsNone(find_program("only-here", [str(self.workspace)]))

    def test_commands_do_not_find_them_unless_that_is_allowed_and_a_note_explains_it(self) -> None:
        ctx = ToolContext(cwd=str(self.workspace))
        result = BashTool().run_sync({"command": "only-here; echo $?"}, ctx)
        self.assertEqual(result["stdout"], "127\n")
        self.assertIn("is inside the workspace", result["notes"][0])
        for allowed in (
            BashTool(keep_environment=["PATH"]),
            BashTool(environment={"PATH": str(self.workspace / "bin")}),
        ):
            result = allowed.run_sync({"command": "only-here"}, ToolContext(cwd=str(self.workspace)))
            self.assertEqual((result["stdout"], result["notes"]), ("planted\n", []))

    def test_a_workspace_that_is_everything_leaves_the_path_unchanged(self) -> None:
        environment = command_environment({"PATH": "/usr/bin:/bin"}, workspace=["/"])
        self.assertEqual(environment["PATH"], "/usr/bin:/bin")


if __name__ == "__main__":
    unittest.main()
