"""Shell commands as hooks: their input, the meaning of their answers, and that they leave nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
import unittest
from pathlib import Path
from typing import Any

from openagentic_sdk.hooks.engine import HookEngine
from openagentic_sdk.hooks.models import HookDecision, HookMatcher
from openagentic_sdk.parts.claude.command_hooks import ShellHook, matched_names, with_command_hooks
from openagentic_sdk.parts.claude.hook_answers import answer_of
from openagentic_sdk.parts.project.settings import CommandHook
from tests.looptime import skip_time
from tests.waiting import until_async

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "hooks"


class Answers(unittest.TestCase):
    def test_every_answer_in_the_table_has_its_documented_effect(self) -> None:
        for case in json.loads((FIXTURES / "answers.json").read_text(encoding="utf-8")):
            with self.subTest(case["about"]):
                stdout = case["stdout"] if isinstance(case["stdout"], str) else json.dumps(case["stdout"])
                expected = None if case["decision"] is None else HookDecision(**case["decision"])
                self.assertEqual(answer_of(case["point"], stdout), expected)

    def test_an_answer_with_other_types_than_documented_is_a_failure_unless_it_forbids(self) -> None:
        for point, answer, problem in (
            ("pre_tool_use", {"hookSpecificOutput": {"permissionDecision": "sure"}}, "permissionDecision is 'sure'"),
            ("pre_tool_use", {"hookSpecificOutput": {"permissionDecision": ["deny"]}}, "permissionDecision is list"),
            ("pre_tool_use", {"hookSpecificOutput": {"updatedInput": "ls"}}, "updatedInput is str"),
            ("pre_tool_use", {"hookSpecificOutput": [1]}, "hookSpecificOutput is list, and an object"),
            ("pre_tool_use", {"continue": "false"}, "continue is str, and true or false"),
            ("stop", {"decision": "Block", "reason": "x"}, "decision is 'Block'"),
            ("stop", {"decision": {"behavior": "block"}}, "decision is dict"),
            ("user_prompt_submit", {"systemMessage": 5}, "systemMessage is int"),
            ("permission_request", {"hookSpecificOutput": {"decision": {"behavior": "yes"}}}, "behavior is 'yes'"),
            ("permission_request", {"hookSpecificOutput": {"decision": "allow"}}, "decision.* is str"),
            ("post_tool_use", {"hookSpecificOutput": {"additionalContext": {"a": 1}}}, "additionalContext is dict"),
        ):
            with self.subTest(answer=answer), self.assertRaisesRegex(RuntimeError, problem):
                answer_of(point, json.dumps(answer))
        wrong = {"decision": "block", "reason": ["x"], "systemMessage": "m"}
        self.assertEqual(
            answer_of("user_prompt_submit", json.dumps(wrong)),
            HookDecision(block=True, block_reason="the hook gave no reason"),
        )


class Matchers(unittest.TestCase):
    def test_a_matcher_is_a_list_of_names_or_a_regular_expression(self) -> None:
        cases = [
            ("", ("*", None)),
            ("*", ("*", None)),
            ("Edit|Write", ("Edit|Write", None)),
            ("Edit, Write", ("Edit|Write", None)),
            ("mcp__.*", ("*", "mcp__.*")),
            ("^Notebook", ("*", "^Notebook")),
        ]
        for matcher, expected in cases:
            with self.subTest(matcher):
                self.assertEqual(matched_names(matcher), expected)

    def test_settings_add_hooks_behind_the_programs_own(self) -> None:
        own = HookMatcher("own", hook=lambda payload: None)
        described = [
            CommandHook("PreToolUse", "Edit|Write", "check", "user", "user", 5),
            CommandHook("PreToolUse", "mcp__(", "all", "user", "user"),
            CommandHook("ConfigChange", "", "never", "user", "user"),
        ]
        engine, problems = with_command_hooks(HookEngine(pre_tool_use=(own,)), described, project_dir=".")
        self.assertEqual([matcher.timeout_s for matcher in engine.pre_tool_use], [None, 5, 600.0])
        self.assertEqual(engine.pre_tool_use[0], own)
        self.assertEqual(
            (engine.pre_tool_use[2].tool_name_pattern, engine.pre_tool_use[2].tool_name_regex), ("*", None)
        )
        self.assertEqual(len(problems), 2)
        self.assertIn("'ConfigChange' never run here", problems[1].located)


@unittest.skipIf(shutil.which("bash") is None, "there is no bash on this machine")
class Commands(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    async def run_hook(self, command: str, point: str = "pre_tool_use", **payload: Any) -> HookDecision | None:
        hook = ShellHook(command, str(self.folder))
        return await hook({"hook_point": point, "context": {"session_id": "s", "cwd": "/w"}, **payload})

    async def test_the_command_reads_what_happens_as_json(self) -> None:
        payload = {"tool_name": "Bash", "tool_input": {"command": "ls"}}
        self.assertIsNone(await self.run_hook("cat > seen; pwd > where; echo $CLAUDE_PROJECT_DIR >> where", **payload))
        seen = json.loads((self.folder / "seen").read_text())
        self.assertEqual(seen["hook_event_name"], "PreToolUse")
        self.assertEqual((seen["session_id"], seen["cwd"], seen["permission_mode"]), ("s", "/w", "default"))
        self.assertEqual((seen["tool_name"], seen["tool_input"]), ("Bash", {"command": "ls"}))
        places = [os.path.realpath(line) for line in (self.folder / "where").read_text().split()]
        self.assertEqual(places, [os.path.realpath(self.folder)] * 2)

    async def test_after_a_tool_the_command_reads_its_input_and_its_response(self) -> None:
        payload = {
            "hook_point": "post_tool_use",
            "tool_name": "Edit",
            "tool_input": {},
            "tool_output": {"replacements": 1},
        }
        hook = ShellHook("cat > seen", str(self.folder))
        await hook({**payload, "context": {"tool_input": {"file_path": "a.py"}}})
        seen = json.loads((self.folder / "seen").read_text())
        whole = {"file_path": str(self.folder / "a.py")}
        self.assertEqual((seen["tool_input"], seen["tool_response"]), (whole, {"replacements": 1}))

    async def test_exit_code_2_blocks_with_the_text_of_stderr(self) -> None:
        decision = await self.run_hook("echo 'not here' >&2; echo ignored; exit 2")
        self.assertEqual(decision, HookDecision(block=True, block_reason="not here"))

    async def test_exit_code_2_after_the_fact_is_feedback(self) -> None:
        decision = await self.run_hook("echo 'does not compile' >&2; exit 2", "post_tool_use", tool_output="ok")
        assert decision is not None
        self.assertEqual((decision.block, decision.additional_context), (False, "does not compile"))

    async def test_a_json_answer_counts_at_exit_code_0(self) -> None:
        answer = {"hookSpecificOutput": {"permissionDecision": "deny", "permissionDecisionReason": "why"}}
        decision = await self.run_hook(f"echo '{json.dumps(answer)}'")
        assert decision is not None
        self.assertEqual((decision.block, decision.permission, decision.block_reason), (True, "deny", "why"))

    async def test_any_other_exit_code_is_a_failure_with_its_stderr(self) -> None:
        with self.assertRaisesRegex(RuntimeError, "exit code 1: broken"):
            await self.run_hook("echo broken >&2; exit 1")
        with self.assertRaisesRegex(RuntimeError, "signal 9"):
            await self.run_hook("kill -9 $$")

    async def test_a_command_that_reads_nothing_and_writes_much_does_no_harm(self) -> None:
        big = {"tool_input": {"content": "x" * 300_000}}
        self.assertIsNone(await self.run_hook("head -c 3000000 /dev/zero | tr '\\0' y", **big))

    async def test_a_command_that_hangs_is_ended_with_its_children(self) -> None:
        hook = ShellHook("sleep 987 & echo $! > child; sleep 987", str(self.folder))
        engine = HookEngine(pre_tool_use=(HookMatcher("slow", hook=hook, timeout_s=60),))
        asked = asyncio.create_task(engine.run_pre_tool_use(tool_name="Bash", tool_input={}))
        child = self.folder / "child"
        await until_async(lambda: child.exists() and child.read_text(), "the hook runs")
        skip_time(60)
        _, events, decision = await asked
        assert decision is not None
        self.assertEqual((decision.block, events[0].action), (True, "timeout"))
        await self.gone(int((self.folder / "child").read_text()))

    async def test_processes_that_a_command_leaves_behind_are_ended_and_not_waited_for(self) -> None:
        self.assertIsNone(await self.run_hook("sleep 987 & echo $! > child"))
        await self.gone(int((self.folder / "child").read_text()))

    async def gone(self, pid: int) -> None:
        await until_async(lambda: not _is_running(pid), "the process has ended")

    async def test_a_variable_cannot_make_the_shell_run_something_first(self) -> None:
        trap = self.folder / "trap.sh"
        trap.write_text("touch sprung", encoding="utf-8")
        os.environ["BASH_ENV"] = str(trap)
        self.addCleanup(os.environ.pop, "BASH_ENV", None)
        await self.run_hook("true")
        self.assertFalse((self.folder / "sprung").exists())


def _is_running(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


if __name__ == "__main__":
    unittest.main()
