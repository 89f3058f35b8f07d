"""Rules on labels in settings files: `permissions.labels` of managed, user, project and local settings."""

from __future__ import annotations

import json
import tempfile
import unittest
from pathlib import Path
from typing import Any

from openagentic_sdk import RunResult
from openagentic_sdk.events import PermissionDecision, SystemNotice
from openagentic_sdk.parts.labels.rules import deciding_rule
from openagentic_sdk.parts.labels.settings_rules import label_rules_of_settings
from openagentic_sdk.parts.project.settings import Settings, SettingsRule

from .test_labels import PAY_BOB, Session, call, outcomes


class LabelSettingsTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        Path(self.folder, ".claude").mkdir()

    def play(self, written: Any, labels: Any = "off", *, trusted: bool = True) -> RunResult:
        Path(self.folder, ".claude", "settings.json").write_text(json.dumps({"permissions": {"labels": written}}))
        options = {"cwd": self.folder, "setting_sources": ("project",), "trust_project": trusted}
        return Session(labels).run("Read my mail.", call("read_mail"), PAY_BOB, **options)

    def paid(self, written: Any, labels: Any = "off", *, trusted: bool = True) -> bool:
        return outcomes(self.play(written, labels, trusted=trusted))[-1] == "ok"

    def test_a_preset_or_a_list_of_presets_and_rules_holds(self) -> None:
        self.assertTrue(self.paid([]))
        self.assertFalse(self.paid("guard"))
        self.assertFalse(self.paid(["deny(untrusted): send_money"]))
        self.assertTrue(self.paid(["guard", "allow(untrusted): send_money"]))
        self.assertTrue(self.paid(["deny(untrusted): other"]))

    def test_the_settings_of_a_project_that_nobody_trusts_only_make_others_stricter(self) -> None:
        self.assertFalse(self.paid("guard", trusted=False))
        for written in ("off", "watch", ["allow(untrusted): send_money"], ["watch(untrusted): send_money"]):
            with self.subTest(written):
                self.assertFalse(self.paid(written, "guard", trusted=False))
        self.assertTrue(self.paid(["allow(untrusted): send_money"], "guard"))

    def test_an_unknown_word_counts_as_guard_and_is_reported(self) -> None:
        for written in ("gard", ["ask(untrused): *"]):
            result = self.play(written)
            with self.subTest(written):
                self.assertEqual(outcomes(result)[-1], "denied")
                notices = [event.message for event in result.events if isinstance(event, SystemNotice)]
                self.assertIn("is not understood and is treated as guard", " ".join(notices))
        for written in ([7], {"a": 1}, None):
            result = self.play(written)
            notices = [event.message for event in result.events if isinstance(event, SystemNotice)]
            self.assertIn("permissions.labels", " ".join(notices))

    def test_the_log_names_the_rule(self) -> None:
        result = self.play(["deny(untrusted): send_money"])
        [decision] = [e for e in result.events if isinstance(e, PermissionDecision) and not e.allowed]
        self.assertEqual(decision.details["labels"]["rule"], "deny(untrusted): send_money")

    def test_no_other_file_loosens_managed_rules(self) -> None:
        def effect(*written: tuple[str, str], trusted: bool = True) -> str | None:
            settings = Settings(labels=tuple(SettingsRule(text, "a file", scope) for scope, text in written))
            rules, _ = label_rules_of_settings(settings, is_trusted=trusted)
            rule = deciding_rule(rules, "untrusted", ["send_money"])
            return rule and rule.effect

        managed = ("managed", "deny(untrusted): *")
        self.assertEqual(effect(managed, ("user", "allow(untrusted): send_money")), "deny")
        self.assertEqual(effect(managed, ("local", "allow(untrusted): send_money")), "deny")
        self.assertEqual(effect(("managed", "allow(untrusted): send_money"), ("user", "guard")), "ask")
        self.assertEqual(effect(("user", "guard"), ("local", "allow(untrusted): send_money")), "allow")
        self.assertEqual(effect(("user", "guard"), ("local", "allow(untrusted): send_money"), trusted=False), "ask")


if __name__ == "__main__":
    unittest.main()
