from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import tracemalloc
from typing import Any

from openagentic_sdk import MemorySessionStore, OpenAgenticOptions, PermissionGate, run
from openagentic_sdk.errors import ToolError, ToolInputError
from openagentic_sdk.events import ToolResult
from openagentic_sdk.testing import ScriptedProvider
from openagentic_sdk.tools.base import Blobs
from openagentic_sdk.tools.files.window import LineWindow
from openagentic_sdk.tools.read import ReadTool

from .support import ScratchCase

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


class Windows(ScratchCase):
    def test_a_window_of_a_file_names_its_lines_and_how_to_continue(self) -> None:
        ten = "".join(f"line {n}\n" for n in range(1, 11))
        for text, offset, limit, first, last, total, note in (
            (ten, None, None, 1, 10, 10, "end of file, 10 lines"),
            (ten, 1, 3, 1, 3, 10, "lines 1-3 of 10; go on with offset=4"),
            (ten, 4, 3, 4, 6, 10, "lines 4-6 of 10; go on with offset=7"),
            (ten, 9, 5, 9, 10, 10, "end of file, 10 lines"),
            (ten, 0, 1, 1, 1, 10, "lines 1-1 of 10; go on with offset=2"),
            (ten, 11, None, 0, 0, 10, "offset 11 is past the end: the file has 10 lines"),
            ("", None, None, 0, 0, 0, "the file is empty"),
            ("no end", None, None, 1, 1, 1, "end of file, 1 line"),
            ("\n", None, None, 1, 1, 1, "end of file, 1 line"),
            ("\n\nx", None, None, 1, 3, 3, "end of file, 3 lines"),
            ("a\r\nb\r\n", None, None, 1, 2, 2, "end of file, 2 lines"),
            ("a\u2028b\x0cc\x85d\n", None, None, 1, 1, 1, "end of file, 1 line"),
        ):
            with self.subTest(text=text[:20], offset=offset, limit=limit):
                self.write("f", text)
                given = {key: value for key, value in (("offset", offset), ("limit", limit)) if value is not None}
                output = self.call(ReadTool(), file_path="f", **given)
                self.assertEqual(
                    (output["start_line"], output["end_line"], output["total_lines"]), (first, last, total)
                )
                self.assertEqual(output["note"], note)

    def test_lines_carry_their_numbers(self) -> None:
        self.write("dir/f", "alpha\r\nbeta\n")
        output = self.call(ReadTool(), file_path="dir/f")
        self.assertEqual(output["content"], "     1\talpha\n     2\tbeta")
        self.assertEqual(output["file_path"], "dir/f")
        self.assertFalse(output["truncated"])

    def test_long_lines_and_large_outputs_are_cut_and_marked(self) -> None:
        self.write("f", "x" * 5_000 + "\nshort\n")
        output = self.call(ReadTool(), file_path="f")
        self.assertIn("x" * 2_000 + "… (+3,000 characters)\n     2\tshort", output["content"])
        self.assertIn("1 line cut at 2,000 characters", output["note"])
        for letter, lines in (("y", 9), ("\u4e2d", 1), ('"', 4)):
            self.write("g", (letter * 999 + "\n") * 1_000)
            output = self.call(ReadTool(max_output_chars=10_000), file_path="g")
            self.assertEqual((output["end_line"], output["truncated"]), (lines, True))
            self.assertLess(len(json.dumps(output["content"])), 10_000)
            self.assertIn(f"offset={lines + 1}", output["note"])

    def test_two_thousand_lines_at_a_time(self) -> None:
        self.write("f", "x\n" * 2_001)
        output = self.call(ReadTool(), file_path="f")
        self.assertEqual((output["end_line"], output["total_lines"]), (2_000, 2_001))
        self.assertEqual(self.call(ReadTool(), file_path="f", offset=2_001)["content"], "  2001\tx")

    def test_the_cut_of_the_pieces_that_a_text_comes_in_does_not_matter(self) -> None:
        text = "a\r\nbcdef\n\nghijklmnop\r\r\n" * 3 + "end\r"
        whole = _feed(text, len(text))
        for size in range(1, 12):
            with self.subTest(size=size):
                self.assertEqual(_feed(text, size), whole)
        self.assertEqual(whole[0][:5], ["a", "bcde… (+1 characters)", "", "ghij… (+8 characters)", "a"])

    def test_a_huge_file_is_never_held_whole(self) -> None:
        file = self.write("f")
        with file.open("wb") as out:
            out.truncate(300 << 20)
            out.seek(0)
            out.write(b"first\n" * 10_000 + b"y" * 100_000)
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        output = self.call(ReadTool(), file_path="f")
        self.assertLess(tracemalloc.get_traced_memory()[1], 16 << 20)
        self.assertIsNone(output["total_lines"])
        self.assertIn("offset=2001", output["note"])


def _feed(text: str, size: int) -> tuple[list[str], int]:
    window = LineWindow(1, 100, 4, 10_000)
    for start in range(0, len(text), size):
        window.feed(text[start : start + size])
    return window.lines, window.finish()


class Contents(ScratchCase):
    def test_encodings_are_recognized(self) -> None:
        for data, text, note in (
            ("grün €".encode(), "grün €", "end of file, 1 line"),
            (b"\xef\xbb\xbfgr\xc3\xbcn", "grün", "UTF-8 text with a byte order mark"),
            ("grün\nx".encode("utf-16"), "grün", "UTF-16 text"),
            (b"\xfe\xff" + "grün".encode("utf-16-be"), "grün", "UTF-16 text"),
            (b"\xff\xfe\0\0" + "grün".encode("utf-32-le"), "grün", "UTF-32 text"),
            (b"gr\xfcn", "grün", "not valid UTF-8: read as Latin-1"),
            (b"a" * (1 << 20) + b"\n\xfc\n", "a", "not valid UTF-8: read as Latin-1"),
        ):
            with self.subTest(note=note, data=data[:10]):
                self.write("f", data)
                output = self.call(ReadTool(), file_path="f")
                self.assertTrue(output["content"].startswith(f"     1\t{text}"), output["content"][:40])
                self.assertIn(note, output["note"])

    def test_binary_files_are_refused_with_their_kind(self) -> None:
        for data, kind in (
            (b"\x7fELF\2\1\1\0\0", "an ELF program"),
            (b"PK\3\4\x14\0\0\0", "a zip archive"),
            (b"%PDF-1.7\n", "a PDF document"),
            (b"SQLite format 3\0", "an SQLite database"),
            (b"\0\0\0\x18ftypmp42", "MP4"),
            (b"text and \0 nothing", "binary data"),
        ):
            with self.subTest(kind=kind):
                self.write("f", data)
                with self.assertRaisesRegex(ToolError, kind):
                    self.call(ReadTool(), file_path="f")

    def test_images_are_returned_as_data(self) -> None:
        for data, media_type in (
            (PNG, "image/png"),
            (b"\xff\xd8\xff\xe0rest", "image/jpeg"),
            (b"GIF89arest", "image/gif"),
            (b"RIFF\4\0\0\0WEBPVP8 ", "image/webp"),
        ):
            with self.subTest(media_type=media_type):
                self.write("f", data)
                output = self.call(ReadTool(), file_path="f")
                self.assertEqual((output["type"], output["media_type"]), ("image", media_type))
                self.assertEqual(base64.b64decode(output["data"]), data)
        with self.assertRaisesRegex(ToolError, "smaller copy"):
            self.call(ReadTool(max_image_bytes=4), file_path="f")

    def test_a_pdf_is_returned_as_data_and_a_picture_with_its_size(self) -> None:
        self.write("f.pdf", b"%PDF-1.7 rest")
        output = self.call(ReadTool(), file_path="f.pdf")
        self.assertEqual((output["type"], output["media_type"]), ("file", "application/pdf"))
        self.assertEqual(base64.b64decode(output["data"]), b"%PDF-1.7 rest")
        header = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
        self.write("f.png", header + (640).to_bytes(4) + (480).to_bytes(4))
        output = self.call(ReadTool(), file_path="f.png")
        self.assertEqual((output["width"], output["height"]), (640, 480))
        self.write("wide.png", header + (9000).to_bytes(4) + (1).to_bytes(4))
        with self.assertRaisesRegex(ToolError, "9,000 x 1 pixels, and the limit is 8,000 per side"):
            self.call(ReadTool(), file_path="wide.png")

    def test_a_notebook_is_shown_as_cells(self) -> None:
        outputs: list[dict[str, Any]] = [
            {"output_type": "stream", "text": ["one\n", "two\n"]},
            {"output_type": "error", "ename": "ValueError", "evalue": "bad", "traceback": []},
            {"output_type": "display_data", "data": {"text/plain": "<Figure>", "image/png": "aGk="}},
        ]
        cells = [
            {"cell_type": "markdown", "source": "# Title"},
            {"cell_type": "code", "source": ["import os\n", "os.name"], "outputs": outputs},
            "no cell",
        ]
        self.write("n.ipynb", json.dumps({"cells": cells, "nbformat": 4}))
        content = self.call(ReadTool(), file_path="n.ipynb")["content"]
        for line in (
            "[cell 1, markdown]",
            "# Title",
            "[cell 2, code]",
            "os.name",
            "two",
            "ValueError: bad",
            "<Figure>",
        ):
            self.assertIn(f"\t{line}", content)
        self.assertIn("(image/png not shown)", content)
        self.assertNotIn("aGk=", content)
        for broken in ("{", "[]", '{"cells": 3}', "[" * 100_000):
            self.write("n.ipynb", broken)
            self.assertIn(broken[:2], self.call(ReadTool(), file_path="n.ipynb")["content"])

    def test_a_stored_output_is_read_like_a_file(self) -> None:
        data = b"a\nb\nc\n"
        digest = asyncio.run((blobs := Blobs()).keep(data))
        ctx = self.context(blobs)
        output = self.call(ReadTool(), ctx, file_path=f"blob:{digest}", offset=2, limit=1)
        self.assertEqual(output["content"], "     2\tb")
        with self.assertRaisesRegex(ToolError, "no session"):
            self.call(ReadTool(), file_path=f"blob:{digest}")

    def test_a_blob_that_a_session_lacks_is_an_error_for_the_model_and_does_not_end_the_run(self) -> None:
        read = {"name": "Read", "arguments": {"file_path": f"blob:{'0' * 64}"}}
        options = OpenAgenticOptions(
            provider=ScriptedProvider([{"tool_calls": [read]}, "done"]),
            model="scripted",
            tools=[ReadTool()],
            session_store=MemorySessionStore(),
            permission_gate=PermissionGate(permission_mode="bypass"),
        )
        result = asyncio.run(run(prompt="go", options=options))
        [error] = [event.error_message for event in result.events if isinstance(event, ToolResult)]
        self.assertEqual(result.final_text, "done")
        self.assertRegex(str(error), "has no blob 0+: give the blob that a result of this session names$")

    def test_the_digest_of_what_was_read_is_reported_apart(self) -> None:
        file = self.write("f", "x" * 10)
        result = asyncio.run(ReadTool().run({"file_path": "f"}, self.context()))
        assert result.meta is not None
        self.assertEqual(result.meta["files"], {str(file): hashlib.sha256(b"x" * 10).hexdigest()})

    def test_an_error_about_a_missing_file_suggests_similar_names(self) -> None:
        self.write("src/Settings.py")
        with self.assertRaisesRegex(FileNotFoundError, "did you mean 'Settings.py'"):
            self.call(ReadTool(), file_path="src/setings.py")
        with self.assertRaisesRegex(FileNotFoundError, "use Glob"):
            self.call(ReadTool(), file_path="nothing/here")

    def test_a_cancelled_call_ends(self) -> None:
        self.write("f", "x\n" * 10)
        ctx = self.context()
        ctx.cancelled.set()
        with self.assertRaisesRegex(ToolError, "cancelled"):
            self.call(ReadTool(), ctx, file_path="f")

    def test_arguments_that_do_not_fit_are_refused(self) -> None:
        for input in ({}, {"file_path": 3}, {"file_path": "f", "limit": 0}, {"file_path": "f", "offset": -1}):
            with self.subTest(input=input), self.assertRaises(ToolInputError):
                self.call(ReadTool(), **input)

    def test_a_file_without_permission_is_an_error_with_its_path(self) -> None:
        if os.geteuid() == 0:
            self.skipTest("root may read everything")
        self.write("f").chmod(0)
        with self.assertRaisesRegex(PermissionError, "/f"):
            self.call(ReadTool(), file_path="f")
