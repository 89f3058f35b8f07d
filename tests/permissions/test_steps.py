"""A decision takes a limited number of steps, whatever the call."""

from __future__ import annotations

import sys
import unittest
from typing import Any

from openagentic_sdk.permissions.decide import fits_rule
from openagentic_sdk.permissions.hold import steps

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

    def _calls(self, gate: Any, command: str) -> int:
        """How many functions a decision calls."""
        calls = 0

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

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
