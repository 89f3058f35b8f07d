"""The table of documented words, row by row: each word has the described effect."""

from __future__ import annotations

import importlib
import inspect
import json
import unittest
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from openagentic_sdk.assemble import open_project
from openagentic_sdk.errors import OptionsError
from openagentic_sdk.events import SkillActivated
from openagentic_sdk.ground.diagnostic import Diagnostic
from openagentic_sdk.hooks.engine import HookEngine
from openagentic_sdk.options import OpenAgenticOptions
from openagentic_sdk.parts.claude.command_hooks import EVENTS, with_command_hooks
from openagentic_sdk.parts.claude.hook_answers import answer_of
from openagentic_sdk.parts.project.agents import BUILT_IN_AGENTS, parse_agent
from openagentic_sdk.parts.project.claude import MarkdownFile, claude_folders
from openagentic_sdk.parts.project.commands import parse_command
from openagentic_sdk.parts.project.marketplace import listed_plugins
from openagentic_sdk.parts.project.memory import read_memory
from openagentic_sdk.parts.project.notices import for_a_run
from openagentic_sdk.parts.project.output_style import read_output_style
from openagentic_sdk.parts.project.plugins import load_plugin
from openagentic_sdk.parts.project.settings import Settings, read_settings, read_settings_file
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.permissions.layers import read_mode, rules_of_settings
from openagentic_sdk.skills.ledger import ASIDE, DocumentedWord, row_of, rows, words
from openagentic_sdk.skills.lint import check_file
from openagentic_sdk.skills.parse import parse_skill_markdown
from openagentic_sdk.skills.render import fill_arguments, fill_variables
from tests.size import full_size
from tests.skills.support import ProjectTestCase, RunTestCase

# Pages of https://code.claude.com/docs/en/ on which rows are based.
PAGES = {
    "hooks", "memory", "output-styles", "permission-modes", "permissions", "plugin-marketplaces", "plugins-reference",
    "env-vars", "settings-reference", "skills", "sub-agents", "tools-reference",
}  # fmt: skip


def each_row(kind: str) -> Iterable[DocumentedWord]:
    return rows()[kind].values()


class Ledger(unittest.TestCase):
    @full_size
    def test_every_row_names_a_page_a_fact_what_to_do_and_a_test_that_is_there(self) -> None:
        for kind, found in rows().items():
            for word, row in found.items():
                with self.subTest(kind=kind, word=word):
                    self.assertTrue(row.fact)
                    self.assertEqual(row.page in PAGES, row.state != "ours")
                    self.assertEqual(bool(row.how), row.state in ("no", "narrower"))
                    self.assertTrue(row.state == "no" or not row.aside)
                    module, cls, method = row.test.rsplit(".", 2)
                    test = getattr(getattr(importlib.import_module(module), cls), method)
                    self.assertTrue(f'"{kind}"' in inspect.getsource(test) or word in inspect.getsource(test))

    def test_every_tool_of_the_table_is_known_to_rules(self) -> None:
        for row in each_row("tool"):
            with self.subTest(row.word):
                self.assertEqual(row_of("tool", row.word), row)
                self.assertIn(row.state, ("does", "no"))

    def test_words_of_our_own_are_read(self) -> None:
        ours = {kind: sorted(words(kind, "ours")) for kind in rows() if words(kind, "ours")}
        self.assertEqual(
            ours,
            {
                "setting": [
                    "agentsMd",
                    "allowOutsideImports",
                    "enableSkillShellExecution",
                    "enforceAllowedTools",
                    "modelNames",
                    "permissions.labels",
                    "skillPrecedence",
                ],
                "skill": ["user-invokable"],
            },
        )


class ReportedWords(ProjectTestCase):
    """The report on each word where it is used: nothing, or what to do instead."""

    def check(self, row: DocumentedWord, notes: Iterable[Diagnostic], parent: DocumentedWord | None = None) -> None:
        said = {note.message for note in notes if "has no effect here" in note.message}
        named = parent or row
        expected = {f"{named.word} has no effect here: {named.how}"} if row.state == "no" else set()
        self.assertEqual(said, expected)
        if row.aside and parent is None:
            self.assertEqual({note.code for note in notes if note.message in expected}, {ASIDE})

    def test_each_setting_is_reported_as_in_its_row(self) -> None:
        for row in each_row("setting"):
            with self.subTest(row.word):
                value: Any = {"enabled": True} if row.word == "sandbox" else "x"
                for name in reversed(row.word.split(".")):
                    value = {name: value}
                self.write({"settings.json": json.dumps(value)})
                notes = read_settings_file(str(self.project / "settings.json")).diagnostics
                above = row_of("setting", row.word.split(".")[0])
                is_below = above is not None and above is not row and above.state == "no"
                self.check(row, notes, above if is_below else None)

    def test_all_settings_about_other_programs_are_one_line_of_a_run(self) -> None:
        aside = {row.word for row in each_row("setting") if row.aside and "." not in row.word}
        self.write({"settings.json": json.dumps({key: {} for key in sorted(aside)})})
        notes = for_a_run(read_settings_file(str(self.project / "settings.json")).diagnostics, "settings")
        self.assertEqual(len(notes), 1)
        self.assertIn("statusLine", notes[0].message)

    def test_each_event_of_hooks_is_reported_as_in_its_row(self) -> None:
        self.assertEqual(words("hook-event", "does", "narrower"), EVENTS.keys())
        for row in each_row("hook-event"):
            with self.subTest(row.word):
                hook = {"hooks": {row.word: [{"hooks": [{"type": "command", "command": "true"}]}]}}
                self.write({"settings.json": json.dumps(hook)})
                hooks = read_settings_file(str(self.project / "settings.json")).hooks
                _, notes = with_command_hooks(HookEngine(), hooks, project_dir=str(self.project))
                no = f"hooks of the event {row.word!r} never run here: {row.how}"
                self.assertEqual([note.message for note in notes], [no] if row.state == "no" else [])

    def test_each_key_of_a_hook_is_reported_as_in_its_row(self) -> None:
        values = {"type": "command", "command": "true", "timeout": 5, "args": [], "shell": "bash"}
        for row in each_row("hook"):
            with self.subTest(row.word):
                entry = {"type": "command", "command": "true", row.word: values.get(row.word, True)}
                self.write({"settings.json": json.dumps({"hooks": {"Stop": [{"hooks": [entry]}]}})})
                self.check(row, read_settings_file(str(self.project / "settings.json")).diagnostics)

    def test_each_type_of_hook_is_reported_as_in_its_row(self) -> None:
        for row in each_row("hook-type"):
            with self.subTest(row.word):
                entry = {"type": row.word, "command": "true", "prompt": "p", "url": "http://127.0.0.1/"}
                self.write({"settings.json": json.dumps({"hooks": {"Stop": [{"hooks": [entry]}]}})})
                read = read_settings_file(str(self.project / "settings.json"))
                said = [note.message for note in read.diagnostics if "hooks of type" in note.message]
                no = f"hooks of type {row.word} are not run here: {row.how}"
                self.assertEqual((said, len(read.hooks)), ([no], 0) if row.state == "no" else ([], 1))

    def test_each_field_of_frontmatter_is_reported_as_in_its_row(self) -> None:
        for kind in ("skill", "command", "agent", "style", "rule-file"):
            for row in each_row(kind):
                with self.subTest(kind=kind, word=row.word):
                    self.check(row, self.notes_of(kind, row.word))

    def notes_of(self, kind: str, word: str) -> list[Diagnostic]:
        """The report on a file of this kind with a field of this name."""
        fields = (
            {"description": "d", word: "x"} if kind == "rule-file" else {"name": "n", "description": "d", word: "x"}
        )
        text = "\n".join(["---", *(f"{key}: {value}" for key, value in fields.items()), "---", "b"])
        file = MarkdownFile("/n.md", "n.md", "project", "/")
        if kind == "command":
            return list(parse_command(text, file)[1])
        if kind == "agent":
            return list(parse_agent(text, file)[1])
        if kind == "skill":
            self.write({".claude/skills/n/SKILL.md": text})
            return check_file(str(self.project / ".claude/skills/n/SKILL.md"))
        name = {"style": ".claude/output-styles/n.md", "rule-file": ".claude/rules/n.md"}[kind]
        self.write({name: text})
        folders = claude_folders(self.project, setting_sources=("project",), managed_dir=None)
        return list((read_output_style(folders, "n") if kind == "style" else read_memory(folders)).diagnostics)

    def plugin_notes(self, files: Mapping[str, str]) -> list[Diagnostic]:
        notes: list[Diagnostic] = []
        self.write({f"plug/{name}": text for name, text in files.items()})
        load_plugin("p@local", str(self.project / "plug"), "plugin", notes)
        return notes

    def test_each_field_of_a_plugin_is_reported_as_in_its_row(self) -> None:
        for row in each_row("plugin"):
            with self.subTest(row.word):
                name, _, inner = row.word.partition(".")
                manifest = {"name": "p", name: {inner: "x"} if inner else "x"}
                self.check(row, self.plugin_notes({".claude-plugin/plugin.json": json.dumps(manifest)}))

    def test_each_folder_of_a_plugin_is_reported_as_in_its_row(self) -> None:
        folders = {"skills", "commands", "agents", "output-styles", "scripts", "bin", "workflows", "monitors", "themes"}
        for row in each_row("plugin-file"):
            with self.subTest(row.word):
                self.project = self.parent / row.word.replace("/", "-")
                name = f"{row.word}/x" if row.word in folders else row.word
                self.check(row, self.plugin_notes({name: '{"name": "p"}', "README.md": "r"}))

    def market_notes(self, entry: Mapping[str, Any], **more: Any) -> list[Diagnostic]:
        notes: list[Diagnostic] = []
        self.write(
            {"a/x": "", ".claude-plugin/marketplace.json": json.dumps({"name": "m", "plugins": [entry], **more})}
        )
        listed_plugins(str(self.project), notes)
        return notes

    def test_each_field_of_a_marketplace_is_reported_as_in_its_row(self) -> None:
        for row in each_row("marketplace"):
            with self.subTest(row.word):
                name, _, inner = row.word.partition(".")
                more = {} if row.word in ("name", "plugins") else {name: {inner: "x"} if inner else "x"}
                self.check(row, self.market_notes({"name": "a", "source": "./a"}, **more))
        for row in each_row("marketplace-plugin"):
            with self.subTest(row.word):
                self.check(row, self.market_notes({row.word: "x", "name": "a", "source": "./a"}))

    def test_each_source_of_a_plugin_is_reported_as_in_its_row(self) -> None:
        own = {"./path": {"source": "./a"}, "name below pluginRoot": {"source": "a"}}
        for row in each_row("plugin-source"):
            with self.subTest(row.word):
                notes = self.market_notes(
                    {"name": "a", **own.get(row.word, {"source": {"source": row.word}})}, metadata={"pluginRoot": "./"}
                )
                no = f"plugins of the source {row.word} are not supported: {row.how}"
                self.assertEqual([note.message for note in notes], [no] if row.state == "no" else [])

    def test_each_variable_of_the_environment_is_reported_as_in_its_row(self) -> None:
        for row in each_row("environment"):
            with self.subTest(row.word):
                self.write({"settings.json": json.dumps({"env": {row.word: "x"}})})
                read = read_settings_file(str(self.project / "settings.json"))
                self.check(row, read.diagnostics)
                self.assertEqual(read.env, {row.word: "x"})

    def test_each_permission_mode_is_reported_as_in_its_row(self) -> None:
        for row in each_row("mode"):
            with self.subTest(row.word):
                if row.state == "no":
                    self.assertRaises(OptionsError, read_mode, row.word)
                else:
                    self.assertTrue(read_mode(row.word))

    def test_a_run_reports_a_mistyped_setting_and_no_other_unknown_one(self) -> None:
        self.write({"settings.json": '{"myOwn": 1, "permisions": {"allow": ["Bash"]}}'})
        notes = read_settings_file(str(self.project / "settings.json")).diagnostics
        self.assertEqual(len(notes), 2)
        self.assertEqual(
            [note.message for note in for_a_run(notes, "settings")],
            ["permisions has no effect here: did you mean permissions?"],
        )


class EffectiveWords(ProjectTestCase):
    """Each word with an effect changes what is read: without it, the same file is read differently."""

    SETTINGS: ClassVar[Mapping[str, Any]] = {
        "permissions": {"allow": ["Bash"]},
        "permissions.allow": ["Bash"],
        "permissions.ask": ["Bash"],
        "permissions.deny": ["Bash"],
        "permissions.labels": ["guard"],
        "permissions.additionalDirectories": ["/tmp"],
        "permissions.defaultMode": "plan",
        "permissions.disableBypassPermissionsMode": "disable",
        "hooks": {"Stop": [{"hooks": [{"type": "command", "command": "true"}]}]},
        "env": {"A": "b"},
        "modelNames": {"opus": "big"},
        "enabledPlugins": {"a@b": True},
        "extraKnownMarketplaces": {"b": {"source": {"source": "directory", "path": "./b"}}},
        "claudeMdExcludes": ["/a/**"],
        "enabledMcpjsonServers": ["a"],
        "disabledMcpjsonServers": ["a"],
        "model": "m",
        "outputStyle": "brief",
        "agentsMd": "both",
        "skillPrecedence": "user",
    }
    FIELDS: ClassVar[Mapping[str, str]] = {
        "disable-model-invocation": "true",
        "user-invocable": "false",
        "user-invokable": "false",
        "maxTurns": "3",
        "hooks": "{Stop: []}",
        "paths": "'*.py'",
    }

    def read_as_managed(self, data: Mapping[str, Any]) -> Settings:
        self.write({"managed/managed-settings.json": json.dumps(data)})
        folders = claude_folders(
            self.project, setting_sources=("user",), home=self.parent / "h", managed_dir=self.project / "managed"
        )
        return replace(read_settings(folders), values={}, diagnostics=())

    def test_each_setting_that_counts_changes_what_is_read(self) -> None:
        hook = {"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "true"}]}]}}
        for word in words("setting", "does", "narrower", "ours"):
            with self.subTest(word):
                value = self.SETTINGS.get(word, True)
                for name in reversed(word.split(".")):
                    value = {name: value}
                besides: dict[str, Any] = {} if word == "hooks" else hook
                self.assertNotEqual(self.read_as_managed({**besides, **value}), self.read_as_managed(besides))

    def test_each_field_of_a_file_that_counts_changes_what_is_read(self) -> None:
        file = MarkdownFile("/n.md", "n.md", "project", "/")
        readers: dict[str, Callable[[str], Any]] = {
            "skill": lambda text: replace(parse_skill_markdown(text), raw="", body_line=0, extra={}, lines={}),
            "command": lambda text: parse_command(text, file)[0],
            "agent": lambda text: parse_agent(text, file)[0],
        }
        for kind, read in readers.items():
            for word in words(kind, "does", "narrower", "ours"):
                with self.subTest(kind=kind, word=word):
                    plain = {"name": "n", "description": "d"}
                    used = {**plain, word: self.FIELDS.get(word, "other")}
                    texts = [
                        "\n".join(["---", *(f"{k}: {v}" for k, v in f.items()), "---", "b"]) for f in (plain, used)
                    ]
                    self.assertNotEqual(read(texts[1]), read(texts[0]))

    def test_variables_that_name_models_count(self) -> None:
        for word in words("environment", "does"):
            with self.subTest(word):
                self.write({".claude/settings.json": json.dumps({"env": {word: "named-1"}})})
                options = OpenAgenticOptions(cwd=self.project, setting_sources=("project",), trust_project=True)
                self.assertIn("named-1", open_project(options).settings.model_names.values())

    def test_each_key_of_a_hook_that_counts_changes_what_runs(self) -> None:
        values = {
            "timeout": 5,
            "args": ["-v"],
            "if": "Bash(git:*)",
            "command": "false",
            "shell": "powershell",
            "type": "prompt",
        }
        plain = {"type": "command", "command": "true"}

        def hooks(entry: Mapping[str, Any]) -> tuple[Any, ...]:
            self.write({"settings.json": json.dumps({"hooks": {"PreToolUse": [{"hooks": [entry]}]}})})
            return read_settings_file(str(self.project / "settings.json")).hooks

        for word in words("hook", "does", "narrower"):
            with self.subTest(word):
                self.assertNotEqual(hooks({**plain, word: values.get(word, True)}), hooks(plain))


class Rules(unittest.TestCase):
    def test_each_form_of_a_rule_works_as_in_its_row(self) -> None:
        from openagentic_sdk.parts.project.settings import SettingsRule

        for row in each_row("rule"):
            with self.subTest(row.word):
                rule = SettingsRule(row.word, "/p/.claude/settings.json", "project")
                found = rules_of_settings(Settings(deny=(rule,)), "/p")
                self.assertEqual(bool(found.deny) or bool(found.ask), True)
                if row.state == "does":
                    self.assertEqual([note.message for note in found.diagnostics], [])


class Hooks(unittest.TestCase):
    POINTS: ClassVar[Mapping[str, str]] = {**EVENTS, "*": "pre_tool_use"}
    # A field that has no effect alone needs another one beside it.
    BESIDE: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "stopReason": {"continue": False},
        "reason": {"decision": "block"},
        "permissionDecisionReason": {"hookSpecificOutput": {"permissionDecision": "deny"}},
        "decision.updatedInput": {"hookSpecificOutput": {"decision": {"behavior": "allow"}}},
        "decision.message": {"hookSpecificOutput": {"decision": {"behavior": "deny"}}},
        "decision.interrupt": {"hookSpecificOutput": {"decision": {"behavior": "deny"}}},
    }
    VALUES: ClassVar[Mapping[str, Any]] = {
        "continue": False,
        "decision": "block",
        "permissionDecision": "ask",
        "permissionDecision: defer": "defer",
        "updatedInput": {"command": "ls"},
        "decision.behavior": "allow",
        "decision.updatedInput": {"command": "ls"},
        "decision.interrupt": True,
        "suppressOutput": True,
        "updatedToolOutput": {"stdout": ""},
        "updatedMCPToolOutput": {"stdout": ""},
    }
    COMMON: ClassVar[frozenset[str]] = frozenset(
        {"continue", "stopReason", "systemMessage", "suppressOutput", "terminalSequence", "decision", "reason"}
    )

    def test_each_field_that_hooks_answer_works_as_in_its_row(self) -> None:
        for row in each_row("hook-output"):
            event, _, field = row.word.partition(".")
            with self.subTest(row.word):
                value = self.VALUES.get(field, "text")
                beside = dict(self.BESIDE.get(field, {}))
                before = answer_of(self.POINTS[event], json.dumps(beside))
                if field in self.COMMON:
                    answer = {**beside, field: value}
                else:
                    name, _, inner = field.partition(":")[0].partition(".")
                    specific = dict(beside.get("hookSpecificOutput", {}))
                    specific[name] = {**specific.get(name, {}), inner: value} if inner else value
                    answer = {**beside, "hookSpecificOutput": specific}
                after = answer_of(self.POINTS[event], json.dumps(answer))
                counts = row.state in ("does", "narrower") or bool(after and "no effect here" in str(after))
                self.assertEqual(after != before, counts)

    def test_each_field_that_hooks_read_exists_as_in_its_row(self) -> None:
        from tests.project.test_whole_project import EVERY, OF_EVENT

        for row in each_row("hook-input"):
            event, _, field = row.word.partition(".")
            with self.subTest(row.word):
                there = EVERY if event == "*" else OF_EVENT.get(event, ())
                if row.state == "no":
                    self.assertNotIn(field, there)
                elif event != "*" and event in OF_EVENT:
                    self.assertIn(field, there)


class Texts(ProjectTestCase):
    def test_each_variable_is_filled_as_in_its_row(self) -> None:
        names = {
            "CLAUDE_SESSION_ID",
            "CLAUDE_SKILL_DIR",
            "CLAUDE_PROJECT_DIR",
            "CLAUDE_PLUGIN_ROOT",
            "CLAUDE_PLUGIN_DATA",
        }
        values = dict.fromkeys(names, "/there")
        for row in each_row("variable"):
            with self.subTest(row.word):
                text = row.word.replace("$N", "$1")
                filled = fill_arguments(fill_variables(text, values), "one two", names=("name",), first=1)
                self.assertEqual(not filled.startswith(text), row.state in ("does", "narrower"))

    def test_each_rule_of_memory_holds_as_in_its_row(self) -> None:
        self.write(
            {
                "../home/.claude/CLAUDE.md": "of the user @~/none",
                "../home/.claude/rules/r.md": "rule of the user",
                "../managed/CLAUDE.md": "of the organization",
                "CLAUDE.md": "of the project @more.md\n<!-- for people -->\n",
                "more.md": "imported",
                ".claude/CLAUDE.md": "of the folder",
                "CLAUDE.local.md": "my own",
                ".claude/rules/a.md": "a rule",
                "below/CLAUDE.md": "nested",
                "MEMORY.md": "kept notes",
                "AGENTS.md": "of agents",
            }
        )
        folders = claude_folders(
            self.project,
            setting_sources=("user", "project", "local"),
            home=self.parent / "home",
            managed_dir=self.parent / "managed",
        )
        read = "\n".join(file.text for file in read_memory(folders).files)
        expected = {
            "~/.claude/CLAUDE.md": "of the user",
            "~/.claude/rules/*.md": "rule of the user",
            "/etc/claude-code/CLAUDE.md": "of the organization",
            "./CLAUDE.md": "of the project",
            "./.claude/CLAUDE.md": "of the folder",
            "./CLAUDE.local.md": "my own",
            "@path": "imported",
            ".claude/rules/*.md": "a rule",
        }
        for row in each_row("memory"):
            with self.subTest(row.word):
                if row.word in expected:
                    self.assertIn(expected[row.word], read)
        for absent in ("for people", "nested", "kept notes", "of agents"):
            self.assertNotIn(absent, read)


class BuiltIn(RunTestCase):
    def test_each_built_in_agent_exists_as_in_its_row(self) -> None:
        names = [agent.name for agent in BUILT_IN_AGENTS]
        for row in each_row("built-in-agent"):
            with self.subTest(row.word):
                self.assertEqual(row.word in names, row.state != "no")
        self.assertEqual(set(names) - {row.word for row in each_row("built-in-agent")}, set())

    def test_each_command_that_edits_runs_as_in_its_row(self) -> None:
        self.write({"a.txt": "a", "empty/.keep": ""})
        (self.project / "empty/.keep").unlink()
        gate = PermissionGate(permission_mode="acceptEdits", workspace_roots=(str(self.project),))
        context = {"cwd": str(self.project), "project_dir": str(self.project)}
        for row in each_row("edit-command"):
            with self.subTest(row.word):
                outcome = gate.verdict("Bash", {"command": row.word}, context).outcome
                self.assertEqual(outcome, "ask" if row.state == "no" else "allow")

    def test_each_way_to_name_a_skill_works_as_in_its_row(self) -> None:
        for place, name in (
            (".claude", "deploy"), ("apps/web/.claude", "deploy"), (".claude", "s1"), (".claude", "s2"), (".claude", "mine"),
            ("../home/.claude", "mine"),
        ):  # fmt: skip
            text = f"---\nname: {name}\ndescription: d\n---\nThat of {place}.\n"
            self.write({f"{place}/skills/{name}/SKILL.md": text})
        self.write({"apps/web/a.ts": ""})
        read = {"tool_calls": [{"name": "Read", "arguments": {"file_path": "apps/web/a.ts"}}]}
        first = self.run_script(read, "Seen.", setting_sources=("user", "project"))
        expected = {
            "/deploy": [".claude"], "/apps/web:deploy": ["apps/web/.claude"], "/s1 /s2 text": [".claude", ".claude"],
            "/mine": ["../home/.claude"],
        }  # fmt: skip
        for row in each_row("skill-name"):
            with self.subTest(row.word):
                sources = ("user", "project")
                result = self.run_script("Done.", prompt=row.word, resume=first.session_id, setting_sources=sources)
                bodies = [event.body for event in result.events if isinstance(event, SkillActivated)]
                self.assertEqual(bodies, [f"That of {place}." for place in expected[row.word]])
