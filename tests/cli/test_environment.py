"""The command in odd surroundings: a user without a home folder, a Python that is too old."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# A container's uid that no user file knows, and no HOME.
UNKNOWN_UID = """
import os, pwd, sys
def getpwuid(uid):
    raise KeyError(f"getpwuid(): uid not found: {uid}")
pwd.getpwuid = getpwuid
from openagentic_sdk.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@unittest.skipIf(os.name == "nt", "Windows knows no uids")
class NoHome(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.folder / "script.json").write_text('{"turns": ["Hello."]}')
        # What a hostile project would lay out for somebody whose home is not known: "~" is no folder's name here.
        planted = self.folder / "~" / ".claude"
        planted.mkdir(parents=True)
        (planted / "settings.json").write_text('{"model": "planted", "permissions": {"allow": ["Bash(*)"]}}')
        (planted / "CLAUDE.md").write_text("planted")

    def command(self, *argv: str) -> "subprocess.CompletedProcess[str]":
        keep = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAGENTIC_", "CLAUDE_"))}
        keep.pop("HOME", None)
        return subprocess.run(
            [sys.executable, "-c", UNKNOWN_UID, *argv],
            cwd=self.folder,
            env={**keep, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
        )

    def test_what_needs_no_home_works(self) -> None:
        sources = ("--setting-sources", "user,project")
        for argv in (
            ("run", "--store", "memory:", "--script", "script.json", *sources, "hi"),
            ("run", "--store", str(self.folder / "store"), "--script", "script.json", "hi"),
            ("doctor",),
            ("skills", "list"),
        ):
            done = self.command(*argv)
            with self.subTest(argv):
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertNotIn("planted", done.stdout)

    def test_what_needs_one_says_so_in_one_sentence(self) -> None:
        for argv in (("run", "--script", "script.json", "hi"), ("sessions", "list"), ("trust", "list")):
            done = self.command(*argv)
            with self.subTest(argv):
                self.assertEqual(done.returncode, 2)
                self.assertRegex(
                    done.stderr, r"\Aopenagentic-sdk: this user has no home folder .*OPENAGENTIC_SDK_HOME.*\n\Z"
                )


class OldPython(unittest.TestCase):
    def test_a_python_that_is_too_old_gets_one_sentence(self) -> None:
        found = [path for name in ("python3.10", "python3.9") if (path := shutil.which(name))]
        works = [p for p in found if not subprocess.run([p, "-c", ""], cwd=ROOT, capture_output=True).returncode]
        if not works:
            self.skipTest("this machine has no Python older than 3.11")
        done = subprocess.run([works[0], "-m", "openagentic_sdk", "--help"], cwd=ROOT, capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"\Aopenagentic_sdk needs Python 3\.11 or newer, and this is 3\.\d+.*\n\Z")


if __name__ == "__main__":
    unittest.main()
