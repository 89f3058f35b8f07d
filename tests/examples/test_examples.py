"""Every example runs offline in a bare checkout and prints the contents of its expected file."""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from tests.size import LARGE, full_size

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("[0-9]*.py"))
MAX_LINES = 60


class Examples(unittest.TestCase):
    """Each runs as a newcomer would run it, without a key and with an empty home folder."""

    maxDiff = None

    def setUp(self) -> None:
        before = dict(os.environ)
        self.addCleanup(lambda: (os.environ.clear(), os.environ.update(before)))
        for name in [name for name in os.environ if name.startswith(("OPENAI_", "OPENAGENTIC_"))]:
            del os.environ[name]
        os.environ["HOME"] = self.enterContext(tempfile.TemporaryDirectory())
        self.enterContext(contextlib.chdir(ROOT))

    def expected(self, path: Path) -> str:
        return (path.parent / "expected" / f"{path.stem}.txt").read_text(encoding="utf-8")

    def test_each_example_prints_the_contents_of_its_expected_file(self) -> None:
        for path in EXAMPLES:
            with self.subTest(path.name):
                self.assertEqual(_printed_by(path), self.expected(path))

    @full_size
    def test_each_needs_nothing_that_another_has_loaded(self) -> None:
        for path in EXAMPLES if LARGE else EXAMPLES[:1]:
            with self.subTest(path.name):
                command = [sys.executable, str(path.relative_to(ROOT))]
                done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=600)
                self.assertEqual((done.stdout, done.stderr, done.returncode), (self.expected(path), "", 0))

    def test_each_is_short(self) -> None:
        long = [path.name for path in EXAMPLES if len(path.read_text(encoding="utf-8").splitlines()) >= MAX_LINES]
        self.assertEqual(long, [])

    def test_they_are_numbered_without_a_hole(self) -> None:
        self.assertEqual([int(path.name[:2]) for path in EXAMPLES], list(range(1, len(EXAMPLES) + 1)))


def _printed_by(path: Path) -> str:
    """The output of a script run in this process, including its errors."""
    printed = io.StringIO()
    sys.path.insert(0, str(path.parent))
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            runpy.run_path(str(path.relative_to(ROOT)), run_name="__main__")
    finally:
        sys.path.remove(str(path.parent))
    return printed.getvalue()


if __name__ == "__main__":
    unittest.main()
