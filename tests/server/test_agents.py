"""Named agents: the contents of a registry, how it is written, and what a client may request."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import unittest
from pathlib import Path

from openagentic_sdk import Agent, Flow, ToolContext, workflow
from openagentic_sdk.agents import Agents, NamedAgent, load_agents
from openagentic_sdk.assemble import build_agent
from openagentic_sdk.errors import AgentNotFoundError, OptionsError
from openagentic_sdk.options import OpenAgenticOptions
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.testing.scripted import ScriptedProvider


def options(mode: str | None = None, **more) -> OpenAgenticOptions:
    gate = PermissionGate(permission_mode=mode) if mode else None
    return OpenAgenticOptions(provider=ScriptedProvider(["Hi."]), model="m", permission_gate=gate, **more)


class Registry(unittest.TestCase):
    def test_an_unknown_name_is_an_error_that_names_the_others(self) -> None:
        agents = Agents({"reviewer": options(), "writer": options()})
        with self.assertRaisesRegex(AgentNotFoundError, "reviewer, writer"):
            agents.options("reviewr")
        self.assertIsInstance(AgentNotFoundError("x", []), LookupError)
        self.assertEqual((list(agents), agents.default), (["reviewer", "writer"], "reviewer"))

    def test_entries_that_cannot_be_used_are_refused_when_they_are_registered(self) -> None:
        wrong = {
            "no agents": {},
            "a name": {"a/b": options()},
            "an empty name": {"": options()},
            "no options": {"a": 3},
            "a session": {"a": options(resume="x")},
            "bypass for clients": {"a": NamedAgent(options(), client_modes=("bypassPermissions",))},
            "an unknown mode": {"a": NamedAgent(options(), client_modes=("yolo",))},
            "an unusable setting": {"a": options(max_steps=-1)},
        }
        for case, given in wrong.items():
            with self.subTest(case), self.assertRaises(OptionsError):
                Agents(given)

    def test_an_agent_and_a_workflow_are_registered_as_they_are_even_while_an_event_loop_runs(self) -> None:
        async def instructions(ctx: ToolContext[None]) -> str:
            return "You keep a shop."

        @workflow
        async def count(flow: Flow) -> str:
            return "one"

        given = {"shop": Agent(ScriptedProvider(["Hi."]), instructions=[instructions]), "count": count}

        async def register() -> Agents:
            return Agents(given)

        for agents in (Agents(given), asyncio.run(register())):
            self.assertEqual(agents.options("shop").system_prompt, "You keep a shop.")
            self.assertEqual(agents.options("count").model, "workflow")
        with self.assertRaisesRegex(
            OptionsError, r"agent 'shop': deps must be of the type int.*to_options\(deps=...\)"
        ):
            Agents({"shop": Agent(ScriptedProvider(), deps=int)})

    def test_a_client_may_lower_limits_and_raise_none(self) -> None:
        agents = Agents({"a": options(max_steps=5, timeout_s=60.0)})
        made = agents.options("a", {"max_steps": 2, "timeout_s": 60, "max_tokens": 100}, request_id="r")
        self.assertEqual((made.max_steps, made.timeout_s, made.max_tokens, made.request_id), (2, 60, 100, "r"))
        self.assertEqual(made.session_metadata["agent"], "a")
        refused = (
            {"max_steps": 6},
            {"max_steps": 1.5},
            {"max_steps": True},
            {"timeout_s": -1},
            {"timeout_s": float("nan")},
            {"max_cost_usd": "0"},
            {"max_cost_usd": float("inf")},
            {"cwd": "/"},
            {"tools": []},
            {"allowed_tools": ["Bash"]},
            {"hooks": None},
        )
        for wishes in refused:
            with self.subTest(wishes), self.assertRaises(OptionsError):
                agents.options("a", wishes)

    def test_a_client_chooses_the_agents_mode_a_stricter_one_or_a_listed_one_and_never_bypass(self) -> None:
        agents = Agents(
            {
                "plain": options(),
                "listed": NamedAgent(options("plan"), client_modes=("acceptEdits",)),
                "bypass": options("bypass"),
            }
        )
        self.assertEqual(agents.modes("plain"), ("deny", "plan", "dontAsk", "prompt", "callback", "default"))
        self.assertEqual(agents.modes("listed"), ("deny", "plan", "acceptEdits"))
        self.assertNotIn("bypass", agents.modes("bypass"))
        self.assertEqual(agents.options("plain", {"permission_mode": "plan"}).permission_gate.mode, "plan")
        self.assertEqual(agents.options("bypass").permission_gate.mode, "bypass")
        for name, mode in (
            ("plain", "acceptEdits"),
            ("plain", "bypass"),
            ("bypass", "bypass"),
            ("bypass", "bypassPermissions"),
            ("plain", ["plan"]),
            ("plain", None),
        ):
            with self.subTest(name=name, mode=mode), self.assertRaises(OptionsError):
                agents.options(name, {"permission_mode": mode})

    def test_a_client_may_not_choose_a_mode_that_cannot_be_compared_with_the_agents_own(self) -> None:
        agents = Agents({mode: options(mode) for mode in ("plan", "prompt", "dontAsk", "callback", "acceptEdits")})
        for own in ("plan", "prompt", "dontAsk", "callback"):
            self.assertEqual(set(agents.modes(own)), {"deny", own})
            for other in {"plan", "prompt", "dontAsk", "callback", "default"} - {own}:
                with self.subTest(own=own, other=other), self.assertRaises(OptionsError):
                    agents.check_no_looser(own, {"permission_mode": other})
            agents.check_no_looser(own, {"permission_mode": own})
        agents.check_no_looser("acceptEdits", {"permission_mode": "plan"})

    def test_permissions_granted_in_one_run_do_not_apply_to_another(self) -> None:
        agents = Agents({"a": options("default")})
        first, second = (agents.options("a").permission_gate for _ in range(2))
        first.remember("s", ["Bash(ls:*)"])
        self.assertEqual(second.memory.rules, {})
        self.assertEqual(first.policy_sha256, second.policy_sha256)

    def test_a_function_creates_new_options_for_each_run(self) -> None:
        agents = Agents({"a": NamedAgent(options)})
        self.assertIsNot(agents.options("a").provider, agents.options("a").provider)


class Files(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name).resolve()

    def write(self, text: str, name: str = "agents.toml") -> str:
        (self.folder / name).write_text(text)
        return str(self.folder / name)

    def test_a_client_chooses_no_mode_that_asks_less_than_the_settings_of_the_agents_project(self) -> None:
        (self.folder / ".claude").mkdir()
        settings = self.folder / ".claude" / "settings.json"
        opened = {"cwd": str(self.folder), "setting_sources": ("project",)}
        agents = Agents({"own": options("default", **opened), "theirs": options(**opened)})
        for said, own, theirs in (("plan", "default", "plan"), ("bypassPermissions", "default", "default")):
            settings.write_text(json.dumps({"permissions": {"defaultMode": said}}))
            with self.subTest(said):
                self.assertEqual([agents.modes(name)[-1] for name in agents], [own, theirs])
                self.assertEqual(build_agent(agents.options("theirs")).gate.mode, theirs)
        settings.write_text('{"permissions": {"defaultMode": "plan"}}')
        with self.assertRaisesRegex(OptionsError, "default"):
            agents.options("theirs", {"permission_mode": "default"})

    def test_a_toml_file_names_models_folders_modes_and_limits(self) -> None:
        (self.folder / "app").mkdir()
        self.write('["Hello."]', "hello.json")
        where = self.write(
            '[agents.greeter]\ndescription = "Greets"\nscript = "hello.json"\nproject = "app"\nmax_steps = 3\n'
            'permission_mode = "plan"\nclient_modes = ["default"]\nallow = ["Bash(ls:*)"]\nsetting_sources = ["project"]\n'
            '[agents.local]\nprovider = "ollama"\nmodel = "qwen3"\ntimeout_s = 60\nfallback = ["small"]\n'
        )
        agents = load_agents(where)
        greeter = agents.options("greeter")
        self.assertEqual((greeter.cwd, greeter.max_steps, greeter.model), (str(self.folder / "app"), 3, "scripted"))
        self.assertEqual((agents["greeter"].description, greeter.permission_gate.mode), ("Greets", "plan"))
        self.assertIn("default", agents.modes("greeter"))
        self.assertEqual(agents.options("local").model, "qwen3")

    def test_an_error_in_a_file_is_reported_by_its_name(self) -> None:
        cases = {
            "hooks": '[agents.a]\nprovider = "ollama"\nhooks = "x.py"\n',
            "provider": '[agents.a]\nprovider = "nobody"\n',
            "allow": '[agents.a]\nprovider = "ollama"\nallow = "Bash"\n',
            "Bash\\(": '[agents.a]\nprovider = "ollama"\nallow = ["Bash("]\n',
            "permission_mode": '[agents.a]\nprovider = "ollama"\npermission_mode = "yolo"\n',
            "model": '[agents.a]\nprovider = "ollama"\nmodel = 3\n',
            "bypass": '[agents.a]\nprovider = "ollama"\nclient_modes = ["bypass"]\n',
            "agents.NAME": 'store = "x"\n[agents.a]\nprovider = "ollama"\n',
            "cannot be read": "agents = [",
            "script": '[agents.a]\nscript = "none.json"\n',
        }
        for word, text in cases.items():
            with self.subTest(word), self.assertRaisesRegex(Exception, word) as caught:
                load_agents(self.write(text))
            self.assertTrue(type(caught.exception).__module__.startswith("openagentic_sdk"), caught.exception)
        for where in (str(self.folder / "none.toml"), self.write("a = " + "[" * 100_000)):
            with self.assertRaisesRegex(OptionsError, "cannot be read"):
                load_agents(where)
        with self.assertRaisesRegex(OptionsError, "; give a TOML file, or MODULE:NAME for an agent in Python"):
            load_agents("no-such-agents")

    def test_a_module_gives_a_registry_a_mapping_or_a_function(self) -> None:
        source = (
            "from openagentic_sdk import OpenAgenticOptions\nfrom openagentic_sdk.testing.scripted import ScriptedProvider\n"
            "agents = {'one': OpenAgenticOptions(provider=ScriptedProvider(), model='m')}\n"
            "from openagentic_sdk import Agent\none = Agent(ScriptedProvider())\n"
            "def make():\n    return agents\nwrong = 3\n"
        )
        self.write(source, "registry_of_a_test.py")
        before = os.getcwd()
        os.chdir(self.folder)
        self.addCleanup(os.chdir, before)
        self.addCleanup(sys.modules.pop, "registry_of_a_test", None)
        for name in ("agents", "make", "one"):
            self.assertEqual(list(load_agents(f"registry_of_a_test:{name}")), ["one"])
        self.assertNotIn(str(self.folder), sys.path)
        sys.path.insert(0, str(self.folder))
        self.addCleanup(sys.path.remove, str(self.folder))
        before_path = [*sys.path]
        load_agents("registry_of_a_test:agents")
        self.assertEqual(sys.path, before_path)  # a folder that was searched already keeps its place
        for where in ("registry_of_a_test:wrong", "registry_of_a_test:none", "no_such_module_here:agents", ":agents"):
            with self.subTest(where), self.assertRaises(OptionsError):
                load_agents(where)


if __name__ == "__main__":
    unittest.main()
