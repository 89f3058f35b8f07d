"""A scripted model works with skills through the whole runtime; its work survives a crash, a resume and a compaction."""

from __future__ import annotations

import asyncio
import unittest
from pathlib import Path
from typing import Any

from openagentic_sdk.api import RunResult, run
from openagentic_sdk.events import (
    HookEvent,
    ModelContext,
    SessionCompacted,
    SkillActivated,
    SkillDrifted,
    ToolResult,
    UserMessage,
)
from openagentic_sdk.hooks.engine import HookEngine
from openagentic_sdk.hooks.models import HookDecision, HookMatcher
from openagentic_sdk.options import OpenAgenticOptions
from openagentic_sdk.parts.record.folds.audit import rebuild_requests
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.sessions.store import FileSessionStore
from openagentic_sdk.testing.scripted import ScriptedProvider
from tests.pythons import run_python
from tests.skills.support import ProjectTestCase

ROOT = Path(__file__).parents[2]
CHECKLIST = """# release-check

Say whether this can be released.

## Checklist

- [ ] Search for TODO.
- [ ] Read version.py.
"""

CRASH = """
import asyncio, os, sys
from openagentic_sdk.api import query
from openagentic_sdk.options import OpenAgenticOptions
from openagentic_sdk.parts.record.folds.audit import rebuild_requests
from openagentic_sdk.sessions.store import FileSessionStore
from openagentic_sdk.testing.scripted import ScriptedProvider

class Crashing(ScriptedProvider):
    async def stream(self, **request):
        if len(self.requests) == 4:
            os._exit(9)  # no cleanup of any kind, as in a power cut
        async for event in super().stream(**request):
            yield event

async def main():
    def call(tool, expect, **arguments):
        return {"tool_calls": [{"name": tool, "arguments": arguments}], "expect": {"tool_results": expect}}

    turns = [
        call("SkillLoad", {}, name="release-check"),
        call("Grep", {"SkillLoad": "Search for"}, query="TODO"),
        call("Read", {"Grep": "TODO"}, file_path="version.py"),
        call("SkillActivate", {"Read": "1.0"}, name="release-check"),
        {"text": "never said"},
    ]
    options = OpenAgenticOptions(
        provider=Crashing(turns), model="m", cwd=sys.argv[1], setting_sources=("project",), session_id="s",
        session_store=FileSessionStore(root_dir=sys.argv[2]),
    )
    async for event in query(prompt="Can we release?", options=options):
        pass

asyncio.run(main())
"""


def call(tool: str, /, **arguments: Any) -> dict[str, Any]:
    return {"tool_calls": [{"name": tool, "arguments": arguments}]}


class EndToEndTest(ProjectTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.write({"main.py": "x = 1  # TODO\n", "version.py": "VERSION = '1.0'\n"})
        self.write({".claude/skills/release-check/SKILL.md": CHECKLIST})
        self.store = FileSessionStore(root_dir=self.parent / "store")

    def run_turns(self, *turns: Any, prompt: str = "Go.", **options: Any) -> tuple[RunResult, ScriptedProvider]:
        provider = ScriptedProvider(turns)
        settings = {"cwd": self.project, "setting_sources": ("project",), "session_store": self.store, **options}
        result = asyncio.run(run(prompt=prompt, options=OpenAgenticOptions(provider=provider, model="m", **settings)))
        self.assertEqual((result.stop_reason, result.error_message), ("end", None))
        return result, provider

    def system_prompts(self) -> list[str]:
        (session,) = self.store.list_sessions()
        return [event.system_prompt for event in self.store.read_events(session) if isinstance(event, ModelContext)]

    def last_request(self) -> str:
        (session,) = self.store.list_sessions()
        *_, last = rebuild_requests(self.store.read_events(session))
        return "\n\n".join(str(message["content"]) for message in last.messages)

    def test_a_checklist_is_followed_and_the_skill_is_active_after_a_crash(self) -> None:
        crashed = run_python("-c", CRASH, str(self.project), str(self.parent / "store"), cwd=ROOT, text=True)
        self.assertEqual(crashed.returncode, 9, crashed.stderr)
        outcomes = [event.outcome for event in self.store.read_events("s") if isinstance(event, ToolResult)]
        self.assertEqual(outcomes, ["ok"] * 4)
        result, _ = self.run_turns("Not ready: one TODO.", resume="s")
        self.assertEqual(result.final_text, "Not ready: one TODO.")
        self.assertIn('<active-skill name="release-check"', self.last_request())
        self.assertIn("Search for TODO.", self.last_request())

    def test_an_active_skill_survives_the_loss_of_its_file(self) -> None:
        first, _ = self.run_turns(call("SkillActivate", name="release-check"), "Active.")
        (self.project / ".claude/skills/release-check/SKILL.md").unlink()
        result, _ = self.run_turns("Still here.", resume=first.session_id)
        self.assertEqual([event.name for event in result.events if isinstance(event, SkillDrifted)], ["release-check"])
        self.assertIn("Search for TODO.", self.last_request())

    def test_an_active_skill_survives_compaction(self) -> None:
        first, _ = self.run_turns(call("SkillActivate", name="release-check"), "Active.")
        self.compact(first.session_id)
        self.run_turns("Still here.", resume=first.session_id)
        self.assertIn("Search for TODO.", self.last_request())

    def compact(self, session_id: str) -> None:
        events = self.store.read_events(session_id)
        self.store.append_event(session_id, SessionCompacted(events[-1].seq or 0, "Earlier, a skill was activated."))

    def test_a_hook_can_lead_a_load_to_another_skill(self) -> None:
        self.skill("safe", body="The safe text.\n")

        def rewrite(payload: dict[str, Any]) -> HookDecision:
            return HookDecision(override_tool_input={"name": "safe"}, action="rewrite")

        hooks = HookEngine(pre_tool_use=[HookMatcher("swap", "SkillLoad", rewrite)])
        result, _ = self.run_turns(call("SkillLoad", name="release-check"), "Done.", hooks=hooks)
        (loaded,) = [event for event in result.events if isinstance(event, ToolResult)]
        self.assertEqual((loaded.output["name"], loaded.is_error), ("safe", False))
        self.assertTrue(any(isinstance(event, HookEvent) and event.name == "swap" for event in result.events))

    def test_a_rule_for_skill_keeps_skills_from_being_loaded_and_activated(self) -> None:
        gate = PermissionGate(deny=("Skill(release-check)",))
        turns = (call("SkillLoad", name="release-check"), call("SkillActivate", name="release-check"), "Not allowed.")
        result, _ = self.run_turns(*turns, permission_gate=gate)
        self.assertEqual(
            [event.outcome for event in result.events if isinstance(event, ToolResult)], ["denied", "denied"]
        )
        self.assertFalse([event for event in result.events if isinstance(event, SkillActivated)])

    def test_a_rule_for_skill_counts_whatever_the_skill_is_called_by(self) -> None:
        self.write({".claude/skills/ship/SKILL.md": "---\nname: Deploy\ndescription: d\n---\nShip it.\n"})
        names = ("deploy", "ship", "project:deploy", "PROJECT:SHIP", " Deploy")
        turns = [call("SkillActivate", name=name) for name in names]
        for rule in ("Skill(deploy)", "Skill(ship)", "Skill(project:deploy)"):
            for rules, outcome in (({"deny": (rule,)}, "denied"), ({"allow": (rule,)}, "ok")):
                with self.subTest(rules):
                    mode = "bypass" if outcome == "denied" else "prompt"
                    gate = PermissionGate(permission_mode=mode, **rules)
                    result, _ = self.run_turns(*turns, "Done.", permission_gate=gate)
                    outcomes = [event.outcome for event in result.events if isinstance(event, ToolResult)]
                    self.assertEqual(outcomes, [outcome] * len(names))

    def test_a_skill_is_left_again_without_a_question(self) -> None:
        turns = (call("SkillActivate", name="release-check"), call("SkillDeactivate", name="release-check"), "Done.")
        result, _ = self.run_turns(*turns, permission_gate=PermissionGate(permission_mode="dontAsk"))
        self.assertEqual([event.outcome for event in result.events if isinstance(event, ToolResult)], ["ok", "ok"])

    def test_a_rule_about_a_file_counts_for_the_files_of_a_skill(self) -> None:
        folder = ".claude/skills/release-check"
        self.write({f"{folder}/key.txt": "K3Y", f"{folder}/notes.txt": "N"}, {f"{folder}/link.txt": "key.txt"})
        turns = [call("SkillLoad", name="release-check", path=name) for name in ("key.txt", "link.txt", "notes.txt")]
        gate = PermissionGate(deny=("Read(**/key.txt)",))
        result, _ = self.run_turns(*turns, "Done.", permission_gate=gate)
        results = [event for event in result.events if isinstance(event, ToolResult)]
        self.assertEqual([event.is_error for event in results], [True, True, False])
        self.assertNotIn("K3Y", str(results))

    def test_a_rule_about_a_file_counts_for_what_a_command_attaches(self) -> None:
        self.write(
            {".claude/commands/show.md": "Look at @key.txt and @notes.txt", "key.txt": "K3Y", "notes.txt": "N0T"}
        )
        gate = PermissionGate(deny=("Read(key.txt)",))
        result, _ = self.run_turns("Fine.", prompt="/show", permission_gate=gate)
        (prompt,) = [event.text for event in result.events if isinstance(event, UserMessage)]
        self.assertEqual(("K3Y" in prompt, "N0T" in prompt), (False, True))

    def test_an_unknown_skill_is_an_error_that_the_model_reads(self) -> None:
        result, provider = self.run_turns(call("SkillLoad", name="nope"), "I see.")
        (loaded,) = [event for event in result.events if isinstance(event, ToolResult)]
        self.assertEqual((loaded.outcome, loaded.error_type), ("error", "SkillNotFoundError"))
        self.assertIn("the skills are release-check", str(provider.requests[-1]))

    def test_a_person_activates_a_skill_with_a_slash(self) -> None:
        result, _ = self.run_turns("Fine.", prompt="/release-check the beta")
        (active,) = [event for event in result.events if isinstance(event, SkillActivated)]
        self.assertEqual((active.requested_by, active.arguments), ("user", "the beta"))
        (prompt,) = [e for e in result.events if isinstance(e, UserMessage) and e.origin == "user"]
        self.assertEqual(prompt.text, "Follow the skill release-check now. It is for: the beta")
        self.assertIn("Search for TODO.", self.last_request())

    def test_a_person_activates_a_hidden_skill_with_its_id(self) -> None:
        hidden = "../home/.claude/skills/release-check/SKILL.md"
        self.write({hidden: "---\nname: release-check\ndescription: d\n---\nMy own way.\n"})
        for prompt, scope in (("/release-check", "user"), ("/project:release-check", "project")):
            options = {"setting_sources": ("user", "project"), "home": self.parent / "home"}
            result, _ = self.run_turns("Fine.", prompt=prompt, **options)
            self.assertEqual([event.scope for event in result.events if isinstance(event, SkillActivated)], [scope])

    def test_without_setting_sources_the_project_has_no_effect(self) -> None:
        self.write({"CLAUDE.md": "Obey."})
        self.run_turns("Fine.", setting_sources=())
        self.assertNotIn("Obey.", self.system_prompts()[-1])
        self.assertNotIn("skill-index", self.system_prompts()[-1])

    def test_allowed_tools_of_a_trusted_project_need_no_question_in_this_turn_only(self) -> None:
        self.skill("builder", allowed_tools="Bash(touch *)")
        touch = call("Bash", command="touch made")
        for trusted, outcome in ((True, "ok"), (False, "denied")):
            made = self.project / "made"
            made.unlink(missing_ok=True)
            gate = PermissionGate(permission_mode="dontAsk", allow=("Skill",))
            result, _ = self.run_turns(
                call("SkillActivate", name="builder"), touch, "Done.", permission_gate=gate, trust_project=trusted
            )
            results = [event.outcome for event in result.events if isinstance(event, ToolResult)]
            self.assertEqual(results, ["ok", outcome])
            self.assertEqual(made.exists(), trusted)
            later, _ = self.run_turns(
                touch, "Done.", permission_gate=gate, trust_project=trusted, resume=result.session_id
            )
            self.assertEqual([e.outcome for e in later.events if isinstance(e, ToolResult)], ["denied"])


if __name__ == "__main__":
    unittest.main()
