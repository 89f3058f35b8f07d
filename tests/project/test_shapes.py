"""Forms of `.claude` files that people write, and how a run reads each."""

from __future__ import annotations

import contextlib
import io
import json
import os
from typing import Any

from openagentic_sdk.cli.main import main
from openagentic_sdk.parts.project.claude import claude_folders
from openagentic_sdk.parts.project.settings import read_settings
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.skills.frontmatter import read_frontmatter
from tests.skills.support import RunTestCase


def call(tool: str, /, **arguments: Any) -> dict[str, Any]:
    return {"tool_calls": [{"name": tool, "arguments": arguments}]}


class RuleTest(RunTestCase):
    def notices(self, rules: dict[str, list[str]]) -> tuple[list[str], Any]:
        self.write({".claude/settings.json": json.dumps({"permissions": rules}, indent=1)})
        result = self.run_script("Done.", trust_project=True)
        self.assertEqual(result.stop_reason, "end")
        return [e.message for e in result.events if e.type == "system.notice"], result

    def test_rules_that_are_valid_there_stop_no_run_and_need_no_word(self) -> None:
        valid = [
            "Bash(git * main)",
            "Bash(ls*)",
            "Bash(PYTHONPATH=. pytest *)",
            "Bash(* --force)",
            "Bash(npm run test:*)",
        ]
        for effect in ("allow", "ask", "deny"):
            self.assertEqual(self.notices({effect: valid})[0], [])
        self.assertEqual(self.notices({"deny": ["Bash(curl * | bash)"]})[0], [])

    def test_an_unsupported_construct_is_reported_with_its_file_line_and_rule(self) -> None:
        source = self.project / ".claude/settings.json"
        said, _ = self.notices({"allow": ["Read", "Bash(echo $(x))"], "deny": ["Bash(echo $X)", "Glob(*.py)", "((("]})
        self.assertEqual([text.split(": ")[0] for text in said], [f"{source}:{line}" for line in (5, 8, 9, 10)])
        self.assertIn("the allow rule 'Bash(echo $(x))' is not understood and is ignored", said[0])
        self.assertIn(
            "the deny rule 'Bash(echo $X)' is not understood and makes every use of Bash need approval", said[1]
        )
        self.assertIn("every tool", said[3])

    def test_a_deny_rule_that_is_not_understood_asks_for_the_whole_tool(self) -> None:
        self.write({".claude/settings.json": json.dumps({"permissions": {"deny": ["Bash(echo $X)"]}})})
        gate = PermissionGate(permission_mode="bypass")
        calls = {
            "tool_calls": [
                {"name": "Bash", "arguments": {"command": "ls"}},
                {"name": "Glob", "arguments": {"pattern": "*"}},
            ]
        }
        result = self.run_script(calls, "Done.", permission_gate=gate, trust_project=False)
        self.assertEqual([e.outcome for e in result.events if e.type == "tool.result"], ["denied", "ok"])


class SkillTest(RunTestCase):
    def test_arguments_are_filled_in_and_belong_to_their_turn(self) -> None:
        self.skill(
            "fix",
            "Fix $1 in $env, all: $ARGUMENTS, first: $ARGUMENTS[0], here: ${CLAUDE_SKILL_DIR}\n",
            arguments="what env",
        )
        result = self.run_script("Done.", prompt="/fix '42 a' prod")
        (prompt,) = [event.text for event in result.events if event.type == "user.message" and event.about]
        self.assertIn("Fix 42 a in prod, all: '42 a' prod, first: 42 a, here: ", prompt)
        self.assertIn(f"here: {self.project}/.claude/skills/fix\n", prompt)
        self.assertIn(f'folder="{self.project}/.claude/skills/fix"', prompt)
        self.assertNotIn("<arguments>", prompt)
        again = self.run_script("Done.", prompt="And now?", resume=result.session_id)
        self.assertNotIn("42 a", str([event for event in again.events if event.type == "user.message"]))

    def test_an_active_skills_files_are_read_without_a_rule(self) -> None:
        home = self.parent / "home"
        self.write({"../home/.claude/skills/s/SKILL.md": "---\nname: s\ndescription: d\n---\nb\n"})
        self.write({"../home/.claude/skills/s/ref/x.md": "beside", "../home/secret": "no"})
        read = [call("Read", file_path=str(home / name)) for name in (".claude/skills/s/ref/x.md", "secret")]
        gate = PermissionGate(permission_mode="dontAsk", allow=("Skill",))
        sources = ("user",)
        turns = (read[0], call("SkillActivate", name="s"), *read, "Done.")
        result = self.run_script(*turns, permission_gate=gate, setting_sources=sources)
        outcomes = [e.outcome for e in result.events if e.type == "tool.result"]
        self.assertEqual(outcomes, ["denied", "ok", "ok", "denied"])

    def test_a_skill_for_some_files_is_offered_once_such_a_file_is_read(self) -> None:
        self.skill("sql", paths="'**/*.sql'")
        self.write({"a.sql": "x", "a.py": "x"})
        result = self.run_script(call("Read", file_path="a.py"), call("Read", file_path="a.sql"), "Done.")
        self.assertNotIn("About sql", str([e for e in result.events if e.type == "model.context"]))
        notes = [e.text for e in result.events if e.type == "user.message" and e.origin == "rule"]
        self.assertEqual(["- sql: About sql." in text for text in notes], [True])

    def test_hooks_of_a_trusted_skill_run_while_it_is_active(self) -> None:
        hooks = "{UserPromptSubmit: [{hooks: [{type: command, command: 'echo x >> ../ran', once: true}]}]}"
        self.skill("hooked", hooks=hooks)
        first = self.run_script("Done.", prompt="/hooked", trust_project=True)
        for prompt in ("Go.", "Go on."):
            self.run_script("Done.", prompt=prompt, resume=first.session_id, trust_project=True)
        self.assertEqual((self.parent / "ran").read_text(), "x\n")

    def test_an_agent_that_names_a_missing_skill_runs_with_a_notice(self) -> None:
        self.write({".claude/agents/a.md": "---\nname: a\ndescription: d\nskills: gone\n---\nWork.\n"})
        result = self.run_script(
            call("Task", subagent_type="a", description="d", prompt="Go."),
            "Child.",
            "Done.",
            permission_gate=PermissionGate(permission_mode="bypass"),
        )
        self.assertEqual([e.outcome for e in result.events if e.type == "tool.result"], ["ok"])
        self.assertEqual([e.code for e in result.events if e.type == "system.notice"], ["skill.missing"])


class CommandTest(RunTestCase):
    def test_hints_in_brackets_are_the_text_that_they_are(self) -> None:
        for hint in ("[a] [b]", "[a] <b>", "[issue] # it's", "<x> | [y]", "[a, b] --force"):
            with self.subTest(hint):
                front = read_frontmatter(f"---\ndescription: d\nargument-hint: {hint}\nmodel: m\n---\nb\n")
                self.assertEqual((front.rung, front.diagnostics, front.data["model"]), ("strict", (), "m"))
                self.assertIn(front.sources["argument-hint"].text, (hint, hint.split(" #")[0]))

    def test_a_model_may_use_the_names_that_it_was_taught(self) -> None:
        self.skill("s", "Do $ARGUMENTS.\n")
        self.write(
            {
                ".claude/commands/c.md": "Say $1.",
                "f.txt": "old",
                ".claude/commands/own.md": "---\ndisable-model-invocation: true\n---\nx",
            }
        )
        turns = [
            call("Skill", skill="s", args="it"),
            call("SlashCommand", command="/c hello there"),
            call("SlashCommand", command="/own"),
            call("Read", file_path="f.txt"),
            call("Edit", file_path="f.txt", old_string="old", new_string="new"),
            call("Grep", pattern="new", path="."),
        ]
        result = self.run_script(
            *turns, "Done.", permission_gate=PermissionGate(permission_mode="acceptEdits", allow=("Skill",))
        )
        results = [e for e in result.events if e.type == "tool.result"]
        self.assertEqual([e.outcome for e in results], ["ok", "ok", "error", "ok", "ok", "ok"], results)
        self.assertEqual(results[0].output["active"], ["s"])
        self.assertEqual(results[1].output["instructions"].split("\n")[0], "Say hello.")
        self.assertEqual((self.project / "f.txt").read_text(), "new")

    def test_files_that_a_prompt_names_are_attached(self) -> None:
        self.write({"notes.md": "the notes"})
        result = self.run_script("Done.", prompt="Read @notes.md and mail me@example.org, @nobody")
        (message,) = [e.text for e in result.events if e.type == "user.message"]
        self.assertEqual(message.count("<attached-file"), 1)
        self.assertIn("the notes", message)
        (decision,) = [e for e in result.events if e.type == "permission.decision"]
        self.assertEqual((decision.name, decision.allowed, decision.mode), ("Read", True, "dontAsk"))

    def test_a_file_that_a_prompt_names_is_a_read_that_the_gate_decides_in_every_mode(self) -> None:
        self.write({".env": "KEY=abc", ".claude/commands/c.md": "Look at $1"})
        refused = (("deny", ()), ("dontAsk", ("Read(.env)",)), ("bypass", ("Read(.env)",)))
        for mode, deny in refused:
            for prompt in ("Look at @.env", "/c @.env"):
                with self.subTest(mode=mode, prompt=prompt):
                    gate = PermissionGate(permission_mode=mode, deny=deny)
                    result = self.run_script("Done.", prompt=prompt, permission_gate=gate)
                    self.assertNotIn("KEY=abc", str(result.events))
                    (decision,) = [e for e in result.events if e.type == "permission.decision"]
                    self.assertFalse(decision.allowed)

    def test_commands_in_a_text_that_do_not_run_are_reported_once_with_the_option(self) -> None:
        self.write({".claude/commands/c.md": "Now: !`date`"})
        first = self.run_script("Done.", prompt="/c", trust_project=True)
        second = self.run_script("Done.", prompt="/c", trust_project=True, resume=first.session_id)
        said = [[e.message for e in r.events if e.type == "system.notice"] for r in (first, second)]
        self.assertEqual([len(each) for each in said], [1, 0])
        self.assertIn("--text-commands", said[0][0])

    def test_an_unknown_name_is_an_error_at_the_command_line_and_a_prompt_for_query(self) -> None:
        self.write({".claude/commands/deploy.md": "x", "script.json": json.dumps(["Done."])})
        flags = [
            "--script",
            str(self.project / "script.json"),
            "--cwd",
            str(self.project),
            "--store",
            str(self.parent / "s"),
        ]
        cases = {"/deplyo now": 2, "/zzzz": 2, "/usr/bin/x fails": 0, "/deploy": 0}
        home = os.environ.get("OPENAGENTIC_SDK_HOME")
        os.environ["OPENAGENTIC_SDK_HOME"] = str(self.parent / "sdk")
        self.addCleanup(lambda: os.environ.update({"OPENAGENTIC_SDK_HOME": home or ""}))
        for prompt, code in cases.items():
            with (
                self.subTest(prompt),
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.redirect_stderr(io.StringIO()) as err,
            ):
                self.assertEqual(main(["run", *flags, prompt]), code, err.getvalue())
                self.assertEqual("did you mean /deploy" in err.getvalue(), prompt == "/deplyo now")
        self.assertEqual(self.run_script("Done.", prompt="/zzzz x").final_text, "Done.")


class MemoryTest(RunTestCase):
    def prompt_of(self, result: Any) -> str:
        return [e.system_prompt for e in result.events if e.type == "model.context"][-1]

    def test_memory_above_the_project_counts_when_it_is_nobody_elses(self) -> None:
        self.write({"../CLAUDE.md": "from above"})
        self.assertIn("from above", self.prompt_of(self.run_script("Done.")))
        os.chmod(self.parent / "CLAUDE.md", 0o666)
        result = self.run_script("Done.")
        self.assertNotIn("from above", self.prompt_of(result))
        self.assertIn("memory.memory-left-out", [e.code for e in result.events if e.type == "system.notice"])

    def test_the_memory_beside_a_file_is_added_when_the_file_is_read(self) -> None:
        self.write(
            {
                "app/CLAUDE.md": "nested memory",
                "app/CLAUDE.local.md": "nested local memory",
                "app/.claude/rules/always.md": "nested rule",
                "app/.claude/rules/py.md": "---\npaths: '*.py'\n---\nnested rule for Python",
                "app/.claude/skills/deploy/SKILL.md": "---\nname: deploy\ndescription: nested skill\n---\nDo.\n",
                "app/x.txt": "x",
                "app/deep/y.py": "y",
            }
        )
        sources = ("project", "local")
        turns = (call("Read", file_path="app/x.txt"), call("Read", file_path="app/deep/y.py"), "Done.")
        result = self.run_script(*turns, setting_sources=sources)
        self.assertNotIn("nested", self.prompt_of(result))
        notes = [e.text for e in result.events if e.type == "user.message" and e.origin == "rule"]
        words = ("nested memory", "nested local memory", "nested rule\n", "nested skill", "nested rule for Python")
        self.assertEqual([sum(word in text for text in notes) for word in words], [1] * 5)
        self.assertIn("nested rule for Python", notes[-1])
        later = self.run_script(
            call("SkillActivate", name="deploy"),
            "Done.",
            prompt="Go on.",
            resume=result.session_id,
            setting_sources=sources,
        )
        self.assertEqual([e.outcome for e in later.events if e.type == "tool.result"], ["ok"])

    def test_an_import_from_outside_is_reported_with_a_remedy(self) -> None:
        self.write({"CLAUDE.md": "@../outside/x/SKILL.md"})
        result = self.run_script("Done.")
        (said,) = [e.message for e in result.events if e.type == "system.notice"]
        self.assertIn("allowOutsideImports", said)

    def test_more_folders_of_settings_start_at_the_project_and_at_home(self) -> None:
        self.write(
            {
                "sub/here": "",
                ".claude/settings.json": json.dumps({"permissions": {"additionalDirectories": ["../more", "~"]}}),
            }
        )
        self.write({"../more/f.txt": "x"})
        gate = PermissionGate(permission_mode="default")
        turns = (call("Read", file_path="../../more/f.txt"), "Done.")
        options = {
            "cwd": self.project / "sub",
            "project_dir": self.project,
            "permission_gate": gate,
            "trust_project": True,
        }
        result = self.run_script(*turns, **options)
        self.assertEqual([e.outcome for e in result.events if e.type == "tool.result"], ["ok"])

    def test_a_variable_determines_the_folder_of_the_users_files(self) -> None:
        self.write(
            {
                "../config/CLAUDE.md": "of the variable",
                "../config/skills/v/SKILL.md": "---\nname: v\ndescription: d\n---\n",
            }
        )
        self.addCleanup(os.environ.pop, "CLAUDE_CONFIG_DIR")
        os.environ["CLAUDE_CONFIG_DIR"] = str(self.parent / "config")
        prompt = self.prompt_of(self.run_script("Done.", setting_sources=("user",), home=None))
        self.assertIn("of the variable", prompt)
        self.assertIn("- v: d", prompt)

    def test_files_that_settings_exclude_are_not_read_even_of_an_untrusted_project(self) -> None:
        settings = {"claudeMdExcludes": ["**/app/CLAUDE.md", str(self.project / "CLAUDE.md")]}
        self.write(
            {
                "CLAUDE.md": "root",
                "app/CLAUDE.md": "nested",
                "app/x": "x",
                ".claude/settings.json": json.dumps(settings),
            }
        )
        for trusted in (True, False):
            result = self.run_script(call("Read", file_path="app/x"), "Done.", trust_project=trusted)
            self.assertNotIn("root\n</memory>", self.prompt_of(result))
            self.assertEqual([e.text for e in result.events if e.type == "user.message" and e.origin == "rule"], [])


class AgentTest(RunTestCase):
    def agent(self, **fields: str) -> None:
        lines = "".join(f"{name}: {value}\n" for name, value in fields.items())
        self.write({".claude/agents/a.md": f"---\nname: a\ndescription: d\n{lines}---\nWork.\n"})

    def contexts(self, **options: Any) -> Any:
        gate = PermissionGate(permission_mode="bypass")
        result = self.run_script(
            call("Task", agent="a", prompt="Go."), "Child.", "Done.", permission_gate=gate, **options
        )
        return [e for e in result.events if e.type == "model.context"], result

    def test_a_star_is_all_tools(self) -> None:
        self.agent(tools='"*"')
        (parent, child, *_), _ = self.contexts()
        names = [[spec["function"]["name"] for spec in each.tools] for each in (parent, child)]
        self.assertEqual(names[0], names[1])

    def test_words_for_models_are_never_sent_as_they_are(self) -> None:
        for word, names, model in (
            ("inherit", {}, "m"),
            ("haiku", {}, "m"),
            ("Opus", {"opus": "big-1"}, "big-1"),
            ("other-7", {}, "other-7"),
        ):
            with self.subTest(word):
                self.agent(model=word)
                (parent, child, *_), _ = self.contexts(model_names=names)
                self.assertEqual((parent.model, child.model), ("m", model))
        self.agent(model="sonnet")
        self.write({".claude/settings.json": json.dumps({"modelNames": {"Sonnet": "mid-2"}})})
        self.assertEqual(self.contexts()[0][1].model, "mid-2")

    def test_a_worktree_of_its_own_is_refused_with_a_sentence(self) -> None:
        self.agent(isolation="worktree")
        _, result = self.contexts()
        (refused,) = [e for e in result.events if e.type == "tool.result"]
        self.assertIn("requests isolation 'worktree'", refused.error_message)

    def test_fields_without_effect_are_reported(self) -> None:
        self.agent(memory="project", colour="red", color="blue")
        said = [e.message for e in self.contexts()[1].events if e.type == "system.notice"]
        path = self.project / ".claude/agents/a.md"
        self.assertEqual(
            said, [f"{path}:4: memory has no effect here: let the agent read and write a file named in its text"]
        )


class NothingIgnoredTest(RunTestCase):
    def test_documented_words_without_effect_are_reported_once_with_their_place_and_others_never(self) -> None:
        settings = {"statusLine": {"type": "command"}, "permissions": {"deny": [], "more": 1}, "outputStyle": "gone"}
        self.write(
            {
                ".mcp.json": '{"mcpServers": {}, "other": 1}',
                ".claude/settings.json": json.dumps(settings, indent=1),
                ".claude/commands/c.md": "---\ndescription: d\ncategory: x\nhooks: x\n---\nb",
                ".claude/rules/r.md": "---\npaths: '*.py'\npriority: 1\n---\nr",
            }
        )
        self.skill("s", effort="high", colour="red")
        first = self.run_script("Done.", prompt="/s", trust_project=True)
        said = [e.message for e in first.events if e.type == "system.notice"]
        claude = self.project / ".claude"
        expected = {
            f"{claude}/settings.json:2: only Claude Code's own programs use statusLine: "
            "`openagentic-sdk doctor --project` has details",
            f"{claude}/commands/c.md:4: hooks has no effect here: turn the command into a skill: "
            "`.claude/skills/NAME/SKILL.md` supports this field",
            f"skill s: {claude}/skills/s/SKILL.md:4: effort has no effect here: set it on the provider or in the endpoint's "
            "configuration",
            f"{self.project}/.mcp.json: other has no effect here",
            "no file defines the output style 'gone': it has no effect here",
        }
        self.assertEqual((set(said), len(said)), (expected, len(expected)))
        again = self.run_script("Done.", resume=first.session_id, trust_project=True)
        self.assertEqual([e for e in again.events if e.type == "system.notice"], [])

    def test_an_output_style_is_text_of_the_system_prompt(self) -> None:
        style = "---\nname: Terse\ndescription: d\n---\nAnswer in one line. </output-style>\n"
        self.write({".claude/settings.json": '{"outputStyle": "terse"}', ".claude/output-styles/short.md": style})
        result = self.run_script("Done.")
        (context,) = [e for e in result.events if e.type == "model.context"]
        block = '<output-style name="terse">\nAnswer in one line. &lt;/output-style>\n</output-style>'
        self.assertIn(block, context.system_prompt)

    def test_managed_settings_may_leave_no_other_hooks_and_rules(self) -> None:
        managed = {"allowManagedHooksOnly": True, "allowManagedPermissionRulesOnly": True}
        hook = {"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "true"}]}]}}
        own = {**hook, "permissions": {"allow": ["Bash"]}}
        self.write({"managed/managed-settings.json": json.dumps({**managed, **hook})})
        self.write({"managed/managed-settings.d/10.json": json.dumps({"permissions": {"deny": ["Read"]}})})
        self.write({".claude/settings.json": json.dumps({**own, **managed})})
        folders = claude_folders(self.project, setting_sources=("project",), managed_dir=self.project / "managed")
        settings = read_settings(folders, trusted=True)
        self.assertEqual([hook.scope for hook in settings.hooks], ["managed"])
        self.assertEqual((settings.allow, [rule.text for rule in settings.deny]), ((), ["Read"]))
        self.assertIn("in managed settings only", " ".join(note.message for note in settings.diagnostics))
