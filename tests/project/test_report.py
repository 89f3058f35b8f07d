"""`doctor --project` and `why NAME`: which parts of a project work here, and what a name refers to."""

from __future__ import annotations

import contextlib
import io
import json
import os
from typing import Any

from openagentic_sdk.cli.main import main
from tests.skills.support import ProjectTestCase


class CommandTestCase(ProjectTestCase):
    def setUp(self) -> None:
        super().setUp()
        kept = {name: os.environ.get(name) for name in ("OPENAGENTIC_SDK_HOME", "HOME", "OPENAGENTIC_SDK_TRUST")}
        os.environ.update({"OPENAGENTIC_SDK_HOME": str(self.parent / "sdk"), "HOME": str(self.parent / "home")})
        os.environ.pop("OPENAGENTIC_SDK_TRUST", None)
        self.addCleanup(os.environ.update, {name: value for name, value in kept.items() if value is not None})
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.project)
        self.write({".git/x": ""})

    def command(self, *args: str) -> tuple[int, str]:
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
            code = main([*args])
        return code, out.getvalue()

    def settings(self, **keys: Any) -> None:
        self.write({".claude/settings.json": json.dumps(keys, indent=1)})


def hooks(*rows: tuple[str, str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for event, matcher, command in rows:
        found.setdefault(event, []).append({"matcher": matcher, "hooks": [{"type": "command", "command": command}]})
    return {"hooks": found}


class DoctorTest(CommandTestCase):
    def sections(self) -> dict[str, list[dict[str, Any]]]:
        data = json.loads(self.command("doctor", "--project", "--json")[1])
        sections: dict[str, list[dict[str, Any]]] = data["sections"]
        return sections

    def rows(self, section: str) -> dict[str, tuple[bool | None, str, str]]:
        return {row["name"]: (row["works"], row["detail"], row["advice"]) for row in self.sections()[section]}

    def test_the_report_on_a_project_without_files_is_empty(self) -> None:
        code, out = self.command("doctor", "--project")
        self.assertEqual(code, 0)
        self.assertIn("contain no hooks, agents", out)

    def test_an_untrusted_project_is_reported_as_if_trusted_with_the_way_to_trust_it(self) -> None:
        self.settings(**hooks(("PreToolUse", "Bash", "true")))
        code, out = self.command("doctor", "--project")
        self.assertEqual(code, 0, out)
        self.assertIn("not trusted; examined as if it were", out)
        self.assertIn("openagentic-sdk trust add", out)
        self.assertIn("hooks: 1 of 1 work", out)

    def test_hooks_that_never_fire_are_reported_with_a_remedy(self) -> None:
        self.write({"there.py": ""})
        self.settings(
            **hooks(
                ("PreToolUse", "Edit|Write", "python3 there.py"),
                ("PreToolUse", "Raed", "true"),
                ("PreToolUse", "NotebookEdit", "true"),
                ("PreToolUse", "mcp__db__.*", "true"),
                ("Setup", "", "true"),
                ("PreToolusse", "", "true"),
                ("SessionStart", "clear", "true"),
                ("SessionStart", "startup|clear", "true"),
                ("Stop", "", "python3 .claude/hooks/gone.py"),
                ("SessionEnd", "", "no-such-program --now"),
            )
        )
        rows = self.rows("hooks")
        self.assertEqual(
            {name: works for name, (works, _, _) in rows.items()},
            {
                "PreToolUse Edit|Write": True,
                "PreToolUse Raed": False,
                "PreToolUse NotebookEdit": False,
                "PreToolUse mcp__db__.*": True,
                "Setup": False,
                "PreToolusse": False,
                "SessionStart clear": False,
                "SessionStart startup|clear": True,
                "Stop": False,
                "SessionEnd": False,
            },
        )
        self.assertIn("did you mean Read", rows["PreToolUse Raed"][2])
        self.assertIn("there is no tool of this name", rows["PreToolUse NotebookEdit"][2])
        self.assertIn("did you mean PreToolUse", rows["PreToolusse"][2])
        self.assertIn(".claude/hooks/gone.py does not exist", rows["Stop"][1])
        self.assertIn("'no-such-program' does not exist", rows["SessionEnd"][1])

    def test_agents_are_reported_with_their_models_and_tools(self) -> None:
        agent = "---\nname: {0}\ndescription: d\n{1}\n---\nDo."
        for name, fields in (
            ("plain", ""),
            ("small", "model: haiku"),
            ("mapped", "model: opus"),
            ("odd", "tools: Read, Raed"),
            ("empty", "tools: Nothing"),
            ("apart", "isolation: worktree"),
        ):
            self.write({f".claude/agents/{name}.md": agent.format(name, fields)})
        self.settings(modelNames={"opus": "big-1"}, model="mid-1")
        rows = self.rows("agents")
        self.assertEqual(rows["plain"][:2], (True, "runs on mid-1"))
        self.assertEqual(rows["mapped"][:2], (True, "runs on big-1"))
        self.assertEqual(rows["small"][:2], (None, "runs on mid-1, asks for 'haiku'"))
        self.assertIn('"modelNames": {"haiku"', rows["small"][2])
        self.assertEqual(rows["odd"][:2], (None, "runs on mid-1, without Raed"))
        self.assertFalse(rows["empty"][0])
        self.assertFalse(rows["apart"][0])

    def test_commands_in_texts_are_reported_with_what_stops_them(self) -> None:
        text = "---\ndescription: d\nallowed-tools: {0}\n---\nNow: !`{1}`"
        self.write(
            {
                ".claude/commands/ok.md": text.format("Bash(make release:*)", "make release"),
                ".claude/commands/stops.md": text.format("Read", "make release"),
                ".claude/skills/s/SKILL.md": "---\nname: s\ndescription: d\n---\n!`make test`",
                ".claude/commands/plain.md": "No command.",
            }
        )
        rows = self.rows("commands in text")
        self.assertEqual({name: works for name, (works, _, _) in rows.items()},
                         {"all of them": None, "/ok": True, "/stops": False, "s": False})  # fmt: skip
        self.assertIn("'make release'", rows["/stops"][1])
        self.assertIn("Bash(make *)", rows["/stops"][2])
        self.settings(enableSkillShellExecution=True)
        self.assertNotIn("all of them", self.rows("commands in text"))

    def test_rules_that_match_nothing_servers_and_unknown_words_are_reported_once(self) -> None:
        (self.project / "src").mkdir()
        self.settings(
            permissions={
                "allow": ["Bash(ls:*)", "Raed", "Read(/etc/**)", "Edit(/src/**)", "Bash:*", "Write:*"],
                "deny": ["NotebookEdit"],
            },
            statusLine={"type": "command"},
            apiKeyHelper="x",
        )
        servers = {"one": {"command": "srv"}, "two": {"command": "srv", "env": {"K": "${NOT_SET_ANYWHERE}"}}}
        self.write({".mcp.json": json.dumps({"mcpServers": servers})})
        for name in ("a", "b"):
            self.write(
                {f".claude/agents/{name}.md": f"---\nname: {name}\ndescription: d\nmemory: user\nmine: 1\n---\nDo."}
            )
        sections = self.sections()
        rules = {row["name"]: row for row in sections["rules"]}
        self.assertEqual(rules.keys(), {"rule", "Raed", "Read(/etc/**)", "NotebookEdit"})
        self.assertIn("'Bash:*', 'Write:*'", rules["rule"]["detail"])
        self.assertIn("write //etc/**", rules["Read(/etc/**)"]["advice"])
        self.assertEqual([row["name"] for row in sections["servers"]], ["one", "two"])
        others = {row["name"]: row for row in sections["other findings"]}
        self.assertIn("2 places", others["memory"]["detail"])
        self.assertEqual(others["apiKeyHelper"]["works"], False)
        self.assertEqual(others["statusLine"]["works"], None)
        self.assertIn("mine", others["words"]["detail"])


class WhyTest(CommandTestCase):
    def test_each_kind_of_name_is_reported_with_its_target(self) -> None:
        self.skill("deploy", allowed_tools="Bash(make:*)")
        self.write(
            {
                "../home/.claude/skills/deploy/SKILL.md": "---\nname: deploy\ndescription: Mine.\n---\nDo.",
                ".claude/commands/review.md": "---\ndescription: d\nallowed-tools: Read\n---\nReview.",
                "../home/.claude/commands/review.md": "---\ndescription: mine\n---\nReview.",
                ".claude/agents/clerk.md": "---\nname: clerk\ndescription: d\nmodel: opus\n---\nKeep.",
                ".mcp.json": json.dumps({"mcpServers": {"db": {"command": "srv"}}}),
            }
        )
        self.settings(**hooks(("PreToolUse", "Bash", "python3 guard.py")), permissions={"allow": ["Bash(ls:*)"]})
        settings = self.project / ".claude/settings.json"
        for name, expected in (
            ("deploy", ("skill deploy is", "hidden: ", "because skills of scope")),
            (
                "/review",
                ("command /review is", f"hidden: {self.parent}/home/.claude/commands/review.md", "pre-approves Read"),
            ),
            ("clerk", ("agent clerk is", "asks for 'opus'", '"modelNames"')),
            ("PreToolUse", (f"hook PreToolUse Bash is {settings} [project]", "runs python3 guard.py", "before a call")),
            ("guard.py", ("hook PreToolUse Bash",)),
            ("Bash(ls:*)", (f"allow rule Bash(ls:*) is {settings}:",)),
            ("Bash", ("allow rule Bash(ls:*)", "hook PreToolUse Bash", "word (tool) Bash")),
            ("db", ("server db is", "openagentic-sdk mcp trust db")),
            ("statusLine", ("word (setting) statusLine", "does nothing here", "docs/en/settings-reference")),
        ):
            with self.subTest(name):
                code, out = self.command("why", name)
                self.assertEqual(code, 0, out)
                for words in expected:
                    self.assertIn(words, out)

    def test_an_unknown_name_is_an_error_with_the_nearest_ones(self) -> None:
        self.skill("deploy")
        code, out = self.command("why", "deplyo")
        self.assertEqual(code, 2)
        self.assertIn("did you mean deploy", out)

    def test_an_entry_that_waits_for_trust_is_marked(self) -> None:
        self.settings(**hooks(("PreToolUse", "Bash", "true")))
        self.assertIn("openagentic-sdk trust add", self.command("why", "PreToolUse")[1])
        data = json.loads(self.command("why", "PreToolUse", "--json")[1])
        self.assertEqual((data["trusted"], data["found"][0]["kind"]), (False, "hook"))
