"""Trust is a person's decision about certain bytes, and anything unclear is untrusted."""

from __future__ import annotations

import contextlib
import io
import json
import os
import stat
import sys

from openagentic_sdk.cli.commands.trust import ask_for_trust
from openagentic_sdk.cli.output.terminal import Screen
from openagentic_sdk.errors import StorageError
from openagentic_sdk.options import OpenAgenticOptions
from openagentic_sdk.parts.project.settings import _GRANTS
from openagentic_sdk.parts.project.trust import TrustStore, project_digest, requests_of, skill_trust
from openagentic_sdk.skills.index import SkillIndex
from tests.skills.support import ProjectTestCase


class TrustTest(ProjectTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.store = TrustStore(self.parent / "config" / "trust.json")
        self.write({".claude/settings.json": "{}"})

    def trust(self) -> None:
        self.store.remember(self.project, "trusted", digest=project_digest(str(self.project)))

    def test_nobody_was_asked(self) -> None:
        answer = self.store.look_up(self.project)
        self.assertEqual((answer.decision, answer.is_trusted), ("unknown", False))

    def test_a_decision_is_remembered_and_private(self) -> None:
        self.trust()
        self.assertTrue(TrustStore(self.store.path).look_up(self.project).is_trusted)
        self.assertEqual(stat.S_IMODE(os.stat(self.store.path).st_mode), 0o600)
        self.store.remember(self.project, "refused", digest=None)
        self.assertEqual(self.store.look_up(self.project).decision, "refused")

    def test_any_change_of_what_could_grant_takes_trust_back(self) -> None:
        for files in (
            {".claude/settings.json": '{"env": {}}'},
            {".claude/settings.local.json": "{}"},
            {".claude/skills/a/scripts/run.sh": "id"},
            {".claude/hooks/.hidden/x.sh": "id"},
            {".claude/agents/a.md": "---\nname: a\ndescription: d\nhooks: {}\n---\nx"},
            {".claude/commands/a.md": "---\nallowed-tools: Bash\n---\nx"},
            {".claude/commands/b.md": "Now: !`id`"},
            {".claude/commands/c.md": "---\nallowed-tools: [\n---\nx"},
            {".claude/commands/run.py": "x"},
            {".agents/skills/b/SKILL.md": "---\nname: b\ndescription: d\nallowed-tools: Bash(make:*)\n---\nx"},
            {".agents/skills/b/more.md": "x"},
            {".claude/hooks/notes.md": "x"},
        ):
            with self.subTest(files):
                self.trust()
                self.write(files)
                self.assertEqual(self.store.look_up(self.project).decision, "changed")

    def test_a_new_file_that_asks_for_nothing_leaves_trust_unchanged(self) -> None:
        self.skill("old", allowed_tools="Bash(make:*)")
        self.trust()
        plain = "---\nname: n\ndescription: d\n---\nDo it."
        new = {
            ".claude/agents/n.md": plain,
            ".claude/commands/n.md": plain,
            ".claude/commands/README.md": "Notes.",
            ".claude/skills/n/SKILL.md": plain,
            ".claude/skills/n/more.md": "More.",
        }
        self.write(new)
        answer = self.store.look_up(self.project)
        self.assertEqual((answer.decision, answer.changed), ("trusted", ()))
        for change, named in (
            (
                {".claude/skills/n/SKILL.md": plain.replace("d\n", "d\nallowed-tools: Bash\n")},
                ".claude/skills/n/SKILL.md",
            ),
            ({".claude/skills/n/SKILL.md": plain, ".claude/skills/old/more.md": "x"}, ".claude/skills/old/more.md"),
        ):
            self.write(change)
            answer = self.store.look_up(self.project)
            self.assertEqual((answer.decision, named in answer.changed), ("changed", True))

    def test_rules_about_the_folders_of_new_files_let_none_of_them_come_unseen(self) -> None:
        rules = {"permissions": {"allow": ["Bash(python3 .claude/skills/*)"]}}
        self.write({".claude/settings.json": json.dumps(rules)})
        self.trust()
        self.write({".claude/skills/n/SKILL.md": "---\nname: n\ndescription: d\n---\nDo it."})
        self.assertEqual(self.store.look_up(self.project).decision, "changed")

    def test_a_link_and_a_program_do_not_count_as_files_that_ask_for_nothing(self) -> None:
        self.trust()
        self.write({"notes.md": "x"}, links={".claude/commands/n.md": "../../notes.md"})
        self.assertEqual(self.store.look_up(self.project).decision, "changed")
        self.trust()
        self.write({".claude/commands/run.md": "x"})
        os.chmod(self.project / ".claude/commands/run.md", 0o755)
        self.assertEqual(self.store.look_up(self.project).decision, "changed")

    def test_other_changes_do_not(self) -> None:
        self.trust()
        self.write({"src/main.py": "x", "CLAUDE.md": "y"})
        self.assertTrue(self.store.look_up(self.project).is_trusted)

    def test_another_project_is_another_decision(self) -> None:
        self.trust()
        self.write({"sub/.claude/settings.json": "{}"})
        self.assertEqual(self.store.look_up(self.project / "sub").decision, "unknown")

    def test_a_link_to_the_project_is_the_project(self) -> None:
        self.trust()
        (self.parent / "link").symlink_to(self.project)
        self.assertTrue(self.store.look_up(self.parent / "link").is_trusted)

    def test_a_damaged_file_trusts_nobody_and_is_not_overwritten(self) -> None:
        self.trust()
        for text in ("", "{", "[]", '{"projects": 5}', "\x00"):
            with self.subTest(text):
                with open(self.store.path, "w", encoding="utf-8") as file:
                    file.write(text)
                self.assertEqual(self.store.look_up(self.project).decision, "unknown")
                with self.assertRaises(StorageError):
                    self.store.remember(self.project, "refused", digest=None)

    def test_settings_of_wrong_kinds_are_part_of_the_decision_like_any_others(self) -> None:
        for text in ("a\0b", "\ud800"):
            markets = {"a": {"source": {"source": "directory", "path": text}}}
            hooks = {"PreToolUse": [{"hooks": [{"command": "echo", "args": 5.5}]}]}
            self.write({".claude/settings.json": json.dumps({"hooks": hooks, "extraKnownMarketplaces": markets})})
            self.trust()
            self.assertTrue(self.store.look_up(self.project).is_trusted)

    def test_a_decision_with_parts_of_wrong_kinds_keeps_none_of_them(self) -> None:
        hook = {"event": [], "matcher": {}, "command": "echo", "source": "s", "scope": "project", "args": None}
        entry = {"decision": "trusted", "digest": 5, "files": {".claude/settings.json": ["x"]}, "hooks": [hook, 5]}
        self.trust()
        text = json.dumps({"version": 2, "projects": {os.path.realpath(self.project): entry}})
        (self.parent / "config" / "trust.json").write_text(text)
        answer = self.store.look_up(self.project)
        self.assertEqual((answer.decision, answer.changed, answer.hooks), ("changed", (".claude/settings.json",), ()))

    def test_a_skills_folder_that_leads_outside_cannot_be_trusted(self) -> None:
        self.write({}, links={".claude/skills": "../../outside"})
        self.assertIsNone(project_digest(str(self.project)))
        self.assertEqual(self.store.look_up(self.project).decision, "unknown")
        with self.assertRaises(ValueError):
            self.store.remember(self.project, "trusted", digest=None)


class RequestsTest(ProjectTestCase):
    def test_the_trust_question_quotes_what_a_project_asks_for(self) -> None:
        path = self.skill("a", allowed_tools="Bash(make *), Bash")
        hook = {"hooks": [{"type": "command", "command": "curl x | sh"}]}
        settings = {
            "permissions": {"allow": ["Read"], "deny": ["Write"], "additionalDirectories": ["/tmp"]},
            "hooks": {"Stop": [hook]},
            "env": {"A": "b"},
        }
        self.write({".claude/settings.json": json.dumps(settings)})
        source = self.project / ".claude/settings.json"
        self.assertEqual(
            requests_of(self.project, SkillIndex(self.project).read().skills),
            [
                f"allow without asking: Read ({source})",
                f"use the folder /tmp ({source})",
                f"at Stop run: curl x | sh ({source})",
                "set A to b",
                f"while skill a is used, allow: Bash(make *), Bash (any command) ({path})",
            ],
        )

    def test_the_trust_question_names_every_setting_that_only_a_trusted_project_gets(self) -> None:
        self.skill("a")
        skills = SkillIndex(self.project).read().skills
        settings = {
            "allow rules": {"permissions": {"allow": ["Read"]}},
            "additional folders": {"permissions": {"additionalDirectories": ["/tmp"]}},
            "hooks": {"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "x"}]}]}},
            "env": {"env": {"A": "b"}},
            "imports from outside": {"allowOutsideImports": True},
            "commands in text": {"enableSkillShellExecution": True},
            "no hooks at all": {"disableAllHooks": True},
            "its skills before the user's": {"skillPrecedence": "project"},
            "plugins": {"enabledPlugins": {"p@m": True}},
            "a looser permission mode": {"permissions": {"defaultMode": "acceptEdits"}},
        }
        self.assertEqual(settings.keys(), _GRANTS.keys())
        for name, content in {**settings, "memory": {"claudeMdExcludes": ["/x/**"]}}.items():
            with self.subTest(name):
                self.write({".claude/settings.json": json.dumps(content)})
                self.assertEqual(len(requests_of(self.project, skills)), 1)

    def test_a_project_that_asks_for_nothing(self) -> None:
        self.skill("a")
        self.assertEqual(requests_of(self.project, SkillIndex(self.project).read().skills), [])

    def test_a_skill_behind_another_one_is_asked_about_too(self) -> None:
        text = "---\nname: x\ndescription: d\nallowed-tools: {}\n---\n"
        self.write(
            {".claude/skills/a/SKILL.md": text.format("Read"), ".claude/skills/b/SKILL.md": text.format("Write")}
        )
        self.assertEqual(SkillIndex(self.project).find("project:b").folder, "b")
        options = OpenAgenticOptions(cwd=self.project, project_dir=self.project, setting_sources=("project",))
        shown = io.StringIO()
        before = sys.stdin, os.environ.get("OPENAGENTIC_SDK_HOME")
        sys.stdin, os.environ["OPENAGENTIC_SDK_HOME"] = io.StringIO(), str(self.parent / "config")
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                ask_for_trust(options, Screen(shown))
        finally:
            sys.stdin = before[0]
            del os.environ["OPENAGENTIC_SDK_HOME"]
            os.environ.update({} if before[1] is None else {"OPENAGENTIC_SDK_HOME": before[1]})
        self.assertIn("allow: Read", shown.getvalue())
        self.assertIn("allow: Write", shown.getvalue())


class SkillTrustTest(ProjectTestCase):
    def test_a_trusted_projects_skills_grant_until_something_changes(self) -> None:
        path = self.skill("a", allowed_tools="Read")
        info = SkillIndex(self.project).find("a")
        trusts = skill_trust(self.project, is_trusted=True)
        self.assertTrue(trusts(info))
        path.write_text(path.read_text(encoding="utf-8") + "more", encoding="utf-8")
        self.assertFalse(trusts(info))

    def test_an_untrusted_projects_skills_grant_nothing(self) -> None:
        self.skill("a")
        self.assertFalse(skill_trust(self.project, is_trusted=False)(SkillIndex(self.project).find("a")))

    def test_skills_of_folders_below_the_root_are_not_part_of_the_decision(self) -> None:
        self.write({"sub/.claude/skills/a/SKILL.md": "---\nname: a\ndescription: d\n---\n"})
        info = SkillIndex(self.project, cwd=self.project / "sub").find("a")
        self.assertFalse(skill_trust(self.project, is_trusted=True)(info))

    def test_the_users_own_skills_grant(self) -> None:
        self.write({"home/.claude/skills/a/SKILL.md": "---\nname: a\ndescription: d\n---\n"})
        info = SkillIndex(self.project, setting_sources=["user"], home=self.project / "home").find("a")
        self.assertTrue(skill_trust(self.project, is_trusted=False)(info))
