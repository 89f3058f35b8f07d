"""Where everything comes from, file by file."""

from __future__ import annotations

import json
import os

from openagentic_sdk.parts.project.project import read_project
from openagentic_sdk.parts.project.trust import TrustAnswer
from tests.skills.support import ProjectTestCase


class LoadedTest(ProjectTestCase):
    def test_every_file_that_counts_is_named_once(self) -> None:
        self.skill("a")
        self.write(
            {
                "CLAUDE.md": "m",
                ".claude/settings.json": json.dumps({"env": {"A": "b"}}),
                ".claude/rules/r.md": "---\npaths: '*.py'\n---\nr\n",
                ".claude/commands/c.md": "c",
                ".claude/agents/g.md": "---\nname: g\ndescription: d\n---\n",
            }
        )
        project = read_project(
            self.project,
            cwd=self.project,
            trust=TrustAnswer("unknown", self.project, None, "nobody was asked"),
            setting_sources=("project",),
            managed_dir=None,
        )
        found = [(file.kind, file.name, os.path.relpath(file.path, self.project)) for file in project.files()]
        self.assertEqual(
            found,
            [
                ("settings", "", ".claude/settings.json"),
                ("memory", "", "CLAUDE.md"),
                ("rule", "*.py", ".claude/rules/r.md"),
                ("command", "/c", ".claude/commands/c.md"),
                ("agent", "g", ".claude/agents/g.md"),
                ("skill", "a", ".claude/skills/a/SKILL.md"),
            ],
        )
        self.assertEqual([note.code for note in project.findings()], ["settings-withheld"])
