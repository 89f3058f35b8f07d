"""Every example runs offline in a bare checkout and prints what its expected file says."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("[0-9]*.py"))
MAX_LINES = 60


def run_example(path: Path) -> subprocess.CompletedProcess[str]:
    """Run an example as a newcomer does, without a key and with an empty home folder."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "OPENAGENTIC_"))}
    command = [sys.executable, str(path.relative_to(ROOT))]
    with tempfile.TemporaryDirectory() as home:
        environ.update(HOME=home, PYTHONIOENCODING="utf-8")
        return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=600)


class Examples(unittest.TestCase):
    maxDiff = None

    def test_each_prints_what_its_expected_file_says(self) -> None:
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            runs = list(pool.map(run_example, EXAMPLES))
        for path, done in zip(EXAMPLES, runs, strict=True):
            with self.subTest(path.name):
                expected = (path.parent / "expected" / f"{path.stem}.txt").read_text(encoding="utf-8")
                self.assertEqual((done.stdout, done.stderr, done.returncode), (expected, "", 0))

    def test_each_is_short(self) -> None:
        long = [path.name for path in EXAMPLES if len(path.read_text(encoding="utf-8").splitlines()) >= MAX_LINES]
        self.assertEqual(long, [])

    def test_they_are_numbered_without_a_hole(self) -> None:
        self.assertEqual([int(path.name[:2]) for path in EXAMPLES], list(range(1, len(EXAMPLES) + 1)))


if __name__ == "__main__":
    unittest.main()
