"""Hooks of settings over the life of a session: when they run, what they receive, and the effect of their answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, ClassVar

from openagentic_sdk.client import AgentClient
from openagentic_sdk.errors import ToolInputError
from openagentic_sdk.options import OpenAgenticOptions
from openagentic_sdk.parts.claude.names import with_our_names, with_their_names
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.testing.scripted import ScriptedProvider
from tests.skills.support import RunTestCase

LOG = "{ cat; echo; } >> ../log"


def call(tool: str, /, **arguments: Any) -> dict[str, Any]:
    return {"tool_calls": [{"name": tool, "arguments": arguments}]}


class SessionTest(RunTestCase):
    defaults: ClassVar[Mapping[str, Any]] = {
        "trust_project": True,
        "permission_gate": PermissionGate(permission_mode="bypass"),
    }

    def hooks(self, **entries: Any) -> None:
        """Configure each event with a command, a hook, or a list of groups."""
        groups: dict[str, Any] = {}
        for event, entry in entries.items():
            hook = {"command": entry} if isinstance(entry, str) else entry
            groups[event] = entry if isinstance(entry, list) else [{"hooks": [{"type": "command", **hook}]}]
        self.write({".claude/settings.json": json.dumps({"hooks": groups})})

    def hook_inputs(self) -> list[dict[str, Any]]:
        path = self.parent / "log"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return [json.loads(line) for line in lines if line]

    def test_a_session_starts_once_and_names_its_source(self) -> None:
        self.hooks(SessionStart=LOG, SessionEnd=LOG)
        first = self.run_script("Done.")
        self.assertEqual(
            [(e.get("source"), e.get("reason")) for e in self.hook_inputs()], [("startup", None), (None, "other")]
        )
        self.run_script("Done.", resume=first.session_id)
        self.assertEqual([e.get("source") for e in self.hook_inputs()], ["resume", None])
        self.hooks(SessionStart=[{"matcher": "resume", "hooks": [{"type": "command", "command": LOG}]}])
        self.run_script("Done.")
        self.assertEqual(self.hook_inputs(), [])

    def test_a_conversation_of_several_turns_starts_and_ends_once(self) -> None:
        self.hooks(SessionStart=LOG, SessionEnd=LOG, UserPromptSubmit=LOG)
        options = OpenAgenticOptions(
            provider=ScriptedProvider(["One.", "Two."]),
            model="m",
            cwd=self.project,
            setting_sources=("project",),
            session_store=self.store,
            **self.defaults,
        )

        async def talk() -> None:
            async with AgentClient(options) as client:
                for prompt in ("a", "b"):
                    await client.send(prompt)
                    async for _ in client.receive():
                        pass

        asyncio.run(talk())
        names = [each["hook_event_name"] for each in self.hook_inputs()]
        self.assertEqual(names, ["SessionStart", "UserPromptSubmit", "UserPromptSubmit", "SessionEnd"])

    def test_a_stop_hook_learns_that_it_has_sent_the_model_back(self) -> None:
        self.hooks(Stop=f"{LOG}; grep -q '\"stop_hook_active\":true' ../log || {{ echo more >&2; exit 2; }}")
        result = self.run_script("One.", "Two.")
        told = self.hook_inputs()
        self.assertEqual([each["stop_hook_active"] for each in told], [False, True])
        self.assertEqual([each["last_assistant_message"] for each in told], ["One.", "Two."])
        self.assertEqual(result.final_text, "Two.")

    def test_exit_codes_mean_what_is_documented(self) -> None:
        for command, outcome in (
            ("exit 0", "ok"),
            ("echo no >&2; exit 2", "denied"),
            ("exit 1", "ok"),
            ("nothing-here", "ok"),
        ):
            with self.subTest(command):
                self.hooks(PreToolUse=command)
                result = self.run_script(call("Glob", pattern="*"), "Done.")
                self.assertEqual([e.outcome for e in result.events if e.type == "tool.result"], [outcome])

    def test_json_is_read_with_every_exit_code_and_2_always_blocks(self) -> None:
        deny = json.dumps({"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "deny"}})
        allow = deny.replace("deny", "allow")
        for said, code, outcome in ((deny, 0, "denied"), (deny, 1, "denied"), (allow, 1, "ok"), (allow, 2, "denied")):
            with self.subTest((said, code)):
                self.hooks(PreToolUse=f"echo '{said}'; exit {code}")
                result = self.run_script(call("Glob", pattern="*"), "Done.")
                self.assertEqual([e.outcome for e in result.events if e.type == "tool.result"], [outcome])

    def test_continue_false_ends_the_run_at_every_point(self) -> None:
        stop = json.dumps({"continue": False, "stopReason": "enough", "systemMessage": "look"})
        for event, reason in (
            ("SessionStart", "blocked:session_start"),
            ("UserPromptSubmit", "blocked:user_prompt_submit"),
            ("PreToolUse", "blocked:pre_tool_use"),
            ("PostToolUse", "blocked:post_tool_use"),
            ("Stop", "blocked:stop"),
        ):
            with self.subTest(event):
                self.hooks(**{event: f"echo '{stop}'"})
                result = self.run_script(call("Glob", pattern="*"), "Done.")
                self.assertEqual(result.stop_reason, reason)
                (hooked,) = [e for e in result.events if e.type == "hook.event"]
                self.assertEqual((hooked.details["stops"], hooked.details["system_message"]), ("enough", "look"))

    def test_context_that_a_hook_adds_at_a_subagents_start_goes_to_the_subagent(self) -> None:
        said = {"hookSpecificOutput": {"hookEventName": "SubagentStart", "additionalContext": "mind the gap"}}
        self.hooks(SubagentStart=f"echo '{json.dumps(said)}'")
        self.write({".claude/agents/a.md": "---\nname: a\ndescription: d\n---\nWork.\n"})
        result = self.run_script(call("Task", agent="a", prompt="Go."), "Child.", "Done.")
        added = [e.agent_name for e in result.events if e.type == "user.message" and e.text == "mind the gap"]
        self.assertEqual(added, ["a"])

    def test_a_failed_call_has_an_event_of_its_own(self) -> None:
        self.hooks(PostToolUse=LOG, PostToolUseFailure=LOG)
        self.run_script(call("Read", file_path="gone"), call("Glob", pattern="*"), "Done.")
        told = self.hook_inputs()
        self.assertEqual([each["hook_event_name"] for each in told], ["PostToolUseFailure", "PostToolUse"])
        self.assertIn("does not exist", told[0]["error"])

    def test_an_async_hook_is_not_waited_for_and_a_once_hook_runs_once(self) -> None:
        self.hooks(
            PreToolUse={"command": "sleep 30; echo late >> ../log", "async": True},
            PostToolUse={"command": LOG, "once": True},
        )
        result = self.run_script(call("Glob", pattern="*"), call("Glob", pattern="*"), "Done.")
        self.assertEqual((result.stop_reason, len(self.hook_inputs())), ("end", 1))

    def test_args_run_a_program_without_a_shell(self) -> None:
        self.hooks(
            UserPromptSubmit={
                "command": "sh",
                "args": ["-c", 'echo "{\\"a\\": \\"$1\\"}" >> ../log', "x", "${CLAUDE_PROJECT_DIR} $HOME"],
            }
        )
        self.run_script("Done.")
        self.assertEqual(self.hook_inputs(), [{"a": f"{self.project} $HOME"}])

    def test_hooks_can_be_switched_off(self) -> None:
        self.write({".claude/settings.local.json": json.dumps({"disableAllHooks": True})})
        self.hooks(SessionStart=LOG)
        self.run_script("Done.", setting_sources=("project", "local"))
        self.assertEqual(self.hook_inputs(), [])


class NamesTest(RunTestCase):
    def test_the_name_that_a_hook_changed_counts_and_a_conflict_is_refused(self) -> None:
        input = {"file_path": "a", "old": "x", "new": "y"}
        shown = with_their_names("Edit", input)
        self.assertEqual((shown["old_string"], shown["new_string"], shown["old"]), ("x", "y", "x"))
        for change, expected in (
            ({}, input),
            ({"new_string": "z"}, {**input, "new": "z"}),
            ({"new": "z"}, {**input, "new": "z"}),
            ({"new": "z", "new_string": "z"}, {**input, "new": "z"}),
        ):
            with self.subTest(change):
                self.assertEqual(with_our_names("Edit", input, {**shown, **change}), expected)
        self.assertEqual(
            with_our_names("Edit", input, {"file_path": "b", "old_string": "x", "new_string": "q"}),
            {"file_path": "b", "old": "x", "new": "q"},
        )
        with self.assertRaises(ToolInputError):
            with_our_names("Edit", input, {**shown, "new": "p", "new_string": "q"})

    def test_seconds_and_counts(self) -> None:
        shown = with_their_names("Bash", {"command": "ls", "timeout_s": 2})
        self.assertEqual(shown["timeout"], 2000)
        self.assertEqual(
            with_our_names("Bash", {"command": "ls", "timeout_s": 2}, {**shown, "timeout": 5000})["timeout_s"], 5
        )
        self.assertEqual(with_our_names("Edit", {"old": "a"}, {"old": "a", "replace_all": True})["count"], 0)
        conflict = {"old": "a", "count": 2, "replace_all": True}
        with self.assertRaises(ToolInputError):
            with_our_names("Edit", {"old": "a"}, conflict)
        edits = [{"old": "a", "new": "b"}]
        shown = with_their_names("Edit", {"edits": edits})
        shown["edits"][0]["new_string"] = "c"
        self.assertEqual(with_our_names("Edit", {"edits": edits}, shown)["edits"], [{"old": "a", "new": "c"}])

    def test_a_hook_may_return_the_names_of_claude_code_only(self) -> None:
        input = {"file_path": "a", "old": "x", "new": "y", "count": 0}
        answer = {"file_path": "a", "old_string": "x", "new_string": "z", "replace_all": True}
        self.assertEqual(with_our_names("Edit", input, answer), {**input, "new": "z"})
        once = with_our_names("Edit", input, {**answer, "replace_all": False})
        self.assertEqual(once, {**input, "new": "z", "count": 1})
        input = {"command": "ls", "timeout_s": 2}
        for timeout, seconds in ((2000, 2), (5000, 5)):
            with self.subTest(timeout):
                changed = with_our_names("Bash", input, {"command": "ls", "timeout": timeout})
                self.assertEqual(changed, {"command": "ls", "timeout_s": seconds})
