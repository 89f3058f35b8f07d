"""Plugins added by a person: they apply as they were at that time, and nothing is fetched."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from pathlib import Path

from openagentic_sdk.assemble import open_project
from openagentic_sdk.cli.main import main
from openagentic_sdk.options import OpenAgenticOptions
from openagentic_sdk.parts.mcp.configured.read import plugin_entries
from openagentic_sdk.parts.project.project import OpenedProject
from tests.skills.support import RunTestCase

FIXTURE = Path(__file__).parents[2] / "fixtures/projects/claude_code/market"
ON = 'notes@local takes effect from now on: {"enabledPlugins": {"notes@local": false}} in settings disables one\n'
OFF = (
    'notes@house takes effect once settings enable it: write {"enabledPlugins": {"notes@house": true}} into '
    f"{os.path.expanduser('~/.claude/settings.json')}\n"
)


class PluginTestCase(RunTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.market = self.parent / "market"
        shutil.copytree(FIXTURE, self.market)
        before = os.environ.get("OPENAGENTIC_SDK_HOME")
        os.environ["OPENAGENTIC_SDK_HOME"] = str(self.parent / "sdk")
        self.addCleanup(lambda: os.environ.update({"OPENAGENTIC_SDK_HOME": before or ""}))
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.project)

    def command(self, *args: str) -> tuple[int, str]:
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
            code = main(["plugins", *args])
        return code, out.getvalue()

    def skills(self) -> str:
        result = self.run_script("Done.", setting_sources=("user",))
        (context,) = [event for event in result.events if event.type == "model.context"]
        said = [event.message for event in result.events if event.type == "system.notice"]
        return "\n".join([context.system_prompt, *said])


class PluginTest(PluginTestCase):
    def test_an_added_plugin_counts_until_its_files_change(self) -> None:
        self.assertNotIn("notes:jot", self.skills())
        self.assertEqual(self.command("add", str(self.market / "notes")), (0, f"added notes@local\n{ON}"))
        self.assertIn("notes:jot: Write a note.", self.skills())
        self.assertIn("notes@local [plugin]", self.command("list")[1])
        with open(self.market / "notes/commands/all.md", "a", encoding="utf-8") as file:
            file.write("More.\n")
        changed = self.skills()
        self.assertNotIn("notes:jot", changed)
        self.assertIn("changed since it was added", changed)
        self.assertEqual(self.command("list")[0], 1)
        self.assertEqual(self.command("add", str(self.market / "notes"))[0], 0)
        self.assertIn("notes:jot", self.skills())
        self.assertEqual((self.command("remove", "notes")[0], self.command("remove", "notes")[0]), (0, 1))
        self.assertNotIn("notes:jot", self.skills())

    def test_a_folder_without_anything_of_a_plugin_is_not_added(self) -> None:
        self.write({"empty/notes.txt": "", "empty/scripts/run.sh": ""})
        code, out = self.command("add", str(self.project / "empty"))
        self.assertEqual(code, 2)
        self.assertIn("contains no plugin that can be added: give a folder with .claude-plugin/plugin.json", out)
        self.assertNotIn("empty", self.command("list")[1])

    def test_the_plugins_of_a_marketplace_count_once_settings_switch_them_on(self) -> None:
        self.assertEqual(self.command("add", str(self.market)), (0, f"added notes@house\n{OFF}"))
        self.assertNotIn("notes:jot", self.skills())
        self.write(
            {"../home/.claude/settings.json": json.dumps({"enabledPlugins": {"notes@house": True, "x@github": True}})}
        )
        found = self.skills()
        self.assertIn("notes:jot", found)
        self.assertIn("the plugin 'x@github' is not installed", found)

    def test_check_lists_the_contents_of_a_plugin_and_its_errors(self) -> None:
        code, out = self.command("check", str(self.market / "notes"))
        self.assertEqual(code, 0)
        for words in (
            "plugin notes",
            "commands: /notes:all",
            "agents: notes:clerk",
            "skills: notes:jot",
            "at UserPromptSubmit run: echo",
        ):
            self.assertIn(words, out)
        for manifest, words in (
            ("{", "left out"),
            ('{"name": 5}', "no name"),
            ('{"name": "a", "skills": 1}', "neither a path"),
        ):
            with self.subTest(manifest):
                self.write({"../market/notes/.claude-plugin/plugin.json": manifest})
                code, out = self.command("check", str(self.market / "notes"))
                self.assertEqual((code, words in out), (1, True), out)
                self.assertEqual(self.command("add", str(self.market / "notes"))[0], 2)

    def test_a_plugin_reaches_nothing_outside_of_its_folder(self) -> None:
        manifest = {"name": "notes", "commands": ["../../outside", "./commands"], "skills": "../../outside"}
        self.write({"../market/notes/.claude-plugin/plugin.json": json.dumps(manifest)})
        self.assertEqual(self.command("add", str(self.market / "notes"))[0], 0)
        found = self.skills()
        self.assertIn("notes:jot", found)
        self.assertNotIn("notes:x", found)

    def test_hooks_that_are_not_an_object_are_a_finding(self) -> None:
        (self.market / "notes/hooks/hooks.json").write_text('{"hooks": ["echo"]}')
        out = self.command("check", str(self.market / "notes"))[1]
        self.assertIn("hooks is ignored: it must be an object", out)
        self.assertIn("plugin notes", out)
        self.assertEqual(self.command("add", str(self.market / "notes"))[0], 0)
        self.assertIn("notes:jot", self.skills())

    def test_texts_that_are_not_paths_are_passed_over(self) -> None:
        entry = {"name": "notes", "source": "./notes"}
        for text in ("a\0b", "\ud800"):
            with self.subTest(ascii(text)):
                manifest = {"name": "notes", "commands": [text, "./commands"], "skills": text}
                market = {
                    "name": "house",
                    "metadata": {"pluginRoot": text},
                    "plugins": [{"source": text, "name": "x"}, entry],
                }
                self.write(
                    {
                        "../market/notes/.claude-plugin/plugin.json": json.dumps(manifest),
                        "../market/.claude-plugin/marketplace.json": json.dumps(market),
                    }
                )
                code, out = self.command("add", str(self.market))
                self.assertEqual((code, out.startswith(f"added notes@house\n{OFF}")), (0, True))
                self.assertEqual(self.command("add", str(self.market / "notes"))[0], 0)
                self.assertIn("notes:jot", self.skills())

    def test_a_file_of_hooks_that_is_a_link_is_read_once(self) -> None:
        hooks = self.market / "notes/hooks/hooks.json"
        hooks.rename(hooks.with_name("real.json"))
        hooks.symlink_to("real.json")
        code, out = self.command("check", str(self.market / "notes"))
        self.assertEqual((code, out.count("at UserPromptSubmit run: echo")), (0, 1), out)


class MarketplaceTest(PluginTestCase):
    """Marketplaces whose entries describe their plugins, as published ones do."""

    def publish(self, *entries: dict[str, object], **files: str) -> None:
        """A marketplace `pub` with skills, commands, agents and a hook script in one folder."""
        shutil.rmtree(self.market)
        skill = "---\nname: {0}\ndescription: About {0}.\n---\nDo {0}.\n"
        self.write(
            {
                **{f"../market/skills/{name}/SKILL.md": skill.format(name) for name in ("xlsx", "pdf", "art")},
                "../market/commands/all.md": "---\ndescription: All of it.\n---\nList.",
                "../market/more/one.md": "---\ndescription: One.\n---\nOne.",
                "../market/agents/clerk.md": "---\nname: clerk\ndescription: Keeps.\n---\nKeep.",
                "../market/agents/other.md": "---\nname: other\ndescription: Other.\n---\nOther.",
                "../market/.mcp.json": '{"mcpServers": {"shared": {"command": "shared"}}}',
                "../market/.claude-plugin/marketplace.json": json.dumps({"name": "pub", "plugins": entries}),
                **{f"../market/{name}": text for name, text in files.items()},
            }
        )

    def enable(self, *names: str) -> None:
        chosen = json.dumps({"enabledPlugins": dict.fromkeys(names, True)})
        self.write({"../home/.claude/settings.json": chosen})

    def opened(self) -> OpenedProject:
        return open_project(OpenAgenticOptions(cwd=self.project, setting_sources=("user",), home=self.parent / "home"))

    def test_an_entry_with_strict_false_is_all_that_its_plugin_brings(self) -> None:
        hook = {"PreToolUse": [{"hooks": [{"type": "command", "command": "${CLAUDE_PLUGIN_ROOT}/guard.sh"}]}]}
        documents = {
            "name": "document-skills",
            "source": "./",
            "strict": False,
            "skills": ["./skills/xlsx", "./skills/pdf"],
            "commands": ["./more/one.md"],
            "agents": ["./agents/clerk.md"],
            "hooks": hook,
            "mcpServers": {"db": {"command": "db-server"}},
        }
        self.publish(documents, {"name": "arts", "source": "./", "strict": False, "skills": ["./skills/art"]})
        self.assertEqual(self.command("add", str(self.market))[0], 0)
        self.enable("document-skills@pub", "arts@pub")
        project = self.opened()
        skills = [skill.name for skill in project.skills().skills]
        self.assertEqual(skills, ["arts:art", "document-skills:pdf", "document-skills:xlsx"])
        self.assertEqual([command.name for command in project.commands.commands], ["document-skills:one"])
        self.assertEqual([agent.name for agent in project.agents.agents], ["document-skills:clerk"])
        self.assertEqual(
            [(hook.event, hook.root) for hook in project.settings.hooks], [("PreToolUse", str(self.market))]
        )
        entries = [entry.name for plugin in project.plugins.plugins for entry in plugin_entries(plugin, [], "")]
        self.assertEqual(entries, ["plugin_document-skills_db"])
        self.assertEqual(project.plugins.diagnostics, ())

    def test_an_entry_adds_to_a_manifest_that_lists_its_plugins_contents(self) -> None:
        entry = {"name": "notes", "source": "./notes", "skills": "./extra", "commands": "./more"}
        own = {"name": "notes", "commands": ["./commands"]}
        extra = "---\nname: extra\ndescription: More.\n---\nDo.\n"
        self.publish(
            entry,
            **{
                "notes/.claude-plugin/plugin.json": json.dumps(own),
                "notes/commands/all.md": "All.",
                "notes/more/one.md": "One.",
                "notes/skills/jot/SKILL.md": extra.replace("extra", "jot"),
                "notes/extra/extra/SKILL.md": extra,
            },
        )
        self.command("add", str(self.market))
        self.enable("notes@pub")
        project = self.opened()
        self.assertEqual([skill.name for skill in project.skills().skills], ["notes:extra", "notes:jot"])
        self.assertEqual([command.name for command in project.commands.commands], ["notes:all", "notes:one"])

    def test_an_entry_that_listed_nothing_brings_what_its_folder_has(self) -> None:
        self.publish({"name": "whole", "source": "./", "strict": False})
        self.command("add", str(self.market))
        self.enable("whole@pub")
        project = self.opened()
        self.assertEqual([skill.name for skill in project.skills().skills], ["whole:art", "whole:pdf", "whole:xlsx"])
        self.assertEqual([command.name for command in project.commands.commands], ["whole:all"])

    def test_a_manifest_that_contradicts_strict_false_is_refused(self) -> None:
        self.publish(
            {"name": "notes", "source": "./notes", "strict": False, "commands": "./more"},
            {"name": "arts", "source": "./", "strict": False, "skills": ["./skills/art"]},
            **{"notes/.claude-plugin/plugin.json": '{"name": "notes", "agents": []}'},
        )
        code, out = self.command("add", str(self.market))
        self.assertEqual((code, "added arts@pub" in out, "added notes@pub" in out), (0, True, False))
        self.assertIn("its own manifest also names agents", out)

    def test_an_entry_that_changed_since_it_was_added_counts_no_more(self) -> None:
        self.publish({"name": "arts", "source": "./", "strict": False, "skills": ["./skills/art"]})
        self.command("add", str(self.market))
        self.enable("arts@pub")
        self.assertEqual(len(self.opened().skills().skills), 1)
        wider = {"name": "arts", "source": "./", "strict": False, "skills": ["./skills/art", "./skills/pdf"]}
        self.write({"../market/.claude-plugin/marketplace.json": json.dumps({"name": "pub", "plugins": [wider]})})
        project = self.opened()
        self.assertEqual(project.skills().skills, ())
        self.assertIn("changed since it was added", project.plugins.diagnostics[0].message)

    def test_a_marketplace_of_the_project_offers_the_plugins_of_its_entries(self) -> None:
        self.publish({"name": "arts", "source": "./", "strict": False, "skills": ["./skills/art"]})
        shutil.copytree(self.market, self.project / "market")
        source = {"source": {"source": "directory", "path": "./market"}}
        chosen = {"extraKnownMarketplaces": {"pub": source}, "enabledPlugins": {"arts@pub": True}}
        self.write({".claude/settings.json": json.dumps(chosen)})
        options = OpenAgenticOptions(cwd=self.project, setting_sources=("project",), trust_project=True)
        self.assertEqual([skill.name for skill in open_project(options).skills().skills], ["arts:art"])

    def test_check_looks_at_a_marketplace_and_at_each_of_its_plugins(self) -> None:
        self.publish(
            {"name": "arts", "source": "./", "strict": False, "skills": ["./skills/art"], "lspServers": {}},
            {"name": "far", "source": {"source": "github", "repo": "a/b"}},
            {"name": "gone", "source": "./gone"},
            {"name": "arts", "source": "./"},
            {"source": "./"},
        )
        code, out = self.command("check", str(self.market))
        self.assertEqual(code, 1)
        for words in (
            "1 plugin of its own",
            "plugin arts",
            "skills: arts:art",
            "lspServers has no effect here",
            "plugins of the source github are not supported: obtain its folder",
            "gone: there is no folder './gone'",
            "arts@pub is listed twice",
            "plugins[4] has no name",
        ):
            self.assertIn(words, out)

    def test_a_plugin_of_an_unsupported_source_is_an_error_that_names_the_source(self) -> None:
        self.publish({"name": "far", "source": {"source": "npm", "package": "a"}})
        code, out = self.command("add", str(self.market))
        self.assertEqual(code, 2)
        self.assertIn("plugins of the source npm are not supported", out)
