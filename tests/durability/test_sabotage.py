"""The tests are tested: each row of `sabotages` breaks a copy of the package, and its tests must notice.

The normal run gives each breakage the few tests that are named for it; with OPENAGENTIC_TEST_LARGE=1 the whole room runs.
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

from .sabotages import SABOTAGES, Sabotage
from .scenes import LARGE

ROOT = Path(__file__).parent.parent.parent
ROOM = ("tests.durability.test_tail", "tests.durability.test_corruption", "tests.durability.test_disk_errors")


def run_tests(template: Path, sabotage: Sabotage | None, tests: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Run tests against a copy of the package that is broken as the row says."""
    with tempfile.TemporaryDirectory(prefix="sabotage-") as place:
        copy = Path(place) / "copy"
        shutil.copytree(template, copy, copy_function=os.link)
        if sabotage:
            break_copy(copy / "openagentic_sdk" / sabotage.file, sabotage)
        command = [sys.executable, "-m", "unittest", "--failfast", *tests]
        environment = {**os.environ, "PYTHONPATH": str(copy), "OPENAGENTIC_TEST_LARGE": "0"}
        return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=300)


def break_copy(path: Path, sabotage: Sabotage) -> None:
    text = path.read_text()
    if text.count(sabotage.old) != 1:
        raise AssertionError(f"{sabotage.what}: the text stands {text.count(sabotage.old)} times in {sabotage.file}")
    # The copy shares its files with the template: make a new one instead of changing what all have.
    path.unlink()
    path.write_text(text.replace(sabotage.old, sabotage.new))


class SabotageTest(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory(prefix="sabotage-")
        self.addCleanup(place.cleanup)
        self.template = Path(place.name)
        for folder in ("openagentic_sdk", "tests", "fixtures"):
            shutil.copytree(ROOT / folder, self.template / folder)

    def test_there_are_enough_breakages_and_each_is_another(self) -> None:
        self.assertGreaterEqual(len(SABOTAGES), 12)
        self.assertEqual(len({row.what for row in SABOTAGES}), len(SABOTAGES))

    def test_every_breakage_turns_its_tests_red(self) -> None:
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            runs = list(pool.map(lambda row: run_tests(self.template, row, ROOM if LARGE else row.tests), SABOTAGES))
        for row, run in zip(SABOTAGES, runs, strict=True):
            with self.subTest(row.what):
                self.assertNotEqual(run.returncode, 0, f"nobody noticed that {row.what}")
                self.assertIn("FAILED", run.stderr)
                self.assertNotIn("Error: Failed to import", run.stderr)

    def test_the_same_tests_are_green_without_a_breakage(self) -> None:
        run = run_tests(self.template, None, tuple(sorted({test for row in SABOTAGES for test in row.tests})))
        self.assertEqual(run.returncode, 0, run.stderr)
