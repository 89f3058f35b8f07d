"""The one compiler of glob patterns; the rooms that use it test their additions themselves."""

from __future__ import annotations

import re
import time
import unittest

from openagentic_sdk.ground.globs import MAX_CHARS, compile_glob, expand_braces, path_regex, static_folder
from tests.size import full_size


class GlobsTest(unittest.TestCase):
    def test_a_pattern_fits_whole_paths(self) -> None:
        table: dict[str, tuple[str, str]] = {
            # pattern: paths that match, paths that do not
            "*.py": ("a.py d/a.py .py", "a.pyc a.py/b"),
            "./d/*.py": ("d/a.py", "d/e/a.py a.py"),
            "d/**": ("d/a d/e/a", "e/a"),
            "**/a.py": ("a.py d/a.py d/e/a.py", "ba.py"),
            "d/**/a": ("d/a d/x/a d/x/y/a", "a d/xa"),
            "**/d/**/e/*.c": ("d/e/a.c x/d/y/e/a.c d/e/e/a.c", "e/a.c d/a.c"),
            "{d,x}/a.py": ("d/a.py x/a.py", "y/a.py"),
            "a{b,c{d,e}}": ("ab acd ace", "a ac ade"),
            "a{b}.py": ("a{b}.py", "ab.py"),
            "a{,},b": ("a,b", "a{,},b"),
            "[ab].py": ("a.py b.py", "c.py"),
            "[!a].py": ("b.py", "a.py"),
            "[^a].py": ("b.py", "a.py"),
            "[]a]": ("] a", "b"),
            "[a-c]x[!0-9]": ("axy", "dxy ax1"),
            "[a": ("[a", "a"),
            "?.py": ("a.py", "ab.py .py"),
            "d?a": ("dxa", "d/a"),
            "a*b*c": ("abc aXbYc", "aXbY ab/c"),
            "a**b": ("aXb", "a/b"),
            "\\*.py": ("*.py", "a.py"),
            "\\{a,b}": ("{a,b}", "a b"),
            "[&&|~]": ("& | ~", "a"),
        }
        for pattern, (fitting, others) in table.items():
            compiled = compile_glob(pattern)
            assert compiled is not None
            for path in fitting.split():
                with self.subTest(pattern, path=path):
                    self.assertTrue(compiled.fullmatch(path))
            for path in others.split():
                with self.subTest(pattern, path=path):
                    self.assertFalse(compiled.fullmatch(path))

    @full_size
    def test_a_pattern_that_can_match_nothing_is_none(self) -> None:
        for pattern in ("", "[z-a]", "a/[b-a]/c", "{a,b}" * 40, "a" * (MAX_CHARS + 1), "{a,b}" * 8 + "x" * 4000):
            with self.subTest(pattern[:20]):
                self.assertIsNone(compile_glob(pattern))
        with self.assertRaisesRegex(ValueError, "z-a"):
            path_regex("[z-a]")

    def test_a_hostile_pattern_takes_no_time(self) -> None:
        began = time.process_time()
        for pattern, path in {
            "*a" * 50 + "b": "a" * 250,
            "/".join(["**", "a*"] * 100) + "/b": "/".join("a" * 200),
            "{" * 2000 + "," * 2000: "a",
            "[" * 4000: "[",
        }.items():
            compiled = compile_glob(pattern)
            self.assertFalse(compiled and compiled.fullmatch(path))
        self.assertLess(time.process_time() - began, 20.0)  # exponential time would be years

    def test_a_star_is_as_greedy_as_it_must_be(self) -> None:
        for name in ("ab", "aab", "aabab", "abab", "b", "ba", "aXbYb"):
            with self.subTest(name):
                self.assertEqual(bool(re.fullmatch(path_regex("*a*b"), name)), bool(re.fullmatch("[^/]*a[^/]*b", name)))

    def test_braces_are_counted_on_the_way(self) -> None:
        self.assertEqual(expand_braces("{a,b}{c,d}", 4), ["ac", "ad", "bc", "bd"])
        self.assertIsNone(expand_braces("{a,b}{c,d}", 3))

    def test_a_walk_begins_below_the_folders_without_a_wildcard(self) -> None:
        self.assertEqual([static_folder(one) for one in ("a/b/*.py", "a/*/c", "*.py", "a/b")], ["a/b", "a", "", "a"])


if __name__ == "__main__":
    unittest.main()
