"""Every setting is checked before anything is stored, asked or paid for, and the error names it."""

import argparse
import asyncio
import contextlib
import io
import re
import tempfile
import unittest
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import ClassVar, get_args

import openagentic_sdk
from openagentic_sdk import AgentDefinition, HookEngine, HookMatcher, McpServer, OpenAgenticOptions, OptionsError, run
from openagentic_sdk.agents import Agents, read_agent
from openagentic_sdk.cli.flags import add_run_flags, build_options
from openagentic_sdk.errors import PermissionRuleError
from openagentic_sdk.ground.checks import shown
from openagentic_sdk.ground.settings import open_at, settings_of
from openagentic_sdk.options import Limits, OptionGroup, Project, Session
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.providers.wire.timeouts import Timeouts
from openagentic_sdk.providers.wrappers.fallback import Fallback
from openagentic_sdk.providers.wrappers.retry import RetryPolicy
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.testing.scripted import ScriptedProvider
from tests.size import full_size

from .support import options_for

NAN, INF = float("nan"), float("inf")
SCRIPT = str(Path(__file__).parents[2] / "fixtures" / "scripts" / "first_run.json")


class Unshowable:
    def __repr__(self):
        raise ValueError("no words")


COUNTS = ["output_repair_turns", "blob_bytes", "max_steps", "max_subagent_depth", "max_answer_bytes"]
LIMITS = ["resume_max_events", "resume_max_bytes", "max_tokens", "max_context_tokens", "max_context_bytes"]
LISTS = [
    "setting_sources",
    "additional_dirs",
    "skill_paths",
    "skills",
    "allowed_tools",
    "disallowed_tools",
    "fallback",
    "tools",
]
TEXTS = ["model", "api_key", "system_prompt", "resume", "session_id", "request_id", "traceparent"]
BAD = {
    **{name: [-1, 1.5, "3", True, None, NAN, 10**400] for name in COUNTS},
    **{name: [-1, 1.5, "3", True, 10**400] for name in LIMITS},
    **{name: ["user", b"x", 3, {"a": 1}, [3], (each for each in "ab")] for name in LISTS},
    **{name: [3, b"x", ["x"]] for name in TEXTS},
    **{name: [-1, NAN, INF, "1", True, 10**400] for name in ("timeout_s", "max_cost_usd")},
    **{
        name: [3, b"x", ["x"], "a\0b", "\ud800", "y" * 5000, "y" * 256]
        for name in ("cwd", "project_dir", "home", "key_file", "limits_file")
    },
    **{name: ["yes", 1] for name in ("trust_project", "run_text_commands", "continue_last")},
    "provider": [None, "openai", object(), ScriptedProvider],
    "record_signers": [None, 3, "", "ssh", ["ssh"]],
    "retry": [3, {"max_retries": 2}],
    "part": ["middle", None],
    "output_form": ["json", None],
    "prices": [
        {"m": {"x": 1}},
        {"m": {"input": 1}},
        {"m": {"input": -1, "output": 1}},
        {"m": {"input": NAN, "output": 1}},
        {"m": {"input": INF, "output": 1}},
        {"m": {"input": "1", "output": 1}},
        {"m": {"input": 1, "output": 1, "cached": 1}},
        {"m": 3},
        {"m": {"input": 1, "output": 1, "long": {"input": 2}}},
        [("m", 1)],
        3,
        {"m": {"input": 1e308, "output": 1}},
        {"m": {"input": 1, "output": 1, "tiers": {"batch": INF}}},
        {3: {"input": 1, "output": 1}},
        {"m": Unshowable()},
        "/no/such/file",
        "a\0b",
    ],
    "permission_gate": ["default"],
    "sandbox": ["on", None, True],
    "labels": ["on", None, True, ["ask(untrusted)"]],
    "bash_effects": ["dry-run", True],
    "hooks": [
        [HookMatcher("a")],
        HookEngine(stop=[print]),
        HookEngine(stop="print"),
        HookEngine(stop=None),
        HookEngine(default_timeout_s=NAN),
        HookEngine(enable_message_rewrite_hooks="yes"),
        *(
            HookEngine(stop=[replace(HookMatcher("a"), **bad)])
            for bad in (
                {"timeout_s": -1},
                {"timeout_s": 10**400},
                {"name": 3},
                {"name": Unshowable()},
                {"tool_name_pattern": ["Edit", "Write"]},
                {"tool_name_regex": "("},
                {"hook": "check.sh"},
                {"when": True},
                {"fail_closed": "yes"},
            )
        ),
    ],
    "agents": [
        [AgentDefinition("d", "p")],
        {"a": {"description": "d"}},
        {3: AgentDefinition("d", "p")},
        *(
            {"a": replace(AgentDefinition("d", "p"), **bad)}
            for bad in (
                {"description": 3},
                {"prompt": None},
                {"tools": "Read"},
                {"provider": "openai"},
                {"model": 3},
                {"disallowed_tools": "Bash"},
                {"max_steps": -1},
                {"permission_mode": "anything"},
                {"skills": "one"},
                {"source": 3},
                {"isolation": "worktree"},
            )
        ),
    ],
    "mcp_servers": [
        3,
        {"a b": {"command": "x"}},
        {"a__b": {"command": "x"}},
        {"a": 5},
        {"a": {}},
        {"a": {"command": 3}},
        {"a": {"command": "x", "url": "http://127.0.0.1/"}},
        {"a": {"url": "ftp://127.0.0.1/"}},
        {"a": {"command": "x", "timeOut": 3}},
        {"a": {"command": "x", "effects": {"get": "safe"}}},
    ],
    "session_store": [3, object(), "mysql:x"],
    "session_metadata": [{"a": object()}, [1], None],
    "on_storage_error": ["ignore", None],
    "memory": [None, "user", 1],
    "code": [None, "user", 1],
    "defer_tools": ["always", None, 0.1],
    "redact": ["secret", None, 3],
    "stream": [None, "yes", 1],
    "model_names": [None, ["haiku"], {"haiku": 3}, {3: "m"}],
    "clock": [3, object()],
    "otlp_endpoint": [3, "collector:4318", "ftp://127.0.0.1/", "http://user:key@127.0.0.1/"],
    "otlp_headers": [None, ["a"], {"a": 3}],
}
BAD["fallback"] += ["", [""], [Fallback("")], [Fallback("m", provider="openai")], [Fallback("m", api_key=b"x")]]
BAD["allowed_tools"] += [[""], ["Bash(a && b)"], ["Bash()"]]
BAD["disallowed_tools"] += [[""], ["Bash()"]]
BAD["session"] = [3, "", "a/b", "..", ".hidden", "a b", "CON", "\u00e4", "a\0b", "y" * 129]
BAD["session_id"] += ["", "a\nb", "y" * 201]
BAD["parts"] = [None, 3, "tally", {"a": 1}, [3], [None], [object], [object()], [lambda: None], [Unshowable()]]
BAD["groups"] = [None, 3, "limits", Limits(), [3], [None], [Limits], [OpenAgenticOptions()], {"a": 1}]
BAD["output_schema"] = [3, "text", [str], b"x", {"const": NAN}, Unshowable()]


class OptionsTest(unittest.TestCase):
    def test_every_setting_has_its_check(self):
        for cls in (OpenAgenticOptions, AgentDefinition):
            stated = settings_of(cls)
            self.assertEqual([known.name for known in fields(cls)], list(stated))
            self.assertLessEqual({name for name, each in stated.items() if each.check is None}, {"output_schema"})

    def test_every_default_but_that_of_the_provider_fits_its_check(self):
        for cls in (OpenAgenticOptions, AgentDefinition, PermissionGate, RetryPolicy, Timeouts, McpServer):
            for known in fields(cls):
                made = () if known.default_factory is MISSING else (known.default_factory(),)
                check = settings_of(cls)[known.name].check
                for default in made or (known.default,):
                    if check is not None and default is not MISSING and known.name != "provider":
                        with self.subTest(f"{cls.__name__}.{known.name}"):
                            self.assertIsNone(check(default))

    def test_every_setting_is_described(self):
        for cls in (OpenAgenticOptions, AgentDefinition):
            words = set(re.findall(r"\w+", cls.__doc__))
            self.assertEqual({known.name for known in fields(cls)} - words, set())

    def test_a_group_sets_what_its_fields_set_alone(self):
        for kind in get_args(OptionGroup):
            for name, setting in settings_of(kind).items():
                values = [value for value in (DoorsTest.VALUES.get(name), "x", 7) if value is not None]
                value = next((each for each in values if setting.check is None or setting.check(each) is None), None)
                with self.subTest(f"{kind.__name__}.{name}"):
                    grouped = OpenAgenticOptions(groups=[kind(**{name: value})], model="m")
                    self.assertEqual(grouped, OpenAgenticOptions(**{name: value}, model="m"))
                    self.assertEqual(replace(grouped, model="n"), OpenAgenticOptions(**{name: value}, model="n"))
        groups = [Limits(max_steps=3), Session(session="s"), Limits(timeout_s=1.0), Project(cwd="/")]
        self.assertEqual(
            OpenAgenticOptions(groups=groups, max_tokens=5),
            OpenAgenticOptions(max_steps=3, session="s", timeout_s=1.0, cwd="/", max_tokens=5),
        )

    def test_a_setting_that_comes_twice_with_two_values_is_refused(self):
        same = OpenAgenticOptions(max_steps=3, groups=[Limits(max_steps=3)])
        self.assertEqual(same.max_steps, 3)
        for use in (
            lambda: OpenAgenticOptions(max_steps=4, groups=[Limits(max_steps=3)]),
            lambda: OpenAgenticOptions(groups=[Limits(max_steps=4), Limits(max_steps=3)]),
            lambda: replace(OpenAgenticOptions(max_steps=4), groups=[Limits(max_steps=3)]),
        ):
            with self.assertRaisesRegex(OptionsError, r"max_steps is set twice, as 4 and by Limits\(max_steps=3\)"):
                use()

    def test_every_setting_has_bad_values_here(self):
        self.assertEqual(set(settings_of(OpenAgenticOptions)) - set(BAD), set())

    @full_size
    def test_a_bad_setting_is_refused_by_its_name_before_anything_has_happened(self):
        for name, values in BAD.items():
            for value in values:
                provider, store = ScriptedProvider(["never asked for"]), MemorySessionStore()
                options = replace(options_for(provider, session_store=store), **{name: value})
                with self.subTest(name=name, value=shown(value)), self.assertRaises(OptionsError) as raised:
                    asyncio.run(run(prompt="hi", options=options))
                with self.subTest(name=name, value=shown(value)):
                    self.assertIn(name, str(raised.exception))
                    self.assertEqual((provider.requests, store.list_sessions()), ([], []))

    def test_a_retry_policy_or_a_gate_that_cannot_be_used_is_not_made(self):
        bad = [-1, NAN, INF, "1", True, None, 10**400]
        tables = {
            RetryPolicy: {
                **dict.fromkeys(("max_retries", "base_s", "cap_s", "max_retry_after_s", "total_s"), bad),
                "mid_answer": ["no"],
            },
            PermissionGate: {
                "permission_mode": ["anything", 3, Unshowable()],
                "interactive_approver": [True],
                **{key: ["yes"] for key in ("user_answerer", "approver", "save_rule", "clock")},
                **{key: [3, b"x", "a\0b"] for key in ("root", "cwd")},
                **{key: ["/", [3], None, ["\ud800"]] for key in ("workspace_roots", "protected_paths")},
                **{key: ["yes", 1] for key in ("interactive", "trusted")},
                **{key: ["Read", b"x", [b"x"], [["Read"]], {"Read": 1}, 3] for key in ("allow", "ask", "deny")},
                "source": [3],
            },
        }
        for kind, settings in tables.items():
            for name, values in settings.items():
                for value in values:
                    with (
                        self.subTest(name=name, value=shown(value)),
                        self.assertRaises((OptionsError, PermissionRuleError)) as raised,
                    ):
                        kind(**{name: value})
                    if not isinstance(value, list):
                        self.assertIn(name, str(raised.exception))

    def test_no_error_contains_a_key(self):
        with self.assertRaises(OptionsError) as raised:
            asyncio.run(run(prompt="hi", options=options_for(["x"], api_key=b"hush-hush")))
        self.assertNotIn("hush", str(raised.exception))

    def test_an_invalid_prompt_is_refused_before_anything_has_happened(self):
        for prompt in (3, b"x", {"a": 1}):
            store = MemorySessionStore()
            with self.subTest(prompt=prompt), self.assertRaises(OptionsError):
                asyncio.run(run(prompt=prompt, options=options_for(["x"], session_store=store)))
            self.assertEqual(store.list_sessions(), [])


class DoorsTest(unittest.TestCase):
    """Flags, variables and file settings that come from the declaration of one option."""

    VALUES: ClassVar = {
        "system_prompt": "Be brief.", "sandbox": "auto", "bash_effects": "preview", "max_steps": 7,
        "timeout_s": 1.5, "labels": "guard",
        "max_cost_usd": 2.5, "otlp_endpoint": "http://127.0.0.1:4318", "model": "m", "trust_project": False, "max_tokens": 9,
        "setting_sources": ["user"], "disallowed_tools": ["Bash"], "max_context_tokens": 100, "skill_paths": ["/skills"],
    }  # fmt: skip

    def test_a_flag_of_an_option_sets_it_and_helps_with_its_sentence(self):
        parser = argparse.ArgumentParser()
        add_run_flags(parser)
        words = parser.format_help().replace("\n", " ")
        for name, setting in open_at(OpenAgenticOptions, "flag").items():
            flag, _, metavar = setting.doors.flag.partition(" ")
            value = self.VALUES.get(name, True)
            given = [flag] if value is True else [flag, *map(str, value if isinstance(value, list) else [value])]
            with self.subTest(name), tempfile.TemporaryDirectory() as store:
                args = parser.parse_args(["--script", SCRIPT, "--store", store, *given])
                made = getattr(build_options(args, PermissionGate()), name)
                self.assertEqual([str(path) for path in made] if isinstance(value, list) else made, value)
            with self.subTest(name):
                self.assertIn(f" {flag} {metavar}".rstrip(), words)

    def test_a_flag_that_cannot_be_used_is_refused(self):
        parser = argparse.ArgumentParser()
        add_run_flags(parser)
        for wrong in (["--max-steps", "0"], ["--max-steps", "x"], ["--sandbox", "on"], ["--timeout", "soon"]):
            with self.subTest(wrong), self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()) as out:
                parser.parse_args(wrong)
            self.assertIn(wrong[0], out.getvalue())

    def test_a_key_of_agents_toml_sets_the_option_of_its_name(self):
        for name in open_at(OpenAgenticOptions, "toml"):
            with self.subTest(name):
                agent = read_agent("a", {"script": SCRIPT, name: self.VALUES[name]}, Path())
                self.assertEqual(getattr(agent.made(), name), self.VALUES[name])
        for name, value in (("home", "/"), ("allowed_tools", ["Bash"]), ("max_stepz", 3)):
            with self.subTest(name), self.assertRaisesRegex(OptionsError, f"has no setting '{name}': the settings are"):
                read_agent("a", {"script": SCRIPT, name: value}, Path())

    def test_a_client_may_lower_what_is_open_to_clients_and_nothing_else(self):
        limits = {"max_steps": 9, "timeout_s": 9.0, "max_tokens": 9, "max_cost_usd": 9.0}
        self.assertEqual(set(open_at(OpenAgenticOptions, "client")), set(limits))
        agents = Agents({"a": options_for([], **limits)})
        for name in limits:
            self.assertEqual(getattr(agents.options("a", {name: 3}), name), 3)
            with self.subTest(name), self.assertRaisesRegex(OptionsError, name):
                agents.options("a", {name: 10})
        with self.assertRaisesRegex(OptionsError, "a client cannot set 'sandbox'"):
            agents.options("a", {"sandbox": "off"})

    def test_every_other_door_that_is_named_is_there(self):
        parser = argparse.ArgumentParser()
        add_run_flags(parser)
        package = Path(openagentic_sdk.__file__).parent
        code = "".join(path.read_text(encoding="utf-8") for path in package.rglob("*.py") if path.name != "options.py")
        for cls in (OpenAgenticOptions, PermissionGate):
            for name, setting in settings_of(cls).items():
                for flag in re.findall(r"--[\w-]+", setting.doors.elsewhere):
                    with self.subTest(name):
                        self.assertIn(flag, parser.format_usage())
                for variable in re.findall(r"\$(\w+)", setting.doors.elsewhere):
                    with self.subTest(name):
                        names = (f'"{variable}"', f'"{variable.rpartition("_")[0]}_"')
                        self.assertTrue(any(each in code for each in names), f"nothing reads ${variable}")


if __name__ == "__main__":
    unittest.main()
