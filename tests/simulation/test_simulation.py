"""The simulation: many schedules keep every promise, a seed is always the same schedule, and broken code is found."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.durability.sabotages import SABOTAGES, Sabotage
from tests.pythons import ROOT
from tests.size import IN_MEMORY, LARGE, sized

from .schedules import run_seed

SEEDS = range(sized(40, 100, 10_000))
# What no schedule of these does: checkpoints, questions, rewinds, requests that are checked; and cuts inside one page of a
# log, which `durability.test_power` looks for. Their own tests find them.
ELSEWHERE = (
    *("the cut of a failed write", "a log that was to be put into", "an I/O error is taken", "only the last line"),
    *("a loss of what was on disk", "a checkpoint is believed", "a prompt leaves", "the digest of a request"),
    *("the end of a run leaves", "a result goes to a call", "a forked child"),
)


class SimulationTest(unittest.TestCase):
    def test_every_schedule_keeps_every_promise(self) -> None:
        for seed in SEEDS:
            run_seed(seed)

    def test_a_seed_is_the_same_schedule_each_time(self) -> None:
        for seed in (1, 7, 31, 57):
            first, second = ([line.replace(str(os.getpid()), "") for line in run_seed(seed).lines] for _ in range(2))
            self.assertEqual(first, second)

    @unittest.skipUnless(LARGE, "OPENAGENTIC_TEST_LARGE is not set")
    def test_broken_code_is_found_within_a_thousand_seeds(self) -> None:
        rows = [row for row in SABOTAGES if not row.what.startswith(ELSEWHERE)]
        self.assertGreater(len(rows), 30)
        with tempfile.TemporaryDirectory(dir=IN_MEMORY) as place, ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            for folder in ("openagentic_sdk", "tests", "fixtures"):
                shutil.copytree(Path(ROOT, folder), Path(place) / folder, ignore=shutil.ignore_patterns("__pycache__"))
            found = pool.map(lambda row: is_found(Path(place), row), rows)
            self.assertEqual([row.what for row, is_seen in zip(rows, found, strict=True) if not is_seen], [])


def is_found(template: Path, row: Sabotage) -> bool:
    """Whether a schedule fails on a copy of the package that is broken as the row says."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as place:
        copy = Path(place) / "copy"
        shutil.copytree(template, copy, copy_function=os.link)
        path = copy / "openagentic_sdk" / row.file
        broken = path.read_text().replace(row.old, row.new)
        path.unlink()
        path.write_text(broken)
        command = [sys.executable, "-m", "tests.simulation", "0-999", "stop"]
        environment = {**os.environ, "PYTHONPATH": str(copy)}
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=300)
        return done.returncode == 1 and done.stdout.startswith("seed ")


if __name__ == "__main__":
    unittest.main()
