"""Recorded calls under other rules: the same as the gate would have said."""

from __future__ import annotations

import contextlib
import io
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from openagentic_sdk import FileSessionStore, OpenAgenticOptions, PermissionGate, run
from openagentic_sdk.cli.main import main
from openagentic_sdk.permissions.hindsight.calls import RecordedCall, backtest, recorded_calls
from openagentic_sdk.permissions.layers import rules_of_settings
from openagentic_sdk.project.settings import Settings, SettingsRule
from openagentic_sdk.testing import ScriptedProvider
from openagentic_sdk.tools.base import Effect, Tool, ToolContext

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


class Quiet(Tool):
    """A tool of this name that does nothing: what is tested is what may run."""

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
    """A call as a scripted model makes it."""
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
        """A session of these turns; returns its id."""
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
    def test_judging_a_log_again_is_asking_the_gate_for_random_rules_modes_and_calls(self) -> None:
        dice = random.Random(23)
        compared = 0
        for round_ in range(14):
            mode = MODES[round_ % len(MODES)]
            before = random_rules(dice)
            gate = self.gate(Person(dice.choice(("yes", "no"))), permission_mode=mode, **before)
            calls = [random_call(dice) for _ in range(20)]
            name = self.record([{"tool_calls": calls[at : at + 5]} for at in range(0, 20, 5)], gate, tools=QUIET)
            recorded = self.calls(name)
            for _ in range(4):
                rules = random_rules(dice)
                now = {change.call.seq: change.now for group in self._changes(recorded, rules) for change in group}
                for call in recorded:
                    folder = call.facts.get("cwd") or str(self.root)
                    live = self.outcome(
                        {"permission_mode": mode, **rules, "root": str(self.root)}, call.tool, call.input or {},
                        cwd=folder, session_cwd=str(self.root), project_dir=str(self.root), effect=call.facts.get("effect"),
                        workspace_roots=call.policy["roots"], protected_paths=call.policy["protected"],
                    )  # fmt: skip
                    said = {"allow": "run", "ask": "ask", "deny": "refuse"}[live]
                    self.assertEqual(now.get(call.seq, call.was), said, (call.tool, call.input, mode, rules, call.was))
                    compared += 1
        self.assertGreater(
            compared, 14 * 4 * 10, "tools that a rule denies whole are not offered: their calls ask no gate"
        )

    def _changes(self, calls: Sequence[RecordedCall], rules: Mapping[str, Iterable[str]]) -> Iterable[Any]:
        settings = as_settings(rules)
        found = backtest(calls, lambda folder: rules_of_settings(settings, folder))
        self.assertEqual((found.judged, found.left_out), (len(calls), {}))
        return found.newly_run, found.newly_asked, found.newly_refused
