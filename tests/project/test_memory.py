"""Which parts of CLAUDE.md, rules and imports reach a run, and in which order."""

from __future__ import annotations

import os
import time
from typing import Any

from openagentic_sdk.parts.project.claude import claude_folders, find_project_root
from openagentic_sdk.parts.project.memory import ProjectMemory, import_targets, read_memory, without_comments
from openagentic_sdk.parts.project.settings import read_settings
from tests.skills.support import ProjectTestCase


class MemoryTestCase(ProjectTestCase):
    def read(self, *, cwd: str = ".", sources: tuple[str, ...] = ("project",), **settings: Any) -> ProjectMemory:
        folders = claude_folders(
            self.project,
            cwd=self.project / cwd,
            setting_sources=sources,
            home=self.project / "home",
            managed_dir=self.project / "managed",
        )
        return read_memory(folders, **settings)

    def names(self, memory: ProjectMemory) -> list[str]:
        return [os.path.relpath(file.path, self.project) for file in memory.files]


class OrderTest(MemoryTestCase):
    def test_nothing_is_read_unless_the_settings_ask_for_it(self) -> None:
        self.write({"CLAUDE.md": "p", "home/.claude/CLAUDE.md": "u", "managed/CLAUDE.md": "m", "CLAUDE.local.md": "l"})
        for sources, expected in (
            ((), []),
            (("project",), ["managed/CLAUDE.md", "CLAUDE.md"]),
            (("user",), ["managed/CLAUDE.md", "home/.claude/CLAUDE.md"]),
            (("local",), ["managed/CLAUDE.md", "CLAUDE.local.md"]),
        ):
            with self.subTest(sources):
                self.assertEqual(self.names(self.read(sources=sources)), expected)

    def test_the_nearest_file_comes_last(self) -> None:
        self.write(
            {
                "managed/CLAUDE.md": "m", "home/.claude/CLAUDE.md": "u", "home/.claude/rules/r.md": "ur", "CLAUDE.md": "1",
                ".claude/CLAUDE.md": "2", ".claude/rules/b.md": "3", ".claude/rules/a/z.md": "4", "CLAUDE.local.md": "5",
                "a/CLAUDE.md": "6", "a/b/CLAUDE.md": "7", "a/b/CLAUDE.local.md": "8", "other/CLAUDE.md": "no",
            }
        )  # fmt: skip
        self.assertEqual(
            self.names(self.read(cwd="a/b", sources=("user", "project", "local"))),
            [
                "managed/CLAUDE.md", "home/.claude/CLAUDE.md", "home/.claude/rules/r.md", "CLAUDE.md", ".claude/CLAUDE.md",
                ".claude/rules/b.md", ".claude/rules/a/z.md", "CLAUDE.local.md", "a/CLAUDE.md", "a/b/CLAUDE.md",
                "a/b/CLAUDE.local.md",
            ],
        )  # fmt: skip

    def test_agents_md_counts_when_there_is_no_claude_md(self) -> None:
        self.write({"AGENTS.md": "a", "sub/AGENTS.md": "b"})
        self.assertEqual(self.names(self.read(cwd="sub")), ["AGENTS.md", "sub/AGENTS.md"])
        self.assertEqual(self.names(self.read(agents_md="never")), [])
        self.write({"sub/CLAUDE.md": "c"})
        self.assertEqual(self.names(self.read(cwd="sub")), ["sub/CLAUDE.md"])
        self.assertEqual(
            self.names(self.read(cwd="sub", agents_md="both")), ["AGENTS.md", "sub/CLAUDE.md", "sub/AGENTS.md"]
        )

    def test_one_file_with_two_names_is_read_once(self) -> None:
        self.write({"AGENTS.md": "a"}, links={"CLAUDE.md": "AGENTS.md"})
        self.assertEqual(self.names(self.read(agents_md="both")), ["CLAUDE.md"])

    def test_a_link_that_leads_outside_is_left_out_and_named(self) -> None:
        self.write({}, links={"CLAUDE.md": "../outside/x/SKILL.md"})
        memory = self.read()
        self.assertEqual((self.names(memory), [note.code for note in memory.diagnostics]), ([], ["memory-left-out"]))

    def test_a_file_that_is_too_large_or_binary_is_left_out_and_named(self) -> None:
        self.write({"CLAUDE.md": "x" * 300_000, ".claude/CLAUDE.md": "a\0b"})
        memory = self.read()
        self.assertEqual((self.names(memory), len(memory.diagnostics)), ([], 2))


class ImportTest(MemoryTestCase):
    def test_imports_follow_the_file_that_names_them(self) -> None:
        self.write(
            {
                "CLAUDE.md": "See @docs/a.md and @docs/b.md.\n",
                "docs/a.md": "A @c.md",
                "docs/b.md": "B",
                "docs/c.md": "C",
            }
        )
        memory = self.read()
        self.assertEqual(self.names(memory), ["CLAUDE.md", "docs/a.md", "docs/c.md", "docs/b.md"])

    def test_code_people_and_missing_files_are_not_imports(self) -> None:
        self.write({"a.md": "", "b": ""})
        text = "`@a.md` me@a.md @missing.md\n```\n@a.md\n```\n@@a.md\n~~~\n@b\n~~~\n``@b``\n"
        self.assertEqual(import_targets(text, str(self.project)), [])
        self.assertEqual(
            import_targets("(@a.md), @b.", str(self.project)), [str(self.project / "a.md"), str(self.project / "b")]
        )

    def test_a_circle_of_imports_ends(self) -> None:
        self.write({"CLAUDE.md": "@a.md", "a.md": "@b.md", "b.md": "@a.md @CLAUDE.md"})
        self.assertEqual(self.names(self.read()), ["CLAUDE.md", "a.md", "b.md"])

    def test_the_fifth_hop_is_left_out_and_named(self) -> None:
        self.write({"CLAUDE.md": "@1.md", **{f"{i}.md": f"@{i + 1}.md" for i in range(1, 6)}})
        memory = self.read()
        self.assertEqual(self.names(memory), ["CLAUDE.md", "1.md", "2.md", "3.md", "4.md"])
        self.assertIn("5.md", memory.diagnostics[0].path)

    def test_excluded_files_are_not_read_whatever_names_them_except_as_managed_memory(self) -> None:
        self.write(
            {
                "managed/CLAUDE.md": "m", "home/.claude/CLAUDE.md": "u @notes.md", "home/.claude/notes.md": "n",
                "home/.claude/rules/r.md": "ur", "CLAUDE.md": "p @../outside/x/SKILL.md", "CLAUDE.local.md": "l",
                ".claude/rules/a.md": "a",
            }
        )  # fmt: skip
        managed, user, project = "managed/CLAUDE.md", "home/.claude/CLAUDE.md", "CLAUDE.md"
        notes, user_rule, outside = "home/.claude/notes.md", "home/.claude/rules/r.md", "../outside/x/SKILL.md"
        own = [".claude/rules/a.md", "CLAUDE.local.md"]
        for exclude, expected in (
            ({"excludes": ["**"]}, [managed]),
            ({"excludes": ["**/home/.claude/CLAUDE.md"]}, [managed, user_rule, project, outside, *own]),
            ({"excludes": ["**/notes.md", "**/outside/**"]}, [managed, user, user_rule, project, *own]),
            ({"own_excludes": ["**"]}, [managed, user, notes, user_rule]),
            ({"own_excludes": ["**/SKILL.md"]}, [managed, user, notes, user_rule, project, *own]),
        ):
            with self.subTest(exclude):
                sources = ("user", "project", "local")
                memory = self.read(sources=sources, allow_outside_imports=True, **exclude)
                self.assertEqual(self.names(memory), expected)

    def test_an_untrusted_project_excludes_no_memory_but_its_own(self) -> None:
        self.write(
            {
                ".claude/settings.json": '{"claudeMdExcludes": ["/a"]}',
                "home/.claude/settings.json": '{"claudeMdExcludes": ["/b"]}',
            }
        )
        folders = claude_folders(self.project, setting_sources=("user", "project"), home=self.project / "home")
        for trusted, excludes in ((True, (("/a", "/b"), ())), (False, (("/b",), ("/a",)))):
            settings = read_settings(folders, trusted=trusted)
            self.assertEqual((settings.memory_excludes, settings.own_excludes), excludes)

    def test_imports_from_outside_of_the_project_need_permission(self) -> None:
        self.write({"CLAUDE.md": "@../outside/x/SKILL.md", "home/.claude/CLAUDE.md": "@../../../outside/x/SKILL.md"})
        self.assertEqual(self.names(self.read()), ["CLAUDE.md"])
        self.assertEqual(self.names(self.read(allow_outside_imports=True)), ["CLAUDE.md", "../outside/x/SKILL.md"])
        self.assertIn("../outside/x/SKILL.md", self.names(self.read(sources=("user",))))


class TextTest(MemoryTestCase):
    def test_comments_on_lines_of_their_own_are_removed(self) -> None:
        for text, expected in (
            ("a\n<!-- x -->\nb", "a\nb"),
            ("a\n<!-- x\ny\n--> z\nb", "a\n z\nb"),
            ("a <!-- inline --> b", "a <!-- inline --> b"),
            ("```\n<!-- code -->\n```", "```\n<!-- code -->\n```"),
            ("<!-- never closed\na", "<!-- never closed\na"),
            ("<!---->a", "a"),
        ):
            with self.subTest(text):
                self.assertEqual(without_comments(text), expected)

    def test_hidden_characters_are_removed(self) -> None:
        self.write({"CLAUDE.md": "a\u202eb\U000e0041"})
        self.assertEqual(self.read().files[0].text, "ab")

    def test_a_fence_inside_of_a_comment_begins_no_code(self) -> None:
        for text, expected in (
            ("<!--\n```\n-->\na\n<!-- c -->\nb", "a\nb"),
            ("<!-- a --> <!-- b\nc --> <!-- d -->\ne", "e"),
            ("<!-- a --> b <!-- c -->", " b <!-- c -->"),
            ("```a``` b\n<!-- c -->", "```a``` b"),
        ):
            with self.subTest(text):
                self.assertEqual(without_comments(text), expected)

    def test_many_comments_that_never_end_take_one_pass(self) -> None:
        began = time.process_time()
        without_comments("<!--\n" * 50_000)
        self.assertLess(time.process_time() - began, 20.0)


class RuleTest(MemoryTestCase):
    def test_rules_with_paths_apply_to_files_that_fit(self) -> None:
        self.write({".claude/rules/py.md": '---\npaths: ["src/**/*.{py,pyi}", tests/*]\n---\nType it.\n'})
        memory = self.read()
        self.assertEqual(memory.files, ())
        for path, applies in (
            ("src/a/b.py", True),
            ("src/b.pyi", True),
            ("tests/x", True),
            ("b.py", False),
            ("../src/a.py", False),
        ):
            with self.subTest(path):
                self.assertEqual(bool(memory.rules_for(str(self.project / path))), applies)

    def test_a_brace_bomb_fits_nothing_and_costs_nothing(self) -> None:
        bomb = "{a,b}" * 40
        self.write({".claude/rules/bomb.md": f"---\npaths: ['{bomb}']\n---\nBoom.\n"})
        memory = self.read()
        self.assertEqual((memory.rules_for(str(self.project / "a")), len(memory.diagnostics)), ([], 1))


class RootTest(MemoryTestCase):
    def test_the_root_is_the_nearest_folder_with_git(self) -> None:
        self.write({".git/HEAD": "", "a/b/c": "", "sub/.git": "gitdir: elsewhere", "sub/d/e": ""})
        self.assertEqual(find_project_root(self.project / "a/b"), str(self.project))
        self.assertEqual(find_project_root(self.project / "sub/d"), str(self.project / "sub"))

    def test_without_git_it_is_the_folder_itself(self) -> None:
        self.assertEqual(find_project_root(self.project), str(self.project))
