"""The whole library as one file, on a bare Python, in an empty directory, without a network."""

import ast
import json
import os
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

from openagentic_sdk.cli.commands.bundle import write_bundle
from tests.size import LARGE, full_size

ROOT = Path(__file__).resolve().parents[2]
# Runs the bundle like its file, once for each list of arguments, in a process that cannot open a socket.
WITHOUT_NETWORK = """
import json, runpy, socket, sys
def refuse(*args, **kwargs):
    raise OSError("no network here")
socket.socket.connect = socket.socket.connect_ex = refuse
socket.create_connection = socket.getaddrinfo = refuse
bundle, commands = sys.argv[1], json.loads(sys.argv[2])
for arguments in commands:
    sys.argv = [bundle, *arguments]
    try:
        runpy.run_path(bundle, run_name="__main__")
    except SystemExit as end:
        if end.code:
            sys.exit(f"{arguments}: {end.code}")
"""


def places(source):
    """The instructions and positions of the program, without its docstrings."""
    return [
        (type(node).__name__, node.lineno)
        for node in ast.walk(ast.parse(source))
        if hasattr(node, "lineno") and not isinstance(node, ast.Expr | ast.Constant)
    ]


@full_size
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

    def call(self, *commands):
        command = [sys.executable, "-I", "-S", "-c", WITHOUT_NETWORK, str(self.bundle), json.dumps(commands)]
        return subprocess.run(command, cwd=self.empty, capture_output=True, text=True, check=False, timeout=600)

    def test_it_is_smaller_than_a_megabyte_and_three_quarters(self):
        self.assertLess(self.size, 1_750_000)

    def test_the_same_source_makes_the_same_bytes_under_another_umask_and_in_another_time_zone(self):
        again = self.folder / "again.pyz"
        source = "import os, sys; os.umask(0o077); from openagentic_sdk.cli.main import main; sys.exit(main())"
        command = [sys.executable, "-c", source, "bundle", "-o", str(again)]
        environ = {**os.environ, "TZ": "Asia/Kathmandu"}
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(again.read_bytes(), self.bundle.read_bytes())

    def test_a_command_that_fails_has_its_exit_code(self):
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(self.bundle), "verify", "missing", "--store", str(self.folder)],
            cwd=self.empty,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        self.assertEqual((done.returncode, done.stdout), (1, ""))

    def test_its_help_teaches_and_it_runs_a_session_with_real_tools_and_replays_and_shows_it(self):
        store = ["--store", str(self.folder / "store")]
        script = str(ROOT / "fixtures" / "scripts" / "first_run.json")
        project = str(ROOT / "fixtures" / "projects" / "checklist")
        page = self.folder / "page.html"
        run = ["run", "--script", script, "--cwd", project, "Is it ready for a release?"]
        later = (["replay"], ["sessions", "verify"], ["sessions", "show"], ["export", "--format", "otlp"])
        done = self.call(["--help"], *([*arguments, *store] for arguments in (run, *later, ["view", "-o", str(page)])))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("openagentic-sdk", done.stdout)
        self.assertEqual(list(self.empty.iterdir()), [], "the directory is empty again")
        self.assertIn("Not ready.", done.stdout)
        self.assertIn('id="list"', page.read_text())

    def test_it_holds_every_file_of_data(self):
        package = ROOT / "openagentic_sdk"
        data = {
            str(path.relative_to(ROOT)) for path in package.rglob("*.*") if path.suffix not in (".py", ".pyc", ".pyi")
        }
        with zipfile.ZipFile(self.bundle) as bundle:
            self.assertEqual(data - set(bundle.namelist()), set())

    def test_its_data_is_read_from_inside_of_it(self):
        program = (
            "from openagentic_sdk.permissions.subcommands import subcommands; print(bool(subcommands('git'))); "
            "from openagentic_sdk.parts.record.folds.prices import price_date; print(price_date()[:2])"
        )
        command = [sys.executable, "-c", f"import sys; sys.path[:0] = [{str(self.bundle)!r}]; {program}"]
        done = subprocess.run(command, cwd=self.empty, capture_output=True, text=True, check=False, timeout=600)
        self.assertEqual((done.stdout, done.stderr), ("True\n20\n", ""))

    def test_line_numbers_of_the_bundled_program_are_those_of_its_source(self):
        with zipfile.ZipFile(self.bundle) as bundle:
            names = [name for name in bundle.namelist() if name.endswith(".py") and name != "__main__.py"]
            for name in names if LARGE else names[::20]:
                with self.subTest(name):
                    source = (ROOT / name).read_text(encoding="utf-8")
                    self.assertEqual(places(bundle.read(name).decode()), places(source))


if __name__ == "__main__":
    unittest.main()
