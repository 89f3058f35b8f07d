"""Plugins that a person added: they count as they were then, and nothing is fetched."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from pathlib import Path

from openagentic_sdk.cli.main import main
from tests.skills.support import RunTestCase

FIXTURE = Path(__file__).parents[2] / "fixtures/projects/claude_code/market"


class PluginTest(RunTestCase):
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

    def test_an_added_plugin_counts_until_its_files_change(self) -> None:
        self.assertNotIn("notes:jot", self.skills())
        self.assertEqual(self.command("add", str(self.market / "notes")), (0, "added notes@local\n"))
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

    def test_the_plugins_of_a_marketplace_count_once_settings_switch_them_on(self) -> None:
        self.assertEqual(self.command("add", str(self.market)), (0, "added notes@house\n"))
        self.assertNotIn("notes:jot", self.skills())
        self.write(
            {"../home/.claude/settings.json": json.dumps({"enabledPlugins": {"notes@house": True, "x@github": True}})}
        )
        found = self.skills()
        self.assertIn("notes:jot", found)
        self.assertIn("the plugin 'x@github' is not here", found)

    def test_check_says_what_a_plugin_brings_and_what_is_wrong(self) -> None:
        code, out = self.command("check", str(self.market / "notes"))
        self.assertEqual(code, 0)
        for words in ("plugin notes", "commands: all", "agents: clerk", "at UserPromptSubmit run: echo"):
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

    def test_hooks_that_are_no_object_are_a_finding(self) -> None:
        (self.market / "notes/hooks/hooks.json").write_text('{"hooks": ["echo"]}')
        out = self.command("check", str(self.market / "notes"))[1]
        self.assertIn("hooks is left out: an object is expected", out)
        self.assertIn("plugin notes", out)
        self.assertEqual(self.command("add", str(self.market / "notes"))[0], 0)
        self.assertIn("notes:jot", self.skills())

    def test_texts_that_are_no_paths_are_passed_over(self) -> None:
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
                self.assertEqual(self.command("add", str(self.market)), (0, "added notes@house\n"))
                self.assertEqual(self.command("add", str(self.market / "notes"))[0], 0)
                self.assertIn("notes:jot", self.skills())

    def test_a_file_of_hooks_that_is_a_link_is_read_once(self) -> None:
        hooks = self.market / "notes/hooks/hooks.json"
        hooks.rename(hooks.with_name("real.json"))
        hooks.symlink_to("real.json")
        code, out = self.command("check", str(self.market / "notes"))
        self.assertEqual((code, out.count("at UserPromptSubmit run: echo")), (0, 1), out)
