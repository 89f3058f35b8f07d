"""Guards of settings apply to every spelling of a call, from every folder in which a run begins."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, ClassVar

from openagentic_sdk.hooks.engine import HookEngine, absolute_path
from openagentic_sdk.hooks.models import HookMatcher
from openagentic_sdk.parts.claude.names import with_our_names, with_their_names
from openagentic_sdk.parts.project.settings import Settings, SettingsRule
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.permissions.layers import rules_of_settings
from tests.pythons import PLAIN_PYTHON
from tests.size import full_size
from tests.skills.support import RunTestCase

GUARD = """import json, sys
call = json.load(sys.stdin)
path = call["tool_input"].get("file_path", "")
if "/protected/" in path or call["tool_name"] == "Agent":
    print("guarded", file=sys.stderr)
    sys.exit(2)
"""
SPELLINGS = ("protected/x", "./protected/x", "protected//x", "a/../protected/x", "link/../x")


def call(tool: str, /, **arguments: Any) -> dict[str, Any]:
    return {"tool_calls": [{"name": tool, "arguments": arguments}]}


class Guards(RunTestCase):
    defaults: ClassVar[Mapping[str, Any]] = {
        "trust_project": True,
        "permission_gate": PermissionGate(permission_mode="bypass"),
    }

    def settings(self, folder: str = "", **keys: Any) -> None:
        self.write({os.path.join(folder, ".claude/settings.json"): json.dumps(keys)})

    def notices(self, result: Any) -> list[str]:
        return [event.message for event in result.events if event.type == "system.notice"]

    @full_size
    def test_a_guard_on_a_folder_is_not_passed_with_another_spelling(self) -> None:
        files = {"guard.py": GUARD, "protected/deep/y": "y", "protected/x": "x", "a/z": "z"}
        self.write(files, {"link": "protected/deep"})
        hook = {"type": "command", "command": f"{PLAIN_PYTHON} guard.py"}
        self.settings(hooks={"PreToolUse": [{"matcher": "Write|Read|Agent", "hooks": [hook]}]})
        seen: list[Any] = []

        def note(payload: dict[str, Any]) -> None:
            seen.append((payload["tool_name"], payload["tool_input"].get("file_path"), payload["context"].get("paths")))

        engine = HookEngine(pre_tool_use=(HookMatcher("mine", hook=note),))
        spellings = [*SPELLINGS, str(self.project / "protected/x")]
        turns = [call("Read", file_path=path) for path in spellings]
        agent = call("Task", agent="general-purpose", prompt="Go.")
        result = self.run_script(*turns, call("Read", file_path="a/z"), agent, "Done.", hooks=engine)
        outcomes = [event.outcome for event in result.events if event.type == "tool.result"]
        self.assertEqual(outcomes[:7], ["denied"] * 6 + ["ok"])
        self.assertEqual([name for name, _, _ in seen], ["Read"] * 7 + ["Task"] * (len(seen) - 7))
        self.assertEqual([path for _, path, _ in seen[:6]], spellings)
        whole = {"file_path": str(self.project / "protected/x")}
        self.assertEqual([paths for _, _, paths in seen[:6]], [whole] * 6)
        self.assertEqual(absolute_path("~/a/../x", "/p"), os.path.join(os.path.expanduser("~"), "x"))

    def test_every_spelling_of_a_path_is_whole(self) -> None:
        """In addition to a link `link` to `protected/deep`, `up` to the folder above and `loop` to itself."""
        self.write({"protected/deep/y": "y", "a/z": "z"}, {"link": "protected/deep", "up": "..", "loop": "loop"})
        cwd, home = str(self.project), os.path.expanduser("~")
        for text, whole in (
            ("x", f"{cwd}/x"),
            ("./protected/../protected/x", f"{cwd}/protected/x"),
            ("protected/./deep//y", f"{cwd}/protected/deep/y"),
            ("protected/deep/", f"{cwd}/protected/deep"),
            ("a/../../project/a/z", f"{cwd}/a/z"),
            ("link/y", f"{cwd}/link/y"),
            ("link/..", f"{cwd}/protected"),
            ("link/../x", f"{cwd}/protected/x"),
            ("up/project/protected/x", f"{cwd}/up/project/protected/x"),
            ("loop/../x", f"{cwd}/x"),
            ("gone/../x", f"{cwd}/x"),
            (f"{cwd}/./a/../x", f"{cwd}/x"),
            ("/../x", "/x"),
            ("~", home),
            ("~/x/..//y", f"{home}/y"),
            ("~nobody/x", f"{cwd}/~nobody/x"),
            ("$HOME/x", f"{cwd}/$HOME/x"),
            ("${CLAUDE_PROJECT_DIR}/../x", f"{cwd}/x"),
            ("%2e%2e/x", f"{cwd}/%2e%2e/x"),
            ("Protected/X", f"{cwd}/Protected/X"),
            ("prote\u0301ge\u0301/x", f"{cwd}/prote\u0301ge\u0301/x"),
            ("\u2024\u2024/x", f"{cwd}/\u2024\u2024/x"),
            (" protected/x", f"{cwd}/ protected/x"),
            ("a\n/../x", f"{cwd}/x"),
            ("", None),
            ("a\0b", None),
            ("blob:12", None),
        ):
            with self.subTest(text):
                self.assertEqual(absolute_path(text, cwd), whole)

    @full_size
    def test_a_guard_sees_the_paths_of_every_tool_for_files(self) -> None:
        self.write(
            {"guard.py": GUARD.replace('get("file_path", "")', 'get("file_path") or call["tool_input"].get("path")')}
        )
        self.write({"protected/x": "x", "a/z": "z"}, {"link": "protected", "deep": "protected/x"})
        hook = {"type": "command", "command": f"{PLAIN_PYTHON} guard.py"}
        self.settings(hooks={"PreToolUse": [{"matcher": "Write|Edit|Read|Glob|Grep", "hooks": [hook]}]})
        turns = [
            call("Write", file_path="protected/new", content=""),
            call("Edit", file_path="a/../protected/x", old="x", new="y"),
            call("Glob", pattern="*", root="./protected/."),
            call("Grep", query="x", root="a/../protected/x"),
            call("Read", file_path="a/z"),
        ]
        result = self.run_script(*turns, "Done.")
        outcomes = [event.outcome for event in result.events if event.type == "tool.result"]
        self.assertEqual(
            outcomes, ["denied", "denied", "ok", "denied", "ok"]
        )  # the folder itself is not a path below it
        self.assertEqual((self.project / "protected/x").read_text(), "x")

    def test_paths_that_a_hook_leaves_are_as_the_model_wrote_them(self) -> None:
        shown = with_their_names("Edit", {"file_path": "a", "old": "x"}, "/p")
        self.assertEqual(shown, {"file_path": "/p/a", "old": "x", "old_string": "x"})
        changed = with_our_names("Edit", {"file_path": "a", "old": "x"}, {**shown, "old_string": "y"}, "/p")
        self.assertEqual(changed, {"file_path": "a", "old": "y"})
        shown = with_their_names("Grep", {"query": "x", "root": "a"}, "/p")
        self.assertEqual((shown["path"], shown["root"]), ("/p/a", "/p/a"))
        self.assertEqual(with_our_names("Grep", {"query": "x", "root": "a"}, shown, "/p"), {"query": "x", "root": "a"})
        moved = with_our_names("Grep", {"query": "x", "root": "a"}, {**shown, "path": "/q"}, "/p")
        self.assertEqual(moved, {"query": "x", "root": "/q"})

    def test_a_path_from_the_root_is_relative_to_the_folder_of_its_file(self) -> None:
        files = {"user": "/h/.claude", "local": "/p/.claude", "project": "/p/q/.claude", "managed": "/etc/x"}
        rules = [SettingsRule("Read(/x)", f"{folder}/settings.json", scope) for scope, folder in files.items()]
        found = rules_of_settings(Settings(deny=tuple(rules)), "/p", "/p/q")
        self.assertEqual([rule.root for rule in found.deny], ["/h/.claude", "/p/q", "/p/q", "/p"])

    def test_a_rule_about_a_parameter_holds_for_calls_that_give_it(self) -> None:
        gate = PermissionGate(
            permission_mode="bypass",
            deny=(
                "Bash(run_in_background:true)", "Agent(model: op*)", "Agent(subagent_type:x)", "mcp__s__t(to:a*)",
                "Bash(timeout:*)",
            ),
        )  # fmt: skip
        for tool, input, outcome in (
            ("Bash", {"command": "ls", "run_in_background": True}, "deny"),
            ("Bash", {"command": "ls", "run_in_background": False}, "allow"),
            ("Bash", {"command": "ls"}, "allow"),
            ("Bash", {"command": "timeout 5 ls"}, "deny"),
            ("Task", {"agent": "a", "prompt": "p", "model": "opus"}, "deny"),
            ("Task", {"agent": "a", "prompt": "p", "model": "sonnet"}, "allow"),
            ("Task", {"agent": "x", "prompt": "p"}, "deny"),
            ("mcp__s__t", {"to": "a@b"}, "deny"),
            ("mcp__s__t", {"to": ["a@b"]}, "allow"),
        ):
            with self.subTest(tool=tool, input=input):
                self.assertEqual(gate.verdict(tool, input).outcome, outcome)
        wrong = ("Bash(run_in_background:true)", "Agent(model:*)")
        for text, effect in [*((text, "allow") for text in wrong), ("Bash(command:rm *)", "deny")]:
            with self.subTest(text):
                rule = SettingsRule(text, "/p/.claude/settings.json", "project")
                [note] = rules_of_settings(Settings(**{effect: (rule,)}), "/p").diagnostics
                self.assertIn("is not understood", note.message)

    def test_a_rule_for_an_unknown_tool_is_reported_once(self) -> None:
        deny = ["Raed(./.env)", "Raed", "PowerShell", "mcp__later__x", "Read(./.env)", "Agent(Explore)", "KillShell"]
        self.settings(permissions={"deny": deny})
        [told] = [text for text in self.notices(self.run_script("Done.")) if "no tool" in text]
        self.assertIn("no tool is called 'Raed' (Raed(./.env), Raed); did you mean", told)
        self.assertIn("Read", told)

    def test_a_run_that_starts_in_a_folder_reads_the_settings_of_that_folder_too(self) -> None:
        self.settings(permissions={"deny": ["Read(./root.txt)"]}, env={"A": "1", "B": "1"})
        hook = {"type": "command", "command": "echo no >&2; exit 2"}
        deny = {"deny": ["Read(./pkg.txt)"], "allow": ["Glob"]}
        self.settings(
            "pkg", permissions=deny, env={"A": "2"}, hooks={"PreToolUse": [{"matcher": "Glob", "hooks": [hook]}]}
        )
        self.write({".git/x": "", "pkg/root.txt": "", "pkg/pkg.txt": ""})
        turns = [
            call("Read", file_path="root.txt"),
            call("Read", file_path="pkg.txt"),
            call("Glob", pattern="*"),
            "Done.",
        ]
        for trusted, last in ((True, "denied"), (False, "ok")):
            with self.subTest(trusted=trusted):
                result = self.run_script(*turns, cwd=self.project / "pkg", trust_project=trusted)
                outcomes = [event.outcome for event in result.events if event.type == "tool.result"]
                self.assertEqual(outcomes, ["denied", "denied", last])
