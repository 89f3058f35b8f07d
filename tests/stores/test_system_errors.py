"""Whichever system call fails inside a store, the caller gets an error of this package, in one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from tests.pythons import ROOT
from tests.size import IN_MEMORY, LARGE, full_size

# Every 89th place of about 900 in files and 100 in SQLite: a prime, so that each errno hits different places.
EVERY = 3 if LARGE else 89
ERRNOS = ("EMFILE", "ENOSPC", "EROFS", "ESTALE", "EACCES", "ENOLCK", "ENAMETOOLONG", "EIO")


class SystemErrorsTest(unittest.TestCase):
    def check(self, url: str) -> None:
        script = str(Path(ROOT, "tests", "stores", "system_errors.py"))
        for number, name in enumerate(ERRNOS):
            with self.subTest(name), tempfile.TemporaryDirectory(dir=IN_MEMORY) as place:
                first = number * EVERY // len(ERRNOS)
                command = [sys.executable, script, url.format(place=place), f"{place}/s", name, str(first), str(EVERY)]
                environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"}
                ended = subprocess.run(command, env=environment, capture_output=True, text=True)
                self.assertRegex(ended.stdout, r"\Adone [1-9][0-9]+\n\Z", ended.stderr[-2000:])

    @full_size
    def test_in_a_store_of_files_every_failing_call_is_an_error_of_ours(self) -> None:
        self.check("file:{place}/s?durability=fsync")

    @full_size
    def test_in_a_store_of_sqlite_every_failing_call_is_an_error_of_ours(self) -> None:
        self.check("sqlite:{place}/s/x.db?durability=fsync")


if __name__ == "__main__":
    unittest.main()
