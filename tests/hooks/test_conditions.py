"""The `if` of a hook, according to the table in the documentation: in doubt, a hook that inspects calls runs."""

from __future__ import annotations

import unittest

from openagentic_sdk.permissions.decide import fits_rule

TABLE = [
    ("Bash(git *)", "FOO=bar git push", True),
    ("Bash(git *)", "npm test && git push", True),
    ("Bash(rm *)", "echo $(rm -rf /)", True),
    ("Bash(rm *)", "echo $(date)", False),
    ("Bash(git push *)", "echo $(date)", True),
    ("Bash(git push *)", "git pull", False),
    ("Bash(git push *)", "git push origin main", True),
    ("Bash(git * main)", "git push origin main", True),
    ("Bash(git * main)", "git push origin dev", False),
    ("Bash(not understood $(", "ls", True),
]


class ConditionTest(unittest.TestCase):
    def test_commands(self) -> None:
        for rule, command, runs in TABLE:
            with self.subTest(f"{rule} for {command}"):
                self.assertEqual(fits_rule(rule, "Bash", {"command": command}, "/work"), runs)

    def test_files_and_tools(self) -> None:
        for rule, tool, path, runs in (
            ("Edit(*.ts)", "Edit", "src/a.ts", True),
            ("Edit(*.ts)", "Edit", "src/a.py", False),
            ("Edit(*.ts)", "Read", "src/a.ts", False),
            ("Write", "Write", "x", True),
        ):
            with self.subTest(f"{rule} for {tool} {path}"):
                self.assertEqual(fits_rule(rule, tool, {"file_path": path}, "/work"), runs)


if __name__ == "__main__":
    unittest.main()
