"""A test that hangs or kills its process fails by name, the modules after it run, and failed modules can run again."""

from __future__ import annotations

import os
import tempfile
import unittest
from pathlib import Path

from ..pythons import ROOT, run_python
from ..size import full_size

# One test file for each way in which a worker can fail.
MODULES = {
    "test_waits": """
import asyncio, subprocess, sys, unittest
class WaitsTest(unittest.IsolatedAsyncioTestCase):
    def test_a_first_one(self): pass
    async def test_waits(self):
        self.child = subprocess.Popen([sys.executable, "-c", "print(1, flush=True); input()"], stdin=-1, stdout=-1)
        self.child.stdout.readline()
        await self.never_comes()
    async def never_comes(self):
        await asyncio.get_running_loop().create_future()
""",
    "test_blocks": """
import threading, unittest
class BlocksTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls): acquire_twice(threading.Lock())
    def test_blocks(self): pass
def acquire_twice(lock):
    lock.acquire()
    lock.acquire()
""",
    "test_ends": """
import os, unittest
class EndsTest(unittest.TestCase):
    def test_ends(self): os.kill(os.getpid(), 9)
""",
    "test_passes": """
import unittest
class PassesTest(unittest.TestCase):
    def test_passes(self): pass
""",
}

RUN = """
import sys, unittest
sys.path.insert(0, sys.argv[1])
from tests.parallel import Spread
modules = [unittest.defaultTestLoader.loadTestsFromName(name) for name in sys.argv[3:]]
spread = Spread(modules, 2, limit_s=25, reruns=int(sys.argv[2]))
unittest.TextTestRunner(stream=sys.stdout, verbosity=2).run(spread)
"""


@unittest.skipUnless(hasattr(os, "fork"), "without fork, tests run in one process")
class HangTest(unittest.TestCase):
    @full_size
    def test_tests_that_hang_or_end_their_process_fail_by_name_and_the_others_run(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for name, text in MODULES.items():
                Path(folder, f"{name}.py").write_text(text)
            ended = run_python("-c", RUN, folder, "0", *MODULES, cwd=ROOT, text=True)
        out = ended.stdout
        self.assertIn("test_passes.PassesTest.test_passes) ... ok", out + ended.stderr)
        self.assertIn("FAILED (errors=3)", out)
        self.assertIn("ERROR: test_waits.WaitsTest.test_waits\n", out)
        self.assertIn("in WaitsTest.never_comes", out)  # the coroutine that the task awaits
        self.assertIn("input()", out)  # the command of the child process
        self.assertIn("ERROR: test_blocks\n", out)
        self.assertIn("in acquire_twice", out)  # the stack of the main thread
        self.assertIn("ERROR: test_ends.EndsTest.test_ends\n", out)

    @full_size
    def test_a_module_that_failed_runs_again_alone_and_both_runs_are_reported(self) -> None:
        text = """
import os, unittest
class CountsTest(unittest.TestCase):
    def test_counts(self):
        runs = os.open({name!r}, os.O_CREAT | os.O_APPEND | os.O_RDWR)
        self.addCleanup(os.close, runs)
        os.write(runs, b"x")
        self.assertGreater(os.fstat(runs).st_size, {failures})
"""
        with tempfile.TemporaryDirectory() as folder:
            for name, failures in ("test_fails_once", 1), ("test_fails_twice", 2):
                file = Path(folder, f"{name}.py")
                file.write_text(text.format(name=str(file.with_suffix(".runs")), failures=failures))
            names = ("test_fails_once", "test_fails_twice")
            ended = run_python("-c", RUN, folder, "3", *names, cwd=ROOT, text=True)
        self.assertIn("test_fails_once.CountsTest.test_counts) ... ok", ended.stdout)
        self.assertIn("flaky  test_counts (test_fails_once.CountsTest.test_counts) failed once", ended.stderr)
        self.assertIn("AssertionError: 1 not greater than 1", ended.stderr)
        self.assertIn("FAILED (failures=1)", ended.stdout)
        self.assertNotIn("flaky  test_counts (test_fails_twice", ended.stderr)
