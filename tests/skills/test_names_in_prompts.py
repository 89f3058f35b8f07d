"""Skills named in prompts: those of subfolders, several in one prompt, and which one takes precedence."""

from __future__ import annotations

import json
from typing import Any

from openagentic_sdk.events import SkillActivated, SystemNotice, ToolResult, UserMessage
from openagentic_sdk.parts.project.commands import unknown_name
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.skills.index import SkillIndex
from tests.size import full_size
from tests.skills.support import RunTestCase


def call(tool: str, /, **arguments: Any) -> dict[str, Any]:
    return {"tool_calls": [{"name": tool, "arguments": arguments}]}


class NameTestCase(RunTestCase):
    def place(self, folder: str, name: str, body: str, **fields: str) -> None:
        lines = [
            f"name: {name}",
            "description: d",
            *(f"{key.replace('_', '-')}: {value}" for key, value in fields.items()),
        ]
        self.write({f"{folder}/skills/{name}/SKILL.md": "\n".join(["---", *lines, "---", body, ""])})

    def active(self, result: Any) -> list[tuple[str, str | None]]:
        return [(e.name, e.arguments) for e in result.events if isinstance(e, SkillActivated)]

    def prompts(self, result: Any) -> list[str]:
        return [e.text for e in result.events if isinstance(e, UserMessage) and e.origin == "user"]


class Nested(NameTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.place(".claude", "deploy", "The root's way.")
        self.place("apps/web/.claude", "deploy", "The web's way.")
        self.place("api/.claude", "deploy", "The API's way.")
        self.place("api/.claude", "only-api", "Only here.")
        self.write({"apps/web/page.ts": "", "api/main.py": ""})

    def test_a_skill_of_a_folder_below_has_its_folder_before_a_name_that_is_taken(self) -> None:
        below = [str(self.project / folder) for folder in ("apps/web", "api")]
        index = SkillIndex(self.project, cwd=self.project, below=below).read()
        names = [skill.name for skill in index.skills]
        self.assertEqual(names, ["api:deploy", "apps/web:deploy", "deploy", "only-api"])
        self.assertEqual(index.shadowed, ())
        for name, body in (
            ("deploy", ".claude"),
            ("apps/web:deploy", "apps/web/.claude"),
            ("API:Deploy", "api/.claude"),
        ):
            with self.subTest(name):
                self.assertEqual(index.find(name).path, str(self.project / body / "skills/deploy/SKILL.md"))

    def test_it_is_there_once_a_file_beside_it_was_read_and_answers_to_its_name_only(self) -> None:
        before = self.run_script("Done.", prompt="/apps/web:deploy now")
        self.assertEqual(self.active(before), [])
        read = self.run_script(call("Read", file_path="apps/web/page.ts"), "Seen.")
        after = self.run_script("Done.", prompt="/apps/web:deploy now", resume=read.session_id)
        self.assertEqual(self.active(after), [("apps/web:deploy", "now")])
        [body] = [e.body for e in after.events if isinstance(e, SkillActivated)]
        self.assertEqual(body, "The web's way.")

    def test_the_short_name_is_the_roots_and_names_the_others(self) -> None:
        turns = [call("Read", file_path="apps/web/page.ts"), call("SkillActivate", name="deploy"), "Done."]
        result = self.run_script(*turns)
        self.assertEqual(self.active(result), [("deploy", None)])
        answer = [e.output for e in result.events if isinstance(e, ToolResult)][-1]
        self.assertEqual(answer["for_folders"], ["apps/web:deploy"])
        typed = self.run_script("Done.", prompt="/deploy", resume=result.session_id)
        self.assertIn("skills of their own for this (apps/web:deploy)", self.prompts(typed)[-1])

    def test_a_run_that_starts_below_calls_its_own_by_the_short_name(self) -> None:
        result = self.run_script("Done.", prompt="/deploy", cwd=self.project / "apps/web", project_dir=self.project)
        [body] = [e.body for e in result.events if isinstance(e, SkillActivated)]
        self.assertEqual(body, "The web's way.")

    def test_a_path_at_the_start_of_a_prompt_is_not_a_name(self) -> None:
        for prompt in ("/usr/bin/python is slow", "/etc/x:y fails", "/apps/web:gone"):
            with self.subTest(prompt):
                self.assertIsNone(unknown_name(prompt, ["deploy"]))
                self.assertEqual(self.prompts(self.run_script("Done.", prompt=prompt)), [prompt])
        self.assertIn("unknown command or skill", unknown_name("/usr", ["deploy"]) or "")


class Stacked(NameTestCase):
    def setUp(self) -> None:
        super().setUp()
        for number in range(1, 9):
            self.place(".claude", f"s{number}", f"Way {number}.")
        self.place(".claude", "apart", "Alone.", context="fork")
        self.place(".claude", "silent", "Not by people.", user_invocable="false")
        self.write({".claude/commands/greet.md": "Hello.\n"})

    @full_size
    def test_every_stack_ends_where_the_reference_ends_it(self) -> None:
        for prompt, names, arguments in (
            ("/s1 /s2 fix 123", ["s1", "s2"], "fix 123"),
            ("/s1\n/s2\n123", ["s1", "s2"], "123"),
            ("/s1 /s2", ["s1", "s2"], None),
            ("/s1 /s2 /s1 x", ["s1", "s2"], "/s1 x"),
            ("/s1 and /s2 x", ["s1"], "and /s2 x"),
            ("/s1 /gone /s2", ["s1"], "/gone /s2"),
            ("/s1 /greet x", ["s1"], "/greet x"),
            ("/s1 /silent x", ["s1"], "/silent x"),
            ("/s1 /apart x", ["s1"], "/apart x"),
            ("/apart /s1 x", ["apart"], "/s1 x"),
            ("/s1 /usr/bin/x", ["s1"], "/usr/bin/x"),
            ("/s1 /project:s2 x", ["s1", "s2"], "x"),
            ("/s1 /s2 /s3 /s4 /s5 /s6 /s7 x", ["s1", "s2", "s3", "s4", "s5", "s6"], "/s7 x"),
        ):
            with self.subTest(prompt):
                result = self.run_script("Done.", prompt=prompt)
                self.assertEqual(self.active(result), [(name, arguments) for name in names])
                [text] = self.prompts(result)
                self.assertEqual(text.count("Follow the skill"), len(names))

    @full_size
    def test_each_brings_its_own_grants_denials_and_commands(self) -> None:
        self.place(".claude", "s1", "Now: !`echo one`", allowed_tools="Bash(touch a)")
        self.place(".claude", "s2", "Then: !`echo two`", allowed_tools="Bash(touch b)", disallowed_tools="Write")
        gate = PermissionGate(permission_mode="dontAsk", allow=("Edit",))
        calls = [
            call("Bash", command="touch a"),
            call("Bash", command="touch b"),
            call("Write", file_path="c", content=""),
        ]
        result = self.run_script(
            *calls, "Done.", prompt="/s1 /s2 go", permission_gate=gate, trust_project=True, run_text_commands=True
        )
        self.assertEqual([e.outcome for e in result.events if isinstance(e, ToolResult)], ["ok", "ok", "denied"])
        bodies = [e.body for e in result.events if isinstance(e, SkillActivated)]
        self.assertEqual(bodies, ["Now: one", "Then: two"])
        again = self.run_script(calls[2], "Done.", resume=result.session_id, permission_gate=gate, trust_project=True)
        self.assertEqual([e.outcome for e in again.events if isinstance(e, ToolResult)], ["ok"])


class PrecedenceOfScopes(NameTestCase):
    def test_a_persons_own_skill_comes_before_the_projects_and_a_project_does_not_turn_that_round(self) -> None:
        self.place(".claude", "commit", "Theirs.")
        self.place("../home/.claude", "commit", "Mine.")
        options: dict[str, Any] = {"setting_sources": ("user", "project"), "prompt": "/commit"}
        for file, trusted, expected in (
            (None, True, "Mine."),
            ("../home/.claude/settings.json", False, "Theirs."),
            (".claude/settings.json", False, "Mine."),
            (".claude/settings.json", True, "Theirs."),
        ):
            with self.subTest(file=file, trusted=trusted):
                for each in ("../home/.claude/settings.json", ".claude/settings.json"):
                    (self.project / each).unlink(missing_ok=True)
                if file is not None:
                    self.write({file: json.dumps({"skillPrecedence": "project"})})
                result = self.run_script("Done.", trust_project=trusted, **options)
                self.assertEqual([e.body for e in result.events if isinstance(e, SkillActivated)], [expected])
                withheld = [e.message for e in result.events if isinstance(e, SystemNotice) if "withheld" in e.code]
                self.assertEqual(["before the user's" in text for text in withheld], [True] * len(withheld))
                self.assertEqual(len(withheld), int(file == ".claude/settings.json" and not trusted))
