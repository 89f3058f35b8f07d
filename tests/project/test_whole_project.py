"""A project that uses every feature of Claude Code, followed from trusting it to the last hook."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from openagentic_sdk.parts.project.trust import TrustStore, project_digest
from openagentic_sdk.permissions.gate import PermissionGate
from tests.size import full_size
from tests.skills.support import RunTestCase

FIXTURE = Path(__file__).parents[2] / "fixtures/projects/claude_code"
# The fields that the hook documentation lists for every event, and those for each.
EVERY = {"session_id", "transcript_path", "cwd", "hook_event_name", "permission_mode"}
OF_EVENT = {
    "SessionStart": {"source", "model"},
    "SessionEnd": {"reason"},
    "UserPromptSubmit": {"prompt"},
    "PreToolUse": {"tool_name", "tool_input", "tool_use_id"},
    "PermissionRequest": {"tool_name", "tool_input"},
    "PostToolUse": {"tool_name", "tool_input", "tool_response", "tool_use_id"},
    "PostToolUseFailure": {"tool_name", "tool_input", "tool_use_id", "error", "is_interrupt"},
    "Notification": {"message", "title", "notification_type"},
    "SubagentStart": {"agent_id", "agent_type"},
    "SubagentStop": {"agent_id", "agent_type", "stop_hook_active", "last_assistant_message", "agent_transcript_path"},
    "Stop": {"stop_hook_active", "last_assistant_message"},
}


def call(tool: str, /, **arguments: Any) -> dict[str, Any]:
    return {"tool_calls": [{"name": tool, "arguments": arguments}]}


class WholeProjectTest(RunTestCase):
    def setUp(self) -> None:
        super().setUp()
        shutil.copytree(FIXTURE, self.project, dirs_exist_ok=True)
        self.write({"package.lock": "x", "CLAUDE.local.md": "I prefer small commits."})
        before = os.environ.get("OPENAGENTIC_SDK_HOME")
        os.environ["OPENAGENTIC_SDK_HOME"] = str(self.parent / "sdk")
        self.addCleanup(lambda: os.environ.update({"OPENAGENTIC_SDK_HOME": before or ""}))
        self.decisions = TrustStore(self.parent / "sdk/trust.json")
        self.decisions.remember(self.project, "trusted", digest=project_digest(str(self.project)))

    def walk(self, *turns: Any, **options: Any) -> Any:
        async def answer(question: Any) -> str:
            return "no"

        gate = PermissionGate(permission_mode="acceptEdits", user_answerer=answer)
        sources = ("user", "project", "local")
        return self.run_script(*turns, permission_gate=gate, setting_sources=sources, **options)

    def hook_inputs(self, name: str = "hooks") -> list[dict[str, Any]]:
        path = self.parent / f"{name}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines() if line.strip()] if path.exists() else []

    def notices(self, result: Any) -> list[str]:
        return sorted(event.message for event in result.events if event.type == "system.notice")

    @full_size
    def test_every_hook_receives_its_documented_input(self) -> None:
        result = self.walk(
            call("Read", file_path="gone.txt"),
            call("Write", file_path="app/new.py", content="# TODO: x\n"),
            call("Edit", file_path="app/new.py", old_string="x", new_string="TODO y"),
            call("Write", file_path="package.lock", content="y"),
            call("Bash", command="git push origin dev"),
            call("Task", subagent_type="reader", description="d", prompt="Read."),
            "The child is done.",
            "Done.",
            "I wrote app/new.py.",
        )
        self.assertEqual((result.stop_reason, result.final_text), ("end", "I wrote app/new.py."))
        told = self.hook_inputs()
        names = [each["hook_event_name"] for each in told]
        self.assertEqual(set(names), set(OF_EVENT))
        self.assertEqual(
            (names.count("SessionStart"), names.count("UserPromptSubmit"), names.count("SessionEnd")), (1, 1, 1)
        )
        for each in told:
            with self.subTest(each["hook_event_name"]):
                self.assertEqual((EVERY | OF_EVENT[each["hook_event_name"]]) - each.keys(), set())
                self.assertEqual((each["cwd"], each["permission_mode"]), (str(self.project), "acceptEdits"))
        stops = [each["stop_hook_active"] for each in told if each["hook_event_name"] == "Stop"]
        self.assertEqual(stops, [False, True])
        self.assertEqual([each["hook_event_name"] for each in self.hook_inputs("pushes")], ["PreToolUse"])
        self.assertEqual(set((self.parent / "env.txt").read_text().split()), {"test"})
        transcript = Path(told[-1]["transcript_path"])
        lines = [json.loads(line) for line in transcript.read_text().splitlines()]
        self.assertEqual({line["type"] for line in lines}, {"user", "assistant"})
        self.assertEqual(lines[0]["message"], {"role": "user", "content": "Go."})
        written = (self.project / "app/new.py").read_text()
        self.assertEqual(written, "# TASK: TASK y\n")
        outcomes = [event.outcome for event in result.events if event.type == "tool.result"]
        self.assertEqual(outcomes, ["error", "ok", "ok", "denied", "denied", "ok"])

    @full_size
    def test_everything_ignored_is_reported_exactly_once(self) -> None:
        first = self.walk("Done.", "Done.")
        settings = self.project / ".claude/settings.json"
        self.assertEqual(
            self.notices(first),
            sorted(
                [
                    f"{settings}:6: only Claude Code's own programs use statusLine: `openagentic-sdk doctor --project` "
                    "has details",
                    f"{settings}:29: hooks of type prompt are not run here: a command hook can ask a model with "
                    "`openagentic-sdk run`",
                    f"{self.project}/.mcp.json: the server 'warehouse' is not started: nobody has approved it yet: "
                    "review and approve it with `openagentic-sdk mcp trust warehouse`",
                    "the plugin 'absent@elsewhere' is not installed: get its folder, and run `openagentic-sdk plugins "
                    "add DIR`",
                ]
            ),
        )
        self.assertEqual(self.notices(self.walk("Done.", "Done.", resume=first.session_id)), [])
        self.assertEqual(self.decisions.look_up(self.project).decision, "trusted", self.decisions.look_up(self.project))

    def test_memory_style_skills_and_the_plugin_reach_the_prompt(self) -> None:
        turns = (call("Read", file_path="app/report.sql"), call("Read", file_path="app/main.py"))
        result = self.walk(*turns, "Done.", "Done.", model=None)
        context = next(event for event in result.events if event.type == "model.context")
        for words in (
            "Tests run with `make test`",
            "Short functions, plain words.",
            "I prefer small commits.",
            '<output-style name="Brief">\nAnswer in two sentences.',
            "- release: Release a version",
            "- notes:jot: Write a note.",
        ):
            self.assertIn(words, context.system_prompt)
        for words in ("for people", "How we write SQL", "Type everything", "over HTTP"):
            self.assertNotIn(words, context.system_prompt)
        self.assertEqual(context.model, "big-1")
        notes = "\n".join(
            event.text for event in result.events if event.type == "user.message" and event.origin == "rule"
        )
        for words in ("- sql: How we write SQL", "Type everything", "over HTTP", "- ship: Ship the app."):
            self.assertIn(words, notes)

    @full_size
    def test_skills_commands_and_agents_of_project_and_plugin_are_used_by_their_names(self) -> None:
        result = self.walk("Done.", "Done.", prompt="/release 1.2 stable")
        (told,) = [event.text for event in result.events if event.type == "user.message" and event.about]
        self.assertIn("Release 1.2 on stable.", told)
        (active,) = [event for event in result.events if event.type == "skill.activated"]
        self.assertEqual(list(active.grants), ["Bash(make release:*)"])
        root = os.path.realpath(self.project / "market/notes")
        for text, words in (
            ("/team:review app/main.py", "Review app/main.py as @docs/style.md says."),
            ("/notes:all", f"List the notes in {root}."),
        ):
            result = self.walk("Done.", "Done.", prompt=text)
            (message,) = [
                event.text for event in result.events if event.type == "user.message" and event.origin == "user"
            ]
            self.assertIn(words, message)
        self.assertEqual(set((self.parent / "plugin.txt").read_text().split()), {root})
        calls = [call("Skill", skill="notes:jot"), call("Task", agent="notes:clerk", prompt="x"), "Kept."]
        result = self.walk(*calls, call("Task", agent="apart", prompt="x"), "Done.", "Done.")
        results = [event for event in result.events if event.type == "tool.result"]
        self.assertEqual([event.outcome for event in results], ["ok", "ok", "error"])
        self.assertIn("requests isolation 'worktree'", results[-1].error_message)
        reader = self.walk(call("Task", agent="reader", prompt="x"), "Read.", "Done.", "Done.")
        contexts = [event.model for event in reader.events if event.type == "model.context"]
        self.assertEqual(contexts[:2], ["m", "small-1"])
        self.assertIn("names the skill 'gone', which does not exist", " ".join(self.notices(reader)))
