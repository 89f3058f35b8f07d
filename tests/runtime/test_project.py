"""Runs in a project folder: its files take effect through the real loop, as far as the folder is trusted."""

import asyncio
import json
import tempfile
import unittest
from dataclasses import replace
from functools import partial
from pathlib import Path

from openagentic_sdk.api import query, run
from openagentic_sdk.errors import OptionsError
from openagentic_sdk.hooks.engine import HookEngine
from openagentic_sdk.hooks.models import HookMatcher
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.testing.scripted import ScriptedProvider
from openagentic_sdk.tools.bash import BashTool
from openagentic_sdk.tools.defaults import default_tools
from openagentic_sdk.tools.shell.sandbox_plan import probe_sandbox
from openagentic_sdk.tools.shell.sandboxed import BashSandbox
from tests.size import full_size

from .support import assert_closed, events_of, options_for, result_of

SKILL = """---
name: greet
description: Greet people.
allowed-tools: Bash(echo:*)
---
Say hello to everybody.
"""


class TellingStore(MemorySessionStore):
    """A store that sets an asyncio event when the first events of a subagent are stored."""

    def open_writer(self, session_id):
        writer = super().open_writer(session_id)
        if "parent_session_id" in self.read_metadata(session_id)["metadata"]:
            writer.append = partial(self.append_and_tell, writer.append)
        return writer

    def append_and_tell(self, append, events):
        stored = append(events)
        self.loop.call_soon_threadsafe(self.began.set)
        return stored


class ProjectTest(unittest.IsolatedAsyncioTestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        self.write("CLAUDE.md", "Always whisper.")
        self.write(".claude/skills/greet/SKILL.md", SKILL)
        self.write(".claude/commands/sum.md", "Add up $ARGUMENTS.")
        self.write(".claude/agents/helper.md", "---\nname: helper\ndescription: helps\n---\nYou help quietly.")

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def options(self, turns, **changes):
        settings = {
            "cwd": str(self.root),
            "setting_sources": ["project"],
            "home": str(self.root / "home"),
            "tools": None,
            "system_prompt": None,
            "permission_gate": PermissionGate(),
        }
        return options_for(turns, **{**settings, **changes})

    async def test_memory_and_skills_are_in_the_prompt_only_when_the_project_is_asked_for(self):
        asked = ScriptedProvider(["ok"])
        await events_of("hi", self.options(asked))
        prompt = asked.requests[0]["messages"][0]["content"]
        self.assertIn("Always whisper.", prompt)
        self.assertIn("greet: Greet people.", prompt)
        silent = ScriptedProvider(["ok"])
        await events_of("hi", self.options(silent, setting_sources=[]))
        self.assertNotIn("whisper", silent.requests[0]["messages"][0]["content"])

    async def test_the_skill_tools_of_a_caller_see_the_skills_that_the_run_has_read(self):
        for place, about in (("home/.claude", "By the user."), (".claude", "By the project.")):
            self.write(f"{place}/skills/both/SKILL.md", f"---\nname: both\ndescription: {about}\n---\nDo it.")
        self.write("home/.claude/settings.json", '{"skillPrecedence": "user"}')
        call = {"tool_calls": [{"name": "SkillLoad", "arguments": {"name": "both"}}]}
        for sources, about in ((["user", "project"], "By the user."), ([], "By the project.")):
            options = self.options([call, "ok"], setting_sources=sources, tools=default_tools())
            result = next(event for event in await events_of("hi", options) if event.type == "tool.result")
            self.assertEqual(result.output["summary"], about)

    async def test_a_sandbox_that_is_required_is_not_left_out_for_a_callers_own_bash(self):
        for wish in ({"sandbox": "require"}, {"bash_effects": "preview"}):
            with self.subTest(wish):
                with self.assertRaisesRegex(OptionsError, "BashTool"):
                    await run(prompt="hi", options=self.options(["ok"], tools=[BashTool()], **wish))
                options = self.options(["ok"], tools=[BashTool(**wish)], **wish)
                self.assertEqual((await run(prompt="hi", options=options)).stop_reason, "end")

    async def test_a_command_becomes_its_text_and_a_skill_becomes_active(self):
        provider = ScriptedProvider(["5", "Hello!"])
        options = self.options(provider)
        first = await run(prompt="/sum 2 and 3", options=options)
        self.assertEqual(provider.requests[0]["messages"][1]["content"], "Add up 2 and 3.")
        second = await run(prompt="/greet Ann", options=replace(options, resume=first.session_id))
        self.assertIn("Say hello to everybody.", provider.requests[1]["messages"][-1]["content"])
        activated = next(event for event in second.events if event.type == "skill.activated")
        self.assertEqual(
            (activated.requested_by, list(activated.grants)), ("user", []), "an untrusted skill grants nothing"
        )

    async def test_a_skill_stays_active_after_a_resume_though_its_file_is_gone(self):
        activate = {"tool_calls": [{"name": "SkillActivate", "arguments": {"name": "greet"}}]}
        options = self.options([activate, "ok"])
        first = await run(prompt="hi", options=options)
        (self.root / ".claude/skills/greet/SKILL.md").unlink()
        again = ScriptedProvider(["ok"])
        second = await run(prompt="more", options=replace(options, provider=again, resume=first.session_id))
        self.assertIn("Say hello to everybody.", str(again.requests[0]["messages"]))
        self.assertIn("skill.drifted", [event.type for event in second.events])
        assert_closed(self, options.session_store, first.session_id)

    @full_size
    async def test_a_trusted_skill_grants_for_the_turn_and_an_untrusted_one_does_not(self):
        turns = [
            {"tool_calls": [{"name": "SkillActivate", "arguments": {"name": "greet"}}]},
            {"tool_calls": [{"name": "Bash", "arguments": {"command": "echo hello > hello.txt; echo done"}}]},
            {"tool_calls": [{"name": "Bash", "arguments": {"command": "echo hello"}}]},
            "ok",
        ]
        for trusted in (True, False):
            events = await events_of("hi", self.options(turns, trust_project=trusted))
            activated = next(event for event in events if event.type == "skill.activated")
            self.assertEqual(bool(activated.grants), trusted)

    async def test_an_agent_file_is_a_subagent(self):
        turns = [
            {"tool_calls": [{"name": "Task", "arguments": {"agent": "helper", "prompt": "help me"}}]},
            {"agent": "You help quietly.", "text": "psst"},
            "ok",
        ]
        events = await events_of("hi", self.options(turns, allowed_tools=["Task"]))
        result = next(e for e in events if e.type == "tool.result" and e.parent_tool_use_id is None)
        self.assertEqual(result.output["final_text"], "psst", result)

    async def test_a_subagent_in_the_background_gives_its_result_later_and_ends_with_the_run(self):
        start = {"name": "Task", "arguments": {"agent": "helper", "prompt": "help me", "background": True}}
        fetch = {"name": "TaskOutput", "arguments": {"task_id": "task_1", "wait_s": 20}}
        turns = [
            {"tool_calls": [start]},
            {"agent": "You help quietly.", "text": "psst"},
            {"tool_calls": [fetch]},
            "ok",
        ]
        options = self.options(turns)
        events = await events_of("hi", options)
        results = [e for e in events if e.type == "tool.result" and e.parent_tool_use_id is None]
        self.assertIn("psst", str(results[1].output), results[1])
        self.assertEqual(result_of(events).stop_reason, "end")
        self.assertIn("subagent.finished", [event.type for event in events])
        never = [
            {"tool_calls": [start]},
            {"text": "done"},
            {"agent": "You help quietly.", "text": "late", "delay_s": 30},
        ]
        options = self.options(never)
        events = await events_of("hi", options)
        self.assertEqual(result_of(events).stop_reason, "end")
        for session_id in options.session_store.list_sessions():
            assert_closed(self, options.session_store, session_id)

    @full_size
    async def test_a_subagent_that_ends_before_it_begins_leaves_a_closed_session(self):
        """Cancel the run when the subagent's first event is stored, one turn of the event loop later in each round."""
        start = {"name": "Task", "arguments": {"agent": "helper", "prompt": "help me", "background": True}}

        async def consume(**more):
            turns = [
                {"tool_calls": [start]},
                {"text": "late", "delay_s": 30},
                {"agent": "You help quietly.", "text": "late", "delay_s": 30},
            ]
            async for _ in query(prompt="hi", options=self.options(turns, **more)):
                pass

        async def ended_when(began, turns, store, **more):
            consumer = asyncio.create_task(consume(session_store=store, **more))
            await began.wait()
            for _ in range(turns):
                await asyncio.sleep(0)
            consumer.cancel()
            await asyncio.wait({consumer})
            for session_id in store.list_sessions():
                assert_closed(self, store, session_id)

        for turns in range(12):
            store = TellingStore()
            store.loop, store.began = asyncio.get_running_loop(), asyncio.Event()
            await ended_when(store.began, turns, store)

        async def hold(payload):
            if payload["context"]["agent_name"] == "helper":
                held.set()
                await asyncio.Event().wait()

        store, held = MemorySessionStore(), asyncio.Event()
        await ended_when(held, 0, store, hooks=HookEngine(session_start=[HookMatcher("hold", hook=hold)]))
        logs = [[event.type for event in store.read_events(session_id)] for session_id in store.list_sessions()]
        self.assertIn(["system.init", "result"], logs)

    async def test_an_image_is_stored_once_beside_the_log_and_sent_whole(self):
        import base64

        from openagentic_sdk.tools.function import tool

        data = base64.b64encode(bytes(300_000)).decode()

        @tool(effect="read")
        def shot() -> dict:
            """Take a picture."""
            return {"type": "image", "media_type": "image/png", "data": data}

        provider = ScriptedProvider([{"tool_calls": [{"name": "shot"}]}, "nice"])
        events = await events_of("hi", self.options(provider, tools=[shot]))
        picture = provider.requests[1]["messages"][-1]
        self.assertEqual(picture["content"], [{"type": "image", "media_type": "image/png", "data": data}])
        stored = next(event.output for event in events if event.type == "tool.result")
        self.assertEqual(set(stored), {"type", "media_type", "size", "sha256"})

    async def test_a_big_output_is_stored_beside_the_log_and_read_in_parts(self):
        from openagentic_sdk.tools.function import tool

        @tool(effect="read")
        def big() -> str:
            """Return a large output."""
            return "".join(f"line {number}\n" for number in range(60_000))

        provider = ScriptedProvider([{"tool_calls": [{"name": "big"}]}, "hm"])
        options = self.options(provider, tools=[big])
        first = await run(prompt="hi", options=options)
        output = next(e for e in first.events if e.type == "tool.result").output
        self.assertTrue(output["truncated"])
        self.assertTrue(output["head"].startswith("line 0\n"))
        read = {"name": "Read", "arguments": {"file_path": f"blob:{output['blob']}", "offset": 50_001, "limit": 2}}
        again = replace(
            options, provider=ScriptedProvider([{"tool_calls": [read]}, "ok"]), tools=None, resume=first.session_id
        )
        second = await run(prompt="more", options=again)
        self.assertIn("line 50000", str(next(e for e in second.events if e.type == "tool.result").output))

    async def test_settings_restrict_at_once_and_grant_only_with_trust(self):
        settings = {
            "permissions": {"allow": ["Bash(touch:*)"], "deny": ["Read(./secret.txt)"]},
            "hooks": {
                "PreToolUse": [{"matcher": "Bash", "hooks": [{"type": "command", "command": "echo ran >> hooks.txt"}]}]
            },
        }
        self.write(".claude/settings.json", json.dumps(settings))
        self.write("secret.txt", "hidden")
        turns = [
            {"tool_calls": [{"name": "Read", "arguments": {"file_path": "secret.txt"}}]},
            {"tool_calls": [{"name": "Bash", "arguments": {"command": "touch made.txt"}}]},
            "ok",
        ]
        events = await events_of("hi", self.options(turns))
        self.assertEqual([e.outcome for e in events if e.type == "tool.result"], ["denied", "denied"])
        self.assertIn("settings.withheld", [e.code for e in events if e.type == "system.notice"])
        self.assertFalse((self.root / "hooks.txt").exists())
        events = await events_of("hi", self.options(turns, trust_project=True))
        self.assertEqual([e.outcome for e in events if e.type == "tool.result"], ["denied", "ok"])
        self.assertTrue((self.root / "made.txt").exists())
        self.assertEqual((self.root / "hooks.txt").read_text(), "ran\n")
        self.assertEqual(result_of(events).stop_reason, "end")

    async def test_settings_choose_the_mode_of_a_gate_that_has_none_and_can_forbid_bypass(self):
        cases = (
            # the gate's mode, defaultMode, disableBypassPermissionsMode, the run's mode, a word of the notice
            (None, "plan", None, "plan", ""),
            ("default", "plan", None, "default", ""),
            ("acceptEdits", None, "disable", "acceptEdits", ""),
            (None, "yolo", None, "default", "yolo"),
            ("bypass", None, None, "bypass", ""),
            ("bypass", None, "disable", "default", "disable mode bypass"),
            ("bypassPermissions", None, True, "default", "disable mode bypass"),
            (None, "bypassPermissions", "disable", "default", "disable mode bypass"),
        )
        for gate_mode, default, disabled, mode, word in cases:
            with self.subTest(gate_mode=gate_mode, default=default, disabled=disabled):
                permissions = {"defaultMode": default, "disableBypassPermissionsMode": disabled}
                kept = {key: value for key, value in permissions.items() if value is not None}
                self.write(".claude/settings.json", json.dumps({"permissions": kept}))
                gate = PermissionGate() if gate_mode is None else PermissionGate(permission_mode=gate_mode)
                call = {"tool_calls": [{"name": "Bash", "arguments": {"command": "chmod 600 made"}}]}
                options = self.options([call, "ok"], permission_gate=gate, trust_project=True, sandbox="off")
                events = await events_of("hi", options)
                self.assertEqual(events[0].permission_mode, mode)
                decision = next(e for e in events if e.type == "permission.decision")
                self.assertEqual(decision.allowed, mode == "bypass")
                notes = [e.message for e in events if e.type == "system.notice" and e.code == "settings.mode"]
                self.assertEqual([word in note for note in notes], [True] if word else [])

    async def test_the_protection_by_the_sandbox_is_reported_once_a_session(self):
        call = {"tool_calls": [{"name": "Bash", "arguments": {"command": "echo x"}}]}
        expected = BashSandbox("auto").protection(probe_sandbox())
        options = self.options([call, "ok"], sandbox="auto")
        first = await run(prompt="hi", options=options)
        again = await run(
            prompt="more", options=replace(options, provider=ScriptedProvider(["ok"]), resume=first.session_id)
        )
        notes = [(e.code, e.message) for e in (*first.events, *again.events) if e.type == "system.notice"]
        self.assertEqual(notes, [("sandbox.level", expected)])
        result = next(e for e in first.events if e.type == "tool.result")
        self.assertIn(expected, result.output["notes"])
        silent = await run(prompt="hi", options=self.options(["ok"], sandbox="off"))
        self.assertNotIn("system.notice", [e.type for e in silent.events])

    async def test_secrets_are_masked_before_they_are_stored_and_the_result_counts_them(self):
        key = "sk-proj-" + "a1B2" * 12
        self.write("env.txt", f"OPENAI_API_KEY={key}")
        turns = [{"tool_calls": [{"name": "Read", "arguments": {"file_path": "env.txt"}}]}, "ok"]
        options = self.options(turns, redact=True)
        events = await events_of("hi", options)
        stored = options.session_store.read_events(result_of(events).session_id)
        self.assertFalse(any(key in str(event) for event in stored))
        result = next(event for event in stored if event.type == "tool.result")
        self.assertTrue(result.meta["masked"])


if __name__ == "__main__":
    unittest.main()
