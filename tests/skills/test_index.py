"""Which skills are listed, from which places, and the diagnostics about the others."""

from __future__ import annotations

import json
import os
import time
import unittest
from pathlib import Path
from typing import Any

from openagentic_sdk.errors import FileRefusedError, SkillNotFoundError
from openagentic_sdk.skills.files import Bounds, read_bytes, tree_sha256
from openagentic_sdk.skills.index import SkillIndex, index_skills, load_skill
from openagentic_sdk.testing.clock import FakeClock
from tests.skills.support import ProjectTestCase

CASES = json.loads((Path(__file__).parents[2] / "fixtures" / "skills" / "index.json").read_text(encoding="utf-8"))


@unittest.skipUnless(hasattr(os, "mkfifo"), "this system has no FIFOs and no links to test with")
class CaseTest(ProjectTestCase):
    def check(self, case: dict[str, Any]) -> None:
        self.setUp()
        self.write(case["files"], case["links"], case["fifos"])
        args = dict(case["args"], home=self.project / "home")
        if "cwd" in args:
            args["cwd"] = self.project / args["cwd"]
        args["paths"] = [self.project / path for path in args.get("paths", [])]
        result = SkillIndex(self.project, **args).read()
        self.assertEqual([[skill.id, self.relative(skill.path)] for skill in result.skills], case["skills"])
        hidden = [[self.relative(pair.loser.path), self.relative(pair.winner.path)] for pair in result.shadowed]
        self.assertEqual(hidden, case["shadowed"])
        self.assertEqual([note.code for note in result.diagnostics], case["codes"])

    def relative(self, path: str) -> str:
        return os.path.relpath(path, self.project)

    def test_every_tree_lists_what_is_written_down(self) -> None:
        for case in CASES:
            with self.subTest(case["case"]):
                self.check(case)


class IndexTest(ProjectTestCase):
    def test_two_readings_of_one_tree_are_equal(self) -> None:
        for name in ("b", "a", "c"):
            self.skill(name)
        self.assertEqual(SkillIndex(self.project).read(), SkillIndex(self.project).read())

    def test_only_what_changed_is_read_again(self) -> None:
        self.skill("a")
        path = self.skill("b")
        index = SkillIndex(self.project, clock=FakeClock(now=time.time() + 60))
        first = index.read().skills
        path.write_text("---\nname: b\ndescription: other text\n---\n", encoding="utf-8")
        second = index.read().skills
        self.assertIs(second[0], first[0])
        self.assertEqual(second[1].summary, "other text")

    def test_new_and_removed_skills_are_noticed(self) -> None:
        path = self.skill("a")
        index = SkillIndex(self.project)
        index.read()
        path.unlink()
        self.skill("b")
        self.assertEqual([skill.name for skill in index.read().skills], ["b"])

    def test_the_number_of_folders_is_limited_and_the_limit_reported(self) -> None:
        for i in range(8):
            self.skill(f"s{i}")
        result = SkillIndex(self.project, bounds=Bounds(max_folders=4)).read()
        self.assertEqual(len(result.skills), 3)
        self.assertEqual([note.code for note in result.diagnostics], ["skill-left-out"])

    def test_a_file_of_more_than_a_mebibyte_is_left_out(self) -> None:
        self.skill("big", body="x" * (1024 * 1024))
        result = SkillIndex(self.project).read()
        self.assertEqual((result.skills, result.diagnostics[0].code), ((), "skill-left-out"))

    def test_a_skill_that_is_loaded_has_its_text(self) -> None:
        self.skill("a", body="# A\n\n## Checklist\n- one\n")
        (info,) = index_skills(project_dir=self.project)
        self.assertEqual(load_skill(info).checklist, ["one"])


class FindTest(ProjectTestCase):
    def test_names_folders_and_ids_lead_to_a_skill(self) -> None:
        self.write({".claude/skills/folder/SKILL.md": "---\nname: Declared Name\ndescription: d\n---\n"})
        index = SkillIndex(self.project)
        for name in (
            "Declared Name",
            "declared name",
            "DECLARED NAME",
            "folder",
            "project:declared name",
            "project:folder",
        ):
            with self.subTest(name):
                self.assertEqual(index.find(name).name, "Declared Name")

    def test_a_hidden_skill_answers_to_its_id(self) -> None:
        self.skill("a")
        self.write({"home/.claude/skills/a/SKILL.md": "---\nname: a\ndescription: the user's\n---\n"})
        index = SkillIndex(self.project, setting_sources=["user"], home=self.project / "home")
        self.assertEqual(index.find("a").summary, "the user's")
        self.assertEqual(index.find("project:a").scope, "project")

    def test_an_unknown_name_is_a_file_not_found_error_that_names_what_there_is(self) -> None:
        self.skill("a")
        with self.assertRaises(SkillNotFoundError) as caught:
            SkillIndex(self.project).find("b")
        self.assertIsInstance(caught.exception, FileNotFoundError)
        self.assertEqual(str(caught.exception), "unknown skill 'b': the skills are a")

    def test_the_error_for_an_unknown_name_stays_short(self) -> None:
        for i in range(60):
            self.skill(f"s{i:02}")
        with self.assertRaises(SkillNotFoundError) as caught:
            SkillIndex(self.project).find("b")
        self.assertEqual((len(caught.exception.known), caught.exception.known[-1]), (51, "..."))


class LeftOutTest(ProjectTestCase):
    @unittest.skipUnless(hasattr(os, "seteuid"), "this system has no users to test with")
    def test_a_folder_that_may_not_be_listed_is_named_each_time(self) -> None:
        self.skill("a")
        closed = self.project / ".claude/skills/a"
        self.parent.chmod(0o755)
        closed.chmod(0o700 if os.geteuid() == 0 else 0)
        user = os.geteuid()
        os.seteuid(65534 if user == 0 else user)
        try:
            index = SkillIndex(self.project, clock=FakeClock(time.time() + 60))
            codes = [[note.code for note in index.read().diagnostics] for _ in range(2)]
        finally:
            os.seteuid(user)
            closed.chmod(0o700)
        self.assertEqual(codes, [["skill-left-out"], ["skill-left-out"]])

    @unittest.skipUnless(hasattr(os, "seteuid"), "this system has no users to test with")
    def test_a_skill_that_may_not_be_read_is_named_in_one_sentence(self) -> None:
        file = self.skill("a")
        (skill,) = SkillIndex(self.project).read().skills
        self.parent.chmod(0o755)
        file.chmod(0)
        user = os.geteuid()
        os.seteuid(65534 if user == 0 else user)
        try:
            with self.assertRaisesRegex(
                PermissionError, f"^the skill 'a' cannot be read from {file}: Permission denied$"
            ):
                load_skill(skill)
        finally:
            os.seteuid(user)

    def test_a_path_that_is_not_a_folder_is_named(self) -> None:
        file = self.skill("a")
        for path in (file, self.project / "nowhere"):
            with self.subTest(path):
                (note,) = SkillIndex(None, paths=[path]).read().diagnostics
                self.assertEqual((note.code, note.path), ("skill-left-out", str(path)))


class FileTest(ProjectTestCase):
    def test_a_folder_is_not_a_file(self) -> None:
        with self.assertRaises(OSError):
            read_bytes(str(self.project), boundary=None, max_bytes=10)

    def test_a_file_of_exactly_the_limit_is_read(self) -> None:
        self.write({"a": "12345"})
        self.assertEqual(read_bytes(str(self.project / "a"), boundary=str(self.project), max_bytes=5), b"12345")
        with self.assertRaises(FileRefusedError):
            read_bytes(str(self.project / "a"), boundary=None, max_bytes=4)

    def test_the_digest_of_a_folder_changes_with_any_name_or_byte(self) -> None:
        self.write({"s/a": "1", "s/deep/b": "2"})
        digests = {tree_sha256(str(self.project / "s"))}
        self.write({"s/a": "3"})
        digests.add(tree_sha256(str(self.project / "s")))
        self.write({"s/.hidden/c": ""})
        digests.add(tree_sha256(str(self.project / "s")))
        self.write({}, links={"s/link": "a"})
        digests.add(tree_sha256(str(self.project / "s")))
        self.assertEqual(len(digests), 4)


if __name__ == "__main__":
    unittest.main()
