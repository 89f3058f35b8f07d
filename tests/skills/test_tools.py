"""The four skill tools, used alone and inside a session."""

from __future__ import annotations

import os
import unittest
from typing import Any

from openagentic_sdk.errors import SkillNotFoundError, ToolError
from openagentic_sdk.events import Event, SkillActivated, UserMessage
from openagentic_sdk.skills.activation import skill_policy
from openagentic_sdk.skills.library import SkillLibrary
from openagentic_sdk.tools.base import PathRules, Services, SessionLog, Tool, ToolContext
from openagentic_sdk.tools.skill_activate import SkillActivateTool, SkillDeactivateTool
from openagentic_sdk.tools.skill_list import SkillListTool
from openagentic_sdk.tools.skill_load import SkillLoadTool
from tests.skills.support import ProjectTestCase, RunTestCase
from tests.tools_files.support import Rules


class Recorded(SessionLog):
    """A log that is a list."""

    def __init__(self, events: list[Event]) -> None:
        self._list = events

    def events(self) -> list[Event]:
        return list(self._list)

    async def record(self, *events: Event) -> None:
        self._list += events


class SkillToolTestCase(ProjectTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.events: list[Event] = []
        services = Services({SessionLog: Recorded(self.events)})
        self.context = ToolContext(cwd=str(self.project), services=services)

    def run_tool(self, tool: Tool, **input: Any) -> Any:
        return tool.run_sync(input, self.context)


class ListTest(SkillToolTestCase):
    def test_no_skills_folder_is_an_empty_list(self) -> None:
        self.assertEqual(self.run_tool(SkillListTool()), {"skills": []})

    def test_skills_are_sorted_and_have_name_summary_and_path(self) -> None:
        paths = {name: str(self.skill(name)) for name in ("b", "a")}
        rows = [{"name": name, "summary": f"About {name}.", "path": paths[name]} for name in ("a", "b")]
        self.assertEqual(self.run_tool(SkillListTool()), {"skills": rows})

    def test_a_query_finds_skills_that_have_all_its_words(self) -> None:
        for name in ("pdf-forms", "pdf-merge", "commit"):
            self.skill(name)
        found = self.run_tool(SkillListTool(), query="PDF merge")
        self.assertEqual([row["name"] for row in found["skills"]], ["pdf-merge"])

    def test_skills_that_only_people_may_start_are_not_listed(self) -> None:
        self.skill("a", disable_model_invocation="true")
        self.assertEqual(self.run_tool(SkillListTool()), {"skills": []})

    def test_another_project_can_be_named_unless_the_gate_keeps_it_closed(self) -> None:
        self.skill("a")
        elsewhere = ToolContext(cwd=str(self.parent))
        found = SkillListTool().run_sync({"project_dir": "project"}, elsewhere)
        self.assertEqual([row["name"] for row in found["skills"]], ["a"])

        closed = Services({PathRules: Rules(permits=lambda path: False)})
        with self.assertRaises(ToolError):
            SkillListTool().run_sync({"project_dir": "project"}, ToolContext(cwd=str(self.parent), services=closed))


class LoadTest(SkillToolTestCase):
    def test_a_skill_is_its_body_and_checklist(self) -> None:
        path = self.skill("a", body="# A\n\n## Checklist\n- [ ] one\n- two\n")
        self.assertEqual(
            self.run_tool(SkillLoadTool(), name="a"),
            {
                "name": "a",
                "summary": "About a.",
                "checklist": ["one", "two"],
                "content": "# A\n\n## Checklist\n- [ ] one\n- two\n",
                "path": str(path),
            },
        )

    def test_the_files_beside_it_are_listed_and_can_be_read(self) -> None:
        self.skill("a")
        self.write({".claude/skills/a/references/style.md": "Short.\u200b\n"})
        self.assertEqual(self.run_tool(SkillLoadTool(), name="a")["resources"], ["references/style.md"])
        answer = self.run_tool(SkillLoadTool(), name="a", path="references/style.md")
        self.assertEqual(answer["content"], "Short.\n")

    def test_only_fifty_of_many_files_are_listed(self) -> None:
        self.skill("a")
        self.write({f".claude/skills/a/f{i:03}.md": "" for i in range(60)})
        answer = self.run_tool(SkillLoadTool(), name="a")
        self.assertEqual((len(answer["resources"]), answer["resources_not_listed"]), (50, 10))

    def test_no_path_leads_out_of_the_skills_folder(self) -> None:
        self.skill("a")
        self.skill("b")
        self.write(
            {"secret": "s"},
            links={".claude/skills/a/link": "../../../secret", ".claude/skills/a/folder": "../../.."},
        )
        for path in ("../b/SKILL.md", "/etc/passwd", "link", "folder/secret", "x/../../b/SKILL.md", "a\0b", "..\\b"):
            with self.subTest(path), self.assertRaises(ToolError):
                self.run_tool(SkillLoadTool(), name="a", path=path)

    @unittest.skipUnless(hasattr(os, "mkfifo"), "this system has no FIFOs")
    def test_a_fifo_or_binary_or_missing_resource_is_refused(self) -> None:
        self.skill("a")
        self.write({".claude/skills/a/bin": "\0"}, fifos=[".claude/skills/a/fifo"])
        for path in ("bin", "fifo", "missing", "."):
            with self.subTest(path), self.assertRaises(ToolError):
                self.run_tool(SkillLoadTool(), name="a", path=path)

    def test_an_unknown_name_is_a_clear_error(self) -> None:
        self.skill("a")
        with self.assertRaisesRegex(SkillNotFoundError, "unknown skill 'b': the skills are a"):
            self.run_tool(SkillLoadTool(), name="b")

    def test_the_model_learns_who_may_start_a_skill(self) -> None:
        self.skill("a", disable_model_invocation="true")
        for tool in (SkillLoadTool(), SkillActivateTool()):
            with self.assertRaisesRegex(ToolError, "ask the user to type /a"):
                self.run_tool(tool, name="a")

    def test_a_body_of_300_kilobytes_is_loaded_whole(self) -> None:
        body = "Long text.\n" * 28_000
        self.skill("a", body=body)
        self.assertEqual(self.run_tool(SkillLoadTool(), name="a")["content"], body)


class ActivateTest(SkillToolTestCase):
    def test_active_skills_are_listed_in_the_order_of_activation(self) -> None:
        for name in ("a", "b"):
            self.skill(name)
        self.run_tool(SkillActivateTool(), name="b")
        self.assertEqual(self.run_tool(SkillActivateTool(), name="a"), {"active": ["b", "a"]})
        self.assertEqual([event.name for event in self.events if isinstance(event, SkillActivated)], ["b", "a"])

    def test_a_second_activation_records_nothing(self) -> None:
        self.skill("a")
        self.run_tool(SkillActivateTool(), name="a")
        answer = self.run_tool(SkillActivateTool(), name="A")
        self.assertEqual(answer, {"active": ["a"], "note": "a was already active"})
        self.assertEqual(len(self.events), 1)

    def test_without_a_session_the_run_remembers(self) -> None:
        for name in ("a", "b"):
            self.skill(name)
        context = ToolContext(cwd=str(self.project))
        SkillActivateTool().run_sync({"name": "a"}, context)
        self.assertEqual(SkillActivateTool().run_sync({"name": "b"}, context), {"active": ["a", "b"]})
        self.assertEqual(SkillDeactivateTool().run_sync({"name": "a"}, context), {"active": ["b"]})
        self.assertEqual(
            SkillActivateTool().run_sync({"name": "b"}, ToolContext(cwd=str(self.project))), {"active": ["b"]}
        )

    def test_arguments_are_returned_beside_the_instructions(self) -> None:
        self.skill("a", body="Look at $ARGUMENTS.\n")
        self.run_tool(SkillActivateTool(), name="a", arguments="$1; rm -rf /")
        (event,) = self.events
        assert isinstance(event, SkillActivated)
        self.assertEqual((event.body, event.arguments), ("Look at $ARGUMENTS.", "$1; rm -rf /"))

    def test_nothing_in_a_skill_runs(self) -> None:
        self.skill("a", body=f"!`touch {self.project}/ran`\n\n```!\ntouch {self.project}/ran\n```\n")
        self.run_tool(SkillActivateTool(), name="a")
        self.run_tool(SkillLoadTool(), name="a")
        self.assertFalse((self.project / "ran").exists())
        (event,) = self.events
        assert isinstance(event, SkillActivated)
        self.assertIn("!`touch", event.body)

    def test_grants_need_trust_and_end_with_the_turn(self) -> None:
        self.skill("a", allowed_tools="Read, Bash(git log:*), *")
        self.run_tool(SkillActivateTool(), name="a")
        self.assertEqual(skill_policy(self.events).grants, ())
        self.events.clear()
        trusting = SkillLibrary(trusts=lambda skill: True)
        answer = self.run_tool(SkillActivateTool(trusting), name="a")
        self.assertEqual(answer, {"active": ["a"], "not_granted": ["*"]})
        self.assertEqual(skill_policy(self.events).grants, ("Read", "Bash(git log:*)"))
        self.events.append(UserMessage("next"))
        self.assertEqual(skill_policy(self.events).grants, ())

    def test_a_skill_is_deactivated_by_any_name_that_activates_it(self) -> None:
        self.write({".claude/skills/folder/SKILL.md": "---\nname: A Name\ndescription: d\n---\nDo it.\n"})
        for name in ("folder", "a name", "project:folder", "Project:A Name"):
            with self.subTest(name):
                self.assertEqual(self.run_tool(SkillActivateTool(), name=name), {"active": ["A Name"]})
                self.assertEqual(self.run_tool(SkillDeactivateTool(), name=name), {"active": []})

    def test_a_skill_that_is_not_active_cannot_be_deactivated(self) -> None:
        self.skill("a")
        with self.assertRaises(SkillNotFoundError):
            self.run_tool(SkillDeactivateTool(), name="a")


class SettingSourcesTest(RunTestCase):
    def test_without_the_source_project_its_skills_reach_neither_the_prompt_nor_the_tools(self) -> None:
        self.skill("of-project", allowed_tools="Read")
        self.write({"../home/.claude/skills/of-user/SKILL.md": "---\nname: of-user\ndescription: d\n---\n"})
        calls = [
            {"name": "SkillList", "arguments": {}},
            {"name": "SkillList", "arguments": {"project_dir": str(self.project)}},
            {"name": "SkillLoad", "arguments": {"name": "of-project"}},
            {"name": "SkillActivate", "arguments": {"name": "project:of-project"}},
        ]
        for sources, names in (((), []), (("user",), ["of-user"]), (("local",), [])):
            with self.subTest(sources):
                result = self.run_script({"tool_calls": calls}, "Done.", prompt="Go.", setting_sources=sources)
                (context,) = [event for event in result.events if event.type == "model.context"]
                results = [event for event in result.events if event.type == "tool.result"]
                self.assertNotIn("of-project", context.system_prompt)
                self.assertEqual([skill["name"] for skill in results[0].output["skills"]], names)
                self.assertEqual([each.is_error for each in results[2:]], [True, True])
                activated = self.run_script("Done.", prompt="/of-project", setting_sources=sources)
                self.assertEqual([e.type for e in activated.events if e.type == "skill.activated"], [])


if __name__ == "__main__":
    unittest.main()
