from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import sys
import unittest
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from openagentic_sdk.errors import ToolError, ToolInputError
from openagentic_sdk.ground.clock import SystemClock
from openagentic_sdk.testing import FakeClock
from openagentic_sdk.tools.base import ToolContext
from openagentic_sdk.tools.find.search import Query, line_spans, search_file
from openagentic_sdk.tools.find.search_files import FileSearch, ListedFile, is_linear
from openagentic_sdk.tools.find.worker import find_interpreter
from openagentic_sdk.tools.grep import GrepTool
from tests.size import full_size, sized
from tests.waiting import until_async

from .support import Rules, ScratchCase

TEXT = "alpha\nBeta needle\ngamma\ndelta Needle 1\n\nomega needle needle\n"


class Searching(ScratchCase):
    def lines(self, **input: Any) -> list[tuple[str, int, str]]:
        output = self.call(GrepTool(), **input)
        return [(match["file_path"], match["line"], match["text"]) for match in output["matches"]]

    def test_lines_come_with_path_and_number(self) -> None:
        self.write("src/f.txt", TEXT)
        for query, case_sensitive, lines in (
            ("needle", None, [2, 6]),
            ("needle", False, [2, 4, 6]),
            ("NEEDLE", True, []),
            ("^.eta", None, [2]),
            ("a$", None, [1, 3]),
            ("^$", None, [5]),
            (r"needle \d|mm", False, [3, 4]),
            (r"a\s+B", None, []),
            (r"(?i)ALPHA", None, [1]),
            (r"\balpha\b", None, [1]),
            (r"e(?=ta)", None, [2]),
            (r"\Aalpha", None, [1]),
            (r"\Z", None, [1, 2, 3, 4, 5, 6]),
            (r"[^x]", None, [1, 2, 3, 4, 6]),
            ("", None, None),
        ):
            with self.subTest(query=query, case_sensitive=case_sensitive):
                given = {} if case_sensitive is None else {"case_sensitive": case_sensitive}
                if lines is None:
                    with self.assertRaises(ToolInputError):
                        self.lines(query=query, **given)
                    continue
                self.assertEqual([line for _, line, _ in self.lines(query=query, **given)], lines)
        self.assertEqual(self.lines(query="delta"), [("src/f.txt", 4, "delta Needle 1")])

    def test_modes_and_limits(self) -> None:
        for name in "abc":
            self.write(f"{name}.txt", "x\nx\ny\n")
        for input, key, expected, truncated in (
            ({"mode": "files"}, "files", ["a.txt", "b.txt", "c.txt"], False),
            ({"mode": "files_with_matches", "head_limit": 2}, "files", ["a.txt", "b.txt"], True),
            ({"mode": "count"}, "counts", {"a.txt": 2, "b.txt": 2, "c.txt": 2}, False),
            ({"mode": "count", "head_limit": 1}, "counts", {"a.txt": 2}, True),
        ):
            with self.subTest(input=input):
                output = self.call(GrepTool(), query="x", **input)
                self.assertEqual((output[key], output["truncated"]), (expected, truncated))
        output = self.call(GrepTool(), query="x", head_limit=3)
        self.assertEqual(
            [(m["file_path"], m["line"]) for m in output["matches"]], [("a.txt", 1), ("a.txt", 2), ("b.txt", 1)]
        )
        self.assertTrue(output["truncated"])
        self.assertFalse(self.call(GrepTool(), query="x", head_limit=6)["truncated"])
        self.assertEqual(len(self.call(GrepTool(max_matches=4), query="x")["matches"]), 4)
        self.assertLess(len(self.call(GrepTool(max_output_chars=60), query="x")["matches"]), 6)

    def test_lines_around_a_match_are_shown_once(self) -> None:
        self.write("f", "1\n2 x\n3\n4 x\n5\n6\n7 x")
        for options, expected in (
            ({"dash_C": 1}, [(2, ["1"], ["3"]), (4, [], ["5"]), (7, ["6"], [])]),
            ({"dash_A": 1}, [(2, [], ["3"]), (4, [], ["5"]), (7, [], [])]),
            ({"dash_B": 2}, [(2, ["1"], []), (4, ["3"], []), (7, ["5", "6"], [])]),
            ({"dash_C": 9}, [(2, ["1"], ["3"]), (4, [], ["5", "6"]), (7, [], [])]),
            ({}, [(2, [], []), (4, [], []), (7, [], [])]),
        ):
            with self.subTest(options=options):
                matches = self.call(GrepTool(), query="x", **options)["matches"]
                self.assertEqual([(m["line"], m.get("before", []), m.get("after", [])) for m in matches], expected)

    def test_lines_around_a_match_reach_over_the_blocks_of_a_large_file(self) -> None:
        lines = [f"line {n}" for n in range(300_000)]
        file = self.write("f", "\n".join(lines))
        with file.open("rb") as data:
            for block_bytes in (1 << 16, 1 << 20):
                query = Query("line (4096|8192|6553[56])$", before=3, after=3, block_bytes=block_bytes)
                os.lseek(data.fileno(), 0, os.SEEK_SET)
                _, _, hits = search_file(data.fileno(), query)
                self.assertEqual([hit[0] - 1 for hit in hits], [4_096, 8_192, 65_535, 65_536])
                for line, text, before, after in hits:
                    self.assertEqual([*before, text, *after], lines[line - 4 : line + 3])

    def test_context_is_right_at_every_cut_of_a_small_file(self) -> None:
        lines = ["a", "b x", "", "c", "x", "d", "e x", "f"]
        file = self.write("f", "\n".join(lines) + "\n")
        lines[3] = "c" * 20
        lines[6] = "e" * 20 + " x"
        file.write_text("\n".join(lines) + "\n")
        for block_bytes in range(1, 30):
            with self.subTest(block_bytes=block_bytes), file.open("rb") as data:
                _, count, hits = search_file(data.fileno(), Query("x", before=2, after=2, block_bytes=block_bytes))
                self.assertEqual(count, 3)
                for line, text, before, after in hits:
                    self.assertEqual([*before, text, *after], lines[max(0, line - 3) : line + 2])

    def test_matches_may_span_lines_on_request(self) -> None:
        self.write("f", "def f(\n  a,\n  b):\n  pass\ndef g():\n")
        matches = self.call(GrepTool(), query=r"def \w+\(.*?\):", multiline=True)["matches"]
        self.assertEqual([(m["line"], m["text"]) for m in matches], [(1, "def f(\n  a,\n  b):"), (5, "def g():")])
        self.assertEqual(self.lines(query=r"def \w+\(.*?\):"), [("f", 5, "def g():")])

    def test_long_lines_are_shown_around_their_match(self) -> None:
        self.write("f.min.js", "a" * 3_000 + "needle" + "b" * 3_000)
        [(_, _, text)] = self.lines(query="needle")
        self.assertIn("needle", text)
        self.assertTrue(text.startswith("(+2,875 characters) …a"))
        self.assertTrue(text.endswith("… (+2,631 characters)"))

    def test_which_files_are_searched(self) -> None:
        self.write(".gitignore", "out/\n")
        for path in ("a.py", "src/b.py", "src/c.ts", "src/.h.py", "out/d.py", ".git/e.py"):
            self.write(path, "x\n")
        (self.root / "link.py").symlink_to("a.py")
        self.write("binary.py", b"x\n\0")
        every = ["a.py", "src/.h.py", "src/b.py", "src/c.ts"]
        for input, expected in (
            ({}, every),
            ({"include_ignored": True}, ["a.py", "out/d.py", "src/.h.py", "src/b.py", "src/c.ts"]),
            ({"include_hidden": False}, ["a.py", "src/b.py", "src/c.ts"]),
            ({"type": "ts"}, ["src/c.ts"]),
            ({"file_glob": "*.py"}, ["a.py", "src/.h.py", "src/b.py"]),
            ({"file_glob": "src/*.py"}, ["src/.h.py", "src/b.py"]),
            ({"file_glob": "**/*.{ts,tsx}"}, ["src/c.ts"]),
            ({"file_glob": "*.py", "type": "ts"}, []),
            ({"root": "src"}, ["src/.h.py", "src/b.py", "src/c.ts"]),
            ({"root": "src/b.py"}, ["src/b.py"]),
            ({"root": "out"}, ["out/d.py"]),
            ({"root": "link.py"}, ["link.py"]),
        ):
            with self.subTest(input=input):
                self.assertEqual(self.call(GrepTool(), query="x", mode="files", **input)["files"], expected)
        self.assertIn("1 binary", self.call(GrepTool(), query="x", root="binary.py")["note"])
        with self.assertRaisesRegex(FileNotFoundError, "the file or folder 'nothing' does not exist"):
            self.lines(query="x", root="nothing")

    def test_text_of_other_encodings_is_found(self) -> None:
        self.write("utf8", "grün müsli")
        self.write("bom", b"\xef\xbb\xbfgr\xc3\xbcn")
        self.write("utf16", "ja\ngrün\n".encode("utf-16"))
        self.write("latin1", b"gr\xfcn\nmore\n")
        for query, expected in (
            ("grün", ["bom:1", "utf16:2", "utf8:1"]),
            ("^gr.n", ["bom:1", "latin1:1", "utf16:2", "utf8:1"]),
            (r"^gr\wn", ["bom:1", "utf16:2", "utf8:1"]),
            ("GRÜN", []),
            ("(?i)GRÜN", ["bom:1", "utf16:2", "utf8:1"]),
            ("m[äöü]sli", ["utf8:1"]),
            ("gr[^x]n", ["bom:1", "latin1:1", "utf16:2", "utf8:1"]),
        ):
            with self.subTest(query=query):
                self.assertEqual(sorted(f"{path}:{line}" for path, line, _ in self.lines(query=query)), expected)

    def test_an_invalid_pattern_is_explained(self) -> None:
        for query in ("(", "[", "*a", "a{2,1}", "(?P<a>x)(?P<a>y)", "(?<=a+)b", "(?L)a"):
            with self.subTest(query=query), self.assertRaisesRegex(ToolInputError, "cannot be used as a regular expr"):
                self.lines(query=query)

    def test_no_pattern_makes_python_warn(self) -> None:
        self.write("f", "a[\na&&\n]")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for query, lines in (
                ("[[]", [1]),
                ("[&&]", [2]),
                (r"\[", [1]),
                ("[[:alpha:]]", []),
                ("[]]", [3]),
                (r"[\[&&||~~]", [1, 2]),
            ):
                with self.subTest(query=query):
                    self.assertEqual([line for _, line, _ in self.lines(query=query)], lines)

    def test_files_that_rules_deny_are_not_shown(self) -> None:
        self.write("a", "password\n")
        self.write("secret/b", "password\n")
        for mode, key in (("content", "matches"), ("files", "files"), ("count", "counts")):
            ctx = self.context(rules=Rules(shows=lambda path: "secret" not in path))
            output = self.call(GrepTool(), ctx, query="password", mode=mode)
            self.assertEqual(len(output[key]), 1)
            self.assertNotIn("secret", str(output))


class Runaway(ScratchCase):
    def setUp(self) -> None:
        super().setUp()
        self.before = _children()  # a helper of an earlier test may still run

    def children(self) -> set[str]:
        return _children() - self.before

    def test_only_patterns_that_match_in_one_way_run_in_this_process(self) -> None:
        for pattern in (
            "abc",
            "a.c",
            "^abc$",
            "[abc]d",
            r"\bword\b",
            r"\(x\)",
            "[*+]",
            r"\*\+",
            "[]a+]x",
            "[^]*]x",
            r"[\]+]",
        ):
            with self.subTest(pattern):
                re.compile(pattern)
                self.assertTrue(is_linear(pattern))
        for pattern in (
            "a+",
            "(a+)+$",
            "(a|a)*b",
            "a|b",
            "colou?r",
            "a{3}",
            "(?i)abc",
            r"(a)\1",
            r"[\]*",
            "[]*",
            "(?#a)",
            "a]*",
        ):
            with self.subTest(pattern):
                self.assertFalse(is_linear(pattern))

    @full_size
    def test_a_pattern_that_explodes_ends_in_time_and_leaves_the_program_responsive(self) -> None:
        self.write("a.txt", "found aa\n")
        self.write("b.txt", "a" * 5_000 + "!\n")
        found: list[str] = []
        output = self._search_until(
            "(a+)+$", lambda: found, _let_time_pass, rules=Rules(shows=lambda path: not found.append(path))
        )
        self.assertEqual([match["file_path"] for match in output["matches"]], ["a.txt"])
        self.assertTrue(output["truncated"])
        self.assertIn("stopped after 2 s near b.txt", output["note"])
        with self.assertRaisesRegex(ToolError, "nothing has been found so far"):
            self._search_until("(a+)+b$", self.children, _let_time_pass)
        self.assertEqual(self.children(), set())

    @full_size
    def test_one_repetition_on_an_endless_line_is_run_apart(self) -> None:
        self.write("f", "foo" * 200_000)
        with self.assertRaisesRegex(ToolError, "stopped after 2 s"):
            self._search_until("foo.*bar", self.children, _let_time_pass)

    @full_size
    def test_a_long_pattern_without_repetitions_is_run_apart_on_a_large_file(self) -> None:
        self.write("f", "a" * 3_000_000)
        with self.assertRaisesRegex(ToolError, "stopped after 2 s near f"):
            self._search_until("[a-z]" * 1_900 + "0", self.children, _let_time_pass)
        self.assertEqual(self.children(), set())

    def test_a_pattern_that_takes_long_to_compile_is_refused(self) -> None:
        self.write("f", "\u4e2d\n")
        for ranges in ("[\0-\uffff]", r"[\0-\uffff]", r"[\0-\U0010ffff]"):
            with self.assertRaisesRegex(ToolError, "more than 50 ranges that end beyond ASCII") as refused:
                self.call(GrepTool(), query=ranges * 600, case_sensitive=False)
            self.assertLess(len(str(refused.exception)), 500)
            self.assertEqual(self.call(GrepTool(), query=ranges)["total"], 1)

    @full_size
    def test_a_cancelled_search_kills_its_worker(self) -> None:
        self.write("f", "a" * 5_000 + "!\n")
        with self.assertRaisesRegex(ToolError, "cancelled"):
            self._search_until("(a+)+$", self.children, lambda ctx, _: ctx.cancelled.set())
        self.assertEqual(self.children(), set())

    def _search_until(
        self, query: str, has_begun: Callable[[], object], end: Callable[[ToolContext, FakeClock], None], **fields: Any
    ) -> Any:
        """The result of Grep if `end` happens ten steps of this program after the search has begun."""

        async def search() -> Any:
            ctx, clock = self.context(**fields), FakeClock()
            searching = asyncio.create_task(GrepTool(timeout_s=2, clock=clock).run({"query": query}, ctx))
            await until_async(lambda: searching.done() or has_begun(), "the search begins")
            for _ in range(10):
                await asyncio.sleep(0)
            self.assertFalse(searching.done())
            end(ctx, clock)
            return await searching

        return asyncio.run(search())

    @full_size
    def test_a_worker_answers_for_many_files_as_this_process_does(self) -> None:
        for number in range(700):
            self.write(f"d{number % 7}/f{number}", f"x{number}\n" * (number % 5) + "grün 1-2 é\n" * (number % 3))
        one = self.call(GrepTool(max_matches=9_999), query="x[0-9]|gr.n")
        two = self.call(GrepTool(max_matches=9_999), query="x[0-9]+|gr.n*")
        self.assertEqual(one["matches"], two["matches"])
        self.assertEqual(len(one["matches"]), 1_400 + 699)

    def test_a_file_with_another_inode_than_listed_is_found_without_following_links(self) -> None:
        self.write("secret", "x needle\n")
        self.write("real", "x needle\n")
        (self.root / "link").symlink_to("secret")
        for pattern in ("needle", "x.*nee.*e"):
            query = {"pattern": pattern, "ignore_case": False, "multiline": False}
            search = FileSearch(query, 20, self.context(), SystemClock())
            self.addCleanup(search.close)
            files = [ListedFile(name, str(self.root / name), 1) for name in ("real", "link", "gone")]
            statuses = {file.path: (status, count) for file, (status, count, _) in search.answers(files)}
            self.assertEqual(statuses, {"real": ("ok", 1), "link": ("unreadable", 0), "gone": ("unreadable", 0)})

    def test_the_worker_is_run_by_python_and_nothing_else(self) -> None:
        program, sys.executable = sys.executable, "/usr/bin/uwsgi"
        try:
            self.assertEqual(os.path.basename(find_interpreter()), "python3")
        finally:
            sys.executable = program


def _let_time_pass(_: ToolContext, clock: FakeClock) -> None:
    clock.advance(2.5)


def _children() -> set[str]:
    """The child processes of this process, whichever thread started them."""
    found: set[str] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended in the meantime
            found.update(path.read_text().split())
    return found


class Lines(unittest.TestCase):
    """Searching a whole block must find the lines that searching each line alone finds."""

    ATOMS = (*"abx.^$ ", r"\s", r"\S", "[ab]", "[^a]", r"\w", r"\W", r"\b", "(?:a|b)", "(a.)", "a|b", "",
             "(?=b)", "(?!a)", "(?<=a)", r"\Z", r"\A")  # fmt: skip
    REPEATS = ("", "", "", "*", "+", "?", "*?", "{2}", "++", "*+")

    def test_patterns_made_by_chance_on_texts_made_by_chance(self) -> None:
        chance = random.Random(9)
        tried = 0
        while tried < sized(500, 1_500, 20_000):
            pattern = "".join(
                chance.choice(self.ATOMS) + chance.choice(self.REPEATS) for _ in range(chance.randint(1, 4))
            )
            try:
                query = Query(pattern, ignore_case=chance.random() < 0.2)
                alone = re.compile(pattern, query.text_pattern.flags)
            except re.error:
                continue
            tried += 1
            text = "".join(chance.choices(["a", "b", "x", " ", "\n", "\n", "é", "\r"], k=chance.randint(0, 30)))
            lines = text.split("\n")[: None if text and not text.endswith("\n") else -1]
            expected = [number for number, line in enumerate(lines) if alone.search(line)]
            with self.subTest(pattern=pattern, text=text):
                found = [text.count("\n", 0, start) for start, _, _ in line_spans(text, query)]
                self.assertEqual(found, expected)
                if text.isascii() and query.bytes_pattern:
                    data = text.encode()
                    found = [data.count(b"\n", 0, start) for start, _, _ in line_spans(data, query)]
                    self.assertEqual(found, expected)
