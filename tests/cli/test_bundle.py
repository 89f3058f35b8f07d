"""The whole library as one file, on a bare Python, in an empty directory, without a network."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from openagentic_sdk.cli.bundle import write_bundle

ROOT = Path(__file__).resolve().parents[2]
# Runs the bundle as its file does, in a process that cannot open a socket to anywhere.
WITHOUT_NETWORK = """
import runpy, socket, sys
def refuse(*args, **kwargs):
    raise OSError("no network here")
socket.socket.connect = socket.socket.connect_ex = refuse
socket.create_connection = socket.getaddrinfo = refuse
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class BundleTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        cls.bundle = cls.folder / "openagentic.pyz"
        cls.size = write_bundle(cls.bundle)
        cls.empty = cls.folder / "empty"
        cls.empty.mkdir()

    def call(self, *arguments):
        command = [sys.executable, "-I", "-S", "-c", WITHOUT_NETWORK, str(self.bundle), *arguments]
        return subprocess.run(command, cwd=self.empty, capture_output=True, text=True, check=False, timeout=60)

    def test_it_is_smaller_than_a_megabyte(self):
        self.assertLess(self.size, 1_000_000)

    def test_it_runs_a_session_with_real_tools_and_replays_and_shows_it(self):
        store = ["--store", str(self.folder / "store")]
        script = str(ROOT / "fixtures" / "scripts" / "first_run.json")
        project = str(ROOT / "fixtures" / "projects" / "checklist")
        done = self.call("run", "--script", script, "--cwd", project, *store, "Is it ready for a release?")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("Not ready.", done.stdout)
        for arguments in (("replay",), ("sessions", "verify"), ("sessions", "show"), ("export", "--format", "otlp")):
            done = self.call(*arguments, *store)
            self.assertEqual(done.returncode, 0, (arguments, done.stderr))
        page = self.folder / "page.html"
        self.assertEqual(self.call("view", "-o", str(page), *store).returncode, 0)
        self.assertIn('id="list"', page.read_text())

    def test_its_help_teaches(self):
        done = self.call("--help")
        self.assertIn("openagentic-sdk", done.stdout)
        self.assertEqual(list(self.empty.iterdir()), [], "nothing is left in the directory")


if __name__ == "__main__":
    unittest.main()
