"""An allow rule added to a project's local settings: what is kept, what is refused."""

from __future__ import annotations

import json
import os
from unittest import skipIf

from openagentic_sdk.errors import OptionsError
from openagentic_sdk.parts.project.claude import claude_folders
from openagentic_sdk.parts.project.settings import read_settings
from openagentic_sdk.parts.project.settings_write import add_allow_rule
from tests.skills.support import ProjectTestCase

FILE = ".claude/settings.local.json"
RULE = "Bash(npm test)"

# The contents of the file before, and with the rule in it.
KEPT = [
    (None, {"permissions": {"allow": [RULE]}}),
    ("  \n", {"permissions": {"allow": [RULE]}}),
    ("\ufeff{}", {"permissions": {"allow": [RULE]}}),
    ('{"permissions": {"deny": ["Read(./.env)"]}}', {"permissions": {"deny": ["Read(./.env)"], "allow": [RULE]}}),
    (
        '{"z": 1.50, "model": "größer", "permissions": {"allow": ["Read", 7]}, "a": 12345678901234567890}',
        {"z": 1.5, "model": "größer", "permissions": {"allow": ["Read", 7, RULE]}, "a": 12345678901234567890},
    ),
]
REFUSED = ["[]", '"text"', "{", '{"permissions": []}', '{"permissions": {"allow": "Read"}}', '{"n": 1e999}', "[" * 9999]


class AddAllowRule(ProjectTestCase):
    def test_everything_else_in_the_file_stays(self) -> None:
        for text, expected in KEPT:
            with self.subTest(text=text):
                (self.project / FILE).unlink(missing_ok=True)
                self.write({FILE: text} if text is not None else {})
                self.assertTrue(add_allow_rule(self.project, RULE))
                written = (self.project / FILE).read_text(encoding="utf-8")
                self.assertEqual(json.loads(written), expected)
                self.assertEqual(list(json.loads(written)), list(expected))

    def test_a_rule_is_written_once_and_read_by_the_next_run(self) -> None:
        self.assertTrue(add_allow_rule(self.project, RULE))
        before = (self.project / FILE).read_bytes()
        self.assertFalse(add_allow_rule(self.project, RULE))
        self.assertEqual((self.project / FILE).read_bytes(), before)
        folders = claude_folders(self.project, setting_sources=("local",), managed_dir=None)
        self.assertEqual([rule.text for rule in read_settings(folders, trusted=True).allow], [RULE])
        self.assertEqual(os.listdir(self.project / ".claude"), ["settings.local.json"])

    def test_a_file_that_is_not_settings_is_refused_and_left_alone(self) -> None:
        for text in REFUSED:
            with self.subTest(text=text[:40]):
                self.write({FILE: text})
                with self.assertRaises(OptionsError) as caught:
                    add_allow_rule(self.project, RULE)
                self.assertIn(FILE, str(caught.exception))
                self.assertEqual((self.project / FILE).read_text(encoding="utf-8"), text)
                self.assertEqual(os.listdir(self.project / ".claude"), ["settings.local.json"])

    def test_a_binary_file_is_refused(self) -> None:
        self.write({FILE: ""})
        (self.project / FILE).write_bytes(b"\xff\xfe{}")
        with self.assertRaises(OptionsError):
            add_allow_rule(self.project, RULE)

    def test_the_mode_of_the_file_stays(self) -> None:
        self.write({FILE: "{}"})
        (self.project / FILE).chmod(0o640)
        add_allow_rule(self.project, RULE)
        self.assertEqual((self.project / FILE).stat().st_mode & 0o777, 0o640)

    @skipIf(os.name == "nt", "links need a privilege on Windows")
    def test_nothing_is_written_through_a_link_that_leads_out(self) -> None:
        self.write({"../outside/home/settings.local.json": "{}"})
        self.write({}, links={".claude": "../outside/home"})
        with self.assertRaises(OptionsError) as caught:
            add_allow_rule(self.project, RULE)
        self.assertIn("outside ", str(caught.exception))
        self.assertEqual((self.parent / "outside/home/settings.local.json").read_text(encoding="utf-8"), "{}")

    @skipIf(os.name == "nt", "links need a privilege on Windows")
    def test_a_link_inside_the_project_stays_one(self) -> None:
        self.write({"kept/local.json": "{}"})
        self.write({}, links={FILE: "../kept/local.json"})
        add_allow_rule(self.project, RULE)
        self.assertTrue((self.project / FILE).is_symlink())
        self.assertIn(RULE, (self.project / "kept/local.json").read_text(encoding="utf-8"))
