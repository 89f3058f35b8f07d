"""Trust that remains while a project is used, and what remains of it after files have changed."""

from __future__ import annotations

import contextlib
import io
import json
import os
import py_compile
import sys
from pathlib import Path
from typing import Any

from openagentic_sdk.cli.main import main
from openagentic_sdk.parts.project.trust import TRUST_VARIABLE, TrustStore, project_digest
from tests.pythons import run_python
from tests.skills.support import RunTestCase


def tool_turn(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "arguments": arguments}]}


class HeldTest(RunTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.sdk = self.parent / "sdk"
        before = {name: os.environ.get(name) for name in ("OPENAGENTIC_SDK_HOME", TRUST_VARIABLE)}
        self.addCleanup(lambda: [self._set(name, value) for name, value in before.items()])
        os.environ["OPENAGENTIC_SDK_HOME"] = str(self.sdk)
        os.environ.pop(TRUST_VARIABLE, None)
        self.decisions = TrustStore(self.sdk / "trust.json")

    def _set(self, name: str, value: str | None) -> None:
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value

    def trust(self) -> None:
        self.decisions.remember(self.project, "trusted", digest=project_digest(str(self.project)))

    def hook(self, event: str, command: str, **more: Any) -> None:
        entry = {"hooks": [{"type": "command", "command": command}], **more}
        self.write({".claude/settings.json": json.dumps({"hooks": {event: [entry]}})})

    def decision(self) -> str:
        return self.decisions.look_up(self.project).decision

    def command(self, *args: str) -> tuple[int, str]:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            code = main(["trust", *args])
        return code, out.getvalue()


class SmallChangesTest(HeldTest):
    def test_compiled_python_files_do_not_end_trust_and_planted_ones_do(self) -> None:
        self.skill("a")
        self.write({".claude/skills/a/scripts/helper.py": "VALUE = ('a', 1)\n\ndef run():\n    return VALUE\n"})
        self.trust()
        folder = self.project / ".claude/skills/a/scripts"
        source = folder / "helper.py"
        compiled = Path(py_compile.compile(str(source)) or "")
        self.assertTrue(compiled.is_file())
        self.assertEqual(self.decision(), "trusted")
        planted = compiled.read_bytes()
        other = folder.parent / "other.py"
        other.write_text("VALUE = ('a', 2)\n\ndef run():\n    return VALUE\n")
        compiled.write_bytes(Path(py_compile.compile(str(other), cfile=str(self.parent / "x.pyc")) or "").read_bytes())
        other.unlink()
        answer = self.decisions.look_up(self.project)
        self.assertEqual((answer.decision, len(answer.changed)), ("changed", 1))
        self.assertIn(compiled.name, answer.reason)
        compiled.write_bytes(planted)
        (compiled.parent / "gone.cpython-399.pyc").write_bytes(planted)
        self.assertEqual(self.decision(), "changed")

    def test_a_finders_file_does_not_end_trust_and_an_ignored_file_does(self) -> None:
        self.skill("a")
        self.write({".gitignore": "*.log\n", ".claude/skills/a/.DS_Store": ""})
        self.trust()
        self.write({".claude/skills/.DS_Store": "x", ".claude/skills/a/.DS_Store": "y"})
        self.assertEqual(self.decision(), "trusted")
        self.write({".claude/skills/a/x.log": "x"})
        self.assertEqual(self.decision(), "changed")

    def test_a_hook_of_python_leaves_no_bytecode_in_the_project(self) -> None:
        self.write({".claude/hooks/lib.py": "A = 1\n", ".claude/hooks/check.py": "import lib\n"})
        self.hook("UserPromptSubmit", f"{sys.executable} .claude/hooks/check.py")
        self.trust()
        for _ in range(2):
            result = self.run_script("Done.")
            self.assertEqual([e.error_message for e in result.events if e.type == "hook.event"], [None])
        self.assertEqual(self.decision(), "trusted")

    def test_a_skills_script_that_bash_runs_leaves_none_either(self) -> None:
        self.skill("a")
        self.write({".claude/skills/a/lib.py": "A = 1\n", ".claude/skills/a/use.py": "import lib\nprint(lib.A)\n"})
        self.trust()
        turn = tool_turn("Bash", {"command": f"{sys.executable} .claude/skills/a/use.py"})
        result = self.run_script(turn, "Done.", allowed_tools=["Bash"])
        (ran,) = [event for event in result.events if event.type == "tool.result"]
        self.assertEqual(ran.output["stdout"], "1\n")
        self.assertFalse((self.project / ".claude/skills/a/__pycache__").exists())
        self.assertEqual(self.decision(), "trusted")

    def test_a_script_that_a_hook_names_is_part_of_what_is_trusted(self) -> None:
        self.write({"tools/check.sh": "exit 0"})
        self.hook("PreToolUse", 'sh "$CLAUDE_PROJECT_DIR"/tools/check.sh')
        self.trust()
        self.write({"tools/check.sh": "exit 1"})
        self.assertEqual(self.decisions.look_up(self.project).changed, ("tools/check.sh",))


class LinkedTest(HeldTest):
    def test_a_skill_linked_into_the_project_is_the_one_that_the_question_showed(self) -> None:
        text = "---\nname: linked\ndescription: d\nallowed-tools: Bash(make:*)\n---\nDo.\n"
        self.write({"skills/linked/SKILL.md": text}, links={".claude/skills": "../skills"})
        self.trust()
        result = self.run_script("Done.", prompt="/linked")
        (active,) = [event for event in result.events if event.type == "skill.activated"]
        self.assertEqual(list(active.grants), ["Bash(make:*)"])
        self.write({"skills/linked/SKILL.md": text + "More.\n"})
        self.assertEqual(self.decisions.look_up(self.project).changed, (".claude/skills/linked/SKILL.md",))


class ChangedTest(HeldTest):
    def test_hooks_that_forbid_stay_in_force_while_the_project_waits_for_trust(self) -> None:
        self.write({"stop.sh": "echo 'no reading' >&2; exit 2", "notes.md": "x"})
        self.hook("PreToolUse", "sh stop.sh", matcher="Read")
        self.trust()
        self.write({".claude/commands/new.md": "---\ndescription: d\nallowed-tools: Write\n---\n"})
        self.assertEqual(self.decision(), "changed")
        for change, said in (({}, "no reading"), ({"stop.sh": "exit 0"}, "a hook requires this call to be approved")):
            self.write(change)
            with self.subTest(said):
                result = self.run_script(tool_turn("Read", {"file_path": "notes.md"}), "Done.")
                (read,) = [event for event in result.events if event.type == "tool.result"]
                self.assertEqual((read.outcome, said in (read.error_message or "")), ("denied", True), read)

    def test_an_allowing_hook_of_a_changed_project_allows_nothing(self) -> None:
        answer = {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "allow"}}
        self.write({"yes.sh": f"echo '{json.dumps(answer)}'"})
        self.hook("PreToolUse", "sh yes.sh")
        self.trust()
        call = tool_turn("Write", {"file_path": "new.md", "content": "x"})
        self.write({".claude/commands/new.md": "---\ndescription: d\nallowed-tools: Write\n---\n"})
        result = self.run_script(call, "Done.")
        (written,) = [event for event in result.events if event.type == "tool.result"]
        self.assertEqual(written.outcome, "denied")


class CommandTest(HeldTest):
    def test_add_show_list_and_revoke(self) -> None:
        self.hook("Stop", "true")
        where = str(self.project)
        self.assertEqual(self.command("show", where)[0], 1)
        code, out = self.command("add", where)
        self.assertEqual(code, 0)
        self.assertIn("at Stop run: true", out)
        self.assertEqual(self.command("list"), (0, f"trusted  {where}\n"))
        self.assertIn("is trusted: ", self.command("show", where)[1])
        self.write({".claude/settings.local.json": "{}"})
        self.assertIn("  changed: .claude/settings.local.json\n", self.command("show", where)[1])
        self.assertEqual(self.command("revoke", where)[0], 0)
        self.assertEqual(self.command("revoke", where)[0], 1)

    def test_a_variable_trusts_a_digest_and_never_a_plain_yes(self) -> None:
        self.hook("UserPromptSubmit", "env > ../seen")
        digest = project_digest(str(self.project))
        for value, runs in ((f"{self.project}@{digest}", True), (f"{self.project}@yes", False), ("yes", False)):
            with self.subTest(value):
                os.environ[TRUST_VARIABLE] = value
                self.run_script("Done.")
                seen = self.parent / "seen"
                self.assertEqual(seen.exists(), runs)
                if runs:
                    self.assertNotIn(TRUST_VARIABLE, seen.read_text())
                    seen.unlink()

    def test_bash_does_not_see_whom_a_variable_trusts(self) -> None:
        self.write({".claude/settings.json": "{}"})
        os.environ[TRUST_VARIABLE] = f"{self.project}@{project_digest(str(self.project))}"
        result = self.run_script(tool_turn("Bash", {"command": "env"}), "Done.", allowed_tools=["Bash"])
        (done,) = [event for event in result.events if event.type == "tool.result"]
        self.assertNotIn(TRUST_VARIABLE, str(done.output))

    def test_a_bare_enter_asks_again(self) -> None:
        self.hook("Stop", "true")
        environment = {**os.environ, "PYTHONPATH": os.getcwd()}
        done = run_python("-c", _ASK, str(self.project), input="\n\ny\n", text=True, env=environment)
        self.assertEqual((done.stdout.count("[yes/no]"), self.decision()), (3, "trusted"))


_ASK = """
import sys
from openagentic_sdk.cli.output.terminal import Screen
from openagentic_sdk.cli.commands.trust import ask_for_trust
from openagentic_sdk.options import OpenAgenticOptions
options = OpenAgenticOptions(cwd=sys.argv[1], project_dir=sys.argv[1], setting_sources=("project",))
ask_for_trust(options, Screen(sys.stdout))
"""
