"""The gate: the order of its checks, its questions, and that subagents can only lose authority."""

from __future__ import annotations

import asyncio
import itertools
import random
import unittest
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, replace
from typing import Any

from openagentic_sdk.errors import OptionsError, PermissionRuleError
from openagentic_sdk.events import PermissionDecision, UserAnswer, UserQuestion
from openagentic_sdk.parts.project.settings import Settings, SettingsRule
from openagentic_sdk.permissions.gate import ApprovalResult, PermissionGate
from openagentic_sdk.permissions.interactive import InteractiveApprover, question_text
from openagentic_sdk.permissions.layers import rules_of_settings
from openagentic_sdk.permissions.policy import MODES
from openagentic_sdk.sessions.request import json_sha256
from openagentic_sdk.testing.clock import FakeClock
from tests.size import sized

from .workspace import Person, WorkspaceTestCase

LS = {"command": "npm test"}


class Callbacks(unittest.IsolatedAsyncioTestCase):
    async def test_a_plain_function_answers_at_the_terminal(self):
        async def later(question):
            return question.prompt == "Allow Write?"

        for answerer, allowed in (
            (lambda question: True, True),
            (lambda question: False, False),
            (lambda question: "yes", True),
            (lambda question: "no because it is late", False),
            (lambda question: 1, False),
            (lambda question: None, False),
            (later, True),
        ):
            for name in ("interactive_approver", "user_answerer"):
                gate = PermissionGate(**{name: answerer})
                result = await gate.approve("Write", {"file_path": "x", "content": ""}, {"cwd": "/"})
                self.assertEqual(result.allowed, allowed, (name, answerer))

    async def test_an_answer_at_the_terminal_names_the_user_of_the_system(self):
        question = UserQuestion("q", "Allow Write?", ("yes", "no"))
        answer = await PermissionGate(interactive_approver=lambda question: True).answer(question)
        self.assertEqual((answer.question_id, answer.answer, answer.approver["how"]), ("q", "yes", "operating system"))
        self.assertEqual(await PermissionGate(user_answerer=lambda question: True).answer(question), "yes")
        self.assertEqual(await PermissionGate().answer(question), "")

    def test_a_function_that_takes_a_call_is_pointed_to_approver(self):
        with self.assertRaisesRegex(
            OptionsError, "its only argument .*: pass PermissionGate a function of .* as `approver`"
        ):
            PermissionGate(interactive_approver=lambda tool_name, tool_input, context: True)


class Order(WorkspaceTestCase):
    def test_a_hooks_deny_overrides_everything(self) -> None:
        gate = self.gate(permission_mode="bypass", allow=["Bash"])
        result = self.approve(gate, "Bash", LS, hook_permission="deny", hook="guard", hook_reason="not today")
        self.assertFalse(result)
        self.assertEqual((result.category, result.hook, result.reason), ("hook", "guard", "not today"))

    def test_deny_beats_bypass_ask_rules_and_allow_rules(self) -> None:
        policy = {"permission_mode": "bypass", "deny": ["Bash(npm:*)"], "ask": ["Bash"], "allow": ["Bash"]}
        result = self.approve(self.gate(Person("yes"), **policy), "Bash", LS, hook_permission="allow")
        self.assertFalse(result)
        self.assertEqual((result.category, result.rule, result.source), ("deny_rule", "Bash(npm:*)", "options"))

    def test_a_hooks_allow_skips_neither_deny_nor_ask_rules(self) -> None:
        for policy, expected in (
            ({"deny": ["Bash"]}, "deny"),
            ({"ask": ["Bash"]}, "ask"),
            ({"permission_mode": "plan"}, "deny"),
            ({}, "allow"),
            ({"permission_mode": "dontAsk"}, "allow"),
        ):
            with self.subTest(policy):
                self.assertEqual(self.outcome(policy, "Bash", LS, hook_permission="allow"), expected)

    def test_a_hook_can_want_a_question_about_what_would_pass(self) -> None:
        self.assertEqual(self.outcome({"permission_mode": "bypass"}, "Bash", LS, hook_permission="ask"), "ask")
        self.assertEqual(
            self.outcome({"permission_mode": "dontAsk", "allow": ["Bash"]}, "Bash", LS, hook_permission="ask"), "deny"
        )

    def test_the_mode_overrides_allow_rules(self) -> None:
        self.assertEqual(self.outcome({"permission_mode": "plan", "allow": ["Bash"]}, "Bash", LS), "deny")
        self.assertEqual(
            self.outcome({"permission_mode": "deny", "allow": ["Read"]}, "Read", {"file_path": "README.md"}), "deny"
        )

    def test_without_anybody_to_ask_a_call_is_denied_with_the_rule_that_would_allow_it(self) -> None:
        result = self.approve(self.gate(), "Write", {"file_path": "x", "content": ""})
        self.assertFalse(result)
        self.assertEqual(result.category, "nobody")
        self.assertIn(f"Edit(/{self.root}/x) or mode acceptEdits", result.reason)


class Modes(WorkspaceTestCase):
    def test_each_mode_decides_each_kind_of_tool_as_in_the_table(self) -> None:
        calls: dict[str, tuple[str, Mapping[str, Any], str | None]] = {
            "read": ("Read", {"file_path": "README.md"}, "read"),
            "glob": ("Glob", {"pattern": "*.py"}, "read"),
            "edit": ("Edit", {"file_path": "README.md", "old": "x", "new": "y"}, "unsafe"),
            "todo": ("TodoWrite", {"todos": []}, "idempotent"),
            "skill": ("SkillActivate", {"name": "x"}, "unsafe"),
            "task": ("Task", {"agent": "x", "prompt": "y"}, "unsafe"),
            "question": ("AskUserQuestion", {"question": "?"}, "unsafe"),
            "fetch": ("WebFetch", {"url": "https://example.com"}, "read"),
            "mcp": ("mcp__a__b", {}, "read"),
            "own reader": ("Weather", {"city": "x"}, "read"),
            "own writer": ("Deploy", {}, "unsafe"),
        }
        a, q, d = "allow", "ask", "deny"
        table = {
            "default": (a, a, q, a, a, a, a, q, q, a, q),
            "acceptEdits": (a, a, a, a, a, a, a, q, q, a, q),
            "plan": (a, a, d, a, a, a, a, q, d, a, d),
            "dontAsk": (a, a, d, a, a, a, d, d, d, a, d),
            "bypass": (a,) * 11,
            "bypassPermissions": (a,) * 11,
            "prompt": (q, q, q, q, q, q, a, q, q, q, q),
            "callback": (q, q, q, q, q, q, a, q, q, q, q),
            "deny": (d,) * 11,
        }
        for mode, row in table.items():
            for (name, (tool, input, effect)), expected in zip(calls.items(), row, strict=True):
                with self.subTest(mode=mode, call=name):
                    self.assertEqual(self.outcome({"permission_mode": mode}, tool, input, effect=effect), expected)

    def test_an_ask_rule_asks_in_every_mode_but_those_that_refuse_the_call(self) -> None:
        rules = {"ask": ["Read(README.md)", "Edit(README.md)", "Bash(ls:*)"], "allow": ["Read", "Edit", "Bash"]}
        calls = {"Read": {"file_path": "README.md"}, "Edit": {"file_path": "README.md"}, "Bash": {"command": "ls"}}
        refused = {"deny": {"Read", "Edit", "Bash"}, "plan": {"Edit"}, "dontAsk": {"Read", "Edit", "Bash"}}
        for mode, (tool, input) in itertools.product(MODES, calls.items()):
            with self.subTest(mode=mode, tool=tool):
                expected = "deny" if tool in refused.get(mode, ()) else "ask"
                self.assertEqual(self.outcome({"permission_mode": mode, **rules}, tool, input), expected)

    def test_the_name_of_a_tool_of_ones_own_covers_every_use_of_it(self) -> None:
        call = ("Inventory", {"path": "/v1/items"})
        self.assertEqual(self.outcome({}, *call, effect="read"), "ask")
        self.assertEqual(self.outcome({"allow": ["Inventory"]}, *call, effect="read"), "allow")

    def test_a_path_is_judged_under_each_of_its_names(self) -> None:
        policy = {"permission_mode": "bypass", "deny": ["Read(secrets/**)", "Edit(secrets/**)"]}
        for tool, keys in (
            ("Read", ("file_path", "path")),
            ("Edit", ("file_path", "path")),
            ("NotebookEdit", ("notebook_path",)),
            ("Grep", ("root", "path")),
            ("Glob", ("root", "path")),
            ("LS", ("path",)),
        ):
            for key in keys:
                with self.subTest(tool=tool, key=key):
                    self.assertEqual(self.outcome(policy, tool, {key: "secrets/key"}), "deny")
                    self.assertEqual(self.outcome(policy, tool, {key: "src/a.py"}), "allow")

    def test_paths_named_in_git_settings_before_the_first_change_stay_protected(self) -> None:
        config = self.root / ".git/config"
        config.write_text("[core]\n\thooksPath = tools/hooks\n", encoding="utf-8")
        gate = self.gate(permission_mode="acceptEdits", allow=["Inventory"])
        self.assertTrue(self.approve(gate, "Read", {"file_path": "src/a.py"}, effect="read"))
        self.assertTrue(self.approve(gate, "Inventory", {"path": "/v1/items"}, effect="unsafe"))
        config.write_text("[core]\n", encoding="utf-8")
        hook = self.approve(gate, "Write", {"file_path": "tools/hooks/pre-commit"}, effect="unsafe")
        self.assertIn("is protected", hook.reason)
        self.assertTrue(self.approve(gate, "Write", {"file_path": "tools/hook"}, effect="unsafe"))

    def test_a_question_about_a_command_explains_why_its_rule_does_not_cover_it(self) -> None:
        person = Person()
        self.approve(self.gate(person, allow=["Bash(npm:*)"]), "Bash", {"command": "npm run x"})
        self.assertIn("Bash(npm:*) does not cover it", person.asked[0].details["reason"])

    def test_an_unknown_mode_is_an_error(self) -> None:
        with self.assertRaisesRegex(OptionsError, "acceptEdits"):
            PermissionGate(permission_mode="yolo")

    def test_a_rule_that_cannot_be_understood_is_an_error_at_once(self) -> None:
        with self.assertRaisesRegex(PermissionRuleError, r"settings\.json"):
            PermissionGate(deny=["Bash(git $(x))"], source="settings.json")

    def test_tools_and_names_are_denied_by_their_rules(self) -> None:
        cases = [
            (["Skill(deploy)"], "SkillActivate", {"name": "deploy"}, "deny"),
            (["Skill(deploy)"], "SkillLoad", {"name": "deploy"}, "deny"),
            (["Skill(deploy)"], "SkillActivate", {"name": " \uff24eploy"}, "deny"),
            (["Skill(Deploy)"], "SkillActivate", {"name": "deploy"}, "deny"),
            (["Skill(deploy)"], "SkillActivate", {"name": "review"}, "allow"),
            (["Skill(deploy)"], "SkillDeactivate", {"name": "deploy"}, "allow"),
            (["Task(evil)"], "Task", {"agent": "evil", "prompt": ""}, "deny"),
            (["Agent(evil)"], "Task", {"agent": "evil", "prompt": ""}, "deny"),
            (["Task"], "Task", {"agent": "good", "prompt": ""}, "deny"),
            (["WebFetch(domain:evil.com)"], "WebFetch", {"url": "https://evil.com/"}, "deny"),
            (["WebFetch(domain:evil.com)"], "WebFetch", {"url": "https://EVIL.com./"}, "deny"),
            (["WebFetch(domain:evil.com)"], "WebFetch", {"url": "https://x@evil.com/"}, "deny"),
            (["WebFetch(domain:evil.com)"], "WebFetch", {"url": "https://good.com/"}, "ask"),
            (["mcp__a__*"], "mcp__a__b", {}, "deny"),
            (["Read"], "Grep", {"query": "x"}, "deny"),
        ]
        for deny, tool, input, expected in cases:
            with self.subTest(deny=deny, tool=tool, input=input):
                self.assertEqual(self.outcome({"deny": deny}, tool, input), expected)


class People(WorkspaceTestCase):
    def test_yes_and_y_allow_and_nothing_else_does(self) -> None:
        for answer, allowed in (
            *(("y", True), ("yes", True), (" YES ", True), ("Y", True), ("always", True)),
            *(
                ("", False),
                ("n", False),
                ("no", False),
                ("ok", False),
                ("yep", False),
                ("yes please", False),
                ("true", False),
            ),
            *(("1", False), ("allow", False), ("y\ny", False), ("no, yes", False), ("alwaysx", False)),
        ):
            with self.subTest(answer):
                by_callback = self.approve(self.gate(Person(answer)), "Bash", LS)
                approver = InteractiveApprover(input_fn=lambda prompt, said=answer: said)
                at_terminal = self.approve(PermissionGate(interactive=True, interactive_approver=approver), "Bash", LS)
                self.assertEqual((by_callback.allowed, at_terminal.allowed), (allowed, allowed))

    def test_the_question_shows_the_whole_call_and_the_result_who_answered_and_when(self) -> None:
        clock = FakeClock()
        asked: list[UserQuestion] = []

        async def answers(question: UserQuestion) -> UserAnswer:
            asked.append(question)
            await clock.sleep(3)
            return UserAnswer(question.question_id, "yes", answered_by="ann")

        result = self.approve(self.gate(clock=clock), "Bash", LS, ask=answers, tool_use_id="t1")
        self.assertTrue(result)
        self.assertEqual((result.answered_by, result.waited_s, result.category), ("ann", 3.0, "answer"))
        self.assertEqual((asked[0].kind, asked[0].tool_use_id), ("permission", "t1"))
        self.assertEqual(asked[0].details["preview"], ["$ npm test"])
        self.assertEqual(asked[0].details["input_sha256"], json_sha256(LS))
        self.assertEqual(result.input_sha256, json_sha256(LS))

    def test_a_no_carries_its_reason_to_the_model(self) -> None:
        result = self.approve(self.gate(Person("no, use pytest")), "Bash", LS)
        self.assertEqual(result.reason, "the person answered no: use pytest")

    def test_always_keeps_the_offered_rules_for_the_session(self) -> None:
        person = Person("always")
        gate = self.gate(person)
        result = self.approve(gate, "Bash", {"command": "npm test && npm run x"}, session_id="s")
        self.assertEqual(result.details["remembered"], ["Bash(npm test)", "Bash(npm run x)"])
        again = self.approve(gate, "Bash", {"command": "npm run x"}, session_id="s")
        self.assertEqual((again.allowed, again.category, again.source), (True, "allow_rule", "session"))
        self.assertEqual(len(person.asked), 1)
        person.says = "no"
        self.assertFalse(self.approve(gate, "Bash", {"command": "npm run x"}, session_id="other"))
        self.assertFalse(self.approve(gate, "Bash", {"command": "npm run x y"}, session_id="s"))

    def test_a_resumed_session_remembers_the_decisions_in_its_log(self) -> None:
        decision = PermissionDecision("t", "Bash", True, "default", "0", details={"remembered": ["Bash(npm test)"]})
        gate = self.gate()
        gate.restore("s", [decision])
        self.assertTrue(self.approve(gate, "Bash", LS, session_id="s"))

    def test_always_can_be_kept_in_settings(self) -> None:
        saved: list[str] = []
        person = Person("always save")
        result = self.approve(self.gate(person, save_rule=saved.append), "Bash", LS)
        self.assertEqual(saved, ["Bash(npm test)"])
        self.assertEqual(result.details["remembered_in"], "settings")
        self.assertEqual(person.asked[0].choices, ("yes", "no", "always", "always save"))
        self.assertIn("always save: ", question_text(person.asked[0]))

    def test_settings_that_cannot_be_written_take_nothing_from_the_answer(self) -> None:
        def refuse(rule: str) -> None:
            raise OptionsError(f"{rule} cannot be kept")

        result = self.approve(self.gate(Person("always save"), save_rule=refuse), "Bash", LS)
        self.assertTrue(result.allowed)
        self.assertEqual(result.details["remembered_in"], "session")
        self.assertEqual(result.details["not_saved"], "Bash(npm test) cannot be kept")

    def test_always_is_not_offered_against_an_ask_rule(self) -> None:
        person = Person("no")
        self.approve(self.gate(person, ask=["Bash(npm:*)"]), "Bash", LS)
        self.assertEqual(person.asked[0].choices, ("yes", "no"))

    def test_an_edited_command_runs_instead_when_nothing_denies_it(self) -> None:
        result = self.approve(
            self.gate(Person("edit npm run lint"), deny=["Bash(rm:*)"]), "Bash", {"command": "npm test", "timeout_s": 5}
        )
        self.assertEqual((result.allowed, result.updated_input), (True, {"command": "npm run lint", "timeout_s": 5}))
        self.assertEqual(result.input_sha256, json_sha256(dict(result.updated_input or {})))
        denied = self.approve(self.gate(Person("edit rm x"), deny=["Bash(rm:*)"]), "Bash", LS)
        self.assertEqual((denied.allowed, denied.category, denied.updated_input), (False, "deny_rule", None))

    def test_an_edited_input_is_judged_by_the_rules_about_the_tools_own_names(self) -> None:
        context = {"rule_names": lambda input: (input["place"],)}
        gate = self.gate(Person('edit {"place": "Production"}'), deny=["Production"])
        self.assertFalse(self.approve(gate, "Deploy", {"place": "staging"}, **context))
        gate = self.gate(Person('edit {"place": "here"}'), deny=["Production"])
        self.assertTrue(self.approve(gate, "Deploy", {"place": "staging"}, **context))

    def test_an_edit_of_another_tool_is_json(self) -> None:
        call = ("Write", {"file_path": "a", "content": "x"})
        edited = self.approve(self.gate(Person('edit {"file_path": "b", "content": "y"}')), *call)
        self.assertEqual(edited.updated_input, {"file_path": "b", "content": "y"})
        for answer in ("edit {", "edit [1]", "edit"):
            with self.subTest(answer):
                self.assertFalse(self.approve(self.gate(Person(answer)), *call))

    def test_a_callback_is_asked_before_people(self) -> None:
        person = Person("yes")
        for answer, allowed in (
            (True, True),
            (False, False),
            (None, False),
            ("yes", False),
            (ApprovalResult(True), True),
        ):
            with self.subTest(answer):
                gate = self.gate(person, permission_mode="callback", approver=lambda *call, said=answer: said)
                result = self.approve(gate, "Bash", LS)
                self.assertEqual((result.allowed, result.answered_by), (allowed, "callback"))
        self.assertEqual(person.asked, [])

    def test_callbacks_cannot_change_the_input_that_they_are_asked_about(self) -> None:
        def spoil(tool: str, input: Any, *context: Any) -> bool:
            input["command"], input["more"]["k"] = "rm -rf x", "spoilt"
            return True

        async def answer(question: UserQuestion) -> str:
            return "yes" if spoil("Bash", question.details["input"]) else "no"

        async def request(tool: str, input: Any) -> ApprovalResult:
            return ApprovalResult(spoil(tool, input))

        asks, arguments = {"permission_request": request}, {"command": "npm test", "more": {"k": "as it was"}}
        for policy, context in (({"approver": spoil}, {}), ({"user_answerer": answer}, {}), ({}, asks)):
            with self.subTest(policy):
                gate = PermissionGate(cwd=str(self.root), **policy)
                result = self.approve(gate, "Bash", arguments, **context)
                self.assertEqual(
                    (result.allowed, arguments["command"], arguments["more"]), (True, "npm test", {"k": "as it was"})
                )
                self.assertEqual(result.input_sha256, json_sha256(arguments))

    def test_a_callback_receives_the_session_and_the_id_of_the_call(self) -> None:
        requests: list[Any] = []

        def approver(tool: str, input: Any, context: Any) -> bool:
            requests.append((tool, input, context["session_id"], context["tool_use_id"]))
            return True

        gate = self.gate(permission_mode="callback", approver=approver)
        self.assertTrue(self.approve(gate, "Bash", LS, session_id="s", tool_use_id="t"))
        self.assertEqual(requests, [("Bash", LS, "s", "t")])

    def test_a_callback_that_fails_does_not_allow_the_call(self) -> None:
        async def fails(*call: Any) -> bool:
            raise RuntimeError("boom")

        for answer in (None, {"behavior": "allow"}, "yes"):
            gate = self.gate(permission_mode="callback", approver=lambda *call, answer=answer: answer)
            result = self.approve(gate, "Bash", LS)
            self.assertEqual(
                (result.allowed, result.reason),
                (
                    False,
                    f"the approver returned {answer!r}, which allows nothing: return True, False or an ApprovalResult",
                ),
            )
        result = self.approve(self.gate(permission_mode="callback", approver=fails), "Bash", LS)
        self.assertFalse(result)
        self.assertIn("boom", result.reason)

    def test_a_callbacks_other_input_is_judged_too(self) -> None:
        def changes(*call: Any) -> ApprovalResult:
            return ApprovalResult(True, updated_input={"command": "rm x"})

        gate = self.gate(approver=changes, deny=["Bash(rm:*)"])
        self.assertFalse(self.approve(gate, "Bash", LS))

    def test_a_permission_request_hook_answers_in_a_persons_place(self) -> None:
        person = Person("yes")

        def saying(answer: ApprovalResult | None) -> Any:
            async def request(tool: str, input: Mapping[str, Any]) -> ApprovalResult | None:
                return answer

            return request

        denied = self.approve(
            self.gate(person), "Bash", LS, permission_request=saying(ApprovalResult(False, "no", hook="h"))
        )
        self.assertEqual((denied.allowed, denied.reason, denied.hook, denied.answered_by), (False, "no", "h", "hook"))
        allowed = self.approve(self.gate(person), "Bash", LS, permission_request=saying(ApprovalResult(True)))
        self.assertEqual((allowed.allowed, allowed.category), (True, "hook"))
        changed = saying(ApprovalResult(True, updated_input={"command": "rm x"}))
        self.assertFalse(self.approve(self.gate(person, deny=["Bash(rm:*)"]), "Bash", LS, permission_request=changed))
        self.assertEqual(person.asked, [])
        self.assertTrue(
            self.approve(self.gate(person, ask=["Bash"]), "Bash", LS, permission_request=saying(ApprovalResult(True)))
        )
        self.assertTrue(self.approve(self.gate(person), "Bash", LS, permission_request=saying(None)))
        self.assertEqual(len(person.asked), 2)

    def test_an_input_rewritten_by_a_permission_request_hook_is_judged_again(self) -> None:
        def rewriting(command: str) -> Any:
            async def request(tool: str, input: Mapping[str, Any]) -> ApprovalResult | None:
                return ApprovalResult(True, updated_input={"command": command}, hook="rewriter")

            return request

        for command, asked, allowed in (
            ("git push", 1, True),
            ("npm run x", 0, True),
            ("rm x", 0, False),
            ("sh -c 'git push'", 1, True),
        ):
            with self.subTest(command=command):
                person = Person("yes")
                gate = self.gate(person, ask=["Bash(git push:*)"], deny=["Bash(rm:*)"])
                result = self.approve(gate, "Bash", LS, permission_request=rewriting(command))
                self.assertEqual((len(person.asked), result.allowed), (asked, allowed))
                self.assertEqual(result.updated_input, {"command": command} if allowed else None)
                if asked:
                    self.assertEqual(person.asked[0].details["input"], {"command": command})
        nobody = self.approve(self.gate(ask=["Bash(git push:*)"]), "Bash", LS, permission_request=rewriting("git push"))
        self.assertFalse(nobody)

    def test_no_answer_from_the_run_where_the_gate_has_nobody_either_is_nobodys(self) -> None:
        async def ask(question: UserQuestion) -> str:
            return reply

        for reply, category in (("", "nobody"), (" ", "nobody"), ("yes", "answer"), ("no", "answer")):
            with self.subTest(reply=reply):
                result = self.approve(self.gate(), "Bash", LS, ask=ask)
                self.assertEqual((result.allowed, result.category), (reply == "yes", category))
        result = self.approve(self.gate(Person("yes")), "Bash", LS, ask=ask)
        self.assertEqual((result.allowed, result.category), (False, "answer"), "the run's way to ask comes first")

    def test_an_input_that_is_not_json_never_runs(self) -> None:
        nested: list[Any] = []
        nested.append(nested)
        for value in (object(), nested, b"x"):
            gate, call = self.gate(permission_mode="bypass"), ("Tool", {"x": value})
            result = self.approve(gate, *call)
            self.assertEqual((result.allowed, result.category), (False, "input"))
            self.assertEqual((gate.verdict(*call).outcome, gate.trial(*call)), ("deny", None))
            with self.assertRaisesRegex(OptionsError, "the input of Tool cannot be written as JSON"):
                gate.subject(*call)

    def test_changes_of_a_call_on_a_copy_are_kept_only_after_a_plain_approval(self) -> None:
        tried = ApprovalResult(True, "tried on a copy", category="trial", input_sha256="0")
        for answer, is_kept in (("yes", True), ("no", False), ("edit npm run lint", False), ("", False)):
            with self.subTest(answer):
                person = Person(answer)
                asking = self.gate(person).ask_to_keep(
                    "Bash", LS, {"cwd": str(self.root)}, tried, {"preview": "+ a.txt"}
                )
                result = self.runner.run(asking)
                self.assertEqual((result.allowed, result.updated_input), (is_kept, None))
                question = person.asked[0]
                self.assertEqual((question.prompt, question.details["preview"]), ("Keep what Bash changed?", "+ a.txt"))
                self.assertEqual(result.input_sha256, "0" if answer.startswith("edit") else json_sha256(LS))
        nobody = self.runner.run(PermissionGate().ask_to_keep("Bash", LS, {"cwd": str(self.root)}, tried, {}))
        self.assertEqual((nobody.allowed, nobody.category), (False, "nobody"))

    def test_a_call_that_nobody_asked_for_needs_a_rule_in_every_mode(self) -> None:
        rules = {"allow": ["Bash(npm test)"], "ask": ["Bash(git push:*)"], "deny": ["Read(.env)"]}
        for mode in MODES:
            gate = self.gate(Person("yes"), permission_mode=mode, approver=lambda *call: True, **rules)
            is_open = mode not in ("plan", "deny")
            for call, allowed, rule in (
                (("Bash", LS), is_open, "Bash(npm test)" if is_open else None),
                (("Bash", {"command": "npm publish"}), False, None),
                (("Bash", {"command": "git push"}), False, "Bash(git push:*)" if is_open else None),
                (("Write", {"file_path": "x", "content": ""}), False, None),
                (("Read", {"file_path": ".env"}), False, "Read(.env)"),
            ):
                with self.subTest(mode=mode, call=call):
                    context = {"cwd": str(self.root), "hook_permission": "allow", "hook": "guard"}
                    result = gate.judge_by_rule(*call, context)
                    self.assertEqual((result.allowed, result.rule), (allowed, rule))


class Narrowing(WorkspaceTestCase):
    def test_a_child_is_held_to_parent_and_child(self) -> None:
        parent = self.gate(permission_mode="acceptEdits", deny=["Read(./secrets/**)"], ask=["Bash(git push:*)"])
        cases: list[tuple[dict[str, Any], str, dict[str, Any], str]] = [
            ({"permission_mode": "bypass"}, "Read", {"file_path": "secrets/key"}, "deny"),
            ({"permission_mode": "bypass"}, "Bash", {"command": "git push"}, "ask"),
            ({"permission_mode": "bypass"}, "Bash", {"command": "npm test"}, "ask"),
            ({"allow": ["Bash"]}, "Bash", {"command": "npm test"}, "ask"),
            ({"permission_mode": "plan"}, "Edit", {"file_path": "README.md"}, "deny"),
            ({}, "Edit", {"file_path": "README.md"}, "allow"),
            ({"deny": ["Edit(README.md)"]}, "Edit", {"file_path": "README.md"}, "deny"),
            ({"tools": ["Read", "Grep"]}, "Edit", {"file_path": "README.md"}, "deny"),
            ({"tools": ["Read", "Grep"]}, "Read", {"file_path": "README.md"}, "allow"),
            ({"tools": ["Read"]}, "Bash", {"command": "ls"}, "deny"),
            ({"tools": ["Bash(ls:*)"]}, "Bash", {"command": "ls src"}, "allow"),
            ({"tools": ["Bash(ls:*)"]}, "Bash", {"command": "ls; cat README.md"}, "deny"),
            ({"tools": []}, "Read", {"file_path": "README.md"}, "deny"),
            ({"tools": ["Agent(a, b)"]}, "Task", {"agent": "b"}, "allow"),
            ({"tools": ["Agent(a, b)"]}, "Task", {"agent": "c"}, "deny"),
            ({"tools": ["mcp__*"]}, "mcp__a__b", {}, "ask"),
            ({"tools": ["Bash(git $x)", "Read"]}, "Bash", {"command": "git a x"}, "deny"),
            ({"tools": ["Bash(git * x)", "Read"]}, "Bash", {"command": "git a y"}, "deny"),
            ({"deny": ["Read(!x)"]}, "Read", {"file_path": "README.md"}, "deny"),
            ({"deny": ["(?)"]}, "Read", {"file_path": "README.md"}, "deny"),
            ({"permission_mode": "dontAsk"}, "Bash", {"command": "npm test"}, "deny"),
        ]
        for narrower, tool, input, expected in cases:
            with self.subTest(narrower=narrower, tool=tool, input=input):
                person = Person()
                child = replace(PermissionGate.narrowed(parent, **narrower), user_answerer=person)
                result = self.approve(child, tool, input)
                self.assertEqual("ask" if person.asked else "allow" if result else "deny", expected)

    def test_a_gate_is_a_frozen_value_of_which_others_are_made(self) -> None:
        gate = self.gate(allow=["Bash"], permission_mode="plan")
        with self.assertRaises(FrozenInstanceError):
            gate.trusted = True
        roots = ["/one"]
        kept = replace(gate, workspace_roots=roots)
        roots.append("/two")
        self.assertEqual(kept.workspace_roots, ("/one",))
        for wrong in ({"trusted": "yes"}, {"permission_mode": "anything"}, {"source": 3}, {"deny": ["Bash()"]}):
            with self.subTest(wrong), self.assertRaises((OptionsError, PermissionRuleError)):
                replace(gate, **wrong)

    def test_replace_takes_no_authority_back_that_a_narrowed_gate_has_lost(self) -> None:
        narrowed = self.gate(permission_mode="bypass").narrowed(tools=["Read"], deny=["Read(./secret)"])
        for made in (
            replace(narrowed, trusted=True),
            replace(narrowed, allow=["Bash"]),
            replace(narrowed, permission_mode="bypass"),
            narrowed.forgetful(),
        ):
            self.assertFalse(self.approve(made, "Bash", {"command": "ls"}))
            self.assertFalse(self.approve(made, "Read", {"file_path": "secret"}))
            self.assertTrue(self.approve(made, "Read", {"file_path": "README.md"}))
        self.assertFalse(self.approve(replace(narrowed, deny=["Read"]), "Read", {"file_path": "README.md"}))
        self.assertTrue(self.approve(narrowed, "Read", {"file_path": "README.md"}))

    def test_a_child_names_the_mode_that_really_holds(self) -> None:
        for parent, child, holds in (
            ("default", "bypass", "default"),
            ("plan", "acceptEdits", "plan"),
            ("bypass", "default", "default"),
            ("acceptEdits", "plan", "plan"),
            ("dontAsk", "bypassPermissions", "dontAsk"),
            ("acceptEdits", None, "acceptEdits"),
        ):
            with self.subTest(parent=parent, child=child):
                gate = self.gate(permission_mode=parent).narrowed(permission_mode=child)
                self.assertEqual(gate.mode, holds)
                self.assertEqual(gate.narrowed(permission_mode="bypass").mode, holds)

    def test_no_child_allows_what_its_parent_does_not(self) -> None:
        rng = random.Random(11)
        rules = (
            "Read",
            "Edit(src/**)",
            "Read(//etc/**)",
            "Bash(npm:*)",
            "Bash",
            "Read(.env)",
            "WebFetch(domain:*)",
            "Task",
            "mcp__a__*",
        )
        calls: tuple[tuple[str, dict[str, Any]], ...] = (
            *((("Read", {"file_path": path})) for path in ("README.md", ".env", "/etc/passwd", "link_secret")),
            *((("Edit", {"file_path": path})) for path in ("src/a.py", "README.md", ".git/config")),
            *((("Bash", {"command": text})) for text in ("ls", "npm test", "ls; npm x", "rm x", "echo $(id)")),
            *(
                ("WebFetch", {"url": "https://example.com"}),
                ("Task", {"agent": "a"}),
                ("mcp__a__b", {}),
                ("Custom", {}),
            ),
        )
        for _ in range(sized(15, 50, 1_000)):
            parent_policy, child_policy = (
                {
                    "permission_mode": rng.choice(MODES),
                    **{effect: rng.sample(rules, rng.choice((0, 0, 1, 2))) for effect in ("allow", "ask", "deny")},
                }
                for _ in range(2)
            )
            parent = self.gate(**parent_policy)
            child = parent.narrowed(**child_policy, tools=rng.choice((None, ["Read", "Bash"])))
            for tool, input in calls:
                if self.approve(child, tool, input):
                    with self.subTest(parent=parent_policy, child=child_policy, tool=tool, input=input):
                        self.assertTrue(self.approve(parent, tool, input))

    def test_a_skills_grants_never_reach_past_deny_and_ask_rules(self) -> None:
        policy = {"deny": ["Bash(rm:*)"], "ask": ["Bash(git push:*)"]}
        grants = ["Bash(npm test)", "Bash(rm:*)", "Bash(git push:*)"]
        for command, expected in (("npm test", "allow"), ("rm x", "deny"), ("git push", "ask"), ("npm x", "ask")):
            with self.subTest(command):
                self.assertEqual(self.outcome(policy, "Bash", {"command": command}, grants=grants), expected)

    def test_a_grant_that_cannot_be_understood_grants_nothing(self) -> None:
        result = self.approve(self.gate(), "Bash", LS, grants=["Bash(npm $t)"])
        self.assertFalse(result)
        self.assertEqual(len(result.details["ignored_grants"]), 1)

    def test_a_turns_disallowed_tools_are_denied(self) -> None:
        for rule in ("Bash", "Bash(npm:*)", "Bash(npm $x)", "Bash(npm*)", "Bash(*t)"):
            with self.subTest(rule):
                policy = {"permission_mode": "bypass"}
                self.assertEqual(self.outcome(policy, "Bash", LS, disallowed_tools=[rule]), "deny")

    def test_offered_tools_leave_out_what_is_denied_outright(self) -> None:
        gate = self.gate(deny=["WebFetch", "Bash(rm:*)", "mcp__a"])
        names = ("Read", "Bash", "WebFetch", "mcp__a__b")
        self.assertEqual(gate.offered_tools(names), ("Read", "Bash"))
        self.assertEqual(gate.narrowed(tools=["Bash(ls:*)"]).offered_tools(names), ("Bash",))

    def test_a_rule_of_settings_with_no_name_of_a_tool_is_taken_for_every_tool(self) -> None:
        for text in ("\u00e9", "\u00e9(x)", "5", "(", "Bash(("):
            with self.subTest(text):
                written = SettingsRule(text, ".claude/settings.json", "project")
                found = rules_of_settings(Settings(deny=(written,), allow=(written,)), "/p")
                self.assertEqual((found.allow, found.deny, len(found.diagnostics)), ((), (), 2))
                self.assertEqual([rule.tool for rule in found.ask], ["Bash" if text.startswith("Bash") else "*"])
                self.assertEqual({note.code for note in found.diagnostics}, {"rule-not-understood"})

    def test_rules_of_settings_are_named_by_their_file(self) -> None:
        gate = self.gate().with_rules(deny=["Read(/docs/**)"], source=".claude/settings.json", root=str(self.root))
        result = self.approve(gate, "Read", {"file_path": "docs/x"})
        self.assertEqual((result.allowed, result.source), (False, ".claude/settings.json"))


class Digests(WorkspaceTestCase):
    def test_the_policys_digest_changes_with_every_mode_and_rule(self) -> None:
        policies = [
            {},
            {"permission_mode": "plan"},
            {"allow": ["Read"]},
            {"deny": ["Read"]},
            {"ask": ["Read"]},
            {"allow": ["Read"], "root": "/x"},
        ]
        digests = [self.gate(**policy).policy_sha256 for policy in policies]
        digests.append(self.gate().narrowed(deny=["Read"]).policy_sha256)
        self.assertEqual(len(set(digests)), len(digests))
        self.assertEqual(self.gate(allow=["Read"]).policy_sha256, digests[2])

    def test_an_approval_names_the_exact_input(self) -> None:
        inputs = [{"file_path": "a"}, {"file_path": "b"}, {"file_path": "a", "limit": 1}]
        digests = {self.approve(self.gate(), "Read", input).input_sha256 for input in inputs}
        self.assertEqual(len(digests), 3)

    def test_the_same_call_is_decided_the_same_way_again(self) -> None:
        gate = self.gate(allow=["Bash(npm:*)"])
        for command, _ in itertools.product(("npm test", "rm x", "ls"), range(2)):
            results = {self.approve(gate, "Bash", {"command": command}).reason for _ in range(3)}
            self.assertEqual(len(results), 1)

    def test_the_log_has_what_a_decision_depended_on_besides_the_policy(self) -> None:
        here, elsewhere = str(self.root), str(self.outside)
        for context, expected in (
            ({}, {}),
            ({"session_cwd": here}, {}),
            ({"session_cwd": elsewhere}, {"cwd": here}),
            ({"effect": "read", "confined": "namespaces"}, {"effect": "read", "confined": "namespaces"}),
            ({"grants": ["Bash(ls)"], "disallowed_tools": ["Edit"]}, {"grants": ["Bash(ls)"], "disallowed": ["Edit"]}),
        ):
            with self.subTest(context=context):
                self.assertEqual(self.approve(self.gate(), "Bash", LS, **context).facts, expected)

    def test_the_log_learns_how_a_command_was_understood(self) -> None:
        result = self.approve(self.gate(), "Bash", {"command": "ls | wc -l"})
        self.assertEqual(result.details["commands"], [["ls"], ["wc", "-l"]])
        result = self.approve(self.gate(), "Bash", {"command": "echo $x"})
        self.assertIn("expansion", result.details["not_understood"])


class Concurrency(unittest.IsolatedAsyncioTestCase):
    async def test_questions_at_the_terminal_come_one_after_the_other(self) -> None:
        open_questions = 0
        most = 0

        def typed(prompt: str) -> str:
            nonlocal open_questions, most
            open_questions += 1
            most = max(most, open_questions)
            open_questions -= 1
            return "yes"

        gate = PermissionGate(interactive=True, interactive_approver=InteractiveApprover(input_fn=typed))
        results = await asyncio.gather(*(gate.approve("Bash", {"command": f"make {n}"}) for n in range(20)))
        self.assertTrue(all(results))
        self.assertEqual(most, 1)


class SubagentsOfSubagentsTest(unittest.TestCase):
    def test_each_has_tools_of_its_own_even_after_the_mode_changed_while_they_work(self):
        run = PermissionGate(permission_mode="default")
        one = run.for_subagent(("Task",), "one")
        two = one.for_subagent(("Read",), "two")
        code = one.narrowed(source="code")  # code that works for an agent keeps the agent's list of tools
        new_run = run.with_mode("bypass")
        new_one = one.moved(run, new_run)
        moved = {"one": new_one, "two": two.moved(one, new_one), "code": code.moved(one, new_one)}
        offered = {name: sorted(gate.offered_tools(("Read", "Task"))) for name, gate in moved.items()}
        self.assertEqual(offered, {"one": ["Task"], "two": ["Read"], "code": ["Task"]})
        self.assertEqual({gate.mode for gate in moved.values()}, {"bypass"})


if __name__ == "__main__":
    unittest.main()
