"""Files on a disk that ignores case, and keeps removed files that are open: an image of NTFS, mounted by FUSE."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from tests.pythons import ROOT
from tests.size import LARGE
from tests.waiting import until

PROGRAMS = ("mkntfs", "lowntfs-3g", "umount")


@unittest.skipUnless(LARGE, "OPENAGENTIC_TEST_LARGE is not set")
@unittest.skipUnless(all(map(shutil.which, PROGRAMS)) and Path("/dev/fuse").exists(), "ntfs-3g is not installed")
class OtherDisks(unittest.TestCase):
    def test_the_contract_and_the_tests_of_ids_hold(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            image, folder = Path(place, "image"), Path(place, "mounted")
            with image.open("wb") as file:
                file.truncate(128 << 20)
            folder.mkdir()
            subprocess.run(["mkntfs", "-q", "-F", "-Q", image], check=True, capture_output=True)
            server = subprocess.Popen(
                ["lowntfs-3g", "-o", "ignore_case,no_detach", image, folder], stdout=subprocess.DEVNULL
            )
            try:
                until(lambda: os.path.ismount(folder) or server.poll() is not None, "the image is not mounted")
                if server.poll() is not None:
                    self.skipTest("this system mounts no NTFS")
                names = ["tests.stores.test_contract.FileStoreTest", "tests.durability.test_store"]
                environment = {**os.environ, "TMPDIR": str(folder)}
                command = [sys.executable, "-m", "unittest", "-q", *names]
                ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
                self.assertEqual(ended.returncode, 0, ended.stderr[-3000:])
            finally:
                subprocess.run(["umount", "--lazy", folder], capture_output=True)
                server.wait()
