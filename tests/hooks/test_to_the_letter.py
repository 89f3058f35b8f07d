"""Command hooks in whole runs, event by event, as Claude Code's hook reference defines them."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import unittest
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from openagentic_sdk.api import run
from openagentic_sdk.hooks.models import HookDecision
from openagentic_sdk.options import AgentDefinition, OpenAgenticOptions
from openagentic_sdk.parts.claude import command_hooks
from openagentic_sdk.parts.claude.command_hooks import MAX_STOP_BLOCKS, ShellHook, failure_of
from openagentic_sdk.parts.claude.hook_answers import MAX_TEXT_CHARS, decision_of
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.testing.scripted import ScriptedProvider
from tests.pythons import PLAIN_PYTHON
from tests.size import full_size
from tests.skills.support import RunTestCase
from tests.waiting import until, until_async

# Appends its input to a file, and prints the contents of a file with the name of the event.
TELL = """import json, os, sys
told = json.load(sys.stdin)
with open("told.jsonl", "a") as file:
    file.write(json.dumps(told) + "\\n")
name = "say." + told["hook_event_name"]
if os.path.exists(name):
    sys.stdout.write(open(name).read())
"""


def call(tool: str, /, **arguments: Any) -> dict[str, Any]:
    return {"tool_calls": [{"name": tool, "arguments": arguments}]}


def say(event: str, **fields: Any) -> dict[str, str]:
    """A file with the text that the hook of an event answers with."""
    return {f"say.{event}": json.dumps({"hookSpecificOutput": {"hookEventName": event, **fields}})}


class ExitCodes(unittest.TestCase):
    def test_every_way_a_hook_can_end_has_its_documented_effect(self) -> None:
        deny = '{"hookSpecificOutput": {"permissionDecision": "deny", "permissionDecisionReason": "own"}}'
        allow = '{"hookSpecificOutput": {"permissionDecision": "allow"}}'
        for point, code, out, err, expected in (
            ("pre_tool_use", 2, "", "no rm\n", HookDecision(block=True, block_reason="no rm")),
            ("pre_tool_use", 2, "", "", HookDecision(block=True, block_reason="the hook gave no reason")),
            ("pre_tool_use", 2, allow, "no", HookDecision(block=True, block_reason="no")),
            ("pre_tool_use", 2, deny, "no", HookDecision(block=True, block_reason="own")),
            ("pre_tool_use", 2, '{"continue": 7}', "no", HookDecision(block=True, block_reason="no")),
            ("pre_tool_use", 2, "{not json", "no", HookDecision(block=True, block_reason="no")),
            ("pre_tool_use", 1, deny, "x", HookDecision(block=True, block_reason="own", permission="deny")),
            ("pre_tool_use", 1, "{}", "x", None),
            ("permission_request", 2, "", "no", None),
            ("permission_request", 2, '{"continue": 7}', "no", None),
            ("notification", 2, "", "seen", HookDecision(system_message="seen", action="feedback")),
            ("session_start", 2, "", "seen", HookDecision(system_message="seen", action="feedback")),
            ("post_tool_use", 2, '{"systemMessage": "m"}', "lint",
             HookDecision(additional_context="lint", action="feedback", system_message="m")),
            ("stop", 2, "", "tests", HookDecision(block=True, block_reason="tests")),
            ("user_prompt_submit", 2, "text", "no", HookDecision(block=True, block_reason="no")),
        ):  # fmt: skip
            with self.subTest(point=point, code=code, out=out):
                self.assertEqual(decision_of(point, code, out, err), expected)

    def test_an_end_by_a_signal_or_another_code_is_a_failure(self) -> None:
        for code, out, problem in (
            (-9, "", "ended by signal 9"),
            (-9, "text", "ended by signal 9"),
            (127, "", "exit code 127: it wrote nothing"),
            (1, "{not json", "exit code 1"),
            (3, "[1]", "exit code 3"),
        ):
            with self.subTest(code=code, out=out), self.assertRaisesRegex(RuntimeError, problem):
                decision_of("pre_tool_use", code, out, "")

    def test_long_texts_are_cut_and_an_answer_of_any_length_counts(self) -> None:
        long = "x" * (3 * MAX_TEXT_CHARS)
        fields = {"permissionDecision": "deny", "permissionDecisionReason": "why", "additionalContext": long}
        decision = decision_of("pre_tool_use", 0, json.dumps({"hookSpecificOutput": fields}), "")
        assert decision is not None and decision.additional_context is not None
        self.assertEqual((decision.block, decision.block_reason), (True, "why"))
        self.assertTrue(decision.additional_context.endswith("x... [20000 characters left out]"))
        self.assertEqual(len(decision.additional_context), MAX_TEXT_CHARS + len("... [20000 characters left out]"))

    def test_a_command_fails_by_its_exit_code_unless_it_compares(self) -> None:
        for tool, command, output, failed in (
            ("Bash", "make", {"exit_code": 2, "stdout": "a\n", "stderr": "b\n"}, "Exit code 2\na\nb"),
            ("Bash", "make", {"exit_code": 0, "stdout": "a"}, None),
            ("Bash", "grep x y", {"exit_code": 1, "stdout": ""}, None),
            ("Bash", "grep x y", {"exit_code": 2, "stderr": "no y"}, "Exit code 2\nno y"),
            ("Bash", "sleep 9", {"shell_id": "s1"}, None),
            ("Read", "", {"exit_code": 2}, None),
            ("Bash", "make", "text of another hook", None),
        ):
            with self.subTest(command=command, output=output):
                payload = {"tool_name": tool, "tool_input": {"command": command}, "tool_output": output}
                self.assertEqual(failure_of(payload), failed)


@unittest.skipIf(shutil.which("bash") is None, "there is no bash on this machine")
class Events(RunTestCase):
    defaults: ClassVar[Mapping[str, Any]] = {
        "trust_project": True,
        "permission_gate": PermissionGate(permission_mode="bypass"),
    }

    def setUp(self) -> None:
        super().setUp()
        self.write({"tell.py": TELL})

    def hooks(self, *events: str, **fields: Any) -> None:
        hook = {"type": "command", "command": f"{PLAIN_PYTHON} tell.py", **fields}
        self.settings({event: [{"hooks": [hook]}] for event in events})

    def settings(self, hooks: Mapping[str, Any]) -> None:
        self.write({".claude/settings.json": json.dumps({"hooks": hooks})})

    def hook_inputs(self) -> list[dict[str, Any]]:
        path = self.project / "told.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def notes(self, result: Any) -> list[str]:
        return [e.text for e in result.events if e.type == "user.message" and e.origin == "hook"]

    def test_a_block_after_a_tool_gives_its_reason_beside_its_context(self) -> None:
        self.hooks("PostToolUse")
        answer = {"decision": "block", "reason": "lint fails"}
        specific = {"hookEventName": "PostToolUse", "additionalContext": "the rules stand in ruff.toml"}
        self.write({"say.PostToolUse": json.dumps({**answer, "hookSpecificOutput": specific}), "a.txt": "a"})
        result = self.run_script(call("Read", file_path="a.txt"), "Done.")
        self.assertEqual(self.notes(result), ["lint fails\nthe rules stand in ruff.toml"])
        self.assertEqual([e.is_error for e in result.events if e.type == "tool.result"], [False])

    @full_size
    def test_a_command_that_fails_is_a_failed_call(self) -> None:
        self.hooks("PostToolUse", "PostToolUseFailure")
        self.write(say("PostToolUseFailure", additionalContext="see the log"))
        turns = [
            call("Bash", command=command) for command in ("echo out; echo err >&2; exit 3", "true", "grep x tell.md")
        ]
        result = self.run_script(*turns, "Done.")
        events = [(each["hook_event_name"], each["tool_input"]["command"][:8]) for each in self.hook_inputs()]
        failed, passed, missing = "echo out", "true", "grep x t"
        self.assertEqual(
            events, [("PostToolUseFailure", failed), ("PostToolUse", passed), ("PostToolUseFailure", missing)]
        )
        first = self.hook_inputs()[0]
        self.assertEqual((first["error"], first["is_interrupt"]), ("Exit code 3\nout\nerr", False))
        self.assertNotIn("tool_response", first)
        self.assertEqual(self.notes(result), ["see the log"] * 2)

    def test_a_prompt_is_shown_as_the_person_typed_it(self) -> None:
        self.hooks("UserPromptSubmit")
        self.write({".claude/commands/greet.md": "Say hello to $ARGUMENTS.\n"})
        result = self.run_script("Done.", prompt="/greet Ann")
        self.assertEqual([each["prompt"] for each in self.hook_inputs()], ["/greet Ann"])
        self.assertEqual([e.text for e in result.events if e.type == "user.message"], ["Say hello to Ann."])

    def test_a_stop_is_refused_eight_times_and_no_more(self) -> None:
        self.settings({"Stop": [{"hooks": [{"type": "command", "command": "echo more >&2; exit 2"}]}]})
        result = self.run_script(*["Done."] * (MAX_STOP_BLOCKS + 1))
        self.assertEqual((result.stop_reason, result.final_text), ("end", "Done."))
        self.assertEqual(self.notes(result), ["more"] * MAX_STOP_BLOCKS)
        last = [e for e in result.events if e.type == "hook.event"][-1]
        self.assertEqual(last.action, "overridden")
        self.assertIn("8 times", last.details["system_message"])

    def test_context_at_a_stop_sends_the_model_on_once(self) -> None:
        script = TELL.replace("if os.path", "if not told.get('stop_hook_active') and os.path")
        self.write({"tell.py": script, **say("Stop", additionalContext="Run the tests first.")})
        self.hooks("Stop")
        result = self.run_script("Done.", "Tested.")
        self.assertEqual((result.final_text, self.notes(result)), ("Tested.", ["Run the tests first."]))
        self.assertEqual([each["stop_hook_active"] for each in self.hook_inputs()], [False, True])

    @full_size
    def test_a_subagents_events_name_the_session_and_the_subagent(self) -> None:
        self.hooks("SubagentStart", "SubagentStop", "PreToolUse", "Stop")
        self.write({"a.txt": "a"})
        agents = {"reader": AgentDefinition("Reads.", "You read.", tools=("Read",))}
        turns = [call("Task", agent="reader", prompt="Read."), call("Read", file_path="a.txt"), "Child.", "Done."]
        result = self.run_script(*turns, agents=agents)
        task, start, read, stop, last = self.hook_inputs()
        self.assertEqual(
            [each["hook_event_name"] for each in self.hook_inputs()],
            ["PreToolUse", "SubagentStart", "PreToolUse", "SubagentStop", "Stop"],
        )
        self.assertEqual({each["session_id"] for each in self.hook_inputs()}, {result.session_id})
        self.assertEqual({each["transcript_path"] for each in (read, stop)}, {last["transcript_path"]})
        ids = {each["agent_id"] for each in (start, read, stop)}
        self.assertEqual((len(ids), "" in ids), (1, False))
        self.assertEqual([each.get("agent_type") for each in self.hook_inputs()], [None, *["reader"] * 3, None])
        self.assertEqual([each.get("agent_id") for each in (task, last)], [None, None])
        self.assertNotEqual(stop["agent_transcript_path"], stop["transcript_path"])
        self.assertIn("Child.", Path(stop["agent_transcript_path"]).read_text())

    def test_a_denial_that_interrupts_ends_the_run(self) -> None:
        self.hooks("PermissionRequest")
        self.write(say("PermissionRequest", decision={"behavior": "deny", "message": "never", "interrupt": True}))
        gate = PermissionGate(permission_mode="prompt")
        result = self.run_script(call("Bash", command="touch x"), "Done.", permission_gate=gate)
        self.assertEqual(result.stop_reason, "blocked:permission_request")
        self.assertFalse((self.project / "x").exists())

    def test_equal_hooks_run_once_for_an_event(self) -> None:
        hook = {"type": "command", "command": f"{PLAIN_PYTHON} tell.py"}
        other = {**hook, "command": f"{PLAIN_PYTHON} ./tell.py"}
        self.settings({"UserPromptSubmit": [{"hooks": [hook, hook]}, {"hooks": [hook, other]}]})
        self.run_script("Done.")
        self.assertEqual(len(self.hook_inputs()), 2)

    def test_a_guard_that_fails_or_writes_nonsense_is_in_the_log_and_lets_pass(self) -> None:
        self.write({"a.txt": "a"})
        for command, action in (
            ("kill -TERM $$", "error"),
            ('echo \'{"hookSpecificOutput": {"permissionDecision": 1}}\'', "error"),
            ("exit 1", "error"),
            ("./gone.sh", "error"),
            ("printf '\\377\\376{'", "none"),
            ("echo '{'", "none"),
            ("cat /dev/zero | head -c 100000", "none"),
        ):
            with self.subTest(command):
                hook = {"type": "command", "command": command}
                self.settings({"PreToolUse": [{"hooks": [hook]}]})
                result = self.run_script(call("Read", file_path="a.txt"), "Done.")
                self.assertEqual([e.outcome for e in result.events if e.type == "tool.result"], ["ok"])
                self.assertEqual([e.action for e in result.events if e.type == "hook.event"], [action])

    def test_a_guard_that_is_too_slow_decides_nothing_and_is_ended(self) -> None:
        self.write({"a.txt": "a"})
        hook = {"type": "command", "command": "echo $$ > pid; exec sleep 987", "timeout": 0.2}
        self.settings({"PreToolUse": [{"hooks": [hook]}]})
        result = self.run_script(call("Read", file_path="a.txt"), "Done.")
        self.assertEqual([e.outcome for e in result.events if e.type == "tool.result"], ["ok"])
        self.assertEqual([e.action for e in result.events if e.type == "hook.event"], ["timeout"])
        pid = self.project / "pid"
        until(
            lambda: not (pid.exists() and (text := pid.read_text().strip()) and Path("/proc", text).exists()),
            "the process has ended",
        )

    @full_size
    def test_findings_of_a_background_hook_are_in_a_later_request(self) -> None:
        answer = {
            "systemMessage": "s",
            "hookSpecificOutput": {"hookEventName": "PostToolUse", "additionalContext": "c"},
        }
        wait = "while [ ! -e go ]; do sleep 0.01; done"
        cases: list[tuple[dict[str, Any], list[str]]] = [
            ({"command": f"{wait}; echo '{json.dumps(answer)}'", "async": True}, ["c", "s"]),
            ({"command": f"echo '{{\"async\": true}}'; {wait}; echo '{json.dumps(answer)}'"}, ["c", "s"]),
            ({"command": f"{wait}; echo broken >&2; exit 2", "asyncRewake": True}, ["broken"]),
            ({"command": f"{wait}; echo '{json.dumps({**answer, 'systemMessage': 1})}'", "async": True}, []),
            ({"command": f"{wait}; exit 1", "async": True}, []),
        ]
        for fields, expected in cases:
            with self.subTest(fields["command"]):
                self.settings({"PostToolUse": [{"matcher": "Read", "hooks": [{"type": "command", **fields}]}]})
                self.write({"a.txt": "a"})
                self.assertEqual(asyncio.run(self.two_turns()), expected)
                (self.project / "go").unlink()

    async def two_turns(self) -> list[str]:
        """The hook's output in a conversation whose second prompt arrives after the hook has ended."""
        provider = ScriptedProvider([call("Read", file_path="a.txt"), "One.", "Two."])
        options = OpenAgenticOptions(
            provider=provider,
            model="m",
            cwd=self.project,
            setting_sources=("project",),
            trust_project=True,
            home=self.parent / "home",
            session_store=self.store,
            permission_gate=PermissionGate(permission_mode="bypass"),
        )
        first = await run(prompt="Go.", options=options)
        self.assertEqual(self.notes(first), [])
        self.assertEqual(len(command_hooks._RUNNING), 1)
        self.write({"go": ""})
        await until_async(lambda: not command_hooks._RUNNING, "the hook has ended")
        second = await run(prompt="On.", options=replace(options, resume=first.session_id))
        return self.notes(second)

    def test_a_hook_in_the_background_decides_nothing(self) -> None:
        deny = json.dumps({"continue": False, "hookSpecificOutput": {"permissionDecision": "deny"}})
        hook = {"type": "command", "command": f"echo '{deny}'; exit 2", "async": True}
        self.settings({"PreToolUse": [{"hooks": [hook]}]})
        self.write({"a.txt": "a"})
        result = self.run_script(call("Read", file_path="a.txt"), "Done.")
        self.assertEqual([e.outcome for e in result.events if e.type == "tool.result"], ["ok"])
        self.assertEqual(result.stop_reason, "end")


class Single(unittest.IsolatedAsyncioTestCase):
    async def test_a_hook_that_is_cancelled_leaves_no_process(self) -> None:
        hook = ShellHook("echo $$ > pid; exec sleep 987", self.enterContext(tempfile.TemporaryDirectory()))
        pid = Path(hook.project_dir, "pid")
        work = asyncio.create_task(hook({"hook_point": "pre_tool_use", "context": {}}))
        await until_async(lambda: pid.exists() and pid.read_text(), "the hook runs")
        work.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await work
        place = Path("/proc", pid.read_text().strip())
        await until_async(lambda: not place.exists(), "the process has ended")
