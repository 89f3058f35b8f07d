"""The source of every setting, file by file."""

from __future__ import annotations

import json
import os
import sys
import threading
from types import FrameType
from typing import Any

from openagentic_sdk.parts.project.project import read_project
from openagentic_sdk.parts.project.trust import TrustAnswer, TrustStore, project_digest
from tests.skills.support import ProjectTestCase, RunTestCase


class ReadInAThread(RunTestCase):
    def test_the_files_of_a_project_are_read_beside_the_event_loop(self) -> None:
        self.write({"CLAUDE.md": "Be brief."})
        threads: set[threading.Thread] = set()

        def note(frame: FrameType, event: str, argument: object) -> None:
            if event == "call" and frame.f_code is read_project.__code__:
                threads.add(threading.current_thread())

        threading.setprofile(note)
        sys.setprofile(note)
        try:
            result = self.run_script("Done.")
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        self.assertEqual((result.final_text, len(threads)), ("Done.", 1))
        self.assertNotIn(threading.main_thread(), threads)


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


class WithheldTest(RunTestCase):
    def setUp(self) -> None:
        super().setUp()
        before = os.environ.get("OPENAGENTIC_SDK_HOME")
        os.environ["OPENAGENTIC_SDK_HOME"] = str(self.parent / "sdk")
        self.addCleanup(lambda: os.environ.update({"OPENAGENTIC_SDK_HOME": before or ""}))
        self.store_of_trust = TrustStore(self.parent / "sdk/trust.json")

    def withheld(self, **options: Any) -> list[str]:
        result = self.run_script("Done.", **options)
        notices = [event for event in result.events if event.type == "system.notice"]
        return [notice.message for notice in notices if notice.code == "settings.withheld"]

    def test_a_run_in_an_untrusted_project_reports_in_one_line_what_awaits_trust_and_how_to_grant_it(self) -> None:
        self.write({".claude/settings.json": '{"permissions": {"allow": ["Bash(ls:*)"]}}'})
        (said,) = self.withheld()
        for words in ("asks for allow rules", "nobody has decided yet", "`openagentic-sdk trust add` grants it"):
            self.assertIn(words, said)
        self.store_of_trust.remember(self.project, "trusted", digest=project_digest(str(self.project)))
        self.assertEqual(self.withheld(), [])
        self.write({".claude/commands/x.md": "---\ndescription: d\n---\nDo."})
        self.assertEqual(self.withheld(), [])
        self.write({".claude/commands/x.md": "---\nallowed-tools: Bash\n---\nDo."})
        (said,) = self.withheld()
        self.assertIn("its files have changed since it was trusted: .claude/commands/x.md", said)
        self.assertIn("openagentic-sdk trust add", said)

    def test_changed_files_that_grant_something_are_reported_without_settings_too(self) -> None:
        self.skill("deploy", allowed_tools="Bash(make:*)")
        self.assertEqual(self.withheld(), [])
        self.store_of_trust.remember(self.project, "trusted", digest=project_digest(str(self.project)))
        self.skill("deploy", allowed_tools="Bash(rm:*)")
        (said,) = self.withheld()
        self.assertIn(
            "have ended, since its files have changed since it was trusted: .claude/skills/deploy/SKILL.md", said
        )

    def test_a_program_that_distrusts_the_project_is_not_advised_to_trust_it(self) -> None:
        self.write({".claude/settings.json": '{"env": {"A": "b"}}'})
        (said,) = self.withheld(trust_project=False)
        self.assertNotIn("trust add", said)
