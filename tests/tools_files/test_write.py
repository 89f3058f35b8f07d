from __future__ import annotations

import asyncio
import hashlib
import os
import stat
from typing import Any

from openagentic_sdk.errors import ToolError
from openagentic_sdk.events import ToolUse
from openagentic_sdk.tools.base import ToolOutput
from openagentic_sdk.tools.edit import EditTool
from openagentic_sdk.tools.read import ReadTool
from openagentic_sdk.tools.write import WriteTool

from .support import ScratchCase


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Writing(ScratchCase):
    def test_a_new_file_is_made_with_its_folders(self) -> None:
        output = self.call(WriteTool(), file_path="a/b/c.txt", content="grün\r\n\u2028")
        self.assertEqual((self.root / "a/b/c.txt").read_bytes(), "grün\r\n\u2028".encode())
        self.assertEqual((output["file_path"], output["bytes_written"], output["created"]), ("a/b/c.txt", 10, True))
        self.assertEqual(os.listdir(self.root / "a/b"), ["c.txt"])

    def test_an_existing_file_needs_overwrite(self) -> None:
        self.write("f", "old")
        for input in ({}, {"overwrite": False}):
            with self.assertRaisesRegex(FileExistsError, "f exists: Read it and set overwrite"):
                self.call(WriteTool(), file_path="f", content="new", **input)
        self.assertEqual((self.root / "f").read_text(), "old")
        self.assertFalse(self.call(WriteTool(), file_path="f", content="new", overwrite=True)["created"])
        self.assertEqual((self.root / "f").read_text(), "new")

    def test_mode_and_link_are_kept(self) -> None:
        file = self.write("real/script.sh", "old")
        file.chmod(0o751)
        (self.root / "link.sh").symlink_to("real/script.sh")
        (self.root / "new_link").symlink_to("real/not_yet")
        self.call(WriteTool(), file_path="link.sh", content="new", overwrite=True)
        self.call(WriteTool(), file_path="new_link", content="made")
        self.assertTrue((self.root / "link.sh").is_symlink())
        self.assertEqual(file.read_text(), "new")
        self.assertEqual(stat.S_IMODE(file.stat().st_mode), 0o751)
        self.assertEqual((self.root / "real/not_yet").read_text(), "made")

    def test_the_owner_is_kept(self) -> None:
        if os.geteuid() != 0:
            self.skipTest("only root may give files away")
        file = self.write("f", "old")
        os.chown(file, 1234, 4321)
        self.call(WriteTool(), file_path="f", content="new", overwrite=True)
        self.assertEqual((file.stat().st_uid, file.stat().st_gid), (1234, 4321))

    def test_other_names_of_a_file_keep_its_old_content_which_the_result_mentions(self) -> None:
        file = self.write("f", "old")
        os.link(file, self.root / "g")
        output = self.call(WriteTool(), file_path="f", content="new", overwrite=True)
        self.assertIn("2 names", output["note"])
        self.assertEqual((self.root / "g").read_text(), "old")

    def test_a_failed_write_changes_nothing(self) -> None:
        self.write("file", "old")
        for path, content, error, words in (
            ("file/below", "x", NotADirectoryError, "is a file, not a folder"),
            ("new", "\ud800", ToolError, "lone surrogate at character 0"),
            ("new", "x" * 101, ToolError, "more than the limit of 100"),
        ):
            with self.subTest(path=path), self.assertRaisesRegex(error, words):
                self.call(WriteTool(max_bytes=100), file_path=path, content=content)
        self.assertEqual(os.listdir(self.root), ["file"])


class Staleness(ScratchCase):
    """What the model saw is identified by digest, so touching a file or writing the same again is not a change."""

    def tools(self) -> list[tuple[Any, dict[str, Any]]]:
        return [(WriteTool(), {"content": "new", "overwrite": True}), (EditTool(), {"old": "one", "new": "two"})]

    def test_a_file_that_changed_since_it_was_seen_is_refused(self) -> None:
        for tool, input in self.tools():
            file = self.write("f", "one and more")
            ctx = self.context(observed={str(file): sha256(b"one")})
            with self.subTest(tool=tool.name), self.assertRaisesRegex(ToolError, "has changed since.*Read it again"):
                self.call(tool, ctx, file_path="f", **input)
            self.assertEqual(file.read_text(), "one and more")

    def test_a_file_that_was_deleted_since_it_was_seen_is_refused(self) -> None:
        ctx = self.context(observed={str(self.root / "f"): sha256(b"one")})
        with self.assertRaisesRegex(ToolError, "was deleted since"):
            self.call(WriteTool(), ctx, file_path="f", content="new")
        with self.assertRaises(FileNotFoundError):
            self.call(EditTool(), ctx, file_path="f", old="one", new="two")

    def test_a_file_that_is_as_it_was_seen_is_changed(self) -> None:
        for tool, input in self.tools():
            with self.subTest(tool=tool.name):
                file = self.write("f", "one")
                os.utime(file, ns=(1, 1))
                self.call(tool, self.context(observed={str(file): sha256(b"one")}), file_path="f", **input)
                self.assertNotEqual(file.read_text(), "one")

    def test_every_file_tool_reports_what_it_left_under_the_real_path(self) -> None:
        file = self.write("real", "one")
        (self.root / "link").symlink_to("real")
        for tool, input, left in (
            (ReadTool(), {}, b"one"),
            (EditTool(), {"old": "one", "new": "two"}, b"two"),
            (WriteTool(), {"content": "three", "overwrite": True}, b"three"),
        ):
            result = asyncio.run(tool.run({"file_path": "link", **input}, self.context()))
            self.assertEqual(result.meta, {"files": {str(file): sha256(left)}})

    def test_a_call_in_doubt_is_settled_by_looking_at_the_file(self) -> None:
        file = self.write("f", "before")
        seen = {str(file): sha256(b"before")}
        write = ToolUse("1", "Write", {"file_path": "f", "content": "after", "overwrite": True})
        edit = ToolUse("2", "Edit", {"file_path": "f", "old": "before", "new": "after"})
        for now, tool, call, settled in (
            ("before", WriteTool(), write, "not done"),
            ("after", WriteTool(), write, "done"),
            ("else", WriteTool(), write, "unknown"),
            ("before", EditTool(), edit, "not done"),
            ("after", EditTool(), edit, "unknown"),
        ):
            with self.subTest(now=now, tool=tool.name):
                file.write_text(now)
                result = asyncio.run(tool.reconcile(call, self.context(observed=seen)))
                self.assertEqual(_settled(result), settled)
                self.assertEqual(file.read_text(), now)


def _settled(result: ToolOutput | None) -> str:
    if result is None:
        return "unknown"
    return "not done" if result.is_error else "done"
