"""Commands in the text of skills and commands: what counts as one, who permits it, and what the log keeps."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import textwrap
import time
import unittest
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from openagentic_sdk.api import RunResult
from openagentic_sdk.assemble import open_project
from openagentic_sdk.events import (
    Event,
    PermissionDecision,
    SkillActivated,
    SkillDrifted,
    TextCommandFinished,
    TextCommandStarted,
    ToolResult,
    UserMessage,
)
from openagentic_sdk.hooks.engine import HookEngine
from openagentic_sdk.hooks.models import HookDecision, HookMatcher
from openagentic_sdk.options import OpenAgenticOptions
from openagentic_sdk.parts.project.trust import requests_of
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.runs.replay import replay_events
from openagentic_sdk.skills.index import index_skills
from openagentic_sdk.skills.text_commands import MAX_COMMANDS, draft_of
from tests.pythons import Python
from tests.size import full_size
from tests.skills.support import RunTestCase
from tests.waiting import until

ACTIVATE = {"tool_calls": [{"name": "SkillActivate", "arguments": {"name": "status"}}]}
RULE = "Bash(echo:*)"
REPOSITORY = Path(__file__).resolve().parents[2]


class DraftTest(unittest.TestCase):
    def commands(self, text: str, **options: Any) -> Sequence[str]:
        draft = draft_of(text, **options)
        if draft is None:
            return ()
        self.assertEqual(draft.as_written, text)
        return draft.commands

    def test_commands_in_texts_are_recognized(self) -> None:
        for text, expected in (
            ("!`git status`", ("git status",)),
            ("Now: !`a b`, then\t!`c`.", ("a b", "c")),
            ("- !`a`\n> !`b`", ("a", "b")),
            ("x!`a` and (!`b`)", ()),
            ("`!`", ()),
            ("!`a\nb`", ()),
            ("!``", ()),
            ("Write `` !`a` `` for that", ()),
            ("```sh\n!`a`\n```\n!`b`", ("b",)),
            ("~~~\n!`a`\n~~~", ()),
            ("```!\na\nb c\n```", ("a\nb c",)),
            ("```!\n```\n!`a`", ("a",)),
            ("```!\nnever closed", ()),
            ("```a``` b\n```\n!`c`\n```\n!`d`", ("d",)),
            ("````\n```!\na\n```\n````", ()),
            ("```\n```\u00a0\n!`a`\n```", ()),
            ("~~~\n~~~\x0b\n!`a`\n~~~ \t\n!`b`", ("b",)),
        ):
            with self.subTest(text):
                self.assertEqual(self.commands(text), expected)

    def test_arguments_stay_words_whatever_they_hold(self) -> None:
        hostile = "a;b 'c d' $(e) `f`"
        for text, expected in (
            ("!`show $1`", "show 'a;b'"),
            ('!`show "$2" $1`', "show 'c d' 'a;b'"),
            ("!`show $ARGUMENTS`", "show 'a;b' 'c d' '$(e)' '`f`'"),
            ("!`show $ARGUMENTS[1]`", "show 'c d'"),
            ("!`show '$1'`", "show '$1'"),
            ("!`show x$1`", "show x$1"),
            ("!`show $9`", "show $9"),
            ("!`show $1`, not $0", "show 'c d'"),
            ("!`show $what`", "show 'a;b'"),
        ):
            with self.subTest(text):
                self.assertEqual(self.commands(text, arguments=hostile, argument_names=("what",)), (expected,))

    def test_no_argument_ends_the_quotes_around_it(self) -> None:
        for command in (
            "show ' $1 '",
            'show "a $1 b"',
            'show "a $ARGUMENTS b"',
            "show $'it\\'s $1 '",
            'show "$(show "a $1 b")"',
            'show "${x:-"a $1 b"}"',
            "show it's $1",
        ):
            with self.subTest(command):
                text = f"!`{command}`"
                self.assertEqual(self.commands(text, arguments="'\";touch made;\"'"), (command,))
                self.assertEqual(self.commands(text, arguments="';touch made;'"), (command,))
                filled = command.replace("$1", "HEAD").replace("$ARGUMENTS", "HEAD")
                self.assertEqual(self.commands(text, arguments="HEAD"), (filled,))
        block = "# don't\nshow 'a $1 b'\ncat <<END\n $1 \nEND"
        self.assertEqual(self.commands(f"```!\n{block}\n```", arguments="';touch made;'"), (block,))

    def test_a_word_beside_quotes_is_filled_in(self) -> None:
        text = """!`show "x y" 'z' $1 \\" | show "$1" > $1`"""
        self.assertEqual(self.commands(text, arguments="';a'"), ("""show "x y" 'z' ';a' \\" | show ';a' > ';a'""",))

    def test_the_output_of_a_command_is_not_expanded_again(self) -> None:
        draft = draft_of("!`a` and !`b`")
        assert draft is not None
        self.assertEqual(draft.filled(["!`b` \0" + "1\0 $1", "B"]), "!`b` \0" + "1\0 $1 and B")

    def test_a_text_has_only_so_many_commands(self) -> None:
        self.assertEqual(len(self.commands("!`a`\n" * (MAX_COMMANDS + 5))), MAX_COMMANDS)

    def test_a_hostile_text_takes_no_time(self) -> None:
        began = time.process_time()
        for text in ("!`" * 100_000, "``" * 100_000, "`` x" * 50_000, "```!\n" * 50_000, " !`a" * 100_000):
            draft_of(text)
        self.assertLess(time.process_time() - began, 20)


class TextCommandTestCase(RunTestCase):
    defaults: Mapping[str, Any] = {
        "trust_project": True,
        "run_text_commands": True,
        "permission_gate": PermissionGate(permission_mode="dontAsk", allow=("Skill", RULE)),
    }

    def setUp(self) -> None:
        super().setUp()
        self.skill("status", body="Now: !`echo one two`\n")

    def body(self, result: RunResult) -> str | None:
        return next((event.body for event in result.events if isinstance(event, SkillActivated)), None)

    def ran(self, events: Sequence[Event]) -> list[str]:
        return [event.command for event in events if isinstance(event, TextCommandStarted)]

    def error(self, result: RunResult) -> str:
        (end,) = [event for event in result.events if isinstance(event, ToolResult)]
        self.assertTrue(end.is_error, end)
        return end.error_message or ""


class RunningTest(TextCommandTestCase):
    def test_the_output_of_an_allowed_command_of_a_trusted_skill_is_in_its_text(self) -> None:
        result = self.run_script(ACTIVATE, "Done.")
        self.assertEqual(self.body(result), "Now: one two")
        self.assertIn("Now: one two", self.provider.requests[1]["messages"][-1]["content"])
        self.assertTrue(asyncio.run(replay_events(self.store.read_events(result.session_id))).ok)

    def test_the_log_records_the_permission_of_a_command_before_it_runs(self) -> None:
        result = self.run_script(ACTIVATE, "Done.")
        kinds = (PermissionDecision, TextCommandStarted, TextCommandFinished, SkillActivated)
        events = [event for event in result.events if isinstance(event, kinds)][1:]  # the first is the call's own
        self.assertEqual([type(event) for event in events], list(kinds))
        decision, started, finished, active = events
        assert isinstance(decision, PermissionDecision) and isinstance(started, TextCommandStarted)
        assert isinstance(finished, TextCommandFinished) and isinstance(active, SkillActivated)
        self.assertEqual((decision.allowed, decision.rule, decision.tool_use_id), (True, RULE, started.command_id))
        self.assertEqual(decision.input_sha256, started.input_sha256)
        self.assertEqual((started.name, started.command), ("skill status", "echo one two"))
        self.assertEqual((finished.outcome, finished.output), ("ok", "one two"))

    def test_it_is_text_unless_it_is_switched_on_for_a_trusted_scope(self) -> None:
        off = {"disableSkillShellExecution": True}
        for options, settings in (
            ({"run_text_commands": False}, {}),
            ({"trust_project": False}, {}),
            ({}, off),
            ({"trust_project": False, "run_text_commands": False}, {"enableSkillShellExecution": True}),
        ):
            with self.subTest(options=options, settings=settings):
                self.settings(settings)
                result = self.run_script(ACTIVATE, "Done.", **options)
                self.assertEqual((self.body(result), self.ran(result.events)), ("Now: !`echo one two`", []))
        self.settings({"enableSkillShellExecution": True})
        self.assertEqual(self.body(self.run_script(ACTIVATE, "Done.", run_text_commands=False)), "Now: one two")

    def settings(self, values: dict[str, Any]) -> None:
        self.write({".claude/settings.json": str(values).replace("'", '"').replace("True", "true")})

    @full_size
    def test_neither_a_loose_mode_nor_a_person_lets_it_run(self) -> None:
        async def yes(question: Any) -> str:
            return "yes"

        self.skill("status", body="Now: !`touch made`, !`echo two`\n")
        for gate in (
            PermissionGate(permission_mode="bypass"),
            PermissionGate(permission_mode="acceptEdits", allow=("Skill",)),
            PermissionGate(permission_mode="default", allow=("Skill",)),
            PermissionGate(permission_mode="prompt", allow=("Skill", RULE), user_answerer=yes),
            PermissionGate(permission_mode="callback", allow=("Skill", RULE), approver=lambda *call: True),
            PermissionGate(permission_mode="dontAsk", allow=("Skill", "Bash(touch:*)"), deny=("Bash(touch made:*)",)),
            PermissionGate(
                permission_mode="default", allow=("Bash(touch:*)",), ask=("Bash(touch:*)",), user_answerer=yes
            ),
        ):
            with self.subTest(mode=gate.mode):
                result = self.run_script(ACTIVATE, "Done.", permission_gate=gate)
                body = self.body(result) or ""
                self.assertRegex(body, r"^Now: \[The command 'touch made' of this text was not run: .+\], two$")
                self.assertEqual(self.ran(result.events), ["echo two"])
                decisions = [event for event in result.events if isinstance(event, PermissionDecision)]
                self.assertEqual([event.allowed for event in decisions[-2:]], [False, True])
                self.assertFalse((self.project / "made").exists())

    def test_reading_commands_run_as_they_would_for_the_model(self) -> None:
        gate = PermissionGate(permission_mode="dontAsk", allow=("Skill",))
        self.assertEqual(self.body(self.run_script(ACTIVATE, "Done.", permission_gate=gate)), "Now: one two")

    def test_a_search_that_finds_nothing_has_not_failed(self) -> None:
        self.skill("status", body="Now: !`cat seen.txt | grep nothing`.\n")
        self.write({"seen.txt": "x"})
        gate = PermissionGate(permission_mode="dontAsk", allow=("Skill", "Read"))
        self.assertEqual(self.body(self.run_script(ACTIVATE, "Done.", permission_gate=gate)), "Now: .")

    def test_the_skills_own_grant_is_a_rule(self) -> None:
        self.skill("status", body="Now: !`echo one two`\n", allowed_tools=RULE)
        gate = PermissionGate(permission_mode="dontAsk", allow=("Skill",))
        self.assertEqual(self.body(self.run_script(ACTIVATE, "Done.", permission_gate=gate)), "Now: one two")

    def test_a_command_that_fails_keeps_the_skill_from_being_used(self) -> None:
        self.skill("status", body="!`echo before`\n!`ls /nowhere`\n!`echo never`\n")
        gate = PermissionGate(permission_mode="dontAsk", allow=("Skill", RULE, "Bash(ls:*)", "Read(//nowhere)"))
        result = self.run_script(ACTIVATE, "Done.", permission_gate=gate)
        self.assertRegex(self.error(result), "its command 'ls /nowhere' failed: it ended with exit code 2: .*nowhere")
        self.assertEqual((self.body(result), self.ran(result.events)), (None, ["echo before", "ls /nowhere"]))

    def test_hooks_see_the_command_and_may_block_or_change_it(self) -> None:
        def change(payload: dict[str, Any]) -> HookDecision | None:
            return HookDecision(override_tool_input={"command": "echo other"})

        def block(payload: dict[str, Any]) -> HookDecision | None:
            return HookDecision(block=True, block_reason="not here")

        def mask(payload: dict[str, Any]) -> HookDecision | None:
            return HookDecision(override_tool_output={**payload["tool_output"], "stdout": "masked"})

        changed = HookEngine(pre_tool_use=(HookMatcher("change", "Bash", change),))
        self.assertEqual(self.body(self.run_script(ACTIVATE, "Done.", hooks=changed)), "Now: other")
        masked = HookEngine(post_tool_use=(HookMatcher("mask", "Bash", mask),))
        self.assertEqual(self.body(self.run_script(ACTIVATE, "Done.", hooks=masked)), "Now: masked")
        blocked = self.run_script(ACTIVATE, "Done.", hooks=HookEngine(pre_tool_use=(HookMatcher("no", "Bash", block),)))
        self.assertIn("was not run: not here", self.body(blocked) or "")
        self.assertEqual(self.ran(blocked.events), [])

    def test_secrets_in_what_it_wrote_are_masked_before_they_are_stored(self) -> None:
        result = self.run_script(ACTIVATE, "Done.", redact=lambda text: text.replace("two", "***"))
        self.assertEqual(self.body(result), "Now: one ***")
        log = (self.parent / "store" / "sessions" / result.session_id / "events.jsonl").read_text()
        finished = [line for line in log.splitlines() if "text_command.finished" in line]
        self.assertNotIn("two", finished[0])

    def test_the_text_stays_through_a_resume_and_is_not_called_changed(self) -> None:
        first = self.run_script(ACTIVATE, "Done.")
        second = self.run_script(ACTIVATE, "Still.", resume=first.session_id)
        told = [m for m in self.provider.requests[0]["messages"] if "Now: one two" in str(m["content"])]
        self.assertEqual(len(told), 1)
        self.assertEqual(self.ran(second.events), [], "an active skill is not activated again")
        self.assertEqual([event for event in second.events if isinstance(event, SkillDrifted)], [])


class PromptTest(TextCommandTestCase):
    def test_a_commands_text_holds_what_its_commands_wrote(self) -> None:
        self.write({".claude/commands/show.md": 'For $1: !`echo $1 "$2"`\n'})
        result = self.run_script("Done.", prompt="/show a;b 'c d'")
        (prompt,) = [event.text for event in result.events if isinstance(event, UserMessage)]
        self.assertEqual(prompt, "For a;b: a;b c d")
        self.assertEqual(self.ran(result.events), ["echo 'a;b' 'c d'"])
        self.assertTrue(asyncio.run(replay_events(self.store.read_events(result.session_id))).ok)

    def test_words_are_counted_alike_in_a_command_and_beside_it(self) -> None:
        self.write({".claude/commands/show.md": "!`echo $0` then $1\n"})
        result = self.run_script("Done.", prompt="/show a b")
        (prompt,) = [event.text for event in result.events if isinstance(event, UserMessage)]
        self.assertEqual(prompt, "a then b")

    def test_a_prompt_holds_a_sentence_for_a_command_that_may_not_run(self) -> None:
        self.write({".claude/commands/show.md": "!`touch made` and !`echo one`\n"})
        result = self.run_script("Done.", prompt="/show")
        (prompt,) = [event.text for event in result.events if isinstance(event, UserMessage)]
        self.assertRegex(prompt, r"^\[The command 'touch made' of this text was not run: .*\] and one$")
        self.assertEqual(result.stop_reason, "end")
        self.assertFalse((self.project / "made").exists())

    def test_the_variables_of_a_plugin_are_filled_in_texts_rules_and_hooks(self) -> None:
        market = {"name": "m", "plugins": [{"name": "p", "source": "./p"}]}
        marketplaces = {"m": {"source": {"source": "directory", "path": "./market"}}}
        settings = {"enabledPlugins": {"p@m": True}, "extraKnownMarketplaces": marketplaces}
        hook = {"type": "command", "command": 'echo "$CLAUDE_PLUGIN_DATA $CLAUDE_PLUGIN_ROOT" > hook.txt'}
        rule = "Bash(${CLAUDE_PLUGIN_ROOT}/run.sh:*)"
        text = "!`${CLAUDE_PLUGIN_ROOT}/run.sh a` ${CLAUDE_PLUGIN_DATA} ${CLAUDE_SESSION_ID} ${CLAUDE_PROJECT_DIR}"
        self.write(
            {
                ".claude/settings.json": json.dumps(settings),
                "market/.claude-plugin/marketplace.json": json.dumps(market),
                "market/p/.claude-plugin/plugin.json": '{"name": "p"}',
                "market/p/hooks/hooks.json": json.dumps({"hooks": {"UserPromptSubmit": [{"hooks": [hook]}]}}),
                "market/p/run.sh": "#!/bin/sh\necho ran $1\n",
                "market/p/commands/go.md": f"---\nallowed-tools: {rule}\n---\n{text}\n",
                "market/p/skills/do/SKILL.md": f"---\nname: do\ndescription: d\nallowed-tools: {rule}\n---\n{text}\n",
                "market/p/agents/who.md": "---\nname: who\ndescription: d\n---\nIn ${CLAUDE_PLUGIN_DATA}.\n",
            }
        )
        (self.project / "market/p/run.sh").chmod(0o755)
        data = str(self.parent / "home/.claude/plugins/data/p-m")
        gate = PermissionGate(permission_mode="dontAsk")
        for prompt in ("/p:go", "/p:do"):
            with self.subTest(prompt):
                result = self.run_script("Done.", prompt=prompt, permission_gate=gate)
                bodies = [e.body for e in result.events if isinstance(e, SkillActivated)]
                texts = bodies or [e.text for e in result.events if isinstance(e, UserMessage)]
                self.assertEqual(texts, [f"ran a {data} {result.session_id} {self.project}"])
        root = os.path.realpath(self.project / "market/p")
        self.assertEqual((self.project / "hook.txt").read_text(), f"{data} {root}\n")
        self.assertTrue(os.path.isdir(data))
        agents = open_project(
            OpenAgenticOptions(
                cwd=self.project, setting_sources=("project",), home=self.parent / "home", trust_project=True
            )
        ).agents.agents
        self.assertEqual([(agent.name, agent.prompt) for agent in agents], [("p:who", f"In {data}.")])

    def test_a_text_that_a_hook_inserts_is_kept_and_nothing_runs(self) -> None:
        self.write({".claude/commands/show.md": "Now: !`echo one`\n"})
        seen: list[str] = []

        def rewrite(payload: dict[str, Any]) -> HookDecision | None:
            seen.append(payload["prompt"])
            return HookDecision(override_prompt="Other.")

        hooks = HookEngine(user_prompt_submit=(HookMatcher("rewrite", hook=rewrite),))
        result = self.run_script("Done.", prompt="/show", hooks=hooks)
        self.assertEqual((seen, self.ran(result.events)), (["Now: !`echo one`"], []))
        self.assertEqual([event.text for event in result.events if isinstance(event, UserMessage)], ["Other."])

    def test_a_person_may_start_a_skill_whose_commands_run(self) -> None:
        result = self.run_script("Done.", prompt="/status")
        self.assertEqual(self.body(result), "Now: one two")
        self.assertTrue(asyncio.run(replay_events(self.store.read_events(result.session_id))).ok)

    def test_the_trust_question_shows_what_would_run(self) -> None:
        self.write({".claude/commands/show.md": "!`echo a`\n"})
        asked = requests_of(self.project, index_skills(self.project, setting_sources=("project",)))
        self.assertEqual(
            [line.partition(" (")[0] for line in asked],
            [
                "before skill status is read, if commands in text are on, run: echo one two",
                "before command /show is read, if commands in text are on, run: echo a",
            ],
        )

    def test_a_command_split_by_hidden_characters_is_shown_too(self) -> None:
        self.skill("status", body="Now: !\u200b`echo one two`\n")
        (asked,) = requests_of(self.project, index_skills(self.project, setting_sources=("project",)))
        self.assertIn("run: echo one two", asked)
        self.assertEqual(self.ran(self.run_script(ACTIVATE, "Done.").events), ["echo one two"])


class CrashTest(TextCommandTestCase):
    @full_size
    def test_a_command_that_a_crash_interrupted_is_not_run_again(self) -> None:
        self.skill("status", body="!`echo ran >> runs.txt`\n!`./wait.sh`\n")
        self.write({"wait.sh": "#!/bin/sh\necho started >> started.txt\nsleep 60\n"})
        (self.project / "wait.sh").chmod(0o755)
        script = _CRASHING.format(project=str(self.project), store=str(self.parent / "store"))
        child = Python("-c", script, cwd=REPOSITORY, start_new_session=True)
        try:
            self.wait_for(self.project / "started.txt")
        finally:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        (session,) = self.store.list_session_summaries()
        result = self.run_script("Done.", prompt="Go on.", resume=session.id, permission_gate=_gate())
        self.assertEqual((self.project / "runs.txt").read_text(), "ran\n")
        self.assertEqual((self.project / "started.txt").read_text(), "started\n")
        self.assertRegex(self.error(result), r"has no known end \(the process died before it was recorded")
        self.assertIsNone(self.body(result))

    def test_a_command_that_takes_too_long_for_the_run_is_ended_on_the_record(self) -> None:
        self.skill("status", body="!`./wait.sh`\n")
        self.write({"wait.sh": "#!/bin/sh\necho started > started.txt\nsleep 600\n"})
        (self.project / "wait.sh").chmod(0o755)
        for limit_s in (1.0, 10.0, 60.0):  # a busy machine may need more than the first limit to reach the command
            result = self.run_script(ACTIVATE, "Done.", permission_gate=_gate(), timeout_s=limit_s)
            if (self.project / "started.txt").exists():
                break
        self.assertEqual(result.stop_reason, "timeout")
        (end,) = [event for event in result.events if isinstance(event, TextCommandFinished)]
        self.assertEqual(end.outcome, "cancelled")
        self.assertIsNone(self.body(result))

    def wait_for(self, path: Any) -> None:
        until(path.exists, "the command has started")


def _gate() -> PermissionGate:
    rules = ("Skill", RULE, "Bash(./wait.sh)", "Edit(runs.txt)")
    return PermissionGate(permission_mode="dontAsk", allow=rules)


_CRASHING = textwrap.dedent(
    """
    import asyncio
    from openagentic_sdk.api import run
    from openagentic_sdk.options import OpenAgenticOptions
    from openagentic_sdk.sessions.store import FileSessionStore
    from openagentic_sdk.testing.scripted import ScriptedProvider
    from tests.skills.test_text_commands import ACTIVATE, _gate

    options = OpenAgenticOptions(
        provider=ScriptedProvider([ACTIVATE, "Done."]),
        model="m",
        cwd={project!r},
        setting_sources=("project",),
        session_store=FileSessionStore(root_dir={store!r}),
        trust_project=True,
        sandbox="off",  # the test looks at the folder while the command runs
        run_text_commands=True,
        permission_gate=_gate(),
    )
    asyncio.run(run(prompt="Go.", options=options))
    """
)
