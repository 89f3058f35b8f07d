"""Recorded calls judged by other rules: the same decisions as those of a live gate."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from openagentic_sdk import AgentDefinition, FileSessionStore, OpenAgenticOptions, PermissionGate, run
from openagentic_sdk.cli.main import main
from openagentic_sdk.events import Effect, PermissionDecision, SystemInit, ToolUse
from openagentic_sdk.hooks.engine import HookEngine
from openagentic_sdk.hooks.models import HookDecision, HookMatcher
from openagentic_sdk.parts.project.settings import Settings, SettingsRule
from openagentic_sdk.parts.record.lifecycle import fork_session
from openagentic_sdk.permissions.hindsight.calls import PolicyJudge, RecordedCall, backtest, recorded_calls
from openagentic_sdk.permissions.layers import SettingsRules, rules_of_settings
from openagentic_sdk.sessions.base import stamp_events
from openagentic_sdk.sessions.request import json_sha256
from openagentic_sdk.testing import ScriptedProvider
from openagentic_sdk.tools.base import Tool, ToolContext
from tests.size import LARGE, full_size

from .workspace import Person, WorkspaceTestCase

COMMANDS = (
    "ls", "cat README.md", "cat .env", "git status", "git push origin main", "echo hi > src/new.txt", "rm -rf src",
    "cat ../outside.txt", "pytest -q tests", "npm test", "ls && git push", "sudo ls", "python3 -c 'print(1)'", "cd src",
    "grep -r x .", "find . -name x -exec rm {} ;", "echo $HOME", "cat link_secret", "wc -l secrets/key",
)  # fmt: skip
PATHS = (
    "README.md",
    "src/a.py",
    ".env",
    "secrets/key",
    "../outside.txt",
    "link_secret",
    "link_out/hosts",
    ".git/config",
)
RULES = (
    "Bash", "Bash(git:*)", "Bash(git push:*)", "Bash(ls:*)", "Bash(cat *)", "Bash(npm test)", "Bash(pytest:*)", "Bash(rm:*)",
    "Bash(sudo:*)", "Read", "Edit", "Read(./secrets/**)", "Read(.env)", "Edit(/src/**)", "Edit(src/a.py)", "Read(//etc/**)",
    "WebFetch(domain:*.example.com)", "WebFetch", "Task", "Task(helper)", "Grep", "TodoWrite", "mcp__a__*", "Skill(x)",
)  # fmt: skip
MODES = ("default", "acceptEdits", "plan", "dontAsk", "bypass", "prompt", "deny")


# The wording of versions before 0.2, which recorded no category.
REASON = "Bash needs approval and nobody is there to ask: x"


class Quiet(Tool):
    """A tool of a given name that does nothing, because only the decisions are tested."""

    description = ""
    input_schema: Mapping[str, Any] = {"type": "object"}

    def __init__(self, name: str, effect: Effect) -> None:
        self.name, self.effect = name, effect

    async def run(self, input: Mapping[str, Any], ctx: ToolContext) -> str:
        return "done"


QUIET = (
    *(Quiet(name, "read") for name in ("Read", "Grep", "WebFetch")),
    *(Quiet(name, "unsafe") for name in ("Bash", "Write", "Edit", "mcp__a__b")),
    Quiet("TodoWrite", "idempotent"),
)


def random_call(dice: random.Random) -> dict[str, Any]:
    """A random call of a scripted model."""
    path = dice.choice(PATHS)
    name, input = dice.choice(
        (
            ("Bash", {"command": dice.choice(COMMANDS)}),
            ("Bash", {"command": dice.choice(COMMANDS)}),
            ("Read", {"file_path": path}),
            ("Write", {"file_path": path, "content": "x", "overwrite": True}),
            ("Edit", {"file_path": path, "old": "x", "new": "x"}),
            ("Grep", {"query": "x", "root": dice.choice((".", "secrets", "/etc"))}),
            ("WebFetch", {"url": f"ftp://{dice.choice(('a.example.com', 'evil.org'))}/"}),
            ("TodoWrite", {"todos": []}),
        )
    )
    return {"name": name, "arguments": input}


def random_rules(dice: random.Random) -> dict[str, list[str]]:
    return {effect: dice.sample(RULES, dice.randrange(4)) for effect in ("allow", "ask", "deny")}


def as_settings(rules: Mapping[str, Iterable[str]]) -> Settings:
    written = {
        effect: tuple(SettingsRule(text, "other.json", "user") for text in texts) for effect, texts in rules.items()
    }
    return Settings(**written)


class Hindsight(WorkspaceTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.store = FileSessionStore(self.outside / "store", durability="flush")

    def record(self, turns: Sequence[Any], gate: PermissionGate, **options: Any) -> str:
        """Run a session of these turns, and return its id."""
        model = ScriptedProvider([*turns, "done"])
        chosen = OpenAgenticOptions(
            provider=model, model="m", permission_gate=gate, cwd=str(self.root), project_dir=str(self.root),
            session_store=self.store, key_file=str(self.outside / "key"), **options,
        )  # fmt: skip
        return self.runner.run(run(prompt="go", options=chosen)).session_id

    def calls(self, session_id: str) -> list[RecordedCall]:
        return list(recorded_calls(session_id, self.store.iter_events(session_id)))

    def backtest(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            code = main(["permissions", "backtest", "--store", str(self.outside / "store"), "--json", *arguments])
        return code, json.loads(out.getvalue())

    def settings(self, **permissions: Any) -> str:
        path = self.outside / "other.json"
        path.write_text(json.dumps({"permissions": permissions}))
        return str(path)


class Equality(Hindsight):
    @full_size
    def test_judging_a_log_again_is_asking_the_gate_for_random_rules_modes_and_calls(self) -> None:
        dice = random.Random(23)
        compared, sets = 0, 4 if LARGE else 2
        for round_ in range(7):
            mode = MODES[round_ % len(MODES)]
            before = random_rules(dice)
            gate = self.gate(Person(dice.choice(("yes", "no"))), permission_mode=mode, **before)
            calls = [random_call(dice) for _ in range(20)]
            name = self.record([{"tool_calls": calls[at : at + 5]} for at in range(0, 20, 5)], gate, tools=QUIET)
            recorded = self.calls(name)
            for _ in range(sets):
                rules = random_rules(dice)
                now = {change.call.seq: change.now for group in self._changes(recorded, rules) for change in group}
                for call in recorded:
                    folder = call.facts.get("cwd") or str(self.root)
                    live = self.outcome(
                        {"permission_mode": mode, **rules, "root": str(self.root)}, call.tool, call.input or {},
                        cwd=folder, session_cwd=str(self.root), project_dir=str(self.root), effect=call.facts.get("effect"),
                        workspace_roots=call.policy["roots"], protected_paths=call.policy["protected"],
                    )  # fmt: skip
                    expected = {"allow": "run", "ask": "ask", "deny": "refuse"}[live]
                    self.assertEqual(
                        now.get(call.seq, call.was), expected, (call.tool, call.input, mode, rules, call.was)
                    )
                    compared += 1
        self.assertGreater(
            compared, 7 * sets * 10, "tools denied as a whole are not offered, so the gate never sees their calls"
        )

    def _changes(self, calls: Sequence[RecordedCall], rules: Mapping[str, Iterable[str]]) -> Iterable[Any]:
        settings = as_settings(rules)
        found = backtest(calls, lambda folder: rules_of_settings(settings, folder))
        self.assertEqual((found.judged, found.left_out), (len(calls), {}))
        return found.newly_run, found.newly_asked, found.newly_refused


class Backtests(Hindsight):
    def test_the_command_lists_what_would_newly_run_be_asked_and_be_refused_with_an_exit_code(self) -> None:
        turn = {
            "tool_calls": [
                {"name": "Bash", "arguments": {"command": command}} for command in ("npm test", "ls", "rm x")
            ]
        }
        self.record([turn], self.gate(Person("yes")), tools=QUIET)
        code, report = self.backtest(
            "--settings", self.settings(allow=["Bash(npm test)"], ask=["Bash(ls:*)"], deny=["Bash(rm:*)"])
        )
        self.assertEqual((code, report["judged"]), (1, 3))
        kinds = {
            kind: [each["input"]["command"] for each in report[kind]] for kind in report if kind.startswith("newly")
        }
        self.assertEqual(kinds, {"newly_run": ["npm test"], "newly_asked": ["ls"], "newly_refused": ["rm x"]})
        self.assertEqual(report["newly_refused"][0]["rule"], "Bash(rm:*)")
        self.assertEqual(self.backtest("--settings", self.settings())[0], 0)
        self.assertEqual(self.backtest("--settings", self.settings(), "--since", "2001-01-01")[1]["judged"], 3)
        self.assertEqual(self.backtest("--settings", self.settings(), "--since", "2200-01-01")[1]["judged"], 0)

    def test_settings_that_cannot_be_read_are_wrong_usage(self) -> None:
        for text in ("{", "[]"):
            (self.outside / "broken.json").write_text(text)
            with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
                code = main(
                    [
                        "permissions",
                        "backtest",
                        "--settings",
                        str(self.outside / "broken.json"),
                        "--store",
                        str(self.outside),
                    ]
                )
            self.assertEqual(code, 2)

    @full_size
    def test_a_subagents_calls_are_judged_within_what_its_definition_lets_it_use(self) -> None:
        helper = ScriptedProvider(
            [
                {"tool_calls": [{"name": "Bash", "arguments": {"command": c}} for c in ("npm test", "npm publish")]},
                "done",
            ]
        )
        agents = {"h": AgentDefinition("helps", "p", tools=["Bash(npm test)"], provider=helper)}
        gate = self.gate(Person("yes"))
        self.record(
            [{"tool_calls": [{"name": "Task", "arguments": {"agent": "h", "prompt": "p"}}]}], gate, agents=agents
        )
        _, report = self.backtest("--settings", self.settings(allow=["Bash(npm:*)"]))
        self.assertEqual([each["input"]["command"] for each in report["newly_run"]], ["npm test"])
        self.assertEqual(report["newly_refused"], [])

    def test_a_hooks_wish_and_block_stay_what_they_were(self) -> None:
        def hook(payload: Mapping[str, Any]) -> HookDecision | None:
            command = str(payload["tool_input"].get("command"))
            if command == "npm block":
                return HookDecision(block=True, block_reason="no")
            return HookDecision(permission="allow") if command == "npm wish" else None

        hooks = HookEngine(pre_tool_use=[HookMatcher("guard", "Bash", hook)])
        turn = {
            "tool_calls": [
                {"name": "Bash", "arguments": {"command": f"npm {word}"}} for word in ("block", "wish", "other")
            ]
        }
        name = self.record([turn], self.gate(Person("yes")), tools=QUIET, hooks=hooks)
        self.assertEqual([call.was for call in self.calls(name)], ["refuse", "run", "ask"])
        self.assertEqual(self.backtest("--settings", self.settings())[0], 0)
        _, report = self.backtest("--settings", self.settings(allow=["Bash(npm:*)"], ask=["Bash(npm wish)"]))
        self.assertEqual([each["input"]["command"] for each in report["newly_run"]], ["npm other"])
        self.assertEqual([each["input"]["command"] for each in report["newly_asked"]], ["npm wish"])

    def test_older_and_hostile_logs_are_judged_as_far_as_possible_or_counted_as_omitted(self) -> None:
        digest = json_sha256({"command": "ls"})
        old = PermissionDecision(
            "a",
            "Bash",
            False,
            "default",
            digest,
            REASON,
            policy_sha256="p",
        )
        odd = {
            "policy": {"layers": [{"mode": "x"}]},
            "facts": {"effect": 3, "grants": "x", "cwd": "\0"},
            "remembered": [3, "Bash(("],
        }
        events = stamp_events(
            [
                SystemInit("s", str(self.root), "0", permission_mode="prompt"),
                ToolUse("a", "Bash", {"command": "ls"}),
                old,
                ToolUse("b", "Bash", {"command": "rm"}),
                PermissionDecision("b", "Bash", True, "default", "of something else", policy_sha256="p"),
                ToolUse("c", "Bash", {"command": "ls"}),
                PermissionDecision("c", "Bash", True, "default", digest, policy_sha256="p", details=odd),
            ],
            first_seq=1,
            now=1.0,
        )
        calls = sorted(recorded_calls("s", events), key=lambda call: call.seq)
        self.assertEqual([call.was for call in calls], ["ask", "run", "run"])
        settings = as_settings({"allow": ["Bash(ls)"], "ask": [], "deny": []})
        found = backtest(calls, lambda folder: rules_of_settings(settings, folder))
        self.assertEqual((found.judged, sum(found.left_out.values())), (1, 2))
        self.assertEqual([change.call.tool_use_id for change in found.newly_run], ["a"])

    def test_a_fork_is_judged_from_where_it_left_its_parent(self) -> None:
        turn = {"tool_calls": [{"name": "Bash", "arguments": {"command": "npm test"}}]}
        name = self.record([turn], self.gate(Person("yes")), tools=QUIET)
        fork_session(self.store, name)
        self.assertEqual(self.backtest("--settings", self.settings())[1]["judged"], 1)


class Suggestions(Hindsight):
    def suggested(self, *arguments: str) -> dict[str, dict[str, Any]]:
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            self.assertEqual(
                main(["permissions", "suggest", "--store", str(self.outside / "store"), "--json", *arguments]), 0
            )
        return {each["rule"]: each for each in json.loads(out.getvalue())["suggestions"]}

    def asked(self, calls: Sequence[tuple[str, Mapping[str, Any]]], answer: str = "yes", **policy: Any) -> str:
        turns = [{"tool_calls": [{"name": name, "arguments": dict(input)}]} for name, input in calls]
        return self.record(turns, self.gate(Person(answer), **policy), tools=QUIET)

    def bash(self, *commands: str) -> list[tuple[str, Mapping[str, Any]]]:
        return [("Bash", {"command": command}) for command in commands]

    def setUp(self) -> None:
        super().setUp()
        before = os.environ.get("OPENAGENTIC_SDK_KEY")
        os.environ["OPENAGENTIC_SDK_KEY"] = str(self.outside / "key")
        self.addCleanup(self._set_key, before)

    def _set_key(self, before: str | None) -> None:
        os.environ.pop("OPENAGENTIC_SDK_KEY")
        if before is not None:
            os.environ["OPENAGENTIC_SDK_KEY"] = before

    def test_a_rule_is_suggested_for_calls_always_allowed_and_saves_the_stated_questions(self) -> None:
        edits = [("Edit", {"file_path": f"src/{n}.py", "old": "a", "new": "b"}) for n in "abc"]
        self.asked([*self.bash("npm test", "npm test", "ruff check src", "ruff check other"), *edits])
        self.asked([("mcp__a__b", {}), ("WebFetch", {"url": "https://docs.example.com/x"})])
        found = self.suggested()
        saves = {rule: each["saves"] for rule, each in found.items()}
        self.assertEqual(saves.pop("Edit(/src/**)"), 3)
        self.assertEqual(saves.pop("Bash(npm test)"), 2)
        self.assertEqual(saves.pop("Bash(ruff check:*)"), 2)
        self.assertEqual(saves, {"mcp__a__b": 1, "WebFetch(domain:docs.example.com)": 1})
        written = self.settings(allow=list(found))
        code, report = self.backtest("--settings", written)
        self.assertEqual((code, len(report["newly_run"]), report["newly_refused"]), (1, 9, []))

    def test_a_rule_without_a_wildcard_is_preferred_if_it_saves_the_same_calls(self) -> None:
        self.asked(self.bash("ruff check .", "ruff check .", "ruff check a && make x", "ruff check b && make x"))
        found = self.suggested()
        self.assertEqual([(rule, each["saves"]) for rule, each in found.items()], [("Bash(ruff check .)", 2)])

    def test_the_current_rules_are_those_of_each_calls_project(self) -> None:
        folders: list[str] = []

        def rules_for(folder: str) -> SettingsRules:
            folders.append(folder)
            return rules_of_settings(Settings(), folder)

        judge = PolicyJudge(rules_for)
        for project in ({"project_dir": "/srv/a"}, {"project_dir": "/srv/b"}, {}, {"project_dir": "/srv/a"}):
            judge.gate({**self.gate(deny=["Bash"]).record(), **project})
        self.assertEqual(folders, ["/srv/a", "/srv/b", "/"])

    def test_calls_that_were_ever_refused_are_never_suggested(self) -> None:
        self.asked(self.bash("npm test", "npm test", "npm run build", "ruff check src", "ruff check other"))
        self.asked(self.bash("npm test", "ruff check secrets"), answer="no, never")
        self.assertEqual(
            set(self.suggested()), {"Bash(npm run build)", "Bash(ruff check src)", "Bash(ruff check other)"}
        )

    @full_size
    def test_nothing_that_runs_other_programs_or_reaches_out_is_suggested(self) -> None:
        commands = (
            "sudo make", "env x make", "xargs rm", "sh -c 'make'", "timeout 5 make", "bash run.sh", "python3 -c '1'",
            "find . -exec rm {} ;", "git -c alias.x=!sh x", "npx x", "docker run x", "uv run x", "rm -r src", "ls /etc",
            "cat ../outside.txt", "node -e 1", "perl -e 1", "nice make", "curl https://x.org", "npm exec x", "eval x",
            "X=1 make", "make > ../outside.txt", "ssh host make", "watch make", "parallel make", "make SHELL=/x", "nohup x",
        )  # fmt: skip
        self.asked(self.bash(*commands, *commands), permission_mode="prompt")
        paths = (
            "../outside.txt",
            "link_file_out",
            ".git/config",
            ".claude/x",
            "/etc/hosts",
            "link_git/config",
            "CLAUDE.md",
        )
        edits = [("Edit", {"file_path": path, "old": "a", "new": "b"}) for path in paths]
        reads = [("Read", {"file_path": path}) for path in ("../outside.txt", "/etc/passwd", "link_out/hosts")]
        self.asked([*edits, *reads, *edits])
        self.asked(
            [
                ("WebFetch", {"url": url})
                for url in ("http://127.0.0.1/", "http://localhost/", "http://[::1]/", "http://10.0.0.1/")
            ]
        )
        self.assertEqual(set(self.suggested()), set())

    @full_size
    def test_programs_that_run_what_they_are_given_are_never_suggested_with_a_wildcard(self) -> None:
        programs = (
            "python3 {}.py",
            "make {}",
            "npm run {}",
            "git log {}",
            "git push origin {}",
            "cargo run {}",
            "pytest tests/{}",
            "node {}.js",
        )
        self.asked(self.bash(*(program.format(name) for program in programs for name in "abc")))
        self.assertEqual([rule for rule in self.suggested() if "*" in rule], [])

    def test_calls_covered_by_a_deny_or_ask_rule_are_not_suggested(self) -> None:
        edits = [("Edit", {"file_path": f"src/{n}.py", "old": "a", "new": "b"}) for n in "abcd"]
        self.asked([*self.bash("npm test", "npm publish"), *edits], ask=["Bash(npm publish:*)", "Edit(src/d.py)"])
        found = set(self.suggested())
        self.assertEqual(found, {"Bash(npm test)", "Edit(/src/a.py)", "Edit(/src/b.py)", "Edit(/src/c.py)"})
        denying = self.settings(deny=["Bash(npm:*)", "Edit(src/a.py)"])
        self.assertEqual(
            set(self.suggested("--settings", denying)) & {"Bash(npm test)", "Edit(/src/a.py)", "Edit(/src/**)"}, set()
        )

    def test_other_calls_that_a_rule_would_have_allowed_are_shown(self) -> None:
        self.asked(self.bash("ruff check src", "ruff check docs"))
        self.record(
            [{"tool_calls": [{"name": "Bash", "arguments": {"command": "ruff check other"}}]}], self.gate(), tools=QUIET
        )
        also = self.suggested()["Bash(ruff check:*)"]["also_runs"]
        self.assertEqual([each["input"]["command"] for each in also], ["ruff check other"])

    def test_answers_that_this_installation_did_not_record_are_nobodys(self) -> None:
        self.asked(self.bash("npm test", "npm test"))
        os.environ["OPENAGENTIC_SDK_KEY"] = str(self.outside / "another-key")
        self.assertEqual(self.suggested(), {})

    def test_a_rule_is_written_into_the_projects_settings_only_if_the_person_agrees(self) -> None:
        self.asked(self.bash("npm test"))
        path = self.root / ".claude" / "settings.local.json"
        for answer, is_there in (("no\n", False), ("", False), ("yes\n", True)):
            before, sys.stdin = sys.stdin, io.StringIO(answer)
            try:
                with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                    main(["permissions", "suggest", "--store", str(self.outside / "store"), "--add"])
            finally:
                sys.stdin = before
            self.assertEqual(path.exists(), is_there)
        self.assertEqual(json.loads(path.read_text())["permissions"]["allow"], ["Bash(npm test)"])
