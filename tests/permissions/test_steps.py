"""A decision takes a limited number of steps, whatever the call."""

from __future__ import annotations

import sys
import unittest
from collections.abc import Container
from typing import Any

from openagentic_sdk.permissions.decide import fits_rule
from openagentic_sdk.permissions.hold import steps
from openagentic_sdk.permissions.paths import LinkFollower

from ..size import full_size
from .workspace import WorkspaceTestCase

# Repeated up to the length of a line, several of these once needed time that grew with the square of that length.
_REPEATED = (
    "cat .e* ",
    "cd a && ",
    "${a:-",
    "find . -exec ",
    "a:",
    "xargs $a ",
    "1>",
    "sh <",
    "{a,b}{c,d} ",
    "a=a;$a ",
    "~a'b'~",
    '"$(',
    "a|",
    "for a in b; do ",
)
_RULES = ["Bash(rm:*)", "Read(.env)", "Bash(git push:*)", "Bash(curl * | bash)", "Read(./secrets/**)"]


class Steps(WorkspaceTestCase):
    @full_size
    def test_no_line_needs_many_calls_of_functions(self) -> None:
        for deny, mode in ((_RULES, "bypass"), ([], "default")):
            gate = self.gate(permission_mode=mode, deny=deny)
            for repeated in _REPEATED:
                line = (repeated * 4_000)[:4_000]
                with self.subTest(line[:40], mode=mode):
                    self.assertLess(self._calls(gate, line), 250_000)

    @full_size
    def test_the_files_of_a_large_folder_are_listed_and_not_looked_at_one_by_one(self) -> None:
        for n in range(1_000):
            (self.root / f"file{n}").touch()
        gate = self.gate(deny=["Read(**/.env)"])
        for line in ("ls */x", "ls */", "cat */*/x", "find . -name x", "ls -R"):
            with self.subTest(line):
                self.assertLess(self._calls(gate, line, only=("stat", "lstat")), 200)

    @full_size
    def test_each_folder_that_a_wildcard_leads_into_counts(self) -> None:
        for n in range(1_000):
            (self.root / f"folder{n}").mkdir()
        for pattern in ("*/x", "*/"):
            with self.subTest(pattern), steps.counted_steps():
                steps.count_steps(steps.MAX_STEPS - 3_000)
                with self.assertRaises(steps.TooManySteps):
                    LinkFollower().expand(pattern, str(self.root))

    def _calls(self, gate: Any, command: str, only: Container[str] | None = None) -> int:
        """How many functions a decision calls: all, or `only` those built-in ones."""
        calls = 0

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal calls
            if only is None:
                calls += event in ("call", "c_call")
            else:
                calls += event == "c_call" and getattr(argument, "__name__", "") in only

        sys.setprofile(count)
        try:
            gate.verdict("Bash", {"command": command}, {"cwd": str(self.root)})
        finally:
            sys.setprofile(None)
        return calls

    def test_a_line_that_takes_too_many_steps_is_never_allowed(self) -> None:
        line = "find . -exec " * 700
        for mode, expected in {"bypass": "ask", "default": "ask", "plan": "deny", "dontAsk": "deny"}.items():
            gate = self.gate(permission_mode=mode, deny=["Bash(rm:*)", "Read(.env)"], allow=["Bash"])
            with self.subTest(mode):
                context = {"cwd": str(self.root), "hook_permission": "allow"}
                verdict = gate.verdict("Bash", {"command": line}, context)
                self.assertEqual(verdict.outcome, expected)
        self.assertTrue(fits_rule("Bash(rm:*)", "Bash", {"command": line}, str(self.root)))

    def test_deny_rules_about_the_tool_hold_for_a_line_that_takes_too_many_steps(self) -> None:
        verdict = self.gate(permission_mode="bypass", deny=["Bash"]).verdict("Bash", {"command": "find . -exec " * 700})
        self.assertEqual(verdict.outcome, "deny")

    def test_inner_decisions_share_the_steps_of_the_outer_one(self) -> None:
        with steps.counted_steps():
            steps.count_steps(steps.MAX_STEPS)
            with steps.counted_steps(), self.assertRaises(steps.TooManySteps):
                steps.count_steps(1)
        with steps.counted_steps():
            steps.count_steps(steps.MAX_STEPS)
        steps.count_steps(steps.MAX_STEPS + 1)  # outside of a decision nothing is counted

    def test_a_path_that_no_system_opens_is_asked_about(self) -> None:
        for tool in ("Read", "Edit"):
            verdict = self.gate(permission_mode="acceptEdits").verdict(tool, {"file_path": "a/" * 50_000})
            self.assertEqual((verdict.outcome, "longer than the 4096" in verdict.reason), ("ask", True))
        denied = self.gate(deny=["Read(.env)"]).verdict(
            "Read", {"file_path": "a/" * 50_000 + ".env"}, {"effect": "read"}
        )
        self.assertEqual(denied.outcome, "deny")


if __name__ == "__main__":
    unittest.main()
