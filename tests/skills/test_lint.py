"""Findings of `skills check`: a code, a line and advice for each."""

from __future__ import annotations

import os

from openagentic_sdk.skills.lint import check_path
from tests.skills.support import ProjectTestCase

GOOD = "---\nname: {name}\ndescription: Does it. Use when asked.\n{more}---\n\n# Title\n\n{body}\n"


class LintTest(ProjectTestCase):
    def check(self, text: str, name: str = "x") -> list[tuple[str, int, bool]]:
        self.write({f"skills/{name}/SKILL.md": text})
        found, _ = check_path(self.project / "skills" / name)
        return [(note.code, note.line, note.is_error) for note in found]

    def test_a_good_skill_has_no_findings(self) -> None:
        self.assertEqual(self.check(GOOD.format(name="x", more="", body="Text.")), [])

    def test_every_finding(self) -> None:
        body = GOOD.format(name="x", more="", body="{}")
        for text, code, line, is_error in (
            ("# Early\n\nText.\n", "no-frontmatter", 1, False),
            ("---\ndescription: d\n---\nb\n", "name-missing", 1, True),
            ("---\nname: x\n---\nb\n", "description-missing", 1, True),
            ("---\nname: X\ndescription: d\n---\nb\n", "name-rule", 2, False),
            ("---\nname: y\ndescription: d\n---\nb\n", "name-differs-from-folder", 2, False),
            (f"---\nname: x\ndescription: {'d' * 1025}\n---\nb\n", "description-too-long", 3, False),
            (f"---\nname: x\ndescription: d\ncompatibility: {'d' * 501}\n---\nb\n", "compatibility-too-long", 4, False),
            ("---\nname: x\ndescription: d\nmetadata:\n  a: [b]\n---\nb\n", "metadata-kind", 4, False),
            ("---\nname: x\ndescription: d\ncolour: red\n---\nb\n", "field-unknown", 4, False),
            ("---\nname: x\ndescription: d\neffort: high\n---\nb\n", "field-without-effect", 4, False),
            ("---\nname: x\ndescription: d: e\n---\nb\n", "frontmatter-invalid", 3, False),
            ("---\nname: x\ndescription: d\nb\n", "frontmatter-unclosed", 1, True),
            ("---\nname: x\ndescription: d\n---\n", "body-missing", 5, False),
            (body.format("x\n" * 600), "body-too-long", 5, False),
            (body.format("See [it](references/no.md#part)."), "link-broken", 8, False),
            (body.format("Run npx -y some-tool now."), "unpinned-package", 8, False),
            (body.format("pip install requests"), "unpinned-package", 8, False),
            (body.format("a\u200bb"), "hidden-characters", 1, True),
        ):
            with self.subTest(code):
                self.assertIn((code, line, is_error), self.check(text))

    def test_valid_files_have_no_findings(self) -> None:
        self.write({"skills/x/references/yes.md": ""})
        for body in (
            "[a](references/yes.md#part) [b](https://x.y/z) [c](#here) [d](/abs) `[e](no.md)`",
            "npx -y some-tool@1.2.3, uvx tool==1, pip install requests==2.0, pip install -r requirements.txt",
            "```\n[code](no.md)\n```",
        ):
            with self.subTest(body):
                self.assertEqual(self.check(GOOD.format(name="x", more="", body=body)), [])

    def test_crlf_and_bom_are_not_hidden_characters(self) -> None:
        text = GOOD.format(name="x", more="", body="Text.").replace("\n", "\r\n")
        self.assertEqual(self.check("\ufeff" + text), [])

    def test_a_whole_tree_is_checked_with_its_hidden_folders(self) -> None:
        self.skill("a")
        self.write({".agents/skills/b/SKILL.md": "x", "deep/er/skill.md": "x", "node_modules/n/SKILL.md": "x"})
        found, count = check_path(self.project)
        self.assertEqual(count, 3)
        self.assertEqual(
            [(os.path.relpath(note.path, self.project), note.code) for note in found],
            [
                (".agents/skills/b/SKILL.md", "no-frontmatter"),
                ("deep/er/skill.md", "file-name"),
                ("deep/er/skill.md", "no-frontmatter"),
            ],
        )

    def test_nothing_to_check_is_an_error(self) -> None:
        with self.assertRaises(FileNotFoundError):
            check_path(self.project / "no")
