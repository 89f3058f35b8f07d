from __future__ import annotations

import codecs
import os
import random
import stat
import threading
import time

from openagentic_sdk.errors import ToolError
from openagentic_sdk.tools.edit import EditTool
from tests.size import full_size, sized

from .support import ScratchCase, load_cases


class Editing(ScratchCase):
    def test_the_table_of_edits(self) -> None:
        for case in load_cases("edits.json"):
            with self.subTest(case["name"]):
                file = self.write("f.txt", case["text"].encode())
                if "error" in case:
                    with self.assertRaisesRegex(ValueError, case["error"]):
                        self.call(EditTool(), file_path="f.txt", **case["edit"])
                    self.assertEqual(file.read_bytes(), case["text"].encode())
                else:
                    output = self.call(EditTool(), file_path="f.txt", **case["edit"])
                    self.assertEqual(file.read_bytes(), case["result"].encode())
                    self.assertEqual(output["replacements"], case["replacements"])

    def test_encodings_and_byte_order_marks_are_kept(self) -> None:
        for codec, bom in (
            ("utf-8", b""),
            ("utf-8", codecs.BOM_UTF8),
            ("utf-16-le", codecs.BOM_UTF16_LE),
            ("utf-16-be", codecs.BOM_UTF16_BE),
            ("latin-1", b""),
        ):
            with self.subTest(codec=codec, bom=bom):
                file = self.write("f", bom + "grün\r\nalt\r\n".encode(codec))
                self.call(EditTool(), file_path="f", old="alt", new="nöu")
                self.assertEqual(file.read_bytes(), bom + "grün\r\nnöu\r\n".encode(codec))
        with self.assertRaisesRegex(ValueError, r"cannot encode '\\u20ac'"):
            self.call(EditTool(), file_path="f", old="grün", new="€")

    def test_bytes_outside_the_place_stay_whatever_they_are(self) -> None:
        chance = random.Random(5)
        for _ in range(sized(60, 200, 200)):
            noise = [bytes(chance.choices(range(1, 256), k=chance.randint(0, 30))) for _ in range(2)]
            file = self.write("f", noise[0] + b"<here>" + noise[1])
            if noise[0].startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"<here>" in noise[0] + noise[1]:
                continue
            self.call(EditTool(), file_path="f", old="<here>", new="there")
            self.assertEqual(file.read_bytes(), noise[0] + b"there" + noise[1])

    def test_where_the_changed_places_are_now(self) -> None:
        self.write("f", "a\nb\na\n")
        edits = [{"old": "a", "new": "x\ny", "count": 0}, {"old": "b", "new": "first\nb"}]
        self.assertEqual(self.call(EditTool(), file_path="f", edits=edits)["lines"], [1, 3, 5])

    def test_mode_and_link_are_kept(self) -> None:
        file = self.write("real", "x")
        file.chmod(0o700)
        (self.root / "link").symlink_to("real")
        self.call(EditTool(), file_path="link", old="x", new="y")
        self.assertTrue((self.root / "link").is_symlink())
        self.assertEqual((file.read_text(), stat.S_IMODE(file.stat().st_mode)), ("y", 0o700))

    def test_files_that_are_binary_too_large_or_missing_are_refused(self) -> None:
        self.write("binary", b"\x7fELF\0\0")
        self.write("large", "x" * 101)
        for path, error, words in (
            ("binary", ToolError, "an ELF program"),
            ("large", ToolError, "exceeds the limit of 100 bytes"),
            ("bynary", FileNotFoundError, "did you mean 'binary'"),
        ):
            with self.subTest(path=path), self.assertRaisesRegex(error, words):
                self.call(EditTool(max_bytes=100), file_path=path, old="x", new="y")
        self.assertEqual(sorted(os.listdir(self.root)), ["binary", "large"])

    def test_edits_at_the_same_time_are_all_kept(self) -> None:
        file = self.write("f", "".join(f"<{n}>\n" for n in range(20)))
        threads = [
            threading.Thread(
                target=lambda n=n: self.call(EditTool(), file_path="f", old=f"<{n}>", new=f"[{n}]")  # type: ignore[misc]
            )
            for n in range(20)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(file.read_text(), "".join(f"[{n}]\n" for n in range(20)))

    @full_size
    def test_the_nearest_place_of_a_large_text_is_found_in_moderate_time(self) -> None:
        chance = random.Random(6)
        words = ["".join(chance.choices("abcdefgh", k=6)) for _ in range(300)]
        lines = [" ".join(chance.choices(words, k=8)) for _ in range(20_000)]
        self.write("f", "\n".join(lines))
        old = "\n".join(lines[15_000:15_020]).replace("a", "á", 1)
        began = time.process_time()
        with self.assertRaisesRegex(ValueError, "line 15001"):
            self.call(EditTool(), file_path="f", old=old, new="")
        self.assertLess(time.process_time() - began, 10)
