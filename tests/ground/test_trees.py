"""Trees of any depth: a command, or the author of a repository, can create more levels than Python can call functions."""

from __future__ import annotations

import os
import sys
import tempfile
import unittest
from pathlib import Path

from openagentic_sdk.errors import ToolError
from openagentic_sdk.ground.disk import remove_tree, walk
from openagentic_sdk.tools.shell.overlay import FileEffect, permitted_effects, read_effects
from tests.size import full_size

DEEP = sys.getrecursionlimit() + 200


def nest(top: Path, levels: int, name: str = "d") -> None:
    """Create nested folders of one name with a file in the innermost; a relative path is never too long."""
    folder = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=folder)
        inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(os.open("leaf", os.O_WRONLY | os.O_CREAT, dir_fd=folder))
    os.close(folder)


@unittest.skipUnless(os.name == "posix", "paths relative to a descriptor need a POSIX system")
class DeepTrees(unittest.TestCase):
    def setUp(self) -> None:
        self.top = Path(tempfile.mkdtemp())
        self.addCleanup(remove_tree, self.top)

    @full_size
    def test_any_tree_is_removed(self) -> None:
        # The second has paths that are too long for the system.
        for name in ("d", "long"):
            with self.subTest(name):
                folder = self.top / "tree"
                folder.mkdir()
                nest(folder, DEEP, name)
                remove_tree(folder, ignore_errors=False)
                self.assertFalse(folder.exists())

    def test_a_tree_behind_a_link_is_not_removed(self) -> None:
        kept, folder = self.top / "kept", self.top / "tree"
        kept.mkdir()
        (kept / "file").touch()
        folder.mkdir()
        nest(folder, DEEP)
        (folder / "link").symlink_to(kept)
        remove_tree(folder)
        self.assertTrue((kept / "file").exists())
        self.assertFalse(folder.exists())

    @full_size
    def test_a_walk_reaches_every_level_and_obeys_its_caller_as_that_of_os(self) -> None:
        nest(self.top, DEEP)
        (self.top / "other" / "inner").mkdir(parents=True)
        (self.top / "link").symlink_to(self.top / "other")
        (self.top / "loop").symlink_to("loop")
        found, leaves = [], list[str]()
        for folder, folders, files in walk(str(self.top)):
            leaves += files
            found.append(folder)
            folders[:] = [name for name in folders if name != "inner"]
        self.assertEqual(len(found), DEEP + 2)
        self.assertEqual(leaves, ["loop", "leaf"])

    @full_size
    def test_the_effects_of_a_command_are_read_at_any_depth(self) -> None:
        upper, folder = self.top / "upper", self.top / "folder"
        upper.mkdir()
        folder.mkdir()
        nest(upper, DEEP)
        effects = read_effects(str(folder), str(upper))
        self.assertEqual(len(effects), DEEP + 1)
        self.assertEqual({effect.kind for effect in effects}, {"created"})

    def test_effects_with_paths_that_are_too_long_are_refused_in_a_sentence(self) -> None:
        upper = self.top / "upper"
        upper.mkdir()
        nest(upper, 40, "d" * 200)
        with self.assertRaisesRegex(ToolError, "were discarded, because they cannot be read"):
            read_effects(str(self.top), str(upper))

    @full_size
    def test_a_deep_folder_is_deleted_except_for_what_must_stay(self) -> None:
        nest(self.top, DEEP)
        (self.top / "d" / "other").mkdir()
        (self.top / "d" / "d" / "file").touch()
        whole = FileEffect("deleted", "d", is_folder=True)
        self.assertEqual(permitted_effects(str(self.top), [whole], lambda path: None), ([whole], {}))
        stays = str(self.top / "d" / "d" / "file")
        permitted, refused = permitted_effects(
            str(self.top), [whole], lambda path: "it stays" if path == stays else None
        )
        self.assertEqual([effect.path for effect in permitted], ["d/d/d", "d/other"])
        self.assertEqual(refused, {stays: "it stays", str(self.top / "d"): "something in it stays"})


if __name__ == "__main__":
    unittest.main()
