"""settings.json files: precedence, merging, invalid entries, and what an untrusted project does not get."""

from __future__ import annotations

import json
import os
import stat
import unittest
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from openagentic_sdk import MemorySessionStore, OpenAgenticOptions, run_sync
from openagentic_sdk.errors import OptionsError
from openagentic_sdk.parts.project.claude import claude_folders
from openagentic_sdk.parts.project.granting import granting_files
from openagentic_sdk.parts.project.settings import (
    INACCESSIBLE,
    CommandHook,
    Settings,
    read_settings,
    refuse_inaccessible,
)
from openagentic_sdk.testing import ScriptedProvider
from tests.skills.support import ProjectTestCase

PLACES = {
    "managed": "managed/managed-settings.json",
    "local": ".claude/settings.local.json",
    "project": ".claude/settings.json",
    "user": "home/.claude/settings.json",
}


def hook(command: str, **more: Any) -> dict[str, Any]:
    return {"hooks": [{"type": "command", "command": command, **more}]}


class SettingsTest(ProjectTestCase):
    def read(
        self, *, trusted: bool = True, sources: tuple[str, ...] = ("user", "project", "local"), **files: Any
    ) -> Settings:
        self.write(
            {PLACES[scope]: data if isinstance(data, str) else json.dumps(data) for scope, data in files.items()}
        )
        folders = claude_folders(
            self.project, setting_sources=sources, home=self.project / "home", managed_dir=self.project / "managed"
        )
        return read_settings(folders, trusted=trusted)

    def test_settings_with_a_key_twice_are_left_out(self) -> None:
        self.write({".claude/settings.json": '{"permissions": {"deny": ["Bash"]}, "permissions": {"deny": []}}'})
        [note] = read_settings(claude_folders(self.project, setting_sources=("project",), managed_dir=None)).diagnostics
        self.assertIn("'permissions' appears twice", note.message)

    def test_a_repeated_key_names_no_file_that_grants(self) -> None:
        hooks = '"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "sh run.sh"}]}]}'
        for text, count in (f"{{{hooks}}}", 1), (f"{{{hooks}, {hooks}}}", 0):
            self.write({".claude/settings.json": text, "run.sh": "true"})
            found = granting_files(str(self.project)).files
            self.assertEqual(sum("run.sh" in name for name in found), count, found)

    def test_a_missing_file_sets_nothing(self) -> None:
        self.assertEqual(self.read(), Settings())

    def test_the_highest_file_gives_the_single_values(self) -> None:
        files = {scope: {"model": scope, "x": scope, "env": {"A": scope, scope: "1"}} for scope in PLACES}
        settings = self.read(**files)
        self.assertEqual((settings.model, settings.values["x"], settings.env["A"]), ("managed",) * 3)
        self.assertEqual(sorted(settings.env), ["A", "local", "managed", "project", "user"])

    def test_lists_are_joined_and_name_the_file_of_each_rule(self) -> None:
        settings = self.read(
            project={"permissions": {"allow": ["Read", "Grep"], "deny": ["Bash"]}, "list": [1]},
            user={"permissions": {"allow": ["Read", "Glob"]}, "list": [1, 2]},
        )
        self.assertEqual(
            [(rule.text, rule.scope) for rule in settings.allow],
            [("Read", "project"), ("Grep", "project"), ("Glob", "user")],
        )
        self.assertEqual(settings.deny[0].source, str(self.project / ".claude/settings.json"))
        self.assertEqual(settings.values["list"], [1, 2])

    def test_hooks_are_data(self) -> None:
        entry = {"matcher": "Bash", "hooks": [{"type": "command", "command": "check", "timeout": 5}]}
        settings = self.read(
            project={"hooks": {"PreToolUse": [entry], "Stop": [{"hooks": [{"type": "command", "command": "s"}]}]}}
        )
        source = str(self.project / ".claude/settings.json")
        self.assertEqual(
            settings.hooks,
            (
                CommandHook("PreToolUse", "Bash", "check", source, "project", 5),
                CommandHook("Stop", "", "s", source, "project", None),
            ),
        )

    def test_a_bad_entry_is_left_out_and_the_rest_counts(self) -> None:
        settings = self.read(
            user={
                "model": 5,
                "permissions": {"allow": ["Read", 7, ""], "deny": "Bash", "defaultMode": []},
                "env": {"A": "1", "B": {}, "C=D": "x", "E": True, "F": 2},
                "hooks": {
                    "Stop": [
                        5,
                        {
                            "hooks": [
                                {"type": "http"},
                                {"type": "command"},
                                {"type": "command", "command": "x", "timeout": -1},
                            ]
                        },
                    ],
                    "Start": {},
                },
            }
        )
        self.assertEqual([rule.text for rule in settings.allow], ["Read"])
        self.assertEqual(settings.env, {"A": "1", "E": "true", "F": "2"})
        self.assertEqual((settings.model, settings.default_mode, settings.deny, settings.hooks), (None, None, (), ()))
        self.assertEqual({note.code for note in settings.diagnostics}, {"settings-entry"})
        self.assertEqual(len(settings.diagnostics), 12)

    def test_a_file_that_is_not_json_is_left_out_and_named(self) -> None:
        for text in ("{", "[]", "\x00", '{"a": ' + "[" * 100_000, ""):
            with self.subTest(text[:10]):
                settings = self.read(project=text, user={"model": "m"})
                self.assertEqual((settings.model, settings.diagnostics[0].code), ("m", "settings-unreadable"))

    @unittest.skipUnless(hasattr(os, "seteuid"), "this system has no users to test with")
    def test_no_run_begins_without_the_settings_that_cannot_be_read(self) -> None:
        deny = {"permissions": {"deny": ["Bash"]}}
        for scope, path in PLACES.items():
            folder = path.rpartition("/")[0]
            for closed in (path, folder) if scope != "managed" else (path,):
                with self.subTest(closed), self.closed_to_us(closed, partial(self.read, **{scope: deny})):
                    settings = self.read(sources=(scope if scope != "managed" else "user",))
                    if scope == "user" and closed == folder:  # the home folder of another user is not this user's
                        self.assertEqual(settings, Settings())
                        continue
                    self.assertEqual((settings.deny, settings.diagnostics[0].code), ((), INACCESSIBLE))
                    with self.assertRaisesRegex(OptionsError, f"{PLACES[scope]}: .*Permission denied.*setting_sources"):
                        refuse_inaccessible(settings)
                    if scope == "project":
                        options = OpenAgenticOptions(
                            provider=ScriptedProvider([]), model="m", cwd=str(self.project), project_dir=str(self.project),
                            setting_sources=["project"], session_store=(store := MemorySessionStore()),
                        )  # fmt: skip
                        with self.assertRaisesRegex(OptionsError, "no run begins"):
                            run_sync(prompt="Remove it.", options=options)
                        self.assertEqual(store.list_sessions(), [])

    @unittest.skipUnless(hasattr(os, "seteuid"), "this system has no users to test with")
    def test_a_folder_of_managed_settings_that_cannot_be_listed_is_an_error(self) -> None:
        more = "managed/managed-settings.d"
        with (
            self.closed_to_us(more, lambda: self.write({f"{more}/a.json": "{}"})),
            self.assertRaisesRegex(OptionsError, "managed-settings.d' cannot be listed: Permission denied"),
        ):
            self.read()

    @contextmanager
    def closed_to_us(self, name: str, write: Callable[[], object]) -> Iterator[None]:
        """Create files, then take away every permission of one of them, or of a folder."""
        write()
        self.parent.chmod(0o755)
        user, closed = os.geteuid(), self.project / name
        before = stat.S_IMODE(closed.stat().st_mode)
        closed.chmod(0)
        try:
            os.seteuid(65534 if user == 0 else user)
            yield
        finally:
            os.seteuid(user)
            closed.chmod(before)
            for path in PLACES.values():
                (self.project / path).unlink(missing_ok=True)

    def test_only_the_sources_that_were_asked_for_are_read(self) -> None:
        files = {scope: {"env": {scope: "1"}} for scope in PLACES}
        self.assertEqual(set(self.read(sources=("project",), **files).env), {"managed", "project"})
        self.assertEqual(self.read(sources=(), **files), Settings())

    def test_an_untrusted_project_forbids_but_does_not_grant(self) -> None:
        wanted = {
            "permissions": {
                "allow": ["Bash"],
                "deny": ["Read"],
                "ask": ["Write"],
                "additionalDirectories": ["/"],
                "defaultMode": "bypassPermissions",
            },
            "hooks": {"Stop": [{"hooks": [{"type": "command", "command": "x"}]}]},
            "env": {"PATH": "/evil"},
        }
        settings = self.read(trusted=False, project=wanted, local=wanted, user={"permissions": {"allow": ["Glob"]}})
        self.assertEqual([rule.text for rule in settings.allow], ["Glob"])
        self.assertEqual(
            (settings.hooks, settings.env, settings.additional_dirs, settings.default_mode), ((), {}, (), None)
        )
        self.assertEqual(
            ([rule.text for rule in settings.deny], [rule.text for rule in settings.ask]), (["Read"], ["Write"])
        )
        self.assertEqual(len(settings.withheld), 2)
        self.assertIn("allow rules, additional folders, hooks, env, a looser permission mode", settings.withheld[0])

    def test_how_memory_and_skills_are_read_can_be_set(self) -> None:
        wanted = {
            "agentsMd": "both",
            "allowOutsideImports": True,
            "skillPrecedence": "user",
            "enforceAllowedTools": True,
        }
        settings = self.read(user=wanted)
        self.assertEqual((settings.agents_md, settings.skill_precedence), ("both", "user"))
        self.assertEqual((settings.outside_imports, settings.enforce_allowed_tools), (True, True))
        self.assertEqual(settings.values, {})

    def test_odd_values_of_these_are_left_out(self) -> None:
        settings = self.read(user={"agentsMd": [], "allowOutsideImports": "yes", "skillPrecedence": 5})
        self.assertEqual((settings.agents_md, settings.outside_imports, settings.skill_precedence), (None, False, None))
        self.assertEqual(len(settings.diagnostics), 3)

    def test_imports_from_outside_need_trust(self) -> None:
        settings = self.read(trusted=False, project={"allowOutsideImports": True})
        self.assertFalse(settings.outside_imports)
        self.assertEqual(len(settings.withheld), 1)

    def test_a_stricter_mode_needs_no_trust(self) -> None:
        settings = self.read(trusted=False, project={"permissions": {"defaultMode": "plan"}})
        self.assertEqual((settings.default_mode, settings.withheld), ("plan", ()))
