from __future__ import annotations

import asyncio
import fnmatch
import os
import random
import shutil
import subprocess
import time
import unittest
from pathlib import Path

from openagentic_sdk.cli.slash import completions
from openagentic_sdk.errors import ToolError, ToolInputError
from openagentic_sdk.tools.base import ToolContext
from openagentic_sdk.tools.edit import EditTool
from openagentic_sdk.tools.find.gitignore import IgnoreFile
from openagentic_sdk.tools.find.pattern import GlobPattern
from openagentic_sdk.tools.glob import GlobTool
from openagentic_sdk.tools.grep import GrepTool
from openagentic_sdk.tools.read import ReadTool
from openagentic_sdk.tools.skill_list import SkillListTool
from openagentic_sdk.tools.write import WriteTool
from tests.size import full_size, sized

from .support import Rules, ScratchCase, load_cases


def matches(pattern: str, path: str) -> bool:
    folder, _, name = path.rpartition("/")
    pick = GlobPattern(pattern).in_folder(f"{folder}/" if folder else "")
    return pick is not None and pick([name]) == [name]


class Patterns(ScratchCase):
    @full_size
    def test_the_table_of_patterns(self) -> None:
        """Each path alone in a separate tree, because a name cannot be a file and a folder in the same one."""
        for case in load_cases("globs.json"):
            for number, path in enumerate([*case["matches"], *case["not"]]):
                with self.subTest(pattern=case["pattern"], path=path):
                    self.write(f"tree/{path.lstrip('/')}")
                    found = self.call(GlobTool(), pattern=case["pattern"], root="tree")["matches"]
                    self.assertEqual(found, [f"tree/{path}"] if number < len(case["matches"]) else [])
                    shutil.rmtree(self.root / "tree")

    def test_no_pattern_takes_more_than_a_moment(self) -> None:
        name = "a" * 255
        began = time.process_time()
        for pattern in ("*a" * 100 + "b", "**/" * 50 + "b", "**/a*" * 40 + "/b", "[!b]*" * 60 + "b", "?*" * 100 + "b"):
            with self.subTest(pattern=pattern[:20]):
                self.assertFalse(matches(pattern, "a/" * 200 + name))
        for line in ("*a" * 100 + "b", "/**/a*" * 40 + "/b", "a*" * 120 + "b"):
            IgnoreFile(line).rules_in("a/" * 200, folders=False).verdicts([name] * 10)
        self.assertLess(time.process_time() - began, 5)

    def test_names_match_as_in_the_standard_library(self) -> None:
        chance = random.Random(7)
        for _ in range(sized(500, 1_500, 5_000)):
            pattern = "".join(chance.choices(["a", "b", "*", "?", "[ab]", "[!a]", "."], k=chance.randint(1, 7)))
            name = "".join(chance.choices("ab.", k=chance.randint(1, 8)))
            with self.subTest(pattern=pattern, name=name):
                expected = fnmatch.fnmatchcase(name, pattern)
                self.assertEqual(matches(pattern, name), expected if pattern != "**" else True)

    def test_unusable_patterns_are_refused(self) -> None:
        for pattern, error in (
            ("../x", ToolError),
            ("a/../../x", ToolError),
            ("/etc/*", ToolError),
            ("~/x", ToolError),
            ("{a,b}" * 9, ToolInputError),
            ("[z-a]x", ToolInputError),
            ("x" * 5_000, ToolInputError),
            ("", ToolInputError),
        ):
            with self.subTest(pattern=pattern[:10]), self.assertRaises(error):
                self.call(GlobTool(), pattern=pattern)

    def test_an_absolute_pattern_below_the_root_is_understood(self) -> None:
        self.write("src/a.py")
        self.assertEqual(self.call(GlobTool(), pattern=f"{self.root}/src/*.py")["matches"], ["src/a.py"])


class Trees(ScratchCase):
    def test_paths_are_relative_to_the_working_directory_and_sorted(self) -> None:
        self.write_all(["b.py", "a/z.py", "a.py", "a/b/y.py", "Z.py"])
        output = self.call(GlobTool(), pattern="**/*.py")
        self.assertEqual(output["matches"], ["Z.py", "a.py", "b.py", "a/z.py", "a/b/y.py"])
        self.assertEqual(self.call(GlobTool(), pattern="**/*.py", root="a")["matches"], ["a/z.py", "a/b/y.py"])
        outside = self.call(GlobTool(), ToolContext(cwd=str(self.root / "a/b")), pattern="*", root="..")
        self.assertEqual(outside["matches"], [f"{self.root}/a/z.py"])

    def test_the_files_changed_last_come_first_on_request(self) -> None:
        for number, name in enumerate(("a", "b", "c")):
            os.utime(self.write(name), (1_000, 1_000 + number))
        self.assertEqual(self.call(GlobTool(), pattern="*", sort="modified")["matches"], ["c", "b", "a"])

    def test_a_reached_limit_is_reported(self) -> None:
        self.write_all([f"f{n:02}" for n in range(20)])
        output = self.call(GlobTool(max_matches=5), pattern="*")
        self.assertEqual((len(output["matches"]), output["total"], output["truncated"]), (5, 20, True))
        self.assertIn("5 of 20 files shown", output["note"])
        self.assertEqual(len(self.call(GlobTool(max_matches=5), pattern="*", limit=3)["matches"]), 3)

    def test_hidden_and_ignored_files_and_types(self) -> None:
        self.write_all(["a.py", ".b.py", ".h/c.py", "out/d.py", "e.md", ".git/f.py"])
        self.write(".gitignore", "out\n")
        for input, expected in (
            ({}, ["a.py", ".b.py", ".h/c.py"]),
            ({"include_hidden": False}, ["a.py"]),
            ({"include_ignored": True}, ["a.py", ".b.py", ".h/c.py", "out/d.py"]),
        ):
            with self.subTest(input=input):
                found = self.call(GlobTool(), pattern="**/*", type="py", **input)["matches"]
                self.assertEqual(sorted(found), sorted(expected))
        with self.assertRaisesRegex(ToolInputError, "unknown file type 'cobol'"):
            self.call(GlobTool(), pattern="*", type="cobol")

    def test_half_of_a_surrogate_pair_is_neither_a_path_nor_a_query(self) -> None:
        self.write("a.txt", "tea")
        for tool, input in (
            (ReadTool(), {"file_path": "\ud800"}),
            (WriteTool(), {"file_path": "\ud800", "content": "x"}),
            (EditTool(), {"file_path": "\ud800", "old": "a", "new": "b"}),
            (GlobTool(), {"pattern": "*", "root": "\ud800"}),
            (GrepTool(), {"query": "tea", "root": "\ud800"}),
            (GrepTool(), {"query": "\ud800"}),
            (SkillListTool(), {"project_dir": "\ud800"}),
            (SkillListTool(), {"project_dir": "a\0"}),
        ):
            with (
                self.subTest(input),
                self.assertRaisesRegex(ToolError, "is not a (path|folder)|cannot be used as a regular"),
            ):
                self.call(tool, **input)

    def test_a_loop_of_links_does_not_end_a_search(self) -> None:
        self.write("a.txt", "tea")
        (self.root / "one").symlink_to("two")
        (self.root / "two").symlink_to("one")
        self.assertEqual(self.call(GlobTool(), pattern="**/*")["matches"], ["a.txt"])
        self.assertEqual(self.call(GrepTool(), query="tea")["total"], 1)
        self.assertEqual(completions("@", False, cwd=str(self.root), names=()), ["@a.txt", "@one", "@two"])

    def test_links_to_files_are_listed_and_links_to_folders_are_not_entered(self) -> None:
        self.write_all(["real/f", "real/loop/g"])
        (self.root / "to_file").symlink_to("real/f")
        (self.root / "to_folder").symlink_to("real")
        (self.root / "real/loop/up").symlink_to("../..")
        (self.root / "broken").symlink_to("nowhere")
        self.assertEqual(self.call(GlobTool(), pattern="**")["matches"], ["to_file", "real/f", "real/loop/g"])

    def test_names_that_are_not_valid_utf8_are_found(self) -> None:
        (Path(os.fsdecode(os.fsencode(self.root) + b"/\xff.py"))).touch()
        self.assertEqual(self.call(GlobTool(), pattern="*.py")["matches"], ["\udcff.py"])

    def test_a_root_that_is_not_a_folder_is_refused_and_unreadable_folders_are_skipped(self) -> None:
        self.write("f")
        with self.assertRaisesRegex(NotADirectoryError, "is not a folder"):
            self.call(GlobTool(), pattern="*", root="f")
        with self.assertRaisesRegex(FileNotFoundError, "the folder 'nothing' does not exist"):
            self.call(GlobTool(), pattern="*", root="nothing")
        if os.geteuid() != 0:
            self.write("closed/f").parent.chmod(0)
            self.addCleanup((self.root / "closed").chmod, 0o700)
            self.assertEqual(self.call(GlobTool(), pattern="**")["matches"], ["f"])

    def test_a_tree_deeper_than_a_path_may_be_long_ends(self) -> None:
        folder = os.open(self.root, os.O_RDONLY)
        for _ in range(40):
            os.mkdir("d" * 200, dir_fd=folder)
            inner = os.open("d" * 200, os.O_RDONLY, dir_fd=folder)
            os.close(folder)
            folder = inner
        os.close(folder)
        self.write("f")
        self.assertEqual(self.call(GlobTool(), pattern="**")["matches"], ["f"])
        subprocess.run(["rm", "-rf", str(self.root)], check=True)

    def test_files_that_rules_deny_are_not_shown(self) -> None:
        self.write_all(["a", "secret/b", "c"])
        asked: list[str] = []

        def shown(path: str) -> bool:
            asked.append(path)
            return "secret" not in path

        output = self.call(GlobTool(), self.context(rules=Rules(shows=shown)), pattern="**")
        self.assertEqual((output["matches"], output["total"]), (["a", "c"], 2))
        self.assertIn(f"{self.root}/secret/b", asked)
        self.assertEqual(len(self.call(GlobTool(), self.context(rules=Rules()), pattern="**")["matches"]), 3)

    def test_a_cancelled_call_ends(self) -> None:
        async def cancelled() -> None:
            ctx = self.context()
            ctx.cancelled.set()
            await GlobTool().run({"pattern": "**", "root": "/"}, ctx)

        with self.assertRaisesRegex(ToolError, "cancelled"):
            asyncio.run(cancelled())


class GitIgnore(ScratchCase):
    def make(self, case: dict[str, object], top: Path) -> None:
        for path, text in case["files"].items():  # type: ignore[attr-defined]
            file = top / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text.encode())
        for path in [*case["kept"], *case["left_out"]]:  # type: ignore[misc]
            file = top / path
            if not file.is_dir():
                file.parent.mkdir(parents=True, exist_ok=True)
                file.touch()

    def test_the_table_of_gitignore_files(self) -> None:
        for number, case in enumerate(load_cases("gitignores.json")):
            with self.subTest(case["name"]):
                top = self.root / str(number)
                (top / ".git").mkdir(parents=True)
                self.make({**case, "left_out": [p for p in case["left_out"] if not _is_folder_of(p, case)]}, top)
                found = set(_found(top))
                self.assertEqual(found.intersection(case["kept"]), set(case["kept"]))
                self.assertFalse(found.intersection(case["left_out"]))

    @full_size
    @unittest.skipUnless(shutil.which("git"), "git is not installed")
    def test_the_same_files_as_git(self) -> None:
        for number, case in enumerate(load_cases("gitignores.json")):
            if "git_differs" in case:
                continue
            with self.subTest(case["name"]):
                top = self.root / str(number)
                _git_init(top)
                self.make({**case, "left_out": [p for p in case["left_out"] if not _is_folder_of(p, case)]}, top)
                self.assertEqual(_found(top), _git_files(top))

    @unittest.skipUnless(shutil.which("git"), "git is not installed")
    def test_the_same_files_as_git_for_patterns_made_by_chance(self) -> None:
        chance = random.Random(8)
        names = ["a", "b", "c", "ab", "abc", "a.b"]
        pieces = ["a", "b", "c", "ab", "*", "**", "?", "[ab]", "[!a]", "a*", "*b", "*.b", "a*b*", "\\a"]
        for number in range(sized(8, 20, 300)):
            top = self.root / str(number)
            _git_init(top)
            for _ in range(25):
                folder = top / "/".join(chance.choices(names, k=chance.randint(0, 3)))
                try:
                    folder.mkdir(parents=True, exist_ok=True)
                    (folder / chance.choice(names)).touch()
                except OSError:
                    continue  # a file or folder of this name already exists
            for folder in (top, *(path for path in sorted(top.iterdir()) if path.is_dir() and path.name != ".git")):
                if folder == top or chance.random() < 0.3:
                    lines = [_pattern(chance, pieces) for _ in range(chance.randint(1, 4))]
                    (folder / ".gitignore").write_text("\n".join(lines) + "\n")
            with self.subTest(patterns={str(p): p.read_text() for p in top.rglob(".gitignore")}):
                self.assertEqual(_found(top), _git_files(top))

    def test_a_subfolder_obeys_the_files_above_it(self) -> None:
        self.write(".gitignore", "*.log\n/src/gen\n")
        self.write_all(["src/a.py", "src/a.log", "src/gen/b.py", "src/x/gen/c.py"])
        self.assertEqual(self.call(GlobTool(), pattern="**", root="src")["matches"], ["src/a.py", "src/x/gen/c.py"])

    def test_a_gitignore_that_is_a_link_or_a_pipe_is_not_read(self) -> None:
        self.write("patterns", "*.py\n")
        self.write("a.py")
        (self.root / ".gitignore").symlink_to("patterns")
        os.mkfifo(self.write("x/b.py").parent / ".gitignore")
        self.assertIn("a.py", self.call(GlobTool(), pattern="**/*.py")["matches"])


def _is_folder_of(path: str, case: dict[str, list[str]]) -> bool:
    return any(other.startswith(path + "/") for other in [*case["kept"], *case["left_out"]])


def _pattern(chance: random.Random, pieces: list[str]) -> str:
    body = "/".join(chance.choices(pieces, k=chance.choice([1, 1, 2, 3])))
    return chance.choice(["", "", "", "!"]) + chance.choice(["", "", "/"]) + body + chance.choice(["", "", "/"])


def _found(top: Path) -> list[str]:
    output = GlobTool(max_matches=10_000).run_sync({"pattern": "**"}, ToolContext(cwd=str(top)))
    return sorted(output["matches"])


def _git_init(top: Path) -> None:
    subprocess.run(["git", "init", "-q", str(top)], check=True, env={**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"})


def _git_files(top: Path) -> list[str]:
    command = ["git", "-C", str(top), "ls-files", "--others", "--exclude-standard", "-z"]
    done = subprocess.run(
        command, check=True, capture_output=True, env={**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"}
    )
    return sorted(os.fsdecode(name) for name in done.stdout.split(b"\0") if name)
