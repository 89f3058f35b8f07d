"""The one way to create a file either completely or not at all."""

from __future__ import annotations

import re
import tempfile
import unittest
from pathlib import Path

from openagentic_sdk.ground.disk import SystemDisk, whole_file, write_durably
from tests.guards.source import PACKAGE, ROOT

# `replace_file` keeps the folder open: names in a folder that a model can change are never looked up twice.
REPLACES = {"ground/disk.py", "ground/files.py", "testing/simulated_disk.py"}
# The kernel creates its key and needs nothing else from `disk`.
LINKS = {"sessions/seal.py"}
# A complete file of a command's copy is moved into place; nothing is written.
MOVES = {"tools/shell/overlay.py"}
# A file that is set aside under another name replaces nothing.
SETS_ASIDE = {"sessions/log/summary_beside.py", "tools/shell/settings_found.py"}


class WholeFileTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name, "kept")

    def test_a_block_that_fails_leaves_the_old_file_and_nothing_else(self) -> None:
        self.path.write_text("old")
        with self.assertRaises(RuntimeError), whole_file(SystemDisk(), self.path) as unfinished:
            unfinished.write_text("ne")
            raise RuntimeError
        self.assertEqual((self.path.read_text(), [*self.path.parent.iterdir()]), ("old", [self.path]))

    def test_a_new_file_replaces_nothing(self) -> None:
        write_durably(SystemDisk(), self.path, b"first", is_new=True)
        with self.assertRaisesRegex(FileExistsError, "choose another file"):
            write_durably(SystemDisk(), self.path, b"second", is_new=True)
        self.assertEqual((self.path.read_bytes(), [*self.path.parent.iterdir()]), (b"first", [self.path]))

    def test_a_temporary_file_left_by_a_crash_does_not_prevent_the_next_write(self) -> None:
        mine = self.path.with_name(".kept.tmp")
        mine.write_text("half")
        with whole_file(SystemDisk(), self.path, unfinished=mine) as unfinished:
            self.assertFalse(unfinished.exists())
            unfinished.write_text("whole")
        self.assertEqual((self.path.read_text(), mine.exists()), ("whole", False))

    def test_no_other_module_replaces_a_file_in_a_way_of_its_own(self) -> None:
        package = ROOT / PACKAGE
        found = {
            str(path.relative_to(package))
            for path in package.rglob("*.py")
            if re.search(r"\b(os|disk)\.(replace|link)\(", path.read_text(encoding="utf-8"))
        }
        self.assertEqual(found, REPLACES | LINKS | MOVES | SETS_ASIDE)


if __name__ == "__main__":
    unittest.main()
