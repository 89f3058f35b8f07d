"""`openagentic-sdk skills ...` as a person sees it."""

from __future__ import annotations

import contextlib
import io
import json
import os
from typing import Any

from openagentic_sdk.cli.main import main
from openagentic_sdk.parts.project.trust import TrustStore
from tests.skills.support import ProjectTestCase


class CliTest(ProjectTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.write({".git/HEAD": "", "sub/here": ""})
        self.skill("a", allowed_tools="Read", body="# A\n\n## Checklist\n- one\n\x1b[31m\n")

    def skills(self, *args: str, cwd: str = ".") -> tuple[int, str]:
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
            code = main(["skills", *args, "--cwd", str(self.project / cwd), "--project-only"])
        return code, out.getvalue()

    def test_list_shows_scope_and_summary(self) -> None:
        self.assertEqual(self.skills("list", cwd="sub"), (0, "a [project]  About a.\n"))

    def test_list_finds_words_and_reports_an_empty_result(self) -> None:
        self.assertEqual(self.skills("list", "ABOUT", "a"), (0, "a [project]  About a.\n"))
        self.assertEqual(self.skills("list", "nothing"), (0, "no skills\n"))

    def test_list_as_json_is_an_object_per_line(self) -> None:
        code, out = self.skills("list", "--json")
        (row,) = [json.loads(line) for line in out.splitlines()]
        self.assertEqual((code, row["name"], row["scope"]), (0, "a", "project"))

    def test_every_action_prints_the_same_as_json(self) -> None:
        self.write({"sub/.claude/skills/a/SKILL.md": "---\nname: a\ndescription: nearer\n---\n"})
        shown = self.json("show", "project:a", cwd="sub")
        self.assertEqual((shown["summary"], shown["checklist"], shown["allowed_tools"]), ("nearer", [], []))
        why = self.json("why", "a", cwd="sub")
        self.assertEqual(
            (why["winner"]["summary"], [row["summary"] for row in why["hidden"]]), ("nearer", ["About a."])
        )
        sources = self.json("sources")
        self.assertFalse(sources["trust"]["is_trusted"])
        self.assertIn("skill", [file["kind"] for file in sources["files"]])
        code, out = self.skills("check", "--json")
        findings = [json.loads(line) for line in out.splitlines()]
        self.assertEqual((code, [each["code"] for each in findings if each["is_error"]]), (1, ["hidden-characters"]))

    def json(self, *args: str, cwd: str = ".") -> dict[str, Any]:
        code, out = self.skills(*args, "--json", cwd=cwd)
        self.assertEqual((code, out.count("\n")), (0, 1))
        found: dict[str, Any] = json.loads(out)
        return found

    def test_list_names_what_is_hidden_or_left_out(self) -> None:
        self.write(
            {".agents/skills/a/SKILL.md": "---\nname: a\ndescription: d\n---\n", ".claude/skills/b/SKILL.md": "\0"}
        )
        out = self.skills("list")[1]
        self.assertIn("hidden: ", out)
        self.assertIn("is a binary file [skill-left-out]", out)

    def test_show_prints_the_text_without_terminal_commands(self) -> None:
        code, out = self.skills("show", "a")
        self.assertEqual(code, 0)
        self.assertIn("checklist      1 item\n", out)
        self.assertIn("## Checklist\n- one", out)
        self.assertNotIn("\x1b", out)

    def test_an_unknown_name_is_one_sentence_and_exit_code_1(self) -> None:
        for action in ("show", "why"):
            code, out = self.skills(action, "nope")
            self.assertEqual((code, out.count("\n")), (1, 1))
            self.assertIn("unknown skill 'nope': the skills are a", out)

    def test_why_names_winner_loser_and_reason(self) -> None:
        self.write({"sub/.claude/skills/a/SKILL.md": "---\nname: a\ndescription: nearer\n---\n"})
        code, out = self.skills("why", "a", cwd="sub")
        lines = out.splitlines()
        self.assertEqual(code, 0)
        self.assertEqual(lines[0], f"a is {self.project}/sub/.claude/skills/a/SKILL.md [project]")
        self.assertEqual(lines[1], f"hidden: {self.project}/.claude/skills/a/SKILL.md [project]")
        self.assertIn(f"because {self.project}/sub/.claude/skills comes before", lines[2])

    def test_check_fails_for_errors_and_with_strict_for_warnings_too(self) -> None:
        self.assertEqual(self.skills("check")[0], 1)  # the body has an escape character
        self.skill("a")
        self.assertEqual(self.skills("check"), (0, "1 skill: 0 errors, 0 warnings\n"))
        self.skill("A")
        code, out = self.skills("check")
        self.assertEqual(code, 0)
        self.assertIn("SKILL.md:2: warning: the name 'A' has capital letters: use lower case [name-rule]", out)
        self.assertEqual(self.skills("check", "--strict")[0], 1)

    def test_sources_names_every_file_and_whether_the_project_is_trusted(self) -> None:
        self.write({"CLAUDE.md": "m"})
        home = os.environ.get("OPENAGENTIC_SDK_HOME")
        os.environ["OPENAGENTIC_SDK_HOME"] = str(self.parent / "sdk")
        self.addCleanup(
            lambda: (
                os.environ.update({"OPENAGENTIC_SDK_HOME": home}) if home else os.environ.pop("OPENAGENTIC_SDK_HOME")
            )
        )
        code, out = self.skills("sources")
        self.assertEqual(code, 0)
        self.assertIn(f"{self.project} is not trusted: nobody has decided yet whether to trust {self.project}\n", out)
        self.assertIn(f"memory    {self.project}/CLAUDE.md [project]\n", out)
        self.assertIn(f"skill     {self.project}/.claude/skills/a/SKILL.md [project]  a\n", out)


class SkillsOfARunTest(ProjectTestCase):
    """Settings apply to `skills` and `doctor` as they do to a run."""

    def setUp(self) -> None:
        super().setUp()
        home = self.parent / "home"
        environment = {"HOME": str(home), "OPENAGENTIC_SDK_HOME": str(self.parent / "sdk")}
        before = {name: os.environ.get(name) for name in environment}
        os.environ.update(environment)
        self.addCleanup(lambda: [_set_variable(name, value) for name, value in before.items()])
        self.skill("a")
        self.write(
            {
                ".git/HEAD": "",
                "CLAUDE.md": "m\n@../outside/x/SKILL.md\n",
                "AGENTS.md": "n",
                "../home/.claude/skills/a/SKILL.md": "---\nname: a\ndescription: the user's\n---\n",
                ".claude/settings.json": json.dumps(
                    {"skillPrecedence": "user", "agentsMd": "both", "allowOutsideImports": True}
                ),
            }
        )

    def output(self, *args: str) -> dict[str, Any]:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            self.assertEqual(main([*args, "--json"]), 0)
        found: dict[str, Any] = json.loads(out.getvalue())
        return found

    def test_why_and_list_follow_the_precedence_of_the_settings(self) -> None:
        where = ("--cwd", str(self.project))
        why = self.output("skills", "why", "a", *where)
        self.assertEqual(
            (why["winner"]["scope"], [row["id"] for row in why["hidden"]]),
            ("user", ["project:a"]),
        )
        self.assertEqual(self.output("skills", "list", *where)["scope"], "user")

    def test_sources_and_doctor_read_the_memory_that_a_run_reads(self) -> None:
        trust = TrustStore(self.parent / "sdk" / "trust.json")
        trust.remember(self.project, "trusted", digest=trust.look_up(self.project).digest)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.project)
        for found in (self.output("skills", "sources"), self.output("doctor")["project"]):
            memory = [
                os.path.relpath(file["path"], self.project) for file in found["files"] if file["kind"] == "memory"
            ]
            self.assertEqual(memory, ["CLAUDE.md", "../outside/x/SKILL.md", "AGENTS.md"])


def _set_variable(name: str, value: str | None) -> None:
    os.environ.pop(name, None)
    if value is not None:
        os.environ[name] = value
