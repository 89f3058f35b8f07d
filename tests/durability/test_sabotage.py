"""Test the tests: each row of `sabotages` breaks a copy of the package, and its tests must detect it.

The small size checks that each row still matches the package and its tests, and applies every ninth, with only the tests
named for it. OPENAGENTIC_TEST_LARGE=1 applies every row and runs all the tests of the room.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.size import LARGE, UNFINISHED, full_size

from .sabotages import SABOTAGES, Sabotage

ROOT = Path(__file__).parent.parent.parent
ROWS = SABOTAGES if LARGE else SABOTAGES[::18]
ROOM = ("tests.durability.test_tail", "tests.durability.test_corruption", "tests.durability.test_disk_errors")


def run_tests(template: Path, sabotage: Sabotage | None, tests: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Run tests against a copy of the package, broken as the row describes."""
    with tempfile.TemporaryDirectory(prefix="sabotage-") as place:
        copy = Path(place) / "copy"
        shutil.copytree(template, copy, copy_function=os.link)
        if sabotage:
            path = copy / "openagentic_sdk" / sabotage.file
            broken = path.read_text().replace(sabotage.old, sabotage.new)
            path.unlink()  # the copy hard-links to the template: replace the file instead of changing the shared one
            path.write_text(broken)
        command = [sys.executable, "-m", "unittest", "--failfast", *tests]
        environment = {
            **os.environ,
            "PYTHONPATH": str(copy),
            "OPENAGENTIC_TEST_LARGE": "0",
            "OPENAGENTIC_TEST_FULL": "1",
        }
        return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=300)


class SabotageTest(unittest.TestCase):
    def test_there_are_enough_breakages_and_each_is_another(self) -> None:
        self.assertGreaterEqual(len(SABOTAGES), 12)
        self.assertEqual(len({row.what for row in SABOTAGES}), len(SABOTAGES))

    def test_every_row_fits_the_package_and_its_tests(self) -> None:
        for row in SABOTAGES:
            with self.subTest(row.what):
                self.assertEqual((ROOT / "openagentic_sdk" / row.file).read_text().count(row.old), 1, row.file)
                for name in row.tests:
                    loader = unittest.TestLoader()
                    self.assertGreater(loader.loadTestsFromName(name).countTestCases(), 0)
                    self.assertEqual(loader.errors, [])

    @full_size
    def test_tests_that_are_green_are_turned_red_by_every_breakage(self) -> None:
        of_rows = tuple(sorted({test for row in ROWS for test in row.tests}))
        jobs = [(None, of_rows), *((row, (*ROOM, *row.tests) if LARGE else row.tests) for row in ROWS)]
        with tempfile.TemporaryDirectory(prefix="sabotage-") as place, ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            for folder in ("openagentic_sdk", "tests", "fixtures"):
                shutil.copytree(ROOT / folder, Path(place) / folder, ignore=UNFINISHED)
            green, *runs = pool.map(lambda job: run_tests(Path(place), *job), jobs)
        self.assertEqual(green.returncode, 0, green.stderr)
        for row, run in zip(ROWS, runs, strict=True):
            with self.subTest(row.what):
                self.assertNotEqual(run.returncode, 0, f"no test detected that {row.what}")
                self.assertIn("FAILED", run.stderr)
                self.assertNotIn("Error: Failed to import", run.stderr)
