"""Decisions of the gate on command lines, from a table of cases."""

from __future__ import annotations

import unittest

from tests.size import full_size

from .workspace import FIXTURES, WorkspaceTestCase, fixture


class CommandTable(WorkspaceTestCase):
    @full_size
    def test_every_line_of_the_table_gets_its_decision(self) -> None:
        count = 0
        for group in fixture("commands.json"):
            for expected, command in group["cases"]:
                count += 1
                with self.subTest(about=group["about"], command=command):
                    self.assertEqual(
                        self.outcome(group["policy"], "Bash", {"command": command.replace("{root}", str(self.root))}),
                        expected,
                    )
        self.assertGreaterEqual(count, 150)

    @full_size
    def test_no_mode_permits_a_line_that_does_more_than_its_commands_show(self) -> None:
        for name, target in {"out": "/etc", "outfile": "../outside.txt", "evil": "other"}.items():
            (self.root / name).symlink_to(target)
        for folder in (".git/objects", "sub/.git/objects"):
            (self.root / folder).mkdir(parents=True)
        (self.root / "sub" / ".git" / "config").write_text("[core]\n\tfsmonitor = id\n", encoding="utf-8")
        lines = (FIXTURES / "not_permitted.txt").read_text(encoding="utf-8").splitlines()[1:]
        for mode in ("default", "plan", "acceptEdits"):
            for trusted in (False, True):
                gate = self.gate(permission_mode=mode, trusted=trusted)
                for command in lines:
                    with self.subTest(command=command, mode=mode, trusted=trusted):
                        verdict = gate.verdict("Bash", {"command": command}, {"cwd": str(self.root)})
                        self.assertNotEqual(verdict.outcome, "allow")

    def test_a_wildcard_of_the_command_is_covered_by_the_rules_own_at_its_end(self) -> None:
        for rule, expected in ("Bash(mkdir -p src/*)", "allow"), ("Bash(mkdir * src/*)", "ask"):
            with self.subTest(rule):
                self.assertEqual(self.outcome({"allow": [rule]}, "Bash", {"command": "mkdir -p src/*"}), expected)

    def test_a_wildcard_that_matches_a_file_named_like_an_option_is_asked_about(self) -> None:
        (self.root / "src" / "-R").touch()
        for command, expected in {"grep x *": "ask", "grep x ./*": "allow"}.items():
            with self.subTest(command=command):
                self.assertEqual(self.outcome({}, "Bash", {"command": command}, cwd=str(self.root / "src")), expected)


if __name__ == "__main__":
    unittest.main()
