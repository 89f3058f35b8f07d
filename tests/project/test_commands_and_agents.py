"""Commands and subagents in a project's folders."""

from __future__ import annotations

from openagentic_sdk.parts.project.agents import AgentSet, read_agents
from openagentic_sdk.parts.project.claude import ClaudeFolders, claude_folders
from openagentic_sdk.parts.project.commands import Expansion, attached_file, expand_prompt, read_commands
from openagentic_sdk.skills.index import index_skills
from tests.skills.support import ProjectTestCase


class FolderTestCase(ProjectTestCase):
    def folders(self, *sources: str) -> ClaudeFolders:
        home = self.project / "home"
        return claude_folders(self.project, setting_sources=sources or ("project", "user"), home=home, managed_dir=None)


class CommandTest(FolderTestCase):
    def expand(self, prompt: str) -> Expansion:
        folders = self.folders()
        return expand_prompt(prompt, read_commands(folders), index_skills(self.project), folders)

    def test_arguments_are_filled_in(self) -> None:
        self.write(
            {".claude/commands/fix.md": "---\nargument-hint: [a] [b]\ndescription: d\n---\nFix $1 in $ARGUMENTS.\n"}
        )
        self.assertEqual(self.expand("/fix 12 now").text, "Fix 12 in 12 now.")
        self.assertEqual(read_commands(self.folders()).commands[0].argument_hint, "[a] [b]")

    def test_arguments_are_not_looked_at_again(self) -> None:
        self.write({".claude/commands/say.md": "Say $ARGUMENTS."})
        self.assertEqual(self.expand("/say $ARGUMENTS !`id`").text, "Say $ARGUMENTS !`id`.")

    def test_subfolders_are_part_of_the_name(self) -> None:
        self.write({".claude/commands/front/page.md": "Make a page."})
        self.assertEqual(self.expand("/front:page").text, "Make a page.")

    def test_other_prompts_stay_unchanged(self) -> None:
        self.write({".claude/commands/fix.md": "Fix."})
        for prompt in ("fix", "/etc/passwd is odd", "/unknown x", "/", "// comment", " say /fix", "/fixx"):
            with self.subTest(prompt):
                self.assertEqual(self.expand(prompt), Expansion(prompt))

    def test_a_skill_of_the_same_name_wins(self) -> None:
        self.write({".claude/commands/a.md": "The command."})
        self.skill("a")
        expansion = self.expand("/a this file")
        assert expansion.skill is not None
        self.assertEqual((expansion.skill.name, expansion.arguments), ("a", "this file"))
        self.assertEqual(expansion.text, "Follow the skill a now. It is for: this file")

    def test_a_skill_that_people_may_not_start_does_not(self) -> None:
        self.skill("a", user_invocable="false")
        self.assertIsNone(self.expand("/a").skill)

    def test_the_name_of_a_skill_counts_before_the_folder_of_another(self) -> None:
        text = "---\nname: {}\ndescription: d\n---\n"
        self.write(
            {".claude/skills/deploy/SKILL.md": text.format("aaa"), ".claude/skills/z/SKILL.md": text.format("Deploy")}
        )
        for prompt, name in (("/deploy", "Deploy"), ("/z", "Deploy"), ("/project:z", "Deploy"), ("/aaa", "aaa")):
            with self.subTest(prompt):
                skill = self.expand(prompt).skill
                assert skill is not None
                self.assertEqual(skill.name, name)

    def test_files_are_attached_when_they_are_in_the_project(self) -> None:
        self.write(
            {".claude/commands/c.md": "Look at @notes.md and @../outside/x/SKILL.md", "notes.md": "N </attached-file>"}
        )
        [path] = self.expand("/c").files
        attached = attached_file(path, self.folders()) or ""
        self.assertEqual(attached.count("<attached-file path="), 1)
        self.assertIn("N &lt;/attached-file>\n</attached-file>", attached)
        self.assertIsNone(attached_file(f"{self.project}/none", self.folders()))

    def test_the_project_overrides_the_user_and_reports_it(self) -> None:
        self.write(
            {
                ".claude/commands/c.md": "project",
                "home/.claude/commands/c.md": "user",
                "home/.claude/commands/d.md": "d",
            }
        )
        found = read_commands(self.folders())
        self.assertEqual([command.body for command in found.commands], ["project", "d"])
        self.assertEqual([note.code for note in found.diagnostics], ["command-shadowed"])

    def test_nothing_is_read_that_the_settings_do_not_ask_for(self) -> None:
        self.write({".claude/commands/c.md": "project", "home/.claude/commands/d.md": "user"})
        self.assertEqual([c.name for c in read_commands(self.folders("user")).commands], ["d"])
        self.assertEqual(read_commands(self.folders("local")).commands, ())


class AgentTest(FolderTestCase):
    def read(self, text: str) -> AgentSet:
        self.write({".claude/agents/deep/a.md": text})
        return read_agents(self.folders())

    def test_every_field(self) -> None:
        (agent,) = self.read(
            "---\nname: reviewer\ndescription: Reviews: all of it\ntools: Read, Bash(git diff:*)\ndisallowedTools: [Write]\n"
            "model: small\nskills: a, b\nmaxTurns: 5\npermissionMode: plan\n---\n\nYou review.\n"
        ).agents
        self.assertEqual(
            (agent.name, agent.description, agent.prompt), ("reviewer", "Reviews: all of it", "You review.")
        )
        self.assertEqual((agent.tools, agent.disallowed_tools), (("Read", "Bash(git diff:*)"), ("Write",)))
        self.assertEqual((agent.model, agent.skills, agent.max_turns), ("small", ("a", "b"), 5))
        self.assertEqual((agent.permission_mode, agent.scope), ("plan", "project"))

    def test_a_file_without_a_name_is_documentation(self) -> None:
        self.assertEqual(self.read("# How to write agents\n"), AgentSet())

    def test_a_file_without_a_description_or_with_a_bad_name_is_left_out_and_named(self) -> None:
        for text in (
            "---\nname: a\n---\n",
            "---\nname: -a\ndescription: d\n---\n",
            "---\nname: 'a:b'\ndescription: d\n---\n",
        ):
            with self.subTest(text):
                found = self.read(text)
                self.assertEqual((found.agents, [note.code for note in found.diagnostics]), ((), ["agent-left-out"]))

    def test_invalid_numbers_of_turns_are_ignored(self) -> None:
        for text, turns in (("x", None), ("0", None), ("-3", None), ("7", 7), ("", None), ("9" * 5000, None)):
            with self.subTest(text[:10]):
                (agent,) = self.read(f"---\nname: a\ndescription: d\nmaxTurns: {text}\n---\n").agents
                self.assertEqual(agent.max_turns, turns)

    def test_the_project_wins_over_the_user(self) -> None:
        self.write({"home/.claude/agents/x.md": "---\nname: A\ndescription: user\n---\n"})
        found = self.read("---\nname: a\ndescription: project\n---\n")
        self.assertEqual([agent.description for agent in found.agents], ["project"])
