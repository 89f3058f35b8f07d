"""Decisions of the gate on paths and links: a table of cases, races, and the syntax of patterns."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any

from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.permissions.paths import LinkFollower, compile_pattern, is_inside, pattern_problem
from tests.size import full_size

from .workspace import Person, WorkspaceTestCase, fixture


class PathTable(WorkspaceTestCase):
    @full_size
    def test_every_path_of_the_table_gets_its_decision(self) -> None:
        count = 0
        for group in fixture("paths.json"):
            policy = self.with_places(group["policy"])
            for expected, path in group["cases"]:
                count += 1
                key = {"Grep": "root", "Glob": "pattern"}.get(group["tool"], "file_path")
                with self.subTest(about=group["about"], path=path):
                    self.assertEqual(self.outcome(policy, group["tool"], {key: self.with_places(path)}), expected)
        self.assertGreaterEqual(count, 60)

    def with_places(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self.with_places(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.with_places(inner) for inner in value]
        return value.replace("{root}", str(self.root)).replace("{outside}", str(self.outside))


class Races(WorkspaceTestCase):
    def test_a_link_that_is_swapped_after_the_approval_leads_nowhere(self) -> None:
        gate = self.gate()
        context = {"cwd": str(self.root), "tool_use_id": "t"}
        link = self.root / "note"
        link.symlink_to("README.md")
        self.assertTrue(asyncio.run(gate.approve("Read", {"file_path": "note"}, context)))
        link.unlink()
        link.symlink_to(self.outside / "outside.txt")
        self.assertFalse(asyncio.run(gate.permits_path(str(link), False, context)))
        self.assertFalse(asyncio.run(gate.permits_path(os.path.realpath(link), False, context)))

    def test_a_path_approved_for_a_call_is_permitted_to_that_call_only(self) -> None:
        gate = self.gate(Person("yes"))
        path = str(self.outside / "outside.txt")
        context = {"cwd": str(self.root), "tool_use_id": "t"}
        self.assertTrue(asyncio.run(gate.approve("Read", {"file_path": path}, context)))
        self.assertTrue(asyncio.run(gate.permits_path(path, False, context)))
        self.assertFalse(asyncio.run(gate.permits_path(path, True, context)))
        self.assertFalse(asyncio.run(gate.permits_path(path, False, {**context, "tool_use_id": "u"})))

    def test_an_approved_search_may_show_what_lies_below_its_folder_but_nothing_that_rules_keep_back(self) -> None:
        (self.outside / "more").mkdir()
        for name in ("plain", ".env", "secret.pem"):
            (self.outside / "more" / name).write_text("x", encoding="utf-8")
        gate = self.gate(Person("yes"), deny=["Read(//**/*.pem)"], ask=["Read(//**/.env)"])
        context = {"cwd": str(self.root), "tool_use_id": "t"}
        self.assertTrue(asyncio.run(gate.approve("Grep", {"query": "x", "root": str(self.outside / "more")}, context)))
        for name, expected in (
            ("more/plain", True),
            ("more/.env", False),
            ("more/secret.pem", False),
            ("outside.txt", False),
        ):
            with self.subTest(name):
                self.assertIs(asyncio.run(gate.permits_path(str(self.outside / name), False, context)), expected)

    def test_a_workspace_folder_that_becomes_a_link_does_not_move_the_workspace(self) -> None:
        gate = self.gate()
        context = {"cwd": str(self.root), "workspace_roots": (str(self.root), str(self.root / "other"))}
        self.assertTrue(asyncio.run(gate.approve("Read", {"file_path": "other/b.py"}, context)))
        os.rename(self.root / "other", self.root / "away")
        (self.root / "other").symlink_to("/etc")
        self.assertFalse(asyncio.run(gate.approve("Read", {"file_path": "other/passwd"}, context)))


class Filter(WorkspaceTestCase):
    def test_there_is_no_filter_when_no_rule_could_bite(self) -> None:
        gate = self.gate(deny=["Bash(rm:*)", "Edit(src/**)"], allow=["Read(//etc/**)"])
        self.assertIsNone(gate.read_filter(str(self.root), (str(self.root),)))

    def test_the_filter_hides_what_read_rules_keep_back_under_any_name(self) -> None:
        gate = self.gate(deny=["Read(./secrets/**)"], ask=["Read(.env)"])
        permits = gate.read_filter(str(self.root), (str(self.root),))
        assert permits is not None
        cases = {
            "src/a.py": True,
            "secrets/key": False,
            "link_secret": False,
            "link_link": False,
            "docs/deep/.env": False,
            "SECRETS/key": False,
            str(self.root / "secrets" / "key"): False,
            str(self.root / "README.md"): True,
        }
        for path, expected in cases.items():
            with self.subTest(path):
                self.assertIs(permits(path), expected)

    def test_a_narrowed_gate_filters_for_every_layer(self) -> None:
        gate = self.gate(deny=["Read(.env)"]).narrowed(deny=["Read(src/**)"])
        permits = gate.read_filter(str(self.root), (str(self.root),))
        assert permits is not None
        self.assertEqual([permits(path) for path in (".env", "src/a.py", "README.md")], [False, False, True])


class Following(WorkspaceTestCase):
    def test_every_name_on_the_way_is_known(self) -> None:
        places = LinkFollower().follow("link_link", str(self.root))
        self.assertEqual(places.written, str(self.root / "link_link"))
        self.assertEqual(places.real, str(self.root / "secrets" / "key"))
        self.assertIn(str(self.root / "link_secret"), places.all)

    def test_it_ends_where_the_kernel_ends(self) -> None:
        paths = (
            *("src/a.py", "link_dir/a.py", "link_dir/../README.md", "link_out/../etc/passwd", "./src/.././src/a.py"),
            *("missing/../README.md", "link_link", "..", "/", "///etc//passwd", "link_git/hooks", "src/..", "link_out"),
        )
        for folder in ("", "link_dir", "link_out", "src/../docs", "missing/deep"):
            for path in paths:
                cwd = os.path.join(self.root, folder)
                with self.subTest(path, folder=folder):
                    self.assertEqual(LinkFollower().follow(path, cwd).real, os.path.realpath(os.path.join(cwd, path)))

    def test_the_root_is_a_folder_like_any_other(self) -> None:
        self.assertEqual(LinkFollower().follow("etc/../tmp", "/").all, ("/tmp",))

    def test_a_loop_is_a_problem_and_not_a_hang(self) -> None:
        (self.root / "to_loop").symlink_to("loop")
        places = LinkFollower().follow("to_loop/x", str(self.root))
        self.assertIn("symbolic link loop", places.problem or "")
        self.assertIn(str(self.root / "loop" / "x"), places.all, "a rule must be able to name it")
        person = Person("always")
        self.approve(self.gate(person), "Read", {"file_path": "loop/x"})
        self.assertEqual(person.asked[0].choices, ("yes", "no"), "no rule can cover it")

    def test_inside_means_whole_names(self) -> None:
        for path, expected in (("/w", True), ("/w/a", True), ("/wa", False), ("/", False), ("/a/w", False)):
            self.assertIs(is_inside(path, ("/w",)), expected)
        self.assertTrue(is_inside("/anything", ("/",)))


class Patterns(unittest.TestCase):
    def test_patterns_have_their_meaning_in_gitignore(self) -> None:
        cases = [
            ("*.py", "/w/a.py", True),
            ("*.py", "/w/x/a.py", True),
            ("*.py", "/w/a.pyc", False),
            ("src/*.py", "/w/src/a.py", True),
            ("src/*.py", "/w/src/x/a.py", False),
            ("src/*.py", "/w/x/src/a.py", False),
            ("src/**", "/w/src/x/y", True),
            ("src/", "/w/src/x", True),
            ("**/test", "/w/a/b/test", True),
            ("**/test", "/w/test", True),
            ("a/**/z", "/w/a/z", True),
            ("a/**/z", "/w/a/b/c/z", True),
            ("a/**/z", "/w/a/bz", False),
            ("?.py", "/w/a.py", True),
            ("?.py", "/w/ab.py", False),
            ("[ab].py", "/w/b.py", True),
            ("[!ab].py", "/w/b.py", False),
            ("[!ab]x", "/w//x", False),
            ("\\*.py", "/w/*.py", True),
            ("\\*.py", "/w/a.py", False),
            ("a*b*c", "/w/aXbYc", True),
            ("a*b*c", "/w/aXbY", False),
            ("a**b", "/w/aXb", True),
            ("a**b", "/w/a/b", False),
            ("//w/a", "/w/a", True),
            ("/x", "/root/x", True),
            ("./x", "/w/x", True),
            ("./x", "/w/y/x", False),
            ("../x", "/x", True),
            ("**", "/w/anything/at/all", True),
            ("//**", "/any", True),
            (".", "/w/.", True),
            ("./", "/w", True),
            ("./", "/w/x/y", True),
            ("./", "/wx", False),
            ("..", "/x", True),
            ("src/**", "/w/src", True),
            ("src/**", "/w/srcx", False),
            ("//", "/any/path", True),
        ]
        for pattern, path, expected in cases:
            with self.subTest(pattern=pattern, path=path):
                regex = compile_pattern(pattern, "/w", "/root", wide=False)
                self.assertIs(regex.fullmatch(path) is not None, expected)

    def test_paths_that_cannot_be_understood_are_reported(self) -> None:
        for pattern in ("!x", "a/../b", "*.{py,js}", "[z-a]", "**/**/**/**/**/x", "a\0b"):
            with self.subTest(pattern):
                self.assertIsNotNone(pattern_problem(pattern))

    def test_a_hostile_pattern_takes_no_time(self) -> None:
        regex = compile_pattern("*a*a*a*a*a*a*a*a*a*a*a*a*b", "/w", "/w", wide=True)
        began = time.perf_counter()
        self.assertIsNone(regex.fullmatch("/w/" + "a" * 250))
        self.assertLess(time.perf_counter() - began, 60)

    def test_letters_that_look_the_same_are_the_same(self) -> None:
        gate = PermissionGate(permission_mode="bypass", deny=["Read(caf\u00e9.txt)"], cwd="/w")
        self.assertFalse(asyncio.run(gate.approve("Read", {"file_path": "/w/cafe\u0301.txt"}, {"cwd": "/w"})))

    def test_they_are_the_same_in_a_rule_and_in_the_name_of_the_workspace(self) -> None:
        gate = PermissionGate(permission_mode="bypass", deny=["Read(cafe\u0301.txt)", "Read(secret)"])
        for cwd, name in (("/w", "caf\u00e9.txt"), ("/cafe\u0301", "secret"), ("/caf\u00e9", "secret")):
            with self.subTest(cwd=ascii(cwd)):
                self.assertFalse(asyncio.run(gate.approve("Read", {"file_path": f"{cwd}/{name}"}, {"cwd": cwd})))

    @full_size
    def test_rules_hold_for_a_process_that_does_not_decode_names_as_utf_8(self) -> None:
        script = """if True:
            import os, sys
            from openagentic_sdk.permissions.gate import PermissionGate
            root = os.getcwd()
            gate = PermissionGate(permission_mode="bypass", deny=["Read(caf\\u00e9.txt)", "Read(d\\u00e9/**)"])
            context = {"cwd": root, "effect": "read"}
            names = [name for folder, _, files in os.walk(root) for name in (os.path.join(folder, one) for one in files)]
            permits = gate.read_filter(root)
            for name in names:
                print(gate.verdict("Read", {"file_path": name}, context).outcome, permits(name))
            print(gate.verdict("Bash", {"command": "cat caf*"}, {"cwd": root, "effect": "unsafe"}).outcome)
            print(len(gate.file_policy("ls", {"cwd": root}, asked=False).hidden))
        """
        with tempfile.TemporaryDirectory() as folder:
            place = os.fsencode(folder) + "/h\u00e9".encode()
            os.makedirs(place + "/d\u00e9".encode())
            for name in ("caf\u00e9.txt", "d\u00e9/key"):
                Path(os.fsdecode(place + b"/" + name.encode())).touch()
            result = subprocess.run(
                [sys.executable, "-c", script],
                cwd=place,
                env={
                    "PYTHONPATH": str(Path(__file__).parents[2]),
                    "LC_ALL": "C",
                    "PYTHONUTF8": "0",
                    "PYTHONCOERCECLOCALE": "0",
                },
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
        self.assertEqual(result.stdout.split("\n")[:4], ["deny False", "deny False", "deny", "2"], result.stderr)


if __name__ == "__main__":
    unittest.main()
