"""Subagents of `.claude` in runs: the built-in ones, and what a file may request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from openagentic_sdk.events import Event, SubagentStarted, SystemInit, SystemNotice, ToolResult
from openagentic_sdk.permissions.gate import PermissionGate
from tests.size import full_size
from tests.skills.support import RunTestCase


def call(tool: str, /, **arguments: Any) -> dict[str, Any]:
    return {"tool_calls": [{"name": tool, "arguments": arguments}]}


class AgentTestCase(RunTestCase):
    defaults: ClassVar[Mapping[str, Any]] = {
        "permission_gate": PermissionGate(permission_mode="default", allow=("Task",))
    }

    def agent(self, name: str, folder: str = ".claude", body: str = "You help.", **fields: str) -> None:
        lines = [f"name: {name}", "description: d", *(f"{key}: {value}" for key, value in fields.items())]
        self.write({f"{folder}/agents/{name}.md": "\n".join(["---", *lines, "---", body])})

    def notices(self, result: Any, code: str) -> list[str]:
        return [e.message for e in result.events if isinstance(e, SystemNotice) and e.code == code]

    def started(self, events: list[Event]) -> list[str]:
        return [e.name for e in events if isinstance(e, SubagentStarted)]

    def outcomes(self, result: Any, agent: str | None = None) -> list[str]:
        return [e.outcome for e in result.events if isinstance(e, ToolResult) and e.agent_name == agent]


class BuiltIn(AgentTestCase):
    def names(self, **options: Any) -> tuple[list[str], bool]:
        [init] = [e for e in self.run_script("Done.", **options).events if isinstance(e, SystemInit)]
        return list(init.agents or ()), "Task" in (init.tools or ())

    def test_a_project_without_agent_files_has_three_and_a_run_outside_of_projects_none(self) -> None:
        self.assertEqual(self.names(), (["general-purpose", "Explore", "Plan"], True))
        self.assertEqual(self.names(setting_sources=()), ([], False))

    def test_a_file_of_the_same_name_replaces_a_built_in_agent(self) -> None:
        self.agent("Explore", body="You are mine.")
        turn = {"agent": "You are mine.", "text": "Seen."}
        result = self.run_script(call("Task", agent="Explore", prompt="Look."), turn, "Done.")
        self.assertEqual((self.outcomes(result), result.final_text), (["ok"], "Done."))

    def test_a_denied_one_is_not_offered_and_not_started(self) -> None:
        self.write({".claude/settings.json": json.dumps({"permissions": {"deny": ["Agent(Explore)"]}})})
        result = self.run_script(
            call("Task", agent="Explore", prompt="Look."), call("Task", agent="Plan", prompt="p"), "P.", "Done."
        )
        self.assertEqual(self.started(result.events), ["Plan"])
        [task] = [text for tool in self.provider.requests[0]["tools"] if '"Task"' in (text := json.dumps(tool))]
        self.assertEqual(("Explore" in task, "Plan" in task), (False, True))

    @full_size
    def test_explore_and_plan_change_nothing_whatever_the_run_may(self) -> None:
        self.write({"a.txt": "a"})
        turns = [
            call("Read", file_path="a.txt"),
            call("Bash", command="touch x"),
            call("Write", file_path="x", content="x"),
            call("Bash", command="cat a.txt"),
            "Seen.",
        ]
        for name in ("Explore", "Plan"):
            with self.subTest(name):
                gate = PermissionGate(permission_mode="bypass")
                result = self.run_script(
                    call("Task", agent=name, prompt="Look."), *turns, "Done.", permission_gate=gate
                )
                outcomes = self.outcomes(result, name)
                self.assertEqual(
                    (outcomes[0], outcomes[2] == "ok", outcomes[3]), ("ok", False, "ok")
                )  # touch was tried separately
                self.assertFalse((self.project / "x").exists())

    def test_explore_reads_no_memory_and_the_general_one_does(self) -> None:
        self.write({"CLAUDE.md": "Mind the gap.", "sub/CLAUDE.md": "Mind the step.", "sub/a.txt": "a"})
        for name, reads in (("Explore", False), ("general-purpose", True)):
            with self.subTest(name):
                read = call("Read", file_path="sub/a.txt")
                self.run_script(call("Task", agent=name, prompt="Look."), read, "Seen.", "Done.")
                told = [json.dumps(list(request["messages"])) for request in self.provider.requests]
                self.assertIn("Mind the gap.", told[0])
                self.assertEqual(["Mind the gap." in told[2], "Mind the step." in told[2]], [reads, reads])

    def test_a_call_in_claude_codes_words_that_names_no_agent_gets_the_general_one(self) -> None:
        for fields in ({"description": "d", "model": "opus"}, {"subagent_type": "general-purpose"}, {}):
            for tool in ("Agent", "Task"):
                with self.subTest(tool=tool, fields=fields):
                    result = self.run_script(call(tool, prompt="Go.", **fields), "Gone.", "Done.")
                    self.assertEqual((self.started(result.events), result.final_text), (["general-purpose"], "Done."))


class Tools(AgentTestCase):
    def test_an_agent_whose_tools_are_nothing_is_refused_and_named(self) -> None:
        for tools in ("Raed", "Raed, LS", "[Raed]", "NotebookEdit", "mcp__gone__x", "Raed(./x)"):
            with self.subTest(tools):
                self.agent("typo", tools=tools)
                result = self.run_script(call("Task", agent="typo", prompt="Go."), "Done.")
                self.assertEqual(self.started(result.events), [])
                [error] = [e.error_message or "" for e in result.events if isinstance(e, ToolResult)]
                self.assertRegex(
                    error, r"the agent 'typo' would have no tools, since no tool here is named '.*typo\.md"
                )

    def test_one_existing_tool_is_enough_and_the_typo_is_reported_once(self) -> None:
        self.agent("half", tools="Read, Raed, LS, mcp__later__x, Grep")
        self.agent("other", tools="Raed, Agent(half), KillShell")
        result = self.run_script(call("Task", agent="half", prompt="Go."), "Gone.", "Done.")
        self.assertEqual(self.started(result.events), ["half"])
        told = self.notices(result, "agents.tool")
        self.assertEqual(told, ["agents list tools that do not exist, and run without them (Raed: half, other)"])

    def test_model_aliases_are_reported_once_with_the_model_used_instead(self) -> None:
        for name, model in (("a", "opus"), ("b", "Opus[1m]"), ("c", "haiku"), ("d", "inherit"), ("e", "m-2")):
            self.agent(name, model=model)
        [told] = self.notices(self.run_script("Done."), "agents.model")
        self.assertIn("so they run on 'm' (opus: a, b; haiku: c)", told)
        self.assertIn('"modelNames": {"opus": ...} in settings.json or ANTHROPIC_DEFAULT_OPUS_MODEL', told)
        self.write({".claude/settings.json": json.dumps({"modelNames": {"opus": "big", "haiku": "small"}})})
        result = self.run_script(call("Task", agent="c", prompt="Go."), "Gone.", "Done.")
        self.assertEqual(self.notices(result, "agents.model"), [])
        self.assertEqual([request["model"] for request in self.provider.requests], ["m", "small", "m"])


class Modes(AgentTestCase):
    def write_in(self, name: str, **options: Any) -> list[str]:
        """The outcomes of the agent's attempts to write a file."""
        write = call("Write", file_path="x.txt", content="x")
        (self.project / "x.txt").unlink(missing_ok=True)
        result = self.run_script(call("Task", agent=name, prompt="Go."), write, "Gone.", "Done.", **options)
        self.assertEqual(self.started(result.events), [name])
        return self.outcomes(result, name)

    @full_size
    def test_only_a_persons_own_file_makes_a_mode_looser(self) -> None:
        home = "../home/.claude"
        for mode in ("acceptEdits", "bypassPermissions"):
            self.agent(f"own-{mode}", home, permissionMode=mode)
            self.agent(f"theirs-{mode}", permissionMode=mode)
            sources = {"setting_sources": ("user", "project")}
            for trusted in (True, False, None):
                with self.subTest(mode=mode, trusted=trusted):
                    options = {**sources, "trust_project": trusted}
                    self.assertEqual(self.write_in(f"own-{mode}", **options), ["ok"])
                    self.assertEqual(self.write_in(f"theirs-{mode}", **options), ["denied"])

    def test_a_projects_file_of_the_same_name_takes_the_place_and_loses_the_mode(self) -> None:
        self.agent("both", "../home/.claude", permissionMode="bypassPermissions")
        self.agent("both", permissionMode="bypassPermissions")
        self.assertEqual(self.write_in("both", setting_sources=("user", "project")), ["denied"])

    @full_size
    def test_a_looser_mode_breaks_no_rule_no_switch_and_no_stricter_mode(self) -> None:
        home = "../home/.claude"
        self.agent("edits", home, permissionMode="acceptEdits")
        self.agent("all", home, permissionMode="bypassPermissions")
        sources = {"setting_sources": ("user", "project")}
        for mode in ("plan", "dontAsk", "prompt", "deny"):
            with self.subTest(mode):
                gate = PermissionGate(permission_mode=mode, allow=("Task",))
                write = call("Write", file_path="x.txt", content="x")
                turns = [call("Task", agent="edits", prompt="Go."), write, "Gone.", "Done."]
                self.run_script(*turns, permission_gate=gate, **sources)
                self.assertFalse((self.project / "x.txt").exists())
        gate = PermissionGate(permission_mode="default", allow=("Task",), deny=("Write",))
        self.assertEqual(self.write_in("all", permission_gate=gate, **sources), ["error"])
        self.write({".claude/settings.json": json.dumps({"permissions": {"disableBypassPermissionsMode": "disable"}})})
        self.assertEqual(self.write_in("all", **sources), ["denied"])
        self.assertEqual(self.write_in("edits", **sources), ["ok"])

    def test_words_for_modes_that_are_not_here_hold_the_parents(self) -> None:
        for mode in ("manual", "auto"):
            with self.subTest(mode):
                self.agent("word", permissionMode=mode)
                gate = PermissionGate(permission_mode="acceptEdits", allow=("Task",))
                expected = "denied" if mode == "manual" else "ok"
                self.assertEqual(self.write_in("word", permission_gate=gate), [expected])

    def test_a_stricter_mode_holds_from_any_file(self) -> None:
        self.agent("strict", permissionMode="plan")
        gate = PermissionGate(permission_mode="bypass")
        self.assertEqual(self.write_in("strict", permission_gate=gate), ["denied"])
